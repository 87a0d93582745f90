//! A value that one thread at a time changes: two cells, each with a claim. A claim acquires, its
//! end releases. Loom's cell fails a model in which two threads reach a value at once, or one
//! without the changes of the other before it.
#![cfg(portcullis_loom)]

use core::panic::AssertUnwindSafe;
use std::panic::{catch_unwind, resume_unwind};

use loom::sync::Arc;
use portcullis_adaptive::Turns;
use portcullis_loom::{explore, join, spawn, turn};

const FIRST: u32 = 100;
const SECOND: u32 = 200;

fn turns() -> Arc<Turns<u32>> {
    Arc::new(Turns::new(FIRST, SECOND))
}

/// Adds 1. Returns what the value was, or `None` if no cell was free.
fn add(turns: &Turns<u32>, now: u32) -> Option<u32> {
    turn();
    let mut claimed = turns.claim(now)?;
    Some(claimed.change(|value| {
        *value += 1;
        *value - 1
    }))
}

/// Adds 1 to a value and panics, without the message.
fn add_and_panic(turns: &Turns<u32>, now: u32) -> Option<u32> {
    turn();
    let mut claimed = turns.claim(now)?;
    let mut was = 0;
    let changed = catch_unwind(AssertUnwindSafe(|| {
        let change = |value: &mut u32| {
            was = *value;
            *value += 1;
            resume_unwind(Box::new(()))
        };
        claimed.change(change);
        drop(claimed);
    }));
    assert!(changed.is_err());
    Some(was)
}

/// Expects that each value from `from` on was seen once, and returns the next one.
fn in_order(seen: impl IntoIterator<Item = Option<u32>>, from: u32) -> u32 {
    let mut seen: Vec<u32> = seen.into_iter().flatten().collect();
    seen.sort_unstable();
    let next = from + seen.len() as u32;
    assert_eq!(seen, (from..next).collect::<Vec<_>>());
    next
}

#[test]
fn each_claimer_sees_the_changes_of_those_before_it() {
    explore(|| {
        let turns = turns();
        let other = spawn(&turns, |turns| add(turns, 1));
        let third = spawn(&turns, |turns| add(turns, 1));
        let own = add(&turns, 1);
        let next = in_order([own, join(other), join(third)], FIRST);
        assert!(next > FIRST, "one of three claims the value");
        assert_eq!(add(&turns, 1), Some(next));
    });
}

#[test]
fn a_claimer_that_never_returns_leaves_the_second_cell_to_the_others() {
    explore(|| {
        let turns = turns();
        core::mem::forget(turns.claim(1));
        assert_eq!(add(&turns, 11), None, "it may still return");
        let other = spawn(&turns, |turns| add(turns, 12));
        let own = add(&turns, 12);
        let next = in_order([own, join(other)], SECOND);
        assert!(next > SECOND, "one of two claims the value");
        assert_eq!(add(&turns, 12), Some(next));
    });
}

/// The first claimer is slow: the others may claim the second cell before it begins to change the
/// value of the first, or during that.
#[test]
fn a_claimer_that_comes_back_and_those_who_did_not_wait_for_it_lose_no_change() {
    explore(|| {
        let turns = turns();
        let slow = spawn(&turns, |turns| add(turns, 1));
        let other = spawn(&turns, |turns| add(turns, 12));
        let own = add(&turns, 12);
        let seen = [own, join(slow), join(other)];
        let (first, second): (Vec<_>, Vec<_>) = seen
            .into_iter()
            .flatten()
            .partition(|value| *value < SECOND);
        let next = [(first, FIRST), (second, SECOND)]
            .map(|(seen, from)| in_order(seen.into_iter().map(Some), from));
        assert_eq!(add(&turns, 20), Some(next[0]));
        core::mem::forget(turns.claim(20));
        assert_eq!(add(&turns, 40), Some(next[1]));
    });
}

#[test]
fn a_panic_in_a_change_frees_the_value() {
    explore(|| {
        let turns = turns();
        let panics = spawn(&turns, |turns| add_and_panic(turns, 1));
        let own = add(&turns, 1);
        let next = in_order([own, join(panics)], FIRST);
        assert_eq!(add(&turns, 1), Some(next));
    });
}
