//! Instructions and estimated cache misses of each hot path, counted by Callgrind. The counts are
//! the same on every machine.
//!
//! Each bench performs its operation a thousand times, so that the surrounding code does not
//! matter. `unlimited` is the empty loop. `cargo xtask bench-check` runs this and compares the
//! counts with the baseline.

#[macro_use]
#[path = "../../core/tests/support/registry.rs"]
mod registry;

use core::hint::black_box;
use core::time::Duration;

use gungraun::{library_benchmark, library_benchmark_group, main};
use portcullis_core::clock::Interval;
use portcullis_core::keyed::{Line, Seed, TokenBucketRules};
use portcullis_core::leases::LeaseId;
use portcullis_core::parts::Slice;
use portcullis_core::state::{Carry, Word};
use portcullis_core::{
    AdjustableBucket, AllOf, Clock, Clocked, Concurrency, Counted, Denied, Keyed, KeyedList,
    LeasePool, Limiter, LimiterExt, ManualClock, Penalty, Rate, Retry, SlicedBucket, SlidingWindow,
    Timestamp, TokenBucket,
};

/// Operations per bench.
const OPERATIONS: u64 = 1_000;
/// Ten milliseconds after a full hour, so that no window ends during a bench unless intended.
const START: Timestamp = Timestamp::from_millis(3_600_010);
const WINDOW: Duration = Duration::from_secs(1);

/// A limiter, and the time between its calls.
struct Case<L: 'static> {
    limiter: &'static L,
    step: u64,
}

impl<L> Case<L> {
    fn new(limiter: L, step: Duration) -> Self {
        Self {
            limiter: Box::leak(Box::new(limiter)),
            step: step.as_nanos() as u64,
        }
    }

    /// Returns the time of operation number `i`.
    #[inline(always)]
    fn time(&self, i: u64) -> Timestamp {
        black_box(Timestamp::from_nanos(
            START.as_nanos() + (i + 1) * self.step,
        ))
    }
}

const SOON: Duration = Duration::from_nanos(4);

/// A limiter with a permit for every request, and no time to roll over.
fn plenty<L>(limiter: L) -> Case<L> {
    Case::new(limiter, SOON)
}

/// An exhausted limiter.
fn spent<L: Limiter>(limiter: L) -> Case<L> {
    let all = u32::try_from(limiter.capacity()).expect("a small limit");
    limiter.take_at(START, all).expect("an idle limiter");
    Case::new(limiter, SOON)
}

/// A limiter that is called again only after all taken permits have returned and a window has ended
/// or a bucket has filled up.
fn rested<L>(limiter: L) -> Case<L> {
    Case::new(limiter, 10 * WINDOW)
}

fn bucket<W: Word>(burst: u64) -> TokenBucket<W> {
    TokenBucket::builder(Rate::per_second(1_000), burst)
        .build_on()
        .expect("settings that fit")
}

fn strict(limit: u64) -> SlidingWindow<9> {
    SlidingWindow::builder(limit, WINDOW, 8)
        .strict()
        .build()
        .expect("settings that fit")
}

fn with_clock(limit: u64) -> Case<Clocked<TokenBucket, ManualClock>> {
    let case = plenty(Clocked::new(bucket(limit), ManualClock::new()));
    case.limiter.clock().set(START);
    case
}

fn all_granted(granted: u64) {
    assert_eq!(granted, OPERATIONS);
}

fn all_denied(granted: u64) {
    assert_eq!(granted, 0);
}

/// Runs `operation` a thousand times, and counts how often it returns true. Uses a plain loop,
/// because closures of iterators are not always inlined.
#[inline(always)]
fn count(mut operation: impl FnMut(u64) -> bool) -> u64 {
    let mut yes = 0;
    for i in 0..OPERATIONS {
        yes += u64::from(operation(i));
    }
    yes
}

/// Takes a permit, and drops the lease.
#[inline(always)]
fn ask<L: Limiter>(case: &Case<L>) -> u64 {
    count(|i| {
        black_box(case.limiter)
            .try_acquire_at(case.time(i), black_box(1))
            .is_ok()
    })
}

/// Creates for each instance a limiter with that many permits, which replenish at a thousand per
/// second.
macro_rules! instances {
    ($($_limiter:ident: $type:ty {
        on: [$($name:ident: $word:ty),*],
        new: (|$limit:ident, $time:ident| $new:expr),
        $($_rest:tt)*
    })*) => {$($(
        #[allow(dead_code, reason = "not all are counted")]
        mod $name {
            use core::time::Duration;
            use portcullis_core::SettingsError;

            type W = $word;

            pub(crate) fn new($limit: u64) -> $type {
                let $time = Duration::from_millis($limit);
                let new: Result<$type, SettingsError> = $new;
                new.expect("settings that fit")
            }
        }
    )*)*};
}

for_each_limiter!(instances);

/// The benches of a single request, and of its follow-up operations.
macro_rules! benches {
    ($($_limiter:ident: $_type:ty {
        on: $_on:tt,
        new: $_new:tt,
        on_board: $_board:tt,
        back: $_back:ident,
        denial: $_denial:ident,
        refunds: $_refunds:tt,
        saves: $_saves:tt,
        hot_path: $_path:tt,
        counted: {
            allow: [$($allow:ident),*],
            deny: [$($deny:ident),*],
            roll: [$($roll:ident),*],
            retry: [$($retry:ident),*],
            refund: [$($refund:ident),*] $(,)?
        },
        $($_rest:tt)*
    })*) => {
        #[library_benchmark(teardown = all_granted)]
        $($(#[bench::$allow(plenty($allow::new(2_000)))])*)*
        #[bench::sliding_window_strict(plenty(strict(2_000)))]
        #[bench::counted_token_bucket(plenty(Counted::new(bucket::<u64>(2_000))))]
        #[bench::counted_concurrency(plenty(Counted::new(Concurrency::new(10))))]
        #[bench::penalty_token_bucket(plenty(Penalty::new(bucket::<u64>(2_000), WINDOW)))]
        fn allow<L: Limiter>(case: Case<L>) -> u64 {
            ask(&case)
        }

        #[library_benchmark(teardown = all_denied)]
        $($(#[bench::$deny(spent($deny::new(10)))])*)*
        #[bench::sliding_window_strict(spent(strict(10)))]
        #[bench::counted_token_bucket(spent(Counted::new(bucket::<u64>(10))))]
        #[bench::penalty_token_bucket(spent(Penalty::new(bucket::<u64>(10), WINDOW)))]
        fn deny<L: Limiter>(case: Case<L>) -> u64 {
            ask(&case)
        }

        #[library_benchmark(teardown = all_granted)]
        $($(#[bench::$roll(rested($roll::new(10)))])*)*
        #[bench::sliding_window_strict(rested(strict(10)))]
        fn roll<L: Limiter>(case: Case<L>) -> u64 {
            ask(&case)
        }

        // Asks each of a thousand denials when to retry.
        #[library_benchmark(teardown = all_granted)]
        $($(#[bench::$retry(spent($retry::new(10)))])*)*
        fn retry<L: Limiter>(case: Case<L>) -> u64 {
            count(|i| {
                let denied = black_box(Denied::Exhausted {
                    now: case.time(i),
                    permits: 1,
                });
                matches!(
                    black_box(black_box(case.limiter).retry(denied)),
                    Retry::At(_)
                )
            })
        }

        // Takes a permit, and refunds it.
        #[library_benchmark(teardown = all_granted)]
        $($(#[bench::$refund(plenty($refund::new(10)))])*)*
        fn refund<L: Limiter>(case: Case<L>) -> u64 {
            count(|i| {
                let now = case.time(i);
                let lease = black_box(case.limiter).try_acquire_at(now, black_box(1));
                lease.is_ok_and(|mut lease| {
                    black_box(&mut lease).refund_at(now, black_box(1)) == Ok(1)
                })
            })
        }
    };
}

for_each_limiter!(benches);

#[library_benchmark(teardown = all_granted)]
#[bench::token_bucket(with_clock(2_000))]
fn clocked(case: Case<Clocked<TokenBucket, ManualClock>>) -> u64 {
    count(|_| black_box(case.limiter).try_acquire(black_box(1)).is_ok())
}

// Reserves a permit, and cancels the reservation.
#[library_benchmark(teardown = all_granted)]
#[bench::adjustable_bucket(spent(adjustable_bucket::new(10)))]
fn reserve(case: Case<AdjustableBucket>) -> u64 {
    count(|i| {
        let now = case.time(i);
        let reserved = black_box(case.limiter).reserve_at(now, black_box(1), black_box(WINDOW));
        reserved.is_ok_and(|reserved| black_box(reserved).cancel_at(now) == 1)
    })
}

#[library_benchmark(teardown = all_granted)]
#[bench::adjustable_bucket(plenty(adjustable_bucket::new(10)))]
fn adjust(case: Case<AdjustableBucket>) -> u64 {
    count(|i| {
        let (rate, burst) = black_box((Rate::per_second(2_000), 20));
        black_box(case.limiter)
            .adjust_at(case.time(i), rate, burst, Carry::Proportional)
            .is_ok()
    })
}

type Three = AllOf<(
    &'static TokenBucket,
    &'static TokenBucket,
    &'static TokenBucket,
)>;

fn three(first: Case<TokenBucket>) -> Case<Three> {
    let [second, third] = [2_000; 2].map(|burst| plenty(bucket(burst)).limiter);
    plenty(AllOf::new((first.limiter, second, third)))
}

#[inline(always)]
fn ask_three(case: &Case<Three>) -> u64 {
    count(|i| {
        black_box(case.limiter)
            .try_acquire_at(case.time(i), black_box(1))
            .is_ok()
    })
}

#[library_benchmark(teardown = all_granted)]
#[bench::token_buckets(three(plenty(bucket(2_000))))]
fn allow_all_of_3(case: Case<Three>) -> u64 {
    ask_three(&case)
}

#[library_benchmark(teardown = all_denied)]
#[bench::token_buckets(three(spent(bucket(10))))]
fn deny_all_of_3(case: Case<Three>) -> u64 {
    ask_three(&case)
}

type Table = Keyed<TokenBucketRules, Box<[Line]>>;

/// A table that a thousand keys fill by half, with a fixed seed.
fn no_keys(burst: u64) -> Case<Table> {
    plenty(Keyed::new(
        TokenBucketRules::new(Rate::per_second(1_000), burst),
        (0..286).map(|_| Line::new()).collect(),
        Seed::new(),
    ))
}

/// A table of a thousand keys, each of which has taken a permit.
fn keys(burst: u64) -> Case<Table> {
    let case = no_keys(burst);
    for key in 0..OPERATIONS {
        case.limiter
            .key(&key)
            .take_at(START, 1)
            .expect("room for all");
    }
    case
}

/// Takes a permit for each of a thousand keys.
#[inline(always)]
fn ask_keys(case: &Case<Table>) -> u64 {
    count(|i| {
        black_box(case.limiter)
            .key(black_box(&i))
            .try_acquire_at(case.time(i), black_box(1))
            .is_ok()
    })
}

#[library_benchmark(teardown = all_granted)]
#[bench::token_bucket(keys(2))]
fn allow_keyed(case: Case<Table>) -> u64 {
    ask_keys(&case)
}

#[library_benchmark(teardown = all_denied)]
#[bench::token_bucket(keys(1))]
fn deny_keyed(case: Case<Table>) -> u64 {
    ask_keys(&case)
}

// The first permit of a key.
#[library_benchmark(teardown = all_granted)]
#[bench::token_bucket(no_keys(1))]
fn claim_keyed(case: Case<Table>) -> u64 {
    ask_keys(&case)
}

type List = KeyedList<[TokenBucketRules; 3], Box<[Line]>>;

/// A table with three limits for each of a thousand keys, which fill it by half.
fn no_keys_of_3(burst: u64) -> Case<List> {
    let bucket = |rate| TokenBucketRules::new(rate, burst);
    let rates = [1_000, 2_000, 3_000].map(Rate::per_second);
    plenty(KeyedList::new(
        rates.map(bucket),
        (0..1_000).map(|_| Line::new()).collect(),
        Seed::new(),
    ))
}

/// The same, after each key has taken a permit of each limit.
fn keys_of_3(burst: u64) -> Case<List> {
    let case = no_keys_of_3(burst);
    for key in 0..OPERATIONS {
        let taken = case.limiter.key(&key).take_at(START, 1);
        taken.expect("room for all");
    }
    case
}

/// Takes a permit of each limit for each of a thousand keys.
#[inline(always)]
fn ask_keys_of_3(case: &Case<List>) -> u64 {
    count(|i| {
        black_box(case.limiter)
            .key(black_box(&i))
            .try_acquire_each_at(case.time(i), black_box(1))
            .is_ok()
    })
}

#[library_benchmark(teardown = all_granted)]
#[bench::token_buckets(keys_of_3(2))]
fn allow_keyed_3(case: Case<List>) -> u64 {
    ask_keys_of_3(&case)
}

#[library_benchmark(teardown = all_denied)]
#[bench::token_buckets(keys_of_3(1))]
fn deny_keyed_3(case: Case<List>) -> u64 {
    ask_keys_of_3(&case)
}

// The first permit of a key.
#[library_benchmark(teardown = all_granted)]
#[bench::token_buckets(no_keys_of_3(1))]
fn claim_keyed_3(case: Case<List>) -> u64 {
    ask_keys_of_3(&case)
}

/// A clock whose interval is enough for every decision on a bucket in use.
#[derive(Debug)]
struct Ticks;

impl Clock for Ticks {
    fn now(&self) -> Timestamp {
        unreachable!("the interval is enough")
    }

    #[inline(always)]
    fn interval(&self) -> Option<Interval> {
        let earliest = black_box(START);
        Interval::new(earliest, earliest + Duration::from_millis(16))
    }
}

/// A bucket that has spent half of its burst.
fn half_spent() -> &'static Clocked<TokenBucket, Ticks> {
    let limit = Clocked::new(bucket(4_000), Ticks);
    assert!(limit.limiter().take_at(START, 2_000).is_ok());
    Box::leak(Box::new(limit))
}

// The clock's interval is enough.
#[library_benchmark(teardown = all_granted)]
#[bench::token_bucket(half_spent())]
fn within(limit: &'static Clocked<TokenBucket, Ticks>) -> u64 {
    count(|_| black_box(limit).try_acquire(black_box(1)).is_ok())
}

fn slice(size: u32) -> Case<Slice<&'static SlicedBucket>> {
    let bucket = Box::leak(Box::new(SlicedBucket::new(Rate::per_second(1_000), 10_000)));
    plenty(bucket.slice_at(START, size).expect("a part of the burst"))
}

#[library_benchmark(teardown = all_granted)]
#[bench::token_bucket(slice(2_000))]
fn allow_slice(case: Case<Slice<&'static SlicedBucket>>) -> u64 {
    ask(&case)
}

// Each draw is for one permit more than the slice has.
#[library_benchmark(teardown = all_granted)]
#[bench::token_bucket(slice(1))]
fn draw_slice(case: Case<Slice<&'static SlicedBucket>>) -> u64 {
    count(|i| {
        black_box(case.limiter)
            .try_acquire_at(case.time(i), black_box(2))
            .is_ok()
    })
}

type Pool = LeasePool<Concurrency, 1_024>;

fn empty_pool() -> &'static Pool {
    Box::leak(Box::new(LeasePool::new(Concurrency::new(2_000))))
}

/// A pool of a thousand leases that are due, and their ids.
fn full_pool() -> (&'static Pool, Vec<LeaseId>) {
    let pool = empty_pool();
    let ids = (0..OPERATIONS).map(|_| {
        pool.claim_at(START, 1, Some(START))
            .expect("a free slot and a permit")
    });
    (pool, ids.collect())
}

#[library_benchmark(teardown = all_granted)]
#[bench::lease_pool(empty_pool())]
fn cycle(pool: &'static Pool) -> u64 {
    count(|_| {
        let id = black_box(pool).claim_at(black_box(START), black_box(1), black_box(None));
        id.is_ok_and(|id| black_box(pool).release(black_box(id)) == Ok(1))
    })
}

// Without releases, so that each claim searches for a slot.
#[library_benchmark(teardown = all_granted)]
#[bench::lease_pool(empty_pool())]
fn claim(pool: &'static Pool) -> u64 {
    count(|_| {
        let id = black_box(pool).claim_at(black_box(START), black_box(1), black_box(Some(START)));
        black_box(id).is_ok()
    })
}

#[library_benchmark(teardown = all_granted)]
#[bench::lease_pool(full_pool())]
fn release((pool, ids): (&'static Pool, Vec<LeaseId>)) -> u64 {
    let ids = ids.leak();
    count(|i| black_box(pool).release(black_box(ids[i as usize])) == Ok(1))
}

// One sweep that reclaims a thousand leases.
#[library_benchmark(teardown = all_granted)]
#[bench::lease_pool(full_pool())]
fn sweep((pool, ids): (&'static Pool, Vec<LeaseId>)) -> u64 {
    let _ = ids.leak();
    black_box(pool).sweep(black_box(START))
}

library_benchmark_group!(
    name = hot_paths,
    benchmarks = [
        allow,
        deny,
        roll,
        clocked,
        within,
        retry,
        refund,
        reserve,
        adjust,
        allow_all_of_3,
        deny_all_of_3,
        allow_keyed,
        deny_keyed,
        claim_keyed,
        allow_keyed_3,
        deny_keyed_3,
        claim_keyed_3,
        allow_slice,
        draw_slice,
        cycle,
        claim,
        release,
        sweep
    ]
);
main!(library_benchmark_groups = hot_paths);
