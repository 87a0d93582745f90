//! Queues that see to their time: by a timer of their own, or by a task that drives them.
#![allow(unsafe_code)]

use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};
#[cfg(feature = "std")]
use std::sync::{Arc, Weak};
#[cfg(feature = "std")]
use std::task::Wake;

use crate::Timer;
use crate::hall::{Caller, Hall, Next};
use crate::lock::RawLock;
use crate::source::Source;

/// What can be driven: a queue.
pub trait Driven {
    /// Grants what is due, and arms its timer for what comes next. `waker` is the one that calls this.
    fn tend(&self, waker: &Waker);

    /// The same for a task: whether it is over, because the queue is closed.
    fn drive(&self, waker: &Waker) -> bool;

    /// Has this waker called whenever the time of the next thing may have changed.
    fn attend(&self, waker: Waker);

    fn undrive(&self);
}

impl<S: Source, C: Timer, R: RawLock, H, const B: usize> Driven for Hall<S, C, R, H, B> {
    fn tend(&self, waker: &Waker) {
        while let Some((next, turn)) = self.next(&Caller::Attendant) {
            if let Next::At(at) = next
                && self.clock.wake_at(at, waker).is_ready()
            {
                continue;
            }
            // One who has asked later may have armed earlier.
            if self.turns() == turn {
                return;
            }
        }
    }

    fn drive(&self, waker: &Waker) -> bool {
        while let Some((next, turn)) = self.next(&Caller::Driver(waker)) {
            match next {
                Next::At(at) if self.clock.wake_at(at, waker).is_ready() => continue,
                // Nobody is in a line any more.
                Next::Idle | Next::OnRelease if self.is_closed() => return true,
                _ => {}
            }
            if self.turns() == turn {
                break;
            }
        }
        false
    }

    fn attend(&self, waker: Waker) {
        self.attend(waker);
    }

    fn undrive(&self) {
        self.undrive(None);
    }
}

/// Something that has what can be driven.
pub trait Drivable {
    type Driven: Driven;

    fn driven(&self) -> &Self::Driven;
}

/// Sees to the time of a borrowed queue: from [`Queue::drive`](crate::Queue::drive). Ready when the queue is closed.
///
/// ```
/// # use portcullis_async::{Queue, ThreadTimer};
/// # use portcullis_core::Concurrency;
/// let queue: Queue<_, _> = Queue::new(Concurrency::new(2), ThreadTimer::new(), 9);
/// queue.close();
/// futures_executor::block_on(queue.drive());
/// ```
#[must_use = "a future does nothing until it is polled"]
pub struct Drive<'q, Q: Drivable> {
    queue: &'q Q,
    polled: bool,
}

impl<'q, Q: Drivable> Drive<'q, Q> {
    pub(crate) const fn new(queue: &'q Q) -> Self {
        Self { queue, polled: false }
    }
}

impl<Q: Drivable> Future for Drive<'_, Q> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.polled = true;
        if self.queue.driven().drive(context.waker()) { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl<Q: Drivable> Drop for Drive<'_, Q> {
    fn drop(&mut self) {
        if self.polled {
            self.queue.driven().undrive();
        }
    }
}

impl<Q: Drivable> fmt::Debug for Drive<'_, Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Drive").finish_non_exhaustive()
    }
}

/// A waker that tends a queue which lives for ever.
struct Always<Q>(core::marker::PhantomData<Q>);

impl<Q: Drivable + Sync + 'static> Always<Q> {
    const VTABLE: RawWakerVTable = RawWakerVTable::new(Self::clone, Self::wake, Self::wake, |_| {});

    fn clone(queue: *const ()) -> RawWaker {
        RawWaker::new(queue, &Self::VTABLE)
    }

    fn wake(queue: *const ()) {
        // SAFETY: made of a `&'static Q`.
        let queue: &'static Q = unsafe { &*queue.cast() };
        queue.driven().tend(&Self::waker(queue));
    }

    fn waker(queue: &'static Q) -> Waker {
        // SAFETY: the queue lives for ever, and is shared by reference alone, which threads may do; so nothing is to be counted.
        unsafe { Waker::from_raw(Self::clone(core::ptr::from_ref(queue).cast())) }
    }
}

/// Has a queue tend itself from now on.
pub(crate) fn attend<Q: Drivable + Sync + 'static>(queue: &'static Q) {
    queue.driven().attend(Always::waker(queue));
}

/// A waker that tends a queue for as long as that is there.
#[cfg(feature = "std")]
struct While<Q>(Weak<Q>);

#[cfg(feature = "std")]
impl<Q: Drivable + Send + Sync + 'static> Wake for While<Q> {
    fn wake(self: Arc<Self>) {
        if let Some(queue) = self.0.upgrade() {
            queue.driven().tend(&Waker::from(self));
        }
    }
}

/// The same for a shared one.
#[cfg(feature = "std")]
pub(crate) fn attend_shared<Q: Drivable + Send + Sync + 'static>(queue: &Arc<Q>) {
    queue.driven().attend(Waker::from(Arc::new(While(Arc::downgrade(queue)))));
}
