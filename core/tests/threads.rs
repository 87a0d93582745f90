//! Real threads on one limiter. Every admission is recorded, and every window of time checked.
//!
//! An admission counts at its own `now`, or at the newest `now` written before it if that is later.
//! Only the limiter's word knows which of the two it was. So each thread records the newest `now`
//! of any thread before its own call returned: the instant is between its own `now` and that one. A
//! window certainly holds those admissions whose whole interval it contains, and these must never
//! exceed the limiter's bound.

#[allow(dead_code, reason = "made for traces, too")]
#[path = "support/draws.rs"]
mod draws;

use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use core::time::Duration;
use std::sync::Mutex;
use std::time::Instant;

use draws::Draws;
use portcullis_core::leases::{ClaimError, StaleId};
use portcullis_core::{
    Concurrency, FixedWindow, LeasePool, Limiter, Rate, SlidingWindow, Timestamp, TokenBucket,
};

const THREADS: u64 = 4;
/// How stale the `now` of a thread is at most; far below any limiter's staleness.
const LATE: u64 = 200_000;

/// Permits that were granted at some instant from `earliest` to `latest`, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Admission {
    earliest: u64,
    latest: u64,
    permits: u64,
}

/// For how long each limiter is used at least.
fn duration() -> Duration {
    Duration::from_millis(if cfg!(debug_assertions) { 300 } else { 1_000 })
}

/// Repeats a round until the limiter has been used enough for a meaningful result. How long that
/// takes depends on the load of the machine.
fn until_used(mut round: impl FnMut() -> bool) {
    assert!(
        (0..50).any(|_| round()),
        "too few requests for a meaningful result"
    );
}

/// Uses `limiter` from several threads for `time`, and returns all admissions.
fn hammer<L: Limiter + Sync>(limiter: &L, most: u64, time: Duration) -> Vec<Admission> {
    let begun = AtomicU64::new(0);
    let origin = Instant::now();
    let all = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for seed in 0..THREADS {
            let (begun, all) = (&begun, &all);
            scope.spawn(move || {
                let mut draws = Draws::Seeded {
                    state: seed,
                    steps: 0,
                };
                let mut mine = Vec::with_capacity(1 << 20);
                loop {
                    let clock = origin.elapsed();
                    if clock > time {
                        break;
                    }
                    let late = if draws.once_in(4) {
                        draws.magnitude(LATE)
                    } else {
                        0
                    };
                    // Not before zero.
                    let now = (clock.as_nanos() as u64 + LATE) - late;
                    let n = draws.within(1, most);
                    begun.fetch_max(now, SeqCst);
                    if limiter
                        .take_at(Timestamp::from_nanos(now), n as u32)
                        .is_ok()
                    {
                        let latest = begun.load(SeqCst);
                        mine.push(Admission {
                            earliest: now,
                            latest,
                            permits: n,
                        });
                    }
                }
                all.lock().expect("no thread panicked").append(&mut mine);
            });
        }
    });
    all.into_inner().expect("no thread panicked")
}

/// The most permits in any window, beyond what its length alone allows at `permits` each `period`.
///
/// Sweeps over the ends of the windows. For each start it keeps the permits in between, less what
/// the time since has brought, in a tree of maxima with additions to prefixes.
fn most_over_the_rate(admissions: &[Admission], permits: i128, period: i128) -> i128 {
    let mut starts: Vec<u64> = admissions
        .iter()
        .map(|admission| admission.earliest)
        .collect();
    starts.sort_unstable();
    starts.dedup();
    let mut tree = MaxTree::new(starts.len().next_power_of_two());
    let mut started = 0;
    let mut by_end = admissions.to_vec();
    by_end.sort_unstable_by_key(|admission| admission.latest);
    let mut most = i128::MIN;
    for admission in by_end {
        while let Some(&start) = starts
            .get(started)
            .filter(|&&start| start <= admission.latest)
        {
            tree.set(started, i128::from(start) * permits);
            started += 1;
        }
        let upto = starts.partition_point(|&start| start <= admission.earliest);
        tree.add(upto, i128::from(admission.permits) * period);
        most = most.max(tree.max() - i128::from(admission.latest) * permits);
    }
    most
}

/// Numbers with a quick maximum, and additions to the first `count` of them.
struct MaxTree {
    leaves: usize,
    /// For each node, the greatest number below it without additions made above it, and the sum of
    /// the additions to all numbers below it.
    nodes: Vec<(i128, i128)>,
}

impl MaxTree {
    /// Creates a tree of `count` numbers, a power of two, none of which is set.
    fn new(leaves: usize) -> Self {
        // Half of the lowest number, so that additions do not overflow.
        Self {
            leaves,
            nodes: vec![(i128::MIN / 2, 0); 2 * leaves],
        }
    }

    /// Sets a number to which nothing was added before.
    fn set(&mut self, leaf: usize, value: i128) {
        let mut node = self.leaves + leaf;
        self.nodes[node].0 = value;
        while node > 1 {
            node /= 2;
            self.nodes[node].0 =
                self.nodes[2 * node].0.max(self.nodes[2 * node + 1].0) + self.nodes[node].1;
        }
    }

    fn max(&self) -> i128 {
        self.nodes[1].0
    }

    /// Adds `amount` to the first `count` numbers.
    fn add(&mut self, count: usize, amount: i128) {
        let (mut node, mut size, mut left) = (1, self.leaves, count);
        let mut path = Vec::new();
        while left > 0 {
            if left >= size {
                self.nodes[node].0 += amount;
                self.nodes[node].1 += amount;
                break;
            }
            path.push(node);
            size /= 2;
            if left >= size {
                self.nodes[2 * node].0 += amount;
                self.nodes[2 * node].1 += amount;
                left -= size;
                node = 2 * node + 1;
            } else {
                node *= 2;
            }
        }
        for node in path.into_iter().rev() {
            self.nodes[node].0 =
                self.nodes[2 * node].0.max(self.nodes[2 * node + 1].0) + self.nodes[node].1;
        }
    }
}

/// The most permits in any `together` consecutive segments of a window; `window` nanoseconds have
/// `segments` segments.
fn most_in_segments(admissions: &[Admission], window: u64, segments: u64, together: u64) -> u64 {
    let segment =
        |nanos: u64| (u128::from(nanos) * u128::from(segments) / u128::from(window)) as usize;
    let last = admissions
        .iter()
        .map(|admission| segment(admission.latest))
        .max()
        .unwrap_or(0);
    // By first segment, and by the number of segments until the interval ends.
    let mut counts = vec![vec![0; together as usize]; last + 1];
    for admission in admissions {
        let (first, end) = (segment(admission.earliest), segment(admission.latest));
        if let Some(count) = counts[first].get_mut(end - first) {
            *count += admission.permits;
        }
    }
    let held = |first: usize| -> u64 {
        let rest = counts[first..].iter().take(together as usize).enumerate();
        rest.map(|(at, ends)| ends[..together as usize - at].iter().sum::<u64>())
            .sum()
    };
    (0..=last).map(held).max().unwrap_or(0)
}

fn total(admissions: &[Admission]) -> u64 {
    admissions.iter().map(|admission| admission.permits).sum()
}

fn token_bucket(time: Duration) {
    for (permits, period, burst) in [
        (1_000_000, 1_000_000_000, 50),
        (7, 10_000, 3),
        (999_999_937, 1_000_000_000, 2),
    ] {
        // Each round has a new limiter, because its time begins again.
        let builder = TokenBucket::builder(Rate::new(permits, Duration::from_nanos(period)), burst);
        until_used(|| {
            let admissions = hammer(&builder.build().unwrap(), 3.min(burst), time / 3);
            check_bucket("64 bits", &admissions, permits, period, burst)
        });
        if builder.build_on::<u32>().is_err() {
            continue;
        }
        until_used(|| {
            let narrow = builder.build_on::<u32>().unwrap();
            let admissions = hammer(&narrow, 3.min(burst), time / 3);
            // In whole ticks: a window of time may touch one more.
            let tick = narrow.timing().tick.as_nanos() as u64;
            let rounded = admissions.iter().map(|&admission| Admission {
                earliest: admission.earliest / tick * tick,
                latest: admission.latest / tick * tick,
                ..admission
            });
            check_bucket(
                "32 bits",
                &rounded.collect::<Vec<_>>(),
                permits,
                period,
                burst,
            )
        });
    }
}

/// Asserts the bound; returns whether the bucket was used enough.
fn check_bucket(
    width: &str,
    admissions: &[Admission],
    permits: u32,
    period: u64,
    burst: u64,
) -> bool {
    let over = most_over_the_rate(admissions, permits.into(), period.into());
    let bound = i128::from(burst) * i128::from(period);
    println!(
        "token bucket, {width}, {permits} each {period} ns: {} admitted; fullest window {} over the rate, of a burst of {burst}",
        total(admissions),
        over / i128::from(period),
    );
    assert!(
        over <= bound,
        "a window holds {over} / {period} more than the rate allows"
    );
    2 * over > bound
}

fn fixed_window(time: Duration) {
    const WINDOW: u64 = 1_000_000;
    const LIMIT: u64 = 200;
    fn check(width: &str, admissions: &[Admission]) -> bool {
        let most = most_in_segments(admissions, WINDOW, 1, 1);
        println!(
            "fixed window, {width}: {} admitted; fullest window {most} of {LIMIT}",
            total(admissions)
        );
        assert!(most <= LIMIT, "{most} in one window");
        2 * most > LIMIT
    }
    let builder = FixedWindow::builder(LIMIT, Duration::from_nanos(WINDOW));
    until_used(|| check("64 bits", &hammer(&builder.build().unwrap(), 3, time / 2)));
    until_used(|| {
        check(
            "32 bits",
            &hammer(&builder.build_on::<u32>().unwrap(), 3, time / 2),
        )
    });
}

fn started_window(time: Duration) {
    const WINDOW: u64 = 1_000_000;
    const LIMIT: u64 = 200;
    let builder =
        FixedWindow::builder(LIMIT, Duration::from_nanos(WINDOW)).started_by_first_request();
    until_used(|| {
        check_started(
            &mut hammer(&builder.build().unwrap(), 3, time),
            WINDOW,
            LIMIT,
        )
    });
}

/// Asserts the bound; returns whether the windows were used enough.
fn check_started(admissions: &mut [Admission], window: u64, limit: u64) -> bool {
    // Windows never overlap, so that a span of one window's length touches at most two.
    admissions.sort_unstable_by_key(|admission| admission.latest);
    let mut most = 0;
    for (index, end) in admissions.iter().enumerate() {
        let from = end.latest.saturating_sub(window - 1);
        // Intervals are short: stop some way before the span.
        let span = admissions[..=index]
            .iter()
            .rev()
            .take_while(|held| held.latest >= from);
        most = most.max(
            span.filter(|held| held.earliest >= from)
                .map(|held| held.permits)
                .sum(),
        );
    }
    println!(
        "started window: {} admitted; fullest span {most} of {}",
        total(admissions),
        2 * limit
    );
    assert!(most <= 2 * limit, "{most} in the length of one window");
    most >= limit / 2
}

fn sliding_window(time: Duration) {
    const WINDOW: u64 = 1_000_003;
    const SEGMENTS: u32 = 7;
    const LIMIT: u64 = 200;
    fn check(width: &str, admissions: &[Admission], together: u32) -> bool {
        let most = most_in_segments(admissions, WINDOW, SEGMENTS.into(), together.into());
        println!(
            "sliding window, {width}: {} admitted; fullest {together} segments {most} of {LIMIT}",
            total(admissions)
        );
        assert!(most <= LIMIT, "{most} in {together} segments");
        2 * most > LIMIT
    }
    let builder = SlidingWindow::<8>::builder(LIMIT, Duration::from_nanos(WINDOW), SEGMENTS);
    until_used(|| {
        check(
            "64 bits",
            &hammer(&builder.build().unwrap(), 3, time / 3),
            SEGMENTS,
        )
    });
    until_used(|| {
        check(
            "32 bits",
            &hammer(&builder.build_on::<u32>().unwrap(), 3, time / 3),
            SEGMENTS,
        )
    });
    until_used(|| {
        check(
            "strict",
            &hammer(&builder.strict().build().unwrap(), 3, time / 3),
            SEGMENTS + 1,
        )
    });
}

/// Runs `work` on several threads, each with random draws of its own, until the time is up and the
/// result is meaningful, which takes longer on a loaded machine.
fn on_threads(
    time: Duration,
    is_enough: impl Fn() -> bool + Sync,
    work: impl Fn(&mut Draws<'_>, &dyn Fn() -> bool) + Sync,
) {
    let begin = Instant::now();
    let goes_on =
        || begin.elapsed() < time || !is_enough() && begin.elapsed() < Duration::from_mins(1);
    std::thread::scope(|scope| {
        for state in 0..THREADS {
            let (work, goes_on) = (&work, &goes_on);
            scope.spawn(move || {
                work(&mut Draws::Seeded { state, steps: 0 }, goes_on);
            });
        }
    });
    assert!(is_enough(), "too few requests for a meaningful result");
}

fn concurrency(time: Duration) {
    const LIMITS: [u32; 2] = [5, 11];
    let limit = Concurrency::new(LIMITS[1]);
    let (held, most, granted) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let is_enough = || granted.load(Relaxed) > 10_000 && most.load(Relaxed) > 4;
    on_threads(time, is_enough, |draws, goes_on| {
        while goes_on() {
            if draws.once_in(16) {
                limit
                    .set_limit(draws.one_of(&LIMITS))
                    .expect("within the bound");
            }
            let n = draws.within(1, 4);
            if let Ok(mut lease) = limit.try_acquire(n as u32) {
                // Counted from after the grant until before the release.
                most.fetch_max(held.fetch_add(n, SeqCst) + n, SeqCst);
                granted.fetch_add(1, Relaxed);
                if draws.once_in(8) {
                    std::thread::yield_now();
                }
                let part = draws.within(0, n);
                held.fetch_sub(part, SeqCst);
                lease.release(part as u32).expect("no more than it holds");
                held.fetch_sub(n - part, SeqCst);
            }
        }
    });
    let (most, granted) = (most.load(Relaxed), granted.load(Relaxed));
    println!("concurrency: {granted} granted; at most {most} permits at once of {LIMITS:?}");
    assert!(most <= LIMITS[1].into(), "{most} permits at once");
    assert_eq!(
        (limit.in_use(), held.into_inner()),
        (0, 0),
        "permits were lost"
    );
}

fn one_permit_guards(time: Duration) {
    let limit = Concurrency::builder(1).build_on::<u32>().unwrap();
    let inside = AtomicBool::new(false);
    let entered = AtomicU32::new(0);
    let is_enough = || entered.load(Relaxed) > 1_000;
    on_threads(time, is_enough, |_, goes_on| {
        while goes_on() {
            if let Ok(_lease) = limit.try_acquire(1) {
                // Not an atomic operation, on purpose: only the permit excludes the other threads.
                assert!(!inside.load(Relaxed), "two inside");
                inside.store(true, Relaxed);
                entered.store(entered.load(Relaxed) + 1, Relaxed);
                inside.store(false, Relaxed);
            }
        }
    });
}

fn lease_pool(time: Duration) {
    const LIMIT: u32 = 12;
    let pool: LeasePool<Concurrency, 6> = LeasePool::new(Concurrency::new(LIMIT));
    let clock = AtomicU64::new(0);
    let (claimed, returned, full, stale) = (
        AtomicU64::new(0),
        AtomicU64::new(0),
        AtomicU64::new(0),
        AtomicU64::new(0),
    );
    let is_enough = || claimed.load(Relaxed) > 10_000 && full.load(Relaxed) > 0;
    on_threads(time, is_enough, |draws, goes_on| {
        let mut held = Vec::new();
        let mut used = Vec::new();
        while goes_on() {
            let now = clock.fetch_add(1, Relaxed);
            match draws.below(8) {
                0..=3 => {
                    let n = draws.within(1, 4) as u32;
                    // Some holders never release.
                    let deadline = draws.once_in(4).then(|| now + draws.magnitude(64));
                    match pool.claim_at(
                        Timestamp::from_nanos(now),
                        n,
                        deadline.map(Timestamp::from_nanos),
                    ) {
                        Ok(id) => {
                            claimed.fetch_add(n.into(), Relaxed);
                            held.push((id, n, deadline.is_some()));
                        }
                        Err(ClaimError::PoolFull { slots }) => {
                            assert_eq!(slots, 6);
                            full.fetch_add(1, Relaxed);
                        }
                        Err(ClaimError::Denied(_)) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
                4..=6 if !held.is_empty() => {
                    let (id, n, can_die) =
                        held.swap_remove(draws.below(held.len() as u64) as usize);
                    match pool.release(id) {
                        Ok(permits) => {
                            assert_eq!(permits, n, "the permits of another lease");
                            returned.fetch_add(n.into(), Relaxed);
                        }
                        Err(StaleId) => {
                            assert!(can_die, "a lease without a deadline was swept");
                        }
                    }
                    used.push(id);
                }
                7 => {
                    let permits = pool.sweep(Timestamp::from_nanos(now));
                    returned.fetch_add(permits, Relaxed);
                }
                _ => {}
            }
            if let Some(id) = used.pop_if(|_| draws.once_in(2)) {
                assert_eq!(pool.release(id), Err(StaleId), "released twice");
                stale.fetch_add(1, Relaxed);
            }
            let in_use = pool.limiter().in_use();
            assert!(in_use <= LIMIT, "{in_use} in use");
        }
        for (id, n, can_die) in held {
            match pool.release(id) {
                Ok(permits) => {
                    assert_eq!(permits, n);
                    returned.fetch_add(n.into(), Relaxed);
                }
                Err(StaleId) => assert!(can_die),
            }
        }
    });
    returned.fetch_add(pool.sweep(Timestamp::from_nanos(u64::MAX - 1)), Relaxed);
    let (claimed, returned) = (claimed.load(Relaxed), returned.load(Relaxed));
    println!(
        "lease pool: {claimed} permits claimed, {returned} returned; {} times full, {} stale ids rejected",
        full.load(Relaxed),
        stale.load(Relaxed)
    );
    assert_eq!(
        (pool.leases(), pool.limiter().in_use(), claimed),
        (0, 0, returned),
        "permits were lost"
    );
}

#[test]
fn a_token_bucket_on_threads_stays_within_its_bound_over_every_window() {
    token_bucket(duration());
}

#[test]
fn a_fixed_window_on_threads_stays_within_its_limit_in_every_window() {
    fixed_window(duration());
    started_window(duration() / 2);
}

#[test]
fn a_sliding_window_on_threads_stays_within_its_limit_in_all_consecutive_segments() {
    sliding_window(duration());
}

#[test]
fn concurrency_on_threads_stays_within_its_limit_and_loses_nothing() {
    concurrency(duration());
    one_permit_guards(duration() / 4);
}

#[test]
fn a_lease_pool_on_threads_loses_nothing_and_releases_nothing_twice() {
    lease_pool(duration());
}

#[test]
#[ignore = "takes minutes; cargo xtask soak runs it"]
fn soak() {
    // In rounds, because every admission is stored until its round is checked.
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_mins(2) {
        token_bucket(duration());
        fixed_window(duration());
        started_window(duration());
        sliding_window(duration());
        concurrency(duration());
        one_permit_guards(duration());
        lease_pool(duration());
    }
}

#[test]
fn the_search_for_the_fullest_window_finds_it() {
    let mut draws = Draws::Seeded { state: 1, steps: 0 };
    for _ in 0..200 {
        let admissions: Vec<_> = (0..draws.within(1, 20))
            .map(|_| {
                let earliest = draws.below(50);
                Admission {
                    earliest,
                    latest: earliest + draws.below(5),
                    permits: draws.within(1, 3),
                }
            })
            .collect();
        let over = |from: u64, to: u64| {
            let held = admissions
                .iter()
                .filter(|held| held.earliest >= from && held.latest <= to);
            held.map(|held| i128::from(held.permits)).sum::<i128>() * 3 - i128::from(to - from) * 2
        };
        let over = &over;
        let all = (0..60).flat_map(|from| (from..60).map(move |to| over(from, to)));
        // An empty window holds nothing.
        assert_eq!(
            most_over_the_rate(&admissions, 2, 3).max(0),
            all.max().expect("some")
        );
        let held = |from: u64| {
            let held = admissions
                .iter()
                .filter(|held| held.earliest / 7 >= from && held.latest / 7 < from + 3);
            held.map(|held| held.permits).sum::<u64>()
        };
        assert_eq!(
            most_in_segments(&admissions, 21, 3, 3),
            (0..10).map(held).max().expect("some")
        );
    }
}
