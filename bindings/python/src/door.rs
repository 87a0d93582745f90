//! What the classes ask of a limit, whatever it is: one trait, for a limiter and for a limiter for
//! each key, in this process or shared by several.
//!
//! Both are queues of `portcullis-async`, so a request that waits and one that does not are in one
//! order. All queues drive themselves by the thread of [`ThreadTimer`]: a wake-up runs no Python
//! code and does not need the interpreter.

use core::hash::Hash;
use core::ops::Deref;
use core::time::Duration;
use std::sync::Arc;

use portcullis_async::{KeyedQueue, Queue, QueueKey, ThreadTimer};
use portcullis_core::keyed::{Address, KeyHash};
use portcullis_core::limiter::{Answer, Ask, Back, Hints, LimiterId, Read, Reading, Returned};
use portcullis_core::queue::{Keys, QueueKeys, QueueLimiter};
use portcullis_core::{Clock, Denied, Lease, Limiter, Retry, Timestamp};

use crate::key::Key;
use crate::outcome::{Held, Outcome, Wait};

/// A limit. A single limiter ignores the key.
pub(crate) trait Door: Send + Sync {
    /// Takes permits that return by time.
    fn allow(&self, key: &Key, n: u32) -> Result<(), Denied>;

    fn try_acquire(&self, key: &Key, n: u32) -> Result<Box<dyn Held>, Denied>;

    fn acquire(&self, key: &Key, n: u32, timeout: Option<Duration>) -> Wait;

    fn available(&self, key: &Key) -> u64;

    /// Returns in how long a request for `n` permits would be granted, if no other is. `None`:
    /// never, or not by time.
    fn wait(&self, key: &Key, n: u32) -> Option<Duration>;

    /// How many requests wait.
    fn waiting(&self) -> u32;

    fn close(&self);
}

/// A limiter that belongs to one queue of this process, and that a queue of a forked process can
/// take over. `SHARED`: other processes take from it too.
pub(crate) struct Own<L: ?Sized, const SHARED: bool>(pub(crate) Arc<L>);

impl<L: Limiter + ?Sized, const SHARED: bool> Limiter for Own<L, SHARED> {
    #[inline]
    fn decide(&self, ask: Ask<'_>) -> Answer {
        self.0.decide(ask)
    }

    #[inline]
    fn give_back(&self, back: Back<'_>) -> Returned {
        self.0.give_back(back)
    }

    fn read(&self, read: Read<'_>) -> Reading {
        self.0.read(read)
    }

    fn retry(&self, denied: Denied) -> Retry {
        self.0.retry(denied)
    }

    fn id(&self) -> Option<LimiterId> {
        self.0.id()
    }

    #[inline]
    fn hints(&self) -> Hints {
        self.0.hints()
    }
}

impl<L: Limiter + ?Sized, const SHARED: bool> QueueLimiter for Own<L, SHARED> {
    const SHARED: bool = SHARED;
}

impl<T: Keys, const SHARED: bool> Keys for Own<T, SHARED> {
    type Limiter<'t>
        = T::Limiter<'t>
    where
        Self: 't;

    fn limiter_at<'t>(&'t self, address: &'t Address) -> T::Limiter<'t> {
        self.0.limiter_at(address)
    }

    fn hash_of<K: Hash + ?Sized>(&self, key: &K) -> KeyHash {
        self.0.hash_of(key)
    }

    fn locate(&self, hash: KeyHash) -> Address {
        self.0.locate(hash)
    }
}

impl<T: QueueKeys, const SHARED: bool> QueueKeys for Own<T, SHARED> {
    const SHARED: bool = SHARED;

    fn next_held(&self, from: usize) -> Option<usize> {
        self.0.next_held(from)
    }
}

/// The lease of a queue, with the clock that a refund needs.
struct Grant<P: Deref<Target: Limiter>, N> {
    lease: Lease<P>,
    now: N,
}

impl<P, N> Held for Grant<P, N>
where
    P: Deref<Target: Limiter> + Send,
    N: Fn() -> Timestamp + Send,
{
    fn permits(&self) -> u32 {
        self.lease.permits()
    }

    fn refund(&mut self) -> u32 {
        let all = self.lease.permits();
        // It holds all of them.
        self.lease.refund_at((self.now)(), all).unwrap_or(0)
    }
}

/// In how long a request would be granted.
fn wait_for(limiter: &(impl Limiter + ?Sized), now: Timestamp, n: u32) -> Option<Duration> {
    match limiter.peek_at(now, n) {
        Ok(()) => Some(Duration::ZERO),
        Err(denied) => limiter.retry(denied).wait_from(now),
    }
}

/// One limiter.
pub(crate) struct One<L: Limiter + ?Sized, const SHARED: bool> {
    queue: Arc<Queue<Own<L, SHARED>, ThreadTimer>>,
}

impl<L, const SHARED: bool> One<L, SHARED>
where
    L: Limiter + Send + Sync + ?Sized + 'static,
{
    pub(crate) fn new(limiter: Arc<L>, max_waiting: u64) -> Self {
        let queue = Queue::new(Own(limiter), ThreadTimer::new(), max_waiting);
        Self {
            queue: queue.shared(),
        }
    }
}

impl<L, const SHARED: bool> Door for One<L, SHARED>
where
    L: Limiter + Send + Sync + ?Sized + 'static,
{
    fn allow(&self, _: &Key, n: u32) -> Result<(), Denied> {
        self.queue.try_acquire(n).map(|lease| _ = lease.forget())
    }

    fn try_acquire(&self, _: &Key, n: u32) -> Result<Box<dyn Held>, Denied> {
        let lease = self.queue.try_acquire_owned(n)?;
        let queue = Arc::clone(&self.queue);
        let now = move || queue.clock().now();
        Ok(Box::new(Grant { lease, now }))
    }

    fn acquire(&self, _: &Key, n: u32, timeout: Option<Duration>) -> Wait {
        let queue = Arc::clone(&self.queue);
        Box::pin(async move {
            let wait = queue.acquire_owned(n);
            let granted = match timeout {
                Some(timeout) => wait.within(timeout).await,
                None => wait.await,
            };
            let now = move || queue.clock().now();
            let held = granted.map(|lease| Box::new(Grant { lease, now }) as Box<dyn Held>);
            Outcome::Permits(held)
        })
    }

    fn available(&self, _: &Key) -> u64 {
        if SHARED {
            // Notices which of the processes that hold permits are dead.
            let now = self.queue.clock().now();
            _ = self.queue.peek_at(now, 1);
        }
        self.queue.available()
    }

    fn wait(&self, _: &Key, n: u32) -> Option<Duration> {
        wait_for(&*self.queue, self.queue.clock().now(), n)
    }

    fn waiting(&self) -> u32 {
        self.queue.counts().waiters
    }

    fn close(&self) {
        self.queue.close();
    }
}

/// A limiter for each key.
pub(crate) struct Each<T: QueueKeys, const SHARED: bool> {
    queue: Arc<KeyedQueue<Own<T, SHARED>, ThreadTimer>>,
}

impl<T: QueueKeys + Send + Sync + 'static, const SHARED: bool> Each<T, SHARED> {
    pub(crate) fn new(table: Arc<T>, max_waiting: u64) -> Self {
        let queue = KeyedQueue::new(Own(table), ThreadTimer::new(), max_waiting);
        Self {
            queue: queue.shared(),
        }
    }

    fn key(&self, key: &Key) -> QueueKey<&KeyedQueue<Own<T, SHARED>, ThreadTimer>> {
        self.queue.key(key)
    }
}

impl<T: QueueKeys + Send + Sync + 'static, const SHARED: bool> Door for Each<T, SHARED> {
    fn allow(&self, key: &Key, n: u32) -> Result<(), Denied> {
        self.key(key).try_acquire(n).map(|lease| _ = lease.forget())
    }

    fn try_acquire(&self, key: &Key, n: u32) -> Result<Box<dyn Held>, Denied> {
        let lease = self.queue.owned_key(key).try_acquire(n)?;
        let queue = Arc::clone(&self.queue);
        let now = move || queue.clock().now();
        Ok(Box::new(Grant { lease, now }))
    }

    fn acquire(&self, key: &Key, n: u32, timeout: Option<Duration>) -> Wait {
        let queue = Arc::clone(&self.queue);
        let key = queue.owned_key(key);
        Box::pin(async move {
            let wait = key.acquire(n);
            let granted = match timeout {
                Some(timeout) => wait.within(timeout).await,
                None => wait.await,
            };
            let now = move || queue.clock().now();
            let held = granted.map(|lease| Box::new(Grant { lease, now }) as Box<dyn Held>);
            Outcome::Permits(held)
        })
    }

    fn available(&self, key: &Key) -> u64 {
        self.key(key).available()
    }

    fn wait(&self, key: &Key, n: u32) -> Option<Duration> {
        wait_for(&*self.key(key), self.queue.clock().now(), n)
    }

    fn waiting(&self) -> u32 {
        self.queue.counts().waiters
    }

    fn close(&self) {
        self.queue.close();
    }
}
