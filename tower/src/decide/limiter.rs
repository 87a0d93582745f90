//! Requests judged by a limiter in code.

use core::ops::Deref;
use std::sync::Arc;

use portcullis_core::limiter::Receipt;
use portcullis_core::queue::Replenishing;
use portcullis_core::{Clock, Lease, Limiter, LimiterExt, Timestamp};

use super::Decide;
use super::question::{Question, Taking};
use crate::denial::{Denial, DenialSettings, Replies};

/// Judges requests by a limiter, which all of them share. Each takes one permit, or
/// [its cost](Self::by_cost).
///
/// Several limits are one limiter with [`AllOf`](portcullis_core::AllOf). For limits of each client
/// use [`ByPolicy`](crate::ByPolicy).
///
/// If the limiter is a `Queue` of `portcullis-async`, requests can wait for its permits: see
/// `WaitingLayer`.
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
    pub(super) limiter: Arc<L>,
    by_cost: bool,
    /// Whether permits may return by release, so that they are kept.
    keeps: bool,
    name: Option<Box<str>>,
    pub(super) replies: Replies,
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
            by_cost: false,
            keeps: true,
            name: None,
            replies: Replies::default(),
        }
    }

    /// Sets a name, which denials have: see [`Denial::limit`].
    ///
    /// ```
    /// use portcullis_core::Concurrency;
    /// use portcullis_tower::ByLimiter;
    /// let in_progress = ByLimiter::new(Concurrency::new(64)).named("in-progress");
    /// # let _ = in_progress;
    /// ```
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Keeps nothing while a request is in progress, because the permits of the limiter return by
    /// time alone. The body of an allowed response then stays as it is.
    ///
    /// ```
    /// use portcullis_core::{Rate, TokenBucket};
    /// use portcullis_tower::{ByLimiter, RateLimitLayer};
    /// let bucket = TokenBucket::new(Rate::per_second(1_000), 100);
    /// let layer = RateLimitLayer::new(ByLimiter::new(bucket).keeping_nothing());
    /// # let _ = layer;
    /// ```
    #[must_use]
    pub fn keeping_nothing(mut self) -> Self
    where
        L: Replenishing,
    {
        self.keeps = false;
        self
    }

    /// Takes the [cost](crate::RateLimitLayerBuilder::cost) of a request instead of one permit, and
    /// [settles](crate::RateLimitLayerBuilder::settling) it.
    ///
    /// Permits at once that a settlement returns come back then, before the response has ended. So
    /// use this for a limit of permits that return by time.
    #[must_use]
    pub fn by_cost(mut self) -> Self {
        self.by_cost = true;
        self
    }

    pub(super) const fn n(&self, cost: u32) -> u32 {
        if self.by_cost { cost } else { 1 }
    }
}

/// Takes permits. The pointer to the limiter is cloned for a grant only.
#[cfg(feature = "queue")]
pub(super) fn take_at<P>(
    now: Timestamp,
    limiter: &P,
    n: u32,
    replies: &Replies,
) -> Result<Lease<P>, Denial>
where
    P: Deref<Target: Limiter + Sized> + Clone,
{
    match limiter.take_at(now, n) {
        Ok(receipt) => Ok(Lease::from_grant(limiter.clone(), n, receipt)),
        Err(denied) => {
            let limiter = &**limiter;
            Err(replies.limiter(now, limiter, denied, denied.retry(limiter)))
        }
    }
}

/// Settles a cost: returns the rest, or takes as much of the excess as there is.
pub(super) fn settle_at<P>(now: Timestamp, limiter: &P, held: &mut Lease<P>, actual: u32)
where
    P: Deref<Target: Limiter> + Clone,
{
    let estimate = held.permits();
    if let Some(unused) = estimate.checked_sub(actual) {
        let _ = held.refund_at(now, unused);
    } else {
        let excess = actual - estimate;
        let taken = limiter.try_acquire_between_at(now, 1, excess);
        let n = taken.map_or(0, Lease::forget);
        let more = Lease::from_grant(limiter.clone(), n, Receipt::NONE);
        // It is of the same limiter.
        let _ = held.merge(more);
    }
}

impl<L> Decide for ByLimiter<L>
where
    L: Limiter + Send + Sync + 'static,
{
    type Held = Lease<Arc<L>>;
    type Permits = Lease<Arc<L>>;

    fn prepare(&mut self, settings: &DenialSettings) {
        self.replies = Replies::of_limiter(settings, self.name.as_deref());
    }

    #[inline]
    fn decide<C: Clock>(&self, question: Question<'_, C>) -> Result<Option<Self::Held>, Denial> {
        let n = self.n(question.cost);
        let receipt = self.replies.take(&*self.limiter, question.clock, n)?;
        // Without a lease, the pointer is not cloned.
        let is_kept = self.keeps || question.taking == Taking::Returnable;
        Ok(is_kept.then(|| Lease::from_grant(Arc::clone(&self.limiter), n, receipt)))
    }

    fn undo_at(&self, now: Timestamp, mut held: Self::Held) {
        // It holds that many.
        let _ = held.refund_at(now, held.permits());
    }

    fn settle_at(
        &self,
        now: Timestamp,
        mut held: Self::Held,
        actual: u32,
    ) -> Option<Self::Permits> {
        if self.by_cost {
            settle_at(now, &self.limiter, &mut held, actual);
        }
        self.keep(held)
    }

    fn keep(&self, held: Self::Held) -> Option<Self::Permits> {
        self.keeps.then_some(held)
    }
}

shows!([L] ByLimiter<L>, "ByLimiter");
