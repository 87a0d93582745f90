//! The token bucket: one word, advanced by compare-exchange, every access `Relaxed`.
#![cfg(portcullis_loom)]

use core::time::Duration;

use loom::sync::Arc;
use portcullis_core::state::Word;
use portcullis_core::{Rate, Timestamp, TokenBucket};
use portcullis_loom::{at, explore, join, on_both_widths, spawn, take, turn};

on_both_widths!(
    racing_takes_share_the_burst_and_never_exceed_it,
    a_small_take_always_gets_what_one_of_two_larger_takes_leaves,
    a_permit_replenished_between_two_takes_is_granted_once,
    a_stale_timestamp_finds_no_more_than_the_newest,
    a_bucket_replenishes_from_the_newest_of_two_racing_timestamps,
    racing_takes_find_a_bucket_full_after_most_of_a_horizon_idle,
    of_two_requests_that_may_owe_one_owes_and_the_other_is_denied,
);

/// A bucket with a rate of 1 permit per second.
fn bucket<W: Word>(burst: u64) -> TokenBucket<W> {
    TokenBucket::builder(Rate::per_second(1), burst)
        .build_on()
        .unwrap()
}

/// Checks that no permit is lost: once enough time has passed, exactly the burst is available.
fn is_full_again<W: Word>(bucket: &TokenBucket<W>, now: Timestamp) {
    assert_eq!(bucket.available_at(now), bucket.burst());
    let burst = u32::try_from(bucket.burst()).unwrap();
    assert_eq!(take(bucket, now, burst), bucket.burst());
    assert_eq!(take(bucket, now, 1), 0);
}

fn racing_takes_share_the_burst_and_never_exceed_it<W: Word>() {
    explore(|| {
        let limit = Arc::new(bucket::<W>(2));
        let a = spawn(&limit, |limit| take(limit, at(5), 1));
        let b = spawn(&limit, |limit| take(limit, at(5), 1));
        let c = take(&*limit, at(5), 1);
        assert_eq!(join(a) + join(b) + c, 2);
        assert_eq!(limit.available_at(at(5)), 0);
        is_full_again(&limit, at(7));
    });
}

fn a_small_take_always_gets_what_one_of_two_larger_takes_leaves<W: Word>() {
    explore(|| {
        let limit = Arc::new(bucket::<W>(3));
        let a = spawn(&limit, |limit| take(limit, at(5), 2));
        let b = spawn(&limit, |limit| take(limit, at(5), 2));
        let c = take(&*limit, at(5), 1);
        let (a, b) = (join(a), join(b));
        assert_eq!(
            (a + b, c),
            (2, 1),
            "one of the two larger takes, and always the small one"
        );
        is_full_again(&limit, at(8));
    });
}

fn a_permit_replenished_between_two_takes_is_granted_once<W: Word>() {
    explore(|| {
        let limit = Arc::new(bucket::<W>(1));
        assert_eq!(take(&*limit, at(5), 1), 1);
        let a = spawn(&limit, |limit| take(limit, at(6), 1));
        let b = spawn(&limit, |limit| take(limit, at(6), 1));
        assert_eq!(join(a) + join(b), 1);
        is_full_again(&limit, at(7));
    });
}

fn a_stale_timestamp_finds_no_more_than_the_newest<W: Word>() {
    explore(|| {
        let limit = Arc::new(bucket::<W>(1));
        assert_eq!(take(&*limit, at(5), 1), 1);
        // No permit is available at 5 s. The permit that is replenished at 6 s was taken by the
        // newer take.
        let newer = spawn(&limit, |limit| take(limit, at(6), 1));
        let older = take(&*limit, at(5), 1) + limit.available_at(at(5));
        assert_eq!((join(newer), older), (1, 0));
        is_full_again(&limit, at(7));
    });
}

fn a_bucket_replenishes_from_the_newest_of_two_racing_timestamps<W: Word>() {
    explore(|| {
        let limit = Arc::new(bucket::<W>(2));
        assert_eq!(take(&*limit, at(5), 2), 2);
        let a = spawn(&limit, |limit| take(limit, at(6), 1));
        let b = spawn(&limit, |limit| take(limit, at(7), 1));
        let (a, b) = (join(a), join(b));
        assert_eq!(
            b, 1,
            "two permits are replenished by then, and the other thread takes at most one"
        );
        assert_eq!(limit.available_at(at(7)), 2 - a - b);
        is_full_again(&limit, at(9));
    });
}

fn racing_takes_find_a_bucket_full_after_most_of_a_horizon_idle<W: Word>() {
    explore(|| {
        let limit = Arc::new(bucket::<W>(1));
        let quarter = u64::try_from(limit.timing().horizon.as_nanos() / 4).unwrap();
        let now = Timestamp::from_nanos(quarter * 3);
        let older = Timestamp::from_nanos(now.as_nanos() - 500_000_000);
        let a = spawn(&limit, move |limit| take(limit, now, 1));
        let b = take(&*limit, older, 1);
        assert_eq!(join(a) + b, 1, "one permit in half a second");
        is_full_again(&limit, now.saturating_add(Duration::from_secs(1)));
    });
}

fn of_two_requests_that_may_owe_one_owes_and_the_other_is_denied<W: Word>() {
    explore(|| {
        let bucket = TokenBucket::builder(Rate::per_second(1), 1).debt(4);
        let limit = Arc::new(bucket.build_on::<W>().unwrap());
        let a = spawn(&limit, |limit| owe(limit, at(5), 3));
        let b = spawn(&limit, |limit| owe(limit, at(5), 4));
        let small = take(&*limit, at(5), 1);
        let (a, b) = (join(a), join(b));
        // The small one comes first and leaves nothing owed, or is denied.
        assert!(
            matches!((a, b), (3, 0) | (0, 4)),
            "{a} and {b}, with a debt of at most 4"
        );
        let owed = a + b + small - 1;
        assert_eq!(limit.available_at(at(5 + owed)), 0);
        assert_eq!(limit.available_at(at(6 + owed)), 1);
        is_full_again(&limit, at(6 + owed));
    });
}

/// Takes `n` permits if nothing is owed, as `take` does.
fn owe<W: Word>(limit: &TokenBucket<W>, now: Timestamp, n: u32) -> u64 {
    turn();
    limit.try_acquire_or_owe_at(now, n).map_or(0, |_| n.into())
}
