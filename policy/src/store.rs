//! The state of a rule: tables with a word or a limiter for each key.
//!
//! | limits of a rule | table |
//! |---|---|
//! | one token bucket, or one window without a wait | [`Keyed`]: a word for each key |
//! | several of these | one [`KeyedList`]: the words of a key lie side by side |
//! | permits at once | a [`Keyed`] for each limit |
//! | a sliding window, or a window with a wait | a [`KeyedArray`] for each limit |
//!
//! Permits at once have a table of their own because they return by release: a change of the other
//! limits moves the keys to another table, and a release finds the key's slot only in the table
//! that it was taken from. The state of a limiter in a `KeyedArray` is more than one word.
//!
//! All tables of a rule have the same hasher and the same number of lines, or of groups of lines.
//! So the address of a key is the same in each of them: a decision hashes the key once.
//!
//! The first limit that denies decides, in the order of the limits, and only it starts its wait, if
//! it has one. The table that several limits share is asked first, because its limits write nothing
//! when they deny. So if one of them denies, the limits before it with tables of their own are
//! asked next. All other tables are in the order of their limits. The shared table is taken from
//! last, because what was taken from it cannot be undone: if another limit denies after all,
//! because another thread has taken its permits in the meantime, nothing has been taken from it.
//!
//! A penalty is a window of one permit that the first denial opens and takes from. While it is
//! open, the key is denied.
//!
//! A table has a fixed size. All tables of limits and of penalties *fail closed*: a key for which
//! one of them has no room is denied with [`Denied::Crowded`], which statistics, metrics and events
//! count as such. A limit says which one it is; the penalty says none. The tables of
//! [thresholds](crate::thresholds) decide nothing, and *report*: a report of such a key returns
//! that it was not counted.

#[cfg(feature = "live")]
mod moves;
mod starts;
mod tell;
#[cfg(feature = "queue")]
pub(crate) mod waits;

use core::array;
use core::cell::Cell;
use core::time::Duration;
use std::hash::RandomState;
use std::sync::Arc;

use portcullis_core::keyed::{
    Address, AnyRules, ConcurrencyRules, FixedWindowRules, KeyHash, Line, RefundTime, Refunds,
    RulesAtRunTime, TableKey, TokenBucketRules,
};
use portcullis_core::limiter::{
    Answer, Ask, Back, Detail, Read, Reading, Receipt, Refund, Returned,
};
use portcullis_core::queue::Keys;
use portcullis_core::{
    CooldownWindow, Denied, FixedWindow, Keyed, KeyedArray, KeyedList, Limiter, LimiterExt, Retry,
    SettingsError, SlidingWindow, Timestamp,
};

use self::starts::{Start, Starts};
pub(crate) use self::tell::{Details, Explanation, Held, How};
use self::tell::{Tell, copy};
use crate::key::KeyOf;
use crate::limit::{self, Limit};
use crate::limit::{Compiled, MAX_SEGMENTS};
use crate::rule::MAX_LIMITS;

/// Lines and limiters are in an `Arc`, because the tables of two policies may have them in common.
type Lines = Arc<[Line]>;
pub(crate) type Words<R> = Keyed<R, Lines, RandomState>;
pub(crate) type Limiters<L> = KeyedArray<L, Arc<[L]>, Lines, RandomState>;
type Sliding = SlidingWindow<{ MAX_SEGMENTS as usize }>;
type Several = KeyedList<RulesAtRunTime, Lines, RandomState>;

/// The state of one limit, or of several.
enum Table {
    Bucket(Words<TokenBucketRules>),
    Window(Words<FixedWindowRules>),
    AtOnce(Words<ConcurrencyRules>),
    Cooldown(Limiters<CooldownWindow>),
    /// Boxed because it contains a limiter, which is large.
    Sliding(Box<Limiters<Sliding>>),
    /// Boxed because it contains the rules of eight limits.
    Several(Box<Several>),
}

/// The limiter of one key in a table.
enum KeyLimit<'t> {
    Bucket(TableKey<&'t Words<TokenBucketRules>>),
    Window(TableKey<&'t Words<FixedWindowRules>>),
    AtOnce(TableKey<&'t Words<ConcurrencyRules>>),
    Cooldown(TableKey<&'t Limiters<CooldownWindow>>),
    Sliding(TableKey<&'t Limiters<Sliding>>),
    Several(TableKey<&'t Several>),
}

/// Does the same with a table, or with a key, of each kind.
macro_rules! each {
    ($kinds:ident, $one:expr, $each:ident => $do:expr) => {
        match $one {
            $kinds::Bucket($each) => $do,
            $kinds::Window($each) => $do,
            $kinds::AtOnce($each) => $do,
            $kinds::Cooldown($each) => $do,
            $kinds::Sliding($each) => $do,
            $kinds::Several($each) => $do,
        }
    };
}

impl Limiter for KeyLimit<'_> {
    #[inline(always)]
    fn decide(&self, ask: Ask<'_>) -> Answer {
        each!(KeyLimit, self, key => key.decide(ask))
    }
    #[inline(always)]
    fn give_back(&self, back: Back<'_>) -> Returned {
        each!(KeyLimit, self, key => key.give_back(back))
    }
    fn read(&self, read: Read<'_>) -> Reading {
        each!(KeyLimit, self, key => key.read(read))
    }
    fn retry(&self, denied: Denied) -> Retry {
        each!(KeyLimit, self, key => key.retry(denied))
    }
}

impl KeyLimit<'_> {
    /// The detail of the limit with index `nth` in its table.
    fn explain_nth(&self, nth: usize, now: Timestamp, n: u32) -> Detail {
        match self {
            Self::Several(key) => key
                .explain_limit_at(nth, now, n)
                .unwrap_or_else(|| key.explain_at(now, n)),
            _ => self.explain_at(now, n),
        }
    }

    /// Whether the limit with index `nth` in its table would grant `n` permits.
    fn peek_nth(&self, nth: usize, now: Timestamp, n: u32) -> Result<(), Denied> {
        match self {
            Self::Several(_) => self.explain_nth(nth, now, n).decision,
            _ => self.peek_at(now, n),
        }
    }
}

/// The largest number of groups of keys whose refunds are counted apart.
const MOST_GROUPS: usize = 1 << 16;

impl Table {
    fn new(limit: Compiled, lines: &dyn Fn() -> Lines, hasher: &RandomState) -> Self {
        let hasher = hasher.clone();
        match limit {
            Compiled::Bucket(rules) => Self::Bucket(Keyed::new(rules, lines(), hasher)),
            Compiled::Window(rules) => Self::Window(Keyed::new(rules, lines(), hasher)),
            Compiled::AtOnce(rules) => Self::AtOnce(Keyed::new(rules, lines(), hasher)),
            Compiled::Cooldown {
                count,
                period,
                wait,
            } => Self::Cooldown(limiters(lines(), hasher, || {
                CooldownWindow::new(count, period, Some(wait))
            })),
            Compiled::Sliding(settings) => {
                let window = || sliding(settings, SLIDING_ROOM);
                Self::Sliding(Box::new(limiters(lines(), hasher, window)))
            }
        }
    }

    /// A table for several limits.
    fn several(
        rules: impl IntoIterator<Item = AnyRules>,
        lines: Lines,
        hasher: &RandomState,
    ) -> Self {
        let rules = RulesAtRunTime::new(rules).expect("a rule has at most 8 limits");
        Self::Several(Box::new(KeyedList::new(rules, lines, hasher.clone())))
    }

    #[inline]
    fn key(&self, at: Address) -> KeyLimit<'_> {
        match self {
            Self::Bucket(table) => KeyLimit::Bucket(TableKey::at(table, at)),
            Self::Window(table) => KeyLimit::Window(TableKey::at(table, at)),
            Self::AtOnce(table) => KeyLimit::AtOnce(TableKey::at(table, at)),
            Self::Cooldown(table) => KeyLimit::Cooldown(TableKey::at(table, at)),
            Self::Sliding(table) => KeyLimit::Sliding(TableKey::at(table, at)),
            Self::Several(table) => KeyLimit::Several(TableKey::at(table, at)),
        }
    }

    /// Takes up to `n` more permits of each limit. A token bucket may owe as many as `debts` says,
    /// in the order of the limits. Returns how many all limits could take.
    ///
    /// The rules of a bucket may allow a larger debt, for what was taken before its limit was
    /// lowered: see [`moves`].
    fn charge_key(&self, at: Address, now: Timestamp, n: u32, debts: &[u64]) -> u32 {
        match self {
            Self::Bucket(table) => {
                let debt = debts.first().copied().unwrap_or(0);
                table.charge_at(at, now, n, debt)
            }
            Self::Several(table) => {
                let charged = table.charge_each_at(at, now, n, debts);
                let limits = table.rules().iter().count();
                charged.into_iter().take(limits).min().unwrap_or(n)
            }
            _ if n == 0 => 0,
            _ => match self.key(at).try_acquire_between_at(now, 1, n) {
                Ok(lease) => lease.forget(),
                Err(_) => 0,
            },
        }
    }

    #[inline]
    fn locate(&self, key: &KeyOf<'_>) -> Address {
        each!(Table, self, table => table.key(key).address())
    }

    #[inline]
    fn locate_hashed(&self, hash: KeyHash) -> Address {
        each!(Table, self, table => table.locate(hash))
    }
}

/// A table of limiters: eight for each line.
pub(crate) fn limiters<L>(
    lines: Lines,
    hasher: RandomState,
    limiter: impl Fn() -> L,
) -> Limiters<L> {
    let limiters = (0..8 * lines.len()).map(|_| limiter()).collect();
    KeyedArray::new(limiter(), limiters, lines, hasher)
}

/// The largest limit of a sliding window for which there is room, so that a change can raise it.
const SLIDING_ROOM: u64 = 1 << 24;

/// A sliding window with settings that were checked, and room for a limit of `most`.
fn sliding(settings: limit::Sliding, most: u64) -> Sliding {
    let builder = settings.builder();
    let roomy = builder.max_limit(settings.count.max(most)).build();
    // If the segments are short, there may be no room.
    let window = roomy.or_else(|_| settings.builder().build());
    window.expect("the settings were checked")
}

/// Lines for `keys` keys, or for the one key that all requests share.
pub(crate) fn lines_for(keys: Option<usize>) -> Lines {
    lines_of(keys, 1)
}

/// As [`lines_for`], with room for this number of limits for each key.
fn lines_of(keys: Option<usize>, limits: usize) -> Lines {
    Line::for_keys_of(keys.unwrap_or(1), limits).into()
}

/// The limits of 0, a bit for each.
fn closed(limits: &[Limit]) -> u32 {
    let bits = (0..MAX_LIMITS).zip(limits);
    bits.filter(|(_, limit)| limit.is_closed())
        .fold(0, |all, (index, _)| all | 1 << index)
}

/// How many permits settlements may owe of each limit.
fn debts(limits: &[Limit]) -> Box<[u64]> {
    limits.iter().map(Limit::debt_permits).collect()
}

/// For each limit, how many permits of a token bucket can be in use.
#[cfg(feature = "live")]
fn most_in_use(limits: &[Limit]) -> impl Iterator<Item = u64> {
    limits
        .iter()
        .map(|limit| limit.capacity().saturating_add(limit.debt_permits()))
}

/// As [`debts`], of the limits of one table.
type Debts = [u64; MAX_LIMITS];

/// Where the state of a limit is: the index of its table, and its index among the limits of that.
#[derive(Clone, Copy)]
struct Seat {
    table: usize,
    nth: usize,
}

/// The seats of all limits. The table that several limits share comes last.
fn seats(limits: &[Compiled], starts: &Starts) -> Box<[Seat]> {
    let shares = |limit: usize| limits[limit].can_share() && !has_start(starts, limit);
    let shared = match (0..limits.len()).filter(|&limit| shares(limit)).count() {
        1 => 0,
        limits => limits,
    };
    let last = limits.len() - shared;
    let (mut own, mut nth) = (0..last, 0..);
    let seat = |limit: usize| {
        if shared > 0 && shares(limit) {
            let nth = nth.next().unwrap_or_default();
            Seat { table: last, nth }
        } else {
            let table = own.next().unwrap_or(last);
            Seat { table, nth: 0 }
        }
    };
    (0..limits.len()).map(seat).collect()
}

/// Whether a limit starts with its initial permits. Then it has a table of its own.
fn has_start(starts: &Starts, limit: usize) -> bool {
    starts.get(limit).is_some_and(Option::is_some)
}

/// The refunds of all groups of `keys` keys, before the first one.
fn no_refunds(keys: Option<usize>) -> Arc<[Refunds]> {
    let groups = keys.map_or(1, |keys| keys.min(MOST_GROUPS));
    (0..groups).map(|_| Refunds::new()).collect()
}

pub(crate) struct Store {
    tables: Box<[Table]>,
    /// For each limit, where its state is.
    seats: Box<[Seat]>,
    /// For each limit, how many permits settlements may owe.
    debts: Box<[u64]>,
    /// For each limit, how many permits of a token bucket can be in use, also since a time when the
    /// limit was higher.
    #[cfg(feature = "live")]
    most: Box<[u64]>,
    /// For each limit, the same as for the limit whose state it goes on with.
    #[cfg(feature = "live")]
    ids: Box<[moves::Id]>,
    /// Where the keys of each table have moved.
    #[cfg(feature = "live")]
    moves: Box<[moves::Moves]>,
    penalty: Option<Words<FixedWindowRules>>,
    starts: Starts,
    /// The limits of 0, a bit for each: they deny every request.
    closed: u32,
    /// Whether something comes before a take: a penalty, the start of a limit, or a limit of 0.
    is_guarded: bool,
    /// The hasher of all tables.
    hasher: RandomState,
    /// For each limit, the refunds of groups of keys. Empty if there are none.
    refunds: Box<[Arc<[Refunds]>]>,
    /// Whether permits return by release.
    releases: bool,
    #[cfg(feature = "queue")]
    waits: waits::Waits,
}

/// Why a store denies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreDenied {
    /// `None` for the penalty, or for its table, if the key has no room in it.
    pub(crate) limit: Option<usize>,
    pub(crate) denied: Denied,
}

impl Store {
    /// Tables for `keys` keys, or for the one key that all requests share. `is_held` if permits can
    /// be returned by settlements. The `compiled` limits start with the initial permits of
    /// `limits`; only those of one key have fewer than all.
    pub(crate) fn new(
        (mut compiled, limits): (Vec<Compiled>, &[Limit]),
        penalty: Option<FixedWindowRules>,
        keys: Option<usize>,
        is_held: bool,
    ) -> Self {
        // The caller refuses a rule with more.
        compiled.truncate(MAX_LIMITS);
        let hasher = RandomState::new();
        let refunds = |limit: &Compiled| match limit {
            Compiled::Bucket(_) if is_held => no_refunds(keys),
            _ => Arc::default(),
        };
        let refunds = compiled.iter().map(refunds).collect();
        let starts = Start::all(limits.iter().map(Start::of));
        let seats = seats(&compiled, &starts);
        let (mut tables, mut several) = (Vec::new(), Vec::new());
        let last = seats.iter().map(|seat| seat.table).max();
        let shares = |table: usize| seats.iter().filter(|seat| seat.table == table).count() > 1;
        let shared = last.filter(|&last| shares(last));
        // The table that several limits share comes last, as `seats` has it.
        for (limit, seat) in compiled.into_iter().zip(&seats) {
            let shares = shared == Some(seat.table);
            match limit {
                Compiled::Bucket(rules) if shares => several.push(rules.into()),
                Compiled::Window(rules) if shares => several.push(rules.into()),
                limit => tables.push(Table::new(limit, &|| lines_for(keys), &hasher)),
            }
        }
        if !several.is_empty() {
            let lines = lines_of(keys, several.len());
            tables.push(Table::several(several, lines, &hasher));
        }
        Self {
            #[cfg(feature = "live")]
            ids: seats.iter().map(|_| moves::Id::default()).collect(),
            #[cfg(feature = "live")]
            moves: tables.iter().map(|_| moves::Moves::default()).collect(),
            releases: releases(&tables),
            tables: tables.into(),
            debts: debts(limits),
            #[cfg(feature = "live")]
            most: most_in_use(limits).collect(),
            seats,
            is_guarded: penalty.is_some() || !starts.is_empty() || closed(limits) != 0,
            closed: closed(limits),
            penalty: penalty.map(|rules| Keyed::new(rules, lines_for(keys), hasher.clone())),
            starts,
            hasher,
            refunds,
            #[cfg(feature = "queue")]
            waits: waits::Waits::default(),
        }
    }

    /// Where the state of a key is. `None` if the rule has no limits.
    #[inline]
    pub(crate) fn locate(&self, key: &KeyOf<'_>) -> Option<Address> {
        self.tables.first().map(|table| table.locate(key))
    }

    /// The hash of a key, of which [`locate_hashed`](Self::locate_hashed) makes its address.
    #[inline]
    pub(crate) fn hash(&self, key: &KeyOf<'_>) -> KeyHash {
        KeyHash::new(&self.hasher, key)
    }

    /// As [`locate`](Self::locate), for a key whose hash is known.
    #[inline]
    pub(crate) fn locate_hashed(&self, hash: KeyHash) -> Option<Address> {
        self.tables.first().map(|table| table.locate_hashed(hash))
    }

    /// Where the state of the only key is, in tables for one key that all requests share.
    pub(crate) fn locate_shared(&self) -> Option<Address> {
        self.locate_hashed(KeyHash::new(&self.hasher, &()))
    }

    /// The index of the limit with this seat.
    fn limit_at(&self, table: usize, nth: usize) -> Option<usize> {
        let has = |seat: &Seat| (seat.table, seat.nth) == (table, nth);
        self.seats.iter().position(has)
    }

    /// Takes `n` permits from each limit, or from none.
    #[inline]
    pub(crate) fn take(&self, at: Address, now: Timestamp, n: u32) -> Result<(), StoreDenied> {
        self.take_and_tell(at, now, n, true, Tell::Nothing).0
    }

    /// Takes `n` permits from each limit, or from none, as `how` says. The one question of a
    /// policy.
    #[inline]
    pub(crate) fn decide(
        &self,
        at: Address,
        now: Timestamp,
        n: u32,
        how: &mut How<'_>,
    ) -> Result<(), StoreDenied> {
        match how {
            #[cfg(feature = "queue")]
            How::OrWait(can_wait) => self.take_or_wait(at, now, n, can_wait, None),
            #[cfg(feature = "queue")]
            How::HoldOrWait(held, can_wait) => self.take_or_wait(at, now, n, can_wait, Some(held)),
            #[cfg(feature = "queue")]
            how => self.in_turn(at, now, n, || self.take_as(at, now, n, how)),
            #[cfg(not(feature = "queue"))]
            how => self.take_as(at, now, n, how),
        }
    }

    /// Takes as `how` says, without a queue.
    #[inline(always)]
    fn take_as(
        &self,
        at: Address,
        now: Timestamp,
        n: u32,
        how: &mut How<'_>,
    ) -> Result<(), StoreDenied> {
        match how {
            How::Explain(explanation) => self.take_explained(at, now, n, explanation),
            How::Hold(held) => self.take_held(at, now, n, true, held),
            How::Take => self.take(at, now, n),
            #[cfg(feature = "queue")]
            How::OrWait(_) | How::HoldOrWait(..) => self.take(at, now, n),
        }
    }

    /// Takes as [`take`](Self::take) does, and explains the decision.
    //
    // Apart, so that the other ways to take need no room on the stack for what it tells.
    #[inline(never)]
    fn take_explained(
        &self,
        at: Address,
        now: Timestamp,
        n: u32,
        explanation: &mut Explanation,
    ) -> Result<(), StoreDenied> {
        let told = Cell::from_mut(&mut explanation.details).as_array_of_cells();
        let (taken, is_told) = self.take_and_tell(at, now, n, true, Tell::Details(told));
        for (limit, told) in told.iter().enumerate().take(self.seats.len()) {
            // After a denial, only the detail of the limit that denied is of this decision: what
            // other limits took was undone.
            let is_decided = taken.map_or_else(|by| by.limit == Some(limit), |()| true);
            if !(is_told && is_decided && told.get().is_some()) {
                told.set(Some(self.detail(at, limit, now, n)));
            }
        }
        let retry = |by| self.retry_explained(at, by, &explanation.details);
        explanation.retry = taken.err().map(retry);
        taken
    }

    /// Takes as [`take`](Self::take) does, and notes what is needed to return the permits. A denial
    /// starts the penalty if it `is_final`.
    //
    // Apart for the same reason as `take_explained`.
    #[inline(never)]
    pub(crate) fn take_held(
        &self,
        at: Address,
        now: Timestamp,
        n: u32,
        is_final: bool,
        held: &mut Held,
    ) -> Result<(), StoreDenied> {
        let tell = Tell::Grants {
            store: self,
            at,
            grants: Cell::from_mut(held).as_array_of_cells(),
        };
        let (taken, is_told) = self.take_and_tell(at, now, n, is_final, tell);
        if !is_told {
            // A settlement returns none of these permits.
            *held = Held::default();
        }
        taken
    }

    /// Takes `n` permits from each limit, or from none, and tells. A denial starts the penalty if
    /// it `is_final`. Returns also whether what was told is of this take: it is not if the permits
    /// were taken from tables that the key has moved to, which other limits may share.
    #[inline(always)]
    fn take_and_tell(
        &self,
        at: Address,
        now: Timestamp,
        n: u32,
        is_final: bool,
        tell: Tell<'_>,
    ) -> (Result<(), StoreDenied>, bool) {
        let taken = self.take_noted(at, now, n, is_final, tell);
        #[cfg(feature = "live")]
        if let Err(by) = taken
            && self.may_have_moved(by)
        {
            return (self.take_moved(at, now, n, by, is_final), false);
        }
        (taken, true)
    }

    /// Returns `n` permits of a grant to each limit, as far as each can take them back. Returns how
    /// many all of them took back. Permits at once return by release instead.
    pub(crate) fn give_back(&self, at: Address, time: impl RefundTime, n: u32, held: &Held) -> u32 {
        let mut least = n;
        let now = time.present();
        for (limit, (&Seat { table, nth }, note)) in self.seats.iter().zip(held).enumerate() {
            let table = &self.tables[table];
            // Its permits return when the decision is dropped, whatever the request has cost.
            if let Table::AtOnce(_) = table {
                continue;
            }
            let refunded = match (table, self.refunds(limit, at), note) {
                (Table::Bucket(table), Some(refunds), Some((receipt, Some(before)))) => {
                    let receipt = copy(receipt);
                    let refund = table.refund_counted_at(at, time, n, receipt, refunds, *before);
                    refund.permits
                }
                (Table::Several(table), Some(refunds), Some((receipt, Some(before)))) => {
                    let receipt = copy(receipt);
                    table.refund_counted_at(at, nth, time, n, receipt, refunds, *before)
                }
                (Table::Several(table), _, Some((receipt, _))) => {
                    table.refund_limit_at(at, nth, now, n, copy(receipt))
                }
                (_, _, Some((receipt, _))) => {
                    table.key(at).refund_at(now, n, copy(receipt)).permits
                }
                // Taken after the key had moved.
                (_, _, None) => 0,
            };
            least = least.min(refunded);
        }
        // What has returned may be what a request waits for.
        #[cfg(feature = "queue")]
        self.serve(at);
        least
    }

    /// Takes up to `n` more permits from each limit. A token bucket may owe them. Returns how many
    /// all limits could take. Permits at once are not taken.
    pub(crate) fn charge(&self, at: Address, now: Timestamp, n: u32) -> u32 {
        let mut least = n;
        for (index, table) in self.tables.iter().enumerate() {
            if matches!(table, Table::AtOnce(_)) {
                continue;
            }
            let charged = table.charge_key(at, now, n, &self.debts_of(index));
            #[cfg(feature = "live")]
            let charged = match self.moved(at, index) {
                Some(moved) => {
                    let rest = n - charged;
                    charged + moved.table.charge_key(at, now, rest, &moved.debts)
                }
                None => charged,
            };
            // The excess is counted only as far as every limit counts it.
            least = least.min(charged);
        }
        least
    }

    /// How many permits settlements may owe of the limits of a table, in its order.
    fn debts_of(&self, table: usize) -> Debts {
        let limits = self.seats.iter().zip(&self.debts);
        let of_table = limits.filter(|(seat, _)| seat.table == table);
        let mut debts = Debts::default();
        for (seat, &debt) in of_table {
            debts[seat.nth] = debt;
        }
        debts
    }

    /// The refunds of the group of a key.
    fn refunds(&self, limit: usize, at: Address) -> Option<&Refunds> {
        match &*self.refunds[limit] {
            [] => None,
            groups => groups.get(at.group(groups.len())),
        }
    }

    /// The detail of each limit, which took nothing.
    pub(crate) fn looked_at(&self, at: Address, now: Timestamp, n: u32) -> Details {
        array::from_fn(|limit| {
            let is_limit = limit < self.seats.len();
            is_limit.then(|| self.detail(at, limit, now, n))
        })
    }

    /// Takes `n` permits from each limit, or from none, in the tables of this store. A denial
    /// starts the penalty if it `is_final`.
    //
    // Inlined, with `take_any` and the two ways of `Tell`, and without a closure, which its callers
    // would share: so a caller pays only for what it tells.
    #[inline(always)]
    fn take_noted(
        &self,
        at: Address,
        now: Timestamp,
        n: u32,
        is_final: bool,
        tell: Tell<'_>,
    ) -> Result<(), StoreDenied> {
        if let Some(denied) = self.before_take(at, now, n) {
            return Err(denied);
        }
        let taken = match &*self.tables {
            [Table::Several(table)] => {
                let limit = |nth| (nth < self.seats.len()).then_some(nth);
                let taken = tell.take_each(limit, TableKey::at(table, at), now, n);
                taken.map_err(|by| (by.index, by.denied))
            }
            // A table alone needs no order.
            [table] => match tell.take(Some(0), &table.key(at), now, n) {
                Ok(_) => Ok(()),
                Err(denied) => Err((0, denied)),
            },
            _ => {
                let key = |table: usize| self.tables[table].key(at);
                let limit = |table, nth| self.limit_at(table, nth);
                self.take_any(at, (now, n), tell, (self.shared_table(), key), limit)
            }
        };
        taken.map_err(|by| self.after_denial(at, now, by, is_final))
    }

    /// Takes `n` permits from each limit, or from none. `key` is asked for the limiter of each
    /// table, of which several limits may share one, and `limit` for the index of its limits in
    /// this store.
    ///
    /// All tables are looked at before one is taken from. So a denial undoes nothing, unless
    /// another thread comes between: then what was taken is refunded, the last permits first. The
    /// table that several limits share is asked first, and taken from last: see the head of this
    /// file. It is therefore never undone.
    //
    // As an `AllOf` does. It is not one, because the tables are known to be distinct, and the
    // shared one is looked at and taken from in another order.
    #[inline(always)]
    fn take_any<'t>(
        &self,
        at: Address,
        (now, n): (Timestamp, u32),
        tell: Tell<'_>,
        (shared, key): (Option<usize>, impl Fn(usize) -> KeyLimit<'t>),
        limit: impl Fn(usize, usize) -> Option<usize>,
    ) -> Result<(), (usize, Denied)> {
        let denied_by = |table: usize, nth: usize, denied: Denied| {
            self.denied_by(at, (now, n), (table, limit(table, nth)), denied)
        };
        let shared = match shared.map(|table| (table, key(table))) {
            Some((table, KeyLimit::Several(key))) => Some((table, key)),
            _ => None,
        };
        if let Some((table, key)) = shared
            && let Some((nth, denied)) = first_that_denies(key, now, n, |nth, detail| {
                tell.denied(limit(table, nth), detail);
            })
        {
            // A take that can never be granted tells whether the key has moved.
            if let Denied::ExceedsCapacity { .. } = denied
                && let Err(by) = tell.take_each(|nth| limit(table, nth), key, now, n)
            {
                return Err(denied_by(table, by.index, by.denied));
            }
            return Err(denied_by(table, nth, denied));
        }
        let last = shared.map(|(table, _)| table);
        let own = || (0..self.tables.len()).filter(|&table| Some(table) != last);
        let denies = || own().find_map(|table| Some((table, key(table).peek_at(now, n).err()?)));
        if let Some((table, denied)) = denies() {
            // Its take starts a wait. It grants if another thread has returned permits since.
            let Some(receipt) = tell.take_now(limit(table, 0), &key(table), now, n) else {
                return Err(denied_by(table, 0, denied));
            };
            let _: Refund = key(table).refund_at(now, n, receipt);
            if let Some((table, denied)) = denies() {
                return Err(denied_by(table, 0, denied));
            }
        }
        if n == 0 {
            return Ok(());
        }
        self.take_in_order((now, n), tell, (shared, &key), &limit)
            .map_err(|(table, nth, denied)| denied_by(table, nth, denied))
    }

    /// Takes from all tables, and from the `shared` one last. Returns the table and the index of a
    /// limit in it that denies after all.
    #[inline(always)]
    fn take_in_order<'t>(
        &self,
        (now, n): (Timestamp, u32),
        tell: Tell<'_>,
        (shared, key): (
            Option<(usize, TableKey<&Several>)>,
            impl Fn(usize) -> KeyLimit<'t>,
        ),
        limit: impl Fn(usize, usize) -> Option<usize>,
    ) -> Result<(), (usize, usize, Denied)> {
        let last = shared.map(|(table, _)| table);
        let own = || (0..self.tables.len()).filter(|&table| Some(table) != last);
        let mut receipts = [const { Receipt::NONE }; MAX_LIMITS];
        let undo = |before: usize, receipts: [Receipt; MAX_LIMITS]| {
            for (table, receipt) in receipts.into_iter().enumerate().take(before).rev() {
                if Some(table) != last {
                    let _: Refund = key(table).refund_at(now, n, receipt);
                }
            }
        };
        for table in own() {
            match tell.take(limit(table, 0), &key(table), now, n) {
                Ok(receipt) => receipts[table] = receipt,
                Err(denied) => {
                    undo(table, receipts);
                    return Err((table, 0, denied));
                }
            }
        }
        if let Some((table, key)) = shared
            && let Err(by) = tell.take_each(|nth| limit(table, nth), key, now, n)
        {
            undo(self.tables.len(), receipts);
            return Err((table, by.index, by.denied));
        }
        Ok(())
    }

    /// The denial by a limit of a table: by the limit of this store with this index, or by one that
    /// only the policy after a change has.
    fn denied_by(
        &self,
        at: Address,
        (now, n): (Timestamp, u32),
        (table, limit): (usize, Option<usize>),
        denied: Denied,
    ) -> (usize, Denied) {
        if let Some(limit) = limit {
            return self.first_denied(at, now, n, (limit, denied));
        }
        let first = self.limit_at(table, 0).unwrap_or(0);
        (first, Denied::Crowded { now, permits: n })
    }

    /// The index of the table that several limits share, which is the last one.
    fn shared_table(&self) -> Option<usize> {
        match &*self.tables {
            [others @ .., Table::Several(_)] => Some(others.len()),
            _ => None,
        }
    }

    /// The first limit that denies, after a denial by the limit `by`. If that shares a table, the
    /// limits before it with tables of their own have not been asked. The one that denies starts
    /// its wait.
    fn first_denied(
        &self,
        at: Address,
        now: Timestamp,
        n: u32,
        by: (usize, Denied),
    ) -> (usize, Denied) {
        let shared = self.shared_table();
        if shared != Some(self.seats[by.0].table) {
            return by;
        }
        // One that has ended with a change grants as if it were new.
        let is_unasked = |&limit: &usize| shared != Some(self.seats[limit].table);
        let denies = |limit| {
            let denied = self.detail(at, limit, now, n).decision.err()?;
            self.with(at, limit, |key, _| {
                // A window that denies a take starts its wait. No other limit writes.
                if let KeyLimit::Cooldown(window) = key
                    && let Ok(receipt) = window.take_at(now, n)
                {
                    // Another thread has returned permits since.
                    let _: Refund = window.refund_at(now, n, receipt);
                }
            });
            Some((limit, denied))
        };
        let mut before = (0..by.0).filter(is_unasked);
        before.find_map(denies).unwrap_or(by)
    }

    /// What a store says after a denial by a limit, which starts the penalty if it `is_final`.
    #[inline]
    fn after_denial(
        &self,
        at: Address,
        now: Timestamp,
        (limit, denied): (usize, Denied),
        is_final: bool,
    ) -> StoreDenied {
        // A request for more than a limit can ever grant, or one that finds no slot, is no use
        // beyond the limit.
        if let (Some(penalty), Denied::Exhausted { .. }, true) = (&self.penalty, denied, is_final) {
            // Denied if another request has opened the window already.
            let _ = TableKey::at(penalty, at).take_at(now, 1);
        }
        StoreDenied {
            limit: Some(limit),
            denied,
        }
    }

    /// What comes before a take: limits that have not begun do. Returns the denial by a limit of 0,
    /// or by the penalty, if it is in force.
    #[inline(always)]
    fn before_take(&self, at: Address, now: Timestamp, n: u32) -> Option<StoreDenied> {
        if self.is_guarded {
            self.guard(at, now, n)
        } else {
            None
        }
    }

    /// As [`before_take`](Self::before_take), of a store that is guarded.
    #[inline]
    fn guard(&self, at: Address, now: Timestamp, n: u32) -> Option<StoreDenied> {
        // A limit of 0 denies before a penalty does: a penalty ends, and it does not.
        if self.closed != 0 {
            return Some(StoreDenied {
                limit: Some(self.closed.trailing_zeros() as usize),
                denied: closed_to(n),
            });
        }
        if !self.starts.is_empty() {
            self.begin(at, now);
        }
        let denied = penalized(self.penalty.as_ref()?, at, now, n)?;
        Some(StoreDenied {
            limit: None,
            denied,
        })
    }

    /// Whether permits return by release.
    pub(crate) fn releases(&self) -> bool {
        self.releases
    }

    /// Returns permits that return by release. Called once for each grant.
    #[inline]
    pub(crate) fn release(&self, at: Address, n: u32) {
        // A request for no permits may have left no state.
        if self.releases && n > 0 {
            self.release_to_tables(at, n);
            #[cfg(feature = "queue")]
            if self.queue().is_some() {
                self.serve(at);
            }
        }
    }

    #[inline]
    fn release_to_tables(&self, at: Address, n: u32) {
        for table in &self.tables {
            if let KeyLimit::AtOnce(key) = table.key(at) {
                key.release(n);
            }
        }
    }

    /// Whether all limits would grant `n` permits. Takes nothing.
    pub(crate) fn look(&self, at: Address, now: Timestamp, n: u32) -> Result<(), StoreDenied> {
        if let Some(by) = self.before_take(at, now, n) {
            return Err(by);
        }
        (0..self.seats.len()).try_for_each(|limit| {
            let denied = self.peek(at, limit, now, n);
            denied.map_err(|denied| StoreDenied {
                limit: Some(limit),
                denied,
            })
        })
    }

    /// Whether one limit would grant `n` permits.
    fn peek(&self, at: Address, limit: usize, now: Timestamp, n: u32) -> Result<(), Denied> {
        #[cfg(feature = "live")]
        if self.has_ended(at, limit) {
            return Ok(());
        }
        self.with(at, limit, |key, nth| key.peek_nth(nth, now, n))
    }

    /// When all limits of a key have `n` permits, and no penalty is in force.
    pub(crate) fn retry_for(&self, at: Address, now: Timestamp, n: u32) -> Retry {
        let (limit, permits) = (None, n);
        let denied = Denied::Exhausted { now, permits };
        self.retry(at, StoreDenied { limit, denied })
    }

    /// When the key is allowed again, after a denial.
    pub(crate) fn retry(&self, at: Address, by: StoreDenied) -> Retry {
        let limits = 0..self.seats.len();
        match (by.denied, &self.penalty) {
            (Denied::Penalized { now, .. }, Some(penalty)) => {
                TableKey::at(penalty, at).retry(Denied::Exhausted { now, permits: 1 })
            }
            // All limits must have the permits.
            (Denied::Exhausted { now, permits }, _) => {
                let all = limits.fold(Retry::At(now), |all, limit| {
                    all.longer(self.retry_of(at, limit, now, permits), now)
                });
                self.after_penalty(all, at, now)
            }
            (denied, penalty) => match (by.limit, penalty) {
                (Some(limit), _) => self.with(at, limit, |key, _| key.retry(denied)),
                (None, Some(penalty)) => TableKey::at(penalty, at).retry(denied),
                (None, None) => Retry::Never,
            },
        }
    }

    /// When one limit of a key has `n` permits. They may be more than it ever has at once: those of
    /// requests that wait, one after the other.
    fn retry_of(&self, at: Address, limit: usize, now: Timestamp, n: u32) -> Retry {
        let detail = self.detail(at, limit, now, n);
        if u64::from(n) <= detail.capacity || self.closed & 1 << limit != 0 {
            return detail.retry;
        }
        // Several limits of one table answer together: all of them must have the permits.
        let denied = Denied::Exhausted { now, permits: n };
        self.with(at, limit, |key, _| key.retry(denied))
    }

    /// When the key is allowed again after a denial, by the `details` of its limits.
    pub(crate) fn retry_explained(&self, at: Address, by: StoreDenied, details: &Details) -> Retry {
        let (
            StoreDenied { limit: Some(_), .. },
            Denied::Exhausted { now, .. } | Denied::Crowded { now, .. },
        ) = (by, by.denied)
        else {
            // A penalty, or a request that no limit can ever grant.
            return self.retry(at, by);
        };
        let limits = details.iter().flatten();
        let all = limits.fold(Retry::At(now), |all, each| all.longer(each.retry, now));
        self.after_penalty(all, at, now)
    }

    /// The later of `retry` and the end of the penalty.
    fn after_penalty(&self, retry: Retry, at: Address, now: Timestamp) -> Retry {
        match &self.penalty {
            Some(penalty) => {
                let denied = Denied::Exhausted { now, permits: 1 };
                retry.longer(TableKey::at(penalty, at).retry(denied), now)
            }
            None => retry,
        }
    }

    /// What one limit has left.
    pub(crate) fn detail(&self, at: Address, limit: usize, now: Timestamp, n: u32) -> Detail {
        if let Some(detail) = self.detail_before(limit, now, n) {
            return detail;
        }
        let detail = self.with(at, limit, |key, nth| key.explain_nth(nth, now, n));
        if self.closed & 1 << limit == 0 {
            return detail;
        }
        // The table of a limit of 0 has another limit, since no limiter has the limit 0.
        let mut closed = detail;
        closed.decision = Err(closed_to(n));
        (closed.available, closed.capacity, closed.retry) = (0, 0, Retry::Never);
        closed.full_again = Retry::Never;
        closed
    }

    /// Asks the limit of a key, in the table that has the key's state. Passes the limiter in that
    /// table, and the index of the limit in it.
    fn with<T>(&self, at: Address, limit: usize, ask: impl FnOnce(KeyLimit<'_>, usize) -> T) -> T {
        let Seat { table, nth } = self.seats[limit];
        #[cfg(feature = "live")]
        if let Some(moved) = self.moved(at, table)
            && let Some(nth) = moved.nth(&self.ids[limit])
        {
            return ask(moved.table.key(at), nth);
        }
        ask(self.tables[table].key(at), nth)
    }

    /// When a limit has all its permits back, if no more are taken.
    pub(crate) fn full_at(&self, at: Address, limit: usize, now: Timestamp) -> Retry {
        if self.closed & 1 << limit != 0 {
            return Retry::Never;
        }
        self.with(at, limit, |key, nth| {
            let capacity = match &key {
                KeyLimit::Several(_) => key.explain_nth(nth, now, 0).capacity,
                _ => key.capacity(),
            };
            let capacity = u32::try_from(capacity).unwrap_or(u32::MAX);
            key.explain_nth(nth, now, capacity).retry
        })
    }

    /// Whether a penalty is in force, or its table has no room for the key.
    pub(crate) fn is_penalized(&self, at: Address, now: Timestamp) -> bool {
        let penalty = self.penalty.as_ref();
        penalty.is_some_and(|penalty| penalized(penalty, at, now, 1).is_some())
    }
}

/// The first of several limits that would deny a request, and why. `seen` gets its detail.
fn first_that_denies(
    key: TableKey<&Several>,
    now: Timestamp,
    n: u32,
    seen: impl FnOnce(usize, Detail),
) -> Option<(usize, Denied)> {
    key.peek_at(now, n).err()?;
    let mut details = key.explain_each_at(now, n).enumerate();
    // None if another thread has returned permits since.
    let (nth, detail) = details.find(|(_, detail)| !detail.is_allowed())?;
    seen(nth, detail);
    Some((nth, detail.decision.err()?))
}

/// Whether permits of a table return by release.
fn releases(tables: &[Table]) -> bool {
    let is_released = |table: &Table| matches!(table, Table::AtOnce(_));
    tables.iter().any(is_released)
}

/// The rules of a window that is open for this length after its one permit is taken: a penalty, or
/// the hold of a threshold.
pub(crate) fn hold_rules(length: Duration) -> Result<FixedWindowRules, SettingsError> {
    FixedWindow::builder(1, length)
        .started_by_first_request()
        .rules()
}

/// The denial that no time ends: by a limit of 0, and, for a request that would wait, by a limit
/// for which no request waits. A queue rejects such a request at once.
fn closed_to(permits: u32) -> Denied {
    Denied::ExceedsCapacity {
        permits,
        capacity: 0,
    }
}

/// The denial by a penalty that is in force. A key for which the table of the penalty has no room
/// is denied, too: its penalty could not be put in force.
#[inline]
fn penalized(
    penalty: &Words<FixedWindowRules>,
    at: Address,
    now: Timestamp,
    n: u32,
) -> Option<Denied> {
    match TableKey::at(penalty, at).peek_at(now, 1) {
        Ok(()) => None,
        Err(Denied::Crowded { .. }) => Some(Denied::Crowded { now, permits: n }),
        Err(_) => Some(Denied::Penalized { now, permits: n }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;
    use crate::limit::Algorithm;
    use crate::path::PathRules;
    use crate::request::Request;

    /// A decision hashes a key once, for all tables.
    #[test]
    fn a_key_has_the_same_address_in_all_tables_of_a_rule() {
        let limit = |algorithm| Limit::per(5, Duration::from_secs(1)).algorithm_of(algorithm);
        let limits = [
            limit(Algorithm::TokenBucket),
            limit(Algorithm::FixedWindow),
            limit(Algorithm::WindowFromRequest).wait(Duration::from_secs(2)),
            limit(Algorithm::SlidingWindow { segments: 3 }),
            Limit::at_once(5),
        ];
        let compiled = limits.iter().map(|limit| limit.compile().unwrap());
        let compiled = (compiled.collect(), &limits[..]);
        let penalty = hold_rules(Duration::from_secs(5)).unwrap();
        let store = Store::new(compiled, Some(penalty), Some(1_000), false);
        let key = Key::path();
        for path in ["/a", "/b", "/c"] {
            let request = Request::new("GET", path);
            let key = KeyOf::new(&key, &request, PathRules::new());
            let at = store.locate(&key).unwrap();
            for table in &store.tables {
                assert_eq!(table.locate(&key), at);
            }
            assert_eq!(store.penalty.as_ref().unwrap().key(&key).address(), at);
        }
    }
}
