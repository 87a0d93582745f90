//! What stays on until an instant: one atomic word, `until`, in ticks that wrap around in the word.
//!
//! ```text
//!        started                       until
//!   --------|---------- wait ------------|-- staleness --|------>
//!    off    | on: written once           | off           | off, and the word may be cleared
//! ```
//!
//! Invariant: `until` is 0, which is never on, or lies at least the wait after the instant that
//! started it; it moves only when it is not on, and then ahead. Three transitions, each one
//! compare-exchange: *start*, where it is not on; *clear*, once it has been over for the staleness,
//! so that nobody who is late takes a cleared word for one that is over; and *end*, at any time.
//!
//! Seen from `now`, the wrapped distance to `until` is read off one circle:
//!
//! ```text
//! 0 | 1 ............ on | on+1 .............. 2^bits-1
//!  over | on: reach + staleness | over, by up to the rest of the circle
//! ```
//!
//! Ticks are rounded against the one who waits: a start up, the wait up, and `now` down.

use core::hint::cold_path;
use core::time::Duration;

use crate::sync::atomic::Ordering::Relaxed;
use crate::time::grid::Grid;
use crate::time::timestamp::saturating_duration;
use crate::word::settings::{self, Misfit, Scale};
use crate::word::{AtomicWord, Word, narrow};
use crate::{Idle, Retry, Setting, SettingsError, Timestamp};

/// The word of what has never been on, or has been over for long.
pub(crate) const NEVER: u64 = 0;

/// How long something stays on, and in which ticks its word counts. The word stands beside it, so
/// that one setting can serve an array of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hold<W: Word> {
    /// From the tick that a start is rounded up to, to the one at which it is over.
    span: W,
    /// How far ahead of a `now` that is late `until` may lie.
    on: W,
    staleness: W,
    ticks: Grid,
}

impl<W: Word> Hold<W> {
    /// On for at least `wait`, 1 ns to 292 years. The tick is the finest of 1 ns, 10 ns, 100 ns,
    /// ... in which the wait fits, and after an hour or more the word comes around.
    pub(crate) const fn new(
        wait: Duration,
        tick: Option<Duration>,
        staleness: Option<Duration>,
    ) -> Result<Self, SettingsError> {
        let wait = match settings::nanos(wait, Setting::Wait) {
            Ok(nanos) => nanos,
            Err(error) => return Err(error),
        };
        let staleness = match settings::staleness_nanos(staleness) {
            Ok(nanos) => nanos,
            Err(error) => return Err(error),
        };
        if let Some(tick) = tick {
            return match settings::nanos(tick, Setting::Tick) {
                Ok(tick) => Self::fit(wait, tick, staleness),
                Err(error) => Err(error),
            };
        }
        let mut tick = 1;
        loop {
            match Self::fit(wait, tick, staleness) {
                Ok(hold) if W::MASK as u128 * tick as u128 >= settings::FAR_ENOUGH => {
                    return Ok(hold);
                }
                Err(error) if tick > u64::MAX / 10 => return Err(error),
                _ => tick *= 10,
            }
        }
    }

    const fn fit(wait: u64, tick: u64, staleness: Option<u64>) -> Result<Self, SettingsError> {
        let range = 1u128 << W::BITS;
        let span = wait.div_ceil(tick);
        // One more for a start that is rounded up, and one for an end that would read as `NEVER`.
        let reach = span as u128 + 2;
        let scale = Scale {
            step: tick,
            gain: 1,
        };
        match settings::staleness(range, reach, staleness, None, scale) {
            Ok(staleness) => Ok(Self {
                span: narrow(span),
                on: narrow((reach + staleness) as u64),
                staleness: narrow(staleness as u64),
                ticks: Grid::new(Timestamp::ZERO, tick),
            }),
            Err(Misfit::Staleness | Misfit::Second) => {
                let max = ((range / 4) as u64).saturating_mul(tick);
                Err(SettingsError::TooLarge {
                    setting: Setting::Staleness,
                    max,
                })
            }
            Err(Misfit::Reach) => {
                let max = ((range / 4 - 2) as u64).saturating_mul(tick);
                Err(SettingsError::TooLarge {
                    setting: Setting::Wait,
                    max,
                })
            }
        }
    }

    /// How many ticks `until` lies ahead of `now`; `None` if it is over.
    #[inline(always)]
    fn ahead(&self, until: u64, now: Timestamp) -> Option<u64> {
        if until == NEVER {
            return None;
        }
        let distance = until.wrapping_sub(self.ticks.index(now)) & W::MASK;
        if distance != 0 && distance <= self.on.into() {
            Some(distance)
        } else {
            None
        }
    }

    #[inline(always)]
    pub(crate) fn is_on(&self, until: u64, now: Timestamp) -> bool {
        self.ahead(until, now).is_some()
    }

    /// When a request at `now` may come back that `inner` would let come back: not before this is
    /// over.
    pub(crate) fn retry(&self, until: u64, now: Timestamp, inner: Retry) -> Retry {
        let Some(ahead) = self.ahead(until, now) else {
            return inner;
        };
        match self
            .ticks
            .index(now)
            .checked_add(ahead)
            .and_then(|end| self.ticks.start(end))
        {
            Some(end) => inner.longer(Retry::At(end), now),
            None => Retry::Never,
        }
    }

    /// Starts it at `now`, unless it is on. Of those who start it at once, one does.
    pub(crate) fn start(&self, word: &AtomicWord<W>, now: Timestamp) {
        let (tick, into) = self.ticks.split(now);
        let end = tick
            .wrapping_add(u64::from(into != 0))
            .wrapping_add(self.span.into())
            & W::MASK;
        let end = if end == NEVER { end + 1 } else { end };
        let mut until = word.load(Relaxed);
        while !self.is_on(until, now) {
            match word.compare_exchange_weak(until, end, Relaxed, Relaxed) {
                Ok(_) => return,
                Err(newer) => until = newer,
            }
        }
    }

    /// Clears `word`, of which `until` was read, if it has been over for so long at `now` that
    /// nobody who is late would find it on.
    #[inline(always)]
    pub(crate) fn clear(&self, word: &AtomicWord<W>, until: u64, now: Timestamp) {
        if until == NEVER {
            return;
        }
        cold_path();
        let passed = self.ticks.index(now).wrapping_sub(until) & W::MASK;
        if self.ahead(until, now).is_none() && passed >= self.staleness.into() {
            // If it fails, another has changed the word, or the next one clears it.
            let _ = word.compare_exchange_weak(until, NEVER, Relaxed, Relaxed);
        }
    }

    /// Ends it, at whatever time.
    pub(crate) fn stop(word: &AtomicWord<W>) {
        let mut until = word.load(Relaxed);
        while until != NEVER {
            match word.compare_exchange_weak(until, NEVER, Relaxed, Relaxed) {
                Ok(_) => return,
                Err(newer) => until = newer,
            }
        }
    }

    /// Whether a limiter that is `inner` at `now` is as good as new: not while this is on, nor
    /// earlier than it ended.
    pub(crate) fn idle(&self, until: u64, now: Timestamp, inner: Idle) -> Idle {
        if self.is_on(until, now) {
            return Idle::InUse;
        }
        match inner {
            Idle::Since(since) if until != NEVER => {
                let tick = self.ticks.index(now);
                let passed = tick.wrapping_sub(until) & W::MASK;
                let end = self
                    .ticks
                    .start(tick.saturating_sub(passed))
                    .unwrap_or(Timestamp::MAX);
                Idle::Since(since.max(end))
            }
            inner => inner,
        }
    }

    /// How much older than the newest `now` another one may be, to find on what that one has
    /// started.
    pub(crate) fn staleness(&self) -> Duration {
        self.span_of(self.staleness.into())
    }

    /// After how long the word comes around.
    pub(crate) fn horizon(&self) -> Duration {
        self.span_of(W::MASK)
    }

    pub(crate) fn tick(&self) -> Duration {
        Duration::from_nanos(self.ticks.step())
    }

    fn span_of(&self, ticks: u64) -> Duration {
        saturating_duration(u128::from(ticks) * u128::from(self.ticks.step()))
    }
}
