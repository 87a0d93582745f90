//! `Sometimes` counts calls as golang.org/x/time/rate's `Sometimes` does.

#[macro_use]
#[path = "support/words.rs"]
mod words;

#[allow(dead_code, reason = "made for traces, too")]
#[path = "support/draws.rs"]
mod draws;

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use core::time::Duration;
use std::thread;

use draws::Draws;
use portcullis_core::builder::{Setting, SometimesBuilder};
use portcullis_core::state::{NativeWord, Word};
use portcullis_core::{SettingsError, Sometimes, Timestamp};

const MILLI: u64 = 1_000_000;

on_both_words!(
    checks:
    without_settings_only_the_first_call_is_due,
    the_examples_of_x_time_rate_are_due_as_there,
    a_call_that_does_not_count_writes_nothing,
    a_stale_timestamp_is_not_due_before_the_newest_interval_ends,
    a_stale_call_that_is_due_by_its_count_does_not_move_the_end_back,
    an_interval_is_never_shorter_with_a_coarse_tick,
    a_setting_that_does_not_fit_is_named_with_the_largest_that_does,
    racing_calls_are_each_counted_once,
    every_call_agrees_with_a_count_without_a_bound,
);

fn at<W: Word>(sometimes: &Sometimes<W>, millis: u64) -> bool {
    sometimes.is_due_at(Timestamp::from_millis(millis))
}

fn built<W: Word>(builder: SometimesBuilder) -> Sometimes<W> {
    builder.build_on().unwrap()
}

mod checks {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    pub(super) fn without_settings_only_the_first_call_is_due<W: Word>() {
        let once = built::<W>(Sometimes::builder());
        assert_eq!(
            [0, 1, u64::MAX / MILLI, 0].map(|now| at(&once, now)),
            [true, false, false, false]
        );
        assert_eq!(once.timing().horizon, Duration::MAX);
    }

    pub(super) fn the_examples_of_x_time_rate_are_due_as_there<W: Word>() {
        let runs = |builder, calls: u32| -> Vec<u32> {
            let sometimes = built::<W>(builder);
            (0..calls).filter(|_| at(&sometimes, 0)).collect()
        };
        let builder = Sometimes::builder;
        assert_eq!(runs(builder().first(2), 10), [0, 1]);
        assert_eq!(runs(builder().every(2), 7), [0, 2, 4, 6]);
        assert_eq!(runs(builder().every(1), 4), [0, 1, 2, 3]);
        // A union, in which multiples are counted from the first call.
        assert_eq!(runs(builder().first(2).every(2), 7), [0, 1, 2, 4, 6]);
        assert_eq!(runs(builder().first(3).every(2), 8), [0, 1, 2, 4, 6]);
        assert_eq!(runs(builder().first(1).every(3), 8), [0, 3, 6]);
        assert_eq!(runs(builder().first(4).every(3), 11), [0, 1, 2, 3, 6, 9]);

        let sometimes = built::<W>(builder().interval(SECOND));
        let due = [5_000, 5_999, 6_000, 6_001, 7_000, 99_999, 99_999];
        assert_eq!(
            due.map(|now| at(&sometimes, now)),
            [true, false, true, false, true, true, false]
        );
    }

    pub(super) fn a_call_that_does_not_count_writes_nothing<W: Word>() {
        let sometimes = built::<W>(Sometimes::builder().first(2).interval(SECOND));
        assert!(at(&sometimes, 0) && at(&sometimes, 10) && !at(&sometimes, 20));
        let before = format!("{sometimes:?}");
        for now in [30, 20, 1_009] {
            assert!(!at(&sometimes, now));
        }
        assert_eq!(format!("{sometimes:?}"), before);
        assert!(at(&sometimes, 1_010));
    }

    pub(super) fn a_stale_timestamp_is_not_due_before_the_newest_interval_ends<W: Word>() {
        let sometimes = built::<W>(Sometimes::builder().interval(SECOND));
        assert!(at(&sometimes, 5_000));
        for now in [4_000, 4_999, 5_999] {
            assert!(!at(&sometimes, now), "{now}");
        }
        assert!(at(&sometimes, 6_000));
    }

    pub(super) fn a_stale_call_that_is_due_by_its_count_does_not_move_the_end_back<W: Word>() {
        let sometimes = built::<W>(Sometimes::builder().first(2).interval(SECOND));
        assert!(at(&sometimes, 5_000));
        assert!(at(&sometimes, 4_200));
        assert!(!at(&sometimes, 5_999));
        assert!(at(&sometimes, 6_000));
    }

    pub(super) fn an_interval_is_never_shorter_with_a_coarse_tick<W: Word>() {
        let builder = Sometimes::builder()
            .interval(Duration::from_millis(25))
            .tick(Duration::from_millis(10));
        let sometimes = built::<W>(builder);
        // From 101 ms, rounded up to 110 ms, for 30 ms.
        assert!(at(&sometimes, 101));
        assert!(!at(&sometimes, 139));
        assert!(at(&sometimes, 140));
    }

    pub(super) fn a_setting_that_does_not_fit_is_named_with_the_largest_that_does<W: Word>() {
        let builder = Sometimes::builder;
        let refused = |builder: SometimesBuilder| builder.build_on::<W>().err();
        for (zero, setting) in [
            (builder().first(0), Setting::First),
            (builder().every(0), Setting::Every),
            (builder().interval(Duration::ZERO), Setting::Interval),
            (
                builder().interval(SECOND).tick(Duration::ZERO),
                Setting::Tick,
            ),
        ] {
            assert_eq!(refused(zero), Some(SettingsError::Zero { setting }));
        }
        let hour = Duration::from_hours(1);
        let within = move |builder: SometimesBuilder| builder.interval(hour).tick(SECOND);
        let largest = |builder: SometimesBuilder, named: Setting| match refused(builder) {
            Some(SettingsError::TooLarge { setting, max }) if setting == named => max,
            other => panic!("{other:?}"),
        };
        let huge = u32::MAX;
        if W::BITS == 64 {
            assert_eq!(refused(within(builder().first(huge).every(huge))), None);
            return;
        }
        let max = largest(within(builder().every(huge)), Setting::Every) as u32;
        assert_eq!(refused(within(builder().every(max))), None);
        assert!(refused(within(builder().every(max + 1))).is_some());
        for every in [None, Some(1), Some(7), Some(max / 2), Some(max / 2 + 1)] {
            let with = |first| match every {
                None => within(builder().first(first)),
                Some(every) => within(builder().first(first).every(every)),
            };
            let max = largest(with(huge), Setting::First) as u32;
            assert_eq!(refused(with(max)), None, "{every:?} {max}");
            assert!(refused(with(max + 1)).is_some(), "{every:?} {max}");
        }
    }

    pub(super) fn racing_calls_are_each_counted_once<W: Word>() {
        let sometimes = built::<W>(Sometimes::builder().first(10).every(7));
        let (due, calls) = (AtomicU32::new(0), 7 * 1_000);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..calls {
                        due.fetch_add(at(&sometimes, 0).into(), Relaxed);
                    }
                });
            }
        });
        // 0 to 9, and then 14, 21, ... 27,993.
        assert_eq!(due.into_inner(), 10 + 4_000 - 2);
    }

    pub(super) fn every_call_agrees_with_a_count_without_a_bound<W: Word>() {
        let traces = if cfg!(debug_assertions) {
            20_000
        } else {
            100_000
        };
        let mut tally = Tally::default();
        for seed in 0..traces {
            trace::<W>(seed, &mut tally);
        }
        println!("{} bits: {tally:?}", W::BITS);
        let Tally {
            by_first,
            by_every,
            by_interval,
            late,
        } = tally;
        for count in [by_first, by_every, by_interval, late] {
            assert!(count > traces, "{tally:?}");
        }
    }
}

/// Why calls were due.
#[derive(Debug, Default)]
struct Tally {
    by_first: u64,
    by_every: u64,
    by_interval: u64,
    /// Calls with a stale timestamp.
    late: u64,
}

/// Calls at times that go back and forth, compared with the definition of x/time/rate. Times and
/// the interval are multiples of the tick.
fn trace<W: Word>(seed: u64, tally: &mut Tally) {
    let draws = &mut Draws::Seeded {
        state: seed,
        steps: 60,
    };
    let tick = draws.one_of(&[MILLI, 7 * MILLI]);
    let (first, every) = (draws.below(8), draws.below(8));
    let interval = draws.one_of(&[0, 1, 2, 20, 300]);
    let start = draws.magnitude(1 << 32);
    let instant = |at: u64| Timestamp::from_nanos(at * tick);
    let mut builder = Sometimes::builder()
        .tick(Duration::from_nanos(tick))
        .origin(instant(start));
    if first > 0 {
        builder = builder.first(first as u32);
    }
    if every > 0 {
        builder = builder.every(every as u32);
    }
    if interval > 0 {
        builder = builder.interval(Duration::from_nanos(interval * tick));
    }
    let sometimes = built::<W>(builder);
    let (mut count, mut last, mut newest) = (0, None, start);
    while draws.another_step() {
        let now = if draws.once_in(4) {
            newest
                .saturating_sub(draws.below(1_000 * MILLI / tick))
                .max(start)
        } else {
            let far = draws.one_of(&[0, 1, 2, interval, 3 * interval]);
            newest + draws.within(0, far)
        };
        let by_first = count == 0 || count < first;
        let by_every = every > 0 && count % every == 0;
        // The time of the last call that was due is the newest of all.
        let by_interval = interval > 0 && last.is_some_and(|last| now >= last + interval);
        let is_due = by_first || by_every || by_interval;
        assert_eq!(
            sometimes.is_due_at(instant(now)),
            is_due,
            "call {count} at {now}, last {last:?}: {sometimes:?}"
        );
        if is_due {
            last = last.max(Some(now));
        }
        count += 1;
        tally.by_first += u64::from(by_first);
        tally.by_every += u64::from(by_every && !by_first);
        tally.by_interval += u64::from(by_interval && !by_first && !by_every);
        tally.late += u64::from(now < newest);
        newest = newest.max(now);
    }
}

/// The bits of the word: the end wraps after an idle time. The interval is then due again, at the
/// latest after twice the staleness and an interval.
#[test]
fn after_any_idle_time_a_call_is_due_again_soon() {
    fn check<W: Word>() {
        let interval = Duration::from_millis(500);
        let builder = Sometimes::builder()
            .interval(interval)
            .tick(Duration::from_millis(1))
            .staleness(Duration::from_secs(1));
        let horizon = built::<W>(builder).timing().horizon.as_nanos() as u64 / MILLI;
        let step = (horizon / 997).max(1);
        let near = (0..5_000).step_by(97).map(|ahead| horizon - 2_500 + ahead);
        let mut delayed = 0;
        for idle in (1..1_500).map(|n| n * step).chain(near) {
            let sometimes = built::<W>(builder);
            assert!(at(&sometimes, 10));
            let soon = (0..=2_550)
                .step_by(10)
                .position(|wait| at(&sometimes, 510 + idle + wait));
            assert!(soon.is_some(), "{idle} ms after the interval");
            delayed += u32::from(soon != Some(0));
        }
        assert!(delayed > 0, "the word has wrapped");
    }
    check::<u32>();
    assert!(
        built::<NativeWord>(Sometimes::builder().interval(Duration::from_secs(1)))
            .timing()
            .staleness
            >= Duration::from_secs(1)
    );
}
