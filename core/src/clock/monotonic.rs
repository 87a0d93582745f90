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
//! The program `clock_lag` in `benches/` repeats the measurement.
//!
//! If the coarse clock is behind by more, a limiter decides as for a timestamp that is stale by the
//! excess. So it does for the precise clock if the thread is paused after the reading. Either way,
//! it grants no more than at the end of the interval, which has passed.

#[cfg(not(target_os = "linux"))]
use std::{sync::OnceLock, time::Instant};

// Not those of `crate::sync`: the length is a constant of the system, kept in a static, which the
// atomics of loom cannot be. All Linux targets have 32-bit atomics.
#[cfg(target_os = "linux")]
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::Clock;
#[cfg(target_os = "linux")]
use super::system;
#[cfg(target_os = "linux")]
use crate::Interval;
use crate::Timestamp;

/// The monotonic clock of the operating system, the one that [`std::time::Instant`] reads. The
/// default choice. Needs the feature `std`.
///
/// All monotonic clocks of a process have the same origin, so it does not matter which of them a
/// timestamp comes from. On Linux, the origin is that of `CLOCK_MONOTONIC`, usually the start of
/// the machine, and a [`CoarseClock`](super::CoarseClock) has the same. Elsewhere it is the first
/// reading in the process. That reading takes a lock: if a signal handler reads the clock, read the
/// clock once before the handler is installed.
///
/// Resolution: 1 ns on Linux. It never goes back. A reading costs about 20 ns to 40 ns.
///
/// A limiter has its [initial](crate::TokenBucketBuilder::initial) permits at its own
/// [origin](crate::TokenBucketBuilder::origin), by default [`Timestamp::ZERO`]. So a limiter that
/// does not start full needs the time of its construction as its origin, and so does a limiter with
/// a short horizon. The grid of a window starts at its origin too: by default, windows follow each
/// other from the start of the machine.
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
/// use portcullis_core::{Clock, Clocked, MonotonicClock, Rate, TokenBucket};
///
/// static LIMIT: Clocked<TokenBucket, MonotonicClock> = Clocked::new(
///     TokenBucket::new(Rate::per_second(100), 10),
///     MonotonicClock::new(),
/// );
/// assert!(LIMIT.try_acquire(9).is_ok());
///
/// // A timestamp of another monotonic clock is as good.
/// let now = MonotonicClock::new().now();
/// assert!(LIMIT.limiter().try_acquire_at(now, 1).is_ok());
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct MonotonicClock(());

impl MonotonicClock {
    /// Creates a clock, with the origin of all monotonic clocks of the process.
    ///
    /// ```
    /// # use portcullis_core::{Clock, MonotonicClock};
    /// static CLOCK: MonotonicClock = MonotonicClock::new();
    /// let earlier = CLOCK.now();
    /// assert!(MonotonicClock::new().now() >= earlier);
    /// ```
    #[must_use]
    pub const fn new() -> Self {
        Self(())
    }
}

/// The length of the interval, in nanoseconds: 0 if the coarse clock is not used, and `UNKNOWN`
/// before the first interval of the process.
///
/// Relaxed: the value is computed from a constant of the system, so all threads store the same, and
/// no other memory depends on it.
#[cfg(target_os = "linux")]
static LENGTH: AtomicU32 = AtomicU32::new(UNKNOWN);

#[cfg(target_os = "linux")]
const UNKNOWN: u32 = u32::MAX;

/// The time in which another processor notices that ticks are missing, or a thread of the
/// hypervisor has had its turn, in nanoseconds. See the head of this file.
#[cfg(target_os = "linux")]
const MISSED_TICKS: u32 = 8_000_000;

/// Computes the length of the interval, once in a process, and returns it.
#[cfg(target_os = "linux")]
#[cold]
fn measure() -> u32 {
    // Ticks of 1 ms to 10 ms. Any other resolution is that of a system without ticks, whose
    // coarse clock costs as much as the precise one.
    let length = match u32::try_from(system::resolution(libc::CLOCK_MONOTONIC_COARSE)) {
        Ok(tick @ 500_000..=10_000_000) => 2 * tick + MISSED_TICKS,
        _ => 0,
    };
    LENGTH.store(length, Relaxed);
    length
}

#[cfg(target_os = "linux")]
impl Clock for MonotonicClock {
    #[inline]
    fn now(&self) -> Timestamp {
        Timestamp::from_nanos(system::read(libc::CLOCK_MONOTONIC))
    }

    #[inline]
    fn interval(&self) -> Option<Interval> {
        let length = match LENGTH.load(Relaxed) {
            UNKNOWN => measure(),
            length => length,
        };
        if length == 0 {
            return None;
        }
        let earliest = system::read(libc::CLOCK_MONOTONIC_COARSE);
        let latest = earliest.checked_add(length.into())?;
        Interval::new(
            Timestamp::from_nanos(earliest),
            Timestamp::from_nanos(latest),
        )
    }
}

/// The origin of all monotonic clocks of the process: their first reading.
#[cfg(not(target_os = "linux"))]
static ORIGIN: OnceLock<Instant> = OnceLock::new();

#[cfg(not(target_os = "linux"))]
impl Clock for MonotonicClock {
    #[inline]
    fn now(&self) -> Timestamp {
        Timestamp::ZERO.saturating_add(ORIGIN.get_or_init(Instant::now).elapsed())
    }
}
