//! One limiter per key and limit, and their decisions.

use portcullis_core::{Limiter, Timestamp};

use super::args::Cost;
use super::needs::Client;
use super::order::Record;
use super::settings::{OfKey, Settings};
use super::time::timestamp;
use super::timeline::{Tally, Timeline};
use crate::failure::Failure;

/// Judges requests in the given order, by several independent limits.
pub(crate) struct Judge {
    trials: Vec<Trial>,
    cost: Cost,
    clock: Clock,
    /// What each key asked for, and the decisions of the first limit, if that is wanted. Indexed by
    /// the numbers of the keys.
    clients: Option<Vec<Client>>,
}

/// The time of a replay, which never goes back.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Clock {
    /// The number of requests judged.
    pub(crate) requests: u64,
    /// The times of the first request and of the newest, in milliseconds since the Unix epoch.
    pub(crate) span: Option<(u64, u64)>,
    /// The number of requests that counted at a later time than their own.
    pub(crate) late: u64,
}

impl Clock {
    /// Counts a request of this time, and returns the time at which to judge it: its own, or the
    /// newest time so far.
    pub(crate) fn advance(&mut self, time: u64) -> u64 {
        let (first, newest) = self.span.unwrap_or((time, time));
        let now = newest.max(time);
        self.span = Some((first, now));
        self.requests += 1;
        self.late += u64::from(time < now);
        now
    }
}

/// One limit, and its decisions.
pub(crate) struct Trial {
    settings: Settings,
    /// Indexed by the numbers of the keys.
    keys: Vec<Key>,
    timeline: Timeline,
}

/// The limiter of one key, once the key has had a request, and its decisions.
#[derive(Default)]
struct Key {
    limiter: Option<OfKey>,
    tally: Tally,
}

impl Judge {
    /// Creates a judge that has seen no requests.
    pub(crate) fn new(settings: Vec<Settings>, cost: Cost) -> Self {
        let trial = |settings| Trial {
            settings,
            keys: Vec::new(),
            timeline: Timeline::default(),
        };
        Self {
            trials: settings.into_iter().map(trial).collect(),
            cost,
            clock: Clock::default(),
            clients: None,
        }
    }

    /// Counts also what each key asks for.
    pub(crate) fn count_clients(&mut self) {
        self.clients = Some(Vec::new());
    }

    /// Returns what each key asked for, by the numbers of the keys.
    pub(crate) fn clients(&self) -> &[Client] {
        self.clients.as_deref().unwrap_or_default()
    }

    /// Judges a request at the log's time. A request that is older than an earlier one counts at
    /// the newest time.
    ///
    /// # Errors
    ///
    /// [`Failure::Refused`] if no limiter can be built for a new key.
    pub(crate) fn request(&mut self, request: Record) -> Result<(), Failure> {
        let now = self.clock.advance(request.time);
        let permits = match self.cost {
            Cost::One => 1,
            Cost::Bytes => request.bytes,
        };
        let mut is_allowed = None;
        for trial in &mut self.trials {
            let decided = trial.request(now, request.key as usize, permits)?;
            is_allowed.get_or_insert(decided);
        }
        if let (Some(clients), Some(is_allowed)) = (&mut self.clients, is_allowed) {
            let key = request.key as usize;
            if key >= clients.len() {
                clients.resize_with(key + 1, Client::default);
            }
            clients[key].count(now / 1_000, permits, is_allowed);
        }
        Ok(())
    }

    /// Returns the limits, in the order in which they were given.
    pub(crate) fn trials(&self) -> &[Trial] {
        &self.trials
    }

    /// Returns the time of the replay.
    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }
}

impl Trial {
    fn request(&mut self, now: u64, key: usize, permits: u64) -> Result<bool, Failure> {
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
        let allowed = take(limiter.limiter(), timestamp(now), permits);
        key.tally.count(allowed);
        self.timeline.add(now / 1_000, allowed);
        Ok(allowed)
    }

    /// Returns the settings of the limit.
    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the sum of all decisions.
    pub(crate) fn total(&self) -> Tally {
        let tallies = self.keys.iter().map(|key| key.tally);
        tallies.fold(Tally::default(), |sum, tally| sum + tally)
    }

    /// Returns the number of keys that were denied at least once.
    pub(crate) fn denied_keys(&self) -> usize {
        self.keys.iter().filter(|key| key.tally.denied > 0).count()
    }

    /// Returns the decisions over time.
    pub(crate) fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    /// Returns the keys that were denied most often, at most `count`. `keys` are numbers and names.
    /// Keys that were never denied are left out.
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

/// Takes `permits`, or none of them. `permits` may exceed a `u32`. Only this thread uses the
/// limiter.
fn take(limiter: &dyn Limiter, now: Timestamp, permits: u64) -> bool {
    // A limiter treats 0 as a probe. Here it is a request that costs nothing.
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
    fn more_permits_than_a_u32_holds_are_taken_together_or_not_at_all() {
        let bucket = TokenBucket::new(Rate::ZERO, 12_000_000_000);
        assert!(!take(&bucket, Timestamp::ZERO, 12_000_000_001));
        assert!(take(&bucket, Timestamp::ZERO, 11_000_000_000));
        assert!(!take(&bucket, Timestamp::ZERO, 5_000_000_000));
        assert_eq!(bucket.available_at(Timestamp::ZERO), 1_000_000_000);
    }

    #[test]
    fn a_request_without_cost_passes_an_exhausted_limiter() {
        let bucket = TokenBucket::new(Rate::ZERO, 1);
        assert!(take(&bucket, Timestamp::ZERO, 1));
        assert!(take(&bucket, Timestamp::ZERO, 0));
    }
}
