//! The public queues, their futures, options, hooks and errors.

pub(crate) mod acquire;
pub(crate) mod common;
pub(crate) mod drained;
pub(crate) mod hook;
pub(crate) mod keyed_queue;
pub(crate) mod limiter_view;
pub(crate) mod options;
pub(crate) mod queue;
pub(crate) mod rejected;
