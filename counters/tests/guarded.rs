//! What is decided while a counter store is down, and when it is asked again.

use core::future::Future;
use core::pin::pin;
use core::sync::atomic::Ordering::SeqCst;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::sync::{Arc, Mutex};

use portcullis_core::{Clock, ManualClock, Retry, Timestamp};
use portcullis_counters::{
    Charge, Counter, CounterLimit, CounterStore, Fault, GuardSettings, GuardedStore,
    MemoryCounters, OnFailure, Origin, QuotaRead, QuotaState, QuotaWrite, StoreDecision,
    StoreError, StoreEvent, StoreFuture,
};

#[path = "support/gate.rs"]
mod gate;
#[allow(dead_code, reason = "tests that include this module use a part of it")]
#[path = "support/limits.rs"]
mod limits;

use gate::Gate;
use limits::{bucket, windows};

const SECOND: Duration = Duration::from_secs(1);
const MILLI: Duration = Duration::from_millis(1);

#[derive(Clone, Default)]
struct Time(Arc<ManualClock>);

impl Clock for Time {
    fn now(&self) -> Timestamp {
        self.0.now()
    }
}

/// A guarded store, what is behind it, and what it has reported.
struct Guarded {
    time: Time,
    gate: Arc<Gate<Time>>,
    store: GuardedStore<Arc<Gate<Time>>, Time>,
    events: Arc<Mutex<Vec<StoreEvent>>>,
}

impl Guarded {
    fn new(on_failure: OnFailure) -> Self {
        Self::with(GuardSettings::new(on_failure).pauses(100 * MILLI, SECOND))
    }

    fn with(settings: GuardSettings) -> Self {
        let time = Time::default();
        let gate = Gate::new(time.clone());
        let events: Arc<Mutex<Vec<StoreEvent>>> = Arc::default();
        let seen = Arc::clone(&events);
        let store = GuardedStore::new(Arc::clone(&gate), time.clone(), settings);
        let store = store.observed(move |event| seen.lock().unwrap().push(event.clone()));
        Self {
            time,
            gate,
            store,
            events,
        }
    }

    #[track_caller]
    fn take(&self, limit: &CounterLimit, n: u32) -> StoreDecision {
        block_on(self.store.take(&[Charge::new("a", limit, n)])).unwrap()
    }

    fn calls(&self) -> u64 {
        self.gate.calls.load(SeqCst)
    }

    fn fails(&self, fails: bool) {
        self.gate.fails.store(fails, SeqCst);
    }

    fn events(&self) -> Vec<StoreEvent> {
        core::mem::take(&mut *self.events.lock().unwrap())
    }
}

fn poll<T>(future: core::pin::Pin<&mut impl Future<Output = T>>) -> Poll<T> {
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

#[test]
fn a_failed_store_is_not_asked_until_a_pause_is_over_and_every_transition_is_reported() {
    let guarded = Guarded::new(OnFailure::Deny);
    let limit = bucket(10, SECOND, 10);
    assert_eq!(guarded.take(&limit, 1).origin(), Origin::Store);
    guarded.fails(true);
    assert!(!guarded.take(&limit, 1).is_allowed());
    let events = guarded.events();
    let &[
        StoreEvent::Down {
            ref error,
            mut probe_in,
        },
    ] = &events[..]
    else {
        panic!("one transition")
    };
    assert_eq!(*error, StoreError::Unavailable("refused".into()));
    let mut pauses = vec![probe_in];
    for _ in 0..6 {
        let calls = guarded.calls();
        // Not before the pause is over, and then one request.
        guarded
            .time
            .0
            .advance(probe_in.checked_sub(Duration::from_nanos(1)).unwrap());
        guarded.take(&limit, 1);
        assert_eq!(guarded.calls(), calls);
        guarded.time.0.advance(Duration::from_nanos(1));
        guarded.take(&limit, 1);
        guarded.take(&limit, 1);
        assert_eq!(guarded.calls(), calls + 1);
        let events = guarded.events();
        let [StoreEvent::StillDown { probe_in: next, .. }] = events[..] else {
            panic!("{events:?}")
        };
        probe_in = next;
        pauses.push(next);
    }
    // Each pause is a half to all of its double, up to the longest one.
    let longest = [100, 200, 400, 800, 1_000, 1_000, 1_000];
    for (pause, longest) in pauses.iter().zip(longest) {
        let longest = longest * MILLI;
        assert!(*pause <= longest && *pause >= longest / 2, "{pauses:?}");
    }
    assert!(guarded.store.is_down());
    guarded.fails(false);
    guarded.time.0.advance(probe_in);
    let probe = guarded.take(&limit, 1);
    assert!(probe.is_allowed());
    assert_eq!(probe.origin(), Origin::Store);
    assert!(!guarded.store.is_down());
    let down_for = pauses.iter().sum();
    assert_eq!(guarded.events(), [StoreEvent::Up { down_for }]);
    assert_eq!(guarded.take(&limit, 1).origin(), Origin::Store);
}

#[test]
fn the_policy_decides_while_the_store_is_down() {
    let limit = bucket(10, SECOND, 10);
    let allow = Guarded::new(OnFailure::Allow);
    allow.fails(true);
    for _ in 0..100 {
        let decision = allow.take(&limit, 10);
        assert!(decision.is_allowed() && decision.left().is_empty());
        assert_eq!(decision.origin(), Origin::Fallback);
    }
    let deny = Guarded::new(OnFailure::Deny);
    deny.fails(true);
    deny.take(&limit, 1);
    let denied = deny.take(&limit, 1);
    assert_eq!(denied.denied_by(), Some(0));
    // When the store is asked again.
    let [StoreEvent::Down { probe_in, .. }] = deny.events()[..] else {
        panic!("one transition")
    };
    assert_eq!(denied.retry(), Some(Retry::After(probe_in)));
    assert!(block_on(deny.store.take(&[])).unwrap().is_allowed());
}

#[test]
fn an_outage_can_be_told_from_a_limit_without_permits() {
    let guarded = Guarded::new(OnFailure::Fail);
    let limit = bucket(1, SECOND, 1);
    assert!(guarded.take(&limit, 1).is_allowed());
    assert_eq!(guarded.take(&limit, 1).denied_by(), Some(0));
    guarded.fails(true);
    let charge = [Charge::new("a", &limit, 1)];
    for _ in 0..2 {
        let failed = block_on(guarded.store.take(&charge));
        assert!(matches!(failed, Err(StoreError::Unavailable(_))));
        let failed = block_on(guarded.store.take_many(&[&charge])).unwrap();
        assert!(matches!(failed[..], [Err(StoreError::Unavailable(_))]));
    }
    assert!(block_on(guarded.store.take(&[])).unwrap().is_allowed());
}

#[test]
fn a_share_is_a_part_of_each_limit() {
    let guarded = Guarded::new(OnFailure::Share { part: 1, whole: 4 });
    guarded.fails(true);
    let granted = |limit: &CounterLimit| {
        let all = (0..1_000).filter(|_| guarded.take(limit, 1).is_allowed());
        all.count()
    };
    assert_eq!(granted(&bucket(40, SECOND, 100)), 25);
    guarded.time.0.advance(SECOND);
    assert_eq!(granted(&bucket(40, SECOND, 100)), 10);
    guarded.time.0.advance(10 * SECOND);
    assert_eq!(granted(&bucket(40, SECOND, 100)), 25);
    guarded.time.0.advance(100 * SECOND);
    assert_eq!(granted(&windows(43, SECOND, 1)), 10, "rounded down");
    guarded.time.0.advance(100 * SECOND);
    assert_eq!(granted(&windows(43, SECOND, 4)), 10);
    let decision = guarded.take(&windows(3, SECOND, 1), 1);
    assert!(!decision.is_allowed(), "less than one permit");
    assert_eq!(decision.origin(), Origin::Fallback);
    // From all limits, or from none.
    guarded.time.0.advance(100 * SECOND);
    let (large, small) = (bucket(40, SECOND, 100), bucket(8, SECOND, 8));
    let both = [Charge::new("a", &large, 1), Charge::new("b", &small, 1)];
    let allowed = (0..10).filter(|_| block_on(guarded.store.take(&both)).unwrap().is_allowed());
    assert_eq!(allowed.count(), 2);
    assert_eq!(granted(&large), 23);
}

/// An outage that begins and ends often gives no share twice.
#[test]
fn what_was_taken_from_a_share_stays_taken() {
    let guarded = Guarded::new(OnFailure::Share { part: 1, whole: 2 });
    let limit = bucket(1, 3_600 * SECOND, 100);
    let mut granted = 0;
    for round in 0..20 {
        guarded.fails(round % 2 == 0);
        guarded.time.0.advance(SECOND);
        granted += (0..30)
            .filter(|_| guarded.take(&limit, 1).is_allowed())
            .count();
    }
    assert_eq!(granted, 100 + 50);
}

#[test]
fn one_request_at_a_time_probes() {
    let guarded = Guarded::new(OnFailure::Deny);
    let limit = bucket(10, SECOND, 10);
    let charge = [Charge::new("a", &limit, 1)];
    guarded.fails(true);
    guarded.take(&limit, 1);
    guarded.fails(false);
    guarded.time.0.advance(SECOND);
    guarded.gate.is_open.store(false, SeqCst);
    let calls = guarded.calls();
    let mut probe = Box::pin(guarded.store.take(&charge));
    assert!(poll(probe.as_mut()).is_pending());
    // The others do not wait.
    assert!(!guarded.take(&limit, 1).is_allowed());
    assert_eq!(guarded.calls(), calls + 1);
    // A probe that is dropped leaves the next request to probe.
    drop(probe);
    guarded.gate.is_open.store(true, SeqCst);
    assert!(guarded.take(&limit, 1).is_allowed());
    assert_eq!(guarded.calls(), calls + 2);
    assert!(!guarded.store.is_down());
}

#[test]
fn a_call_from_before_the_failure_is_no_probe() {
    let guarded = Guarded::new(OnFailure::Deny);
    let limit = bucket(10, SECOND, 10);
    let charge = [Charge::new("a", &limit, 1)];
    guarded.gate.is_open.store(false, SeqCst);
    let mut calls = [(); 3].map(|()| Box::pin(guarded.store.take(&charge)));
    for call in &mut calls {
        assert!(poll(call.as_mut()).is_pending());
    }
    guarded.gate.is_open.store(true, SeqCst);
    guarded.fails(true);
    let [mut one, mut two, mut three] = calls;
    assert!(poll(one.as_mut()).is_ready() && poll(two.as_mut()).is_ready());
    assert_eq!(guarded.events().len(), 1, "one transition");
    // It answers: the store is up.
    guarded.fails(false);
    assert!(poll(three.as_mut()).is_ready());
    assert!(!guarded.store.is_down());
}

#[test]
fn an_answer_that_is_an_error_concerns_one_request() {
    let time = Time::default();
    let events: Arc<Mutex<Vec<StoreEvent>>> = Arc::default();
    let seen = Arc::clone(&events);
    let store = MemoryCounters::new(1, time.clone());
    let settings = GuardSettings::new(OnFailure::Allow).max_ids(1);
    let store = GuardedStore::new(store, time, settings)
        .observed(move |event| seen.lock().unwrap().push(event.clone()));
    let limit = bucket(10, SECOND, 10);
    let take = |id| block_on(store.take(&[Charge::new(id, &limit, 1)])).unwrap();
    assert_eq!(take("a").origin(), Origin::Store);
    assert_eq!(take("b").origin(), Origin::Fallback);
    assert_eq!(take("a").origin(), Origin::Store);
    let error = StoreError::Full;
    assert_eq!(*events.lock().unwrap(), [StoreEvent::Undecided { error }]);
    let mixed = bucket(7, SECOND, 7);
    let charges = [Charge::new("a", &limit, 1), Charge::new("a", &mixed, 1)];
    let refused = block_on(store.take(&charges));
    assert_eq!(refused, Err(StoreError::MixedLimits));
}

/// A store that answers requests for the id `bad` with an error.
struct Faulty {
    store: MemoryCounters<Time>,
    error: Mutex<StoreError>,
}

impl Faulty {
    fn guarded(error: StoreError, on_failure: OnFailure) -> (Time, GuardedStore<Arc<Self>, Time>) {
        let time = Time::default();
        let store = Arc::new(Self {
            store: MemoryCounters::new(100, time.clone()),
            error: Mutex::new(error),
        });
        let settings = GuardSettings::new(on_failure).pauses(SECOND, SECOND);
        (time.clone(), GuardedStore::new(store, time, settings))
    }
}

impl CounterStore for Faulty {
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
        Box::pin(async move {
            if charges.iter().any(|charge| charge.id == "bad") {
                return Err(self.error.lock().unwrap().clone());
            }
            self.store.take(charges).await
        })
    }
}

#[test]
fn an_error_of_one_request_opens_no_other_limit() {
    let limit = bucket(2, 3_600 * SECOND, 2);
    let (bad, good) = (
        [Charge::new("bad", &limit, 1)],
        [Charge::new("good", &limit, 1)],
    );
    for error in [
        StoreError::Contended,
        StoreError::Full,
        StoreError::Overflow,
        StoreError::Damaged,
        StoreError::MixedLimits,
        StoreError::Refused("NOPERM".into()),
    ] {
        let (_, store) = Faulty::guarded(error.clone(), OnFailure::Allow);
        let mut granted = 0;
        for _ in 0..100 {
            let alone = block_on(store.take(&bad));
            let both = block_on(store.take_many(&[&bad, &good])).unwrap();
            let answers = [alone, both[0].clone()];
            for answer in answers {
                if error.fault() == Fault::Rule {
                    assert_eq!(answer, Err(error.clone()), "it is not allowed for ever");
                } else {
                    assert_eq!(answer.unwrap().origin(), Origin::Fallback, "{error}");
                }
            }
            granted += u32::from(both[1].as_ref().unwrap().is_allowed());
            granted += u32::from(block_on(store.take(&good)).unwrap().is_allowed());
            assert!(!store.is_down(), "{error}");
        }
        assert_eq!(granted, 2, "{error}");
    }
}

/// An error of the settings may be found before the store is asked.
#[test]
fn an_error_of_a_rule_neither_begins_an_outage_nor_ends_one() {
    let limit = bucket(2, 3_600 * SECOND, 2);
    let (bad, good) = (
        [Charge::new("bad", &limit, 1)],
        [Charge::new("good", &limit, 1)],
    );
    let away = StoreError::Unavailable("away".into());
    let (time, store) = Faulty::guarded(away.clone(), OnFailure::Deny);
    assert!(!block_on(store.take(&bad)).unwrap().is_allowed());
    assert!(store.is_down());
    let refused = StoreError::Refused("CROSSSLOT".into());
    *store.store().error.lock().unwrap() = refused.clone();
    time.0.advance(SECOND);
    // It is the probe, and says nothing.
    assert_eq!(block_on(store.take(&bad)), Err(refused));
    assert!(store.is_down());
    // So the next one is a probe.
    let probe = block_on(store.take(&good)).unwrap();
    assert_eq!(probe.origin(), Origin::Store);
    assert!(!store.is_down());
    // What concerns one id is an answer.
    *store.store().error.lock().unwrap() = away;
    assert!(!block_on(store.take(&bad)).unwrap().is_allowed());
    *store.store().error.lock().unwrap() = StoreError::Damaged;
    time.0.advance(SECOND);
    assert_eq!(
        block_on(store.take(&bad)).unwrap().origin(),
        Origin::Fallback
    );
    assert!(!store.is_down());
}

#[test]
fn several_requests_are_decided_by_the_policy_too() {
    let guarded = Guarded::new(OnFailure::Share { part: 1, whole: 2 });
    let limit = bucket(10, SECOND, 10);
    let one = [Charge::new("a", &limit, 4)];
    let requests: [&[Charge<'_>]; 2] = [&one, &one];
    let origins = || {
        let decisions = block_on(guarded.store.take_many(&requests)).unwrap();
        let each = decisions.into_iter().map(Result::unwrap);
        each.map(|decision| (decision.origin(), decision.is_allowed()))
            .collect::<Vec<_>>()
    };
    assert_eq!(origins(), [(Origin::Store, true); 2]);
    guarded.fails(true);
    let of_share = [(Origin::Fallback, true), (Origin::Fallback, false)];
    assert_eq!(origins(), of_share);
    assert_eq!(guarded.events().len(), 1);
    guarded.time.0.advance(10 * MILLI);
    assert_eq!(origins(), [(Origin::Fallback, false); 2]);
}

#[test]
fn counters_and_quotas_have_no_fallback() {
    let guarded = Guarded::new(OnFailure::Allow);
    let store = &guarded.store;
    assert_eq!(
        block_on(store.increment_and_get("n", SECOND, 2))
            .unwrap()
            .value,
        2
    );
    let read = block_on(store.read_quotas(&["q"])).unwrap();
    let before = QuotaState::default();
    let write = [QuotaWrite::new(
        "q",
        &before,
        QuotaState::from(vec![0, 1, 0, 1]),
        SECOND,
    )];
    assert_eq!(block_on(store.write_quotas(read.at, &write)), Ok(true));
    guarded.fails(true);
    guarded.take(&bucket(10, SECOND, 10), 1);
    // At once, without a call.
    let down = block_on(store.get_many(&["n"]));
    assert!(matches!(down, Err(StoreError::Unavailable(why)) if why.starts_with("down")));
    guarded.time.0.advance(SECOND);
    assert_eq!(block_on(store.get("n")).unwrap().value, 0, "it has expired");
    assert!(!store.is_down());
}

#[test]
fn a_probe_finds_out_both_ends_of_an_outage_without_a_request() {
    let guarded = Guarded::new(OnFailure::Deny);
    assert!(block_on(guarded.store.probe()));
    guarded.fails(true);
    assert!(!block_on(guarded.store.probe()));
    let calls = guarded.calls();
    guarded.fails(false);
    // Not before the pause is over.
    assert!(!block_on(guarded.store.probe()));
    assert_eq!(guarded.calls(), calls);
    guarded.time.0.advance(100 * MILLI);
    assert!(block_on(guarded.store.probe()));
    let events = guarded.events();
    assert!(
        matches!(events[..], [StoreEvent::Down { .. }, StoreEvent::Up { .. }]),
        "{events:?}"
    );
    // The next request is decided by the store.
    let decision = guarded.take(&bucket(10, SECOND, 10), 1);
    assert_eq!(
        (decision.origin(), decision.is_allowed()),
        (Origin::Store, true)
    );
}
