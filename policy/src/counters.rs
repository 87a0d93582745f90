//! Counter stores: counters, and the state of limits, that several callers share.
//!
//! The tables of a [`Policy`](crate::Policy) are in the memory of one process. A [`CounterStore`]
//! keeps counters and the state of limits under ids in a place of its own: a [`MemoryCounters`] in
//! this process, a `SharedCounters` (feature `shm`) in memory that the processes of a host share, a
//! `RedisCounters` (feature `redis`) on a server that many processes ask, or a store
//! of the user's own.
//!
//! ```
//! use portcullis_core::ManualClock;
//! use portcullis_policy::counters::{Charge, CounterLimit, CounterStore, MemoryCounters};
//!
//! # futures_executor::block_on(async {
//! let store = MemoryCounters::new(10_000, ManualClock::new());
//! let second = CounterLimit::new(&"10/s".parse().unwrap())?;
//! let day = CounterLimit::new(&"1000/d".parse().unwrap())?;
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
//! | [`TokenBucket`](crate::Algorithm::TokenBucket) | at most `burst + rate × t` in any `t` |
//! | [`FixedWindow`](crate::Algorithm::FixedWindow) | at most N in each window of a grid that begins at time 0; so up to 2 N around the edge of a window |
//! | [`SlidingWindow`](crate::Algorithm::SlidingWindow) | at most N in any `segments` consecutive segments |
//!
//! If a store loses its content, its limits are full again. If a limit changes, its quotas go on:
//! see [`CounterLimit`].
//!
//! # Errors
//!
//! An error is the fault of the store, of one request, of a rule, or of one id: see [`Fault`]. Only
//! the first one says something about other requests.

use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::time::Duration;
use std::sync::Arc;

use portcullis_core::{Retry, Timestamp};

mod cached;
mod guarded;
mod limit;
mod memory;
mod quota;
#[cfg(feature = "redis")]
mod redis;
#[cfg(all(feature = "shm", target_os = "linux"))]
mod shared;
mod sync;

pub use cached::{CacheCounts, CacheSettings, CachedStore};
pub use guarded::{GuardSettings, GuardedStore, OnFailure, StoreEvent};
pub use limit::{CounterLimit, CounterLimitError, MAX_UNITS};
pub use memory::MemoryCounters;
#[cfg(feature = "redis")]
pub use portcullis_stores::RedisSettings;
pub use quota::QuotaState;
#[cfg(feature = "redis")]
pub use redis::{RedisChannel, RedisCounters};
#[cfg(all(feature = "shm", target_os = "linux"))]
pub use shared::SharedCounters;
pub use sync::SyncChannel;

use quota::Judgement;

/// How old the read of a quota may be when the quota is written: 1 s.
pub const MAX_AGE: Duration = Duration::from_secs(1);

/// How often [`CounterStore::take`] reads and tries to write before it gives up.
const ATTEMPTS: u32 = 16;

/// The answer of a store. It may take as long as the store does.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// A place that keeps counters and quotas, for one caller or for many.
///
/// See the [module](self) for the terms. All methods are atomic: no caller sees a part of one. An
/// implementation of the user's own writes five of them, and may override
/// [`take`](Self::take) and [`take_many`](Self::take_many) if the store can decide in one step.
///
/// # Cost
///
/// Each call allocates its future. What else it costs is up to the store.
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::ManualClock;
/// use portcullis_policy::counters::{CounterStore, MemoryCounters};
/// use std::sync::Arc;
///
/// # futures_executor::block_on(async {
/// // Of any kind, chosen at run time.
/// let store: Arc<dyn CounterStore> = Arc::new(MemoryCounters::new(100, ManualClock::new()));
/// let hour = Duration::from_secs(3_600);
/// assert_eq!(store.increment_and_get("logins", hour, 2).await?.value, 2);
/// assert_eq!(store.increment_and_get("logins", hour, -1).await?.value, 1);
/// assert_eq!(store.get("unknown").await?.value, 0);
/// # Ok::<(), portcullis_policy::counters::StoreError>(()) }).unwrap();
/// ```
pub trait CounterStore: Send + Sync {
    /// Returns the counter with this id.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    fn get<'a>(&'a self, id: &'a str) -> StoreFuture<'a, Counter> {
        Box::pin(async move {
            let counters = self.get_many(&[id]).await?;
            counters.into_iter().next().ok_or(StoreError::Damaged)
        })
    }

    /// Returns the counters with these ids, in their order, as they are at one moment.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    fn get_many<'a>(&'a self, ids: &'a [&'a str]) -> StoreFuture<'a, Vec<Counter>>;

    /// Adds `delta` to the counter with this id, and returns the counter. A counter that does not
    /// exist is created with `delta`, and expires after `expiry`. One that exists keeps its expiry.
    ///
    /// `delta` may be negative, to take back what was added. `expiry` counts in whole milliseconds,
    /// rounded up, and as 1 ms at least.
    ///
    /// # Errors
    ///
    /// [`StoreError::Overflow`] if the sum does not fit 64 bits: the counter stays as it is.
    /// [`StoreError`] in general.
    fn increment_and_get<'a>(
        &'a self,
        id: &'a str,
        expiry: Duration,
        delta: i64,
    ) -> StoreFuture<'a, Counter>;

    /// Returns the quotas with these ids, in their order, as they are at one moment, and the
    /// store's time of that moment. A quota that does not exist is returned empty, and is not
    /// written.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    fn read_quotas<'a>(&'a self, ids: &'a [&'a str]) -> StoreFuture<'a, QuotaRead>;

    /// Writes all of these quotas if each of them is as it was read, and if `read_at`, the time of
    /// the read, is at most [`MAX_AGE`] ago. Otherwise writes none. Returns whether it has written.
    ///
    /// # Errors
    ///
    /// [`StoreError`]. After [`StoreError::Unavailable`] the quotas may have been written or not.
    fn write_quotas<'a>(
        &'a self,
        read_at: Timestamp,
        writes: &'a [QuotaWrite<'a>],
    ) -> StoreFuture<'a, bool>;

    /// Takes the permits of all charges, or of none, and says which limit denied. If several
    /// charges have the same id, their permits are added up.
    ///
    /// A charge of 0 permits takes nothing, and is allowed if one of 1 permit would be. A denied
    /// request writes nothing.
    ///
    /// # Errors
    ///
    /// [`StoreError::MixedLimits`] if two charges have the same id and different limits,
    /// [`StoreError::Contended`] if other callers changed the quotas at each of 16 attempts, and
    /// [`StoreError`] in general. After [`StoreError::Unavailable`] the permits may have been taken
    /// or not.
    fn take<'a>(&'a self, charges: &'a [Charge<'a>]) -> StoreFuture<'a, StoreDecision> {
        Box::pin(async move {
            let judgement = Judgement::of(charges)?;
            let ids = judgement.ids();
            for _ in 0..ATTEMPTS {
                let read = self.read_quotas(&ids).await?;
                let (decision, taken) = judgement.judge(&read.quotas, read.at)?;
                let Some(taken) = taken else {
                    return Ok(decision);
                };
                let each = ids.iter().zip(&read.quotas).zip(taken);
                let writes = each.filter_map(|((&id, before), taken)| {
                    let (quota, expiry) = taken?;
                    Some(QuotaWrite {
                        id,
                        before,
                        quota,
                        expiry,
                    })
                });
                let writes: Vec<_> = writes.collect();
                if self.write_quotas(read.at, &writes).await? {
                    return Ok(decision);
                }
            }
            Err(StoreError::Contended)
        })
    }

    /// Decides several requests, each as [`take`](Self::take) does, in their order. One that is
    /// denied, or fails, does not stop the others.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unavailable`] if there is no answer to any of them.
    fn take_many<'a>(
        &'a self,
        requests: &'a [&'a [Charge<'a>]],
    ) -> StoreFuture<'a, Vec<Result<StoreDecision, StoreError>>> {
        Box::pin(async move {
            let mut decisions = Vec::with_capacity(requests.len());
            for charges in requests {
                decisions.push(self.take(charges).await);
            }
            Ok(decisions)
        })
    }

    /// Returns whether the store tells other instances what it learns of charges that are
    /// [synced](Charge::synced).
    fn syncs(&self) -> bool {
        false
    }

    /// Returns whether the store can keep the state of this limit. A policy asks it for each limit
    /// of its rules when it gets its stores, and when it changes. Default: any limit.
    ///
    /// # Errors
    ///
    /// [`StoreError::Refused`]: [`take`](Self::take) fails with it too, each time.
    fn supports(&self, limit: &CounterLimit) -> Result<(), StoreError> {
        let _ = limit;
        Ok(())
    }
}

impl<S: CounterStore + ?Sized> CounterStore for Arc<S> {
    fn get<'a>(&'a self, id: &'a str) -> StoreFuture<'a, Counter> {
        (**self).get(id)
    }

    fn get_many<'a>(&'a self, ids: &'a [&'a str]) -> StoreFuture<'a, Vec<Counter>> {
        (**self).get_many(ids)
    }

    fn increment_and_get<'a>(
        &'a self,
        id: &'a str,
        expiry: Duration,
        delta: i64,
    ) -> StoreFuture<'a, Counter> {
        (**self).increment_and_get(id, expiry, delta)
    }

    fn read_quotas<'a>(&'a self, ids: &'a [&'a str]) -> StoreFuture<'a, QuotaRead> {
        (**self).read_quotas(ids)
    }

    fn write_quotas<'a>(
        &'a self,
        read_at: Timestamp,
        writes: &'a [QuotaWrite<'a>],
    ) -> StoreFuture<'a, bool> {
        (**self).write_quotas(read_at, writes)
    }

    fn take<'a>(&'a self, charges: &'a [Charge<'a>]) -> StoreFuture<'a, StoreDecision> {
        (**self).take(charges)
    }

    fn take_many<'a>(
        &'a self,
        requests: &'a [&'a [Charge<'a>]],
    ) -> StoreFuture<'a, Vec<Result<StoreDecision, StoreError>>> {
        (**self).take_many(requests)
    }

    fn syncs(&self) -> bool {
        (**self).syncs()
    }

    fn supports(&self, limit: &CounterLimit) -> Result<(), StoreError> {
        (**self).supports(limit)
    }
}

/// The value of a counter.
///
/// ```
/// use portcullis_policy::counters::Counter;
/// assert_eq!((Counter::default().value, Counter::default().expires_in), (0, None));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Counter {
    /// The sum of what was added.
    pub value: i64,
    /// How long the counter exists. `None` if there is none.
    pub expires_in: Option<Duration>,
}

/// Quotas, and when they were read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaRead {
    /// In the order of the ids.
    pub quotas: Vec<QuotaState>,
    /// The store's time.
    pub at: Timestamp,
}

/// A quota to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaWrite<'a> {
    /// The id of the quota.
    pub id: &'a str,
    /// The quota as it was read. If it is another one now, nothing is written.
    pub before: &'a QuotaState,
    /// The quota to write.
    pub quota: QuotaState,
    /// After which time, from the read on, the quota is that of a full limit. The store removes the
    /// quota then or later, never earlier.
    pub expiry: Duration,
}

/// Permits that a request takes from one limit.
///
/// ```
/// use portcullis_policy::counters::{Charge, CounterLimit};
/// let limit = CounterLimit::new(&"10/s".parse()?)?;
/// assert_eq!(Charge::new("alice", &limit, 3).permits, 3);
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    /// The id under which the store keeps the limit's state.
    pub id: &'a str,
    /// The limit.
    pub limit: &'a CounterLimit,
    /// The number of permits.
    pub permits: u32,
    /// Whether other instances are told what this one learns of the limit's state: see
    /// [`synced`](Self::synced).
    pub is_synced: bool,
}

impl<'a> Charge<'a> {
    /// Creates a charge.
    ///
    /// ```
    /// # use portcullis_policy::counters::{Charge, CounterLimit};
    /// # let limit = CounterLimit::new(&"10/s".parse().unwrap()).unwrap();
    /// assert_eq!(Charge::new("alice", &limit, 3).id, "alice");
    /// ```
    #[must_use]
    pub const fn new(id: &'a str, limit: &'a CounterLimit, permits: u32) -> Self {
        Self {
            id,
            limit,
            permits,
            is_synced: false,
        }
    }

    /// Tells other instances what this one learns of the limit's state, if the store has a
    /// [`SyncChannel`]: see [`CachedStore::with_channel`]. Default: not told.
    ///
    /// ```
    /// # use portcullis_policy::counters::{Charge, CounterLimit};
    /// # let limit = CounterLimit::new(&"10/s".parse().unwrap()).unwrap();
    /// assert!(Charge::new("alice", &limit, 3).synced(true).is_synced);
    /// ```
    #[must_use]
    pub const fn synced(mut self, is_synced: bool) -> Self {
        self.is_synced = is_synced;
        self
    }
}

/// What a store decided on one request: the result of [`CounterStore::take`].
///
/// ```
/// use portcullis_core::{ManualClock, Retry};
/// use portcullis_policy::counters::{Charge, CounterLimit, CounterStore, MemoryCounters};
///
/// # futures_executor::block_on(async {
/// let store = MemoryCounters::new(100, ManualClock::new());
/// let limit = CounterLimit::new(&"10/s".parse().unwrap())?;
/// assert!(store.take(&[Charge::new("a", &limit, 8)]).await?.is_allowed());
/// let denied = store.take(&[Charge::new("a", &limit, 3)]).await?;
/// assert_eq!(denied.denied_by(), Some(0));
/// let Some(Retry::After(wait)) = denied.retry() else { panic!("3 permits come back") };
/// assert_eq!(wait.as_millis(), 100);
/// assert_eq!((denied.left()[0].available, denied.left()[0].capacity), (2, 10));
/// # Ok::<(), Box<dyn core::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreDecision {
    denied_by: Option<usize>,
    retry: Option<Retry>,
    at: Timestamp,
    left: Vec<Left>,
    origin: Origin,
}

/// Where a [`StoreDecision`] was made.
///
/// ```
/// # use portcullis_core::ManualClock;
/// # use portcullis_policy::counters::{Charge, CounterLimit, CounterStore, MemoryCounters, Origin};
/// # futures_executor::block_on(async {
/// let store = MemoryCounters::new(100, ManualClock::new());
/// let limit = CounterLimit::new(&"10/s".parse().unwrap())?;
/// let decision = store.take(&[Charge::new("a", &limit, 8)]).await?;
/// assert_eq!(decision.origin(), Origin::Store);
/// # Ok::<(), Box<dyn core::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Origin {
    /// In the store.
    Store,
    /// In a [`CachedStore`], by what it had learned from its store before.
    Cache,
    /// In a [`GuardedStore`], because its store had no answer.
    Fallback,
}

impl StoreDecision {
    /// Returns whether the permits were taken.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        self.denied_by.is_none()
    }

    /// Returns the index of the first charge whose limit denied the request. `None` if it was
    /// allowed.
    #[must_use]
    pub const fn denied_by(&self) -> Option<usize> {
        self.denied_by
    }

    /// Returns when to retry: [`Retry::After`] the time after which all limits have the permits, if
    /// no other request takes them, or [`Retry::Never`]. `None` if the request was allowed.
    #[must_use]
    pub const fn retry(&self) -> Option<Retry> {
        self.retry
    }

    /// Returns the store's time of the decision.
    #[must_use]
    pub const fn at(&self) -> Timestamp {
        self.at
    }

    /// Returns where the decision was made.
    #[must_use]
    pub const fn origin(&self) -> Origin {
        self.origin
    }

    /// Returns what each limit has left after the decision, in the order of the charges. Empty if
    /// a [`GuardedStore`] has allowed or denied the request without a state.
    #[must_use]
    pub fn left(&self) -> &[Left] {
        &self.left
    }
}

/// What a limit has left after a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Left {
    /// The permits that are available.
    pub available: u64,
    /// The permits that can be available at most.
    pub capacity: u64,
    /// After which time the limit is full again, if no request takes from it.
    pub full_in: Duration,
}

/// Why a store has no answer. [`fault`](Self::fault) says which requests an error concerns.
///
/// ```
/// use portcullis_policy::counters::StoreError;
/// assert_eq!(StoreError::Full.to_string(), "the counter store has no room for another id");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreError {
    /// The store cannot be reached, does not answer in time, or serves no caller now. The text says
    /// why.
    Unavailable(String),
    /// The store answers, and does not do what it was asked: the limits, the ids or the permissions
    /// of the request do not allow it. The text says why.
    Refused(String),
    /// The store has no room for another id. Retry when ids have expired.
    Full,
    /// Other callers changed the quotas, or the scripts of the server, at each attempt.
    Contended,
    /// The sum of a counter does not fit 64 bits.
    Overflow,
    /// Two charges of a request have the same id and different limits.
    MixedLimits,
    /// What the store returned is not a counter or a quota.
    Damaged,
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unavailable(why) => return write!(f, "the counter store is unavailable: {why}"),
            Self::Refused(why) => return write!(f, "the counter store refuses the request: {why}"),
            Self::Full => "the counter store has no room for another id",
            Self::Contended => "other callers changed the quotas at each attempt: try again",
            Self::Overflow => "the sum of the counter does not fit 64 bits",
            Self::MixedLimits => "two charges have the same id and different limits",
            Self::Damaged => "the counter store returned what is not a counter or a quota",
        })
    }
}

impl core::error::Error for StoreError {}

/// What an error of a store is about: the result of [`StoreError::fault`].
///
/// ```
/// use portcullis_policy::counters::{Fault, StoreError};
/// assert_eq!(StoreError::Unavailable("refused".into()).fault(), Fault::Store);
/// assert_eq!(StoreError::MixedLimits.fault(), Fault::Rule);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// The store: it answers no caller. Other requests fail too.
    Store,
    /// This request: another attempt may succeed.
    Request,
    /// The settings: each request with these limits and ids fails, until the settings of the rule
    /// or of the store change. It says nothing about requests of other rules, nor about whether
    /// the store answers them.
    Rule,
    /// What the store has under one of the ids, or that it has no room for one.
    Id,
}

impl StoreError {
    /// Returns what the error is about.
    ///
    /// ```
    /// # use portcullis_policy::counters::{Fault, StoreError};
    /// assert_eq!(StoreError::Damaged.fault(), Fault::Id);
    /// ```
    #[must_use]
    pub const fn fault(&self) -> Fault {
        match self {
            Self::Unavailable(_) => Fault::Store,
            Self::Contended => Fault::Request,
            Self::Refused(_) | Self::MixedLimits => Fault::Rule,
            Self::Full | Self::Overflow | Self::Damaged => Fault::Id,
        }
    }
}
