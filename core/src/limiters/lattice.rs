//! The arithmetic of a token bucket on an exact lattice. The head of `token_bucket/rules.rs` has a
//! diagram.
//!
//! A bucket's state is one position, `used`. All functions here are pure: they compute from `used`,
//! the position of a timestamp, and the settings. Settings that are read while another call writes
//! them may be inconsistent. The result is then meaningless, but nothing panics.

use core::time::Duration;

use crate::limiter::Idle;
use crate::limiter::denied::{Denied, Retry};
use crate::limiter::detail::{Detail, retry_of};
use crate::newer::{cold_path, select_unpredictable};
use crate::time::grid::Grid;
use crate::time::rate::Rate;
use crate::time::timestamp::{Timestamp, saturating_duration};
use crate::word::settings::{
    self, MAX_AUTOMATIC_TICK, MIN_STALENESS, Misfit, Room, Scale, Setting, SettingsError, product,
    quotient,
};

/// Returns the `used` that a take at `position` for `price` units leaves. `None` if too few units
/// are available.
///
/// `behind` is called only if necessary: reading it on each call would make a denial more
/// expensive.
#[inline(always)]
pub(crate) fn used_after(
    position: u64,
    used: u64,
    price: u64,
    full: u64,
    mask: u64,
    behind: impl FnOnce() -> u64,
) -> Option<u64> {
    // With consistent settings `price` is at most `full`, so `min` changes nothing. The compiler
    // does not know that. Without `min` it would turn `target - used` below into
    // `position - (used + price)`, and the comparison would wait for the sum.
    let least = price.min(full);
    let (target, most) = (position.wrapping_sub(least), full - least);
    let distance = position.wrapping_sub(used) & mask;
    // One comparison of the distance that would be left checks two things: the bucket has `price`
    // units, and it has at most `full`.
    let from = if target.wrapping_sub(used) & mask <= most {
        used
    } else if distance < price {
        return None;
    } else {
        // The bucket is idle, or the timestamp is stale. The hint makes the compiler branch, so the
        // compare-exchange need not wait for the position.
        cold_path();
        if distance >= behind() {
            return None;
        }
        position.wrapping_sub(full)
    };
    Some(from.wrapping_add(price) & mask)
}

/// As [`used_after`], for a bucket of a table. One call tells nothing about the next, because the
/// two are about different buckets. So a branch on whether the bucket is idle would often be
/// mispredicted.
///
/// Few instructions wait for `used`, which is often not in a cache: then the processor can begin
/// with the next call in the meantime.
#[inline(always)]
pub(crate) fn used_after_in_table(
    position: u64,
    used: u64,
    price: u64,
    full: u64,
    mask: u64,
    behind: u64,
) -> Option<u64> {
    let distance = position.wrapping_sub(used) & mask;
    if distance < price || distance >= behind {
        return None;
    }
    let available = select_unpredictable(distance <= full, distance, full);
    Some(position.wrapping_add(price).wrapping_sub(available) & mask)
}

/// A bucket's settings in units of the lattice. All of them fit the word, whose bits are `mask`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lattice {
    /// Units in a tick.
    pub(crate) gain: u64,
    /// Units in a permit.
    pub(crate) cost: u64,
    /// Units in a full bucket.
    pub(crate) full: u64,
    /// Units that the bucket may owe.
    pub(crate) debt: u64,
    /// The first distance that means that the timestamp is stale or the bucket in debt.
    pub(crate) behind: u64,
    /// Permits in a full bucket.
    pub(crate) burst: u64,
    pub(crate) mask: u64,
}

impl Lattice {
    #[inline(always)]
    pub(crate) const fn is_unlimited(&self) -> bool {
        self.cost == 0
    }

    #[inline(always)]
    pub(crate) fn position(&self, tick: u64) -> u64 {
        tick.wrapping_mul(self.gain) & self.mask
    }

    /// Returns the units available at `position` in a bucket whose state is `used`.
    #[inline(always)]
    pub(crate) fn judge(&self, position: u64, used: u64) -> u64 {
        match position.wrapping_sub(used) & self.mask {
            distance if distance <= self.full => distance,
            distance if distance < self.behind => self.full,
            _ => 0,
        }
    }

    /// Returns whether a bucket whose state is `used` is full at `now`, and was full at `since`, no
    /// later than `now`, with `beyond` more units than it can hold.
    pub(crate) fn is_full_since(
        &self,
        ticks: &Grid,
        used: u64,
        now: Timestamp,
        since: Timestamp,
        beyond: u64,
    ) -> bool {
        // Decided by the distance of `now`. The distance of `since` could look like that of a
        // bucket after a long idle time.
        let passed = self.passed(ticks, now, since);
        let distance = self.position(ticks.index(now)).wrapping_sub(used) & self.mask;
        let least = self.full.saturating_add(passed).saturating_add(beyond);
        self.is_unlimited() || distance < self.behind && distance >= least
    }

    /// Returns the units from `since` to `now`, at most the staleness.
    pub(crate) fn passed(&self, ticks: &Grid, now: Timestamp, since: Timestamp) -> u64 {
        ticks
            .index(now)
            .saturating_sub(ticks.index(since))
            .saturating_mul(self.gain)
            .min(self.staleness())
    }

    /// Returns half of the units between the state of a bucket that has just become
    /// [full](Self::is_full_since) and the state that looks stale.
    const fn spare(&self) -> u64 {
        let least = self.full.saturating_add(self.staleness());
        self.behind.saturating_sub(least) / 2
    }

    /// Returns for how many nanoseconds the state of a bucket can be read that was not full, or had
    /// only just become full.
    ///
    /// A span of the circle as long as the readable one is left on either side of it, for
    /// timestamps that are more than the staleness apart and for a tick that has begun.
    pub(crate) const fn readable_for(&self, ticks: &Grid) -> u64 {
        if self.gain == 0 {
            // Positions stand still.
            return u64::MAX;
        }
        // A search for a slot may get here, so this subtracts: nothing that a hot path reaches
        // divides.
        let (mut rest, mut ticks_in) = (self.spare(), 0);
        let mut shift = self.gain.leading_zeros() + 1;
        while shift > 0 {
            shift -= 1;
            if rest >> shift >= self.gain {
                rest -= self.gain << shift;
                ticks_in |= 1 << shift;
            }
        }
        u64::saturating_mul(ticks_in, ticks.step())
    }

    /// Returns whether a bucket has been full since `since` at `now`, with 1 unit more than it can
    /// hold. At `clock`, or later while it was [readable](Self::readable_for), its state was
    /// `used`.
    pub(crate) fn has_rested(
        &self,
        ticks: &Grid,
        used: u64,
        clock: Timestamp,
        (now, since): (Timestamp, Timestamp),
    ) -> bool {
        let settled = ticks.index(clock);
        let distance = self.position(settled).wrapping_sub(used) & self.mask;
        let least = self.full.saturating_add(self.passed(ticks, now, since));
        let passed = ticks.index(now).saturating_sub(settled);
        let passed = u128::from(passed) * u128::from(self.gain);
        let ahead = if distance < self.full + self.staleness() + self.spare() {
            0
        } else {
            self.mask - distance + 1
        };
        let distance = if ahead > 0 { 0 } else { distance };
        passed + u128::from(distance) > u128::from(least) + u128::from(ahead)
    }

    /// Returns the whole permits available. At an unlimited rate, `u64::MAX`.
    pub(crate) fn available(&self, position: u64, used: u64) -> u64 {
        self.judge(position, used)
            .checked_div(self.cost)
            .unwrap_or(u64::MAX)
    }

    /// As [`used_after`], with these settings.
    #[inline(always)]
    pub(crate) fn left(&self, position: u64, used: u64, price: u64) -> Option<u64> {
        used_after(position, used, price, self.full, self.mask, || self.behind)
    }

    /// Returns the units available or owed at `position` in a bucket whose state is `used`, and the
    /// state that a take counts from.
    #[inline]
    pub(crate) fn balance(&self, position: u64, used: u64) -> Balance {
        match position.wrapping_sub(used) & self.mask {
            distance if distance <= self.full => Balance {
                available: distance,
                owed: 0,
                from: used,
            },
            distance if distance < self.behind => Balance {
                available: self.full,
                owed: 0,
                from: position.wrapping_sub(self.full) & self.mask,
            },
            distance => Balance {
                available: 0,
                owed: (self.mask - distance).wrapping_add(1),
                from: used,
            },
        }
    }

    /// Returns the state after `n` permits of a take are refunded at `position`; the take left the
    /// state `left`. The result is never further back than the state of a bucket that is full at
    /// `position`, so that a stale timestamp does not find more permits.
    #[inline]
    pub(crate) fn restored(&self, position: u64, left: u64, n: u32) -> u64 {
        let used = left.wrapping_sub(u64::from(n).wrapping_mul(self.cost)) & self.mask;
        self.balance(position, used).from
    }

    /// Returns whether positions may have wrapped between the tick of a take, `taken_in`, and the
    /// later `tick`. The word may then equal the one that the take left, but mean something else.
    /// True from the first distance at which a bucket that was full at the take looks as if the
    /// timestamp were stale.
    #[inline]
    pub(crate) fn is_outlived(&self, taken_in: u64, tick: u64) -> bool {
        let passed = u128::from(tick.saturating_sub(taken_in)) * u128::from(self.gain);
        // The permits in use, the staleness and the debt each take at most a quarter of the range,
        // so this does not underflow.
        passed >= u128::from(self.behind - self.full)
    }

    /// Returns the state after a take of `n` permits that may owe up to the declared debt, and the
    /// units owed after it. `None` if the take would owe more.
    #[inline]
    pub(crate) fn forced(&self, position: u64, used: u64, n: u32) -> Option<(u64, u64)> {
        let price = u64::from(n).checked_mul(self.cost)?;
        let balance = self.balance(position, used);
        let owed = balance
            .owed
            .checked_add(price.saturating_sub(balance.available))?;
        (owed <= self.debt).then(|| (balance.from.wrapping_add(price) & self.mask, owed))
    }

    /// Returns the state after a take for `price` units that owes up to the declared debt, if
    /// nothing was owed before it. `None` otherwise, and for a stale timestamp.
    #[inline(always)]
    pub(crate) fn owing(&self, position: u64, used: u64, price: u64) -> Option<u64> {
        let balance = self.balance(position, used);
        let owed = price.saturating_sub(balance.available);
        (balance.owed == 0 && owed <= self.debt)
            .then(|| balance.from.wrapping_add(price) & self.mask)
    }

    /// Returns the state after a reservation of `n` permits that acts at `position` and left the
    /// state `left`. At `position` the bucket holds at most a full bucket before the reservation
    /// acts.
    pub(crate) fn acted(&self, position: u64, left: u64, n: u32) -> u64 {
        let rest = self
            .full
            .saturating_sub(u64::from(n).wrapping_mul(self.cost));
        if position.wrapping_sub(left) & self.mask > rest {
            position.wrapping_sub(rest) & self.mask
        } else {
            left
        }
    }

    /// Returns the tick at which `units` owed at `tick` have been replenished. `None` if they never
    /// are.
    #[inline]
    pub(crate) fn settled(&self, tick: u64, units: u64) -> Option<u64> {
        match self.gain {
            _ if units == 0 => Some(tick),
            0 => None,
            gain => tick.checked_add(units.div_ceil(gain)),
        }
    }

    pub(crate) fn retry(&self, ticks: &Grid, used: u64, denied: Denied) -> Retry {
        let Denied::Exhausted { now, permits } = denied else {
            return Retry::Never;
        };
        if u64::from(permits.max(1)) > self.burst {
            return self.retry_behind(ticks, used, now, permits);
        }
        let price = u64::from(permits.max(1)).wrapping_mul(self.cost);
        self.retry_for(ticks, used, now, price)
    }

    /// Returns the time in which an empty bucket fills, or `None` if it never does.
    pub(crate) const fn time_to_fill(&self, ticks: &Grid) -> Option<Duration> {
        if self.gain == 0 {
            return None;
        }
        let filled = self.full.div_ceil(self.gain);
        Some(saturating_duration(filled as u128 * ticks.step() as u128))
    }

    /// Returns what goes with a decision at `now` that left the state `used`.
    pub(crate) fn detail(
        &self,
        ticks: &Grid,
        used: u64,
        now: Timestamp,
        decision: Result<(), Denied>,
    ) -> Detail {
        Detail {
            now,
            decision,
            available: self.available(self.position(ticks.index(now)), used),
            capacity: self.burst,
            time_to_fill: self.time_to_fill(ticks),
            full_again: self.retry_for(ticks, used, now, self.full),
            retry: retry_of(decision, now, |denied| self.retry(ticks, used, denied)),
        }
    }

    /// As [`retry`](Self::retry), for a take that may [owe](Self::owing).
    pub(crate) fn retry_owing(&self, ticks: &Grid, used: u64, denied: Denied) -> Retry {
        let Denied::Exhausted { now, permits } = denied else {
            return Retry::Never;
        };
        let price = u64::from(permits.max(1)).saturating_mul(self.cost);
        let price = price.saturating_sub(self.debt);
        if price > self.full {
            return Retry::Never;
        }
        self.retry_for(ticks, used, now, price)
    }

    /// Returns when the bucket owes nothing and has `price` units, at most a full bucket.
    #[inline(always)]
    fn retry_for(&self, ticks: &Grid, used: u64, now: Timestamp, price: u64) -> Retry {
        let tick = ticks.index(now);
        let balance = self.balance(self.position(tick), used);
        // The distance that the position must advance. At most half of the range is owed, and the
        // price is at most a quarter of it.
        match price
            .saturating_sub(balance.available)
            .saturating_add(balance.owed)
        {
            0 => Retry::At(now),
            missing => {
                let tick = self.settled(tick, missing);
                tick.and_then(|tick| ticks.start(tick))
                    .map_or(Retry::Never, Retry::At)
            }
        }
    }

    /// Returns when to retry behind other requests. A function of its own, so that a request that
    /// waits behind no other pays nothing for it.
    #[cold]
    #[inline(never)]
    fn retry_behind(&self, ticks: &Grid, used: u64, now: Timestamp, permits: u32) -> Retry {
        self.come_in(ticks, used, now, permits)
            .map_or(Retry::Never, Retry::At)
    }

    /// Returns the instant by which `permits` permits, more than a full bucket holds, will have
    /// been replenished. Each permit is assumed to be taken as soon as it is available.
    ///
    /// Under this assumption, less than one permit is left after each tick. If a tick brings at
    /// most a full bucket less one permit, there is room for all of it: nothing is lost, and the
    /// ticks add up.
    ///
    /// If a tick brings more, it yields `burst - 1` permits and a part of one, until the parts add
    /// up to a whole permit. The excess over that permit does not fit, so the part starts from zero
    /// again. All of these rounds have the same length. Counted in rounds, the bucket gains like
    /// one that loses nothing: a permit has `round` units, and a tick brings `burst - 1` permits
    /// and one unit.
    fn come_in(&self, ticks: &Grid, used: u64, now: Timestamp, permits: u32) -> Option<Timestamp> {
        let tick = ticks.index(now);
        let balance = self.balance(self.position(tick), used);
        // The tick that ends a debt may bring more units than are owed.
        let from = self.settled(tick, balance.owed)?;
        let beyond = from
            .wrapping_sub(tick)
            .wrapping_mul(self.gain)
            .wrapping_sub(balance.owed);
        let has = balance.available.saturating_add(beyond.min(self.full));
        // At an unlimited rate the cost is zero.
        let Some(whole) = has.checked_div(self.cost) else {
            return Some(now);
        };
        let rest = has % self.cost;
        let (gain, cost, rest) = match self.gain.checked_sub(self.full.saturating_sub(self.cost)) {
            None | Some(0) => (u128::from(self.gain), self.cost, rest),
            Some(part) => {
                let (round, left) = (self.cost.div_ceil(part), (self.cost - rest).div_ceil(part));
                (
                    u128::from(self.burst.saturating_sub(1)) * u128::from(round) + 1,
                    round,
                    round - left,
                )
            }
        };
        let missing = u128::from(u64::from(permits).saturating_sub(whole)) * u128::from(cost);
        let passed = if gain == 0 {
            return None;
        } else {
            missing.saturating_sub(rest.into()).div_ceil(gain)
        };
        ticks.start(from.checked_add(u64::try_from(passed).ok()?)?)
    }

    pub(crate) fn idle(&self, ticks: &Grid, used: u64, now: Timestamp) -> Idle {
        if self.is_unlimited() {
            return Idle::Now;
        }
        let tick = ticks.index(now);
        let distance = self.position(tick).wrapping_sub(used) & self.mask;
        if distance < self.full || distance >= self.behind {
            return Idle::InUse;
        }
        match (distance - self.full).checked_div(self.gain) {
            Some(since) => Idle::Since(
                ticks
                    .start(tick.saturating_sub(since))
                    .unwrap_or(Timestamp::MAX),
            ),
            None => Idle::Now,
        }
    }

    /// Returns the units that a due instant may gain when it is rounded up to a whole tick. With a
    /// debt, the range keeps one tick of units free for this, which count neither as debt nor as
    /// staleness.
    #[inline]
    const fn rounding(&self) -> u64 {
        if self.debt == 0 { 0 } else { self.gain }
    }

    /// Returns the rate, given the tick in nanoseconds.
    pub(crate) const fn rate(&self, tick: u64) -> Rate {
        Rate::of(self.gain, self.cost, tick)
    }

    /// Returns the most permits that the bucket may owe; 0 at an unlimited rate.
    pub(crate) fn most_owed(&self) -> u64 {
        self.debt.checked_div(self.cost).unwrap_or(0)
    }

    /// Returns the permits owed at `position`, rounded up to whole ones; 0 without a debt. At most
    /// the debt and one tick, to whose end a reservation may be rounded up.
    pub(crate) fn owed(&self, position: u64, used: u64) -> u64 {
        if self.debt == 0 || self.cost == 0 {
            return 0;
        }
        // To a stale timestamp, more seems to be owed than can be.
        let most = self.debt.saturating_add(self.rounding());
        let owed = self.balance(position, used).owed.min(most);
        owed.div_ceil(self.cost)
    }

    /// Returns whether positions wrap so late that no coarser tick than `tick` nanoseconds is
    /// necessary. At rest, a request for one permit may be denied while the bucket seems to owe
    /// permits, the timestamp seems to be stale, or the bucket seems to hold less than a permit.
    pub(crate) const fn is_enough(&self, tick: u64) -> bool {
        let range = self.mask as u128 + 1;
        let denied = range - self.behind as u128 + self.cost as u128;
        let scale = Scale {
            step: tick,
            gain: self.gain,
        };
        Room::of(self.mask.count_ones()).is_enough(range, denied, scale)
    }

    /// Returns whether a tick is short enough to be chosen for the sake of more than an hour's
    /// horizon.
    ///
    /// What a tick brings is available at its end. If a bucket then holds too little less than a
    /// full one, a part of this is lost. So in a wide word, a tick is at most a 256th of the time
    /// of a permit. In a narrow word, at most a 64th; or an eighth if permits come in at whole
    /// ticks; or it brings at most an eighth of what fits beside one permit.
    const fn is_fine(&self) -> bool {
        let (gain, cost) = (self.gain, self.cost);
        match Room::of(self.mask.count_ones()) {
            Room::Wide => gain <= cost / 256,
            Room::Narrow => {
                gain <= cost / 64
                    || gain <= cost / 8 && gain > 0 && cost % gain == 0
                    || gain <= (self.full - cost) / 8
            }
            Room::Slot => true,
        }
    }

    /// Returns the staleness in units.
    #[inline]
    pub(crate) const fn staleness(&self) -> u64 {
        let behind = (self.mask - self.behind).wrapping_add(1);
        behind.wrapping_sub(self.debt).wrapping_sub(self.rounding())
    }
}

/// The units that a bucket has or owes at one position.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Balance {
    pub(crate) available: u64,
    pub(crate) owed: u64,
    pub(crate) from: u64,
}

/// A bucket's settings as the builder takes them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) rate: Rate,
    pub(crate) burst: u64,
    pub(crate) debt: u64,
    pub(crate) tick: Option<Duration>,
    pub(crate) stepwise: bool,
    pub(crate) staleness: Option<Duration>,
    /// The longest default staleness, in nanoseconds, if the settings can be changed; else `None`.
    pub(crate) adjustable: Option<u64>,
}

impl Terms {
    /// Returns the lattice in `bits` bits, and its tick in nanoseconds.
    pub(crate) const fn lattice(&self, bits: u32) -> Result<(Lattice, u64), SettingsError> {
        if self.burst == 0 {
            return Err(SettingsError::Zero {
                setting: Setting::Burst,
            });
        }
        let staleness = match settings::staleness_nanos(self.staleness) {
            Ok(nanos) => nanos,
            Err(error) => return Err(error),
        };
        let mask = u64::MAX >> (64 - bits);
        if self.rate.is_unlimited() {
            // A permit costs nothing, so zero available units always suffice. The burst admits any
            // request.
            let burst = if bits < u32::BITS {
                u32::MAX as u64
            } else {
                mask
            };
            let lattice = Lattice {
                gain: 0,
                cost: 0,
                full: 0,
                debt: 0,
                behind: mask,
                burst,
                mask,
            };
            let tick = match self.tick {
                Some(tick) => settings::nanos(tick, Setting::Tick),
                None if self.adjustable.is_some() => Ok(self.finest_tick(bits)),
                None => Ok(1),
            };
            return match tick {
                Ok(tick) => Ok((lattice, tick)),
                Err(error) => Err(error),
            };
        }
        let period = match settings::nanos(self.rate.period(), Setting::Period) {
            Ok(nanos) => nanos,
            Err(error) => return Err(error),
        };
        let chosen = match self.tick {
            _ if self.stepwise => Some(period),
            None => None,
            Some(tick) => match settings::nanos(tick, Setting::Tick) {
                Ok(nanos) => Some(nanos),
                Err(error) => return Err(error),
            },
        };
        if let Some(tick) = chosen {
            return self.fit(bits, period, tick, staleness);
        }
        let (mut finest, coarsest) = (self.finest_tick(bits), self.coarsest_tick(period));
        // A rate of zero has no interval.
        if let Some(interval) = period.checked_div(self.rate.permits()) {
            let for_a_permit = Room::of(bits).finest_tick(interval);
            if for_a_permit > finest {
                finest = for_a_permit;
            }
        }
        while finest > 1 && finest > coarsest {
            finest /= 10;
        }
        // A whole word of 64 bits has room for nanoseconds. Its tick becomes coarser only where
        // this is not noticed.
        let exact = bits == u64::BITS;
        let mut best = self.fit(bits, period, finest, staleness);
        let mut tick = 10 * finest;
        while tick <= coarsest {
            let other = self.fit(bits, period, tick, staleness);
            match (&best, &other) {
                (Ok((best, tick)), _) if best.is_enough(*tick) => break,
                (Ok(best), Ok((other, _)))
                    if !other.is_fine() && (exact || horizon(best) >= settings::FAR_ENOUGH) =>
                {
                    break;
                }
                (Err(_), _) if exact => break,
                (Ok(best), Ok(other)) if horizon(best) >= horizon(other) => {}
                (Ok(_), Err(_)) => {}
                (Err(best), Err(other)) if !other.asks_less_than(best) => {}
                _ => best = other,
            }
            tick *= 10;
        }
        best
    }

    /// Returns the finest default tick, in nanoseconds.
    const fn finest_tick(&self, bits: u32) -> u64 {
        let is_timeless = self.rate.is_unlimited() || self.rate.permits() == 0;
        if bits == u64::BITS {
            1
        } else if bits > u32::BITS || self.adjustable.is_some() && is_timeless {
            // An adjustable bucket records the newest time once per tick, so its default tick is
            // coarser than the word requires. If time replenishes nothing, that time alone wraps:
            // with 32 bits, every 71 minutes.
            1_000
        } else {
            1
        }
    }

    /// Returns the coarsest default tick, in nanoseconds. A reservation is due at a whole tick, and
    /// may count up to there, so one tick should replenish only a small part of the debt.
    const fn coarsest_tick(&self, period: u64) -> u64 {
        if self.adjustable.is_none() || self.debt == 0 || self.rate.permits() == 0 {
            return MAX_AUTOMATIC_TICK;
        }
        let owed = product(self.debt, period);
        let earned_in = quotient(owed, self.rate.permits() as u128);
        if earned_in / 16 < MAX_AUTOMATIC_TICK as u128 {
            (earned_in / 16) as u64
        } else {
            MAX_AUTOMATIC_TICK
        }
    }

    /// Returns the staleness in ticks of `tick` nanoseconds on `lattice`. Settings that can be
    /// changed have a bounded staleness even if time replenishes nothing.
    pub(crate) const fn late(&self, lattice: &Lattice, tick: u64) -> u64 {
        match lattice.staleness().checked_div(lattice.gain) {
            Some(ticks) => ticks,
            None => match (settings::staleness_nanos(self.staleness), self.adjustable) {
                (Ok(Some(nanos)), _) | (_, Some(nanos)) => nanos.div_ceil(tick),
                _ => u64::MAX,
            },
        }
    }

    /// Returns the lattice for one choice of tick and that tick, or an error that names the setting
    /// at fault and the largest value that fits.
    const fn fit(
        &self,
        bits: u32,
        period: u64,
        tick: u64,
        staleness: Option<u64>,
    ) -> Result<(Lattice, u64), SettingsError> {
        let range = 1u128 << bits;
        // The rate per tick, in lowest terms.
        let unit = product(self.rate.permits(), tick);
        let divisor = settings::gcd(unit, period);
        let gain = quotient(unit, divisor as u128);
        // No gain fits that is more than a quarter of the range.
        let gain = if gain > u64::MAX as u128 {
            u64::MAX
        } else {
            gain as u64
        };
        let cost = period / divisor;
        let scale = Scale { step: tick, gain };
        let full = product(self.burst, cost);
        let (quarter, mask) = ((1 << (bits - 1)) / 2, u64::MAX >> (64 - bits));
        let room = Room::of(bits);
        match settings::staleness(room, range, full, staleness, self.adjustable, scale) {
            Ok(late) => {
                // A reservation acts at a whole tick, and may count up to there.
                let rounding = if self.debt == 0 { 0 } else { gain };
                let max = (quarter - rounding) / cost;
                if self.debt > max {
                    return Err(SettingsError::TooLarge {
                        setting: Setting::Debt,
                        max,
                    });
                }
                let debt = self.debt * cost;
                let lattice = Lattice {
                    gain,
                    cost,
                    full: full as u64,
                    debt,
                    behind: (mask - late as u64 - debt - rounding).wrapping_add(1),
                    burst: self.burst,
                    mask,
                };
                Ok((lattice, tick))
            }
            Err(misfit) => Err(self.refusal(misfit, quarter, scale, cost, period)),
        }
    }

    /// Returns the error of settings that do not fit: the setting at fault, and the largest value
    /// that fits a `quarter` of the range.
    const fn refusal(
        &self,
        misfit: Misfit,
        quarter: u64,
        Scale { step: tick, gain }: Scale,
        cost: u64,
        period: u64,
    ) -> SettingsError {
        let (setting, max) = match misfit {
            Misfit::Staleness => (Setting::Staleness, (quarter / gain).wrapping_mul(tick)),
            Misfit::Second => {
                let gain = quarter / MIN_STALENESS.div_ceil(tick);
                // For any number of permits, the period and `permits * tick` have this divisor in
                // common.
                let max = product(gain, settings::gcd(tick as u128, period));
                (Setting::Rate, quotient(max, tick as u128) as u64)
            }
            Misfit::Reach if cost <= quarter || gain == 0 => (Setting::Burst, quarter / cost),
            Misfit::Reach => {
                // Not even one permit fits: the tick is too fine for the period. If the period is a
                // multiple of `unit`, a permit costs that multiple; in any other period, more. The
                // gain of one tick fits, so the period is longer than `unit`.
                let unit = product(self.rate.permits(), tick);
                let times = quotient(period as u128, unit) as u64;
                let times = if times < quarter { times } else { quarter };
                (Setting::Period, times.wrapping_mul(unit as u64))
            }
        };
        SettingsError::TooLarge { setting, max }
    }
}

/// Returns the time after which positions repeat, in nanoseconds.
const fn horizon((lattice, tick): &(Lattice, u64)) -> u128 {
    if lattice.gain == 0 {
        u128::MAX
    } else {
        quotient(lattice.mask as u128 + 1, lattice.gain as u128) * *tick as u128
    }
}

#[cfg(all(test, not(portcullis_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_readable_for_half_of_what_is_spare() {
        let mut count = 0;
        for permits in [1, 3, 7, 10, 999, 123_457, 1_000_000] {
            for (burst, tick) in [(1, 1), (10, 1_000), (4, 250_000)] {
                let terms = Terms {
                    rate: Rate::per_second(permits),
                    burst,
                    debt: 0,
                    tick: Some(Duration::from_nanos(tick)),
                    stepwise: false,
                    staleness: None,
                    adjustable: None,
                };
                for bits in [43, 64] {
                    let Ok((lattice, _)) = terms.lattice(bits) else {
                        continue;
                    };
                    let ticks = Grid::new(Timestamp::ZERO, tick);
                    let expected = (lattice.spare() / lattice.gain).saturating_mul(tick);
                    assert_eq!(lattice.readable_for(&ticks), expected, "{terms:?}, {bits}");
                    count += 1;
                }
            }
        }
        assert!(count > 30, "{count}");
    }

    #[test]
    fn a_take_without_a_branch_leaves_what_a_take_with_a_branch_does() {
        const MASK: u64 = 63;
        let mut granted = [0; 2];
        for (full, behind) in [(1, 40), (7, 41), (15, 48), (16, 17)] {
            for price in 1..=full {
                for (position, used) in (0..=MASK).flat_map(|a| (0..=MASK).map(move |b| (a, b))) {
                    let one = used_after(position, used, price, full, MASK, || behind);
                    let many = used_after_in_table(position, used, price, full, MASK, behind);
                    let request = (position, used, price, full, behind);
                    assert_eq!(one, many, "{request:?}");
                    granted[usize::from(one.is_some())] += 1;
                }
            }
        }
        assert!(granted.iter().all(|count| *count > 10_000), "{granted:?}");
    }
}
