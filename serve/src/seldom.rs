//! A limit on events that clients cause.

use portcullis_core::{Clock, MonotonicClock, Rate, TokenBucket};

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
