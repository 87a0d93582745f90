//! State: one word that decides, and a ring that remembers which permits to return. Both have the
//! layout of [`stamped`](crate::word::stamped).
//!
//! ```text
//! state     epoch | total    the newest segment with a grant, and all permits of its window
//! ring[i]     tag | count    the permits granted in segment `tag`; tag = i (mod the ring's length)
//! ```
//!
//! An epoch is a segment's index plus the ring's length, so the zero state is older than any epoch.
//! There are two invariants:
//!
//! - `total` is at least the sum of the counts.
//! - A thread that reads epoch `e` in the state finds each slot of the ring tagged with a segment
//!   at least as new as the newest one up to `e` that belongs to the slot.
//!
//! There are three transitions, each one compare-exchange or fetch-add:
//!
//! - *take* at the state's epoch: `total += n`, then `ring[epoch].count += n`. The add always meets
//!   a tag of that epoch or a newer one. The permits of a late add into a newer segment return
//!   later than they could, never earlier.
//! - *re-tag* a slot whose segment has left the window: `(old, count) -> (new, 0)`. The thread
//!   whose exchange succeeds owes `count` to the total.
//! - *roll*: after re-tagging all such slots, `(epoch, total) -> (max(epoch, e), total - owed)`.
//!
//! Until a roll has paid what it owes, `total` is too high: other requests may be denied, but never
//! wrongly granted.
//!
//! The limit is in a separate word. A take reads it once. If the limit was lowered, the total may
//! exceed it.

use core::time::Duration;

use crate::leases::lease::Lease;
use crate::limiter::denied::{Denied, Retry};
use crate::limiter::detail::{Detail, Observer, retry_of};
use crate::limiter::queue_limiter::replenishing;
use crate::limiter::receipt::Receipt;
use crate::limiter::{
    Answer, Ask, Back, Hints, Idle, Limiter, LimiterId, Read, Reading, Returned, When,
};
use crate::newer::{cold_path, signed};
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use crate::sync::const_unless_loom;
use crate::time::grid::Grid;
use crate::time::timestamp::{Timestamp, saturating_duration};
use crate::time::timing::Timing;
use crate::word::builder::Builder;
use crate::word::builder::sealed::Sealed;
use crate::word::settings::{Setting, SettingsError};
use crate::word::stamped::Stamped;
use crate::word::{AtomicWord, NativeWord, Word, settings};

/// A sliding window in segments: grants at most `limit` permits in any `segments` consecutive
/// segments of a window.
///
/// The segment of an instant is `floor((now - origin) * segments / window)`. This is exact even if
/// the segments do not divide the window. `MAX_SEGMENTS` is the length of the ring in the limiter,
/// and so the largest number of segments. The number of segments is a setting.
///
/// **Bound.** Any `segments` consecutive segments admit at most `limit` permits. A span of one
/// window's length that starts within a segment touches one more segment. In the worst case it
/// admits twice the limit. In [strict mode](SlidingWindowBuilder::strict) *any* span of one
/// window's length admits at most `limit` permits: a permit returns one segment later.
///
/// **Exact.** A grant counts in the segment that contains the later of its own `now` and the newest
/// `now` granted. Retry times are exact to the nanosecond.
///
/// **Cost.** A grant is one compare-exchange and one fetch-add. The first grant in a new segment
/// also *rolls* the ring: it takes back the counts of the segments that have left the window, with
/// one compare-exchange for each of them, and one more. A denial writes nothing, unless it lost a
/// race for the first permits of a new segment: then it writes at most the roll. While a thread
/// rolls the ring, other threads may be denied permits that are available. Lock-free. (If a thread
/// is terminated, not just paused, in the middle of a grant or a roll, the permits that it has not
/// yet returned are lost.)
///
/// **Live limit.** The limit can be [changed](Self::set_limit) while other threads take, up to a
/// maximum. The window and its segments are fixed. Takes cost the same as with a fixed limit.
///
/// **Ordering.** Takes acquire and rolls release, so that a count always goes into a slot that was
/// re-tagged before. See `docs/memory-ordering.md`.
///
/// **Horizon.** As for a [`FixedWindow`](crate::FixedWindow), counted in segments. While a limiter
/// reports too few available permits, its retry times may be later than necessary.
///
/// Source: the sliding window limiter of the .NET rate limiting proposal.
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::{SlidingWindow, Timestamp};
///
/// // At most 10 permits in 3 s, in segments of 1 s.
/// static LIMIT: SlidingWindow<3> = SlidingWindow::new(10, Duration::from_secs(3), 3);
///
/// let at = Timestamp::from_secs;
/// assert!(LIMIT.try_acquire_at(at(0), 3).is_ok());
/// assert!(LIMIT.try_acquire_at(at(1), 4).is_ok());
/// assert!(LIMIT.try_acquire_at(at(2), 3).is_ok());
/// assert!(LIMIT.try_acquire_at(at(2), 1).is_err());
/// // The first three permits have left the window.
/// assert!(LIMIT.try_acquire_at(at(3), 1).is_ok());
/// assert_eq!(LIMIT.available_at(at(3)), 2);
/// ```
#[derive(Debug)]
pub struct SlidingWindow<const MAX_SEGMENTS: usize, W: Word = NativeWord> {
    state: AtomicWord<W>,
    /// Laid out for the largest limit that may be set.
    layout: Stamped<W>,
    limit: AtomicWord<W>,
    /// `window / segments` in lowest terms: `scale` segments are one step of the grid.
    grid: Grid,
    scale: u64,
    /// The slots in use. The index of a slot is an epoch modulo the ring's length.
    slots: Grid,
    strict: bool,
    ring: [AtomicWord<W>; MAX_SEGMENTS],
}

impl<const MAX_SEGMENTS: usize> SlidingWindow<MAX_SEGMENTS> {
    const_unless_loom! {
        /// Creates a limiter that grants at most `limit` permits (at least 1) in any `segments`
        /// consecutive segments (1 to `MAX_SEGMENTS`) of a `window`. A window is at most 292 years
        /// long, and a segment at least 1 ns.
        ///
        /// # Panics
        ///
        /// If [`SlidingWindowBuilder::build`] would return an error. In a constant or a static,
        /// this is a compile error.
        ///
        /// ```
        /// # use portcullis_core::SlidingWindow;
        /// # use core::time::Duration;
        /// static LIMIT: SlidingWindow<8> = SlidingWindow::new(100, Duration::from_secs(60), 6);
        /// ```
        pub const fn new(limit: u64, window: Duration, segments: u32) -> Self {
            match Self::builder(limit, window, segments).build() {
                Ok(limiter) => limiter,
                Err(error) => error.refuse(),
            }
        }
    }

    /// Returns a builder for a limiter of at most `limit` permits in any `segments` consecutive
    /// segments of a `window`.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{SlidingWindow, Timestamp};
    /// let limit = SlidingWindow::<8>::builder(5, Duration::from_secs(1), 8).build()?;
    /// assert_eq!(limit.available_at(Timestamp::ZERO), 5);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn builder(
        limit: u64,
        window: Duration,
        segments: u32,
    ) -> SlidingWindowBuilder<MAX_SEGMENTS> {
        Builder::new(SlidingWindowSettings {
            limit,
            window,
            segments,
            max_limit: None,
            strict: false,
        })
    }
}

impl<const MAX_SEGMENTS: usize, W: Word> SlidingWindow<MAX_SEGMENTS, W> {
    /// Takes `n` permits at `now`.
    ///
    /// With `n = 0` it takes nothing, and is granted or denied as a request for 1 permit would be.
    ///
    /// The lease does nothing when dropped: permits return when their segment leaves the window.
    ///
    /// # Errors
    ///
    /// [`Denied::Exhausted`] if fewer than `n` permits are available, or
    /// [`Denied::ExceedsCapacity`] if `n` is more than the limit.
    ///
    /// # Cost
    ///
    /// Two atomic writes on success. Once per segment, one more for each segment that has left the
    /// window. A denial reads the state, and in a new segment the ring.
    ///
    /// ```
    /// # use portcullis_core::{Retry, SlidingWindow, Timestamp};
    /// # use core::time::Duration;
    /// let limit = SlidingWindow::<4>::new(2, Duration::from_secs(4), 4);
    /// limit.try_acquire_at(Timestamp::from_secs(1), 2).unwrap();
    /// let denied = limit
    ///     .try_acquire_at(Timestamp::from_secs(3), 1)
    ///     .unwrap_err();
    /// assert_eq!(denied.retry(&limit), Retry::At(Timestamp::from_secs(5)));
    /// ```
    #[inline]
    pub fn try_acquire_at(&self, now: Timestamp, n: u32) -> Result<Lease<&Self>, Denied> {
        Lease::try_acquire_at(self, now, n)
    }

    /// Returns the permits that can be taken at `now`. Reads the ring.
    ///
    /// ```
    /// # use portcullis_core::{SlidingWindow, Timestamp};
    /// # use core::time::Duration;
    /// let limit = SlidingWindow::<4>::new(2, Duration::from_secs(4), 4);
    /// assert_eq!(limit.available_at(Timestamp::ZERO), 2);
    /// ```
    pub fn available_at(&self, now: Timestamp) -> u64 {
        self.within(self.limit(), now)
    }

    /// Returns the permits that are taken at `now`: more than the limit if this was
    /// [lowered](Self::set_limit) since. Reads the ring.
    ///
    /// ```
    /// # use portcullis_core::{SlidingWindow, Timestamp};
    /// # use core::time::Duration;
    /// let limit = SlidingWindow::<4>::new(9, Duration::from_secs(4), 4);
    /// limit.try_acquire_at(Timestamp::ZERO, 7)?;
    /// limit.set_limit(2).unwrap();
    /// assert_eq!(limit.taken_at(Timestamp::ZERO), 7);
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    pub fn taken_at(&self, now: Timestamp) -> u64 {
        self.max_limit() - self.within(self.max_limit(), now)
    }

    /// Returns whether all permits are available at `now`, and since when.
    ///
    /// ```
    /// # use portcullis_core::{SlidingWindow, Timestamp};
    /// # use portcullis_core::limiter::Idle;
    /// # use core::time::Duration;
    /// let limit = SlidingWindow::<4>::new(2, Duration::from_secs(4), 4);
    /// limit.try_acquire_at(Timestamp::from_secs(1), 1).unwrap();
    /// assert_eq!(limit.idle_at(Timestamp::from_secs(4)), Idle::InUse);
    /// assert_eq!(
    ///     limit.idle_at(Timestamp::from_secs(9)),
    ///     Idle::Since(Timestamp::from_secs(5))
    /// );
    /// ```
    pub fn idle_at(&self, now: Timestamp) -> Idle {
        let limit = self.limit();
        if self.within(limit, now) < limit {
            return Idle::InUse;
        }
        let state = self.state.load(Relaxed);
        let epoch = self.epoch(now);
        // The newest grant is in the state's epoch. It leaves the window one ring length later.
        match epoch
            .checked_add_signed(-self.passed(epoch, state))
            .and_then(|newest| newest.checked_add(self.slots.step()))
        {
            Some(left) if left <= epoch => self.start(left).map_or(Idle::Now, Idle::Since),
            _ => Idle::Now,
        }
    }

    /// Returns the current limit: the permits of a window.
    ///
    /// ```
    /// # use portcullis_core::SlidingWindow;
    /// # use core::time::Duration;
    /// assert_eq!(
    ///     SlidingWindow::<4>::new(2, Duration::from_secs(4), 4).limit(),
    ///     2
    /// );
    /// ```
    pub fn limit(&self) -> u64 {
        self.limit.load(Relaxed)
    }

    /// Changes the limit, 1 to [`max_limit`](SlidingWindowBuilder::max_limit), and returns the old
    /// one.
    ///
    /// Permits counted in the window stay counted. If they are more than the new limit, nothing is
    /// granted until enough of them have left the window. The window's length and its segments
    /// cannot be changed, because the ring is built for them.
    ///
    /// Each take reads the limit once, when it begins. A take that runs concurrently with the
    /// change may be granted what the old limit leaves, even after this call has returned. The
    /// window then holds no more than the old limit. A take that happens after this call has
    /// returned is granted only what the new limit leaves.
    ///
    /// # Errors
    ///
    /// [`SettingsError`] if `limit` is zero or more than `max_limit`. Nothing changes then.
    ///
    /// # Cost
    ///
    /// One atomic exchange, in a separate word: takes do not fail because of it. Lock-free.
    ///
    /// ```
    /// # use portcullis_core::{SlidingWindow, Timestamp};
    /// # use core::time::Duration;
    /// let limit = SlidingWindow::<4>::builder(2, Duration::from_secs(4), 4)
    ///     .max_limit(9)
    ///     .build()?;
    /// let now = Timestamp::ZERO;
    /// assert_eq!(limit.set_limit(5)?, 2);
    /// assert!(limit.try_acquire_at(now, 4).is_ok());
    /// assert_eq!(limit.set_limit(3)?, 5);
    /// assert_eq!(limit.available_at(now), 0);
    /// assert_eq!(limit.available_at(Timestamp::from_secs(4)), 3);
    /// assert!(limit.set_limit(10).is_err());
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub fn set_limit(&self, limit: u64) -> Result<u64, SettingsError> {
        if limit == 0 {
            return Err(SettingsError::Zero {
                setting: Setting::Limit,
            });
        }
        if limit > self.layout.limit() {
            return Err(SettingsError::TooLarge {
                setting: Setting::Limit,
                max: self.layout.limit(),
            });
        }
        let mut old = self.limit.load(Relaxed);
        // Relaxed: a limit carries no data. Whether another call happens after this one is up to
        // other accesses.
        while let Err(newer) = self
            .limit
            .compare_exchange_weak(old, limit, Relaxed, Relaxed)
        {
            old = newer;
        }
        Ok(old)
    }

    /// Returns the largest limit that may be [set](Self::set_limit).
    ///
    /// ```
    /// # use portcullis_core::SlidingWindow;
    /// # use core::time::Duration;
    /// let limit = SlidingWindow::<4>::builder(2, Duration::from_secs(4), 4)
    ///     .max_limit(9)
    ///     .build()?;
    /// assert_eq!((limit.limit(), limit.max_limit()), (2, 9));
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub fn max_limit(&self) -> u64 {
        self.layout.limit()
    }

    /// Returns the length of a window, exactly as set.
    ///
    /// ```
    /// # use portcullis_core::SlidingWindow;
    /// # use core::time::Duration;
    /// let limit = SlidingWindow::<3>::new(2, Duration::from_secs(1), 3);
    /// assert_eq!(limit.window(), Duration::from_secs(1));
    /// ```
    pub fn window(&self) -> Duration {
        // `step / scale` is `window / segments` in lowest terms.
        let steps = u64::from(self.segments()) / self.scale;
        Duration::from_nanos(self.grid.step() * steps)
    }

    /// Returns the length of a segment, rounded down to whole nanoseconds. The limiter itself does
    /// not round: its segments divide the window exactly.
    ///
    /// ```
    /// # use portcullis_core::SlidingWindow;
    /// # use core::time::Duration;
    /// let limit = SlidingWindow::<3>::new(2, Duration::from_secs(1), 3);
    /// assert_eq!(limit.segment(), Duration::from_nanos(333_333_333));
    /// ```
    pub fn segment(&self) -> Duration {
        self.span(1)
    }

    /// Returns whether any span of one window's length admits at most the limit: see
    /// [`strict`](SlidingWindowBuilder::strict).
    ///
    /// ```
    /// # use portcullis_core::SlidingWindow;
    /// # use core::time::Duration;
    /// let limit = SlidingWindow::<4>::new(2, Duration::from_secs(4), 4);
    /// assert!(!limit.is_strict());
    /// ```
    pub const fn is_strict(&self) -> bool {
        self.strict
    }

    /// Returns the number of segments in a window.
    ///
    /// ```
    /// # use portcullis_core::SlidingWindow;
    /// # use core::time::Duration;
    /// let strict = SlidingWindow::<8>::builder(2, Duration::from_secs(4), 4)
    ///     .strict()
    ///     .build()?;
    /// assert_eq!(strict.segments(), 4);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub fn segments(&self) -> u32 {
        self.slots.step() as u32 - u32::from(self.strict)
    }

    /// Returns how the limiter counts time: see [`Timing`].
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::SlidingWindow;
    /// let timing = SlidingWindow::<4>::new(3, Duration::from_secs(1), 4).timing();
    /// assert_eq!(timing.tick, Duration::from_millis(250), "a segment");
    /// assert!(timing.horizon > 4 * timing.staleness);
    /// ```
    pub fn timing(&self) -> Timing {
        Timing {
            tick: self.span(1),
            staleness: self.span(self.layout.staleness()),
            horizon: self.span(self.layout.range()),
            origin: self.grid.origin(),
        }
    }

    /// As [`span`](Self::span), rounded up.
    fn span_up(&self, segments: u64) -> Duration {
        let nanos = u128::from(segments) * u128::from(self.grid.step());
        saturating_duration(nanos.div_ceil(u128::from(self.scale)))
    }

    fn span(&self, segments: u64) -> Duration {
        let nanos = u128::from(segments) * u128::from(self.grid.step()) / u128::from(self.scale);
        saturating_duration(nanos)
    }

    /// Returns the index of the segment that contains `now`, plus the ring's length.
    #[inline(always)]
    fn epoch(&self, now: Timestamp) -> u64 {
        let (whole, rest) = self.grid.split(now);
        let within = if self.scale == 1 {
            0
        } else {
            self.grid.divide(rest * self.scale).0
        };
        // Saturating: if segments are 1 ns long, the last few before `Timestamp::MAX` are one.
        (whole * self.scale + within).saturating_add(self.slots.step())
    }

    /// Returns the first instant of an epoch, if there is one.
    fn start(&self, epoch: u64) -> Option<Timestamp> {
        let segment = u128::from(epoch.checked_sub(self.slots.step())?);
        let since = (segment * u128::from(self.grid.step())).div_ceil(u128::from(self.scale));
        let nanos = u64::try_from(since)
            .ok()?
            .checked_add(self.grid.origin().as_nanos())?;
        Some(Timestamp::from_nanos(nanos))
    }

    /// Returns by how many epochs `epoch` is after the state's. Negative if it belongs to a stale
    /// `now`.
    fn passed(&self, epoch: u64, state: u64) -> i64 {
        self.layout
            .distance(self.layout.stamp(epoch), self.layout.split(state).1)
    }

    /// Returns the permits available at `now` under `limit`.
    #[inline]
    fn within(&self, limit: u64, now: Timestamp) -> u64 {
        self.room(self.state.load(Acquire), limit, self.epoch(now))
    }

    /// Returns the permits that `state` leaves at `epoch` under `limit`.
    fn room(&self, state: u64, limit: u64, epoch: u64) -> u64 {
        let total = self.total(self.layout.stamp(epoch), state);
        let expired = if self.passed(epoch, state) > 0 {
            self.expired(epoch)
        } else {
            0
        };
        limit.saturating_sub(total.saturating_sub(expired))
    }

    /// Returns when `wanted` permits are available.
    #[inline(always)]
    fn due(&self, now: Timestamp, limit: u64, wanted: u64) -> Retry {
        let (windows, wanted) = if wanted <= limit {
            (0, wanted)
        } else {
            whole_windows(wanted, limit)
        };
        let enough = self.within(limit, now) >= wanted;
        if enough && windows == 0 {
            return Retry::At(now);
        }
        let state = self.state.load(Acquire);
        let total = self.layout.split(state).0;
        // Starting at the later of `now` and the state's epoch, one segment after the other leaves
        // the window.
        let epoch = self.epoch(now);
        let late = (-self.passed(epoch, state)).max(0);
        let Some(epoch) = epoch.checked_add_signed(late) else {
            return Retry::Never;
        };
        // Permits taken as soon as they return leave the window one ring length later, and return
        // again.
        let start =
            |epoch: u64| self.start(epoch.checked_add(windows.checked_mul(self.slots.step())?)?);
        if enough {
            return start(epoch).map_or(Retry::Never, Retry::At);
        }
        let mut remaining = total.saturating_sub(self.expired(epoch));
        for ahead in 1..=self.slots.step() {
            let Some(next) = epoch.checked_add(ahead) else {
                return Retry::Never;
            };
            if let Some(slot) = self.ring.get(self.slots.divide(next).1 as usize) {
                let leaves = self.layout.stamp(next);
                let (count, tag) = self.layout.split(slot.load(Relaxed));
                // An outdated slot has already been subtracted.
                let counted = self.layout.distance(leaves, tag) == signed(self.slots.step());
                remaining = remaining.saturating_sub(if counted { count } else { 0 });
            }
            if remaining + wanted <= limit || ahead == self.slots.step() {
                return start(next).map_or(Retry::Never, Retry::At);
            }
        }
        Retry::Never
    }

    /// Returns the total in the state, or `u64::MAX` for a `now` that is too stale.
    #[inline(always)]
    fn total(&self, stamp: u64, state: u64) -> u64 {
        let (total, at) = self.layout.split(state);
        if self.layout.too_late(stamp, at) > 0 {
            u64::MAX
        } else {
            total
        }
    }

    /// Returns what goes with a decision at `now`, given the permits that it left `available` of
    /// `limit`.
    fn detail(
        &self,
        available: u64,
        limit: u64,
        now: Timestamp,
        decision: Result<(), Denied>,
    ) -> Detail {
        Detail {
            now,
            decision,
            available,
            capacity: limit,
            // In strict mode, the ring has one more segment.
            time_to_fill: Some(self.span_up(self.slots.step())),
            full_again: self.due(now, limit, limit),
            retry: retry_of(decision, now, |denied| self.retry(denied)),
        }
    }

    #[inline(always)]
    fn take<O: Observer>(&self, now: Timestamp, n: u32, seen: O) -> Result<Receipt, Denied> {
        // Read once, so that one limit judges the whole call.
        let limit = self.limit();
        if u64::from(n) > limit {
            // The limit is less than `n`, so it fits a `u32`.
            return Err(Denied::ExceedsCapacity {
                permits: n,
                capacity: limit as u32,
            });
        }
        let wanted = u64::from(n.max(1));
        // The largest total that leaves room. One comparison checks both the total and the epoch: a
        // word with another stamp differs from `stamp` by more than any total.
        let most = limit - wanted;
        let epoch = self.epoch(now);
        let (stamp, newest) = (self.layout.stamp(epoch), self.slots.divide(epoch).1);
        // Acquire: pairs with the release of the roll that set this epoch. So the add below meets
        // the slot that the roll re-tagged, and no slot that the roll has paid for counts as
        // expired again.
        let mut state = self.state.load(Acquire);
        loop {
            let (decides, slot) = if state.wrapping_sub(stamp) & W::MASK <= most {
                (epoch, newest)
            } else {
                cold_path();
                let total = self.total(stamp, state);
                let passed = self.passed(epoch, state);
                let expired = if passed > 0 { self.expired(epoch) } else { 0 };
                if total.saturating_sub(expired) > most {
                    let denied = Denied::Exhausted { now, permits: n };
                    let available = limit.saturating_sub(total.saturating_sub(expired));
                    seen.observe(move || self.detail(available, limit, now, Err(denied)));
                    return Err(denied);
                }
                if passed > 0 && n > 0 {
                    self.roll(epoch);
                    state = self.state.load(Acquire);
                    continue;
                }
                // A stale `now` counts in the newest segment.
                let decides = epoch.wrapping_add_signed(-passed);
                (decides, self.slots.divide(decides).1)
            };
            let receipt = Receipt::new(decides);
            if n == 0 {
                seen.observe(move || {
                    self.detail(self.room(state, limit, epoch), limit, now, Ok(()))
                });
                return Ok(receipt);
            }
            let Some(slot) = self.ring.get(slot as usize) else {
                return Err(Denied::Exhausted { now, permits: n });
            };
            // From this epoch on, stamps may repeat those of the round before. The state may then
            // bear the right stamp although the slot is outdated: by chance, or because a call for
            // an earlier epoch mistook the slot's tag for a newer one.
            if decides >= self.layout.first_ambiguous()
                && self
                    .outdated(slot.load(Relaxed), self.layout.stamp(decides))
                    .is_some()
            {
                cold_path();
                self.roll(decides);
                state = self.state.load(Acquire);
                continue;
            }
            // Relaxed on success: the compare-exchange continues the release sequence of the roll.
            // So an acquire load that reads the new value still pairs with the roll.
            match self
                .state
                .compare_exchange_weak(state, state + wanted, Relaxed, Acquire)
            {
                Ok(_) => {
                    // Release: pairs with the acquire of the re-tag, which must find the total
                    // already raised.
                    slot.fetch_add(wanted, Release);
                    seen.observe(move || {
                        let available = self.room(state + wanted, limit, epoch);
                        self.detail(available, limit, now, Ok(()))
                    });
                    return Ok(receipt);
                }
                Err(newer) => state = newer,
            }
        }
    }

    /// Returns the slots in use, each with the stamp of the newest segment up to `epoch` that
    /// belongs to the slot.
    #[inline(always)]
    fn targets(&self, epoch: u64) -> impl Iterator<Item = (&AtomicWord<W>, u64)> {
        let (length, newest) = (self.slots.step(), self.slots.divide(epoch).1);
        self.ring.iter().zip(0..length).map(move |(slot, index)| {
            let age = if index <= newest {
                newest - index
            } else {
                newest + length - index
            };
            (slot, self.layout.stamp(epoch.wrapping_sub(age)))
        })
    }

    /// Returns the count of `slot` if its tag is older than `target`.
    #[inline(always)]
    fn outdated(&self, slot: u64, target: u64) -> Option<u64> {
        let (count, tag) = self.layout.split(slot);
        self.layout.is_past(tag, target).then_some(count)
    }

    /// Returns the permits in slots whose segment has left the window that ends with `epoch`.
    /// Writes nothing.
    #[cold]
    #[inline(never)]
    fn expired(&self, epoch: u64) -> u64 {
        self.targets(epoch)
            .filter_map(|(slot, target)| self.outdated(slot.load(Relaxed), target))
            .sum()
    }

    /// Advances the state to `epoch` unless it is there or further, and returns the permits that
    /// have left the window.
    #[cold]
    #[inline(never)]
    fn roll(&self, epoch: u64) {
        let mut owed = 0;
        for (slot, target) in self.targets(epoch) {
            let mut seen = slot.load(Relaxed);
            while let Some(count) = self.outdated(seen, target) {
                // Acquire: pairs with the release of the add, so that the total has been raised by
                // everything that is owed.
                match slot.compare_exchange_weak(seen, target, Acquire, Relaxed) {
                    Ok(_) => {
                        owed += count;
                        break;
                    }
                    Err(newer) => seen = newer,
                }
            }
        }
        self.pay(owed, epoch);
    }

    /// Subtracts from the total the permits won from the ring, and advances the state to `epoch`
    /// unless it is there or further.
    fn pay(&self, owed: u64, epoch: u64) {
        let stamp = self.layout.stamp(epoch);
        let mut state = self.state.load(Relaxed);
        loop {
            let (total, at) = self.layout.split(state);
            let newest = if self.layout.ahead(stamp, at).is_some() {
                stamp
            } else {
                at
            };
            let rolled = newest | total.saturating_sub(owed);
            if rolled == state {
                return;
            }
            // Release: pairs with the acquire in `take`. The slots are re-tagged before the epoch
            // becomes visible.
            match self
                .state
                .compare_exchange_weak(state, rolled, Release, Relaxed)
            {
                Ok(_) => return,
                Err(newer) => state = newer,
            }
        }
    }

    /// Refunds `n` permits of the segment `epoch` if the ring still has that segment. Subtracts
    /// them first from the slot, so that no other call returns them, and then from the total.
    fn undo(&self, now: Timestamp, n: u32, epoch: u64) -> u32 {
        // The receipt holds the epoch in full width: stamps wrap, epochs do not.
        if self
            .layout
            .comes_around(self.epoch(now).saturating_sub(epoch))
        {
            return 0;
        }
        let stamp = self.layout.stamp(epoch);
        let Some(slot) = self.ring.get(self.slots.divide(epoch).1 as usize) else {
            return 0;
        };
        let mut seen = slot.load(Relaxed);
        loop {
            let (count, tag) = self.layout.split(seen);
            if tag != stamp || count < n.into() {
                return 0;
            }
            // Relaxed: continues the release sequence of the adds, for the thread that re-tags the
            // slot.
            match slot.compare_exchange_weak(seen, seen - u64::from(n), Relaxed, Relaxed) {
                Ok(_) => break,
                Err(newer) => seen = newer,
            }
        }
        self.pay(n.into(), epoch);
        n
    }
}

impl<const MAX_SEGMENTS: usize, W: Word> Limiter for SlidingWindow<MAX_SEGMENTS, W> {
    #[inline(always)]
    fn decide(&self, ask: Ask<'_>) -> Answer {
        if let When::Within(interval) = ask.when() {
            // Nothing but the segment of the time matters.
            if self.epoch(interval.earliest()) != self.epoch(interval.latest()) {
                return Answer::TimeMatters;
            }
        }
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

    /// Refunds all `n` permits if their segment is still in its slot of the ring; otherwise none.
    #[inline(always)]
    fn give_back(&self, back: Back<'_>) -> Returned {
        back.by_time(|now, n, receipt| {
            let refunded = self.undo(now, n, receipt.note());
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
        self.due(now, self.limit(), permits.max(1).into())
    }

    #[inline(always)]
    fn id(&self) -> Option<LimiterId> {
        LimiterId::of(self)
    }

    #[inline(always)]
    fn hints(&self) -> Hints {
        Hints::ONE_RECEIPT.within_intervals()
    }

    /// Beside [`decide`](Limiter::decide) for its cost: the answer is not converted.
    #[inline]
    fn take_at(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        self.take(now, n, ())
    }
}

impl<const MAX_SEGMENTS: usize, W: Word> SlidingWindow<MAX_SEGMENTS, W> {
    fn explain(&self, now: Timestamp, n: u32) -> Detail {
        let limit = self.limit();
        let available = self.within(limit, now);
        Detail::look(now, n, |decision| {
            self.detail(available, limit, now, decision)
        })
    }
}

replenishing!([const MAX_SEGMENTS: usize, W: Word] SlidingWindow<MAX_SEGMENTS, W>);

/// Returns how many whole windows of `limit` permits `wanted` fills before its last permit, and the
/// permits that remain, at least 1.
#[cold]
#[inline(never)]
fn whole_windows(wanted: u64, limit: u64) -> (u64, u64) {
    let windows = (wanted - 1).checked_div(limit).unwrap_or(0);
    (windows, wanted - windows * limit)
}

/// Builds a [`SlidingWindow`]. Created by [`SlidingWindow::builder`].
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::{SlidingWindow, Timestamp};
///
/// // Strict: any span of 4 s admits at most one permit.
/// let limit = SlidingWindow::<8>::builder(1, Duration::from_secs(4), 4)
///     .strict()
///     .build()?;
/// assert!(limit.try_acquire_at(Timestamp::from_millis(900), 1).is_ok());
/// assert!(
///     limit
///         .try_acquire_at(Timestamp::from_millis(4_000), 1)
///         .is_err()
/// );
/// assert!(
///     limit
///         .try_acquire_at(Timestamp::from_millis(5_000), 1)
///         .is_ok()
/// );
/// # Ok::<(), portcullis_core::SettingsError>(())
/// ```
pub type SlidingWindowBuilder<const MAX_SEGMENTS: usize> = Builder<SlidingWindow<MAX_SEGMENTS>>;

/// The settings of a [`SlidingWindow`] beside its timing.
#[derive(Clone, Copy, Debug)]
pub struct SlidingWindowSettings {
    limit: u64,
    window: Duration,
    segments: u32,
    max_limit: Option<u64>,
    strict: bool,
}

impl<const MAX_SEGMENTS: usize> Sealed for SlidingWindow<MAX_SEGMENTS> {
    type Settings = SlidingWindowSettings;
}

impl<const MAX_SEGMENTS: usize> Builder<SlidingWindow<MAX_SEGMENTS>> {
    /// Limits any span of one window's length to `limit` permits, wherever the span starts.
    /// Default: any `segments` consecutive segments.
    ///
    /// This takes one more segment of the ring, so there are at most `MAX_SEGMENTS - 1` segments.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{SlidingWindow, Timestamp};
    /// let limit = SlidingWindow::<3>::builder(1, Duration::from_secs(2), 2)
    ///     .strict()
    ///     .build()?;
    /// assert!(limit.try_acquire_at(Timestamp::from_millis(900), 1).is_ok());
    /// assert!(
    ///     limit
    ///         .try_acquire_at(Timestamp::from_millis(2_800), 1)
    ///         .is_err(),
    ///     "1.9 s later"
    /// );
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn strict(mut self) -> Self {
        self.settings.strict = true;
        self
    }

    /// Sets the largest limit that may be [set](SlidingWindow::set_limit) later. Default: the limit
    /// that the window is built with.
    ///
    /// A larger value takes bits from the stamps, which shortens the horizon.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::SlidingWindow;
    /// let limit = SlidingWindow::<3>::builder(1, Duration::from_secs(2), 2)
    ///     .max_limit(1_000)
    ///     .build()?;
    /// assert_eq!(limit.set_limit(1_000), Ok(1));
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
        /// - the limit is zero, or more than the largest limit that may be set;
        /// - one of these limits is so large that it leaves too few bits for the epoch;
        /// - there are no segments, or more than the ring holds;
        /// - the window is outside of 1 ns to 292 years, or shorter than 1 ns per segment;
        /// - the window is longer than 584 years divided by the number of segments, if the window
        ///   in nanoseconds and the number of segments have no common divisor;
        /// - the staleness is shorter than 1 s, or too long for the word.
        ///
        /// ```
        /// # use core::time::Duration;
        /// # use portcullis_core::{SettingsError, SlidingWindow};
        /// # use portcullis_core::builder::Setting;
        /// let refused =
        ///     SlidingWindow::<4>::builder(1, Duration::from_secs(1), 5).build().unwrap_err();
        /// assert_eq!(refused, SettingsError::TooLarge { setting: Setting::Segments, max: 4 });
        /// ```
        pub const fn build(self) -> Result<SlidingWindow<MAX_SEGMENTS>, SettingsError> {
            self.build_on()
        }
    }

    const_unless_loom! {
        /// Builds the limiter on words of a chosen width.
        ///
        /// # Errors
        ///
        /// As [`build`](Self::build).
        ///
        /// ```
        /// # use portcullis_core::SlidingWindow;
        /// # use core::time::Duration;
        /// let limit: SlidingWindow<8, u32> =
        ///     SlidingWindow::builder(1_000, Duration::from_secs(1), 8).build_on()?;
        /// assert_eq!(size_of_val(&limit) < 128, true);
        /// # Ok::<(), portcullis_core::SettingsError>(())
        /// ```
        pub const fn build_on<W: Word>(self) -> Result<SlidingWindow<MAX_SEGMENTS, W>, SettingsError> {
            let max_limit = match self.settings.max_limit {
                Some(max) if self.settings.limit > max => {
                    return Err(SettingsError::TooLarge { setting: Setting::Limit, max });
                }
                Some(max) if self.settings.limit > 0 => max,
                _ => self.settings.limit,
            };
            let room = MAX_SEGMENTS.saturating_sub(self.settings.strict as usize) as u64;
            if self.settings.segments == 0 {
                return Err(SettingsError::Zero { setting: Setting::Segments });
            }
            if self.settings.segments as u64 > room {
                return Err(SettingsError::TooLarge { setting: Setting::Segments, max: room });
            }
            let window = match settings::nanos(self.settings.window, Setting::Window) {
                Ok(nanos) => nanos,
                Err(error) => return Err(error),
            };
            let staleness = match self.timing.staleness_nanos() {
                Ok(nanos) => nanos,
                Err(error) => return Err(error),
            };
            let segments = self.settings.segments as u64;
            if window < segments {
                return Err(SettingsError::TooSmall { setting: Setting::Window, min: segments });
            }
            let divisor = settings::gcd(segments as u128, window);
            let (scale, step) = (segments / divisor, window / divisor);
            // `epoch` multiplies the time within a step by `scale` before it divides.
            if step > u64::MAX / scale {
                return Err(SettingsError::TooLarge { setting: Setting::Window, max: u64::MAX / segments });
            }
            let length = segments + self.settings.strict as u64;
            // Rounded down, so that a second counts as no fewer segments than it has.
            let layout = match Stamped::new(max_limit, window / segments, length, staleness) {
                Ok(layout) => layout,
                // Without a setting of its own, the largest limit is the limit.
                Err(SettingsError::TooLarge { setting: Setting::Limit, max }) if max_limit > self.settings.limit => {
                    return Err(SettingsError::TooLarge { setting: Setting::MaxLimit, max });
                }
                Err(error) => return Err(error),
            };
            Ok(SlidingWindow {
                state: AtomicWord::new(0),
                layout,
                limit: AtomicWord::new(self.settings.limit),
                grid: Grid::new(self.timing.origin, step),
                scale,
                slots: Grid::new(Timestamp::ZERO, length),
                strict: self.settings.strict,
                #[cfg(not(portcullis_loom))]
                ring: [const { AtomicWord::new(0) }; MAX_SEGMENTS],
                #[cfg(portcullis_loom)]
                ring: core::array::from_fn(|_| AtomicWord::new(0)),
            })
        }
    }
}
