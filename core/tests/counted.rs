//! `Counted` decides as its inner limiter does, and counts the decisions.

use core::time::Duration;
use std::thread;

use portcullis_core::counts::Counts;
use portcullis_core::limiter::Refund;
use portcullis_core::{
    AllOf, Concurrency, CooldownWindow, Counted, Denied, Limiter, LimiterExt, Penalty, Rate,
    Timestamp, TokenBucket, Unlimited,
};

const NOW: Timestamp = Timestamp::ZERO;

/// The requests that were granted and those that were not, and the held permits.
fn brief(counts: Counts) -> (u64, u64, u64) {
    let not_granted = counts.denied.requests + counts.refused.requests;
    (counts.granted.requests, not_granted, counts.held)
}

#[test]
fn requests_and_held_permits_are_counted() {
    let limit = Counted::new(Concurrency::new(5));
    assert_eq!(brief(limit.counts()), (0, 0, 0));
    let three = limit.try_acquire_at(NOW, 3).unwrap();
    assert_eq!(brief(limit.counts()), (1, 0, 3));
    let two = limit.try_acquire_at(NOW, 2).unwrap();
    assert_eq!(brief(limit.counts()), (2, 0, 5));
    assert!(limit.try_acquire_at(NOW, 1).is_err());
    assert_eq!(brief(limit.counts()), (2, 1, 5));
    drop(three);
    assert_eq!(brief(limit.counts()), (2, 1, 2));
    drop(two);
    assert_eq!(brief(limit.counts()), (2, 1, 0));
}

#[test]
fn a_probe_is_a_request_that_holds_nothing() {
    let limit = Counted::new(Concurrency::new(1));
    let probe = limit.try_acquire_at(NOW, 0).unwrap();
    assert_eq!(brief(limit.counts()), (1, 0, 0));
    drop(probe);
    let _lease = limit.try_acquire_at(NOW, 1).unwrap();
    assert!(limit.try_acquire_at(NOW, 0).is_err());
    assert_eq!(brief(limit.counts()), (2, 1, 1));
}

#[test]
fn a_request_for_more_than_the_capacity_is_a_denial() {
    let limit = Counted::new(Concurrency::new(1));
    let denied = limit.try_acquire_at(NOW, 2).unwrap_err();
    let capacity = 1;
    let permits = 2;
    assert_eq!(denied, Denied::ExceedsCapacity { permits, capacity });
    assert_eq!(brief(limit.counts()), (0, 1, 0));
}

#[test]
fn each_denial_in_a_composition_counts_once_for_the_limit_that_denied() {
    fn check(attempt: impl Fn(u32) -> Result<(), Denied>, limits: [&Counted<Concurrency>; 2]) {
        let [one, other] = limits;
        let before = other.counts();
        let mut denied = brief(one.counts()).1;
        // More than are left, and more than there can ever be.
        for n in [5, 6, 9] {
            assert!(attempt(n).is_err(), "{n}");
            denied += 1;
            assert_eq!(brief(one.counts()), (1, denied, 1), "of {n}");
            assert_eq!(other.counts(), before);
        }
        assert!(attempt(0).is_ok());
        assert_eq!(brief(one.counts()), (1, denied, 1), "a probe");
    }
    let (one, other) = (
        Counted::new(Concurrency::new(5)),
        Counted::new(Concurrency::new(9)),
    );
    let limits = [&one, &other];
    let _held = one.try_acquire_at(NOW, 1).unwrap();
    macro_rules! check {
        ($all:expr) => {
            check(
                |n| match $all.try_acquire_at(NOW, n) {
                    Ok(_) => Ok(()),
                    Err(by) => Err(by.denied),
                },
                limits,
            );
        };
    }
    check!(AllOf::new((&one, &other)));
    check!(AllOf::new((&other, &one)));
    check!(AllOf::new(limits));
    check!(AllOf::new(&limits[..]));
    check!(AllOf::new((AllOf::new((&other, &one)), Unlimited)));
    // Named twice: a request for 3 asks for 6.
    let all = AllOf::new((&one, &other, &one));
    let denied = brief(one.counts()).1;
    assert!(all.try_acquire_at(NOW, 3).is_err());
    assert_eq!(brief(one.counts()), (1, denied + 1, 1));
}

#[test]
fn more_than_the_capacity_starts_no_penalty_in_a_composition() {
    let penalty = Penalty::new(Counted::new(Concurrency::new(5)), Duration::from_secs(9));
    let wait = CooldownWindow::new(5, Duration::from_secs(9), None);
    assert!(
        AllOf::new((&penalty, &wait))
            .try_acquire_at(NOW, 6)
            .is_err()
    );
    assert!(
        AllOf::new((&wait, &penalty))
            .try_acquire_at(NOW, 6)
            .is_err()
    );
    assert_eq!(brief(penalty.limiter().counts()), (0, 1, 0));
    assert!(!penalty.is_on_at(NOW));
    assert_eq!(wait.available_at(NOW), 5);
}

#[test]
fn looks_are_not_counted() {
    let limit = Counted::new(Concurrency::new(1));
    assert_eq!(limit.peek_at(NOW, 1), Ok(()));
    assert!(limit.peek_at(NOW, 2).is_err());
    assert_eq!(limit.available_at(NOW), 1);
    assert_eq!(limit.capacity(), 1);
    assert!(limit.idle_at(NOW).is_idle());
    assert_eq!(brief(limit.counts()), (0, 0, 0));
}

#[test]
fn permits_returned_in_part_are_no_longer_held() {
    let limit = Counted::new(Concurrency::new(5));
    let receipt = limit.take_at(NOW, 5).unwrap();
    limit.release(1);
    assert_eq!(brief(limit.counts()), (1, 0, 4));
    let Refund { permits, .. } = limit.refund_at(NOW, 4, receipt);
    assert_eq!(permits, 4);
    assert_eq!(brief(limit.counts()), (1, 0, 0));
}

#[test]
fn leases_of_a_rate_are_held_until_they_are_dropped() {
    let limit = Counted::new(TokenBucket::new(Rate::per_second(1), 2));
    let lease = limit.try_acquire_at(NOW, 2).unwrap();
    let later = NOW.saturating_add(Duration::from_secs(2));
    assert_eq!(limit.available_at(later), 2);
    assert_eq!(brief(limit.counts()), (1, 0, 2));
    drop(lease);
    assert_eq!(brief(limit.counts()), (1, 0, 0));
}

#[test]
fn the_inner_limiter_can_be_asked_without_the_counters() {
    let limit = Counted::new(Concurrency::new(1));
    let lease = limit.limiter().try_acquire_at(NOW, 1).unwrap();
    assert_eq!(brief(limit.counts()), (0, 0, 0));
    assert!(limit.try_acquire_at(NOW, 1).is_err());
    drop(lease);
    assert_eq!(brief(limit.counts()), (0, 1, 0));
}

#[test]
fn nested_counters_agree() {
    let limit = Counted::new(Counted::new(Unlimited));
    for n in 0..7 {
        drop(limit.try_acquire_at(NOW, n));
    }
    assert_eq!(brief(limit.counts()), (7, 0, 0));
    assert_eq!(limit.counts(), limit.limiter().counts());
}

#[test]
fn the_counts_of_many_threads_add_up() {
    const THREADS: u64 = 4;
    const TRIES: u64 = 10_000;
    let limit = Counted::new(Concurrency::new(2));
    let granted: u64 = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(|| {
                    let tries = 0..TRIES;
                    tries
                        .map(|_| u64::from(limit.try_acquire_at(NOW, 1).is_ok()))
                        .sum::<u64>()
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum()
    });
    let counts = limit.counts();
    assert_eq!(brief(counts), (granted, THREADS * TRIES - granted, 0));
    // Each request is for one permit.
    assert_eq!(counts.granted.permits, granted);
    assert_eq!(counts.denied.permits, THREADS * TRIES - granted);
}
