//! What a request takes from one limit.

use crate::limit::CounterLimit;

/// Permits that a request takes from one limit.
///
/// ```
/// use core::time::Duration;
/// use portcullis_counters::{Charge, CounterLimit};
/// let limit = CounterLimit::token_bucket(10, Duration::from_secs(1), 10)?;
/// assert_eq!(Charge::new("alice", &limit, 3).permits, 3);
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
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
    /// # use core::time::Duration;
    /// # use portcullis_counters::{Charge, CounterLimit};
    /// # let limit = CounterLimit::token_bucket(10, Duration::from_secs(1), 10).unwrap();
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
    /// [`SyncChannel`](crate::SyncChannel): see
    /// [`CachedStore::with_channel`](crate::CachedStore::with_channel). Default: not told.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_counters::{Charge, CounterLimit};
    /// # let limit = CounterLimit::token_bucket(10, Duration::from_secs(1), 10).unwrap();
    /// assert!(Charge::new("alice", &limit, 3).synced(true).is_synced);
    /// ```
    #[must_use]
    pub const fn synced(mut self, is_synced: bool) -> Self {
        self.is_synced = is_synced;
        self
    }
}
