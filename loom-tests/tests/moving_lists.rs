//! Keys with several limits move to another table while other threads take, refund and charge; and
//! charges of an entry that another key claims.
//!
//! Under loom a line has two words, so an entry of two limits fills a line, and a key chooses from
//! two entries in each of two groups of lines. The keys are their own hashes.
#![cfg(portcullis_loom)]

use core::hash::BuildHasherDefault;

use loom::sync::Arc;
use portcullis_core::keyed::{AnyRules, Line, RulesAtRunTime, TokenBucketRules};
use portcullis_core::limiter::Receipt;
use portcullis_core::{Denied, KeyedList, Rate, Timestamp, TokenBucket};
use portcullis_loom::{Itself, at, explore, explore_briefly, join, spawn, take, turn};

type Table = KeyedList<RulesAtRunTime, Vec<Line>, BuildHasherDefault<Itself>>;

/// Keys that use the first group of lines. `A` and `B` prefer one entry of it, `C` the other.
const A: u64 = 1;
const B: u64 = 3;
const C: u64 = 6;

/// A bucket with a rate of one permit per second.
fn bucket(burst: u64) -> TokenBucketRules {
    let bucket = TokenBucket::builder(Rate::per_second(1), burst);
    bucket.rules().unwrap()
}

/// A table with groups of lines, and two limits for each key.
fn table(bursts: [u64; 2], groups: usize, line: fn() -> Line) -> Table {
    let rules = bursts.map(|burst| AnyRules::from(bucket(burst)));
    let lines = (0..2 * groups).map(|_| line()).collect();
    let rules = RulesAtRunTime::new(rules).unwrap();
    KeyedList::new(rules, lines, BuildHasherDefault::default())
}

/// The permits that each limit of a key has.
fn left(table: &Table, key: u64, now: Timestamp) -> [u64; 2] {
    let key = table.key(&key);
    [0, 1].map(|limit| key.explain_limit_at(limit, now, 1).unwrap().available)
}

struct Tables {
    before: Table,
    after: Table,
}

/// Bursts of 2 and 3 before the move, and of 4 and 3 after it.
fn tables() -> Arc<Tables> {
    Arc::new(Tables {
        before: table([2, 3], 1, Line::new),
        after: table([4, 3], 1, Line::closed),
    })
}

/// The limits change places.
fn before(limit: usize) -> Option<usize> {
    Some(1 - limit)
}

impl Tables {
    /// Takes a permit from the table that the key has not moved from. Returns how many it took.
    fn take(&self, key: u64, now: Timestamp) -> u64 {
        turn();
        let of_key = self.before.key(&key);
        match of_key.try_acquire_each_at(now, 1) {
            Ok(_) => 1,
            Err(by)
                if matches!(by.denied, Denied::Crowded { .. })
                    && self.before.has_moved(of_key.address()) =>
            {
                take(&*self.after.key(&key), now, 1)
            }
            Err(_) => 0,
        }
    }

    /// Charges a permit to the table that the key has not moved from. Returns how many it took of
    /// each limit, in the order of the table before.
    fn charge(&self, key: u64, now: Timestamp) -> [u64; 2] {
        turn();
        let address = self.before.key(&key).address();
        match self.before.charge_each_at(address, now, 1, &[]) {
            [0, 0, ..] if self.before.has_moved(address) => {
                turn();
                let [first, second, ..] = self.after.charge_each_at(address, now, 1, &[]);
                [second.into(), first.into()]
            }
            [first, second, ..] => [first.into(), second.into()],
        }
    }

    fn move_some(&self, now: Timestamp) {
        turn();
        self.before.move_to(&self.after, now, before);
    }

    fn move_rest(&self, now: Timestamp) {
        assert_eq!(self.before.move_to(&self.after, now, before), 0);
    }
}

#[test]
fn permits_taken_during_a_move_stay_taken() {
    explore_briefly(2, 3, || {
        let tables = tables();
        assert_eq!(tables.take(C, at(5)), 1);
        let moves = spawn(&tables, |tables| tables.move_some(at(5)));
        let taken = 1 + tables.take(C, at(5));
        join(moves);
        tables.move_rest(at(5));
        let [second, first] = left(&tables.after, C, at(5));
        // The lead decides, so what it has granted is exact. A take that was not granted may have
        // left a charge in the other word.
        assert_eq!(first, 3 - taken);
        assert!(second <= 4 - taken && second >= 3 - taken, "{second} of 4");
    });
}

#[test]
fn a_key_that_is_new_during_a_move_gets_one_entry() {
    explore_briefly(1, 2, || {
        let tables = tables();
        let moves = spawn(&tables, |tables| tables.move_some(at(5)));
        let taken = tables.take(A, at(5));
        join(moves);
        tables.move_rest(at(5));
        let [second, first] = left(&tables.after, A, at(5));
        assert_eq!((second, first), (4 - taken, 3 - taken));
        assert!(tables.after.statistics_at(at(5)).held <= 1);
    });
}

/// The lead has no permits left, so the charge changes the other word only.
#[test]
fn a_charge_during_a_move_counts_in_one_of_the_tables() {
    explore_briefly(2, 3, || {
        let tables = tables();
        assert_eq!(tables.take(C, at(5)) + tables.take(C, at(5)), 2);
        let moves = spawn(&tables, |tables| tables.move_some(at(5)));
        let [first, second] = tables.charge(C, at(5));
        join(moves);
        tables.move_rest(at(5));
        // It may find the entry claimed, and then charges nothing.
        let [left_of_second, left_of_first] = left(&tables.after, C, at(5));
        assert!(left_of_first <= 1 - first);
        assert!(left_of_second <= 2 - second, "{left_of_second}");
    });
}

#[test]
fn a_refund_during_a_move_is_not_worth_more_than_it_says() {
    explore(|| {
        let tables = tables();
        let of_key = tables.before.key(&C);
        let address = of_key.address();
        let (_, [first, second, ..]) = of_key.try_acquire_each_noted_at(at(5), 1).unwrap();
        let moves = spawn(&tables, |tables| tables.move_some(at(5)));
        turn();
        let refund = |limit, receipt: Receipt| {
            let refunded = tables
                .before
                .refund_limit_at(address, limit, at(5), 1, receipt);
            u64::from(refunded)
        };
        let refunded = [refund(0, first), refund(1, second)];
        join(moves);
        tables.move_rest(at(5));
        let [left_of_second, left_of_first] = left(&tables.after, C, at(5));
        assert_eq!(
            (left_of_first, left_of_second),
            (2 + refunded[0], 3 + refunded[1])
        );
    });
}

/// Another key prefers the entry that is idle, and may take it over. Other entries are vacant.
#[test]
fn a_charge_is_not_forgotten_when_another_key_claims_the_entry() {
    explore_briefly(2, 3, || {
        let table = Arc::new(table([2, 3], 2, Line::new));
        assert_eq!(take(&*table.key(&A), at(5), 1), 1);
        let other = spawn(&table, |table| take(&*table.key(&B), at(20), 1));
        turn();
        let address = table.key(&A).address();
        let [first, second, ..] = table.charge_each_at(address, at(20), 1, &[]);
        join(other);
        let [left_of_first, left_of_second] = left(&table, A, at(20));
        assert!(left_of_first + u64::from(first) <= 2);
        assert!(
            left_of_second + u64::from(second) <= 3,
            "a charge is forgotten"
        );
    });
}
