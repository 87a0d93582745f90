//! Shared parts of the queue models: a lock, clocks, tasks that wait, and the checks at the end of
//! a model.

use core::any::Any;
use core::fmt;
use core::future::Future;
use core::mem;
use core::ops::Deref;
use core::panic::AssertUnwindSafe;
use core::pin::Pin;
use core::sync::atomic::{AtomicBool as Flag, Ordering::SeqCst};
use core::task::{Context, Poll, Waker};
use std::panic::{catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex as Cell, PoisonError, TryLockError};
use std::task::Wake;

use loom::sync::Mutex;
use loom::sync::atomic::{AtomicBool, Ordering::Relaxed};
use loom::thread::JoinHandle;
use portcullis_async::{
    Acquire, DeadlineClock, Next, Order, Queue, QueueClock, QueueCounts, RawLock, ReentrantTimer,
    Rejected, Timer,
};
use portcullis_core::limiter::{
    Answer, Ask, Back, Hints, LimiterId, Read, Reading, Returned, Waiting,
};
use portcullis_core::queue::QueueLimiter;
use portcullis_core::{
    Clock, Concurrency, Denied, Lease, Limiter, ManualClock, Rate, Retry, Timeless, Timestamp,
    TokenBucket,
};

use crate::{at, turn};

/// A lock that orders as little as the contract allows. `try_lock` first reads a word, as a failing
/// exchange does, and may read a stale value. The lock survives a panic.
#[derive(Debug)]
pub struct Lock {
    held: AtomicBool,
    mutex: Mutex<()>,
}

impl Lock {
    /// Creates a lock that is not held.
    #[expect(
        clippy::new_without_default,
        reason = "a model decides when its lock is created"
    )]
    pub fn new() -> Self {
        Self {
            held: AtomicBool::new(false),
            mutex: Mutex::new(()),
        }
    }

    fn work<T>(&self, work: impl FnOnce() -> T) -> Result<T, Box<dyn Any + Send>> {
        self.held.store(true, Relaxed);
        let outcome = catch_unwind(AssertUnwindSafe(work));
        self.held.store(false, Relaxed);
        outcome
    }
}

// SAFETY: both methods hold `mutex` while `work` runs, so calls of `work` never overlap, and each
// happens before the next. `try_lock` fails only if `held` or the mutex is set by a call whose
// unlock this thread has not observed.
unsafe impl RawLock for Lock {
    fn lock<T>(&self, work: impl FnOnce() -> T) -> T {
        let guard = self.mutex.lock().unwrap_or_else(PoisonError::into_inner);
        let outcome = self.work(work);
        drop(guard);
        outcome.unwrap_or_else(|panic| resume_unwind(panic))
    }

    fn try_lock<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        if self.held.load(Relaxed) {
            return None;
        }
        let guard = match self.mutex.try_lock() {
            Ok(guard) => guard,
            // Poisoned by an unwind in another thread of the model: all of them are one system
            // thread.
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let outcome = self.work(work);
        drop(guard);
        Some(outcome.unwrap_or_else(|panic| resume_unwind(panic)))
    }
}

/// A manual clock and timer, which remembers the waker and its instant. As a timer it does not
/// order memory.
#[derive(Debug)]
pub struct Timed {
    clock: ManualClock,
    armed: Cell<Option<(Timestamp, Waker)>>,
    fails: Cell<u32>,
}

impl Timed {
    /// Creates a clock at the origin, with no waker set.
    #[expect(
        clippy::new_without_default,
        reason = "a model decides when its clock is created"
    )]
    pub fn new() -> Self {
        Self {
            clock: ManualClock::new(),
            armed: Cell::new(None),
            fails: Cell::new(0),
        }
    }

    /// Sets the time to `seconds` after the origin.
    pub fn advance_to(&self, seconds: u64) {
        self.clock.set(at(seconds));
    }

    /// Makes the next `times` calls of `wake_at` panic.
    pub fn fail(&self, times: u32) {
        *self.fails.lock().unwrap() = times;
    }

    /// Returns the instant for which the timer is set.
    pub fn armed(&self) -> Option<Timestamp> {
        self.armed.lock().unwrap().as_ref().map(|(at, _)| *at)
    }

    /// Wakes the waker, even if it is too early.
    pub fn fire(&self) {
        turn();
        let armed = self.armed.lock().unwrap().take();
        if let Some((_, waker)) = armed {
            waker.wake();
        }
    }
}

impl Clock for Timed {
    fn now(&self) -> Timestamp {
        self.clock.now()
    }
}

impl ReentrantTimer for Timed {}

impl Timer for Timed {
    fn wake_at(&self, at: Timestamp, waker: &Waker) -> Poll<()> {
        turn();
        if at <= self.now() {
            return Poll::Ready(());
        }
        let fails = {
            let mut times = self.fails.lock().unwrap();
            let less = times.saturating_sub(1);
            mem::replace(&mut *times, less) > 0
        };
        if fails {
            // Unwinds without printing a message.
            resume_unwind(Box::new("a timer's panic"));
        }
        let old = self.armed.lock().unwrap().replace((at, waker.clone()));
        drop(old);
        Poll::Pending
    }
}

/// A concurrency limit without a waiter bit: every release has to read the queue's `gate`.
#[derive(Debug)]
pub struct Unwatched(pub Concurrency);

/// Implements `Limiter` for a wrapper of a concurrency limit: the given items, and all other
/// questions as of the inner limit.
macro_rules! limiter_around {
    ($limiter:ty { $($own:item)* }) => {
        impl Limiter for $limiter {
            $($own)*
            fn read(&self, read: Read<'_>) -> Reading {
                self.0.read(read)
            }
            fn retry(&self, denied: Denied) -> Retry {
                self.0.retry(denied)
            }
            fn id(&self) -> Option<LimiterId> {
                LimiterId::of(self)
            }
            fn hints(&self) -> Hints {
                Hints::ONE_RECEIPT
            }
        }

        impl QueueLimiter for $limiter {
            const SHARED: bool = false;
        }
    };
}

limiter_around!(Unwatched {
    fn decide(&self, ask: Ask<'_>) -> Answer {
        self.0.decide(ask)
    }
    fn give_back(&self, back: Back<'_>) -> Returned {
        match back {
            Back::Watch(_) => Returned::NOTHING,
            back => Returned::from(self.0.give_back(back).refund),
        }
    }
});

/// A concurrency limit whose takes panic a given number of times.
#[derive(Debug)]
pub struct Panics(Concurrency, Arc<Cell<u32>>);

impl Panics {
    /// Creates a limit that does not panic, and a function that sets the number of takes that
    /// panic.
    pub fn new(limit: u32) -> (Self, impl Fn(u32)) {
        let times = Arc::new(Cell::new(0));
        (
            Self(Concurrency::new(limit), Arc::clone(&times)),
            move |n| *times.lock().unwrap() = n,
        )
    }
}

limiter_around!(Panics {
    fn decide(&self, ask: Ask<'_>) -> Answer {
        let panics = !ask.is_look() && {
            let mut times = self.1.lock().unwrap();
            let less = times.saturating_sub(1);
            mem::replace(&mut *times, less) > 0
        };
        if panics {
            // Unwinds without printing a message.
            resume_unwind(Box::new("a limiter's panic"));
        }
        self.0.decide(ask)
    }
    fn give_back(&self, back: Back<'_>) -> Returned {
        self.0.give_back(back)
    }
});

/// Runs `work` in a new thread.
pub fn beside<T: 'static>(work: impl FnOnce() -> T + 'static) -> JoinHandle<T> {
    loom::thread::spawn(move || {
        turn();
        work()
    })
}

/// Runs `work` on shared data in a new thread.
pub fn beside_of<S: 'static, T: 'static>(
    shared: &Arc<S>,
    work: impl FnOnce(&Arc<S>) -> T + 'static,
) -> JoinHandle<T> {
    let shared = Arc::clone(shared);
    beside(move || work(&shared))
}

/// The queue of the models.
pub type Queued<L = Concurrency, C = Timeless> = Queue<L, C, Lock>;

/// Creates a queue for up to 9 permits around `limiter`.
pub fn around<L: QueueLimiter>(limiter: L) -> Arc<Queued<L>> {
    Arc::new(Queue::with_lock(limiter, Timeless, 9, Lock::new()))
}

/// Creates a queue for up to 9 permits around a concurrency limit.
pub fn queue(limit: u32) -> Arc<Queued> {
    around(Concurrency::new(limit))
}

/// Creates a newest-first queue for up to `max_permits`.
pub fn newest_first(limit: u32, max_permits: u64) -> Arc<Queued> {
    let limiter = Concurrency::new(limit);
    Arc::new(
        Queue::with_lock(limiter, Timeless, max_permits, Lock::new())
            .with_order(Order::NewestFirst),
    )
}

/// Creates a queue with a manual timer.
pub fn timed<L: QueueLimiter>(limiter: L, order: Order) -> Arc<Queued<L, Timed>> {
    Arc::new(Queue::with_lock(limiter, Timed::new(), 9, Lock::new()).with_order(order))
}

/// Returns an empty bucket with a burst of 2 and a rate of 1 permit per second.
pub fn empty_bucket() -> TokenBucket {
    let bucket = TokenBucket::new(Rate::per_second(1), 2);
    bucket.take_at(at(0), 2).unwrap();
    bucket
}

/// Takes `n` permits, which must be available.
pub fn hold<L: QueueLimiter, C: QueueClock>(
    queue: &Arc<Queued<L, C>>,
    n: u32,
) -> Lease<Arc<Queued<L, C>>> {
    Lease::try_acquire_at(Arc::clone(queue), at(0), n).unwrap()
}

/// Whether a waiter has been woken. It orders no memory that loom knows of, so that only the queue
/// does.
#[derive(Debug)]
pub struct Woken(Flag);

impl Woken {
    /// Creates a flag that is not set.
    pub fn new() -> Arc<Self> {
        Arc::new(Self(Flag::new(false)))
    }

    /// Returns whether the waker was woken.
    pub fn is_woken(&self) -> bool {
        self.0.load(SeqCst)
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, SeqCst);
    }
}

type Wait<P> = Pin<Box<dyn Future<Output = Result<Lease<P>, Rejected>>>>;

/// A wait and its outcome.
pub struct Task<P: Deref<Target: Limiter>> {
    /// `Some` until the wait completes.
    pub wait: Option<Wait<P>>,
    /// Set by the waker of the last poll.
    pub woken: Arc<Woken>,
    /// The number of permits that it requests.
    pub n: u32,
    /// `Some` once the wait has completed.
    pub outcome: Option<Result<Lease<P>, Rejected>>,
}

impl<P: Deref<Target: Limiter>> fmt::Debug for Task<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task")
            .field("n", &self.n)
            .field("outcome", &self.outcome)
            .finish_non_exhaustive()
    }
}

impl<L: QueueLimiter + 'static, C: QueueClock + 'static> Task<Arc<Queued<L, C>>> {
    /// Creates a task that has not been polled.
    pub fn new(queue: &Arc<Queued<L, C>>, n: u32) -> Self {
        Self::of(Acquire::new(Arc::clone(queue), n), n)
    }

    /// Creates a task and polls it.
    pub fn polled(queue: &Arc<Queued<L, C>>, n: u32) -> Self {
        Self::new(queue, n).started()
    }

    /// Creates a task with a deadline at `seconds` after the origin, and polls it.
    pub fn polled_until(queue: &Arc<Queued<L, C>>, n: u32, seconds: u64) -> Self
    where
        C: DeadlineClock,
    {
        Self::of(Acquire::new(Arc::clone(queue), n).until(at(seconds)), n).started()
    }
}

impl<P: Deref<Target: Limiter>> Task<P> {
    /// Creates a task that waits for `n` permits by `wait`.
    pub fn of(wait: impl Future<Output = Result<Lease<P>, Rejected>> + 'static, n: u32) -> Self {
        Self {
            wait: Some(Box::pin(wait)),
            woken: Woken::new(),
            n,
            outcome: None,
        }
    }

    /// Polls the task for the first time.
    #[must_use]
    pub fn started(mut self) -> Self {
        self.poll();
        self
    }

    /// Polls the task with a new waker.
    pub fn poll(&mut self) {
        self.woken = Woken::new();
        self.poll_with(&Waker::from(Arc::clone(&self.woken)));
    }

    /// Polls the task with the given waker.
    pub fn poll_with(&mut self, waker: &Waker) {
        turn();
        let wait = self.wait.as_mut().expect("polled after completion");
        if let Poll::Ready(outcome) = wait.as_mut().poll(&mut Context::from_waker(waker)) {
            self.wait = None;
            self.outcome = Some(outcome);
        }
    }

    /// Returns whether the wait had not completed in the last poll.
    pub fn waits(&self) -> bool {
        self.wait.is_some()
    }

    /// Polls the task again if it was woken. Returns whether the wait has completed.
    pub fn is_served(&mut self) -> bool {
        while self.waits() && self.woken.is_woken() {
            self.poll();
        }
        !self.waits()
    }

    /// Drops the task: cancels its wait, or releases its permits.
    pub fn leave(self) {
        turn();
        drop(self);
    }

    /// Returns the number of permits that the task holds.
    pub fn permits(&self) -> u64 {
        self.outcome
            .iter()
            .flatten()
            .map(|lease| u64::from(lease.permits()))
            .sum()
    }

    /// Returns why the task was rejected.
    pub fn rejected(&self) -> Option<Rejected> {
        self.outcome
            .as_ref()
            .and_then(|outcome| outcome.as_ref().err().copied())
    }
}

/// A wait until no permit is held.
pub struct Drain(Pin<Box<dyn Future<Output = ()>>>, Arc<Woken>);

impl fmt::Debug for Drain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Drain")
            .field(&self.1)
            .finish_non_exhaustive()
    }
}

impl Drain {
    /// Polls `drained`. Returns it, and whether it has ended.
    pub fn polled(drained: impl Future<Output = ()> + 'static) -> (Self, bool) {
        let mut drain = Self(Box::pin(drained), Woken::new());
        let over = drain.poll();
        (drain, over)
    }

    /// Polls the drain with a new waker. Returns whether it has ended.
    pub fn poll(&mut self) -> bool {
        turn();
        self.1 = Woken::new();
        let waker = Waker::from(Arc::clone(&self.1));
        self.0
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_ready()
    }

    /// Polls the drain again if it was woken. Returns whether it has ended.
    pub fn is_over(&mut self) -> bool {
        self.1.is_woken() && self.poll()
    }
}

/// Checks the end of a model, when no other thread runs. `turn` has the tasks in queue order.
///
/// - Every task that was woken has an outcome.
/// - The first task that waits does so because its permits are not available.
/// - A task that holds permits holds the number that it requested.
/// - Every permit of `limit` is free or held by one of the tasks.
/// - After all tasks have been dropped, all permits are free, and the limiter's waiter bit is
///   clear.
pub fn ends_well<'t, L: QueueLimiter + 'static, C: QueueClock + 'static>(
    queue: &Arc<Queued<L, C>>,
    limit: u64,
    turn: impl IntoIterator<Item = &'t mut Task<Arc<Queued<L, C>>>>,
) {
    let (waiters, tasks) = list_ends_well(|| queue.available_at(at(0)), limit, turn);
    assert_eq!(queue.counts().waiters, waiters);
    leave_all(tasks);
    assert_eq!(
        queue.available_at(at(0)),
        limit,
        "after all tasks were dropped"
    );
    let watched = queue.change(|limiter| limiter.give_back(Back::Release { permits: 0 }).waiting);
    assert_ne!(
        watched,
        Waiting::Yes,
        "the waiter bit is set without a waiter"
    );
    has_no_waiters(queue.counts());
}

/// Checks one of several wait lists, as `ends_well` does. Returns the number of its waiters, and
/// the tasks.
pub fn list_ends_well<'t, P: Deref<Target: Limiter> + 't>(
    free: impl Fn() -> u64,
    limit: u64,
    turn: impl IntoIterator<Item = &'t mut Task<P>>,
) -> (u32, Vec<&'t mut Task<P>>) {
    let mut out = 0;
    let mut waiters = 0;
    let mut tasks: Vec<_> = turn.into_iter().collect();
    for task in &mut tasks {
        if !task.is_served() {
            assert!(
                waiters > 0 || free() < task.n.into(),
                "waits although its permits are free"
            );
            waiters += 1;
        }
        assert!(
            task.permits() == 0 || task.permits() == task.n.into(),
            "holds another number than it requested"
        );
        out += task.permits();
    }
    assert_eq!(free() + out, limit, "free and held permits");
    (waiters, tasks)
}

/// Drops all waits and all leases.
pub fn leave_all<P: Deref<Target: Limiter>>(tasks: Vec<&mut Task<P>>) {
    for task in tasks {
        task.wait = None;
        task.outcome = None;
    }
}

/// Checks that the queue has no waiters.
pub fn has_no_waiters(counts: QueueCounts) {
    assert_eq!((counts.waiters, counts.permits), (0, 0));
}

/// Checks that the timer is set for the instant that the queue returns, or an earlier one, and that
/// nothing due was left undone.
pub fn is_armed<L: QueueLimiter>(queue: &Queued<L, Timed>) {
    let (before, armed) = (queue.counts(), queue.clock().armed());
    let next = queue.advance();
    assert_eq!(queue.counts(), before, "something due was not handled");
    if let Next::At(due) = next {
        assert!(
            armed.is_some_and(|armed| armed <= due),
            "armed for {armed:?} instead of {due:?}"
        );
    }
}
