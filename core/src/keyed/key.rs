//! The limiter of one key of a table, in whichever slot its state is.

use core::fmt;
use core::hash::Hash;
use core::ops::Deref;

use crate::keyed::key_hash::KeyHash;
use crate::keyed::line::Address;
use crate::leases::lease::Lease;
use crate::limiter::denied::{Denied, Retry};
use crate::limiter::detail::Detail;
use crate::limiter::queue_limiter::Replenishing;
use crate::limiter::{
    Answer, Ask, Back, Hints, Limiter, LimiterExt, LimiterId, Read, Reading, Returned, forward,
};
use crate::time::timestamp::Timestamp;

/// A table that has a limiter for each key: [`Keyed`](crate::Keyed),
/// [`KeyedArray`](crate::KeyedArray), [`KeyedList`](crate::KeyedList), a
/// [`Counted`](crate::Counted) one of them, one with a limit for all keys
/// ([`WithTotal`](crate::keyed::WithTotal)), or one of the user's own.
///
/// ```
/// use portcullis_core::Keyed;
/// use portcullis_core::keyed::{ConcurrencyRules, TableKey, Line, Seed};
/// use portcullis_core::queue::Keys;
/// fn available<T: Keys>(table: &T, key: &str) -> u64 {
///     use portcullis_core::{Limiter, Timestamp};
///     TableKey::at(table, table.locate(table.hash_of(key))).available_at(Timestamp::ZERO)
/// }
/// let table = Keyed::new(ConcurrencyRules::new(3), Line::for_keys(100), Seed::new());
/// assert_eq!(available(&table, "alice"), 3);
/// ```
///
/// # Implementing
///
/// A table of the user's own makes a limiter for each [`Address`]. For example, a request can take
/// from two tables that have the same number of lines and equal hashers: a key then has the same
/// address in both. With [`QueueKeys`] a keyed queue can own the table.
///
/// ```
/// use core::hash::Hash;
/// use portcullis_core::{Denied, Keyed, Limiter, Retry, Timestamp};
/// use portcullis_core::keyed::{Address, ConcurrencyRules, TableKey, KeyHash, Line, Seed};
/// use portcullis_core::limiter::{Answer, Ask, Back, Read, Reading, Refund, Returned};
/// use portcullis_core::queue::Keys;
///
/// type Table = Keyed<ConcurrencyRules, [Line; 8], Seed>;
///
/// /// Permits of a table, two for each request.
/// struct Twice(Table);
/// struct TwiceOf<'t>(TableKey<&'t Table>);
///
/// impl Keys for Twice {
///     type Limiter<'t> = TwiceOf<'t>;
///     fn limiter_at<'t>(&'t self, address: &'t Address) -> TwiceOf<'t> {
///         TwiceOf(TableKey::at(&self.0, *address))
///     }
///     fn hash_of<K: Hash + ?Sized>(&self, key: &K) -> KeyHash {
///         self.0.hash_of(key)
///     }
///     fn locate(&self, hash: KeyHash) -> Address {
///         self.0.locate(hash)
///     }
/// }
///
/// impl Limiter for TwiceOf<'_> {
///     fn decide(&self, ask: Ask<'_>) -> Answer {
///         let permits = ask.permits();
///         self.0.decide(ask.with_permits(2 * permits))
///     }
///     fn give_back(&self, back: Back<'_>) -> Returned {
///         match back {
///             Back::Release { permits } => {
///                 self.0.give_back(Back::Release { permits: 2 * permits })
///             }
///             Back::Refund { now, permits, receipt, .. } => {
///                 let Refund { permits, rest } = self.0.refund_at(now, 2 * permits, receipt);
///                 Refund { permits: permits / 2, rest }.into()
///             }
///             back => self.0.give_back(back),
///         }
///     }
///     fn read(&self, read: Read<'_>) -> Reading {
///         let all = self.0.read(read);
///         Reading { available: all.available / 2, capacity: all.capacity / 2, ..all }
///     }
///     fn retry(&self, denied: Denied) -> Retry {
///         self.0.retry(denied)
///     }
/// }
///
/// let lines = [const { Line::new() }; 8];
/// let table = Twice(Keyed::new(ConcurrencyRules::new(5), lines, Seed::new()));
/// let alice = TableKey::new(&table, "alice");
/// assert_eq!(alice.available_at(Timestamp::ZERO), 2);
/// ```
pub trait Keys: Sized {
    /// The limiter of one key.
    type Limiter<'t>: Limiter
    where
        Self: 't;

    /// Returns the limiter of the key at `address`.
    fn limiter_at<'t>(&'t self, address: &'t Address) -> Self::Limiter<'t>;

    /// Returns the hash of `key` that the table finds it by.
    fn hash_of<K: Hash + ?Sized>(&self, key: &K) -> KeyHash;

    /// Returns the address of the limiter of the key with this hash.
    fn locate(&self, hash: KeyHash) -> Address;
}

/// A table that a keyed queue can own: the equivalent of
/// [`QueueLimiter`](crate::queue::QueueLimiter) for the limiter of a key. The table owns its memory
/// exclusively.
///
/// # Implementing
///
/// If permits of the limiters return by [release](Limiter::release), all of them must be released
/// through the queue that owns the table. If they are released in another way, the queue must be
/// told by `QueueKey::serve` of `portcullis-async`.
///
/// ```
/// use portcullis_core::Keyed;
/// use portcullis_core::keyed::{ConcurrencyRules, Line, Seed};
/// use portcullis_core::queue::QueueKeys;
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
    note = "for a limit of all keys as well, pass `WithTotal::new(table, total)`",
    note = "for one limit without keys, take a `Queue`"
)]
pub trait QueueKeys: Keys {
    /// Whether other callers may take from a key's limiter without going through the queue.
    const SHARED: bool;

    /// Returns the first slot with an index of at least `from` whose limiter has given out permits
    /// that return by release. A queue calls it to wait until no permit is held.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, Keyed, Timestamp};
    /// # use portcullis_core::queue::QueueKeys;
    /// let table = Keyed::for_keys(Concurrency::new(1), 100);
    /// let lease = table.key("alice").try_acquire_at(Timestamp::ZERO, 1)?;
    /// let slot = table.next_held(0).unwrap();
    /// assert_eq!(table.next_held(slot + 1), None);
    /// drop(lease);
    /// assert_eq!(table.next_held(0), None);
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    fn next_held(&self, from: usize) -> Option<usize>;

    /// Whether there is a limit for all keys together, as [`WithTotal`](crate::keyed::WithTotal)
    /// has one. If so, implement [`blocked_by`](Self::blocked_by). The default is `false`.
    const HAS_TOTAL: bool = false;

    /// Says whether the limiter of a key denies `n` permits at `now`, and if so, which of its
    /// limits: its own is asked first. Changes nothing. A queue calls it only if
    /// [`HAS_TOTAL`](Self::HAS_TOTAL), to know which keys wait for the total.
    fn blocked_by(&self, address: &Address, now: Timestamp, n: u32) -> Blocked {
        let _ = (address, now, n);
        Blocked::No
    }

    /// Returns the weight of a key among those that wait for the total; 0 counts as 1. A queue
    /// calls it only if [`HAS_TOTAL`](Self::HAS_TOTAL), while it holds its lock. The default is 1.
    fn weight(&self, address: &Address) -> u32 {
        let _ = address;
        1
    }
}

/// Which limit of a key denies a request: the result of [`QueueKeys::blocked_by`].
///
/// ```
/// use portcullis_core::{Concurrency, Keyed, Retry, Timestamp};
/// use portcullis_core::keyed::WithTotal;
/// use portcullis_core::queue::{Blocked, QueueKeys};
///
/// let table = WithTotal::new(Keyed::for_keys(Concurrency::new(2), 100), Concurrency::new(2));
/// let (alice, bob) = (table.key("alice"), table.key("bob"));
/// let now = Timestamp::ZERO;
/// let _held = alice.try_acquire_at(now, 2)?;
/// assert!(matches!(table.blocked_by(&alice.address(), now, 1), Blocked::OwnLimit(..)));
/// assert!(matches!(
///     table.blocked_by(&bob.address(), now, 1),
///     Blocked::Total(_, Retry::OnRelease)
/// ));
/// # Ok::<(), portcullis_core::Denied>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a queue must act on each")]
pub enum Blocked {
    /// Both limits grant the request.
    No,
    /// The key's own limit denies the request, and says when to retry.
    OwnLimit(Denied, Retry),
    /// The key's own limit grants the request. The limit for all keys denies it, and says when to
    /// retry.
    Total(Denied, Retry),
}

/// The key at an address of a table, whose limiter the table itself decides.
#[derive(Debug)]
pub struct KeyIn<'t, T> {
    pub(crate) table: &'t T,
    pub(crate) address: &'t Address,
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
/// use portcullis_core::{Keyed, Lease, Timestamp};
/// use portcullis_core::keyed::{ConcurrencyRules, Line, Seed};
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
pub struct TableKey<P>(KeyLimiter<P>);

impl<P: Deref<Target: Keys>> TableKey<P> {
    /// Takes `n` permits at `now`, into a lease that contains the key and can live as long as the
    /// pointer to the table.
    ///
    /// # Errors
    ///
    /// The errors of the key's limiter, and [`Denied::Crowded`].
    ///
    /// ```
    /// # use portcullis_core::{Keyed, Timestamp};
    /// # use portcullis_core::keyed::{ConcurrencyRules, Line, Seed};
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

    /// Takes `n` permits that return by time, and returns whether it got them: see
    /// [`LimiterExt::allow_at`](crate::LimiterExt::allow_at). Not for a
    /// [`KeyedList`](crate::KeyedList).
    ///
    /// ```
    /// # use portcullis_core::{Keyed, Rate, Timestamp, TokenBucket};
    /// let users = Keyed::for_keys(TokenBucket::new(Rate::per_second(5), 1), 100);
    /// assert!(users.key("alice").allow_at(Timestamp::ZERO, 1));
    /// assert!(!users.key("alice").allow_at(Timestamp::ZERO, 1));
    /// ```
    #[inline]
    #[must_use = "the permits are taken"]
    pub fn allow_at<'t>(&'t self, now: Timestamp, n: u32) -> bool
    where
        <P::Target as Keys>::Limiter<'t>: Replenishing,
    {
        LimiterExt::try_acquire_at(&**self, now, n).is_ok()
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

    /// Returns the limiter of `key`. The key keeps the given pointer.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, Keyed, Limiter, Timestamp};
    /// # use portcullis_core::keyed::TableKey;
    /// use std::sync::Arc;
    /// let table = Arc::new(Keyed::for_keys(Concurrency::new(3), 100));
    /// let alice = TableKey::new(Arc::clone(&table), "alice");
    /// assert_eq!(alice.available_at(Timestamp::ZERO), 3);
    /// ```
    #[inline]
    pub fn new<K: Hash + ?Sized>(table: P, key: &K) -> Self {
        let address = table.locate(table.hash_of(key));
        Self::at(table, address)
    }
}

impl<P> TableKey<P> {
    /// Returns the limiter at an address of the same table. An address of another table gives the
    /// limiter of an arbitrary key.
    ///
    /// ```
    /// # use portcullis_core::{Keyed, Limiter, Timestamp};
    /// # use portcullis_core::keyed::{ConcurrencyRules, TableKey, Line, Seed};
    /// let table = Keyed::new(ConcurrencyRules::new(3), Line::for_keys(100), Seed::new());
    /// let address = table.key("alice").address();
    /// assert_eq!(TableKey::at(&table, address).available_at(Timestamp::ZERO), 3);
    /// ```
    #[inline]
    pub const fn at(table: P, address: Address) -> Self {
        Self(KeyLimiter { table, address })
    }

    /// Returns the address of the limiter in its table.
    ///
    /// ```
    /// # use portcullis_core::Keyed;
    /// # use portcullis_core::keyed::{ConcurrencyRules, Line, Seed};
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

impl<P> Deref for TableKey<P> {
    type Target = KeyLimiter<P>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<P> fmt::Debug for TableKey<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TableKey").field(&self.0).finish()
    }
}

forward!([P: Deref<Target: Keys>] TableKey<P>);

/// The limiter that a [`TableKey`] points to.
///
/// ```
/// use portcullis_core::{Keyed, Limiter, Timestamp};
/// use portcullis_core::keyed::{ConcurrencyRules, Line, Seed};
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

impl<P: Deref<Target: Keys>> KeyLimiter<P> {
    #[inline(always)]
    fn limiter(&self) -> <P::Target as Keys>::Limiter<'_> {
        self.table.limiter_at(&self.address)
    }
}

impl<P: Deref<Target: Keys>> Limiter for KeyLimiter<P> {
    #[inline(always)]
    fn decide(&self, ask: Ask<'_>) -> Answer {
        self.limiter().decide(ask)
    }

    /// Never says whether requests wait: the limiter of a key is not watched.
    #[inline(always)]
    fn give_back(&self, back: Back<'_>) -> Returned {
        if let Back::Watch(_) = back {
            return Returned::NOTHING;
        }
        self.limiter().give_back(back).refund.into()
    }

    #[inline]
    fn read(&self, read: Read<'_>) -> Reading {
        self.limiter().read(read)
    }

    fn retry(&self, denied: Denied) -> Retry {
        self.limiter().retry(denied)
    }

    fn id(&self) -> Option<LimiterId> {
        Some(LimiterId::within(&*self.table, self.address.identity()))
    }

    #[inline(always)]
    fn hints(&self) -> Hints {
        self.limiter().hints()
    }
}
