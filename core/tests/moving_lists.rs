//! Keys with several limits that move to a table with other limits keep what they have taken, and
//! are never granted more than the larger of the settings allows.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use core::time::Duration;

use portcullis_core::keyed::{
    AnyRules, ConcurrencyRules, FixedWindowRules, Line, Refunds, RulesAtRunTime, Seed, TableKey,
    TokenBucketRules,
};
use portcullis_core::{Denied, KeyedList, Rate, Timestamp, TokenBucket};

type Table = KeyedList<RulesAtRunTime, Vec<Line>>;

/// As many groups of lines as a table has.
const GROUPS: usize = 4;

fn table<const N: usize>(rules: [AnyRules; N], line: fn() -> Line) -> Table {
    let lines = (0..GROUPS * N.next_power_of_two()).map(|_| line());
    let rules = RulesAtRunTime::new(rules).unwrap();
    KeyedList::new(rules, lines.collect(), Seed::new())
}

/// A bucket with one permit per day, so that none comes back in a test.
fn bucket(burst: u64) -> AnyRules {
    TokenBucketRules::new(Rate::per_day(1), burst).into()
}

fn window(limit: u64) -> AnyRules {
    FixedWindowRules::new(limit, Duration::from_secs(3_600)).into()
}

const NOW: Timestamp = Timestamp::from_secs(9);

fn take(table: &Table, key: u64, n: u32) -> Result<(), (usize, Denied)> {
    match table.key(&key).try_acquire_each_at(NOW, n) {
        Ok(_) => Ok(()),
        Err(by) => Err((by.index, by.denied)),
    }
}

fn left(table: &Table, key: u64) -> Vec<u64> {
    let key = table.key(&key);
    let details = key.explain_each_at(NOW, 1);
    details.map(|detail| detail.available).collect()
}

#[test]
fn limits_in_another_order_and_of_another_number_keep_what_was_taken() {
    let first = table([bucket(10), window(100)], Line::new);
    for key in 0..20 {
        assert_eq!(take(&first, key, 4), Ok(()));
    }
    // Three limits, of which the second starts without a state from before. An entry has four words
    // instead of two.
    let second = table([window(50), bucket(7), bucket(20)], Line::closed);
    let before = |limit: usize| [Some(1), None, Some(0)][limit];
    assert_eq!(first.move_to(&second, NOW, before), 0);
    for key in 0..20 {
        assert_eq!(left(&second, key), [46, 7, 16]);
    }
    assert_eq!(left(&second, 99), [50, 7, 20], "a new key");
    assert!(
        matches!(take(&second, 0, 8), Err((1, _))),
        "a limit that is new denies"
    );
    // One limit: an entry is a word.
    let third = table([bucket(20)], Line::closed);
    assert_eq!(second.move_to(&third, NOW, |_| Some(2)), 0);
    for key in 0..20 {
        assert_eq!(left(&third, key), [16]);
        assert_eq!(take(&third, key, 16), Ok(()));
    }
    // And several again. A window is another kind of limit than a bucket, so it starts without that
    // state.
    let fourth = table([window(5), bucket(21)], Line::closed);
    assert_eq!(third.move_to(&fourth, NOW, |_| Some(0)), 0);
    assert_eq!(left(&fourth, 0), [5, 1]);
}

#[test]
fn a_key_that_has_moved_is_found_in_one_table_only() {
    let first = table([bucket(10), window(100)], Line::new);
    assert_eq!(take(&first, 0, 4), Ok(()));
    let second = table([bucket(10), window(100)], Line::closed);
    assert!(matches!(
        take(&second, 0, 1),
        Err((0, Denied::Crowded { .. }))
    ));
    assert!(!first.has_moved(first.key(&0_u64).address()));
    assert_eq!(first.move_to(&second, NOW, Some), 0);
    assert_eq!(first.move_to(&second, NOW, Some), 0, "again");
    for key in 0..3_u64 {
        let address = first.key(&key).address();
        assert!(first.has_moved(address) && !second.has_moved(address));
        assert!(matches!(
            take(&first, key, 1),
            Err((0, Denied::Crowded { .. }))
        ));
        assert_eq!(take(&second, key, 1), Ok(()));
    }
    assert_eq!(left(&second, 0), [5, 95]);
    assert_eq!(second.statistics_at(NOW).held, 3);
}

#[test]
fn what_is_refunded_or_charged_after_a_move_does_not_count_where_the_key_has_left() {
    let first = table([bucket(10), window(100)], Line::new);
    let (address, refunds) = (first.key(&0_u64).address(), Refunds::new());
    let before = refunds.before_take();
    let (_, [one, two, ..]) = TableKey::at(&first, address)
        .try_acquire_each_noted_at(NOW, 4)
        .unwrap();
    let second = table([bucket(10), window(100)], Line::closed);
    assert_eq!(first.move_to(&second, NOW, Some), 0);
    assert_eq!(
        first.refund_counted_at(address, 0, NOW, 2, one, &refunds, before),
        0
    );
    assert_eq!(first.refund_limit_at(address, 1, NOW, 2, two), 0);
    assert_eq!(first.charge_each_at(address, NOW, 2, &[]), [0; 8]);
    assert_eq!(left(&second, 0), [6, 96]);
    assert_eq!(second.charge_each_at(address, NOW, 7, &[])[..2], [6, 7]);
}

#[test]
#[should_panic(expected = "a release would not find the key's entry")]
fn permits_at_once_do_not_move() {
    let rules = || [bucket(10), ConcurrencyRules::new(3).into()];
    table(rules(), Line::new).move_to(&table(rules(), Line::closed), NOW, Some);
}

#[test]
#[should_panic(expected = "the tables differ in their numbers of groups of lines")]
fn a_table_of_another_size_is_refused() {
    let rules = || RulesAtRunTime::new([bucket(1), bucket(2)]).unwrap();
    let lines = |count: usize| (0..count).map(|_| Line::closed()).collect::<Vec<_>>();
    let [small, large] = [4, 6].map(|count| KeyedList::new(rules(), lines(count), Seed::new()));
    small.move_to(&large, NOW, Some);
}

/// Threads take from a chain of tables while keys move along it, and each finds the table that its
/// key has not moved from. The number of limits and their order change with each move.
#[test]
fn threads_that_take_and_charge_while_keys_move_are_granted_no_permit_twice() {
    const KEYS: u64 = 20;
    const MOVES: u64 = 200;
    const LARGEST: u64 = 4_000;
    let burst = |nth: u64| 1_000 + nth % 7 * 500;
    let of = |nth: u64| {
        let own = TokenBucket::builder(Rate::per_day(1), burst(nth));
        AnyRules::from(own.debt(LARGEST - burst(nth)).rules().unwrap())
    };
    let line = |nth: u64| if nth == 0 { Line::new } else { Line::closed };
    // In turn: the window is the second, the first of three, and the first of two.
    let tables: Vec<Table> = (0..=MOVES)
        .map(|nth| match nth % 3 {
            0 => table([of(nth), window(LARGEST)], line(nth)),
            1 => table([window(LARGEST), bucket(1_000_000), of(nth)], line(nth)),
            _ => table([window(LARGEST), of(nth)], line(nth)),
        })
        .collect();
    let before = |nth: u64, limit: usize| match nth % 3 {
        0 => [Some(1), Some(0)][limit],
        1 => [Some(1), None, Some(0)][limit],
        _ => [Some(0), Some(2)][limit],
    };
    let (newest, is_over, rounds) = (AtomicU64::new(0), AtomicBool::new(false), AtomicU64::new(0));
    let taken: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (tables, taken, is_over, rounds, newest) =
                (&tables, &taken, &is_over, &rounds, &newest);
            scope.spawn(move || {
                let mut from = 0;
                while !is_over.load(Relaxed) {
                    for key in 0..KEYS {
                        let mut nth = from;
                        loop {
                            let of_key = tables[nth].key(&key);
                            let has_moved = || tables[nth].has_moved(of_key.address());
                            // A charge takes as much from each limit as it has.
                            let granted = if thread == 0 {
                                let charged =
                                    tables[nth].charge_each_at(of_key.address(), NOW, 1, &[]);
                                if charged == [0; 8] && has_moved() {
                                    nth += 1;
                                    continue;
                                }
                                let window = usize::from(nth % 3 == 0);
                                charged[window].into()
                            } else {
                                match of_key.try_acquire_each_at(NOW, 1) {
                                    Ok(_) => 1,
                                    Err(by)
                                        if matches!(by.denied, Denied::Crowded { .. })
                                            && has_moved() =>
                                    {
                                        nth += 1;
                                        continue;
                                    }
                                    Err(_) => 0,
                                }
                            };
                            taken[key as usize].fetch_add(granted, Relaxed);
                            break;
                        }
                    }
                    from = newest.load(Relaxed) as usize;
                    rounds.fetch_add(1, Relaxed);
                }
            });
        }
        for (nth, pair) in (1..).zip(tables.windows(2)) {
            let before_move = rounds.load(Relaxed);
            while rounds.load(Relaxed) == before_move {
                std::thread::yield_now();
            }
            while pair[0].move_to(&pair[1], NOW, |limit| before(nth, limit)) > 0 {
                std::thread::yield_now();
            }
            newest.store(nth, Relaxed);
        }
        is_over.store(true, Relaxed);
    });
    let last = tables.last().unwrap();
    for (key, taken) in (0..KEYS).zip(&taken) {
        let taken = taken.load(Relaxed);
        assert!(taken > 0 && taken <= LARGEST, "{taken} of {LARGEST}");
        // The last table has the window first. A take that is not granted because its key moves
        // may leave a charge.
        let left = left(last, key)[0];
        let lost = LARGEST - taken - left;
        assert!(
            taken + left <= LARGEST && lost <= 3 * MOVES,
            "{taken} and {left}"
        );
    }
}
