//! What keeps two contexts out of a queue's list at once.
#![allow(unsafe_code)]

pub(crate) mod mutex;

#[cfg(feature = "critical-section")]
use core::sync::atomic::AtomicBool;
#[cfg(any(feature = "critical-section", all(feature = "std", not(loom))))]
use core::sync::atomic::Ordering::Relaxed;
#[cfg(all(feature = "std", not(loom)))]
use core::sync::atomic::Ordering::SeqCst;
#[cfg(all(feature = "std", not(loom)))]
use core::sync::atomic::{AtomicU32, AtomicUsize};

/// A lock without data, for a [`Queue`](crate::Queue)'s list: chosen by where its waits are polled
/// and dropped.
///
/// | | waits may be polled and dropped | who releases permits |
/// |---|---|---|
/// | [`ThreadLock`] | by threads | any thread |
/// | [`InterruptLock`](crate::InterruptLock) | by anything, interrupts too | any thread or interrupt |
///
/// A release never waits for the lock: it leaves a mark, which the lock's holder finds.
///
/// Another one is yours to name, say a spin lock, where every context that polls waits runs on a
/// core of its own:
///
/// ```
/// use core::hint::spin_loop;
/// use core::sync::atomic::{AtomicBool, Ordering::{Acquire, Release}};
/// use portcullis_async::{Queue, RawLock};
/// use portcullis_core::{Concurrency, ManualClock};
///
/// struct Spinning(AtomicBool);
///
/// // SAFETY: of those that exchange `false` for `true` one succeeds, until it has stored `false`.
/// // (One that panics keeps it for ever.)
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
/// While a closure runs in `lock` or `try_lock`, none runs in either of them on the same lock: on
/// no other thread, in no interrupt, and not within the first. What one has written happens before
/// the next one. A try fails only if the lock is held, by whoever has not let go of it before the
/// try, as far as one knows of the other.
pub unsafe trait RawLock {
    /// An open lock.
    #[allow(
        clippy::declare_interior_mutable_const,
        reason = "to build a static from, not to be used in place"
    )]
    const OPEN: Self;

    /// Whether to take it, to try it and to let go of it are sequentially consistent operations: as
    /// a rule they are not, and then the queue adds a fence. To say `true` where they are not loses
    /// wake-ups.
    const IS_SEQUENTIAL: bool = false;

    /// Runs `work` alone, after whoever is at it.
    fn lock<T>(&self, work: impl FnOnce() -> T) -> T;

    /// Runs `work` alone, if nobody is at it. Never waits for another thread or context to go on.
    fn try_lock<T>(&self, work: impl FnOnce() -> T) -> Option<T>;
}

/// Has a thread sleep that has to wait.
///
/// Not for interrupt or signal handlers that poll or drop waits: one that pre-empts the holder
/// would wait for ever. (Releasing in one is allowed.)
///
/// The queue asks its limiter and its clock under the lock. One that waits for the lock of the
/// queue which asks it would wait for itself: that panics. (It may release permits.)
///
/// ```
/// use portcullis_async::{RawLock, ThreadLock};
/// let lock = ThreadLock::OPEN;
/// assert_eq!(lock.lock(|| lock.try_lock(|| 1)), None);
/// assert_eq!(lock.try_lock(|| 1), Some(1));
/// ```
#[cfg(all(feature = "std", not(loom)))]
#[derive(Debug)]
pub struct ThreadLock {
    word: AtomicU32,
    /// The thread that holds it, as far as that is of interest to itself; else 0.
    holder: AtomicUsize,
}

/// Drepper's states, "Futexes are tricky" (2011).
#[cfg(all(feature = "std", not(loom)))]
const OPEN: u32 = 0;
#[cfg(all(feature = "std", not(loom)))]
const HELD: u32 = 1;
/// Held, and somebody sleeps.
#[cfg(all(feature = "std", not(loom)))]
const SLEPT_AT: u32 = 2;

#[cfg(all(feature = "std", not(loom)))]
impl ThreadLock {
    /// Under the lock that has just been taken.
    #[inline]
    fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        struct Held<'l>(&'l ThreadLock);

        impl Drop for Held<'_> {
            #[inline]
            fn drop(&mut self) {
                self.0.holder.store(0, Relaxed);
                if self.0.word.swap(OPEN, SeqCst) == SLEPT_AT {
                    atomic_wait::wake_one(&raw const self.0.word);
                }
            }
        }

        self.holder.store(this_thread(), Relaxed);
        let _held = Held(self);
        work()
    }

    #[inline]
    fn is_taken(&self) -> bool {
        self.word
            .compare_exchange(OPEN, HELD, SeqCst, SeqCst)
            .is_ok()
    }

    #[cold]
    fn wait(&self) {
        // A thread that holds it has written so itself, and erases it before it lets go.
        assert!(
            self.holder.load(Relaxed) != this_thread(),
            "a limiter or a clock does not wait for the queue that asks it: it would wait for itself"
        );
        // What is done under it is short.
        for _ in 0..100 {
            core::hint::spin_loop();
            if self.word.load(Relaxed) == OPEN && self.is_taken() {
                return;
            }
        }
        while self.word.swap(SLEPT_AT, SeqCst) != OPEN {
            atomic_wait::wait(&self.word, SLEPT_AT);
        }
    }
}

/// A number of the thread's own, other than 0.
#[cfg(all(feature = "std", not(loom)))]
#[inline]
fn this_thread() -> usize {
    std::thread_local! {
        static PLACE: u8 = const { 0 };
    }
    // It has nothing to drop, and so is there as long as the thread is.
    PLACE.with(|place| core::ptr::from_ref(place).addr())
}

// SAFETY: of those that change the word from `OPEN` one succeeds, until it is `OPEN` again, which
// is after `work`, also if that panics. All changes are sequentially consistent.
#[cfg(all(feature = "std", not(loom)))]
unsafe impl RawLock for ThreadLock {
    const OPEN: Self = Self {
        word: AtomicU32::new(OPEN),
        holder: AtomicUsize::new(0),
    };
    const IS_SEQUENTIAL: bool = true;

    #[inline]
    fn lock<T>(&self, work: impl FnOnce() -> T) -> T {
        if !self.is_taken() {
            self.wait();
        }
        self.run(work)
    }

    #[inline]
    fn try_lock<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        self.is_taken().then(|| self.run(work))
    }
}

/// Keeps interrupts out, by the target's critical section.
///
/// ```
/// use portcullis_async::{InterruptLock, RawLock};
/// assert_eq!(InterruptLock::OPEN.lock(|| 1), 1);
/// ```
///
/// A limiter or a clock that comes back to the queue which asks it would be let in by the critical
/// section: that panics.
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

// SAFETY: a critical section excludes all others, and orders them; its own context is kept out by
// `held`.
#[cfg(feature = "critical-section")]
unsafe impl RawLock for InterruptLock {
    const OPEN: Self = Self {
        held: AtomicBool::new(false),
    };

    fn lock<T>(&self, work: impl FnOnce() -> T) -> T {
        self.enter(work)
            .expect("a limiter or a clock does not use the queue that asks it")
    }

    fn try_lock<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        self.enter(work)
    }
}
