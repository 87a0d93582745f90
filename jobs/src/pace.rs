//! A rate in small intervals, and the bucket that keeps it.
//!
//! The bucket holds the permits of one interval. So no more are released at once, and the fractions
//! that an interval leaves over stay in the bucket's state, which counts them exactly.

use core::time::Duration;

use portcullis_core::{Rate, SettingsError, Timestamp, TokenBucket};

/// An even pace: a rate, released in small intervals.
///
/// 100 per second in intervals of 200 ms are 20 each 200 ms, and never 100 at once. The pace makes
/// the [bucket](Self::bucket) that allows this, for the queue of [`Jobs`](crate::Jobs).
///
/// **Bound.** In any span of time `t`, the bucket admits at most [`burst`](Self::burst) permits and
/// `rate * t`. It counts fractions of a permit exactly: a rate of less than one permit in each
/// interval, such as 5 per second in intervals of 100 ms, is kept without drift.
///
/// Source: the rate limiting pattern of the Azure Architecture Center.
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::Rate;
/// use portcullis_jobs::Pace;
///
/// let pace = Pace::new(Rate::per_second(100), Duration::from_millis(200));
/// assert_eq!(pace.burst(), 20);
/// // 100,000 units at 20,000 units per second.
/// let units = Pace::new(Rate::per_second(20_000), Duration::from_millis(20));
/// assert_eq!(units.time_for(100_000), Some(Duration::from_secs(5)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    rate: Rate,
    interval: Duration,
    catch_up: Duration,
}

impl Pace {
    /// Creates a pace of `rate`, in intervals of `interval`. An interval of at least 20 ms keeps
    /// the number of wake-ups low.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::Rate;
    /// # use portcullis_jobs::Pace;
    /// let pace = Pace::new(Rate::per_second(500), Duration::from_millis(20));
    /// assert_eq!(pace.burst(), 10);
    /// ```
    #[must_use]
    pub const fn new(rate: Rate, interval: Duration) -> Self {
        Self {
            rate,
            interval,
            catch_up: Duration::ZERO,
        }
    }

    /// Sets how much of a delay can be made up for. Default: none.
    ///
    /// If the program is late by up to this time, for example because the machine is busy, the
    /// permits of the missed intervals are kept and released together. This increases the
    /// [burst](Self::burst).
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::Rate;
    /// # use portcullis_jobs::Pace;
    /// let pace = Pace::new(Rate::per_second(100), Duration::from_millis(200))
    ///     .catch_up(Duration::from_millis(100));
    /// assert_eq!(pace.burst(), 30);
    /// ```
    #[must_use]
    pub const fn catch_up(mut self, catch_up: Duration) -> Self {
        self.catch_up = catch_up;
        self
    }

    /// Returns the rate.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::Rate;
    /// # use portcullis_jobs::Pace;
    /// let pace = Pace::new(Rate::per_second(100), Duration::from_millis(200));
    /// assert_eq!(pace.rate(), Rate::per_minute(6_000));
    /// ```
    pub const fn rate(self) -> Rate {
        self.rate
    }

    /// Returns the interval.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::Rate;
    /// # use portcullis_jobs::Pace;
    /// let pace = Pace::new(Rate::per_second(100), Duration::from_millis(200));
    /// assert_eq!(pace.interval(), Duration::from_millis(200));
    /// ```
    pub const fn interval(self) -> Duration {
        self.interval
    }

    /// Returns the most permits that are released at once: those of one interval and of the time
    /// that can be made up for, rounded up, and at least 1.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::Rate;
    /// # use portcullis_jobs::Pace;
    /// // Half a permit in each interval.
    /// assert_eq!(Pace::new(Rate::per_second(5), Duration::from_millis(100)).burst(), 1);
    /// ```
    pub fn burst(self) -> u64 {
        let nanos = self.interval.saturating_add(self.catch_up).as_nanos();
        let permits = nanos
            .saturating_mul(self.rate.permits().into())
            .div_ceil(self.rate.period().as_nanos().max(1));
        u64::try_from(permits).unwrap_or(u64::MAX).max(1)
    }

    /// Creates the bucket of this pace. It starts full: the first interval begins at once.
    ///
    /// # Errors
    ///
    /// [`SettingsError`] if rate and burst do not fit the state word of a bucket.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Rate, Timestamp};
    /// # use portcullis_jobs::Pace;
    /// let bucket = Pace::new(Rate::per_second(100), Duration::from_millis(200)).bucket()?;
    /// assert!(bucket.try_acquire_at(Timestamp::ZERO, 20).is_ok());
    /// assert!(bucket.try_acquire_at(Timestamp::ZERO, 1).is_err());
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub fn bucket(self) -> Result<TokenBucket, SettingsError> {
        TokenBucket::builder(self.rate, self.burst()).build()
    }

    /// Creates the bucket of this pace, empty at `now`. Then at most `rate * t` permits are
    /// admitted in the time `t` after `now`, without a burst.
    ///
    /// # Errors
    ///
    /// [`SettingsError`] if rate and burst do not fit the state word of a bucket.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Rate, Timestamp};
    /// # use portcullis_jobs::Pace;
    /// let pace = Pace::new(Rate::per_second(100), Duration::from_millis(200));
    /// let bucket = pace.empty_bucket(Timestamp::from_secs(7))?;
    /// assert_eq!(bucket.available_at(Timestamp::from_secs(7)), 0);
    /// assert_eq!(bucket.available_at(Timestamp::from_millis(7_100)), 10);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub fn empty_bucket(self, now: Timestamp) -> Result<TokenBucket, SettingsError> {
        let bucket = self.bucket()?;
        let mut rest = bucket.available_at(now);
        // At an unlimited rate, any number is always available.
        while rest > 0 && !self.rate.is_unlimited() {
            let part = u32::try_from(rest).unwrap_or(u32::MAX);
            if bucket.try_acquire_at(now, part).is_err() {
                break;
            }
            rest -= u64::from(part);
        }
        Ok(bucket)
    }

    /// Returns the time in which operations of `cost` permits in all are released at this rate,
    /// without a burst; rounded up to a nanosecond. `None` if it takes more than 584 years, or at a
    /// rate of zero for ever.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::Rate;
    /// # use portcullis_jobs::Pace;
    /// let pace = Pace::new(Rate::per_second(3), Duration::from_secs(1));
    /// assert_eq!(pace.time_for(1), Some(Duration::from_nanos(333_333_334)));
    /// ```
    pub fn time_for(self, cost: u64) -> Option<Duration> {
        if self.rate.is_unlimited() {
            return Some(Duration::ZERO);
        }
        let nanos = u128::from(cost) * self.rate.period().as_nanos();
        let nanos = match u128::from(self.rate.permits()) {
            0 if cost == 0 => 0,
            0 => return None,
            permits => nanos.div_ceil(permits),
        };
        u64::try_from(nanos).ok().map(Duration::from_nanos)
    }
}
