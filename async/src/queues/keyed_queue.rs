//! A table of limiters by key, with a queue for each key; and the pointer to the queue of one key.
//!
//! The wait lists are those of one wait queue: a list for each key that has waiters, in one of
//! several shards. `is_waited_for` says so of a shard, not of a key. So where a shard has waiters,
//! a take looks into the lists under the lock, and does not wait for that lock.

use core::borrow::Borrow;
use core::fmt;
use core::hash::Hash;
use core::ops::Deref;
#[cfg(feature = "std")]
use std::sync::Arc;

use portcullis_core::counts::{Counts, Tally};
use portcullis_core::keyed::{Address, TableKey, WithTotal};
use portcullis_core::limiter::{
    Answer, Ask, Back, Detail, Hints, Idle, LimiterId, Read, Reading, Returned, Waiting, When,
};
use portcullis_core::metadata;
use portcullis_core::queue::{Keys, QueueKeys};
use portcullis_core::{Clock, Counted, Denied, Lease, Limiter, LimiterExt, Retry};
use stable_deref_trait::StableDeref;

#[cfg(all(feature = "std", not(portcullis_loom)))]
use crate::lock::ThreadLock;
use crate::lock::{DefaultLock, RawLock};
use crate::queues::acquire::{Acquire, Anchored, Queued, try_acquire};
use crate::queues::limiter_queue::LimiterQueue;
use crate::queues::limiter_view::LimiterView;
use crate::sync::const_unless_loom;
use crate::waiting::hook::Hook;
use crate::waiting::limiter_source::{LimiterSource, PerKey};
use crate::waiting::options::Options;
use crate::waiting::queue_clock::QueueClock;
#[cfg(all(feature = "std", not(portcullis_loom)))]
use crate::waiting::rejected::Rejected;
use crate::waiting::wait_queue::ask::{earliest, tell_denial};
use crate::waiting::wait_queue::{HasWaitQueue, WaitQueue};

/// A table of limiters by key, with a queue for each key. Requests for one key do not delay those
/// for another.
///
/// Options ([`with_order`](Self::with_order), [`with_slack`](Self::with_slack)), counts, drivers
/// ([`shared`](Self::shared)) and the end ([`close`](Self::close), [`drained`](Self::drained)) are
/// methods of [`LimiterQueue`], whose page lists them all.
///
/// Each key behaves like a [`Queue`](crate::Queue); all keys share the options. A key uses no
/// memory until a request waits for it, and then only the memory of the futures that wait.
///
/// **Bound.** The table's. At most [`max_permits`](KeyedQueue#method.new) permits are queued for
/// each key, by at most [`max_waiters`](Self::with_max_waiters) waiters of all keys together
/// (default: 4,096). A new request evicts only requests for the same key, if the order lets it
/// evict any. Whether a wait list is overloaded ([`Order`](crate::Order),
/// `Shedding`) is a matter of each key.
///
/// **Table full.** A key that finds no free slot ([`Denied::Crowded`]) waits like any other. The
/// limiter is asked again after the table's staleness. While the limiter of a waiting key denies,
/// it is in use, and so the key keeps its slot.
///
/// **A limit for all keys.** If the table is a [`WithTotal`](portcullis_core::keyed::WithTotal), a
/// grant takes from the limit of the key and from the total, or from none. A request that waits
/// holds nothing. The keys that wait for the total alone take turns (deficit round robin), in
/// proportion to their weights:
///
/// - Of two keys that wait for the total throughout a span of time, neither is granted more than
///   its share by more than one turn and the largest request of each, less a permit: with the
///   weights `w(i)` and `w(j)`, the permits granted `G(i)` and `G(j)`, and the largest requests
///   `N(i)` and `N(j)`, `G(i) / w(i) - G(j) / w(j)` is at most
///   `1 + (N(i) - 1) / w(i) + (N(j) - 1) / w(j)`. So with weights of 1 and requests for one permit,
///   the numbers of their grants differ by 1 at most. Proof: in each turn a key is granted its
///   weight, and what is left of it because it does not suffice for a request, less than `N`, goes
///   to its next turn. Between two turns of one key, each other one has a turn.
/// - If a request is cancelled, or its deadline passes, what its key has saved for it is lost. For
///   this key, a new span begins.
/// - A request for `n` permits of a key with the weight `w` is granted before any other key has had
///   more than `n / w` turns, rounded up, since the key began to wait for the total.
/// - A key whose own limit denies delays no other key. In the midst of a turn, it takes the rest of
///   the turn as soon as its own limit grants, before the other keys. So it may exceed the bounds
///   above by that rest, less than its weight and its largest request together. What it has not
///   taken when its next turn begins is lost. If its own limit grants nothing for a whole round, it
///   comes back at the end of the round.
/// - In [newest-first order](crate::Order::NewestFirst) the keys take turns as well; each key then
///   serves its newest request.
/// - A request for a range of permits ([`Acquire::up_to`]) takes no more than the rest of its turn
///   while other keys wait.
///
/// ```
/// use core::time::Duration;
/// use portcullis_async::{KeyedQueue, ThreadTimer};
/// use portcullis_core::keyed::WithTotal;
/// use portcullis_core::{Concurrency, KeyedList, Rate, TokenBucket};
///
/// // Two requests per second and four at once for each host, and 40 at once in total.
/// let host = (TokenBucket::new(Rate::per_second(2), 1), Concurrency::new(4));
/// let hosts = WithTotal::new(KeyedList::for_keys(host, 1_000), Concurrency::new(40));
/// // The hosts count, too. Without slack, no grant is dated back.
/// let hosts = KeyedQueue::new(hosts, ThreadTimer::new(), 100).with_slack(Duration::ZERO).shared();
/// let page = futures_executor::block_on(hosts.acquire("a.example", 1))?;
/// # drop(page);
/// # Ok::<(), portcullis_async::Rejected>(())
/// ```
///
/// **Cost.** As for a `Queue`. The keys that have waiters are in 32 shards (16 on 32-bit targets).
/// To start a wait, to grant a waiter, and to release permits while a request waits, a call walks
/// over the keys of one shard. With a limit for all keys, a release also serves the key whose turn
/// it is. That takes a fixed number of steps for each request that is granted; if requests are
/// larger than the weights, at most two more of each key that waits for the total.
///
/// ```
/// use portcullis_async::KeyedQueue;
/// use portcullis_core::{Keyed, ManualClock};
/// use portcullis_core::keyed::{ConcurrencyRules, Line, Seed};
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
pub type KeyedQueue<T, C, R = DefaultLock, H = ()> = LimiterQueue<PerKey<T>, C, R, H>;

/// The default for the number of waiters of all keys together.
const WAITERS: u32 = 4_096;

#[cfg(all(feature = "std", not(portcullis_loom)))]
impl<T: QueueKeys, C: QueueClock> KeyedQueue<T, C> {
    /// Creates a queue for each key of `table`. Each holds up to `max_permits` permits; with 0, no
    /// request waits. A request for 0 permits counts as 1. `clock` supplies the timestamps. The
    /// order is [oldest first](crate::Order::OldestFirst). Needs the feature `std`; without it, see
    /// [`with_lock`](KeyedQueue#method.with_lock).
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
    /// # use portcullis_core::{Keyed, ManualClock};
    /// # use portcullis_core::keyed::{ConcurrencyRules, Line, Seed};
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
        /// Creates a queue for each key like [`new`](KeyedQueue#method.new), with a lock of your
        /// choice; see [`Queue::with_lock`](crate::Queue#method.with_lock).
        ///
        /// ```
        /// # use portcullis_async::{DefaultLock, KeyedQueue};
        /// # use portcullis_core::{Keyed, ManualClock};
        /// # use portcullis_core::keyed::{ConcurrencyRules, Line, Seed};
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
}

impl<T: QueueKeys, C: QueueClock, R: RawLock, H: Hook> KeyedQueue<T, C, R, H> {
    /// Waits for `n` permits of `key`; see [`Queue::acquire`](crate::Queue#method.acquire).
    ///
    /// # Errors
    ///
    /// [`Rejected`](crate::Rejected), as for `Queue::acquire`.
    ///
    /// ```
    /// # use portcullis_async::KeyedQueue;
    /// # use portcullis_core::{Keyed, ManualClock};
    /// # use portcullis_core::keyed::{ConcurrencyRules, Line, Seed};
    /// # let table = Keyed::new(ConcurrencyRules::new(2), Line::for_keys(1_000), Seed::new());
    /// let queue = KeyedQueue::new(table, ManualClock::new(), 10);
    /// let lease = futures_executor::block_on(queue.acquire("alice", 2))?;
    /// assert_eq!(lease.permits(), 2);
    /// # Ok::<(), portcullis_async::Rejected>(())
    /// ```
    pub fn acquire<K: Hash + ?Sized>(&self, key: &K, n: u32) -> Acquire<QueueKey<&Self>> {
        Acquire::new(self.key(key), n)
    }

    /// Returns the queue of `key`: a pointer for [`Acquire::new`], and a [`Limiter`].
    ///
    /// ```
    /// # use portcullis_async::{Acquire, KeyedQueue};
    /// # use portcullis_core::{Keyed, ManualClock};
    /// # use portcullis_core::keyed::{ConcurrencyRules, Line, Seed};
    /// # let table = Keyed::new(ConcurrencyRules::new(2), Line::for_keys(1_000), Seed::new());
    /// let queue = KeyedQueue::new(table, ManualClock::new(), 10);
    /// let some = futures_executor::block_on(Acquire::new(queue.key("alice"), 1).up_to(5))?;
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
    /// # use portcullis_core::{Keyed, Timeless};
    /// # use portcullis_core::keyed::{ConcurrencyRules, Line, Seed};
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
    /// As for [`Queue::try_acquire`](crate::Queue#method.try_acquire). The call is also denied if
    /// another key of the same shard has waiters and another caller holds the lock at that moment.
    ///
    /// ```
    /// # use portcullis_async::KeyedQueue;
    /// # use portcullis_core::{Keyed, ManualClock};
    /// # use portcullis_core::keyed::{ConcurrencyRules, Line, Seed};
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

    /// Changes the limits by their own methods, and then grants what has become available, and ends
    /// the requests whose deadlines can no longer be met; see
    /// [`Queue::change`](crate::Queue#method.change).
    ///
    /// For a pause of one key, the table is a [`KeyedArray`](portcullis_core::KeyedArray) of a
    /// [`Penalty`](portcullis_core::Penalty), and `change` calls `change_key_at`. For a pause of
    /// all keys, the total is a `Penalty`.
    ///
    /// ```
    /// # use portcullis_async::KeyedQueue;
    /// # use portcullis_core::{Keyed, ManualClock};
    /// # use portcullis_core::keyed::{ConcurrencyRules, Line, Seed};
    /// # let table = Keyed::new(ConcurrencyRules::new(2), Line::for_keys(1_000), Seed::new());
    /// let queue = KeyedQueue::new(table, ManualClock::new(), 10);
    /// assert_eq!(queue.change(|table| table.rules().set_limit(5)), Ok(2));
    /// ```
    pub fn change<V>(&self, change: impl FnOnce(&T) -> V) -> V {
        self.wait_queue.change(|source| change(&source.0))
    }
}

impl<T, L, W, C, R, H> KeyedQueue<WithTotal<T, L, W>, C, R, H>
where
    WithTotal<T, L, W>: QueueKeys,
{
    /// Returns a view of the limit for all keys, which can be asked and not changed: for example
    /// how many places are free. For its settings, see [`change`](Self::change).
    ///
    /// ```
    /// # use portcullis_async::KeyedQueue;
    /// # use portcullis_core::keyed::WithTotal;
    /// # use portcullis_core::{Concurrency, Keyed, Timeless, Timestamp};
    /// let tenants = Keyed::for_keys(Concurrency::new(2), 1_000);
    /// let queue = KeyedQueue::new(WithTotal::new(tenants, Concurrency::new(3)), Timeless, 9);
    /// let _held = queue.try_acquire("alice", 2)?;
    /// assert_eq!(queue.total().available_at(Timestamp::ZERO), 1);
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    pub const fn total(&self) -> LimiterView<'_, L> {
        LimiterView(self.wait_queue.source.0.total())
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
/// use portcullis_core::{Keyed, ManualClock};
/// use portcullis_core::keyed::{ConcurrencyRules, Line, Seed};
/// use std::sync::Arc;
///
/// let table = Keyed::new(ConcurrencyRules::new(1), Line::for_keys(1_000), Seed::new());
/// let queue = Arc::new(KeyedQueue::new(table, ManualClock::new(), 10));
/// let alice = QueueKey::new(Arc::clone(&queue), "alice");
/// let lease = futures_executor::block_on(Acquire::new(alice, 1))?;
/// std::thread::spawn(move || drop(lease)).join().unwrap();
/// # Ok::<(), portcullis_async::Rejected>(())
/// ```
#[derive(Clone, Copy)]
pub struct QueueKey<P>(QueueKeyLimiter<P>);

/// The target of a [`QueueKey`]: the limiter of the key, behind the requests that wait for the key.
///
/// ```
/// # use portcullis_async::KeyedQueue;
/// # use portcullis_core::{Keyed, Limiter, ManualClock, Timestamp};
/// # use portcullis_core::keyed::{ConcurrencyRules, Line, Seed};
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
    /// Creates a pointer to the queue of `key`.
    ///
    /// ```
    /// # use portcullis_async::{KeyedQueue, QueueKey};
    /// # use portcullis_core::{Keyed, Limiter, ManualClock};
    /// # use portcullis_core::keyed::{ConcurrencyRules, Line, Seed};
    /// # use portcullis_core::Timestamp;
    /// # let table = Keyed::new(ConcurrencyRules::new(2), Line::for_keys(1_000), Seed::new());
    /// let queue = KeyedQueue::new(table, ManualClock::new(), 10);
    /// assert_eq!(QueueKey::new(&queue, "alice").available_at(Timestamp::ZERO), 2);
    /// ```
    pub fn new<K: Hash + ?Sized>(queue: P, key: &K) -> Self {
        let table = &queue.wait_queue.source.0;
        let address = table.locate(table.hash_of(key));
        Self(QueueKeyLimiter { queue, address })
    }

    /// Creates a pointer to the queue of the key at an address of the table. An address of another
    /// table gives the queue of an arbitrary key.
    ///
    /// ```
    /// # use portcullis_async::{KeyedQueue, QueueKey};
    /// # use portcullis_core::{Concurrency, Keyed, Timeless};
    /// # use portcullis_core::queue::Keys;
    /// let table = Keyed::for_keys(Concurrency::new(2), 100);
    /// let alice = table.locate(table.hash_of("alice"));
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
        let passes = !wait_queue.may_be_behind(key) || wait_queue.is_free(key);
        passes.then(|| wait_queue.take_outside_lock(key, take))
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
    /// Takes `n` permits without waiting; see
    /// [`KeyedQueue::try_acquire`](KeyedQueue#method.try_acquire).
    ///
    /// # Errors
    ///
    /// As [`KeyedQueue::try_acquire`](KeyedQueue#method.try_acquire).
    ///
    /// ```
    /// # use portcullis_async::KeyedQueue;
    /// # use portcullis_core::{Keyed, Timeless};
    /// # use portcullis_core::keyed::{ConcurrencyRules, Line, Seed};
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

    /// Waits for `n` permits; see [`Queue::acquire`](crate::Queue#method.acquire).
    ///
    /// # Errors
    ///
    /// [`Rejected`](crate::Rejected), as for `Queue::acquire`.
    ///
    /// ```
    /// # use portcullis_async::KeyedQueue;
    /// # use portcullis_core::{Keyed, Timeless};
    /// # use portcullis_core::keyed::{ConcurrencyRules, Line, Seed};
    /// # let table = Keyed::new(ConcurrencyRules::new(2), Line::for_keys(1_000), Seed::new());
    /// let queue = KeyedQueue::new(table, Timeless, 10);
    /// let lease = futures_executor::block_on(queue.key("alice").acquire(2))?;
    /// assert_eq!(lease.permits(), 2);
    /// # Ok::<(), portcullis_async::Rejected>(())
    /// ```
    pub fn acquire(self, n: u32) -> Acquire<Self> {
        Acquire::new(self, n)
    }

    /// Returns the permits that the limiter of the key has now.
    ///
    /// ```
    /// # use portcullis_async::KeyedQueue;
    /// # use portcullis_core::{Keyed, Timeless};
    /// # use portcullis_core::keyed::{ConcurrencyRules, Line, Seed};
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
    /// # use portcullis_core::{Keyed, Rate};
    /// # use portcullis_core::keyed::{Line, Seed, TokenBucketRules};
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
}

impl<P: ToKeyedQueue> QueueKeyLimiter<P> {
    fn limiter(&self) -> TableKey<&P::Table> {
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
        } else if !wait_queue.may_be_behind(self.address) {
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
