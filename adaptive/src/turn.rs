//! A value that one thread at a time may change, and for which no thread ever waits.
//!
//! State: two cells. Each has a *claim*, which is 0 while the cell is free.
//!
//! ```text
//! free -- claim: compare-exchange, Acquire --> claimed at t -- drop: store, Release --> free
//! ```
//!
//! Invariant: who has set the claim of a cell from free to a time is the only one that reaches its
//! value, until it sets the claim to free again. A panic does so as well, by the drop.
//!
//! A claimer that never returns (a thread that was killed, the threads that a `fork` left behind)
//! leaves its claim. [`PATIENCE`] seconds later the others use the second cell, whose value is that
//! of a new limiter. The first cell is never touched again, unless its claimer comes back: then it
//! is free. So a dead thread costs the others what was learned, and nothing else. If both cells
//! have dead claimers, no value changes any more, and the limit stays as it is.
#![allow(
    unsafe_code,
    reason = "the claim is the proof that the value is not shared"
)]
#![allow(
    unreachable_pub,
    missing_debug_implementations,
    reason = "public only for the models in loom"
)]

use crate::sync::atomic::AtomicU32;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use crate::sync::cell::UnsafeCell;

/// After as many seconds a claimer counts as dead. A claim lasts microseconds.
const PATIENCE: u32 = 10;

/// The two cells.
pub struct Turns<T> {
    cells: [(AtomicU32, UnsafeCell<T>); 2],
}

// SAFETY: the value is reached only through a claim, which one thread at a time has. The claim's
// Acquire and Release order the accesses of one after those of the other.
unsafe impl<T: Send> Sync for Turns<T> {}

impl<T> Turns<T> {
    /// Creates the cells: the others use the second one if a claimer of the first never returns.
    pub fn new(first: T, second: T) -> Self {
        let cell = |value| (AtomicU32::new(0), UnsafeCell::new(value));
        Self {
            cells: [cell(first), cell(second)],
        }
    }

    /// Claims the value at `now`, in seconds since any origin. `None` if another thread has it.
    #[inline]
    pub fn claim(&self, now: u32) -> Option<Turn<'_, T>> {
        self.claim_cell(0, now).or_else(|| {
            let since = self.cells[0].0.load(Relaxed);
            // Either way: a clock that was set back makes no dead claimer live for longer.
            let age = (now | 1).wrapping_sub(since).cast_signed().unsigned_abs();
            if since == 0 || age <= PATIENCE {
                return None;
            }
            self.claim_cell(1, now)
        })
    }

    fn claim_cell(&self, cell: usize, now: u32) -> Option<Turn<'_, T>> {
        let claim = &self.cells[cell].0;
        // Acquire: pairs with the drop, so that this claimer sees what the last one wrote.
        claim
            .compare_exchange(0, now | 1, Acquire, Relaxed)
            .ok()
            .map(|_| Turn { turns: self, cell })
    }
}

/// The right to change the value.
pub struct Turn<'a, T> {
    turns: &'a Turns<T>,
    cell: usize,
}

impl<T> Turn<'_, T> {
    /// Changes the value. A panic frees the cell with the value as it is then.
    pub fn change<R>(&mut self, change: impl FnOnce(&mut T) -> R) -> R {
        self.turns.cells[self.cell].1.with_mut(|value| {
            // SAFETY: this turn holds the claim of the cell, so no other thread has a reference to
            // the value. The cell is part of `turns`, which is borrowed.
            change(unsafe { &mut *value })
        })
    }
}

impl<T> Drop for Turn<'_, T> {
    fn drop(&mut self) {
        // Release: pairs with the next claim.
        self.turns.cells[self.cell].0.store(0, Release);
    }
}

#[cfg(all(test, not(portcullis_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_dead_claimer_whose_clock_was_ahead_does_not_live_for_longer() {
        let turns = Turns::new(1, 2);
        core::mem::forget(turns.claim(3_600));
        assert!(turns.claim(3_595).is_none(), "it may still return");
        assert!(turns.claim(9).is_some(), "the clock was set back");
    }
}
