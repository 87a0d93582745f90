//! A limiter for each key and each limit, and what they decided.

use portcullis_core::{Limiter, Timestamp};

use super::order::Record;
use super::settings::Settings;
use super::time::timestamp;
use super::timeline::{Tally, Timeline};
use crate::args::Cost;
use crate::failure::Failure;

/// Judges requests in the order in which they are given, by several limits that know nothing of
/// each other.
pub(crate) struct Judge {
    trials: Vec<Trial>,
    cost: Cost,
    requests: u64,
    /// The times of the first request and of the newest, in milliseconds.
    span: Option<(u64, u64)>,
    late: u64,
}

/// One limit, and what it decided.
pub(crate) struct Trial {
    settings: Settings,
    /// By the numbers of the keys.
    keys: Vec<Key>,
    timeline: Timeline,
}

/// One key's limiter, once it has had a request, and what it decided.
#[derive(Default)]
struct Key {
    limiter: Option<Box<dyn Limiter>>,
    tally: Tally,
}

impl Judge {
    /// Nothing has been seen yet.
    pub(crate) fn new(settings: Vec<Settings>, cost: Cost) -> Self {
        let trial = |settings| Trial {
            settings,
            keys: Vec::new(),
            timeline: Timeline::default(),
        };
        Self {
            trials: settings.into_iter().map(trial).collect(),
            cost,
            requests: 0,
            span: None,
            late: 0,
        }
    }

    /// Judges a request at the log's time, which never goes back: a request that is older than one
    /// before it counts at the newest time.
    ///
    /// # Errors
    ///
    /// [`Failure::Refused`] if no limiter can be built for a new key.
    pub(crate) fn request(&mut self, request: Record) -> Result<(), Failure> {
        let (first, newest) = self.span.unwrap_or((request.time, request.time));
        let now = newest.max(request.time);
        self.span = Some((first, now));
        self.requests += 1;
        self.late += u64::from(request.time < now);
        let permits = match self.cost {
            Cost::One => 1,
            Cost::Bytes => request.bytes,
        };
        for trial in &mut self.trials {
            trial.request(now, request.key as usize, permits)?;
        }
        Ok(())
    }

    /// The limits, in the order in which they were given.
    pub(crate) fn trials(&self) -> &[Trial] {
        &self.trials
    }

    /// How many requests were judged.
    pub(crate) fn requests(&self) -> u64 {
        self.requests
    }

    /// The times of the first request and of the newest, in milliseconds since the Unix epoch.
    pub(crate) fn span(&self) -> Option<(u64, u64)> {
        self.span
    }

    /// How many requests counted at a later time than their own.
    pub(crate) fn late(&self) -> u64 {
        self.late
    }
}

impl Trial {
    fn request(&mut self, now: u64, key: usize, permits: u64) -> Result<(), Failure> {
        if key >= self.keys.len() {
            self.keys.resize_with(key + 1, Key::default);
        }
        let key = &mut self.keys[key];
        let limiter = if let Some(limiter) = &key.limiter {
            limiter
        } else {
            let limiter = self.settings.limiter(now);
            let limiter = limiter.map_err(|error| Failure::Refused(error.to_string()))?;
            key.limiter.insert(limiter)
        };
        let allowed = take(&**limiter, timestamp(now), permits);
        key.tally.count(allowed);
        self.timeline.add(now / 1_000, allowed);
        Ok(())
    }

    /// What the requests were judged by.
    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// All decisions.
    pub(crate) fn total(&self) -> Tally {
        let tallies = self.keys.iter().map(|key| key.tally);
        tallies.fold(Tally::default(), |sum, tally| sum + tally)
    }

    /// How many keys were denied at least once.
    pub(crate) fn denied_keys(&self) -> usize {
        self.keys.iter().filter(|key| key.tally.denied > 0).count()
    }

    /// Admitted and denied over time.
    pub(crate) fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    /// Of `keys`, given by number and name, those that were denied most often: at most `count`, and
    /// none that was not denied at all.
    pub(crate) fn most_denied<'a>(
        &self,
        keys: impl Iterator<Item = (u32, &'a [u8])>,
        count: usize,
    ) -> Vec<(&'a [u8], Tally)> {
        let tally = |(number, name)| (name, self.keys[number as usize].tally);
        let denied = keys.map(tally).filter(|(_, tally)| tally.denied > 0);
        let mut keys: Vec<_> = denied.collect();
        keys.sort_unstable_by(|(a, x), (b, y)| {
            (y.denied, y.allowed, a).cmp(&(x.denied, x.allowed, b))
        });
        keys.truncate(count);
        keys
    }
}

/// Takes `permits`, also more than a `u32` can say, or none of them. Only this thread uses the
/// limiter.
fn take(limiter: &dyn Limiter, now: Timestamp, permits: u64) -> bool {
    // A limiter takes 0 for a probe; here it is a request that costs nothing.
    if permits == 0 {
        return true;
    }
    if let Ok(permits) = u32::try_from(permits) {
        return limiter.take_at(now, permits).is_ok();
    }
    if limiter.available_at(now) < permits {
        return false;
    }
    let mut rest = permits;
    while rest > 0 {
        let part = u32::try_from(rest).unwrap_or(u32::MAX);
        if limiter.take_at(now, part).is_err() {
            return false;
        }
        rest -= u64::from(part);
    }
    true
}

#[cfg(test)]
mod tests {
    use portcullis_core::{Rate, TokenBucket};

    use super::*;

    #[test]
    fn more_permits_than_a_u32_can_say_are_taken_together_or_not_at_all() {
        let bucket = TokenBucket::new(Rate::ZERO, 12_000_000_000);
        assert!(!take(&bucket, Timestamp::ZERO, 12_000_000_001));
        assert!(take(&bucket, Timestamp::ZERO, 11_000_000_000));
        assert!(!take(&bucket, Timestamp::ZERO, 5_000_000_000));
        assert_eq!(bucket.available_at(Timestamp::ZERO), 1_000_000_000);
    }

    #[test]
    fn what_costs_nothing_passes_an_empty_limiter() {
        let bucket = TokenBucket::new(Rate::ZERO, 1);
        assert!(take(&bucket, Timestamp::ZERO, 1));
        assert!(take(&bucket, Timestamp::ZERO, 0));
    }
}
