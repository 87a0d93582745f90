//! Clocks that return an interval: decisions within it are the ones that the precise time gives,
//! word for word.

#[path = "support/limiters.rs"]
mod limiters;
#[path = "support/mod.rs"]
mod support;

use core::cell::Cell;
use core::fmt::Debug;
use core::mem;
use core::ops::Range;
use core::time::Duration;
use std::collections::BTreeMap;

use limiters::{Back, Kind, all};
use portcullis_core::clock::Interval;
use portcullis_core::keyed::{
    AnyRules, ConcurrencyRules, FixedWindowRules, Line, RuleList, RulesAtRunTime, Seed,
    TokenBucketRules,
};
use portcullis_core::limiter::Receipt;
use portcullis_core::state::Word;
use portcullis_core::{
    AllOf, Clock, Clocked, Concurrency, Counted, Denied, FixedWindow, Keyed, KeyedList, Limiter,
    LimiterExt, Penalty, Rate, Retry, SlidingWindow, Timestamp, TokenBucket,
};
use support::draws::Draws;
use support::soak::rounds;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

const fn ms(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

/// A clock that returns what a test sets, and counts the readings of its precise time.
#[derive(Debug, Default)]
struct Told {
    now: Cell<Timestamp>,
    interval: Cell<Option<Interval>>,
    readings: Cell<u32>,
}

impl Told {
    /// Sets the time. The interval begins `behind` earlier and is `length` long.
    fn set(&self, now: Timestamp, behind: Duration, length: Duration) {
        let earliest = now.saturating_sub(behind);
        let latest = earliest.as_nanos().checked_add(length.as_nanos() as u64);
        let latest = latest.map(Timestamp::from_nanos);
        self.now.set(now);
        self.interval
            .set(latest.and_then(|latest| Interval::new(earliest, latest)));
    }
}

impl Clock for Told {
    fn now(&self) -> Timestamp {
        self.readings.set(self.readings.get() + 1);
        self.now.get()
    }

    fn interval(&self) -> Option<Interval> {
        self.interval.get()
    }
}

/// A denial without its time.
fn timeless(denied: Denied) -> (mem::Discriminant<Denied>, u32) {
    (mem::discriminant(&denied), denied.permits())
}

/// How many decisions were made, and how many of them within an interval.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    decisions: u32,
    within: u32,
}

/// What both limiters of a trace hold of a grant.
struct Held {
    permits: u32,
    by_interval: Receipt,
    by_time: Receipt,
}

/// By how many nanoseconds the time is later than the interval at most: not at all, or by a second.
const IN_TIME: u64 = 0;
const LATE: u64 = 1_000_000_000;

/// Runs a random trace on two equal limiters, one with an interval and one with the precise time;
/// if that is later than the interval, with the end of the interval.
fn trace<L, S>(
    [by_interval, by_time]: [&L; 2],
    state: impl Fn(&L) -> S,
    (reach, late): (u64, u64),
    draws: &mut Draws<'_>,
    tally: &mut Tally,
) where
    L: Limiter + ?Sized,
    S: Debug + PartialEq,
{
    let clock = Told::default();
    let mut now = draws.magnitude(u64::MAX);
    let mut held: Vec<Held> = Vec::new();
    let second = SECOND.as_nanos() as u64;
    while draws.another_step() {
        let length = match draws.below(3) {
            0 => draws.magnitude(second),
            1 => draws.magnitude(reach.min(second)),
            _ => 0,
        };
        let behind = match draws.below(3) {
            0 => length,
            1 => draws.below(length + 1),
            _ => 0,
        };
        let behind = (behind + draws.magnitude(late)).min(now);
        let at = Timestamp::from_nanos(now);
        clock.set(
            at,
            Duration::from_nanos(behind),
            Duration::from_nanos(length),
        );
        let interval = clock.interval();
        assert!(late > 0 || interval.is_none_or(|interval| interval.contains(at)));

        // Both are asked: a striped limiter that seems idle takes its permits back to answer.
        let [most, _] = [by_time, by_interval].map(|limiter| limiter.available_at(at));
        let most = most.min(u32::MAX.into());
        let some = draws.magnitude(most);
        let n = draws.one_of(&[1, 1, some, most, most + 1, 0]);
        let n = n.min(u32::MAX.into()) as u32;
        let context = || format!("{n} at {now} in {:?}", clock.interval.get());
        let was = format!("{:?}", state(by_interval));
        clock.readings.set(0);
        let looked = interval.and_then(|interval| by_interval.peek_within(interval, n));
        let decision = Clocked::new(by_interval, &clock).take(n);
        let is_within = clock.readings.get() == 0;
        let looked = looked.map(|looked| looked.map_err(timeless));
        let taken = is_within.then(|| decision.as_ref().map(|_| ()).map_err(|by| timeless(*by)));
        // A composition does not see that it names a limit twice, through different wrappers.
        let is_composed = !by_time.hints().one_receipt;
        assert!(
            looked == taken || is_composed && looked == Some(Ok(())),
            "the look: {looked:?}, the take: {taken:?}, {}; it was {was}",
            context()
        );
        let decided_at = match interval {
            Some(interval) if is_within => interval.latest().min(at),
            _ => at,
        };
        let decisions = (decision, by_time.take_at(decided_at, n));
        tally.decisions += 1;
        tally.within += u32::from(is_within);
        assert_eq!(
            state(by_interval),
            state(by_time),
            "{}; it was {was}: {decisions:?}",
            context()
        );
        for later in [0, reach / 3, reach] {
            let later = at.saturating_add(Duration::from_nanos(later));
            let available = [by_interval, by_time].map(|limiter| limiter.available_at(later));
            assert_eq!(available[0], available[1], "at {later}, {}", context());
        }
        match decisions {
            (Ok(within), Ok(exact)) => {
                assert_eq!(within.note(), exact.note(), "{}", context());
                assert!(within.time() <= exact.time(), "{}", context());
                held.push(Held {
                    permits: n,
                    by_interval: within,
                    by_time: exact,
                });
            }
            (Err(within), Err(exact)) => {
                assert_eq!(timeless(within), timeless(exact), "{}", context());
                let retries = (within.retry(by_interval), exact.retry(by_time));
                // A composition that names a limit through different wrappers may deny although
                // each limit alone would grant now. Then now is the time of the denial.
                let both_now = is_composed
                    && retries.0.wait_from(at) == Some(Duration::ZERO)
                    && retries.1 == Retry::At(at);
                assert!(
                    retries.0 == retries.1 || both_now,
                    "{retries:?}, {}; {was}",
                    context()
                );
            }
            decisions => panic!("{decisions:?}, {}; it was {was}", context()),
        }

        if !held.is_empty() && draws.once_in(4) {
            let nth = draws.below(held.len() as u64) as usize;
            let last = held.len() - 1;
            // Most refunds are of the last grant: buckets refund no other.
            let given = held.swap_remove(draws.one_of(&[last, last, nth]));
            let refunds = (
                by_interval.refund_at(at, given.permits, given.by_interval),
                by_time.refund_at(at, given.permits, given.by_time),
            );
            assert_eq!(refunds.0.permits, refunds.1.permits, "{}", context());
            assert_eq!(state(by_interval), state(by_time), "{}", context());
        }
        now = match draws.below(32) {
            0..=3 => now,
            4..=15 => now.saturating_add(draws.magnitude(reach / 64 + 1)),
            16..=25 => now.saturating_add(draws.magnitude(reach)),
            26 | 27 => now.saturating_sub(draws.magnitude(reach)),
            28 => now.saturating_sub(draws.magnitude(second)),
            29 | 30 => now.saturating_add(draws.magnitude(second)),
            _ => {
                // Far away, where a word may have wrapped and a receipt may be too old.
                for given in held.drain(..) {
                    by_interval.release(given.permits);
                    by_time.release(given.permits);
                }
                draws.magnitude(u64::MAX)
            }
        };
    }
}

fn seeded(seed: u64) -> Draws<'static> {
    Draws::Seeded {
        state: seed,
        steps: 2_000,
    }
}

const LENGTHS: [(u64, Duration); 6] = [
    (1, SECOND),
    (3, Duration::from_millis(20)),
    (10, SECOND),
    (100, Duration::from_secs(10)),
    (1_000, SECOND),
    (60, Duration::from_hours(1)),
];

/// Traces with the numbers of `round`.
fn every_limiter<W: Word>(round: u64, tallies: &mut BTreeMap<&'static str, Tally>) {
    for (nth, (limit, time)) in LENGTHS.into_iter().enumerate() {
        let pairs = all::<W>(limit, time).into_iter().zip(all::<W>(limit, time));
        for (seed, ((Kind { name, .. }, one), (_, other))) in pairs.enumerate() {
            let seed = (nth as u64) << 32 | (seed as u64) << 16 | u64::from(W::BITS);
            let seed = seed.wrapping_add(round << 12);
            trace(
                [&*one, &*other],
                |limiter| format!("{limiter:?}"),
                (time.as_nanos() as u64, IN_TIME),
                &mut seeded(seed),
                tallies.entry(name).or_default(),
            );
        }
    }
}

#[test]
fn a_clock_with_an_interval_decides_as_the_precise_clock_for_every_limiter() {
    let mut tallies = BTreeMap::new();
    every_limiter::<u64>(0, &mut tallies);
    every_limiter::<u32>(0, &mut tallies);
    let mut deciding = 0;
    for (kind, limiter) in all::<u64>(1, SECOND) {
        let Tally { decisions, within } = tallies[kind.name];
        let decides_within = limiter.hints().decides_within;
        deciding += u32::from(decides_within);
        let decides = match (decides_within, kind.back) {
            // These record the time of each grant, or of each denial, or do not look.
            (false, _) => within == 0,
            (true, Back::by_time) => within > decisions / 5 && within < decisions,
            (true, Back::by_release | Back::always) => within == decisions,
        };
        assert!(decides, "{}: {within} of {decisions}", kind.name);
    }
    assert!(deciding >= 7, "a limiter has lost its hint: {deciding}");
}

#[test]
fn so_it_does_for_settings_and_wrappers_of_all_kinds() {
    let bucket = TokenBucket::builder(Rate::per_second(7), 30);
    let window = FixedWindow::builder(20, Duration::from_millis(70));
    let pairs: [[Box<dyn limiters::Subject>; 2]; 8] = [
        [(); 2].map(|()| Box::new(bucket.debt(20).build().unwrap()) as _),
        [(); 2].map(|()| Box::new(bucket.stepwise().build().unwrap()) as _),
        [(); 2].map(|()| Box::new(bucket.tick(30 * MS).build_on::<u32>().unwrap()) as _),
        [(); 2].map(|()| Box::new(TokenBucket::new(Rate::UNLIMITED, 5)) as _),
        [(); 2].map(|()| Box::new(TokenBucket::new(Rate::ZERO, 500)) as _),
        [(); 2].map(|()| Box::new(window.started_by_first_request().build().unwrap()) as _),
        [(); 2].map(|()| {
            let strict = SlidingWindow::<8>::builder(20, SECOND, 7).strict();
            Box::new(strict.build().unwrap()) as _
        }),
        [(); 2].map(|()| Box::new(Counted::new(bucket.build().unwrap())) as _),
    ];
    for (seed, [one, other]) in pairs.iter().enumerate() {
        let mut tally = Tally::default();
        for nth in 0..10 {
            trace(
                [&**one, &**other],
                |limiter| format!("{limiter:?}"),
                (SECOND.as_nanos() as u64, IN_TIME),
                &mut seeded(nth << 8 | seed as u64),
                &mut tally,
            );
        }
        assert!(tally.within > tally.decisions / 10, "{one:?}: {tally:?}");
    }
}

#[test]
fn so_it_does_for_compositions() {
    compositions(0);
}

/// Traces with the numbers of `round`.
fn compositions(round: u64) {
    let bucket = || TokenBucket::new(Rate::per_second(7), 30);
    let slow = || TokenBucket::new(Rate::per_minute(100), 60);
    let window = || FixedWindow::new(50, Duration::from_secs(3));
    let sliding = || SlidingWindow::<8>::new(40, SECOND, 4);
    let shared: [&'static TokenBucket; 4] = [(); 4].map(|()| &*Box::leak(Box::new(bucket())));
    let slices: [&'static [TokenBucket]; 2] = [(); 2].map(|()| &*Vec::leak(vec![bucket(), slow()]));
    let pairs: [[Box<dyn limiters::Subject>; 2]; 7] = [
        [(); 2].map(|()| Box::new(AllOf::new((bucket(), slow()))) as _),
        [(); 2].map(|()| Box::new(AllOf::new([slow(), bucket(), bucket()])) as _),
        [(); 2].map(|()| {
            let limits = (window(), Concurrency::new(70), bucket(), sliding());
            Box::new(AllOf::new(limits)) as _
        }),
        [(); 2].map(|()| {
            let limits = (Counted::new(slow()), Counted::new(window()));
            Box::new(Counted::new(AllOf::new(limits))) as _
        }),
        // One bucket twice: by its name, and through a wrapper, which has a name of its own.
        [0, 1].map(|at| Box::new(AllOf::new((shared[at], slow(), shared[at]))) as _),
        [2, 3].map(|at| {
            let limits = (slow(), shared[at], Counted::new(shared[at]));
            Box::new(AllOf::new(limits)) as _
        }),
        slices.map(|limits| Box::new(AllOf::new(limits)) as _),
    ];
    for (seed, [one, other]) in pairs.iter().enumerate() {
        let mut tally = Tally::default();
        for nth in 0..20 {
            trace(
                [&**one, &**other],
                |limiter| format!("{limiter:?}"),
                (10 * SECOND.as_nanos() as u64, IN_TIME),
                &mut seeded(round << 16 | nth << 8 | seed as u64),
                &mut tally,
            );
        }
        assert!(tally.within > tally.decisions / 10, "{one:?}: {tally:?}");
        assert!(tally.within < tally.decisions, "{one:?}: {tally:?}");
    }
}

/// Compositions of compositions, and of limits that record the time of each request.
#[test]
fn some_compositions_do_not_read_an_interval() {
    let bucket = || TokenBucket::new(Rate::per_second(7), 30);
    let concurrency = || Concurrency::new(5);
    assert!(AllOf::new((bucket(), concurrency())).hints().decides_within);
    let penalty = || Penalty::new(bucket(), SECOND);
    assert!(!AllOf::new((bucket(), penalty())).hints().decides_within);
    let inner = AllOf::new([bucket()]);
    assert!(!AllOf::new((concurrency(), &inner)).hints().decides_within);
    assert!(!AllOf::new([Counted::new(&inner)]).hints().decides_within);
    // Asked all the same, they do not decide, and change nothing.
    let interval = Interval::new(ms(5_000), ms(5_001)).unwrap();
    let outer = AllOf::new((concurrency(), &inner));
    inner.take_at(ms(4_990), 1).unwrap();
    assert!(inner.peek_within(interval, 1).is_some());
    assert!(outer.take_within(interval, 1).is_none() && outer.peek_within(interval, 1).is_none());
    assert_eq!(outer.limits().0.in_use(), 0);
}

#[test]
fn a_composition_reads_the_precise_time_only_if_it_matters_to_one_of_its_limits() {
    let second = TokenBucket::builder(Rate::per_second(1_000), 1_000);
    let limits = (
        second.initial(500).origin(ms(60_000)).build().unwrap(),
        FixedWindow::new(1_000_000, Duration::from_hours(1)),
        Concurrency::new(1),
    );
    let limit = Clocked::new(AllOf::new(limits), Told::default());
    let readings = |limit: &Clocked<_, Told>| limit.clock().readings.replace(0);
    // 1,000 requests per second: as many as come in.
    for millis in 60_001..61_001 {
        limit.clock().set(ms(millis), 4 * MS, 16 * MS);
        assert!(limit.try_acquire(1).is_ok());
        assert_eq!(readings(&limit), 0, "at {millis}");
    }
    // A denial by a limit without time, and one that lasts.
    let held = limit.try_acquire(1).unwrap();
    assert!(limit.try_acquire(1).is_err());
    drop(held);
    assert!(limit.try_acquire(900).is_err());
    assert_eq!(readings(&limit), 0);
    // The bucket is full.
    limit.clock().set(ms(63_000), 4 * MS, 16 * MS);
    assert!(limit.try_acquire(1).is_ok());
    assert_eq!(readings(&limit), 1);
}

/// A table in which the two keys of a trace have one limiter each.
#[test]
fn so_it_does_for_a_key_of_a_table() {
    let bucket = || TokenBucket::new(Rate::per_second(10), 30);
    let seed = || {
        let seed = Seed::new();
        seed.set([1, 2]).unwrap();
        seed
    };
    let table = |limiter| Keyed::new(limiter, Line::for_keys(1), seed());
    let rules = || portcullis_core::keyed::IntoRules::into_rules(bucket()).unwrap();
    let (one, other) = (table(rules()), table(rules()));
    let mut tally = Tally::default();
    for nth in 0..20 {
        trace(
            [&*one.key("alice"), &*other.key("alice")],
            Limiter::capacity,
            (SECOND.as_nanos() as u64, IN_TIME),
            &mut seeded(nth),
            &mut tally,
        );
        assert_eq!(
            format!("{:?}", one.statistics_at(Timestamp::MAX)),
            format!("{:?}", other.statistics_at(Timestamp::MAX))
        );
    }
    assert!(tally.within > tally.decisions / 5, "{tally:?}");
}

/// Compares two tables in which the key of a trace has several limits.
fn compare<L: RuleList>(rules: impl Fn() -> L, seeds: Range<u64>) -> Tally {
    let table = || {
        let seed = Seed::new();
        seed.set([1, 2]).unwrap();
        KeyedList::new(rules(), [const { Line::new() }; 8], seed)
    };
    let (one, other) = (table(), table());
    let mut tally = Tally::default();
    for nth in seeds {
        trace(
            [&*one.key("alice"), &*other.key("alice")],
            Limiter::capacity,
            (SECOND.as_nanos() as u64, IN_TIME),
            &mut seeded(nth),
            &mut tally,
        );
        // Word for word.
        let words = |table: &KeyedList<L, [Line; 8], Seed>| format!("{:?}", table.lines());
        assert_eq!(words(&one), words(&other));
    }
    tally
}

#[test]
fn so_it_does_for_a_key_with_several_limits() {
    lists(0..20);
}

fn lists(seeds: Range<u64>) {
    let bucket = || TokenBucketRules::new(Rate::per_second(10), 30);
    let slow = || TokenBucketRules::new(Rate::per_minute(100), 60);
    let window = || FixedWindowRules::new(50, Duration::from_secs(3));
    let at_once = || ConcurrencyRules::new(70);
    let any = |at_once_first: bool| {
        let rules: [AnyRules; 3] = [bucket().into(), window().into(), at_once().into()];
        let mut rules: Vec<_> = rules.into_iter().collect();
        if at_once_first {
            rules.rotate_right(1);
        }
        RulesAtRunTime::new(rules).unwrap()
    };
    for tally in [
        compare(|| [bucket(), slow()], seeds.clone()),
        compare(|| (bucket(), window(), at_once()), seeds.clone()),
        compare(|| (window(), slow(), bucket(), at_once()), seeds.clone()),
        compare(|| any(false), seeds.clone()),
    ] {
        assert!(tally.within > tally.decisions / 10, "{tally:?}");
        assert!(tally.within < tally.decisions, "{tally:?}");
    }
    // A list that begins with a concurrency limit depends on the time.
    assert_eq!(compare(|| any(true), 0..2).within, 0);
}

#[test]
fn a_key_with_several_limits_reads_the_precise_time_only_if_it_matters_to_one_of_them() {
    let rules = (
        TokenBucketRules::new(Rate::per_second(1_000), 1_000),
        FixedWindowRules::new(1_000_000, Duration::from_hours(1)),
        ConcurrencyRules::new(1),
    );
    let users = Clocked::new(KeyedList::for_keys(rules, 100), Told::default());
    let readings = || users.clock().readings.replace(0);
    users.clock().set(ms(60_000), 4 * MS, 16 * MS);
    assert!(users.key("alice").try_acquire(1).is_ok());
    assert_eq!(readings(), 1, "the first grant of a key");
    // 1,000 requests per second: as many as come in.
    for _ in 0..500 {
        assert!(users.limiter().key("alice").take_at(ms(60_000), 1).is_ok());
        users.limiter().key("alice").release(1);
    }
    for millis in 60_001..61_001 {
        users.clock().set(ms(millis), 4 * MS, 16 * MS);
        assert!(users.key("alice").try_acquire(1).is_ok());
        assert_eq!(readings(), 0, "at {millis}");
    }
    // A denial by a limit without time, and one that lasts.
    let held = users.key("alice").try_acquire(1).unwrap();
    assert!(users.key("alice").try_acquire(1).is_err());
    drop(held);
    assert!(users.key("alice").try_acquire(900).is_err());
    assert_eq!(readings(), 0);
    // The bucket is full.
    users.clock().set(ms(63_000), 4 * MS, 16 * MS);
    assert!(users.key("alice").try_acquire(1).is_ok());
    assert_eq!(readings(), 1);
}

/// A bucket in use: one million requests, of which only those read the precise time that find the
/// bucket about full or about empty.
#[test]
fn a_bucket_in_use_does_not_read_the_precise_time() {
    let limit = Clocked::new(
        TokenBucket::new(Rate::per_second(1_000), 1_000),
        Told::default(),
    );
    let length = 16 * MS;
    let mut granted = 0;
    // 1,250 requests per second: the bucket is empty after 4 s, and then denies every fifth.
    for nth in 0..10_000_u64 {
        let now = ms(60_000) + Duration::from_micros(800 * nth);
        limit
            .clock()
            .set(now, Duration::from_micros(nth % 16_000), length);
        granted += u64::from(limit.try_acquire(1).is_ok());
        let readings = limit.clock().readings.get();
        match nth {
            // Full by less than an interval.
            0..64 => assert!(readings <= nth as u32 + 1),
            100..4_900 => assert!(readings < 100, "{readings} readings for {nth} requests"),
            _ => {}
        }
    }
    // The burst, and what 8 s bring but for the 0.8 ms before the last request.
    assert_eq!(granted, 1_000 + 7_999);
}

#[test]
fn denials_that_outlast_the_interval_do_not_read_the_precise_time() {
    let limit = Clocked::new(TokenBucket::new(Rate::per_second(1), 1), Told::default());
    limit.clock().set(ms(5_000), Duration::ZERO, 16 * MS);
    assert!(limit.try_acquire(1).is_ok());
    limit.clock().readings.set(0);
    for millis in 5_001..6_000 {
        limit.clock().set(ms(millis), 4 * MS, 16 * MS);
        let denied = limit.try_acquire(1).unwrap_err();
        assert_eq!(denied.retry(limit.limiter()), Retry::At(ms(6_000)));
    }
    // From the first interval on that contains the refill.
    assert_eq!(limit.clock().readings.get(), 12);
}

#[test]
fn a_window_reads_the_precise_time_only_around_its_edges() {
    let limit = Clocked::new(FixedWindow::new(1_000, SECOND), Told::default());
    for millis in 10_000..13_000 {
        limit.clock().set(ms(millis), 4 * MS, 16 * MS);
        assert!(limit.try_acquire(1).is_ok());
    }
    // For 12 ms before each edge, the edge is in the interval. The first request after it starts
    // the window, and then an earlier instant counts in the new window as well.
    assert_eq!(limit.clock().readings.get(), 1 + 13 + 13 + 12);
}

#[test]
fn a_concurrency_limit_reads_no_time() {
    let limit = Clocked::new(Concurrency::new(2), Told::default());
    limit.clock().set(ms(5), MS, 2 * MS);
    let leases = [limit.try_acquire(1), limit.try_acquire(1)];
    assert!(leases.iter().all(Result::is_ok));
    assert_eq!(
        limit.try_acquire(1).map(drop),
        Err(Denied::Exhausted {
            now: ms(4),
            permits: 1
        })
    );
    assert_eq!(limit.clock().readings.get(), 0);
}

/// What holds when the time is later than the interval: each decision is the one of a timestamp
/// that is stale by the excess.
#[test]
fn a_clock_that_is_later_than_its_interval_decides_as_for_the_end_of_the_interval() {
    let mut within = 0;
    for (nth, (limit, time)) in LENGTHS.into_iter().enumerate() {
        let pairs = all::<u64>(limit, time)
            .into_iter()
            .zip(all::<u64>(limit, time));
        for (seed, ((_, one), (_, other))) in pairs.enumerate() {
            let mut tally = Tally::default();
            trace(
                [&*one, &*other],
                |limiter| format!("{limiter:?}"),
                (time.as_nanos() as u64, LATE),
                &mut seeded((nth << 16 | seed) as u64),
                &mut tally,
            );
            within += tally.within;
        }
    }
    assert!(within > 10_000, "{within}");
}

/// The same, seen from outside: in any span of time, at most the burst, and what the span and the
/// excess bring.
#[test]
fn a_clock_that_is_later_than_its_interval_exceeds_the_bound_by_at_most_the_excess() {
    let (burst, per_second, excess) = (50, 1_000, 40);
    let mut worst = 0;
    for seed in 0..200 {
        let draws = &mut seeded(seed);
        let bucket = TokenBucket::new(Rate::per_second(per_second), burst);
        let limit = Clocked::new(bucket, Told::default());
        let mut grants: Vec<(u64, u64)> = Vec::new();
        let mut millis = 100_000;
        for _ in 0..400 {
            millis += draws.one_of(&[0, 0, 0, 1, 1, 2, 30]);
            let behind = draws.below(4 + excess + 1);
            limit
                .clock()
                .set(ms(millis), Duration::from_millis(behind), 4 * MS);
            let n = 1 + draws.below(10) as u32;
            if limit.try_acquire(n).is_ok() {
                grants.push((millis, n.into()));
            }
        }
        for (first, &(begin, _)) in grants.iter().enumerate() {
            let mut sum = 0;
            for &(end, n) in &grants[first..] {
                sum += n;
                let span = end - begin;
                worst = worst.max((sum).saturating_sub(burst + span));
                assert!(sum <= burst + span + excess, "{sum} in {span} ms");
            }
        }
    }
    assert!(worst > 0, "the test must meet a clock that is too late");
}

#[test]
#[ignore = "takes minutes; cargo xtask soak runs it"]
fn soak() {
    for round in rounds("decisions within an interval") {
        let mut tallies = BTreeMap::new();
        every_limiter::<u64>(round, &mut tallies);
        every_limiter::<u32>(round, &mut tallies);
        compositions(round);
        lists(round << 8..(round << 8) + 20);
    }
}
