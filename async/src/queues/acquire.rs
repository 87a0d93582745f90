#![allow(unsafe_code)]

use core::fmt;
use core::future::Future;
use core::ops::Deref;
use core::pin::Pin;
use core::task::{Context, Poll};

use portcullis_core::{Lease, Limiter, Timestamp};
use stable_deref_trait::StableDeref;

use crate::Rejected;
use crate::finally::Finally;
use crate::waiting::queue_config::{Key, QueueConfig};
#[cfg(all(feature = "std", not(loom)))]
use crate::waiting::wait_list::State;
use crate::waiting::wait_list::{Request, Waiter, WaiterSlot};
use crate::waiting::wait_queue::{Grant, WaitQueue};

/// What an [`Acquire`] points to: a [`Queue`](crate::Queue), or a key's place in a
/// [`KeyedQueue`](crate::KeyedQueue). Sealed.
///
/// # Safety
///
/// `wait_queue` is the same one for all of the life of a pointer to it, wherever that is moved.
#[doc(hidden)]
pub unsafe trait Queued: Limiter {
    #[allow(private_bounds, reason = "sealed")]
    type Config: QueueConfig;

    fn wait_queue(&self) -> &WaitQueue<Self::Config>;

    fn key(&self) -> Key<Self::Config>;
}

/// The types of the wait queue that a pointer leads to.
type ConfigOf<P> = <<P as Deref>::Target as Queued>::Config;

/// A pointer to what stays where it is, wherever the pointer is moved. Sealed: any `StableDeref` is
/// one, and a key's place behind one.
///
/// # Safety
///
/// As it says.
#[doc(hidden)]
pub unsafe trait Anchored: Deref<Target: Queued> {}

// SAFETY: what the pointer leads to stays where it is.
unsafe impl<P: StableDeref + Deref<Target: Queued>> Anchored for P {}

/// Waits for permits: from [`Queue::acquire`](crate::Queue::acquire) and its like, or with a
/// pointer of your own.
///
/// Nothing happens before it is first polled. Dropping it cancels: its place is free at once, and
/// what it had been granted goes to the next. It is the wait itself, without an allocation, and so
/// must be pinned. `P` points to the queue: `&Queue`, `&'static Queue`, `Arc<Queue>`, or whatever
/// leads to the same place wherever it is moved.
///
/// ```
/// use portcullis_async::{Acquire, Queue};
/// use portcullis_core::{Concurrency, ManualClock};
/// use std::sync::Arc;
///
/// let queue: Arc<Queue<_, _>> =
///     Arc::new(Queue::new(Concurrency::new(2), ManualClock::new(), 9));
/// // A future, and then a lease, that own the queue.
/// let lease = futures_executor::block_on(Acquire::new(Arc::clone(&queue), 2, 2))?;
/// std::thread::spawn(move || drop(lease)).join().unwrap();
/// # Ok::<(), portcullis_async::Rejected>(())
/// ```
#[must_use = "a future does nothing until it is polled"]
pub struct Acquire<P: Anchored> {
    /// Until it is ready.
    queue: Option<P>,
    wait: WaiterSlot<Key<ConfigOf<P>>>,
}

// SAFETY: the waiter belongs to the future, or to the holder of the lock, which threads share.
unsafe impl<P: Anchored + Send> Send for Acquire<P> where Key<ConfigOf<P>>: Send {}

// SAFETY: a shared reference leads to nothing.
unsafe impl<P: Anchored + Sync> Sync for Acquire<P> {}

impl<P: Anchored> Acquire<P> {
    /// Waits for at least `min` permits, and takes up to `max`; see
    /// [`Queue::acquire_between`](crate::Queue::acquire_between).
    ///
    /// ```
    /// # use portcullis_async::{Acquire, Queue};
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// let queue: Queue<_, _> = Queue::new(Concurrency::new(2), ManualClock::new(), 9);
    /// assert_eq!(
    ///     futures_executor::block_on(Acquire::new(&queue, 1, 5))?.permits(),
    ///     2
    /// );
    /// # Ok::<(), portcullis_async::Rejected>(())
    /// ```
    #[inline]
    pub fn new(queue: P, min: u32, max: u32) -> Self {
        let request = Request {
            min,
            max: max.max(min),
            deadline: Timestamp::MAX,
        };
        Self {
            queue: Some(queue),
            wait: WaiterSlot::new(request),
        }
    }

    /// The same, until `deadline` by the queue's clock: what can be granted by then, that instant
    /// included. [`Timestamp::MAX`] is none. What is free is granted all the same when it is over.
    ///
    /// Fails with [`Rejected::Deadline`] when the deadline has passed. Fails at once if it cannot
    /// be met even though no request before this one is cancelled and no permit is given back
    /// early.
    ///
    /// ```
    /// # use portcullis_async::{Acquire, Queue, Rejected};
    /// # use portcullis_core::{ManualClock, Rate, Timestamp, TokenBucket};
    /// let queue: Queue<_, _> = Queue::new(
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
    pub const fn until(mut self, deadline: Timestamp) -> Self {
        // As this can be moved, it is in no list.
        self.wait.request_mut().deadline = deadline;
        self
    }

    /// Whether it was ready, or a hook panicked as it became so: it cannot be polled any more.
    #[cfg(any(feature = "stream", feature = "futures-io", feature = "tokio"))]
    pub(crate) const fn is_over(&self) -> bool {
        self.queue.is_none()
    }

    /// Where it waits, until it is ready.
    #[cfg(all(feature = "std", not(loom)))]
    pub(crate) fn queue(&self) -> Option<&P::Target> {
        self.queue.as_deref()
    }

    #[cfg(all(feature = "std", not(loom)))]
    pub(crate) fn deadline(&mut self) -> Timestamp {
        self.wait.request_mut().deadline
    }

    /// Whether it is in its list still, after it was polled.
    #[cfg(all(feature = "std", not(loom)))]
    pub(crate) fn is_waiting(&self) -> bool {
        // SAFETY: filled.
        self.wait.is_filled() && unsafe { Waiter::state(self.wait.waiter()) } == State::Waiting
    }

    /// Takes at once, if nobody has to be waited for, and is over then.
    #[inline(always)]
    pub(crate) fn take_now(&mut self) -> Option<(P, Grant)> {
        if self.wait.is_filled() {
            return None;
        }
        let queue = self.queue.as_deref()?;
        let grant = queue
            .wait_queue()
            .try_now(queue.key(), *self.wait.request_mut())?;
        Some((self.queue.take()?, grant))
    }

    /// What it was granted while it waited.
    #[inline(always)]
    fn claim(self: Pin<&mut Self>) -> Option<(P, Grant)> {
        // SAFETY: the waiter is not moved.
        let this = unsafe { self.get_unchecked_mut() };
        if !this.wait.is_filled() {
            return None;
        }
        // SAFETY: put into a list of this queue, and not ready before.
        let grant = unsafe { Waiter::claim(this.wait.waiter()) }?;
        Some((this.queue.take()?, grant))
    }

    /// As `poll`, but for what is made of it: see `conclude`.
    #[cold]
    pub(crate) fn poll_waiting(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<(P, Result<Grant, Rejected>)> {
        // SAFETY: the waiter is not moved.
        let this = unsafe { self.get_unchecked_mut() };
        let queue = this
            .queue
            .as_deref()
            .expect("a wait is not polled after it was ready");
        let outcome = if this.wait.is_filled() {
            // SAFETY: put into a list of this queue, and not ready before.
            unsafe {
                queue
                    .wait_queue()
                    .outcome(this.wait.waiter(), context.waker())
            }
        } else {
            let waiter = this.wait.fill(queue.key(), context.waker().clone());
            // SAFETY: it has just been made, and is pinned; `drop` cancels.
            unsafe { queue.wait_queue().enqueue(waiter) }
        };
        let Some(outcome) = outcome else {
            return Poll::Pending;
        };
        Poll::Ready((
            this.queue.take().expect("is there until it is ready"),
            outcome,
        ))
    }

    /// A lease of what was granted, or why not; and the hook is told. `after` that something is
    /// done with the wait queue, also if the hook panics.
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
                // SAFETY: filled, and over.
                unsafe { wait_queue.left(waiter) };
            }
        };
        match outcome {
            Ok((permits, receipt)) => {
                let lease = Lease::from_grant(queue, permits, receipt);
                // If the hook panics, the lease gives back.
                left(lease.limiter().wait_queue(), this.wait.take());
                Ok(lease)
            }
            Err(rejected) => {
                left(queue.wait_queue(), this.wait.take());
                Err(rejected)
            }
        }
    }

    /// Leaves its list, if it is in one, and gives back what it has been granted.
    #[inline]
    pub(crate) fn give_up(self: Pin<&mut Self>) {
        // SAFETY: the waiter is not moved.
        let this = unsafe { self.get_unchecked_mut() };
        if let Some(queue) = this.queue.as_deref()
            && let Some(waiter) = this.wait.take()
        {
            // SAFETY: it may have been put into a list of this queue, and its outcome has not been
            // asked for.
            unsafe { queue.wait_queue().cancel(waiter) };
        }
    }
}

impl<P: Anchored> Future for Acquire<P> {
    type Output = Result<Lease<P>, Rejected>;

    /// # Panics
    ///
    /// If it is polled after it was ready.
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
        match self.as_mut().poll_waiting(context) {
            Poll::Ready((queue, outcome)) => Poll::Ready(self.conclude(queue, outcome, |_| {})),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<P: Anchored> Drop for Acquire<P> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.wait.is_filled() {
            // SAFETY: it is not moved any more.
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
