//! What keeps two contexts out of a queue's list at once.
#![allow(unsafe_code)]

#[cfg(feature = "critical-section")]
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// A lock without data, for a [`Queue`](crate::Queue)'s list: chosen by where its waits are polled and dropped.
///
/// | | waits may be polled and dropped | who releases permits |
/// |---|---|---|
/// | [`ThreadLock`] | by threads | any thread |
/// | [`InterruptLock`](crate::InterruptLock) | by anything, interrupts too | any thread or interrupt |
///
/// A release never waits for the lock: it leaves a mark, which the lock's holder finds.
///
/// Another one is yours to name, say a spin lock, where every context that polls waits runs on a core of its own:
///
/// ```
/// use core::hint::spin_loop;
/// use core::sync::atomic::{AtomicBool, Ordering::{Acquire, Release}};
/// use portcullis_async::{Queue, RawLock};
/// use portcullis_core::{Concurrency, ManualClock};
///
/// struct Spinning(AtomicBool);
///
/// // SAFETY: of those that exchange `false` for `true` one succeeds, until it has stored `false`. (One that panics keeps it for ever.)
/// unsafe impl RawLock for Spinning {
///     const OPEN: Self = Self(AtomicBool::new(false));
///
///     fn lock<T>(&self, work: impl FnOnce() -> T) -> T {
///         while self.0.compare_exchange_weak(false, true, Acquire, Acquire).is_err() {
///             spin_loop();
///         }
///         let outcome = work();
///         self.0.store(false, Release);
///         outcome
///     }
///
///     fn try_lock<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
///         self.0.compare_exchange(false, true, Acquire, Acquire).ok()?;
///         let outcome = work();
///         self.0.store(false, Release);
///         Some(outcome)
///     }
/// }
///
/// let queue: Queue<_, _, Spinning> = Queue::new(Concurrency::new(1), ManualClock::new(), 9);
/// assert!(futures_executor::block_on(queue.acquire(1)).is_ok());
/// ```
///
/// # Safety
///
/// While a closure runs in `lock` or `try_lock`, none runs in either of them on the same lock: on no other thread, in no interrupt, and not within the
/// first. What one has written happens before the next one.
pub unsafe trait RawLock {
    /// An open lock.
    #[allow(
        clippy::declare_interior_mutable_const,
        reason = "to build a static from, not to be used in place"
    )]
    const OPEN: Self;

    /// Runs `work` alone, after whoever is at it.
    fn lock<T>(&self, work: impl FnOnce() -> T) -> T;

    /// Runs `work` alone, if nobody is at it. Never waits for another thread or context to go on.
    fn try_lock<T>(&self, work: impl FnOnce() -> T) -> Option<T>;
}

/// Parks a thread that has to wait.
///
/// Not for interrupt or signal handlers that poll or drop waits: one that pre-empts the holder would wait for ever. (Releasing in one is
/// allowed.)
///
/// ```
/// use portcullis_async::{RawLock, ThreadLock};
/// let lock = ThreadLock::OPEN;
/// assert_eq!(lock.lock(|| lock.try_lock(|| 1)), None);
/// assert_eq!(lock.try_lock(|| 1), Some(1));
/// ```
#[cfg(all(feature = "std", not(loom)))]
#[derive(Debug)]
pub struct ThreadLock(std::sync::Mutex<()>);

// SAFETY: a mutex's guard is held while `work` runs.
#[cfg(all(feature = "std", not(loom)))]
unsafe impl RawLock for ThreadLock {
    const OPEN: Self = Self(std::sync::Mutex::new(()));

    fn lock<T>(&self, work: impl FnOnce() -> T) -> T {
        // A panic under the lock comes from a limiter, between two changes of the list, which is whole then.
        let _guard = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        work()
    }

    fn try_lock<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        let _guard = match self.0.try_lock() {
            Ok(guard) => guard,
            Err(std::sync::TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(std::sync::TryLockError::WouldBlock) => return None,
        };
        Some(work())
    }
}

/// Keeps interrupts out, by the target's critical section.
///
/// ```
/// use portcullis_async::{InterruptLock, RawLock};
/// assert_eq!(InterruptLock::OPEN.lock(|| 1), 1);
/// ```
///
/// A limiter or a clock that comes back to the queue which asks it would be let in by the critical section: that panics.
#[cfg(feature = "critical-section")]
#[derive(Debug)]
pub struct InterruptLock {
    /// Written in a critical section alone.
    held: AtomicBool,
}

#[cfg(feature = "critical-section")]
impl InterruptLock {
    fn enter<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        struct Held<'l>(&'l AtomicBool);

        impl Drop for Held<'_> {
            fn drop(&mut self) {
                self.0.store(false, Relaxed);
            }
        }

        critical_section::with(|_| {
            if self.held.load(Relaxed) {
                return None;
            }
            self.held.store(true, Relaxed);
            let _held = Held(&self.held);
            Some(work())
        })
    }
}

// SAFETY: a critical section excludes all others, and orders them; its own context is kept out by `held`.
#[cfg(feature = "critical-section")]
unsafe impl RawLock for InterruptLock {
    const OPEN: Self = Self { held: AtomicBool::new(false) };

    fn lock<T>(&self, work: impl FnOnce() -> T) -> T {
        self.enter(work).expect("a limiter or a clock does not use the queue that asks it")
    }

    fn try_lock<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        self.enter(work)
    }
}
