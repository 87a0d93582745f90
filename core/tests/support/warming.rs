//! A bucket that warms up, in unbounded integers. It keeps the time that each of the last permits
//! needs to return, one by one, and never computes a sum in closed form.

use core::time::Duration;
use std::collections::VecDeque;

use portcullis_core::limiter::Idle;
use portcullis_core::state::Word;
use portcullis_core::{Rate, Timestamp, WarmingBucket};

use super::draws::Draws;
use super::model::{Landmarks, Model, Verdict, nanos};

/// The settings of a bucket that warms up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WarmingSettings {
    permits: u32,
    period: u64,
    burst: u64,
    warm_up: u64,
    cold_factor: u32,
    tick: Option<u64>,
    staleness: u64,
    origin: u64,
}

/// An ideal bucket, and what the real one documents about its word.
#[derive(Debug)]
pub(crate) struct WarmingModel {
    settings: WarmingSettings,
    tick: u64,
    /// Units in a tick, and in a permit at the stable rate.
    gain: i128,
    cost: i128,
    warmth: i128,
    threshold: i128,
    coldest: i128,
    cooling: i128,
    /// `extra` is a fraction of this number.
    slope: (u128, u32),
    chill: (u128, u32),
    /// The number of positions that the word can distinguish.
    range: i128,
    /// The first distance that means that the position is behind `full_at`.
    behind: i128,
    /// The position of the newest `now` written.
    newest: i128,
    full_at: i128,
    coldness: i128,
    /// The units of the permits taken since the bucket was last full, the newest last: at most the
    /// last `burst` of them.
    taken: VecDeque<i128>,
    facts: (u64, u64),
}

fn bits(value: u128) -> u32 {
    u128::BITS - value.leading_zeros()
}

fn gcd(a: u128, b: u128) -> u128 {
    if a == 0 { b } else { gcd(b % a, a) }
}

impl WarmingModel {
    fn new<W: Word>(bucket: &WarmingBucket<W>, settings: WarmingSettings) -> Self {
        let tick = nanos(bucket.timing().tick);
        let gain = u128::from(settings.permits) * u128::from(tick);
        let divisor = gcd(gain, settings.period.into());
        let (gain, cost) = (gain / divisor, u128::from(settings.period) / divisor);
        let cold = u128::from(settings.cold_factor);
        let cooling = u128::from(settings.warm_up.div_ceil(tick)) * gain;
        // The warmth is the largest that has few enough bits of coldness and explains the horizon.
        let (most, least, enough) = match W::BITS {
            64 => (10, 4, 20),
            32 => (6, 2, 10),
            _ => (8, 3, 14),
        };
        let (warmth, threshold, ramp) = (0..=most)
            .rev()
            .map(|log| {
                let warmth = 1 << log;
                let threshold = warmth * cooling / (2 * cost);
                let ramp = (2 * warmth * cooling).div_ceil((1 + cold) * cost);
                (warmth, threshold, ramp)
            })
            .find(|&(warmth, threshold, ramp)| {
                let coldness_bits = bits(threshold + ramp);
                let range = 1u128 << W::BITS.saturating_sub(coldness_bits);
                let horizon = range / gain * u128::from(tick);
                (coldness_bits <= enough || warmth <= 1 << least)
                    && horizon.min(Duration::MAX.as_nanos()) == bucket.timing().horizon.as_nanos()
            })
            .expect("a warmth that explains the horizon");
        let coldest = threshold + ramp;
        let extra = ((cold - 1) * cost * ramp).div_ceil(2 * warmth);
        let narrow = W::BITS == 32;
        let shift = if narrow { 32 } else { 62 - bits(extra) };
        let slope = ((extra << shift).div_ceil(ramp * ramp), shift);
        let shift = if narrow { 32 } else { 62 - bits(coldest) };
        let chill = ((coldest << shift).div_ceil(cooling), shift);
        let mut model = Self {
            settings,
            tick,
            gain: gain.cast_signed(),
            cost: cost.cast_signed(),
            warmth: warmth.cast_signed(),
            threshold: threshold.cast_signed(),
            coldest: coldest.cast_signed(),
            cooling: cooling.cast_signed(),
            slope,
            chill,
            range: 1 << (W::BITS - bits(coldest)),
            behind: 0,
            newest: 0,
            full_at: 0,
            coldness: coldest.cast_signed(),
            taken: VecDeque::new(),
            facts: (
                nanos(bucket.timing().staleness),
                nanos(bucket.timing().horizon),
            ),
        };
        let late = u128::from(settings.staleness.div_ceil(tick)) * gain;
        let mut missing = 0;
        for _ in 0..settings.burst {
            missing += model.take_one();
        }
        model.coldness = model.coldest;
        model.behind = model.range - missing - late.cast_signed();
        model.newest = model.position(settings.origin);
        model.full_at = model.newest;
        model
    }

    /// The position of `now`, as a bucket with this tick rounds it.
    fn position(&self, now: u64) -> i128 {
        let ticks = if self.tick == 1 {
            now
        } else {
            now.saturating_sub(self.settings.origin) / self.tick
        };
        i128::from(ticks) * self.gain
    }

    /// The units by which a permit at this coldness needs longer than at the stable rate, summed
    /// up from 0: exact at the coldest, otherwise rounded up seen from there.
    fn extra(&self, coldness: i128) -> i128 {
        let ramp = (self.coldest - self.threshold).cast_unsigned();
        let above = (coldness - self.threshold).max(0).cast_unsigned();
        let (slope, shift) = self.slope;
        let below = slope * (ramp * ramp - above * above);
        -below.div_ceil(1 << shift).cast_signed()
    }

    /// Takes a permit's warmth, and returns the units that the permit needs.
    fn take_one(&mut self) -> i128 {
        let left = (self.coldness - self.warmth).max(0);
        let units = self.cost + self.extra(self.coldness) - self.extra(left);
        self.coldness = left;
        units
    }

    fn chilled(&self, units: i128) -> i128 {
        let (chill, shift) = self.chill;
        let chilled = (units.min(self.cooling).cast_unsigned() * chill).div_ceil(1 << shift);
        (self.coldness + chilled.cast_signed()).min(self.coldest)
    }

    /// The permits available if so many units are missing: those not taken, and those of the last
    /// that have returned. If the word has wrapped, more units may be missing than these permits
    /// need; then it looks as if more had been taken before, from a bucket that was as much colder.
    fn available(&self, missing: i128) -> u64 {
        let (mut sum, mut out, mut coldness) = (0, 0, self.coldness);
        let mut taken = self.taken.iter().rev();
        while sum < missing && out < self.settings.burst {
            let colder = (coldness + self.warmth).min(self.coldest);
            sum += match taken.next() {
                Some(units) => *units,
                None => self.cost + self.extra(colder) - self.extra(coldness),
            };
            coldness = colder;
            out += 1;
        }
        if sum < missing {
            0
        } else {
            self.settings.burst - out
        }
    }

    /// The distance of the position from `full_at`, wrapped in the word.
    fn distance(&self, now: u64) -> i128 {
        (self.position(now) - self.full_at).rem_euclid(self.range)
    }
}

impl Model for WarmingModel {
    fn look(&self, now: u64) -> Verdict {
        let position = self.position(now);
        if position < self.newest {
            let late = self.newest - position;
            let most = self.available((self.full_at - self.newest).max(0));
            return if late <= i128::from(self.facts.0 / self.tick) * self.gain {
                Verdict::Late { most }
            } else {
                Verdict::Void
            };
        }
        if position < self.full_at {
            return Verdict::Exactly(self.available(self.full_at - position));
        }
        let distance = self.distance(now);
        if distance < self.behind {
            return Verdict::Exactly(self.settings.burst);
        }
        Verdict::Wrapped {
            told: self.available(self.range - distance),
            ideal: self.settings.burst,
        }
    }

    fn granted(&mut self, now: u64, n: u32, _told: u64) {
        let position = self.position(now);
        if position >= self.newest {
            self.newest = position;
            let distance = self.distance(now);
            if position >= self.full_at && distance < self.behind {
                self.coldness = self.chilled(distance);
                self.full_at = position;
                self.taken.clear();
            } else if position >= self.full_at {
                self.full_at = position + self.range - distance;
            }
        }
        for _ in 0..n {
            let units = self.take_one();
            self.full_at += units;
            self.taken.push_back(units);
            if self.taken.len() as u64 > self.settings.burst {
                self.taken.pop_front();
            }
        }
    }

    fn capacity(&self) -> u64 {
        self.settings.burst
    }

    fn allows_idle(&self, now: u64, told: u64, idle: Idle) -> bool {
        let position = self.position(now);
        let is_cold = |position: i128| {
            let full = position - self.full_at;
            full >= 0 && self.chilled(full) == self.coldest
        };
        match (self.look(now), idle) {
            (Verdict::Exactly(_), Idle::Since(since)) => {
                let since = self.position(since.as_nanos());
                let is_first =
                    self.distance(now) < position - self.full_at || !is_cold(since - self.gain);
                is_cold(position) && is_cold(since) && is_first
            }
            (Verdict::Exactly(_), Idle::InUse) => {
                !is_cold(position) || self.distance(now) < position - self.full_at
            }
            (Verdict::Exactly(_), _) => false,
            (Verdict::Void, _) => true,
            _ => idle == Idle::InUse || told == self.settings.burst,
        }
    }

    fn landmarks(&self) -> Landmarks {
        let span = |units: i128| u64::try_from(units * i128::from(self.tick) / self.gain).unwrap();
        Landmarks {
            grain: span(self.cost).max(self.tick),
            reach: span(self.cooling),
            staleness: self.facts.0,
            horizon: self.facts.1,
            first: self.settings.origin,
            earliest: 0,
        }
    }
}

impl WarmingSettings {
    fn random(draws: &mut Draws<'_>) -> Self {
        let period = draws.one_of(&[1, 7, 1_000, 1_000_000, 1_000_000_000, 86_400_000_000_000]);
        let permits = match draws.below(4) {
            0 => 1,
            1 => draws.within(1, 12),
            _ => draws.magnitude(period.min(1_000_000_007)).max(1),
        };
        let burst = draws.magnitude(40).max(1);
        // At least the time of two bursts.
        let least = (2 * burst * period).div_ceil(permits);
        let factor = draws.magnitude(200);
        let some = draws.magnitude(least.saturating_mul(2));
        let warm_up = least.saturating_mul(1 + factor).saturating_add(some);
        let interval = (period / permits).max(1);
        let tick = draws.magnitude(interval).max(1);
        Self {
            permits: permits as u32,
            period,
            burst,
            warm_up,
            cold_factor: draws.one_of(&[1, 2, 3, 3, 5, 10, 100]),
            tick: draws.one_of(&[None, None, Some(tick), Some(interval)]),
            staleness: draws.within(1, 100) * 1_000_000_000,
            origin: if draws.once_in(2) {
                draws.magnitude(u64::MAX)
            } else {
                0
            },
        }
    }

    fn build<W: Word>(self) -> Option<WarmingBucket<W>> {
        let rate = Rate::new(self.permits, Duration::from_nanos(self.period));
        let mut builder =
            WarmingBucket::builder(rate, self.burst, Duration::from_nanos(self.warm_up))
                .cold_factor(self.cold_factor)
                .staleness(Duration::from_nanos(self.staleness))
                .origin(Timestamp::from_nanos(self.origin));
        if let Some(tick) = self.tick {
            builder = builder.tick(Duration::from_nanos(tick));
        }
        builder.build_on().ok()
    }
}

/// A random bucket and its model, or `None` if the settings do not fit the word.
pub(crate) fn random_warming<W: Word>(
    draws: &mut Draws<'_>,
) -> Option<(WarmingBucket<W>, WarmingModel)> {
    let settings = WarmingSettings::random(draws);
    let bucket = settings.build::<W>()?;
    let model = WarmingModel::new(&bucket, settings);
    Some((bucket, model))
}
