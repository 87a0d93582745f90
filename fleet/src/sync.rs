//! The atomics of the bucket that ends: those of loom in its models.

#[cfg(not(portcullis_loom))]
pub(crate) use core::sync::atomic::{AtomicU64, Ordering};
#[cfg(portcullis_loom)]
pub(crate) use loom::{
    sync::atomic::{AtomicU64, Ordering},
    thread::yield_now,
};
#[cfg(not(portcullis_loom))]
pub(crate) use std::thread::yield_now;
