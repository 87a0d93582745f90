//! Token buckets by key, compared with governor's keyed limiter, which keeps them in a `DashMap`.
//!
//! Both are filled with all keys before the measurement, and use their default hashers: ours has a
//! `RandomSeed`, governor the standard library's `RandomState`. For small tables,
//! `governor-same-hash` is governor with our hasher. All are asked for the same keys in the same
//! order, drawn beforehand.
//!
//! `keyed3` has three token buckets for each key, side by side. Its peers are our table with one
//! bucket, that table with as much memory as the three buckets have, and three of governor's maps.
//!
//! Our tables have at most 16 bytes per key, and for three limits 64. The notes of the rows give
//! the memory of each side.
//!
//! `hash-and-exchange` is a second floor: our hash of the key, and an exchange of one word. No
//! table that decides by one word can be faster with this hash.

use core::array;
use core::cell::LazyCell;
use core::hash::BuildHasher;
use core::iter;
use core::num::NonZeroU32;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::hash::RandomState;
use std::rc::Rc;
use std::sync::Arc;

use crossbeam_utils::CachePadded;
use governor::clock::FakeRelativeClock;
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::InMemoryState;
use governor::state::keyed::DashMapStateStore;
use governor::{Quota, RateLimiter};
use portcullis_core::keyed::{Line, RandomSeed, TableKey, TokenBucketRules};
use portcullis_core::queue::Keys;
use portcullis_core::{Keyed, KeyedList, Rate, Timestamp, TokenBucket};

use crate::measure::{Contest, Contestant, Expected, Ready};

/// Rows that take seconds to fill are left out with `quick`.
pub(crate) fn rows(quick: bool) -> Vec<Contest> {
    let mut rows = vec![
        allow("keyed.uniform_1k", 1_000, UNIFORM, 1),
        allow("keyed.uniform_1m", 1_000_000, UNIFORM, 1),
        allow("keyed.uniform_1m", 1_000_000, UNIFORM, 2),
        allow_each("keyed3.uniform_1m", 1_000_000),
        allow("keyed.zipf_1k", 1_000, ZIPF, 1),
        allow("keyed.zipf_1m", 1_000_000, ZIPF, 1),
    ];
    if !quick {
        rows.push(allow("keyed.uniform_10m", 10_000_000, UNIFORM, 1));
    }
    rows
}

/// Exponents of Zipf's law: the frequency of the key of rank r is that of the first key divided by
/// r to this power.
const UNIFORM: i32 = 0;
const ZIPF: i32 = 1;

/// Permits per second for each key, so that all requests are granted.
const PLENTY: u32 = 1_000_000_000;
/// The time at which the tables are filled.
const START: u64 = 1 << 40;

/// Grants at explicit times, which advance by 4 ns per operation.
fn allow(row: &'static str, keys: usize, exponent: i32, threads: usize) -> Contest {
    let field: LazyField = lazy(move || Field::one_limit(keys, lines_for(keys), exponent));
    let governor = Rc::clone(&field);
    let mut peers = vec![governor_keyed::<RandomState, _>(
        "governor-keyed",
        keys,
        1,
        governor,
    )];
    if keys <= SMALL {
        let governor = Rc::clone(&field);
        let peer = governor_keyed::<RandomSeed, _>("governor-same-hash", keys, 1, governor);
        peers.push(peer);
    }
    if threads == 1 {
        peers.push(hash_and_exchange(Rc::clone(&field)));
    }
    Contest {
        row,
        threads,
        expected: Expected::Granted,
        ours: ours(field),
        peers,
    }
}

/// Grants of three buckets for each key, a permit of each.
fn allow_each(row: &'static str, keys: usize) -> Contest {
    // An entry of three limits has four words.
    let lines = 4 * lines_for(keys);
    let list: LazyField<List> = lazy(move || {
        let table = KeyedList::new(buckets(), of_lines(lines), RandomSeed::new());
        let held = |table: &List| table.statistics_at(Timestamp::from_nanos(START)).held;
        Field::new(table, held, keys, lines, UNIFORM)
    });
    let one = lazy(move || Field::one_limit(keys, lines_for(keys), UNIFORM));
    let as_large = lazy(move || Field::one_limit(keys, lines, UNIFORM));
    Contest {
        row,
        threads: 1,
        expected: Expected::Granted,
        ours: ours(Rc::clone(&list)),
        peers: vec![
            ours(one).named("keyed"),
            ours(as_large).named("keyed-as-large"),
            governor_keyed::<RandomState, _>("governor-keyed", keys, 3, list),
        ],
    }
}

/// Three limits that allow all requests.
fn buckets() -> [TokenBucketRules; 3] {
    [
        Rate::per_second(PLENTY),
        Rate::per_second(999_999_937),
        Rate::per_minute(PLENTY),
    ]
    .map(|rate| {
        let bucket = TokenBucket::builder(rate, 1_000_000);
        bucket.rules().expect("settings that fit")
    })
}

/// The largest number of keys whose slots fit into the first-level cache, so that the hash matters.
const SMALL: usize = 1_000;

type Table = Keyed<TokenBucketRules, Box<[Line]>, RandomSeed>;
type List = KeyedList<[TokenBucketRules; 3], Box<[Line]>, RandomSeed>;

type Map<S> = RateLimiter<u64, DashMapStateStore<u64, S>, FakeRelativeClock, NoOpMiddleware<Nanos>>;

/// Our table, and the keys for both sides.
struct Field<T = Table> {
    table: T,
    draws: Box<[u64]>,
    note: String,
}

/// Created when the first of the two sides is set up.
type LazyField<T = Table> = Rc<LazyCell<Arc<Field<T>>, Box<dyn FnOnce() -> Arc<Field<T>>>>>;

fn lazy<T>(field: impl FnOnce() -> Field<T> + 'static) -> LazyField<T> {
    Rc::new(LazyCell::new(Box::new(move || Arc::new(field()))))
}

/// The number of lines of a table with one limit: at most 16 bytes per key.
const fn lines_for(keys: usize) -> usize {
    keys.div_ceil(4)
}

fn of_lines(lines: usize) -> Box<[Line]> {
    (0..lines).map(|_| Line::new()).collect()
}

/// The number of keys that are drawn before they repeat.
const DRAWS: usize = 1 << 22;

impl Field {
    fn one_limit(keys: usize, lines: usize, exponent: i32) -> Self {
        let limit = TokenBucket::builder(Rate::per_second(PLENTY), PLENTY.into()).rules();
        let rules = limit.expect("settings that fit");
        let table = Keyed::new(rules, of_lines(lines), RandomSeed::new());
        let held = |table: &Table| table.statistics_at(Timestamp::from_nanos(START)).held;
        Self::new(table, held, keys, lines, exponent)
    }
}

impl<T: Keys> Field<T> {
    fn new(table: T, held: impl Fn(&T) -> usize, keys: usize, lines: usize, exponent: i32) -> Self {
        // A few keys find all their slots taken. They would be denied, and are left out.
        let found: Vec<u64> = (0..keys as u64)
            .filter(|key| ask(&table, &[*key], START) == 1)
            .collect();
        // Keys that share a slot with another key.
        let sharing = 2 * (found.len() - held(&table));
        let own = (found.len() - sharing) as f64 / keys as f64;
        assert!(own >= 0.99, "{own} of all keys have a slot of their own");
        let note = format!(
            "{:.1} bytes per key; {:.3} % of keys have a slot of their own, {sharing} share one, {} found none",
            (lines * size_of::<Line>()) as f64 / keys as f64,
            100.0 * own,
            keys - found.len(),
        );
        Self {
            table,
            draws: draw(&found, exponent),
            note,
        }
    }

    /// Returns the keys of `operations` operations from number `first` on, in pieces.
    fn pieces(&self, first: u64, operations: u64) -> impl Iterator<Item = &[u64]> {
        let mut at = first as usize % DRAWS;
        let mut left = operations as usize;
        iter::from_fn(move || {
            let piece = self.draws[at..].get(..left).unwrap_or(&self.draws[at..]);
            (at, left) = (0, left - piece.len());
            (!piece.is_empty()).then_some(piece)
        })
    }
}

/// Takes one permit for each of `keys`, at times that advance by 4 ns, and returns the number of
/// grants. It also fills the tables, so that everything is compiled into one loop.
#[inline(never)]
fn ask<T: Keys>(table: &T, keys: &[u64], start: u64) -> u64 {
    let mut granted = 0;
    for (i, key) in (0..).zip(keys) {
        let now = Timestamp::from_nanos(start + 4 * i);
        granted += u64::from(TableKey::new(table, key).try_acquire_at(now, 1).is_ok());
    }
    granted
}

/// Draws from a table of cumulative shares.
fn draw(keys: &[u64], exponent: i32) -> Box<[u64]> {
    let mut sum = 0.0;
    let sums: Vec<f64> = (1..=keys.len())
        .map(|rank| {
            sum += (rank as f64).powi(-exponent);
            sum
        })
        .collect();
    let mut random = random();
    let draw = |_| {
        let at = random.next().unwrap_or_default() * sum;
        keys[sums.partition_point(|upto| *upto <= at).min(keys.len() - 1)]
    };
    (0..DRAWS).map(draw).collect()
}

/// Returns numbers from 0 to below 1: `SplitMix64` (Steele, Lea and Flood, 2014), the same in each
/// run.
fn random() -> impl Iterator<Item = f64> {
    (1_u64..).map(|i| {
        let z = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) >> 11) as f64 / (1_u64 << 53) as f64
    })
}

fn ours<T: Keys + Send + Sync + 'static>(field: LazyField<T>) -> Contestant {
    Contestant::prepared("portcullis", move || {
        let field = Arc::clone(&field);
        let note = field.note.clone();
        let clocks: [_; 2] = array::from_fn(|_| CachePadded::new(AtomicU64::new(START)));
        let cursors = cursors();
        Ready::new(move |thread, operations| {
            let mut now = clocks[thread].fetch_add(4 * operations, Relaxed);
            let mut granted = 0;
            for keys in field.pieces(cursors[thread].fetch_add(operations, Relaxed), operations) {
                granted += ask(&field.table, keys, now);
                now += 4 * keys.len() as u64;
            }
            granted
        })
        .noting(note)
    })
}

/// Hashes each key, and exchanges one padded word for a value that depends on the hash.
fn hash_and_exchange(field: LazyField) -> Contestant {
    Contestant::prepared("hash-and-exchange", move || {
        let field = Arc::clone(&field);
        let word = CachePadded::new(AtomicU64::new(0));
        let cursors = cursors();
        let exchange = move |seed: &RandomSeed, keys: &[u64]| {
            for key in keys {
                let hash = seed.hash_one(key);
                let mut value = word.load(Relaxed);
                while let Err(newer) =
                    word.compare_exchange_weak(value, value ^ hash, Relaxed, Relaxed)
                {
                    value = newer;
                }
            }
            keys.len() as u64
        };
        Ready::new(move |thread, operations| {
            let pieces = field.pieces(cursors[thread].fetch_add(operations, Relaxed), operations);
            pieces.map(|keys| exchange(field.table.seed(), keys)).sum()
        })
    })
}

/// governor with its own fake clock, which is the cheapest clock for it. It stands still during a
/// run. Each limit of a key has a map of its own.
fn governor_keyed<S, T>(
    name: &'static str,
    keys: usize,
    limits: usize,
    field: LazyField<T>,
) -> Contestant
where
    S: BuildHasher + Clone + Default + Send + Sync + 'static,
    T: Keys + Send + Sync + 'static,
{
    Contestant::prepared(name, move || {
        let field = Arc::clone(&field);
        let clock = FakeRelativeClock::default();
        let quota =
            Quota::per_second(NonZeroU32::new(PLENTY).unwrap()).allow_burst(NonZeroU32::MAX);
        let mut bytes = 0;
        let map = |_| {
            let map =
                RateLimiter::dashmap_with_clock_and_hasher(quota, clock.clone(), S::default());
            let is_granted = (0..keys as u64).all(|key| map.check_key(&key).is_ok());
            assert!(is_granted, "a burst for each");
            let states = map.into_state_store();
            bytes += bytes_of(states.capacity(), size_of::<(u64, InMemoryState)>());
            Map::new(quota, states, clock.clone())
        };
        let limiters: Box<[Map<S>]> = (0..limits).map(map).collect();
        let note = format!("{:.1} bytes per key", bytes as f64 / keys as f64);
        let ask = move |keys: &[u64]| {
            let is_allowed = |key| limiters.iter().all(|map| map.check_key(key).is_ok());
            keys.iter().filter(|key| is_allowed(*key)).count() as u64
        };
        let cursors = cursors();
        Ready::new(move |thread, operations| {
            clock.advance(Duration::from_nanos(2 * operations));
            let pieces = field.pieces(cursors[thread].fetch_add(operations, Relaxed), operations);
            pieces.map(&ask).sum()
        })
        .noting(note)
    })
}

/// The memory of a `DashMap` with room for `capacity` entries. Its shards are tables of
/// `hashbrown`: seven of eight places can be used, and each has an entry and a byte beside it.
const fn bytes_of(capacity: usize, entry: usize) -> usize {
    capacity.div_ceil(7) * 8 * (entry + 1)
}

/// The position of each thread in the drawn keys. Each run continues where the previous one ended.
/// The positions of two threads are far apart.
fn cursors() -> [CachePadded<AtomicU64>; 2] {
    [0, DRAWS as u64 / 2].map(|first| CachePadded::new(AtomicU64::new(first)))
}
