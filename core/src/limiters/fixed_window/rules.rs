//! State: one word, `end | count` (see [`stamped`](crate::word::stamped)): the position at which
//! the current window ends, and the permits taken in it.
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

use crate::rules::{TableRules, Verdict, WordRules};
use crate::time::grid::Grid;
use crate::time::timestamp::saturating_duration;
use crate::word::stamped::{Stamped, Started};
use crate::word::{KeyedWord, Word};
use crate::{Denied, FixedWindow, Idle, Receipt, Retry, Timestamp};

/// The rules of a [`FixedWindow`], without its word: for a [`Keyed`](crate::Keyed) table, which has
/// a word for each key. Nothing can be taken from rules.
///
/// By default for the bits that an entry of a table has for a state. By [`new`](Self::new), or with
/// all settings by [`FixedWindowBuilder::rules`](crate::FixedWindowBuilder::rules).
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::{FixedWindowRules, Keyed, Line, Seed, Timestamp};
///
/// static USERS: Keyed<FixedWindowRules, [Line; 64]> = Keyed::new(
///     FixedWindowRules::new(2, Duration::from_secs(1)),
///     [const { Line::new() }; 64],
///     Seed::new(),
/// );
///
/// let at = Timestamp::from_millis;
/// assert!(USERS.key("alice").try_acquire_at(at(900), 2).is_ok());
/// assert!(USERS.key("alice").try_acquire_at(at(999), 1).is_err());
/// assert!(USERS.key("alice").try_acquire_at(at(1_000), 1).is_ok());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct FixedWindowRules<W: Word = KeyedWord> {
    layout: Stamped<W>,
    /// From the position that starts a window to the one that ends it, as a stamp.
    span: W,
    /// Positions: windows, or the ticks that a start is rounded up to.
    grid: Grid,
    /// Whether the first request starts a window, and a start that lies within a position is
    /// rounded up.
    rounded: bool,
}

impl FixedWindowRules {
    /// The rules of windows of at most `limit` permits (at least 1) in each `window`, 1 ns to 292
    /// years, on a grid from [`Timestamp::ZERO`].
    ///
    /// # Panics
    ///
    /// Where [`FixedWindowBuilder::rules`](crate::FixedWindowBuilder::rules) would return an error;
    /// in a constant or a static, that is a compile error.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::FixedWindowRules;
    /// const RULES: FixedWindowRules = FixedWindowRules::new(100, Duration::from_secs(60));
    /// assert_eq!(RULES.limit(), 100);
    /// ```
    #[must_use]
    pub const fn new(limit: u64, window: Duration) -> Self {
        match FixedWindow::builder(limit, window).rules() {
            Ok(rules) => rules,
            Err(error) => error.refuse(),
        }
    }
}

impl<W: Word> FixedWindowRules<W> {
    /// Rules for windows of `window` nanoseconds; `rounded` if the first request starts them.
    pub(super) const fn on(started: &Started<W>, window: u64, rounded: bool) -> Self {
        Self {
            layout: started.layout,
            span: started.span(window),
            grid: started.grid,
            rounded,
        }
    }

    /// The permits in each window.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::FixedWindowRules;
    /// assert_eq!(
    ///     FixedWindowRules::new(3, Duration::from_secs(1)).limit(),
    ///     3
    /// );
    /// ```
    pub fn limit(&self) -> u64 {
        self.layout.limit()
    }

    /// How much older than the newest `now` another one may be for the bound to hold: see
    /// [`FixedWindow::staleness`].
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::FixedWindowRules;
    /// let rules = FixedWindowRules::new(3, Duration::from_secs(1));
    /// assert!(rules.staleness() >= Duration::from_secs(1));
    /// ```
    pub fn staleness(&self) -> Duration {
        self.span_of(self.layout.staleness())
    }

    /// After how much idle time a word repeats: see [`FixedWindow::horizon`].
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::FixedWindowRules;
    /// let rules = FixedWindowRules::new(3, Duration::from_secs(1));
    /// assert!(rules.horizon() > 4 * rules.staleness());
    /// ```
    pub fn horizon(&self) -> Duration {
        self.span_of(self.layout.range())
    }

    /// The grain that a window's start is rounded up to; on a grid, the window.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::FixedWindowRules;
    /// let rules = FixedWindowRules::new(3, Duration::from_secs(1));
    /// assert_eq!(rules.tick(), Duration::from_secs(1));
    /// ```
    pub fn tick(&self) -> Duration {
        Duration::from_nanos(self.grid.step())
    }

    fn span_of(&self, positions: u64) -> Duration {
        saturating_duration(u128::from(positions) * u128::from(self.grid.step()))
    }

    /// Any word as one that such a window can have written.
    pub(super) fn fitting(&self, word: u64) -> u64 {
        let (count, end) = self.layout.split(word & W::MASK);
        end | count.min(self.limit())
    }

    /// What a take of `wanted` counts from where the window in `state` does not end at `end`, where
    /// one that begins now would; `None` if there is no room.
    ///
    /// Apart from the hot path.
    #[cold]
    #[inline(never)]
    fn elsewhere(&self, state: u64, now: Timestamp, end: u64, wanted: u64) -> Option<u64> {
        let &Self {
            layout,
            span,
            grid,
            rounded,
        } = self;
        let stamp = end.wrapping_sub(span.into()) & W::MASK;
        let begun = if rounded && grid.split(now).1 != 0 {
            end.wrapping_add(layout.stamp(1)) & W::MASK
        } else {
            end
        };
        match layout.current(stamp, state) {
            (count, Some(_)) if count + wanted > layout.limit() => None,
            // All permits were given back, so this request starts the window: it begins now, unless
            // it would then end earlier.
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
            // All permits were given back: the next request starts the window.
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
}

/// A request as a window sees it.
#[derive(Clone, Copy, Debug)]
pub struct WindowRequest {
    now: Timestamp,
    n: u32,
    /// The end of a window on the grid that `now` lies in, as a stamp.
    end: u64,
}

impl<W: Word> WordRules for FixedWindowRules<W> {
    type Word = W;
    type Request = WindowRequest;

    #[inline(always)]
    fn request(&self, now: Timestamp, n: u32) -> Result<WindowRequest, Denied> {
        if u64::from(n) > self.limit() {
            return Err(Denied::exceeding(n, self.limit()));
        }
        let stamp = self.layout.stamp(self.grid.index(now));
        let end = stamp.wrapping_add(self.span.into()) & W::MASK;
        Ok(WindowRequest { now, n, end })
    }

    #[inline(always)]
    fn judge(&self, state: u64, request: WindowRequest) -> Verdict {
        let WindowRequest { now, n, end } = request;
        let (limit, wanted) = (self.limit(), u64::from(n.max(1)));
        let denied = Verdict::Denied(Denied::Exhausted { now, permits: n });
        // On a grid, a window that is on ends where one that begins now would. Any other end is
        // further from it than the limit; and of one that is empty again it matters who started it,
        // if not the grid.
        let other = Stamped::<W>::count(state, end).wrapping_sub(1);
        let from = if other < limit - wanted {
            state
        } else if other < limit {
            return denied;
        } else if state == end && !self.rounded {
            state
        } else {
            match self.elsewhere(state, now, end, wanted) {
                Some(from) => from,
                None => return denied,
            }
        };
        if n == 0 {
            Verdict::Allowed
        } else {
            Verdict::Granted(from + wanted)
        }
    }

    #[inline(always)]
    fn receipt(&self, state: u64, now: Timestamp) -> Receipt {
        Receipt::dated(self.layout.split(state).1, now.as_nanos())
    }

    /// All of them, if the window that they were counted in is still the newest one.
    #[inline]
    fn refund(&self, state: u64, now: Timestamp, n: u32, receipt: &Receipt) -> Option<u64> {
        let (count, end) = self.layout.split(state);
        let counts = end == receipt.note()
            && count >= n.into()
            && !self.layout.is_outlived(&self.grid, receipt, now);
        counts.then(|| state - u64::from(n))
    }

    #[inline(always)]
    fn rest(&self, _: u64, receipt: Receipt) -> Receipt {
        receipt
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

    #[inline(always)]
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
}

impl<W: Word> TableRules for FixedWindowRules<W> {
    fn fresh(&self, now: Timestamp) -> u64 {
        self.layout.stamp(self.grid.index(now))
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

    fn capacity(&self) -> u64 {
        self.limit()
    }
}
