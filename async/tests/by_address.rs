//! A keyed queue over a table of the user's own.

use core::future::Future;
use core::hash::Hash;
use core::pin::pin;
use core::task::{Context, Waker};
use std::sync::Arc;

use portcullis_async::{KeyedQueue, Order, QueueKey};
use portcullis_core::keyed::{Address, ConcurrencyRules, KeyHash, Line, Seed, TableKey};
use portcullis_core::queue::{Keys, QueueKeys};
use portcullis_core::{AllOf, Concurrency, Keyed, Limiter, Timeless, Timestamp};

type Table = Keyed<ConcurrencyRules, [Line; 8], Seed>;

/// A request takes from the table, and from a limit for all keys.
struct WithTotal {
    table: Table,
    total: Arc<Concurrency>,
}

impl Keys for WithTotal {
    type Limiter<'t> = AllOf<(TableKey<&'t Table>, &'t Concurrency)>;

    fn limiter_at<'t>(&'t self, address: &'t Address) -> Self::Limiter<'t> {
        AllOf::new((TableKey::at(&self.table, *address), &*self.total))
    }
    fn hash_of<K: Hash + ?Sized>(&self, key: &K) -> KeyHash {
        self.table.hash_of(key)
    }
    fn locate(&self, hash: KeyHash) -> Address {
        self.table.locate(hash)
    }
}

impl QueueKeys for WithTotal {
    const SHARED: bool = false;

    fn next_held(&self, from: usize) -> Option<usize> {
        self.table.next_held(from)
    }
}

type Queue = KeyedQueue<WithTotal, Timeless>;

fn queue(per_key: u32, total: u32) -> (Queue, Arc<Concurrency>) {
    let total = Arc::new(Concurrency::new(total));
    let table = Keyed::new(
        ConcurrencyRules::new(per_key),
        [const { Line::new() }; 8],
        Seed::new(),
    );
    let table = WithTotal {
        table,
        total: Arc::clone(&total),
    };
    (KeyedQueue::new(table, Timeless, 10), total)
}

#[test]
fn a_release_of_a_lease_serves_those_who_wait() {
    let (queue, total) = queue(1, 9);
    let mut context = Context::from_waker(Waker::noop());
    let alice = queue.key("alice");
    let held = alice.try_acquire(1).unwrap();
    let mut waits = pin!(alice.acquire(1));
    assert!(waits.as_mut().poll(&mut context).is_pending());
    assert!(queue.key("bob").try_acquire(1).is_ok(), "another key");
    drop(held);
    assert!(waits.poll(&mut context).is_ready());
    assert_eq!(total.available(), 9, "the lease was dropped");
}

#[test]
fn a_release_outside_the_queue_is_seen_by_serve() {
    let (queue, total) = queue(9, 1);
    let mut context = Context::from_waker(Waker::noop());
    let outside = Arc::clone(&total);
    outside.take_at(Timestamp::ZERO, 1).unwrap();
    let mut waits = pin!(queue.acquire("alice", 1));
    assert!(waits.as_mut().poll(&mut context).is_pending());
    outside.release(1);
    assert!(!waits.is_settled());
    queue.key("alice").serve();
    assert!(waits.is_settled());
    assert!(waits.poll(&mut context).is_ready());
}

#[test]
fn a_take_in_turn_does_not_overtake_requests_for_the_same_key() {
    let (queue, total) = queue(9, 1);
    let mut context = Context::from_waker(Waker::noop());
    let alice = queue.key("alice");
    assert_eq!(
        alice.in_turn(|| Err::<(), _>("denied")),
        Some(Err("denied"))
    );
    total.take_at(Timestamp::ZERO, 1).unwrap();
    {
        let mut waits = pin!(alice.acquire(1));
        assert!(waits.as_mut().poll(&mut context).is_pending());
        let same = QueueKey::at(&queue, waits_address(&queue, "alice"));
        assert_eq!(same.in_turn(|| Ok::<_, ()>(1)), None);
        // Some of them in the same shard.
        for other in 0..200 {
            let other = queue.key(&other);
            assert_eq!(other.in_turn(|| Ok::<_, ()>(2)), Some(Ok(2)));
        }
    }
    assert_eq!(alice.in_turn(|| Ok::<_, ()>(3)), Some(Ok(3)));
    queue.close();
    assert_eq!(alice.in_turn(|| Ok::<_, ()>(4)), None);
}

#[test]
fn a_take_in_turn_may_overtake_older_requests_if_the_newest_is_first() {
    let (queue, total) = queue(9, 1);
    let queue = queue.with_order(Order::NewestFirst);
    let mut context = Context::from_waker(Waker::noop());
    total.take_at(Timestamp::ZERO, 1).unwrap();
    let mut waits = pin!(queue.acquire("alice", 1));
    assert!(waits.as_mut().poll(&mut context).is_pending());
    assert_eq!(queue.key("alice").in_turn(|| Ok::<_, ()>(1)), Some(Ok(1)));
}

fn waits_address(queue: &Queue, key: &str) -> Address {
    queue.change(|table| TableKey::new(table, key).address())
}

#[test]
fn the_room_for_waiting_requests_can_change() {
    let (queue, _total) = queue(9, 1);
    let mut context = Context::from_waker(Waker::noop());
    let held = queue.key("alice").try_acquire(1).unwrap();
    let mut first = pin!(queue.acquire("alice", 1));
    let mut second = pin!(queue.acquire("alice", 1));
    assert!(first.as_mut().poll(&mut context).is_pending());
    let full = |queue: &Queue| {
        let wait = pin!(queue.acquire("alice", 1));
        wait.poll(&mut Context::from_waker(Waker::noop()))
            .is_ready()
    };
    queue.set_max_permits(1);
    assert!(full(&queue));
    queue.set_max_permits(2);
    assert!(second.as_mut().poll(&mut context).is_pending());
    assert!(full(&queue));
    assert_eq!(
        (queue.key("alice").queued(), queue.key("bob").queued()),
        (2, 0)
    );
    queue.set_max_permits(1);
    assert!(full(&queue));
    drop(held);
    assert!(first.poll(&mut context).is_ready());
    assert!(second.poll(&mut context).is_ready(), "it went on waiting");
    assert_eq!(queue.key("alice").queued(), 0);
}
