//! What a model is asked, and what it says.

use portcullis_core::Idle;

/// What an ideal limiter, without a word that wraps, has available; and how close the limiter must
/// come to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The limiter must say so too.
    Exactly(u64),
    /// `now` is older than the newest `now` written, which would be told this much: the limiter may
    /// say less.
    Late {
        /// What the newest `now` would be told.
        most: u64,
    },
    /// The limiter has been idle for about a multiple of its horizon: it takes itself for less than
    /// full, by this much.
    Wrapped {
        /// What it must say.
        told: u64,
        /// What an ideal limiter has.
        ideal: u64,
    },
    /// The same, but nobody says how much less: the limiter may say any less than an ideal one has.
    Blurred {
        /// What an ideal limiter has.
        ideal: u64,
    },
    /// `now` is older than the stated staleness: nothing is promised.
    Void,
}

impl Verdict {
    /// Whether the limiter may say `told`.
    pub(crate) fn allows(self, told: u64) -> bool {
        match self {
            Self::Exactly(available) => told == available,
            Self::Late { most } => told <= most,
            Self::Wrapped {
                told: expected,
                ideal,
            } => told == expected && told <= ideal,
            Self::Blurred { ideal } => told <= ideal,
            Self::Void => true,
        }
    }

    /// Whether a retry instant can be exact: not where nobody can tell when an old lap ends.
    pub(crate) fn promises_a_retry(self) -> bool {
        !matches!(self, Self::Blurred { .. } | Self::Void)
    }
}

/// A limiter in rational arithmetic, that is told what the real one granted.
pub(crate) trait Model {
    /// What there is at `now`, which need not be the newest.
    fn look(&self, now: u64) -> Verdict;
    /// The limiter granted `n` permits at `now`, having said that it had `told`.
    fn granted(&mut self, now: u64, n: u32, told: u64);
    /// The most that there can be.
    fn capacity(&self) -> u64;
    /// Whether the limiter may call itself idle in this way, having said that it had `told`.
    fn allows_idle(&self, now: u64, told: u64, idle: Idle) -> bool;
    /// Times at which something happens, for the trace to jump by: the time for a permit, to fill
    /// or for a window, the staleness, and the horizon.
    fn landmarks(&self) -> Landmarks;
}

/// Spans of time that a model's limiter treats differently, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Landmarks {
    /// In which about a permit comes back.
    pub(crate) grain: u64,
    /// In which all permits come back.
    pub(crate) reach: u64,
    /// How old a `now` may be.
    pub(crate) staleness: u64,
    /// After which the word repeats.
    pub(crate) horizon: u64,
    /// The instant that the limiter starts at.
    pub(crate) first: u64,
    /// The first instant that the trace may use.
    pub(crate) earliest: u64,
}

/// A span of time, or the longest one that a `u64` carries.
pub(crate) fn nanos(span: core::time::Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// As far as two instants can lie apart.
pub(crate) const AGES: core::time::Duration = core::time::Duration::from_nanos(u64::MAX);
