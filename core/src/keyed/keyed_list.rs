//! A table with several limits for each key, whose states lie side by side.
//!
//! State: an *entry* for each key, of 1, 2, 4 or 8 adjacent words of one line. Each word is a slot
//! as in [`line`](super::line): the state of one limit, `held`, and the tag of the key. The *lead*
//! is the first word. It has the state of the limit that leads, which is the first one whose
//! permits come back by time. (Without such a limit, it is the first whose permits are released.)
//! The words that follow have the other limits, in order.
//!
//! ```text
//! +--------------------+---------------+---------------+---------------+
//! | lead: state, 1, tag | state, 1, tag | state, 1, tag |     unused    |   3 limits
//! +--------------------+---------------+---------------+---------------+
//! ```
//!
//! Transitions:
//!
//! ```text
//! take       look at all words; a limit that denies ends the call. Then exchange the words, the
//!            last one first and the lead last. The exchange of the lead grants the request. If a
//!            limit denies now, or a word has another tag: undo the exchanges
//! claim      for the first take of a key: claim the lead of an entry whose words are all free
//!            (vacant, or indistinguishable from fresh ones), as in `line`. Exchange each other
//!            word, if it is still free, for the state that the take leaves. Hold the lead. If a
//!            word is not free any more: undo the exchanges, vacate the lead
//! sweep      claim the lead of an idle entry, vacate the other words that are free, then the lead
//! release    subtract from the words of the limits whose permits are released, the lead last
//! refund     if all words are as the take left them: undo its exchanges, the lead last
//! ```
//!
//! Invariant 1: a word passes to another key only by an exchange of a word that is free. So a
//! charge is never forgotten before its permits are back, and each limit keeps its bound by its own
//! word, whatever happens to the others.
//!
//! Invariant 2: all grants of a key are charged to one entry. A key holds at most one lead (see
//! `line`), and a request is granted only by exchanging a lead that its key holds. When a lead is
//! claimed for another key, no grant of the former key is in use:
//!
//! - The claim reads the lead, then finds all words free, then exchanges the lead that it read.
//! - A grant exchanges the lead last. If the claim has read a lead that contains the grant, it
//!   also reads the grant's other words, because the exchange of the lead publishes them.
//! - If the claim has read the lead before the grant exchanged it, then the claim's exchange fails:
//!   the lead does not come back to the value that was read. A limit whose permits come back by
//!   time moves only forward, except by an undo or a refund; then the request was not granted, or
//!   its permits are given up. If all limits' permits are released, then the lead is the last word
//!   to get them back, and the others have theirs.
//! - A take that is not yet granted when the lead is claimed fails at the lead, and undoes its
//!   exchanges. Each undo finds its charge: invariant 1 keeps the word with the key while permits
//!   of a concurrency limit are out of it, and other limits refund by a receipt.
//!
//! Lock-free: if the thread of a take stops, some limits may keep the permits of that take. No
//! other call waits for it.
//! The alternatives are an entry that is claimed for a decision by a bit, and one in which the
//! pending request is published so that others complete it. The first saves all but one exchange,
//! but a thread that stops then denies all requests for its key. The second needs an exchange of
//! each word and one more, and room for the request.

mod moving;
mod noting;
mod refunding;
mod settling;
mod within;

use core::cell::Cell;
use core::fmt;
use core::hash::{BuildHasher, Hash};
use core::mem;
use core::ops::{Deref, RangeBounds};
use core::time::Duration;
#[cfg(feature = "std")]
use std::boxed::Box;
#[cfg(feature = "std")]
use std::sync::Arc;

use crate::all_of::{DeniedBy, DetailBy};
#[cfg(feature = "std")]
use crate::keyed::into_rules::IntoRuleList;
use crate::keyed::key::{KeyIn, Keys, QueueKeys, TableKey};
use crate::keyed::key_hash::KeyHash;
use crate::keyed::line::{self, Address, Entry, Found, Held, Line, Width, Words};
use crate::keyed::line_clock::Span;
#[cfg(all(
    feature = "std",
    not(all(target_family = "wasm", target_os = "unknown"))
))]
use crate::keyed::random_seed::RandomSeed;
use crate::keyed::rule_list::RuleList;
use crate::keyed::rule_list::sealed::Rules;
use crate::keyed::seed::Seed;
use crate::keyed::table::{ATTEMPTS, KeyedStatistics, Table};
use crate::leases::lease::Lease;
use crate::limiter::denied::{Denied, Retry};
use crate::limiter::detail::{Detail, Observer, retry_of};
use crate::limiter::receipt::Receipt;
use crate::limiter::{
    Answer, Ask, Back, Hints, Idle, Limiter, Read, Reading, Returned, Tell, When,
};
use crate::rules::{TableRules, Verdict};
use crate::sync::const_unless_loom;
use crate::time::timestamp::Timestamp;
use crate::word::STATE_AT;

/// Several limits for each key, in a table of fixed size, without locks and without allocation. A
/// request takes its permits from all limits of its key, or from none.
///
/// The states of a key's limits lie side by side, so a decision reads one cache line for most keys,
/// where several [`Keyed`](crate::Keyed) tables would read one each. Keys, slots, new keys,
/// collisions, the hasher and the staleness are those of a `Keyed` table. What it calls a slot is
/// here an *entry* with a word for each limit.
///
/// With the feature `std`, `for_keys` creates a table from a list of limiters and
/// a number of keys:
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::{
///     Concurrency, FixedWindow, KeyedList, Rate, Retry, Timestamp, TokenBucket,
/// };
///
/// // For each user: 10 per second, 1,000 in each day, and 2 at once.
/// let limiters = (
///     TokenBucket::new(Rate::per_second(10), 5),
///     FixedWindow::new(1_000, Duration::from_secs(86_400)),
///     Concurrency::new(2),
/// );
/// let users = KeyedList::for_keys(limiters, 1_000);
/// let now = Timestamp::from_secs(9);
/// let lease = users.key("alice").try_acquire_each_at(now, 2)?;
///
/// let denied = users.key("alice").try_acquire_each_at(now, 1).unwrap_err();
/// assert_eq!(denied.index, 2);
/// assert_eq!(users.key("alice").retry_each(denied), Retry::OnRelease);
/// drop(lease);
/// assert!(users.key("alice").try_acquire_each_at(now, 2).is_ok());
/// # Ok::<(), portcullis_core::composition::DeniedBy>(())
/// ```
///
/// - `L` is the list of rules: a tuple or an array of 1 to 8 rules, or a
///   [`RulesAtRunTime`](crate::keyed::RulesAtRunTime), for limits that are read from a file.
/// - `M` is the storage, and `S` hashes the keys, as for `Keyed`.
///
/// **Bound.** Each limit of a key is granted no more than it allows, however many keys there are,
/// and even if an attacker chooses them.
///
/// **All or nothing.** A denial leaves each limit unchanged. There is one exception, as for
/// [`AllOf`](crate::AllOf): another call takes the permits of a limit between the look at all
/// limits and the takes. Then the permits that were already taken from other limits are refunded.
/// The refund is exact if no other request was decided on that limit in between; otherwise the
/// permits may come back by time alone. In the meantime another request for the same key may be
/// denied needlessly, but none is granted wrongly.
///
/// **Denials.** [`try_acquire_each_at`](TableKey::try_acquire_each_at) says which limit denied. A
/// request that finds no entry is denied with [`Denied::Crowded`] and the index 0. As a
/// [`Limiter`](crate::Limiter), a key gives the denial without the index.
///
/// **Leases.** A lease releases the permits of the concurrency limits. The permits of the others
/// come back by time, or earlier by [`Lease::refund_at`]: all limits of the grant refund their
/// permits, or only the concurrency limits do. All do if no other request of the key has been
/// granted since. In a list without token buckets, all do as long as the windows of the grant are
/// the newest ones. If another request takes permits during a refund, some limits may not refund;
/// then their permits come back by time.
///
/// **Clocks.** A key that is joined with a clock that answers with an interval seldom needs the
/// precise time: see [`LimiterExt::take_within`](crate::LimiterExt::take_within). It does need it
/// for the first grant of a key, and in a list that begins with a concurrency limit.
///
/// **Self-cleaning.** An entry is given to another key once all of its limits have been
/// [idle](Idle) for the [staleness](Self::staleness); a token bucket for a tick more, so never
/// without refill. The limit that takes longest to fill decides how long a key keeps its entry.
///
/// **Cost.** One hash, and one compare-exchange for each limit, on one cache line for most keys: in
/// a half-full table for 75 % of them with 5 limits or more, for 87 % with 3 or 4, and for 95 %
/// with 2. The other keys need the lines next to it. Put a limit whose permits come back by time
/// first: a list that begins with a concurrency limit takes a slower path. The first grant of a
/// key searches two places and writes each word once and the first word twice. A denial writes
/// nothing, except for a counter if the key finds no entry. Lock-free, with one exception: while a
/// thread claims an entry for a key, other requests for that key retry a few times and are then
/// denied with `Denied::Crowded`.
///
/// **Memory.** 8 bytes for each limit, and 8 more for 3 limits; an entry of 5 to 8 limits has 64
/// bytes. Half of that on targets without 64-bit atomics. A table needs more entries than keys.
/// `for_keys` creates it with 86 bytes per key for 2 limits, 136 for 3, 172 for 4, 272 for 5 to 7,
/// and 344 for 8; then at most 1 new key in 1,000,000 finds no entry. With
/// [`RulesAtRunTime`](crate::keyed::RulesAtRunTime), 3 limits need as much as 4, and 5 or more as
/// much as 8: keys can move between such tables. A half-full table needs 37 bytes per key for 2
/// limits, 73 for 4 and 146 for 8, and 1 new key in 210 finds no entry.
///
/// Source: the limits per second, minute and day that many public interfaces have for each client;
/// multi-word compare-and-swap by a word that decides (Harris, Fraser and Pratt, 2002), here
/// without helping.
///
/// A table in a static:
///
/// ```
/// use portcullis_core::{KeyedList, Rate, Timestamp};
/// use portcullis_core::keyed::{Line, Seed, TokenBucketRules};
///
/// static USERS: KeyedList<[TokenBucketRules; 2], [Line; 1024]> = KeyedList::new(
///     [
///         TokenBucketRules::new(Rate::per_second(10), 2),
///         TokenBucketRules::new(Rate::per_minute(100), 100),
///     ],
///     [const { Line::new() }; 1024],
///     Seed::new(),
/// );
///
/// // At start-up. Use random numbers here.
/// USERS.seed().set([7, 8]).unwrap();
///
/// let now = Timestamp::from_secs(9);
/// assert!(USERS.key("alice").try_acquire_at(now, 2).is_ok());
/// assert_eq!(USERS.key("alice").try_acquire_each_at(now, 1).unwrap_err().index, 0);
/// ```
pub struct KeyedList<L, M, S = Seed> {
    rules: L,
    table: Table<M, S>,
}

impl<L, M, S> KeyedList<L, M, S> {
    const_unless_loom! {
        /// Creates a table in which each key has limits with all of `rules`. Lines are used in
        /// groups: of 1 line for 1 limit, 2 for 2, 4 for 3 or 4, and 8 for more. Lines that are
        /// left over are not used.
        ///
        /// ```
        /// # use portcullis_core::{KeyedList, Limiter, Timestamp};
        /// # use portcullis_core::keyed::{ConcurrencyRules, Line, Seed};
        /// let rules = [ConcurrencyRules::new(5), ConcurrencyRules::new(3)];
        /// let table = KeyedList::new(rules, [const { Line::new() }; 8], Seed::new());
        /// assert_eq!(table.key("alice").available_at(Timestamp::ZERO), 3);
        /// assert_eq!(table.statistics_at(Timestamp::ZERO).slots, 28);
        /// ```
        pub const fn new(rules: L, lines: M, hasher: S) -> Self {
            Self { rules, table: Table::new(lines, hasher) }
        }
    }

    /// Sets how long all limits of an entry must have been idle before another key may take it: 1 s
    /// (the default) to 292 years. See [`Keyed::with_staleness`](crate::Keyed::with_staleness).
    ///
    /// # Panics
    ///
    /// If `staleness` is outside that range. In a constant or a static, that is a compile error.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::KeyedList;
    /// # use portcullis_core::keyed::{ConcurrencyRules, Line, Seed};
    /// let table = KeyedList::new((ConcurrencyRules::new(1),), [Line::new()], Seed::new());
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
    /// # use portcullis_core::KeyedList;
    /// # use portcullis_core::keyed::{ConcurrencyRules, Line, Seed};
    /// let table = KeyedList::new((ConcurrencyRules::new(1),), [Line::new()], Seed::new());
    /// assert_eq!(table.staleness(), Duration::from_secs(1));
    /// ```
    pub const fn staleness(&self) -> Duration {
        self.table.staleness()
    }

    /// Returns the lines. Tables with the same lines have their state in common: see
    /// [`Keyed::lines`](crate::Keyed::lines).
    ///
    /// ```
    /// # use portcullis_core::KeyedList;
    /// # use portcullis_core::keyed::{ConcurrencyRules, Line, Seed};
    /// let table = KeyedList::new((ConcurrencyRules::new(1),), [Line::new()], Seed::new());
    /// assert_eq!(table.lines().len(), 1);
    /// ```
    pub const fn lines(&self) -> &M {
        &self.table.lines
    }

    /// Returns the hasher of the keys, for example to set its [`Seed`].
    ///
    /// ```
    /// # use portcullis_core::KeyedList;
    /// # use portcullis_core::keyed::{ConcurrencyRules, Line, Seed};
    /// let table = KeyedList::new((ConcurrencyRules::new(1),), [Line::new()], Seed::new());
    /// assert!(table.seed().set([1, 2]).is_ok());
    /// ```
    pub const fn seed(&self) -> &S {
        &self.table.hasher
    }

    /// Returns the rules of the limits. Permits cannot be taken from rules. The rules of a
    /// concurrency limit can be changed.
    ///
    /// ```
    /// # use portcullis_core::KeyedList;
    /// # use portcullis_core::keyed::{ConcurrencyRules, Line, Seed};
    /// let table = KeyedList::new((ConcurrencyRules::new(1),), [Line::new()], Seed::new());
    /// table.rules().0.set_limit(5).unwrap();
    /// assert_eq!(table.rules().0.limit(), 5, "the new limit of every key");
    /// ```
    pub const fn rules(&self) -> &L {
        &self.rules
    }
}

#[cfg(all(
    feature = "std",
    not(all(target_family = "wasm", target_os = "unknown"))
))]
impl<L: RuleList> KeyedList<L, Box<[Line]>, RandomSeed> {
    /// Creates a table in which `keys` keys can be in use at once, each with the settings of all
    /// `limiters`. Of new keys, at most 1 in 1,000,000 then finds no entry. Needs the feature
    /// `std`.
    ///
    /// `limiters` is a tuple or an array of limiters or of their rules: see
    /// [`IntoRuleList`](crate::keyed::IntoRuleList). Permits that were taken from the limiters do
    /// not count.
    ///
    /// # Panics
    ///
    /// If the settings do not fit the 43 bits that an entry has for a state (20 on targets without
    /// 64-bit atomics). To get an error instead, pass `limiters.into_rule_list()?`.
    ///
    /// # Cost
    ///
    /// Memory per key: 43 bytes for 1 limit, 86 for 2, 136 for 3, 172 for 4, 272 for 5 to 7, and
    /// 344 for 8; and up to 6 KiB more for each limit. With
    /// [`RulesAtRunTime`](crate::keyed::RulesAtRunTime), 172 for 3 and 344 for 5 or more. For a
    /// denser table, create the lines yourself: see [`new`](Self::new).
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, KeyedList, Rate, Timestamp, TokenBucket};
    /// let rate = TokenBucket::new(Rate::per_second(10), 5);
    /// let users = KeyedList::for_keys((rate, Concurrency::new(2)), 1_000);
    /// let now = Timestamp::from_secs(9);
    /// let lease = users.key("alice").try_acquire_at(now, 2)?;
    /// assert!(users.key("alice").try_acquire_at(now, 1).is_err());
    /// drop(lease);
    /// assert!(users.key("alice").try_acquire_at(now, 1).is_ok());
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    #[must_use]
    pub fn for_keys(limiters: impl IntoRuleList<Rules = L>, keys: usize) -> Self {
        Self::for_keys_with_hasher(limiters, keys, RandomSeed::new())
    }
}

#[cfg(feature = "std")]
impl<L: RuleList, S: BuildHasher> KeyedList<L, Box<[Line]>, S> {
    /// As [`for_keys`](KeyedList::for_keys), with a hasher of the caller's choice. Needs the
    /// feature `std`.
    ///
    /// # Panics
    ///
    /// As `for_keys`.
    ///
    /// ```
    /// # use portcullis_core::KeyedList;
    /// # use portcullis_core::keyed::{ConcurrencyRules, Seed};
    /// let rules = [ConcurrencyRules::new(5), ConcurrencyRules::new(3)];
    /// let users = KeyedList::for_keys_with_hasher(rules, 1_000, Seed::new());
    /// // At start-up. Use random numbers here.
    /// users.seed().set([7, 8]).unwrap();
    /// ```
    #[must_use]
    pub fn for_keys_with_hasher(
        limiters: impl IntoRuleList<Rules = L>,
        keys: usize,
        hasher: S,
    ) -> Self {
        match limiters.into_rule_list() {
            Ok(rules) => {
                let lines = line::groups_for(keys, Width::at_least(rules.count(), L::CAN_MOVE));
                Self::new(rules, lines, hasher)
            }
            Err(error) => error.refuse(),
        }
    }
}

impl<L: RuleList, M: AsRef<[Line]>, S: BuildHasher> KeyedList<L, M, S> {
    /// Returns the limits of `key` as one limiter. The key takes no entry before its first grant.
    /// See [`TableKey::try_acquire_each_at`].
    ///
    /// # Cost
    ///
    /// One hash.
    ///
    /// ```
    /// # use portcullis_core::{KeyedList, Limiter, Timestamp};
    /// # use portcullis_core::keyed::{ConcurrencyRules, Line, Seed};
    /// let rules = [ConcurrencyRules::new(5), ConcurrencyRules::new(3)];
    /// let table = KeyedList::new(rules, [const { Line::new() }; 8], Seed::new());
    /// assert_eq!(table.key(&("alice", 7)).available_at(Timestamp::ZERO), 3);
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
    /// # use portcullis_core::KeyedList;
    /// # use portcullis_core::keyed::{ConcurrencyRules, KeyHash};
    /// let table = KeyedList::for_keys((ConcurrencyRules::new(3),), 100);
    /// let alice = KeyHash::new(table.seed(), "alice");
    /// assert_eq!(table.key_hashed(alice).address(), table.key("alice").address());
    /// ```
    #[inline]
    pub fn key_hashed(&self, hash: KeyHash) -> TableKey<&Self> {
        TableKey::at(self, self.locate(hash))
    }

    /// As [`key`](Self::key), with a share of the table instead of a borrow: see
    /// [`Keyed::owned_key`](crate::Keyed::owned_key). Needs the feature `std`.
    ///
    /// ```
    /// # use portcullis_core::{KeyedList, Limiter, Timestamp};
    /// # use portcullis_core::keyed::ConcurrencyRules;
    /// use std::sync::Arc;
    ///
    /// let table = Arc::new(KeyedList::for_keys((ConcurrencyRules::new(1),), 100));
    /// let lease = table.owned_key("alice").try_acquire_each_at(Timestamp::ZERO, 1)?;
    /// std::thread::spawn(move || drop(lease)).join().unwrap();
    /// assert_eq!(table.key("alice").available_at(Timestamp::ZERO), 1);
    /// # Ok::<(), portcullis_core::composition::DeniedBy>(())
    /// ```
    #[cfg(feature = "std")]
    pub fn owned_key<K: Hash + ?Sized>(self: &Arc<Self>, key: &K) -> TableKey<Arc<Self>> {
        TableKey::new(Arc::clone(self), key)
    }

    /// Counts the entries, which are the slots of the result. An entry is live while one of its
    /// limits is in use. Reads them one after another, so the counts are exact only if no entry
    /// changes in the meantime.
    ///
    /// ```
    /// # use portcullis_core::{KeyedList, Timestamp};
    /// # use portcullis_core::keyed::{ConcurrencyRules, Line, Seed};
    /// let rules = [ConcurrencyRules::new(5), ConcurrencyRules::new(3)];
    /// let table = KeyedList::new(rules, [const { Line::new() }; 2], Seed::new());
    /// let _lease = table.key("alice").try_acquire_at(Timestamp::ZERO, 1)?;
    /// let statistics = table.statistics_at(Timestamp::ZERO);
    /// assert_eq!((statistics.slots, statistics.held, statistics.live), (7, 1, 1));
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    pub fn statistics_at(&self, now: Timestamp) -> KeyedStatistics {
        self.table.statistics(self.width(), |at, _| {
            let words = line::words(self.table.lines(), at, self.width());
            self.limits().any(|(limit, rules)| {
                let held = self.word(words, limit).and_then(Entry::held);
                let state = held.map(|held| self.state_in(at, limit, held.state(), now));
                state.is_some_and(|state| !rules.idle(state, now).is_idle())
            })
        })
    }

    /// Vacates the entries in `lines` whose limits have all been idle for the
    /// [staleness](Self::staleness) at `now`. Returns their number. See
    /// [`Keyed::sweep_at`](crate::Keyed::sweep_at).
    ///
    /// While a call vacates an entry, it claims it: requests for its key retry a few times, and are
    /// then denied with [`Denied::Crowded`].
    ///
    /// ```
    /// # use portcullis_core::{KeyedList, Timestamp};
    /// # use portcullis_core::keyed::{ConcurrencyRules, Line, Seed};
    /// let rules = [ConcurrencyRules::new(5), ConcurrencyRules::new(3)];
    /// let table = KeyedList::new(rules, [const { Line::new() }; 2], Seed::new());
    /// drop(table.key("alice").try_acquire_at(Timestamp::ZERO, 1)?);
    /// assert_eq!(table.sweep_at(Timestamp::from_secs(1), ..), 1);
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    pub fn sweep_at(&self, now: Timestamp, lines: impl RangeBounds<usize>) -> usize {
        self.table.sweep(self.width(), lines, |entry| {
            self.settle_at(entry.at, now);
            // The claim keeps the key from taking the entry again before the other words are
            // vacated. The key would lose those that are idle, and could not use the others.
            let claim = entry.claim_if(|held| self.is_free(entry.at, Some(held), now));
            let Some(claimed) = claim else {
                return false;
            };
            let words = line::words(self.table.lines(), entry.at, self.width());
            for limit in self.order().filter(|&limit| limit != self.lead()) {
                if let Some(entry) = self.word(words, limit) {
                    entry.vacate_if(|held| self.is_forgettable(limit, Some(held), now));
                }
            }
            claimed.vacate();
            true
        })
    }

    #[inline(always)]
    fn width(&self) -> Width {
        Width::at_least(self.rules.count(), L::CAN_MOVE)
    }

    fn limits(&self) -> impl DoubleEndedIterator<Item = (usize, &dyn Rules)> {
        (0..self.rules.count()).filter_map(|limit| Some((limit, self.rules.get(limit)?)))
    }

    /// The index of the limit whose state is in the first word.
    #[inline]
    fn lead(&self) -> usize {
        if self.rules.is_led_by_first() {
            return 0;
        }
        let mut lead = (0, 0);
        for limit in 0..self.rules.count() {
            let rank = self.rules.leads(limit);
            if rank > lead.1 {
                lead = (limit, rank);
            }
        }
        lead.0
    }

    /// The limits in the order in which a take exchanges their words.
    fn order(&self) -> impl Iterator<Item = usize> + use<L, M, S> {
        let (count, lead) = (self.rules.count(), self.lead());
        (0..count).map(move |step| {
            // The others from the last to the first, and then the lead.
            let limit = count - 1 - step;
            if step == count - 1 {
                lead
            } else if limit > lead {
                limit
            } else {
                limit - 1
            }
        })
    }

    /// The word of a limit. That of the lead comes first; the limit with index 0 has the place of
    /// the lead.
    fn word<'t>(&self, words: Words<'t>, limit: usize) -> Option<Entry<'t>> {
        let lead = self.lead();
        let nth = if limit == lead {
            0
        } else if limit == 0 {
            lead
        } else {
            limit
        };
        words.get(nth)
    }

    fn is_forgettable(&self, limit: usize, held: Option<Held>, now: Timestamp) -> bool {
        let (rules, since) = (&self.rules, self.table.since(now));
        held.is_none_or(|held| rules.is_forgettable(limit, held.state(), now, since))
    }

    /// Whether another key may take an entry. `lead` is the word that an exchange then expects. The
    /// other words are read after it.
    fn is_free(&self, at: usize, lead: Option<Held>, now: Timestamp) -> bool {
        self.is_free_if(at, lead, |limit, held| {
            self.is_forgettable(limit, held, now)
        })
    }

    /// As [`is_free`](Self::is_free), if each word satisfies `is`.
    #[inline(always)]
    fn is_free_if(
        &self,
        at: usize,
        lead: Option<Held>,
        is: impl Fn(usize, Option<Held>) -> bool,
    ) -> bool {
        let words = line::words(self.table.lines(), at, self.width());
        (0..self.rules.count()).all(|limit| {
            if limit == self.lead() {
                return is(limit, lead);
            }
            let word = self.word(words, limit);
            word.is_none_or(|word| word.is_unclaimed_and(|held| is(limit, held)))
        })
    }

    /// Whether a claim would find an entry. Settles nothing.
    fn has_room(&self, address: &Address, now: Timestamp, n: u32) -> Result<(), Denied> {
        let is_free = |at, lead| {
            self.is_free_if(at, lead, |limit, held| {
                self.is_forgettable(limit, held, now)
                    || held.is_some_and(|held| self.has_rested(at, limit, held.state(), now))
            })
        };
        self.table.has_room(address, self.width(), now, n, is_free)
    }

    /// For how long the states of all limits can be read.
    fn span(&self) -> Span {
        self.table.span(|| {
            let limits = 0..self.rules.count();
            let spans = limits.map(|limit| Span::of(self.rules.readable_for(limit)));
            spans.min().unwrap_or(Span::FOREVER)
        })
    }

    /// Whether the entry with index `at` can be judged at `now` as it is.
    #[inline(always)]
    fn is_settled(&self, at: usize, now: Timestamp) -> bool {
        !L::wraps() || self.table.is_settled(self.width(), at, now)
    }

    /// Settles the words with the clock of the entry with index `at`, if necessary.
    #[inline(always)]
    fn settle_at(&self, at: usize, now: Timestamp) {
        if !self.is_settled(at, now) {
            self.settle(at, now);
        }
    }

    #[cold]
    #[inline(never)]
    fn settle(&self, at: usize, now: Timestamp) {
        if !self.table.start(self.width(), at, now, || self.span()) {
            self.settle_words(at, now);
        }
    }

    /// As [`settle`](Self::settle). Kept apart from the start of a clock.
    #[inline(never)]
    fn settle_words(&self, at: usize, now: Timestamp) {
        let (rules, since, lead) = (&self.rules, self.table.since(now), self.lead());
        let rested = |nth: usize, held: Held, settled_at| {
            // The limit of a word, as the word of a limit: see `word`.
            let limit = match nth {
                0 => lead,
                _ if nth == lead => 0,
                _ => nth,
            };
            let has_rested = rules.has_rested(limit, held.state(), settled_at, now, since);
            has_rested.then(|| rules.rested(limit, now, since))
        };
        let shape = (self.width(), rules.count());
        self.table.settle(shape, at, (now, self.span()), rested);
    }

    /// Whether settling the entry with index `at` would find a limit at rest, in this state.
    fn has_rested(&self, at: usize, limit: usize, state: u64, now: Timestamp) -> bool {
        if !L::wraps() {
            return false;
        }
        let since = self.table.since(now);
        let settled_at = self.table.settled_at(self.width(), at, now, || self.span());
        settled_at.is_some() && self.rules.has_rested(limit, state, settled_at, now, since)
    }

    /// The state of a limit as it would be if its entry were settled.
    fn state_in(&self, at: usize, limit: usize, state: u64, now: Timestamp) -> u64 {
        if self.has_rested(at, limit, state, now) {
            self.rules.fresh(limit, now)
        } else {
            state
        }
    }

    /// The words of an entry in the order of the limits, or `None` if one of them is not held under
    /// `tag`.
    #[inline(always)]
    fn slots_in(&self, words: Words<'_>, tag: u64) -> Option<L::States> {
        let mut slots = L::NO_STATES;
        for (limit, slot) in (0..self.rules.count()).zip(slots.as_mut()) {
            *slot = self.word(words, limit)?.held_as(tag)?.word();
        }
        Some(slots)
    }

    /// As [`slots_in`](Self::slots_in), if the first limit leads. `lead` is the first word.
    #[inline(always)]
    fn slots_after(&self, lead: Held, words: Words<'_>, tag: u64) -> Option<L::States> {
        let (mut slots, mut foreign) = (L::NO_STATES, 0);
        for (nth, slot) in (0..self.rules.count()).zip(slots.as_mut()) {
            if nth == 0 {
                *slot = lead.word();
            } else {
                let (seen, is_foreign) = words.get(nth)?.word_as(tag);
                *slot = seen;
                foreign |= is_foreign;
            }
        }
        (foreign == 0).then_some(slots)
    }

    /// The states that lie in slots.
    #[inline(always)]
    fn states_of(mut slots: L::States) -> L::States {
        for slot in slots.as_mut() {
            *slot >>= STATE_AT;
        }
        slots
    }

    /// Decides on a request. Returns the states that a grant leaves, or the first denial.
    #[inline(always)]
    fn judge(&self, states: L::States, now: Timestamp, n: u32) -> Result<L::States, DeniedBy> {
        let mut slots = states;
        for slot in slots.as_mut() {
            *slot <<= STATE_AT;
        }
        self.rules.judge(slots, 0, now, n).map(Self::states_of)
    }

    #[inline(always)]
    fn fresh(&self, now: Timestamp) -> L::States {
        let mut states = L::NO_STATES;
        for (limit, state) in (0..self.rules.count()).zip(states.as_mut()) {
            *state = self.rules.fresh(limit, now);
        }
        states
    }

    /// The states of a key's limits, or those of fresh limits if the key has no entry. And whether
    /// the key has one, or is about to get one.
    fn states(&self, address: &Address, now: Timestamp) -> (L::States, bool) {
        let (lines, width) = (self.table.lines(), self.width());
        let (found, has_entry) = match address.find_preferred(lines, width) {
            // All entries of a line have one clock.
            Some((words, _)) => (Some((address.preferred(width), words)), true),
            None => match address.search(lines, width) {
                Found::Held(entry, _) => {
                    let words = line::words(lines, entry.at, width);
                    (Some((entry.at, words)), true)
                }
                Found::Claimed => (None, true),
                Found::Nothing => (None, false),
            },
        };
        let states = found.and_then(|(at, words)| {
            let states = Self::states_of(self.slots_in(words, address.tag())?);
            // The clock after the words that it judges.
            Some(if self.is_settled(at, now) {
                states
            } else {
                self.states_at_rest(at, states, now)
            })
        });
        (states.unwrap_or_else(|| self.fresh(now)), has_entry)
    }

    /// The states of an entry as they would be if it were settled.
    #[cold]
    fn states_at_rest(&self, at: usize, mut states: L::States, now: Timestamp) -> L::States {
        for (limit, state) in (0..self.rules.count()).zip(states.as_mut()) {
            *state = self.state_in(at, limit, *state, now);
        }
        states
    }

    /// What the limits tell of a request, which a take does not change: of the first limit that
    /// denies it, or else of the one with the fewest permits.
    fn told(&self, states: L::States, now: Timestamp, decision: Result<(), DeniedBy>) -> DetailBy {
        let detail = |limit: usize, decision| {
            let state = states.as_ref().get(limit).copied().unwrap_or_default();
            let detail = self.rules.get(limit)?.detail(state, now, decision);
            Some(DetailBy {
                index: limit,
                detail,
            })
        };
        let told = match decision {
            Err(by) => detail(by.index, Err(by.denied)),
            Ok(()) => (0..self.rules.count())
                .filter_map(|limit| detail(limit, Ok(())))
                .min_by_key(|told| told.detail.available),
        };
        told.unwrap_or(DetailBy {
            index: 0,
            detail: Detail::unlimited(now),
        })
    }

    /// Takes `n` permits of each limit. Returns the states that the take left.
    #[inline(always)]
    fn take_each<O: Observer<DetailBy>>(
        &self,
        address: &Address,
        now: Timestamp,
        n: u32,
        seen: O,
    ) -> Result<L::States, DeniedBy> {
        let progress = match self.find_preferred(address, now) {
            Some(entry) => match self.take_at_once(entry, address.tag(), now, n, seen) {
                Taken::Done(outcome) => return outcome,
                Taken::Begun(progress) => Some(progress),
                Taken::Gone => None,
            },
            None => None,
        };
        self.take_slowly(*address, now, n, progress, seen)
    }

    /// The entry of the key and its first word, if it is where the key prefers it, it is settled at
    /// `now`, and the first limit leads.
    #[inline(always)]
    fn find_preferred(&self, address: &Address, now: Timestamp) -> Option<(Words<'_>, Held)> {
        let width = self.width();
        if self.rules.is_led_by_first() && self.is_settled(address.preferred(width), now) {
            address.find_preferred(self.table.lines(), width)
        } else {
            None
        }
    }

    /// The entry of a key that may have permits to release, wherever it is.
    #[inline(always)]
    fn find(&self, address: &Address) -> Option<Words<'_>> {
        match address.find_preferred(self.table.lines(), self.width()) {
            Some((words, _)) => Some(words),
            None => self.search(address),
        }
    }

    /// As [`find`](Self::find). While another call settles the entry, its lead is claimed. A
    /// release must not miss it then, nor wait, as it may have interrupted that call. It needs only
    /// the words whose permits are out, and these are not claimed.
    fn search(&self, address: &Address) -> Option<Words<'_>> {
        let (lines, width) = (self.table.lines(), self.width());
        let words = |entry: Entry<'_>| line::words(lines, entry.at, width);
        let entry = match address.search(lines, width) {
            Found::Held(entry, _) => entry,
            Found::Claimed => address.find_if(lines, width, |entry| {
                self.is_out(words(entry), Some(address.tag()))
            })?,
            Found::Nothing => return None,
        };
        Some(line::words(lines, entry.at, width))
    }

    /// Whether permits that return by release are out of an entry: of any key, or under `tag`.
    fn is_out(&self, words: Words<'_>, tag: Option<u64>) -> bool {
        self.limits()
            .filter(|(_, rules)| rules.releases())
            .filter_map(|(limit, _)| self.word(words, limit)?.held())
            .any(|held| held.state() > 0 && tag.is_none_or(|tag| held.tag() == tag))
    }

    /// The entry of the key, wherever it is, after it was settled if necessary.
    fn find_to_change(&self, address: &Address, now: Timestamp) -> Option<Words<'_>> {
        let (lines, width) = (self.table.lines(), self.width());
        let Found::Held(entry, _) = address.search(lines, width) else {
            return None;
        };
        self.settle_at(entry.at, now);
        Some(line::words(lines, entry.at, width))
    }

    /// Takes from an entry of the key, if no other call changes it at the same time. The first
    /// limit leads, and `lead` is its word.
    #[inline(always)]
    fn take_at_once<'t, O: Observer<DetailBy>>(
        &self,
        (words, lead): (Words<'t>, Held),
        tag: u64,
        now: Timestamp,
        n: u32,
        seen: O,
    ) -> Taken<'t, L::States> {
        let Some(slots) = self.slots_after(lead, words, tag) else {
            return Taken::Gone;
        };
        let left = match self.rules.judge(slots, line::held_under(tag), now, n) {
            Ok(left) => left,
            Err(by) => {
                seen.observe(|| self.told(Self::states_of(slots), now, Err(by)));
                return Taken::Done(Err(by));
            }
        };
        if n > 0 {
            let count = self.rules.count();
            // The lead, which is the first, comes last.
            for taken in 0..count {
                let nth = count - 1 - taken;
                let exchange = (slots.as_ref().get(nth), left.as_ref().get(nth));
                if let (Some(word), (Some(&before), Some(&after))) = (words.get(nth), exchange) {
                    if !word.exchange(before, after) {
                        let left = Self::states_of(left);
                        return Taken::Begun(Progress { words, taken, left });
                    }
                }
            }
        }
        let left = Self::states_of(left);
        seen.observe(|| self.told(left, now, Ok(())));
        Taken::Done(Ok(left))
    }

    /// Looks at all limits in an entry of the key. Takes nothing yet.
    #[inline(always)]
    fn begin<'t, O: Observer<DetailBy>>(
        &self,
        words: Words<'t>,
        tag: u64,
        now: Timestamp,
        n: u32,
        seen: O,
    ) -> Taken<'t, L::States> {
        let Some(slots) = self.slots_in(words, tag) else {
            return Taken::Gone;
        };
        let states = Self::states_of(slots);
        let decision = self.judge(states, now, n);
        match decision {
            Ok(left) if n > 0 => {
                let taken = 0;
                Taken::Begun(Progress { words, taken, left })
            }
            _ => {
                seen.observe(|| self.told(states, now, decision.map(|_| ())));
                Taken::Done(decision)
            }
        }
    }

    /// Completes a take that has begun, or takes from the key's entry wherever it is, or from a new
    /// one. A separate function with its own copy of the address, so that the fast path keeps
    /// everything in registers.
    #[cold]
    #[inline(never)]
    fn take_slowly<O: Observer<DetailBy>>(
        &self,
        address: Address,
        now: Timestamp,
        n: u32,
        mut begun: Option<Progress<'_, L::States>>,
        seen: O,
    ) -> Result<L::States, DeniedBy> {
        let (lines, width) = (self.table.lines(), self.width());
        for _ in 0..ATTEMPTS {
            let taken = match begun.take() {
                Some(progress) => Taken::Begun(progress),
                None => match address.search(lines, width) {
                    Found::Held(entry, _) => self.take_settled(entry, address.tag(), now, n, seen),
                    Found::Claimed => {
                        core::hint::spin_loop();
                        Taken::Gone
                    }
                    Found::Nothing => self.take_by_claim(&address, now, n, seen),
                },
            };
            match taken {
                Taken::Done(outcome) => return outcome,
                Taken::Begun(progress) => {
                    if let Some(outcome) = self.complete(progress, address.tag(), now, n, seen) {
                        return outcome;
                    }
                }
                Taken::Gone => {}
            }
        }
        Err(crowded(now, n))
    }

    /// Takes from an entry that a search has found, after its line is settled.
    fn take_settled<'t, O: Observer<DetailBy>>(
        &'t self,
        entry: Entry<'t>,
        tag: u64,
        now: Timestamp,
        n: u32,
        seen: O,
    ) -> Taken<'t, L::States> {
        self.settle_at(entry.at, now);
        let words = line::words(self.table.lines(), entry.at, self.width());
        match entry.held_as(tag) {
            Some(lead) if self.rules.is_led_by_first() => {
                self.take_at_once((words, lead), tag, now, n, seen)
            }
            Some(_) => self.begin(words, tag, now, n, seen),
            None => Taken::Gone,
        }
    }

    /// Takes from the limits that are left. Returns `None`, with nothing taken, if the key does not
    /// hold the entry any more.
    fn complete<O: Observer<DetailBy>>(
        &self,
        mut progress: Progress<'_, L::States>,
        tag: u64,
        now: Timestamp,
        n: u32,
        seen: O,
    ) -> Option<Result<L::States, DeniedBy>> {
        for limit in self.order().skip(progress.taken) {
            match self.take_one(progress.words, limit, tag, now, n) {
                Some(Ok(left)) => progress.took(limit, left),
                Some(Err((by, state))) => {
                    seen.observe(|| {
                        let mut states = progress.left;
                        if let Some(seen) = states.as_mut().get_mut(limit) {
                            *seen = state;
                        }
                        self.told(states, now, Err(by))
                    });
                    self.undo(&progress, tag, now, n);
                    return Some(Err(by));
                }
                None => {
                    self.undo(&progress, tag, now, n);
                    return None;
                }
            }
        }
        let left = progress.left;
        seen.observe(|| self.told(left, now, Ok(())));
        Some(Ok(left))
    }

    /// Takes from one limit. Returns the state that the take left, or the denial and the state that
    /// it saw, or `None` if the word belongs to another key.
    #[inline(always)]
    fn take_one(
        &self,
        words: Words<'_>,
        limit: usize,
        tag: u64,
        now: Timestamp,
        n: u32,
    ) -> Option<Result<u64, (DeniedBy, u64)>> {
        let word = self.word(words, limit)?;
        loop {
            let held = word.held_as(tag)?;
            let before = held.state();
            match self.rules.judge_one(limit, before, now, n) {
                Verdict::Granted(after) => {
                    if word.change(held, after).is_ok() {
                        return Some(Ok(after));
                    }
                }
                Verdict::Allowed => return Some(Ok(before)),
                Verdict::Denied(denied) => {
                    let by = DeniedBy {
                        index: limit,
                        permits: n,
                        denied,
                    };
                    return Some(Err((by, before)));
                }
            }
        }
    }

    /// Undoes what a take has taken so far.
    #[cold]
    fn undo(&self, progress: &Progress<'_, L::States>, tag: u64, now: Timestamp, n: u32) {
        for limit in self.order().take(progress.taken) {
            if let Some(&left) = progress.left.as_ref().get(limit) {
                self.undo_one(progress.words, limit, tag, (now, n, left));
            }
        }
    }

    /// Undoes a take of `n` permits at `now` from one limit, which left the state `left`.
    fn undo_one(
        &self,
        words: Words<'_>,
        limit: usize,
        tag: u64,
        (now, n, left): (Timestamp, u32, u64),
    ) {
        let Some(word) = self.word(words, limit) else {
            return;
        };
        while let Some(held) = word.held_as(tag) {
            match self.rules.undo(limit, held.state(), now, n, left) {
                Some(before) if word.change(held, before).is_err() => {}
                _ => break,
            }
        }
    }

    /// Takes from an entry that this call claims.
    #[cold]
    fn take_by_claim<O: Observer<DetailBy>>(
        &self,
        address: &Address,
        now: Timestamp,
        n: u32,
        seen: O,
    ) -> Taken<'_, L::States> {
        let fresh = self.fresh(now);
        let left = match self.judge(fresh, now, n) {
            Ok(left) => left,
            Err(by) => {
                seen.observe(|| self.told(fresh, now, Err(by)));
                return Taken::Done(Err(by));
            }
        };
        // A request takes nothing if it is a probe, or if no limit has a limit.
        if n == 0 || left.as_ref() == fresh.as_ref() {
            if self.has_room(address, now, n).is_err() {
                return Taken::Done(Err(crowded(now, n)));
            }
            seen.observe(|| self.told(fresh, now, Ok(())));
            return Taken::Done(Ok(fresh));
        }
        let is_free = |at, held| self.is_free(at, held, now);
        let settle = |at| self.settle_at(at, now);
        let claimed = match self
            .table
            .claim(address, self.width(), now, n, settle, is_free)
        {
            Ok(Some((claimed, _))) => claimed,
            // Another call claims an entry for the same key.
            Ok(None) => return Taken::Gone,
            Err(_) => return Taken::Done(Err(crowded(now, n))),
        };
        let words = line::words(self.table.lines(), claimed.entry.at, self.width());
        let mut progress = Progress {
            words,
            taken: 0,
            left,
        };
        let state = |limit: usize| left.as_ref().get(limit).copied().unwrap_or_default();
        let lead = self.lead();
        for limit in self.order().filter(|&limit| limit != lead) {
            let is_free = |held| self.is_forgettable(limit, held, now);
            let word = self.word(words, limit);
            if !word.is_some_and(|word| word.seize(address.tag(), state(limit), is_free)) {
                // A take of the former key has charged the word, and will undo that.
                self.undo(&progress, address.tag(), now, n);
                claimed.withdraw();
                return Taken::Gone;
            }
            // The states of all limits are in `left` already.
            progress.taken += 1;
        }
        let _its_own = claimed.hold(state(lead));
        seen.observe(|| self.told(left, now, Ok(())));
        Taken::Done(Ok(left))
    }

    /// Returns the denial as that of a single limiter.
    fn as_one(&self, by: DeniedBy) -> Denied {
        match by.denied {
            Denied::Exhausted { permits, .. } => match u32::try_from(self.capacity()) {
                // Another limit can never hold that many permits.
                Ok(capacity) if capacity < permits => Denied::ExceedsCapacity { permits, capacity },
                _ => by.denied,
            },
            denied => denied,
        }
    }

    /// Takes permits, and tells of the limit that denied, or that has the fewest left.
    fn take_each_explained(
        &self,
        address: &Address,
        now: Timestamp,
        n: u32,
    ) -> (Result<Receipt, DeniedBy>, DetailBy) {
        let seen = Cell::new(None);
        let taken = self.take_each(address, now, n, &seen);
        let told = self.told_of(address, now, taken.map(|_| ()), seen.get());
        (taken.map(|left| self.receipt(left, now, n)), told)
    }

    /// What a take has seen that was decided like this.
    fn told_of(
        &self,
        address: &Address,
        now: Timestamp,
        taken: Result<(), DeniedBy>,
        seen: Option<DetailBy>,
    ) -> DetailBy {
        match seen {
            Some(told) if told.detail.decision == taken.map_err(|by| by.denied) => told,
            // A take that finds no entry observes nothing.
            _ => self.explain_crowded(address, now, taken),
        }
    }

    #[cold]
    fn explain_crowded(
        &self,
        address: &Address,
        now: Timestamp,
        decision: Result<(), DeniedBy>,
    ) -> DetailBy {
        let (states, has_entry) = self.states(address, now);
        let told = self.told(states, now, decision);
        let detail = told.detail.without_slot(self.table.retry());
        let available = if has_entry { told.detail.available } else { 0 };
        DetailBy {
            detail: Detail {
                available,
                ..detail
            },
            ..told
        }
    }
}

/// The denial of a request that finds no entry.
const fn crowded(now: Timestamp, n: u32) -> DeniedBy {
    DeniedBy {
        index: 0,
        permits: n,
        denied: Denied::Crowded { now, permits: n },
    }
}

/// The result of one attempt to take.
enum Taken<'t, T> {
    /// The request is decided: the states that a grant left.
    Done(Result<T, DeniedBy>),
    /// The limits allowed the request when they were looked at.
    Begun(Progress<'t, T>),
    /// The key does not hold the entry any more, or not yet.
    Gone,
}

/// A take that has begun: how many limits it has taken from, in [order](KeyedList::order), and the
/// states that it has left in them.
#[derive(Clone, Copy)]
struct Progress<'t, T> {
    words: Words<'t>,
    taken: usize,
    left: T,
}

impl<T: AsMut<[u64]>> Progress<'_, T> {
    fn took(&mut self, limit: usize, left: u64) {
        if let Some(state) = self.left.as_mut().get_mut(limit) {
            *state = left;
        }
        self.taken += 1;
    }
}

/// A take that is undone on drop, if what follows it fails or panics.
struct UndoOnDrop<'t, L: RuleList, M: AsRef<[Line]>, S: BuildHasher> {
    list: &'t KeyedList<L, M, S>,
    progress: Progress<'t, L::States>,
    tag: u64,
    now: Timestamp,
    n: u32,
}

impl<L: RuleList, M: AsRef<[Line]>, S: BuildHasher> Drop for UndoOnDrop<'_, L, M, S> {
    fn drop(&mut self) {
        self.list.undo(&self.progress, self.tag, self.now, self.n);
    }
}

impl<L: RuleList, M: AsRef<[Line]>, S: BuildHasher> Keys for KeyedList<L, M, S> {
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

    /// A key has one address for all its limits, under the index 0.
    #[inline]
    fn locate(&self, hash: KeyHash) -> Address {
        let groups = self.width().groups(self.table.lines().len());
        Address::new(hash.get(), groups)
    }
}

impl<L: RuleList, M: AsRef<[Line]>, S: BuildHasher> QueueKeys for KeyedList<L, M, S> {
    const SHARED: bool = false;

    fn next_held(&self, from: usize) -> Option<usize> {
        if !self.rules.releases() {
            return None;
        }
        let width = self.width();
        line::entries_from(self.table.lines(), from, width)
            .find(|entry| {
                let words = line::words(self.table.lines(), entry.at, width);
                // A claimed entry may be in use: a call is settling it.
                (entry.held().is_some() || entry.is_claimed()) && self.is_out(words, None)
            })
            .map(|entry| entry.at)
    }
}

impl<L: RuleList, M: AsRef<[Line]>, S: BuildHasher> Limiter for KeyIn<'_, KeyedList<L, M, S>> {
    #[inline(always)]
    fn decide(&self, ask: Ask<'_>) -> Answer {
        let Self { table, address } = *self;
        let (n, is_look) = (ask.permits(), ask.is_look());
        let as_one = |by| table.as_one(by);
        let now = match ask.when() {
            When::At(now) => now,
            When::Within(interval) if is_look => {
                let looked = table.look_within(address, interval, n);
                return looked.map(|looked| looked.map_err(as_one)).into();
            }
            When::Within(interval) => {
                let taken = table.take_each_within(address, interval, n);
                return taken.map(|taken| taken.map_err(as_one)).into();
            }
        };
        match ask.tell {
            Tell::Detail(seen) => {
                let (decision, detail) = if is_look {
                    let detail = table.explain(address, now, n);
                    (detail.decision.into(), detail)
                } else {
                    let (taken, detail) = table.take_explained(address, now, n);
                    (taken.into(), detail)
                };
                seen.set(Some(detail));
                decision
            }
            _ if is_look => table.look(address, now, n).map_err(as_one).into(),
            Tell::Grant(keep) => table.take_then(address, now, n, keep),
            _ => match table.take_each(address, now, n, ()) {
                Ok(left) => Answer::Granted(table.receipt(left, now, n)),
                Err(by) => Answer::Denied(as_one(by)),
            },
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
            } => table.refund_each(address, now, permits, receipt).into(),
            Back::Release { permits } => {
                table.release(address, permits);
                Returned::NOTHING
            }
            _ => Returned::NOTHING,
        }
    }

    fn read(&self, read: Read<'_>) -> Reading {
        let Self { table, address } = *self;
        let now = read.now();
        let (states, has_entry) = table.states(address, now);
        // No permit can be taken without an entry.
        let is_crowded = !has_entry && table.has_room(address, now, 1).is_err();
        let limits = || table.limits().zip(states.as_ref());
        let available = limits().map(|((_, rules), &state)| rules.available(state, now));
        let idle = limits().map(|((_, rules), &state)| rules.idle(state, now));
        Reading {
            available: if is_crowded {
                0
            } else {
                available.min().unwrap_or(0)
            },
            capacity: table.capacity(),
            idle: idle.fold(Idle::Since(Timestamp::ZERO), Idle::and),
            held: 0,
        }
    }

    fn retry(&self, denied: Denied) -> Retry {
        self.table.retry(self.address, denied)
    }

    #[inline(always)]
    fn hints(&self) -> Hints {
        Hints::NONE.within_intervals()
    }
}

impl<L: RuleList, M: AsRef<[Line]>, S: BuildHasher> KeyedList<L, M, S> {
    /// The largest request that every limit can grant.
    fn capacity(&self) -> u64 {
        let capacity = self.limits().map(|(_, rules)| rules.capacity());
        capacity.min().unwrap_or(0)
    }

    /// Takes, and asks whether to keep the permits: see [`Tell::Grant`].
    fn take_then(
        &self,
        address: &Address,
        now: Timestamp,
        n: u32,
        keep: &mut dyn FnMut() -> bool,
    ) -> Answer {
        let left = match self.take_each(address, now, n, ()) {
            Ok(left) => left,
            Err(by) => return Answer::Denied(self.as_one(by)),
        };
        let words = if n > 0 { self.search(address) } else { None };
        let undo = words.map(|words| UndoOnDrop {
            list: self,
            progress: Progress {
                words,
                taken: self.rules.count(),
                left,
            },
            tag: address.tag(),
            now,
            n,
        });
        if keep() {
            mem::forget(undo);
            Answer::Granted(Receipt::NONE)
        } else {
            Answer::Undone
        }
    }

    fn take_explained(
        &self,
        address: &Address,
        now: Timestamp,
        n: u32,
    ) -> (Result<Receipt, Denied>, Detail) {
        let (taken, DetailBy { detail, .. }) = self.take_each_explained(address, now, n);
        match taken {
            Ok(receipt) => (Ok(receipt), detail),
            Err(by) => {
                let denied = self.as_one(by);
                (Err(denied), self.denied_by(address, denied, detail))
            }
        }
    }

    fn explain(&self, address: &Address, now: Timestamp, n: u32) -> Detail {
        let (states, has_entry) = self.states(address, now);
        let looked = self.judge(states, now, n).map(|_| ());
        match looked {
            Err(by) => {
                let denied = self.as_one(by);
                self.denied_by(address, denied, self.told(states, now, looked).detail)
            }
            Ok(()) if !has_entry && self.has_room(address, now, n).is_err() => {
                self.explain_crowded(address, now, Err(crowded(now, n)))
                    .detail
            }
            Ok(()) => self.told(states, now, looked).detail,
        }
    }

    /// Looks at a request.
    fn look(&self, address: &Address, now: Timestamp, n: u32) -> Result<(), DeniedBy> {
        let (states, has_entry) = self.states(address, now);
        self.judge(states, now, n)?;
        if !has_entry && self.has_room(address, now, n).is_err() {
            return Err(crowded(now, n));
        }
        Ok(())
    }

    #[inline]
    fn release(&self, address: &Address, n: u32) {
        if !self.rules.releases() {
            return;
        }
        // Permits are in use, so the key has an entry, and no other key can take it.
        let Some(words) = self.find(address) else {
            return;
        };
        for limit in self.order() {
            let is_released = self.rules.get(limit).is_some_and(TableRules::releases);
            let Some(word) = self.word(words, limit).filter(|_| is_released) else {
                continue;
            };
            while let Some(held) = word.held_as(address.tag()) {
                let state = held.state();
                let released = self.rules.undo(limit, state, Timestamp::ZERO, n, state);
                debug_assert!(
                    released.is_some(),
                    "permits were released that were not taken"
                );
                if released.is_none_or(|state| word.change(held, state).is_ok()) {
                    break;
                }
            }
        }
    }

    fn retry(&self, address: &Address, denied: Denied) -> Retry {
        match denied {
            Denied::Crowded { .. } => self.table.retry(),
            Denied::Exhausted { now, permits } => {
                let (states, _) = self.states(address, now);
                let limits = self.limits().zip(states.as_ref());
                limits.fold(Retry::At(now), |all, ((_, rules), &state)| {
                    let decision = match rules.judge_at(state, now, permits) {
                        Verdict::Granted(_) | Verdict::Allowed => Ok(()),
                        // The sum of queued requests may exceed the capacity.
                        Verdict::Denied(Denied::ExceedsCapacity { .. }) => Err(denied),
                        Verdict::Denied(denied) => Err(denied),
                    };
                    let retry = retry_of(decision, now, |denied| rules.retry(state, denied));
                    all.longer(retry, now)
                })
            }
            _ => Retry::Never,
        }
    }

    /// What goes with a denial of one limit, of which that limit says `detail`. All limits say when
    /// to retry.
    fn denied_by(&self, address: &Address, denied: Denied, detail: Detail) -> Detail {
        Detail {
            decision: Err(denied),
            retry: self.retry(address, denied),
            ..detail
        }
    }

    /// What the limit with index `limit` would answer. `None` if there is no such limit.
    fn explain_nth(
        &self,
        address: &Address,
        limit: usize,
        now: Timestamp,
        n: u32,
    ) -> Option<Detail> {
        let rules = self.rules.get(limit)?;
        let (states, has_entry) = self.states(address, now);
        let state = *states.as_ref().get(limit)?;
        let decision = match rules.judge_at(state, now, n) {
            Verdict::Denied(denied) => Err(denied),
            Verdict::Granted(_) | Verdict::Allowed if has_entry => Ok(()),
            Verdict::Granted(_) | Verdict::Allowed => self.has_room(address, now, n),
        };
        let detail = rules.detail(state, now, decision);
        Some(match decision {
            Err(Denied::Crowded { .. }) => detail.without_slot(self.table.retry()),
            _ => detail,
        })
    }
}

impl<L, M, S, P> TableKey<P>
where
    L: RuleList,
    M: AsRef<[Line]>,
    S: BuildHasher,
    P: Deref<Target = KeyedList<L, M, S>>,
{
    /// Takes `n` permits of each limit of the key at `now`, or none. As
    /// [`try_acquire_at`](Self::try_acquire_at), but a denial says which limit it was. For a key of
    /// a [`KeyedList`].
    ///
    /// [`retry_each`](Self::retry_each) says when all limits have the permits.
    ///
    /// # Errors
    ///
    /// [`DeniedBy`] names the first limit that denies. If the key finds no entry, it has
    /// [`Denied::Crowded`] and the index 0.
    ///
    /// ```
    /// # use portcullis_core::{KeyedList, Rate, Retry, Timestamp};
    /// # use portcullis_core::keyed::TokenBucketRules;
    /// let rules = [Rate::per_second(10), Rate::per_second(1)];
    /// let users = KeyedList::for_keys(rules.map(|rate| TokenBucketRules::new(rate, 2)), 100);
    /// let (now, alice) = (Timestamp::from_secs(9), users.key("alice"));
    /// assert!(alice.try_acquire_each_at(now, 2).is_ok());
    /// let later = Timestamp::from_millis(9_200);
    /// let denied = alice.try_acquire_each_at(later, 1).unwrap_err();
    /// assert_eq!(denied.index, 1);
    /// assert_eq!(alice.retry_each(denied), Retry::At(Timestamp::from_secs(10)));
    /// ```
    #[inline]
    pub fn try_acquire_each_at(self, now: Timestamp, n: u32) -> Result<Lease<Self>, DeniedBy> {
        let (table, address) = self.place();
        match table.take_each(address, now, n, ()) {
            Ok(left) => {
                let receipt = table.receipt(left, now, n);
                Ok(Lease::from_grant(self, n, receipt))
            }
            Err(by) => Err(by),
        }
    }

    /// Takes permits as [`try_acquire_each_at`](Self::try_acquire_each_at) does, and returns what
    /// one of the limits saw: for a denial the limit that denied, for a grant the limit with the
    /// fewest permits left, the first of them if several have as many.
    ///
    /// Its numbers are those of the word that this decision wrote or read, whatever other callers
    /// take at the same time. Its `retry` is that of the one limit.
    ///
    /// # Errors
    ///
    /// The first result is one of the errors of `try_acquire_each_at`.
    ///
    /// ```
    /// # use portcullis_core::{KeyedList, Timestamp};
    /// # use portcullis_core::keyed::ConcurrencyRules;
    /// let rules = [ConcurrencyRules::new(7), ConcurrencyRules::new(5)];
    /// let users = KeyedList::for_keys(rules, 100);
    /// let (lease, told) = users.key("alice").try_acquire_each_explained_at(Timestamp::ZERO, 4);
    /// assert!(lease.is_ok());
    /// assert_eq!((told.index, told.detail.available, told.detail.capacity), (1, 1, 5));
    /// ```
    #[must_use = "a lease returns its permits when it is dropped"]
    pub fn try_acquire_each_explained_at(
        self,
        now: Timestamp,
        n: u32,
    ) -> (Result<Lease<Self>, DeniedBy>, DetailBy) {
        let (table, address) = self.place();
        let (taken, told) = table.take_each_explained(address, now, n);
        let lease = taken.map(|receipt| Lease::from_grant(self, n, receipt));
        (lease, told)
    }

    /// Returns when to retry the request that was denied: the latest of the answers of all limits
    /// in their current state. For a key of a [`KeyedList`].
    ///
    /// The result is exact: without other requests for the key, a request at [`Retry::At`] is
    /// granted, and a request 1 ns earlier is denied.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{KeyedList, Retry, Timestamp};
    /// # use portcullis_core::keyed::FixedWindowRules;
    /// let rules = [10, 60].map(|length| FixedWindowRules::new(2, Duration::from_secs(length)));
    /// let users = KeyedList::for_keys(rules, 100);
    /// let (now, alice) = (Timestamp::from_secs(9), users.key("alice"));
    /// assert!(alice.try_acquire_each_at(now, 2).is_ok());
    /// let denied = alice.try_acquire_each_at(now, 1).unwrap_err();
    /// assert_eq!(denied.index, 0);
    /// assert_eq!(alice.retry_each(denied), Retry::At(Timestamp::from_secs(60)));
    /// ```
    pub fn retry_each(&self, denied: DeniedBy) -> Retry {
        let (table, address) = self.place();
        table.retry(address, table.as_one(denied))
    }

    /// Returns what each limit of the key would answer, in order. Writes nothing. For a key of a
    /// [`KeyedList`].
    ///
    /// ```
    /// # use portcullis_core::{KeyedList, Timestamp};
    /// # use portcullis_core::keyed::ConcurrencyRules;
    /// let rules = [ConcurrencyRules::new(7), ConcurrencyRules::new(5)];
    /// let users = KeyedList::for_keys(rules, 100);
    /// let alice = users.key("alice");
    /// let allowed = alice.explain_each_at(Timestamp::ZERO, 6).map(|detail| detail.is_allowed());
    /// assert!(allowed.eq([true, false]));
    /// ```
    pub fn explain_each_at(&self, now: Timestamp, n: u32) -> impl Iterator<Item = Detail> {
        let (table, address) = self.place();
        (0..).map_while(move |limit| table.explain_nth(address, limit, now, n))
    }
}

impl<L: fmt::Debug, M, S> fmt::Debug for KeyedList<L, M, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedList")
            .field("rules", &self.rules)
            .finish_non_exhaustive()
    }
}
