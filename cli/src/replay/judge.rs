//! A limiter for each key, and what they decided.

use std::collections::HashMap;

use portcullis_core::{Limiter, SettingsError, Timestamp};

use super::line::Request;
use super::settings::Settings;
use super::timeline::{Tally, Timeline};
use crate::args::{Cost, KeyBy};
use crate::failure::Failure;

/// Judges requests in the order in which they are given.
pub(crate) struct Judge {
    settings: Settings,
    keys: HashMap<Box<[u8]>, Key>,
    timeline: Timeline,
    span: Option<(u64, u64)>,
}

/// One key's limiter, and what it decided.
pub(crate) struct Key {
    limiter: Box<dyn Limiter>,
    tally: Tally,
}

impl Judge {
    /// Nothing has been seen yet.
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            settings,
            keys: HashMap::new(),
            timeline: Timeline::default(),
            span: None,
        }
    }

    /// Judges a request at the log's time, which never goes back: a request that is older than one
    /// before it counts at the newest time seen.
    ///
    /// # Errors
    ///
    /// [`Failure::Refused`] if no limiter can be built for a new key.
    pub(crate) fn request(&mut self, request: &Request<'_>) -> Result<(), Failure> {
        let (first, newest) = self.span.unwrap_or((request.time, request.time));
        let now = newest.max(request.time);
        self.span = Some((first, now));
        let permits = match self.settings.cost {
            Cost::One => 1,
            Cost::Bytes => request.bytes,
        };
        let key = match self.settings.key {
            KeyBy::Ip => request.address,
            KeyBy::Global => &[],
        };
        let allowed = if let Some(key) = self.keys.get_mut(key) {
            key.judge(now, permits)
        } else {
            let mut new = Key::new(&self.settings, now)
                .map_err(|error| Failure::Refused(error.to_string()))?;
            let allowed = new.judge(now, permits);
            self.keys.insert(key.into(), new);
            allowed
        };
        self.timeline.add(now, allowed);
        Ok(())
    }

    /// What the requests were judged by.
    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// How many keys there are.
    pub(crate) fn keys(&self) -> usize {
        self.keys.len()
    }

    /// All decisions.
    pub(crate) fn total(&self) -> Tally {
        self.keys
            .values()
            .fold(Tally::default(), |sum, key| sum + key.tally)
    }

    /// The times of the first request and of the newest, in seconds since the Unix epoch.
    pub(crate) fn span(&self) -> Option<(u64, u64)> {
        self.span
    }

    /// Admitted and denied over time.
    pub(crate) fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    /// The keys that were denied most often, at most `count`, none that was not denied at all.
    pub(crate) fn most_limited(&self, count: usize) -> Vec<(&[u8], Tally)> {
        let denied = self.keys.iter().filter(|(_, key)| key.tally.denied > 0);
        let mut keys: Vec<_> = denied.map(|(name, key)| (&**name, key.tally)).collect();
        keys.sort_unstable_by(|(a, x), (b, y)| {
            (y.denied, y.allowed, a).cmp(&(x.denied, x.allowed, b))
        });
        keys.truncate(count);
        keys
    }
}

impl Key {
    fn new(settings: &Settings, first: u64) -> Result<Self, SettingsError> {
        Ok(Self {
            limiter: settings.limiter(first)?,
            tally: Tally::default(),
        })
    }

    fn judge(&mut self, now: u64, permits: u64) -> bool {
        let allowed = take(&*self.limiter, Timestamp::from_secs(now), permits);
        self.tally.count(allowed);
        allowed
    }
}

/// Takes `permits`, also more than a `u32` can say, or none of them. Nobody else uses the limiter
/// meanwhile.
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
