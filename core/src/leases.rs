//! Permits that are held and then returned: by a value, or by an id.

pub(crate) mod lease;
pub(crate) mod lease_pool;

pub use self::lease::{Lease, TooFewHeld};
pub use self::lease_pool::{ClaimError, LeaseId, LeasePool, LeaseSlot, StaleId};
