//! A table of limiters of any type by key; see [`line`](super::line) for how a key comes by an
//! entry.
//!
//! State of an entry, above its tag, and beside it a limiter, which is never reset:
//!
//! ```text
//! bits 42      16   15      7   6      0
//! +--------------+-----------+---------+     uses: how often it was used, wrapping
//! |     uses     |   time    |  users  |     time: of the last use, in stalenesses, wrapping
//! +--------------+-----------+---------+     users: calls that are under way
//! ```
//!
//! (Of the 20 bits that there are in a word of 32, 5 are for users and 7 for the time.)
//!
//! Transitions: a call counts itself in and notes the time, by compare-exchange; works on the
//! limiter; and counts itself out, and the use, in one fetch-add. A claim takes an entry only from
//! the very word that it read before it saw that the limiter was as good as new: no user, and the
//! last use long enough ago. A use between the two changes the word.
//!
//! Invariant: while a call works on a limiter, its entry is held by the call's key.

use core::fmt;
use core::hash::{BuildHasher, Hash};
use core::ops::RangeBounds;
use core::time::Duration;
#[cfg(feature = "std")]
use std::boxed::Box;

use crate::keyed::key::{self, Key, Keys, QueueKeys};
#[cfg(feature = "std")]
use crate::keyed::line::PLACES;
use crate::keyed::line::{Address, Entry, Found, Held, Line};
use crate::keyed::table::{ATTEMPTS, KeyedStatistics, Table};
use crate::limiter::composable::as_composed;
use crate::limiter::metadata::Metadata;
use crate::sync::const_unless_loom;
use crate::{
    Denied, Idle, Limiter, LimiterExt, NativeWord, QueueLimiter, Receipt, Refund, Retry, Seed,
    Timestamp,
};

/// A limiter of any type for each key, in a table of fixed size: without a lock, without
/// allocation.
///
/// What [`Keyed`](crate::Keyed) is for limiters of one word, this is for all others: sliding
/// windows, penalties, limits that can be changed, wrappers, limiters of your own. Each entry has a
/// limiter object beside it, from `A` (`[L; 512]`, `Box<[L]>`, `Vec<L>`), eight for each line of
/// `M`. They must all be alike, and as good as new.
///
/// **Bound.** Each key is granted no more than a limiter of its own would grant it, as long as a
/// limiter's [`idle_at`](Limiter::idle_at) says the truth. One that never says that it is idle, as
/// a limiter of your own does by default, keeps its entry for ever.
///
/// **Self-cleaning.** An entry is given to another key only when its limiter is idle and was so a
/// [staleness](Self::staleness) ago, nobody is using it, and its last use was one to two
/// stalenesses ago or longer. Limiters are never reset: one that is as good as new needs none.
/// Otherwise as `Keyed`: a key for which there is no entry is denied, [`Denied::Crowded`]. What a
/// limiter counts that is not a part of being idle, [`Counted`](crate::Counted) for one, goes on
/// from key to key.
///
/// **Time** has to go on for an entry to be forgotten: give a real `now`, also where the limiter
/// itself (a concurrency limit, say) needs none.
///
/// **Cost.** A hash, an entry's cache line and the limiter's own; two atomic writes beside the
/// limiter's own, also for a denial. At most 127 calls at once for one key (31 on targets without
/// 64-bit atomics); more are denied. Lock-free where the limiter is, as `Keyed` is.
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::{
///     Denied, KeyedArray, LimiterExt, Penalty, Rate, Seed, Timestamp, TokenBucket,
/// };
///
/// // Who asks too often is not heard for a minute.
/// let limiter = || {
///     Penalty::new(
///         TokenBucket::new(Rate::per_second(1), 5),
///         Duration::from_secs(60),
///     )
/// };
/// let users = KeyedArray::for_keys(1_000, limiter, Seed::new());
///
/// let alice = users.key("alice");
/// assert!(alice.try_acquire_at(Timestamp::from_secs(1), 5).is_ok());
/// assert!(alice.try_acquire_at(Timestamp::from_secs(1), 1).is_err());
/// assert!(matches!(
///     alice.try_acquire_at(Timestamp::from_secs(50), 1),
///     Err(Denied::Penalized { .. })
/// ));
/// assert!(
///     users
///         .key("bob")
///         .try_acquire_at(Timestamp::from_secs(50), 1)
///         .is_ok()
/// );
/// ```
pub struct KeyedArray<L, A, M, S = Seed> {
    /// Never taken from: answers for those that have no entry.
    fresh: L,
    limiters: A,
    table: Table<M, S>,
}

const TIME_AT: u32 = if NativeWord::BITS == 64 { 7 } else { 5 };
const USERS: u64 = (1 << TIME_AT) - 1;
const TIME_BITS: u32 = if NativeWord::BITS == 64 { 9 } else { 7 };
const TIMES: u64 = (1 << TIME_BITS) - 1;
/// Counts a user out, and a use.
const USED: u64 = (1 << (TIME_AT + TIME_BITS)) - 1;

impl<L, A, M, S> KeyedArray<L, A, M, S> {
    const_unless_loom! {
        /// A table with `limiters`, eight for each of `lines` (an entry without a limiter is not
        /// used), all like `fresh`, which answers for keys without an entry.
        ///
        /// ```
        /// # use core::time::Duration;
        /// # use portcullis_core::{KeyedArray, Line, Seed, SlidingWindow};
        /// static USERS: KeyedArray<SlidingWindow<8>, [SlidingWindow<8>; 1_024], [Line; 128]> =
        ///     KeyedArray::new(
        ///     SlidingWindow::new(100, Duration::from_secs(60), 8),
        ///     [const { SlidingWindow::new(100, Duration::from_secs(60), 8) }; 1_024],
        ///     [const { Line::new() }; 128],
        ///     Seed::new(),
        /// );
        /// ```
        pub const fn new(fresh: L, limiters: A, lines: M, hasher: S) -> Self {
            Self { fresh, limiters, table: Table::new(lines, hasher) }
        }
    }

    /// How long an entry is kept for its key at least, 1 s (the default) to 292 years; see
    /// [`Keyed::with_staleness`](crate::Keyed::with_staleness).
    ///
    /// # Panics
    ///
    /// Outside of that range; in a constant or a static, that is a compile error.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Concurrency, KeyedArray, Line, Seed};
    /// let table = KeyedArray::new(
    ///     Concurrency::new(1),
    ///     [const { Concurrency::new(1) }; 8],
    ///     [Line::new()],
    ///     Seed::new(),
    /// );
    /// assert_eq!(
    ///     table.with_staleness(Duration::from_secs(5)).staleness(),
    ///     Duration::from_secs(5)
    /// );
    /// ```
    #[must_use]
    pub const fn with_staleness(mut self, staleness: Duration) -> Self {
        self.table.set_staleness(staleness);
        self
    }

    /// See [`with_staleness`](Self::with_staleness).
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Concurrency, KeyedArray, Line, Seed};
    /// let table = KeyedArray::new(
    ///     Concurrency::new(1),
    ///     [const { Concurrency::new(1) }; 8],
    ///     [Line::new()],
    ///     Seed::new(),
    /// );
    /// assert_eq!(table.staleness(), Duration::from_secs(1));
    /// ```
    pub const fn staleness(&self) -> Duration {
        self.table.staleness()
    }

    /// The limiter that answers for keys without an entry: to change its settings with those of all
    /// others.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, KeyedArray, Line, Seed};
    /// let table = KeyedArray::new(
    ///     Concurrency::new(1),
    ///     [const { Concurrency::new(1) }; 8],
    ///     [Line::new()],
    ///     Seed::new(),
    /// );
    /// table.fresh().set_limit(2).unwrap();
    /// ```
    pub const fn fresh(&self) -> &L {
        &self.fresh
    }

    /// The limiters, each beside its entry.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, KeyedArray, Line, Seed};
    /// let table = KeyedArray::new(
    ///     Concurrency::new(1),
    ///     [const { Concurrency::new(1) }; 8],
    ///     [Line::new()],
    ///     Seed::new(),
    /// );
    /// table
    ///     .limiters()
    ///     .iter()
    ///     .try_for_each(|limit| limit.set_limit(2).map(drop))
    ///     .unwrap();
    /// ```
    pub const fn limiters(&self) -> &A {
        &self.limiters
    }

    /// What hashes the keys.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, KeyedArray, Line, Seed};
    /// let table = KeyedArray::new(
    ///     Concurrency::new(1),
    ///     [const { Concurrency::new(1) }; 8],
    ///     [Line::new()],
    ///     Seed::new(),
    /// );
    /// assert!(table.seed().set([1, 2]).is_ok());
    /// ```
    pub const fn seed(&self) -> &S {
        &self.table.hasher
    }
}

#[cfg(feature = "std")]
impl<L, S> KeyedArray<L, Box<[L]>, Box<[Line]>, S> {
    /// A table for so many keys in use at once, half full then, with limiters that `limiter` makes.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, KeyedArray, LimiterExt, Seed, Timestamp};
    /// let table = KeyedArray::for_keys(1_000, || Concurrency::new(1), Seed::new());
    /// assert!(
    ///     table
    ///         .key("alice")
    ///         .try_acquire_at(Timestamp::from_secs(9), 1)
    ///         .is_ok()
    /// );
    /// ```
    pub fn for_keys(keys: usize, limiter: impl Fn() -> L, hasher: S) -> Self {
        let lines = Line::for_keys(keys);
        Self::new(
            limiter(),
            (0..lines.len() * PLACES).map(|_| limiter()).collect(),
            lines,
            hasher,
        )
    }
}

impl<L: Limiter, A: AsRef<[L]>, M: AsRef<[Line]>, S: BuildHasher> KeyedArray<L, A, M, S> {
    /// The limiter of `key`. Nothing is created before its first grant.
    ///
    /// # Cost
    ///
    /// One hash.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, KeyedArray, Limiter, Line, Seed, Timestamp};
    /// let limits = [const { Concurrency::new(3) }; 8];
    /// let table = KeyedArray::new(Concurrency::new(3), limits, [Line::new()], Seed::new());
    /// assert_eq!(table.key("alice").available_at(Timestamp::ZERO), 3);
    /// ```
    #[inline]
    pub fn key<K: Hash + ?Sized>(&self, key: &K) -> Key<'_, Self> {
        Key::at(self, self.table.address(key, 0, 0))
    }

    /// Counts the entries. Reads them all, one after the other: exact if nobody changes them
    /// meanwhile.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, KeyedArray, LimiterExt, Line, Seed, Timestamp};
    /// let limits = [const { Concurrency::new(3) }; 8];
    /// let table = KeyedArray::new(Concurrency::new(3), limits, [Line::new()], Seed::new());
    /// let alice = table.key("alice");
    /// let _lease = alice.try_acquire_at(Timestamp::ZERO, 1).unwrap();
    /// assert_eq!(table.statistics_at(Timestamp::ZERO).live, 1);
    /// ```
    pub fn statistics_at(&self, now: Timestamp) -> KeyedStatistics {
        self.table.statistics(|at, _| {
            self.limiter(at)
                .is_some_and(|limiter| !limiter.idle_at(now).is_idle())
        })
    }

    /// Makes the entries of `lines` vacant that could be given to another key at `now`, and returns
    /// how many; see [`Keyed::sweep_at`](crate::Keyed::sweep_at).
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, KeyedArray, LimiterExt, Line, Seed, Timestamp};
    /// let limits = [const { Concurrency::new(3) }; 8];
    /// let table = KeyedArray::new(Concurrency::new(3), limits, [Line::new()], Seed::new());
    /// drop(table.key("alice").try_acquire_at(Timestamp::ZERO, 1).unwrap());
    /// assert_eq!(table.sweep_at(Timestamp::from_secs(2), ..), 1);
    /// ```
    pub fn sweep_at(&self, now: Timestamp, lines: impl RangeBounds<usize>) -> usize {
        self.table
            .sweep(lines, |at, held| self.is_free(at, Some(held), now))
    }

    fn limiter(&self, at: usize) -> Option<&L> {
        self.limiters.as_ref().get(at)
    }

    /// The limiter of a key, or one that nobody has used.
    fn limiter_of(&self, found: &Found<'_>) -> &L {
        let own = if let Found::Held(entry, _) = found {
            self.limiter(entry.at)
        } else {
            None
        };
        own.unwrap_or(&self.fresh)
    }

    /// The time as an entry notes it.
    fn time(&self, now: Timestamp) -> u64 {
        self.table.staleness.index(now) & TIMES
    }

    /// How much later `now` is than what an entry notes, wrapping: who is late is earlier by one at
    /// most.
    fn age(&self, held: Held, now: Timestamp) -> u64 {
        self.time(now).wrapping_sub(held.state() >> TIME_AT) & TIMES
    }

    fn is_free(&self, at: usize, held: Option<Held>, now: Timestamp) -> bool {
        let Some(limiter) = self.limiter(at) else {
            return false;
        };
        // One that is vacant has never been used, or was made vacant by this rule.
        held.is_none_or(|held| {
            let since = self.table.since(now);
            let is_idle = match limiter.idle_at(now) {
                Idle::InUse => false,
                Idle::Since(idle) => idle <= since,
                // Since when is not known. Who comes late comes after the last use.
                Idle::Now => limiter.idle_at(since).is_idle(),
            };
            // Neither used in this staleness or the one before, nor, where either of the two was
            // late, in the next ones.
            is_idle && held.state() & USERS == 0 && (2..TIMES - 1).contains(&self.age(held, now))
        })
    }

    fn has_room(&self, address: &Address, now: Timestamp, n: u32) -> Result<(), Denied> {
        self.table
            .has_room(address, now, n, |at, held| self.is_free(at, held, now))
    }

    /// Counts a call in, which is about to work on an entry's limiter.
    fn enter<'t>(&self, entry: Entry<'t>, held: Held, now: Option<Timestamp>) -> Entered<'t> {
        let mut seen = held;
        loop {
            let state = seen.state();
            if state & USERS == USERS {
                return Entered::Full;
            }
            let noted = match now {
                // One that seems earlier by one leaves the note: it is, or this is a whole turn
                // after it, less one, and the note is newer still.
                Some(now) if (1..TIMES).contains(&self.age(seen, now)) => {
                    noted(state, self.time(now))
                }
                _ => state,
            };
            match entry.change(seen, noted + 1) {
                Ok(()) => return Entered::As(User(entry)),
                Err(Some(newer)) => seen = newer,
                Err(None) => return Entered::Gone,
            }
        }
    }

    /// Takes from the limiter of a key, or from one that is to be claimed; `looked` answers a probe
    /// that would claim one.
    #[inline(always)]
    fn work<T>(
        &self,
        address: &Address,
        now: Timestamp,
        n: u32,
        looked: T,
        take: impl FnOnce(&L) -> Result<T, Denied>,
    ) -> Result<T, Denied> {
        for _ in 0..ATTEMPTS {
            match address.find(self.table.lines()) {
                Found::Held(entry, held) => {
                    match (self.enter(entry, held, Some(now)), self.limiter(entry.at)) {
                        (Entered::As(_user), Some(limiter)) => return take(limiter),
                        (Entered::Gone, _) => {}
                        _ => break,
                    }
                }
                Found::Claimed => core::hint::spin_loop(),
                Found::Nothing => {
                    self.fresh.peek_at(now, n)?;
                    if n == 0 {
                        return self.has_room(address, now, n).map(|()| looked);
                    }
                    let claimed = self
                        .table
                        .claim(address, now, n, |at, held| self.is_free(at, held, now))?;
                    if let Some((claimed, replaced)) = claimed {
                        // One use more than the former key's last one.
                        let before = replaced.map_or(0, Held::state) + USED + 1;
                        let out = User(claimed.entry);
                        claimed.hold(noted(before, self.time(now)) + 1);
                        // Every entry that is claimed has a limiter.
                        return match self.limiter(out.0.at) {
                            Some(limiter) => take(limiter),
                            None => Err(Denied::Crowded { now, permits: n }),
                        };
                    }
                }
            }
        }
        Err(Denied::Crowded { now, permits: n })
    }

    /// Gives permits back to the limiter of a key, if it has one. Where permits are out that come
    /// back, it has, and nobody else can have its entry; nor where there are too many calls to
    /// count in.
    fn give_back<T>(
        &self,
        address: &Address,
        now: Option<Timestamp>,
        work: impl FnOnce(&L) -> T,
    ) -> Option<T> {
        let Found::Held(entry, held) = address.find(self.table.lines()) else {
            return None;
        };
        let _user = match self.enter(entry, held, now) {
            Entered::As(user) => Some(user),
            Entered::Full => None,
            Entered::Gone => return None,
        };
        self.limiter(entry.at).map(work)
    }
}

/// What came of counting a call in.
enum Entered<'t> {
    As(User<'t>),
    /// Too many calls are under way.
    Full,
    /// The entry is not the key's any longer.
    Gone,
}

/// `state` with the time `time`.
const fn noted(state: u64, time: u64) -> u64 {
    (state & !(TIMES << TIME_AT)) | (time << TIME_AT)
}

/// A call that is under way on an entry's limiter, to be counted out however it ends.
struct User<'t>(Entry<'t>);

impl Drop for User<'_> {
    fn drop(&mut self) {
        self.0.add(USED);
    }
}

impl<L: QueueLimiter, A: AsRef<[L]>, M: AsRef<[Line]>, S: BuildHasher> QueueKeys
    for KeyedArray<L, A, M, S>
{
    const SHARED: bool = L::SHARED;
}

impl<L: Limiter, A: AsRef<[L]>, M: AsRef<[Line]>, S: BuildHasher> Keys for KeyedArray<L, A, M, S> {
    #[inline]
    fn locate<K: Hash + ?Sized>(&self, limit: usize, key: &K) -> Option<Address> {
        (limit == 0).then(|| self.table.address(key, 0, 0))
    }
}

impl<L: Limiter, A: AsRef<[L]>, M: AsRef<[Line]>, S: BuildHasher> key::sealed::Table
    for KeyedArray<L, A, M, S>
{
    fn take(&self, address: &Address, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        self.work(address, now, n, Receipt::NONE, |limiter| {
            limiter.take_at(now, n)
        })
    }

    fn is_composed(&self) -> bool {
        as_composed(&self.fresh).is_some()
    }

    fn take_then(
        &self,
        address: &Address,
        now: Timestamp,
        n: u32,
        rest: &mut dyn FnMut() -> bool,
    ) -> Result<bool, Denied> {
        self.work(address, now, n, true, |limiter| {
            limiter.take_at_then(now, n, rest)
        })
    }

    fn peek(&self, address: &Address, now: Timestamp, n: u32) -> Result<(), Denied> {
        let found = address.find(self.table.lines());
        self.limiter_of(&found).peek_at(now, n)?;
        match found {
            Found::Nothing => self.has_room(address, now, n),
            _ => Ok(()),
        }
    }

    fn refund(&self, address: &Address, now: Timestamp, n: u32, receipt: Receipt) -> Refund {
        let mut receipt = Some(receipt);
        let refund = self.give_back(address, Some(now), |limiter| {
            let receipt = receipt.take().unwrap_or(Receipt::NONE);
            limiter.refund_at(now, n, receipt)
        });
        refund.unwrap_or_else(|| receipt.unwrap_or(Receipt::NONE).refunded(0))
    }

    fn release(&self, address: &Address, n: u32) {
        self.give_back(address, None, |limiter| limiter.release(n));
    }

    fn available(&self, address: &Address, now: Timestamp) -> u64 {
        self.limiter_of(&address.find(self.table.lines()))
            .available_at(now)
    }

    fn idle(&self, address: &Address, now: Timestamp) -> Idle {
        self.limiter_of(&address.find(self.table.lines()))
            .idle_at(now)
    }

    fn retry(&self, address: &Address, denied: Denied) -> Retry {
        match denied {
            Denied::Crowded { .. } => self.table.retry(),
            _ => self
                .limiter_of(&address.find(self.table.lines()))
                .retry(denied),
        }
    }

    fn capacity(&self, address: &Address) -> u64 {
        self.limiter_of(&address.find(self.table.lines()))
            .capacity()
    }

    fn metadata(
        &self,
        address: &Address,
        now: Timestamp,
        denied: Option<Denied>,
        offers: &mut Metadata<'_>,
    ) -> bool {
        let knows = !matches!(denied, Some(Denied::Crowded { .. }));
        if knows {
            self.limiter_of(&address.find(self.table.lines()))
                .metadata(now, denied, offers);
        }
        knows
    }
}

impl<L: fmt::Debug, A, M, S> fmt::Debug for KeyedArray<L, A, M, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedArray")
            .field("fresh", &self.fresh)
            .finish_non_exhaustive()
    }
}
