//! Keyed tables, in statics, with the words of the target. Each key is compared with an exact model
//! of its own, and each slot with a model of which key holds it.

use core::hash::{BuildHasher, Hasher};
use core::time::Duration;

use portcullis_core::builder::Setting;
use portcullis_core::keyed::{
    Address, ConcurrencyRules, FixedWindowRules, Line, Seed, SeedFixed, TableKey, TokenBucketRules,
};
use portcullis_core::limiter::Idle;
use portcullis_core::queue::Keys;
use portcullis_core::state::{KeyedWord, Word};
use portcullis_core::{
    Concurrency, Denied, FixedWindow, Keyed, KeyedArray, Lease, Limiter, LimiterExt, Penalty, Rate,
    Retry, SettingsError, SlidingWindow, Timestamp, TokenBucket,
};

use crate::draws::Draws;
use crate::tally::Group;

pub(crate) const SECOND: u64 = 1_000_000_000;
/// The staleness of all tables here, and the largest lateness of a request.
pub(crate) const STALENESS: u64 = SECOND;
/// The number of keys of a table, and the permits that each may have at once.
pub(crate) const KEYS: usize = 14;
pub(crate) const LIMIT: u32 = 5;
/// The number of slots of a line.
pub(crate) const PLACES: usize = 8;
/// The number of slots of a line, or of entries of a group, whose last word is a clock.
pub(crate) const SLOTS: usize = PLACES - 1;
const TICK: u64 = 10_000_000;
const LENGTH: u64 = 2 * SECOND;

/// Unwraps in a constant, where a method cannot be called.
macro_rules! built {
    ($builder:expr) => {
        match $builder {
            Ok(limiter) => limiter,
            Err(_) => panic!("does not fit"),
        }
    };
}

pub(crate) const fn bucket() -> TokenBucketRules {
    let builder =
        TokenBucket::builder(Rate::per_second(4), LIMIT as u64).tick(Duration::from_nanos(TICK));
    built!(builder.rules())
}

pub(crate) const fn window() -> FixedWindowRules {
    built!(FixedWindow::builder(LIMIT as u64, Duration::from_nanos(LENGTH)).rules())
}

type Sliding = SlidingWindow<4, u32>;
type Penalised = Penalty<TokenBucket<u32>, u32>;

const fn sliding() -> Sliding {
    built!(SlidingWindow::builder(LIMIT as u64, Duration::from_secs(2), 4).build_on())
}

const fn penalised() -> Penalised {
    let around = built!(Penalty::builder(Duration::from_millis(1_500)).build_on());
    around.around(built!(
        TokenBucket::builder(Rate::per_second(4), LIMIT as u64).build_on()
    ))
}

pub(crate) type Lines<const N: usize> = [Line; N];
pub(crate) const fn lines<const N: usize>() -> Lines<N> {
    [const { Line::new() }; N]
}

static BUCKETS: Keyed<TokenBucketRules, Lines<4>> = Keyed::new(bucket(), lines(), Seed::new());
static FEW_BUCKETS: Keyed<TokenBucketRules, Lines<1>> = Keyed::new(bucket(), lines(), Seed::new());
static FAR_BUCKETS: Keyed<TokenBucketRules, Lines<1>> = Keyed::new(bucket(), lines(), Seed::new());
static WINDOWS: Keyed<FixedWindowRules, Lines<4>> = Keyed::new(window(), lines(), Seed::new());
static FEW_WINDOWS: Keyed<FixedWindowRules, Lines<1>> = Keyed::new(window(), lines(), Seed::new());
static LIMITS: Keyed<ConcurrencyRules, Lines<4>> =
    Keyed::new(ConcurrencyRules::new(LIMIT), lines(), Seed::new());
static FEW_LIMITS: Keyed<ConcurrencyRules, Lines<1>> =
    Keyed::new(ConcurrencyRules::new(LIMIT), lines(), Seed::new());
static FEW_SLIDING: KeyedArray<Sliding, [Sliding; PLACES], Lines<1>> = KeyedArray::new(
    sliding(),
    [const { sliding() }; PLACES],
    lines(),
    Seed::new(),
);
static PENALISED: KeyedArray<Penalised, [Penalised; PLACES], Lines<1>> = KeyedArray::new(
    penalised(),
    [const { penalised() }; PLACES],
    lines(),
    Seed::new(),
);
static LEASED: KeyedArray<Concurrency, [Concurrency; PLACES], Lines<1>> = KeyedArray::new(
    Concurrency::new(2),
    [const { Concurrency::new(2) }; PLACES],
    lines(),
    Seed::new(),
);

/// The expected answers of a key's limiter, in numbers that do not wrap. Times are in nanoseconds.
pub(crate) trait Model {
    fn has(&self, at: u64) -> u64;
    /// The available permits.
    fn take(&mut self, at: u64, n: u32);
    /// Records a call that reaches its slot and is denied.
    fn deny(&mut self, _at: u64, _n: u32) {}
    /// Whether the slot may go to another key.
    fn is_free(&self, at: u64) -> bool;
}

/// A bucket, by the position up to which it is used, in parts of permits.
#[derive(Clone, Copy)]
pub(crate) struct Bucket(i64);

impl Bucket {
    pub(crate) const NEW: Self = Self(i64::MIN / 2);
    const FULL: i64 = (LIMIT as u64 * SECOND).cast_signed();

    fn position(at: u64) -> i64 {
        (at / TICK * TICK * 4).cast_signed()
    }

    /// Returns `n` permits of the last take.
    pub(crate) fn refund(&mut self, n: u32) {
        self.0 -= (u64::from(n) * SECOND).cast_signed();
    }

    /// As `is_free`, in an entry with other limits: the bucket must be more than just full, so that
    /// no refund brings its state back.
    pub(crate) fn is_free_among(self, at: u64) -> bool {
        Self::position(at.saturating_sub(STALENESS)) - self.0 > Self::FULL
    }
}

impl Model for Bucket {
    fn has(&self, at: u64) -> u64 {
        (Self::position(at) - self.0)
            .clamp(0, Self::FULL)
            .cast_unsigned()
            / SECOND
    }

    fn take(&mut self, at: u64, n: u32) {
        self.0 =
            self.0.max(Self::position(at) - Self::FULL) + (u64::from(n) * SECOND).cast_signed();
    }

    fn is_free(&self, at: u64) -> bool {
        Self::position(at.saturating_sub(STALENESS)) - self.0 >= Self::FULL
    }
}

/// A window's number, and the permits taken in it.
#[derive(Clone, Copy)]
pub(crate) struct Window(pub(crate) Option<(u64, u64)>);

impl Window {
    /// Returns `n` permits of the last take.
    pub(crate) fn refund(&mut self, n: u32) {
        if let Some((_, count)) = &mut self.0 {
            *count -= u64::from(n);
        }
    }
}

impl Model for Window {
    fn has(&self, at: u64) -> u64 {
        let counted = self.0.filter(|(index, _)| *index >= at / LENGTH);
        u64::from(LIMIT) - counted.map_or(0, |(_, count)| count)
    }

    fn take(&mut self, at: u64, n: u32) {
        let used = u64::from(LIMIT) - self.has(at);
        let index = self.0.map_or(0, |(index, _)| index).max(at / LENGTH);
        self.0 = Some((index, used + u64::from(n)));
    }

    fn is_free(&self, at: u64) -> bool {
        self.0
            .is_none_or(|(index, _)| (index + 1) * LENGTH <= at.saturating_sub(STALENESS))
    }
}

/// A limiter of the key's own, as verified by the tables in `limiters`; and the time of the last
/// use as a slot of a `KeyedArray` records it.
struct Own<L> {
    limiter: L,
    note: Option<u64>,
}

/// The times that a slot records wrap at this number.
const TIMES: u64 = if KeyedWord::BITS == 20 { 128 } else { 512 };

impl<L: Limiter> Own<L> {
    const fn new(limiter: L) -> Self {
        Self {
            limiter,
            note: None,
        }
    }

    /// The number of stalenesses since the recorded time, as far as it can be distinguished.
    fn age(&self, at: u64) -> Option<u64> {
        self.note
            .map(|note| (at / STALENESS).wrapping_sub(note) % TIMES)
    }

    fn note(&mut self, at: u64) {
        // A time that seems to be earlier by one is stale, and leaves the recorded time unchanged.
        if self.age(at).is_none_or(|age| age != TIMES - 1) {
            self.note = Some(at / STALENESS);
        }
    }
}

impl<L: Limiter> Model for Own<L> {
    fn has(&self, at: u64) -> u64 {
        (0..=LIMIT)
            .rev()
            .find(|n| *n == 0 || self.limiter.peek_at(nanos(at), *n).is_ok())
            .unwrap_or(0)
            .into()
    }

    fn take(&mut self, at: u64, n: u32) {
        _ = self.limiter.take_at(nanos(at), n);
        self.note(at);
    }

    fn deny(&mut self, at: u64, n: u32) {
        _ = self.limiter.take_at(nanos(at), n);
        self.note(at);
    }

    fn is_free(&self, at: u64) -> bool {
        let since = nanos(at.saturating_sub(STALENESS));
        let is_idle = match self.limiter.idle_at(nanos(at)) {
            Idle::Since(idle) => idle <= since,
            Idle::Now => self.limiter.idle_at(since).is_idle(),
            _ => false,
        };
        is_idle && self.age(at).is_none_or(|age| (2..TIMES - 2).contains(&age))
    }
}

pub(crate) const fn nanos(at: u64) -> Timestamp {
    Timestamp::from_nanos(at)
}

/// The number of the first key with the same address: such keys share a limit.
pub(crate) fn shared<T: Keys>(table: &T) -> [(Address, usize); KEYS] {
    let address = |key: usize| table.locate(table.hash_of(&(key as u32)));
    core::array::from_fn(|key| {
        let first = (0..key).find(|other| address(*other) == address(key));
        (address(key), first.unwrap_or(key))
    })
}

/// Which keys hold the slots of a line, or the entries of a group of lines.
#[derive(Default)]
pub(crate) struct Places([Option<usize>; PLACES]);

impl Places {
    pub(crate) fn has(&self, key: usize) -> bool {
        self.0.contains(&Some(key))
    }

    /// The number of keys.
    pub(crate) fn count(&self) -> usize {
        self.0.iter().flatten().count()
    }

    /// The first free entry of the `entries` in a group, in the order in which keys with the
    /// address try them. An entry has 1, 2 or 4 words.
    pub(crate) fn free<M: Model>(
        &mut self,
        models: &[M; KEYS],
        at: u64,
        address: Address,
        (words, entries): (usize, usize),
    ) -> Option<&mut Option<usize>> {
        let is_free = |place: &usize| self.0[*place].is_none_or(|key| models[key].is_free(at));
        let mut places = (0..PLACES)
            .map(|nth| {
                if words == 1 {
                    // From the first or from the last.
                    nth.abs_diff(address.group(2) * (entries - 1))
                } else {
                    nth ^ (preferred_line(address, words, entries) * (PLACES / words))
                }
            })
            .filter(|place| *place < entries);
        let place = places.find(is_free)?;
        Some(&mut self.0[place])
    }
}

/// The line of a group where keys with the address prefer their entry, of 2 or 4 words.
pub(crate) fn preferred_line(address: Address, words: usize, entries: usize) -> usize {
    let entry = address.group(256) * entries / 256;
    entry / (PLACES / words)
}

/// A table, and how it is queried.
pub(crate) struct Trace<'t, T> {
    pub(crate) name: &'t str,
    pub(crate) table: &'t T,
    /// The number of words of an entry.
    pub(crate) words: usize,
    /// The number of entries of a group.
    pub(crate) entries: usize,
    /// Whether all keys may be in a single line, so that some find no slot.
    pub(crate) is_one_line: bool,
    /// Whether retry times are the model's; not so for a limiter that may need two retries.
    pub(crate) retries: bool,
    pub(crate) seed: u64,
}

impl<T: Keys> Trace<'_, T> {
    pub(crate) fn run<M: Model>(&self, group: &mut Group<'_>, models: &mut [M; KEYS]) {
        let (keys, mut places) = (shared(self.table), Places::default());
        let (mut draws, mut newest) = (Draws(self.seed), 100 * SECOND);
        let (mut granted, mut exhausted, mut crowded) = (0, 0, 0);
        for step in 0..2_000 {
            let key = draws.below(KEYS as u64) as usize;
            let (address, own) = keys[key];
            let at = match draws.below(8) {
                0 => newest - draws.below(STALENESS),
                1 => newest,
                // Now and then a minute, after which all keys are idle; often enough for the times
                // of slots to wrap.
                2 if draws.below(20) == 0 => newest + draws.below(60 * SECOND),
                _ => newest + draws.below(SECOND / 8),
            };
            newest = newest.max(at);
            let n = 1 + draws.below(u64::from(LIMIT)) as u32;
            let limiter = *TableKey::at(self.table, address);
            let (now, has, is_there) = (nanos(at), models[own].has(at), places.has(own));
            let finds_one = !self.is_one_line
                || is_there
                || places
                    .free(models, at, address, (self.words, self.entries))
                    .is_some();
            let name = self.name;
            let peeked = limiter.peek_at(now, n);
            let taken = limiter.take_at(now, n);
            let expected = match (has >= n.into(), finds_one) {
                (false, _) => Some(Denied::Exhausted { now, permits: n }),
                (true, false) => Some(Denied::Crowded { now, permits: n }),
                (true, true) => None,
            };
            let denied = taken.err();
            // For a penalty, its own limiter says which denial it is.
            let is_exact = self.retries || matches!(expected, None | Some(Denied::Crowded { .. }));
            let agrees = if is_exact {
                denied == expected
            } else {
                denied.is_some()
            };
            group.check(
                agrees,
                format_args!("{name}, {step}: {n} of {has} at {at}: {denied:?}"),
            );
            group.check(
                peeked.is_ok() == expected.is_none(),
                format_args!("{name}, {step}: {peeked:?}"),
            );
            match denied {
                None => {
                    if !is_there
                        && self.is_one_line
                        && let Some(place) =
                            places.free(models, at, address, (self.words, self.entries))
                    {
                        *place = Some(own);
                    }
                    models[own].take(at, n);
                    granted += 1;
                }
                Some(denied @ Denied::Crowded { .. }) => {
                    let retry = limiter.retry(denied);
                    let expected = Retry::After(Duration::from_nanos(STALENESS));
                    group.check(
                        retry == expected,
                        format_args!("{name}, {step}: crowded, {retry:?}"),
                    );
                    crowded += 1;
                }
                Some(denied) => {
                    models[own].deny(at, n);
                    exhausted += 1;
                    if self.retries
                        && let Retry::At(retry) = limiter.retry(denied)
                    {
                        let retry = retry.as_nanos();
                        let (then, before) = (models[own].has(retry), models[own].has(retry - 1));
                        let fits = then >= n.into() && before < n.into() && retry > at;
                        group.check(
                            fits,
                            format_args!("{name}, {step}: {then} at {retry}, {before} before"),
                        );
                    }
                }
            }
        }
        let is_varied = granted > 300 && exhausted > 50 && (crowded > 30) == self.is_one_line;
        group.check(
            is_varied,
            format_args!(
                "{}: {granted} granted, {exhausted} exhausted, {crowded} crowded",
                self.name
            ),
        );
    }

    /// With idle times beyond the horizon: perhaps less than the model, never more.
    pub(crate) fn run_far<M: Model>(
        &self,
        group: &mut Group<'_>,
        models: &mut [M; KEYS],
        horizon: u64,
    ) {
        let keys = shared(self.table);
        let (mut draws, mut newest, mut granted) = (Draws(self.seed), 100 * SECOND, 0);
        for step in 0..1_000 {
            let (address, own) = keys[draws.below(KEYS as u64) as usize];
            newest += match draws.below(32) {
                0 => draws.below(3 * horizon),
                1 => horizon - draws.below(2 * SECOND),
                2 => horizon - draws.below(60 * SECOND),
                _ => draws.below(SECOND / 8),
            };
            let n = 1 + draws.below(u64::from(LIMIT)) as u32;
            let (limiter, has) = (*TableKey::at(self.table, address), models[own].has(newest));
            let available = limiter.available_at(nanos(newest));
            let is_granted = limiter.take_at(nanos(newest), n).is_ok();
            group.check(
                available <= has && (!is_granted || u64::from(n) <= has),
                format_args!(
                    "{}, {step}: {n} of {has} at {newest}, {available} available: {is_granted}",
                    self.name
                ),
            );
            if is_granted {
                models[own].take(newest, n);
                granted += 1;
            }
        }
        group.check(
            granted > 300,
            format_args!("{}: {granted} granted", self.name),
        );
    }
}

pub(crate) fn check(group: &mut Group<'_>) {
    let few = [
        FEW_BUCKETS.seed(),
        FEW_WINDOWS.seed(),
        FEW_LIMITS.seed(),
        FEW_SLIDING.seed(),
        PENALISED.seed(),
        FAR_BUCKETS.seed(),
    ];
    for (n, seed) in [BUCKETS.seed(), WINDOWS.seed(), LIMITS.seed()]
        .iter()
        .chain(&few)
        .enumerate()
    {
        let set = seed.set([7 + n as u64, !0]);
        group.check(set.is_ok(), format_args!("an unused seed: {set:?}"));
    }
    let trace = |name, seed| Trace {
        name,
        table: &BUCKETS,
        words: 1,
        entries: SLOTS,
        is_one_line: false,
        retries: true,
        seed,
    };
    trace("buckets", 1).run(group, &mut [Bucket::NEW; KEYS]);
    Trace {
        name: "few buckets",
        table: &FEW_BUCKETS,
        words: 1,
        entries: SLOTS,
        is_one_line: true,
        retries: true,
        seed: 2,
    }
    .run(group, &mut [Bucket::NEW; KEYS]);
    let horizon = if KeyedWord::BITS == 20 {
        FAR_BUCKETS.rules().timing().horizon.as_nanos() as u64
    } else {
        3_600 * SECOND
    };
    Trace {
        name: "far buckets",
        table: &FAR_BUCKETS,
        words: 1,
        entries: SLOTS,
        is_one_line: true,
        retries: true,
        seed: 3,
    }
    .run_far(group, &mut [Bucket::NEW; KEYS], horizon);
    Trace {
        name: "windows",
        table: &WINDOWS,
        words: 1,
        entries: SLOTS,
        is_one_line: false,
        retries: true,
        seed: 4,
    }
    .run(group, &mut [Window(None); KEYS]);
    Trace {
        name: "few windows",
        table: &FEW_WINDOWS,
        words: 1,
        entries: SLOTS,
        is_one_line: true,
        retries: true,
        seed: 5,
    }
    .run(group, &mut [Window(None); KEYS]);
    Trace {
        name: "few sliding windows",
        table: &FEW_SLIDING,
        words: 1,
        entries: PLACES,
        is_one_line: true,
        retries: true,
        seed: 7,
    }
    .run(group, &mut [const { Own::new(sliding()) }; KEYS]);
    Trace {
        name: "few penalties",
        table: &PENALISED,
        words: 1,
        entries: PLACES,
        is_one_line: true,
        retries: false,
        seed: 8,
    }
    .run(group, &mut [const { Own::new(penalised()) }; KEYS]);
    leases(group, "limits", &LIMITS, false, 9);
    leases(group, "few limits", &FEW_LIMITS, true, 10);
    leases_of_an_array(group);
    an_entry_is_kept_while_its_time_repeats(group);
    both_lines(group);

    seeds(group);
    settings(group);
}

/// The number of a key, and its lease.
type Held<'t, T> = Option<(usize, Lease<TableKey<&'t T>>)>;

/// Takes and releases at random, and compares with a count for each key.
fn leases<T: Keys>(group: &mut Group<'_>, name: &str, table: &T, is_one_line: bool, seed: u64) {
    let (keys, mut draws) = (shared(table), Draws(seed));
    let mut held: [Held<'_, T>; 24] = [const { None }; 24];
    let mut out = [0; KEYS];
    let (mut crowded, mut exhausted) = (0, 0);
    let has_no_slot = |out: &[u32; KEYS], own: usize| {
        is_one_line && out[own] == 0 && out.iter().filter(|n| **n > 0).count() == SLOTS
    };
    for step in 0..1_500 {
        let place = draws.below(held.len() as u64) as usize;
        if let Some((own, lease)) = held[place].take() {
            out[own] -= lease.permits();
            drop(lease);
        } else {
            let (address, own) = keys[draws.below(KEYS as u64) as usize];
            let n = 1 + draws.below(3) as u32;
            let taken = TableKey::at(table, address).try_acquire_at(Timestamp::ZERO, n);
            let expected = match (out[own] + n > LIMIT, has_no_slot(&out, own)) {
                (true, _) => Some(Denied::Exhausted {
                    now: Timestamp::ZERO,
                    permits: n,
                }),
                (false, true) => Some(Denied::Crowded {
                    now: Timestamp::ZERO,
                    permits: n,
                }),
                (false, false) => None,
            };
            let denied = taken.as_ref().err().copied();
            group.check(
                denied == expected,
                format_args!("{name}, {step}: {n}, {} out: {denied:?}", out[own]),
            );
            crowded += u32::from(matches!(denied, Some(Denied::Crowded { .. })));
            exhausted += u32::from(matches!(denied, Some(Denied::Exhausted { .. })));
            if let Ok(lease) = taken {
                out[own] += n;
                held[place] = Some((own, lease));
            }
        }
        let (address, own) = keys[draws.below(KEYS as u64) as usize];
        let available = TableKey::at(table, address).available_at(Timestamp::ZERO);
        let expected = if has_no_slot(&out, own) {
            0
        } else {
            LIMIT - out[own]
        };
        group.check(
            available == expected.into(),
            format_args!("{name}, {step}: {available} of {LIMIT}, {} out", out[own]),
        );
    }
    group.check(
        exhausted > 10 && (crowded > 10) == is_one_line,
        format_args!("{name}: {exhausted} exhausted, {crowded} crowded"),
    );
}

/// A lease keeps its slot, however late it is released, and releases to the limiter that it was
/// taken from.
fn leases_of_an_array(group: &mut Group<'_>) {
    let key = |key: u32| LEASED.key(&key);
    let own = |at| {
        LEASED
            .limiters()
            .iter()
            .filter(|limit| limit.available_at(nanos(at)) < 2)
            .count()
    };
    let lease = key(0).try_acquire_at(nanos(0), 2);
    group.check(
        lease.is_ok() && own(0) == 1,
        format_args!("all of a key: {lease:?}"),
    );
    // Each time that the slot can record comes, twice.
    for second in 1..2 * TIMES + 2 {
        let at = second * SECOND;
        let other = key(1 + second as u32).try_acquire_at(nanos(at), 2);
        let denied = key(0).peek_at(nanos(at), 1).is_err();
        // Another key may have the same tag, and so the same limit.
        let is_shared = key(1 + second as u32).address() == key(0).address();
        group.check(
            denied && other.is_err() == is_shared,
            format_args!("{second} s: {denied}, a stranger: {other:?}"),
        );
    }
    drop(lease);
    let at = (2 * TIMES + 2) * SECOND;
    let available = key(0).available_at(nanos(at));
    group.check(
        available == 2 && own(at) == 0,
        format_args!("{available} of 2 are back"),
    );
}

/// An idle slot goes to other keys, except during four of the times that it can record; and each
/// time its key finds a fresh limiter.
fn an_entry_is_kept_while_its_time_repeats(group: &mut Group<'_>) {
    static TABLE: KeyedArray<Sliding, [Sliding; PLACES], Lines<1>> = KeyedArray::new(
        sliding(),
        [const { sliding() }; PLACES],
        lines(),
        Seed::new(),
    );
    let start = 1_000 * TIMES;
    let mut taken: [Option<Address>; PLACES] = [None; PLACES];
    let mut key = 0;
    for place in 0..PLACES {
        // Each with an address of its own.
        while taken.contains(&Some(TABLE.key(&key).address())) {
            key += 1;
        }
        taken[place] = Some(TABLE.key(&key).address());
        let is_granted = TABLE
            .key(&key)
            .take_at(nanos(start * SECOND), LIMIT)
            .is_ok();
        group.check(is_granted, format_args!("the slot {place} of {PLACES}"));
    }
    while taken.contains(&Some(TABLE.key(&key).address())) {
        key += 1;
    }
    for second in 0..3 * TIMES {
        let at = nanos((start + second) * SECOND);
        let is_free = TABLE.key(&key).peek_at(at, 1).is_ok();
        // Two seconds, until the third segment ends, and a staleness.
        let expected = second >= 3 && (2..TIMES - 2).contains(&(second % TIMES));
        group.check(
            is_free == expected,
            format_args!("after {second} s a slot for another: {is_free}"),
        );
        if second > 2 {
            let available = taken
                .iter()
                .flatten()
                .map(|own| TableKey::at(&TABLE, *own).available_at(at))
                .min();
            group.check(
                available == Some(LIMIT.into()),
                format_args!("after {second} s {available:?} of {LIMIT}"),
            );
        }
    }
    let swept = TABLE.sweep_at(nanos((start + 10) * SECOND), ..);
    let statistics = TABLE.statistics_at(nanos((start + 10) * SECOND));
    group.check(
        swept == PLACES && statistics.held == 0,
        format_args!("{swept} swept, {statistics:?}"),
    );
}

/// A key whose first line is full has its slot in the other line, and finds it there.
fn both_lines(group: &mut Group<'_>) {
    const MANY: usize = 19;
    let (mut crowded, mut wrong) = (0, 0);
    for seed in 0..60 {
        let table = Keyed::new(ConcurrencyRules::new(3), lines::<4>(), Seed::new());
        _ = table.seed().set([seed + 1, !seed]);
        let key = |key: usize| table.key(&(key as u32));
        let held: [_; MANY] = core::array::from_fn(|n| key(n).take_at(Timestamp::ZERO, 2).is_ok());
        let alone = |n: usize| {
            (0..MANY).all(|other| other == n || key(other).address() != key(n).address())
        };
        for n in (0..MANY).filter(|n| alone(*n)) {
            crowded += u32::from(!held[n]);
            wrong += u32::from(key(n).available_at(Timestamp::ZERO) != if held[n] { 1 } else { 3 });
            if held[n] {
                key(n).release(2);
            }
            wrong += u32::from(key(n).available_at(Timestamp::ZERO) != 3);
        }
    }
    group.check(
        crowded < 20 && wrong == 0,
        format_args!("{crowded} crowded, {wrong} wrong"),
    );
}

/// A seed is composed of the words that the target has, whatever their width.
fn seeds(group: &mut Group<'_>) {
    let hash = |seed: &Seed, length: u8| {
        let mut hasher = seed.build_hasher();
        (0..length).for_each(|byte| hasher.write(&[byte]));
        hasher.finish()
    };
    let set = |parts| {
        let seed = Seed::new();
        _ = seed.set(parts);
        seed
    };
    // The key and the bytes of the example in the paper's appendix, which has SipHash-2-4. The hash
    // is that of an independent program, which reproduces the appendix too.
    let key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
    let seed = set(key);
    let found = hash(&seed, 15);
    group.check(
        found == 0xd320_d86d_2a51_9956,
        format_args!("the hash is {found:#x}"),
    );
    let again = seed.set([1, 2]);
    group.check(
        again == Err(SeedFixed) && hash(&seed, 15) == found,
        format_args!("set twice: {again:?}"),
    );
    for bit in 0..128 {
        let mut other = key;
        other[bit / 64] ^= 1 << (bit % 64);
        group.check(
            hash(&set(other), 15) != found,
            format_args!("bit {bit} of the seed"),
        );
    }
    let unset = Seed::new();
    let found = hash(&unset, 15);
    let late = unset.set(key);
    group.check(
        late == Err(SeedFixed) && hash(&unset, 15) == found,
        format_args!("set late: {late:?}"),
    );
    let constant = hash(&set([0, 0]), 15);
    group.check(
        constant == found,
        format_args!("zeros are the constant: {constant:#x}, {found:#x}"),
    );
}

/// Settings that do not fit a slot are refused, and the bound in the error fits.
fn settings(group: &mut Group<'_>) {
    let window = |limit| FixedWindow::builder(limit, Duration::from_secs(1)).rules();
    let bucket = |rate, burst| TokenBucket::builder(rate, burst).rules();
    let told = |error: Option<SettingsError>, setting| match error {
        Some(SettingsError::TooLarge {
            setting: named,
            max,
        }) if named == setting => Some(max),
        _ => None,
    };
    let error = window(u64::MAX).err();
    let max = told(error, Setting::Limit).unwrap_or(0);
    let fits = (window(max).is_ok(), window(max + 1).err() == error);
    group.check(
        max > 0 && fits == (true, true),
        format_args!("a window: {error:?}, {fits:?}"),
    );
    for rate in [
        Rate::per_second(1),
        Rate::per_second(1_000),
        Rate::per_hour(7),
        Rate::new(1, Duration::from_millis(1_500)),
    ] {
        let error = bucket(rate, u64::MAX).err();
        let max = told(error, Setting::Burst).unwrap_or(0);
        let fits = (bucket(rate, max).is_ok(), bucket(rate, max + 1).is_err());
        group.check(
            max > 0 && fits == (true, true),
            format_args!("{rate:?}: {error:?}, {fits:?}"),
        );
    }
    if KeyedWord::BITS == 20 {
        // As `docs/embedded.md` says.
        let spans = bucket(Rate::per_second(10), 10).map(|bucket| {
            (
                bucket.timing().tick.as_millis(),
                bucket.timing().staleness.as_secs(),
                bucket.timing().horizon.as_secs(),
            )
        });
        group.check(
            spans == Ok((10, 40, 10_485)),
            format_args!("10/s, burst 10: {spans:?}"),
        );
        let horizon = window(100).map(|window| window.timing().horizon.as_secs());
        group.check(
            horizon == Ok(8_191) && max == 65_535,
            format_args!("a window: {horizon:?}, {max}"),
        );
    }
    let error = bucket(Rate::new(u32::MAX, Duration::from_nanos(3)), 1).err();
    group.check(
        told(error, Setting::Rate).is_some(),
        format_args!("a rate: {error:?}"),
    );
    let stale = FixedWindow::builder(1, Duration::from_secs(1))
        .staleness(Duration::from_nanos(u64::MAX / 2));
    let error = stale.rules().err();
    // Of 43 bits, a window of a second leaves this many.
    let expected = KeyedWord::BITS == 20;
    group.check(
        told(error, Setting::Staleness).is_some() == expected,
        format_args!("a staleness of 292 years: {error:?}"),
    );
    let most = bucket(Rate::UNLIMITED, 1).map(|rules| {
        let table = Keyed::new(rules, lines::<1>(), Seed::new());
        table.key("any").take_at(Timestamp::ZERO, u32::MAX).is_ok()
    });
    group.check(most == Ok(true), format_args!("no limit: {most:?}"));
}
