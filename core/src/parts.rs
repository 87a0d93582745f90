//! Parts of a limiter that are limiters themselves: slices, stripes, shares and reservations.

pub use crate::limiters::adjustable_bucket::Reservation;
pub use crate::limiters::concurrency_shares::ConcurrencyShare;
pub use crate::limiters::slice::{Slice, Sliceable};
pub use crate::limiters::stripe::{Stripe, Striped};
