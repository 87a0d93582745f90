//! The token bucket: one word, moved on by compare-exchange, every access `Relaxed`.
#![cfg(loom)]

use core::time::Duration;

use loom::sync::Arc;
use portcullis_core::{Rate, Timestamp, TokenBucket, Word};
use portcullis_loom::{at, explore, join, on_both_widths, spawn, take};

on_both_widths!(
    racing_takes_share_the_burst_and_never_pass_it,
    a_small_take_never_fits_beside_one_that_takes_all_but_what_is_left,
    a_refill_between_two_takes_is_given_out_once,
    an_older_now_is_told_no_more_than_the_newest,
    a_bucket_refills_from_the_newest_now_of_two_racers,
    racers_find_a_bucket_full_that_was_idle_for_most_of_the_horizon,
);

/// One permit a second.
fn bucket<W: Word>(burst: u64) -> TokenBucket<W> {
    TokenBucket::builder(Rate::per_second(1), burst)
        .build_on()
        .unwrap()
}

/// Nothing is lost: what was taken has come back in full once the time has passed, and not a permit
/// more.
fn is_full_again<W: Word>(bucket: &TokenBucket<W>, now: Timestamp) {
    assert_eq!(bucket.available_at(now), bucket.burst());
    let burst = u32::try_from(bucket.burst()).unwrap();
    assert_eq!(take(bucket, now, burst), bucket.burst());
    assert_eq!(take(bucket, now, 1), 0);
}

fn racing_takes_share_the_burst_and_never_pass_it<W: Word>() {
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

fn a_small_take_never_fits_beside_one_that_takes_all_but_what_is_left<W: Word>() {
    explore(|| {
        let limit = Arc::new(bucket::<W>(3));
        let a = spawn(&limit, |limit| take(limit, at(5), 2));
        let b = spawn(&limit, |limit| take(limit, at(5), 2));
        let c = take(&*limit, at(5), 1);
        let (a, b) = (join(a), join(b));
        assert_eq!((a + b, c), (2, 1), "one of the two, and always the one");
        is_full_again(&limit, at(8));
    });
}

fn a_refill_between_two_takes_is_given_out_once<W: Word>() {
    explore(|| {
        let limit = Arc::new(bucket::<W>(1));
        assert_eq!(take(&*limit, at(5), 1), 1);
        let a = spawn(&limit, |limit| take(limit, at(6), 1));
        let b = spawn(&limit, |limit| take(limit, at(6), 1));
        assert_eq!(join(a) + join(b), 1);
        is_full_again(&limit, at(7));
    });
}

fn an_older_now_is_told_no_more_than_the_newest<W: Word>() {
    explore(|| {
        let limit = Arc::new(bucket::<W>(1));
        assert_eq!(take(&*limit, at(5), 1), 1);
        // Nothing has come back at 5 s, and what comes back at 6 s has been taken by whoever could
        // tell.
        let newer = spawn(&limit, |limit| take(limit, at(6), 1));
        let older = take(&*limit, at(5), 1) + limit.available_at(at(5));
        assert_eq!((join(newer), older), (1, 0));
        is_full_again(&limit, at(7));
    });
}

fn a_bucket_refills_from_the_newest_now_of_two_racers<W: Word>() {
    explore(|| {
        let limit = Arc::new(bucket::<W>(2));
        assert_eq!(take(&*limit, at(5), 2), 2);
        let a = spawn(&limit, |limit| take(limit, at(6), 1));
        let b = spawn(&limit, |limit| take(limit, at(7), 1));
        let (a, b) = (join(a), join(b));
        assert_eq!(
            b, 1,
            "two have come back by then, and the other takes at most one"
        );
        assert_eq!(limit.available_at(at(7)), 2 - a - b);
        is_full_again(&limit, at(9));
    });
}

fn racers_find_a_bucket_full_that_was_idle_for_most_of_the_horizon<W: Word>() {
    explore(|| {
        let limit = Arc::new(bucket::<W>(1));
        let quarter = u64::try_from(limit.horizon().as_nanos() / 4).unwrap();
        let now = Timestamp::from_nanos(quarter * 3);
        let older = Timestamp::from_nanos(now.as_nanos() - 500_000_000);
        let a = spawn(&limit, move |limit| take(limit, now, 1));
        let b = take(&*limit, older, 1);
        assert_eq!(join(a) + b, 1, "one permit, in half a second");
        is_full_again(&limit, now.saturating_add(Duration::from_secs(1)));
    });
}
