//! A counted table: its keys count into the tally of the table.

use core::borrow::Borrow;
use core::hash::Hash;
#[cfg(feature = "std")]
use std::sync::Arc;

use crate::keyed::key::sealed::Table;
use crate::keyed::key::{Key, Keys, QueueKeys};
use crate::keyed::key_hash::KeyHash;
use crate::keyed::line::Address;
use crate::limiter::Idle;
use crate::limiter::denied::{Denied, Retry};
use crate::limiter::detail::Detail;
use crate::limiter::metadata::Metadata;
use crate::limiter::not_granted::NotGranted;
use crate::limiter::receipt::{Receipt, Refund};
use crate::time::interval::Interval;
use crate::time::timestamp::Timestamp;
use crate::wrappers::counted::Counted;
use crate::wrappers::tally::Tally;

impl<L: Keys, T: Borrow<Tally>> Counted<L, T> {
    /// Returns the counted limiter of `key` under the table's first limit. The key takes no slot
    /// before its first grant.
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
    pub fn key<K: Hash + ?Sized>(&self, key: &K) -> Key<&Self> {
        Key::new(self, key)
    }

    /// Returns the counted limiter of `key` under the limit with index `limit`, from 0. Returns
    /// `None` if there is no such limit.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Counted, Keyed, Timestamp};
    /// # use portcullis_core::keyed::{FixedWindowRules, Line, Seed};
    /// let limits = [100, 5].map(|limit| FixedWindowRules::new(limit, Duration::from_secs(60)));
    /// let users = Counted::new(Keyed::with_limits(limits, Line::for_keys(100), Seed::new()));
    /// let writes = users.key_of(1, "alice").expect("the table has this limit");
    /// assert!(writes.try_acquire_at(Timestamp::ZERO, 6).is_err());
    /// assert_eq!(users.counts().refused.requests, 1);
    /// assert!(users.key_of(2, "alice").is_none());
    /// ```
    #[inline]
    pub fn key_of<K: Hash + ?Sized>(&self, limit: usize, key: &K) -> Option<Key<&Self>> {
        Key::of(self, limit, key)
    }

    /// As [`key`](Self::key), for a key whose hash is known. For a table with several limits, see
    /// [`Key::hashed`].
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
    pub fn key_hashed(&self, hash: KeyHash) -> Key<&Self> {
        Key::at(self, self.locate_first(hash))
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
    pub fn owned_key<K: Hash + ?Sized>(self: &Arc<Self>, key: &K) -> Key<Arc<Self>> {
        Key::new(Arc::clone(self), key)
    }
}

impl<L: Keys, T: Borrow<Tally>> Keys for Counted<L, T> {
    #[inline]
    fn hash_of<K: Hash + ?Sized>(&self, key: &K) -> KeyHash {
        self.limiter.hash_of(key)
    }

    #[inline]
    fn locate_hashed(&self, limit: usize, hash: KeyHash) -> Option<Address> {
        self.limiter.locate_hashed(limit, hash)
    }

    #[inline]
    fn locate_first(&self, hash: KeyHash) -> Address {
        self.limiter.locate_first(hash)
    }
}

impl<L: QueueKeys, T: Borrow<Tally>> QueueKeys for Counted<L, T> {
    const SHARED: bool = L::SHARED;

    fn next_held(&self, from: usize) -> Option<usize> {
        self.limiter.next_held(from)
    }
}

impl<L, T: Borrow<Tally>> Counted<L, T> {
    /// Counts a final decision.
    #[inline]
    fn count<G>(&self, n: u32, decision: Result<G, Denied>) -> Result<G, Denied> {
        self.tally().decided(n, &decision);
        decision
    }

    /// Counts a grant. A denial is not final.
    #[inline]
    fn count_grant<G>(&self, n: u32, decision: Result<G, Denied>) -> Result<G, Denied> {
        if decision.is_ok() {
            self.tally().granted(n);
        }
        decision
    }

    /// Counts the final decision about a take that a composition undoes if another limit denies.
    fn count_then(
        &self,
        n: u32,
        rest: &mut dyn FnMut() -> bool,
        take: impl FnOnce(&L, &mut dyn FnMut() -> bool) -> Result<bool, Denied>,
    ) -> Result<bool, Denied> {
        let granted = self.count_grant_then(n, rest, take);
        if let Err(denied) = granted {
            self.tally().not_granted(n, denied.into());
        }
        granted
    }

    /// The same for a take whose denial is not final.
    fn count_grant_then(
        &self,
        n: u32,
        rest: &mut dyn FnMut() -> bool,
        take: impl FnOnce(&L, &mut dyn FnMut() -> bool) -> Result<bool, Denied>,
    ) -> Result<bool, Denied> {
        /// Permits that count as held until they are given back.
        struct Held<'a>(&'a Tally, u32);
        impl Drop for Held<'_> {
            fn drop(&mut self) {
                self.0.returned(self.1);
            }
        }
        take(&self.limiter, &mut || {
            self.tally().granted(n);
            let held = Held(self.tally(), n);
            let done = rest();
            if done {
                core::mem::forget(held);
            }
            done
        })
    }
}

impl<L: Table, T: Borrow<Tally>> Table for Counted<L, T> {
    #[inline]
    fn take(&self, address: &Address, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        self.count(n, self.limiter.take(address, now, n))
    }

    #[inline]
    fn take_within(
        &self,
        address: &Address,
        interval: Interval,
        n: u32,
    ) -> Option<Result<Receipt, Denied>> {
        let decision = self.limiter.take_within(address, interval, n)?;
        Some(self.count(n, decision))
    }

    #[inline]
    fn peek_within(
        &self,
        address: &Address,
        interval: Interval,
        n: u32,
    ) -> Option<Result<(), Denied>> {
        self.limiter.peek_within(address, interval, n)
    }

    #[inline]
    fn decides_within(&self) -> bool {
        self.limiter.decides_within()
    }

    fn is_composed(&self) -> bool {
        self.limiter.is_composed()
    }

    fn take_then(
        &self,
        address: &Address,
        now: Timestamp,
        n: u32,
        rest: &mut dyn FnMut() -> bool,
    ) -> Result<bool, Denied> {
        self.count_then(n, rest, |table, rest| {
            table.take_then(address, now, n, rest)
        })
    }

    fn attempt(&self, address: &Address, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        self.count_grant(n, self.limiter.attempt(address, now, n))
    }

    #[inline]
    fn attempt_within(
        &self,
        address: &Address,
        interval: Interval,
        n: u32,
    ) -> Option<Result<Receipt, Denied>> {
        let decision = self.limiter.attempt_within(address, interval, n)?;
        Some(self.count_grant(n, decision))
    }

    fn attempt_then(
        &self,
        address: &Address,
        now: Timestamp,
        n: u32,
        rest: &mut dyn FnMut() -> bool,
    ) -> Result<bool, Denied> {
        self.count_grant_then(n, rest, |table, rest| {
            table.attempt_then(address, now, n, rest)
        })
    }

    fn not_granted(&self, address: &Address, now: Timestamp, n: u32, why: NotGranted) {
        self.limiter.not_granted(address, now, n, why);
        self.tally().not_granted(n, why);
    }

    fn cancelled(&self, address: &Address, n: u32) {
        self.tally().cancelled(n);
        self.limiter.cancelled(address, n);
    }

    fn take_explained(
        &self,
        address: &Address,
        now: Timestamp,
        n: u32,
    ) -> (Result<Receipt, Denied>, Detail) {
        let (taken, detail) = self.limiter.take_explained(address, now, n);
        (self.count(n, taken), detail)
    }

    fn explain(&self, address: &Address, now: Timestamp, n: u32) -> Detail {
        self.limiter.explain(address, now, n)
    }

    fn peek(&self, address: &Address, now: Timestamp, n: u32) -> Result<(), Denied> {
        self.limiter.peek(address, now, n)
    }

    fn refund(&self, address: &Address, now: Timestamp, n: u32, receipt: Receipt) -> Refund {
        self.tally().returned(n);
        self.limiter.refund(address, now, n, receipt)
    }

    #[inline]
    fn release(&self, address: &Address, n: u32) {
        self.tally().returned(n);
        self.limiter.release(address, n);
    }

    fn available(&self, address: &Address, now: Timestamp) -> u64 {
        self.limiter.available(address, now)
    }

    fn idle(&self, address: &Address, now: Timestamp) -> Idle {
        self.limiter.idle(address, now)
    }

    fn retry(&self, address: &Address, denied: Denied) -> Retry {
        self.limiter.retry(address, denied)
    }

    fn capacity(&self, address: &Address) -> u64 {
        self.limiter.capacity(address)
    }

    fn metadata(
        &self,
        address: &Address,
        now: Timestamp,
        denied: Option<Denied>,
        offers: &mut Metadata<'_>,
    ) -> bool {
        self.limiter.metadata(address, now, denied, offers)
    }
}
