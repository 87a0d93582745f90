//! The slots of the permits that a process was granted, for releases that say a number of permits
//! and no slots. They lie in the memory of the process, and not in the file.
//!
//! ```text
//! bits   one for each slot of the file, 64 in a word: set while the process has its permit
//! held   the number of permits that can be released
//! ```
//!
//! Permits are interchangeable, so a release gives back any slot that the process has. Transitions,
//! each one exchange:
//!
//! - *add*, after a slot was taken: sets its bit, and then adds 1 to `held`.
//! - *reserve*, for a release: subtracts from `held`. A release of more permits than are held gets
//!   those that are held.
//! - *pick*, once for each permit that was reserved: clears a bit. Then the caller gives the slot
//!   back. No other call does: a bit is cleared by one call only.
//!
//! Invariant: as many bits are set as permits are held or reserved, or more. So a pick ends: it
//! passes all words without finding a bit only if another call has set one behind it, and another
//! one has cleared one ahead of it. It takes no lock, allocates nothing, and reads nothing that
//! another process can write.

use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sync::{AtomicU64, spin_loop};

/// Bits in a word.
const BITS: usize = 64;

/// Slots, of which a process has some.
#[derive(Debug)]
pub struct GrantedSlots {
    bits: Box<[AtomicU64]>,
    held: AtomicU64,
}

impl GrantedSlots {
    /// For slots with indices below `slots`.
    pub fn new(slots: usize) -> Self {
        Self {
            bits: (0..slots.div_ceil(BITS).max(1))
                .map(|_| AtomicU64::new(0))
                .collect(),
            held: AtomicU64::new(0),
        }
    }

    /// Notes that the process was granted the permit of a slot.
    pub fn add(&self, at: usize) {
        if let Some(word) = self.bits.get(at / BITS) {
            // Release: pairs with `pick`, so that the slot is given back after it was taken.
            word.fetch_or(1 << (at % BITS), Release);
            self.held.fetch_add(1, Relaxed);
        }
    }

    /// Reserves permits to give back: `n`, or those that are held. Returns their number.
    pub fn reserve(&self, n: u64) -> u64 {
        let mut held = self.held.load(Relaxed);
        loop {
            let less = held.saturating_sub(n);
            match self
                .held
                .compare_exchange_weak(held, less, Relaxed, Relaxed)
            {
                Ok(_) => return held - less,
                Err(newer) => held = newer,
            }
        }
    }

    /// Takes the slot of a permit that was [reserved](Self::reserve), looking from the index `from`
    /// on. Returns its index.
    pub fn pick(&self, from: usize) -> usize {
        let words = self.bits.len();
        let first = from / BITS % words;
        let mut place = first;
        loop {
            if let Some(word) = self.bits.get(place) {
                let mut bits = word.load(Relaxed);
                while bits != 0 {
                    let bit = bits & bits.wrapping_neg();
                    // Acquire: pairs with `add`.
                    bits = word.fetch_and(!bit, Acquire);
                    if bits & bit != 0 {
                        return place * BITS + bit.trailing_zeros() as usize;
                    }
                }
            }
            place = (place + 1) % words;
            if place == first {
                spin_loop();
            }
        }
    }

    /// The permits that can be released.
    pub fn held(&self) -> u64 {
        self.held.load(Relaxed)
    }
}
