//! What a store decided on a request, and where the decision was made.

use core::time::Duration;

use portcullis_core::{Retry, Timestamp};

/// What a store decided on one request: the result of
/// [`CounterStore::take`](crate::CounterStore::take).
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::{ManualClock, Retry};
/// use portcullis_counters::{Charge, CounterLimit, CounterStore, MemoryCounters};
///
/// # futures_executor::block_on(async {
/// let store = MemoryCounters::new(100, ManualClock::new());
/// let limit = CounterLimit::token_bucket(10, Duration::from_secs(1), 10)?;
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
    pub(crate) denied_by: Option<usize>,
    pub(crate) retry: Option<Retry>,
    pub(crate) at: Timestamp,
    pub(crate) left: Vec<Left>,
    pub(crate) origin: Origin,
}

/// Where a [`StoreDecision`] was made.
///
/// ```
/// # use core::time::Duration;
/// # use portcullis_core::ManualClock;
/// # use portcullis_counters::{Charge, CounterLimit, CounterStore, MemoryCounters, Origin};
/// # futures_executor::block_on(async {
/// let store = MemoryCounters::new(100, ManualClock::new());
/// let limit = CounterLimit::token_bucket(10, Duration::from_secs(1), 10)?;
/// let decision = store.take(&[Charge::new("a", &limit, 8)]).await?;
/// assert_eq!(decision.origin(), Origin::Store);
/// # Ok::<(), Box<dyn core::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Origin {
    /// In the store.
    Store,
    /// In a [`CachedStore`](crate::CachedStore), by what it had learned from its store before.
    Cache,
    /// In a [`GuardedStore`](crate::GuardedStore), because its store had no answer.
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
    /// a [`GuardedStore`](crate::GuardedStore) has allowed or denied the request without a state.
    #[must_use]
    pub fn left(&self) -> &[Left] {
        &self.left
    }
}

/// What a limit has left after a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Left {
    /// The permits that are available.
    pub available: u64,
    /// The permits that can be available at most.
    pub capacity: u64,
    /// After which time the limit is full again, if no request takes from it.
    pub full_in: Duration,
}
