//! The public queues, their futures, options, hooks and errors.

pub(crate) mod acquire;
#[cfg(all(feature = "std", not(portcullis_loom)))]
pub(crate) mod blocking;
pub(crate) mod common;
pub(crate) mod drained;
pub(crate) mod keyed_queue;
pub(crate) mod limiter_view;
pub(crate) mod queue;
