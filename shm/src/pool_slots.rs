//! Leases as slots, which ids name, and which a process may leave at any instruction.
//!
//! ```text
//! state      generation: 32 | adoptions: 20 | member: 10 | stage: 2
//! end        milliseconds: 40 | generation: 24                  0: ended; the largest: never
//!
//! free --claim--> busy --end written--> held --release--> free
//! ```
//!
//! A claim counts the generation up, and an adoption the adoptions. So each state word of a slot is
//! another one, and an exchange that expects a word decides about the lease that its caller saw.
//! The end has the low bits of the generation too, so that no call changes the end of another
//! lease.
//!
//! - *claim*: makes a free slot busy, writes the end, and makes it held. A lease that is past its
//!   end is ended before: its end becomes 0.
//! - *renew*: exchanges the end of a lease that is held and not past it.
//! - *release*: makes a slot free that is held.
//! - *adopt*: makes another member the holder.
//! - *free*: makes a slot free whose member is dead, or whose lease was ended.
//!
//! Each of them but the claim is one exchange, and takes over nothing that it could leave. A
//! process that dies in a claim leaves a busy slot that has its own member.
//!
//! Invariants:
//!
//! - A slot is busy only for the call that made it so, until that call or its member ends. So only
//!   that call stores the end. All others exchange an end that has the generation of a lease which
//!   they saw held, and fail once the slot has another lease.
//! - A lease is taken over after its end was exchanged for 0, and is renewed by an exchange of the
//!   same word. So of a renewal and a claim, one fails.
//!
//! A generation comes back in the state after 2^32 claims of one place, and in the end after 2^24.
//! So a renewal of a lease without an end that is stopped between two instructions, while its place
//! is claimed 2^24 times, may change the end of another lease without one.
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
const ADOPTIONS_AT: u32 = 12;
const ADOPTIONS: u64 = (1 << 20) - 1;
const GENERATION_AT: u32 = 32;

const MILLIS_AT: u32 = 24;
const TAG: u64 = (1 << MILLIS_AT) - 1;
/// The end of a lease that has none, in milliseconds.
pub const NEVER: u64 = u64::MAX >> MILLIS_AT;
/// The end of a lease that has ended.
const ENDED: u64 = 0;
/// How often an exchange that other calls overtake is repeated.
const ATTEMPTS: usize = if cfg!(any(portcullis_loom, portcullis_explore)) {
    3
} else {
    16
};

/// A slot, as it lies in a file.
#[derive(Debug)]
#[repr(C)]
pub struct Slot {
    state: AtomicU64,
    end: AtomicU64,
}

/// The state of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State(u64);

impl State {
    const fn new(generation: u64, adoptions: u64, member: u64, stage: u64) -> Self {
        let adoptions = (adoptions & ADOPTIONS) << ADOPTIONS_AT;
        Self(generation << GENERATION_AT | adoptions | (member & MEMBER) << MEMBER_AT | stage)
    }

    const fn generation(self) -> u64 {
        self.0 >> GENERATION_AT
    }

    const fn adoptions(self) -> u64 {
        self.0 >> ADOPTIONS_AT & ADOPTIONS
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

    /// Whether the slot is held by the lease of a generation.
    const fn is_of(self, generation: u32) -> bool {
        self.stage() == HELD && self.generation() == generation as u64
    }

    /// The end of this lease, as a word.
    const fn end(self, millis: u64) -> End {
        End(millis << MILLIS_AT | self.generation() & TAG)
    }
}

/// When a lease ends.
#[derive(Clone, Copy, PartialEq, Eq)]
struct End(u64);

impl End {
    const fn millis(self) -> u64 {
        self.0 >> MILLIS_AT
    }

    /// Whether it is that of a lease, and has passed.
    fn is_past(self, state: State, now: u64) -> bool {
        let millis = self.millis();
        self == state.end(millis) && millis != NEVER && millis <= now
    }
}

impl Slot {
    /// A slot that was never used.
    #[cfg(any(portcullis_loom, portcullis_explore))]
    pub fn new() -> Self {
        Self {
            state: AtomicU64::new(0),
            end: AtomicU64::new(0),
        }
    }

    /// Returns the state.
    pub fn state(&self) -> State {
        // Acquire: pairs with the claim, so that the end is that of this lease, or of a later one.
        State(self.state.load(Acquire))
    }

    fn end(&self) -> End {
        // Relaxed: an end is one word, and says of which lease it is.
        End(self.end.load(Relaxed))
    }

    /// Whether the lease that `state` is of is past its end at `now`, in milliseconds.
    pub fn is_past(&self, state: State, now: u64) -> bool {
        state.stage() == HELD && self.end().is_past(state, now)
    }

    fn exchange(&self, from: State, to: State) -> bool {
        // Acquire: pairs with the release of the former holder. Release: passes it on.
        let exchanged = self.state.compare_exchange(from.0, to.0, AcqRel, Relaxed);
        exchanged.is_ok()
    }

    fn exchange_end(&self, from: End, to: End) -> bool {
        // Relaxed: of several calls one succeeds, whatever else they see.
        let exchanged = self.end.compare_exchange(from.0, to.0, Relaxed, Relaxed);
        exchanged.is_ok()
    }

    fn store_end(&self, end: End) {
        #[cfg(not(portcullis_loom))]
        self.end.store(end.0, Relaxed);
        // Loom does not order a store and the exchanges of other threads, as one word does.
        #[cfg(portcullis_loom)]
        self.end.swap(end.0, Relaxed);
    }

    /// Ends the lease that `state` is of, if it is past its end at `now`: no call renews it any
    /// more.
    fn put_to_end(&self, state: State, now: u64) -> bool {
        let end = self.end();
        end.is_past(state, now) && self.exchange_end(end, state.end(ENDED))
    }

    /// Claims the slot, if its state is `seen`, and free or past its end at `now`. The lease lasts
    /// until `end`. Both are in milliseconds. Returns the generation of the lease.
    pub fn claim(&self, seen: State, member: usize, now: u64, end: u64) -> Option<u32> {
        if !(seen.is_free() || seen.stage() == HELD && self.put_to_end(seen, now)) {
            return None;
        }
        let generation = (seen.generation() + 1) & u64::from(u32::MAX);
        let busy = State::new(generation, 0, member as u64, BUSY);
        if !self.exchange(seen, busy) {
            return None;
        }
        // Only this call stores it, as long as the slot is busy. Release, below: after the end.
        self.store_end(busy.end(end.min(NEVER)));
        let held = busy.with(HELD);
        let published = self
            .state
            .compare_exchange(busy.0, held.0, Release, Relaxed);
        published.is_ok().then_some(generation as u32)
    }

    /// Lets the lease of a generation last until another end, if it has not ended at `now`.
    pub fn renew(&self, generation: u32, now: u64, end: u64) -> bool {
        // Other calls may renew it in between.
        for _ in 0..ATTEMPTS {
            let (state, before) = (self.state(), self.end());
            let is_held = state.is_of(generation) && before == state.end(before.millis());
            if !is_held || before.is_past(state, now) {
                return false;
            }
            if self.exchange_end(before, state.end(end.min(NEVER))) {
                return true;
            }
        }
        false
    }

    /// Makes `member` the holder of the lease of a generation, if it has not ended at `now`.
    pub fn adopt(&self, generation: u32, now: u64, member: usize) -> bool {
        let seen = self.state();
        let adoptions = seen.adoptions() + 1;
        let adopted = State::new(generation.into(), adoptions, member as u64, HELD);
        seen.is_of(generation) && !self.is_past(seen, now) && self.exchange(seen, adopted)
    }

    /// Releases the lease of a generation. Returns whether it had not ended in another way.
    pub fn release(&self, generation: u32) -> bool {
        // Another call may adopt it in between.
        for _ in 0..ATTEMPTS {
            let seen = self.state();
            if !seen.is_of(generation) {
                return false;
            }
            if self.exchange(seen, seen.with(FREE)) {
                return true;
            }
        }
        false
    }

    /// Frees the slot, if its state is `seen`, of a dead member. Returns whether it did.
    pub fn free(&self, seen: State) -> bool {
        self.exchange(seen, seen.with(FREE))
    }

    /// Frees the slot, if its state is `seen`, and past its end at `now`. Returns whether it did.
    pub fn free_past(&self, seen: State, now: u64) -> bool {
        seen.stage() == HELD && self.put_to_end(seen, now) && self.free(seen)
    }

    /// Whether the lease of a generation holds the slot, and has not ended at `now`.
    pub fn holds(&self, generation: u32, now: u64) -> bool {
        let state = self.state();
        state.is_of(generation) && !self.is_past(state, now)
    }
}
