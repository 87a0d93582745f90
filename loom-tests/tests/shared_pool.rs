//! Leases in a file, which ids name: a process may die after any access.
#![cfg(portcullis_loom)]

use loom::sync::Arc;
use portcullis_loom::{Witness, explore, join, spawn, turn};
use portcullis_shm::pool_slots::{NEVER, Slot};

struct Shared {
    slot: Slot,
    guarded: Witness,
}

fn shared() -> Arc<Shared> {
    Arc::new(Shared {
        slot: Slot::new(),
        guarded: Witness::new(),
    })
}

/// Claims the slot at `now`, if it is free or past its deadline.
fn claim(shared: &Shared, member: usize, now: u64, deadline: u64) -> Option<u32> {
    turn();
    let state = shared.slot.state();
    let is_over = state.is_free() || shared.slot.is_past(state, now);
    is_over.then(|| shared.slot.claim(state, member, deadline))?
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
        let state = shared.slot.state();
        assert_eq!(shared.slot.holds(state, generation, 6), is_renewed);
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
        let free = |shared: &Shared| {
            turn();
            let state = shared.slot.state();
            !state.is_free() && state.member() == 1 && shared.slot.free(state)
        };
        let a = spawn(&shared, move |shared| free(shared));
        let b = spawn(&shared, |shared| claim(shared, 2, 0, NEVER).is_some());
        let c = free(&shared);
        assert!(join(a) != c, "once");
        let is_claimed = join(b);
        let state = shared.slot.state();
        assert_eq!(is_claimed, !state.is_free() && state.member() == 2);
    });
}
