//! A striped bucket that processes share: permits move between the rest and stripes, and none is
//! granted twice.
#![cfg(portcullis_loom)]

use loom::sync::Arc;
use portcullis_core::state::{Attached, Detach, StateWord};
use portcullis_core::{Limiter, Rate, Timestamp, TokenBucket};
use portcullis_loom::{explore, explore_briefly, join, spawn, turn};
use portcullis_shm::stripes::{Stripe, Striped};

const NOW: Timestamp = Timestamp::from_secs(9);
const ROOM: u64 = 2;

struct Shared {
    word: StateWord,
    stripes: [Stripe; 2],
}

fn bucket(burst: u64) -> TokenBucket {
    TokenBucket::new(Rate::ZERO, burst)
}

fn shared(burst: u64) -> Arc<Shared> {
    let (_, word) = bucket(burst).detach();
    Arc::new(Shared {
        word: StateWord::new(word.get()),
        stripes: [Stripe::new(), Stripe::new()],
    })
}

/// Uses the bucket, as a process does.
fn using<T>(
    shared: &Shared,
    burst: u64,
    work: impl FnOnce(&Striped<'_, Attached<<TokenBucket as Detach>::Rules, &StateWord>>) -> T,
) -> T {
    let (rules, _) = bucket(burst).detach();
    let rest = Attached::new(rules, &shared.word);
    turn();
    work(&Striped {
        rest: &rest,
        stripes: &shared.stripes,
        room: ROOM,
    })
}

fn take(shared: &Shared, burst: u64, stripe: usize, times: usize) -> u64 {
    (0..times)
        .map(|_| {
            using(shared, burst, |striped| {
                striped.take(stripe, NOW, 1).map_or(0, |_| 1)
            })
        })
        .sum()
}

/// The permits that are there, in the rest and in stripes.
fn left(shared: &Shared, burst: u64) -> u64 {
    using(shared, burst, |striped| {
        striped.rest.available_at(NOW) + striped.have()
    })
}

#[test]
fn permits_are_in_one_place_or_granted_once() {
    explore(|| {
        let shared = shared(6);
        let a = spawn(&shared, |shared| take(shared, 6, 0, 2));
        let b = take(&shared, 6, 0, 2);
        let granted = join(a) + b;
        assert_eq!(granted, 4, "there are enough");
        let left = left(&shared, 6);
        assert!(granted + left <= 6, "{left}");
    });
}

#[test]
fn the_last_permits_are_found_in_any_stripe() {
    explore_briefly(2, 3, || {
        let shared = shared(4);
        let a = spawn(&shared, |shared| take(shared, 4, 0, 1));
        let b = spawn(&shared, |shared| take(shared, 4, 1, 1));
        let granted = join(a) + join(b) + take(&shared, 4, 0, 4);
        assert!(granted <= 4);
        assert_eq!(
            left(&shared, 4),
            0,
            "a request is denied when there are none"
        );
    });
}

#[test]
fn a_refund_returns_permits_once() {
    explore(|| {
        let shared = shared(4);
        let a = spawn(&shared, |shared| {
            let receipt = using(shared, 4, |striped| striped.take(0, NOW, 1));
            let Ok(receipt) = receipt else { return 0 };
            using(shared, 4, |striped| {
                1 - u64::from(striped.refund(NOW, 1, receipt).permits)
            })
        });
        let b = take(&shared, 4, 0, 2);
        let granted = join(a) + b;
        assert!(granted + left(&shared, 4) <= 4);
    });
}
