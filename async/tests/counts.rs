//! A queue's limiter counts each request once: when it is granted, rejected or cancelled. The
//! queue's own attempts are not counted.
#![cfg(feature = "std")]

mod support;

use core::time::Duration;
use std::thread;

use portcullis_async::{KeyedQueue, Order, Queue, Rejected};
use portcullis_core::counts::{Counts, Tally};
use portcullis_core::keyed::{ConcurrencyRules, Line, Seed};
use portcullis_core::{
    AllOf, Concurrency, Counted, Keyed, Limiter, ManualClock, Rate, Timeless, Timestamp,
    TokenBucket,
};
use support::{Task, now};

/// The requests: granted, denied, refused, cancelled.
fn requests(counts: Counts) -> [u64; 4] {
    let Counts {
        granted,
        denied,
        refused,
        cancelled,
        ..
    } = counts;
    [granted, denied, refused, cancelled].map(|total| total.requests)
}

fn permits(counts: Counts) -> [u64; 4] {
    let Counts {
        granted,
        denied,
        refused,
        cancelled,
        ..
    } = counts;
    [granted, denied, refused, cancelled].map(|total| total.permits)
}

#[test]
fn a_wait_is_one_grant_and_no_denial() {
    let queue = Queue::new(Counted::new(Concurrency::new(1)), Timeless, 100);
    let mut held = now(queue.acquire(1)).unwrap();
    for granted in 1..20 {
        let wait = Task::waiting(queue.acquire(1));
        assert_eq!(requests(queue.limiter().counts()), [granted, 0, 0, 0]);
        drop(held);
        held = wait.outcome().unwrap();
    }
    let counts = queue.limiter().counts();
    assert_eq!((requests(counts), counts.held), ([20, 0, 0, 0], 1));
    drop(held);
    assert_eq!(queue.limiter().counts().held, 0);
}

#[test]
fn each_outcome_is_counted_in_its_group() {
    let limit = Counted::new(Concurrency::new(4));
    let queue = Queue::new(limit, ManualClock::new(), 5);
    let counts = || queue.limiter().counts();
    let held = now(queue.acquire(4)).unwrap();
    let first = Task::waiting(queue.acquire(2));
    let late = Task::waiting(queue.acquire(1).until(Timestamp::from_secs(1)));
    let dropped = Task::waiting(queue.acquire(1));
    assert_eq!(requests(counts()), [1, 0, 0, 0]);

    assert!(matches!(
        now(queue.acquire(3)),
        Err(Rejected::QueueFull { .. })
    ));
    assert!(matches!(
        now(queue.acquire(7)),
        Err(Rejected::ExceedsCapacity { .. })
    ));
    assert_eq!(
        (requests(counts()), permits(counts())),
        ([1, 0, 2, 0], [4, 0, 10, 0])
    );

    drop(dropped);
    assert_eq!(
        (requests(counts()), permits(counts())),
        ([1, 0, 2, 1], [4, 0, 10, 1])
    );

    queue.clock().advance(Duration::from_secs(2));
    queue.advance();
    assert!(matches!(late.outcome(), Err(Rejected::Deadline { .. })));
    assert_eq!(
        (requests(counts()), permits(counts())),
        ([1, 1, 2, 1], [4, 1, 10, 1])
    );

    // A request waits ahead, so the limiter is not asked.
    assert!(queue.try_acquire(1).is_err());
    assert_eq!(
        (requests(counts()), permits(counts())),
        ([1, 2, 2, 1], [4, 2, 10, 1])
    );

    drop(held);
    let first = first.outcome().unwrap();
    assert_eq!(
        (requests(counts()), permits(counts())),
        ([2, 2, 2, 1], [6, 2, 10, 1])
    );
    assert_eq!(counts().held, 2);

    let closed = Task::waiting(queue.acquire(3));
    queue.close();
    assert!(matches!(closed.outcome(), Err(Rejected::Closed { .. })));
    assert!(queue.try_acquire(1).is_err());
    assert!(now(queue.acquire(1)).is_err());
    assert_eq!(
        (requests(counts()), permits(counts())),
        ([2, 2, 5, 1], [6, 2, 15, 1])
    );
    drop(first);
    assert_eq!(counts().held, 0);
}

#[test]
fn an_evicted_request_is_refused() {
    let limit = Counted::new(Concurrency::new(1));
    let queue = Queue::new(limit, Timeless, 2).with_order(Order::NewestFirst);
    let _held = now(queue.acquire(1)).unwrap();
    let old = Task::waiting(queue.acquire(1));
    let _new = Task::waiting(queue.acquire(1));
    let _newest = Task::waiting(queue.acquire(1));
    assert!(matches!(old.outcome(), Err(Rejected::Evicted { .. })));
    assert_eq!(requests(queue.limiter().counts()), [1, 0, 1, 0]);
}

#[test]
fn a_request_that_a_lowered_limit_cannot_hold_is_refused() {
    let queue = Queue::new(Counted::new(Concurrency::new(2)), Timeless, 9);
    let _held = now(queue.acquire(2)).unwrap();
    let wait = Task::waiting(queue.acquire(2));
    queue.change(|limit| limit.limiter().set_limit(1)).unwrap();
    assert!(matches!(
        wait.outcome(),
        Err(Rejected::ExceedsCapacity { .. })
    ));
    assert_eq!(requests(queue.limiter().counts()), [1, 0, 1, 0]);
}

#[test]
fn a_grant_for_part_of_a_request_counts_its_own_permits() {
    let queue = Queue::new(Counted::new(Concurrency::new(5)), Timeless, 9);
    let some = now(queue.acquire(1).up_to(100)).unwrap();
    assert_eq!(permits(queue.limiter().counts()), [5, 0, 0, 0]);
    drop(some);
    assert_eq!(requests(queue.limiter().counts()), [1, 0, 0, 0]);
}

#[test]
fn tries_count_the_same_around_a_queue_and_within_it() {
    let queue = Queue::new(Counted::new(Concurrency::new(3)), Timeless, 9);
    let around = Counted::new(&queue);
    let at = Timestamp::ZERO;
    let held = around.try_acquire_at(at, 2).unwrap();
    assert!(around.try_acquire_at(at, 2).is_err());
    assert!(around.try_acquire_at(at, 4).is_err());
    drop(held);
    let held = around.try_acquire_at(at, 3).unwrap();
    queue.close();
    assert!(around.try_acquire_at(at, 1).is_err());
    assert_eq!(around.counts(), queue.limiter().counts());
    assert_eq!(
        (requests(around.counts()), around.counts().held),
        ([2, 1, 2, 0], 3)
    );
    drop(held);
    assert_eq!(around.counts(), queue.limiter().counts());
}

#[test]
fn tries_that_are_explained_count_as_others_do() {
    for explained in [false, true] {
        let queue = Queue::new(Counted::new(Concurrency::new(3)), Timeless, 9);
        let attempt = |n| {
            if explained {
                queue.try_acquire_explained(n).0
            } else {
                queue.try_acquire(n)
            }
        };
        let held = attempt(3).unwrap();
        assert!(attempt(1).is_err() && attempt(4).is_err());
        let wait = Task::waiting(queue.acquire(3));
        assert!(attempt(1).is_err());
        drop((wait, held));
        queue.close();
        assert!(attempt(1).is_err());
        let counts = queue.limiter().counts();
        assert_eq!(requests(counts), [1, 2, 2, 1], "explained: {explained}");

        let table = Keyed::new(ConcurrencyRules::new(3), Line::for_keys(9), Seed::new());
        let queue = KeyedQueue::new(Counted::new(table), Timeless, 9);
        let attempt = |n| {
            if explained {
                queue.key("alice").try_acquire_explained(n).0
            } else {
                queue.key("alice").try_acquire(n)
            }
        };
        let held = attempt(3).unwrap();
        assert!(attempt(1).is_err() && attempt(4).is_err());
        let wait = Task::waiting(queue.acquire("alice", 3));
        assert!(attempt(1).is_err());
        drop((wait, held));
        queue.close();
        assert!(attempt(1).is_err());
        let counts = queue.table_counts();
        assert_eq!(requests(counts), [1, 2, 2, 1], "explained: {explained}");
    }
}

#[test]
fn each_limit_of_a_composition_counts_the_grants_and_the_rejections_that_it_causes() {
    static RATE: Tally = Tally::new();
    static USE: Tally = Tally::new();
    let second = |n| Timestamp::from_secs(n);
    let limits = AllOf::new((
        Counted::with_tally(TokenBucket::new(Rate::per_second(1), 2), &RATE),
        Counted::with_tally(Concurrency::new(3), &USE),
    ));
    let queue = Queue::new(limits, ManualClock::new(), 3);
    let first = now(queue.acquire(2)).unwrap();
    assert_eq!(
        [requests(RATE.counts()), requests(USE.counts())],
        [[1, 0, 0, 0]; 2]
    );

    // The bucket is empty, and it grants none before the deadline.
    assert!(now(queue.acquire(1).until(Timestamp::from_millis(500))).is_err());
    assert_eq!(requests(RATE.counts()), [1, 1, 0, 0]);
    // More than the bucket can hold.
    assert!(now(queue.acquire(3)).is_err());
    assert_eq!(requests(RATE.counts()), [1, 1, 1, 0]);

    // The bucket has filled up, and the other limit denies.
    queue.clock().set(second(9));
    let wait = Task::waiting(queue.acquire(2).until(second(10)));
    let cancelled = Task::waiting(queue.acquire(1));
    drop(cancelled);
    queue.clock().set(second(11));
    queue.advance();
    assert!(wait.outcome().is_err());
    assert_eq!(requests(RATE.counts()), [1, 1, 1, 0]);
    assert_eq!(requests(USE.counts()), [1, 1, 0, 0]);

    drop(first);
    assert_eq!((RATE.counts().held, USE.counts().held), (0, 0));
    // No limit is the reason.
    queue.close();
    assert!(now(queue.acquire(1)).is_err());
    assert_eq!(requests(RATE.counts()), [1, 1, 1, 0]);
    assert_eq!(requests(USE.counts()), [1, 1, 0, 0]);
}

#[test]
fn attempts_are_not_counted_within_a_composition_of_compositions_either() {
    let bucket = || TokenBucket::new(Rate::per_second(1), 1);
    let inner = Tally::new();
    let parts = AllOf::new((Counted::with_tally(bucket(), &inner), Concurrency::new(9)));
    let outer = Tally::new();
    let all = AllOf::new((Counted::with_tally(parts, &outer), Concurrency::new(9)));
    let queue = Queue::new(all, ManualClock::new(), 9);
    let _first = now(queue.acquire(1)).unwrap();
    let wait = Task::waiting(queue.acquire(1));
    for _ in 0..5 {
        queue.clock().advance(Duration::from_millis(100));
        queue.advance();
        queue.change(|_| ());
    }
    assert_eq!(
        [requests(inner.counts()), requests(outer.counts())],
        [[1, 0, 0, 0]; 2]
    );
    queue.clock().advance(Duration::from_secs(1));
    queue.advance();
    let _second = wait.outcome().unwrap();
    assert_eq!(
        [requests(inner.counts()), requests(outer.counts())],
        [[2, 0, 0, 0]; 2]
    );
    // A rejection is passed on to both.
    assert!(now(queue.acquire(2)).is_err());
    assert_eq!(
        [requests(inner.counts()), requests(outer.counts())],
        [[2, 0, 1, 0]; 2]
    );
}

#[test]
fn a_table_in_a_queue_counts_the_requests_of_all_keys() {
    let table = Keyed::new(ConcurrencyRules::new(1), Line::for_keys(100), Seed::new());
    let queue = KeyedQueue::new(Counted::new(table), ManualClock::new(), 1);
    let alice = now(queue.acquire("alice", 1)).unwrap();
    let bob = now(queue.acquire("bob", 1)).unwrap();
    let waits = Task::waiting(queue.acquire("alice", 1));
    assert!(now(queue.acquire("alice", 1)).is_err());
    assert!(queue.try_acquire("alice", 1).is_err());
    let cancelled = Task::waiting(queue.acquire("bob", 1));
    assert_eq!(requests(queue.table_counts()), [2, 1, 1, 0]);
    drop(cancelled);
    drop(alice);
    let alice = waits.outcome().unwrap();
    let counts = queue.table_counts();
    assert_eq!((requests(counts), counts.held), ([3, 1, 1, 1], 2));
    let drained = Task::waiting(queue.drained());
    drop(alice);
    assert_eq!(drained.wakes(), 0);
    drop(bob);
    assert_eq!(drained.wakes(), 1);
    assert_eq!(queue.table_counts().held, 0);
}

#[test]
fn the_counts_of_many_threads_add_up() {
    const THREADS: u64 = 4;
    const WAITS: u64 = 200;
    let queue = Queue::new(Counted::new(Concurrency::new(2)), Timeless, 3);
    let granted: u64 = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(|| {
                    let grants = (0..WAITS).filter(|at| {
                        let lease = queue.blocking_acquire(1 + (at % 2) as u32);
                        thread::yield_now();
                        lease.is_ok()
                    });
                    grants.count() as u64
                })
            })
            .collect();
        let grants = threads.into_iter().map(|thread| thread.join().unwrap());
        grants.sum()
    });
    let counts = queue.limiter().counts();
    assert_eq!(requests(counts), [granted, 0, THREADS * WAITS - granted, 0]);
    assert_eq!(counts.all().permits, THREADS * (WAITS + WAITS / 2));
    assert_eq!(counts.held, 0);
    assert_eq!(queue.available_at(Timestamp::ZERO), 2);
}
