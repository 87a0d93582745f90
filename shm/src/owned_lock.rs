//! A lock that names its owner, so that others take it over when the owner is dead.
//!
//! ```text
//! bits   31     30                0
//! +--------+---------------------+
//! | waited |        owner        |     0: free. An owner is not 0
//! +--------+---------------------+
//! ```
//!
//! Transitions, each one read-modify-write:
//!
//! - *take*: free -> owned. Or from an owner that is dead.
//! - *wait*: sets `waited`. An owner that has waited keeps `waited` set, because others may wait.
//! - *release*: -> free, by the owner. If `waited` was set, it wakes all.
//!
//! Invariant: the owner is the process that took the lock last and has not released it. What it
//! guards may be half written if the owner was dead: the next owner must look.

#[cfg(not(portcullis_loom))]
use core::time::Duration;

use crate::sync::AtomicU32;
use crate::sync::Ordering::{Acquire, Relaxed, Release};

const WAITED: u32 = 1 << 31;
/// For how long a waiter sleeps at most. It then looks whether the owner is alive.
#[cfg(not(portcullis_loom))]
const SLEEP: Duration = Duration::from_millis(10);

/// What a process that finds the lock taken can do.
pub trait Waiting {
    /// Whether the owner is alive. If that is unknown, it is.
    fn is_alive(&self, owner: u32) -> bool;
    /// Sleeps while the word is `seen`, for a while at most. Returns `false` to give up.
    fn sleep(&self, word: &AtomicU32, seen: u32) -> bool;
}

/// Takes the lock for `me`, which is not 0. Returns whether it did.
pub fn take(word: &AtomicU32, me: u32, waiting: &impl Waiting) -> bool {
    // Acquire: pairs with `release`. A dead owner's writes are ordered by the kernel, which knows
    // that it is dead.
    let Err(mut seen) = word.compare_exchange(0, me, Acquire, Relaxed) else {
        return true;
    };
    loop {
        let owner = seen & !WAITED;
        let is_free = owner == 0 || !waiting.is_alive(owner);
        let next = if is_free { me | WAITED } else { owner | WAITED };
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

/// Releases the lock. Returns whether to wake all that sleep.
pub fn release(word: &AtomicU32) -> bool {
    // Release: pairs with `take`.
    word.swap(0, Release) & WAITED != 0
}

/// Frees the lock if `me` owns it: a dead process, whose number the caller has now. Returns whether
/// to wake all that sleep.
pub fn inherit(word: &AtomicU32, me: u32) -> bool {
    let mut seen = word.load(Relaxed);
    while seen & !WAITED == me {
        // A waiter may set `waited` in between. It does so once.
        match word.compare_exchange(seen, 0, Acquire, Relaxed) {
            Ok(_) => return true,
            Err(newer) => seen = newer,
        }
    }
    false
}

/// How a process waits for the lock of a file.
#[cfg(not(portcullis_loom))]
#[derive(Debug)]
pub(crate) struct InFile<'a> {
    pub(crate) file: &'a std::fs::File,
    pub(crate) until: std::time::Instant,
}

#[cfg(not(portcullis_loom))]
impl Waiting for InFile<'_> {
    fn is_alive(&self, owner: u32) -> bool {
        // Owners are members, counted from 1.
        crate::member::is_alive(self.file, owner as usize - 1)
    }

    fn sleep(&self, word: &AtomicU32, seen: u32) -> bool {
        crate::futex::sleep(word, seen, SLEEP);
        std::time::Instant::now() < self.until
    }
}
