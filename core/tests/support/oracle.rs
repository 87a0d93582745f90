//! Random traces in bulk, for each limiter that has a model.

use portcullis_core::state::{KeyedWord, Word};

use super::bucket::random_bucket;
use super::draws::Draws;
use super::fixed::random_fixed;
use super::sliding::random_sliding;
use super::trace::{Tally, trace};
use super::warming::random_warming;

pub(crate) type Trace = fn(&mut Draws<'_>, &mut Tally);

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

fn warming_bucket<W: Word>(draws: &mut Draws<'_>, tally: &mut Tally) {
    if let Some((bucket, mut model)) = random_warming::<W>(draws) {
        trace(&bucket, &mut model, draws, tally);
    }
}

pub(crate) const SUBJECTS: [(&str, Trace); 11] = [
    ("token bucket, 64 bits", token_bucket::<u64>),
    ("token bucket, 32 bits", token_bucket::<u32>),
    ("fixed window, 64 bits", fixed_window::<u64>),
    ("fixed window, 32 bits", fixed_window::<u32>),
    ("sliding window, 64 bits", sliding_window::<u64>),
    ("sliding window, 32 bits", sliding_window::<u32>),
    ("concurrency, 64 bits", super::concurrency::trace::<u64>),
    ("concurrency, 32 bits", super::concurrency::trace::<u32>),
    ("warming bucket, 64 bits", warming_bucket::<u64>),
    ("warming bucket, 43 bits", warming_bucket::<KeyedWord>),
    ("warming bucket, 32 bits", warming_bucket::<u32>),
];

/// Runs seeded traces of a subject until they have judged `operations` requests. The seed of a
/// failing trace is printed with the failure.
pub(crate) fn in_bulk((name, subject): (&str, Trace), operations: u64, seed: u64) -> Tally {
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

/// Compares many decisions of a subject with its model.
pub(crate) fn agrees(name: &str) -> Tally {
    let subject = SUBJECTS.into_iter().find(|subject| subject.0 == name);
    // Debug builds are some ten times slower.
    let operations = if cfg!(debug_assertions) {
        100_000
    } else {
        1_000_000
    };
    let tally = in_bulk(subject.expect("one of the subjects"), operations, 0);
    assert!(
        tally.granted > operations / 20 && tally.denied > operations / 20,
        "one-sided: {tally}"
    );
    tally
}
