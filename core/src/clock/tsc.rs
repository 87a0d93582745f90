//! A clock by the time stamp counter. The reading is `quanta`'s; here is only its origin.

use super::Clock;
use crate::time::timestamp::Timestamp;

/// The time stamp counter of the processor, read by [`quanta`]. Needs the feature `tsc`.
///
/// All clocks of this type in a process have the same origin, usually the reset of the counter. It
/// is not that of a [`MonotonicClock`](super::MonotonicClock). The two drift apart, because the
/// frequency of the counter is measured, so pass timestamps of only one of the types to a limiter.
///
/// Resolution: about 1 ns. Creating the first one in a process takes up to 200 ms of calibration.
/// If the counters of a machine are not synchronized, a reading may be older than one that another
/// core has just made. As long as the difference is less than the limiter's staleness, this causes
/// denials, not extra admissions.
///
/// ```
/// use portcullis_core::{Clocked, Rate, TokenBucket, TscClock};
///
/// let limit =
///     Clocked::new(TokenBucket::new(Rate::per_second(100), 10), TscClock::new());
/// assert!(limit.try_acquire(10).is_ok());
/// ```
#[derive(Clone, Debug)]
pub struct TscClock {
    clock: quanta::Clock,
}

impl TscClock {
    /// Creates a clock, with the origin of all clocks of this type in the process.
    ///
    /// ```
    /// # use portcullis_core::{Clock, TscClock};
    /// let clock = TscClock::new();
    /// let earlier = clock.now();
    /// assert!(clock.now() >= earlier);
    /// ```
    #[must_use]
    pub fn new() -> Self {
        Self {
            clock: quanta::Clock::new(),
        }
    }
}

impl Default for TscClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for TscClock {
    #[inline]
    fn now(&self) -> Timestamp {
        Timestamp::from_nanos(self.clock.delta_as_nanos(0, self.clock.raw()))
    }
}
