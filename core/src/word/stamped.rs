//! A state word that holds a count of permits and the stamp (the position in time) that it is for.
//!
//! ```text
//! bits            count_bits            0
//! +------------------+------------------+
//! |      stamp       |      count       |      stamp: a position in time, wrapping
//! +------------------+------------------+      count: 0 to limit
//! ```
//!
//! The count has as many bits as the limit needs. A limiter may put a note of its own above the
//! count. The stamp has all other bits. Stamps are compared in place, without a shift.
//!
//! The distance from a stamp to a position, wrapped in the word, is one point on a circle. A stamp
//! is up to `reach` positions ahead of the position that wrote it, and a `now` is stale by up to
//! the staleness:
//!
//! ```text
//! 0 ................... behind-1 | behind ........ late-1 | late ...... 2^bits-1
//!  at or after the stamp         |  staleness             |  staleness + reach
//!                                |  too late: denied      |  stale, or before the stamp
//! ```
//!
//! The middle zone matters after the limiter has been idle for almost a whole wrap. A `now` in the
//! last zone is then granted, and the grant counts under the old stamp. A stale timestamp after it
//! is in the middle zone: it must not find the limiter idle, so it is denied.

use crate::limiter::receipt::Receipt;
use crate::newer::signed;
use crate::time::grid::Grid;
use crate::time::timestamp::{Timestamp, saturating_duration};
use crate::time::timing::Timing;
use crate::word::settings::{self, MIN_STALENESS, Room, Scale, Setting, SettingsError};
use crate::word::{Word, narrow};

/// How a stamp and a count share a word, and which stamps count as stale.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamped<W: Word> {
    limit: W,
    behind: W,
    late: W,
    count_bits: u32,
}

impl<W: Word> Stamped<W> {
    /// Creates a layout for counts up to `limit` and positions that are `step` nanoseconds apart. A
    /// stamp may be up to `reach` positions ahead of the position that wrote it.
    pub(crate) const fn new(
        limit: u64,
        step: u64,
        reach: u64,
        staleness: Option<u64>,
    ) -> Result<Self, SettingsError> {
        match Self::with_note(0, limit, step, reach, staleness) {
            Ok((layout, _)) => Ok(layout),
            Err(error) => Err(error),
        }
    }

    /// As [`new`](Self::new), with a note of `note_bits` bits between the stamp and the count. Here
    /// the note is part of the count. Also returns whether stamps wrap [late
    /// enough](Room::is_enough).
    const fn with_note(
        note_bits: u32,
        limit: u64,
        step: u64,
        reach: u64,
        staleness: Option<u64>,
    ) -> Result<(Self, bool), SettingsError> {
        if limit == 0 {
            return Err(SettingsError::Zero {
                setting: Setting::Limit,
            });
        }
        let count_bits = bits(limit) + note_bits;
        let scale = Scale { step, gain: 1 };
        // A `now` is stale by up to the staleness, compared with a stamp that is up to `reach`
        // ahead.
        let needed = 4 * (scale.positions(MIN_STALENESS) + reach as u128 + 1);
        let room = Room::of(W::BITS);
        let stamp_bits = W::BITS.saturating_sub(count_bits);
        let range = 1u128 << stamp_bits;
        if range < needed {
            let bits = needed.next_power_of_two().trailing_zeros() + note_bits;
            let max = if bits < W::BITS { W::MASK >> bits } else { 0 };
            return Err(SettingsError::TooLarge {
                setting: Setting::Limit,
                max,
            });
        }
        let Ok(staleness) =
            settings::staleness(room, range, reach as u128 + 1, staleness, None, scale)
        else {
            // Everything else fits, because `range` is at least `needed`.
            let max = ((range / 4) as u64).saturating_mul(step);
            return Err(SettingsError::TooLarge {
                setting: Setting::Staleness,
                max,
            });
        };
        // At least a quarter of the range is left for positions ahead of the stamp.
        let late = range - staleness - reach as u128;
        let behind = (late - staleness) << count_bits;
        let layout = Self {
            limit: narrow(limit),
            behind: narrow(behind as u64),
            late: narrow((late << count_bits) as u64),
            count_bits,
        };
        let denied = 2 * staleness + reach as u128;
        Ok((layout, room.is_enough(range, denied, scale)))
    }

    #[inline(always)]
    pub(crate) fn limit(&self) -> u64 {
        self.limit.into()
    }

    /// Returns the largest count that the layout has room for.
    pub(crate) const fn most(&self) -> u64 {
        !(u64::MAX << (self.count_bits & 63))
    }

    /// The same layout with a lower limit, or with one that is no more than [`most`](Self::most).
    pub(crate) const fn with_limit(mut self, limit: u64) -> Self {
        self.limit = narrow(limit);
        self
    }

    /// Returns `position` as a stamp, in its place in the word.
    #[inline(always)]
    pub(crate) const fn stamp(&self, position: u64) -> u64 {
        // A count of 64 bits leaves no stamp; the builder rejects it.
        position.wrapping_shl(self.count_bits) & W::MASK
    }

    /// Returns the position in a stamp, or how many positions a span has that is given as a stamp.
    pub(crate) const fn positions(&self, stamp: u64) -> u64 {
        stamp.wrapping_shr(self.count_bits)
    }

    /// Returns the count in `word`, and its stamp in place.
    #[inline(always)]
    pub(crate) fn split(&self, word: u64) -> (u64, u64) {
        let counts = !(u64::MAX << (self.count_bits & 63));
        (word & counts, word & !counts)
    }

    /// Returns the count in `word` if its stamp is exactly `stamp`. For any other stamp, returns
    /// more than a count can be.
    #[inline(always)]
    pub(crate) fn count(word: u64, stamp: u64) -> u64 {
        word.wrapping_sub(stamp) & W::MASK
    }

    /// Returns how far the stamp `to` is after the stamp `from`, in place, or `None` if it is
    /// before it.
    #[inline(always)]
    pub(crate) fn ahead(&self, to: u64, from: u64) -> Option<u64> {
        let distance = to.wrapping_sub(from) & W::MASK;
        if distance < self.behind.into() {
            Some(distance)
        } else {
            None
        }
    }

    /// Returns how many positions the stamp `to` is after the stamp `from`; negative if it is
    /// before it.
    pub(crate) fn distance(&self, to: u64, from: u64) -> i64 {
        let distance = to.wrapping_sub(from) & W::MASK;
        match self.ahead(to, from) {
            Some(ahead) => signed(ahead >> self.count_bits),
            None => -signed((W::MASK - distance) >> self.count_bits) - 1,
        }
    }

    /// Returns for how many positions a stamp can be read that was not before the position, or at
    /// most the staleness. As much is left on either side: see
    /// [`Lattice::readable_for`](crate::limiters::lattice::Lattice::readable_for).
    pub(crate) fn readable(&self) -> u64 {
        self.first_ambiguous().saturating_sub(self.staleness()) / 2
    }

    /// As [`distance`](Self::distance), if `to` is the position at which the stamp `from` was
    /// settled, or one before the stamp was written, while it was [readable](Self::readable).
    pub(crate) fn settled_distance(&self, to: u64, from: u64) -> i64 {
        let distance = (to.wrapping_sub(from) & W::MASK) >> self.count_bits;
        if distance < self.staleness() + self.readable() {
            signed(distance)
        } else {
            -signed(self.range() - distance) - 1
        }
    }

    /// Whether the stamp `stamp` is before the stamp `now`, or so far after it that no stale
    /// timestamp within the staleness can have written it.
    #[inline(always)]
    pub(crate) fn is_past(&self, stamp: u64, now: u64) -> bool {
        let distance = now.wrapping_sub(stamp) & W::MASK;
        distance != 0 && distance < self.late.into()
    }

    /// Returns the number of positions until the stamp `to` leaves the zone that is too late for
    /// the stamp `from`; 0 if it is not in that zone.
    pub(crate) fn too_late(&self, to: u64, from: u64) -> u64 {
        let (distance, late) = (to.wrapping_sub(from) & W::MASK, self.late.into());
        if distance < late && self.ahead(to, from).is_none() {
            (late - distance) >> self.count_bits
        } else {
            0
        }
    }

    /// Whether stamps may have wrapped between the grant of `receipt` and `now`. The stamp in the
    /// receipt may then equal a newer one.
    pub(crate) fn is_outlived(&self, grid: &Grid, receipt: &Receipt, now: Timestamp) -> bool {
        let taken_at = grid.index(Timestamp::from_nanos(receipt.time()));
        self.comes_around(grid.index(now).saturating_sub(taken_at))
    }

    /// Whether a stamp may wrap within `positions` positions.
    pub(crate) fn comes_around(&self, positions: u64) -> bool {
        positions >= Into::<u64>::into(self.late) >> self.count_bits
    }

    /// Returns what counts at the stamp `now` in a word whose stamp is the end of a window: the
    /// permits taken, and that end while the window is on.
    #[inline(always)]
    pub(crate) fn current(&self, now: u64, word: u64) -> (u64, Option<u64>) {
        let (count, end) = self.split(word);
        match self.ahead(now, end) {
            Some(_) => (0, None),
            None if self.too_late(now, end) > 0 => (self.limit(), Some(end)),
            None => (count, Some(end)),
        }
    }

    /// Returns how many positions stale a `now` may be.
    pub(crate) fn staleness(&self) -> u64 {
        let (late, behind): (u64, u64) = (self.late.into(), self.behind.into());
        (late - behind) >> self.count_bits
    }

    /// Whether stamps of positions that are `step` nanoseconds apart wrap only after `horizon`
    /// nanoseconds.
    pub(crate) const fn reaches(&self, horizon: u128, step: u64) -> bool {
        (W::MASK >> self.count_bits) as u128 * step as u128 >= horizon
    }

    /// Returns the number of positions before a stamp wraps.
    pub(crate) fn range(&self) -> u64 {
        W::MASK >> self.count_bits
    }

    /// Returns the first position that may be taken for a stale one, compared with the first
    /// position after a wrap.
    #[inline(always)]
    pub(crate) fn first_ambiguous(&self) -> u64 {
        Into::<u64>::into(self.behind) >> self.count_bits
    }
}

/// Spans of time that end in a stamp: spans that begin with an event, where positions are ticks, or
/// windows on a grid.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Started<W: Word> {
    pub(crate) layout: Stamped<W>,
    pub(crate) grid: Grid,
}

impl<W: Word> Started<W> {
    /// Creates spans for counts up to `limit` in a window of length `window`, and for waits of
    /// length `wait`. If the wait is shorter than the window, the word has a note of
    /// [`offset_bits`].
    ///
    /// The tick is `tick`, if given. The default is the finest of 1 ns, 10 ns, 100 ns, ... that
    /// wraps [late enough](Room::is_enough). It is at most a hundredth of the shorter of the two,
    /// and in a wide word both are whole ticks; or, for a horizon of an hour, as coarse as the
    /// window allows.
    pub(crate) const fn new(
        limit: u64,
        window: u64,
        wait: u64,
        tick: Option<u64>,
        staleness: Option<u64>,
        origin: Timestamp,
    ) -> Result<Self, SettingsError> {
        let (longest, shortest) = if window > wait {
            (window, wait)
        } else {
            (wait, window)
        };
        let automatic = tick.is_none();
        let mut step = if let Some(tick) = tick {
            tick
        } else {
            Room::of(W::BITS).finest_tick(shortest)
        };
        loop {
            let coarser = automatic && step <= window / 10;
            // A coarser tick of a wide word neither rounds the spans nor is a large part of them.
            let whole = match Room::of(W::BITS) {
                Room::Wide => {
                    let next = step.saturating_mul(10);
                    window % next == 0 && wait % next == 0
                }
                _ => true,
            };
            let fine = step <= shortest / 1_000 && whole;
            let note_bits = offset_bits(window.div_ceil(step), wait.div_ceil(step));
            // One more tick for an event that is rounded up.
            let reach = longest.div_ceil(step) + 1;
            match Stamped::with_note(note_bits, limit, step, reach, staleness) {
                Ok((layout, is_enough))
                    if !coarser
                        || is_enough
                        || !fine && layout.reaches(settings::FAR_ENOUGH, step) =>
                {
                    return Ok(Self {
                        layout,
                        grid: Grid::new(origin, step),
                    });
                }
                Err(error) if !coarser => return Err(error),
                _ => step *= 10,
            }
        }
    }

    /// Creates spans for counts up to `limit` in adjacent windows of length `window`.
    pub(crate) const fn on_grid(
        limit: u64,
        window: u64,
        staleness: Option<u64>,
        origin: Timestamp,
    ) -> Result<Self, SettingsError> {
        match Stamped::new(limit, window, 1, staleness) {
            Ok(layout) => Ok(Self {
                layout,
                grid: Grid::new(origin, window),
            }),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn timing(&self) -> Timing {
        let step = u128::from(self.grid.step());
        let lasting = |positions| saturating_duration(u128::from(positions) * step);
        let (staleness, range) = (self.layout.staleness(), self.layout.range());
        Timing::on(&self.grid, lasting(staleness), lasting(range))
    }

    /// Returns the length of a span as a stamp, rounded up.
    pub(crate) const fn span(&self, nanos: u64) -> W {
        narrow(self.layout.stamp(nanos.div_ceil(self.grid.step())))
    }

    /// Returns the state in which no span has begun since `origin`.
    pub(crate) const fn nothing_since(&self, origin: Timestamp) -> u64 {
        self.layout.stamp(self.grid.index(origin))
    }

    /// Returns `now` as a stamp, rounded down.
    #[inline(always)]
    pub(crate) fn stamp(&self, now: Timestamp) -> u64 {
        self.layout.stamp(self.grid.index(now))
    }

    /// Returns the end of a span that begins at `now`, rounded up.
    #[inline(always)]
    pub(crate) fn end(&self, now: Timestamp, span: u64) -> u64 {
        let (position, into) = self.grid.split(now);
        let from = self
            .layout
            .stamp(position.wrapping_add(u64::from(into != 0)));
        from.wrapping_add(span) & W::MASK
    }
}

/// Returns how many bits `number` has.
pub(crate) const fn bits(number: u64) -> u32 {
    u64::BITS - number.leading_zeros()
}

/// Returns how many leading bits of an offset into a window of `window` ticks locate it to within
/// `grain` ticks; 0 if the grain is not shorter than the window.
pub(crate) const fn offset_bits(window: u64, grain: u64) -> u32 {
    if grain < window {
        bits((window - 1) >> grain.ilog2())
    } else {
        0
    }
}
