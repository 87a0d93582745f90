//! State: one word with two fields: `full_at`, the position at which the bucket is full again, and
//! `coldness`, which says how far the bucket is from its stable rate.
//!
//! ```text
//! bits       coldness_bits          0
//! +------------------+---------------+   a lattice that wraps in the upper bits:
//! |     full_at      |   coldness    |   1 tick = gain units, 1 permit = cost units at the stable
//! +------------------+---------------+   rate, gain / cost = rate
//!
//!     position = ticks(now) * gain          full_at
//!   ----------|------------------------------|------>
//!             |<-- units until it is full -->|      the newest permits taken return last
//! ```
//!
//! The time that a permit needs to return is fixed when the permit is taken. It depends on the
//! coldness `c` at that time, which the permit lowers by `warmth`:
//!
//! ```text
//! units of n permits at c:  price(c, n) = n * cost + extra(c) - extra(c - n * warmth)
//! extra(c) = slope * max(0, c - threshold)^2     (the integral of a line: Guava's trapezoid)
//! ```
//!
//! The constants are rounded so that the permits taken from `coldest` on never need less time than
//! the exact line says.
//!
//! Permits return in the order in which they were taken, one after the other. So the last `k`
//! permits that return are the last `k` that were taken, and need `price(c + k * warmth, k)`
//! units. There are three transitions, each one compare-exchange:
//!
//! - *cool*, part of a take or refund that finds the bucket full since `u` units: `full_at` becomes
//!   the position, and `coldness` rises in proportion to `u`, rounded up, to at most `coldest`;
//! - *take n*, if at most `burst - n` permits have not returned, that is, if `full_at - position`
//!   is at most what the last `burst - n` of them need: `full_at` advances by the price, and
//!   `coldness` falls by `n * warmth`, to 0 at least;
//! - *refund n*: the inverse of a take, from the very word that the take left.
//!
//! Invariant: `full_at` is at most the price of `burst` permits ahead of the position of the newest
//! `now`. The coldness at which the last `burst` permits were taken is only known while `coldness`
//! is above 0. That is enough: `burst * warmth` is at most `threshold`, and below the threshold
//! each permit needs exactly `cost`.
//!
//! The distance from `full_at` to the position, wrapped in its bits, is either below `behind`, and
//! the bucket has been full for as long, or the position is behind `full_at`: permits have not
//! returned, or `now` is stale.

use core::time::Duration;

use crate::limiter::Idle;
use crate::limiter::denied::{Denied, Retry};
use crate::limiter::detail::{Detail, retry_of};
use crate::limiter::receipt::Receipt;
use crate::rules::{Verdict, WordRules};
use crate::time::grid::Grid;
use crate::time::rate::Rate;
use crate::time::timestamp::{Timestamp, saturating_duration};
use crate::time::timing::Timing;
use crate::word::builder::AskedTiming;
use crate::word::settings::{
    self, MAX_AUTOMATIC_TICK, Misfit, Room, Scale, Setting, SettingsError, quotient,
};
use crate::word::{Word, narrow};

/// The rules of a [`WarmingBucket`](crate::WarmingBucket), without its state word.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WarmingRules<W: Word> {
    gain: W,
    cost: W,
    burst: W,
    /// The first distance that means that the position is behind `full_at`.
    behind: W,
    /// The coldness that one permit takes away.
    warmth: W,
    /// The coldness up to which a permit needs no more than `cost`.
    threshold: W,
    coldest: W,
    /// The units in which an unused bucket cools down from 0 to `coldest`.
    cooling: W,
    slope: u64,
    /// What rounds `extra` so that it is exact at `coldest`.
    rounding: u64,
    chill: u64,
    slope_shift: u8,
    chill_shift: u8,
    coldness_bits: u8,
    ticks: Grid,
}

/// The two fields of a state.
#[derive(Clone, Copy, Debug)]
struct Parts {
    full_at: u64,
    coldness: u64,
}

impl<W: Word> WarmingRules<W> {
    pub(super) fn burst(&self) -> u64 {
        self.burst.into()
    }

    /// Returns how the rules counts time: see [`Timing`].
    pub(super) fn timing(&self) -> Timing {
        let behind: u64 = self.behind.into();
        let staleness = self.range() - self.most_missing() - behind;
        Timing::on(&self.ticks, self.span(staleness), self.span(self.range()))
    }

    /// The state of a bucket that is full and coldest at `origin`.
    pub(super) const fn fresh(&self, origin: Timestamp, gain: u64, coldest: u64) -> u64 {
        let position = self.ticks.index(origin).wrapping_mul(gain);
        (position << self.coldness_bits | coldest) & W::MASK
    }

    /// Turns any number into a state that such a bucket could have written.
    pub(super) fn fitting(&self, word: u64) -> u64 {
        let Parts { full_at, coldness } = self.split(word & W::MASK);
        self.join(full_at, coldness.min(self.coldest.into()))
    }

    /// The time that the next permit will need to return, rounded up to whole ticks.
    pub(super) fn interval(&self, state: u64, now: Timestamp) -> Duration {
        let (_, parts) = self.settle(state, self.position(now));
        let (_, price) = self.weigh(parts.coldness, 0, 1);
        self.lasting(price.div_ceil(self.gain.into()))
    }

    fn lasting(&self, ticks: u64) -> Duration {
        saturating_duration(u128::from(ticks) * u128::from(self.ticks.step()))
    }

    /// The time in which the position moves by `units`.
    fn span(&self, units: u64) -> Duration {
        self.lasting(units / Into::<u64>::into(self.gain))
    }

    #[inline(always)]
    fn mask(&self) -> u64 {
        W::MASK >> self.coldness_bits
    }

    fn range(&self) -> u64 {
        // A coldness has at least one bit.
        self.mask() + 1
    }

    #[inline(always)]
    fn position(&self, now: Timestamp) -> u64 {
        self.ticks.index(now).wrapping_mul(self.gain.into()) & self.mask()
    }

    #[inline(always)]
    fn split(&self, state: u64) -> Parts {
        let full_at = state >> self.coldness_bits;
        Parts {
            full_at,
            coldness: state ^ full_at << self.coldness_bits,
        }
    }

    #[inline(always)]
    fn join(&self, full_at: u64, coldness: u64) -> u64 {
        (full_at << self.coldness_bits | coldness) & W::MASK
    }

    /// Returns the units by which the permits taken at up to this coldness need longer than at the
    /// stable rate, plus a constant.
    #[inline(always)]
    fn extra(&self, coldness: u64) -> u64 {
        let above = coldness.saturating_sub(self.threshold.into());
        // The slope is scaled so that the product is below 2^63 at the coldest.
        let scaled = self.slope.wrapping_mul(above).wrapping_mul(above);
        (scaled + self.rounding) >> if W::BITS <= 32 { 32 } else { self.slope_shift }
    }

    /// Returns the coldness that a full bucket gains in `units`, rounded up.
    #[inline(always)]
    fn chill(&self, units: u64) -> u64 {
        let shift = if W::BITS <= 32 { 32 } else { self.chill_shift };
        // The same scale.
        let scaled = units.min(self.cooling.into()).wrapping_mul(self.chill);
        (scaled + ((1 << shift) - 1)) >> shift
    }

    /// Returns the units until the bucket is full again, and the state that a take at `position`
    /// counts from.
    #[inline(always)]
    fn settle(&self, state: u64, position: u64) -> (u64, Parts) {
        let parts = self.split(state);
        let distance = position.wrapping_sub(parts.full_at) & self.mask();
        if distance >= self.behind.into() {
            return (parts.full_at.wrapping_sub(position) & self.mask(), parts);
        }
        let coldness = (parts.coldness + self.chill(distance)).min(self.coldest.into());
        let full_at = position;
        (0, Parts { full_at, coldness })
    }

    /// Returns the units that the last `k` permits need that were taken before `coldness` was
    /// reached, and those that `n` further permits need.
    #[inline(always)]
    fn weigh(&self, coldness: u64, k: u64, n: u64) -> (u64, u64) {
        let (warmth, cost): (u64, u64) = (self.warmth.into(), self.cost.into());
        let (room, price) = (k.wrapping_mul(cost), n.wrapping_mul(cost));
        // If the bucket was never that cold, fewer permits than `k` are missing, and the lower
        // number of units still suffices for all of them.
        let top = coldness
            .wrapping_add(k.wrapping_mul(warmth))
            .min(self.coldest.into());
        if top <= self.threshold.into() {
            return (room, price);
        }
        let here = self.extra(coldness);
        let left = self.extra(coldness.saturating_sub(n.wrapping_mul(warmth)));
        (room + (self.extra(top) - here), price + (here - left))
    }

    /// Returns whether `n` permits, at most the burst, are available.
    #[inline(always)]
    fn has(&self, missing: u64, coldness: u64, n: u64) -> bool {
        missing <= self.weigh(coldness, self.burst() - n, 0).0
    }

    /// The largest number of units until a bucket is full again.
    fn most_missing(&self) -> u64 {
        self.weigh(self.coldest.into(), 0, self.burst()).1
    }

    /// Returns the instant at which `units` have passed since the tick `tick`.
    fn after(&self, tick: u64, units: u128) -> Option<Timestamp> {
        let gain: u64 = self.gain.into();
        let ticks = u64::try_from(units.div_ceil(u128::from(gain))).ok()?;
        self.ticks.start(tick.checked_add(ticks)?)
    }

    /// Returns when `permits` permits, more than the burst, will have returned, if each is taken
    /// as soon as it is available. It is the instant at which all but the last `burst` of them have
    /// return.
    ///
    /// This is exact if no tick brings more than `burst - 1` permits. Otherwise a part of a tick is
    /// lost for each grant, and the permits may return later.
    #[cold]
    #[inline(never)]
    fn come_in(&self, state: u64, now: Timestamp, permits: u32) -> Option<Timestamp> {
        let (missing, parts) = self.settle(state, self.position(now));
        let (warmth, cost): (u64, u64) = (self.warmth.into(), self.cost.into());
        let before = u64::from(permits) - self.burst();
        let left = parts.coldness.saturating_sub(before.saturating_mul(warmth));
        let price = u128::from(before) * u128::from(cost)
            + u128::from(self.extra(parts.coldness) - self.extra(left));
        self.after(self.ticks.index(now), u128::from(missing) + price)
    }
}

/// A request, and the values computed from it that do not depend on the state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WarmingRequest {
    now: Timestamp,
    n: u32,
    position: u64,
}

impl<W: Word> WordRules for WarmingRules<W> {
    type Word = W;
    type Request = WarmingRequest;

    #[inline(always)]
    fn request(&self, now: Timestamp, n: u32) -> Result<WarmingRequest, Denied> {
        if u64::from(n) > self.burst() {
            return Err(Denied::exceeding(n, self.burst()));
        }
        let position = self.position(now);
        Ok(WarmingRequest { now, n, position })
    }

    #[inline(always)]
    fn judge(&self, state: u64, request: WarmingRequest) -> Verdict {
        let WarmingRequest { now, n, position } = request;
        let wanted = u64::from(n.max(1));
        let (missing, parts) = self.settle(state, position);
        let (room, price) = self.weigh(parts.coldness, self.burst() - wanted, wanted);
        if missing > room {
            return Verdict::Denied(Denied::Exhausted { now, permits: n });
        }
        if n == 0 {
            return Verdict::Allowed;
        }
        let warmth = wanted.wrapping_mul(self.warmth.into());
        Verdict::Granted(self.join(
            parts.full_at.wrapping_add(price),
            parts.coldness.saturating_sub(warmth),
        ))
    }

    #[inline(always)]
    fn receipt(&self, left: u64, now: Timestamp) -> Receipt {
        Receipt::dated(left, now.as_nanos())
    }

    /// Refunds all `n` permits if the bucket is as the take left it; otherwise none.
    #[inline]
    fn refund(&self, state: u64, now: Timestamp, n: u32, receipt: &Receipt) -> Option<u64> {
        let tick = self.ticks.index(now);
        let taken_in = self.ticks.index(Timestamp::from_nanos(receipt.time()));
        let gain: u64 = self.gain.into();
        let passed = u128::from(tick.saturating_sub(taken_in)) * u128::from(gain);
        // Positions may have wrapped, so that the same word means something else.
        if state != receipt.note() || passed >= u128::from(Into::<u64>::into(self.behind)) {
            return None;
        }
        let Parts { full_at, coldness } = self.split(state);
        let n = u64::from(n);
        let warmth = n.wrapping_mul(self.warmth.into());
        // From a coldness of 0, this may be more than it was. It is then at most the threshold, so
        // the price is right, and the bucket is colder than it was.
        let before = (coldness + warmth).min(self.coldest.into());
        let (_, price) = self.weigh(before, 0, n);
        let restored = self.join(full_at.wrapping_sub(price), before);
        let (_, parts) = self.settle(restored, self.position(now));
        Some(self.join(parts.full_at, parts.coldness))
    }

    #[inline(always)]
    fn rest(&self, left: u64, receipt: Receipt) -> Receipt {
        Receipt::dated(left, receipt.time())
    }

    fn capacity(&self) -> u64 {
        self.burst()
    }

    fn available(&self, state: u64, now: Timestamp) -> u64 {
        let (missing, parts) = self.settle(state, self.position(now));
        // Bisects: `has` holds up to the number searched for.
        let (mut least, mut most) = (0, self.burst());
        while least < most {
            let middle = most - (most - least) / 2;
            if self.has(missing, parts.coldness, middle) {
                least = middle;
            } else {
                most = middle - 1;
            }
        }
        least
    }

    fn idle(&self, state: u64, now: Timestamp) -> Idle {
        let tick = self.ticks.index(now);
        let Parts { full_at, coldness } = self.split(state);
        let distance = self.position(now).wrapping_sub(full_at) & self.mask();
        let needed = match Into::<u64>::into(self.coldest).saturating_sub(coldness) {
            0 => 0,
            // The fewest units that chill by more than one less.
            colder => {
                let shift = if W::BITS <= 32 { 32 } else { self.chill_shift };
                ((colder - 1) << shift) / self.chill + 1
            }
        };
        if distance < needed || distance >= self.behind.into() {
            return Idle::InUse;
        }
        let since = (distance - needed) / Into::<u64>::into(self.gain);
        Idle::Since(
            self.ticks
                .start(tick.saturating_sub(since))
                .unwrap_or(Timestamp::MAX),
        )
    }

    fn retry(&self, state: u64, denied: Denied) -> Retry {
        let Denied::Exhausted { now, permits } = denied else {
            return Retry::Never;
        };
        let wanted = u64::from(permits.max(1));
        let at = if wanted > self.burst() {
            self.come_in(state, now, permits)
        } else {
            let (missing, parts) = self.settle(state, self.position(now));
            let (room, _) = self.weigh(parts.coldness, self.burst() - wanted, 0);
            match missing.saturating_sub(room) {
                0 => Some(now),
                wait => self.after(self.ticks.index(now), wait.into()),
            }
        };
        at.map_or(Retry::Never, Retry::At)
    }

    fn detail(&self, state: u64, now: Timestamp, decision: Result<(), Denied>) -> Detail {
        let full = match self.settle(state, self.position(now)).0 {
            0 => Some(now),
            missing => self.after(self.ticks.index(now), missing.into()),
        };
        let ticks = self.most_missing().div_ceil(self.gain.into());
        Detail {
            now,
            decision,
            available: self.available(state, now),
            capacity: self.burst(),
            time_to_fill: Some(self.lasting(ticks)),
            full_again: full.map_or(Retry::Never, Retry::At),
            retry: retry_of(decision, now, |denied| self.retry(state, denied)),
        }
    }
}

/// The settings as the builder takes them.
#[derive(Clone, Copy, Debug)]
pub struct WarmingTerms {
    pub(super) rate: Rate,
    pub(super) burst: u64,
    pub(super) warm_up: Duration,
    pub(super) cold_factor: u32,
}

/// The most bits of a coldness. With more, the slope would have too few significant bits.
const MAX_COLDNESS_BITS: u32 = 26;
/// The most units in which a bucket cools down, for the same reason.
const MAX_COOLING: u128 = 1 << 52;

/// The settings in nanoseconds, at one tick.
#[derive(Clone, Copy)]
struct AtTick {
    permits: u64,
    period: u64,
    burst: u64,
    warm_up: u64,
    cold_factor: u32,
    tick: u64,
    staleness: Option<u64>,
}

/// Settings that fit, in units.
#[derive(Clone, Copy)]
struct Fitted {
    gain: u64,
    cost: u64,
    behind: u64,
    warmth: u64,
    threshold: u64,
    coldest: u64,
    cooling: u64,
    slope: u64,
    rounding: u64,
    chill: u64,
    slope_shift: u8,
    chill_shift: u8,
    coldness_bits: u8,
    tick: u64,
    horizon: u128,
    /// Whether positions wrap so late that a coarser tick is not necessary.
    is_enough: bool,
}

/// Why settings do not fit.
#[derive(Clone, Copy)]
enum Unfit {
    Staleness {
        max: u64,
    },
    Burst {
        max: u64,
    },
    /// The warm-up time is too long for the word, or a second of the rate does not fit.
    Long,
    /// The warm-up time is too short for the burst.
    Short {
        min: u64,
    },
}

const fn bits(value: u128) -> u32 {
    u128::BITS - value.leading_zeros()
}

impl AtTick {
    /// Lays the settings out in `bits` bits.
    ///
    /// A permit takes away as many steps of coldness as `enough` bits of coldness have room for,
    /// and at least `1 << least`, so that steps are small. If the word has no room for that, and
    /// `coarse` steps are allowed, fewer.
    const fn fit(&self, bits: u32, coarse: bool) -> Result<Fitted, Unfit> {
        let (mut warmth_bits, least, enough) = match bits {
            44.. => (10, 4, 20),
            33.. => (8, 3, 14),
            _ => (6, 2, 10),
        };
        loop {
            match self.with_warmth(bits, 1 << warmth_bits) {
                Err(Unfit::Long) if warmth_bits > if coarse { 0 } else { least } => {}
                Ok(fitted) if warmth_bits > least && fitted.coldness_bits > enough => {}
                fitted => return fitted,
            }
            warmth_bits -= 1;
        }
    }

    const fn with_warmth(&self, word_bits: u32, warmth: u128) -> Result<Fitted, Unfit> {
        let Self { tick, burst, .. } = *self;
        // The rate per tick, in lowest terms.
        let gain = self.permits as u128 * tick as u128;
        let (period, divisor) = (self.period, settings::gcd(gain, self.period) as u128);
        let (gain, cost) = (quotient(gain, divisor), quotient(period as u128, divisor));
        let cold = self.cold_factor as u128;
        // No product below overflows: warm-up and period have 63 bits, permits and factor 32, and
        // the tick divides out.
        let cooling = self.warm_up.div_ceil(tick) as u128 * gain;
        if cooling > MAX_COOLING {
            return Err(Unfit::Long);
        }
        let full = match (burst as u128).checked_mul(cost) {
            Some(full) if full <= cooling / 2 => full,
            Some(full) if full <= 1 << 100 => {
                let ticks = (2 * full).div_ceil(gain);
                let min = (ticks - 1) * tick as u128 + 1;
                return Err(if min <= (u64::MAX / 2) as u128 {
                    Unfit::Short { min: min as u64 }
                } else {
                    Unfit::Burst {
                        max: (cooling / 2 / cost) as u64,
                    }
                });
            }
            _ => {
                return Err(Unfit::Burst {
                    max: (cooling / 2 / cost) as u64,
                });
            }
        };
        let threshold = warmth * cooling / (2 * cost);
        let ramp = (2 * warmth * cooling).div_ceil((1 + cold) * cost);
        let coldest = threshold + ramp;
        let coldness_bits = bits(coldest);
        if coldness_bits > MAX_COLDNESS_BITS || coldness_bits + 4 > word_bits {
            return Err(Unfit::Long);
        }
        // Over the ramp, a permit needs on average half of the cold factor less one more than the
        // stable cost.
        let extra = ((cold - 1) * cost * ramp).div_ceil(2 * warmth);
        if extra > MAX_COOLING {
            return Err(Unfit::Long);
        }
        let slope_shift = if word_bits <= 32 {
            32
        } else {
            62 - bits(extra)
        };
        let slope = (extra << slope_shift).div_ceil(ramp * ramp);
        let top = slope * ramp * ramp;
        let rounding = top.next_multiple_of(1 << slope_shift) - top;
        let chill_shift = if word_bits <= 32 {
            32
        } else {
            62 - coldness_bits
        };
        let chill = (coldest << chill_shift).div_ceil(cooling);

        let range = 1u128 << (word_bits - coldness_bits);
        // What the permits of a burst need if they are taken at the coldest.
        let below = ramp.saturating_sub(burst as u128 * warmth);
        let missing = full + ((top + rounding) >> slope_shift)
            - ((slope * below * below + rounding) >> slope_shift);
        let scale = Scale::new(tick, gain as u64);
        if top >= 1 << 63 || cooling * chill >= 1 << 63 || cooling > range / 4 {
            return Err(Unfit::Long);
        }
        let room = Room::of(word_bits);
        let late = match settings::staleness(room, range, missing, self.staleness, None, scale) {
            Ok(late) => late,
            Err(Misfit::Staleness) => {
                let max = (range / 4 / gain * tick as u128) as u64;
                return Err(Unfit::Staleness { max });
            }
            Err(Misfit::Second) => return Err(Unfit::Long),
            Err(Misfit::Reach) => {
                return Err(Unfit::Burst {
                    max: (range / 4 / (cold * cost + 1)) as u64,
                });
            }
        };
        Ok(Fitted {
            gain: gain as u64,
            cost: cost as u64,
            behind: (range - missing - late) as u64,
            warmth: warmth as u64,
            threshold: threshold as u64,
            coldest: coldest as u64,
            cooling: cooling as u64,
            slope: slope as u64,
            rounding: rounding as u64,
            chill: chill as u64,
            slope_shift: slope_shift as u8,
            chill_shift: chill_shift as u8,
            coldness_bits: coldness_bits as u8,
            tick,
            horizon: range / gain * tick as u128,
            is_enough: room.is_enough(range, missing + late, scale),
        })
    }

    /// Chooses the tick among 1 ns, 10 ns, ..., `coarsest`: the finest whose horizon is long
    /// enough, or else the one with the longest horizon of those that are a hundredth of the
    /// interval of permits or less, or else the finest that fits. Returns the settings at one of
    /// the ticks if none fits.
    const fn search(
        mut self,
        bits: u32,
        coarsest: u64,
        coarse: bool,
    ) -> Result<Fitted, (Self, Unfit)> {
        let fine = self.period / self.permits / 100;
        let mut best = self.fit(bits, coarse);
        let mut best_at = self;
        while self.tick < MAX_AUTOMATIC_TICK && self.tick <= coarsest / 10 {
            self.tick *= 10;
            match best {
                Ok(fitted) if fitted.is_enough || self.tick > fine => break,
                Err(Unfit::Short { .. }) => break,
                _ => {}
            }
            match (best, self.fit(bits, coarse)) {
                (Ok(finer), Ok(other)) if other.horizon <= finer.horizon => {}
                (_, Ok(other)) => best = Ok(other),
                (Err(Unfit::Long), Err(other)) => (best, best_at) = (Err(other), self),
                (_, Err(_)) => {}
            }
        }
        match best {
            Ok(fitted) => Ok(fitted),
            Err(unfit) => Err((best_at, unfit)),
        }
    }

    /// Returns the error for settings that do not fit.
    const fn refusal(self, bits: u32, unfit: Unfit) -> SettingsError {
        match unfit {
            Unfit::Staleness { max } => SettingsError::TooLarge {
                setting: Setting::Staleness,
                max,
            },
            Unfit::Burst { max } => SettingsError::TooLarge {
                setting: Setting::Burst,
                max,
            },
            Unfit::Short { min } => SettingsError::TooSmall {
                setting: Setting::WarmUp,
                min,
            },
            Unfit::Long => {
                // Bisects: what fits, fits with a shorter warm-up too, unless that is too short.
                let (mut least, mut most) = (0, self.warm_up);
                while least + 1 < most {
                    let middle = least + (most - least) / 2;
                    match (Self {
                        warm_up: middle,
                        ..self
                    })
                    .fit(bits, true)
                    {
                        Ok(_) | Err(Unfit::Short { .. }) => least = middle,
                        Err(_) => most = middle,
                    }
                }
                match (Self {
                    warm_up: if least > 0 { least } else { 1 },
                    ..self
                })
                .fit(bits, true)
                {
                    Ok(_) => SettingsError::TooLarge {
                        setting: Setting::WarmUp,
                        max: least,
                    },
                    Err(_) => SettingsError::TooLarge {
                        setting: Setting::Rate,
                        max: self.largest_rate(bits),
                    },
                }
            }
        }
    }

    /// Returns the most permits per period that fit.
    const fn largest_rate(self, bits: u32) -> u64 {
        let (mut least, mut most) = (0, self.permits);
        while least + 1 < most {
            let middle = least + (most - least) / 2;
            match (Self {
                permits: middle,
                ..self
            })
            .fit(bits, true)
            {
                Ok(_) | Err(Unfit::Short { .. }) => least = middle,
                Err(_) => most = middle,
            }
        }
        least
    }
}

impl WarmingTerms {
    /// Returns the rules on words of type `W`, and the state in which a bucket starts.
    pub(super) const fn rules<W: Word>(
        &self,
        timing: &AskedTiming,
    ) -> Result<(WarmingRules<W>, u64), SettingsError> {
        let fitted = match self.fitted(timing, W::BITS) {
            Ok(fitted) => fitted,
            Err(error) => return Err(error),
        };
        let rules = WarmingRules {
            gain: narrow(fitted.gain),
            cost: narrow(fitted.cost),
            burst: narrow(self.burst),
            behind: narrow(fitted.behind),
            warmth: narrow(fitted.warmth),
            threshold: narrow(fitted.threshold),
            coldest: narrow(fitted.coldest),
            cooling: narrow(fitted.cooling),
            slope: fitted.slope,
            rounding: fitted.rounding,
            chill: fitted.chill,
            slope_shift: fitted.slope_shift,
            chill_shift: fitted.chill_shift,
            coldness_bits: fitted.coldness_bits,
            ticks: Grid::new(timing.origin, fitted.tick),
        };
        let state = rules.fresh(timing.origin, fitted.gain, fitted.coldest);
        Ok((rules, state))
    }

    const fn fitted(&self, timing: &AskedTiming, bits: u32) -> Result<Fitted, SettingsError> {
        if self.burst == 0 {
            return Err(SettingsError::Zero {
                setting: Setting::Burst,
            });
        }
        if self.cold_factor == 0 {
            return Err(SettingsError::Zero {
                setting: Setting::ColdFactor,
            });
        }
        if self.rate.permits() == 0 {
            return Err(SettingsError::Zero {
                setting: Setting::Rate,
            });
        }
        if self.rate.is_unlimited() {
            return Err(SettingsError::TooLarge {
                setting: Setting::Rate,
                max: u32::MAX as u64,
            });
        }
        let staleness = match timing.staleness_nanos() {
            Ok(nanos) => nanos,
            Err(error) => return Err(error),
        };
        let period = match settings::nanos(self.rate.period(), Setting::Period) {
            Ok(nanos) => nanos,
            Err(error) => return Err(error),
        };
        let warm_up = match settings::nanos(self.warm_up, Setting::WarmUp) {
            Ok(nanos) => nanos,
            Err(error) => return Err(error),
        };
        let at = AtTick {
            permits: self.rate.permits(),
            period,
            burst: self.burst,
            warm_up,
            cold_factor: self.cold_factor,
            tick: 1,
            staleness,
        };
        let asked = match timing.tick_nanos() {
            Ok(nanos) => nanos,
            Err(error) => return Err(error),
        };
        if let Some(tick) = asked {
            let at = AtTick { tick, ..at };
            return match at.fit(bits, true) {
                Ok(fitted) => Ok(fitted),
                Err(unfit) => Err(at.refusal(bits, unfit)),
            };
        }
        // A coarser tick than the interval of permits would add nothing to the horizon, and with a
        // burst of 1 the bucket would lose much of it.
        let interval = period / at.permits;
        match at.search(bits, interval / 10, false) {
            Ok(fitted) => Ok(fitted),
            Err(_) => match at.search(bits, interval, true) {
                Ok(fitted) => Ok(fitted),
                Err((at, unfit)) => Err(at.refusal(bits, unfit)),
            },
        }
    }
}
