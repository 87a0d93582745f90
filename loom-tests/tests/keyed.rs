//! The keyed table: a claim is provisional until both lines have been read again after a fence, and
//! a slot that is held changes as one word.
//!
//! Under loom a line has two slots, and a lookup makes two attempts. The keys are their own hashes,
//! so that each model decides which line a key prefers, and which keys the table cannot tell apart.
#![cfg(portcullis_loom)]

use core::hash::{BuildHasher, BuildHasherDefault};
use core::time::Duration;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering::Relaxed};
use portcullis_core::keyed::{ConcurrencyRules, KeyedRules, Line, Seed, TokenBucketRules};
use portcullis_core::limiter::Receipt;
use portcullis_core::{Denied, Keyed, Lease, Limiter, Rate, Timestamp, TokenBucket};
use portcullis_loom::{
    Itself, Witness, at, explore, explore_briefly, explore_within, join, spawn, take, turn,
};

type Table<L> = Keyed<L, Vec<Line>, BuildHasherDefault<Itself>>;
type Buckets = Table<TokenBucketRules>;
type Permits = Table<ConcurrencyRules>;

/// Returns a key that prefers the first line (or the second of two lines), with a tag that permits
/// it to use both.
const fn key(line: u64, tag: u64) -> u64 {
    line << 63 | tag
}

const A: u64 = key(0, 1);
/// The same key to the table, but with the lines in the other order.
const A_BACK: u64 = key(1, 1);
const B: u64 = key(0, 3);
const C: u64 = key(0, 6);
/// More keys than the table has slots.
const STRANGERS: [u64; 5] = [key(0, 8), key(0, 9), key(0, 11), key(0, 14), key(0, 16)];

fn table<L: KeyedRules>(limit: L, lines: usize) -> Table<L> {
    let lines = (0..lines).map(|_| Line::new()).collect();
    Keyed::new(limit, lines, BuildHasherDefault::default())
}

/// Token buckets with a rate of one permit per second.
fn buckets(burst: u64, lines: usize) -> Arc<Buckets> {
    Arc::new(table(
        TokenBucket::builder(Rate::per_second(1), burst)
            .rules()
            .unwrap(),
        lines,
    ))
}

fn permits(limit: u32, lines: usize) -> Arc<Permits> {
    Arc::new(table(ConcurrencyRules::new(limit), lines))
}

/// Permits, and data that the permits of `A` guard.
fn guard(limit: u32, lines: usize) -> Arc<(Permits, Witness)> {
    Arc::new((table(ConcurrencyRules::new(limit), lines), Witness::new()))
}

/// Takes `n` permits of `key` permanently. Returns the number taken.
fn grant<L: KeyedRules>(table: &Table<L>, key: u64, now: Timestamp, n: u32) -> u64 {
    take(&*table.key(&key), now, n)
}

fn available<L: KeyedRules>(table: &Table<L>, key: u64, now: Timestamp) -> u64 {
    table.key(&key).available_at(now)
}

/// Returns the permits that are available to `key`, or `None` if the table has no slot for it.
fn left<L: KeyedRules>(table: &Table<L>, key: u64, now: Timestamp) -> Option<u64> {
    let available = available(table, key, now);
    if let Err(Denied::Crowded { .. }) = table.key(&key).peek_at(now, 0) {
        assert_eq!(available, 0, "no permit can be taken without a slot");
        return None;
    }
    Some(available)
}

/// Lets another key come and go, so that the line has a clock: for models of three threads, which
/// have too many interleavings with the threads' starts of it.
fn start_the_clock(table: &Buckets) {
    assert_eq!(grant(table, C, Timestamp::ZERO, 1), 1);
    assert_eq!(table.sweep_at(at(5), ..), 1);
}

fn release(table: &Permits, key: u64, n: u32) {
    turn();
    table.key(&key).release(n);
}

/// Writes if it gets all permits of `A`, releases them, and sweeps the slot.
fn writes_with_all_permits((table, data): &(Permits, Witness), all: u32) {
    if grant(table, A, at(5), all) > 0 {
        data.write();
        release(table, A, all);
        turn();
        table.sweep_at(at(5), ..);
    }
}

/// Checks that `key` has taken `taken` of a burst of `burst`, so that no permit is lost or doubled.
fn has_taken<L: KeyedRules>(table: &Table<L>, key: u64, now: Timestamp, taken: u64, burst: u64) {
    assert!(taken <= burst, "{taken} of {burst}");
    assert_eq!(available(table, key, now), burst - taken);
    let rest = u32::try_from(burst - taken).unwrap();
    if rest > 0 {
        assert_eq!(grant(table, key, now, rest), rest.into());
    }
    assert_eq!(grant(table, key, now, 1), 0);
}

/// Checks that each of `keys` keys holds at most one slot, and that other keys find room in all
/// remaining slots: no slot is left claimed.
fn has_an_entry_each<L: KeyedRules>(table: &Table<L>, now: Timestamp, keys: usize) {
    let before = table.statistics_at(now);
    assert!(before.held <= keys, "{} slots for {keys} keys", before.held);
    let room = before.slots - before.live;
    let strangers = STRANGERS
        .iter()
        .map(|&stranger| grant(table, stranger, now, 1))
        .sum::<u64>();
    assert_eq!(strangers, room as u64);
    let after = table.statistics_at(now);
    assert_eq!((after.held, after.live), (after.slots, after.slots));
}

#[test]
fn two_first_takes_of_a_key_share_one_slot() {
    explore(|| {
        let table = buckets(2, 1);
        let first = spawn(&table, |table| grant(table, A, at(5), 1));
        let second = grant(&table, A, at(5), 1);
        has_taken(&table, A, at(5), join(first) + second, 2);
        has_an_entry_each(&table, at(5), 1);
    });
}

#[test]
fn three_first_takes_of_a_key_share_one_slot() {
    explore_briefly(1, 2, || {
        let table = buckets(2, 1);
        start_the_clock(&table);
        let first = spawn(&table, |table| grant(table, A, at(5), 1));
        let second = spawn(&table, |table| grant(table, A, at(5), 1));
        let third = grant(&table, A, at(5), 1);
        has_taken(&table, A, at(5), join(first) + join(second) + third, 2);
        has_an_entry_each(&table, at(5), 1);
    });
}

#[test]
fn two_first_takes_that_prefer_different_lines_share_one_slot() {
    explore(|| {
        let table = buckets(1, 2);
        let first = spawn(&table, |table| grant(table, A, at(5), 1));
        let second = grant(&table, A_BACK, at(5), 1);
        has_taken(&table, A, at(5), join(first) + second, 1);
        has_an_entry_each(&table, at(5), 1);
    });
}

#[test]
fn two_first_takes_that_find_different_slots_free_share_one() {
    explore_briefly(2, 3, || {
        let table = permits(1, 1);
        assert_eq!(grant(&table, C, at(5), 1), 1);
        // The first slot is free for the later of the two takes.
        let first = spawn(&table, |table| grant(table, A, at(5), 1));
        let second = spawn(&table, |table| grant(table, A, at(5), 1));
        release(&table, C, 1);
        has_taken(&table, A, at(5), join(first) + join(second), 1);
        has_an_entry_each(&table, at(5), 2);
    });
}

#[test]
fn a_withdrawn_claim_leaves_room_and_takes_nothing_from_the_key_it_replaced() {
    explore_within(2, || {
        let table = buckets(1, 2);
        assert_eq!(grant(&table, C, at(5), 1), 1);
        let first = spawn(&table, |table| grant(table, A, at(20), 1));
        let second = spawn(&table, |table| grant(table, A_BACK, at(20), 1));
        let c = grant(&table, C, at(20), 1);
        has_taken(&table, A, at(20), join(first) + join(second), 1);
        has_taken(&table, C, at(20), c, 1);
        has_an_entry_each(&table, at(20), 2);
    });
}

#[test]
fn two_keys_that_claim_the_last_slot_do_not_share_it() {
    explore(|| {
        let table = buckets(1, 1);
        assert_eq!(grant(&table, C, at(5), 1), 1);
        let a = spawn(&table, |table| grant(table, A, at(5), 1));
        let b = grant(&table, B, at(5), 1);
        assert_eq!(
            join(a) + b,
            1,
            "one key has the slot, and the other one none"
        );
        has_an_entry_each(&table, at(5), 2);
    });
}

#[test]
fn an_idle_slot_stays_with_its_key_or_goes_to_another_key() {
    explore(|| {
        let table = buckets(1, 1);
        assert_eq!(grant(&table, A, at(5), 1), 1);
        assert_eq!(grant(&table, C, at(5), 1), 1);
        assert_eq!(grant(&table, C, at(20), 1), 1);
        let b = spawn(&table, |table| grant(table, B, at(20), 1));
        let a = grant(&table, A, at(20), 1);
        let b = join(b);
        assert_eq!(a + b, 1);
        assert_eq!(
            [A, B, C].map(|key| left(&table, key, at(20))),
            [(a > 0).then_some(0), (b > 0).then_some(0), Some(0)]
        );
        has_an_entry_each(&table, at(20), 2);
    });
}

#[test]
fn a_key_whose_idle_slot_goes_to_another_key_never_takes_more_than_its_burst() {
    explore_briefly(2, 3, || {
        let table = buckets(1, 1);
        assert_eq!(grant(&table, A, at(5), 1), 1);
        let b = spawn(&table, |table| grant(table, B, at(20), 1));
        let first = spawn(&table, |table| grant(table, A, at(20), 1));
        let second = grant(&table, A, at(20), 1);
        let taken = join(first) + second;
        assert_eq!(join(b), 1, "there is room for both");
        has_taken(&table, A, at(20), taken, 1);
        has_an_entry_each(&table, at(20), 2);
    });
}

#[test]
fn a_key_with_two_lines_whose_idle_slot_goes_to_another_key_never_takes_more_than_its_burst() {
    explore(|| {
        let table = buckets(1, 2);
        assert_eq!(grant(&table, A, at(5), 1), 1);
        let b = spawn(&table, |table| grant(table, B, at(20), 1));
        let first = spawn(&table, |table| grant(table, A, at(20), 1));
        let second = grant(&table, A_BACK, at(20), 1);
        let taken = join(first) + second;
        assert_eq!(join(b), 1, "there is room for both");
        has_taken(&table, A, at(20), taken, 1);
        has_an_entry_each(&table, at(20), 2);
    });
}

#[test]
fn held_permits_keep_their_slot() {
    explore(|| {
        let table = permits(2, 1);
        assert_eq!(grant(&table, A, at(5), 1), 1);
        assert_eq!(grant(&table, C, at(5), 1), 1);
        let a = spawn(&table, |table| grant(table, A, at(5), 1));
        let b = spawn(&table, |table| grant(table, B, at(5), 1));
        release(&table, A, 1);
        let (a, b) = (join(a), join(b));
        assert_eq!(a + b, 1, "one of the two keys has the slot");
        assert_eq!(
            [A, B, C].map(|key| left(&table, key, at(5))),
            [(a > 0).then_some(1), (b > 0).then_some(1), Some(1)]
        );
        has_an_entry_each(&table, at(5), 2);
    });
}

#[test]
fn a_release_during_a_claim_for_the_same_key_returns_its_permit() {
    explore(|| {
        let table = permits(2, 2);
        let passing = spawn(&table, |table| {
            let taken = grant(table, A, at(5), 1);
            if taken > 0 {
                release(table, A, 1);
            }
        });
        let taken = grant(&table, A_BACK, at(5), 1);
        join(passing);
        has_taken(&table, A, at(5), taken, 2);
        release(&table, A_BACK, 2);
        assert_eq!(table.statistics_at(at(5)).live, 0);
        has_an_entry_each(&table, at(5), 1);
    });
}

#[test]
fn a_release_finds_the_slot_that_its_key_has_moved_to() {
    explore_briefly(2, 3, || {
        let table = permits(1, 1);
        let moving = spawn(&table, |table| {
            if grant(table, A, at(5), 1) > 0 {
                release(table, A, 1);
            }
            // `B` takes the slot of `A`, if `A` does not use it at this moment. Then `A` gets the
            // other slot.
            let b = grant(table, B, at(5), 1);
            if grant(table, A, at(5), 1) > 0 {
                release(table, A, 1);
            }
            b
        });
        if grant(&table, A, at(5), 1) > 0 {
            release(&table, A, 1);
        }
        let b = join(moving);
        assert_eq!(available(&table, B, at(5)), 1 - b);
        has_taken(&table, A, at(5), 0, 1);
        has_an_entry_each(&table, at(5), 2);
    });
}

#[test]
fn a_release_finds_the_slot_that_another_thread_has_moved_its_key_to() {
    explore_briefly(0, 1, || {
        // The threads run one after the other, without any memory order.
        let shared = Arc::new((table(ConcurrencyRules::new(2), 2), AtomicU64::new(0)));
        let before = spawn(&shared, |(table, step)| {
            assert_eq!(grant(table, A, at(5), 1), 1);
            release(table, A, 1);
            step.store(1, Relaxed);
            // `B` takes the slot of `A`, if `A` does not use it at this moment.
            grant(table, B, at(5), 1)
        });
        let between = spawn(&shared, |(table, step)| {
            if step.load(Relaxed) < 1 {
                return 0;
            }
            let taken = grant(table, A_BACK, at(5), 1);
            step.store(2, Relaxed);
            taken
        });
        let after = spawn(&shared, |(table, step)| {
            if step.load(Relaxed) == 2 && grant(table, A, at(5), 1) > 0 {
                release(table, A, 1);
            }
        });
        let (b, taken) = (join(before), join(between));
        join(after);
        let table = &shared.0;
        assert_eq!(available(table, B, at(5)), 2 - b);
        has_taken(table, A, at(5), taken, 2);
        has_an_entry_each(table, at(5), 2);
    });
}

#[test]
fn a_sweep_during_two_takes_neither_loses_nor_adds_a_permit() {
    explore(|| {
        let table = buckets(1, 1);
        assert_eq!(grant(&table, A, at(5), 1), 1);
        let first = spawn(&table, |table| grant(table, A, at(20), 1));
        let second = spawn(&table, |table| grant(table, A, at(20), 1));
        turn();
        assert!(table.sweep_at(at(20), ..) <= 1);
        has_taken(&table, A, at(20), join(first) + join(second), 1);
        has_an_entry_each(&table, at(20), 1);
    });
}

#[test]
fn a_sweep_during_a_take_keeps_permits_in_use() {
    explore(|| {
        let table = permits(1, 1);
        assert_eq!(grant(&table, A, at(5), 1), 1);
        release(&table, A, 1);
        let a = spawn(&table, |table| grant(table, A, at(5), 1));
        turn();
        let swept = table.sweep_at(at(5), ..);
        assert!(swept <= 1);
        assert_eq!(join(a), 1);
        has_taken(&table, A, at(5), 1, 1);
        release(&table, A, 1);
        assert_eq!(table.sweep_at(at(5), ..), 1);
        has_an_entry_each(&table, at(5), 0);
    });
}

#[test]
fn a_permit_of_a_key_guards_data() {
    explore(|| {
        let guard = guard(1, 2);
        let visit = |(table, data): &(Permits, Witness), key: u64| {
            turn();
            let lease = Lease::try_acquire_at(table.key(&key), at(5), 1);
            if lease.is_ok() {
                data.write();
                turn();
            }
        };
        let other = spawn(&guard, move |guard| visit(guard, A_BACK));
        visit(&guard, A);
        join(other);
        has_taken(&guard.0, A, at(5), 0, 1);
        has_an_entry_each(&guard.0, at(5), 1);
    });
}

#[test]
fn a_take_of_a_refunded_permit_sees_what_its_holder_wrote() {
    explore(|| {
        let guard = guard(1, 1);
        assert_eq!(grant(&guard.0, A, at(5), 1), 1);
        let next = spawn(&guard, |(table, data)| {
            let taken = grant(table, A, at(5), 1);
            if taken > 0 {
                data.write();
            }
            taken
        });
        let (table, data) = &*guard;
        data.write();
        turn();
        let receipt = Receipt::NONE;
        assert_eq!(table.key(&A).refund_at(at(5), 1, receipt).permits, 1);
        has_taken(table, A, at(5), join(next), 1);
    });
}

#[test]
fn a_later_take_sees_what_the_last_holder_wrote_although_another_key_has_the_slot() {
    explore(|| {
        let guard = guard(1, 1);
        assert_eq!(grant(&guard.0, A, at(5), 1), 1);
        let next = spawn(&guard, |(table, data)| {
            let b = grant(table, B, at(5), 1);
            let a = grant(table, A, at(5), 1);
            if a > 0 {
                data.write();
            }
            (a, b)
        });
        let (table, data) = &*guard;
        data.write();
        release(table, A, 1);
        let (a, b) = join(next);
        assert_eq!(
            (available(table, A, at(5)), available(table, B, at(5))),
            (1 - a, 1 - b)
        );
        has_an_entry_each(table, at(5), 2);
    });
}

#[test]
fn a_later_take_sees_what_the_last_holder_wrote_although_the_slot_is_vacant() {
    explore(|| {
        let guard = guard(1, 2);
        let last = spawn(&guard, |guard| writes_with_all_permits(guard, 1));
        let (table, data) = &*guard;
        let taken = grant(table, A_BACK, at(5), 1);
        if taken > 0 {
            data.write();
        }
        join(last);
        has_taken(table, A, at(5), taken, 1);
        has_an_entry_each(table, at(5), 1);
    });
}

#[test]
fn a_later_take_sees_what_the_last_holder_wrote_although_a_claim_was_withdrawn() {
    explore_briefly(2, 3, || {
        let guard = guard(1, 2);
        assert_eq!(grant(&guard.0, C, at(5), 1), 1);
        let first = spawn(&guard, |(table, data)| {
            data.write();
            release(table, C, 1);
            grant(table, A, at(5), 1)
        });
        let second = spawn(&guard, |(table, _)| grant(table, A_BACK, at(5), 1));
        let (table, data) = &*guard;
        let taken = grant(table, C, at(5), 1);
        if taken > 0 {
            data.write();
        }
        has_taken(table, A, at(5), join(first) + join(second), 1);
        has_taken(table, C, at(5), taken, 1);
        has_an_entry_each(table, at(5), 2);
    });
}

#[test]
fn two_concurrent_takes_see_what_the_last_holder_of_both_permits_wrote() {
    explore_within(1, || {
        let guard = guard(2, 2);
        let last = spawn(&guard, |guard| writes_with_all_permits(guard, 2));
        let reads = |(table, data): &(Permits, Witness), key| {
            let taken = grant(table, key, at(5), 1);
            if taken > 0 {
                data.read();
            }
            taken
        };
        let other = spawn(&guard, move |guard| reads(guard, A_BACK));
        let taken = reads(&guard, A);
        join(last);
        has_taken(&guard.0, A, at(5), join(other) + taken, 2);
        has_an_entry_each(&guard.0, at(5), 1);
    });
}

#[test]
fn all_hashes_use_one_seed() {
    explore(|| {
        let seed = Arc::new(Seed::new());
        let set = spawn(&seed, |seed| seed.set([1, 2]).is_ok());
        let hashes = spawn(&seed, |seed| {
            let first = seed.hash_one(7_u64);
            turn();
            [first, seed.hash_one(7_u64)]
        });
        turn();
        let hash = seed.hash_one(7_u64);
        assert_eq!(join(hashes), [hash; 2]);
        let chosen = Seed::new();
        chosen.set([1, 2]).unwrap();
        if join(set) {
            assert_eq!(hash, chosen.hash_one(7_u64));
            assert_ne!(hash, Seed::new().hash_one(7_u64));
        }
        assert!(seed.set([1, 2]).is_err());
        assert_eq!(seed.hash_one(7_u64), hash);
    });
}

#[test]
fn at_most_one_of_two_threads_sets_the_seed() {
    explore(|| {
        let seed = Arc::new(Seed::new());
        let other = spawn(&seed, |seed| seed.set([3, 4]).is_ok());
        turn();
        let mine = seed.set([1, 2]).is_ok();
        let other = join(other);
        assert!(!(mine && other));
        for (set, parts) in [(mine, [1, 2]), (other, [3, 4])] {
            let chosen = Seed::new();
            chosen.set(parts).unwrap();
            assert_eq!(seed.hash_one(7_u64) == chosen.hash_one(7_u64), set);
        }
    });
}

/// The time after which the word of a bucket below repeats.
const HORIZON: u64 = 1 << 43;

/// Buckets whose word counts nanoseconds, so that it repeats after a whole number of them. They are
/// full after a second.
fn short_lived() -> Arc<Buckets> {
    let builder = TokenBucket::builder(Rate::per_second(1), 1).tick(Duration::from_nanos(1));
    Arc::new(table(builder.rules().unwrap(), 1))
}

/// The take after the rest leaves the very word that was there before it: a thread that has read
/// the word before, and settles it late, does not take it for the old one.
#[test]
fn a_word_that_repeats_after_a_rest_is_not_settled_twice() {
    explore(|| {
        let table = short_lived();
        let later = Timestamp::from_nanos(at(5).as_nanos() + HORIZON);
        assert_eq!(grant(&table, A, at(5), 1), 1);
        let other = spawn(&table, move |table| grant(table, A, later, 1));
        let granted = grant(&table, A, later, 1) + join(other);
        assert!(granted <= 1, "{granted}");
        assert_eq!(granted + grant(&table, A, later, 1), 1);
        assert_eq!(grant(&table, A, later, 1), 0);
    });
}

/// Two threads settle the line at once, for a key each.
#[test]
fn keys_of_a_line_that_rested_have_all_their_permits_once() {
    explore_briefly(1, 2, || {
        let table = short_lived();
        let later = Timestamp::from_nanos(at(5).as_nanos() + HORIZON);
        assert_eq!(grant(&table, A, at(5), 1) + grant(&table, C, at(5), 1), 2);
        let c = spawn(&table, move |table| grant(table, C, later, 1));
        let (a, c) = (grant(&table, A, later, 1), join(c));
        assert_eq!(a + grant(&table, A, later, 1), 1);
        assert_eq!(c + grant(&table, C, later, 1), 1);
    });
}
