//! A rate as a fraction: permits, and the nanoseconds in which they come. Limiters divide once,
//! when they are built.

use core::hash::{Hash, Hasher};
use core::time::Duration;

use crate::time::timestamp::saturating_nanos;
use crate::word::settings::gcd;

/// A rate of permits: a number of permits per period, as an exact rational number.
///
/// A rate is never rounded: `Rate::per_second(3)` replenishes 9 permits in any 3 seconds, not
/// 8.999.
///
/// Rates are compared as numbers: 60 permits per minute equal 1 permit per second.
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
/// assert_eq!(Rate::per_minute(60), Rate::per_second(1));
/// assert!(Rate::UNLIMITED.is_unlimited());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// `u64::MAX` means no limit.
    permits: u64,
    period_nanos: u64,
}

impl Rate {
    /// Replenishes nothing: a bucket with this rate grants its burst once and no more.
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

    /// Creates a rate of `permits` per `period`, 1 ns to 292 years. A builder rejects a period
    /// outside that range, and a rate that does not fit its word.
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

    /// Creates a rate of `permits` per second.
    ///
    /// ```
    /// # use portcullis_core::Rate;
    /// assert_eq!(Rate::per_second(5).period().as_secs(), 1);
    /// ```
    pub const fn per_second(permits: u32) -> Self {
        Self::new(permits, Duration::from_secs(1))
    }

    /// Creates a rate of `permits` per minute.
    ///
    /// ```
    /// # use portcullis_core::Rate;
    /// assert_eq!(Rate::per_minute(5).period().as_secs(), 60);
    /// ```
    pub const fn per_minute(permits: u32) -> Self {
        Self::new(permits, Duration::from_secs(60))
    }

    /// Creates a rate of `permits` per hour.
    ///
    /// ```
    /// # use portcullis_core::Rate;
    /// assert_eq!(Rate::per_hour(5).period().as_secs(), 3_600);
    /// ```
    pub const fn per_hour(permits: u32) -> Self {
        Self::new(permits, Duration::from_secs(3_600))
    }

    /// Creates a rate of `permits` per day of 24 hours.
    ///
    /// ```
    /// # use portcullis_core::Rate;
    /// assert_eq!(Rate::per_day(5).period().as_secs(), 86_400);
    /// ```
    pub const fn per_day(permits: u32) -> Self {
        Self::new(permits, Duration::from_secs(24 * 3_600))
    }

    /// Returns the permits replenished in each [`period`](Self::period); `u64::MAX` if there is no
    /// limit.
    ///
    /// ```
    /// # use portcullis_core::{Rate};
    /// assert_eq!(Rate::per_hour(7).permits(), 7);
    /// ```
    pub const fn permits(self) -> u64 {
        self.permits
    }

    /// Returns the period in which [`permits`](Self::permits) are replenished.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Rate};
    /// assert_eq!(Rate::per_hour(7).period(), Duration::from_secs(3_600));
    /// ```
    pub const fn period(self) -> Duration {
        Duration::from_nanos(self.period_nanos)
    }

    /// Returns whether this is [`Rate::UNLIMITED`].
    ///
    /// ```
    /// # use portcullis_core::{Rate};
    /// assert!(!Rate::per_hour(7).is_unlimited());
    /// ```
    pub const fn is_unlimited(self) -> bool {
        self.permits == u64::MAX
    }

    /// Returns the rate of `gain / cost` permits per `tick` nanoseconds, in lowest terms. `gain`
    /// and `cost` have no common divisor, `cost` is 0 at an unlimited rate, and the period must fit
    /// a `u64`.
    pub(crate) const fn of(gain: u64, cost: u64, tick: u64) -> Self {
        if cost == 0 {
            return Self::UNLIMITED;
        }
        let common = gcd(gain as u128, tick);
        Self {
            permits: gain / common,
            period_nanos: cost * (tick / common),
        }
    }

    /// Returns the permits and the period in lowest terms.
    fn in_lowest_terms(self) -> (u64, u64) {
        // A period of zero is no rate, but may be compared.
        let common = gcd(self.permits.into(), self.period_nanos).max(1);
        (self.permits / common, self.period_nanos / common)
    }
}

impl PartialEq for Rate {
    fn eq(&self, other: &Self) -> bool {
        self.in_lowest_terms() == other.in_lowest_terms()
    }
}

impl Eq for Rate {}

impl Hash for Rate {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.in_lowest_terms().hash(state);
    }
}
