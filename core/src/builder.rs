//! The builders of limiters, and the settings that they name in errors.
//!
//! A builder is made by the `builder` function of its limiter, such as
//! [`TokenBucket::builder`](crate::TokenBucket::builder). Its methods are named after the options.
//! The types here are needed by name only where a builder is kept.

pub use crate::limiters::builders::*;
pub use crate::sometimes::SometimesBuilder;
pub use crate::word::settings::Setting;
pub use crate::wrappers::escalation::{EscalationBuilder, EscalationThreshold};
pub use crate::wrappers::penalty::{PenaltyBuilder, PenaltySettings};
