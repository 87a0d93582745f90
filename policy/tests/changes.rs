//! A rule with several limits that change keeps what one rule for each of the limits keeps.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use core::time::Duration;

use portcullis_core::{Denied, Timestamp};
use portcullis_policy::{
    Algorithm, Considered, Decision, Key, Limit, LivePolicy, Outcome, OwnedDecision, Policy,
    Request, Rule, SharedPolicy,
};
use proptest::prelude::*;

fn policy(limits: &[Limit]) -> Policy {
    // In thousands of smaller tables, two of the three keys of one may well collide.
    let rule = Rule::new("one").key(Key::path()).keys(200);
    Policy::new([limits.iter().cloned().fold(rule, Rule::limit)]).unwrap()
}

fn left(policy: &Policy, now: Timestamp, request: &Request<'_>) -> Vec<u64> {
    let explained = policy.explain_at(now, request).unwrap();
    let Considered::Limits { details, .. } = &explained[0].considered else {
        panic!("the rule applies")
    };
    details.iter().map(|detail| detail.available).collect()
}

fn denied_by(decision: &Decision<'_>) -> Option<(usize, Denied)> {
    match decision.outcome() {
        Outcome::Denied { limit, denied } => Some((limit.unwrap(), denied)),
        Outcome::Allowed => None,
        other => panic!("{other:?}"),
    }
}

/// Whether the limit has a wait, which is always twice the period here.
fn waits(limit: &Limit, period: Duration) -> bool {
    limit.clone().wait(2 * period) == *limit
}

/// A limit can go on with the state of another one if these are equal.
fn kind(limit: &Limit) -> u8 {
    let Some(period) = limit.period() else {
        return 0;
    };
    match limit.algorithm() {
        Algorithm::TokenBucket => 1,
        Algorithm::FixedWindow => 2,
        Algorithm::WindowFromRequest if waits(limit, period) => 4,
        Algorithm::WindowFromRequest => 3,
        Algorithm::SlidingWindow { .. } => 5,
        other => panic!("{other:?}"),
    }
}

/// For each new limit, the old one that it goes on with: equal ones first, then those of the same
/// name, then those with the same period, then any of the same kind.
fn pairs(old: &[Limit], new: &[Limit]) -> Vec<Option<usize>> {
    let mut pairs: Vec<Option<usize>> = vec![None; new.len()];
    let alike: [fn(&Limit, &Limit) -> bool; 4] = [
        |a, b| a.clone().named("") == b.clone().named(""),
        |a, b| kind(a) == kind(b) && a.name() == b.name() && a.name().is_some(),
        |a, b| kind(a) == kind(b) && a.period() == b.period(),
        |a, b| kind(a) == kind(b),
    ];
    for alike in alike {
        for (at, limit) in new.iter().enumerate() {
            if pairs[at].is_none() {
                let mut all = old.iter().enumerate();
                pairs[at] = all
                    .find(|(index, before)| !pairs.contains(&Some(*index)) && alike(limit, before))
                    .map(|(index, _)| index);
            }
        }
    }
    pairs
}

fn any_limit() -> impl Strategy<Value = Limit> {
    let period = prop::sample::select(vec![1_u64, 7, 60]).prop_map(Duration::from_secs);
    (0..10_u8, 1..30_u64, period, 0..6_u8).prop_map(|(kind, count, period, name)| {
        let limit = Limit::per(count, period);
        let limit = match kind {
            0 | 1 => limit.burst(count + 3),
            2 | 3 => limit.algorithm_of(Algorithm::FixedWindow),
            4 => limit.algorithm_of(Algorithm::WindowFromRequest),
            5 => limit.algorithm_of(Algorithm::SlidingWindow { segments: 4 }),
            6 => Limit::at_once(count as u32),
            7 => limit
                .algorithm_of(Algorithm::WindowFromRequest)
                .wait(2 * period),
            8 => limit.stepwise(),
            _ => limit,
        };
        match name {
            0 => limit.named("a"),
            1 => limit.named("b"),
            _ => limit,
        }
    })
}

/// A change of the limits: which of the old ones stay, in which order, and new ones.
fn change() -> impl Strategy<Value = (Vec<(usize, Option<u64>)>, Vec<Limit>)> {
    let kept = (0..8_usize, prop::option::of(1..40_u64));
    (
        prop::collection::vec(kept, 0..8),
        prop::collection::vec(any_limit(), 0..3),
    )
}

fn recounted(limit: &Limit, count: u64) -> Limit {
    let changed = match limit.period() {
        None => Limit::at_once(count as u32),
        Some(period) => {
            let changed = Limit::per(count, period).algorithm_of(limit.algorithm());
            if waits(limit, period) {
                changed.wait(2 * period)
            } else {
                changed
            }
        }
    };
    match limit.name() {
        Some(name) => changed.named(name),
        None => changed,
    }
}

fn decide(live: &LivePolicy, now: Timestamp, request: &Request<'_>) -> OwnedDecision<SharedPolicy> {
    let policy = live.load();
    policy.decide_at(now, request).into_owned(policy.share())
}

#[derive(Clone, Debug)]
enum Step {
    Decide(usize, u32),
    Drop(usize),
    Change(Vec<(usize, Option<u64>)>, Vec<Limit>),
}

fn step() -> impl Strategy<Value = (u64, Step)> {
    let step = prop_oneof![
        8 => (0..3_usize, 0..10_u32).prop_map(|(key, cost)| Step::Decide(key, cost)),
        2 => (0..100_usize).prop_map(Step::Drop),
        2 => change().prop_map(|(kept, new)| Step::Change(kept, new)),
    ];
    (prop_oneof![3 => Just(0), 1 => 0..4_000_u64], step)
}

const PATHS: [&str; 3] = ["/a", "/b", "/c"];

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// The oracle has a live policy for each limit.
    #[test]
    fn several_limits_change_as_a_policy_for_each_would(
        first in prop::collection::vec(any_limit(), 1..=8),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut limits = first;
        let together = LivePolicy::new(policy(&limits));
        let alone = |limit: &Limit| policy(core::slice::from_ref(limit));
        let mut apart: Vec<LivePolicy> =
            limits.iter().map(|limit| LivePolicy::new(alone(limit))).collect();
        let (mut now, mut open) = (Timestamp::from_secs(1_000), Vec::new());
        for (millis, step) in steps {
            now += Duration::from_millis(millis);
            match step {
                Step::Drop(which) => {
                    if !open.is_empty() {
                        drop(open.swap_remove(which % open.len()));
                    }
                }
                Step::Change(kept, new) => {
                    let mut next: Vec<Limit> = Vec::new();
                    let mut is_used = vec![false; limits.len()];
                    for (which, count) in kept {
                        let which = which % limits.len();
                        if core::mem::replace(&mut is_used[which], true) {
                            continue;
                        }
                        let limit = &limits[which];
                        next.push(count.map_or(limit.clone(), |count| recounted(limit, count)));
                    }
                    next.extend(new);
                    next.truncate(8);
                    if next.is_empty() {
                        continue;
                    }
                    together.replace_at(now, policy(&next));
                    let pairs = pairs(&limits, &next);
                    apart = next
                        .iter()
                        .zip(pairs)
                        .map(|(limit, pair)| match pair {
                            Some(before) => {
                                apart[before].replace_at(now, alone(limit));
                                apart[before].clone()
                            }
                            None => LivePolicy::new(alone(limit)),
                        })
                        .collect();
                    limits = next;
                }
                Step::Decide(path, cost) => {
                    let request = Request::new("GET", PATHS[path]).cost(cost);
                    let denials: Vec<Option<Denied>> = apart
                        .iter()
                        .map(|live| {
                            let loaded = live.load();
                            let explained = loaded.explain_at(now, &request).unwrap();
                            let Considered::Limits { details, .. } = &explained[0].considered
                            else {
                                panic!("the rule has limits")
                            };
                            details[0].decision.err()
                        })
                        .collect();
                    // A denial would start the wait of a window, if the window is asked.
                    let all = limits.iter().zip(&denials);
                    if { all }.any(|(limit, denied)| kind(limit) == 4 && denied.is_some()) {
                        continue;
                    }
                    let mut all = denials.iter().enumerate();
                    let first = all.find_map(|(index, denied)| Some((index, (*denied)?)));
                    let told = decide(&together, now, &request);
                    prop_assert_eq!(told.with(denied_by), first);
                    if first.is_none() {
                        let all: Vec<_> =
                            apart.iter().map(|live| decide(live, now, &request)).collect();
                        for one in &all {
                            prop_assert!(one.with(denied_by).is_none());
                        }
                        open.push((told, all));
                    }
                }
            }
            for path in PATHS {
                let request = Request::new("GET", path);
                let each: Vec<u64> = apart
                    .iter()
                    .flat_map(|live| left(&live.load(), now, &request))
                    .collect();
                prop_assert_eq!(left(&together.load(), now, &request), each, "{:?}", limits);
            }
        }
    }
}

/// What threads did with one key.
#[derive(Default)]
struct Done {
    /// Permits that were used, and that the limits could count.
    used: AtomicU64,
    /// Permits that were used, or that some limit did not take back.
    most: AtomicU64,
    /// Requests under way.
    at_once: AtomicU64,
}

/// Holds begin by one policy and are settled while others follow. At one instant nothing returns by
/// time. All versions have the window and a limit at once; other limits come and go.
#[test]
fn threads_that_hold_and_settle_while_limits_change_use_no_permit_twice() {
    const COUNT: u64 = 200_000_000;
    const CHANGES: u64 = 100;
    const THREADS: u64 = 3;
    const MOST_COST: u32 = 20;
    const HOUR: Duration = Duration::from_hours(1);
    let per = |count| Limit::per(count, HOUR);
    let window = || per(COUNT).algorithm_of(Algorithm::FixedWindow);
    let sliding = || per(COUNT / 20).algorithm_of(Algorithm::SlidingWindow { segments: 6 });
    let version = |nth: u64| {
        let in_use = Limit::at_once(40 + 20 * (nth % 3) as u32);
        let limits = match nth % 5 {
            0 => vec![window(), in_use],
            1 => vec![in_use, per(900_000_000 + nth), window()],
            2 => vec![window(), per(900_000_000 + nth), in_use, per(800_000_000)],
            3 => vec![per(800_000_000), sliding(), window(), in_use],
            _ => vec![in_use, window(), sliding()],
        };
        let rule = Rule::new("one").key(Key::path()).keys(8);
        let rule = rule.hold(Duration::from_secs(60 + nth % 2));
        Policy::new([limits.into_iter().fold(rule, Rule::limit)]).unwrap()
    };
    let live = LivePolicy::new(version(0));
    let (is_over, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    let now = Timestamp::from_secs(1);
    let done: [Done; 3] = Default::default();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (live, done, is_over, rounds) = (&live, &done, &is_over, &rounds);
            scope.spawn(move || {
                let mut random = thread + 1;
                let mut next = |below: u64| {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    (random >> 33) % below
                };
                let mut held = Vec::new();
                while !is_over.load(Relaxed) {
                    let key = next(3) as usize;
                    let cost = 1 + next(MOST_COST.into()) as u32;
                    let request = Request::new("GET", PATHS[key]).cost(cost);
                    let loaded = live.load();
                    let hold = loaded.hold_at(now, &request).into_owned(loaded.share());
                    if hold.with(denied_by).is_none() {
                        let at_once = done[key].at_once.fetch_add(cost.into(), Relaxed);
                        assert!(at_once + u64::from(cost) <= 80, "{at_once} and {cost}");
                        held.push((key, cost, hold));
                    }
                    while held.len() > next(4) as usize {
                        let (key, cost, hold) = held.swap_remove(next(held.len() as u64) as usize);
                        let actual = next(2 * u64::from(MOST_COST)) as u32;
                        let done = &done[key];
                        let (decision, settled) = hold.settle_and_keep_at(now, actual);
                        let counted = actual - settled.uncounted;
                        done.used.fetch_add(counted.into(), Relaxed);
                        done.most
                            .fetch_add(u64::from(actual.max(actual + settled.kept)), Relaxed);
                        done.at_once.fetch_sub(cost.into(), Relaxed);
                        drop(decision);
                    }
                    rounds.fetch_add(1, Relaxed);
                }
                for (key, cost, hold) in held {
                    done[key].used.fetch_add(cost.into(), Relaxed);
                    done[key].most.fetch_add(cost.into(), Relaxed);
                    drop(hold);
                }
            });
        }
        for nth in 1..=CHANGES {
            let before = rounds.load(Relaxed);
            while rounds.load(Relaxed) < before + 20 {
                std::thread::yield_now();
            }
            live.replace_at(now, version(nth));
        }
        is_over.store(true, Relaxed);
    });
    live.replace_at(now, version(0));
    for (path, done) in PATHS.iter().zip(&done) {
        let left = left(&live.load(), now, &Request::new("GET", path));
        let (used, most) = (done.used.load(Relaxed), done.most.load(Relaxed));
        let counted = COUNT - left[0];
        assert!(used > 0 && used <= counted, "{used} of {counted}");
        // A take or a charge while its key moves may leave a charge.
        let charges = 2 * u64::from(MOST_COST) * THREADS * CHANGES;
        assert!(counted <= most + charges, "{counted} of {most}");
        assert_eq!(left[1], 40, "all have returned");
    }
}

/// After the first change, the bucket has less than nothing until its step: it brings in more than
/// that.
#[test]
fn a_stepwise_bucket_that_changes_twice_within_a_step_keeps_what_the_step_brings() {
    let seven_seconds = Duration::from_secs(7);
    let stepwise = Limit::per(4, seven_seconds).stepwise();
    let live = LivePolicy::new(policy(&[Limit::per(1, seven_seconds).burst(4)]));
    let request = |cost| Request::new("GET", "/a").cost(cost);
    let now = Timestamp::from_secs(1_000);
    drop(decide(&live, now, &request(3)));
    live.replace_at(now, policy(core::slice::from_ref(&stepwise)));
    live.replace_at(now, policy(&[stepwise, Limit::per(1, seven_seconds)]));
    assert_eq!(left(&live.load(), now, &request(1)), [0, 1]);
    // A step begins at each multiple of its period.
    let step = Timestamp::from_secs(1_001);
    assert_eq!(left(&live.load(), step, &request(1)), [1, 1]);
}
