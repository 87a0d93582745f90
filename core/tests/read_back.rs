//! The settings that a limiter was built with can be read back, as they are in force. A limiter
//! that is built from what was read is the same.

#[macro_use]
#[path = "support/words.rs"]
mod words;

use core::fmt::Debug;
use core::time::Duration;
use std::collections::HashSet;

use portcullis_core::builder::{EscalationThreshold, PenaltySettings};
use portcullis_core::keyed::{ConcurrencyRules, FixedWindowRules, TokenBucketRules};
use portcullis_core::state::{Carry, KeyedWord, Word};
use portcullis_core::{
    AdjustableBucket, AdjustableWindow, Concurrency, CooldownWindow, Escalation, FixedWindow,
    Penalty, Rate, SlicedBucket, SlidingWindow, Timestamp, TokenBucket, Unlimited,
};

const SECOND: Duration = Duration::from_secs(1);
const MILLI: Duration = Duration::from_millis(1);
const NOW: Timestamp = Timestamp::from_secs(5);

on_both_words!(
    on:
    of_a_token_bucket,
    of_a_sliced_bucket,
    of_an_adjustable_bucket_also_after_a_change,
    of_a_fixed_window,
    of_a_sliding_window,
    of_an_adjustable_window_also_after_a_change,
    of_a_cooldown_window,
    of_a_concurrency_limit,
    of_a_penalty,
    of_an_escalation,
    of_any_rate_exactly,
    owed_permits_of_forced_takes,
);

/// Whether two limiters have the same settings and the same state.
fn assert_same(one: &impl Debug, other: &impl Debug) {
    assert_eq!(format!("{one:?}"), format!("{other:?}"));
}

/// Marsaglia's xorshift.
struct Draws(u64);

impl Draws {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    /// Draws a number from 1, of any magnitude up to `bits` bits.
    fn magnitude(&mut self, bits: u64) -> u64 {
        let bits = 1 + self.below(bits);
        1 + self.below(1 << bits)
    }
}

mod on {
    use super::*;

    pub(super) fn of_a_token_bucket<W: Word>() {
        for rate in [
            Rate::per_second(1_000),
            Rate::per_minute(7),
            Rate::new(3, Duration::from_millis(7)),
            Rate::ZERO,
        ] {
            let settings = TokenBucket::builder(rate, 10)
                .debt(4)
                .tick(MILLI)
                .staleness(3 * SECOND);
            let bucket = settings.build_on::<W>().unwrap();
            assert_eq!(bucket.rate(), rate);
            let read = (bucket.burst(), bucket.debt(), bucket.timing().tick);
            assert_eq!(read, (10, 4, MILLI));
            let again = TokenBucket::builder(bucket.rate(), bucket.burst())
                .debt(bucket.debt())
                .tick(bucket.timing().tick);
            let again = if rate == Rate::ZERO {
                assert_eq!(bucket.timing().staleness, Duration::MAX, "nothing comes in");
                again.staleness(3 * SECOND)
            } else {
                assert_eq!(bucket.timing().staleness, 3 * SECOND);
                again.staleness(bucket.timing().staleness)
            };
            let again = again.build_on::<W>().unwrap();
            assert_eq!(again.timing().horizon, bucket.timing().horizon);
            assert_same(&again, &bucket);
        }
        let steps = TokenBucket::builder(Rate::per_minute(30), 60).stepwise();
        let steps = steps.build_on::<W>().unwrap();
        assert_eq!(steps.rate(), Rate::per_minute(30));
        assert_eq!(steps.timing().tick, 60 * SECOND, "the period is the step");

        let unlimited = TokenBucket::builder(Rate::UNLIMITED, 3)
            .debt(2)
            .build_on::<W>()
            .unwrap();
        assert!(unlimited.rate().is_unlimited());
        assert_eq!((unlimited.debt(), unlimited.owed_at(NOW)), (0, 0));
    }

    pub(super) fn of_a_sliced_bucket<W: Word>() {
        for rate in [Rate::per_second(100), Rate::per_minute(7), Rate::ZERO] {
            let settings = SlicedBucket::builder(rate, 10).tick(MILLI);
            let bucket = settings.build_on::<W>().unwrap();
            let _slice = bucket.slice_at(NOW, 3).unwrap();
            assert_eq!((bucket.rate(), bucket.burst()), (rate, 10));
            assert_eq!((bucket.sliced(), bucket.max_sliced()), (3, 5));
            assert_eq!(bucket.timing().tick, MILLI);
        }
        let settings = SlicedBucket::builder(Rate::UNLIMITED, 10);
        assert!(settings.build_on::<W>().unwrap().rate().is_unlimited());
        let settings = SlicedBucket::builder(Rate::per_second(9), 10).staleness(3 * SECOND);
        let staleness = settings.build_on::<W>().unwrap().timing().staleness;
        assert_eq!(staleness, 3 * SECOND);
    }

    pub(super) fn of_an_adjustable_bucket_also_after_a_change<W: Word>() {
        let settings = AdjustableBucket::builder(Rate::per_second(10), 3)
            .debt(5)
            .tick(MILLI)
            .staleness(3 * SECOND);
        let bucket = settings.build_on::<W>().unwrap();
        assert_eq!((bucket.rate(), bucket.burst()), (Rate::per_second(10), 3));
        assert_eq!(
            (bucket.timing().tick, bucket.timing().staleness),
            (MILLI, 3 * SECOND)
        );

        assert!(bucket.try_acquire_at(NOW, 3).is_ok());
        let reserved = bucket.reserve_at(NOW, 2, SECOND).unwrap();
        assert_eq!((bucket.debt(), bucket.owed_at(NOW)), (5, 2));
        assert_eq!(bucket.owed_at(NOW + 150 * MILLI), 1, "0.5, rounded up");
        assert_eq!(bucket.owed_at(reserved.due() - MILLI), 1);
        assert_eq!(bucket.owed_at(reserved.due()), 0);
        assert_eq!(reserved.cancel_at(NOW), 2);
        assert_eq!(bucket.owed_at(NOW), 0, "cancelled");

        for rate in [Rate::per_minute(7), Rate::ZERO, Rate::per_second(20)] {
            bucket.adjust_at(NOW, rate, 6, Carry::Keep).unwrap();
            assert_eq!((bucket.rate(), bucket.burst()), (rate, 6));
            assert_eq!((bucket.debt(), bucket.owed_at(NOW)), (5, 0));
            assert_eq!(
                (bucket.timing().tick, bucket.timing().staleness),
                (MILLI, 3 * SECOND)
            );
        }
        bucket.force_at(NOW, 4).unwrap();
        assert_eq!(bucket.owed_at(NOW), 4);
        bucket
            .adjust_at(NOW, Rate::UNLIMITED, 6, Carry::Keep)
            .unwrap();
        assert!(bucket.rate().is_unlimited());
        assert_eq!((bucket.debt(), bucket.owed_at(NOW)), (0, 0));
    }

    pub(super) fn of_a_fixed_window<W: Word>() {
        let settings = FixedWindow::builder(7, 2 * SECOND).staleness(4 * SECOND);
        let window = settings.build_on::<W>().unwrap();
        assert_eq!((window.limit(), window.window()), (7, 2 * SECOND));
        assert_eq!(
            (window.timing().tick, window.timing().staleness),
            (2 * SECOND, 4 * SECOND)
        );
        assert!(!window.is_started_by_first_request());
        let again = FixedWindow::builder(window.limit(), window.window())
            .staleness(window.timing().staleness)
            .build_on::<W>();
        assert_same(&again.unwrap(), &window);

        let settings = FixedWindow::builder(7, Duration::from_micros(1_500))
            .started_by_first_request()
            .tick(MILLI);
        let window = settings.build_on::<W>().unwrap();
        assert_eq!(window.window(), 2 * MILLI, "rounded up to the tick");
        assert!(window.is_started_by_first_request());
        let again = FixedWindow::builder(window.limit(), window.window())
            .started_by_first_request()
            .tick(window.timing().tick);
        assert_same(&again.build_on::<W>().unwrap(), &window);
    }

    pub(super) fn of_a_sliding_window<W: Word>() {
        for (length, segments) in [(SECOND, 1), (SECOND, 3), (SECOND, 4), (7 * MILLI, 6)] {
            let plain = SlidingWindow::<8>::builder(5, length, segments)
                .max_limit(9)
                .staleness(4 * SECOND);
            for strict in [false, true] {
                let settings = if strict { plain.strict() } else { plain };
                let window = settings.build_on::<W>().unwrap();
                assert_eq!((window.window(), window.segments()), (length, segments));
                assert_eq!(window.segment(), length / segments);
                assert_eq!((window.limit(), window.max_limit()), (5, 9));
                assert_eq!(window.is_strict(), strict);
                assert!(window.timing().staleness >= 4 * SECOND);
                assert!(
                    window.timing().staleness <= 4 * SECOND + 2 * length,
                    "{length:?}"
                );
                window.set_limit(2).unwrap();
                assert_eq!((window.limit(), window.max_limit()), (2, 9));
            }
        }
    }

    pub(super) fn of_an_adjustable_window_also_after_a_change<W: Word>() {
        let settings = AdjustableWindow::builder(5, 2 * SECOND)
            .max_limit(9)
            .max_window(4 * SECOND)
            .tick(MILLI)
            .staleness(3 * SECOND);
        let window = settings.build_on::<W>().unwrap();
        let read = || (window.limit(), window.window());
        assert_eq!(read(), (5, 2 * SECOND));
        let most = (window.max_limit(), window.max_window());
        assert_eq!(most, (9, 4 * SECOND));
        assert_eq!(
            (window.timing().tick, window.timing().staleness),
            (MILLI, 3 * SECOND)
        );
        let longer = Duration::from_micros(2_999_500);
        window.adjust_at(NOW, 8, longer, Carry::Keep).unwrap();
        assert_eq!(read(), (8, 3 * SECOND), "rounded up to the tick");
        assert_eq!((window.max_limit(), window.max_window()), most);
        assert!(!window.is_started_by_first_request());
        let started = settings.started_by_first_request().build_on::<W>();
        assert!(started.unwrap().is_started_by_first_request());
    }

    pub(super) fn of_a_cooldown_window<W: Word>() {
        let plain = CooldownWindow::builder(5, 2 * SECOND)
            .tick(MILLI)
            .staleness(3 * SECOND);
        for (wait, read) in [
            (None, None),
            (Some(SECOND), Some(SECOND)),
            (Some(60 * SECOND), Some(60 * SECOND)),
            (Some(Duration::from_micros(1_500)), Some(2 * MILLI)),
        ] {
            let settings = wait.map_or(plain, |wait| plain.wait(wait));
            let window = settings.build_on::<W>().unwrap();
            assert_eq!((window.limit(), window.period()), (5, 2 * SECOND));
            assert_eq!(window.wait(), read);
            assert_eq!(
                (window.timing().tick, window.timing().staleness),
                (MILLI, 3 * SECOND)
            );
            let again = CooldownWindow::builder(window.limit(), window.period())
                .tick(window.timing().tick)
                .staleness(window.timing().staleness);
            let again = window.wait().map_or(again, |wait| again.wait(wait));
            assert_same(&again.build_on::<W>().unwrap(), &window);
        }
    }

    pub(super) fn of_a_concurrency_limit<W: Word>() {
        let limit = Concurrency::builder(5).build_on::<W>().unwrap();
        let held = limit.try_acquire(2).unwrap();
        assert_eq!((limit.limit(), limit.in_use()), (5, held.permits()));
        limit.set_limit(1).unwrap();
        assert_eq!((limit.limit(), limit.in_use()), (1, 2));
    }

    pub(super) fn of_a_penalty<W: Word>() {
        let plain = Penalty::builder(Duration::from_micros(5_500))
            .tick(MILLI)
            .staleness(3 * SECOND);
        let settings: PenaltySettings<W> = plain.build_on().unwrap();
        let penalty = settings.around(Unlimited);
        assert_eq!((penalty.wait(), penalty.timing().tick), (6 * MILLI, MILLI));
        assert_eq!((penalty.threshold(), penalty.within()), (1, None));
        assert_eq!(penalty.timing().staleness, 3 * SECOND);
        let settings: PenaltySettings<W> = plain.after(3, 10 * SECOND).build_on().unwrap();
        let penalty = settings.around(Unlimited);
        assert_eq!(
            (penalty.threshold(), penalty.within()),
            (3, Some(10 * SECOND))
        );
    }

    pub(super) fn of_an_escalation<W: Word>() {
        let at = |used| EscalationThreshold {
            used,
            hold: SECOND,
            decision: used,
        };
        let limit = Escalation::builder(Unlimited, [at(3), at(5)])
            .build_on::<W>()
            .unwrap();
        assert_eq!(limit.thresholds(), &[at(3), at(5)]);
    }

    /// Whatever the rate and the tick, if they fit the word.
    pub(super) fn of_any_rate_exactly<W: Word>() {
        let (mut draws, mut built) = (Draws(0x9e37_79b9_7f4a_7c15), 0);
        for _ in 0..30_000 {
            let permits = u32::try_from(draws.magnitude(32)).unwrap_or(u32::MAX);
            let rate = Rate::new(permits, Duration::from_nanos(draws.magnitude(50)));
            let settings = TokenBucket::builder(rate, 1);
            let tick = Duration::from_nanos(draws.magnitude(30));
            let settings = match draws.below(3) {
                0 => settings,
                1 => settings.stepwise(),
                _ => settings.tick(tick),
            };
            if let Ok(bucket) = settings.build_on::<W>() {
                assert_eq!(bucket.rate(), rate, "{settings:?}");
                assert!(bucket.rate().permits() <= rate.permits());
                built += 1;
            }
            let settings = AdjustableBucket::builder(rate, 1).tick(tick);
            if let Ok(bucket) = settings.build_on::<W>() {
                assert_eq!(bucket.rate(), rate, "{settings:?}");
                built += 1;
            }
        }
        assert!(built > 5_000, "{built}");
    }

    /// Compared with a bucket in fractions: `level` in units of which a permit has `period`.
    pub(super) fn owed_permits_of_forced_takes<W: Word>() {
        let (burst, debt, permits, period) = (4, 6, 3, 7);
        let rate = Rate::new(permits, period * MILLI);
        let settings = TokenBucket::builder(rate, burst).debt(debt).tick(MILLI);
        let bucket = settings.build_on::<W>().unwrap();
        let settings = AdjustableBucket::builder(rate, burst)
            .debt(debt)
            .tick(MILLI);
        let adjustable = settings.build_on::<W>().unwrap();
        // What the bucket has, plus the debt: never negative.
        let unit = u64::from(period);
        let (nothing, full) = (debt * unit, (debt + burst) * unit);
        let (mut draws, mut level, mut time) = (Draws(0x2545_f491_4f6c_dd1d), full, 0);
        let mut most = 0;
        for _ in 0..20_000 {
            let passed = draws.below(12);
            time += passed;
            level = (level + passed * u64::from(permits)).min(full);
            let now = Timestamp::from_millis(time);
            let n = u32::try_from(draws.below(5)).unwrap();
            let after = level.checked_sub(u64::from(n) * unit);
            assert_eq!(bucket.force_at(now, n).is_ok(), after.is_some());
            assert_eq!(adjustable.force_at(now, n).is_ok(), after.is_some());
            level = after.unwrap_or(level);
            let owed = nothing.saturating_sub(level).div_ceil(unit);
            assert_eq!(bucket.owed_at(now), owed, "{level}");
            assert_eq!(adjustable.owed_at(now), owed, "{level}");
            most = most.max(owed);
            // Seen from an older time, no more than can be owed. A tick brings less than a permit.
            let stale = now - 900 * MILLI;
            assert!((owed..=debt).contains(&bucket.owed_at(stale)));
            assert!((owed..=debt + 1).contains(&adjustable.owed_at(stale)));
        }
        assert_eq!(most, debt);
    }
}

#[test]
fn of_the_rules_of_a_table() {
    let rules = TokenBucketRules::new(Rate::per_minute(30), 60);
    assert_eq!((rules.rate(), rules.burst()), (Rate::per_minute(30), 60));
    let rules = FixedWindowRules::new(3, SECOND);
    assert_eq!((rules.limit(), rules.window()), (3, SECOND));
    assert!(!rules.is_started_by_first_request());
    assert_eq!(ConcurrencyRules::new(3).limit(), 3);
    on::of_a_fixed_window::<KeyedWord>();
    on::of_a_cooldown_window::<KeyedWord>();
}

#[test]
fn without_a_declared_debt_nothing_is_owed() {
    let bucket = TokenBucket::new(Rate::per_second(1), 3);
    assert!(bucket.try_acquire_at(NOW, 3).is_ok());
    assert_eq!((bucket.debt(), bucket.owed_at(NOW - SECOND)), (0, 0));
}

mod rates {
    use super::*;

    #[test]
    fn are_compared_as_numbers() {
        let equal = [
            Rate::per_second(1),
            Rate::per_minute(60),
            Rate::new(3_600, Duration::from_hours(1)),
        ];
        for one in equal {
            for other in equal {
                assert_eq!(one, other);
            }
            assert_ne!(one, Rate::per_second(2));
            assert_ne!(one, Rate::new(1, SECOND + Duration::from_nanos(1)));
            assert_ne!(one, Rate::UNLIMITED);
        }
        assert_eq!(equal.into_iter().collect::<HashSet<_>>().len(), 1);
        assert_eq!(Rate::ZERO, Rate::per_day(0));
        assert_ne!(Rate::ZERO, Rate::UNLIMITED);
        assert_eq!(Rate::UNLIMITED, Rate::UNLIMITED);
        // Not rates: a builder refuses them.
        let (none, all) = (Rate::new(0, Duration::ZERO), Rate::new(5, Duration::ZERO));
        assert_ne!(none, all);
        assert_ne!(all, Rate::UNLIMITED);
    }
}
