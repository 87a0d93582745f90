//! A take that is explained tells of its own decision: what it left, of how many permits, and when
//! they return.
//!
//! Two limiters of each type run the same random trace, one with plain takes and one with explained
//! takes: the plain one is the oracle. The suites of each limiter compare it with exact arithmetic,
//! and so do the explained takes of `support/trace.rs`.

#[allow(dead_code, reason = "made for traces, too")]
#[path = "support/draws.rs"]
mod draws;
#[path = "support/limiters.rs"]
mod limiters;

use core::fmt::Debug;
use core::time::Duration;
use std::sync::{Arc, Barrier};
use std::thread;

use draws::Draws;
use limiters::{Back, Denial, ForEach, Kind, Subject};
use portcullis_core::builder::EscalationThreshold;
use portcullis_core::composition::DetailBy;
use portcullis_core::limiter::{Answer, Ask, Detail, Idle, Read, Reading, Returned};
use portcullis_core::{
    AdjustableBucket, AllOf, Clocked, Concurrency, ConcurrencyShares, CooldownWindow, Counted,
    Denied, Escalation, FixedWindow, Keyed, KeyedArray, KeyedList, Lease, Limiter, LimiterExt,
    ManualClock, Penalty, Rate, Retry, SlicedBucket, SlidingWindow, Timeless, Timestamp,
    TokenBucket, Unlimited, WarmingBucket,
};

const SECOND: Duration = Duration::from_secs(1);

const fn secs(n: u64) -> Timestamp {
    Timestamp::from_secs(n)
}

/// Compares what a take told with what `oracle` answers after it.
fn tells(detail: Detail, oracle: &dyn Limiter, now: Timestamp, decision: Result<(), Denied>) {
    let available = oracle.available_at(now);
    let capacity = oracle.capacity();
    assert_eq!(detail.now, now);
    assert_eq!(detail.decision, decision);
    assert_eq!(detail.available, available, "{detail:?}");
    assert_eq!(detail.capacity, capacity, "{detail:?}");
    let retry = match decision {
        Ok(()) => Retry::At(now),
        Err(denied) => oracle.retry(denied),
    };
    assert_eq!(detail.retry, retry, "{detail:?}");
    let is_full = |at: Timestamp| oracle.available_at(at) >= capacity;
    match detail.full_again {
        Retry::At(at) if at == now => assert!(is_full(now), "{detail:?}"),
        Retry::At(at) => {
            let before = Timestamp::from_nanos(at.as_nanos() - 1);
            assert!(at > now && is_full(at) && !is_full(before), "{detail:?}");
        }
        Retry::OnRelease => assert!(!is_full(now), "{detail:?}"),
        // A penalty over permits that are held.
        Retry::OnReleaseFrom(at) => {
            assert!(at > now && !is_full(now) && !is_full(at), "{detail:?}");
        }
        _ => panic!("{detail:?}"),
    }
}

/// Runs the same trace on two limiters of the same kind, and compares what the takes of `explained`
/// tell with the answers of `plain`. Returns the numbers of grants and denials.
fn follows(explained: &dyn Subject, plain: &dyn Subject, releases: bool, seed: u64) -> (u32, u32) {
    let mut draws = Draws::Seeded {
        state: seed,
        steps: 60,
    };
    let (mut now, mut held) = (secs(1_000), Vec::new());
    let (mut granted, mut denied) = (0, 0);
    // The address of a key is printed, and depends on the seed of its table.
    let prints_state = format!("{explained:?}") == format!("{plain:?}");
    while draws.another_step() {
        let some = draws.within(0, 6) as u32;
        let n = draws.one_of(&[1, 1, some, some, 30]);
        let look = explained.explain_at(now, n);
        tells(look, plain, now, plain.peek_at(now, n));
        let (taken, detail) = explained.take_explained_at(now, n);
        let expected = plain.take_at(now, n);
        assert_eq!(taken, expected, "{n} at {now:?}: {explained:?}");
        if prints_state {
            assert_eq!(format!("{explained:?}"), format!("{plain:?}"));
        }
        tells(
            detail,
            plain,
            now,
            taken.as_ref().map(|_| ()).map_err(|denied| *denied),
        );
        if taken.is_ok() {
            granted += 1;
            held.push(n);
        } else {
            denied += 1;
        }
        if releases && draws.once_in(3) && !held.is_empty() {
            let n = held.swap_remove(draws.below(held.len() as u64) as usize);
            explained.release(n);
            plain.release(n);
        }
        let step = draws.magnitude(1_000_000_000);
        now = match draws.below(8) {
            0 => Timestamp::from_nanos(now.as_nanos() - step / 4),
            1..=3 => now.saturating_add(Duration::from_nanos(step)),
            4 => now.saturating_add(Duration::from_nanos(draws.within(0, 3_000_000_000))),
            _ => now,
        };
    }
    (granted, denied)
}

fn follow_many<L: Subject>(releases: bool, new: impl Fn() -> L) {
    let (mut granted, mut denied) = (0, 0);
    for seed in 0..if cfg!(debug_assertions) { 100 } else { 1_000 } {
        let counts = follows(&new(), &new(), releases, seed);
        granted += counts.0;
        denied += counts.1;
    }
    assert!(granted > 500, "{granted} and {denied}");
    assert!(
        denied > 500 || new().capacity() == u64::MAX,
        "{granted} and {denied}"
    );
}

#[test]
fn each_limiter_tells_what_its_decision_left() {
    struct Follow(usize);
    impl ForEach for Follow {
        fn each<L: Subject>(&mut self, kind: Kind, new: impl Fn() -> L) {
            println!("{}", kind.name);
            follow_many(kind.back == Back::by_release, new);
            self.0 += 1;
        }
    }
    let mut follow = Follow(0);
    limiters::for_each::<u64>(8, SECOND, &mut follow);
    limiters::for_each::<u32>(8, SECOND, &mut follow);
    assert_eq!(follow.0, 2 * limiters::all::<u64>(8, SECOND).len());
}

fn bucket() -> TokenBucket {
    TokenBucket::new(Rate::per_second(8), 8)
}

#[test]
fn each_wrapper_tells_what_its_decision_left() {
    let wait = Duration::from_millis(300);
    follow_many(false, || Arc::new(bucket()));
    follow_many(false, || -> Box<dyn Subject> { Box::new(bucket()) });
    follow_many(true, || Counted::new(Concurrency::new(8)));
    follow_many(false, || Penalty::new(bucket(), wait));
    follow_many(false, || {
        let settings = Penalty::builder(wait).after(3, SECOND).build().unwrap();
        settings.around(FixedWindow::new(8, SECOND))
    });
    follow_many(true, || Penalty::new(Concurrency::new(8), wait));
    follow_many(false, || {
        let high = EscalationThreshold {
            used: 6,
            hold: wait,
            decision: "high",
        };
        Escalation::new(bucket(), [high])
    });
    follow_many(false, || {
        Counted::new(Penalty::new(SlidingWindow::<4>::new(8, SECOND, 4), wait))
    });
    follow_many(false, || {
        SlidingWindow::<4>::builder(8, SECOND, 3)
            .strict()
            .build()
            .unwrap()
    });
    follow_many(false, || {
        FixedWindow::builder(8, SECOND)
            .started_by_first_request()
            .build()
            .unwrap()
    });
    follow_many(false, || CooldownWindow::new(8, SECOND, None));
}

#[test]
fn each_table_tells_what_a_decision_left_to_its_key() {
    follow_many(false, || {
        Arc::new(Keyed::for_keys(bucket(), 8)).owned_key("alice")
    });
    follow_many(false, || {
        Arc::new(Keyed::for_keys(FixedWindow::new(8, SECOND), 8)).owned_key("alice")
    });
    follow_many(true, || {
        Arc::new(Keyed::for_keys(Concurrency::new(8), 8)).owned_key("alice")
    });
    follow_many(false, || {
        let limit = || SlidingWindow::<8>::new(8, SECOND, 8);
        Arc::new(KeyedArray::for_keys(limit, 8)).owned_key("alice")
    });
    follow_many(false, || {
        let limit = || Counted::new(AdjustableBucket::new(Rate::per_second(8), 8));
        Arc::new(KeyedArray::for_keys(limit, 8)).owned_key("alice")
    });
}

#[test]
fn a_key_without_a_slot_is_told_that_it_has_no_permits() {
    let lines = [const { portcullis_core::keyed::Line::new() }; 1];
    let rules = portcullis_core::keyed::ConcurrencyRules::new(3);
    let table = Keyed::new(rules, lines, portcullis_core::keyed::Seed::new());
    let mut leases = Vec::new();
    let crowded = (0..).find_map(|key| {
        let (lease, detail) = table.key(&key).try_acquire_explained_at(secs(0), 1);
        match lease {
            Ok(lease) => {
                assert_eq!((detail.available, detail.capacity), (2, 3));
                leases.push(lease);
                None
            }
            Err(denied) => Some((key, denied, detail)),
        }
    });
    let (key, denied, detail) = crowded.unwrap();
    assert!(matches!(denied, Denied::Crowded { .. }), "{denied:?}");
    assert_eq!(detail.decision, Err(denied));
    assert_eq!((detail.available, detail.capacity), (0, 3));
    assert_eq!(detail.retry, denied.retry(&*table.key(&key)));
    assert_eq!(table.key(&key).explain_at(secs(0), 1), detail);
}

#[test]
fn a_limiter_of_ones_own_is_asked_after_the_decision() {
    #[derive(Debug)]
    struct Own(TokenBucket);
    impl Limiter for Own {
        fn decide(&self, ask: Ask<'_>) -> Answer {
            let (now, n) = (ask.now(), ask.permits());
            if ask.is_look() {
                return ask.looked(self.available_at(now), || u64::MAX);
            }
            self.0.take_at(now, n).into()
        }

        fn give_back(&self, _: portcullis_core::limiter::Back<'_>) -> Returned {
            Returned::NOTHING
        }

        fn read(&self, read: Read<'_>) -> Reading {
            let now = read.now();
            Reading {
                available: self.0.available_at(now),
                capacity: self.0.burst(),
                idle: Idle::InUse,
                held: 0,
            }
        }

        fn retry(&self, denied: Denied) -> Retry {
            Limiter::retry(&self.0, denied)
        }
    }
    follow_many(false, || Own(bucket()));
    assert_eq!(Own(bucket()).explain_at(secs(0), 1).time_to_fill, None);
}

#[test]
fn a_request_for_more_than_the_capacity_is_told_the_capacity() {
    for (kind, limiter) in limiters::limited::<u64>(8, SECOND) {
        let (taken, detail) = limiter.take_explained_at(secs(9), 9);
        let denied = taken.unwrap_err();
        assert!(
            matches!(denied, Denied::ExceedsCapacity { .. }),
            "{kind:?}: {denied:?}"
        );
        assert_eq!(detail.decision, Err(denied));
        assert_eq!((detail.available, detail.capacity), (8, 8), "{kind:?}");
        assert_eq!(detail.retry, Retry::Never, "{kind:?}");
    }
}

#[test]
fn the_capacity_that_is_taken_at_once_comes_back_within_the_time_to_fill() {
    for (kind, limiter) in limiters::limited::<u64>(8, SECOND) {
        let now = secs(9);
        let (taken, detail) = limiter.take_explained_at(now, 8);
        assert!(taken.is_ok() && detail.available == 0, "{kind:?}");
        match (kind.back, detail.full_again) {
            (Back::by_time, Retry::At(at)) => assert_eq!(
                detail.time_to_fill,
                Some(at.saturating_since(now)),
                "{kind:?}: in a window that begins now"
            ),
            (Back::by_release, Retry::OnRelease) => assert_eq!(detail.time_to_fill, None),
            _ => panic!("{kind:?}: {detail:?}"),
        }
    }
}

#[test]
fn a_capacity_that_no_request_can_name_is_full_when_all_of_it_is_back() {
    const MANY: u64 = 10_000_000_000;
    let now = secs(60);
    let window = FixedWindow::new(MANY, SECOND * 60);
    let sliding = SlidingWindow::<6>::new(MANY, SECOND * 60, 6);
    let cooldown = CooldownWindow::new(MANY, SECOND * 60, None);
    let limiters: [&dyn Limiter; 3] = [&window, &sliding, &cooldown];
    for limiter in limiters {
        let (taken, detail) = limiter.take_explained_at(now, 5);
        assert!(taken.is_ok());
        assert_eq!((detail.available, detail.capacity), (MANY - 5, MANY));
        assert_eq!(detail.full_again, Retry::At(secs(120)));
        assert_eq!(detail.time_to_fill, Some(SECOND * 60));
    }
    let bucket = TokenBucket::new(Rate::per_second(1_000_000_000), MANY);
    let (_, detail) = bucket.take_explained_at(now, u32::MAX);
    assert_eq!(detail.available, MANY - u64::from(u32::MAX));
    let full_again = now.saturating_add(Duration::from_nanos(u32::MAX.into()));
    assert_eq!(detail.full_again, Retry::At(full_again));
    assert_eq!(detail.time_to_fill, Some(SECOND * 10));
}

#[test]
fn a_bucket_tells_of_debts_and_of_rates_that_bring_nothing() {
    let owing = TokenBucket::builder(Rate::per_second(1), 5)
        .debt(5)
        .build()
        .unwrap();
    owing.force_at(secs(9), 8).unwrap();
    let (denied, detail) = owing.take_explained_at(secs(9), 1);
    assert!(denied.is_err());
    assert_eq!((detail.available, detail.retry), (0, Retry::At(secs(13))));
    assert_eq!(detail.full_again, Retry::At(secs(17)));

    let never = TokenBucket::new(Rate::new(0, SECOND), 5);
    let (_, detail) = never.take_explained_at(secs(9), 1);
    assert_eq!(
        (detail.full_again, detail.time_to_fill),
        (Retry::Never, None)
    );

    let unlimited = TokenBucket::new(Rate::UNLIMITED, 5);
    for limiter in [&unlimited as &dyn Limiter, &Unlimited] {
        let (_, detail) = limiter.take_explained_at(secs(9), 5);
        assert_eq!((detail.available, detail.time_to_fill), (u64::MAX, None));
        assert_eq!(detail.full_again, Retry::At(secs(9)));
    }

    let cold = WarmingBucket::new(Rate::per_second(10), 2, SECOND * 10);
    let (_, detail) = cold.take_explained_at(secs(9), 2);
    let Retry::At(at) = detail.full_again else {
        panic!("{detail:?}")
    };
    assert_eq!(detail.time_to_fill, Some(at.saturating_since(secs(9))));
}

#[test]
fn the_capacity_of_a_sliced_bucket_excludes_its_slices() {
    let bucket = SlicedBucket::new(Rate::per_second(1), 10);
    let slice = bucket.slice_at(secs(9), 4).unwrap();
    let (_, detail) = bucket.take_explained_at(secs(9), 4);
    assert_eq!(detail.available, bucket.available_at(secs(9)));
    assert_eq!(detail.capacity, 6);
    let (_, detail) = bucket.take_explained_at(secs(9), 7);
    assert_eq!(
        detail.retry,
        Retry::OnRelease,
        "more than there is beside the slice"
    );
    let (_, detail) = slice.take_explained_at(secs(9), 1);
    assert_eq!(detail.available, slice.available_at(secs(9)));
}

#[test]
fn a_share_tells_of_its_own_permits() {
    let shares = ConcurrencyShares::new(10, [4, 3]);
    let (_, detail) = shares.share(0).take_explained_at(secs(0), 6);
    assert_eq!((detail.available, detail.capacity), (1, 7));
    let (_, detail) = shares.share(1).take_explained_at(secs(0), 3);
    assert_eq!((detail.available, detail.capacity), (1, 6));
    assert_eq!(detail.full_again, Retry::OnRelease);
    let (_, detail) = shares.share(0).take_explained_at(secs(0), 2);
    assert_eq!((detail.available, detail.retry), (1, Retry::OnRelease));

    let lending = ConcurrencyShares::builder(10, [4, 3])
        .lend_after(SECOND * 5)
        .build()
        .unwrap();
    drop(lending.share(0).try_acquire_at(secs(20), 1));
    let detail = lending.share(1).explain_at(secs(20), 1);
    assert_eq!(
        detail.full_again,
        Retry::At(secs(30)),
        "the first share lends"
    );
}

#[test]
fn a_clocked_take_tells_the_time_of_the_clock() {
    let limit = Clocked::new(bucket(), ManualClock::new());
    limit.clock().advance(SECOND);
    let (lease, detail) = limit.try_acquire_explained(3);
    assert_eq!(lease.unwrap().permits(), 3);
    assert_eq!((detail.now, detail.available), (secs(1), 5));
    let table = Clocked::new(KeyedArray::for_keys(|| Concurrency::new(3), 8), Timeless);
    let (lease, detail) = table.key("alice").try_acquire_explained(2);
    assert_eq!((detail.available, detail.capacity), (1, 3));
    drop(lease);
    assert_eq!(table.key("alice").available(), 3);
}

#[test]
fn a_lease_of_an_explained_take_releases_and_refunds() {
    let limit = Arc::new(Concurrency::new(3));
    let (lease, detail) = Lease::try_acquire_explained_at(Arc::clone(&limit), secs(0), 2);
    assert_eq!(detail.available, 1);
    drop(lease);
    assert_eq!(limit.available(), 3);
    let bucket = bucket();
    let (lease, _) = bucket.try_acquire_explained_at(secs(1), 5);
    assert_eq!(lease.unwrap().refund_at(secs(1), 5), Ok(5));
    assert_eq!(bucket.available_at(secs(1)), 8);
}

// Several limits.

fn all() -> AllOf<(TokenBucket, FixedWindow, Concurrency)> {
    AllOf::new((bucket(), FixedWindow::new(9, SECOND), Concurrency::new(20)))
}

#[test]
fn a_composition_tells_of_the_limit_that_denies_or_has_the_fewest_permits_left() {
    let all = all();
    let (lease, told) = all.try_acquire_explained_at(secs(9), 3);
    assert!(lease.is_ok());
    assert_eq!(
        (told.index, told.detail.available, told.detail.capacity),
        (0, 5, 8)
    );
    let half = Timestamp::from_millis(9_500);
    let (lease, told) = all.try_acquire_explained_at(half, 6);
    assert_eq!(lease.map(|lease| lease.permits()), Ok(6));
    // The bucket has gained 4 permits, the window none.
    assert_eq!((told.index, told.detail.available), (1, 0));
    assert_eq!(told.detail.full_again, Retry::At(secs(10)));
    let (denied, told) = all.try_acquire_explained_at(half, 1);
    assert_eq!(denied.unwrap_err().index, 1);
    assert_eq!((told.index, told.detail.available), (1, 0));
    assert_eq!(told.detail.retry, Retry::At(secs(10)));
    let (denied, told) = all.try_acquire_explained_at(half, 21);
    assert_eq!(denied.unwrap_err().index, 0);
    assert_eq!(
        (told.index, told.detail.capacity, told.detail.retry),
        (0, 8, Retry::Never)
    );
}

#[test]
fn a_composition_as_one_limiter_tells_of_the_decision_of_all() {
    follow_many(true, || {
        AllOf::new((Concurrency::new(8), Concurrency::new(8)))
    });

    let all = all();
    let (taken, detail) = LimiterExt::take_explained_at(&all, secs(9), 8);
    assert!(taken.is_ok() && detail.available == 0);
    let (denied, detail) = LimiterExt::take_explained_at(&all, secs(9), 2);
    assert_eq!(detail.decision, Err(denied.unwrap_err()));
    // The bucket denies, and has 2 permits before the window has.
    assert_eq!(detail.capacity, 8);
    assert_eq!(detail.retry, Retry::At(secs(10)), "all limits say when");
    assert_eq!(LimiterExt::explain_at(&all, secs(9), 2), detail);
}

#[test]
fn a_limit_that_is_named_twice_tells_of_half_its_permits() {
    let limit = Concurrency::new(9);
    let both = AllOf::new((&limit, &limit));
    let (lease, told) = both.try_acquire_explained_at(secs(0), 2);
    assert!(lease.is_ok());
    assert_eq!(
        (told.index, told.detail.available, told.detail.capacity),
        (0, 2, 4)
    );
    let (denied, told) = both.try_acquire_explained_at(secs(0), 3);
    assert!(denied.is_err());
    assert_eq!(
        (told.detail.available, told.detail.retry),
        (2, Retry::OnRelease)
    );
    let (denied, told) = both.try_acquire_explained_at(secs(0), u32::MAX);
    assert_eq!(told.detail.decision, Err(denied.unwrap_err().denied));
    assert_eq!(told.detail.retry, Retry::Never);
}

#[test]
fn a_probe_of_a_composition_is_told_what_is_available() {
    let all = all();
    let (probe, told) = all.try_acquire_explained_at(secs(9), 0);
    assert_eq!(probe.map(|lease| lease.permits()), Ok(0));
    assert_eq!((told.index, told.detail.available), (0, 8));
    drop(all.try_acquire_at(secs(9), 8));
    let (probe, told) = all.try_acquire_explained_at(secs(9), 0);
    assert!(probe.is_err());
    assert_eq!((told.index, told.detail.available), (0, 0));

    let none: AllOf<[Concurrency; 0]> = AllOf::new([]);
    let (lease, told) = none.try_acquire_explained_at(secs(9), 5);
    assert!(lease.is_ok());
    assert_eq!((told.index, told.detail.available), (0, u64::MAX));
}

#[test]
fn compositions_within_a_composition_tell_of_their_least() {
    let inner = AllOf::new((Concurrency::new(9), Concurrency::new(5)));
    let counted = Counted::new(inner);
    let outer = AllOf::new((Concurrency::new(7), &counted));
    let (lease, told) = outer.try_acquire_explained_at(secs(0), 2);
    assert_eq!(
        (told.index, told.detail.available, told.detail.capacity),
        (1, 3, 5)
    );
    assert_eq!(counted.counts().granted.requests, 1);
    let (denied, told) = outer.try_acquire_explained_at(secs(0), 4);
    assert_eq!(denied.unwrap_err().index, 1);
    assert_eq!(
        (told.detail.available, told.detail.retry),
        (3, Retry::OnRelease)
    );
    assert_eq!(counted.counts().denied.requests, 1);
    drop(lease);
    assert_eq!(outer.available_at(secs(0)), 5);
}

/// Around a limiter, without what it can do beyond the required methods.
#[derive(Debug)]
struct Plain<L>(L);

impl<L: Limiter> Limiter for Plain<L> {
    fn decide(&self, ask: Ask<'_>) -> Answer {
        let (now, n) = (ask.now(), ask.permits());
        if ask.is_look() {
            return Answer::from(self.0.peek_at(now, n));
        }
        self.0.take_at(now, n).into()
    }

    fn give_back(&self, back: portcullis_core::limiter::Back<'_>) -> Returned {
        self.0.give_back(back)
    }

    fn read(&self, read: Read<'_>) -> Reading {
        self.0.read(read)
    }

    fn retry(&self, denied: Denied) -> Retry {
        self.0.retry(denied)
    }
}

/// The limit of 40 comes first, and denies as many again as were taken.
#[test]
fn a_grant_of_a_composition_within_a_composition_tells_of_the_fewest_permits_left() {
    let minute = Duration::from_secs(60);
    let window = || FixedWindow::new(47, minute);
    let inner = || AllOf::new((FixedWindow::new(40, minute), FixedWindow::new(30, minute)));
    let array = KeyedArray::for_keys(inner, 10);
    let list = KeyedList::for_keys(
        (FixedWindow::new(40, minute), FixedWindow::new(30, minute)),
        10,
    );
    let threshold = || EscalationThreshold {
        used: 6,
        hold: SECOND,
        decision: "high",
    };
    let compositions: [(&str, Box<dyn Limiter>); 8] = [
        ("plain", Box::new(AllOf::new((window(), inner())))),
        (
            "counted",
            Box::new(AllOf::new((window(), Counted::new(inner())))),
        ),
        (
            "escalation",
            Box::new(AllOf::new((
                window(),
                Escalation::new(inner(), [threshold()]),
            ))),
        ),
        (
            "penalty",
            Box::new(AllOf::new((window(), Penalty::new(inner(), minute)))),
        ),
        (
            "array",
            Box::new(AllOf::new((window(), array.key("alice")))),
        ),
        ("list", Box::new(AllOf::new((window(), list.key("alice"))))),
        (
            "twice",
            Box::new(AllOf::new((window(), AllOf::new((window(), inner()))))),
        ),
        (
            "one of ones own",
            Box::new(AllOf::new((window(), Plain(inner())))),
        ),
    ];
    for (name, limits) in &compositions {
        let (taken, detail) = limits.take_explained_at(secs(0), 20);
        assert!(taken.is_ok(), "{name}");
        assert_eq!((detail.available, detail.capacity), (10, 30), "{name}");
        let (taken, detail) = limits.take_explained_at(secs(0), 10);
        assert!(taken.is_ok(), "{name}");
        assert_eq!((detail.available, detail.capacity), (0, 30), "{name}");
        assert_eq!(detail.retry, Retry::At(secs(0)), "{name}");
    }
    let plain = Plain(AllOf::new((Concurrency::new(40), Concurrency::new(30))));
    let (_, detail) = plain.take_explained_at(secs(0), 30);
    assert_eq!(
        (detail.available, detail.capacity),
        (0, 30),
        "asked after its take"
    );
}

#[test]
fn more_limits_than_a_stack_frame_holds_tell_of_the_least() {
    let limits: Vec<_> = (0..11).map(|i| Concurrency::new(20 - i)).collect();
    let all = AllOf::new(&limits[..]);
    let (lease, told) = all.try_acquire_explained_at(secs(0), 3);
    assert_eq!(
        (told.index, told.detail.available, told.detail.capacity),
        (10, 7, 10)
    );
    drop(lease);
    let (lease, told) = AllOf::new(&limits[..]).into_lease_explained_at(secs(0), 10);
    assert_eq!((told.index, told.detail.available), (10, 0));
    drop(lease);
    let limits: [Concurrency; 3] = [5, 4, 4].map(Concurrency::new);
    let DetailBy { index, .. } = AllOf::new(limits).try_acquire_explained_at(secs(0), 1).1;
    assert_eq!(index, 1, "the first of those with the fewest");
}

#[test]
fn the_limit_that_denies_only_the_take_is_told_of() {
    /// Looks as if it granted, and denies.
    #[derive(Debug)]
    struct Overtaken(Concurrency);
    impl Limiter for Overtaken {
        fn decide(&self, ask: Ask<'_>) -> Answer {
            let (now, permits) = (ask.now(), ask.permits());
            if ask.is_look() {
                return ask.looked(self.available_at(now), || u64::MAX);
            }
            Answer::Denied(Denied::Exhausted { now, permits })
        }

        fn give_back(&self, _: portcullis_core::limiter::Back<'_>) -> Returned {
            Returned::NOTHING
        }

        fn read(&self, read: Read<'_>) -> Reading {
            self.0.read(read)
        }

        fn retry(&self, denied: Denied) -> Retry {
            Limiter::retry(&self.0, denied)
        }
    }
    let all = AllOf::new((Concurrency::new(2), Overtaken(Concurrency::new(5))));
    let (denied, told) = all.try_acquire_explained_at(secs(0), 1);
    assert_eq!(denied.unwrap_err().index, 1);
    assert_eq!((told.index, told.detail.available), (1, 5));
    assert!(!told.detail.is_allowed());
    assert_eq!(all.limits().0.available(), 2, "refunded");
}

// Threads.

/// What each of `takes` grants told, from two threads at the same instant.
fn remainders(limiter: &(dyn Limiter + Sync), takes: u32) -> Vec<u64> {
    let start = Barrier::new(2);
    let take = || {
        start.wait();
        (0..takes / 2).map(|_| {
            let (taken, detail) = limiter.take_explained_at(secs(9), 1);
            assert!(taken.is_ok());
            detail.available
        })
    };
    let mut told: Vec<u64> = thread::scope(|scope| {
        let other = scope.spawn(|| take().collect::<Vec<_>>());
        let own: Vec<_> = take().collect();
        own.into_iter().chain(other.join().unwrap()).collect()
    });
    told.sort_unstable();
    told
}

#[test]
fn no_two_grants_of_concurrent_threads_tell_the_same_remainder() {
    const TAKES: u32 = 50_000;
    let differs = |limiter: &(dyn Limiter + Sync)| {
        let remainders = remainders(limiter, TAKES);
        (0..TAKES).find(|&at| remainders[at as usize] != u64::from(at))
    };
    for (kind, limiter) in limiters::limited::<u64>(TAKES.into(), SECOND) {
        // A limiter in stripes is asked after the grant: other grants may come in between.
        if !kind.name.starts_with("striped_") {
            assert_eq!(differs(&*limiter), None, "{kind:?}");
        }
        assert_eq!(
            kind.denial == Denial::acts,
            kind.name.starts_with("cooldown_window")
        );
    }
    let table = Keyed::for_keys(
        TokenBucket::new(Rate::per_second(1), 1 + u64::from(TAKES)),
        8,
    );
    // While a thread claims the slot of a new key, others find no room for the key.
    assert!(table.key("alice").try_acquire_at(secs(9), 1).is_ok());
    assert_eq!(differs(&table.key("alice")), None);
    let all = AllOf::new((Concurrency::new(99_999), Concurrency::new(TAKES)));
    assert_eq!(differs(&all), None);
}

fn _is_dyn_compatible(limiter: &dyn Limiter) -> impl Debug {
    limiter.take_explained_at(Timestamp::ZERO, 1)
}

/// A concurrency limit that panics when it is asked, but not in a take.
struct PanicsWhenAsked(Concurrency);

impl Limiter for PanicsWhenAsked {
    fn decide(&self, ask: Ask<'_>) -> Answer {
        let (now, n) = (ask.now(), ask.permits());
        if ask.is_look() {
            return ask.looked(self.available_at(now), || u64::MAX);
        }
        self.0.take_at(now, n).into()
    }
    fn give_back(&self, back: portcullis_core::limiter::Back<'_>) -> Returned {
        match back {
            portcullis_core::limiter::Back::Refund {
                permits, receipt, ..
            } => {
                self.release(permits);
                receipt.refunded(0).into()
            }
            back => self.0.give_back(back),
        }
    }
    fn read(&self, _: Read<'_>) -> Reading {
        panic!("asked")
    }
    fn retry(&self, denied: Denied) -> Retry {
        self.0.retry(denied)
    }
}

#[test]
fn a_limiter_that_panics_after_a_take_has_its_permits_back() {
    let panics =
        |take: &dyn Fn()| std::panic::catch_unwind(core::panic::AssertUnwindSafe(take)).is_err();
    let limit = PanicsWhenAsked(Concurrency::new(3));
    let now = secs(1);
    assert!(panics(&|| drop(limit.try_acquire_explained_at(now, 2))));
    assert_eq!(limit.0.available(), 3);
    let both = AllOf::new((&limit, Concurrency::new(5)));
    assert!(panics(&|| drop(both.try_acquire_explained_at(now, 2))));
    assert_eq!(limit.0.available(), 3);
}
