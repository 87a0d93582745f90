//! A table together with a limit for all its keys: a request takes from both or from none.
//!
//! There is no state besides that of the table and of the total. The limiter of a key is an
//! [`AllOf`] of the key's own limiter and the total. Invariant: permits taken through a key are
//! taken from both, and return to both.

use core::fmt;
use core::hash::Hash;
#[cfg(feature = "std")]
use std::sync::Arc;

use crate::all_of::AllOf;
use crate::keyed::key::{Blocked, Keys, QueueKeys, TableKey};
use crate::keyed::key_hash::KeyHash;
use crate::keyed::line::Address;
use crate::limiter::queue_limiter::QueueLimiter;
use crate::limiter::{Limiter, LimiterExt};
use crate::time::timestamp::Timestamp;

/// A table of limiters by key, and a limit for all keys together: a request for a key takes its
/// permits from the key's limiter and from the total, or from none.
///
/// The table is a [`Keyed`](crate::Keyed), a [`KeyedList`](crate::KeyedList), a
/// [`KeyedArray`](crate::KeyedArray) or any other table, and the total is any limiter. The limiter
/// of a key is an [`AllOf`] of the two, with its bound and its cost.
///
/// **In a queue.** A `KeyedQueue` of `portcullis-async` can own it. The queue then serves the keys
/// fairly: see [`with_weights`](Self::with_weights). A request that waits for the limit of its key
/// takes nothing from the total, and delays no other key.
///
/// ```
/// use portcullis_core::{Concurrency, Keyed, Timestamp};
/// use portcullis_core::keyed::WithTotal;
///
/// // Two downloads of each user at once, and three in total.
/// let table = Keyed::for_keys(Concurrency::new(2), 1_000);
/// let downloads = WithTotal::new(table, Concurrency::new(3));
/// let now = Timestamp::ZERO;
/// let alice = downloads.key("alice").try_acquire_at(now, 2)?;
/// assert!(downloads.key("alice").try_acquire_at(now, 1).is_err(), "the limit of the user");
/// let bob = downloads.key("bob").try_acquire_at(now, 1)?;
/// assert!(downloads.key("bob").try_acquire_at(now, 1).is_err(), "the total");
/// drop(alice);
/// assert_eq!(downloads.total().available(), 2);
/// # drop(bob);
/// # Ok::<(), portcullis_core::Denied>(())
/// ```
///
/// Several limits for each key, for example two requests per second and four at once:
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::{Concurrency, KeyedList, Rate, Timestamp, TokenBucket};
/// use portcullis_core::keyed::WithTotal;
///
/// let hosts = (TokenBucket::new(Rate::per_second(2), 1), Concurrency::new(4));
/// let hosts = WithTotal::new(KeyedList::for_keys(hosts, 1_000), Concurrency::new(40));
/// let now = Timestamp::ZERO;
/// let _page = hosts.key("a.example").try_acquire_at(now, 1)?;
/// assert!(hosts.key("a.example").try_acquire_at(now, 1).is_err());
/// # Ok::<(), portcullis_core::Denied>(())
/// ```
#[derive(Clone)]
pub struct WithTotal<T, L, W = fn(&Address) -> u32> {
    table: T,
    total: L,
    weights: W,
}

impl<T, L> WithTotal<T, L> {
    /// Combines a table with a limit for all its keys. All keys have the weight 1.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, Keyed};
    /// # use portcullis_core::keyed::WithTotal;
    /// let table = Keyed::for_keys(Concurrency::new(2), 1_000);
    /// let tenants = WithTotal::new(table, Concurrency::new(40));
    /// assert_eq!(tenants.total().limit(), 40);
    /// ```
    pub const fn new(table: T, total: L) -> Self {
        Self {
            table,
            total,
            weights: same,
        }
    }

    /// Sets the weights of the keys, for a queue. While several keys wait for the total, each gets
    /// permits of it in proportion to its weight.
    ///
    /// `weights` returns the weight of the key at an address of the table; 0 counts as 1. The queue
    /// calls it once for each turn of a key, while it holds its lock.
    ///
    /// A key whose requests are for one permit gets its share if its own limit allows that many
    /// permits in a whole round of the keys. It need not allow them at once: the turn of a key that
    /// its own limit cuts short goes on when that limit grants again. A key whose requests are for
    /// several permits needs an own limit of up to twice its share, because it loses what it has
    /// saved for a request when its own limit denies that one for a whole round (measured with
    /// requests for 2 to 10 permits: half of its share at an own limit of 1.1 times its share, and
    /// all of it at 1.6 times).
    ///
    /// ```
    /// use portcullis_core::{Concurrency, Keyed};
    /// use portcullis_core::keyed::WithTotal;
    /// use portcullis_core::queue::{Keys, QueueKeys};
    /// use std::collections::HashSet;
    ///
    /// let table = Keyed::for_keys(Concurrency::new(4), 1_000);
    /// let paying: HashSet<_> = ["alice", "carol"].map(|name| table.key(name).address()).into();
    /// let tenants = WithTotal::new(table, Concurrency::new(40))
    ///     .with_weights(move |tenant| if paying.contains(tenant) { 3 } else { 1 });
    /// assert_eq!(tenants.weight(&tenants.key("alice").address()), 3);
    /// assert_eq!(tenants.weight(&tenants.key("bob").address()), 1);
    /// ```
    ///
    /// Without weights, `W` is a `fn`, which cannot capture. For a field of a struct, let `W` be a
    /// `Box<dyn Fn(&Address) -> u32 + Send + Sync>`.
    pub fn with_weights<W: Fn(&Address) -> u32>(self, weights: W) -> WithTotal<T, L, W> {
        WithTotal {
            table: self.table,
            total: self.total,
            weights,
        }
    }
}

/// The weight of every key without weights.
const fn same(_: &Address) -> u32 {
    1
}

impl<T, L, W> WithTotal<T, L, W> {
    /// Returns the table.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, Keyed, Limiter, Timestamp};
    /// # use portcullis_core::keyed::WithTotal;
    /// let table = Keyed::for_keys(Concurrency::new(2), 1_000);
    /// let tenants = WithTotal::new(table, Concurrency::new(1));
    /// assert_eq!(tenants.table().key("alice").available_at(Timestamp::ZERO), 2);
    /// assert_eq!(tenants.key("alice").available_at(Timestamp::ZERO), 1);
    /// ```
    pub const fn table(&self) -> &T {
        &self.table
    }

    /// Returns the limit for all keys.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, Keyed};
    /// # use portcullis_core::keyed::WithTotal;
    /// let table = Keyed::for_keys(Concurrency::new(2), 1_000);
    /// let tenants = WithTotal::new(table, Concurrency::new(40));
    /// tenants.total().set_limit(50)?;
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn total(&self) -> &L {
        &self.total
    }
}

impl<T: Keys, L: Limiter, W> WithTotal<T, L, W> {
    /// Returns the limiter of `key`: that of the table, and the total.
    ///
    /// # Cost
    ///
    /// One hash.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, Keyed, Timestamp};
    /// # use portcullis_core::keyed::WithTotal;
    /// let table = Keyed::for_keys(Concurrency::new(2), 1_000);
    /// let tenants = WithTotal::new(table, Concurrency::new(40));
    /// let _held = tenants.key("alice").try_acquire_at(Timestamp::ZERO, 1)?;
    /// assert_eq!(tenants.total().available(), 39);
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    pub fn key<K: Hash + ?Sized>(&self, key: &K) -> TableKey<&Self> {
        TableKey::new(self, key)
    }

    /// As [`key`](Self::key), with a key and leases that own a share of the table. So a lease can
    /// move to another thread or to a task that is spawned.
    ///
    /// # Cost
    ///
    /// One hash, and a copy of the `Arc`.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, Keyed, Timestamp};
    /// # use portcullis_core::keyed::WithTotal;
    /// use std::sync::Arc;
    ///
    /// let table = Keyed::for_keys(Concurrency::new(2), 1_000);
    /// let tenants = Arc::new(WithTotal::new(table, Concurrency::new(40)));
    /// let lease = tenants.owned_key("alice").try_acquire_at(Timestamp::ZERO, 1)?;
    /// std::thread::spawn(move || drop(lease)).join().unwrap();
    /// assert_eq!(tenants.total().available(), 40);
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    #[cfg(feature = "std")]
    pub fn owned_key<K: Hash + ?Sized>(self: &Arc<Self>, key: &K) -> TableKey<Arc<Self>> {
        TableKey::new(Arc::clone(self), key)
    }
}

impl<T: Keys, L: Limiter, W> Keys for WithTotal<T, L, W> {
    type Limiter<'t>
        = AllOf<(T::Limiter<'t>, &'t L)>
    where
        Self: 't;

    #[inline(always)]
    fn limiter_at<'t>(&'t self, address: &'t Address) -> Self::Limiter<'t> {
        AllOf::new((self.table.limiter_at(address), &self.total))
    }

    #[inline]
    fn hash_of<K: Hash + ?Sized>(&self, key: &K) -> KeyHash {
        self.table.hash_of(key)
    }

    #[inline]
    fn locate(&self, hash: KeyHash) -> Address {
        self.table.locate(hash)
    }
}

impl<T: QueueKeys, L: QueueLimiter, W: Fn(&Address) -> u32> QueueKeys for WithTotal<T, L, W> {
    const SHARED: bool = T::SHARED || L::SHARED;
    const HAS_TOTAL: bool = {
        assert!(
            !T::HAS_TOTAL,
            "the table has a total: for several, pass `AllOf::new((one, other))` as the total"
        );
        true
    };

    /// The last slot stands for the total. If none of its permits are held, none of the table are
    /// unless those of the total return by time.
    fn next_held(&self, from: usize) -> Option<usize> {
        if self.total.held() > 0 {
            return Some(usize::MAX);
        }
        self.table.next_held(from)
    }

    fn blocked_by(&self, address: &Address, now: Timestamp, n: u32) -> Blocked {
        let own = self.table.limiter_at(address);
        if let Err(denied) = own.peek_at(now, n) {
            return Blocked::OwnLimit(denied, own.retry(denied));
        }
        match self.total.peek_at(now, n) {
            Ok(()) => Blocked::No,
            Err(denied) => Blocked::Total(denied, self.total.retry(denied)),
        }
    }

    fn weight(&self, address: &Address) -> u32 {
        (self.weights)(address)
    }
}

impl<T: fmt::Debug, L: fmt::Debug, W> fmt::Debug for WithTotal<T, L, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WithTotal")
            .field("table", &self.table)
            .field("total", &self.total)
            .finish_non_exhaustive()
    }
}
