//! The waiting engine: what a queue does under its lock, whatever the queue is around.

pub(crate) mod drivers;
pub(crate) mod limiter_source;
pub(crate) mod panics;
pub(crate) mod pending_releases;
pub(crate) mod queue_config;
pub(crate) mod ring;
pub(crate) mod timer_heap;
pub(crate) mod wait_list;
pub(crate) mod wait_queue;
pub(crate) mod wake_batch;
