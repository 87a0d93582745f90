//! State: a fixed window's word (see [`fixed_window`](super::fixed_window)) in fewer bits. The
//! other bits name the settings in force (see [`live`](crate::word::live)).
//!
//! ```text
//! era | set | - | end | count    the tick at which the window ends, and the permits counted in it
//! ```
//!
//! The end is an instant, not the index of a window, so that it means the same under any settings.
//! The distance from a tick to the end, wrapped in its bits, tells what the window is to a `now` in
//! that tick. The zones are cut for the longest window that may be set, and never move:
//!
//! ```text
//! 0   1 ....................... near | near+1 ...... near + staleness | ..... 2^bits-1
//! over        open, or `now` stale   |  too stale: denied             |           over
//! ```
//!
//! - *take* while the window is open: adds to the count. It reads no setting but the limit.
//! - *take* after its end: opens a new window, with an end and a count of its own.
//! - *take* if the first request starts a window, and nothing is counted in the open one: restarts
//!   the window, if its end then moves forward.
//! - *adjust*: selects the other set, and begins a new era. The end is the one that the window has
//!   under the new settings, and the count leaves what `carry` carries over.
//! - *reset*: a change that keeps the settings, and leaves a chosen count.
//! - *refund*: subtracts from the count, in the same window of the same era.
//!
//! A refund of all permits does not move the end. Between an earlier end and the next window, a
//! stale timestamp would find room for a whole limit more.
//!
//! Invariant: the permits granted in a window of an era never exceed the limit less the count with
//! which the era began. The count may exceed a limit that was lowered, but never the largest limit
//! that may be set.

use core::time::Duration;

use crate::leases::lease::Lease;
use crate::limiter::denied::{Denied, Retry};
use crate::limiter::detail::{Detail, Observer, retry_of};
use crate::limiter::queue_limiter::replenishing;
use crate::limiter::receipt::Receipt;
use crate::limiter::{Answer, Ask, Back, Hints, Idle, Limiter, LimiterId, Read, Reading, Returned};
use crate::newer::{cold_path, low_bits};
use crate::sync::const_unless_loom;
use crate::time::grid::{self, Grid};
use crate::time::timestamp::{Timestamp, saturating_duration};
use crate::time::timing::Timing;
use crate::word::builder::sealed::Sealed;
use crate::word::builder::{Builder, Ticks};
use crate::word::live::{Carry, ChangeError, LONGEST_STALENESS, Live, When};
use crate::word::settings::{self, MIN_STALENESS, Room, Scale, Setting, SettingsError};
use crate::word::{NativeWord, Word, narrow};

/// A fixed window whose limit and length can change while it is in use.
///
/// It decides as a [`FixedWindow`](crate::FixedWindow) with the settings in force does. Windows are
/// of one of two kinds:
///
/// - On a grid (the default): windows lie side by side, counted from an origin. Each length has a
///   grid of its own.
/// - [Started by the first request](AdjustableWindowBuilder::started_by_first_request): each window
///   begins with the first request after the end of the last one. If all permits taken in a window
///   are refunded, the next request restarts it.
///
/// **Bound.** At most `limit` permits in each window, and so at most twice the limit in any span of
/// one window's length. A [change](Self::adjust_at) turns the open window into one of the new
/// length:
///
/// - The permits granted before the change keep the old bound.
/// - The permits granted in this window after the change are at most what the [`Carry`] leaves of
///   the new limit.
/// - All later windows keep the new bound.
///
/// [`Carry::Keep`] never leaves more permits than before. With [`Carry::Additive`] and
/// [`Carry::Proportional`], the permits granted in the window and those left in it are together at
/// most the largest limit in force in it since the last [`Carry::Reset`]. So repeated changes at
/// one instant gain nothing.
///
/// A grant counts at its own `now` or at the newest `now` granted, whichever is later. So does a
/// change.
///
/// **Exact.** Retry times are exact to the nanosecond as long as the settings do not change.
/// Lengths are rounded up to whole [ticks](Self::timing).
///
/// **Cost.** About that of a fixed window while a window is open. The first grant in a window costs
/// two more multiplications. A grant is one compare-exchange. The first grant in each
/// [tick](Self::timing) needs a second one, which records the newest time. A denial writes nothing
/// and reads the word twice.
///
/// **Changes and refunds** are lock-free and never wait. Only one call at a time makes a change or
/// a refund. While another call does so, a change fails with [`ChangeError::Busy`], and a refund
/// returns no permits. The word distinguishes 64 changes, or 4 with 32 bits. If more than three
/// quarters of that number come within twice the [`staleness`](Self::timing), then for that
/// long:
///
/// - each decision costs two more atomic writes;
/// - a change fails with `Busy` while a call is in the middle of a decision that it began about
///   that many changes ago. So no call decides by outdated settings.
///
/// For frequent changes, build the window with a short staleness.
///
/// **Horizon.** End and count share 52 bits of a 64-bit word, or 26 bits of a 32-bit word. The
/// count takes the bits of the largest limit that may be set, and the end wraps in the others. The
/// bound holds for every `now` that is at most [`staleness`](Self::timing) older than the newest
/// one. After idling for a multiple of its [`horizon`](Self::timing), a window may report too few
/// available permits, never too many. This lasts at most twice the staleness plus the longest
/// window that may be set. On a grid, it lasts until the end of the window that contains the end of
/// that time.
///
/// Source: the fixed window limiter of the .NET rate limiting proposal, the window of Ocelot that
/// the first request starts, and the configuration replacement of bucket4j.
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::{AdjustableWindow, Timestamp};
/// use portcullis_core::state::Carry;
///
/// static LIMIT: AdjustableWindow =
///     match AdjustableWindow::builder(2, Duration::from_secs(60))
///         .max_limit(1_000)
///         .build()
///     {
///         Ok(limit) => limit,
///         Err(_) => panic!("invalid settings"),
///     };
///
/// let at = Timestamp::from_secs;
/// let _ = LIMIT.try_acquire_at(at(10), 2)?;
/// assert!(LIMIT.try_acquire_at(at(20), 1).is_err());
/// // From now on, 3 permits in each 10 seconds. 2 of them have been used.
/// LIMIT
///     .adjust_at(at(21), 3, Duration::from_secs(10), Carry::Additive)
///     .unwrap();
/// assert!(LIMIT.try_acquire_at(at(22), 1).is_ok());
/// assert!(LIMIT.try_acquire_at(at(29), 1).is_err());
/// assert!(LIMIT.try_acquire_at(at(30), 3).is_ok());
/// # Ok::<(), portcullis_core::Denied>(())
/// ```
#[derive(Debug)]
pub struct AdjustableWindow<W: Word = NativeWord> {
    live: Live<SETTINGS, W>,
    origin: Timestamp,
    /// Ticks of the time since the origin.
    ticks: Grid,
    started: bool,
    count_bits: u32,
    /// The farthest that the end lies ahead of a `now`, in its place in the word. It includes the
    /// staleness.
    near: W,
    /// In ticks.
    staleness: u64,
    /// The age in ticks at which a receipt is worth nothing, because ends may have wrapped since.
    outlived: u64,
    max_limit: u64,
    /// In ticks.
    max_window: u64,
}

const LIMIT: usize = 0;
const WINDOW: usize = 1;
/// The window's reciprocal, in two halves that fit any word.
const LOW: usize = 2;
const HIGH: usize = 3;
/// About the window in which these settings took effect: its end, as a tick that never wraps, in
/// two halves; the permits granted in it beyond its count at that time; and the largest limit in
/// force in it.
const BEGAN: usize = 4;
const BEGAN_HIGH: usize = 5;
const BEYOND: usize = 6;
const LARGEST: usize = 7;
const SETTINGS: usize = 8;

/// A limit, and a window's length in ticks.
#[derive(Clone, Copy)]
struct Settings {
    limit: u64,
    window: u64,
}

impl Settings {
    const fn to_words(self, began: u64, beyond: u64, largest: u64) -> [u64; SETTINGS] {
        let reciprocal = grid::reciprocal(self.window);
        let mut words = [0; SETTINGS];
        words[LIMIT] = self.limit;
        words[WINDOW] = self.window;
        words[LOW] = reciprocal & u32::MAX as u64;
        words[HIGH] = reciprocal >> 32;
        words[BEGAN] = began & u32::MAX as u64;
        words[BEGAN_HIGH] = began >> 32;
        words[BEYOND] = beyond;
        words[LARGEST] = largest;
        words
    }
}

/// A window under settings that take effect now.
struct Carried {
    end: u64,
    count: u64,
    beyond: u64,
    largest: u64,
}

/// A window that is open at some `now`.
#[derive(Clone, Copy)]
struct On {
    /// The permits that count at this `now`: the whole limit if it is too stale.
    count: u64,
    /// The ticks until the end of the window.
    ahead: u64,
}

impl AdjustableWindow {
    const_unless_loom! {
        /// Creates a limiter of at most `limit` permits (at least 1) in each `window`, 1 ns to 292
        /// years.
        ///
        /// Windows lie on a grid from [`Timestamp::ZERO`]. Neither setting can be raised later: see
        /// [`builder`](Self::builder).
        ///
        /// # Panics
        ///
        /// If [`AdjustableWindowBuilder::build`] would return an error. In a constant or a static,
        /// this is a compile error.
        ///
        /// ```
        /// # use portcullis_core::AdjustableWindow;
        /// # use core::time::Duration;
        /// static LIMIT: AdjustableWindow = AdjustableWindow::new(100, Duration::from_secs(60));
        /// ```
        pub const fn new(limit: u64, window: Duration) -> Self {
            match Self::builder(limit, window).build() {
                Ok(limiter) => limiter,
                Err(error) => error.refuse(),
            }
        }
    }

    /// Returns a builder for at most `limit` permits (at least 1) in each `window`, 1 ns to 292
    /// years.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{AdjustableWindow, Timestamp};
    /// let limit = AdjustableWindow::builder(5, Duration::from_secs(1))
    ///     .max_limit(50)
    ///     .build()?;
    /// assert_eq!(limit.available_at(Timestamp::ZERO), 5);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn builder(limit: u64, window: Duration) -> AdjustableWindowBuilder {
        Builder::new(AdjustableWindowSettings {
            limit,
            window,
            max_limit: limit,
            max_window: window,
            started: false,
        })
    }
}

impl<W: Word> AdjustableWindow<W> {
    const STATE: u64 = Live::<SETTINGS, W>::STATE;

    /// Takes `n` permits at `now`.
    ///
    /// With `n = 0` it takes nothing, and is granted or denied as a request for 1 permit would be.
    /// The lease does nothing when dropped: permits return with the next window.
    ///
    /// # Errors
    ///
    /// [`Denied::Exhausted`] if fewer than `n` permits are left in the window, or
    /// [`Denied::ExceedsCapacity`] if `n` is more than the limit.
    ///
    /// # Cost
    ///
    /// A load of the word and one of the limit, two multiplications, and on success one
    /// compare-exchange. Never divides, blocks or panics.
    ///
    /// ```
    /// # use portcullis_core::{AdjustableWindow, Timestamp};
    /// # use core::time::Duration;
    /// let limit = AdjustableWindow::new(3, Duration::from_secs(1));
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

    /// Changes the limit and the length of the window.
    ///
    /// `carry` says what happens to the permits in the open window. The change takes effect at
    /// `now`, or at the newest time at which a permit was granted if that is later. The open window
    /// then ends:
    ///
    /// - On a grid: with the window of the *new* grid that contains `now`.
    /// - If started by the first request: one new length after its start, or within a tick if that
    ///   time has passed.
    ///
    /// If windows are started by the first request, a window opens at the change in three cases: no
    /// window is open, `carry` is [`Carry::Reset`], or no permit counts as used. As long as no
    /// permit counts as used in it, the next request restarts it. A `now` before the open window
    /// counts as the start of that window.
    ///
    /// # Errors
    ///
    /// - [`ChangeError::Busy`] if another call is making a change or a refund, or if changes come
    ///   too often (see the type's documentation).
    /// - [`ChangeError::Settings`] if a setting is zero, or is more than the
    ///   [largest](AdjustableWindowBuilder::max_limit) that the builder allows.
    /// - [`ChangeError::Stale`] if `now` is more than the [`staleness`](Self::timing) older than
    ///   the newest `now` or than the open window.
    ///
    /// On an error, nothing changes.
    ///
    /// # Cost
    ///
    /// Some divisions, and one compare-exchange, retried for each decision that comes between.
    /// Lock-free; never makes another call wait.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{AdjustableWindow, Timestamp};
    /// # use portcullis_core::state::Carry;
    /// let limit = AdjustableWindow::new(10, Duration::from_secs(60));
    /// let at = Timestamp::from_secs;
    /// limit.try_acquire_at(at(0), 8).unwrap();
    /// // 2 permits are left in the open window, which now ends after 10 seconds.
    /// limit
    ///     .adjust_at(at(3), 5, Duration::from_secs(10), Carry::Keep)
    ///     .unwrap();
    /// assert_eq!(limit.available_at(at(9)), 2);
    /// assert_eq!(limit.available_at(at(10)), 5);
    /// ```
    pub fn adjust_at(
        &self,
        now: Timestamp,
        limit: u64,
        window: Duration,
        carry: Carry,
    ) -> Result<(), ChangeError> {
        let new = self
            .settings(limit, window)
            .map_err(ChangeError::Settings)?;
        self.change(now, |_| new, carry, u64::MAX)
    }

    /// Sets the permits left in the open window to `n`, or to the limit if that is fewer.
    ///
    /// For example, to clear the limit of a user who has proved who they are, or with `n = 0` to
    /// grant nothing more in this window. It is a change that keeps the settings, with
    /// [`Carry::Reset`]: see [`adjust_at`](Self::adjust_at) for the time at which it takes effect
    /// and the end of the window.
    ///
    /// **Bound.** The permits granted in the window before the reset keep the old bound. From the
    /// reset on, at most `n` are granted in it. Refunds of grants from before the reset return no
    /// permits, so that they add nothing on top. All later windows keep the bound.
    ///
    /// # Errors
    ///
    /// As [`adjust_at`](Self::adjust_at): [`ChangeError::Busy`] or [`ChangeError::Stale`]. Nothing
    /// changes then.
    ///
    /// # Cost
    ///
    /// As [`adjust_at`](Self::adjust_at).
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{AdjustableWindow, Timestamp};
    /// let limit = AdjustableWindow::new(10, Duration::from_secs(60));
    /// let now = Timestamp::from_secs(5);
    /// let mut lease = limit.try_acquire_at(now, 8).unwrap();
    /// limit.reset_at(now, 10).unwrap();
    /// assert_eq!(limit.available_at(now), 10);
    /// limit.reset_at(now, 3).unwrap();
    /// assert_eq!(limit.available_at(now), 3);
    /// assert_eq!(lease.refund_at(now, 8), Ok(0), "worth nothing after the reset");
    /// assert_eq!(limit.available_at(Timestamp::from_secs(60)), 10);
    /// ```
    pub fn reset_at(&self, now: Timestamp, n: u64) -> Result<(), ChangeError> {
        self.change(now, |word| self.in_force(word), Carry::Reset, n)
    }

    /// Changes the settings to `new` of the word. With [`Carry::Reset`], leaves at most `left`
    /// permits.
    #[inline(always)]
    fn change(
        &self,
        now: Timestamp,
        new: impl Fn(u64) -> Settings,
        carry: Carry,
        left: u64,
    ) -> Result<(), ChangeError> {
        let (tick, into) = self.split(now);
        let turn = |word, When { earliest, latest }| {
            let new = new(word);
            if latest - tick > self.staleness {
                return Err(ChangeError::Stale);
            }
            // The permits of a window were granted before its end.
            let newest = match self.on(word, self.stamp(earliest), u64::MAX) {
                Some(on) => latest.min(earliest.saturating_add(on.ahead - 1)),
                None => earliest,
            };
            let newest = if earliest == latest { latest } else { newest };
            // The newest time is somewhere in its tick: 1 means any offset.
            let into = if newest == tick { into } else { 1 };
            let Carried {
                end,
                count,
                beyond,
                largest,
            } = self.carried(word, (newest, into), new, carry)?;
            let count = count.max(new.limit.saturating_sub(left));
            Ok((
                new.to_words(end, beyond, largest),
                self.stamp(end) | count,
                (),
            ))
        };
        self.live.change(tick, self.staleness, turn, |()| {})
    }

    /// Returns the permits left in the window that contains `now`.
    ///
    /// ```
    /// # use portcullis_core::{AdjustableWindow, Timestamp};
    /// # use core::time::Duration;
    /// assert_eq!(
    ///     AdjustableWindow::new(3, Duration::from_secs(1)).available_at(Timestamp::ZERO),
    ///     3
    /// );
    /// ```
    pub fn available_at(&self, now: Timestamp) -> u64 {
        self.see(|word, Settings { limit, .. }| self.room(word, now, limit))
    }

    /// Returns whether all permits are available at `now`, and since when.
    ///
    /// ```
    /// # use portcullis_core::{AdjustableWindow, Timestamp};
    /// # use portcullis_core::limiter::Idle;
    /// # use core::time::Duration;
    /// let limit = AdjustableWindow::new(3, Duration::from_secs(1));
    /// assert_eq!(
    ///     limit.idle_at(Timestamp::from_secs(9)),
    ///     Idle::Since(Timestamp::ZERO)
    /// );
    /// ```
    pub fn idle_at(&self, now: Timestamp) -> Idle {
        let tick = self.split(now).0;
        let stamp = self.stamp(tick);
        self.see(
            |word, Settings { limit, .. }| match self.counted(word, now, limit) {
                Some(On { count: 0, .. }) => Idle::Now,
                Some(_) => Idle::InUse,
                None => {
                    let passed =
                        self.ahead(word, stamp).wrapping_neg() & (Self::STATE >> self.count_bits);
                    Idle::Since(
                        self.start(tick.saturating_sub(passed))
                            .unwrap_or(Timestamp::MAX),
                    )
                }
            },
        )
    }

    /// Returns the permits in each window, under the settings in force.
    ///
    /// ```
    /// # use portcullis_core::AdjustableWindow;
    /// # use core::time::Duration;
    /// assert_eq!(AdjustableWindow::new(3, Duration::from_secs(1)).limit(), 3);
    /// ```
    pub fn limit(&self) -> u64 {
        self.see(|_, settings| settings.limit)
    }

    /// Returns the length of a window in whole ticks, under the settings in force.
    ///
    /// ```
    /// # use portcullis_core::AdjustableWindow;
    /// # use core::time::Duration;
    /// let second = Duration::from_secs(1);
    /// assert_eq!(AdjustableWindow::new(3, second).window(), second);
    /// ```
    pub fn window(&self) -> Duration {
        self.span(self.see(|_, settings| settings.window))
    }

    /// Returns the largest limit that a change may set.
    ///
    /// ```
    /// # use portcullis_core::AdjustableWindow;
    /// # use core::time::Duration;
    /// let limit = AdjustableWindow::builder(3, Duration::from_secs(1)).max_limit(9).build()?;
    /// assert_eq!((limit.limit(), limit.max_limit()), (3, 9));
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn max_limit(&self) -> u64 {
        self.max_limit
    }

    /// Returns the longest window that a change may set, rounded up to whole ticks.
    ///
    /// ```
    /// # use portcullis_core::AdjustableWindow;
    /// # use core::time::Duration;
    /// let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));
    /// let limit = AdjustableWindow::builder(3, second).max_window(minute).build()?;
    /// assert_eq!((limit.window(), limit.max_window()), (second, minute));
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub fn max_window(&self) -> Duration {
        self.span(self.max_window)
    }

    /// Returns whether each window starts with the first request after the last one, instead of on
    /// a grid.
    ///
    /// ```
    /// # use portcullis_core::AdjustableWindow;
    /// # use core::time::Duration;
    /// let limit = AdjustableWindow::builder(3, Duration::from_secs(1))
    ///     .started_by_first_request()
    ///     .build()?;
    /// assert!(limit.is_started_by_first_request());
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn is_started_by_first_request(&self) -> bool {
        self.started
    }

    /// Returns how the limiter counts time: see [`Timing`].
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::AdjustableWindow;
    /// let timing = AdjustableWindow::new(3, Duration::from_secs(1)).timing();
    /// assert!(timing.staleness >= Duration::from_secs(1));
    /// assert!(timing.horizon > 4 * timing.staleness);
    /// ```
    pub fn timing(&self) -> Timing {
        let horizon = self.span(Self::STATE >> self.count_bits);
        Timing {
            origin: self.origin,
            ..Timing::on(&self.ticks, self.span(self.staleness), horizon)
        }
    }

    fn span(&self, ticks: u64) -> Duration {
        saturating_duration(u128::from(ticks) * u128::from(self.ticks.step()))
    }

    /// Returns the tick that contains `now`, and how far into that tick `now` is. An instant before
    /// the origin counts as the origin.
    #[inline(always)]
    fn split(&self, now: Timestamp) -> (u64, u64) {
        self.ticks
            .divide(now.as_nanos().saturating_sub(self.origin.as_nanos()))
    }

    /// Returns the first instant of a tick, if there is such an instant.
    fn start(&self, tick: u64) -> Option<Timestamp> {
        let since = self.ticks.start(tick)?.as_nanos();
        since
            .checked_add(self.origin.as_nanos())
            .map(Timestamp::from_nanos)
    }

    /// Returns a tick in its place in the word.
    #[inline(always)]
    fn stamp(&self, tick: u64) -> u64 {
        (tick << self.count_bits) & Self::STATE
    }

    /// Returns the bits of the count.
    #[inline(always)]
    fn counts(&self) -> u64 {
        !(u64::MAX << self.count_bits)
    }

    /// Returns whether the window of `word` is open at `stamp`, has been started, and has room for
    /// `wanted` permits.
    #[inline(always)]
    fn fits(&self, word: u64, stamp: u64, limit: u64, wanted: u64) -> bool {
        // The count of the stamp is zero, so the subtraction leaves the count of the word.
        let ahead = word.wrapping_sub(stamp) & Self::STATE;
        let count = word & self.counts();
        ahead.wrapping_sub(1 << self.count_bits) < self.near.into()
            && count + wanted <= limit
            && count >= self.started.into()
    }

    /// Returns the ticks from `stamp` to the end in `word`.
    #[inline(always)]
    fn ahead(&self, word: u64, stamp: u64) -> u64 {
        (word.wrapping_sub(stamp) & Self::STATE) >> self.count_bits
    }

    /// Returns the window that is open at `stamp`; `None` if it is over.
    #[inline(always)]
    fn on(&self, word: u64, stamp: u64, limit: u64) -> Option<On> {
        let ahead = self.ahead(word, stamp);
        let near = self.near.into() >> self.count_bits;
        if ahead == 0 || ahead > near + self.staleness {
            None
        } else {
            Some(On {
                count: if ahead > near {
                    limit
                } else {
                    word & self.counts()
                },
                ahead,
            })
        }
    }

    /// Returns whether windows lie on a grid, and the end in `word` is inside the window of the
    /// grid that contains `stamp` and ends `rest` ticks later. This happens if the word has wrapped
    /// after a long idle time. The count then holds until the end of that window, as some of it may
    /// have been granted in it.
    #[inline(always)]
    fn goes_on(&self, word: u64, stamp: u64, rest: u64) -> bool {
        let passed = self.ahead(word, stamp).wrapping_neg() & (Self::STATE >> self.count_bits);
        !self.started && passed < self.live.setting(word, WINDOW).wrapping_sub(rest)
    }

    /// Returns the open window that a request at `now` counts in, with an end on the grid. `None`
    /// if no window is open. The result is meaningless if the word has changed in the meantime.
    fn counted(&self, word: u64, now: Timestamp, limit: u64) -> Option<On> {
        let (tick, into) = self.split(now);
        let stamp = self.stamp(tick);
        let on = self.on(word, stamp, limit);
        match on {
            _ if self.started => on,
            None => {
                let rest = self.end(word, tick, into).wrapping_sub(tick);
                let count = word & self.counts();
                self.goes_on(word, stamp, rest)
                    .then_some(On { count, ahead: rest })
            }
            Some(On { count, ahead }) => {
                // Uses the last tick of the window: its end may be the start of the next one.
                let end = tick
                    .checked_add(ahead - 1)
                    .map(|last| self.end(word, last, 0));
                Some(On {
                    count,
                    ahead: end.map_or(ahead, |end| end.wrapping_sub(tick)),
                })
            }
        }
    }

    /// Returns the tick that ends a window, under the settings that `word` names: on a grid, the
    /// window that contains the tick `tick`; otherwise, a window that begins at offset `into` in
    /// that tick. The result is meaningless if the word has changed in the meantime.
    #[inline(always)]
    fn end(&self, word: u64, tick: u64, into: u64) -> u64 {
        let window = self.live.setting(word, WINDOW);
        if self.started {
            return tick.wrapping_add(u64::from(into != 0)).wrapping_add(window);
        }
        // While another call writes them, the two halves may not belong together.
        let reciprocal = self.live.setting(word, HIGH) << 32 | self.live.setting(word, LOW);
        let (_, rest) = grid::divide(tick, window, reciprocal);
        tick.wrapping_sub(rest).wrapping_add(window)
    }

    /// Returns the result of `tell` for a word and settings that belong to it.
    fn see<T>(&self, tell: impl Fn(u64, Settings) -> T) -> T {
        self.live.read(|word| tell(word, self.in_force(word)))
    }

    /// Returns the settings that `word` names. They are meaningless if the word has changed in the
    /// meantime.
    fn in_force(&self, word: u64) -> Settings {
        Settings {
            limit: self.live.setting(word, LIMIT),
            window: self.live.setting(word, WINDOW),
        }
    }

    /// Returns the tick that ends the window in which the settings named by `word` took effect.
    fn began(&self, word: u64) -> u64 {
        self.live.setting(word, BEGAN_HIGH) << 32 | self.live.setting(word, BEGAN)
    }

    /// Returns whether windows are started by requests, and all permits taken in the window of
    /// `word` have been refunded.
    fn is_unstarted(&self, word: u64) -> bool {
        let is_empty = self.started && word & self.counts() == 0;
        // If the word has wrapped, this may look like the window in which the settings took effect.
        // That is on the safe side.
        let has_begun = || self.stamp(self.began(word)) == word & Self::STATE & !self.counts();
        is_empty && !(has_begun() && self.live.setting(word, BEYOND) > 0)
    }

    /// Checks settings, and returns them with the window in ticks.
    fn settings(&self, limit: u64, window: Duration) -> Result<Settings, SettingsError> {
        if limit == 0 {
            return Err(SettingsError::Zero {
                setting: Setting::Limit,
            });
        }
        if limit > self.max_limit {
            return Err(SettingsError::TooLarge {
                setting: Setting::Limit,
                max: self.max_limit,
            });
        }
        let window = settings::nanos(window, Setting::Window)?.div_ceil(self.ticks.step());
        if window > self.max_window {
            let max = self.max_window.saturating_mul(self.ticks.step());
            return Err(SettingsError::TooLarge {
                setting: Setting::Window,
                max,
            });
        }
        Ok(Settings { limit, window })
    }

    /// Returns the window under new settings, for a change at offset `into` in the tick `tick`.
    fn carried(
        &self,
        word: u64,
        (tick, into): (u64, u64),
        new: Settings,
        carry: Carry,
    ) -> Result<Carried, ChangeError> {
        let old = self.in_force(word);
        let (stamp, rest) = (
            self.stamp(tick),
            self.end(word, tick, into).wrapping_sub(tick),
        );
        let most = old.window + u64::from(self.started);
        let on = match self.on(word, stamp, old.limit) {
            // Either the change is older than the staleness allows, or the word has wrapped.
            Some(on) if on.ahead > most + self.staleness => return Err(ChangeError::Stale),
            // The change is no older than any grant. So if the window seems to begin later, the
            // word has wrapped. The counted permits may have been granted in the open window, which
            // ends no later than one that begins now.
            Some(on) if on.ahead > most => Some(On {
                ahead: if self.started { most } else { rest },
                ..on
            }),
            None if self.goes_on(word, stamp, rest) => Some(On {
                count: word & self.counts(),
                ahead: rest,
            }),
            on => on,
        };
        let at = i128::from(tick);
        let restart = at + i128::from(self.started && into != 0);
        // A new window begins at the change if the window is over, or if no request has started it.
        let begun = on.map_or(restart, |on| {
            let begun = at + i128::from(on.ahead) - i128::from(old.window);
            if self.is_unstarted(word) {
                begun.max(restart)
            } else {
                begun
            }
        });
        let window = i128::from(new.window);
        let end = match carry {
            _ if !self.started => (begun.max(at) / window + 1) * window,
            Carry::Reset => begun.max(restart) + window,
            _ => (begun + window).max(at + 1),
        };
        let count = on.map_or(0, |on| on.count);
        let left = old.limit.saturating_sub(count);
        // The permits granted in this window: those counted, and those beyond the count that an
        // earlier change has left out of it.
        let is_same = on.is_some_and(|on| tick.wrapping_add(on.ahead) == self.began(word));
        let beyond = if is_same {
            self.live.setting(word, BEYOND)
        } else {
            0
        };
        let largest = if is_same {
            self.live.setting(word, LARGEST)
        } else {
            old.limit
        }
        .max(new.limit);
        let granted = count.saturating_add(beyond);
        // Repeated changes must gain nothing. Together with what was granted, no more than the
        // largest limit may be left.
        let rest = largest.saturating_sub(granted);
        let (left, granted) = match carry {
            Carry::Keep => (left.min(new.limit), granted),
            Carry::Proportional => {
                let share = u128::from(left) * u128::from(new.limit) / u128::from(old.limit);
                ((share as u64).min(rest), granted)
            }
            Carry::Additive => (new.limit.saturating_sub(count).min(rest), granted),
            Carry::Reset => (new.limit, 0),
        };
        // If the limit was lowered, the count may exceed it. The excess is not forgotten when the
        // limit is raised.
        let count = match carry {
            Carry::Additive if left == 0 => count.max(new.limit),
            _ => new.limit - left,
        };
        // After the last representable tick the end wraps, as it does in the word.
        let end = low_bits(end);
        let largest = if carry == Carry::Reset {
            new.limit
        } else {
            largest
        };
        Ok(Carried {
            end,
            count,
            beyond: granted.saturating_sub(count),
            largest,
        })
    }

    /// Takes if settings change often.
    #[cold]
    #[inline(never)]
    fn take_slowly<O: Observer>(&self, now: Timestamp, n: u32, seen: O) -> Result<Receipt, Denied> {
        let inside = self.live.count_in();
        let taken = self.take::<true, O>(now, n, seen);
        drop(inside);
        self.live.calm(self.split(now).0);
        taken
    }

    /// Takes `n` permits. With `INSIDE`, the caller has counted itself in.
    #[inline(always)]
    fn take<const INSIDE: bool, O: Observer>(
        &self,
        now: Timestamp,
        n: u32,
        seen: O,
    ) -> Result<Receipt, Denied> {
        let wanted = u64::from(n.max(1));
        let (tick, into) = self.split(now);
        let stamp = self.stamp(tick);
        let mut word = self.live.load();
        loop {
            let limit = self.live.setting(word, LIMIT);
            let from = if self.fits(word, stamp, limit, wanted) {
                Ok(word)
            } else {
                cold_path();
                if wanted > limit {
                    // The limit is less than `n`, so it fits in a `u32`.
                    Err(Denied::ExceedsCapacity {
                        permits: n,
                        capacity: limit as u32,
                    })
                } else {
                    match self.on(word, stamp, limit) {
                        Some(On { count, .. }) if count + wanted > limit => {
                            Err(Denied::Exhausted { now, permits: n })
                        }
                        on => {
                            let end = self.end(word, tick, into);
                            let goes_on =
                                on.is_none() && self.goes_on(word, stamp, end.wrapping_sub(tick));
                            let end = self.stamp(end);
                            // A window that no request has started begins again. Its end never
                            // moves back: a request with a stale timestamp leaves it as it is.
                            let later = on.is_none_or(|on| {
                                self.is_unstarted(word) && on.ahead < self.ahead(end, stamp)
                            });
                            match word & self.counts() {
                                count if goes_on && count + wanted > limit => {
                                    Err(Denied::Exhausted { now, permits: n })
                                }
                                count if goes_on => Ok(word & !Self::STATE | end | count),
                                _ if later => Ok(word & !Self::STATE | end),
                                _ => Ok(word),
                            }
                        }
                    }
                }
            };
            let outcome = match from {
                Ok(_) if !INSIDE && n > 0 && word & Live::<SETTINGS, W>::SLOW != 0 => {
                    return self.take_slowly(now, n, seen);
                }
                Ok(from) if n > 0 => {
                    let newest = self.live.note(tick);
                    let receipt = Receipt::dated(from & !self.counts(), newest);
                    // Before the exchange, whose success shows that the settings belong to the
                    // word.
                    seen.observe(move || self.detail(from + wanted, now, Ok(())));
                    self.live.exchange(word, from + wanted).map(|()| {
                        self.live.confirm_newest(tick, newest);
                        Ok(receipt)
                    })
                }
                Ok(_) => {
                    seen.observe(move || self.detail(word, now, Ok(())));
                    self.live.confirm(word).map(|()| Ok(Receipt::NONE))
                }
                Err(denied) => {
                    seen.observe(move || self.detail(word, now, Err(denied)));
                    self.live.confirm(word).map(|()| Err(denied))
                }
            };
            match outcome {
                Ok(decision) => return decision,
                Err(newer) => word = newer,
            }
        }
    }

    /// Returns the permits that `word` leaves at `now`. Meaningless if the settings that the word
    /// names have changed in the meantime.
    fn room(&self, word: u64, now: Timestamp, limit: u64) -> u64 {
        limit.saturating_sub(self.counted(word, now, limit).map_or(0, |on| on.count))
    }

    /// Returns what goes with a decision at `now` that left `word`. Meaningless if the settings
    /// that the word names have changed in the meantime.
    fn detail(&self, word: u64, now: Timestamp, decision: Result<(), Denied>) -> Detail {
        let Settings { limit, window } = self.in_force(word);
        Detail {
            now,
            decision,
            available: self.room(word, now, limit),
            capacity: limit,
            time_to_fill: Some(self.span(window)),
            full_again: self.due(word, limit, now, limit),
            retry: retry_of(decision, now, |denied| match denied {
                Denied::Exhausted { now, permits } => {
                    self.due(word, limit, now, permits.max(1).into())
                }
                _ => Retry::Never,
            }),
        }
    }

    /// Returns when there has been room for `wanted` permits. Meaningless if the settings that the
    /// word names have changed in the meantime.
    fn due(&self, word: u64, limit: u64, now: Timestamp, wanted: u64) -> Retry {
        let tick = self.split(now).0;
        let stamp = self.stamp(tick);
        if wanted > limit {
            return self.retry_behind(word, limit, now, wanted);
        }
        let Some(On { count, ahead }) = self.counted(word, now, limit) else {
            return Retry::At(now);
        };
        if count + wanted <= limit {
            return Retry::At(now);
        }
        // A timestamp that is too stale need not wait for the end if the window has room.
        let room = (word & self.counts()) + wanted <= limit;
        let near = self.near.into() >> self.count_bits;
        let wait = if room {
            self.ahead(word, stamp) - near
        } else {
            ahead
        };
        tick.checked_add(wait)
            .and_then(|tick| self.start(tick))
            .map_or(Retry::Never, Retry::At)
    }

    /// Returns when to retry behind other requests. A function of its own, so that a request that
    /// waits behind no other pays nothing for it.
    #[cold]
    #[inline(never)]
    fn retry_behind(&self, word: u64, limit: u64, now: Timestamp, wanted: u64) -> Retry {
        self.come_in(word, limit, now, wanted)
            .map_or(Retry::Never, Retry::At)
    }

    /// Returns the instant by which there will have been room for `wanted` permits, more than the
    /// limit: what is left of the open window, or of one that begins now, and then one window after
    /// the other, under the settings in force. The result is meaningless if the word has changed in
    /// the meantime.
    fn come_in(&self, word: u64, limit: u64, now: Timestamp, wanted: u64) -> Option<Timestamp> {
        let (tick, into) = self.split(now);
        let begun = self.end(word, tick, into).wrapping_sub(tick);
        let (left, ahead) = match (self.counted(word, now, limit), word & self.counts()) {
            (None, _) => (limit, begun),
            (Some(on), _) if self.is_unstarted(word) => (limit, begun.max(on.ahead)),
            (Some(on), count) => (limit.saturating_sub(count), on.ahead),
        };
        let mut start = tick.checked_add(ahead)?;
        let windows = wanted
            .saturating_sub(left)
            .saturating_sub(1)
            .checked_div(limit)?;
        if let Some(more) = windows.checked_sub(1) {
            // If the word has wrapped, the first of these windows brings the later ones back onto
            // the grid.
            let first = self.end(word, start, 0).wrapping_sub(start);
            let more = more.checked_mul(self.live.setting(word, WINDOW))?;
            start = start.checked_add(first)?.checked_add(more)?;
        }
        self.start(start)
    }

    /// Records `now` as the newest time, as a take does that is denied later.
    #[cfg(any(portcullis_explore, portcullis_notes))]
    #[doc(hidden)]
    pub fn note_at(&self, now: Timestamp) {
        self.live.note(self.split(now).0);
    }

    /// Refunds `n` permits if the window in which they were counted is still the newest one, and of
    /// the same era. Returns how many were refunded.
    fn undo(&self, now: Timestamp, n: u32, receipt: &Receipt) -> u32 {
        let Some(claim) = self.live.claim() else {
            return 0;
        };
        let noted = Live::<SETTINGS, W>::noted_in_full(receipt);
        let tick = self.split(now).0;
        loop {
            let word = self.live.load();
            let newest = self.live.no_older_than_newest(tick);
            let window = word & !self.counts() & !Live::<SETTINGS, W>::SLOW;
            let is_counted = window == noted.word && word & self.counts() >= n.into();
            if !is_counted || !claim.wrote(noted, newest) || newest - noted.newest >= self.outlived
            {
                return 0;
            }
            if self.live.exchange(word, word - u64::from(n)).is_ok() {
                return n;
            }
        }
    }
}

impl<W: Word> Limiter for AdjustableWindow<W> {
    #[inline(always)]
    fn decide(&self, ask: Ask<'_>) -> Answer {
        let (now, n) = (ask.now(), ask.permits());
        match ask.detail() {
            Some(seen) if ask.is_look() => {
                let detail = self.explain(now, n);
                seen.set(Some(detail));
                detail.decision.into()
            }
            None if ask.is_look() => ask.looked(self.available_at(now), || self.limit()),
            Some(seen) => self.take::<false, _>(now, n, seen).into(),
            None => self.take::<false, _>(now, n, ()).into(),
        }
    }

    /// Refunds all permits, or none. It refunds none if:
    ///
    /// - a permit has been granted in a newer window, or settings have changed since;
    /// - another call is making a change or a refund at this moment;
    /// - settings were changed more than 14 times with 32 bits (1,022 with 64) in the
    ///   [tick](Self::timing) of the grant;
    /// - the receipt is older than about half the [`horizon`](Self::timing).
    ///
    /// If all permits of a window that the first request started are refunded, the window counts as
    /// not started. The exception is a window in which a change has counted some permits as used.
    #[inline(always)]
    fn give_back(&self, back: Back<'_>) -> Returned {
        back.by_time(|now, n, receipt| {
            let refunded = self.undo(now, n, &receipt);
            receipt.refunded(refunded)
        })
    }

    #[inline(always)]
    fn read(&self, read: Read<'_>) -> Reading {
        Reading {
            available: self.available_at(read.now()),
            capacity: self.limit(),
            idle: self.idle_at(read.now()),
            held: 0,
        }
    }

    fn retry(&self, denied: Denied) -> Retry {
        let Denied::Exhausted { now, permits } = denied else {
            return Retry::Never;
        };
        self.see(|word, Settings { limit, .. }| self.due(word, limit, now, permits.max(1).into()))
    }

    #[inline(always)]
    fn id(&self) -> Option<LimiterId> {
        LimiterId::of(self)
    }

    #[inline(always)]
    fn hints(&self) -> Hints {
        Hints::ONE_RECEIPT
    }

    /// Beside [`decide`](Limiter::decide) for its cost: the answer is not converted.
    #[inline]
    fn take_at(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        self.take::<false, ()>(now, n, ())
    }
}

impl<W: Word> AdjustableWindow<W> {
    fn explain(&self, now: Timestamp, n: u32) -> Detail {
        self.live
            .read(|word| Detail::look(now, n, |decision| self.detail(word, now, decision)))
    }
}

replenishing!([W: Word] AdjustableWindow<W>);

/// Builds an [`AdjustableWindow`]. Created by [`AdjustableWindow::builder`].
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::{AdjustableWindow, Timestamp};
/// use portcullis_core::state::Carry;
///
/// let second = Duration::from_secs(1);
/// let limit = AdjustableWindow::builder(1, second)
///     .max_limit(100)
///     .max_window(60 * second)
///     .build()?;
/// assert!(
///     limit
///         .adjust_at(Timestamp::ZERO, 100, 60 * second, Carry::Keep)
///         .is_ok()
/// );
/// assert!(
///     limit
///         .adjust_at(Timestamp::ZERO, 101, 60 * second, Carry::Keep)
///         .is_err()
/// );
/// # Ok::<(), portcullis_core::SettingsError>(())
/// ```
pub type AdjustableWindowBuilder = Builder<AdjustableWindow>;

/// The settings of a [`AdjustableWindow`] beside its timing.
#[derive(Clone, Copy, Debug)]
pub struct AdjustableWindowSettings {
    limit: u64,
    window: Duration,
    max_limit: u64,
    max_window: Duration,
    started: bool,
}

impl Sealed for AdjustableWindow {
    type Settings = AdjustableWindowSettings;
}

impl Ticks for AdjustableWindow {}

impl Builder<AdjustableWindow> {
    /// Sets the largest limit that a change may set. Default: the limit that the window is built
    /// with.
    ///
    /// A larger value takes bits from the end, which leaves a shorter horizon or a coarser tick.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{AdjustableWindow, Timestamp};
    /// # use portcullis_core::state::Carry;
    /// let limit = AdjustableWindow::builder(5, Duration::from_secs(1))
    ///     .max_limit(50)
    ///     .build()?;
    /// limit
    ///     .adjust_at(Timestamp::ZERO, 50, Duration::from_secs(1), Carry::Additive)
    ///     .unwrap();
    /// assert_eq!(limit.available_at(Timestamp::ZERO), 50);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn max_limit(mut self, max_limit: u64) -> Self {
        self.settings.max_limit = max_limit;
        self
    }

    /// Sets the longest window that a change may set, 1 ns to 292 years. Default: the window that
    /// it is built with.
    ///
    /// The horizon must be at least four times as long. A longer window may make the tick coarser.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{AdjustableWindow, Timestamp};
    /// # use portcullis_core::state::Carry;
    /// let minute = Duration::from_secs(60);
    /// let limit = AdjustableWindow::builder(5, Duration::from_secs(1))
    ///     .max_window(minute)
    ///     .build()?;
    /// limit
    ///     .adjust_at(Timestamp::ZERO, 5, minute, Carry::Keep)
    ///     .unwrap();
    /// assert_eq!(limit.window(), minute);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn max_window(mut self, max_window: Duration) -> Self {
        self.settings.max_window = max_window;
        self
    }

    /// Starts each window with the first request that is granted after the end of the last one, or
    /// with a change. Default: windows on a grid.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{AdjustableWindow, Timestamp};
    /// let limit = AdjustableWindow::builder(1, Duration::from_secs(1))
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
    pub const fn started_by_first_request(mut self) -> Self {
        self.settings.started = true;
        self
    }

    const_unless_loom! {
        /// Builds the limiter on the target's native word.
        ///
        /// # Errors
        ///
        /// [`SettingsError`] names the setting and its bound:
        ///
        /// - the limit is zero, or more than the largest limit that may be set;
        /// - the largest limit that may be set leaves too few bits for the end of the window;
        /// - the window or the tick is outside of 1 ns to 292 years;
        /// - the window is longer than the longest that may be set;
        /// - the staleness is shorter than 1 s, or too long for the word.
        ///
        /// ```
        /// # use core::time::Duration;
        /// # use portcullis_core::{AdjustableWindow, SettingsError};
        /// # use portcullis_core::builder::Setting;
        /// let builder = AdjustableWindow::builder(9, Duration::from_secs(1));
        /// let refused = builder.max_limit(8).build().unwrap_err();
        /// assert_eq!(refused, SettingsError::TooLarge { setting: Setting::Limit, max: 8 });
        /// ```
        pub const fn build(self) -> Result<AdjustableWindow, SettingsError> {
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
        /// # use portcullis_core::AdjustableWindow;
        /// # use core::time::Duration;
        /// let limit: AdjustableWindow<u32> =
        ///     AdjustableWindow::builder(1_000, Duration::from_secs(1)).build_on()?;
        /// let tick = limit.timing().tick;
        /// assert_eq!(tick, Duration::from_millis(100), "16 bits of ticks: 109 minutes");
        /// # Ok::<(), portcullis_core::SettingsError>(())
        /// ```
        pub const fn build_on<W: Word>(self) -> Result<AdjustableWindow<W>, SettingsError> {
            if self.settings.limit == 0 {
                return Err(SettingsError::Zero { setting: Setting::Limit });
            }
            if self.settings.limit > self.settings.max_limit {
                return Err(SettingsError::TooLarge { setting: Setting::Limit, max: self.settings.max_limit });
            }
            let (window, max_window) = match (
                settings::nanos(self.settings.window, Setting::Window),
                settings::nanos(self.settings.max_window, Setting::MaxWindow),
            ) {
                (Ok(window), Ok(max_window)) => (window, max_window),
                (Err(error), _) | (_, Err(error)) => return Err(error),
            };
            if window > max_window {
                return Err(SettingsError::TooLarge { setting: Setting::Window, max: max_window });
            }
            let (mut tick, automatic) = match self.timing.tick_nanos() {
                // The newest time is recorded once per tick, so the tick is no finer than
                // necessary.
                Ok(None) if W::BITS == 64 && window >= 10_000 => (1_000, true),
                Ok(None) => (Room::of(W::BITS).finest_tick(window), true),
                Ok(Some(nanos)) => (nanos, false),
                Err(error) => return Err(error),
            };
            let bits = Live::<SETTINGS, W>::STATE_BITS;
            let layout = loop {
                let coarser = automatic && tick <= window / 10;
                let fine = tick <= window / 1_000;
                match self.layout(bits, max_window, tick) {
                    Ok(layout)
                        if !coarser
                            || layout.is_enough
                            || !fine && layout.reaches(settings::FAR_ENOUGH, tick) =>
                    {
                        break layout;
                    }
                    Ok(_) => tick *= 10,
                    Err(_) if coarser => tick *= 10,
                    Err(error) => return Err(error),
                }
            };
            let settings = Settings { limit: self.settings.limit, window: window.div_ceil(tick) };
            Ok(AdjustableWindow {
                // No window is open: the last one ended with the origin.
                live: Live::new(settings.to_words(0, 0, self.settings.limit), 0, 0, layout.staleness),
                origin: self.timing.origin,
                ticks: Grid::new(Timestamp::ZERO, tick),
                started: self.settings.started,
                count_bits: layout.count_bits,
                near: narrow((layout.reach + layout.staleness) << layout.count_bits),
                staleness: layout.staleness,
                outlived: (layout.range - 1) as u64 - layout.reach - 2 * layout.staleness,
                max_limit: self.settings.max_limit,
                max_window: max_window.div_ceil(tick),
            })
        }
    }

    /// Returns how end and count share `bits` bits.
    const fn layout(&self, bits: u32, max_window: u64, tick: u64) -> Result<Layout, SettingsError> {
        let asked = match self.timing.staleness_nanos() {
            Ok(nanos) => nanos,
            Err(error) => return Err(error),
        };
        let count_bits = u64::BITS - self.settings.max_limit.leading_zeros();
        // One more tick, because a start is rounded up.
        let reach = max_window.div_ceil(tick) + self.settings.started as u64;
        let scale = Scale {
            step: tick,
            gain: 1,
        };
        let needed = 4 * (scale.positions(MIN_STALENESS) + reach as u128 + 1);
        let range = 1u128 << bits.saturating_sub(count_bits);
        if range < needed {
            let needed_bits = needed.next_power_of_two().trailing_zeros();
            let max = (1 << bits.saturating_sub(needed_bits)) - 1;
            // Without a setting of its own, the largest limit is the limit.
            let setting = if self.settings.max_limit > self.settings.limit {
                Setting::MaxLimit
            } else {
                Setting::Limit
            };
            return Err(SettingsError::TooLarge { setting, max });
        }
        let (room, longest) = (Room::of(bits), Some(LONGEST_STALENESS));
        let Ok(staleness) =
            settings::staleness(room, range, reach as u128 + 1, asked, longest, scale)
        else {
            // `range >= needed`, so only the staleness can be too large.
            let max = ((range / 4) as u64).saturating_mul(tick);
            return Err(SettingsError::TooLarge {
                setting: Setting::Staleness,
                max,
            });
        };
        Ok(Layout {
            range,
            count_bits,
            reach,
            staleness: staleness as u64,
            is_enough: room.is_enough(range, 2 * staleness + reach as u128, scale),
        })
    }
}

/// How end and count share the bits of a state. All fields but `count_bits` are about the end, in
/// ticks.
#[derive(Clone, Copy)]
struct Layout {
    range: u128,
    count_bits: u32,
    /// How far the end may be ahead of the tick that sets it.
    reach: u64,
    staleness: u64,
    /// Whether ends wrap so late that a coarser tick is not necessary.
    is_enough: bool,
}

impl Layout {
    /// Returns whether ticks of `tick` nanoseconds wrap only after `horizon` nanoseconds.
    const fn reaches(&self, horizon: u128, tick: u64) -> bool {
        self.range * tick as u128 >= horizon
    }
}
