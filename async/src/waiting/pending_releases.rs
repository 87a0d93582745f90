//! Notes for the holder of the lock that permits came back, so that no release waits for the lock.
//!
//! A release notes what it gave back, and then tries the lock. The holder unlocks, and then reads
//! the notes. Either the read comes after the note, and sees it; or the try comes after the unlock,
//! and succeeds: in the one order of sequentially consistent fences, or of such operations if the
//! lock's own are of that kind ([`RawLock::IS_SEQUENTIAL`]).

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

    /// Adds notes. The caller then tries the lock, or unlocks it and reads them. Releases what was
    /// given back.
    #[inline]
    pub(crate) fn add(&self, bits: usize) {
        self.0.fetch_or(bits, SeqCst);
    }

    /// Whether there are any, after the lock was unlocked.
    #[inline]
    pub(crate) fn is_any<R: RawLock>(&self) -> bool {
        if !R::IS_SEQUENTIAL {
            fence(SeqCst);
        }
        self.0.load(SeqCst) != 0
    }

    /// Takes them all, under the lock. What was given back before them is seen. A note that comes
    /// too late for this is read after the lock was unlocked.
    #[inline]
    pub(crate) fn take(&self) -> RestoreOnDrop<'_> {
        let bits = if self.0.load(Relaxed) == 0 {
            0
        } else {
            self.0.swap(0, SeqCst)
        };
        self.restore_on_drop(bits)
    }

    /// Notes that are added when this is dropped: if a limiter panics, or a wake batch is full.
    #[inline]
    pub(crate) fn restore_on_drop(&self, bits: usize) -> RestoreOnDrop<'_> {
        RestoreOnDrop {
            pending: self,
            bits,
        }
    }
}

/// Notes that are added when this is dropped.
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
