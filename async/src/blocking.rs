//! Waits of threads, in the same queue as those of tasks.

use core::future::Future;
use core::pin::{Pin, pin};
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::sync::Arc;
use std::task::Wake;
use std::thread::{self, Thread};
use std::time::Instant;

use portcullis_core::{Clock, Lease, Limiter};

use crate::lock::RawLock;
use crate::queue::{Next, Queue};
use crate::{Acquire, Rejected};

/// Unparks a thread.
struct Parked(Thread);

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

std::thread_local! {
    /// One for all waits of a thread.
    static WAKER: Waker = Waker::from(Arc::new(Parked(thread::current())));
}

impl<L: Limiter, C: Clock, R: RawLock> Queue<L, C, R> {
    /// Waits for `n` permits as [`acquire`](Self::acquire) does, by parking the thread. Needs no driver: while it waits, the thread advances the queue itself.
    ///
    /// # Errors
    ///
    /// As of `acquire`.
    ///
    /// ```
    /// # use portcullis_async::Queue;
    /// # use portcullis_core::{MonotonicClock, Rate, TokenBucket};
    /// let queue: Queue<_, _> = Queue::new(TokenBucket::new(Rate::per_second(1_000), 1), MonotonicClock::new(), 9);
    /// for _ in 0..3 {
    ///     queue.blocking_acquire(1)?;
    /// }
    /// # Ok::<(), portcullis_async::Rejected>(())
    /// ```
    pub fn blocking_acquire(&self, n: u32) -> Result<Lease<&Self>, Rejected> {
        self.block_on(pin!(self.acquire(n).of_thread()), n, None)
    }

    /// The same, for no longer than `timeout`.
    ///
    /// # Errors
    ///
    /// As of `acquire`; [`Rejected::TimedOut`] after that time.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_async::{Queue, Rejected};
    /// # use portcullis_core::{Concurrency, MonotonicClock};
    /// let queue: Queue<_, _> = Queue::new(Concurrency::new(1), MonotonicClock::new(), 9);
    /// let _held = queue.blocking_acquire(1)?;
    /// let second = queue.blocking_acquire_for(1, Duration::from_millis(5));
    /// assert_eq!(second.unwrap_err(), Rejected::TimedOut { permits: 1 });
    /// # Ok::<(), Rejected>(())
    /// ```
    pub fn blocking_acquire_for(&self, n: u32, timeout: Duration) -> Result<Lease<&Self>, Rejected> {
        self.block_on(pin!(self.acquire(n).of_thread()), n, Instant::now().checked_add(timeout))
    }

    fn block_on<'q>(
        &'q self,
        mut wait: Pin<&mut Acquire<&'q Self>>,
        n: u32,
        until: Option<Instant>,
    ) -> Result<Lease<&'q Self>, Rejected> {
        WAKER.with(|waker| {
            let mut context = Context::from_waker(waker);
            loop {
                if let Poll::Ready(outcome) = wait.as_mut().poll(&mut context) {
                    return outcome;
                }
                let next = match self.advance() {
                    Next::At(at) => Some(Duration::from_nanos(
                        at.as_nanos().saturating_sub(self.clock().now().as_nanos()),
                    )),
                    Next::Idle | Next::OnRelease => None,
                };
                let left = until.map(|until| until.saturating_duration_since(Instant::now()));
                if left == Some(Duration::ZERO) {
                    return match wait.as_mut().poll(&mut context) {
                        Poll::Ready(outcome) => outcome,
                        Poll::Pending => Err(Rejected::TimedOut { permits: n }),
                    };
                }
                match [next, left].into_iter().flatten().min() {
                    Some(wait) => thread::park_timeout(wait),
                    None => thread::park(),
                }
            }
        })
    }
}
