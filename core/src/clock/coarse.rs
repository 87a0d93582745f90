//! The time of the last timer tick, and the interval in which the current time therefore lies.

use super::Clock;
use crate::time::timestamp::Timestamp;

/// The coarse monotonic clock of the operating system. On Linux it is the time of the last timer
/// tick; elsewhere it is the same as [`MonotonicClock`](super::MonotonicClock). Needs the feature
/// `std`.
///
/// Its origin is that of all [`MonotonicClock`](super::MonotonicClock)s. Resolution: 1 ms to 10 ms
/// on Linux, depending on the kernel's configuration. It never goes back, but is late by up to its
/// resolution: permits are replenished in groups, at the exact rate over time. A reading costs
/// about a quarter of a `MonotonicClock` reading.
///
/// For exact decisions at nearly this price, use a [`MonotonicClock`](super::MonotonicClock).
///
/// ```
/// use portcullis_core::{Clock, CoarseClock};
///
/// let clock = CoarseClock::new();
/// assert!(clock.now() <= clock.now());
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::exhaustive_structs, reason = "it has no settings")]
pub struct CoarseClock {
    #[cfg(not(target_os = "linux"))]
    clock: super::MonotonicClock,
}

impl CoarseClock {
    /// Creates the coarse clock.
    ///
    /// ```
    /// # use portcullis_core::{Clock, CoarseClock};
    /// static CLOCK: CoarseClock = CoarseClock::new();
    /// let earlier = CLOCK.now();
    /// assert!(CLOCK.now() >= earlier);
    /// ```
    #[must_use]
    pub const fn new() -> Self {
        Self {
            #[cfg(not(target_os = "linux"))]
            clock: super::MonotonicClock::new(),
        }
    }
}

impl Clock for CoarseClock {
    #[cfg(target_os = "linux")]
    #[inline]
    fn now(&self) -> Timestamp {
        Timestamp::from_nanos(super::system::read(libc::CLOCK_MONOTONIC_COARSE))
    }

    #[cfg(not(target_os = "linux"))]
    #[inline]
    fn now(&self) -> Timestamp {
        self.clock.now()
    }
}
