//! A token bucket that may owe: what it grants, denies and refunds, as exact arithmetic does, and
//! the bound over every span.

#[macro_use]
#[path = "support/words.rs"]
mod words;

#[allow(dead_code, reason = "made for traces, too")]
#[path = "support/draws.rs"]
mod draws;

use core::time::Duration;

use draws::Draws;
use portcullis_core::state::Word;
use portcullis_core::{Denied, Lease, Rate, Retry, Timestamp, TokenBucket};

const SECOND: u64 = 1_000_000_000;

const fn millis(n: u64) -> Timestamp {
    Timestamp::from_millis(n)
}

/// A bucket that gains 10 permits each second and holds 3.
fn bucket<W: Word>(debt: u64) -> TokenBucket<W> {
    let bucket = TokenBucket::builder(Rate::per_second(10), 3).debt(debt);
    bucket.build_on().unwrap()
}

on_both_words!(
    checks:
    a_bucket_that_owes_nothing_grants_more_than_the_burst,
    the_requests_that_follow_wait_until_nothing_is_owed,
    an_empty_bucket_that_owes_nothing_grants,
    a_debt_above_the_declared_one_is_denied,
    a_bucket_without_a_debt_grants_what_is_available,
    a_probe_is_judged_as_a_request_for_one,
    a_stale_timestamp_is_not_granted_what_the_newest_has_not,
    a_refund_of_an_owing_take_ends_the_debt,
    a_denial_changes_nothing,
    an_unlimited_bucket_owes_nothing,
    a_bucket_without_refill_owes_once,
    every_decision_agrees_with_exact_arithmetic,
);

mod checks {
    use super::*;

    pub(super) fn a_bucket_that_owes_nothing_grants_more_than_the_burst<W: Word>() {
        let bucket = bucket::<W>(40);
        let lease = bucket.try_acquire_or_owe_at(millis(0), 43).unwrap();
        assert_eq!(lease.permits(), 43);
        assert_eq!(bucket.available_at(millis(4_000)), 0);
        assert_eq!(bucket.available_at(millis(4_100)), 1);
    }

    pub(super) fn the_requests_that_follow_wait_until_nothing_is_owed<W: Word>() {
        let bucket = bucket::<W>(40);
        assert!(bucket.try_acquire_or_owe_at(millis(0), 23).is_ok());
        let due = millis(2_000);
        for n in [1, 3, 20, 40] {
            let denied = bucket.try_acquire_or_owe_at(millis(0), n).unwrap_err();
            assert_eq!(bucket.retry_owing(denied), Retry::At(due), "{n}");
        }
        // What does not fit the debt must be available in addition.
        let denied = bucket.try_acquire_or_owe_at(millis(0), 42).unwrap_err();
        assert_eq!(bucket.retry_owing(denied), Retry::At(millis(2_200)));
        assert!(bucket.try_acquire_or_owe_at(millis(1_999), 1).is_err());
        assert!(bucket.try_acquire_or_owe_at(due, 40).is_ok());
        assert!(bucket.try_acquire_or_owe_at(due, 1).is_err());
    }

    pub(super) fn an_empty_bucket_that_owes_nothing_grants<W: Word>() {
        let bucket = bucket::<W>(5);
        assert!(bucket.try_acquire_at(millis(0), 3).is_ok());
        assert!(bucket.try_acquire_at(millis(0), 1).is_err());
        assert!(bucket.try_acquire_or_owe_at(millis(0), 5).is_ok());
        assert!(bucket.try_acquire_or_owe_at(millis(0), 1).is_err());
    }

    pub(super) fn a_debt_above_the_declared_one_is_denied<W: Word>() {
        let bucket = bucket::<W>(5);
        assert_eq!(
            bucket.try_acquire_or_owe_at(millis(0), 9).err(),
            Some(Denied::ExceedsCapacity {
                permits: 9,
                capacity: 8
            })
        );
        let huge = bucket.try_acquire_or_owe_at(millis(0), u32::MAX).err();
        let huge = huge.unwrap();
        assert!(matches!(huge, Denied::ExceedsCapacity { capacity: 8, .. }));
        assert_eq!(bucket.retry_owing(huge), Retry::Never);
        assert!(bucket.try_acquire_at(millis(0), 1).is_ok());
        // Two are available, so 8 would leave a debt of 6.
        let denied = bucket.try_acquire_or_owe_at(millis(0), 8).unwrap_err();
        assert!(matches!(denied, Denied::Exhausted { permits: 8, .. }));
        assert_eq!(bucket.retry_owing(denied), Retry::At(millis(100)));
        assert!(bucket.try_acquire_or_owe_at(millis(0), 7).is_ok());
    }

    pub(super) fn a_bucket_without_a_debt_grants_what_is_available<W: Word>() {
        let bucket = bucket::<W>(0);
        assert!(bucket.try_acquire_or_owe_at(millis(0), 2).is_ok());
        let denied = bucket.try_acquire_or_owe_at(millis(0), 2).unwrap_err();
        assert_eq!(bucket.retry_owing(denied), denied.retry(&bucket));
        assert!(bucket.try_acquire_or_owe_at(millis(0), 1).is_ok());
    }

    pub(super) fn a_probe_is_judged_as_a_request_for_one<W: Word>() {
        let bucket = bucket::<W>(1);
        assert_eq!(
            bucket
                .try_acquire_or_owe_at(millis(0), 0)
                .unwrap()
                .permits(),
            0
        );
        assert_eq!(bucket.available_at(millis(0)), 3);
        assert!(bucket.try_acquire_or_owe_at(millis(0), 4).is_ok());
        let denied = bucket.try_acquire_or_owe_at(millis(0), 0).unwrap_err();
        assert_eq!(bucket.retry_owing(denied), Retry::At(millis(100)));
        assert!(bucket.try_acquire_or_owe_at(millis(100), 0).is_ok());
    }

    pub(super) fn a_stale_timestamp_is_not_granted_what_the_newest_has_not<W: Word>() {
        let bucket = bucket::<W>(5);
        assert!(bucket.try_acquire_at(millis(2_000), 3).is_ok());
        // At 1.9 s the bucket would have to owe what the newest take took.
        assert!(bucket.try_acquire_or_owe_at(millis(1_900), 1).is_err());
        assert!(bucket.try_acquire_or_owe_at(millis(2_000), 1).is_ok());
    }

    pub(super) fn a_refund_of_an_owing_take_ends_the_debt<W: Word>() {
        let bucket = bucket::<W>(20);
        let mut lease = bucket.try_acquire_or_owe_at(millis(0), 15).unwrap();
        assert_eq!(lease.refund_at(millis(0), 10), Ok(10));
        assert_eq!(bucket.available_at(millis(300)), 1);
        assert_eq!(lease.refund_at(millis(300), 5), Ok(5));
        assert_eq!(bucket.available_at(millis(300)), 3);
    }

    pub(super) fn a_denial_changes_nothing<W: Word>() {
        let bucket = bucket::<W>(5);
        assert!(bucket.try_acquire_or_owe_at(millis(0), 6).is_ok());
        let before = bucket.state();
        for n in [0, 1, 8, 9] {
            assert!(bucket.try_acquire_or_owe_at(millis(10), n).is_err());
        }
        assert_eq!(bucket.state(), before);
    }

    pub(super) fn an_unlimited_bucket_owes_nothing<W: Word>() {
        let bucket = TokenBucket::builder(Rate::UNLIMITED, 3).debt(1);
        let bucket = bucket.build_on::<W>().unwrap();
        for _ in 0..3 {
            assert!(bucket.try_acquire_or_owe_at(millis(0), u32::MAX).is_ok());
        }
    }

    pub(super) fn a_bucket_without_refill_owes_once<W: Word>() {
        let bucket = TokenBucket::builder(Rate::ZERO, 3).debt(4);
        let bucket = bucket.build_on::<W>().unwrap();
        assert!(bucket.try_acquire_or_owe_at(millis(0), 5).is_ok());
        let denied = bucket.try_acquire_or_owe_at(millis(9), 1).unwrap_err();
        assert_eq!(bucket.retry_owing(denied), Retry::Never);
    }

    pub(super) fn every_decision_agrees_with_exact_arithmetic<W: Word>() {
        let mut tally = Tally::default();
        let traces = if cfg!(debug_assertions) {
            10_000
        } else {
            40_000
        };
        for seed in 0..traces {
            trace::<W>(seed, &mut tally);
        }
        println!("{} bits: {tally:?}", W::BITS);
        let Tally {
            owing,
            refused,
            late,
            refunded,
            beyond,
            retried,
        } = tally;
        for count in [owing, refused, late, refunded, beyond, retried] {
            assert!(count > traces / 10, "{tally:?}");
        }
    }
}

/// How often what happened in the traces.
#[derive(Debug, Default)]
struct Tally {
    /// Takes that left a debt.
    owing: u64,
    refused: u64,
    /// Requests with a stale timestamp.
    late: u64,
    refunded: u64,
    /// Spans that held more than `burst + rate * t`.
    beyond: u64,
    retried: u64,
}

/// A bucket in integers without a bound: the state is the position up to which permits are used.
struct Model {
    gain: i128,
    cost: i128,
    full: i128,
    debt: i128,
    used: i128,
}

impl Model {
    /// The units that are available; negative if units are owed, or if the timestamp is stale.
    fn at(&self, tick: i128) -> i128 {
        (tick * self.gain - self.used).min(self.full)
    }

    fn take(&mut self, tick: i128, n: u32) {
        self.used = self.used.max(tick * self.gain - self.full) + i128::from(n) * self.cost;
    }

    fn fits(&self, tick: i128, n: u32) -> bool {
        let has = self.at(tick);
        has >= 0 && has - i128::from(n) * self.cost >= -self.debt
    }
}

/// A grant, which holds what was not refunded.
struct Grant<'a, W: Word> {
    tick: i128,
    lease: Lease<&'a TokenBucket<W>>,
    /// The state that the grant or its last refund left.
    left: i128,
    owing: bool,
}

fn gcd(a: i128, b: i128) -> i128 {
    if a == 0 { b } else { gcd(b % a, a) }
}

/// Takes of both kinds and refunds at times that go back and forth.
fn trace<W: Word>(seed: u64, tally: &mut Tally) {
    let draws = &mut Draws::Seeded {
        state: seed,
        steps: 40,
    };
    let tick = draws.one_of(&[1_000_000, 7_000_000, 100_000_000]);
    let (permits, burst) = (draws.within(1, 9) as u32, draws.within(1, 12));
    let debt = draws.one_of(&[0, 1, 5, 40]);
    let period = tick * draws.within(1, 30);
    let start = i128::from(draws.magnitude(1 << 36));
    let instant =
        |at: i128| Timestamp::from_nanos(u64::try_from(at).expect("after the origin") * tick);
    let bucket = TokenBucket::builder(Rate::new(permits, Duration::from_nanos(period)), burst)
        .debt(debt)
        .tick(Duration::from_nanos(tick))
        .staleness(Duration::from_secs(1))
        .origin(instant(start))
        .build_on::<W>()
        .expect("fits both words");
    let divisor = gcd(i128::from(permits) * i128::from(tick), period.into());
    let cost = i128::from(period) / divisor;
    let gain = i128::from(permits) * i128::from(tick) / divisor;
    let mut model = Model {
        gain,
        cost,
        full: i128::from(burst) * cost,
        debt: i128::from(debt) * cost,
        used: start * gain - i128::from(burst) * cost,
    };
    let mut grants: Vec<Grant<'_, W>> = Vec::new();
    let (mut newest, mut retry) = (start, None);
    while draws.another_step() {
        let at = match retry.take() {
            // The instant of a retry, and the one before.
            Some(at) => at,
            None if draws.once_in(4) => newest - i128::from(draws.within(0, SECOND / tick)),
            None => {
                let grain = u64::try_from(cost / gain + 1).unwrap();
                let far = draws.one_of(&[0, 1, grain, 3 * grain, 40 * grain]);
                newest + i128::from(draws.within(0, far))
            }
        }
        .max(start);
        tally.late += u64::from(at < newest);
        newest = newest.max(at);
        let (now, has) = (instant(at), model.at(at));
        assert_eq!(i128::from(bucket.available_at(now)), has.max(0) / cost);
        let whole = u32::try_from(has.max(0) / cost).unwrap();
        let most = whole + debt as u32;
        let n = draws.one_of(&[1, whole.max(1), most.max(1), most + 1, burst as u32]);
        match draws.below(8) {
            0..5 => match bucket.try_acquire_or_owe_at(now, n) {
                Ok(lease) => {
                    assert!(model.fits(at, n), "{n} of {has}");
                    let owing = has < i128::from(n) * cost;
                    tally.owing += u64::from(owing);
                    model.take(at, n);
                    let left = model.used;
                    grants.push(Grant {
                        tick: at,
                        lease,
                        left,
                        owing,
                    });
                }
                Err(denied) => {
                    assert!(!model.fits(at, n), "{n} of {has}");
                    tally.refused += 1;
                    let exceeds = u64::from(n) > burst + debt;
                    assert_eq!(matches!(denied, Denied::ExceedsCapacity { .. }), exceeds);
                    let due = bucket.retry_owing(denied);
                    if exceeds {
                        assert_eq!(due, Retry::Never);
                    } else {
                        let Retry::At(due) = due else {
                            panic!("{due:?}");
                        };
                        let due = i128::from(due.as_nanos() / tick);
                        assert!(due > at && model.fits(due, n) && !model.fits(due - 1, n));
                        tally.retried += 1;
                        retry = draws.once_in(2).then_some(due - i128::from(draws.below(2)));
                    }
                }
            },
            5 | 6 => match bucket.try_acquire_at(now, n) {
                Ok(lease) => {
                    assert!(has >= i128::from(n) * cost);
                    model.take(at, n);
                    let left = model.used;
                    grants.push(Grant {
                        tick: at,
                        lease,
                        left,
                        owing: false,
                    });
                }
                Err(_) => assert!(u64::from(n) > burst || has < i128::from(n) * cost),
            },
            _ => {
                let Some(grant) = grants.last_mut() else {
                    continue;
                };
                let n = draws.within(1, grant.lease.permits().max(1).into()) as u32;
                let n = n.min(grant.lease.permits());
                let back = grant.lease.refund_at(now, n).unwrap();
                let is_last = n > 0 && model.used == grant.left;
                assert_eq!(back, if is_last { n } else { 0 });
                if is_last {
                    let refilled = at * gain - model.full;
                    model.used = (model.used - i128::from(n) * cost).max(refilled);
                    grant.left = model.used;
                    tally.refunded += 1;
                }
            }
        }
        tally.beyond += u64::from(bound_holds(&model, &grants));
    }
}

/// Checks each span of time that ends with the last grant, and returns whether one of them held
/// more than `burst + rate * t`. A grant counts at the later of its own time and the newest before
/// it. Grants that were fully refunded do not count.
fn bound_holds<W: Word>(model: &Model, grants: &[Grant<'_, W>]) -> bool {
    let (mut newest, mut largest) = (0, 0);
    let standing = grants.iter().filter(|grant| grant.lease.permits() > 0);
    let counted: Vec<(i128, i128)> = standing
        .map(|grant| {
            newest = grant.tick.max(newest);
            let units = i128::from(grant.lease.permits()) * model.cost;
            if grant.owing {
                largest = units.max(largest);
            }
            (newest, units)
        })
        .collect();
    let (mut sum, mut exceeds) = (0, false);
    for &(at, units) in counted.iter().rev() {
        sum += units;
        let most = model.full + (newest - at) * model.gain;
        assert!(sum <= most + largest.min(model.debt), "{counted:?}");
        exceeds |= sum > most;
    }
    exceeds
}
