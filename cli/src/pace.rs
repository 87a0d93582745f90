//! The command `pace`: lines, released at a rate.

use core::cell::RefCell;
use core::num::NonZero;
use core::time::Duration;
use std::io::{self, BufRead, Write};
use std::process::{Child, ExitCode, Stdio};

use futures_executor::block_on;
use futures_util::stream;
use portcullis_async::{Queue, ThreadTimer};
use portcullis_core::{Clock as _, Rate};
use portcullis_jobs::{Jobs, Operation, Pace, WriteOutcome};

use crate::args::{LineCost, PaceArgs};
use crate::failure::Failure;
use crate::limit::Limit;

/// A line with its end, and its cost.
struct Line {
    bytes: Vec<u8>,
    cost: u32,
}

/// The lines of a reader, until its end or the first error.
struct Lines<R> {
    reader: R,
    cost: LineCost,
    number: u64,
}

impl<R: BufRead> Lines<R> {
    fn next(&mut self) -> Result<Option<Line>, Failure> {
        let mut bytes = Vec::new();
        let read = self.reader.read_until(b'\n', &mut bytes);
        if read.map_err(|error| Failure::Refused(format!("cannot read the input: {error}")))? == 0 {
            return Ok(None);
        }
        self.number += 1;
        let cost = match self.cost {
            LineCost::One => Some(1),
            LineCost::Bytes => u32::try_from(bytes.len()).ok(),
            LineCost::Field(place) => field(&bytes, place),
        };
        let cost = cost.ok_or_else(|| {
            let LineCost::Field(place) = self.cost else {
                return Failure::Refused(format!("line {} is too long", self.number));
            };
            Failure::Refused(format!(
                "line {}: field {place} is not a whole number of at most {}",
                self.number,
                u32::MAX
            ))
        })?;
        Ok(Some(Line { bytes, cost }))
    }
}

/// Returns the number in a field; the first one is 1.
fn field(line: &[u8], place: NonZero<usize>) -> Option<u32> {
    let fields = line
        .split(u8::is_ascii_whitespace)
        .filter(|field| !field.is_empty());
    let field = fields.into_iter().nth(place.get() - 1)?;
    str::from_utf8(field).ok()?.parse().ok()
}

/// The pace of a limit.
fn pace(limit: &Limit, interval: Duration) -> Result<Pace, Failure> {
    let permits = u32::try_from(limit.permits)
        .map_err(|_| Failure::Refused(format!("{} is too high a rate", limit.text)))?;
    if limit.algorithm.is_some() || limit.burst.is_some() || limit.segments.is_some() {
        let reason = "a pace has no settings besides N/PERIOD: see --interval";
        return Err(Failure::Refused(reason.into()));
    }
    if permits == 0 {
        return Err(Failure::Refused("a rate of 0 releases nothing".into()));
    }
    Ok(Pace::new(Rate::new(permits, limit.period), interval))
}

pub(crate) fn run(args: &PaceArgs) -> Result<ExitCode, Failure> {
    let Some((program, arguments)) = args.command.split_first() else {
        paced(args, io::stdin().lock(), io::stdout().lock())?;
        return Ok(ExitCode::SUCCESS);
    };
    let mut command = std::process::Command::new(program);
    let started = command.args(arguments).stdout(Stdio::piped()).spawn();
    let started = started.map_err(|error| Failure::Refused(format!("{program}: {error}")))?;
    let mut running = Running(started);
    if let Some(output) = running.0.stdout.take() {
        paced(args, io::BufReader::new(output), io::stdout().lock())?;
    }
    let status = running.0.wait()?;
    // A signal has no code.
    let code = status
        .code()
        .and_then(|code| u8::try_from(code).ok())
        .unwrap_or(1);
    Ok(ExitCode::from(code))
}

/// A command. It is ended if its lines can no longer be used.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Writes the lines of a reader at the pace.
fn paced(args: &PaceArgs, reader: impl BufRead, mut writer: impl Write) -> Result<(), Failure> {
    let pace = pace(&args.rate, args.interval)?;
    let timer = ThreadTimer::new();
    let bucket = if args.empty {
        pace.empty_bucket(timer.now())
    } else {
        pace.bucket()
    };
    let bucket = bucket.map_err(|error| Failure::Refused(error.to_string()))?;
    let queue = Queue::new(bucket, timer, pace.burst());

    let failed = RefCell::new(None);
    let lines = Lines {
        reader,
        cost: args.cost,
        number: 0,
    };
    // Reading blocks this thread. There is nothing else to do in that time: each line is a batch of
    // its own, so all that was read before is written.
    let lines = stream::unfold(lines, async |mut lines| match lines.next() {
        Ok(line) => line.map(|line| (line, lines)),
        Err(failure) => {
            failed.replace(Some(failure));
            None
        }
    });
    let jobs = Jobs::new(&queue, ThreadTimer::new())
        .interval(pace.interval())
        .cost(|line: &Line| line.cost)
        .batch(1)
        .concurrency(1);
    let handle = jobs.handle();
    let mut write = |batch: &[Operation<Line>]| -> io::Result<()> {
        for line in batch {
            writer.write_all(&line.bytes)?;
        }
        writer.flush()
    };
    block_on(jobs.run(lines, |batch| {
        let outcome = match write(&batch) {
            Ok(()) => WriteOutcome::Done,
            Err(error) => {
                handle.stop();
                failed.replace(Some(error.into()));
                WriteOutcome::Refused
            }
        };
        core::future::ready(outcome)
    }));
    failed.into_inner().map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cost_of_a_line_is_a_field() {
        let field = |line: &str, place| field(line.as_bytes(), NonZero::new(place).unwrap());
        assert_eq!(field("GET /a  17\n", 3), Some(17));
        assert_eq!(field("17\n", 1), Some(17));
        assert_eq!(field("GET /a -\n", 3), None);
        assert_eq!(field("GET\n", 3), None);
        assert_eq!(field("4294967296\n", 1), None);
    }
}
