//! How the state of a rule goes on when its limits change.
//!
//! The tables of the old and of the new policy have the same hasher and the same number of lines,
//! so a key has the same address in both. For each limit, one of these:
//!
//! | the limit | what the new table has |
//! |---|---|
//! | does not change | the same lines (and limiters) |
//! | of permits at once | the same lines. Each policy compares the permits in use with its own limit |
//! | a sliding window with another count, for which there is room | the same limiters. Their limit is set |
//! | another sliding window, a window with a wait | lines of its own, to which the keys [move](KeyedArray::move_to) |
//!
//! The token buckets and the windows without a wait of a rule move together: their words share a
//! table, if there are several. If their number, their order or any of their settings changes, the
//! new policy has a table of its own for them, to which the keys [move](KeyedList::move_to). A
//! limit that goes on with another one takes its word along; one that starts again gets a fresh
//! word; the word of a limit that ends is left behind. If none of them goes on, no key moves.
//!
//! While keys move, and afterward, decisions by the old policy go on: there may be some that began
//! before the change. A limit of the old policy whose key has moved answers [`Denied::Crowded`].
//! Then the decision takes from the table that the key has moved to, so it counts there. It takes
//! from all limits of that table. If one denies that the old policy does not have, the key is
//! denied as one that moves at this moment: [`Denied::Crowded`]. A limit that has ended denies no
//! more.
//!
//! ```text
//! policy       table        moves, one for all tables of the same limits
//! oldest  ---> all moved ---+
//! old     ---> moving ------+---> Moved { group: the old one, next: the new one }
//! new     ---> (filling) ---+
//! ```
//!
//! Invariant: *a change forgets no permit that is taken, so no later change grants it again.* A
//! limit that is lowered has room in its state for what is taken beyond it: a token bucket owes it,
//! up to a debt that its rules have for this, and that settlements do not use ([`Store::charge`]);
//! a window without a wait counts up to its largest limit; a sliding window has room to raise its
//! limit, and keeps it. A window with a wait has none: it denies until its end. Where a word cannot
//! have the room, a window counts as exhausted until its end, whatever limit follows.
//!
//! `Moved` names at most two tables, so a decision that holds an old policy for long does not keep
//! all tables since. A key that has moved from the table of the decision is in the first of them
//! that it has not moved from.

use core::array;
use std::hash::RandomState;
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use portcullis_core::keyed::{
    Address, AnyRules, ConcurrencyRules, FixedWindowRules, KeyedRules, Line, Refunds,
    RulesAtRunTime, TableKey, TokenBucketRules,
};
use portcullis_core::{
    CooldownWindow, Denied, FixedWindow, Keyed, KeyedArray, KeyedList, Limiter, LimiterExt,
    Timestamp,
};

use super::starts::{Start, Starts};
use super::tell::Tell;
use super::{
    Debts, KeyLimit, Limiters, Lines, Seat, Several, Sliding, Store, StoreDenied, Table, Words,
    closed, debts, has_start, limiters, lines_for, lines_of, most_in_use, no_refunds, releases,
    seats, sliding,
};
use crate::limit::{self, Limit};
use crate::limit::{Compiled, tick_of};
use crate::rule::MAX_LIMITS;

/// Where the keys of a table have moved. Set at the first move.
pub(super) type Moves = Arc<OnceLock<ArcSwap<Moved>>>;

/// Two limits have the same if one goes on with the state of the other.
#[derive(Clone, Debug, Default)]
pub(super) struct Id(Arc<()>);

impl PartialEq for Id {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

pub(super) struct Moved {
    group: Arc<Group>,
    /// Where the keys of `group` are moving.
    next: Option<Arc<Group>>,
}

/// A table, and its limits.
pub(super) struct Group {
    pub(super) table: Table,
    ids: Box<[Id]>,
    /// How many permits settlements may owe of each limit.
    pub(super) debts: Debts,
}

impl Group {
    /// The index of a limit in the table.
    pub(super) fn nth(&self, id: &Id) -> Option<usize> {
        self.ids.iter().position(|own| own == id)
    }
}

/// How often a decision looks for a key that moves on and on. Each time it does, a change has been
/// completed in the meantime.
const ATTEMPTS: usize = 8;

/// Lines that take no key until keys move to them, so that no decision by the new policy creates a
/// key's state beside the one that is about to arrive.
fn closed_lines(lines: usize) -> Lines {
    (0..lines).map(|_| Line::closed()).collect()
}

impl Table {
    /// A table for `limit` that goes on with the state of this one. `None` if there is no room for
    /// the limit.
    fn followed_by(&self, limit: &Limit, is_same: bool) -> Option<Self> {
        if is_same {
            return Some(self.share());
        }
        Some(match (self, limit.compile().ok()?) {
            (
                Self::Cooldown(table),
                Compiled::Cooldown {
                    count,
                    period,
                    wait,
                },
            ) => {
                let window = || CooldownWindow::new(count, period, Some(wait));
                Self::Cooldown(limiters_on(
                    table,
                    Some(closed_lines(table.lines().len())),
                    window,
                ))
            }
            // The same words: permits in use return to them by release, from either policy.
            (Self::AtOnce(table), Compiled::AtOnce(rules)) => {
                Self::AtOnce(words_on(table, None, rules))
            }
            (Self::Sliding(table), Compiled::Sliding(settings)) => {
                let (fresh, most) = (table.fresh(), table.fresh().max_limit());
                // In place if the segments lie on the same grid: then no key has to move.
                let keeps = settings_of(fresh, settings.count) == settings;
                let lines =
                    (!keeps || settings.count > most).then(|| closed_lines(table.lines().len()));
                let window = || sliding(settings, most);
                Self::Sliding(Box::new(limiters_on(table, lines, window)))
            }
            _ => return None,
        })
    }

    /// Another table with the same state and the same settings.
    fn share(&self) -> Self {
        self.on(None)
    }

    /// A table with the same settings for one key, which has all its permits.
    fn alone(&self) -> Self {
        self.on(Some(lines_of(None, self.rules().len().max(1))))
    }

    /// A table with the same settings: with the same state, or on `fresh` lines, with none.
    fn on(&self, fresh: Option<Lines>) -> Self {
        match self {
            Self::Bucket(table) => Self::Bucket(words_on(table, fresh, *table.rules())),
            Self::Window(table) => Self::Window(words_on(table, fresh, *table.rules())),
            Self::AtOnce(table) => {
                let limit = table.rules().limit();
                Self::AtOnce(words_on(table, fresh, ConcurrencyRules::new(limit)))
            }
            Self::Cooldown(table) => {
                let old = table.fresh();
                let (limit, period, wait) = (old.limit(), old.period(), old.wait());
                let window = || CooldownWindow::new(limit, period, wait);
                Self::Cooldown(limiters_on(table, fresh, window))
            }
            Self::Sliding(table) => {
                let old = table.fresh();
                let (limit, most) = (old.limit(), old.max_limit());
                let window = || sliding(settings_of(old, limit), most);
                Self::Sliding(Box::new(limiters_on(table, fresh, window)))
            }
            Self::Several(table) => {
                let lines = fresh.unwrap_or_else(|| Arc::clone(table.lines()));
                Self::several(self.rules(), lines, table.seed())
            }
        }
    }

    /// Copies the state of a key to the only key of a table that is [alone](Self::alone). Permits
    /// at once return by release, which finds only the table that they were taken from: they stay
    /// there.
    fn copy_key(&self, from: Address, to: &Self, (into, now): (Address, Timestamp)) {
        match (self, to) {
            (Self::Cooldown(table), Self::Cooldown(to)) => {
                if let Some(old) = table.limiter_at(from)
                    // A take claims the slot.
                    && TableKey::at(to, into).take_at(now, 1).is_ok()
                    && let Some(new) = to.limiter_at(into)
                {
                    new.go_on_from(old, now);
                }
            }
            (Self::Sliding(table), Self::Sliding(to)) => {
                // Of an idle window nothing is to be copied, and a take would count.
                if let Some(old) = table.limiter_at(from)
                    && old.taken_at(now) > 0
                    && TableKey::at(&**to, into).take_at(now, 1).is_ok()
                    && let Some(new) = to.limiter_at(into)
                {
                    carry_sliding(new, old, now);
                }
            }
            _ => {
                // Any hasher will do: the key is found by its address.
                let hasher = RandomState::new();
                if let (Some(from_table), Some(to)) =
                    (self.as_several(&hasher), to.as_several(&hasher))
                {
                    from_table.copy_key_to(from, &to, into, now);
                }
            }
        }
    }

    /// The rules of the token buckets and windows of this table, in order.
    fn rules(&self) -> Vec<AnyRules> {
        match self {
            Self::Bucket(table) => vec![(*table.rules()).into()],
            Self::Window(table) => vec![(*table.rules()).into()],
            Self::Several(table) => table.rules().iter().filter_map(copied).collect(),
            Self::AtOnce(_) | Self::Cooldown(_) | Self::Sliding(_) => Vec::new(),
        }
    }

    /// A table for token buckets and windows, at least one. It has these lines.
    fn of_rules(rules: Vec<AnyRules>, lines: Lines, hasher: &RandomState) -> Self {
        match *rules {
            [AnyRules::TokenBucket(rules)] => {
                Self::Bucket(Keyed::new(rules, lines, hasher.clone()))
            }
            [AnyRules::FixedWindow(rules)] => {
                Self::Window(Keyed::new(rules, lines, hasher.clone()))
            }
            _ => Self::several(rules, lines, hasher),
        }
    }

    /// The lines of a table of token buckets and windows.
    fn lines(&self) -> Option<&Lines> {
        match self {
            Self::Bucket(table) => Some(table.lines()),
            Self::Window(table) => Some(table.lines()),
            Self::Several(table) => Some(table.lines()),
            Self::AtOnce(_) | Self::Cooldown(_) | Self::Sliding(_) => None,
        }
    }

    /// A table of token buckets and windows, as one of several. It has the same state.
    fn as_several(&self, hasher: &RandomState) -> Option<Several> {
        let rules = RulesAtRunTime::new(self.rules()).ok()?;
        Some(KeyedList::new(
            rules,
            Arc::clone(self.lines()?),
            hasher.clone(),
        ))
    }

    fn has_moved(&self, at: Address) -> bool {
        match self {
            Self::Bucket(table) => table.has_moved(at),
            Self::Window(table) => table.has_moved(at),
            Self::Cooldown(table) => table.has_moved(at),
            Self::Several(table) => table.has_moved(at),
            Self::Sliding(table) => table.has_moved(at),
            // Its state never moves: see `followed_by`.
            Self::AtOnce(_) => false,
        }
    }
}

/// The rules of a token bucket or a window.
fn copied(rules: &AnyRules) -> Option<AnyRules> {
    match rules {
        AnyRules::TokenBucket(rules) => Some((*rules).into()),
        AnyRules::FixedWindow(rules) => Some((*rules).into()),
        _ => None,
    }
}

/// The rules of `limit`, which goes on with the state of a limit with the rules `old`.
fn followed_by(old: &AnyRules, limit: &Limit, is_same: bool, most: u64) -> Option<AnyRules> {
    if is_same {
        return copied(old);
    }
    match (old, limit.compile().ok()?) {
        (AnyRules::TokenBucket(old), Compiled::Bucket(rules)) => {
            Some(bucket_after(old, rules, limit, most).into())
        }
        (AnyRules::FixedWindow(old), Compiled::Window(rules)) => {
            Some(window_after(old, rules, limit)?.into())
        }
        _ => None,
    }
}

/// The rules of a token bucket that owes what is taken beyond a lower burst: up to `most` permits
/// can be in use.
fn bucket_after(
    old: &TokenBucketRules,
    rules: TokenBucketRules,
    limit: &Limit,
    most: u64,
) -> TokenBucketRules {
    // Without this debt, what is taken beyond the burst would be forgotten, and a later change that
    // raises the burst would grant it again.
    let owed = most.saturating_sub(rules.burst()).max(rules.debt());
    limit.bucket_owing(owed, old.timing().tick).unwrap_or(rules)
}

/// The rules of a window that counts what is taken beyond a lower limit.
fn window_after(
    old: &FixedWindowRules,
    rules: FixedWindowRules,
    limit: &Limit,
) -> Option<FixedWindowRules> {
    // More than can be taken, so that a count that the word has no room for is told from one that
    // is just the largest limit.
    let most = old.max_limit().max(old.limit() + 1);
    if most <= rules.max_limit() || old.max_limit() <= rules.limit() {
        return Some(rules);
    }
    let period = limit.period()?;
    let with_room = |most: u64| {
        let mut builder = FixedWindow::builder(rules.limit(), period).max_limit(most);
        if rules.is_started_by_first_request() {
            builder = builder.started_by_first_request().tick(tick_of(period));
        }
        builder.rules().ok()
    };
    // If there is no room, the window counts as far as it can, and as exhausted from there on.
    let room = (0..64).find_map(|half| with_room(most >> half));
    Some(room.unwrap_or(rules))
}

/// The settings of a window, with another limit.
fn settings_of(window: &Sliding, count: u64) -> limit::Sliding {
    limit::Sliding {
        count,
        period: window.window(),
        segments: window.segments(),
        is_strict: window.is_strict(),
    }
}

/// Counts in `new` at `now` what is taken in the present window of `old`, also beyond the limits.
/// No other call works on `new`.
fn carry_sliding(new: &Sliding, old: &Sliding, now: Timestamp) {
    let (limit, most) = (new.limit(), new.max_limit());
    let set = new.set_limit(most);
    debug_assert!(set.is_ok(), "there is room for the largest limit");
    let taken = old.taken_at(now).min(most);
    let mut taken = taken.saturating_sub(new.taken_at(now));
    // A take is of a `u32`, and a window counts more.
    while taken > 0 {
        let n = u32::try_from(taken).unwrap_or(u32::MAX);
        if new.take_at(now, n).is_err() {
            break;
        }
        taken -= u64::from(n);
    }
    // It was this limit before, so there is room for it.
    let _ = new.set_limit(limit);
}

/// A table with `rules`: with the state of `table`, or on `fresh` lines.
fn words_on<R: KeyedRules>(table: &Words<R>, fresh: Option<Lines>, rules: R) -> Words<R> {
    let lines = fresh.unwrap_or_else(|| Arc::clone(table.lines()));
    Keyed::new(rules, lines, table.seed().clone())
}

/// A table of such limiters: with those of `table`, or with new ones on `fresh` lines.
fn limiters_on<L>(
    table: &Limiters<L>,
    fresh: Option<Lines>,
    limiter: impl Fn() -> L,
) -> Limiters<L> {
    let hasher = table.seed().clone();
    if let Some(lines) = fresh {
        return limiters(lines, hasher, limiter);
    }
    let (limiters, lines) = (Arc::clone(table.limiters()), Arc::clone(table.lines()));
    KeyedArray::new(limiter(), limiters, lines, hasher)
}

/// For each new limit, the index of the old one whose state it goes on with: at most one each, and
/// those that have the most in common first.
fn pairs(old: &[Limit], new: &[Limit]) -> Vec<Option<usize>> {
    let mut pairs = vec![None; new.len()];
    // By kinship first, so that a distant limit never takes the state of a close one.
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

/// The limit before whose state a limit goes on with.
#[derive(Clone, Copy)]
struct Pair {
    before: usize,
    /// Whether the settings are the same.
    is_same: bool,
}

impl Pair {
    /// For each new limit, the one whose state it goes on with.
    fn all(old: &[Limit], new: &[Limit]) -> Vec<Option<Self>> {
        let pair = |(before, limit): (Option<usize>, &Limit)| {
            before.map(|before| Self {
                before,
                is_same: limit.kinship(&old[before]) == Some(0),
            })
        };
        pairs(old, new).into_iter().zip(new).map(pair).collect()
    }
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
        let compiled: Vec<Compiled> = new
            .iter()
            .map(|limit| limit.compile().expect("the limits were checked"))
            .collect();
        let mut pairs = Pair::all(old, new);
        // A limit that goes on begins with the one before, at the latest at this change. Only a
        // store of one key has limits with a start.
        let starts = Start::all(pairs.iter().zip(new).map(|(pair, limit)| match pair {
            Some(pair) => self.starts.get(pair.before)?.clone(),
            None => Start::of(limit),
        }));
        let seats = seats(&compiled, &starts);
        let refunds = compiled.iter().zip(&pairs);
        let refunds = refunds.map(|(compiled, pair)| match compiled {
            Compiled::Bucket(_) => self.counts_for(*pair, is_held, keys),
            _ => Arc::default(),
        });
        let refunds = refunds.collect();
        // Before the ids: a limit that starts again has no pair from here on.
        let tables = self.tables_for((compiled, new), &starts, &seats, &mut pairs, keys);
        let (tables, moves): (Vec<_>, Vec<_>) = tables.into_iter().unzip();
        let ids = pairs.iter().map(|pair| match pair {
            Some(pair) => self.ids[pair.before].clone(),
            None => Id::default(),
        });
        let kept = self.penalty.as_ref().filter(|_| keeps_penalty);
        let penalty = penalty.map(|rules| match kept {
            Some(table) => words_on(table, None, rules),
            None => Keyed::new(rules, lines_for(keys), self.hasher.clone()),
        });
        // What was taken under a higher limit stays taken, so the most in use only grows.
        let most = pairs.iter().zip(most_in_use(new));
        let most =
            most.map(|(pair, most)| pair.map_or(most, |pair| most.max(self.most[pair.before])));
        Self {
            ids: ids.collect(),
            debts: debts(new),
            most: most.collect(),
            releases: releases(&tables),
            tables: tables.into(),
            seats,
            moves: moves.into(),
            refunds,
            is_guarded: penalty.is_some() || !starts.is_empty() || closed(new) != 0,
            closed: closed(new),
            penalty,
            starts,
            hasher: self.hasher.clone(),
            #[cfg(feature = "queue")]
            waits: super::waits::Waits::default(),
        }
    }

    /// The tables of limits after a change, in the order of their seats, each with where the keys
    /// of the table before have moved. A limit that starts again loses its pair.
    fn tables_for(
        &self,
        (compiled, limits): (Vec<Compiled>, &[Limit]),
        starts: &Starts,
        seats: &[Seat],
        pairs: &mut [Option<Pair>],
        keys: Option<usize>,
    ) -> Vec<(Table, Moves)> {
        let mut tables: Vec<(usize, (Table, Moves))> = Vec::new();
        // Token buckets and windows, which share a table if they are several.
        let mut rules = Vec::new();
        for (at, compiled) in compiled.into_iter().enumerate() {
            let (limit, pair, table) = (&limits[at], &mut pairs[at], seats[at].table);
            match compiled {
                // A limit that starts with fewer permits shares no table: its start is a take from
                // it alone.
                Compiled::Bucket(bucket) if has_start(starts, at) => {
                    let rules = self.rules_for(bucket.into(), limit, pair);
                    let before = pair.map(|pair| self.seats[pair.before].table);
                    tables.push((table, self.words_for(vec![rules], &[*pair], before, keys)));
                }
                Compiled::Bucket(bucket) => {
                    rules.push(self.rules_for(bucket.into(), limit, pair));
                }
                Compiled::Window(window) => {
                    rules.push(self.rules_for(window.into(), limit, pair));
                }
                own => tables.push((table, self.table_for(own, limit, pair, keys))),
            }
        }
        // The limits that are not in `tables` are those of `rules`, in the same order.
        let is_own = |seat: &Seat| tables.iter().any(|(table, _)| *table == seat.table);
        if let Some(seat) = seats.iter().find(|seat| !is_own(seat)) {
            let of_rules = seats.iter().zip(&*pairs).filter(|(seat, _)| !is_own(seat));
            let pairs: Vec<Option<Pair>> = of_rules.map(|(_, pair)| *pair).collect();
            // Before the change, too, all of them were in one table.
            let before = pairs.iter().flatten().next();
            let before = before.map(|pair| self.seats[pair.before].table);
            tables.push((seat.table, self.words_for(rules, &pairs, before, keys)));
        }
        tables.sort_by_key(|(index, _)| *index);
        tables.into_iter().map(|(_, table)| table).collect()
    }

    /// A store for one key, which has all its permits, with the limits that this store has. There
    /// is no penalty.
    pub(crate) fn alone(&self) -> Self {
        Self {
            tables: self.tables.iter().map(Table::alone).collect(),
            moves: self.moves.iter().map(|_| Moves::default()).collect(),
            ids: self.ids.iter().map(|_| Id::default()).collect(),
            refunds: self.refunds.iter().map(|_| Arc::default()).collect(),
            penalty: None,
            starts: Starts::default(),
            closed: 0,
            is_guarded: false,
            ..self.share()
        }
    }

    /// Copies the state of a key to a store that is [alone](Self::alone), and that no decision uses
    /// yet. Decisions by this store that are under way may be missing in the copy.
    pub(crate) fn copy_key(&self, from: Address, to: &Self, now: Timestamp) {
        if let Some(into) = to.locate_shared() {
            for (table, to) in self.tables.iter().zip(&to.tables) {
                table.copy_key(from, to, (into, now));
            }
        }
    }

    /// Whether the only key has all its permits and no penalty, so that nothing is lost without it.
    pub(crate) fn is_idle(&self, at: Address, now: Timestamp) -> bool {
        let is_idle = |table: &Table| table.key(at).idle_at(now).is_idle();
        self.tables.iter().all(is_idle) && !self.is_penalized(at, now)
    }

    /// Another store with the same state and the same settings, without its queue.
    pub(super) fn share(&self) -> Self {
        Self {
            tables: self.tables.iter().map(Table::share).collect(),
            seats: self.seats.clone(),
            debts: self.debts.clone(),
            most: self.most.clone(),
            ids: self.ids.clone(),
            moves: self.moves.clone(),
            penalty: self
                .penalty
                .as_ref()
                .map(|table| words_on(table, None, *table.rules())),
            starts: self.starts.clone(),
            closed: self.closed,
            is_guarded: self.is_guarded,
            hasher: self.hasher.clone(),
            refunds: self.refunds.clone(),
            releases: self.releases,
            #[cfg(feature = "queue")]
            waits: self.shared_waits(),
        }
    }

    /// The counts of the refunds of a token bucket. Tables with the same state need the same ones:
    /// also if the rule allows no holds any more, because there may be some of the policies before.
    fn counts_for(&self, pair: Option<Pair>, is_held: bool, keys: Option<usize>) -> Arc<[Refunds]> {
        // A limit that changed has other words, to which no refund of before returns.
        let before = pair.filter(|pair| pair.is_same);
        match before.map(|pair| &self.refunds[pair.before]) {
            Some(counts) if !counts.is_empty() => Arc::clone(counts),
            _ if is_held => no_refunds(keys),
            _ => Arc::default(),
        }
    }

    /// The rules of a token bucket or a window, which are `rules` if it starts again. Then there is
    /// no `pair`.
    fn rules_for(&self, rules: AnyRules, limit: &Limit, pair: &mut Option<Pair>) -> AnyRules {
        let followed = pair.and_then(|Pair { before, is_same }| {
            let Seat { table, nth } = self.seats[before];
            let old = self.tables[table].rules();
            followed_by(old.get(nth)?, limit, is_same, self.most[before])
        });
        if followed.is_none() {
            *pair = None;
        }
        followed.unwrap_or(rules)
    }

    /// The table of a limit that shares none. If the limit starts again, there is no `pair`.
    fn table_for(
        &self,
        compiled: Compiled,
        limit: &Limit,
        pair: &mut Option<Pair>,
        keys: Option<usize>,
    ) -> (Table, Moves) {
        let followed = pair.and_then(|Pair { before, is_same }| {
            let table = self.seats[before].table;
            let followed = self.tables[table].followed_by(limit, is_same)?;
            Some((followed, Arc::clone(&self.moves[table])))
        });
        if followed.is_none() {
            *pair = None;
        }
        followed.unwrap_or_else(|| {
            let table = Table::new(compiled, &|| lines_for(keys), &self.hasher);
            (table, Moves::default())
        })
    }

    /// The table of token buckets and windows that share it, or of one that does not, at least one.
    /// `before` is the table of those that go on. `None` if none of them does.
    fn words_for(
        &self,
        rules: Vec<AnyRules>,
        pairs: &[Option<Pair>],
        before: Option<usize>,
        keys: Option<usize>,
    ) -> (Table, Moves) {
        let old = before.and_then(|before| {
            let table = &self.tables[before];
            Some((table, table.lines()?, &self.moves[before]))
        });
        let Some((table, lines, moves)) = old else {
            let lines = lines_of(keys, rules.len());
            return (
                Table::of_rules(rules, lines, &self.hasher),
                Moves::default(),
            );
        };
        let count = table.rules().len();
        let mut all = (0..).zip(pairs);
        let is_same = count == rules.len()
            && all.all(|(nth, pair)| {
                pair.is_some_and(|pair| pair.is_same && self.seats[pair.before].nth == nth)
            });
        if is_same {
            return (table.share(), Arc::clone(moves));
        }
        // As many groups as before, so that a key has the same address in the new table.
        let groups = lines.len() / count.next_power_of_two();
        let lines = closed_lines(groups * rules.len().next_power_of_two());
        let table = Table::of_rules(rules, lines, &self.hasher);
        (table, Arc::clone(moves))
    }

    /// The rules of the penalty.
    pub(crate) fn penalty(&self) -> Option<FixedWindowRules> {
        Some(*self.penalty.as_ref()?.rules())
    }

    /// Hands the state of this store over to the store `to`, which [follows](Self::followed_by) it.
    /// Decisions by either store may be under way.
    pub(crate) fn hand_over(&self, to: &Self, now: Timestamp) {
        // A limit without a decision yet begins now: the new store would start it again.
        if !self.starts.is_empty()
            && let Some(at) = self.locate_shared()
        {
            self.begin(at, now);
        }
        for (index, moves) in self.moves.iter().enumerate() {
            let next = to.moves.iter().position(|next| Arc::ptr_eq(moves, next));
            // Tables without a common `moves` have no limit in common.
            if let Some(next) = next {
                self.hand_table_over(index, (to, next), now);
            }
        }
    }

    /// Hands the state of a table over to one of the store `to`.
    fn hand_table_over(&self, index: usize, (to, next): (&Self, usize), now: Timestamp) {
        match (&self.tables[index], &to.tables[next]) {
            (Table::Cooldown(from), Table::Cooldown(into)) => {
                if !Arc::ptr_eq(from.lines(), into.lines()) {
                    let carry = |new: &CooldownWindow, old: &_| new.go_on_from(old, now);
                    self.move_to(index, (to, next), || from.move_to(into, carry));
                }
            }
            (Table::Sliding(from), Table::Sliding(into)) => {
                let limit = into.fresh().limit();
                if !Arc::ptr_eq(from.lines(), into.lines()) {
                    let carry = |new: &_, old: &_| carry_sliding(new, old, now);
                    self.move_to(index, (to, next), || from.move_to(into, carry));
                } else if limit != from.fresh().limit() {
                    // The limiters are the same ones, so their limit is changed in place.
                    let set = from.change_all(|window| window.set_limit(limit));
                    debug_assert!(set.is_ok(), "there was room for the limit");
                }
            }
            (from, into) => {
                let (Some(old), Some(new)) = (from.lines(), into.lines()) else {
                    return;
                };
                if !Arc::ptr_eq(old, new)
                    && let Some(from) = from.as_several(&self.hasher)
                    && let Some(into) = into.as_several(&self.hasher)
                {
                    let (old, new) = (self.ids_of(index), to.ids_of(next));
                    let before = |nth: usize| old.iter().position(|id| Some(id) == new.get(nth));
                    self.move_to(index, (to, next), || from.move_to(&into, now, before));
                }
            }
        }
    }

    /// The limits of a table, in its order.
    fn ids_of(&self, table: usize) -> Box<[Id]> {
        let limits = self.seats.iter().zip(&self.ids);
        let limits = limits.filter(|(seat, _)| seat.table == table);
        limits.map(|(_, id)| id.clone()).collect()
    }

    fn group(&self, table: usize) -> Arc<Group> {
        Arc::new(Group {
            table: self.tables[table].share(),
            ids: self.ids_of(table),
            debts: self.debts_of(table),
        })
    }

    fn move_to(&self, index: usize, (to, next): (&Self, usize), move_some: impl Fn() -> usize) {
        let moved = self.moves[index].get_or_init(|| {
            ArcSwap::from_pointee(Moved {
                group: self.group(index),
                next: None,
            })
        });
        let (group, next) = (Arc::clone(&moved.load().group), to.group(next));
        // Before the first key moves, so that a decision that misses its key finds the next table.
        moved.store(Arc::new(Moved {
            group,
            next: Some(Arc::clone(&next)),
        }));
        // Until none is left behind: a key that stays would be granted its permits again.
        while move_some() > 0 {
            // A decision is claiming a slot, which takes it a few instructions.
            std::thread::yield_now();
        }
        moved.store(Arc::new(Moved {
            group: next,
            next: None,
        }));
    }

    /// Whether the reason of a denial may be that a key has moved.
    #[inline]
    pub(super) fn may_have_moved(&self, by: StoreDenied) -> bool {
        // A slot that its key has left answers `Crowded`, as a full table does. Only a table whose
        // keys have moved has the pointer, so a table that is just full costs no second take.
        matches!(by.denied, Denied::Crowded { .. })
            && by.limit.is_some_and(|limit| {
                let table = self.seats[limit].table;
                self.moves[table].get().is_some()
            })
    }

    /// The table to which a key has moved, or `None` if it has not moved from the store's own.
    pub(super) fn moved(&self, at: Address, table: usize) -> Option<Arc<Group>> {
        let moves = self.moves[table].get()?;
        if !self.tables[table].has_moved(at) {
            return None;
        }
        // Read after the look at the key, so that the pointer is not older than the move.
        let moved = moves.load();
        let group = match &moved.next {
            Some(next) if moved.group.table.has_moved(at) => next,
            _ => &moved.group,
        };
        Some(Arc::clone(group))
    }

    /// Whether the key has moved to a table that does not have the limit. Such a limit denies no
    /// more.
    pub(super) fn has_ended(&self, at: Address, limit: usize) -> bool {
        let moved = self.moved(at, self.seats[limit].table);
        moved.is_some_and(|group| group.nth(&self.ids[limit]).is_none())
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
            // Denied for another reason, in the table where the key is now.
            if !self.may_have_moved(by) {
                break;
            }
            let moved: [_; MAX_LIMITS] = array::from_fn(|table| {
                self.tables.get(table)?;
                self.moved(at, table)
            });
            let key = |table: usize| match &moved[table] {
                Some(group) => group.table.key(at),
                None => self.tables[table].key(at),
            };
            // The limits of the newer table may be others, and in another order.
            let limit = |table: usize, nth: usize| match &moved[table] {
                Some(group) => {
                    let id = group.ids.get(nth)?;
                    self.ids.iter().position(|own| own == id)
                }
                None => self.limit_at(table, nth),
            };
            if let Some(denied) = self.before_take(at, now, n) {
                by = denied;
                continue;
            }
            // Keys may have moved from the last table, or to another one that several limits share.
            let is_shared = |&table: &usize| matches!(key(table), KeyLimit::Several(_));
            let tables = ((0..self.tables.len()).rev().find(is_shared), key);
            match self.take_any(at, (now, n), Tell::Nothing, tables, limit) {
                Ok(()) => return Ok(()),
                Err(denied) => by = self.after_denial(at, now, denied, is_final),
            }
        }
        Err(by)
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;
    use crate::key::Key;
    use crate::key::KeyOf;
    use crate::path::PathRules;
    use crate::request::Request;

    fn stores() -> [(Store, Vec<Limit>); 3] {
        let limits = |burst| vec![Limit::per(1, Duration::from_hours(1)).burst(burst)];
        let [a, b, c] = [10, 20, 30].map(limits);
        let first = Store::new((vec![a[0].compile().unwrap()], &a), None, Some(100), false);
        let second = first.followed_by((&a, &b), None, (true, false), Some(100));
        let third = second.followed_by((&b, &c), None, (true, false), Some(100));
        [(first, a), (second, b), (third, c)]
    }

    /// A decision by the oldest of three stores, while keys begin to move to the newest.
    #[test]
    fn a_key_is_in_the_first_table_that_it_has_not_moved_from() {
        let [(first, _), (second, _), (third, _)] = stores();
        let now = Timestamp::from_secs(1);
        let key = Key::path();
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
            group: second.group(0),
            next: Some(third.group(0)),
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
