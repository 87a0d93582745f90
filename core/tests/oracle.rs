//! Every decision of the limiters, compared with models in rational arithmetic that know no word:
//! over random settings, from one a year to one a nanosecond, and times that jump by centuries and
//! back.
//!
//! What a word's finite horizon excuses is counted, and checked to lie within what the types state:
//! an ideal limiter is never outdone, and told less only around a multiple of the horizon.

mod support;

use portcullis_core::Word;
use proptest::prelude::any;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use support::bucket::{BucketSettings, random_bucket};
use support::draws::Draws;
use support::fixed::random_fixed;
use support::sliding::random_sliding;
use support::trace::{Tally, trace};

type Trace = fn(&mut Draws<'_>, &mut Tally);

fn token_bucket<W: Word>(draws: &mut Draws<'_>, tally: &mut Tally) {
    if let Some((bucket, mut model)) = random_bucket::<W>(draws) {
        trace(&bucket, &mut model, draws, tally);
    }
}

fn fixed_window<W: Word>(draws: &mut Draws<'_>, tally: &mut Tally) {
    if let Some((fixed, mut model)) = random_fixed::<W>(draws) {
        trace(&fixed, &mut model, draws, tally);
    }
}

fn sliding_window<W: Word>(draws: &mut Draws<'_>, tally: &mut Tally) {
    if let Some((sliding, mut model)) = random_sliding::<W>(draws) {
        trace(&sliding, &mut model, draws, tally);
    }
}

const SUBJECTS: [(&str, Trace); 8] = [
    ("token bucket, 64 bits", token_bucket::<u64>),
    ("token bucket, 32 bits", token_bucket::<u32>),
    ("fixed window, 64 bits", fixed_window::<u64>),
    ("fixed window, 32 bits", fixed_window::<u32>),
    ("sliding window, 64 bits", sliding_window::<u64>),
    ("sliding window, 32 bits", sliding_window::<u32>),
    ("concurrency, 64 bits", support::concurrency::trace::<u64>),
    ("concurrency, 32 bits", support::concurrency::trace::<u32>),
];

/// Runs seeded traces of a subject until they have judged so many requests. The seed of a failing
/// trace is printed with it.
fn in_bulk((name, subject): (&str, Trace), operations: u64, seed: u64) -> Tally {
    struct Seed<'a>(&'a str, u64);
    impl Drop for Seed<'_> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("{}: seed {:#x}", self.0, self.1);
            }
        }
    }
    let mut tally = Tally::default();
    let mut seed = Seed(name, seed);
    while tally.operations < operations {
        seed.1 += 1;
        let mut draws = Draws::Seeded {
            state: seed.1,
            steps: 200,
        };
        subject(&mut draws, &mut tally);
    }
    println!("{name}: {tally}");
    tally
}

fn agrees(index: usize) -> Tally {
    // Debug builds are some ten times slower.
    let operations = if cfg!(debug_assertions) {
        100_000
    } else {
        1_000_000
    };
    let tally = in_bulk(SUBJECTS[index], operations, 0);
    assert!(
        tally.granted > operations / 20 && tally.denied > operations / 20,
        "one-sided: {tally}"
    );
    tally
}

#[test]
fn a_token_bucket_decides_as_rational_arithmetic_does() {
    let tally = agrees(0);
    assert!(tally.retried > 1_000 && tally.late > 1_000 && tally.wrapped > 0 && tally.void > 0);
    let tally = agrees(1);
    assert!(tally.retried > 1_000 && tally.late > 1_000 && tally.wrapped > 1_000 && tally.void > 0);
}

#[test]
fn a_fixed_window_decides_as_an_index_that_never_wraps_does() {
    for index in [2, 3] {
        let tally = agrees(index);
        assert!(tally.retried > 1_000 && tally.late > 1_000 && tally.void > 0);
        assert_eq!(
            tally.late_and_less, 0,
            "a late request counts in the newest window"
        );
    }
}

#[test]
fn a_sliding_window_decides_as_an_index_that_never_wraps_does() {
    for index in [4, 5] {
        let tally = agrees(index);
        assert!(tally.retried > 1_000 && tally.late > 1_000 && tally.void > 0);
        assert_eq!(
            tally.late_and_less, 0,
            "a late request counts in the newest segment"
        );
    }
}

#[test]
fn concurrency_counts_as_two_counters_do() {
    agrees(6);
    agrees(7);
}

#[test]
fn no_small_trace_disagrees() {
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

#[test]
fn the_burst_that_the_builder_names_fits_and_one_more_does_not() {
    fn check<W: Word>() {
        let mut named = 0;
        for seed in 0..20_000 {
            let settings = BucketSettings::random(&mut Draws::Seeded {
                state: seed,
                steps: 0,
            });
            let Some(largest) = settings.largest_burst::<W>() else {
                continue;
            };
            if largest > 0 {
                let fits = settings.build::<W>(largest, largest);
                assert!(
                    fits.is_ok(),
                    "{settings:?}: {largest} does not fit, {fits:?}"
                );
                named += 1;
            }
            let refused = settings.build::<W>(largest + 1, 0);
            assert!(refused.is_err(), "{settings:?}: {largest} + 1 fits");
        }
        assert!(named > 1_000, "{named}");
    }
    check::<u64>();
    check::<u32>();
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
