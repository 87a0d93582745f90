//! The lock of records that processes share: an owner may die with it.
#![cfg(portcullis_loom)]

use core::cell::Cell;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering::AcqRel, Ordering::Relaxed};
use portcullis_loom::{Witness, explore, join, spawn};
use portcullis_shm::owned_lock::{self, Owner, Waiting};

struct Shared {
    lock: AtomicU32,
    guarded: Witness,
    /// The processes that are alive, a bit for each number: what the kernel knows.
    alive: AtomicU32,
}

/// The lock, of which the processes with some numbers are alive.
fn shared(alive: impl IntoIterator<Item = usize>) -> Arc<Shared> {
    let alive = alive
        .into_iter()
        .fold(0, |alive, number| alive | 1 << number);
    Arc::new(Shared {
        lock: AtomicU32::new(0),
        guarded: Witness::new(),
        alive: AtomicU32::new(alive),
    })
}

/// The first process with a number.
const fn owner(number: usize) -> Owner {
    Owner::new(number, 0)
}

/// A process with a number dies while it has the lock.
fn dies(shared: &Shared, number: usize) {
    assert!(owned_lock::take(
        &shared.lock,
        owner(number),
        &looks(shared)
    ));
    shared.alive.fetch_and(!(1 << number), AcqRel);
}

/// The next process gets a number that no process has which is alive.
fn joins(shared: &Shared, number: usize, generation: u32) -> Owner {
    let before = shared.alive.fetch_or(1 << number, AcqRel);
    assert_eq!(before & 1 << number, 0);
    let me = Owner::new(number, generation);
    owned_lock::inherit(&shared.lock, me);
    me
}

/// Sleeps a few times, and then gives up.
struct Looks<'a> {
    left: Cell<u32>,
    alive: &'a AtomicU32,
}

impl Waiting for Looks<'_> {
    fn is_alive(&self, owner: Owner) -> bool {
        // A read-modify-write: the kernel tells what is, not what was.
        self.alive.fetch_add(0, AcqRel) & 1 << owner.number() != 0
    }

    fn sleep(&self, _: &AtomicU32, _: u32) -> bool {
        loom::thread::yield_now();
        self.left.set(self.left.get().saturating_sub(1));
        self.left.get() > 0
    }
}

const fn looks(shared: &Shared) -> Looks<'_> {
    Looks {
        left: Cell::new(3),
        alive: &shared.alive,
    }
}

fn locked(shared: &Shared, me: Owner) -> u64 {
    if !owned_lock::take(&shared.lock, me, &looks(shared)) {
        return 0;
    }
    shared.guarded.write();
    owned_lock::release(&shared.lock, me);
    1
}

#[test]
fn one_owner_at_a_time_has_the_lock() {
    explore(|| {
        let shared = shared([1, 2, 3]);
        let a = spawn(&shared, |shared| locked(shared, owner(1)));
        let b = spawn(&shared, |shared| locked(shared, owner(2)));
        join(a);
        join(b);
        assert_eq!(locked(&shared, owner(3)), 1, "it is free in the end");
    });
}

#[test]
fn the_lock_of_a_dead_owner_is_taken_over_once() {
    explore(|| {
        let shared = shared([1, 2, 3, 9]);
        dies(&shared, 9);
        let a = spawn(&shared, |shared| locked(shared, owner(1)));
        let b = spawn(&shared, |shared| locked(shared, owner(2)));
        let (a, b) = (join(a), join(b));
        assert!(a + b >= 1, "one of them takes it over at once");
        assert_eq!(locked(&shared, owner(3)), 1);
    });
}

#[test]
fn the_next_process_with_the_number_of_a_dead_owner_frees_its_lock() {
    explore(|| {
        let shared = shared([1, 2, 3]);
        dies(&shared, 2);
        let a = spawn(&shared, |shared| locked(shared, owner(1)));
        let me = joins(&shared, 2, 1);
        let b = locked(&shared, me);
        let a = join(a);
        assert!(a + b >= 1);
        assert_eq!(locked(&shared, owner(3)), 1);
    });
}

/// The answer that a process got about a dead owner is old when the next process of that number,
/// or the one after it, has the lock.
#[test]
fn an_answer_about_an_owner_holds_for_no_later_owner_of_its_number() {
    explore(|| {
        let shared = shared([1, 2, 3]);
        dies(&shared, 2);
        let a = spawn(&shared, |shared| locked(shared, owner(1)));
        let b = spawn(&shared, |shared| {
            let me = joins(shared, 2, 1);
            // It dies with the lock, or without.
            if owned_lock::take(&shared.lock, me, &looks(shared)) {
                shared.guarded.write();
            }
            shared.alive.fetch_and(!(1 << 2), AcqRel);
            let me = joins(shared, 2, 2);
            locked(shared, me)
        });
        join(a);
        join(b);
        assert_eq!(locked(&shared, owner(3)), 1, "it is free in the end");
    });
}

#[test]
fn a_waiter_leaves_word_for_the_release() {
    explore(|| {
        let shared = shared([1, 2]);
        assert!(owned_lock::take(&shared.lock, owner(1), &looks(&shared)));
        let a = spawn(&shared, |shared| {
            let mut waits = looks(shared);
            waits.left = Cell::new(1);
            u64::from(owned_lock::take(&shared.lock, owner(2), &waits))
        });
        let woken = owned_lock::release(&shared.lock, owner(1));
        // It gave up, and the release wakes; or it took the lock; or it came before that.
        assert!(join(a) == 1 || woken || shared.lock.load(Relaxed) == 0);
    });
}

#[test]
fn a_release_by_a_process_that_does_not_own_the_lock_changes_nothing() {
    explore(|| {
        let shared = shared([1, 2]);
        assert!(owned_lock::take(&shared.lock, owner(1), &looks(&shared)));
        let a = spawn(&shared, |shared| {
            u64::from(owned_lock::release(&shared.lock, owner(2)))
        });
        assert_eq!(locked(&shared, owner(2)), 0);
        assert_eq!(join(a), 0);
        assert!(owned_lock::release(&shared.lock, owner(1)));
    });
}
