//! A state that is on until an instant: one atomic word, `until`, in ticks that wrap in the word.
//!
//! ```text
//!        started                       until
//!   --------|---------- wait ------------|-- staleness --|------>
//!    off    | on: written once           | off           | off, and the word may be cleared
//! ```
//!
//! Invariant: `until` is 0, which is never on, or at most `reach` ticks (the span and two) after
//! the instant of the call that wrote it. A start writes an end at least `span` ticks after its
//! instant. There are four transitions, each one compare-exchange:
//!
//! - *start*, only while the state is off: moves `until` forward;
//! - *extend*, by hand: moves `until` forward as seen from `now`, or leaves it;
//! - *clear*, only when the state has been off for at least one staleness, so that a stale
//!   timestamp at which it was on does not find it off;
//! - *end*, at any time.
//!
//! Seen from `now`, the wrapped distance to `until` is one position on a circle:
//!
//! ```text
//! 0 | 1 ............ on | on+1 .............. 2^bits-1
//!  over | on: reach + staleness | over, by up to the rest of the circle
//! ```
//!
//! Ticks are rounded so that the hold is never too short: the start up, the wait up, and `now`
//! down.

use core::time::Duration;

use crate::limiter::Idle;
use crate::limiter::denied::Retry;
use crate::newer::cold_path;
use crate::sync::atomic::Ordering::Relaxed;
use crate::time::grid::Grid;
use crate::time::timestamp::{Timestamp, saturating_duration};
use crate::time::timing::Timing;
use crate::word::builder::AskedTiming;
use crate::word::settings::{self, MIN_STALENESS, Misfit, Room, Scale, Setting, SettingsError};
use crate::word::{AtomicWord, Word, narrow};

/// The word of a hold that was never on or was cleared.
pub(crate) const NEVER: u64 = 0;

/// How long a state stays on, and the ticks that its word counts. The word is stored separately, so
/// that one `Hold` can serve an array of words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hold<W: Word> {
    /// The ticks from the rounded-up start to the end.
    span: W,
    /// How many ticks `until` may be ahead of a stale `now`.
    on: W,
    staleness: W,
    ticks: Grid,
}

impl<W: Word> Hold<W> {
    /// Creates a hold of at least `wait`, 1 ns to 292 years. The default tick is the finest of 1
    /// ns, 10 ns, 100 ns, ... in which the wait fits and the word wraps [late
    /// enough](Room::is_enough). It is at most a hundredth of the wait, or as coarse as an hour
    /// before the word wraps requires.
    ///
    /// `setting` is the name of the wait.
    pub(crate) const fn new(
        wait: Duration,
        setting: Setting,
        timing: &AskedTiming,
    ) -> Result<Self, SettingsError> {
        let wait = match settings::nanos(wait, setting) {
            Ok(nanos) => nanos,
            Err(error) => return Err(error),
        };
        let (asked, staleness) = match (timing.tick_nanos(), timing.staleness_nanos()) {
            (Ok(tick), Ok(staleness)) => (tick, staleness),
            (Err(error), _) | (_, Err(error)) => return Err(error),
        };
        let origin = timing.origin;
        if let Some(tick) = asked {
            return match Self::fit(wait, setting, tick, staleness, origin) {
                Ok((hold, _)) => Ok(hold),
                Err(error) => Err(error),
            };
        }
        let mut tick = Room::of(W::BITS).finest_tick(wait);
        loop {
            match Self::fit(wait, setting, tick, staleness, origin) {
                Ok((hold, true)) => return Ok(hold),
                Ok((hold, false))
                    if tick > wait / 1_000
                        && W::MASK as u128 * tick as u128 >= settings::FAR_ENOUGH =>
                {
                    return Ok(hold);
                }
                Err(error) if tick > u64::MAX / 10 => return Err(error),
                _ => tick *= 10,
            }
        }
    }

    /// Returns the hold at one tick, and whether its word wraps late enough.
    const fn fit(
        wait: u64,
        setting: Setting,
        tick: u64,
        staleness: Option<u64>,
        origin: Timestamp,
    ) -> Result<(Self, bool), SettingsError> {
        let room = Room::of(W::BITS);
        let range = 1u128 << W::BITS;
        let span = wait.div_ceil(tick);
        // One more tick for a start that is rounded up, and one for an end that would equal
        // `NEVER`.
        let reach = span as u128 + 2;
        let scale = Scale {
            step: tick,
            gain: 1,
        };
        match settings::staleness(room, range, reach, staleness, None, scale) {
            Ok(staleness) => {
                let on = reach + staleness;
                let hold = Self {
                    span: narrow(span),
                    on: narrow(on as u64),
                    staleness: narrow(staleness as u64),
                    ticks: Grid::new(origin, tick),
                };
                Ok((hold, room.is_enough(range, on, scale)))
            }
            Err(Misfit::Staleness) => {
                let max = ((range / 4) as u64).saturating_mul(tick);
                Err(SettingsError::TooLarge {
                    setting: Setting::Staleness,
                    max,
                })
            }
            Err(Misfit::Second) => {
                let min = MIN_STALENESS.div_ceil((range / 4) as u64);
                Err(SettingsError::TooSmall {
                    setting: Setting::Tick,
                    min,
                })
            }
            Err(Misfit::Reach) => {
                let max = ((range / 4 - 2) as u64).saturating_mul(tick);
                Err(SettingsError::TooLarge { setting, max })
            }
        }
    }

    /// Returns how many ticks `until` is ahead of `now`, or `None` if the hold is over.
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

    /// Returns when to retry a request at `now` for which the inner limiter answers `inner`: not
    /// before the hold is over.
    pub(crate) fn retry(&self, until: u64, now: Timestamp, inner: Retry) -> Retry {
        let Some(ahead) = self.ahead(until, now) else {
            return inner;
        };
        match self.end(now, ahead) {
            Some(end) => inner.longer(Retry::At(end), now),
            None => Retry::Never,
        }
    }

    /// Starts the hold at `now`, unless it is on. Of concurrent starts, one takes effect.
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

    /// Moves the end of the hold forward to `end`, at most the wait after `now`. An end that is
    /// later stays. Returns the end as it then is; `now` if the hold is off.
    pub(crate) fn extend(&self, word: &AtomicWord<W>, now: Timestamp, end: Timestamp) -> Timestamp {
        let (from, to) = (self.ticks.split(now), self.ticks.split(end));
        let up = |(tick, into): (u64, u64)| tick.saturating_add(u64::from(into != 0));
        // As long as a start at `now`, at most.
        let most = u64::from(from.1 != 0) + self.span.into();
        let ahead = if end > now {
            up(to).saturating_sub(from.0).min(most)
        } else {
            0
        };
        let mut until = word.load(Relaxed);
        loop {
            let present = self.ahead(until, now).unwrap_or(0);
            if present >= ahead {
                return self.until(until, now);
            }
            let new = from.0.wrapping_add(ahead) & W::MASK;
            let new = if new == NEVER { new + 1 } else { new };
            match word.compare_exchange_weak(until, new, Relaxed, Relaxed) {
                Ok(_) => return self.until(new, now),
                Err(newer) => until = newer,
            }
        }
    }

    /// Returns the end of the hold; `now` if it is off.
    pub(crate) fn until(&self, until: u64, now: Timestamp) -> Timestamp {
        match self.ahead(until, now) {
            Some(ahead) => self.end(now, ahead).unwrap_or(Timestamp::MAX),
            None => now,
        }
    }

    /// Returns the instant that is `ahead` ticks after the tick of `now`; `None` if timestamps do
    /// not reach it.
    fn end(&self, now: Timestamp, ahead: u64) -> Option<Timestamp> {
        let end = self.ticks.index(now).checked_add(ahead)?;
        self.ticks.start(end)
    }

    /// Clears `word`, from which `until` was read, if the hold ended at least one staleness before
    /// `now`. No stale timestamp within the staleness then still finds it on.
    #[inline(always)]
    pub(crate) fn clear(&self, word: &AtomicWord<W>, until: u64, now: Timestamp) {
        if until == NEVER {
            return;
        }
        cold_path();
        let passed = self.ticks.index(now).wrapping_sub(until) & W::MASK;
        if self.ahead(until, now).is_none() && passed >= self.staleness.into() {
            // If this fails, another call has changed the word, or a later call clears it.
            let _ = word.compare_exchange_weak(until, NEVER, Relaxed, Relaxed);
        }
    }

    /// Ends the hold at any time.
    pub(crate) fn stop(word: &AtomicWord<W>) {
        let mut until = word.load(Relaxed);
        while until != NEVER {
            match word.compare_exchange_weak(until, NEVER, Relaxed, Relaxed) {
                Ok(_) => return,
                Err(newer) => until = newer,
            }
        }
    }

    /// Whether a limiter is idle at `now` whose inner limiter answers `inner`: not while the hold
    /// is on, and not since before it ended.
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

    /// Returns how the hold counts time: see [`Timing`].
    pub(crate) fn timing(&self) -> Timing {
        let staleness = self.span_of(self.staleness.into());
        Timing::on(&self.ticks, staleness, self.span_of(W::MASK))
    }

    /// The time from a start at a whole tick to the end.
    pub(crate) fn wait(&self) -> Duration {
        self.span_of(self.span.into())
    }

    fn span_of(&self, ticks: u64) -> Duration {
        saturating_duration(u128::from(ticks) * u128::from(self.ticks.step()))
    }
}
