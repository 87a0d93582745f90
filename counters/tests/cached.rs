//! A cache in front of a counter store: fewer calls, and never a permit more.

use core::future::Future;
use core::pin::{Pin, pin};
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::thread;

use portcullis_core::{Clock, ManualClock, MonotonicClock, Retry, Timestamp};
use portcullis_counters::{
    CacheSettings, CachedStore, Charge, CounterLimit, CounterStore, GuardSettings, GuardedStore,
    MemoryCounters, OnFailure, Origin, StoreDecision, StoreError, SyncChannel,
};
use proptest::prelude::*;

#[path = "support/gate.rs"]
mod gate;
#[allow(dead_code, reason = "tests that include this module use a part of it")]
#[path = "support/limits.rs"]
mod limits;

use gate::Gate;
use limits::{Grants, Plain, bucket, windows};

const SECOND: Duration = Duration::from_secs(1);
const MILLI: Duration = Duration::from_millis(1);

#[derive(Clone, Default)]
struct Time(Arc<ManualClock>);

impl Clock for Time {
    fn now(&self) -> Timestamp {
        self.0.now()
    }
}

type Memory = Arc<MemoryCounters<Time>>;

fn memory(time: &Time) -> Memory {
    Arc::new(MemoryCounters::new(1_000, time.clone()))
}

fn cached(store: &Memory, time: &Time, settings: CacheSettings) -> CachedStore<Memory, Time> {
    CachedStore::new(Arc::clone(store), time.clone(), settings)
}

fn poll<T>(future: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// The output of a future that is ready at once.
#[track_caller]
fn block_on<T>(future: impl Future<Output = T>) -> T {
    match poll(pin!(future)) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("waits"),
    }
}

#[track_caller]
fn take(store: &dyn CounterStore, charges: &[Charge<'_>]) -> StoreDecision {
    block_on(store.take(charges)).unwrap()
}

fn plain() -> impl Strategy<Value = Plain> {
    prop_oneof![
        (1_u64..50, 1_u64..2_000, 1_u64..200).prop_map(|(count, period, burst)| Plain::Bucket {
            count,
            period,
            burst
        }),
        (1_u64..200, 1_u64..500, 1_u64..6).prop_map(|(count, length, segments)| Plain::Windows {
            count,
            length,
            segments
        }),
    ]
}

proptest! {
    /// The bounds of the limits themselves, whatever the caches hold. All or nothing.
    #[test]
    fn caches_together_never_exceed_a_limit(
        limits in prop::collection::vec(plain(), 1..3),
        hold in 1_u64..2_000,
        pause in 0_u64..100,
        requests in prop::collection::vec(
            (0_u64..60, 0_usize..3, prop::collection::vec((0..2_usize, 0..4_u32), 1..3)),
            1..400,
        ),
    ) {
        let compiled: Vec<_> = limits.iter().map(|plain| plain.limit()).collect();
        let ids = ["a", "b"];
        let time = Time::default();
        let store = memory(&time);
        let settings = CacheSettings::new()
            .hold(Duration::from_micros(hold))
            .pause(Duration::from_micros(pause));
        let caches = [(); 3].map(|()| cached(&store, &time, settings));
        let mut grants: HashMap<usize, Grants> = HashMap::new();
        let mut now = 0;
        for (step, cache, asked) in requests {
            now += step;
            time.0.set(Timestamp::from_micros(now));
            let asked: Vec<_> = asked.into_iter().map(|(of, n)| (of % limits.len(), n)).collect();
            let charge = |&(of, n): &(usize, u32)| Charge::new(ids[of], &compiled[of], n);
            let charges: Vec<_> = asked.iter().map(charge).collect();
            let decision = take(&caches[cache], &charges);
            prop_assert_eq!(decision.left().len(), charges.len());
            if decision.is_allowed() {
                for &(of, n) in &asked {
                    let grants = grants.entry(of).or_default();
                    let available = limits[of].available(grants, now);
                    prop_assert!(u64::from(n) <= available, "{n} of {available} at {now}");
                    grants.push((now, u64::from(n)));
                }
            }
        }
        // Nothing is lost for ever: what was held here comes back to all.
        time.0.advance(SECOND + Duration::from_micros(2 * hold));
        for (of, limit) in compiled.iter().enumerate() {
            let full = take(&*store, &[Charge::new(ids[of], limit, limit.capacity() as u32)]);
            prop_assert!(full.is_allowed());
        }
    }
}

#[test]
fn a_limit_in_use_asks_the_store_seldom_and_is_used_up() {
    let time = Time::default();
    let store = memory(&time);
    let limit = bucket(10_000, SECOND, 2_000);
    let caches = [(); 4].map(|()| cached(&store, &time, CacheSettings::new()));
    let charge = [Charge::new("a", &limit, 1)];
    let (mut granted, mut asked) = (0_u64, 0_u64);
    // Four times the rate for 10 s, from all in turn.
    for step in 0..400_000_usize {
        time.0.set(Timestamp::from_micros(step as u64 * 25));
        let decision = take(&caches[step % 4], &charge);
        granted += u64::from(decision.is_allowed());
        asked += 1;
    }
    let calls: u64 = caches.iter().map(|cache| cache.counts().calls).sum();
    let bound = 2_000 + 10 * 10_000;
    assert!(granted <= bound, "{granted} of {bound}");
    assert!(granted >= bound * 99 / 100, "{granted} of {bound}");
    assert!(calls * 20 < asked, "{calls} calls for {asked} requests");
    let counts = caches[0].counts();
    assert!(counts.allowed > 0 && counts.denied > 0);
}

#[test]
fn a_window_is_used_up_and_no_block_outlives_its_segment() {
    let time = Time::default();
    let store = memory(&time);
    let limit = windows(1_000, SECOND, 1);
    let caches = [(); 2].map(|()| cached(&store, &time, CacheSettings::new().hold(SECOND)));
    let charge = [Charge::new("a", &limit, 1)];
    for window in 0..5_u64 {
        let mut granted = 0;
        for step in 0..10_000_u64 {
            time.0
                .set(Timestamp::from_micros(window * 1_000_000 + step * 100));
            granted += u64::from(take(&caches[step as usize % 2], &charge).is_allowed());
        }
        assert_eq!(granted, 1_000, "window {window}");
    }
}

#[test]
fn permits_that_are_not_used_lapse() {
    let time = Time::default();
    let store = memory(&time);
    let limit = bucket(1, 3_600 * SECOND, 1_000);
    // Of this limit nearly nothing comes in, so nearly nothing may be held.
    let held = bucket(1_000, SECOND, 1_000);
    let cache = cached(&store, &time, CacheSettings::new());
    let take = |limit, n| take(&cache, &[Charge::new("a", limit, n)]);
    for _ in 0..100 {
        assert!(take(&held, 1).is_allowed());
    }
    assert!(cache.counts().calls < 20);
    let calls = cache.counts().calls;
    assert_eq!(take(&held, 1).origin(), Origin::Cache);
    time.0.advance(100 * MILLI);
    assert_eq!(take(&held, 1).origin(), Origin::Store);
    assert_eq!(cache.counts().calls, calls + 1);
    // A changed limit has no block.
    for _ in 0..100 {
        assert_eq!(take(&limit, 1).origin(), Origin::Store);
    }
}

#[test]
fn a_denial_is_kept_until_the_store_would_allow() {
    let time = Time::default();
    let store = memory(&time);
    let limit = bucket(100, SECOND, 10);
    let settings = CacheSettings::new().pause(Duration::ZERO);
    let cache = cached(&store, &time, settings);
    let take = |n| take(&cache, &[Charge::new("a", &limit, n)]);
    // Of 10 permits, one is not taken ahead.
    assert!(take(9).is_allowed());
    let denied = take(5);
    assert_eq!(
        (denied.origin(), denied.denied_by()),
        (Origin::Store, Some(0))
    );
    assert_eq!(denied.retry(), Some(Retry::After(50 * MILLI)));
    let calls = cache.counts().calls;
    time.0.advance(40 * MILLI);
    let denied = take(5);
    assert_eq!(denied.origin(), Origin::Cache);
    let Some(Retry::After(wait)) = denied.retry() else {
        panic!("it comes back")
    };
    assert!(wait <= 10 * MILLI && wait > 9 * MILLI, "{wait:?}");
    assert_eq!(cache.counts().calls, calls);
    assert!(take(4).is_allowed(), "needs less than was denied");
    time.0.advance(50 * MILLI);
    assert!(take(5).is_allowed());
    assert_eq!(take(10).retry(), Some(Retry::Never));
}

#[test]
fn requests_for_several_limits_take_from_all_or_from_none() {
    let time = Time::default();
    let store = memory(&time);
    let (second, day) = (
        bucket(1_000, SECOND, 1_000),
        windows(150, 86_400 * SECOND, 1),
    );
    let cache = cached(&store, &time, CacheSettings::new().pause(Duration::ZERO));
    let charges = [
        Charge::new("second", &second, 1),
        Charge::new("day", &day, 1),
    ];
    let granted = (0..500)
        .filter(|_| take(&cache, &charges).is_allowed())
        .count();
    assert_eq!(granted, 150);
    let denied = take(&cache, &charges);
    assert_eq!(denied.denied_by(), Some(1));
    // All that the denied requests took from the other limit is there.
    time.0.advance(SECOND);
    let rest = (0..2_000).filter(|_| take(&cache, &charges[..1]).is_allowed());
    assert_eq!(rest.count(), 900);
}

#[test]
fn a_request_that_is_dropped_or_fails_returns_what_it_took_here() {
    let time = Time::default();
    let gate = Gate::new(time.clone());
    let cache = CachedStore::new(Arc::clone(&gate), time.clone(), CacheSettings::new());
    let limit = bucket(1_000, SECOND, 1_000);
    let charge = |n| [Charge::new("a", &limit, n)];
    let [one, many] = [charge(1), charge(700)];
    while cache.counts().allowed < 8 {
        assert!(take(&cache, &one).is_allowed());
    }
    let calls = cache.counts().calls;
    // Takes the whole block, and waits for the store.
    gate.is_open.store(false, SeqCst);
    let mut waiting = Box::pin(cache.take(&many));
    assert!(poll(waiting.as_mut()).is_pending());
    drop(waiting);
    assert_eq!(take(&cache, &one).origin(), Origin::Cache);
    gate.is_open.store(true, SeqCst);
    gate.fails.store(true, SeqCst);
    let failed = block_on(cache.take(&many));
    assert!(matches!(failed, Err(StoreError::Unavailable(_))));
    assert_eq!(take(&cache, &one).origin(), Origin::Cache);
    assert_eq!(cache.counts().calls, calls + 2);
    // The next block is taken as before.
    gate.fails.store(false, SeqCst);
    let granted = (0..800).filter(|_| take(&cache, &one).is_allowed());
    assert!(granted.count() > 700);
    assert!(cache.counts().calls < calls + 60);
}

/// Permits of a block that has lapsed do not live on in the next one.
#[test]
fn a_request_that_waits_long_returns_nothing_to_another_block() {
    let time = Time::default();
    let gate = Gate::new(time.clone());
    let settings = CacheSettings::new().max_block(3).pause(Duration::ZERO);
    let cache = CachedStore::new(Arc::clone(&gate), time.clone(), settings);
    let limit = bucket(1_000, SECOND, 1_000);
    let charge = |n| [Charge::new("a", &limit, n)];
    let one = charge(1);
    let fill = || while take(&cache, &one).origin() == Origin::Cache {};
    // The last call has taken a block of 3 permits.
    fill();
    fill();
    let left = take(&cache, &one).left()[0].available;
    // Takes what is left of it, and all that the store has, so no block.
    let all = charge(left as u32);
    gate.is_open.store(false, SeqCst);
    let mut waiting = Box::pin(cache.take(&all));
    assert!(poll(waiting.as_mut()).is_pending());
    gate.is_open.store(true, SeqCst);
    time.0.advance(100 * MILLI);
    for _ in 0..3 {
        fill();
    }
    assert_eq!(take(&cache, &one).origin(), Origin::Cache);
    drop(waiting);
    let here = (0..10).take_while(|_| take(&cache, &one).origin() == Origin::Cache);
    assert_eq!(here.count(), 2);
}

/// A full bucket, and besides it permits that were taken ahead.
#[test]
fn permits_that_are_held_while_the_store_fills_up_are_part_of_the_burst() {
    let time = Time::default();
    let store = memory(&time);
    let limit = bucket(1_000, SECOND, 1_000);
    let cache = cached(&store, &time, CacheSettings::new());
    let one = [Charge::new("a", &limit, 1)];
    while cache.counts().calls < 5 {
        assert!(take(&cache, &one).is_allowed());
    }
    time.0.advance(99 * MILLI);
    let granted = (0..2_000).filter(|_| take(&cache, &one).is_allowed());
    let granted = granted.count();
    assert!(granted > 900 && granted <= 1_000, "{granted}");
}

#[test]
fn one_request_takes_a_block_and_the_others_only_what_they_need() {
    let time = Time::default();
    let gate = Gate::new(time.clone());
    let cache = CachedStore::new(Arc::clone(&gate), time.clone(), CacheSettings::new());
    let limit = bucket(1_000, SECOND, 1_000);
    let one = [Charge::new("a", &limit, 1)];
    for _ in 0..4 {
        assert!(take(&cache, &one).is_allowed());
    }
    while take(&cache, &one).origin() == Origin::Cache {}
    while take(&cache, &one).origin() == Origin::Cache {}
    // The block is used up.
    let block = (0..1_000).take_while(|_| {
        gate.is_open.store(false, SeqCst);
        let mut probe = Box::pin(cache.take(&one));
        let is_here = poll(probe.as_mut()).is_ready();
        gate.is_open.store(true, SeqCst);
        is_here
    });
    assert!(block.count() < 1_000);
    gate.is_open.store(false, SeqCst);
    let mut waiting: Vec<_> = (0..50).map(|_| Box::pin(cache.take(&one))).collect();
    for one in &mut waiting {
        assert!(poll(one.as_mut()).is_pending());
    }
    let before = left(&gate.store, &limit);
    gate.is_open.store(true, SeqCst);
    for mut one in waiting {
        let Poll::Ready(Ok(decision)) = poll(one.as_mut()) else {
            panic!("waits")
        };
        assert!(decision.is_allowed());
    }
    let taken = before - left(&gate.store, &limit);
    assert!(
        taken >= 50 && taken < 50 + before / 4,
        "{taken} of {before}"
    );
}

fn left(store: &dyn CounterStore, limit: &CounterLimit) -> u64 {
    take(store, &[Charge::new("a", limit, 0)]).left()[0].available
}

#[test]
fn what_a_guarded_store_decides_by_itself_is_not_kept() {
    let time = Time::default();
    let gate = Gate::new(time.clone());
    let settings = GuardSettings::new(OnFailure::Allow);
    let guarded = GuardedStore::new(Arc::clone(&gate), time.clone(), settings);
    let cache = CachedStore::new(guarded, time.clone(), CacheSettings::new());
    let limit = bucket(1_000, SECOND, 1_000);
    let one = [Charge::new("a", &limit, 1)];
    while cache.counts().allowed < 8 {
        assert!(take(&cache, &one).is_allowed());
    }
    gate.fails.store(true, SeqCst);
    // First what was taken ahead, then without a limit.
    let origins: Vec<_> = (0..2_000).map(|_| take(&cache, &one).origin()).collect();
    let of_cache = origins.iter().filter(|origin| **origin == Origin::Cache);
    let here = of_cache.count();
    assert!(here > 0 && here < 1_000);
    assert!(
        origins[here..]
            .iter()
            .all(|origin| *origin == Origin::Fallback)
    );
    gate.fails.store(false, SeqCst);
    time.0.advance(SECOND);
    assert_eq!(take(&cache, &one).origin(), Origin::Store);
}

#[test]
fn a_cache_that_is_full_asks_the_store() {
    let time = Time::default();
    let store = memory(&time);
    let cache = cached(&store, &time, CacheSettings::new().max_ids(2));
    let limit = bucket(1_000, SECOND, 1_000);
    let take = |id| take(&cache, &[Charge::new(id, &limit, 1)]);
    for _ in 0..10 {
        take("a");
        take("b");
        assert_eq!(take("c").origin(), Origin::Store);
        assert_eq!(take("c").left().len(), 1);
    }
    assert!(cache.counts().allowed > 0);
    // Ids that are not in use make room.
    time.0.advance(SECOND);
    for _ in 0..10 {
        take("c");
    }
    assert_eq!(take("c").origin(), Origin::Cache);
}

#[test]
fn an_invalid_request_is_refused() {
    let time = Time::default();
    let store = memory(&time);
    let cache = cached(&store, &time, CacheSettings::new());
    let limits = [bucket(1_000, SECOND, 1_000), bucket(7, SECOND, 7)];
    let mixed = [
        Charge::new("a", &limits[0], 1),
        Charge::new("a", &limits[1], 1),
    ];
    assert_eq!(block_on(cache.take(&mixed)), Err(StoreError::MixedLimits));
    let large = bucket(1, SECOND, 1 << 33);
    let charge = Charge::new("b", &large, u32::MAX);
    assert!(take(&cache, &[charge, charge]).is_allowed());
    let left = take(&*store, &[Charge::new("b", &large, 0)]).left()[0].available;
    assert_eq!(left, (1 << 33) - 2 * u64::from(u32::MAX));
}

/// A clock whose time goes on after it was read for a number of times: its thread is stopped then.
#[derive(Clone, Default)]
struct Stopping {
    time: Time,
    /// How often it is read before, and for how long the thread is stopped.
    after: Arc<Mutex<Option<(u32, Duration)>>>,
}

impl Clock for Stopping {
    fn now(&self) -> Timestamp {
        let now = self.time.now();
        let mut after = self.after.lock().unwrap();
        match &mut *after {
            Some((1, stop)) => {
                self.time.0.advance(*stop);
                *after = None;
            }
            Some((reads, _)) => *reads -= 1,
            None => {}
        }
        now
    }
}

/// Stopped at the end of a window, wherever in the decision.
#[test]
fn a_thread_that_is_stopped_in_a_decision_grants_nothing_that_has_lapsed() {
    for reads in 1..8 {
        let clock = Stopping::default();
        let store = memory(&clock.time);
        let limit = windows(40, SECOND, 1);
        let settings = CacheSettings::new().hold(SECOND);
        let cache = CachedStore::new(Arc::clone(&store), clock.clone(), settings);
        let charge = [Charge::new("a", &limit, 1)];
        let mut last = Origin::Store;
        while last == Origin::Store {
            clock.time.0.advance(MILLI);
            last = take(&cache, &charge).origin();
        }
        // There is a block, which lapses with the window.
        clock.time.0.set(Timestamp::from_millis(999));
        *clock.after.lock().unwrap() = Some((reads, 2 * MILLI));
        let mut granted = 0;
        for _ in 0..100 {
            let is_allowed = take(&cache, &charge).is_allowed();
            // When the caller has the answer.
            let is_over = clock.time.now() >= Timestamp::from_secs(1);
            granted += u32::from(is_allowed && is_over);
        }
        // A decision here reads the clock twice. After the second time it has decided: that is one
        // request for each thread that is stopped.
        let most = if reads == 1 { 40 } else { 41 };
        assert!(
            (40..=most).contains(&granted),
            "after {reads} reads: {granted}"
        );
    }
}

/// A channel in this process. It can lose messages.
#[derive(Default)]
struct Local {
    receivers: Mutex<Vec<Receive>>,
    sent: Mutex<Vec<String>>,
}

type Receive = Box<dyn Fn(&str) -> bool + Send + Sync>;

impl Local {
    /// Delivers what was sent, and anything else.
    fn deliver(&self, others: &[&str]) {
        let sent = core::mem::take(&mut *self.sent.lock().unwrap());
        let others = others.iter().map(ToString::to_string);
        for message in sent.into_iter().chain(others) {
            self.receivers
                .lock()
                .unwrap()
                .retain(|receive| receive(&message));
        }
    }
}

impl SyncChannel for Local {
    fn publish(&self, message: &str) {
        self.sent.lock().unwrap().push(message.into());
    }
    fn subscribe(&self, receive: Receive) {
        self.receivers.lock().unwrap().push(receive);
    }
}

#[test]
fn an_instance_that_is_told_of_a_denial_asks_no_more() {
    for is_synced in [true, false] {
        let time = Time::default();
        let store = memory(&time);
        let channel = Arc::new(Local::default());
        let [one, other] = [(); 2].map(|()| {
            let cache = cached(&store, &time, CacheSettings::new().pause(Duration::ZERO));
            cache.with_channel(channel.clone() as Arc<dyn SyncChannel>)
        });
        assert!(one.syncs());
        let limit = bucket(100, SECOND, 10);
        let take = |store: &dyn CounterStore, n| {
            take(store, &[Charge::new("a", &limit, n).synced(is_synced)])
        };
        assert!(take(&other, 1).is_allowed());
        assert!(take(&one, 8).is_allowed());
        assert!(!take(&one, 5).is_allowed());
        channel.deliver(&[
            "",
            "denied",
            "denied x 1 a",
            "hello 1 1 a",
            "denied 1 1 never",
        ]);
        let denied = take(&other, 5);
        assert!(!denied.is_allowed());
        let expected = if is_synced {
            Origin::Cache
        } else {
            Origin::Store
        };
        assert_eq!(denied.origin(), expected);
        // Not longer than the store would deny.
        time.0.advance(50 * MILLI);
        assert!(take(&other, 5).is_allowed());
    }
}

/// It was told long after its last request.
#[test]
fn an_instance_that_has_been_idle_keeps_a_denial_that_it_is_told() {
    let time = Time::default();
    let store = memory(&time);
    let channel = Arc::new(Local::default());
    let [one, other] = [(); 2].map(|()| {
        let cache = cached(&store, &time, CacheSettings::new().pause(Duration::ZERO));
        cache.with_channel(channel.clone() as Arc<dyn SyncChannel>)
    });
    let limit = bucket(10, SECOND, 10);
    let take =
        |store: &dyn CounterStore, n| take(store, &[Charge::new("a", &limit, n).synced(true)]);
    assert!(take(&other, 1).is_allowed());
    time.0.advance(SECOND);
    assert!(take(&one, 9).is_allowed());
    assert!(!take(&one, 5).is_allowed());
    channel.deliver(&[]);
    let calls = other.counts().calls;
    time.0.advance(99 * MILLI);
    assert_eq!(take(&other, 5).origin(), Origin::Cache);
    assert_eq!(other.counts().calls, calls);
    time.0.advance(MILLI);
    assert_eq!(take(&other, 5).origin(), Origin::Store);
}

/// Forged and late messages deny for as long as permits are held, at most.
#[test]
fn no_message_denies_for_long() {
    let time = Time::default();
    let store = memory(&time);
    let channel = Arc::new(Local::default());
    let cache = cached(&store, &time, CacheSettings::new());
    let cache = cache.with_channel(channel.clone() as Arc<dyn SyncChannel>);
    let limit = bucket(1, SECOND, 100);
    let one = [Charge::new("a", &limit, 1)];
    assert!(take(&cache, &one).is_allowed());
    channel.deliver(&[&format!("denied {} 1 a", u64::MAX)]);
    assert!(!take(&cache, &one).is_allowed());
    time.0.advance(100 * MILLI);
    assert!(take(&cache, &one).is_allowed());
    channel.deliver(&["denied 3 1 a"]);
    assert!(take(&cache, &one).is_allowed(), "of the past");
    drop(cache);
    channel.deliver(&["denied 3 1 a"]);
    assert!(channel.receivers.lock().unwrap().is_empty());
}

#[test]
fn threads_with_a_cache_each_never_exceed_a_limit() {
    let store = Arc::new(MemoryCounters::new(10, MonotonicClock::new()));
    let limit = bucket(1, 3_600 * SECOND, 4_000);
    let day = windows(3_000, 86_400 * SECOND, 24);
    let granted = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let settings = CacheSettings::new().pause(Duration::ZERO);
                let cache = CachedStore::new(Arc::clone(&store), MonotonicClock::new(), settings);
                for _ in 0..2_000 {
                    let charges = [Charge::new("a", &limit, 1), Charge::new("b", &day, 1)];
                    let decision = block_on(cache.take(&charges)).unwrap();
                    granted.fetch_add(decision.is_allowed().into(), SeqCst);
                }
            });
        }
    });
    let granted = granted.into_inner();
    assert!(granted <= 3_000 && granted > 2_000, "{granted}");
}
