//! The limiter of a key, joined with a clock.

use core::hash::{BuildHasher, Hash};
use core::ops::Deref;

use crate::all_of::{DeniedBy, DetailBy};
use crate::clock::{Clock, Clocked};
use crate::keyed::key::{Keys, TableKey};
use crate::keyed::keyed_list::KeyedList;
use crate::keyed::line::Line;
use crate::keyed::rule_list::RuleList;
use crate::leases::lease::Lease;
use crate::limiter::denied::Denied;
use crate::limiter::detail::Detail;
use crate::limiter::queue_limiter::Replenishing;
use crate::limiter::{Idle, Limiter, LimiterExt};

/// The limiter of one key of a table, joined with a clock: the result of
/// [`Clocked::key`](Clocked::key).
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::{Clocked, Keyed, ManualClock, Rate, TokenBucket};
///
/// let users = Keyed::for_keys(TokenBucket::new(Rate::per_second(1), 1), 1_000);
/// let users = Clocked::new(users, ManualClock::new());
///
/// assert!(users.key("alice").try_acquire(1).is_ok());
/// assert!(users.key("alice").try_acquire(1).is_err());
/// assert!(users.key("bob").try_acquire(1).is_ok());
/// users.clock().advance(Duration::from_secs(1));
/// assert!(users.key("alice").try_acquire(1).is_ok());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ClockedKey<P, C> {
    key: TableKey<P>,
    clock: C,
}

impl<T: Keys, C: Clock> Clocked<T, C> {
    /// Returns the limiter of `key`, which takes the time from this clock. The key takes no slot
    /// before its first grant.
    ///
    /// # Cost
    ///
    /// One hash.
    ///
    /// ```
    /// # use portcullis_core::{Clocked, Concurrency, KeyedArray, Timeless};
    /// let table = KeyedArray::for_keys(|| Concurrency::new(3), 100);
    /// let table = Clocked::new(table, Timeless);
    /// let lease = table.key(&("alice", 7)).try_acquire(1)?;
    /// assert_eq!(table.key(&("alice", 7)).available(), 2);
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    #[inline]
    pub fn key<K: Hash + ?Sized>(&self, key: &K) -> ClockedKey<&T, &C> {
        ClockedKey {
            key: TableKey::new(self.limiter(), key),
            clock: self.clock(),
        }
    }
}

/// A pointer to a table, which can be cloned: an `Arc`, or a reference. Sealed.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a pointer to a table: wrap the table, not the `Clocked`, in an `Arc`"
)]
pub trait KeysPointer: Deref<Target: Keys> + Clone {}

impl<P: Deref<Target: Keys> + Clone> KeysPointer for P {}

impl<P, C: Clock> Clocked<P, C> {
    /// As [`key`](Self::key), for a clock that is joined with a pointer to a table: an `Arc`, or a
    /// reference to a static. The key and its leases have a copy of the pointer, so the leases can
    /// move to another thread or to a task that is spawned. Wrap the table in the `Arc`, not the
    /// `Clocked`.
    ///
    /// # Cost
    ///
    /// One hash, and a copy of the pointer.
    ///
    /// ```
    /// # use portcullis_core::{Clocked, Concurrency, Keyed, MonotonicClock};
    /// use std::sync::Arc;
    ///
    /// let downloads = Arc::new(Keyed::for_keys(Concurrency::new(1), 100));
    /// let downloads = Clocked::new(downloads, MonotonicClock::new());
    /// let lease = downloads.owned_key("alice").try_acquire(1)?;
    /// assert!(downloads.owned_key("alice").try_acquire(1).is_err());
    /// std::thread::spawn(move || drop(lease)).join().unwrap();
    /// assert!(downloads.owned_key("alice").try_acquire(1).is_ok());
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    ///
    /// ```compile_fail,E0277
    /// # use portcullis_core::{Clocked, Concurrency, Keyed, MonotonicClock};
    /// # use std::sync::Arc;
    /// let table = Keyed::for_keys(Concurrency::new(1), 100);
    /// let downloads = Arc::new(Clocked::new(table, MonotonicClock::new()));
    /// let alice = downloads.owned_key("alice");
    /// ```
    #[inline]
    pub fn owned_key<K: Hash + ?Sized>(&self, key: &K) -> ClockedKey<P, &C>
    where
        P: KeysPointer,
    {
        ClockedKey {
            key: TableKey::new(self.limiter().clone(), key),
            clock: self.clock(),
        }
    }
}

impl<P: Deref<Target: Keys>, C: Clock> ClockedKey<P, C> {
    /// Takes `n` permits at the clock's current time: see [`TableKey::try_acquire_at`]. The lease
    /// contains the key, but not the clock.
    ///
    /// # Errors
    ///
    /// The errors of the key's limiter, and [`Denied::Crowded`].
    ///
    /// # Cost
    ///
    /// As [`Clocked::take`].
    ///
    /// ```
    /// # use portcullis_core::{Clocked, Keyed, ManualClock, Rate, TokenBucket};
    /// let users = Keyed::for_keys(TokenBucket::new(Rate::per_second(5), 5), 100);
    /// let users = Clocked::new(users, ManualClock::new());
    /// let lease = users.key("alice").try_acquire(2)?;
    /// assert_eq!(lease.permits(), 2);
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    #[inline]
    pub fn try_acquire(self, n: u32) -> Result<Lease<TableKey<P>>, Denied> {
        match Clocked::new(&*self.key, &self.clock).take(n) {
            Ok(receipt) => Ok(Lease::from_grant(self.key, n, receipt)),
            Err(denied) => Err(denied),
        }
    }

    /// Takes `n` permits that return by time, at the clock's current time, and returns whether it
    /// got them: see [`LimiterExt::allow_at`]. Not for a [`KeyedList`](crate::KeyedList).
    ///
    /// # Cost
    ///
    /// As [`Clocked::take`].
    ///
    /// ```
    /// # use portcullis_core::{Clocked, Keyed, ManualClock, Rate, TokenBucket};
    /// let users = Keyed::for_keys(TokenBucket::new(Rate::per_second(5), 1), 100);
    /// let users = Clocked::new(users, ManualClock::new());
    /// assert!(users.key("alice").allow(1) && users.key("bob").allow(1));
    /// assert!(!users.key("alice").allow(1));
    /// ```
    ///
    /// ```compile_fail,E0277
    /// # use portcullis_core::{Clocked, Concurrency, Keyed, ManualClock};
    /// let users = Keyed::for_keys(Concurrency::new(5), 100);
    /// let users = Clocked::new(users, ManualClock::new());
    /// if users.key("alice").allow(1) {
    ///     // The permit would be free again here: keep the lease of `try_acquire`.
    /// }
    /// ```
    #[inline]
    #[must_use = "the permits are taken"]
    pub fn allow<'t>(&'t self, n: u32) -> bool
    where
        <P::Target as Keys>::Limiter<'t>: Replenishing,
    {
        Clocked::new(&*self.key, &self.clock).try_acquire(n).is_ok()
    }

    /// Takes permits as [`try_acquire`](Self::try_acquire) does, and returns what the decision saw:
    /// see [`LimiterExt::take_explained_at`]. The clock's time is [`Detail::now`].
    ///
    /// # Errors
    ///
    /// The first result is one of the errors of the key's limiter, or [`Denied::Crowded`].
    ///
    /// ```
    /// # use portcullis_core::{Clocked, Keyed, ManualClock, Rate, TokenBucket};
    /// let users = Keyed::for_keys(TokenBucket::new(Rate::per_second(5), 5), 100);
    /// let users = Clocked::new(users, ManualClock::new());
    /// let (lease, detail) = users.key("alice").try_acquire_explained(2);
    /// assert_eq!((lease?.permits(), detail.available), (2, 3));
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    #[must_use = "a lease returns its permits when it is dropped"]
    pub fn try_acquire_explained(self, n: u32) -> (Result<Lease<TableKey<P>>, Denied>, Detail) {
        self.key.try_acquire_explained_at(self.clock.now(), n)
    }

    /// Returns the permits available now.
    ///
    /// ```
    /// # use portcullis_core::{Clocked, Keyed, ManualClock, Rate, TokenBucket};
    /// let users = Keyed::for_keys(TokenBucket::new(Rate::per_second(5), 5), 100);
    /// let users = Clocked::new(users, ManualClock::new());
    /// assert_eq!(users.key("alice").available(), 5);
    /// ```
    pub fn available(&self) -> u64 {
        self.key.available_at(self.clock.now())
    }

    /// Returns whether the key's limiter is idle now, and since when.
    ///
    /// ```
    /// # use portcullis_core::{Clocked, Keyed, ManualClock, Rate, TokenBucket};
    /// let users = Keyed::for_keys(TokenBucket::new(Rate::per_second(5), 5), 100);
    /// let users = Clocked::new(users, ManualClock::new());
    /// assert!(users.key("alice").idle().is_idle());
    /// ```
    pub fn idle(&self) -> Idle {
        self.key.idle_at(self.clock.now())
    }
}

impl<L, M, S, P, C> ClockedKey<P, C>
where
    L: RuleList,
    M: AsRef<[Line]>,
    S: BuildHasher,
    P: Deref<Target = KeyedList<L, M, S>>,
    C: Clock,
{
    /// Takes `n` permits of each limit of the key at the clock's current time, or none: see
    /// [`TableKey::try_acquire_each_at`]. For a key of a [`KeyedList`](crate::KeyedList).
    ///
    /// # Errors
    ///
    /// [`DeniedBy`] names the first limit that denies. [`TableKey::retry_each`] says when to retry.
    ///
    /// ```
    /// # use portcullis_core::{Clocked, Concurrency, KeyedList, ManualClock, Rate, Retry};
    /// # use portcullis_core::TokenBucket;
    /// let limiters = (TokenBucket::new(Rate::per_second(5), 5), Concurrency::new(2));
    /// let users = Clocked::new(KeyedList::for_keys(limiters, 100), ManualClock::new());
    /// let alice = users.key("alice");
    /// let _lease = alice.try_acquire_each(2)?;
    /// let denied = alice.try_acquire_each(1).unwrap_err();
    /// assert_eq!(denied.index, 1);
    /// assert_eq!(alice.limiter().retry_each(denied), Retry::OnRelease);
    /// # Ok::<(), portcullis_core::composition::DeniedBy>(())
    /// ```
    #[inline]
    pub fn try_acquire_each(self, n: u32) -> Result<Lease<TableKey<P>>, DeniedBy> {
        self.key.try_acquire_each_at(self.clock.now(), n)
    }

    /// Takes permits as [`try_acquire_each`](Self::try_acquire_each) does, and returns what one of
    /// the limits saw: see [`TableKey::try_acquire_each_explained_at`].
    ///
    /// # Errors
    ///
    /// The first result is one of the errors of `try_acquire_each`.
    ///
    /// ```
    /// # use portcullis_core::{Clocked, Concurrency, KeyedList, ManualClock};
    /// let limiters = [Concurrency::new(7), Concurrency::new(5)];
    /// let users = Clocked::new(KeyedList::for_keys(limiters, 100), ManualClock::new());
    /// let (lease, told) = users.key("alice").try_acquire_each_explained(4);
    /// assert!(lease.is_ok());
    /// assert_eq!((told.index, told.detail.available, told.detail.capacity), (1, 1, 5));
    /// ```
    #[must_use = "a lease returns its permits when it is dropped"]
    pub fn try_acquire_each_explained(
        self,
        n: u32,
    ) -> (Result<Lease<TableKey<P>>, DeniedBy>, DetailBy) {
        self.key.try_acquire_each_explained_at(self.clock.now(), n)
    }
}

impl<P, C> ClockedKey<P, C> {
    /// Returns the key's limiter, for calls at a `now` of your own.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Clock, Clocked, Keyed, ManualClock, Rate, TokenBucket};
    /// let users = Keyed::for_keys(TokenBucket::new(Rate::per_second(10), 1), 100);
    /// let users = Clocked::new(users, ManualClock::new());
    /// let alice = users.key("alice");
    /// assert!(alice.try_acquire(1).is_ok());
    /// let denied = alice.try_acquire(1).unwrap_err();
    /// let wait = denied.retry(&alice).wait_from(users.clock().now());
    /// assert_eq!(wait, Some(Duration::from_millis(100)));
    /// ```
    pub const fn limiter(&self) -> &TableKey<P> {
        &self.key
    }

    /// Returns the clock.
    ///
    /// ```
    /// # use portcullis_core::{Clock, Clocked, Concurrency, Keyed, ManualClock, Timestamp};
    /// let users = Keyed::for_keys(Concurrency::new(1), 100);
    /// let users = Clocked::new(users, ManualClock::new());
    /// assert_eq!(users.key("alice").clock().now(), Timestamp::ZERO);
    /// ```
    pub const fn clock(&self) -> &C {
        &self.clock
    }
}
