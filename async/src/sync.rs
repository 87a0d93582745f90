//! The one place that names atomics, so that the queue can also run under [loom].
//!
//! [loom]: https://docs.rs/loom

#[cfg(not(loom))]
pub(crate) use core::sync::atomic;
#[cfg(loom)]
pub(crate) use loom::sync::atomic;
