use core::fmt;
use core::hash::Hash;
use core::ops::Deref;

use portcullis_core::metadata::{self, Metadata};
use portcullis_core::{
    Address, Clock, Denied, Idle, Key, Keys, Lease, Limiter, LimiterId, QueueKeys, Receipt, Refund,
    Retry, Timestamp, Waiting,
};
use stable_deref_trait::StableDeref;

use crate::Acquire;
use crate::lock::RawLock;
use crate::queues::acquire::{Anchored, Queued};
use crate::queues::common::common;
use crate::queues::hook::Hook;
use crate::queues::options::{Options, Order};
use crate::queues::queue::DefaultLock;
use crate::waiting::limiter_source::{LimiterSource, PerKey};
use crate::waiting::wait_queue::{WaitQueue, earliest};

/// A table of limiters by key, and for each key a queue of those who wait for its permits: no key's
/// wait holds up another's.
///
/// All that is said of a [`Queue`](crate::Queue) holds for each key; the options are the same for
/// all. A key takes no room until somebody waits for it, and then it is in the futures that wait.
///
/// **Bound.** The table's, and at most [`max_permits`](Self::new) queued permits for each key, and
/// [`max_waiters`](Self::with_max_waiters) waits for all keys together, by default 4,096. Where a
/// queue is newest first, those of the same key are evicted alone.
///
/// **A key that finds no entry** ([`Denied::Crowded`]) waits like any other, and asks again after
/// the table's staleness. While somebody waits for a key, and it is denied, its entry is in use, as
/// it is for everybody.
///
/// **Cost.** As of a queue; and to wait, to release while somebody waits, and to be granted is a
/// walk over the *keys* for which somebody waits that are in the same one of 32 shards (16 on
/// 32-bit targets).
///
/// ```
/// use portcullis_async::KeyedQueue;
/// use portcullis_core::{ConcurrencyRules, Keyed, Line, ManualClock, Seed};
///
/// let table = Keyed::new(ConcurrencyRules::new(1), Line::for_keys(1_000), Seed::new());
/// let downloads: KeyedQueue<_, _> = KeyedQueue::new(table, ManualClock::new(), 10);
/// futures_executor::block_on(async {
///     let alice = downloads.acquire("alice", 1).await?;
///     let bob = downloads.acquire("bob", 1).await?;
///     drop(alice);
///     let alice = downloads.acquire("alice", 1).await?;
///     # drop((alice, bob));
///     Ok::<(), portcullis_async::Rejected>(())
/// })?;
/// # Ok::<(), portcullis_async::Rejected>(())
/// ```
pub struct KeyedQueue<T: QueueKeys, C, R = DefaultLock, H = ()> {
    pub(crate) wait_queue: WaitQueue<(PerKey<T>, C, R, H)>,
}

/// Waits for all keys together, unless another number is set.
const WAITERS: u32 = 4_096;

impl<T: QueueKeys, C, R: RawLock> KeyedQueue<T, C, R> {
    /// Queues of up to `max_permits` permits for each key (0: nobody waits) around `table`, asked
    /// at the times of `clock`; [oldest first](Order::OldestFirst).
    ///
    /// ```
    /// # use portcullis_async::KeyedQueue;
    /// # use portcullis_core::{ConcurrencyRules, Keyed, Line, ManualClock, Seed};
    /// static CLOCK: ManualClock = ManualClock::new();
    /// static QUEUE: KeyedQueue<Keyed<ConcurrencyRules, [Line; 64]>, &ManualClock> =
    ///     KeyedQueue::new(
    ///         Keyed::new(
    ///             ConcurrencyRules::new(1),
    ///             [const { Line::new() }; 64],
    ///             Seed::new(),
    ///         ),
    ///         &CLOCK,
    ///         10,
    ///     );
    /// ```
    #[cfg(not(loom))]
    pub const fn new(table: T, clock: C, max_permits: u64) -> Self {
        let options = Options {
            max_waiters: WAITERS,
            ..Options::new(max_permits)
        };
        Self {
            wait_queue: WaitQueue::new(PerKey(table), clock, (), options, R::OPEN),
        }
    }

    /// As without loom, but for a lock that cannot be built in a constant.
    #[cfg(loom)]
    pub fn with_lock(table: T, clock: C, max_permits: u64, lock: R) -> Self {
        let options = Options {
            max_waiters: WAITERS,
            ..Options::new(max_permits)
        };
        Self {
            wait_queue: WaitQueue::new(PerKey(table), clock, (), options, lock),
        }
    }

    /// As [`Queue::with_hook`](crate::Queue::with_hook).
    ///
    /// ```
    /// # use portcullis_async::{KeyedQueue, Waited};
    /// # use portcullis_core::{ConcurrencyRules, Keyed, Line, ManualClock, Seed};
    /// # let table = Keyed::new(ConcurrencyRules::new(1), Line::for_keys(1_000), Seed::new());
    /// let queue: KeyedQueue<_, _> = KeyedQueue::new(table, ManualClock::new(), 10);
    /// let queue = queue.with_hook(|waited: &Waited| {
    ///     println!("{:?} after {:?}", waited.outcome, waited.time);
    /// });
    /// # _ = queue;
    /// ```
    pub fn with_hook<H: Hook>(self, hook: H) -> KeyedQueue<T, C, R, H> {
        KeyedQueue {
            wait_queue: self.wait_queue.with_hook(hook),
        }
    }
}

common!(KeyedQueue<T: QueueKeys>, PerKey<T>);

impl<T: QueueKeys, C: Clock, R: RawLock, H: Hook> KeyedQueue<T, C, R, H> {
    /// Waits for `n` permits of `key`; as [`Queue::acquire`](crate::Queue::acquire).
    ///
    /// # Errors
    ///
    /// [`Rejected`](crate::Rejected), as of a queue.
    ///
    /// ```
    /// # use portcullis_async::KeyedQueue;
    /// # use portcullis_core::{ConcurrencyRules, Keyed, Line, ManualClock, Seed};
    /// # let table = Keyed::new(ConcurrencyRules::new(2), Line::for_keys(1_000), Seed::new());
    /// let queue: KeyedQueue<_, _> = KeyedQueue::new(table, ManualClock::new(), 10);
    /// let lease = futures_executor::block_on(queue.acquire("alice", 2))?;
    /// assert_eq!(lease.permits(), 2);
    /// # Ok::<(), portcullis_async::Rejected>(())
    /// ```
    pub fn acquire<K: Hash + ?Sized>(&self, key: &K, n: u32) -> Acquire<QueueKey<&Self>> {
        Acquire::new(self.key(key), n, n)
    }

    /// The queue of `key`: a pointer for [`Acquire::new`], and a [`Limiter`].
    ///
    /// ```
    /// # use portcullis_async::{Acquire, KeyedQueue};
    /// # use portcullis_core::{ConcurrencyRules, Keyed, Line, ManualClock, Seed};
    /// # let table = Keyed::new(ConcurrencyRules::new(2), Line::for_keys(1_000), Seed::new());
    /// let queue: KeyedQueue<_, _> = KeyedQueue::new(table, ManualClock::new(), 10);
    /// let some = futures_executor::block_on(Acquire::new(queue.key("alice"), 1, 5))?;
    /// assert_eq!(some.permits(), 2);
    /// # Ok::<(), portcullis_async::Rejected>(())
    /// ```
    pub fn key<K: Hash + ?Sized>(&self, key: &K) -> QueueKey<&Self> {
        QueueKey::new(self, key)
    }

    /// Takes `n` permits of `key` now, if nobody waits for it before.
    ///
    /// # Errors
    ///
    /// As of [`Queue::try_acquire`](crate::Queue::try_acquire). While somebody waits for another
    /// key in the same shard, and somebody else is at the wait lists at this moment, it is denied
    /// needlessly.
    ///
    /// ```
    /// # use portcullis_async::KeyedQueue;
    /// # use portcullis_core::{ConcurrencyRules, Keyed, Line, ManualClock, Seed};
    /// # let table = Keyed::new(ConcurrencyRules::new(2), Line::for_keys(1_000), Seed::new());
    /// let queue: KeyedQueue<_, _> = KeyedQueue::new(table, ManualClock::new(), 10);
    /// let lease = queue.try_acquire("alice", 2)?;
    /// assert!(queue.try_acquire("alice", 1).is_err() && queue.try_acquire("bob", 1).is_ok());
    /// # drop(lease);
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    pub fn try_acquire<K: Hash + ?Sized>(
        &self,
        key: &K,
        n: u32,
    ) -> Result<Lease<QueueKey<&Self>>, Denied> {
        Lease::try_acquire_at(self.key(key), self.wait_queue.clock.now(), n)
    }

    /// Changes the limits, by their own methods, and then grants what has become free; as
    /// [`Queue::change`](crate::Queue::change).
    ///
    /// ```
    /// # use portcullis_async::KeyedQueue;
    /// # use portcullis_core::{ConcurrencyRules, Keyed, Line, ManualClock, Seed};
    /// # let table = Keyed::new(ConcurrencyRules::new(2), Line::for_keys(1_000), Seed::new());
    /// let queue: KeyedQueue<_, _> = KeyedQueue::new(table, ManualClock::new(), 10);
    /// assert_eq!(queue.change(|table| table.rules()[0].set_limit(5)), Ok(2));
    /// ```
    pub fn change<V>(&self, change: impl FnOnce(&T) -> V) -> V {
        self.wait_queue.change(|source| change(&source.0))
    }
}

/// A key's place in a [`KeyedQueue`]: from [`KeyedQueue::key`], or with a pointer of your own. It
/// keeps the pointer, not the key.
///
/// ```
/// use portcullis_async::{Acquire, KeyedQueue, QueueKey};
/// use portcullis_core::{ConcurrencyRules, Keyed, Line, ManualClock, Seed};
/// use std::sync::Arc;
///
/// let table = Keyed::new(ConcurrencyRules::new(1), Line::for_keys(1_000), Seed::new());
/// let queue: Arc<KeyedQueue<_, _>> =
///     Arc::new(KeyedQueue::new(table, ManualClock::new(), 10));
/// let lease = futures_executor::block_on(Acquire::new(
///     QueueKey::new(Arc::clone(&queue), "alice"),
///     1,
///     1,
/// ))?;
/// std::thread::spawn(move || drop(lease)).join().unwrap();
/// # Ok::<(), portcullis_async::Rejected>(())
/// ```
#[derive(Clone, Copy)]
pub struct QueueKey<P>(QueueKeyLimiter<P>);

/// What a [`QueueKey`] points to: the limiter of the key, behind those who wait for it.
///
/// ```
/// # use portcullis_async::KeyedQueue;
/// # use portcullis_core::{ConcurrencyRules, Keyed, Limiter, Line, ManualClock, Seed, Timestamp};
/// # let table = Keyed::new(ConcurrencyRules::new(2), Line::for_keys(1_000), Seed::new());
/// let queue: KeyedQueue<_, _> = KeyedQueue::new(table, ManualClock::new(), 10);
/// assert_eq!(queue.key("alice").available_at(Timestamp::ZERO), 2);
/// ```
#[derive(Clone, Copy)]
pub struct QueueKeyLimiter<P> {
    queue: P,
    address: Address,
}

/// A pointer to a keyed queue, and its parts. Sealed.
#[doc(hidden)]
pub trait ToKeyedQueue:
    Deref<Target = KeyedQueue<Self::Table, Self::Clock, Self::Lock, Self::Hook>>
{
    type Table: QueueKeys;
    type Clock: Clock;
    type Lock: RawLock;
    type Hook: Hook;
}

impl<P, T: QueueKeys, C: Clock, R: RawLock, H: Hook> ToKeyedQueue for P
where
    P: StableDeref + Deref<Target = KeyedQueue<T, C, R, H>>,
{
    type Table = T;
    type Clock = C;
    type Lock = R;
    type Hook = H;
}

impl<P: ToKeyedQueue> QueueKey<P> {
    /// The place of `key`, under the first of the table's limits.
    ///
    /// ```
    /// # use portcullis_async::{KeyedQueue, QueueKey};
    /// # use portcullis_core::{ConcurrencyRules, Keyed, Limiter, Line, ManualClock, Seed};
    /// # use portcullis_core::Timestamp;
    /// # let table = Keyed::new(ConcurrencyRules::new(2), Line::for_keys(1_000), Seed::new());
    /// let queue: KeyedQueue<_, _> = KeyedQueue::new(table, ManualClock::new(), 10);
    /// assert_eq!(QueueKey::new(&queue, "alice").available_at(Timestamp::ZERO), 2);
    /// ```
    pub fn new<K: Hash + ?Sized>(queue: P, key: &K) -> Self {
        let address = queue
            .wait_queue
            .source
            .0
            .locate(0, key)
            .expect("a table has a first limit");
        Self(QueueKeyLimiter { queue, address })
    }

    /// The place of `key` under the limit number `limit`; `None` if there is no such limit.
    ///
    /// ```
    /// # use portcullis_async::{KeyedQueue, QueueKey};
    /// # use portcullis_core::{ConcurrencyRules, Keyed, Line, ManualClock, Seed};
    /// # let table = Keyed::new(ConcurrencyRules::new(2), Line::for_keys(1_000), Seed::new());
    /// let queue: KeyedQueue<_, _> = KeyedQueue::new(table, ManualClock::new(), 10);
    /// assert!(QueueKey::of(&queue, 0, "alice").is_some());
    /// assert!(QueueKey::of(&queue, 1, "alice").is_none());
    /// ```
    pub fn of<K: Hash + ?Sized>(queue: P, limit: usize, key: &K) -> Option<Self> {
        let address = queue.wait_queue.source.0.locate(limit, key)?;
        Some(Self(QueueKeyLimiter { queue, address }))
    }
}

impl<P: ToKeyedQueue> QueueKeyLimiter<P> {
    fn limiter(&self) -> Key<'_, P::Table> {
        self.queue.wait_queue.source.at(self.address)
    }
}

#[allow(unsafe_code, reason = "a promise alone")]
// SAFETY: the pointer leads to the same queue wherever it is moved.
unsafe impl<P: ToKeyedQueue> Queued for QueueKeyLimiter<P> {
    type Config = (PerKey<P::Table>, P::Clock, P::Lock, P::Hook);

    fn wait_queue(&self) -> &WaitQueue<Self::Config> {
        &self.queue.wait_queue
    }

    fn key(&self) -> Address {
        self.address
    }
}

#[allow(unsafe_code, reason = "a promise alone")]
// SAFETY: the pointer in it leads to the same queue wherever it is moved.
unsafe impl<P: ToKeyedQueue> Anchored for QueueKey<P> {}

impl<P: ToKeyedQueue> Limiter for QueueKeyLimiter<P> {
    fn id(&self) -> Option<LimiterId> {
        self.limiter().id()
    }

    /// What is free, if nobody waits for the key: [`Denied::Exhausted`] else. A closed queue
    /// refuses, [`Denied::Refused`].
    fn take_at(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        let wait_queue = &self.queue.wait_queue;
        if wait_queue.is_closed() {
            return Err(Denied::Refused { now, permits: n });
        }
        if wait_queue.options.order == Order::NewestFirst || !wait_queue.is_waited_for(self.address)
        {
            return wait_queue.take(self.address, || self.limiter().take_at(now, n));
        }
        wait_queue
            .take_past_others(self.address, now, n)
            .unwrap_or(Err(Denied::Exhausted { now, permits: n }))
    }

    /// Of the limiter alone: a take asks who waits.
    fn peek_at(&self, now: Timestamp, n: u32) -> Result<(), Denied> {
        if self.queue.wait_queue.is_closed() {
            return Err(Denied::Refused { now, permits: n });
        }
        self.limiter().peek_at(now, n)
    }

    /// As the limiter's, and has those who wait granted.
    fn refund_at(&self, now: Timestamp, n: u32, receipt: Receipt) -> Refund {
        let key = self.address;
        self.queue.wait_queue.give_back(key, |source| {
            (source.at(key).refund_at(now, n, receipt), Waiting::Unknown)
        })
    }

    /// Releases, and has those who wait granted.
    fn release(&self, n: u32) {
        self.queue.wait_queue.release(self.address, n);
    }

    fn available_at(&self, now: Timestamp) -> u64 {
        self.limiter().available_at(now)
    }

    fn capacity(&self) -> u64 {
        self.limiter().capacity()
    }

    /// In use, too, while somebody waits for it (or for another key of the same shard).
    fn idle_at(&self, now: Timestamp) -> Idle {
        if self.queue.wait_queue.is_waited_for(self.address) {
            Idle::InUse
        } else {
            self.limiter().idle_at(now)
        }
    }

    /// As the limiter says; behind those who wait for the key, where it is oldest first, and nobody
    /// is at the wait lists at this moment.
    fn retry(&self, denied: Denied) -> Retry {
        match denied {
            Denied::Refused { .. } if self.queue.wait_queue.is_closed() => Retry::Never,
            Denied::Exhausted { now, permits } => earliest(
                &self.limiter(),
                now,
                self.queue.wait_queue.seen_ahead(self.address),
                permits,
            ),
            _ => self.limiter().retry(denied),
        }
    }

    fn metadata(&self, now: Timestamp, denied: Option<Denied>, offers: &mut Metadata<'_>) {
        if let Some(denied) = denied {
            offers.offer(metadata::RETRY_AFTER, || self.retry(denied));
        }
        self.limiter().metadata(now, denied, offers);
    }
}

impl<T: QueueKeys, C, R, H> fmt::Debug for KeyedQueue<T, C, R, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedQueue")
            .field("options", &self.wait_queue.options)
            .finish_non_exhaustive()
    }
}

impl<P> Deref for QueueKey<P> {
    type Target = QueueKeyLimiter<P>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<P> fmt::Debug for QueueKey<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("QueueKey").field(&self.0.address).finish()
    }
}

impl<P> fmt::Debug for QueueKeyLimiter<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("QueueKeyLimiter")
            .field(&self.address)
            .finish()
    }
}
