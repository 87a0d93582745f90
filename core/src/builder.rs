//! The builders of limiters, and the settings that they name in errors.
//!
//! A builder is made by the `builder` function of its limiter, such as
//! [`TokenBucket::builder`](crate::TokenBucket::builder). Its methods are named after the options.
//! Those of all limiters that count time, and of all buckets, are here: see [`Builder`]. The types
//! are needed by name only where a builder is kept.

pub use crate::limiters::builders::*;
pub use crate::sometimes::SometimesBuilder;
pub use crate::time::timing::Timing;
pub use crate::word::builder::{Builder, Built, Ticks};
pub use crate::word::settings::Setting;
pub use crate::wrappers::escalation::{EscalationBuilder, EscalationThreshold};
pub use crate::wrappers::penalty::{PenaltyBuilder, PenaltySettings};
