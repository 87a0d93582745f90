//! Queues with a manual clock, futures that are polled by hand, and a lock that checks its callers.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part")]

pub mod random;

use core::cell::{Cell, RefCell};
use core::future::Future;
use core::pin::Pin;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::sync::{Arc, Mutex};
use std::task::Wake;

use portcullis_async::{
    Next, Order, Queue, QueueClock, RawLock, ReentrantTimer, Rejected, ThreadLock, Timer,
};
use portcullis_core::limiter::{Answer, Ask, Back, Read, Reading, Returned};
use portcullis_core::queue::QueueLimiter;
use portcullis_core::{Clock, Concurrency, Denied, Lease, Limiter, ManualClock, Retry, Timestamp};

pub const START: Timestamp = Timestamp::ZERO;
pub const SECOND: Duration = Duration::from_secs(1);

/// A queue with a manual clock.
pub type Manual<L = Concurrency> = Queue<L, Hand>;
pub type Shared<L = Concurrency> = Arc<Manual<L>>;

pub fn queue<L: QueueLimiter>(limiter: L, max_permits: u64) -> Manual<L> {
    Queue::new(limiter, Hand::new(), max_permits)
}

/// A queue that only `advance` drives.
pub type Undriven<L = Concurrency> = Queue<L, ManualClock>;

pub fn undriven<L: QueueLimiter>(limiter: L, max_permits: u64) -> Undriven<L> {
    Queue::new(limiter, ManualClock::new(), max_permits)
}

/// Sets the clock, and handles each instant at which something is due until then.
pub fn run_to<L: QueueLimiter>(queue: &Undriven<L>, to: Timestamp) {
    while let Next::At(at) = queue.advance() {
        if at > to {
            break;
        }
        queue.clock().set(at);
    }
    queue.clock().set(to);
    queue.advance();
}

pub fn newest_first<L: QueueLimiter>(limiter: L, max_permits: u64) -> Manual<L> {
    queue(limiter, max_permits).with_order(Order::NewestFirst)
}

/// The permits that the limiter has now.
pub fn available<L: QueueLimiter, C: QueueClock>(queue: &Queue<L, C>) -> u64 {
    queue.available_at(queue.clock().now())
}

/// The comparable part of an outcome; a lease is dropped.
pub fn permits<P>(outcome: Result<Lease<P>, Rejected>) -> Result<u32, Rejected>
where
    P: core::ops::Deref,
    P::Target: Limiter,
{
    outcome.map(|lease| lease.permits())
}

/// Permits of which one is released right after a denial, once `frees` is set: as if by another
/// thread.
#[derive(Debug)]
pub struct FreesOnDenial {
    permits: Concurrency,
    pub frees: Arc<AtomicBool>,
}

impl FreesOnDenial {
    pub fn new(permits: u32, frees: bool) -> Self {
        Self {
            permits: Concurrency::new(permits),
            frees: Arc::new(AtomicBool::new(frees)),
        }
    }
}

impl Limiter for FreesOnDenial {
    fn decide(&self, ask: Ask<'_>) -> Answer {
        let (now, n) = (ask.now(), ask.permits());
        if ask.is_look() {
            return ask.looked(self.available_at(now), || u64::MAX);
        }
        let taken = self.permits.take_at(now, n);
        if taken.is_err() && self.frees.swap(false, Ordering::Relaxed) {
            Limiter::release(&self.permits, 1);
        }
        taken.into()
    }

    fn give_back(&self, back: Back<'_>) -> Returned {
        match back {
            Back::Refund {
                permits, receipt, ..
            } => {
                self.release(permits);
                receipt.refunded(0).into()
            }
            back => self.permits.give_back(back),
        }
    }

    fn read(&self, read: Read<'_>) -> Reading {
        self.permits.read(read)
    }

    fn retry(&self, denied: Denied) -> Retry {
        Limiter::retry(&self.permits, denied)
    }
}

impl QueueLimiter for FreesOnDenial {
    const SHARED: bool = false;
}

/// A timer with a manual clock. Moving that clock directly wakes no waker.
#[derive(Debug, Default)]
pub struct Hand {
    clock: ManualClock,
    alarm: Mutex<Option<(Timestamp, Waker)>>,
    armed: Mutex<Vec<Timestamp>>,
}

impl Hand {
    pub const fn new() -> Self {
        Self {
            clock: ManualClock::new(),
            alarm: Mutex::new(None),
            armed: Mutex::new(Vec::new()),
        }
    }

    /// The instant of the next wake-up.
    pub fn alarm(&self) -> Option<Timestamp> {
        self.alarm.lock().unwrap().as_ref().map(|(at, _)| *at)
    }

    /// All instants that it was armed for so far.
    pub fn armed(&self) -> Vec<Timestamp> {
        self.armed.lock().unwrap().clone()
    }

    /// Sets the time, and wakes once if the alarm is due by then; if the alarm is earlier, it is
    /// late.
    pub fn jump(&self, to: Timestamp) {
        self.clock.set(to);
        let due = self.alarm.lock().unwrap().take_if(|(at, _)| *at <= to);
        if let Some((_, waker)) = due {
            waker.wake();
        }
    }

    /// Advances the time, and wakes at each instant for which it is armed in the meantime.
    pub fn run(&self, to: Timestamp) {
        while let Some(at) = self.alarm().filter(|at| *at <= to) {
            self.jump(at);
        }
        self.jump(to);
    }
}

impl core::ops::Deref for Hand {
    type Target = ManualClock;

    fn deref(&self) -> &ManualClock {
        &self.clock
    }
}

impl Clock for Hand {
    fn now(&self) -> Timestamp {
        self.clock.now()
    }
}

impl ReentrantTimer for Hand {}

impl Timer for Hand {
    fn wake_at(&self, at: Timestamp, waker: &Waker) -> Poll<()> {
        if at <= self.now() {
            return Poll::Ready(());
        }
        self.armed.lock().unwrap().push(at);
        let old = self.alarm.lock().unwrap().replace((at, waker.clone()));
        drop(old);
        Poll::Pending
    }
}

impl ReentrantTimer for &Hand {}

impl Timer for &Hand {
    fn wake_at(&self, at: Timestamp, waker: &Waker) -> Poll<()> {
        (**self).wake_at(at, waker)
    }
}

/// Counts the wake-ups of a task.
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
    /// Creates a task that is not polled yet.
    pub fn new(future: F) -> Self {
        Self {
            future: Box::pin(future),
            wakes: Arc::default(),
        }
    }

    /// Creates a task, polls it once, and expects it to wait.
    #[track_caller]
    pub fn waiting(future: F) -> Self {
        let mut task = Self::new(future);
        assert!(task.is_pending(), "must wait");
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

    /// Returns the outcome.
    #[track_caller]
    pub fn outcome(mut self) -> F::Output {
        match self.poll() {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => panic!("the task still waits"),
        }
    }

    pub fn future(&self) -> &F {
        &self.future
    }

    pub fn wakes(&self) -> usize {
        self.wakes.0.load(Ordering::Relaxed)
    }

    /// Polls the task if it was woken. Returns the outcome once it has one.
    pub fn settled(&mut self) -> Option<F::Output> {
        if self.wakes.0.swap(0, Ordering::Relaxed) == 0 {
            return None;
        }
        match self.poll() {
            Poll::Ready(outcome) => Some(outcome),
            Poll::Pending => None,
        }
    }

    /// Has the task polled by the next call of `settled`.
    pub fn start(&self) {
        self.wakes.wake_by_ref();
    }

    /// Leaks the future: it is neither polled nor dropped again.
    pub fn leak(self) {
        leaks(&*self.future);
        core::mem::forget(self.future);
    }
}

/// Leaks a value on purpose.
pub fn leaked<T>(value: Box<T>) -> &'static T {
    let value = Box::leak(value);
    leaks(value);
    value
}

/// Tells Miri that the allocation of `value`, and what that refers to, is leaked on purpose.
fn leaks<T>(value: &T) {
    #[cfg(miri)]
    {
        unsafe extern "Rust" {
            fn miri_static_root(start: *const u8);
        }
        // SAFETY: Miri has the function, and `value` is the start of an allocation.
        unsafe { miri_static_root(core::ptr::from_ref(value).cast()) }
    }
    _ = value;
}

/// The outcome of a future that does not need to wait.
#[track_caller]
pub fn now<F: Future>(future: F) -> F::Output {
    Task::new(future).outcome()
}

/// A waker that calls `f` each time it wakes.
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

/// A thread's mutex that panics, instead of waiting for itself, if it is already held; and that can
/// run a function just before it is unlocked.
pub struct Watched(ThreadLock);

impl Watched {
    pub const fn new() -> Self {
        Self(ThreadLock::new())
    }

    /// Whether this thread holds such a lock.
    pub fn is_held() -> bool {
        HELD.get()
    }

    /// Calls `f` at the end of this thread's next critical section of such a lock.
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

// SAFETY: as for the inner lock.
unsafe impl RawLock for Watched {
    fn lock<T>(&self, work: impl FnOnce() -> T) -> T {
        assert!(!HELD.get(), "it would wait for itself");
        self.0.lock(|| Self::hold(work))
    }

    fn try_lock<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        self.0.try_lock(|| Self::hold(work))
    }
}
