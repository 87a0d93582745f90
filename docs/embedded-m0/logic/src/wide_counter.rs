//! A counter of the hardware, continued in 64 bits.

use core::cell::Cell;

use critical_section::Mutex;
use portcullis_core::{Clock, Timestamp};

/// A counter of `BITS` bits that the hardware increments at `HZ`. No other code resets it.
///
/// Its count must be read **more often than once per wrap**, in any context: what matters is that
/// fewer than 2^`BITS` counts pass between two readings. A wrap that is missed is missing from the
/// time, which is then late. It never goes back.
pub struct WideCounter<const BITS: u32, const HZ: u64> {
    read: fn() -> u32,
    /// The count in 64 bits, at the last reading.
    last: Mutex<Cell<u64>>,
}

impl<const BITS: u32, const HZ: u64> WideCounter<BITS, HZ> {
    const MASK: u32 = u32::MAX >> (32 - BITS);

    /// Continues the counter that `read` reads, 1 to 32 bits wide.
    pub const fn new(read: fn() -> u32) -> Self {
        Self::starting_at(0, read)
    }

    /// As [`new`](Self::new), after a sleep in which the memory was lost, but the counter went on:
    /// `count` was saved in 64 bits, less than one wrap before the next reading.
    pub const fn starting_at(count: u64, read: fn() -> u32) -> Self {
        Self {
            read,
            last: Mutex::new(Cell::new(count)),
        }
    }

    /// Returns the count in 64 bits.
    ///
    /// Disables interrupts for the reading and an addition. Otherwise an interrupt between the two
    /// could store a later count, and the older one would overwrite it.
    pub fn count(&self) -> u64 {
        critical_section::with(|section| {
            let last = self.last.borrow(section);
            let passed = (self.read)().wrapping_sub(last.get() as u32) & Self::MASK;
            last.set(last.get() + u64::from(passed));
            last.get()
        })
    }
}

impl<const BITS: u32, const HZ: u64> Clock for WideCounter<BITS, HZ> {
    /// Two divisions; shifts if `HZ` is a power of two. In one product, the nanoseconds of a long
    /// time would not fit 64 bits.
    fn now(&self) -> Timestamp {
        const SECOND: u64 = 1_000_000_000;
        let count = self.count();
        Timestamp::from_nanos(count / HZ * SECOND + count % HZ * SECOND / HZ)
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicU32;
    use core::sync::atomic::Ordering::Relaxed;
    use core::time::Duration;

    use portcullis_core::{LimiterExt, Rate, TokenBucket};

    use super::*;

    #[test]
    fn wraps_are_counted_if_there_are_two_readings_in_each() {
        static COUNTER: AtomicU32 = AtomicU32::new(40_000);
        // 16 bits at 32,768 Hz wrap every 2 s.
        let clock = WideCounter::<16, 32_768>::new(|| COUNTER.load(Relaxed) & 0xffff);
        assert_eq!(clock.count(), 40_000);
        for _ in 0..100_000 {
            COUNTER.fetch_add(32_000, Relaxed);
            clock.count();
        }
        assert_eq!(clock.count(), 40_000 + 3_200_000_000);
        assert_eq!(clock.now().as_nanos(), 97_657_470_703_125);
    }

    #[test]
    fn a_wrap_without_a_reading_makes_the_time_late_and_never_early() {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let clock = WideCounter::<24, 16_000_000>::new(|| COUNTER.load(Relaxed) & 0xff_ffff);
        clock.count();
        COUNTER.fetch_add((1 << 24) + 16_000, Relaxed);
        assert_eq!(clock.now(), Timestamp::from_millis(1));
    }

    #[test]
    fn a_bucket_saved_after_a_wrap_of_the_counter_stays_empty_through_a_sleep() {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        type Clock = WideCounter<24, 32_768>;
        let read = || COUNTER.load(Relaxed) & 0xff_ffff;
        // In the word of the chip.
        let bucket = || {
            let builder = TokenBucket::builder(Rate::per_hour(1), 3);
            let builder = builder.staleness(Duration::from_secs(1));
            builder.build_on::<u32>().unwrap()
        };
        let clock = Clock::new(read);
        for _ in 0..9 {
            COUNTER.fetch_add(1 << 23, Relaxed);
            clock.count();
        }
        let limit = bucket();
        assert!(limit.allow_at(clock.now(), 3));
        let (state, count) = (limit.state(), clock.count());

        // A sleep of 100 s, in which the memory is lost.
        COUNTER.fetch_add(100 * 32_768, Relaxed);
        let limit = bucket().with_state(state);
        let clock = Clock::starting_at(count, read);
        assert_eq!(clock.count(), (9 << 23) + 100 * 32_768);
        assert!(!limit.allow_at(clock.now(), 1));
        // Without the count, the time would go back, and the bucket be full.
        let forgetful = Clock::new(read);
        assert!(limit.allow_at(forgetful.now(), 3));
    }

    #[test]
    fn the_time_of_centuries_fits() {
        const COUNT: u64 = 64_000_000 * 15_000_000_000;
        let clock = WideCounter::<32, 64_000_000>::starting_at(COUNT, || COUNT as u32);
        assert_eq!(clock.now(), Timestamp::from_secs(15_000_000_000));
    }
}
