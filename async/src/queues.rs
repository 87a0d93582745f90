//! The queues that users have, and what they wait in and are told.

pub(crate) mod acquire;
pub(crate) mod common;
pub(crate) mod drained;
pub(crate) mod hook;
pub(crate) mod keyed_queue;
pub(crate) mod options;
pub(crate) mod queue;
pub(crate) mod rejected;
