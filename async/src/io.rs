//! Readers and writers whose bytes take permits: one for each byte.
//!
//! They implement the traits of futures-io with the feature `futures-io`, and those of tokio with
//! the feature `tokio`.

pub use crate::adapters::io::{LimitedRead, LimitedWrite};
