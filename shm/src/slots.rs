//! Permits as slots, which a process may leave at any instruction.
//!
//! ```text
//! bits 63        22   21        10   9       0
//! +----------------+---------------+----------+
//! |    deadline    |   generation  |  member  |     one word per permit; all 0: free
//! +----------------+---------------+----------+
//! gate: number of wakes | waited                   one word for all
//! ```
//!
//! The slots are the only state. A slot that is not free holds one permit for a member until the
//! deadline, in milliseconds; the largest deadline is never. There is no count, so nothing can
//! disagree with the slots: a process that dies leaves slots that have its member, and nothing
//! else.
//!
//! Transitions, each one compare-exchange of a whole word:
//!
//! - *take*: free -> held by the taker. Also from a slot whose deadline has passed, or whose member
//!   is dead.
//! - *give back*: the taker's own word -> free. It fails if the permit was taken over.
//! - *renew*: the taker's own word -> the same with a later deadline.
//!
//! A request for several permits takes them one after another, and gives them back if there are too
//! few.
//!
//! Invariant: each permit that is held and neither past its deadline nor of a dead member has a
//! slot of its own. So no more permits are held than there are slots.
//!
//! *A holder gives back only words that it has written.* A member's words of different leases may
//! be equal only if their deadlines are. So when a lease has been taken over after its deadline, a
//! later lease with an equal word is past its deadline too. The generation counts the processes
//! that became a member: a process that found a member dead, and is about to take its slot over,
//! does not mistake a slot of the next process of that number for it, unless 4,096 processes join
//! meanwhile.
//!
//! A *waiter* sets `waited`, and then looks for slots. A process that has given back looks at
//! `waited` after that. Sequentially consistent fences lie in between, so one of them sees the
//! other. The process that finds `waited` set changes the gate, and wakes the waiters. A waiter
//! sleeps only while the gate is as it saw it, and never for long. So a process that dies between
//! giving back and waking delays the others, and a waiter that dies costs one wake.

use crate::sync::Ordering::{Release, SeqCst};
use crate::sync::{
    AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, fence,
};

/// The most members: processes that have the limit open.
pub const MEMBERS: usize = 1 << MEMBER_BITS;
const MEMBER_BITS: u32 = 10;
const GENERATION_BITS: u32 = 12;
const DEADLINE_AT: u32 = MEMBER_BITS + GENERATION_BITS;
/// The deadline of a permit that has none.
pub const NEVER: u64 = u64::MAX >> DEADLINE_AT;
const WAITED: u32 = 1;

/// The word of a slot that is not free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held(u64);

impl Held {
    /// A permit of a member until `deadline`, 1 to [`NEVER`].
    pub fn new(member: usize, generation: u32, deadline: u64) -> Self {
        let generation = u64::from(generation) & ((1 << GENERATION_BITS) - 1);
        let member = member as u64 & (MEMBERS as u64 - 1);
        Self(deadline.clamp(1, NEVER) << DEADLINE_AT | generation << MEMBER_BITS | member)
    }

    /// The member that has the permit.
    pub fn member(self) -> usize {
        self.0 as usize & (MEMBERS - 1)
    }

    /// Whether the permit has ended at `now`, in milliseconds.
    pub fn has_ended(self, now: u64) -> bool {
        let deadline = self.0 >> DEADLINE_AT;
        deadline != NEVER && deadline <= now
    }

    /// The same permit until another deadline.
    #[must_use]
    pub fn until(self, deadline: u64) -> Self {
        let low = self.0 & ((1 << DEADLINE_AT) - 1);
        Self(deadline.clamp(1, NEVER) << DEADLINE_AT | low)
    }
}

/// Takes a slot that is free or that `is_over`, looking from the index `from` on. Returns its
/// index.
///
/// Tries each slot twice at most, so it ends whatever other processes write.
pub fn take(
    slots: &[AtomicU64],
    from: usize,
    mine: Held,
    is_over: impl Fn(Held) -> bool,
) -> Option<usize> {
    let (before, after) = slots.split_at_checked(from).unwrap_or((slots, &[]));
    let indices = (from..).zip(after).chain((0..).zip(before));
    for (at, slot) in indices {
        let mut word = slot.load(Relaxed);
        for _ in 0..2 {
            if word != 0 && !is_over(Held(word)) {
                break;
            }
            // Acquire: pairs with `give_back`, so that the next holder sees what the former wrote.
            match slot.compare_exchange(word, mine.0, AcqRel, Relaxed) {
                Ok(_) => return Some(at),
                Err(newer) => word = newer,
            }
        }
    }
    None
}

/// Gives a slot back, if it still holds the permit. Returns whether it did.
pub fn give_back(slots: &[AtomicU64], at: usize, mine: Held) -> bool {
    slots
        .get(at)
        .is_some_and(|slot| slot.compare_exchange(mine.0, 0, Release, Relaxed).is_ok())
}

/// Replaces the word of a permit, if the slot still holds it. Returns whether it did.
pub fn renew(slots: &[AtomicU64], at: usize, mine: Held, renewed: Held) -> bool {
    slots.get(at).is_some_and(|slot| {
        slot.compare_exchange(mine.0, renewed.0, Relaxed, Relaxed)
            .is_ok()
    })
}

/// Whether the slot holds the permit.
pub fn holds(slots: &[AtomicU64], at: usize, mine: Held) -> bool {
    slots
        .get(at)
        .is_some_and(|slot| slot.load(Relaxed) == mine.0)
}

/// Frees all slots that `is_over`, and returns their number.
pub fn free(slots: &[AtomicU64], mut is_over: impl FnMut(Held) -> bool) -> usize {
    let freed = slots.iter().filter(|slot| {
        let word = slot.load(Acquire);
        word != 0 && is_over(Held(word)) && slot.compare_exchange(word, 0, AcqRel, Relaxed).is_ok()
    });
    freed.count()
}

/// The number of slots that hold a permit which is not over.
pub fn count(slots: &[AtomicU64], is_over: impl Fn(Held) -> bool) -> usize {
    let held = slots.iter().filter(|slot| {
        let word = slot.load(Relaxed);
        word != 0 && !is_over(Held(word))
    });
    held.count()
}

/// Says that a process waits. Returns the gate, as long as no process opens it. Call it before
/// looking for slots.
pub fn watch(gate: &AtomicU32) -> u32 {
    let seen = gate.fetch_or(WAITED, Relaxed) | WAITED;
    // Pairs with the fence in `open`.
    fence(SeqCst);
    seen
}

/// Opens the gate if a process waits at it. Returns whether it did: then wake the waiters. Call it
/// after giving back.
pub fn open(gate: &AtomicU32) -> bool {
    // Pairs with the fence in `watch`: either this call sees `waited`, or the waiter sees the slot.
    fence(SeqCst);
    let seen = gate.load(Relaxed);
    // Adding 1 clears `waited`, and counts the wake.
    seen & WAITED != 0
        && gate
            .compare_exchange(seen, seen.wrapping_add(1), Relaxed, Relaxed)
            .is_ok()
}
