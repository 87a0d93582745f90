//! Lock-free rate limiters for `no_std`, without allocation. Each decides with one atomic word.
//!
//! ```
//! use portcullis_core::{Rate, Timestamp, TokenBucket};
//!
//! // 3 permits per second, and at most 1 at once.
//! static LIMIT: TokenBucket = TokenBucket::new(Rate::per_second(3), 1);
//!
//! let now = Timestamp::from_secs(1);
//! assert!(LIMIT.try_acquire_at(now, 1).is_ok());
//! let denied = LIMIT.try_acquire_at(now, 1).unwrap_err();
//! println!(
//!     "{denied}; retry after {:?}",
//!     denied.retry(&LIMIT).wait_from(now)
//! );
//! ```
//!
//! # Choosing a limiter
//!
//! | limiter | bound | permits return |
//! |---|---|---|
//! | [`TokenBucket`] | at most `burst + rate * t` permits in any time span `t` | by time |
//! | [`FixedWindow`] | at most `limit` permits in each window | at the window's end |
//! | [`SlidingWindow`] | at most `limit` permits in any `segments` successive segments | segment by segment |
//! | [`Concurrency`] | at most `limit` permits in use at once | when the [`Lease`] is dropped |
//! | [`ConcurrencyShares`] | as `Concurrency`, for all its shares together | when the [`Lease`] is dropped |
//! | [`AdjustableBucket`] | as `TokenBucket`; rate and burst can change at run time | by time |
//! | [`AdjustableWindow`] | as `FixedWindow`; limit and length can change at run time | at the window's end |
//! | [`WarmingBucket`] | as `TokenBucket`, and less while it warms up after it was idle | by time |
//! | [`CooldownWindow`] | as `FixedWindow`; after a request over the limit, no request is granted for a time | when the window or that time ends |
//! | [`SlicedBucket`] | as `TokenBucket`, for all its slices together | by time |
//! | [`StripedBucket`] | as `TokenBucket`, for all its stripes together | by time |
//! | [`StripedConcurrency`] | as `Concurrency`, for all its stripes together | when the [`Lease`] is dropped |
//! | [`Unlimited`] | none | |
//!
//! A token bucket's rate is an exact rational number. In its strict mode a sliding window keeps its
//! limit in any time span of one window. An adjustable bucket supports reservations. Each share of
//! `ConcurrencyShares` has a guarantee, and its limiter is a
//! [`ConcurrencyShare`](parts::ConcurrencyShare). A [`Slice`](parts::Slice) is a thread's local
//! part of a sliced bucket. A striped limit is for many cores: a thread takes from a stripe that no
//! other thread writes at that time.
//!
//! These types wrap a limiter or combine several:
//!
//! | type | what it does |
//! |---|---|
//! | [`Keyed`], [`KeyedArray`] | a fixed-size table of limiters, one per key (client, address, user) |
//! | [`KeyedList`] | the same with several limits per key, and a request takes from all or from none |
//! | [`AllOf`] | takes from several limiters, all or none |
//! | [`Clocked`] | adds a [`Clock`] to a limiter or a table, so that calls need no `now` |
//! | [`LeasePool`] | names leases by `Copy` ids, with deadlines |
//! | [`Penalty`] | keeps the inner limiter's bound, and keeps denying for a time after a denial |
//! | [`Escalation`] | keeps the inner limiter's bound, and reports when usage reaches thresholds |
//! | [`Counted`] | counts the requests and permits that a limiter or a table grants and denies; several can share a [`Tally`](counts::Tally) |
//!
//! [`Sometimes`] is no limiter: it says which of many calls are due, by their number and by time.
//!
//! To wait for permits instead of being denied, use the crate `portcullis-async`.
//!
//! # Using a limiter
//!
//! - **Construction.** `new` takes the settings that have no default. It is a `const fn`, so every
//!   limiter can be a `static`. If the settings do not fit, it panics: in a constant or a static,
//!   that is a compile error.
//! - **Options.** `builder` takes the same settings as `new`. Its methods are named after the
//!   options. `build` returns a [`SettingsError`] if the settings do not fit. `build_on` does too,
//!   and chooses the width of the state word. Methods named `with_...` change a finished value, and
//!   return no error: [`with_state`](TokenBucket::with_state) accepts any number, and
//!   [`with_staleness`](Keyed::with_staleness) of a table panics as `new` does.
//! - **Time.** No limiter reads a clock. The caller passes `now` as a [`Timestamp`], or uses
//!   [`Clocked`].
//! - **Taking.** `try_acquire_at` returns a [`Lease`] or [`Denied`]. Dropping the lease returns the
//!   permits of a concurrency limit; other permits return by time alone.
//! - **Retrying.** [`Denied::retry`] computes when to retry.
//! - **Your own limiter.** Implement [`Limiter`], the trait that all limiters share.
//!
//! # Items by use
//!
//! What most programs name is here at the root. The rest is in modules:
//!
//! | to | items |
//! |---|---|
//! | take permits | [`Lease`], [`Denied`], [`Retry`]; for a part of a request [`LimiterExt`]; by id [`leases`] |
//! | state rates and times | [`Rate`], [`Timestamp`]; clocks such as [`ManualClock`] and [`Timeless`], in [`clock`] |
//! | check and change settings | [`SettingsError`], [`builder`], [`state`] |
//! | limit by key | [`Keyed`], [`KeyedList`], [`KeyedArray`]; [`keyed`] |
//! | combine, count, share out | [`AllOf`], [`Counted`]; [`composition`], [`counts`], [`parts`] |
//! | describe decisions | [`metadata`] |
//! | write a limiter | [`Limiter`], [`limiter`] |
//! | write a queue | [`queue`] |
//! | choose a state word, or its place | [`state`] |
//!
//! # Guarantees
//!
//! - **One-sided error.** A limiter never admits more than its bound: not in a race, not with a
//!   stale timestamp (up to the limiter's stated staleness), not when a thread is paused in the
//!   middle of a call. These cases end in a denial or a later grant.
//! - **A denial writes nothing**, and computes a retry time only on request. The exceptions, which
//!   the types also name under **Cost**:
//!   - types that record denials: [`CooldownWindow`], where one denial starts the wait,
//!     [`Penalty`], [`Escalation`] and [`Counted`];
//!   - [`LeasePool`], which takes a slot before it asks its limiter; [`KeyedArray`], which counts
//!     the calls under way; and a table that has no slot for a key, which counts the request;
//!   - [`StripedConcurrency`], whose first denial after a grant closes the stripes;
//!   - [`StripedBucket`], which notes on a stripe until when requests are denied;
//!   - after a lost race [`SlidingWindow`] and [`StripedBucket`], and [`AllOf`] and [`KeyedList`],
//!     which give back what they had taken.
//! - **No division, lock, allocation, system call or panic** where permits are taken.
//! - **Interrupt-safe.** Taking and releasing may pre-empt any other call on the same limiter, on
//!   the same thread.
//!
//! # State words
//!
//! A limiter's state is a [`NativeWord`](state::NativeWord): 64 bits, or 32 bits on targets without
//! wider atomics. A builder's `build_on::<u32>()` builds the 32-bit variant on any target. Times in
//! a word wrap; each type documents the horizon after which they do.
//!
//! # Features
//!
//! - `std`: [`MonotonicClock`] and [`CoarseClock`]; `for_keys` and `owned_key` of tables, and
//!   `RandomSeed`; limiters behind `Arc` and `Box`.
//! - `tsc`: [`TscClock`]. Enables `std`. Needs Rust 1.87; everything else needs Rust 1.85.
//! - `defmt`: implements `defmt::Format` for errors and outcomes.
//! - `portable-atomic`: supports targets without compare-exchange, such as the Cortex-M0, through
//!   the crate `portable-atomic`. It has no effect on other targets, and no feature of this crate
//!   enables it.
//!
//! With `portable-atomic`, the program must enable one of that crate's features:
//! `unsafe-assume-single-core` or `critical-section`. On targets without compare-exchange:
//!
//! - A read-modify-write disables interrupts for a few instructions. It delays interrupts by that
//!   time and is not lock-free in the strict sense.
//! - It needs the privilege to disable interrupts, and a single core, unless the program's
//!   `critical-section` implementation covers more.
//! - Loads, and therefore denials, are not affected.
//!
// Where an item is missing, its links lead to the features.
#![cfg_attr(
    not(feature = "std"),
    doc = "[`MonotonicClock`]: crate#features\n[`CoarseClock`]: crate#features\n[`RandomSeed`]: crate#features"
)]
#![cfg_attr(not(feature = "tsc"), doc = "[`TscClock`]: crate#features")]
#![no_std]
#![deny(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(clippy::exhaustive_enums, clippy::exhaustive_structs)]

#[cfg(any(feature = "std", test))]
extern crate std;

mod all_of;
pub mod builder;
pub mod clock;
pub mod composition;
pub mod counts;
#[cfg(portcullis_explore)]
#[doc(hidden)]
pub mod explore;
pub mod keyed;
pub mod leases;
pub mod limiter;
mod limiters;
mod newer;
pub mod parts;
pub mod queue;
mod rules;
mod sometimes;
pub mod state;
mod sync;
mod time;
mod word;
mod wrappers;

pub use all_of::AllOf;
#[cfg(target_has_atomic = "64")]
#[doc(inline)]
pub use clock::ManualClock;
#[cfg(feature = "tsc")]
#[doc(inline)]
pub use clock::TscClock;
#[doc(inline)]
pub use clock::{Clock, Clocked, Timeless};
#[cfg(feature = "std")]
#[doc(inline)]
pub use clock::{CoarseClock, MonotonicClock};
#[doc(inline)]
pub use keyed::{Keyed, KeyedArray, KeyedList};
#[doc(inline)]
pub use leases::{Lease, LeasePool};
#[doc(inline)]
pub use limiter::metadata;
#[doc(inline)]
pub use limiter::{Denied, Limiter, LimiterExt, Retry};
pub use limiters::*;
pub use sometimes::Sometimes;
pub use time::rate::Rate;
pub use time::timestamp::Timestamp;
pub use word::settings::SettingsError;
pub use wrappers::counted::Counted;
pub use wrappers::escalation::Escalation;
pub use wrappers::penalty::Penalty;
