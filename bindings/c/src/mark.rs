//! The mark of a storage: the type of the limiter that is behind it.
//!
//! Transition: 0 -> the mark of a type, once the limiter of that type has been written. So a call
//! that reads the mark also sees the limiter. The model in `loom-tests` compiles this file.

#[cfg(not(portcullis_loom))]
use core::sync::atomic::{
    AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};
#[cfg(portcullis_loom)]
use loom::sync::atomic::{
    AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};

/// The first word of a storage. The caller makes it, by setting the storage to zero.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Mark(AtomicU32);

impl Mark {
    /// Creates the mark of a storage that is not initialised.
    #[cfg(portcullis_loom)]
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Returns whether a limiter of the type is behind the mark, which the caller then may read.
    #[inline(always)]
    pub(crate) fn is(&self, of: u32) -> bool {
        // Acquire: pairs with the release in `set`.
        self.0.load(Acquire) == of
    }

    /// Returns whether a limiter of any type is behind the mark.
    pub(crate) fn is_there(&self) -> bool {
        self.0.load(Relaxed) != 0
    }

    /// Sets the mark. The limiter has been written.
    pub(crate) fn set(&self, of: u32) {
        // Release: pairs with the acquire in `is`.
        self.0.store(of, Release);
    }
}
