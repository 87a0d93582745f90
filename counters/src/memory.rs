//! A counter store in the memory of this process.
//!
//! ```text
//! entries   id -> (value, expires)      an entry that has expired counts as none
//! due       heap of (instant, id)       one item for each entry, at or before its `expires`
//! ```
//!
//! **Invariant.** The heap has one item for each entry. A write that extends an expiry leaves the
//! item: when the item is due, it goes back into the heap with the later instant.

use core::cmp::Reverse;
use core::fmt;
use core::future::ready;
use core::time::Duration;
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use portcullis_core::{Clock, Timestamp};

use crate::charge::Charge;
use crate::decision::StoreDecision;
use crate::error::StoreError;
use crate::quota::{Judgement, QuotaState};
use crate::store::{Counter, CounterStore, MAX_AGE, QuotaRead, QuotaWrite, StoreFuture};

/// A [`CounterStore`] in the memory of this process, with the time of a clock. If the clock runs
/// back, the store's time stands still until the clock has caught up.
///
/// It is bounded: at most `max_ids` ids exist at a time. An id that has not expired is never
/// removed, so many ids cannot reset a limit. A new id that finds no room fails with
/// [`StoreError::Full`].
///
/// # Cost
///
/// A mutex for all ids, which is held for one request: for a look-up of each id, and some
/// arithmetic. Each write also removes up to two ids that have expired. Every future is ready at
/// once. A request allocates: the future, the decision, and the states of its limits. For a limit
/// in one process without these costs, use the limiters of
/// `portcullis-core`.
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::MonotonicClock;
/// use portcullis_counters::{Charge, CounterLimit, CounterStore, MemoryCounters};
///
/// # futures_executor::block_on(async {
/// let store = MemoryCounters::new(10_000, MonotonicClock::new());
/// let limit = CounterLimit::token_bucket(2, Duration::from_secs(3_600), 2)?;
/// let charge = [Charge::new("alice", &limit, 1)];
/// assert!(store.take(&charge).await?.is_allowed());
/// assert!(store.take(&charge).await?.is_allowed());
/// assert!(!store.take(&charge).await?.is_allowed());
/// # Ok::<(), Box<dyn core::error::Error>>(()) }).unwrap();
/// ```
pub struct MemoryCounters<C> {
    clock: C,
    max_ids: usize,
    all: Mutex<All>,
}

#[derive(Default)]
struct All {
    counters: Expiring<i64>,
    quotas: Expiring<QuotaState>,
    /// The newest time of the clock that was seen.
    newest: Timestamp,
}

struct Expiring<V> {
    entries: HashMap<Arc<str>, Entry<V>>,
    due: BinaryHeap<Reverse<(Timestamp, Arc<str>)>>,
}

struct Entry<V> {
    value: V,
    /// [`Timestamp::MAX`] if it never expires.
    expires: Timestamp,
}

impl<V> Entry<V> {
    fn exists(&self, now: Timestamp) -> bool {
        self.expires > now || self.expires == Timestamp::MAX
    }
}

impl<V> Default for Expiring<V> {
    fn default() -> Self {
        Self {
            entries: HashMap::new(),
            due: BinaryHeap::new(),
        }
    }
}

impl<V> Expiring<V> {
    fn get(&self, id: &str, now: Timestamp) -> Option<&Entry<V>> {
        self.entries.get(id).filter(|entry| entry.exists(now))
    }

    fn set(&mut self, id: &str, value: V, expires: Timestamp) {
        let entry = Entry { value, expires };
        if let Some(known) = self.entries.get_mut(id) {
            // Its item in the heap stays: see the invariant.
            *known = entry;
            return;
        }
        let id: Arc<str> = id.into();
        self.due.push(Reverse((expires, Arc::clone(&id))));
        self.entries.insert(id, entry);
    }

    /// Looks at up to `most` items that are due, and removes the entries that have expired.
    fn purge(&mut self, now: Timestamp, most: usize) {
        for _ in 0..most {
            let Some(item) = self.due.peek_mut() else {
                return;
            };
            if item.0.0 > now || item.0.0 == Timestamp::MAX {
                return;
            }
            let Reverse((_, id)) = PeekMut::pop(item);
            match self.entries.get(&id) {
                Some(entry) if entry.exists(now) => self.due.push(Reverse((entry.expires, id))),
                _ => {
                    self.entries.remove(&id);
                }
            }
        }
    }
}

impl All {
    fn len(&self) -> usize {
        self.counters.entries.len() + self.quotas.entries.len()
    }

    /// Fails if there is no room for `new` more ids.
    fn make_room(&mut self, new: usize, now: Timestamp, max_ids: usize) -> Result<(), StoreError> {
        self.counters.purge(now, 2);
        self.quotas.purge(now, 2);
        if self.len() + new > max_ids {
            // Two at a time were not enough, since few writes came: now all that have expired.
            self.counters.purge(now, usize::MAX);
            self.quotas.purge(now, usize::MAX);
        }
        if self.len() + new > max_ids {
            return Err(StoreError::Full);
        }
        Ok(())
    }

    fn quotas(&self, ids: &[&str], now: Timestamp) -> Vec<QuotaState> {
        let quota = |id: &&str| self.quotas.get(id, now).map(|entry| entry.value.clone());
        ids.iter().map(|id| quota(id).unwrap_or_default()).collect()
    }

    fn counter(&self, id: &str, now: Timestamp) -> Counter {
        let entry = self.counters.get(id, now);
        entry.map_or_else(Counter::default, |entry| Counter {
            value: entry.value,
            expires_in: Some(entry.expires.saturating_since(now)),
        })
    }

    /// Writes quotas, all or none.
    fn write<'w>(
        &mut self,
        writes: impl Iterator<Item = (&'w str, QuotaState, Duration)> + Clone,
        now: Timestamp,
        max_ids: usize,
    ) -> Result<(), StoreError> {
        // An entry that has expired and is still there has its room.
        let is_new = |id: &str| !self.quotas.entries.contains_key(id);
        let new = writes.clone().filter(|(id, ..)| is_new(id)).count();
        self.make_room(new, now, max_ids)?;
        for (id, quota, expiry) in writes {
            self.quotas.set(id, quota, now.saturating_add(expiry));
        }
        Ok(())
    }
}

impl<C: Clock> MemoryCounters<C> {
    /// Creates a store with room for `max_ids` ids, of counters and quotas together, and with the
    /// time of `clock`. Windows lie on a grid that begins at the origin of the clock.
    ///
    /// The store takes memory as ids are used: about 200 bytes and twice the id for each.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::ManualClock;
    /// # use portcullis_counters::{CounterStore, MemoryCounters, StoreError};
    /// # futures_executor::block_on(async {
    /// let store = MemoryCounters::new(1, ManualClock::new());
    /// let second = Duration::from_secs(1);
    /// assert!(store.increment_and_get("a", second, 1).await.is_ok());
    /// let full = store.increment_and_get("b", second, 1).await;
    /// assert_eq!(full, Err(StoreError::Full));
    /// # });
    /// ```
    #[must_use]
    pub fn new(max_ids: usize, clock: C) -> Self {
        Self {
            clock,
            max_ids,
            all: Mutex::default(),
        }
    }

    /// Returns the clock.
    ///
    /// ```
    /// # use portcullis_core::{Clock, ManualClock, Timestamp};
    /// # use portcullis_counters::MemoryCounters;
    /// let store = MemoryCounters::new(9, ManualClock::new());
    /// assert_eq!(store.clock().now(), Timestamp::ZERO);
    /// ```
    #[must_use]
    pub const fn clock(&self) -> &C {
        &self.clock
    }

    /// Returns how many ids the store keeps. Some of them may have expired.
    ///
    /// ```
    /// # use portcullis_core::ManualClock;
    /// # use portcullis_counters::MemoryCounters;
    /// assert_eq!(MemoryCounters::new(9, ManualClock::new()).ids(), 0);
    /// ```
    #[must_use]
    pub fn ids(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, All> {
        // All changes under this lock are complete when something can panic.
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, and the time, which never runs back.
    fn now(&self) -> (MutexGuard<'_, All>, Timestamp) {
        let mut all = self.lock();
        all.newest = all.newest.max(self.clock.now());
        let now = all.newest;
        (all, now)
    }

    fn add(&self, id: &str, expiry: Duration, delta: i64) -> Result<Counter, StoreError> {
        let (mut all, now) = self.now();
        let Some(entry) = all.counters.entries.get_mut(id) else {
            all.make_room(1, now, self.max_ids)?;
            all.counters.set(id, delta, expiry_from(now, expiry));
            return Ok(all.counter(id, now));
        };
        if entry.exists(now) {
            entry.value = entry.value.checked_add(delta).ok_or(StoreError::Overflow)?;
        } else {
            (entry.value, entry.expires) = (delta, expiry_from(now, expiry));
        }
        Ok(all.counter(id, now))
    }

    fn decide(&self, charges: &[Charge<'_>]) -> Result<StoreDecision, StoreError> {
        let judgement = Judgement::of(charges)?;
        let ids = judgement.ids();
        let (mut all, now) = self.now();
        let (decision, taken) = judgement.judge(&all.quotas(&ids, now), now)?;
        if let Some(taken) = taken {
            let writes = ids.iter().zip(&taken).filter_map(|(&id, taken)| {
                let (quota, expiry) = taken.clone()?;
                Some((id, quota, expiry))
            });
            all.write(writes, now, self.max_ids)?;
        }
        Ok(decision)
    }

    fn write(&self, read_at: Timestamp, writes: &[QuotaWrite<'_>]) -> Result<bool, StoreError> {
        let (mut all, now) = self.now();
        let ids: Vec<&str> = writes.iter().map(|write| write.id).collect();
        let before = writes.iter().map(|write| write.before);
        if now.saturating_since(read_at) > MAX_AGE || !all.quotas(&ids, now).iter().eq(before) {
            return Ok(false);
        }
        let writes = writes
            .iter()
            .map(|write| (write.id, write.quota.clone(), write.expiry));
        all.write(writes, now, self.max_ids)?;
        Ok(true)
    }
}

/// When a counter that is created at `now` expires.
pub(crate) fn expiry_from(now: Timestamp, expiry: Duration) -> Timestamp {
    let millis = expiry.as_nanos().div_ceil(1_000_000).max(1);
    let millis = u64::try_from(millis).unwrap_or(u64::MAX);
    now.saturating_add(Duration::from_millis(millis))
}

impl<C: Clock + Send + Sync> CounterStore for MemoryCounters<C> {
    fn get_many<'a>(&'a self, ids: &'a [&'a str]) -> StoreFuture<'a, Vec<Counter>> {
        let (all, now) = self.now();
        let counters = ids.iter().map(|id| all.counter(id, now)).collect();
        Box::pin(ready(Ok(counters)))
    }

    fn increment_and_get<'a>(
        &'a self,
        id: &'a str,
        expiry: Duration,
        delta: i64,
    ) -> StoreFuture<'a, Counter> {
        Box::pin(async move { self.add(id, expiry, delta) })
    }

    fn read_quotas<'a>(&'a self, ids: &'a [&'a str]) -> StoreFuture<'a, QuotaRead> {
        Box::pin(async move {
            let (all, at) = self.now();
            let quotas = all.quotas(ids, at);
            Ok(QuotaRead { quotas, at })
        })
    }

    fn write_quotas<'a>(
        &'a self,
        read_at: Timestamp,
        writes: &'a [QuotaWrite<'a>],
    ) -> StoreFuture<'a, bool> {
        Box::pin(async move { self.write(read_at, writes) })
    }

    fn take<'a>(&'a self, charges: &'a [Charge<'a>]) -> StoreFuture<'a, StoreDecision> {
        Box::pin(async move { self.decide(charges) })
    }
}

impl<C> fmt::Debug for MemoryCounters<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryCounters")
            .field("max_ids", &self.max_ids)
            .finish_non_exhaustive()
    }
}
