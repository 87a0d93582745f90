//! State: a bucket, and the instant from which on it admits nothing.
//!
//! ```text
//! until    end: the upper 56 bits, in nanoseconds | life: 8
//!          end 0: closed                       the largest end: none
//! bucket   rate and burst
//! ```
//!
//! A life is a time in which the end only moves on. So a decision that has seen an end of this life
//! is for an instant before each later end of it.
//!
//! - *take at `now`*: denied if `now >= end`; else the bucket decides. Then `until` is read again.
//!   If a new life has begun, the permits go back, and the take is denied.
//! - *set*, if the end moves on: first the bucket, then `until`.
//! - *set*, if the end has passed or moves back: first `until` is closed in a new life, then the
//!   bucket changes, then `until` gets the new end. If the end has passed, the change leaves the
//!   bucket empty: nothing stands for what it gained since. So a bucket that was closed starts
//!   empty.
//!
//! Invariant: a granted permit comes from a bucket of the life whose end the decision has seen, and
//! `now` is before that end, whatever the time is when the decision is made. The bucket of a later
//! life is set after `until` has begun that life, and the second look at `until` shows it. A call
//! must not be paused while 256 lives begin.

use core::time::Duration;

use portcullis_core::limiter::Receipt;
use portcullis_core::state::{Carry, ChangeError};
use portcullis_core::{AdjustableBucket, Denied, Limiter, Rate, SettingsError, Timestamp};

use crate::sync::AtomicU64;
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sync::yield_now;

/// The end of a bucket that admits nothing.
pub const CLOSED: u64 = 0;
/// The end of a bucket that does not end.
pub const NO_END: u64 = !LIFE;

/// The mask of the life.
const LIFE: u64 = 0xff;

/// How old a timestamp may be: longer than a process is stopped in the middle of a decision, after
/// which its other threads decide first. A longer one makes decisions slower while the share
/// changes often.
const STALENESS: Duration = Duration::from_mins(10);

/// A token bucket that starts empty and admits nothing from an instant on, which can be moved.
pub struct EndingBucket {
    bucket: AdjustableBucket,
    until: AtomicU64,
}

/// The rate and the burst of a bucket.
#[derive(Clone, Copy)]
pub struct Terms {
    /// What it gains.
    pub rate: Rate,
    /// The most permits that the bucket holds.
    pub burst: u64,
    /// Until when it admits, in nanoseconds. It ends up to 255 ns before.
    pub until: u64,
}

impl Terms {
    /// Nothing.
    pub const NOTHING: Self = Self {
        rate: Rate::ZERO,
        burst: 1,
        until: CLOSED,
    };

    /// Returns an empty bucket.
    pub(crate) fn build(
        &self,
        tick: Duration,
        now: Timestamp,
    ) -> Result<AdjustableBucket, SettingsError> {
        AdjustableBucket::builder(self.rate, self.burst)
            .initial(0)
            .origin(now)
            .tick(tick)
            .staleness(STALENESS)
            .build()
    }
}

impl EndingBucket {
    /// Returns an empty bucket that gains from `now` on.
    pub fn new(terms: Terms, tick: Duration, now: Timestamp) -> Result<Self, SettingsError> {
        Ok(Self {
            bucket: terms.build(tick, now)?,
            until: AtomicU64::new(terms.until & !LIFE),
        })
    }

    /// The bucket, whatever its end.
    pub const fn bucket(&self) -> &AdjustableBucket {
        &self.bucket
    }

    /// From then on, the bucket admits nothing.
    pub fn end(&self) -> u64 {
        // Acquire: pairs with the last store of `set`, so that a bucket is read that was set with
        // this end, or later.
        self.until.load(Acquire) & !LIFE
    }

    /// Takes `n` permits at `now`.
    ///
    /// # Errors
    ///
    /// [`Denied::Exhausted`] if there are fewer, or the end has passed.
    #[inline]
    pub fn take_at(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        let denied = Denied::Exhausted { now, permits: n };
        // Acquire: as in `end`.
        let seen = self.until.load(Acquire);
        if now.as_nanos() >= seen & !LIFE {
            return Err(denied);
        }
        let receipt = self.bucket.take_at(now, n).map_err(|_| denied)?;
        // A take from a bucket of a later life has acquired the change that set it, and with it the
        // store before that change.
        if (self.until.load(Relaxed) ^ seen) & LIFE != 0 {
            let _ = self.bucket.refund_at(now, n, receipt);
            return Err(denied);
        }
        Ok(receipt)
    }

    /// Returns the permits at `now`.
    pub fn available_at(&self, now: Timestamp) -> u64 {
        if now.as_nanos() >= self.end() {
            return 0;
        }
        self.bucket.available_at(now)
    }

    /// Admits by `terms` from `now` on. Only one call at a time.
    pub fn set(&self, now: Timestamp, terms: Terms) {
        let seen = self.until.load(Relaxed);
        let (end, until) = (seen & !LIFE, terms.until & !LIFE);
        let is_other = self.bucket.rate() != terms.rate || self.bucket.burst() != terms.burst;
        if end == CLOSED && until == CLOSED && !is_other {
            return;
        }
        let is_over = now.as_nanos() >= end;
        let mut life = seen & LIFE;
        if is_over || until < end {
            life = life.wrapping_add(1) & LIFE;
            // The change releases it.
            self.until.store(CLOSED | life, Relaxed);
        }
        let Terms { rate, burst, .. } = terms;
        let is_set = if is_over {
            insist(|| self.bucket.empty_at(now, rate, burst)).is_ok()
        } else {
            let keep = || self.bucket.adjust_at(now, rate, burst, Carry::Keep);
            !is_other || insist(keep).is_ok()
        };
        // Settings were checked, so that does not happen. If it does, nothing is admitted.
        let until = if is_set { until } else { CLOSED };
        // Release: pairs with `end` and `take_at`.
        self.until.store(until | life, Release);
    }
}

/// Repeats a change while another thread is in the middle of a refund.
fn insist(mut change: impl FnMut() -> Result<(), ChangeError>) -> Result<(), ChangeError> {
    loop {
        match change() {
            Err(ChangeError::Busy) => yield_now(),
            result => return result,
        }
    }
}
