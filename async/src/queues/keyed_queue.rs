use core::borrow::Borrow;
use core::fmt;
use core::hash::Hash;
use core::ops::Deref;
use core::time::Duration;
#[cfg(feature = "std")]
use std::sync::Arc;

use portcullis_core::metadata;
use portcullis_core::{
    Address, Answer, Ask, Back, Clock, Counted, Counts, Denied, Detail, Hints, Idle, Key, Keys,
    Lease, Limiter, LimiterExt, LimiterId, QueueKeys, Read, Reading, Retry, Returned, Tally,
    Timestamp, Waiting, When,
};
use stable_deref_trait::StableDeref;

#[cfg(all(feature = "std", not(portcullis_loom)))]
use crate::Rejected;
use crate::lock::RawLock;
#[cfg(all(feature = "std", not(portcullis_loom)))]
use crate::lock::ThreadLock;
use crate::queues::acquire::{Anchored, HasWaitQueue, Queued, try_acquire};
use crate::queues::common::common;
use crate::queues::drained::Drained;
use crate::queues::hook::Hook;
use crate::queues::options::{Options, Order};
use crate::queues::queue::DefaultLock;
use crate::sync::const_unless_loom;
use crate::waiting::limiter_source::{LimiterSource, PerKey};
use crate::waiting::wait_queue::{WaitQueue, earliest, tell_denial};
use crate::{Acquire, DeadlineClock, QueueClock};

/// A table of limiters by key, with a queue for each key. Requests for one key do not delay those
/// for another.
///
/// Each key behaves like a [`Queue`](crate::Queue); all keys share the options. A key uses no
/// memory until a request waits for it, and then only the memory of the futures that wait.
///
/// **Bound.** The table's. At most [`max_permits`](Self::new) permits are queued for each key, by
/// at most [`max_waiters`](Self::with_max_waiters) waiters of all keys together (default: 4,096).
/// If the newest request is served first, a new request evicts only requests for the same key.
///
/// **Table full.** A key that finds no free slot ([`Denied::Crowded`]) waits like any other. The
/// limiter is asked again after the table's staleness. While the limiter of a waiting key denies,
/// it is in use, and so the key keeps its slot.
///
/// **Cost.** As for a `Queue`. The keys that have waiters are in 32 shards (16 on 32-bit targets).
/// To start a wait, to grant a waiter, and to release permits while a request waits, a call walks
/// over the keys of one shard.
///
/// ```
/// use portcullis_async::KeyedQueue;
/// use portcullis_core::{ConcurrencyRules, Keyed, Line, ManualClock, Seed};
///
/// let table = Keyed::new(ConcurrencyRules::new(1), Line::for_keys(1_000), Seed::new());
/// let downloads = KeyedQueue::new(table, ManualClock::new(), 10);
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

/// The default for the number of waiters of all keys together.
const WAITERS: u32 = 4_096;

#[cfg(all(feature = "std", not(portcullis_loom)))]
impl<T: QueueKeys, C: QueueClock> KeyedQueue<T, C> {
    /// Creates a queue for each key of `table`. Each holds up to `max_permits` permits; with 0, no
    /// request waits. A request for 0 permits counts as 1. `clock` supplies the timestamps. The
    /// order is [oldest first](Order::OldestFirst). Needs the feature `std`; without it, see
    /// [`with_lock`](Self::with_lock).
    ///
    /// Whatever `max_permits` is, at most 4,096 requests of all keys together can wait, so that
    /// requests for many keys cannot fill the memory. [`with_max_waiters`](Self::with_max_waiters)
    /// sets another number:
    ///
    /// ```
    /// # use portcullis_async::KeyedQueue;
    /// # use portcullis_core::{Concurrency, Keyed, Timeless};
    /// let table = Keyed::for_keys(Concurrency::new(1), 100_000);
    /// let queue = KeyedQueue::new(table, Timeless, u64::MAX).with_max_waiters(u32::MAX);
    /// ```
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
    pub const fn new(table: T, clock: C, max_permits: u64) -> Self {
        Self::with_lock(table, clock, max_permits, ThreadLock::new())
    }
}

impl<T: QueueKeys, C: QueueClock, R: RawLock> KeyedQueue<T, C, R> {
    const_unless_loom! {
        /// Creates a queue for each key like [`new`](KeyedQueue::new), with a lock of your choice;
        /// see [`Queue::with_lock`](crate::Queue::with_lock).
        ///
        /// ```
        /// # use portcullis_async::{DefaultLock, KeyedQueue};
        /// # use portcullis_core::{ConcurrencyRules, Keyed, Line, ManualClock, Seed};
        /// # let table = Keyed::new(ConcurrencyRules::new(2), Line::for_keys(1_000), Seed::new());
        /// let queue = KeyedQueue::with_lock(table, ManualClock::new(), 10, DefaultLock::new());
        /// # _ = queue;
        /// ```
        pub const fn with_lock(table: T, clock: C, max_permits: u64, lock: R) -> Self {
            let options = Options {
                max_waiters: WAITERS,
                ..Options::new()
            };
            Self {
                wait_queue: WaitQueue::new(PerKey(table), clock, (), options, max_permits, lock),
            }
        }
    }

    /// Calls `hook` when a wait is over; see [`Queue::with_hook`](crate::Queue::with_hook).
    ///
    /// ```
    /// # use portcullis_async::{KeyedQueue, Waited};
    /// # use portcullis_core::{ConcurrencyRules, Keyed, Line, ManualClock, Seed};
    /// # let table = Keyed::new(ConcurrencyRules::new(1), Line::for_keys(1_000), Seed::new());
    /// let queue = KeyedQueue::new(table, ManualClock::new(), 10);
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

impl<T: QueueKeys, C: QueueClock, R: RawLock, H: Hook> KeyedQueue<T, C, R, H> {
    /// Waits for `n` permits of `key`; see [`Queue::acquire`](crate::Queue::acquire).
    ///
    /// # Errors
    ///
    /// [`Rejected`](crate::Rejected), as for `Queue::acquire`.
    ///
    /// ```
    /// # use portcullis_async::KeyedQueue;
    /// # use portcullis_core::{ConcurrencyRules, Keyed, Line, ManualClock, Seed};
    /// # let table = Keyed::new(ConcurrencyRules::new(2), Line::for_keys(1_000), Seed::new());
    /// let queue = KeyedQueue::new(table, ManualClock::new(), 10);
    /// let lease = futures_executor::block_on(queue.acquire("alice", 2))?;
    /// assert_eq!(lease.permits(), 2);
    /// # Ok::<(), portcullis_async::Rejected>(())
    /// ```
    pub fn acquire<K: Hash + ?Sized>(&self, key: &K, n: u32) -> Acquire<QueueKey<&Self>> {
        Acquire::new(self.key(key), n, n)
    }

    /// Waits for `n` permits of `key` until `deadline` at the latest; see
    /// [`Queue::acquire_until`](crate::Queue::acquire_until). Needs a [`DeadlineClock`].
    ///
    /// # Errors
    ///
    /// [`Rejected`](crate::Rejected), as for `Queue::acquire_until`.
    ///
    /// ```
    /// # use portcullis_async::{KeyedQueue, Rejected};
    /// # use portcullis_core::{Keyed, ManualClock, Rate, Timestamp, TokenBucket};
    /// let table = Keyed::for_keys(TokenBucket::new(Rate::per_second(10), 1), 1_000);
    /// let queue = KeyedQueue::new(table, ManualClock::new(), 10);
    /// futures_executor::block_on(async {
    ///     let _permit = queue.acquire("alice", 1).await?;
    ///     // The next permit is due after 100 ms.
    ///     let late = queue.acquire_until("alice", 1, Timestamp::from_millis(50)).await;
    ///     assert!(matches!(late, Err(Rejected::Deadline { .. })));
    ///     Ok::<(), Rejected>(())
    /// })?;
    /// # Ok::<(), Rejected>(())
    /// ```
    pub fn acquire_until<K: Hash + ?Sized>(
        &self,
        key: &K,
        n: u32,
        deadline: Timestamp,
    ) -> Acquire<QueueKey<&Self>>
    where
        C: DeadlineClock,
    {
        self.key(key).acquire_until(n, deadline)
    }

    /// Waits for `n` permits of `key` for at most `timeout`, from now on, by the queue's clock; see
    /// [`Queue::acquire_for`](crate::Queue::acquire_for). Needs a [`DeadlineClock`].
    ///
    /// # Errors
    ///
    /// [`Rejected`](crate::Rejected), as for `Queue::acquire_until`.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_async::{KeyedQueue, Rejected, ThreadTimer};
    /// # use portcullis_core::{Concurrency, Keyed};
    /// let table = Keyed::for_keys(Concurrency::new(1), 1_000);
    /// let queue = KeyedQueue::new(table, ThreadTimer::new(), 10);
    /// futures_executor::block_on(async {
    ///     let _held = queue.acquire("alice", 1).await?;
    ///     let late = queue.acquire_for("alice", 1, Duration::from_millis(5)).await;
    ///     assert!(matches!(late, Err(Rejected::Deadline { .. })));
    ///     Ok::<(), Rejected>(())
    /// })?;
    /// # Ok::<(), Rejected>(())
    /// ```
    pub fn acquire_for<K: Hash + ?Sized>(
        &self,
        key: &K,
        n: u32,
        timeout: Duration,
    ) -> Acquire<QueueKey<&Self>>
    where
        C: DeadlineClock,
    {
        self.key(key).acquire_for(n, timeout)
    }

    /// Waits until each key of the table has been seen with no permits
    /// [held](portcullis_core::LimiterExt::held). Then all leases that were held when the future
    /// was first polled have been released. Ready immediately if the permits of the keys return
    /// by time.
    ///
    /// For a graceful shutdown, call [`close`](Self::close) first. Otherwise new permits may have
    /// been taken by the time the future is ready.
    ///
    /// # Cost
    ///
    /// A release while such a future waits looks at slots of the table, up to the first one whose
    /// permits are held, with the queue locked. All releases together look at each slot at most
    /// twice once the queue is closed.
    ///
    /// ```
    /// # use portcullis_async::KeyedQueue;
    /// # use portcullis_core::{Concurrency, Keyed, ManualClock};
    /// # futures_executor::block_on(async {
    /// let table = Keyed::for_keys(Concurrency::new(2), 1_000);
    /// let queue = KeyedQueue::new(table, ManualClock::new(), 10);
    /// let lease = queue.acquire("alice", 1).await?;
    /// queue.close();
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| drop(lease));
    /// });
    /// queue.drained().await;
    /// # Ok::<(), portcullis_async::Rejected>(()) }).unwrap();
    /// ```
    pub fn drained(&self) -> Drained<&Self> {
        Drained::new(self)
    }

    /// Returns the queue of `key`: a pointer for [`Acquire::new`], and a [`Limiter`].
    ///
    /// ```
    /// # use portcullis_async::{Acquire, KeyedQueue};
    /// # use portcullis_core::{ConcurrencyRules, Keyed, Line, ManualClock, Seed};
    /// # let table = Keyed::new(ConcurrencyRules::new(2), Line::for_keys(1_000), Seed::new());
    /// let queue = KeyedQueue::new(table, ManualClock::new(), 10);
    /// let some = futures_executor::block_on(Acquire::new(queue.key("alice"), 1, 5))?;
    /// assert_eq!(some.permits(), 2);
    /// # Ok::<(), portcullis_async::Rejected>(())
    /// ```
    pub fn key<K: Hash + ?Sized>(&self, key: &K) -> QueueKey<&Self> {
        QueueKey::new(self, key)
    }

    /// Returns the queue of `key` as a pointer that owns the `KeyedQueue`: for a task that is
    /// spawned. For other pointers, see [`QueueKey::new`]. Needs the feature `std`.
    ///
    /// ```
    /// # use portcullis_async::KeyedQueue;
    /// # use portcullis_core::{ConcurrencyRules, Keyed, Line, Seed, Timeless};
    /// # use std::sync::Arc;
    /// # let table = Keyed::new(ConcurrencyRules::new(2), Line::for_keys(1_000), Seed::new());
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// let queue = Arc::new(KeyedQueue::new(table, Timeless, 10));
    /// let lease = queue.owned_key("alice").acquire(1).await?;
    /// tokio::spawn(async move { drop(lease) }).await.unwrap();
    /// # Ok::<(), portcullis_async::Rejected>(()) }).unwrap();
    /// ```
    #[cfg(feature = "std")]
    pub fn owned_key<K: Hash + ?Sized>(self: &Arc<Self>, key: &K) -> QueueKey<Arc<Self>> {
        QueueKey::new(Arc::clone(self), key)
    }

    /// Takes `n` permits of `key` without waiting, if no request for the key is ahead.
    ///
    /// # Errors
    ///
    /// As for [`Queue::try_acquire`](crate::Queue::try_acquire). The call is also denied if another
    /// key of the same shard has waiters and another caller holds the lock at that moment.
    ///
    /// ```
    /// # use portcullis_async::KeyedQueue;
    /// # use portcullis_core::{ConcurrencyRules, Keyed, Line, ManualClock, Seed};
    /// # let table = Keyed::new(ConcurrencyRules::new(2), Line::for_keys(1_000), Seed::new());
    /// let queue = KeyedQueue::new(table, ManualClock::new(), 10);
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
        try_acquire(self.key(key), n)
    }

    /// Changes the limits by their own methods, and then grants what has become available; see
    /// [`Queue::change`](crate::Queue::change).
    ///
    /// ```
    /// # use portcullis_async::KeyedQueue;
    /// # use portcullis_core::{ConcurrencyRules, Keyed, Line, ManualClock, Seed};
    /// # let table = Keyed::new(ConcurrencyRules::new(2), Line::for_keys(1_000), Seed::new());
    /// let queue = KeyedQueue::new(table, ManualClock::new(), 10);
    /// assert_eq!(queue.change(|table| table.rules()[0].set_limit(5)), Ok(2));
    /// ```
    pub fn change<V>(&self, change: impl FnOnce(&T) -> V) -> V {
        self.wait_queue.change(|source| change(&source.0))
    }
}

impl<T, A, C, R, H> KeyedQueue<Counted<T, A>, C, R, H>
where
    Counted<T, A>: QueueKeys,
    A: Borrow<Tally>,
{
    /// Returns the current counts of the table, over all keys: see [`Counted`].
    ///
    /// ```
    /// # use portcullis_async::KeyedQueue;
    /// # use portcullis_core::{Concurrency, Counted, Keyed, Timeless};
    /// let table = Counted::new(Keyed::for_keys(Concurrency::new(1), 100));
    /// let downloads = KeyedQueue::new(table, Timeless, 9);
    /// let lease = futures_executor::block_on(downloads.acquire("alice", 1))?;
    /// assert!(downloads.try_acquire("alice", 1).is_err());
    /// let counts = downloads.table_counts();
    /// assert_eq!((counts.granted.requests, counts.denied.requests), (1, 1));
    /// # drop(lease);
    /// # Ok::<(), portcullis_async::Rejected>(())
    /// ```
    pub fn table_counts(&self) -> Counts {
        self.wait_queue.source.0.counts()
    }
}

/// A pointer to the queue of one key in a [`KeyedQueue`]. Returned by [`KeyedQueue::key`];
/// [`new`](Self::new) takes any pointer to the `KeyedQueue`. It stores that pointer and the key's
/// slots in the table, not the key.
///
/// ```
/// use portcullis_async::{Acquire, KeyedQueue, QueueKey};
/// use portcullis_core::{ConcurrencyRules, Keyed, Line, ManualClock, Seed};
/// use std::sync::Arc;
///
/// let table = Keyed::new(ConcurrencyRules::new(1), Line::for_keys(1_000), Seed::new());
/// let queue = Arc::new(KeyedQueue::new(table, ManualClock::new(), 10));
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

/// The target of a [`QueueKey`]: the limiter of the key, behind the requests that wait for the key.
///
/// ```
/// # use portcullis_async::KeyedQueue;
/// # use portcullis_core::{ConcurrencyRules, Keyed, Limiter, Line, ManualClock, Seed, Timestamp};
/// # let table = Keyed::new(ConcurrencyRules::new(2), Line::for_keys(1_000), Seed::new());
/// let queue = KeyedQueue::new(table, ManualClock::new(), 10);
/// assert_eq!(queue.key("alice").available_at(Timestamp::ZERO), 2);
/// ```
#[derive(Clone, Copy)]
pub struct QueueKeyLimiter<P> {
    queue: P,
    address: Address,
}

/// A pointer to a keyed queue, with the types of the queue. Sealed.
#[doc(hidden)]
pub trait ToKeyedQueue:
    Deref<Target = KeyedQueue<Self::Table, Self::Clock, Self::Lock, Self::Hook>>
{
    type Table: QueueKeys;
    type Clock: QueueClock;
    type Lock: RawLock;
    type Hook: Hook;
}

impl<P, T: QueueKeys, C: QueueClock, R: RawLock, H: Hook> ToKeyedQueue for P
where
    P: StableDeref + Deref<Target = KeyedQueue<T, C, R, H>>,
{
    type Table = T;
    type Clock = C;
    type Lock = R;
    type Hook = H;
}

impl<P: ToKeyedQueue> QueueKey<P> {
    /// Creates a pointer to the queue of `key` under the table's first limit.
    ///
    /// ```
    /// # use portcullis_async::{KeyedQueue, QueueKey};
    /// # use portcullis_core::{ConcurrencyRules, Keyed, Limiter, Line, ManualClock, Seed};
    /// # use portcullis_core::Timestamp;
    /// # let table = Keyed::new(ConcurrencyRules::new(2), Line::for_keys(1_000), Seed::new());
    /// let queue = KeyedQueue::new(table, ManualClock::new(), 10);
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

    /// Creates a pointer to the queue of `key` under limit number `limit`, counted from 0. Returns
    /// `None` if the table has no such limit.
    ///
    /// ```
    /// # use portcullis_async::{KeyedQueue, QueueKey};
    /// # use portcullis_core::{ConcurrencyRules, Keyed, Line, ManualClock, Seed};
    /// # let table = Keyed::new(ConcurrencyRules::new(2), Line::for_keys(1_000), Seed::new());
    /// let queue = KeyedQueue::new(table, ManualClock::new(), 10);
    /// assert!(QueueKey::of(&queue, 0, "alice").is_some());
    /// assert!(QueueKey::of(&queue, 1, "alice").is_none());
    /// ```
    pub fn of<K: Hash + ?Sized>(queue: P, limit: usize, key: &K) -> Option<Self> {
        let address = queue.wait_queue.source.0.locate(limit, key)?;
        Some(Self(QueueKeyLimiter { queue, address }))
    }

    /// Creates a pointer to the queue of the key at an address of the table. An address of another
    /// table gives the queue of an arbitrary key.
    ///
    /// ```
    /// # use portcullis_async::{KeyedQueue, QueueKey};
    /// # use portcullis_core::{Concurrency, Keyed, Keys, Timeless};
    /// let table = Keyed::for_keys(Concurrency::new(2), 100);
    /// let alice = table.locate(0, "alice").unwrap();
    /// let queue = KeyedQueue::new(table, Timeless, 10);
    /// let lease = QueueKey::at(&queue, alice).try_acquire(2)?;
    /// assert_eq!(queue.key("alice").available(), 0);
    /// # drop(lease);
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    pub const fn at(queue: P, address: Address) -> Self {
        Self(QueueKeyLimiter { queue, address })
    }

    /// Calls `take` if no request for the key is ahead, as the take of a new request. Returns
    /// `None` if a request is ahead, or the queue is closed. `take` takes permits of the key's
    /// limiter in a way of the caller's own. The order is that of
    /// [`try_acquire`](Self::try_acquire).
    ///
    /// The result is `None`, too, if another key of the same shard has waiters and another caller
    /// holds the lock at that moment.
    ///
    /// ```
    /// # use portcullis_async::KeyedQueue;
    /// # use portcullis_core::{Concurrency, Keyed, Limiter, Timeless, Timestamp};
    /// let queue = KeyedQueue::new(Keyed::for_keys(Concurrency::new(2), 100), Timeless, 10);
    /// let alice = queue.key("alice");
    /// let take = || queue.change(|table| table.key("alice").take_at(Timestamp::ZERO, 2));
    /// assert!(alice.in_turn(take).unwrap().is_ok());
    /// queue.close();
    /// assert!(alice.in_turn(take).is_none());
    /// ```
    pub fn in_turn<V, E>(&self, take: impl FnOnce() -> Result<V, E>) -> Option<Result<V, E>> {
        let (wait_queue, key) = (&self.0.queue.wait_queue, self.0.address);
        if wait_queue.is_closed() {
            return None;
        }
        let passes = wait_queue.options.order == Order::NewestFirst
            || !wait_queue.is_waited_for(key)
            || wait_queue.is_free(key);
        passes.then(|| wait_queue.take(key, take))
    }

    /// Returns the number of permits that requests wait for, of this key.
    ///
    /// ```
    /// # use portcullis_async::KeyedQueue;
    /// # use portcullis_core::{Concurrency, Keyed, Timeless};
    /// let queue = KeyedQueue::new(Keyed::for_keys(Concurrency::new(2), 100), Timeless, 10);
    /// assert_eq!(queue.key("alice").queued(), 0);
    /// ```
    pub fn queued(&self) -> u64 {
        self.0.queue.wait_queue.queued_for(self.0.address)
    }

    /// Grants permits of the key's limiter to the requests that wait for the key. Call it after
    /// permits have returned to the limiter in another way than through the queue.
    ///
    /// # Cost
    ///
    /// That of a release, without the limiter's: a fence and a load if no request waits.
    ///
    /// ```
    /// # use core::future::Future;
    /// # use core::pin::pin;
    /// # use core::task::{Context, Waker};
    /// # use portcullis_async::KeyedQueue;
    /// # use portcullis_core::{Concurrency, Keyed, Limiter, Timeless};
    /// let queue = KeyedQueue::new(Keyed::for_keys(Concurrency::new(1), 100), Timeless, 10);
    /// let alice = queue.key("alice");
    /// alice.try_acquire(1)?.forget();
    /// let mut waits = pin!(alice.acquire(1));
    /// # let mut context = Context::from_waker(Waker::noop());
    /// assert!(waits.as_mut().poll(&mut context).is_pending());
    /// // Any way to the limiter that does not go through the queue.
    /// # queue.change(|table| table.key("alice").release(1));
    /// alice.serve();
    /// assert!(waits.as_mut().poll(&mut context).is_ready());
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    #[inline]
    pub fn serve(&self) {
        let key = self.0.address;
        self.0
            .queue
            .wait_queue
            .give_back(key, |_| ((), Waiting::Unknown));
    }
}

/// Requests for the permits of the key. Each takes the pointer; a `QueueKey` that borrows the queue
/// can be copied.
impl<P: ToKeyedQueue> QueueKey<P> {
    /// Takes `n` permits without waiting; see [`KeyedQueue::try_acquire`].
    ///
    /// # Errors
    ///
    /// As [`KeyedQueue::try_acquire`].
    ///
    /// ```
    /// # use portcullis_async::KeyedQueue;
    /// # use portcullis_core::{ConcurrencyRules, Keyed, Line, Seed, Timeless};
    /// # let table = Keyed::new(ConcurrencyRules::new(2), Line::for_keys(1_000), Seed::new());
    /// let queue = KeyedQueue::new(table, Timeless, 10);
    /// let alice = queue.key("alice");
    /// let lease = alice.try_acquire(2)?;
    /// assert!(alice.try_acquire(1).is_err());
    /// # drop(lease);
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    pub fn try_acquire(self, n: u32) -> Result<Lease<Self>, Denied> {
        try_acquire(self, n)
    }

    /// Takes permits as [`try_acquire`](Self::try_acquire) does, and returns what the decision saw;
    /// see [`Queue::try_acquire_explained`](crate::Queue::try_acquire_explained). If requests for
    /// other keys of the same shard wait, the result is a look after the decision.
    ///
    /// # Errors
    ///
    /// The first result is a denial, as for `try_acquire`.
    ///
    /// ```
    /// # use portcullis_async::KeyedQueue;
    /// # use portcullis_core::{Concurrency, Keyed, Timeless};
    /// let queue = KeyedQueue::new(Keyed::for_keys(Concurrency::new(5), 100), Timeless, 10);
    /// let (lease, detail) = queue.key("alice").try_acquire_explained(2);
    /// assert_eq!((lease?.permits(), detail.available, detail.capacity), (2, 3, 5));
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    #[must_use = "a lease returns its permits when it is dropped"]
    pub fn try_acquire_explained(self, n: u32) -> (Result<Lease<Self>, Denied>, Detail) {
        let now = self.0.queue.clock().now();
        Lease::try_acquire_explained_at(self, now, n)
    }

    /// Waits for `n` permits; see [`Queue::acquire`](crate::Queue::acquire).
    ///
    /// # Errors
    ///
    /// [`Rejected`](crate::Rejected), as for `Queue::acquire`.
    ///
    /// ```
    /// # use portcullis_async::KeyedQueue;
    /// # use portcullis_core::{ConcurrencyRules, Keyed, Line, Seed, Timeless};
    /// # let table = Keyed::new(ConcurrencyRules::new(2), Line::for_keys(1_000), Seed::new());
    /// let queue = KeyedQueue::new(table, Timeless, 10);
    /// let lease = futures_executor::block_on(queue.key("alice").acquire(2))?;
    /// assert_eq!(lease.permits(), 2);
    /// # Ok::<(), portcullis_async::Rejected>(())
    /// ```
    pub fn acquire(self, n: u32) -> Acquire<Self> {
        Acquire::new(self, n, n)
    }

    /// Waits for at least `min` permits, and takes up to `max`; see
    /// [`Queue::acquire_between`](crate::Queue::acquire_between).
    ///
    /// # Errors
    ///
    /// [`Rejected`](crate::Rejected), as for `Queue::acquire`.
    ///
    /// ```
    /// # use portcullis_async::KeyedQueue;
    /// # use portcullis_core::{ConcurrencyRules, Keyed, Line, Seed, Timeless};
    /// # let table = Keyed::new(ConcurrencyRules::new(2), Line::for_keys(1_000), Seed::new());
    /// let queue = KeyedQueue::new(table, Timeless, 10);
    /// let some = futures_executor::block_on(queue.key("alice").acquire_between(1, 5))?;
    /// assert_eq!(some.permits(), 2);
    /// # Ok::<(), portcullis_async::Rejected>(())
    /// ```
    pub fn acquire_between(self, min: u32, max: u32) -> Acquire<Self> {
        Acquire::new(self, min, max)
    }

    /// Waits for `n` permits until `deadline` at the latest; see
    /// [`Queue::acquire_until`](crate::Queue::acquire_until).
    ///
    /// # Errors
    ///
    /// [`Rejected`](crate::Rejected), as for `Queue::acquire_until`.
    ///
    /// ```
    /// # use portcullis_async::{KeyedQueue, Rejected};
    /// # use portcullis_core::{Keyed, Line, ManualClock, Rate, Seed, Timestamp, TokenBucketRules};
    /// # let rules = TokenBucketRules::new(Rate::per_second(10), 1);
    /// # let table = Keyed::new(rules, Line::for_keys(1_000), Seed::new());
    /// let queue = KeyedQueue::new(table, ManualClock::new(), 10);
    /// let alice = queue.key("alice");
    /// futures_executor::block_on(alice.acquire(1))?;
    /// let late = alice.acquire_until(1, Timestamp::from_millis(50));
    /// assert!(matches!(
    ///     futures_executor::block_on(late),
    ///     Err(Rejected::Deadline { .. })
    /// ));
    /// # Ok::<(), Rejected>(())
    /// ```
    pub fn acquire_until(self, n: u32, deadline: Timestamp) -> Acquire<Self>
    where
        P::Clock: DeadlineClock,
    {
        Acquire::new(self, n, n).until(deadline)
    }

    /// Waits for `n` permits for at most `timeout`, from now on, by the queue's clock.
    ///
    /// # Errors
    ///
    /// [`Rejected`](crate::Rejected), as for `Queue::acquire_until`.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_async::{KeyedQueue, Rejected, ThreadTimer};
    /// # use portcullis_core::{ConcurrencyRules, Keyed, Line, Seed};
    /// # let table = Keyed::new(ConcurrencyRules::new(1), Line::for_keys(1_000), Seed::new());
    /// let queue = KeyedQueue::new(table, ThreadTimer::new(), 10);
    /// let alice = queue.key("alice");
    /// let held = futures_executor::block_on(alice.acquire(1))?;
    /// let second = alice.acquire_for(1, Duration::from_millis(5));
    /// assert!(matches!(
    ///     futures_executor::block_on(second),
    ///     Err(Rejected::Deadline { .. })
    /// ));
    /// # drop(held);
    /// # Ok::<(), Rejected>(())
    /// ```
    pub fn acquire_for(self, n: u32, timeout: Duration) -> Acquire<Self>
    where
        P::Clock: DeadlineClock,
    {
        Acquire::new(self, n, n).within(timeout)
    }

    /// Returns the permits that the limiter of the key has now.
    ///
    /// ```
    /// # use portcullis_async::KeyedQueue;
    /// # use portcullis_core::{ConcurrencyRules, Keyed, Line, Seed, Timeless};
    /// # let table = Keyed::new(ConcurrencyRules::new(2), Line::for_keys(1_000), Seed::new());
    /// let queue = KeyedQueue::new(table, Timeless, 10);
    /// assert_eq!(queue.key("alice").available(), 2);
    /// ```
    pub fn available(&self) -> u64 {
        self.0.available_at(self.0.queue.clock().now())
    }
}

/// Requests that block the thread. They need no other driver; see [`Acquire::block`]. They need the
/// feature `std`.
#[cfg(all(feature = "std", not(portcullis_loom)))]
impl<P: ToKeyedQueue> QueueKey<P> {
    /// Takes `n` permits, and blocks the thread until they are granted.
    ///
    /// # Errors
    ///
    /// [`Rejected`](crate::Rejected), as for `Queue::acquire`.
    ///
    /// ```
    /// # use portcullis_async::{KeyedQueue, ThreadTimer};
    /// # use portcullis_core::{Keyed, Line, Rate, Seed, TokenBucketRules};
    /// # let rules = TokenBucketRules::new(Rate::per_second(1_000), 1);
    /// # let table = Keyed::new(rules, Line::for_keys(1_000), Seed::new());
    /// let queue = KeyedQueue::new(table, ThreadTimer::new(), 10);
    /// for _ in 0..3 {
    ///     let _ = queue.key("alice").blocking_acquire(1)?;
    /// }
    /// # Ok::<(), portcullis_async::Rejected>(())
    /// ```
    pub fn blocking_acquire(self, n: u32) -> Result<Lease<Self>, Rejected> {
        self.acquire(n).block()
    }

    /// Takes `n` permits, and blocks the thread for at most `timeout` by the queue's clock.
    ///
    /// # Errors
    ///
    /// [`Rejected`](crate::Rejected), as for `Queue::acquire_until`.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_async::{KeyedQueue, Rejected, ThreadTimer};
    /// # use portcullis_core::{ConcurrencyRules, Keyed, Line, Seed};
    /// # let table = Keyed::new(ConcurrencyRules::new(1), Line::for_keys(1_000), Seed::new());
    /// let queue = KeyedQueue::new(table, ThreadTimer::new(), 10);
    /// let alice = queue.key("alice");
    /// let held = alice.blocking_acquire(1)?;
    /// let second = alice.blocking_acquire_for(1, Duration::from_millis(5));
    /// assert!(matches!(second, Err(Rejected::Deadline { .. })));
    /// # drop(held);
    /// # Ok::<(), Rejected>(())
    /// ```
    pub fn blocking_acquire_for(self, n: u32, timeout: Duration) -> Result<Lease<Self>, Rejected>
    where
        P::Clock: DeadlineClock,
    {
        self.acquire_for(n, timeout).block()
    }

    /// Takes `n` permits, and blocks the thread until `deadline` at the latest.
    ///
    /// # Errors
    ///
    /// [`Rejected`](crate::Rejected), as for `Queue::acquire_until`.
    ///
    /// ```
    /// # use portcullis_async::{KeyedQueue, Rejected, ThreadTimer};
    /// # use portcullis_core::{Clock, ConcurrencyRules, Keyed, Line, Seed};
    /// # let table = Keyed::new(ConcurrencyRules::new(1), Line::for_keys(1_000), Seed::new());
    /// let queue = KeyedQueue::new(table, ThreadTimer::new(), 10);
    /// let alice = queue.key("alice");
    /// let held = alice.blocking_acquire(1)?;
    /// let second = alice.blocking_acquire_until(1, queue.clock().now());
    /// assert!(matches!(second, Err(Rejected::Deadline { .. })));
    /// # drop(held);
    /// # Ok::<(), Rejected>(())
    /// ```
    pub fn blocking_acquire_until(
        self,
        n: u32,
        deadline: Timestamp,
    ) -> Result<Lease<Self>, Rejected>
    where
        P::Clock: DeadlineClock,
    {
        self.acquire_until(n, deadline).block()
    }
}

impl<P: ToKeyedQueue> QueueKeyLimiter<P> {
    fn limiter(&self) -> Key<&P::Table> {
        self.queue.wait_queue.source.at(self.address)
    }
}

#[allow(unsafe_code, reason = "a promise alone")]
// SAFETY: the pointer leads to the same queue after it has been moved.
unsafe impl<P: ToKeyedQueue> HasWaitQueue for QueueKeyLimiter<P> {
    type Config = (PerKey<P::Table>, P::Clock, P::Lock, P::Hook);

    fn wait_queue(&self) -> &WaitQueue<Self::Config> {
        &self.queue.wait_queue
    }
}

impl<P: ToKeyedQueue> Queued for QueueKeyLimiter<P> {
    fn key(&self) -> Address {
        self.address
    }
}

#[allow(unsafe_code, reason = "a promise alone")]
// SAFETY: a queue owns its wait queue.
unsafe impl<T: QueueKeys, C: QueueClock, R: RawLock, H: Hook> HasWaitQueue
    for KeyedQueue<T, C, R, H>
{
    type Config = (PerKey<T>, C, R, H);

    fn wait_queue(&self) -> &WaitQueue<Self::Config> {
        &self.wait_queue
    }
}

#[allow(unsafe_code, reason = "a promise alone")]
// SAFETY: the pointer in it leads to the same queue after it has been moved.
unsafe impl<P: ToKeyedQueue> Anchored for QueueKey<P> {}

impl<P: ToKeyedQueue> QueueKeyLimiter<P> {
    /// Puts a request to the limiter if no request for the key is ahead.
    #[inline(always)]
    fn in_order(&self, ask: Ask<'_>) -> Answer {
        let (wait_queue, now, n) = (&self.queue.wait_queue, ask.now(), ask.permits());
        let denied = if wait_queue.is_closed() {
            Denied::Closed { permits: n }
        } else if ask.is_look() {
            return self.limiter().decide(ask);
        } else if wait_queue.options.order == Order::NewestFirst
            || !wait_queue.is_waited_for(self.address)
        {
            return wait_queue.decide(self.address, ask);
        } else if matches!(ask.when(), When::Within(_)) {
            return Answer::TimeMatters;
        } else if let Some(taken) = wait_queue.take_past_others(self.address, now, n) {
            return taken.into();
        } else {
            Denied::Exhausted { now, permits: n }
        };
        if ask.is_final() {
            // The limiter is not asked.
            wait_queue.not_granted(self.address, now, n, denied.into());
        }
        Answer::Denied(denied)
    }
}

impl<P: ToKeyedQueue> Limiter for QueueKeyLimiter<P> {
    #[inline(always)]
    fn decide(&self, ask: Ask<'_>) -> Answer {
        let (now, n, seen) = (ask.now(), ask.permits(), ask.detail());
        let answer = self.in_order(ask);
        if let (Answer::Denied(denied), Some(seen)) = (&answer, seen) {
            let look = || self.limiter().explain_at(now, n);
            tell_denial(seen, *denied, self.retry(*denied), look);
        }
        answer
    }

    fn give_back(&self, back: Back<'_>) -> Returned {
        let (wait_queue, key) = (&self.queue.wait_queue, self.address);
        match back {
            Back::Release { permits } => {
                wait_queue.release(key, permits);
                Returned::NOTHING
            }
            Back::Refund { .. } => wait_queue.give_back(key, |source| {
                (source.at(key).give_back(back), Waiting::Unknown)
            }),
            back => self.limiter().give_back(back),
        }
    }

    fn read(&self, mut read: Read<'_>) -> Reading {
        if let Some(denied) = read.denied() {
            read.offer(metadata::RETRY_AFTER, || self.retry(denied));
        }
        let reading = self.limiter().read(read);
        let idle = if self.queue.wait_queue.is_waited_for(self.address) {
            Idle::InUse
        } else {
            reading.idle
        };
        Reading { idle, ..reading }
    }

    /// As the limiter says. In oldest-first order, the permits queued for the key are counted as
    /// well, unless another caller holds the lock at that moment.
    fn retry(&self, denied: Denied) -> Retry {
        match denied {
            Denied::Closed { .. } => Retry::Never,
            Denied::Exhausted { now, permits } => earliest(
                &self.limiter(),
                now,
                self.queue.wait_queue.seen_ahead(self.address),
                permits,
            ),
            _ => self.limiter().retry(denied),
        }
    }

    fn id(&self) -> Option<LimiterId> {
        self.limiter().id()
    }

    #[inline(always)]
    fn hints(&self) -> Hints {
        self.limiter().hints()
    }

    fn available_at(&self, now: Timestamp) -> u64 {
        self.limiter().available_at(now)
    }

    fn capacity(&self) -> u64 {
        self.limiter().capacity()
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
