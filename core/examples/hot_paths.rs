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

#[macro_use]
#[path = "../tests/support/registry.rs"]
mod registry;

use portcullis_core::{
    ClaimError, Concurrency, Denied, FixedWindowRules, KeyLimiter, Keyed, Lease, LeaseId,
    LeasePool, Line, Slice, SlicedBucket, StaleId, Timestamp, TokenBucket, TokenBucketRules,
};

macro_rules! acquires {
    ($($name:ident: $limiter:ty;)*) => {$(
        /// Takes `n` permits at `now`.
        ///
        /// # Errors
        ///
        /// As the limiter.
        #[unsafe(export_name = concat!(stringify!($name), "_acquire"))]
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

macro_rules! acquires_of_all {
    ($($_limiter:ident: $type:ty { on: [$($name:ident: $word:ty),*], $($_rest:tt)* })*) => {$($(
        #[doc = concat!("A `", stringify!($type), "`, where `W` is [`W`].")]
        pub mod $name {
            use portcullis_core::{Denied, Lease, Timestamp};

            /// The word, if the limiter has one.
            pub type W = $word;

            acquires! {
                $name: $type;
            }
        }
    )*)*};
}

for_each_limiter!(acquires_of_all);

acquires! {
    slice: Slice<&'static SlicedBucket>;
    slice_32: Slice<&'static SlicedBucket<u32>>;
}

// A key's limiter, its hash behind it.
acquires! {
    keyed_bucket: KeyLimiter<'static, Keyed<TokenBucketRules, &'static [Line]>>;
    keyed_window: KeyLimiter<'static, Keyed<FixedWindowRules, &'static [Line]>>;
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
