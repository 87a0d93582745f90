//! Drivers of a queue's timers: the queue itself, tasks, and blocked threads.

#[cfg(all(feature = "std", not(portcullis_loom)))]
pub(crate) mod blocking;
pub(crate) mod drive;
pub(crate) mod queue_clock;
pub(crate) mod timer;
