//! Counts allocations per thread, and the bytes that are in use.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::Cell;
use std::alloc::System;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    /// The bytes that the thread has allocated and not freed, above a number that no thread reaches
    /// by freeing what other threads have allocated.
    static IN_USE: Cell<usize> = const { Cell::new(usize::MAX / 2) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: passes every call on to the system's allocator, and counts without allocating.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        let in_use = IN_USE.with(Cell::get) + layout.size();
        IN_USE.with(|bytes| bytes.set(in_use));
        PEAK.with(|peak| peak.set(peak.get().max(in_use)));
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        IN_USE.with(|in_use| in_use.set(in_use.get() - layout.size()));
        // SAFETY: the caller upholds the contract of `dealloc`.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Returns the number of allocations that this thread makes in `f`.
#[allow(dead_code, reason = "tests that include this module use a part of it")]
pub(crate) fn allocations(f: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.with(Cell::get);
    f();
    ALLOCATIONS.with(Cell::get) - before
}

/// Returns the result of `f`, and the largest number of bytes that this thread has in use at once
/// in `f`, beyond those before.
#[allow(dead_code, reason = "tests that include this module use a part of it")]
pub(crate) fn peak<T>(f: impl FnOnce() -> T) -> (T, usize) {
    let before = IN_USE.with(Cell::get);
    PEAK.with(|peak| peak.set(before));
    let result = f();
    (result, PEAK.with(Cell::get) - before)
}
