//! The options of a queue, which are set before it is used and do not change: the order, what
//! becomes of requests that are too large, the number of waiters, slack and jitter.

use core::time::Duration;

/// Which request is granted first.
///
/// ```
/// use portcullis_async::Order;
/// assert_ne!(Order::OldestFirst, Order::NewestFirst);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Order {
    /// The oldest request first, strictly in order. While a request waits, later requests are
    /// granted nothing, even if permits are free. When the queue is full, new requests are
    /// rejected.
    OldestFirst,
    /// The newest request first. New requests take free permits ahead of the waiters. When the
    /// queue is full, a new request evicts those that have waited longest.
    NewestFirst,
}

/// What becomes of a request for more permits than the limiter can ever grant with its present
/// settings.
///
/// ```
/// use portcullis_async::{Oversized, Queue};
/// use portcullis_core::{Concurrency, Timeless};
/// # use core::pin::pin;
/// # use core::task::{Context, Waker};
///
/// // No work is let through until the limit is raised.
/// let queue =
///     Queue::new(Concurrency::new(2), Timeless, 9).with_oversized(Oversized::Wait);
/// queue.change(|limit| limit.set_limit(0))?;
/// let mut work = pin!(queue.acquire(1));
/// # let mut context = Context::from_waker(Waker::noop());
/// assert!(work.as_mut().poll(&mut context).is_pending());
/// queue.change(|limit| limit.set_limit(2))?;
/// assert!(work.as_mut().poll(&mut context).is_ready());
/// # Ok::<(), portcullis_core::SettingsError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Oversized {
    /// It is rejected with [`Rejected::ExceedsCapacity`](crate::Rejected::ExceedsCapacity). A
    /// waiting request is rejected when the limit is lowered below it.
    #[default]
    Reject,
    /// It waits until the limit is raised, its deadline passes, or the queue is closed. In
    /// [oldest-first order](Order::OldestFirst) the requests behind it wait as well.
    Wait,
}

/// The options of a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) order: Order,
    pub(crate) max_waiters: u32,
    pub(crate) slack: Duration,
    pub(crate) jitter: Duration,
    pub(crate) oversized: Oversized,
}

impl Options {
    pub(crate) const fn new() -> Self {
        Self {
            order: Order::OldestFirst,
            max_waiters: u32::MAX,
            slack: Duration::from_millis(10),
            jitter: Duration::ZERO,
            oversized: Oversized::Reject,
        }
    }
}
