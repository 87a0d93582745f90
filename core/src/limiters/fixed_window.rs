//! A word that is judged by [`FixedWindowRules`], where the state and its transitions are
//! described.

mod rules;

use core::time::Duration;

pub use self::rules::FixedWindowRules;
use crate::limiter::queue_limiter::replenishing;
use crate::rules::word_limiter::WordLimiter;
use crate::sync::const_unless_loom;
use crate::word::settings;
use crate::word::stamped::Started;
use crate::word::{NativeWord, Word};
use crate::{
    Composable, Denied, Idle, Lease, Limiter, LimiterId, Plan, Receipt, Refund, Retry, Setting,
    SettingsError, Timestamp,
};

/// A fixed window: at most `limit` permits in each window.
///
/// Windows lie side by side on a grid that starts at an origin, or, [started by the first
/// request](FixedWindowBuilder::started_by_first_request), each begins with the first request after
/// the last one's end.
///
/// **Bound.** At most `limit` permits in each window, and so at most twice the limit in any span of
/// one window's length, around an edge. Where that is too much, take a
/// [`SlidingWindow`](crate::SlidingWindow).
///
/// **Exact.** A grant counts in the window of the later of its own `now` and the newest one
/// granted. Retry times are exact to the nanosecond.
///
/// **Cost.** A grant is one load, one multiplication and one compare-exchange; a denial writes
/// nothing. Lock-free: a compare-exchange fails only because another one succeeded, at most `limit`
/// times a window (or, on processors that link loads with stores, because an interrupt came
/// between). All accesses are `Relaxed`.
///
/// **Horizon.** The end wraps in the bits that the limit leaves. The bound holds for every `now` up
/// to [`staleness`](Self::staleness) older than the newest; a window that has been idle for whole
/// multiples of [`horizon`](Self::horizon) may be told less than full for at most twice that
/// staleness and one window. A window that the first request starts just then may end early, once;
/// the bound in any span still holds.
///
/// Source: the fixed window limiter of the .NET rate limiting proposal, and Ocelot's window that
/// the first request starts.
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::{FixedWindow, Timestamp};
///
/// static LIMIT: FixedWindow = FixedWindow::new(2, Duration::from_secs(1));
///
/// assert!(LIMIT.try_acquire_at(Timestamp::from_millis(900), 2).is_ok());
/// assert!(
///     LIMIT
///         .try_acquire_at(Timestamp::from_millis(999), 1)
///         .is_err()
/// );
/// assert!(
///     LIMIT
///         .try_acquire_at(Timestamp::from_millis(1_000), 1)
///         .is_ok()
/// );
/// ```
#[derive(Debug)]
pub struct FixedWindow<W: Word = NativeWord> {
    limiter: WordLimiter<FixedWindowRules<W>>,
}

impl FixedWindow {
    const_unless_loom! {
        /// At most `limit` permits (at least 1) in each `window`, 1 ns to 292 years, on a grid from
        /// [`Timestamp::ZERO`].
        ///
        /// # Panics
        ///
        /// Where [`FixedWindowBuilder::build`] would return an error; in a constant or a static,
        /// that is a compile error.
        ///
        /// ```
        /// # use portcullis_core::FixedWindow;
        /// # use core::time::Duration;
        /// static LIMIT: FixedWindow = FixedWindow::new(100, Duration::from_secs(60));
        /// ```
        pub const fn new(limit: u64, window: Duration) -> Self {
            match Self::builder(limit, window).build() {
                Ok(limiter) => limiter,
                Err(error) => error.refuse(),
            }
        }
    }

    /// Settings for at most `limit` permits (at least 1) in each `window`, 1 ns to 292 years.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{FixedWindow, Timestamp};
    /// let limit = FixedWindow::builder(5, Duration::from_secs(1)).build()?;
    /// assert_eq!(limit.available_at(Timestamp::ZERO), 5);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn builder(limit: u64, window: Duration) -> FixedWindowBuilder {
        FixedWindowBuilder {
            limit,
            window,
            origin: Timestamp::ZERO,
            started: false,
            tick: None,
            staleness: None,
        }
    }
}

impl<W: Word> FixedWindow<W> {
    /// Takes `n` permits at `now`. With `n = 0` it takes nothing, and is answered as a request for
    /// 1 would be.
    ///
    /// The lease does nothing when dropped: permits come back with the next window.
    ///
    /// # Errors
    ///
    /// [`Denied::Exhausted`], or [`Denied::ExceedsCapacity`] if `n` is more than the limit.
    ///
    /// # Cost
    ///
    /// A load, a multiplication, and on success one compare-exchange. Never divides, blocks or
    /// panics.
    ///
    /// ```
    /// # use portcullis_core::{Denied, FixedWindow, Timestamp};
    /// # use core::time::Duration;
    /// let limit = FixedWindow::new(3, Duration::from_secs(1));
    /// assert_eq!(
    ///     limit.try_acquire_at(Timestamp::ZERO, 2).unwrap().permits(),
    ///     2
    /// );
    /// let denied = limit.try_acquire_at(Timestamp::ZERO, 2).unwrap_err();
    /// assert_eq!(
    ///     denied.retry(&limit).wait_from(Timestamp::ZERO),
    ///     Some(Duration::from_secs(1))
    /// );
    /// ```
    #[inline]
    pub fn try_acquire_at(&self, now: Timestamp, n: u32) -> Result<Lease<&Self>, Denied> {
        Lease::try_acquire_at(self, now, n)
    }

    /// The permits left in the window that `now` lies in.
    ///
    /// ```
    /// # use portcullis_core::{FixedWindow, Timestamp};
    /// # use core::time::Duration;
    /// assert_eq!(
    ///     FixedWindow::new(3, Duration::from_secs(1)).available_at(Timestamp::ZERO),
    ///     3
    /// );
    /// ```
    pub fn available_at(&self, now: Timestamp) -> u64 {
        self.limiter.available(now)
    }

    /// Whether all permits are available at `now`, and since when.
    ///
    /// ```
    /// # use portcullis_core::{FixedWindow, Idle, Timestamp};
    /// # use core::time::Duration;
    /// let limit = FixedWindow::new(3, Duration::from_secs(1));
    /// assert_eq!(
    ///     limit.idle_at(Timestamp::from_secs(9)),
    ///     Idle::Since(Timestamp::ZERO)
    /// );
    /// ```
    pub fn idle_at(&self, now: Timestamp) -> Idle {
        self.limiter.idle(now)
    }

    /// The permits in each window.
    ///
    /// ```
    /// # use portcullis_core::FixedWindow;
    /// # use core::time::Duration;
    /// assert_eq!(FixedWindow::new(3, Duration::from_secs(1)).limit(), 3);
    /// ```
    pub fn limit(&self) -> u64 {
        self.limiter.rules().limit()
    }

    /// How much older than the newest `now` another one may be for the bound to hold: at least one
    /// second.
    ///
    /// ```
    /// # use portcullis_core::FixedWindow;
    /// # use core::time::Duration;
    /// assert!(
    ///     FixedWindow::new(3, Duration::from_secs(1)).staleness() >= Duration::from_secs(1)
    /// );
    /// ```
    pub fn staleness(&self) -> Duration {
        self.limiter.rules().staleness()
    }

    /// After how much idle time the word repeats: see the type's documentation.
    ///
    /// ```
    /// # use portcullis_core::FixedWindow;
    /// # use core::time::Duration;
    /// assert!(
    ///     FixedWindow::new(3, Duration::from_secs(1)).horizon()
    ///         > Duration::from_secs(3_000_000_000)
    /// );
    /// ```
    pub fn horizon(&self) -> Duration {
        self.limiter.rules().horizon()
    }

    /// The grain that a window's start is rounded up to; on a grid, the window.
    ///
    /// ```
    /// # use portcullis_core::FixedWindow;
    /// # use core::time::Duration;
    /// let limit = FixedWindow::builder(1_000, Duration::from_secs(1))
    ///     .started_by_first_request()
    ///     .build()?;
    /// assert_eq!(limit.tick(), Duration::from_nanos(1));
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub fn tick(&self) -> Duration {
        self.limiter.rules().tick()
    }

    /// The state alone: to be kept through a deep sleep in which memory is lost, in a backup
    /// register or in flash, for [`with_state`](Self::with_state). It has as many bits as the word.
    /// What is taken after this is forgotten.
    ///
    /// # Cost
    ///
    /// A load.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{FixedWindow, Timestamp};
    /// let limit = FixedWindow::new(3, Duration::from_secs(1));
    /// assert!(limit.try_acquire_at(Timestamp::from_secs(60), 3).is_ok());
    /// let saved = limit.state();
    ///
    /// // Awake again, 50 ms later.
    /// let limit = FixedWindow::new(3, Duration::from_secs(1)).with_state(saved);
    /// assert!(limit.try_acquire_at(Timestamp::from_millis(60_050), 1).is_err());
    /// ```
    pub fn state(&self) -> u64 {
        self.limiter.state()
    }

    /// This window, in the [`state`](Self::state) that one with the same settings was in. Time has
    /// to go on from the same origin: by a clock that runs through the sleep.
    ///
    /// Any number is a state: one from other settings, or damaged, grants at first less or more
    /// than the one that was saved, but no more than a window of which nothing is taken.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{FixedWindow, Timestamp};
    /// let saved = FixedWindow::new(3, Duration::from_secs(1)).state();
    /// let limit = FixedWindow::new(3, Duration::from_secs(1)).with_state(saved);
    /// assert_eq!(limit.available_at(Timestamp::ZERO), 3);
    /// ```
    #[must_use]
    pub fn with_state(self, state: u64) -> Self {
        let fitting = self.limiter.rules().fitting(state);
        Self {
            limiter: self.limiter.with_state(fitting),
        }
    }
}

impl<W: Word> Limiter for FixedWindow<W> {
    #[inline(always)]
    fn id(&self) -> Option<LimiterId> {
        LimiterId::of(self)
    }

    #[inline]
    fn take_at(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        self.limiter.take(now, n)
    }

    #[inline]
    fn peek_at(&self, now: Timestamp, n: u32) -> Result<(), Denied> {
        self.limiter.plan(now, n).map(|_| ())
    }

    #[inline(always)]
    fn as_composable(&self) -> Option<&dyn Composable> {
        Some(self)
    }

    /// All of them, while nobody has been granted a permit in a newer window; else none. Where
    /// windows are started by the first request, one of which all is given back is started by the
    /// next request.
    #[inline]
    fn refund_at(&self, now: Timestamp, n: u32, receipt: Receipt) -> Refund {
        self.limiter.refund(now, n, receipt)
    }

    fn available_at(&self, now: Timestamp) -> u64 {
        self.available_at(now)
    }

    fn capacity(&self) -> u64 {
        self.limit()
    }

    fn idle_at(&self, now: Timestamp) -> Idle {
        self.idle_at(now)
    }

    fn retry(&self, denied: Denied) -> Retry {
        self.limiter.retry(denied)
    }
}

impl<W: Word> Composable for FixedWindow<W> {
    #[inline]
    fn plan_at(&self, now: Timestamp, n: u32) -> Result<Plan, Denied> {
        self.limiter.plan(now, n)
    }

    #[inline]
    fn take_as_planned_at(&self, now: Timestamp, n: u32, plan: Plan) -> Result<Receipt, Denied> {
        self.limiter.take_as_planned(now, n, plan)
    }
}

replenishing!([W: Word] FixedWindow<W>);

/// Settings of a [`FixedWindow`]; from [`FixedWindow::builder`].
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::{FixedWindow, Timestamp};
///
/// let limit = FixedWindow::builder(1, Duration::from_secs(1))
///     .started_by_first_request()
///     .build()?;
/// assert!(limit.try_acquire_at(Timestamp::from_millis(700), 1).is_ok());
/// assert!(
///     limit
///         .try_acquire_at(Timestamp::from_millis(1_699), 1)
///         .is_err()
/// );
/// assert!(
///     limit
///         .try_acquire_at(Timestamp::from_millis(1_700), 1)
///         .is_ok()
/// );
/// # Ok::<(), portcullis_core::SettingsError>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct FixedWindowBuilder {
    limit: u64,
    window: Duration,
    origin: Timestamp,
    started: bool,
    tick: Option<Duration>,
    staleness: Option<Duration>,
}

impl FixedWindowBuilder {
    /// The instant that the grid starts at; an earlier `now` counts as this one. Default:
    /// [`Timestamp::ZERO`].
    ///
    /// Where the tick or the window is 1 ns, an earlier `now` counts in a window that ends at the
    /// origin, or, started by it, in one of its own.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{FixedWindow, Timestamp};
    /// let limit = FixedWindow::builder(1, Duration::from_secs(1))
    ///     .origin(Timestamp::from_millis(300))
    ///     .build()?;
    /// assert!(
    ///     limit
    ///         .try_acquire_at(Timestamp::from_millis(1_299), 1)
    ///         .is_ok()
    /// );
    /// assert!(
    ///     limit
    ///         .try_acquire_at(Timestamp::from_millis(1_300), 1)
    ///         .is_ok(),
    ///     "the next window"
    /// );
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn origin(mut self, origin: Timestamp) -> Self {
        self.origin = origin;
        self
    }

    /// A window begins with the first request that is granted after the end of the last one.
    /// Default: on a grid.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{FixedWindow, Timestamp};
    /// let limit = FixedWindow::builder(1, Duration::from_secs(1))
    ///     .started_by_first_request()
    ///     .build()?;
    /// assert!(limit.try_acquire_at(Timestamp::from_millis(700), 1).is_ok());
    /// assert!(
    ///     limit
    ///         .try_acquire_at(Timestamp::from_millis(1_699), 1)
    ///         .is_err()
    /// );
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn started_by_first_request(mut self) -> Self {
        self.started = true;
        self
    }

    /// For windows that the first request starts: rounds the start up, and the length too, to whole
    /// ticks of 1 ns to 292 years, so that a window is at most one tick longer in each. Default:
    /// the finest of 1 ns, 10 ns, 100 ns, ... whose horizon is an hour or more, or else the
    /// coarsest up to the window.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{FixedWindow, Timestamp};
    /// let limit = FixedWindow::builder(1, Duration::from_secs(1))
    ///     .started_by_first_request()
    ///     .tick(Duration::from_millis(10))
    ///     .build()?;
    /// assert_eq!(limit.tick(), Duration::from_millis(10));
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn tick(mut self, tick: Duration) -> Self {
        self.tick = Some(tick);
        self
    }

    /// How old a `now` may be, against the newest, for the bound to hold: at least one second.
    /// Default: a sixteenth of the horizon where that is beyond 292 years, else a 256th of it, up
    /// to an hour.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{FixedWindow, Timestamp};
    /// let limit = FixedWindow::builder(1, Duration::from_secs(1))
    ///     .staleness(Duration::from_secs(60))
    ///     .build()?;
    /// assert_eq!(limit.staleness(), Duration::from_secs(60));
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn staleness(mut self, staleness: Duration) -> Self {
        self.staleness = Some(staleness);
        self
    }

    const_unless_loom! {
        /// The limiter, on the target's own word.
        ///
        /// # Errors
        ///
        /// [`SettingsError`] names the setting and its bound: a limit of zero or so large that it
        /// leaves too few bits for the window's end, a window or tick outside of 1 ns to 292 years,
        /// a staleness under 1 s or too long.
        ///
        /// ```
        /// # use core::time::Duration;
        /// # use portcullis_core::{FixedWindow, Setting, SettingsError};
        /// let refused = FixedWindow::builder(1, Duration::ZERO).build().unwrap_err();
        /// assert_eq!(refused, SettingsError::Zero { setting: Setting::Window });
        /// ```
        pub const fn build(self) -> Result<FixedWindow, SettingsError> {
            self.build_on()
        }
    }

    const_unless_loom! {
        /// The limiter on a word of a chosen width.
        ///
        /// # Errors
        ///
        /// As [`build`](Self::build).
        ///
        /// ```
        /// # use portcullis_core::FixedWindow;
        /// # use core::time::Duration;
        /// let limit: FixedWindow<u32> =
        ///     FixedWindow::builder(1_000, Duration::from_secs(1)).build_on()?;
        /// // 22 bits of seconds: 48 days.
        /// assert!(limit.horizon() > Duration::from_secs(4_000_000));
        /// # Ok::<(), portcullis_core::SettingsError>(())
        /// ```
        pub const fn build_on<W: Word>(self) -> Result<FixedWindow<W>, SettingsError> {
            match self.rules_on() {
                Ok((rules, state)) => Ok(FixedWindow { limiter: WordLimiter::new(rules, state) }),
                Err(error) => Err(error),
            }
        }
    }

    /// The rules alone, for a [`Keyed`](crate::Keyed) table.
    ///
    /// # Errors
    ///
    /// As [`build`](Self::build), in the 43 bits that an entry of a table has for a state (20 on
    /// targets without 64-bit atomics).
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{FixedWindow, Keyed, Line, Seed};
    /// let window = FixedWindow::builder(5, Duration::from_secs(1)).started_by_first_request();
    /// let table = Keyed::new(window.rules()?, Line::for_keys(1_000), Seed::new());
    /// assert_eq!(table.rules()[0].limit(), 5);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn rules(self) -> Result<FixedWindowRules, SettingsError> {
        match self.rules_on() {
            Ok((rules, _)) => Ok(rules),
            Err(error) => Err(error),
        }
    }

    /// The rules, and the state of a window of which nothing is taken.
    const fn rules_on<W: Word>(&self) -> Result<(FixedWindowRules<W>, u64), SettingsError> {
        let window = match settings::nanos(self.window, Setting::Window) {
            Ok(nanos) => nanos,
            Err(error) => return Err(error),
        };
        let staleness = match settings::staleness_nanos(self.staleness) {
            Ok(nanos) => nanos,
            Err(error) => return Err(error),
        };
        let tick = match self.tick {
            Some(tick) if self.started => match settings::nanos(tick, Setting::Tick) {
                Ok(nanos) => Some(nanos),
                Err(error) => return Err(error),
            },
            _ => None,
        };
        let fitted = if self.started {
            Started::new(self.limit, window, window, tick, staleness, self.origin)
        } else {
            Started::on_grid(self.limit, window, staleness, self.origin)
        };
        match fitted {
            // No window is on: the last one ended with the origin.
            Ok(started) => Ok((
                FixedWindowRules::on(&started, window, self.started),
                started.nothing_since(self.origin),
            )),
            Err(error) => Err(error),
        }
    }
}
