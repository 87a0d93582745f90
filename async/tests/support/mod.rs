//! Futures that are polled by hand, and a lock that watches who comes in.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part")]

use core::cell::{Cell, RefCell};
use core::future::Future;
use core::pin::Pin;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::task::{Context, Poll, Waker};
use std::sync::Arc;
use std::task::Wake;

use portcullis_async::{RawLock, ThreadLock};

/// How often a task has been woken.
#[derive(Default)]
pub struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A future, and the waker that it is polled with.
pub struct Task<F: Future> {
    future: Pin<Box<F>>,
    wakes: Arc<Wakes>,
}

impl<F: Future> Task<F> {
    /// Not polled yet.
    pub fn new(future: F) -> Self {
        Self { future: Box::pin(future), wakes: Arc::default() }
    }

    /// Polled once, and pending.
    #[track_caller]
    pub fn waiting(future: F) -> Self {
        let mut task = Self::new(future);
        assert!(task.is_pending(), "has to wait");
        task
    }

    pub fn poll(&mut self) -> Poll<F::Output> {
        let waker = Waker::from(Arc::clone(&self.wakes));
        self.future.as_mut().poll(&mut Context::from_waker(&waker))
    }

    pub fn poll_with(&mut self, waker: &Waker) -> Poll<F::Output> {
        self.future.as_mut().poll(&mut Context::from_waker(waker))
    }

    #[track_caller]
    pub fn is_pending(&mut self) -> bool {
        self.poll().is_pending()
    }

    /// What came of it.
    #[track_caller]
    pub fn outcome(mut self) -> F::Output {
        match self.poll() {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => panic!("still waits"),
        }
    }

    pub fn wakes(&self) -> usize {
        self.wakes.0.load(Ordering::Relaxed)
    }

    /// Never to be polled, nor dropped.
    pub fn leak(self) {
        core::mem::forget(self.future);
    }
}

/// What comes of a future that has no need to wait.
#[track_caller]
pub fn now<F: Future>(future: F) -> F::Output {
    Task::new(future).outcome()
}

/// Calls `f` each time it is woken.
pub fn waker(f: impl Fn() + Send + Sync + 'static) -> Waker {
    struct Calls<F>(F);
    impl<F: Fn() + Send + Sync> Wake for Calls<F> {
        fn wake(self: Arc<Self>) {
            (self.0)();
        }
    }
    Waker::from(Arc::new(Calls(f)))
}

thread_local! {
    static HELD: Cell<bool> = const { Cell::new(false) };
    static BEFORE_UNLOCK: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

/// A thread's mutex that says, instead of waiting for itself, that it is held already; and that lets something happen just before it is left.
pub struct Watched(ThreadLock);

impl Watched {
    /// Whether this thread is under such a lock.
    pub fn is_held() -> bool {
        HELD.get()
    }

    /// Has `f` called while this thread is next under such a lock, after all that is done there.
    pub fn before_unlock(f: impl FnOnce() + 'static) {
        BEFORE_UNLOCK.set(Some(Box::new(f)));
    }

    fn hold<T>(work: impl FnOnce() -> T) -> T {
        struct Held;
        impl Drop for Held {
            fn drop(&mut self) {
                HELD.set(false);
            }
        }
        HELD.set(true);
        let _held = Held;
        let outcome = work();
        if let Some(f) = BEFORE_UNLOCK.take() {
            f();
        }
        outcome
    }
}

// SAFETY: as of the lock within.
unsafe impl RawLock for Watched {
    const OPEN: Self = Self(ThreadLock::OPEN);

    fn lock<T>(&self, work: impl FnOnce() -> T) -> T {
        assert!(!HELD.get(), "it would wait for itself");
        self.0.lock(|| Self::hold(work))
    }

    fn try_lock<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        self.0.try_lock(|| Self::hold(work))
    }
}
