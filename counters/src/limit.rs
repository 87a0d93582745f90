//! A limit whose state a counter store keeps.

use core::fmt;
use core::time::Duration;

use portcullis_core::Timestamp;

/// The largest number of units in the state of a limit: 2^53. Up to this number, also a script in
/// a store that computes with 64-bit floating-point numbers is exact.
pub const MAX_UNITS: u64 = 1 << 53;

/// The most segments of a sliding window.
pub const MAX_SEGMENTS: u32 = 64;

/// A limit whose state a [`CounterStore`](crate::CounterStore) keeps: a token bucket, a fixed
/// window, or a sliding window.
///
/// Time counts in whole microseconds. The rate is exact: the state counts fractions of a permit in
/// units of which a permit is a whole number.
///
/// If a limit is replaced by another one, the quotas of before go on: what was taken stays taken,
/// as far as the new limit can hold it. A new rate or a raised number of permits counts at once. If
/// the algorithm, the length of a segment or their number changes, the permits that were taken
/// count as taken now, because the state no longer says when.
///
/// ```
/// use core::time::Duration;
/// use portcullis_counters::CounterLimit;
/// let limit = CounterLimit::token_bucket(100, Duration::from_secs(60), 100)?;
/// assert_eq!(limit.capacity(), 100);
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterLimit {
    pub(crate) shape: Shape,
}

/// The settings of a limit, as the arithmetic needs them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// A permit has `permit` units, and `rate` units return in each microsecond. The two have no
    /// common divisor.
    Bucket { rate: u64, permit: u64, burst: u64 },
    /// At most `count` permits in `segments` consecutive segments of `length` microseconds.
    Windows {
        segments: u64,
        length: u64,
        count: u64,
    },
}

impl CounterLimit {
    /// Creates a token bucket: `count` permits come in evenly in each `period`, and at most `burst`
    /// are kept. With a count of 0 it denies every request.
    ///
    /// # Errors
    ///
    /// [`CounterLimitError`] if the period is not a whole number of microseconds, at least 1, if
    /// the burst is 0, or if the limit is too large.
    ///
    /// ```
    /// # use core::time::Duration;
    /// use portcullis_counters::{CounterLimit, CounterLimitError};
    /// let limit = CounterLimit::token_bucket(100, Duration::from_secs(60), 7)?;
    /// assert_eq!(limit.capacity(), 7);
    /// # Ok::<(), CounterLimitError>(())
    /// ```
    pub fn token_bucket(
        count: u64,
        period: Duration,
        burst: u64,
    ) -> Result<Self, CounterLimitError> {
        if count == 0 {
            // The state of a bucket is how long it takes to fill, and this one would never fill.
            return Self::windows(0, period, 1);
        }
        if burst == 0 {
            return Err(CounterLimitError::Invalid(
                "burst must be at least 1".into(),
            ));
        }
        let period = micros(period).ok_or(CounterLimitError::Period { segments: 1 })?;
        let divisor = gcd(count.into(), period.into()) as u64;
        let (rate, permit) = (count / divisor, period / divisor);
        // The time to fill, in microseconds, is at most one unit less per unit of rate.
        let most = burst.checked_mul(permit);
        let most = most.and_then(|most| most.checked_add(rate));
        most.filter(|most| *most <= MAX_UNITS)
            .ok_or(CounterLimitError::TooLarge)?;
        let shape = Shape::Bucket {
            rate,
            permit,
            burst,
        };
        Ok(Self { shape })
    }

    /// Creates a window of at most `count` permits per `period`: a fixed window with one segment, a
    /// sliding window with more, up to [`MAX_SEGMENTS`].
    ///
    /// # Errors
    ///
    /// [`CounterLimitError`] if a segment is not a whole number of microseconds, at least 1, if the
    /// number of segments is out of range, or if the limit is too large.
    ///
    /// ```
    /// # use core::time::Duration;
    /// use portcullis_counters::{CounterLimit, CounterLimitError};
    /// let limit = CounterLimit::windows(100, Duration::from_secs(60), 6)?;
    /// assert_eq!(limit.capacity(), 100);
    /// let seven = CounterLimit::windows(100, Duration::from_secs(1), 7);
    /// assert_eq!(seven, Err(CounterLimitError::Period { segments: 7 }));
    /// # Ok::<(), CounterLimitError>(())
    /// ```
    pub fn windows(count: u64, period: Duration, segments: u32) -> Result<Self, CounterLimitError> {
        if !(1..=MAX_SEGMENTS).contains(&segments) {
            let range = format!("segments must be from 1 to {MAX_SEGMENTS}");
            return Err(CounterLimitError::Invalid(range));
        }
        let length = Some(period / segments).filter(|length| *length * segments == period);
        let length = length.and_then(micros);
        let length = length.ok_or(CounterLimitError::Period { segments })?;
        if count > MAX_UNITS || length > MAX_UNITS / u64::from(MAX_SEGMENTS) {
            return Err(CounterLimitError::TooLarge);
        }
        let shape = Shape::Windows {
            segments: segments.into(),
            length,
            count,
        };
        Ok(Self { shape })
    }

    /// This limit with `part / whole` of its permits and of its rate, rounded down. `None` if no
    /// permit is left, or if the numbers are too large.
    pub(crate) fn share(&self, part: u64, whole: u64) -> Option<Self> {
        let of = |n: u64| u64::try_from(u128::from(n) * u128::from(part) / u128::from(whole)).ok();
        let shape = match self.shape {
            Shape::Bucket {
                rate,
                permit,
                burst,
            } => {
                let rate = u128::from(rate) * u128::from(part);
                let permit = u128::from(permit) * u128::from(whole);
                let divisor = gcd(rate, permit);
                let rate = u64::try_from(rate / divisor).ok()?;
                let permit = u64::try_from(permit / divisor).ok()?;
                let burst = of(burst)?;
                let most = burst.checked_mul(permit)?.checked_add(rate)?;
                (most <= MAX_UNITS && rate > 0).then_some(Shape::Bucket {
                    rate,
                    permit,
                    burst,
                })?
            }
            Shape::Windows {
                segments,
                length,
                count,
            } => Shape::Windows {
                segments,
                length,
                count: of(count)?,
            },
        };
        let share = Self { shape };
        (share.capacity() > 0).then_some(share)
    }

    /// This limit for permits that are taken from a store up to `hold` before they are spent, and
    /// how long they may be held. What is spent then stays within this limit.
    ///
    /// Of a token bucket, at most `burst' + rate × (t + hold)` permits are taken in the time in
    /// which those of a span `t` can have been taken. So `burst'` is less than the burst by
    /// `rate × hold`, of which no more than an eighth is given up: `hold` is shorter then.
    pub(crate) fn ahead(&self, hold: Duration) -> (Self, Duration) {
        let Shape::Bucket {
            rate,
            permit,
            burst,
        } = self.shape
        else {
            return (self.clone(), hold);
        };
        let comes_in = hold.as_micros() * u128::from(rate) / u128::from(permit);
        // A request for more than the smaller burst is denied, so little is given up: an eighth.
        let kept = u64::try_from(comes_in).map_or(burst / 8, |n| n.min(burst / 8));
        let micros = u128::from(kept) * u128::from(permit) / u128::from(rate);
        let micros = u64::try_from(micros).unwrap_or(u64::MAX);
        let shape = Shape::Bucket {
            rate,
            permit,
            burst: burst - kept,
        };
        (Self { shape }, hold.min(Duration::from_micros(micros)))
    }

    /// How long the segment of a window still lasts at `at`, the store's time. `None` for a token
    /// bucket, which has no segments.
    pub(crate) fn segment_left(&self, at: Timestamp) -> Option<Duration> {
        match self.shape {
            Shape::Bucket { .. } => None,
            Shape::Windows { length, .. } => {
                let since = (at.as_nanos() / 1_000) % length;
                Some(Duration::from_micros(length - since))
            }
        }
    }

    /// The permits that return to a limit without free permits within `span`, rounded down. 0 for
    /// a window, whose permits return with the end of a segment.
    pub(crate) fn comes_in(&self, span: Duration) -> u64 {
        match self.shape {
            Shape::Bucket { rate, permit, .. } => {
                let permits = span.as_micros() * u128::from(rate) / u128::from(permit);
                u64::try_from(permits).unwrap_or(u64::MAX)
            }
            Shape::Windows { .. } => 0,
        }
    }

    /// Returns the number of permits that can be available at most.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_counters::CounterLimit;
    /// let limit = CounterLimit::token_bucket(100, Duration::from_secs(60), 7)?;
    /// assert_eq!(limit.capacity(), 7);
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        match self.shape {
            Shape::Bucket { burst, .. } => burst,
            Shape::Windows { count, .. } => count,
        }
    }
}

/// A duration in microseconds, if it is a whole number of them and not zero.
fn micros(duration: Duration) -> Option<u64> {
    let micros = u64::try_from(duration.as_micros()).ok()?;
    (micros > 0 && duration.subsec_nanos().is_multiple_of(1_000)).then_some(micros)
}

fn gcd(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Why a limit cannot have its state in a counter store.
///
/// ```
/// use portcullis_counters::CounterLimitError;
/// let error = CounterLimitError::Period { segments: 7 };
/// assert!(error.to_string().contains("7 segments"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CounterLimitError {
    /// The permits of the limit return when decisions are dropped. A store knows nothing of that.
    AtOnce,
    /// A setting or an algorithm that limits in a store do not have.
    Unsupported(&'static str),
    /// The limit holds in any period, as a strict sliding window does. No window in a store does.
    Strict,
    /// The period, divided by the number of segments, is not a whole number of microseconds.
    Period {
        /// The number of segments, 1 if the limit has none.
        segments: u32,
    },
    /// The state needs numbers beyond [`MAX_UNITS`].
    TooLarge,
    /// The limit is not valid. The text says why.
    Invalid(String),
}

impl fmt::Display for CounterLimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtOnce => {
                f.write_str("permits at once cannot be in a counter store: give the limit a period")
            }
            Self::Unsupported(setting) => {
                write!(f, "{setting}: not supported by a limit in a counter store")
            }
            Self::Strict => f.write_str(
                "strict: not supported by a limit in a counter store. For at most N in any period, \
                 take a token bucket whose burst and rate are N together",
            ),
            Self::Period { segments: 1 } => {
                f.write_str("the period must be a whole number of microseconds, at least 1")
            }
            Self::Period { segments } => write!(
                f,
                "the period, divided into {segments} segments, must be a whole number of \
                 microseconds for each"
            ),
            Self::TooLarge => write!(
                f,
                "the limit is too large for a counter store: its state would need numbers beyond \
                 {MAX_UNITS}. Use a smaller burst or count, a shorter period, or a count that \
                 divides the period"
            ),
            Self::Invalid(why) => f.write_str(why),
        }
    }
}

impl core::error::Error for CounterLimitError {}
