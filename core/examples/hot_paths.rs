//! One function per hot path, not inlined, so that `cargo xtask hot-paths` can read its machine
//! code.
//!
//! Each function takes its limiter by reference, so that the compiler knows no setting, and returns
//! all that a caller can observe. A stepwise bucket, or a window that the first request starts, is
//! a setting: the same code serves it. The example is a library, so that `cargo xtask no-std` can
//! compile the same functions for targets that cannot link a program.
#![no_std]
#![allow(
    clippy::needless_lifetimes,
    reason = "some of the types have their own lifetime"
)]
#![allow(
    unsafe_code,
    reason = "`no_mangle` and `export_name` are unsafe attributes"
)]

#[macro_use]
#[path = "../tests/support/registry.rs"]
mod registry;

use portcullis_core::clock::Interval;
use portcullis_core::keyed::{FixedWindowRules, KeyLimiter, Line, TokenBucketRules};
use portcullis_core::leases::{ClaimError, LeaseId, StaleId};
use portcullis_core::limiter::Receipt;
use portcullis_core::parts::{ConcurrencyShare, Slice};
use portcullis_core::{
    Concurrency, Denied, FixedWindow, Keyed, KeyedList, Lease, LeasePool, LimiterExt, SlicedBucket,
    SlidingWindow, StripedConcurrency, Timestamp, TokenBucket, WarmingBucket,
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

            /// The limiter's word, if it has one.
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
    share: ConcurrencyShare<'static, 4>;
    share_32: ConcurrencyShare<'static, 4, u32>;
}

// The limiter of one key, whose hash is already computed.
acquires! {
    keyed_bucket: KeyLimiter<&'static Keyed<TokenBucketRules, &'static [Line]>>;
    keyed_window: KeyLimiter<&'static Keyed<FixedWindowRules, &'static [Line]>>;
    keyed_list: KeyLimiter<&'static KeyedList<[TokenBucketRules; 3], &'static [Line]>>;
}

macro_rules! takes_within {
    ($($name:ident: $limiter:ty;)*) => {$(
        /// Takes `n` permits at a time that lies in `interval`, if it does not matter where.
        ///
        /// # Errors
        ///
        /// As the limiter.
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "Rust" fn $name(
            limiter: &$limiter,
            interval: Interval,
            n: u32,
        ) -> Option<Result<Receipt, Denied>> {
            limiter.take_within(interval, n)
        }
    )*};
}

takes_within! {
    token_bucket_within: TokenBucket;
    token_bucket_32_within: TokenBucket<u32>;
    fixed_window_within: FixedWindow;
    sliding_window_within: SlidingWindow<8>;
    warming_bucket_within: WarmingBucket;
    concurrency_within: Concurrency;
    keyed_bucket_within: KeyLimiter<&'static Keyed<TokenBucketRules, &'static [Line]>>;
}

macro_rules! drops {
    ($($name:ident: $limiter:ty;)*) => {$(
        /// Drops `lease`, which releases its permits if the limiter's permits return by release.
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
    striped_concurrency_drop: StripedConcurrency;
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

/// Releases the permits of `id`.
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
