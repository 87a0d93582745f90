//! What the author of a queue needs: limiters in which requests can wait.
//!
//! Queues themselves are in the crate `portcullis-async`.

pub use crate::all_of::{QueueLimits, ReplenishingLimits};
pub use crate::keyed::key::{Blocked, Keys, QueueKeys};
pub use crate::limiter::queue_limiter::{PassedOn, QueueLimiter, Replenishing};
