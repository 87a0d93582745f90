//! A table of limiters of any type by key. See [`line`](super::line) for how a key gets a slot.
//!
//! Each slot has a limiter beside it, which is never reset. The state of a slot, above its tag:
//!
//! ```text
//! bits 42      16   15      7   6      0
//! +--------------+-----------+---------+     uses:  number of uses, wraps
//! |     uses     |   time    |  users  |     time:  time of the last use, in stalenesses, wraps
//! +--------------+-----------+---------+     users: number of calls under way
//! ```
//!
//! (With 32-bit words the state has 20 bits: 5 for users, 7 for the time and 8 for uses.)
//!
//! Transitions: a call counts itself in and sets the time, with a compare-exchange. It works on the
//! limiter. It counts itself out and counts the use, with one fetch-add. A claim takes a slot only
//! by exchanging the word that it read before it saw that the limiter was idle, that the slot had
//! no users, and that its last use was long enough ago. A use in between changes the word, and the
//! claim fails.
//!
//! Invariant: while a call works on a limiter, its slot is held by the call's key.

use core::cell::Cell;
use core::fmt;
use core::hash::{BuildHasher, Hash};
use core::ops::RangeBounds;
use core::time::Duration;
#[cfg(feature = "std")]
use std::boxed::Box;
#[cfg(feature = "std")]
use std::sync::Arc;

use crate::keyed::key::{KeyIn, Keys, QueueKeys, TableKey};
use crate::keyed::key_hash::KeyHash;
#[cfg(feature = "std")]
use crate::keyed::line::{self, PLACES};
use crate::keyed::line::{Address, Entry, Found, Held, Line, Width};
use crate::keyed::partly_changed::PartlyChanged;
#[cfg(all(
    feature = "std",
    not(all(target_family = "wasm", target_os = "unknown"))
))]
use crate::keyed::random_seed::RandomSeed;
use crate::keyed::seed::Seed;
use crate::keyed::table::{ATTEMPTS, KeyedStatistics, Table};
use crate::limiter::denied::{Denied, Retry};
use crate::limiter::detail::Detail;
use crate::limiter::queue_limiter::{QueueLimiter, Replenishing};
use crate::limiter::receipt::Receipt;
use crate::limiter::{
    Answer, Ask, Back, Hints, How, Idle, Limiter, LimiterExt, Read, Reading, Returned, Tell, When,
};
use crate::sync::const_unless_loom;
use crate::time::timestamp::Timestamp;
use crate::word::NativeWord;

/// A limiter of any type for each key, in a table of fixed size, without locks and without
/// allocation.
///
/// [`Keyed`](crate::Keyed) supports only limiters whose state is one word. This table supports all
/// others: sliding windows, penalties, limits that can be changed, wrappers, and limiters of your
/// own. Each slot has its own limiter, from `A` (`[L; 512]`, `Box<[L]>` or `Vec<L>`), eight for
/// each line of `M`. All of them must have the same settings and be unused.
///
/// **Bound.** Each key is granted no more than a limiter of its own would grant it, provided that
/// the limiter's [`idle_at`](LimiterExt::idle_at) is correct. If a limiter never reports that it is
/// idle, which is the default for a limiter of your own, its key keeps the slot permanently.
///
/// **Self-cleaning.** A slot is given to another key only if all of these hold:
///
/// - The limiter is idle, and was idle one [staleness](Self::staleness) ago.
/// - No call is using the limiter.
/// - The last use was at least one to two stalenesses ago.
///
/// A limiter is not reset for its next key, because an idle limiter is indistinguishable from a
/// fresh one. State that does not affect whether a limiter is idle, such as the counts of
/// [`Counted`](crate::Counted), carries over from key to key. As in `Keyed`, a key that finds no
/// slot is denied with [`Denied::Crowded`].
///
/// **New keys.** A key gets a slot with the first request that a fresh limiter would grant. The
/// denials before that are of the fresh limiter, and no limiter records or counts them. So a
/// limiter that denies its first requests, and learns from denials alone, grants nothing here.
///
/// **Denials.** A key gets the denials of its limiter, and [`Denied::Crowded`]: see
/// [`Keyed`](crate::Keyed). There is one more reason for `Crowded`: too many calls use the limiter
/// of the key at the same time. Then retry at once.
///
/// **Time.** A slot becomes free for another key only if time advances. So pass a real `now`, even
/// if the limiter itself ignores it (as a concurrency limit does).
///
/// **Cost.** One hash, the cache line of the slot and that of the limiter, and two atomic writes in
/// addition to those of the limiter, also for a denial. At most 127 calls may use the limiter of
/// one key at once (31 on targets without 64-bit atomics); further calls are denied with
/// [`Denied::Crowded`]. Lock-free if the limiter is, with the same exception as for `Keyed`.
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::{
///     Denied, KeyedArray, LimiterExt, Penalty, Rate, Timestamp, TokenBucket,
/// };
///
/// // A user that exceeds its rate is denied for a minute.
/// let limiter = || {
///     Penalty::new(
///         TokenBucket::new(Rate::per_second(1), 5),
///         Duration::from_secs(60),
///     )
/// };
/// let users = KeyedArray::for_keys(limiter, 1_000);
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
    /// Answers for keys without a slot. No permit is ever taken from it.
    fresh: L,
    limiters: A,
    table: Table<M, S>,
}

const TIME_AT: u32 = if NativeWord::BITS == 64 { 7 } else { 5 };
const USERS: u64 = (1 << TIME_AT) - 1;
const TIME_BITS: u32 = if NativeWord::BITS == 64 { 9 } else { 7 };
const TIMES: u64 = (1 << TIME_BITS) - 1;
/// Added to a state, counts a user out and a use in.
const USED: u64 = (1 << (TIME_AT + TIME_BITS)) - 1;

impl<L, A, M, S> KeyedArray<L, A, M, S> {
    const_unless_loom! {
        /// Creates a table with `limiters`, eight for each of `lines`, all with the settings of
        /// `fresh`. A slot without a limiter is not used. `fresh` answers for keys without a slot.
        ///
        /// ```
        /// # use core::time::Duration;
        /// # use portcullis_core::{KeyedArray, SlidingWindow};
        /// # use portcullis_core::keyed::{Line, Seed};
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

    /// Sets how long a key keeps its slot at least: 1 s (the default) to 292 years. See
    /// [`Keyed::with_staleness`](crate::Keyed::with_staleness).
    ///
    /// # Panics
    ///
    /// If `staleness` is outside that range. In a constant or a static, that is a compile error.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Concurrency, KeyedArray};
    /// # use portcullis_core::keyed::{Line, Seed};
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

    /// Returns the staleness: see [`with_staleness`](Self::with_staleness).
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Concurrency, KeyedArray};
    /// # use portcullis_core::keyed::{Line, Seed};
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

    /// Returns the limiter that answers for keys without a slot. Its settings must be those of all
    /// others: see [`change_all`](Self::change_all).
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, KeyedArray};
    /// # use portcullis_core::keyed::{Line, Seed};
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

    /// Returns the limiters, in the order of their slots.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, KeyedArray};
    /// # use portcullis_core::keyed::{Line, Seed};
    /// let table = KeyedArray::new(
    ///     Concurrency::new(1),
    ///     [const { Concurrency::new(1) }; 8],
    ///     [Line::new()],
    ///     Seed::new(),
    /// );
    /// let in_use: u32 = table.limiters().iter().map(Concurrency::in_use).sum();
    /// assert_eq!(in_use, 0);
    /// ```
    pub const fn limiters(&self) -> &A {
        &self.limiters
    }

    /// Returns the lines. Tables with the same lines and the same limiters, for example in an
    /// `Arc`, have their state in common, if they have the same hasher.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, KeyedArray};
    /// # use portcullis_core::keyed::{Line, Seed};
    /// let table = KeyedArray::new(
    ///     Concurrency::new(1),
    ///     [const { Concurrency::new(1) }; 8],
    ///     [Line::new()],
    ///     Seed::new(),
    /// );
    /// assert_eq!(table.lines().len(), 1);
    /// ```
    pub const fn lines(&self) -> &M {
        &self.table.lines
    }

    /// Returns the hasher of the keys, for example to set its [`Seed`].
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, KeyedArray};
    /// # use portcullis_core::keyed::{Line, Seed};
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

#[cfg(all(
    feature = "std",
    not(all(target_family = "wasm", target_os = "unknown"))
))]
impl<L> KeyedArray<L, Box<[L]>, Box<[Line]>, RandomSeed> {
    /// Creates a table in which `keys` keys can be in use at once. `limiter` creates the limiters.
    /// Of new keys, at most 1 in 1,000,000 then finds no slot. Needs the feature `std`.
    ///
    /// # Cost
    ///
    /// Memory per key: 34 bytes and 4.25 limiters, and up to 4 KiB and 512 limiters more. For less
    /// memory, create the lines and the limiters yourself: see [`new`](Self::new).
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, KeyedArray, LimiterExt, Timestamp};
    /// let table = KeyedArray::for_keys(|| Concurrency::new(1), 1_000);
    /// assert!(
    ///     table
    ///         .key("alice")
    ///         .try_acquire_at(Timestamp::from_secs(9), 1)
    ///         .is_ok()
    /// );
    /// ```
    #[must_use]
    pub fn for_keys(limiter: impl Fn() -> L, keys: usize) -> Self {
        Self::for_keys_with_hasher(limiter, keys, RandomSeed::new())
    }
}

#[cfg(feature = "std")]
impl<L, S> KeyedArray<L, Box<[L]>, Box<[Line]>, S> {
    /// As [`for_keys`](KeyedArray::for_keys), with a hasher of the caller's choice. Needs the
    /// feature `std`.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, KeyedArray};
    /// # use portcullis_core::keyed::Seed;
    /// let seed = Seed::new();
    /// let table = KeyedArray::for_keys_with_hasher(|| Concurrency::new(1), 1_000, seed);
    /// // At start-up. Use random numbers here.
    /// table.seed().set([7, 8]).unwrap();
    /// ```
    #[must_use]
    pub fn for_keys_with_hasher(limiter: impl Fn() -> L, keys: usize, hasher: S) -> Self {
        let lines = line::groups_for(keys, Width::WITHOUT_CLOCK);
        let limiters = (0..lines.len() * PLACES).map(|_| limiter()).collect();
        Self::new(limiter(), limiters, lines, hasher)
    }
}

impl<L, A: AsRef<[L]>, M, S> KeyedArray<L, A, M, S> {
    /// Changes all limiters of the table: those of keys, those of slots without a key, and the one
    /// that answers for keys without a slot. `change` changes one limiter, for example by
    /// [`AdjustableBucket::adjust_at`](crate::AdjustableBucket::adjust_at). Pass one `now` for all.
    ///
    /// **Bound.** Each key is granted no more than the settings of its own limiter allow at each
    /// moment. Limiters are changed one after another, so while this method runs, the new settings
    /// apply to some keys and the old ones to others. Keys are not denied because of it.
    ///
    /// **Slots without a key.** Their limiters change like those of keys. So a new key starts with
    /// what an idle limiter has after the change. With [`Carry::Proportional`] an idle limiter
    /// stays idle. With [`Carry::Keep`] and a larger burst, it keeps the number of permits: the old
    /// burst. Until it has refilled, a new key starts with less than the new burst, and a slot of a
    /// key is not given to another key. [`Carry::Reset`] gives each key in use all permits of the
    /// new settings.
    ///
    /// Run one call at a time: after two calls at once, limiters may differ in their settings.
    ///
    /// [`Carry::Keep`]: crate::state::Carry::Keep
    /// [`Carry::Proportional`]: crate::state::Carry::Proportional
    /// [`Carry::Reset`]: crate::state::Carry::Reset
    ///
    /// # Errors
    ///
    /// [`PartlyChanged`] counts the limiters that keep their settings, and has the first error.
    ///
    /// - The limiter that answers for keys without a slot comes first. If it cannot be changed, no
    ///   other one is. So settings that do not fit change nothing.
    /// - If another limiter cannot be changed, for example because it is
    ///   [busy](crate::state::ChangeError::Busy), those after it are changed all the same. Call
    ///   this method again: a change to the settings that a limiter has already changes nothing,
    ///   except with [`Carry::Reset`].
    ///
    /// # Cost
    ///
    /// One change for each limiter. Reads and writes the whole table, and makes no other call wait.
    ///
    /// ```
    /// # use portcullis_core::{AdjustableBucket, KeyedArray, Limiter, Rate, Timestamp};
    /// # use portcullis_core::state::Carry;
    /// let users = KeyedArray::for_keys(|| AdjustableBucket::new(Rate::per_second(1), 10), 100);
    /// let now = Timestamp::from_secs(9);
    /// let _ = users.key("alice").try_acquire_at(now, 5)?;
    ///
    /// let (rate, burst) = (Rate::per_second(5), 20);
    /// users
    ///     .change_all(|bucket| bucket.adjust_at(now, rate, burst, Carry::Proportional))
    ///     .unwrap();
    /// assert_eq!(users.key("alice").available_at(now), 10, "half of the burst");
    /// assert_eq!(users.key("bob").available_at(now), 20);
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    pub fn change_all<T, E>(
        &self,
        mut change: impl FnMut(&L) -> Result<T, E>,
    ) -> Result<(), PartlyChanged<E>> {
        let limiters = self.limiters.as_ref();
        let all = limiters.len() + 1;
        if let Err(first) = change(&self.fresh) {
            return Err(PartlyChanged {
                first,
                changed: 0,
                unchanged: all,
            });
        }
        let (mut first, mut unchanged) = (None, 0);
        for limiter in limiters {
            if let Err(error) = change(limiter) {
                first.get_or_insert(error);
                unchanged += 1;
            }
        }
        match first {
            None => Ok(()),
            Some(first) => Err(PartlyChanged {
                first,
                changed: all - unchanged,
                unchanged,
            }),
        }
    }
}

impl<L: Limiter, A: AsRef<[L]>, M: AsRef<[Line]>, S: BuildHasher> KeyedArray<L, A, M, S> {
    /// Returns the limiter of `key`. The key takes no slot before its first grant.
    ///
    /// # Cost
    ///
    /// One hash.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, KeyedArray, Limiter, Timestamp};
    /// # use portcullis_core::keyed::{Line, Seed};
    /// let limits = [const { Concurrency::new(3) }; 8];
    /// let table = KeyedArray::new(Concurrency::new(3), limits, [Line::new()], Seed::new());
    /// assert_eq!(table.key("alice").available_at(Timestamp::ZERO), 3);
    /// ```
    #[inline]
    pub fn key<K: Hash + ?Sized>(&self, key: &K) -> TableKey<&Self> {
        TableKey::new(self, key)
    }

    /// As [`key`](Self::key), for a key whose hash is known: see [`KeyHash`].
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, KeyedArray};
    /// # use portcullis_core::keyed::KeyHash;
    /// let table = KeyedArray::for_keys(|| Concurrency::new(3), 100);
    /// let alice = KeyHash::new(table.seed(), "alice");
    /// assert_eq!(table.key_hashed(alice).address(), table.key("alice").address());
    /// ```
    #[inline]
    pub fn key_hashed(&self, hash: KeyHash) -> TableKey<&Self> {
        TableKey::at(self, self.locate(hash))
    }

    /// As [`key`](Self::key), with a share of the table instead of a borrow. See
    /// [`Keyed::owned_key`](crate::Keyed::owned_key). Needs the feature `std`.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, KeyedArray, Limiter, Timestamp};
    /// use std::sync::Arc;
    ///
    /// let table = Arc::new(KeyedArray::for_keys(|| Concurrency::new(1), 100));
    /// let lease = table.owned_key("alice").try_acquire_at(Timestamp::ZERO, 1)?;
    /// std::thread::spawn(move || drop(lease)).join().unwrap();
    /// assert_eq!(table.key("alice").available_at(Timestamp::ZERO), 1);
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    #[cfg(feature = "std")]
    pub fn owned_key<K: Hash + ?Sized>(self: &Arc<Self>, key: &K) -> TableKey<Arc<Self>> {
        TableKey::new(Arc::clone(self), key)
    }

    /// Calls `change` with the limiter of `key`, to change what it alone has: a pause, or settings
    /// for as long as the key is in use. A key without a slot gets one first.
    ///
    /// The slot stays with the key until it is free for another one, as after a grant: see
    /// [`KeyedArray`]. So a penalty lasts until its end. The limiter is not reset for its next key:
    /// `change` must leave it so that it is indistinguishable from a fresh one once it is idle.
    ///
    /// For the limiters of a queue, call this method in the `change` of the queue.
    ///
    /// # Errors
    ///
    /// [`Denied::Crowded`], of 1 permit, if there is no slot for the key, or too many calls use its
    /// limiter. Then `change` was not called.
    ///
    /// # Cost
    ///
    /// As for a request, with `change` in place of the limiter.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Concurrency, KeyedArray, Limiter, Penalty, Timestamp};
    /// let pause = Penalty::builder(Duration::from_secs(60)).started_by_hand().build()?;
    /// let hosts = KeyedArray::for_keys(|| pause.around(Concurrency::new(2)), 1_000);
    ///
    /// // A reply of one host: do not call before 30 s have passed.
    /// let now = Timestamp::from_secs(10);
    /// let until = Timestamp::from_secs(40);
    /// let paused = hosts.change_key_at(now, "a.example", |host| host.penalize_at(now, until));
    /// assert_eq!(paused, Ok(until));
    /// assert_eq!(hosts.key("a.example").available_at(now), 0);
    /// assert_eq!(hosts.key("b.example").available_at(now), 2);
    /// assert_eq!(hosts.key("a.example").available_at(until), 2);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub fn change_key_at<K: Hash + ?Sized, T>(
        &self,
        now: Timestamp,
        key: &K,
        change: impl FnOnce(&L) -> T,
    ) -> Result<T, Denied> {
        let address = self.key(key).address();
        self.work(&address, now, 1, || None, |limiter| Ok(change(limiter)))
    }

    /// Counts the slots. Reads them one after another, so the counts are exact only if no slot
    /// changes in the meantime.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, KeyedArray, LimiterExt, Timestamp};
    /// # use portcullis_core::keyed::{Line, Seed};
    /// let limits = [const { Concurrency::new(3) }; 8];
    /// let table = KeyedArray::new(Concurrency::new(3), limits, [Line::new()], Seed::new());
    /// let alice = table.key("alice");
    /// let _lease = alice.try_acquire_at(Timestamp::ZERO, 1).unwrap();
    /// assert_eq!(table.statistics_at(Timestamp::ZERO).live, 1);
    /// ```
    pub fn statistics_at(&self, now: Timestamp) -> KeyedStatistics {
        self.table.statistics(Width::WITHOUT_CLOCK, |at, _| {
            self.limiter(at)
                .is_some_and(|limiter| !limiter.idle_at(now).is_idle())
        })
    }

    /// Vacates the slots in `lines` that another key could take at `now`. Returns their number. See
    /// [`Keyed::sweep_at`](crate::Keyed::sweep_at).
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, KeyedArray, LimiterExt, Timestamp};
    /// # use portcullis_core::keyed::{Line, Seed};
    /// let limits = [const { Concurrency::new(3) }; 8];
    /// let table = KeyedArray::new(Concurrency::new(3), limits, [Line::new()], Seed::new());
    /// drop(table.key("alice").try_acquire_at(Timestamp::ZERO, 1).unwrap());
    /// assert_eq!(table.sweep_at(Timestamp::from_secs(2), ..), 1);
    /// ```
    pub fn sweep_at(&self, now: Timestamp, lines: impl RangeBounds<usize>) -> usize {
        self.table.sweep(Width::WITHOUT_CLOCK, lines, |entry| {
            entry.vacate_if(|held| self.is_free(entry.at, Some(held), now))
        })
    }

    fn limiter(&self, at: usize) -> Option<&L> {
        self.limiters.as_ref().get(at)
    }

    /// The limiter of a key, or the fresh one if the key has no slot.
    fn limiter_of(&self, found: &Found<'_>) -> &L {
        let own = if let Found::Held(entry, _) = found {
            self.limiter(entry.at)
        } else {
            None
        };
        own.unwrap_or(&self.fresh)
    }

    /// The time as stored in a slot: the number of the staleness that contains `now`, wrapped.
    fn time(&self, now: Timestamp) -> u64 {
        self.table.stalenesses(now) & TIMES
    }

    /// The age of a slot's last use at `now`, in stalenesses, wrapping. A stale `now` is at most
    /// one staleness earlier than the time stored; its age is then `TIMES`.
    fn age(&self, held: Held, now: Timestamp) -> u64 {
        self.time(now).wrapping_sub(held.state() >> TIME_AT) & TIMES
    }

    fn is_free(&self, at: usize, held: Option<Held>, now: Timestamp) -> bool {
        let Some(limiter) = self.limiter(at) else {
            return false;
        };
        // The limiter of a vacant slot is unused, or was idle when its slot was vacated by this
        // rule.
        held.is_none_or(|held| {
            let since = self.table.since(now);
            let is_idle = match limiter.idle_at(now) {
                Idle::InUse => false,
                Idle::Since(idle) => idle <= since,
                // Since when is unknown. A stale timestamp is not before the last use.
                Idle::Now => limiter.idle_at(since).is_idle(),
            };
            // The last use was neither in this staleness nor in the one before. Nor was it in one
            // of the next two, which is possible if its timestamp or `now` is stale.
            is_idle && held.state() & USERS == 0 && (2..TIMES - 1).contains(&self.age(held, now))
        })
    }

    fn has_room(&self, address: &Address, now: Timestamp, n: u32) -> Result<(), Denied> {
        self.table
            .has_room(address, Width::WITHOUT_CLOCK, now, n, |at, held| {
                self.is_free(at, held, now)
            })
    }

    /// Counts a call in before it works on the limiter of a slot.
    fn enter<'t>(&self, entry: Entry<'t>, held: Held, now: Option<Timestamp>) -> Entered<'t> {
        let mut seen = held;
        loop {
            let state = seen.state();
            if state & USERS == USERS {
                return Entered::Full;
            }
            let noted = match now {
                // An age of `TIMES` leaves the time unchanged. Either `now` is one staleness
                // earlier than the time stored, or almost a whole wrap later; then the time stored
                // reads as one staleness newer than `now`, which is safe.
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

    fn take(&self, address: &Address, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        let looked = || self.look_at_fresh(address, now, n, Receipt::NONE);
        self.work(address, now, n, looked, |limiter| limiter.take_at(now, n))
    }

    /// Answers for a key without a slot: `None` if a request for `n` permits needs one. `looked` is
    /// the answer of a probe that is granted.
    #[inline(always)]
    fn look_at_fresh<T>(
        &self,
        address: &Address,
        now: Timestamp,
        n: u32,
        looked: T,
    ) -> Option<Result<T, Denied>> {
        match self.fresh.peek_at(now, n) {
            Err(denied) => Some(Err(denied)),
            Ok(()) if n > 0 => None,
            Ok(()) => Some(self.has_room(address, now, n).map(|()| looked)),
        }
    }

    /// Works on the limiter of a key, or on one that this call claims, unless `unclaimed` answers
    /// for a key without a slot.
    #[inline(always)]
    fn work<T>(
        &self,
        address: &Address,
        now: Timestamp,
        n: u32,
        unclaimed: impl Fn() -> Option<Result<T, Denied>>,
        work: impl FnOnce(&L) -> Result<T, Denied>,
    ) -> Result<T, Denied> {
        for _ in 0..ATTEMPTS {
            match address.find(self.table.lines(), Width::WITHOUT_CLOCK) {
                Found::Held(entry, held) => {
                    match (self.enter(entry, held, Some(now)), self.limiter(entry.at)) {
                        (Entered::As(_user), Some(limiter)) => return work(limiter),
                        (Entered::Gone, _) => {}
                        _ => break,
                    }
                }
                Found::Claimed => core::hint::spin_loop(),
                Found::Nothing => {
                    if let Some(answer) = unclaimed() {
                        return answer;
                    }
                    let is_free = |at, held| self.is_free(at, held, now);
                    let width = Width::WITHOUT_CLOCK;
                    let claimed = self.table.claim(address, width, now, n, |_| {}, is_free)?;
                    if let Some((claimed, replaced)) = claimed {
                        // Continues the count of uses of the former key, plus one.
                        let before = replaced.map_or(0, Held::state) + USED + 1;
                        let out = User(claimed.entry);
                        let _its_own = claimed.hold(noted(before, self.time(now)) + 1);
                        // Every slot that is claimed has a limiter.
                        return match self.limiter(out.0.at) {
                            Some(limiter) => work(limiter),
                            None => Err(Denied::Crowded { now, permits: n }),
                        };
                    }
                }
            }
        }
        Err(Denied::Crowded { now, permits: n })
    }

    /// The limiter of a key to which something is given back, if the key has a slot, after this
    /// call is counted in. While permits that return by release are in use, the key has a slot, and
    /// no other key can take it. The same is true while too many calls run for this call to count
    /// itself.
    ///
    /// A key without a slot has nothing that could change. The fresh limiter, which decides for all
    /// such keys, stays as it is.
    fn user_of(&self, address: &Address, now: Option<Timestamp>) -> Option<(Option<User<'_>>, &L)> {
        let Found::Held(entry, held) = address.find(self.table.lines(), Width::WITHOUT_CLOCK)
        else {
            return None;
        };
        let user = match self.enter(entry, held, now) {
            Entered::As(user) => Some(user),
            Entered::Full => None,
            Entered::Gone => return None,
        };
        Some((user, self.limiter(entry.at)?))
    }
}

/// The result of counting a call in.
enum Entered<'t> {
    As(User<'t>),
    /// Too many calls are under way.
    Full,
    /// The slot no longer belongs to the key.
    Gone,
}

/// Whether calls are working on the limiter of a slot.
pub(crate) fn has_users(held: Held) -> bool {
    held.state() & USERS != 0
}

/// Returns `state` with its time replaced by `time`.
const fn noted(state: u64, time: u64) -> u64 {
    (state & !(TIMES << TIME_AT)) | (time << TIME_AT)
}

/// A call that is working on the limiter of a slot. Dropping it counts the call out, also after a
/// panic.
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

    fn next_held(&self, from: usize) -> Option<usize> {
        let limiters = self.limiters.as_ref().iter().enumerate().skip(from);
        limiters
            .filter(|(_, limiter)| limiter.held() > 0)
            .map(|(at, _)| at)
            .next()
    }
}

impl<L: Limiter, A: AsRef<[L]>, M: AsRef<[Line]>, S: BuildHasher> Keys for KeyedArray<L, A, M, S> {
    type Limiter<'t>
        = KeyIn<'t, Self>
    where
        Self: 't;

    #[inline(always)]
    fn limiter_at<'t>(&'t self, address: &'t Address) -> KeyIn<'t, Self> {
        let table = self;
        KeyIn { table, address }
    }

    #[inline]
    fn hash_of<K: Hash + ?Sized>(&self, key: &K) -> KeyHash {
        self.table.hash(key)
    }

    #[inline]
    fn locate(&self, hash: KeyHash) -> Address {
        self.table.address(hash)
    }
}

impl<L: Limiter, A: AsRef<[L]>, M: AsRef<[Line]>, S: BuildHasher>
    KeyIn<'_, KeyedArray<L, A, M, S>>
{
    fn find(&self) -> Found<'_> {
        let lines = self.table.table.lines();
        self.address.find(lines, Width::WITHOUT_CLOCK)
    }

    fn has_room(&self, now: Timestamp, n: u32) -> Result<(), Denied> {
        self.table.has_room(self.address, now, n)
    }

    fn pass_on(&self, now: Timestamp, ask: Ask<'_>) -> Answer {
        let (table, address, n) = (self.table, self.address, ask.permits());
        let looked = || table.look_at_fresh(address, now, n, Answer::Granted(Receipt::NONE));
        let answer = table.work(address, now, n, looked, |limiter| Ok(ask.put_to(limiter)));
        answer.unwrap_or_else(Answer::Denied)
    }

    fn look(&self, now: Timestamp, n: u32, seen: Option<&Cell<Option<Detail>>>) -> Answer {
        let found = self.find();
        let limiter = self.table.limiter_of(&found);
        let detail = seen.map(|_| limiter.explain_at(now, n));
        let looked = match &detail {
            Some(detail) => detail.decision,
            None => limiter.peek_at(now, n),
        };
        let decision = match (looked, found) {
            (Ok(()), Found::Nothing) => self.has_room(now, n),
            _ => looked,
        };
        if let (Some(seen), Some(detail)) = (seen, detail) {
            seen.set(Some(if decision == looked {
                detail
            } else {
                let retry = self.table.table.retry();
                Detail { decision, ..detail }.without_slot(retry)
            }));
        }
        decision.into()
    }
}

impl<L: Replenishing, A: AsRef<[L]>, M: AsRef<[Line]>, S: BuildHasher> Replenishing
    for KeyIn<'_, KeyedArray<L, A, M, S>>
{
}

impl<L: Limiter, A: AsRef<[L]>, M: AsRef<[Line]>, S: BuildHasher> Limiter
    for KeyIn<'_, KeyedArray<L, A, M, S>>
{
    /// Passes on all but an interval, in which the slot may change, and a plan, which may be of
    /// another limiter.
    #[inline(always)]
    fn decide(&self, ask: Ask<'_>) -> Answer {
        let Self { table, address } = *self;
        let (When::At(now), n) = (ask.when(), ask.permits()) else {
            return Answer::TimeMatters;
        };
        match (ask.how, &ask.tell) {
            (How::Look, _) => self.look(now, n, ask.detail()),
            // Apart, because it is compiled without the other questions.
            (How::Take, Tell::Nothing) => table.take(address, now, n).into(),
            _ => self.pass_on(now, ask.without_plan()),
        }
    }

    fn give_back(&self, back: Back<'_>) -> Returned {
        let now = match &back {
            Back::Refund { now, .. } | Back::NotGranted { now, .. } => Some(*now),
            _ => None,
        };
        match self.table.user_of(self.address, now) {
            Some((_user, limiter)) => limiter.give_back(back),
            None => back.by_time(|_, _, receipt| receipt.refunded(0)),
        }
    }

    fn read(&self, mut read: Read<'_>) -> Reading {
        let found = self.find();
        // The limiter has not denied this.
        if let Some(Denied::Crowded { .. }) = read.denied() {
            read = Read::at(read.now());
        }
        let now = read.now();
        let reading = self.table.limiter_of(&found).read(read);
        match found {
            // No permit can be taken without a slot.
            Found::Nothing if self.has_room(now, 1).is_err() => Reading {
                available: 0,
                ..reading
            },
            _ => reading,
        }
    }

    fn retry(&self, denied: Denied) -> Retry {
        match denied {
            Denied::Crowded { .. } => self.table.table.retry(),
            _ => self.table.limiter_of(&self.find()).retry(denied),
        }
    }

    fn hints(&self) -> Hints {
        let decides_within = false;
        Hints {
            decides_within,
            ..self.table.fresh.hints()
        }
    }
}

impl<L: fmt::Debug, A, M, S> fmt::Debug for KeyedArray<L, A, M, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedArray")
            .field("fresh", &self.fresh)
            .finish_non_exhaustive()
    }
}
