//! The output of the demo. On a terminal: one line per trial while it runs, and the timeline of the
//! burst. At the end: the table, the final timeline and the summary, in at most 80 columns.

use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::io::{self, Write};
use std::thread;
use std::time::Instant;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use super::Outcome;
use super::bound::Verdict;
use super::burst::{Burst, Timeline};
use super::hammer::{Hammer, Progress};
use super::trials::Trial;
use crate::colour::{Painter, Style};
use crate::text::{grouped, per_second, speed};

/// Shows the progress of the trials on standard error, if that is a terminal.
pub(crate) struct Display {
    lines: MultiProgress,
    bars: Vec<ProgressBar>,
}

/// The interval at which the display is updated.
const FRAME: Duration = Duration::from_millis(25);

impl Display {
    /// Creates the display, with one line for each of `trials`.
    pub(crate) fn new(hammer: &Hammer, trials: &[Trial]) -> Self {
        let lines = MultiProgress::new();
        let bar = |trial: &Trial| {
            let bar = ProgressBar::new(hammer.length.as_millis() as u64).with_prefix(trial.name);
            let bar = match ProgressStyle::with_template("{prefix:<15} {bar:16} {wide_msg}") {
                Ok(style) => bar.with_style(style),
                Err(_) => bar,
            };
            let bar = lines.add(bar);
            bar.tick();
            bar
        };
        let bars = trials.iter().map(bar).collect();
        Self { lines, bars }
    }

    /// Runs `trial` and shows its progress in the line at `index`.
    pub(crate) fn watch(&self, index: usize, hammer: &Hammer, trial: Trial) -> Outcome {
        let progress = Progress::default();
        let start = Instant::now();
        let verdict = thread::scope(|scope| {
            let running = scope.spawn(|| (trial.run)(hammer, &progress));
            while !running.is_finished() {
                self.update(index, &progress, start.elapsed(), "");
                thread::sleep(FRAME);
            }
            // A panic in a thread is a defect of the program and must not be hidden.
            running.join().unwrap()
        });
        let elapsed = Duration::from_nanos(progress.elapsed.load(Relaxed));
        self.update(index, &progress, elapsed, word(&verdict));
        let (admitted, denied) = (
            progress.admitted.load(Relaxed),
            progress.denied.load(Relaxed),
        );
        Outcome {
            trial,
            speed: per_second(admitted + denied, elapsed),
            verdict,
        }
    }

    fn update(&self, index: usize, progress: &Progress, elapsed: Duration, verdict: &str) {
        let Some(bar) = self.bars.get(index) else {
            return;
        };
        let (admitted, denied) = (
            progress.admitted.load(Relaxed),
            progress.denied.load(Relaxed),
        );
        bar.set_position(elapsed.as_millis() as u64);
        bar.set_message(format!(
            "{:>10} admitted {:>11} denied {verdict}",
            grouped(admitted),
            grouped(denied)
        ));
    }

    /// Removes the lines.
    ///
    /// # Errors
    ///
    /// Fails if the lines cannot be removed.
    pub(crate) fn finish(&self) -> io::Result<()> {
        self.bars.iter().for_each(ProgressBar::finish);
        self.lines.clear()
    }
}

/// Runs `burst` and shows its progress on standard error, if that is a terminal.
///
/// # Errors
///
/// Fails if the displayed lines cannot be removed.
pub(crate) fn watch_burst(burst: Burst) -> io::Result<Timeline> {
    let lines = MultiProgress::new();
    let picture = ProgressBar::no_length();
    let picture = match ProgressStyle::with_template("{msg}") {
        Ok(style) => picture.with_style(style),
        Err(_) => picture,
    };
    let picture = lines.add(picture);
    let timeline = burst.run(|timeline| {
        picture.set_message(timeline.lines().join("\n"));
        picture.tick();
    });
    picture.finish();
    lines.clear()?;
    Ok(timeline)
}

/// Writes the results: in colours where the output has them, and in at most 80 columns.
pub(crate) struct Output<W> {
    pub(crate) painter: Painter,
    pub(crate) out: W,
}

impl<W: Write> Output<W> {
    /// Writes the table.
    ///
    /// # Errors
    ///
    /// Returns the errors of the output, as the other functions do.
    pub(crate) fn table(&mut self, hammer: &Hammer, outcomes: &[Outcome]) -> io::Result<()> {
        let mut rows = vec![HEADINGS.map(String::from)];
        rows.extend(outcomes.iter().map(cells));
        let width = |column: usize| {
            rows.iter()
                .map(|row| row[column].chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: [usize; COLUMNS] = core::array::from_fn(width);
        let Hammer { threads, length } = hammer;
        writeln!(
            self.out,
            "{threads} threads hammered each limiter for {length:?}, one of them with times 10ms stale\n"
        )?;
        let verdicts = outcomes.iter().map(|outcome| Some(&outcome.verdict));
        for (row, verdict) in rows.iter().zip([None].into_iter().chain(verdicts)) {
            let line = line(row, widths);
            let line = match verdict {
                None => self.painter.paint(Style::Bold, line.trim_end()),
                Some(verdict) => line + &self.word(verdict),
            };
            writeln!(self.out, "{line}")?;
        }
        self.out.flush()
    }

    /// Writes the final timeline of the burst.
    pub(crate) fn timeline(&mut self, timeline: &Timeline) -> io::Result<()> {
        let heading = self.painter.paint(Style::Bold, &Timeline::heading());
        writeln!(self.out, "\n{heading}\n")?;
        for line in timeline.lines() {
            writeln!(self.out, "{}", self.marked(line.trim_end()))?;
        }
        let verdict = timeline.verdict();
        let (Verdict::Held(seen) | Verdict::Broken(seen)) = &verdict;
        writeln!(
            self.out,
            "\nqueue  {}  {}  {seen}  {}",
            timeline.configured(),
            timeline.bound(),
            self.word(&verdict)
        )
    }

    /// Writes how many bounds held, and what it means that the naive limiter's did not.
    pub(crate) fn summary(&mut self, held: &[bool], is_naive_caught: bool) -> io::Result<()> {
        let broken = held.iter().filter(|held| !**held).count();
        let text = if broken == 0 {
            self.painter.paint(Style::Good, "Every bound held.")
        } else {
            let text = format!("{broken} of {} bounds BROKEN.", held.len());
            self.painter.paint(Style::Bad, &text)
        };
        writeln!(self.out, "\n{text}")?;
        writeln!(
            self.out,
            "{}",
            if is_naive_caught { CAUGHT } else { NOT_CAUGHT }
        )?;
        self.out.flush()
    }

    fn word(&self, verdict: &Verdict) -> String {
        let style = if verdict.held() {
            Style::Good
        } else {
            Style::Bad
        };
        self.painter.paint(style, word(verdict))
    }

    /// Returns a line of the timeline with its marks in colours.
    fn marked(&self, line: &str) -> String {
        let mut text = String::new();
        for part in line.split_inclusive('■') {
            let (waits, is_served) = match part.strip_suffix('■') {
                Some(waits) => (waits, true),
                None => (part, false),
            };
            let dots = waits.find('·').unwrap_or(waits.len());
            text.push_str(&waits[..dots]);
            if dots < waits.len() {
                text.push_str(&self.painter.paint(Style::Faint, &waits[dots..]));
            }
            if is_served {
                text.push_str(&self.painter.paint(Style::Good, "■"));
            }
        }
        text
    }
}

/// What is said of the naive limiter.
const CAUGHT: &str = "The naive bucket, a number behind a mutex, broke its bound: \
                      it refills twice for\nthe time between two threads' clocks.";
const NOT_CAUGHT: &str = "The naive bucket was not caught this time: give it more --seconds.";

const COLUMNS: usize = 4;
const HEADINGS: [&str; COLUMNS] = ["limiter", "bound", "asked/s", "nearest to the bound"];
/// The column whose cells are aligned on the right.
const NUMBERS: usize = 2;

/// Returns the cells of a row but the verdict.
fn cells(outcome: &Outcome) -> [String; COLUMNS] {
    let (Verdict::Held(seen) | Verdict::Broken(seen)) = &outcome.verdict;
    [
        outcome.trial.name.into(),
        outcome.trial.bound.into(),
        speed(outcome.speed),
        seen.clone(),
    ]
}

/// Returns the cells side by side, each with two spaces behind it.
fn line(cells: &[String; COLUMNS], widths: [usize; COLUMNS]) -> String {
    let mut line = String::new();
    for (column, (cell, width)) in cells.iter().zip(widths).enumerate() {
        let cell = if column == NUMBERS {
            format!("{cell:>width$}  ")
        } else {
            format!("{cell:<width$}  ")
        };
        line.push_str(&cell);
    }
    line
}

fn word(verdict: &Verdict) -> &'static str {
    if verdict.held() { "held" } else { "BROKEN" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::trials;

    /// Returns what `write` writes, without the codes of colours.
    fn written(is_on: bool, write: impl Fn(&mut Output<&mut Vec<u8>>)) -> String {
        let mut text = Vec::new();
        let painter = Painter { is_on };
        let out = &mut text;
        write(&mut Output { painter, out });
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn the_table_fits_into_80_columns_with_the_largest_numbers() {
        let outcome = |trial| Outcome {
            trial,
            speed: 999_900_000.0,
            verdict: Verdict::Broken("99999 of 25500 in 4999ms".into()),
        };
        let mut outcomes: Vec<_> = trials::ALL.into_iter().map(outcome).collect();
        outcomes.push(outcome(trials::NAIVE));
        let hammer = Hammer {
            threads: 64,
            length: Duration::from_millis(4_999),
        };
        let plain = written(false, |out| out.table(&hammer, &outcomes).unwrap());
        for line in plain.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
        let painted = written(true, |out| out.table(&hammer, &outcomes).unwrap());
        assert!(painted.contains("  \x1b[1;31mBROKEN\x1b[0m\n"), "{painted}");
        let codes = ["\x1b[1;31m", "\x1b[1m", "\x1b[0m"];
        let without = codes
            .iter()
            .fold(painted, |text, code| text.replace(code, ""));
        assert_eq!(without, plain);
    }

    #[test]
    fn the_summary_counts_what_broke_and_says_what_the_naive_limiter_did() {
        let summary =
            |held: &[bool], caught| written(false, |out| out.summary(held, caught).unwrap());
        assert_eq!(
            summary(&[true, true], true),
            format!("\nEvery bound held.\n{CAUGHT}\n")
        );
        assert_eq!(
            summary(&[true, false], false),
            format!("\n1 of 2 bounds BROKEN.\n{NOT_CAUGHT}\n")
        );
    }
}
