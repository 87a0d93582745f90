//! Marks that are left for whoever has the lines, so that nobody waits for them in order to
//! release.
//!
//! One marks, and then tries the lock; the other lets go of the lock, and then looks at the marks.
//! In the one order of sequentially consistent fences, or of such operations where the lock's own
//! are of that kind ([`RawLock::IS_SEQUENTIAL`]), either the look comes after the mark, and sees
//! it, or the try comes after the lock was let go, and succeeds.

use crate::lock::RawLock;
use crate::sync::atomic::Ordering::{Relaxed, SeqCst};
use crate::sync::atomic::{AtomicUsize, fence};
use crate::sync::const_unless_loom;

pub(crate) struct Marks(AtomicUsize);

impl Marks {
    const_unless_loom! {
        pub(crate) const fn new() -> Self {
            Self(AtomicUsize::new(0))
        }
    }

    /// Leaves marks: whoever is to attend to them looks whether there are any, and tries the lock.
    /// Releases what was given back.
    #[inline]
    pub(crate) fn leave(&self, bits: usize) {
        self.0.fetch_or(bits, SeqCst);
    }

    /// Whether there are any, after the lock was let go.
    #[inline]
    pub(crate) fn are_left<R: RawLock>(&self) -> bool {
        if !R::IS_SEQUENTIAL {
            fence(SeqCst);
        }
        self.0.load(SeqCst) != 0
    }

    /// Takes them all, under the lock. What was given back before them is seen. One that is not
    /// seen here is when the lock was let go.
    #[inline]
    pub(crate) fn take(&self) -> Unless<'_> {
        let bits = if self.0.load(Relaxed) == 0 {
            0
        } else {
            self.0.swap(0, SeqCst)
        };
        self.unless_forgotten(bits)
    }

    /// Marks that are left when this is dropped: if a limiter panics, or there is no room for more
    /// wakers.
    #[inline]
    pub(crate) fn unless_forgotten(&self, bits: usize) -> Unless<'_> {
        Unless { marks: self, bits }
    }
}

/// Marks that are left if this is dropped.
pub(crate) struct Unless<'m> {
    marks: &'m Marks,
    pub(crate) bits: usize,
}

impl Drop for Unless<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.bits != 0 {
            self.marks.leave(self.bits);
        }
    }
}
