#![allow(unsafe_code)]

use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};

use portcullis_core::{Clock, Limiter, Timestamp};

use crate::lock::RawLock;
use crate::queue::{Next, Queue};

/// Advances a [`Queue`] whenever it is time to: from [`Queue::drive`]. Ready when the queue is closed.
///
/// ```
/// # use portcullis_async::Queue;
/// # use portcullis_core::{Concurrency, ManualClock};
/// let queue: Queue<_, _> = Queue::new(Concurrency::new(2), ManualClock::new(), 9);
/// queue.close();
/// futures_executor::block_on(queue.drive(|_| core::future::pending()));
/// ```
#[must_use = "a future does nothing until it is polled"]
pub struct Drive<'q, L: Limiter, C: Clock, R: RawLock, S, F> {
    queue: &'q Queue<L, C, R>,
    sleep: S,
    /// Pinned with the whole.
    sleeping: Option<(Timestamp, F)>,
}

impl<L: Limiter, C: Clock, R: RawLock> Queue<L, C, R> {
    /// A future that calls [`advance`](Self::advance) whenever it is time to, for a task of its own: however many wait, one timer. `sleep` makes
    /// a future that is ready at an instant of the queue's clock.
    ///
    /// One task at a time drives a queue: the last one that was polled is told when the time changes. Until it is polled again those who wait are granted by releases alone;
    /// it does not matter whether they themselves are polled.
    ///
    /// ```
    /// use std::time::Duration;
    /// use portcullis_async::Queue;
    /// use portcullis_core::{Clock, MonotonicClock, Rate, TokenBucket};
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// let clock = MonotonicClock::new();
    /// let queue: Queue<_, _> = Queue::new(TokenBucket::new(Rate::per_second(100), 1), &clock, 9);
    /// let driver = queue.drive(|at| tokio::time::sleep(Duration::from_nanos(at.as_nanos().saturating_sub(clock.now().as_nanos()))));
    /// let work = async {
    ///     for _ in 0..3 {
    ///         queue.acquire(1).await.unwrap();
    ///     }
    ///     queue.close();
    /// };
    /// tokio::join!(driver, work);
    /// assert!(clock.now().as_nanos() > 20_000_000);
    /// # });
    /// ```
    pub const fn drive<S, F>(&self, sleep: S) -> Drive<'_, L, C, R, S, F>
    where
        S: FnMut(Timestamp) -> F,
        F: Future<Output = ()>,
    {
        Drive { queue: self, sleep, sleeping: None }
    }
}

impl<L, C, R, S, F> Future for Drive<'_, L, C, R, S, F>
where
    L: Limiter,
    C: Clock,
    R: RawLock,
    S: FnMut(Timestamp) -> F,
    F: Future<Output = ()>,
{
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        // SAFETY: `sleeping` is not moved out of, only replaced, which drops it in place.
        let this = unsafe { self.get_unchecked_mut() };
        loop {
            let at = match this.queue.next(Some(context.waker())) {
                Next::At(at) => at,
                Next::Idle if this.queue.is_closed() => return Poll::Ready(()),
                Next::Idle | Next::OnRelease => {
                    this.sleeping = None;
                    return Poll::Pending;
                }
            };
            if this.sleeping.as_ref().is_none_or(|(until, _)| *until != at) {
                this.sleeping = None;
                this.sleeping = Some((at, (this.sleep)(at)));
            }
            if let Some((_, sleep)) = &mut this.sleeping {
                // SAFETY: pinned with the whole.
                if unsafe { Pin::new_unchecked(sleep) }.poll(context).is_pending() {
                    return Poll::Pending;
                }
            }
            this.sleeping = None;
        }
    }
}

impl<L: Limiter, C: Clock, R: RawLock, S, F> Drop for Drive<'_, L, C, R, S, F> {
    fn drop(&mut self) {
        self.queue.undriven();
    }
}

impl<L: Limiter, C: Clock, R: RawLock, S, F> fmt::Debug for Drive<'_, L, C, R, S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Drive")
            .field("until", &self.sleeping.as_ref().map(|(at, _)| at))
            .finish_non_exhaustive()
    }
}
