#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::fmt;
use core::future::Future;
use core::mem::{self, MaybeUninit};
use core::ops::Deref;
use core::pin::Pin;
use core::ptr::NonNull;
use core::task::{Context, Poll};

use portcullis_core::{Lease, Limiter, Timestamp};
use stable_deref_trait::StableDeref;

use crate::Rejected;
use crate::hall::{Grant, Waits};
#[cfg(all(feature = "std", not(loom)))]
use crate::list::State;
use crate::list::{Node, Wish};

/// What an [`Acquire`] points to: a [`Queue`](crate::Queue), or a key's place in a [`KeyedQueue`](crate::KeyedQueue). Sealed.
///
/// # Safety
///
/// `hall` is the same one for all of the life of a pointer to it, wherever that is moved.
#[doc(hidden)]
pub unsafe trait Queued: Limiter {
    #[allow(private_bounds, reason = "sealed")]
    type Hall: Waits;

    fn hall(&self) -> &Self::Hall;

    fn key(&self) -> Key<Self>;
}

pub(crate) type Key<Q> = <<Q as Queued>::Hall as Waits>::Key;

/// A pointer to what stays where it is, wherever the pointer is moved. Sealed: any `StableDeref` is one, and a key's place behind one.
///
/// # Safety
///
/// As it says.
#[doc(hidden)]
pub unsafe trait Anchored: Deref<Target: Queued> {}

// SAFETY: what the pointer leads to stays where it is.
unsafe impl<P: StableDeref + Deref<Target: Queued>> Anchored for P {}

/// Waits for permits: from [`Queue::acquire`](crate::Queue::acquire) and its like, or with a pointer of your own.
///
/// Nothing happens before it is first polled. Dropping it cancels: its place is free at once, and what it had been granted goes to the next.
/// It is the wait itself, without an allocation, and so must be pinned. `P` points to the queue: `&Queue`, `&'static Queue`, `Arc<Queue>`, or whatever leads to the same
/// place wherever it is moved.
///
/// ```
/// use std::sync::Arc;
/// use portcullis_async::{Acquire, Queue};
/// use portcullis_core::{Concurrency, ManualClock};
///
/// let queue: Arc<Queue<_, _>> = Arc::new(Queue::new(Concurrency::new(2), ManualClock::new(), 9));
/// // A future, and then a lease, that own the queue.
/// let lease = futures_executor::block_on(Acquire::new(Arc::clone(&queue), 2, 2))?;
/// std::thread::spawn(move || drop(lease)).join().unwrap();
/// # Ok::<(), portcullis_async::Rejected>(())
/// ```
#[must_use = "a future does nothing until it is polled"]
pub struct Acquire<P: Anchored> {
    /// Until it is ready.
    queue: Option<P>,
    /// Whether the node has been put into a line; else only its wish is there.
    linked: bool,
    node: UnsafeCell<MaybeUninit<Node<Key<P::Target>>>>,
}

// SAFETY: the node belongs to the future or to whoever has the queue's lines, which threads share under its lock.
unsafe impl<P: Anchored + Send> Send for Acquire<P> where Key<P::Target>: Send {}

// SAFETY: a shared reference leads to nothing.
unsafe impl<P: Anchored + Sync> Sync for Acquire<P> {}

impl<P: Anchored> Acquire<P> {
    /// A wait of a thread, which sleeps until the time that it is told.
    #[cfg(all(feature = "std", not(loom)))]
    pub(crate) fn of_thread(mut self) -> Self {
        let node = self.node.get_mut().as_mut_ptr();
        // SAFETY: the wish is there.
        unsafe { (*node).wish.sleeps = true };
        self
    }

    /// Waits for at least `min` permits, and takes up to `max`; see [`Queue::acquire_between`](crate::Queue::acquire_between).
    ///
    /// ```
    /// # use portcullis_async::{Acquire, Queue};
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// let queue: Queue<_, _> = Queue::new(Concurrency::new(2), ManualClock::new(), 9);
    /// assert_eq!(futures_executor::block_on(Acquire::new(&queue, 1, 5))?.permits(), 2);
    /// # Ok::<(), portcullis_async::Rejected>(())
    /// ```
    #[inline]
    pub fn new(queue: P, min: u32, max: u32) -> Self {
        let wish = Wish { min, max: max.max(min), deadline: Timestamp::MAX, sleeps: false };
        Self { queue: Some(queue), linked: false, node: UnsafeCell::new(Node::place(wish)) }
    }

    /// The same, until `deadline` by the queue's clock: what can be granted by then, that instant included. [`Timestamp::MAX`] is none. What is free is granted all
    /// the same when it is over.
    ///
    /// [`Rejected::Deadline`] is the answer when it is over, and at once where it cannot be met: if nobody before it gives up, and nothing is given back.
    ///
    /// ```
    /// # use portcullis_async::{Acquire, Queue, Rejected};
    /// # use portcullis_core::{ManualClock, Rate, Timestamp, TokenBucket};
    /// let queue: Queue<_, _> = Queue::new(TokenBucket::new(Rate::per_second(1), 1), ManualClock::new(), 9);
    /// assert!(futures_executor::block_on(queue.acquire(1)).is_ok());
    /// let late = queue.acquire(1).until(Timestamp::from_millis(999));
    /// assert!(matches!(futures_executor::block_on(late), Err(Rejected::Deadline { .. })));
    /// ```
    pub const fn until(mut self, deadline: Timestamp) -> Self {
        let node = self.node.get_mut().as_mut_ptr();
        // SAFETY: the wish is there, and as this can be moved, nobody else refers to it.
        unsafe { (*node).wish.deadline = deadline };
        self
    }

    /// Whether it was ready, or a hook panicked as it became so: it cannot be polled any more.
    #[cfg(any(feature = "stream", feature = "futures-io", feature = "tokio"))]
    pub(crate) const fn is_over(&self) -> bool {
        self.queue.is_none()
    }

    /// The place of the node.
    fn place(&self) -> NonNull<Node<Key<P::Target>>> {
        NonNull::from(&self.node).cast()
    }

    /// Where it waits, until it is ready.
    #[cfg(all(feature = "std", not(loom)))]
    pub(crate) fn queue(&self) -> Option<&P::Target> {
        self.queue.as_deref()
    }

    #[cfg(all(feature = "std", not(loom)))]
    pub(crate) fn deadline(&mut self) -> Timestamp {
        // SAFETY: made by `new`, and as it is not pinned, nobody else refers to it.
        unsafe { Node::wish(self.place()) }.deadline
    }

    /// Whether it is in its line still, after it was polled.
    #[cfg(all(feature = "std", not(loom)))]
    pub(crate) fn is_waiting(&self) -> bool {
        // SAFETY: filled when it was put into a line.
        self.linked && unsafe { Node::state(self.place()) } == State::Waiting
    }

    /// Takes at once, if nobody has to be waited for, and is over then.
    #[inline(always)]
    pub(crate) fn take_now(&mut self) -> Option<(P, Grant)> {
        if self.linked {
            return None;
        }
        let queue = self.queue.as_deref()?;
        // SAFETY: made by `new`, and in no line.
        let grant = queue.hall().try_now(queue.key(), unsafe { Node::wish(self.place()) })?;
        Some((self.queue.take()?, grant))
    }

    /// What it was granted while it waited.
    #[inline(always)]
    fn claim(self: Pin<&mut Self>) -> Option<(P, Grant)> {
        // SAFETY: the node is not moved.
        let this = unsafe { self.get_unchecked_mut() };
        if !this.linked {
            return None;
        }
        // SAFETY: put into a line of this queue, and not ready before.
        let grant = unsafe { this.queue.as_deref()?.hall().claim(this.place()) }?;
        Some((this.queue.take()?, grant))
    }

    /// As `poll`, but for what is made of it: see `conclude`.
    #[cold]
    pub(crate) fn poll_waiting(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<(P, Result<Grant, Rejected>)> {
        // SAFETY: the node is not moved.
        let this = unsafe { self.get_unchecked_mut() };
        let node = this.place();
        let queue = this.queue.as_deref().expect("a wait is not polled after it was ready");
        let outcome = if this.linked {
            // SAFETY: put into a line of this queue, and not ready before.
            unsafe { queue.hall().outcome(node, context.waker()) }
        } else {
            // SAFETY: made by `new`, and ours.
            unsafe { Node::fill(node, queue.key()) };
            // From here on `drop` cancels: also if a waker or a limiter panics.
            this.linked = true;
            // SAFETY: it has just been made, and is pinned; `drop` cancels.
            unsafe { queue.hall().enqueue(node, context.waker()) }
        };
        let Some(outcome) = outcome else { return Poll::Pending };
        Poll::Ready((this.queue.take().expect("is there until it is ready"), outcome))
    }

    /// A lease of what was granted, or why not; and the hook is told.
    #[inline(always)]
    pub(crate) fn conclude(
        self: Pin<&mut Self>,
        queue: P,
        outcome: Result<Grant, Rejected>,
    ) -> Result<Lease<P>, Rejected> {
        // SAFETY: the node is not moved.
        let this = unsafe { self.get_unchecked_mut() };
        this.linked = false;
        match outcome {
            Ok((permits, receipt)) => {
                let lease = Lease::from_grant(queue, permits, receipt);
                // SAFETY: filled, and over. If the hook panics, the lease gives back.
                unsafe { lease.limiter().hall().left(this.place()) };
                Ok(lease)
            }
            Err(rejected) => {
                // SAFETY: the same.
                unsafe { queue.hall().left(this.place()) };
                Err(rejected)
            }
        }
    }

    /// Leaves its line, if it is in one, and gives back what it has been granted.
    pub(crate) fn give_up(self: Pin<&mut Self>) {
        // SAFETY: the node is not moved.
        let this = unsafe { self.get_unchecked_mut() };
        if mem::take(&mut this.linked)
            && let Some(queue) = this.queue.as_deref()
        {
            // SAFETY: it was put into a line of this queue, and its outcome has not been asked for.
            unsafe { queue.hall().cancel(this.place()) };
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
        // SAFETY: the node is not moved.
        if let Some((queue, (permits, receipt))) = unsafe { self.as_mut().get_unchecked_mut() }.take_now() {
            return Poll::Ready(Ok(Lease::from_grant(queue, permits, receipt)));
        }
        if let Some((queue, grant)) = self.as_mut().claim() {
            return Poll::Ready(self.conclude(queue, Ok(grant)));
        }
        match self.as_mut().poll_waiting(context) {
            Poll::Ready((queue, outcome)) => Poll::Ready(self.conclude(queue, outcome)),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<P: Anchored> Drop for Acquire<P> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.linked {
            // SAFETY: it is not moved any more.
            unsafe { Pin::new_unchecked(self) }.give_up();
        }
    }
}

impl<P: Anchored> fmt::Debug for Acquire<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire").field("linked", &self.linked).finish_non_exhaustive()
    }
}
