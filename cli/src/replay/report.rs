//! The result of a replay, for people and as JSON.

use core::time::Duration;
use std::io::{self, BufWriter, Write};

use serde::Serialize;

use super::judge::Judge;
use super::settings::Kept;
use super::timeline::{Tally, Timeline};
use crate::args::{Cost, KeyBy};
use crate::text::{grouped, per_second, percent, speed};

/// What a replay found. The names are those of the JSON object.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    algorithm: &'static str,
    limit: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    burst: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    segments: Option<u32>,
    key: String,
    cost: String,
    /// Lines judged.
    requests: u64,
    allowed: u64,
    denied: u64,
    /// Lines skipped.
    malformed: u64,
    /// Keys judged, each by a limiter of its own.
    keys: usize,
    /// Reading and parsing included.
    elapsed_s: f64,
    decisions_per_s: f64,
}

impl Report {
    /// What `judge` decided in `elapsed`.
    pub(crate) fn new(judge: &Judge, malformed: u64, elapsed: Duration) -> Self {
        let settings = judge.settings();
        let (algorithm, burst, segments) = match settings.kept {
            Kept::TokenBucket { burst, .. } => ("token-bucket", Some(burst), None),
            Kept::FixedWindow => ("fixed-window", None, None),
            Kept::SlidingWindow { segments } => ("sliding-window", None, Some(segments)),
        };
        let total = judge.total();
        Self {
            algorithm,
            limit: settings.limit.text.clone(),
            burst,
            segments,
            key: settings.key.to_string(),
            cost: settings.cost.to_string(),
            requests: total.sum(),
            allowed: total.allowed,
            denied: total.denied,
            malformed,
            keys: judge.keys(),
            elapsed_s: elapsed.as_secs_f64(),
            decisions_per_s: per_second(total.sum(), elapsed),
        }
    }

    /// Prints the JSON object.
    ///
    /// # Errors
    ///
    /// If standard output cannot be written.
    pub(crate) fn json(&self) -> io::Result<()> {
        let mut out = io::stdout().lock();
        serde_json::to_writer(&mut out, self)?;
        writeln!(out)?;
        out.flush()
    }

    /// Prints a summary, the most limited keys, and admitted and denied over time.
    ///
    /// # Errors
    ///
    /// If standard output cannot be written.
    pub(crate) fn summary(&self, judge: &Judge, log: &str) -> io::Result<()> {
        let mut out = BufWriter::new(io::stdout().lock());
        let settings = judge.settings();
        write!(out, "{log}: {} requests", grouped(self.requests))?;
        if settings.key == KeyBy::Ip {
            write!(out, " of {} addresses", grouped(self.keys as u64))?;
        }
        if let Some((first, newest)) = judge.span() {
            write!(out, ", {} to {} UTC", moment(first), moment(newest))?;
        }
        writeln!(out, "\n{}\n", self.limited_by(judge))?;
        for (name, count) in [("allowed", self.allowed), ("denied", self.denied)] {
            writeln!(
                out,
                "  {name:<9} {:>12}  {:>5.1} %",
                grouped(count),
                percent(count, self.requests)
            )?;
        }
        writeln!(out, "  {:<9} {:>12}", "malformed", grouped(self.malformed))?;
        let most = judge.most_limited(10);
        if settings.key == KeyBy::Ip && !most.is_empty() {
            writeln!(
                out,
                "\nMost limited\n\n  {:>12}  {:>12}  address",
                "denied", "allowed"
            )?;
            for (name, tally) in most {
                let (denied, allowed) = (grouped(tally.denied), grouped(tally.allowed));
                // A log may hold anything, also what would command a terminal.
                writeln!(
                    out,
                    "  {denied:>12}  {allowed:>12}  {}",
                    name.escape_ascii()
                )?;
            }
        }
        chart(&mut out, judge.timeline())?;
        let elapsed = self.elapsed_s;
        writeln!(
            out,
            "\n{elapsed:.3} s, {} decisions/s",
            speed(self.decisions_per_s)
        )?;
        out.flush()
    }

    fn limited_by(&self, judge: &Judge) -> String {
        let setting = match judge.settings().kept {
            Kept::TokenBucket { burst, .. } => format!(", burst {}", grouped(burst)),
            Kept::FixedWindow => String::new(),
            Kept::SlidingWindow { segments } => format!(", {segments} segments"),
        };
        let what = match judge.settings().cost {
            Cost::One => "requests",
            Cost::Bytes => "bytes",
        };
        let whose = match judge.settings().key {
            KeyBy::Ip => "for each address",
            KeyBy::Global => "for all together",
        };
        format!("{}, {} {what} {whose}{setting}", self.algorithm, self.limit)
    }
}

/// How many characters the longest bar has.
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

/// A bar for `tally`, where `most` decisions have the full length. What is not zero can be seen.
fn bar(tally: Tally, most: u64) -> String {
    let part = |count: u64| {
        let length = u128::from(count) * u128::from(BAR) / u128::from(most.max(1));
        usize::try_from(length)
            .unwrap_or(0)
            .max(usize::from(count > 0))
    };
    "█".repeat(part(tally.allowed)) + &"░".repeat(part(tally.denied))
}

/// A second since the Unix epoch, as people write it in UTC.
fn moment(seconds: u64) -> String {
    let timestamp = i64::try_from(seconds)
        .ok()
        .and_then(|s| jiff::Timestamp::from_second(s).ok());
    timestamp.map_or_else(
        || format!("{seconds} s"),
        |t| t.strftime("%Y-%m-%d %H:%M:%S").to_string(),
    )
}

/// A length of time in its largest whole unit.
fn length(seconds: u64) -> String {
    let units = [(86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")];
    let (unit, name) = units
        .into_iter()
        .find(|(unit, _)| seconds.is_multiple_of(*unit))
        .unwrap_or((1, "s"));
    format!("{} {name}", grouped(seconds / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_shows_what_is_there_and_nothing_else() {
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

    #[test]
    fn moments_and_lengths_read_well() {
        assert_eq!(moment(1_431_857_103), "2015-05-17 10:05:03");
        assert_eq!(
            ["30 s", "5 min", "3 h", "2 d"],
            [30, 300, 10_800, 172_800].map(length).as_slice()
        );
    }
}
