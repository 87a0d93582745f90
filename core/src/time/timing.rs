use core::time::Duration;

use crate::time::grid::Grid;
use crate::time::timestamp::Timestamp;

/// How a limiter counts time: the result of its `timing` function. All limiters that count time
/// have one.
///
/// A state word has few bits for time. So a limiter counts it in whole ticks, and the word repeats
/// after the horizon. The settings are those of the [`Builder`](crate::builder::Builder), which
/// also lists the defaults. A limiter that counts no time, such as a
/// [`Sometimes`](crate::Sometimes) without an interval, has [`Duration::MAX`] everywhere.
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::{Rate, Timestamp, TokenBucket};
///
/// let bucket = TokenBucket::new(Rate::per_second(5), 10);
/// let timing = bucket.timing();
/// assert_eq!(timing.tick, Duration::from_nanos(1));
/// assert_eq!(timing.origin, Timestamp::ZERO);
/// let years = |n: u64| Duration::from_secs(n * 365 * 86_400);
/// assert!(timing.staleness > years(36) && timing.horizon > years(580));
///
/// // 32 bits have a horizon of days, with a coarser tick.
/// let small = TokenBucket::builder(Rate::per_second(5), 10).build_on::<u32>()?;
/// assert_eq!(small.timing().tick, Duration::from_micros(100));
/// # Ok::<(), portcullis_core::SettingsError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Timing {
    /// The unit in which the limiter counts time. Each `now` counts as the start of its tick. In a
    /// [stepwise](crate::builder::TokenBucketBuilder::stepwise) bucket the tick is the period. On a
    /// grid of windows it is the window, and in a [`SlidingWindow`](crate::SlidingWindow) a
    /// segment.
    pub tick: Duration,
    /// How much older than the newest `now` a timestamp may be for the bound to hold: at least one
    /// second. An older one may find the limiter unused, and so be granted too much.
    pub staleness: Duration,
    /// The idle time after which the state word repeats, or [`Duration::MAX`] if it never does. See
    /// **Horizon** in the limiter's documentation.
    pub horizon: Duration,
    /// The instant from which ticks are counted: [`Timestamp::ZERO`] if a tick is 1 ns.
    pub origin: Timestamp,
}

impl Timing {
    /// Of a limiter that counts no time.
    pub(crate) const NONE: Self = Self {
        tick: Duration::MAX,
        staleness: Duration::MAX,
        horizon: Duration::MAX,
        origin: Timestamp::ZERO,
    };

    pub(crate) const fn on(grid: &Grid, staleness: Duration, horizon: Duration) -> Self {
        Self {
            tick: Duration::from_nanos(grid.step()),
            staleness,
            horizon,
            origin: grid.origin(),
        }
    }

    /// Returns the timing of two limiters that are asked together: the longer tick, the shorter
    /// staleness and the shorter horizon. The origin is that of `self`.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Rate, FixedWindow, TokenBucket};
    /// let burst = TokenBucket::new(Rate::per_second(5), 10).timing();
    /// let daily = FixedWindow::new(1_000, Duration::from_secs(86_400)).timing();
    /// assert_eq!(burst.and(daily).tick, Duration::from_secs(86_400));
    /// ```
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            tick: self.tick.max(other.tick),
            staleness: self.staleness.min(other.staleness),
            horizon: self.horizon.min(other.horizon),
            ..self
        }
    }
}
