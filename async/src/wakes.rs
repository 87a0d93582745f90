#![allow(unsafe_code)]

use core::mem::MaybeUninit;
use core::task::Waker;

/// Wakers to be woken once the lines have been left, in their order; if one panics, the rest all the same.
///
/// Places `first` to `after` are filled; nothing is done for the others.
pub(crate) struct Wakes {
    /// The last three places are for those who are told that the time has changed, or that they do not drive any more.
    wakers: [MaybeUninit<Waker>; Self::ROOM + 3],
    first: usize,
    after: usize,
}

impl Wakes {
    /// How many waits are settled before their wakers run. Under loom, fewer.
    const ROOM: usize = if cfg!(loom) { 1 } else { 16 };

    #[inline(always)]
    pub(crate) const fn new() -> Self {
        Self { wakers: [const { MaybeUninit::uninit() }; Self::ROOM + 3], first: 0, after: 0 }
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

    pub(crate) fn wake(&mut self) {
        while self.first < self.after {
            let place = &self.wakers[self.first];
            // Not a second time, if it panics.
            self.first += 1;
            // SAFETY: filled, as it was before `after`, and read once, as `first` is behind it now.
            unsafe { place.assume_init_read() }.wake();
        }
        (self.first, self.after) = (0, 0);
    }
}

impl Drop for Wakes {
    #[inline(always)]
    fn drop(&mut self) {
        // What is left after one has panicked.
        if self.first < self.after {
            self.wake();
        }
    }
}
