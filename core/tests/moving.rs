//! Keys that move to a table with other settings keep what they have taken, and are never granted
//! more than the larger of the settings allows.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU64};
use core::time::Duration;

use portcullis_core::keyed::{FixedWindowRules, Line, MovableRules, Seed, TokenBucketRules};
use portcullis_core::limiter::Receipt;
use portcullis_core::{
    CooldownWindow, Denied, FixedWindow, Keyed, Limiter, LimiterExt, Rate, Retry, Timestamp,
    TokenBucket,
};
use proptest::prelude::*;

type Table<R> = Keyed<R, Vec<Line>>;

const LINES: usize = 4;

fn table<R: MovableRules>(rules: R, line: fn() -> Line) -> Table<R> {
    let lines = (0..LINES).map(|_| line()).collect();
    Keyed::new(rules, lines, Seed::new())
}

/// Moves all keys to a table with `rules`.
fn moved<R: MovableRules>(before: &Table<R>, rules: R, now: Timestamp) -> Table<R> {
    let after = table(rules, Line::closed);
    assert_eq!(before.move_to(&after, now), 0);
    after
}

fn bucket(permits: u32, seconds: u64, burst: u64, debt: u64) -> TokenBucketRules {
    let rate = Rate::new(permits, Duration::from_secs(seconds));
    let builder = TokenBucket::builder(rate, burst).debt(debt);
    builder.rules().unwrap()
}

fn window(limit: u64, max_limit: u64, seconds: u64, started: bool) -> FixedWindowRules {
    let builder = FixedWindow::builder(limit, Duration::from_secs(seconds)).max_limit(max_limit);
    let builder = if started {
        builder.started_by_first_request()
    } else {
        builder
    };
    builder.rules().unwrap()
}

const fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn available<R: MovableRules>(table: &Table<R>, now: Timestamp) -> u64 {
    table.key("a").available_at(now)
}

fn take<R: MovableRules>(table: &Table<R>, now: Timestamp, n: u32) -> bool {
    table.key("a").take_at(now, n).is_ok()
}

#[test]
fn what_was_taken_from_a_bucket_stays_taken_and_a_larger_burst_counts_at_once() {
    let first = table(bucket(1, 1, 10, 0), Line::new);
    assert!(take(&first, at(9_000), 7));
    // Half a permit has been replenished.
    let raised = moved(&first, bucket(100, 1, 20, 0), at(9_500));
    assert_eq!(available(&raised, at(9_500)), 13);
    assert_eq!(
        available(&raised, at(9_505)),
        14,
        "from then on at the new rate"
    );
    let lowered = moved(&raised, bucket(1, 10, 2, 18), at(9_505));
    assert_eq!(
        available(&lowered, at(9_505)),
        0,
        "4 more than the burst are owed"
    );
    assert_eq!(
        (
            available(&lowered, at(59_505)),
            available(&lowered, at(49_504))
        ),
        (1, 0)
    );
    let raised = moved(&lowered, bucket(1, 1, 10, 0), at(9_505));
    assert_eq!(available(&raised, at(9_505)), 4, "6 are taken");
}

#[test]
fn a_bucket_without_room_for_its_debt_is_empty() {
    let first = table(bucket(1, 1, 10, 0), Line::new);
    assert!(take(&first, at(9_000), 10));
    let lowered = moved(&first, bucket(1, 1, 2, 0), at(9_000));
    assert_eq!(
        (
            available(&lowered, at(9_000)),
            available(&lowered, at(10_000))
        ),
        (0, 1)
    );
}

#[test]
fn a_bucket_that_moves_at_a_stale_time_is_granted_nothing_earlier() {
    let first = table(bucket(1, 1, 10, 0), Line::new);
    assert!(take(&first, at(9_000), 10));
    for now in [8_500, 9_000, 9_500] {
        let first = table(bucket(1, 1, 10, 0), Line::new);
        assert!(take(&first, at(9_000), 10));
        let raised = moved(&first, bucket(10, 1, 10, 0), at(now));
        let from = now.max(9_000);
        // Half a permit by 9.5 s, at the old rate.
        let due = if now == 9_500 { 9_550 } else { from + 100 };
        assert!(!take(&raised, at(due - 1), 1), "moved at {now}");
        assert!(take(&raised, at(due), 1), "moved at {now}");
        assert!(!take(&raised, at(5_000), 1), "stale");
    }
}

/// The two tables have ticks of 10 ms and of 1 ms, and the keys move in the middle of the longer
/// tick.
#[test]
fn moves_in_the_middle_of_a_tick_delay_no_permit_of_a_bucket_whose_rate_stays() {
    const TAKEN: u64 = 200;
    let rules = |nth: u64| {
        let burst = 1_000 + nth % 2 * 1_000;
        bucket(1, 1_000_000, burst, 4_000 - burst)
    };
    let mut tables = vec![table(rules(0), Line::new)];
    for nth in 1..=TAKEN {
        let last = tables.last().unwrap();
        assert!(take(last, at(1), 1));
        tables.push(moved(last, rules(nth), at(1)));
    }
    let last = tables.last().unwrap();
    assert_eq!(available(last, at(1)), 1_000 - TAKEN);
    // The first take was in the tick of 10 ms that began at 0.
    let due = at(1_000_000_000);
    let before = Timestamp::from_nanos(due.as_nanos() - 1);
    assert_eq!(available(last, before), 1_000 - TAKEN);
    assert_eq!(available(last, due), 1_001 - TAKEN);
}

/// Another key may take its place: then it would have all permits, too.
#[test]
fn a_full_bucket_stays_full_in_the_middle_of_a_long_tick() {
    let rate = Rate::new(4, Duration::from_secs(7));
    let stepwise = TokenBucket::builder(rate, 4).stepwise().rules().unwrap();
    for (now, left) in [(8_999, 2), (9_000, 4), (9_001, 4)] {
        let first = table(bucket(1, 1, 4, 0), Line::new);
        assert!(take(&first, at(5_000), 4));
        let second = moved(&first, stepwise, at(now));
        assert_eq!(available(&second, at(now)), left, "{now}");
    }
}

#[test]
fn a_window_keeps_its_end_and_its_count_also_beyond_a_lower_limit() {
    for started in [false, true] {
        let first = table(window(100, 100, 60, started), Line::new);
        assert!(take(&first, at(61_000), 80));
        let raised = moved(&first, window(150, 150, 60, started), at(70_000));
        assert_eq!(available(&raised, at(70_000)), 70);
        let lowered = moved(
            &raised,
            window(10, raised.rules().max_limit(), 60, started),
            at(71_000),
        );
        let end = if started { 121_000 } else { 120_000 };
        assert_eq!(available(&lowered, at(71_000)), 0);
        assert!(!take(&lowered, at(end - 1), 1));
        let raised = moved(&lowered, window(100, 100, 60, started), at(72_000));
        assert_eq!(available(&raised, at(72_000)), 20, "80 are taken");
        assert_eq!(available(&raised, at(end - 1)), 20);
        assert_eq!(available(&raised, at(end)), 100);
        assert!(!take(&lowered, at(end), 1), "the key has moved on");
    }
}

#[test]
fn a_stale_request_counts_in_the_window_that_was_over_at_the_move() {
    let first = table(window(5, 5, 1, false), Line::new);
    assert!(take(&first, at(9_000), 4));
    let raised = moved(&first, window(6, 6, 1, false), at(10_500));
    assert!(!take(&raised, at(9_900), 3));
    assert!(take(&raised, at(9_900), 2));
    assert!(take(&raised, at(10_500), 6));
}

#[test]
fn a_window_of_another_length_starts_with_the_count_of_the_last() {
    for started in [false, true] {
        let first = table(window(100, 100, 60, started), Line::new);
        assert!(take(&first, at(61_000), 80));
        let longer = moved(&first, window(100, 100, 90, started), at(70_000));
        assert_eq!(available(&longer, at(70_000)), 20);
        let end = if started { 160_000 } else { 90_000 };
        assert_eq!(
            (available(&longer, at(end - 1)), available(&longer, at(end))),
            (20, 100)
        );
        // The window is over.
        let idle = moved(&longer, window(100, 100, 30, started), at(190_000));
        assert_eq!(available(&idle, at(190_000)), 100);
    }
}

#[test]
fn closed_slots_are_of_no_key_and_those_of_a_moved_key_stay_closed() {
    let first = table(bucket(1, 1, 10, 0), Line::new);
    assert!(take(&first, at(9_000), 7));
    let closed = table(bucket(1, 1, 10, 0), Line::closed);
    assert_eq!(available(&closed, at(9_000)), 0);
    assert_eq!(closed.statistics_at(at(9_000)).held, 0);
    assert_eq!(closed.sweep_at(at(99_000), ..), 0);
    assert_eq!(first.move_to(&closed, at(9_000)), 0);
    assert_eq!(first.move_to(&closed, at(9_000)), 0, "again");
    assert_eq!(available(&closed, at(9_000)), 3);
    for key in ["a", "b", "c"] {
        let address = first.key(key).address();
        assert!(first.has_moved(address) && !closed.has_moved(address));
        assert!(matches!(
            first.key(key).take_at(at(99_000), 1),
            Err(Denied::Crowded { .. })
        ));
    }
    let refund = first.key("a").refund_at(at(9_000), 1, Receipt::NONE);
    assert_eq!(refund.permits, 0);
}

#[test]
fn a_window_with_a_wait_keeps_its_end_its_count_and_its_wait() {
    for wait in [
        None,
        Some(Duration::from_secs(5)),
        Some(Duration::from_secs(90)),
    ] {
        let window = |limit| CooldownWindow::new(limit, Duration::from_secs(60), wait);
        let first = window(10);
        assert!(first.try_acquire_at(at(1_000), 4).is_ok());
        assert!(first.try_acquire_at(at(8_000), 2).is_ok());
        // A limit that needs more bits, and back.
        let (raised, back) = (window(10_000), window(10));
        raised.go_on_from(&first, at(9_000));
        back.go_on_from(&raised, at(9_000));
        assert_eq!(raised.available_at(at(60_999)), 9_994);
        assert_eq!(raised.available_at(at(61_000)), 10_000);
        let denials = [&first, &back].map(|window| {
            assert_eq!(window.available_at(at(9_000)), 4);
            // A stale request exceeds the limit. The wait is counted from the newest grant, or
            // later.
            let denied = window.try_acquire_at(at(3_000), 5).unwrap_err();
            let Retry::At(until) = denied.retry(window) else {
                panic!("the wait ends")
            };
            until
        });
        assert!(denials[1] >= denials[0], "{denials:?}");
        let lowered = window(5);
        lowered.go_on_from(&raised, at(10_000));
        assert_eq!(lowered.available_at(at(10_000)), 0);
        let waiting = window(20);
        waiting.go_on_from(&first, at(10_000));
        let end = denials[0].max(at(10_000));
        if end > at(10_000) {
            let before = Timestamp::from_nanos(end.as_nanos() - 1);
            assert_eq!(waiting.available_at(before), 0, "{wait:?}");
        }
        // The end of the wait is rounded up to whole ticks.
        let end = end.saturating_add(3 * waiting.timing().tick);
        assert_eq!(waiting.available_at(end), 20, "{wait:?}");
    }
}

#[test]
fn a_wait_that_is_too_long_for_the_next_window_does_not_end_at_the_change() {
    let minutes = |count: u64| Duration::from_secs(60 * count);
    let (hour, day, now) = (minutes(60), minutes(24 * 60), at(9_000));
    // The period and the wait before and after the change.
    for (before, after) in [
        ((minutes(1), 30 * day), (minutes(1), minutes(1))),
        ((minutes(1), 30 * day), (Duration::from_millis(1), hour)),
        ((hour, day), (day, minutes(1))),
    ] {
        let window = |limit, (period, wait)| CooldownWindow::new(limit, period, Some(wait));
        let first = window(3, before);
        assert!(first.try_acquire_at(now, 3).is_ok());
        assert!(first.try_acquire_at(now, 1).is_err());
        let last = window(5, after);
        last.go_on_from(&first, now);
        let longest = after.0.max(after.1);
        let end = now + longest.min(before.1);
        let before_end = Timestamp::from_nanos(end.as_nanos() - 1);
        for at in [now, before_end] {
            assert_eq!(last.available_at(at), 0, "{before:?} {after:?} {at:?}");
        }
        assert_eq!(last.available_at(end + hour), 5, "{before:?} {after:?}");
    }
}

/// A bound of `burst + permits / seconds × t`, in whole permits.
fn bound((permits, seconds, burst): (u32, u64, u64), millis: u64) -> u64 {
    burst + (u64::from(permits) * millis).div_ceil(1_000 * seconds)
}

proptest! {
    /// Whatever the settings are and however often they change, no span admits more than the
    /// largest burst and what the highest rate replenishes in the span.
    #[test]
    fn no_span_admits_more_than_the_largest_of_all_settings(
        settings in prop::collection::vec((1u32..50, 1u64..20, 1u64..60), 1..6),
        steps in prop::collection::vec((0u64..3_000, 1u32..40, any::<bool>()), 1..60),
    ) {
        let largest = settings.iter().map(|&(_, _, burst)| burst).max().unwrap();
        let fastest = *settings
            .iter()
            .max_by(|a, b| (u64::from(a.0) * b.1).cmp(&(u64::from(b.0) * a.1)))
            .unwrap();
        let all = (fastest.0, fastest.1, largest);
        let rules = |nth: usize| {
            let (permits, seconds, burst) = settings[nth % settings.len()];
            bucket(permits, seconds, burst, largest - burst)
        };
        let mut tables = vec![table(rules(0), Line::new)];
        let (mut now, mut granted) = (1_000_000, Vec::new());
        for (later, n, moves) in steps {
            now += later;
            if moves {
                let next = moved(tables.last().unwrap(), rules(tables.len()), at(now));
                tables.push(next);
            }
            if take(tables.last().unwrap(), at(now), n) {
                granted.push((now, u64::from(n)));
            }
        }
        for (first, &(from, _)) in granted.iter().enumerate() {
            let mut sum = 0;
            for &(to, n) in &granted[first..] {
                sum += n;
                prop_assert!(sum <= bound(all, to - from), "{sum} from {from} to {to}");
            }
        }
    }

    /// Ticks are of several lengths, and a move is at any instant of one. The bucket is full when
    /// the permits that were taken have come back: no earlier, and later by at most one tick of
    /// each table of each move.
    #[test]
    fn a_bucket_that_keeps_its_rate_is_full_when_it_would_be_without_its_moves(
        (permits, seconds) in (1u32..50, 1_000u64..10_000_000),
        bursts in prop::collection::vec(1u64..200, 1..5),
        taken in 1u32..200,
        pauses in prop::collection::vec(0u64..100_000_000, 1..30),
    ) {
        let largest = *bursts.iter().max().unwrap();
        let rules = |nth: usize| {
            let burst = bursts[nth % bursts.len()];
            bucket(permits, seconds, burst, largest - burst)
        };
        let taken = taken.min(bursts[0] as u32);
        let mut last = table(rules(0), Line::new);
        let mut now = at(1_000_000);
        prop_assert!(take(&last, now, taken));
        // The take was in a tick that had begun by then, at most this much earlier.
        let mut ticks = rules(0).timing().tick;
        let whole_ticks = now.as_nanos() - now.as_nanos() % ticks.as_nanos() as u64;
        for (nth, pause) in pauses.iter().enumerate() {
            now += Duration::from_nanos(*pause);
            let next = rules(nth + 1);
            ticks += last.rules().timing().tick + next.timing().tick;
            last = moved(&last, next, now);
        }
        let Retry::At(full) = last.key("a").explain_at(now, 1).full_again else {
            panic!("the bucket fills")
        };
        // In units of a nanosecond, divided by the permits of the rate.
        let exact = u128::from(whole_ticks) * u128::from(permits)
            + u128::from(taken) * u128::from(seconds) * 1_000_000_000;
        let (full, permits) = (u128::from(full.as_nanos()), u128::from(permits));
        prop_assert!(full * permits >= exact, "early");
        let late = full * permits - exact;
        prop_assert!(late <= ticks.as_nanos() * permits, "late by {late} of {ticks:?}");
    }
}

/// Threads take from a chain of tables while keys move along it, and each finds the table that its
/// key has not moved from. A thread takes only so often between two moves that every table has
/// permits left: so each lost or invented permit is in the count at the end.
#[test]
fn threads_that_take_while_keys_move_lose_no_count() {
    const KEYS: u64 = 20;
    const MOVES: u64 = 200;
    const THREADS: u64 = 3;
    const ROUNDS_BETWEEN_MOVES: u64 = 150;
    let bursts: Vec<u64> = (0..=MOVES).map(|nth| 100_000 + nth % 7 * 50_000).collect();
    let (least, largest) = (*bursts.iter().min().unwrap(), *bursts.iter().max().unwrap());
    assert!(least > THREADS * (MOVES + 1) * ROUNDS_BETWEEN_MOVES);
    // A whole tick of every table, so that no conversion rounds.
    let now = at(1_000);
    let rules = |nth: u64| {
        let burst = bursts[nth as usize];
        // Nothing comes back: all calls are at the same time.
        let rules = bucket(1, 1_000, burst, largest - burst);
        assert_eq!(now.as_nanos() % rules.timing().tick.as_nanos() as u64, 0);
        rules
    };
    let tables: Vec<_> = (0..=MOVES)
        .map(|nth| table(rules(nth), if nth == 0 { Line::new } else { Line::closed }))
        .collect();
    let (newest, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let rounds = AtomicU64::new(0);
    let taken: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let (mut known, mut rounds_since) = (0, 0);
                while !is_over.load(Relaxed) {
                    let moves = newest.load(Acquire);
                    if moves != known {
                        (known, rounds_since) = (moves, 0);
                    } else if rounds_since == ROUNDS_BETWEEN_MOVES {
                        std::thread::yield_now();
                        continue;
                    }
                    for key in 0..KEYS {
                        // All keys have moved from this table, except from the first.
                        let mut at_table = known.saturating_sub(1) as usize;
                        loop {
                            let key_limit = tables[at_table].key(&key);
                            match key_limit.take_at(now, 1) {
                                Ok(_) => {
                                    taken[key as usize].fetch_add(1, Relaxed);
                                }
                                Err(Denied::Crowded { .. })
                                    if tables[at_table].has_moved(key_limit.address()) =>
                                {
                                    at_table += 1;
                                    continue;
                                }
                                Err(_) => {}
                            }
                            break;
                        }
                    }
                    rounds_since += 1;
                    rounds.fetch_add(1, Relaxed);
                }
            });
        }
        let mut before = 0;
        for (nth, pair) in tables.windows(2).enumerate() {
            while rounds.load(Relaxed) == before {
                std::thread::yield_now();
            }
            while pair[0].move_to(&pair[1], now) > 0 {
                std::thread::yield_now();
            }
            // Read before the threads may go on.
            before = rounds.load(Relaxed);
            newest.store(nth as u64 + 1, Release);
        }
        is_over.store(true, Relaxed);
    });
    let last = tables.last().unwrap();
    for (key, taken) in (0..KEYS).zip(&taken) {
        let taken = taken.load(Relaxed);
        assert!(taken > 0 && taken < least, "{taken} of {least}");
        let burst = bursts[MOVES as usize];
        let left = last.key(&key).available_at(now);
        assert_eq!(left, burst - taken, "{taken} of {burst}");
    }
}

/// Time is counted in ticks of ten seconds at the lower rate. What comes in between the beginning
/// of the tick and the change comes in at that rate.
#[test]
fn a_bucket_whose_rate_is_lowered_and_raised_again_within_a_tick_gains_nothing() {
    let fast = TokenBucketRules::new(Rate::per_second(1_000), 1_000);
    let slow = TokenBucket::builder(Rate::new(5, Duration::from_secs(86_400)), 5);
    let slow = slow
        .debt(2_000)
        .tick(Duration::from_secs(10))
        .rules()
        .unwrap();
    let now = at(59_999);
    let first = table(fast, Line::new);
    assert!(first.key("a").try_acquire_at(now, 1_000).is_ok());
    let third = moved(&moved(&first, slow, now), fast, now);
    assert_eq!(third.key("a").available_at(now), 0);
    assert!((498..=500).contains(&third.key("a").available_at(at(60_499))));
}
