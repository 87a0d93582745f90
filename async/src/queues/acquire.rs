//! The future that waits for permits, and the pointers that it accepts.
//!
//! State: the pointer to the queue, until the future has completed, and the waiter, which the wait
//! list links.
//!
//! ```text
//!   new --poll--> granted or rejected at once: completed, the waiter was in no list
//!       --poll--> waiting --settled by the holder of the lock--> settled --poll--> completed
//!                    | drop                                         | drop
//!                    v                                              v
//!                 leaves its list                         gives the permits back
//! ```
//!
//! Invariant: a waiter that was put into a list belongs to a pinned future, and leaves the list
//! before the future is dropped.
#![allow(unsafe_code)]

use core::fmt;
use core::future::Future;
use core::ops::Deref;
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;

use portcullis_core::{Clock, Clocked, Denied, Lease, Limiter, Timestamp};
use stable_deref_trait::StableDeref;

use crate::finally::Finally;
#[cfg(feature = "shedding")]
use crate::waiting::priority::Priority;
use crate::waiting::queue_clock::{DeadlineClock, Wakes};
use crate::waiting::queue_config::{Key, QueueTypes};
use crate::waiting::rejected::Rejected;
use crate::waiting::wait_list::{Request, State, Waiter, WaiterSlot};
use crate::waiting::wait_queue::{Grant, HasWaitQueue, WaitQueue};

/// The target of the pointer in an [`Acquire`]: a [`Queue`](crate::Queue), or the queue of one key
/// in a [`KeyedQueue`](crate::KeyedQueue). Sealed.
#[doc(hidden)]
pub trait Queued: HasWaitQueue + Limiter {
    fn key(&self) -> Key<Self::Config>;
}

/// The types of the wait queue that a pointer leads to.
pub(crate) type ConfigOf<P> = <<P as Deref>::Target as HasWaitQueue>::Config;

/// The clock of the wait queue that a pointer leads to.
type ClockOf<P> = <ConfigOf<P> as QueueTypes>::Clock;

/// A pointer whose target does not move when the pointer is moved. Sealed: implemented for every
/// `StableDeref`, and for [`QueueKey`](crate::QueueKey), which contains one.
///
/// # Safety
///
/// After the pointer has been moved, it leads to the same wait queue.
#[doc(hidden)]
pub unsafe trait Anchored: Deref<Target: Queued> {}

// SAFETY: the target of a `StableDeref` does not move with the pointer.
unsafe impl<P: StableDeref + Deref<Target: Queued>> Anchored for P {}

/// Takes `n` permits at the time of the queue's clock, without waiting.
#[inline]
pub(crate) fn try_acquire<P: Deref<Target: Queued>>(queue: P, n: u32) -> Result<Lease<P>, Denied> {
    match Clocked::new(&*queue, &queue.wait_queue().clock).take(n) {
        Ok(receipt) => Ok(Lease::from_grant(queue, n, receipt)),
        Err(denied) => Err(denied),
    }
}

/// A future that waits for permits and returns a [`Lease`]. Returned by
/// [`Queue::acquire`](crate::Queue#method.acquire) and its variants; [`new`](Self::new) takes any
/// pointer to a queue.
///
/// The future does nothing until it is first polled. Dropping it cancels the request: the queue has
/// room for another request immediately, and permits that were already granted go to the next
/// waiter.
///
/// The future stores the waiter itself, without allocation, and so must be pinned. `P` is a pointer
/// to the queue: `&Queue`, `&'static Queue`, `Arc<Queue>`, or any other pointer whose target does
/// not move when the pointer is moved (`StableDeref`).
///
/// ```
/// use portcullis_async::{Acquire, Queue};
/// use portcullis_core::{Concurrency, ManualClock};
/// use std::sync::Arc;
///
/// let queue = Arc::new(Queue::new(Concurrency::new(2), ManualClock::new(), 9));
/// // The future owns a pointer to the queue, and later the lease does.
/// let lease = futures_executor::block_on(Acquire::new(Arc::clone(&queue), 2))?;
/// std::thread::spawn(move || drop(lease)).join().unwrap();
/// # Ok::<(), portcullis_async::Rejected>(())
/// ```
#[must_use = "a future does nothing until it is polled"]
pub struct Acquire<P: Anchored> {
    /// `None` once the future has completed.
    queue: Option<P>,
    wait: WaiterSlot<Key<ConfigOf<P>>>,
}

// SAFETY: the waiter belongs to the future, or to the holder of the lock, which threads share.
unsafe impl<P: Anchored + Send> Send for Acquire<P> where Key<ConfigOf<P>>: Send {}

// SAFETY: a shared reference gives access to no field.
unsafe impl<P: Anchored + Sync> Sync for Acquire<P> {}

impl<P: Anchored> Acquire<P> {
    /// Creates a future that waits for `n` permits, as
    /// [`Queue::acquire`](crate::Queue#method.acquire) does, and owns `queue`: any pointer to a
    /// queue.
    ///
    /// ```
    /// # use portcullis_async::{Acquire, Queue};
    /// # use portcullis_core::{Concurrency, Timeless};
    /// # use std::rc::Rc;
    /// let queue = Rc::new(Queue::new(Concurrency::new(2), Timeless, 9));
    /// let lease = futures_executor::block_on(Acquire::new(Rc::clone(&queue), 2))?;
    /// assert_eq!(lease.permits(), 2);
    /// # Ok::<(), portcullis_async::Rejected>(())
    /// ```
    #[inline]
    pub fn new(queue: P, n: u32) -> Self {
        let request = Request {
            min: n,
            max: n,
            deadline: Timestamp::MAX,
        };
        Self {
            queue: Some(queue),
            wait: WaiterSlot::new(request),
        }
    }

    /// Takes up to `max` permits: as many as are available when the request is granted, and at
    /// least the number that it waits for. The queue counts the request as that number. If `max` is
    /// less, it has no effect.
    ///
    /// ```
    /// # use portcullis_async::Queue;
    /// # use portcullis_core::{Concurrency, Timeless};
    /// # futures_executor::block_on(async {
    /// let queue = Queue::new(Concurrency::new(5), Timeless, 9);
    /// let some = queue.acquire(1).up_to(100).await?;
    /// assert_eq!(some.permits(), 5);
    /// # Ok::<(), portcullis_async::Rejected>(()) }).unwrap();
    /// ```
    pub const fn up_to(mut self, max: u32) -> Self {
        // The future can still be moved, so the waiter is in no list.
        let request = self.wait.request_mut();
        request.max = if max > request.min { max } else { request.min };
        self
    }

    /// Sets which requests of the wait list come first: those of a higher priority, however long
    /// the others wait. The default is [`Priority::Normal`]. Needs the feature `shedding`.
    ///
    /// - Among the requests of one priority, the order is that of the queue. In an order in which
    ///   new requests go first, they take free permits ahead of all that wait, whatever their
    ///   priority.
    /// - If the queue is full, a request that has to wait evicts those of a lower priority that
    ///   would be granted last. It evicts none if it does not fit then, unless others enter at the
    ///   same time. Only requests of the same key are evicted.
    /// - A try takes nothing while any request of its list waits, also one of a low priority.
    /// - In a [`KeyedQueue`](crate::KeyedQueue) the priority orders the requests of a key. Keys
    ///   take turns by their weights, whatever the priorities.
    ///
    /// Nothing bounds how long a request of a low priority waits, but its deadline and
    /// [`with_shedding`](crate::Queue::with_shedding). A deadline is judged when the request
    /// enters: if others go before it later, it waits until its deadline.
    ///
    /// **Cost**: a comparison in a list with one priority. In a list with several, as many steps as
    /// there are priorities, to enter and to leave.
    ///
    /// ```
    /// use portcullis_async::{Priority, Queue};
    /// use portcullis_core::{Concurrency, Timeless};
    /// # use core::pin::pin;
    /// # use core::task::{Context, Waker};
    ///
    /// let queue = Queue::new(Concurrency::new(1), Timeless, 9);
    /// let held = queue.try_acquire(1).unwrap();
    /// let mut backup = pin!(queue.acquire(1).priority(Priority::Low));
    /// let mut user = pin!(queue.acquire(1));
    /// # let mut context = Context::from_waker(Waker::noop());
    /// assert!(backup.as_mut().poll(&mut context).is_pending());
    /// assert!(user.as_mut().poll(&mut context).is_pending());
    /// drop(held);
    /// assert!(user.is_settled() && !backup.is_settled());
    /// ```
    #[cfg(feature = "shedding")]
    pub const fn priority(mut self, priority: Priority) -> Self {
        // The future can still be moved, so the waiter is in no list.
        self.wait.set_priority(priority);
        self
    }

    /// Sets a deadline, by the queue's clock. Permits that become available at that instant are
    /// still granted. [`Timestamp::MAX`] means no deadline, which is the default.
    ///
    /// The request fails with [`Rejected::Deadline`] when the deadline has passed. It fails
    /// immediately if the deadline cannot be met, on the assumption that no earlier request ends
    /// without its permits, at its own deadline or because it is cancelled, and that no permit is
    /// returned early. Several limits, and windows, tell a time that may be too early: the request
    /// then waits until its deadline. Free permits are granted even if the deadline has passed.
    ///
    /// A queue cannot know when a permit of a [`Concurrency`](portcullis_core::Concurrency) is
    /// released. So with one alone, a request waits until its deadline. Beside other limits it
    /// fails immediately if those alone grant it, and the requests ahead of it, too late.
    ///
    /// The same holds for what changes while the request waits: the settings of the limiter, or the
    /// requests ahead. No permits are taken for a request whose deadline has passed. If the timer
    /// is late, a grant that was due before the deadline is still made, within the
    /// [slack](crate::Queue::with_slack).
    ///
    /// Needs a [`DeadlineClock`], which [`Timeless`](portcullis_core::Timeless) is not:
    ///
    /// ```compile_fail,E0277
    /// # use portcullis_async::Queue;
    /// # use portcullis_core::{Concurrency, Timeless, Timestamp};
    /// let queue = Queue::new(Concurrency::new(1), Timeless, 9);
    /// let wait = queue.acquire(1).until(Timestamp::from_millis(50));
    /// ```
    ///
    /// ```
    /// # use portcullis_async::{Acquire, Queue, Rejected};
    /// # use portcullis_core::{ManualClock, Rate, Timestamp, TokenBucket};
    /// let queue = Queue::new(
    ///     TokenBucket::new(Rate::per_second(1), 1),
    ///     ManualClock::new(),
    ///     9,
    /// );
    /// assert!(futures_executor::block_on(queue.acquire(1)).is_ok());
    /// let late = queue.acquire(1).until(Timestamp::from_millis(999));
    /// assert!(matches!(
    ///     futures_executor::block_on(late),
    ///     Err(Rejected::Deadline { .. })
    /// ));
    /// ```
    pub const fn until(mut self, deadline: Timestamp) -> Self
    where
        ClockOf<P>: DeadlineClock,
    {
        // The future can still be moved, so the waiter is in no list.
        self.wait.request_mut().deadline = deadline;
        self
    }

    /// Sets a deadline `timeout` after the present time of the queue's clock; see
    /// [`until`](Self::until). Needs a [`DeadlineClock`].
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_async::{Acquire, Queue, Rejected};
    /// # use portcullis_core::{ManualClock, Rate, TokenBucket};
    /// let bucket = TokenBucket::new(Rate::per_second(1), 1);
    /// let queue = Queue::new(bucket, ManualClock::new(), 9);
    /// assert!(queue.try_acquire(1).is_ok());
    /// let late = queue.acquire(1).within(Duration::from_millis(999));
    /// assert!(matches!(
    ///     futures_executor::block_on(late),
    ///     Err(Rejected::Deadline { .. })
    /// ));
    /// ```
    pub fn within(self, timeout: Duration) -> Self
    where
        ClockOf<P>: DeadlineClock,
    {
        let now = self
            .queue
            .as_deref()
            .map(|queue| queue.wait_queue().clock.now());
        // A future that has completed has no queue, and no use for a deadline.
        let deadline = now.map_or(Timestamp::MAX, |now| now.saturating_add(timeout));
        self.until(deadline)
    }

    /// Returns whether the future has completed, or a hook panicked when it did. It must not be
    /// polled again.
    #[cfg(any(feature = "stream", feature = "futures-io", feature = "tokio"))]
    pub(crate) const fn is_over(&self) -> bool {
        self.queue.is_none()
    }

    /// Returns the queue, until the future has completed.
    #[cfg(all(feature = "std", not(portcullis_loom)))]
    pub(crate) fn queue(&self) -> Option<&P::Target> {
        self.queue.as_deref()
    }

    /// Returns the deadline. Once the request waits, this is the bound of the queue's shedding if
    /// that is earlier.
    #[cfg(all(feature = "std", not(portcullis_loom)))]
    pub(crate) fn deadline(&self) -> Timestamp {
        self.wait.request().deadline
    }

    /// Returns whether the future has been polled and is still in its wait list.
    #[cfg(all(feature = "std", not(portcullis_loom)))]
    pub(crate) fn is_waiting(&self) -> bool {
        // SAFETY: the waiter is filled.
        self.wait.is_filled() && unsafe { Waiter::state(self.wait.waiter()) } == State::Waiting
    }

    /// Takes immediately if no other request comes first. The future has then completed.
    #[inline(always)]
    pub(crate) fn take_now(&mut self) -> Option<(P, Grant)> {
        if self.wait.is_filled() {
            return None;
        }
        let queue = self.queue.as_deref()?;
        let grant = queue
            .wait_queue()
            .take_free(queue.key(), *self.wait.request_mut())?;
        Some((self.queue.take()?, grant))
    }

    /// Returns whether the request is granted or rejected, so that the next poll returns
    /// [`Poll::Ready`]. Returns `false` before the first poll, and after the future has completed.
    ///
    /// The task of a request may also be woken to drive the queue: see
    /// [`QueueClock`](crate::QueueClock). Takes no lock.
    ///
    /// ```
    /// use portcullis_async::{Acquire, Queue};
    /// use portcullis_core::{Concurrency, Timeless};
    /// # use core::pin::pin;
    /// # use core::task::{Context, Waker};
    ///
    /// let queue = Queue::new(Concurrency::new(1), Timeless, 9);
    /// let held = queue.try_acquire(1).unwrap();
    /// let mut second = pin!(queue.acquire(1));
    /// # let mut context = Context::from_waker(Waker::noop());
    /// assert!(second.as_mut().poll(&mut context).is_pending());
    /// assert!(!second.is_settled());
    /// drop(held);
    /// assert!(second.is_settled());
    /// assert!(second.as_mut().poll(&mut context).is_ready());
    /// ```
    pub fn is_settled(&self) -> bool {
        if self.queue.is_none() || !self.wait.is_filled() {
            return false;
        }
        // SAFETY: the waiter is filled, and the future has not completed.
        let state = unsafe { Waiter::state(self.wait.waiter()) };
        !matches!(state, State::Idle | State::Waiting)
    }

    /// Takes over the permits that were granted while the request waited.
    #[inline(always)]
    fn claim(self: Pin<&mut Self>) -> Option<(P, Grant)> {
        // SAFETY: the waiter is not moved.
        let this = unsafe { self.get_unchecked_mut() };
        if !this.wait.is_filled() {
            return None;
        }
        // SAFETY: the waiter was put into a list of this queue, and the future has not completed.
        let grant = unsafe { Waiter::claim(this.wait.waiter()) }?;
        Some((this.queue.take()?, grant))
    }

    /// Polls without making a lease of the outcome: see `conclude`. If `is_blocked`, a blocked
    /// thread polls; it drives the queue itself, and its future does not.
    #[cold]
    pub(crate) fn poll_waiting(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        is_blocked: bool,
    ) -> Poll<(P, Result<Grant, Rejected>)> {
        // SAFETY: the waiter is not moved.
        let this = unsafe { self.get_unchecked_mut() };
        let queue = this
            .queue
            .as_deref()
            .expect("`Acquire` polled after completion");
        let (wait_queue, waker) = (queue.wait_queue(), context.waker());
        let mut drives = false;
        let mut outcome = if this.wait.is_filled() {
            // SAFETY: the waiter was put into a list of this queue, and the future has not
            // completed.
            unsafe { wait_queue.outcome(this.wait.waiter(), waker, &mut drives) }
        } else {
            let can_drive = ClockOf::<P>::WAKES && !is_blocked;
            let waiter = this.wait.fill(queue.key(), waker.clone(), can_drive);
            // SAFETY: the waiter has just been filled and is pinned, and `drop` cancels it.
            unsafe { wait_queue.enqueue(waiter, &mut drives) }
        };
        if ClockOf::<P>::WAKES && drives {
            // SAFETY: the waiter was put into a list of this queue, and the future has not
            // completed.
            outcome = unsafe { wait_queue.drive_for(this.wait.waiter(), waker) };
        }
        let Some(outcome) = outcome else {
            return Poll::Pending;
        };
        Poll::Ready((
            this.queue.take().expect("present until completion"),
            outcome,
        ))
    }

    /// Makes a lease of what was granted, or returns the error, and calls the hook. Then calls
    /// `after` with the wait queue, also if the hook panics.
    #[inline(always)]
    pub(crate) fn conclude(
        self: Pin<&mut Self>,
        queue: P,
        outcome: Result<Grant, Rejected>,
        mut after: impl FnMut(&WaitQueue<ConfigOf<P>>),
    ) -> Result<Lease<P>, Rejected> {
        // SAFETY: the waiter is not moved.
        let this = unsafe { self.get_unchecked_mut() };
        let mut left = |wait_queue: &WaitQueue<ConfigOf<P>>, waiter: Option<_>| {
            let _after = Finally(|| after(wait_queue));
            if let Some(waiter) = waiter {
                // SAFETY: the waiter is filled, and its outcome is known.
                unsafe { wait_queue.left(waiter) };
            }
        };
        match outcome {
            Ok((permits, receipt)) => {
                let lease = Lease::from_grant(queue, permits, receipt);
                // If the hook panics, dropping the lease returns the permits.
                left(lease.limiter().wait_queue(), this.wait.take());
                Ok(lease)
            }
            Err(rejected) => {
                left(queue.wait_queue(), this.wait.take());
                Err(rejected)
            }
        }
    }

    /// Leaves the wait list, if the waiter is in one, and returns the permits that were granted to
    /// it.
    #[inline]
    pub(crate) fn give_up(self: Pin<&mut Self>) {
        // SAFETY: the waiter is not moved.
        let this = unsafe { self.get_unchecked_mut() };
        let Some(queue) = this.queue.as_deref() else {
            return;
        };
        if let Some(waiter) = this.wait.take() {
            // SAFETY: if the waiter was put into a list, it was a list of this queue. Its outcome
            // has not been taken.
            unsafe { queue.wait_queue().cancel(waiter) };
        }
    }
}

impl<P: Anchored> Future for Acquire<P> {
    type Output = Result<Lease<P>, Rejected>;

    /// # Panics
    ///
    /// If polled after completion.
    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // SAFETY: the waiter is not moved.
        let this = unsafe { self.as_mut().get_unchecked_mut() };
        if let Some((queue, (permits, receipt))) = this.take_now() {
            return Poll::Ready(Ok(Lease::from_grant(queue, permits, receipt)));
        }
        if let Some((queue, grant)) = self.as_mut().claim() {
            return Poll::Ready(self.conclude(queue, Ok(grant), |_| {}));
        }
        match self.as_mut().poll_waiting(context, false) {
            Poll::Ready((queue, outcome)) => Poll::Ready(self.conclude(queue, outcome, |_| {})),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<P: Anchored> Drop for Acquire<P> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.wait.is_filled() {
            // SAFETY: the future is not moved any more.
            unsafe { Pin::new_unchecked(self) }.give_up();
        }
    }
}

impl<P: Anchored> fmt::Debug for Acquire<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire")
            .field("is_ready", &self.queue.is_none())
            .finish_non_exhaustive()
    }
}
