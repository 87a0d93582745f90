//! Several limits for each key: a take exchanges the words of an entry one after the other, the
//! lead last, while other takes, releases, sweeps and claims for other keys change them.
//!
//! Under loom a line has two words, so an entry of two limits fills a line, and a key chooses from
//! two entries in each of two groups of lines. A lookup makes two attempts. The keys are their own
//! hashes, as in the models of the table with one limit.
#![cfg(portcullis_loom)]

use core::hash::BuildHasherDefault;
use core::time::Duration;

use loom::sync::Arc;
use portcullis_core::keyed::{ConcurrencyRules, Line, RuleList, TokenBucketRules};
use portcullis_core::{KeyedList, Lease, Limiter, LimiterExt, Rate, Timestamp, TokenBucket};
use portcullis_loom::{Itself, Witness, at, explore, explore_briefly, join, spawn, take, turn};

type Table<L> = KeyedList<L, Vec<Line>, BuildHasherDefault<Itself>>;

/// Keys that use the first group of lines. `A` and `B` prefer one entry of it, `C` the other.
const A: u64 = 1;
const B: u64 = 3;
const C: u64 = 6;

/// A table with one group of lines: two entries.
fn table<L: RuleList>(rules: L) -> Table<L> {
    let lines = (0..2).map(|_| Line::new()).collect();
    KeyedList::new(rules, lines, BuildHasherDefault::default())
}

/// A bucket with a rate of one permit per second.
fn bucket(burst: u64) -> TokenBucketRules {
    let bucket = TokenBucket::builder(Rate::per_second(1), burst);
    bucket.rules().unwrap()
}

fn at_once(limit: u32) -> ConcurrencyRules {
    ConcurrencyRules::new(limit)
}

/// Takes `n` permits of `key` permanently. Returns the number taken.
fn grant<L: RuleList>(table: &Table<L>, key: u64, now: Timestamp, n: u32) -> u64 {
    take(&*table.key(&key), now, n)
}

fn release<L: RuleList>(table: &Table<L>, key: u64, n: u32) {
    turn();
    table.key(&key).release(n);
}

/// The permits that each limit of a key has.
fn left<L: RuleList>(table: &Table<L>, key: u64, now: Timestamp) -> Vec<u64> {
    let key = table.key(&key);
    key.explain_each_at(now, 1)
        .map(|detail| detail.available)
        .collect()
}

/// Takes one permit and releases it. Returns the number taken.
fn visit<L: RuleList>(table: &Table<L>, key: u64, now: Timestamp) -> u64 {
    let taken = grant(table, key, now, 1);
    if taken > 0 {
        release(table, key, 1);
    }
    taken
}

/// Checks that no entry is left claimed: strangers find room in all entries that are not live.
fn has_no_claim<L: RuleList>(table: &Table<L>, now: Timestamp) {
    let before = table.statistics_at(now);
    let strangers = [8, 9, 11, 14].iter().map(|key| grant(table, *key, now, 1));
    assert_eq!(strangers.sum::<u64>(), (before.slots - before.live) as u64);
}

#[test]
fn two_first_takes_of_a_key_share_one_entry() {
    explore(|| {
        let table = Arc::new(table((bucket(2), at_once(2))));
        let first = spawn(&table, |table| grant(table, A, at(5), 1));
        let granted = grant(&table, A, at(5), 1) + join(first);
        assert_eq!(left(&table, A, at(5)), [2 - granted, 2 - granted]);
        assert_eq!(table.statistics_at(at(5)).held, 1);
        has_no_claim(&table, at(5));
    });
}

#[test]
fn takes_of_one_key_take_all_limits_or_none() {
    explore(|| {
        let table = Arc::new(table((bucket(3), at_once(1))));
        assert_eq!(visit(&table, A, at(5)), 1);
        let other = spawn(&table, |table| grant(table, A, at(5), 1));
        let granted = grant(&table, A, at(5), 1) + join(other);
        assert_eq!(
            granted, 1,
            "the looks of both come before a take, or one denies"
        );
        assert_eq!(left(&table, A, at(5)), [1, 0]);
    });
}

#[test]
fn takes_for_the_last_permit_of_the_lead_give_the_others_back() {
    explore(|| {
        let table = Arc::new(table((bucket(2), at_once(2))));
        assert_eq!(visit(&table, A, at(5)), 1);
        let other = spawn(&table, |table| grant(table, A, at(5), 1));
        let granted = grant(&table, A, at(5), 1) + join(other);
        assert_eq!(granted, 1);
        assert_eq!(left(&table, A, at(5)), [0, 1], "a rollback leaks no permit");
    });
}

#[test]
fn takes_of_two_buckets_lose_at_most_what_comes_back_by_time() {
    explore(|| {
        let table = Arc::new(table([bucket(2), bucket(3)]));
        assert_eq!(grant(&table, A, at(5), 1), 1);
        let other = spawn(&table, |table| grant(table, A, at(5), 1));
        let granted = grant(&table, A, at(5), 1) + join(other);
        assert_eq!(granted, 1);
        let left = left(&table, A, at(5));
        assert_eq!(left[0], 0);
        assert!(left[1] <= 1, "no permit is doubled");
    });
}

#[test]
fn a_release_during_a_take_is_not_lost() {
    explore(|| {
        let table = Arc::new(table((bucket(3), at_once(2))));
        assert_eq!(grant(&table, A, at(5), 1), 1);
        let released = spawn(&table, |table| release(table, A, 1));
        assert_eq!(grant(&table, A, at(5), 1), 1);
        join(released);
        assert_eq!(left(&table, A, at(5)), [1, 1]);
    });
}

/// A key returns twice while another key takes over its idle entry. The other entry is in use.
/// Limits of which `is_released` is `false` keep what is taken of them.
fn moves<L: RuleList + 'static>(rules: fn() -> L, each: [u64; 2], is_released: [bool; 2]) {
    explore_briefly(3, 4, move || {
        let table = Arc::new(table(rules()));
        assert_eq!(grant(&table, C, at(20), 1), 1);
        assert_eq!(visit(&table, A, at(5)), 1);
        let other = spawn(&table, |table| grant(table, B, at(20), 1));
        let mine = visit(&table, A, at(20)) + visit(&table, A, at(20));
        let other = join(other);
        let (a, b) = (left(&table, A, at(20)), left(&table, B, at(20)));
        for (limit, each) in each.into_iter().enumerate() {
            // A key that has no entry, and finds none, has no permits.
            if other > 0 {
                assert_eq!(b[limit], each - 1);
            }
            if !is_released[limit] {
                assert!(
                    a[limit] + mine <= each,
                    "a charge of {mine} is forgotten: {a:?}"
                );
            } else if mine > 0 {
                assert_eq!(a[limit], each, "no permit leaks");
            }
        }
        assert!(mine == 0 || other == 0, "one of them has the entry");
    });
}

#[test]
fn an_idle_entry_goes_to_another_key_or_its_limits_stay() {
    moves(|| [bucket(1), bucket(2)], [1, 2], [false, false]);
}

#[test]
fn an_idle_entry_of_a_bucket_and_a_concurrency_limit_goes_to_another_key_or_stays() {
    moves(|| (bucket(2), at_once(1)), [2, 1], [false, true]);
}

/// The concurrency limit is idle again after each visit, so it cannot lead.
#[test]
fn a_bucket_leads_also_if_it_comes_second() {
    moves(|| (at_once(1), bucket(2)), [1, 2], [true, false]);
}

#[test]
fn an_entry_of_concurrency_limits_passes_from_key_to_key() {
    explore_briefly(3, 4, || {
        let table = Arc::new(table([at_once(1), at_once(2)]));
        assert_eq!(grant(&table, C, at(5), 1), 1);
        assert_eq!(visit(&table, A, at(5)), 1);
        let other = spawn(&table, |table| visit(table, B, at(5)));
        visit(&table, A, at(5));
        visit(&table, A, at(5));
        join(other);
        for key in [A, B] {
            assert_eq!(
                left(&table, key, at(5)),
                [1, 2],
                "no permit is lost or doubled"
            );
        }
        assert_eq!(table.statistics_at(at(5)).live, 1);
        has_no_claim(&table, at(5));
    });
}

/// Otherwise the undo of a take that stopped would give back a permit that a later take of its key
/// holds.
#[test]
fn a_word_with_a_permit_in_flight_passes_to_no_other_key() {
    explore_briefly(2, 3, || {
        let table = Arc::new(table([at_once(1), at_once(2)]));
        assert_eq!(grant(&table, C, at(5), 1), 1);
        assert_eq!(visit(&table, A, at(5)), 1);
        let other = spawn(&table, |table| {
            visit(table, B, at(5));
            grant(table, A, at(5), 1)
        });
        let mine = grant(&table, A, at(5), 1);
        let granted = mine + join(other);
        assert!(granted <= 1);
        assert_eq!(left(&table, A, at(5)), [1 - granted, 2 - granted]);
    });
}

#[test]
fn two_permits_of_an_entry_that_moves_are_never_out_at_once() {
    explore_briefly(1, 2, || {
        let shared = Arc::new((table([at_once(1), at_once(1)]), Witness::new()));
        assert_eq!(grant(&shared.0, C, at(5), 1), 1);
        assert_eq!(visit(&shared.0, A, at(5)), 1);
        let moving = spawn(&shared, |(table, _)| visit(table, B, at(5)));
        let guarded = |(table, data): &(Table<_>, Witness)| {
            turn();
            if let Ok(_lease) = Lease::try_acquire_at(table.key(&A), at(5), 1) {
                data.write();
                turn();
            }
        };
        let other = spawn(&shared, guarded);
        guarded(&shared);
        join(moving);
        join(other);
        for key in [A, B] {
            assert_eq!(left(&shared.0, key, at(5)), [1, 1]);
        }
        has_no_claim(&shared.0, at(5));
    });
}

#[test]
fn a_permit_of_a_key_guards_data() {
    explore(|| {
        let shared = Arc::new((table((bucket(9), at_once(1))), Witness::new()));
        let guarded = |(table, data): &(Table<_>, Witness)| {
            turn();
            if let Ok(_lease) = Lease::try_acquire_at(table.key(&A), at(5), 1) {
                data.write();
                turn();
            }
        };
        let other = spawn(&shared, guarded);
        guarded(&shared);
        join(other);
        assert_eq!(left(&shared.0, A, at(5))[1], 1);
    });
}

#[test]
fn a_sweep_during_a_take_loses_no_charge() {
    explore(|| {
        let table = Arc::new(table([bucket(1), bucket(2)]));
        assert_eq!(grant(&table, A, at(5), 1), 1);
        let taking = spawn(&table, |table| grant(table, A, at(20), 1));
        turn();
        let swept = table.sweep_at(at(20), ..);
        let mine = grant(&table, A, at(20), 1);
        assert_eq!(mine + join(taking), 1, "{swept} swept");
        let left = left(&table, A, at(20));
        assert!(left[0] == 0 && left[1] <= 1, "{left:?}");
    });
}

/// The sweep vacates the lead, and another call takes the entry again and gives the second word
/// back. Then the sweep must not vacate that word.
#[test]
fn a_key_that_takes_during_a_sweep_keeps_its_entry() {
    explore(|| {
        let table = Arc::new(table((bucket(2), at_once(1))));
        assert_eq!(visit(&table, A, at(5)), 1);
        let sweeping = spawn(&table, |table| table.sweep_at(at(20), ..));
        turn();
        visit(&table, A, at(20));
        join(sweeping);
        assert_eq!(grant(&table, A, at(20), 1), 1);
    });
}

#[test]
fn a_take_whose_rest_fails_gives_back_what_it_took() {
    explore(|| {
        let table = Arc::new(table((bucket(2), at_once(2))));
        assert_eq!(visit(&table, A, at(5)), 1);
        let other = spawn(&table, |table| {
            turn();
            table.key(&A).take_at_then(at(5), 1, &mut || false)
        });
        let granted = grant(&table, A, at(5), 1);
        assert!(join(other).is_ok_and(|done| !done) || granted == 1);
        let left = left(&table, A, at(5));
        assert_eq!(left[1], 2 - granted, "no permit leaks");
        assert!(left[0] <= 1 - granted);
    });
}

/// A bucket of two permits whose word repeats after [`HORIZON`].
fn short_lived() -> TokenBucketRules {
    let builder = TokenBucket::builder(Rate::per_second(1), 2).tick(Duration::from_nanos(1));
    builder.rules().unwrap()
}

/// In nanoseconds.
const HORIZON: u64 = 1 << 43;

/// A time at which the words of the buckets that were used at 5 s repeat.
fn later() -> Timestamp {
    Timestamp::from_nanos(at(5).as_nanos() + HORIZON)
}

/// A call that settles an entry claims its lead for a moment.
#[test]
fn a_permit_that_is_released_while_its_entry_is_settled_comes_back() {
    explore(|| {
        let table = Arc::new(table((short_lived(), at_once(1))));
        assert_eq!(grant(&table, A, at(5), 1), 1);
        let settling = spawn(&table, |table| grant(table, C, later(), 1));
        release(&table, A, 1);
        assert_eq!(join(settling), 1);
        assert_eq!(left(&table, A, later()), [2, 1]);
        has_no_claim(&table, later());
    });
}

/// As a release, but with a receipt that is no longer worth anything.
#[test]
fn a_permit_that_is_refunded_while_its_entry_is_settled_comes_back() {
    explore(|| {
        let table = Arc::new(table((short_lived(), at_once(1))));
        let receipt = table.key(&A).take_at(at(5), 1).unwrap();
        let settling = spawn(&table, |table| grant(table, C, later(), 1));
        turn();
        table.key(&A).refund_at(later(), 1, receipt);
        assert_eq!(join(settling), 1);
        assert_eq!(left(&table, A, later()), [2, 1]);
    });
}

/// The copy has what the second limit has left, also if the first is settled at that moment.
#[test]
fn a_key_that_is_copied_while_its_entry_is_settled_has_no_more_permits() {
    explore(|| {
        let rules = || [short_lived(), bucket_of_days(3)];
        let shared = Arc::new((table(rules()), table(rules())));
        assert_eq!(grant(&shared.0, A, at(5), 2), 2);
        let settling = spawn(&shared, |(table, _)| grant(table, C, later(), 1));
        turn();
        let (table, copy) = &*shared;
        let from = table.key(&A).address();
        assert!(table.copy_key_to(from, copy, copy.key(&A).address(), later()));
        assert_eq!(join(settling), 1);
        let [first, second] = left(copy, A, later())[..] else {
            unreachable!("two limits")
        };
        assert!(first <= 2 && second <= 1, "{first} and {second}");
    });
}

/// A bucket that brings a permit in a day.
fn bucket_of_days(burst: u64) -> TokenBucketRules {
    TokenBucket::builder(Rate::per_day(1), burst)
        .rules()
        .unwrap()
}
