//! `portcullis demo`: threads hammer each limiter in real time, and the program checks every bound
//! against the recorded grants. A naive limiter, which breaks its bound, is hammered and checked
//! like the others. Then a burst of requests waits in a queue.
//!
//! | module | what is in it |
//! |---|---|
//! | [`trials`] | the limiters, their settings and their bounds |
//! | [`hammer`] | the threads and their records |
//! | [`bound`] | checks of records against a bound |
//! | [`burst`] | the burst of requests that wait |
//! | [`display`] | the output |
//!
//! **What is checked.** A grant counts at the later of its own `now` and the newest `now` written
//! to the limiter before. That instant cannot be read from the limiter, but it can be enclosed:
//!
//! - It is not before the grant's own `now`.
//! - It is not before the `now` of any grant that had returned when this one was requested.
//! - It is not after the clock reading that follows the answer.
//!
//! A grant is counted in a span of time only if its whole enclosure lies in the span. So a limiter
//! that keeps its bound is never accused. A limiter that breaks its bound is missed only within the
//! microseconds of uncertainty.

mod bound;
mod burst;
mod display;
mod hammer;
mod trials;

use std::io;
use std::process::ExitCode;

use self::bound::Verdict;
use self::burst::Burst;
use self::display::{Display, Output};
use self::hammer::Hammer;
use self::trials::Trial;
use crate::args::DemoArgs;
use crate::colour::{self, Painter};
use crate::failure::Failure;

/// One row of the table.
pub(crate) struct Outcome {
    trial: Trial,
    /// Requests decided per second, by all threads together.
    speed: f64,
    verdict: Verdict,
}

/// Runs every trial, one after another, and the burst; prints the table and the timeline.
///
/// # Errors
///
/// [`Failure::Output`] if they cannot be written.
pub(crate) fn run(args: &DemoArgs) -> Result<ExitCode, Failure> {
    let hammer = Hammer {
        threads: args.threads,
        length: args.seconds,
    };
    Ok(conclude(&hammer, trials::ALL.into(), Burst::at(args.rate))?)
}

/// Runs `trials`, a naive limiter and `burst`. Prints whether all bounds but the naive limiter's
/// held, and returns the exit code that says so.
fn conclude(hammer: &Hammer, mut trials: Vec<Trial>, burst: Burst) -> io::Result<ExitCode> {
    let mut out = Output {
        painter: Painter {
            is_on: colour::is_for(&io::stdout()),
        },
        out: io::stdout().lock(),
    };
    trials.push(trials::NAIVE);
    let display = Display::new(hammer, &trials);
    let mut outcomes: Vec<Outcome> = trials
        .into_iter()
        .enumerate()
        .map(|(index, trial)| display.watch(index, hammer, trial))
        .collect();
    display.finish()?;
    out.table(hammer, &outcomes)?;
    let naive = outcomes.pop().map(|outcome| outcome.verdict);
    let timeline = display::watch_burst(burst)?;
    let verdicts = outcomes
        .into_iter()
        .map(|outcome| outcome.verdict)
        .chain([timeline.verdict()]);
    let held: Vec<bool> = verdicts.map(|verdict| verdict.held()).collect();
    out.timeline(&timeline)?;
    out.summary(&held, naive.is_some_and(|naive| !naive.held()))?;
    Ok(if held.iter().all(|held| *held) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    #[test]
    fn a_broken_bound_is_an_exit_code() {
        let hammer = Hammer {
            threads: 2,
            length: Duration::from_millis(50),
        };
        let (slow, never) = (
            Burst {
                rate: 100,
                tolerance: 10.0,
            },
            Burst {
                rate: 100,
                tolerance: -1_000.0,
            },
        );
        let code = |trials, burst| format!("{:?}", conclude(&hammer, trials, burst).unwrap());
        let [success, failure] =
            [ExitCode::SUCCESS, ExitCode::FAILURE].map(|code| format!("{code:?}"));
        assert_eq!(code(vec![trials::HONEST], slow), success);
        assert_eq!(
            code(vec![trials::HONEST, trials::generous()], slow),
            failure
        );
        assert_eq!(code(vec![trials::HONEST], never), failure);
    }
}
