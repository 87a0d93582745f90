//! Locks that guard the wait lists of a queue.
#![allow(unsafe_code)]

pub(crate) mod mutex;

#[cfg(feature = "critical-section")]
use core::sync::atomic::AtomicBool;
#[cfg(any(
    feature = "critical-section",
    all(feature = "std", not(portcullis_loom))
))]
use core::sync::atomic::Ordering::Relaxed;
#[cfg(all(feature = "std", not(portcullis_loom)))]
use core::sync::atomic::Ordering::SeqCst;
#[cfg(all(feature = "std", not(portcullis_loom)))]
use core::sync::atomic::{AtomicU32, AtomicUsize};

#[cfg(all(feature = "std", not(portcullis_loom)))]
use crate::driving::sleep;

/// A lock without data. It guards the wait lists of a [`Queue`](crate::Queue).
///
/// A *wait* is a future that waits for permits, or a blocking call. A *context* is a thread, or an
/// interrupt or signal handler. Choose the lock by the contexts in which waits are polled and
/// dropped:
///
/// | | waits are polled and dropped by | permits are released by |
/// |---|---|---|
/// | [`ThreadLock`] | threads | any thread or signal handler |
/// | `InterruptLock` | threads and interrupts | any thread or interrupt |
///
/// A release never waits for the lock. If the lock is held, the release sets a bit. The holder
/// reads the bit after it has unlocked, and grants the released permits. A release also runs
/// wakers. In a handler that must not run them, use
/// [`Queue::release_later`](crate::Queue::release_later).
///
/// **Cost.** While the queue holds the lock, it calls its limiter and its clock, and grants or
/// rejects at most 16 requests. It runs no waker, no hook and no timer until it has unlocked.
///
/// Other locks can implement this trait. This example is a spin lock. It suits contexts that each
/// run on a core of their own, so that none pre-empts another:
///
/// ```
/// use core::hint::spin_loop;
/// use core::sync::atomic::{AtomicBool, Ordering::{Acquire, Release}};
/// use portcullis_async::{Queue, RawLock};
/// use portcullis_core::{Concurrency, ManualClock};
///
/// struct Spinning(AtomicBool);
///
/// // SAFETY: after one compare-exchange has stored `true`, all others fail until `false` is
/// // stored. If `work` panics, the lock stays held (rule 4).
/// unsafe impl RawLock for Spinning {
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
/// let lock = Spinning(AtomicBool::new(false));
/// let queue = Queue::with_lock(Concurrency::new(1), ManualClock::new(), 9, lock);
/// assert!(futures_executor::block_on(queue.acquire(1)).is_ok());
/// ```
///
/// # Safety
///
/// The queue accesses its wait lists inside the closures that it passes to `lock` and `try_lock`,
/// with no other synchronization. An implementation that breaks rule 1, 2 or 3 can cause undefined
/// behaviour. It must guarantee for each lock value:
///
/// 1. **Exclusion.** At most one closure runs at a time. While a closure runs, calls from other
///    threads, from interrupt or signal handlers, and from within the closure itself run no other
///    closure. If `lock` is called by a handler that has pre-empted the holder, or from within the
///    closure, it may panic or block forever.
/// 2. **Ordering.** Each closure happens before the next one: unlocking is at least a `Release`
///    operation, and locking at least an `Acquire` operation.
/// 3. **Execution.** The closure runs on the calling thread and completes before the method
///    returns. If `try_lock` returns `None`, its closure has not run.
/// 4. **Panics.** If a closure panics, the panic continues in the caller. Afterwards the lock is
///    either free, or it stays held. If it stays held, no later wait of this queue ends.
/// 5. **No failure without a holder.** `try_lock` returns `None` only if the lock is held.
///
///    A lock whose state is one atomic word meets this rule if it unlocks with one write to that
///    word, and `try_lock` returns `None` only after it has read there that the lock is held. Use
///    `compare_exchange`; `compare_exchange_weak` can fail although the lock is free.
///
///    Any other lock must guarantee this. One thread unlocks, and then executes a `SeqCst` fence.
///    Later, another thread executes a `SeqCst` fence, and then calls `try_lock`. This `try_lock`
///    does not return `None` because of the first thread: it observes that the first thread has
///    unlocked.
///
///    If a lock breaks this rule, a released permit may wake no waiter.
/// 6. **No waiting in `try_lock`.** `try_lock` never waits for a context that the caller has
///    pre-empted, such as the holder of the lock. If it waits for other threads, releases wait for
///    them too.
pub unsafe trait RawLock {
    /// Whether all operations that lock, fail to lock or unlock are sequentially consistent
    /// (`SeqCst`).
    ///
    /// If it is `false`, the default, the queue adds `SeqCst` fences: one after it unlocks, and one
    /// before it tries a second time to lock. Set it to `true` only if all these operations are
    /// sequentially consistent. Otherwise a released permit may wake no waiter.
    const IS_SEQUENTIAL: bool = false;

    /// Waits until the lock is free, and runs `work` while it holds the lock.
    fn lock<T>(&self, work: impl FnOnce() -> T) -> T;

    /// Runs `work` while it holds the lock. Returns `None` if the lock is already held.
    fn try_lock<T>(&self, work: impl FnOnce() -> T) -> Option<T>;
}

/// A futex lock: contending threads sleep. Needs the feature `std`.
///
/// Interrupt and signal handlers must not poll or drop waits with this lock: a handler that has
/// pre-empted the holder would wait forever. Handlers may release permits.
///
/// The queue calls its limiter and its clock while it holds the lock. Both may release permits of
/// that queue. Neither may wait for its lock: `lock` panics instead of blocking forever.
///
/// ```
/// use portcullis_async::{RawLock, ThreadLock};
/// let lock = ThreadLock::new();
/// assert_eq!(lock.lock(|| lock.try_lock(|| 1)), None);
/// assert_eq!(lock.try_lock(|| 1), Some(1));
/// ```
#[cfg(all(feature = "std", not(portcullis_loom)))]
#[derive(Debug)]
pub struct ThreadLock {
    word: AtomicU32,
    /// The thread that holds the lock, or 0. Only the holder itself relies on the value.
    holder: AtomicUsize,
}

/// Free. The three states are those of the mutex in Ulrich Drepper, "Futexes are tricky" (2011).
#[cfg(all(feature = "std", not(portcullis_loom)))]
const OPEN: u32 = 0;
#[cfg(all(feature = "std", not(portcullis_loom)))]
const HELD: u32 = 1;
/// Held, and threads may be asleep.
#[cfg(all(feature = "std", not(portcullis_loom)))]
const SLEPT_AT: u32 = 2;

#[cfg(all(feature = "std", not(portcullis_loom)))]
impl Default for ThreadLock {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(feature = "std", not(portcullis_loom)))]
impl ThreadLock {
    /// Creates a lock that is free.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            word: AtomicU32::new(OPEN),
            holder: AtomicUsize::new(0),
        }
    }

    /// Runs `work` and unlocks. The caller has just locked.
    #[inline]
    fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        struct Held<'l>(&'l ThreadLock);

        impl Drop for Held<'_> {
            #[inline]
            fn drop(&mut self) {
                self.0.holder.store(0, Relaxed);
                if self.0.word.swap(OPEN, SeqCst) == SLEPT_AT {
                    sleep::wake_one(&raw const self.0.word);
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
        // A thread reads its own number only if it holds the lock: it erases the number before it
        // unlocks.
        assert!(
            self.holder.load(Relaxed) != this_thread(),
            "a limiter or clock must not wait for the queue that calls it"
        );
        // Critical sections are short, so spin before sleeping.
        for _ in 0..100 {
            core::hint::spin_loop();
            if self.word.load(Relaxed) == OPEN && self.is_taken() {
                return;
            }
        }
        while self.word.swap(SLEPT_AT, SeqCst) != OPEN {
            sleep::wait(&self.word, SLEPT_AT);
        }
    }
}

/// A number that identifies the current thread. Never 0.
#[cfg(all(feature = "std", not(portcullis_loom)))]
#[inline]
fn this_thread() -> usize {
    std::thread_local! {
        static PLACE: u8 = const { 0 };
    }
    // `PLACE` has no destructor, so it exists until the thread ends.
    PLACE.with(|place| core::ptr::from_ref(place).addr())
}

// SAFETY: only one change of the word from `OPEN` succeeds until the word is `OPEN` again. `Held`
// stores `OPEN` after `work`, also if `work` panics. `try_lock` decides by one compare-exchange of
// the word. All changes of the word are sequentially consistent.
#[cfg(all(feature = "std", not(portcullis_loom)))]
unsafe impl RawLock for ThreadLock {
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

/// A lock that keeps interrupts out by a critical section (crate `critical-section`).
///
/// The queue calls its limiter and its clock while it holds the lock. Both may release permits of
/// that queue. Neither may wait for its lock: critical sections are re-entrant, so `lock` panics
/// instead of letting the call in.
///
/// On targets with several cores, a critical section also waits until the other cores have left
/// theirs. So `try_lock` and releases wait for these cores as well.
///
/// ```
/// use portcullis_async::{InterruptLock, RawLock};
/// assert_eq!(InterruptLock::new().lock(|| 1), 1);
/// ```
#[cfg(feature = "critical-section")]
#[derive(Debug)]
pub struct InterruptLock {
    /// Only written inside a critical section.
    held: AtomicBool,
}

#[cfg(feature = "critical-section")]
impl Default for InterruptLock {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(feature = "critical-section")]
impl InterruptLock {
    /// Creates a lock that is free.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            held: AtomicBool::new(false),
        }
    }

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

// SAFETY: critical sections exclude and order each other. `held` excludes a re-entrant call from
// the same context.
#[cfg(feature = "critical-section")]
unsafe impl RawLock for InterruptLock {
    fn lock<T>(&self, work: impl FnOnce() -> T) -> T {
        self.enter(work)
            .expect("a limiter or clock must not wait for the queue that calls it")
    }

    fn try_lock<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        self.enter(work)
    }
}

/// The lock of a [`Queue`](crate::Queue) by default: [`ThreadLock`].
#[cfg(all(feature = "std", not(portcullis_loom)))]
pub type DefaultLock = ThreadLock;
/// Not a lock: without `std`, a queue is created by
/// [`Queue::with_lock`](crate::Queue#method.with_lock).
#[cfg(not(all(feature = "std", not(portcullis_loom))))]
pub type DefaultLock = ();
