//! Attacks on a keyed table: millions of keys that try to push others out, keys chosen to collide,
//! and threads that use the same keys at once. No key is granted more than its limit, no key in use
//! is reset, and nothing is allocated.

#[path = "support/allocations.rs"]
mod allocations;

#[allow(dead_code, reason = "made for traces, too")]
#[path = "support/draws.rs"]
mod draws;

use core::hash::{BuildHasher, Hasher};
use core::sync::atomic::Ordering::SeqCst;
use core::sync::atomic::{AtomicU32, AtomicU64};
use core::time::Duration;
use std::collections::HashMap;
use std::sync::{Barrier, Mutex};
use std::time::Instant;

use allocations::allocations;
use draws::Draws;
use portcullis_core::keyed::{ConcurrencyRules, Line, Seed, TokenBucketRules};
use portcullis_core::{
    AllOf, Concurrency, Denied, Keyed, Lease, Limiter, LimiterExt, Rate, Retry, Timestamp,
    TokenBucket,
};

const fn at(nanos: u64) -> Timestamp {
    Timestamp::from_nanos(nanos)
}

fn lines(n: usize) -> Vec<Line> {
    (0..n).map(|_| Line::new()).collect()
}

fn seed(n: u64) -> Seed {
    let seed = Seed::new();
    seed.set([n + 1, !n]).expect("not used before");
    seed
}

// Many keys, one after the other.

/// The number of keys of an attack.
const KEYS: u64 = if cfg!(debug_assertions) {
    60_000
} else {
    10_000_000
};
const BURST: u64 = 1;
/// A permit comes in each 100 ms.
const EACH: u64 = 100_000_000;
const HONEST: u64 = u64::MAX;

fn bucket() -> TokenBucketRules {
    TokenBucket::builder(Rate::new(1, Duration::from_nanos(EACH)), BURST)
        .rules()
        .unwrap()
}

/// For each key, the instant at which all its granted permits are replenished. This is enough to
/// check that each window of time holds at most the burst plus a permit for each [`EACH`].
struct Ledger(Vec<u64>);

impl Ledger {
    fn grant(&mut self, key: u64, now: u64) {
        let due = &mut self.0[key as usize];
        *due = now.max(*due) + EACH;
        assert!(
            *due - now <= BURST * EACH,
            "key {key} was granted too much at {now}"
        );
    }
}

/// The result of an attack.
#[derive(Clone, Copy, Debug, Default)]
struct Outcome {
    granted: u64,
    exhausted: u64,
    crowded: u64,
    /// Grants of the honest key.
    honest: u64,
}

/// Sends all keys through `table`, each twice in a row, and some again later; alternately at full
/// speed, and as slowly as they are forgotten. In between, an honest key asks for more than its
/// rate. It is granted no more than by a limiter of its own, and no less if no other key `shares`
/// its slot.
fn attack<S: BuildHasher>(table: &Keyed<TokenBucketRules, Vec<Line>, S>, shares: bool) -> Outcome {
    const PHASE: u64 = KEYS / 20;
    let twin = TokenBucket::builder(Rate::new(1, Duration::from_nanos(EACH)), BURST)
        .tick(table.rules().timing().tick)
        .build()
        .unwrap();
    // The last one is the honest key's.
    let mut ledger = Ledger(vec![0; KEYS as usize + 1]);
    let mut outcome = Outcome::default();
    let mut now = 5_000_000_000;
    let honest = table.key(&HONEST);
    let count = allocations(|| {
        for key in 0..KEYS {
            if key % 32 == 0 {
                let told = honest.take_at(at(now), 1);
                if told.is_ok() {
                    ledger.grant(KEYS, now);
                    outcome.honest += 1;
                }
                assert!(
                    !matches!(told, Err(Denied::Crowded { .. })),
                    "pushed out at {now}"
                );
                assert!(
                    shares || told.is_ok() == twin.take_at(at(now), 1).is_ok(),
                    "another decision at {now}"
                );
            }
            // One of the earlier keys.
            let back = key.wrapping_mul(0x9e37_79b9) % (key + 1).min(1 << (key % 20));
            for key in [key, key, key - back] {
                let limiter = table.key(&key);
                match limiter.take_at(at(now), 1) {
                    Ok(_) => {
                        ledger.grant(key, now);
                        outcome.granted += 1;
                    }
                    Err(denied @ Denied::Crowded { .. }) => {
                        outcome.crowded += 1;
                        if outcome.crowded % 1_024 == 1 {
                            assert_eq!(limiter.retry(denied), Retry::After(Duration::from_secs(1)));
                        }
                    }
                    Err(Denied::Exhausted { .. }) => outcome.exhausted += 1,
                    Err(denied) => panic!("{denied}"),
                }
            }
            now += if (key / PHASE).is_multiple_of(2) {
                1_000
            } else {
                200_000
            };
        }
    });
    assert_eq!(count, 0, "allocated");
    outcome
}

fn check_attack<S: BuildHasher>(what: &str, size: usize, hasher: S, shares: bool) -> Outcome {
    let table = Keyed::new(bucket(), lines(size), hasher);
    assert!(table.key(&HONEST).take_at(at(5_000_000_000), 0).is_ok());
    let begun = Instant::now();
    let outcome = attack(&table, shares);
    let statistics = table.statistics_at(at(0));
    println!(
        "{what}: {KEYS} keys in {:.1} s: {outcome:?}, {statistics:?}",
        begun.elapsed().as_secs_f64()
    );
    assert_eq!(statistics.slots, 7 * size, "and no more");
    assert!(statistics.held <= statistics.slots);
    assert_eq!(statistics.overflowed, outcome.crowded);
    assert!(outcome.honest > 10 && outcome.granted > 20);
    outcome
}

#[test]
fn millions_of_keys_push_no_key_out_of_a_table_of_65_536_slots() {
    let outcome = check_attack("8,192 lines", 8_192, seed(0), false);
    assert!(
        outcome.exhausted > KEYS / 4,
        "each second request of a key that has a slot"
    );
    assert!(cfg!(debug_assertions) || outcome.crowded > 0, "never full");
}

#[test]
fn millions_of_keys_push_no_key_out_of_a_single_line() {
    // Some have the tag of the honest key.
    assert!(check_attack("1 line", 1, seed(0), true).crowded > KEYS);
}

/// Hashes a number to a tag and a line.
#[derive(Clone, Copy)]
struct Chosen(fn(u64) -> u64);

impl BuildHasher for Chosen {
    type Hasher = Choice;

    fn build_hasher(&self) -> Choice {
        Choice {
            hash: self.0,
            key: 0,
        }
    }
}

struct Choice {
    hash: fn(u64) -> u64,
    key: u64,
}

impl Hasher for Choice {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.key = self.key << 8 | u64::from(byte);
        }
    }

    fn write_u64(&mut self, key: u64) {
        self.key = key;
    }

    fn finish(&self) -> u64 {
        (self.hash)(self.key)
    }
}

#[test]
fn keys_chosen_to_share_one_line_push_no_key_out_of_it() {
    // The upper half of a key's hash selects the line, and the lowest bits are the tag.
    let one_line = Chosen(|key| key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32);
    check_attack("all in line 0", 8_192, one_line, false);
}

#[test]
fn keys_chosen_to_have_equal_hashes_share_one_limit() {
    let alike = Chosen(|_| 0x1234_5678_9abc_def0);
    let table = Keyed::new(bucket(), lines(64), alike);
    let mut ledger = Ledger(vec![0]);
    let mut granted = 0;
    for key in 0..KEYS {
        let now = 5_000_000_000 + 10_000 * key;
        match table.key(&key).take_at(at(now), 1) {
            Ok(_) => {
                ledger.grant(0, now);
                granted += 1;
            }
            Err(denied) => assert_eq!(
                denied,
                Denied::Exhausted {
                    now: at(now),
                    permits: 1
                }
            ),
        }
    }
    let statistics = table.statistics_at(at(0));
    assert_eq!(
        (statistics.held, statistics.replaced, statistics.overflowed),
        (1, 0, 0)
    );
    assert_eq!(granted, BURST + (KEYS - 1) * 10_000 / EACH);
}

#[test]
fn a_table_is_its_lines_and_a_few_words() {
    let count = allocations(|| {
        let table = Keyed::new(bucket(), [const { Line::new() }; 16], seed(0));
        let small = Keyed::new(bucket(), [const { Line::new() }; 1], seed(0));
        assert_eq!(size_of_val(&table) - size_of_val(&small), 15 * 64);
        assert!(size_of_val(&small) <= 64 + 192, "{}", size_of_val(&small));
        let users = Keyed::new(ConcurrencyRules::new(2), [Line::new()], seed(0));
        for key in 0..100u64 {
            let limiter = table.key(&key);
            if let Ok(mut lease) = limiter.try_acquire_at(at(key), 2) {
                assert!(lease.refund_at(at(key), 1).is_ok());
            }
            let _ = (
                limiter.explain_at(at(key), 1),
                limiter.idle_at(at(key)),
                limiter.id(),
            );
            let _ = (
                table.sweep_at(at(key << 30), ..),
                table.statistics_at(at(key)),
            );
            let first = Lease::try_acquire_at(users.key("alice"), at(key), 1);
            let second = Lease::try_acquire_at(users.key(&(key, "bob")), at(key), 2);
            assert!(first.is_ok());
            drop((first, second));
        }
    });
    assert_eq!(count, 0);
}

// A million keys at once.

#[test]
fn at_16_bytes_per_key_nearly_every_key_has_a_slot_of_its_own() {
    let keys = if cfg!(debug_assertions) {
        50_000u64
    } else {
        1_000_000
    };
    let once = || TokenBucket::builder(Rate::per_hour(1), 1).rules().unwrap();
    for round in 0..3 {
        let table = Keyed::new(once(), lines(keys as usize / 4), seed(round));
        let (mut own, mut shared, mut crowded) = (0u64, 0u64, 0u64);
        for key in 0..keys {
            match table.key(&key).take_at(at(0), 1) {
                Ok(_) => own += 1,
                Err(Denied::Exhausted { .. }) => shared += 1,
                Err(denied) => {
                    assert_eq!(
                        denied,
                        Denied::Crowded {
                            now: at(0),
                            permits: 1
                        }
                    );
                    crowded += 1;
                }
            }
        }
        let statistics = table.statistics_at(at(0));
        println!(
            "{keys} keys in {} slots: {own} have one of their own ({}.{:02} %), {shared} find it used, {crowded} find none",
            statistics.slots,
            own * 100 / keys,
            own * 10_000 / keys % 100
        );
        assert_eq!(
            (
                statistics.held as u64,
                statistics.live as u64,
                statistics.overflowed
            ),
            (own, own, crowded)
        );
        assert_eq!(4 * statistics.slots as u64, 7 * keys);
        assert!(own * 100 >= keys * 99, "{own} of {keys}");
        // One in 130,000 at the end, and fewer before. Each key that shares a slot shares it with
        // another.
        assert!(
            shared * 40_000 < keys.max(400_000) && crowded * 500 <= keys,
            "{shared}, {crowded}"
        );
    }
}

#[cfg(feature = "std")]
#[test]
fn in_a_table_for_n_keys_at_most_one_new_key_in_a_million_finds_no_slot() {
    let part = if cfg!(debug_assertions) { 20 } else { 1 };
    let (mut asked, mut crowded) = (0, 0);
    for keys in [9, 24, 64, 256, 1_000, 20_000] {
        let tables = (1_000_000 / part / keys).max(2);
        let probes = 2_000_000 / part / tables;
        let mut without = 0;
        for round in 0..tables {
            let once = Concurrency::new(1);
            let table = Keyed::for_keys_with_hasher(once, keys as usize, seed(round));
            for key in 1..keys {
                let _ = table.key(&key).take_at(at(0), 1);
            }
            // Each other key would be the last.
            without += (keys..keys + probes)
                .filter(|key| {
                    let probe = table.key(key).take_at(at(0), 0);
                    matches!(probe, Err(Denied::Crowded { .. }))
                })
                .count();
        }
        println!(
            "{keys} keys: {without} of {} new keys find no slot",
            tables * probes
        );
        asked += tables * probes;
        crowded += without as u64;
    }
    // The seeds are always the same.
    assert!(
        crowded * 1_000_000 <= asked,
        "{crowded} of {asked} new keys find no slot"
    );
}

// Threads.

const THREADS: u64 = 4;
/// More grants than this for each thread are enough for a meaningful result.
const ENOUGH: u64 = 25;

fn duration() -> Duration {
    Duration::from_millis(if cfg!(debug_assertions) { 400 } else { 1_500 })
}

/// Returns whether a thread goes on: for `time`, and then until `is_enough`. How much is granted in
/// `time` depends on how the threads are scheduled. After a minute the thread ends in any case, and
/// the test fails because there is not enough.
fn goes_on(begun: Instant, time: Duration, is_enough: impl FnOnce() -> bool) -> bool {
    let passed = begun.elapsed();
    passed < time || passed < Duration::from_secs(60) && !is_enough()
}

/// Runs `work` on several threads at once, with the number of each, and returns what they return.
fn on_threads<R: Send>(work: impl Fn(u64) -> R + Sync) -> Vec<R> {
    let (barrier, work) = (Barrier::new(THREADS as usize), &work);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    work(thread)
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no thread panicked"))
            .collect()
    })
}

#[test]
fn threads_that_use_the_same_new_key_at_once_get_its_burst_once() {
    // New keys, in tables of one and two lines, nearly half of whose slots other keys hold.
    let once = || TokenBucket::builder(Rate::per_hour(1), 1).rules().unwrap();
    let rounds = if cfg!(debug_assertions) { 500 } else { 20_000 };
    let (mut granted, mut crowded) = (0, 0);
    for size in [1, 2] {
        let tables: Vec<_> = (0..rounds)
            .map(|round| Keyed::new(once(), lines(size), seed(round)))
            .collect();
        for table in &tables {
            for key in 100..100 + 3 * size as u64 {
                assert!(table.key(&key).take_at(at(0), 1).is_ok());
            }
        }
        let turn = AtomicU64::new(0);
        let outcomes = on_threads(|_| {
            let mut outcomes = Vec::with_capacity(3 * tables.len());
            for (table, round) in tables.iter().zip(0..) {
                // All threads are in the same round.
                turn.fetch_add(1, SeqCst);
                let mut spins = 0;
                while turn.load(SeqCst) < THREADS * (round + 1) {
                    spins += 1;
                    if spins % 256 == 0 {
                        std::thread::yield_now();
                    }
                }
                for key in 0..3u64 {
                    outcomes.push(table.key(&key).take_at(at(0), 1));
                }
            }
            outcomes
        });
        for round in 0..3 * tables.len() {
            let each = outcomes.iter().map(|outcomes| &outcomes[round]);
            let grants = each.clone().flatten().count();
            assert!(grants <= 1, "{grants} grants of one permit");
            granted += grants;
            crowded += each
                .filter(|outcome| matches!(outcome, Err(Denied::Crowded { .. })))
                .count();
        }
        for table in &tables {
            assert!(
                table.statistics_at(at(0)).held <= 4 * size + 3,
                "a key has two slots"
            );
        }
    }
    println!(
        "{granted} of {} keys granted; {crowded} denials while another claimed",
        6 * rounds
    );
    assert!(
        granted as u64 > 5 * rounds,
        "hardly any request was granted"
    );
}

/// A permit that was granted at some instant from `earliest` to `latest`: the request's own `now`,
/// and the newest `now` of any thread.
#[derive(Clone, Copy, Debug)]
struct Admission {
    earliest: u64,
    latest: u64,
}

#[test]
fn threads_that_share_a_clock_and_few_slots_keep_the_bound_of_each_key() {
    // Two per second, and one at once: idle after half a second, and forgotten a second later.
    const MILLI: u64 = 1_000_000;
    for size in 1..=3 {
        // The clock runs fast: a thread that is paused for a moment comes days late, and must not
        // mistake what it sees for idle.
        let limit =
            TokenBucket::builder(Rate::per_second(2), 1).staleness(Duration::from_hours(240));
        let limit = limit.rules().unwrap();
        let table = Keyed::new(limit, lines(size), seed(size as u64));
        let (clock, newest) = (AtomicU64::new(3_000 * MILLI), AtomicU64::new(0));
        let begun = Instant::now();
        let all: Mutex<HashMap<u64, Vec<Admission>>> = Mutex::default();
        on_threads(|thread| {
            let mut draws = Draws::Seeded {
                state: thread,
                steps: 0,
            };
            let mut mine: HashMap<u64, Vec<Admission>> = HashMap::new();
            let mut granted = 0;
            let is_enough = |granted| {
                let seen = table.statistics_at(at(newest.load(SeqCst)));
                granted > ENOUGH && seen.replaced > 100
            };
            while goes_on(begun, duration() / 3, || is_enough(granted)) {
                let now = clock.fetch_add(25 * MILLI, SeqCst);
                // A key that all threads use for a few calls; or one from before or after, or a
                // stale timestamp.
                let group = now / (100 * MILLI) * 3;
                let key = match draws.below(4) {
                    0 => group.saturating_sub(draws.below(100)),
                    _ => group,
                };
                let now = if draws.once_in(4) {
                    now - draws.magnitude(900 * MILLI)
                } else {
                    now
                };
                newest.fetch_max(now, SeqCst);
                if table.key(&key).take_at(at(now), 1).is_ok() {
                    let latest = newest.load(SeqCst);
                    granted += 1;
                    mine.entry(key).or_default().push(Admission {
                        earliest: now,
                        latest,
                    });
                }
            }
            let mut all = all.lock().expect("no thread panicked");
            for (key, mut admissions) in mine {
                all.entry(key).or_default().append(&mut admissions);
            }
        });
        let all = all.into_inner().expect("no thread panicked");
        let mut admitted = 0;
        for (key, mut admissions) in all {
            admitted += admissions.len() as u64;
            admissions.sort_unstable_by_key(|admission| admission.latest);
            for first in &admissions {
                let mut held = 0;
                for last in admissions
                    .iter()
                    .filter(|last| last.earliest >= first.earliest)
                {
                    held += 1;
                    // In whole ticks of a microsecond.
                    let time = last.latest / 1_000 * 1_000 - first.earliest / 1_000 * 1_000;
                    let most = 1_000 * MILLI + 2 * time;
                    assert!(
                        held * 1_000 * MILLI <= most,
                        "key {key}: {held} from {first:?} to {last:?}"
                    );
                }
            }
        }
        let statistics = table.statistics_at(at(newest.into_inner()));
        println!("{size} lines: {admitted} admitted, {statistics:?}");
        assert!(admitted > THREADS * ENOUGH && statistics.replaced > 100);
    }
}

#[test]
fn threads_that_take_and_release_lose_no_permit_and_no_slot() {
    const LIMIT: u32 = 3;
    for (size, keys) in [(1, 8), (1, 12), (2, 24), (3, 40), (2, 10)] {
        let table = Keyed::new(ConcurrencyRules::new(LIMIT), lines(size), seed(size as u64));
        let out: Vec<AtomicU32> = (0..keys).map(|_| AtomicU32::new(0)).collect();
        let begun = Instant::now();
        let granted: u64 = on_threads(|thread| {
            let mut draws = Draws::Seeded {
                state: thread,
                steps: 0,
            };
            let mut held: Vec<(usize, Lease<_>)> = Vec::new();
            let mut granted = 0;
            while goes_on(begun, duration() / 5, || granted > 2 * ENOUGH) {
                for _ in 0..100 {
                    let key = draws.below(keys) as usize;
                    let n = draws.within(1, LIMIT.into()) as u32;
                    if let Ok(lease) = Lease::try_acquire_at(table.key(&key), at(0), n) {
                        let before = out[key].fetch_add(n, SeqCst);
                        assert!(before + n <= LIMIT, "{} out of {LIMIT}", before + n);
                        held.push((key, lease));
                        granted += 1;
                    }
                    while held.len() as u64 > draws.below(4) {
                        let pick = draws.below(held.len() as u64) as usize;
                        let (key, lease) = held.swap_remove(pick);
                        out[key].fetch_sub(lease.permits(), SeqCst);
                        drop(lease);
                    }
                    if draws.once_in(50) {
                        table.sweep_at(at(0), ..);
                    }
                }
            }
            for (key, lease) in held {
                out[key].fetch_sub(lease.permits(), SeqCst);
                drop(lease);
            }
            granted
        })
        .into_iter()
        .sum();
        let statistics = table.statistics_at(at(0));
        println!("{keys} keys in {size} lines: {granted} granted, {statistics:?}");
        assert!((0..keys as usize).all(|key| table.key(&key).available_at(at(0)) == LIMIT.into()));
        assert_eq!(statistics.live, 0, "all are released");
        assert_eq!(table.sweep_at(at(0), ..), statistics.held);
        assert_eq!(table.statistics_at(at(0)).held, 0, "no slot is lost");
        assert!(granted > THREADS * 2 * ENOUGH);
    }
}

#[test]
fn threads_that_take_by_user_and_tenant_in_any_order_lose_nothing() {
    const LIMIT: u32 = 2;
    let users = Keyed::new(ConcurrencyRules::new(LIMIT), lines(1), seed(0));
    let tenants = Keyed::new(ConcurrencyRules::new(LIMIT), lines(1), seed(1));
    let all = Concurrency::new(5);
    let out: [Vec<AtomicU32>; 2] = [0, 1].map(|_| (0..10).map(|_| AtomicU32::new(0)).collect());
    let begun = Instant::now();
    let granted: u64 = on_threads(|thread| {
        let mut draws = Draws::Seeded {
            state: thread,
            steps: 0,
        };
        let mut granted = 0;
        while goes_on(begun, duration() / 2, || granted > ENOUGH) {
            let keys = [draws.below(10), draws.below(10)];
            let (user, tenant) = (*users.key(&keys[0]), *tenants.key(&keys[1]));
            let mut limits: [&(dyn Limiter + Sync); 3] = [&user, &tenant, &all];
            limits.rotate_left(draws.below(3) as usize);
            let limits: [&dyn Limiter; 3] = limits.map(|limit| limit as &dyn Limiter);
            if let Ok(lease) = AllOf::new(limits).try_acquire_at(at(0), 1) {
                granted += 1;
                for (out, key) in out.iter().zip(keys) {
                    assert!(out[key as usize].fetch_add(1, SeqCst) < LIMIT);
                }
                if draws.once_in(4) {
                    std::thread::yield_now();
                }
                for (out, key) in out.iter().zip(keys) {
                    out[key as usize].fetch_sub(1, SeqCst);
                }
                drop(lease);
            }
        }
        granted
    })
    .into_iter()
    .sum();
    println!("{granted} granted");
    assert_eq!(all.in_use(), 0);
    for table in [&users, &tenants] {
        assert_eq!(table.statistics_at(at(0)).live, 0);
        table.sweep_at(at(0), ..);
        assert_eq!(table.statistics_at(at(0)).held, 0);
    }
    assert!(granted > THREADS * ENOUGH);
}
