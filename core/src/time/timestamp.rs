//! Time as the core counts it: 64 bits of nanoseconds. Limiters convert it to ticks of their own.

use core::fmt;
use core::ops::{Add, AddAssign, Sub, SubAssign};
use core::time::Duration;

/// An instant, in nanoseconds since an origin that the caller chooses.
///
/// The origin may be the start of the program, the reset of a microcontroller or the Unix epoch.
/// All timestamps passed to one limiter must have the same origin. 64 bits of nanoseconds cover 584
/// years.
///
/// `+` and `-` move an instant by a [`Duration`]. They stop at [`Timestamp::MAX`] and
/// [`Timestamp::ZERO`], and never panic. In constants, use [`saturating_add`](Self::saturating_add)
/// and [`saturating_sub`](Self::saturating_sub), which do the same.
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::Timestamp;
///
/// let a = Timestamp::from_millis(1_500);
/// assert_eq!(a.as_nanos(), 1_500_000_000);
/// assert_eq!(a + Duration::from_secs(1), Timestamp::from_millis(2_500));
/// assert_eq!(a - Duration::from_secs(1), Timestamp::from_millis(500));
/// assert_eq!(a - Duration::from_secs(2), Timestamp::ZERO);
/// assert_eq!(
///     a.saturating_since(Timestamp::from_secs(1)),
///     Duration::from_millis(500)
/// );
/// assert_eq!(Timestamp::ZERO.saturating_since(a), Duration::ZERO);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Timestamp(u64);

impl Timestamp {
    /// The origin.
    ///
    /// ```
    /// # use portcullis_core::{Timestamp};
    /// assert_eq!(Timestamp::ZERO.as_nanos(), 0);
    /// ```
    pub const ZERO: Self = Self(0);
    /// The last representable instant, 584 years after the origin.
    ///
    /// ```
    /// # use portcullis_core::{Timestamp};
    /// assert_eq!(Timestamp::MAX.as_nanos(), u64::MAX);
    /// ```
    pub const MAX: Self = Self(u64::MAX);

    /// Creates the instant `nanos` nanoseconds after the origin.
    ///
    /// ```
    /// # use portcullis_core::{Timestamp};
    /// assert_eq!(Timestamp::from_nanos(5).as_nanos(), 5);
    /// ```
    #[inline]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Creates the instant `micros` microseconds after the origin; [`Self::MAX`] on overflow.
    ///
    /// ```
    /// # use portcullis_core::{Timestamp};
    /// assert_eq!(Timestamp::from_micros(5).as_nanos(), 5_000);
    /// ```
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros.saturating_mul(1_000))
    }

    /// Creates the instant `millis` milliseconds after the origin; [`Self::MAX`] on overflow.
    ///
    /// ```
    /// # use portcullis_core::{Timestamp};
    /// assert_eq!(Timestamp::from_millis(5).as_nanos(), 5_000_000);
    /// ```
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Creates the instant `secs` seconds after the origin; [`Self::MAX`] on overflow.
    ///
    /// ```
    /// # use portcullis_core::{Timestamp};
    /// assert_eq!(Timestamp::from_secs(5).as_nanos(), 5_000_000_000);
    /// ```
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000_000_000))
    }

    /// Returns the nanoseconds since the origin.
    ///
    /// ```
    /// # use portcullis_core::{Timestamp};
    /// assert_eq!(Timestamp::from_secs(1).as_nanos(), 1_000_000_000);
    /// ```
    #[inline]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns this instant plus `duration`; [`Self::MAX`] on overflow.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Timestamp};
    /// assert_eq!(
    ///     Timestamp::from_secs(1).saturating_add(Duration::from_secs(2)),
    ///     Timestamp::from_secs(3)
    /// );
    /// ```
    #[must_use]
    pub const fn saturating_add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(saturating_nanos(duration)))
    }

    /// Returns this instant minus `duration`; [`Self::ZERO`] if that is before the origin.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Timestamp};
    /// const EARLIER: Timestamp =
    ///     Timestamp::from_secs(3).saturating_sub(Duration::from_secs(2));
    /// assert_eq!(EARLIER, Timestamp::from_secs(1));
    /// ```
    #[must_use]
    pub const fn saturating_sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(saturating_nanos(duration)))
    }

    /// Returns the time from `earlier` to this instant; zero if `earlier` is later than this
    /// instant.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Timestamp};
    /// assert_eq!(
    ///     Timestamp::from_secs(3).saturating_since(Timestamp::from_secs(1)),
    ///     Duration::from_secs(2)
    /// );
    /// ```
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Timestamp {
    type Output = Self;

    /// As [`saturating_add`](Self::saturating_add).
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Timestamp};
    /// assert_eq!(Timestamp::MAX + Duration::from_nanos(1), Timestamp::MAX);
    /// ```
    #[inline]
    fn add(self, duration: Duration) -> Self {
        self.saturating_add(duration)
    }
}

impl Sub<Duration> for Timestamp {
    type Output = Self;

    /// As [`saturating_sub`](Self::saturating_sub).
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Timestamp};
    /// assert_eq!(Timestamp::ZERO - Duration::from_nanos(1), Timestamp::ZERO);
    /// ```
    #[inline]
    fn sub(self, duration: Duration) -> Self {
        self.saturating_sub(duration)
    }
}

impl AddAssign<Duration> for Timestamp {
    /// As [`saturating_add`](Self::saturating_add), in place.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Timestamp};
    /// let mut now = Timestamp::from_secs(1);
    /// now += Duration::from_secs(2);
    /// assert_eq!(now, Timestamp::from_secs(3));
    /// ```
    #[inline]
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

impl SubAssign<Duration> for Timestamp {
    /// As [`saturating_sub`](Self::saturating_sub), in place.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Timestamp};
    /// let mut now = Timestamp::from_secs(3);
    /// now -= Duration::from_secs(2);
    /// assert_eq!(now, Timestamp::from_secs(1));
    /// ```
    #[inline]
    fn sub_assign(&mut self, duration: Duration) {
        *self = *self - duration;
    }
}

impl fmt::Display for Timestamp {
    /// Writes seconds with nine decimals, as in `1.500000000 s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}.{:09} s",
            self.0 / 1_000_000_000,
            self.0 % 1_000_000_000
        )
    }
}

/// Returns the nanoseconds of a duration; `u64::MAX` on overflow (584 years).
pub(crate) const fn saturating_nanos(duration: Duration) -> u64 {
    let nanos = duration.as_nanos();
    if nanos > u64::MAX as u128 {
        u64::MAX
    } else {
        nanos as u64
    }
}

/// Returns a duration of `nanos` nanoseconds; [`Duration::MAX`] on overflow.
pub(crate) const fn saturating_duration(nanos: u128) -> Duration {
    if nanos > Duration::MAX.as_nanos() {
        Duration::MAX
    } else {
        let second = 1_000_000_000;
        Duration::new((nanos / second) as u64, (nanos % second) as u32)
    }
}
