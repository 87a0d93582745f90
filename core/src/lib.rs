//! Rate limiters that decide by one atomic word: lock-free, without allocation, without `std`.
//!
//! | limiter | promises | gives back |
//! |---|---|---|
//! | [`TokenBucket`] | at most `burst + rate * t` permits in any span t | by time, at an exact rational rate |
//! | [`AdjustableBucket`] | the same, at a rate and a burst that can be changed meanwhile; can be reserved from | by time |
//! | [`FixedWindow`] | at most `limit` permits in each window | at the window's end |
//! | [`AdjustableWindow`] | the same, under a limit and a length that can be changed meanwhile | at the window's end |
//! | [`SlidingWindow`] | at most `limit` permits in any `segments` segments; strict, in any window's length | segment by segment |
//! | [`CooldownWindow`] | at most `limit` permits from one start to the next, and a wait once they are exceeded | at the window's or the wait's end |
//! | [`Concurrency`] | at most `limit` permits in use at once | when the lease is dropped |
//! | [`Unlimited`] | nothing | |
//! | [`Penalty`] | what the limiter inside does, and denies for a time after a denial | as the limiter inside |
//! | [`Escalation`] | what the limiter inside does; decides at thresholds below it | as the limiter inside |
//!
//! Time is an argument: every limiter takes `now` as a [`Timestamp`], and [`Clocked`] joins a
//! limiter with a [`Clock`]. Every limiter is built by a `const fn` and can live in a `static`.
//! [`Limiter`] is what they have in common, and what a limiter of your own implements. A [`Lease`]
//! holds permits; a [`LeasePool`] names leases by ids. [`Counted`] counts. [`AllOf`] judges many
//! limits as one.
//!
//! ```
//! use portcullis_core::{Rate, Timestamp, TokenBucket};
//!
//! static LIMIT: TokenBucket = TokenBucket::new(Rate::per_second(3), 1);
//!
//! let now = Timestamp::from_secs(1);
//! assert!(LIMIT.try_acquire_at(now, 1).is_ok());
//! let denied = LIMIT.try_acquire_at(now, 1).unwrap_err();
//! println!(
//!     "{denied}; come back in {:?}",
//!     denied.retry(&LIMIT).wait_from(now)
//! );
//! ```
//!
//! # What every limiter keeps
//!
//! - **One-sided error.** It never admits more than it promises: not in a race, not with a late or
//!   backward `now` (up to its stated staleness), not when a thread is paused halfway. What goes
//!   wrong ends in a denial or a later grant.
//! - **A denial writes nothing**, and says when to come back only when it is asked.
//! - **No division, lock, allocation, system call or panic** where permits are taken.
//! - **Interrupt-safe.** Taking and releasing may pre-empt any other call on the same limiter, on
//!   the same thread.
//!
//! # Words
//!
//! A limiter's state is a [`NativeWord`]: 64 bits, or 32 on targets without wider atomics. The
//! narrow variants can be built anywhere, with the builders' `build_on::<u32>()`. A word wraps;
//! each type states its horizon.
//!
//! # Features
//!
//! - `std`: [`MonotonicClock`], [`CoarseClock`], and limiters behind `Arc` and `Box`;
//! - `tsc`: [`TscClock`];
//! - `defmt`: errors and outcomes can be logged by it;
//! - `portable-atomic`: limiters on targets without compare-exchange, such as the Cortex-M0, by the
//!   crate `portable-atomic`. It changes nothing on others, and no feature of this library switches
//!   it on. What is lost on those targets: a read-modify-write disables interrupts for a few
//!   instructions, so that it delays them by as much, and is not lock-free in the strict sense; it
//!   needs the right to do so, and one core, unless the program's `critical-section` covers more.
//!   Which of the two is for the program to say, by the feature `unsafe-assume-single-core` or
//!   `critical-section` of `portable-atomic`. Loads, and so denials, stay what they are.
#![no_std]
#![deny(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(any(feature = "std", test))]
extern crate std;

mod all_of;
pub mod clock;
mod keyed;
mod leases;
mod limiter;
mod limiters;
mod rules;
mod sync;
mod time;
mod word;
mod wrappers;

pub use all_of::{AllLease, AllOf, DeniedBy, Limits, QueueLimits, Receipts, ReplenishingLimits};
#[cfg(target_has_atomic = "64")]
pub use clock::ManualClock;
#[cfg(feature = "tsc")]
pub use clock::TscClock;
pub use clock::{Clock, Clocked, Timeless};
#[cfg(feature = "std")]
pub use clock::{CoarseClock, MonotonicClock};
pub use keyed::key::{Key, KeyLimiter, Keys, QueueKeys};
pub use keyed::keyed_array::KeyedArray;
pub use keyed::line::{Address, Line};
pub use keyed::seed::{Seed, SeedFixed, SeededHasher};
pub use keyed::table::KeyedStatistics;
pub use keyed::{Keyed, KeyedRules};
pub use leases::lease::{Lease, TooFewHeld};
pub use leases::lease_pool::{ClaimError, LeaseId, LeasePool, StaleId};
pub use limiter::denied::{Denied, Retry};
pub use limiter::detail::Detail;
pub use limiter::metadata;
pub use limiter::receipt::{Plan, Receipt, Refund};
pub use limiter::{
    Composable, Idle, Limiter, LimiterExt, LimiterId, PassedOn, QueueLimiter, Replenishing, Waiting,
};
pub use limiters::*;
pub use time::rate::Rate;
pub use time::timestamp::Timestamp;
pub use word::live::{Carry, ChangeError};
pub use word::settings::{Setting, SettingsError};
pub use word::{KeyedWord, NativeWord, Word};
pub use wrappers::counted::{Counted, Counts};
pub use wrappers::escalation::{Escalation, Threshold};
pub use wrappers::penalty::{Penalty, PenaltyBuilder, PenaltySettings};
