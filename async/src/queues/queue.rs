//! A limiter with a queue of the requests that wait for its permits.
//!
//! The wait queue has the state. This file has the requests for a single limiter, and the queue as
//! a limiter: it takes only if no request is ahead, and what it releases or refunds goes to the
//! waiters.

use core::fmt;
use core::ops::Deref;
#[cfg(feature = "std")]
use std::sync::Arc;

use portcullis_core::limiter::{
    Answer, Ask, Back, Detail, Hints, Idle, LimiterId, Read, Reading, Returned, Waiting, When,
};
use portcullis_core::metadata;
use portcullis_core::queue::QueueLimiter;
use portcullis_core::{Denied, Lease, Limiter, LimiterExt, Retry, Timestamp};

#[cfg(all(feature = "std", not(portcullis_loom)))]
use crate::lock::ThreadLock;
use crate::lock::{DefaultLock, RawLock};
use crate::queues::acquire::{Acquire, Queued, try_acquire};
use crate::queues::limiter_queue::LimiterQueue;
use crate::queues::limiter_view::LimiterView;
use crate::sync::const_unless_loom;
use crate::waiting::hook::Hook;
use crate::waiting::limiter_source::Single;
use crate::waiting::options::{Options, Order};
use crate::waiting::queue_clock::QueueClock;
use crate::waiting::wait_queue::WaitQueue;
use crate::waiting::wait_queue::ask::{earliest, tell_denial};

/// A limiter with a queue of requests that wait for its permits.
///
/// `L` is the limiter, `C` the clock, `R` the [lock](crate::RawLock) of the wait list, and `H` the
/// [hook](crate::Hook), which observes waits. The queue owns the limiter, so that no caller can
/// bypass the queue. It can own a reference or an `Arc` to a limiter only if all permits of that
/// limiter return by time: see [`QueueLimiter`]. A queue is itself a [`Limiter`]: its leases are
/// ordinary leases, and it can be wrapped or be part of a composition.
///
/// Options ([`with_order`](Self::with_order), [`with_slack`](Self::with_slack)), counts, drivers
/// ([`shared`](Self::shared)) and the end ([`close`](Self::close), [`drained`](Self::drained)) are
/// methods of [`LimiterQueue`], whose page lists them all.
///
/// [`acquire`](Queue#method.acquire) returns a future that waits for permits:
///
/// - If the permits are free and no request waits ahead, they are granted immediately, without
///   entering the wait list.
/// - Otherwise the request waits in the queue. Requests are granted in order: a large request at
///   the head makes smaller ones behind it wait.
/// - If the queue has no room for the request, the request fails immediately with
///   [`Rejected`](crate::Rejected), which says when to retry. In [newest-first
///   order](Order::NewestFirst) the oldest requests are evicted instead, to make room, and in each
///   order those of a lower priority (`Acquire::priority`).
/// - Dropping the future cancels the request.
///
/// **Bound.** The limiter's own. The requests that wait ask for at most
/// [`max_permits`](Queue#method.new) permits in total, and there are at most
/// [`max_waiters`](Self::with_max_waiters) of them. If the timer is late, the queue dates a grant
/// back to when it was due, by up to the [slack](Self::with_slack): 10 ms by default. The limiter's
/// bound holds exactly for these dates. In real time, a span of time `t` may admit what the bound
/// allows for `t` plus the slack.
///
/// **Errors.** A request can fail with:
///
/// | error | reason | what to do |
/// |---|---|---|
/// | [`Rejected::QueueFull`](crate::Rejected::QueueFull) | the permits are not available, and the queue is full | wait for [`retry`](crate::Rejected::retry), then retry |
/// | [`Rejected::Refused`](crate::Rejected::Refused) | the limiter denies for another reason than permits ([`Denied::Refused`]), and the queue is full | wait for `retry`, then retry |
/// | [`Rejected::Evicted`](crate::Rejected::Evicted) | the queue was full, and a newer request took its place | retry when `retry` says |
/// | [`Rejected::Deadline`](crate::Rejected::Deadline) | the deadline is too early | retry with a later deadline |
/// | [`Rejected::Shed`](crate::Rejected::Shed) | it has waited longer than `with_shedding` allows | retry later than `retry` says: the queue is overloaded |
/// | [`Rejected::ExceedsCapacity`](crate::Rejected::ExceedsCapacity) | the request exceeds the limit | request fewer permits |
/// | [`Rejected::Closed`](crate::Rejected::Closed) | the queue is closed | do not retry |
///
/// **Time.** A release grants permits to the waiters by itself. If permits replenish by time, or
/// waiters have deadlines, a *driver* grants what is due, and sets the timer for what is due next.
/// With a [`Timer`](crate::Timer) as its clock, the queue needs no other driver: one of the waiting
/// tasks drives it. When the wait of that task ends or is dropped, another waiting task takes over.
/// If the driving task is woken and not polled, the other waiters may wait until it is polled: for
/// example, if a program keeps the future in a loop around `select!` and does other work. These
/// drivers depend on no waiting task:
///
/// - the queue itself, if it was created by [`shared`](Self::shared), or after
///   [`attend`](Self::attend) or [`attend_shared`](Self::attend_shared);
/// - a task that runs [`drive`](Self::drive);
/// - a thread in `blocking_acquire`: one of the blocked threads always drives the queue;
/// - calls of [`advance`](Self::advance), with any clock: it grants what has become available and
///   returns when to call it again. A queue without a timer ([`NoTimer`](crate::NoTimer)) needs
///   these calls.
///
/// One timer serves all waiters. [`QueueClock`](crate::QueueClock) lists the clocks.
///
/// **Counts.** [`counts`](Self::counts) says how many requests wait, and what became of those that
/// waited. To count all requests and their permits, put [`Counted`](portcullis_core::Counted)
/// inside the queue, and read the counts through [`limiter`](Self::limiter). It counts each request
/// once, when it is granted, rejected or cancelled. A request that waits is not counted yet.
///
/// **Wrappers that react to denials** ([`Penalty`](portcullis_core::Penalty),
/// [`Escalation`](portcullis_core::Escalation)). The queue may ask its limiter several times for
/// one request. Inside the queue, these wrappers ignore such attempts, and react to the outcome of
/// the request: see their documentation.
///
/// **Cost.** If no request is ahead, a take costs that of the limiter, a reading of the clock and
/// two or three loads, without the lock. A request that has to wait takes the lock once to enter
/// the queue. To enter, to be granted and to be cancelled take constant time each, at any position
/// in the queue; with deadlines, amortised logarithmic time. The limiter's own cost comes in
/// addition. A waiter is stored in its future, without allocation. On 64-bit targets the future has
/// about 220 bytes (with the feature `shedding` 250), and a queue about 460 bytes more than its
/// limiter and its clock. Wakers run outside the lock, at most 16 after each unlock.
///
/// **Progress.** Taking free permits is lock-free if the limiter is. Polling and dropping a future
/// that waits take the lock `R`. A release never waits for that lock. If the lock is held, the
/// release sets a bit. The holder reads the bit after it has unlocked, and grants the permits. So a
/// holder may serve any number of releases of other threads.
///
/// **Interrupts.** A release, also by the drop of a lease, runs wakers. If the queue drives itself
/// (after `attend`), a release may also set the timer, and then takes the locks of the timer. In an
/// interrupt or signal handler that must do neither, use [`release_later`](Self::release_later): it
/// runs no waker and sets no timer, and the next call on the queue grants the permits.
///
/// A limit on concurrency ignores time, so its queue needs no real clock. Use
/// [`Timeless`](portcullis_core::Timeless), whose time never advances. With it, requests with a
/// deadline or a timeout do not compile: they need a [`DeadlineClock`](crate::DeadlineClock), such
/// as a timer.
///
/// ```
/// use portcullis_async::Queue;
/// use portcullis_core::{Concurrency, Timeless};
///
/// // Two permits at once; requests for up to 100 permits may wait.
/// static WORKERS: Queue<Concurrency, Timeless> =
///     Queue::new(Concurrency::new(2), Timeless, 100);
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
/// A rate needs a timer. [`shared`](Self::shared) makes the queue drive itself by its timer, so
/// that no task has to be polled for the permits of another one; a queue in a `static` does so
/// after [`attend`](Self::attend):
///
/// ```
/// use portcullis_async::{Queue, ThreadTimer};
/// use portcullis_core::{Rate, TokenBucket};
///
/// let bucket = TokenBucket::new(Rate::per_second(1_000), 1);
/// let queue = Queue::new(bucket, ThreadTimer::new(), 100).shared();
/// futures_executor::block_on(async {
///     for _ in 0..3 {
///         let _permit = queue.acquire(1).await?;
///     }
///     Ok::<(), portcullis_async::Rejected>(())
/// })?;
/// # Ok::<(), portcullis_async::Rejected>(())
/// ```
///
/// To limit each tenant and all tenants together, take a [`KeyedQueue`](crate::KeyedQueue) around a
/// [`WithTotal`](portcullis_core::keyed::WithTotal): it decides both limits as one. Two queues
/// cannot share a concurrency limit: a release through one queue would wake no waiter of the other.
/// So a reference to such a limit does not compile in a queue.
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
/// use portcullis_async::KeyedQueue;
/// use portcullis_core::keyed::WithTotal;
/// use portcullis_core::{Concurrency, Keyed, Timeless};
/// let tenants = Keyed::for_keys(Concurrency::new(2), 1_000);
/// let tenants = WithTotal::new(tenants, Concurrency::new(9));
/// let tenants = KeyedQueue::new(tenants, Timeless, 100);
/// let lease = futures_executor::block_on(tenants.acquire("alice", 1))?;
/// # drop(lease);
/// # Ok::<(), portcullis_async::Rejected>(())
/// ```
pub type Queue<L, C, R = DefaultLock, H = ()> = LimiterQueue<Single<L>, C, R, H>;

#[cfg(all(feature = "std", not(portcullis_loom)))]
impl<L: QueueLimiter, C: QueueClock> Queue<L, C> {
    /// Creates a queue around `limiter`. It holds requests for up to `max_permits` permits; with 0,
    /// no request waits. A request for 0 permits counts as 1. `clock` supplies the timestamps. The
    /// order is [oldest first](Order::OldestFirst), and the lock a [`ThreadLock`]. Needs the
    /// feature `std`; without it, see [`with_lock`](Queue#method.with_lock).
    ///
    /// ```
    /// # use portcullis_async::Queue;
    /// # use portcullis_core::{ManualClock, Rate, TokenBucket};
    /// let queue = Queue::new(
    ///     TokenBucket::new(Rate::per_second(5), 5),
    ///     ManualClock::new(),
    ///     25,
    /// );
    /// ```
    pub const fn new(limiter: L, clock: C, max_permits: u64) -> Self {
        Self::with_lock(limiter, clock, max_permits, ThreadLock::new())
    }
}

impl<L: QueueLimiter, C: QueueClock, R: RawLock> Queue<L, C, R> {
    const_unless_loom! {
        /// Creates a queue like [`new`](Queue#method.new), with a lock of your choice. See
        /// [`RawLock`](crate::RawLock).
        ///
        /// ```
        /// # use portcullis_async::Queue;
        /// # use portcullis_core::{Concurrency, Timeless};
        /// # #[cfg(feature = "critical-section")] {
        /// use portcullis_async::InterruptLock;
        /// static WORKERS: Queue<Concurrency, Timeless, InterruptLock> =
        ///     Queue::with_lock(Concurrency::new(2), Timeless, 9, InterruptLock::new());
        /// # assert!(WORKERS.try_acquire(1).is_ok());
        /// # }
        /// ```
        pub const fn with_lock(limiter: L, clock: C, max_permits: u64, lock: R) -> Self {
            Self {
                wait_queue: WaitQueue::new(Single(limiter), clock, (), Options::new(), max_permits, lock),
            }
        }
    }
}

impl<L: QueueLimiter, C, R: RawLock, H: Hook> Queue<L, C, R, H> {
    const_unless_loom! {
        /// Creates a queue with a lock and a [hook](Queue::with_hook), like
        /// [`with_lock`](Queue#method.with_lock). For statics.
        ///
        /// ```
        /// use portcullis_async::{DefaultLock, Queue, Waited};
        /// use portcullis_core::{Concurrency, ManualClock};
        /// static QUEUE: Queue<Concurrency, ManualClock, DefaultLock, fn(&Waited)> =
        ///     Queue::hooked(
        ///         Concurrency::new(2),
        ///         ManualClock::new(),
        ///         9,
        ///         DefaultLock::new(),
        ///         |waited| println!("{:?}", waited.time),
        ///     );
        /// ```
        pub const fn hooked(limiter: L, clock: C, max_permits: u64, lock: R, hook: H) -> Self {
            Self {
                wait_queue: WaitQueue::new(
                    Single(limiter),
                    clock,
                    hook,
                    Options::new(),
                    max_permits,
                    lock,
                ),
            }
        }
    }
}

impl<L: QueueLimiter, C: QueueClock, R: RawLock, H: Hook> Queue<L, C, R, H> {
    /// Takes `n` permits without waiting, if no request is ahead.
    ///
    /// # Errors
    ///
    /// - any [`Denied`] of the limiter, such as [`Denied::Exhausted`] if it has too few permits.
    ///   Wait with [`acquire`](Queue#method.acquire), or retry when [`Denied::retry`] of the queue
    ///   says;
    /// - [`Denied::Exhausted`] also if a request waits, unless the order is [newest
    ///   first](Order::NewestFirst). Do the same;
    /// - [`Denied::Closed`] if the queue is closed. Do not retry.
    ///
    /// ```
    /// # use portcullis_async::Queue;
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// let queue = Queue::new(Concurrency::new(2), ManualClock::new(), 9);
    /// let lease = queue.try_acquire(2)?;
    /// assert!(queue.try_acquire(1).is_err());
    /// # drop(lease);
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    #[inline]
    pub fn try_acquire(&self, n: u32) -> Result<Lease<&Self>, Denied> {
        try_acquire(self, n)
    }

    /// Takes permits as [`try_acquire`](Queue#method.try_acquire) does, and returns the numbers of
    /// the decision, such as the permits that are left: see [`LimiterExt::take_explained_at`]. If
    /// requests are ahead or the queue is closed, the queue does not ask the limiter. The numbers
    /// are then those of the limiter after the decision.
    ///
    /// The futures of this queue return no such numbers. To look at the limiter after a wait, call
    /// [`LimiterExt::explain_at`] of the queue.
    ///
    /// # Errors
    ///
    /// The first result is a denial, as for `try_acquire`.
    ///
    /// ```
    /// # use portcullis_async::Queue;
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// let queue = Queue::new(Concurrency::new(5), ManualClock::new(), 9);
    /// let (lease, detail) = queue.try_acquire_explained(2);
    /// assert_eq!((lease?.permits(), detail.available, detail.capacity), (2, 3, 5));
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    #[must_use = "a lease returns its permits when it is dropped"]
    pub fn try_acquire_explained(&self, n: u32) -> (Result<Lease<&Self>, Denied>, Detail) {
        Lease::try_acquire_explained_at(self, self.wait_queue.clock.now(), n)
    }

    /// Takes `n` permits without waiting, if no request is ahead, with a lease that owns the queue.
    /// Needs the feature `std`.
    ///
    /// # Errors
    ///
    /// As [`try_acquire`](Queue#method.try_acquire).
    ///
    /// ```
    /// # use portcullis_async::Queue;
    /// # use portcullis_core::{Concurrency, Timeless};
    /// # use std::sync::Arc;
    /// let queue = Arc::new(Queue::new(Concurrency::new(2), Timeless, 9));
    /// let lease = queue.try_acquire_owned(1)?;
    /// std::thread::spawn(move || drop(lease)).join().unwrap();
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    #[cfg(feature = "std")]
    pub fn try_acquire_owned(self: &Arc<Self>, n: u32) -> Result<Lease<Arc<Self>>, Denied> {
        try_acquire(Arc::clone(self), n)
    }

    /// Waits for `n` permits. With `n = 0`, waits until a permit is available and takes none.
    ///
    /// The future is ready at its first poll if the permits are free and no request is ahead; it
    /// does not yield to the executor. Dropping the future cancels the request, and no permits are
    /// taken.
    ///
    /// The methods of the future say how it waits: [`until`](Acquire::until) a deadline,
    /// [`within`](Acquire::within) a timeout, for [`up_to`](Acquire::up_to) as many permits as are
    /// available; [`block`](Acquire::block) blocks the thread.
    ///
    /// # Errors
    ///
    /// [`Rejected`](crate::Rejected):
    ///
    /// - immediately, if the queue is full or closed, or if `n` is more than the limiter can ever
    ///   grant;
    /// - later, if the request is evicted, the queue is closed, or the limit is lowered below `n`;
    /// - at its deadline, if it has one, or immediately if the queue can tell that the deadline
    ///   cannot be met. The same holds for the bound of a queue with
    ///   shedding (`with_shedding`).
    ///
    /// The table in the documentation of [`Queue`] says what to do about each.
    ///
    /// ```
    /// # use portcullis_async::Queue;
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// # futures_executor::block_on(async {
    /// let queue = Queue::new(Concurrency::new(2), ManualClock::new(), 9);
    /// let lease = queue.acquire(2).await?;
    /// assert_eq!(lease.permits(), 2);
    /// # Ok::<(), portcullis_async::Rejected>(()) }).unwrap();
    /// ```
    #[inline]
    pub fn acquire(&self, n: u32) -> Acquire<&Self> {
        Acquire::new(self, n)
    }

    /// Waits for `n` permits, with a future and a lease that own the queue: for a task that is
    /// spawned. For a queue in a `static`, [`acquire`](Queue#method.acquire) does the same. Other
    /// pointers are accepted by [`Acquire::new`]. Needs the feature `std`.
    ///
    /// With a timeout: `queue.acquire_owned(1).within(timeout)`.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Queue#method.acquire).
    ///
    /// ```
    /// # use portcullis_async::Queue;
    /// # use portcullis_core::{Concurrency, Timeless};
    /// # use std::sync::Arc;
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// let queue = Arc::new(Queue::new(Concurrency::new(2), Timeless, 9));
    /// let lease = queue.acquire_owned(1).await?;
    /// tokio::spawn(async move { drop(lease) }).await.unwrap();
    /// # Ok::<(), portcullis_async::Rejected>(()) }).unwrap();
    /// ```
    #[cfg(feature = "std")]
    pub fn acquire_owned(self: &Arc<Self>, n: u32) -> Acquire<Arc<Self>> {
        Acquire::new(Arc::clone(self), n)
    }

    /// Releases the permits of a lease without granting them to the waiters. The next call on the
    /// queue grants them: another request, a release, or [`advance`](Self::advance). Until then,
    /// the waiters keep waiting. For interrupt and signal handlers that must not run wakers.
    ///
    /// # Cost
    ///
    /// The limiter's release, and one read-modify-write.
    ///
    /// ```
    /// # use portcullis_async::Queue;
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// let queue = Queue::new(Concurrency::new(1), ManualClock::new(), 9);
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

    /// Returns the permits that could be taken now: by the first waiter, or by any caller if no
    /// request waits.
    ///
    /// ```
    /// # use portcullis_async::Queue;
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// let queue = Queue::new(Concurrency::new(2), ManualClock::new(), 0);
    /// assert_eq!(queue.available(), 2);
    /// ```
    pub fn available(&self) -> u64 {
        self.wait_queue
            .source
            .0
            .available_at(self.wait_queue.clock.now())
    }

    /// Returns a view of the limiter, which can be asked and not changed. A limit on concurrency is
    /// its [`capacity`](Limiter::capacity). For other settings, see
    /// [`change`](Queue#method.change).
    ///
    /// ```
    /// # use portcullis_async::Queue;
    /// # use portcullis_core::{Concurrency, Retry, Timeless, Timestamp};
    /// let queue = Queue::new(Concurrency::new(2), Timeless, 9);
    /// let _held = queue.try_acquire(2)?;
    /// let limiter = queue.limiter();
    /// assert_eq!((limiter.capacity(), limiter.available_at(Timestamp::ZERO)), (2, 0));
    /// let denied = limiter.peek_at(Timestamp::ZERO, 1).unwrap_err();
    /// assert_eq!(limiter.retry(denied), Retry::OnRelease);
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    pub const fn limiter(&self) -> LimiterView<'_, L> {
        LimiterView(&self.wait_queue.source.0)
    }

    /// Calls `change` with the limiter, to change its settings or to read them, and then grants
    /// what has become available. `change` must not take permits, because that would bypass the
    /// queue.
    ///
    /// A waiting request whose permits now come after its deadline ends at once, with
    /// [`Rejected::Deadline`](crate::Rejected::Deadline) or, if the deadline is the bound of the
    /// queue's shedding, with `Rejected::Shed`. The limiter is asked about each such request as if
    /// no other one were before it. So a request that can be in time if those before it leave stays
    /// in the queue.
    ///
    /// # Cost
    ///
    /// A look at the limiter for each waiting request with a deadline, with the queue locked.
    ///
    /// ```
    /// # use portcullis_async::Queue;
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// let queue = Queue::new(Concurrency::new(2), ManualClock::new(), 9);
    /// assert_eq!(queue.change(|limit| limit.set_limit(5)), Ok(2));
    /// assert_eq!(queue.change(|limit| limit.limit()), 5);
    /// ```
    ///
    /// A pause, for example until the end of a `Retry-After`:
    ///
    /// ```
    /// # use core::pin::pin;
    /// # use core::task::{Context, Poll, Waker};
    /// # use core::time::Duration;
    /// use portcullis_async::{Queue, Rejected};
    /// use portcullis_core::{Clock, Concurrency, ManualClock, Penalty};
    ///
    /// // The longest pause is an hour.
    /// let pause = Penalty::builder(Duration::from_secs(3_600)).started_by_hand().build()?;
    /// let calls = Queue::new(pause.around(Concurrency::new(1)), ManualClock::new(), 9);
    /// let call = calls.try_acquire(1).unwrap();
    /// let mut hurried = pin!(calls.acquire(1).within(Duration::from_secs(10)));
    /// # let mut context = Context::from_waker(Waker::noop());
    /// assert!(hurried.as_mut().poll(&mut context).is_pending());
    ///
    /// // The reply to the call: no further one before 30 s have passed.
    /// let now = calls.clock().now();
    /// let until = now.saturating_add(Duration::from_secs(30));
    /// calls.change(|limit| limit.penalize_at(now, until));
    /// drop(call);
    ///
    /// let Poll::Ready(Err(rejected)) = hurried.poll(&mut context) else { panic!() };
    /// assert!(matches!(rejected, Rejected::Deadline { .. }));
    /// let mut patient = pin!(calls.acquire(1));
    /// assert!(patient.as_mut().poll(&mut context).is_pending());
    /// calls.clock().set(until);
    /// calls.advance();
    /// assert!(patient.poll(&mut context).is_ready());
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub fn change<T>(&self, change: impl FnOnce(&L) -> T) -> T {
        self.wait_queue.change(|source| change(&source.0))
    }

    /// Fails if a new request must not ask the limiter.
    fn pass(&self, now: Timestamp, n: u32) -> Result<(), Denied> {
        if self.wait_queue.is_closed() {
            Err(Denied::Closed { permits: n })
        } else if self.wait_queue.options.order != Order::NewestFirst
            && self.wait_queue.is_waited_for(())
        {
            Err(Denied::Exhausted { now, permits: n })
        } else {
            Ok(())
        }
    }
}

impl<L: QueueLimiter, C: QueueClock, R: RawLock, H: Hook> Queued for Queue<L, C, R, H> {
    #[inline]
    fn key(&self) {}
}

/// A lease whose permits were released directly to the limiter, or whose limiter panicked in that
/// release. Dropping it does not release the permits again. It sets the pending-release bit, so
/// that the next call on the queue grants them.
struct ReleasedLater<L, C, R, H, P>(Option<Lease<P>>)
where
    L: QueueLimiter,
    C: QueueClock,
    R: RawLock,
    H: Hook,
    P: Deref<Target = Queue<L, C, R, H>>;

impl<L, C, R, H, P> Drop for ReleasedLater<L, C, R, H, P>
where
    L: QueueLimiter,
    C: QueueClock,
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

impl<L: QueueLimiter, C: QueueClock, R: RawLock, H: Hook> Limiter for Queue<L, C, R, H> {
    /// Denies without asking the limiter while the queue is closed, and while requests wait, except
    /// in newest-first order.
    #[inline(always)]
    fn decide(&self, ask: Ask<'_>) -> Answer {
        let (now, n, seen) = (ask.now(), ask.permits(), ask.detail());
        let answer = match self.pass(now, n) {
            // A take checks again for waiters.
            Ok(()) if ask.is_look() => self.wait_queue.source.0.decide(ask),
            Ok(()) => self.wait_queue.decide((), ask),
            Err(Denied::Exhausted { .. }) if matches!(ask.when(), When::Within(_)) => {
                Answer::TimeMatters
            }
            Err(denied) => {
                if ask.is_final() {
                    self.wait_queue.not_granted((), now, n, denied.into());
                }
                Answer::Denied(denied)
            }
        };
        if let (Answer::Denied(denied), Some(seen)) = (&answer, seen) {
            let look = || self.wait_queue.source.0.explain_at(now, n);
            tell_denial(seen, *denied, self.retry(*denied), look);
        }
        answer
    }

    #[inline(always)]
    fn give_back(&self, back: Back<'_>) -> Returned {
        match back {
            Back::Release { permits } => {
                self.wait_queue.release((), permits);
                Returned::NOTHING
            }
            Back::Refund { .. } => self
                .wait_queue
                .give_back((), |source| (source.0.give_back(back), Waiting::Unknown)),
            // The limiter watches the waiters of this queue.
            Back::Watch(_) => Returned::NOTHING,
            back => self.wait_queue.source.0.give_back(back),
        }
    }

    fn read(&self, mut read: Read<'_>) -> Reading {
        if let Some(denied) = read.denied() {
            read.offer(metadata::RETRY_AFTER, || self.retry(denied));
        }
        let reading = self.wait_queue.source.0.read(read);
        let idle = if self.wait_queue.is_waited_for(()) {
            Idle::InUse
        } else {
            reading.idle
        };
        Reading { idle, ..reading }
    }

    /// Returns what the limiter returns. Except in newest-first order, the permits that are queued
    /// count as requested ahead of this request.
    fn retry(&self, denied: Denied) -> Retry {
        match denied {
            Denied::Closed { .. } => Retry::Never,
            Denied::Exhausted { now, permits }
                if self.wait_queue.options.order != Order::NewestFirst =>
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

    fn id(&self) -> Option<LimiterId> {
        LimiterId::of(self)
    }

    #[inline(always)]
    fn hints(&self) -> Hints {
        self.wait_queue.source.0.hints()
    }
}

/// A queue can own another queue. It then only takes from the inner queue and never waits in it.
impl<L: QueueLimiter, C: QueueClock, R: RawLock, H: Hook> QueueLimiter for Queue<L, C, R, H> {
    const SHARED: bool = L::SHARED;
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
