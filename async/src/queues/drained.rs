//! The future that waits until no permit of a queue is held.
//!
//! Its waiter is in a list of its own, the drainers, which each release looks at while it is not
//! empty. The future asks for nothing: it takes no permit, and others may take permits after it is
//! ready.
#![allow(unsafe_code)]

use core::fmt;
use core::future::Future;
use core::ops::Deref;
use core::pin::Pin;
use core::task::{Context, Poll};

use portcullis_core::Timestamp;
use stable_deref_trait::StableDeref;

use crate::queues::acquire::ConfigOf;
use crate::waiting::limiter_source::LimiterSource;
use crate::waiting::queue_config::Key;
use crate::waiting::wait_list::{Request, State, Waiter, WaiterSlot};
use crate::waiting::wait_queue::HasWaitQueue;

/// A pointer to a queue, whose target does not move when the pointer is moved. Sealed.
#[doc(hidden)]
pub trait ToQueue: StableDeref + Deref<Target: HasWaitQueue> {}

impl<P: StableDeref + Deref<Target: HasWaitQueue>> ToQueue for P {}

/// A future that waits until all leases of a queue have been released. Returned by
/// [`Queue::drained`](crate::Queue::drained) and
/// [`KeyedQueue::drained`](crate::KeyedQueue::drained); [`new`](Self::new) takes any pointer to a
/// queue.
///
/// ```
/// use portcullis_async::{Drained, Queue};
/// use portcullis_core::{Concurrency, ManualClock};
/// use std::sync::Arc;
/// let queue = Arc::new(Queue::new(Concurrency::new(2), ManualClock::new(), 9));
/// futures_executor::block_on(Drained::new(Arc::clone(&queue)));
/// ```
#[must_use = "a future does nothing until it is polled"]
pub struct Drained<P: ToQueue> {
    queue: P,
    wait: WaiterSlot<Key<ConfigOf<P>>>,
}

// SAFETY: the waiter belongs to the future, or to the holder of the lock, which threads share.
unsafe impl<P: ToQueue + Send> Send for Drained<P> {}

// SAFETY: a shared reference gives access to no field.
unsafe impl<P: ToQueue + Sync> Sync for Drained<P> {}

impl<P: ToQueue> Drained<P> {
    /// Creates the future that [`Queue::drained`](crate::Queue::drained) returns, for any pointer
    /// to a [`Queue`](crate::Queue) or a [`KeyedQueue`](crate::KeyedQueue).
    ///
    /// ```
    /// # use portcullis_async::{Drained, Queue};
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// static QUEUE: Queue<Concurrency, ManualClock> =
    ///     Queue::new(Concurrency::new(2), ManualClock::new(), 9);
    /// futures_executor::block_on(Drained::new(&QUEUE));
    /// ```
    pub const fn new(queue: P) -> Self {
        let request = Request {
            min: 0,
            max: 0,
            deadline: Timestamp::MAX,
        };
        Self {
            queue,
            wait: WaiterSlot::new(request),
        }
    }
}

impl<P: ToQueue> Future for Drained<P> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        // SAFETY: the waiter is not moved.
        let this = unsafe { self.get_unchecked_mut() };
        let wait_queue = this.queue.wait_queue();
        if let Some(waiter) = this.wait.take() {
            // Remove the waiter, to enter it again with the new waker.
            // SAFETY: if the waiter was put into a list, it was by `enqueue_drained`.
            unsafe { wait_queue.cancel_drained(waiter) };
            // SAFETY: the waiter is in no list any more.
            if unsafe { Waiter::state(waiter) } == State::Granted {
                return Poll::Ready(());
            }
        }
        let key = wait_queue.source.any_key();
        let waiter = this.wait.fill(key, context.waker().clone(), false);
        // SAFETY: the waiter has just been filled and is pinned, and `drop` removes it.
        if unsafe { wait_queue.enqueue_drained(waiter) } {
            return Poll::Pending;
        }
        this.wait.take();
        Poll::Ready(())
    }
}

impl<P: ToQueue> Drop for Drained<P> {
    fn drop(&mut self) {
        if let Some(waiter) = self.wait.take() {
            // SAFETY: if the waiter was put into a list, it was by `enqueue_drained`.
            unsafe { self.queue.wait_queue().cancel_drained(waiter) };
        }
    }
}

impl<P: ToQueue> fmt::Debug for Drained<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Drained")
            .field("has_been_polled", &self.wait.is_filled())
            .finish_non_exhaustive()
    }
}
