//! Tables of limiters by key, their memory, their keys and the rules of their limiters.
//!
//! [`Keyed`] is a table with one limit per key, [`KeyedList`] one
//! with several, and [`KeyedArray`] one of limiters of any type. [`WithTotal`] adds a limit for all
//! keys to any of them.
// See `line` for the state, the transitions and the invariant.

pub(crate) mod clocked_key;
pub(crate) mod into_rules;
pub(crate) mod key;
pub(crate) mod key_hash;
pub(crate) mod keyed_array;
pub(crate) mod keyed_list;
pub(crate) mod line;
pub(crate) mod line_clock;
pub(crate) mod moving;
pub(crate) mod partly_changed;
pub(crate) mod pending_claim;
#[cfg(all(
    feature = "std",
    not(all(target_family = "wasm", target_os = "unknown"))
))]
pub(crate) mod random_seed;
pub(crate) mod rule_list;
pub(crate) mod seed;
pub(crate) mod seeded_hasher;
pub(crate) mod settling;
pub(crate) mod table;
pub(crate) mod with_total;

pub use self::clocked_key::ClockedKey;
pub use self::into_rules::{IntoRuleList, IntoRules};
pub use self::key::{KeyLimiter, TableKey};
pub use self::key_hash::KeyHash;
pub use self::keyed_array::KeyedArray;
pub use self::keyed_list::KeyedList;
pub use self::line::{Address, Line};
pub use self::moving::MovableRules;
pub use self::partly_changed::PartlyChanged;
pub use self::pending_claim::PendingClaim;
#[cfg(all(
    feature = "std",
    not(all(target_family = "wasm", target_os = "unknown"))
))]
pub use self::random_seed::RandomSeed;
pub use self::rule_list::{RuleList, RulesAtRunTime};
pub use self::seed::{Seed, SeedFixed};
pub use self::seeded_hasher::SeededHasher;
pub use self::settling::{RefundTime, Refunds, RefundsBefore};
pub use self::table::KeyedStatistics;
pub use self::with_total::WithTotal;
pub use crate::limiters::concurrency::ConcurrencyRules;
pub use crate::limiters::fixed_window::FixedWindowRules;
pub use crate::limiters::token_bucket::TokenBucketRules;
pub use crate::rules::any_rules::AnyRules;

use core::cell::Cell;
use core::fmt;
use core::hash::{BuildHasher, Hash};
use core::ops::RangeBounds;
use core::time::Duration;
#[cfg(feature = "std")]
use std::boxed::Box;
#[cfg(feature = "std")]
use std::sync::Arc;

use crate::keyed::key::{KeyIn, Keys, QueueKeys};
use crate::keyed::line::{Claims, Entry, Found, Held, Width};
use crate::keyed::line_clock::Span;
use crate::keyed::table::{ATTEMPTS, Table};
use crate::limiter::denied::{Denied, Retry};
use crate::limiter::detail::{Detail, Observer, observed};
use crate::limiter::queue_limiter::Replenishing;
use crate::limiter::receipt::{Receipt, Refund};
use crate::limiter::{Answer, Ask, Back, Hints, Limiter, Read, Reading, Returned, When};
use crate::rules::{Moved, TableRules, Verdict, has_rested, look};
use crate::sync::const_unless_loom;
use crate::time::interval::Interval;
use crate::time::timestamp::Timestamp;
use crate::word::KeyedWord;

/// The rules of the limiters in a [`Keyed`] table: their state is one word per key. Sealed.
///
/// Implemented by [`TokenBucketRules`], [`FixedWindowRules`] and [`ConcurrencyRules`].
///
/// ```
/// use portcullis_core::Rate;
/// use portcullis_core::keyed::{KeyedRules, TokenBucketRules};
/// fn has_some(_: impl KeyedRules) {}
/// has_some(TokenBucketRules::new(Rate::per_second(5), 10));
/// ```
///
/// A limiter has a word of its own, which a table would never read. So a limiter does not implement
/// this trait, and [`Keyed::new`] does not accept it:
///
/// ```compile_fail,E0277
/// # use portcullis_core::{Keyed, Rate, TokenBucket};
/// # use portcullis_core::keyed::{Line, Seed};
/// let bucket = TokenBucket::new(Rate::per_second(5), 10);
/// let table = Keyed::new(bucket, [const { Line::new() }; 4], Seed::new());
/// ```
///
/// Convert it with [`IntoRules`]:
///
/// ```
/// # use portcullis_core::{Keyed, Rate, TokenBucket};
/// # use portcullis_core::keyed::{IntoRules, Line, Seed};
/// let bucket = TokenBucket::new(Rate::per_second(5), 10);
/// let table = Keyed::new(bucket.into_rules()?, [const { Line::new() }; 4], Seed::new());
/// # Ok::<(), portcullis_core::SettingsError>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not the rules of a `Keyed` table",
    label = "expected `TokenBucketRules`, `FixedWindowRules` or `ConcurrencyRules`",
    note = "convert a limiter with `limiter.into_rules()?`, or write `Keyed::for_keys(limiter, keys)`",
    note = "in a constant or a static, write for example `TokenBucketRules::new(rate, burst)`",
    note = "for limiters of any other type, use a `KeyedArray`"
)]
pub trait KeyedRules: TableRules<Word = KeyedWord> + Sized {}

impl<R: TableRules<Word = KeyedWord>> KeyedRules for R {}

/// A limiter for each key, in a table of fixed size, without locks and without allocation.
///
/// A table has slots, in lines of 7. A slot holds the state of one key's limiter. A table serves
/// any number of keys, but at most as many at once as it has slots. [`key`](Self::key) returns the
/// limiter of one key. It is used like any other limiter: on its own, inside a wrapper or as a part
/// of an [`AllOf`](crate::AllOf).
///
/// With the feature `std`, `for_keys` creates a table from a limiter and a number
/// of keys:
///
/// ```
/// use portcullis_core::{Keyed, Rate, Timestamp, TokenBucket};
///
/// let users = Keyed::for_keys(TokenBucket::new(Rate::per_second(10), 2), 1_000);
/// let now = Timestamp::from_secs(9);
/// assert!(users.key("alice").try_acquire_at(now, 2).is_ok());
/// assert!(users.key("alice").try_acquire_at(now, 1).is_err());
/// ```
///
/// - `R` is the type of the rules: the settings of each key's limiter, without its state.
///   [`IntoRules`] converts a limiter to rules, and lists the limiters that a table can use.
/// - `M` is the storage, which the caller provides: `[Line; 1024]` in a static, `Box<[Line]>` or
///   `Vec<Line>` (see `Line::for_keys`), or `&'static [Line]`.
/// - `S` hashes the keys: a [`Seed`], a `RandomSeed` (with `std`), or any `BuildHasher`. Set a
///   `Seed` to random numbers before the first use of the table. Otherwise it is a constant, and an
///   attacker who chooses keys can fill all slots that some other key could use.
///
/// **Bound.** Each key is granted no more than its limit allows, however many keys there are, and
/// even if an attacker chooses them. A timestamp may be older than the newest one of all keys, by
/// at most the staleness: see [`with_staleness`](Self::with_staleness).
///
/// **New keys.** The limiter of a new key starts full. The setting
/// [`initial`](crate::builder::TokenBucketBuilder::initial) is ignored, for two reasons. First, the
/// table forgets a key when it gives the slot of the key to another one, and the forgotten key
/// returns as a new key. Its limiter was full when it was forgotten, so it would lose permits if it
/// started with fewer. Second, a new key without permits would never be granted any: a denial
/// writes nothing, so each request of the key would be its first.
///
/// **Changes of the settings.** A concurrency limit can be changed for all keys at once:
/// [`rules`](Self::rules) and
/// [`ConcurrencyRules::set_limit`](crate::keyed::ConcurrencyRules::set_limit). A rate, a burst or a
/// window cannot. A slot has no room for its own settings: they are stored once for all slots, and
/// the state of each is counted in units of them. The same state would mean more or fewer permits
/// under other settings, and all slots cannot be converted at one moment. There are three ways to
/// change a rate:
///
/// - [Move](Self::move_to) the keys to another table.
/// - Use a [`KeyedArray`] of [`AdjustableBucket`](crate::AdjustableBucket)s and
///   its [`change_all`](crate::KeyedArray::change_all).
/// - Have a table for each limit, and choose another table for the key. The key then starts with
///   all permits of that limit.
///
/// **Self-cleaning.** A key has a slot from its first grant on. The slot can be given to another
/// key once its limiter has been [idle](crate::limiter::Idle) for the [staleness](Self::staleness);
/// with a concurrency limit, as soon as it is idle. The limiter is then indistinguishable from a
/// fresh one, so the key loses nothing. A key can use 14 slots, in two lines of the table. If all
/// of them are in use by other keys, the key has no permits available, and its requests are denied
/// with [`Denied::Crowded`]. A retry after the staleness may find a slot. A key never gets a slot
/// at the expense of a key that uses it. Reads and probes claim no slot.
///
/// **Idle keys.** A key that has been idle long enough has all its permits again, after any time: a
/// table settles the slots of a line after a long idle time, before it uses them. There are two
/// exceptions, both without effect on the bound. A request that settles a line at the same moment
/// as another one may find fewer permits, if a thread is paused within a few instructions. And
/// limits whose burst, debt and staleness cover nearly the whole horizon are not settled: after an
/// idle time close to a multiple of the [horizon](crate::keyed::TokenBucketRules::timing), such a
/// key may have fewer permits for as long as the staleness. On targets without 64-bit atomics, all
/// this holds for idle times of up to 18 years.
///
/// **Collisions.** A slot identifies its key by its line and by 20 bits of the key's hash. Two keys
/// that collide share the permits of one limit; neither gets more. The probability that a key
/// collides is about 1 in 350,000 in a table of `for_keys`, 1 in 150,000 in a half-full one and 1
/// in 75,000 in a full one. An attacker who can create hundreds of thousands of keys, and can see
/// how many permits each has left, can find a key that collides with a victim's, and exhaust their
/// shared limit. On targets without 64-bit atomics there are 11 bits, and the probability is 1 in
/// 290, or 1 in 145 in a full table. Use tables there only for a small set of keys that is known in
/// advance.
///
/// **Denials.** A request for a key can be denied for these reasons:
///
/// | denial | reason | what to do |
/// |---|---|---|
/// | [`Denied::Exhausted`] | the key has too few permits | wait for [`denied.retry(&key)`](Denied::retry), then retry |
/// | [`Denied::ExceedsCapacity`] | the request exceeds the burst or the limit | request fewer permits |
/// | [`Denied::Crowded`] | no slot is free for the key, or another thread is claiming one | wait for `denied.retry(&key)`, then retry |
///
/// [`overflowed`](KeyedStatistics::overflowed) counts the denials of keys that found all slots in
/// use. If it grows, make the table larger, or restrict which keys clients can invent. A denial
/// changes nothing else. It is safe to treat a crowded key like an exhausted one, and to deny its
/// request.
/// To admit some of these requests all the same, judge them by one limiter that all crowded keys
/// share. A key may then be granted what this limiter grants, in addition to what its own does:
///
/// ```
/// use portcullis_core::{Denied, Keyed, Rate, Timestamp, TokenBucket};
///
/// let users = Keyed::for_keys(TokenBucket::new(Rate::per_second(10), 2), 1_000);
/// let crowded = TokenBucket::new(Rate::per_second(100), 20);
/// let admits = |user: &str, now| match users.key(user).try_acquire_at(now, 1) {
///     Ok(_) => true,
///     Err(Denied::Crowded { .. }) => crowded.try_acquire_at(now, 1).is_ok(),
///     Err(_) => false,
/// };
/// assert!(admits("alice", Timestamp::from_secs(9)));
/// ```
///
/// **Cost.** One hash, one cache line of the table for nearly all keys, and the computation of the
/// limiter. A grant makes one compare-exchange in total. The first grant of a key, also of one that
/// was forgotten, reads the second line too and writes twice. A denial writes nothing, except for a
/// counter if the key finds no slot. Lock-free, with one exception: while a thread claims a slot
/// for a key, other requests for that key retry a few times and are then denied with
/// [`Denied::Crowded`].
///
/// **Memory.** 8 bytes per slot; half of that on targets without 64-bit atomics. A table needs more
/// slots than keys. `for_keys` creates it with 43 bytes per key: then at most 1
/// new key in 1,000,000 finds no slot. With 16 bytes per key, it is 1 in 70.
///
/// Source: the partitioned limiter of the .NET rate limiting proposal; hash tables with a few
/// possible slots per key, as in cuckoo hashing (Pagh and Rodler, 2001), but without moving keys.
///
/// A table in a static:
///
/// ```
/// use portcullis_core::{Keyed, Rate, Timestamp};
/// use portcullis_core::keyed::{Line, Seed, TokenBucketRules};
///
/// static USERS: Keyed<TokenBucketRules, [Line; 1024]> = Keyed::new(
///     TokenBucketRules::new(Rate::per_second(10), 2),
///     [const { Line::new() }; 1024],
///     Seed::new(),
/// );
///
/// // At start-up. Use random numbers here.
/// USERS.seed().set([7, 8]).unwrap();
///
/// let now = Timestamp::from_secs(9);
/// let alice = USERS.key("alice");
/// assert!(alice.try_acquire_at(now, 2).is_ok());
/// assert!(alice.try_acquire_at(now, 1).is_err());
/// assert!(USERS.key("bob").try_acquire_at(now, 1).is_ok());
/// ```
pub struct Keyed<R, M, S = Seed> {
    rules: R,
    table: Table<M, S>,
}

impl<R: KeyedRules, M: AsRef<[Line]>, S: BuildHasher> Keyed<R, M, S> {
    const_unless_loom! {
        /// Creates a table in which each key has a limit with `rules`. [`IntoRules`] converts a
        /// limiter to rules.
        ///
        /// ```
        /// # use portcullis_core::{Keyed, LimiterExt, Timestamp};
        /// # use portcullis_core::keyed::{ConcurrencyRules, Line};
        /// let seed = portcullis_core::keyed::RandomSeed::new();
        /// let downloads = Keyed::new(ConcurrencyRules::new(1), Line::for_keys(1_000), seed);
        /// let alice = downloads.key("alice");
        /// let first = alice.try_acquire_at(Timestamp::ZERO, 1);
        /// assert!(first.is_ok() && alice.try_acquire_at(Timestamp::ZERO, 1).is_err());
        /// ```
        pub const fn new(rules: R, lines: M, hasher: S) -> Self {
            Self { rules, table: Table::new(lines, hasher) }
        }
    }
}

#[cfg(all(
    feature = "std",
    not(all(target_family = "wasm", target_os = "unknown"))
))]
impl<R: KeyedRules> Keyed<R, Box<[Line]>, RandomSeed> {
    /// Creates a table in which `keys` keys can be in use at once, each with the settings of
    /// `limiter`. Of new keys, at most 1 in 1,000,000 then finds no slot: see [`Line::for_keys`],
    /// also for the memory. Needs the feature `std`.
    ///
    /// Permits that were taken from `limiter` do not count: see [`IntoRules`].
    ///
    /// # Panics
    ///
    /// If the settings do not fit the 43 bits that a slot has for a state (20 on targets without
    /// 64-bit atomics). To get an error instead, pass `limiter.into_rules()?`.
    ///
    /// ```
    /// # use portcullis_core::{Keyed, Rate, Timestamp, TokenBucket};
    /// let users = Keyed::for_keys(TokenBucket::new(Rate::per_second(10), 2), 1_000);
    /// let now = Timestamp::from_secs(9);
    /// assert!(users.key("alice").try_acquire_at(now, 2).is_ok());
    /// assert!(users.key("alice").try_acquire_at(now, 1).is_err());
    /// assert!(users.key("bob").try_acquire_at(now, 1).is_ok());
    /// ```
    ///
    /// A limiter whose state is more than one word needs a [`KeyedArray`]:
    ///
    /// ```compile_fail,E0277
    /// # use core::time::Duration;
    /// # use portcullis_core::{Keyed, SlidingWindow};
    /// let window = SlidingWindow::<6>::new(5, Duration::from_secs(60), 6);
    /// let users = Keyed::for_keys(window, 1_000);
    /// ```
    #[must_use]
    pub fn for_keys(limiter: impl IntoRules<Rules = R>, keys: usize) -> Self {
        Self::for_keys_with_hasher(limiter, keys, RandomSeed::new())
    }
}

#[cfg(feature = "std")]
impl<R: KeyedRules, S: BuildHasher> Keyed<R, Box<[Line]>, S> {
    /// As [`for_keys`](Keyed::for_keys), with a hasher of the caller's choice. Needs the feature
    /// `std`.
    ///
    /// # Panics
    ///
    /// As `for_keys`.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, Keyed};
    /// # use portcullis_core::keyed::Seed;
    /// let users = Keyed::for_keys_with_hasher(Concurrency::new(1), 1_000, Seed::new());
    /// // At start-up. Use random numbers here.
    /// users.seed().set([7, 8]).unwrap();
    /// ```
    #[must_use]
    pub fn for_keys_with_hasher(
        limiter: impl IntoRules<Rules = R>,
        keys: usize,
        hasher: S,
    ) -> Self {
        match limiter.into_rules() {
            Ok(rules) => Self::new(rules, Line::for_keys(keys), hasher),
            Err(error) => error.refuse(),
        }
    }
}

impl<R: KeyedRules, M: AsRef<[Line]>, S: BuildHasher> Keyed<R, M, S> {
    /// Sets how long a slot must have been idle before another key may take it: 1 s to 292 years,
    /// default 1 s. A slot of a concurrency limit may be taken as soon as it is idle.
    ///
    /// The bound holds for every `now` that is older than the newest one, of all keys, by at most
    /// this staleness, and by at most the limiter's own staleness.
    ///
    /// # Panics
    ///
    /// If `staleness` is outside that range. In a constant or a static, that is a compile error.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::Keyed;
    /// # use portcullis_core::keyed::{ConcurrencyRules, Line, Seed};
    /// let table = Keyed::new(ConcurrencyRules::new(1), Line::for_keys(1), Seed::new());
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
    /// # use portcullis_core::Keyed;
    /// # use portcullis_core::keyed::{ConcurrencyRules, Line, Seed};
    /// let table = Keyed::new(ConcurrencyRules::new(1), Line::for_keys(1), Seed::new());
    /// assert_eq!(table.staleness(), Duration::from_secs(1));
    /// ```
    pub const fn staleness(&self) -> Duration {
        self.table.staleness()
    }

    /// Lets others end a claim that a thread has begun, for a table in memory that processes share.
    /// A thread may be killed or stopped there between two instructions of a key's first grant.
    /// With this setting the slot that it has claimed can be vacated ([`PendingClaim::abandon`])
    /// and the table handed over ([`hand_over_to`](Self::hand_over_to)). If the thread goes on, its
    /// claim is not made: it tries again, or is denied. All tables with these lines need the
    /// setting.
    ///
    /// # Cost
    ///
    /// The first grant of a key makes two compare-exchanges instead of one and a store.
    ///
    /// ```
    /// # use portcullis_core::{Keyed, Rate, Timestamp};
    /// # use portcullis_core::keyed::{Line, Seed, TokenBucketRules};
    /// let rules = TokenBucketRules::new(Rate::per_second(10), 2);
    /// let users = Keyed::new(rules, Line::for_keys(100), Seed::new()).with_revocable_claims();
    /// assert!(users.key("alice").try_acquire_at(Timestamp::ZERO, 2).is_ok());
    /// ```
    ///
    /// [`PendingClaim::abandon`]: crate::keyed::PendingClaim::abandon
    #[must_use]
    pub const fn with_revocable_claims(mut self) -> Self {
        self.table.claims = Claims::Revocable;
        self
    }

    /// Returns the lines. Tables with the same lines, for example in an `Arc`, have their state in
    /// common: they need the same rules, or concurrency rules that differ in the limit, and the
    /// same hasher.
    ///
    /// ```
    /// # use portcullis_core::{Keyed, Limiter, Timestamp};
    /// # use portcullis_core::keyed::{ConcurrencyRules, Line, Seed};
    /// use std::sync::Arc;
    ///
    /// let lines: Arc<[Line]> = Line::for_keys(100).into();
    /// let table = Keyed::new(ConcurrencyRules::new(3), lines, Seed::new());
    /// let other = Keyed::new(ConcurrencyRules::new(5), Arc::clone(table.lines()), Seed::new());
    /// let _lease = table.key("alice").try_acquire_at(Timestamp::ZERO, 1)?;
    /// assert_eq!(other.key("alice").available_at(Timestamp::ZERO), 4);
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    pub const fn lines(&self) -> &M {
        &self.table.lines
    }

    /// Returns the hasher of the keys, for example to set its [`Seed`].
    ///
    /// ```
    /// # use portcullis_core::Keyed;
    /// # use portcullis_core::keyed::{ConcurrencyRules, Line, Seed};
    /// let table = Keyed::new(ConcurrencyRules::new(1), Line::for_keys(1), Seed::new());
    /// assert!(table.seed().set([1, 2]).is_ok());
    /// ```
    pub const fn seed(&self) -> &S {
        &self.table.hasher
    }
}

impl<R: KeyedRules, M: AsRef<[Line]>, S: BuildHasher> Keyed<R, M, S> {
    /// Returns the limiter of `key`. The key takes no slot before its first grant.
    ///
    /// # Cost
    ///
    /// One hash.
    ///
    /// ```
    /// # use portcullis_core::{Keyed, Limiter, Timestamp};
    /// # use portcullis_core::keyed::{ConcurrencyRules, Line, Seed};
    /// let table = Keyed::new(ConcurrencyRules::new(3), Line::for_keys(100), Seed::new());
    /// assert_eq!(table.key(&("alice", 7)).available_at(Timestamp::ZERO), 3);
    /// assert_eq!(
    ///     table.statistics_at(Timestamp::ZERO).live,
    ///     0,
    ///     "a read takes no slot"
    /// );
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
    /// # use portcullis_core::{Concurrency, Keyed};
    /// # use portcullis_core::keyed::KeyHash;
    /// let table = Keyed::for_keys(Concurrency::new(3), 100);
    /// let alice = KeyHash::new(table.seed(), "alice");
    /// assert_eq!(table.key_hashed(alice).address(), table.key("alice").address());
    /// ```
    #[inline]
    pub fn key_hashed(&self, hash: KeyHash) -> TableKey<&Self> {
        TableKey::at(self, self.locate(hash))
    }

    /// As [`key`](Self::key), with a share of the table instead of a borrow. So the key and its
    /// leases can move to another thread or to a task that is spawned. For other pointers see
    /// [`TableKey::new`]. Needs the feature `std`.
    ///
    /// # Cost
    ///
    /// One hash, and an increment of the `Arc`'s count.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, Keyed, Limiter, Timestamp};
    /// use std::sync::Arc;
    ///
    /// let table = Arc::new(Keyed::for_keys(Concurrency::new(1), 100));
    /// let lease = table.owned_key("alice").try_acquire_at(Timestamp::ZERO, 1)?;
    /// std::thread::spawn(move || drop(lease)).join().unwrap();
    /// assert_eq!(table.key("alice").available_at(Timestamp::ZERO), 1);
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    #[cfg(feature = "std")]
    pub fn owned_key<K: Hash + ?Sized>(self: &Arc<Self>, key: &K) -> TableKey<Arc<Self>> {
        TableKey::new(Arc::clone(self), key)
    }

    /// Returns the rules of the limit. Permits cannot be taken from rules. The rules of a
    /// concurrency limit can be changed.
    ///
    /// ```
    /// # use portcullis_core::Keyed;
    /// # use portcullis_core::keyed::{ConcurrencyRules, Line, Seed};
    /// let table = Keyed::new(ConcurrencyRules::new(3), Line::for_keys(1), Seed::new());
    /// table.rules().set_limit(5).unwrap();
    /// assert_eq!(table.rules().limit(), 5, "the new limit of every key");
    /// ```
    pub const fn rules(&self) -> &R {
        &self.rules
    }

    /// Counts the slots: all, those that belong to a key, and those in use. See
    /// [`KeyedStatistics`]. Reads them one after another, so the counts are exact only if no slot
    /// changes in the meantime.
    ///
    /// ```
    /// # use portcullis_core::{Keyed, LimiterExt, Timestamp};
    /// # use portcullis_core::keyed::{ConcurrencyRules, Line, Seed};
    /// let lines = [const { Line::new() }; 2];
    /// let table = Keyed::new(ConcurrencyRules::new(3), lines, Seed::new());
    /// let alice = table.key("alice");
    /// let _lease = alice.try_acquire_at(Timestamp::ZERO, 1).unwrap();
    /// let statistics = table.statistics_at(Timestamp::ZERO);
    /// assert_eq!(
    ///     (statistics.slots, statistics.held, statistics.live),
    ///     (14, 1, 1)
    /// );
    /// ```
    pub fn statistics_at(&self, now: Timestamp) -> KeyedStatistics {
        self.table.statistics(Width::ONE, |at, held| {
            let state = self.state_in(at, held, now);
            !self.rules.idle(state, now).is_idle()
        })
    }

    /// Vacates the slots in `lines` that have been idle for the [staleness](Self::staleness) at
    /// `now`. Returns their number.
    ///
    /// No decision and no bound depends on sweeps. They keep
    /// [`held`](KeyedStatistics::held) close to the number of keys in use.
    ///
    /// # Cost
    ///
    /// Reads all slots in `lines`. A caller may sweep a few lines at a time.
    ///
    /// ```
    /// # use portcullis_core::{Keyed, LimiterExt, Timestamp};
    /// # use portcullis_core::keyed::{ConcurrencyRules, Line, Seed};
    /// let table = Keyed::new(ConcurrencyRules::new(3), Line::for_keys(8), Seed::new());
    /// drop(
    ///     table
    ///         .key("alice")
    ///         .try_acquire_at(Timestamp::ZERO, 1)
    ///         .unwrap(),
    /// );
    /// assert_eq!(table.sweep_at(Timestamp::from_secs(1), ..), 1);
    /// ```
    pub fn sweep_at(&self, now: Timestamp, lines: impl RangeBounds<usize>) -> usize {
        self.table.sweep(Width::ONE, lines, |entry| {
            self.settle_at(entry.at, now);
            entry.vacate_if(|held| self.is_free(Some(held), now))
        })
    }

    fn is_free(&self, held: Option<Held>, now: Timestamp) -> bool {
        let since = self.table.since(now);
        held.is_none_or(|held| self.rules.is_forgettable(held.state(), now, since))
    }

    /// Whether a claim would find a slot. Settles nothing.
    fn has_room(&self, address: &Address, now: Timestamp, n: u32) -> Result<(), Denied> {
        self.table
            .has_room(address, Width::ONE, now, n, |at, held| {
                self.is_free(held, now) || held.is_some_and(|held| self.has_rested(at, held, now))
            })
    }

    /// For how long the states of all limits can be read.
    fn span(&self) -> Span {
        self.table.span(|| Span::of(self.rules.readable_for()))
    }

    /// Whether the slots of a line can be judged at `now` as they are.
    #[inline(always)]
    fn is_settled(line: &Line, now: Timestamp) -> bool {
        !R::wraps() || table::is_settled(line.clock(), now)
    }

    /// Settles the line of the slot with index `at`, if necessary.
    #[inline(always)]
    fn settle_at(&self, at: usize, now: Timestamp) {
        if R::wraps() && !self.table.is_settled(Width::ONE, at, now) {
            self.settle(at, now);
        }
    }

    #[cold]
    #[inline(never)]
    fn settle(&self, at: usize, now: Timestamp) {
        if !self.table.start(Width::ONE, at, now, || self.span()) {
            self.settle_words(at, now);
        }
    }

    /// As [`settle`](Self::settle). Kept apart from the start of a clock.
    #[inline(never)]
    fn settle_words(&self, at: usize, now: Timestamp) {
        let since = self.table.since(now);
        let rested = |_, held: Held, clock| {
            let (rules, state) = (&self.rules, held.state());
            has_rested(rules, state, clock, now, since).then(|| rules.rested(now, since))
        };
        let shape = (Width::ONE, 1);
        self.table.settle(shape, at, (now, self.span()), rested);
    }

    /// The key's word in its slot, after its line was settled if necessary. `None` if the key has
    /// lost the slot.
    #[inline(always)]
    fn settled(&self, entry: Entry<'_>, held: Held, now: Timestamp) -> Option<Held> {
        if !R::wraps() {
            return Some(held);
        }
        self.settle_at(entry.at, now);
        // Again: another call may have settled it before the clock was read.
        entry.held_as(held.tag())
    }

    /// Whether settling the line of the slot with index `at` would find its limiter at rest.
    fn has_rested(&self, at: usize, held: Held, now: Timestamp) -> bool {
        if !R::wraps() {
            return false;
        }
        let (rules, since) = (&self.rules, self.table.since(now));
        let settled_at = self.table.settled_at(Width::ONE, at, now, || self.span());
        settled_at.is_some() && has_rested(rules, held.state(), settled_at, now, since)
    }

    /// The state of a slot as it would be if its line were settled.
    fn state_in(&self, at: usize, held: Held, now: Timestamp) -> u64 {
        if self.has_rested(at, held, now) {
            self.rules.fresh(now)
        } else {
            held.state()
        }
    }

    /// Changes the state in a key's slot with `change`, until that succeeds. Returns `false` if the
    /// key has no slot, or if `change` returns `None`. A change at some time settles the line.
    fn update(
        &self,
        address: &Address,
        now: Option<Timestamp>,
        mut change: impl FnMut(u64) -> Option<u64>,
    ) -> bool {
        let mut seen = match (address.find(self.table.lines(), Width::ONE), now) {
            (Found::Held(entry, held), Some(now)) => {
                self.settled(entry, held, now).map(|held| (entry, held))
            }
            (Found::Held(entry, held), None) => Some((entry, held)),
            _ => None,
        };
        while let Some((entry, held)) = seen {
            let Some(state) = change(held.state()) else {
                break;
            };
            match entry.change(held, state) {
                Ok(()) => return true,
                Err(newer) => seen = newer.map(|held| (entry, held)),
            }
        }
        false
    }

    #[inline(always)]
    fn take<O: Observer>(
        &self,
        address: &Address,
        now: Timestamp,
        n: u32,
        seen: O,
    ) -> Result<Receipt, Denied> {
        if let Some((entry, held)) = self.find_settled(address, now) {
            let rules = &self.rules;
            match rules.judge(held.state(), rules.request(now, n)?) {
                Verdict::Granted(left) => {
                    if entry.change(held, left).is_ok() {
                        seen.observe(move || rules.detail(left, now, Ok(())));
                        return Ok(rules.receipt(left, now));
                    }
                }
                Verdict::Allowed => {
                    seen.observe(move || rules.detail(held.state(), now, Ok(())));
                    return Ok(Receipt::NONE);
                }
                Verdict::Denied(denied) => {
                    seen.observe(move || rules.detail(held.state(), now, Err(denied)));
                    return Err(denied);
                }
            }
        }
        self.take_slowly(*address, now, n, seen)
    }

    /// The slot of the key, if it is in its first line, and that is settled at `now`.
    #[inline(always)]
    fn find_settled(&self, address: &Address, now: Timestamp) -> Option<(Entry<'_>, Held)> {
        let line = address.near(self.table.lines())?;
        if !Self::is_settled(line, now) {
            return None;
        }
        address.find_in(line, Width::ONE)
    }

    /// Takes from the key's slot in either line, or from a new slot. A separate function with its
    /// own copy of the address, so that the fast path keeps everything in registers.
    #[cold]
    #[inline(never)]
    fn take_slowly<O: Observer>(
        &self,
        address: Address,
        now: Timestamp,
        n: u32,
        seen: O,
    ) -> Result<Receipt, Denied> {
        let rules = &self.rules;
        let request = rules.request(now, n)?;
        for _ in 0..ATTEMPTS {
            match address.find(self.table.lines(), Width::ONE) {
                Found::Held(entry, held) => {
                    let mut held = self.settled(entry, held, now);
                    while let Some(before) = held {
                        let left = match rules.judge(before.state(), request) {
                            Verdict::Granted(left) => left,
                            Verdict::Allowed => {
                                seen.observe(move || rules.detail(before.state(), now, Ok(())));
                                return Ok(Receipt::NONE);
                            }
                            Verdict::Denied(denied) => {
                                seen.observe(move || {
                                    rules.detail(before.state(), now, Err(denied))
                                });
                                return Err(denied);
                            }
                        };
                        match entry.change(before, left) {
                            Ok(()) => {
                                seen.observe(move || rules.detail(left, now, Ok(())));
                                return Ok(rules.receipt(left, now));
                            }
                            Err(newer) => held = newer,
                        }
                    }
                }
                Found::Claimed => core::hint::spin_loop(),
                Found::Nothing => {
                    if let Some(outcome) =
                        self.take_by_claim(&address, rules, request, now, n, seen)
                    {
                        return outcome;
                    }
                }
            }
        }
        Err(Denied::Crowded { now, permits: n })
    }

    /// Takes from a slot that this call claims. Returns `None` if another call claims one for the
    /// same key.
    #[cold]
    fn take_by_claim<O: Observer>(
        &self,
        address: &Address,
        rules: &R,
        request: R::Request,
        now: Timestamp,
        n: u32,
        seen: O,
    ) -> Option<Result<Receipt, Denied>> {
        let state = match rules.judge(rules.fresh(now), request) {
            Verdict::Granted(state) => state,
            Verdict::Allowed => {
                return Some(self.has_room(address, now, n).map(|()| Receipt::NONE));
            }
            Verdict::Denied(denied) => return Some(Err(denied)),
        };
        let settle = |at| self.settle_at(at, now);
        let is_free = |_, held| self.is_free(held, now);
        let claim = self
            .table
            .claim(address, Width::ONE, now, n, settle, is_free);
        match claim {
            Ok(Some((claimed, _))) => {
                if !claimed.hold(state) {
                    return None;
                }
                seen.observe(move || rules.detail(state, now, Ok(())));
                Some(Ok(rules.receipt(state, now)))
            }
            Ok(None) => None,
            Err(denied) => Some(Err(denied)),
        }
    }

    /// The state of a key's limiter, or that of a fresh limiter if the key has no slot; and whether
    /// it would have to claim one.
    fn state(&self, address: &Address, rules: &R, now: Timestamp) -> (u64, bool) {
        match address.find(self.table.lines(), Width::ONE) {
            Found::Held(entry, held) => (self.state_in(entry.at, held, now), false),
            Found::Claimed => (rules.fresh(now), false),
            Found::Nothing => (rules.fresh(now), true),
        }
    }

    /// Looks at a request: the state that it saw, and the decision.
    fn look(&self, address: &Address, now: Timestamp, n: u32) -> (u64, Result<(), Denied>) {
        let rules = &self.rules;
        let (state, is_new) = self.state(address, rules, now);
        let decision = match look(rules, state, now, n) {
            Ok(()) if is_new => self.has_room(address, now, n),
            decision => decision,
        };
        (state, decision)
    }

    fn explain(&self, address: &Address, now: Timestamp, n: u32) -> Detail {
        let (state, decision) = self.look(address, now, n);
        let detail = self.rules.detail(state, now, decision);
        match decision {
            Err(Denied::Crowded { .. }) => detail.without_slot(self.table.retry()),
            _ => detail,
        }
    }

    /// A key that has no slot in its first line depends on the time: so does a claim.
    #[inline(always)]
    fn take_within(
        &self,
        address: &Address,
        interval: Interval,
        n: u32,
    ) -> Option<Result<Receipt, Denied>> {
        let (entry, held) = self.find_settled(address, interval.latest())?;
        let rules = &self.rules;
        let ends = match rules.requests_within(interval, n) {
            Ok(ends) => ends,
            Err(denied) => return Some(Err(denied)),
        };
        match rules.judge_within(held.state(), ends)? {
            Verdict::Granted(left) => {
                // If another call has changed the slot, the time decides.
                entry.change(held, left).ok()?;
                Some(Ok(rules.receipt(left, interval.earliest())))
            }
            Verdict::Allowed => Some(Ok(Receipt::NONE)),
            Verdict::Denied(denied) => Some(Err(denied)),
        }
    }

    fn look_within(
        &self,
        address: &Address,
        interval: Interval,
        n: u32,
    ) -> Option<Result<(), Denied>> {
        let (_, held) = self.find_settled(address, interval.latest())?;
        let rules = &self.rules;
        let ends = match rules.requests_within(interval, n) {
            Ok(ends) => ends,
            Err(denied) => return Some(Err(denied)),
        };
        Some(match rules.judge_within(held.state(), ends)? {
            Verdict::Granted(_) | Verdict::Allowed => Ok(()),
            Verdict::Denied(denied) => Err(denied),
        })
    }

    fn refund(&self, address: &Address, now: Timestamp, n: u32, receipt: Receipt) -> Refund {
        let rules = &self.rules;
        let mut restored = None;
        let refunded = self.update(address, Some(now), |state| {
            restored = rules.refund(state, now, n, &receipt);
            restored
        });
        match restored {
            Some(restored) if refunded => rules.rest(restored, receipt).refunded(n),
            _ => receipt.refunded(0),
        }
    }

    #[inline]
    fn release(&self, address: &Address, n: u32) {
        let rules = &self.rules;
        if rules.releases() {
            // Permits are in use, so the key has a slot, and no other key can take it.
            let released = self.update(address, None, |state| {
                rules.refund(state, Timestamp::ZERO, n, &Receipt::NONE)
            });
            debug_assert!(released, "permits were released that had not been taken");
        }
    }
}

impl<R: KeyedRules, M: AsRef<[Line]>, S: BuildHasher> QueueKeys for Keyed<R, M, S> {
    const SHARED: bool = false;

    fn next_held(&self, from: usize) -> Option<usize> {
        let is_held = |held: Held| {
            let rules = &self.rules;
            rules.releases() && !rules.idle(held.state(), Timestamp::MAX).is_idle()
        };
        if !self.rules.releases() {
            return None;
        }
        line::entries_from(self.table.lines(), from, Width::ONE)
            .find(|entry| entry.held().is_some_and(is_held))
            .map(|entry| entry.at)
    }
}

impl<R: KeyedRules, M: AsRef<[Line]>, S: BuildHasher> Keys for Keyed<R, M, S> {
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

impl<R: KeyedRules + Moved, M: AsRef<[Line]>, S: BuildHasher> Replenishing
    for KeyIn<'_, Keyed<R, M, S>>
{
}

impl<R: KeyedRules, M: AsRef<[Line]>, S: BuildHasher> Limiter for KeyIn<'_, Keyed<R, M, S>> {
    #[inline(always)]
    fn decide(&self, ask: Ask<'_>) -> Answer {
        let Self { table, address } = *self;
        let n = ask.permits();
        match (ask.when(), ask.detail()) {
            (When::Within(interval), _) if ask.is_look() => {
                table.look_within(address, interval, n).into()
            }
            (When::Within(interval), _) => table.take_within(address, interval, n).into(),
            (When::At(now), None) if ask.is_look() => table.look(address, now, n).1.into(),
            (When::At(now), None) => table.take(address, now, n, ()).into(),
            (When::At(now), Some(seen)) => {
                let looked = |n| table.explain(address, now, n);
                if ask.is_look() {
                    let detail = looked(n);
                    seen.set(Some(detail));
                    return detail.decision.into();
                }
                let take = |seen: &Cell<_>| table.take(address, now, n, seen);
                let retry = |denied| self.retry(denied);
                let (taken, detail) = observed((now, n), take, looked, retry);
                seen.set(Some(detail));
                taken.into()
            }
        }
    }

    #[inline(always)]
    fn give_back(&self, back: Back<'_>) -> Returned {
        let Self { table, address } = *self;
        match back {
            Back::Refund {
                now,
                permits,
                receipt,
                ..
            } => table.refund(address, now, permits, receipt).into(),
            Back::Release { permits } => {
                table.release(address, permits);
                Returned::NOTHING
            }
            _ => Returned::NOTHING,
        }
    }

    #[inline]
    fn read(&self, read: Read<'_>) -> Reading {
        let Self { table, address } = *self;
        let (rules, now) = (&table.rules, read.now());
        let (state, is_new) = table.state(address, rules, now);
        // No permit can be taken without a slot.
        let is_crowded = is_new && table.has_room(address, now, 1).is_err();
        Reading {
            available: if is_crowded {
                0
            } else {
                rules.available(state, now)
            },
            capacity: rules.capacity(),
            idle: rules.idle(state, now),
            held: 0,
        }
    }

    fn retry(&self, denied: Denied) -> Retry {
        let Self { table, address } = *self;
        match denied {
            Denied::Crowded { .. } => table.table.retry(),
            Denied::Exhausted { now, .. } => {
                let rules = &table.rules;
                rules.retry(table.state(address, rules, now).0, denied)
            }
            _ => Retry::Never,
        }
    }

    #[inline(always)]
    fn hints(&self) -> Hints {
        Hints::ONE_RECEIPT.within_intervals()
    }
}

impl<R: fmt::Debug, M, S> fmt::Debug for Keyed<R, M, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyed")
            .field("rules", &self.rules)
            .finish_non_exhaustive()
    }
}
