//! `portcullis replay`: what a limit would have done to the requests of an access log.
//!
//! | module | what is in it |
//! |---|---|
//! | [`input`] | the log as lines: file or standard input, plain or gzip, in constant memory |
//! | [`mod@line`] | one line: address, time and size |
//! | [`settings`] | from the command line to a limiter |
//! | [`judge`] | a limiter for each key, and what they decided |
//! | [`timeline`] | admitted and denied over time, in a fixed number of rows |
//! | [`report`] | the result, for people and as JSON |
//!
//! The decisions are those of the library's own limiters, at the log's time. What is kept grows
//! with the number of keys alone.

mod input;
mod judge;
mod line;
mod report;
mod settings;
mod timeline;

use std::process::ExitCode;
use std::time::Instant;

use self::input::Lines;
use self::judge::Judge;
use self::report::Report;
use self::settings::Settings;
use crate::args::ReplayArgs;
use crate::failure::Failure;

/// Reads the log, judges its requests and prints the result.
///
/// # Errors
///
/// [`Failure::Refused`] for settings that cannot be kept and a log that cannot be read,
/// [`Failure::Output`] if the result cannot be written.
pub(crate) fn run(args: &ReplayArgs) -> Result<ExitCode, Failure> {
    let settings = Settings::new(args)?;
    let name = input::name(&args.log);
    let unreadable = |error| Failure::Refused(format!("cannot read {name}: {error}"));
    let start = Instant::now();
    let mut judge = Judge::new(settings);
    let mut malformed = 0;
    let mut lines = Lines::open(&args.log).map_err(unreadable)?;
    while let Some(line) = lines.next().map_err(unreadable)? {
        match line::parse(line.bytes, line.cut) {
            Some(request) => judge.request(&request)?,
            None => malformed += 1,
        }
    }
    drop(lines);
    let report = Report::new(&judge, malformed, start.elapsed());
    if args.json {
        report.json()?;
    } else {
        report.summary(&judge, &name)?;
    }
    Ok(ExitCode::SUCCESS)
}
