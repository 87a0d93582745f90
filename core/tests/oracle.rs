//! Compares every decision of the limiters with models in rational arithmetic that use no words:
//! over random settings, from one permit per year to one per nanosecond, and times that jump by
//! centuries in both directions.
//!
//! Differences that a word's finite horizon excuses are counted, and checked to be within the
//! documented bounds: a limiter never grants more than an ideal one, and reports less only around a
//! multiple of the horizon.

mod support;

use proptest::prelude::any;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use support::draws::Draws;
use support::oracle::{SUBJECTS, in_bulk};
use support::trace::Tally;

#[test]
fn no_short_trace_disagrees() {
    for (name, subject) in SUBJECTS {
        let config = Config {
            cases: if cfg!(debug_assertions) { 64 } else { 512 },
            failure_persistence: None,
            ..Config::default()
        };
        let mut runner =
            TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
        let choices = proptest::collection::vec(any::<u64>(), 0..400);
        let result = runner.run(&choices, |choices| {
            subject(&mut Draws::Given(&choices), &mut Tally::default());
            Ok(())
        });
        if let Err(error) = result {
            panic!("{name}: {error}");
        }
    }
}

/// Runs 10^9 operations, or `PORTCULLIS_SOAK_OPS`, from seeds that no other run has used.
#[test]
#[ignore = "takes minutes; cargo xtask soak runs it"]
fn soak() {
    let operations: u64 = std::env::var("PORTCULLIS_SOAK_OPS")
        .map_or(1_000_000_000, |n| n.parse().expect("a number"));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let share = (operations / (SUBJECTS.len() * threads) as u64).max(1);
    let since_epoch = std::time::UNIX_EPOCH
        .elapsed()
        .map_or(0, |since| since.as_secs());
    std::thread::scope(|scope| {
        for thread in 0..threads as u64 {
            scope.spawn(move || {
                for subject in SUBJECTS {
                    in_bulk(subject, share, since_epoch << 32 | thread << 28);
                }
            });
        }
    });
}
