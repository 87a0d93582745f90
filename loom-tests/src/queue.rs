//! What the models of queues have in common: a lock, clocks, tasks that wait, and how it all has to
//! end.

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
    Acquire, Drained, Next, Order, Queue, QueueCounts, RawLock, Rejected, Timer,
};
use portcullis_core::{
    Clock, Concurrency, Denied, Idle, Lease, Limiter, LimiterId, ManualClock, QueueLimiter, Rate,
    Receipt, Refund, Retry, Timestamp, TokenBucket, Waiting,
};

use crate::{at, turn};

/// A lock as weak as any: a try looks at a word first, as an exchange does that fails, and may find
/// there what was long ago. It outlives a panic.
#[derive(Debug)]
pub struct Lock {
    held: AtomicBool,
    mutex: Mutex<()>,
}

impl Lock {
    /// An open lock.
    #[expect(
        clippy::new_without_default,
        reason = "a model says when its lock comes into being"
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

// SAFETY: the mutex is held while `work` runs.
unsafe impl RawLock for Lock {
    const OPEN: Self = panic!("loom's mutex cannot be built in a constant");

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
            // Another thread of the model may unwind, which is this one to the system.
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let outcome = self.work(work);
        drop(guard);
        Some(outcome.unwrap_or_else(|panic| resume_unwind(panic)))
    }
}

/// A clock that stands, without an atomic.
#[derive(Debug)]
pub struct Still;

impl Clock for Still {
    fn now(&self) -> Timestamp {
        at(0)
    }
}

/// A clock that is moved by hand, and remembers whom to wake, and when. As a timer it orders no
/// memory.
#[derive(Debug)]
pub struct Timed {
    clock: ManualClock,
    armed: Cell<Option<(Timestamp, Waker)>>,
    fails: Cell<u32>,
}

impl Timed {
    /// At the origin, for nobody.
    #[expect(
        clippy::new_without_default,
        reason = "a model says when its clock comes into being"
    )]
    pub fn new() -> Self {
        Self {
            clock: ManualClock::new(),
            armed: Cell::new(None),
            fails: Cell::new(0),
        }
    }

    /// Moves the time on to so many seconds.
    pub fn advance_to(&self, seconds: u64) {
        self.clock.set(at(seconds));
    }

    /// Panics so often when it is asked to wake at an instant.
    pub fn fail(&self, times: u32) {
        *self.fails.lock().unwrap() = times;
    }

    /// When it will wake somebody.
    pub fn armed(&self) -> Option<Timestamp> {
        self.armed.lock().unwrap().as_ref().map(|(at, _)| *at)
    }

    /// Wakes, be it too early.
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
            // Without the message.
            resume_unwind(Box::new("a timer's panic"));
        }
        let old = self.armed.lock().unwrap().replace((at, waker.clone()));
        drop(old);
        Poll::Pending
    }
}

/// A limit that keeps to itself who waits: every release has to look.
#[derive(Debug)]
pub struct Unwatched(pub Concurrency);

/// A limiter around a concurrency limit: what it says itself, and all that every limiter has to say
/// as that does.
macro_rules! limiter_around {
    ($limiter:ty { $($own:item)* }) => {
        impl Limiter for $limiter {
            $($own)*
            fn id(&self) -> Option<LimiterId> {
                LimiterId::of(self)
            }
            fn peek_at(&self, now: Timestamp, n: u32) -> Result<(), Denied> {
                self.0.peek_at(now, n)
            }
            fn refund_at(&self, now: Timestamp, n: u32, receipt: Receipt) -> Refund {
                self.0.refund_at(now, n, receipt)
            }
            fn release(&self, n: u32) {
                self.0.release(n);
            }
            fn available_at(&self, now: Timestamp) -> u64 {
                self.0.available_at(now)
            }
            fn capacity(&self) -> u64 {
                self.0.capacity()
            }
            fn idle_at(&self, now: Timestamp) -> Idle {
                self.0.idle_at(now)
            }
            fn retry(&self, denied: Denied) -> Retry {
                self.0.retry(denied)
            }
        }
    };
}

limiter_around!(Unwatched {
    fn take_at(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        self.0.take_at(now, n)
    }
});

impl QueueLimiter for Unwatched {
    fn held(&self) -> u64 {
        self.0.held()
    }
}

/// A limit that panics when it is asked, as often as it was told to.
#[derive(Debug)]
pub struct Panics(Concurrency, Arc<Cell<u32>>);

impl Panics {
    /// One that does not, and what has it panic.
    pub fn new(limit: u32) -> (Self, impl Fn(u32)) {
        let times = Arc::new(Cell::new(0));
        (
            Self(Concurrency::new(limit), Arc::clone(&times)),
            move |n| *times.lock().unwrap() = n,
        )
    }
}

limiter_around!(Panics {
    fn take_at(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        let panics = {
            let mut times = self.1.lock().unwrap();
            let less = times.saturating_sub(1);
            mem::replace(&mut *times, less) > 0
        };
        if panics {
            // Without the message.
            resume_unwind(Box::new("a limiter's panic"));
        }
        self.0.take_at(now, n)
    }
});

impl QueueLimiter for Panics {
    fn release_watched(&self, n: u32) -> Waiting {
        self.0.release_watched(n)
    }

    fn watch(&self, waits: bool) {
        self.0.watch(waits);
    }

    fn held(&self) -> u64 {
        self.0.held()
    }
}

/// Runs `work` in a thread of its own.
pub fn beside<T: 'static>(work: impl FnOnce() -> T + 'static) -> JoinHandle<T> {
    loom::thread::spawn(move || {
        turn();
        work()
    })
}

/// The same on what is shared.
pub fn beside_of<S: 'static, T: 'static>(
    shared: &Arc<S>,
    work: impl FnOnce(&Arc<S>) -> T + 'static,
) -> JoinHandle<T> {
    let shared = Arc::clone(shared);
    beside(move || work(&shared))
}

/// A queue in the models.
pub type Queued<L = Concurrency, C = Still> = Queue<L, C, Lock>;

/// A queue of up to 9 permits around a limiter.
pub fn around<L: QueueLimiter>(limiter: L) -> Arc<Queued<L>> {
    Arc::new(Queue::with_lock(limiter, Still, 9, Lock::new()))
}

/// A queue of up to 9 permits around a limit.
pub fn queue(limit: u32) -> Arc<Queued> {
    around(Concurrency::new(limit))
}

/// The newest first, for up to `max_permits`.
pub fn newest_first(limit: u32, max_permits: u64) -> Arc<Queued> {
    let limiter = Concurrency::new(limit);
    Arc::new(
        Queue::with_lock(limiter, Still, max_permits, Lock::new()).with_order(Order::NewestFirst),
    )
}

/// A queue whose time is moved.
pub fn timed<L: QueueLimiter>(limiter: L, order: Order) -> Arc<Queued<L, Timed>> {
    Arc::new(Queue::with_lock(limiter, Timed::new(), 9, Lock::new()).with_order(order))
}

/// An empty bucket that gets a token each second, and holds two.
pub fn empty_bucket() -> TokenBucket {
    let bucket = TokenBucket::new(Rate::per_second(1), 2);
    bucket.take_at(at(0), 2).unwrap();
    bucket
}

/// Takes permits that are free.
pub fn hold<L: QueueLimiter, C: Clock>(
    queue: &Arc<Queued<L, C>>,
    n: u32,
) -> Lease<Arc<Queued<L, C>>> {
    Lease::try_acquire_at(Arc::clone(queue), at(0), n).unwrap()
}

/// Whether a wait has been woken. Orders no memory that loom knows of, so that the queue alone
/// does.
#[derive(Debug)]
pub struct Woken(Flag);

impl Woken {
    /// Not yet.
    pub fn new() -> Arc<Self> {
        Arc::new(Self(Flag::new(false)))
    }

    /// Whether it has been.
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

/// A wait, and what has come of it.
pub struct Task<P: Deref<Target: Limiter>> {
    /// Until it is settled.
    pub wait: Option<Wait<P>>,
    /// By the waker that it was polled with.
    pub woken: Arc<Woken>,
    /// The permits that it waits for.
    pub n: u32,
    /// Once it is settled.
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

impl<L: QueueLimiter + 'static, C: Clock + 'static> Task<Arc<Queued<L, C>>> {
    /// One that has not been polled.
    pub fn new(queue: &Arc<Queued<L, C>>, n: u32) -> Self {
        Self::of(Acquire::new(Arc::clone(queue), n, n), n)
    }

    /// One that has been polled.
    pub fn polled(queue: &Arc<Queued<L, C>>, n: u32) -> Self {
        Self::new(queue, n).started()
    }

    /// One that waits for so many seconds, and has been polled.
    pub fn polled_until(queue: &Arc<Queued<L, C>>, n: u32, seconds: u64) -> Self {
        Self::of(Acquire::new(Arc::clone(queue), n, n).until(at(seconds)), n).started()
    }
}

impl<P: Deref<Target: Limiter>> Task<P> {
    /// Waits for `n` permits by `wait`.
    pub fn of(wait: impl Future<Output = Result<Lease<P>, Rejected>> + 'static, n: u32) -> Self {
        Self {
            wait: Some(Box::pin(wait)),
            woken: Woken::new(),
            n,
            outcome: None,
        }
    }

    /// Polled for the first time.
    #[must_use]
    pub fn started(mut self) -> Self {
        self.poll();
        self
    }

    /// Polls it with a waker that it has not had before.
    pub fn poll(&mut self) {
        self.woken = Woken::new();
        self.poll_with(&Waker::from(Arc::clone(&self.woken)));
    }

    /// Polls it.
    pub fn poll_with(&mut self, waker: &Waker) {
        turn();
        let wait = self.wait.as_mut().expect("not settled before");
        if let Poll::Ready(outcome) = wait.as_mut().poll(&mut Context::from_waker(waker)) {
            self.wait = None;
            self.outcome = Some(outcome);
        }
    }

    /// Whether it has not been settled when it was polled last.
    pub fn waits(&self) -> bool {
        self.wait.is_some()
    }

    /// Whether it has its outcome: polled once more, if it has been woken.
    pub fn is_served(&mut self) -> bool {
        while self.waits() && self.woken.is_woken() {
            self.poll();
        }
        !self.waits()
    }

    /// Gives up, or gives back.
    pub fn leave(self) {
        turn();
        drop(self);
    }

    /// The permits that it has.
    pub fn permits(&self) -> u64 {
        self.outcome
            .iter()
            .flatten()
            .map(|lease| u64::from(lease.permits()))
            .sum()
    }

    /// Why it has none.
    pub fn rejected(&self) -> Option<Rejected> {
        self.outcome
            .as_ref()
            .and_then(|outcome| outcome.as_ref().err().copied())
    }
}

/// A wait for all permits to come back.
pub struct Drain<L: QueueLimiter + 'static>(Pin<Box<Drained<Arc<Queued<L>>>>>, Arc<Woken>);

impl<L: QueueLimiter> fmt::Debug for Drain<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Drain")
            .field(&self.1)
            .finish_non_exhaustive()
    }
}

impl<L: QueueLimiter> Drain<L> {
    /// One that has been polled, and whether it is over.
    pub fn polled(queue: &Arc<Queued<L>>) -> (Self, bool) {
        let mut drain = Self(Box::pin(Drained::new(Arc::clone(queue))), Woken::new());
        let over = drain.poll();
        (drain, over)
    }

    /// Polls it with a waker that it has not had before, and says whether it is over.
    pub fn poll(&mut self) -> bool {
        turn();
        self.1 = Woken::new();
        let waker = Waker::from(Arc::clone(&self.1));
        self.0
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_ready()
    }

    /// Whether it is over, polled once more if it has been woken.
    pub fn is_over(&mut self) -> bool {
        self.1.is_woken() && self.poll()
    }
}

/// How it ends, once nobody else runs: all who were woken have an outcome, the first in `turn` of
/// the others sleeps for want of permits and not for want of a call, those who have permits have
/// what they waited for, and every permit of `limit` is free or in one of `turn`. Afterwards they
/// are all free.
pub fn ends_well<'t, L: QueueLimiter + 'static, C: Clock + 'static>(
    queue: &Arc<Queued<L, C>>,
    limit: u64,
    turn: impl IntoIterator<Item = &'t mut Task<Arc<Queued<L, C>>>>,
) {
    let (waiters, tasks) = lines_end_well(|| queue.available_at(at(0)), limit, turn);
    assert_eq!(queue.counts().waiters, waiters);
    leave_all(tasks);
    assert_eq!(queue.available_at(at(0)), limit, "when all are gone");
    let watched = queue.change(|limiter| limiter.release_watched(0));
    assert_ne!(
        watched,
        Waiting::Yes,
        "nobody waits, and every release looks for those who do"
    );
    nobody_waits(queue.counts());
}

/// The same of one line, of how many there may be: returns who waits in it.
pub fn lines_end_well<'t, P: Deref<Target: Limiter> + 't>(
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
                "sleeps though its permits are free"
            );
            waiters += 1;
        }
        assert!(
            task.permits() == 0 || task.permits() == task.n.into(),
            "not what it waited for"
        );
        out += task.permits();
    }
    assert_eq!(free() + out, limit, "what is free, and what is out");
    (waiters, tasks)
}

/// Gives up what waits, and gives back the rest.
pub fn leave_all<P: Deref<Target: Limiter>>(tasks: Vec<&mut Task<P>>) {
    for task in tasks {
        task.wait = None;
        task.outcome = None;
    }
}

/// Nobody is left in the lines.
pub fn nobody_waits(counts: QueueCounts) {
    assert_eq!((counts.waiters, counts.permits), (0, 0));
}

/// The timer is armed for what the queue says comes next, and nothing is due that nobody has seen
/// to.
pub fn is_armed<L: QueueLimiter>(queue: &Queued<L, Timed>) {
    let (before, armed) = (queue.counts(), queue.clock().armed());
    let next = queue.advance();
    assert_eq!(queue.counts(), before, "nobody has seen to what is due");
    if let Next::At(due) = next {
        assert!(
            armed.is_some_and(|armed| armed <= due),
            "armed for {armed:?}, and not for {due:?}"
        );
    }
}
