//! Permits that are handed over to the next waiter without being free in between.

mod support;

use core::cell::Cell;
use core::panic::AssertUnwindSafe;
use std::panic::catch_unwind;

use portcullis_async::{NoTimer, Queue, Waited};
use portcullis_core::{Clock, Concurrency, Timestamp};
use support::{Task, now, queue};

#[test]
fn a_handed_over_permit_released_later_can_be_taken_by_a_newcomer() {
    let queue = queue(Concurrency::new(1), 9);
    let held = now(queue.acquire(1)).unwrap();
    let wait = Task::waiting(queue.acquire(1));
    drop(held);
    // The waiter bit is still set.
    Queue::release_later(wait.outcome().unwrap());
    drop(
        queue
            .try_acquire(1)
            .expect("there is no waiter, and the permit is free"),
    );
    drop(now(queue.acquire(1)).unwrap());
    assert_eq!(queue.counts().waiters, 0);
}

#[test]
fn a_handed_over_permit_stays_taken() {
    let queue = queue(Concurrency::new(2), 9);
    let [one, _other] = [(); 2].map(|()| now(queue.acquire(1)).unwrap());
    let wait = Task::waiting(queue.acquire(1));
    drop(one);
    assert_eq!(queue.available(), 0);
    let lease = wait.outcome().unwrap();
    assert!(queue.try_acquire(1).is_err());
    drop(lease);
    assert_eq!(queue.available(), 1);
}

#[test]
fn a_permit_beyond_the_current_limit_is_not_handed_over() {
    let queue = queue(Concurrency::new(2), 9);
    let [one, two] = [(); 2].map(|()| now(queue.acquire(1)).unwrap());
    let mut wait = Task::waiting(queue.acquire(1));
    queue.change(|limit| limit.set_limit(1)).unwrap();
    drop(one);
    assert!(wait.poll().is_pending(), "one is held, and one is allowed");
    drop(two);
    assert!(wait.poll().is_ready());
}

/// A clock that panics once, on request.
struct Bad(Cell<bool>);

impl Clock for Bad {
    fn now(&self) -> Timestamp {
        assert!(!self.0.take(), "a clock that panics");
        Timestamp::ZERO
    }
}

#[test]
fn a_clock_that_panics_while_a_permit_is_handed_over_loses_none() {
    let queue = Queue::new(Concurrency::new(1), NoTimer(Bad(Cell::new(false))), 9);
    let queue = queue.with_hook(|_: &Waited| {});
    let held = queue.try_acquire(1).unwrap();
    let wait = Task::waiting(queue.acquire(1));
    queue.clock().0.0.set(true);
    assert!(catch_unwind(AssertUnwindSafe(|| drop(held))).is_err());
    queue.change(|_| ());
    assert_eq!(wait.outcome().unwrap().permits(), 1);
}
