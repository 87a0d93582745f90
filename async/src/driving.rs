//! Who sees to a queue's time: timers, tasks, and threads that wait.

#[cfg(all(feature = "std", not(loom)))]
pub(crate) mod blocking;
pub(crate) mod drive;
pub(crate) mod timer;
