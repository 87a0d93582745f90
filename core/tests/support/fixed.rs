//! A fixed window that remembers the instant at which it ends, in positions that never wrap.

use core::time::Duration;

use portcullis_core::limiter::Idle;
use portcullis_core::state::Word;
use portcullis_core::{FixedWindow, Timestamp};

use super::draws::Draws;
use super::model::{AGES, Landmarks, Model, Verdict, nanos};

/// An ideal window, and what the real one documents about its word.
#[derive(Debug)]
pub(crate) struct FixedModel {
    limit: u64,
    window: u64,
    started: bool,
    origin: u64,
    /// The window if there is a grid, otherwise the tick to which a start is rounded up.
    step: u64,
    /// The position at which the newest window ends.
    end: i128,
    count: u64,
    /// The position of the newest `now` written.
    newest: i128,
    /// The number of positions that the word can distinguish.
    range: i128,
    staleness: i128,
    facts: (u64, u64),
    /// If positions are nanoseconds, an instant before the origin would not be clamped to it.
    earliest: u64,
}

impl FixedModel {
    fn new<W: Word>(fixed: &FixedWindow<W>, window: u64, started: bool, origin: u64) -> Self {
        let step = nanos(fixed.timing().tick);
        let positions = |span: Duration| (span.as_nanos() / u128::from(step)).cast_signed();
        Self {
            limit: fixed.limit(),
            window,
            started,
            // Positions of 1 ns are timestamps.
            origin: if step == 1 { 0 } else { origin },
            step,
            // The last window ended at the origin.
            end: if step == 1 { origin.into() } else { 0 },
            count: 0,
            newest: if step == 1 { origin.into() } else { 0 },
            range: positions(fixed.timing().horizon) + 1,
            staleness: positions(fixed.timing().staleness.min(AGES)),
            facts: (
                nanos(fixed.timing().staleness),
                nanos(fixed.timing().horizon),
            ),
            earliest: if step == 1 { origin } else { 0 },
        }
    }

    fn position(&self, now: u64) -> i128 {
        (now.saturating_sub(self.origin) / self.step).into()
    }

    /// The distance from the position that starts a window to the one that ends it.
    fn span(&self) -> i128 {
        self.window.div_ceil(self.step).into()
    }

    /// The position at which a window that `now` starts would end.
    fn end_from(&self, now: u64) -> i128 {
        let within = !now.saturating_sub(self.origin).is_multiple_of(self.step);
        self.position(now) + self.span() + i128::from(self.started && within)
    }

    /// How far the position is from wrapping to the end of the newest window, if it is so close
    /// that the old window seems to be open.
    fn lap(&self, now: u64) -> Option<i128> {
        let passed = self.position(now) - self.end;
        let ahead = self.range - passed.rem_euclid(self.range);
        (passed >= 0 && ahead <= self.near()).then_some(ahead)
    }

    /// How long before that end all requests are denied or counted in the old window.
    fn near(&self) -> i128 {
        self.staleness + self.span() + i128::from(self.started)
    }

    /// Whether all requests are denied: close to the wrap, but not yet so close that the old window
    /// counts; or for a stale timestamp there.
    fn is_shut(&self, now: u64) -> bool {
        let behind = (self.end - self.position(now)).rem_euclid(self.range);
        behind > self.near() && behind <= self.near() + self.staleness
    }
}

impl Model for FixedModel {
    fn look(&self, now: u64) -> Verdict {
        let (position, rest) = (self.position(now), self.limit - self.count);
        if self.is_shut(now) && position >= self.newest - self.staleness {
            Verdict::Wrapped {
                told: 0,
                ideal: self.limit,
            }
        } else if self.lap(now).is_some() {
            Verdict::Wrapped {
                told: rest,
                ideal: self.limit,
            }
        } else if position >= self.end {
            Verdict::Exactly(self.limit)
        } else if position >= self.newest {
            Verdict::Exactly(rest)
        } else if self.newest - position <= self.staleness {
            Verdict::Late { most: rest }
        } else {
            Verdict::Void
        }
    }

    fn granted(&mut self, now: u64, n: u32, _told: u64) {
        let (position, begun) = (self.position(now), self.end_from(now));
        // The old window, with all that was taken in it, as if it ended when its wrapped end comes.
        let lapped = self.lap(now).map(|ahead| position + ahead);
        let on_until = lapped.or((position < self.end).then_some(self.end));
        // An empty window that a request starts has not been started.
        let empty = self.started && self.count == 0;
        match on_until.filter(|&end| !(empty && begun >= end)) {
            Some(end) if lapped.is_some() => (self.end, self.newest) = (end, position),
            Some(_) => {}
            None => {
                let newest = if on_until.is_some() {
                    self.newest
                } else {
                    position
                };
                (self.end, self.count, self.newest) = (begun, 0, newest);
            }
        }
        self.newest = self.newest.max(position);
        self.count += u64::from(n);
        assert!(self.count <= self.limit, "more was granted than the limit");
    }

    fn capacity(&self) -> u64 {
        self.limit
    }

    fn allows_idle(&self, now: u64, _told: u64, idle: Idle) -> bool {
        let ideal = i128::from(self.origin) + self.end * i128::from(self.step);
        match (self.look(now), idle) {
            (Verdict::Exactly(available), Idle::Since(since)) => {
                let since = i128::from(since.as_nanos());
                let far = self.position(now) - self.end >= self.range;
                available == self.limit && if far { since >= ideal } else { since == ideal }
            }
            (Verdict::Exactly(_), Idle::InUse) => self.count > 0 && self.position(now) < self.end,
            (Verdict::Exactly(_), _) => false,
            (Verdict::Void, _) => true,
            (Verdict::Wrapped { told: 0, .. }, _) => idle == Idle::InUse,
            _ => (idle == Idle::InUse) == (self.count > 0),
        }
    }

    fn landmarks(&self) -> Landmarks {
        Landmarks {
            grain: self.step,
            reach: self.window,
            staleness: self.facts.0,
            horizon: self.facts.1,
            first: self.origin.max(self.earliest),
            earliest: self.earliest,
        }
    }
}

/// A random window and its model, or `None` if the settings do not fit the word.
pub(crate) fn random_fixed<W: Word>(draws: &mut Draws<'_>) -> Option<(FixedWindow<W>, FixedModel)> {
    const LONGEST: u64 = 100 * 365 * 24 * 3_600 * 1_000_000_000;
    let length = draws.magnitude(LONGEST).max(1);
    let window = draws.one_of(&[length, 1_000_000_000, 60_000_000_000, 1, 999_999_937]);
    let limit = draws.magnitude(W::MASK >> 2).max(1);
    let limit = draws.one_of(&[limit, limit.min(20), 1]);
    let started = draws.once_in(2);
    let mut builder = FixedWindow::builder(limit, Duration::from_nanos(window));
    if started {
        builder = builder.started_by_first_request();
        let tick = draws.magnitude(20_000_000_000).max(1);
        if let Some(tick) = draws.one_of(&[None, None, Some(tick), Some(window)]) {
            builder = builder.tick(Duration::from_nanos(tick));
        }
    }
    if draws.once_in(4) {
        let seconds = 1 + draws.magnitude(100 * 365 * 24 * 3_600);
        builder = builder.staleness(Duration::from_secs(seconds));
    }
    let origin = if draws.once_in(2) {
        draws.magnitude(u64::MAX)
    } else {
        0
    };
    let fixed = builder
        .origin(Timestamp::from_nanos(origin))
        .build_on::<W>()
        .ok()?;
    let model = FixedModel::new(&fixed, window, started, origin);
    Some((fixed, model))
}
