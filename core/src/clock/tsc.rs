use super::Clock;
use crate::Timestamp;

/// The processor's time stamp counter, read by [`quanta`]. Needs the feature `tsc`.
///
/// Its origin is the moment of its making. Resolution: about 1 ns. The first one in a process takes
/// up to 200 ms to calibrate. On machines whose counters are not in step, two cores may disagree: a
/// reading may be older than one that another core has just made, which costs denials, not
/// admissions, as long as they disagree by less than the limiter's staleness.
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
    /// A clock whose origin is now.
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
