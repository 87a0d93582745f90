//! The limiter of one key of a table, in whichever slot its state is.

use core::fmt;
use core::hash::Hash;
use core::ops::Deref;

use self::sealed::Table;
use crate::keyed::line::Address;
use crate::limiter::forward;
use crate::limiter::metadata::Metadata;
use crate::{
    Answer, Ask, Back, Denied, Detail, Hints, Idle, Interval, KeyHash, Lease, Limiter, LimiterId,
    NotGranted, Read, Reading, Receipt, Refund, Retry, Returned, Tell, Timestamp, When,
};

/// A table that has a limiter for each key: [`Keyed`](crate::Keyed),
/// [`KeyedArray`](crate::KeyedArray), [`KeyedList`](crate::KeyedList),
/// [`ByAddress`](crate::ByAddress), or [`Counted`](crate::Counted) around one of them. Sealed.
///
/// ```
/// use portcullis_core::{ConcurrencyRules, Key, Keyed, Keys, Line, Seed};
/// fn available<T: Keys>(table: &T, key: &str) -> u64 {
///     use portcullis_core::{Limiter, Timestamp};
///     Key::at(table, table.locate(0, key).unwrap()).available_at(Timestamp::ZERO)
/// }
/// let table = Keyed::new(ConcurrencyRules::new(3), Line::for_keys(100), Seed::new());
/// assert_eq!(available(&table, "alice"), 3);
/// ```
pub trait Keys: sealed::Table {
    /// Returns the hash of `key` that the table finds it by.
    fn hash_of<K: Hash + ?Sized>(&self, key: &K) -> KeyHash;

    /// Returns the address of the limiter of the key with this hash, under the limit with index
    /// `limit`, or `None` if there is no such limit.
    fn locate_hashed(&self, limit: usize, hash: KeyHash) -> Option<Address>;

    /// Returns the address of the limiter of the key with this hash, under the first limit.
    #[doc(hidden)]
    fn locate_first(&self, hash: KeyHash) -> Address;

    /// Returns the address of the limiter of `key` under the limit with index `limit`, or `None` if
    /// there is no such limit.
    #[inline]
    fn locate<K: Hash + ?Sized>(&self, limit: usize, key: &K) -> Option<Address> {
        self.locate_hashed(limit, self.hash_of(key))
    }
}

/// A table that a keyed queue can own: the equivalent of [`QueueLimiter`](crate::QueueLimiter) for
/// the limiter of a key. The table owns its memory exclusively. Sealed.
///
/// ```
/// use portcullis_core::{ConcurrencyRules, Keyed, Line, QueueKeys, Seed};
/// fn waits(_: impl QueueKeys) {}
/// waits(Keyed::new(
///     ConcurrencyRules::new(3),
///     Line::for_keys(100),
///     Seed::new(),
/// ));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a table that a `KeyedQueue` can own",
    label = "expected a `Keyed` or a `KeyedArray` that owns its memory",
    note = "for several limits on each key, pass a `KeyedList`, or a table of compositions: `KeyedArray::for_keys(|| AllOf::new((..)), keys)`",
    note = "for one limit without keys, take a `Queue`"
)]
pub trait QueueKeys: Keys {
    /// Whether other callers may take from a key's limiter without going through the queue.
    const SHARED: bool;

    /// Returns the first slot with an index of at least `from` whose limiter has given out permits
    /// that return by release. A queue calls it to wait until no permit is held.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, Keyed, QueueKeys, Timestamp};
    /// let table = Keyed::for_keys(Concurrency::new(1), 100);
    /// let lease = table.key("alice").try_acquire_at(Timestamp::ZERO, 1)?;
    /// let slot = table.next_held(0).unwrap();
    /// assert_eq!(table.next_held(slot + 1), None);
    /// drop(lease);
    /// assert_eq!(table.next_held(0), None);
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    fn next_held(&self, from: usize) -> Option<usize>;
}

pub(crate) mod sealed {
    use super::{
        Address, Denied, Detail, Idle, Interval, Metadata, NotGranted, Receipt, Refund, Retry,
        Timestamp,
    };

    /// The operations of a table on the limiter at an address.
    pub trait Table: Sized {
        fn take(&self, address: &Address, now: Timestamp, n: u32) -> Result<Receipt, Denied>;
        /// [`LimiterExt::take_within`](crate::LimiterExt::take_within) for a key.
        fn take_within(&self, _: &Address, _: Interval, _: u32) -> Option<Result<Receipt, Denied>> {
            None
        }
        /// [`LimiterExt::peek_within`](crate::LimiterExt::peek_within) for a key.
        fn peek_within(&self, _: &Address, _: Interval, _: u32) -> Option<Result<(), Denied>> {
            None
        }
        fn decides_within(&self) -> bool {
            false
        }
        /// Whether the key's limiter is a composition.
        fn is_composed(&self) -> bool {
            false
        }
        /// [`LimiterExt::take_at_then`](crate::LimiterExt::take_at_then) for a key.
        fn take_then(
            &self,
            address: &Address,
            now: Timestamp,
            n: u32,
            rest: &mut dyn FnMut() -> bool,
        ) -> Result<bool, Denied> {
            let receipt = self.take(address, now, n)?;
            let done = rest();
            if !done {
                let _ = self.refund(address, now, n, receipt);
            }
            Ok(done)
        }
        /// The same as `take`, for a request whose denial is not final: see [`How`](crate::How).
        #[inline]
        fn attempt(&self, address: &Address, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
            self.take(address, now, n)
        }
        /// The same as `take_within`, for a request whose denial is not final.
        #[inline]
        fn attempt_within(
            &self,
            address: &Address,
            interval: Interval,
            n: u32,
        ) -> Option<Result<Receipt, Denied>> {
            self.take_within(address, interval, n)
        }
        /// The same as `take_then`, for a request whose denial is not final.
        fn attempt_then(
            &self,
            address: &Address,
            now: Timestamp,
            n: u32,
            rest: &mut dyn FnMut() -> bool,
        ) -> Result<bool, Denied> {
            self.take_then(address, now, n, rest)
        }
        /// See [`Back::NotGranted`](super::Back::NotGranted).
        #[inline]
        fn not_granted(&self, _: &Address, _: Timestamp, _: u32, _: NotGranted) {}
        /// See [`Back::Cancelled`](super::Back::Cancelled).
        #[inline]
        fn cancelled(&self, _: &Address, _: u32) {}
        /// [`LimiterExt::take_explained_at`](crate::LimiterExt::take_explained_at) for a key.
        fn take_explained(
            &self,
            address: &Address,
            now: Timestamp,
            n: u32,
        ) -> (Result<Receipt, Denied>, Detail);
        /// [`LimiterExt::explain_at`](crate::LimiterExt::explain_at) for a key.
        fn explain(&self, address: &Address, now: Timestamp, n: u32) -> Detail;
        fn peek(&self, address: &Address, now: Timestamp, n: u32) -> Result<(), Denied>;
        fn refund(&self, address: &Address, now: Timestamp, n: u32, receipt: Receipt) -> Refund;
        fn release(&self, address: &Address, n: u32);
        fn available(&self, address: &Address, now: Timestamp) -> u64;
        fn idle(&self, address: &Address, now: Timestamp) -> Idle;
        fn retry(&self, address: &Address, denied: Denied) -> Retry;
        fn capacity(&self, address: &Address) -> u64;
        /// Lets the key's own limiter offer its metadata. Returns whether it did; otherwise the
        /// caller offers what every limiter has.
        fn metadata(
            &self,
            _: &Address,
            _: Timestamp,
            _: Option<Denied>,
            _: &mut Metadata<'_>,
        ) -> bool {
            false
        }
    }
}

/// The limiter of one key of a table: the result of [`Keyed::key`](crate::Keyed::key) and
/// [`KeyedArray::key`](crate::KeyedArray::key).
///
/// It looks up the key's slot again at each call. It is both a limiter and a pointer to one, so a
/// [`Lease`] can hold it.
///
/// `P` points to the table: `&T`, `&'static T`, `Arc<T>` or any other `Deref`. [`Keyed::key`]
/// borrows the table. A key of an `Arc` or of a static, and its leases, can move to another thread
/// or task: see `Keyed::owned_key`.
///
/// [`Keyed::key`]: crate::Keyed::key
///
/// ```
/// use portcullis_core::{ConcurrencyRules, Keyed, Lease, Line, Seed, Timestamp};
///
/// static DOWNLOADS: Keyed<ConcurrencyRules, [Line; 64]> = Keyed::new(
///     ConcurrencyRules::new(1),
///     [const { Line::new() }; 64],
///     Seed::new(),
/// );
///
/// let lease = Lease::try_acquire_at(DOWNLOADS.key("alice"), Timestamp::ZERO, 1)?;
/// assert!(Lease::try_acquire_at(DOWNLOADS.key("alice"), Timestamp::ZERO, 1).is_err());
/// std::thread::spawn(move || drop(lease)).join().unwrap();
/// assert!(Lease::try_acquire_at(DOWNLOADS.key("alice"), Timestamp::ZERO, 1).is_ok());
/// # Ok::<(), portcullis_core::Denied>(())
/// ```
#[derive(Clone, Copy)]
pub struct Key<P>(KeyLimiter<P>);

impl<P: Deref<Target: Table>> Key<P> {
    /// Takes `n` permits at `now`, into a lease that contains the key and can live as long as the
    /// pointer to the table.
    ///
    /// # Errors
    ///
    /// The errors of the key's limiter, and [`Denied::Crowded`].
    ///
    /// ```
    /// # use portcullis_core::{ConcurrencyRules, Keyed, Line, Seed, Timestamp};
    /// let table = Keyed::new(ConcurrencyRules::new(1), Line::for_keys(100), Seed::new());
    /// let lease = table.key("alice").try_acquire_at(Timestamp::ZERO, 1)?;
    /// assert!(
    ///     table
    ///         .key("alice")
    ///         .try_acquire_at(Timestamp::ZERO, 1)
    ///         .is_err()
    /// );
    /// drop(lease);
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    #[inline]
    pub fn try_acquire_at(self, now: Timestamp, n: u32) -> Result<Lease<Self>, Denied> {
        Lease::try_acquire_at(self, now, n)
    }

    /// Takes permits as [`try_acquire_at`](Self::try_acquire_at) does, and returns what the
    /// decision saw: see [`LimiterExt::take_explained_at`](crate::LimiterExt::take_explained_at).
    ///
    /// # Errors
    ///
    /// The first result is one of the errors of the key's limiter, or [`Denied::Crowded`].
    ///
    /// ```
    /// # use portcullis_core::{Keyed, Rate, Timestamp, TokenBucket};
    /// let users = Keyed::for_keys(TokenBucket::new(Rate::per_second(5), 5), 100);
    /// let (lease, detail) = users.key("alice").try_acquire_explained_at(Timestamp::ZERO, 2);
    /// assert_eq!((lease?.permits(), detail.available, detail.capacity), (2, 3, 5));
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    #[must_use = "a lease returns its permits when it is dropped"]
    pub fn try_acquire_explained_at(
        self,
        now: Timestamp,
        n: u32,
    ) -> (Result<Lease<Self>, Denied>, Detail) {
        Lease::try_acquire_explained_at(self, now, n)
    }
}

impl<P: Deref<Target: Keys>> Key<P> {
    /// Returns the limiter of `key` under the table's first limit. The key keeps the given pointer.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, Key, Keyed, Limiter, Timestamp};
    /// use std::sync::Arc;
    /// let table = Arc::new(Keyed::for_keys(Concurrency::new(3), 100));
    /// let alice = Key::new(Arc::clone(&table), "alice");
    /// assert_eq!(alice.available_at(Timestamp::ZERO), 3);
    /// ```
    #[inline]
    pub fn new<K: Hash + ?Sized>(table: P, key: &K) -> Self {
        let address = table.locate_first(table.hash_of(key));
        Self::at(table, address)
    }

    /// Returns the limiter of `key` under the limit with index `limit`, from 0. Returns `None` if
    /// there is no such limit.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, Key, Keyed};
    /// let table = Keyed::for_keys(Concurrency::new(3), 100);
    /// assert!(Key::of(&table, 0, "alice").is_some() && Key::of(&table, 1, "alice").is_none());
    /// ```
    #[inline]
    pub fn of<K: Hash + ?Sized>(table: P, limit: usize, key: &K) -> Option<Self> {
        let address = table.locate(limit, key)?;
        Some(Self::at(table, address))
    }

    /// As [`of`](Self::of), for a key whose hash is known: see [`KeyHash`].
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, Key, Keyed, Keys, Limiter, Timestamp};
    /// let table = Keyed::for_keys(Concurrency::new(3), 100);
    /// let alice = Key::hashed(&table, 0, table.hash_of("alice"));
    /// assert_eq!(alice.map(|alice| alice.available_at(Timestamp::ZERO)), Some(3));
    /// ```
    #[inline]
    pub fn hashed(table: P, limit: usize, hash: KeyHash) -> Option<Self> {
        let address = table.locate_hashed(limit, hash)?;
        Some(Self::at(table, address))
    }
}

impl<P> Key<P> {
    /// Returns the limiter at an address of the same table. An address of another table gives the
    /// limiter of an arbitrary key.
    ///
    /// ```
    /// # use portcullis_core::{ConcurrencyRules, Key, Keyed, Limiter, Line, Seed, Timestamp};
    /// let table = Keyed::new(ConcurrencyRules::new(3), Line::for_keys(100), Seed::new());
    /// let address = table.key("alice").address();
    /// assert_eq!(Key::at(&table, address).available_at(Timestamp::ZERO), 3);
    /// ```
    #[inline]
    pub const fn at(table: P, address: Address) -> Self {
        Self(KeyLimiter { table, address })
    }

    /// Returns the address of the limiter in its table.
    ///
    /// ```
    /// # use portcullis_core::{ConcurrencyRules, Keyed, Line, Seed};
    /// let table = Keyed::new(ConcurrencyRules::new(3), Line::for_keys(100), Seed::new());
    /// assert_eq!(table.key("alice").address(), table.key("alice").address());
    /// ```
    pub const fn address(&self) -> Address {
        self.0.address
    }

    /// The table, and the address in it.
    #[inline(always)]
    pub(crate) const fn place(&self) -> (&P, &Address) {
        (&self.0.table, &self.0.address)
    }
}

impl<P> Deref for Key<P> {
    type Target = KeyLimiter<P>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<P> fmt::Debug for Key<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Key").field(&self.0).finish()
    }
}

forward!([P: Deref<Target: Table>] Key<P>);

/// The limiter that a [`Key`] points to.
///
/// ```
/// use portcullis_core::{ConcurrencyRules, Keyed, Limiter, Line, Seed, Timestamp};
/// let table = Keyed::new(ConcurrencyRules::new(3), Line::for_keys(100), Seed::new());
/// let alice = *table.key("alice");
/// assert_eq!(alice.available_at(Timestamp::ZERO), 3);
/// ```
#[derive(Clone, Copy)]
pub struct KeyLimiter<P> {
    table: P,
    address: Address,
}

impl<P> fmt::Debug for KeyLimiter<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KeyLimiter").field(&self.address).finish()
    }
}

impl<P: Deref<Target: Table>> Limiter for KeyLimiter<P> {
    #[inline(always)]
    fn decide(&self, ask: Ask<'_>) -> Answer {
        let (table, address) = (&*self.table, &self.address);
        let (when, n, is_final) = (ask.when(), ask.permits(), ask.is_final());
        let now = when.earliest();
        if ask.is_look() {
            return match (when, ask.detail()) {
                (When::Within(interval), _) => table.peek_within(address, interval, n).into(),
                (When::At(_), None) => table.peek(address, now, n).into(),
                (When::At(_), Some(seen)) => {
                    let detail = table.explain(address, now, n);
                    seen.set(Some(detail));
                    detail.decision.into()
                }
            };
        }
        match (when, ask.tell) {
            (When::Within(interval), _) if is_final => {
                table.take_within(address, interval, n).into()
            }
            (When::Within(interval), _) => table.attempt_within(address, interval, n).into(),
            (_, Tell::Grant(keep)) => {
                let granted = if is_final {
                    table.take_then(address, now, n, keep)
                } else {
                    table.attempt_then(address, now, n, keep)
                };
                match granted {
                    Ok(true) => Answer::Granted(Receipt::NONE),
                    Ok(false) => Answer::Undone,
                    Err(denied) => Answer::Denied(denied),
                }
            }
            (_, Tell::Detail(seen)) if is_final => {
                let (taken, detail) = table.take_explained(address, now, n);
                seen.set(Some(detail));
                taken.into()
            }
            _ if is_final => table.take(address, now, n).into(),
            _ => table.attempt(address, now, n).into(),
        }
    }

    #[inline(always)]
    fn give_back(&self, back: Back<'_>) -> Returned {
        let (table, address) = (&*self.table, &self.address);
        match back {
            Back::Release { permits } => table.release(address, permits),
            Back::Refund {
                now,
                permits,
                receipt,
                ..
            } => return table.refund(address, now, permits, receipt).into(),
            Back::NotGranted { now, permits, why } => table.not_granted(address, now, permits, why),
            Back::Cancelled { permits } => table.cancelled(address, permits),
            Back::Watch(_) => {}
        }
        Returned::NOTHING
    }

    /// Finds the key for each of the numbers.
    #[inline]
    fn read(&self, read: Read<'_>) -> Reading {
        let (table, address, now) = (&*self.table, &self.address, read.now());
        let denied = read.denied();
        if let Some(mut offers) = read.offers {
            table.metadata(address, now, denied, &mut offers);
        }
        Reading {
            available: table.available(address, now),
            capacity: table.capacity(address),
            idle: table.idle(address, now),
            held: 0,
        }
    }

    fn retry(&self, denied: Denied) -> Retry {
        self.table.retry(&self.address, denied)
    }

    fn id(&self) -> Option<LimiterId> {
        Some(LimiterId::within(&*self.table, self.address.identity()))
    }

    #[inline(always)]
    fn hints(&self) -> Hints {
        Hints {
            decides_within: self.table.decides_within(),
            one_receipt: !self.table.is_composed(),
        }
    }

    /// Finds the key once.
    fn available_at(&self, now: Timestamp) -> u64 {
        self.table.available(&self.address, now)
    }

    /// Finds the key once.
    fn capacity(&self) -> u64 {
        self.table.capacity(&self.address)
    }
}
