//! A place that keeps counters and quotas: what it is asked, and what it answers.
//!
//! A store only has to read and to write. [`CounterStore::take`] decides by both, and repeats the
//! two if another caller came between. So what a store can do wrong is small: it compares what it
//! has with what was read, and writes all or nothing.

use core::future::Future;
use core::pin::Pin;
use core::time::Duration;
use std::sync::Arc;

use portcullis_core::Timestamp;

use crate::charge::Charge;
use crate::decision::StoreDecision;
use crate::error::StoreError;
use crate::limit::CounterLimit;
use crate::quota::{Judgement, QuotaState};

/// How old the read of a quota may be when the quota is written: 1 s.
pub const MAX_AGE: Duration = Duration::from_secs(1);

/// How often [`CounterStore::take`] reads and tries to write before it gives up.
const ATTEMPTS: u32 = 16;

/// The answer of a store. It may take as long as the store does.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// A place that keeps counters and quotas, for one caller or for many.
///
/// See the [crate](crate) for the terms. All methods are atomic: no caller sees a part of one. An
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
/// use portcullis_counters::{CounterStore, MemoryCounters};
/// use std::sync::Arc;
///
/// # futures_executor::block_on(async {
/// // Of any kind, chosen at run time.
/// let store: Arc<dyn CounterStore> = Arc::new(MemoryCounters::new(100, ManualClock::new()));
/// let hour = Duration::from_secs(3_600);
/// assert_eq!(store.increment_and_get("logins", hour, 2).await?.value, 2);
/// assert_eq!(store.increment_and_get("logins", hour, -1).await?.value, 1);
/// assert_eq!(store.get("unknown").await?.value, 0);
/// # Ok::<(), portcullis_counters::StoreError>(()) }).unwrap();
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
                    // Denied, or no permits to take: nothing is written.
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
                // Another caller came between: the quotas are not those that were judged.
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
/// use portcullis_counters::Counter;
/// assert_eq!((Counter::default().value, Counter::default().expires_in), (0, None));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Counter {
    /// The sum of what was added.
    pub value: i64,
    /// How long the counter exists. `None` if there is none.
    pub expires_in: Option<Duration>,
}

impl Counter {
    /// Creates the answer of a store.
    ///
    /// ```
    /// use portcullis_counters::Counter;
    /// assert_eq!(Counter::new(0, None), Counter::default());
    /// ```
    #[must_use]
    pub const fn new(value: i64, expires_in: Option<Duration>) -> Self {
        Self { value, expires_in }
    }
}

/// Quotas, and when they were read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QuotaRead {
    /// In the order of the ids.
    pub quotas: Vec<QuotaState>,
    /// The store's time.
    pub at: Timestamp,
}

impl QuotaRead {
    /// Creates the answer of a store: the quotas in the order of the ids, and the store's time.
    ///
    /// ```
    /// use portcullis_core::Timestamp;
    /// use portcullis_counters::QuotaRead;
    /// assert!(QuotaRead::new(Vec::new(), Timestamp::ZERO).quotas.is_empty());
    /// ```
    #[must_use]
    pub const fn new(quotas: Vec<QuotaState>, at: Timestamp) -> Self {
        Self { quotas, at }
    }
}

/// A quota to write.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
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

impl<'a> QuotaWrite<'a> {
    /// Creates a write, for the tests of a store of your own.
    ///
    /// ```
    /// use core::time::Duration;
    /// use portcullis_counters::{QuotaState, QuotaWrite};
    ///
    /// let empty = QuotaState::default();
    /// let write = QuotaWrite::new("alice", &empty, empty.clone(), Duration::from_secs(1));
    /// assert_eq!(write.id, "alice");
    /// ```
    #[must_use]
    pub const fn new(
        id: &'a str,
        before: &'a QuotaState,
        quota: QuotaState,
        expiry: Duration,
    ) -> Self {
        Self {
            id,
            before,
            quota,
            expiry,
        }
    }
}
