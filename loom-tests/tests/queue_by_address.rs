//! Keyed queues whose limiters are reached outside the queue, too: no permit is left behind.
#![cfg(portcullis_loom)]

use core::hash::{BuildHasherDefault, Hash};
use std::sync::Arc;

use portcullis_async::{Acquire, KeyedQueue, QueueKey};
use portcullis_core::keyed::{Address, ConcurrencyRules, KeyHash, Line, TableKey};
use portcullis_core::limiter::Receipt;
use portcullis_core::queue::{Keys, QueueKeys};
use portcullis_core::{Denied, Keyed, Limiter, Timeless};
use portcullis_loom::queue::{Lock, Task, beside, has_no_waiters};
use portcullis_loom::{Itself, at, explore, join, turn};

type Table = Keyed<ConcurrencyRules, Vec<Line>, BuildHasherDefault<Itself>>;
type Queues = KeyedQueue<Shared, Timeless, Lock>;

/// A table with one permit for each key.
struct Shared(Arc<Table>);

impl Keys for Shared {
    type Limiter<'t> = TableKey<&'t Table>;

    fn limiter_at<'t>(&'t self, address: &'t Address) -> TableKey<&'t Table> {
        TableKey::at(&self.0, *address)
    }
    fn hash_of<K: Hash + ?Sized>(&self, key: &K) -> KeyHash {
        self.0.hash_of(key)
    }
    fn locate(&self, hash: KeyHash) -> Address {
        self.0.locate(hash)
    }
}

impl QueueKeys for Shared {
    const SHARED: bool = false;

    fn next_held(&self, from: usize) -> Option<usize> {
        self.0.next_held(from)
    }
}

const A: u64 = 1;
/// In the same shard as `A`.
const NEAR: u64 = 3;

fn queues() -> (Arc<Queues>, Arc<Table>) {
    let table: Arc<Table> = Arc::new(Keyed::new(
        ConcurrencyRules::new(1),
        vec![Line::new()],
        BuildHasherDefault::default(),
    ));
    let shard = |key: u64| table.key(&key).address().group(2);
    assert_eq!(shard(A), shard(NEAR));
    let shared = Shared(Arc::clone(&table));
    let queue = KeyedQueue::with_lock(shared, Timeless, 9, Lock::new());
    (Arc::new(queue), table)
}

fn pointer(queue: &Arc<Queues>, key: u64) -> QueueKey<Arc<Queues>> {
    QueueKey::new(Arc::clone(queue), &key)
}

fn wait(queue: &Arc<Queues>, key: u64) -> Task<QueueKey<Arc<Queues>>> {
    Task::of(Acquire::new(pointer(queue, key), 1), 1).started()
}

fn take(table: &Table, key: u64) -> Result<Receipt, Denied> {
    table.key(&key).take_at(at(0), 1)
}

/// Releases the permit of a key outside the queue, and serves the key.
fn release(queue: &Arc<Queues>, table: &Arc<Table>) -> impl FnOnce() + Send + 'static {
    let (queue, table) = (Arc::clone(queue), Arc::clone(table));
    move || {
        table.key(&A).release(1);
        pointer(&queue, A).serve();
    }
}

#[test]
fn a_request_queued_during_a_release_outside_the_queue_is_served() {
    explore(|| {
        let (queue, table) = queues();
        take(&table, A).unwrap();
        let release = beside(release(&queue, &table));
        let mut mine = wait(&queue, A);
        join(release);
        assert!(mine.is_served(), "waits although its permit is free");
        mine.leave();
        has_no_waiters(queue.counts());
        assert!(take(&table, A).is_ok(), "after the task has left");
    });
}

#[test]
fn a_take_in_turn_for_another_key_leaves_no_permit_behind() {
    explore(|| {
        let (queue, table) = queues();
        take(&table, A).unwrap();
        let mut mine = wait(&queue, A);
        let release = beside(release(&queue, &table));
        turn();
        let taken = pointer(&queue, NEAR).in_turn(|| take(&table, NEAR));
        join(release);
        assert!(mine.is_served(), "waits although its permit is free");
        // Another thread may have held the lock.
        assert!(matches!(taken, None | Some(Ok(_))));
        mine.leave();
        has_no_waiters(queue.counts());
        assert_eq!(take(&table, NEAR).is_ok(), taken.is_none());
    });
}

#[test]
fn a_take_in_turn_during_the_end_of_a_wait_is_granted_or_overtakes_none() {
    explore(|| {
        let (queue, table) = queues();
        take(&table, A).unwrap();
        let mut mine = wait(&queue, A);
        let release = beside(release(&queue, &table));
        turn();
        let taken = pointer(&queue, A).in_turn(|| take(&table, A));
        join(release);
        assert!(mine.is_served(), "waits although its permit is free");
        assert!(!matches!(taken, Some(Ok(_))), "it has overtaken a request");
        mine.leave();
        assert!(take(&table, A).is_ok());
    });
}
