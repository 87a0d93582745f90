//! The bucket of a share: it admits nothing from its end on, and nothing of another life.
#![cfg(portcullis_loom)]

use core::time::Duration;

use loom::sync::Arc;
use portcullis_core::Rate;
use portcullis_fleet::ending_bucket::{EndingBucket, NO_END, Terms};
use portcullis_loom::{at, explore, join, spawn, turn};

/// Ten permits a second until `end`, at most five at once.
fn until(end: u64) -> Terms {
    Terms {
        rate: Rate::per_second(10),
        burst: 5,
        until: at(end).as_nanos(),
    }
}

/// Nothing, without an end: a member that has reserved nothing.
const NOTHING_RESERVED: Terms = Terms {
    rate: Rate::ZERO,
    burst: 1,
    until: NO_END,
};

fn bucket(terms: Terms) -> Arc<EndingBucket> {
    Arc::new(EndingBucket::new(terms, Duration::from_secs(1), at(0)).unwrap())
}

fn take(bucket: &EndingBucket, now: u64, n: u32) -> u32 {
    turn();
    bucket.take_at(at(now), n).map_or(0, |_| n)
}

/// The process was stopped after the driver had read the clock, for longer than the share lasts.
#[test]
fn a_take_after_the_end_takes_nothing_although_a_share_begins() {
    explore(|| {
        let bucket = bucket(NOTHING_RESERVED);
        let late = spawn(&bucket, |bucket| take(bucket, 150, 1));
        turn();
        bucket.set(at(50), until(100));
        assert_eq!(join(late), 0);
    });
}

/// As above, and the share has been followed by none when the take returns.
#[test]
fn a_take_after_the_end_takes_nothing_although_a_share_begins_and_ends() {
    explore(|| {
        let bucket = bucket(NOTHING_RESERVED);
        let late = spawn(&bucket, |bucket| take(bucket, 150, 1));
        turn();
        bucket.set(at(50), until(100));
        turn();
        bucket.set(at(50), NOTHING_RESERVED);
        assert_eq!(join(late), 0);
    });
}

/// A share whose end moves back, as when the pool has shorter leases.
#[test]
fn a_take_after_an_end_that_has_moved_back_takes_nothing_new() {
    explore(|| {
        let bucket = bucket(until(200));
        let more = Terms {
            burst: 50,
            ..until(100)
        };
        // Of the share of before there are five.
        let late = spawn(&bucket, |bucket| take(bucket, 150, 6));
        turn();
        bucket.set(at(50), more);
        assert_eq!(join(late), 0);
    });
}

#[test]
fn what_a_share_gained_is_gone_when_the_next_one_begins() {
    explore(|| {
        let bucket = bucket(until(100));
        // A thread that has read the clock before the end.
        let stale = spawn(&bucket, |bucket| take(bucket, 99, 3));
        let seen = spawn(&bucket, |bucket| {
            turn();
            bucket.available_at(at(200))
        });
        turn();
        bucket.set(at(200), until(300));
        assert_eq!(join(seen), 0);
        join(stale);
        assert_eq!(bucket.available_at(at(200)), 0);
        assert_eq!(take(&bucket, 200, 1), 0);
        assert_eq!(take(&bucket, 201, 5), 5);
    });
}

#[test]
fn a_take_that_is_overtaken_by_the_close_takes_nothing_afterwards() {
    explore(|| {
        let bucket = bucket(until(300));
        let stale = spawn(&bucket, |bucket| take(bucket, 120, 3));
        turn();
        bucket.set(at(100), Terms::NOTHING);
        // The partitions belong to another member now.
        assert_eq!(take(&bucket, 110, 1), 0);
        turn();
        bucket.set(at(200), until(300));
        assert_eq!(bucket.available_at(at(200)), 0);
        join(stale);
        assert_eq!(bucket.available_at(at(200)), 0);
    });
}

#[test]
fn a_renewal_denies_no_take() {
    explore(|| {
        let bucket = bucket(until(100));
        let a = spawn(&bucket, |bucket| take(bucket, 50, 3));
        let b = spawn(&bucket, |bucket| take(bucket, 50, 2));
        turn();
        bucket.set(at(50), until(150));
        assert_eq!((join(a), join(b)), (3, 2));
        assert_eq!(take(&bucket, 50, 1), 0);
    });
}

/// More partitions, and fewer: what was saved up stays, up to the burst.
#[test]
fn takes_during_a_change_of_the_share_take_what_there_is_once() {
    explore(|| {
        let bucket = bucket(until(100));
        let a = spawn(&bucket, |bucket| take(bucket, 50, 3));
        let b = spawn(&bucket, |bucket| take(bucket, 50, 3));
        turn();
        let fewer = Terms {
            rate: Rate::per_second(4),
            burst: 2,
            ..until(150)
        };
        bucket.set(at(50), fewer);
        let (a, b) = (join(a), join(b));
        assert!(a + b <= 3, "of five");
        assert!(bucket.available_at(at(50)) <= 2);
        assert!(a + b + take(&bucket, 50, 2) <= 5);
    });
}
