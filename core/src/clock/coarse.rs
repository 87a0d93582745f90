//! The crate's only foreign call, which reads a clock that the standard library does not offer.
#![allow(unsafe_code)]

use super::Clock;
use crate::Timestamp;

/// The coarse monotonic clock of the operating system. On Linux it is the time of the last timer
/// tick; elsewhere it is the same as [`MonotonicClock`](super::MonotonicClock). Needs the feature
/// `std`.
///
/// Its origin is the system's (on Linux, the boot). Resolution: 1 ms to 10 ms on Linux, depending
/// on the kernel's configuration. It never goes back, but is late by up to its resolution: permits
/// are replenished in groups, at the exact rate over time. A reading costs about a quarter of a
/// `MonotonicClock` reading.
///
/// ```
/// use portcullis_core::{Clock, CoarseClock};
///
/// let clock = CoarseClock::new();
/// assert!(clock.now() <= clock.now());
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct CoarseClock {
    #[cfg(not(target_os = "linux"))]
    clock: super::MonotonicClock,
}

impl CoarseClock {
    /// Creates the coarse clock.
    ///
    /// ```
    /// # use portcullis_core::{Clock, CoarseClock};
    /// let clock = CoarseClock::new();
    /// let earlier = clock.now();
    /// assert!(clock.now() >= earlier);
    /// ```
    pub fn new() -> Self {
        Self::default()
    }
}

impl Clock for CoarseClock {
    #[cfg(target_os = "linux")]
    #[inline]
    fn now(&self) -> Timestamp {
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: `time` is a valid `timespec` to write to, for the duration of the call.
        let failed = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut time) };
        debug_assert_eq!(failed, 0, "CLOCK_MONOTONIC_COARSE needs Linux 2.6.32");
        // Neither value is negative. On 32-bit systems they are narrower than 64 bits.
        #[allow(clippy::cast_sign_loss)]
        let (secs, nanos) = (time.tv_sec as u64, time.tv_nsec as u64);
        Timestamp::from_nanos(secs.wrapping_mul(1_000_000_000).wrapping_add(nanos))
    }

    #[cfg(not(target_os = "linux"))]
    #[inline]
    fn now(&self) -> Timestamp {
        self.clock.now()
    }
}
