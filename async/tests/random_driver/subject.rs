//! The driven queues: around one limiter, around several, and by key.

use core::future::Future;
use core::hash::{BuildHasherDefault, Hash};
use core::ops::Deref;
use core::pin::Pin;
use core::time::Duration;
use std::hash::DefaultHasher;
use std::sync::Arc;

use portcullis_async::{
    Acquire, Drained, KeyedQueue, Next, Order, Priority, Queue, QueueCounts, QueueKey, Rejected,
    Shedding,
};
use portcullis_core::counts::{Counts, Tally};
use portcullis_core::keyed::{
    Address, ConcurrencyRules, KeyHash, Line, TableKey, TokenBucketRules, WithTotal,
};
use portcullis_core::limiter::{Answer, Ask, Back, Hints, Reading, Returned};
use portcullis_core::queue::{Keys, QueueKeys, QueueLimiter};
use portcullis_core::{
    AllOf, Concurrency, Counted, Denied, FixedWindow, Keyed, Lease, Limiter, LimiterExt, Rate,
    Retry, Timestamp, TokenBucket,
};

use crate::chance::{below, one_in};
use crate::fairness::{self, Fairness};
use crate::parts::{Part, Promise, Sim, Single, Spy, Told};

pub(crate) type Boxed<T> = Pin<Box<dyn Future<Output = T>>>;

/// The future of a request.
pub(crate) trait Request: Future {
    /// Whether the request is granted or rejected.
    fn is_settled(&self) -> bool;
}

impl<L: Limits> Request for Acquire<Held<L>> {
    fn is_settled(&self) -> bool {
        self.is_settled()
    }
}

impl<T: QueueKeys> Request for Acquire<QueueKey<Arc<KeyedQueue<T, Sim, Single, Told>>>> {
    fn is_settled(&self) -> bool {
        self.is_settled()
    }
}

pub(crate) type BoxedRequest<L> = Pin<Box<dyn Request<Output = Result<L, Rejected>>>>;

/// The settings of a queue.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) order: Order,
    pub(crate) max_permits: u64,
    pub(crate) max_waiters: u32,
    pub(crate) slack: Duration,
    pub(crate) shedding: Option<Shedding>,
}

/// Sets the options of a queue.
macro_rules! with_options {
    ($queue:expr, $settings:expr) => {{
        let (queue, settings): (_, &Settings) = ($queue, $settings);
        let queue = queue
            .with_order(settings.order)
            .with_max_waiters(settings.max_waiters)
            .with_slack(settings.slack);
        match settings.shedding {
            Some(shedding) => queue.with_shedding(shedding),
            None => queue,
        }
    }};
}

/// A lease of any queue.
pub(crate) trait Leased: Sized {
    fn permits(&self) -> u32;
    fn release(&mut self, n: u32);
    fn refund(&mut self, now: u64, n: u32) -> u32;
    fn split(&mut self, n: u32) -> Self;
    fn merge(&mut self, other: Self) -> Result<(), Self>;
    fn forget(self) -> u32;
}

impl<P: Deref<Target: Limiter> + Clone> Leased for Lease<P> {
    fn permits(&self) -> u32 {
        self.permits()
    }
    fn release(&mut self, n: u32) {
        self.release(n).expect("the lease holds as many");
    }
    fn refund(&mut self, now: u64, n: u32) -> u32 {
        self.refund_at(Timestamp::from_nanos(now), n)
            .expect("the lease holds as many")
    }
    fn split(&mut self, n: u32) -> Self {
        self.split(n).expect("the lease holds as many")
    }
    fn merge(&mut self, other: Self) -> Result<(), Self> {
        self.merge(other)
    }
    fn forget(self) -> u32 {
        self.forget()
    }
}

/// When a limiter can grant `n` permits at the earliest, whatever is released before.
fn by_time<L: Limiter + ?Sized>(limiter: &L, now: u64, n: u32) -> Option<u64> {
    match limiter.peek_at(Timestamp::from_nanos(now), n) {
        Ok(()) => Some(now),
        Err(denied) => match limiter.retry(denied) {
            Retry::At(at) | Retry::OnReleaseFrom(at) => Some(at.as_nanos()),
            _ => None,
        },
    }
}

/// A queue, and the expected state of its limiters.
pub(crate) trait Subject: 'static {
    type Lease: Leased + 'static;

    fn keys(&self) -> usize;
    fn acquire(
        &self,
        key: usize,
        min: u32,
        max: u32,
        until: Option<u64>,
        priority: Priority,
    ) -> BoxedRequest<Self::Lease>;
    fn try_acquire(&self, key: usize, n: u32) -> Result<Self::Lease, Denied>;
    fn release_later(&self, lease: Self::Lease) -> Result<(), Self::Lease>;
    fn advance(&self) -> Next;
    fn close(&self);
    fn is_closed(&self) -> bool;
    fn counts(&self) -> QueueCounts;
    /// What the limiter or the table has counted, if it counts.
    fn counted(&self) -> Option<Counts>;
    fn clock(&self) -> &Sim;
    /// The queue outlives the lease.
    fn drive(&self) -> Boxed<()>;
    fn attend(&self, shared: bool);
    fn drained(&self) -> Option<Boxed<()>>;
    fn change(&self);
    /// The number of references to the queue.
    fn references(&self) -> usize;

    /// Whether a try that no request is ahead of is granted now.
    fn grants(&self, key: usize, now: u64, n: u32) -> bool {
        self.is_free(key, now, n)
    }
    /// Whether the limiter reports `n` permits now.
    fn is_free(&self, key: usize, now: u64, n: u32) -> bool;
    /// The first instant at which it will have them, if nothing is returned.
    fn free_at(&self, key: usize, now: u64, n: u32) -> Option<u64>;
    /// When a request can be granted at the earliest, whatever is released before.
    fn not_before(&self, key: usize, now: u64, n: u32) -> Option<u64> {
        self.free_at(key, now, n)
    }
    fn capacity(&self, key: usize) -> u64;
    /// Whether nothing is held.
    fn is_drained(&self) -> bool;
    /// For each limiter to which permits are released, the held permits; by key.
    fn held(&self, key: usize) -> Vec<u64>;
    /// Whether there is a limit for all keys.
    fn has_total(&self) -> bool {
        false
    }
    /// The fairness of the keys, if a key that has waiters is always ready.
    fn fairness(&self, _most: u32) -> Option<Fairness> {
        None
    }
    /// The grants by key since the last call, in their order.
    fn grants_by_key(&self) -> Vec<(usize, u32)> {
        vec![]
    }
    /// The held permits of the limit for all keys, if it is a limit of held permits.
    fn held_in_total(&self) -> Option<u64> {
        None
    }
    /// For each limiter whose permits return by time, the permits taken and not returned.
    fn net(&self) -> Vec<u64>;
    fn takes(&self) -> u64;
    /// For each limiter, the permits refunded by a receipt.
    fn refunded(&self) -> Vec<u64>;
}

/// The limiters of a queue.
pub(crate) trait Limits: QueueLimiter + Clone + Send + Sync + 'static {
    fn draw() -> Self;
    fn parts(&self) -> Vec<Box<dyn Part>>;
    fn change(&self) {}
    fn counted(&self) -> Option<Counts> {
        None
    }
}

/// Limits with a tally that the driver reads.
pub(crate) type Tallied<L> = Counted<L, Arc<Tally>>;

pub(crate) type Plain = Spy<Concurrency>;
pub(crate) type Bucket = Spy<TokenBucket>;
pub(crate) type Window = Spy<FixedWindow>;

const MILLI: u64 = 1_000_000;

impl Limits for Plain {
    fn draw() -> Self {
        let limit = 1 + below(8) as u32;
        Self::new(Concurrency::new(limit), Promise::Held)
    }
    fn parts(&self) -> Vec<Box<dyn Part>> {
        vec![Box::new(self.clone())]
    }
    fn change(&self) {
        self.limiter()
            .set_limit(1 + below(8) as u32)
            .expect("a small limit");
    }
}

impl Limits for Bucket {
    fn draw() -> Self {
        let (permits, burst) = (1 + below(20) as u32, 1 + below(9));
        let period = [10, 70, 1_000][crate::chance::index(3)] * MILLI;
        let initial = below(burst + 1);
        let rate = Rate::new(permits, Duration::from_nanos(period));
        let bucket = TokenBucket::builder(rate, burst)
            .initial(initial)
            .build()
            .expect("a bucket");
        Self::new(
            bucket,
            Promise::Bucket {
                permits: permits.into(),
                period,
                burst,
                missing: burst - initial,
            },
        )
    }
    fn parts(&self) -> Vec<Box<dyn Part>> {
        vec![Box::new(self.clone())]
    }
}

impl Limits for Window {
    fn draw() -> Self {
        let limit = 1 + below(8);
        let period = [16, 100, 1_000][crate::chance::index(3)] * MILLI;
        Self::new(
            FixedWindow::new(limit, Duration::from_nanos(period)),
            Promise::Window { limit, period },
        )
    }
    fn parts(&self) -> Vec<Box<dyn Part>> {
        vec![Box::new(self.clone())]
    }
}

impl<A: Limits, B: Limits> Limits for AllOf<(A, B)> {
    fn draw() -> Self {
        Self::new((A::draw(), B::draw()))
    }
    fn parts(&self) -> Vec<Box<dyn Part>> {
        let (a, b) = self.limits();
        a.parts().into_iter().chain(b.parts()).collect()
    }
    fn change(&self) {
        let (a, b) = self.limits();
        if one_in(2) { a.change() } else { b.change() }
    }
}

impl<L: Limits> Limits for Tallied<L> {
    fn draw() -> Self {
        Self::with_tally(L::draw(), Arc::default())
    }
    fn parts(&self) -> Vec<Box<dyn Part>> {
        self.limiter().parts()
    }
    fn change(&self) {
        self.limiter().change();
    }
    fn counted(&self) -> Option<Counts> {
        Some(self.counts())
    }
}

type Held<L> = Arc<Queue<L, Sim, Single, Told>>;

/// A queue with one wait list.
pub(crate) struct Line1<L: Limits> {
    queue: Held<L>,
    limits: L,
    parts: Vec<Box<dyn Part>>,
}

impl<L: Limits> Line1<L> {
    pub(crate) fn new(settings: &Settings) -> Self {
        let limits = L::draw();
        let queue = Queue::hooked(
            limits.clone(),
            Sim::default(),
            settings.max_permits,
            Single,
            Told,
        );
        let queue = with_options!(queue, settings);
        Self {
            queue: Arc::new(queue),
            parts: limits.parts(),
            limits,
        }
    }
}

/// A reference to a queue behind an `Arc` that outlives it.
fn for_ever<Q>(queue: &Arc<Q>) -> &'static Q {
    // SAFETY: the driver drops all users before the queue.
    unsafe { &*Arc::as_ptr(queue) }
}

impl<L: Limits> Subject for Line1<L> {
    type Lease = Lease<Held<L>>;

    fn keys(&self) -> usize {
        1
    }
    fn acquire(
        &self,
        _: usize,
        min: u32,
        max: u32,
        until: Option<u64>,
        priority: Priority,
    ) -> BoxedRequest<Self::Lease> {
        let wait = Acquire::new(Arc::clone(&self.queue), min)
            .up_to(max)
            .priority(priority);
        match until {
            Some(until) => Box::pin(wait.until(Timestamp::from_nanos(until))),
            None => Box::pin(wait),
        }
    }
    fn try_acquire(&self, _: usize, n: u32) -> Result<Self::Lease, Denied> {
        let now = Timestamp::from_nanos(self.clock().time());
        Lease::try_acquire_at(Arc::clone(&self.queue), now, n)
    }
    fn release_later(&self, lease: Self::Lease) -> Result<(), Self::Lease> {
        Queue::release_later(lease);
        Ok(())
    }
    fn advance(&self) -> Next {
        self.queue.advance()
    }
    fn close(&self) {
        self.queue.close();
    }
    fn is_closed(&self) -> bool {
        self.queue.is_closed()
    }
    fn counts(&self) -> QueueCounts {
        self.queue.counts()
    }
    fn counted(&self) -> Option<Counts> {
        self.limits.counted()
    }
    fn clock(&self) -> &Sim {
        self.queue.clock()
    }
    fn drive(&self) -> Boxed<()> {
        Box::pin(for_ever(&self.queue).drive())
    }
    fn attend(&self, shared: bool) {
        if shared {
            self.queue.attend_shared();
        } else {
            for_ever(&self.queue).attend();
        }
    }
    fn drained(&self) -> Option<Boxed<()>> {
        Some(Box::pin(Drained::new(Arc::clone(&self.queue))))
    }
    fn change(&self) {
        self.queue.change(Limits::change);
    }
    fn references(&self) -> usize {
        Arc::strong_count(&self.queue)
    }
    fn is_free(&self, _: usize, now: u64, n: u32) -> bool {
        self.limits.peek_at(Timestamp::from_nanos(now), n).is_ok()
    }
    fn free_at(&self, _: usize, now: u64, n: u32) -> Option<u64> {
        match self.limits.peek_at(Timestamp::from_nanos(now), n) {
            Ok(()) => Some(now),
            Err(denied) => match self.limits.retry(denied) {
                Retry::At(at) => Some(at.as_nanos()),
                _ => None,
            },
        }
    }
    fn not_before(&self, _: usize, now: u64, n: u32) -> Option<u64> {
        by_time(&self.limits, now, n)
    }
    fn capacity(&self, _: usize) -> u64 {
        self.limits.capacity()
    }
    fn is_drained(&self) -> bool {
        self.limits.held() == 0
    }
    fn held(&self, _: usize) -> Vec<u64> {
        self.parts.iter().filter_map(|part| part.held()).collect()
    }
    fn net(&self) -> Vec<u64> {
        self.parts.iter().filter_map(|part| part.net()).collect()
    }
    fn takes(&self) -> u64 {
        self.parts.iter().map(|part| part.takes()).sum()
    }
    fn refunded(&self) -> Vec<u64> {
        self.parts.iter().map(|part| part.refunded()).collect()
    }
}

/// A table that the driver reads as well.
pub(crate) struct Read(Arc<Places>);

impl Keys for Read {
    type Limiter<'t> = Named<'t>;

    fn limiter_at<'t>(&'t self, address: &'t Address) -> Named<'t> {
        Named(TableKey::at(&self.0, *address))
    }
    fn hash_of<K: Hash + ?Sized>(&self, key: &K) -> KeyHash {
        self.0.hash_of(key)
    }
    fn locate(&self, hash: KeyHash) -> Address {
        self.0.locate(hash)
    }
}

/// The limiter of a key, which notes that it is asked.
pub(crate) struct Named<'t>(TableKey<&'t Places>);

type Places = Keyed<ConcurrencyRules, Box<[Line]>, BuildHasherDefault<DefaultHasher>>;

impl Limiter for Named<'_> {
    fn decide(&self, ask: Ask<'_>) -> Answer {
        if !ask.is_look() {
            fairness::asks(self.0.address());
        }
        self.0.decide(ask)
    }
    fn give_back(&self, back: Back<'_>) -> Returned {
        self.0.give_back(back)
    }
    fn read(&self, read: portcullis_core::limiter::Read) -> Reading {
        self.0.read(read)
    }
    fn retry(&self, denied: Denied) -> Retry {
        self.0.retry(denied)
    }
    fn hints(&self) -> Hints {
        self.0.hints()
    }
}

impl QueueKeys for Read {
    const SHARED: bool = false;

    fn next_held(&self, from: usize) -> Option<usize> {
        self.0.next_held(from)
    }
}

type Weights = Box<dyn Fn(&Address) -> u32 + Send + Sync>;
type Totals<L> = Counted<WithTotal<Read, L, Weights>>;
type HeldTotals<L> = Arc<KeyedQueue<Totals<L>, Sim, Single, Told>>;

/// A wait list for each key, and a limit for all keys.
pub(crate) struct WithinTotal<L: Limits> {
    queue: HeldTotals<L>,
    table: Read,
    total: L,
    parts: Vec<Box<dyn Part>>,
    keys: Vec<u64>,
    weights: Vec<u32>,
    limit: u64,
}

impl<L: Limits> WithinTotal<L> {
    pub(crate) fn new(settings: &Settings) -> Self {
        // If it is large, a key that waits is ready.
        let limit = [1 + below(4), ALWAYS_READY][crate::chance::index(2)];
        let rules = ConcurrencyRules::new(limit as u32);
        let table = Keyed::new(rules, Line::for_keys(1_000), BuildHasherDefault::default());
        let table = Arc::new(table);
        let total = L::draw();
        let keys: Vec<_> = (0..=below(6)).map(|_| below(u64::MAX)).collect();
        let are_equal = one_in(2);
        let weights: Vec<_> = keys
            .iter()
            .map(|_| if are_equal { 1 } else { 1 + below(4) as u32 })
            .collect();
        let weight_of: Vec<_> = keys
            .iter()
            .zip(&weights)
            .map(|(key, weight)| (table.key(key).address(), *weight))
            .collect();
        let weight = move |address: &Address| {
            let found = weight_of.iter().find(|(key, _)| key == address);
            found.map_or(1, |(_, weight)| *weight)
        };
        let both = WithTotal::new(Read(Arc::clone(&table)), total.clone())
            .with_weights(Box::new(weight) as Weights);
        let queue = KeyedQueue::with_lock(
            Counted::new(both),
            Sim::default(),
            settings.max_permits,
            Single,
        )
        .with_hook(Told);
        let queue = with_options!(queue, settings);
        Self {
            queue: Arc::new(queue),
            table: Read(table),
            parts: total.parts(),
            total,
            keys,
            weights,
            limit,
        }
    }

    fn key(&self, key: usize) -> QueueKey<HeldTotals<L>> {
        QueueKey::new(Arc::clone(&self.queue), &self.keys[key])
    }

    fn free_of(&self, key: usize) -> u64 {
        let now = Timestamp::from_nanos(self.clock().time());
        self.table.0.key(&self.keys[key]).available_at(now)
    }
}

impl<L: Limits> Subject for WithinTotal<L> {
    type Lease = Lease<QueueKey<HeldTotals<L>>>;

    fn keys(&self) -> usize {
        self.keys.len()
    }
    fn acquire(
        &self,
        key: usize,
        min: u32,
        max: u32,
        until: Option<u64>,
        priority: Priority,
    ) -> BoxedRequest<Self::Lease> {
        let wait = Acquire::new(self.key(key), min)
            .up_to(max)
            .priority(priority);
        match until {
            Some(until) => Box::pin(wait.until(Timestamp::from_nanos(until))),
            None => Box::pin(wait),
        }
    }
    fn try_acquire(&self, key: usize, n: u32) -> Result<Self::Lease, Denied> {
        Lease::try_acquire_at(self.key(key), Timestamp::from_nanos(self.clock().time()), n)
    }
    fn release_later(&self, lease: Self::Lease) -> Result<(), Self::Lease> {
        Err(lease)
    }
    fn advance(&self) -> Next {
        self.queue.advance()
    }
    fn close(&self) {
        self.queue.close();
    }
    fn is_closed(&self) -> bool {
        self.queue.is_closed()
    }
    fn counted(&self) -> Option<Counts> {
        Some(self.queue.table_counts())
    }
    fn counts(&self) -> QueueCounts {
        self.queue.counts()
    }
    fn clock(&self) -> &Sim {
        self.queue.clock()
    }
    fn drive(&self) -> Boxed<()> {
        Box::pin(for_ever(&self.queue).drive())
    }
    fn attend(&self, shared: bool) {
        if shared {
            self.queue.attend_shared();
        } else {
            for_ever(&self.queue).attend();
        }
    }
    fn drained(&self) -> Option<Boxed<()>> {
        Some(Box::pin(Drained::new(Arc::clone(&self.queue))))
    }
    fn change(&self) {
        self.queue.change(|_| ());
    }
    fn references(&self) -> usize {
        Arc::strong_count(&self.queue)
    }
    fn grants(&self, key: usize, now: u64, n: u32) -> bool {
        let total = self.total.peek_at(Timestamp::from_nanos(now), n);
        self.free_of(key) >= u64::from(n.max(1)) && total.is_ok()
    }
    /// Whether the key at the front of the round, whichever it is, has its permits: then no key
    /// sleeps.
    fn is_free(&self, key: usize, now: u64, n: u32) -> bool {
        self.free_at(key, now, n) == Some(now)
    }
    fn free_at(&self, key: usize, now: u64, n: u32) -> Option<u64> {
        let (n, capacity) = (u64::from(n.max(1)), self.total.capacity());
        if self.free_of(key) < n || n > capacity {
            return None;
        }
        let enough = capacity.min(MOST) as u32;
        let denied = self.total.peek_at(Timestamp::from_nanos(now), enough);
        denied.map_or_else(
            |denied| match self.total.retry(denied) {
                Retry::At(at) => Some(at.as_nanos()),
                _ => None,
            },
            |()| Some(now),
        )
    }
    fn not_before(&self, _: usize, now: u64, n: u32) -> Option<u64> {
        by_time(&self.total, now, n)
    }
    fn capacity(&self, _: usize) -> u64 {
        self.limit.min(self.total.capacity())
    }
    fn is_drained(&self) -> bool {
        (0..self.keys.len()).all(|key| self.free_of(key) == self.limit)
    }
    fn held(&self, key: usize) -> Vec<u64> {
        vec![self.limit - self.free_of(key)]
    }
    fn has_total(&self) -> bool {
        true
    }
    fn held_in_total(&self) -> Option<u64> {
        self.parts.iter().find_map(|part| part.held())
    }
    fn fairness(&self, most: u32) -> Option<Fairness> {
        (self.limit == ALWAYS_READY).then(|| Fairness::new(&self.weights, most))
    }
    fn grants_by_key(&self) -> Vec<(usize, u32)> {
        let place = |address| {
            let is_it = |key: &u64| self.table.0.key(key).address() == address;
            self.keys
                .iter()
                .position(is_it)
                .expect("a key of the queue")
        };
        let grants = fairness::grants().into_iter();
        grants.map(|(key, n)| (place(key), n)).collect()
    }
    fn net(&self) -> Vec<u64> {
        self.parts.iter().filter_map(|part| part.net()).collect()
    }
    fn takes(&self) -> u64 {
        0
    }
    fn refunded(&self) -> Vec<u64> {
        vec![]
    }
}

/// Permits for each key that suffice for all requests.
const ALWAYS_READY: u64 = 1_000_000;

/// The most permits of a request: see `Config::most`.
const MOST: u64 = 6;

/// The limiter of each key.
pub(crate) trait Each: 'static {
    type Rules: portcullis_core::keyed::KeyedRules + Send + Sync;
    fn draw() -> (Self::Rules, u64, Option<u64>);
}

pub(crate) enum Permits {}
pub(crate) enum Rates {}

impl Each for Permits {
    type Rules = ConcurrencyRules;
    fn draw() -> (Self::Rules, u64, Option<u64>) {
        let limit = 1 + below(4) as u32;
        (ConcurrencyRules::new(limit), limit.into(), None)
    }
}

impl Each for Rates {
    type Rules = TokenBucketRules;
    fn draw() -> (Self::Rules, u64, Option<u64>) {
        let (permits, burst) = (1 + below(20) as u32, 1 + below(5));
        let rate = Rate::new(permits, Duration::from_millis(100));
        let bucket = TokenBucket::builder(rate, burst).rules().expect("a bucket");
        (bucket, burst, Some(100 * MILLI / u64::from(permits) + 1))
    }
}

type Table<E> = Counted<Keyed<<E as Each>::Rules, Box<[Line]>, BuildHasherDefault<DefaultHasher>>>;
type HeldTable<E> = Arc<KeyedQueue<Table<E>, Sim, Single, Told>>;

/// A wait list for each key.
pub(crate) struct Lines<E: Each> {
    queue: HeldTable<E>,
    keys: Vec<u64>,
    limit: u64,
    /// The time in which a permit comes in.
    period: Option<u64>,
}

impl<E: Each> Lines<E> {
    pub(crate) fn new(settings: &Settings) -> Self {
        let (rules, limit, period) = E::draw();
        let table = Keyed::new(rules, Line::for_keys(1_000), BuildHasherDefault::default());
        let queue = KeyedQueue::with_lock(
            Counted::new(table),
            Sim::default(),
            settings.max_permits,
            Single,
        )
        .with_hook(Told);
        let queue = with_options!(queue, settings);
        let keys = (0..=below(6)).map(|_| below(u64::MAX)).collect();
        Self {
            queue: Arc::new(queue),
            keys,
            limit,
            period,
        }
    }

    fn key(&self, key: usize) -> QueueKey<HeldTable<E>> {
        QueueKey::new(Arc::clone(&self.queue), &self.keys[key])
    }
}

impl<E: Each> Subject for Lines<E> {
    type Lease = Lease<QueueKey<HeldTable<E>>>;

    fn keys(&self) -> usize {
        self.keys.len()
    }
    fn acquire(
        &self,
        key: usize,
        min: u32,
        max: u32,
        until: Option<u64>,
        priority: Priority,
    ) -> BoxedRequest<Self::Lease> {
        let wait = Acquire::new(self.key(key), min)
            .up_to(max)
            .priority(priority);
        match until {
            Some(until) => Box::pin(wait.until(Timestamp::from_nanos(until))),
            None => Box::pin(wait),
        }
    }
    fn try_acquire(&self, key: usize, n: u32) -> Result<Self::Lease, Denied> {
        Lease::try_acquire_at(self.key(key), Timestamp::from_nanos(self.clock().time()), n)
    }
    fn release_later(&self, lease: Self::Lease) -> Result<(), Self::Lease> {
        Err(lease)
    }
    fn advance(&self) -> Next {
        self.queue.advance()
    }
    fn close(&self) {
        self.queue.close();
    }
    fn is_closed(&self) -> bool {
        self.queue.is_closed()
    }
    fn counted(&self) -> Option<Counts> {
        Some(self.queue.table_counts())
    }
    fn counts(&self) -> QueueCounts {
        self.queue.counts()
    }
    fn clock(&self) -> &Sim {
        self.queue.clock()
    }
    fn drive(&self) -> Boxed<()> {
        Box::pin(for_ever(&self.queue).drive())
    }
    fn attend(&self, shared: bool) {
        if shared {
            self.queue.attend_shared();
        } else {
            for_ever(&self.queue).attend();
        }
    }
    fn drained(&self) -> Option<Boxed<()>> {
        None
    }
    fn change(&self) {
        // The same limit: the change serves the wait lists nevertheless.
        self.queue.change(|_| ());
    }
    fn references(&self) -> usize {
        Arc::strong_count(&self.queue)
    }
    fn is_free(&self, key: usize, now: u64, n: u32) -> bool {
        self.key(key).available_at(Timestamp::from_nanos(now)) >= n.max(1).into()
    }
    fn free_at(&self, key: usize, now: u64, n: u32) -> Option<u64> {
        if self.is_free(key, now, n) {
            return Some(now);
        }
        let period = self.period?;
        if u64::from(n) > self.limit {
            return None;
        }
        // Also for a bucket whose newest time is later.
        let (mut denied, mut free) = (now, now + period * (self.limit + 1) + 2_000 * MILLI);
        while free - denied > 1 {
            let middle = denied + (free - denied) / 2;
            if self.is_free(key, middle, n) {
                free = middle;
            } else {
                denied = middle;
            }
        }
        Some(free)
    }
    fn capacity(&self, _: usize) -> u64 {
        self.limit
    }
    fn is_drained(&self) -> bool {
        false
    }
    fn held(&self, key: usize) -> Vec<u64> {
        if self.period.is_some() {
            return vec![];
        }
        let now = Timestamp::from_nanos(self.clock().time());
        vec![self.limit - self.key(key).available_at(now)]
    }
    fn net(&self) -> Vec<u64> {
        vec![]
    }
    fn takes(&self) -> u64 {
        0
    }
    fn refunded(&self) -> Vec<u64> {
        vec![]
    }
}
