//! The behaviour that the tests of other rate limiters show, except waiting and returning tokens.
//!
//! Each module is one of their suites. Each function is the test of that name there, in our
//! spelling. Time is manual, also where those tests sleep. The function names the intended
//! differences, and the guides in `docs/coming-from/` list them.

use core::time::Duration;

use portcullis_core::builder::TokenBucketBuilder;
use portcullis_core::{
    Clock, Denied, FixedWindow, ManualClock, Rate, Retry, Timestamp, TokenBucket,
};

const fn nanos(n: u64) -> Timestamp {
    Timestamp::from_nanos(n)
}

const fn millis(n: u64) -> Timestamp {
    Timestamp::from_millis(n)
}

/// How long `bucket` says that a request for `n` at `now` must wait, without taking the permits:
/// zero if they are available.
fn wait_for(bucket: &TokenBucket, now: Timestamp, n: u32) -> Option<Duration> {
    Denied::Exhausted { now, permits: n }
        .retry(bucket)
        .wait_from(now)
}

fn grants(bucket: &TokenBucket, now: Timestamp, n: u32) -> bool {
    bucket.try_acquire_at(now, n).is_ok()
}

/// golang.org/x/time/rate, `rate_test.go`.
mod x_time_rate {
    use super::*;

    /// One token comes in each `interval`, and not 1 ns earlier.
    fn check(interval: u64, settings: TokenBucketBuilder) {
        let bucket = settings.initial(0).build().unwrap();
        assert!(
            !grants(&bucket, nanos(interval - 1), 1),
            "every {interval} ns"
        );
        assert!(grants(&bucket, nanos(interval), 1), "every {interval} ns");
        assert!(
            !grants(&bucket, nanos(interval + interval - 1), 1),
            "every {interval} ns"
        );
        assert!(
            grants(&bucket, nanos(interval + interval), 1),
            "every {interval} ns"
        );
    }

    /// `TestEvery`: the rate of an interval is exact, where a float is only close.
    #[test]
    fn every() {
        let intervals = [
            1, // ns
            1_000,
            1_000_000,
            10_000_000,
            100_000_000,
            1_000_000_000,
            2_000_000_000,
            2_500_000_000,
            4_000_000_000,
            10_000_000_000,
        ];
        for interval in intervals {
            check(
                interval,
                TokenBucket::builder(Rate::new(1, Duration::from_nanos(interval)), 1),
            );
        }
        // The longest interval that Go can represent, 292 years: in one step.
        let longest = i64::MAX as u64;
        let settings = TokenBucket::builder(Rate::new(1, Duration::from_nanos(longest)), 1);
        assert!(settings.build().is_err(), "continuously, 146 years");
        check(longest, settings.stepwise());
        let unlimited = TokenBucket::new(Rate::UNLIMITED, 1);
        assert!((0..1_000).all(|_| grants(&unlimited, Timestamp::ZERO, u32::MAX)));
    }

    /// `TestLimiterBurst3`, with tenths of a second. Differs: n = 0 on an empty bucket is a probe,
    /// and denied.
    #[test]
    fn limiter_burst_3() {
        let bucket = TokenBucket::new(Rate::per_second(10), 3);
        let steps = [
            (0, 3, 2, true),
            (0, 1, 2, false),
            (0, 1, 1, true),
            (0, 0, 1, false),
            (1, 1, 4, false),
            (2, 2, 1, true),
            (3, 2, 1, true),
            (4, 2, 1, true),
            (4, 1, 1, true),
            (4, 0, 1, false),
            (4, 0, 1, false),
            (9, 3, 3, true),
            (9, 0, 0, false),
        ];
        for (tenth, available, n, granted) in steps {
            let now = millis(100 * tenth);
            assert_eq!(bucket.available_at(now), available, "before {n} at {now}");
            assert_eq!(grants(&bucket, now, n), granted, "{n} at {now}");
        }
    }

    /// `TestLimiterJumpBackwards`. Differs: a stale timestamp gets the answer of the newest time,
    /// or less, and takes nothing from later requests.
    #[test]
    fn limiter_jump_backwards() {
        let bucket = TokenBucket::new(Rate::per_second(10), 3);
        let steps = [
            (1, true),
            (0, true),
            (0, false),
            (0, false),
            (1, true),
            (1, false),
            (2, true),
            (2, false),
        ];
        for (tenth, granted) in steps {
            assert_eq!(
                grants(&bucket, millis(100 * tenth), 1),
                granted,
                "at {tenth} tenths"
            );
        }
    }

    /// `TestLimiter_noTruncationErrors`: ten in thirteen seconds, full when it is new.
    #[test]
    fn limiter_no_truncation_errors() {
        let bucket = TokenBucket::new(Rate::new(10, Duration::from_secs(13)), 1);
        assert!(grants(&bucket, Timestamp::ZERO, 1));
        assert!(!grants(&bucket, nanos(1_299_999_999), 1));
        assert!(grants(&bucket, nanos(1_300_000_000), 1));
    }

    /// `TestLongRunningQPS`: exactly what the burst and the rate allow; the original tolerates an
    /// error of 0.1 %.
    #[test]
    fn long_running_qps() {
        let bucket = TokenBucket::new(Rate::per_second(100), 100);
        let granted = (0..2_500)
            .filter(|poll| grants(&bucket, millis(2 * poll), 1))
            .count();
        assert_eq!(granted, 100 + 499, "the last poll is 2 ms before 5 s");
        assert!(grants(&bucket, millis(5_000), 1));
    }

    /// `TestSimpleReserve`, without a reservation: more than the burst is never granted, and the
    /// other requests wait.
    #[test]
    fn more_than_the_burst_has_no_time_to_wait() {
        let bucket = TokenBucket::new(Rate::per_second(10), 2);
        let never = bucket.try_acquire_at(Timestamp::ZERO, 3).unwrap_err();
        assert_eq!(
            never,
            Denied::ExceedsCapacity {
                permits: 3,
                capacity: 2
            }
        );
        assert_eq!(never.retry(&bucket), Retry::Never);
        assert!(grants(&bucket, Timestamp::ZERO, 2));
        assert!(!grants(&bucket, millis(100), 2));
        assert_eq!(
            wait_for(&bucket, millis(100), 2),
            Some(Duration::from_millis(100))
        );
        assert!(grants(&bucket, millis(200), 2));
    }

    /// `TestWaitInf`, without waiting: an unlimited limiter grants more than its burst.
    #[test]
    fn infinite_rate_ignores_the_burst() {
        let bucket = TokenBucket::new(Rate::UNLIMITED, 1);
        assert!(grants(&bucket, Timestamp::ZERO, 3));
        assert_eq!(wait_for(&bucket, Timestamp::ZERO, 3), Some(Duration::ZERO));
    }

    /// `TestZeroLimit`: the burst, and then nothing more.
    #[test]
    fn zero_limit() {
        let bucket = TokenBucket::new(Rate::ZERO, 1);
        assert!(grants(&bucket, Timestamp::ZERO, 1));
        let denied = bucket.try_acquire_at(Timestamp::MAX, 1).unwrap_err();
        assert_eq!(denied.retry(&bucket), Retry::Never);
    }
}

/// folly, `TokenBucketTest.cpp` and `logging/test/RateLimiterTest.cpp`.
mod folly {
    use super::*;

    /// `TokenBucket.ReverseTime`: an older time takes nothing and changes nothing.
    #[test]
    fn reverse_time() {
        // A burst of 10.000001, as in the original, grants ten whole tokens.
        let bucket = TokenBucket::builder(Rate::per_second(1_000), 10)
            .initial(0)
            .build()
            .unwrap();
        let now = millis(100);
        assert_eq!((0..100).take_while(|_| grants(&bucket, now, 1)).count(), 10);
        let before = format!("{bucket:?}");
        assert!(!grants(&bucket, nanos(99_999_990), 1));
        assert_eq!(format!("{bucket:?}"), before);
        assert_eq!(bucket.available_at(now), 0);
    }

    /// `TokenBucketTest.sanity`: tokens taken greedily from an empty bucket never exceed the rate,
    /// and are at least 90 % of it.
    #[test]
    fn sanity() {
        for (rate, size) in [(100, 1), (1_000, 1), (10_000, 1), (10_000, 5)] {
            let burst = (rate / 100).max(size);
            let bucket = TokenBucket::builder(Rate::per_second(rate), burst.into())
                .initial(0)
                .build()
                .unwrap();
            let mut taken = 0;
            for milli in 0..10_000 {
                let now = millis(milli);
                while grants(&bucket, now, size) {
                    taken += u64::from(size);
                }
                assert!(!grants(&bucket, now, burst + 1));
                let ideal = u64::from(rate) * milli / 1_000;
                assert!(
                    taken <= ideal && ideal < taken + u64::from(size),
                    "{taken} of {ideal} at {now}"
                );
            }
        }
    }

    /// `RateLimiter.interval3per100ms`, `interval1per100ms` and `interval15per150ms`: a window that
    /// the first request starts.
    #[test]
    fn interval_rate_limiter() {
        for (limit, interval) in [(3, 100), (1, 100), (15, 150)] {
            let limiter = FixedWindow::builder(limit, Duration::from_millis(interval))
                .started_by_first_request()
                .build()
                .unwrap();
            for turn in 0..4 {
                // Later than the end of the previous window, by a little more each time.
                let now = millis(7 + turn * (interval + turn));
                let granted = (0..2 * limit).map(|_| limiter.try_acquire_at(now, 1).is_ok());
                assert!(granted.eq((0..2 * limit).map(|i| i < limit)), "turn {turn}");
            }
        }
    }

    /// An interval of a year does not overflow.
    #[test]
    fn interval_rate_limiter_over_a_year() {
        let year = Duration::from_hours(8_765);
        let limiter = FixedWindow::builder(1, year)
            .started_by_first_request()
            .build()
            .unwrap();
        assert!(limiter.try_acquire_at(millis(1), 1).is_ok());
        assert!(
            limiter
                .try_acquire_at(nanos(999_999).saturating_add(year), 1)
                .is_err()
        );
        assert!(
            limiter
                .try_acquire_at(millis(1).saturating_add(year), 1)
                .is_ok()
        );
    }
}

/// throttled, `rate_test.go`, and redis-cell, `cell/mod.rs`. Their "reset" is the wait for the
/// whole burst.
mod gcra {
    use super::*;

    /// Remaining, reset and retry, in seconds.
    fn outcome(bucket: &TokenBucket, now: Timestamp, n: u32) -> (bool, u64, f64, Option<f64>) {
        let decision = bucket.try_acquire_at(now, n);
        let seconds = |wait: Option<Duration>| wait.map(|wait| wait.as_secs_f64());
        let retry = match decision {
            Ok(_) => None,
            Err(denied) => seconds(denied.retry(bucket).wait_from(now)),
        };
        let full = bucket.burst() as u32;
        let reset = seconds(wait_for(bucket, now, full)).unwrap();
        (decision.is_err(), bucket.available_at(now), reset, retry)
    }

    /// `TestRateLimit`: one per second, five at once. Where the original returns -1, there is no
    /// retry. A volume of 0 there is a look, not a probe.
    #[test]
    fn rate_limit() {
        let bucket = TokenBucket::new(Rate::per_second(1), 5);
        let steps = [
            (0, 6, (true, 5, 0.0, None)),
            (0, 1, (false, 4, 1.0, None)),
            (0, 1, (false, 3, 2.0, None)),
            (0, 1, (false, 2, 3.0, None)),
            (0, 1, (false, 1, 4.0, None)),
            (0, 1, (false, 0, 5.0, None)),
            (0, 1, (true, 0, 5.0, Some(1.0))),
            (9_500, 1, (false, 4, 1.0, None)),
            (9_500, 0, (false, 4, 1.0, None)),
            (9_500, 2, (false, 2, 3.0, None)),
            (9_500, 5, (true, 2, 3.0, Some(3.0))),
            (15_000, 6, (true, 5, 0.0, None)),
        ];
        for (now, n, expected) in steps {
            assert_eq!(
                outcome(&bucket, millis(now), n),
                expected,
                "{n} at {now} ms"
            );
        }
    }

    /// redis-cell's `CL.THROTTLE key 15 30 60`: limit 16, remaining 15, reset in 2 s.
    #[test]
    fn cl_throttle_reply() {
        let bucket = TokenBucket::new(Rate::per_minute(30), 15 + 1);
        assert_eq!(bucket.burst(), 16);
        assert_eq!(outcome(&bucket, millis(123), 1), (false, 15, 2.0, None));
    }
}

/// Envoy, `token_bucket_impl_test.cc`.
mod envoy {
    use super::*;

    /// `Initialization`. Differs: a rate cannot be negative; zero is a rate of its own.
    #[test]
    fn initialization() {
        let bucket = TokenBucket::new(Rate::ZERO, 1);
        assert!(grants(&bucket, Timestamp::ZERO, 1));
        assert!(!grants(&bucket, Timestamp::ZERO, 1));
    }

    /// `YearlyMinRefillRate`. Differs: a rate is not clamped, and may be slower than one per year.
    #[test]
    fn yearly_min_refill_rate() {
        let year = Duration::from_hours(365 * 24);
        let bucket = TokenBucket::new(Rate::new(1, year), 1);
        assert!(grants(&bucket, Timestamp::ZERO, 1));
        assert!(!grants(
            &bucket,
            Timestamp::from_secs(year.as_secs() - 1),
            1
        ));
        assert!(grants(&bucket, Timestamp::ZERO.saturating_add(year), 1));

        let slower = TokenBucket::new(Rate::new(1, 2 * year), 1);
        assert!(grants(&slower, Timestamp::ZERO, 1));
        assert!(!grants(&slower, Timestamp::ZERO.saturating_add(year), 1));
        assert!(grants(&slower, Timestamp::ZERO.saturating_add(2 * year), 1));
    }

    /// `Consume`: a denial loses no fraction of a token.
    #[test]
    fn consume() {
        let bucket = TokenBucket::new(Rate::per_second(1), 10);
        let steps = [
            (0, 20, false),
            (0, 9, true),
            (0, 1, true),
            (999, 1, false),
            (5_999, 6, false),
            (6_000, 6, true),
            (6_000, 1, false),
        ];
        for (now, n, granted) in steps {
            assert_eq!(grants(&bucket, millis(now), n), granted, "{n} at {now} ms");
        }
    }

    /// `NextTokenAvailable`.
    #[test]
    fn next_token_available() {
        let bucket = TokenBucket::new(Rate::per_second(5), 10);
        assert!(grants(&bucket, Timestamp::ZERO, 9));
        assert_eq!(wait_for(&bucket, Timestamp::ZERO, 1), Some(Duration::ZERO));
        assert!(grants(&bucket, Timestamp::ZERO, 1));
        assert_eq!(
            wait_for(&bucket, Timestamp::ZERO, 1),
            Some(Duration::from_millis(200))
        );
    }

    /// `ConsumeAndNextToken`. Differs: there is no partial take; the caller first asks what is
    /// available.
    #[test]
    fn consume_and_next_token() {
        let bucket = TokenBucket::new(Rate::per_second(5), 10);
        assert!(!grants(&bucket, Timestamp::ZERO, 20));
        let there = u32::try_from(bucket.available_at(Timestamp::ZERO)).unwrap();
        assert_eq!(there, 10);
        assert!(grants(&bucket, Timestamp::ZERO, there));
        assert_eq!(
            wait_for(&bucket, Timestamp::ZERO, 1),
            Some(Duration::from_millis(200))
        );
        assert!(grants(&bucket, millis(400), 1));
        assert_eq!(wait_for(&bucket, millis(400), 1), Some(Duration::ZERO));
    }

    /// `MultipleThreadsConsume`: four threads take exactly what comes in while the clock advances.
    #[test]
    fn multiple_threads_consume() {
        let (clock, bucket) = (
            ManualClock::new(),
            TokenBucket::new(Rate::per_second(1), 1_200),
        );
        assert!(grants(&bucket, clock.now(), 1_200));
        let taken: u32 = std::thread::scope(|scope| {
            let takers = [1, 1, 2, 3].map(|n| {
                let (clock, bucket) = (&clock, &bucket);
                scope.spawn(move || {
                    let mut taken = 0;
                    while taken < 300 {
                        if grants(bucket, clock.now(), n) {
                            taken += n;
                        } else {
                            std::thread::yield_now();
                        }
                    }
                    taken
                })
            });
            for (steps, seconds) in [(200, 1), (100, 10)] {
                for _ in 0..steps {
                    clock.advance(Duration::from_secs(seconds));
                    std::thread::yield_now();
                }
            }
            takers.into_iter().map(|taker| taker.join().unwrap()).sum()
        });
        assert_eq!(clock.now(), Timestamp::from_secs(1_200));
        assert_eq!((taken, bucket.available_at(clock.now())), (1_200, 0));
    }
}

/// nginx, `limit_req` at 5 r/s with `burst=12 delay=8`, the example of its documentation.
mod nginx {
    use super::*;

    /// One request and an excess of 12 are granted, 8 of them without delay; the next come 200 ms
    /// apart.
    #[test]
    fn two_stage_rate_limiting() {
        let all = TokenBucket::new(Rate::per_second(5), 1 + 12);
        assert!(
            (0..15)
                .map(|_| grants(&all, Timestamp::ZERO, 1))
                .eq((0..15).map(|i| i < 13))
        );

        let at_once = TokenBucket::builder(Rate::per_second(5), 1 + 12)
            .initial(1 + 8)
            .build()
            .unwrap();
        assert!(
            (0..15)
                .map(|_| grants(&at_once, Timestamp::ZERO, 1))
                .eq((0..15).map(|i| i < 9))
        );
        let delays = (1..=4).map(|n| wait_for(&at_once, Timestamp::ZERO, n).unwrap());
        assert!(delays.eq([200, 400, 600, 800].map(Duration::from_millis)));
    }
}

/// webriots/rate. Differs: tokens are not limited to eight bits. (Its keyed table of buckets is
/// tested elsewhere.)
mod webriots {
    use super::*;

    #[test]
    fn a_burst_may_exceed_255() {
        let bucket = TokenBucket::new(Rate::per_second(1_000), 100_000);
        assert!(grants(&bucket, Timestamp::ZERO, 256));
        assert_eq!(bucket.available_at(Timestamp::ZERO), 100_000 - 256);
    }
}
