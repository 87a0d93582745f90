//! Counter stores: counters, and the state of limits, that several callers share.
//!
//! The limiters of `portcullis-core` are in the memory of one process. A [`CounterStore`] keeps
//! counters and the state of limits under ids in a place of its own: a [`MemoryCounters`] in this
//! process, a `SharedCounters` (feature `shm`) in memory that the processes of a host share,
//! `RedisCounters` (feature `redis`) on a server that many processes ask, or a store of the user's
//! own.
//!
//! ```
//! use core::time::Duration;
//! use portcullis_core::ManualClock;
//! use portcullis_counters::{Charge, CounterLimit, CounterStore, MemoryCounters};
//!
//! # futures_executor::block_on(async {
//! let store = MemoryCounters::new(10_000, ManualClock::new());
//! let second = CounterLimit::token_bucket(10, Duration::from_secs(1), 10)?;
//! let day = CounterLimit::token_bucket(1_000, Duration::from_secs(86_400), 1_000)?;
//! let charges = [
//!     Charge::new("alice:second", &second, 4),
//!     Charge::new("alice:day", &day, 4),
//! ];
//! // From both limits, or from none.
//! let decision = store.take(&charges).await?;
//! assert!(decision.is_allowed());
//! assert_eq!(decision.left()[0].available, 6);
//! assert_eq!(decision.left()[1].available, 996);
//! # Ok::<(), Box<dyn core::error::Error>>(()) }).unwrap();
//! ```
//!
//! # Items by use
//!
//! | to | use |
//! |---|---|
//! | choose a store | [`MemoryCounters`], `SharedCounters`, `RedisCounters`, `RedisSettings` |
//! | write a store | [`CounterStore`], [`StoreFuture`], [`Counter`], [`QuotaState`], [`QuotaRead`], [`QuotaWrite`], [`MAX_AGE`] |
//! | take permits, and know what was decided | [`Charge`], [`StoreDecision`], [`Left`], [`Origin`] |
//! | describe a limit | [`CounterLimit`], [`CounterLimitError`], [`MAX_SEGMENTS`], [`MAX_UNITS`] |
//! | know whose fault an error is | [`StoreError`], [`Fault`] |
//! | ask a store less often | [`CachedStore`], [`CacheSettings`], [`CacheCounts`], [`SyncChannel`], `RedisChannel` |
//! | decide while a store has no answer | [`GuardedStore`], [`GuardSettings`], [`OnFailure`], [`StoreEvent`] |
//!
//! # What a store keeps
//!
//! - A **counter**: a number, and an instant at which it expires. A counter that has expired, or
//!   that was never written, is 0.
//! - A **quota**: the state of one limit for one id, a short list of numbers ([`QuotaState`]). It
//!   expires when the limit is full again. A quota that has expired is that of a full limit.
//!
//! Counters and quotas are apart: the same id may name one of each.
//!
//! # How a request is decided
//!
//! ```text
//!            read_quotas                judge                  write_quotas
//!  charges -------------> quotas, time -------> denied: nothing is written
//!     ^                                  |
//!     |                                  +----> new quotas ---> all, if no quota has changed
//!     |                                                    \
//!     +------------------- again, at most 16 times <--------+-> none
//! ```
//!
//! [`CounterStore::take`] does this for any store. A store that can decide where the state is, in
//! one step, overrides it, as the stores of this module do.
//!
//! - **One-sided.** A write applies only to the quotas that were read. So a race ends in another
//!   attempt, or in [`StoreError::Contended`], never in one permit too many.
//! - **All or nothing.** All quotas of a request are written together, or none.
//! - **The store's time.** A decision uses the time of the store, so the clocks of its callers do
//!   not matter. If that time jumps back, limits wait until it has caught up.
//! - **Age.** A store refuses a write whose read is older than [`MAX_AGE`]. So a caller that is
//!   stopped between the read and the write cannot spend permits of long ago.
//!
//! # Bounds
//!
//! `t` is a span of the store's time. If `take` reads and then writes, `t` is longer by
//! [`MAX_AGE`].
//!
//! | limit | permits granted |
//! |---|---|
//! | [token bucket](CounterLimit::token_bucket) | at most `burst + rate × t` in any `t` |
//! | [fixed window](CounterLimit::windows) | at most N in each window of a grid that begins at time 0; so up to 2 N around the edge of a window |
//! | [sliding window](CounterLimit::windows) | at most N in any `segments` consecutive segments |
//!
//! If a store loses its content, its limits are full again. If a limit changes, its quotas go on:
//! see [`CounterLimit`].
//!
//! # Errors
//!
//! An error is the fault of the store, of one request, of a rule, or of one id: see [`Fault`]. Only
//! the first one says something about other requests.
//!
//! # Features
//!
//! - `redis`: `RedisCounters` and `RedisChannel`, on a Redis server, with a runtime of tokio;
//! - `shm`: `SharedCounters`, in memory that the processes of a host share. Linux.
#![forbid(unsafe_code)]
#![warn(clippy::exhaustive_enums, clippy::exhaustive_structs)]

mod cached;
mod charge;
mod decision;
mod error;
mod guarded;
mod limit;
mod memory;
mod quota;
#[cfg(feature = "redis")]
mod redis;
#[cfg(all(feature = "shm", target_os = "linux"))]
mod shared;
mod store;
mod sync;

pub use cached::{CacheCounts, CacheSettings, CachedStore};
pub use charge::Charge;
pub use decision::{Left, Origin, StoreDecision};
pub use error::{Fault, StoreError};
pub use guarded::{GuardSettings, GuardedStore, OnFailure, StoreEvent};
pub use limit::{CounterLimit, CounterLimitError, MAX_SEGMENTS, MAX_UNITS};
pub use memory::MemoryCounters;
#[cfg(feature = "redis")]
pub use portcullis_stores::RedisSettings;
pub use quota::QuotaState;
#[cfg(feature = "redis")]
pub use redis::{RedisCounters, channel::RedisChannel};
#[cfg(all(feature = "shm", target_os = "linux"))]
pub use shared::SharedCounters;
pub use store::{Counter, CounterStore, MAX_AGE, QuotaRead, QuotaWrite, StoreFuture};
pub use sync::SyncChannel;
