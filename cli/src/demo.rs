//! `portcullis demo`: threads hammer each limiter in real time, and every bound is checked against what was recorded.
//!
//! | module | what is in it |
//! |---|---|
//! | [`trials`] | the limiters, their settings, and the bound that each promises |
//! | [`hammer`] | the threads, and what they record |
//! | [`bound`] | records held against a bound |
//! | [`display`] | a line for each trial while it runs, and the table at the end |
//!
//! **What is checked.** An admission counts at the later of its own `now` and the newest `now` written to the limiter before (law 1
//! of the library). That instant cannot be read off the limiter, but it can be enclosed: it is not before the own `now`, nor
//! before the `now` of any admission that had returned when this one was asked for; and it is not after the reading of the clock
//! once the answer is there. An admission is taken to lie in a span of time if its whole enclosure does. So a limiter that keeps its bound
//! is never accused, and one that breaks it gets away only with what fits into the microseconds of doubt.

mod bound;
mod display;
mod hammer;
mod trials;

use std::io;
use std::process::ExitCode;

use self::bound::Verdict;
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

/// Runs every trial, one after the other, and prints the table.
///
/// # Errors
///
/// [`Failure::Output`] if the table cannot be written.
pub(crate) fn run(args: &DemoArgs) -> Result<ExitCode, Failure> {
    let hammer = Hammer { threads: args.threads, length: args.seconds };
    Ok(conclude(&hammer, trials::all())?)
}

/// Runs `trials` and tells whether all bounds held: by the table, and by the exit code.
fn conclude(hammer: &Hammer, trials: Vec<Trial>) -> io::Result<ExitCode> {
    let display = Display::new(hammer, &trials);
    let outcomes: Vec<Outcome> =
        trials.into_iter().enumerate().map(|(index, trial)| display.watch(index, hammer, trial)).collect();
    display.table(&mut io::stdout().lock(), hammer, &outcomes)?;
    let held = outcomes.iter().all(|outcome| outcome.verdict.held());
    Ok(if held { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    #[test]
    fn a_broken_bound_is_an_exit_code() {
        let hammer = Hammer { threads: 2, length: Duration::from_millis(50) };
        let held = conclude(&hammer, vec![trials::honest()]).unwrap();
        assert_eq!(format!("{held:?}"), format!("{:?}", ExitCode::SUCCESS));
        let broken = conclude(&hammer, vec![trials::honest(), trials::generous()]).unwrap();
        assert_eq!(format!("{broken:?}"), format!("{:?}", ExitCode::FAILURE));
    }
}
