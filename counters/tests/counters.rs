//! Counter stores: limits whose state is in a store, and counters.

use core::future::Future;
use core::pin::pin;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::collections::HashMap;
use std::sync::Arc;
use std::thread;

use portcullis_core::{Clock, ManualClock, MonotonicClock, Retry, Timestamp};
use portcullis_counters::{
    Charge, Counter, CounterLimit, CounterLimitError, CounterStore, MAX_AGE, MAX_SEGMENTS,
    MAX_UNITS, MemoryCounters, QuotaState, QuotaWrite, StoreDecision, StoreError,
};
use proptest::prelude::*;

#[path = "support/limits.rs"]
mod limits;

use limits::{ByWrites, Grants, Plain, bucket, windows};

const SECOND: Duration = Duration::from_secs(1);
const MICRO: Duration = Duration::from_micros(1);

#[derive(Clone, Default)]
struct Time(Arc<ManualClock>);

impl Clock for Time {
    fn now(&self) -> Timestamp {
        self.0.now()
    }
}

fn store(time: &Time) -> MemoryCounters<Time> {
    MemoryCounters::new(1_000, time.clone())
}

/// The output of a future of a store in memory: it is ready at once.
#[track_caller]
fn block_on<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
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
        (1_u64..50, 1_u64..2_000, 1_u64..20).prop_map(|(count, period, burst)| Plain::Bucket {
            count,
            period,
            burst
        }),
        (1_u64..20, 1_u64..500, 1_u64..6).prop_map(|(count, length, segments)| Plain::Windows {
            count,
            length,
            segments
        }),
    ]
}

proptest! {
    /// Also for a store that only reads and writes.
    #[test]
    fn decisions_are_those_of_a_list_of_all_grants(
        limits in prop::collection::vec(plain(), 1..4),
        requests in prop::collection::vec(
            (0_u64..1_000, prop::collection::vec((0..3_usize, 0..5_u32), 1..4)),
            1..60,
        ),
    ) {
        let compiled: Vec<_> = limits.iter().map(|plain| plain.limit()).collect();
        let ids = ["a", "b", "c"];
        let time = Time::default();
        let direct = store(&time);
        let by_writes = ByWrites::new(store(&time), |_| {});
        let mut grants: HashMap<usize, Grants> = HashMap::new();
        let mut now = 0;
        for (step, asked) in requests {
            now += step;
            time.0.set(Timestamp::from_micros(now));
            let asked: Vec<_> = asked.into_iter().map(|(of, n)| (of % limits.len(), n)).collect();
            let charge = |&(of, n): &(usize, u32)| Charge::new(ids[of], &compiled[of], n);
            let charges: Vec<_> = asked.iter().map(charge).collect();
            let sum = |of: usize| {
                let each = asked.iter().filter(|(other, _)| *other == of);
                each.map(|(_, n)| u64::from(*n)).sum::<u64>()
            };
            let available = |grants: &HashMap<usize, Grants>, of: usize| {
                limits[of].available(grants.get(&of).unwrap_or(&Vec::new()), now)
            };
            let denied_by = asked.iter().position(|&(of, _)| {
                sum(of).max(1) > available(&grants, of)
            });
            if denied_by.is_none() {
                for &(of, n) in &asked {
                    grants.entry(of).or_default().push((now, u64::from(n)));
                }
            }
            let left: Vec<_> = asked.iter().map(|&(of, _)| available(&grants, of)).collect();
            for store in [&direct as &dyn CounterStore, &by_writes] {
                let decision = take(store, &charges);
                prop_assert_eq!(decision.denied_by(), denied_by);
                let seen: Vec<_> = decision.left().iter().map(|left| left.available).collect();
                prop_assert_eq!(&seen, &left);
            }
        }
        prop_assert!(by_writes.reads.load(SeqCst) > 0);
    }

    #[test]
    fn a_denied_request_succeeds_at_the_instant_it_was_told_and_not_before(
        limits in prop::collection::vec(plain(), 1..4),
        steps in prop::collection::vec((0_u64..700, 1_u32..8), 1..40),
    ) {
        let compiled: Vec<_> = limits.iter().map(|plain| plain.limit()).collect();
        let time = Time::default();
        let store = store(&time);
        let ids = ["a", "b", "c"];
        for (step, n) in steps {
            time.0.advance(Duration::from_micros(step));
            let charges: Vec<_> = ids
                .iter()
                .zip(&compiled)
                .map(|(id, limit)| Charge::new(id, limit, n))
                .collect();
            let decision = take(&store, &charges);
            let smallest = compiled.iter().map(CounterLimit::capacity).min().unwrap();
            let full: Vec<_> = decision.left().iter().map(|left| left.full_in).collect();
            match decision.retry() {
                None => prop_assert!(decision.is_allowed()),
                Some(Retry::Never) => prop_assert!(u64::from(n) > smallest),
                Some(Retry::After(wait)) => {
                    prop_assert!(!wait.is_zero() && u64::from(n) <= smallest);
                    prop_assert!(wait <= *full.iter().max().unwrap());
                    time.0.advance(wait.checked_sub(MICRO).unwrap());
                    prop_assert!(!take(&store, &charges).is_allowed());
                    time.0.advance(MICRO);
                    prop_assert!(take(&store, &charges).is_allowed());
                }
                other => prop_assert!(false, "{:?}", other),
            }
        }
        // When all limits are full again, nothing is left of them, and not before.
        let probes: Vec<_> =
            ids.iter().zip(&compiled).map(|(id, limit)| Charge::new(id, limit, 0)).collect();
        let full = take(&store, &probes).left().iter().map(|left| left.full_in).max().unwrap();
        let is_full = |decision: &StoreDecision| {
            decision.left().iter().all(|left| left.available == left.capacity)
        };
        let read = || block_on(store.read_quotas(&ids[..compiled.len()])).unwrap().quotas;
        if !full.is_zero() {
            time.0.advance(full.checked_sub(MICRO).unwrap());
            prop_assert!(read().iter().any(|quota| *quota != QuotaState::default()));
            time.0.advance(MICRO);
        }
        prop_assert!(is_full(&take(&store, &probes)));
        prop_assert!(read().iter().all(|quota| *quota == QuotaState::default()));
    }
}

#[test]
fn a_request_that_one_limit_denies_takes_from_none() {
    let time = Time::default();
    let (second, day) = (bucket(10, SECOND, 10), windows(5, 86_400 * SECOND, 1));
    for store in [
        &store(&time) as &dyn CounterStore,
        &ByWrites::new(store(&time), |_| {}),
    ] {
        let charges = |n| {
            [
                Charge::new("second", &second, n),
                Charge::new("day", &day, n),
            ]
        };
        assert!(take(store, &charges(3)).is_allowed());
        let denied = take(store, &charges(3));
        assert_eq!(denied.denied_by(), Some(1));
        let available: Vec<_> = denied.left().iter().map(|left| left.available).collect();
        assert_eq!(available, [7, 2]);
        let day_end = Duration::from_hours(24);
        assert_eq!(denied.retry(), Some(Retry::After(day_end)));
        assert!(take(store, &charges(2)).is_allowed());
        assert!(take(store, &charges(0)[..1]).is_allowed(), "a probe");
        assert!(!take(store, &charges(0)).is_allowed());
    }
}

#[test]
fn charges_with_one_id_are_added_up() {
    let (time, limit) = (Time::default(), bucket(10, SECOND, 10));
    let store = store(&time);
    let charge = |n| Charge::new("a", &limit, n);
    let denied = take(&store, &[charge(6), charge(5)]);
    assert_eq!(
        (denied.denied_by(), denied.retry()),
        (Some(0), Some(Retry::Never))
    );
    assert!(take(&store, &[charge(6), charge(4)]).is_allowed());
    let other = bucket(11, SECOND, 10);
    let mixed = [charge(1), Charge::new("a", &other, 1)];
    assert_eq!(block_on(store.take(&mixed)), Err(StoreError::MixedLimits));
}

#[test]
fn several_requests_are_decided_in_their_order() {
    let (time, limit) = (Time::default(), bucket(10, SECOND, 10));
    let store = store(&time);
    let charge = |n| [Charge::new("a", &limit, n)];
    let [one, two, three] = [charge(6), charge(6), charge(4)];
    let decisions = block_on(store.take_many(&[&one, &two, &three])).unwrap();
    let allowed = decisions
        .iter()
        .map(|one| one.as_ref().unwrap().is_allowed());
    assert!(allowed.eq([true, false, true]));
}

/// Another caller takes between the read and the write.
#[test]
fn a_race_ends_in_another_attempt_and_never_in_a_permit_too_many() {
    let (time, limit) = (Time::default(), bucket(1, 3_600 * SECOND, 10));
    let of_other = limit.clone();
    let left = AtomicU32::new(5);
    let racing = ByWrites::new(store(&time), move |store: &MemoryCounters<Time>| {
        if left
            .fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1))
            .is_ok()
        {
            assert!(take(store, &[Charge::new("a", &of_other, 1)]).is_allowed());
        }
    });
    let six = [Charge::new("a", &limit, 6)];
    let decision = take(&racing, &six);
    assert_eq!(
        decision.denied_by(),
        Some(0),
        "the others took 5 in the meantime"
    );
    assert_eq!(racing.reads.load(SeqCst), 6);
    assert!(take(&racing, &[Charge::new("a", &limit, 5)]).is_allowed());
    assert!(!take(&racing, &[Charge::new("a", &limit, 1)]).is_allowed());
}

#[test]
fn a_request_that_always_loses_the_race_is_told_so() {
    let (time, limit) = (Time::default(), bucket(1, 3_600 * SECOND, 100));
    let of_other = limit.clone();
    let racing = ByWrites::new(store(&time), move |store: &MemoryCounters<Time>| {
        assert!(take(store, &[Charge::new("a", &of_other, 1)]).is_allowed());
    });
    let one = [Charge::new("a", &limit, 1)];
    assert_eq!(block_on(racing.take(&one)), Err(StoreError::Contended));
    let left = take(&racing.store, &one).left()[0].available;
    assert_eq!(left, 100 - 16 - 1, "nothing was taken");
}

#[test]
fn a_write_whose_read_is_too_old_writes_nothing() {
    let (time, limit) = (Time::default(), windows(5, 10 * SECOND, 1));
    let (slow, pause) = (time.clone(), AtomicU64::new(1));
    let late = ByWrites::new(store(&time), move |_| {
        // The first attempt takes too long, the second one just not.
        let pause = pause.fetch_sub(1, SeqCst);
        slow.0
            .advance(if pause == 1 { MAX_AGE + MICRO } else { MAX_AGE });
    });
    let decision = take(&late, &[Charge::new("a", &limit, 5)]);
    assert!(decision.is_allowed());
    assert_eq!(late.reads.load(SeqCst), 2);
    assert_eq!(decision.at(), Timestamp::ZERO + MAX_AGE + MICRO);
}

#[test]
fn threads_never_take_more_than_a_limit_has() {
    let limit = bucket(1, 3_600 * SECOND, 400);
    let day = windows(300, 86_400 * SECOND, 24);
    for is_direct in [true, false] {
        let memory = MemoryCounters::new(10, MonotonicClock::new());
        let store: Box<dyn CounterStore> = if is_direct {
            Box::new(memory)
        } else {
            Box::new(ByWrites::new(memory, |_| {}))
        };
        let granted = AtomicU32::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let charges = [Charge::new("a", &limit, 1), Charge::new("b", &day, 1)];
                        match block_on(store.take(&charges)) {
                            Ok(decision) => {
                                granted.fetch_add(decision.is_allowed().into(), SeqCst);
                            }
                            Err(error) => assert_eq!(error, StoreError::Contended),
                        }
                    }
                });
            }
        });
        let rest = take(&*store, &[Charge::new("a", &limit, 0)]).left()[0].available;
        let granted = granted.into_inner();
        assert_eq!(
            u64::from(granted) + rest,
            400,
            "no permit is lost or doubled"
        );
        assert!(granted <= 300 && (!is_direct || granted == 300));
    }
}

#[test]
fn a_limit_that_changes_keeps_what_was_taken() {
    let time = Time::default();
    let store = store(&time);
    let left = |limit: &CounterLimit, n| take(&store, &[Charge::new("a", limit, n)]).left()[0];
    let hour = 3_600 * SECOND;
    assert_eq!(left(&bucket(10, hour, 10), 6).available, 4);
    // A raised burst counts at once, a lower one as well.
    assert_eq!(left(&bucket(10, hour, 20), 0).available, 14);
    assert_eq!(left(&bucket(10, hour, 5), 0).available, 0);
    // Another rate, whose units are other ones.
    assert_eq!(left(&bucket(7, SECOND, 10), 1).available, 3);
    // Another algorithm: the 7 permits count as taken now.
    let window = windows(10, hour, 1);
    assert_eq!(left(&window, 1).available, 2);
    assert_eq!(left(&windows(12, hour, 1), 0).available, 4, "raised");
    assert_eq!(left(&windows(20, hour, 4), 2).available, 10);
    assert_eq!(left(&windows(20, 2 * hour, 4), 0).available, 10);
    // Back to a bucket that can owe at most its burst.
    assert_eq!(left(&bucket(1, SECOND, 5), 0).available, 0);
}

#[test]
fn a_clock_that_runs_back_gives_nothing_back() {
    let (time, limit) = (Time::default(), windows(5, SECOND, 1));
    let store = store(&time);
    let five = [Charge::new("a", &limit, 5)];
    time.0.set(Timestamp::from_millis(1_500));
    assert!(take(&store, &five).is_allowed());
    time.0.set(Timestamp::from_millis(500));
    assert!(!take(&store, &five).is_allowed());
    assert_eq!(take(&store, &five).at(), Timestamp::from_millis(1_500));
    time.0.set(Timestamp::from_millis(2_000));
    assert!(take(&store, &five).is_allowed());
}

#[test]
fn a_counter_exists_until_its_first_expiry() {
    let time = Time::default();
    let store = store(&time);
    let add = |expiry, delta| block_on(store.increment_and_get("a", expiry, delta));
    let counter = |value, seconds| Counter::new(value, Some(Duration::from_secs(seconds)));
    assert_eq!(block_on(store.get("a")), Ok(Counter::default()));
    assert_eq!(add(10 * SECOND, 5), Ok(counter(5, 10)));
    time.0.advance(4 * SECOND);
    assert_eq!(
        add(100 * SECOND, -7),
        Ok(counter(-2, 6)),
        "keeps its expiry"
    );
    assert_eq!(add(SECOND, i64::MIN), Err(StoreError::Overflow));
    let both = block_on(store.get_many(&["b", "a"]));
    assert_eq!(both, Ok(vec![Counter::default(), counter(-2, 6)]));
    time.0.advance(6 * SECOND);
    assert_eq!(block_on(store.get("a")), Ok(Counter::default()));
    let short = add(Duration::from_nanos(1), 3).unwrap();
    assert_eq!(short.expires_in, Some(Duration::from_millis(1)));
}

#[test]
fn a_full_store_refuses_new_ids_and_forgets_no_other() {
    let time = Time::default();
    let store = MemoryCounters::new(10, time.clone());
    let limit = windows(1, 10 * SECOND, 1);
    let take = |id: &str| block_on(store.take(&[Charge::new(id, &limit, 1)]));
    let add = |id: &str| block_on(store.increment_and_get(id, 20 * SECOND, 1));
    for id in 0..5 {
        assert!(take(&id.to_string()).unwrap().is_allowed());
        assert_eq!(add(&id.to_string()).unwrap().value, 1);
    }
    for attack in 0..1_000 {
        assert_eq!(take(&format!("{attack}?")), Err(StoreError::Full));
        assert_eq!(add(&format!("{attack}?")), Err(StoreError::Full));
    }
    // None of two ids, if there is room for one.
    let two = ["0", "?"].map(|id| Charge::new(id, &limit, 0));
    assert!(block_on(store.take(&two)).is_ok(), "a probe needs no room");
    assert!(!take("0").unwrap().is_allowed());
    assert_eq!(add("0").unwrap().value, 2);
    assert_eq!(store.ids(), 10);

    time.0.advance(10 * SECOND);
    for id in 0..5 {
        assert!(
            take(&format!("{id}!")).unwrap().is_allowed(),
            "the windows have ended"
        );
    }
    assert_eq!(take("6!"), Err(StoreError::Full));
    assert_eq!(add("0").unwrap().value, 3, "still exists");
    time.0.advance(10 * SECOND);
    assert!(take("6!").unwrap().is_allowed());
    assert!(store.ids() <= 10);
}

/// Also of ids whose expiry was extended by later writes.
#[test]
fn ids_that_have_expired_take_no_memory_for_long() {
    let time = Time::default();
    let store = MemoryCounters::new(100_000, time.clone());
    let limit = bucket(1, SECOND, 5);
    for round in 0..200 {
        for id in 0..20 {
            // Ten ids come back each time, ten are new.
            let id = if id < 10 { id } else { round * 20 + id };
            let _ = take(&store, &[Charge::new(&id.to_string(), &limit, 1)]);
        }
        time.0.advance(SECOND);
    }
    assert!(store.ids() <= 60, "{} ids", store.ids());
}

#[test]
fn what_is_not_a_quota_is_an_error() {
    let (time, limit) = (Time::default(), bucket(10, SECOND, 10));
    for values in [
        vec![0],
        vec![0, 0, 0, 0],
        vec![0, 1, 0, MAX_UNITS + 1],
        vec![2, 5, 0, 1],
        vec![2, 0, 0, 1, 1],
        vec![65, 1, 0],
        vec![1, 5, 0, u64::MAX],
    ] {
        let store = store(&time);
        let before = QuotaState::default();
        let write = [QuotaWrite::new(
            "a",
            &before,
            QuotaState::from(values),
            SECOND,
        )];
        assert_eq!(block_on(store.write_quotas(time.now(), &write)), Ok(true));
        let taken = block_on(store.take(&[Charge::new("a", &limit, 1)]));
        assert_eq!(taken, Err(StoreError::Damaged));
    }
}

/// The largest numbers neither overflow nor panic.
#[test]
fn large_limits_and_late_times_are_exact() {
    let time = Time::default();
    let store = store(&time);
    let large = bucket(1, SECOND, MAX_UNITS / 1_000_000 - 1);
    let window = windows(MAX_UNITS, SECOND, 64);
    for now in [Timestamp::ZERO, Timestamp::MAX] {
        time.0.set(now);
        let charges = [
            Charge::new("a", &large, u32::MAX),
            Charge::new("b", &window, u32::MAX),
        ];
        for _ in 0..2 {
            assert!(take(&store, &charges).is_allowed());
        }
        let left = take(&store, &charges).left().to_vec();
        let taken = 2 * u64::from(u32::MAX);
        assert_eq!(left[0].available, large.capacity() - taken);
        assert_eq!(left[1].available, MAX_UNITS - taken);
    }
}

#[test]
fn a_limit_that_a_store_cannot_keep_is_refused() {
    use CounterLimitError::{Invalid, Period, TooLarge};
    let bucket = |count, period| CounterLimit::token_bucket(count, period, 1).unwrap_err();
    let nanos = Duration::from_nanos(1_500);
    assert_eq!(bucket(1, nanos), Period { segments: 1 });
    assert_eq!(bucket(1, Duration::ZERO), Period { segments: 1 });
    let windows = |segments| CounterLimit::windows(1, SECOND, segments).unwrap_err();
    assert_eq!(windows(7), Period { segments: 7 });
    assert!(matches!(windows(0), Invalid(_)));
    assert!(matches!(windows(MAX_SEGMENTS + 1), Invalid(_)));
    let day = Duration::from_hours(24);
    let large = CounterLimit::token_bucket(999_983, day, 1_000_000);
    assert_eq!(large, Err(TooLarge));
    let empty = CounterLimit::token_bucket(1, SECOND, 0);
    assert!(matches!(empty, Err(Invalid(_))));
}
