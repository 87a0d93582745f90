//! The builder of all limiters that count time in a word: a limiter's own settings, and those of
//! its timing.

use core::fmt;
use core::time::Duration;

use self::sealed::Sealed;
use crate::time::timestamp::Timestamp;
use crate::word::settings::{self, Setting, SettingsError};

/// Builds a limiter that counts time. Created by the limiter's `builder`.
///
/// The functions here are those of all such limiters. Each limiter adds its own: see
/// [`TokenBucketBuilder`](crate::builder::TokenBucketBuilder),
/// [`FixedWindowBuilder`](crate::builder::FixedWindowBuilder) and the other names of this type.
/// What the settings have become is in the [`Timing`](crate::builder::Timing) of the limiter.
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::{Rate, TokenBucket};
/// use portcullis_core::builder::Builder;
///
/// const SETTINGS: Builder<TokenBucket> = TokenBucket::builder(Rate::per_second(5), 10)
///     .tick(Duration::from_millis(1))
///     .staleness(Duration::from_secs(60));
/// let bucket = SETTINGS.build()?;
/// assert_eq!(bucket.timing().tick, Duration::from_millis(1));
/// assert_eq!(bucket.timing().staleness, Duration::from_secs(60));
/// # Ok::<(), portcullis_core::SettingsError>(())
/// ```
#[must_use = "a builder does nothing until it is built"]
pub struct Builder<L: Built> {
    pub(crate) settings: L::Settings,
    pub(crate) timing: AskedTiming,
}

/// A limiter that a [`Builder`] builds. The trait is sealed.
pub trait Built: Sealed {}

/// A limiter whose [tick](Builder::tick) can be set. The trait is sealed, and implemented by all
/// but the sliding window, which counts time in segments.
pub trait Ticks: Built {}

impl<L: Sealed> Built for L {}

pub(crate) mod sealed {
    pub trait Sealed {
        /// The settings beside those that all limiters have.
        type Settings: Copy + core::fmt::Debug;
    }
}

/// What a builder was asked for: `None` means the default.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AskedTiming {
    pub(crate) origin: Timestamp,
    pub(crate) tick: Option<Duration>,
    pub(crate) staleness: Option<Duration>,
}

impl AskedTiming {
    pub(crate) const DEFAULT: Self = Self {
        origin: Timestamp::ZERO,
        tick: None,
        staleness: None,
    };

    /// Returns the tick in nanoseconds.
    pub(crate) const fn tick_nanos(&self) -> Result<Option<u64>, SettingsError> {
        match self.tick {
            None => Ok(None),
            Some(tick) => match settings::nanos(tick, Setting::Tick) {
                Ok(nanos) => Ok(Some(nanos)),
                Err(error) => Err(error),
            },
        }
    }

    /// Returns the staleness in nanoseconds: at least one second.
    pub(crate) const fn staleness_nanos(&self) -> Result<Option<u64>, SettingsError> {
        settings::staleness_nanos(self.staleness)
    }
}

impl<L: Built> Builder<L> {
    pub(crate) const fn new(settings: L::Settings) -> Self {
        Self {
            settings,
            timing: AskedTiming::DEFAULT,
        }
    }

    /// Sets the instant at which the limiter starts, and from which it counts ticks: also the
    /// windows of a grid, the segments of a sliding window and the steps of a
    /// [stepwise](crate::builder::TokenBucketBuilder::stepwise) bucket. Default:
    /// [`Timestamp::ZERO`].
    ///
    /// If the tick is longer than 1 ns, an earlier `now` counts as the origin. A bucket grants a
    /// request whose `now` is before the origin, by up to the staleness, no more than one at the
    /// origin. In a fixed window with a tick of 1 ns, an earlier `now` counts in a window that ends
    /// at the origin, or, if the first request starts windows, in one that ends no earlier than the
    /// origin.
    ///
    /// If the horizon is short, set the origin to the instant at which the limiter is built: a
    /// limiter whose origin is a whole horizon ago starts like one that was idle for that long.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{FixedWindow, Rate, Timestamp, TokenBucket};
    /// let start = Timestamp::from_secs(60);
    /// let bucket = TokenBucket::builder(Rate::per_second(5), 10)
    ///     .initial(0)
    ///     .origin(start)
    ///     .build()?;
    /// assert_eq!(bucket.available_at(start), 0);
    ///
    /// let window = FixedWindow::builder(1, Duration::from_secs(1))
    ///     .origin(Timestamp::from_millis(300))
    ///     .build()?;
    /// assert!(window.try_acquire_at(Timestamp::from_millis(1_299), 1).is_ok());
    /// let next = Timestamp::from_millis(1_300);
    /// assert!(window.try_acquire_at(next, 1).is_ok(), "in the next window");
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn origin(mut self, origin: Timestamp) -> Self {
        self.timing.origin = origin;
        self
    }

    /// Sets how much older than the newest `now` a timestamp may be for the bound to hold: at least
    /// one second, and at most a quarter of the horizon.
    ///
    /// Default: a sixteenth of the horizon if that is longer than 292 years. Otherwise a 256th of
    /// the horizon (with a 32-bit word, a 524,288th), at least a second and at most an hour. Limits
    /// that can be adjusted never take the sixteenth. An
    /// [`AdjustableBucket`](crate::AdjustableBucket) at a rate of zero or an unlimited rate has an
    /// hour, or a quarter of the horizon if that is less.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::FixedWindow;
    /// let limit = FixedWindow::builder(1, Duration::from_secs(1))
    ///     .staleness(Duration::from_secs(60))
    ///     .build()?;
    /// assert_eq!(limit.timing().staleness, Duration::from_secs(60));
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn staleness(mut self, staleness: Duration) -> Self {
        self.timing.staleness = Some(staleness);
        self
    }
}

impl<L: Ticks> Builder<L> {
    /// Sets the tick, 1 ns to 292 years: the limiter counts time in whole ticks. A coarser tick
    /// gives a longer horizon.
    ///
    /// A bucket rounds each `now` down to a whole tick. A window that a request starts, a wait and
    /// an interval are rounded up, at the start and in length: each makes them at most one tick
    /// longer.
    ///
    /// The default is one of 1 ns, 10 ns, 100 ns, ...: the finest with which the limiter still
    /// grants after up to ten years without use. Each limiter has its bounds:
    ///
    /// - [`TokenBucket`](crate::TokenBucket) with a 64-bit word: at most a 256th of the time of a
    ///   permit, and at most 10 s. It is 1 ns at most rates, and 100 ns at 2,443 per second.
    /// - [`TokenBucket`](crate::TokenBucket) with a 32-bit word: the search begins at a 1,000th of
    ///   the time of a permit. It ends where at most one in 100,000 of all times of rest is denied.
    ///   In one tick there comes at most an eighth of a permit, or of what the burst holds beside
    ///   one permit. If permits do not come at whole ticks, it is at most a 64th of a permit. It
    ///   may be more if the horizon is still shorter than an hour.
    /// - [`AdjustableBucket`](crate::AdjustableBucket): as a token bucket, but at least 1 µs with a
    ///   64-bit word, and if the rate is zero or unlimited. With a
    ///   [debt](crate::builder::TokenBucketBuilder::debt), at most a sixteenth of the debt comes in
    ///   one tick, unless more comes in 1 ns.
    /// - [`SlicedBucket`](crate::SlicedBucket): as a token bucket, but at least 1 µs if the burst
    ///   needs some of the 64 bits.
    /// - [`StripedBucket`](crate::StripedBucket): as a sliced bucket, for the bits that the permits
    ///   in stripes leave. A bucket whose stripes hold no permits has 1 ns.
    /// - [`WarmingBucket`](crate::WarmingBucket): at most a hundredth of `1 / rate`. If none of
    ///   these grants after ten years, it is the one of them with the longest horizon. If none of
    ///   them fits the word, it is the finest that does, up to `1 / rate` and 10 s.
    /// - [`FixedWindow`](crate::FixedWindow) whose windows are started by requests,
    ///   [`CooldownWindow`](crate::CooldownWindow) and [`Sometimes`](crate::Sometimes): at most a
    ///   hundredth of the window, of the period or of the interval. If the horizon is then shorter
    ///   than an hour, the tick is longer, up to that length.
    /// - [`AdjustableWindow`](crate::AdjustableWindow): as a fixed window, but at least 1 µs with a
    ///   64-bit word and a window of 10 µs or longer.
    /// - [`Penalty`](crate::Penalty): the finest with which the wait fits the word. The window in
    ///   which denials are counted has the tick of a fixed window.
    ///
    /// For windows and penalties with a 32-bit word, the search begins at about a 1,000th of their
    /// length. It ends where at most one in 100,000 of all times of rest is denied. For a penalty
    /// it also ends at a hundredth of the wait, if the horizon is an hour or longer.
    ///
    /// In a slot of a [table](crate::Keyed), a window has the finest tick whose horizon is at least
    /// an hour. A bucket has the finest such tick from 1 µs on (from 1 ns on in a 20-bit slot), or
    /// else the one with the longest horizon.
    ///
    /// **At rest.** A bucket denies a request for a permit at `(staleness + time of a permit) /
    /// horizon` of all times of rest. A window that is unused for about a whole number of horizons
    /// may take its last window for one that is still open: it then grants too few permits, never
    /// too many, for about the window and the staleness. If that matters, set a longer tick.
    ///
    /// **No effect** on a [stepwise](crate::builder::TokenBucketBuilder::stepwise) bucket, whose
    /// tick is its period, on windows of a grid, and without an interval.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{AdjustableWindow, Rate, TokenBucket};
    /// let tick = Duration::from_millis(10);
    /// let bucket = TokenBucket::builder(Rate::per_second(5), 10).tick(tick).build()?;
    /// assert_eq!(bucket.timing().tick, tick);
    ///
    /// let window = AdjustableWindow::builder(1, Duration::from_millis(25)).tick(tick).build()?;
    /// assert_eq!(window.window(), Duration::from_millis(30));
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn tick(mut self, tick: Duration) -> Self {
        self.timing.tick = Some(tick);
        self
    }
}

// Derived, these would require that the limiter can be copied.
impl<L: Built> Copy for Builder<L> {}

impl<L: Built> Clone for Builder<L> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<L: Built> fmt::Debug for Builder<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("settings", &self.settings)
            .field("timing", &self.timing)
            .finish()
    }
}
