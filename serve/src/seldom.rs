//! Limits on events that fill the log: those that clients cause, and those of an outage.

use core::time::Duration;
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use portcullis_core::{Clock, MonotonicClock, Rate, Timestamp, TokenBucket};

/// Keeps events that a client can cause from filling the log: 10 at once, and 1 a second.
pub(crate) struct Seldom {
    limit: TokenBucket,
    clock: MonotonicClock,
}

impl Seldom {
    pub(crate) const fn new() -> Self {
        Self {
            limit: TokenBucket::new(Rate::per_second(1), 10),
            clock: MonotonicClock::new(),
        }
    }

    /// Whether one more event may be written.
    pub(crate) fn may_write(&self) -> bool {
        self.limit.try_acquire_at(self.clock.now(), 1).is_ok()
    }
}

/// How often a reason is written.
const MINUTE: Duration = Duration::from_mins(1);

/// The most reasons that are written in a minute.
const REASONS: usize = 5;

/// Keeps the retries of an outage from filling the log: each reason why they fail once a minute,
/// and at most 5 reasons.
pub(crate) struct EachMinute {
    written: Mutex<Written>,
}

/// What has been written in this minute.
struct Written {
    since: Timestamp,
    reasons: HashSet<String>,
}

impl EachMinute {
    pub(crate) fn new() -> Self {
        Self {
            written: Mutex::new(Written {
                since: Timestamp::ZERO,
                reasons: HashSet::new(),
            }),
        }
    }

    /// Begins a minute, in which this reason has been written.
    pub(crate) fn restart(&self, reason: &str, now: Timestamp) {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        *written = Written {
            since: now,
            reasons: HashSet::from([reason.to_owned()]),
        };
    }

    /// Whether this reason may be written now. If so, it has been.
    pub(crate) fn may_write(&self, reason: &str, now: Timestamp) -> bool {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        if now.saturating_since(written.since) >= MINUTE {
            written.since = now;
            written.reasons.clear();
        }
        written.reasons.len() < REASONS && written.reasons.insert(reason.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_written_once_a_minute_and_few_of_them() {
        let limit = EachMinute::new();
        let may_write = |reason: &str, second| {
            let now = Timestamp::from_secs(second);
            limit.may_write(reason, now)
        };
        limit.restart("closed", Timestamp::from_secs(100));
        let refused = |second| may_write("refused", second);
        let of_refused: Vec<_> = (101..=400).filter(|&second| refused(second)).collect();
        assert_eq!(of_refused, [101, 160, 220, 280, 340, 400]);
        assert!(may_write("closed", 401), "another reason, at once");
        assert!(!may_write("refused", 402) && !may_write("closed", 403));
        let others = (0..20).filter(|at| may_write(&at.to_string(), 404));
        assert_eq!(others.count(), REASONS - 2);
        // The next outage tells them again.
        limit.restart("closed", Timestamp::from_secs(405));
        assert!(may_write("refused", 406) && !may_write("closed", 407));
    }
}
