//! A table of the user's own for a keyed queue: a limiter that is made for an address.

use core::hash::Hash;

use crate::keyed::key::{Keys, QueueKeys, sealed::Table};
use crate::keyed::line::Address;
use crate::limiter::metadata::Metadata;
use crate::{
    Ask, Back, Denied, Detail, How, Idle, Interval, KeyHash, Limiter, LimiterExt, NotGranted,
    Receipt, Refund, Retry, Timestamp,
};

/// Limiters of the user's own, one for each [`Address`] of a table: what [`ByAddress`] makes a
/// table of.
///
/// For example, a request can take from two tables that have the same number of lines and equal
/// hashers. A key then has the same address in both.
///
/// # Implementing
///
/// If permits of the limiters return by [release](Limiter::release), all of them must be released
/// through the queue that owns the table. If they are released in another way, the queue must be
/// told by `QueueKey::serve` of `portcullis-async`.
pub trait LimitersByAddress {
    /// The limiter of one key.
    type Limiter<'t>: Limiter
    where
        Self: 't;

    /// Returns the limiter of the key at `address`.
    fn limiter_at(&self, address: Address) -> Self::Limiter<'_>;

    /// Returns the hash of `key`.
    fn hash_of<K: Hash + ?Sized>(&self, key: &K) -> KeyHash;

    /// Returns the address of the key with this hash.
    fn locate(&self, hash: KeyHash) -> Address;

    /// Returns whether a limiter takes from several limits. If one of them denies, such a limiter
    /// may have taken from others, and refunded these permits. A queue then serves the requests
    /// that wait for them.
    fn is_composed(&self) -> bool;

    /// Returns the first slot with an index of at least `from` whose limiter has given out permits
    /// that return by release: see [`QueueKeys::next_held`].
    fn next_held(&self, from: usize) -> Option<usize>;
}

/// A table of [limiters by address](LimitersByAddress), which a keyed queue can own.
///
/// ```
/// use core::hash::Hash;
/// use portcullis_core::{
///     Address, Answer, Ask, Back, ByAddress, ConcurrencyRules, Denied, Key, KeyHash, Keyed, Keys,
///     Limiter, LimitersByAddress, Line, QueueKeys, Read, Reading, Refund, Retry, Returned, Seed,
///     Timestamp,
/// };
///
/// type Table = Keyed<ConcurrencyRules, [Line; 8], Seed>;
///
/// /// Permits of a table, two for each request.
/// struct Twice(Table);
/// struct TwiceOf<'t>(Key<&'t Table>);
///
/// impl LimitersByAddress for Twice {
///     type Limiter<'t> = TwiceOf<'t>;
///     fn limiter_at(&self, address: Address) -> TwiceOf<'_> {
///         TwiceOf(Key::at(&self.0, address))
///     }
///     fn hash_of<K: Hash + ?Sized>(&self, key: &K) -> KeyHash {
///         self.0.hash_of(key)
///     }
///     fn locate(&self, hash: KeyHash) -> Address {
///         self.0.locate_hashed(0, hash).expect("the table has a limit")
///     }
///     fn is_composed(&self) -> bool {
///         false
///     }
///     fn next_held(&self, from: usize) -> Option<usize> {
///         self.0.next_held(from)
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
/// let table = ByAddress(Twice(Keyed::new(ConcurrencyRules::new(5), lines, Seed::new())));
/// let alice = Key::new(&table, "alice");
/// assert_eq!(alice.available_at(Timestamp::ZERO), 2);
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::exhaustive_structs, reason = "a wrapper of one value")]
pub struct ByAddress<T>(pub T);

impl<T: LimitersByAddress> Keys for ByAddress<T> {
    #[inline]
    fn hash_of<K: Hash + ?Sized>(&self, key: &K) -> KeyHash {
        self.0.hash_of(key)
    }

    #[inline]
    fn locate_hashed(&self, limit: usize, hash: KeyHash) -> Option<Address> {
        (limit == 0).then(|| self.0.locate(hash))
    }

    #[inline]
    fn locate_first(&self, hash: KeyHash) -> Address {
        self.0.locate(hash)
    }
}

impl<T: LimitersByAddress> QueueKeys for ByAddress<T> {
    const SHARED: bool = false;

    fn next_held(&self, from: usize) -> Option<usize> {
        self.0.next_held(from)
    }
}

impl<T: LimitersByAddress> ByAddress<T> {
    #[inline(always)]
    fn at(&self, address: &Address) -> T::Limiter<'_> {
        self.0.limiter_at(*address)
    }
}

impl<T: LimitersByAddress> Table for ByAddress<T> {
    fn take(&self, address: &Address, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        self.at(address).take_at(now, n)
    }

    fn take_explained(
        &self,
        address: &Address,
        now: Timestamp,
        n: u32,
    ) -> (Result<Receipt, Denied>, Detail) {
        self.at(address).take_explained_at(now, n)
    }

    fn explain(&self, address: &Address, now: Timestamp, n: u32) -> Detail {
        self.at(address).explain_at(now, n)
    }

    fn take_within(
        &self,
        address: &Address,
        interval: Interval,
        n: u32,
    ) -> Option<Result<Receipt, Denied>> {
        self.at(address).take_within(interval, n)
    }

    fn peek_within(
        &self,
        address: &Address,
        interval: Interval,
        n: u32,
    ) -> Option<Result<(), Denied>> {
        self.at(address).peek_within(interval, n)
    }

    fn is_composed(&self) -> bool {
        self.0.is_composed()
    }

    fn take_then(
        &self,
        address: &Address,
        now: Timestamp,
        n: u32,
        rest: &mut dyn FnMut() -> bool,
    ) -> Result<bool, Denied> {
        self.at(address).take_at_then(now, n, rest)
    }

    fn attempt(&self, address: &Address, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        let ask = Ask::new(now, n, How::Attempt);
        self.at(address).decide(ask).taken(now, n)
    }

    fn attempt_then(
        &self,
        address: &Address,
        now: Timestamp,
        n: u32,
        rest: &mut dyn FnMut() -> bool,
    ) -> Result<bool, Denied> {
        let ask = Ask::new(now, n, How::Attempt);
        ask.put_then(&self.at(address), rest)
    }

    fn not_granted(&self, address: &Address, now: Timestamp, n: u32, why: NotGranted) {
        let permits = n;
        let back = Back::NotGranted { now, permits, why };
        let _ = self.at(address).give_back(back);
    }

    fn cancelled(&self, address: &Address, n: u32) {
        let back = Back::Cancelled { permits: n };
        let _ = self.at(address).give_back(back);
    }

    fn peek(&self, address: &Address, now: Timestamp, n: u32) -> Result<(), Denied> {
        self.at(address).peek_at(now, n)
    }

    fn refund(&self, address: &Address, now: Timestamp, n: u32, receipt: Receipt) -> Refund {
        self.at(address).refund_at(now, n, receipt)
    }

    fn release(&self, address: &Address, n: u32) {
        self.at(address).release(n);
    }

    fn available(&self, address: &Address, now: Timestamp) -> u64 {
        self.at(address).available_at(now)
    }

    fn idle(&self, address: &Address, now: Timestamp) -> Idle {
        self.at(address).idle_at(now)
    }

    fn retry(&self, address: &Address, denied: Denied) -> Retry {
        self.at(address).retry(denied)
    }

    fn capacity(&self, address: &Address) -> u64 {
        self.at(address).capacity()
    }

    fn metadata(
        &self,
        address: &Address,
        now: Timestamp,
        denied: Option<Denied>,
        offers: &mut Metadata<'_>,
    ) -> bool {
        self.at(address).metadata(now, denied, offers);
        true
    }
}
