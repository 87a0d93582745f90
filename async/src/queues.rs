//! The faces of the wait queue: queues of a limiter and of a table, and the futures and blocked
//! threads that wait in them.

pub(crate) mod acquire;
#[cfg(all(feature = "std", not(portcullis_loom)))]
pub(crate) mod blocking;
pub(crate) mod drained;
pub(crate) mod keyed_queue;
pub(crate) mod limiter_queue;
pub(crate) mod limiter_view;
pub(crate) mod queue;
