//! Tables with several limits for each key, in statics, with the words of the target. Each key is
//! compared with exact models of all its limits, and each entry with a model of which key holds it.

use core::time::Duration;

use portcullis_core::keyed::{
    ConcurrencyRules, FixedWindowRules, RuleList, Seed, TableKey, TokenBucketRules,
};
use portcullis_core::state::{KeyedWord, Word};
use portcullis_core::{Denied, KeyedList, Lease, Limiter, Retry};

use crate::draws::Draws;
use crate::keyed::{
    Bucket, KEYS, LIMIT, Lines, Model, PLACES, Places, SECOND, SLOTS, STALENESS, Trace, Window,
    bucket, lines, nanos, preferred_line, shared, window,
};
use crate::tally::Group;

const fn at_once() -> ConcurrencyRules {
    ConcurrencyRules::new(LIMIT)
}

/// The words of an entry of three limits, and of two.
const FOUR: usize = 4;
const TWO: usize = 2;

/// The lead is the first limit.
type Rates = (TokenBucketRules, FixedWindowRules, ConcurrencyRules);
/// The lead is the second limit.
type AtOnceFirst = (ConcurrencyRules, TokenBucketRules, FixedWindowRules);
type Two = (TokenBucketRules, FixedWindowRules);

static MANY: KeyedList<Rates, Lines<16>> =
    KeyedList::new((bucket(), window(), at_once()), lines(), Seed::new());
static FEW: KeyedList<AtOnceFirst, Lines<4>> =
    KeyedList::new((at_once(), bucket(), window()), lines(), Seed::new());
static OF_TWO: KeyedList<Two, Lines<2>> =
    KeyedList::new((bucket(), window()), lines(), Seed::new());
static FAR: KeyedList<Two, Lines<2>> = KeyedList::new((bucket(), window()), lines(), Seed::new());

/// The model of one limit.
#[derive(Clone, Copy)]
enum Limit {
    Bucket(Bucket),
    Window(Window),
    /// The permits that are held.
    AtOnce(u32),
}

impl Limit {
    const BUCKET: Self = Self::Bucket(Bucket::NEW);
    const WINDOW: Self = Self::Window(Window(None));
    const AT_ONCE: Self = Self::AtOnce(0);

    /// Returns `n` permits of the last take.
    fn refund(&mut self, n: u32) {
        match self {
            Self::Bucket(bucket) => bucket.refund(n),
            Self::Window(window) => window.refund(n),
            Self::AtOnce(_) => self.release(n),
        }
    }

    fn release(&mut self, n: u32) {
        if let Self::AtOnce(out) = self {
            *out -= n;
        }
    }
}

impl Model for Limit {
    fn has(&self, at: u64) -> u64 {
        match self {
            Self::Bucket(bucket) => bucket.has(at),
            Self::Window(window) => window.has(at),
            Self::AtOnce(out) => (LIMIT - out).into(),
        }
    }

    fn take(&mut self, at: u64, n: u32) {
        match self {
            Self::Bucket(bucket) => bucket.take(at, n),
            Self::Window(window) => window.take(at, n),
            Self::AtOnce(out) => *out += n,
        }
    }

    fn is_free(&self, at: u64) -> bool {
        match self {
            Self::Bucket(bucket) => bucket.is_free_among(at),
            Self::Window(window) => window.is_free(at),
            Self::AtOnce(out) => *out == 0,
        }
    }
}

/// The models of all limits of a key, in order.
impl<const N: usize> Model for [Limit; N] {
    fn has(&self, at: u64) -> u64 {
        self.iter().map(|limit| limit.has(at)).min().unwrap_or(0)
    }

    fn take(&mut self, at: u64, n: u32) {
        for limit in self {
            limit.take(at, n);
        }
    }

    fn is_free(&self, at: u64) -> bool {
        self.iter().all(|limit| limit.is_free(at))
    }
}

pub(crate) fn check(group: &mut Group<'_>) {
    let seeds = [MANY.seed(), FEW.seed(), OF_TWO.seed(), FAR.seed()];
    for (n, seed) in seeds.iter().enumerate() {
        let set = seed.set([31 + n as u64, !0]);
        group.check(set.is_ok(), format_args!("an unused seed: {set:?}"));
    }
    // Each in a frame of its own: a stack of 7 KB has no room for the models of all.
    many_entries(group);
    few_entries(group);
    entries_of_two_words(group);
    far_entries_of_two_words(group);
    preferred_lines(group);
}

#[inline(never)]
fn many_entries(group: &mut Group<'_>) {
    OfThree {
        name: "many entries",
        table: &MANY,
        is_one_group: false,
    }
    .run(
        group,
        &mut [[Limit::BUCKET, Limit::WINDOW, Limit::AT_ONCE]; KEYS],
        1,
    );
}

#[inline(never)]
fn few_entries(group: &mut Group<'_>) {
    OfThree {
        name: "few entries",
        table: &FEW,
        is_one_group: true,
    }
    .run(
        group,
        &mut [[Limit::AT_ONCE, Limit::BUCKET, Limit::WINDOW]; KEYS],
        2,
    );
}

const fn trace(
    name: &'static str,
    table: &'static KeyedList<Two, Lines<2>>,
    seed: u64,
) -> Trace<'static, KeyedList<Two, Lines<2>>> {
    Trace {
        name,
        table,
        words: TWO,
        entries: SLOTS,
        is_one_line: true,
        retries: true,
        seed,
    }
}

#[inline(never)]
fn entries_of_two_words(group: &mut Group<'_>) {
    let models = &mut [[Limit::BUCKET, Limit::WINDOW]; KEYS];
    trace("entries of two words", &OF_TWO, 3).run(group, models);
}

#[inline(never)]
fn far_entries_of_two_words(group: &mut Group<'_>) {
    let horizon = if KeyedWord::BITS == 20 {
        let (bucket, window) = FAR.rules();
        bucket
            .timing()
            .horizon
            .min(window.timing().horizon)
            .as_nanos() as u64
    } else {
        3_600 * SECOND
    };
    let models = &mut [[Limit::BUCKET, Limit::WINDOW]; KEYS];
    trace("far entries of two words", &FAR, 4).run_far(group, models, horizon);
}

/// The first entry of a key has all its words in one line: the one that the key prefers.
#[inline(never)]
fn preferred_lines(group: &mut Group<'_>) {
    let (at, later) = (nanos(9 * SECOND), nanos(99 * SECOND));
    for seed in 0..20 {
        let table = KeyedList::new((bucket(), window(), at_once()), lines::<4>(), Seed::new());
        _ = table.seed().set([seed + 1, !seed]);
        let key = table.key("key");
        drop(key.try_acquire_at(at, 1));
        let swept: [_; 4] = core::array::from_fn(|line| table.sweep_at(later, line..=line));
        let preferred = preferred_line(key.address(), FOUR, PLACES);
        group.check(
            swept.iter().sum::<usize>() == 1 && swept[preferred] == 1,
            format_args!("an entry of four words, not in the line {preferred}: {swept:?}"),
        );
        let table = KeyedList::new((bucket(), window()), lines::<2>(), Seed::new());
        _ = table.seed().set([seed + 1, !seed]);
        let key = table.key("key");
        drop(key.try_acquire_at(at, 1));
        let swept: [_; 2] = core::array::from_fn(|line| table.sweep_at(later, line..=line));
        let preferred = preferred_line(key.address(), TWO, SLOTS);
        group.check(
            swept.iter().sum::<usize>() == 1 && swept[preferred] == 1,
            format_args!("an entry of two words, not in the line {preferred}: {swept:?}"),
        );
    }
}

/// A table of three limits for each key.
struct OfThree<L: 'static, const LINES: usize> {
    name: &'static str,
    table: &'static KeyedList<L, Lines<LINES>>,
    /// Whether all keys are in a single group of lines, so that some find no entry.
    is_one_group: bool,
}

type Held<L, const LINES: usize> =
    Option<(usize, Lease<TableKey<&'static KeyedList<L, Lines<LINES>>>>)>;

impl<L: RuleList, const LINES: usize> OfThree<L, LINES> {
    /// Takes, releases and refunds at random, and compares each answer with the models.
    fn run(&self, group: &mut Group<'_>, models: &mut [[Limit; 3]; KEYS], seed: u64) {
        let Self {
            name,
            table,
            is_one_group,
        } = *self;
        let (keys, mut places) = (shared(table), Places::default());
        let (mut draws, mut newest) = (Draws(seed), 100 * SECOND);
        let mut held: [Held<L, LINES>; 8] = [const { None }; 8];
        let (mut granted, mut refunded, mut crowded, mut exhausted) = (0, 0, 0, [0; 3]);
        for step in 0..3_000 {
            let at = match draws.below(8) {
                0 => newest - draws.below(STALENESS),
                1 | 2 => newest,
                3 if draws.below(20) == 0 => newest + draws.below(60 * SECOND),
                _ => newest + draws.below(SECOND / 8),
            };
            newest = newest.max(at);
            let now = nanos(at);
            let own_place = draws.below(held.len() as u64) as usize;
            if let Some((own, lease)) = held[own_place].take() {
                models[own]
                    .iter_mut()
                    .for_each(|limit| limit.release(lease.permits()));
                drop(lease);
                continue;
            }
            let key = draws.below(KEYS as u64) as usize;
            let (address, own) = keys[key];
            let n = 1 + draws.below(u64::from(LIMIT)) as u32;
            let limits = &models[own];
            let (has, is_there) = (limits.has(at), places.has(own));
            let short = limits.iter().position(|limit| limit.has(at) < n.into());
            let finds_one = !is_one_group
                || is_there
                || places.free(models, at, address, (FOUR, PLACES)).is_some();
            let expected = match (short, finds_one) {
                (Some(index), _) => Some((index, Denied::Exhausted { now, permits: n })),
                (None, false) => Some((0, Denied::Crowded { now, permits: n })),
                (None, true) => None,
            };
            let key = TableKey::at(table, address);
            let available = key.available_at(now);
            let expected_available = if finds_one || has == 0 { has } else { 0 };
            group.check(
                available == expected_available,
                format_args!("{name}, {step}: {available} of {has} at {at}"),
            );
            let peeked = key.peek_at(now, n).err();
            group.check(
                peeked == expected.map(|(_, denied)| denied),
                format_args!("{name}, {step}: {peeked:?}"),
            );
            let taken = key.try_acquire_each_at(now, n);
            let denied = taken.as_ref().err().map(|by| (by.index, by.denied));
            group.check(
                denied == expected,
                format_args!("{name}, {step}: {n} of {has} at {at}: {denied:?}"),
            );
            match taken {
                Ok(mut lease) => {
                    if !is_there
                        && is_one_group
                        && let Some(place) = places.free(models, at, address, (FOUR, PLACES))
                    {
                        *place = Some(own);
                    }
                    models[own].take(at, n);
                    granted += 1;
                    // Part of it: no other request has been granted since.
                    let back = draws.below(n.into()) as u32;
                    if draws.below(4) == 0 && back > 0 {
                        let told = lease.refund_at(now, back);
                        group.check(
                            told == Ok(back),
                            format_args!("{name}, {step}: {back} of {n} back: {told:?}"),
                        );
                        models[own].iter_mut().for_each(|limit| limit.refund(back));
                        refunded += 1;
                    }
                    held[own_place] = Some((own, lease));
                }
                Err(by) => {
                    let retry = key.retry_each(by);
                    let Some(index) = short else {
                        let expected = Retry::After(Duration::from_nanos(STALENESS));
                        group.check(
                            retry == expected,
                            format_args!("{name}, {step}: crowded, {retry:?}"),
                        );
                        crowded += 1;
                        continue;
                    };
                    exhausted[index] += 1;
                    let limits = &models[own];
                    let waits = |limit: &Limit| {
                        matches!(limit, Limit::AtOnce(_)) && limit.has(at) < n.into()
                    };
                    // Whether the limits whose permits return by time have them.
                    let by_time = |at| {
                        let mut all = limits.iter();
                        all.all(|limit| {
                            matches!(limit, Limit::AtOnce(_)) || limit.has(at) >= n.into()
                        })
                    };
                    let fits = match retry {
                        Retry::At(retry) => {
                            let retry = retry.as_nanos();
                            limits.has(retry) >= n.into()
                                && limits.has(retry - 1) < n.into()
                                && retry > at
                        }
                        Retry::OnRelease => limits.iter().any(waits) && by_time(at),
                        Retry::OnReleaseFrom(from) => {
                            let from = from.as_nanos();
                            limits.iter().any(waits)
                                && by_time(from)
                                && !by_time(from - 1)
                                && from > at
                        }
                        _ => false,
                    };
                    group.check(fits, format_args!("{name}, {step}: {retry:?} of {at}"));
                }
            }
        }
        let is_varied = granted > 300
            && refunded > 30
            && exhausted.iter().all(|denials| *denials > 10)
            && (crowded > 20) == is_one_group;
        group.check(
            is_varied,
            format_args!(
                "{name}: {granted} granted, {refunded} refunded, {exhausted:?} exhausted, \
                 {crowded} crowded"
            ),
        );
        drop(held);
        let later = nanos(newest + 10 * SECOND);
        let (before, swept) = (table.statistics_at(later), table.sweep_at(later, ..));
        let after = table.statistics_at(later).held;
        let is_swept = before.live == 0 && swept == before.held && after == 0;
        group.check(
            is_swept && (!is_one_group || swept == places.count()),
            format_args!("{name}: {swept} swept of {before:?}, {after} are left"),
        );
    }
}
