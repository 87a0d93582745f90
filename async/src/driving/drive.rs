//! Drivers of a queue that use its timer: the queue itself, or a task that drives it.
#![allow(unsafe_code)]

use core::fmt;
use core::future::Future;
use core::mem;
use core::pin::Pin;
use core::ptr::NonNull;
use core::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};
#[cfg(feature = "std")]
use std::sync::{Arc, Weak};
#[cfg(feature = "std")]
use std::task::Wake;

use crate::finally::Finally;
use crate::waiting::drivers::DriverSlot;
use crate::waiting::panics::Panic;
use crate::waiting::queue_clock::Wakes;
use crate::waiting::queue_config::{Key, QueueConfig};
use crate::waiting::rejected::Rejected;
use crate::waiting::wait_list::{State, Waiter};
use crate::waiting::wait_queue::driver::{Caller, Next, Place};
use crate::waiting::wait_queue::{Grant, HasWaitQueue, WaitQueue};
use crate::waiting::wake_batch::WakeBatch;

impl<Q: QueueConfig> WaitQueue<Q> {
    /// Drives the queue for a waiter that has been chosen to. Returns what has become of it by
    /// then; `None` if it waits, to be woken by `waker`.
    ///
    /// # Safety
    ///
    /// The contract is that of `outcome`.
    #[cold]
    pub(crate) unsafe fn drive_for(
        &self,
        waiter: NonNull<Waiter<Key<Q>>>,
        waker: &Waker,
    ) -> Option<Result<Grant, Rejected>> {
        // SAFETY: the caller guarantees the contract of `outcome`, so the waiter is valid.
        unsafe {
            self.see_to(Caller::Waiter(waiter, waker), waker);
            if Waiter::state(waiter) == State::Waiting {
                return None;
            }
            self.outcome(waiter, waker, &mut false)
        }
    }

    /// Grants what is due, and arms the timer for what is due next. `waker` is the queue's own
    /// waker, which calls this method.
    fn tend(&self, waker: &Waker) {
        // SAFETY: `SelfDriven` registers no driver node.
        unsafe { self.see_to(Caller::SelfDriven, waker) };
    }

    /// Grants what is due, and arms the timer for what is due next, whatever panics. Returns
    /// whether the queue is closed and its wait lists are empty.
    ///
    /// # Safety
    ///
    /// The contract is that of `next`.
    pub(crate) unsafe fn see_to(&self, caller: Caller<'_, Key<Q>>, waker: &Waker) -> bool {
        let mut batch = WakeBatch::new();
        let (mut panic, mut has_armed) = (Panic::NONE, false);
        // If this driver cannot arm the timer, another one is woken in its place.
        let unarmed = Finally(|| self.disarm(caller));
        // After a panic of a limiter, a clock or a timer, try once more.
        // SAFETY: the caller guarantees the contract of `next`.
        let mut arm =
            || panic.keep(|| unsafe { self.arm(caller, waker, &mut batch, &mut has_armed) });
        let is_over = arm().or_else(arm);
        if is_over.is_some() {
            mem::forget(unarmed);
        } else {
            drop(unarmed);
        }
        batch.resume();
        panic.resume();
        is_over.unwrap_or(false)
    }

    /// Does what `see_to` does, and stops at the first panic. Sets `has_armed` before it arms the
    /// timer, which may panic after it is armed.
    ///
    /// # Safety
    ///
    /// The contract is that of `next`.
    unsafe fn arm(
        &self,
        caller: Caller<'_, Key<Q>>,
        waker: &Waker,
        batch: &mut WakeBatch,
        has_armed: &mut bool,
    ) -> bool {
        // SAFETY: the caller guarantees the contract of `next`.
        while let Some(look) = unsafe { self.next(caller, batch) } {
            match look.next {
                Next::At(at) if look.drives => {
                    *has_armed = true;
                    if self.clock.wake(at, waker).is_ready() {
                        continue;
                    }
                }
                // The queue is closed and no request waits.
                Next::Idle | Next::OnRelease if self.is_closed() => return true,
                _ => {}
            }
            if !look.drives {
                if *has_armed {
                    // In the meantime another driver took charge, and this one may have replaced
                    // its alarm. Have it arm the timer again.
                    self.rearm(batch);
                }
                break;
            }
            // A driver that looked later may have armed the timer earlier. Then look again.
            if self.turns() == look.turn {
                break;
            }
        }
        false
    }
}

/// A future that drives the timers of a borrowed queue: from [`Queue::drive`](crate::Queue::drive).
/// Ready when the queue is closed.
///
/// It is registered with the queue from its first poll until it is dropped, and so must be pinned.
///
/// ```
/// # use portcullis_async::{Queue, ThreadTimer};
/// # use portcullis_core::Concurrency;
/// let queue = Queue::new(Concurrency::new(2), ThreadTimer::new(), 9);
/// queue.close();
/// futures_executor::block_on(queue.drive());
/// ```
#[must_use = "a future does nothing until it is polled"]
pub struct Drive<'q, Q: HasWaitQueue> {
    queue: &'q Q,
    slot: DriverSlot,
}

impl<'q, Q: HasWaitQueue> Drive<'q, Q> {
    pub(crate) const fn new(queue: &'q Q) -> Self {
        Self {
            queue,
            slot: DriverSlot::new(),
        }
    }
}

impl<Q: HasWaitQueue> Future for Drive<'_, Q> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        // SAFETY: the driver node is not moved.
        let this = unsafe { self.get_unchecked_mut() };
        let member = this.slot.coming();
        // SAFETY: the node is pinned, and `drop` removes it.
        let is_over = unsafe {
            this.queue
                .wait_queue()
                .see_to(Caller::Driver(member, context.waker()), context.waker())
        };
        if is_over {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

impl<Q: HasWaitQueue> Drop for Drive<'_, Q> {
    fn drop(&mut self) {
        if let Some(member) = self.slot.leaving() {
            // SAFETY: the node has driven no other queue.
            unsafe { self.queue.wait_queue().leave(Place::Timed(member)) };
        }
    }
}

impl<Q: HasWaitQueue> fmt::Debug for Drive<'_, Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Drive").finish_non_exhaustive()
    }
}

/// The waker of a queue in a static: it drives that queue.
struct Always<Q>(core::marker::PhantomData<Q>);

impl<Q: HasWaitQueue + Sync + 'static> Always<Q> {
    const VTABLE: RawWakerVTable = RawWakerVTable::new(Self::clone, Self::wake, Self::wake, |_| {});

    fn clone(queue: *const ()) -> RawWaker {
        RawWaker::new(queue, &Self::VTABLE)
    }

    fn wake(queue: *const ()) {
        // SAFETY: the pointer comes from a `&'static Q`.
        let queue: &'static Q = unsafe { &*queue.cast() };
        queue.wait_queue().tend(&Self::waker(queue));
    }

    fn waker(queue: &'static Q) -> Waker {
        // SAFETY: the queue lives forever and is only shared by reference. `Q: Sync` allows that
        // across threads, so the waker needs no reference count.
        unsafe { Waker::from_raw(Self::clone(core::ptr::from_ref(queue).cast())) }
    }
}

/// Makes a queue drive itself from now on.
pub(crate) fn attend<Q: HasWaitQueue + Sync + 'static>(queue: &'static Q) {
    queue.wait_queue().attend(Always::waker(queue));
}

/// The waker of a queue in an `Arc`: it drives that queue while the queue exists.
#[cfg(feature = "std")]
struct While<Q>(Weak<Q>);

#[cfg(feature = "std")]
impl<Q: HasWaitQueue + Send + Sync + 'static> Wake for While<Q> {
    fn wake(self: Arc<Self>) {
        if let Some(queue) = self.0.upgrade() {
            queue.wait_queue().tend(&Waker::from(self));
        }
    }
}

/// Makes a queue in an `Arc` drive itself from now on, until the last `Arc` is dropped.
#[cfg(feature = "std")]
pub(crate) fn attend_shared<Q: HasWaitQueue + Send + Sync + 'static>(queue: &Arc<Q>) {
    queue
        .wait_queue()
        .attend(Waker::from(Arc::new(While(Arc::downgrade(queue)))));
}
