//! A continuous bucket in rational arithmetic. The level is an integer number of parts, never
//! rounded; a permit has as many parts as the rate's period has nanoseconds.

use core::time::Duration;

use portcullis_core::builder::{AdjustableBucketBuilder, Setting, TokenBucketBuilder};
use portcullis_core::limiter::Idle;
use portcullis_core::state::Word;
use portcullis_core::{AdjustableBucket, Rate, SettingsError, Timestamp, TokenBucket};

use super::draws::Draws;
use super::model::{AGES, Landmarks, Model, Verdict, nanos};

/// An ideal bucket, and what the real one documents about its word.
#[derive(Debug)]
pub(crate) struct BucketModel {
    permits: i128,
    period: i128,
    full: i128,
    origin: u64,
    tick: u64,
    /// The newest `now` written, rounded down to the tick.
    newest: i128,
    /// The parts that were left then.
    level: i128,
    /// The parts in the smallest unit that the word can count.
    unit: i128,
    /// Units in a tick.
    gain: i128,
    /// The number of units that the word can distinguish.
    range: i128,
    staleness_ticks: i128,
    facts: (u64, u64),
}

/// What a bucket documents about its word.
#[derive(Debug)]
struct Stated {
    tick: Duration,
    staleness: Duration,
    horizon: Duration,
    /// The bits of the lattice.
    bits: u32,
}

impl BucketModel {
    /// Returns the model of a bucket that was built with these settings.
    pub(crate) fn new<W: Word>(
        bucket: &TokenBucket<W>,
        rate: Rate,
        burst: u64,
        initial: u64,
        origin: u64,
    ) -> Self {
        let stated = Stated {
            tick: bucket.timing().tick,
            staleness: bucket.timing().staleness,
            horizon: bucket.timing().horizon,
            bits: W::BITS,
        };
        Self::of(&stated, rate, burst, initial, origin)
    }

    fn of(stated: &Stated, rate: Rate, burst: u64, initial: u64, origin: u64) -> Self {
        let permits = i128::from(rate.permits());
        let period = i128::from(nanos(rate.period()));
        let tick = nanos(stated.tick);
        let unit = gcd(permits * i128::from(tick), period);
        let mut model = Self {
            permits,
            period,
            full: i128::from(burst) * period,
            origin,
            tick,
            newest: 0,
            level: i128::from(initial) * period,
            unit,
            gain: permits * i128::from(tick) / unit,
            range: 1 << stated.bits,
            staleness_ticks: (stated.staleness.min(AGES).as_nanos() / u128::from(tick))
                .cast_signed(),
            facts: (nanos(stated.staleness), nanos(stated.horizon)),
        };
        model.newest = model.rounded(origin);
        model
    }

    /// `now`, rounded down as a bucket with this tick does it.
    fn rounded(&self, now: u64) -> i128 {
        if self.tick == 1 {
            return now.into();
        }
        let since = now.saturating_sub(self.origin);
        i128::from(self.origin) + i128::from(since / self.tick * self.tick)
    }

    /// The parts at `now` in a bucket that never fills up.
    fn unbounded(&self, now: u64) -> i128 {
        self.level + (self.rounded(now) - self.newest) * self.permits
    }

    /// The position of an idle bucket in its word, in units after a multiple of the word's range;
    /// `None` if it has not been idle for that long.
    fn lap(&self, now: u64) -> Option<i128> {
        let units = self.unbounded(now) / self.unit;
        (units >= self.range - (self.staleness_ticks + 1) * self.gain).then_some(units % self.range)
    }
}

impl Model for BucketModel {
    fn look(&self, now: u64) -> Verdict {
        let whole = |parts: i128| u64::try_from(parts / self.period).expect("never negative");
        let at = self.rounded(now);
        if at < self.newest {
            let late = (self.newest - at) / i128::from(self.tick);
            let most = whole(self.level);
            return if late <= self.staleness_ticks {
                Verdict::Late { most }
            } else {
                Verdict::Void
            };
        }
        let ideal = whole(self.unbounded(now).min(self.full));
        match self.lap(now) {
            // Fills again, from the multiple of the horizon on.
            Some(units) if units * self.unit <= self.full => Verdict::Wrapped {
                told: whole(units * self.unit),
                ideal,
            },
            // Just before the multiple, the word looks stale.
            Some(units) if units >= self.range - self.staleness_ticks * self.gain => {
                Verdict::Wrapped { told: 0, ideal }
            }
            // The staleness is documented in whole ticks.
            Some(units) if units >= self.range - (self.staleness_ticks + 1) * self.gain => {
                Verdict::Blurred { ideal }
            }
            _ => Verdict::Exactly(ideal),
        }
    }

    fn granted(&mut self, now: u64, n: u32, _told: u64) {
        let at = self.rounded(now);
        if at >= self.newest {
            self.level = match self.lap(now) {
                Some(units) if units * self.unit <= self.full => units * self.unit,
                _ => self.unbounded(now).min(self.full),
            };
            self.newest = at;
        }
        self.level -= i128::from(n) * self.period;
        assert!(self.level >= 0, "more was granted than there was");
    }

    fn capacity(&self) -> u64 {
        u64::try_from(self.full / self.period).expect("a burst")
    }

    fn allows_idle(&self, now: u64, told: u64, idle: Idle) -> bool {
        let is_full = self.unbounded(now) >= self.full && self.rounded(now) >= self.newest;
        match (self.look(now), idle) {
            (Verdict::Exactly(_), Idle::Now) => is_full && self.permits == 0,
            (Verdict::Exactly(_), Idle::Since(since)) => {
                let missing = (self.full - self.level).max(0);
                let each = self.permits * i128::from(self.tick);
                let ticks = missing / each + i128::from(missing % each > 0);
                let ideal = self.newest + ticks * i128::from(self.tick);
                let since = i128::from(since.as_nanos());
                is_full
                    && if self.lap(now).is_none() {
                        since == ideal
                    } else {
                        since >= ideal
                    }
            }
            (Verdict::Exactly(_), _) => !is_full,
            (Verdict::Void, _) => true,
            _ => idle == Idle::InUse || told == self.capacity(),
        }
    }

    fn landmarks(&self) -> Landmarks {
        let each = self.permits.max(1);
        let clamped = |time: i128| u64::try_from(time).unwrap_or(u64::MAX);
        Landmarks {
            grain: clamped((self.period / each).max(i128::from(self.tick))),
            reach: clamped(self.full / each),
            staleness: self.facts.0,
            horizon: self.facts.1,
            first: self.origin,
            earliest: 0,
        }
    }
}

fn gcd(a: i128, b: i128) -> i128 {
    if a == 0 { b } else { gcd(b % a, a) }
}

const YEAR: u64 = 365 * 24 * 3_600 * 1_000_000_000;

/// The settings of a bucket, except the burst.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BucketSettings {
    rate: Rate,
    stepwise: bool,
    tick: Option<Duration>,
    staleness: Option<Duration>,
    origin: Timestamp,
}

/// A builder of any bucket with all these settings.
macro_rules! with_settings {
    ($settings:expr, $initial:expr, $builder:expr) => {{
        let mut builder = $builder.initial($initial).origin($settings.origin);
        if $settings.stepwise {
            builder = builder.stepwise();
        }
        if let Some(tick) = $settings.tick {
            builder = builder.tick(tick);
        }
        if let Some(staleness) = $settings.staleness {
            builder = builder.staleness(staleness);
        }
        builder
    }};
}

impl BucketSettings {
    /// Random settings: rates from one permit per year to one per nanosecond and a little beyond.
    pub(crate) fn random(draws: &mut Draws<'_>) -> Self {
        const NAMED: [(u32, u64); 10] = [
            (1, YEAR),
            (1, 1),
            (999_999_937, 1_000_000_000),
            (7, 10),
            (700_000_000, 1_000_000_000),
            (300_000_000, 1_000_000_000),
            (3, 1_000_000_000),
            (1, 3_600_000_000_000),
            (10, 1),
            (0, 1_000_000_000),
        ];
        let (permits, period) = if draws.once_in(2) {
            draws.one_of(&NAMED)
        } else {
            let period = draws.magnitude(YEAR).max(1);
            (
                draws.magnitude(period.min(u32::MAX.into())).max(1) as u32,
                period,
            )
        };
        let tick = draws.magnitude(20_000_000_000).max(1);
        let tick = draws.one_of(&[None, None, Some(tick), Some(period)]);
        let staleness = 1 + draws.magnitude(100 * 365 * 24 * 3_600);
        Self {
            rate: Rate::new(permits, Duration::from_nanos(period)),
            stepwise: draws.once_in(3),
            tick: tick.map(Duration::from_nanos),
            staleness: draws.once_in(4).then_some(Duration::from_secs(staleness)),
            origin: Timestamp::from_nanos(if draws.once_in(2) {
                draws.magnitude(u64::MAX)
            } else {
                0
            }),
        }
    }

    /// The bucket, or the error if it does not fit.
    pub(crate) fn build<W: Word>(
        self,
        burst: u64,
        initial: u64,
    ) -> Result<TokenBucket<W>, SettingsError> {
        self.builder(burst, initial).build_on()
    }

    fn builder(self, burst: u64, initial: u64) -> TokenBucketBuilder {
        with_settings!(self, initial, TokenBucket::builder(self.rate, burst))
    }

    fn adjustable(self, burst: u64, initial: u64) -> AdjustableBucketBuilder {
        with_settings!(self, initial, AdjustableBucket::builder(self.rate, burst))
    }

    /// The bound that the builder names for the burst; `None` if it refuses another setting.
    pub(crate) fn largest_burst<W: Word>(self) -> Option<u64> {
        match self.build::<W>(u64::MAX, 0) {
            Err(SettingsError::TooLarge {
                setting: Setting::Burst,
                max,
            }) => Some(max),
            _ => None,
        }
    }
}

/// A random bucket and its model, or `None` if the settings do not fit the word.
pub(crate) fn random_bucket<W: Word>(
    draws: &mut Draws<'_>,
) -> Option<(TokenBucket<W>, BucketModel)> {
    let settings = BucketSettings::random(draws);
    let largest = settings
        .largest_burst::<W>()
        .filter(|&largest| largest > 0)?;
    let some = draws.magnitude(largest).max(1);
    let burst = draws.one_of(&[some, some, some.min(20), largest]);
    let some = draws.within(0, burst);
    let initial = draws.one_of(&[burst, some, 0]);
    let bucket = settings.build::<W>(burst, initial).ok()?;
    let model = BucketModel::new(
        &bucket,
        settings.rate,
        burst,
        initial,
        settings.origin.as_nanos(),
    );
    Some((bucket, model))
}

/// The same for a bucket whose settings can change, and a token bucket with the same settings and
/// tick.
pub(crate) fn random_adjustable<W: Word>(
    draws: &mut Draws<'_>,
) -> Option<(AdjustableBucket<W>, TokenBucket<W>, BucketModel)> {
    let settings = BucketSettings::random(draws);
    let refused = settings.adjustable(u64::MAX, 0).build_on::<W>().err()?;
    let SettingsError::TooLarge {
        setting: Setting::Burst,
        max: largest @ 1..,
    } = refused
    else {
        return None;
    };
    let some = draws.magnitude(largest).max(1);
    let burst = draws.one_of(&[some, some, some.min(20), largest]);
    let some = draws.within(0, burst);
    let initial = draws.one_of(&[burst, some, 0]);
    let bucket = settings.adjustable(burst, initial).build_on::<W>().ok()?;
    let twin = settings.builder(burst, initial).tick(bucket.timing().tick);
    let twin = twin.build_on::<W>().ok()?;
    let stated = Stated {
        tick: bucket.timing().tick,
        staleness: bucket.timing().staleness,
        horizon: bucket.timing().horizon,
        bits: if W::BITS == 64 { 52 } else { 26 },
    };
    let model = BucketModel::of(
        &stated,
        settings.rate,
        burst,
        initial,
        settings.origin.as_nanos(),
    );
    Some((bucket, twin, model))
}
