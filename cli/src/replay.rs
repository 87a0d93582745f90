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
//! | [`timeline`] | decisions over time, in a fixed number of rows |
//! | [`report`] | prints the result, as a summary or as JSON |
//!
//! The library's own limiters decide, at the log's time. Memory grows with the number of keys and
//! with the lines of one horizon. A line that waits to be sorted takes 24 bytes.

mod format;
mod input;
mod judge;
mod key;
mod logs;
mod order;
mod report;
mod settings;
mod time;
mod timeline;

use std::process::ExitCode;
use std::time::Instant;

use self::format::Reader;
use self::judge::Judge;
use self::key::Keys;
use self::logs::{Counts, Logs, Parsing};
use self::order::Order;
use self::report::Report;
use crate::args::{Cost, OrderBy, ReplayArgs};
use crate::failure::Failure;
use crate::text::counted;

pub(crate) use self::format::Format;
pub(crate) use self::key::Key;

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
    let mut judge = Judge::new(settings::all(args)?, args.cost);
    let reader = Reader::new(&args.format, &args.key, args.cost == Cost::Bytes);
    let mut parsing = Parsing {
        reader: reader.map_err(Failure::Refused)?,
        keys: Keys::new(args.key.clone()),
    };
    let horizon = args.sorted_within();
    let mut order = Order::new(horizon.map(|horizon| horizon.as_millis() as u64));
    let start = Instant::now();
    let mut logs = Logs::open(&args.logs, horizon.is_some(), &mut parsing)?;
    while let Some(record) = logs.next(&mut parsing)? {
        order.push(record, |record| judge.request(record))?;
    }
    order.finish(|record| judge.request(record))?;
    let elapsed = start.elapsed();
    let logs = logs.finish();
    if judge.requests() == 0 {
        refuse_unreadable(&logs, &mut parsing.reader)?;
    }
    let report = Report::new(args, &judge, &parsing.keys, &order, &logs, elapsed);
    if args.json {
        report.json()?;
    } else {
        report.summary(args, &judge)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Rejects logs of which no line can be read. An empty log is not rejected.
fn refuse_unreadable(logs: &[Counts<'_>], reader: &mut Reader) -> Result<(), Failure> {
    for log in logs {
        if let Some(line) = &log.first_malformed {
            return Err(Failure::Refused(format!(
                "no line can be read in {}: {}\n  line 1:   {}{}\n  --format says how lines are \
                 written: see portcullis replay --help",
                input::name(log.log),
                counted(log.malformed, ("line", "lines")),
                line.escape_ascii(),
                reader.expected(line),
            )));
        }
    }
    Ok(())
}
