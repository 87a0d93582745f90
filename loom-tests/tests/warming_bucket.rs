//! The bucket that warms up: one word with two fields, advanced by compare-exchange, every access
//! `Relaxed`.
#![cfg(portcullis_loom)]

use core::time::Duration;

use loom::sync::Arc;
use portcullis_core::state::Word;
use portcullis_core::{Limiter, Rate, Timestamp, WarmingBucket};
use portcullis_loom::{at, explore, join, on_both_widths, spawn, take};

on_both_widths!(
    racing_takes_share_the_burst_and_each_adds_its_own_price,
    a_stale_timestamp_finds_no_more_and_cools_nothing,
    a_bucket_cools_up_to_the_newest_of_two_racing_timestamps,
    a_refund_during_a_take_loses_no_permit_and_gains_none,
);

/// A bucket of 2 permits with a rate of 1 permit per second. From a cold one, the first permit
/// needs 2.5 s, the second 1.5 s, and each further one 1 s.
fn bucket<W: Word>() -> WarmingBucket<W> {
    WarmingBucket::builder(Rate::per_second(1), 2, Duration::from_secs(4))
        .tick(Duration::from_millis(100))
        .build_on()
        .unwrap()
}

const fn tenths(n: u64) -> Timestamp {
    Timestamp::from_millis(100 * n)
}

fn racing_takes_share_the_burst_and_each_adds_its_own_price<W: Word>() {
    explore(|| {
        let limit = Arc::new(bucket::<W>());
        let a = spawn(&limit, |limit| take(limit, at(5), 1));
        let b = spawn(&limit, |limit| take(limit, at(5), 1));
        let c = take(&*limit, at(5), 1);
        assert_eq!(join(a) + join(b) + c, 2);
        let available = [74, 75, 89, 90].map(|n| limit.available_at(tenths(n)));
        assert_eq!(available, [0, 1, 1, 2]);
    });
}

fn a_stale_timestamp_finds_no_more_and_cools_nothing<W: Word>() {
    explore(|| {
        let limit = Arc::new(bucket::<W>());
        assert_eq!(take(&*limit, at(5), 2), 2);
        // The first permit returns at 7.5 s, the second at 9 s.
        let newer = spawn(&limit, |limit| take(limit, at(9), 1));
        let older = take(&*limit, at(7), 1) + limit.available_at(at(7));
        assert_eq!((join(newer), older), (1, 0));
        assert_eq!(limit.interval_at(at(9)), Duration::from_secs(1));
        let available = [99, 100].map(|n| limit.available_at(tenths(n)));
        assert_eq!(available, [1, 2]);
    });
}

fn a_bucket_cools_up_to_the_newest_of_two_racing_timestamps<W: Word>() {
    explore(|| {
        let limit = Arc::new(bucket::<W>());
        assert_eq!(take(&*limit, at(5), 2), 2);
        // Cold again from 13 s on.
        let a = spawn(&limit, |limit| take(limit, at(20), 1));
        let b = spawn(&limit, |limit| take(limit, at(21), 1));
        let (a, b) = (join(a), join(b));
        assert_eq!(b, 1, "the other thread takes at most one of two");
        assert_eq!(limit.available_at(at(21)), 2 - a - b);
        // 2.5 s after 21 s, or 4 s after 20 s.
        let full = if a == 1 { 240 } else { 235 };
        let available = [full - 1, full].map(|n| limit.available_at(tenths(n)));
        assert_eq!(available, [1, 2]);
    });
}

fn a_refund_during_a_take_loses_no_permit_and_gains_none<W: Word>() {
    explore(|| {
        let limit = Arc::new(bucket::<W>());
        let a = spawn(&limit, |limit| {
            let receipt = limit.take_at(at(5), 1).unwrap();
            1 - u64::from(limit.refund_at(at(5), 1, receipt).permits)
        });
        let b = take(&*limit, at(5), 1);
        let (a, b) = (join(a), b);
        assert_eq!(b, 1);
        assert_eq!(limit.available_at(at(5)), 2 - a - b);
        // What is not refunded returns: the price of one permit from a cold bucket, or of two.
        let full = if a == 0 { 75 } else { 90 };
        let available = [full - 1, full].map(|n| limit.available_at(tenths(n)));
        assert_eq!(available, [1, 2]);
    });
}
