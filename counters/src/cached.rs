//! A cache in front of a counter store: permits that were taken ahead, and denials.
//!
//! ```text
//! request -> block of the id: permits taken ahead, until they lapse --- covered ---> allowed here
//!    |                                    |
//!    |                                    +--- a part is missing --> the store: the missing permits,
//!    |                                                               and a new block
//!    +-----> denied by the store, until an instant ------------------> denied here
//! ```
//!
//! **Invariant.** Every permit that is granted here was taken from the store at most `hold` before,
//! and for a window, in the segment that still lasts, at the time that the decision reads last.
//!
//! That is the last thing that a decision does: it takes from the blocks, and then looks at the
//! clock. So a thread that is stopped in a decision, or waits for the lock, grants nothing that has
//! lapsed meanwhile. One that is stopped later, on the way to its caller, grants what it has
//! decided: one request for each thread that is stopped.
//!
//! An instant of the store is converted with a call that was sent at `sent` and decided at `at`,
//! the store's time: an event at `at + d` is not before `sent + d` here. So a block that ends at
//! `sent + d` ends early enough, and so does a denial.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use core::time::Duration;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use portcullis_core::{Clock, Retry, Timestamp};

use crate::charge::Charge;
use crate::decision::{Left, Origin, StoreDecision};
use crate::error::StoreError;
use crate::limit::CounterLimit;
use crate::store::{Counter, CounterStore, QuotaRead, QuotaWrite, StoreFuture};
use crate::sync::SyncChannel;

/// Of the permits that the store has left, a block takes one in this many. So about four instances
/// with a high demand share what comes in.
const SHARE: u64 = 4;

/// A request for more permits is decided by the store, so that those of a request and of a block
/// together fit a charge.
const MAX_PERMITS: u64 = 1 << 31;

/// How often a request asks the store: with a block, with a smaller one, and without.
const ATTEMPTS: usize = 3;

/// Of each span until an instant of the store, this part is left out: the clocks may differ by
/// 1,000 parts per million.
const DRIFT: u32 = 1_000;

/// Settings of a [`CachedStore`].
///
/// ```
/// use core::time::Duration;
/// use portcullis_counters::CacheSettings;
/// let settings = CacheSettings::new().hold(Duration::from_millis(200)).max_block(1_000);
/// # let _ = settings;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSettings {
    hold: Duration,
    pause: Duration,
    max_block: u32,
    max_ids: usize,
}

impl CacheSettings {
    /// The default settings.
    ///
    /// ```
    /// # use portcullis_counters::CacheSettings;
    /// assert_eq!(CacheSettings::new(), CacheSettings::default());
    /// ```
    #[must_use]
    pub const fn new() -> Self {
        Self {
            hold: Duration::from_millis(100),
            pause: Duration::from_millis(25),
            max_block: 10_000,
            max_ids: 100_000,
        }
    }

    /// Sets how long permits are held that were taken ahead, and how long a denial counts, at most.
    /// All instances with one limit must have the same setting. Default 100 ms.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_counters::CacheSettings;
    /// let _ = CacheSettings::new().hold(Duration::from_millis(50));
    /// ```
    #[must_use]
    pub const fn hold(mut self, hold: Duration) -> Self {
        self.hold = hold;
        self
    }

    /// Sets how long an instance with more demand than the store has permits does not ask it: no
    /// longer than an eighth of a token bucket takes to come in. In that time permits come in, of
    /// which the next call takes a block, and requests that the block does not cover are denied. 0
    /// for none: then nearly each grant of a limit that is used up is a call. Windows have no
    /// pause. Default 25 ms.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_counters::CacheSettings;
    /// let _ = CacheSettings::new().pause(Duration::ZERO);
    /// ```
    #[must_use]
    pub const fn pause(mut self, pause: Duration) -> Self {
        self.pause = pause;
        self
    }

    /// Sets how many permits are taken ahead at most, for one id. 0 for none: then only denials are
    /// kept. At most 2^30. Default 10,000.
    ///
    /// ```
    /// # use portcullis_counters::CacheSettings;
    /// let _ = CacheSettings::new().max_block(100);
    /// ```
    #[must_use]
    pub const fn max_block(mut self, permits: u32) -> Self {
        self.max_block = if permits < 1 << 30 { permits } else { 1 << 30 };
        self
    }

    /// Sets for how many ids the cache has room. If there are more, requests with new ones ask the
    /// store. Default 100,000.
    ///
    /// ```
    /// # use portcullis_counters::CacheSettings;
    /// let _ = CacheSettings::new().max_ids(1_000);
    /// ```
    #[must_use]
    pub const fn max_ids(mut self, max_ids: usize) -> Self {
        self.max_ids = max_ids;
        self
    }
}

impl Default for CacheSettings {
    fn default() -> Self {
        Self::new()
    }
}

/// How a [`CachedStore`] has decided: the result of [`CachedStore::counts`].
///
/// ```
/// use portcullis_counters::CacheCounts;
/// assert_eq!(CacheCounts::default().calls, 0);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheCounts {
    /// Requests that were allowed without asking the store.
    pub allowed: u64,
    /// Requests that were denied without asking the store.
    pub denied: u64,
    /// Calls to the store.
    pub calls: u64,
}

/// A [`CounterStore`] in front of another one. It takes permits ahead, in blocks, and grants them
/// without asking the store. It also keeps denials until the store would allow.
///
/// - **A block** is as large as the demand of the last requests for half of
///   [`hold`](CacheSettings::hold), at most twice the block before, and at most a quarter of what
///   the store has left. A limit with little demand has none.
/// - **What is not used lapses** after `hold`, and with the segment of a window. It is not returned
///   to the store: it comes back as every permit does, with time.
/// - **Wrong denials end soon.** Permits that another instance holds are not available to this one
///   until they lapse, and a limit that is used up is asked again after `pause`.
/// - **All or nothing.** A request takes from the blocks and from the store, or from none.
/// - **Cancellation.** If the future is dropped, permits from blocks return. What the store has
///   taken is lost until it comes back with time.
/// - **A store that is down** decides nothing. Put a [`GuardedStore`](crate::GuardedStore) between
///   the cache and the store. What it decides by itself is not cached.
///
/// # Bounds
///
/// Those of the limits, exactly as without a cache, for any number of instances, if all of them use
/// a cache with the same `hold`:
///
/// - **Windows.** A block ends with its segment. So a permit is granted in the segment in which the
///   store counts it.
/// - **Token buckets.** What is granted in a span `t` was taken in `t + hold`. The store is asked
///   with a burst that is smaller by `rate × hold`, rounded down, so
///   `burst − rate × hold + rate × (t + hold) = burst + rate × t`. No more than an eighth of the
///   burst is given up for this: if `rate × hold` is more, `hold` is shorter for this limit.
///   [`Left::capacity`] is the smaller burst, and a request for more is denied.
/// - If other callers take from the same token bucket without a cache, at most `rate × hold` more
///   are granted in a span.
///
/// A permit counts at the moment at which it is taken from a block or from the store. The answer to
/// a request that also asks the store comes later, by the time of the call. An answer also comes
/// later if its thread is stopped after it has decided: that is one request for each such thread,
/// which may then be the 41st of 40 in a window.
///
/// Time is measured by a clock of this host between a call and its use, and the store's time may
/// run faster or slower by 1,000 parts per million. A clock that stands still while the host
/// sleeps, as `MonotonicClock` does on Linux, lets a block live on by the time of the sleep.
///
/// # Cost
///
/// A decision without the store takes a mutex, reads the clock twice, looks up each id, and
/// allocates. An id in use asks the store about twice in each `hold`, or once in each
/// [`pause`](CacheSettings::pause) if its limit is used up. If the cache is full, each `hold` one
/// request looks through all ids for those that are not in use.
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::ManualClock;
/// use portcullis_counters::{
///     CacheSettings, CachedStore, Charge, CounterLimit, CounterStore, MemoryCounters,
/// };
///
/// # futures_executor::block_on(async {
/// let store = MemoryCounters::new(100, ManualClock::new());
/// let cached = CachedStore::new(store, ManualClock::new(), CacheSettings::new());
/// let limit = CounterLimit::token_bucket(1_000, Duration::from_secs(1), 1_000)?;
/// for _ in 0..500 {
///     assert!(cached.take(&[Charge::new("alice", &limit, 1)]).await?.is_allowed());
/// }
/// assert!(cached.counts().calls < 20);
/// # Ok::<(), Box<dyn core::error::Error>>(()) }).unwrap();
/// ```
pub struct CachedStore<S, C> {
    store: S,
    settings: CacheSettings,
    shared: Arc<Shared<C>>,
    channel: Option<Arc<dyn SyncChannel>>,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    allowed: AtomicU64,
    denied: AtomicU64,
    calls: AtomicU64,
}

/// The state of a cache. The receiver of messages has it too.
struct Shared<C> {
    all: Mutex<All>,
    clock: C,
    hold: Duration,
}

#[derive(Default)]
struct All {
    entries: HashMap<Box<str>, Entry>,
    /// When the last call was sent, and the store's time of its decision.
    last_call: Option<(Timestamp, Timestamp)>,
    purged: Timestamp,
}

/// What is known of one id.
struct Entry {
    /// The limit as the callers have it.
    limit: CounterLimit,
    /// The limit as the store is asked for it, and how long a block is held.
    ahead: CounterLimit,
    hold: Duration,
    /// How long the store is not asked if it has less than the demand.
    pause: Duration,
    /// The permits taken ahead, and when they lapse.
    block: u64,
    until: Timestamp,
    /// What the store had left, of a call that was sent then.
    seen: Option<(Left, Timestamp)>,
    /// Requests for this many permits and more, from the store, are denied until then.
    denied: Option<(u64, Timestamp)>,
    /// The permits that were asked for since the last call.
    wanted: u64,
    called: Timestamp,
    /// The size of the last block by the demand.
    size: u64,
    /// A call that takes a block is on its way. The others take none.
    is_asking: bool,
}

/// The part of a request that concerns one id.
struct Part<'a> {
    id: &'a str,
    limit: &'a CounterLimit,
    is_synced: bool,
    permits: u64,
    /// The limit as the store is asked for it.
    ahead: CounterLimit,
    /// Permits from the block, which lapse then.
    held: u64,
    until: Timestamp,
    /// The size of the block to take.
    extra: u64,
    asks: bool,
}

impl Part<'_> {
    /// The permits that the store is asked for, without a block.
    fn rest(&self) -> u64 {
        self.permits - self.held
    }

    /// Returns what is left of a limit of which nothing is known.
    fn unknown(&self) -> Left {
        Left {
            available: 0,
            capacity: self.ahead.capacity(),
            full_in: Duration::ZERO,
        }
    }
}

impl Entry {
    fn new(limit: &CounterLimit, settings: &CacheSettings, now: Timestamp) -> Self {
        let (ahead, hold) = limit.ahead(settings.hold);
        let has_segments = ahead.segment_left(now).is_some();
        let pause = if has_segments {
            // Nothing comes in until the segment ends, and the denial says when that is.
            Duration::ZERO
        } else {
            settings.pause.min(hold)
        };
        Self {
            limit: limit.clone(),
            ahead,
            hold,
            pause,
            block: 0,
            until: Timestamp::ZERO,
            seen: None,
            denied: None,
            wanted: 0,
            called: now,
            size: 0,
            is_asking: false,
        }
    }

    fn is_in_use(&self, now: Timestamp) -> bool {
        let is_denied = self.denied.is_some_and(|(_, until)| until > now);
        let is_recent = now.saturating_since(self.called) < self.hold;
        self.is_asking || self.until > now || is_denied || is_recent
    }

    /// The instant until which `rest` permits are denied.
    fn denied_until(&self, rest: u64, now: Timestamp) -> Option<Timestamp> {
        let (permits, until) = self.denied?;
        (rest.max(1) >= permits && now < until).then_some(until)
    }

    /// What the limit has left, by what is known.
    fn left(&self, now: Timestamp) -> Left {
        let capacity = self.ahead.capacity();
        let (available, full_in) = match self.seen {
            Some((left, sent)) => {
                let elapsed = now.saturating_since(sent);
                let came_in = self.ahead.comes_in(elapsed);
                let available = left.available.saturating_add(came_in);
                (available, left.full_in.saturating_sub(elapsed))
            }
            None => (0, Duration::ZERO),
        };
        Left {
            available: available.saturating_add(self.block).min(capacity),
            capacity,
            full_in,
        }
    }

    /// The size of the block that a call takes besides `rest` permits.
    fn extra(&mut self, rest: u64, now: Timestamp, max_block: u32) -> u64 {
        let elapsed = now.saturating_since(self.called).as_nanos().max(1);
        let demand = u128::from(self.wanted) * (self.hold.as_nanos() / 2) / elapsed;
        let demand = u64::try_from(demand).unwrap_or(u64::MAX);
        // A block at most doubles, so that one burst of requests does not take what others need.
        self.size = demand.min(self.size * 2 + 1).min(max_block.into());
        let Some((left, sent)) = self.seen else {
            // The first call only looks: a block of the unknown might be all that the store has.
            return 0;
        };
        let came_in = self.ahead.comes_in(now.saturating_since(sent));
        let available = left.available.saturating_add(came_in);
        let available = available.min(self.ahead.capacity()).saturating_sub(rest);
        self.size.min(available / SHARE)
    }
}

impl All {
    /// Makes an entry for an id, if there is none. Returns whether there is room for it.
    fn enter(&mut self, part: &Part<'_>, now: Timestamp, settings: &CacheSettings) -> bool {
        if let Some(entry) = self.entries.get_mut(part.id) {
            if entry.limit != *part.limit {
                // The limit has changed: a block of the one before is not a part of this one.
                *entry = Entry::new(part.limit, settings, now);
            }
            return true;
        }
        let CacheSettings { max_ids, hold, .. } = *settings;
        // Looking through all entries is dear, so a full cache does it once in each `hold`.
        if self.entries.len() >= max_ids && now.saturating_since(self.purged) >= hold {
            self.purged = now;
            self.entries.retain(|_, entry| entry.is_in_use(now));
        }
        if self.entries.len() >= max_ids {
            return false;
        }
        let entry = Entry::new(part.limit, settings, now);
        self.entries.insert(part.id.into(), entry);
        true
    }

    /// Returns the entry of a part, if it is still that of the part's limit.
    fn of(&mut self, part: &Part<'_>) -> Option<&mut Entry> {
        let entry = self.entries.get_mut(part.id)?;
        (entry.limit == *part.limit).then_some(entry)
    }

    /// Returns the store's time at `now`, as the last call tells it.
    fn store_time(&self, now: Timestamp) -> Timestamp {
        match self.last_call {
            Some((sent, at)) => at.saturating_add(now.saturating_since(sent)),
            None => now,
        }
    }

    /// Returns permits to their blocks, and lets others ask.
    fn undo(&mut self, parts: &[Part<'_>]) {
        for part in parts {
            if let Some(entry) = self.of(part) {
                // Another call may have begun a new block meanwhile: these permits lapse with
                // theirs.
                if entry.until == part.until {
                    entry.block += part.held;
                }
                entry.is_asking &= part.extra == 0;
            }
        }
    }
}

impl<C> Shared<C> {
    fn lock(&self) -> MutexGuard<'_, All> {
        // Nothing under this lock panics between two changes that belong together.
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: Clock> Shared<C> {
    /// Locks, and then reads the clock: the time is not that of before a wait for the lock.
    fn lock_now(&self) -> (MutexGuard<'_, All>, Timestamp) {
        let all = self.lock();
        let now = self.clock.now();
        (all, now)
    }

    /// Keeps a denial that another instance has told. The end is in the store's time.
    fn receive(&self, message: &str) -> Option<()> {
        let mut words = message.splitn(4, ' ');
        if words.next()? != "denied" {
            return None;
        }
        let (end, permits): (u64, u64) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let id = words.next()?;
        let (mut all, now) = self.lock_now();
        // Without a call of its own, this instance cannot convert the store's time.
        let (sent, at) = all.last_call?;
        let wait = Timestamp::from_micros(end).saturating_since(at);
        let latest = now.saturating_add(self.hold);
        // An id that this instance has not used takes no room, whatever others tell.
        let entry = all.entries.get_mut(id)?;
        let until = sent.saturating_add(short(wait)).min(latest);
        if entry.denied.is_none_or(|(_, known)| known < until) {
            entry.denied = Some((permits, until));
        }
        Some(())
    }
}

/// A span that is not longer in the store's time.
fn short(span: Duration) -> Duration {
    span.saturating_sub(span / DRIFT)
}

/// A request that asks the store. If it is dropped without an answer, the permits of the blocks
/// return.
struct Asking<'s, 'a, C> {
    shared: &'s Shared<C>,
    parts: Vec<Part<'a>>,
    is_answered: bool,
}

impl<C> Drop for Asking<'_, '_, C> {
    fn drop(&mut self) {
        if !self.is_answered {
            self.shared.lock().undo(&self.parts);
        }
    }
}

impl<S, C> CachedStore<S, C> {
    /// Returns how many requests were decided here, and how many calls the store had.
    ///
    /// ```
    /// # use portcullis_core::ManualClock;
    /// # use portcullis_counters::{CachedStore, CacheSettings, MemoryCounters};
    /// let store = MemoryCounters::new(100, ManualClock::new());
    /// let cached = CachedStore::new(store, ManualClock::new(), CacheSettings::new());
    /// assert_eq!(cached.counts().allowed, 0);
    /// ```
    #[must_use]
    pub fn counts(&self) -> CacheCounts {
        CacheCounts {
            allowed: self.counts.allowed.load(Relaxed),
            denied: self.counts.denied.load(Relaxed),
            calls: self.counts.calls.load(Relaxed),
        }
    }

    /// Returns the store behind.
    ///
    /// ```
    /// # use portcullis_core::ManualClock;
    /// # use portcullis_counters::{CachedStore, CacheSettings, MemoryCounters};
    /// let store = MemoryCounters::new(100, ManualClock::new());
    /// let cached = CachedStore::new(store, ManualClock::new(), CacheSettings::new());
    /// assert_eq!(cached.store().ids(), 0);
    /// ```
    #[must_use]
    pub const fn store(&self) -> &S {
        &self.store
    }
}

impl<S, C: Clock + Send + Sync + 'static> CachedStore<S, C> {
    /// Tells other instances of denials, and listens to theirs, for charges that are
    /// [synced](Charge::synced): an instance that is told asks the store no more until it can
    /// allow, for at most [`hold`](CacheSettings::hold). Only ids that this instance has used
    /// itself are kept.
    ///
    /// The end of the denial is in the store's time, which this instance knows by its last call. So
    /// a thousandth of the time since that call is left out, as [Bounds](Self#bounds) says of the
    /// clocks.
    ///
    /// ```
    /// use portcullis_core::ManualClock;
    /// use portcullis_counters::{
    ///     CacheSettings, CachedStore, CounterStore, MemoryCounters, SyncChannel,
    /// };
    /// # struct Channel;
    /// # impl SyncChannel for Channel {
    /// #     fn publish(&self, _: &str) {}
    /// #     fn subscribe(&self, _: Box<dyn Fn(&str) -> bool + Send + Sync>) {}
    /// # }
    /// # let channel = std::sync::Arc::new(Channel);
    /// let store = MemoryCounters::new(100, ManualClock::new());
    /// let cached = CachedStore::new(store, ManualClock::new(), CacheSettings::new());
    /// assert!(cached.with_channel(channel).syncs());
    /// ```
    #[must_use]
    pub fn with_channel(mut self, channel: Arc<dyn SyncChannel>) -> Self {
        let shared = Arc::downgrade(&self.shared);
        channel.subscribe(Box::new(move |message| {
            let shared = shared.upgrade();
            shared.map(|shared| shared.receive(message)).is_some()
        }));
        self.channel = Some(channel);
        self
    }
}

impl<S: CounterStore, C: Clock + Send + Sync> CachedStore<S, C> {
    /// Creates a cache in front of `store`. `clock` measures how long permits are held.
    ///
    /// ```
    /// # use portcullis_core::{ManualClock, MonotonicClock};
    /// # use portcullis_counters::{CachedStore, CacheSettings, MemoryCounters};
    /// let store = MemoryCounters::new(100, ManualClock::new());
    /// let _ = CachedStore::new(store, MonotonicClock::new(), CacheSettings::new());
    /// ```
    #[must_use]
    pub fn new(store: S, clock: C, settings: CacheSettings) -> Self {
        Self {
            store,
            settings,
            shared: Arc::new(Shared {
                all: Mutex::default(),
                clock,
                hold: settings.hold,
            }),
            channel: None,
            counts: Counts::default(),
        }
    }

    /// Decides without the store, or prepares what to ask it: takes from the blocks, and sets the
    /// sizes of new ones.
    fn begin(&self, parts: &mut [Part<'_>], of_charge: &[usize]) -> Option<StoreDecision> {
        let (mut all, now) = self.shared.lock_now();
        let (mut denied, mut asks) = (None, false);
        // First all parts are looked at: a request that one of them denies takes from no block.
        for (index, part) in parts.iter_mut().enumerate() {
            (part.held, part.extra, part.asks) = (0, 0, true);
            if all.enter(part, now, &self.settings)
                && let Some(entry) = all.of(part)
            {
                if entry.until <= now {
                    entry.block = 0;
                }
                entry.wanted = entry.wanted.saturating_add(part.permits);
                (part.held, part.until) = (entry.block.min(part.permits), entry.until);
                // A charge of 0 permits asks too, unless a block shows that there are some.
                part.asks = part.rest() > 0 || entry.block == 0;
                if part.asks
                    && let Some(until) = entry.denied_until(part.rest(), now)
                    && denied.is_none_or(|(_, known)| known < until)
                {
                    denied = Some((index, until));
                }
            }
            asks |= part.asks;
        }
        if let Some((index, until)) = denied {
            let wait = until.saturating_since(now);
            self.counts.denied.fetch_add(1, Relaxed);
            let denied_by = of_charge.iter().position(|&of| of == index);
            return Some(here(&all, parts, of_charge, now, denied_by, wait));
        }
        for part in parts.iter_mut() {
            if let Some(entry) = all.of(part) {
                entry.block -= part.held;
                if part.asks {
                    if !entry.is_asking && part.permits > 0 {
                        part.extra = entry.extra(part.rest(), now, self.settings.max_block);
                        entry.is_asking = part.extra > 0;
                    }
                    (entry.wanted, entry.called) = (0, now);
                }
            }
        }
        if asks {
            return None;
        }
        let decision = here(&all, parts, of_charge, now, None, Duration::ZERO);
        let held = parts.iter().filter(|part| part.held > 0);
        let until = held.map(|part| part.until).min();
        // What is taken is looked at last, so that it has not lapsed while this thread was stopped.
        if until.is_some_and(|until| self.shared.clock.now() >= until) {
            all.undo(parts);
            drop(all);
            return self.begin(parts, of_charge);
        }
        self.counts.allowed.fetch_add(1, Relaxed);
        Some(decision)
    }

    /// Notes what the store has granted.
    fn granted(&self, asking: &mut Asking<'_, '_, C>, decision: &StoreDecision, sent: Timestamp) {
        let (mut all, now) = self.shared.lock_now();
        let is_of_store = decision.origin == Origin::Store;
        if is_of_store {
            all.last_call = Some((sent, decision.at));
        }
        let mut left = decision.left.iter();
        for part in &asking.parts {
            let left = if part.asks { left.next() } else { None };
            let Some(entry) = all.of(part).filter(|_| part.asks) else {
                continue;
            };
            entry.is_asking &= part.extra == 0;
            if !is_of_store {
                // A fallback has not taken from the store, so there is no block, and nothing is
                // known of the store any more.
                entry.seen = None;
                continue;
            }
            entry.seen = left.map(|left| (*left, sent));
            // With more demand than the store has permits, the next call waits for more of them.
            let has_little = |left: &Left| {
                let next = entry.ahead.comes_in(entry.pause);
                left.available < next && left.available / SHARE < entry.size
            };
            let until = now.saturating_add(entry.pause);
            entry.denied = left.filter(|left| has_little(left)).map(|_| (1, until));
            if part.extra > 0 {
                let segment = part.ahead.segment_left(decision.at);
                let lives = segment.map_or(entry.hold, |left| entry.hold.min(left));
                let until = sent.saturating_add(short(lives));
                // What another call has left lapses first.
                entry.until = if entry.block > 0 && entry.until > now {
                    entry.until.min(until)
                } else {
                    entry.block = 0;
                    until
                };
                entry.block += part.extra;
            }
        }
        asking.is_answered = true;
    }

    /// Notes what the store has denied, and returns after which time it is asked again.
    fn denied(
        &self,
        asking: &mut Asking<'_, '_, C>,
        decision: &StoreDecision,
        sent: Timestamp,
    ) -> Option<Duration> {
        let (mut all, now) = self.shared.lock_now();
        // From all or from none: what the blocks gave goes back to them.
        all.undo(&asking.parts);
        asking.is_answered = true;
        if decision.origin != Origin::Store {
            return None;
        }
        all.last_call = Some((sent, decision.at));
        let asked = asking.parts.iter().filter(|part| part.asks);
        for (index, (part, left)) in asked.zip(&decision.left).enumerate() {
            let Some(entry) = all.of(part) else {
                continue;
            };
            entry.seen = Some((*left, sent));
            if decision.denied_by == Some(index)
                && let Some(Retry::After(wait)) = decision.retry
            {
                let latest = now.saturating_add(self.settings.hold);
                let until = sent.saturating_add(short(wait)).min(latest);
                let until = until.max(now.saturating_add(entry.pause));
                entry.denied = Some((part.rest().max(1), until));
                if let Some(channel) = self.channel.as_ref().filter(|_| part.is_synced) {
                    let end = decision.at.saturating_add(wait).as_nanos() / 1_000;
                    let message = format!("denied {end} {} {}", part.rest().max(1), part.id);
                    channel.publish(&message);
                }
                return Some(until.saturating_since(now));
            }
        }
        None
    }

    async fn decide(&self, charges: &[Charge<'_>]) -> Result<StoreDecision, StoreError> {
        let (mut parts, of_charge) = parts(charges, self.settings.hold)?;
        if parts.iter().any(|part| part.permits > MAX_PERMITS) {
            // Also without a block the store is asked for the smaller limit, which the bound needs.
            let ahead = charges.iter().zip(&of_charge);
            let ahead = ahead.map(|(charge, &of)| Charge {
                limit: &parts[of].ahead,
                ..*charge
            });
            let ahead: Vec<Charge<'_>> = ahead.collect();
            return self.store.take(&ahead).await;
        }
        if let Some(decision) = self.begin(&mut parts, &of_charge) {
            return Ok(decision);
        }
        let mut asking = Asking {
            shared: &self.shared,
            parts,
            is_answered: false,
        };
        for attempt in 1..=ATTEMPTS {
            let asked = asking.parts.iter().filter(|part| part.asks);
            let asked = asked.map(|part| {
                let permits = part.rest() + part.extra;
                Charge::new(part.id, &part.ahead, permits as u32).synced(part.is_synced)
            });
            let asked: Vec<Charge<'_>> = asked.collect();
            self.counts.calls.fetch_add(1, Relaxed);
            // Before the call: an instant of the store's is then not before this one.
            let sent = self.shared.clock.now();
            let decision = self.store.take(&asked).await?;
            drop(asked);
            if decision.is_allowed() {
                self.granted(&mut asking, &decision, sent);
                let left = decision.left.is_empty();
                return Ok(self.answer(&asking.parts, &of_charge, decision, left));
            }
            if attempt < ATTEMPTS && self.asks_for_less(&mut asking, &decision, attempt) {
                continue;
            }
            let pause = self.denied(&mut asking, &decision, sent);
            let left = decision.left.is_empty();
            let mut decision = self.answer(&asking.parts, &of_charge, decision, left);
            if let (Some(Retry::After(wait)), Some(pause)) = (&mut decision.retry, pause) {
                *wait = pause.max(*wait);
            }
            return Ok(decision);
        }
        unreachable!("the last attempt has no block")
    }

    /// Makes blocks smaller that the store has no room for. Returns whether the permits without
    /// the blocks can be granted.
    fn asks_for_less(
        &self,
        asking: &mut Asking<'_, '_, C>,
        decision: &StoreDecision,
        attempt: usize,
    ) -> bool {
        let has_block = asking.parts.iter().any(|part| part.extra > 0);
        if !has_block || decision.origin != Origin::Store {
            return false;
        }
        let asked = asking.parts.iter().filter(|part| part.asks);
        // A part that lacks even its own permits is denied, with or without blocks.
        let mut each = asked.zip(&decision.left);
        if !each.all(|(part, left)| left.available >= part.rest().max(1)) {
            return false;
        }
        let mut all = self.shared.lock();
        let asked = asking.parts.iter_mut().filter(|part| part.asks);
        for (part, left) in asked.zip(&decision.left) {
            let had_block = part.extra > 0;
            // The last attempt has no block, so it fails only if others have taken the permits.
            part.extra = if attempt + 1 < ATTEMPTS {
                part.extra.min((left.available - part.rest()) / SHARE)
            } else {
                0
            };
            if had_block
                && part.extra == 0
                && let Some(entry) = all.of(part)
            {
                entry.is_asking = false;
            }
        }
        true
    }

    /// The decision of the store, with what is left of all charges.
    fn answer(
        &self,
        parts: &[Part<'_>],
        of_charge: &[usize],
        mut decision: StoreDecision,
        has_no_state: bool,
    ) -> StoreDecision {
        // The store was asked for some parts only, and counts its own charges.
        if let Some(asked) = decision.denied_by {
            let mut asks = (0..parts.len()).filter(|&index| parts[index].asks);
            let index = asks.nth(asked);
            decision.denied_by = of_charge.iter().position(|&of| Some(of) == index);
        }
        if !has_no_state {
            let (all, now) = self.shared.lock_now();
            let of_store = core::mem::take(&mut decision.left);
            let mut of_store = of_store.into_iter();
            let left = parts.iter().map(|part| {
                let entry = all.entries.get(part.id);
                let entry = entry.filter(|entry| entry.limit == *part.limit);
                match (part.asks.then(|| of_store.next()).flatten(), entry) {
                    (Some(left), Some(entry)) => Left {
                        available: (left.available.saturating_add(entry.block)).min(left.capacity),
                        ..left
                    },
                    (Some(left), None) => left,
                    (None, Some(entry)) => entry.left(now),
                    (None, None) => part.unknown(),
                }
            });
            let left: Vec<Left> = left.collect();
            decision.left = of_charge.iter().map(|&of| left[of]).collect();
        }
        decision
    }
}

/// A decision that is made here.
fn here(
    all: &All,
    parts: &[Part<'_>],
    of_charge: &[usize],
    now: Timestamp,
    denied_by: Option<usize>,
    wait: Duration,
) -> StoreDecision {
    let left = of_charge.iter().map(|&of| {
        let entry = all.entries.get(parts[of].id);
        entry.map_or_else(|| parts[of].unknown(), |entry| entry.left(now))
    });
    StoreDecision {
        denied_by,
        retry: denied_by.map(|_| Retry::After(wait)),
        at: all.store_time(now),
        left: left.collect(),
        origin: Origin::Cache,
    }
}

/// The parts of a request, one for each id, and for each charge the index of its part.
fn parts<'a>(
    charges: &'a [Charge<'a>],
    hold: Duration,
) -> Result<(Vec<Part<'a>>, Vec<usize>), StoreError> {
    let mut parts: Vec<Part<'a>> = Vec::with_capacity(charges.len());
    let mut of_charge = Vec::with_capacity(charges.len());
    for charge in charges {
        let known = parts.iter().position(|part| part.id == charge.id);
        match known.map(|index| &mut parts[index]) {
            None => parts.push(Part {
                id: charge.id,
                limit: charge.limit,
                is_synced: charge.is_synced,
                permits: charge.permits.into(),
                ahead: charge.limit.ahead(hold).0,
                held: 0,
                until: Timestamp::ZERO,
                extra: 0,
                asks: true,
            }),
            Some(part) if part.limit == charge.limit => {
                part.permits += u64::from(charge.permits);
                part.is_synced |= charge.is_synced;
            }
            Some(_) => return Err(StoreError::MixedLimits),
        }
        of_charge.push(known.unwrap_or(parts.len() - 1));
    }
    Ok((parts, of_charge))
}

impl<S: CounterStore, C: Clock + Send + Sync> CounterStore for CachedStore<S, C> {
    fn get<'a>(&'a self, id: &'a str) -> StoreFuture<'a, Counter> {
        self.store.get(id)
    }

    fn get_many<'a>(&'a self, ids: &'a [&'a str]) -> StoreFuture<'a, Vec<Counter>> {
        self.store.get_many(ids)
    }

    fn increment_and_get<'a>(
        &'a self,
        id: &'a str,
        expiry: Duration,
        delta: i64,
    ) -> StoreFuture<'a, Counter> {
        self.store.increment_and_get(id, expiry, delta)
    }

    fn read_quotas<'a>(&'a self, ids: &'a [&'a str]) -> StoreFuture<'a, QuotaRead> {
        self.store.read_quotas(ids)
    }

    fn write_quotas<'a>(
        &'a self,
        read_at: Timestamp,
        writes: &'a [QuotaWrite<'a>],
    ) -> StoreFuture<'a, bool> {
        self.store.write_quotas(read_at, writes)
    }

    fn take<'a>(&'a self, charges: &'a [Charge<'a>]) -> StoreFuture<'a, StoreDecision> {
        Box::pin(self.decide(charges))
    }

    fn syncs(&self) -> bool {
        self.channel.is_some()
    }

    fn supports(&self, limit: &CounterLimit) -> Result<(), StoreError> {
        self.store.supports(limit)
    }
}

impl<S: fmt::Debug, C> fmt::Debug for CachedStore<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CachedStore")
            .field("store", &self.store)
            .field("settings", &self.settings)
            .field("counts", &self.counts())
            .finish_non_exhaustive()
    }
}
