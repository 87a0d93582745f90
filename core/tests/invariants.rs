//! Invariants of every limiter, for all requests in any order: bounds over every window, monotone
//! time, unlimited idleness, and the conservation of permits.

#[allow(dead_code, reason = "made for traces, too")]
#[path = "support/draws.rs"]
mod draws;

use core::fmt::Debug;
use core::panic::AssertUnwindSafe;
use core::time::Duration;
use std::collections::HashMap;
use std::panic::catch_unwind;

use draws::Draws;
use portcullis_core::leases::{ClaimError, LeaseId, StaleId};
use portcullis_core::limiter::{Answer, Ask, Back, Idle, Read, Reading, Receipt, Returned};
use portcullis_core::state::Word;
use portcullis_core::{
    Concurrency, FixedWindow, LeasePool, Limiter, LimiterExt, Rate, Retry, SlidingWindow,
    Timestamp, TokenBucket, Unlimited,
};

const SECOND: Duration = Duration::from_secs(1);
const WINDOW: u64 = 1_000;
const LIMIT: u64 = 6;

fn draws(state: u64) -> Draws<'static> {
    Draws::Seeded { state, steps: 0 }
}

fn at(nanos: u64) -> Timestamp {
    Timestamp::from_nanos(nanos)
}

/// Every limiter whose permits return by time, on words of one width: at most `LIMIT` at once,
/// and all of them back after some 1,000 us.
fn replenishing<W: Word>() -> Vec<Box<dyn Limiter>> {
    let window = Duration::from_micros(WINDOW);
    let rate = Rate::new(7, Duration::from_millis(1));
    let bucket = TokenBucket::builder(rate, LIMIT).tick(Duration::from_micros(1));
    let fixed = FixedWindow::builder(LIMIT, window);
    let sliding = SlidingWindow::<8>::builder(LIMIT, window, 7);
    vec![
        Box::new(bucket.build_on::<W>().unwrap()),
        Box::new(bucket.stepwise().build_on::<W>().unwrap()),
        Box::new(fixed.build_on::<W>().unwrap()),
        Box::new(fixed.started_by_first_request().build_on::<W>().unwrap()),
        Box::new(sliding.build_on::<W>().unwrap()),
        Box::new(sliding.strict().build_on::<W>().unwrap()),
    ]
}

/// The kinds that `replenishing` makes, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Bucket,
    Steps,
    Grid,
    Started,
    Sliding,
    Strict,
}

const KINDS: [Kind; 6] = [
    Kind::Bucket,
    Kind::Steps,
    Kind::Grid,
    Kind::Started,
    Kind::Sliding,
    Kind::Strict,
];

/// The most that a limiter may admit from `from` to `to`, both included, in microseconds.
fn bound(kind: Kind, from: u64, to: u64) -> u64 {
    let segment = |time: u64| time * 7 / WINDOW;
    match kind {
        Kind::Bucket => LIMIT + (to - from) * 7 / 1_000,
        Kind::Steps => LIMIT + 7 * (to / 1_000 - from / 1_000),
        Kind::Grid => LIMIT * (to / WINDOW - from / WINDOW + 1),
        Kind::Started => LIMIT * ((to - from) / WINDOW + 2),
        Kind::Sliding => LIMIT * ((segment(to) - segment(from)) / 7 + 1),
        Kind::Strict => LIMIT * ((to - from) / WINDOW + 1),
    }
}

#[test]
fn no_window_of_time_holds_more_than_documented() {
    fn check<W: Word>(seed: u64) {
        for (kind, limiter) in KINDS.into_iter().zip(replenishing::<W>()) {
            let draws = &mut draws(seed);
            let (mut now, mut newest) = (0u64, 0);
            let mut admitted: Vec<(u64, u64)> = Vec::new();
            for _ in 0..300 {
                now = match draws.below(4) {
                    0 => now,
                    1 => now.saturating_sub(draws.magnitude(5_000)),
                    2 => now + draws.magnitude(300),
                    _ => now + draws.magnitude(3_000),
                };
                let n = draws.within(1, 3);
                if limiter
                    .take_at(Timestamp::from_micros(now), n as u32)
                    .is_ok()
                {
                    // The grant counts at its own `now`, or at the newest time written if that is
                    // later.
                    newest = now.max(newest);
                    admitted.push((newest, n));
                }
            }
            for (first, &(from, _)) in admitted.iter().enumerate() {
                let mut held = 0;
                for &(to, n) in &admitted[first..] {
                    held += n;
                    assert!(
                        held <= bound(kind, from, to),
                        "{kind:?}, seed {seed}: {held} from {from} to {to}"
                    );
                }
            }
        }
    }
    for seed in 0..200 {
        check::<u64>(seed);
        check::<u32>(seed);
    }
}

#[test]
fn a_stale_timestamp_gets_no_more_than_the_newest_time() {
    // In any order, no more than if each request had come with the newest `now` so far.
    fn check<W: Word>(seed: u64) {
        let draws = &mut draws(seed);
        let times: Vec<u64> = (0..60).map(|_| draws.below(6_000)).collect();
        let mut newest = 0;
        let in_step: Vec<u64> = times
            .iter()
            .map(|&now| {
                newest = now.max(newest);
                newest
            })
            .collect();
        let admitted = |limiter: &dyn Limiter, times: &[u64]| {
            times
                .iter()
                .filter(|&&now| limiter.take_at(Timestamp::from_micros(now), 1).is_ok())
                .count()
        };
        let limiters = replenishing::<W>().into_iter().zip(replenishing::<W>());
        for (kind, (one, other)) in KINDS.into_iter().zip(limiters) {
            let (wild, tame) = (admitted(&*one, &times), admitted(&*other, &in_step));
            assert!(wild <= tame, "{kind:?}, seed {seed}: {wild} > {tame}");
        }
        // A bucket uses the `now` of each request: no more than if they had come in order.
        let mut sorted = times.clone();
        sorted.sort_unstable();
        for index in [0, 1] {
            let wild = admitted(&*replenishing::<W>()[index], &times);
            let tame = admitted(&*replenishing::<W>()[index], &sorted);
            assert!(
                wild <= tame,
                "{:?}, seed {seed}: {wild} > {tame}",
                KINDS[index]
            );
        }
    }
    for seed in 0..2_000 {
        check::<u64>(seed);
        check::<u32>(seed);
    }
}

#[test]
fn a_denial_changes_nothing_and_comes_back_later_than_now() {
    fn check(limiter: &(impl Limiter + Debug), seed: u64) {
        let draws = &mut draws(seed);
        let (mut now, mut denials) = (0, 0);
        for _ in 0..200 {
            now += draws.magnitude(500);
            let n = draws.within(0, 8) as u32;
            let before = format!("{limiter:?}");
            let available = limiter.available_at(at(now));
            let Err(denied) = limiter.take_at(at(now), n) else {
                continue;
            };
            denials += 1;
            assert_eq!(format!("{limiter:?}"), before);
            assert_eq!(limiter.available_at(at(now)), available);
            match denied.retry(limiter) {
                Retry::At(at) => {
                    let now = Timestamp::from_nanos(now);
                    assert!(at > now, "denied, but with no time to wait");
                    assert_eq!(
                        denied.retry(limiter).wait_from(now),
                        Some(at.saturating_since(now))
                    );
                }
                Retry::Never => assert!(u64::from(n) > limiter.capacity()),
                Retry::OnRelease => assert!(u64::from(n) <= limiter.capacity()),
                other => panic!("{other:?}"),
            }
        }
        assert!(denials > 10, "{denials}");
    }
    let window = Duration::from_nanos(WINDOW);
    check(&TokenBucket::new(Rate::new(7, window), LIMIT), 1);
    check(
        &TokenBucket::builder(Rate::new(7, window), LIMIT)
            .build_on::<u32>()
            .unwrap(),
        2,
    );
    check(&FixedWindow::new(LIMIT, window), 3);
    check(&SlidingWindow::<8>::new(LIMIT, window, 8), 4);
    let concurrency = Concurrency::new(LIMIT as u32);
    let held = concurrency.try_acquire(4).unwrap();
    assert_eq!(concurrency.take_at(Timestamp::ZERO, 1), Ok(Receipt::NONE));
    check(&concurrency, 5);
    assert_eq!(held.permits(), 4);
}

#[test]
fn a_limiter_unused_for_centuries_is_full_and_nothing_overflows() {
    let centuries = i64::MAX.cast_unsigned();
    let limits = || -> [(Box<dyn Limiter>, u64); 6] {
        [
            (Box::new(TokenBucket::new(Rate::per_second(5), 10)), 10),
            (
                Box::new(
                    TokenBucket::builder(Rate::per_day(1), 10)
                        .stepwise()
                        .build()
                        .unwrap(),
                ),
                10,
            ),
            (Box::new(FixedWindow::new(10, SECOND)), 10),
            (Box::new(SlidingWindow::<8>::new(10, SECOND, 7)), 10),
            (Box::new(Concurrency::new(10)), 10),
            (Box::new(Unlimited), u64::MAX),
        ]
    };
    for start in [0, 1, 1_700_000_000_000_000_000] {
        for (limiter, full) in limits() {
            let lease = limiter.try_acquire_at(at(start), 3).expect("full");
            drop(lease);
            assert_eq!(limiter.available_at(at(start + centuries)), full);
            assert!(limiter.idle_at(at(start + centuries)).is_idle());
            assert!(limiter.take_at(at(start + centuries), 1).is_ok());
            limiter.release(1);
            // The end of time, and back: at worst the limiter reports less than full.
            for now in [u64::MAX, u64::MAX - 1, 0, u64::MAX / 2, u64::MAX] {
                assert!(limiter.available_at(at(now)) <= full);
                if let Err(denied) = limiter.take_at(at(now), 2) {
                    let _ = denied.retry(&*limiter);
                } else {
                    limiter.release(2);
                }
                let _ = limiter.idle_at(at(now));
            }
        }
    }
}

#[test]
fn a_panic_returns_the_held_permits() {
    let limit = Concurrency::new(5);
    let pool: LeasePool<Concurrency, 4> = LeasePool::new(Concurrency::new(5));
    for _ in 0..100 {
        let panics = || {
            let mut lease = limit.try_acquire(4).expect("free");
            let _split = lease.split(1).expect("holds four");
            let _late = pool.claim_at(at(0), 2, Some(at(9))).expect("free");
            // Without a message, so that no hook prints it.
            std::panic::resume_unwind(Box::new(()));
        };
        assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
        assert_eq!(limit.available(), 5);
        // A lease by id has no owner that drops it: the sweep finds it.
        assert_eq!(pool.sweep(at(9)), 2);
    }
    assert_eq!(pool.limiter().available(), 5);
}

#[test]
fn a_limiter_that_panics_leaves_the_pool_unchanged() {
    struct Panics;
    impl Limiter for Panics {
        fn decide(&self, ask: Ask<'_>) -> Answer {
            if ask.is_look() {
                return ask.looked(self.available_at(ask.now()), || u64::MAX);
            }
            std::panic::resume_unwind(Box::new(()))
        }

        fn give_back(&self, _: Back<'_>) -> Returned {
            Returned::NOTHING
        }

        fn read(&self, _: Read<'_>) -> Reading {
            Reading {
                available: 0,
                capacity: u64::MAX,
                idle: Idle::InUse,
                held: 0,
            }
        }

        fn retry(&self, _: portcullis_core::Denied) -> Retry {
            Retry::Never
        }
    }
    let pool: LeasePool<Panics, 1> = LeasePool::new(Panics);
    for _ in 0..3 {
        assert!(
            catch_unwind(AssertUnwindSafe(|| pool.claim_at(at(0), 1, None))).is_err(),
            "never full"
        );
    }
    assert_eq!(pool.leases(), 0);
}

#[test]
fn a_lease_pool_agrees_with_a_map() {
    const SLOTS: usize = 5;
    const PERMITS: u32 = 12;
    let (mut claims, mut full, mut stale, mut swept) = (0, 0, 0, 0);
    for seed in 0..500 {
        let draws = &mut draws(seed);
        let pool: LeasePool<Concurrency, SLOTS> = LeasePool::new(Concurrency::new(PERMITS));
        let mut held: HashMap<u64, (u32, Option<u64>)> = HashMap::new();
        let mut dead: Vec<LeaseId> = Vec::new();
        let mut now = 0;
        for _ in 0..200 {
            now += draws.magnitude(4);
            let in_use: u32 = held.values().map(|(n, _)| n).sum();
            match draws.below(8) {
                0..=3 => {
                    let n = draws.within(0, 5) as u32;
                    let deadline = draws.once_in(2).then(|| now + draws.magnitude(20));
                    match pool.claim_at(at(now), n, deadline.map(at)) {
                        Ok(id) => {
                            assert!(held.len() < SLOTS && in_use + n.max(1) <= PERMITS);
                            assert_eq!(LeaseId::from_bits(id.to_bits()), id);
                            assert_eq!(
                                held.insert(id.to_bits(), (n, deadline)),
                                None,
                                "the same id twice"
                            );
                            claims += 1;
                        }
                        Err(ClaimError::PoolFull { slots }) => {
                            assert_eq!((slots as usize, held.len()), (SLOTS, SLOTS));
                            full += 1;
                        }
                        Err(ClaimError::Denied(_)) => {
                            assert!(held.len() < SLOTS && in_use + n.max(1) > PERMITS);
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
                4 | 5 if !held.is_empty() => {
                    let ids: Vec<u64> = held.keys().copied().collect();
                    let bits = draws.one_of(&ids);
                    let (n, _) = held.remove(&bits).expect("held");
                    assert_eq!(pool.release(LeaseId::from_bits(bits)), Ok(n));
                    dead.push(LeaseId::from_bits(bits));
                }
                6 if !dead.is_empty() => {
                    assert_eq!(pool.release(draws.one_of(&dead)), Err(StaleId));
                    stale += 1;
                }
                _ => {
                    let is_over =
                        |deadline: Option<u64>| deadline.is_some_and(|deadline| deadline <= now);
                    let over: Vec<u64> = held
                        .iter()
                        .filter(|(_, lease)| is_over(lease.1))
                        .map(|(&id, _)| id)
                        .collect();
                    let permits: u32 = over
                        .iter()
                        .filter_map(|id| held.remove(id))
                        .map(|(n, _)| n)
                        .sum();
                    assert_eq!(pool.sweep(at(now)), permits.into());
                    swept += over.len();
                    dead.extend(over.into_iter().map(LeaseId::from_bits));
                }
            }
            assert_eq!(pool.leases(), held.len());
            assert_eq!(
                pool.limiter().in_use(),
                held.values().map(|(n, _)| n).sum::<u32>()
            );
            let guessed = LeaseId::from_bits(draws.any());
            if !held.contains_key(&guessed.to_bits()) {
                assert_eq!(pool.release(guessed), Err(StaleId), "a guess");
            }
        }
    }
    assert!(
        claims > 10_000 && full > 100 && stale > 1_000 && swept > 1_000,
        "{claims} {full} {stale} {swept}"
    );
}

/// The word has wrapped to where the window was open, less the staleness. A grant there counts in
/// the old window, and a stale timestamp after it must not find the limiter idle.
#[test]
fn a_stale_timestamp_after_a_whole_horizon_finds_no_idle_window() {
    fn check(limiter: &impl Limiter, horizon: u64, staleness: u64) {
        const SECOND: u64 = 1_000_000_000;
        let start = 100 * SECOND;
        let around = start + horizon + SECOND;
        limiter.take_at(at(start), 1).unwrap();
        for late in 0..=3 {
            // Whether or not there is a grant, no second holds more than three permits.
            let newest = around - staleness + late * SECOND;
            let first = (0..3)
                .filter(|_| limiter.take_at(at(newest), 1).is_ok())
                .count();
            let second = (0..3)
                .filter(|_| limiter.take_at(at(newest - SECOND), 1).is_ok())
                .count();
            assert!(
                first + second <= 3,
                "{first} and {second}, {late} s before the old window"
            );
        }
    }
    let second = SECOND;
    let fixed: FixedWindow<u32> = FixedWindow::builder(3, second).build_on().unwrap();
    check(
        &fixed,
        fixed.timing().horizon.as_nanos() as u64,
        fixed.timing().staleness.as_nanos() as u64,
    );
    let sliding: SlidingWindow<3, u32> =
        SlidingWindow::builder(3, 3 * second, 3).build_on().unwrap();
    check(
        &sliding,
        sliding.timing().horizon.as_nanos() as u64,
        sliding.timing().staleness.as_nanos() as u64,
    );
}
