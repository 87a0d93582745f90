//! The common parts of all tables of limiters by key: the lines, the hasher, the staleness of
//! slots, and counters.

use core::hash::{BuildHasher, Hash};
use core::ops::{Bound, RangeBounds};
use core::time::Duration;

use crate::keyed::key_hash::KeyHash;
use crate::keyed::line::{self, Address, Claim, Claimed, Claims, Entry, Held, Line, Width};
use crate::keyed::line_clock::{self, Span};
use crate::limiter::denied::{Denied, Retry};
use crate::newer::cold_path;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use crate::sync::const_unless_loom;
use crate::time::grid;
use crate::time::timestamp::Timestamp;
use crate::word::{AtomicWord, NativeWord, settings};

/// How many times a call looks for a key's slot while other calls claim one for the same key.
pub(crate) const ATTEMPTS: usize = if cfg!(portcullis_loom) { 2 } else { 16 };

/// The lines, and the hasher that maps keys to them.
#[derive(Debug)]
pub(crate) struct Table<M, S> {
    pub(crate) lines: M,
    pub(crate) hasher: S,
    /// How long a slot must have been idle before it may be forgotten, in nanoseconds, and the
    /// reciprocal of that.
    staleness: u64,
    reciprocal: u64,
    pub(crate) claims: Claims,
    /// The [span](Self::span), once it is known. Before that 0.
    span: AtomicWord<NativeWord>,
    replaced: AtomicWord<NativeWord>,
    overflowed: AtomicWord<NativeWord>,
}

impl<M, S> Table<M, S> {
    const_unless_loom! {
        pub(crate) const fn new(lines: M, hasher: S) -> Self {
            let staleness = settings::MIN_STALENESS;
            let reciprocal = grid::reciprocal(staleness);
            let (replaced, overflowed) = (AtomicWord::new(0), AtomicWord::new(0));
            let (claims, span) = (Claims::Own, AtomicWord::new(0));
            Self { lines, hasher, staleness, reciprocal, claims, span, replaced, overflowed }
        }
    }

    pub(crate) const fn set_staleness(&mut self, staleness: Duration) {
        match settings::staleness_nanos(Some(staleness)) {
            Ok(Some(nanos)) => {
                self.staleness = nanos;
                self.reciprocal = grid::reciprocal(nanos);
            }
            Ok(None) => {}
            Err(error) => error.refuse(),
        }
    }

    pub(crate) const fn staleness(&self) -> Duration {
        Duration::from_nanos(self.staleness)
    }

    /// The oldest timestamp that a call may still pass at `now`. A slot may be forgotten at `now`
    /// only if it was idle at this time.
    pub(crate) fn since(&self, now: Timestamp) -> Timestamp {
        Timestamp::from_nanos(now.as_nanos().saturating_sub(self.staleness))
    }

    /// The number of the staleness that contains `now`.
    #[inline(always)]
    pub(crate) const fn stalenesses(&self, now: Timestamp) -> u64 {
        grid::divide(now.as_nanos(), self.staleness, self.reciprocal).0
    }

    /// For how long words can be read after they were settled. `find` asks all limits: once.
    #[inline]
    pub(crate) fn span(&self, find: impl FnOnce() -> Span) -> Span {
        // Relaxed: every call finds the same.
        Span::from_word(self.span.load(Relaxed)).unwrap_or_else(|| {
            cold_path();
            let span = find();
            self.span.store(span.word(), Relaxed);
            span
        })
    }

    /// When to retry after [`Denied::Crowded`].
    pub(crate) fn retry(&self) -> Retry {
        Retry::After(self.staleness())
    }
}

/// Whether the words with this clock can be read at `now` as they are.
///
/// Acquire: pairs with the exchange in `Table::settle`. Words that another call has settled are
/// read as it left them.
#[inline(always)]
pub(crate) fn is_settled(clock: &AtomicWord<NativeWord>, now: Timestamp) -> bool {
    line_clock::is_settled(clock.load(Acquire), now)
}

impl<M: AsRef<[Line]>, S: BuildHasher> Table<M, S> {
    #[inline]
    pub(crate) fn lines(&self) -> &[Line] {
        self.lines.as_ref()
    }

    #[inline]
    pub(crate) fn hash<K: Hash + ?Sized>(&self, key: &K) -> KeyHash {
        KeyHash::new(&self.hasher, key)
    }

    /// The address of the key with this hash.
    #[inline]
    pub(crate) fn address(&self, hash: KeyHash) -> Address {
        Address::new(hash.get(), self.lines().len())
    }

    /// Whether the words with the clock of the entry with index `at` can be read at `now`.
    #[inline(always)]
    pub(crate) fn is_settled(&self, width: Width, at: usize, now: Timestamp) -> bool {
        let clock = line::clock(self.lines(), at, width);
        clock.is_none_or(|clock| is_settled(clock, now))
    }

    /// When the words with the clock of the entry with index `at` were settled, if they cannot be
    /// read at `now`. Read the word first that is judged by it.
    pub(crate) fn settled_at(
        &self,
        width: Width,
        at: usize,
        now: Timestamp,
        span: impl Fn() -> Span,
    ) -> Option<Timestamp> {
        let clock = line::clock(self.lines(), at, width)?;
        if is_settled(clock, now) {
            return None;
        }
        line_clock::settled_at(clock.load(Acquire), span(), now)
    }

    /// Starts the clock of the entry with index `at`, if it stands: no word was written yet without
    /// it.
    #[inline(always)]
    pub(crate) fn start(
        &self,
        width: Width,
        at: usize,
        now: Timestamp,
        span: impl FnOnce() -> Span,
    ) -> bool {
        // Relaxed: there is no word to publish.
        line::clock(self.lines(), at, width).is_some_and(|clock| {
            clock.load(Relaxed) == 0 && clock.replace(0, line_clock::at(now, span()), Relaxed)
        })
    }

    /// Settles the words with the clock of the entry with index `at`, if they cannot be read at
    /// `now`, for `span`: see [`line`](mod@line). `rested` is as for [`Entry::settle`], also given
    /// the index of the word in its entry, of `words` words.
    pub(crate) fn settle(
        &self,
        (width, words): (Width, usize),
        at: usize,
        (now, span): (Timestamp, Span),
        rested: impl Fn(usize, Held, Option<Timestamp>) -> Option<u64>,
    ) {
        let lines = self.lines();
        let Some(clock) = line::clock(lines, at, width) else {
            return;
        };
        let mut attempts = ATTEMPTS;
        loop {
            let seen = clock.load(Acquire);
            let settled_at = |word| line_clock::settled_at(word, span, now);
            if settled_at(seen).is_none() {
                return;
            }
            let are_settled = {
                let entries = line::entries_with_clock_of(lines, at, width);
                entries.fold(true, |are_settled, entry| {
                    let entry = line::words(lines, entry.at, width);
                    (0..words).fold(are_settled, |are_settled, nth| {
                        let rested = |held, by| rested(nth, held, by);
                        let clock = || settled_at(clock.load(Acquire));
                        entry
                            .get(nth)
                            .is_none_or(|word| word.settle(self.claims, rested, clock))
                            && are_settled
                    })
                })
            };
            // A word that stays claimed does not stop the clock: the process that claimed it may
            // have been killed.
            if are_settled || attempts == 0 {
                // Release: a call that reads the clock reads the words as they are settled.
                if clock.replace(seen, line_clock::at(now, span), Release) {
                    return;
                }
                // Another call has settled them, but perhaps for an earlier time.
            } else {
                attempts -= 1;
                core::hint::spin_loop();
            }
        }
    }

    /// Claims a slot for `address`. Returns `None` if another call claims one for the same key.
    #[inline(always)]
    pub(crate) fn claim(
        &self,
        address: &Address,
        width: Width,
        now: Timestamp,
        n: u32,
        settle: impl Fn(usize),
        is_free: impl Fn(usize, Option<Held>) -> bool,
    ) -> Result<Option<(Claimed<'_>, Option<Held>)>, Denied> {
        match address.claim(self.lines(), (width, self.claims), settle, is_free) {
            Claim::Made(claimed, replaced) => {
                if replaced.is_some() {
                    self.replaced.fetch_add(1, Relaxed);
                }
                Ok(Some((claimed, replaced)))
            }
            Claim::Raced => Ok(None),
            Claim::Full => {
                self.overflowed.fetch_add(1, Relaxed);
                Err(Denied::Crowded { now, permits: n })
            }
        }
    }

    /// Checks that a claim would find a slot for `address`.
    #[inline(always)]
    pub(crate) fn has_room(
        &self,
        address: &Address,
        width: Width,
        now: Timestamp,
        n: u32,
        is_free: impl Fn(usize, Option<Held>) -> bool,
    ) -> Result<(), Denied> {
        if address.has_room(self.lines(), width, is_free) {
            Ok(())
        } else {
            Err(Denied::Crowded { now, permits: n })
        }
    }

    pub(crate) fn statistics(
        &self,
        width: Width,
        is_live: impl Fn(usize, Held) -> bool,
    ) -> KeyedStatistics {
        let mut statistics = KeyedStatistics {
            slots: width.groups(self.lines().len()) * width.entries(),
            held: 0,
            live: 0,
            replaced: self.replaced.load(Relaxed),
            overflowed: self.overflowed.load(Relaxed),
        };
        for entry in line::entries_from(self.lines(), 0, width) {
            if let Some(held) = entry.held() {
                statistics.held += 1;
                statistics.live += usize::from(is_live(entry.at, held));
            }
        }
        statistics
    }

    /// Calls `vacate` for the entries whose line is in `lines`. Returns how often it returned
    /// `true`.
    pub(crate) fn sweep(
        &self,
        width: Width,
        lines: impl RangeBounds<usize>,
        vacate: impl Fn(Entry<'_>) -> bool,
    ) -> usize {
        let from = match lines.start_bound() {
            Bound::Included(&from) => from,
            Bound::Excluded(&before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        line::entries_from(self.lines(), width.first_of(from), width)
            .take_while(|entry| lines.contains(&width.line_of(entry.at)))
            .filter(|entry| vacate(*entry))
            .count()
    }
}

/// Counts of the slots of a table: the result of
/// [`Keyed::statistics_at`](crate::Keyed::statistics_at) and
/// [`KeyedArray::statistics_at`](crate::KeyedArray::statistics_at).
///
/// ```
/// # use portcullis_core::{Keyed, Timestamp};
/// # use portcullis_core::keyed::{ConcurrencyRules, Line, Seed};
/// let lines = [const { Line::new() }; 250];
/// let table = Keyed::new(ConcurrencyRules::new(3), lines, Seed::new());
/// assert_eq!(table.statistics_at(Timestamp::ZERO).slots, 1_750);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct KeyedStatistics {
    /// The number of slots in the table.
    pub slots: usize,
    /// The number of slots that belong to a key. The limiter of such a slot may be idle.
    pub held: usize,
    /// The number of slots whose limiter is in use.
    pub live: usize,
    /// How many times a slot was given from one key to another. The counter wraps.
    pub replaced: u64,
    /// How many times a key was denied because all slots that it could use were in use. The counter
    /// wraps.
    pub overflowed: u64,
}
