//! The lock of records that processes share: an owner may die with it.
#![cfg(portcullis_loom)]

use core::cell::Cell;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering::Relaxed};
use portcullis_loom::{Witness, explore, join, spawn};
use portcullis_shm::owned_lock::{self, Waiting};

struct Shared {
    lock: AtomicU32,
    guarded: Witness,
}

fn shared() -> Arc<Shared> {
    Arc::new(Shared {
        lock: AtomicU32::new(0),
        guarded: Witness::new(),
    })
}

/// Sleeps a few times, and then gives up. The owners from `dead` on are dead.
struct Looks {
    left: Cell<u32>,
    dead: u32,
}

impl Waiting for Looks {
    fn is_alive(&self, owner: u32) -> bool {
        owner < self.dead
    }

    fn sleep(&self, _: &AtomicU32, _: u32) -> bool {
        loom::thread::yield_now();
        self.left.set(self.left.get().saturating_sub(1));
        self.left.get() > 0
    }
}

const fn looks(dead: u32) -> Looks {
    Looks {
        left: Cell::new(3),
        dead,
    }
}

fn locked(shared: &Shared, me: u32, dead: u32) -> u64 {
    if !owned_lock::take(&shared.lock, me, &looks(dead)) {
        return 0;
    }
    shared.guarded.write();
    owned_lock::release(&shared.lock);
    1
}

#[test]
fn one_owner_at_a_time_has_the_lock() {
    explore(|| {
        let shared = shared();
        let a = spawn(&shared, |shared| locked(shared, 1, 9));
        let b = spawn(&shared, |shared| locked(shared, 2, 9));
        join(a);
        join(b);
        assert_eq!(locked(&shared, 3, 9), 1, "it is free in the end");
    });
}

#[test]
fn the_lock_of_a_dead_owner_is_taken_over_once() {
    explore(|| {
        let shared = shared();
        // The owner 9 has died.
        shared.lock.store(9, Relaxed);
        let a = spawn(&shared, |shared| locked(shared, 1, 9));
        let b = spawn(&shared, |shared| locked(shared, 2, 9));
        let (a, b) = (join(a), join(b));
        assert!(a + b >= 1, "one of them takes it over at once");
        assert_eq!(locked(&shared, 3, 9), 1);
    });
}

#[test]
fn the_next_process_with_the_number_of_a_dead_owner_frees_its_lock() {
    explore(|| {
        let shared = shared();
        shared.lock.store(2, Relaxed);
        let a = spawn(&shared, |shared| locked(shared, 1, 9));
        owned_lock::inherit(&shared.lock, 2);
        let b = locked(&shared, 2, 9);
        let a = join(a);
        assert!(a + b >= 1);
        assert_eq!(locked(&shared, 3, 9), 1);
    });
}

#[test]
fn a_waiter_leaves_word_for_the_release() {
    explore(|| {
        let shared = shared();
        assert!(owned_lock::take(&shared.lock, 1, &looks(9)));
        let a = spawn(&shared, |shared| {
            let mut waits = looks(9);
            waits.left = Cell::new(1);
            u64::from(owned_lock::take(&shared.lock, 2, &waits))
        });
        let woken = owned_lock::release(&shared.lock);
        // It gave up, and the release wakes; or it took the lock; or it came before that.
        assert!(join(a) == 1 || woken || shared.lock.load(Relaxed) == 0);
    });
}
