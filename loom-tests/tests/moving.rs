//! Keys move to another table while other threads take: a key is never granted permits from both
//! tables, and what it has taken stays taken.
#![cfg(portcullis_loom)]

use core::hash::BuildHasherDefault;

use loom::sync::Arc;
use portcullis_core::keyed::{Line, PendingClaim, TokenBucketRules};
use portcullis_core::{CooldownWindow, Denied, Keyed, KeyedArray, Limiter, Rate, TokenBucket};
use portcullis_loom::{Itself, at, explore, explore_briefly, join, spawn, turn};

type Table = Keyed<TokenBucketRules, Vec<Line>, BuildHasherDefault<Itself>>;

/// A burst of 2 before the move, and of 3 after it.
struct Tables {
    before: Table,
    after: Table,
}

/// Returns a key that prefers the first line (or the second of two lines), with a tag that permits
/// it to use both.
const fn key(line: u64, tag: u64) -> u64 {
    line << 63 | tag
}

const A: u64 = key(0, 1);
/// The same key to the tables, but with the lines in the other order.
const A_BACK: u64 = key(1, 1);
const B: u64 = key(0, 3);
const C: u64 = key(0, 6);

fn tables(lines: usize) -> Arc<Tables> {
    let table = |burst, line: fn() -> Line| {
        let lines = (0..lines).map(|_| line()).collect();
        let rules = TokenBucket::builder(Rate::per_second(1), burst).rules();
        Keyed::new(rules.unwrap(), lines, BuildHasherDefault::default())
    };
    Arc::new(Tables {
        before: table(2, Line::new),
        after: table(3, Line::closed),
    })
}

impl Tables {
    /// Takes a permit from the table that the key has not moved from. Returns how many it took.
    fn take(&self, key: u64, seconds: u64) -> u64 {
        turn();
        let before = self.before.key(&key);
        match before.take_at(at(seconds), 1) {
            Err(Denied::Crowded { .. }) if self.before.has_moved(before.address()) => {
                turn();
                self.after.key(&key).take_at(at(seconds), 1).is_ok().into()
            }
            taken => taken.is_ok().into(),
        }
    }

    /// Moves what is not being claimed.
    fn move_some(&self, seconds: u64) {
        turn();
        self.before.move_to(&self.after, at(seconds));
    }

    /// Moves the rest, once no other thread claims a slot.
    fn move_rest(&self, seconds: u64) {
        assert_eq!(self.before.move_to(&self.after, at(seconds)), 0);
    }

    /// Checks that a key that has taken `taken` permits has the rest of the new burst, and that no
    /// slot is left claimed or closed in the table that the keys have moved to.
    fn has_taken(&self, key: u64, seconds: u64, taken: u64) {
        let (before, after) = (self.before.key(&key), self.after.key(&key));
        assert!(self.before.has_moved(before.address()));
        assert_eq!(after.available_at(at(seconds)), 3 - taken);
        for _ in taken..3 {
            assert!(after.take_at(at(seconds), 1).is_ok());
        }
        assert!(after.take_at(at(seconds), 1).is_err());
    }
}

#[test]
fn permits_taken_during_a_move_stay_taken() {
    explore(|| {
        let tables = tables(1);
        // `C` has the first slot, which moves before the other one.
        let before = tables.take(C, 5);
        let moves = spawn(&tables, |tables| tables.move_some(5));
        let taken = tables.take(C, 5);
        join(moves);
        tables.move_rest(5);
        tables.has_taken(C, 5, before + taken);
    });
}

/// The second slot of the line is free for a claim before the key's own slot is held.
#[test]
fn a_key_finds_its_claim_in_the_table_that_it_has_moved_to() {
    explore_briefly(2, 3, || {
        let tables = tables(1);
        // `C` has the first slot, and leaves it; `A` has the second.
        assert_eq!(tables.take(C, 5) + tables.take(A, 20), 2);
        assert_eq!(tables.before.sweep_at(at(20), ..), 1);
        let moves = spawn(&tables, |tables| tables.move_some(20));
        let taken = tables.take(A, 20);
        join(moves);
        tables.move_rest(20);
        tables.has_taken(A, 20, 1 + taken);
    });
}

#[test]
fn a_key_that_is_new_during_a_move_gets_one_slot() {
    explore_briefly(0, 1, || {
        let tables = tables(1);
        // Another key comes and goes first, so that both lines have clocks: with the threads'
        // starts of them there would be too many interleavings.
        assert_eq!(tables.take(C, 0), 1);
        assert_eq!(tables.before.sweep_at(at(5), ..), 1);
        tables.after.sweep_at(at(5), ..);
        let moves = spawn(&tables, |tables| tables.move_some(5));
        let other = spawn(&tables, |tables| tables.take(A, 5));
        let taken = tables.take(A, 5);
        let taken = taken + join(other);
        join(moves);
        tables.move_rest(5);
        tables.has_taken(A, 5, taken);
    });
}

#[test]
fn a_key_with_two_lines_that_is_new_during_a_move_gets_one_slot() {
    explore_briefly(1, 2, || {
        let tables = tables(2);
        let moves = spawn(&tables, |tables| tables.move_some(5));
        let taken = tables.take(A, 5);
        join(moves);
        let taken = taken + tables.take(A_BACK, 5);
        tables.move_rest(5);
        tables.has_taken(A, 5, taken);
    });
}

#[test]
fn a_key_whose_idle_slot_goes_to_another_key_during_a_move_gets_one_slot() {
    explore_briefly(0, 1, || {
        let tables = tables(1);
        assert_eq!(tables.take(A, 5) + tables.take(C, 20), 2);
        let moves = spawn(&tables, |tables| tables.move_some(20));
        let b = spawn(&tables, |tables| tables.take(B, 20));
        let a = tables.take(A, 20);
        let b = join(b);
        join(moves);
        tables.move_rest(20);
        tables.has_taken(C, 20, 1);
        assert!(a + b <= 1, "two keys hold one slot");
        if a + b > 0 {
            tables.has_taken(if a > 0 { A } else { B }, 20, 1);
        }
    });
}

type Windows =
    KeyedArray<CooldownWindow, Vec<CooldownWindow>, Vec<Line>, BuildHasherDefault<Itself>>;

fn windows(limit: u64, line: fn() -> Line) -> Windows {
    let window = || CooldownWindow::new(limit, core::time::Duration::from_secs(60), None);
    let windows = (0..2).map(|_| window()).collect();
    KeyedArray::new(
        window(),
        windows,
        vec![line()],
        BuildHasherDefault::default(),
    )
}

#[test]
fn a_move_sees_how_a_use_changed_the_limiter() {
    explore(|| {
        let tables = Arc::new((windows(3, Line::new), windows(4, Line::closed)));
        assert!(tables.0.key(&C).take_at(at(5), 1).is_ok());
        let user = spawn(&tables, |(before, after)| {
            let key = before.key(&C);
            match key.take_at(at(5), 1) {
                Err(Denied::Crowded { .. }) if before.has_moved(key.address()) => {
                    u64::from(after.key(&C).take_at(at(5), 1).is_ok())
                }
                taken => u64::from(taken.is_ok()),
            }
        });
        turn();
        let carry = |new: &CooldownWindow, old: &CooldownWindow| new.go_on_from(old, at(5));
        let (before, after) = &*tables;
        before.move_to(after, carry);
        let taken = 1 + join(user);
        assert_eq!(before.move_to(after, carry), 0);
        assert_eq!(after.key(&C).available_at(at(5)), 4 - taken);
    });
}

/// Tables between which keys are handed over: claims are revocable.
fn shared_tables(lines: usize) -> Arc<Tables> {
    let tables = tables(lines);
    let Ok(Tables { before, after }) = Arc::try_unwrap(tables) else {
        unreachable!("no other thread has them");
    };
    Arc::new(Tables {
        before: before.with_revocable_claims(),
        after: after.with_revocable_claims(),
    })
}

fn take_before(tables: &Tables, key: u64) -> u64 {
    turn();
    u64::from(tables.before.key(&key).take_at(at(0), 1).is_ok())
}

fn hand_over(tables: &Tables) -> usize {
    turn();
    tables.before.hand_over_to(&tables.after, at(0))
}

#[test]
fn a_grant_during_a_hand_over_is_in_what_is_handed_over() {
    explore_briefly(2, 3, || {
        let tables = shared_tables(1);
        assert!(tables.before.key(&A).take_at(at(0), 1).is_ok());
        let a = spawn(&tables, |tables| take_before(tables, A));
        let b = spawn(&tables, |tables| take_before(tables, B));
        // A claim that is under way is revoked, and holds up nothing.
        assert_eq!(hand_over(&tables), 0);
        let (a, b) = (join(a), join(b));
        assert_eq!(tables.after.key(&A).available_at(at(0)), 2 - a);
        assert_eq!(tables.after.key(&B).available_at(at(0)), 3 - b);
        assert!(tables.before.key(&C).take_at(at(0), 1).is_err());
    });
}

#[test]
fn a_hand_over_that_goes_on_after_another_one_changes_nothing() {
    explore(|| {
        let tables = shared_tables(1);
        assert!(tables.before.key(&A).take_at(at(0), 1).is_ok());
        let taken = spawn(&tables, |tables| take_before(tables, A));
        // As by a process that is stopped at any instruction.
        let stopped = spawn(&tables, |tables| hand_over(tables) as u64);
        assert_eq!(hand_over(&tables), 0);
        // The other table is in use.
        let after = u64::from(tables.after.key(&A).take_at(at(0), 1).is_ok());
        let (taken, _) = (join(taken), join(stopped));
        let left = tables.after.key(&A).available_at(at(0));
        assert_eq!(1 + taken + after + left, 3, "{taken} before, {after} after");
    });
}

#[test]
fn a_key_that_has_nothing_left_is_granted_nothing_while_it_is_handed_over() {
    explore(|| {
        let tables = shared_tables(1);
        // At the time 0, the state of a bucket without permits is 0.
        assert!(tables.before.key(&C).take_at(at(0), 2).is_ok());
        let taken = spawn(&tables, |tables| take_before(tables, C));
        assert_eq!(hand_over(&tables), 0);
        assert_eq!(join(taken), 0);
        assert_eq!(tables.after.key(&C).available_at(at(0)), 1);
    });
}

#[test]
fn a_claim_that_was_revoked_grants_nothing() {
    explore(|| {
        let tables = shared_tables(1);
        let granted = spawn(&tables, |tables| take_before(tables, A));
        turn();
        let lines = tables.before.lines();
        for claim in PendingClaim::all(lines) {
            claim.abandon(lines);
        }
        // Another key may have the slot then.
        let b = take_before(&tables, B);
        let granted = join(granted);
        let left = |key: u64| tables.before.key(&key).available_at(at(0));
        assert_eq!(PendingClaim::all(lines).count(), 0);
        assert_eq!((left(A), left(B)), (2 - granted, 2 - b));
    });
}
