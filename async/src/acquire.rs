#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::ptr::NonNull;
use core::task::{Context, Poll};

use portcullis_core::Lease;
use stable_deref_trait::StableDeref;

use crate::Rejected;
use crate::list::Node;
use crate::queue::sealed::Waits;

/// Waits for permits of a [`Queue`](crate::Queue): from [`Queue::acquire`](crate::Queue::acquire), or with a pointer of your own.
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
pub struct Acquire<P>
where
    P: StableDeref,
    P::Target: Waits,
{
    /// Until it is ready.
    queue: Option<P>,
    linked: bool,
    node: UnsafeCell<Node>,
}

// SAFETY: the node belongs to the future or to whoever has the queue's list, which threads share under its lock.
unsafe impl<P> Send for Acquire<P>
where
    P: StableDeref + Send,
    P::Target: Waits,
{
}

// SAFETY: a shared reference leads to nothing.
unsafe impl<P> Sync for Acquire<P>
where
    P: StableDeref + Sync,
    P::Target: Waits,
{
}

impl<P> Acquire<P>
where
    P: StableDeref,
    P::Target: Waits,
{
    /// A wait of a thread, which sleeps until the time that it is told.
    #[cfg(all(feature = "std", not(loom)))]
    pub(crate) fn of_thread(mut self) -> Self {
        self.node.get_mut().sleeps = true;
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
    pub fn new(queue: P, min: u32, max: u32) -> Self {
        Self { queue: Some(queue), linked: false, node: UnsafeCell::new(Node::new(min, max.max(min))) }
    }
}

impl<P> Future for Acquire<P>
where
    P: StableDeref,
    P::Target: Waits,
{
    type Output = Result<Lease<P>, Rejected>;

    /// # Panics
    ///
    /// If it is polled after it was ready.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // SAFETY: the node is not moved.
        let this = unsafe { self.get_unchecked_mut() };
        let queue = this.queue.as_deref().expect("a wait is not polled after it was ready");
        let node = NonNull::from(&mut this.node).cast::<Node>();
        let outcome = if this.linked {
            // SAFETY: linked in this queue, and not ready before.
            unsafe { queue.outcome(node, context.waker()) }
        } else {
            // From here on `drop` cancels: also if a waker or a limiter panics.
            this.linked = true;
            // SAFETY: not linked, and so ours.
            let (min, max) = unsafe { ((*node.as_ptr()).min, (*node.as_ptr()).max) };
            // SAFETY: the same, and pinned; `drop` cancels.
            queue.try_now(min, max).or_else(|| unsafe { queue.enqueue(node, context.waker()) })
        };
        match outcome {
            None => Poll::Pending,
            Some(outcome) => {
                this.linked = false;
                let queue = this.queue.take();
                Poll::Ready(outcome.map(|(permits, receipt)| {
                    Lease::from_grant(queue.expect("is there until it is ready"), permits, receipt)
                }))
            }
        }
    }
}

impl<P> Drop for Acquire<P>
where
    P: StableDeref,
    P::Target: Waits,
{
    fn drop(&mut self) {
        if self.linked
            && let Some(queue) = self.queue.as_deref()
        {
            // SAFETY: it was linked in this queue, and its outcome has not been asked for.
            unsafe { queue.cancel(NonNull::from(&mut self.node).cast::<Node>()) };
        }
    }
}

impl<P> fmt::Debug for Acquire<P>
where
    P: StableDeref,
    P::Target: Waits,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire").field("linked", &self.linked).finish_non_exhaustive()
    }
}
