//! Late requests, and requests after a word's whole turn: neither finds more than is there, and a
//! refund is worth no more than what it gives back.

use core::time::Duration;

use portcullis_core::{
    AllOf, Keyed, Limiter, LimiterExt, Line, Rate, Receipt, Seed, SlidingWindow, Timestamp,
    TokenBucket, Word,
};

const fn ms(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

/// A refund that finds the bucket full notes the time: a late request after it does not find what
/// had room only later.
#[test]
fn a_late_request_after_a_refund_finds_no_more_than_the_newest_time_leaves() {
    fn check(limiter: &dyn Limiter, kind: &str) {
        // Full again at 2,500 ms and given back then, so that the last 100 ms are worth one permit.
        for n in 1..=10 {
            let start = 100_000 * u64::from(n);
            let receipt: Receipt = limiter.take_at(ms(start + 1_000), n).unwrap();
            assert_eq!(
                limiter.refund_at(ms(start + 2_500), n, receipt).permits,
                n,
                "{kind}"
            );
            let late = ms(start + 2_400);
            assert_eq!(limiter.available_at(late), 9, "{kind}, {n} given back");
            let first = limiter.drain_at(late).map_or(0, |lease| lease.permits());
            let second = limiter
                .drain_at(ms(start + 2_500))
                .map_or(0, |lease| lease.permits());
            // Both count at the newest time that was written.
            assert_eq!(first + second, 10, "{kind}, {n} given back");
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

/// As above, where a composition takes back what it took.
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

/// Of a window's count, a turn of its stamps is this many segments long.
const TURN: u64 = 1 << 10;
const STALENESS: u64 = 60;

/// A window of so many segments of a second each, whose count leaves ten bits for the segment.
fn window<W: Word>(segments: u32, strict: bool) -> SlidingWindow<5, W> {
    let limit = 1 << (W::BITS - 11);
    let settings = SlidingWindow::builder(limit, Duration::from_secs(segments.into()), segments)
        .staleness(Duration::from_secs(STALENESS));
    let settings = if strict { settings.strict() } else { settings };
    let window = settings.build_on().unwrap();
    assert_eq!(window.horizon(), Duration::from_secs(TURN - 1));
    window
}

/// After any idle time a sliding window has all of its permits, or none until it can tell again; a
/// part of them only where it may take the time for a late one.
#[test]
fn a_sliding_window_that_was_idle_has_all_or_none() {
    fn check<W: Word>(segments: u32, strict: bool) {
        let mut denied = 0;
        let ring = u64::from(segments) + u64::from(strict);
        for idle in (ring..ring + 20).chain(TURN - 2 * STALENESS - 40..TURN + 2 * STALENESS) {
            let window = window::<W>(segments, strict);
            let all = window.limit();
            let at = |second: u64| Timestamp::from_secs(second);
            // In each segment of the ring.
            for second in 0..ring {
                window.take_at(at(second), 7 + second as u32).unwrap();
            }
            let now = ring - 1 + idle;
            let available = window.available_at(at(now));
            let may_be_late = (TURN - STALENESS - 2 * ring - 2..TURN + ring).contains(&idle);
            assert!(
                available == all || may_be_late || available == 0,
                "{available} of {all} after {idle} s, {segments} segments"
            );
            denied += u64::from(available == 0);
            if available < all {
                continue;
            }
            // From then on it counts as a new one.
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for second in now..now + 4 * ring {
                let n = 5 + second % 3;
                window.take_at(at(second), n as u32).unwrap();
                taken.push((second, n));
                for later in second..=second + ring {
                    let counted = taken
                        .iter()
                        .filter(|(at, _)| at + ring > later)
                        .map(|(_, n)| n);
                    assert_eq!(
                        window.available_at(at(later)),
                        all - counted.sum::<u64>(),
                        "at {later} s, idle for {idle} s, {segments} segments"
                    );
                }
            }
        }
        assert!(denied > STALENESS / 2, "the zone was met");
    }
    for segments in 1..=4 {
        for strict in [false, true] {
            check::<u32>(segments, strict);
        }
    }
}
