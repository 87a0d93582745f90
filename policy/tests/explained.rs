//! An explained decision decides as a plain one does, and tells what the limits of the core tell.

use core::time::Duration;
use std::collections::BTreeSet;
use std::sync::Barrier;

use portcullis_core::limiter::Detail;
use portcullis_core::{
    AllOf, Denied, FixedWindow, Limiter, LimiterExt, Rate, Retry, SlidingWindow, Timestamp,
    TokenBucket,
};
use portcullis_policy::{Algorithm, Key, Limit, Outcome, Policy, Request, Rule};
use proptest::prelude::*;

const GET: Request<'static> = Request::new("GET", "/");

fn limit(text: &str) -> Limit {
    text.parse().unwrap()
}

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_secs(seconds)
}

fn policy(rules: impl IntoIterator<Item = Rule>) -> Policy {
    Policy::new(rules).unwrap()
}

/// No two requests may find that the same permit is the last one.
#[test]
fn threads_are_told_of_their_own_decisions() {
    const THREADS: usize = 4;
    const EACH: usize = 20_000;
    let count = (THREADS * EACH) as u64;
    let window = Limit::per(count, Duration::from_hours(1)).algorithm_of(Algorithm::FixedWindow);
    let bucket = Limit::per(2 * count, Duration::from_hours(24));
    // Alone it has a table of its own.
    for limits in [vec![window.clone()], vec![window, bucket]] {
        let rule = Rule::new("all").key(Key::tier());
        let policy = policy([limits.iter().cloned().fold(rule, Rule::limit)]);
        let start = Barrier::new(THREADS);
        let left: Vec<Vec<u64>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|_| {
                    scope.spawn(|| {
                        let decide = || loop {
                            let decision = policy.decide_explained_at(at(1), &GET.tier("t"));
                            match decision.outcome() {
                                // A thread that was paused while it claims the key's slot.
                                Outcome::Denied {
                                    denied: Denied::Crowded { .. },
                                    ..
                                } => std::thread::yield_now(),
                                Outcome::Allowed => {
                                    let details = decision.details();
                                    break details.map(|each| each.detail.available).collect();
                                }
                                other => panic!("{other:?}"),
                            }
                        };
                        start.wait();
                        (0..EACH).map(|_| decide()).collect::<Vec<_>>()
                    })
                })
                .collect();
            let left = threads.into_iter().map(|thread| thread.join().unwrap());
            left.flatten().collect()
        });
        for (limit, least) in [0, count].into_iter().enumerate().take(limits.len()) {
            let distinct: BTreeSet<u64> = left.iter().map(|each| each[limit]).collect();
            assert!(distinct.into_iter().eq(least..least + count), "{limit}");
        }
    }
}

#[test]
fn a_penalty_and_the_limits_decide_when_to_retry() {
    let policy = policy([Rule::new("login")
        .limit(limit("2/s"))
        .limit(limit("100/m"))
        .penalty(Duration::from_mins(1))]);
    let decide = |now, cost| policy.decide_explained_at(now, &GET.cost(cost));
    assert_eq!(decide(at(10), 2).retry(), None);
    let too_much = decide(at(10), 3);
    assert_eq!(
        (too_much.retry(), too_much.decided_by().unwrap().index),
        (Some(Retry::Never), 0)
    );
    let over = decide(at(10), 1);
    assert_eq!(over.retry(), Some(Retry::At(at(70))));
    let left: Vec<_> = over.details().map(|each| each.detail).collect();
    assert_eq!(left[0].retry, Retry::At(Timestamp::from_millis(10_500)));
    assert!(left[1].is_allowed(), "the minute has permits");
    assert_eq!(left[1].available, 98);
    let penalized = decide(at(11), 1);
    assert!(matches!(
        penalized.outcome(),
        Outcome::Denied { limit: None, .. }
    ));
    assert_eq!(penalized.retry(), Some(Retry::At(at(70))));
    assert!(penalized.details().all(|each| each.detail.is_allowed()));
    assert_eq!(penalized.decided_by().unwrap().index, 1, "98 of 100");
}

#[test]
fn without_a_limit_nothing_is_told() {
    let policy = policy([
        Rule::new("shadow").shadow().limit(limit("1/h")),
        Rule::new("exempt")
            .limit(limit("1/h"))
            .exempt_header("X-Client", ["admin"]),
    ]);
    let admin = GET.headers(&[("X-Client", "admin")]);
    for _ in 0..2 {
        let decision = policy.decide_explained_at(at(1), &admin);
        assert_eq!(decision.outcome(), Outcome::Exempt);
        assert_eq!((decision.details().count(), decision.retry()), (0, None));
        assert!(decision.decided_by().is_none());
    }
    let decision = policy.decide_explained_at(at(1), &GET);
    assert_eq!(decision.shadow_denied().unwrap().name(), "shadow");
    assert_eq!(decision.details().next().unwrap().detail.available, 0);
}

#[test]
fn permits_at_once_return_when_an_explained_decision_is_dropped() {
    let policy = policy([Rule::new("uploads").limit(Limit::at_once(1))]);
    let first = policy.decide_explained_at(at(1), &GET);
    let second = policy.decide_explained_at(at(1), &GET);
    assert_eq!(second.retry(), Some(Retry::OnRelease));
    drop(first);
    let third = policy.decide_explained_at(at(1), &GET).into_decision();
    assert!(third.is_allowed() && !policy.decide_at(at(1), &GET).is_allowed());
}

/// Three limiters of the core.
fn models() -> (TokenBucket, FixedWindow, SlidingWindow<5>) {
    (
        // A slot of a table counts in ticks of 1 µs.
        TokenBucket::builder(Rate::per_second(3), 4)
            .tick(Duration::from_micros(1))
            .build()
            .unwrap(),
        FixedWindow::new(9, Duration::from_secs(5)),
        SlidingWindow::new(20, Duration::from_secs(20), 5),
    )
}

fn rule() -> Rule {
    let sliding = Algorithm::SlidingWindow { segments: 5 };
    Rule::new("all")
        .limit(limit("3/s").burst(4))
        .limit(limit("9/5s").algorithm_of(Algorithm::FixedWindow))
        .limit(limit("20/20s").algorithm_of(sliding))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Granted: each limit tells what the same limiter outside of a policy tells of its take.
    /// Denied: what each of them tells of a look.
    #[test]
    fn each_limit_tells_what_the_limiter_of_the_core_tells(
        steps in proptest::collection::vec((0_u32..6, 0_u64..3_000), 1..100),
    ) {
        let (policy, plain) = (policy([rule()]), policy([rule()]));
        let (bucket, window, sliding) = models();
        let all: [&dyn Limiter; 3] = [&bucket, &window, &sliding];
        let mut now = at(1_000);
        for (cost, millis) in steps {
            now += Duration::from_millis(millis);
            let request = GET.cost(cost);
            let decision = policy.decide_explained_at(now, &request);
            let plain = plain.decide_at(now, &request);
            prop_assert_eq!(decision.outcome(), plain.outcome());
            prop_assert_eq!(decision.retry(), plain.retry());
            let models = AllOf::new((&bucket, &window, &sliding));
            let expected: Vec<Detail> = if cost > 0 && models.peek_at(now, cost).is_ok() {
                all.iter().map(|limiter| limiter.take_explained_at(now, cost).1).collect()
            } else {
                all.iter().map(|limiter| limiter.explain_at(now, cost)).collect()
            };
            let left: Vec<Detail> = decision.details().map(|each| each.detail).collect();
            prop_assert_eq!(&left, &expected);
            if let Outcome::Denied { limit, .. } = decision.outcome() {
                let decided = decision.decided_by().unwrap();
                prop_assert_eq!(Some(decided.index), limit);
                prop_assert!(!decided.detail.is_allowed());
            }
        }
    }
}
