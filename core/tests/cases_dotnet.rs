//! The behaviour that .NET's own tests of System.Threading.RateLimiting show for every limiter,
//! except waiting in a queue.
//!
//! Each module is one of .NET's suites, and each function in it the test of that name there. Each
//! behaviour is written once, below the suites, and holds for all of them. Where .NET replenishes
//! by a call, the manual time advances. Intended differences are asserted our way, and listed in
//! `docs/coming-from/dotnet.md`.

use core::time::Duration;

use portcullis_core::builder::Setting;
use portcullis_core::limiter::Idle;
use portcullis_core::metadata::{self, REASON_PHRASE, RETRY_AFTER};
use portcullis_core::{
    Concurrency, Counted, Denied, FixedWindow, Limiter, LimiterExt, Rate, SettingsError,
    SlidingWindow, Timestamp, TokenBucket,
};

/// .NET `ConcurrencyLimiterTests`.
mod concurrency_limiter_tests {
    use super::*;

    shapes! { Permits:
        can_acquire_resource, throws_when_acquiring_more_than_limit, large_acquires_do_not_integer_overflow,
        acquire_zero_with_availability, acquire_zero_without_availability, no_metadata_on_acquired_lease,
        metadata_names_contains_all_metadata, get_statistics_returns_new_instances,
        get_statistics_has_correct_values, get_statistics_with_zero_permit_count,
        null_idle_duration_when_active
    }

    /// .NET refuses a negative limit; ours cannot be negative, and refuses zero.
    #[test]
    fn invalid_options_throws() {
        assert_eq!(
            Concurrency::builder(0).build_on::<u64>().unwrap_err(),
            SettingsError::Zero {
                setting: Setting::Limit
            }
        );
    }

    /// No clock is involved, so the limiter knows that it is idle, but not since when.
    #[test]
    fn idle_duration_updates_when_changing_from_active() {
        let limiter = Permits::with_limit(1);
        let lease = limiter.try_acquire_at(START, 1).unwrap();
        drop(lease);
        assert_eq!(limiter.idle_at(START), Idle::Now);
    }

    /// As above.
    #[test]
    fn idle_duration_updates_when_idle() {
        let limiter = Permits::with_limit(1);
        assert_eq!(limiter.idle_at(START), Idle::Now);
        assert_eq!(limiter.idle_at(Timestamp::from_millis(15)), Idle::Now);
    }
}

/// .NET `FixedWindowRateLimiterTests`.
mod fixed_window_rate_limiter_tests {
    use super::*;

    shapes! { Windows:
        can_acquire_resource, throws_when_acquiring_more_than_limit, large_acquires_do_not_integer_overflow,
        acquire_zero_with_availability, acquire_zero_without_availability, no_metadata_on_acquired_lease,
        metadata_names_contains_all_metadata, get_statistics_returns_new_instances,
        get_statistics_has_correct_values, get_statistics_with_zero_permit_count,
        null_idle_duration_when_active, idle_duration_updates_when_idle,
        idle_duration_updates_when_changing_from_active
    }

    /// Negative durations do not exist here. Zero is refused, and so are durations over 292 years.
    #[test]
    fn invalid_options_throws() {
        let refused = |limit, window| FixedWindow::builder(limit, window).build().unwrap_err();
        assert_eq!(
            refused(0, 2 * MINUTE),
            SettingsError::Zero {
                setting: Setting::Limit
            }
        );
        assert_eq!(
            refused(1, Duration::ZERO),
            SettingsError::Zero {
                setting: Setting::Window
            }
        );
        assert!(matches!(
            refused(1, Duration::MAX),
            SettingsError::TooLarge {
                setting: Setting::Window,
                ..
            }
        ));
    }
}

/// .NET `SlidingWindowRateLimiterTests`.
mod sliding_window_rate_limiter_tests {
    use super::*;

    shapes! { Segments:
        can_acquire_resource, throws_when_acquiring_more_than_limit, large_acquires_do_not_integer_overflow,
        acquire_zero_with_availability, acquire_zero_without_availability, no_metadata_on_acquired_lease,
        metadata_names_contains_all_metadata, get_statistics_returns_new_instances,
        get_statistics_has_correct_values, get_statistics_with_zero_permit_count,
        null_idle_duration_when_active, idle_duration_updates_when_idle,
        idle_duration_updates_when_changing_from_active
    }

    /// Negative durations do not exist here. Zero is refused, and so are durations over 292 years.
    #[test]
    fn invalid_options_throws() {
        let refused = |limit, window, segments| {
            SlidingWindow::<2>::builder(limit, window, segments)
                .build()
                .unwrap_err()
        };
        assert_eq!(
            refused(0, 2 * MINUTE, 1),
            SettingsError::Zero {
                setting: Setting::Limit
            }
        );
        assert_eq!(
            refused(1, Duration::ZERO, 1),
            SettingsError::Zero {
                setting: Setting::Window
            }
        );
        assert_eq!(
            refused(1, 2 * MINUTE, 0),
            SettingsError::Zero {
                setting: Setting::Segments
            }
        );
        assert!(matches!(
            refused(1, Duration::MAX, 1),
            SettingsError::TooLarge {
                setting: Setting::Window,
                ..
            }
        ));
    }
}

/// .NET `TokenBucketRateLimiterTests`, with a bucket that refills in steps.
mod token_bucket_rate_limiter_tests {
    use super::*;

    shapes! { Steps:
        can_acquire_resource, throws_when_acquiring_more_than_limit, large_acquires_do_not_integer_overflow,
        acquire_zero_with_availability, acquire_zero_without_availability, no_metadata_on_acquired_lease,
        metadata_names_contains_all_metadata, get_statistics_returns_new_instances,
        get_statistics_has_correct_values, get_statistics_with_zero_permit_count,
        null_idle_duration_when_active, idle_duration_updates_when_idle,
        idle_duration_updates_when_changing_from_active
    }

    /// Negative durations do not exist here. Zero is refused, and so are durations over 292 years.
    #[test]
    fn invalid_options_throws() {
        let refused = |burst, period| {
            TokenBucket::builder(Rate::new(1, period), burst)
                .stepwise()
                .build()
                .unwrap_err()
        };
        assert_eq!(
            refused(0, 2 * MINUTE),
            SettingsError::Zero {
                setting: Setting::Burst
            }
        );
        assert_eq!(
            refused(1, Duration::ZERO),
            SettingsError::Zero {
                setting: Setting::Period
            }
        );
        assert!(matches!(
            refused(1, Duration::MAX),
            SettingsError::TooLarge {
                setting: Setting::Period,
                ..
            }
        ));
    }
}

/// .NET `TokenBucketRateLimiterTests` once more, with a bucket that refills continuously.
mod token_bucket_rate_limiter_tests_continuous {
    use super::*;

    shapes! { Drops:
        can_acquire_resource, throws_when_acquiring_more_than_limit, large_acquires_do_not_integer_overflow,
        acquire_zero_with_availability, acquire_zero_without_availability, no_metadata_on_acquired_lease,
        metadata_names_contains_all_metadata, get_statistics_returns_new_instances,
        get_statistics_has_correct_values, get_statistics_with_zero_permit_count,
        null_idle_duration_when_active, idle_duration_updates_when_idle,
        idle_duration_updates_when_changing_from_active
    }
}

const START: Timestamp = Timestamp::ZERO;
const MINUTE: Duration = Duration::from_mins(1);

/// A limiter with the settings of .NET's suite.
trait Suite {
    type Limiter: Limiter;
    /// The time between two replenishments; `None` if dropping the lease returns the permits.
    const PERIOD: Option<Duration>;
    /// .NET's largest number, or the largest limit if that is smaller.
    const MOST: u32 = i32::MAX as u32;

    fn with_limit(limit: u32) -> Self::Limiter;

    /// The number of replenishments that return `n` permits taken at the start.
    fn periods(n: u32) -> u32;

    /// The instant of that replenishment, and 1 ns before it; `None` if time does not matter.
    fn return_of(n: u32) -> Option<[Timestamp; 2]> {
        let after = START.saturating_add(Self::PERIOD? * Self::periods(n));
        Some([after, Timestamp::from_nanos(after.as_nanos() - 1)])
    }
}

struct Permits;

impl Suite for Permits {
    type Limiter = Concurrency;
    const PERIOD: Option<Duration> = None;
    const MOST: u32 = Concurrency::<u64>::max_limit();

    fn with_limit(limit: u32) -> Concurrency {
        Concurrency::new(limit)
    }

    fn periods(_: u32) -> u32 {
        0
    }
}

struct Windows;

impl Suite for Windows {
    type Limiter = FixedWindow;
    const PERIOD: Option<Duration> = Some(Duration::from_millis(1));

    fn with_limit(limit: u32) -> FixedWindow {
        FixedWindow::new(limit.into(), Duration::from_millis(1))
    }

    fn periods(_: u32) -> u32 {
        1
    }
}

struct Segments;

impl Suite for Segments {
    type Limiter = SlidingWindow<2>;
    const PERIOD: Option<Duration> = Some(Duration::from_micros(500));

    fn with_limit(limit: u32) -> SlidingWindow<2> {
        SlidingWindow::new(limit.into(), Duration::from_millis(1), 2)
    }

    fn periods(_: u32) -> u32 {
        2
    }
}

struct Steps;

impl Suite for Steps {
    type Limiter = TokenBucket;
    const PERIOD: Option<Duration> = Some(Duration::from_millis(1));

    fn with_limit(limit: u32) -> TokenBucket {
        let one_a_millisecond = Rate::new(1, Duration::from_millis(1));
        TokenBucket::builder(one_a_millisecond, limit.into())
            .stepwise()
            .build()
            .unwrap()
    }

    fn periods(n: u32) -> u32 {
        n
    }
}

struct Drops;

impl Suite for Drops {
    type Limiter = TokenBucket;
    const PERIOD: Option<Duration> = Some(Duration::from_millis(1));

    fn with_limit(limit: u32) -> TokenBucket {
        TokenBucket::new(Rate::new(1, Duration::from_millis(1)), limit.into())
    }

    fn periods(n: u32) -> u32 {
        n
    }
}

/// The only permit is granted once. For a concurrency limit, dropping the lease returns it;
/// otherwise time does.
fn can_acquire_resource<S: Suite>() {
    let limiter = S::with_limit(1);
    let lease = limiter.try_acquire_at(START, 1).unwrap();
    assert!(limiter.try_acquire_at(START, 1).is_err());
    drop(lease);
    match S::return_of(1) {
        None => assert!(limiter.try_acquire_at(START, 1).is_ok()),
        Some([after, before]) => {
            assert!(limiter.try_acquire_at(START, 1).is_err());
            assert!(limiter.try_acquire_at(before, 1).is_err());
            assert!(limiter.try_acquire_at(after, 1).is_ok());
        }
    }
}

/// A request for more than the limit has an error of its own, whether or not permits are free, and
/// takes nothing.
fn throws_when_acquiring_more_than_limit<S: Suite>() {
    let limiter = S::with_limit(1);
    let exceeds = Denied::ExceedsCapacity {
        permits: 2,
        capacity: 1,
    };
    assert_eq!(limiter.try_acquire_at(START, 2).unwrap_err(), exceeds);
    let _lease = limiter.try_acquire_at(START, 1).unwrap();
    assert_eq!(limiter.try_acquire_at(START, 2).unwrap_err(), exceeds);
    assert_eq!(
        RETRY_AFTER.of_denied(&limiter, START, exceeds),
        Some(portcullis_core::Retry::Never)
    );
}

/// .NET's `LargeAcquiresAndQueuesDoNotIntegerOverflow`, without its queue.
fn large_acquires_do_not_integer_overflow<S: Suite>() {
    let limiter = S::with_limit(S::MOST);
    let lease = limiter.try_acquire_at(START, S::MOST).unwrap();
    assert_eq!(limiter.available_at(START), 0);
    assert!(limiter.try_acquire_at(START, 3).is_err());
    assert!(limiter.try_acquire_at(START, S::MOST).is_err());
    drop(lease);
    let [after, before] = S::return_of(S::MOST).unwrap_or([START; 2]);
    assert_eq!(
        limiter.try_acquire_at(before, S::MOST).is_ok(),
        S::PERIOD.is_none()
    );
    assert_eq!(
        limiter.try_acquire_at(after, S::MOST).unwrap().permits(),
        S::MOST
    );
}

fn acquire_zero_with_availability<S: Suite>() {
    let limiter = S::with_limit(1);
    assert_eq!(limiter.try_acquire_at(START, 0).unwrap().permits(), 0);
    assert_eq!(limiter.available_at(START), 1);
}

/// A probe is answered like a request for 1. Dropping its lease has no effect.
fn acquire_zero_without_availability<S: Suite>() {
    let limiter = S::with_limit(1);
    let probe = limiter.try_acquire_at(START, 0).unwrap();
    let lease = limiter.try_acquire_at(START, 1).unwrap();
    assert!(limiter.try_acquire_at(START, 0).is_err());
    drop(probe);
    assert_eq!(limiter.available_at(START), 0);
    drop(lease);
}

fn no_metadata_on_acquired_lease<S: Suite>() {
    let limiter = S::with_limit(1);
    let _lease = limiter.try_acquire_at(START, 1).unwrap();
    assert_eq!(RETRY_AFTER.of_granted(&limiter, START), None);
    assert_eq!(REASON_PHRASE.of_granted(&limiter, START), None);
}

/// .NET lists one name for every outcome. Ours lists the names that have a value for this outcome.
fn metadata_names_contains_all_metadata<S: Suite>() {
    let limiter = S::with_limit(1);
    let _lease = limiter.try_acquire_at(START, 1).unwrap();
    assert!(metadata::names(&limiter, START, None).eq(["USED_SHARE"]));
    let denied = limiter.try_acquire_at(START, 1).unwrap_err();
    assert!(metadata::names(&limiter, START, Some(denied)).eq([
        "RETRY_AFTER",
        "REASON_PHRASE",
        "USED_SHARE"
    ]));
}

/// A snapshot is a value: it does not change later.
fn get_statistics_returns_new_instances<S: Suite>() {
    let limiter = Counted::new(S::with_limit(1));
    let before = (limiter.available_at(START), limiter.counts());
    let _lease = limiter.try_acquire_at(START, 1).unwrap();
    let after = (limiter.available_at(START), limiter.counts());
    assert_eq!(
        (before.0, before.1.granted.requests, before.1.held),
        (1, 0, 0)
    );
    assert_eq!((after.0, after.1.granted.requests, after.1.held), (0, 1, 1));
}

/// The counters of granted and denied count requests, not permits.
fn get_statistics_has_correct_values<S: Suite>() {
    let limiter = Counted::new(S::with_limit(100));
    let statistics = |now| {
        let counts = limiter.counts();
        (
            limiter.available_at(now),
            counts.denied.requests,
            counts.granted.requests,
        )
    };
    assert_eq!(statistics(START), (100, 0, 0));
    let lease = limiter.try_acquire_at(START, 60).unwrap();
    assert_eq!(statistics(START), (40, 0, 1));
    assert!(limiter.try_acquire_at(START, 100).is_err());
    assert_eq!(statistics(START), (40, 1, 1));
    assert_eq!(limiter.counts().held, 60);
    drop(lease);
    let [after, _] = S::return_of(60).unwrap_or([START; 2]);
    assert_eq!(statistics(after), (100, 1, 1));
    assert_eq!(limiter.counts().held, 0);
}

fn get_statistics_with_zero_permit_count<S: Suite>() {
    let limiter = Counted::new(S::with_limit(100));
    let statistics = || {
        let counts = limiter.counts();
        (
            limiter.available_at(START),
            counts.denied.requests,
            counts.granted.requests,
        )
    };
    let _probe = limiter.try_acquire_at(START, 0).unwrap();
    assert_eq!(statistics(), (100, 0, 1));
    let _lease = limiter.try_acquire_at(START, 100).unwrap();
    assert_eq!(statistics(), (0, 0, 2));
    assert!(limiter.try_acquire_at(START, 0).is_err());
    assert_eq!(statistics(), (0, 1, 2));
}

fn null_idle_duration_when_active<S: Suite>() {
    let limiter = S::with_limit(1);
    let _lease = limiter.try_acquire_at(START, 1).unwrap();
    assert_eq!(limiter.idle_at(START), Idle::InUse);
    if let Some([_, before]) = S::return_of(1) {
        assert_eq!(limiter.idle_at(before), Idle::InUse);
    }
}

/// A fresh limiter is idle since its origin, and its idle time grows.
fn idle_duration_updates_when_idle<S: Suite>() {
    let limiter = S::with_limit(3);
    for now in [START, Timestamp::from_millis(15)] {
        assert_eq!(limiter.idle_at(now), Idle::Since(START));
    }
}

/// Idle since the instant at which the last permit returned.
fn idle_duration_updates_when_changing_from_active<S: Suite>() {
    let limiter = S::with_limit(1);
    let _lease = limiter.try_acquire_at(START, 1).unwrap();
    let [after, _] = S::return_of(1).expect("a limiter that uses time");
    assert_eq!(limiter.idle_at(after), Idle::Since(after));
    assert_eq!(
        limiter.idle_at(after.saturating_add(MINUTE)),
        Idle::Since(after)
    );
}

/// Runs each behaviour, under its name in .NET, on the limiter of one suite.
macro_rules! shapes {
    ($suite:ident: $($shape:ident),*) => {$(
        #[test]
        fn $shape() {
            super::$shape::<$suite>();
        }
    )*};
}
use shapes;
