//! The behaviour that the tests of other rate limiters show for reservations, for debt, and for
//! settings that change while a limiter is in use.
//!
//! Each module is one of their suites. Each function is the test of that name there, in our
//! spelling. Time is manual, also where those tests sleep. The function names the intended
//! differences.

use core::time::Duration;

use portcullis_core::builder::{AdjustableBucketBuilder, TokenBucketBuilder};
use portcullis_core::parts::Reservation;
use portcullis_core::state::Carry;
use portcullis_core::{AdjustableBucket, Denied, Rate, Retry, Timestamp, TokenBucket};

const fn nanos(n: u64) -> Timestamp {
    Timestamp::from_nanos(n)
}

const fn millis(n: u64) -> Timestamp {
    Timestamp::from_millis(n)
}

/// The instant at which a request for `n` at `now` would be granted.
fn retry(bucket: &TokenBucket, now: Timestamp, n: u32) -> Retry {
    Denied::Exhausted { now, permits: n }.retry(bucket)
}

/// golang.org/x/time/rate, `rate_test.go`. Times are in tenths of a second.
mod x_time_rate {
    use super::*;

    const fn tenths(n: u64) -> Timestamp {
        millis(100 * n)
    }

    /// A limiter with `rate` tokens per second, any number of which may be reserved.
    fn limiter(rate: u32, burst: u64) -> AdjustableBucket {
        AdjustableBucket::builder(Rate::per_second(rate), burst)
            .debt(1_000)
            .build()
            .unwrap()
    }

    type Reserved<'a> = Reservation<&'a AdjustableBucket>;

    /// Reserves `n` at `now`; the reservation must be due at `due`.
    fn reserve(bucket: &AdjustableBucket, now: u64, n: u32, due: u64) -> Reserved<'_> {
        let reserved = bucket.reserve_at(tenths(now), n, Duration::MAX).unwrap();
        assert_eq!(reserved.due(), tenths(due), "{n} at {now}");
        reserved
    }

    fn allows(bucket: &AdjustableBucket, now: u64, n: u32) -> bool {
        bucket.try_acquire_at(tenths(now), n).is_ok()
    }

    /// `TestMix`: takes and reservations mixed.
    #[test]
    fn mix() {
        let bucket = limiter(10, 2);
        let too_many = bucket
            .reserve_at(tenths(0), 3, Duration::MAX)
            .map(|reserved| reserved.due());
        assert_eq!(
            too_many,
            Err(Denied::ExceedsCapacity {
                permits: 3,
                capacity: 2
            })
        );
        let _ = reserve(&bucket, 0, 2, 0);
        assert_eq!(bucket.available_at(tenths(1)), 1);
        assert!(!allows(&bucket, 1, 2));
        let _ = reserve(&bucket, 1, 2, 2);
        assert_eq!(bucket.available_at(tenths(1)), 0, "-1 there");
        assert!(!allows(&bucket, 1, 1));
        assert!(allows(&bucket, 3, 1));
    }

    /// `TestCancelLast`.
    #[test]
    fn cancel_last() {
        let bucket = limiter(10, 2);
        let _ = reserve(&bucket, 0, 2, 0);
        let last = reserve(&bucket, 0, 2, 2);
        assert_eq!(last.cancel_at(tenths(1)), 2);
        let _ = reserve(&bucket, 1, 2, 2);
    }

    /// `TestCancel0Tokens`: the reservations made after it leave it worth nothing.
    #[test]
    fn cancel_0_tokens() {
        let bucket = limiter(10, 2);
        let _ = reserve(&bucket, 0, 2, 0);
        let first = reserve(&bucket, 0, 1, 1);
        let _ = reserve(&bucket, 0, 1, 2);
        assert_eq!(first.cancel_at(tenths(0)), 0);
        let _ = reserve(&bucket, 0, 1, 3);
    }

    /// `TestCancelMulti`: a reservation that was cancelled before counts as if it had never been
    /// made.
    #[test]
    fn cancel_multi() {
        let bucket = limiter(10, 4);
        let _ = reserve(&bucket, 0, 4, 0);
        let first = reserve(&bucket, 0, 3, 3);
        let _ = reserve(&bucket, 0, 1, 4);
        let last = reserve(&bucket, 0, 1, 5);
        assert_eq!(last.cancel_at(tenths(1)), 1);
        assert_eq!(first.cancel_at(tenths(1)), 2);
        let _ = reserve(&bucket, 1, 3, 5);
    }

    /// `TestReserveJumpBackCancel`. Differs: a time older than the newest takes no tokens away. In
    /// the original it does, and the test ends a tenth earlier than the rate allows.
    #[test]
    fn reserve_jump_back_cancel() {
        let bucket = limiter(10, 2);
        let _ = reserve(&bucket, 1, 2, 1);
        let first = reserve(&bucket, 1, 2, 3);
        let _ = reserve(&bucket, 1, 1, 4);
        assert_eq!(first.cancel_at(tenths(0)), 1);
        let _ = reserve(&bucket, 1, 2, 5);
    }

    /// `TestReserveSetBurst`. Differs: after a change at three tenths, a request at zero does not
    /// turn the clock back.
    #[test]
    fn reserve_set_burst() {
        let bucket = limiter(5, 2);
        let _ = reserve(&bucket, 0, 2, 0);
        let _ = reserve(&bucket, 0, 2, 4);
        bucket
            .adjust_at(tenths(3), Rate::per_second(5), 4, Carry::Keep)
            .unwrap();
        let _ = reserve(&bucket, 0, 4, 12);
    }

    /// `TestReserveMax`: a request that would wait for too long takes nothing.
    #[test]
    fn reserve_max() {
        let bucket = limiter(10, 2);
        let tenth = Duration::from_millis(100);
        let due = |n| {
            bucket
                .reserve_at(tenths(0), n, tenth)
                .map(|reserved| reserved.due())
        };
        assert_eq!((due(2), due(1)), (Ok(tenths(0)), Ok(tenths(1))));
        let before = format!("{bucket:?}");
        assert_eq!(
            due(1),
            Err(Denied::Exhausted {
                now: tenths(0),
                permits: 1
            })
        );
        assert_eq!(format!("{bucket:?}"), before);
    }

    /// `TestWaitSimple`, without waiting: a cancelled wait returns its tokens.
    #[test]
    fn cancelled_wait() {
        let bucket = limiter(10, 3);
        let _ = reserve(&bucket, 0, 2, 0);
        let waits = reserve(&bucket, 0, 3, 2);
        assert_eq!(waits.cancel_at(tenths(1)), 3);
        let _ = reserve(&bucket, 1, 2, 1);
    }

    /// `TestWaitInf`: an unlimited rate ignores the burst, and the next rate does not. Differs: a
    /// burst is at least 1.
    #[test]
    fn wait_inf() {
        let bucket = AdjustableBucket::builder(Rate::UNLIMITED, 1)
            .debt(10)
            .build()
            .unwrap();
        let _ = reserve(&bucket, 0, 3, 0);
        bucket
            .adjust_at(tenths(0), Rate::per_second(10), 2, Carry::Keep)
            .unwrap();
        assert!(bucket.reserve_at(tenths(0), 3, Duration::MAX).is_err());
        bucket
            .adjust_at(tenths(0), Rate::UNLIMITED, 2, Carry::Keep)
            .unwrap();
        let _ = reserve(&bucket, 0, 3, 0);
    }

    /// `TestSetAfterZeroRate`: tokens taken at a rate of zero stay taken.
    #[test]
    fn set_after_zero_rate() {
        let bucket = AdjustableBucket::builder(Rate::ZERO, 1)
            .debt(10)
            .build()
            .unwrap();
        assert!(allows(&bucket, 0, 1));
        assert!(!allows(&bucket, 0, 1));
        bucket
            .adjust_at(tenths(0), Rate::per_second(10), 1, Carry::Keep)
            .unwrap();
        let _ = reserve(&bucket, 0, 1, 1);
    }
}

/// folly, `TokenBucketTest.cpp`.
mod folly {
    use super::*;

    /// Debt shows as the time until a token is available again. Differs: the largest debt is a
    /// setting.
    #[test]
    fn available_and_balance_with_debt() {
        let bucket = TokenBucket::builder(Rate::per_second(100), 100)
            .debt(50)
            .build()
            .unwrap();
        let now = millis(0);
        for left in [50, 0] {
            bucket.force_at(now, 50).unwrap();
            assert_eq!(bucket.available_at(now), left);
        }
        bucket.force_at(now, 50).unwrap();
        assert_eq!(bucket.available_at(now), 0);
        assert_eq!(
            retry(&bucket, now, 1),
            Retry::At(millis(510)),
            "a balance of -50, and one more token"
        );
        assert_eq!(
            bucket.force_at(now, 1),
            Err(Denied::Exhausted { now, permits: 1 })
        );
        assert_eq!(bucket.available_at(millis(1_500)), 100, "full again");
    }
}

/// clipperhouse/rate, `bucket_test.go`.
mod clipperhouse {
    use super::*;

    /// `HasTokens`, the unchecked part: a debt is paid before new tokens become available.
    #[test]
    fn has_tokens_in_debt() {
        let bucket = TokenBucket::builder(Rate::per_second(9), 9)
            .debt(4)
            .build()
            .unwrap();
        let has = |now, n| retry(&bucket, now, n) == Retry::At(now);
        let now = nanos(5_000_000_000);
        for n in [3, 5, 5] {
            bucket.force_at(now, n).unwrap();
        }
        assert!(!has(now, 1), "four are owed");
        // Six come in within two thirds of a second.
        let later = nanos(5_666_666_667);
        assert!(has(later, 2) && !has(later, 3));
        assert!(!has(nanos(5_666_666_666), 2));
    }
}

/// bucket4j's core specifications.
mod bucket4j {
    use super::*;

    fn bandwidth(capacity: u64, refill: u32, period: u64, initial: u64) -> TokenBucketBuilder {
        let rate = Rate::new(refill, Duration::from_nanos(period));
        TokenBucket::builder(rate, capacity)
            .initial(initial)
            .tick(Duration::from_nanos(1))
    }

    /// The same, for a bucket that has changing settings and reservations.
    fn replaceable(
        capacity: u64,
        refill: u32,
        period: u64,
        initial: u64,
    ) -> AdjustableBucketBuilder {
        let rate = Rate::new(refill, Duration::from_nanos(period));
        AdjustableBucket::builder(rate, capacity)
            .initial(initial)
            .tick(Duration::from_nanos(1))
    }

    /// An unconditional take when the tokens are available: nothing is owed, and the rest remains.
    #[test]
    fn consume_ignoring_rate_limits() {
        for (n, now, remains) in [(49, 50, 1), (50, 50, 0), (51, 120, 49), (100, 101, 0)] {
            let bucket = bandwidth(100, 100, 100, 0).debt(1_000).build().unwrap();
            bucket.force_at(nanos(now), n).unwrap();
            assert_eq!(bucket.available_at(nanos(now)), remains, "{n} at {now}");
            let next = if remains > 0 { now } else { now + 1 };
            assert_eq!(
                retry(&bucket, nanos(now), 1),
                Retry::At(nanos(next)),
                "{n} at {now}"
            );
        }
    }

    /// More debt than can ever be paid is an error. Differs: the bound is the declared debt, not
    /// the range of a number.
    #[test]
    fn consume_ignoring_rate_limits_overflow() {
        let bucket = bandwidth(1, 1, 60_000_000_000, 0)
            .debt(1_000)
            .build()
            .unwrap();
        let refused = bucket.force_at(nanos(0), u32::MAX);
        assert_eq!(
            refused,
            Err(Denied::ExceedsCapacity {
                permits: u32::MAX,
                capacity: 1_001
            })
        );
        assert_eq!(bucket.force_at(nanos(0), 1_000), Ok(()));
        let refused = bucket.force_at(nanos(0), 1);
        assert_eq!(
            refused,
            Err(Denied::Exhausted {
                now: nanos(0),
                permits: 1
            })
        );
    }

    /// An unconditional take may leave a negative balance.
    #[test]
    fn consume_may_go_below_zero() {
        for (initial, n, left, owed) in [(0, 10, 0, 10), (50, 2, 48, 0), (55, 1_600, 0, 1_545)] {
            let bucket = bandwidth(1_000, 1, 1, initial).debt(2_000).build().unwrap();
            bucket.force_at(nanos(0), n).unwrap();
            assert_eq!(bucket.available_at(nanos(0)), left);
            // One token comes in each nanosecond.
            let full = 1_000 - left + owed;
            assert_eq!(
                retry(&bucket, nanos(0), 1_000),
                Retry::At(nanos(full)),
                "{n} of {initial}"
            );
        }
    }

    /// 1.8 of 3 tokens, 3 ns after an empty start.
    fn replaced(carry: Carry) -> AdjustableBucket {
        let bucket = replaceable(3, 3, 5, 0).build().unwrap();
        assert_eq!(bucket.available_at(nanos(3)), 1);
        bucket
            .adjust_at(nanos(3), Rate::new(60, Duration::from_micros(1)), 60, carry)
            .unwrap();
        bucket
    }

    /// `RESET`.
    #[test]
    fn replace_with_all_tokens() {
        assert_eq!(replaced(Carry::Reset).available_at(nanos(3)), 60);
    }

    /// `AS_IS`, to a continuous rate: the fraction of a token is kept as well. Differs: the kind of
    /// refill cannot change, so no fraction is dropped for a refill in steps.
    #[test]
    fn replace_with_the_same_tokens() {
        let bucket = replaced(Carry::Keep);
        for (now, available) in [(3, 1), (6, 1), (7, 2), (1_003, 60)] {
            assert_eq!(bucket.available_at(nanos(now)), available, "{now} ns");
        }
    }

    /// `ADDITIVE`: the increase of the capacity is added.
    #[test]
    fn replace_with_the_increase_added() {
        let bucket = replaced(Carry::Additive);
        for (now, available) in [(3, 58), (6, 58), (7, 59), (1_003, 60)] {
            assert_eq!(bucket.available_at(nanos(now)), available, "{now} ns");
        }
        let bucket = replaceable(500, 1, 1_000_000_000, 200).build().unwrap();
        bucket
            .adjust_at(nanos(0), Rate::per_second(1), 900, Carry::Additive)
            .unwrap();
        assert_eq!(bucket.available_at(nanos(0)), 600);
    }

    /// `PROPORTIONALLY`: 200 of 500 are 360 of 900.
    #[test]
    fn replace_with_the_same_share() {
        let bucket = replaceable(500, 1, 1_000_000_000, 200).build().unwrap();
        bucket
            .adjust_at(nanos(0), Rate::per_second(1), 900, Carry::Proportional)
            .unwrap();
        assert_eq!(bucket.available_at(nanos(0)), 360);
    }

    /// A blocking take with a maximum wait: how long it sleeps, in nanoseconds.
    #[test]
    fn consume_with_a_maximum_wait() {
        for (n, most, sleeps) in [
            (1_000, 11, None),
            (5, 40, Some(40)),
            (5, 41, Some(40)),
            (5, 39, None),
        ] {
            let bucket = replaceable(10, 10, 100, 1).debt(1_000).build().unwrap();
            let reserved = bucket.reserve_at(nanos(0), n, Duration::from_nanos(most));
            let due = reserved.map(|reserved| reserved.due().as_nanos()).ok();
            assert_eq!(due, sleeps, "{n} within {most} ns");
            assert_eq!(
                bucket.available_at(nanos(0)),
                u64::from(sleeps.is_none()),
                "a denied take takes nothing"
            );
        }
    }
}

/// Guava, `RateLimiterTest`: a request does not wait for its own permits, but for those that the
/// request before it took. That is a debt.
mod guava {
    use super::*;

    /// `testOneSecondBurst`: a whole burst, one on credit, and then none until the debt is paid.
    #[test]
    fn one_second_burst() {
        let bucket = TokenBucket::builder(Rate::per_second(5), 5)
            .debt(1)
            .build()
            .unwrap();
        let now = millis(2_000);
        for n in [1, 1, 3, 1] {
            assert_eq!(bucket.force_at(now, n), Ok(()));
        }
        assert!(bucket.force_at(millis(2_199), 1).is_err());
        assert_eq!(bucket.force_at(millis(2_200), 1), Ok(()));
    }

    /// Waits until nothing is owed, and takes `n` on credit; one permit comes in each
    /// `millis_each`. Returns the wait.
    fn acquire(bucket: &AdjustableBucket, now: &mut u64, n: u32, millis_each: u64) -> u64 {
        let denied = Denied::Exhausted {
            now: millis(*now),
            permits: 1,
        };
        let Retry::At(one) = denied.retry(bucket) else {
            panic!("the debt is paid by time")
        };
        let paid = (one.as_nanos() / 1_000_000 - millis_each).max(*now);
        let waited = paid - *now;
        *now = paid;
        bucket.force_at(millis(paid), n).unwrap();
        waited
    }

    /// `testSimpleRateUpdate` and `testSetRate`. Differs: a debt is paid at the current rate, so
    /// the first wait after the change is half of the original's.
    #[test]
    fn set_rate_while_in_debt() {
        let settings = AdjustableBucket::builder(Rate::per_second(1), 1)
            .initial(0)
            .debt(10);
        let bucket = settings.build().unwrap();
        let mut now = 0;
        assert_eq!(
            [1, 1].map(|n| acquire(&bucket, &mut now, n, 1_000)),
            [0, 1_000]
        );
        bucket
            .adjust_at(millis(now), Rate::per_second(2), 1, Carry::Keep)
            .unwrap();
        assert_eq!(
            [1, 2, 4, 1].map(|n| acquire(&bucket, &mut now, n, 500)),
            [500, 500, 1_000, 2_000]
        );
    }
}

/// resilience4j, `AtomicRateLimiterTest`: all permits of a cycle are available at its start, and
/// those of later cycles can be reserved.
mod resilience4j {
    use super::*;

    /// The length of a cycle, in nanoseconds.
    const CYCLE: u64 = 250_000_000;

    fn cycles(permits: u32, cycle: u64, debt: u64) -> AdjustableBucket {
        let rate = Rate::new(permits, Duration::from_nanos(cycle));
        AdjustableBucket::builder(rate, permits.into())
            .stepwise()
            .debt(debt)
            .build()
            .unwrap()
    }

    fn wait(bucket: &AdjustableBucket, now: u64, most: u64) -> Option<u64> {
        let reserved = bucket
            .reserve_at(nanos(now), 1, Duration::from_nanos(most))
            .ok()?;
        Some(reserved.due().as_nanos() - now)
    }

    /// `reserveAndRefresh`: one permit is reserved from the next cycle, and the one after that is
    /// too far away.
    #[test]
    fn reserve_and_refresh() {
        let bucket = cycles(1, CYCLE, 10);
        assert!(bucket.try_acquire_at(nanos(CYCLE), 1).is_ok());
        assert_eq!(wait(&bucket, CYCLE, CYCLE), Some(CYCLE));
        assert_eq!(bucket.available_at(nanos(CYCLE)), 0, "-1 there");
        let denied = bucket.try_acquire_at(nanos(CYCLE), 1).unwrap_err();
        assert_eq!(
            denied.retry(&bucket),
            Retry::At(nanos(3 * CYCLE)),
            "the wait would be two cycles"
        );
        assert_eq!(wait(&bucket, CYCLE, CYCLE), None);

        let now = 2 * CYCLE + 10;
        assert_eq!(bucket.available_at(nanos(now)), 0);
        assert_eq!(wait(&bucket, now, CYCLE), Some(CYCLE - 10));
    }

    /// `reserveManyCyclesIfWeightIsHigherThanLimit`, in part: three of this cycle, three of the
    /// next one, and none of the one after that.
    #[test]
    fn reserve_upfront() {
        const CYCLE: u64 = 10_000_000;
        let bucket = cycles(3, CYCLE, 10);
        let waits: Vec<Option<u64>> = (1..=9)
            .map(|n| wait(&bucket, CYCLE + n, 12_000_000))
            .collect();
        let expected = [
            Some(0),
            Some(0),
            Some(0),
            Some(CYCLE - 4),
            Some(CYCLE - 5),
            Some(CYCLE - 6),
            None,
            None,
            None,
        ];
        assert_eq!(waits, expected);
    }

    /// `permissionsAfterInterruption`. Differs: a waiter that gives up returns what it reserved.
    #[test]
    fn an_interrupted_waiter_returns_its_permits() {
        let bucket = cycles(1, CYCLE, 10);
        assert!(bucket.try_acquire_at(nanos(CYCLE), 1).is_ok());
        let waits = bucket
            .reserve_at(nanos(CYCLE), 1, Duration::from_nanos(CYCLE))
            .unwrap();
        assert_eq!(waits.cancel_at(nanos(CYCLE + 1)), 1);
        assert_eq!(wait(&bucket, CYCLE + 1, CYCLE), Some(CYCLE - 1));
    }
}
