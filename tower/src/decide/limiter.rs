//! Requests judged by a limiter in code.

use core::fmt;
use std::sync::Arc;

use portcullis_core::{Lease, Limiter, Timestamp};

use crate::denial::Replies;
use crate::{Decide, Denial, DenialSettings, RequestHead};

/// Judges requests by a limiter, which all of them share. Each takes one permit.
///
/// Several limits are one limiter with [`AllOf`](portcullis_core::AllOf). For limits of each client
/// use [`ByPolicy`](crate::ByPolicy).
///
/// ```
/// use portcullis_core::{AllOf, Concurrency, Rate, TokenBucket};
/// use portcullis_tower::{ByLimiter, RateLimitLayer};
///
/// let limits = (TokenBucket::new(Rate::per_second(1_000), 100), Concurrency::new(64));
/// let layer = RateLimitLayer::new(ByLimiter::new(AllOf::new(limits)));
/// # let _ = layer;
/// ```
pub struct ByLimiter<L> {
    limiter: Arc<L>,
    replies: Arc<Replies>,
}

impl<L> ByLimiter<L>
where
    L: Limiter + Send + Sync + 'static,
{
    /// Judges by a limiter.
    pub fn new(limiter: L) -> Self {
        Self::shared(Arc::new(limiter))
    }

    /// Judges by a limiter that others use too.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use portcullis_core::Concurrency;
    /// use portcullis_tower::{ByLimiter, RateLimitLayer};
    ///
    /// let in_progress = Arc::new(Concurrency::new(64));
    /// let layer = RateLimitLayer::new(ByLimiter::shared(Arc::clone(&in_progress)));
    /// assert_eq!(in_progress.in_use(), 0);
    /// # let _ = layer;
    /// ```
    pub fn shared(limiter: Arc<L>) -> Self {
        Self {
            limiter,
            replies: Arc::default(),
        }
    }

    fn take_at(&self, now: Timestamp) -> Result<Lease<Arc<L>>, Denial> {
        // The pointer is cloned for a grant only.
        match self.limiter.take_at(now, 1) {
            Ok(receipt) => Ok(Lease::from_grant(Arc::clone(&self.limiter), 1, receipt)),
            Err(denied) => Err(self.replies.limiter(now, denied.retry(&*self.limiter))),
        }
    }
}

impl<L> Decide for ByLimiter<L>
where
    L: Limiter + Send + Sync + 'static,
{
    type Held = Lease<Arc<L>>;
    type Permits = Lease<Arc<L>>;

    fn prepare(&mut self, settings: &DenialSettings) {
        self.replies = Arc::new(Replies::of_limiter(settings));
    }

    #[inline]
    fn decide_at(
        &self,
        now: Timestamp,
        _: &RequestHead<'_>,
    ) -> Result<Option<Self::Permits>, Denial> {
        self.take_at(now).map(Some)
    }

    fn hold_at(&self, now: Timestamp, _: &RequestHead<'_>) -> Result<Self::Held, Denial> {
        self.take_at(now)
    }

    fn undo_at(&self, now: Timestamp, mut held: Self::Held) {
        // The lease holds one permit.
        let _ = held.refund_at(now, 1);
    }

    fn keep(&self, held: Self::Held) -> Option<Self::Permits> {
        Some(held)
    }
}

impl<L> fmt::Debug for ByLimiter<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByLimiter").finish_non_exhaustive()
    }
}
