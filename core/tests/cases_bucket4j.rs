//! The behaviour of one limit in bucket4j's specifications, except debt and the return of tokens;
//! and what a change of settings leaves.
//!
//! Each module is one of its specifications. Its "greedy" refill is our continuous one, its
//! "intervally" one our stepwise one. `docs/coming-from/bucket4j.md` lists the intended
//! differences.

use core::time::Duration;

use portcullis_core::builder::TokenBucketBuilder;
use portcullis_core::state::Carry;
use portcullis_core::{AdjustableBucket, Denied, Rate, Retry, Timestamp, TokenBucket};

/// The largest number in bucket4j.
const MAX: u64 = i64::MAX as u64;

const fn nanos(n: u64) -> Timestamp {
    Timestamp::from_nanos(n)
}

const fn secs(n: u64) -> Timestamp {
    Timestamp::from_secs(n)
}

fn settings(capacity: u64, refill: u32, period: Duration) -> TokenBucketBuilder {
    TokenBucket::builder(Rate::new(refill, period), capacity)
}

/// A greedy bucket, with times in nanoseconds.
fn greedy(capacity: u64, refill: u32, period: u64, initial: u64) -> TokenBucket {
    settings(capacity, refill, Duration::from_nanos(period))
        .initial(initial)
        .build()
        .unwrap()
}

/// The instant at which a request for `n` at `now` would be granted.
fn retry(bucket: &TokenBucket, now: Timestamp, n: u32) -> Retry {
    Denied::Exhausted { now, permits: n }.retry(bucket)
}

mod available_tokens {
    use super::*;

    /// The simple table.
    #[test]
    fn available_at_the_start() {
        for initial in [10, 0, 5, 2] {
            assert_eq!(
                greedy(10, 10, 100, initial).available_at(Timestamp::ZERO),
                initial
            );
        }
        assert_eq!(
            greedy(10, 1, 1_000_000_000, 10).available_at(Timestamp::ZERO),
            10
        );
    }

    /// What a greedy bucket has after some nanoseconds.
    #[test]
    fn available_later() {
        for (initial, now, available) in [
            (1, 49, 50),
            (0, 50, 50),
            (70, 50, 100),
            (0, 0, 0),
            (0, 120, 100),
        ] {
            let bucket = greedy(100, 100, 100, initial);
            assert_eq!(
                bucket.available_at(nanos(now)),
                available,
                "{initial} and {now} ns"
            );
        }
    }

    /// Refill with a carry, from a bucket that starts at 10,000 ns. Fractions of a token are kept,
    /// and an older time adds none.
    #[test]
    fn refill_and_carry() {
        let at = |capacity, refill, initial| {
            settings(capacity, refill, Duration::from_micros(1))
                .initial(initial)
                .origin(nanos(10_000))
                .build()
                .unwrap()
        };
        assert_eq!(at(1_000, 1_000, 0).available_at(nanos(10_040)), 40);
        assert_eq!(at(1_000, 1_000, 50).available_at(nanos(10_001)), 51);
        assert!(at(1_000, 1_000, 55).available_at(nanos(9_999)) <= 55);
        assert_eq!(at(1_000, 1_000, 200).available_at(nanos(20_000)), 1_000);

        let tenth = at(100, 100, 0);
        assert_eq!(tenth.available_at(nanos(10_003)), 0);
        assert_eq!(
            retry(&tenth, nanos(10_003), 1),
            Retry::At(nanos(10_010)),
            "0.3 are available"
        );
        let most = at(100, 100, 90);
        assert_eq!(most.available_at(nanos(10_017)), 91);
        assert_eq!(
            retry(&most, nanos(10_017), 92),
            Retry::At(nanos(10_020)),
            "91.7 are available"
        );
        assert_eq!(at(100, 100, 0).available_at(nanos(28_888)), 100);
    }

    /// A full bucket keeps no fraction of a token beyond its capacity.
    #[test]
    fn carry_is_cleared_when_filled() {
        let bucket = greedy(10, 10, 100, 0);
        let takes = |now, n| bucket.try_acquire_at(nanos(now), n).is_ok();
        assert!(takes(97, 9));
        assert!(!takes(97, 1), "0.7 are left");
        assert!(takes(1_007, 10));
        assert!(
            !takes(1_010, 1),
            "0.3 have come in since the bucket was full"
        );
        assert!(!takes(1_016, 1));
        assert!(takes(1_017, 1));
    }
}

mod delays {
    use super::*;

    /// Estimated waits of a greedy bucket, in nanoseconds; `None` for never.
    #[test]
    fn estimate_ability_to_consume() {
        let cases = [
            (49, 100, Some(0)),
            (1, 1, Some(0)),
            (80, 70, Some(10)),
            (10, 0, Some(10)),
            (120, 10, None),
        ];
        for (n, initial, wait) in cases {
            let bucket = greedy(100, 100, 100, initial);
            let expected = wait.map_or(Retry::Never, |wait| Retry::At(nanos(wait)));
            match bucket.try_acquire_at(Timestamp::ZERO, n) {
                Ok(_) => assert_eq!(wait, Some(0), "{n} of {initial}"),
                Err(denied) => assert_eq!(denied.retry(&bucket), expected, "{n} of {initial}"),
            }
        }
    }

    /// The delay table. A request for more than the capacity is never granted; the time is for a
    /// request that waits behind others.
    #[test]
    fn delay_table() {
        assert_eq!(
            retry(&greedy(10, 10, 100, 0), Timestamp::ZERO, 10),
            Retry::At(nanos(100))
        );
        assert_eq!(
            retry(&greedy(10, 2, 100, 0), Timestamp::ZERO, 10),
            Retry::At(nanos(500))
        );
        assert_eq!(
            retry(&greedy(10, 10, 100, 4), Timestamp::ZERO, 7),
            Retry::At(nanos(30))
        );
        assert_eq!(
            retry(&greedy(10, 10, 100, 4), Timestamp::ZERO, 11),
            Retry::At(nanos(70))
        );
        // The two limits of a pair, each alone.
        assert_eq!(
            retry(&greedy(10, 10, 100, 1), Timestamp::ZERO, 3),
            Retry::At(nanos(20))
        );
        assert_eq!(
            retry(&greedy(10, 5, 10, 2), Timestamp::ZERO, 3),
            Retry::At(nanos(2))
        );
    }
}

mod intervally {
    use super::*;

    #[test]
    fn nothing_is_replenished_before_the_end_of_the_interval() {
        let bucket = settings(9, 9, Duration::from_nanos(10))
            .stepwise()
            .initial(0)
            .build()
            .unwrap();
        for (now, available) in [(0, 0), (4, 0), (9, 0), (10, 9), (11, 9)] {
            assert_eq!(bucket.available_at(nanos(now)), available, "{now} ns");
        }
    }

    /// bucket4j's issue 71: the wait is the rest of the interval, not a fraction of it.
    #[test]
    fn the_wait_lasts_until_the_end_of_the_interval() {
        let bucket = settings(10, 10, Duration::from_mins(1))
            .stepwise()
            .initial(0)
            .build()
            .unwrap();
        assert_eq!(retry(&bucket, Timestamp::ZERO, 1), Retry::At(secs(60)));
        assert_eq!(retry(&bucket, Timestamp::ZERO, 10), Retry::At(secs(60)));
        assert_eq!(
            retry(&bucket, secs(15), 1).wait_from(secs(15)),
            Some(Duration::from_secs(45))
        );
        assert_eq!(
            retry(&bucket, secs(15), 15),
            Retry::At(secs(120)),
            "behind others"
        );
    }

    /// Refill at whole minutes: full at 80 s, and the next step at 120 s.
    #[test]
    fn aligned_to_an_instant() {
        let bucket = settings(400, 200, Duration::from_mins(1))
            .stepwise()
            .build()
            .unwrap();
        assert_eq!(bucket.available_at(secs(80)), 400);
        assert!(bucket.try_acquire_at(secs(80), 400).is_ok());
        assert_eq!(bucket.available_at(secs(90)), 0);
        assert_eq!(
            retry(&bucket, secs(90), 1).wait_from(secs(90)),
            Some(Duration::from_secs(30))
        );
        for (now, available) in [(120, 200), (165, 200), (180, 400), (240, 400)] {
            assert_eq!(bucket.available_at(secs(now)), available, "{now} s");
        }
    }
}

mod overflow {
    use super::*;

    /// bucket4j's issue 51: three limits after twelve idle hours, each alone.
    #[test]
    fn regression_51() {
        for (capacity, period) in [(700_000, 3_600), (14_500, 60), (300, 1)] {
            let bucket = settings(capacity.into(), capacity, Duration::from_secs(period))
                .build()
                .unwrap();
            let now = secs(12 * 3_600);
            assert!(bucket.try_acquire_at(now, 1).is_ok());
            assert!(bucket.try_acquire_at(now, capacity - 1).is_ok());
            assert!(bucket.try_acquire_at(now, 1).is_err());
        }
    }

    /// A capacity of a sixteenth of all numbers, replenished in an eighth of all nanoseconds.
    #[test]
    fn whole_periods() {
        let bucket = greedy(MAX / 16, 1, 2, 7);
        assert_eq!(bucket.available_at(nanos(3 * (MAX / 8))), MAX / 16);
    }

    /// The same, for just less than half of a period.
    #[test]
    fn a_fraction_of_a_period() {
        let bucket = greedy(MAX / 16, 1, 2, 0);
        assert_eq!(bucket.available_at(nanos(MAX / 16 - 1)), MAX / 32);
        assert_eq!(bucket.available_at(nanos(MAX / 16 + 1)), MAX / 32 + 1);
    }

    /// Steps of 146 years.
    #[test]
    fn a_long_interval() {
        let period = Duration::from_nanos(MAX / 2);
        let bucket = settings(MAX / 2, u32::MAX, period)
            .stepwise()
            .initial(0)
            .build()
            .unwrap();
        assert_eq!(
            retry(&bucket, Timestamp::ZERO, 10),
            Retry::At(nanos(4_611_686_018_427_387_903))
        );
        let two = retry(&bucket, Timestamp::ZERO, u32::MAX);
        assert_eq!(two, Retry::At(nanos(4_611_686_018_427_387_903)));
        assert_eq!(bucket.available_at(nanos(MAX - 1)), 2 * u64::from(u32::MAX));
    }
}

/// What a change of the burst leaves of a bucket of 100 that has 40, has 10, or owes 40; beside
/// what bucket4j's strategies leave, by their documentation and source
/// (`BucketState64BitsInteger`).
///
/// Reset and Keep (`AS_IS` there): the same. Proportional: bucket4j also scales a debt. Additive:
/// bucket4j does not subtract what a bucket shrinks by, as long as the tokens fit.
#[test]
fn tokens_are_carried_as_in_bucket4j_except_proportional_debts_and_smaller_bursts() {
    /// The burst after the change, the tokens before it, and (ours, theirs) by Keep, Proportional,
    /// Additive and Reset.
    type Case = (u64, i64, [(i64, i64); 4]);
    const CASES: [Case; 8] = [
        (200, 40, [(40, 40), (80, 80), (140, 140), (200, 200)]),
        (20, 40, [(20, 20), (8, 8), (0, 20), (20, 20)]),
        (20, 10, [(10, 10), (2, 2), (0, 10), (20, 20)]),
        (90, 40, [(40, 40), (36, 36), (30, 40), (90, 90)]),
        (200, 100, [(100, 100), (200, 200), (200, 200), (200, 200)]),
        (200, -40, [(-40, -40), (-40, -80), (60, 60), (200, 200)]),
        (50, -40, [(-40, -40), (-40, -20), (-40, -40), (50, 50)]),
        (130, -40, [(-40, -40), (-40, -52), (-10, -10), (130, 130)]),
    ];
    let now = Timestamp::from_secs(5);
    let settings = AdjustableBucket::builder(Rate::per_second(1), 100).debt(100);
    for (burst, has, after) in CASES {
        let ways = [
            Carry::Keep,
            Carry::Proportional,
            Carry::Additive,
            Carry::Reset,
        ];
        for (carry, (here, there)) in ways.into_iter().zip(after) {
            let bucket = settings.build().unwrap();
            bucket
                .force_at(now, u32::try_from(100 - has).unwrap())
                .unwrap();
            bucket
                .adjust_at(now, Rate::per_second(1), burst, carry)
                .unwrap();
            // One permit comes in each second, so the debt is the time until one is available, less
            // one second.
            let left = match bucket.available_at(now) {
                0 => {
                    let denied = bucket.try_acquire_at(now, 1).unwrap_err();
                    let wait = denied.retry(&bucket).wait_from(now).unwrap().as_secs();
                    1 - i64::try_from(wait).unwrap()
                }
                left => i64::try_from(left).unwrap(),
            };
            assert_eq!(left, here, "{has} of 100, then {burst}, {carry:?}");
            let alike = match carry {
                Carry::Keep | Carry::Reset => true,
                Carry::Proportional => has >= 0,
                Carry::Additive => burst >= 100 || has < 0,
                _ => unreachable!("the model has no {carry:?}"),
            };
            assert_eq!(
                here == there,
                alike,
                "{has} of 100, then {burst}, {carry:?}"
            );
        }
    }
}
