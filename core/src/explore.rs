//! Atomics that can be pre-empted. Under `cfg(portcullis_explore)` the core uses them instead of
//! plain ones. Only the tests in `explore/` of the repository set it.
//!
//! Each access first counts itself. Then it runs the calls that are due at its number, as an
//! interrupt would: to completion, on the same thread. A weak exchange fails when the plan says so.
//! Outside of a [`run`], the atomics are plain ones.

#![allow(unsafe_code)]

use core::cell::Cell;
use core::ptr;
use std::thread_local;

pub mod atomic;
pub mod steps;

/// What happens during the first call of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The accesses before which the other two calls run, in order. Accesses are counted over all
    /// calls that have begun. A call that starts while the previous one is in progress pre-empts
    /// that call.
    pub at: [u64; 2],
    /// The weak exchanges that fail spuriously, one bit each, from the lowest bit on.
    pub failing: u64,
}

impl Plan {
    /// No pre-emption and no spurious failure.
    pub const QUIET: Self = Self {
        at: [u64::MAX; 2],
        failing: 0,
    };
}

/// The state of a run on this thread.
struct Run {
    accesses: Cell<u64>,
    /// The access before which the next call runs.
    next: Cell<u64>,
    /// The number of other calls that have begun.
    begun: Cell<usize>,
    at: Cell<[u64; 2]>,
    failing: Cell<u64>,
    others: Cell<*const dyn Fn(usize)>,
}

fn none(_: usize) {}

thread_local! {
    static RUN: Run = const {
        Run {
            accesses: Cell::new(0),
            next: Cell::new(u64::MAX),
            begun: Cell::new(2),
            at: Cell::new([u64::MAX; 2]),
            failing: Cell::new(0),
            others: Cell::new(ptr::from_ref::<fn(usize)>(&(none as fn(usize))) as *const dyn Fn(usize)),
        }
    };
}

/// Runs `first`, and runs `other(0)` and `other(1)` at the accesses of the plan. A call whose
/// access is never reached runs after `first`. Returns the number of accesses.
///
/// Runs do not nest.
pub fn run(plan: Plan, first: impl FnOnce(), other: &dyn Fn(usize)) -> u64 {
    RUN.with(|run| {
        // SAFETY: only `preempt` dereferences the pointer, and only before `Over` is dropped below.
        // `other` outlives this function.
        let others = unsafe {
            core::mem::transmute::<&(dyn Fn(usize) + '_), &'static (dyn Fn(usize) + 'static)>(other)
        };
        run.others.set(others);
        run.accesses.set(0);
        run.begun.set(0);
        run.at.set(plan.at);
        run.failing.set(plan.failing);
        run.next.set(plan.at[0]);
        let over = Over(run);
        first();
        let accesses = run.accesses.get();
        drop(over);
        let begun = run.begun.get();
        run.begun.set(2);
        (begun..2).for_each(other);
        accesses
    })
}

/// Runs `calls` without counting their accesses, so that nothing pre-empts them.
pub fn whole(calls: impl FnOnce()) {
    RUN.with(|run| {
        let before = (
            run.next.replace(u64::MAX),
            run.accesses.get(),
            run.failing.replace(0),
        );
        calls();
        run.next.set(before.0);
        run.accesses.set(before.1);
        run.failing.set(before.2);
    });
}

struct Over<'a>(&'a Run);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.next.set(u64::MAX);
        self.0.failing.set(0);
    }
}

/// Counts an access, before it is made.
#[inline]
fn access() {
    RUN.with(|run| {
        let number = run.accesses.get();
        run.accesses.set(number + 1);
        if number == run.next.get() {
            preempt(run, number);
        }
    });
}

#[cold]
fn preempt(run: &Run, number: u64) {
    let at = run.at.get();
    while let Some(&due) = at.get(run.begun.get())
        && due <= number
    {
        let index = run.begun.get();
        run.begun.set(index + 1);
        run.next.set(at.get(index + 1).copied().unwrap_or(u64::MAX));
        // SAFETY: `others` is set by `run`. A call is due only while `first` runs in it, so `other`
        // is still borrowed.
        unsafe { (*run.others.get())(index) };
    }
}

/// Returns whether the next weak exchange fails spuriously.
#[inline]
fn fails() -> bool {
    RUN.with(|run| {
        let failing = run.failing.get();
        run.failing.set(failing >> 1);
        failing & 1 == 1
    })
}
