//! Refunds of unused permits. A refund is worth at most what was taken, is exact while no later
//! take builds on it, and never lets a bound be exceeded. A bound counts permits that were taken
//! and not refunded, at the time of their take.

#[allow(dead_code, reason = "made for traces, too")]
#[path = "support/draws.rs"]
mod draws;

use core::cell::Cell;
use core::fmt::Debug;
use core::panic::AssertUnwindSafe;
use core::time::Duration;
use std::panic::catch_unwind;

use draws::Draws;
use portcullis_core::leases::TooFewHeld;
use portcullis_core::limiter::{Answer, Ask, Back, Read, Reading, Receipt, Returned};
use portcullis_core::state::Word;
use portcullis_core::{
    Concurrency, Counted, Denied, FixedWindow, Lease, Limiter, LimiterExt, Rate, Retry,
    SlidingWindow, Timestamp, TokenBucket, Unlimited,
};

const SECOND: Duration = Duration::from_secs(1);

const fn at(seconds: u64) -> Timestamp {
    Timestamp::from_secs(seconds)
}

/// Ten at once and one per second.
fn bucket<W: Word>() -> TokenBucket<W> {
    TokenBucket::builder(Rate::per_second(1), 10)
        .build_on()
        .unwrap()
}

/// Ten in each second.
fn fixed<W: Word>() -> FixedWindow<W> {
    FixedWindow::builder(10, SECOND).build_on().unwrap()
}

/// Ten in each second that a request starts.
fn started<W: Word>() -> FixedWindow<W> {
    FixedWindow::builder(10, SECOND)
        .started_by_first_request()
        .build_on()
        .unwrap()
}

/// Ten in any two segments of a second.
fn sliding<W: Word>() -> SlidingWindow<3, W> {
    SlidingWindow::builder(10, 2 * SECOND, 2)
        .build_on()
        .unwrap()
}

/// Ten in any two seconds.
fn strict<W: Word>() -> SlidingWindow<3, W> {
    SlidingWindow::builder(10, 2 * SECOND, 2)
        .strict()
        .build_on()
        .unwrap()
}

/// Runs `$check` on a limiter of each kind whose permits return by time, on both words.
macro_rules! on_each {
    ($check:ident) => {
        $check(bucket::<u64>());
        $check(bucket::<u32>());
        $check(fixed::<u64>());
        $check(fixed::<u32>());
        $check(started::<u64>());
        $check(started::<u32>());
        $check(sliding::<u64>());
        $check(sliding::<u32>());
        $check(strict::<u64>());
        $check(strict::<u32>());
    };
}

// What a refund returns, and what it does not.

#[test]
fn all_that_was_taken_is_refunded_at_once_and_not_one_more() {
    fn check<L: Limiter + Debug>(limit: L) {
        let mut lease = limit.try_acquire_at(at(5), 10).unwrap();
        assert_eq!(lease.refund_at(at(5), 10), Ok(10));
        assert_eq!(
            (lease.permits(), limit.available_at(at(5))),
            (0, 10),
            "{limit:?}"
        );
        assert!(limit.try_acquire_at(at(5), 11).is_err());
        assert!(limit.try_acquire_at(at(5), 10).is_ok());
        assert!(limit.try_acquire_at(at(5), 1).is_err(), "{limit:?}");
    }
    on_each!(check);
}

/// Takes 10 of 10, waits until they are replenished, refunds them too, and tries to take 20.
#[test]
fn permits_replenished_by_time_are_not_refunded_again() {
    fn check<L: Limiter + Debug>(limit: L) {
        let mut lease = limit.try_acquire_at(at(5), 10).unwrap();
        lease.refund_at(at(15), 10).unwrap();
        assert_eq!(limit.available_at(at(15)), 10);
        assert!(limit.try_acquire_at(at(15), 20).is_err());
        assert!(limit.try_acquire_at(at(15), 10).is_ok());
        assert!(
            limit.try_acquire_at(at(15), 10).is_err(),
            "10 more: {limit:?}"
        );
        assert!(limit.try_acquire_at(at(15), 1).is_err(), "{limit:?}");
    }
    on_each!(check);
}

/// Takes 10 of 10, waits until they are replenished, takes them again, and only then refunds the
/// first ones.
#[test]
fn permits_taken_again_stay_taken_when_the_old_grant_is_refunded() {
    fn check<L: Limiter + Debug>(limit: L) {
        let mut old = limit.try_acquire_at(at(5), 10).unwrap();
        let _new = limit.try_acquire_at(at(15), 10).unwrap();
        assert_eq!(old.refund_at(at(15), 10), Ok(0));
        assert_eq!(limit.available_at(at(15)), 0, "{limit:?}");
        assert!(limit.try_acquire_at(at(15), 1).is_err());
    }
    on_each!(check);
}

/// Takes 1 at 0 and 10 at 100, refunds the first, and tries to take more.
#[test]
fn an_old_permit_is_worth_nothing_in_a_full_limit() {
    fn check<L: Limiter + Debug>(limit: L) {
        let mut first = limit.try_acquire_at(at(0), 1).unwrap();
        let mut all = limit.try_acquire_at(at(100), 10).unwrap();
        assert_eq!(first.refund_at(at(100), 1), Ok(0));
        for n in [11, 1, 10, 0] {
            assert!(limit.try_acquire_at(at(100), n).is_err(), "{n}: {limit:?}");
        }
        // And it does not prevent a refund of the newest.
        assert_eq!(all.refund_at(at(100), 10), Ok(10));
        assert_eq!(limit.available_at(at(100)), 10);
    }
    on_each!(check);
}

#[test]
fn an_undo_leaves_the_limit_as_it_was_before_the_take() {
    fn check<L: Limiter + Debug>(limit: L) {
        let later = |limit: &L| -> Vec<u64> {
            (0..60)
                .map(|step| limit.available_at(Timestamp::from_millis(6_000 + 250 * step)))
                .collect()
        };
        limit.take_at(at(5), 2).unwrap();
        limit.take_at(at(6), 3).unwrap();
        let (before, state) = (later(&limit), format!("{limit:?}"));
        // At once, in parts, and after some time.
        for parts in [&[5][..], &[2, 3], &[1, 1, 1, 1, 1], &[5, 0]] {
            for then in [6, 7, 8] {
                let mut lease = limit.try_acquire_at(at(6), 5).unwrap();
                for &part in parts {
                    assert_eq!(lease.refund_at(at(then), part), Ok(part));
                }
                assert_eq!(
                    (later(&limit), format!("{limit:?}")),
                    (before.clone(), state.clone())
                );
            }
        }
    }
    on_each!(check);
}

#[test]
fn takes_are_undone_in_reverse() {
    fn check<L: Limiter + Debug>(limit: L) {
        limit.take_at(at(5), 1).unwrap();
        let state = format!("{limit:?}");
        let mut leases: Vec<_> = (1..=3)
            .map(|n| limit.try_acquire_at(at(5), n).unwrap())
            .collect();
        assert_eq!(limit.available_at(at(5)), 3);
        while let Some(mut lease) = leases.pop() {
            let n = lease.permits();
            assert_eq!(lease.refund_at(at(5), n), Ok(n));
        }
        assert_eq!(format!("{limit:?}"), state);
    }
    on_each!(check);
}

#[test]
fn tokens_that_others_took_after_come_back_by_time() {
    fn check<W: Word>() {
        let limit = bucket::<W>();
        let mut lease = limit.try_acquire_at(at(5), 4).unwrap();
        limit.take_at(at(5), 3).unwrap();
        assert_eq!(lease.refund_at(at(5), 4), Ok(0));
        assert_eq!((lease.permits(), limit.available_at(at(5))), (0, 3));
        assert_eq!(
            (limit.available_at(at(8)), limit.available_at(at(12))),
            (6, 10)
        );
    }
    check::<u64>();
    check::<u32>();
}

#[test]
fn permits_of_a_window_are_refunded_whatever_others_took_since() {
    fn check<L: Limiter + Debug>(limit: L) {
        let mut lease = limit.try_acquire_at(at(5), 4).unwrap();
        limit.take_at(at(5), 6).unwrap();
        assert_eq!(limit.available_at(at(5)), 0);
        assert_eq!(lease.refund_at(at(5), 3), Ok(3));
        assert_eq!((lease.permits(), limit.available_at(at(5))), (1, 3));
        assert!(limit.try_acquire_at(at(5), 4).is_err());
        assert!(limit.try_acquire_at(at(5), 3).is_ok());
        assert_eq!(lease.refund_at(at(5), 1), Ok(1));
        assert_eq!(limit.available_at(at(5)), 1);
    }
    check(fixed::<u64>());
    check(fixed::<u32>());
    check(started::<u64>());
    check(started::<u32>());
    check(sliding::<u64>());
    check(sliding::<u32>());
    check(strict::<u64>());
    check(strict::<u32>());
}

#[test]
fn an_older_window_accepts_no_refund() {
    fn check<W: Word>(limit: &FixedWindow<W>) {
        let mut lease = limit.try_acquire_at(at(5), 4).unwrap();
        limit.take_at(at(6), 7).unwrap();
        assert_eq!(lease.refund_at(at(6), 2), Ok(0));
        assert_eq!(
            lease.refund_at(at(5), 2),
            Ok(0),
            "nor with a stale timestamp"
        );
        assert_eq!(limit.available_at(at(6)), 3);
    }
    check(&fixed::<u64>());
    check(&fixed::<u32>());
    check(&started::<u64>());
    check(&started::<u32>());
}

#[test]
fn a_segment_accepts_refunds_until_it_leaves_the_window() {
    fn check<W: Word>(limit: &SlidingWindow<3, W>, length: u64) {
        let mut lease = limit.try_acquire_at(at(5), 6).unwrap();
        limit.take_at(at(5 + length - 1), 4).unwrap();
        assert_eq!(limit.available_at(at(5 + length - 1)), 0);
        assert_eq!(
            lease.refund_at(at(5 + length - 1), 2),
            Ok(2),
            "in an old segment, but in the window"
        );
        assert_eq!(limit.available_at(at(5 + length - 1)), 2);
        assert_eq!(
            limit.available_at(at(5 + length)),
            6,
            "refunded permits do not leave once more"
        );
        limit.take_at(at(5 + length), 1).unwrap();
        assert_eq!(
            lease.refund_at(at(5 + length), 2),
            Ok(0),
            "its slot is another segment's"
        );
        assert_eq!(limit.available_at(at(5 + length)), 5);
        assert_eq!(limit.available_at(at(50)), 10);
    }
    check(&sliding::<u64>(), 2);
    check(&sliding::<u32>(), 2);
    check(&strict::<u64>(), 3);
    check(&strict::<u32>(), 3);
}

#[test]
fn a_late_take_is_refunded_to_the_segment_and_window_in_which_it_counts() {
    fn check<L: Limiter + Debug>(limit: L) {
        limit.take_at(at(6), 1).unwrap();
        // Counts at 6 s.
        let mut late = limit.try_acquire_at(at(5), 4).unwrap();
        assert_eq!(
            (limit.available_at(at(6)), late.refund_at(at(5), 4)),
            (5, Ok(4))
        );
        assert_eq!(limit.available_at(at(6)), 9, "{limit:?}");
        assert!(limit.try_acquire_at(at(6), 10).is_err());
    }
    check(fixed::<u64>());
    check(fixed::<u32>());
    check(sliding::<u64>());
    check(sliding::<u32>());
}

/// A window whose only permits are refunded is gone: the next request starts a new one, also within
/// the same tick.
#[test]
fn a_window_whose_start_was_refunded_is_started_by_the_next_request() {
    fn check<W: Word>(tick: Option<Duration>) {
        let new = || {
            let settings = FixedWindow::builder(10, SECOND).started_by_first_request();
            let settings = if let Some(tick) = tick {
                settings.tick(tick)
            } else {
                settings
            };
            settings.build_on::<W>().unwrap()
        };
        let micros = Timestamp::from_micros;
        for (first, next) in [
            (400, 400),
            (400, 500),
            (400, 1_000),
            (0, 0),
            (0, 1),
            (0, 300_000),
            (700, 999_999),
        ] {
            let (first, next) = (micros(5_000_000 + first), micros(5_000_000 + next));
            let (limit, twin) = (new(), new());
            for window in [&limit, &twin] {
                window.take_at(at(2), 7).unwrap();
            }
            let mut leases = [
                limit.try_acquire_at(first, 2).unwrap(),
                limit.try_acquire_at(first, 3).unwrap(),
            ];
            assert_eq!(
                (leases[0].refund_at(first, 2), leases[1].refund_at(next, 3)),
                (Ok(2), Ok(3))
            );
            assert_eq!(limit.available_at(next), 10);
            for window in [&limit, &twin] {
                window.take_at(next, 10).unwrap();
            }
            let retries =
                [&limit, &twin].map(|window| window.retry(window.take_at(next, 1).unwrap_err()));
            let [Retry::At(end), Retry::At(expected)] = retries else {
                panic!("a window ends")
            };
            // If the start is rounded up, the window may end as the one that was not started would
            // have: a tick earlier.
            let early = end.saturating_add(limit.timing().tick) == expected
                && limit.timing().tick > Duration::from_nanos(1);
            assert!(
                end == expected || early,
                "first at {first} and then at {next}, {tick:?}"
            );
        }
    }
    for tick in [None, Some(Duration::from_millis(1)), Some(SECOND)] {
        check::<u64>(tick);
        check::<u32>(tick);
    }
}

/// Each window is followed by requests that it would contain. They must not find room that no
/// window counts.
#[test]
fn windows_started_and_undone_repeatedly_exceed_no_bound() {
    fn check<W: Word>(tick: Duration, step: u64, late: u64) {
        let settings = FixedWindow::builder(10, SECOND).started_by_first_request();
        let limit = settings.tick(tick).build_on::<W>().unwrap();
        let mut taken = 0;
        for turn in 0..8 {
            let now = Timestamp::from_micros(5_000_400 + turn * step);
            let _ = limit
                .try_acquire_at(now, 1)
                .map(|mut lease| lease.refund_at(now, 1));
            let then = Timestamp::from_micros(5_000_500 + turn * step - late);
            taken += limit.try_acquire_at(then, 10).map_or(0, Lease::forget);
        }
        assert!(taken <= 20, "{taken} of 20 in {} us: {limit:?}", 8 * step);
        assert!(
            taken >= 10 || late > 0,
            "a timestamp that is not stale finds it idle"
        );
    }
    for tick in [
        Duration::from_micros(1),
        Duration::from_micros(100),
        Duration::from_millis(1),
    ] {
        for step in [100, 1_000, 10_000, 120_000] {
            for late in [0, 50, 100, 101, 500, 1_000, 50_000, 900_000] {
                check::<u64>(tick, step, late);
                check::<u32>(tick, step, late);
            }
        }
    }
}

// Leases.

#[test]
fn more_than_a_lease_holds_is_not_refunded() {
    fn check<L: Limiter + Debug>(limit: L) {
        let mut lease = limit.try_acquire_at(at(5), 4).unwrap();
        let state = format!("{limit:?}");
        assert_eq!(lease.refund_at(at(5), 5), Err(TooFewHeld { held: 4 }));
        assert_eq!(
            lease.refund_at(at(5), u32::MAX),
            Err(TooFewHeld { held: 4 })
        );
        assert_eq!((lease.permits(), format!("{limit:?}")), (4, state));
        assert_eq!(lease.refund_at(at(5), 3), Ok(3));
        assert_eq!(lease.refund_at(at(5), 2), Err(TooFewHeld { held: 1 }));
        lease.release(1).unwrap();
        assert_eq!(lease.refund_at(at(5), 1), Err(TooFewHeld { held: 0 }));
        assert_eq!(
            (lease.refund_at(at(5), 0), limit.available_at(at(5))),
            (Ok(0), 9)
        );
    }
    on_each!(check);
}

#[test]
fn permits_that_a_lease_released_cannot_be_refunded() {
    fn check<L: Limiter + Debug>(limit: L) {
        let mut lease = limit.try_acquire_at(at(5), 6).unwrap();
        lease.release(4).unwrap();
        assert_eq!(lease.refund_at(at(5), 2), Ok(2));
        assert_eq!(limit.available_at(at(5)), 6, "four return by time");
        drop(lease);
        assert_eq!(limit.available_at(at(5)), 6);
    }
    on_each!(check);
}

#[test]
fn a_probe_has_nothing_to_refund() {
    fn check<L: Limiter + Debug>(limit: L) {
        limit.take_at(at(5), 1).unwrap();
        let state = format!("{limit:?}");
        let mut probe = limit.try_acquire_at(at(5), 0).unwrap();
        assert_eq!(probe.refund_at(at(5), 0), Ok(0));
        assert_eq!(probe.refund_at(at(5), 1), Err(TooFewHeld { held: 0 }));
        assert_eq!(format!("{limit:?}"), state);
    }
    on_each!(check);
}

#[test]
fn the_parts_of_a_split_lease_refund_what_they_report() {
    fn check<L: Limiter + Debug>(limit: L) {
        let mut lease = limit.try_acquire_at(at(5), 9).unwrap();
        let mut part = lease.split(4).unwrap();
        let mut back = u64::from(part.refund_at(at(5), 3).unwrap());
        assert_eq!(limit.available_at(at(5)), 1 + back);
        back += u64::from(lease.refund_at(at(5), 5).unwrap());
        assert_eq!(
            (part.permits(), lease.permits(), limit.available_at(at(5))),
            (1, 0, 1 + back)
        );
        back += u64::from(part.refund_at(at(5), 1).unwrap());
        assert_eq!(limit.available_at(at(5)), 1 + back);
        assert!(limit.try_acquire_at(at(5), 2 + back as u32).is_err());
    }
    on_each!(check);
}

/// One part of a split lease keeps the receipt of the grant: the part that is left, unless nothing
/// is left.
#[test]
fn one_part_of_a_split_lease_can_be_refunded_whatever_happens_to_the_other() {
    fn check<L: Limiter + Debug>(new: impl Fn() -> L) {
        for part_first in [true, false] {
            let limit = new();
            let mut lease = limit.try_acquire_at(at(5), 9).unwrap();
            let mut part = lease.split(4).unwrap();
            let (of_part, of_lease) = if part_first {
                (part.refund_at(at(5), 4), lease.refund_at(at(5), 5))
            } else {
                let of_lease = lease.refund_at(at(5), 5);
                (part.refund_at(at(5), 4), of_lease)
            };
            assert_eq!((of_part, of_lease), (Ok(0), Ok(5)), "{limit:?}");
            assert_eq!(
                (limit.available_at(at(5)), limit.available_at(at(50))),
                (6, 10)
            );

            let limit = new();
            let mut lease = limit.try_acquire_at(at(5), 9).unwrap();
            let mut all = lease.split(9).unwrap();
            assert_eq!(
                (lease.refund_at(at(5), 0), all.refund_at(at(5), 9)),
                (Ok(0), Ok(9)),
                "{limit:?}"
            );
            assert_eq!(limit.available_at(at(5)), 10);
        }
    }
    check(bucket::<u64>);
    check(bucket::<u32>);
    check(fixed::<u64>);
    check(fixed::<u32>);
    check(started::<u64>);
    check(started::<u32>);
    check(sliding::<u64>);
    check(sliding::<u32>);
    check(strict::<u64>);
    check(strict::<u32>);
}

/// By chance, a part's refund may leave the same word as a later take. The other part must not undo
/// that take.
#[test]
fn no_part_of_a_split_lease_undoes_a_later_take_that_leaves_the_same_word() {
    fn check<W: Word>() {
        for (kept, given) in [(false, true), (true, false), (true, true)] {
            let limit = bucket::<W>();
            let mut lease = limit.try_acquire_at(at(100), 5).unwrap();
            let mut part = lease.split(3).unwrap();
            // Takes as many permits as come in within two seconds.
            if given {
                part.refund_at(at(100), 3).unwrap();
            }
            if kept {
                lease.refund_at(at(100), 2).unwrap();
            }
            let left = limit.available_at(at(102));
            let _new = limit.try_acquire_at(at(102), 3).unwrap();
            let (held, of_part) = (lease.permits(), part.permits());
            lease.refund_at(at(102), held).unwrap();
            part.refund_at(at(102), of_part).unwrap();
            assert_eq!(limit.available_at(at(102)), left - 3, "{limit:?}");
        }
    }
    check::<u64>();
    check::<u32>();
}

#[test]
fn a_lease_split_and_merged_again_refunds_what_was_not_split_off() {
    fn check<L: Limiter + Debug>(limit: L) {
        let mut lease = limit.try_acquire_at(at(5), 9).unwrap();
        let part = lease.split(4).unwrap();
        lease.merge(part).unwrap();
        assert_eq!(lease.refund_at(at(5), 9), Ok(5));
        assert_eq!(limit.available_at(at(5)), 6, "{limit:?}");
    }
    on_each!(check);
}

#[test]
fn permits_merged_from_another_grant_come_back_by_time() {
    fn check<W: Word>() {
        let limit = bucket::<W>();
        let older = limit.try_acquire_at(at(5), 2).unwrap();
        let mut lease = limit.try_acquire_at(at(5), 4).unwrap();
        lease.merge(older).unwrap();
        assert_eq!(lease.permits(), 6);
        assert_eq!(
            lease.refund_at(at(5), 6),
            Ok(4),
            "its own, because there was no later take"
        );
        assert_eq!(
            (limit.available_at(at(5)), limit.available_at(at(7))),
            (8, 10)
        );

        // Two grants in one window have receipts of the same window.
        let limit = fixed::<W>();
        let mut lease = limit.try_acquire_at(at(5), 2).unwrap();
        lease
            .merge(limit.try_acquire_at(at(5), 4).unwrap())
            .unwrap();
        assert_eq!(
            (lease.refund_at(at(5), 6), limit.available_at(at(5))),
            (Ok(6), 10)
        );

        // Grants of two windows do not.
        let mut lease = limit.try_acquire_at(at(6), 2).unwrap();
        let newer = limit.try_acquire_at(at(7), 4).unwrap();
        lease.merge(newer).unwrap();
        assert_eq!(
            (lease.refund_at(at(7), 6), limit.available_at(at(7))),
            (Ok(0), 6)
        );
    }
    check::<u64>();
    check::<u32>();
}

/// A lease took 4, after another one took 2. The 4 are refunded at once, however the two leases are
/// mixed.
#[test]
fn merged_permits_are_not_refunded_by_the_receipt_of_another_grant() {
    fn mixed<W: Word>(limit: &TokenBucket<W>) -> Lease<&TokenBucket<W>> {
        let older = limit.try_acquire_at(at(5), 2).unwrap();
        let mut lease = limit.try_acquire_at(at(5), 4).unwrap();
        lease.merge(older).unwrap();
        lease
    }
    fn check<W: Word>() {
        let limit = bucket::<W>();
        let mut lease = mixed(&limit);
        assert_eq!(
            (lease.refund_at(at(5), 3), lease.refund_at(at(5), 3)),
            (Ok(3), Ok(1))
        );

        let limit = bucket::<W>();
        let mut lease = mixed(&limit);
        let mut part = lease.split(4).unwrap();
        assert_eq!(
            (lease.refund_at(at(5), 2), part.refund_at(at(5), 4)),
            (Ok(2), Ok(0))
        );

        let limit = bucket::<W>();
        let older = limit.try_acquire_at(at(5), 2).unwrap();
        let mut lease = limit.try_acquire_at(at(5), 4).unwrap();
        lease.release(4).unwrap();
        lease.merge(older).unwrap();
        assert_eq!(
            lease.refund_at(at(5), 2),
            Ok(0),
            "its own are already released"
        );
        assert_eq!(limit.available_at(at(5)), 4);
    }
    check::<u64>();
    check::<u32>();
}

// Limiters that use no time.

#[test]
fn a_refunded_concurrency_permit_is_released() {
    fn check<W: Word>() {
        let limit = Concurrency::builder(10).build_on::<W>().unwrap();
        let mut lease = limit.try_acquire(7).unwrap();
        assert_eq!((lease.refund_at(at(5), 3), limit.in_use()), (Ok(3), 4));
        lease.release(1).unwrap();
        assert_eq!(lease.refund_at(at(5), 4), Err(TooFewHeld { held: 3 }));
        assert_eq!((lease.refund_at(at(5), 1), limit.in_use()), (Ok(1), 2));
        drop(lease);
        assert_eq!(limit.in_use(), 0);
    }
    check::<u64>();
    check::<u32>();
}

/// Whatever happens to the leases, the permits in use are those that they hold.
#[test]
fn permits_are_conserved_by_refunds_releases_splits_and_merges() {
    fn check<W: Word>(seed: u64) {
        let mut draws = Draws::Seeded {
            state: seed,
            steps: 300,
        };
        let limit = Concurrency::builder(20).build_on::<W>().unwrap();
        let counted = Counted::new(&limit);
        // Each lease, and how many of its permits have a receipt.
        let mut leases: Vec<(Lease<&Counted<&Concurrency<W>>>, u32)> = Vec::new();
        while draws.another_step() {
            let pick = draws.below(leases.len().max(1) as u64) as usize;
            let held = leases.get(pick).map_or(0, |(lease, _)| lease.permits());
            let n = draws.within(0, held.into()) as u32;
            match draws.below(6) {
                0 | 1 => {
                    let lease = counted.try_acquire_at(at(0), draws.below(8) as u32);
                    leases.extend(lease.map(|lease| {
                        let n = lease.permits();
                        (lease, n)
                    }));
                }
                2 if !leases.is_empty() => {
                    let (lease, noted) = &mut leases[pick];
                    assert_eq!(lease.refund_at(at(0), n), Ok(n.min(*noted)));
                    *noted -= n.min(*noted);
                }
                3 if !leases.is_empty() => {
                    let (lease, noted) = &mut leases[pick];
                    lease.release(n).unwrap();
                    *noted = lease.permits().min(*noted);
                }
                4 if !leases.is_empty() => {
                    let (lease, noted) = &mut leases[pick];
                    let part = lease.split(n).unwrap();
                    let noted_in_part = if n == held { *noted } else { 0 };
                    *noted = lease.permits().min(*noted);
                    leases.push((part, noted_in_part));
                }
                5 if leases.len() > 1 => {
                    let (lease, noted) = leases.swap_remove(pick);
                    leases[0].0.merge(lease).unwrap();
                    leases[0].1 += noted;
                }
                _ => {}
            }
            let held: u64 = leases
                .iter()
                .map(|(lease, _)| u64::from(lease.permits()))
                .sum();
            assert_eq!(
                (u64::from(limit.in_use()), counted.counts().held),
                (held, held)
            );
        }
        drop(leases);
        assert_eq!((limit.in_use(), counted.counts().held), (0, 0));
    }
    for seed in 0..200 {
        check::<u64>(seed);
        check::<u32>(seed);
    }
}

#[test]
fn an_unlimited_limiter_accepts_every_refund() {
    let mut lease = Unlimited.try_acquire_at(at(5), u32::MAX).unwrap();
    assert_eq!(lease.refund_at(at(5), u32::MAX), Ok(u32::MAX));
    let unlimited = TokenBucket::new(Rate::UNLIMITED, 1);
    let mut lease = unlimited.try_acquire_at(at(5), 7).unwrap();
    assert_eq!(lease.refund_at(at(5), 7), Ok(7));
}

#[test]
fn a_limiter_without_refunds_releases_and_promises_nothing() {
    struct Plain(Concurrency);
    impl Limiter for Plain {
        fn decide(&self, ask: Ask<'_>) -> Answer {
            self.0.decide(ask)
        }
        fn give_back(&self, back: Back<'_>) -> Returned {
            match back {
                Back::Refund {
                    permits, receipt, ..
                } => {
                    self.release(permits);
                    receipt.refunded(0).into()
                }
                back => self.0.give_back(back),
            }
        }
        fn read(&self, read: Read<'_>) -> Reading {
            self.0.read(read)
        }
        fn retry(&self, denied: Denied) -> Retry {
            self.0.retry(denied)
        }
    }
    let limit = Plain(Concurrency::new(5));
    let mut lease = limit.try_acquire_at(at(0), 4).unwrap();
    assert_eq!((lease.refund_at(at(0), 3), limit.0.in_use()), (Ok(0), 1));
    drop(lease);
    assert_eq!(limit.0.in_use(), 0);
}

/// A lease that was merged from two grants, of a limiter that panics in a refund.
#[test]
fn a_panic_in_a_refund_keeps_none_of_the_merged_permits() {
    struct Odd {
        limit: Concurrency,
        takes: Cell<u64>,
    }
    impl Limiter for Odd {
        fn decide(&self, ask: Ask<'_>) -> Answer {
            let (now, n) = (ask.now(), ask.permits());
            if ask.is_look() {
                return ask.looked(self.available_at(now), || u64::MAX);
            }
            self.take(now, n).into()
        }
        fn give_back(&self, back: Back<'_>) -> Returned {
            match back {
                Back::Release { permits: n } => {
                    self.limit.release(n);
                    Returned::NOTHING
                }
                Back::Refund { permits: n, .. } => {
                    self.limit.release(n);
                    panic!("scripted");
                }
                _ => Returned::NOTHING,
            }
        }
        fn read(&self, read: Read<'_>) -> Reading {
            self.limit.read(read)
        }
        fn retry(&self, denied: Denied) -> Retry {
            self.limit.retry(denied)
        }
    }

    impl Odd {
        fn take(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
            self.limit.take_at(now, n)?;
            self.takes.set(self.takes.get() + 1);
            Ok(Receipt::new(self.takes.get()))
        }
    }
    for n in 0..=5 {
        let odd = Odd {
            limit: Concurrency::new(5),
            takes: Cell::new(0),
        };
        let mut lease = odd.try_acquire_at(at(5), 2).unwrap();
        lease.merge(odd.try_acquire_at(at(5), 3).unwrap()).unwrap();
        assert_eq!(
            catch_unwind(AssertUnwindSafe(|| lease.refund_at(at(5), n))).is_err(),
            n > 0
        );
        assert_eq!((lease.permits(), odd.limit.in_use()), (5 - n, 5 - n));
        drop(lease);
        assert_eq!(odd.limit.in_use(), 0);
    }
}

// Real threads.

#[test]
fn racing_refunds_return_exactly_what_they_report() {
    fn check<L: Limiter + Debug + Sync>(limit: L) {
        let rounds = if cfg!(debug_assertions) { 100 } else { 500 };
        for round in 1..=rounds {
            let now = at(100 * round);
            assert_eq!(limit.available_at(now), 10, "full, whatever came before");
            let net = |seed: u64| {
                let mut draws = Draws::Seeded {
                    state: seed,
                    steps: 0,
                };
                let mut leases = Vec::new();
                let mut net = 0;
                for _ in 0..100 {
                    let n = draws.within(1, 4) as u32;
                    leases.extend(
                        limit
                            .try_acquire_at(now, n)
                            .inspect(|_| net += u64::from(n)),
                    );
                    if !leases.is_empty() && draws.once_in(2) {
                        let mut lease: Lease<&L> =
                            leases.swap_remove(draws.below(leases.len() as u64) as usize);
                        let n = lease.permits();
                        net -= u64::from(lease.refund_at(now, n).unwrap());
                    }
                }
                net
            };
            let net: u64 = std::thread::scope(|scope| {
                let net = &net;
                let threads: Vec<_> = (0..3)
                    .map(|thread| scope.spawn(move || net(3 * round + thread)))
                    .collect();
                threads
                    .into_iter()
                    .map(|thread| thread.join().unwrap())
                    .sum()
            });
            assert!(net <= 10, "{net} of 10: {limit:?}");
            assert_eq!(limit.available_at(now), 10 - net, "{limit:?}");
        }
    }
    on_each!(check);
}

// Bounds, by brute force.

/// Permits that were granted and not refunded, at the later of the request's `now` and the newest
/// one before it.
#[derive(Clone, Copy, Debug)]
struct Admission {
    at: u64,
    /// The same, but with the newest `now` before it of a grant that was not fully refunded: an
    /// exact undo leaves no trace, also of its `now`.
    standing: u64,
    net: u64,
}

/// The bound of a limiter for a list of admissions, the last of which is the newest; and what a
/// refund must return.
trait Promise {
    fn holds(&self, admissions: &[Admission]) -> bool;
    /// How many of `n` permits of the grant at `at` are refunded, if the newest was at `newest`;
    /// `None` if that does not depend on time.
    fn refund(&self, at: u64, newest: u64, n: u32) -> Option<u32>;
}

/// At most `burst + permits * (ticks / period)` in any span of `ticks` ticks.
struct BucketPromise {
    burst: u64,
    permits: u64,
    period: u64,
    tick: u64,
}

impl Promise for BucketPromise {
    fn holds(&self, admissions: &[Admission]) -> bool {
        let rounded = |at: u64| u128::from(at / self.tick * self.tick);
        let mut standing: Vec<&Admission> = admissions
            .iter()
            .filter(|admission| admission.net > 0)
            .collect();
        standing.sort_by_key(|admission| admission.standing);
        let newest = standing.last().map_or(0, |last| rounded(last.standing));
        let mut net = 0;
        standing.iter().rev().all(|admission| {
            net += u128::from(admission.net);
            let refill = (newest - rounded(admission.standing)) * u128::from(self.permits);
            net * u128::from(self.period)
                <= u128::from(self.burst) * u128::from(self.period) + refill
        })
    }
    fn refund(&self, _: u64, _: u64, _: u32) -> Option<u32> {
        None
    }
}

/// At most `limit` in any `together` consecutive segments; a window has `segments` of them.
struct SegmentPromise {
    limit: u64,
    window: u64,
    segments: u64,
    together: u64,
    /// In any span of the window's length, wherever it starts.
    in_any_span: bool,
}

impl SegmentPromise {
    fn segment(&self, at: u64) -> u64 {
        (u128::from(at) * u128::from(self.segments) / u128::from(self.window)) as u64
    }
}

impl Promise for SegmentPromise {
    fn holds(&self, admissions: &[Admission]) -> bool {
        let newest = admissions.last().map_or(0, |last| last.at);
        let in_window = |admission: &&Admission| {
            self.segment(newest) - self.segment(admission.at) < self.together
                || self.in_any_span && newest - admission.at <= self.window
        };
        admissions
            .iter()
            .filter(in_window)
            .map(|admission| admission.net)
            .sum::<u64>()
            <= self.limit
    }
    fn refund(&self, at: u64, newest: u64, n: u32) -> Option<u32> {
        Some(if self.segment(newest) - self.segment(at) < self.together {
            n
        } else {
            0
        })
    }
}

/// At most twice `limit` in any span that is shorter than `window`.
struct StartedPromise {
    limit: u64,
    window: u64,
}

impl Promise for StartedPromise {
    fn holds(&self, admissions: &[Admission]) -> bool {
        let newest = admissions.last().map_or(0, |last| last.at);
        let in_window = |admission: &&Admission| newest - admission.at < self.window;
        admissions
            .iter()
            .filter(in_window)
            .map(|admission| admission.net)
            .sum::<u64>()
            <= 2 * self.limit
    }
    fn refund(&self, _: u64, _: u64, _: u32) -> Option<u32> {
        None
    }
}

/// Counts of what happened in the traces.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    granted: u64,
    denied: u64,
    late: u64,
    /// Refunds that returned permits.
    refunded: u64,
    /// Refunds that returned nothing.
    worthless: u64,
}

/// Takes, refunds in part, and advances time, at random. After each grant, checks the bound on
/// every span that ends with it.
fn trace<L, P>(limit: &L, promise: &P, draws: &mut Draws<'_>, tally: &mut Tally)
where
    L: Limiter + Debug,
    P: Promise,
{
    let capacity = limit.capacity();
    let splits = draws.once_in(2);
    let (mut newest, mut now) = (0, draws.below(1_000_000_000));
    let mut admissions: Vec<Admission> = Vec::new();
    // The index of the admission, how many permits have a receipt, and the lease.
    let mut leases: Vec<(usize, u32, Lease<&L>)> = Vec::new();
    while draws.another_step() {
        let n = draws.within(1, capacity) as u32;
        let n = draws.one_of(&[
            n,
            1,
            2,
            capacity as u32,
            limit.available_at(Timestamp::from_nanos(now)) as u32,
        ]);
        match limit.try_acquire_at(Timestamp::from_nanos(now), n.max(1)) {
            Ok(lease) => {
                tally.granted += 1;
                tally.late += u64::from(now < newest);
                newest = newest.max(now);
                let standing = admissions
                    .iter()
                    .filter(|before| before.net > 0)
                    .map(|before| before.standing);
                let standing = standing.max().map_or(now, |before| before.max(now));
                admissions.push(Admission {
                    at: newest,
                    standing,
                    net: lease.permits().into(),
                });
                assert!(promise.holds(&admissions), "{admissions:?}\n{limit:?}");
                leases.push((admissions.len() - 1, lease.permits(), lease));
            }
            Err(denied) => {
                tally.denied += 1;
                if let Retry::At(at) = limit.retry(denied) {
                    let early = Timestamp::from_nanos(at.as_nanos() - 1);
                    assert!(
                        limit.peek_at(at, n.max(1)).is_ok()
                            && limit.peek_at(early, n.max(1)).is_err()
                    );
                }
            }
        }
        if draws.once_in(2) && !leases.is_empty() {
            // One of the latest, more often than not.
            let back = draws.magnitude(leases.len() as u64 - 1) as usize;
            let pick = leases.len() - 1 - back;
            let (admission, noted, lease) = &mut leases[pick];
            if splits && draws.once_in(3) && lease.permits() > 1 {
                let part = lease
                    .split(draws.within(1, u64::from(lease.permits()) - 1) as u32)
                    .unwrap();
                *noted = lease.permits().min(*noted);
                let of = *admission;
                leases.push((of, 0, part));
            } else {
                let n = draws.one_of(&[
                    lease.permits(),
                    lease.permits(),
                    lease.permits().div_ceil(2),
                ]);
                let at = admissions[*admission].at;
                let worth = n.min(*noted);
                *noted -= worth;
                let expected = promise.refund(at, newest, worth);
                // A refund to a bucket, later than all takes, settles the bucket at its time.
                let seen = Timestamp::from_nanos(if expected.is_some() {
                    newest
                } else {
                    newest.max(now)
                });
                let before = limit.available_at(seen);
                let refunded = lease.refund_at(Timestamp::from_nanos(now), n).unwrap();
                let after = limit.available_at(seen);
                assert!(refunded == worth || refunded == 0, "all or none of {worth}");
                assert_eq!(
                    after,
                    capacity.min(before + u64::from(refunded)),
                    "{n} of {before}: {limit:?}"
                );
                if let Some(expected) = expected {
                    assert_eq!(
                        refunded, expected,
                        "taken at {at}, and the newest at {newest}: {limit:?}"
                    );
                }
                if *admission == admissions.len() - 1 {
                    assert_eq!(refunded, worth, "no later take: {limit:?}");
                }
                admissions[*admission].net -= u64::from(refunded);
                tally.refunded += u64::from(refunded > 0);
                tally.worthless += u64::from(refunded == 0);
                if lease.permits() == 0 {
                    drop(leases.remove(pick));
                }
            }
        }
        now = match draws.below(8) {
            0..=3 => newest.max(now),
            4..=6 => newest + draws.magnitude(3_000_000_000),
            // Stale, by less than the staleness of all of them.
            _ => newest.saturating_sub(draws.magnitude(900_000_000)),
        };
    }
    let later = Timestamp::from_nanos(newest + 400_000_000_000);
    assert_eq!(limit.available_at(later), capacity, "permits are lost");
}

fn check<W: Word>(seed: u64, tally: &mut [Tally; 5]) {
    let mut draws = Draws::Seeded {
        state: seed,
        steps: 80,
    };
    let draws = &mut draws;
    let limit = draws.within(1, 20);
    let nanos = draws.one_of(&[100_000_000, 700_000_000, 1_000_000_000, 1_300_000_007]);
    let window = Duration::from_nanos(nanos);
    match seed % 5 {
        0 => {
            let permits = draws.within(1, 10);
            let builder = TokenBucket::builder(Rate::new(permits as u32, window), limit);
            let builder = if draws.once_in(4) {
                builder.stepwise()
            } else {
                builder
            };
            // Not every rate fits 32 bits.
            let Ok(bucket) = builder.build_on::<W>() else {
                return;
            };
            let tick = bucket.timing().tick.as_nanos() as u64;
            let promise = BucketPromise {
                burst: limit,
                permits,
                period: nanos,
                tick,
            };
            trace(&bucket, &promise, draws, &mut tally[0]);
        }
        1 => {
            let fixed = FixedWindow::builder(limit, window).build_on::<W>().unwrap();
            let promise = SegmentPromise {
                limit,
                window: nanos,
                segments: 1,
                together: 1,
                in_any_span: false,
            };
            trace(&fixed, &promise, draws, &mut tally[1]);
        }
        2 => {
            let fixed = FixedWindow::builder(limit, window).started_by_first_request();
            let tick = Duration::from_nanos(nanos / draws.one_of(&[1, 3, 10, 1_000]));
            let fixed = if draws.once_in(2) {
                fixed.tick(tick)
            } else {
                fixed
            };
            let fixed = fixed.build_on::<W>().unwrap();
            trace(
                &fixed,
                &StartedPromise {
                    limit,
                    window: nanos,
                },
                draws,
                &mut tally[2],
            );
        }
        kind => {
            let strict = kind == 4;
            let segments = draws.within(1, 5);
            let builder = SlidingWindow::<6>::builder(limit, window, segments as u32);
            let builder = if strict { builder.strict() } else { builder };
            let sliding = builder.build_on::<W>().unwrap();
            let together = segments + u64::from(strict);
            let promise = SegmentPromise {
                limit,
                window: nanos,
                segments,
                together,
                in_any_span: strict,
            };
            trace(&sliding, &promise, draws, &mut tally[kind as usize]);
        }
    }
}

#[test]
fn no_refund_lets_a_bound_be_exceeded() {
    let mut tallies = [Tally::default(); 5];
    let seeds = if cfg!(debug_assertions) {
        5_000
    } else {
        40_000
    };
    for seed in 0..seeds {
        check::<u64>(seed, &mut tallies);
        check::<u32>(seed, &mut tallies);
    }
    for tally in tallies {
        println!("{tally:?}");
        let Tally {
            granted,
            denied,
            late,
            refunded,
            worthless,
        } = tally;
        assert!(
            [granted, denied, late, refunded, worthless]
                .iter()
                .all(|&count| count > 500),
            "{tally:?}"
        );
    }
}
