//! Wakers to run after the lock is unlocked.
//!
//! The holder of the lock moves wakers into a batch. A full batch ends the critical section: its
//! wakers run, and the rest is granted in the next one. So no waker runs inside the lock, and the
//! time for which the lock is held is bounded.
#![allow(unsafe_code)]

use core::mem::{self, MaybeUninit};
use core::task::Waker;

use crate::waiting::panics::Panic;

/// Wakers to run after the lock is unlocked, in order: first the wakers of waiters, then those of
/// drivers. All of them run, even if one panics; `resume` then resumes the first panic.
///
/// Invariant: `wakers[first..after]` is initialised and holds the wakers that have not run yet. No
/// code reads or drops the other elements.
pub(crate) struct WakeBatch {
    wakers: [MaybeUninit<Waker>; Self::ROOM],
    first: usize,
    after: usize,
    attendant: Option<Waker>,
    drivers: [Option<Waker>; 2],
    /// Whether the waker of a driver panicked. That driver may not know that it was woken.
    lost: bool,
    panic: Panic,
}

impl WakeBatch {
    /// How many waiters are settled before their wakers run. Loom uses 1, so that its models cover
    /// full batches.
    const ROOM: usize = if cfg!(portcullis_loom) { 1 } else { 16 };

    #[inline(always)]
    pub(crate) const fn new() -> Self {
        Self {
            wakers: [const { MaybeUninit::uninit() }; Self::ROOM],
            first: 0,
            after: 0,
            attendant: None,
            drivers: [None, None],
            lost: false,
            panic: Panic::NONE,
        }
    }

    pub(crate) const fn is_full(&self) -> bool {
        self.after >= Self::ROOM
    }

    /// Adds a waker. The caller has checked that the batch is not full.
    pub(crate) fn push(&mut self, waker: Option<Waker>) {
        if let (Some(waker), Some(place)) = (waker, self.wakers.get_mut(self.after)) {
            place.write(waker);
            self.after += 1;
        }
    }

    /// Adds the queue's own waker.
    pub(crate) fn tell_attendant(&mut self, waker: Waker) {
        self.attendant = Some(waker);
    }

    /// Adds the waker of a driver: a task or a thread.
    pub(crate) fn tell_driver(&mut self, waker: Waker) {
        let [task, thread] = &mut self.drivers;
        *(if task.is_none() { task } else { thread }) = Some(waker);
    }

    /// The waker of the task that was to drive is not to be run.
    pub(crate) const fn untell_driver(&mut self) -> Option<Waker> {
        self.drivers[0].take()
    }

    pub(crate) const fn are_left(&self) -> bool {
        self.first < self.after
            || self.attendant.is_some()
            || self.drivers[0].is_some()
            || self.drivers[1].is_some()
    }

    /// Runs all wakers.
    #[inline]
    pub(crate) fn wake(&mut self) {
        while self.are_left() {
            // Each iteration runs at least one waker, so the loop ends.
            let mut panic = mem::replace(&mut self.panic, Panic::NONE);
            panic.keep(|| self.run());
            self.panic = panic;
        }
        (self.first, self.after) = (0, 0);
    }

    fn run(&mut self) {
        while self.first < self.after {
            let place = &self.wakers[self.first];
            // The waker must not run a second time if it panics, so `first` moves on before the
            // call.
            self.first += 1;
            // SAFETY: the element was in `first..after`, so it is initialised. `first` is past it
            // now, so it is read only once.
            unsafe { place.assume_init_read() }.wake();
        }
        if let Some(waker) = self.attendant.take() {
            waker.wake();
        }
        while let Some(waker) = self.drivers.iter_mut().find_map(Option::take) {
            let lost = mem::replace(&mut self.lost, true);
            waker.wake();
            self.lost = lost;
        }
    }

    /// Returns whether the waker of a driver has panicked since the last call of this method.
    pub(crate) const fn has_lost_one(&mut self) -> bool {
        mem::replace(&mut self.lost, false)
    }

    /// Resumes the first panic. To be called after all other work is done.
    pub(crate) fn resume(&mut self) {
        self.panic.resume();
    }
}

impl Drop for WakeBatch {
    #[inline(always)]
    fn drop(&mut self) {
        // Wakers are left only if a limiter or a clock panicked.
        if self.are_left() {
            self.wake();
        }
    }
}
