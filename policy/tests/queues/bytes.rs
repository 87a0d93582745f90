//! Requests for bytes, and tasks that are not polled.

use core::time::Duration;

use portcullis_policy::{Conditions, Key, Kind, Limit, LivePolicy, Outcome, Request, Rule};

use super::support::{Task, Time, run};
use super::{GET, SECOND, ends, policy};

const EGRESS: Request<'static> = GET.kind(Kind::Egress);

fn of(kind: Kind) -> Conditions {
    Conditions::new().kind(kind)
}

fn per_second(count: u64) -> Limit {
    Limit::per(count, SECOND)
}

/// The first task that waits keeps its future, and does not poll it again.
#[test]
fn a_task_that_is_not_polled_keeps_no_other_one_waiting() {
    let time = Time::default();
    let rule = Rule::new("rate").key(Key::path());
    let policy = policy(&time, [rule.limit(per_second(1).queue(10))]);
    let other = Request::new("GET", "/other");
    let mut taken = [
        Task::new(policy.acquire(&GET)),
        Task::new(policy.acquire(&other)),
    ];
    run(&mut taken);
    let mut idle = [Task::new(policy.acquire(&GET))];
    run(&mut idle);
    let mut tasks = [
        Task::new(policy.acquire(&GET)),
        Task::new(policy.acquire(&other)),
    ];
    run(&mut tasks);
    assert_eq!(ends(&tasks), [None, None]);
    time.advance(SECOND);
    run(&mut tasks);
    assert_eq!(ends(&tasks), [None, Some(true)], "another key");
    time.advance(SECOND);
    run(&mut tasks);
    assert_eq!(ends(&tasks), [Some(true), Some(true)]);
    run(&mut idle);
    assert_eq!(ends(&idle), [Some(true)], "granted in its turn");
}

#[test]
fn bytes_wait_for_limits_without_a_queue_and_requests_do_not() {
    let time = Time::default();
    let rules = [Kind::Request, Kind::Ingress, Kind::Egress].map(|kind| {
        Rule::new(&format!("{kind:?}"))
            .when(of(kind))
            .limit(per_second(10))
    });
    let policy = policy(&time, rules);
    for (kind, end) in [
        (Kind::Request, Some(false)),
        (Kind::Ingress, None),
        (Kind::Egress, None),
    ] {
        let request = GET.kind(kind).cost(8);
        let mut tasks = [(); 2].map(|()| Task::new(policy.acquire(&request)));
        run(&mut tasks);
        assert_eq!(ends(&tasks), [Some(true), end], "{kind:?}");
        assert!(!policy.decide_at(policy.now(), &request).is_allowed());
        let most = GET.kind(kind).cost(11);
        let never = Task::new(policy.acquire(&most));
        let mut never = [never];
        run(&mut never);
        assert_eq!(ends(&never), [Some(false)], "more than the burst");
    }
}

#[test]
fn bytes_of_an_override_wait_and_those_of_a_shadow_rule_do_not() {
    let time = Time::default();
    let down = Rule::new("down")
        .when(of(Kind::Egress))
        .limit(per_second(1));
    let gold = down
        .clone()
        .key(Key::path())
        .override_key(["/"], [per_second(2)]);
    let live = LivePolicy::new(policy(&time, [gold.clone()]));
    for _ in 0..2 {
        // Then as the policy that follows.
        let policy = live.load();
        let mut tasks = [(); 3].map(|()| Task::new(policy.acquire(&EGRESS)));
        run(&mut tasks);
        assert_eq!(ends(&tasks), [Some(true), Some(true), None]);
        drop(tasks);
        time.advance(SECOND);
        live.replace_at(policy.now(), super::policy(&time, [gold.clone()]));
    }
    let shadow = policy(&time, [down.shadow()]);
    let mut tasks = [(); 3].map(|()| Task::new(shadow.acquire(&EGRESS)));
    run(&mut tasks);
    assert_eq!(ends(&tasks), [Some(true); 3]);
}

/// The limits of which one has a queue are as they are set.
#[test]
fn a_limit_of_bytes_with_a_queue_leaves_the_others_without() {
    let time = Time::default();
    let down = Rule::new("down").when(of(Kind::Egress));
    let policy = policy(
        &time,
        [down.limit(per_second(2).queue(5)).limit(per_second(1))],
    );
    let mut tasks = [(); 2].map(|()| Task::new(policy.acquire(&EGRESS)));
    run(&mut tasks);
    assert_eq!(ends(&tasks), [Some(true), Some(false)]);
    let outcome = tasks[1].output.as_ref().unwrap().outcome();
    assert!(matches!(outcome, Outcome::Denied { limit: Some(1), .. }));
}

#[test]
fn a_sleep_ends_at_its_time() {
    let time = Time::default();
    let policy = policy(&time, []);
    let mut sleeps = [
        Task::new(policy.sleep_until(policy.now() + SECOND)),
        Task::new(policy.sleep_until(policy.now())),
    ];
    run(&mut sleeps);
    assert_eq!(
        [sleeps[0].is_pending(), sleeps[1].is_pending()],
        [true, false]
    );
    time.advance(Duration::from_nanos(999_999_999));
    run(&mut sleeps);
    assert!(sleeps[0].is_pending());
    time.advance(Duration::from_nanos(1));
    run(&mut sleeps);
    assert!(!sleeps[0].is_pending());
}
