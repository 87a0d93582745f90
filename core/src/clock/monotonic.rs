use std::time::Instant;

use super::Clock;
use crate::Timestamp;

/// The monotonic clock of the operating system, [`std::time::Instant`]. The default choice. Needs
/// the feature `std`.
///
/// Its origin is its creation. Resolution: 1 ns on Linux. It never goes back. A reading costs about
/// 20 ns to 40 ns.
///
/// ```
/// use portcullis_core::{Clocked, MonotonicClock, Rate, TokenBucket};
///
/// let limit = Clocked::new(
///     TokenBucket::new(Rate::per_second(100), 10),
///     MonotonicClock::new(),
/// );
/// assert!(limit.try_acquire(10).is_ok());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct MonotonicClock {
    origin: Instant,
}

impl MonotonicClock {
    /// Creates a clock whose origin is now.
    ///
    /// ```
    /// # use portcullis_core::{Clock, MonotonicClock};
    /// let clock = MonotonicClock::new();
    /// let earlier = clock.now();
    /// assert!(clock.now() >= earlier);
    /// ```
    pub fn new() -> Self {
        Self {
            origin: Instant::now(),
        }
    }
}

impl Default for MonotonicClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for MonotonicClock {
    #[inline]
    fn now(&self) -> Timestamp {
        let since = self.origin.elapsed();
        Timestamp::from_nanos(
            since
                .as_secs()
                .wrapping_mul(1_000_000_000)
                .wrapping_add(u64::from(since.subsec_nanos())),
        )
    }
}
