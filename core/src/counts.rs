//! What a [`Counted`](crate::Counted) limiter has counted.

pub use crate::wrappers::tally::{Counts, Tally, Total};
