//! The state of a limit in a counter store, and how a request changes it.
//!
//! All numbers are whole. Times are in microseconds of the store's time.
//!
//! ```text
//! token bucket     [0, permit, at, used]
//!                  at `at`, `used` units of the burst were missing; a permit has `permit` units
//! windows          [segments, length, epoch, count 0, ... count segments - 1]
//!                  the segment `e` had count `e mod segments`, for the last `segments` of them up
//!                  to `epoch`; the segment `e` begins at `e × length`
//! ```
//!
//! **Invariant.** `used` is at least 0, and the permits in `used` or in the sum of the counts were
//! granted by this limit or by the one before. An empty quota is that of a full limit.
//!
//! - **Time passes**, to `now`: `used` falls by `rate × (now − at)`, to 0 at least; segments that
//!   are no longer among the last `segments` become 0. If `now` is before `at` or `epoch`, nothing
//!   changes.
//! - **A grant** of `n` permits adds to `used`, or to the count of `epoch`. The result is at most
//!   the burst; the sum of the counts is at most the count of the limit.
//! - **Another limit** (other `permit`, `segments` or `length`): the permits that were taken,
//!   rounded up, count as taken at `now`, at most as many as the new limit has.

use core::time::Duration;

use portcullis_core::{Retry, Timestamp};

use crate::charge::Charge;
use crate::decision::{Left, Origin, StoreDecision};
use crate::error::StoreError;
use crate::limit::{CounterLimit, MAX_SEGMENTS, MAX_UNITS, Shape};

/// The state of one limit for one id, as a counter store keeps it: a list of numbers, which only
/// the library interprets. It is empty if nothing was taken.
///
/// A store keeps the numbers, compares them, and does not change them. There are at most 67.
///
/// ```
/// use portcullis_counters::QuotaState;
/// assert!(QuotaState::default().values().is_empty());
/// assert_eq!(QuotaState::from(vec![0, 5, 7, 3]).values(), [0, 5, 7, 3]);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct QuotaState(Vec<u64>);

impl QuotaState {
    /// Returns the numbers.
    ///
    /// ```
    /// # use portcullis_counters::QuotaState;
    /// assert!(QuotaState::default().values().is_empty());
    /// ```
    #[must_use]
    pub fn values(&self) -> &[u64] {
        &self.0
    }
}

impl From<Vec<u64>> for QuotaState {
    fn from(values: Vec<u64>) -> Self {
        Self(values)
    }
}

/// The state of a limit at one moment, in the units of the limit.
#[derive(Clone, Debug)]
enum State {
    Bucket { at: u64, used: u64 },
    Windows { epoch: u64, counts: Vec<u64> },
}

/// The permits that a quota of another limit says were taken.
fn taken(values: &[u64]) -> Option<u64> {
    let is_small = |value: &u64| *value <= MAX_UNITS;
    match *values {
        [] => Some(0),
        // No limit has numbers beyond `MAX_UNITS`. Larger ones are no quota, and sums would
        // overflow.
        [0, permit, _, used] if permit > 0 && used <= MAX_UNITS => Some(used.div_ceil(permit)),
        [segments, length, _, ref counts @ ..]
            if length > 0
                && (1..=u64::from(MAX_SEGMENTS)).contains(&segments)
                && counts.len() as u64 == segments
                && counts.iter().all(is_small) =>
        {
            Some(counts.iter().sum())
        }
        _ => None,
    }
}

impl CounterLimit {
    /// The state at `now`.
    fn state(&self, quota: &QuotaState, now: u64) -> Result<State, StoreError> {
        let values = quota.values();
        // Permits that another limit has granted count as far as this one can hold them.
        let taken = taken(values).ok_or(StoreError::Damaged)?;
        let taken = taken.min(self.capacity());
        Ok(match (&self.shape, values) {
            (&Shape::Bucket { permit, rate, .. }, &[0, of, at, used]) if of == permit => {
                // No more units can return than are missing.
                let elapsed = now.saturating_sub(at).min(used.div_ceil(rate));
                State::Bucket {
                    at: at.max(now),
                    used: used.saturating_sub(elapsed.saturating_mul(rate)),
                }
            }
            (&Shape::Bucket { permit, .. }, _) => State::Bucket {
                at: now,
                used: taken * permit,
            },
            (
                &Shape::Windows {
                    segments, length, ..
                },
                &[number, of, epoch, ref counts @ ..],
            ) if (number, of) == (segments, length) => {
                let mut counts = counts.to_vec();
                let last = epoch.max(now / length);
                // However many segments have passed, each count is removed once.
                for passed in (epoch..last).take(segments as usize) {
                    counts[((passed + 1) % segments) as usize] = 0;
                }
                State::Windows {
                    epoch: last,
                    counts,
                }
            }
            (
                &Shape::Windows {
                    segments, length, ..
                },
                _,
            ) => {
                let epoch = now / length;
                let mut counts = vec![0; segments as usize];
                counts[(epoch % segments) as usize] = taken;
                State::Windows { epoch, counts }
            }
        })
    }

    fn available(&self, state: &State) -> u64 {
        match (&self.shape, state) {
            (&Shape::Bucket { permit, burst, .. }, &State::Bucket { used, .. }) => {
                (burst * permit).saturating_sub(used) / permit
            }
            (&Shape::Windows { count, .. }, State::Windows { counts, .. }) => {
                count.saturating_sub(counts.iter().sum())
            }
            _ => unreachable!("a state has the shape of its limit"),
        }
    }

    /// Adds `n` permits, which are available.
    fn take(&self, state: &mut State, n: u64) {
        match (&self.shape, state) {
            (&Shape::Bucket { permit, .. }, State::Bucket { used, .. }) => *used += n * permit,
            (&Shape::Windows { segments, .. }, State::Windows { epoch, counts }) => {
                counts[(*epoch % segments) as usize] += n;
            }
            _ => unreachable!("a state has the shape of its limit"),
        }
    }

    /// The instant at which `n` permits are available, if no request takes any. `n` is at most the
    /// capacity.
    fn instant_of(&self, state: &State, n: u64) -> u64 {
        match (&self.shape, state) {
            (
                &Shape::Bucket {
                    rate,
                    permit,
                    burst,
                },
                &State::Bucket { at, used },
            ) => {
                let missing = used.saturating_sub((burst - n) * permit);
                at.saturating_add(missing.div_ceil(rate))
            }
            (
                &Shape::Windows {
                    segments,
                    length,
                    count,
                },
                State::Windows { epoch, counts },
            ) => {
                let mut sum: u64 = counts.iter().sum();
                // A segment no longer counts `segments` later. The oldest one first.
                for end in epoch + 1..=epoch + segments {
                    if sum + n <= count {
                        return (end - 1).saturating_mul(length);
                    }
                    sum -= counts[(end % segments) as usize];
                }
                (epoch + segments).saturating_mul(length)
            }
            _ => unreachable!("a state has the shape of its limit"),
        }
    }

    fn quota(&self, state: &State) -> QuotaState {
        QuotaState(match (&self.shape, state) {
            (&Shape::Bucket { permit, .. }, &State::Bucket { at, used }) => {
                vec![0, permit, at, used]
            }
            (
                &Shape::Windows {
                    segments, length, ..
                },
                State::Windows { epoch, counts },
            ) => {
                let head = [segments, length, *epoch];
                head.iter().chain(counts).copied().collect()
            }
            _ => unreachable!("a state has the shape of its limit"),
        })
    }

    fn left(&self, state: &State, now: u64) -> Left {
        let capacity = self.capacity();
        Left {
            available: self.available(state),
            capacity,
            full_in: until(now, self.instant_of(state, capacity)),
        }
    }
}

/// The time from `now` to an instant.
fn until(now: u64, instant: u64) -> Duration {
    Duration::from_micros(instant.saturating_sub(now))
}

/// The charges of a request, those with the same id added up.
pub(crate) struct Judgement<'a> {
    each: Vec<Merged<'a>>,
    /// For each charge, the index in `each`.
    of_charge: Vec<usize>,
}

struct Merged<'a> {
    id: &'a str,
    limit: &'a CounterLimit,
    permits: u64,
}

/// A decision. If permits were taken, also for each id the quota to write, and how long the limit
/// takes to be full again. `None` in it for an id of which nothing was taken.
type Judged = (StoreDecision, Option<Vec<Option<(QuotaState, Duration)>>>);

impl<'a> Judgement<'a> {
    pub(crate) fn of(charges: &'a [Charge<'a>]) -> Result<Self, StoreError> {
        let mut each: Vec<Merged<'a>> = Vec::with_capacity(charges.len());
        let mut of_charge = Vec::with_capacity(charges.len());
        for charge in charges {
            let permits = u64::from(charge.permits);
            let known = each.iter().position(|merged| merged.id == charge.id);
            match known.map(|index| &mut each[index]) {
                None => each.push(Merged {
                    id: charge.id,
                    limit: charge.limit,
                    permits,
                }),
                Some(merged) if merged.limit == charge.limit => merged.permits += permits,
                Some(_) => return Err(StoreError::MixedLimits),
            }
            of_charge.push(known.unwrap_or(each.len() - 1));
        }
        Ok(Self { each, of_charge })
    }

    /// The ids, each once.
    pub(crate) fn ids(&self) -> Vec<&'a str> {
        self.each.iter().map(|merged| merged.id).collect()
    }

    /// Decides by the quotas of the ids at `at`, the store's time.
    pub(crate) fn judge(&self, quotas: &[QuotaState], at: Timestamp) -> Result<Judged, StoreError> {
        let now = at.as_nanos() / 1_000;
        let mut states = self.states(quotas, now)?;
        let denied_by = self.denied_by(&states);
        let retry = denied_by.map(|_| self.retry(&states, now));
        let mut taken = None;
        if denied_by.is_none() {
            for (merged, state) in self.each.iter().zip(&mut states) {
                merged.limit.take(state, merged.permits);
            }
            if self.each.iter().any(|merged| merged.permits > 0) {
                let each = self.each.iter().zip(&states).map(|(merged, state)| {
                    (merged.permits > 0).then(|| {
                        let full_in = merged.limit.left(state, now).full_in;
                        (merged.limit.quota(state), full_in)
                    })
                });
                taken = Some(each.collect());
            }
        }
        let decision = StoreDecision {
            denied_by,
            retry,
            at,
            left: self.left(&states, now),
            origin: Origin::Store,
        };
        Ok((decision, taken))
    }

    /// The limit and the permits of each id.
    #[cfg(feature = "redis")]
    pub(crate) fn each(&self) -> impl Iterator<Item = (&'a CounterLimit, u64)> {
        self.each
            .iter()
            .map(|merged| (merged.limit, merged.permits))
    }

    /// The decision that a store made at `at`, from the quotas that it left.
    #[cfg(feature = "redis")]
    pub(crate) fn conclude(
        &self,
        quotas: &[QuotaState],
        at: Timestamp,
        is_allowed: bool,
    ) -> Result<StoreDecision, StoreError> {
        let now = at.as_nanos() / 1_000;
        let states = self.states(quotas, now)?;
        let mut decision = StoreDecision {
            denied_by: None,
            retry: None,
            at,
            left: self.left(&states, now),
            origin: Origin::Store,
        };
        if !is_allowed {
            // The script says only that it has denied. The same arithmetic says which limit has.
            decision.denied_by = Some(self.denied_by(&states).ok_or(StoreError::Damaged)?);
            decision.retry = Some(self.retry(&states, now));
        }
        Ok(decision)
    }

    fn states(&self, quotas: &[QuotaState], now: u64) -> Result<Vec<State>, StoreError> {
        if quotas.len() != self.each.len() {
            return Err(StoreError::Damaged);
        }
        let states = self.each.iter().zip(quotas);
        let states = states.map(|(merged, quota)| merged.limit.state(quota, now));
        states.collect()
    }

    /// The index of the first charge that is denied.
    fn denied_by(&self, states: &[State]) -> Option<usize> {
        self.of_charge.iter().position(|&index| {
            let Merged { limit, permits, .. } = self.each[index];
            // A charge of 0 permits asks whether one could be taken.
            permits.max(1) > limit.available(&states[index])
        })
    }

    fn left(&self, states: &[State], now: u64) -> Vec<Left> {
        let left = self.of_charge.iter();
        let left = left.map(|&index| self.each[index].limit.left(&states[index], now));
        left.collect()
    }

    /// Returns when all limits have the permits.
    fn retry(&self, states: &[State], now: u64) -> Retry {
        let mut latest = now;
        for (Merged { limit, permits, .. }, state) in self.each.iter().zip(states) {
            let permits = (*permits).max(1);
            if permits > limit.capacity() {
                return Retry::Never;
            }
            if permits > limit.available(state) {
                latest = latest.max(limit.instant_of(state, permits));
            }
        }
        Retry::After(until(now, latest))
    }
}
