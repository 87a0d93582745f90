//! Reads several logs as one.
//!
//! **In the order of time**, all logs are open at once, each with its first line that has not been
//! returned. The next line is the oldest of these. If the lines within each log are out of order by
//! at most a horizon, the merged lines are too: when a line was returned, the first lines of the
//! other logs were no older. Logs may overlap. Their order on the command line does not matter.
//! Lines with equal times come in the order of the times at which their logs begin.
//!
//! **In the order of the logs**, the logs are read one after another.

use core::mem;
use core::slice;
use std::path::{Path, PathBuf};

use indicatif::ProgressBar;

use super::format::Reader;
use super::input::{self, Lines};
use super::key::Numbering;
use super::order::Record;
use crate::failure::Failure;

/// The well-formed lines of several logs.
pub(crate) struct Logs<'a> {
    open: Vec<Log<'a>>,
    /// The logs to open later, in order.
    later: slice::Iter<'a, PathBuf>,
    done: Vec<Counts<'a>>,
    /// The log of the next line, and the newest time up to which its lines come before those of all
    /// other logs.
    from: usize,
    until: u64,
    progress: ProgressBar,
}

/// An open log.
struct Log<'a> {
    lines: Lines,
    /// The next line, if another log may come before it.
    next: Option<Record>,
    counts: Counts<'a>,
    /// The columns that the log has named.
    columns: Option<usize>,
}

/// What was read from a log.
#[derive(Clone, Debug)]
pub(crate) struct Counts<'a> {
    pub(crate) log: &'a Path,
    pub(crate) requests: u64,
    pub(crate) malformed: u64,
    /// The start of the first line, if that line is malformed.
    pub(crate) first_malformed: Option<Vec<u8>>,
    /// Whether the compressed data end too early.
    pub(crate) is_truncated: bool,
}

/// Turns lines into records.
pub(crate) struct Parsing<N> {
    pub(crate) reader: Reader,
    pub(crate) keys: N,
}

impl<'a> Logs<'a> {
    /// Opens all `logs` if they are read by time; otherwise opens the first.
    ///
    /// # Errors
    ///
    /// [`Failure::Refused`] if a log cannot be read, or if standard input is named twice.
    pub(crate) fn open(
        logs: &'a [PathBuf],
        by_time: bool,
        parsing: &mut Parsing<impl Numbering>,
    ) -> Result<Self, Failure> {
        let standard_input = logs.iter().filter(|log| input::is_standard_input(log));
        if standard_input.count() > 1 {
            let reason = "standard input is named twice, and can be read only once";
            return Err(Failure::Refused(reason.into()));
        }
        let progress = input::progress(logs.iter().map(PathBuf::as_path));
        let mut all = Self {
            open: Vec::new(),
            later: logs.iter(),
            done: Vec::new(),
            from: 0,
            until: u64::MAX,
            progress,
        };
        while all.open_next()? && by_time {}
        if by_time && all.open.len() > 1 {
            for log in &mut all.open {
                log.next = log.read(0, parsing)?;
            }
            all.finish_empty();
            all.open
                .sort_by_key(|log| log.next.map(|record| record.time));
            for (number, log) in (0..).zip(&mut all.open) {
                if let Some(record) = &mut log.next {
                    record.log = number;
                }
            }
            all.choose();
        }
        Ok(all)
    }

    fn open_next(&mut self) -> Result<bool, Failure> {
        let Some(log) = self.later.next() else {
            return Ok(false);
        };
        let lines = Lines::open(log, &self.progress).map_err(|error| unreadable(log, &error))?;
        self.open.push(Log {
            lines,
            next: None,
            counts: Counts {
                log,
                requests: 0,
                malformed: 0,
                first_malformed: None,
                is_truncated: false,
            },
            columns: None,
        });
        Ok(true)
    }

    /// Returns the next line, or `None` at the end of all logs.
    ///
    /// # Errors
    ///
    /// [`Failure::Refused`] if a log cannot be read.
    pub(crate) fn next(
        &mut self,
        parsing: &mut Parsing<impl Numbering>,
    ) -> Result<Option<Record>, Failure> {
        loop {
            let Some(log) = self.open.get_mut(self.from) else {
                return Ok(None);
            };
            let Some(next) = log.next else {
                // This is the only open log.
                if let Some(record) = log.read(0, parsing)? {
                    return Ok(Some(record));
                }
                self.done.push(self.open.remove(0).counts);
                self.open_next()?;
                continue;
            };
            log.next = log.read(next.log, parsing)?;
            match log.next {
                Some(record) if record.time <= self.until => {}
                Some(_) => self.choose(),
                None => {
                    self.finish_empty();
                    self.choose();
                }
            }
            return Ok(Some(next));
        }
    }

    /// Closes the logs that have no line left.
    fn finish_empty(&mut self) {
        for log in mem::take(&mut self.open) {
            if log.next.is_some() {
                self.open.push(log);
            } else {
                self.done.push(log.counts);
            }
        }
    }

    /// Finds the log whose next line is the oldest.
    fn choose(&mut self) {
        let times = || {
            let next = self.open.iter().enumerate();
            next.filter_map(|(place, log)| Some((log.next?.time, place)))
        };
        let oldest = times().min();
        self.from = oldest.map_or(0, |(_, place)| place);
        let others = times().filter(|&(_, place)| place != self.from);
        self.until = others.min().map_or(u64::MAX, |(time, _)| time);
    }

    /// Returns what was read from each log, after all have been read.
    pub(crate) fn finish(mut self) -> Vec<Counts<'a>> {
        self.progress.finish_and_clear();
        let open = mem::take(&mut self.open).into_iter();
        self.done.extend(open.map(|log| log.counts));
        self.done
    }
}

impl Log<'_> {
    /// Reads the next well-formed line, as a line of log number `number`.
    fn read(
        &mut self,
        number: u32,
        parsing: &mut Parsing<impl Numbering>,
    ) -> Result<Option<Record>, Failure> {
        let counts = &mut self.counts;
        while let Some(line) = self
            .lines
            .next()
            .map_err(|error| unreadable(counts.log, &error))?
        {
            parsing.reader.select_columns(self.columns);
            let Some(request) = parsing.reader.read(line.bytes, line.cut) else {
                if parsing.reader.directive(line.bytes) {
                    self.columns = parsing.reader.selected_columns();
                    continue;
                }
                if counts.requests + counts.malformed == 0 {
                    let shown = &line.bytes[..line.bytes.len().min(SHOWN)];
                    counts.first_malformed = Some(shown.into());
                }
                counts.malformed += 1;
                continue;
            };
            counts.requests += 1;
            let Parsing { reader, keys } = parsing;
            let key = keys.number(|part| reader.part(line.bytes, part));
            let key = key.ok_or_else(|| {
                let most = u32::MAX;
                Failure::Refused(format!(
                    "more than {most} keys or waiting lines: choose a coarser --key, or a shorter \
                     --horizon"
                ))
            })?;
            return Ok(Some(Record {
                time: request.time,
                bytes: request.bytes,
                key,
                log: number,
            }));
        }
        counts.is_truncated = self.lines.is_truncated();
        Ok(None)
    }
}

/// The number of bytes of a malformed line that are kept for the error message.
const SHOWN: usize = 1_000;

fn unreadable(log: &Path, error: &std::io::Error) -> Failure {
    Failure::Refused(format!("cannot read {}: {error}", input::name(log)))
}
