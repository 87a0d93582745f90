//! `portcullis demo`: threads hammer each limiter in real time, and every bound is checked against
//! what was recorded; then a burst of requests waits in a queue.
//!
//! | module | what is in it |
//! |---|---|
//! | [`trials`] | the limiters, their settings, and the bound that each promises |
//! | [`hammer`] | the threads, and what they record |
//! | [`bound`] | records held against a bound |
//! | [`burst`] | the requests that wait, and what is promised of them |
//! | [`display`] | what is seen while it runs, and at the end |
//!
//! **What is checked.** An admission counts at the later of its own `now` and the newest `now`
//! written to the limiter before (law 1 of the library). That instant cannot be read off the
//! limiter, but it can be enclosed: it is not before the own `now`, nor before the `now` of any
//! admission that had returned when this one was asked for; and it is not after the reading of the
//! clock once the answer is there. An admission is taken to lie in a span of time if its whole
//! enclosure does. So a limiter that keeps its bound is never accused, and one that breaks it gets
//! away only with what fits into the microseconds of doubt.

mod bound;
mod burst;
mod display;
mod hammer;
mod trials;

use std::io;
use std::process::ExitCode;

use self::bound::Verdict;
use self::burst::Burst;
use self::display::Display;
use self::hammer::Hammer;
use self::trials::Trial;
use crate::args::DemoArgs;
use crate::failure::Failure;

/// One line of the table.
pub(crate) struct Outcome {
    trial: Trial,
    /// Requests that were admitted.
    admitted: u64,
    /// Requests that were denied.
    denied: u64,
    /// Requests decided each second, by all threads together.
    speed: f64,
    verdict: Verdict,
}

/// Runs every trial, one after the other, and the burst, and prints the table and the timeline.
///
/// # Errors
///
/// [`Failure::Output`] if they cannot be written.
pub(crate) fn run(args: &DemoArgs) -> Result<ExitCode, Failure> {
    let hammer = Hammer {
        threads: args.threads,
        length: args.seconds,
    };
    Ok(conclude(&hammer, trials::all(), Burst::at(args.rate))?)
}

/// Runs `trials` and `burst`, and tells whether all bounds held: by what is printed, and by the
/// exit code.
fn conclude(hammer: &Hammer, trials: Vec<Trial>, burst: Burst) -> io::Result<ExitCode> {
    let mut out = io::stdout().lock();
    let display = Display::new(hammer, &trials);
    let outcomes: Vec<Outcome> = trials
        .into_iter()
        .enumerate()
        .map(|(index, trial)| display.watch(index, hammer, trial))
        .collect();
    display.table(&mut out, hammer, &outcomes)?;
    let timeline = display::watch_burst(burst)?;
    let verdicts = outcomes
        .into_iter()
        .map(|outcome| outcome.verdict)
        .chain([timeline.verdict()]);
    let held: Vec<bool> = verdicts.map(|verdict| verdict.held()).collect();
    display::timeline(&mut out, &timeline)?;
    display::summary(&mut out, &held)?;
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
                tolerance: -1.0,
            },
        );
        let code = |trials, burst| format!("{:?}", conclude(&hammer, trials, burst).unwrap());
        let [success, failure] =
            [ExitCode::SUCCESS, ExitCode::FAILURE].map(|code| format!("{code:?}"));
        assert_eq!(code(vec![trials::honest()], slow), success);
        assert_eq!(
            code(vec![trials::honest(), trials::generous()], slow),
            failure
        );
        assert_eq!(code(vec![trials::honest()], never), failure);
    }
}
