//! A state word that says how many permits were counted, and as of when.
//!
//! ```text
//! bits            count_bits            0
//! +------------------+------------------+
//! |      stamp       |      count       |      stamp: a position in time, wrapping
//! +------------------+------------------+      count: 0 to limit
//! ```
//!
//! The count takes the bits that the limit needs, and a limiter may put a note of its own above it;
//! the stamp takes all others. Stamps are compared where they stand, without shifting them down.
//! The distance from a stamp to a position, wrapped in the word, is read off one circle, where a
//! stamp lies up to `reach` ahead of the position that wrote it, and `now` is late by up to the
//! staleness:
//!
//! ```text
//! 0 ................... behind-1 | behind ........ late-1 | late ...... 2^bits-1
//!  at or after the stamp         |  staleness             |  staleness + reach
//!                                |  too late: denied      |  late, or not there yet
//! ```
//!
//! The middle zone is for one who has been idle for a whole turn, less a little: what is granted
//! then counts with what the stamp stands for, and who comes late after that must not find the
//! limiter idle.

use crate::time::grid::Grid;
use crate::word::settings::{self, MIN_STALENESS, Scale};
use crate::word::{Word, narrow};
use crate::{Receipt, Setting, SettingsError, Timestamp};

/// How stamp and count share a word, and which stamps count as late.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamped<W: Word> {
    limit: W,
    behind: W,
    late: W,
    count_bits: u32,
}

impl<W: Word> Stamped<W> {
    /// A layout for counts up to `limit` and positions that are `step` nanoseconds apart, where a
    /// stamp may be up to `reach` positions ahead of the position that wrote it.
    pub(crate) const fn new(
        limit: u64,
        step: u64,
        reach: u64,
        staleness: Option<u64>,
    ) -> Result<Self, SettingsError> {
        Self::with_note(0, limit, step, reach, staleness)
    }

    /// The same with a note of `note_bits` bits between the stamp and the count, which counts as a
    /// part of the count here.
    const fn with_note(
        note_bits: u32,
        limit: u64,
        step: u64,
        reach: u64,
        staleness: Option<u64>,
    ) -> Result<Self, SettingsError> {
        if limit == 0 {
            return Err(SettingsError::Zero {
                setting: Setting::Limit,
            });
        }
        let count_bits = bits(limit) + note_bits;
        let scale = Scale { step, gain: 1 };
        // Late by up to the staleness, against a stamp that is up to `reach` ahead.
        let needed = 4 * (scale.positions(MIN_STALENESS) + reach as u128 + 1);
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
        let Ok(staleness) = settings::staleness(range, reach as u128 + 1, staleness, None, scale)
        else {
            // All else fits, by what is needed.
            let max = ((range / 4) as u64).saturating_mul(step);
            return Err(SettingsError::TooLarge {
                setting: Setting::Staleness,
                max,
            });
        };
        // At least a quarter of the range is left for what lies ahead.
        let late = range - staleness - reach as u128;
        let behind = (late - staleness) << count_bits;
        Ok(Self {
            limit: narrow(limit),
            behind: narrow(behind as u64),
            late: narrow((late << count_bits) as u64),
            count_bits,
        })
    }

    #[inline(always)]
    pub(crate) fn limit(&self) -> u64 {
        self.limit.into()
    }

    /// `position` as a stamp, in its place in the word.
    #[inline(always)]
    pub(crate) const fn stamp(&self, position: u64) -> u64 {
        // A count of 64 bits leaves no stamp, and is refused by the builder.
        position.wrapping_shl(self.count_bits) & W::MASK
    }

    /// The count in `word`, and its stamp in its place.
    #[inline(always)]
    pub(crate) fn split(&self, word: u64) -> (u64, u64) {
        let counts = !(u64::MAX << (self.count_bits & 63));
        (word & counts, word & !counts)
    }

    /// The count in `word` if it bears exactly the stamp `stamp`; with any other stamp, more than a
    /// count can be.
    #[inline(always)]
    pub(crate) fn count(word: u64, stamp: u64) -> u64 {
        word.wrapping_sub(stamp) & W::MASK
    }

    /// How far the stamp `to` lies after the stamp `from`, in place; `None` if it lies before it.
    #[inline(always)]
    pub(crate) fn ahead(&self, to: u64, from: u64) -> Option<u64> {
        let distance = to.wrapping_sub(from) & W::MASK;
        if distance < self.behind.into() {
            Some(distance)
        } else {
            None
        }
    }

    /// How far the stamp `to` lies after the stamp `from` in positions, negative if it lies before
    /// it.
    pub(crate) fn distance(&self, to: u64, from: u64) -> i64 {
        let distance = to.wrapping_sub(from) & W::MASK;
        match self.ahead(to, from) {
            Some(ahead) => (ahead >> self.count_bits).cast_signed(),
            None => -((W::MASK - distance) >> self.count_bits).cast_signed() - 1,
        }
    }

    /// Whether the stamp `stamp` lies before the stamp `now`, or so far after it that nobody who is
    /// late can have written it.
    #[inline(always)]
    pub(crate) fn is_past(&self, stamp: u64, now: u64) -> bool {
        let distance = now.wrapping_sub(stamp) & W::MASK;
        distance != 0 && distance < self.late.into()
    }

    /// How many positions it takes until the stamp `to` is no longer too late for the stamp `from`;
    /// 0 if it is not.
    pub(crate) fn too_late(&self, to: u64, from: u64) -> u64 {
        let (distance, late) = (to.wrapping_sub(from) & W::MASK, self.late.into());
        if distance < late && self.ahead(to, from).is_none() {
            (late - distance) >> self.count_bits
        } else {
            0
        }
    }

    /// Whether stamps may have come around between the grant of a receipt and `now`: the stamp that
    /// the receipt notes may then be a newer one's.
    pub(crate) fn is_outlived(&self, grid: &Grid, receipt: &Receipt, now: Timestamp) -> bool {
        let taken_at = grid.index(Timestamp::from_nanos(receipt.time()));
        self.comes_around(grid.index(now).saturating_sub(taken_at))
    }

    /// Whether a stamp may come around in so many positions.
    pub(crate) fn comes_around(&self, positions: u64) -> bool {
        positions >= Into::<u64>::into(self.late) >> self.count_bits
    }

    /// What counts at the stamp `now` in a word whose stamp is the end of a window: the permits
    /// taken, and that end while the window is on.
    #[inline(always)]
    pub(crate) fn current(&self, now: u64, word: u64) -> (u64, Option<u64>) {
        let (count, end) = self.split(word);
        match self.ahead(now, end) {
            Some(_) => (0, None),
            None if self.too_late(now, end) > 0 => (self.limit(), Some(end)),
            None => (count, Some(end)),
        }
    }

    /// How many positions late a `now` may be.
    pub(crate) fn staleness(&self) -> u64 {
        let (late, behind): (u64, u64) = (self.late.into(), self.behind.into());
        (late - behind) >> self.count_bits
    }

    /// Whether stamps of positions that are `step` nanoseconds apart come around only after
    /// `horizon` nanoseconds.
    pub(crate) const fn reaches(&self, horizon: u128, step: u64) -> bool {
        (W::MASK >> self.count_bits) as u128 * step as u128 >= horizon
    }

    /// How many positions there are before a stamp comes around again.
    pub(crate) fn range(&self) -> u64 {
        W::MASK >> self.count_bits
    }

    /// The first position that may be taken for one late of the first in the round after.
    #[inline(always)]
    pub(crate) fn first_ambiguous(&self) -> u64 {
        Into::<u64>::into(self.behind) >> self.count_bits
    }
}

/// Spans of time that end in a stamp: those that begin with an event, where positions are ticks, or
/// windows on a grid.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Started<W: Word> {
    pub(crate) layout: Stamped<W>,
    pub(crate) grid: Grid,
}

impl<W: Word> Started<W> {
    /// For counts up to `limit` in a window of length `window`, and for waits of length `wait`;
    /// where that is the shorter one, with a note of [`offset_bits`]. The tick is what was asked
    /// for, or the finest of 1 ns, 10 ns, 100 ns, ... whose horizon is an hour or more, or else the
    /// coarsest up to the window.
    pub(crate) const fn new(
        limit: u64,
        window: u64,
        wait: u64,
        tick: Option<u64>,
        staleness: Option<u64>,
        origin: Timestamp,
    ) -> Result<Self, SettingsError> {
        let longest = if window > wait { window } else { wait };
        let (mut step, automatic) = match tick {
            Some(tick) => (tick, false),
            None => (1, true),
        };
        loop {
            let coarser = automatic && step <= window / 10;
            let note_bits = offset_bits(window.div_ceil(step), wait.div_ceil(step));
            // One more for an event that is rounded up.
            let reach = longest.div_ceil(step) + 1;
            match Stamped::with_note(note_bits, limit, step, reach, staleness) {
                Ok(layout) if !coarser || layout.reaches(settings::FAR_ENOUGH, step) => {
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

    /// For counts up to `limit` in windows of length `window` that lie side by side.
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

    /// A span's length as a stamp, rounded up.
    pub(crate) const fn span(&self, nanos: u64) -> W {
        narrow(self.layout.stamp(nanos.div_ceil(self.grid.step())))
    }

    /// Where nothing has begun since `origin`.
    pub(crate) const fn nothing_since(&self, origin: Timestamp) -> u64 {
        self.layout.stamp(self.grid.index(origin))
    }

    /// `now` as a stamp, rounded down.
    #[inline(always)]
    pub(crate) fn stamp(&self, now: Timestamp) -> u64 {
        self.layout.stamp(self.grid.index(now))
    }

    /// The end of a span that begins at `now`, rounded up.
    #[inline(always)]
    pub(crate) fn end(&self, now: Timestamp, span: u64) -> u64 {
        let (position, into) = self.grid.split(now);
        let from = self
            .layout
            .stamp(position.wrapping_add(u64::from(into != 0)));
        from.wrapping_add(span) & W::MASK
    }
}

/// How many bits a number takes.
pub(crate) const fn bits(number: u64) -> u32 {
    u64::BITS - number.leading_zeros()
}

/// How many of the leading bits of an offset into a window of `window` ticks tell it to within
/// `grain` ticks; none where the grain is no shorter than the window.
pub(crate) const fn offset_bits(window: u64, grain: u64) -> u32 {
    if grain < window {
        bits((window - 1) >> grain.ilog2())
    } else {
        0
    }
}
