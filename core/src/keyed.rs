//! A table of limiters by key; see [`line`](mod@line) for the state, the transitions and the
//! invariant.

pub(crate) mod key;
pub(crate) mod keyed_array;
pub(crate) mod line;
pub(crate) mod seed;
pub(crate) mod table;

use core::fmt;
use core::hash::{BuildHasher, Hash};
use core::ops::RangeBounds;
use core::time::Duration;

use crate::keyed::key::{Key, Keys, QueueKeys};
use crate::keyed::line::{Address, Found, Held, Line};
use crate::keyed::table::{ATTEMPTS, KeyedStatistics, Table};
use crate::rules::{TableRules, Verdict};
use crate::sync::const_unless_loom;
use crate::{Denied, Idle, KeyedWord, Receipt, Refund, Retry, Seed, Timestamp};

/// Rules that a [`Keyed`] table can have, of limiters whose state is one word for each key. Sealed.
///
/// [`TokenBucketRules`](crate::TokenBucketRules), [`FixedWindowRules`](crate::FixedWindowRules) and
/// [`ConcurrencyRules`](crate::ConcurrencyRules).
///
/// ```
/// use portcullis_core::{KeyedRules, Rate, TokenBucketRules};
/// fn has_some(_: impl KeyedRules) {}
/// has_some(TokenBucketRules::new(Rate::per_second(5), 10));
/// ```
///
/// A limiter has a word of its own, which no table would read. So it is no rules:
///
/// ```compile_fail,E0277
/// # use portcullis_core::{KeyedRules, Rate, TokenBucket};
/// # fn has_some(_: impl KeyedRules) {}
/// has_some(TokenBucket::new(Rate::per_second(5), 10));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not rules that a table can have",
    label = "a table has rules, and a word for each key",
    note = "`TokenBucketRules`, `FixedWindowRules` and `ConcurrencyRules` are; builders make them by `rules()`",
    note = "for limiters of any type, take a `KeyedArray`"
)]
pub trait KeyedRules: TableRules<Word = KeyedWord> {}

impl<R: TableRules<Word = KeyedWord>> KeyedRules for R {}

/// A limiter for each key, of any number of keys, in a table of fixed size: without a lock, without
/// allocation, 8 bytes an entry (4 on targets without 64-bit atomics).
///
/// `R` is the rules of each key's limit, or of one of `N` limits, chosen with each key (say, reads
/// and writes of one user, or plans that differ). `M` is the storage, given by you: `[Line; 1024]`
/// in a static, `Box<[Line]>` or `Vec<Line>` (see [`Line::for_keys`]), `&'static [Line]`. `S`
/// hashes the keys: a [`Seed`], or any `BuildHasher`. [`key`](Self::key) gives a limiter like any
/// other: it can be one of [`AllOf`](crate::AllOf), wrapped, and asked for its retry time.
///
/// **Bound.** Each key is granted no more than its limit promises, however many keys come, and
/// whoever chooses them.
///
/// Each key's limiter starts full, whatever permits its settings say that a bucket starts with
/// ([`initial`](crate::TokenBucketBuilder::initial) is not looked at): as if it had been there for
/// ever. A key that was forgotten starts as one that has never come, and is forgotten because it is
/// full; with fewer permits it would lose some. And a key that starts with none would never be
/// granted any: a denial writes nothing, so each of its requests would be the first one.
///
/// **Self-cleaning.** A key has an entry from its first grant on. An entry is given to another key
/// only when its limiter has been as good as new for the [staleness](Self::staleness): nobody can
/// tell then. If all that a key could use (16 entries, in two lines) are in use, it is denied,
/// [`Denied::Crowded`], and counted (and told to ask again after the staleness); it is never given
/// a fresh one at another's cost. Reading and probing create nothing.
///
/// **Keys.** An entry knows its key by its line and by 20 bits of its hash, less those that tell
/// `N` limits apart. A key finds a stranger in its own entry with a chance of about 1 in 130,000 in
/// a half full table and 1 in 65,000 in a full one (of one limit; with `N`, as many times as often
/// as `N`, rounded up to a power of two); both then share one limit: fewer permits for each, never
/// more. So whoever makes up keys by the hundred thousand, and looks at what is left of each, finds
/// one that shares with somebody, and can use up that limit. On targets without 64-bit atomics
/// there are 11 bits, and a key meets a stranger with a chance of 1 in 256, or 1 in 128 in a full
/// table: for the few keys of a small system, best known beforehand.
///
/// **Cost.** A hash, and for nearly all keys one cache line; then what the limiter costs, with one
/// compare-exchange. The first grant of a key, and each that comes after its entry was forgotten,
/// reads the second line as well, and writes twice. A denial writes nothing, but a counter if the
/// table is full. Lock-free, except that a key is denied while another thread is just claiming an
/// entry for it, and has been stopped in it.
///
/// **Memory.** 8 bytes an entry, and for half full 16 bytes a key; half of that on targets without
/// 64-bit atomics.
///
/// Source: the partitioned limiter of the .NET rate limiting proposal; tables of buckets with a few
/// places for a key, as in cuckoo hashing (Pagh and Rodler, 2001) without moving.
///
/// ```
/// use portcullis_core::{Keyed, Line, Rate, Seed, Timestamp, TokenBucketRules};
///
/// static USERS: Keyed<TokenBucketRules, [Line; 1024]> = Keyed::new(
///     TokenBucketRules::new(Rate::per_second(10), 2),
///     [const { Line::new() }; 1024],
///     Seed::new(),
/// );
///
/// // Random numbers, at start-up.
/// USERS.seed().set([7, 8]).unwrap();
///
/// let now = Timestamp::from_secs(9);
/// let alice = USERS.key("alice");
/// assert!(alice.try_acquire_at(now, 2).is_ok());
/// assert!(alice.try_acquire_at(now, 1).is_err());
/// assert!(USERS.key("bob").try_acquire_at(now, 1).is_ok());
/// ```
pub struct Keyed<R, M, S = Seed, const N: usize = 1> {
    rules: [R; N],
    table: Table<M, S>,
}

impl<R, M, S> Keyed<R, M, S> {
    const_unless_loom! {
        /// A table in which each key has a limit by `rules`.
        ///
        /// ```
        /// # use portcullis_core::{ConcurrencyRules, Keyed, Line, LimiterExt, Timestamp};
        /// let seed = std::hash::RandomState::new();
        /// let downloads = Keyed::new(ConcurrencyRules::new(1), Line::for_keys(1_000), seed);
        /// let alice = downloads.key("alice");
        /// let first = alice.try_acquire_at(Timestamp::ZERO, 1);
        /// assert!(first.is_ok() && alice.try_acquire_at(Timestamp::ZERO, 1).is_err());
        /// ```
        pub const fn new(rules: R, lines: M, hasher: S) -> Self {
            Self::with_limits([rules], lines, hasher)
        }
    }
}

impl<R, M, S, const N: usize> Keyed<R, M, S, N> {
    /// Bits of a tag that tell the limits apart.
    const LIMIT_BITS: u32 = usize::BITS - (N - 1).leading_zeros();

    const_unless_loom! {
        /// A table with several limits, 1 to 256: which one applies is chosen with each
        /// [key](Self::key_of).
        ///
        /// ```
        /// # use core::time::Duration;
        /// # use portcullis_core::{FixedWindowRules, Keyed, Line, LimiterExt, Seed, Timestamp};
        /// const READ: usize = 0;
        /// const WRITE: usize = 1;
        /// let minute = Duration::from_secs(60);
        /// let limits = [100, 5].map(|limit| FixedWindowRules::new(limit, minute));
        /// let users = Keyed::with_limits(limits, Line::for_keys(1_000), Seed::new());
        ///
        /// let now = Timestamp::from_secs(9);
        /// let alice = |limit| users.key_of(limit, "alice").expect("is a limit of the table");
        /// assert!(alice(WRITE).try_acquire_at(now, 5).is_ok());
        /// assert!(alice(WRITE).try_acquire_at(now, 1).is_err());
        /// assert!(alice(READ).try_acquire_at(now, 100).is_ok(), "reads are counted apart");
        /// ```
        pub const fn with_limits(rules: [R; N], lines: M, hasher: S) -> Self {
            const { assert!(N >= 1 && N <= 256, "a table has 1 to 256 limits") };
            Self { rules, table: Table::new(lines, hasher) }
        }
    }

    /// How long an entry has to have been as good as new before another key may have it (of a
    /// concurrency limit, not at all): 1 s to 292 years, default 1 s. The bound holds for every
    /// `now` up to so much older than the newest one that the table was told, and the limiter's own
    /// staleness.
    ///
    /// # Panics
    ///
    /// Outside of that range; in a constant or a static, that is a compile error.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{ConcurrencyRules, Keyed, Line, Seed};
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

    /// See [`with_staleness`](Self::with_staleness).
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{ConcurrencyRules, Keyed, Line, Seed};
    /// let table = Keyed::new(ConcurrencyRules::new(1), Line::for_keys(1), Seed::new());
    /// assert_eq!(table.staleness(), Duration::from_secs(1));
    /// ```
    pub const fn staleness(&self) -> Duration {
        self.table.staleness()
    }

    /// What hashes the keys.
    ///
    /// ```
    /// # use portcullis_core::{ConcurrencyRules, Keyed, Line, Seed};
    /// let table = Keyed::new(ConcurrencyRules::new(1), Line::for_keys(1), Seed::new());
    /// assert!(table.seed().set([1, 2]).is_ok());
    /// ```
    pub const fn seed(&self) -> &S {
        &self.table.hasher
    }
}

impl<R: KeyedRules, M: AsRef<[Line]>, S: BuildHasher, const N: usize> Keyed<R, M, S, N> {
    /// The limiter of `key`, under the first limit. Nothing is created before its first grant.
    ///
    /// # Cost
    ///
    /// One hash.
    ///
    /// ```
    /// # use portcullis_core::{ConcurrencyRules, Keyed, Limiter, Line, Seed, Timestamp};
    /// let table = Keyed::new(ConcurrencyRules::new(3), Line::for_keys(100), Seed::new());
    /// assert_eq!(table.key(&("alice", 7)).available_at(Timestamp::ZERO), 3);
    /// assert_eq!(
    ///     table.statistics_at(Timestamp::ZERO).live,
    ///     0,
    ///     "reading creates nothing"
    /// );
    /// ```
    #[inline]
    pub fn key<K: Hash + ?Sized>(&self, key: &K) -> Key<'_, Self> {
        self.address(0, key)
    }

    /// The limiter of `key` under the limit number `limit`, from 0; `None` if there is no such
    /// limit. The limiters of one key under two limits are two.
    ///
    /// ```
    /// # use portcullis_core::{ConcurrencyRules, Keyed, Line, Seed};
    /// let table = Keyed::with_limits(
    ///     [ConcurrencyRules::new(3), ConcurrencyRules::new(1)],
    ///     Line::for_keys(100),
    ///     Seed::new(),
    /// );
    /// assert!(table.key_of(1, "alice").is_some() && table.key_of(2, "alice").is_none());
    /// ```
    #[inline]
    pub fn key_of<K: Hash + ?Sized>(&self, limit: usize, key: &K) -> Option<Key<'_, Self>> {
        self.locate(limit, key)
            .map(|address| Key::at(self, address))
    }

    /// The rules of the limits, in their order. Nothing can be taken from rules; those of a
    /// concurrency limit can be changed.
    ///
    /// ```
    /// # use portcullis_core::{ConcurrencyRules, Keyed, Line, Seed};
    /// let table = Keyed::new(ConcurrencyRules::new(3), Line::for_keys(1), Seed::new());
    /// table.rules()[0].set_limit(5).unwrap();
    /// assert_eq!(table.rules()[0].limit(), 5, "of every key, from now on");
    /// ```
    pub const fn rules(&self) -> &[R; N] {
        &self.rules
    }

    /// Counts the entries. Reads them all, one after the other: exact if nobody changes them
    /// meanwhile.
    ///
    /// ```
    /// # use portcullis_core::{ConcurrencyRules, Keyed, LimiterExt, Line, Seed, Timestamp};
    /// let table = Keyed::new(ConcurrencyRules::new(3), Line::for_keys(8), Seed::new());
    /// let alice = table.key("alice");
    /// let _lease = alice.try_acquire_at(Timestamp::ZERO, 1).unwrap();
    /// let statistics = table.statistics_at(Timestamp::ZERO);
    /// assert_eq!(
    ///     (statistics.entries, statistics.held, statistics.live),
    ///     (16, 1, 1)
    /// );
    /// ```
    pub fn statistics_at(&self, now: Timestamp) -> KeyedStatistics {
        self.table
            .statistics(|_, held| !self.rules_of(held.tag()).idle(held.state(), now).is_idle())
    }

    /// Makes the entries of `lines` vacant that have been as good as new for the
    /// [staleness](Self::staleness) at `now`, and returns how many. Never needed for the bound or
    /// for room; it keeps a limiter whose word has a near horizon from being told less than full
    /// when its key comes back after about one.
    ///
    /// # Cost
    ///
    /// Reads all these lines: a few at a time do as well.
    ///
    /// ```
    /// # use portcullis_core::{ConcurrencyRules, Keyed, LimiterExt, Line, Seed, Timestamp};
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
        self.table
            .sweep(lines, |_, held| self.is_free(Some(held), now))
    }

    #[inline]
    fn address<K: Hash + ?Sized>(&self, limit: usize, key: &K) -> Key<'_, Self> {
        Key::at(self, self.table.address(key, limit, Self::LIMIT_BITS))
    }

    /// The rules of the limit that a tag is for: every tag was made for one.
    fn rules_of(&self, tag: u64) -> &R {
        self.rules
            .get(Address::limit(tag, Self::LIMIT_BITS))
            .unwrap_or(&self.rules[0])
    }

    fn is_free(&self, held: Option<Held>, now: Timestamp) -> bool {
        let since = self.table.since(now);
        held.is_none_or(|held| {
            self.rules_of(held.tag())
                .is_forgettable(held.state(), now, since)
        })
    }

    fn has_room(&self, address: &Address, now: Timestamp, n: u32) -> Result<(), Denied> {
        self.table
            .has_room(address, now, n, |_, held| self.is_free(held, now))
    }

    /// Changes the state of a key's entry, where it has one and `change` does.
    fn update(&self, address: &Address, mut change: impl FnMut(u64) -> Option<u64>) -> bool {
        let mut seen = match address.find(self.table.lines()) {
            Found::Held(entry, held) => Some((entry, held)),
            Found::Claimed | Found::Nothing => None,
        };
        while let Some((entry, held)) = seen
            && let Some(state) = change(held.state())
        {
            match entry.change(held, state) {
                Ok(()) => return true,
                Err(newer) => seen = newer.map(|held| (entry, held)),
            }
        }
        false
    }

    /// Takes from wherever the key's entry lies, or from a new one. Apart, and with an address of
    /// its own, so that the usual way keeps all in registers.
    #[cold]
    #[inline(never)]
    fn take_slowly(&self, address: Address, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        let rules = self.rules_of(address.tag());
        let request = rules.request(now, n)?;
        for _ in 0..ATTEMPTS {
            match address.find(self.table.lines()) {
                Found::Held(entry, held) => {
                    let mut seen = Some(held);
                    while let Some(held) = seen {
                        let left = match rules.judge(held.state(), request) {
                            Verdict::Granted(left) => left,
                            Verdict::Allowed => return Ok(Receipt::NONE),
                            Verdict::Denied(denied) => return Err(denied),
                        };
                        match entry.change(held, left) {
                            Ok(()) => return Ok(rules.receipt(left, now)),
                            Err(newer) => seen = newer,
                        }
                    }
                }
                Found::Claimed => core::hint::spin_loop(),
                Found::Nothing => {
                    if let Some(outcome) = self.take_anew(&address, rules, request, now, n) {
                        return outcome;
                    }
                }
            }
        }
        Err(Denied::Crowded { now, permits: n })
    }

    /// Takes from an entry that is to be claimed.
    #[cold]
    fn take_anew(
        &self,
        address: &Address,
        rules: &R,
        request: R::Request,
        now: Timestamp,
        n: u32,
    ) -> Option<Result<Receipt, Denied>> {
        let state = match rules.judge(rules.fresh(now), request) {
            Verdict::Granted(state) => state,
            Verdict::Allowed => {
                return Some(self.has_room(address, now, n).map(|()| Receipt::NONE));
            }
            Verdict::Denied(denied) => return Some(Err(denied)),
        };
        match self
            .table
            .claim(address, now, n, |_, held| self.is_free(held, now))
        {
            Ok(Some((claimed, _))) => {
                claimed.hold(state);
                Some(Ok(rules.receipt(state, now)))
            }
            Ok(None) => None,
            Err(denied) => Some(Err(denied)),
        }
    }

    /// The state of the limiter of a key, or of one that nobody has used.
    fn state(&self, address: &Address, rules: &R, now: Timestamp) -> u64 {
        match address.find(self.table.lines()) {
            Found::Held(_, held) => held.state(),
            Found::Claimed | Found::Nothing => rules.fresh(now),
        }
    }
}

impl<R: KeyedRules, M: AsRef<[Line]>, S: BuildHasher, const N: usize> QueueKeys
    for Keyed<R, M, S, N>
{
    const SHARED: bool = false;
}

impl<R: KeyedRules, M: AsRef<[Line]>, S: BuildHasher, const N: usize> Keys for Keyed<R, M, S, N> {
    #[inline]
    fn locate<K: Hash + ?Sized>(&self, limit: usize, key: &K) -> Option<Address> {
        (limit < N).then(|| self.table.address(key, limit, Self::LIMIT_BITS))
    }
}

impl<R: KeyedRules, M: AsRef<[Line]>, S: BuildHasher, const N: usize> key::sealed::Table
    for Keyed<R, M, S, N>
{
    #[inline(always)]
    fn take(&self, address: &Address, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        if let Some((entry, held)) = address.find_near(self.table.lines()) {
            let rules = self.rules_of(address.tag());
            match rules.judge(held.state(), rules.request(now, n)?) {
                Verdict::Granted(left) => {
                    if entry.change(held, left).is_ok() {
                        return Ok(rules.receipt(left, now));
                    }
                }
                Verdict::Allowed => return Ok(Receipt::NONE),
                Verdict::Denied(denied) => return Err(denied),
            }
        }
        self.take_slowly(*address, now, n)
    }

    fn peek(&self, address: &Address, now: Timestamp, n: u32) -> Result<(), Denied> {
        let rules = self.rules_of(address.tag());
        let found = address.find(self.table.lines());
        let state = if let Found::Held(_, held) = found {
            held.state()
        } else {
            rules.fresh(now)
        };
        if let Verdict::Denied(denied) = rules.judge(state, rules.request(now, n)?) {
            return Err(denied);
        }
        match found {
            Found::Nothing => self.has_room(address, now, n),
            _ => Ok(()),
        }
    }

    fn refund(&self, address: &Address, now: Timestamp, n: u32, receipt: Receipt) -> Refund {
        let rules = self.rules_of(address.tag());
        let mut restored = None;
        let refunded = self.update(address, |state| {
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
        if R::RELEASES {
            let rules = self.rules_of(address.tag());
            // Permits are out, so there is an entry, and nobody else can have it.
            let released = self.update(address, |state| {
                rules.refund(state, Timestamp::ZERO, n, &Receipt::NONE)
            });
            debug_assert!(released, "permits were released that had not been taken");
        }
    }

    fn available(&self, address: &Address, now: Timestamp) -> u64 {
        let rules = self.rules_of(address.tag());
        rules.available(self.state(address, rules, now), now)
    }

    fn idle(&self, address: &Address, now: Timestamp) -> Idle {
        let rules = self.rules_of(address.tag());
        rules.idle(self.state(address, rules, now), now)
    }

    fn retry(&self, address: &Address, denied: Denied) -> Retry {
        match denied {
            Denied::Crowded { .. } => self.table.retry(),
            Denied::Exhausted { now, .. } => {
                let rules = self.rules_of(address.tag());
                rules.retry(self.state(address, rules, now), denied)
            }
            _ => Retry::Never,
        }
    }

    fn capacity(&self, address: &Address) -> u64 {
        self.rules_of(address.tag()).capacity()
    }
}

impl<R: fmt::Debug, M, S, const N: usize> fmt::Debug for Keyed<R, M, S, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyed")
            .field("rules", &self.rules)
            .finish_non_exhaustive()
    }
}
