//! Thresholds below a limit. Each decides by itself, and holds its decision for a time.

#[macro_use]
#[path = "support/words.rs"]
mod words;

#[allow(dead_code, reason = "made for traces, too")]
#[path = "support/draws.rs"]
mod draws;

use core::time::Duration;

use draws::Draws;
use portcullis_core::builder::{EscalationThreshold, Setting};
use portcullis_core::limiter::Idle;
use portcullis_core::state::Word;
use portcullis_core::{
    AllOf, Concurrency, Counted, Denied, Escalation, FixedWindow, Limiter, LimiterExt, Penalty,
    Rate, Retry, SettingsError, Timestamp, TokenBucket, Unlimited,
};

const SECOND: Duration = Duration::from_secs(1);

const fn s(seconds: u64) -> Timestamp {
    Timestamp::from_secs(seconds)
}

const fn ns(nanos: u64) -> Timestamp {
    Timestamp::from_nanos(nanos)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Advice {
    Warn,
    SlowDown,
    Stop,
}

const fn threshold<D>(used: u64, seconds: u64, decision: D) -> EscalationThreshold<D> {
    EscalationThreshold {
        used,
        hold: Duration::from_secs(seconds),
        decision,
    }
}

/// Ten at once: warns at half for 5 s, slows down at 80 % for 2 s, and reports when none is left.
fn ten<W: Word>() -> Escalation<Concurrency, Advice, 3, W> {
    let thresholds = [
        threshold(5, 5, Advice::Warn),
        threshold(8, 2, Advice::SlowDown),
        threshold(10, 0, Advice::Stop),
    ];
    Escalation::builder(Concurrency::new(10), thresholds)
        .build_on()
        .unwrap()
}

/// The state words of the holds only.
fn words<W: Word>(limit: &Escalation<Concurrency, Advice, 3, W>) -> String {
    let all = format!("{limit:?}");
    all[all.find("until").unwrap()..all.find("holds").unwrap()].to_owned()
}

on_both_words!(
    a_decision_is_active_while_its_threshold_is_reached_and_for_its_hold_after,
    a_hold_is_not_prolonged_and_starts_again_if_its_threshold_is_still_reached,
    a_denial_counts_as_all_in_use,
    probes_questions_and_requests_for_more_than_there_can_be_start_no_hold,
    only_the_start_of_a_hold_writes,
    a_late_query_finds_the_hold,
    an_escalation_is_in_use_while_a_hold_is_active,
    agrees_with_a_model_that_never_wraps,
    thresholds_that_do_not_rise_are_refused,
);

fn a_decision_is_active_while_its_threshold_is_reached_and_for_its_hold_after<W: Word>() {
    let limit = ten::<W>();
    let four = limit.try_acquire_at(s(0), 4).unwrap();
    assert_eq!(
        (limit.decision_at(s(0)), limit.decisions_at(s(0))),
        (None, [false; 3])
    );
    let five = limit.try_acquire_at(s(1), 1).unwrap();
    assert_eq!(
        (limit.decision_at(s(1)), limit.decisions_at(s(1))),
        (Some(&Advice::Warn), [true, false, false])
    );
    let ten = limit.try_acquire_at(s(3), 5).unwrap();
    assert_eq!(
        (limit.decision_at(s(3)), limit.decisions_at(s(3))),
        (Some(&Advice::Stop), [true; 3])
    );
    drop(ten);
    assert_eq!(
        (limit.decision_at(s(3)), limit.decisions_at(s(3))),
        (Some(&Advice::SlowDown), [true, true, false])
    );
    drop((four, five));
    assert_eq!(
        limit.decision_at(ns(4_999_999_999)),
        Some(&Advice::SlowDown),
        "2 s from 3"
    );
    assert_eq!(limit.decision_at(s(5)), Some(&Advice::Warn), "5 s from 1");
    assert_eq!(limit.decision_at(ns(5_999_999_999)), Some(&Advice::Warn));
    assert_eq!(limit.decision_at(s(6)), None);
}

fn a_hold_is_not_prolonged_and_starts_again_if_its_threshold_is_still_reached<W: Word>() {
    let limit = ten::<W>();
    let five = limit.try_acquire_at(s(0), 5).unwrap();
    drop(limit.try_acquire_at(s(4), 1).unwrap());
    drop(five);
    assert_eq!(
        (limit.decision_at(s(4)), limit.decision_at(s(5))),
        (Some(&Advice::Warn), None),
        "5 s from 0"
    );

    let five = limit.try_acquire_at(s(10), 5).unwrap();
    drop(limit.try_acquire_at(s(16), 1).unwrap());
    drop(five);
    assert_eq!(
        (limit.decision_at(s(20)), limit.decision_at(s(21))),
        (Some(&Advice::Warn), None),
        "5 s from 16"
    );
}

fn a_denial_counts_as_all_in_use<W: Word>() {
    let limit = ten::<W>();
    let four = limit.try_acquire_at(s(0), 4).unwrap();
    assert_eq!(
        limit.take_at(s(0), 7),
        Err(Denied::Exhausted {
            now: s(0),
            permits: 7
        }),
        "a denial by the limiter"
    );
    drop(four);
    assert_eq!(limit.decisions_at(s(0)), [true, true, false]);
    assert_eq!(limit.decisions_at(s(2)), [true, false, false]);
}

fn probes_questions_and_requests_for_more_than_there_can_be_start_no_hold<W: Word>() {
    let limit = ten::<W>();
    let all = limit.try_acquire_at(s(0), 4).unwrap();
    let before = words(&limit);
    assert!(limit.take_at(s(0), 0).is_ok());
    assert!(limit.peek_at(s(0), 7).is_err());
    assert_eq!(
        limit.take_at(s(0), 11),
        Err(Denied::ExceedsCapacity {
            permits: 11,
            capacity: 10
        })
    );
    let more = limit.limiter().try_acquire(4).unwrap();
    assert_eq!(limit.decision_at(s(0)), Some(&Advice::SlowDown), "reached");
    assert!(limit.take_at(s(0), 0).is_ok());
    drop((all, more));
    assert_eq!(
        limit.decision_at(s(0)),
        None,
        "and the decision is not held"
    );
    assert_eq!(words(&limit), before);
}

fn only_the_start_of_a_hold_writes<W: Word>() {
    let thresholds = [threshold(5, 5, ()), threshold(8, 2, ())];
    let limit: Escalation<Unlimited, (), 2, W> = Escalation::builder(Unlimited, thresholds)
        .build_on()
        .unwrap();
    let before = format!("{limit:?}");
    assert!((0..100).all(|now| limit.take_at(s(now), 9).is_ok()));
    assert_eq!(format!("{limit:?}"), before, "no threshold is reached");

    let held = ten::<W>();
    let all = held.try_acquire_at(s(0), 10).unwrap();
    let after = format!("{held:?}");
    for now in [0, 1, 1, 0] {
        assert!(held.take_at(s(now), 1).is_err());
        _ = (held.decision_at(s(now)), held.idle_at(s(now)));
    }
    assert_eq!(
        format!("{held:?}"),
        after,
        "denied, and both holds are active"
    );
    assert!(held.take_at(s(2), 1).is_err());
    assert_ne!(
        format!("{held:?}"),
        after,
        "the shorter hold is over, and starts again"
    );
    drop(all);
}

fn a_late_query_finds_the_hold<W: Word>() {
    let limit = ten::<W>();
    drop(limit.try_acquire_at(s(1_000), 5).unwrap());
    assert_eq!(limit.decision_at(s(999)), Some(&Advice::Warn));
    assert_eq!(
        limit
            .decision_at(ns(s(1_000).as_nanos()
                - limit.timing().staleness.as_nanos().min(999_999_999_999) as u64)),
        Some(&Advice::Warn)
    );
    assert!(limit.timing().staleness >= SECOND && limit.timing().horizon >= 3_600 * SECOND);
}

fn an_escalation_is_in_use_while_a_hold_is_active<W: Word>() {
    let bucket = TokenBucket::new(Rate::per_second(10), 10);
    let limit: Escalation<_, _, 2, W> =
        Escalation::builder(bucket, [threshold(5, 5, ()), threshold(8, 7, ())])
            .build_on()
            .unwrap();
    assert!(limit.take_at(s(10), 8).is_ok());
    assert_eq!(
        (
            limit.idle_at(s(16)),
            limit.limiter().idle_at(s(16)).is_idle()
        ),
        (Idle::InUse, true)
    );
    assert_eq!(limit.idle_at(s(18)), Idle::Since(s(17)));
}

#[test]
fn an_escalation_is_the_limiter_that_it_wraps() {
    let limit = ten::<u64>();
    let receipt = limit.take_at(s(0), 10).unwrap();
    assert_eq!((limit.capacity(), limit.available_at(s(0))), (10, 0));
    assert_ne!(
        limit.id(),
        limit.limiter().id(),
        "a request through it counts"
    );
    assert_eq!(
        limit.take_at(s(0), 1).unwrap_err().retry(&limit),
        Retry::OnRelease
    );
    assert_eq!(limit.refund_at(s(0), 4, receipt).permits, 4);
    limit.release(6);
    assert_eq!(limit.available_at(s(0)), 10);
}

fn agrees_with_a_model_that_never_wraps<W: Word>() {
    let traces = if cfg!(debug_assertions) {
        1_000
    } else {
        10_000
    };
    let (mut decided, mut held, mut late) = (0u64, 0u64, 0u64);
    for seed in 0..traces {
        let mut draws = Draws::Seeded {
            state: seed,
            steps: 150,
        };
        let length = draws.magnitude(100_000_000_000).max(1);
        let window = || {
            let window =
                FixedWindow::builder(20, Duration::from_nanos(length)).started_by_first_request();
            window.build_on::<u64>().unwrap()
        };
        let hold = |draws: &mut Draws<'_>| {
            if draws.once_in(4) {
                0
            } else {
                draws.magnitude(200_000_000_000)
            }
        };
        let holds = [hold(&mut draws), hold(&mut draws), hold(&mut draws)];
        let used = [
            draws.within(1, 6),
            draws.within(7, 12),
            draws.within(13, 25),
        ];
        let of = |index: usize| EscalationThreshold {
            used: used[index],
            hold: Duration::from_nanos(holds[index]),
            decision: index,
        };
        let limit: Escalation<_, _, 3, W> = Escalation::builder(window(), [of(0), of(1), of(2)])
            .build_on()
            .unwrap();
        let twin = window();
        // Each hold has the tick that a penalty as long as it has.
        let steps = holds.map(|hold| {
            let penalty = Penalty::builder(Duration::from_nanos(hold.max(1)));
            let penalty = penalty.build_on::<W>().unwrap().around(Unlimited);
            u64::try_from(penalty.timing().tick.as_nanos()).unwrap()
        });
        let mut until = [0u64; 3];
        let (mut now, mut newest) = (0u64, 0u64);
        while draws.another_step() && now < 3_000_000_000_000 {
            let (at, n) = (ns(now), draws.within(0, 12) as u32);
            let told = twin.take_at(at, n);
            assert_eq!(limit.take_at(at, n), told);
            let used_now = 20 - twin.available_at(at);
            let counted = if told.is_ok() { used_now } else { 20 };
            let over = |index: usize, until: u64| now / steps[index] * steps[index] >= until;
            for index in 0..3 {
                if n > 0 && counted >= used[index] && over(index, until[index]) && holds[index] > 0
                {
                    let step = steps[index];
                    until[index] = (now.div_ceil(step) + holds[index].div_ceil(step)) * step;
                }
            }
            let expected = core::array::from_fn(|at| used_now >= used[at] || !over(at, until[at]));
            assert_eq!(
                limit.decisions_at(at),
                expected,
                "at {now}, until {until:?}: {limit:?}"
            );
            let highest = expected.iter().rposition(|&holds| holds);
            assert_eq!(limit.decision_at(at).copied(), highest);
            decided += u64::from(highest.is_some());
            held += u64::from((0..3).any(|index| used_now < used[index] && expected[index]));
            late += u64::from(now < newest);
            newest = newest.max(now);
            let back = draws.magnitude(1_000_000_000);
            let end = draws.one_of(&until).max(newest);
            now = match draws.below(8) {
                0..=2 => now,
                3..=5 => now + draws.magnitude(length),
                6 => end.saturating_sub(draws.below(2)),
                _ => newest.saturating_sub(back),
            };
        }
    }
    assert!(
        decided > traces && held > traces && late > traces,
        "{decided} decided, {held} held, {late} late"
    );
}

fn thresholds_that_do_not_rise_are_refused<W: Word>() {
    let build = |thresholds: [EscalationThreshold<()>; 2]| {
        Escalation::builder(Unlimited, thresholds)
            .build_on::<W>()
            .map(drop)
    };
    let at = |used| threshold(used, 1, ());
    let too_small = |min| {
        Err(SettingsError::TooSmall {
            setting: Setting::Threshold,
            min,
        })
    };
    assert_eq!(build([at(1), at(2)]), Ok(()));
    assert_eq!(
        build([at(0), at(2)]),
        Err(SettingsError::Zero {
            setting: Setting::Threshold
        })
    );
    assert_eq!(build([at(2), at(2)]), too_small(3));
    assert_eq!(build([at(9), at(2)]), too_small(10));
    assert_eq!(build([at(u64::MAX), at(u64::MAX)]), too_small(u64::MAX));
    let long = EscalationThreshold {
        used: 3,
        hold: Duration::MAX,
        decision: (),
    };
    assert_eq!(
        build([at(1), long]),
        Err(SettingsError::TooLarge {
            setting: Setting::Hold,
            max: u64::MAX / 2
        })
    );
}

#[test]
fn without_thresholds_nothing_is_decided() {
    let limit: Escalation<Concurrency, (), 0> = Escalation::new(Concurrency::new(1), []);
    assert!(limit.take_at(s(0), 1).is_ok());
    assert_eq!(
        (limit.decision_at(s(0)), limit.decisions_at(s(0))),
        (None, [])
    );
    assert_eq!(
        (limit.timing().staleness, limit.timing().horizon),
        (Duration::MAX, Duration::MAX)
    );
}

#[test]
fn a_grant_that_a_composition_rolls_back_starts_no_hold() {
    let warn = EscalationThreshold {
        used: 1,
        hold: 5 * SECOND,
        decision: "warn",
    };
    // The look succeeds, and the last limit denies in the take: the same permit is named twice.
    let gate = Concurrency::new(1);
    let limit = Escalation::new(TokenBucket::new(Rate::per_second(1), 5), [warn]);
    let limits = AllOf::new((&limit, &gate, Counted::new(&gate)));
    assert!(limits.try_acquire_at(s(0), 1).is_err());
    assert_eq!(
        (limit.available_at(s(0)), limit.decision_at(s(0))),
        (5, None),
        "nothing has happened"
    );
    // The same through wrappers, and as a part of a nested composition.
    let wrapped = AllOf::new((
        Counted::new(&limit),
        AllOf::new((&limit, &gate)),
        Counted::new(&gate),
    ));
    assert!(wrapped.try_acquire_at(s(0), 1).is_err());
    assert_eq!(limit.decision_at(s(0)), None);
    let around = Escalation::new(AllOf::new((&limit, Concurrency::new(1))), [warn]);
    assert!(
        AllOf::new((&around, &gate, Counted::new(&gate)))
            .try_acquire_at(s(0), 1)
            .is_err()
    );
    assert_eq!(
        (limit.decision_at(s(0)), around.decision_at(s(0))),
        (None, None)
    );

    let limits = AllOf::new((&around, &gate));
    let lease = limits.try_acquire_at(s(0), 1).unwrap();
    assert_eq!(
        (limit.decision_at(s(0)), around.decision_at(s(0))),
        (Some(&"warn"), Some(&"warn"))
    );
    drop(lease);
    assert_eq!(
        limit.decision_at(s(4)),
        Some(&"warn"),
        "after a grant it stays active"
    );
}

#[test]
fn in_a_composition_only_a_denial_by_the_inner_limiter_starts_holds() {
    let threshold = || {
        [EscalationThreshold {
            used: 2,
            hold: 5 * SECOND,
            decision: (),
        }]
    };
    let (first, second) = (Concurrency::new(2), Concurrency::new(2));
    let limits = AllOf::new((
        Escalation::new(&first, threshold()),
        Escalation::new(&second, threshold()),
    ));
    let held = second.try_acquire(2).unwrap();
    assert!(limits.try_acquire_at(s(0), 1).is_err());
    drop(held);
    let (one, other) = limits.limits();
    assert_eq!(
        (one.decision_at(s(0)), other.decision_at(s(0))),
        (None, Some(&()))
    );
}
