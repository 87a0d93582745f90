//! A minimal executor: one task, a flag that its waker sets, and sleep.
#![allow(unsafe_code)]

use core::pin::Pin;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{Acquire, Release};
use core::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};

use crate::Board;

/// Only loads and stores: some targets have no other atomic operations.
static WOKEN: AtomicBool = AtomicBool::new(false);

fn wake(_: *const ()) {
    WOKEN.store(true, Release);
}

const CALLS: RawWakerVTable = RawWakerVTable::new(|_| RAW, wake, wake, |_| {});
const RAW: RawWaker = RawWaker::new(core::ptr::null(), &CALLS);

/// A waker of the only task.
pub(crate) fn waker() -> Waker {
    // SAFETY: none of the functions uses the pointer, and all may be called from any context.
    unsafe { Waker::from_raw(RAW) }
}

/// Runs a future to its end, and sleeps while it waits. Returns how often it slept.
pub(crate) fn block_on<F: Future>(board: &dyn Board, mut future: Pin<&mut F>) -> (F::Output, u32) {
    let waker = waker();
    let mut context = Context::from_waker(&waker);
    let mut slept = 0;
    loop {
        WOKEN.store(false, Release);
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return (output, slept);
        }
        board.sleep_until(&|| WOKEN.load(Acquire));
        slept += 1;
    }
}
