use core::fmt;

use portcullis_core::Retry;

/// Why a request did not get its permits: small, `Copy`.
///
/// ```
/// use portcullis_async::{Queue, Rejected};
/// use portcullis_core::{Concurrency, ManualClock, Retry};
///
/// let queue: Queue<_, _> = Queue::new(Concurrency::new(2), ManualClock::new(), 9);
/// let rejected = futures_executor::block_on(queue.acquire(3)).unwrap_err();
/// assert_eq!(
///     rejected,
///     Rejected::ExceedsCapacity {
///         permits: 3,
///         capacity: 2
///     }
/// );
/// assert_eq!(rejected.retry(), Retry::Never);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum Rejected {
    /// The permits are not free, and the queue has no room for the request.
    QueueFull {
        /// The permits that were asked for.
        permits: u32,
        /// When to come back.
        retry: Retry,
    },
    /// The limiter refuses the request, whatever it has
    /// ([`Denied::Refused`](portcullis_core::Denied::Refused)), and the queue has no room for it to
    /// wait until that changes.
    Refused {
        /// The permits that were asked for.
        permits: u32,
        /// When to come back.
        retry: Retry,
    },
    /// It has made room for a newer one, in a queue that is newest first.
    Evicted {
        /// The permits that were asked for.
        permits: u32,
        /// When to come back.
        retry: Retry,
    },
    /// More permits were asked for than the limiter can ever hold, as it is set now.
    ExceedsCapacity {
        /// The permits that were asked for.
        permits: u32,
        /// The most that one request can ask for.
        capacity: u32,
    },
    /// They cannot be granted by the deadline: it is over, or nothing comes in before it that does
    /// not go to those who were first.
    Deadline {
        /// The permits that were asked for.
        permits: u32,
        /// When they could be granted.
        retry: Retry,
    },
    /// The queue is closed.
    Closed {
        /// The permits that were asked for.
        permits: u32,
    },
}

impl Rejected {
    /// When to come back, as it was when the request was told (its poll, of one that waited): at
    /// the earliest, with what was queued then before it where the queue is oldest first. Exact
    /// where all before it ask for one permit each, none of them gives up, and nothing is given
    /// back. Of several limits as one ([`AllOf`](portcullis_core::AllOf)) it is exact if none waits
    /// before it; else it may be earlier than that: each limit says when it has so many permits,
    /// and not what it loses while those before wait for another limit.
    ///
    /// ```
    /// # use portcullis_async::Queue;
    /// # use portcullis_core::{ManualClock, Rate, Retry, Timestamp, TokenBucket};
    /// let queue: Queue<_, _> = Queue::new(
    ///     TokenBucket::new(Rate::per_second(10), 1),
    ///     ManualClock::new(),
    ///     0,
    /// );
    /// assert!(futures_executor::block_on(queue.acquire(1)).is_ok());
    /// let full = futures_executor::block_on(queue.acquire(1)).unwrap_err();
    /// assert_eq!(full.retry(), Retry::At(Timestamp::from_millis(100)));
    /// ```
    pub const fn retry(self) -> Retry {
        match self {
            Self::QueueFull { retry, .. }
            | Self::Refused { retry, .. }
            | Self::Evicted { retry, .. }
            | Self::Deadline { retry, .. } => retry,
            Self::ExceedsCapacity { .. } | Self::Closed { .. } => Retry::Never,
        }
    }

    /// The permits that were asked for.
    ///
    /// ```
    /// # use portcullis_async::Rejected;
    /// assert_eq!(Rejected::Closed { permits: 3 }.permits(), 3);
    /// ```
    pub const fn permits(self) -> u32 {
        match self {
            Self::QueueFull { permits, .. }
            | Self::Refused { permits, .. }
            | Self::Evicted { permits, .. }
            | Self::ExceedsCapacity { permits, .. }
            | Self::Deadline { permits, .. }
            | Self::Closed { permits } => permits,
        }
    }
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::QueueFull { permits, .. } => write!(f, "queue full: {permits} permits asked for"),
            Self::Refused { permits, .. } => {
                write!(
                    f,
                    "refused by the limiter, and the queue is full: {permits} permits asked for"
                )
            }
            Self::Evicted { permits, .. } => {
                write!(f, "evicted by a newer request: {permits} permits asked for")
            }
            Self::ExceedsCapacity { permits, capacity } => write!(
                f,
                "{permits} permits asked for, at most {capacity} can ever be granted: ask for fewer"
            ),
            Self::Deadline { permits, .. } => {
                write!(
                    f,
                    "cannot be granted by the deadline: {permits} permits asked for"
                )
            }
            Self::Closed { .. } => f.write_str("closed"),
        }
    }
}

impl core::error::Error for Rejected {}
