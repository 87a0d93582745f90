//! What an [`AllOf`](crate::AllOf) is made of, and what it answers.

pub use crate::all_of::{AllLease, DeniedBy, DetailBy, Limits, Receipts};
