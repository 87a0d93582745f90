#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::fmt;
use core::future::Future;
use core::mem::MaybeUninit;
use core::pin::Pin;
use core::ptr::NonNull;
use core::task::{Context, Poll};

use portcullis_core::Timestamp;

use crate::acquire::{Anchored, Queued};
use crate::hall::Waits;
use crate::list::{Node, State, Wish};

/// Waits until every lease of a queue has come back: from [`Queue::drained`](crate::Queue::drained), or with a pointer of your own.
///
/// ```
/// use std::sync::Arc;
/// use portcullis_async::{Drained, Queue};
/// use portcullis_core::{Concurrency, ManualClock};
/// let queue: Arc<Queue<_, _>> = Arc::new(Queue::new(Concurrency::new(2), ManualClock::new(), 9));
/// futures_executor::block_on(Drained::new(Arc::clone(&queue)));
/// ```
#[must_use = "a future does nothing until it is polled"]
pub struct Drained<P: Anchored<Target: Queued<Hall: Waits<Key = ()>>>> {
    queue: P,
    linked: bool,
    node: UnsafeCell<MaybeUninit<Node<()>>>,
}

// SAFETY: the node belongs to the future or to whoever has the queue's lines, which threads share under its lock.
unsafe impl<P: Anchored<Target: Queued<Hall: Waits<Key = ()>>> + Send> Send for Drained<P> {}

// SAFETY: a shared reference leads to nothing.
unsafe impl<P: Anchored<Target: Queued<Hall: Waits<Key = ()>>> + Sync> Sync for Drained<P> {}

impl<P: Anchored<Target: Queued<Hall: Waits<Key = ()>>>> Drained<P> {
    /// As [`Queue::drained`](crate::Queue::drained).
    ///
    /// ```
    /// # use portcullis_async::{Drained, Queue};
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// static QUEUE: Queue<Concurrency, ManualClock> = Queue::new(Concurrency::new(2), ManualClock::new(), 9);
    /// futures_executor::block_on(Drained::new(&QUEUE));
    /// ```
    pub const fn new(queue: P) -> Self {
        let wish = Wish { min: 0, max: 0, deadline: Timestamp::MAX, sleeps: false };
        Self { queue, linked: false, node: UnsafeCell::new(Node::place(wish)) }
    }
}

impl<P: Anchored<Target: Queued<Hall: Waits<Key = ()>>>> Future for Drained<P> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        // SAFETY: the node is not moved.
        let this = unsafe { self.get_unchecked_mut() };
        let node = NonNull::from(&this.node).cast();
        let hall = this.queue.hall();
        if this.linked {
            // Taken out, to be woken by another waker.
            // SAFETY: it was put there.
            unsafe { hall.cancel_drained(node) };
            this.linked = false;
            // SAFETY: ours.
            if unsafe { Node::state(node) } == State::Granted {
                return Poll::Ready(());
            }
        }
        // SAFETY: made by `new`, or taken out, and pinned; `drop` takes it out.
        this.linked = unsafe {
            Node::fill(node, ());
            hall.enqueue_drained(node, context.waker())
        };
        if this.linked { Poll::Pending } else { Poll::Ready(()) }
    }
}

impl<P: Anchored<Target: Queued<Hall: Waits<Key = ()>>>> Drop for Drained<P> {
    fn drop(&mut self) {
        if self.linked {
            // SAFETY: it was put there.
            unsafe { self.queue.hall().cancel_drained(NonNull::from(&self.node).cast()) };
        }
    }
}

impl<P: Anchored<Target: Queued<Hall: Waits<Key = ()>>>> fmt::Debug for Drained<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Drained").field("linked", &self.linked).finish_non_exhaustive()
    }
}
