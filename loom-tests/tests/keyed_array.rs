//! The table with a limiter beside each slot: a call is counted before it uses a limiter, and a
//! claim replaces only the word that it has read.
//!
//! Under loom a line has two slots, and a lookup makes two attempts. The keys are their own hashes.
//! `C` has one of the two slots in models that need room for only one more key.
#![cfg(portcullis_loom)]

use core::hash::BuildHasherDefault;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering::Relaxed};
use portcullis_core::keyed::Line;
use portcullis_core::limiter::{Answer, Ask, Back, Idle, Read, Reading, Receipt, Returned};
use portcullis_core::{Concurrency, Denied, KeyedArray, Lease, Limiter, Retry, Timestamp};
use portcullis_loom::{Itself, Witness, at, explore, explore_briefly, join, spawn, take, turn};

type Table<L> = KeyedArray<L, Vec<L>, Vec<Line>, BuildHasherDefault<Itself>>;

const A: u64 = 1;
/// The same key to the table, but with the lines in the other order.
const A_BACK: u64 = 1 << 63 | A;
const B: u64 = 3;
const C: u64 = 6;

/// A limiter that a request for two permits uses up permanently. It orders no memory, not even for
/// the fact that it is used up.
struct Fuse(AtomicBool);

impl Limiter for Fuse {
    fn decide(&self, ask: Ask<'_>) -> Answer {
        let (now, n) = (ask.now(), ask.permits());
        if ask.is_look() {
            return ask.looked(self.available_at(now), || u64::MAX);
        }
        self.take(now, n).into()
    }

    fn give_back(&self, _: Back<'_>) -> Returned {
        Returned::NOTHING
    }

    fn read(&self, _: Read<'_>) -> Reading {
        Reading {
            available: if self.0.load(Relaxed) { 0 } else { 2 },
            capacity: u64::MAX,
            idle: if self.0.load(Relaxed) {
                Idle::InUse
            } else {
                Idle::Since(Timestamp::ZERO)
            },
            held: 0,
        }
    }

    fn retry(&self, _: Denied) -> Retry {
        Retry::Never
    }
}

impl Fuse {
    fn take(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        let was_blown = if n == 2 {
            self.0.swap(true, Relaxed)
        } else {
            self.0.load(Relaxed)
        };
        if was_blown {
            Err(Denied::Exhausted { now, permits: n })
        } else {
            Ok(Receipt::NONE)
        }
    }
}

/// A single permit that orders no memory.
struct Slot(AtomicBool);

impl Limiter for Slot {
    fn decide(&self, ask: Ask<'_>) -> Answer {
        let (now, n) = (ask.now(), ask.permits());
        if ask.is_look() {
            return ask.looked(self.available_at(now), || u64::MAX);
        }
        let was_taken = self.0.swap(true, Relaxed);
        Answer::from(if was_taken {
            Err(Denied::Exhausted { now, permits: n })
        } else {
            Ok(Receipt::NONE)
        })
    }

    fn give_back(&self, back: Back<'_>) -> Returned {
        match back {
            Back::Release { permits: _ } => {
                self.0.store(false, Relaxed);
                Returned::NOTHING
            }
            Back::Refund {
                permits, receipt, ..
            } => {
                self.release(permits);
                receipt.refunded(0).into()
            }
            _ => Returned::NOTHING,
        }
    }

    fn read(&self, _: Read<'_>) -> Reading {
        Reading {
            available: u64::from(!self.0.load(Relaxed)),
            capacity: u64::MAX,
            idle: if self.0.load(Relaxed) {
                Idle::InUse
            } else {
                Idle::Since(Timestamp::ZERO)
            },
            held: 0,
        }
    }

    fn retry(&self, _: Denied) -> Retry {
        Retry::OnRelease
    }
}

fn table<L>(limiter: impl Fn() -> L, lines: usize) -> Table<L> {
    let limiters = (0..2 * lines).map(|_| limiter()).collect();
    let lines = (0..lines).map(|_| Line::new()).collect();
    KeyedArray::new(limiter(), limiters, lines, BuildHasherDefault::default())
}

fn permits(limit: u32, lines: usize) -> Arc<Table<Concurrency>> {
    Arc::new(table(|| Concurrency::new(limit), lines))
}

fn fuses(lines: usize) -> Arc<Table<Fuse>> {
    Arc::new(table(|| Fuse(AtomicBool::new(false)), lines))
}

/// Takes `n` permits of `key` permanently. Returns the number taken.
fn grant<L: Limiter>(table: &Table<L>, key: u64, now: Timestamp, n: u32) -> u64 {
    take(&*table.key(&key), now, n)
}

fn available<L: Limiter>(table: &Table<L>, key: u64, now: Timestamp) -> u64 {
    table.key(&key).available_at(now)
}

/// Returns the permits that are available to `key`, or `None` if the table has no slot for it.
fn left<L: Limiter>(table: &Table<L>, key: u64, now: Timestamp) -> Option<u64> {
    let available = available(table, key, now);
    if let Err(Denied::Crowded { .. }) = table.key(&key).peek_at(now, 0) {
        assert_eq!(available, 0, "no permit can be taken without a slot");
        return None;
    }
    Some(available)
}

fn release(table: &Table<Concurrency>, key: u64, n: u32) {
    turn();
    table.key(&key).release(n);
}

/// Takes a permit and releases it, if one is available.
fn pass(table: &Table<Concurrency>, key: u64, now: Timestamp) {
    turn();
    drop(Lease::try_acquire_at(table.key(&key), now, 1));
}

/// Checks that each of `keys` keys holds at most one slot.
fn has_an_entry_each<L: Limiter>(table: &Table<L>, now: Timestamp, keys: usize) {
    let statistics = table.statistics_at(now);
    assert!(
        statistics.held <= keys,
        "{} slots for {keys} keys",
        statistics.held
    );
}

/// Checks that no call is counted and no permit is held: all held slots can be swept.
fn is_at_rest(table: &Table<Concurrency>, now: Timestamp) {
    let statistics = table.statistics_at(now);
    assert_eq!(statistics.live, 0);
    assert_eq!(table.sweep_at(now, ..), statistics.held);
    assert_eq!(table.statistics_at(now).held, 0);
}

#[test]
fn two_first_takes_of_a_key_share_one_slot() {
    explore(|| {
        let table = permits(2, 1);
        let first = spawn(&table, |table| grant(table, A, at(5), 1));
        let second = grant(&table, A, at(5), 1);
        let taken = join(first) + second;
        assert!(taken >= 1, "at least one take completes its claim");
        assert_eq!(available(&table, A, at(5)), 2 - taken);
        has_an_entry_each(&table, at(5), 1);
        release(&table, A, taken as u32);
        is_at_rest(&table, at(9));
    });
}

#[test]
fn two_first_takes_that_prefer_different_lines_share_one_slot() {
    explore(|| {
        let table = permits(1, 2);
        let first = spawn(&table, |table| grant(table, A, at(5), 1));
        let second = grant(&table, A_BACK, at(5), 1);
        let taken = join(first) + second;
        // Each take may see the claim of the other, and withdraw its own.
        assert!(taken <= 1);
        assert_eq!(available(&table, A, at(5)), 1 - taken);
        has_an_entry_each(&table, at(5), 1);
        release(&table, A, taken as u32);
        is_at_rest(&table, at(9));
    });
}

#[test]
fn an_idle_slot_stays_with_its_key_or_goes_to_another_key() {
    explore(|| {
        let table = permits(1, 1);
        assert_eq!(
            (grant(&table, A, at(5), 1), grant(&table, C, at(5), 1)),
            (1, 1)
        );
        release(&table, A, 1);
        let b = spawn(&table, |table| grant(table, B, at(20), 1));
        let a = grant(&table, A, at(20), 1);
        let b = join(b);
        assert_eq!(a + b, 1, "exactly one of the two keys has the slot");
        assert_eq!(
            [A, B, C].map(|key| left(&table, key, at(20))),
            [(a > 0).then_some(0), (b > 0).then_some(0), Some(0)]
        );
        release(&table, if a > 0 { A } else { B }, 1);
        release(&table, C, 1);
        is_at_rest(&table, at(29));
    });
}

#[test]
fn a_use_that_does_not_change_the_noted_time_keeps_its_slot() {
    explore(|| {
        let table = permits(1, 1);
        assert_eq!(
            (grant(&table, A, at(5), 1), grant(&table, C, at(5), 1)),
            (1, 1)
        );
        release(&table, A, 1);
        let b = spawn(&table, |table| grant(table, B, at(5 + 509), 1));
        // This is the largest distance ahead that the slot's noted time can represent, so the noted
        // time stays the same.
        let a = grant(&table, A, at(5 + 511), 1);
        let b = join(b);
        assert_eq!(a + b, 1);
        assert_eq!(
            [A, B, C].map(|key| left(&table, key, at(5 + 511))),
            [(a > 0).then_some(0), (b > 0).then_some(0), Some(0)]
        );
    });
}

#[test]
fn two_uses_during_a_claim_of_their_slot_take_no_more_than_the_limit() {
    explore_briefly(1, 2, || {
        let table = permits(1, 1);
        assert_eq!(grant(&table, A, at(5), 1), 1);
        release(&table, A, 1);
        let b = spawn(&table, |table| grant(table, B, at(20), 1));
        let first = spawn(&table, |table| grant(table, A, at(20), 1));
        let second = grant(&table, A, at(20), 1);
        let taken = join(first) + second;
        assert_eq!(join(b), 1, "there is room for both");
        assert!(taken <= 1);
        assert_eq!(available(&table, A, at(20)), 1 - taken);
        has_an_entry_each(&table, at(20), 2);
    });
}

#[test]
fn a_release_during_a_claim_returns_permits_to_its_own_key() {
    explore(|| {
        let table = permits(1, 1);
        assert_eq!(
            (grant(&table, A, at(5), 1), grant(&table, C, at(5), 1)),
            (1, 1)
        );
        let b = spawn(&table, |table| grant(table, B, at(20), 1));
        release(&table, A, 1);
        let b = join(b);
        assert_eq!(
            [A, B, C].map(|key| left(&table, key, at(20))),
            [(b == 0).then_some(1), Some(1 - b), Some(0)]
        );
        if b > 0 {
            release(&table, B, 1);
        }
        release(&table, C, 1);
        is_at_rest(&table, at(29));
    });
}

#[test]
fn a_sweep_during_two_uses_leaves_no_use_counted() {
    explore(|| {
        let table = permits(1, 1);
        pass(&table, A, at(5));
        let first = spawn(&table, |table| pass(table, A, at(20)));
        turn();
        assert!(table.sweep_at(at(20), ..) <= 1);
        pass(&table, A, at(20));
        join(first);
        assert_eq!(available(&table, A, at(20)), 1);
        has_an_entry_each(&table, at(20), 1);
        is_at_rest(&table, at(29));
    });
}

#[test]
fn a_claim_sees_how_a_use_changed_the_limiter() {
    explore(|| {
        let table = fuses(1);
        assert_eq!(
            (grant(&table, A, at(5), 1), grant(&table, C, at(5), 2)),
            (1, 2)
        );
        // The timestamp is stale, so that the noted time alone does not keep the slot.
        let a = spawn(&table, |table| grant(table, A, at(18), 2));
        let b = grant(&table, B, at(20), 1);
        let a = join(a);
        assert_ne!(a == 2, b == 1, "the slot belongs to A permanently, or to B");
        assert_eq!(left(&table, A, at(20)), (a == 2).then_some(0));
    });
}

#[test]
fn a_claim_that_was_overtaken_sees_how_a_use_changed_the_limiter() {
    explore_briefly(2, 3, || {
        let table = fuses(1);
        assert_eq!(
            (grant(&table, A, at(5), 1), grant(&table, C, at(5), 2)),
            (1, 2)
        );
        let probes = spawn(&table, |table| grant(table, A, at(18), 1));
        let a = spawn(&table, |table| grant(table, A, at(18), 2));
        let b = grant(&table, B, at(20), 1);
        let (_, a) = (join(probes), join(a));
        assert!(a + b <= 2 && a != 1, "{a} and {b}");
        assert_eq!(left(&table, A, at(20)), (b == 0).then_some(2 - a));
    });
}

#[test]
fn a_sweep_sees_how_a_use_changed_the_limiter() {
    explore(|| {
        let table = fuses(1);
        assert_eq!(grant(&table, A, at(5), 1), 1);
        let a = spawn(&table, |table| grant(table, A, at(18), 2));
        turn();
        table.sweep_at(at(20), ..);
        assert_eq!(join(a), 2);
        assert_eq!(available(&table, A, at(20)), 0, "used up permanently");
        assert_eq!(grant(&table, A, at(20), 2), 0);
    });
}

#[test]
fn the_next_key_of_a_slot_sees_what_the_last_user_of_the_former_key_wrote() {
    explore(|| {
        let guard = Arc::new((table(|| Slot(AtomicBool::new(false)), 1), Witness::new()));
        let (table, data) = &*guard;
        assert_eq!(
            (grant(table, A, at(5), 1), grant(table, C, at(5), 1)),
            (1, 1)
        );
        let b = spawn(&guard, |(table, data)| {
            let b = grant(table, B, at(20), 1);
            if b > 0 {
                data.write();
            }
            b
        });
        data.write();
        turn();
        table.key(&A).release(1);
        let b = join(b);
        assert_eq!(available(table, B, at(20)), 1 - b);
    });
}

#[test]
fn a_permit_of_a_key_guards_data() {
    explore(|| {
        let guard = Arc::new((table(|| Concurrency::new(1), 2), Witness::new()));
        let visit = |(table, data): &(Table<Concurrency>, Witness), key: u64| {
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
        is_at_rest(&guard.0, at(9));
    });
}
