//! The atomics of the algorithms that loom and the explorer model.

#[cfg(not(portcullis_loom))]
pub(crate) use core::hint::spin_loop;
#[cfg(not(any(portcullis_loom, portcullis_explore)))]
pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(portcullis_loom)]
pub(crate) use loom::hint::spin_loop;
#[cfg(portcullis_loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(portcullis_explore)]
pub(crate) use portcullis_core::explore::atomic::{AtomicU32, AtomicU64, Ordering, fence};
