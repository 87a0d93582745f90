//! Stale timestamps, and requests after a whole wrap of the word. Neither finds more than is
//! available, and a refund is worth no more than what it returns.

use portcullis_core::keyed::{Line, Seed};
use portcullis_core::limiter::Receipt;
use portcullis_core::{AllOf, Keyed, Limiter, LimiterExt, Rate, Timestamp, TokenBucket};

const fn ms(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

/// A refund that finds the bucket full records its time: a stale timestamp after it does not find
/// what had room only later.
#[test]
fn a_late_request_after_a_refund_finds_no_more_than_the_newest_time_leaves() {
    fn check(limiter: &dyn Limiter, kind: &str) {
        // Full again at 2,500 ms and refunded then, so that the last 100 ms are worth one permit.
        for n in 1..=10 {
            let start = 100_000 * u64::from(n);
            let receipt: Receipt = limiter.take_at(ms(start + 1_000), n).unwrap();
            assert_eq!(
                limiter.refund_at(ms(start + 2_500), n, receipt).permits,
                n,
                "{kind}"
            );
            let late = ms(start + 2_400);
            assert_eq!(limiter.available_at(late), 9, "{kind}, {n} refunded");
            let first = limiter.drain_at(late).map_or(0, |lease| lease.permits());
            let second = limiter
                .drain_at(ms(start + 2_500))
                .map_or(0, |lease| lease.permits());
            // Both count at the newest time that was written.
            assert_eq!(first + second, 10, "{kind}, {n} refunded");
        }
    }
    let bucket = || TokenBucket::builder(Rate::per_second(10), 10);
    check(&bucket().build().unwrap(), "64 bits");
    check(&bucket().build_on::<u32>().unwrap(), "32 bits");
    let seed = Seed::new();
    seed.set([3, 4]).unwrap();
    let table = Keyed::new(bucket().rules().unwrap(), vec![Line::new()], seed);
    check(&*table.key("alice"), "by key");
}

/// The same, for a composition that rolls back what it took.
#[test]
fn a_late_request_after_a_rollback_finds_no_more_than_the_newest_time_leaves() {
    let bucket = TokenBucket::new(Rate::per_second(10), 10);
    let other = TokenBucket::new(Rate::per_second(10), 3);
    let composed = AllOf::new((&other,));
    let all = AllOf::new((&bucket, &composed, &other));
    assert_eq!(all.try_acquire_at(ms(9_000), 2).unwrap_err().index, 2);
    assert_eq!(
        (
            bucket.available_at(ms(9_000)),
            other.available_at(ms(9_000))
        ),
        (10, 3)
    );
    assert_eq!(bucket.available_at(ms(8_900)), 9);
}
