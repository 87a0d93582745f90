//! The timers of this crate: clocks of a runtime, of a thread or of a board, each with one alarm. A
//! queue of which one of them is the clock wakes its tasks by it.

#[cfg(feature = "async-io")]
pub(crate) mod async_io;
#[cfg(feature = "embassy-time")]
pub(crate) mod embassy;
#[cfg(all(feature = "std", not(portcullis_loom)))]
pub(crate) mod thread;
#[cfg(feature = "tokio")]
pub(crate) mod tokio;
