//! A lock and the data that it guards.

use crate::lock::RawLock;
use crate::sync::cell::UnsafeCell;
use crate::sync::const_unless_loom;

/// Data that only the holder of the lock can access.
pub(crate) struct Mutex<R, T> {
    lock: R,
    data: UnsafeCell<T>,
}

// SAFETY: the lock passes the data from one holder to the next.
unsafe impl<R: Sync, T: Send> Sync for Mutex<R, T> {}

impl<R, T> Mutex<R, T> {
    const_unless_loom! {
        pub(crate) const fn new(lock: R, data: T) -> Self {
            Self {
                lock,
                data: UnsafeCell::new(data),
            }
        }
    }
}

impl<R: RawLock, T> Mutex<R, T> {
    /// Waits for the lock and runs `work` on the data.
    #[inline]
    pub(crate) fn lock<U>(&self, work: impl FnOnce(&mut T) -> U) -> U {
        // SAFETY: the lock is held, and the reference does not outlive `work`.
        self.lock
            .lock(|| self.data.with_mut(|data| work(unsafe { &mut *data })))
    }

    /// Runs `work` on the data. Returns `None` if the lock is held.
    #[inline]
    pub(crate) fn try_lock<U>(&self, work: impl FnOnce(&mut T) -> U) -> Option<U> {
        // SAFETY: as in `lock`.
        self.lock
            .try_lock(|| self.data.with_mut(|data| work(unsafe { &mut *data })))
    }
}
