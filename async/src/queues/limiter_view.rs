//! The limiter of a queue, to be asked and not changed: the methods that take nothing.

use core::borrow::Borrow;
use core::fmt;

use portcullis_core::counts::{Counts, Tally};
use portcullis_core::limiter::Idle;
use portcullis_core::{Counted, Denied, Limiter, LimiterExt, Retry, Timestamp};

/// The limiter of a queue, to be asked only: taking from it would bypass the queue. Returned by
/// [`Queue::limiter`](crate::Queue::limiter).
///
/// Its answers do not consider the requests that wait. Those of the queue itself, which is a
/// [`Limiter`] as well, do.
///
/// The settings of the limiter, such as a rate or a limit, are read by its own methods in
/// [`Queue::change`](crate::Queue#method.change):
///
/// ```
/// use portcullis_async::Queue;
/// use portcullis_core::{Concurrency, Timeless};
///
/// let queue = Queue::new(Concurrency::new(2), Timeless, 9);
/// assert_eq!(queue.change(|limiter| limiter.limit()), 2);
/// assert_eq!(queue.limiter().capacity(), 2);
/// ```
pub struct LimiterView<'q, L>(pub(crate) &'q L);

impl<L: Limiter> LimiterView<'_, L> {
    /// Returns the most permits that one request can take; see [`Limiter::capacity`].
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.0.capacity()
    }

    /// Returns the permits that can be taken at `now`; see [`Limiter::available_at`].
    #[must_use]
    pub fn available_at(&self, now: Timestamp) -> u64 {
        self.0.available_at(now)
    }

    /// Says whether `n` permits can be taken at `now`; see [`Limiter::peek_at`].
    ///
    /// # Errors
    ///
    /// Any [`Denied`] of the limiter.
    pub fn peek_at(&self, now: Timestamp, n: u32) -> Result<(), Denied> {
        self.0.peek_at(now, n)
    }

    /// Returns when to retry a request that the limiter denied; see [`Limiter::retry`].
    #[must_use]
    pub fn retry(&self, denied: Denied) -> Retry {
        self.0.retry(denied)
    }

    /// Says whether the limiter is in use; see [`LimiterExt::idle_at`].
    #[must_use]
    pub fn idle_at(&self, now: Timestamp) -> Idle {
        self.0.idle_at(now)
    }
}

impl<L, T: Borrow<Tally>> LimiterView<'_, Counted<L, T>> {
    /// Returns the current counts of the limiter: see [`Counted`].
    ///
    /// ```
    /// # use portcullis_async::Queue;
    /// # use portcullis_core::{Concurrency, Counted, Timeless};
    /// let queue = Queue::new(Counted::new(Concurrency::new(2)), Timeless, 9);
    /// let lease = futures_executor::block_on(queue.acquire(2))?;
    /// let counts = queue.limiter().counts();
    /// assert_eq!((counts.granted.requests, counts.held), (1, 2));
    /// # drop(lease);
    /// # Ok::<(), portcullis_async::Rejected>(())
    /// ```
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.0.counts()
    }
}

impl<L> Clone for LimiterView<'_, L> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<L> Copy for LimiterView<'_, L> {}

impl<L: fmt::Debug> fmt::Debug for LimiterView<'_, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LimiterView").field(self.0).finish()
    }
}
