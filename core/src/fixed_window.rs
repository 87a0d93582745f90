//! State: one word, `end | count` (see [`stamped`](crate::stamped)): the position at which the
//! current window ends, and the permits taken in it.
//!
//! ```text
//! on a grid                            started by the first request
//!   |  window   |  window   |            first        end      first        end
//! --+-----------+-----------+--        ----|-- window --|--------|-- window --|--
//!   positions are window indices         positions are ticks
//! ```
//!
//! Invariant: the count is what was granted in the window that ends at `end` and not given back,
//! never more than the limit, and `end` never moves back. Two transitions: a take before `end` adds
//! to the count; a take at or after it replaces both. A late `now` falls before `end`, and is
//! counted in the newest window.

use core::time::Duration;

use crate::grid::Grid;
use crate::judge::Judge;
use crate::limiter::queue_limiter::replenishing;
use crate::saved::saves;
use crate::settings;
use crate::stamped::{Stamped, Started};
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::const_unless_loom;
use crate::timestamp::saturating_duration;
use crate::word::{AtomicWord, NativeWord, Word};
use crate::{
    Denied, Idle, Lease, Limiter, LimiterId, Receipt, Refund, Retry, Setting, SettingsError,
    Timestamp,
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
    state: AtomicWord<W>,
    layout: Stamped<W>,
    /// From the position that starts a window to the one that ends it, as a stamp.
    span: W,
    /// Positions: windows, or the ticks that a start is rounded up to.
    grid: Grid,
    /// Whether the first request starts a window, and a start that lies within a position is
    /// rounded up.
    rounded: bool,
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
        let (count, _) = self.layout.current(
            self.layout.stamp(self.grid.index(now)),
            self.state.load(Relaxed),
        );
        self.limit() - count
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
        self.idle(self.state.load(Relaxed), now)
    }

    /// The permits in each window.
    ///
    /// ```
    /// # use portcullis_core::FixedWindow;
    /// # use core::time::Duration;
    /// assert_eq!(FixedWindow::new(3, Duration::from_secs(1)).limit(), 3);
    /// ```
    pub fn limit(&self) -> u64 {
        self.layout.limit()
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
        self.span_of(self.layout.staleness())
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
        self.span_of(self.layout.range())
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
        Duration::from_nanos(self.grid.step())
    }

    fn span_of(&self, positions: u64) -> Duration {
        saturating_duration(u128::from(positions) * u128::from(self.grid.step()))
    }

    #[inline(always)]
    fn take(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        if u64::from(n) > self.limit() {
            return Err(self.exceeds(n));
        }
        let wanted = u64::from(n.max(1));
        let stamp = self.layout.stamp(self.grid.index(now));
        let end = stamp.wrapping_add(self.span.into()) & W::MASK;
        let mut state = self.state.load(Relaxed);
        loop {
            // On a grid, a window that is on ends where one that begins now would. Any other end is
            // further from it than the limit; and of one that is empty again it matters who started
            // it, if not the grid.
            let other = Stamped::<W>::count(state, end).wrapping_sub(1);
            let from = if other < self.limit() - wanted {
                state
            } else if other < self.limit() {
                return Err(Denied::Exhausted { now, permits: n });
            } else if state == end && !self.rounded {
                state
            } else {
                let span = self.span.into();
                match Self::elsewhere(
                    self.layout,
                    self.grid,
                    self.rounded,
                    span,
                    state,
                    now,
                    wanted,
                ) {
                    Some(from) => from,
                    None => return Err(Denied::Exhausted { now, permits: n }),
                }
            };
            let receipt = Receipt::dated(self.layout.split(from).1, now.as_nanos());
            if n == 0 {
                return Ok(receipt);
            }
            match self
                .state
                .compare_exchange_weak(state, from + wanted, Relaxed, Relaxed)
            {
                Ok(_) => return Ok(receipt),
                Err(newer) => state = newer,
            }
        }
    }

    /// The limit is less than `n`, so it fits.
    #[inline(always)]
    fn exceeds(&self, n: u32) -> Denied {
        Denied::ExceedsCapacity {
            permits: n,
            capacity: self.limit() as u32,
        }
    }

    /// What a take of `wanted` counts from where the window in `state` does not end where one that
    /// begins now would; `None` if there is no room.
    ///
    /// Apart from the hot path, and by value, so that the compiler sees that nothing here changes a
    /// setting.
    #[cold]
    #[inline(never)]
    fn elsewhere(
        layout: Stamped<W>,
        grid: Grid,
        rounded: bool,
        span: u64,
        state: u64,
        now: Timestamp,
        wanted: u64,
    ) -> Option<u64> {
        let (position, into) = grid.split(now);
        let stamp = layout.stamp(position);
        let later = if rounded && into != 0 {
            layout.stamp(1)
        } else {
            0
        };
        let begun = stamp.wrapping_add(span).wrapping_add(later) & W::MASK;
        match layout.current(stamp, state) {
            (count, Some(_)) if count + wanted > layout.limit() => None,
            // All was given back, so nobody has started this window: it begins now, if it then ends
            // later.
            (0, Some(at)) if rounded && layout.ahead(begun, at).is_some() => Some(begun),
            (_, Some(_)) => Some(state),
            (_, None) => Some(begun),
        }
    }

    /// When to come back behind others. Apart, so that who asks alone pays nothing for it.
    #[cold]
    #[inline(never)]
    fn retry_behind(&self, state: u64, now: Timestamp, permits: u32) -> Retry {
        self.come_in(state, now, permits)
            .map_or(Retry::Never, Retry::At)
    }

    /// When there will have been room for `permits`, more than the limit: what is left of the
    /// window that is on, or of one that begins now, and then one window after the other.
    fn come_in(&self, state: u64, now: Timestamp, permits: u32) -> Option<Timestamp> {
        let (layout, limit) = (&self.layout, self.limit());
        let (position, into) = self.grid.split(now);
        let stamp = layout.stamp(position);
        let span = layout.distance(self.span.into(), 0).unsigned_abs();
        let begun = span + u64::from(self.rounded && into != 0);
        let (count, end) = layout.split(state);
        let ahead = layout.distance(stamp, end);
        let (left, ahead) = match count {
            _ if ahead >= 0 => (limit, begun),
            // Nobody has started this window.
            0 if self.rounded => (limit, begun.max(ahead.unsigned_abs())),
            _ => (limit - count, ahead.unsigned_abs()),
        };
        let windows = (u64::from(permits) - left - 1).checked_div(limit)?;
        self.grid.start(
            position
                .checked_add(ahead)?
                .checked_add(windows.checked_mul(span)?)?,
        )
    }

    /// Counts `n` permits back, if the window that they were counted in is still the newest one.
    fn undo(&self, now: Timestamp, n: u32, receipt: Receipt) -> Refund {
        let mut state = self.state.load(Relaxed);
        while let Some((restored, rest)) = self.refund(state, now, n, &receipt) {
            match self
                .state
                .compare_exchange_weak(state, restored, Relaxed, Relaxed)
            {
                Ok(_) => return rest.refunded(n),
                Err(newer) => state = newer,
            }
        }
        receipt.refunded(0)
    }
}

saves!(
    FixedWindow,
    "3, Duration::from_secs(1)",
    state,
    |window, state| {
        let (count, end) = window.layout.split(state);
        end | count.min(window.limit())
    }
);

impl<W: Word> Limiter for FixedWindow<W> {
    #[inline(always)]
    fn id(&self) -> Option<LimiterId> {
        LimiterId::of(self)
    }

    #[inline]
    fn take_at(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        self.take(now, n)
    }

    /// All of them, while nobody has been granted a permit in a newer window; else none. Where
    /// windows are started by the first request, one of which all is given back is started by the
    /// next request.
    fn refund_at(&self, now: Timestamp, n: u32, receipt: Receipt) -> Refund {
        self.undo(now, n, receipt)
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
        Judge::retry(self, self.state.load(Relaxed), denied)
    }
}

replenishing!([W: Word] FixedWindow<W>);

impl<W: Word> Judge for FixedWindow<W> {
    fn fresh(&self, now: Timestamp) -> u64 {
        self.layout.stamp(self.grid.index(now))
    }

    #[inline]
    fn grant(&self, state: u64, now: Timestamp, n: u32) -> Result<(u64, Receipt), Denied> {
        if u64::from(n) > self.limit() {
            return Err(self.exceeds(n));
        }
        let wanted = u64::from(n.max(1));
        match Self::elsewhere(
            self.layout,
            self.grid,
            self.rounded,
            self.span.into(),
            state,
            now,
            wanted,
        ) {
            Some(_) if n == 0 => Ok((state, Receipt::NONE)),
            Some(from) => {
                let receipt = Receipt::dated(self.layout.split(from).1, now.as_nanos());
                Ok((from + wanted, receipt))
            }
            None => Err(Denied::Exhausted { now, permits: n }),
        }
    }

    fn refund(
        &self,
        state: u64,
        now: Timestamp,
        n: u32,
        receipt: &Receipt,
    ) -> Option<(u64, Receipt)> {
        let (count, end) = self.layout.split(state);
        let counts = end == receipt.note()
            && count >= n.into()
            && !self.layout.is_outlived(&self.grid, receipt, now);
        counts.then(|| {
            let rest = Receipt::dated(receipt.note(), receipt.time());
            (state - u64::from(n), rest)
        })
    }

    fn available(&self, state: u64, now: Timestamp) -> u64 {
        self.limit()
            - self
                .layout
                .current(self.layout.stamp(self.grid.index(now)), state)
                .0
    }

    fn idle(&self, state: u64, now: Timestamp) -> Idle {
        let position = self.grid.index(now);
        let (count, end) = self.layout.current(self.layout.stamp(position), state);
        match (count, end) {
            (0, None) => {
                let passed = self
                    .layout
                    .distance(self.layout.stamp(position), self.layout.split(state).1);
                Idle::Since(
                    self.grid
                        .start(position.saturating_add_signed(-passed))
                        .unwrap_or(Timestamp::MAX),
                )
            }
            (0, Some(_)) => Idle::Now,
            _ => Idle::InUse,
        }
    }

    fn is_forgettable(&self, state: u64, now: Timestamp, since: Timestamp) -> bool {
        // Not a window that is on, of which all was given back: who comes late may have had one
        // before it.
        let position = self.grid.index(now);
        let stamp = self.layout.stamp(position);
        let end = self.layout.split(state).1;
        self.layout.ahead(stamp, end).is_some()
            && self.layout.distance(stamp, end).cast_unsigned()
                >= (position - self.grid.index(since)).min(self.layout.staleness())
    }

    fn retry(&self, state: u64, denied: Denied) -> Retry {
        let Denied::Exhausted { now, permits } = denied else {
            return Retry::Never;
        };
        if u64::from(permits) > self.limit() {
            return self.retry_behind(state, now, permits);
        }
        let position = self.grid.index(now);
        let stamp = self.layout.stamp(position);
        let wanted = u64::from(permits.max(1));
        let (counted, Some(end)) = self.layout.current(stamp, state) else {
            return Retry::At(now);
        };
        if counted + wanted <= self.limit() {
            return Retry::At(now);
        }
        // Who is too late need not wait for the end, if there is room in the window.
        let room = self.layout.split(state).0 + wanted <= self.limit();
        let wait = if room {
            self.layout.too_late(stamp, end).cast_signed()
        } else {
            -self.layout.distance(stamp, end)
        };
        position
            .checked_add_signed(wait)
            .and_then(|end| self.grid.start(end))
            .map_or(Retry::Never, Retry::At)
    }

    fn capacity(&self) -> u64 {
        self.limit()
    }
}

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
            let started = match fitted {
                Ok(started) => started,
                Err(error) => return Err(error),
            };
            Ok(FixedWindow {
                // No window is on: the last one ended with the origin.
                state: AtomicWord::new(started.nothing_since(self.origin)),
                span: started.span(window),
                layout: started.layout,
                grid: started.grid,
                rounded: self.started,
            })
        }
    }
}
