//! The clock of a line: the word that says until when the line's words can be read. See
//! [`line`](super::line) for what that means.
//!
//! ```text
//! 64 bits   63                     21 20      0
//!           +------------------------+---------+
//!           |   2^21 ns (2.1 ms)     |    0    |      585 years
//!           +------------------------+---------+
//! 32 bits   31          12  11  10            0
//!           +-------------+----+---------------+
//!           |    high     |  0 |      low      |      units of 2^29 ns (0.54 s): 36 years, wraps
//!           +-------------+----+---------------+
//! ```
//!
//! The bit for `held` is clear, so no search takes the clock for a slot. All zeros mean that the
//! line has no clock yet. The word of a closed slot is a clock that has run out, at any time.

use crate::time::timestamp::Timestamp;
use crate::word::{NativeWord, STATE_AT};

const IS_WIDE: bool = NativeWord::BITS == 64;
/// The bits of a nanosecond count below the unit of a clock.
const UNIT_BITS: u32 = if IS_WIDE { STATE_AT } else { 29 };
/// The bits of a 32-bit clock below the bit for `held`.
const LOW_BITS: u32 = STATE_AT - 1;
/// With 32 bits, the largest word that counts as a clock that has run out at any time: that of a
/// closed slot. A true clock with such a word is settled more often than necessary.
const RUN_OUT: u64 = 1 << STATE_AT;
/// The most units that a clock can be ahead.
const MOST: u64 = if IS_WIDE {
    (1 << (u64::BITS - UNIT_BITS)) - 1
} else {
    (1 << 30) - 1
};
const UNITS: u64 = (1 << 31) - 1;

/// For how long words can be read after they are settled, in the units of a clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span(u64);

impl Span {
    /// The span of words that can always be read, or never long enough: no clock settles them.
    pub(crate) const FOREVER: Self = Self(MOST);

    /// The span of words that can be read for `nanos` nanoseconds.
    pub(crate) const fn of(nanos: u64) -> Self {
        match nanos >> UNIT_BITS {
            0..4 => Self::FOREVER,
            // A unit less: the unit that has begun.
            units if units <= MOST => Self(units - 1),
            _ => Self::FOREVER,
        }
    }

    /// The span as a word that is not 0.
    pub(crate) const fn word(self) -> u64 {
        self.0
    }

    /// The span that was written as `word`. `None` if that is 0.
    pub(crate) const fn from_word(word: u64) -> Option<Self> {
        if word == 0 { None } else { Some(Self(word)) }
    }
}

const fn units(now: Timestamp) -> u64 {
    now.as_nanos() >> UNIT_BITS
}

/// Puts the bit for `held` between the bits of a count of units.
const fn spread(units: u64) -> u64 {
    let units = units & UNITS;
    units + (units >> LOW_BITS << LOW_BITS)
}

/// Returns the clock of words that are settled at `now`.
pub(crate) const fn at(now: Timestamp, span: Span) -> u64 {
    let until = units(now) + span.0;
    if IS_WIDE {
        (if until > MOST { MOST } else { until }) << UNIT_BITS
    } else {
        spread(until)
    }
}

/// Returns whether words with the clock `word` can be read at `now`. True for every stale `now`.
#[inline(always)]
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "the words have 32 bits then"
)]
pub(crate) const fn is_settled(word: u64, now: Timestamp) -> bool {
    if IS_WIDE {
        now.as_nanos() < word
    } else {
        word > RUN_OUT && ((spread(units(now)) as u32).wrapping_sub(word as u32) as i32) < 0
    }
}

/// Returns when the words with the clock `word` were settled, rounded down. `None` if the clock has
/// not run out at `now`.
pub(crate) const fn settled_at(word: u64, span: Span, now: Timestamp) -> Option<Timestamp> {
    if is_settled(word, now) {
        return None;
    }
    let until = if IS_WIDE {
        word >> UNIT_BITS
    } else {
        let until = (word >> STATE_AT << LOW_BITS) + (word & ((1 << LOW_BITS) - 1));
        let passed = units(now).wrapping_sub(until) & UNITS;
        units(now).saturating_sub(passed)
    };
    let settled = until.saturating_sub(span.0);
    Some(Timestamp::from_nanos(settled << UNIT_BITS))
}
