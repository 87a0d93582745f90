//! [`FixedWindow`]: one state word and its [`FixedWindowRules`]. The file of the rules describes
//! the state and its transitions.

mod rules;

use core::time::Duration;

pub use self::rules::FixedWindowRules;
use crate::keyed::into_rules::IntoRules;
use crate::leases::lease::Lease;
use crate::limiter::Idle;
use crate::limiter::denied::Denied;
use crate::limiter::queue_limiter::replenishing;
use crate::rules::attached::{Detach, StateWord, detached};
use crate::rules::word_limiter::{WordLimiter, around_word};
use crate::sync::const_unless_loom;
use crate::time::timestamp::Timestamp;
use crate::time::timing::Timing;
use crate::word::builder::sealed::Sealed;
use crate::word::builder::{Builder, Ticks};
use crate::word::settings::{Setting, SettingsError};
use crate::word::stamped::Started;
use crate::word::{NativeWord, Word, settings};

/// A fixed window: grants at most `limit` permits in each window.
///
/// By default, windows follow each other on a grid that starts at an origin. With
/// [`started_by_first_request`](FixedWindowBuilder::started_by_first_request), a window begins with
/// the first request after the end of the last window.
///
/// To change the settings or to reset an open window, use an
/// [`AdjustableWindow`](crate::AdjustableWindow).
///
/// **Bound.** Each window admits at most `limit` permits. So any span of one window's length admits
/// at most twice the limit: that happens around the edge between two windows. If that is too much,
/// use a [`SlidingWindow`](crate::SlidingWindow).
///
/// **Exact.** A grant counts in the window that contains the later of its own `now` and the newest
/// `now` granted. Retry times are exact to the nanosecond.
///
/// **Cost.** A grant is one load, one multiplication and one compare-exchange. A denial writes
/// nothing. Lock-free: a compare-exchange fails only because another call's compare-exchange
/// succeeded, at most `limit` times per window. (On processors with load-linked and
/// store-conditional instructions, an interrupt between the two also makes it fail.) All accesses
/// are `Relaxed`.
///
/// **Horizon.** The window's end wraps in the bits that the limit leaves. The bound holds for every
/// `now` that is at most [`staleness`](Self::timing) older than the newest one. After idling for
/// about a multiple of its [`horizon`](Self::timing), a limiter may report too few available
/// permits, never too many. This lasts at most twice the staleness plus one window. If the first
/// request starts a window at such a time, that one window may end early. The bound in any span of
/// time still holds.
///
/// Source: the fixed window limiter of the .NET rate limiting proposal; Ocelot's window that the
/// first request starts.
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
        /// Creates a limiter that grants at most `limit` permits (at least 1) in each `window`, 1
        /// ns to 292 years, on a grid from [`Timestamp::ZERO`].
        ///
        /// # Panics
        ///
        /// If [`FixedWindowBuilder::build`] would return an error. In a constant or a static, this
        /// is a compile error.
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

    /// Returns a builder for a limiter that grants at most `limit` permits (at least 1) in each
    /// `window`, 1 ns to 292 years.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{FixedWindow, Timestamp};
    /// let limit = FixedWindow::builder(5, Duration::from_secs(1)).build()?;
    /// assert_eq!(limit.available_at(Timestamp::ZERO), 5);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn builder(limit: u64, window: Duration) -> FixedWindowBuilder {
        Builder::new(FixedWindowSettings {
            limit,
            window,
            max_limit: None,
            started: false,
        })
    }
}

impl<W: Word> FixedWindow<W> {
    /// Takes `n` permits at `now`.
    ///
    /// With `n = 0` it takes nothing, and is granted or denied as a request for 1 permit would be.
    ///
    /// The lease does nothing when dropped: permits return with the next window.
    ///
    /// # Errors
    ///
    /// [`Denied::Exhausted`] if the window has fewer than `n` permits left, or
    /// [`Denied::ExceedsCapacity`] if `n` is more than the limit.
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

    /// Returns the permits left in the window that contains `now`.
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

    /// Returns whether all permits are available at `now`, and since when.
    ///
    /// ```
    /// # use portcullis_core::{FixedWindow, Timestamp};
    /// # use portcullis_core::limiter::Idle;
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

    /// Returns the permits of each window.
    ///
    /// ```
    /// # use portcullis_core::FixedWindow;
    /// # use core::time::Duration;
    /// assert_eq!(FixedWindow::new(3, Duration::from_secs(1)).limit(), 3);
    /// ```
    pub fn limit(&self) -> u64 {
        self.limiter.rules().limit()
    }

    /// Returns the length of a window: on a grid exactly as set, otherwise rounded up to whole
    /// [ticks](Self::timing). A window that the first request starts may last up to one tick
    /// longer, because its start is rounded up too.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::FixedWindow;
    /// let second = Duration::from_secs(1);
    /// assert_eq!(FixedWindow::new(3, second).window(), second);
    /// ```
    pub fn window(&self) -> Duration {
        self.limiter.rules().window()
    }

    /// Returns whether each window starts with the first request after the last one, instead of on
    /// a grid.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::FixedWindow;
    /// let limit = FixedWindow::builder(3, Duration::from_secs(1))
    ///     .started_by_first_request()
    ///     .build()?;
    /// assert!(limit.is_started_by_first_request());
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub fn is_started_by_first_request(&self) -> bool {
        self.limiter.rules().is_started_by_first_request()
    }

    /// Returns how the limiter counts time: see [`Timing`].
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::FixedWindow;
    /// let second = Duration::from_secs(1);
    /// let limit = FixedWindow::new(1_000, second);
    /// assert_eq!(limit.timing().tick, second, "the windows of the grid");
    ///
    /// let limit = FixedWindow::builder(1_000, second).started_by_first_request().build()?;
    /// assert_eq!(limit.timing().tick, Duration::from_nanos(100));
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub fn timing(&self) -> Timing {
        self.limiter.rules().timing()
    }

    /// Returns the largest count that the state has room for: at least the
    /// [setting](FixedWindowBuilder::max_limit).
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::FixedWindow;
    /// assert_eq!(FixedWindow::new(100, Duration::from_secs(1)).max_limit(), 127);
    /// ```
    pub fn max_limit(&self) -> u64 {
        self.limiter.rules().max_limit()
    }

    /// Returns the state word, to be saved for [`with_state`](Self::with_state).
    ///
    /// Save it in a backup register or in flash before a deep sleep in which memory is lost. The
    /// state has as many bits as the word. It does not include permits that are taken after this
    /// call.
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

    /// Restores a [`state`](Self::state) that was saved from a limiter with the same settings.
    ///
    /// Time must continue from the same origin: use a clock that runs through the sleep.
    ///
    /// Any number is a valid state. A damaged state, or one from other settings, may at first grant
    /// fewer or more permits than the saved limiter would have, but no more than an unused window.
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

around_word! {
    /// Refunds all `n` permits if no permit was granted in a newer window; otherwise none. If the
    /// first request starts windows and all permits of a window are refunded, the next request
    /// starts that window again.
    [W: Word] FixedWindow<W> => |window| window;
}

replenishing!([W: Word] FixedWindow<W>);

impl<W: Word> Detach for FixedWindow<W> {
    type Word = W;
    type Rules = FixedWindowRules<W>;

    fn detach(self) -> (FixedWindowRules<W>, StateWord<W>) {
        detached(self.limiter)
    }
}

/// All settings are kept.
impl<W: Word> IntoRules for FixedWindow<W> {
    type Rules = FixedWindowRules;

    fn into_rules(self) -> Result<FixedWindowRules, SettingsError> {
        self.limiter.rules().in_a_table()
    }
}

/// Builds a [`FixedWindow`]. Created by [`FixedWindow::builder`].
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
pub type FixedWindowBuilder = Builder<FixedWindow>;

/// The settings of a [`FixedWindow`] beside its timing.
#[derive(Clone, Copy, Debug)]
pub struct FixedWindowSettings {
    limit: u64,
    window: Duration,
    max_limit: Option<u64>,
    started: bool,
}

impl Sealed for FixedWindow {
    type Settings = FixedWindowSettings;
}

impl Ticks for FixedWindow {}

impl Builder<FixedWindow> {
    /// Starts each window with the first request that is granted after the end of the last window.
    /// Default: windows on a grid.
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
        self.settings.started = true;
        self
    }

    /// Sets the largest count that the state has room for. Default: the limit.
    ///
    /// It matters if keys [move](crate::Keyed::move_to) from a table with a higher limit: counts
    /// above the limit, up to this one, are not forgotten. A larger value takes bits from the
    /// stamps, which shortens the horizon.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::FixedWindow;
    /// let rules = FixedWindow::builder(10, Duration::from_secs(60)).max_limit(1_000).rules()?;
    /// assert_eq!(rules.limit(), 10);
    /// assert!(rules.max_limit() >= 1_000);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn max_limit(mut self, max_limit: u64) -> Self {
        self.settings.max_limit = Some(max_limit);
        self
    }

    const_unless_loom! {
        /// Builds the limiter on the target's native word.
        ///
        /// # Errors
        ///
        /// [`SettingsError`] names the setting and its bound:
        ///
        /// - the limit is zero, or so large that it leaves too few bits for the window's end;
        /// - the window or the tick is outside of 1 ns to 292 years;
        /// - the staleness is shorter than 1 s, or too long for the word.
        ///
        /// ```
        /// # use core::time::Duration;
        /// # use portcullis_core::{FixedWindow, SettingsError};
        /// # use portcullis_core::builder::Setting;
        /// let refused = FixedWindow::builder(1, Duration::ZERO).build().unwrap_err();
        /// assert_eq!(refused, SettingsError::Zero { setting: Setting::Window });
        /// ```
        pub const fn build(self) -> Result<FixedWindow, SettingsError> {
            self.build_on()
        }
    }

    const_unless_loom! {
        /// Builds the limiter on a word of a chosen width.
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
        /// // 22 bits of seconds are 48 days.
        /// assert!(limit.timing().horizon > Duration::from_secs(4_000_000));
        /// # Ok::<(), portcullis_core::SettingsError>(())
        /// ```
        pub const fn build_on<W: Word>(self) -> Result<FixedWindow<W>, SettingsError> {
            match self.rules_on() {
                Ok((rules, state)) => Ok(FixedWindow { limiter: WordLimiter::new(rules, state) }),
                Err(error) => Err(error),
            }
        }
    }

    /// Returns the rules alone, for a [`Keyed`](crate::Keyed) table.
    ///
    /// # Errors
    ///
    /// As [`build`](Self::build), for the 43 bits that a table's slot has for a state (20 on
    /// targets without 64-bit atomics).
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{FixedWindow, Keyed};
    /// # use portcullis_core::keyed::{Line, Seed};
    /// let window = FixedWindow::builder(5, Duration::from_secs(1)).started_by_first_request();
    /// let table = Keyed::new(window.rules()?, Line::for_keys(1_000), Seed::new());
    /// assert_eq!(table.rules().limit(), 5);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn rules(self) -> Result<FixedWindowRules, SettingsError> {
        match self.rules_on() {
            Ok((rules, _)) => Ok(rules),
            Err(error) => Err(error),
        }
    }

    /// The rules, and the state of an unused window.
    const fn rules_on<W: Word>(&self) -> Result<(FixedWindowRules<W>, u64), SettingsError> {
        let window = match settings::nanos(self.settings.window, Setting::Window) {
            Ok(nanos) => nanos,
            Err(error) => return Err(error),
        };
        let staleness = match self.timing.staleness_nanos() {
            Ok(nanos) => nanos,
            Err(error) => return Err(error),
        };
        let tick = match self.timing.tick_nanos() {
            Ok(nanos) => nanos,
            Err(error) if self.settings.started => return Err(error),
            // Windows of a grid have no other tick.
            Err(_) => None,
        };
        let most = match self.settings.max_limit {
            Some(max) if self.settings.limit > max => {
                let setting = Setting::Limit;
                return Err(SettingsError::TooLarge { setting, max });
            }
            Some(max) if self.settings.limit > 0 => max,
            _ => self.settings.limit,
        };
        let fitted = if self.settings.started {
            Started::new(most, window, window, tick, staleness, self.timing.origin)
        } else {
            Started::on_grid(most, window, staleness, self.timing.origin)
        };
        match fitted {
            // No window is open: the last one ended at the origin.
            Ok(started) => Ok((
                FixedWindowRules::on(&started, self.settings.limit, window, self.settings.started),
                started.nothing_since(self.timing.origin),
            )),
            // Without a setting of its own, the largest limit is the limit.
            Err(SettingsError::TooLarge {
                setting: Setting::Limit,
                max,
            }) if most > self.settings.limit => {
                let setting = Setting::MaxLimit;
                Err(SettingsError::TooLarge { setting, max })
            }
            Err(error) => Err(error),
        }
    }
}
