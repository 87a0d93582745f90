//! Queues that bound the time that requests wait: the rule, a reference model of every outcome, and
//! the figures that the rule promises under overload.
#![cfg(feature = "shedding")]

#[cfg(feature = "tokio")]
#[path = "shedding/busy_keys.rs"]
mod busy_keys;
#[path = "shedding/figures.rs"]
mod figures;
#[path = "shedding/model.rs"]
mod model;
mod support;

use core::time::Duration;
use std::sync::{Arc, Mutex};
use std::thread;

use portcullis_async::{
    KeyedQueue, Next, Order, Queue, QueueCounts, Rejected, Shedding, ThreadTimer, WaitEnd, Waited,
};
use portcullis_core::keyed::WithTotal;
use portcullis_core::limiter::NotGranted;
use portcullis_core::state::Carry;
use portcullis_core::{
    Clock, Concurrency, Counted, Denied, Keyed, ManualClock, Rate, Retry, Timestamp, TokenBucket,
};
use support::{Task, Undriven, now, permits, run_to, undriven};

const fn ms(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// 5 ms and 100 ms.
const RULE: Shedding = Shedding::controlled_delay(millis(5), millis(100));

fn shed<T>(retry: Retry) -> Result<T, Rejected> {
    Err(Rejected::Shed { permits: 1, retry })
}

/// A queue whose only permit is held, with its clock at `at`.
fn held(order: Order) -> Undriven {
    let queue = undriven(Concurrency::new(1), 9)
        .with_order(order)
        .with_shedding(RULE);
    now(queue.acquire(1)).unwrap().forget();
    queue
}

/// A queue that is overloaded at 101 ms, and the request that waits in it.
fn overloaded(order: Order) -> (&'static Undriven, Task<impl Future>) {
    let queue: &'static _ = support::leaked(Box::new(held(order)));
    let first = Task::waiting(queue.acquire(1));
    run_to(queue, ms(50));
    let second = Task::waiting(queue.acquire(1));
    run_to(queue, ms(101));
    assert_eq!(permits(first.outcome()), shed(Retry::OnRelease));
    (queue, second)
}

#[test]
fn a_request_waits_for_the_interval_at_most() {
    let queue = held(Order::OldestFirst);
    let mut wait = Task::waiting(queue.acquire(1));
    assert_eq!(queue.advance(), Next::At(ms(100)));
    queue
        .clock()
        .set(Timestamp::from_nanos(ms(100).as_nanos() - 1));
    queue.advance();
    assert!(wait.is_pending());
    queue.clock().set(ms(100));
    assert_eq!(queue.advance(), Next::Idle);
    assert_eq!(permits(wait.outcome()), shed(Retry::OnRelease));
    let counts = QueueCounts::default();
    assert_eq!((queue.counts().shed, queue.counts().late), (1, counts.late));
}

#[test]
fn a_request_is_granted_at_the_very_bound() {
    let queue = held(Order::OldestFirst);
    let wait = Task::waiting(queue.acquire(1));
    queue.clock().set(ms(100));
    queue.change(|limit| limit.set_limit(2)).unwrap();
    assert_eq!(permits(wait.outcome()), Ok(1));
}

#[test]
fn in_an_overloaded_queue_a_new_request_waits_for_the_target_at_most() {
    for order in [Order::OldestFirst, Order::NewestFirst] {
        let (queue, second) = overloaded(order);
        let newcomer = Task::waiting(queue.acquire(1));
        assert_eq!(queue.advance(), Next::At(ms(106)));
        run_to(queue, ms(106));
        assert_eq!(permits(newcomer.outcome()), shed(Retry::OnRelease));
        // The bound of a request that waits already stays.
        assert_eq!(queue.advance(), Next::At(ms(150)));
        drop(second);
    }
}

#[test]
fn exactly_at_the_interval_a_queue_is_not_overloaded_yet() {
    let queue = held(Order::OldestFirst);
    let _first = Task::waiting(queue.acquire(1));
    run_to(&queue, ms(50));
    let _second = Task::waiting(queue.acquire(1));
    run_to(&queue, ms(100));
    let mut at_the_end = Task::waiting(queue.acquire(1));
    run_to(&queue, ms(199));
    assert!(at_the_end.is_pending());
}

#[test]
fn once_no_request_waits_the_overload_is_over() {
    let (queue, second) = overloaded(Order::OldestFirst);
    drop(second);
    let _next = Task::waiting(queue.acquire(1));
    assert_eq!(queue.advance(), Next::At(ms(201)));
    let _behind = Task::waiting(queue.acquire(1));
    run_to(queue, ms(200));
    assert_eq!(queue.counts().waiters, 2);
}

#[test]
fn an_eviction_for_a_newcomer_does_not_end_the_overload() {
    let queue = undriven(Concurrency::new(1), 1)
        .with_order(Order::NewestFirst)
        .with_shedding(RULE);
    now(queue.acquire(1)).unwrap().forget();
    let mut wait = Task::waiting(queue.acquire(1));
    for at in [60, 120] {
        run_to(&queue, ms(at));
        let evicted = core::mem::replace(&mut wait, Task::waiting(queue.acquire(1)));
        assert!(matches!(evicted.outcome(), Err(Rejected::Evicted { .. })));
    }
    assert_eq!(queue.advance(), Next::At(ms(125)));
}

#[test]
fn a_deadline_of_its_own_that_is_not_later_is_the_one_that_counts() {
    let queue = held(Order::OldestFirst);
    let sooner = Task::waiting(queue.acquire(1).until(ms(99)));
    let equal = Task::waiting(queue.acquire(1).until(ms(100)));
    let later = Task::waiting(queue.acquire(1).until(ms(101)));
    run_to(&queue, ms(100));
    let retry = Retry::OnRelease;
    let late = Err(Rejected::Deadline { permits: 1, retry });
    assert_eq!(permits(sooner.outcome()), late);
    assert_eq!(permits(equal.outcome()), late);
    assert_eq!(permits(later.outcome()), shed(retry));
    let counts = queue.counts();
    assert_eq!((counts.late, counts.shed), (2, 1));
}

#[test]
fn a_request_whose_permits_come_later_than_its_bound_is_shed_at_once() {
    // A permit each 40 ms, and none now.
    let bucket = TokenBucket::builder(Rate::new(1, millis(40)), 1)
        .initial(0)
        .build()
        .unwrap();
    let queue = undriven(bucket, 9).with_shedding(RULE);
    let waits: Vec<_> = (0..2).map(|_| Task::waiting(queue.acquire(1))).collect();
    assert_eq!(permits(now(queue.acquire(1))), shed(Retry::At(ms(120))));
    assert_eq!(queue.counts().shed, 1);
    run_to(&queue, ms(80));
    for wait in waits {
        assert_eq!(permits(wait.outcome()), Ok(1));
    }
}

#[test]
fn with_a_target_of_zero_no_request_waits_in_an_overloaded_queue() {
    let rule = Shedding::controlled_delay(Duration::ZERO, millis(10));
    let queue = undriven(Concurrency::new(1), 9).with_shedding(rule);
    now(queue.acquire(1)).unwrap().forget();
    let first = Task::waiting(queue.acquire(1));
    queue.clock().set(ms(5));
    let _second = Task::waiting(queue.acquire(1));
    run_to(&queue, ms(11));
    assert_eq!(permits(first.outcome()), shed(Retry::OnRelease));
    assert_eq!(permits(now(queue.acquire(1))), shed(Retry::OnRelease));
}

#[test]
fn no_permit_is_spent_on_a_request_past_its_bound_when_the_limit_rises() {
    let queue = held(Order::OldestFirst);
    let stale = Task::waiting(queue.acquire(1));
    queue.clock().set(ms(90));
    let fresh = Task::waiting(queue.acquire(1));
    // No call has come in time.
    queue.clock().set(ms(101));
    queue.change(|limit| limit.set_limit(2)).unwrap();
    assert_eq!(permits(stale.outcome()), shed(Retry::OnRelease));
    assert_eq!(permits(fresh.outcome()), Ok(1));
    assert_eq!(queue.available(), 1);
}

#[test]
fn a_limit_that_falls_sheds_requests_whose_permits_come_after_their_bound() {
    let bucket = portcullis_core::AdjustableBucket::new(Rate::new(1, millis(40)), 1);
    let queue = undriven(bucket, 9).with_shedding(RULE);
    now(queue.acquire(1)).unwrap().forget();
    let wait = Task::waiting(queue.acquire(1));
    let slow = Rate::new(1, Duration::from_secs(10));
    queue
        .change(|bucket| bucket.adjust_at(Timestamp::ZERO, slow, 1, Carry::Keep))
        .unwrap();
    assert!(matches!(wait.outcome(), Err(Rejected::Shed { .. })));
    assert_eq!(queue.advance(), Next::Idle);
}

#[test]
fn the_limiter_learns_of_a_request_that_was_shed_as_denied() {
    let queue = undriven(Counted::new(Concurrency::new(1)), 9).with_shedding(RULE);
    now(queue.acquire(1)).unwrap().forget();
    let wait = Task::waiting(queue.acquire(1));
    run_to(&queue, ms(100));
    let rejected = wait.outcome().unwrap_err();
    assert_eq!(NotGranted::from(rejected), NotGranted::Denied);
    let exhausted = Denied::Exhausted {
        now: ms(7),
        permits: 1,
    };
    assert_eq!(rejected.denied(ms(7)), exhausted);
    let counts = queue.limiter().counts();
    assert_eq!((counts.denied.requests, counts.refused.requests), (1, 0));
}

#[test]
fn the_hook_is_told_that_a_wait_was_shed() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sees = Arc::clone(&seen);
    let queue = Queue::new(Concurrency::new(1), ManualClock::new(), 9)
        .with_shedding(RULE)
        .with_hook(move |waited: &Waited| sees.lock().unwrap().push((waited.outcome, waited.time)));
    now(queue.acquire(1)).unwrap().forget();
    let wait = Task::waiting(queue.acquire(1));
    queue.clock().set(ms(100));
    queue.advance();
    assert!(wait.outcome().is_err());
    assert_eq!(*seen.lock().unwrap(), [(WaitEnd::Shed, millis(100))]);
}

#[test]
fn the_overload_of_one_key_does_not_shorten_the_waits_of_another() {
    let table = Keyed::for_keys(Concurrency::new(1), 100);
    let queue = KeyedQueue::new(table, ManualClock::new(), 9).with_shedding(RULE);
    now(queue.acquire("busy", 1)).unwrap().forget();
    now(queue.acquire("calm", 1)).unwrap().forget();
    let _busy = Task::waiting(queue.acquire("busy", 1));
    queue.clock().set(ms(60));
    let _more = Task::waiting(queue.acquire("busy", 1));
    queue.clock().set(ms(110));
    queue.advance();
    let calm = Task::waiting(queue.acquire("calm", 1));
    let busy = Task::waiting(queue.acquire("busy", 1));
    queue.clock().set(ms(115));
    queue.advance();
    assert_eq!(permits(busy.outcome()), shed(Retry::OnRelease));
    queue.clock().set(ms(209));
    queue.advance();
    assert_eq!(queue.counts().waiters, 1);
    queue.clock().set(ms(210));
    queue.advance();
    assert_eq!(permits(calm.outcome()), shed(Retry::OnRelease));
}

#[test]
fn a_key_that_waits_for_the_total_is_shed_and_makes_way() {
    let table = Keyed::for_keys(Concurrency::new(9), 100);
    let table = WithTotal::new(table, Concurrency::new(1));
    let queue = KeyedQueue::new(table, ManualClock::new(), 9).with_shedding(RULE);
    let held = now(queue.acquire("held", 1)).unwrap();
    let front = Task::waiting(queue.acquire("front", 1));
    queue.clock().set(ms(50));
    let next = Task::waiting(queue.acquire("next", 1));
    queue.clock().set(ms(101));
    drop(held);
    assert_eq!(permits(front.outcome()), shed(Retry::OnRelease));
    assert_eq!(permits(next.outcome()), Ok(1));
    assert_eq!(queue.counts().shed, 1);
}

#[test]
fn a_blocked_thread_is_shed_at_its_bound_whichever_thread_drives() {
    let rule = Shedding::controlled_delay(millis(5), millis(20));
    let queue = Queue::new(Concurrency::new(1), ThreadTimer::new(), 9).with_shedding(rule);
    let held = queue.try_acquire(1).unwrap();
    let begun = queue.clock().now();
    thread::scope(|scope| {
        let waits: Vec<_> = (0..3)
            .map(|_| scope.spawn(|| permits(queue.blocking_acquire(1))))
            .collect();
        for wait in waits {
            assert!(matches!(
                wait.join().unwrap(),
                Err(Rejected::Shed { permits: 1, .. })
            ));
        }
    });
    assert!(queue.clock().now().saturating_since(begun) >= millis(20));
    assert_eq!(queue.counts().shed, 3);
    drop(held);
}

#[test]
fn a_queue_without_the_option_sheds_nothing() {
    let queue = undriven(Concurrency::new(1), 9);
    now(queue.acquire(1)).unwrap().forget();
    let mut wait = Task::waiting(queue.acquire(1));
    assert_eq!(queue.advance(), Next::OnRelease);
    queue.clock().set(Timestamp::from_secs(1_000_000));
    assert_eq!(queue.advance(), Next::OnRelease);
    assert!(wait.is_pending());
}
