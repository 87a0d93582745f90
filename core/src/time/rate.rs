use core::time::Duration;

use crate::time::timestamp::saturating_nanos;

/// How many permits come back in how much time: an exact rational number, never rounded.
///
/// `Rate::per_second(3)` is three each second, and in any three seconds nine, not 8.999.
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::Rate;
///
/// const THREE_A_SECOND: Rate = Rate::per_second(3);
/// const SEVEN_PER_TEN_NANOSECONDS: Rate = Rate::new(7, Duration::from_nanos(10));
/// assert_eq!(THREE_A_SECOND.permits(), 3);
/// assert_eq!(SEVEN_PER_TEN_NANOSECONDS.period(), Duration::from_nanos(10));
/// assert_eq!(Rate::per_minute(60).permits(), 60);
/// assert!(Rate::UNLIMITED.is_unlimited());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    /// `u64::MAX` stands for no limit.
    permits: u64,
    period_nanos: u64,
}

impl Rate {
    /// Nothing ever comes back: a bucket with this rate has its burst, and then no more.
    ///
    /// ```
    /// # use portcullis_core::{Rate, Timestamp, TokenBucket};
    /// let once = TokenBucket::new(Rate::ZERO, 1);
    /// assert!(once.try_acquire_at(Timestamp::ZERO, 1).is_ok());
    /// assert!(once.try_acquire_at(Timestamp::MAX, 1).is_err());
    /// ```
    pub const ZERO: Self = Self {
        permits: 0,
        period_nanos: 1,
    };
    /// No limit: a bucket with this rate grants every request, whatever its burst.
    ///
    /// ```
    /// # use portcullis_core::{Rate, Timestamp, TokenBucket};
    /// let bucket = TokenBucket::new(Rate::UNLIMITED, 1);
    /// assert!(bucket.try_acquire_at(Timestamp::ZERO, 1_000_000).is_ok());
    /// ```
    pub const UNLIMITED: Self = Self {
        permits: u64::MAX,
        period_nanos: 1,
    };

    /// `permits` each `period`, a duration of 1 ns to 292 years. A builder refuses a period outside
    /// of that range, and a rate that its word cannot carry.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::Rate;
    /// let once_a_year = Rate::new(1, Duration::from_secs(365 * 24 * 60 * 60));
    /// assert_eq!(once_a_year.permits(), 1);
    /// ```
    pub const fn new(permits: u32, period: Duration) -> Self {
        Self {
            permits: permits as u64,
            period_nanos: saturating_nanos(period),
        }
    }

    /// `permits` each second.
    ///
    /// ```
    /// # use portcullis_core::Rate;
    /// assert_eq!(Rate::per_second(5).period().as_secs(), 1);
    /// ```
    pub const fn per_second(permits: u32) -> Self {
        Self::new(permits, Duration::from_secs(1))
    }

    /// `permits` each minute.
    ///
    /// ```
    /// # use portcullis_core::Rate;
    /// assert_eq!(Rate::per_minute(5).period().as_secs(), 60);
    /// ```
    pub const fn per_minute(permits: u32) -> Self {
        Self::new(permits, Duration::from_mins(1))
    }

    /// `permits` each hour.
    ///
    /// ```
    /// # use portcullis_core::Rate;
    /// assert_eq!(Rate::per_hour(5).period().as_secs(), 3_600);
    /// ```
    pub const fn per_hour(permits: u32) -> Self {
        Self::new(permits, Duration::from_hours(1))
    }

    /// `permits` each day of 24 hours.
    ///
    /// ```
    /// # use portcullis_core::Rate;
    /// assert_eq!(Rate::per_day(5).period().as_secs(), 86_400);
    /// ```
    pub const fn per_day(permits: u32) -> Self {
        Self::new(permits, Duration::from_hours(24))
    }

    /// Permits that come back in each [`period`](Self::period); `u64::MAX` if there is no limit.
    ///
    /// ```
    /// # use portcullis_core::{Rate};
    /// assert_eq!(Rate::per_hour(7).permits(), 7);
    /// ```
    pub const fn permits(self) -> u64 {
        self.permits
    }

    /// The period in which [`permits`](Self::permits) come back.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Rate};
    /// assert_eq!(Rate::per_hour(7).period(), Duration::from_hours(1));
    /// ```
    pub const fn period(self) -> Duration {
        Duration::from_nanos(self.period_nanos)
    }

    /// Whether this is [`Rate::UNLIMITED`].
    ///
    /// ```
    /// # use portcullis_core::{Rate};
    /// assert!(!Rate::per_hour(7).is_unlimited());
    /// ```
    pub const fn is_unlimited(self) -> bool {
        self.permits == u64::MAX
    }
}
