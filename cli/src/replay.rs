//! `portcullis replay`: shows what limits would have done to the requests of access logs.
//!
//! A line passes through these modules in this order:
//!
//! | module | what is in it |
//! |---|---|
//! | [`input`] | reads the lines of a log: file or standard input, plain or gzip, in constant memory |
//! | [`mod@format`] | parses a line into its time, its size and the parts of its key |
//! | [`time`] | parses the times of logs |
//! | [`key`] | decides which requests share a limit; numbers the keys |
//! | [`logs`] | reads several logs as one: records of time, size and key number |
//! | [`order`] | sorts the records by time |
//! | [`settings`] | builds limiters from the command line |
//! | [`judge`] | one limiter per key and limit, and their decisions |
//! | [`needs`] | what keys need at most in a minute and a second; which of them look like abuse |
//! | [`policy`] | requests from lines, the decisions of a policy, and limits to recommend |
//! | [`timeline`] | decisions over time, in a fixed number of rows |
//! | [`report`] | prints the result, as a summary or as JSON, and writes it as a page |
//!
//! The library's own limiters decide, at the log's time. Memory grows with the number of keys and
//! with the lines of one horizon. A line that waits to be sorted takes 24 bytes.

pub(crate) mod args;
mod format;
mod input;
mod judge;
mod key;
mod logs;
mod needs;
mod order;
mod policy;
mod report;
mod settings;
mod time;
mod timeline;

use core::time::Duration;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use self::args::{Cost, OrderBy, ReplayArgs};
use self::format::Reader;
use self::judge::Judge;
use self::key::{Keys, Numbering};
use self::logs::{Counts, Logs, Parsing};
use self::order::{Order, Record};
use self::report::{Page, Report};
use crate::failure::Failure;
use crate::text::{counted, visible};

/// Reads the logs, judges their requests and prints the result.
///
/// # Errors
///
/// [`Failure::Refused`] for invalid settings and for logs that cannot be read, [`Failure::Output`]
/// if the result cannot be written.
pub(crate) fn run(args: &ReplayArgs) -> Result<ExitCode, Failure> {
    if args.horizon.is_some() && args.order == OrderBy::Log {
        let reason = "--horizon is for --order time, not for --order log";
        return Err(Failure::Refused(reason.into()));
    }
    if let Some(file) = &args.policy {
        policy::run(args, file)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut judge = Judge::new(settings::all(args)?, args.cost);
    if args.html.is_some() {
        judge.count_clients();
    }
    let reader = Reader::new(&args.format, &args.key, args.cost == Cost::Bytes);
    let mut parsing = Parsing {
        reader: reader.map_err(Failure::Refused)?,
        keys: Keys::new(args.key.clone()),
    };
    let pass = Pass::new(args, &mut parsing, |record, _| judge.request(record))?;
    let report = Report::new(args, &judge, &parsing.keys, &pass);
    if let Some(file) = &args.html {
        write_page(file, &report.page(&judge, &parsing.keys), args.all_keys)?;
    }
    if args.json {
        report.json()?;
    } else {
        report.summary(args, &judge)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes a page to `file`.
fn write_page(file: &Path, page: &Page<'_>, all_keys: bool) -> Result<(), Failure> {
    let written = fs::write(file, page.html(all_keys));
    written.map_err(|error| Failure::Refused(format!("cannot write {}: {error}", file.display())))
}

/// All logs, read once.
struct Pass<'a> {
    order: Order,
    logs: Vec<Counts<'a>>,
    /// Whether no time has a fraction of a second.
    is_in_seconds: bool,
    elapsed: Duration,
}

impl<'a> Pass<'a> {
    /// Reads the logs, and passes each line to `judge` in its order.
    ///
    /// # Errors
    ///
    /// [`Failure::Refused`] if a log cannot be read, and the first error of `judge`.
    fn new<N: Numbering>(
        args: &'a ReplayArgs,
        parsing: &mut Parsing<N>,
        mut judge: impl FnMut(Record, &mut N) -> Result<(), Failure>,
    ) -> Result<Self, Failure> {
        let horizon = args.sorted_within();
        let mut order = Order::new(horizon.map(|horizon| horizon.as_millis() as u64));
        let start = Instant::now();
        let (mut is_empty, mut is_in_seconds) = (true, true);
        let mut logs = Logs::open(&args.logs, horizon.is_some(), parsing)?;
        while let Some(record) = logs.next(parsing)? {
            is_empty = false;
            is_in_seconds &= record.time % 1_000 == 0;
            order.push(record, |record| judge(record, &mut parsing.keys))?;
        }
        order.finish(|record| judge(record, &mut parsing.keys))?;
        let elapsed = start.elapsed();
        let logs = logs.finish();
        if is_empty {
            refuse_unreadable(&logs, &mut parsing.reader)?;
        }
        Ok(Self {
            order,
            logs,
            is_in_seconds,
            elapsed,
        })
    }
}

/// Rejects logs of which no line can be read. An empty log is not rejected.
fn refuse_unreadable(logs: &[Counts<'_>], reader: &mut Reader) -> Result<(), Failure> {
    for log in logs {
        if let Some(line) = &log.first_malformed {
            let expected = reader.expected(line);
            let line = visible(line);
            return Err(Failure::Refused(format!(
                "no line can be read in {}: {}; line 1 is\n  {line}\n  closest format: {} \
                 (see --format)",
                input::name(log.log),
                counted(log.malformed, ("line", "lines")),
                expected,
            )));
        }
    }
    Ok(())
}
