//! Pre-empts calls at every atomic access by up to two others, one within the other, with weak
//! exchanges that fail spuriously. The result must not exceed the result of the calls in some
//! order.
#![cfg(portcullis_explore)]

mod support;

use core::cell::Cell;
use core::panic::AssertUnwindSafe;
use core::time::Duration;
use std::panic::catch_unwind;

use portcullis_core::state::{Carry, Word};
use portcullis_core::{AdjustableBucket, Limiter, Rate, SlidingWindow, Timestamp};
use portcullis_explore::Plan;

use support::draws::Draws;
use support::judge::{self, Run};
use support::op::{Log, Outcome};
use support::scenario::{self, Mix, Scenario};
use support::subjects::for_each_subject;
use support::tests_of_all;
use support::world::{Facts, Subject, World};

/// Runs the calls, which pre-empt each other as planned. Returns the result, and the number of
/// accesses.
fn pre_empted<S: Subject>(start: &World<S>, scenario: &Scenario, plan: Plan) -> (Run, u64) {
    let world = start.fork();
    let results = [const { Cell::new((Outcome::NOTHING, Log::new())) }; 3];
    let call = |index: usize| {
        if let Some(call) = scenario.calls.get(index) {
            if call.is_one() {
                results[index].set(world.call(call));
            } else {
                portcullis_explore::whole(|| results[index].set(world.call(call)));
            }
        }
    };
    let accesses = portcullis_explore::run(plan, || call(0), &|index| call(index + 1));
    let results = results.map(Cell::into_inner);
    let outcomes = [results[0].0, results[1].0, results[2].0];
    let full = judge::comes_back(&world.fork(), scenario);
    let ending = judge::survey(&world, scenario, outcomes);
    (
        Run {
            ending,
            logs: results.map(|(_, log)| log),
            full,
        },
        accesses,
    )
}

fn build<S: Subject>(seed: u64, mix: Mix) -> Option<(Scenario, Draws<'static>)> {
    let mut draws = Draws::Seeded {
        state: seed,
        steps: 0,
    };
    let (_, facts) = S::random(&mut draws)?;
    let scenario = scenario::random::<S>(&mut draws, &facts, mix);
    Some((scenario, draws))
}

fn built<S: Subject>(seed: u64) -> (S, Facts) {
    S::random(&mut Draws::Seeded {
        state: seed,
        steps: 0,
    })
    .expect("the subject was built with this seed before")
}

/// Returns the world after the scenario's history, or `None` if the scenario cannot be judged.
fn start<S: Subject>(seed: u64, scenario: &Scenario) -> Option<World<S>> {
    let (subject, facts) = built(seed);
    judge::start(subject, &facts, scenario)
}

/// Returns what is wrong with a run, or `None`.
fn fault<S: Subject>(start: &World<S>, scenario: &Scenario, plan: Plan) -> Option<String> {
    let judged = catch_unwind(AssertUnwindSafe(|| {
        let (run, _) = pre_empted(start, scenario, plan);
        if !run.full && judge::comes_back(&start.fork(), scenario) {
            return Err("not all permits return".to_owned());
        }
        judge::judge(start, scenario, &run)
    }));
    match judged {
        Ok(Ok(())) => None,
        Ok(Err(fault)) => Some(fault),
        Err(_) => Some("a call panics".to_owned()),
    }
}

/// Reduces a scenario and a plan that still have the same fault.
fn shrink<S: Subject>(
    seed: u64,
    mut scenario: Scenario,
    mut plan: Plan,
    fault_at_first: &str,
) -> (Scenario, Plan) {
    let still = |scenario: &Scenario, plan: Plan| {
        start::<S>(seed, scenario)
            .and_then(|start| fault(&start, scenario, plan))
            .is_some_and(|fault| fault == fault_at_first)
    };
    loop {
        let mut smaller = Vec::new();
        for index in 0..scenario.history.len() {
            let mut less = scenario.clone();
            less.history.remove(index);
            smaller.push((less, plan));
        }
        for index in (1..scenario.calls.len()).rev() {
            let mut less = scenario.clone();
            less.calls.remove(index);
            smaller.push((less, plan));
        }
        for index in 0..scenario.calls.len() {
            for times in [
                1,
                scenario.calls[index].times / 2,
                scenario.calls[index].times.saturating_sub(1),
            ] {
                if times > 0 && times < scenario.calls[index].times {
                    let mut less = scenario.clone();
                    less.calls[index].times = times;
                    smaller.push((less, plan));
                }
            }
        }
        if plan.failing > 0 {
            smaller.push((scenario.clone(), Plan { failing: 0, ..plan }));
        }
        match smaller
            .into_iter()
            .find(|(scenario, plan)| still(scenario, *plan))
        {
            Some((less, at)) => (scenario, plan) = (less, at),
            None => return (scenario, plan),
        }
    }
}

/// Counts of what a test has explored.
#[derive(Default, Debug)]
struct Tally {
    runs: u64,
    pre_empted: u64,
    nested: u64,
    needless: u64,
    looked: u64,
}

/// Explores `runs` runs, or until the first fault.
fn explore<S: Subject>(from: u64, runs: u64, mix: Mix, tally: &mut Tally) -> Result<(), String> {
    let mut seed = from;
    let goal = tally.runs + runs;
    while tally.runs < goal {
        seed += 1;
        let Some((scenario, mut draws)) = build::<S>(seed, mix) else {
            continue;
        };
        let Some(start) = start::<S>(seed, &scenario) else {
            continue;
        };
        let quiet = catch_unwind(AssertUnwindSafe(|| {
            pre_empted(&start, &scenario, Plan::QUIET)
        }));
        let Ok((_, accesses)) = quiet else {
            return Err(report::<S>(seed, scenario, Plan::QUIET, "a call panics"));
        };
        // Runs each scenario a few times, with pre-emptions at different accesses.
        for _ in 0..4 {
            let first = draws.below(accesses.max(1));
            let second = match draws.below(4) {
                0 => first,
                1 => first + draws.below(accesses.max(1)),
                _ => first + draws.below(8),
            };
            let failing = match draws.below(3) {
                0 => draws.any() & draws.any() & 0xffff,
                1 => draws.below(4),
                _ => 0,
            };
            let plan = Plan {
                at: [first, second],
                failing,
            };
            tally.runs += 1;
            tally.pre_empted += u64::from(accesses > 0);
            tally.nested += u64::from(second > first && scenario.calls.len() > 2);
            if let Some(fault) = fault(&start, &scenario, plan) {
                return Err(report::<S>(seed, scenario, plan, &fault));
            }
            if tally.runs.is_multiple_of(64) {
                let (run, _) = pre_empted(&start, &scenario, plan);
                tally.looked += 1;
                tally.needless += u64::from(judge::is_needless(&start, &scenario, &run));
            }
        }
    }
    Ok(())
}

fn report<S: Subject>(seed: u64, scenario: Scenario, plan: Plan, fault: &str) -> String {
    let (scenario, plan) = shrink::<S>(seed, scenario, plan, fault);
    let start = start::<S>(seed, &scenario).expect("the scenario was judged before");
    let told = catch_unwind(AssertUnwindSafe(|| {
        let (run, _) = pre_empted(&start, &scenario, plan);
        judge::tell(&start, &scenario, &run)
    }));
    let told =
        told.unwrap_or_else(|_| format!("{}: {}\n{scenario:?}", S::NAME, start.subject.describe()));
    format!("seed {seed}, {plan:?}: {fault}\n{told}")
}

/// Explores with each mix of calls, `times` times the usual number of runs, and prints the tally.
fn check<S: Subject>(share: u64, times: u64) {
    let mut tally = Tally::default();
    let mixes = [
        (
            Mix {
                repeats: 1,
                calls: 3,
            },
            10,
        ),
        (
            Mix {
                repeats: 64,
                calls: 3,
            },
            2,
        ),
        (
            Mix {
                repeats: 2_048,
                calls: 3,
            },
            1,
        ),
    ];
    let from = std::env::var("PORTCULLIS_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or(0);
    let mut faults = Vec::new();
    for (mix, part) in mixes {
        let goal = RUNS * times * share * part / 13;
        let before = tally.runs;
        if let Err(fault) = explore::<S>(from, goal, mix, &mut tally) {
            faults.push(format!(
                "after {} runs with {mix:?}: {fault}",
                tally.runs - before
            ));
        }
    }
    println!("{}: {tally:?}", S::NAME);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The number of runs in a share. All shares together have a million runs.
const RUNS: u64 = 17_600;

macro_rules! tests {
    ($($test:ident: $subject:ty, $share:literal, $_refunds:tt, $_instructions:tt;)*) => {
        tests_of_all! {
            $($test: $subject, $share;)*
        }
    };
}

for_each_subject!(tests);

/// Runs `call` on a new limiter once for each of its accesses, with `other` as a whole before that
/// access. Then calls `check` with the limiter, the result of `call`, and the number of the access.
fn before_each_access<L, T>(
    limiter: impl Fn() -> L,
    call: impl Fn(&L) -> T,
    other: impl Fn(&L),
    mut check: impl FnMut(&L, T, u64),
) {
    let (mut before, mut accesses) = (0, 1);
    while before < accesses {
        let limiter = limiter();
        let plan = Plan {
            at: [before, u64::MAX],
            failing: 0,
        };
        let others = |index| {
            if index == 0 {
                portcullis_explore::whole(|| other(&limiter));
            }
        };
        let returned = Cell::new(None);
        accesses = portcullis_explore::run(plan, || returned.set(Some(call(&limiter))), &others);
        let returned = returned.into_inner().expect("the call has returned");
        check(&limiter, returned, before);
        before += 1;
    }
}

/// By 20 s two permits are replenished under either settings. At 0 s the word is the same under
/// both. After as many changes as era and set together can count, the word repeats.
fn decides_by_its_settings_during_changes_that_wrap_the_count<W: Word>() {
    let changes = if W::BITS == 64 { 1_024 } else { 16 };
    let at = |seconds| Timestamp::ZERO.saturating_add(Duration::from_secs(seconds));
    let slow = Rate::new(1, Duration::from_secs(10));
    let bucket = || {
        let bucket = AdjustableBucket::builder(slow, 2)
            .initial(0)
            .tick(Duration::from_secs(1))
            .staleness(Duration::from_mins(1))
            .build_on::<W>()
            .unwrap();
        for _ in 0..changes / 4 {
            let _ = bucket.adjust_at(at(0), slow, 2, Carry::Keep);
        }
        bucket
    };
    let refused = Cell::new(0);
    before_each_access(
        bucket,
        |bucket| bucket.take_at(at(20), 2).is_ok(),
        |bucket| {
            for _ in 0..changes {
                // Busy if a take in progress could not tell this change from an earlier one.
                let changed = bucket.adjust_at(at(0), Rate::per_second(10), 2, Carry::Keep);
                refused.set(refused.get() + u64::from(changed.is_err()));
            }
        },
        |bucket, granted, before| {
            if granted {
                assert_eq!(bucket.available_at(at(20)), 0, "before access {before}");
            }
        },
    );
    assert!(refused.get() > 0, "no change was busy");
}

#[test]
fn a_grant_during_changes_that_wrap_the_count_decides_by_its_settings() {
    decides_by_its_settings_during_changes_that_wrap_the_count::<u32>();
    decides_by_its_settings_during_changes_that_wrap_the_count::<u64>();
}

/// The state is almost a whole wrap of the epochs old. The take at `later` keeps the old tag of its
/// slot, because the tag looks newer than `later`. Then the take at `earlier` replaces that tag by
/// an epoch before both.
#[test]
fn a_grant_counts_in_its_own_segment_just_before_epochs_wrap() {
    const SEGMENT: Duration = Duration::from_secs(1);
    // The count has eight bits of the word, for up to 200 permits.
    let epochs = 1 << 24;
    let at = |epoch: u64| Timestamp::ZERO.saturating_add(SEGMENT * u32::try_from(epoch).unwrap());
    let (earlier, later) = (epochs - 6, epochs - 5);
    let window = || {
        let window = SlidingWindow::<4>::builder(100, 3 * SEGMENT, 3)
            .max_limit(200)
            .staleness(SEGMENT)
            .build_on::<u32>()
            .unwrap();
        let receipt = window.take_at(at(1), 2).unwrap();
        assert_eq!(window.refund_at(at(1), 2, receipt).permits, 2);
        window
    };
    before_each_access(
        window,
        |window| assert!(window.take_at(at(later), 1).is_ok()),
        |window| assert!(window.take_at(at(earlier), 26).is_ok()),
        |window, (), before| {
            let left = [0, 1, 2].map(|segments| window.available_at(at(later + segments)));
            assert!(
                left[0] <= 73 && left[1] <= 73 && left[2] <= 99,
                "{left:?} left, pre-empted before access {before}"
            );
        },
    );
}

/// The bucket is empty at 0 s, and has ten permits at 5 s. Both changes are at 0 s: the first one
/// changes nothing, the second one halves the rate. The take is denied, because it asks for more
/// than the new burst. So at most five permits are replenished by 5 s.
fn changes_during_a_denied_take_add_nothing<W: Word>() {
    let at = |seconds| Timestamp::ZERO.saturating_add(Duration::from_secs(seconds));
    let bucket = || {
        AdjustableBucket::builder(Rate::per_second(2), 10)
            .initial(0)
            .tick(Duration::from_millis(1))
            .staleness(Duration::from_mins(1))
            .build_on::<W>()
            .unwrap()
    };
    let mut denied = 0;
    before_each_access(
        bucket,
        |bucket| bucket.take_at(at(5), 8).is_err(),
        |bucket| {
            for (rate, burst) in [(2, 10), (1, 7)] {
                // Busy between the grant and the store of its time.
                let _ = bucket.adjust_at(at(0), Rate::per_second(rate), burst, Carry::Keep);
            }
        },
        |bucket, is_denied, before| {
            if is_denied {
                denied += 1;
                let left = bucket.available_at(at(5));
                assert!(left <= 5, "{left} left, pre-empted before access {before}");
            }
        },
    );
    assert!(denied > 0, "the take was never denied");
}

#[test]
fn two_changes_during_a_denied_take_add_nothing() {
    changes_during_a_denied_take_add_nothing::<u32>();
    changes_during_a_denied_take_add_nothing::<u64>();
}
