//! Requests that wait in the queues of limiters in code.

use core::hash::Hash;
use core::ops::Deref;
use std::sync::Arc;

use portcullis_async::{
    Acquire, DeadlineClock, Hook, KeyedQueue, Queue, QueueClock, QueueKey, RawLock, Rejected,
};
use portcullis_core::queue::{QueueKeys, QueueLimiter};
use portcullis_core::{Clock, Lease, Limiter, Retry, Timestamp};

use super::Decide;
use super::limiter::{ByLimiter, settle_at, take_at};
use super::question::Question;
use crate::denial::{Denial, DenialSettings, Replies};
use crate::head::RequestHead;
use crate::waiting::{Asked, DecideOrWait, Turned};

/// Takes permits, or begins a wait for them, which ends at the time that `wait` receives.
fn take_or_wait<P, W>(
    now: Timestamp,
    limiter: &P,
    n: u32,
    replies: &Replies,
    asked: &mut Asked,
    wait: impl FnOnce(Timestamp) -> W,
) -> Result<Lease<P>, Turned<W>>
where
    P: Deref<Target: Limiter + Sized> + Clone,
{
    take_at(now, limiter, n, replies).map_err(|denial| {
        if denial.retry == Retry::Never {
            return Turned::Denied(denial);
        }
        let most = asked.wait_in_queue();
        let deadline = most.map_or(Timestamp::MAX, |most| now.saturating_add(most));
        Turned::Waits(wait(deadline))
    })
}

impl<L, C, R, H> DecideOrWait for ByLimiter<Queue<L, C, R, H>>
where
    L: QueueLimiter + Send + Sync + 'static,
    C: DeadlineClock + Send + Sync + 'static,
    R: RawLock + Send + Sync + 'static,
    H: Hook + Send + Sync + 'static,
{
    type Waiting = Acquire<Arc<Queue<L, C, R, H>>>;

    fn decide_or_wait(
        &self,
        _: &RequestHead<'_>,
        cost: u32,
        asked: &mut Asked,
    ) -> Result<Option<Self::Permits>, Turned<Self::Waiting>> {
        let (queue, n) = (&self.limiter, self.n(cost));
        let wait = |deadline| queue.acquire_owned(n).until(deadline);
        let now = queue.clock().now();
        take_or_wait(now, queue, n, &self.replies, asked, wait).map(|lease| self.keep(lease))
    }

    fn end_wait(
        &self,
        ended: Result<Self::Permits, Rejected>,
        _: &RequestHead<'_>,
        _: u32,
        _: &mut Asked,
    ) -> Result<Option<Self::Permits>, Denial> {
        let denial = |rejected: Rejected| {
            let now = self.limiter.clock().now();
            self.replies.queue(now, rejected)
        };
        Ok(self.keep(ended.map_err(denial)?))
    }
}

/// The limiter of a key, with a pointer to its table.
type OwnedKey<T, C, R, H> = QueueKey<Arc<KeyedQueue<T, C, R, H>>>;

/// Judges requests by a limiter for each key, in code, with a queue for each key. Each request
/// takes one permit, or [its cost](Self::by_cost). Its permits return at the end of its response,
/// if the limiters have permits at once.
///
/// In a [`WaitingLayer`](crate::WaitingLayer) requests wait for permits. In a
/// [`RateLimitLayer`](crate::RateLimitLayer) they are denied. Needs the feature `queue`.
///
/// ```
/// use portcullis_async::{KeyedQueue, ThreadTimer};
/// use portcullis_core::{Concurrency, Keyed};
/// use portcullis_tower::{ByKeyedQueue, RateLimitLayer};
///
/// // Each address has 2 requests at once. Up to 10 more wait. Room for 10,000 addresses.
/// let table = Keyed::for_keys(Concurrency::new(2), 10_000);
/// let queue = KeyedQueue::new(table, ThreadTimer::new(), 10).shared();
/// let layer = RateLimitLayer::builder(ByKeyedQueue::new(queue, |head| head.network()))
///     .build_waiting();
/// # let _ = layer;
/// ```
pub struct ByKeyedQueue<Q, F> {
    queue: Arc<Q>,
    key: F,
    by_cost: bool,
    name: Option<Box<str>>,
    replies: Replies,
}

impl<T, C, R, H, F, K> ByKeyedQueue<KeyedQueue<T, C, R, H>, F>
where
    T: QueueKeys,
    C: QueueClock,
    R: RawLock,
    H: Hook,
    F: Fn(&RequestHead<'_>) -> Option<K> + Send + Sync + 'static,
    K: Hash,
{
    /// Judges by `queue`. The requests for which `key` returns the same value share a limiter.
    /// Those for which it returns `None` are denied as
    /// [unidentified](crate::DenialSettings::unidentified).
    ///
    /// Create the queue by [`shared`](KeyedQueue::shared), so that a request that is not polled
    /// does not keep others waiting.
    pub fn new(queue: Arc<KeyedQueue<T, C, R, H>>, key: F) -> Self {
        Self {
            queue,
            key,
            by_cost: false,
            name: None,
            replies: Replies::default(),
        }
    }

    /// Sets a name, which denials have: see [`Denial::limit`].
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Takes the cost of a request: as [`ByLimiter::by_cost`].
    #[must_use]
    pub fn by_cost(mut self) -> Self {
        self.by_cost = true;
        self
    }

    fn limiter(
        &self,
        now: impl FnOnce() -> Timestamp,
        head: &RequestHead<'_>,
    ) -> Result<OwnedKey<T, C, R, H>, Denial> {
        match (self.key)(head) {
            Some(key) => Ok(self.queue.owned_key(&key)),
            None => Err(self.replies.without_key(now(), false)),
        }
    }

    const fn n(&self, cost: u32) -> u32 {
        if self.by_cost { cost } else { 1 }
    }
}

impl<T, C, R, H, F, K> Decide for ByKeyedQueue<KeyedQueue<T, C, R, H>, F>
where
    T: QueueKeys + Send + Sync + 'static,
    C: QueueClock + Send + Sync + 'static,
    R: RawLock + Send + Sync + 'static,
    H: Hook + Send + Sync + 'static,
    F: Fn(&RequestHead<'_>) -> Option<K> + Send + Sync + 'static,
    K: Hash,
{
    /// With the limiter of the key.
    type Held = (
        QueueKey<Arc<KeyedQueue<T, C, R, H>>>,
        Lease<QueueKey<Arc<KeyedQueue<T, C, R, H>>>>,
    );
    type Permits = Lease<QueueKey<Arc<KeyedQueue<T, C, R, H>>>>;

    fn prepare(&mut self, settings: &DenialSettings) {
        self.replies = Replies::of_limiter(settings, self.name.as_deref());
    }

    fn decide<N: Clock>(&self, question: Question<'_, N>) -> Result<Option<Self::Held>, Denial> {
        let now = question.clock.now();
        let limiter = self.limiter(|| now, question.head)?;
        let lease = take_at(now, &limiter, self.n(question.cost), &self.replies)?;
        Ok(Some((limiter, lease)))
    }

    fn undo_at(&self, now: Timestamp, (_, mut lease): Self::Held) {
        // It holds that many.
        let _ = lease.refund_at(now, lease.permits());
    }

    fn settle_at(
        &self,
        now: Timestamp,
        (limiter, mut lease): Self::Held,
        actual: u32,
    ) -> Option<Self::Permits> {
        if self.by_cost {
            settle_at(now, &limiter, &mut lease, actual);
        }
        Some(lease)
    }

    fn keep(&self, (_, lease): Self::Held) -> Option<Self::Permits> {
        Some(lease)
    }
}

impl<T, C, R, H, F, K> DecideOrWait for ByKeyedQueue<KeyedQueue<T, C, R, H>, F>
where
    T: QueueKeys + Send + Sync + 'static,
    C: DeadlineClock + Send + Sync + 'static,
    R: RawLock + Send + Sync + 'static,
    H: Hook + Send + Sync + 'static,
    F: Fn(&RequestHead<'_>) -> Option<K> + Send + Sync + 'static,
    K: Hash,
{
    type Waiting = Acquire<QueueKey<Arc<KeyedQueue<T, C, R, H>>>>;

    fn decide_or_wait(
        &self,
        head: &RequestHead<'_>,
        cost: u32,
        asked: &mut Asked,
    ) -> Result<Option<Self::Permits>, Turned<Self::Waiting>> {
        let (now, n) = (self.queue.clock().now(), self.n(cost));
        let limiter = self.limiter(|| now, head).map_err(Turned::Denied)?;
        let wait = |deadline| limiter.clone().acquire(n).until(deadline);
        take_or_wait(now, &limiter, n, &self.replies, asked, wait).map(Some)
    }

    fn end_wait(
        &self,
        ended: Result<Self::Permits, Rejected>,
        _: &RequestHead<'_>,
        _: u32,
        _: &mut Asked,
    ) -> Result<Option<Self::Permits>, Denial> {
        let denial = |rejected: Rejected| {
            let now = self.queue.clock().now();
            self.replies.queue(now, rejected)
        };
        ended.map(Some).map_err(denial)
    }
}

shows!([Q, F] ByKeyedQueue<Q, F>, "ByKeyedQueue");
