//! Queued waits for the permits of any Portcullis limiter: without `std`, without an allocation, on any executor.
//!
//! A [`Queue`] owns a limiter. [`Queue::acquire`] waits for permits in a future, which holds the wait itself; [`Queue::blocking_acquire`] in a thread. Both stand in
//! one queue, oldest or newest first, with limits in permits and in waits. What is refused gets a [`Rejected`], never a panic.
//!
//! A release grants to those who wait, and never waits for another thread or an interrupted context to do so. Permits that come back by time are granted
//! by [`Queue::advance`], or by one task that runs [`Queue::drive`]; a thread that waits does it by itself.
//!
//! # Features
//!
//! - `std` (by default): [`ThreadLock`], waits of threads, and all that `portcullis-core` has with `std`;
//! - `critical-section`: [`InterruptLock`], for targets without threads.
#![no_std]
#![deny(unsafe_code)]

#[cfg(any(feature = "std", test))]
extern crate std;

mod acquire;
#[cfg(all(feature = "std", not(loom)))]
mod blocking;
mod drive;
mod list;
mod lock;
mod queue;
mod rejected;
mod sync;
mod wakes;

pub use acquire::Acquire;
pub use drive::Drive;
#[cfg(feature = "critical-section")]
pub use lock::InterruptLock;
pub use lock::RawLock;
#[cfg(all(feature = "std", not(loom)))]
pub use lock::ThreadLock;
pub use queue::{DefaultLock, Next, Order, Queue, QueueCounts};
pub use rejected::Rejected;

/// The examples in the README are tests as well.
#[cfg(all(doctest, feature = "std"))]
#[doc = include_str!("../../README.md")]
struct Readme;
