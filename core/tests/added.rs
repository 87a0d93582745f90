//! Permits that are added to a bucket, and resets, beside takes, stale timestamps and refunds of
//! grants from before and after them. In every span, what was granted and not refunded is at most
//! `burst + rate * t` and what was added in it.

#[macro_use]
#[path = "support/words.rs"]
mod words;

#[allow(dead_code, reason = "made for traces, too")]
#[path = "support/draws.rs"]
mod draws;

use core::time::Duration;

use draws::Draws;
use portcullis_core::state::{ChangeError, Word};
use portcullis_core::{AdjustableBucket, Lease, Rate, Retry, Timestamp};

const fn secs(n: u64) -> Timestamp {
    Timestamp::from_secs(n)
}

/// A bucket that gains 1 permit each second and holds 10. It may owe 10.
fn bucket<W: Word>() -> AdjustableBucket<W> {
    AdjustableBucket::builder(Rate::per_second(1), 10)
        .debt(10)
        .tick(Duration::from_secs(1))
        .staleness(Duration::from_secs(10))
        .build_on()
        .unwrap()
}

on_both_words!(
    checks:
    added_permits_are_available_at_once_up_to_the_burst,
    added_permits_pay_off_a_debt_first,
    a_reset_leaves_what_it_says_and_no_debt,
    nothing_is_added_to_a_full_bucket,
    a_stale_addition_adds_at_the_newest_time,
    a_refund_from_before_an_addition_returns_nothing,
    a_refund_from_before_a_reset_returns_nothing,
    a_refund_of_a_grant_after_an_addition_returns_all,
    a_refund_after_the_refill_of_an_addition_was_lost_returns_nothing,
    a_cancelled_reservation_from_before_a_reset_returns_nothing,
    an_unlimited_bucket_stays_unlimited,
    a_bucket_without_refill_is_refilled_by_hand,
    additions_at_one_instant_are_limited_by_the_word_and_work_again_later,
    no_span_holds_more_than_the_bound_and_what_was_added_in_it,
);

mod checks {
    use super::*;

    fn emptied<W: Word>(now: Timestamp) -> AdjustableBucket<W> {
        let bucket = bucket::<W>();
        assert!(bucket.try_acquire_at(now, 10).is_ok());
        bucket
    }

    pub(super) fn added_permits_are_available_at_once_up_to_the_burst<W: Word>() {
        let bucket = emptied::<W>(secs(60));
        assert_eq!(bucket.add_at(secs(60), 4), Ok(()));
        assert_eq!(bucket.available_at(secs(60)), 4);
        assert_eq!(bucket.add_at(secs(61), u64::MAX), Ok(()));
        assert_eq!(bucket.available_at(secs(61)), 10);
        assert_eq!(bucket.available_at(secs(99)), 10);
    }

    pub(super) fn added_permits_pay_off_a_debt_first<W: Word>() {
        let bucket = emptied::<W>(secs(60));
        assert_eq!(bucket.force_at(secs(60), 6), Ok(()));
        assert_eq!(bucket.add_at(secs(60), 4), Ok(()));
        let denied = bucket.try_acquire_at(secs(60), 1).unwrap_err();
        assert_eq!(denied.retry(&bucket), Retry::At(secs(63)));
        assert_eq!(bucket.add_at(secs(60), 5), Ok(()));
        assert_eq!(bucket.available_at(secs(60)), 3);
    }

    pub(super) fn a_reset_leaves_what_it_says_and_no_debt<W: Word>() {
        let bucket = emptied::<W>(secs(60));
        assert_eq!(bucket.force_at(secs(60), 6), Ok(()));
        for (n, left) in [(3, 3), (0, 0), (11, 10)] {
            assert_eq!(bucket.reset_at(secs(60), n), Ok(()));
            assert_eq!(bucket.available_at(secs(60)), left);
        }
        assert_eq!(bucket.reset_at(secs(70), 0), Ok(()));
        assert_eq!(bucket.available_at(secs(70)), 0);
        assert_eq!(bucket.available_at(secs(71)), 1);
    }

    pub(super) fn nothing_is_added_to_a_full_bucket<W: Word>() {
        let bucket = emptied::<W>(secs(60));
        let before = format!("{bucket:?}");
        assert_eq!(bucket.add_at(secs(70), 5), Ok(()));
        assert_eq!(bucket.reset_at(secs(70), 10), Ok(()));
        assert_eq!(bucket.add_at(secs(61), 0), Ok(()));
        assert_eq!(format!("{bucket:?}"), before);
    }

    pub(super) fn a_stale_addition_adds_at_the_newest_time<W: Word>() {
        let bucket = emptied::<W>(secs(60));
        assert_eq!(bucket.add_at(secs(55), 10), Ok(()));
        // At 60 s the bucket is full, so at 55 s it has 5 permits.
        assert_eq!(bucket.available_at(secs(60)), 10);
        assert_eq!(bucket.available_at(secs(55)), 5);
        assert_eq!(bucket.reset_at(secs(55), 7), Ok(()));
        assert_eq!(bucket.available_at(secs(60)), 7);
    }

    pub(super) fn a_refund_from_before_an_addition_returns_nothing<W: Word>() {
        let bucket = bucket::<W>();
        let mut lease = bucket.try_acquire_at(secs(60), 8).unwrap();
        assert_eq!(bucket.add_at(secs(60), 8), Ok(()));
        // The state is again as the first take left it.
        assert!(bucket.try_acquire_at(secs(60), 8).is_ok());
        assert_eq!(lease.refund_at(secs(60), 8), Ok(0));
        assert_eq!(bucket.available_at(secs(60)), 2);
    }

    pub(super) fn a_refund_from_before_a_reset_returns_nothing<W: Word>() {
        for n in [0, 2, 5, 9] {
            let bucket = bucket::<W>();
            let mut lease = bucket.try_acquire_at(secs(60), 8).unwrap();
            assert_eq!(bucket.reset_at(secs(60), n), Ok(()));
            assert_eq!(lease.refund_at(secs(60), 8), Ok(0));
            assert_eq!(bucket.available_at(secs(60)), n);
        }
    }

    pub(super) fn a_refund_of_a_grant_after_an_addition_returns_all<W: Word>() {
        let bucket = emptied::<W>(secs(60));
        assert_eq!(bucket.add_at(secs(60), 5), Ok(()));
        let mut lease = bucket.try_acquire_at(secs(60), 5).unwrap();
        assert_eq!(lease.refund_at(secs(60), 5), Ok(5));
        assert_eq!(bucket.available_at(secs(60)), 5);
    }

    /// In a token bucket without eras, the last refund would add 5 permits at 65 s. Had the first
    /// take never been made, the addition would have been worth nothing.
    pub(super) fn a_refund_after_the_refill_of_an_addition_was_lost_returns_nothing<W: Word>() {
        let bucket = bucket::<W>();
        let mut lease = bucket.try_acquire_at(secs(60), 10).unwrap();
        assert_eq!(bucket.add_at(secs(60), 10), Ok(()));
        assert!(bucket.try_acquire_at(secs(65), 5).is_ok());
        assert_eq!(lease.refund_at(secs(65), 10), Ok(0));
        assert_eq!(bucket.available_at(secs(65)), 5);
    }

    pub(super) fn a_cancelled_reservation_from_before_a_reset_returns_nothing<W: Word>() {
        let bucket = emptied::<W>(secs(60));
        let reserved = bucket.reserve_at(secs(60), 5, Duration::MAX).unwrap();
        assert_eq!(bucket.reset_at(secs(60), 0), Ok(()));
        assert_eq!(reserved.due(), secs(65));
        assert_eq!(reserved.cancel_at(secs(60)), 0);
        assert_eq!(bucket.available_at(secs(60)), 0);
        assert_eq!(bucket.available_at(secs(61)), 1);
    }

    pub(super) fn an_unlimited_bucket_stays_unlimited<W: Word>() {
        let bucket = AdjustableBucket::builder(Rate::UNLIMITED, 5);
        let bucket = bucket.build_on::<W>().unwrap();
        assert_eq!(bucket.reset_at(secs(9), 0), Ok(()));
        assert_eq!(bucket.add_at(secs(9), 1), Ok(()));
        assert_eq!(bucket.available_at(secs(9)), u64::MAX);
    }

    pub(super) fn a_bucket_without_refill_is_refilled_by_hand<W: Word>() {
        let bucket = AdjustableBucket::builder(Rate::ZERO, 5).initial(0);
        let bucket = bucket.build_on::<W>().unwrap();
        for second in 1..9 {
            assert_eq!(bucket.add_at(secs(second), 2), Ok(()));
            assert!(bucket.try_acquire_at(secs(second), 2).is_ok());
            assert!(bucket.try_acquire_at(secs(second), 1).is_err());
        }
    }

    pub(super) fn additions_at_one_instant_are_limited_by_the_word_and_work_again_later<W: Word>() {
        let bucket = bucket::<W>();
        let mut lease = bucket.try_acquire_at(secs(60), 10).unwrap();
        let most = if W::BITS == 64 { 15 } else { 3 };
        for n in 0..most {
            assert_eq!(bucket.reset_at(secs(60), n % 9), Ok(()));
        }
        let before = bucket.available_at(secs(60));
        for _ in 0..3 {
            assert_eq!(bucket.reset_at(secs(60), 0), Err(ChangeError::Busy));
            assert_eq!(bucket.add_at(secs(59), 1), Err(ChangeError::Busy));
        }
        // Changes of the settings use up the numbers that are left.
        for _ in 0..most * 70 {
            let changed = bucket.adjust_at(
                secs(60),
                Rate::per_second(1),
                10,
                portcullis_core::state::Carry::Keep,
            );
            assert_eq!(changed, Ok(()));
            assert_eq!(bucket.reset_at(secs(60), 0), Err(ChangeError::Busy));
        }
        assert_eq!(bucket.available_at(secs(60)), before);
        assert_eq!(bucket.reset_at(secs(61), 0), Ok(()));
        assert_eq!(lease.refund_at(secs(61), 10), Ok(0));
        assert_eq!(bucket.available_at(secs(61)), 0);
    }

    pub(super) fn no_span_holds_more_than_the_bound_and_what_was_added_in_it<W: Word>() {
        let mut tally = Tally::default();
        let traces = if cfg!(debug_assertions) {
            10_000
        } else {
            60_000
        };
        for seed in 0..traces {
            trace::<W>(seed, &mut tally);
        }
        println!("{} bits: {tally:?}", W::BITS);
        let Tally {
            added,
            late,
            refunded,
            worthless,
            beyond,
        } = tally;
        for count in [added, late, refunded, worthless, beyond] {
            assert!(count > traces / 10, "{tally:?}");
        }
    }
}

#[derive(Debug, Default)]
struct Tally {
    /// Additions and resets that added something.
    added: u64,
    /// Operations with a stale timestamp.
    late: u64,
    refunded: u64,
    /// Refunds of grants from before an addition or reset.
    worthless: u64,
    /// Spans that held more than `burst + rate * t`.
    beyond: u64,
}

/// A grant, or units that were added.
struct Event<'a, W: Word> {
    /// The time of the call.
    at: i128,
    lease: Option<Lease<&'a AdjustableBucket<W>>>,
    /// The permits of the lease that were not refunded.
    kept: u32,
    added: i128,
    /// Whether it is a reset, and the units that it left.
    left: Option<i128>,
}

/// Takes, refunds, additions and resets at times that go back and forth. A permit has `cost` units
/// and a tick brings one.
fn trace<W: Word>(seed: u64, tally: &mut Tally) {
    let draws = &mut Draws::Seeded {
        state: seed,
        steps: 40,
    };
    let tick = 1_000_000;
    let (burst, cost) = (draws.within(1, 12), draws.within(1, 5));
    let start = i128::from(draws.magnitude(1 << 36));
    let instant = |at: i128| Timestamp::from_nanos(u64::try_from(at).unwrap() * tick);
    let rate = Rate::new(1, Duration::from_nanos(tick * cost));
    let bucket = AdjustableBucket::builder(rate, burst)
        .tick(Duration::from_nanos(tick))
        .staleness(Duration::from_secs(1))
        .origin(instant(start))
        .build_on::<W>()
        .unwrap();
    let cost = i128::from(cost);
    let full = i128::from(burst) * cost;
    // The position up to which units are used, in integers without a bound.
    let mut used = start - full;
    let mut events: Vec<Event<'_, W>> = Vec::new();
    let mut newest = start;
    while draws.another_step() {
        let far = draws.one_of(&[0, 0, 1, 3, 60]);
        let at = if draws.once_in(4) {
            (newest - i128::from(draws.within(0, 20))).max(start)
        } else {
            newest + i128::from(draws.within(0, far))
        };
        let (now, law) = (instant(at), newest.max(at));
        tally.late += u64::from(at < newest);
        let has = (law - used).min(full);
        assert_eq!(i128::from(bucket.available_at(instant(law))), has / cost);
        let n = draws.within(1, burst) as u32;
        match draws.below(8) {
            0..4 => {
                let Ok(lease) = bucket.try_acquire_at(now, n) else {
                    assert!(law > at || has < i128::from(n) * cost);
                    continue;
                };
                // The newest grant may have been refunded in full. Then it left no trace of its
                // time.
                used = used.max(at - full) + i128::from(n) * cost;
                newest = law;
                events.push(Event {
                    at,
                    lease: Some(lease),
                    kept: n,
                    added: 0,
                    left: None,
                });
            }
            kind @ (4 | 5) => {
                let n = draws.within(0, burst + 1);
                let units = i128::from(n) * cost;
                let (done, then) = if kind == 4 {
                    (bucket.add_at(now, n), has + units)
                } else {
                    (bucket.reset_at(now, n), units)
                };
                let then = then.min(full);
                if done == Err(ChangeError::Busy) {
                    continue;
                }
                if (kind == 4 && n == 0) || (has, then) == (full, full) {
                    continue;
                }
                (used, newest) = (law - then, law);
                tally.added += u64::from(then > has);
                events.push(Event {
                    at,
                    lease: None,
                    kept: 0,
                    added: (then - has).max(0),
                    left: (kind == 5).then_some(then),
                });
            }
            _ if !events.is_empty() => {
                let which = draws.below(events.len() as u64) as usize;
                let is_void = events[which..].iter().any(|event| event.lease.is_none());
                let Some(lease) = &mut events[which].lease else {
                    continue;
                };
                let n = lease.permits();
                // A refund ahead of all grants would hide what earlier times find.
                let back = lease.refund_at(instant(at.min(newest)), n).unwrap();
                if is_void {
                    assert_eq!(back, 0, "from before an addition");
                    tally.worthless += 1;
                }
                tally.refunded += u64::from(back > 0);
                if back > 0 {
                    used = (used - i128::from(back) * cost).max(at.min(newest) - full);
                }
                events[which].kept -= back;
            }
            _ => {}
        }
        tally.beyond += u64::from(bound_holds(full, cost, &events));
    }
}

/// Checks each span of time that ends with the last event, and what was granted since the last
/// reset. Returns whether a span held more than `burst + rate * t`.
///
/// An event counts at the later of its own time and the newest before it. A grant that was refunded
/// in full does not count, and neither does its time.
fn bound_holds<W: Word>(full: i128, cost: i128, events: &[Event<'_, W>]) -> bool {
    let mut newest = 0;
    let counted: Vec<(i128, &Event<'_, W>)> = events
        .iter()
        .filter(|event| event.lease.is_none() || event.kept > 0)
        .map(|event| {
            newest = event.at.max(newest);
            (newest, event)
        })
        .collect();
    let (mut granted, mut added, mut exceeds) = (0, 0, false);
    let mut was_reset = false;
    for (at, event) in counted.into_iter().rev() {
        let passed = newest - at;
        if let Some(left) = event.left
            && added == 0
            && !was_reset
        {
            assert!(granted <= left + passed, "since the reset");
            was_reset = true;
        }
        granted += i128::from(event.kept) * cost;
        added += event.added;
        assert!(granted <= full + passed + added, "in a span of {passed}");
        exceeds |= granted > full + passed;
    }
    exceeds
}
