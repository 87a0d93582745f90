//! What drives a queue by its timer: the queue itself, or a task; and the timers.
//!
//! A driver calls the wait queue when something is due, and sets its alarm for what is due next.
//! Blocked threads drive as well: see `queues/blocking.rs`.

pub(crate) mod drive;
#[cfg(all(feature = "std", not(portcullis_loom)))]
pub(crate) mod sleep;
pub(crate) mod timer;
