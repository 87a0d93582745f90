//! Moves the entries of all keys to a table with other limits, while other threads take. As for a
//! table with one limit: see [`moving`](crate::keyed::moving). An entry moves by its lead, which is
//! its slot:
//!
//! ```text
//! 1. mark the lead in the other table as claimed for the key
//! 2. close the lead, by a compare-exchange of the word that was read
//! 3. close the other words of the entry, by a compare-exchange of each; convert all states; store
//!    the words of the other table, the lead last
//! ```
//!
//! A take exchanges the lead last, so all words that it has charged are read in step 3. A take that
//! has not exchanged the lead before step 2 is not granted, and undoes what it has charged. If a
//! word is closed before the undo, its permits come back by time. A refund or a charge of a single
//! word either comes before the word is closed, and moves with it, or finds no word of the key.
//!
//! A group of lines has seven entries in both tables, whatever their numbers of words are. So each
//! entry moves to the one with the same index.

use core::array;
use core::hash::BuildHasher;

use crate::keyed::keyed_list::KeyedList;
use crate::keyed::line::{self, Address, Claim, Found, Held, Line};
use crate::keyed::rule_list::sealed::List as _;
use crate::keyed::rule_list::{MOST, RuleList, RulesAtRunTime};
use crate::rules::{TableRules, moved};
use crate::time::timestamp::Timestamp;

impl<M: AsRef<[Line]>, S: BuildHasher> KeyedList<RulesAtRunTime, M, S> {
    /// Moves all keys to the table `to`, which has other limits, while other threads take permits
    /// from either. Returns the number of entries that it could not move yet, because another
    /// thread was claiming them at that moment: call it again until it returns 0.
    ///
    /// For each limit of `to`, `before` returns the index of the limit of this table whose state it
    /// takes over. With `None`, or if that limit is of another kind, the new limit starts with all
    /// its permits. [`Keyed::move_to`](crate::Keyed::move_to) says what moves from one limit to the
    /// other, and how to take permits in the meantime. The tables may differ in the number of
    /// limits.
    ///
    /// `to` must have been created with the same hasher, and with lines for as many keys, all of
    /// them [closed](Line::closed).
    ///
    /// If a take is not granted because its key moves, the permits that it had taken from some of
    /// the limits may come back by time.
    ///
    /// # Panics
    ///
    /// If the tables differ in the number of groups of lines, or if permits of a limit come back by
    /// release: a release would not find the key's entry.
    ///
    /// # Cost
    ///
    /// Reads and writes both tables. Makes no other call wait.
    ///
    /// ```
    /// use core::time::Duration;
    /// use portcullis_core::{KeyedList, Rate, Timestamp};
    /// use portcullis_core::keyed::{
    ///    AnyRules, FixedWindowRules, Line, RulesAtRunTime, Seed, TokenBucketRules,
    /// };
    ///
    /// let minute = Duration::from_secs(60);
    /// let bucket = |burst| AnyRules::from(TokenBucketRules::new(Rate::per_second(1), burst));
    /// let window = |limit| AnyRules::from(FixedWindowRules::new(limit, minute));
    /// let lines = |line: fn() -> Line| (0..64).map(|_| line()).collect::<Vec<_>>();
    ///
    /// let rules = RulesAtRunTime::new([bucket(10), window(100)])?;
    /// let before = KeyedList::new(rules, lines(Line::new), Seed::new());
    /// let (alice, now) = (before.key("alice"), Timestamp::from_secs(9));
    /// assert!(alice.try_acquire_each_at(now, 4).is_ok());
    ///
    /// // The window comes first now, and the bucket has a larger burst.
    /// let rules = RulesAtRunTime::new([window(100), bucket(20)])?;
    /// let after = KeyedList::new(rules, lines(Line::closed), Seed::new());
    /// assert_eq!(before.move_to(&after, now, |limit| Some(1 - limit)), 0);
    /// assert!(alice.try_acquire_each_at(now, 1).is_err() && before.has_moved(alice.address()));
    /// let alice = after.key("alice");
    /// let left = alice.explain_each_at(now, 1).map(|detail| detail.available);
    /// assert!(left.eq([96, 16]));
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub fn move_to<N: AsRef<[Line]>, T: BuildHasher>(
        &self,
        to: &KeyedList<RulesAtRunTime, N, T>,
        now: Timestamp,
        before: impl Fn(usize) -> Option<usize>,
    ) -> usize {
        assert!(
            !self.rules.releases() && !to.rules.releases(),
            "a release would not find the key's entry"
        );
        let (from, into) = (self.table.lines(), to.table.lines());
        assert_eq!(
            self.width().groups(from.len()),
            to.width().groups(into.len()),
            "the tables differ in their numbers of groups of lines"
        );
        line::entries_from(from, 0, self.width())
            .zip(line::entries_from(into, 0, to.width()))
            .filter(|(old, new)| {
                self.settle_at(old.at, now);
                to.settle_at(new.at, now);
                let convert = |lead| self.convert(to, (old.at, lead), now, &before);
                !old.move_to(*new, |_| false, convert)
            })
            .count()
    }

    /// Stores the words of an entry of `to` after its lead, and returns the state of the lead.
    fn convert<N: AsRef<[Line]>, T: BuildHasher>(
        &self,
        to: &KeyedList<RulesAtRunTime, N, T>,
        (at, lead): (usize, Held),
        now: Timestamp,
        before: impl Fn(usize) -> Option<usize>,
    ) -> u64 {
        let from = line::words(self.table.lines(), at, self.width());
        let into = line::words(to.table.lines(), at, to.width());
        let states: [Option<u64>; MOST] = array::from_fn(|limit| {
            if limit == self.lead() {
                return Some(lead.state());
            }
            let exhausted = || Some(Held::new(lead.tag(), self.exhausted(limit, now)?));
            let word = self.word(from, limit)?.close(exhausted)?;
            (word.tag() == lead.tag()).then_some(word.state())
        });
        let times = (now, to.table.since(now));
        let state_of = |limit| {
            let rules = to.rules.nth(limit)?;
            let state = before(limit).and_then(|old| {
                let state = *states.get(old)?;
                Some(moved(self.rules.nth(old)?, rules, state?, times))
            });
            Some(state.unwrap_or_else(|| rules.fresh(now)))
        };
        for limit in to.order().filter(|&limit| limit != to.lead()) {
            if let (Some(word), Some(state)) = (to.word(into, limit), state_of(limit)) {
                word.hold_as(lead.tag(), state);
            }
        }
        state_of(to.lead()).unwrap_or_default()
    }
}

impl<L: RuleList, M: AsRef<[Line]>, S: BuildHasher> KeyedList<L, M, S> {
    /// Copies the state of the key `from` to the key `into` of the table `to`, which has the same
    /// limits and has no slot for `into` yet. Returns whether there was a state, and room for it. A
    /// key without a state has all its permits.
    ///
    /// For a key that gets limits of its own: no other call may use `to` yet. Takes of `from` that
    /// run at the same time may be missing in the copy. If another thread stops while it claims
    /// the entry of `from`, or settles it after a long idle time, the copy has fewer permits.
    ///
    /// # Cost
    ///
    /// Reads and writes one entry. Makes no other call wait.
    ///
    /// ```
    /// # use portcullis_core::{KeyedList, Rate, Timestamp};
    /// # use portcullis_core::keyed::TokenBucketRules;
    /// let rules = [TokenBucketRules::new(Rate::per_second(1), 10); 2];
    /// let (all, one) = (KeyedList::for_keys(rules, 100), KeyedList::for_keys(rules, 1));
    /// let (alice, now) = (all.key("alice"), Timestamp::from_secs(9));
    /// assert!(alice.try_acquire_each_at(now, 4).is_ok());
    /// assert!(all.copy_key_to(alice.address(), &one, one.key("alice").address(), now));
    /// assert_eq!(one.key("alice").explain_each_at(now, 1).next().unwrap().available, 6);
    /// ```
    pub fn copy_key_to<N: AsRef<[Line]>, T: BuildHasher>(
        &self,
        from: Address,
        to: &KeyedList<L, N, T>,
        into: Address,
        now: Timestamp,
    ) -> bool {
        let (lines, width, tag) = (self.table.lines(), self.width(), from.tag());
        let entry = match from.search(lines, width) {
            Found::Held(entry, _) => Some(entry),
            Found::Claimed => from.find_if(lines, width, |_| true),
            Found::Nothing => None,
        };
        let Some(entry) = entry else {
            return false;
        };
        self.settle_at(entry.at, now);
        let words = line::words(lines, entry.at, width);
        let since = to.table.since(now);
        // The lead comes first: all grants that it contains are in the other words.
        let lead = entry.held_when_settled(tag).map(Held::state);
        if lead.is_none() && !entry.is_for(tag) {
            return false;
        }
        let states: [Option<u64>; MOST] = array::from_fn(|limit| {
            let held = if limit == self.lead() {
                lead
            } else {
                let word = self.word(words, limit)?;
                word.held_when_settled(tag).map(Held::state)
            };
            let state = held.or_else(|| self.exhausted(limit, now))?;
            // A limiter at rest: as if the other line had been settled, which has a clock of its
            // own.
            let has_rested = self.rules.has_rested(limit, state, None, now, since);
            Some(if has_rested {
                self.rules.rested(limit, now, since)
            } else {
                state
            })
        });
        let vacant = |_: usize, held: Option<Held>| held.is_none();
        let shape = (to.width(), to.table.claims);
        let settle = |at| to.settle_at(at, now);
        let claim = into.claim(to.table.lines(), shape, settle, vacant);
        let Claim::Made(claimed, _) = claim else {
            return false;
        };
        let words = line::words(to.table.lines(), claimed.entry.at, to.width());
        let state = |limit: usize| states.get(limit).copied().flatten().unwrap_or_default();
        for limit in to.order().filter(|&limit| limit != to.lead()) {
            if let Some(word) = to.word(words, limit) {
                word.hold_as(into.tag(), state(limit));
            }
        }
        claimed.hold(state(to.lead()))
    }

    /// The state in which a limit has no permits at `now`, for a word whose state is not known.
    fn exhausted(&self, limit: usize, now: Timestamp) -> Option<u64> {
        let rules = self.rules.get(limit)?;
        let (state, _) = rules.charge(rules.fresh(now), now, u32::MAX, 0);
        Some(state)
    }

    /// Returns whether the key with this address has moved to another table: see
    /// [`move_to`](KeyedList::move_to). Once it returns `true`, it always does.
    ///
    /// # Cost
    ///
    /// Reads the leads of two groups of lines.
    ///
    /// ```
    /// # use portcullis_core::{KeyedList, Rate};
    /// # use portcullis_core::keyed::TokenBucketRules;
    /// let rules = [TokenBucketRules::new(Rate::per_second(1), 10); 2];
    /// let table = KeyedList::for_keys(rules, 100);
    /// assert!(!table.has_moved(table.key("alice").address()));
    /// ```
    pub fn has_moved(&self, key: Address) -> bool {
        key.has_moved(self.table.lines(), self.width())
    }
}
