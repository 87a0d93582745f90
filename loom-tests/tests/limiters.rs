//! The models of limiters and leases.
#![cfg(portcullis_loom)]

#[path = "adaptive.rs"]
mod adaptive;

#[path = "adjustable_bucket.rs"]
mod adjustable_bucket;

#[path = "adjustable_window.rs"]
mod adjustable_window;

#[path = "all_of.rs"]
mod all_of;

#[path = "concurrency_shares.rs"]
mod concurrency_shares;

#[path = "cooldown_window.rs"]
mod cooldown_window;

#[path = "counted.rs"]
mod counted;

#[path = "ending_bucket.rs"]
mod ending_bucket;

#[path = "explained.rs"]
mod explained;

#[path = "fixed_window.rs"]
mod fixed_window;

#[path = "lease_pool.rs"]
mod lease_pool;

#[path = "manual_clock.rs"]
mod manual_clock;

#[path = "penalty.rs"]
mod penalty;

#[path = "refunds.rs"]
mod refunds;

#[path = "slices.rs"]
mod slices;

#[path = "sliding_window.rs"]
mod sliding_window;

#[path = "sometimes.rs"]
mod sometimes;

#[path = "striped_bucket.rs"]
mod striped_bucket;

#[path = "striped_concurrency.rs"]
mod striped_concurrency;

#[path = "turns.rs"]
mod turns;

#[path = "warming_bucket.rs"]
mod warming_bucket;
