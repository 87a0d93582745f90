//! The builders of limiters, and the settings that they name in errors.
//!
//! A builder is made by the `builder` function of its limiter, such as
//! [`TokenBucket::builder`](crate::TokenBucket::builder). Its methods are named after the options.
//! The types here are needed by name only where a builder is kept.

pub use crate::limiters::adjustable_bucket::AdjustableBucketBuilder;
pub use crate::limiters::adjustable_window::AdjustableWindowBuilder;
pub use crate::limiters::concurrency::ConcurrencyBuilder;
pub use crate::limiters::concurrency_shares::ConcurrencySharesBuilder;
pub use crate::limiters::cooldown_window::CooldownWindowBuilder;
pub use crate::limiters::fixed_window::FixedWindowBuilder;
pub use crate::limiters::sliced_bucket::SlicedBucketBuilder;
pub use crate::limiters::sliding_window::SlidingWindowBuilder;
pub use crate::limiters::striped_bucket::StripedBucketBuilder;
pub use crate::limiters::striped_concurrency::StripedConcurrencyBuilder;
pub use crate::limiters::token_bucket::TokenBucketBuilder;
pub use crate::limiters::warming_bucket::WarmingBucketBuilder;
pub use crate::sometimes::SometimesBuilder;
pub use crate::word::settings::Setting;
pub use crate::wrappers::escalation::{EscalationBuilder, EscalationThreshold};
pub use crate::wrappers::penalty::{PenaltyBuilder, PenaltySettings};
