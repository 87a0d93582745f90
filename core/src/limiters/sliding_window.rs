//! State: one word that decides, and a ring that remembers what to give back (both in the layout of
//! [`stamped`](crate::word::stamped)).
//!
//! ```text
//! state     epoch | total    the newest segment granted in, and all permits of its window
//! ring[i]     tag | count    the permits granted in segment `tag`; tag = i (mod the ring's length)
//! ```
//!
//! An epoch is a segment's index plus the ring's length, so that the zero state is older than any
//! epoch. Invariants: `total` is at least the sum of the counts; and whoever reads epoch `e` in the
//! state finds every slot tagged with at least the newest segment up to `e` that it stands for.
//! Hence three transitions, each by one compare-exchange or fetch-add:
//!
//! - *take* at the state's epoch: `total += n`, then `ring[epoch].count += n`. The add always meets
//!   a tag of that epoch or a newer one. An add that comes late into a newer segment is given back
//!   later than it could be, never earlier.
//! - *re-tag* a slot whose segment has left the window: `(old, count) -> (new, 0)`; whoever wins it
//!   owes `count` to the total.
//! - *roll*: after re-tagging all such slots, `(epoch, total) -> (max(epoch, e), total - owed)`.
//!
//! The limit is a word beside these: a take reads it once, and the total may be above it where it
//! was lowered.
//!
//! Until a roll has paid what it owes, the total is too high: others are denied, never admitted
//! wrongly.

use core::hint::cold_path;
use core::time::Duration;

use crate::limiter::queue_limiter::replenishing;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use crate::sync::const_unless_loom;
use crate::time::grid::Grid;
use crate::time::timestamp::saturating_duration;
use crate::word::settings;
use crate::word::stamped::Stamped;
use crate::word::{AtomicWord, NativeWord, Word};
use crate::{
    Denied, Idle, Lease, Limiter, LimiterId, Receipt, Refund, Retry, Setting, SettingsError,
    Timestamp,
};

/// A sliding window in segments: at most `limit` permits in any `segments` consecutive segments of
/// a window.
///
/// The segment of an instant is `floor((now - origin) * segments / window)`, exact also where the
/// segments do not divide the window. `MAX_SEGMENTS` is the most that the ring in the limiter can
/// hold; how many there are is a setting.
///
/// **Bound.** At most `limit` permits in any `segments` consecutive segments. A span of one
/// window's length that starts within a segment touches one segment more, so it may hold up to
/// twice the limit in the worst case. In [strict mode](SlidingWindowBuilder::strict) *any* span of
/// one window's length holds at most `limit`: a permit comes back one segment later.
///
/// **Exact.** A grant counts in the segment of the later of its own `now` and the newest one
/// granted. Retry times are exact to the nanosecond.
///
/// **Cost.** A grant is one compare-exchange and one fetch-add; the first one in a new segment also
/// rolls the ring, one compare-exchange for each segment that has left the window and one for all.
/// A denial writes nothing, unless it has lost a race for the first permits of a new segment: then
/// at most the roll. While one rolls the ring, others may be denied what there is room for.
/// Lock-free. (A thread that is ended, not just paused, in the middle of a grant or a roll takes
/// with it what it had not given back yet.)
///
/// **Live limit.** The limit can be [changed](Self::set_limit) while others take, up to a largest
/// one; the window and its segments stay as they are built. Takes cost no more for it.
///
/// **Ordering.** Takes acquire and rolls release, so that a count always lands in a slot that was
/// re-tagged before; see `docs/memory-ordering.md`.
///
/// **Horizon.** As for a [`FixedWindow`](crate::FixedWindow), counted in segments. Who is told less
/// than full for its sake may also be told to come back later than need be.
///
/// Source: the sliding window limiter of the .NET rate limiting proposal.
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::{SlidingWindow, Timestamp};
///
/// // At most 10 in 3 s, in segments of 1 s.
/// static LIMIT: SlidingWindow<3> = SlidingWindow::new(10, Duration::from_secs(3), 3);
///
/// let at = Timestamp::from_secs;
/// assert!(LIMIT.try_acquire_at(at(0), 3).is_ok());
/// assert!(LIMIT.try_acquire_at(at(1), 4).is_ok());
/// assert!(LIMIT.try_acquire_at(at(2), 3).is_ok());
/// assert!(LIMIT.try_acquire_at(at(2), 1).is_err());
/// // The first three have left the window.
/// assert!(LIMIT.try_acquire_at(at(3), 1).is_ok());
/// assert_eq!(LIMIT.available_at(at(3)), 2);
/// ```
#[derive(Debug)]
pub struct SlidingWindow<const MAX_SEGMENTS: usize, W: Word = NativeWord> {
    state: AtomicWord<W>,
    /// Laid out for the largest limit that may be set.
    layout: Stamped<W>,
    limit: AtomicWord<W>,
    /// `window / segments` in lowest terms is the grid's step for each `scale` segments.
    grid: Grid,
    scale: u64,
    /// The slots in use: indices are epochs modulo the ring's length.
    slots: Grid,
    strict: bool,
    ring: [AtomicWord<W>; MAX_SEGMENTS],
}

impl<const MAX_SEGMENTS: usize> SlidingWindow<MAX_SEGMENTS> {
    const_unless_loom! {
        /// At most `limit` permits (at least 1) in any `segments` consecutive segments, 1 to
        /// `MAX_SEGMENTS`, of a `window` from 1 ns (a segment must be at least that long) to 292
        /// years.
        ///
        /// # Panics
        ///
        /// Where [`SlidingWindowBuilder::build`] would return an error; in a constant or a static,
        /// that is a compile error.
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

    /// Settings for at most `limit` permits in any `segments` consecutive segments of a `window`.
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
        SlidingWindowBuilder {
            limit,
            window,
            segments,
            max_limit: None,
            strict: false,
            origin: Timestamp::ZERO,
            staleness: None,
        }
    }
}

impl<const MAX_SEGMENTS: usize, W: Word> SlidingWindow<MAX_SEGMENTS, W> {
    /// Takes `n` permits at `now`. With `n = 0` it takes nothing, and is answered as a request for
    /// 1 would be.
    ///
    /// The lease does nothing when dropped: permits come back when their segment leaves the window.
    ///
    /// # Errors
    ///
    /// [`Denied::Exhausted`], or [`Denied::ExceedsCapacity`] if `n` is more than the limit.
    ///
    /// # Cost
    ///
    /// Two atomic writes on success, and once a segment one more for each segment that has left the
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

    /// The permits that could be taken at `now`. Reads the ring.
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

    /// Whether all permits are available at `now`, and since when.
    ///
    /// ```
    /// # use portcullis_core::{Idle, SlidingWindow, Timestamp};
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
        // The newest grant lies in the state's epoch; it left the window one ring later.
        match epoch
            .checked_add_signed(-self.passed(epoch, state))
            .and_then(|newest| newest.checked_add(self.slots.step()))
        {
            Some(left) if left <= epoch => self.start(left).map_or(Idle::Now, Idle::Since),
            _ => Idle::Now,
        }
    }

    /// The permits in a window, as it is set now.
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
    /// one. What counts in the window stays counted: where that is more than the new limit, nothing
    /// is granted until enough of it has left the window.
    ///
    /// A take is judged by one limit, which it reads when it begins. So one that runs at the same
    /// time as the change may be granted what the old limit leaves, also after this has returned;
    /// the window then holds no more than that old limit. A take that happens after this has
    /// returned is granted only what the new limit leaves. The window's length and its segments
    /// cannot be changed: the ring counts by them.
    ///
    /// # Errors
    ///
    /// [`SettingsError`] if it is zero or too large. Nothing has changed then.
    ///
    /// # Cost
    ///
    /// One atomic exchange, in a word of its own: takes do not fail because of it. Lock-free.
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
        // Relaxed: a limit carries no data, and whether a call begins after this is for other
        // accesses to tell.
        while let Err(newer) = self
            .limit
            .compare_exchange_weak(old, limit, Relaxed, Relaxed)
        {
            old = newer;
        }
        Ok(old)
    }

    /// The segments in a window.
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

    /// How much older than the newest `now` another one may be for the bound to hold: at least one
    /// second.
    ///
    /// ```
    /// # use portcullis_core::SlidingWindow;
    /// # use core::time::Duration;
    /// let limit = SlidingWindow::<4>::new(2, Duration::from_secs(4), 4);
    /// assert!(limit.staleness() >= Duration::from_secs(1));
    /// ```
    pub fn staleness(&self) -> Duration {
        self.span(self.layout.staleness())
    }

    /// After how much idle time the word repeats: see the type's documentation.
    ///
    /// ```
    /// # use portcullis_core::SlidingWindow;
    /// # use core::time::Duration;
    /// let limit = SlidingWindow::<4>::new(2, Duration::from_secs(4), 4);
    /// assert!(limit.horizon() > Duration::from_secs(3_000_000_000));
    /// ```
    pub fn horizon(&self) -> Duration {
        self.span(self.layout.range())
    }

    fn span(&self, segments: u64) -> Duration {
        let nanos = u128::from(segments) * u128::from(self.grid.step()) / u128::from(self.scale);
        saturating_duration(nanos)
    }

    /// The segment that `now` lies in, plus the ring's length.
    #[inline(always)]
    fn epoch(&self, now: Timestamp) -> u64 {
        let (whole, rest) = self.grid.split(now);
        let within = if self.scale == 1 {
            0
        } else {
            self.grid.divide(rest * self.scale).0
        };
        // Saturating: where segments are 1 ns long, the last few of all time count as one.
        (whole * self.scale + within).saturating_add(self.slots.step())
    }

    /// The first instant of an epoch, if there is one.
    fn start(&self, epoch: u64) -> Option<Timestamp> {
        let segment = u128::from(epoch.checked_sub(self.slots.step())?);
        let since = (segment * u128::from(self.grid.step())).div_ceil(u128::from(self.scale));
        let nanos = u64::try_from(since)
            .ok()?
            .checked_add(self.grid.origin().as_nanos())?;
        Some(Timestamp::from_nanos(nanos))
    }

    /// How many epochs `epoch` lies after the state's; negative if it belongs to a `now` that is
    /// late.
    fn passed(&self, epoch: u64, state: u64) -> i64 {
        self.layout
            .distance(self.layout.stamp(epoch), self.layout.split(state).1)
    }

    /// The permits that `limit` leaves at `now`.
    fn within(&self, limit: u64, now: Timestamp) -> u64 {
        let state = self.state.load(Acquire);
        let epoch = self.epoch(now);
        let total = self.total(self.layout.stamp(epoch), state);
        let expired = if self.passed(epoch, state) > 0 {
            self.expired(epoch)
        } else {
            0
        };
        limit.saturating_sub(total.saturating_sub(expired))
    }

    /// The permits that count in the state; for a `now` that is too late, any number.
    #[inline(always)]
    fn total(&self, stamp: u64, state: u64) -> u64 {
        let (total, at) = self.layout.split(state);
        if self.layout.too_late(stamp, at) > 0 {
            u64::MAX
        } else {
            total
        }
    }

    #[inline(always)]
    fn take(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        // Once, so that one limit judges the whole call.
        let limit = self.limit();
        if u64::from(n) > limit {
            // The limit is less than `n`, so it fits.
            return Err(Denied::ExceedsCapacity {
                permits: n,
                capacity: limit as u32,
            });
        }
        let wanted = u64::from(n.max(1));
        // The most that may be counted already. One comparison tells that it is, and which epoch
        // is: a word with any other stamp differs from `stamp` by more than a count can be.
        let most = limit - wanted;
        let epoch = self.epoch(now);
        let (stamp, newest) = (self.layout.stamp(epoch), self.slots.divide(epoch).1);
        // Acquire: pairs with the release of the roll that set this epoch, so that the add below
        // meets the slot that it re-tagged, and no slot that it has paid for is counted as expired
        // once more.
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
                    return Err(Denied::Exhausted { now, permits: n });
                }
                if passed > 0 && n > 0 {
                    self.roll(epoch);
                    state = self.state.load(Acquire);
                    continue;
                }
                // A `now` that is late counts in the newest segment.
                let decides = epoch.wrapping_add_signed(-passed);
                (decides, self.slots.divide(decides).1)
            };
            let receipt = Receipt::new(decides);
            if n == 0 {
                return Ok(receipt);
            }
            let Some(slot) = self.ring.get(slot as usize) else {
                return Err(Denied::Exhausted { now, permits: n });
            };
            // Once an epoch may be taken for one of the round before, the state may bear the right
            // one, and the ring not: by chance, or since who came for an earlier epoch took the
            // slot for a newer one.
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
            // The new value is read by the acquiring loads above; a compare-exchange continues the
            // release sequence of the roll.
            match self
                .state
                .compare_exchange_weak(state, state + wanted, Relaxed, Acquire)
            {
                Ok(_) => {
                    // Release: pairs with the acquire of the re-tag, which must find the total
                    // already raised.
                    slot.fetch_add(wanted, Release);
                    return Ok(receipt);
                }
                Err(newer) => state = newer,
            }
        }
    }

    /// The slots in use, each with the stamp of the newest segment up to `epoch` that it stands
    /// for.
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

    /// The count of `slot`, if its tag is older than `target`.
    #[inline(always)]
    fn outdated(&self, slot: u64, target: u64) -> Option<u64> {
        let (count, tag) = self.layout.split(slot);
        self.layout.is_past(tag, target).then_some(count)
    }

    /// The permits in slots whose segment has left the window that ends with `epoch`. Nothing is
    /// written.
    #[cold]
    #[inline(never)]
    fn expired(&self, epoch: u64) -> u64 {
        self.targets(epoch)
            .filter_map(|(slot, target)| self.outdated(slot.load(Relaxed), target))
            .sum()
    }

    /// Moves the state on to `epoch`, if it is not there or further, and gives back what has left
    /// the window.
    #[cold]
    #[inline(never)]
    fn roll(&self, epoch: u64) {
        let mut owed = 0;
        for (slot, target) in self.targets(epoch) {
            let mut seen = slot.load(Relaxed);
            while let Some(count) = self.outdated(seen, target) {
                // Acquire: pairs with the release of the add, so that the total has been raised by
                // all that is owed.
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

    /// Subtracts what was won from the ring from the total, and moves the state on to `epoch`, if
    /// it is not there or further.
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
            // Release: pairs with the acquire in `take`; the slots are re-tagged before the epoch
            // can be seen.
            match self
                .state
                .compare_exchange_weak(state, rolled, Release, Relaxed)
            {
                Ok(_) => return,
                Err(newer) => state = newer,
            }
        }
    }

    /// Gives back `n` permits of the segment `epoch`, if the ring still has that one. First
    /// subtracts them from its slot, so that no other call gives them back; then from the total.
    fn undo(&self, now: Timestamp, n: u32, epoch: u64) -> u32 {
        // Noted in full width: stamps come around, epochs do not.
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
            // Relaxed: continues the release sequence of the adds, for who re-tags the slot.
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
    fn id(&self) -> Option<LimiterId> {
        LimiterId::of(self)
    }

    #[inline]
    fn take_at(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        self.take(now, n)
    }

    /// All of them, while the segment that they were counted in is in its slot; else none.
    #[inline]
    fn refund_at(&self, now: Timestamp, n: u32, receipt: Receipt) -> Refund {
        let refunded = self.undo(now, n, receipt.note());
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

    fn retry(&self, denied: Denied) -> Retry {
        let Denied::Exhausted { now, permits } = denied else {
            return Retry::Never;
        };
        let wanted = u64::from(permits.max(1));
        let limit = self.limit();
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
        // From the later of `now` and the state, one segment after the other leaves the window.
        let epoch = self.epoch(now);
        let late = (-self.passed(epoch, state)).max(0);
        let Some(epoch) = epoch.checked_add_signed(late) else {
            return Retry::Never;
        };
        // What is taken as it comes leaves a ring's length later, and comes again.
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
                // One that is outdated already has been subtracted.
                let counted = self.layout.distance(leaves, tag) == self.slots.step().cast_signed();
                remaining = remaining.saturating_sub(if counted { count } else { 0 });
            }
            if remaining + wanted <= limit || ahead == self.slots.step() {
                return start(next).map_or(Retry::Never, Retry::At);
            }
        }
        Retry::Never
    }
}

replenishing!([const MAX_SEGMENTS: usize, W: Word] SlidingWindow<MAX_SEGMENTS, W>);

/// As many whole windows as `wanted` permits fill, where one holds `limit`, without the last
/// permit; and how many that leaves, at least 1.
#[cold]
#[inline(never)]
fn whole_windows(wanted: u64, limit: u64) -> (u64, u64) {
    let windows = (wanted - 1).checked_div(limit).unwrap_or(0);
    (windows, wanted - windows * limit)
}

/// Settings of a [`SlidingWindow`]; from [`SlidingWindow::builder`].
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::{SlidingWindow, Timestamp};
///
/// // Strict: no span of 4 s holds more than one.
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
#[derive(Clone, Copy, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct SlidingWindowBuilder<const MAX_SEGMENTS: usize> {
    limit: u64,
    window: Duration,
    segments: u32,
    max_limit: Option<u64>,
    strict: bool,
    origin: Timestamp,
    staleness: Option<Duration>,
}

impl<const MAX_SEGMENTS: usize> SlidingWindowBuilder<MAX_SEGMENTS> {
    /// Any span of one window's length holds at most the limit, wherever it starts. Needs one
    /// segment more in the ring: at most `MAX_SEGMENTS - 1`. Default: any `segments` consecutive
    /// segments do.
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
        self.strict = true;
        self
    }

    /// The largest limit that may be [set](SlidingWindow::set_limit) later on. It takes bits of the
    /// horizon. Default: the limit that it is built with.
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
        self.max_limit = Some(max_limit);
        self
    }

    /// The instant that segments are counted from; an earlier `now` counts as this one. Default:
    /// [`Timestamp::ZERO`]. Without effect on segments of 1 ns.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{SlidingWindow, Timestamp};
    /// let limit = SlidingWindow::<2>::builder(1, Duration::from_secs(2), 2)
    ///     .origin(Timestamp::from_millis(500))
    ///     .build()?;
    /// assert!(
    ///     limit
    ///         .try_acquire_at(Timestamp::from_millis(1_499), 1)
    ///         .is_ok()
    /// );
    /// assert!(
    ///     limit
    ///         .try_acquire_at(Timestamp::from_millis(2_500), 1)
    ///         .is_ok(),
    ///     "two segments later"
    /// );
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn origin(mut self, origin: Timestamp) -> Self {
        self.origin = origin;
        self
    }

    /// How old a `now` may be, against the newest, for the bound to hold: at least one second.
    /// Default: a sixteenth of the horizon where that is beyond 292 years, else a 256th of it, up
    /// to an hour.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{SlidingWindow, Timestamp};
    /// let limit = SlidingWindow::<2>::builder(1, Duration::from_secs(2), 2)
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
        /// [`SettingsError`] names the setting and its bound: a limit of zero, more than the
        /// largest one that may be set, or one of these so large that it leaves too few bits for
        /// the epoch, no segments or more than the ring holds, a window outside of 1 ns to 292
        /// years, of less than 1 ns for each segment, or of more than 584 years divided by the
        /// segments (if they have no divisor in common), a staleness under 1 s or too long.
        ///
        /// ```
        /// # use core::time::Duration;
        /// # use portcullis_core::{Setting, SettingsError, SlidingWindow};
        /// let refused =
        ///     SlidingWindow::<4>::builder(1, Duration::from_secs(1), 5).build().unwrap_err();
        /// assert_eq!(refused, SettingsError::TooLarge { setting: Setting::Segments, max: 4 });
        /// ```
        pub const fn build(self) -> Result<SlidingWindow<MAX_SEGMENTS>, SettingsError> {
            self.build_on()
        }
    }

    const_unless_loom! {
        /// The limiter on words of a chosen width.
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
            let max_limit = match self.max_limit {
                Some(max) if self.limit > max => {
                    return Err(SettingsError::TooLarge { setting: Setting::Limit, max });
                }
                Some(max) if self.limit > 0 => max,
                _ => self.limit,
            };
            let room = MAX_SEGMENTS.saturating_sub(self.strict as usize) as u64;
            if self.segments == 0 {
                return Err(SettingsError::Zero { setting: Setting::Segments });
            }
            if self.segments as u64 > room {
                return Err(SettingsError::TooLarge { setting: Setting::Segments, max: room });
            }
            let window = match settings::nanos(self.window, Setting::Window) {
                Ok(nanos) => nanos,
                Err(error) => return Err(error),
            };
            let staleness = match settings::staleness_nanos(self.staleness) {
                Ok(nanos) => nanos,
                Err(error) => return Err(error),
            };
            let segments = self.segments as u64;
            if window < segments {
                return Err(SettingsError::TooSmall { setting: Setting::Window, min: segments });
            }
            let divisor = settings::gcd(segments as u128, window as u128) as u64;
            let (scale, step) = (segments / divisor, window / divisor);
            // What lies within a step is scaled before it is divided.
            if step > u64::MAX / scale {
                return Err(SettingsError::TooLarge { setting: Setting::Window, max: u64::MAX / segments });
            }
            let length = segments + self.strict as u64;
            // Rounded down, so that at least as many are counted in a second as there are.
            let layout = match Stamped::new(max_limit, window / segments, length, staleness) {
                Ok(layout) => layout,
                Err(error) => return Err(error),
            };
            Ok(SlidingWindow {
                state: AtomicWord::new(0),
                layout,
                limit: AtomicWord::new(self.limit),
                grid: Grid::new(self.origin, step),
                scale,
                slots: Grid::new(Timestamp::ZERO, length),
                strict: self.strict,
                #[cfg(not(loom))]
                ring: [const { AtomicWord::new(0) }; MAX_SEGMENTS],
                #[cfg(loom)]
                ring: core::array::from_fn(|_| AtomicWord::new(0)),
            })
        }
    }
}
