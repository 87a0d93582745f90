//! Why a request was not granted: the error of a wait.

use core::fmt;

use portcullis_core::limiter::NotGranted;
use portcullis_core::{Denied, Retry, Timestamp};

/// Why a request was not granted its permits. A small `Copy` value.
///
/// [`retry`](Self::retry) says when to retry, and [`permits`](Self::permits) what was requested.
///
/// ```
/// use portcullis_async::{Queue, Rejected};
/// use portcullis_core::{Concurrency, ManualClock, Retry};
///
/// let queue = Queue::new(Concurrency::new(2), ManualClock::new(), 9);
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
    /// The permits are not available, and the queue has no room for the request.
    QueueFull {
        /// The permits that were requested.
        permits: u32,
        /// When to retry.
        retry: Retry,
    },
    /// The limiter denies the request regardless of its available permits
    /// ([`Denied::Refused`](portcullis_core::Denied::Refused)), and the queue has no room for the
    /// request to wait until that changes.
    Refused {
        /// The permits that were requested.
        permits: u32,
        /// When to retry.
        retry: Retry,
    },
    /// A newer request took the place of this one: one of a higher priority, or in a queue that
    /// serves the newest request first, always or while it is overloaded, also one of the same.
    Evicted {
        /// The permits that were requested.
        permits: u32,
        /// When to retry.
        retry: Retry,
    },
    /// More permits were requested than the limiter can ever grant with its current settings.
    ExceedsCapacity {
        /// The permits that were requested.
        permits: u32,
        /// The most permits that one request can be granted.
        capacity: u32,
    },
    /// The permits cannot be granted by the deadline: it has passed, or all permits that become
    /// available before it go to earlier requests.
    Deadline {
        /// The permits that were requested.
        permits: u32,
        /// When the permits could be granted.
        retry: Retry,
    },
    /// The queue sheds load: the permits did not come within the time that it lets a request wait,
    /// or cannot come within it. Only in a queue with shedding
    /// (`with_shedding`, of the feature `shedding`).
    Shed {
        /// The permits that were requested.
        permits: u32,
        /// When the permits could be granted.
        retry: Retry,
    },
    /// The queue is closed.
    Closed {
        /// The permits that were requested.
        permits: u32,
    },
}

impl Rejected {
    /// Returns when to retry, as computed when the error was returned; for a request that waited,
    /// when its future was polled. The instant is the earliest possible one. In a queue that serves
    /// the oldest request first, it accounts for the requests that were ahead at that time.
    ///
    /// The instant is exact if each request ahead asks for one permit, none of them is cancelled,
    /// and no permit is returned early. For a composition ([`AllOf`](portcullis_core::AllOf)) it is
    /// exact if no request is ahead. Otherwise it may be too early: each limit reports when it will
    /// have the permits, but not what it loses while the requests ahead wait for another limit.
    ///
    /// ```
    /// # use portcullis_async::Queue;
    /// # use portcullis_core::{ManualClock, Rate, Retry, Timestamp, TokenBucket};
    /// let queue = Queue::new(
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
            | Self::Deadline { retry, .. }
            | Self::Shed { retry, .. } => retry,
            Self::ExceedsCapacity { .. } | Self::Closed { .. } => Retry::Never,
        }
    }

    /// Returns the denial that a limiter would give for the same reason, with `now` as its time.
    /// For a request that had to wait, or could not wait long enough, this is
    /// [`Denied::Exhausted`]. So [`QueueFull`](Self::QueueFull) and [`Evicted`](Self::Evicted)
    /// become a denial for lack of permits, while a [`Counted`](portcullis_core::Counted) limiter
    /// counts both as [refused](portcullis_core::limiter::NotGranted::Refused).
    ///
    /// With it, a caller can ask the queue for [metadata](portcullis_core::metadata): the reason of
    /// the limiter, or any other value that the limiter offers. Like all metadata, they describe
    /// the limiter as it is when it is asked.
    ///
    /// ```
    /// use portcullis_async::Queue;
    /// use portcullis_core::metadata::{REASON_PHRASE, USED_SHARE};
    /// use portcullis_core::{Concurrency, ManualClock, Timestamp};
    ///
    /// let queue = Queue::new(Concurrency::new(2), ManualClock::new(), 0);
    /// let _held = futures_executor::block_on(queue.acquire(2))?;
    /// let rejected = futures_executor::block_on(queue.acquire(1)).unwrap_err();
    /// let now = Timestamp::ZERO;
    /// let denied = rejected.denied(now);
    /// assert_eq!(
    ///     REASON_PHRASE.of_denied(&queue, now, denied),
    ///     Some("not enough permits available")
    /// );
    /// let used = USED_SHARE.of_denied(&queue, now, denied).unwrap();
    /// assert_eq!((used.permits, used.capacity), (2, 2));
    /// # Ok::<(), portcullis_async::Rejected>(())
    /// ```
    pub const fn denied(self, now: Timestamp) -> Denied {
        match self {
            Self::QueueFull { permits, .. }
            | Self::Evicted { permits, .. }
            | Self::Deadline { permits, .. }
            | Self::Shed { permits, .. } => Denied::Exhausted { now, permits },
            Self::Refused { permits, .. } => Denied::Refused { now, permits },
            Self::ExceedsCapacity { permits, capacity } => {
                Denied::ExceedsCapacity { permits, capacity }
            }
            Self::Closed { permits } => Denied::Closed { permits },
        }
    }

    /// Returns the permits that were requested.
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
            | Self::Shed { permits, .. }
            | Self::Closed { permits } => permits,
        }
    }
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = match *self {
            Self::QueueFull { .. } => "queue full",
            Self::Refused { .. } => "denied by the limiter, and the queue is full",
            Self::Evicted { .. } => "evicted by a newer request",
            Self::Deadline { .. } => "not granted by the deadline",
            Self::Shed { .. } => "not granted within the time that the queue lets requests wait",
            Self::ExceedsCapacity { permits, capacity } => {
                return Denied::ExceedsCapacity { permits, capacity }.fmt(f);
            }
            Self::Closed { .. } => return f.write_str("queue closed"),
        };
        write!(f, "{reason} (permits requested: {})", self.permits())
    }
}

impl core::error::Error for Rejected {}

impl From<Rejected> for NotGranted {
    #[inline]
    fn from(rejected: Rejected) -> Self {
        match rejected {
            Rejected::Deadline { .. } | Rejected::Shed { .. } => Self::Denied,
            Rejected::QueueFull { .. }
            | Rejected::Refused { .. }
            | Rejected::Evicted { .. }
            | Rejected::ExceedsCapacity { .. }
            | Rejected::Closed { .. } => Self::Refused,
        }
    }
}
