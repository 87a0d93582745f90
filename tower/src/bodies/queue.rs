//! Limits of bytes in code: a queue of permits for all bodies, or for those with the same key.

use core::future::Future;
use core::hash::Hash;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use std::sync::Arc;

use pin_project_lite::pin_project;
use portcullis_async::{Acquire, Hook, KeyedQueue, Queue, QueueClock, QueueKey, RawLock, Rejected};
use portcullis_core::queue::{QueueKeys, QueueLimiter};
use portcullis_core::{Clock, Lease, Limiter, Timestamp};
use portcullis_policy::Kind;

use super::{BodyLimitError, Flow, LimitBytes, piece};
use crate::denial::Replies;
use crate::denial::{Denial, DenialSettings};
use crate::head::RequestHead;

/// A queue of permits that a body owns a pointer to: an `Arc` of a
/// [`Queue`](portcullis_async::Queue), or a [`QueueKey`](portcullis_async::QueueKey) with an `Arc`.
/// Sealed.
pub trait Waits: sealed::Sealed + Send + 'static {
    #[doc(hidden)]
    type Permits;
    #[doc(hidden)]
    type Wait: Future<Output = Result<Self::Permits, Rejected>> + Send;

    #[doc(hidden)]
    fn wait(&self, bytes: u32) -> Self::Wait;
    #[doc(hidden)]
    fn capacity(&self) -> u64;
}

mod sealed {
    pub trait Sealed {}
}

impl<L, C, R, H> sealed::Sealed for Arc<Queue<L, C, R, H>>
where
    L: QueueLimiter,
    C: QueueClock,
    R: RawLock,
    H: Hook,
{
}

impl<L, C, R, H> Waits for Arc<Queue<L, C, R, H>>
where
    L: QueueLimiter + Send + Sync + 'static,
    C: QueueClock + Send + Sync + 'static,
    R: RawLock + Send + Sync + 'static,
    H: Hook + Send + Sync + 'static,
{
    type Permits = Lease<Self>;
    type Wait = Acquire<Self>;

    fn wait(&self, bytes: u32) -> Acquire<Self> {
        self.acquire_owned(bytes)
    }

    fn capacity(&self) -> u64 {
        Limiter::capacity(&**self)
    }
}

impl<T, C, R, H> sealed::Sealed for QueueKey<Arc<KeyedQueue<T, C, R, H>>>
where
    T: QueueKeys,
    C: QueueClock,
    R: RawLock,
    H: Hook,
{
}

impl<T, C, R, H> Waits for QueueKey<Arc<KeyedQueue<T, C, R, H>>>
where
    T: QueueKeys + Send + Sync + 'static,
    C: QueueClock + Send + Sync + 'static,
    R: RawLock + Send + Sync + 'static,
    H: Hook + Send + Sync + 'static,
{
    type Permits = Lease<Self>;
    type Wait = Acquire<Self>;

    fn wait(&self, bytes: u32) -> Acquire<Self> {
        self.clone().acquire(bytes)
    }

    fn capacity(&self) -> u64 {
        Limiter::capacity(&**self)
    }
}

pin_project! {
    /// The permits for the bytes of one body, from a queue in code.
    pub struct QueueFlow<Q: Waits> {
        queue: Q,
        // Present while the body waits, or until the next poll.
        #[pin]
        wait: Option<Q::Wait>,
        // For how many bytes it waits.
        bytes: u32,
    }
}

impl<Q: Waits> QueueFlow<Q> {
    /// The permits of `queue`. Its limit should return permits by time: those of a
    /// [`Concurrency`](portcullis_core::Concurrency) limit return as soon as the bytes pass.
    pub const fn new(queue: Q) -> Self {
        Self {
            queue,
            wait: None,
            bytes: 0,
        }
    }
}

impl<Q: Waits> Flow for QueueFlow<Q> {
    fn poll_permits(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        most: u32,
    ) -> Poll<Result<u32, BodyLimitError>> {
        let mut this = self.project();
        if this.wait.is_none() {
            *this.bytes = piece(this.queue.capacity()).min(most);
        }
        loop {
            if this.wait.is_none() {
                this.wait.set(Some(this.queue.wait(*this.bytes)));
            }
            let wait = this.wait.as_mut().as_pin_mut().expect("set above");
            let outcome = ready!(wait.poll(context)).map(drop);
            this.wait.set(None);
            match outcome {
                Ok(()) => return Poll::Ready(Ok(*this.bytes)),
                // The limit was lowered in the meantime.
                Err(Rejected::ExceedsCapacity { permits, capacity })
                    if permits > 1 && capacity > 0 =>
                {
                    *this.bytes = capacity.min(permits - 1);
                }
                Err(rejected) => return Poll::Ready(Err(BodyLimitError::Rejected(rejected))),
            }
        }
    }
}

shows!([Q: Waits] QueueFlow<Q>, "QueueFlow", self: "waits" => self.wait.is_some());

/// All bodies share the permits of the queue.
///
/// Create the queue by [`shared`](portcullis_async::Queue::shared), so that a body that is not
/// polled does not keep others waiting. A body that finds the queue full fails, so give it room:
/// `u64::MAX` permits.
impl<L, C, R, H> LimitBytes for Arc<Queue<L, C, R, H>>
where
    L: QueueLimiter + Send + Sync + 'static,
    C: QueueClock + Send + Sync + 'static,
    R: RawLock + Send + Sync + 'static,
    H: Hook + Send + Sync + 'static,
{
    type Flow = QueueFlow<Self>;

    fn prepare(&mut self, _: &DenialSettings) {}

    fn limit(&self, _: Kind, _: &RequestHead<'_>) -> Result<Option<QueueFlow<Self>>, Denial> {
        flow(Self::clone(self), &Replies::default())
    }
}

/// What limits a body, unless the queue can never grant a byte.
fn flow<Q: Waits>(queue: Q, replies: &Replies) -> Result<Option<QueueFlow<Q>>, Denial> {
    if queue.capacity() == 0 {
        let rejected = Rejected::ExceedsCapacity {
            permits: 1,
            capacity: 0,
        };
        return Err(replies.queue(Timestamp::ZERO, rejected));
    }
    Ok(Some(QueueFlow::new(queue)))
}

/// Limits the bytes of bodies by a queue for each key, in code.
///
/// ```
/// use portcullis_async::{KeyedQueue, ThreadTimer};
/// use portcullis_core::{Keyed, Rate, TokenBucket};
/// use portcullis_tower::bodies::{BodyLimitLayer, BytesByKey};
///
/// // Each address uploads 1 MB per second. Room for 10,000 addresses.
/// let rate = TokenBucket::new(Rate::per_second(1_000_000), 100_000);
/// let table = Keyed::for_keys(rate, 10_000);
/// let up = KeyedQueue::new(table, ThreadTimer::new(), u64::MAX).with_max_waiters(u32::MAX);
/// let up = BytesByKey::new(up.shared(), |head| head.network());
/// let layer = BodyLimitLayer::builder().ingress(up).build();
/// # let _ = layer;
/// ```
pub struct BytesByKey<Q, F> {
    queue: Q,
    key: F,
    replies: Replies,
}

impl<T, C, R, H, F, K> BytesByKey<Arc<KeyedQueue<T, C, R, H>>, F>
where
    T: QueueKeys,
    C: QueueClock,
    R: RawLock,
    H: Hook,
    F: Fn(&RequestHead<'_>) -> Option<K> + Send + Sync + 'static,
    K: Hash,
{
    /// Limits by `queue`. The bodies of requests for which `key` returns the same value share a
    /// limit. Requests for which it returns `None` are denied as
    /// [unidentified](crate::DenialSettings::unidentified).
    ///
    /// Create the queue by [`shared`](portcullis_async::KeyedQueue::shared), so that a body that is
    /// not polled does not keep others waiting. A body that finds the queue full fails, so give it
    /// room: `u64::MAX` permits, and as many waiters as there are bodies at once.
    pub fn new(queue: Arc<KeyedQueue<T, C, R, H>>, key: F) -> Self {
        Self {
            queue,
            key,
            replies: Replies::default(),
        }
    }
}

impl<T, C, R, H, F, K> LimitBytes for BytesByKey<Arc<KeyedQueue<T, C, R, H>>, F>
where
    T: QueueKeys + Send + Sync + 'static,
    C: QueueClock + Clock + Send + Sync + 'static,
    R: RawLock + Send + Sync + 'static,
    H: Hook + Send + Sync + 'static,
    F: Fn(&RequestHead<'_>) -> Option<K> + Send + Sync + 'static,
    K: Hash,
{
    type Flow = QueueFlow<QueueKey<Arc<KeyedQueue<T, C, R, H>>>>;

    fn prepare(&mut self, settings: &DenialSettings) {
        self.replies = Replies::of_limiter(settings, None);
    }

    fn limit(&self, _: Kind, head: &RequestHead<'_>) -> Result<Option<Self::Flow>, Denial> {
        let Some(key) = (self.key)(head) else {
            return Err(self.replies.without_key(Timestamp::ZERO, false));
        };
        flow(self.queue.owned_key(&key), &self.replies)
    }
}

shows!([Q, F] BytesByKey<Q, F>, "BytesByKey");
