//! Stale timestamps, and requests after a whole wrap of the word. Neither finds more than is
//! available, and a refund is worth no more than what it returns.

#[allow(dead_code, reason = "made for traces, too")]
#[path = "support/draws.rs"]
mod draws;
#[path = "support/everyday.rs"]
mod everyday;

use core::time::Duration;

use draws::Draws;
use everyday::{Everyday, YEAR, everyday_limits, nanos};
use portcullis_core::keyed::{
    AnyRules, ConcurrencyRules, Line, MovableRules, RuleList, RulesAtRunTime, Seed,
};
use portcullis_core::limiter::Receipt;
use portcullis_core::{
    AllOf, FixedWindow, Keyed, KeyedList, Limiter, LimiterExt, Rate, Timestamp, TokenBucket,
};

const fn ms(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

/// A refund that finds the bucket full records its time: a stale timestamp after it does not find
/// what had room only later.
#[test]
fn a_late_request_after_a_refund_finds_no_more_than_the_newest_time_leaves() {
    fn check(limiter: &dyn Limiter, kind: &str) {
        // Full again at 2,500 ms and refunded then, so that the last 100 ms are worth one permit.
        for n in 1..=10 {
            let start = 100_000 * u64::from(n);
            let receipt: Receipt = limiter.take_at(ms(start + 1_000), n).unwrap();
            assert_eq!(
                limiter.refund_at(ms(start + 2_500), n, receipt).permits,
                n,
                "{kind}"
            );
            let late = ms(start + 2_400);
            assert_eq!(limiter.available_at(late), 9, "{kind}, {n} refunded");
            let first = limiter.drain_at(late).map_or(0, |lease| lease.permits());
            let second = limiter
                .drain_at(ms(start + 2_500))
                .map_or(0, |lease| lease.permits());
            // Both count at the newest time that was written.
            assert_eq!(first + second, 10, "{kind}, {n} refunded");
        }
    }
    let bucket = || TokenBucket::builder(Rate::per_second(10), 10);
    check(&bucket().build().unwrap(), "64 bits");
    check(&bucket().build_on::<u32>().unwrap(), "32 bits");
    let seed = Seed::new();
    seed.set([3, 4]).unwrap();
    let table = Keyed::new(bucket().rules().unwrap(), vec![Line::new()], seed);
    check(&*table.key("alice"), "by key");
}

/// The same, for a composition that rolls back what it took.
#[test]
fn a_late_request_after_a_rollback_finds_no_more_than_the_newest_time_leaves() {
    let bucket = TokenBucket::new(Rate::per_second(10), 10);
    let other = TokenBucket::new(Rate::per_second(10), 3);
    let composed = AllOf::new((&other,));
    let all = AllOf::new((&bucket, &composed, &other));
    assert_eq!(all.try_acquire_at(ms(9_000), 2).unwrap_err().index, 2);
    assert_eq!(
        (
            bucket.available_at(ms(9_000)),
            other.available_at(ms(9_000))
        ),
        (10, 3)
    );
    assert_eq!(bucket.available_at(ms(8_900)), 9);
}

/// Takes the whole burst, rests, and takes the whole burst again. `with` creates the limiter, which
/// is given to `check` with its own burst.
fn rests_for_any_time(
    what: &str,
    limits: &[Everyday],
    rest: impl Fn(&Everyday, Timestamp, Timestamp) -> Result<(), String>,
) {
    let mut draws = Draws::Seeded {
        state: 7,
        steps: u32::MAX,
    };
    let (mut failed, mut checked) = (Vec::new(), 0);
    for limit in limits {
        let times = limit.idle_times(&mut draws);
        // Without optimizations, each limit rests for some of the times.
        let step = if cfg!(debug_assertions) { 5 } else { 1 };
        for idle in times.into_iter().step_by(step) {
            let start = draws.below(3 * YEAR);
            let (start, now) = (
                Timestamp::from_nanos(start),
                Timestamp::from_nanos(start + idle),
            );
            checked += 1;
            if let Err(error) = rest(limit, start, now) {
                failed.push(format!(
                    "{what}, idle {:?}: {error}: {limit:?}",
                    Duration::from_nanos(idle)
                ));
            }
        }
    }
    let first = failed.first();
    assert!(
        first.is_none(),
        "{} of {checked}: {}",
        failed.len(),
        first.unwrap()
    );
    assert!(checked > 5_000, "{checked}");
}

/// A limiter that has rested grants its whole burst, and one more is denied.
fn is_full(limiter: &impl Limiter, now: Timestamp, burst: u32) -> Result<(), String> {
    let told = limiter.available_at(now);
    if told != u64::from(burst) {
        return Err(format!("{told} available"));
    }
    limiter
        .peek_at(now, burst)
        .map_err(|denied| format!("peek: {denied}"))?;
    if !limiter.idle_at(now).is_idle() {
        return Err("in use".into());
    }
    limiter
        .take_at(now, burst)
        .map_err(|denied| denied.to_string())?;
    match limiter.take_at(now, 1) {
        Ok(_) => Err("one more is granted".into()),
        Err(_) => Ok(()),
    }
}

type AnyTable = Keyed<AnyRules, Vec<Line>, Seed>;

fn copy(rules: &AnyRules) -> AnyRules {
    match rules {
        AnyRules::TokenBucket(rules) => (*rules).into(),
        AnyRules::FixedWindow(rules) => (*rules).into(),
        other => unreachable!("{other:?}"),
    }
}

fn table_of(limit: &Everyday, lines: usize) -> AnyTable {
    let lines = (0..lines).map(|_| Line::new()).collect();
    Keyed::new(copy(&limit.rules), lines, Seed::new())
}

#[test]
fn a_key_that_rested_for_any_time_up_to_ten_years_has_its_whole_burst() {
    let limits = everyday_limits();
    rests_for_any_time("a key", &limits, |limit, start, now| {
        let table = table_of(limit, 3);
        let alice = table.key("alice");
        alice
            .take_at(start, limit.burst)
            .map_err(|denied| format!("first: {denied}"))?;
        is_full(&alice, now, limit.burst)
    });
    // Another key in the same line is used half of the time.
    rests_for_any_time("a neighbor", &limits, |limit, start, now| {
        let table = table_of(limit, 1);
        let alice = table.key("alice");
        alice
            .take_at(start, limit.burst)
            .map_err(|denied| format!("first: {denied}"))?;
        let half = Timestamp::from_nanos(start.as_nanos().midpoint(now.as_nanos()));
        table
            .key("bob")
            .take_at(half, 1)
            .map_err(|denied| format!("bob: {denied}"))?;
        is_full(&alice, now, limit.burst)
    });
}

/// A bucket in rational arithmetic whose word never wraps. It counts whole ticks.
#[derive(Clone, Copy)]
struct Exact {
    rate: u64,
    burst: u64,
    tick: u64,
    /// The units used up: a permit has as many as a period has nanoseconds.
    used: i128,
}

const SECOND: u64 = 1_000_000_000;

impl Exact {
    fn new(rate: u64, burst: u64, tick: u64) -> Self {
        let used = i128::MIN / 2;
        Self {
            rate,
            burst,
            tick,
            used,
        }
    }

    fn available(&self, now: u64) -> u64 {
        let position = i128::from(now / self.tick * self.tick) * i128::from(self.rate);
        let permits = (position - self.used).max(0) / i128::from(SECOND);
        u64::try_from(permits).unwrap_or(u64::MAX).min(self.burst)
    }

    fn take(&mut self, now: u64, n: u64) {
        let position = i128::from(now / self.tick * self.tick) * i128::from(self.rate);
        let full = i128::from(self.burst) * i128::from(SECOND);
        self.used = self.used.max(position - full) + i128::from(n) * i128::from(SECOND);
    }
}

/// Gaps from a nanosecond to some horizons, most of them close to a multiple of a horizon.
fn gap(draws: &mut Draws<'_>, horizon: u64, full: u64) -> u64 {
    match draws.below(8) {
        0 => draws.magnitude(3 * horizon),
        1..=3 => {
            let span = [0, full, 2 * full, SECOND, horizon / 4][draws.below(5) as usize] + 1;
            let around = (1 + draws.below(3)) * horizon + draws.below(span);
            around.saturating_sub(draws.below(span))
        }
        4 => draws.below(2 * full),
        _ => draws.below(full / 8 + 1),
    }
}

const STEPS: u32 = if cfg!(debug_assertions) {
    300_000
} else {
    3_000_000
};

/// Buckets whose word repeats within 9 s to 3 h, with one key after another, and requests that are
/// up to 1 s stale.
#[test]
fn keys_are_granted_what_a_bucket_that_never_wraps_grants() {
    let mut granted = [0, 0];
    for (seed, (rate, burst, tick)) in [
        (1_000_003, 10, 10_000),
        (1_000_003, 2_000_000, 10_000),
        (999_983, 100, 1_000),
        (2_443, 5, 1_000),
    ]
    .into_iter()
    .enumerate()
    {
        let rate_of = Rate::per_second(rate);
        let builder = TokenBucket::builder(rate_of, burst).tick(Duration::from_nanos(tick));
        let rules = builder.staleness(Duration::from_secs(1)).rules().unwrap();
        let (horizon, full) = (
            nanos(rules.timing().horizon),
            nanos(rules.time_to_fill().unwrap()),
        );
        let table = Keyed::new(rules, vec![Line::new()], Seed::new());
        let mut draws = Draws::Seeded {
            state: seed as u64,
            steps: u32::MAX,
        };
        let keys = ["alice", "bob", "carol"];
        let mut exact = [Exact::new(rate.into(), burst, tick); 3];
        let mut newest = draws.below(YEAR);
        for step in 0..STEPS {
            let gap = gap(&mut draws, horizon, full);
            let is_stale = draws.once_in(8);
            let now = if is_stale {
                newest.saturating_sub(gap.min(SECOND))
            } else {
                newest.saturating_add(gap)
            };
            if now > 500 * YEAR {
                break;
            }
            newest = newest.max(now);
            let nth = draws.below(3) as usize;
            let n = match draws.below(4) {
                0 => burst,
                1 => 1,
                _ => 1 + draws.below(burst),
            };
            let key = table.key(keys[nth]);
            let seen = || format!("step {step}, {now} ({newest}), {n} of {rate}/s, burst {burst}");
            let room = exact[nth].available(newest);
            if !is_stale {
                assert_eq!(
                    key.available_at(Timestamp::from_nanos(now)),
                    room,
                    "{}",
                    seen()
                );
            }
            let is_granted = key.take_at(Timestamp::from_nanos(now), n as u32).is_ok();
            granted[usize::from(is_granted)] += 1;
            if is_granted {
                assert!(n <= room, "{}: {room}", seen());
                exact[nth].take(now, n);
            } else if !is_stale {
                assert!(n > room, "{}: {room}", seen());
            }
        }
    }
    assert!(
        granted.iter().all(|count| *count > STEPS / 4),
        "{granted:?}"
    );
}

/// As [`is_full`], of each limit.
fn are_full<L: RuleList>(
    table: &KeyedList<L, Vec<Line>, Seed>,
    now: Timestamp,
    burst: u32,
) -> Result<(), String> {
    let alice = table.key("alice");
    for detail in alice.explain_each_at(now, 1) {
        if detail.available != detail.capacity {
            return Err(format!(
                "{} of {} available",
                detail.available, detail.capacity
            ));
        }
    }
    is_full(&alice, now, burst)
}

#[test]
fn each_limit_of_a_key_that_rested_for_any_time_has_its_whole_burst() {
    let limits = everyday_limits();
    let lines = |count: usize| (0..count).map(|_| Line::new()).collect::<Vec<_>>();
    for (count, step) in [(1, 1), (2, 7), (3, 11), (4, 13), (6, 5)] {
        let of = |limit: &Everyday| {
            let first = limits.iter().position(|other| core::ptr::eq(other, limit));
            let first = first.unwrap_or(0);
            let all = (0..count).map(|nth| &limits[(first + nth * step) % limits.len()]);
            all.collect::<Vec<_>>()
        };
        rests_for_any_time(&format!("{count} limits"), &limits, |limit, start, now| {
            let all = of(limit);
            let burst = all.iter().map(|limit| limit.burst).min().unwrap();
            let full_after = all.iter().map(|limit| limit.full_after).max().unwrap();
            if now.as_nanos() - start.as_nanos() < full_after {
                return Ok(());
            }
            let rules = RulesAtRunTime::new(all.iter().map(|limit| copy(&limit.rules))).unwrap();
            let table = KeyedList::new(rules, lines(8), Seed::new());
            let alice = table.key("alice");
            alice
                .take_at(start, burst)
                .map_err(|denied| format!("first: {denied}"))?;
            if count % 2 == 0 {
                let half = Timestamp::from_nanos(start.as_nanos().midpoint(now.as_nanos()));
                table
                    .key("bob")
                    .take_at(half, 1)
                    .map_err(|denied| format!("bob: {denied}"))?;
            }
            are_full(&table, now, burst)
        });
    }
}

/// The permits of a concurrency limit stay in use, however long, and the others come back.
#[test]
fn permits_that_are_held_for_any_time_stay_in_use() {
    let limits = everyday_limits();
    rests_for_any_time("held", &limits, |limit, start, now| {
        let lines = (0..8).map(|_| Line::new()).collect::<Vec<_>>();
        let rules = [
            copy(&limit.rules),
            ConcurrencyRules::new(limit.burst).into(),
        ];
        let table = KeyedList::new(RulesAtRunTime::new(rules).unwrap(), lines, Seed::new());
        let alice = table.key("alice");
        alice
            .take_at(start, limit.burst)
            .map_err(|denied| format!("first: {denied}"))?;
        if alice.take_at(now, 1).is_ok() {
            return Err("more than the limit at once".into());
        }
        alice.release(limit.burst);
        is_full(&alice, now, limit.burst)
    });
}

#[test]
fn a_key_that_rested_for_any_time_has_its_whole_burst_after_a_move() {
    let limits = everyday_limits();
    rests_for_any_time("moved", &limits, |limit, start, now| {
        let AnyRules::TokenBucket(rules) = limit.rules else {
            return Ok(());
        };
        let closed = || vec![Line::closed()];
        let one = Keyed::new(rules, vec![Line::new()], Seed::new());
        one.key("alice")
            .take_at(start, limit.burst)
            .map_err(|denied| denied.to_string())?;
        let half = Timestamp::from_nanos(start.as_nanos().midpoint(now.as_nanos()));
        let two = Keyed::new(rules, closed(), Seed::new());
        assert_eq!(one.move_to(&two, half), 0);
        let three = Keyed::new(rules, closed(), Seed::new()).with_revocable_claims();
        assert_eq!(two.hand_over_to(&three, now), 0);
        is_full(&three.key("alice"), now, limit.burst)
    });
}

/// Takes the whole burst at `start`, and moves or copies the key at both of `moves`.
fn is_full_after_moves<R: MovableRules + Copy + Into<AnyRules>>(
    rules: R,
    burst: u32,
    (start, [first, second], now): (Timestamp, [Timestamp; 2], Timestamp),
) -> Result<(), String> {
    let lines = || [Line::new, Line::closed, Line::closed].map(|new| vec![new()]);
    let tables = || lines().map(|lines| Keyed::new(rules, lines, Seed::new()));
    let [one, two, three] = tables();
    one.key("alice").take_at(start, burst).unwrap();
    assert_eq!(
        [one.move_to(&two, first), two.move_to(&three, second)],
        [0; 2]
    );
    is_full(&three.key("alice"), now, burst).map_err(|error| format!("moved: {error}"))?;

    let [one, two, three] = tables().map(Keyed::with_revocable_claims);
    one.key("alice").take_at(start, burst).unwrap();
    assert_eq!(
        [
            one.hand_over_to(&two, first),
            two.hand_over_to(&three, second)
        ],
        [0; 2]
    );
    is_full(&three.key("alice"), now, burst).map_err(|error| format!("handed over: {error}"))?;

    let rules_at_run_time = || RulesAtRunTime::new([rules.into()]).unwrap();
    let [one, two, three] =
        lines().map(|lines| KeyedList::new(rules_at_run_time(), lines, Seed::new()));
    one.key("alice").take_at(start, burst).unwrap();
    let moved = [
        one.move_to(&two, first, Some),
        two.move_to(&three, second, Some),
    ];
    assert_eq!(moved, [0; 2]);
    is_full(&three.key("alice"), now, burst).map_err(|error| format!("list moved: {error}"))?;

    let [one, two, three] =
        [(); 3].map(|()| KeyedList::new([rules], vec![Line::new()], Seed::new()));
    let alice = one.key("alice").address();
    one.key("alice").take_at(start, burst).unwrap();
    assert!(one.copy_key_to(alice, &two, alice, first));
    assert!(two.copy_key_to(alice, &three, alice, second));
    is_full(&three.key("alice"), now, burst).map_err(|error| format!("copied: {error}"))
}

/// The second move comes before the line that the first one reached is settled again.
#[test]
fn a_key_that_moves_twice_while_it_rests_has_its_whole_burst() {
    rests_for_any_time("moved twice", &everyday_limits(), |limit, start, now| {
        let idle = nanos(now.saturating_since(start)) / 100;
        for parts in [[5, 53], [30, 60], [45, 90]] {
            let moves = parts.map(|part| start + Duration::from_nanos(idle * part));
            let times = (start, moves, now);
            match limit.rules {
                AnyRules::TokenBucket(rules) => is_full_after_moves(rules, limit.burst, times)?,
                AnyRules::FixedWindow(rules) => is_full_after_moves(rules, limit.burst, times)?,
                ref other => unreachable!("{other:?}"),
            }
        }
        Ok(())
    });
}

/// A limit in exact arithmetic, whose state never wraps.
#[derive(Clone, Copy)]
enum Model {
    Bucket(Exact),
    /// A window on the grid: its length, its limit, its number, and what is taken from it.
    Window(u64, u64, u64, u64),
}

impl Model {
    fn available(&self, now: u64) -> u64 {
        match *self {
            Self::Bucket(exact) => exact.available(now),
            Self::Window(length, limit, number, _) if now / length > number => limit,
            Self::Window(_, limit, _, taken) => limit - taken,
        }
    }

    fn take(&mut self, now: u64, n: u64) {
        match self {
            Self::Bucket(exact) => exact.take(now, n),
            Self::Window(length, _, number, taken) => {
                if now / *length > *number {
                    (*number, *taken) = (now / *length, 0);
                }
                *taken += n;
            }
        }
    }

    fn refund(&mut self, n: u64) {
        match self {
            Self::Bucket(exact) => exact.used -= i128::from(n) * i128::from(SECOND),
            Self::Window(.., taken) => *taken -= n,
        }
    }

    /// A move may delay the permits of a bucket by a tick of each table.
    fn delay(&mut self, now: u64) {
        if let Self::Bucket(exact) = self {
            exact.take(now, 0);
            exact.used += 2 * i128::from(exact.tick) * i128::from(exact.rate);
        }
    }
}

/// The most and the least that a limit may have.
#[derive(Clone, Copy)]
struct Between([Model; 2]);

impl Between {
    fn available(&self, now: u64) -> [u64; 2] {
        self.0.map(|model| model.available(now))
    }

    fn each(&mut self, change: impl FnMut(&mut Model)) {
        self.0.iter_mut().for_each(change);
    }
}

/// Buckets whose word repeats within 9 s to 1 h, and a window whose word repeats within days.
fn short_lived_limits() -> [(AnyRules, Model, u64); 4] {
    let bucket = |rate: u32, burst, tick| {
        let builder = TokenBucket::builder(Rate::per_second(rate), burst);
        let builder = builder.tick(Duration::from_nanos(tick));
        let rules = builder.staleness(Duration::from_secs(1)).rules().unwrap();
        let model = Model::Bucket(Exact::new(rate.into(), burst, tick));
        (rules.into(), model, nanos(rules.timing().horizon))
    };
    let builder = FixedWindow::builder(60, Duration::from_micros(10));
    let rules = builder.staleness(Duration::from_secs(1)).rules().unwrap();
    let horizon = nanos(rules.timing().horizon);
    [
        bucket(1_000_003, 40, 10_000),
        bucket(999_983, 100, 1_000),
        (rules.into(), Model::Window(10_000, 60, 0, 0), horizon),
        bucket(2_443, 50, 1_000),
    ]
}

type List<L> = KeyedList<L, Vec<Line>, Seed>;

/// Takes, refunds and sweeps at random, for three keys, with requests that are up to 1 s stale.
/// `moved` may replace the table by one that the keys have moved to.
fn trace_of_lists<L: RuleList>(
    mut table: List<L>,
    limits: &[(AnyRules, Model, u64)],
    seed: u64,
    mut moved: impl FnMut(&List<L>, Timestamp, &mut Draws<'_>) -> Option<List<L>>,
) {
    const BURST: u64 = 40;
    let mut draws = Draws::Seeded {
        state: seed,
        steps: u32::MAX,
    };
    let models = || limits.iter().map(|(_, model, _)| Between([*model; 2]));
    let mut models = [(); 3].map(|()| models().collect::<Vec<_>>());
    let (keys, steps) = (["alice", "bob", "carol"], STEPS / 5);
    let (mut newest, mut counts, mut refunds) = (draws.below(YEAR), [0, 0], 0);
    for step in 0..steps {
        let horizon = limits[draws.below(limits.len() as u64) as usize].2;
        // Rarely one of days, so that the trace ends before time does.
        let horizon = if horizon > 3_600 * SECOND && !draws.once_in(500) {
            9 * SECOND
        } else {
            horizon
        };
        let gap = gap(&mut draws, horizon, 50_000);
        let is_stale = draws.once_in(8);
        let at = if is_stale {
            newest.saturating_sub(gap.min(SECOND))
        } else {
            newest + gap
        };
        if at > 500 * YEAR {
            break;
        }
        newest = newest.max(at);
        let (now, latest) = (Timestamp::from_nanos(at), Timestamp::from_nanos(newest));
        if draws.once_in(16) {
            table.sweep_at(latest, ..);
        }
        if let Some(to) = moved(&table, latest, &mut draws) {
            table = to;
            for model in models.iter_mut().flatten() {
                model.0[1].delay(newest);
            }
        }
        let (nth, n) = (draws.below(3) as usize, 1 + draws.below(BURST));
        let (key, own) = (table.key(keys[nth]), &mut models[nth]);
        let room = |which: usize| own.iter().map(|model| model.available(newest)[which]).min();
        let [most, least] = [0, 1].map(|which| room(which).unwrap());
        let seen = || format!("step {step}, {n} at {at} ({newest})");
        if !is_stale {
            for (detail, model) in key.explain_each_at(now, 1).zip(own.iter()) {
                let (told, [most, least]) = (detail.available, model.available(at));
                assert!((least..=most).contains(&told), "{}: {told}", seen());
            }
        }
        let taken = key.try_acquire_each_noted_at(now, n as u32);
        counts[usize::from(taken.is_ok())] += 1;
        let Ok((_, receipts)) = taken else {
            assert!(is_stale || n > least, "{}: {least}", seen());
            continue;
        };
        assert!(n <= most, "{}: {most}", seen());
        for limit in own.iter_mut() {
            limit.each(|model| model.take(at, n));
        }
        if draws.once_in(8) && !is_stale {
            let limit = draws.below(own.len() as u64) as usize;
            let back = 1 + draws.below(n);
            let receipt = receipts.into_iter().nth(limit).unwrap();
            let refunded = table.refund_limit_at(key.address(), limit, now, back as u32, receipt);
            assert_eq!(u64::from(refunded), back, "{}", seen());
            own[limit].each(|model| model.refund(back));
            refunds += 1;
        }
    }
    assert!(
        counts.iter().all(|count| *count > steps / 8) && refunds > steps / 100,
        "{counts:?}, {refunds} refunds"
    );
}

fn lines_of(count: usize, new: fn() -> Line) -> Vec<Line> {
    (0..count).map(|_| new()).collect()
}

/// The limits of a list, in an order, as many as `count`.
fn rules_of(
    limits: &[(AnyRules, Model, u64)],
    order: impl Iterator<Item = usize>,
) -> RulesAtRunTime {
    RulesAtRunTime::new(order.map(|limit| copy(&limits[limit].0))).unwrap()
}

#[test]
fn each_limit_of_a_list_grants_what_one_that_never_wraps_grants() {
    let limits = short_lived_limits();
    for count in 1..=4 {
        let rules = rules_of(&limits, 0..count);
        let table = KeyedList::new(rules, lines_of(4, Line::new), Seed::new());
        trace_of_lists(table, &limits[..count], count as u64, |_, _, _| None);
    }
    // An entry of three words has a spare one, for the clock.
    let [first, second, _, fourth] = &limits;
    let rules = [first, second, fourth].map(|(rules, ..)| copy(rules));
    let table = KeyedList::new(rules, lines_of(4, Line::new), Seed::new());
    let of_three =
        [first, second, fourth].map(|(rules, model, horizon)| (copy(rules), *model, *horizon));
    trace_of_lists(table, &of_three, 5, |_, _, _| None);
}

/// The keys move to a table with the same limits, now and then.
#[test]
fn each_limit_of_a_list_whose_keys_move_grants_what_one_that_never_wraps_grants() {
    let limits = short_lived_limits();
    for count in 1..=4 {
        let groups = [1, 2, 4, 4][count - 1];
        let table_of = |new| {
            let rules = rules_of(&limits, 0..count);
            KeyedList::new(rules, lines_of(groups, new), Seed::new())
        };
        trace_of_lists(
            table_of(Line::new),
            &limits[..count],
            10 + count as u64,
            |table, now, draws| {
                draws.once_in(64).then(|| {
                    let to = table_of(Line::closed);
                    assert_eq!(table.move_to(&to, now, Some), 0);
                    to
                })
            },
        );
    }
}
