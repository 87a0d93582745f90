//! The type behind [`Queue`](crate::Queue) and [`KeyedQueue`](crate::KeyedQueue), and what both can
//! do: options, counts, drivers, and the end of the queue.
//!
//! It owns a wait queue, which has the state. The two names differ in their source of limiters: a
//! single one, or one for each key. `queue.rs` and `keyed_queue.rs` have the requests of each.

use core::time::Duration;
#[cfg(feature = "std")]
use std::sync::Arc;

use crate::driving::drive::{self, Drive};
use crate::lock::{DefaultLock, RawLock};
use crate::queues::drained::Drained;
use crate::waiting::hook::Hook;
use crate::waiting::limiter_source::LimiterSource;
use crate::waiting::options::{Order, Oversized};
#[cfg(feature = "shedding")]
use crate::waiting::queue_clock::DeadlineClock;
use crate::waiting::queue_clock::QueueClock;
#[cfg(feature = "shedding")]
use crate::waiting::shedding::{Shedding, Stored};
use crate::waiting::timer::{ReentrantTimer, Timer};
use crate::waiting::wait_queue::counts::QueueCounts;
use crate::waiting::wait_queue::driver::Next;
use crate::waiting::wait_queue::{HasWaitQueue, WaitQueue};

/// Limiters, and a queue of the requests that wait for their permits: what a
/// [`Queue`](crate::Queue) and a [`KeyedQueue`](crate::KeyedQueue) have in common. Use these names.
///
/// `S` says which: the source of the limiters. Sealed. `C` is the clock, `R` the
/// [lock](crate::RawLock) of the wait lists, and `H` the [hook](crate::Hook).
///
/// ```
/// use portcullis_async::{KeyedQueue, Order, Queue};
/// use portcullis_core::{Concurrency, Keyed, Timeless};
/// let queue = Queue::new(Concurrency::new(2), Timeless, 9).with_order(Order::NewestFirst);
/// let table = Keyed::for_keys(Concurrency::new(2), 1_000);
/// let by_key = KeyedQueue::new(table, Timeless, 9).with_order(Order::NewestFirst);
/// queue.close();
/// by_key.close();
/// ```
pub struct LimiterQueue<S: LimiterSource, C, R = DefaultLock, H = ()> {
    pub(crate) wait_queue: WaitQueue<(S, C, R, H)>,
}

impl<S: LimiterSource, C: QueueClock, R: RawLock> LimiterQueue<S, C, R> {
    /// Calls `hook` when a wait is over. In a constant, use [`hooked`](crate::Queue::hooked).
    ///
    /// ```
    /// use portcullis_async::{Queue, Waited};
    /// use portcullis_core::{Concurrency, ManualClock};
    /// let queue = Queue::new(Concurrency::new(2), ManualClock::new(), 9);
    /// let queue = queue.with_hook(|waited: &Waited| {
    ///     println!("{:?} after {:?}", waited.outcome, waited.time)
    /// });
    /// # _ = queue;
    /// ```
    pub fn with_hook<H: Hook>(self, hook: H) -> LimiterQueue<S, C, R, H> {
        LimiterQueue {
            wait_queue: self.wait_queue.with_hook(hook),
        }
    }
}

impl<S: LimiterSource, C, R, H> LimiterQueue<S, C, R, H> {
    /// Sets which request is granted first, and which one fails if the queue is full. Default:
    /// [`Order::OldestFirst`].
    ///
    /// ```
    /// # use portcullis_async::{Order, Queue};
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// let queue = Queue::new(Concurrency::new(2), ManualClock::new(), 9)
    ///     .with_order(Order::NewestFirst);
    /// ```
    #[must_use]
    pub const fn with_order(mut self, order: Order) -> Self {
        self.wait_queue.options.order = order;
        self
    }

    /// Sets what becomes of a request for more permits than the limiter can ever grant with its
    /// present settings. Default: [`Oversized::Reject`](crate::Oversized::Reject).
    ///
    /// ```
    /// # use portcullis_async::{Oversized, Queue};
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// let queue = Queue::new(Concurrency::new(2), ManualClock::new(), 9)
    ///     .with_oversized(Oversized::Wait);
    /// ```
    #[must_use]
    pub const fn with_oversized(mut self, oversized: Oversized) -> Self {
        self.wait_queue.options.oversized = oversized;
        self
    }

    /// Sets how many requests may wait at once, for all keys together. A [`Queue`](crate::Queue)
    /// allows 2^32 - 1 by default, a [`KeyedQueue`](crate::KeyedQueue) 4,096.
    ///
    /// ```
    /// # use portcullis_async::Queue;
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// let queue =
    ///     Queue::new(Concurrency::new(2), ManualClock::new(), 100).with_max_waiters(10);
    /// ```
    #[must_use]
    pub const fn with_max_waiters(mut self, waiters: u32) -> Self {
        self.wait_queue.options.max_waiters = waiters;
        self
    }

    /// Sets the slack: how late a grant may be and still count as on time. At most 1 s; a larger
    /// value counts as 1 s. Default: 10 ms.
    ///
    /// Permits that became available within the slack are granted as if on time. So a rate that is
    /// finer than the timer's resolution is granted in batches, without loss. If the timer is later
    /// than the slack, the permits of the additional time are lost, except those that the burst
    /// holds.
    ///
    /// The slack serves waiting requests. While no request waits, permits accumulate only up to the
    /// burst. So with a burst of 1, the full rate needs as many waiting requests as permits accrue
    /// between two wake-ups of the timer: at 1,000 permits a second and a wake-up every 10 ms, 10
    /// requests.
    ///
    /// The queue uses no slack in two cases:
    ///
    /// - if it serves the [newest request first](crate::Order::NewestFirst), always or while it is
    ///   overloaded: new requests may have taken permits in the meantime;
    /// - if the limiter is [shared](portcullis_core::queue::QueueLimiter::SHARED), for example
    ///   behind a pointer: other callers may have taken permits in the meantime.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_async::Queue;
    /// # use portcullis_core::{ManualClock, Rate, TokenBucket};
    /// // Never two grants at once.
    /// let queue = Queue::new(
    ///     TokenBucket::new(Rate::per_second(10), 1),
    ///     ManualClock::new(),
    ///     9,
    /// )
    /// .with_slack(Duration::ZERO);
    /// ```
    #[must_use]
    pub const fn with_slack(mut self, slack: Duration) -> Self {
        // The staleness of every limiter is at least that.
        let most = Duration::from_secs(1);
        self.wait_queue.options.slack = if slack.as_nanos() > most.as_nanos() {
            most
        } else {
            slack
        };
        self
    }

    /// Adds a random delay, from zero to `jitter`, before the queue asks a limiter again. This
    /// keeps a large number of processes from sending their next requests at the same instant, for
    /// example when a window ends. Default: zero.
    ///
    /// The delay makes the timer late, so the grants follow the rules of
    /// [`with_slack`](Self::with_slack): a jitter up to the slack loses no permits. The delay ends
    /// at the deadline of the oldest request at the latest. The deadline of a request behind it may
    /// pass during the delay. A release, a change of the limiter or a cancelled request can end the
    /// delay early.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_async::{Next, Queue};
    /// # use portcullis_core::{FixedWindow, ManualClock, Timestamp};
    /// # use core::pin::pin;
    /// # use core::task::{Context, Waker};
    /// let window = FixedWindow::new(1, Duration::from_secs(60));
    /// let queue = Queue::new(window, ManualClock::new(), 9)
    ///     .with_jitter(Duration::from_secs(2));
    /// assert!(queue.try_acquire(1).is_ok());
    /// let mut waits = pin!(queue.acquire(1));
    /// # let mut context = Context::from_waker(Waker::noop());
    /// assert!(waits.as_mut().poll(&mut context).is_pending());
    /// let Next::At(next) = queue.advance() else { panic!() };
    /// assert!(next >= Timestamp::from_secs(60) && next <= Timestamp::from_secs(62));
    /// ```
    #[must_use]
    pub const fn with_jitter(mut self, jitter: Duration) -> Self {
        self.wait_queue.options.jitter = jitter;
        self
    }

    /// Returns the clock.
    ///
    /// ```
    /// # use portcullis_async::Queue;
    /// # use portcullis_core::{Clock, Concurrency, ManualClock, Timestamp};
    /// let queue = Queue::new(Concurrency::new(2), ManualClock::new(), 9);
    /// queue.clock().advance(core::time::Duration::from_secs(1));
    /// assert_eq!(queue.clock().now(), Timestamp::from_secs(1));
    /// ```
    pub const fn clock(&self) -> &C {
        &self.wait_queue.clock
    }
}

#[cfg(feature = "shedding")]
impl<S: LimiterSource, C: DeadlineClock, R, H> LimiterQueue<S, C, R, H> {
    /// Makes the queue shed load: bounds the time that a request waits, by the rule of `shedding`.
    /// Default: requests wait until they are granted, or until their own deadlines.
    ///
    /// During an overload each request of a queue without a bound is served late, when its caller
    /// may have given up. With a bound the requests that are served are fresh, and the others fail
    /// early:
    ///
    /// - A wait list is *overloaded* if it has had waiters without a break for longer than the
    ///   interval of the shedding.
    /// - A new request waits for at most the target if its list is overloaded, and otherwise for at
    ///   most the interval. So a burst that the queue serves within the interval is absorbed.
    /// - Then it fails with [`Rejected::Shed`](crate::Rejected::Shed), or at once if it is known
    ///   that the permits will come later. If its own deadline is not later than the bound, it
    ///   fails with [`Rejected::Deadline`](crate::Rejected::Deadline) instead.
    /// - The bound is set when the request enters the list, and does not change.
    ///
    /// **Bound.** Each granted request has waited for at most the interval, and later than two
    /// intervals after its list began to have waiters, for at most the target. As for any deadline,
    /// the [slack](Self::with_slack) of a late timer comes in addition.
    ///
    /// A queue of a [`KeyedQueue`](crate::KeyedQueue) is overloaded by itself: the waiters of one
    /// key say nothing about another. [`QueueCounts::shed`] counts the requests that were shed. The
    /// limiter learns of each as of a request past its deadline.
    ///
    /// Needs a [`DeadlineClock`].
    ///
    /// # Cost
    ///
    /// Each wait costs as much as one with a deadline. On 64-bit targets the feature `shedding`
    /// adds 40 bytes to each queue, also to one that does not shed.
    ///
    /// ```
    /// use core::time::Duration;
    /// use portcullis_async::{Queue, Rejected, Shedding};
    /// use portcullis_core::{Concurrency, ManualClock};
    /// # use core::pin::pin;
    /// # use core::task::{Context, Poll, Waker};
    ///
    /// // Waits of up to 100 ms, and of up to 5 ms once requests have waited for 100 ms.
    /// let queue = Queue::new(Concurrency::new(1), ManualClock::new(), 1_000)
    ///     .with_shedding(Shedding::default());
    /// let held = queue.try_acquire(1)?;
    /// let mut waits = pin!(queue.acquire(1));
    /// # let mut context = Context::from_waker(Waker::noop());
    /// assert!(waits.as_mut().poll(&mut context).is_pending());
    /// queue.clock().advance(Duration::from_millis(101));
    /// queue.advance();
    /// let Poll::Ready(Err(shed)) = waits.poll(&mut context) else { panic!() };
    /// assert!(matches!(shed, Rejected::Shed { permits: 1, .. }));
    /// assert_eq!(queue.counts().shed, 1);
    /// # drop(held);
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    #[must_use]
    pub const fn with_shedding(mut self, shedding: Shedding) -> Self {
        self.wait_queue.options.shedding = Stored::new(Some(shedding));
        self
    }
}

impl<S: LimiterSource, C: QueueClock, R: RawLock, H: Hook> LimiterQueue<S, C, R, H> {
    /// Returns how many requests wait now, and the totals so far.
    ///
    /// ```
    /// # use portcullis_async::Queue;
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// let queue = Queue::new(Concurrency::new(2), ManualClock::new(), 0);
    /// let held = futures_executor::block_on(queue.acquire(2))?;
    /// assert!(
    ///     futures_executor::block_on(queue.acquire(1)).is_err(),
    ///     "no request may wait"
    /// );
    /// assert_eq!(queue.counts().full, 1);
    /// # drop(held);
    /// # Ok::<(), portcullis_async::Rejected>(())
    /// ```
    pub fn counts(&self) -> QueueCounts {
        self.wait_queue.counts()
    }

    /// Grants what has become available, by the time of the clock or for any other reason. Returns
    /// when to call this method again.
    ///
    /// # Cost
    ///
    /// One load if no request waits.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_async::{Next, Queue};
    /// # use portcullis_core::{ManualClock, Rate, Timestamp, TokenBucket};
    /// # use core::future::Future;
    /// # use core::pin::pin;
    /// # use core::task::{Context, Poll, Waker};
    /// let bucket = TokenBucket::new(Rate::per_second(10), 1);
    /// let queue = Queue::new(bucket, ManualClock::new(), 9);
    /// let mut context = Context::from_waker(Waker::noop());
    /// assert!(pin!(queue.acquire(1)).poll(&mut context).is_ready());
    ///
    /// let mut second = pin!(queue.acquire(1));
    /// assert!(second.as_mut().poll(&mut context).is_pending());
    /// assert_eq!(queue.advance(), Next::At(Timestamp::from_millis(100)));
    /// queue.clock().advance(Duration::from_millis(100));
    /// assert_eq!(queue.advance(), Next::Idle);
    /// assert!(second.poll(&mut context).is_ready());
    /// ```
    pub fn advance(&self) -> Next {
        self.wait_queue.pass_by()
    }

    /// Sets how many permits the requests that wait may have: of each key, if the queue has keys.
    /// Requests that already wait go on waiting, also beyond a lower number.
    ///
    /// ```
    /// # use portcullis_async::{Queue, Rejected};
    /// # use portcullis_core::{Concurrency, Timeless};
    /// # use core::future::Future;
    /// # use core::pin::pin;
    /// # use core::task::{Context, Waker};
    /// let queue = Queue::new(Concurrency::new(1), Timeless, 1);
    /// let held = queue.try_acquire(1)?;
    /// let mut waits = pin!(queue.acquire(1));
    /// # let mut context = Context::from_waker(Waker::noop());
    /// assert!(waits.as_mut().poll(&mut context).is_pending());
    /// queue.set_max_permits(0);
    /// let full = futures_executor::block_on(queue.acquire(1));
    /// assert!(matches!(full, Err(Rejected::QueueFull { .. })));
    /// drop(held);
    /// assert!(waits.poll(&mut context).is_ready());
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    pub fn set_max_permits(&self, permits: u64) {
        self.wait_queue.set_max_permits(permits);
    }

    /// Closes the queue. Requests that wait and all later ones fail with
    /// [`Rejected::Closed`](crate::Rejected::Closed). Leases that are held remain valid.
    ///
    /// ```
    /// # use portcullis_async::{Queue, Rejected};
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// let queue = Queue::new(Concurrency::new(2), ManualClock::new(), 9);
    /// queue.close();
    /// assert_eq!(
    ///     futures_executor::block_on(queue.acquire(1)).unwrap_err(),
    ///     Rejected::Closed { permits: 1 }
    /// );
    /// ```
    pub fn close(&self) {
        self.wait_queue.close();
    }

    /// Waits until no permits are [held](portcullis_core::limiter::Reading::held): all leases whose
    /// permits return by release have been released. Ready immediately if the permits of the
    /// limiters return by time. A [`KeyedQueue`](crate::KeyedQueue) waits until each key of its
    /// table has been seen with no permits held; then all leases that were held when the future was
    /// first polled have been released.
    ///
    /// For a graceful shutdown, call [`close`](Self::close) first. Otherwise new permits may have
    /// been taken by the time the future is ready.
    ///
    /// # Cost
    ///
    /// In a `KeyedQueue`, a release while such a future waits looks at slots of the table, up to
    /// the first one whose permits are held, with the queue locked. All releases together look at
    /// each slot at most twice once the queue is closed.
    ///
    /// ```
    /// # use portcullis_async::Queue;
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// # futures_executor::block_on(async {
    /// let queue = Queue::new(Concurrency::new(2), ManualClock::new(), 9);
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

    /// Returns whether the queue has been [closed](Self::close).
    ///
    /// ```
    /// # use portcullis_async::Queue;
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// let queue = Queue::new(Concurrency::new(2), ManualClock::new(), 9);
    /// assert!(!queue.is_closed());
    /// ```
    pub fn is_closed(&self) -> bool {
        self.wait_queue.is_closed()
    }
}

impl<S: LimiterSource, C: Timer, R: RawLock, H: Hook> LimiterQueue<S, C, R, H> {
    /// Returns a future that drives the queue: it grants what is due by time, so that no waiting
    /// task has to be polled for that. Run it in a task of its own, or join it with the futures
    /// that wait. One timer serves all waiters. The future is ready when the queue is closed.
    ///
    /// If several tasks run this future, only the task that was polled last drives the queue. The
    /// queue wakes that task when a grant is due, or becomes due earlier. Until the task is polled,
    /// time alone grants nothing.
    ///
    /// ```
    /// use portcullis_async::{Queue, ThreadTimer};
    /// use portcullis_core::{Clock, Rate, TokenBucket};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// let bucket = TokenBucket::new(Rate::per_second(100), 1);
    /// let queue = Queue::new(bucket, ThreadTimer::new(), 9);
    /// let begun = queue.clock().now();
    /// let work = async {
    ///     for _ in 0..3 {
    ///         queue.acquire(1).await.unwrap();
    ///     }
    ///     queue.close();
    /// };
    /// tokio::join!(queue.drive(), work);
    /// let took = queue.clock().now().saturating_since(begun);
    /// assert!(took.as_millis() >= 20);
    /// # });
    /// ```
    pub const fn drive(&self) -> Drive<'_, Self> {
        Drive::new(self)
    }

    /// Makes the queue drive itself from now on: the timer makes the grants when it wakes, and no
    /// waiting task has to be polled for them. For a queue in a static; for one in an `Arc`, see
    /// `shared`.
    ///
    /// Needs a [`ReentrantTimer`](crate::ReentrantTimer), which an `EmbassyTimer` is not. With such
    /// a timer, run [`drive`](Self::drive) in a task.
    ///
    /// ```
    /// use portcullis_async::{Queue, ThreadTimer};
    /// use portcullis_core::{Rate, TokenBucket};
    ///
    /// static QUEUE: Queue<TokenBucket, ThreadTimer> =
    ///     Queue::new(TokenBucket::new(Rate::per_second(200), 1), ThreadTimer::new(), 9);
    /// QUEUE.attend();
    /// futures_executor::block_on(async {
    ///     for _ in 0..3 {
    ///         let _permit = QUEUE.acquire(1).await?;
    ///     }
    ///     Ok::<(), portcullis_async::Rejected>(())
    /// })?;
    /// # Ok::<(), portcullis_async::Rejected>(())
    /// ```
    pub fn attend(&'static self)
    where
        Self: Sync,
        C: ReentrantTimer,
    {
        drive::attend(self);
    }

    /// Puts the queue into an `Arc` and makes the queue drive itself: see
    /// [`attend_shared`](Self::attend_shared). Call it last, after the options. Needs the feature
    /// `std`.
    ///
    /// In a queue of this kind, permits that return by time come to every task, whichever other
    /// tasks are polled. Without it, one of the waiting tasks drives the queue. If a program keeps
    /// the future of that task and does not poll the future, for example in a loop around
    /// `select!`, no other task gets a permit.
    ///
    /// Permits that return by release are another matter. Once they are granted, they belong to the
    /// request until its future is polled or dropped, in every queue: they are not taken back,
    /// because another request would overtake it. So a program hangs if it waits for them in code
    /// that keeps that future from being polled. For example, in the body of a loop over a
    /// `buffer_unordered` whose futures wait in the same queue. Spawn such futures as tasks, or
    /// take the permit of the body before the stream is polled on. With a timeout
    /// ([`Acquire::within`](crate::Acquire::within)), the wait of the body ends with
    /// [`Rejected::Deadline`](crate::Rejected::Deadline), and the loop goes on.
    ///
    /// ```
    /// # use core::future::Future;
    /// # use core::pin::pin;
    /// # use core::task::{Context, Waker};
    /// use portcullis_async::{Queue, ThreadTimer};
    /// use portcullis_core::{Rate, TokenBucket};
    ///
    /// let bucket = TokenBucket::new(Rate::per_second(200), 1);
    /// let queue = Queue::new(bucket, ThreadTimer::new(), 9).shared();
    /// let _first = queue.try_acquire(1)?;
    /// let mut not_polled_again = pin!(queue.acquire(1));
    /// # let mut context = Context::from_waker(Waker::noop());
    /// assert!(not_polled_again.as_mut().poll(&mut context).is_pending());
    /// // The timer grants the permits of both requests.
    /// let third = futures_executor::block_on(queue.acquire(1));
    /// assert!(third.is_ok());
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    #[cfg(feature = "std")]
    #[must_use = "the queue is in the `Arc`"]
    pub fn shared(self) -> Arc<Self>
    where
        Self: Send + Sync + 'static,
        C: ReentrantTimer,
    {
        let queue = Arc::new(self);
        queue.attend_shared();
        queue
    }

    /// Makes a queue that is already in an `Arc` drive itself, like [`attend`](Self::attend), until
    /// the last `Arc` is dropped. [`shared`](Self::shared) creates such a queue. Needs the feature
    /// `std`.
    ///
    /// ```
    /// # use portcullis_async::{Queue, ThreadTimer};
    /// # use portcullis_core::{Rate, TokenBucket};
    /// # use std::sync::Arc;
    /// let bucket = TokenBucket::new(Rate::per_second(200), 1);
    /// let queue = Arc::new(Queue::new(bucket, ThreadTimer::new(), 9));
    /// queue.attend_shared();
    /// ```
    #[cfg(feature = "std")]
    pub fn attend_shared(self: &Arc<Self>)
    where
        Self: Send + Sync + 'static,
        C: ReentrantTimer,
    {
        drive::attend_shared(self);
    }
}

#[allow(unsafe_code, reason = "a promise alone")]
// SAFETY: the wait queue is a field of the queue.
unsafe impl<S: LimiterSource, C: QueueClock, R: RawLock, H: Hook> HasWaitQueue
    for LimiterQueue<S, C, R, H>
{
    type Config = (S, C, R, H);

    #[inline]
    fn wait_queue(&self) -> &WaitQueue<Self::Config> {
        &self.wait_queue
    }
}
