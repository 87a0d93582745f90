//! Shedding by time: how long a request may wait, from the past of its wait list.
//!
//! State: for each list, the instant *since* which it has had waiters without a break. A request
//! that enters an empty list stores the time at which it enters. Each later request copies the
//! instant of the head. So all waiters of a list store the same instant, until the list is empty.
//! An eviction that makes room for a new request does not empty it.
//!
//! ```text
//!            the interval has passed, and the list has not been empty
//!   normal ----------------------------------------------------------> overloaded
//!          <----------------------------------------------------------
//!                            the list becomes empty
//! ```
//!
//! In the order [`NewestWhileOverloaded`](crate::Order::NewestWhileOverloaded) the same state
//! decides at which end of the list a new request enters.
//!
//! A new request may wait for the interval in a normal list, and for the target in an overloaded
//! one. Its deadline becomes the earlier one of its own and that bound. So the timers of deadlines
//! do the rest.
//!
//! Invariant: a request that is granted has waited for at most the interval. Later than two
//! intervals after the instant since which a list has had waiters, it has waited for at most the
//! target: it was admitted later than one interval after that instant.
//!
//! The rule is that of the request queues in Maurer, "Fail at Scale" (ACM Queue, 2015), with the
//! target and the interval of Nichols and Jacobson, "Controlling Queue Delay" (ACM Queue, 2012; RFC
//! 8289).
//!
//! The state is that of a list and not of all lists of a queue. A key that asks for more than its
//! limit always has waiters, and says nothing about another key.
//!
//! Without the feature `shedding` nothing is [stored](Stored) for it, and no code that it needs is
//! reached: see [`WaitQueue::SHEDS`](crate::waiting::wait_queue::WaitQueue::SHEDS). So a
//! microcontroller that does not shed pays nothing.

#[cfg(not(feature = "shedding"))]
use core::marker::PhantomData;
use core::time::Duration;

use portcullis_core::Timestamp;

/// A value that takes no memory without the feature `shedding`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stored<T> {
    #[cfg(feature = "shedding")]
    value: T,
    #[cfg(not(feature = "shedding"))]
    value: PhantomData<T>,
}

impl<T: Copy> Stored<T> {
    pub(crate) const fn new(value: T) -> Self {
        #[cfg(not(feature = "shedding"))]
        let value = {
            _ = value;
            PhantomData
        };
        Self { value }
    }

    /// Returns the value, or `otherwise` if none is stored.
    #[inline(always)]
    pub(crate) const fn or(self, otherwise: T) -> T {
        #[cfg(feature = "shedding")]
        let (otherwise, _) = (self.value, otherwise);
        #[cfg(not(feature = "shedding"))]
        let PhantomData = self.value;
        otherwise
    }
}

/// How a queue sheds load: it bounds the time that requests wait. See
/// [`Queue::with_shedding`](crate::Queue::with_shedding).
///
/// [`controlled_delay`](Self::controlled_delay) creates one. The default is a target of 5 ms and an
/// interval of 100 ms.
///
/// ```
/// use core::time::Duration;
/// use portcullis_async::Shedding;
/// let shedding = Shedding::default();
/// assert_eq!(shedding.target(), Duration::from_millis(5));
/// assert_eq!(shedding.interval(), Duration::from_millis(100));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shedding {
    target: Duration,
    interval: Duration,
}

impl Shedding {
    /// The values of "Fail at Scale".
    pub(crate) const DEFAULT: Self =
        Self::controlled_delay(Duration::from_millis(5), Duration::from_millis(100));

    /// Bounds the wait of each new request: by `target` if its wait list is overloaded, and
    /// otherwise by `interval`. A wait list is overloaded if it has had waiters without a break for
    /// longer than `interval`.
    ///
    /// The interval is the length of a burst that the queue absorbs. The target is the wait that
    /// callers accept all the time; a service that takes longer than this between two releases
    /// needs a larger one. A target above the interval counts as the interval. With a target of
    /// zero no new request waits during an overload, and with an interval of zero none ever waits.
    ///
    /// ```
    /// use core::time::Duration;
    /// use portcullis_async::Shedding;
    /// let millis = Duration::from_millis;
    /// let shedding = Shedding::controlled_delay(millis(20), millis(500));
    /// assert_eq!(shedding.target(), millis(20));
    /// assert_eq!(Shedding::controlled_delay(millis(9), millis(7)).target(), millis(7));
    /// ```
    #[must_use]
    pub const fn controlled_delay(target: Duration, interval: Duration) -> Self {
        let target = if target.as_nanos() > interval.as_nanos() {
            interval
        } else {
            target
        };
        Self { target, interval }
    }

    /// Returns how long a new request may wait in an overloaded list.
    ///
    /// ```
    /// # use portcullis_async::Shedding;
    /// assert_eq!(Shedding::default().target().as_millis(), 5);
    /// ```
    #[must_use]
    pub const fn target(self) -> Duration {
        self.target
    }

    /// Returns how long a list has waiters before it is overloaded, and how long a new request may
    /// wait until then. The order
    /// [`NewestWhileOverloaded`](crate::Order::NewestWhileOverloaded) has the same interval.
    ///
    /// ```
    /// # use portcullis_async::Shedding;
    /// assert_eq!(Shedding::default().interval().as_millis(), 100);
    /// ```
    #[must_use]
    pub const fn interval(self) -> Duration {
        self.interval
    }

    /// Returns whether a list is overloaded that has had waiters since `since`.
    pub(crate) fn is_overloaded(self, since: Timestamp, now: Timestamp) -> bool {
        now.saturating_since(since) > self.interval
    }

    /// Returns until when a new request may wait.
    pub(crate) fn bound(self, is_overloaded: bool, now: Timestamp) -> Timestamp {
        now.saturating_add(if is_overloaded {
            self.target
        } else {
            self.interval
        })
    }
}

impl Default for Shedding {
    fn default() -> Self {
        Self::DEFAULT
    }
}
