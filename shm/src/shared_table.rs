//! A table of limiters by key, whose lines lie in a file that processes share.
//!
//! The state of a table is its lines, and nothing else: a key's slot has its tag and its state, and
//! the hash of a key needs the seed, which is the same for all processes because the file has it.
//! The counters of a table's [statistics](portcullis_core::KeyedStatistics) are the process's own.
//!
//! A process that is killed while it claims a slot leaves the slot claimed.
//! [`recover`](SharedTable::recover) vacates it.

use core::fmt::{self, Debug};
use core::hash::Hash;
use std::sync::{Mutex, PoisonError};

use portcullis_core::{
    Clock, Clocked, ClockedKey, IntoRules, Keyed, KeyedRules, Line, MonotonicClock, MovableRules,
    PendingClaim, Seed, Timestamp,
};

use crate::error::OpenError;
use crate::header::Kind;
use crate::mapping::MappedLines;
use crate::shared_file::{Contents, SharedFile};
use crate::shared_limiter::Shareable;
use crate::shared_limiter::sealed::Described;

/// How long a slot must have been idle before another key may have it. Processes are stopped for
/// longer than threads are paused.
const STALENESS: core::time::Duration = core::time::Duration::from_secs(10);

/// The most claims that a process watches at once. More are pending only in a damaged file.
const MOST_PENDING: usize = 4096;

impl SharedFile {
    /// Opens the table in the file, or creates the file with an empty table: `keys` keys can be in
    /// use at once, each with the settings of `limiter`.
    ///
    /// Of new keys, at most 1 in 1,000,000 finds no slot while `keys` keys or fewer have one: see
    /// [`Line::for_keys`]. A key keeps its slot until its limiter has been idle for 10 s.
    ///
    /// # Errors
    ///
    /// [`OpenError::OtherSettings`] if the file has other settings, also of another kind or for
    /// another number of keys. [`OpenError::Settings`] if the settings do not fit the 43 bits that
    /// a slot has for a state. [`OpenError::TooLarge`] above 60 million keys. See [`OpenError`] for
    /// the others.
    ///
    /// # Cost
    ///
    /// The file takes 34 bytes per key, and 8 KiB more. The process that creates it writes them
    /// all, so that no memory is missing later.
    ///
    /// ```
    /// use portcullis_core::{Rate, TokenBucket};
    /// use portcullis_shm::SharedFile;
    ///
    /// let file = SharedFile::named("doc-table")?;
    /// // In each process: 10 permits per second for each user, at most 2 at once.
    /// let users = file.table(TokenBucket::new(Rate::per_second(10), 2), 100_000)?;
    /// assert!(users.key("alice").try_acquire(2).is_ok());
    /// assert!(users.key("alice").try_acquire(1).is_err());
    /// assert!(users.key("bob").try_acquire(1).is_ok());
    /// # drop(users);
    /// # file.remove()?;
    /// # Ok::<(), portcullis_shm::OpenError>(())
    /// ```
    pub fn table<L, R>(&self, limiter: L, keys: usize) -> Result<SharedTable<R>, OpenError>
    where
        L: Shareable + IntoRules<Rules = R>,
        R: MovableRules + Debug,
    {
        let settings = format!("table for {keys} keys: {}", Described::described(&limiter));
        let rules = IntoRules::into_rules(limiter)?;
        let lines = Line::count_for_keys(keys);
        let contents = Contents {
            kind: Kind::Table,
            identity: format!("{settings} {lines} lines {rules:?}"),
            settings,
            first: Vec::new(),
            bytes: (lines as u64).saturating_mul(size_of::<Line>() as u64),
        };
        let (mapping, header) = self.open(&contents)?;
        let seed = Seed::new();
        // It is new, so nothing has set it.
        let _set = seed.set(header.seed);
        let table = Keyed::new(rules, MappedLines::new(mapping, lines), seed);
        Ok(SharedTable {
            table: Clocked::new(table.with_staleness(STALENESS), MonotonicClock::new()),
            pending: Mutex::new(Vec::new()),
        })
    }
}

/// A table of limiters by key in a file: one table for all processes that open it.
///
/// Created by [`SharedFile::table`].
///
/// **Bound.** Each key is granted no more than its limit allows, by all processes together.
///
/// **A process that dies** changes nothing, with one exception: if it is killed within the few
/// instructions of a key's first grant, the slot remains claimed, and the key is denied with
/// [`Denied::Crowded`](portcullis_core::Denied::Crowded). [`recover`](Self::recover) ends that.
///
/// **A hostile process** that writes the file may change the state of any key. It cannot read the
/// keys, only parts of their hashes.
///
/// **A file that is truncated** while it is used: the table is lost for this process. It denies all
/// requests with `Denied::Crowded` from then on: see [`is_lost`](Self::is_lost). Requests that were
/// under way in this process at that moment may have been granted as by an empty table.
///
/// **Cost.** That of a [`Keyed`] table with a [`Seed`], and a reading of the clock.
pub struct SharedTable<R: KeyedRules> {
    table: Clocked<SharedKeyed<R>, MonotonicClock>,
    /// Claims that this process has seen, and when first.
    pending: Mutex<Vec<(PendingClaim, Timestamp)>>,
}

/// The table in a [`SharedTable`].
pub type SharedKeyed<R> = Keyed<R, MappedLines, Seed>;

impl<R: KeyedRules> SharedTable<R> {
    /// Returns the limiter of `key`, which reads the clock. The key takes no slot before its first
    /// grant.
    ///
    /// Processes agree on a key if they pass values with the same `Hash`: the same type, and the
    /// same version of its implementation. Text and bytes do.
    ///
    /// # Cost
    ///
    /// One hash.
    ///
    /// ```
    /// # use portcullis_core::{Rate, TokenBucket};
    /// # use portcullis_shm::{OpenError, SharedFile};
    /// # let file = SharedFile::named("doc-key")?;
    /// let users = file.table(TokenBucket::new(Rate::per_second(10), 2), 1_000)?;
    /// assert!(users.key("alice").try_acquire(2).is_ok());
    /// # drop(users);
    /// # file.remove()?;
    /// # Ok::<(), OpenError>(())
    /// ```
    #[inline]
    pub fn key<K: Hash + ?Sized>(&self, key: &K) -> ClockedKey<&SharedKeyed<R>, &MonotonicClock> {
        self.table.key(key)
    }

    /// Returns the table without the clock, for callers that pass the time. It must be from a
    /// [`MonotonicClock`] or a [`CoarseClock`](portcullis_core::CoarseClock), in all processes.
    ///
    /// ```
    /// # use portcullis_core::{Clock, MonotonicClock, Rate, TokenBucket};
    /// # use portcullis_shm::{OpenError, SharedFile};
    /// # let file = SharedFile::named("doc-keyed")?;
    /// let users = file.table(TokenBucket::new(Rate::per_second(10), 2), 1_000)?;
    /// let now = MonotonicClock::new().now();
    /// assert!(users.keyed().key("alice").try_acquire_at(now, 2).is_ok());
    /// assert_eq!(users.keyed().statistics_at(now).live, 1);
    /// # drop(users);
    /// # file.remove()?;
    /// # Ok::<(), OpenError>(())
    /// ```
    #[inline]
    pub fn keyed(&self) -> &SharedKeyed<R> {
        self.table.limiter()
    }

    /// Vacates the slots that processes had claimed when they were killed, and returns their
    /// number. Call it every few seconds, in one process or in several.
    ///
    /// A claim takes less than a microsecond. If a claim is pending at each call for 10 s, its
    /// process is taken for dead. If it was only stopped, in the middle of that microsecond, and
    /// goes on, a key may be granted more than its limit once.
    ///
    /// # Cost
    ///
    /// Reads the whole table: a few milliseconds for a million keys.
    ///
    /// ```
    /// # use portcullis_core::{Rate, TokenBucket};
    /// # use portcullis_shm::{OpenError, SharedFile};
    /// # let file = SharedFile::named("doc-recover")?;
    /// let users = file.table(TokenBucket::new(Rate::per_second(10), 2), 1_000)?;
    /// assert_eq!(users.recover(), 0);
    /// # drop(users);
    /// # file.remove()?;
    /// # Ok::<(), OpenError>(())
    /// ```
    pub fn recover(&self) -> usize {
        self.recover_at(self.table.clock().now())
    }

    /// As [`recover`](Self::recover), at `now`.
    ///
    /// ```
    /// # use portcullis_core::{Clock, MonotonicClock, Rate, TokenBucket};
    /// # use portcullis_shm::{OpenError, SharedFile};
    /// # let file = SharedFile::named("doc-recover-at")?;
    /// let users = file.table(TokenBucket::new(Rate::per_second(10), 2), 1_000)?;
    /// assert_eq!(users.recover_at(MonotonicClock::new().now()), 0);
    /// # drop(users);
    /// # file.remove()?;
    /// # Ok::<(), OpenError>(())
    /// ```
    pub fn recover_at(&self, now: Timestamp) -> usize {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_lost() {
            return 0;
        }
        let lines: &[Line] = self.keyed().lines().as_ref();
        let before = core::mem::take(&mut *pending);
        let mut recovered = 0;
        for claim in PendingClaim::all(lines).take(MOST_PENDING) {
            // Claims come in the order of their slots, so `before` is sorted.
            let seen = before.binary_search_by_key(&claim, |&(earlier, _)| earlier);
            let since = seen.map_or(now, |at| before[at].1);
            let is_over =
                now.as_nanos().saturating_sub(since.as_nanos()) >= STALENESS.as_nanos() as u64;
            if is_over && claim.abandon(lines) {
                recovered += 1;
            } else {
                pending.push((claim, since));
            }
        }
        recovered
    }

    /// Returns whether this process has found the file truncated. The table denies all requests
    /// then.
    ///
    /// ```
    /// # use portcullis_core::{Rate, TokenBucket};
    /// # use portcullis_shm::{OpenError, SharedFile};
    /// # let file = SharedFile::named("doc-table-is-lost")?;
    /// let users = file.table(TokenBucket::new(Rate::per_second(10), 2), 1_000)?;
    /// assert!(!users.is_lost());
    /// # drop(users);
    /// # file.remove()?;
    /// # Ok::<(), OpenError>(())
    /// ```
    pub fn is_lost(&self) -> bool {
        self.keyed().lines().is_lost()
    }
}

impl<R: KeyedRules + Debug> Debug for SharedTable<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedTable")
            .field("rules", &self.keyed().rules()[0])
            .finish_non_exhaustive()
    }
}
