//! The queries and the answers of a model.

use portcullis_core::limiter::Idle;

/// What an ideal limiter, without a word that wraps, has available; and how close the limiter must
/// come to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The limiter must report the same.
    Exactly(u64),
    /// `now` is older than the newest `now` written. The limiter may report less than at the newest
    /// time.
    Late {
        /// What is available at the newest `now`.
        most: u64,
    },
    /// The limiter has been idle for about a multiple of its horizon: it under-reports its permits.
    Wrapped {
        /// What it must report.
        told: u64,
        /// What an ideal limiter has available.
        ideal: u64,
    },
    /// The same, but by an unknown amount: the limiter may report any number below that of an ideal
    /// one.
    Blurred {
        /// What an ideal limiter has available.
        ideal: u64,
    },
    /// `now` is older than the documented staleness: nothing is guaranteed.
    Void,
}

impl Verdict {
    /// Whether the limiter may report `told`.
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

    /// Whether a retry instant can be exact: not if the end of an old lap is unknown.
    pub(crate) fn promises_a_retry(self) -> bool {
        !matches!(self, Self::Blurred { .. } | Self::Void)
    }
}

/// A limiter in rational arithmetic, which follows the grants of the real one.
pub(crate) trait Model {
    /// What is available at `now`, which need not be the newest time.
    fn look(&self, now: u64) -> Verdict;
    /// Records that the limiter granted `n` permits at `now`, after it reported `told` as
    /// available.
    fn granted(&mut self, now: u64, n: u32, told: u64);
    /// The largest number that can be available.
    fn capacity(&self) -> u64;
    /// Whether the limiter may report `idle`, after it reported `told` as available.
    fn allows_idle(&self, now: u64, told: u64, idle: Idle) -> bool;
    /// Spans after which something happens, for the trace to jump by: the time for a permit, to
    /// fill or for a window, the staleness, and the horizon.
    fn landmarks(&self) -> Landmarks;
}

/// Spans of time that a model's limiter treats differently, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Landmarks {
    /// The span in which about one permit returns.
    pub(crate) grain: u64,
    /// The span in which all permits return.
    pub(crate) reach: u64,
    /// How stale a `now` may be.
    pub(crate) staleness: u64,
    /// The span after which the word repeats.
    pub(crate) horizon: u64,
    /// The instant at which the limiter starts.
    pub(crate) first: u64,
    /// The first instant that the trace may use.
    pub(crate) earliest: u64,
}

/// A span of time, or the longest one that fits a `u64`.
pub(crate) fn nanos(span: core::time::Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// The largest distance of two instants.
pub(crate) const AGES: core::time::Duration = core::time::Duration::from_nanos(u64::MAX);
