//! A builder refuses wrong settings with an error that names the setting and its bound. The bound
//! itself is accepted, and one more is not.

use core::time::Duration;

use portcullis_core::builder::{
    FixedWindowBuilder, Setting, SlidingWindowBuilder, TokenBucketBuilder,
};
use portcullis_core::keyed::{ConcurrencyRules, Line, Seed};
use portcullis_core::leases::TooFewHeld;
use portcullis_core::limiter::Idle;
use portcullis_core::state::Word;
use portcullis_core::{
    AdjustableBucket, Concurrency, CooldownWindow, Denied, FixedWindow, Keyed, Rate, SettingsError,
    SlidingWindow, Timestamp, TokenBucket,
};

const SECOND: Duration = Duration::from_secs(1);
/// The longest duration that is accepted as a setting: 292 years.
const LONGEST: u64 = u64::MAX / 2;

const fn zero(setting: Setting) -> SettingsError {
    SettingsError::Zero { setting }
}

const fn nanos(n: u64) -> Duration {
    Duration::from_nanos(n)
}

/// The setting and the bound of an error for a value that is too large.
fn bound(refused: SettingsError) -> (Setting, u64) {
    match refused {
        SettingsError::TooLarge { setting, max } => (setting, max),
        other => panic!("{other:?}"),
    }
}

fn bucket<W: Word>(settings: TokenBucketBuilder) -> Result<(), SettingsError> {
    settings.build_on::<W>().map(drop)
}

fn window<W: Word>(settings: FixedWindowBuilder) -> Result<(), SettingsError> {
    settings.build_on::<W>().map(drop)
}

fn segments<W: Word, const MAX: usize>(
    settings: SlidingWindowBuilder<MAX>,
) -> Result<(), SettingsError> {
    settings.build_on::<W>().map(drop)
}

/// Checks that the bound that a builder names is accepted, and one more is not. Returns the bound.
fn is_tight(setting: Setting, with: impl Fn(u64) -> Result<(), SettingsError>) -> u64 {
    let (named, max) = bound(with(u64::MAX).expect_err("the largest number"));
    assert_eq!(named, setting);
    assert_eq!(with(max), Ok(()), "{setting:?} of {max}");
    assert_eq!(
        with(max + 1),
        Err(SettingsError::TooLarge { setting, max }),
        "{setting:?} of {max} + 1"
    );
    max
}

mod zeros {
    use super::*;

    fn on<W: Word>() {
        assert_eq!(
            bucket::<W>(TokenBucket::builder(Rate::per_second(1), 0)),
            Err(zero(Setting::Burst))
        );
        let rate = Rate::new(1, Duration::ZERO);
        assert_eq!(
            bucket::<W>(TokenBucket::builder(rate, 1)),
            Err(zero(Setting::Period))
        );
        assert_eq!(
            bucket::<W>(TokenBucket::builder(rate, 1).stepwise()),
            Err(zero(Setting::Period))
        );
        let tickless = TokenBucket::builder(Rate::per_second(1), 1).tick(Duration::ZERO);
        assert_eq!(bucket::<W>(tickless), Err(zero(Setting::Tick)));
        let timeless = TokenBucket::builder(Rate::per_second(1), 1).staleness(Duration::ZERO);
        assert_eq!(bucket::<W>(timeless), Err(zero(Setting::Staleness)));

        assert_eq!(
            window::<W>(FixedWindow::builder(0, SECOND)),
            Err(zero(Setting::Limit))
        );
        assert_eq!(
            window::<W>(FixedWindow::builder(1, Duration::ZERO)),
            Err(zero(Setting::Window))
        );
        let tickless = FixedWindow::builder(1, SECOND)
            .started_by_first_request()
            .tick(Duration::ZERO);
        assert_eq!(window::<W>(tickless), Err(zero(Setting::Tick)));
        let started = FixedWindow::builder(0, SECOND).started_by_first_request();
        assert_eq!(window::<W>(started), Err(zero(Setting::Limit)));

        let sliding = SlidingWindow::<4>::builder;
        assert_eq!(
            segments::<W, 4>(sliding(0, SECOND, 4)),
            Err(zero(Setting::Limit))
        );
        assert_eq!(
            segments::<W, 4>(sliding(1, Duration::ZERO, 4)),
            Err(zero(Setting::Window))
        );
        assert_eq!(
            segments::<W, 4>(sliding(1, SECOND, 0)),
            Err(zero(Setting::Segments))
        );

        assert_eq!(
            Concurrency::builder(0).build_on::<W>().map(drop),
            Err(zero(Setting::Limit))
        );
    }

    #[test]
    fn are_refused_on_64_bits() {
        on::<u64>();
    }

    #[test]
    fn are_refused_on_32_bits() {
        on::<u32>();
    }

    #[test]
    fn a_rate_of_zero_is_a_setting_of_its_own() {
        for rate in [Rate::ZERO, Rate::new(0, SECOND), Rate::per_day(0)] {
            let bucket = TokenBucket::builder(rate, 5).build().unwrap();
            assert!(bucket.try_acquire_at(Timestamp::MAX, 5).is_ok());
            assert!(bucket.try_acquire_at(Timestamp::MAX, 1).is_err());
        }
    }

    /// The bucket is idle while it is full; otherwise it never becomes idle.
    #[test]
    fn a_rate_of_zero_needs_no_staleness() {
        fn on<W: Word>() {
            let settings = TokenBucket::builder(Rate::ZERO, 5).staleness(SECOND);
            let bucket = settings.build_on::<W>().unwrap();
            assert_eq!(
                (bucket.timing().staleness, bucket.timing().horizon),
                (Duration::MAX, Duration::MAX)
            );
            assert_eq!(bucket.idle_at(Timestamp::MAX), Idle::Now);
            assert!(bucket.try_acquire_at(Timestamp::ZERO, 5).is_ok());
            assert_eq!(bucket.idle_at(Timestamp::MAX), Idle::InUse);
        }
        on::<u64>();
        on::<u32>();
    }

    #[test]
    fn a_concurrency_limit_may_become_zero_later() {
        let limit = Concurrency::new(1);
        assert_eq!(limit.set_limit(0), Ok(1));
        assert!(limit.try_acquire(1).is_err());
    }
}

mod bounds {
    use super::*;

    /// A quarter of the positions that a word can distinguish.
    fn quarter<W: Word>() -> u64 {
        1 << (W::BITS - 2)
    }

    fn of_a_burst<W: Word>() {
        let at = |rate, tick| {
            is_tight(Setting::Burst, |burst| {
                bucket::<W>(
                    TokenBucket::builder(rate, burst)
                        .initial(0)
                        .tick(nanos(tick)),
                )
            })
        };
        // One unit per nanosecond, and as many per permit as the period has nanoseconds.
        assert_eq!(at(Rate::new(1, nanos(1)), 1), quarter::<W>());
        assert_eq!(at(Rate::new(1, nanos(999)), 1), quarter::<W>() / 999);
        assert_eq!(at(Rate::per_second(1), 1_000_000), quarter::<W>() / 1_000);
        assert_eq!(at(Rate::ZERO, 1), quarter::<W>());
        let stepwise = is_tight(Setting::Burst, |burst| {
            bucket::<W>(
                TokenBucket::builder(Rate::per_second(7), burst)
                    .initial(0)
                    .stepwise(),
            )
        });
        assert_eq!(stepwise, quarter::<W>());
    }

    #[test]
    fn of_a_burst_on_64_bits() {
        of_a_burst::<u64>();
    }

    #[test]
    fn of_a_burst_on_32_bits() {
        of_a_burst::<u32>();
    }

    fn of_the_initial_permits<W: Word>() {
        let settings = TokenBucket::builder(Rate::per_second(1_000), 10);
        assert_eq!(
            is_tight(Setting::Initial, |initial| bucket::<W>(
                settings.initial(initial)
            )),
            10
        );
    }

    #[test]
    fn of_the_initial_permits_on_any_word() {
        of_the_initial_permits::<u64>();
        of_the_initial_permits::<u32>();
    }

    /// The bound of a limit leaves the word room for a staleness of at least a second.
    fn of_a_window_limit<W: Word>(expected: [u64; 3]) {
        let grid = is_tight(Setting::Limit, |limit| {
            window::<W>(FixedWindow::builder(limit, SECOND))
        });
        let started = is_tight(Setting::Limit, |limit| {
            let settings = FixedWindow::builder(limit, SECOND).started_by_first_request();
            window::<W>(settings.tick(Duration::from_millis(1)))
        });
        let sliding = is_tight(Setting::Limit, |limit| {
            segments::<W, 8>(SlidingWindow::builder(limit, SECOND, 8))
        });
        assert_eq!([grid, started, sliding], expected);
    }

    #[test]
    fn of_a_window_limit_on_64_bits() {
        of_a_window_limit::<u64>([(1 << 60) - 1, (1 << 51) - 1, (1 << 57) - 1]);
    }

    #[test]
    fn of_a_window_limit_on_32_bits() {
        of_a_window_limit::<u32>([(1 << 28) - 1, (1 << 19) - 1, (1 << 25) - 1]);
    }

    fn of_durations<W: Word>() {
        let period = |stepwise: bool| {
            is_tight(Setting::Period, |period| {
                let settings = TokenBucket::builder(Rate::new(1, nanos(period)), 1);
                // Each period in one step: a continuous bucket would have to distinguish the
                // nanoseconds of a period.
                bucket::<W>(if stepwise {
                    settings.stepwise()
                } else {
                    settings.tick(nanos(period))
                })
            })
        };
        assert_eq!([period(true), period(false)], [LONGEST; 2]);
        let tick = is_tight(Setting::Tick, |tick| {
            bucket::<W>(TokenBucket::builder(Rate::new(1, nanos(LONGEST)), 1).tick(nanos(tick)))
        });
        assert_eq!(tick, LONGEST);

        let grid = is_tight(Setting::Window, |length| {
            window::<W>(FixedWindow::builder(1, nanos(length)))
        });
        assert_eq!(grid, LONGEST);
        let tick = is_tight(Setting::Tick, |tick| {
            let settings = FixedWindow::builder(1, nanos(LONGEST)).started_by_first_request();
            window::<W>(settings.tick(nanos(tick)))
        });
        assert_eq!(tick, LONGEST);
        let sliding = is_tight(Setting::Window, |length| {
            segments::<W, 4>(SlidingWindow::builder(1, nanos(length), 1))
        });
        assert_eq!(sliding, LONGEST);
    }

    #[test]
    fn of_durations_on_64_bits() {
        of_durations::<u64>();
    }

    #[test]
    fn of_durations_on_32_bits() {
        of_durations::<u32>();
    }

    #[test]
    fn of_segments_is_the_ring_and_one_less_when_strict() {
        let settings =
            |n: u64| SlidingWindow::<8>::builder(1, SECOND, u32::try_from(n).unwrap_or(u32::MAX));
        let strict = |n| settings(n).strict();
        assert_eq!(
            is_tight(Setting::Segments, |n| segments::<u64, 8>(settings(n))),
            8
        );
        assert_eq!(
            is_tight(Setting::Segments, |n| segments::<u32, 8>(settings(n))),
            8
        );
        assert_eq!(
            is_tight(Setting::Segments, |n| segments::<u64, 8>(strict(n))),
            7
        );
        assert_eq!(
            is_tight(Setting::Segments, |n| segments::<u32, 8>(strict(n))),
            7
        );
        // A ring of one segment has no room for the strict mode.
        let strict_ring_of_one = SlidingWindow::<1>::builder(1, SECOND, 1).strict();
        assert_eq!(
            bound(strict_ring_of_one.build().unwrap_err()),
            (Setting::Segments, 0)
        );
    }

    #[test]
    fn a_segment_is_at_least_a_nanosecond() {
        let settings = |length| SlidingWindow::<8>::builder(1, nanos(length), 8);
        assert!(settings(8).build().is_ok());
        let refused = settings(7).build().unwrap_err();
        assert_eq!(
            refused,
            SettingsError::TooSmall {
                setting: Setting::Window,
                min: 8
            }
        );
    }

    /// The largest limit has a bound of its own, and takes the blame only if it was set.
    fn of_the_largest_limit_of_a_sliding_window<W: Word>() {
        let settings = SlidingWindow::<8>::builder(5, SECOND, 8);
        let most = is_tight(Setting::MaxLimit, |max| {
            segments::<W, 8>(settings.max_limit(max))
        });
        let limit = is_tight(Setting::Limit, |limit| {
            segments::<W, 8>(SlidingWindow::builder(limit, SECOND, 8))
        });
        assert_eq!(most, limit);
        let lower = segments::<W, 8>(settings.max_limit(4)).unwrap_err();
        assert_eq!(bound(lower), (Setting::Limit, 4));
    }

    #[test]
    fn of_the_largest_limit_of_a_sliding_window_on_any_word() {
        of_the_largest_limit_of_a_sliding_window::<u64>();
        of_the_largest_limit_of_a_sliding_window::<u32>();
    }

    /// Segments that do not divide a long window: an instant within the window is multiplied by
    /// their number.
    #[test]
    fn of_a_window_that_its_segments_do_not_divide() {
        let settings = |length| {
            SlidingWindow::<7>::builder(1, nanos(length), 7)
                .build()
                .map(drop)
        };
        let max = u64::MAX / 7;
        assert_eq!(settings(max), Ok(()));
        assert_eq!(
            settings(max + 2),
            Err(SettingsError::TooLarge {
                setting: Setting::Window,
                max
            })
        );
    }

    #[test]
    fn of_a_concurrency_limit() {
        fn on<W: Word>(max: u32) {
            assert_eq!(Concurrency::<W>::max_limit(), max);
            let tight = is_tight(Setting::Limit, |limit| {
                Concurrency::builder(u32::try_from(limit).unwrap_or(u32::MAX))
                    .build_on::<W>()
                    .map(drop)
            });
            assert_eq!(tight, max.into());
            let limit = Concurrency::builder(1).build_on::<W>().unwrap();
            assert_eq!(limit.set_limit(max), Ok(1));
            assert_eq!(
                bound(limit.set_limit(max + 1).unwrap_err()),
                (Setting::Limit, max.into())
            );
            assert_eq!(limit.limit(), max);
        }
        on::<u64>((1 << 30) - 1);
        on::<u32>((1 << 14) - 1);
    }

    /// On the narrow word a rate may be too high to leave room for a second.
    #[test]
    fn of_a_rate() {
        let settings = |permits, tick| {
            TokenBucket::builder(Rate::new(permits, nanos(1)), 1)
                .tick(nanos(tick))
                .build_on::<u32>()
        };
        let refused = |permits, tick| settings(permits, tick).map(drop).map_err(bound);
        assert_eq!(
            (refused(1, 1), refused(2, 1)),
            (Ok(()), Err((Setting::Rate, 1)))
        );
        assert_eq!(
            (refused(1, 7), refused(2, 7)),
            (Ok(()), Err((Setting::Rate, 1)))
        );
        assert!(
            TokenBucket::builder(Rate::new(u32::MAX, nanos(1)), 1)
                .build_on::<u64>()
                .is_ok()
        );
    }

    /// A common factor of a rate and its period makes room. The bound in the error has such a
    /// factor, for any rate.
    #[test]
    fn of_a_rate_is_accepted_for_any_period() {
        for period in [1, 6, 7, 9, 12, 997, 1_000, 5_491_950, 7_739_788] {
            for tick in [1, 3, 10, 64, 1_000, 999_983] {
                let settings = |n| {
                    TokenBucket::builder(Rate::new(n, nanos(period)), 1)
                        .tick(nanos(tick))
                        .build_on::<u32>()
                };
                let Err(SettingsError::TooLarge {
                    setting: Setting::Rate,
                    max,
                }) = settings(u32::MAX)
                else {
                    continue;
                };
                let max = u32::try_from(max).unwrap();
                assert!(settings(max).is_ok(), "{max} each {period} ns by {tick} ns");
            }
        }
    }

    /// If the builder chooses the tick, the bound is the best of any tick.
    #[test]
    fn of_a_rate_and_a_burst_with_a_default_tick() {
        let settings =
            |rate, burst| TokenBucket::builder(Rate::per_second(rate), burst).build_on::<u32>();
        let quarter = 1u32 << 30;
        assert!(settings(quarter, 1).is_ok());
        assert_eq!(
            bound(settings(quarter + 1, 1).unwrap_err()),
            (Setting::Rate, quarter.into())
        );
        let rate = 1_000_000_000;
        let burst = is_tight(Setting::Burst, |burst| {
            bucket::<u32>(TokenBucket::builder(Rate::per_second(rate), burst).initial(0))
        });
        assert_eq!(burst, quarter.into());
    }

    /// The default tick is never longer than the window.
    #[test]
    fn of_a_default_tick_is_the_window() {
        for window in [1, 9, 10, 11, 150_000, 3_000_000_000, LONGEST] {
            for bits in 1..28 {
                let settings =
                    FixedWindow::builder((1 << bits) - 1, nanos(window)).started_by_first_request();
                if let Ok(limiter) = settings.build_on::<u32>() {
                    assert!(
                        limiter.timing().tick <= nanos(window),
                        "{} in {window} ns",
                        limiter.limit()
                    );
                }
            }
        }
        let coarse =
            FixedWindow::builder((1 << 25) - 1, nanos(3_000_000_000)).started_by_first_request();
        assert_eq!(coarse.build_on::<u32>().unwrap().timing().tick, SECOND);
    }
}

mod staleness {
    use super::*;

    /// At least one second.
    fn at_least<W: Word>() {
        let too_small = Err(SettingsError::TooSmall {
            setting: Setting::Staleness,
            min: 1_000_000_000,
        });
        for (late, expected) in [
            (nanos(1), too_small),
            (nanos(999_999_999), too_small),
            (SECOND, Ok(())),
        ] {
            let settings = TokenBucket::builder(Rate::per_second(10), 10);
            assert_eq!(bucket::<W>(settings.staleness(late)), expected);
            assert_eq!(
                window::<W>(FixedWindow::builder(10, SECOND).staleness(late)),
                expected
            );
            let settings = SlidingWindow::builder(10, SECOND, 4);
            assert_eq!(segments::<W, 4>(settings.staleness(late)), expected);
        }
    }

    #[test]
    fn is_at_least_a_second() {
        at_least::<u64>();
        at_least::<u32>();
    }

    /// At most a quarter of what the word can distinguish.
    #[test]
    fn is_at_most_a_quarter_of_the_word() {
        let bucket = |late| {
            let settings =
                TokenBucket::builder(Rate::per_second(10), 10).tick(Duration::from_millis(1));
            bucket::<u32>(settings.staleness(nanos(late)))
        };
        let refused = bucket(LONGEST).unwrap_err();
        let (setting, max) = bound(refused);
        assert_eq!((setting, max), (Setting::Staleness, (1 << 30) * 1_000_000));
        assert_eq!((bucket(max), bucket(max + 1)), (Ok(()), Err(refused)));

        let window =
            |late| window::<u32>(FixedWindow::builder(1_000, SECOND).staleness(nanos(late)));
        let refused = window(LONGEST).unwrap_err();
        let (setting, max) = bound(refused);
        assert_eq!(
            (setting, max),
            (Setting::Staleness, (1 << 20) * 1_000_000_000)
        );
        assert_eq!((window(max), window(max + 1)), (Ok(()), Err(refused)));
    }

    /// As requested, rounded up to the tick.
    #[test]
    fn is_what_was_requested() {
        let late = Duration::from_millis(1_500);
        let bucket = TokenBucket::builder(Rate::per_second(10), 10).staleness(late);
        assert_eq!(bucket.build().unwrap().timing().staleness, late);
        assert_eq!(
            bucket.tick(SECOND).build().unwrap().timing().staleness,
            2 * SECOND
        );
        let window = FixedWindow::builder(10, SECOND).staleness(late);
        assert_eq!(window.build().unwrap().timing().staleness, 2 * SECOND);
        let started = window
            .started_by_first_request()
            .tick(Duration::from_millis(1));
        assert_eq!(started.build().unwrap().timing().staleness, late);
        let sliding = SlidingWindow::<4>::builder(10, SECOND, 4).staleness(late);
        assert_eq!(sliding.build().unwrap().timing().staleness, late);
    }

    /// Also if the word reaches 292 years, but a sixteenth of it is less than one tick: a coarse
    /// tick brings many permits at once.
    #[test]
    fn is_at_least_a_tick() {
        let years = nanos(1 << 60);
        let settings = TokenBucket::builder(Rate::new(500_000_000, years), 5).stepwise();
        let bucket = settings.build_on::<u32>().unwrap();
        assert!(
            bucket.timing().staleness >= years,
            "{:?}",
            bucket.timing().staleness
        );
        assert!(
            bucket
                .try_acquire_at(Timestamp::from_nanos(1 << 60), 5)
                .is_ok()
        );
        assert!(
            bucket
                .try_acquire_at(Timestamp::from_nanos((1 << 60) - 1), 1)
                .is_err(),
            "1 ns late"
        );
    }

    /// A duration of more than 292 years is refused.
    #[test]
    fn is_at_most_292_years() {
        let settings = FixedWindow::builder(1, nanos(LONGEST)).staleness(nanos(LONGEST + 1));
        assert_eq!(
            bound(settings.build().unwrap_err()),
            (Setting::Staleness, LONGEST)
        );
        assert!(
            FixedWindow::builder(1, nanos(LONGEST))
                .staleness(nanos(LONGEST))
                .build()
                .is_ok()
        );
    }
}

mod messages {
    use super::*;

    #[test]
    fn name_the_setting_and_the_bound() {
        let numbers = [
            (Setting::Burst, "burst"),
            (Setting::Initial, "initial"),
            (Setting::Debt, "debt"),
            (Setting::Limit, "limit"),
            (Setting::MaxLimit, "max_limit"),
            (Setting::Segments, "segments"),
            (Setting::Threshold, "threshold"),
        ];
        for (setting, name) in numbers {
            let zero = SettingsError::Zero { setting }.to_string();
            assert_eq!(zero, format!("{name} must be at least 1"));
            let large = SettingsError::TooLarge { setting, max: 42 }.to_string();
            assert_eq!(large, format!("{name} must be at most 42"));
            let small = SettingsError::TooSmall { setting, min: 43 }.to_string();
            assert_eq!(small, format!("{name} must be at least 43"));
        }
        let (setting, max) = (Setting::Rate, 42);
        let rate = SettingsError::TooLarge { setting, max };
        assert_eq!(rate.to_string(), "rate must be at most 42 per period");
        let (setting, max) = (Setting::Burst, 0);
        let none = SettingsError::TooLarge { setting, max };
        assert_eq!(
            none.to_string(),
            "burst must be at most 0: change another setting"
        );
    }

    #[test]
    fn give_durations_with_their_unit() {
        let durations = [
            (Setting::Period, "period"),
            (Setting::Window, "window"),
            (Setting::MaxWindow, "max_window"),
            (Setting::Tick, "tick"),
            (Setting::Staleness, "staleness"),
            (Setting::Wait, "wait"),
            (Setting::Hold, "hold"),
            (Setting::Within, "within"),
        ];
        for (setting, name) in durations {
            let zero = SettingsError::Zero { setting }.to_string();
            assert_eq!(zero, format!("{name} must be at least 1 ns"));
            for (nanos, text) in [
                (42, "42 ns"),
                (1_500_000_000, "1.5 s"),
                (LONGEST, "9223372036.854775807 s (292 years)"),
            ] {
                let large = SettingsError::TooLarge {
                    setting,
                    max: nanos,
                };
                assert_eq!(large.to_string(), format!("{name} must be at most {text}"));
                let small = SettingsError::TooSmall {
                    setting,
                    min: nanos,
                };
                assert_eq!(small.to_string(), format!("{name} must be at least {text}"));
            }
        }
    }

    /// The message with which the evaluation of a constant stops, observed at run time: that of the
    /// error.
    #[test]
    fn of_a_constant_name_the_setting_and_the_bound() {
        let message = |build: fn()| {
            let panic = std::panic::catch_unwind(build).unwrap_err();
            let message = panic.downcast_ref::<String>().expect("a text");
            let message = message.strip_prefix("portcullis: ").expect("the prefix");
            message.to_owned()
        };
        let cases: [(fn(), &str); 11] = [
            (
                || _ = TokenBucket::new(Rate::per_second(1), 0),
                "burst must be at least 1",
            ),
            (
                || _ = TokenBucket::new(Rate::per_second(1), u64::MAX),
                "burst must be at most 4611686018",
            ),
            (
                || _ = TokenBucket::new(Rate::new(1, Duration::ZERO), 1),
                "period must be at least 1 ns",
            ),
            (
                || _ = FixedWindow::new(0, SECOND),
                "limit must be at least 1",
            ),
            (
                || _ = FixedWindow::new(1, Duration::ZERO),
                "window must be at least 1 ns",
            ),
            (
                || _ = SlidingWindow::<2>::new(1, SECOND, 3),
                "segments must be at most 2",
            ),
            (
                || _ = SlidingWindow::<2>::new(1, SECOND, 0),
                "segments must be at least 1",
            ),
            (
                || _ = Concurrency::new(u32::MAX),
                "limit must be at most 1073741823",
            ),
            (
                || _ = CooldownWindow::new(1, Duration::ZERO, None),
                "period must be at least 1 ns",
            ),
            (
                || _ = CooldownWindow::new(1, SECOND, Some(Duration::MAX)),
                "wait must be at most 9223372036.854775807 s (292 years)",
            ),
            (
                || {
                    let table = Keyed::new(ConcurrencyRules::new(1), [Line::new()], Seed::new());
                    _ = table.with_staleness(Duration::from_millis(20));
                },
                "staleness must be at least 1 s",
            ),
        ];
        for (build, expected) in cases {
            assert_eq!(message(build), expected);
        }
    }

    #[test]
    fn count_permits_in_the_singular_and_the_plural() {
        let exceeds = |permits, capacity| Denied::ExceedsCapacity { permits, capacity }.to_string();
        assert_eq!(
            exceeds(3, 2),
            "3 permits requested, at most 2 can ever be granted: request fewer"
        );
        assert_eq!(
            exceeds(1, 0),
            "1 permit requested, none can be granted with the current settings"
        );
        let holds = |held| TooFewHeld { held }.to_string();
        assert_eq!(
            holds(1),
            "the lease holds 1 permit: ask for at most that many"
        );
        assert_eq!(
            holds(0),
            "the lease holds 0 permits: ask for at most that many"
        );
    }

    #[test]
    fn are_errors() {
        fn error<E: core::error::Error + Copy + Send + Sync + 'static>() {}
        error::<SettingsError>();
        error::<Denied>();
        error::<portcullis_core::leases::ClaimError>();
        error::<portcullis_core::leases::StaleId>();
        error::<TooFewHeld>();
    }
}

/// The error would otherwise be a burst of at most 0.
#[test]
fn a_tick_that_is_too_fine_for_any_burst_is_a_period_that_is_too_long() {
    fn refused<W: Word>(period: u64, permits: u32, tick: u64) -> Option<SettingsError> {
        let rate = Rate::new(permits, nanos(period));
        let plain = TokenBucket::builder(rate, 1).tick(nanos(tick));
        plain.build_on::<W>().err()
    }
    const QUARTER: u64 = 1 << 30;
    let setting = Setting::Period;
    let too_long = |max| Some(SettingsError::TooLarge { setting, max });
    // A multiple of the tick.
    let day = 86_400 * 1_000_000_000;
    assert_eq!(refused::<u32>(day, 1, 1_000), too_long(QUARTER * 1_000));
    assert_eq!(refused::<u32>(QUARTER * 1_000, 1, 1_000), None);
    assert_eq!(refused::<u32>(day, 3, 1_000), too_long(QUARTER * 3_000));
    assert_eq!(refused::<u32>(day, 1, 1_000_000), None, "a coarser tick");
    // A prime number, and a tick that would be coarse enough.
    let prime = 999_999_999_989;
    assert_eq!(refused::<u32>(prime, 1, 10_000), too_long(999_999_990_000));
    assert_eq!(refused::<u32>(999_999_990_000, 1, 10_000), None);
    // The word of an adjustable bucket has fewer bits for it.
    let daily = AdjustableBucket::builder(Rate::per_day(1), 10).tick(nanos(10_000));
    assert_eq!(
        daily.build_on::<u32>().err(),
        too_long((1 << 24) * 10_000),
        "26 bits"
    );
}
