//! The output of the demo. On a terminal: one line per trial while it runs, and the timeline of the
//! burst. At the end: the table, the final timeline and the summary.

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
            admitted,
            denied,
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

    /// Removes the lines, and writes the table to `out`.
    ///
    /// # Errors
    ///
    /// Returns the errors of `out`.
    pub(crate) fn table(
        &self,
        out: &mut impl Write,
        hammer: &Hammer,
        outcomes: &[Outcome],
    ) -> io::Result<()> {
        self.bars.iter().for_each(ProgressBar::finish);
        self.lines.clear()?;
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
            out,
            "{threads} threads, one of them with timestamps 10ms stale, hammered each limiter for {length:?}\n"
        )?;
        for row in &rows {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(widths).enumerate() {
                let cell = if NUMBERS.contains(&column) {
                    format!("{cell:>width$}")
                } else {
                    format!("{cell:<width$}")
                };
                line.push_str(&cell);
                line.push_str("  ");
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        out.flush()
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

/// Writes the final timeline of the burst to `out`.
///
/// # Errors
///
/// Returns the errors of `out`.
pub(crate) fn timeline(out: &mut impl Write, timeline: &Timeline) -> io::Result<()> {
    writeln!(out, "\n{}\n", Timeline::heading())?;
    for line in timeline.lines() {
        writeln!(out, "{}", line.trim_end())?;
    }
    let verdict = timeline.verdict();
    let (Verdict::Held(seen) | Verdict::Broken(seen)) = &verdict;
    writeln!(
        out,
        "\nqueue  {}  {}  {seen}  {}",
        timeline.configured(),
        timeline.bound(),
        word(&verdict)
    )
}

/// Writes to `out` how many bounds held.
///
/// # Errors
///
/// Returns the errors of `out`.
pub(crate) fn summary(out: &mut impl Write, held: &[bool]) -> io::Result<()> {
    match held.iter().filter(|held| !**held).count() {
        0 => writeln!(out, "\nEvery bound held.")?,
        broken => writeln!(out, "\n{broken} of {} bounds BROKEN.", held.len())?,
    }
    out.flush()
}

const COLUMNS: usize = 8;
const HEADINGS: [&str; COLUMNS] = [
    "limiter",
    "configured",
    "admitted",
    "denied",
    "decisions/s",
    "bound",
    "nearest",
    "",
];
const NUMBERS: [usize; 3] = [2, 3, 4];

fn cells(outcome: &Outcome) -> [String; COLUMNS] {
    let Outcome {
        trial,
        admitted,
        denied,
        speed: decisions,
        verdict,
    } = outcome;
    let (Verdict::Held(seen) | Verdict::Broken(seen)) = verdict;
    [
        trial.name.into(),
        trial.configured.into(),
        grouped(*admitted),
        grouped(*denied),
        speed(*decisions),
        trial.bound.into(),
        seen.clone(),
        word(verdict).into(),
    ]
}

fn word(verdict: &Verdict) -> &'static str {
    if verdict.held() { "held" } else { "BROKEN" }
}
