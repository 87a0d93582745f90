//! The result of a replay, as a summary and as JSON.

mod of_policy;
mod page;

use core::fmt::Write as _;
use core::time::Duration;
use std::io::{self, BufWriter, Write};

use serde::{Serialize, Serializer};

use super::Pass;
use super::args::{Cost, ReplayArgs};
use super::input;
use super::judge::{Clock, Judge, Trial};
use super::key::Keys;
use super::logs::Counts;
use super::settings::Settings;
use super::timeline::{Tally, Timeline};
use crate::text::{counted, grouped, length, moment, per_second, percent, speed};

pub(crate) use self::of_policy::PolicyReport;
pub(crate) use self::page::Page;
use self::page::Section;

/// Lines that are later than this hint at several logs in one input.
const A_DAY_S: f64 = 86_400.0;

/// Limits up to this period are judged by the fractions of the times.
const SHORT: Duration = Duration::from_secs(10);

/// The result of a replay. The field names are those of the JSON object.
#[derive(Debug, Serialize)]
pub(crate) struct Report<'a> {
    key: &'a str,
    cost: String,
    #[serde(flatten)]
    input: Input,
    /// Keys that were judged, each by its own limiter.
    keys: usize,
    /// The decisions of the first limit.
    #[serde(flatten)]
    first: Outcome,
    limits: Vec<Outcome>,
    /// Decisions of all limits.
    decisions_per_s: f64,
    #[serde(skip)]
    noun: (&'static str, &'static str),
}

/// What was read, and in which order it was judged.
#[derive(Debug, Serialize)]
pub(crate) struct Input {
    order: String,
    /// How far lines may be out of order.
    #[serde(skip_serializing_if = "Option::is_none")]
    horizon_s: Option<f64>,
    /// Lines that were judged.
    requests: u64,
    /// Lines that were skipped.
    malformed: u64,
    /// Lines that counted at a later time than their own.
    late: u64,
    /// How far a line was behind the newest time, at most.
    behind_s: f64,
    /// Whether no time has a fraction of a second, although a limit has a short period.
    in_seconds: bool,
    /// How many lines were held at once to be sorted, at most.
    held: usize,
    span: Option<Span>,
    logs: Vec<Source>,
    /// Includes reading and parsing.
    elapsed_s: f64,
}

/// The times of the first and the newest request.
#[derive(Debug, Serialize)]
struct Span {
    first: String,
    newest: String,
    #[serde(skip)]
    millis: (u64, u64),
}

/// The decisions of one limit.
#[derive(Clone, Debug, Serialize)]
struct Outcome {
    limit: String,
    algorithm: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    burst: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    segments: Option<u32>,
    /// Burst or segments, for the summary.
    #[serde(skip)]
    setting: String,
    allowed: u64,
    denied: u64,
    /// Keys that were denied at least once.
    denied_keys: usize,
    /// The keys that were denied most often.
    top: Vec<MostDenied>,
    series: Series,
}

#[derive(Clone, Debug, Serialize)]
struct MostDenied {
    key: Parts,
    allowed: u64,
    denied: u64,
}

/// The parts of a key: names and bytes.
#[derive(Clone, Debug)]
struct Parts(Vec<(String, Vec<u8>)>);

impl Serialize for Parts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, bytes)| {
            let text = str::from_utf8(bytes).map_or_else(|_| shown(bytes), Into::into);
            (name, text)
        }))
    }
}

/// Escapes the bytes of a log, so that they cannot control a terminal.
fn shown(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

/// Decisions over time.
#[derive(Clone, Debug, Serialize)]
struct Series {
    /// The number of seconds in a row.
    width_s: u64,
    rows: Vec<Row>,
}

#[derive(Clone, Debug, Serialize)]
struct Row {
    /// The start of the row.
    time: String,
    allowed: u64,
    denied: u64,
}

/// What was read from a log.
#[derive(Debug, Serialize)]
struct Source {
    log: String,
    requests: u64,
    malformed: u64,
    /// Whether the compressed data end too early.
    #[serde(skip_serializing_if = "core::ops::Not::not")]
    truncated: bool,
}

impl<'a> Report<'a> {
    /// Creates the report of the decisions of `judge` about the requests of `logs`.
    pub(crate) fn new(args: &'a ReplayArgs, judge: &Judge, keys: &Keys, pass: &Pass<'_>) -> Self {
        let outcome = |trial| Outcome::new(trial, keys, args.top);
        let limits: Vec<_> = judge.trials().iter().map(outcome).collect();
        let decisions = judge.clock().requests * limits.len() as u64;
        Self {
            key: &args.key.text,
            cost: args.cost.to_string(),
            input: {
                let periods = args.limits.iter().map(|limit| limit.period);
                Input::new(args, judge.clock(), pass, periods)
            },
            keys: keys.len(),
            first: limits[0].clone(),
            limits,
            decisions_per_s: per_second(decisions, pass.elapsed),
            noun: keys.noun(),
        }
    }

    /// Prints the JSON object.
    ///
    /// # Errors
    ///
    /// Fails if standard output cannot be written.
    pub(crate) fn json(&self) -> io::Result<()> {
        json(self)
    }

    /// Returns the page of the decisions of `judge`, of which the first limit shows the keys.
    pub(crate) fn page<'b>(&self, judge: &'b Judge, keys: &Keys) -> Page<'b> {
        let clients = judge.clients();
        let mut named: Vec<_> = keys
            .iter()
            .filter_map(|(number, bytes)| {
                let parts = keys.parts_of(bytes).into_iter();
                let parts = parts.map(String::from_utf8_lossy).collect::<Vec<_>>();
                Some((parts.join("  "), clients.get(number as usize)?))
            })
            .collect();
        let trials = self.limits.iter().zip(judge.trials());
        let sections = trials.map(|(outcome, trial)| Section {
            name: outcome.limit.clone(),
            limits: outcome.with_setting(&outcome.algorithm),
            timeline: Some(trial.timeline()),
            clients: core::mem::take(&mut named),
            recommended: Vec::new(),
        });
        Page {
            title: format!("Replay of {}", self.input.names()),
            facts: self.input.facts(self.first.allowed, self.first.denied),
            sections: sections.collect(),
        }
    }

    /// Prints a summary: for one limit with a chart over time, for several limits with a table.
    ///
    /// # Errors
    ///
    /// Fails if standard output cannot be written.
    pub(crate) fn summary(&self, args: &ReplayArgs, judge: &Judge) -> io::Result<()> {
        let mut out = BufWriter::new(io::stdout().lock());
        let global = args.key.parts.is_empty();
        let of = if global {
            String::new()
        } else {
            format!(" of {}", counted(self.keys as u64, self.noun))
        };
        self.input.heading(&mut out, &of)?;
        let what = match args.cost {
            Cost::One => "requests",
            Cost::Bytes => "bytes",
        };
        let whose = if global {
            "for all together".into()
        } else {
            format!("for each {}", self.noun.0)
        };
        let whose = match &*args.key.parts {
            [part] if part.name != self.noun.0 && self.noun.0 != "address" => {
                format!("{whose} ({})", part.name)
            }
            [_, _, ..] => format!("{whose} ({})", self.key),
            _ => whose,
        };
        if let ([outcome], [trial]) = (&*self.limits, judge.trials()) {
            let by = format!("{}, {} {what} {whose}", outcome.algorithm, outcome.limit);
            writeln!(out, "\n{}\n", outcome.with_setting(&by))?;
            self.input.counts(
                &mut out,
                &[("allowed", outcome.allowed), ("denied", outcome.denied)],
            )?;
            self.most_denied(&mut out, outcome, "Most limited")?;
            chart(&mut out, trial.timeline())?;
        } else {
            writeln!(out, "\n{} limits of {what} {whose}\n", self.limits.len())?;
            self.table(&mut out)?;
            self.input.counts(&mut out, &[])?;
            for outcome in &self.limits {
                let by = format!("{}, {}", outcome.limit, outcome.algorithm);
                let title = format!("Most limited by {}", outcome.with_setting(&by));
                self.most_denied(&mut out, outcome, &title)?;
            }
        }
        writeln!(
            out,
            "\n{:.3} s, {} decisions/s",
            self.input.elapsed_s,
            speed(self.decisions_per_s)
        )?;
        out.flush()
    }

    fn most_denied(&self, out: &mut impl Write, by: &Outcome, title: &str) -> io::Result<()> {
        if by.top.is_empty() {
            return Ok(());
        }
        let (denied, allowed) = ("denied", "allowed");
        writeln!(
            out,
            "\n{title}\n\n  {denied:>12}  {allowed:>12}  {}",
            self.noun.0
        )?;
        for MostDenied {
            key,
            allowed,
            denied,
        } in &by.top
        {
            let (denied, allowed) = (grouped(*denied), grouped(*allowed));
            let parts: Vec<_> = key.0.iter().map(|(_, bytes)| shown(bytes)).collect();
            writeln!(out, "  {denied:>12}  {allowed:>12}  {}", parts.join("  "))?;
        }
        Ok(())
    }

    /// Prints one row per limit.
    fn table(&self, out: &mut impl Write) -> io::Result<()> {
        let width = |texts: &mut dyn Iterator<Item = usize>| texts.max().unwrap_or(0);
        let limits = width(&mut self.limits.iter().map(|outcome| outcome.limit.len())).max(5);
        let kept = width(&mut self.limits.iter().map(|outcome| outcome.setting.len()));
        let header = format!("{} denied", self.noun.1);
        writeln!(
            out,
            "  {:<limits$}  {:<14}  {:kept$}  {:>12}  {:>12}  {:>7}  {header}",
            "limit", "algorithm", "", "allowed", "denied", ""
        )?;
        for outcome in &self.limits {
            let setting = &outcome.setting;
            writeln!(
                out,
                "  {:<limits$}  {:<14}  {setting:kept$}  {:>12}  {:>12}  {:>5.1} %  {:>header$}",
                outcome.limit,
                outcome.algorithm,
                grouped(outcome.allowed),
                grouped(outcome.denied),
                percent(outcome.denied, self.input.requests),
                grouped(outcome.denied_keys as u64),
                header = header.len(),
            )?;
        }
        writeln!(out)
    }
}

impl Input {
    /// `periods` are those of the limits.
    pub(crate) fn new(
        args: &ReplayArgs,
        clock: Clock,
        pass: &Pass<'_>,
        mut periods: impl Iterator<Item = Duration>,
    ) -> Self {
        let log = |counts: &Counts<'_>| Source {
            log: input::name(counts.log).into_owned(),
            requests: counts.requests,
            malformed: counts.malformed,
            truncated: counts.is_truncated,
        };
        Self {
            order: args.order.to_string(),
            horizon_s: args.sorted_within().map(|horizon| horizon.as_secs_f64()),
            requests: clock.requests,
            malformed: pass.logs.iter().map(|log| log.malformed).sum(),
            late: clock.late,
            behind_s: Duration::from_millis(pass.order.behind()).as_secs_f64(),
            in_seconds: pass.is_in_seconds && periods.any(|period| period <= SHORT),
            held: pass.order.most_held(),
            span: clock.span.map(|(first, newest)| Span {
                first: instant(first),
                newest: instant(newest),
                millis: (first, newest),
            }),
            logs: pass.logs.iter().map(log).collect(),
            elapsed_s: pass.elapsed.as_secs_f64(),
        }
    }

    /// Returns the name of the log, or the number of logs.
    fn names(&self) -> String {
        match &*self.logs {
            [log] => log.log.clone(),
            logs => format!("{} logs", logs.len()),
        }
    }

    /// Returns what a page shows first.
    fn facts(&self, allowed: u64, denied: u64) -> Vec<(&'static str, String)> {
        let share = |count| {
            let percent = percent(count, self.requests);
            format!("{} ({percent:.1} %)", grouped(count))
        };
        let mut facts = vec![("Requests", grouped(self.requests))];
        if let Some(Span { millis, .. }) = &self.span {
            let [first, newest] = [millis.0, millis.1].map(|time| moment(time / 1_000));
            facts.push(("Time", format!("{first} to {newest} UTC")));
        }
        facts.extend([
            ("Allowed", share(allowed)),
            ("Denied", share(denied)),
            ("Malformed lines", grouped(self.malformed)),
        ]);
        facts
    }

    /// Prints the logs, the number of requests, `of` and the span of time.
    fn heading(&self, out: &mut impl Write, of: &str) -> io::Result<()> {
        match &*self.logs {
            [log] => write!(out, "{}: ", log.log)?,
            logs => write!(out, "{} logs: ", logs.len())?,
        }
        write!(
            out,
            "{}{of}",
            counted(self.requests, ("request", "requests"))
        )?;
        if let Some(Span { millis, .. }) = &self.span {
            write!(
                out,
                ", {} to {} UTC",
                moment(millis.0 / 1_000),
                moment(millis.1 / 1_000)
            )?;
        }
        Ok(())
    }

    /// Prints `decided`, and the lines that were malformed or late.
    fn counts(&self, out: &mut impl Write, decided: &[(&str, u64)]) -> io::Result<()> {
        for &(name, count) in decided {
            writeln!(
                out,
                "  {name:<9} {:>12}  {:>5.1} %",
                grouped(count),
                percent(count, self.requests)
            )?;
        }
        writeln!(out, "  {:<9} {:>12}", "malformed", grouped(self.malformed))?;
        if self.late > 0 {
            let behind = self.behind_s;
            let why = if self.horizon_s.is_some() {
                format!(
                    "too late to be sorted, so judged at a later time; up to {behind} s behind: see --horizon"
                )
            } else {
                format!(
                    "judged at a later time, that of a line before; up to {behind} s behind: see --order time"
                )
            };
            writeln!(out, "  {:<9} {:>12}  {why}", "late", grouped(self.late))?;
            if behind > A_DAY_S {
                let hint = "if the input joins several logs, name each of them instead";
                writeln!(out, "  {:<9} {:>12}  {hint}", "", "")?;
            }
        }
        if self.in_seconds {
            writeln!(
                out,
                "  the times are whole seconds, as if all requests of a second had come at once: \
                 limits of 10 s or less may deny more here"
            )?;
        }
        for log in &self.logs {
            if log.requests == 0 && log.malformed > 0 {
                let lines = counted(log.malformed, ("line", "lines"));
                writeln!(out, "  no line can be read in {}: {lines}", log.log)?;
            }
            if log.truncated {
                let why = "its compressed data end too early; what is before the end was judged";
                writeln!(out, "  {}: {why}", log.log)?;
            }
        }
        Ok(())
    }
}

/// Prints a JSON object.
fn json(report: &impl Serialize) -> io::Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    serde_json::to_writer(&mut out, report)?;
    writeln!(out)?;
    out.flush()
}

impl Outcome {
    fn new(trial: &Trial, keys: &Keys, top: usize) -> Self {
        let settings = trial.settings();
        let total = trial.total();
        let names = &keys.key().parts;
        let parts = |key| {
            let parts = names.iter().zip(keys.parts_of(key));
            Parts(
                parts
                    .map(|(part, bytes)| (part.name.clone(), bytes.into()))
                    .collect(),
            )
        };
        // The key of all requests has no name.
        let top = if names.is_empty() { 0 } else { top };
        let most = trial.most_denied(keys.iter(), top).into_iter();
        Self {
            limit: settings.limit.text.clone(),
            algorithm: settings.algorithm().to_string(),
            burst: settings.burst(),
            segments: settings.segments(),
            setting: setting(settings),
            allowed: total.allowed,
            denied: total.denied,
            denied_keys: trial.denied_keys(),
            top: most
                .map(|(key, Tally { allowed, denied })| MostDenied {
                    key: parts(key),
                    allowed,
                    denied,
                })
                .collect(),
            series: Series::new(trial.timeline()),
        }
    }
}

impl Outcome {
    /// Appends the setting that is specific to the algorithm to `text`.
    fn with_setting(&self, text: &str) -> String {
        match &*self.setting {
            "" => text.into(),
            setting => format!("{text}, {setting}"),
        }
    }
}

impl Series {
    fn new(timeline: &Timeline) -> Self {
        let row = |(start, Tally { allowed, denied })| Row {
            time: instant(start * 1_000),
            allowed,
            denied,
        };
        Self {
            width_s: timeline.width(),
            rows: timeline.rows().map(row).collect(),
        }
    }
}

/// Returns the setting that is specific to the algorithm of a limit.
fn setting(settings: &Settings) -> String {
    let mut text = String::new();
    if let Some(burst) = settings.burst() {
        let _ = write!(text, "burst {}", grouped(burst));
    }
    if let Some(segments) = settings.segments() {
        text = counted(segments.into(), ("segment", "segments"));
    }
    text
}

/// Formats milliseconds since the Unix epoch for programs.
fn instant(millis: u64) -> String {
    let timestamp = i64::try_from(millis)
        .ok()
        .and_then(|millis| jiff::Timestamp::from_millisecond(millis).ok());
    timestamp.map_or_else(String::new, |timestamp| timestamp.to_string())
}

/// The number of characters in the longest bar.
const BAR: u64 = 48;

fn chart(out: &mut impl Write, timeline: &Timeline) -> io::Result<()> {
    let Some(most) = timeline.rows().map(|(_, tally)| tally.sum()).max() else {
        return Ok(());
    };
    writeln!(
        out,
        "\nOver time: {} a row, UTC; █ allowed, ░ denied\n",
        length(timeline.width())
    )?;
    for (start, tally) in timeline.rows() {
        let (allowed, denied) = (grouped(tally.allowed), grouped(tally.denied));
        writeln!(
            out,
            "  {}  {allowed:>9} {denied:>9}  {}",
            moment(start),
            bar(tally, most)
        )?;
    }
    Ok(())
}

/// Returns a bar for `tally`, where `most` decisions have the full length. Every count above zero
/// is visible.
fn bar(tally: Tally, most: u64) -> String {
    let part = |count: u64| {
        let length = u128::from(count) * u128::from(BAR) / u128::from(most.max(1));
        usize::try_from(length)
            .unwrap_or(0)
            .max(usize::from(count > 0))
    };
    "█".repeat(part(tally.allowed)) + &"░".repeat(part(tally.denied))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_shows_every_nonzero_count_and_no_zero_count() {
        assert_eq!(
            bar(
                Tally {
                    allowed: 0,
                    denied: 0
                },
                0
            ),
            ""
        );
        assert_eq!(
            bar(
                Tally {
                    allowed: 1,
                    denied: 1
                },
                1_000_000
            ),
            "█░"
        );
        assert_eq!(
            bar(
                Tally {
                    allowed: 50,
                    denied: 50
                },
                100
            ),
            "█".repeat(24) + &"░".repeat(24)
        );
    }
}
