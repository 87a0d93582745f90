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
//! Invariant: `count` is the number of permits granted and not refunded in the window that ends at
//! `end`. It is at most the limit, unless the key has moved from a table with a higher limit. `end`
//! never moves back. There are two transitions:
//!
//! - a take before `end` adds to the count;
//! - a take at or after `end` replaces both fields.
//!
//! A stale `now` is before `end`, so it counts in the newest window.

use core::time::Duration;

use crate::limiter::Idle;
use crate::limiter::denied::{Denied, Retry};
use crate::limiter::detail::{Detail, retry_of};
use crate::limiter::receipt::Receipt;
use crate::limiters::fixed_window::FixedWindow;
use crate::newer::{low_bits, signed};
use crate::rules::{Moved, TableRules, Verdict, WordRules};
use crate::time::grid::Grid;
use crate::time::timestamp::{Timestamp, saturating_duration};
use crate::time::timing::Timing;
use crate::word::settings::SettingsError;
use crate::word::stamped::{Stamped, Started};
use crate::word::{KeyedWord, Word};

/// The rules of a [`FixedWindow`], without its state word.
///
/// A [`Keyed`](crate::Keyed) table applies the rules to one word per key. Rules alone hold no
/// permits.
///
/// Created by [`new`](Self::new), or with all settings by
/// [`FixedWindowBuilder::rules`](crate::builder::FixedWindowBuilder::rules). The default word is
/// [`KeyedWord`]: the bits that a table's slot has for a state.
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::{Keyed, Timestamp};
/// use portcullis_core::keyed::{FixedWindowRules, Line, Seed};
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
    /// The length of a window in positions, as a stamp.
    span: W,
    /// Positions: windows, or the ticks to which a start is rounded up.
    grid: Grid,
    /// Whether the first request starts a window. Its start is then rounded up to a whole position.
    rounded: bool,
}

impl FixedWindowRules {
    /// Returns the rules of windows of at most `limit` permits (at least 1) in each `window`, 1 ns
    /// to 292 years, on a grid from [`Timestamp::ZERO`].
    ///
    /// # Panics
    ///
    /// If [`FixedWindowBuilder::rules`](crate::builder::FixedWindowBuilder::rules) would return an
    /// error. In a constant or a static, this is a compile error.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::keyed::FixedWindowRules;
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
    /// Rules for windows of `window` nanoseconds; `rounded` if the first request starts them. The
    /// layout has room for the limit.
    pub(super) const fn on(started: &Started<W>, limit: u64, window: u64, rounded: bool) -> Self {
        Self {
            layout: started.layout.with_limit(limit),
            span: started.span(window),
            grid: started.grid,
            rounded,
        }
    }

    /// Returns the permits of each window.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::keyed::FixedWindowRules;
    /// assert_eq!(
    ///     FixedWindowRules::new(3, Duration::from_secs(1)).limit(),
    ///     3
    /// );
    /// ```
    pub fn limit(&self) -> u64 {
        self.layout.limit()
    }

    /// Returns the largest count that a state has room for: at least the
    /// [setting](crate::builder::FixedWindowBuilder::max_limit).
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::keyed::FixedWindowRules;
    /// assert_eq!(FixedWindowRules::new(100, Duration::from_secs(1)).max_limit(), 127);
    /// ```
    pub fn max_limit(&self) -> u64 {
        self.layout.most()
    }

    /// Returns the length of a window. See [`FixedWindow::window`].
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::keyed::FixedWindowRules;
    /// let rules = FixedWindowRules::new(3, Duration::from_secs(1));
    /// assert_eq!(rules.window(), Duration::from_secs(1));
    /// ```
    pub fn window(&self) -> Duration {
        self.span_of(self.layout.positions(self.span.into()))
    }

    /// Returns whether each window starts with a request. See
    /// [`FixedWindow::is_started_by_first_request`].
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::keyed::FixedWindowRules;
    /// let rules = FixedWindowRules::new(3, Duration::from_secs(1));
    /// assert!(!rules.is_started_by_first_request());
    /// ```
    pub fn is_started_by_first_request(&self) -> bool {
        self.rounded
    }

    /// Returns how a limiter with these rules counts time: see [`Timing`].
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::keyed::FixedWindowRules;
    /// let rules = FixedWindowRules::new(3, Duration::from_secs(1));
    /// assert_eq!(rules.timing().tick, Duration::from_secs(1));
    /// ```
    pub fn timing(&self) -> Timing {
        let staleness = self.span_of(self.layout.staleness());
        Timing::on(&self.grid, staleness, self.span_of(self.layout.range()))
    }

    /// The rules with the same settings in a table's slot. A tick or a staleness that is the
    /// default of this word was not set, so the slot's default replaces it.
    pub(super) fn in_a_table(&self) -> Result<FixedWindowRules, SettingsError> {
        let (most, step, origin) = (self.max_limit(), self.grid.step(), self.grid.origin());
        let window = self.layout.positions(self.span.into()) * step;
        // Rounded up to whole ticks, it may exceed the longest staleness.
        let set = self
            .timing()
            .staleness
            .as_nanos()
            .min(u128::from(u64::MAX / 2)) as u64;
        if !self.rounded {
            let as_by_default = Started::<W>::on_grid(most, window, None, origin);
            let staleness = Some(set).filter(|_| !self.is_as(as_by_default));
            let started = Started::on_grid(most, window, staleness, origin)?;
            return Ok(FixedWindowRules::on(&started, self.limit(), window, false));
        }
        let as_by_default = Started::<W>::new(most, window, window, Some(step), None, origin);
        let staleness = Some(set).filter(|_| !self.is_as(as_by_default));
        let as_by_default = Started::<W>::new(most, window, window, None, staleness, origin);
        let tick = Some(step).filter(|_| !self.is_as(as_by_default));
        let started = Started::new(most, window, window, tick, staleness, origin)?;
        Ok(FixedWindowRules::on(&started, self.limit(), window, true))
    }

    /// Whether these settings lead to these rules.
    fn is_as(&self, other: Result<Started<W>, SettingsError>) -> bool {
        other.is_ok_and(|other| {
            other.grid.step() == self.grid.step()
                && other.layout.staleness() == self.layout.staleness()
        })
    }

    fn span_of(&self, positions: u64) -> Duration {
        saturating_duration(u128::from(positions) * u128::from(self.grid.step()))
    }

    /// Turns any number into a state that such a window could have written.
    pub(super) fn fitting(&self, word: u64) -> u64 {
        let (count, end) = self.layout.split(word & W::MASK);
        end | count.min(self.limit())
    }

    /// Returns the state to which a take adds `wanted`, if `state` is not a window that ends at
    /// `end` (the end of a window that begins at `now`). `None` if there is no room.
    ///
    /// Kept apart from the hot path.
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
            // All permits of the window were refunded, so this request starts it again: the window
            // begins now, unless it would then end earlier.
            (0, Some(at)) if rounded && layout.ahead(begun, at).is_some() => Some(begun),
            (_, Some(_)) => Some(state),
            (_, None) => Some(begun),
        }
    }

    /// Returns when the window has room for `wanted` permits, at most the limit.
    #[inline(always)]
    fn due(&self, state: u64, now: Timestamp, wanted: u64) -> Retry {
        let position = self.grid.index(now);
        let stamp = self.layout.stamp(position);
        let (counted, Some(end)) = self.layout.current(stamp, state) else {
            return Retry::At(now);
        };
        if counted + wanted <= self.limit() {
            return Retry::At(now);
        }
        // If the window has room, a request that is too stale waits only until it is no longer too
        // stale.
        let room = self.layout.split(state).0 + wanted <= self.limit();
        let wait = if room {
            signed(self.layout.too_late(stamp, end))
        } else {
            -self.layout.distance(stamp, end)
        };
        position
            .checked_add_signed(wait)
            .and_then(|end| self.grid.start(end))
            .map_or(Retry::Never, Retry::At)
    }

    /// Returns when to retry behind other requests. Kept apart so that a single request does not
    /// pay for it.
    #[cold]
    #[inline(never)]
    fn retry_behind(&self, state: u64, now: Timestamp, permits: u32) -> Retry {
        self.come_in(state, now, permits)
            .map_or(Retry::Never, Retry::At)
    }

    /// Returns when `permits`, more than the limit, will have become available: first what is left
    /// of the current window (or of one that begins now), then one window after the other.
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
            // All permits were refunded: the next request starts the window.
            0 if self.rounded => (limit, begun.max(ahead.unsigned_abs())),
            _ => (limit.saturating_sub(count), ahead.unsigned_abs()),
        };
        let windows = (u64::from(permits) - left - 1).checked_div(limit)?;
        self.grid.start(
            position
                .checked_add(ahead)?
                .checked_add(windows.checked_mul(span)?)?,
        )
    }
}

/// A request, and the values computed from it that do not depend on the state.
#[derive(Clone, Copy, Debug)]
pub struct WindowRequest {
    now: Timestamp,
    n: u32,
    /// The end of a window that begins at the position of `now`, as a stamp.
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
        // If the state's window ends at `end`, `other` is its count minus 1. Any other end makes
        // `other` larger than the limit, and so does a count of 0. On a grid, an empty window that
        // ends at `end` is the current one. Otherwise `elsewhere` decides whether this request
        // starts a window.
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

    /// Refunds all `n` permits if the window that counts them is still the newest; otherwise none.
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

    fn capacity(&self) -> u64 {
        self.limit()
    }

    fn available(&self, state: u64, now: Timestamp) -> u64 {
        let stamp = self.layout.stamp(self.grid.index(now));
        let counted = self.layout.current(stamp, state).0;
        self.limit().saturating_sub(counted)
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
        self.due(state, now, u64::from(permits.max(1)))
    }

    fn detail(&self, state: u64, now: Timestamp, decision: Result<(), Denied>) -> Detail {
        Detail {
            now,
            decision,
            available: self.available(state, now),
            capacity: self.limit(),
            time_to_fill: Some(self.window()),
            full_again: self.due(state, now, self.limit()),
            retry: retry_of(decision, now, |denied| self.retry(state, denied)),
        }
    }
}

impl<W: Word> TableRules for FixedWindowRules<W> {
    fn fresh(&self, now: Timestamp) -> u64 {
        self.layout.stamp(self.grid.index(now))
    }

    fn is_forgettable(&self, state: u64, now: Timestamp, since: Timestamp) -> bool {
        // A current window is not forgettable, even if all its permits were refunded: without its
        // state, a stale request could be granted permits in a window before it.
        let position = self.grid.index(now);
        let stamp = self.layout.stamp(position);
        let end = self.layout.split(state).1;
        self.layout.ahead(stamp, end).is_some()
            && low_bits(self.layout.distance(stamp, end).into())
                >= (position - self.grid.index(since)).min(self.layout.staleness())
    }

    fn rested(&self, now: Timestamp, since: Timestamp) -> u64 {
        let position = self.grid.index(now);
        let passed = position - self.grid.index(since);
        let end = position.wrapping_sub(passed.min(self.layout.staleness()));
        self.layout.stamp(end)
    }

    fn readable_for(&self) -> u64 {
        self.layout.readable().saturating_mul(self.grid.step())
    }

    fn has_rested(&self, state: u64, clock: Timestamp, now: Timestamp, since: Timestamp) -> bool {
        let (position, settled) = (self.grid.index(now), self.grid.index(clock));
        let end = self.layout.split(state).1;
        let over = self
            .layout
            .settled_distance(self.layout.stamp(settled), end);
        let passed = position.saturating_sub(settled);
        let least = (position - self.grid.index(since)).min(self.layout.staleness());
        i128::from(passed) + i128::from(over) >= i128::from(least)
    }

    fn moved(&self, before: &Self, state: u64, now: Timestamp) -> u64 {
        let (old, new) = (&before.layout, &self.layout);
        let position = before.grid.index(now);
        let (counted, last) = old.split(state);
        let (count, end) = match old.current(old.stamp(position), state) {
            // To a `now` that is too stale, the window seems exhausted, also if more is taken.
            (count, Some(end)) => (count.max(counted), end),
            (_, None) => (counted, last),
        };
        let ahead = -old.distance(old.stamp(position), end);
        // A count that exceeds the layout is cut to the most that the layout has room for. If this
        // is more than the limit, the next move does not know how many permits were taken, and
        // counts all.
        let is_cut = count == old.most() && count > old.limit();
        let kept = if is_cut {
            new.most()
        } else {
            count.min(new.most())
        };
        let is_same = self.rounded == before.rounded && self.window() == before.window();
        if !is_same {
            let (position, into) = self.grid.split(now);
            let begun = position.wrapping_add(u64::from(self.rounded && into != 0));
            let over = ahead <= 0;
            let end = new.stamp(if over { position } else { begun });
            let span: u64 = self.span.into();
            return if over {
                end
            } else {
                (end.wrapping_add(span) & W::MASK) | kept
            };
        }
        // The window that the count is for, also if it is over: a stale timestamp counts in it.
        let end = position
            .checked_add_signed(ahead)
            .and_then(|end| before.grid.start(end))
            .unwrap_or(now);
        let (position, into) = self.grid.split(end);
        new.stamp(position.wrapping_add(u64::from(into != 0))) | kept
    }
}

impl<W: Word> Moved for FixedWindowRules<W> {}
