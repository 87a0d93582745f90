//! One function for each hot path, not inlined, so that its machine code can be read: `cargo xtask
//! hot-paths` does.
//!
//! Each takes its limiter by reference, so that no setting is known to the compiler, and returns
//! all that a caller can be told. A bucket in steps, or a window that the first request starts, is
//! a setting as well: the same code serves it. This is a library, so that `cargo xtask no-std` can
//! compile the same functions for targets on which nothing can be linked yet.
#![no_std]
#![allow(
    clippy::needless_lifetimes,
    reason = "some of the types have a lifetime of their own"
)]
#![allow(
    unsafe_code,
    reason = "a name that can be found in the assembly is an unsafe attribute"
)]

use portcullis_core::{
    AdjustableBucket, AdjustableWindow, ClaimError, Concurrency, CooldownWindow, Denied,
    FixedWindow, FixedWindowRules, Lease, LeaseId, LeasePool, Slice, SlicedBucket, SlidingWindow,
    StaleId, Timestamp, TokenBucket, TokenBucketRules, Unlimited,
};
use portcullis_core::{KeyLimiter, Keyed, Line};

macro_rules! acquires {
    ($($name:ident: $limiter:ty;)*) => {$(
        /// Takes `n` permits at `now`.
        ///
        /// # Errors
        ///
        /// As the limiter.
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "Rust" fn $name<'a>(
            limiter: &'a $limiter,
            now: Timestamp,
            n: u32,
        ) -> Result<Lease<&'a $limiter>, Denied> {
            Lease::try_acquire_at(limiter, now, n)
        }
    )*};
}

acquires! {
    token_bucket_acquire: TokenBucket;
    token_bucket_32_acquire: TokenBucket<u32>;
    fixed_window_acquire: FixedWindow;
    fixed_window_32_acquire: FixedWindow<u32>;
    sliding_window_acquire: SlidingWindow<8>;
    sliding_window_32_acquire: SlidingWindow<8, u32>;
    concurrency_acquire: Concurrency;
    concurrency_32_acquire: Concurrency<u32>;
    unlimited_acquire: Unlimited;
    adjustable_bucket_acquire: AdjustableBucket;
    adjustable_bucket_32_acquire: AdjustableBucket<u32>;
    adjustable_window_acquire: AdjustableWindow;
    adjustable_window_32_acquire: AdjustableWindow<u32>;
    cooldown_window_acquire: CooldownWindow;
    cooldown_window_32_acquire: CooldownWindow<u32>;
    sliced_bucket_acquire: SlicedBucket;
    sliced_bucket_32_acquire: SlicedBucket<u32>;
    slice_acquire: Slice<&'static SlicedBucket>;
    slice_32_acquire: Slice<&'static SlicedBucket<u32>>;
}

// A key's limiter, its hash behind it.
acquires! {
    keyed_bucket_acquire: KeyLimiter<'static, Keyed<TokenBucketRules, &'static [Line]>>;
    keyed_window_acquire: KeyLimiter<'static, Keyed<FixedWindowRules, &'static [Line]>>;
}

macro_rules! drops {
    ($($name:ident: $limiter:ty;)*) => {$(
        /// Gives the permits of `lease` back, if they come back by release.
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "Rust" fn $name(lease: Lease<&$limiter>) {
            drop(lease);
        }
    )*};
}

drops! {
    token_bucket_drop: TokenBucket;
    concurrency_drop: Concurrency;
    concurrency_32_drop: Concurrency<u32>;
}

/// Takes `n` permits at `now`, as a lease with an id.
///
/// # Errors
///
/// As the pool.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "Rust" fn lease_pool_claim(
    pool: &LeasePool<Concurrency, 16>,
    now: Timestamp,
    n: u32,
    deadline: Option<Timestamp>,
) -> Result<LeaseId, ClaimError> {
    pool.claim_at(now, n, deadline)
}

/// Gives the permits of `id` back.
///
/// # Errors
///
/// As the pool.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "Rust" fn lease_pool_release(
    pool: &LeasePool<Concurrency, 16>,
    id: LeaseId,
) -> Result<u32, StaleId> {
    pool.release(id)
}
