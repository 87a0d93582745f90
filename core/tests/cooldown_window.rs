//! A window that the first request starts, and the wait after it is exceeded: Ocelot's cases, a
//! model that never wraps, and the bound.

#[macro_use]
#[path = "support/words.rs"]
mod words;

#[allow(dead_code, reason = "made for traces, too")]
#[path = "support/draws.rs"]
mod draws;

use core::time::Duration;

use draws::Draws;
use portcullis_core::builder::{CooldownWindowBuilder, Setting};
use portcullis_core::limiter::{Idle, Receipt};
use portcullis_core::state::Word;
use portcullis_core::{CooldownWindow, Denied, Limiter, Retry, SettingsError, Timestamp};

const SECOND: Duration = Duration::from_secs(1);

const fn ms(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

const fn ns(nanos: u64) -> Timestamp {
    Timestamp::from_nanos(nanos)
}

fn limit<W: Word>(limit: u64, period: Duration, wait: Option<Duration>) -> CooldownWindow<W> {
    let builder = CooldownWindow::builder(limit, period);
    wait.map_or(builder, |wait| builder.wait(wait))
        .build_on()
        .unwrap()
}

fn take<W: Word>(limit: &CooldownWindow<W>, now: Timestamp) -> bool {
    limit.try_acquire_at(now, 1).is_ok()
}

/// The behaviour of Ocelot 25.0, by its own tests, on a manual clock.
mod ocelot {
    use super::*;

    on_both_words!(
        three_a_second_and_a_wait_of_a_second,
        a_hundred_a_second_and_a_wait_of_three,
        a_wait_that_is_shorter_than_the_period_ends_inside_it,
        without_a_wait_the_rest_of_the_period_is_denied,
        exceeded_within_the_period_and_counted_again_after_exactly_the_wait,
        twenty_a_second_never_exceed_a_hundred_a_second,
    );

    fn three_a_second_and_a_wait_of_a_second<W: Word>() {
        let limit = limit::<W>(3, SECOND, Some(SECOND));
        let granted = [0, 50, 100, 150].map(|at| take(&limit, ms(at)));
        assert_eq!(granted, [true, true, true, false]);
        assert!(!take(&limit, ms(650)));
        assert!(take(&limit, ms(1_155)));
    }

    fn a_hundred_a_second_and_a_wait_of_three<W: Word>() {
        let limit = limit::<W>(100, SECOND, Some(Duration::from_secs(3)));
        assert_eq!(
            (0..100)
                .filter(|&request| take(&limit, ms(request)))
                .count(),
            100
        );
        assert!(!take(&limit, ms(100)));
        assert!(!take(&limit, ms(3_099)));
        assert!(take(&limit, ms(3_100)));
    }

    fn a_wait_that_is_shorter_than_the_period_ends_inside_it<W: Word>() {
        let limit = limit::<W>(3, SECOND, Some(Duration::from_millis(500)));
        // In a word of 32 bits, the wait ends at a whole tick of 10 ms.
        let granted = [0, 1, 2, 3, 253, 502, 520].map(|at| take(&limit, ms(at)));
        assert_eq!(granted, [true, true, true, false, false, false, true]);
    }

    fn without_a_wait_the_rest_of_the_period_is_denied<W: Word>() {
        let limit = limit::<W>(3, SECOND, None);
        let granted = [100, 110, 120, 130].map(|at| take(&limit, ms(at)));
        assert_eq!(granted, [true, true, true, false]);
        let denied = limit.try_acquire_at(ms(130), 1).unwrap_err();
        assert_eq!(denied.retry(&limit), Retry::At(ms(1_100)));
        assert!(!take(&limit, ms(1_099)));
        assert!(take(&limit, ms(1_100)));
    }

    fn exceeded_within_the_period_and_counted_again_after_exactly_the_wait<W: Word>() {
        let limit = limit::<W>(2, Duration::from_secs(3), Some(Duration::from_secs(2)));
        assert!(take(&limit, ms(0)) && take(&limit, ms(2_000)));
        let denied = limit.try_acquire_at(ms(2_500), 1).unwrap_err();
        assert_eq!(denied.retry(&limit), Retry::At(ms(4_500)));
        assert!(!take(&limit, ms(4_499)));
        assert!(take(&limit, ms(4_500)));
        assert_eq!(limit.available_at(ms(4_500)), 1, "the count began at one");
    }

    fn twenty_a_second_never_exceed_a_hundred_a_second<W: Word>() {
        let limit = limit::<W>(100, SECOND, Some(Duration::from_secs(30)));
        assert!((0..1_200).all(|request| take(&limit, ms(50 * request))));
    }
}

on_both_words!(
    the_shortest_wait_ends_with_the_next_tick,
    requests_during_the_wait_do_not_prolong_it_and_write_nothing,
    more_than_the_limit_and_probes_and_looks_start_no_wait,
    a_request_for_more_than_are_left_starts_the_wait,
    a_late_request_that_exceeds_waits_from_the_start_of_the_window,
    a_wait_that_a_late_request_starts_is_not_over_before_the_newest_grant,
    a_late_grant_does_not_hide_the_newest_one,
    a_refund_comes_back_in_its_own_window_and_not_in_a_wait,
    the_end_of_time_is_denied_and_reported_as_never,
    agrees_with_a_model_that_never_wraps,
    no_span_holds_more_than_the_bound_after_any_idle_time,
    settings_are_refused_by_name,
);

fn the_shortest_wait_ends_with_the_next_tick<W: Word>() {
    let settings = CooldownWindow::builder(1, SECOND).wait(Duration::from_nanos(1));
    let limit: CooldownWindow<W> = settings.build_on().unwrap();
    let tick = u64::try_from(limit.timing().tick.as_nanos()).unwrap();
    assert!(take(&limit, ns(5 * tick)));
    assert!(!take(&limit, ns(5 * tick)));
    assert!(!take(&limit, ns(6 * tick - 1)));
    assert!(take(&limit, ns(6 * tick)));
}

fn requests_during_the_wait_do_not_prolong_it_and_write_nothing<W: Word>() {
    let limit = limit::<W>(1, SECOND, Some(SECOND));
    assert!(take(&limit, ms(0)));
    assert!(!take(&limit, ms(300)));
    let waiting = format!("{limit:?}");
    for at in (300..1_300).chain([0]) {
        assert_eq!(
            limit.try_acquire_at(ms(at), 1).unwrap_err(),
            Denied::Exhausted {
                now: ms(at),
                permits: 1
            }
        );
    }
    assert_eq!(format!("{limit:?}"), waiting);
    assert_eq!(
        (limit.available_at(ms(1_299)), limit.available_at(ms(1_300))),
        (0, 1)
    );
    assert_eq!(
        (limit.idle_at(ms(1_299)), limit.idle_at(ms(1_300))),
        (Idle::InUse, Idle::Since(ms(1_300)))
    );
    assert!(take(&limit, ms(1_300)));
}

fn more_than_the_limit_and_probes_and_looks_start_no_wait<W: Word>() {
    let limit = limit::<W>(2, SECOND, Some(Duration::from_mins(1)));
    assert!(limit.try_acquire_at(ms(0), 2).is_ok());
    let before = format!("{limit:?}");
    let denied = limit.try_acquire_at(ms(1), 3).unwrap_err();
    assert_eq!(
        denied,
        Denied::ExceedsCapacity {
            permits: 3,
            capacity: 2
        }
    );
    assert_eq!(denied.retry(&limit), Retry::Never);
    assert_eq!(
        limit.try_acquire_at(ms(1), 0).unwrap_err().retry(&limit),
        Retry::At(ms(1_000))
    );
    assert_eq!(
        limit.peek_at(ms(1), 1).unwrap_err().retry(&limit),
        Retry::At(ms(1_000))
    );
    assert_eq!(limit.available_at(ms(1)), 0);
    assert_eq!(format!("{limit:?}"), before);
    assert!(take(&limit, ms(1_000)));
}

fn a_request_for_more_than_are_left_starts_the_wait<W: Word>() {
    let limit = limit::<W>(3, SECOND, Some(SECOND));
    assert!(limit.try_acquire_at(ms(0), 2).is_ok());
    assert!(limit.try_acquire_at(ms(500), 2).is_err());
    assert!(
        !take(&limit, ms(500)),
        "one was left, but is not granted during the wait"
    );
    assert!(limit.try_acquire_at(ms(1_500), 3).is_ok());
}

fn a_late_request_that_exceeds_waits_from_the_start_of_the_window<W: Word>() {
    let limit = limit::<W>(1, SECOND, Some(Duration::from_millis(100)));
    assert!(take(&limit, ms(5_000)));
    assert!(!take(&limit, ms(4_500)));
    assert!(!take(&limit, ms(5_099)));
    assert!(take(&limit, ms(5_100)));
}

fn a_wait_that_a_late_request_starts_is_not_over_before_the_newest_grant<W: Word>() {
    // In ticks of 100 ms the wait is three ticks, and the newest grant is known to within two.
    let settings = CooldownWindow::builder(2, SECOND).wait(Duration::from_millis(300));
    for (tick, end) in [(1, 5_768 + 300), (100, 5_800 + 300)] {
        let limit: CooldownWindow<W> = settings
            .tick(Duration::from_millis(tick))
            .build_on()
            .unwrap();
        assert!(take(&limit, ms(5_000)) && take(&limit, ms(5_900)));
        let denied = limit.try_acquire_at(ms(5_100), 1).unwrap_err();
        assert_eq!(denied.retry(&limit), Retry::At(ms(end)));
        assert!(!take(&limit, ms(5_900)) && !take(&limit, ms(end - 1)));
        assert!(take(&limit, ms(end)));
    }
}

fn a_late_grant_does_not_hide_the_newest_one<W: Word>() {
    let limit = limit::<W>(4, SECOND, Some(Duration::from_millis(50)));
    for at in [5_000, 5_900, 5_400, 4_900] {
        assert!(take(&limit, ms(at)));
    }
    assert!(!take(&limit, ms(4_900)));
    assert_eq!(
        (limit.available_at(ms(5_899)), limit.available_at(ms(5_950))),
        (0, 4)
    );
}

fn a_refund_comes_back_in_its_own_window_and_not_in_a_wait<W: Word>() {
    let limit = limit::<W>(2, SECOND, None);
    let first = limit.take_at(ms(0), 2).unwrap();
    let first = limit.refund_at(ms(1), 1, first);
    assert_eq!(first.permits, 1);
    assert_eq!(limit.available_at(ms(1)), 1);
    let second = limit.take_at(ms(2), 1).unwrap();
    assert!(!take(&limit, ms(3)));
    assert_eq!(
        (
            limit.refund_at(ms(4), 1, second).permits,
            limit.available_at(ms(4))
        ),
        (0, 0),
        "during the wait"
    );
    assert!(take(&limit, ms(1_000)));
    assert_eq!(
        (
            limit.refund_at(ms(1_001), 1, first.rest).permits,
            limit.available_at(ms(1_001))
        ),
        (0, 1),
        "a newer window"
    );
}

fn the_end_of_time_is_denied_and_reported_as_never<W: Word>() {
    for wait in [None, Some(SECOND), Some(Duration::from_secs(3))] {
        let limit = limit::<W>(1, SECOND, wait);
        let granted = take(&limit, Timestamp::MAX) || take(&limit, ns(u64::MAX - 1));
        let denied = limit.try_acquire_at(Timestamp::MAX, 1).unwrap_err();
        assert_eq!(denied.retry(&limit), Retry::Never);
        assert!(
            granted || W::BITS < 64,
            "only a word that has wrapped may deny the first request"
        );
    }
}

fn settings_are_refused_by_name<W: Word>() {
    let build = |settings: CooldownWindowBuilder| settings.build_on::<W>().map(drop);
    let zero = |setting| Err(SettingsError::Zero { setting });
    assert_eq!(
        build(CooldownWindow::builder(0, SECOND)),
        zero(Setting::Limit)
    );
    assert_eq!(
        build(CooldownWindow::builder(1, Duration::ZERO)),
        zero(Setting::Period)
    );
    assert_eq!(
        build(CooldownWindow::builder(1, SECOND).wait(Duration::ZERO)),
        zero(Setting::Wait)
    );
    assert_eq!(
        build(CooldownWindow::builder(1, SECOND).tick(Duration::ZERO)),
        zero(Setting::Tick)
    );
    assert_eq!(
        build(CooldownWindow::builder(1, SECOND).wait(Duration::MAX)),
        {
            Err(SettingsError::TooLarge {
                setting: Setting::Wait,
                max: u64::MAX / 2,
            })
        }
    );
    let short = CooldownWindow::builder(1, SECOND).staleness(Duration::from_millis(999));
    assert!(matches!(
        build(short),
        Err(SettingsError::TooSmall {
            setting: Setting::Staleness,
            ..
        })
    ));
    let with = |limit| build(CooldownWindow::builder(limit, SECOND).wait(Duration::from_secs(5)));
    let Err(SettingsError::TooLarge {
        setting: Setting::Limit,
        max,
    }) = with(u64::MAX)
    else {
        panic!("{:?}", with(u64::MAX))
    };
    assert_eq!(with(max), Ok(()));
    assert_eq!(
        with(max + 1),
        Err(SettingsError::TooLarge {
            setting: Setting::Limit,
            max
        })
    );
    // A wait that is shorter than the period takes bits of the word: here two, because the period
    // is four waits.
    let with = |limit, wait: u64| {
        let settings = CooldownWindow::builder(limit, SECOND).wait(Duration::from_millis(wait));
        build(settings.tick(Duration::from_millis(250)))
    };
    let most = |wait| match with(u64::MAX, wait) {
        Err(SettingsError::TooLarge {
            setting: Setting::Limit,
            max,
        }) => max,
        other => panic!("{other:?}"),
    };
    assert_eq!((most(1_000) + 1) / (most(250) + 1), 4);
    assert_eq!(with(most(250), 250), Ok(()));
    assert_eq!(
        with(most(250) + 1, 250),
        Err(SettingsError::TooLarge {
            setting: Setting::Limit,
            max: most(250)
        })
    );
}

#[test]
fn the_tick_leaves_a_long_horizon_after_the_bits_for_the_wait() {
    let tick = |wait| {
        limit::<u32>(1_000, SECOND, Some(Duration::from_millis(wait)))
            .timing()
            .tick
    };
    assert_eq!(
        tick(1_000),
        Duration::from_millis(10),
        "22 bits for the end: 12 hours"
    );
    assert_eq!(
        tick(500),
        Duration::from_millis(10),
        "20 bits: 3 hours, or 17 minutes with the finer tick"
    );
    assert_eq!(
        tick(100),
        Duration::from_millis(100),
        "18 bits: 7 hours, or 44 minutes with the finer tick"
    );
}

#[test]
fn a_horizon_shorter_than_the_age_of_the_origin_counts_from_the_origin() {
    let now = Timestamp::from_secs(1_763_740_800);
    let settings = CooldownWindow::builder(9, SECOND).wait(SECOND);
    let limit: CooldownWindow<u32> = settings.origin(now).build_on().unwrap();
    assert_eq!(
        (limit.idle_at(now), limit.available_at(now)),
        (Idle::Since(now), 9)
    );
    // The same with a tick of 1 ns.
    let settings = CooldownWindow::builder(1 << 20, SECOND).tick(Duration::from_nanos(1));
    let limit = settings.origin(now).build_on::<u64>().unwrap();
    assert_eq!(
        (limit.idle_at(now), limit.available_at(now)),
        (Idle::Since(now), 1 << 20)
    );
}

/// A window that has been idle for almost a whole wrap of a narrow word. For the most stale
/// timestamp allowed, its end is as far ahead as that of an open window.
fn wrapped(wait: Duration) -> (CooldownWindow<u32>, u64) {
    let settings = CooldownWindow::builder(2, SECOND)
        .wait(wait)
        .tick(Duration::from_millis(1));
    let limit: CooldownWindow<u32> = settings.staleness(SECOND).build_on().unwrap();
    assert!(take(&limit, ms(0)));
    let range = u64::try_from(limit.timing().horizon.as_millis()).unwrap() + 1;
    let reach = u64::try_from(wait.max(SECOND).as_millis()).unwrap() + 1;
    // The window ended at 1,000 ms.
    (limit, 1_000 + range - 1_000 - reach)
}

#[test]
fn before_an_old_window_counts_again_all_are_denied_for_the_staleness() {
    let (limit, again) = wrapped(SECOND);
    assert_eq!(
        limit.available_at(ms(again)),
        1,
        "what was left in the old window"
    );
    assert_eq!(
        [1, 1_000].map(|early| limit.available_at(ms(again - early))),
        [0, 0]
    );
    assert_eq!(limit.available_at(ms(again - 1_001)), 2);
    let before = format!("{limit:?}");
    let denied = limit.try_acquire_at(ms(again - 500), 1).unwrap_err();
    assert_eq!(
        (denied.retry(&limit), format!("{limit:?}")),
        (Retry::At(ms(again)), before)
    );
    assert!(
        limit.peek_at(ms(again), 1).is_ok() && limit.peek_at(ns(again * 1_000_000 - 1), 1).is_err()
    );
    // For a timestamp that is stale after a grant, the limiter is not idle.
    assert!(take(&limit, ms(again)) && !take(&limit, ms(again - 1_000)));
}

#[test]
fn a_wait_that_starts_in_an_old_window_is_seen_and_is_no_longer_than_documented() {
    let (limit, again) = wrapped(Duration::from_secs(10));
    assert!(take(&limit, ms(again)) && !take(&limit, ms(again)));
    for after in [0, 1, 9_000, 9_999] {
        assert!(!take(&limit, ms(again + after)), "{after} ms later");
    }
    assert!(take(&limit, ms(again + 11_001)));
}

/// A window and a wait, in ticks that never wrap.
#[derive(Debug)]
struct Model {
    limit: u64,
    period: i128,
    wait: Option<i128>,
    step: i128,
    start: i128,
    end: i128,
    /// The newest grant since the start.
    newest: i128,
    count: u64,
    waiting: bool,
    /// The number of fresh starts so far.
    starts: u64,
}

impl Model {
    fn floor(&self, now: u64) -> i128 {
        i128::from(now) / self.step
    }

    fn ceil(&self, now: u64) -> i128 {
        (i128::from(now) + self.step - 1) / self.step
    }

    fn available(&self, now: u64) -> u64 {
        match () {
            () if self.floor(now) >= self.end => self.limit,
            () if self.waiting => 0,
            () => self.limit - self.count,
        }
    }

    /// Returns whether the request is granted.
    fn take(&mut self, now: u64, n: u64) -> bool {
        if self.floor(now) >= self.end {
            self.start = self.ceil(now);
            self.end = self.start + self.period;
            self.newest = self.start;
            (self.count, self.waiting, self.starts) = (0, false, self.starts + 1);
        }
        if self.waiting {
            return false;
        }
        if self.count == 0 && self.ceil(now) + self.period > self.end {
            // All permits were refunded, so no request has started it yet.
            self.start = self.ceil(now);
            self.end = self.start + self.period;
            self.newest = self.start;
            self.starts += 1;
        }
        if self.count + n > self.limit {
            self.waiting = true;
            if let Some(wait) = self.wait {
                // The precision with which the newest grant is recorded, where the wait would
                // otherwise end within the window.
                let grain = if wait < self.period {
                    1 << wait.ilog2()
                } else {
                    self.period
                };
                let newest = self.start + (self.newest - self.start) / grain * grain;
                self.end = newest.max(self.ceil(now)) + wait;
                assert!(self.end > self.newest);
            }
            return false;
        }
        self.newest = self.newest.max(self.floor(now));
        self.count += n;
        true
    }
}

#[derive(Debug, Default)]
struct Tally {
    granted: u64,
    denied: u64,
    waits: u64,
    late: u64,
    refunded: u64,
}

fn agrees_with_a_model_that_never_wraps<W: Word>() {
    let traces = if cfg!(debug_assertions) {
        2_000
    } else {
        20_000
    };
    let mut tally = Tally::default();
    for seed in 0..traces {
        trace::<W>(
            &mut Draws::Seeded {
                state: seed,
                steps: 200,
            },
            &mut tally,
        );
    }
    println!("{tally:?}");
    let each = traces * 5;
    assert!(
        tally.granted > each && tally.denied > each && tally.waits > each && tally.late > each,
        "{tally:?}"
    );
    assert!(tally.refunded > traces, "{tally:?}");
}

fn trace<W: Word>(draws: &mut Draws<'_>, tally: &mut Tally) {
    let span = |draws: &mut Draws<'_>| {
        let length = draws.magnitude(400_000_000_000).max(1);
        draws.one_of(&[length, 1_000_000_000, 1, 999_999_937])
    };
    let (period, wait) = (span(draws), draws.once_in(2).then(|| span(draws)));
    let most = draws.magnitude(W::MASK >> 20).max(1);
    let most = draws.one_of(&[most, 1, 2, most.min(20)]);
    let mut settings = CooldownWindow::builder(most, Duration::from_nanos(period));
    if let Some(wait) = wait {
        settings = settings.wait(Duration::from_nanos(wait));
    }
    if draws.once_in(3) {
        settings = settings.tick(Duration::from_nanos(draws.magnitude(period).max(1)));
    }
    let Ok(limit) = settings.build_on::<W>() else {
        return;
    };
    let nanos = |span: Duration| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
    let step = nanos(limit.timing().tick);
    let mut model = Model {
        limit: most,
        period: period.div_ceil(step).into(),
        wait: wait.map(|wait| wait.div_ceil(step).into()),
        step: step.into(),
        start: 0,
        end: 0,
        newest: 0,
        count: 0,
        waiting: false,
        starts: 0,
    };
    let longest = period.max(wait.unwrap_or(0));
    // Only where the word is sure not to have wrapped since.
    let staleness = nanos(limit.timing().staleness);
    let margin = 2 * u128::from(staleness) + 2 * u128::from(longest) + 4 * u128::from(step);
    let near = u64::try_from(limit.timing().horizon.as_nanos() - margin).unwrap_or(u64::MAX);
    let (mut now, mut newest) = (draws.magnitude(longest).min(near), 0);
    let mut last: Option<(Receipt, u64, u32)> = None;
    while draws.another_step() {
        let (at, told) = (ns(now), limit.available_at(ns(now)));
        assert_eq!(told, model.available(now), "at {now}: {limit:?} {model:?}");
        let some = draws.magnitude(most.min(u32::MAX.into()));
        let n = draws
            .one_of(&[some, 1, 1, told, told + 1, 0])
            .min(u32::MAX.into()) as u32;
        tally.late += u64::from(now < newest);
        let before = format!("{limit:?}");
        let waiting = model.waiting && told == 0;
        let expected = n > 0 && u64::from(n) <= most && model.take(now, n.into());
        let (receipt, decision) = match limit.take_at(at, n) {
            Ok(receipt) => (Some(receipt), Ok(())),
            Err(denied) => (None, Err(denied)),
        };
        let context =
            || format!("{n} at {now}: {decision:?}, before {before}, after {limit:?}\n{model:?}");
        if u64::from(n) > most {
            assert!(
                matches!(decision, Err(Denied::ExceedsCapacity { .. })),
                "{}",
                context()
            );
            assert_eq!(format!("{limit:?}"), before, "{}", context());
        } else if n == 0 {
            assert_eq!(
                (decision.is_ok(), format!("{limit:?}")),
                (told > 0, before.clone()),
                "{}",
                context()
            );
        } else {
            assert_eq!(decision.is_ok(), expected, "{}", context());
            newest = newest.max(now);
            match decision {
                Ok(()) => {
                    tally.granted += 1;
                    last = receipt.map(|receipt| (receipt, model.starts, n));
                }
                Err(_) if waiting => {
                    assert_eq!(
                        format!("{limit:?}"),
                        before,
                        "a denial during the wait wrote"
                    );
                }
                Err(_) => tally.waits += 1,
            }
        }
        if let Err(denied @ Denied::Exhausted { .. }) = decision {
            tally.denied += 1;
            let end = u64::try_from(model.end * model.step).unwrap();
            assert_eq!(limit.retry(denied), Retry::At(ns(end)), "{}", context());
            assert!(limit.peek_at(ns(end), n).is_ok() && limit.peek_at(ns(end - 1), n).is_err());
        }
        if let Some((receipt, start, n)) = last.take_if(|_| draws.once_in(8)) {
            let back = limit.refund_at(ns(now), n, receipt).permits;
            let is_on = start == model.starts && !model.waiting;
            assert_eq!(
                back,
                if is_on { n } else { 0 },
                "of start {start}: {}",
                context()
            );
            model.count -= u64::from(back);
            tally.refunded += u64::from(back > 0);
        }
        let late = draws.magnitude(staleness);
        let end = u64::try_from(model.end * model.step).unwrap();
        let next = match draws.below(16) {
            0..=2 => now,
            3..=7 => now.saturating_add(draws.magnitude(longest)),
            8..=11 => end.max(now).saturating_sub(draws.below(2)),
            12 => now.saturating_add(draws.magnitude(longest.saturating_mul(8))),
            13 => newest.max(now),
            _ => newest.saturating_sub(late.min(longest.saturating_mul(2))),
        };
        now = next.min(end.saturating_add(near));
        if now > u64::MAX - 4 * (longest + step) {
            return;
        }
    }
}

/// In any span t, at most `limit * (1 + ceil(t / m))`; so in a span of m, twice the limit.
fn no_span_holds_more_than_the_bound_after_any_idle_time<W: Word>() {
    let mut most = 0;
    for seed in 0..2_000 {
        let mut draws = Draws::Seeded {
            state: seed,
            steps: 400,
        };
        let (period, wait) = (
            draws.within(1, 40) * 1_000_000,
            draws.within(1, 40) * 1_000_000,
        );
        let permits = draws.within(1, 4);
        let mut settings = CooldownWindow::builder(permits, Duration::from_nanos(period))
            .tick(Duration::from_micros(100));
        let waits = draws.once_in(2);
        if waits {
            settings = settings.wait(Duration::from_nanos(wait));
        }
        let limit: CooldownWindow<W> = settings.build_on().unwrap();
        let horizon = u64::try_from(limit.timing().horizon.as_nanos()).unwrap_or(u64::MAX);
        let m = if waits { period.min(wait) } else { period };
        let (mut now, mut newest, mut back, mut grants) = (0u64, 0u64, 0, Vec::new());
        while draws.another_step() {
            let some = draws.within(1, permits);
            let n = draws.one_of(&[some, 1, permits]) as u32;
            let latest = now.saturating_sub(900_000_000);
            let (near, far) = (draws.within(0, period), draws.magnitude(now - latest));
            // Some denied requests retry when they should, by a clock that is slow.
            back = back.max(latest);
            let at = draws.one_of(&[now, now.saturating_sub(near), now - far, back, back, back]);
            match limit.take_at(ns(at), n) {
                Ok(_) => {
                    newest = newest.max(at);
                    // A stale timestamp counts at the newest time.
                    grants.push((newest, u64::from(n)));
                }
                Err(denied) => {
                    let Retry::At(end) = denied.retry(&limit) else {
                        panic!("{denied:?}")
                    };
                    back = now.min(end.as_nanos());
                }
            }
            let around = draws.magnitude(80_000_000);
            if now > u64::MAX / 2 {
                break;
            }
            now = match draws.below(80) {
                0 => now.saturating_add(horizon).saturating_sub(around),
                1 => now.saturating_add(horizon).saturating_add(around),
                2..=39 => now,
                40..=43 => now + draws.within(0, period),
                _ => now + draws.within(0, m),
            };
        }
        for (index, &(first, _)) in grants.iter().enumerate() {
            let mut sum = 0;
            for &(at, n) in grants.iter().skip(index).take(60) {
                sum += n;
                let spans = (at - first) / m + 1;
                assert!(
                    sum <= permits * (1 + spans),
                    "{sum} from {first} to {at}, m {m}: {limit:?}"
                );
                if spans == 1 {
                    most = most.max(100 * sum / permits);
                }
            }
        }
    }
    assert!(most > 150, "no grant came near an edge: {most} %");
}

#[test]
fn fresh_starts_are_a_wait_apart_and_come_after_all_earlier_grants() {
    let limit = CooldownWindow::builder(3, SECOND)
        .wait(Duration::from_millis(10))
        .build()
        .unwrap();
    let mut draws = Draws::Seeded {
        state: 7,
        steps: 200_000,
    };
    let (mut newest, mut granted, mut start, mut starts, mut late) = (0, 0, None, 0, 0);
    while draws.another_step() {
        let (ahead, behind) = (draws.magnitude(20_000_000), draws.magnitude(2_000_000_000));
        let now = draws.one_of(&[newest, newest + ahead, newest.saturating_sub(behind)]);
        let fresh = limit.available_at(ns(now)) == 3;
        newest = newest.max(now);
        if !take(&limit, ns(now)) {
            continue;
        }
        if fresh {
            assert!(now > granted, "started at {now}, with a grant at {granted}");
            assert!(start.is_none_or(|start| now >= start + 10_000_000));
            (start, starts) = (Some(now), starts + 1);
        }
        late += u32::from(now < granted);
        granted = granted.max(now);
    }
    assert!(starts > 2_000 && late > 2_000, "{starts} {late}");
}

#[test]
fn a_denied_composition_starts_no_cooldown_window() {
    let window = CooldownWindow::builder(10, SECOND).build().unwrap();
    // The look succeeds, and another request takes the rest of the composition before the take.
    let receipt = window.take_at(ms(0), 1).unwrap();
    assert_eq!(window.refund_at(ms(0), 1, receipt).permits, 1);
    let drained = |now| (0..99).take_while(|_| take(&window, now)).count();
    let (first, second) = (drained(ns(999_500_000)), drained(ns(1_000_400_000)));
    assert_eq!((first, second), (10, 0), "in one millisecond");
}
