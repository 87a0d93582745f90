//! What two threads on one word would gain from a pause after an exchange that failed, from a
//! second look before the exchange, and from an addition that is repaired if it took too much.
//!
//! Each variant is a bare word with the decision of a token bucket that is in use, or of a
//! concurrency limit. A variant is worth a place in a limiter only if it costs one thread nothing.

use core::array;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crossbeam_utils::{Backoff, CachePadded};
use portcullis_core::Timestamp;

use crate::measure::{Contest, Contestant, Expected};
use crate::rows::concurrency;
use crate::rows::token_bucket::{Load, granting};

const START: u64 = 1 << 40;
/// Units for each permit, one of which comes back in each nanosecond.
const PERMIT: u64 = 1_000;
const BURST: u64 = 1 << 50;
const LIMIT: u64 = 10;

pub(crate) fn rows() -> Vec<Contest> {
    [1, 2]
        .into_iter()
        .flat_map(|threads| [bucket(threads), cycle(threads)])
        .collect()
}

fn bucket(threads: usize) -> Contest {
    Contest {
        row: "contended.bucket",
        threads,
        expected: Expected::Granted,
        ours: granting(Load::IN_USE.bucket(Timestamp::from_nanos(START))),
        peers: vec![
            taking("bare", |word, now| exchange(word, |used| take(used, now))),
            taking("backoff", |word, now| {
                exchange_or_pause(word, |used| take(used, now))
            }),
            taking("look", |word, now| {
                exchange_after_look(word, |used| take(used, now))
            }),
            taking("add-and-repair", |word, now| {
                add_or_repair(word, PERMIT, |used| take(used, now))
            }),
            taking("look-add-and-repair", |word, now| {
                take(word.load(Relaxed), now).is_some()
                    && add_or_repair(word, PERMIT, |used| take(used, now))
            }),
        ],
    }
}

fn cycle(threads: usize) -> Contest {
    Contest {
        row: "contended.cycle",
        threads,
        expected: Expected::Granted,
        ours: concurrency::ours(),
        peers: vec![
            cycling("bare", |word| exchange(word, hold)),
            cycling("backoff", |word| exchange_or_pause(word, hold)),
            cycling("look", |word| exchange_after_look(word, hold)),
            cycling("add-and-repair", |word| add_or_repair(word, ONE_LESS, hold)),
            cycling("look-add-and-repair", |word| {
                hold(word.load(Relaxed)).is_some() && add_or_repair(word, ONE_LESS, hold)
            }),
        ],
    }
}

/// The state of a bucket after a take at `now`, or `None` if the take is denied. `used` is the
/// position up to which permits are used.
#[inline(always)]
fn take(used: u64, now: u64) -> Option<u64> {
    let available = now.wrapping_sub(used);
    match available {
        PERMIT..BURST => Some(used + PERMIT),
        BURST.. => Some(now - BURST + PERMIT),
        _ => None,
    }
}

/// The state of a concurrency limit after a take. It is negative while takes are to be repaired.
#[inline(always)]
fn hold(available: u64) -> Option<u64> {
    (available as i64 > 0).then(|| available - 1)
}

/// A permit less, by an addition that wraps around.
const ONE_LESS: u64 = u64::MAX;

/// Adds without a decision, and subtracts again what should not have been taken.
#[inline(always)]
fn add_or_repair(word: &AtomicU64, permit: u64, next: impl Fn(u64) -> Option<u64>) -> bool {
    let is_granted = next(word.fetch_add(permit, Acquire)).is_some();
    if !is_granted {
        word.fetch_sub(permit, Relaxed);
    }
    is_granted
}

#[inline(always)]
fn exchange(word: &AtomicU64, next: impl Fn(u64) -> Option<u64>) -> bool {
    let mut state = word.load(Relaxed);
    while let Some(next) = next(state) {
        match word.compare_exchange_weak(state, next, Acquire, Relaxed) {
            Ok(_) => return true,
            Err(newer) => state = newer,
        }
    }
    false
}

/// Pauses after each exchange that fails, longer each time.
#[inline(always)]
fn exchange_or_pause(word: &AtomicU64, next: impl Fn(u64) -> Option<u64>) -> bool {
    let mut state = word.load(Relaxed);
    let backoff = Backoff::new();
    while let Some(next) = next(state) {
        if word
            .compare_exchange_weak(state, next, Acquire, Relaxed)
            .is_ok()
        {
            return true;
        }
        backoff.spin();
        state = word.load(Relaxed);
    }
    false
}

/// Reads the word again before the exchange.
#[inline(always)]
fn exchange_after_look(word: &AtomicU64, next: impl Fn(u64) -> Option<u64>) -> bool {
    let mut state = word.load(Relaxed);
    while let Some(next) = next(state) {
        let newer = word.load(Relaxed);
        if newer != state {
            state = newer;
            continue;
        }
        match word.compare_exchange_weak(state, next, Acquire, Relaxed) {
            Ok(_) => return true,
            Err(newer) => state = newer,
        }
    }
    false
}

/// Takes at times that advance by 4 ns.
fn taking(
    name: &'static str,
    take: impl Fn(&AtomicU64, u64) -> bool + Sync + 'static,
) -> Contestant {
    let word = CachePadded::new(AtomicU64::new(START.wrapping_sub(BURST / 2)));
    let clocks: [_; 2] = array::from_fn(|_| CachePadded::new(AtomicU64::new(START)));
    Contestant::new(name, move |thread, operations| {
        let start = clocks[thread].fetch_add(4 * operations, Relaxed);
        (0..operations)
            .filter(|i| take(&word, start + 4 * i))
            .count() as u64
    })
}

/// Takes and releases.
fn cycling(name: &'static str, take: impl Fn(&AtomicU64) -> bool + Sync + 'static) -> Contestant {
    let word = CachePadded::new(AtomicU64::new(LIMIT));
    Contestant::new(name, move |_, operations| {
        (0..operations)
            .filter(|_| {
                let is_granted = take(&word);
                if is_granted {
                    word.fetch_add(1, Release);
                }
                is_granted
            })
            .count() as u64
    })
}
