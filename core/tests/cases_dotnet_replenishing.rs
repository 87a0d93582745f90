//! The behaviour that .NET's own tests, and its source, show for the three limiters whose permits
//! return by time, except waiting in a queue.
//!
//! Each module is one of .NET's suites, and each function in it the test of that name there. The
//! last module holds behaviour that .NET has but does not test. Where .NET replenishes by a call,
//! the manual time advances. The function names the intended differences, and
//! `docs/coming-from/dotnet.md` lists them.

use core::time::Duration;

use portcullis_core::leases::StaleId;
use portcullis_core::limiter::Idle;
use portcullis_core::metadata::{self, RETRY_AFTER};
use portcullis_core::{
    Concurrency, FixedWindow, LeasePool, Limiter, LimiterExt, Rate, Retry, SlidingWindow,
    Timestamp, TokenBucket,
};

const START: Timestamp = Timestamp::ZERO;
const MINUTE: Duration = Duration::from_mins(1);

const fn secs(n: u64) -> Timestamp {
    Timestamp::from_secs(n)
}

const fn millis(n: u64) -> Timestamp {
    Timestamp::from_millis(n)
}

/// Takes `n` at `now` permanently.
fn take(limiter: &dyn Limiter, now: Timestamp, n: u32) {
    assert!(limiter.try_acquire_at(now, n).is_ok(), "{n} at {now}");
}

/// The wait that `limiter` reports for a request for `n` at `now`, which it denies: by the denial
/// itself and by its metadata.
fn wait(limiter: &dyn Limiter, now: Timestamp, n: u32) -> Duration {
    let denied = limiter.try_acquire_at(now, n).expect_err("denied");
    assert!(metadata::names(limiter, now, Some(denied)).any(|name| name == "RETRY_AFTER"));
    assert_eq!(
        RETRY_AFTER.of_denied(limiter, now, denied),
        Some(denied.retry(limiter))
    );
    denied.retry(limiter).wait_from(now).expect("time helps")
}

/// A bucket that refills in steps of `permits` each `period`, and one that refills continuously.
fn both_buckets(burst: u64, permits: u32, period: Duration) -> [TokenBucket; 2] {
    let builder = TokenBucket::builder(Rate::new(permits, period), burst);
    [
        builder.stepwise().build().unwrap(),
        builder.build().unwrap(),
    ]
}

/// .NET `FixedWindowRateLimiterTests`.
mod fixed_window_rate_limiter_tests {
    use super::*;

    const TWENTY_SECONDS: Duration = Duration::from_secs(20);

    /// Differs: .NET trusts its timer. Here a window is not over before its end.
    #[test]
    fn auto_replenish_ignores_timer_jitter() {
        let limiter = FixedWindow::new(10, 10 * MINUTE);
        take(&limiter, START, 3);
        assert_eq!(limiter.available_at(START), 7);
        assert_eq!(limiter.available_at(millis(600_000 - 1)), 7);
        assert_eq!(limiter.available_at(millis(600_000)), 10);
    }

    #[test]
    fn retry_metadata_on_failed_wait_async() {
        let limiter = FixedWindow::new(2, TWENTY_SECONDS);
        take(&limiter, START, 2);
        assert_eq!(wait(&limiter, START, 2), Duration::from_secs(20));
        assert_eq!(
            wait(&limiter, secs(5), 2),
            Duration::from_secs(15),
            "the rest of the window"
        );
    }

    #[test]
    fn correct_retry_metadata_with_non_zero_available_items() {
        let limiter = FixedWindow::new(3, TWENTY_SECONDS);
        take(&limiter, START, 2);
        assert_eq!(wait(&limiter, START, 3), Duration::from_secs(20));
    }

    #[test]
    fn retry_metadata_on_failed_attempt_acquire_zero_permit_count() {
        let limiter = FixedWindow::new(1, TWENTY_SECONDS);
        take(&limiter, START, 1);
        assert_eq!(wait(&limiter, START, 0), Duration::from_secs(20));
    }
}

/// .NET `SlidingWindowRateLimiterTests`.
mod sliding_window_rate_limiter_tests {
    use super::*;

    /// A window of twenty seconds in four segments of five.
    fn segments_of_five_seconds(limit: u64) -> SlidingWindow<4> {
        SlidingWindow::new(limit, Duration::from_secs(20), 4)
    }

    /// .NET's example of three segments: permits return segment by segment.
    #[test]
    fn permits_come_back_when_their_segment_leaves_the_window() {
        let limiter = SlidingWindow::<3>::new(10, Duration::from_secs(3), 3);
        for (second, n, left) in [(0, 3, 7), (1, 4, 3), (2, 3, 0)] {
            take(&limiter, secs(second), n);
            assert_eq!(limiter.available_at(secs(second)), left);
        }
        assert!(
            limiter
                .try_acquire_at(Timestamp::from_nanos(3_000_000_000 - 1), 1)
                .is_err()
        );
        take(&limiter, secs(3), 1);
        assert_eq!(
            10 - limiter.available_at(secs(3)),
            8,
            "4, 3 and 1 are taken"
        );
        assert_eq!(10 - limiter.available_at(secs(4)), 4);
        assert_eq!(10 - limiter.available_at(secs(5)), 1);
        assert_eq!(10 - limiter.available_at(secs(6)), 0);
    }

    /// Differs: .NET trusts its timer. Here a segment is not over before its end.
    #[test]
    fn auto_replenish_ignores_timer_jitter() {
        let limiter = SlidingWindow::<2>::new(10, 10 * MINUTE, 2);
        let minutes = |n: u64| secs(60 * n);
        take(&limiter, START, 3);
        assert_eq!(limiter.available_at(millis(300_000 - 1)), 7);
        take(&limiter, minutes(5), 3);
        assert_eq!(limiter.available_at(minutes(5)), 4);
        assert_eq!(limiter.available_at(millis(600_000 - 1)), 4);
        assert_eq!(
            limiter.available_at(minutes(10)),
            7,
            "the first three have left the window"
        );
        assert_eq!(limiter.available_at(millis(900_000 - 1)), 7);
        assert_eq!(limiter.available_at(minutes(15)), 10);
    }

    #[test]
    fn retry_metadata_on_failed_wait_async() {
        let limiter = segments_of_five_seconds(2);
        take(&limiter, START, 2);
        assert_eq!(wait(&limiter, START, 2), Duration::from_secs(20));
    }

    #[test]
    fn correct_retry_metadata_with_non_zero_available_items() {
        let limiter = segments_of_five_seconds(3);
        take(&limiter, START, 2);
        assert_eq!(wait(&limiter, START, 3), Duration::from_secs(20));
    }

    /// Differs: .NET answers "in 0 s" and denies until the limiter is replenished; here the request
    /// is granted.
    #[test]
    fn retry_after_clamps_to_zero_when_window_expired() {
        let limiter = segments_of_five_seconds(1);
        take(&limiter, START, 1);
        take(&limiter, secs(25), 1);
    }

    #[test]
    fn retry_metadata_on_failed_attempt_acquire_zero_permit_count() {
        let limiter = segments_of_five_seconds(1);
        take(&limiter, START, 1);
        assert_eq!(wait(&limiter, START, 0), Duration::from_secs(20));
    }

    /// Each request waits for exactly as many segments as it needs.
    #[test]
    fn the_retry_is_when_enough_segments_have_left() {
        let limiter = segments_of_five_seconds(4);
        for second in [0, 5, 10, 15] {
            take(&limiter, secs(second), 1);
        }
        for n in 1..=4u8 {
            assert_eq!(
                wait(&limiter, secs(15), n.into()),
                Duration::from_secs(5 * u64::from(n))
            );
        }
    }
}

/// .NET `TokenBucketRateLimiterTests`, with buckets that refill in steps and continuously.
mod token_bucket_rate_limiter_tests {
    use super::*;

    const TWENTY_SECONDS: Duration = Duration::from_secs(20);

    /// Differs: .NET trusts its timer. Here a period is not over before its end, and nothing is
    /// lost after it.
    #[test]
    fn auto_replenish_ignores_timer_jitter() {
        for limiter in both_buckets(10, 1, 10 * MINUTE) {
            take(&limiter, START, 3);
            for (now, available) in [
                (0, 7),
                (600_000 - 1, 7),
                (600_000, 8),
                (600_001, 8),
                (1_200_000 - 1, 8),
                (1_200_000, 9),
            ] {
                assert_eq!(limiter.available_at(millis(now)), available, "at {now} ms");
            }
        }
    }

    #[test]
    fn retry_metadata_on_failed_wait_async() {
        for limiter in both_buckets(2, 1, TWENTY_SECONDS) {
            take(&limiter, START, 2);
            assert_eq!(wait(&limiter, START, 2), Duration::from_secs(40));
        }
    }

    /// Several tokens come in per period. In steps, they all come at its end.
    #[test]
    fn correct_retry_metadata_with_multiple_tokens_per_period() {
        for limiter in both_buckets(2, 2, TWENTY_SECONDS) {
            take(&limiter, START, 2);
            assert_eq!(wait(&limiter, START, 2), Duration::from_secs(20));
        }
        let [steps, continuous] = both_buckets(3, 2, TWENTY_SECONDS);
        take(&steps, START, 3);
        assert_eq!(wait(&steps, START, 3), Duration::from_secs(40));
        take(&continuous, START, 3);
        assert_eq!(wait(&continuous, START, 3), Duration::from_secs(30));
    }

    /// .NET's `CorrectRetryMetadataWithLargeTokensPerPeriod`: one period is enough, or a fiftieth
    /// of it if the refill is continuous.
    #[test]
    fn correct_retry_metadata_with_large_tokens_per_period() {
        let [steps, continuous] = both_buckets(2, 100, TWENTY_SECONDS);
        take(&steps, START, 2);
        assert_eq!(wait(&steps, START, 2), Duration::from_secs(20));
        take(&continuous, START, 2);
        assert_eq!(wait(&continuous, START, 2), Duration::from_millis(400));
    }

    #[test]
    fn correct_retry_metadata_with_non_zero_available_items() {
        for limiter in both_buckets(3, 1, TWENTY_SECONDS) {
            take(&limiter, START, 2);
            assert_eq!(limiter.available_at(START), 1);
            assert_eq!(wait(&limiter, START, 3), Duration::from_secs(40));
        }
    }

    #[test]
    fn retry_metadata_on_failed_attempt_acquire_zero_permit_count() {
        for limiter in both_buckets(2, 1, TWENTY_SECONDS) {
            take(&limiter, START, 2);
            assert_eq!(wait(&limiter, START, 0), Duration::from_secs(20));
        }
    }

    #[test]
    fn replenish_honors_tokens_per_period() {
        let [steps, continuous] = both_buckets(7, 3, Duration::from_millis(1));
        for limiter in [steps, continuous] {
            take(&limiter, START, 5);
            assert!(limiter.try_acquire_at(START, 3).is_err());
            for (now, available) in [(0, 2), (1, 5), (2, 7), (3, 7)] {
                assert_eq!(limiter.available_at(millis(now)), available, "at {now} ms");
            }
        }
    }

    /// A clock beyond 32 bits of milliseconds. .NET waits for half a token; here a request for it
    /// is denied.
    #[test]
    fn replenish_works_with_ticks_over_int32_max() {
        let at = |more: u64| Timestamp::from_micros(4_294_967_295_000 + more);
        let builder =
            TokenBucket::builder(Rate::new(1, Duration::from_millis(2)), 10).origin(at(0));
        for limiter in [
            builder.stepwise().build().unwrap(),
            builder.build().unwrap(),
        ] {
            take(&limiter, at(0), 10);
            assert!(limiter.try_acquire_at(at(0), 1).is_err());
            take(&limiter, at(2_000), 1);
            assert!(limiter.try_acquire_at(at(3_000), 1).is_err());
            take(&limiter, at(5_000), 1);
        }
    }

    /// Half a token is not available as a token.
    #[test]
    fn attempt_acquire_zero_with_fractional_tokens_reports_unavailable() {
        for limiter in both_buckets(1, 1, TWENTY_SECONDS) {
            take(&limiter, START, 1);
            assert!(limiter.try_acquire_at(secs(10), 0).is_err());
            assert_eq!(limiter.available_at(secs(10)), 0);
            assert!(limiter.try_acquire_at(secs(20), 0).is_ok());
        }
    }
}

/// Behaviour of .NET's limiters that none of its tests shows; ours is decided on purpose.
mod beyond_the_tests {
    use super::*;

    /// However late a request comes, all segments that are over have left. (.NET advances by one
    /// segment at each replenishment.)
    #[test]
    fn a_sliding_window_catches_up_with_all_segments_that_have_passed() {
        let limiter = SlidingWindow::<4>::new(4, Duration::from_secs(4), 4);
        for second in 0..4 {
            take(&limiter, secs(second), 1);
        }
        assert_eq!(limiter.available_at(secs(6)), 3);
        take(&limiter, secs(6), 3);
        assert_eq!(limiter.available_at(secs(7)), 1);
    }

    /// (.NET starts the next period when the limiter is replenished, so that lateness adds up.)
    #[test]
    fn edges_stay_on_the_grid_however_late_they_are_noticed() {
        let window = FixedWindow::new(1, Duration::from_secs(1));
        take(&window, millis(2_500), 1);
        assert!(window.try_acquire_at(millis(2_999), 1).is_err());
        take(&window, millis(3_000), 1);

        let segments = SlidingWindow::<2>::new(1, Duration::from_secs(2), 2);
        take(&segments, millis(2_900), 1);
        assert!(segments.try_acquire_at(millis(3_999), 1).is_err());
        take(&segments, millis(4_000), 1);

        let steps = TokenBucket::builder(Rate::per_second(1), 1)
            .stepwise()
            .initial(0)
            .build()
            .unwrap();
        take(&steps, millis(2_500), 1);
        assert!(steps.try_acquire_at(millis(2_999), 1).is_err());
        take(&steps, millis(3_000), 1);
    }

    /// (A period under 1 ms makes .NET's timer fire once or never.)
    #[test]
    fn periods_may_be_as_short_as_a_nanosecond() {
        let nanos = Timestamp::from_nanos;
        for period in [1, 2, 999, 100_000] {
            let duration = Duration::from_nanos(period);
            let [steps, continuous] = both_buckets(1, 1, duration);
            let window = FixedWindow::new(1, duration);
            let segments = SlidingWindow::<2>::new(1, 2 * duration, 2);
            let limiters: [(&dyn Limiter, u64); 4] =
                [(&steps, 1), (&continuous, 1), (&window, 1), (&segments, 2)];
            for (limiter, periods) in limiters {
                for turn in 0..3 {
                    let now = nanos(turn * periods * period);
                    take(limiter, now, 1);
                    let last = nanos(now.as_nanos() + periods * period - 1);
                    assert!(limiter.try_acquire_at(last, 1).is_err(), "{period} ns");
                }
            }
        }
    }

    /// A lease cannot be dropped twice; but the id of a pooled lease could be released twice.
    #[test]
    fn a_concurrency_lease_releases_once() {
        let limiter = Concurrency::new(2);
        let _other = limiter.try_acquire(1).unwrap();
        let mut lease = limiter.try_acquire(1).unwrap();
        lease.release(1).unwrap();
        assert_eq!(limiter.available(), 1);
        drop(lease);
        assert_eq!(limiter.available(), 1);

        let pool: LeasePool<_, 2> = LeasePool::new(&limiter);
        let id = pool.claim_at(START, 1, None).unwrap();
        assert_eq!(pool.release(id), Ok(1));
        assert_eq!(pool.release(id), Err(StaleId));
        assert_eq!(limiter.available(), 1);
    }

    /// (.NET's token bucket loses tokens when it is replenished with an older time.)
    #[test]
    fn time_that_runs_backwards_changes_nothing() {
        let [steps, continuous] = both_buckets(4, 1, Duration::from_secs(1));
        let window = FixedWindow::new(4, Duration::from_secs(4));
        let segments = SlidingWindow::<4>::new(4, Duration::from_secs(4), 4);
        let limiters: [&dyn Limiter; 4] = [&steps, &continuous, &window, &segments];
        for limiter in limiters {
            take(limiter, secs(100), 3);
            for older in [99, 98, 60, 0] {
                assert!(limiter.available_at(secs(older)) <= 1);
                assert!(limiter.try_acquire_at(secs(older), 2).is_err());
            }
            assert_eq!(limiter.available_at(secs(100)), 1);
            assert_eq!(limiter.available_at(secs(104)), 4);
        }
    }

    /// (.NET's `TryReplenish` answers "true" there, and has no effect.)
    #[test]
    fn within_a_fixed_window_nothing_changes() {
        let limiter = FixedWindow::new(2, Duration::from_secs(1));
        take(&limiter, START, 2);
        let before = format!("{limiter:?}");
        for now in [0, 1, 500, 999] {
            assert_eq!(limiter.available_at(millis(now)), 0);
            assert!(limiter.try_acquire_at(millis(now), 1).is_err());
        }
        assert_eq!(format!("{limiter:?}"), before);
    }

    /// A fresh limiter counts as idle since its origin.
    #[test]
    fn a_fresh_limiter_is_idle_since_its_origin() {
        let origin = secs(1_000);
        let window = FixedWindow::builder(1, Duration::from_secs(1))
            .origin(origin)
            .build()
            .unwrap();
        let segments = SlidingWindow::<4>::builder(1, Duration::from_secs(4), 4)
            .origin(origin)
            .build()
            .unwrap();
        let bucket = TokenBucket::builder(Rate::per_second(1), 1).origin(origin);
        let steps = bucket.stepwise().build().unwrap();
        let continuous = bucket.build().unwrap();
        let limiters: [&dyn Limiter; 4] = [&window, &segments, &steps, &continuous];
        for limiter in limiters {
            assert_eq!(limiter.idle_at(secs(1_000)), Idle::Since(origin));
            assert_eq!(limiter.idle_at(secs(9_000)), Idle::Since(origin));
        }
        assert_eq!(
            Concurrency::new(1).idle_at(secs(9_000)),
            Idle::Now,
            "no clock is involved"
        );
    }

    /// (.NET's token bucket, full for an hour and then emptied, is full again at the next
    /// replenishment: twice the burst.)
    #[test]
    fn a_bucket_that_was_full_for_long_is_empty_once_its_burst_is_taken() {
        for limiter in both_buckets(5, 1, Duration::from_secs(1)) {
            take(&limiter, secs(3_600), 5);
            assert_eq!(limiter.available_at(secs(3_600)), 0);
            assert_eq!(
                limiter
                    .try_acquire_at(secs(3_600), 1)
                    .unwrap_err()
                    .retry(&limiter),
                Retry::At(secs(3_601))
            );
            assert_eq!(limiter.available_at(secs(3_601)), 1);
        }
    }
}
