//! The limiters of a single key, each in a file of its name, and what buckets have in common.

pub(crate) mod adjustable_bucket;
pub(crate) mod adjustable_window;
pub(crate) mod bucket_settings;
pub(crate) mod concurrency;
pub(crate) mod concurrency_shares;
pub(crate) mod cooldown_window;
pub(crate) mod fixed_window;
pub(crate) mod lattice;
pub(crate) mod slice;
pub(crate) mod sliced_bucket;
pub(crate) mod sliding_window;
pub(crate) mod stripe;
pub(crate) mod striped_bucket;
pub(crate) mod striped_concurrency;
pub(crate) mod token_bucket;
pub(crate) mod unlimited;
pub(crate) mod warming_bucket;

pub use self::adjustable_bucket::AdjustableBucket;
pub use self::adjustable_window::AdjustableWindow;
pub use self::concurrency::Concurrency;
pub use self::concurrency_shares::ConcurrencyShares;
pub use self::cooldown_window::CooldownWindow;
pub use self::fixed_window::FixedWindow;
pub use self::sliced_bucket::SlicedBucket;
pub use self::sliding_window::SlidingWindow;
pub use self::striped_bucket::StripedBucket;
pub use self::striped_concurrency::StripedConcurrency;
pub use self::token_bucket::TokenBucket;
pub use self::unlimited::Unlimited;
pub use self::warming_bucket::WarmingBucket;

/// The builders, for the public module [`builder`](crate::builder).
pub(crate) mod builders {
    pub use super::adjustable_bucket::AdjustableBucketBuilder;
    pub use super::adjustable_window::AdjustableWindowBuilder;
    pub use super::concurrency::ConcurrencyBuilder;
    pub use super::concurrency_shares::ConcurrencySharesBuilder;
    pub use super::cooldown_window::CooldownWindowBuilder;
    pub use super::fixed_window::FixedWindowBuilder;
    pub use super::sliced_bucket::SlicedBucketBuilder;
    pub use super::sliding_window::SlidingWindowBuilder;
    pub use super::striped_bucket::StripedBucketBuilder;
    pub use super::striped_concurrency::StripedConcurrencyBuilder;
    pub use super::token_bucket::TokenBucketBuilder;
    pub use super::warming_bucket::WarmingBucketBuilder;
}
