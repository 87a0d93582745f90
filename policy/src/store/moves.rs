//! How the state of a rule goes on when its limits change.
//!
//! The tables of the old and of the new policy have the same hasher and the same number of lines,
//! so a key has the same address in both. For each limit, one of these:
//!
//! | the limit | what the new table has |
//! |---|---|
//! | does not change | the same lines (and limiters) |
//! | of permits at once | the same lines. Each policy compares the permits in use with its own limit |
//! | a sliding window whose count changes | the same limiters. Their limit is set |
//! | a token bucket or another window | lines of its own, to which the keys [move](Keyed::move_to) |
//!
//! While keys move, and afterward, decisions by the old policy go on: there may be some that began
//! before the change. A limit of the old policy whose key has moved answers [`Denied::Crowded`].
//! Then the decision takes from the table that the key has moved to, so it counts there.
//!
//! ```text
//! policy       table        moves, one for all tables of a limit
//! oldest  ---> all moved ---+
//! old     ---> moving ------+---> Moved { table: the old one, next: the new one }
//! new     ---> (filling) ---+
//! ```
//!
//! `Moved` names at most two tables, so a decision that holds an old policy for long does not keep
//! all tables since. A key that has moved from the table of the decision is in the first of them
//! that it has not moved from.

use core::array;
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use portcullis_core::{
    Address, ConcurrencyRules, CooldownWindow, Denied, FixedWindow, FixedWindowRules, Keyed,
    KeyedArray, KeyedRules, Line, Rate, Timestamp, TokenBucket,
};

use super::{
    Limiters, Lines, Store, StoreDenied, Table, Words, limiters, lines_for, no_refunds, sliding,
    words,
};
use crate::Limit;
use crate::limit::{Compiled, tick_of};
use crate::rule::MAX_LIMITS;

/// Where the keys of a limit have moved. Set at the first move.
pub(super) type Moves = Arc<OnceLock<ArcSwap<Moved>>>;

pub(super) struct Moved {
    table: Arc<Table>,
    /// Where the keys of `table` are moving.
    next: Option<Arc<Table>>,
}

/// How often a decision looks for a key that moves on and on. Each time it does, a change has been
/// completed in the meantime.
const ATTEMPTS: usize = 8;

fn closed(lines: usize) -> Lines {
    (0..lines).map(|_| Line::closed()).collect()
}

impl Table {
    /// A table for `limit` that goes on with the state of this one. `None` if there is no room for
    /// the limit.
    fn followed_by(&self, limit: &Limit, is_same: bool, is_held: bool) -> Option<Self> {
        if is_same {
            return Some(self.share());
        }
        Some(match (self, limit.compile().ok()?) {
            (Self::Bucket(table), Compiled::Bucket(mut rules)) => {
                let old = &table.rules()[0];
                // What is taken beyond a lower burst is owed. Where settlements charge a debt, only
                // up to that debt.
                let owed = (old.burst() + old.debt()).saturating_sub(rules.burst());
                if owed > rules.debt() && !is_held {
                    let rate = Rate::new(limit.count() as u32, limit.period()?);
                    let builder = TokenBucket::builder(rate, limit.capacity());
                    rules = builder.debt(owed).rules().unwrap_or(rules);
                }
                let (lines, hasher) = (closed(table.lines().len()), table.seed().clone());
                Self::Bucket(Keyed::new(rules, lines, hasher))
            }
            (Self::Window(table), Compiled::Window(mut rules)) => {
                // What is taken beyond a lower limit is counted.
                let most = table.rules()[0].max_limit();
                if most > rules.limit() {
                    let period = limit.period()?;
                    let mut builder = FixedWindow::builder(limit.count(), period).max_limit(most);
                    if rules.is_started_by_first_request() {
                        builder = builder.started_by_first_request().tick(tick_of(period));
                    }
                    rules = builder.rules().unwrap_or(rules);
                }
                let (lines, hasher) = (closed(table.lines().len()), table.seed().clone());
                Self::Window(Keyed::new(rules, lines, hasher))
            }
            (
                Self::Cooldown(table),
                Compiled::Cooldown {
                    count,
                    period,
                    wait,
                },
            ) => {
                let (lines, hasher) = (closed(table.lines().len()), table.seed().clone());
                Self::Cooldown(limiters(lines, hasher, || {
                    CooldownWindow::new(count, period, Some(wait))
                }))
            }
            (Self::AtOnce(table), Compiled::AtOnce(rules)) => {
                let (lines, hasher) = (Arc::clone(table.lines()), table.seed().clone());
                Self::AtOnce(Keyed::new(rules, lines, hasher))
            }
            (
                Self::Sliding(table),
                Compiled::Sliding {
                    count,
                    period,
                    segments,
                },
            ) if count <= table.fresh().max_limit() => {
                Self::Sliding(Box::new(again(table, sliding(count, period, segments))))
            }
            _ => return None,
        })
    }

    /// Another table with the same state and the same settings.
    fn share(&self) -> Self {
        match self {
            Self::Bucket(table) => Self::Bucket(same(table, table.rules()[0])),
            Self::Window(table) => Self::Window(same(table, table.rules()[0])),
            Self::AtOnce(table) => {
                let limit = table.rules()[0].limit();
                Self::AtOnce(same(table, ConcurrencyRules::new(limit)))
            }
            Self::Cooldown(table) => {
                let fresh = table.fresh();
                let (limit, period) = (fresh.limit(), fresh.period());
                let fresh = CooldownWindow::new(limit, period, fresh.wait());
                Self::Cooldown(again(table, fresh))
            }
            Self::Sliding(table) => {
                let fresh = table.fresh();
                let fresh = sliding(fresh.limit(), fresh.window(), fresh.segments());
                Self::Sliding(Box::new(again(table, fresh)))
            }
        }
    }

    fn has_moved(&self, at: Address) -> bool {
        match self {
            Self::Bucket(table) => table.has_moved(at),
            Self::Window(table) => table.has_moved(at),
            Self::Cooldown(table) => table.has_moved(at),
            Self::AtOnce(_) | Self::Sliding(_) => false,
        }
    }

    /// Hands the state over to the table `to`, which [follows](Self::followed_by) this one.
    fn hand_over(&self, to: &Self, moves: &Moves, now: Timestamp) {
        match (self, to) {
            (Self::Bucket(from), Self::Bucket(into))
                if !Arc::ptr_eq(from.lines(), into.lines()) =>
            {
                self.move_to(to, moves, || from.move_to(into, now));
            }
            (Self::Window(from), Self::Window(into))
                if !Arc::ptr_eq(from.lines(), into.lines()) =>
            {
                self.move_to(to, moves, || from.move_to(into, now));
            }
            (Self::Cooldown(from), Self::Cooldown(into))
                if !Arc::ptr_eq(from.lines(), into.lines()) =>
            {
                let carry = |new: &CooldownWindow, old: &_| new.go_on_from(old, now);
                self.move_to(to, moves, || from.move_to(into, carry));
            }
            (Self::Sliding(from), Self::Sliding(into)) => {
                let limit = into.fresh().limit();
                if limit != from.fresh().limit() {
                    let set = from.change_all(|window| window.set_limit(limit));
                    debug_assert!(set.is_ok(), "there was room for the limit");
                }
            }
            _ => {}
        }
    }

    fn move_to(&self, to: &Self, moves: &Moves, move_some: impl Fn() -> usize) {
        let moved = moves.get_or_init(|| {
            ArcSwap::from_pointee(Moved {
                table: Arc::new(self.share()),
                next: None,
            })
        });
        let (table, next) = (Arc::clone(&moved.load().table), Arc::new(to.share()));
        // Before the first key moves.
        moved.store(Arc::new(Moved {
            table,
            next: Some(Arc::clone(&next)),
        }));
        while move_some() > 0 {
            // A decision is claiming a slot.
            std::thread::yield_now();
        }
        moved.store(Arc::new(Moved {
            table: next,
            next: None,
        }));
    }
}

fn same<R: KeyedRules>(table: &Words<R>, rules: R) -> Words<R> {
    Keyed::new(rules, Arc::clone(table.lines()), table.seed().clone())
}

fn again<L>(table: &Limiters<L>, fresh: L) -> Limiters<L> {
    let (limiters, lines) = (Arc::clone(table.limiters()), Arc::clone(table.lines()));
    KeyedArray::new(fresh, limiters, lines, table.seed().clone())
}

/// For each new limit, the index of the old one whose state it goes on with: at most one each, and
/// those that have the most in common first.
fn pairs(old: &[Limit], new: &[Limit]) -> Vec<Option<usize>> {
    let mut pairs = vec![None; new.len()];
    for kinship in 0..=3 {
        for (at, limit) in new.iter().enumerate() {
            let is_free = |before: &usize| !pairs.contains(&Some(*before));
            if pairs[at].is_none() {
                let mut candidates = (0..old.len()).filter(is_free);
                pairs[at] = candidates.find(|&before| limit.kinship(&old[before]) == Some(kinship));
            }
        }
    }
    pairs
}

impl Store {
    /// The tables of a rule after a change of its limits from `old` to `new`, which were checked.
    /// The rule has the same key and the same number of keys. `keeps_penalty` if the penalty has
    /// not changed; `is_held` if permits can be returned by settlements.
    /// [`hand_over`](Self::hand_over) completes the change.
    pub(crate) fn followed_by(
        &self,
        (old, new): (&[Limit], &[Limit]),
        penalty: Option<FixedWindowRules>,
        (keeps_penalty, is_held): (bool, bool),
        keys: Option<usize>,
    ) -> Self {
        let hasher = self.hasher.clone();
        let lines = || lines_for(keys);
        let (mut tables, mut moves, mut refunds) = (Vec::new(), Vec::new(), Vec::new());
        for (limit, pair) in new.iter().zip(pairs(old, new)) {
            let followed = pair.and_then(|at| {
                let is_same = limit.kinship(&old[at]) == Some(0);
                let table = self.tables[at].followed_by(limit, is_same, is_held)?;
                // Tables with the same state need the same count of refunds.
                let counts = is_same.then(|| Arc::clone(&self.refunds[at]));
                Some((table, Arc::clone(&self.moves[at]), counts))
            });
            let (table, to, counts) = followed.unwrap_or_else(|| {
                let compiled = limit.compile().expect("the limits were checked");
                (
                    Table::new(compiled, &lines, &hasher),
                    Moves::default(),
                    None,
                )
            });
            refunds.push(match (&table, counts) {
                (Table::Bucket(_), Some(counts)) if !counts.is_empty() => counts,
                (Table::Bucket(_), _) if is_held => no_refunds(keys),
                _ => Arc::default(),
            });
            tables.push(table);
            moves.push(to);
        }
        let kept = self.penalty.as_ref().filter(|_| keeps_penalty);
        let penalty = penalty.map(|rules| match kept {
            Some(table) => same(table, rules),
            None => words(rules, lines(), hasher.clone()),
        });
        let releases = tables.iter().any(|table| matches!(table, Table::AtOnce(_)));
        Self {
            tables: tables.into(),
            moves: moves.into(),
            refunds: refunds.into(),
            penalty,
            hasher,
            releases,
            #[cfg(feature = "queue")]
            waits: super::waits::Waits::default(),
        }
    }

    /// Another store with the same state and the same settings, without its queue.
    #[cfg(feature = "queue")]
    pub(super) fn share(&self) -> Self {
        Self {
            tables: self.tables.iter().map(Table::share).collect(),
            moves: self.moves.clone(),
            penalty: self
                .penalty
                .as_ref()
                .map(|table| same(table, table.rules()[0])),
            hasher: self.hasher.clone(),
            refunds: self.refunds.clone(),
            releases: self.releases,
            waits: self.shared_waits(),
        }
    }

    /// The rules of the penalty.
    pub(crate) fn penalty(&self) -> Option<FixedWindowRules> {
        Some(self.penalty.as_ref()?.rules()[0])
    }

    /// Hands the state of this store over to the store `to`, which [follows](Self::followed_by) it.
    /// Decisions by either store may be under way.
    pub(crate) fn hand_over(&self, to: &Self, now: Timestamp) {
        for (table, moves) in self.tables.iter().zip(&self.moves) {
            let next = to.moves.iter().position(|next| Arc::ptr_eq(moves, next));
            if let Some(next) = next {
                table.hand_over(&to.tables[next], moves, now);
            }
        }
    }

    /// Whether the reason of a denial may be that a key has moved.
    #[inline]
    pub(super) fn may_have_moved(&self, by: StoreDenied) -> bool {
        matches!(by.denied, Denied::Crowded { .. })
            && by
                .limit
                .is_some_and(|limit| self.moves[limit].get().is_some())
    }

    /// The table to which a key has moved, or `None` if it has not moved from the store's own.
    pub(super) fn moved(&self, at: Address, limit: usize) -> Option<Arc<Table>> {
        let moves = self.moves[limit].get()?;
        if !self.tables[limit].has_moved(at) {
            return None;
        }
        let moved = moves.load();
        let table = match &moved.next {
            Some(next) if moved.table.has_moved(at) => next,
            _ => &moved.table,
        };
        Some(Arc::clone(table))
    }

    /// Takes `n` permits from each limit, or from none, in the tables that have the key's state.
    #[cold]
    #[inline(never)]
    pub(super) fn take_moved(
        &self,
        at: Address,
        now: Timestamp,
        n: u32,
        mut by: StoreDenied,
        is_final: bool,
    ) -> Result<(), StoreDenied> {
        for _ in 0..ATTEMPTS {
            if !self.may_have_moved(by) {
                break;
            }
            let moved: [_; MAX_LIMITS] = array::from_fn(|limit| {
                self.tables.get(limit)?;
                self.moved(at, limit)
            });
            let taken = self.take_from(at, now, n, is_final, |limit| match &moved[limit] {
                Some(table) => table.key(at),
                None => self.tables[limit].key(at),
            });
            match taken {
                Ok(()) => return Ok(()),
                Err(denied) => by = denied,
            }
        }
        Err(by)
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;
    use crate::key::KeyOf;
    use crate::{Key as RuleKey, PathRules, Request};

    fn stores() -> [(Store, Vec<Limit>); 3] {
        let limits = |burst| vec![Limit::per(1, Duration::from_hours(1)).burst(burst)];
        let [a, b, c] = [10, 20, 30].map(limits);
        let first = Store::new(vec![a[0].compile().unwrap()], None, Some(100), false);
        let second = first.followed_by((&a, &b), None, (true, false), Some(100));
        let third = second.followed_by((&b, &c), None, (true, false), Some(100));
        [(first, a), (second, b), (third, c)]
    }

    /// A decision by the oldest of three stores, while keys begin to move to the newest.
    #[test]
    fn a_key_is_in_the_first_table_that_it_has_not_moved_from() {
        let [(first, _), (second, _), (third, _)] = stores();
        let now = Timestamp::from_secs(1);
        let key = RuleKey::path();
        let at = |path| {
            let request = Request::new("GET", path);
            let at = first.locate(&KeyOf::new(&key, &request, PathRules::new()));
            at.unwrap()
        };
        let (old, new) = (at("/old"), at("/new"));
        assert!(first.take(old, now, 3).is_ok());
        first.hand_over(&second, now);
        let moves = second.moves[0].get().unwrap();
        let moving = Moved {
            table: Arc::new(second.tables[0].share()),
            next: Some(Arc::new(third.tables[0].share())),
        };
        // No key has moved on yet.
        moves.store(Arc::new(moving));
        assert!(first.take(old, now, 4).is_ok() && first.take(new, now, 5).is_ok());
        let left = |store: &Store, at| store.detail(at, 0, now, 0).available;
        assert_eq!([&first, &second].map(|store| left(store, old)), [13; 2]);
        assert_eq!([&first, &second].map(|store| left(store, new)), [15; 2]);
        // All keys have, but the pointer has not been set yet.
        let (Table::Bucket(from), Table::Bucket(to)) = (&second.tables[0], &third.tables[0]) else {
            panic!("the limits are buckets")
        };
        assert_eq!(from.move_to(to, now), 0);
        assert!(first.take(old, now, 1).is_ok() && second.take(old, now, 1).is_ok());
        assert_eq!(
            [&first, &second, &third].map(|store| left(store, old)),
            [21; 3]
        );
    }
}
