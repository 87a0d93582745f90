use core::fmt;

/// Why a request did not get its permits: small, `Copy`.
///
/// ```
/// use portcullis_async::{Queue, Rejected};
/// use portcullis_core::{Concurrency, ManualClock};
///
/// let queue: Queue<_, _> = Queue::new(Concurrency::new(2), ManualClock::new(), 9);
/// let rejected = futures_executor::block_on(queue.acquire(3)).unwrap_err();
/// assert_eq!(rejected, Rejected::ExceedsCapacity { permits: 3, capacity: 2 });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Rejected {
    /// The permits are not free, and the queue has no room for the request.
    QueueFull {
        /// The permits that were asked for.
        permits: u32,
    },
    /// It has made room for a newer one, in a queue that is newest first.
    Evicted {
        /// The permits that were asked for.
        permits: u32,
    },
    /// More permits were asked for than the limiter can ever hold, as it is set now.
    ExceedsCapacity {
        /// The permits that were asked for.
        permits: u32,
        /// The most that one request can ask for.
        capacity: u32,
    },
    /// The time that it was willing to wait is over.
    TimedOut {
        /// The permits that were asked for.
        permits: u32,
    },
    /// The queue is closed.
    Closed {
        /// The permits that were asked for.
        permits: u32,
    },
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::QueueFull { permits } => write!(f, "queue full: {permits} permits asked for"),
            Self::Evicted { permits } => write!(f, "evicted by a newer request: {permits} permits asked for"),
            Self::ExceedsCapacity { permits, capacity } => write!(
                f,
                "{permits} permits asked for, at most {capacity} can ever be granted: ask for fewer"
            ),
            Self::TimedOut { permits } => write!(f, "timed out: {permits} permits asked for"),
            Self::Closed { .. } => f.write_str("closed"),
        }
    }
}

impl core::error::Error for Rejected {}
