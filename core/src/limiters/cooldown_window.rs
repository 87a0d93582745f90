//! State: one word, `end | newest | count` (see [`stamped`](crate::word::stamped)):
//!
//! - `end`: when the window, or the wait, ends.
//! - `newest`: how far into the window the newest grant is.
//! - `count`: the permits taken in the window. The mark `limit + 1` means a wait.
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
//! Invariant: a count of at most the limit is the number of permits granted since the start of the
//! window that ends at `end`. The wait that a request over the limit would start ends after each of
//! these grants. Four transitions, each one compare-exchange:
//!
//! - a take before `end` adds to the count, and raises `newest` to its own time;
//! - a take at or after `end` starts a window;
//! - a request that exceeds the limit before `end` replaces the word by the end of a wait and the
//!   mark;
//! - a refund in its own window subtracts from the count.
//!
//! A wait is counted from its request or from the newest grant, whichever is later. The newest
//! grant is rounded down by less than the wait, but not to before the start of the window. A window
//! whose permits have all been refunded counts as not started: the next request starts it again. So
//! the next start comes after everything that was granted, and at least one wait after the last
//! start, however stale the requests are that exceed the limit. If the request is not stale, its
//! own time is the later one.
//!
//! This is not a [`WordLimiter`](crate::rules::word_limiter) with rules of its own: a denial that
//! starts a wait is a compare-exchange as well. No other limiter of one word has that.

use core::time::Duration;

use crate::leases::lease::Lease;
use crate::limiter::denied::{Denied, Retry};
use crate::limiter::detail::{Detail, Observer, retry_of};
use crate::limiter::queue_limiter::replenishing;
use crate::limiter::receipt::Receipt;
use crate::limiter::{Answer, Ask, Back, Hints, Idle, Limiter, LimiterId, Read, Reading, Returned};
use crate::newer::{signed, unbounded_shr};
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::const_unless_loom;
use crate::time::timestamp::{Timestamp, saturating_duration};
use crate::time::timing::Timing;
use crate::word::builder::sealed::Sealed;
use crate::word::builder::{Builder, Ticks};
use crate::word::settings::{Setting, SettingsError};
use crate::word::stamped::{Started, bits, offset_bits};
use crate::word::{AtomicWord, NativeWord, Word, narrow, settings};

/// A window that the first request starts, and that denies every request for a `wait` once its
/// limit is exceeded.
///
/// It is for services that come from Ocelot, whose limits deny for a period after an excess, and
/// for the limits of a policy that do so. Otherwise choose a [`Penalty`](crate::Penalty), which
/// adds a wait to any limiter.
///
/// At most `limit` permits are granted in a window of length `period`. The window starts with the
/// first request that is granted. The request that exceeds the limit is denied and starts the wait.
/// Every request in the wait is denied, and does not prolong it. After the wait, the next request
/// that is granted starts a new window, even inside the old period. If no wait is set, the wait is
/// the rest of the period.
///
/// A request for more permits than are left, but not more than the limit, exceeds the limit and
/// starts the wait. These never start a wait:
///
/// - a request for more than the limit, which is an error of the caller;
/// - a probe (`n = 0`);
/// - a look ([`peek_at`](Limiter::peek_at)).
///
/// **Bound.** At most `limit` permits from one start of a window to the next. Two starts are at
/// least `m` apart, where `m` is the shorter of period and wait (without a wait, the period). So
/// any span of time `t` admits at most `limit * (1 + ceil(t / m))` permits: twice the limit in a
/// span of `m`. A grant counts at its own `now` or at the newest `now` granted before, whichever is
/// later.
///
/// **Exact.** A stale `now` counts in the newest window, or is denied in the newest wait. A wait
/// runs from the `now` of the request that starts it. If that `now` is stale, the wait runs from an
/// instant in the window that is less than one wait before the newest grant. So the wait ends after
/// the newest grant. Retry times are exact to the nanosecond. Starts, period and wait are rounded
/// up to [ticks](CooldownWindowBuilder::tick), which are 1 ns for most settings of a 64-bit word.
///
/// **Cost.** A grant is one load, one multiplication and one compare-exchange. The one denial that
/// starts a wait costs the same. Other denials write nothing. Lock-free: a compare-exchange fails
/// only because another call's compare-exchange succeeded, at most `limit + 1` times per window.
/// (On processors with load-linked and store-conditional instructions, an interrupt between the two
/// also makes it fail.) All accesses are `Relaxed`.
///
/// **Horizon.** The end wraps in the bits that the limit leaves. A wait shorter than the period
/// takes some of them to record where in its window the newest grant is: about as many bits as it
/// takes to write the number of waits in a period. In a 32-bit word that may make the tick coarser:
/// check the [`tick`](Self::timing), or [set it](CooldownWindowBuilder::tick). The bound holds for
/// every `now` that is at most the [`staleness`](Self::timing) older than the newest one. After
/// idling for a multiple of its [`horizon`](Self::timing), a limiter may report too few available
/// permits, never too many. This lasts at most twice the staleness plus the longer of period and
/// wait. A window that starts during that time may end early, once; the bound in any span still
/// holds.
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
    /// The length of a window, as a stamp.
    period: W,
    /// The length of the wait, as a stamp.
    wait: Option<W>,
    /// The bits of the word that hold the newest grant's offset.
    newest: W,
    /// How far the offset is shifted right in the word, compared with its place in a stamp.
    shift: u32,
}

impl CooldownWindow {
    const_unless_loom! {
        /// Creates a limiter of at most `limit` permits (at least 1) in each `period`, and a `wait`
        /// after the limit is exceeded. Period and wait are 1 ns to 292 years. With `None`, the
        /// wait is the rest of the period.
        ///
        /// # Panics
        ///
        /// If [`CooldownWindowBuilder::build`] would return an error. In a constant or a static,
        /// this is a compile error.
        ///
        /// ```
        /// # use core::time::Duration;
        /// # use portcullis_core::CooldownWindow;
        /// static LIMIT: CooldownWindow = CooldownWindow::new(100, Duration::from_secs(60), None);
        /// ```
        pub const fn new(limit: u64, period: Duration, wait: Option<Duration>) -> Self {
            let mut builder = Self::builder(limit, period);
            builder.settings.wait = wait;
            match builder.build() {
                Ok(limiter) => limiter,
                Err(error) => error.refuse(),
            }
        }
    }

    /// Returns a builder for at most `limit` permits (at least 1) in each `period`, 1 ns to 292
    /// years.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{CooldownWindow, Timestamp};
    /// let limit = CooldownWindow::builder(5, Duration::from_secs(1)).build()?;
    /// assert_eq!(limit.available_at(Timestamp::ZERO), 5);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn builder(limit: u64, period: Duration) -> CooldownWindowBuilder {
        Builder::new(CooldownWindowSettings {
            limit,
            period,
            wait: None,
        })
    }
}

impl<W: Word> CooldownWindow<W> {
    /// Takes `n` permits at `now`.
    ///
    /// With `n = 0` it takes nothing, and is granted or denied as a request for 1 permit would be,
    /// but never starts a wait. The lease does nothing when dropped: permits return with the next
    /// window.
    ///
    /// # Errors
    ///
    /// - [`Denied::Exhausted`] if fewer than `n` permits are left, or in a wait. With `n` of at
    ///   least 1, this starts a wait, unless one is in force. A `now` older than the
    ///   [`staleness`](Self::timing) allows is also denied, and starts no wait.
    /// - [`Denied::ExceedsCapacity`] if `n` is more than the limit.
    ///
    /// # Cost
    ///
    /// A load and a multiplication. On success, and for the denial that starts a wait, also one
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

    /// Returns the permits left at `now`: zero in a wait.
    ///
    /// ```
    /// # use portcullis_core::{CooldownWindow, Timestamp};
    /// # use core::time::Duration;
    /// let limit = CooldownWindow::new(3, Duration::from_secs(1), None);
    /// assert_eq!(limit.available_at(Timestamp::ZERO), 3);
    /// ```
    pub fn available_at(&self, now: Timestamp) -> u64 {
        self.room(self.state.load(Relaxed), now)
    }

    /// Returns whether all permits are available at `now`, and since when.
    ///
    /// ```
    /// # use portcullis_core::{CooldownWindow, Timestamp};
    /// # use portcullis_core::limiter::Idle;
    /// # use core::time::Duration;
    /// let limit = CooldownWindow::new(3, Duration::from_secs(1), None);
    /// let _ = limit.try_acquire_at(Timestamp::from_secs(2), 1)?;
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

    /// Returns the permits that may be granted from one start of a window to the next.
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

    /// Returns the length of a window, rounded up to whole [ticks](Self::timing). A window may last
    /// up to one tick longer, because its start is rounded up too.
    ///
    /// ```
    /// # use portcullis_core::CooldownWindow;
    /// # use core::time::Duration;
    /// let limit = CooldownWindow::new(3, Duration::from_secs(1), None);
    /// assert_eq!(limit.period(), Duration::from_secs(1));
    /// ```
    pub fn period(&self) -> Duration {
        self.span_of(self.started.layout.positions(self.period.into()))
    }

    /// Returns how long every request is denied after the limit is exceeded, rounded up to whole
    /// [ticks](Self::timing). `None` if that is the rest of the period. A wait may last up to one
    /// tick longer, because its start is rounded up too.
    ///
    /// ```
    /// # use portcullis_core::CooldownWindow;
    /// # use core::time::Duration;
    /// let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));
    /// assert_eq!(CooldownWindow::new(3, second, None).wait(), None);
    /// assert_eq!(CooldownWindow::new(3, second, Some(minute)).wait(), Some(minute));
    /// ```
    pub fn wait(&self) -> Option<Duration> {
        self.wait
            .map(|wait| self.span_of(self.started.layout.positions(wait.into())))
    }

    /// Returns how the limiter counts time: see [`Timing`].
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::CooldownWindow;
    /// let timing = CooldownWindow::new(3, Duration::from_secs(1), None).timing();
    /// assert!(timing.staleness >= Duration::from_secs(1));
    /// assert!(timing.horizon > Duration::from_secs(1_000_000_000));
    /// ```
    pub fn timing(&self) -> Timing {
        self.started.timing()
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
    /// # use portcullis_core::{CooldownWindow, Timestamp};
    /// let limit = CooldownWindow::new(3, Duration::from_secs(1), None);
    /// assert!(limit.try_acquire_at(Timestamp::from_secs(60), 3).is_ok());
    /// let saved = limit.state();
    ///
    /// // After waking up, 50 ms later.
    /// let limit = CooldownWindow::new(3, Duration::from_secs(1), None).with_state(saved);
    /// assert!(limit.try_acquire_at(Timestamp::from_millis(60_050), 1).is_err());
    /// ```
    pub fn state(&self) -> u64 {
        self.state.load(Relaxed)
    }

    /// Restores a [`state`](Self::state) that was saved from a limiter with the same settings.
    ///
    /// Time must continue from the same origin: use a clock that runs through the sleep.
    ///
    /// Any number is a valid state. A damaged state, or one from other settings, may at first grant
    /// fewer or more permits than the saved limiter would have, but no more than a fresh window.
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

    /// Goes on with the state of `before`, a limiter with other settings. `now` is the present.
    ///
    /// Permits that are taken stay taken. If more are taken than the limit, every request is denied
    /// until the window ends, also if the limit is raised again before. The window keeps its end if
    /// the period and the wait are the same; otherwise a new window begins at `now`, with the count
    /// of the old one. A wait keeps its end, but ends no later than the longer of this limiter's
    /// period and wait, and its [`staleness`](Self::timing), after `now`: its word has no room
    /// for a later end.
    ///
    /// For [`KeyedArray::move_to`](crate::KeyedArray::move_to). No other call may work on either
    /// limiter in the meantime: what it does may be lost.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{CooldownWindow, Timestamp};
    /// let window = |limit| CooldownWindow::new(limit, Duration::from_secs(60), None);
    /// let (before, after) = (window(10), window(15));
    /// let now = Timestamp::from_secs(9);
    /// let _ = before.try_acquire_at(now, 4)?;
    /// after.go_on_from(&before, now);
    /// assert_eq!(after.available_at(now), 11);
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    pub fn go_on_from(&self, before: &Self, now: Timestamp) {
        let state = before.state.load(Relaxed);
        let (count, end) = before.split(state);
        let Started { layout, grid } = &before.started;
        let position = grid.index(now);
        // The instant of a stamp in the state. Rounded up to a tick of this limiter below.
        let instant = |stamp| {
            let ahead = -layout.distance(layout.stamp(position), stamp);
            let at = position
                .checked_add_signed(ahead)
                .and_then(|at| grid.start(at));
            at.unwrap_or(now)
        };
        let is_same = (self.period(), self.wait()) == (before.period(), before.wait());
        let phase = before.phase(layout.stamp(position), state);
        let is_open = matches!(phase, Phase::Window { .. } | Phase::TooLate);
        let begins = is_open && !is_same;
        let next = if begins {
            self.started.end(now, self.period.into())
        } else {
            // A later end would count as one that has passed.
            let longest = self.wait().unwrap_or_default().max(self.period());
            let last = now
                .saturating_add(longest)
                .saturating_add(self.span_of(self.started.layout.staleness()));
            self.started.end(instant(end).min(last), 0)
        };
        // The word has no room for a count beyond the limit. If the count were cut, a later limit
        // would grant again what is cut off.
        let next = if count == before.mark() || count > self.limit() {
            next + self.mark()
        } else if begins {
            self.with_newest(self.started.stamp(now), next) + count
        } else {
            let offset = (state & Into::<u64>::into(before.newest)) << before.shift;
            let newest = instant(before.start(end).wrapping_add(offset) & W::MASK);
            self.with_newest(self.started.stamp(newest.max(now)), next) + count
        };
        self.state.store(next, Relaxed);
    }

    fn span_of(&self, positions: u64) -> Duration {
        saturating_duration(u128::from(positions) * u128::from(self.started.grid.step()))
    }

    /// Returns the mark that replaces the count in a wait.
    #[inline(always)]
    fn mark(&self) -> u64 {
        self.started.layout.limit()
    }

    /// Returns the count and the end in `state`.
    #[inline(always)]
    fn split(&self, state: u64) -> (u64, u64) {
        let newest: u64 = self.newest.into();
        self.started.layout.split(state & !newest)
    }

    /// Returns the meaning of `state` at the position `stamp`.
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
    fn take<O: Observer>(&self, now: Timestamp, n: u32, seen: O) -> Result<Receipt, Denied> {
        if u64::from(n) > self.limit() {
            // The limit is less than `n`, so it fits in a `u32`.
            return Err(Denied::ExceedsCapacity {
                permits: n,
                capacity: self.limit() as u32,
            });
        }
        let (stamp, state) = (self.started.stamp(now), self.state.load(Relaxed));
        match self.phase(stamp, state) {
            Phase::Waiting | Phase::TooLate => {
                let denied = Denied::Exhausted { now, permits: n };
                seen.observe(move || self.detail(state, now, Err(denied)));
                return Err(denied);
            }
            // The usual case comes first.
            Phase::Window { count }
                if count > 0 && n > 0 && count + u64::from(n) <= self.limit() =>
            {
                let next = self.with_newest(stamp, state) + u64::from(n);
                if self
                    .state
                    .compare_exchange_weak(state, next, Relaxed, Relaxed)
                    .is_ok()
                {
                    seen.observe(move || self.detail(next, now, Ok(())));
                    let end = self.started.layout.split(next).1;
                    return Ok(Receipt::dated(end, now.as_nanos()));
                }
            }
            Phase::Over | Phase::Window { .. } => {}
        }
        self.take_slowly(now, n, stamp, state, seen)
    }

    /// Takes, or starts a window or a wait. `state` is what the caller has read.
    #[cold]
    #[inline(never)]
    fn take_slowly<O: Observer>(
        &self,
        now: Timestamp,
        n: u32,
        stamp: u64,
        mut state: u64,
        seen: O,
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
                    let denied = Denied::Exhausted { now, permits: n };
                    seen.observe(move || self.detail(state, now, Err(denied)));
                    return Err(denied);
                }
            };
            if n > 0 {
                let written = self
                    .state
                    .compare_exchange_weak(state, next, Relaxed, Relaxed);
                if let Err(newer) = written {
                    state = newer;
                    continue;
                }
            }
            // A probe writes nothing.
            let left = if n > 0 { next } else { state };
            return if granted {
                seen.observe(move || self.detail(left, now, Ok(())));
                let end = self.started.layout.split(next).1;
                Ok(Receipt::dated(end, now.as_nanos()))
            } else {
                let denied = Denied::Exhausted { now, permits: n };
                seen.observe(move || self.detail(left, now, Err(denied)));
                Err(denied)
            };
        }
    }

    /// Returns the start of the window that ends at `end`.
    #[inline(always)]
    fn start(&self, end: u64) -> u64 {
        end.wrapping_sub(self.period.into()) & W::MASK
    }

    /// Returns the state in which a request at `now` restarts the window of `state`, whose permits
    /// have all been refunded. If the window would not end later, returns `state` with the request
    /// in its window. An end never moves back, so that a stale timestamp finds no room between two
    /// windows.
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

    /// Returns `state` after a grant at the position `stamp` in its window: `newest` is raised to
    /// it.
    #[inline(always)]
    fn with_newest(&self, stamp: u64, state: u64) -> u64 {
        let offset = stamp.wrapping_sub(self.start(self.split(state).1)) & W::MASK;
        // A stale timestamp may be before the window.
        let offset = if offset < self.period.into() {
            offset
        } else {
            0
        };
        let newest = self.newest.into();
        state + ((offset >> self.shift) & newest).saturating_sub(state & newest)
    }

    /// Returns the state of a wait that a request at `now` starts in the window of `state`.
    fn waiting(&self, now: Timestamp, state: u64) -> u64 {
        let (_, end) = self.split(state);
        let Some(wait) = self.wait else {
            return end + self.mark();
        };
        let layout = &self.started.layout;
        let newest: u64 = self.newest.into();
        let newest = self.start(end).wrapping_add((state & newest) << self.shift) & W::MASK;
        let from = self.started.end(now, 0);
        // If the word has wrapped, the window may seem further ahead than the staleness allows.
        let late = layout
            .ahead(newest, from)
            .unwrap_or(0)
            .min(layout.stamp(layout.staleness()));
        let from = from.wrapping_add(late);
        (from.wrapping_add(wait.into()) & W::MASK) + self.mark()
    }

    /// Returns the permits that `state` leaves at `now`.
    fn room(&self, state: u64, now: Timestamp) -> u64 {
        match self.phase(self.started.stamp(now), state) {
            Phase::Over => self.limit(),
            Phase::Window { count } => self.limit() - count,
            Phase::Waiting | Phase::TooLate => 0,
        }
    }

    /// Returns what goes with a decision at `now` that left `state`.
    fn detail(&self, state: u64, now: Timestamp, decision: Result<(), Denied>) -> Detail {
        Detail {
            now,
            decision,
            available: self.room(state, now),
            capacity: self.limit(),
            time_to_fill: Some(self.period()),
            full_again: self.due(state, now, self.limit()),
            retry: retry_of(decision, now, |denied| match denied {
                Denied::Exhausted { now, permits } => self.due(state, now, permits.max(1).into()),
                _ => Retry::Never,
            }),
        }
    }

    /// Returns when there is room for `wanted` permits, at most the limit.
    #[inline]
    fn due(&self, state: u64, now: Timestamp, wanted: u64) -> Retry {
        let Started { layout, grid } = &self.started;
        let position = grid.index(now);
        let stamp = layout.stamp(position);
        let (count, end) = self.split(state);
        let wait = match self.phase(stamp, state) {
            Phase::Over => 0,
            Phase::Window { count } if count + wanted <= self.limit() => 0,
            // A timestamp that is too stale need not wait for the end if the window has room.
            Phase::TooLate if count + wanted <= self.limit() => signed(layout.too_late(stamp, end)),
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

    /// Returns when to retry behind other requests. A function of its own, so that a request that
    /// waits behind no other pays nothing for it.
    #[cold]
    #[inline(never)]
    fn retry_behind(&self, now: Timestamp, permits: u32) -> Retry {
        self.come_in(now, permits).map_or(Retry::Never, Retry::At)
    }

    /// Returns the earliest instant at which there can have been room for `permits` permits, more
    /// than the limit. Successive starts of windows count as one wait apart (a request may exceed
    /// the limit immediately) or one period, whichever is shorter.
    fn come_in(&self, now: Timestamp, permits: u32) -> Option<Timestamp> {
        let Started { layout, grid } = &self.started;
        let state = self.state.load(Relaxed);
        let (count, end) = self.split(state);
        let period = self.period.into();
        let apart = self.wait.map_or(period, |wait| period.min(wait.into()));
        let position = grid.index(now);
        let stamp = layout.stamp(position);
        let until = |word| layout.distance(stamp, self.split(word).1).unsigned_abs();
        // The permits left in the open window, and the time to its end, or to the end of the wait
        // that a request at `then` starts by exceeding the limit.
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

    /// Refunds `n` permits if the window in which they were counted is still open, and its limit
    /// has not been exceeded. Returns how many were refunded.
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
    fn decide(&self, ask: Ask<'_>) -> Answer {
        let (now, n) = (ask.now(), ask.permits());
        match ask.detail() {
            Some(seen) if ask.is_look() => {
                let detail = self.explain(now, n);
                seen.set(Some(detail));
                detail.decision.into()
            }
            None if ask.is_look() => ask.looked(self.available_at(now), || self.limit()),
            Some(seen) => self.take(now, n, seen).into(),
            None => self.take(now, n, ()).into(),
        }
    }

    /// Refunds all permits until the limit is exceeded or a newer window starts; then none. A
    /// receipt older than about half the [`horizon`](Self::timing) also refunds none. If all
    /// permits taken in a window are refunded, the next request restarts the window.
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

    /// For more than the limit, behind other requests, two starts of windows count as one period or
    /// one wait apart, whichever is shorter. Without a wait, the result is exact. With a wait it is
    /// a lower bound, as it depends on when a request exceeds the limit.
    fn retry(&self, denied: Denied) -> Retry {
        let Denied::Exhausted { now, permits } = denied else {
            return Retry::Never;
        };
        if u64::from(permits) > self.limit() {
            return self.retry_behind(now, permits);
        }
        self.due(self.state.load(Relaxed), now, permits.max(1).into())
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
        self.take(now, n, ())
    }
}

impl<W: Word> CooldownWindow<W> {
    fn explain(&self, now: Timestamp, n: u32) -> Detail {
        let state = self.state.load(Relaxed);
        Detail::look(now, n, |decision| self.detail(state, now, decision))
    }
}

replenishing!([W: Word] CooldownWindow<W>);

/// The meaning of a state at a position.
enum Phase {
    /// No window is open and no wait is in force: a request starts a window.
    Over,
    /// A window is open, with `count` permits taken in it.
    Window { count: u64 },
    /// A wait is in force, because the limit was exceeded.
    Waiting,
    /// A window seems to be open, but the position is older than the staleness allows.
    TooLate,
}

/// Builds a [`CooldownWindow`]. Created by [`CooldownWindow::builder`].
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
///     "the wait is over, inside the period"
/// );
/// # Ok::<(), portcullis_core::SettingsError>(())
/// ```
pub type CooldownWindowBuilder = Builder<CooldownWindow>;

/// The settings of a [`CooldownWindow`] beside its timing.
#[derive(Clone, Copy, Debug)]
pub struct CooldownWindowSettings {
    limit: u64,
    period: Duration,
    wait: Option<Duration>,
}

impl Sealed for CooldownWindow {
    type Settings = CooldownWindowSettings;
}

impl Ticks for CooldownWindow {}

impl Builder<CooldownWindow> {
    /// Sets the wait, 1 ns to 292 years: for this long, every request is denied after the limit is
    /// exceeded. The wait may be shorter or longer than the period. Default: the rest of the
    /// period.
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
        self.settings.wait = Some(wait);
        self
    }

    const_unless_loom! {
        /// Builds the limiter on the target's native word.
        ///
        /// # Errors
        ///
        /// [`SettingsError`] names the setting and its bound:
        ///
        /// - the limit is zero, or so large that it leaves too few bits for the end, together with
        ///   the bits that a short wait takes;
        /// - the period, the wait or the tick is outside of 1 ns to 292 years;
        /// - the staleness is shorter than 1 s, or too long for the word.
        ///
        /// ```
        /// # use core::time::Duration;
        /// # use portcullis_core::{CooldownWindow, SettingsError};
        /// # use portcullis_core::builder::Setting;
        /// let refused = CooldownWindow::builder(1, Duration::ZERO).build().unwrap_err();
        /// assert_eq!(refused, SettingsError::Zero { setting: Setting::Period });
        /// ```
        pub const fn build(self) -> Result<CooldownWindow, SettingsError> {
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
        /// # use portcullis_core::CooldownWindow;
        /// # use core::time::Duration;
        /// let limit: CooldownWindow<u32> =
        ///     CooldownWindow::builder(1_000, Duration::from_secs(1)).build_on()?;
        /// assert_eq!(limit.timing().tick, Duration::from_millis(10));
        /// # Ok::<(), portcullis_core::SettingsError>(())
        /// ```
        pub const fn build_on<W: Word>(self) -> Result<CooldownWindow<W>, SettingsError> {
            if self.settings.limit == 0 {
                return Err(SettingsError::Zero { setting: Setting::Limit });
            }
            let period = match settings::nanos(self.settings.period, Setting::Period) {
                Ok(nanos) => nanos,
                Err(error) => return Err(error),
            };
            let wait = match self.settings.wait {
                None => period,
                Some(wait) => match settings::nanos(wait, Setting::Wait) {
                    Ok(nanos) => nanos,
                    Err(error) => return Err(error),
                },
            };
            let tick = match self.timing.tick_nanos() {
                Ok(nanos) => nanos,
                Err(error) => return Err(error),
            };
            let staleness = match self.timing.staleness_nanos() {
                Ok(nanos) => nanos,
                Err(error) => return Err(error),
            };
            // One more count, for the mark.
            let counts = self.settings.limit.saturating_add(1);
            let started = match Started::new(counts, period, wait, tick, staleness, self.timing.origin) {
                Ok(started) => started,
                Err(SettingsError::TooLarge { setting: Setting::Limit, max }) => {
                    return Err(SettingsError::TooLarge { setting: Setting::Limit, max: max.saturating_sub(1) });
                }
                Err(error) => return Err(error),
            };
            let step = started.grid.step();
            let ticks = period.div_ceil(step);
            let newest = unbounded_shr(u64::MAX, u64::BITS - offset_bits(ticks, wait.div_ceil(step)));
            Ok(CooldownWindow {
                // No window is open: the last one ended with the origin.
                state: AtomicWord::new(started.nothing_since(self.timing.origin)),
                period: started.span(period),
                wait: if self.settings.wait.is_some() { Some(started.span(wait)) } else { None },
                newest: narrow(newest << bits(counts)),
                shift: bits(ticks - 1),
                started,
            })
        }
    }
}
