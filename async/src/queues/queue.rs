use core::fmt;
use core::ops::Deref;

use portcullis_core::metadata::{self, Metadata};
use portcullis_core::{
    Clock, Denied, Idle, Lease, Limiter, LimiterId, QueueLimiter, Receipt, Refund, Retry,
    Timestamp, Waiting,
};

use crate::lock::RawLock;
#[cfg(all(feature = "std", not(loom)))]
use crate::lock::ThreadLock;
use crate::queues::acquire::Queued;
use crate::queues::common::common;
use crate::queues::hook::Hook;
use crate::queues::options::{Options, Order};
use crate::waiting::limiter_source::Single;
use crate::waiting::wait_queue::{WaitQueue, earliest};
use crate::{Acquire, Drained};

/// A limiter, and a queue of those who wait for its permits.
///
/// It owns the limiter, so that nobody gets past the queue ([`QueueLimiter`] says which limiters it
/// can own, and a pointer to which), and is itself a [`Limiter`]: its leases are ordinary ones, it
/// can be wrapped, and be one of several. [`acquire`](Self::acquire) waits: what is free is granted
/// at once, and touches no list; else the request queues; and if the queue is full, it is refused
/// at once, with a value. Dropping the future cancels.
///
/// **Bound.** The limiter's own, and at most [`max_permits`](Self::new) queued permits by at most
/// [`max_waiters`](Self::with_max_waiters) waits. What came in while nobody looked, up to the
/// [slack](Self::with_slack), is granted as if it had been granted when it came: by the limiter's
/// time, the bound is the limiter's; by a watch, what comes in in the slack may come on top, at
/// once.
///
/// **Time.** A release grants to those who wait. Where permits come back by time, or waits have
/// deadlines, somebody has to say so. With a [`Timer`](crate::Timer) for a clock the queue sees to
/// it itself ([`attend`](Self::attend), [`attend_shared`](Self::attend_shared)), or a task that
/// runs [`drive`](Self::drive); one timer, however many wait. Without one
/// [`advance`](Self::advance) grants what has come in and says when to call again. Threads that
/// wait see to it, if nobody else does.
///
/// **What notes denials** ([`Counted`](portcullis_core::Counted),
/// [`Penalty`](portcullis_core::Penalty), [`Escalation`](portcullis_core::Escalation)) goes around
/// the queue, not into it: for one that waits, the limiter is asked several times.
///
/// **Cost.** A wait lies in its future: no allocation. Cancelling is one unlink, wherever it stands
/// (and with a deadline, a logarithm of their number, amortised). Wakers run outside of the list,
/// 16 at a time.
///
/// **Progress.** Taking what is free is lock-free where the limiter is. A release never waits for
/// another thread or context: if the list is held, it leaves a mark, and the holder grants in its
/// place (so the holder's work is not bounded by its own calls). Polling and dropping a wait take
/// the lock `R`. A release runs wakers; and where it makes something due earlier, it arms the timer
/// of a queue that sees to its time by itself, which takes that timer's locks: in an interrupt or
/// signal handler, [`release_later`](Self::release_later) does neither.
///
/// ```
/// use portcullis_async::{Order, Queue};
/// use portcullis_core::{Concurrency, ManualClock};
///
/// static CLOCK: ManualClock = ManualClock::new();
/// // Two at once; requests for up to 100 permits wait.
/// static WORKERS: Queue<Concurrency, &ManualClock> =
///     Queue::new(Concurrency::new(2), &CLOCK, 100);
///
/// futures_executor::block_on(async {
///     let first = WORKERS.acquire(2).await?;
///     drop(first);
///     let second = WORKERS.acquire(1).await?;
///     assert_eq!(second.permits(), 1);
///     Ok::<(), portcullis_async::Rejected>(())
/// })?;
/// # Ok::<(), portcullis_async::Rejected>(())
/// ```
///
/// Of a part and the whole, each has a queue of its own, and a request waits in one after the
/// other. One limit in two queues does not compile: what is released through one of them would wake
/// nobody in the other.
///
/// ```compile_fail,E0277
/// use portcullis_async::Queue;
/// use portcullis_core::{AllOf, Concurrency, ManualClock};
/// static ALL: Concurrency = Concurrency::new(9);
/// static TENANT: Queue<AllOf<(Concurrency, &Concurrency)>, ManualClock> =
///     Queue::new(AllOf::new((Concurrency::new(2), &ALL)), ManualClock::new(), 100);
/// ```
///
/// ```
/// use portcullis_async::Queue;
/// use portcullis_core::{Concurrency, ManualClock};
/// static ALL: Queue<Concurrency, ManualClock> =
///     Queue::new(Concurrency::new(9), ManualClock::new(), 100);
/// static TENANT: Queue<Concurrency, ManualClock> =
///     Queue::new(Concurrency::new(2), ManualClock::new(), 100);
/// futures_executor::block_on(async {
///     let of_the_tenant = TENANT.acquire(1).await?;
///     let of_all = ALL.acquire(1).await?;
///     # drop((of_the_tenant, of_all));
///     Ok::<(), portcullis_async::Rejected>(())
/// })?;
/// # Ok::<(), portcullis_async::Rejected>(())
/// ```
pub struct Queue<L: QueueLimiter, C, R = DefaultLock, H = ()> {
    pub(crate) wait_queue: WaitQueue<(Single<L>, C, R, H)>,
}

/// The lock of a [`Queue`] unless another one is named: [`ThreadLock`].
#[cfg(all(feature = "std", not(loom)))]
pub type DefaultLock = ThreadLock;
/// No lock, without `std`: name one.
#[cfg(not(all(feature = "std", not(loom))))]
pub type DefaultLock = ();

impl<L: QueueLimiter, C, R: RawLock> Queue<L, C, R> {
    /// A queue of up to `max_permits` permits (0: nobody waits) around `limiter`, asked at the
    /// times of `clock`; [oldest first](Order::OldestFirst).
    ///
    /// ```
    /// # use portcullis_async::Queue;
    /// # use portcullis_core::{ManualClock, Rate, TokenBucket};
    /// let queue: Queue<_, _> = Queue::new(
    ///     TokenBucket::new(Rate::per_second(5), 5),
    ///     ManualClock::new(),
    ///     25,
    /// );
    /// ```
    #[cfg(not(loom))]
    pub const fn new(limiter: L, clock: C, max_permits: u64) -> Self {
        Self {
            wait_queue: WaitQueue::new(
                Single(limiter),
                clock,
                (),
                Options::new(max_permits),
                R::OPEN,
            ),
        }
    }

    /// As without loom, but for a lock that cannot be built in a constant.
    #[cfg(loom)]
    pub fn with_lock(limiter: L, clock: C, max_permits: u64, lock: R) -> Self {
        Self {
            wait_queue: WaitQueue::new(Single(limiter), clock, (), Options::new(max_permits), lock),
        }
    }

    /// Has each wait told to `hook` when it is over. In a constant: [`hooked`](Queue::hooked).
    ///
    /// ```
    /// use portcullis_async::{Queue, Waited};
    /// use portcullis_core::{Concurrency, ManualClock};
    /// let queue: Queue<_, _> = Queue::new(Concurrency::new(2), ManualClock::new(), 9);
    /// let queue = queue.with_hook(|waited: &Waited| {
    ///     println!("{:?} after {:?}", waited.outcome, waited.time)
    /// });
    /// # _ = queue;
    /// ```
    pub fn with_hook<H: Hook>(self, hook: H) -> Queue<L, C, R, H> {
        Queue {
            wait_queue: self.wait_queue.with_hook(hook),
        }
    }
}

impl<L: QueueLimiter, C, R: RawLock, H: Hook> Queue<L, C, R, H> {
    /// As [`new`](Queue::new), with a [hook](Queue::with_hook), for a static.
    ///
    /// ```
    /// use portcullis_async::{DefaultLock, Queue, Waited};
    /// use portcullis_core::{Concurrency, ManualClock};
    /// static QUEUE: Queue<Concurrency, ManualClock, DefaultLock, fn(&Waited)> =
    ///     Queue::hooked(Concurrency::new(2), ManualClock::new(), 9, |waited| {
    ///         println!("{:?}", waited.time)
    ///     });
    /// ```
    #[cfg(not(loom))]
    pub const fn hooked(limiter: L, clock: C, max_permits: u64, hook: H) -> Self {
        Self {
            wait_queue: WaitQueue::new(
                Single(limiter),
                clock,
                hook,
                Options::new(max_permits),
                R::OPEN,
            ),
        }
    }
}

common!(Queue<L: QueueLimiter>, Single<L>);

impl<L: QueueLimiter, C: Clock, R: RawLock, H: Hook> Queue<L, C, R, H> {
    /// Takes `n` permits now, if nobody waits before it.
    ///
    /// # Errors
    ///
    /// Any [`Denied`] of the limiter; [`Exhausted`](Denied::Exhausted) also where a request waits
    /// in a queue that is [oldest first](Order::OldestFirst), and [`Refused`](Denied::Refused) if
    /// the queue is closed.
    ///
    /// ```
    /// # use portcullis_async::Queue;
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// let queue: Queue<_, _> = Queue::new(Concurrency::new(2), ManualClock::new(), 9);
    /// let lease = queue.try_acquire(2)?;
    /// assert!(queue.try_acquire(1).is_err());
    /// # drop(lease);
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    #[inline]
    pub fn try_acquire(&self, n: u32) -> Result<Lease<&Self>, Denied> {
        Lease::try_acquire_at(self, self.wait_queue.clock.now(), n)
    }

    /// Waits for `n` permits; with `n = 0` until something is available, of which it takes nothing.
    /// What is dropped before it is ready has never been. Where permits are free it is ready at
    /// once: it does not yield to the executor.
    ///
    /// # Errors
    ///
    /// [`Rejected`](crate::Rejected): at once, if the queue is full or closed, or there can never
    /// be so many; later, if it is evicted or the queue closes.
    ///
    /// ```
    /// # use portcullis_async::Queue;
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// # futures_executor::block_on(async {
    /// let queue: Queue<_, _> = Queue::new(Concurrency::new(2), ManualClock::new(), 9);
    /// let lease = queue.acquire(2).await?;
    /// assert_eq!(lease.permits(), 2);
    /// # Ok::<(), portcullis_async::Rejected>(()) }).unwrap();
    /// ```
    #[inline]
    pub fn acquire(&self, n: u32) -> Acquire<&Self> {
        Acquire::new(self, n, n)
    }

    /// Waits for at least `min` permits, and takes up to `max` if there are as many then (`min` if
    /// `max` is less). It queues with `min`.
    ///
    /// # Errors
    ///
    /// As of [`acquire`](Self::acquire), by `min`.
    ///
    /// ```
    /// # use portcullis_async::Queue;
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// # futures_executor::block_on(async {
    /// let queue: Queue<_, _> = Queue::new(Concurrency::new(5), ManualClock::new(), 9);
    /// let some = queue.acquire_between(1, 100).await?;
    /// assert_eq!(some.permits(), 5);
    /// # Ok::<(), portcullis_async::Rejected>(()) }).unwrap();
    /// ```
    pub fn acquire_between(&self, min: u32, max: u32) -> Acquire<&Self> {
        Acquire::new(self, min, max)
    }

    /// Waits for `n` permits until `deadline`, by the queue's clock: see [`Acquire::until`].
    ///
    /// # Errors
    ///
    /// As of [`acquire`](Self::acquire), and [`Rejected::Deadline`](crate::Rejected::Deadline).
    ///
    /// ```
    /// # use portcullis_async::{Queue, Rejected};
    /// # use portcullis_core::{ManualClock, Rate, Retry, Timestamp, TokenBucket};
    /// # futures_executor::block_on(async {
    /// let queue: Queue<_, _> = Queue::new(
    ///     TokenBucket::new(Rate::per_second(10), 1),
    ///     ManualClock::new(),
    ///     9,
    /// );
    /// queue.acquire(1).await?;
    /// // The next one comes after 100 ms.
    /// let late = queue
    ///     .acquire_until(1, Timestamp::from_millis(50))
    ///     .await
    ///     .unwrap_err();
    /// assert_eq!(
    ///     late,
    ///     Rejected::Deadline {
    ///         permits: 1,
    ///         retry: Retry::At(Timestamp::from_millis(100))
    ///     }
    /// );
    /// # Ok::<(), Rejected>(()) }).unwrap();
    /// ```
    pub fn acquire_until(&self, n: u32, deadline: Timestamp) -> Acquire<&Self> {
        Acquire::new(self, n, n).until(deadline)
    }

    /// Releases a lease's permits, and leaves it to whoever comes to the queue next, by a wait, a
    /// release or a call of [`advance`](Self::advance), to grant them: for interrupt and signal
    /// handlers in which no waker may run.
    ///
    /// # Cost
    ///
    /// The limiter's release, and one read-modify-write.
    ///
    /// ```
    /// # use portcullis_async::Queue;
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// let queue: Queue<_, _> = Queue::new(Concurrency::new(1), ManualClock::new(), 9);
    /// let lease = queue.try_acquire(1)?;
    /// Queue::release_later(lease);
    /// assert_eq!(queue.available(), 1);
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    pub fn release_later<P: Deref<Target = Self>>(lease: Lease<P>) {
        let lease = ReleasedLater(Some(lease));
        if let Some(lease) = &lease.0 {
            lease.limiter().wait_queue.source.0.release(lease.permits());
        }
    }

    /// Waits until every lease has come back, of those that are [held](QueueLimiter::held) until
    /// they are released: at once of a limiter that gets its permits back by time. For a graceful
    /// end, after [`close`](Self::close); on its own it only says that there was such a moment.
    ///
    /// ```
    /// # use portcullis_async::Queue;
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// # futures_executor::block_on(async {
    /// let queue: Queue<_, _> = Queue::new(Concurrency::new(2), ManualClock::new(), 9);
    /// let lease = queue.acquire(1).await?;
    /// queue.close();
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| drop(lease));
    /// });
    /// queue.drained().await;
    /// # Ok::<(), portcullis_async::Rejected>(()) }).unwrap();
    /// ```
    pub fn drained(&self) -> Drained<&Self> {
        Drained::new(self)
    }

    /// The permits that could be taken now, by the first who waits or, if nobody does, by anybody.
    ///
    /// ```
    /// # use portcullis_async::Queue;
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// let queue: Queue<_, _> = Queue::new(Concurrency::new(2), ManualClock::new(), 0);
    /// assert_eq!(queue.available(), 2);
    /// ```
    pub fn available(&self) -> u64 {
        self.wait_queue
            .source
            .0
            .available_at(self.wait_queue.clock.now())
    }

    /// Changes the limiter's settings, by its own methods, and then grants what has become free.
    /// Nothing should be taken in it: that would get past the queue.
    ///
    /// ```
    /// # use portcullis_async::Queue;
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// let queue: Queue<_, _> = Queue::new(Concurrency::new(2), ManualClock::new(), 9);
    /// assert_eq!(queue.change(|limit| limit.set_limit(5)), Ok(2));
    /// ```
    pub fn change<T>(&self, change: impl FnOnce(&L) -> T) -> T {
        self.wait_queue.change(|source| change(&source.0))
    }

    /// Whether a newcomer may ask the limiter.
    fn pass(&self, now: Timestamp, n: u32) -> Result<(), Denied> {
        if self.wait_queue.is_closed() {
            Err(Denied::Refused { now, permits: n })
        } else if self.wait_queue.options.order == Order::OldestFirst
            && self.wait_queue.is_waited_for(())
        {
            Err(Denied::Exhausted { now, permits: n })
        } else {
            Ok(())
        }
    }
}

#[allow(unsafe_code, reason = "a promise alone")]
// SAFETY: the wait queue is the queue's own.
unsafe impl<L: QueueLimiter, C: Clock, R: RawLock, H: Hook> Queued for Queue<L, C, R, H> {
    type Config = (Single<L>, C, R, H);

    #[inline]
    fn wait_queue(&self) -> &WaitQueue<Self::Config> {
        &self.wait_queue
    }

    #[inline]
    fn key(&self) {}
}

/// A lease whose permits have been released past the queue, or whose limiter has panicked in that.
/// It is not released again, and whoever comes to the queue next grants.
struct ReleasedLater<L, C, R, H, P>(Option<Lease<P>>)
where
    L: QueueLimiter,
    C: Clock,
    R: RawLock,
    H: Hook,
    P: Deref<Target = Queue<L, C, R, H>>;

impl<L, C, R, H, P> Drop for ReleasedLater<L, C, R, H, P>
where
    L: QueueLimiter,
    C: Clock,
    R: RawLock,
    H: Hook,
    P: Deref<Target = Queue<L, C, R, H>>,
{
    fn drop(&mut self) {
        if let Some(lease) = self.0.take() {
            lease.limiter().wait_queue.note_release(());
            lease.forget();
        }
    }
}

impl<L: QueueLimiter, C: Clock, R: RawLock, H: Hook> Limiter for Queue<L, C, R, H> {
    fn id(&self) -> Option<LimiterId> {
        LimiterId::of(self)
    }

    /// What is free, if nobody waits before it: [`Denied::Exhausted`] else. A closed queue refuses,
    /// [`Denied::Refused`].
    #[inline]
    fn take_at(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        self.pass(now, n)?;
        self.wait_queue
            .take((), || self.wait_queue.source.0.take_at(now, n))
    }

    fn peek_at(&self, now: Timestamp, n: u32) -> Result<(), Denied> {
        self.pass(now, n)?;
        // A take asks anew who waits.
        self.wait_queue.source.0.peek_at(now, n)
    }

    /// As the limiter's, and has those who wait granted.
    fn refund_at(&self, now: Timestamp, n: u32, receipt: Receipt) -> Refund {
        self.wait_queue.give_back((), |source| {
            (source.0.refund_at(now, n, receipt), Waiting::Unknown)
        })
    }

    /// Releases, and has those who wait granted.
    #[inline]
    fn release(&self, n: u32) {
        self.wait_queue.release((), n);
    }

    fn available_at(&self, now: Timestamp) -> u64 {
        self.wait_queue.source.0.available_at(now)
    }

    fn capacity(&self) -> u64 {
        self.wait_queue.source.0.capacity()
    }

    fn idle_at(&self, now: Timestamp) -> Idle {
        if self.wait_queue.is_waited_for(()) {
            Idle::InUse
        } else {
            self.wait_queue.source.0.idle_at(now)
        }
    }

    /// As the limiter says; behind those who wait, where it is oldest first.
    fn retry(&self, denied: Denied) -> Retry {
        match denied {
            Denied::Refused { .. } if self.is_closed() => Retry::Never,
            Denied::Exhausted { now, permits }
                if self.wait_queue.options.order == Order::OldestFirst =>
            {
                earliest(
                    &self.wait_queue.source.0,
                    now,
                    self.wait_queue.queued().into(),
                    permits,
                )
            }
            _ => self.wait_queue.source.0.retry(denied),
        }
    }

    fn metadata(&self, now: Timestamp, denied: Option<Denied>, offers: &mut Metadata<'_>) {
        if let Some(denied) = denied {
            offers.offer(metadata::RETRY_AFTER, || self.retry(denied));
        }
        self.wait_queue.source.0.metadata(now, denied, offers);
    }
}

/// A queue that is owned by another one, in which it is only taken from.
impl<L: QueueLimiter, C: Clock, R: RawLock, H: Hook> QueueLimiter for Queue<L, C, R, H> {
    const SHARED: bool = L::SHARED;

    fn held(&self) -> u64 {
        self.wait_queue.source.0.held()
    }
}

impl<L: QueueLimiter + fmt::Debug, C, R, H> fmt::Debug for Queue<L, C, R, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut queue = f.debug_struct("Queue");
        queue
            .field("limiter", &self.wait_queue.source.0)
            .field("options", &self.wait_queue.options)
            .finish_non_exhaustive()
    }
}
