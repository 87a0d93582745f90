//! State: one word, `end | newest | count` (see [`stamped`](crate::word::stamped)): until when, how
//! far into the window that ends then the newest grant lies, and the permits taken in it; or, in
//! place of a count, `limit + 1` while all are denied.
//!
//! ```text
//! bits                                  0
//! +-------------+----------+------------+  newest: that offset in steps of at most the wait,
//! |     end     |  newest  |   count    |          rounded down; no bits where a wait cannot
//! +-------------+----------+------------+          end a window early
//!                                          count:  0 to limit + 1
//!
//!   first         exceeds           first                 first    exceeds
//!     |-- window ----|- - -|          |---- window ----|    |-- window |- - - - -|
//!   --|              |---- wait ----|--                |----|          |- wait -|--- first
//!        count 1..limit   limit + 1   1..limit                1..limit   limit + 1
//! ```
//!
//! Invariant: a count of at most the limit is what was granted since the start of the window that
//! ends at `end`, and the wait that exceeding would start ends after each of these grants. Four
//! transitions, each one compare-exchange: a take before `end` adds to the count, and raises
//! `newest` to itself; a take at or after it starts a window; a request that exceeds the limit
//! before `end` replaces all by the end of a wait and the mark; a refund in its own window takes
//! off the count.
//!
//! A wait is reckoned from the later of its request and the newest grant, which is rounded down by
//! less than the wait, but not to before the start of the window. A window of which all was given
//! back is as if no request had started it: the next one starts it again. So the next start comes
//! after all that was granted, and at least a wait after the last start, however late those are who
//! exceed. For a request that is not late, its own time is the later one.
//!
//! Not a [`WordLimiter`](crate::rules::word_limiter) with rules of its own: a denial that starts a
//! wait is an exchange as well, which no other limiter of one word has.

use core::time::Duration;

use crate::limiter::queue_limiter::replenishing;
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::const_unless_loom;
use crate::time::timestamp::saturating_duration;
use crate::word::settings;
use crate::word::stamped::{Started, bits, offset_bits};
use crate::word::{AtomicWord, NativeWord, Word, narrow};
use crate::{
    Denied, Idle, Lease, Limiter, LimiterId, Receipt, Refund, Retry, Setting, SettingsError,
    Timestamp,
};

/// A window that the first request starts, and that denies everything for a `wait` once it is
/// exceeded.
///
/// At most `limit` permits are granted in a window of length `period`, which begins with the first
/// request that is granted. The request that exceeds the limit is denied, and starts the wait:
/// until it is over, every request is denied. Requests in the wait do not prolong it. When it is
/// over the count begins anew, with the next request that is granted, also if that lies inside the
/// period. Without a wait, it is the rest of the period.
///
/// Exceeding counts requests, not permits: one for more than are left, if not more than the limit,
/// starts the wait as well. One for more than the limit is an error of the caller's, and a probe
/// (`n = 0`) or a look ([`peek_at`](Limiter::peek_at)) asks for nothing: these never start it.
///
/// **Bound.** At most `limit` permits from one fresh start to the next, and two fresh starts lie at
/// least m apart, the shorter of period and wait (the period, if there is no wait). So in a span of
/// time t, at most `limit * (1 + ceil(t / m))`: twice the limit in a span of m, around an edge. A
/// grant counts at the later of its own `now` and the newest one granted before.
///
/// **Exact.** A late `now` is counted in the newest window, or denied in the newest wait. A wait
/// runs from the `now` of the request that starts it. If that is late, it runs from an instant in
/// the window that is less than one wait before the newest grant, and so it is not over when that
/// one was granted. Retry times are exact to the nanosecond. Starts, period and wait are rounded up
/// to [ticks](CooldownWindowBuilder::tick), which are 1 ns for most settings of a 64-bit word.
///
/// **Cost.** A grant is one load, one multiplication and one compare-exchange, and so is the one
/// denial that starts a wait. Other denials write nothing. Lock-free: a compare-exchange fails only
/// because another one succeeded, at most `limit + 1` times a window (or, on processors that link
/// loads with stores, because an interrupt came between). All accesses are `Relaxed`.
///
/// **Horizon.** The end wraps in the bits that the limit leaves. A wait that is shorter than the
/// period takes more of them, to say where in its window the newest grant lies: about as many as
/// the number of waits in a period has. In a 32-bit word that may cost a coarser tick: look at
/// [`tick`](Self::tick), or [set it](CooldownWindowBuilder::tick). The bound holds for every `now`
/// up to [`staleness`](Self::staleness) older than the newest; a limiter that has been idle for
/// whole multiples of [`horizon`](Self::horizon) may be told less than full, for at most twice that
/// staleness, and the longer of period and wait. A window that the first request starts just then
/// may end early, once; the bound in any span still holds.
///
/// Source: the rate limit rule of Ocelot, with its `Limit`, `Period` and `Wait`.
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::{CooldownWindow, Retry, Timestamp};
///
/// const SECOND: Duration = Duration::from_secs(1);
/// static LIMIT: CooldownWindow =
///     CooldownWindow::new(2, SECOND, Some(Duration::from_secs(30)));
///
/// let at = Timestamp::from_millis;
/// assert!(LIMIT.try_acquire_at(at(500), 2).is_ok());
/// let denied = LIMIT.try_acquire_at(at(700), 1).unwrap_err();
/// assert_eq!(denied.retry(&LIMIT), Retry::At(at(30_700)));
/// assert!(LIMIT.try_acquire_at(at(2_000), 1).is_err(), "still waiting");
/// assert!(LIMIT.try_acquire_at(at(30_700), 2).is_ok());
/// ```
#[derive(Debug)]
pub struct CooldownWindow<W: Word = NativeWord> {
    state: AtomicWord<W>,
    started: Started<W>,
    /// From the start of a window to its end, as a stamp.
    period: W,
    /// From the request that exceeds to the end of the wait, as a stamp.
    wait: Option<W>,
    /// The bits of the word that hold the newest grant's offset.
    newest: W,
    /// How far right of its place in a stamp the offset stands there.
    shift: u32,
}

impl CooldownWindow {
    const_unless_loom! {
        /// At most `limit` permits (at least 1) in each `period`, and a `wait` after it is
        /// exceeded, each 1 ns to 292 years; with `None`, the rest of the period.
        ///
        /// # Panics
        ///
        /// Where [`CooldownWindowBuilder::build`] would return an error; in a constant or a static,
        /// that is a compile error.
        ///
        /// ```
        /// # use core::time::Duration;
        /// # use portcullis_core::CooldownWindow;
        /// static LIMIT: CooldownWindow = CooldownWindow::new(100, Duration::from_secs(60), None);
        /// ```
        pub const fn new(limit: u64, period: Duration, wait: Option<Duration>) -> Self {
            let mut builder = Self::builder(limit, period);
            builder.wait = wait;
            match builder.build() {
                Ok(limiter) => limiter,
                Err(error) => error.refuse(),
            }
        }
    }

    /// Settings for at most `limit` permits (at least 1) in each `period`, 1 ns to 292 years.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{CooldownWindow, Timestamp};
    /// let limit = CooldownWindow::builder(5, Duration::from_secs(1)).build()?;
    /// assert_eq!(limit.available_at(Timestamp::ZERO), 5);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn builder(limit: u64, period: Duration) -> CooldownWindowBuilder {
        CooldownWindowBuilder {
            limit,
            period,
            wait: None,
            origin: Timestamp::ZERO,
            tick: None,
            staleness: None,
        }
    }
}

impl<W: Word> CooldownWindow<W> {
    /// Takes `n` permits at `now`. With `n = 0` it takes nothing, and is answered as a request for
    /// 1 would be.
    ///
    /// The lease does nothing when dropped: permits come back with the next window.
    ///
    /// # Errors
    ///
    /// [`Denied::Exhausted`], and then a wait is on; or [`Denied::ExceedsCapacity`] if `n` is more
    /// than the limit.
    ///
    /// # Cost
    ///
    /// A load, a multiplication, and on success or for the denial that starts a wait one
    /// compare-exchange. Never divides, blocks or panics.
    ///
    /// ```
    /// # use portcullis_core::{CooldownWindow, Timestamp};
    /// # use core::time::Duration;
    /// let limit = CooldownWindow::new(3, Duration::from_secs(1), None);
    /// assert_eq!(
    ///     limit.try_acquire_at(Timestamp::ZERO, 2).unwrap().permits(),
    ///     2
    /// );
    /// let denied = limit.try_acquire_at(Timestamp::ZERO, 2).unwrap_err();
    /// assert_eq!(
    ///     denied.retry(&limit).wait_from(Timestamp::ZERO),
    ///     Some(Duration::from_secs(1))
    /// );
    /// assert_eq!(limit.available_at(Timestamp::ZERO), 0);
    /// ```
    #[inline]
    pub fn try_acquire_at(&self, now: Timestamp, n: u32) -> Result<Lease<&Self>, Denied> {
        Lease::try_acquire_at(self, now, n)
    }

    /// The permits left at `now`: none in a wait.
    ///
    /// ```
    /// # use portcullis_core::{CooldownWindow, Timestamp};
    /// # use core::time::Duration;
    /// let limit = CooldownWindow::new(3, Duration::from_secs(1), None);
    /// assert_eq!(limit.available_at(Timestamp::ZERO), 3);
    /// ```
    pub fn available_at(&self, now: Timestamp) -> u64 {
        match self.phase(self.started.stamp(now), self.state.load(Relaxed)) {
            Phase::Over => self.limit(),
            Phase::Window { count } => self.limit() - count,
            Phase::Waiting | Phase::TooLate => 0,
        }
    }

    /// Whether all permits are available at `now`, and since when.
    ///
    /// ```
    /// # use portcullis_core::{CooldownWindow, Idle, Timestamp};
    /// # use core::time::Duration;
    /// let limit = CooldownWindow::new(3, Duration::from_secs(1), None);
    /// limit.try_acquire_at(Timestamp::from_secs(2), 1)?;
    /// assert_eq!(
    ///     limit.idle_at(Timestamp::from_secs(9)),
    ///     Idle::Since(Timestamp::from_secs(3))
    /// );
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    pub fn idle_at(&self, now: Timestamp) -> Idle {
        let state = self.state.load(Relaxed);
        let Started { layout, grid } = &self.started;
        let position = grid.index(now);
        match self.phase(layout.stamp(position), state) {
            Phase::Over => {
                let passed = layout.distance(layout.stamp(position), layout.split(state).1);
                Idle::Since(
                    grid.start(position.saturating_add_signed(-passed))
                        .unwrap_or(Timestamp::MAX),
                )
            }
            Phase::Window { count: 0 } => Idle::Now,
            _ => Idle::InUse,
        }
    }

    /// The permits from one fresh start to the next.
    ///
    /// ```
    /// # use portcullis_core::CooldownWindow;
    /// # use core::time::Duration;
    /// assert_eq!(
    ///     CooldownWindow::new(3, Duration::from_secs(1), None).limit(),
    ///     3
    /// );
    /// ```
    pub fn limit(&self) -> u64 {
        self.mark() - 1
    }

    /// How much older than the newest `now` another one may be for the bound to hold: at least one
    /// second.
    ///
    /// ```
    /// # use portcullis_core::CooldownWindow;
    /// # use core::time::Duration;
    /// assert!(
    ///     CooldownWindow::new(3, Duration::from_secs(1), None).staleness()
    ///         >= Duration::from_secs(1)
    /// );
    /// ```
    pub fn staleness(&self) -> Duration {
        self.span_of(self.started.layout.staleness())
    }

    /// After how much idle time the word repeats: see the type's documentation.
    ///
    /// ```
    /// # use portcullis_core::CooldownWindow;
    /// # use core::time::Duration;
    /// let limit = CooldownWindow::new(3, Duration::from_secs(1), None);
    /// assert!(limit.horizon() > Duration::from_secs(1_000_000_000));
    /// ```
    pub fn horizon(&self) -> Duration {
        self.span_of(self.started.layout.range())
    }

    /// The grain that starts, period and wait are rounded up to.
    ///
    /// ```
    /// # use portcullis_core::CooldownWindow;
    /// # use core::time::Duration;
    /// assert_eq!(
    ///     CooldownWindow::new(3, Duration::from_secs(1), None).tick(),
    ///     Duration::from_nanos(1)
    /// );
    /// ```
    pub fn tick(&self) -> Duration {
        Duration::from_nanos(self.started.grid.step())
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
    /// # use portcullis_core::{CooldownWindow, Timestamp};
    /// let limit = CooldownWindow::new(3, Duration::from_secs(1), None);
    /// assert!(limit.try_acquire_at(Timestamp::from_secs(60), 3).is_ok());
    /// let saved = limit.state();
    ///
    /// // Awake again, 50 ms later.
    /// let limit = CooldownWindow::new(3, Duration::from_secs(1), None).with_state(saved);
    /// assert!(limit.try_acquire_at(Timestamp::from_millis(60_050), 1).is_err());
    /// ```
    pub fn state(&self) -> u64 {
        self.state.load(Relaxed)
    }

    /// This window, in the [`state`](Self::state) that one with the same settings was in. Time has
    /// to go on from the same origin: by a clock that runs through the sleep.
    ///
    /// Any number is a state: one from other settings, or damaged, grants at first less or more
    /// than the one that was saved, but no more than a window of which nothing is taken.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{CooldownWindow, Timestamp};
    /// let saved = CooldownWindow::new(3, Duration::from_secs(1), None).state();
    /// let limit = CooldownWindow::new(3, Duration::from_secs(1), None).with_state(saved);
    /// assert_eq!(limit.available_at(Timestamp::ZERO), 3);
    /// ```
    #[must_use]
    pub fn with_state(mut self, state: u64) -> Self {
        let (state, newest) = (state & W::MASK, self.newest.into());
        let (count, end) = self.split(state);
        self.state = AtomicWord::new(end | state & newest | count.min(self.mark()));
        self
    }

    fn span_of(&self, positions: u64) -> Duration {
        saturating_duration(u128::from(positions) * u128::from(self.started.grid.step()))
    }

    /// What stands in place of a count while all are denied.
    #[inline(always)]
    fn mark(&self) -> u64 {
        self.started.layout.limit()
    }

    /// The count in `state`, and its end.
    #[inline(always)]
    fn split(&self, state: u64) -> (u64, u64) {
        let newest: u64 = self.newest.into();
        self.started.layout.split(state & !newest)
    }

    /// What `state` means at a position.
    #[inline(always)]
    fn phase(&self, stamp: u64, state: u64) -> Phase {
        let layout = &self.started.layout;
        let (count, end) = self.split(state);
        if layout.ahead(stamp, end).is_some() {
            Phase::Over
        } else if count == self.mark() {
            Phase::Waiting
        } else if layout.too_late(stamp, end) > 0 {
            Phase::TooLate
        } else {
            Phase::Window { count }
        }
    }

    #[inline(always)]
    fn take(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        if u64::from(n) > self.limit() {
            // The limit is less than `n`, so it fits.
            return Err(Denied::ExceedsCapacity {
                permits: n,
                capacity: self.limit() as u32,
            });
        }
        let (stamp, state) = (self.started.stamp(now), self.state.load(Relaxed));
        match self.phase(stamp, state) {
            Phase::Waiting | Phase::TooLate => {
                return Err(Denied::Exhausted { now, permits: n });
            }
            // What is usual, at once.
            Phase::Window { count }
                if count > 0 && n > 0 && count + u64::from(n) <= self.limit() =>
            {
                let next = self.with_newest(stamp, state) + u64::from(n);
                if self
                    .state
                    .compare_exchange_weak(state, next, Relaxed, Relaxed)
                    .is_ok()
                {
                    let end = self.started.layout.split(next).1;
                    return Ok(Receipt::dated(end, now.as_nanos()));
                }
            }
            Phase::Over | Phase::Window { .. } => {}
        }
        self.take_slowly(now, n, stamp, state)
    }

    /// Takes, or starts a window or a wait, in a limiter that was seen in `state`.
    #[cold]
    #[inline(never)]
    fn take_slowly(
        &self,
        now: Timestamp,
        n: u32,
        stamp: u64,
        mut state: u64,
    ) -> Result<Receipt, Denied> {
        let wanted = u64::from(n.max(1));
        loop {
            let (next, granted) = match self.phase(stamp, state) {
                Phase::Over => (self.started.end(now, self.period.into()) + wanted, true),
                Phase::Window { count } if count + wanted <= self.limit() => {
                    let next = if count == 0 {
                        self.started_again(now, stamp, state)
                    } else {
                        self.with_newest(stamp, state)
                    };
                    (next + wanted, true)
                }
                Phase::Window { .. } => (self.waiting(now, state), false),
                Phase::Waiting | Phase::TooLate => {
                    return Err(Denied::Exhausted { now, permits: n });
                }
            };
            if n > 0
                && let Err(newer) = self
                    .state
                    .compare_exchange_weak(state, next, Relaxed, Relaxed)
            {
                state = newer;
                continue;
            }
            return if granted {
                let end = self.started.layout.split(next).1;
                Ok(Receipt::dated(end, now.as_nanos()))
            } else {
                Err(Denied::Exhausted { now, permits: n })
            };
        }
    }

    /// The start of the window that ends at `end`.
    #[inline(always)]
    fn start(&self, end: u64) -> u64 {
        end.wrapping_sub(self.period.into()) & W::MASK
    }

    /// `state`, of whose window all was given back, as if no request had started it: it begins now,
    /// if it then ends later. An end never moves back, so that a late request finds no room between
    /// two windows.
    #[cold]
    fn started_again(&self, now: Timestamp, stamp: u64, state: u64) -> u64 {
        let end = self.started.end(now, self.period.into());
        if self
            .started
            .layout
            .ahead(end, self.split(state).1)
            .is_some()
        {
            end
        } else {
            self.with_newest(stamp, state)
        }
    }

    /// `state`, in whose window a request is granted at a position.
    #[inline(always)]
    fn with_newest(&self, stamp: u64, state: u64) -> u64 {
        let offset = stamp.wrapping_sub(self.start(self.split(state).1)) & W::MASK;
        // One who is late may come before the window.
        let offset = if offset < self.period.into() {
            offset
        } else {
            0
        };
        let newest = self.newest.into();
        state + ((offset >> self.shift) & newest).saturating_sub(state & newest)
    }

    /// The state of a wait that a request at `now` starts in the window of `state`.
    fn waiting(&self, now: Timestamp, state: u64) -> u64 {
        let (_, end) = self.split(state);
        let Some(wait) = self.wait else {
            return end + self.mark();
        };
        let layout = &self.started.layout;
        let newest: u64 = self.newest.into();
        let newest = self.start(end).wrapping_add((state & newest) << self.shift) & W::MASK;
        let from = self.started.end(now, 0);
        // A window may seem to lie further ahead than anybody is late, where the word has come
        // around.
        let late = layout
            .ahead(newest, from)
            .unwrap_or(0)
            .min(layout.stamp(layout.staleness()));
        let from = from.wrapping_add(late);
        (from.wrapping_add(wait.into()) & W::MASK) + self.mark()
    }

    /// When to come back behind others. Apart, so that who asks alone pays nothing for it.
    #[cold]
    #[inline(never)]
    fn retry_behind(&self, now: Timestamp, permits: u32) -> Retry {
        self.come_in(now, permits).map_or(Retry::Never, Retry::At)
    }

    /// The earliest instant at which there can have been room for `permits`, more than the limit:
    /// one fresh start after the other, each a wait after the last one, if somebody exceeds at
    /// once, or else a period, whichever is shorter.
    fn come_in(&self, now: Timestamp, permits: u32) -> Option<Timestamp> {
        let Started { layout, grid } = &self.started;
        let state = self.state.load(Relaxed);
        let (count, end) = self.split(state);
        let period = self.period.into();
        let apart = self.wait.map_or(period, |wait| period.min(wait.into()));
        let position = grid.index(now);
        let stamp = layout.stamp(position);
        let until = |word| layout.distance(stamp, self.split(word).1).unsigned_abs();
        // What is left of the window that is on, which ends with it, or with the wait of who
        // exceeds it at `then`.
        let on = |then| {
            (
                self.limit() - count,
                until(state).min(until(self.waiting(then, state))),
            )
        };
        let begun = until(self.started.end(now, apart));
        let (left, ahead) = match self.phase(stamp, state) {
            Phase::Over => (self.limit(), begun),
            // No request has started this window.
            Phase::Window { count: 0 } => (self.limit(), begun.max(on(now).1)),
            Phase::Waiting => (0, until(state)),
            Phase::Window { .. } => on(now),
            Phase::TooLate => on(grid.start(position.checked_add(layout.too_late(stamp, end))?)?),
        };
        let starts = (u64::from(permits) - left - 1).checked_div(self.limit())?;
        let further = starts.checked_mul(layout.distance(apart, 0).unsigned_abs())?;
        grid.start(position.checked_add(ahead)?.checked_add(further)?)
    }

    /// Counts `n` permits back, if the window that they were counted in is still on, and has not
    /// been exceeded.
    fn undo(&self, now: Timestamp, n: u32, receipt: &Receipt) -> u32 {
        if self
            .started
            .layout
            .is_outlived(&self.started.grid, receipt, now)
        {
            return 0;
        }
        let mut state = self.state.load(Relaxed);
        loop {
            let (count, end) = self.split(state);
            if end != receipt.note() || count == self.mark() || count < n.into() {
                return 0;
            }
            match self
                .state
                .compare_exchange_weak(state, state - u64::from(n), Relaxed, Relaxed)
            {
                Ok(_) => return n,
                Err(newer) => state = newer,
            }
        }
    }
}

impl<W: Word> Limiter for CooldownWindow<W> {
    #[inline(always)]
    fn id(&self) -> Option<LimiterId> {
        LimiterId::of(self)
    }

    #[inline]
    fn take_at(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        self.take(now, n)
    }

    /// All of them, until the limit is exceeded or a newer window starts; then none. None either if
    /// the receipt is older than about half the [`horizon`](Self::horizon). If all that was taken
    /// in a window is given back, the next request starts it again.
    #[inline]
    fn refund_at(&self, now: Timestamp, n: u32, receipt: Receipt) -> Refund {
        let refunded = self.undo(now, n, &receipt);
        receipt.refunded(refunded)
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

    /// Behind others, for more than the limit, fresh starts count as the shorter of period and wait
    /// apart. That is exact without a wait; with one it is a lower bound, as it depends on who
    /// exceeds, and when.
    fn retry(&self, denied: Denied) -> Retry {
        let Denied::Exhausted { now, permits } = denied else {
            return Retry::Never;
        };
        if u64::from(permits) > self.limit() {
            return self.retry_behind(now, permits);
        }
        let Started { layout, grid } = &self.started;
        let position = grid.index(now);
        let (stamp, state) = (layout.stamp(position), self.state.load(Relaxed));
        let wanted = u64::from(permits.max(1));
        let (count, end) = self.split(state);
        let wait = match self.phase(stamp, state) {
            Phase::Over => 0,
            Phase::Window { count } if count + wanted <= self.limit() => 0,
            // Who is too late need not wait for the end, if there is room in the window.
            Phase::TooLate if count + wanted <= self.limit() => {
                layout.too_late(stamp, end).cast_signed()
            }
            _ => -layout.distance(stamp, end),
        };
        if wait == 0 {
            return Retry::At(now);
        }
        position
            .checked_add_signed(wait)
            .and_then(|end| grid.start(end))
            .map_or(Retry::Never, Retry::At)
    }
}

replenishing!([W: Word] CooldownWindow<W>);

/// What a state means at a position.
enum Phase {
    /// Nothing is on: a request starts a window.
    Over,
    /// A window is on, with so many permits taken in it.
    Window { count: u64 },
    /// The limit was exceeded.
    Waiting,
    /// A window is on, as far as one can tell, and the position is older than the staleness allows.
    TooLate,
}

/// Settings of a [`CooldownWindow`]; from [`CooldownWindow::builder`].
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::{CooldownWindow, Timestamp};
///
/// let settings = CooldownWindow::builder(1, Duration::from_secs(1))
///     .wait(Duration::from_millis(200));
/// let limit = settings.build()?;
/// assert!(limit.try_acquire_at(Timestamp::from_millis(0), 1).is_ok());
/// assert!(
///     limit
///         .try_acquire_at(Timestamp::from_millis(100), 1)
///         .is_err()
/// );
/// assert!(
///     limit.try_acquire_at(Timestamp::from_millis(300), 1).is_ok(),
///     "inside the period"
/// );
/// # Ok::<(), portcullis_core::SettingsError>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct CooldownWindowBuilder {
    limit: u64,
    period: Duration,
    wait: Option<Duration>,
    origin: Timestamp,
    tick: Option<Duration>,
    staleness: Option<Duration>,
}

impl CooldownWindowBuilder {
    /// For how long all are denied after the limit was exceeded: 1 ns to 292 years, shorter or
    /// longer than the period. Default: the rest of the period.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{CooldownWindow, Timestamp};
    /// let limit = CooldownWindow::builder(1, Duration::from_secs(1))
    ///     .wait(Duration::from_secs(9))
    ///     .build()?;
    /// assert!(limit.try_acquire_at(Timestamp::ZERO, 1).is_ok());
    /// assert!(limit.try_acquire_at(Timestamp::ZERO, 1).is_err());
    /// assert!(limit.try_acquire_at(Timestamp::from_secs(8), 1).is_err());
    /// assert!(limit.try_acquire_at(Timestamp::from_secs(9), 1).is_ok());
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// The instant that ticks and the word are counted from; where the tick is longer than 1 ns, an
    /// earlier `now` counts as this one. Default: [`Timestamp::ZERO`]. Where the horizon is near,
    /// set it to the instant at which the limiter is built: one whose origin is a whole horizon ago
    /// begins like one that has been idle for that long.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{CooldownWindow, Idle, Timestamp};
    /// let boot = Timestamp::from_secs(1_700_000_000);
    /// let limit = CooldownWindow::builder(1, Duration::from_secs(1))
    ///     .origin(boot)
    ///     .build_on::<u32>()?;
    /// assert_eq!(limit.idle_at(boot), Idle::Since(boot));
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn origin(mut self, origin: Timestamp) -> Self {
        self.origin = origin;
        self
    }

    /// Rounds starts, the period and the wait up to whole ticks of 1 ns to 292 years, so that each
    /// of period and wait is at most two ticks longer. Default: the finest of 1 ns, 10 ns, 100 ns,
    /// ... whose horizon is an hour or more, or else the coarsest up to the period.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{CooldownWindow, Timestamp};
    /// let settings = CooldownWindow::builder(1, Duration::from_secs(1))
    ///     .tick(Duration::from_millis(10));
    /// assert_eq!(settings.build()?.tick(), Duration::from_millis(10));
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
    /// # use portcullis_core::{CooldownWindow, Timestamp};
    /// let settings = CooldownWindow::builder(1, Duration::from_secs(1))
    ///     .staleness(Duration::from_secs(60));
    /// assert_eq!(settings.build()?.staleness(), Duration::from_secs(60));
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
        /// [`SettingsError`] names the setting and its bound: a limit of zero or so large that,
        /// with what a short wait takes, it leaves too few bits for the ends, a period, wait or
        /// tick outside of 1 ns to 292 years, a staleness under 1 s or too long.
        ///
        /// ```
        /// # use core::time::Duration;
        /// # use portcullis_core::{CooldownWindow, Setting, SettingsError};
        /// let refused = CooldownWindow::builder(1, Duration::ZERO).build().unwrap_err();
        /// assert_eq!(refused, SettingsError::Zero { setting: Setting::Window });
        /// ```
        pub const fn build(self) -> Result<CooldownWindow, SettingsError> {
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
        /// # use portcullis_core::CooldownWindow;
        /// # use core::time::Duration;
        /// let limit: CooldownWindow<u32> =
        ///     CooldownWindow::builder(1_000, Duration::from_secs(1)).build_on()?;
        /// assert_eq!(limit.tick(), Duration::from_millis(1));
        /// # Ok::<(), portcullis_core::SettingsError>(())
        /// ```
        pub const fn build_on<W: Word>(self) -> Result<CooldownWindow<W>, SettingsError> {
            if self.limit == 0 {
                return Err(SettingsError::Zero { setting: Setting::Limit });
            }
            let period = match settings::nanos(self.period, Setting::Window) {
                Ok(nanos) => nanos,
                Err(error) => return Err(error),
            };
            let wait = match self.wait {
                None => period,
                Some(wait) => match settings::nanos(wait, Setting::Wait) {
                    Ok(nanos) => nanos,
                    Err(error) => return Err(error),
                },
            };
            let tick = match self.tick {
                None => None,
                Some(tick) => match settings::nanos(tick, Setting::Tick) {
                    Ok(nanos) => Some(nanos),
                    Err(error) => return Err(error),
                },
            };
            let staleness = match settings::staleness_nanos(self.staleness) {
                Ok(nanos) => nanos,
                Err(error) => return Err(error),
            };
            // One count more, for the mark.
            let counts = self.limit.saturating_add(1);
            let started = match Started::new(counts, period, wait, tick, staleness, self.origin) {
                Ok(started) => started,
                Err(SettingsError::TooLarge { setting: Setting::Limit, max }) => {
                    return Err(SettingsError::TooLarge { setting: Setting::Limit, max: max.saturating_sub(1) });
                }
                Err(error) => return Err(error),
            };
            let step = started.grid.step();
            let ticks = period.div_ceil(step);
            let newest = u64::MAX.unbounded_shr(u64::BITS - offset_bits(ticks, wait.div_ceil(step)));
            Ok(CooldownWindow {
                // Nothing is on: the last window ended with the origin.
                state: AtomicWord::new(started.nothing_since(self.origin)),
                period: started.span(period),
                wait: if self.wait.is_some() { Some(started.span(wait)) } else { None },
                newest: narrow(newest << bits(counts)),
                shift: bits(ticks - 1),
                started,
            })
        }
    }
}
