//! A sliding window that remembers what was granted in each segment, by an index that never wraps.

use std::collections::VecDeque;

use portcullis_core::limiter::Idle;
use portcullis_core::state::Word;
use portcullis_core::{SlidingWindow, Timestamp};

use super::draws::Draws;
use super::model::{AGES, Landmarks, Model, Verdict, nanos};

/// The largest number of segments of the windows under test.
pub(crate) const MAX_SEGMENTS: usize = 7;

/// An ideal window, and what the real one documents about its word.
#[derive(Debug)]
pub(crate) struct SlidingModel {
    limit: u64,
    window: u64,
    segments: u64,
    /// The number of segments that count together.
    length: i128,
    origin: u64,
    /// The segments, and what was granted in each.
    grants: VecDeque<(i128, u64)>,
    /// The newest segment with a grant; a new limiter's is one ring before the origin.
    newest: i128,
    /// The segment that the word represents: the newest, or one in the future after the word has
    /// wrapped.
    stamp: i128,
    /// The number of segments that the word can distinguish.
    range: i128,
    staleness: i128,
    facts: (u64, u64),
    /// If positions are nanoseconds, an instant before the origin would not be clamped to it.
    earliest: u64,
    /// Up to this segment, grants made after the word wrapped may count for longer than they
    /// should.
    blurred: Option<i128>,
}

impl SlidingModel {
    fn new<W: Word>(
        sliding: &SlidingWindow<MAX_SEGMENTS, W>,
        window: u64,
        strict: bool,
        origin: u64,
    ) -> Self {
        let segments = u64::from(sliding.segments());
        let in_segments = |span: core::time::Duration| {
            (span.as_nanos() * u128::from(segments))
                .div_ceil(u128::from(window))
                .cast_signed()
        };
        let length = i128::from(segments) + i128::from(strict);
        Self {
            limit: sliding.limit(),
            window,
            segments,
            length,
            // If segments are exactly 1 ns long, the grid is time itself.
            origin: if window == segments { 0 } else { origin },
            grants: VecDeque::new(),
            newest: -length,
            stamp: -length,
            range: in_segments(sliding.timing().horizon) + 1,
            staleness: in_segments(sliding.timing().staleness.min(AGES)),
            facts: (
                nanos(sliding.timing().staleness),
                nanos(sliding.timing().horizon),
            ),
            earliest: if window == segments { origin } else { 0 },
            blurred: None,
        }
    }

    fn segment(&self, now: u64) -> i128 {
        let since = u128::from(now.saturating_sub(self.origin));
        let segment = (since * u128::from(self.segments) / u128::from(self.window)).cast_signed();
        // The last few segments of all time are one segment, if they are 1 ns long.
        segment.min(i128::from(u64::MAX) - self.length)
    }

    /// The first instant of a segment.
    fn start(&self, segment: i128) -> i128 {
        let since = (segment * i128::from(self.window))
            .unsigned_abs()
            .div_ceil(u128::from(self.segments));
        i128::from(self.origin) + since.cast_signed()
    }

    /// What an ideal window has left in `segment`.
    fn left(&self, segment: i128) -> u64 {
        let counted = self
            .grants
            .iter()
            .filter(|(at, _)| *at > segment - self.length);
        self.limit - counted.map(|(_, n)| n).sum::<u64>()
    }

    /// If the word has wrapped to about the newest grant: for how many segments it will look like
    /// that.
    fn lap(&self, segment: i128) -> Option<i128> {
        let passed = segment - self.stamp;
        if passed < self.range - 2 * self.staleness - 2 * self.length {
            return None;
        }
        let into = passed % self.range;
        // A grant made after the word wrapped may be in a slot that is as far ahead.
        let remains = if self.blurred.is_some() {
            self.staleness + 2 * self.length
        } else {
            self.length
        };
        if into < remains {
            Some(remains - into)
        } else if into >= self.range - 2 * self.staleness - 2 * self.length {
            Some(self.range - into + remains)
        } else {
            None
        }
    }

    fn is_blurred(&self, segment: i128) -> bool {
        self.blurred.is_some_and(|until| segment < until)
    }
}

impl Model for SlidingModel {
    fn look(&self, now: u64) -> Verdict {
        let segment = self.segment(now);
        let late = self.newest - segment;
        if !self.grants.is_empty() && late > self.staleness {
            Verdict::Void
        } else if self.is_blurred(segment) || self.lap(segment).is_some() {
            Verdict::Blurred {
                ideal: self.left(segment.max(self.newest)),
            }
        } else if segment >= self.newest {
            Verdict::Exactly(self.left(segment))
        } else {
            Verdict::Late {
                most: self.left(self.newest),
            }
        }
    }

    fn granted(&mut self, now: u64, n: u32, _told: u64) {
        let segment = self.segment(now);
        if let Some(lasts) = self.lap(segment) {
            let until = segment + lasts + self.length;
            self.blurred = Some(self.blurred.map_or(until, |before| before.max(until)));
            // The word keeps representing the old segment only if `now` looks stale to it.
            let ahead = self.range - (segment - self.stamp) % self.range;
            if ahead <= self.staleness + self.length {
                self.stamp = segment + ahead;
            }
        } else if !self.is_blurred(segment) && segment >= self.newest {
            self.blurred = None;
        }
        self.newest = self.newest.max(segment);
        self.stamp = self.stamp.max(segment);
        match self.grants.back_mut() {
            Some((at, count)) if *at == self.newest => *count += u64::from(n),
            _ => self.grants.push_back((self.newest, n.into())),
        }
        while self
            .grants
            .front()
            .is_some_and(|(at, _)| *at <= self.newest - self.length)
        {
            self.grants.pop_front();
        }
        // Fails if more was granted than the limit.
        self.left(self.newest);
    }

    fn capacity(&self) -> u64 {
        self.limit
    }

    fn allows_idle(&self, now: u64, told: u64, idle: Idle) -> bool {
        let segment = self.segment(now);
        match (self.look(now), idle) {
            (Verdict::Exactly(available), Idle::Since(since)) => {
                let (since, ideal) = (
                    i128::from(since.as_nanos()),
                    self.start(self.newest + self.length),
                );
                let far = segment - self.newest >= self.range || self.blurred.is_some();
                available == self.limit && if far { since >= ideal } else { since == ideal }
            }
            (Verdict::Exactly(available), Idle::InUse) => available < self.limit,
            (Verdict::Exactly(_), _) => false,
            (Verdict::Void, _) => true,
            _ => idle.is_idle() == (told == self.limit),
        }
    }

    fn landmarks(&self) -> Landmarks {
        Landmarks {
            grain: self.window / self.segments,
            reach: self.window,
            staleness: self.facts.0,
            horizon: self.facts.1,
            first: self.origin.max(self.earliest),
            earliest: self.earliest,
        }
    }
}

/// A random window and its model, or `None` if the settings do not fit the word.
pub(crate) fn random_sliding<W: Word>(
    draws: &mut Draws<'_>,
) -> Option<(SlidingWindow<MAX_SEGMENTS, W>, SlidingModel)> {
    use core::time::Duration;
    const LONGEST: u64 = 100 * 365 * 24 * 3_600 * 1_000_000_000;
    let strict = draws.once_in(2);
    let segments = draws.within(1, MAX_SEGMENTS as u64 - u64::from(strict));
    let length = draws.magnitude(LONGEST).max(segments);
    let window = draws.one_of(&[length, 1_000_000_000, 60_000_000_000, segments, 999_999_937]);
    let limit = draws.magnitude(W::MASK >> 2).max(1);
    let limit = draws.one_of(&[limit, limit.min(20), 1]);
    let mut builder = SlidingWindow::<MAX_SEGMENTS>::builder(
        limit,
        Duration::from_nanos(window),
        segments as u32,
    );
    if strict {
        builder = builder.strict();
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
    let sliding = builder
        .origin(Timestamp::from_nanos(origin))
        .build_on::<W>()
        .ok()?;
    let model = SlidingModel::new(&sliding, window, strict, origin);
    Some((sliding, model))
}
