//! `portcullis replay`: what limits would have done to the requests of access logs.
//!
//! A line passes these modules in their order:
//!
//! | module | what is in it |
//! |---|---|
//! | [`input`] | a log as lines: file or standard input, plain or gzip, in constant memory |
//! | [`mod@format`] | from a line to its time, its size and the parts of its key |
//! | [`time`] | times as logs write them |
//! | [`key`] | which requests share a limit; a number for each key |
//! | [`logs`] | several logs as one: records of time, size and key's number |
//! | [`order`] | records in the order of their times |
//! | [`settings`] | from the command line to limiters |
//! | [`judge`] | a limiter for each key and each limit, and what they decided |
//! | [`timeline`] | admitted and denied over time, in a fixed number of rows |
//! | [`report`] | the result, for people and as JSON |
//!
//! The decisions are those of the library's own limiters, at the log's time. What is kept grows
//! with the number of keys and the lines of a horizon: a line that is sorted is 24 bytes.

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
/// [`Failure::Refused`] for settings that cannot be kept and logs that cannot be read,
/// [`Failure::Output`] if the result cannot be written.
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

/// Refuses logs of which nothing can be read. One without any line is not such a log.
fn refuse_unreadable(logs: &[Counts<'_>], reader: &mut Reader) -> Result<(), Failure> {
    for log in logs {
        if let Some(line) = &log.first_malformed {
            return Err(Failure::Refused(format!(
                "nothing can be read in {}: {}\n  line 1:   {}{}\n  --format says how lines are \
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
