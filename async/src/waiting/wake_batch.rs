#![allow(unsafe_code)]

use core::mem::{self, MaybeUninit};
use core::task::Waker;

use crate::waiting::panics::Panic;

/// Wakers to be run once the lock is free, in their order: those of waits, then those of drivers.
/// All of them run, also if one panics; `resume` lets the first panic go on afterwards.
///
/// Places `first` to `after` are filled; nothing is done for the others.
pub(crate) struct WakeBatch {
    wakers: [MaybeUninit<Waker>; Self::ROOM],
    first: usize,
    after: usize,
    attendant: Option<Waker>,
    drivers: [Option<Waker>; 2],
    /// The waker of a driver has panicked, which may so have learned of nothing.
    lost: bool,
    panic: Panic,
}

impl WakeBatch {
    /// How many waits are settled before their wakers run. Under loom, fewer.
    const ROOM: usize = if cfg!(loom) { 1 } else { 16 };

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

    /// There is room.
    pub(crate) fn push(&mut self, waker: Option<Waker>) {
        if let Some(waker) = waker
            && let Some(place) = self.wakers.get_mut(self.after)
        {
            place.write(waker);
            self.after += 1;
        }
    }

    /// The queue's own waker is to be run.
    pub(crate) fn tell_attendant(&mut self, waker: Waker) {
        self.attendant = Some(waker);
    }

    /// The waker of a driver is to be run: of a task, or of a thread.
    pub(crate) fn tell_driver(&mut self, waker: Waker) {
        let [task, thread] = &mut self.drivers;
        *(if task.is_none() { task } else { thread }) = Some(waker);
    }

    pub(crate) const fn are_left(&self) -> bool {
        self.first < self.after
            || self.attendant.is_some()
            || self.drivers[0].is_some()
            || self.drivers[1].is_some()
    }

    /// Runs them all.
    #[inline]
    pub(crate) fn wake(&mut self) {
        while self.are_left() {
            // Each turn runs one of them at least.
            let mut panic = mem::replace(&mut self.panic, Panic::NONE);
            panic.keep(|| self.run());
            self.panic = panic;
        }
        (self.first, self.after) = (0, 0);
    }

    fn run(&mut self) {
        while self.first < self.after {
            let place = &self.wakers[self.first];
            // Not a second time, if it panics.
            self.first += 1;
            // SAFETY: filled, as it was before `after`, and read once, as `first` is behind it now.
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

    /// Whether the waker of a driver has panicked since this was last asked.
    pub(crate) const fn has_lost_one(&mut self) -> bool {
        mem::replace(&mut self.lost, false)
    }

    /// Lets the first panic go on, now that all is done.
    pub(crate) fn resume(&mut self) {
        self.panic.resume();
    }
}

impl Drop for WakeBatch {
    #[inline(always)]
    fn drop(&mut self) {
        // What is left if a limiter or a clock has panicked.
        if self.are_left() {
            self.wake();
        }
    }
}
