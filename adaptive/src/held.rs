use crate::adaptive::Adaptive;
use crate::controller::Controller;
use crate::outcome::Outcome;
use core::fmt;
use core::ops::Deref;
use portcullis_core::{Denied, Timestamp};

/// Permits of an [`Adaptive`] limit that a request holds, and since when.
///
/// [`end_at`](Self::end_at) returns them and tells how the request ended. A drop returns them as
/// [`Outcome::Ignored`]: a request that was cancelled, or that panicked, teaches nothing.
///
/// `P` points to the limit: `&Adaptive`, `Arc<Adaptive>` or any other `Deref`.
#[must_use = "a dropped lease returns its permits and tells nothing"]
pub struct Held<P, C = crate::Knee>
where
    P: Deref<Target = Adaptive<C>>,
    C: Controller,
{
    limit: P,
    since: Timestamp,
    permits: u32,
}

impl<P, C> Held<P, C>
where
    P: Deref<Target = Adaptive<C>>,
    C: Controller,
{
    /// Takes `n` permits of `limit` at `now`, as [`Adaptive::try_acquire_at`] does, and keeps the
    /// pointer: for example an `Arc`.
    ///
    /// # Errors
    ///
    /// [`Denied`] if the request is denied. Then the pointer is dropped.
    #[inline]
    pub fn try_acquire_at(limit: P, now: Timestamp, n: u32) -> Result<Self, Denied> {
        limit.take(now, n).map(|()| Self {
            limit,
            since: now,
            permits: n,
        })
    }

    /// Returns the permits at `now`, and tells how the request ended.
    #[inline]
    pub fn end_at(mut self, now: Timestamp, outcome: Outcome) {
        let permits = core::mem::take(&mut self.permits);
        if permits > 0 {
            self.limit.end(self.since, now, permits, outcome);
        }
    }

    /// Returns the number of permits.
    pub fn permits(&self) -> u32 {
        self.permits
    }

    /// Returns when the permits were taken.
    pub fn since(&self) -> Timestamp {
        self.since
    }
}

impl<P, C> Drop for Held<P, C>
where
    P: Deref<Target = Adaptive<C>>,
    C: Controller,
{
    #[inline]
    fn drop(&mut self) {
        if self.permits > 0 {
            let since = self.since;
            self.limit.end(since, since, self.permits, Outcome::Ignored);
        }
    }
}

impl<P, C> fmt::Debug for Held<P, C>
where
    P: Deref<Target = Adaptive<C>>,
    C: Controller,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held")
            .field("permits", &self.permits)
            .field("since", &self.since)
            .finish_non_exhaustive()
    }
}
