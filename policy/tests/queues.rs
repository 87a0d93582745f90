//! Requests that wait for the limits of a rule.

#[path = "queues/bytes.rs"]
mod bytes;
#[path = "queues/driving.rs"]
mod driving;
#[path = "queues/model.rs"]
mod model;
#[path = "queues/support.rs"]
mod support;
#[path = "queues/threads.rs"]
mod threads;

use core::future::Future;
use core::pin::pin;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::sync::Arc;
use std::thread::ScopedJoinHandle;

use portcullis_async::TokioTimer;
use portcullis_core::{Clock, MonotonicClock, Retry, Timestamp};
use portcullis_policy::{
    Algorithm, Conditions, Considered, Key, Limit, LivePolicy, LoadedPolicy, OnMissing, Outcome,
    Policy, QueueEnd, QueueOrder, Request, Rule,
};
use support::{Task, Time, run};

const GET: Request<'static> = Request::new("GET", "/");
const SECOND: Duration = Duration::from_secs(1);

fn policy(time: &Time, rules: impl IntoIterator<Item = Rule>) -> Policy {
    let time = time.clone();
    Policy::new(rules).unwrap().with_timer(move || time.timer())
}

/// One permit at once, for which 10 permits can wait.
fn one_at_once() -> Rule {
    Rule::new("one").limit(Limit::at_once(1).queue(10))
}

fn ends(tasks: &[Task<'_, portcullis_policy::QueuedDecision<'_>>]) -> Vec<Option<bool>> {
    let is_allowed = |task: &Task<'_, portcullis_policy::QueuedDecision<'_>>| {
        Some(task.output.as_ref()?.is_allowed())
    };
    tasks.iter().map(is_allowed).collect()
}

#[test]
fn a_rate_grants_those_who_wait_in_their_order_when_it_has_permits() {
    let time = Time::default();
    let limit = Limit::per(2, SECOND).algorithm_of(Algorithm::FixedWindow);
    let policy = policy(&time, [Rule::new("rate").limit(limit.queue(3))]);
    let mut tasks: Vec<_> = (0..7).map(|_| Task::new(policy.acquire(&GET))).collect();
    run(&mut tasks);
    let (yes, no) = (Some(true), Some(false));
    assert_eq!(ends(&tasks), [yes, yes, None, None, None, no, no]);
    let full = tasks[6].output.as_ref().unwrap();
    assert_eq!(full.end(), Some(QueueEnd::Full));
    assert_eq!(full.rule().unwrap().name(), "rate");
    let at = |seconds| Some(Retry::At(Timestamp::from_secs(seconds)));
    assert_eq!(full.retry(), at(2), "after the three that wait");

    time.advance(SECOND);
    run(&mut tasks);
    assert_eq!(ends(&tasks), [yes, yes, yes, yes, None, no, no]);
    let third = tasks[2].output.as_ref().unwrap();
    assert_eq!(
        (third.end(), third.waited()),
        (Some(QueueEnd::Granted), SECOND)
    );
    assert_eq!(third.status().unwrap().remaining, 0);

    time.advance(SECOND);
    run(&mut tasks);
    assert_eq!(ends(&tasks), [yes, yes, yes, yes, yes, no, no]);
    let counts = policy.queue_counts("rate").unwrap();
    assert_eq!((counts.waiters, counts.granted, counts.full), (0, 3, 2));
}

#[test]
fn a_released_permit_goes_to_the_oldest_request() {
    let time = Time::default();
    let policy = policy(&time, [one_at_once()]);
    let mut tasks: Vec<_> = (0..3).map(|_| Task::new(policy.acquire(&GET))).collect();
    run(&mut tasks);
    assert_eq!(ends(&tasks), [Some(true), None, None]);
    assert!(!policy.decide_at(time.now(), &GET).is_allowed());
    for first in 0..3 {
        assert!(tasks[first].output.is_some());
        tasks[first].output = None;
        // Free for a moment, and granted to the next one before it is polled.
        assert!(first == 2 || !policy.decide_at(time.now(), &GET).is_allowed());
        run(&mut tasks);
    }
    assert!(policy.decide_at(time.now(), &GET).is_allowed());
}

#[test]
fn no_method_overtakes_a_request_that_waits() {
    let time = Time::default();
    let rule = Rule::new("rate")
        .key(Key::path())
        .limit(Limit::per(2, SECOND).queue(10))
        .hold(SECOND);
    let policy = policy(&time, [rule]);
    let mut tasks = vec![Task::new(policy.acquire(&GET.cost(1)))];
    tasks.push(Task::new(policy.acquire(&GET.cost(2))));
    run(&mut tasks);
    assert_eq!(ends(&tasks), [Some(true), None]);
    // One permit is free, but it belongs to the request that waits.
    let now = time.now();
    let denied = policy.decide_at(now, &GET);
    assert!(matches!(
        denied.outcome(),
        Outcome::Denied { limit: Some(0), .. }
    ));
    let explained = policy.decide_explained_at(now, &GET);
    assert!(!explained.is_allowed() && explained.retry().is_some());
    assert_eq!(explained.details().count(), 1);
    assert!(!policy.hold_at(now, &GET).is_allowed());
    assert!(
        policy
            .decide_at(now, &Request::new("GET", "/other"))
            .is_allowed()
    );
    let queued = |request: &Request<'_>| {
        let explained = policy.explain_at(now, request).unwrap();
        match explained[0].considered {
            Considered::Limits { queued, .. } => queued,
            _ => panic!("the rule applies"),
        }
    };
    assert_eq!(
        (queued(&GET), queued(&Request::new("GET", "/other"))),
        (2, 0)
    );
    tasks[1].cancel();
    assert_eq!(queued(&GET), 0);
    assert!(policy.decide_at(now, &GET).is_allowed());
}

#[test]
fn a_limit_without_a_queue_denies_at_once_and_also_while_a_request_waits() {
    let time = Time::default();
    let day = Limit::per(3, Duration::from_hours(24)).algorithm_of(Algorithm::FixedWindow);
    let second = Limit::per(1, SECOND).algorithm_of(Algorithm::FixedWindow);
    let policy = policy(
        &time,
        [Rule::new("both").limit(second.queue(10)).limit(day)],
    );
    let mut tasks: Vec<_> = (0..4).map(|_| Task::new(policy.acquire(&GET))).collect();
    run(&mut tasks);
    assert_eq!(ends(&tasks), [Some(true), None, None, None]);
    time.advance(SECOND);
    run(&mut tasks);
    time.advance(SECOND);
    run(&mut tasks);
    // The third one took the last permit of the day.
    let last = tasks[3].output.as_ref().unwrap();
    assert_eq!(last.end(), Some(QueueEnd::Denied));
    assert!(matches!(
        last.outcome(),
        Outcome::Denied { limit: Some(1), .. }
    ));
    let now = futures_executor::block_on(policy.acquire(&GET));
    assert_eq!(now.end(), None, "denied at once");
    assert!(matches!(
        now.outcome(),
        Outcome::Denied { limit: Some(1), .. }
    ));
}

#[test]
fn a_request_that_waits_holds_nothing_of_the_other_limits() {
    let time = Time::default();
    let rule = Rule::new("both")
        .limit(Limit::at_once(2).queue(10))
        .limit(Limit::per(5, SECOND).burst(5));
    let policy = policy(&time, [rule]);
    let mut tasks: Vec<_> = (0..3).map(|_| Task::new(policy.acquire(&GET))).collect();
    run(&mut tasks);
    assert_eq!(ends(&tasks), [Some(true), Some(true), None]);
    let left = |limit: usize| {
        let explained = policy.explain_at(time.now(), &GET).unwrap();
        let Considered::Limits { details, .. } = &explained[0].considered else {
            panic!("the rule applies");
        };
        details[limit].available
    };
    assert_eq!((left(0), left(1)), (0, 3));
    tasks[2].cancel();
    drop(tasks);
    assert_eq!((left(0), left(1)), (2, 3), "cancelled without a trace");
}

#[test]
fn a_grant_that_is_not_claimed_goes_to_the_next_request() {
    let time = Time::default();
    let policy = policy(&time, [one_at_once()]);
    let mut tasks: Vec<_> = (0..3).map(|_| Task::new(policy.acquire(&GET))).collect();
    run(&mut tasks);
    tasks[0].output = None;
    // The second one is granted and never polled again.
    tasks[1].cancel();
    run(&mut tasks);
    assert_eq!(ends(&tasks), [None, None, Some(true)]);
    drop(tasks);
    assert!(policy.decide_at(time.now(), &GET).is_allowed());
}

#[test]
fn a_deadline_ends_a_wait_and_leaves_nothing_behind() {
    let time = Time::default();
    let policy = policy(&time, [one_at_once()]);
    let mut tasks = vec![Task::new(policy.acquire(&GET))];
    tasks.push(Task::new(policy.acquire(&GET).within(SECOND)));
    tasks.push(Task::new(policy.acquire(&GET)));
    run(&mut tasks);
    time.advance(SECOND);
    run(&mut tasks);
    let late = tasks[1].output.as_ref().unwrap();
    assert_eq!((late.end(), late.waited()), (Some(QueueEnd::Late), SECOND));
    assert!(!late.is_allowed());
    tasks[0].output = None;
    run(&mut tasks);
    assert_eq!(ends(&tasks), [None, Some(false), Some(true)]);
    assert_eq!(policy.queue_counts("one").unwrap().late, 1);
}

#[test]
fn those_who_wait_ahead_count_for_a_deadline_and_for_when_to_retry() {
    let rate = |limit: Limit| Rule::new("rate").limit(limit.queue(5));
    let one = || Limit::per(1, SECOND);
    let several = rate(one()).limit(Limit::per(60, 60 * SECOND).queue(5));
    let window = rate(one().algorithm_of(Algorithm::FixedWindow));
    let sliding = rate(one().algorithm_of(Algorithm::SlidingWindow { segments: 10 }));
    for rule in [rate(one()), several, window, sliding] {
        let time = Time::default();
        let policy = policy(&time, [rule]);
        let acquire = || Task::new(policy.acquire(&GET).within(3 * SECOND));
        let mut tasks: Vec<_> = (0..6).map(|_| acquire()).collect();
        run(&mut tasks);
        let (yes, no) = (Some(true), Some(false));
        assert_eq!(ends(&tasks), [yes, None, None, None, no, no]);
        let late = tasks[4].output.as_ref().unwrap();
        assert_eq!(
            (late.end(), late.waited()),
            (Some(QueueEnd::Late), Duration::ZERO)
        );
        let after = |seconds: u32| Some(Retry::At(time.now() + seconds * SECOND));
        assert_eq!(late.retry(), after(4));
        // Without a deadline two more wait, and the queue is full.
        tasks.extend((0..3).map(|_| Task::new(policy.acquire(&GET))));
        run(&mut tasks);
        assert_eq!(ends(&tasks)[6..], [None, None, no]);
        assert_eq!(tasks[8].output.as_ref().unwrap().retry(), after(6));
    }
}

#[test]
fn an_evicted_request_is_denied() {
    let time = Time::default();
    let newest = Limit::at_once(1)
        .queue(2)
        .queue_order(QueueOrder::NewestFirst);
    let policy = policy(&time, [Rule::new("newest").limit(newest)]);
    let mut tasks: Vec<_> = (0..4).map(|_| Task::new(policy.acquire(&GET))).collect();
    run(&mut tasks);
    assert_eq!(ends(&tasks), [Some(true), Some(false), None, None]);
    assert_eq!(
        tasks[1].output.as_ref().unwrap().end(),
        Some(QueueEnd::Evicted)
    );
    tasks[0].output = None;
    run(&mut tasks);
    assert_eq!(ends(&tasks), [None, Some(false), None, Some(true)]);
    let counts = policy.queue_counts("newest").unwrap();
    assert_eq!((counts.waiters, counts.evicted, counts.granted), (1, 1, 1));
}

#[test]
fn a_denial_after_or_without_a_wait_starts_the_penalty_and_a_wait_does_not() {
    let time = Time::default();
    let second = Limit::per(1, SECOND).algorithm_of(Algorithm::FixedWindow);
    let rule = Rule::new("strict")
        .limit(second.queue(1))
        .penalty(10 * SECOND);
    let policy = policy(&time, [rule]);
    let mut tasks: Vec<_> = (0..2).map(|_| Task::new(policy.acquire(&GET))).collect();
    run(&mut tasks);
    time.advance(SECOND);
    run(&mut tasks);
    assert_eq!(ends(&tasks), [Some(true), Some(true)], "no penalty");
    tasks.extend((0..2).map(|_| Task::new(policy.acquire(&GET))));
    run(&mut tasks);
    assert_eq!(ends(&tasks)[2..], [None, Some(false)]);
    // The queue was full. Now a penalty is in force, also for the request that waits.
    let denied = futures_executor::block_on(policy.acquire(&Request::new("GET", "/")));
    assert!(matches!(
        denied.outcome(),
        Outcome::Denied { limit: None, .. }
    ));
    time.advance(9 * SECOND);
    run(&mut tasks);
    assert_eq!(ends(&tasks)[2], None);
    time.advance(SECOND);
    run(&mut tasks);
    assert_eq!(ends(&tasks)[2], Some(true));
}

#[test]
fn what_is_decided_without_limits_never_waits() {
    let time = Time::default();
    let rule = one_at_once()
        .key(Key::header("X-Key"))
        .on_missing(OnMissing::Deny)
        .exempt_header("X-Key", ["admin"]);
    let shadow = Rule::new("shadow")
        .priority(0)
        .shadow()
        .limit(Limit::at_once(1).queue(5));
    let policy = policy(&time, [shadow, rule.priority(1)]);
    let headers = |name| [("X-Key", name)];
    let (admin, client) = (headers("admin"), headers("client"));
    let (admin, client) = (GET.headers(&admin), GET.headers(&client));
    let _held = futures_executor::block_on(policy.acquire(&client));
    let exempt = futures_executor::block_on(policy.acquire(&admin));
    assert_eq!((exempt.outcome(), exempt.end()), (Outcome::Exempt, None));
    assert_eq!(exempt.shadow_denied().map(Rule::name), Some("shadow"));
    let unknown = futures_executor::block_on(policy.acquire(&GET));
    assert_eq!(
        (unknown.outcome(), unknown.end()),
        (Outcome::Unidentified, None)
    );
    assert_eq!(policy.queue_counts("shadow"), None);
    let none = Policy::new([Rule::new("all").when(Conditions::new().paths(["/x"]))]).unwrap();
    let none = futures_executor::block_on(none.acquire(&GET)).outcome();
    assert_eq!(none, Outcome::NoRule);
}

#[test]
fn an_override_has_a_queue_of_its_own() {
    let time = Time::default();
    let rule = one_at_once()
        .key(Key::path())
        .override_key(["/gold"], [Limit::at_once(1).queue(1)])
        .override_key(["/free"], [Limit::at_once(1)]);
    let policy = policy(&time, [rule]);
    let mut tasks = Vec::new();
    for path in [
        "/gold", "/gold", "/gold", "/free", "/free", "/other", "/other",
    ] {
        tasks.push(Task::new(policy.acquire(&Request::new("GET", path))));
        run(&mut tasks);
    }
    let (yes, no) = (Some(true), Some(false));
    assert_eq!(ends(&tasks), [yes, None, no, yes, no, yes, None]);
    assert_eq!(tasks[4].output.as_ref().unwrap().end(), None);
    let counts = policy.queue_counts("one").unwrap();
    assert_eq!((counts.waiters, counts.full), (2, 1));
    tasks[0].output = None;
    run(&mut tasks);
    assert_eq!(ends(&tasks), [None, yes, no, yes, no, yes, None]);
}

#[test]
fn a_settlement_grants_what_it_returns() {
    let time = Time::default();
    let window = Limit::per(10, 60 * SECOND).algorithm_of(Algorithm::FixedWindow);
    let rule = Rule::new("tokens")
        .limit(window.queue(10))
        .hold(30 * SECOND);
    let policy = policy(&time, [rule]);
    let hold = policy.hold_at(time.now(), &GET.cost(8));
    let mut tasks = vec![Task::new(policy.acquire(&GET.cost(5)))];
    run(&mut tasks);
    assert!(tasks[0].is_pending());
    hold.settle_at(time.now(), 2);
    run(&mut tasks);
    assert_eq!(ends(&tasks), [Some(true)]);
}

/// Waits for a permit at once, while the policy changes.
fn changed(before: Rule, after: Rule) -> (Option<bool>, LivePolicy, Time) {
    let time = Time::default();
    let live = LivePolicy::new(policy(&time, [before]));
    let first = live.load();
    let held = futures_executor::block_on(first.acquire(&GET));
    assert!(held.is_allowed());
    let mut tasks = vec![Task::new(first.acquire(&GET))];
    run(&mut tasks);
    assert!(tasks[0].is_pending());
    live.replace_at(time.now(), Policy::new([after]).unwrap());
    run(&mut tasks);
    let end = ends(&tasks)[0];
    drop(tasks);
    drop(held);
    assert!(
        live.load().decide_at(time.now(), &GET).is_allowed(),
        "nothing is lost"
    );
    (end, live.clone(), time.clone())
}

#[test]
fn a_raised_limit_grants_at_once_to_those_who_wait() {
    let after = Rule::new("one").limit(Limit::at_once(2).queue(10));
    assert_eq!(changed(one_at_once(), after).0, Some(true));
    assert_eq!(
        changed(one_at_once(), one_at_once()).0,
        None,
        "nothing changed"
    );
    let with_rate = one_at_once().limit(Limit::per(5, SECOND));
    assert_eq!(
        changed(one_at_once(), with_rate).0,
        None,
        "they go on waiting"
    );
}

#[test]
fn those_who_wait_stay_if_the_queue_gets_smaller() {
    let time = Time::default();
    let rule = |queue| Rule::new("one").limit(Limit::at_once(1).queue(queue));
    let live = LivePolicy::new(policy(&time, [rule(3)]));
    let (first, second): (LoadedPolicy, LoadedPolicy);
    first = live.load();
    let mut tasks: Vec<_> = (0..4).map(|_| Task::new(first.acquire(&GET))).collect();
    run(&mut tasks);
    live.replace_at(time.now(), Policy::new([rule(1)]).unwrap());
    second = live.load();
    tasks.push(Task::new(second.acquire(&GET)));
    run(&mut tasks);
    let (yes, no) = (Some(true), Some(false));
    assert_eq!(ends(&tasks), [yes, None, None, None, no]);
    for granted in 0..3 {
        tasks[granted].output = None;
        run(&mut tasks);
        assert_eq!(ends(&tasks)[granted + 1], yes);
    }
    tasks.extend((0..2).map(|_| Task::new(second.acquire(&GET))));
    run(&mut tasks);
    assert_eq!(ends(&tasks)[5..], [None, no]);
    live.replace_at(time.now(), Policy::new([rule(2)]).unwrap());
    tasks.push(Task::new(first.acquire(&GET)));
    run(&mut tasks);
    assert_eq!(ends(&tasks)[5..], [None, no, None]);
}

#[test]
fn those_who_cannot_go_on_waiting_are_decided_at_once() {
    let newest = Limit::at_once(1)
        .queue(10)
        .queue_order(QueueOrder::NewestFirst);
    for after in [
        Rule::new("one").limit(Limit::at_once(1)),
        Rule::new("one").limit(newest),
        Rule::new("one")
            .limit(Limit::at_once(1).queue(10))
            .limit(Limit::at_once(7)),
    ] {
        assert_eq!(changed(one_at_once(), after).0, Some(false));
    }
}

#[test]
fn a_rate_that_changes_is_granted_by_the_new_one() {
    let time = Time::default();
    let rule = |limit: Limit| Rule::new("rate").limit(limit.queue(10));
    let live = LivePolicy::new(policy(&time, [rule(Limit::per(1, 60 * SECOND))]));
    let (first, second): (LoadedPolicy, LoadedPolicy);
    first = live.load();
    let mut tasks: Vec<_> = (0..4).map(|_| Task::new(first.acquire(&GET))).collect();
    run(&mut tasks);
    assert_eq!(ends(&tasks), [Some(true), None, None, None]);
    let faster = Limit::per(10, SECOND).burst(2);
    live.replace_at(time.now(), Policy::new([rule(faster)]).unwrap());
    run(&mut tasks);
    assert_eq!(
        ends(&tasks),
        [Some(true), Some(true), None, None],
        "a burst of 2"
    );
    second = live.load();
    tasks.push(Task::new(second.acquire(&GET)));
    run(&mut tasks);
    let step = Duration::from_millis(100);
    for granted in 3..=5 {
        time.advance(step);
        run(&mut tasks);
        assert_eq!(ends(&tasks).iter().flatten().count(), granted);
    }
    assert_eq!(live.load().queue_counts("rate").unwrap().granted, 4);
}

/// Windows and token buckets share a table. If there is only one, it has its own.
#[test]
fn those_who_wait_for_a_limit_go_on_when_limits_that_share_its_table_come_and_go() {
    let time = Time::default();
    let window = |count, period| Limit::per(count, period).algorithm_of(Algorithm::FixedWindow);
    let second = || Rule::new("one").limit(window(2, SECOND).queue(10));
    let with_day = Rule::new("one")
        .limit(window(3, 86_400 * SECOND))
        .limit(window(2, SECOND).queue(10));
    let live = LivePolicy::new(policy(&time, [second()]));
    let (before, between): (LoadedPolicy, LoadedPolicy);
    before = live.load();
    let mut tasks: Vec<_> = (0..4).map(|_| Task::new(before.acquire(&GET))).collect();
    run(&mut tasks);
    let (yes, no) = (Some(true), Some(false));
    assert_eq!(ends(&tasks), [yes, yes, None, None]);
    live.replace_at(time.now(), Policy::new([with_day]).unwrap());
    run(&mut tasks);
    assert_eq!(ends(&tasks), [yes, yes, None, None]);
    time.advance(SECOND);
    run(&mut tasks);
    assert_eq!(ends(&tasks), [yes; 4]);

    // Of the day, one permit is left. A policy of before cannot wait for it either.
    between = live.load();
    tasks.extend([&between, &before].map(|policy| Task::new(policy.acquire(&GET))));
    run(&mut tasks);
    assert_eq!(ends(&tasks)[4..], [None, None]);
    time.advance(SECOND);
    run(&mut tasks);
    assert_eq!(ends(&tasks)[4..], [yes, no]);
    let denied = Task::new(between.acquire(&GET));
    tasks.push(denied);
    run(&mut tasks);
    let denied = tasks[6].output.as_ref().unwrap();
    assert_eq!(denied.end(), None, "denied at once");
    assert!(matches!(
        denied.outcome(),
        Outcome::Denied { limit: Some(0), .. }
    ));

    // A limit that has ended denies nothing, whatever policy asks.
    let more = Rule::new("one").limit(window(5, SECOND).queue(10));
    live.replace_at(time.now(), Policy::new([more]).unwrap());
    tasks.extend((0..2).map(|_| Task::new(between.acquire(&GET.cost(4)))));
    run(&mut tasks);
    assert_eq!(ends(&tasks)[7..], [yes, None]);
    time.advance(SECOND);
    run(&mut tasks);
    assert_eq!(ends(&tasks)[7..], [yes, yes]);
}

/// The new queue cannot hear of the release, and asks from time to time.
#[test]
fn a_permit_of_a_policy_without_a_queue_is_found_when_it_returns() {
    let time = Time::default();
    let before = Rule::new("one").limit(Limit::at_once(1));
    let live = LivePolicy::new(policy(&time, [before]));
    let old = live.load();
    let held = old.decide_at(time.now(), &GET);
    live.replace_at(time.now(), Policy::new([one_at_once()]).unwrap());
    let new = live.load();
    let mut tasks = vec![Task::new(new.acquire(&GET))];
    run(&mut tasks);
    assert!(tasks[0].is_pending());
    drop(held);
    run(&mut tasks);
    assert!(tasks[0].is_pending());
    time.advance(Duration::from_millis(100));
    run(&mut tasks);
    assert_eq!(ends(&tasks), [Some(true)]);
}

#[test]
fn a_new_policy_takes_over_the_timers() {
    let time = Time::default();
    let live = LivePolicy::new(policy(&time, []));
    time.advance(5 * SECOND);
    live.replace_at(time.now(), Policy::new([one_at_once()]).unwrap());
    let new = live.load();
    assert_eq!(new.now(), time.now());
    let mut tasks: Vec<_> = (0..2)
        .map(|_| Task::new(new.acquire(&GET).within(SECOND)))
        .collect();
    run(&mut tasks);
    time.advance(SECOND);
    run(&mut tasks);
    assert_eq!(ends(&tasks), [Some(true), Some(false)]);
}

#[test]
fn many_keys_wait_apart_and_in_bounded_number() {
    let time = Time::default();
    let rule = one_at_once().key(Key::path()).keys(10_000);
    let policy = policy(&time, [rule]);
    let paths: Vec<String> = (0..5_000).map(|index| format!("/{index}")).collect();
    let mut held = Vec::new();
    let mut tasks: Vec<_> = Vec::new();
    for path in &paths {
        let request = Request::new("GET", path);
        held.push(futures_executor::block_on(policy.acquire(&request)));
        tasks.push(Task::new(policy.acquire(&request)));
    }
    assert!(held.iter().all(|first| first.is_allowed()));
    run(&mut tasks);
    let waiters = policy.queue_counts("one").unwrap().waiters;
    assert_eq!(waiters, portcullis_policy::MAX_WAITING);
    assert_eq!(ends(&tasks).iter().flatten().count(), 5_000 - 4_096);
    held.clear();
    run(&mut tasks);
    assert_eq!(
        ends(&tasks)
            .iter()
            .filter(|end| **end == Some(true))
            .count(),
        4_096
    );
}

#[test]
fn a_deadline_of_the_default_timer_passes() {
    let policy = Policy::new([one_at_once()]).unwrap();
    let clock = MonotonicClock::new();
    let (before, now, after) = (clock.now(), policy.now(), clock.now());
    assert!(before <= now && now <= after);
    futures_executor::block_on(async {
        let _held = policy.acquire(&GET).await;
        let late = policy.acquire(&GET).within(Duration::from_millis(5)).await;
        assert_eq!(late.end(), Some(QueueEnd::Late));
    });
}

/// Tasks on several threads: never more at once than allowed, none is forgotten.
#[test]
fn tasks_of_a_runtime_never_exceed_a_limit_and_all_end() {
    const TASKS: usize = 16;
    static AT_ONCE: AtomicU32 = AtomicU32::new(0);
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(4).enable_time().build().unwrap();
    let policy = runtime.block_on(async {
        let limits = Rule::new("all")
            .key(Key::path())
            .limit(Limit::at_once(3).queue(100))
            .limit(Limit::per(20_000, SECOND).burst(10).queue(100));
        Policy::new([limits]).unwrap().with_timer(TokioTimer::new)
    });
    let policy: &'static Policy = Box::leak(Box::new(policy));
    // While a thread claims the slot of a new key, others find no room for the key.
    assert!(runtime.block_on(policy.acquire(&GET)).is_allowed());
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            runtime.spawn(async move {
                let mut granted = 0;
                for round in 0..200 {
                    if (task + round) % 7 == 0 {
                        // Cancelled, granted or late.
                        let wait = policy.acquire(&GET).within(Duration::from_micros(300));
                        let _ = tokio::time::timeout(Duration::from_millis(1), wait).await;
                        continue;
                    }
                    let decision = policy.acquire(&GET).await;
                    assert!(decision.is_allowed());
                    assert!(AT_ONCE.fetch_add(1, SeqCst) < 3);
                    tokio::task::yield_now().await;
                    AT_ONCE.fetch_sub(1, SeqCst);
                    granted += 1;
                }
                granted
            })
        })
        .collect();
    let granted: usize = runtime.block_on(async {
        let mut all = 0;
        for task in tasks {
            all += task.await.unwrap();
        }
        all
    });
    assert!(granted > TASKS * 160);
    let counts = policy.queue_counts("all").unwrap();
    assert_eq!((counts.waiters, counts.permits), (0, 0));
    let three = runtime.block_on(policy.acquire(&GET.cost(3)));
    assert!(three.is_allowed(), "all permits are back");
}

#[test]
fn a_future_can_move_to_another_thread() {
    fn is_send<T: Send>(value: T) -> T {
        value
    }
    let policy = Arc::new(Policy::new([one_at_once()]).unwrap());
    let mut wait = pin!(is_send(policy.acquire(&GET)));
    let mut context = Context::from_waker(Waker::noop());
    assert!(matches!(wait.as_mut().poll(&mut context), Poll::Ready(_)));
    let _ = is_send(Arc::clone(&policy));
}

#[test]
fn queues_are_read_from_files() {
    let policy = Policy::from_toml(
        r#"
        [[rules]]
        name = "both"
        key = ["path"]
        limits = [
            { rate = "10/s", queue = 20, queue_order = "newest-first" },
            { at_once = 3, queue = 5, queue_order = "newest-first" },
            "100/d",
        ]
        overrides = [{ key = ["/a"], limits = [{ rate = "10/s", queue = 1 }] }]
        "#,
    );
    let policy = policy.unwrap();
    let limits = policy.rule("both").unwrap().limits();
    let queues = limits
        .iter()
        .map(|limit| (limit.queue_limit(), limit.order()));
    let (oldest, newest) = (QueueOrder::OldestFirst, QueueOrder::NewestFirst);
    assert!(queues.eq([(20, newest), (5, newest), (0, oldest)]));
    assert!(policy.queue_counts("both").is_some());
}

#[test]
fn a_queue_that_is_not_valid_is_an_error_of_its_limit() {
    let text = r#"
[[rules]]
name = "a"
limits = [
    { rate = "1/s", queue = 1 },
    { at_once = 2, queue = 1, queue_order = "newest-first" },
    { at_once = 3, queue_order = "newest-first" },
    { at_once = 3, queue_order = "first" },
    { at_once = 3, queue = "many" },
    { at_once = 3, queu = 1 },
]
"#;
    let errors = Policy::from_toml(text).unwrap_err();
    let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(
        errors,
        [
            "6:5: limits[1]: queue_order must be that of limits[0]: the requests of a key wait in \
             one queue for all limits",
            "7:5: limits[2]: queue_order has no effect without a queue: leave it out, or set queue",
            "8:34: queue_order: `first` is not known: expected one of oldest-first, newest-first",
            "9:28: queue: expected a whole number, not a string",
            "10:20: queu is not a setting of a limit: did you mean queue?",
        ]
    );
}

/// Threads wait while the policy changes: never more at once than the largest limit, no wait is
/// forgotten, and no permit is lost.
#[test]
fn changes_under_load_lose_no_wait_and_no_permit() {
    const THREADS: usize = 6;
    static AT_ONCE: AtomicU32 = AtomicU32::new(0);
    let newest = QueueOrder::NewestFirst;
    let rule = || Rule::new("all");
    let limits = [
        rule().limit(Limit::at_once(2).queue(10)),
        rule().limit(Limit::at_once(3).queue(10)),
        rule().limit(Limit::at_once(3).queue(4)),
        rule().limit(Limit::at_once(3)),
        rule()
            .limit(Limit::at_once(3).queue(10))
            .limit(Limit::at_once(4).queue(10)),
        rule().limit(Limit::at_once(2).queue(10).queue_order(newest)),
        rule()
            .limit(Limit::per(5_000, SECOND).burst(20).queue(10))
            .limit(Limit::at_once(2).queue(10)),
        rule()
            .limit(Limit::per(7_000, SECOND).burst(10).queue(10))
            .limit(Limit::at_once(3).queue(10)),
        rule()
            .limit(Limit::per(6_000, SECOND).burst(10).queue(10))
            .limit(Limit::per(90_000, 60 * SECOND).queue(10))
            .limit(Limit::at_once(3).queue(10)),
    ];
    let policy = |index: usize| Policy::new([limits[index].clone()]).unwrap();
    let live = LivePolicy::new(policy(0));
    let ends = AtomicBool::new(false);
    let [granted, waited] = [const { AtomicU32::new(0) }; 2];
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (live, ends) = (&live, &ends);
                let (granted, waited) = (&granted, &waited);
                scope.spawn(move || {
                    while !ends.load(SeqCst) {
                        let policy = live.load();
                        let wait = policy.acquire(&GET).within(10 * SECOND);
                        let decision = if thread % 2 == 0 {
                            wait.block()
                        } else {
                            futures_executor::block_on(wait)
                        };
                        assert_ne!(decision.end(), Some(QueueEnd::Late), "forgotten");
                        let is_queued = decision.end() == Some(QueueEnd::Granted);
                        waited.fetch_add(u32::from(is_queued), SeqCst);
                        if decision.is_allowed() {
                            assert!(AT_ONCE.fetch_add(1, SeqCst) < 3);
                            std::thread::yield_now();
                            AT_ONCE.fetch_sub(1, SeqCst);
                            granted.fetch_add(1, SeqCst);
                        }
                    }
                })
            })
            .collect();
        // On a machine with other load, more changes give the threads the time that they need.
        for change in 1.. {
            let is_enough = granted.load(SeqCst) > 200 && waited.load(SeqCst) > 100;
            let is_over = threads.iter().any(ScopedJoinHandle::is_finished);
            if is_over || change >= 150 && is_enough {
                break;
            }
            std::thread::sleep(Duration::from_millis(3));
            let now = live.load().now();
            live.replace_at(now, policy(change * 5 % limits.len()));
        }
        ends.store(true, SeqCst);
    });
    let now = live.load().now();
    live.replace_at(now, policy(1));
    let last = live.load();
    let all = futures_executor::block_on(last.acquire(&GET.cost(3)).within(SECOND));
    assert!(all.is_allowed(), "all permits are back");
}

/// What the limits of each rule have left at a time.
fn left(policy: &Policy, now: Timestamp) -> Vec<u64> {
    let explained = policy.explain_at(now, &GET).unwrap();
    let left = explained.iter().flat_map(|each| match &each.considered {
        Considered::Limits { details, .. } => details.as_slice(),
        _ => &[],
    });
    left.map(|detail| detail.available).collect()
}

/// A request that waits for one rule holds nothing of the others, and takes from all of them when
/// its turn comes.
#[test]
fn a_request_waits_for_one_of_several_rules_and_then_takes_from_all() {
    let time = Time::default();
    let day = Duration::from_hours(24);
    let each = Rule::new("each")
        .key(Key::path())
        .limit(Limit::per(9, day))
        .continuing();
    let policy = policy(&time, [each, one_at_once()]);
    let mut tasks: Vec<_> = (0..3).map(|_| Task::new(policy.acquire(&GET))).collect();
    run(&mut tasks);
    assert_eq!(ends(&tasks), [Some(true), None, None]);
    assert_eq!(left(&policy, time.now()), [8, 0]);
    for first in 0..2 {
        tasks[first].output = None;
        run(&mut tasks);
        let next = tasks[first + 1].output.as_ref().unwrap();
        assert_eq!(
            (next.is_allowed(), next.end()),
            (true, Some(QueueEnd::Granted))
        );
        assert!(next.rules().map(Rule::name).eq(["each", "one"]));
        assert_eq!(left(&policy, time.now()), [7 - first as u64, 0]);
    }
    tasks.clear();
    assert_eq!(left(&policy, time.now()), [6, 1]);
}

#[test]
fn a_request_that_another_rule_denies_after_its_wait_gives_the_grant_to_the_next_one() {
    let time = Time::default();
    let day = Duration::from_hours(24);
    let each = Rule::new("each")
        .key(Key::path())
        .limit(Limit::per(2, day))
        .continuing();
    let policy = policy(&time, [each, one_at_once()]);
    let other = Request::new("GET", "/other");
    let mut tasks: Vec<_> = [GET, GET, GET, other]
        .map(|one| Task::new(policy.acquire(&one)))
        .into();
    run(&mut tasks);
    assert_eq!(ends(&tasks), [Some(true), None, None, None]);
    tasks[0].output = None;
    run(&mut tasks);
    assert_eq!(ends(&tasks), [None, Some(true), None, None]);
    // The rule of the third one is used up. It denies when the turn comes.
    tasks[1].output = None;
    run(&mut tasks);
    let denied = tasks[2].output.as_ref().unwrap();
    assert_eq!(
        (denied.is_allowed(), denied.end()),
        (false, Some(QueueEnd::Denied))
    );
    assert_eq!(denied.rule().unwrap().name(), "each");
    assert!(tasks[3].output.as_ref().unwrap().is_allowed());
    // And one that comes later is denied at once, and waits for nothing.
    let late = policy.blocking_acquire(&GET);
    assert_eq!((late.is_allowed(), late.end()), (false, None));
}

#[test]
fn a_request_does_not_wait_for_one_rule_while_a_limit_of_another_denies_it_for_good() {
    let time = Time::default();
    let each = Rule::new("each")
        .limit(Limit::per(1_000, SECOND).queue(10))
        .limit(Limit::per(1, Duration::from_hours(24)));
    let policy = policy(&time, [one_at_once().continuing(), each]);
    let mut tasks: Vec<_> = (0..2).map(|_| Task::new(policy.acquire(&GET))).collect();
    run(&mut tasks);
    assert_eq!(ends(&tasks), [Some(true), Some(false)]);
    assert_eq!(tasks[1].output.as_ref().unwrap().end(), None);
}

#[test]
fn a_request_that_two_rules_deny_waits_for_one_and_then_for_the_other() {
    let time = Time::default();
    let rate = Rule::new("rate")
        .limit(Limit::per(1, SECOND).queue(10))
        .continuing();
    let policy = policy(&time, [rate, one_at_once()]);
    let mut tasks: Vec<_> = (0..2).map(|_| Task::new(policy.acquire(&GET))).collect();
    run(&mut tasks);
    assert_eq!(ends(&tasks), [Some(true), None]);
    // The rate grants, and the permit at once is in use: what the rate granted is back.
    time.advance(SECOND);
    run(&mut tasks);
    assert_eq!(ends(&tasks), [Some(true), None]);
    assert_eq!(left(&policy, time.now()), [1, 0]);
    tasks[0].output = None;
    run(&mut tasks);
    assert_eq!(ends(&tasks), [None, Some(true)]);
    assert_eq!(left(&policy, time.now()), [0, 0]);
    // So does a thread that waits.
    time.advance(SECOND);
    let late = policy.acquire(&GET).within(Duration::ZERO).block();
    assert_eq!(
        (late.is_allowed(), late.end()),
        (false, Some(QueueEnd::Late))
    );
    assert_eq!(left(&policy, time.now()), [1, 0]);
}

/// A limit here with a queue, and one in a store.
#[test]
fn a_request_that_waits_asks_its_store_when_the_wait_has_ended() {
    use portcullis_counters::{CounterStore, MemoryCounters};
    use portcullis_policy::{Acquired, Stores};

    let time = Time::default();
    let day = Duration::from_hours(24);
    let store = Arc::new(MemoryCounters::new(100, MonotonicClock::new()));
    let stored = Rule::new("stored")
        .limit(Limit::per(2, day))
        .stored_in("shared");
    let policy = policy(&time, [one_at_once().continuing(), stored]);
    let stores = Stores::new().with("shared", store as Arc<dyn CounterStore>);
    let policy = Arc::new(policy.with_stores(stores).unwrap());
    let ask = || match policy.acquire_stored(&GET) {
        Acquired::Asks(asking) => asking.ask(Arc::clone(&policy), |_| false),
        _ => panic!("a rule has a store"),
    };
    let mut tasks: Vec<_> = (0..4).map(|_| Task::new(ask())).collect();
    run(&mut tasks);
    for nth in 0..4 {
        let decision = tasks[nth]
            .output
            .take()
            .expect("its turn has come")
            .unwrap();
        decision.with(|decision| {
            assert_eq!(decision.is_allowed(), nth < 2);
            assert_eq!(decision.rule().unwrap().name(), "stored");
        });
        assert_eq!(decision.limits().count(), 1);
        assert_eq!(left(&policy, time.now()), [u64::from(nth >= 2)]);
        drop(decision);
        run(&mut tasks);
    }
}
