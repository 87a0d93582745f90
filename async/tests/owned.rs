//! Requests whose futures and leases own the queue, requests with a timeout, and the requests of a
//! key.

mod support;

use core::time::Duration;
use std::sync::Arc;
use std::thread;

use portcullis_async::{KeyedQueue, NoTimer, Queue, Rejected};
use portcullis_core::keyed::{ConcurrencyRules, Line, Seed, TokenBucketRules};
use portcullis_core::{
    Concurrency, Denied, Keyed, ManualClock, MonotonicClock, Rate, Retry, Timeless, Timestamp,
    TokenBucket,
};
use support::{Task, now, permits};

type Workers = KeyedQueue<Keyed<ConcurrencyRules, Box<[Line]>>, ManualClock>;

fn workers(limit: u32) -> Arc<Workers> {
    let table = Keyed::new(
        ConcurrencyRules::new(limit),
        Line::for_keys(100),
        Seed::new(),
    );
    Arc::new(KeyedQueue::new(table, ManualClock::new(), 9))
}

#[test]
fn an_owned_lease_outlives_all_other_pointers_to_the_queue() {
    let queue = Arc::new(Queue::new(Concurrency::new(1), Timeless, 9));
    let lease = now(queue.acquire_owned(1)).unwrap();
    let second = Task::waiting(queue.acquire_owned(1));
    drop(queue);
    thread::spawn(move || drop(lease)).join().unwrap();
    assert_eq!(permits(second.outcome()), Ok(1));
}

#[test]
fn the_lease_of_an_owned_key_can_be_moved_to_another_thread() {
    let queue = workers(1);
    let lease = now(queue.owned_key("alice").acquire(1)).unwrap();
    let second = Task::waiting(queue.owned_key("alice").acquire(1));
    assert_eq!(permits(now(queue.owned_key("bob").acquire(1))), Ok(1));
    drop(queue);
    thread::spawn(move || drop(lease)).join().unwrap();
    assert_eq!(permits(second.outcome()), Ok(1));
}

#[test]
fn a_timeout_starts_when_the_request_is_made() {
    let bucket = TokenBucket::new(Rate::per_second(1), 1);
    let queue = Queue::new(bucket, ManualClock::new(), 9);
    let _held = queue.try_acquire(1).unwrap();
    queue.clock().set(Timestamp::from_millis(500));
    let request = queue.acquire(1).within(Duration::from_millis(499));
    queue.clock().set(Timestamp::from_millis(600));
    assert_eq!(
        permits(now(request)),
        Err(Rejected::Deadline {
            permits: 1,
            retry: Retry::At(Timestamp::from_secs(1))
        })
    );
    // That instant counts.
    let wait = Task::waiting(queue.acquire(1).within(Duration::from_millis(400)));
    queue.clock().set(Timestamp::from_secs(1));
    queue.advance();
    assert_eq!(permits(wait.outcome()), Ok(1));
}

#[test]
fn a_timeout_beyond_the_end_of_time_is_no_deadline() {
    let queue = Queue::new(Concurrency::new(1), ManualClock::new(), 9);
    queue.clock().set(Timestamp::from_secs(1));
    let held = queue.try_acquire(1).unwrap();
    let wait = Task::waiting(queue.acquire(1).within(Duration::MAX));
    assert_eq!(queue.advance(), portcullis_async::Next::OnRelease);
    drop(held);
    assert_eq!(permits(wait.outcome()), Ok(1));
}

#[test]
fn a_key_takes_a_part_of_what_it_asks_for() {
    let queue = workers(3);
    let alice = queue.key("alice");
    let held = alice.try_acquire(1).unwrap();
    assert_eq!(alice.available(), 2);
    assert_eq!(permits(now(alice.acquire(1).up_to(9))), Ok(2));
    assert_eq!(
        alice.try_acquire(3).unwrap_err(),
        Denied::Exhausted {
            now: Timestamp::ZERO,
            permits: 3
        }
    );
    drop(held);
    assert_eq!(alice.available(), 3);
}

#[test]
fn the_deadline_of_a_key_is_kept() {
    let rules = TokenBucketRules::new(Rate::per_second(1), 1);
    let table = Keyed::new(rules, Line::for_keys(100), Seed::new());
    let queue = KeyedQueue::new(table, ManualClock::new(), 9);
    let alice = queue.key("alice");
    let _held = alice.try_acquire(1).unwrap();
    let late = Rejected::Deadline {
        permits: 1,
        retry: Retry::At(Timestamp::from_secs(1)),
    };
    let before = Timestamp::from_millis(999);
    assert_eq!(permits(now(alice.acquire(1).until(before))), Err(late));
    assert_eq!(
        permits(now(alice.acquire(1).within(Duration::from_millis(999)))),
        Err(late)
    );
    let wait = Task::waiting(alice.acquire(1).within(Duration::from_secs(1)));
    queue.clock().set(Timestamp::from_secs(1));
    queue.advance();
    assert_eq!(permits(wait.outcome()), Ok(1));
}

#[test]
fn threads_block_in_the_queue_of_a_key() {
    let table = Keyed::new(ConcurrencyRules::new(1), Line::for_keys(100), Seed::new());
    let queue = KeyedQueue::new(table, NoTimer(MonotonicClock::new()), 9);
    let alice = queue.key("alice");
    let held = alice.blocking_acquire(1).unwrap();
    let late = alice.acquire(1).within(Duration::from_millis(3)).block();
    assert!(matches!(late, Err(Rejected::Deadline { permits: 1, .. })));
    let late = alice.acquire(1).until(Timestamp::ZERO).block();
    assert!(matches!(late, Err(Rejected::Deadline { permits: 1, .. })));
    thread::scope(|scope| {
        let waits = scope.spawn(|| permits(alice.blocking_acquire(1)));
        while queue.counts().waiters == 0 {
            thread::yield_now();
        }
        drop(held);
        assert_eq!(waits.join().unwrap(), Ok(1));
    });
}

#[test]
fn the_view_of_a_limiter_ignores_the_requests_that_wait() {
    let bucket = TokenBucket::new(Rate::per_second(1), 2);
    let queue = Queue::new(bucket, ManualClock::new(), 9);
    let _held = queue.try_acquire(2).unwrap();
    let _wait = Task::waiting(queue.acquire(2));
    let (view, later) = (queue.limiter(), Timestamp::from_secs(1));
    assert_eq!((view.capacity(), view.available_at(later)), (2, 1));
    assert_eq!(view.peek_at(later, 1), Ok(()));
    let denied = view.peek_at(Timestamp::ZERO, 1).unwrap_err();
    assert_eq!(view.retry(denied), Retry::At(later));
    assert!(queue.try_acquire(1).is_err());
}
