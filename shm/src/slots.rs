//! Permits as slots, which a process may leave at any instruction.
//!
//! ```text
//! bits 63        22   21        10   9       0
//! +----------------+---------------+----------+
//! |    deadline    |   generation  |  member  |     one word per permit; all 0: free
//! +----------------+---------------+----------+
//! gate: number of wakes | waited                   one word for all
//!
//! bits 63      40   39       20   19        0
//! +--------------+-------------+------------+
//! |    number    |    reach    |   limit    |      one word for all, and two numbers of
//! +--------------+-------------+------------+      milliseconds, of which `number` selects one
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
//! slot of its own, before `reach`. So no more permits are held than there are slots before it.
//!
//! *The limit changes* by one exchange of its word, under a lock: `number` grows by 1, and `reach`
//! is the largest of both limits and the reach before. The time of permits is written before that,
//! to the place that the next number selects. So a process that dies in the middle of a change has
//! changed nothing. A process takes slots before the limit that it has read, and then looks at the
//! word again. If it has changed, it gives the slots back, and starts again. So a permit is granted
//! under the limit that is in force.
//!
//! After a limit was lowered, slots beyond it may be held (`reach` is more than `limit`). Until
//! they are given back, a process that has taken slots counts all that are held before `reach`, its
//! own among them, and gives its own back if they are more than the limit. Of several requests, the
//! one that takes its slot last sees those of all others, so no more than `limit` are granted. A
//! process that finds no slot held beyond the limit lowers `reach` to it.
//!
//! These accesses (taking a slot, and then reading the limit and the slots) are sequentially
//! consistent: each process writes before it reads, as in a claim of two processes for one key.
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

/// The limit, and how long a permit lasts, as they lie in a file: atomic words and nothing else.
#[derive(Debug)]
#[repr(C)]
pub struct Limits {
    word: AtomicU64,
    /// In milliseconds; 0: a permit has no deadline.
    millis: [AtomicU64; 2],
}

/// What the word of [`Limits`] says at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit(u64);

const LIMIT_BITS: u32 = 20;
const LIMIT: u64 = (1 << LIMIT_BITS) - 1;
const NUMBER_AT: u32 = 2 * LIMIT_BITS;

impl Limit {
    const fn new(limit: u64, reach: u64, number: u64) -> Self {
        Self(number << NUMBER_AT | (reach & LIMIT) << LIMIT_BITS | limit & LIMIT)
    }

    /// The limit.
    pub const fn permits(self) -> u64 {
        self.0 & LIMIT
    }

    /// The index that is more than those of all slots that may be held.
    pub const fn reach(self) -> usize {
        let (limit, reach) = (self.permits(), self.0 >> LIMIT_BITS & LIMIT);
        (if reach > limit { reach } else { limit }) as usize
    }

    const fn number(self) -> u64 {
        self.0 >> NUMBER_AT
    }
}

impl Limits {
    /// The words of a new file.
    pub const fn first(limit: u64, millis: u64) -> [u64; 3] {
        [Limit::new(limit, limit, 0).0, millis, 0]
    }

    /// As [`first`](Self::first).
    #[cfg(any(portcullis_loom, portcullis_explore))]
    pub fn new(limit: u64) -> Self {
        let [word, ..] = Self::first(limit, 0);
        Self {
            word: AtomicU64::new(word),
            millis: [AtomicU64::new(0), AtomicU64::new(0)],
        }
    }

    /// Returns the limit in force. Call it before taking slots.
    pub fn get(&self) -> Limit {
        Limit(self.word.load(SeqCst))
    }

    /// Returns how long a permit lasts that is taken under a limit. It counts only if the limit is
    /// still in force afterward.
    pub fn millis(&self, limit: Limit) -> u64 {
        // Acquire: pairs with the store in `change`. If that was made for a later limit of the same
        // place, the limit in between is seen to be in force.
        self.millis[(limit.number() & 1) as usize].load(Acquire)
    }

    /// Changes the limit. The caller has the lock.
    pub fn change(&self, limit: u64, millis: u64) {
        let mut seen = self.get();
        loop {
            let number = seen.number().wrapping_add(1);
            // Before the number that selects it. Release: pairs with the load in `millis`.
            self.millis[(number & 1) as usize].store(millis, Release);
            let reach = limit.max(seen.reach() as u64);
            let next = Limit::new(limit, reach, number);
            match self.word.compare_exchange(seen.0, next.0, SeqCst, SeqCst) {
                Ok(_) => return,
                // Another process has lowered the reach.
                Err(newer) => seen = Limit(newer),
            }
        }
    }

    /// Whether the slots that the caller has taken under `limit` are granted to it: the limit is
    /// still in force, and not exceeded. Otherwise the caller gives them back.
    pub fn has_granted(
        &self,
        slots: &[AtomicU64],
        limit: Limit,
        is_over: impl Fn(Held) -> bool,
    ) -> bool {
        // Loom does not order sequentially consistent accesses by themselves.
        #[cfg(portcullis_loom)]
        fence(SeqCst);
        if self.word.load(SeqCst) != limit.0 {
            return false;
        }
        let permits = limit.permits() as usize;
        if limit.reach() == permits {
            return true;
        }
        let reached = slots.get(..limit.reach()).unwrap_or(slots);
        // A permit that has ended must not be renewed once it is not counted.
        free(reached, is_over);
        let held = |slot: &&AtomicU64| slot.load(SeqCst) != 0;
        let (within, beyond) = reached.split_at_checked(permits).unwrap_or((reached, &[]));
        let (within, beyond) = (
            within.iter().filter(held).count(),
            beyond.iter().filter(held).count(),
        );
        if beyond == 0 {
            // From here on, no slot beyond the limit is granted: a request that takes one there was
            // admitted under a limit that is no longer in force.
            let next = Limit::new(limit.permits(), limit.permits(), limit.number());
            let _changed_meanwhile = self.word.compare_exchange(limit.0, next.0, SeqCst, Relaxed);
        }
        within + beyond <= permits
    }
}

/// Returns the limit and the milliseconds in force in the words of a file.
pub fn settings_in(words: &[u64]) -> Option<(u64, u64)> {
    let &[word, even, odd, ..] = words else {
        return None;
    };
    let limit = Limit(word);
    Some((limit.permits(), [even, odd][(limit.number() & 1) as usize]))
}

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
            // Sequentially consistent: see `Limits::has_granted`.
            match slot.compare_exchange(word, mine.0, SeqCst, Relaxed) {
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
