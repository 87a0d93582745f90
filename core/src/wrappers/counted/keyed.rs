//! A counted table: its keys count into the tally of the table.

use core::borrow::Borrow;
use core::hash::Hash;
#[cfg(feature = "std")]
use std::sync::Arc;

use crate::keyed::key::{Blocked, Keys, QueueKeys, TableKey};
use crate::keyed::key_hash::KeyHash;
use crate::keyed::line::Address;
use crate::time::timestamp::Timestamp;
use crate::wrappers::counted::Counted;
use crate::wrappers::tally::Tally;

impl<L: Keys, T: Borrow<Tally>> Counted<L, T> {
    /// Returns the counted limiter of `key`. The key takes no slot before its first grant.
    ///
    /// # Cost
    ///
    /// One hash.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, Counted, Keyed, Timestamp};
    /// let downloads = Counted::new(Keyed::for_keys(Concurrency::new(2), 100));
    /// let lease = downloads.key("alice").try_acquire_at(Timestamp::ZERO, 2)?;
    /// assert_eq!(downloads.counts().held, 2);
    /// drop(lease);
    /// assert_eq!(downloads.counts().held, 0);
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    #[inline]
    pub fn key<K: Hash + ?Sized>(&self, key: &K) -> TableKey<&Self> {
        TableKey::new(self, key)
    }

    /// As [`key`](Self::key), for a key whose hash is known.
    ///
    /// # Cost
    ///
    /// No hash.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, Counted, Keyed};
    /// # use portcullis_core::queue::Keys;
    /// let table = Counted::new(Keyed::for_keys(Concurrency::new(3), 100));
    /// let alice = table.hash_of("alice");
    /// assert_eq!(table.key_hashed(alice).address(), table.key("alice").address());
    /// ```
    #[inline]
    pub fn key_hashed(&self, hash: KeyHash) -> TableKey<&Self> {
        TableKey::at(self, self.locate(hash))
    }

    /// As [`key`](Self::key), with a key and leases that own a share of the table. So a lease can
    /// move to another thread or to a task that is spawned.
    ///
    /// # Cost
    ///
    /// One hash, and a copy of the `Arc`.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, Counted, Keyed, Timestamp};
    /// use std::sync::Arc;
    ///
    /// let downloads = Arc::new(Counted::new(Keyed::for_keys(Concurrency::new(1), 100)));
    /// let lease = downloads.owned_key("alice").try_acquire_at(Timestamp::ZERO, 1)?;
    /// std::thread::spawn(move || drop(lease)).join().unwrap();
    /// assert_eq!(downloads.counts().held, 0);
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    #[cfg(feature = "std")]
    pub fn owned_key<K: Hash + ?Sized>(self: &Arc<Self>, key: &K) -> TableKey<Arc<Self>> {
        TableKey::new(Arc::clone(self), key)
    }
}

impl<L: Keys, T: Borrow<Tally>> Keys for Counted<L, T> {
    type Limiter<'t>
        = Counted<L::Limiter<'t>, &'t Tally>
    where
        Self: 't;

    #[inline(always)]
    fn limiter_at<'t>(&'t self, address: &'t Address) -> Self::Limiter<'t> {
        Counted::with_tally(self.limiter.limiter_at(address), self.tally())
    }

    #[inline]
    fn hash_of<K: Hash + ?Sized>(&self, key: &K) -> KeyHash {
        self.limiter.hash_of(key)
    }

    #[inline]
    fn locate(&self, hash: KeyHash) -> Address {
        self.limiter.locate(hash)
    }
}

impl<L: QueueKeys, T: Borrow<Tally>> QueueKeys for Counted<L, T> {
    const SHARED: bool = L::SHARED;

    const HAS_TOTAL: bool = L::HAS_TOTAL;

    fn next_held(&self, from: usize) -> Option<usize> {
        self.limiter.next_held(from)
    }

    fn blocked_by(&self, address: &Address, now: Timestamp, n: u32) -> Blocked {
        self.limiter.blocked_by(address, now, n)
    }

    fn weight(&self, address: &Address) -> u32 {
        self.limiter.weight(address)
    }
}
