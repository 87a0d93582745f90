//! A span that contains the present, from clocks that do not know it to the nanosecond.

use core::time::Duration;

use crate::time::timestamp::Timestamp;
use crate::word::settings::MIN_STALENESS;

/// An interval that contains the current time: what some clocks can tell at a lower cost than the
/// time itself. [`Clock::interval`](crate::Clock::interval) returns it, and
/// [`LimiterExt::take_within`](crate::LimiterExt::take_within) takes it.
///
/// Both ends belong to the interval. It is at most [`LONGEST`](Self::LONGEST) long.
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::Timestamp;
/// use portcullis_core::clock::Interval;
///
/// let tick = Timestamp::from_millis(40);
/// let interval = Interval::new(tick, tick + Duration::from_millis(4)).unwrap();
/// assert_eq!(interval.earliest(), tick);
/// assert!(interval.contains(Timestamp::from_millis(44)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Interval {
    earliest: Timestamp,
    latest: Timestamp,
}

impl Interval {
    /// The longest interval: one second. No limiter has a shorter staleness, so no state word wraps
    /// within an interval.
    ///
    /// ```
    /// # use portcullis_core::clock::Interval;
    /// assert_eq!(Interval::LONGEST.as_secs(), 1);
    /// ```
    pub const LONGEST: Duration = Duration::from_nanos(MIN_STALENESS);

    /// Creates the interval from `earliest` to `latest`. Returns `None` if `latest` is before
    /// `earliest`, or later by more than [`LONGEST`](Self::LONGEST).
    ///
    /// ```
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_core::clock::Interval;
    /// let at = Timestamp::from_secs;
    /// assert!(Interval::new(at(3), at(4)).is_some());
    /// assert!(Interval::new(at(3), at(5)).is_none() && Interval::new(at(3), at(2)).is_none());
    /// ```
    #[inline]
    #[must_use]
    pub const fn new(earliest: Timestamp, latest: Timestamp) -> Option<Self> {
        match latest.as_nanos().checked_sub(earliest.as_nanos()) {
            Some(length) if length <= MIN_STALENESS => Some(Self { earliest, latest }),
            _ => None,
        }
    }

    /// Returns the first instant of the interval.
    ///
    /// ```
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_core::clock::Interval;
    /// let now = Timestamp::from_secs(9);
    /// assert_eq!(Interval::new(now, now).map(|interval| interval.earliest()), Some(now));
    /// ```
    #[inline]
    #[must_use]
    pub const fn earliest(&self) -> Timestamp {
        self.earliest
    }

    /// Returns the last instant of the interval.
    ///
    /// ```
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_core::clock::Interval;
    /// let now = Timestamp::from_secs(9);
    /// assert_eq!(Interval::new(now, now).map(|interval| interval.latest()), Some(now));
    /// ```
    #[inline]
    #[must_use]
    pub const fn latest(&self) -> Timestamp {
        self.latest
    }

    /// Returns whether `now` is in the interval.
    ///
    /// ```
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_core::clock::Interval;
    /// let now = Timestamp::from_secs(9);
    /// assert_eq!(Interval::new(now, now).map(|interval| interval.contains(now)), Some(true));
    /// ```
    #[must_use]
    pub fn contains(&self, now: Timestamp) -> bool {
        self.earliest <= now && now <= self.latest
    }
}
