//! Leases as slots, which ids name, and which a process may leave at any instruction.
//!
//! ```text
//! state      generation: 32 | renewals: 20 | member: 10 | stage: 2
//! deadline   nanoseconds; the largest is never
//!
//! free --claim--> busy --deadline written--> held --release--> free
//!                  ^                          |
//!                  +--------- renew ----------+
//! ```
//!
//! A claim counts the generation up, and a renewal the renewals. So each state word of a slot is
//! another one, and an exchange that expects a word decides about the lease that its caller saw.
//!
//! - *claim*: makes a free slot busy, writes the deadline, and makes it held. Also a slot whose
//!   lease is over: its deadline has passed, or its member is dead.
//! - *renew*: the same for a slot that is held, with the same generation.
//! - *release*: makes a slot free that is held, or busy by a renewal.
//! - *adopt*: makes another member the holder.
//!
//! Invariant: only the call that made a slot busy writes its deadline. A process that sees a slot
//! held sees the deadline of this lease, or finds another word when it exchanges the state.
//!
//! There is no count: a process that dies leaves slots that have its member, and nothing else.

use crate::sync::AtomicU64;
use crate::sync::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// The stage of a slot.
const FREE: u64 = 0;
const BUSY: u64 = 1;
const HELD: u64 = 2;
const STAGE: u64 = 3;
const MEMBER_AT: u32 = 2;
const MEMBER: u64 = (1 << 10) - 1;
const RENEWALS_AT: u32 = 12;
const RENEWALS: u64 = (1 << 20) - 1;
const GENERATION_AT: u32 = 32;
/// The deadline of a lease that has none.
pub const NEVER: u64 = u64::MAX;

/// A slot, as it lies in a file.
#[derive(Debug)]
#[repr(C)]
pub struct Slot {
    state: AtomicU64,
    deadline: AtomicU64,
}

/// The state of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State(u64);

impl State {
    const fn new(generation: u64, renewals: u64, member: u64, stage: u64) -> Self {
        let renewals = (renewals & RENEWALS) << RENEWALS_AT;
        Self(generation << GENERATION_AT | renewals | (member & MEMBER) << MEMBER_AT | stage)
    }

    const fn generation(self) -> u64 {
        self.0 >> GENERATION_AT
    }

    const fn renewals(self) -> u64 {
        self.0 >> RENEWALS_AT & RENEWALS
    }

    /// The member that has the lease.
    pub const fn member(self) -> usize {
        (self.0 >> MEMBER_AT & MEMBER) as usize
    }

    const fn stage(self) -> u64 {
        self.0 & STAGE
    }

    /// Whether no member has the slot.
    pub const fn is_free(self) -> bool {
        self.stage() == FREE
    }

    const fn with(self, stage: u64) -> Self {
        Self(self.0 & !STAGE | stage)
    }
}

impl Slot {
    /// A slot that was never used.
    #[cfg(portcullis_loom)]
    pub fn new() -> Self {
        Self {
            state: AtomicU64::new(0),
            deadline: AtomicU64::new(0),
        }
    }

    /// Returns the state.
    pub fn state(&self) -> State {
        // Acquire: pairs with `publish`, so that the deadline is that of this lease.
        State(self.state.load(Acquire))
    }

    /// Whether the deadline of the lease that `state` is of has passed.
    pub fn is_past(&self, state: State, now: u64) -> bool {
        let deadline = self.deadline.load(Relaxed);
        state.stage() == HELD && deadline != NEVER && deadline <= now
    }

    fn exchange(&self, from: State, to: State) -> bool {
        // Acquire: pairs with the release of the former holder. Release: passes it on.
        let exchanged = self.state.compare_exchange(from.0, to.0, AcqRel, Relaxed);
        exchanged.is_ok()
    }

    /// Writes the deadline of a slot that this call made busy, and makes it held.
    fn publish(&self, busy: State, deadline: u64) -> bool {
        self.deadline.store(deadline, Relaxed);
        // Release: after the deadline. It fails if the lease was released in the meantime.
        let held = busy.with(HELD).0;
        let published = self.state.compare_exchange(busy.0, held, Release, Relaxed);
        published.is_ok()
    }

    /// Claims the slot, if its state is `seen`: free, or of a lease that is over. Returns the
    /// generation of the lease.
    pub fn claim(&self, seen: State, member: usize, deadline: u64) -> Option<u32> {
        let generation = (seen.generation() + 1) & u64::from(u32::MAX);
        let busy = State::new(generation, 0, member as u64, BUSY);
        let is_claimed = self.exchange(seen, busy) && self.publish(busy, deadline);
        is_claimed.then_some(generation as u32)
    }

    /// Lets the lease of a generation last until another deadline, if it has not ended.
    pub fn renew(&self, generation: u32, now: u64, deadline: u64) -> bool {
        let seen = self.state();
        let is_held = self.holds(seen, generation, now) && seen.stage() == HELD;
        let (renewals, member) = (seen.renewals() + 1, seen.member() as u64);
        let busy = State::new(generation.into(), renewals, member, BUSY);
        is_held && self.exchange(seen, busy) && self.publish(busy, deadline)
    }

    /// Makes `member` the holder of the lease of a generation, if it has not ended.
    pub fn adopt(&self, generation: u32, now: u64, member: usize) -> bool {
        let seen = self.state();
        let is_held = self.holds(seen, generation, now) && seen.stage() == HELD;
        let renewals = seen.renewals() + 1;
        let adopted = State::new(generation.into(), renewals, member as u64, HELD);
        is_held && self.exchange(seen, adopted)
    }

    /// Releases the lease of a generation. Returns whether it had not ended in another way.
    pub fn release(&self, generation: u32) -> bool {
        // Another call may renew or adopt it in between.
        for _ in 0..16 {
            let seen = self.state();
            if seen.is_free() || seen.generation() != u64::from(generation) {
                return false;
            }
            if self.exchange(seen, seen.with(FREE)) {
                return true;
            }
        }
        false
    }

    /// Frees the slot, if its state is `seen`, of a lease that is over. Returns whether it did.
    pub fn free(&self, seen: State) -> bool {
        self.exchange(seen, seen.with(FREE))
    }

    /// Whether `state` is that of the lease of a generation, which has not ended.
    pub fn holds(&self, state: State, generation: u32, now: u64) -> bool {
        let is_it = !state.is_free() && state.generation() == u64::from(generation);
        is_it && !self.is_past(state, now)
    }
}
