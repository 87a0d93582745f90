//! A lock that names its owner, so that others take it over when the owner is dead.
//!
//! ```text
//! bits   31     30          11   10      0
//! +--------+---------------+-------------+
//! | waited |  generation   |   number    |     0: free. A number is not 0
//! +--------+---------------+-------------+
//! ```
//!
//! A process that joins gets a number that no process has which is alive, and the next generation.
//! So an owner is one process, and the numbers of dead ones come back.
//!
//! Transitions, each one read-modify-write that expects the word that the process saw:
//!
//! - *take*: free -> owned. Or from an owner that is dead.
//! - *wait*: sets `waited`. An owner that has waited keeps `waited` set, because others may wait.
//! - *release*: own word -> free. If `waited` was set, it wakes all.
//! - *inherit*: a word with the number that a process has just got -> free.
//!
//! Invariant: the owner is the process that took the lock last and has not released it. What it
//! guards may be half written if the owner was dead: the next owner must look.
//!
//! *An answer holds for one owner.* The kernel tells whether a process has a number. The process
//! that has asked may stop, and a new process get the number, take the lock, and change what it
//! guards. Then the word has another generation, and the exchange of the one that had asked fails;
//! unless 1,048,576 processes joined meanwhile.

#[cfg(not(any(portcullis_loom, portcullis_explore)))]
use core::time::Duration;

use crate::sync::AtomicU32;
use crate::sync::Ordering::{AcqRel, Acquire, Relaxed, Release};

const WAITED: u32 = 1 << 31;
const NUMBER_BITS: u32 = 11;
const NUMBER: u32 = (1 << NUMBER_BITS) - 1;

/// A process that can have the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner(u32);

impl Owner {
    /// The process with a number, 0 to 2,046, which joined as the one of a generation.
    pub const fn new(number: usize, generation: u32) -> Self {
        Self((generation << NUMBER_BITS | (number as u32 + 1) & NUMBER) & !WAITED)
    }

    /// The number of the process. That of no process, if the word was damaged.
    pub const fn number(self) -> usize {
        (self.0 & NUMBER).wrapping_sub(1) as usize
    }
}

/// For how long a waiter sleeps at most. It then looks whether the owner is alive.
#[cfg(not(any(portcullis_loom, portcullis_explore)))]
const SLEEP: Duration = Duration::from_millis(10);

/// What a process that finds the lock taken can do.
pub trait Waiting {
    /// Whether a process has the owner's number. If that is unknown, one has.
    fn is_alive(&self, owner: Owner) -> bool;
    /// Sleeps while the word is `seen`, for a while at most. Returns `false` to give up.
    fn sleep(&self, word: &AtomicU32, seen: u32) -> bool;
}

/// Takes the lock. Returns whether it did.
pub fn take(word: &AtomicU32, me: Owner, waiting: &impl Waiting) -> bool {
    // Acquire: pairs with `release`. A dead owner's writes are ordered by the kernel, which knows
    // that it is dead.
    let Err(mut seen) = word.compare_exchange(0, me.0, Acquire, Relaxed) else {
        return true;
    };
    loop {
        let owner = seen & !WAITED;
        let is_free = owner == 0 || !waiting.is_alive(Owner(owner));
        let next = if is_free {
            me.0 | WAITED
        } else {
            owner | WAITED
        };
        if next != seen {
            match word.compare_exchange(seen, next, Acquire, Relaxed) {
                Ok(_) if is_free => return true,
                Ok(_) => seen = next,
                Err(newer) => {
                    seen = newer;
                    continue;
                }
            }
        }
        if !waiting.sleep(word, seen) {
            return false;
        }
        seen = word.load(Relaxed);
    }
}

/// Releases the lock, if `me` has it. Returns whether to wake all that sleep.
pub fn release(word: &AtomicU32, me: Owner) -> bool {
    // Release: pairs with `take`. Only `waited` changes while `me` has the lock.
    word.compare_exchange(me.0, 0, Release, Relaxed).is_err()
        && word
            .compare_exchange(me.0 | WAITED, 0, Release, Relaxed)
            .is_ok()
}

/// Frees the lock if a dead process has it whose number `me` has now. Returns whether to wake all
/// that sleep.
pub fn inherit(word: &AtomicU32, me: Owner) -> bool {
    let mut seen = word.load(Relaxed);
    while Owner(seen).number() == me.number() {
        // A waiter may set `waited` in between. It does so once. Release: the next owner sees what
        // the dead process wrote.
        match word.compare_exchange(seen, 0, AcqRel, Relaxed) {
            Ok(_) => return true,
            Err(newer) => seen = newer,
        }
    }
    false
}

/// How a process waits for the lock of a file.
#[cfg(not(any(portcullis_loom, portcullis_explore)))]
#[derive(Debug)]
pub(crate) struct InFile<'a> {
    pub(crate) file: &'a std::fs::File,
    pub(crate) until: std::time::Instant,
}

#[cfg(not(any(portcullis_loom, portcullis_explore)))]
impl Waiting for InFile<'_> {
    fn is_alive(&self, owner: Owner) -> bool {
        crate::member::is_alive(self.file, owner.number())
    }

    fn sleep(&self, word: &AtomicU32, seen: u32) -> bool {
        crate::futex::sleep(word, seen, SLEEP);
        std::time::Instant::now() < self.until
    }
}
