//! The slots of a concurrency limit that processes share: a process may die after any access.
#![cfg(portcullis_loom)]

use loom::sync::Arc;
use loom::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use portcullis_loom::{Witness, explore, join, spawn, turn};
use portcullis_shm::deaths::Deaths;
use portcullis_shm::granted_slots::GrantedSlots;
use portcullis_shm::slots::{self, Held, Limits, NEVER};

struct Shared {
    slots: Vec<AtomicU64>,
    gate: AtomicU32,
    guarded: Witness,
}

fn shared(limit: usize) -> Arc<Shared> {
    Arc::new(Shared {
        slots: (0..limit).map(|_| AtomicU64::new(0)).collect(),
        gate: AtomicU32::new(0),
        guarded: Witness::new(),
    })
}

fn never(_: Held) -> bool {
    false
}

fn permit_of(member: usize) -> Held {
    Held::new(member, 1, NEVER)
}

/// Takes up to `n` permits, as many as a process takes before it dies.
fn take_some(shared: &Shared, member: usize, n: usize) -> usize {
    (0..n)
        .filter(|_| slots::take(&shared.slots, 0, permit_of(member), never).is_some())
        .count()
}

#[test]
fn processes_share_the_slots_and_never_exceed_them() {
    explore(|| {
        let shared = shared(2);
        let a = spawn(&shared, |shared| take_some(shared, 1, 2) as u64);
        let b = spawn(&shared, |shared| take_some(shared, 2, 1) as u64);
        let c = take_some(&shared, 3, 1) as u64;
        assert_eq!(join(a) + join(b) + c, 2);
        assert_eq!(slots::count(&shared.slots, never), 2);
    });
}

#[test]
fn the_permits_of_a_dead_process_are_taken_over_once() {
    explore(|| {
        let shared = shared(2);
        // Member 1 has died after one of two takes; member 2 lives.
        assert_eq!(take_some(&shared, 1, 1) + take_some(&shared, 2, 1), 2);
        let dead = |held: Held| held.member() == 1;
        let a = spawn(&shared, move |shared| {
            u64::from(slots::take(&shared.slots, 0, permit_of(3), dead).is_some())
        });
        let b = spawn(&shared, move |shared| {
            slots::free(&shared.slots, dead) as u64
        });
        let c = u64::from(slots::take(&shared.slots, 1, permit_of(4), dead).is_some());
        let (a, _freed) = (join(a), join(b));
        assert!(a + c <= 1, "one permit was left");
        assert_eq!(slots::count(&shared.slots, never) as u64, 1 + a + c);
        // Whatever happened, it can be taken now, if no other took it.
        let left = slots::take(&shared.slots, 0, permit_of(5), dead).is_some();
        assert_eq!(u64::from(left) + a + c, 1);
    });
}

/// Permits of a member whose process has died, and whose number other processes may get.
struct Passed {
    slots: Vec<AtomicU64>,
    /// Whether a process has the number, as the kernel knows.
    has_owner: AtomicBool,
}

const NUMBER: usize = 1;

fn passed() -> Arc<Passed> {
    let passed = Passed {
        slots: (0..2).map(|_| AtomicU64::new(0)).collect(),
        has_owner: AtomicBool::new(false),
    };
    for _ in 0..2 {
        slots::take(&passed.slots, 0, Held::new(NUMBER, 1, NEVER), never).unwrap();
    }
    Arc::new(passed)
}

/// Frees the permits of dead members, as member 2.
fn recover(passed: &Passed) -> usize {
    let mut deaths = Deaths::new(2, |member| {
        member != NUMBER || passed.has_owner.load(SeqCst)
    });
    slots::free(&passed.slots, |held| deaths.is_dead(held.member()))
}

/// Joins under the number, as the process of a generation, and takes all permits.
fn replace(passed: &Passed, generation: u32) -> Held {
    turn();
    passed.has_owner.store(true, SeqCst);
    slots::free(&passed.slots, |held| held.member() == NUMBER);
    let mine = Held::new(NUMBER, generation, NEVER);
    let taken = (0..2).filter(|_| slots::take(&passed.slots, 0, mine, never).is_some());
    assert_eq!(taken.count(), 2, "all permits were free");
    mine
}

fn holds_both(passed: &Passed, permit: Held) -> bool {
    (0..2).all(|at| slots::holds(&passed.slots, at, permit))
}

#[test]
fn a_process_that_gets_the_number_of_a_dead_one_keeps_its_permits() {
    explore(|| {
        let passed = passed();
        let a = spawn(&passed, |passed| recover(passed) as u64);
        let mine = replace(&passed, 2);
        join(a);
        assert!(
            holds_both(&passed, mine),
            "they are not those of the dead process"
        );
    });
}

#[test]
fn a_number_that_passes_on_twice_loses_nothing_and_keeps_nothing() {
    explore(|| {
        let passed = passed();
        let a = spawn(&passed, |passed| recover(passed) as u64);
        replace(&passed, 2);
        // It dies with its permits, and another process comes back under its number.
        passed.has_owner.store(false, SeqCst);
        let mine = replace(&passed, 3);
        join(a);
        assert!(holds_both(&passed, mine));
        passed.has_owner.store(false, SeqCst);
        assert_eq!(recover(&passed), 2, "they return when it is dead");
    });
}

#[test]
fn a_permit_that_ends_while_it_is_given_back_is_taken_once() {
    explore(|| {
        let shared = shared(1);
        let late = Held::new(1, 1, 5);
        slots::take(&shared.slots, 0, late, never).unwrap();
        let a = spawn(&shared, move |shared| {
            let over = |held: Held| held.has_ended(5);
            u64::from(slots::take(&shared.slots, 0, Held::new(2, 1, 9), over).is_some())
        });
        turn();
        slots::give_back(&shared.slots, 0, late);
        let taken = join(a);
        let again = slots::take(&shared.slots, 0, permit_of(3), never);
        assert_eq!(taken + u64::from(again.is_some()), 1);
    });
}

#[test]
fn a_renewed_permit_is_not_taken_over() {
    explore(|| {
        let shared = shared(1);
        let permit = Held::new(1, 1, 5);
        slots::take(&shared.slots, 0, permit, never).unwrap();
        let a = spawn(&shared, move |shared| {
            let over = |held: Held| held.has_ended(5);
            u64::from(slots::take(&shared.slots, 0, Held::new(2, 1, 9), over).is_some())
        });
        let renewed = slots::renew(&shared.slots, 0, permit, permit.until(9));
        assert_eq!(
            join(a) + u64::from(renewed),
            1,
            "one of them has the permit"
        );
    });
}

#[test]
fn a_permit_of_a_limit_of_one_guards_data() {
    explore(|| {
        let shared = shared(1);
        let enter = |shared: &Shared, member| {
            let taken = slots::take(&shared.slots, 0, permit_of(member), never);
            if let Some(at) = taken {
                shared.guarded.write();
                slots::give_back(&shared.slots, at, permit_of(member));
            }
            0
        };
        let a = spawn(&shared, move |shared| enter(shared, 1));
        let b = spawn(&shared, move |shared| enter(shared, 2));
        enter(&shared, 3);
        join(a);
        join(b);
    });
}

#[test]
fn a_waiter_gets_the_permit_or_the_gate_is_opened() {
    explore(|| {
        let shared = shared(1);
        let at = slots::take(&shared.slots, 0, permit_of(1), never).unwrap();
        let waiter = spawn(&shared, |shared| {
            let seen = slots::watch(&shared.gate);
            match slots::take(&shared.slots, 0, permit_of(2), never) {
                Some(_) => 0,
                // It would sleep as long as the gate is as it was.
                None => u64::from(seen),
            }
        });
        let other = spawn(&shared, |shared| {
            slots::watch(&shared.gate);
            0
        });
        slots::give_back(&shared.slots, at, permit_of(1));
        let opened = slots::open(&shared.gate);
        join(other);
        let seen = join(waiter);
        if seen != 0 {
            assert!(opened && u64::from(shared.gate.load(Relaxed)) != seen);
        }
    });
}

struct Limited {
    slots: Vec<AtomicU64>,
    limits: Limits,
}

fn limited(limit: u64) -> Arc<Limited> {
    Arc::new(Limited {
        slots: (0..2).map(|_| AtomicU64::new(0)).collect(),
        limits: Limits::new(limit),
    })
}

/// Takes a permit, and gives it back if it is not granted.
fn acquire(limited: &Limited, member: usize) -> u64 {
    let limit = limited.limits.get();
    let mine = permit_of(member);
    let within = &limited.slots[..limit.permits() as usize];
    let Some(at) = slots::take(within, 0, mine, never) else {
        return 0;
    };
    if limited.limits.has_granted(&limited.slots, limit, never) {
        return 1;
    }
    slots::give_back(&limited.slots, at, mine);
    0
}

#[test]
fn no_more_permits_are_granted_than_a_limit_that_was_lowered() {
    explore(|| {
        let limited = limited(2);
        let a = spawn(&limited, |limited| acquire(limited, 1));
        let b = spawn(&limited, |limited| acquire(limited, 2));
        limited.limits.change(1, 0);
        let after = acquire(&limited, 3);
        let before = join(a) + join(b);
        assert!(before + after <= 2);
        assert!(after == 0 || before == 0, "one permit, after the change");
    });
}

#[test]
fn a_slot_beyond_a_limit_that_was_lowered_counts_until_it_is_given_back() {
    explore(|| {
        let limited = limited(2);
        let first = slots::take(&limited.slots, 0, permit_of(1), never).unwrap();
        slots::take(&limited.slots, 1, permit_of(2), never).unwrap();
        limited.limits.change(1, 0);
        let a = spawn(&limited, |limited| acquire(limited, 3));
        slots::give_back(&limited.slots, first, permit_of(1));
        let b = acquire(&limited, 4);
        assert_eq!(join(a) + b, 0, "one permit is held");
        slots::give_back(&limited.slots, 1, permit_of(2));
        assert_eq!(acquire(&limited, 5), 1);
        assert_eq!(limited.limits.get().reach(), 1);
    });
}

/// Takes a permit of this process and releases one, which may be that of another thread.
fn take_and_release(slots: &[AtomicU64], granted: &GrantedSlots) -> u64 {
    let mine = permit_of(1);
    let Some(at) = slots::take(slots, 0, mine, never) else {
        return 0;
    };
    granted.add(at);
    assert_eq!(granted.reserve(1), 1);
    let given = granted.pick(0);
    assert!(slots::give_back(slots, given, mine), "it was taken before");
    1
}

#[test]
fn each_release_by_number_gives_back_one_slot() {
    explore(|| {
        let slots = (0..2).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
        let shared = Arc::new((slots, GrantedSlots::new(2)));
        let other = spawn(&shared, |shared| take_and_release(&shared.0, &shared.1));
        assert_eq!(take_and_release(&shared.0, &shared.1) + join(other), 2);
        assert_eq!(shared.1.held(), 0);
        assert_eq!(shared.1.reserve(1), 0, "no more than was taken");
        assert_eq!(slots::count(&shared.0, never), 0);
    });
}

#[test]
fn releases_by_number_find_slots_in_other_words() {
    explore(|| {
        let granted = Arc::new(GrantedSlots::new(128));
        let add_and_pick = |granted: &GrantedSlots, at: usize| {
            granted.add(at);
            assert_eq!(granted.reserve(1), 1);
            granted.pick(0) as u64
        };
        let other = spawn(&granted, move |granted| add_and_pick(granted, 64));
        let mut picked = [add_and_pick(&granted, 0), join(other)];
        picked.sort_unstable();
        assert_eq!(picked, [0, 64]);
    });
}
