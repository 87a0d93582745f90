//! Leases in a file, which ids name: a process may die after any access.
#![cfg(portcullis_loom)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering::SeqCst};
use portcullis_loom::{Witness, explore, join, spawn, turn};
use portcullis_shm::deaths::Deaths;
use portcullis_shm::pool_slots::{NEVER, Slot};

struct Shared {
    slot: Slot,
    guarded: Witness,
    /// Whether a process has the number 1, as the kernel knows.
    has_owner: AtomicBool,
}

fn shared() -> Arc<Shared> {
    Arc::new(Shared {
        slot: Slot::new(),
        guarded: Witness::new(),
        has_owner: AtomicBool::new(true),
    })
}

/// Claims the slot at `now`, if it is free or past its end.
fn claim(shared: &Shared, member: usize, now: u64, end: u64) -> Option<u32> {
    turn();
    let state = shared.slot.state();
    shared.slot.claim(state, member, now, end)
}

/// Frees the slot, if its member is dead, as member 3.
fn recover(shared: &Shared) -> bool {
    turn();
    let mut deaths = Deaths::new(3, |member| member != 1 || shared.has_owner.load(SeqCst));
    let state = shared.slot.state();
    !state.is_free() && deaths.is_dead(state.member()) && shared.slot.free(state)
}

/// Joins under the number of a dead process: what that had is freed.
fn replace(shared: &Shared) {
    turn();
    shared.has_owner.store(true, SeqCst);
    let state = shared.slot.state();
    if !state.is_free() && state.member() == 1 {
        shared.slot.free(state);
    }
}

#[test]
fn a_lease_guards_data() {
    explore(|| {
        let shared = shared();
        let use_it = |shared: &Shared, member| {
            let Some(generation) = claim(shared, member, 0, NEVER) else {
                return 0;
            };
            shared.guarded.write();
            assert!(shared.slot.release(generation));
            1
        };
        let a = spawn(&shared, move |shared| use_it(shared, 1));
        let b = use_it(&shared, 2);
        assert!(join(a) + b >= 1);
    });
}

#[test]
fn a_lease_that_is_renewed_is_not_taken_over() {
    explore(|| {
        let shared = shared();
        let generation = claim(&shared, 1, 0, 5).unwrap();
        // One process renews at 4 for as long as it takes, another one claims at 6.
        let a = spawn(&shared, move |shared| {
            turn();
            shared.slot.renew(generation, 4, 9)
        });
        let claimed = claim(&shared, 2, 6, NEVER);
        let is_renewed = join(a);
        assert!(!(is_renewed && claimed.is_some()), "one of them has it");
        assert_eq!(shared.slot.holds(generation, 6), is_renewed);
    });
}

#[test]
fn a_renewal_that_comes_too_late_changes_nothing_of_the_next_lease() {
    explore(|| {
        let shared = shared();
        let generation = claim(&shared, 1, 0, NEVER).unwrap();
        let renewals = [9, NEVER].map(|end| {
            spawn(&shared, move |shared| {
                turn();
                shared.slot.renew(generation, 4, end)
            })
        });
        turn();
        assert!(shared.slot.release(generation));
        let next = claim(&shared, 2, 5, 60).unwrap();
        let _renewed = renewals.map(join);
        assert!(
            shared.slot.holds(next, 59),
            "it lasts as long as it was claimed for"
        );
        assert!(!shared.slot.holds(next, 60), "and no longer");
        assert!(shared.slot.renew(next, 59, 70) && shared.slot.holds(next, 69));
    });
}

#[test]
fn two_renewals_of_a_lease_are_both_made() {
    explore(|| {
        let shared = shared();
        let generation = claim(&shared, 1, 0, 5).unwrap();
        let a = spawn(&shared, move |shared| {
            turn();
            shared.slot.renew(generation, 4, 8)
        });
        turn();
        assert!(shared.slot.renew(generation, 4, 9));
        assert!(join(a));
        assert!(shared.slot.holds(generation, 7) && !shared.slot.holds(generation, 9));
    });
}

#[test]
fn a_lease_that_is_past_its_end_is_taken_over_once() {
    explore(|| {
        let shared = shared();
        let generation = claim(&shared, 1, 0, 5).unwrap();
        let a = spawn(&shared, |shared| claim(shared, 2, 6, 20).is_some());
        let b = spawn(&shared, move |shared| {
            turn();
            shared.slot.free_past(shared.slot.state(), 6)
        });
        let c = claim(&shared, 3, 6, 20);
        let (a, _freed) = (join(a), join(b));
        assert!(!(a && c.is_some()), "one of them has it");
        assert!(!shared.slot.holds(generation, 4));
        let last = claim(&shared, 4, 6, 20).is_some();
        assert!(a || c.is_some() || last, "it is not lost");
    });
}

#[test]
fn a_process_that_gets_the_number_of_a_dead_one_keeps_its_lease() {
    explore(|| {
        let shared = shared();
        claim(&shared, 1, 0, NEVER).unwrap();
        shared.has_owner.store(false, SeqCst);
        let a = spawn(&shared, recover);
        replace(&shared);
        let mine = claim(&shared, 1, 0, NEVER).unwrap();
        join(a);
        assert!(shared.slot.holds(mine, 0));
    });
}

#[test]
fn a_lease_that_returns_to_a_number_is_not_that_of_the_dead_process() {
    explore(|| {
        let shared = shared();
        let generation = claim(&shared, 1, 0, NEVER).unwrap();
        shared.has_owner.store(false, SeqCst);
        let a = spawn(&shared, recover);
        // A living process adopts the lease, and the next one of the number adopts it from that.
        turn();
        let is_adopted = shared.slot.adopt(generation, 0, 2);
        replace(&shared);
        let returns = is_adopted && shared.slot.adopt(generation, 0, 1);
        let is_freed = join(a);
        assert!(
            is_adopted != is_freed,
            "the adoption or the recovery comes first"
        );
        assert_eq!(shared.slot.holds(generation, 0), returns);
    });
}

#[test]
fn a_lease_is_released_once_also_while_it_is_renewed() {
    explore(|| {
        let shared = shared();
        let generation = claim(&shared, 1, 0, NEVER).unwrap();
        let a = spawn(&shared, move |shared| {
            turn();
            shared.slot.renew(generation, 4, 9)
        });
        let b = spawn(&shared, move |shared| {
            turn();
            shared.slot.release(generation)
        });
        turn();
        let c = shared.slot.release(generation);
        join(a);
        assert!(join(b) != c, "one release of the two");
        assert!(shared.slot.state().is_free(), "no renewal brings it back");
    });
}

#[test]
fn the_lease_of_a_dead_process_is_freed_once() {
    explore(|| {
        let shared = shared();
        claim(&shared, 1, 0, NEVER).unwrap();
        shared.has_owner.store(false, SeqCst);
        let a = spawn(&shared, recover);
        let b = spawn(&shared, |shared| claim(shared, 2, 0, NEVER).is_some());
        let c = recover(&shared);
        assert!(join(a) != c, "once");
        let is_claimed = join(b);
        let state = shared.slot.state();
        assert_eq!(is_claimed, !state.is_free() && state.member() == 2);
    });
}
