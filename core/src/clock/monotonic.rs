//! On Linux, two clocks of the kernel with one origin. `CLOCK_MONOTONIC` is precise: a reading
//! costs about 30 ns. `CLOCK_MONOTONIC_COARSE` is the value that the precise clock had when the
//! kernel last updated its time, usually at the last timer tick: a reading costs about 5 ns.
//!
//! ```text
//!    coarse             now                  coarse + length
//!  ----|-----------------|------------------------|---->
//!      |<------------ the interval -------------->|
//! ```
//!
//! The coarse clock is never ahead of the precise one: the precise clock is that same value plus
//! the time that has passed since the update. How far the coarse clock can be behind is a matter of
//! scheduling, and the kernel states no bound:
//!
//! - Undisturbed, it is behind by up to a tick and the offset of the ticks from the kernel's
//!   seconds, so by less than two ticks.
//! - One processor updates the time. While that processor misses ticks, because its interrupts are
//!   disabled or because a hypervisor runs another machine on it, the coarse clock stands still,
//!   until another processor takes over at its sixth tick (`MAX_STALLED_JIFFIES` in
//!   `kernel/time/tick-sched.c`).
//! - A thread that runs before the first tick after a stop of the whole virtual machine reads the
//!   time of the stop.
//!
//! The interval is two ticks and 8 ms long. In five minutes on the two fully loaded cores of a
//! virtual machine with ticks of 4 ms, in 2.9 billion readings, the coarse clock was behind by up
//! to 4.3 ms on one core, and by up to 11 ms on the other, where one reading in 2,300 was behind by
//! more than 5 ms. Mostly idle cores, which update the time before they run a thread: up to 4.4 ms.
//! The example `clock_lag` repeats the measurement.
//!
//! If the coarse clock is behind by more, a limiter decides as for a timestamp that is stale by the
//! excess. So it does for the precise clock if the thread is paused after the reading. Either way,
//! it grants no more than at the end of the interval, which has passed.

#[cfg(not(target_os = "linux"))]
use std::time::Instant;

use super::Clock;
#[cfg(target_os = "linux")]
use super::system;
#[cfg(target_os = "linux")]
use crate::Interval;
use crate::Timestamp;

/// The monotonic clock of the operating system, the one that [`std::time::Instant`] reads. The
/// default choice. Needs the feature `std`.
///
/// Its origin is its creation. Resolution: 1 ns on Linux. It never goes back. A reading costs about
/// 20 ns to 40 ns.
///
/// **Interval.** On Linux it also reads the kernel's coarse clock, the time of the last timer tick,
/// at about a quarter of that cost. Its [interval](Clock::interval) begins there, and is two ticks
/// and 8 ms long: 10 ms to 28 ms, depending on the kernel's configuration. So a
/// [`Clocked`](super::Clocked) limiter decides as by the precise time, but reads it only when the
/// decision depends on where in the interval it is.
///
/// The kernel does not bound the time since its last tick. If it is longer than the interval, for
/// example after a stop of a virtual machine, decisions until the next tick are those of a stale
/// timestamp, as if the thread had been paused after the reading. A limiter's bound holds for
/// timestamps that are stale by up to its staleness.
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
    #[cfg(target_os = "linux")]
    origin: u64,
    /// The length of the interval, in nanoseconds; 0 if the coarse clock is not used.
    #[cfg(target_os = "linux")]
    length: u64,
    #[cfg(not(target_os = "linux"))]
    origin: Instant,
}

/// The time in which another processor notices that ticks are missing, or a thread of the
/// hypervisor has had its turn, in nanoseconds. See the head of this file.
#[cfg(target_os = "linux")]
const MISSED_TICKS: u64 = 8_000_000;

impl MonotonicClock {
    /// Creates a clock whose origin is now.
    ///
    /// ```
    /// # use portcullis_core::{Clock, MonotonicClock};
    /// let clock = MonotonicClock::new();
    /// let earlier = clock.now();
    /// assert!(clock.now() >= earlier);
    /// ```
    #[cfg(target_os = "linux")]
    pub fn new() -> Self {
        // Ticks of 1 ms to 10 ms. Any other resolution is that of a system without ticks, whose
        // coarse clock costs as much as the precise one.
        let length = match system::resolution(libc::CLOCK_MONOTONIC_COARSE) {
            tick @ 500_000..=10_000_000 => 2 * tick + MISSED_TICKS,
            _ => 0,
        };
        Self {
            origin: system::read(libc::CLOCK_MONOTONIC),
            length,
        }
    }

    /// Creates a clock whose origin is now.
    ///
    /// ```
    /// # use portcullis_core::{Clock, MonotonicClock};
    /// let clock = MonotonicClock::new();
    /// let earlier = clock.now();
    /// assert!(clock.now() >= earlier);
    /// ```
    #[cfg(not(target_os = "linux"))]
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

#[cfg(target_os = "linux")]
impl Clock for MonotonicClock {
    #[inline]
    fn now(&self) -> Timestamp {
        Timestamp::from_nanos(system::read(libc::CLOCK_MONOTONIC).wrapping_sub(self.origin))
    }

    #[inline]
    fn interval(&self) -> Option<Interval> {
        if self.length == 0 {
            return None;
        }
        // `None` before the first tick after the origin.
        let since = system::read(libc::CLOCK_MONOTONIC_COARSE).checked_sub(self.origin)?;
        let earliest = Timestamp::from_nanos(since);
        Interval::new(
            earliest,
            Timestamp::from_nanos(since.checked_add(self.length)?),
        )
    }
}

#[cfg(not(target_os = "linux"))]
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
