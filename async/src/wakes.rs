use core::task::Waker;

/// Wakers to be woken once the list has been left, in their order; if one panics, the rest all the same.
pub(crate) struct Wakes {
    /// The last two places are for those who are told that the time has changed.
    wakers: [Option<Waker>; Self::ROOM + 2],
    first: usize,
    after: usize,
}

impl Wakes {
    /// How many waits are settled before their wakers run. Under loom, fewer.
    const ROOM: usize = if cfg!(loom) { 1 } else { 16 };

    pub(crate) const fn new() -> Self {
        Self { wakers: [const { None }; Self::ROOM + 2], first: 0, after: 0 }
    }

    pub(crate) const fn is_full(&self) -> bool {
        self.after >= Self::ROOM
    }

    /// There is room.
    pub(crate) fn push(&mut self, waker: Option<Waker>) {
        if let Some(place) = self.wakers.get_mut(self.after)
            && waker.is_some()
        {
            *place = waker;
            self.after += 1;
        }
    }

    pub(crate) fn wake(&mut self) {
        while let Some(waker) = self.wakers.get_mut(self.first) {
            self.first += 1;
            if let Some(waker) = waker.take() {
                waker.wake();
            }
        }
        (self.first, self.after) = (0, 0);
    }
}

impl Drop for Wakes {
    fn drop(&mut self) {
        // What is left after one has panicked.
        self.wake();
    }
}
