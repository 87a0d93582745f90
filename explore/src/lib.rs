//! Atomics that are pre-empted: under `--cfg explore` the core takes its own from here.
//!
//! Each access first counts itself, and runs the calls that are due at its number, as an interrupt
//! would: to their end, on the same thread. A weak exchange fails when the run says so. Without a
//! [`run`], they are plain atomics.

use core::cell::Cell;
use core::ptr;

pub mod atomic;

/// What happens to a run's first call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The accesses before which the other calls come, in their order, counted over all calls that
    /// have begun. One that comes while the call before it is under way pre-empts that call.
    pub at: [u64; 2],
    /// The weak exchanges that fail though they need not, from the lowest bit on.
    pub failing: u64,
}

impl Plan {
    /// No pre-emption, and no failure.
    pub const QUIET: Self = Self {
        at: [u64::MAX; 2],
        failing: 0,
    };
}

/// A run under way, of this thread.
struct Run {
    accesses: Cell<u64>,
    /// The next access before which a call comes.
    next: Cell<u64>,
    /// Calls that have begun, beside the first one.
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

/// Runs `first`, and `other(0)` and `other(1)` as the plan says: those whose access never comes,
/// after it. Returns how many accesses there were.
///
/// Does not nest.
pub fn run(plan: Plan, first: impl FnOnce(), other: &dyn Fn(usize)) -> u64 {
    RUN.with(|run| {
        // SAFETY: the reference is used by `preempt` alone, and only until `Over` is dropped below.
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

/// Runs `calls`, uncounted: nothing comes in between.
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

/// Before each access.
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
        // SAFETY: `run` has set it, and is under way.
        unsafe { (*run.others.get())(index) };
    }
}

/// Whether the next weak exchange fails.
#[inline]
fn fails() -> bool {
    RUN.with(|run| {
        let failing = run.failing.get();
        run.failing.set(failing >> 1);
        failing & 1 == 1
    })
}
