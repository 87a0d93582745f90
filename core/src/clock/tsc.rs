use super::Clock;
use crate::Timestamp;

/// The time stamp counter of the processor, read by [`quanta`]. Needs the feature `tsc`.
///
/// Its origin is its creation. Resolution: about 1 ns. Creating the first one in a process takes up
/// to 200 ms of calibration. If the counters of a machine are not synchronized, a reading may be
/// older than one that another core has just made. As long as the difference is less than the
/// limiter's staleness, this causes denials, not extra admissions.
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
    origin: u64,
}

impl TscClock {
    /// Creates a clock whose origin is now.
    ///
    /// ```
    /// # use portcullis_core::{Clock, TscClock};
    /// let clock = TscClock::new();
    /// let earlier = clock.now();
    /// assert!(clock.now() >= earlier);
    /// ```
    pub fn new() -> Self {
        let clock = quanta::Clock::new();
        let origin = clock.raw();
        Self { clock, origin }
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
        Timestamp::from_nanos(self.clock.delta_as_nanos(self.origin, self.clock.raw()))
    }
}
