//! Windows whose settings change, also concurrently. They are compared with a model that never
//! wraps, checked against the documented bounds, and tested with real threads.

#[allow(dead_code, reason = "made for traces, too")]
#[path = "support/draws.rs"]
mod draws;

use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU64};
use core::time::Duration;
use std::collections::HashMap;
use std::sync::Mutex;
use std::thread;

use draws::Draws;
use portcullis_core::builder::Setting;
use portcullis_core::limiter::{Idle, Receipt};
use portcullis_core::state::{Carry, ChangeError, Word};
use portcullis_core::{
    AdjustableWindow, Denied, FixedWindow, Limiter, Retry, SettingsError, SlidingWindow, Timestamp,
};
use proptest::prelude::any;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

const SECOND: Duration = Duration::from_secs(1);
const CARRIES: [Carry; 4] = [
    Carry::Keep,
    Carry::Proportional,
    Carry::Additive,
    Carry::Reset,
];

const fn at(seconds: u64) -> Timestamp {
    Timestamp::from_secs(seconds)
}

/// A window of ten in ten seconds; up to a hundred in up to a hundred seconds.
fn on_grid<W: Word>() -> AdjustableWindow<W> {
    let settings = AdjustableWindow::builder(10, 10 * SECOND)
        .max_limit(100)
        .max_window(100 * SECOND)
        .staleness(60 * SECOND);
    settings.build_on().unwrap()
}

/// The same, started by the first request.
fn started<W: Word>() -> AdjustableWindow<W> {
    let settings = AdjustableWindow::builder(10, 10 * SECOND)
        .max_limit(100)
        .max_window(100 * SECOND)
        .staleness(60 * SECOND);
    settings.started_by_first_request().build_on().unwrap()
}

/// Runs `$check` on both kinds of windows and on both words.
macro_rules! on_each {
    ($check:ident) => {
        $check(&on_grid::<u64>());
        $check(&on_grid::<u32>());
        $check(&started::<u64>());
        $check(&started::<u32>());
    };
}

// Settings.

#[test]
fn what_cannot_be_built_names_the_setting_and_its_bound() {
    const MOST: u64 = (1 << 48) - 1;
    let build =
        |settings: portcullis_core::builder::AdjustableWindowBuilder| settings.build().map(|_| ());
    let zero = |setting| Err(SettingsError::Zero { setting });
    let too_large = |setting, max| Err(SettingsError::TooLarge { setting, max });
    let window = AdjustableWindow::builder;
    assert_eq!(build(window(0, SECOND)), zero(Setting::Limit));
    assert_eq!(build(window(0, SECOND).max_limit(5)), zero(Setting::Limit));
    assert_eq!(build(window(1, Duration::ZERO)), zero(Setting::Window));
    assert_eq!(
        build(window(1, SECOND).max_window(Duration::ZERO)),
        zero(Setting::MaxWindow)
    );
    assert_eq!(
        build(window(1, SECOND).tick(Duration::ZERO)),
        zero(Setting::Tick)
    );
    assert_eq!(
        build(window(6, SECOND).max_limit(5)),
        too_large(Setting::Limit, 5)
    );
    let short = window(1, SECOND).max_window(SECOND / 2);
    assert_eq!(build(short), too_large(Setting::Window, 500_000_000));
    assert_eq!(
        build(window(1, Duration::MAX)),
        too_large(Setting::Window, u64::MAX / 2)
    );
    let hasty = window(1, SECOND).staleness(Duration::from_millis(999));
    let min = 1_000_000_000;
    assert_eq!(
        build(hasty),
        Err(SettingsError::TooSmall {
            setting: Setting::Staleness,
            min
        })
    );
    // 52 bits, of which four distinguish a dozen ticks of a second.
    assert_eq!(
        build(window(u64::MAX, SECOND)),
        too_large(Setting::Limit, MOST)
    );
    for max in [MOST + 1, u64::MAX] {
        assert_eq!(
            build(window(1, SECOND).max_limit(max)),
            too_large(Setting::MaxLimit, MOST)
        );
    }
    assert!(build(window(1, SECOND).max_limit(MOST)).is_ok());
}

/// The bound that an error names is the largest limit that fits, for all other settings.
#[test]
fn the_largest_limit_that_an_error_names_fits() {
    fn check<W: Word>(seed: u64) -> bool {
        let mut draws = Draws::Seeded {
            state: seed,
            steps: 1,
        };
        let window = Duration::from_nanos(draws.magnitude(1 << 50).max(1));
        let mut settings = AdjustableWindow::builder(1, window).max_limit(u64::MAX);
        if draws.once_in(2) {
            settings = settings.started_by_first_request();
        }
        if draws.once_in(2) {
            settings = settings.tick(Duration::from_nanos(draws.magnitude(1 << 40).max(1)));
        }
        match settings.build_on::<W>().unwrap_err() {
            SettingsError::TooLarge {
                setting: Setting::MaxLimit,
                max: 0,
            } => {
                settings.max_limit(1).build_on::<W>().unwrap_err();
                false
            }
            SettingsError::TooLarge {
                setting: Setting::MaxLimit,
                max,
            } => {
                settings.max_limit(max).build_on::<W>().unwrap();
                settings.max_limit(max + 1).build_on::<W>().unwrap_err();
                true
            }
            other => panic!("{other:?}"),
        }
    }
    assert!((0..500).filter(|&seed| check::<u64>(seed)).count() > 100);
    assert!((0..500).filter(|&seed| check::<u32>(seed)).count() > 50);
}

/// The first request in each tick costs one compare-exchange more.
#[test]
fn a_tick_is_no_finer_than_necessary() {
    fn tick<W: Word>(limit: u64, nanos: u64) -> u128 {
        let window = Duration::from_nanos(nanos);
        AdjustableWindow::builder(limit, window)
            .build_on::<W>()
            .unwrap()
            .timing()
            .tick
            .as_nanos()
    }
    assert_eq!(
        (tick::<u64>(10, 9_999), tick::<u64>(10, 10_000)),
        (10, 1_000)
    );
    assert_eq!(tick::<u64>(1, 86_400_000_000_000), 1_000);
    assert_eq!(
        tick::<u64>(1 << 24, 1_000_000_000),
        10_000_000,
        "27 bits of ticks: two weeks"
    );
    assert_eq!(
        tick::<u32>(10, 1_000_000_000),
        10_000_000,
        "22 bits of ticks: 12 hours"
    );
    let asked = AdjustableWindow::builder(10, SECOND)
        .tick(Duration::from_nanos(1))
        .build()
        .unwrap();
    assert_eq!(asked.timing().tick, Duration::from_nanos(1));
}

#[test]
fn refused_settings_change_nothing() {
    fn check<W: Word>(limit: &AdjustableWindow<W>) {
        limit.take_at(at(5), 4).unwrap();
        let before = format!("{limit:?}");
        let refused = |permits, window, error| {
            for carry in CARRIES {
                let outcome = limit.adjust_at(at(6), permits, window, carry);
                assert_eq!(outcome, Err(ChangeError::Settings(error)), "{limit:?}");
                assert_eq!(format!("{limit:?}"), before);
            }
        };
        refused(
            0,
            SECOND,
            SettingsError::Zero {
                setting: Setting::Limit,
            },
        );
        refused(
            1,
            Duration::ZERO,
            SettingsError::Zero {
                setting: Setting::Window,
            },
        );
        refused(
            101,
            SECOND,
            SettingsError::TooLarge {
                setting: Setting::Limit,
                max: 100,
            },
        );
        refused(
            u64::MAX,
            SECOND,
            SettingsError::TooLarge {
                setting: Setting::Limit,
                max: 100,
            },
        );
        let max = 100_000_000_000;
        refused(
            1,
            100 * SECOND + Duration::from_nanos(1),
            SettingsError::TooLarge {
                setting: Setting::Window,
                max,
            },
        );
        let max = u64::MAX / 2;
        refused(
            1,
            Duration::MAX,
            SettingsError::TooLarge {
                setting: Setting::Window,
                max,
            },
        );
        assert_eq!(
            limit.adjust_at(at(6), 100, 100 * SECOND, Carry::Keep),
            Ok(())
        );
        assert_eq!((limit.limit(), limit.window()), (100, 100 * SECOND));
    }
    on_each!(check);
}

#[test]
fn a_change_that_is_too_late_is_refused_and_changes_nothing() {
    fn check<W: Word>(limit: &AdjustableWindow<W>) {
        let (now, stale) = (at(100_000), limit.timing().staleness);
        limit.take_at(now, 4).unwrap();
        let before = format!("{limit:?}");
        assert!(before.contains("newest"), "{before}");
        // The current window began at `now`.
        let since = |age: Duration| Timestamp::from_nanos(now.as_nanos() - age.as_nanos() as u64);
        let too_late = since(stale + 2 * limit.timing().tick);
        for carry in CARRIES {
            let outcome = limit.adjust_at(too_late, 100, SECOND, carry);
            assert_eq!(outcome, Err(ChangeError::Stale), "{limit:?}");
            assert_eq!(format!("{limit:?}"), before);
        }
        assert_eq!(
            limit.adjust_at(since(stale), 100, SECOND, Carry::Keep),
            Ok(())
        );
        assert_eq!(limit.available_at(since(stale)), 6, "{limit:?}");
        assert_eq!(
            limit.available_at(now),
            6,
            "the change counts at `now`: {limit:?}"
        );
    }
    on_each!(check);
}

// Carried permits.

#[test]
fn each_policy_carries_what_it_documents() {
    fn check<W: Word>(limit: &AdjustableWindow<W>) {
        // Of ten permits, `taken` are taken; after the change of the limit to `new`, `left` are
        // left.
        for (carry, taken, new, left) in [
            (Carry::Keep, 4, 20, 6),
            (Carry::Keep, 4, 3, 3),
            (Carry::Keep, 10, 100, 0),
            (Carry::Keep, 0, 20, 10),
            (Carry::Proportional, 4, 20, 12),
            (Carry::Proportional, 4, 3, 1),
            (Carry::Proportional, 10, 100, 0),
            (Carry::Proportional, 0, 3, 3),
            (Carry::Additive, 4, 20, 16),
            (Carry::Additive, 4, 5, 1),
            (Carry::Additive, 4, 3, 0),
            (Carry::Additive, 0, 100, 100),
            (Carry::Reset, 4, 20, 20),
            (Carry::Reset, 10, 3, 3),
        ] {
            limit
                .adjust_at(at(5), 10, 10 * SECOND, Carry::Reset)
                .unwrap();
            if taken > 0 {
                limit.take_at(at(5), taken).unwrap();
            }
            limit.adjust_at(at(5), new, 10 * SECOND, carry).unwrap();
            assert_eq!(
                limit.available_at(at(5)),
                left,
                "{carry:?} of {taken} to {new}: {limit:?}"
            );
            assert_eq!(
                limit.available_at(at(15)),
                new,
                "the whole next window is free"
            );
        }
    }
    on_each!(check);
}

/// Four of ten are used: with a limit of three nothing is left, with ten again six.
#[test]
fn a_reset_leaves_what_it_says_and_earlier_refunds_return_nothing() {
    fn check<W: Word>(limit: &AdjustableWindow<W>) {
        for (n, left) in [(10, 10), (3, 3), (0, 0), (11, 10), (u64::MAX, 10)] {
            assert_eq!(
                limit.adjust_at(at(5), 10, 10 * SECOND, Carry::Reset),
                Ok(())
            );
            let before: Receipt = limit.take_at(at(5), 7).unwrap();
            assert_eq!(limit.reset_at(at(5), n), Ok(()));
            assert_eq!(limit.available_at(at(5)), left);
            assert_eq!(limit.refund_at(at(5), 7, before).permits, 0);
            let all = u32::try_from(left).unwrap();
            let after = (all > 0).then(|| limit.take_at(at(5), all).unwrap());
            assert!(limit.take_at(at(5), 1).is_err());
            if let Some(after) = after {
                assert_eq!(limit.refund_at(at(5), all, after).permits, all);
            }
            assert_eq!(limit.available_at(at(5)), left);
            assert_eq!(limit.available_at(at(15)), 10);
        }
    }
    check(&on_grid::<u64>());
    check(&on_grid::<u32>());
    check(&started::<u64>());
    check(&started::<u32>());
}

#[test]
fn carried_usage_is_not_forgotten_under_a_lower_limit() {
    fn check<W: Word>(limit: &AdjustableWindow<W>) {
        limit.take_at(at(5), 4).unwrap();
        for (new, left) in [(3, 0), (1, 0), (10, 6), (4, 0), (5, 1), (100, 96)] {
            limit
                .adjust_at(at(5), new, 10 * SECOND, Carry::Additive)
                .unwrap();
            assert_eq!(limit.available_at(at(5)), left, "{new}: {limit:?}");
            assert!(limit.take_at(at(5), left as u32 + 1).is_err());
        }
    }
    on_each!(check);
}

#[test]
fn on_a_grid_the_current_window_ends_with_that_of_the_new_grid() {
    fn check<W: Word>(_: W) {
        for (length, end) in [(3, 15), (7, 14), (10, 20), (13, 26), (100, 100)] {
            for carry in CARRIES {
                let limit = on_grid::<W>();
                limit.take_at(at(11), 10).unwrap();
                limit.adjust_at(at(13), 10, length * SECOND, carry).unwrap();
                let left = limit.available_at(at(13));
                assert_eq!(left, if carry == Carry::Reset { 10 } else { 0 });
                assert_eq!(limit.available_at(at(end - 1)), left, "{length}: {limit:?}");
                assert_eq!(limit.available_at(at(end)), 10, "{length}: {limit:?}");
                let _ = limit.take_at(at(13), 10);
                let denied = limit.take_at(at(13), 1).unwrap_err();
                assert_eq!(denied.retry(&limit), Retry::At(at(end)));
            }
        }
    }
    check(0u64);
    check(0u32);
}

#[test]
fn a_started_window_ends_the_new_length_after_its_start_or_within_a_tick() {
    fn check<W: Word>(_: W) {
        let tick = started::<W>().timing().tick;
        for (length, end) in [
            (7, at(18)),
            (10, at(21)),
            (100, at(111)),
            (3, at(14).saturating_add(tick)),
        ] {
            let limit = started::<W>();
            limit.take_at(at(11), 10).unwrap();
            limit
                .adjust_at(at(14), 10, length * SECOND, Carry::Keep)
                .unwrap();
            let denied = limit.take_at(at(14), 1).unwrap_err();
            assert_eq!(denied.retry(&limit), Retry::At(end), "{length}: {limit:?}");
            // With a reset, a new window begins with the change.
            limit
                .adjust_at(at(14), 10, length * SECOND, Carry::Reset)
                .unwrap();
            limit.take_at(at(14), 10).unwrap();
            let denied = limit.take_at(at(14), 1).unwrap_err();
            assert_eq!(
                denied.retry(&limit),
                Retry::At(at(14).saturating_add(length * SECOND))
            );
        }
    }
    check(0u64);
    check(0u32);
}

/// An idle limiter's limit grows. It keeps the old one until the window ends that the change has
/// opened.
#[test]
fn keep_makes_no_more_available_even_if_nothing_was_taken() {
    fn check<W: Word>(limit: &AdjustableWindow<W>) {
        limit
            .adjust_at(at(40), 50, 20 * SECOND, Carry::Keep)
            .unwrap();
        assert_eq!(limit.available_at(at(40)), 10, "{limit:?}");
        assert_eq!(limit.available_at(at(59)), 10);
        assert_eq!(limit.available_at(at(60)), 50, "{limit:?}");
    }
    on_each!(check);
}

/// The change counts as if it had been made somewhere in the tick of the newest grant or change.
#[test]
fn a_late_change_counts_at_the_newest_time_granted() {
    fn check<W: Word>(new: fn() -> AdjustableWindow<W>) {
        for carry in CARRIES {
            for (late, length) in [(51, 3), (58, 7), (45, 4), (40, 20), (59, 100)] {
                let (ours, theirs) = (new(), new());
                for limit in [&ours, &theirs] {
                    limit.take_at(at(50), 1).unwrap();
                    limit.take_at(at(59), 2).unwrap();
                }
                let within = at(59).saturating_add(ours.timing().tick / 2);
                ours.adjust_at(at(late), 20, length * SECOND, carry)
                    .unwrap();
                let on_time = if late == 59 { at(59) } else { within };
                theirs
                    .adjust_at(on_time, 20, length * SECOND, carry)
                    .unwrap();
                for seconds in 59..170 {
                    let (left, right) = (
                        ours.available_at(at(seconds)),
                        theirs.available_at(at(seconds)),
                    );
                    assert_eq!(
                        left, right,
                        "{carry:?} at {late}, then at {seconds}: {ours:?}, {theirs:?}"
                    );
                }
                // A late change after another change, which has recorded its time.
                ours.adjust_at(at(200), 10, 10 * SECOND, Carry::Reset)
                    .unwrap();
                ours.adjust_at(at(190), 10, 20 * SECOND, carry).unwrap();
                assert_eq!(ours.available_at(at(200)), 10);
                ours.take_at(at(219), 10).unwrap();
                assert_eq!(ours.available_at(at(219)), 0, "{carry:?}: {ours:?}");
            }
        }
    }
    check(on_grid::<u64>);
    check(on_grid::<u32>);
    check(started::<u64>);
    check(started::<u32>);
}

/// If the changes were retroactive, the window of the new length would be over and a whole limit
/// free again.
#[test]
fn late_changes_gain_nothing_at_the_newest_instant() {
    fn check<W: Word>(limit: &AdjustableWindow<W>) {
        limit.take_at(at(50), 1).unwrap();
        limit.take_at(at(58), 4).unwrap();
        let mut granted = 5;
        for (late, length) in [(51, 1), (52, 2), (57, 1), (50, 3), (58, 1), (50, 10)] {
            for carry in [Carry::Keep, Carry::Additive, Carry::Proportional] {
                limit
                    .adjust_at(at(late), 10, length * SECOND, carry)
                    .unwrap();
                granted += u64::from(limit.take_at(at(58), 1).is_ok());
                assert_eq!(
                    limit.available_at(at(58)),
                    10 - granted.min(10),
                    "{carry:?} at {late}: {limit:?}"
                );
            }
        }
        assert_eq!(granted, 10);
    }
    on_each!(check);
}

#[test]
fn without_a_change_it_decides_as_a_fixed_window_does() {
    fn check<W: Word>(started: bool) {
        let mut builder = FixedWindow::builder(10, SECOND).origin(at(3));
        let mut adjustable = AdjustableWindow::builder(10, SECOND).origin(at(3));
        if started {
            builder = builder.started_by_first_request();
            adjustable = adjustable.started_by_first_request();
        }
        let fixed: FixedWindow<W> = builder.build_on().unwrap();
        let adjustable: AdjustableWindow<W> =
            adjustable.tick(fixed.timing().tick).build_on().unwrap();
        let mut draws = Draws::Seeded { state: 7, steps: 0 };
        let mut clock = 3_000_000_000;
        for _ in 0..20_000 {
            clock += draws.magnitude(1_000_000_000);
            let now = Timestamp::from_nanos(
                clock - draws.magnitude((clock - 3_000_000_000).min(1_000_000_000)),
            );
            let n = draws.below(13) as u32;
            let (ours, theirs) = (adjustable.take_at(now, n), fixed.take_at(now, n));
            assert_eq!(
                ours.is_ok(),
                theirs.is_ok(),
                "{n} at {now}: {adjustable:?}, {fixed:?}"
            );
            if let (Err(ours), Err(theirs)) = (ours, theirs) {
                assert_eq!(ours, theirs);
                assert_eq!(ours.retry(&adjustable), theirs.retry(&fixed));
            }
            assert_eq!(adjustable.available_at(now), fixed.available_at(now));
            assert_eq!(adjustable.idle_at(now), fixed.idle_at(now));
        }
    }
    // Positions of both are ticks if the first request starts a window; on a grid, the fixed
    // window's positions are whole windows.
    check::<u64>(false);
    check::<u64>(true);
    check::<u32>(true);
}

// Refunds.

#[test]
fn what_was_taken_before_a_change_cannot_be_refunded_after_it() {
    fn check<W: Word>(limit: &AdjustableWindow<W>) {
        for carry in CARRIES {
            limit
                .adjust_at(at(5), 10, 10 * SECOND, Carry::Reset)
                .unwrap();
            let mut before = limit.try_acquire_at(at(5), 4).unwrap();
            limit.adjust_at(at(5), 10, 10 * SECOND, carry).unwrap();
            let left = limit.available_at(at(5));
            assert_eq!(before.refund_at(at(5), 2), Ok(0));
            let mut after = limit.try_acquire_at(at(5), 4).unwrap();
            assert_eq!(before.refund_at(at(5), 2), Ok(0));
            assert_eq!(limit.available_at(at(5)), left - 4);
            assert_eq!(
                (after.refund_at(at(5), 3), after.refund_at(at(5), 1)),
                (Ok(3), Ok(1))
            );
            assert_eq!(limit.available_at(at(5)), left, "{limit:?}");
        }
    }
    on_each!(check);
}

#[test]
fn what_was_taken_in_an_older_window_cannot_be_refunded() {
    fn check<W: Word>(limit: &AdjustableWindow<W>) {
        let mut old = limit.try_acquire_at(at(5), 4).unwrap();
        limit.take_at(at(15), 4).unwrap();
        assert_eq!(old.refund_at(at(15), 4), Ok(0));
        assert_eq!(limit.available_at(at(15)), 6, "{limit:?}");
        // Nor can more than was counted in this window.
        let receipt = limit.take_at(at(15), 1).unwrap();
        let refund = limit.refund_at(at(15), 6, receipt);
        assert_eq!(refund.permits, 0);
        assert_eq!(limit.refund_at(at(15), 1, refund.rest).permits, 1);
    }
    on_each!(check);
}

#[test]
fn a_refunded_window_is_started_by_the_next_request() {
    fn check<W: Word>(_: W) {
        let limit = started::<W>();
        let full_from = |now| limit.take_at(now, 10).unwrap_err().retry(&limit);
        // In the same tick, and in a later one.
        for (again, end) in [(100, 110), (207, 217)] {
            let mut undone = limit.try_acquire_at(at(again / 100 * 100), 10).unwrap();
            assert_eq!(undone.refund_at(at(again), 4), Ok(4));
            assert_eq!(undone.refund_at(at(again), 6), Ok(6));
            assert_eq!(limit.available_at(at(again)), 10);
            limit.take_at(at(again), 1).unwrap();
            assert_eq!(full_from(at(again)), Retry::At(at(end)), "{limit:?}");
        }
        // The window stays open as long as one permit is taken.
        let mut most = limit.try_acquire_at(at(300), 9).unwrap();
        let mut last = limit.try_acquire_at(at(303), 1).unwrap();
        assert_eq!(most.refund_at(at(303), 9), Ok(9));
        limit.take_at(at(305), 1).unwrap();
        assert_eq!(full_from(at(305)), Retry::At(at(310)));
        assert_eq!(last.refund_at(at(305), 1), Ok(1));
        assert_eq!(full_from(at(305)), Retry::At(at(310)));
    }
    check(0u64);
    check(0u32);
}

/// What a change has carried over counts as used, whichever grants are refunded.
#[test]
fn a_window_carried_over_by_a_change_stays_open_when_all_grants_are_refunded() {
    fn check<W: Word>(_: W) {
        let limit = started::<W>();
        limit.take_at(at(100), 3).unwrap();
        limit
            .adjust_at(at(102), 10, 20 * SECOND, Carry::Keep)
            .unwrap();
        let mut lease = limit.try_acquire_at(at(104), 7).unwrap();
        assert_eq!(lease.refund_at(at(105), 7), Ok(7));
        limit.take_at(at(106), 7).unwrap();
        let denied = limit.take_at(at(106), 1).unwrap_err();
        assert_eq!(denied.retry(&limit), Retry::At(at(120)), "{limit:?}");
    }
    check(0u64);
    check(0u32);
}

/// Between the last window and the next one there is no room for stale timestamps, nor for requests
/// in the same tick.
#[test]
fn a_refunded_window_leaves_no_room_before_it() {
    fn check<W: Word>(_: W) {
        for (undone, late, last) in [
            (10_000, 9_950, 20_000),
            (10_500, 10_600, 21_000),
            (10_000, 9_000, 19_000),
            (10_000, 9_000, 10_000),
            (10_500, 9_900, 11_000),
        ] {
            let builder = AdjustableWindow::builder(10, 10 * SECOND)
                .started_by_first_request()
                .tick(SECOND);
            let limit: AdjustableWindow<W> = builder.build_on().unwrap();
            let ms = Timestamp::from_millis;
            let take = |millis, n: u32| limit.take_at(ms(millis), n).map_or(0, |_| n);
            assert_eq!(take(0, 1), 1);
            let mut granted = take(9_900, 9);
            let receipt = limit.take_at(ms(undone), 10).unwrap();
            assert_eq!(limit.refund_at(ms(undone), 10, receipt).permits, 10);
            granted += take(late, 10);
            if last < 9_900 + 10_000 {
                granted += take(last, 10);
            }
            assert!(granted <= 20, "{granted} in less than 10 s: {limit:?}");
        }
    }
    check(0u64);
    check(0u32);
}

/// After a refunded request, all later requests get the answers that they would have got without
/// it.
#[test]
fn a_full_refund_is_as_if_never_taken() {
    fn check<W: Word>(new: fn() -> AdjustableWindow<W>, seed: u64) {
        let mut draws = Draws::Seeded {
            state: seed,
            steps: 200,
        };
        let (ours, theirs) = (new(), new());
        let mut clock = 0;
        while draws.another_step() {
            clock += draws.magnitude(15_000_000_000);
            let now = Timestamp::from_nanos(clock);
            match draws.below(6) {
                0 => {
                    let (limit, length) =
                        (draws.within(1, 20), draws.within(1, 20) as u32 * SECOND);
                    let carry = draws.one_of(&CARRIES);
                    ours.adjust_at(now, limit, length, carry).unwrap();
                    theirs.adjust_at(now, limit, length, carry).unwrap();
                }
                1..3 => {
                    let n = draws.within(1, 5) as u32;
                    if let Ok(undone) = ours.take_at(now, n) {
                        assert_eq!(ours.refund_at(now, n, undone).permits, n);
                    }
                }
                _ => {
                    let n = draws.below(6) as u32;
                    let outcomes = (ours.take_at(now, n), theirs.take_at(now, n));
                    assert_eq!(
                        outcomes.0.is_ok(),
                        outcomes.1.is_ok(),
                        "{n} at {now}: {ours:?}, {theirs:?}"
                    );
                    if let (Err(our), Err(their)) = outcomes {
                        assert_eq!(
                            our.retry(&ours),
                            their.retry(&theirs),
                            "{ours:?}, {theirs:?}"
                        );
                    }
                }
            }
            assert_eq!(
                ours.available_at(now),
                theirs.available_at(now),
                "{now}: {ours:?}, {theirs:?}"
            );
        }
    }
    for seed in 0..500 {
        check(on_grid::<u64>, seed);
        check(on_grid::<u32>, seed);
        check(started::<u64>, seed);
        check(started::<u32>, seed);
    }
}

// Arbitrary times.

#[test]
fn the_ends_of_time_never_panic() {
    fn check<W: Word>(seed: u64) {
        let mut draws = Draws::Seeded {
            state: seed,
            steps: 200,
        };
        let window = Duration::from_nanos(draws.magnitude(1 << 62).max(1));
        let most = draws.magnitude(W::MASK >> 8).max(1);
        let mut settings = AdjustableWindow::builder(1, window).max_limit(most);
        settings = settings.origin(Timestamp::from_nanos(draws.magnitude(u64::MAX)));
        if draws.once_in(2) {
            settings = settings.started_by_first_request();
        }
        if draws.once_in(2) {
            settings = settings.tick(Duration::from_nanos(draws.magnitude(1 << 62).max(1)));
        }
        let Ok(limit) = settings.build_on::<W>() else {
            return;
        };
        while draws.another_step() {
            let near = draws.magnitude(u64::MAX);
            let now = Timestamp::from_nanos(draws.one_of(&[0, u64::MAX, near, u64::MAX - near]));
            let n = draws.magnitude(u64::from(u32::MAX)) as u32;
            match limit.take_at(now, n) {
                Ok(receipt) => _ = limit.refund_at(now, n / 2, receipt),
                Err(denied) => _ = denied.retry(&limit),
            }
            let length = Duration::from_nanos(draws.magnitude(1 << 62));
            let _ = limit.adjust_at(now, draws.magnitude(most), length, draws.one_of(&CARRIES));
            assert!(limit.available_at(now) <= limit.limit());
            let _ = (
                limit.idle_at(now),
                limit.window(),
                limit.timing().staleness,
                limit.timing().horizon,
            );
        }
    }
    for seed in 0..400 {
        check::<u64>(seed);
        check::<u32>(seed);
    }
}

/// After idling for about a horizon, the limiter reports less than full, for a bounded time. A
/// retry is exact there, too.
#[test]
fn after_a_horizon_it_reports_less_than_full_for_no_longer_than_documented() {
    fn check<W: Word>(limit: &AdjustableWindow<W>) {
        limit.take_at(at(1_000), 10).unwrap();
        let tick = limit.timing().tick.as_nanos() as u64;
        let horizon = limit.timing().horizon.as_nanos() as u64 + tick;
        let (stale, longest) = (
            limit.timing().staleness.as_nanos() as u64,
            100_000_000_000 + tick,
        );
        // All windows end at 1,010 s, or where that instant wraps; on a grid, with the window that
        // contains it.
        let around = horizon + 1_010_000_000_000;
        let is_on_grid = format!("{limit:?}").contains("started: false");
        let full = if is_on_grid {
            around.next_multiple_of(10_000_000_000)
        } else {
            around
        };
        let told = |instant| limit.available_at(Timestamp::from_nanos(instant));
        let shut = around - longest - 2 * stale;
        for instant in [shut - 10_000_000_000, full, full + 1_000_000_000] {
            assert_eq!(told(instant), 10, "{instant}: {limit:?}");
        }
        for instant in (shut + 1_000_000_000..full).step_by(300_000_000) {
            assert_eq!(told(instant), 0, "{instant}: {limit:?}");
            let denied = limit
                .take_at(Timestamp::from_nanos(instant), 1)
                .unwrap_err();
            assert_eq!(denied.retry(limit), Retry::At(Timestamp::from_nanos(full)));
        }
        // If the old window has room, only stale timestamps are denied.
        limit
            .adjust_at(at(1_001), 20, 10 * SECOND, Carry::Additive)
            .unwrap();
        let open = around - longest - stale;
        let denied = limit
            .take_at(Timestamp::from_nanos(open - 1_000_000_000), 1)
            .unwrap_err();
        let Retry::At(then) = denied.retry(limit) else {
            panic!("{denied:?}")
        };
        assert!(
            then.as_nanos().abs_diff(open) <= 2 * tick,
            "{then}: {limit:?}"
        );
        assert!(limit.peek_at(then, 1).is_ok());
        assert!(
            limit
                .peek_at(Timestamp::from_nanos(then.as_nanos() - 1), 1)
                .is_err()
        );
    }
    on_each!(check);
}

/// Where the word wraps, an old end lies between two instants of the grid. The grants before it and
/// after it are in one window.
#[test]
fn a_grid_window_in_which_the_word_wraps_grants_no_more_than_its_limit() {
    fn check<W: Word>(window: u64, wide: bool) {
        for phase in 0..40 {
            for origin in [0, 1_700_000_000_000_000_000] {
                let length = Duration::from_nanos(window);
                let longest = if wide { 4 * length } else { length };
                let settings = AdjustableWindow::builder(3, length)
                    .max_limit(7)
                    .max_window(longest)
                    .origin(Timestamp::from_nanos(origin));
                let by_default = settings.build_on::<W>().unwrap().timing().horizon;
                let staleness = (by_default / 256).clamp(SECOND, 3_600 * SECOND);
                let limit = settings.staleness(staleness).build_on::<W>().unwrap();
                let horizon = limit.timing().horizon.as_nanos() as u64
                    + limit.timing().tick.as_nanos() as u64;
                let start = horizon.saturating_sub(5 * window) + phase * window / 4;
                let mut granted = [0; 40];
                let mut largest = 3_u32;
                for step in 0..80 {
                    let now = start + step * window / 4;
                    let instant = Timestamp::from_nanos(origin + now);
                    if step == phase && phase % 3 == 0 {
                        largest = 5;
                        limit
                            .adjust_at(instant, 5, length, Carry::Additive)
                            .unwrap();
                    }
                    if (step + phase) % 3 > 0 {
                        let told = limit.available_at(instant);
                        for _ in 0..=step % 2 {
                            if let Ok(_taken) = limit.take_at(instant, 1) {
                                granted[((now / window) - start / window) as usize] += 1;
                            }
                        }
                        let left = limit.available_at(instant);
                        assert!(left <= told && told - left <= step % 2 + 1);
                        if let Err(denied) = limit.take_at(instant, largest) {
                            let Retry::At(then) = denied.retry(&limit) else {
                                panic!("{denied:?}")
                            };
                            assert!(limit.peek_at(then, largest).is_ok(), "{then} after {now}");
                            let before = Timestamp::from_nanos(then.as_nanos() - 1);
                            assert!(
                                limit.peek_at(before, largest).is_err(),
                                "{then} after {now}"
                            );
                        } else {
                            granted[((now / window) - start / window) as usize] += largest;
                        }
                    }
                }
                let most = granted.iter().max().unwrap();
                assert!(
                    *most <= largest,
                    "{most} of {largest} in a window, {phase}: {granted:?}"
                );
            }
        }
    }
    for wide in [false, true] {
        check::<u64>(7_000_000_000, wide);
        check::<u32>(7_000_000_000, wide);
        check::<u32>(1_000_000_000, wide);
    }
}

/// A window with an end and a count, in ticks that never wrap.
struct Model {
    origin: u64,
    step: u64,
    started: bool,
    /// In ticks.
    staleness: i128,
    range: i128,
    limit: u64,
    window: i128,
    end: i128,
    count: u64,
    /// The newest instant at which anything was granted or changed, in nanoseconds.
    newest: u64,
    era: u64,
    /// For the window in which the settings last changed: its end, the permits granted in it that
    /// are not in the count, and the largest limit that was in force in it.
    changed_in: i128,
    beyond: u64,
    largest: u64,
    /// The tick of the last change, and the number of changes in it.
    changed_at: i128,
    changes_at_once: u64,
}

impl Model {
    fn of<W: Word>(limiter: &AdjustableWindow<W>, origin: u64, started: bool) -> Self {
        let step = limiter.timing().tick.as_nanos() as u64;
        let ticks = |span: Duration| (span.as_nanos() / u128::from(step)).cast_signed();
        Self {
            origin,
            step,
            started,
            staleness: ticks(limiter.timing().staleness),
            range: ticks(limiter.timing().horizon) + 1,
            limit: limiter.limit(),
            window: ticks(limiter.window()),
            end: 0,
            count: 0,
            newest: origin,
            era: 0,
            changed_in: 0,
            beyond: 0,
            largest: limiter.limit(),
            changed_at: 0,
            changes_at_once: 0,
        }
    }

    /// Permits granted in the current window that are not in its count.
    fn beyond(&self) -> u64 {
        if self.changed_in == self.end {
            self.beyond
        } else {
            0
        }
    }

    /// Whether no request has started the window.
    fn is_unstarted(&self) -> bool {
        self.started && self.count == 0 && self.beyond() == 0
    }

    fn tick(&self, now: u64) -> i128 {
        (now.saturating_sub(self.origin) / self.step).into()
    }

    /// The tick at which a window begins that a request at `now` starts.
    fn rounded(&self, now: u64) -> i128 {
        let into = now.saturating_sub(self.origin) % self.step;
        self.tick(now) + i128::from(self.started && into != 0)
    }

    fn instant(&self, tick: i128) -> Option<Timestamp> {
        let nanos = i128::from(self.origin) + tick * i128::from(self.step);
        u64::try_from(nanos).ok().map(Timestamp::from_nanos)
    }

    fn is_on(&self, now: u64) -> bool {
        self.tick(now) < self.end
    }

    fn available(&self, now: u64) -> u64 {
        if self.is_on(now) {
            self.limit.saturating_sub(self.count)
        } else {
            self.limit
        }
    }

    fn took(&mut self, now: u64, n: u32) {
        if !self.is_on(now) {
            let next = (self.tick(now) / self.window + 1) * self.window;
            self.end = if self.started {
                self.rounded(now) + self.window
            } else {
                next
            };
            self.count = 0;
        } else if self.is_unstarted() {
            // As if the window had not been started, except for stale timestamps.
            self.end = self.end.max(self.rounded(now) + self.window);
        }
        self.count += u64::from(n);
        self.newest = self.newest.max(now);
    }

    fn changed(&mut self, now: u64, limit: u64, window: i128, carry: Carry) {
        // A late change counts at the newest time, somewhere in its tick.
        let late = self.tick(now) < self.tick(self.newest);
        let now = if late { self.newest } else { now };
        let (tick, left) = (self.tick(now), self.available(now));
        let rounded = if late {
            tick + i128::from(self.started)
        } else {
            self.rounded(now)
        };
        let (used, beyond) = if self.is_on(now) {
            (self.count, self.beyond())
        } else {
            (0, 0)
        };
        let same = self.is_on(now) && self.changed_in == self.end;
        let largest = limit.max(if same { self.largest } else { self.limit });
        // Together with what was granted, no more than the largest limit.
        let rest = largest.saturating_sub(used + beyond);
        let left = match carry {
            Carry::Keep => left.min(limit),
            Carry::Proportional => {
                ((u128::from(left) * u128::from(limit) / u128::from(self.limit)) as u64).min(rest)
            }
            Carry::Additive => limit.saturating_sub(used).min(rest),
            Carry::Reset => limit,
            _ => unreachable!("the model has no {carry:?}"),
        };
        let begun = match self.end - self.window {
            _ if !self.is_on(now) => rounded,
            begun if self.is_unstarted() => begun.max(rounded),
            begun => begun,
        };
        self.end = if !self.started {
            let mut end = tick.max(begun) / window * window;
            while end <= tick.max(begun) {
                end += window;
            }
            end
        } else if carry == Carry::Reset {
            begun.max(rounded) + window
        } else {
            (begun + window).max(tick + 1)
        };
        let count = if carry == Carry::Additive && left == 0 {
            used.max(limit)
        } else {
            limit - left
        };
        let granted = if carry == Carry::Reset {
            0
        } else {
            used + beyond
        };
        self.beyond = granted.saturating_sub(count);
        self.largest = if carry == Carry::Reset {
            limit
        } else {
            largest
        };
        self.changed_in = self.end;
        (self.limit, self.window, self.count) = (limit, window, count);
        let at_once = self.tick(now) == self.changed_at;
        self.changes_at_once = if at_once { self.changes_at_once + 1 } else { 1 };
        self.changed_at = self.tick(now);
        self.newest = self.newest.max(now);
        self.era += 1;
    }
}

/// An admission, and the instant at which it counts.
struct Admission {
    at: u64,
    permits: u64,
    era: u64,
}

/// Checks all grants against the documented bounds, without knowledge of words and counts.
struct Ledger {
    origin: u64,
    step: u64,
    started: bool,
    limit: u64,
    /// In nanoseconds.
    window: u128,
    era: u64,
    /// The permits that the last change has left of the current window, and the tick in which that
    /// window ends.
    left: u64,
    first_end: i128,
    admissions: Vec<Admission>,
    /// The tick of the newest admission or change, the limit in force at its first event, and the
    /// largest limit since.
    instant: u64,
    entered: u64,
    largest: u64,
    /// The policy of all changes, if it is always the same.
    always: Option<Carry>,
}

impl Ledger {
    fn tick(&self, at: u64) -> u64 {
        at.saturating_sub(self.origin) / self.step
    }

    fn enter(&mut self, at: u64) {
        if self.tick(at) != self.instant {
            (self.instant, self.entered, self.largest) = (self.tick(at), self.limit, self.limit);
        }
    }

    fn newest(&self) -> u64 {
        self.admissions
            .last()
            .map_or(self.origin, |admission| admission.at)
    }

    /// Records an admission, and returns its index.
    fn took(&mut self, now: u64, n: u32) -> usize {
        let at = now.max(self.newest());
        self.enter(at.max(self.origin + self.instant * self.step));
        self.admissions.push(Admission {
            at,
            permits: n.into(),
            era: self.era,
        });
        self.check(at);
        self.admissions.len() - 1
    }

    fn gave_back(&mut self, index: usize, n: u32) {
        self.admissions[index].permits -= u64::from(n);
    }

    /// Records a change at `now`, which leaves `left` permits until the tick `first_end`.
    fn changed(&mut self, now: u64, limit: u64, window: u64, left: u64, first_end: i128) {
        self.enter(
            now.max(self.newest())
                .max(self.origin + self.instant * self.step),
        );
        (self.limit, self.window) = (limit, u128::from(window) * u128::from(self.step));
        self.largest = self.largest.max(limit);
        (self.left, self.first_end) = (left, first_end);
        self.era += 1;
    }

    fn check(&self, at: u64) {
        let sum = |counts: &dyn Fn(&Admission) -> bool| {
            self.admissions
                .iter()
                .filter(|admission| counts(admission))
                .map(|a| a.permits)
                .sum::<u64>()
        };
        let here = |admission: &Admission| admission.era == self.era;
        let window = |at: u64| u128::from(self.tick(at)) * u128::from(self.step) / self.window;
        if !self.started {
            let granted = sum(&|admission| here(admission) && window(admission.at) == window(at));
            assert!(
                granted <= self.limit,
                "{granted} in a window of {}",
                self.limit
            );
        }
        let granted =
            sum(&|admission| here(admission) && u128::from(at - admission.at) < self.window);
        assert!(
            u128::from(granted) <= 2 * u128::from(self.limit),
            "{granted} in the length of a window"
        );
        if self.era > 0 {
            let first =
                |admission: &Admission| i128::from(self.tick(admission.at)) < self.first_end;
            let granted = sum(&|admission| here(admission) && first(admission));
            assert!(
                granted <= self.left,
                "{granted} of {} that a change has left",
                self.left
            );
        }
        // However often the settings change at one instant, no permits are gained.
        let most = match self.always {
            Some(Carry::Keep) => self.entered,
            Some(Carry::Additive) => self.largest,
            _ => return,
        };
        let granted = sum(&|admission| self.tick(admission.at) == self.instant);
        assert!(granted <= most, "{granted} at one instant, of {most}");
    }
}

#[derive(Debug, Default)]
struct Tally {
    operations: u64,
    granted: u64,
    denied: u64,
    changed: u64,
    reset: u64,
    changed_late: u64,
    late: u64,
    given_back: u64,
}

/// A random window, and the largest settings that it accepts.
struct Subject<W: Word> {
    limiter: AdjustableWindow<W>,
    max_limit: u64,
    max_window: u64,
    started: bool,
    origin: u64,
}

/// Returns `None` if the settings do not fit.
fn subject<W: Word>(draws: &mut Draws<'_>) -> Option<Subject<W>> {
    let length = draws.magnitude(1 << 56).max(1);
    let window = draws.one_of(&[1_000_000_000, length, 60_000_000_000, 999_999_937, 1]);
    let max_window = window.saturating_mul(draws.one_of(&[1, 2, 10]));
    let most = draws.magnitude(W::MASK >> 8).max(1);
    let max_limit = draws.one_of(&[20, most, 1]);
    let mut settings =
        AdjustableWindow::builder(draws.within(1, max_limit), Duration::from_nanos(window))
            .max_limit(max_limit)
            .max_window(Duration::from_nanos(max_window));
    let started = draws.once_in(2);
    if started {
        settings = settings.started_by_first_request();
    }
    if draws.once_in(3) {
        settings = settings.tick(Duration::from_nanos(draws.magnitude(20_000_000_000).max(1)));
    }
    let far = draws.magnitude(u64::MAX);
    let origin = draws.one_of(&[0, far, u64::MAX - far]);
    let limiter = settings
        .origin(Timestamp::from_nanos(origin))
        .build_on()
        .ok()?;
    Some(Subject {
        limiter,
        max_limit,
        max_window,
        started,
        origin,
    })
}

/// Random operations on a random window. Each is compared with the model, and all grants with the
/// bounds.
fn trace<W: Word>(draws: &mut Draws<'_>, tally: &mut Tally) {
    let Some(Subject {
        limiter,
        max_limit,
        max_window,
        started,
        origin,
    }) = subject::<W>(draws)
    else {
        return;
    };
    let step = limiter.timing().tick.as_nanos() as u64;
    let ticks = |span: Duration| (span.as_nanos() / u128::from(step)).cast_signed();
    let mut model = Model::of(&limiter, origin, started);
    let mut ledger = Ledger {
        origin,
        step,
        started,
        limit: limiter.limit(),
        window: limiter.window().as_nanos(),
        era: 0,
        left: 0,
        first_end: 0,
        admissions: Vec::new(),
        instant: 0,
        entered: limiter.limit(),
        largest: limiter.limit(),
        always: draws.one_of(&[None, Some(Carry::Keep), Some(Carry::Additive)]),
    };
    let mut receipts: Vec<(Receipt, u32, u64, i128, usize)> = Vec::new();
    while draws.another_step() {
        tally.operations += 1;
        let jump = draws.magnitude(max_window.saturating_mul(3));
        let now = if draws.once_in(3) {
            // As stale as allowed, and a little into the future of that.
            let stale =
                (model.staleness.cast_unsigned() * u128::from(step)).min(u64::MAX.into()) as u64;
            let late = draws.magnitude(stale.min(max_window.saturating_mul(2)));
            tally.late += 1;
            model.newest.saturating_sub(late)
        } else {
            // Not so far that the end wraps.
            let far = model
                .instant(model.end + model.range / 4 - 1)
                .map_or(u64::MAX, Timestamp::as_nanos);
            model.newest.saturating_add(jump).min(far).max(model.newest)
        };
        let time = Timestamp::from_nanos(now);
        let available = model.available(now);
        assert_eq!(
            limiter.available_at(time),
            available,
            "{limiter:?} at {time}"
        );
        match draws.below(8) {
            0 => {
                if ledger.always.is_none() && draws.once_in(3) {
                    let limit = model.limit;
                    let n = draws.within(0, limit + 1);
                    let n = draws.one_of(&[0, n, limit, u64::MAX]);
                    limiter.reset_at(time, n).unwrap();
                    model.changed(now, limit, model.window, Carry::Reset);
                    model.count = limit - n.min(limit);
                    let left = limiter.available_at(Timestamp::from_nanos(model.newest));
                    assert_eq!(left, n.min(limit));
                    let length = u64::try_from(model.window).unwrap();
                    ledger.changed(now, limit, length, left, model.end);
                    tally.reset += 1;
                    continue;
                }
                let length = draws.within(1, max_window);
                let limit = draws.within(1, max_limit);
                let carry = draws.one_of(&CARRIES);
                let carry = ledger.always.unwrap_or(carry);
                let before = limiter.available_at(Timestamp::from_nanos(now.max(model.newest)));
                tally.changed_late += u64::from(model.tick(now) < model.tick(model.newest));
                limiter
                    .adjust_at(time, limit, Duration::from_nanos(length), carry)
                    .unwrap();
                model.changed(now, limit, i128::from(length.div_ceil(step)), carry);
                let left = limiter.available_at(Timestamp::from_nanos(model.newest));
                assert!(
                    carry != Carry::Keep || left <= before,
                    "{left} after {before}: {limiter:?}"
                );
                ledger.changed(now, limit, length.div_ceil(step), left, model.end);
                assert_eq!(
                    (limiter.limit(), ticks(limiter.window())),
                    (model.limit, model.window)
                );
                tally.changed += 1;
            }
            1 if !receipts.is_empty() => {
                let index = draws.below(receipts.len() as u64) as usize;
                let (receipt, n, era, end, admission) = receipts.swap_remove(index);
                let worth = if (era, end) == (model.era, model.end) {
                    n
                } else {
                    0
                };
                let refunded = limiter.refund_at(time, n, receipt).permits;
                // The word cannot distinguish this many changes at one instant, so no receipt is
                // valid.
                let worth = if refunded == 0 && model.changes_at_once >= 15 {
                    0
                } else {
                    worth
                };
                assert_eq!(refunded, worth, "{limiter:?}");
                if worth > 0 {
                    model.count -= u64::from(worth);
                    ledger.gave_back(admission, worth);
                    tally.given_back += 1;
                }
            }
            _ => {
                let n =
                    u32::try_from(draws.magnitude(max_limit.saturating_add(1))).unwrap_or(u32::MAX);
                let n = draws.one_of(&[n, u32::try_from(available).unwrap_or(n), 1]);
                let outcome = limiter.take_at(time, n);
                let wanted = u64::from(n.max(1));
                assert_eq!(
                    outcome.is_ok(),
                    wanted <= available,
                    "{n} at {time}: {limiter:?}"
                );
                match outcome {
                    Ok(receipt) if n > 0 => {
                        model.took(now, n);
                        receipts.push((receipt, n, model.era, model.end, ledger.took(now, n)));
                        tally.granted += 1;
                    }
                    Ok(_) => {}
                    Err(denied) => {
                        tally.denied += 1;
                        check_denial(&limiter, &model, time, n, denied);
                    }
                }
            }
        }
        check_view(&limiter, &model, time);
    }
}

/// A denial has the documented reason, and its retry is exact.
fn check_denial<W: Word>(
    limiter: &AdjustableWindow<W>,
    model: &Model,
    time: Timestamp,
    n: u32,
    denied: Denied,
) {
    if u64::from(n) > model.limit {
        assert_eq!(
            denied,
            Denied::ExceedsCapacity {
                permits: n,
                capacity: model.limit as u32
            }
        );
        assert_eq!(denied.retry(limiter), Retry::Never);
        return;
    }
    assert_eq!(
        denied,
        Denied::Exhausted {
            now: time,
            permits: n
        }
    );
    let end = model.instant(model.end);
    assert_eq!(denied.retry(limiter), end.map_or(Retry::Never, Retry::At));
    if let Some(end) = end {
        let earlier = Timestamp::from_nanos(end.as_nanos() - 1);
        assert!(
            limiter.peek_at(end, n).is_ok() && limiter.peek_at(earlier, n).is_err(),
            "{limiter:?}"
        );
    }
}

/// All that can be read agrees with the model.
fn check_view<W: Word>(limiter: &AdjustableWindow<W>, model: &Model, time: Timestamp) {
    let now = time.as_nanos();
    assert_eq!(
        limiter.available_at(time),
        model.available(now),
        "{limiter:?} at {time}"
    );
    let idle = match model.is_on(now) {
        true if model.count == 0 => Idle::Now,
        true => Idle::InUse,
        false => Idle::Since(model.instant(model.end).unwrap()),
    };
    assert_eq!(limiter.idle_at(time), idle, "{limiter:?} at {time}");
}

#[test]
fn changed_at_random_it_decides_as_the_model_does() {
    fn check(name: &str, subject: fn(&mut Draws<'_>, &mut Tally)) {
        let operations = if cfg!(debug_assertions) {
            200_000
        } else {
            2_000_000
        };
        let mut tally = Tally::default();
        let mut seed = 0;
        while tally.operations < operations {
            seed += 1;
            subject(
                &mut Draws::Seeded {
                    state: seed,
                    steps: 100,
                },
                &mut tally,
            );
        }
        println!("{name}: {tally:?}");
        let least = operations / 20;
        assert!(
            tally.granted > least && tally.denied > least && tally.changed > least,
            "{tally:?}"
        );
        assert!(
            tally.late > least && tally.given_back > least / 20,
            "{tally:?}"
        );
        assert!(tally.changed_late > least / 10, "{tally:?}");
        assert!(tally.reset > least / 10, "{tally:?}");
    }
    check("64 bits", trace::<u64>);
    check("32 bits", trace::<u32>);
}

/// The same from lists of choices, which shrink to the smallest failing trace.
#[test]
fn traces_that_shrink_decide_as_the_model_does() {
    let config = Config {
        cases: 2_000,
        failure_persistence: None,
        ..Config::default()
    };
    for subject in [trace::<u64>, trace::<u32>] {
        let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
        let mut runner = TestRunner::new_with_rng(config.clone(), rng);
        let choices = proptest::collection::vec(any::<u64>(), 0..300);
        let outcome = runner.run(&choices, |choices| {
            subject(&mut Draws::Given(&choices), &mut Tally::default());
            Ok(())
        });
        outcome.unwrap();
    }
}

// Threads.

/// Changes with [`Carry::Keep`] at one instant never admit more than the first limit, and no permit
/// is lost.
#[test]
fn with_keep_at_one_instant_exactly_the_first_limit_is_granted_to_all_threads() {
    fn check<W: Word>(limit: &AdjustableWindow<W>) {
        let now = at(50);
        // The largest limit, so that the grants spread over many changes.
        limit
            .adjust_at(now, 100, 10 * SECOND, Carry::Reset)
            .unwrap();
        let (granted, busy, done) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
        let changed = AtomicU64::new(0);
        thread::scope(|scope| {
            for seed in 0..2 {
                let (limit, busy, done, changed) = (&limit, &busy, &done, &changed);
                scope.spawn(move || {
                    let mut draws = Draws::Seeded {
                        state: seed,
                        steps: 0,
                    };
                    while !done.load(Relaxed) {
                        let length = draws.within(1, 100) as u32 * SECOND;
                        match limit.adjust_at(now, 100, length, Carry::Keep) {
                            Ok(()) => changed.fetch_add(1, Relaxed),
                            Err(ChangeError::Busy) => busy.fetch_add(1, Relaxed),
                            Err(other) => panic!("{other}"),
                        };
                    }
                });
            }
            let takers: Vec<_> = (0..2)
                .map(|seed| {
                    let (limit, granted, changed) = (&limit, &granted, &changed);
                    scope.spawn(move || {
                        let mut draws = Draws::Seeded {
                            state: seed,
                            steps: 20_000,
                        };
                        while draws.another_step() || changed.load(Relaxed) < 200 {
                            let n = draws.within(1, 3) as u32;
                            // Some are refunded, unless a change comes between.
                            if let Ok(mut lease) = limit.try_acquire_at(now, n) {
                                let back = draws.below(u64::from(n) + 1) as u32;
                                let back = lease.refund_at(now, back).unwrap();
                                granted.fetch_add(u64::from(n - back), Relaxed);
                            }
                        }
                    })
                })
                .collect();
            for taker in takers {
                taker.join().unwrap();
            }
            done.store(true, Relaxed);
        });
        let left = limit.available_at(now);
        assert_eq!(granted.load(Relaxed) + left, 100, "{limit:?}");
        println!("{changed:?} changes, {busy:?} times busy");
    }
    on_each!(check);
}

/// Several threads take while one changes the limit, mostly late, on a clock that advances. No
/// window of the grid holds more than the largest limit.
#[test]
fn changed_beside_threads_no_window_holds_more_than_the_largest_limit() {
    const MOST: u64 = 40;
    for carry in [Carry::Keep, Carry::Proportional, Carry::Additive] {
        let window = Duration::from_micros(1);
        let limit = AdjustableWindow::builder(MOST, window).build().unwrap();
        let (clock, done) = (AtomicU64::new(0), AtomicBool::new(false));
        let windows = Mutex::new(HashMap::<u64, u64>::new());
        let changed = AtomicU64::new(0);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut draws = Draws::Seeded { state: 1, steps: 0 };
                while !done.load(Relaxed) {
                    let late = draws.below(2_000);
                    let now = Timestamp::from_nanos(clock.load(SeqCst).saturating_sub(late));
                    match limit.adjust_at(now, draws.within(1, MOST), window, carry) {
                        Ok(()) => _ = changed.fetch_add(1, Relaxed),
                        // A take has been in the middle of a decision since many changes ago.
                        Err(error) => assert_eq!(error, ChangeError::Busy),
                    }
                }
            });
            let takers: Vec<_> = (0..3)
                .map(|_| {
                    scope.spawn(|| {
                        let mut mine = HashMap::<u64, u64>::new();
                        let mut calls = 0;
                        while calls < 100_000 || changed.load(Relaxed) < 200 {
                            calls += 1;
                            let now = clock.fetch_add(5, SeqCst);
                            let granted = limit.take_at(Timestamp::from_nanos(now), 1).is_ok();
                            // The instant at which the grant counts lies in between.
                            let latest = clock.load(SeqCst);
                            if granted && now / 1_000 == latest / 1_000 {
                                *mine.entry(now / 1_000).or_default() += 1;
                            }
                        }
                        let mut all = windows.lock().unwrap();
                        for (index, count) in mine {
                            *all.entry(index).or_default() += count;
                        }
                    })
                })
                .collect();
            for taker in takers {
                taker.join().unwrap();
            }
            done.store(true, Relaxed);
        });
        let windows = windows.into_inner().unwrap();
        let most = windows.values().max().copied().unwrap_or(0);
        assert!(most <= MOST, "{most} with {carry:?}");
        assert!(windows.len() > 100, "{} windows", windows.len());
    }
}

/// The clock stands still for a while at each tick, and one thread changes the length late.
#[test]
fn changed_late_beside_threads_no_instant_holds_more_than_the_limit() {
    const MOST: u64 = 40;
    fn check<W: Word>(started: bool, carry: Carry) {
        let tick = Duration::from_millis(1);
        // While a thread is paused, the clock may advance by more than the default staleness of a
        // narrow word, and no bound holds then.
        let staleness = Duration::from_secs(200);
        let mut settings = AdjustableWindow::builder(MOST, 16 * tick);
        settings = settings.tick(tick).staleness(staleness);
        if started {
            settings = settings.started_by_first_request();
        }
        let limit: AdjustableWindow<W> = settings.build_on().unwrap();
        let instant = Timestamp::from_millis;
        let (clock, done, changed) = (
            AtomicU64::new(100),
            AtomicBool::new(false),
            AtomicU64::new(0),
        );
        let instants = Mutex::new(HashMap::<u64, u64>::new());
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut draws = Draws::Seeded { state: 1, steps: 0 };
                while !done.load(Relaxed) {
                    let now = instant(clock.load(SeqCst) - draws.below(20));
                    match limit.adjust_at(now, MOST, draws.within(1, 16) as u32 * tick, carry) {
                        Ok(()) => _ = changed.fetch_add(1, Relaxed),
                        Err(error) => assert_eq!(error, ChangeError::Busy),
                    }
                }
            });
            let takers: Vec<_> = (0..3)
                .map(|seed| {
                    let (limit, clock, changed, instants) = (&limit, &clock, &changed, &instants);
                    scope.spawn(move || {
                        let mut draws = Draws::Seeded {
                            state: seed,
                            steps: 20_000,
                        };
                        let mut mine = HashMap::<u64, u64>::new();
                        while draws.another_step() || changed.load(Relaxed) < 200 {
                            let now = clock.load(SeqCst);
                            let granted = limit.take_at(instant(now), 1).is_ok();
                            // Otherwise the grant may count at a later instant.
                            if granted && clock.load(SeqCst) == now {
                                *mine.entry(now).or_default() += 1;
                            }
                            if draws.once_in(100) {
                                clock.fetch_add(1, SeqCst);
                            }
                        }
                        let mut all = instants.lock().unwrap();
                        for (now, count) in mine {
                            *all.entry(now).or_default() += count;
                        }
                    })
                })
                .collect();
            for taker in takers {
                taker.join().unwrap();
            }
            done.store(true, Relaxed);
        });
        let instants = instants.into_inner().unwrap();
        let most = instants.values().max().copied().unwrap_or(0);
        assert!(most <= MOST, "{most} at one instant with {carry:?}");
        assert!(
            most > MOST / 4 && instants.len() > 20,
            "at most {most}, {} instants",
            instants.len()
        );
    }
    for carry in [Carry::Keep, Carry::Proportional, Carry::Additive] {
        check::<u64>(false, carry);
        check::<u32>(false, carry);
        check::<u64>(true, carry);
        check::<u32>(true, carry);
    }
}

// The limit of a sliding window.

#[test]
fn a_sliding_windows_limit_is_refused_outside_of_its_range_and_stays_the_same() {
    let limit = SlidingWindow::<4>::builder(5, 4 * SECOND, 4)
        .max_limit(9)
        .build()
        .unwrap();
    assert_eq!(
        limit.set_limit(0),
        Err(SettingsError::Zero {
            setting: Setting::Limit
        })
    );
    assert_eq!(
        limit.set_limit(10),
        Err(SettingsError::TooLarge {
            setting: Setting::Limit,
            max: 9
        })
    );
    assert_eq!(limit.limit(), 5);
    assert_eq!(
        (limit.set_limit(9), limit.set_limit(1), limit.limit()),
        (Ok(5), Ok(9), 1)
    );
    let plain = SlidingWindow::<4>::new(5, 4 * SECOND, 4);
    assert_eq!((plain.set_limit(2), plain.set_limit(5)), (Ok(5), Ok(2)));
    assert!(plain.set_limit(6).is_err());
    let refused = SlidingWindow::<4>::builder(5, 4 * SECOND, 4)
        .max_limit(4)
        .build()
        .unwrap_err();
    assert_eq!(
        refused,
        SettingsError::TooLarge {
            setting: Setting::Limit,
            max: 4
        }
    );
    let refused = SlidingWindow::<4>::builder(0, 4 * SECOND, 4)
        .max_limit(4)
        .build()
        .unwrap_err();
    assert_eq!(
        refused,
        SettingsError::Zero {
            setting: Setting::Limit
        }
    );
}

/// A ledger of what was granted in each segment, compared with limits that change.
#[test]
fn a_sliding_window_decides_by_its_current_limit() {
    const MOST: u64 = 30;
    fn check<W: Word>(strict: bool, seed: u64) -> (u64, u64) {
        let mut builder = SlidingWindow::<6>::builder(10, 4 * SECOND, 4).max_limit(MOST);
        if strict {
            builder = builder.strict();
        }
        let limit: SlidingWindow<6, W> = builder.build_on().unwrap();
        let mut draws = Draws::Seeded {
            state: seed,
            steps: 0,
        };
        let length = 4 + u64::from(strict);
        let (mut counted, mut newest, mut set) = (HashMap::<u64, u64>::new(), 0, 10);
        let (mut granted, mut denied) = (0, 0);
        for _ in 0..2_000 {
            if draws.once_in(4) {
                let next = draws.within(1, MOST);
                assert_eq!(limit.set_limit(next), Ok(set));
                set = next;
            }
            let now = newest + draws.magnitude(3);
            let late = draws.magnitude(2).min(now);
            let now = if draws.once_in(3) { now - late } else { now };
            // A stale timestamp counts in the newest segment.
            let segment = now.max(newest);
            let held: u64 = (0..length)
                .filter_map(|age| counted.get(&segment.checked_sub(age)?))
                .sum();
            let left = set.saturating_sub(held);
            assert_eq!(limit.available_at(at(now)), left, "{limit:?}");
            let n = draws.below(MOST / 4) as u32;
            match limit.take_at(at(now), n) {
                Ok(_) => {
                    assert!(u64::from(n.max(1)) <= left, "{n}: {limit:?}");
                    *counted.entry(segment).or_default() += u64::from(n);
                    newest = if n > 0 { segment } else { newest };
                    granted += 1;
                }
                Err(refused) => {
                    assert!(u64::from(n.max(1)) > left, "{n}: {limit:?}");
                    denied += 1;
                    if let Retry::At(then) = refused.retry(&limit) {
                        let earlier = Timestamp::from_nanos(then.as_nanos() - 1);
                        assert!(
                            limit.peek_at(then, n).is_ok() && limit.peek_at(earlier, n).is_err()
                        );
                    } else {
                        assert!(u64::from(n) > set);
                    }
                }
            }
            assert_eq!(
                limit.idle_at(at(now)).is_idle(),
                limit.available_at(at(now)) == set
            );
        }
        (granted, denied)
    }
    for seed in 0..20 {
        for (granted, denied) in [
            check::<u64>(false, seed),
            check::<u64>(true, seed),
            check::<u32>(false, seed),
            check::<u32>(true, seed),
        ] {
            assert!(
                granted > 100 && denied > 100,
                "{granted} granted, {denied} denied"
            );
        }
    }
}

/// After the last change and all calls that began before it have returned, nothing is granted
/// beyond the new limit.
#[test]
fn a_sliding_windows_limit_set_beside_threads_bounds_all_later_calls() {
    const MOST: u64 = 1_000;
    for round in 0..200 {
        let limit = SlidingWindow::<4>::builder(MOST, 4 * SECOND, 4)
            .build()
            .unwrap();
        let granted = AtomicU64::new(0);
        let after = thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        granted.fetch_add(u64::from(limit.take_at(at(5), 2).is_ok()) * 2, SeqCst);
                    }
                });
            }
            // The grants counted here were made before the change.
            let before = granted.load(SeqCst);
            limit.set_limit(100).unwrap();
            let own = limit.take_at(at(5), 1).is_ok();
            assert!(
                !own || before < 100,
                "round {round}: {before} were granted before"
            );
            own
        });
        // At most three calls were under way.
        let total = granted.load(SeqCst) + u64::from(after);
        assert_eq!(
            limit.available_at(at(5)),
            100u64.saturating_sub(total),
            "round {round}"
        );
        assert!(limit.take_at(at(5), 101).is_err());
        if total >= 100 {
            assert!(limit.take_at(at(5), 1).is_err(), "round {round}: {total}");
        }
        assert_eq!(limit.available_at(at(9)), 100);
    }
}

/// Changes, and grants of all that is available after each of them; the last ones at one instant.
/// The word has wrapped by then: the window of long ago seems to begin a second later.
#[test]
fn changes_gain_nothing_where_the_word_has_wrapped() {
    let limit = AdjustableWindow::builder(100, Duration::from_millis(100))
        .tick(Duration::from_nanos(1))
        .staleness(Duration::from_secs(2))
        .build_on::<u64>()
        .unwrap();
    let horizon = limit.timing().horizon.as_nanos() as u64 + 1;
    let at = |nanos| Timestamp::from_nanos(horizon.wrapping_add(nanos));
    let change = |now, limit_to, window, carry| {
        let window = Duration::from_nanos(window);
        limit.adjust_at(now, limit_to, window, carry).unwrap();
    };
    assert!(limit.take_at(Timestamp::from_secs(1), 53).is_ok());
    change(at(0), 1, 33_333_333, Carry::Additive);
    let later = at(125_000_000);
    let mut granted = 0;
    for _ in 0..4 {
        change(later, 1, 33_333_333, Carry::Keep);
        change(later, 2, 100_000_000, Carry::Additive);
        granted += u32::from(limit.take_at(later, 1).is_ok());
    }
    assert!(granted <= 2, "{granted} of 2");
}

/// The same if nothing has ever been granted: the initial window seems to be in the future.
#[test]
fn changes_of_a_new_window_gain_nothing_where_the_word_wraps() {
    let limit = AdjustableWindow::builder(1, Duration::from_millis(100))
        .max_limit(8)
        .max_window(Duration::from_millis(400))
        .tick(Duration::from_millis(10))
        .build_on::<u32>()
        .unwrap();
    // At the beginning of a window, 80 s before the word wraps.
    let before = limit.timing().horizon.as_millis() as u64 - 80_000;
    let start = Timestamp::from_millis(before / 400 * 400);
    let at = |millis| start.saturating_add(Duration::from_millis(millis));
    let long = Duration::from_millis(400);
    limit.adjust_at(at(77), 8, long, Carry::Additive).unwrap();
    limit.adjust_at(at(424), 3, long, Carry::Keep).unwrap();
    let mut granted = u32::from(limit.take_at(at(844), 1).is_ok());
    limit
        .adjust_at(at(844), 1, Duration::from_millis(100), Carry::Keep)
        .unwrap();
    limit.adjust_at(at(844), 3, long, Carry::Additive).unwrap();
    granted += (0..3).filter(|_| limit.take_at(at(844), 1).is_ok()).count() as u32;
    assert!(granted <= 3, "{granted} of 3");
}
