//! The models of the queue, but for the first ones, which `quick-loom` runs.
#![cfg(portcullis_loom)]

#[path = "queue_by_address.rs"]
mod queue_by_address;

#[path = "queue_counts.rs"]
mod queue_counts;

#[path = "queue_handover.rs"]
mod queue_handover;

#[path = "queue_keyed.rs"]
mod queue_keyed;

#[path = "queue_limits.rs"]
mod queue_limits;

#[path = "queue_time.rs"]
mod queue_time;
