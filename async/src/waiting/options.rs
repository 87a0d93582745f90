//! The options of a queue, which are set before it is used and do not change: the order, what
//! becomes of requests that are too large, the number of waiters, slack, jitter and shedding; and
//! the terms on which a new request may wait, which follow from them.

use core::time::Duration;

use portcullis_core::Timestamp;

use crate::waiting::shedding::{Shedding, Stored};

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
    /// rejected. Only a request of a higher priority (`Acquire::priority`) goes before others, and
    /// evicts them.
    OldestFirst,
    /// The newest request first. New requests take free permits ahead of the waiters. When the
    /// queue is full, a new request evicts those that have waited longest.
    NewestFirst,
    /// The oldest request first; the newest first while the wait list is overloaded, which means
    /// that it has had waiters without a break for longer than an interval. The interval is that of
    /// the queue's [shedding](crate::Shedding), and 100 ms if the queue has none.
    ///
    /// While the list is overloaded, a new request goes before all that wait, and takes free
    /// permits ahead of them. If the queue is full, it evicts those that would be granted last.
    /// Otherwise new requests are treated as in [`OldestFirst`](Self::OldestFirst). A try, such as
    /// [`Queue::try_acquire`](crate::Queue#method.try_acquire), takes nothing while a request
    /// waits.
    ///
    /// Of the requests that a queue serves during an overload, most have then hardly waited: see
    /// "adaptive LIFO" in Maurer, "Fail at Scale" (ACM Queue, 2015). The others wait until they are
    /// shed, evicted or late. So set a shedding as well. By
    /// [`Timeless`](portcullis_core::Timeless) no time passes, and the order is that of
    /// `OldestFirst`.
    #[cfg(feature = "shedding")]
    NewestWhileOverloaded,
}

impl Order {
    /// Returns whether a new request goes first only while its list is overloaded.
    #[inline(always)]
    pub(crate) const fn depends_on_load(self) -> bool {
        !matches!(self, Self::OldestFirst | Self::NewestFirst)
    }
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
    pub(crate) shedding: Stored<Option<Shedding>>,
}

/// The terms on which a new request may wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// Since when its wait list has had waiters, with the new request.
    pub(crate) since: Timestamp,
    /// Whether it comes before the requests that wait already.
    pub(crate) goes_first: bool,
    /// Its own deadline, or the bound of the shedding if that is earlier.
    pub(crate) deadline: Timestamp,
    /// Whether the deadline is that bound.
    pub(crate) sheds: bool,
}

impl Options {
    pub(crate) const fn new() -> Self {
        Self {
            order: Order::OldestFirst,
            max_waiters: u32::MAX,
            slack: Duration::from_millis(10),
            jitter: Duration::ZERO,
            oversized: Oversized::Reject,
            shedding: Stored::new(None),
        }
    }

    /// Returns the terms of a new request with the deadline `own`, whose list has had waiters since
    /// `since`.
    pub(crate) fn terms(&self, since: Timestamp, now: Timestamp, own: Timestamp) -> Terms {
        let shedding = self.shedding.or(None);
        let rule = shedding.unwrap_or(Shedding::DEFAULT);
        let is_overloaded = rule.is_overloaded(since, now);
        let bound = match shedding {
            Some(shedding) => shedding.bound(is_overloaded, now),
            None => Timestamp::MAX,
        };
        Terms {
            since,
            goes_first: self.order == Order::NewestFirst
                || self.order.depends_on_load() && is_overloaded,
            deadline: bound.min(own),
            sheds: bound < own,
        }
    }
}
