//! Pending releases: a word with bits for the holder of the lock, so that a release never waits for
//! the lock.
//!
//! A release tries the lock. If it is held, the release sets the bit of the shard it returned
//! permits to, and then tries the lock again. The holder of the lock unlocks, and then reads the
//! bits. So at least one of the two acts: either the read comes after the bit was set, and observes
//! it; or the second try comes after the unlock, and succeeds.
//! The order of the two is that of the sequentially consistent fences, or of the lock's own
//! operations if these are sequentially consistent ([`RawLock::IS_SEQUENTIAL`]).

use crate::lock::RawLock;
use crate::sync::atomic::Ordering::{Relaxed, SeqCst};
use crate::sync::atomic::{AtomicUsize, fence};
use crate::sync::const_unless_loom;

pub(crate) struct PendingReleases(AtomicUsize);

impl PendingReleases {
    const_unless_loom! {
        pub(crate) const fn new() -> Self {
            Self(AtomicUsize::new(0))
        }
    }

    /// Sets bits. The caller then tries the lock, or unlocks it and reads the bits. The write is a
    /// release: what the caller did before is visible to the holder of the lock that takes the
    /// bits.
    #[inline]
    pub(crate) fn add(&self, bits: usize) {
        self.0.fetch_or(bits, SeqCst);
    }

    /// Returns whether any bit is set. To be called after the lock was unlocked.
    #[inline]
    pub(crate) fn is_any<R: RawLock>(&self) -> bool {
        if !R::IS_SEQUENTIAL {
            fence(SeqCst);
        }
        self.0.load(SeqCst) != 0
    }

    /// Takes all bits; the caller holds the lock. All permits that were returned before the bits
    /// were set are visible. A bit that is set too late for this call is read after the lock is
    /// unlocked.
    #[inline]
    pub(crate) fn take(&self) -> RestoreOnDrop<'_> {
        let bits = if self.0.load(Relaxed) == 0 {
            0
        } else {
            self.0.swap(0, SeqCst)
        };
        self.restore_on_drop(bits)
    }

    /// Returns a guard that sets `bits` when it is dropped: if a limiter panics, or a wake batch is
    /// full.
    #[inline]
    pub(crate) fn restore_on_drop(&self, bits: usize) -> RestoreOnDrop<'_> {
        RestoreOnDrop {
            pending: self,
            bits,
        }
    }
}

/// Bits that are set when this guard is dropped.
pub(crate) struct RestoreOnDrop<'p> {
    pending: &'p PendingReleases,
    pub(crate) bits: usize,
}

impl Drop for RestoreOnDrop<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.bits != 0 {
            self.pending.add(self.bits);
        }
    }
}
