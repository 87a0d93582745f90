//! Waits until every lease is released.

mod support;

use core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use portcullis_async::{Drained, KeyedQueue, Next, Order, Queue, Rejected};
use portcullis_core::keyed::Seed;
use portcullis_core::limiter::{Answer, Ask, Back, Read, Reading, Returned};
use portcullis_core::queue::{QueueKeys, QueueLimiter};
use portcullis_core::{
    AllOf, Concurrency, Denied, Keyed, KeyedArray, Limiter, ManualClock, Rate, Retry, TokenBucket,
};
use support::random::Random;
use support::{
    Hand, SECOND, START, Shared, Task, Watched, available, newest_first, now, permits, queue,
};

#[test]
fn drained_ends_when_the_last_lease_is_released() {
    let queue = queue(Concurrency::new(3), 9);
    now(queue.drained());
    let (one, two) = (
        now(queue.acquire(1)).unwrap(),
        now(queue.acquire(2)).unwrap(),
    );
    let mut drained = Task::waiting(queue.drained());
    drop(one);
    assert_eq!(drained.wakes(), 0);
    assert!(drained.is_pending());
    drop(two);
    assert_eq!(drained.wakes(), 1);
    drained.outcome();
}

#[test]
fn several_futures_wait_for_it_and_are_all_woken() {
    for many in [1, 15, 16, 17, 33, 100] {
        let queue = queue(Concurrency::new(1), 9);
        let held = now(queue.acquire(1)).unwrap();
        let all: Vec<_> = (0..many).map(|_| Task::waiting(queue.drained())).collect();
        drop(held);
        for drained in all {
            assert_eq!(drained.wakes(), 1, "{many}");
            drained.outcome();
        }
    }
}

#[test]
fn a_cancelled_one_leaves_the_others() {
    for place in 0..3 {
        let queue = queue(Concurrency::new(1), 9);
        let held = now(queue.acquire(1)).unwrap();
        let mut all: Vec<_> = (0..3).map(|_| Task::waiting(queue.drained())).collect();
        drop(all.remove(place));
        drop(held);
        for drained in all {
            assert_eq!(drained.wakes(), 1);
            drained.outcome();
        }
        assert!(queue.try_acquire(1).is_ok());
    }
}

#[test]
fn all_cancelled_leave_no_trace() {
    let queue = queue(Concurrency::new(2), 9);
    let held = now(queue.acquire(1)).unwrap();
    drop([(); 3].map(|()| Task::waiting(queue.drained())));
    drop(queue.drained());
    assert_eq!(queue.advance(), Next::Idle);
    drop(held);
    assert_eq!(available(&queue), 2);
}

#[test]
fn polled_with_another_waker_it_wakes_only_that_one() {
    let queue = queue(Concurrency::new(1), 9);
    let held = now(queue.acquire(1)).unwrap();
    let first = Arc::new(());
    let (counted, kept) = (
        Arc::new(core::sync::atomic::AtomicUsize::new(0)),
        Arc::clone(&first),
    );
    let mut drained = Task::new(queue.drained());
    let old = {
        let counted = Arc::clone(&counted);
        support::waker(move || {
            counted.fetch_add(
                Arc::strong_count(&kept),
                core::sync::atomic::Ordering::Relaxed,
            );
        })
    };
    assert!(drained.poll_with(&old).is_pending());
    assert!(drained.is_pending());
    drop(old);
    assert_eq!(
        Arc::strong_count(&first),
        1,
        "the previous waker is dropped"
    );
    drop(held);
    assert_eq!(
        (
            drained.wakes(),
            counted.load(core::sync::atomic::Ordering::Relaxed)
        ),
        (1, 0)
    );
    drained.outcome();
}

#[test]
fn it_takes_no_place_in_the_queue_and_delays_no_waiter() {
    for queue in [
        queue(Concurrency::new(2), 0),
        newest_first(Concurrency::new(2), 0).with_max_waiters(0),
    ] {
        let _held = now(queue.acquire(1)).unwrap();
        let _drained = Task::waiting(queue.drained());
        assert_eq!((queue.counts().waiters, queue.counts().permits), (0, 0));
        assert!(queue.try_acquire(1).is_ok());
        assert!(now(queue.acquire(1)).is_ok());
    }
}

#[test]
fn waiters_for_permits_come_first() {
    for order in [Order::OldestFirst, Order::NewestFirst] {
        let queue = queue(Concurrency::new(1), 9).with_order(order);
        let held = now(queue.acquire(1)).unwrap();
        let wait = Task::waiting(queue.acquire(1));
        let mut drained = Task::waiting(queue.drained());
        drop(held);
        assert_eq!((wait.wakes(), drained.wakes()), (1, 0), "its lease is held");
        let lease = wait.outcome().unwrap();
        assert!(drained.is_pending());
        drop(lease);
        assert_eq!(drained.wakes(), 1);
    }
}

#[test]
fn an_unclaimed_grant_is_a_held_lease() {
    let queue = queue(Concurrency::new(1), 9);
    let held = now(queue.acquire(1)).unwrap();
    let wait = Task::waiting(queue.acquire(1));
    let drained = Task::waiting(queue.drained());
    drop(held);
    assert_eq!(drained.wakes(), 0);
    drop(wait);
    assert_eq!(drained.wakes(), 1);
}

#[test]
fn a_closed_queue_is_drained_when_its_leases_are_released() {
    let queue = queue(Concurrency::new(2), 9);
    let held = now(queue.acquire(2)).unwrap();
    let before = Task::waiting(queue.drained());
    let wait = Task::waiting(queue.acquire(1));
    queue.close();
    assert_eq!(
        permits(wait.outcome()),
        Err(Rejected::Closed { permits: 1 })
    );
    let after = Task::waiting(queue.drained());
    assert_eq!((before.wakes(), after.wakes()), (0, 0));
    drop(held);
    assert_eq!((before.wakes(), after.wakes()), (1, 1));
    before.outcome();
    after.outcome();
    now(queue.drained());
}

/// A graceful shutdown waits for the driver and for the leases.
#[test]
fn a_driver_ends_with_a_closed_queue_though_a_future_waits_for_its_leases() {
    let queue = queue(Concurrency::new(2), 9);
    let held = now(queue.acquire(1)).unwrap();
    let mut driver = Task::waiting(queue.drive());
    let _drained = Task::waiting(queue.drained());
    queue.close();
    assert!(driver.wakes() > 0);
    let over = driver.poll().is_ready();
    drop(held);
    assert!(
        over || driver.wakes() > 1,
        "ready when the queue is closed, or when all leases are released"
    );
    assert!(over || driver.poll().is_ready());
}

#[test]
fn a_partial_release_does_not_drain() {
    let queue = queue(Concurrency::new(3), 9);
    let mut held = now(queue.acquire(3)).unwrap();
    let drained = Task::waiting(queue.drained());
    assert_eq!(held.refund_at(START, 2), Ok(2));
    assert_eq!(drained.wakes(), 0);
    let rest = held.split(1).unwrap();
    drop(held);
    assert_eq!(drained.wakes(), 0);
    drop(rest);
    assert_eq!(drained.wakes(), 1);
}

#[test]
fn the_last_permit_may_return_by_a_refund() {
    let queue = queue(Concurrency::new(3), 9);
    let mut held = now(queue.acquire(3)).unwrap();
    let drained = Task::waiting(queue.drained());
    assert_eq!(held.refund_at(START, 3), Ok(3));
    assert_eq!(drained.wakes(), 1);
}

#[test]
fn with_a_live_limit_only_held_permits_count() {
    let queue = queue(Concurrency::new(3), 9);
    let held = now(queue.acquire(3)).unwrap();
    let drained = Task::waiting(queue.drained());
    queue.change(|limit| limit.set_limit(1)).unwrap();
    queue.change(|limit| limit.set_limit(9)).unwrap();
    assert_eq!(drained.wakes(), 0);
    drop(held);
    assert_eq!(drained.wakes(), 1);
}

#[test]
fn permits_that_come_back_by_time_are_not_waited_for() {
    let queue = queue(TokenBucket::new(Rate::per_second(1), 5), 9);
    let _held = now(queue.acquire(5)).unwrap();
    now(queue.drained());
}

/// A release never waits for the lock: it sets the pending-release bit, and the holder of the lock
/// finds all permits back.
#[test]
fn a_release_while_another_holds_the_lock_is_found_by_the_holder() {
    type Locked = Queue<Concurrency, Hand, Watched>;
    static QUEUE: Locked = Queue::with_lock(Concurrency::new(2), Hand::new(), 99, Watched::new());
    let works: [fn(); 4] = [
        || assert!(Task::new(QUEUE.drained()).is_pending()),
        || _ = QUEUE.advance(),
        || _ = QUEUE.counts(),
        || QUEUE.change(|limit| limit.set_limit(2)).map(drop).unwrap(),
    ];
    for (number, work) in works.into_iter().enumerate() {
        let held = now(QUEUE.acquire(2)).unwrap();
        let drained = Task::waiting(QUEUE.drained());
        Watched::before_unlock(move || drop(held));
        work();
        assert_eq!(drained.wakes(), 1, "work {number}");
        drained.outcome();
    }
}

/// Between its first look, which finds a held lease, and the end of its registration inside the
/// lock.
#[test]
fn a_release_while_it_registers_is_not_missed() {
    type Locked = Queue<Concurrency, ManualClock, Watched>;
    static QUEUE: Locked =
        Queue::with_lock(Concurrency::new(1), ManualClock::new(), 99, Watched::new());
    let held = now(QUEUE.acquire(1)).unwrap();
    let mut drained = Task::new(QUEUE.drained());
    Watched::before_unlock(move || drop(held));
    assert!(drained.poll().is_ready() || drained.wakes() == 1);
}

#[test]
fn a_drained_future_that_owns_the_queue_can_be_sent_to_another_thread() {
    let queue: Shared = Arc::new(queue(Concurrency::new(1), 9));
    let held = now(queue.acquire(1)).unwrap();
    let drained = Task::waiting(Drained::new(Arc::clone(&queue)));
    drop(held);
    std::thread::spawn(move || drained.outcome())
        .join()
        .unwrap();
    assert_eq!(Arc::strong_count(&queue), 1);
}

#[test]
fn it_neither_ends_a_deadline_nor_waits_for_one() {
    let queue = queue(Concurrency::new(1), 9);
    let held = now(queue.acquire(1)).unwrap();
    let drained = Task::waiting(queue.drained());
    let wait = Task::waiting(queue.acquire(1).until(START.saturating_add(SECOND)));
    queue.clock().advance(SECOND);
    assert_eq!(queue.advance(), Next::OnRelease);
    assert_eq!(
        permits(wait.outcome()),
        Err(Rejected::Deadline {
            permits: 1,
            retry: Retry::OnRelease
        })
    );
    assert_eq!(drained.wakes(), 0);
    drop(held);
    assert_eq!((drained.wakes(), queue.advance()), (1, Next::Idle));
}

/// Returns a queue around a table. Its seed is fixed, because under a random one two keys may
/// collide.
fn by_key<T: QueueKeys>(table: T) -> KeyedQueue<T, Hand> {
    KeyedQueue::new(table, Hand::new(), 9)
}

/// Takes permits for many keys, and releases them in a random order beside a drained future.
fn drained_ends_with_the_last_lease_of_all_keys<T: QueueKeys>(queue: &KeyedQueue<T, Hand>) {
    now(queue.drained());
    let mut random = Random::new(7);
    for keys in [1, 2, 5, 50] {
        let mut held: Vec<_> = (0..keys)
            .map(|key| now(queue.acquire(&key, 1)).unwrap())
            .collect();
        let drained = Task::waiting(queue.drained());
        while !held.is_empty() {
            assert_eq!(drained.wakes(), 0);
            drop(held.swap_remove(random.index(held.len())));
        }
        assert_eq!(drained.wakes(), 1, "{keys} keys");
        drained.outcome();
    }
}

#[test]
fn drained_of_a_table_ends_when_the_last_lease_of_all_keys_is_released() {
    drained_ends_with_the_last_lease_of_all_keys(&by_key(Keyed::for_keys_with_hasher(
        Concurrency::new(2),
        100,
        Seed::new(),
    )));
    drained_ends_with_the_last_lease_of_all_keys(&by_key(KeyedArray::for_keys_with_hasher(
        || Concurrency::new(2),
        100,
        Seed::new(),
    )));
    drained_ends_with_the_last_lease_of_all_keys(&by_key(KeyedArray::for_keys_with_hasher(
        || {
            AllOf::new((
                TokenBucket::new(Rate::per_second(1), 99),
                Concurrency::new(2),
            ))
        },
        100,
        Seed::new(),
    )));
}

#[test]
fn drained_of_a_table_does_not_wait_for_permits_that_come_back_by_time() {
    let queue = by_key(Keyed::for_keys_with_hasher(
        TokenBucket::new(Rate::per_second(1), 1),
        100,
        Seed::new(),
    ));
    let lease = now(queue.acquire("alice", 1)).unwrap();
    now(queue.drained());
    drop(lease);
}

#[test]
fn drained_of_a_table_waits_for_a_lease_that_was_held_before_it_while_others_come_and_go() {
    let queue = by_key(Keyed::for_keys_with_hasher(
        Concurrency::new(2),
        100,
        Seed::new(),
    ));
    let before = now(queue.acquire("alice", 1)).unwrap();
    let drained = Task::waiting(queue.drained());
    for key in 0..50 {
        drop(now(queue.acquire(&key, 1)).unwrap());
    }
    assert_eq!(drained.wakes(), 0);
    drop(before);
    assert_eq!(drained.wakes(), 1);
}

/// How many limiters were asked for the permits that they have given out.
static LOOKS: AtomicUsize = AtomicUsize::new(0);

/// Counts in `LOOKS`.
#[derive(Debug)]
struct Looked(Concurrency);

impl Limiter for Looked {
    fn decide(&self, ask: Ask<'_>) -> Answer {
        self.0.decide(ask)
    }
    fn give_back(&self, back: Back<'_>) -> Returned {
        self.0.give_back(back)
    }
    fn read(&self, read: Read<'_>) -> Reading {
        LOOKS.fetch_add(1, Ordering::Relaxed);
        self.0.read(read)
    }
    fn retry(&self, denied: Denied) -> Retry {
        self.0.retry(denied)
    }
}

impl QueueLimiter for Looked {
    const SHARED: bool = false;
}

#[test]
fn after_close_all_releases_together_look_at_each_slot_at_most_twice() {
    let table = KeyedArray::for_keys_with_hasher(|| Looked(Concurrency::new(1)), 500, Seed::new());
    let slots = table.limiters().len();
    let queue = by_key(table);
    let mut held: Vec<_> = (0..500)
        .map(|key| now(queue.acquire(&key, 1)).unwrap())
        .collect();
    // Claims look at slots, too.
    LOOKS.store(0, Ordering::Relaxed);
    queue.close();
    let drained = Task::waiting(queue.drained());
    let mut random = Random::new(3);
    while !held.is_empty() {
        drop(held.swap_remove(random.index(held.len())));
    }
    drained.outcome();
    let looks = LOOKS.load(Ordering::Relaxed);
    // Each release looks again at the slot at which the last look stopped.
    assert!(looks <= 2 * slots + 501, "{looks} of {slots} slots");
}

#[test]
fn drained_of_a_table_ends_while_threads_release_the_permits_of_many_keys() {
    for round in 0..200 {
        let queue = by_key(Keyed::for_keys_with_hasher(
            Concurrency::new(3),
            100,
            Seed::new(),
        ));
        let held: Vec<_> = (0..60)
            .map(|key| now(queue.acquire(&(key % 40), 1)).unwrap())
            .collect();
        queue.close();
        std::thread::scope(|scope| {
            let (some, others) = {
                let mut held = held;
                let others = held.split_off(30);
                (held, others)
            };
            for leases in [some, others] {
                scope.spawn(move || drop(leases));
            }
            futures_executor::block_on(queue.drained());
            let free = (0..40).map(|key| queue.key(&key).available());
            assert_eq!(free.sum::<u64>(), 120, "round {round}");
        });
    }
}
