//! A table of limiters by key; see [`line`](crate::line) for the state, the transitions and the invariant.

use core::fmt;
use core::hash::{BuildHasher, Hash, Hasher};
use core::ops::{Bound, Deref, RangeBounds};
use core::time::Duration;

use crate::judge::Judge;
use crate::line::{Address, Claim, Entry, Found, Held, Line, PLACES};
use crate::settings;
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::const_unless_loom;
use crate::word::{AtomicWord, NativeWord};
use crate::{
    Concurrency, Denied, FixedWindow, Idle, KeyedWord, Limiter, LimiterId, Plan, Receipt, Retry, Seed,
    Timestamp, TokenBucket, Word,
};

/// A limiter that a [`Keyed`] table can hold in one word for each key. Sealed.
///
/// A token bucket or a fixed window on a [`KeyedWord`], or a concurrency limit.
///
/// ```
/// use portcullis_core::{KeyedLimit, KeyedWord, Rate, TokenBucket};
/// fn is_one(_: impl KeyedLimit) {}
/// is_one(TokenBucket::builder(Rate::per_second(5), 10).build_on::<KeyedWord>()?);
/// # Ok::<(), portcullis_core::SettingsError>(())
/// ```
pub trait KeyedLimit: Judge {}

impl KeyedLimit for TokenBucket<KeyedWord> {}
impl KeyedLimit for FixedWindow<KeyedWord> {}
impl<W: Word> KeyedLimit for Concurrency<W> {}

/// A limiter for each key, of any number of keys, in a table of fixed size: without a lock, without allocation, 8 bytes an entry.
///
/// `L` is the limit that each key has, or one of `N` limits, chosen with each key (say, reads and writes of one user, or plans that
/// differ). `M` is the storage, given by you: `[Line; 1024]` in a static, `Box<[Line]>` or `Vec<Line>` (see [`Line::for_keys`]), `&'static [Line]`. `S`
/// hashes the keys: a [`Seed`], or any `BuildHasher`. [`key`](Self::key) gives a limiter like any other: it can be one of
/// [`AllOf`](crate::AllOf), wrapped, and asked for its retry time.
///
/// **Bound.** Each key is granted no more than its limit promises, however many keys come, and whoever chooses them.
///
/// **Self-cleaning.** A key has an entry from its first grant on. An entry is given to another key only when its limiter has been as good
/// as new for the [staleness](Self::staleness): nobody can tell then. If all that a key could use (16 entries, in two lines) are in use, it
/// is denied, [`Denied::Crowded`], and counted; it is never given a fresh one at another's cost. Reading and probing create
/// nothing.
///
/// **Keys.** An entry knows its key by its line and by 20 bits of its hash (less those that tell `N` limits apart). A key finds
/// a stranger in its own entry with a chance of about 1 in 130,000 in a half full table and 1 in 65,000 in a full one; both then
/// share one limit: fewer permits for each, never more.
///
/// **Cost.** A hash, and for nearly all keys one cache line; then what the limiter costs, with one compare-exchange. The first
/// grant of a key, and each that comes after its entry was forgotten, reads the second line as well, and writes twice. A denial writes nothing, but a
/// counter if the table is full. Lock-free, except that a key is denied while another thread is just claiming an entry for it, and has been stopped in it.
///
/// **Memory.** 8 bytes an entry; for half full, 16 bytes a key.
///
/// Source: the partitioned limiter of the .NET rate limiting proposal; tables of buckets with a few places for a key, as in
/// cuckoo hashing (Pagh and Rodler, 2001) without moving.
///
/// ```
/// use portcullis_core::{Keyed, KeyedWord, Line, LimiterExt, Rate, Seed, SettingsError, Timestamp, TokenBucket};
///
/// static USERS: Keyed<TokenBucket<KeyedWord>, [Line; 1024]> = Keyed::new(
///     match TokenBucket::builder(Rate::per_second(10), 2).build_on() {
///         Ok(limit) => limit,
///         Err(_) => panic!("does not fit"),
///     },
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
pub struct Keyed<L, M, S = Seed, const N: usize = 1> {
    limits: [L; N],
    lines: M,
    hasher: S,
    /// Nanoseconds that an entry has been as good as new before it is forgotten.
    staleness: u64,
    replaced: AtomicWord<NativeWord>,
    crowded: AtomicWord<NativeWord>,
}

/// How often a key is looked for when others keep claiming an entry for it.
const ATTEMPTS: usize = if cfg!(loom) { 2 } else { 16 };

impl<L, M, S> Keyed<L, M, S> {
    const_unless_loom! {
        /// A table in which each key has the limit `limit`.
        ///
        /// ```
        /// # use portcullis_core::{Concurrency, Keyed, Line, LimiterExt, Timestamp};
        /// let downloads = Keyed::new(Concurrency::new(1), Line::for_keys(1_000), std::hash::RandomState::new());
        /// let alice = downloads.key("alice");
        /// let first = alice.try_acquire_at(Timestamp::ZERO, 1);
        /// assert!(first.is_ok() && alice.try_acquire_at(Timestamp::ZERO, 1).is_err());
        /// ```
        pub const fn new(limit: L, lines: M, hasher: S) -> Self {
            Self::with_limits([limit], lines, hasher)
        }
    }
}

impl<L, M, S, const N: usize> Keyed<L, M, S, N> {
    /// Bits of a tag that tell the limits apart.
    const LIMIT_BITS: u32 = usize::BITS - (N - 1).leading_zeros();

    const_unless_loom! {
        /// A table with several limits, 1 to 256: which one applies is chosen with each [key](Self::key_of).
        ///
        /// ```
        /// # use core::time::Duration;
        /// # use portcullis_core::{FixedWindow, Keyed, Line, LimiterExt, Seed, Timestamp};
        /// const READ: usize = 0;
        /// const WRITE: usize = 1;
        /// let window = |limit| FixedWindow::builder(limit, Duration::from_secs(60)).build_on();
        /// let users = Keyed::with_limits([window(100)?, window(5)?], Line::for_keys(1_000), Seed::new());
        ///
        /// let now = Timestamp::from_secs(9);
        /// let alice = |limit| users.key_of(limit, "alice").expect("is a limit of the table");
        /// assert!(alice(WRITE).try_acquire_at(now, 5).is_ok());
        /// assert!(alice(WRITE).try_acquire_at(now, 1).is_err());
        /// assert!(alice(READ).try_acquire_at(now, 100).is_ok(), "reads are counted by themselves");
        /// # Ok::<(), portcullis_core::SettingsError>(())
        /// ```
        pub const fn with_limits(limits: [L; N], lines: M, hasher: S) -> Self {
            const { assert!(N >= 1 && N <= 256, "a table has 1 to 256 limits") };
            Self {
                limits,
                lines,
                hasher,
                staleness: 1_000_000_000,
                replaced: AtomicWord::new(0),
                crowded: AtomicWord::new(0),
            }
        }
    }

    /// How long an entry has to have been as good as new before another key may have it: 1 s to 292 years, default 1 s. The bound holds for every `now` up to
    /// so much older than the newest one that the table was told, if the limiter's own staleness is not shorter.
    ///
    /// # Panics
    ///
    /// Outside of that range; in a constant or a static, that is a compile error.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Concurrency, Keyed, Line, Seed};
    /// let table = Keyed::new(Concurrency::new(1), Line::for_keys(1), Seed::new());
    /// assert_eq!(table.with_staleness(Duration::from_secs(5)).staleness(), Duration::from_secs(5));
    /// ```
    #[must_use]
    pub const fn with_staleness(mut self, staleness: Duration) -> Self {
        self.staleness = match settings::staleness_nanos(Some(staleness)) {
            Ok(Some(nanos)) => nanos,
            Ok(None) => self.staleness,
            Err(error) => error.refuse(),
        };
        self
    }

    /// See [`with_staleness`](Self::with_staleness).
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Concurrency, Keyed, Line, Seed};
    /// let table = Keyed::new(Concurrency::new(1), Line::for_keys(1), Seed::new());
    /// assert_eq!(table.staleness(), Duration::from_secs(1));
    /// ```
    pub const fn staleness(&self) -> Duration {
        Duration::from_nanos(self.staleness)
    }

    /// What hashes the keys.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, Keyed, Line, Seed};
    /// let table = Keyed::new(Concurrency::new(1), Line::for_keys(1), Seed::new());
    /// assert!(table.seed().set([1, 2]).is_ok());
    /// ```
    pub const fn seed(&self) -> &S {
        &self.hasher
    }
}

impl<L: KeyedLimit, M: AsRef<[Line]>, S: BuildHasher, const N: usize> Keyed<L, M, S, N> {
    /// The limiter of `key`, under the first limit. Nothing is created before its first grant.
    ///
    /// # Cost
    ///
    /// One hash.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, Keyed, Limiter, Line, Seed, Timestamp};
    /// let table = Keyed::new(Concurrency::new(3), Line::for_keys(100), Seed::new());
    /// assert_eq!(table.key(&("alice", 7)).available_at(Timestamp::ZERO), 3);
    /// assert_eq!(table.statistics_at(Timestamp::ZERO).live, 0, "reading creates nothing");
    /// ```
    #[inline]
    pub fn key<K: Hash + ?Sized>(&self, key: &K) -> Key<'_, Self> {
        self.address(0, key)
    }

    /// The limiter of `key` under the limit number `limit`, from 0; `None` if there is no such limit. The limiters of one key under two limits are two.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, Keyed, Line, Seed};
    /// let table = Keyed::with_limits([Concurrency::new(3), Concurrency::new(1)], Line::for_keys(100), Seed::new());
    /// assert!(table.key_of(1, "alice").is_some() && table.key_of(2, "alice").is_none());
    /// ```
    #[inline]
    pub fn key_of<K: Hash + ?Sized>(&self, limit: usize, key: &K) -> Option<Key<'_, Self>> {
        (limit < N).then(|| self.address(limit, key))
    }

    /// The limits, in their order.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, Keyed, Line, Seed};
    /// let table = Keyed::new(Concurrency::new(3), Line::for_keys(1), Seed::new());
    /// table.limits()[0].set_limit(5).unwrap();
    /// assert_eq!(table.limits()[0].limit(), 5, "of every key, from now on");
    /// ```
    pub const fn limits(&self) -> &[L; N] {
        &self.limits
    }

    /// Counts the entries. Reads them all, one after the other: exact if nobody changes them meanwhile.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, Keyed, LimiterExt, Line, Seed, Timestamp};
    /// let table = Keyed::new(Concurrency::new(3), Line::for_keys(8), Seed::new());
    /// let alice = table.key("alice");
    /// let _lease = alice.try_acquire_at(Timestamp::ZERO, 1).unwrap();
    /// let statistics = table.statistics_at(Timestamp::ZERO);
    /// assert_eq!((statistics.entries, statistics.held, statistics.live), (16, 1, 1));
    /// ```
    pub fn statistics_at(&self, now: Timestamp) -> KeyedStatistics {
        let lines = self.lines.as_ref();
        let mut statistics = KeyedStatistics {
            entries: lines.len() * PLACES,
            held: 0,
            live: 0,
            replaced: self.replaced.load(Relaxed),
            crowded: self.crowded.load(Relaxed),
        };
        for held in lines.iter().flat_map(Line::entries).filter_map(Entry::held) {
            statistics.held += 1;
            statistics.live += usize::from(!self.limit(held.tag()).idle(held.state(), now).is_idle());
        }
        statistics
    }

    /// Makes the entries of `lines` vacant that have been as good as new for the [staleness](Self::staleness) at `now`, and returns how many. Never needed for
    /// the bound or for room; it keeps a limiter whose word has a near horizon from being told less than full when its key comes back after about one.
    ///
    /// # Cost
    ///
    /// Reads all these lines: a few at a time do as well.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, Keyed, LimiterExt, Line, Seed, Timestamp};
    /// let table = Keyed::new(Concurrency::new(3), Line::for_keys(8), Seed::new());
    /// drop(table.key("alice").try_acquire_at(Timestamp::ZERO, 1).unwrap());
    /// assert_eq!(table.sweep_at(Timestamp::from_secs(1), ..), 1);
    /// ```
    pub fn sweep_at(&self, now: Timestamp, lines: impl RangeBounds<usize>) -> usize {
        let from = match lines.start_bound() {
            Bound::Included(&from) => from,
            Bound::Excluded(&before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let since = self.since(now);
        let swept =
            self.lines.as_ref().iter().enumerate().skip(from).take_while(|(at, _)| lines.contains(at));
        let entries = swept.flat_map(|(_, line)| line.entries());
        entries
            .filter(|entry| {
                entry.held().is_some_and(|held| self.is_forgettable(held, since) && entry.vacate(held))
            })
            .count()
    }

    #[inline]
    fn address<K: Hash + ?Sized>(&self, limit: usize, key: &K) -> Key<'_, Self> {
        let hash = if N == 1 {
            self.hasher.hash_one(key)
        } else {
            let mut hasher = self.hasher.build_hasher();
            hasher.write_usize(limit);
            key.hash(&mut hasher);
            hasher.finish()
        };
        let address = Address::new(hash, self.lines.as_ref().len(), limit, Self::LIMIT_BITS);
        Key(KeyLimiter { table: self, address })
    }

    /// Who comes no later than this may have used what was forgotten.
    fn since(&self, now: Timestamp) -> Timestamp {
        Timestamp::from_nanos(now.as_nanos().saturating_sub(self.staleness))
    }

    /// The limit that a tag is for: every tag was made for one.
    fn limit(&self, tag: u64) -> &L {
        self.limits.get(Address::limit(tag, Self::LIMIT_BITS)).unwrap_or(&self.limits[0])
    }

    fn is_forgettable(&self, held: Held, since: Timestamp) -> bool {
        self.limit(held.tag()).is_forgettable(held.state(), since)
    }

    /// Takes from an entry that is to be claimed.
    #[cold]
    fn take_anew(
        &self,
        address: &Address,
        limit: &L,
        now: Timestamp,
        n: u32,
    ) -> Option<Result<Receipt, Denied>> {
        let (state, receipt) = match limit.grant(limit.fresh(now), now, n) {
            Ok((_, receipt)) if n == 0 => return Some(Ok(receipt)),
            Ok(taken) => taken,
            Err(denied) => return Some(Err(denied)),
        };
        let since = self.since(now);
        match address.claim(self.lines.as_ref(), |held| self.is_forgettable(held, since)) {
            Claim::Made(claimed, replaced) => {
                claimed.hold(state);
                if replaced {
                    self.replaced.fetch_add(1, Relaxed);
                }
                Some(Ok(receipt))
            }
            Claim::Raced => None,
            Claim::Full => {
                self.crowded.fetch_add(1, Relaxed);
                Some(Err(Denied::Crowded { now, permits: n }))
            }
        }
    }
}

impl<L: KeyedLimit, M: AsRef<[Line]>, S: BuildHasher, const N: usize> Keyed<L, M, S, N> {
    /// The state of the limiter of a key, or of one that nobody has used.
    fn state(&self, address: &Address, limit: &L, now: Timestamp) -> u64 {
        match address.find(self.lines.as_ref()) {
            Found::Held(_, held) => held.state(),
            Found::Claimed | Found::Nothing => limit.fresh(now),
        }
    }
}

impl<L: KeyedLimit, M: AsRef<[Line]>, S: BuildHasher, const N: usize> sealed::Table for Keyed<L, M, S, N> {
    #[inline]
    fn take(&self, address: &Address, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        let limit = self.limit(address.tag());
        for _ in 0..ATTEMPTS {
            match address.find(self.lines.as_ref()) {
                Found::Held(entry, held) => {
                    let mut seen = Some(held);
                    while let Some(held) = seen {
                        let (state, receipt) = limit.grant(held.state(), now, n)?;
                        if n == 0 {
                            return Ok(receipt);
                        }
                        match entry.change(held, state) {
                            Ok(()) => return Ok(receipt),
                            Err(newer) => seen = newer,
                        }
                    }
                }
                Found::Claimed => core::hint::spin_loop(),
                Found::Nothing => {
                    if let Some(outcome) = self.take_anew(address, limit, now, n) {
                        return outcome;
                    }
                }
            }
        }
        Err(Denied::Crowded { now, permits: n })
    }

    fn peek(&self, address: &Address, now: Timestamp, n: u32) -> Result<(), Denied> {
        let limit = self.limit(address.tag());
        let lines = self.lines.as_ref();
        let found = address.find(lines);
        let state = if let Found::Held(_, held) = found { held.state() } else { limit.fresh(now) };
        limit.grant(state, now, n)?;
        let since = self.since(now);
        match found {
            Found::Nothing if n > 0 && !address.has_room(lines, |held| self.is_forgettable(held, since)) => {
                Err(Denied::Crowded { now, permits: n })
            }
            _ => Ok(()),
        }
    }

    fn refund(&self, address: &Address, now: Timestamp, n: u32, receipt: &mut Receipt) -> u32 {
        let limit = self.limit(address.tag());
        let Found::Held(entry, held) = address.find(self.lines.as_ref()) else { return 0 };
        let mut seen = Some(held);
        while let Some(held) = seen {
            let mut refunded = *receipt;
            let Some(state) = limit.refund(held.state(), now, n, &mut refunded) else { return 0 };
            match entry.change(held, state) {
                Ok(()) => {
                    *receipt = refunded;
                    return n;
                }
                Err(newer) => seen = newer,
            }
        }
        0
    }

    #[inline]
    fn release(&self, address: &Address, n: u32) {
        let released = self.limit(address.tag()).released(n);
        // Permits are out, so there is an entry, and nobody else can have it.
        if released != 0
            && let Found::Held(entry, _) = address.find(self.lines.as_ref())
        {
            entry.release(released);
        }
    }

    fn available(&self, address: &Address, now: Timestamp) -> u64 {
        let limit = self.limit(address.tag());
        limit.available(self.state(address, limit, now), now)
    }

    fn idle(&self, address: &Address, now: Timestamp) -> Idle {
        let limit = self.limit(address.tag());
        limit.idle(self.state(address, limit, now), now)
    }

    fn retry(&self, address: &Address, denied: Denied) -> Retry {
        match denied {
            Denied::Crowded { .. } => Retry::After(self.staleness()),
            Denied::Exhausted { now, .. } => {
                let limit = self.limit(address.tag());
                limit.retry(self.state(address, limit, now), denied)
            }
            _ => Retry::Never,
        }
    }

    fn capacity(&self, address: &Address) -> u64 {
        self.limit(address.tag()).capacity()
    }
}

mod sealed {
    use super::{Address, Denied, Idle, Receipt, Retry, Timestamp};

    /// A table that has a limiter for each address.
    pub trait Table {
        fn take(&self, address: &Address, now: Timestamp, n: u32) -> Result<Receipt, Denied>;
        fn peek(&self, address: &Address, now: Timestamp, n: u32) -> Result<(), Denied>;
        fn refund(&self, address: &Address, now: Timestamp, n: u32, receipt: &mut Receipt) -> u32;
        fn release(&self, address: &Address, n: u32);
        fn available(&self, address: &Address, now: Timestamp) -> u64;
        fn idle(&self, address: &Address, now: Timestamp) -> Idle;
        fn retry(&self, address: &Address, denied: Denied) -> Retry;
        fn capacity(&self, address: &Address) -> u64;
    }
}

impl<L: fmt::Debug, M, S, const N: usize> fmt::Debug for Keyed<L, M, S, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyed").field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// The limiter of one key of a table: from [`Keyed::key`]. It borrows the table, and finds the key's entry anew at each call.
///
/// Points to itself, so that a [`Lease`] can hold it.
///
/// ```
/// use portcullis_core::{Concurrency, Keyed, Lease, Line, Seed, Timestamp};
///
/// static DOWNLOADS: Keyed<Concurrency, [Line; 64]> =
///     Keyed::new(Concurrency::new(1), [const { Line::new() }; 64], Seed::new());
///
/// let lease = Lease::try_acquire_at(DOWNLOADS.key("alice"), Timestamp::ZERO, 1)?;
/// assert!(Lease::try_acquire_at(DOWNLOADS.key("alice"), Timestamp::ZERO, 1).is_err());
/// drop(lease);
/// assert!(Lease::try_acquire_at(DOWNLOADS.key("alice"), Timestamp::ZERO, 1).is_ok());
/// # Ok::<(), portcullis_core::Denied>(())
/// ```
#[derive(Debug)]
pub struct Key<'t, T>(KeyLimiter<'t, T>);

impl<T> Clone for Key<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Key<'_, T> {}

impl<'t, T> Deref for Key<'t, T> {
    type Target = KeyLimiter<'t, T>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// What a [`Key`] points to: the limiter itself.
///
/// ```
/// use portcullis_core::{Concurrency, Keyed, Limiter, Line, Seed, Timestamp};
/// let table = Keyed::new(Concurrency::new(3), Line::for_keys(100), Seed::new());
/// let alice = *table.key("alice");
/// assert_eq!(alice.available_at(Timestamp::ZERO), 3);
/// ```
pub struct KeyLimiter<'t, T> {
    table: &'t T,
    address: Address,
}

impl<T> Clone for KeyLimiter<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for KeyLimiter<'_, T> {}

impl<T> fmt::Debug for KeyLimiter<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KeyLimiter").field(&self.address).finish()
    }
}

impl<T: sealed::Table> Limiter for KeyLimiter<'_, T> {
    /// That of the key's entry.
    fn id(&self) -> Option<LimiterId> {
        Some(LimiterId::within(self.table, self.address.identity()))
    }

    #[inline]
    fn take_at(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        self.table.take(&self.address, now, n)
    }

    fn peek_at(&self, now: Timestamp, n: u32) -> Result<Plan, Denied> {
        self.table.peek(&self.address, now, n).map(|()| Plan::NONE)
    }

    /// As the limit's own type does.
    fn refund_at(&self, now: Timestamp, n: u32, receipt: &mut Receipt) -> u32 {
        self.table.refund(&self.address, now, n, receipt)
    }

    #[inline]
    fn release(&self, n: u32) {
        self.table.release(&self.address, n);
    }

    fn available_at(&self, now: Timestamp) -> u64 {
        self.table.available(&self.address, now)
    }

    fn capacity(&self) -> u64 {
        self.table.capacity(&self.address)
    }

    fn idle_at(&self, now: Timestamp) -> Idle {
        self.table.idle(&self.address, now)
    }

    fn retry(&self, denied: Denied) -> Retry {
        self.table.retry(&self.address, denied)
    }
}

/// Counts of a table: from [`Keyed::statistics_at`].
///
/// ```
/// # use portcullis_core::{Concurrency, Keyed, Line, Seed, Timestamp};
/// let table = Keyed::new(Concurrency::new(3), Line::for_keys(1_000), Seed::new());
/// assert_eq!(table.statistics_at(Timestamp::ZERO).entries, 2_000);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyedStatistics {
    /// The entries that there are.
    pub entries: usize,
    /// The entries that a key has, be its limiter as good as new.
    pub held: usize,
    /// The entries whose limiter is in use.
    pub live: usize,
    /// How often an entry went from one key to another, wrapping.
    pub replaced: u64,
    /// How often a key was denied because all that it could use were in use, wrapping.
    pub crowded: u64,
}
