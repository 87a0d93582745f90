//! Within a queue, a wrapper that reacts to denials reacts to the outcome of a request, not to the
//! attempts of the queue.
#![cfg(feature = "std")]

mod support;

use core::time::Duration;

use portcullis_async::{KeyedQueue, Queue, Rejected};
use portcullis_core::builder::EscalationThreshold;
use portcullis_core::{
    AllOf, Concurrency, Denied, Escalation, KeyedArray, ManualClock, Penalty, Timestamp,
};
use support::{Task, now};

const WAIT: Duration = Duration::from_secs(5);

fn penalty(limit: u32) -> Penalty<Concurrency> {
    Penalty::new(Concurrency::new(limit), WAIT)
}

fn second(n: u64) -> Timestamp {
    Timestamp::from_secs(n)
}

fn is_on(queue: &Queue<Penalty<Concurrency>, ManualClock>, at: u64) -> bool {
    queue.change(|limit| limit.is_on_at(second(at)))
}

#[test]
fn attempts_for_a_request_that_is_granted_start_no_penalty() {
    let queue = Queue::new(penalty(1), ManualClock::new(), 9);
    let held = now(queue.acquire(1)).unwrap();
    let wait = Task::waiting(queue.acquire(1).until(second(3)));
    for _ in 0..5 {
        queue.change(|_| ());
        assert!(!is_on(&queue, 0));
    }
    drop(held);
    assert!(wait.outcome().is_ok());
    assert!(!is_on(&queue, 0));
}

#[test]
fn a_request_that_is_late_starts_a_penalty() {
    let queue = Queue::new(penalty(1), ManualClock::new(), 9);
    let held = now(queue.acquire(1)).unwrap();
    let late = Task::waiting(queue.acquire(1).until(second(3)));
    let wait = Task::waiting(queue.acquire(1));
    queue.clock().set(second(3));
    queue.advance();
    assert!(matches!(late.outcome(), Err(Rejected::Deadline { .. })));
    assert!(is_on(&queue, 3) && is_on(&queue, 7) && !is_on(&queue, 8));

    // Further denials do not prolong the penalty. It delays the requests that wait.
    queue.clock().set(second(6));
    drop(held);
    assert!(now(queue.acquire(1).until(second(7))).is_err());
    assert_eq!(wait.wakes(), 0);
    queue.clock().set(second(8));
    queue.advance();
    assert!(wait.outcome().is_ok());
}

#[test]
fn denials_during_a_penalty_do_not_count_for_the_next_one() {
    let penalty = Penalty::builder(WAIT)
        .after(2, Duration::from_secs(10))
        .build()
        .unwrap();
    let queue = Queue::new(penalty.around(Concurrency::new(1)), ManualClock::new(), 9);
    let _held = now(queue.acquire(1)).unwrap();
    let late = |at| {
        queue.clock().set(second(at));
        assert!(now(queue.acquire(1).until(second(at))).is_err());
        is_on(&queue, at)
    };
    assert!(!late(0));
    assert!(late(9) && late(12));
    // The denial at 12 s is not the first of a new window.
    assert!(!late(15));
}

#[test]
fn a_try_that_finds_too_few_permits_starts_a_penalty() {
    let queue = Queue::new(penalty(1), ManualClock::new(), 9);
    let _held = now(queue.acquire(1)).unwrap();
    let _wait = Task::waiting(queue.acquire(1));
    // A request is ahead, so the limiter is not asked.
    assert!(matches!(
        queue.try_acquire(1),
        Err(Denied::Exhausted { .. })
    ));
    assert!(is_on(&queue, 0));
}

#[test]
fn a_request_that_is_refused_or_cancelled_starts_no_penalty() {
    let queue = Queue::new(penalty(2), ManualClock::new(), 2);
    let _held = now(queue.acquire(2)).unwrap();
    let cancelled = Task::waiting(queue.acquire(1));
    assert!(matches!(
        now(queue.acquire(2)),
        Err(Rejected::QueueFull { .. })
    ));
    assert!(matches!(
        now(queue.acquire(3)),
        Err(Rejected::ExceedsCapacity { .. })
    ));
    drop(cancelled);
    let closed = Task::waiting(queue.acquire(1));
    queue.close();
    assert!(closed.outcome().is_err());
    assert!(queue.try_acquire(1).is_err());
    assert!(!is_on(&queue, 0));
}

#[test]
fn of_several_limits_the_one_that_denies_starts_its_penalty() {
    let limits = AllOf::new((penalty(3), penalty(2)));
    let queue = Queue::new(limits, ManualClock::new(), 9);
    let on = |at| {
        queue.change(|all| {
            let (first, second) = all.limits();
            [first.is_on_at(at), second.is_on_at(at)]
        })
    };
    let _held = now(queue.acquire(2)).unwrap();
    let late = Task::waiting(queue.acquire(1).until(second(1)));
    assert_eq!(on(second(0)), [false, false]);
    queue.clock().set(second(1));
    queue.advance();
    assert!(late.outcome().is_err());
    assert_eq!(on(second(1)), [false, true]);
}

#[test]
fn the_penalty_of_one_key_does_not_start_by_attempts() {
    let table = KeyedArray::for_keys(|| penalty(1), 100);
    let queue = KeyedQueue::new(table, ManualClock::new(), 9);
    let held = now(queue.acquire("alice", 1)).unwrap();
    let wait = Task::waiting(queue.acquire("alice", 1));
    drop(held);
    let held = wait.outcome().unwrap();
    assert!(now(queue.key("alice").acquire(1).until(second(0))).is_err());
    drop(held);
    assert!(matches!(
        queue.try_acquire("alice", 1),
        Err(Denied::Penalized { .. })
    ));
    assert!(queue.try_acquire("bob", 1).is_ok());
}

#[test]
fn a_denied_attempt_starts_no_hold_and_a_late_request_does() {
    let all = EscalationThreshold {
        used: 4,
        hold: WAIT,
        decision: "all",
    };
    let limit = Escalation::new(Concurrency::new(4), [all]);
    let queue = Queue::new(limit, ManualClock::new(), 9);
    let decision = |at| queue.change(|limit| limit.decision_at(second(at)).copied());
    let _held = now(queue.acquire(3)).unwrap();
    let cancelled = Task::waiting(queue.acquire(2));
    let late = Task::waiting(queue.acquire(2).until(second(1)));
    assert_eq!(decision(0), None);
    drop(cancelled);
    assert_eq!(decision(0), None);
    queue.clock().set(second(1));
    queue.advance();
    assert!(late.outcome().is_err());
    assert_eq!((decision(1), decision(6)), (Some("all"), None));
}
