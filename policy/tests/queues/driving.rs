//! The timer drives a queue: no request has to be polled for the others.

use core::time::Duration;
use std::sync::mpsc;
use std::thread;

use portcullis_policy::{Algorithm, Key, Limit, LivePolicy, Policy, QueueEnd, Request, Rule};

use super::support::{Task, Time, run};
use super::{GET, SECOND, ends, one_at_once, policy};

/// One permit per second, for which 10 permits of each path can wait.
fn one_per_second() -> Rule {
    let limit = Limit::per(1, SECOND).algorithm_of(Algorithm::FixedWindow);
    Rule::new("rate").key(Key::path()).limit(limit.queue(10))
}

#[test]
fn a_request_that_is_woken_and_never_polled_again_delays_no_other() {
    let time = Time::default();
    let policy = policy(&time, [one_per_second()]);
    let other = Request::new("GET", "/other");
    let mut tasks: Vec<_> = [GET, GET, GET, other, other]
        .iter()
        .map(|request| Task::new(policy.acquire(request)))
        .collect();
    run(&mut tasks);
    let mut unpolled = tasks.remove(1);
    let yes = Some(true);
    assert_eq!(ends(&tasks), [yes, None, yes, None]);
    time.advance(SECOND);
    run(&mut tasks);
    assert_eq!(ends(&tasks), [yes, None, yes, yes], "of another key");
    time.advance(SECOND);
    run(&mut tasks);
    assert_eq!(ends(&tasks), [yes; 4], "of the same key");
    // It was granted in its turn, and its wait ends when it is polled.
    assert!(unpolled.run());
    let granted = unpolled.output.unwrap();
    assert_eq!(granted.waited(), 2 * SECOND);
    assert_eq!(policy.queue_counts("rate").unwrap().granted, 3);
}

#[test]
fn a_request_that_is_not_polled_stops_no_deadline_of_another() {
    let time = Time::default();
    let policy = policy(&time, [one_at_once()]);
    let mut tasks: Vec<_> = [10, 1, 2]
        .map(|seconds| Task::new(policy.acquire(&GET).within(seconds * SECOND)))
        .into();
    run(&mut tasks);
    let _unpolled = tasks.remove(1);
    time.advance(SECOND);
    time.advance(SECOND);
    run(&mut tasks);
    assert_eq!(ends(&tasks), [Some(true), Some(false)]);
    let late = tasks[1].output.as_ref().unwrap();
    assert_eq!(
        (late.end(), late.waited()),
        (Some(QueueEnd::Late), 2 * SECOND)
    );
}

/// Also in a queue that a change of the policy creates.
#[test]
fn after_a_change_of_the_policy_the_timer_drives_as_well() {
    let time = Time::default();
    let live = LivePolicy::new(policy(&time, [Rule::new("rate")]));
    live.replace_at(time.now(), Policy::new([one_per_second()]).unwrap());
    let policy = live.load();
    let mut tasks: Vec<_> = (0..3).map(|_| Task::new(policy.acquire(&GET))).collect();
    run(&mut tasks);
    let _unpolled = tasks.remove(1);
    time.advance(SECOND);
    time.advance(SECOND);
    run(&mut tasks);
    assert_eq!(ends(&tasks), [Some(true); 2]);
}

/// In real time, with the default timer.
#[test]
fn the_default_timer_drives() {
    let limit = Limit::per(1, Duration::from_millis(300));
    let policy = Policy::new([Rule::new("rate").limit(limit.queue(10))]).unwrap();
    let policy: &'static Policy = Box::leak(Box::new(policy));
    let mut tasks: Vec<_> = (0..2).map(|_| Task::new(policy.acquire(&GET))).collect();
    run(&mut tasks);
    assert!(tasks[1].is_pending());
    // Without the timer, the second request would have to be polled first.
    let (say, hear) = mpsc::channel();
    thread::spawn(move || say.send(futures_executor::block_on(policy.acquire(&GET)).end()));
    let end = hear.recv_timeout(60 * SECOND).expect("it waits");
    assert_eq!(end, Some(QueueEnd::Granted));
}
