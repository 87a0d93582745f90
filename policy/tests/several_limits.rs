//! A rule with several limits decides as one policy for each of them would: all or nothing, and the
//! first limit that denies is named. Whether the limits share a table makes no difference. So do
//! several rules that limit a request together.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;

use portcullis_core::{Denied, Retry, Timestamp};
use portcullis_policy::{
    Algorithm, Conditions, Considered, Decision, Key, Limit, OnMissing, Outcome, PathError, Policy,
    Request, Rule, Statistics, Threshold,
};
use proptest::prelude::*;

const MINUTE: Duration = Duration::from_mins(1);
const GET: Request<'static> = Request::new("GET", "/");

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_secs(seconds)
}

/// A policy with one rule, and requests that may hold an estimate.
fn policy(limits: &[Limit]) -> Policy {
    let rule = Rule::new("all").key(Key::path()).keys(8).hold(MINUTE);
    Policy::new([limits.iter().cloned().fold(rule, Rule::limit)]).unwrap()
}

fn bucket(count: u64) -> Limit {
    Limit::per(count, MINUTE)
}

fn window(count: u64) -> Limit {
    bucket(count).algorithm_of(Algorithm::FixedWindow)
}

fn from_request(count: u64) -> Limit {
    bucket(count).algorithm_of(Algorithm::WindowFromRequest)
}

fn sliding(count: u64) -> Limit {
    bucket(count).algorithm_of(Algorithm::SlidingWindow { segments: 6 })
}

fn left(policy: &Policy, now: Timestamp, request: &Request<'_>) -> Vec<u64> {
    let explained = policy.explain_at(now, request).unwrap();
    let Considered::Limits { details, .. } = &explained[0].considered else {
        panic!("the rule has limits")
    };
    details.iter().map(|detail| detail.available).collect()
}

fn denied_by(decision: &Decision<'_>) -> Option<(usize, Denied)> {
    match decision.outcome() {
        Outcome::Denied { limit, denied } => Some((limit.unwrap(), denied)),
        Outcome::Allowed => None,
        other => panic!("{other:?}"),
    }
}

/// The limit of permits at once denies in the middle of decisions, when other threads have taken
/// its permits. Whatever the tables, nothing is lost of the windows.
#[test]
fn a_limit_that_denies_after_all_leaves_the_others_as_they_were() {
    const COUNT: u64 = 10_000_000;
    let (two, one) = ([window(COUNT), from_request(COUNT)], Limit::at_once(1));
    for before in 0..=2 {
        let mut limits = two.to_vec();
        limits.insert(before, one.clone());
        let (left, granted) = decide_on_threads(&limits);
        let mut expected = vec![COUNT - granted; 2];
        expected.insert(before, 1);
        assert_eq!(left, expected);
    }
    // Permits at once return, too, if a limit after theirs denies.
    let (left, _) = decide_on_threads(&[Limit::at_once(9), Limit::at_once(8), one]);
    assert_eq!(left, [9, 8, 1]);
}

/// Decides on several threads at once. Returns what the limits have left, and how many requests
/// were granted.
fn decide_on_threads(limits: &[Limit]) -> (Vec<u64>, u64) {
    let policy = policy(limits);
    let [granted, denied] = [(); 2].map(|()| AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for nth in 0..10_000 {
                    let decision = policy.decide_at(at(1), &GET);
                    let count = if decision.is_allowed() {
                        &granted
                    } else {
                        &denied
                    };
                    count.fetch_add(1, Relaxed);
                    if nth % 8 == 0 {
                        std::thread::yield_now();
                    }
                }
            });
        }
    });
    assert!(denied.into_inner() > 0);
    (left(&policy, at(1), &GET), granted.into_inner())
}

#[test]
fn the_first_limit_of_the_rule_that_denies_is_named() {
    for (limits, first) in [
        (vec![window(1), sliding(1), bucket(5)], 0),
        (vec![sliding(1), window(1), bucket(5)], 0),
        (vec![window(5), sliding(1), bucket(1)], 1),
        (vec![window(5), Limit::at_once(2), bucket(1), sliding(1)], 2),
        (vec![window(5), bucket(9), Limit::at_once(1), bucket(1)], 2),
        (vec![window(5), bucket(9), from_request(1)], 2),
    ] {
        let policy = policy(&limits);
        let held = policy.decide_at(at(1), &GET);
        for cost in [0, 1] {
            let denied = policy.decide_at(at(1), &GET.cost(cost));
            let told = policy.decide_explained_at(at(1), &GET.cost(cost));
            let hold = policy.hold_at(at(1), &GET.cost(cost));
            for decision in [&denied, &*told, &*hold] {
                let by = denied_by(decision).map(|(limit, _)| limit);
                assert_eq!(by, Some(first), "{limits:?}");
            }
            assert_eq!(told.decided_by().unwrap().index, first);
        }
        drop(held);
    }
}

#[test]
fn a_request_for_more_than_a_limit_holds_is_denied_as_by_that_limit() {
    let policy = policy(&[bucket(9), window(5)]);
    let denied = policy.decide_at(at(1), &GET.cost(7));
    let Some((1, Denied::ExceedsCapacity { capacity: 5, .. })) = denied_by(&denied) else {
        panic!("{denied:?}")
    };
    assert_eq!(denied.retry(), Some(Retry::Never));
    assert!(policy.decide_at(at(1), &GET.cost(5)).is_allowed());
    // The bucket denies first, although the window could never grant so many.
    let denied = policy.decide_at(at(1), &GET.cost(6));
    assert!(matches!(
        denied_by(&denied),
        Some((0, Denied::Exhausted { .. }))
    ));
}

#[test]
fn the_memory_of_limits_that_share_an_entry_counts_for_the_bound_of_a_rule() {
    let refused = |limits: usize| {
        let rule = Rule::new("a").key(Key::path()).keys(usize::MAX);
        let rule = (0..limits).fold(rule, |rule, _| rule.limit(bucket(1)));
        Policy::new([rule]).unwrap_err()[0].problem.clone()
    };
    let tables = |limits: usize| {
        let rule = Rule::new("a").key(Key::path()).keys(1_000);
        let rule = (0..limits).fold(rule, |rule, _| rule.limit(bucket(1)));
        Policy::new([rule]).unwrap().table_bytes()
    };
    for (limits, bytes) in [(1, 43), (2, 86), (3, 172), (4, 172), (5, 344), (8, 344)] {
        assert_eq!(tables(limits), bytes / 43 * tables(1), "{limits}");
        let most = (1 << 30) / bytes;
        let problem = refused(limits);
        assert!(
            problem.starts_with(&format!("must be at most {most} with")),
            "{problem}"
        );
    }
}

fn any_limit() -> impl Strategy<Value = Limit> {
    let period = prop::sample::select(vec![1_u64, 7, 60]).prop_map(Duration::from_secs);
    (0..6_u8, 1..30_u64, period).prop_map(|(kind, count, period)| {
        let limit = Limit::per(count, period);
        match kind {
            0 => limit.burst(count + 3),
            1 => limit.algorithm_of(Algorithm::FixedWindow),
            2 => limit.algorithm_of(Algorithm::WindowFromRequest),
            3 => limit.algorithm_of(Algorithm::SlidingWindow { segments: 4 }),
            4 => Limit::at_once(count as u32),
            _ => limit,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// The oracle has a policy for each limit. It asks all of them, and then takes from all or from
    /// none.
    #[test]
    fn several_limits_decide_as_a_policy_for_each_would(
        limits in prop::collection::vec(any_limit(), 1..=8),
        steps in prop::collection::vec((0..8_u8, 0..12_u32, 0..4_000_u64), 1..60),
    ) {
        let together = policy(&limits);
        let alone = |limit| policy(core::slice::from_ref(limit));
        let apart: Vec<Policy> = limits.iter().map(alone).collect();
        let (mut now, mut open) = (at(1_000), Vec::new());
        for (what, cost, millis) in steps {
            now += Duration::from_millis(millis);
            let path = ["/a", "/b"][usize::from(what % 2)];
            let request = Request::new("GET", path).cost(cost);
            if what >= 6 && !open.is_empty() {
                drop(open.swap_remove(cost as usize % open.len()));
                continue;
            }
            let first = apart.iter().enumerate().find_map(|(index, policy)| {
                let explained = policy.explain_at(now, &request).unwrap();
                let Considered::Limits { details, .. } = &explained[0].considered else {
                    panic!("the rule has limits")
                };
                Some((index, details[0].decision.err()?))
            });
            let told = together.decide_explained_at(now, &request);
            prop_assert_eq!(denied_by(&told), first);
            if first.is_none() {
                let all: Vec<_> = apart
                    .iter()
                    .map(|policy| policy.decide_explained_at(now, &request))
                    .collect();
                let details = all.iter().map(|one| one.details().next().unwrap().detail);
                prop_assert!(told.details().map(|each| each.detail).eq(details));
                open.push((told, all));
            } else {
                let all = apart.iter().map(|policy| policy.explain_at(now, &request).unwrap());
                let latest = all.fold(Retry::At(now), |latest, explained| {
                    let Considered::Limits { details, .. } = &explained[0].considered else {
                        panic!("the rule has limits")
                    };
                    latest.longer(details[0].retry, now)
                });
                let never = matches!(first, Some((_, Denied::ExceedsCapacity { .. })));
                prop_assert_eq!(told.retry(), Some(if never { Retry::Never } else { latest }));
                let details = together.explain_at(now, &request);
                prop_assert_eq!(details.unwrap().len(), 1);
            }
            for path in ["/a", "/b"] {
                let request = Request::new("GET", path);
                let each: Vec<u64> = apart
                    .iter()
                    .flat_map(|policy| left(policy, now, &request))
                    .collect();
                prop_assert_eq!(left(&together, now, &request), each);
            }
        }
    }

    /// Holds are settled as those of a policy for each limit. A limit takes back what it can.
    #[test]
    fn several_limits_settle_as_a_policy_for_each_would(
        limits in prop::collection::vec(any_limit(), 1..=8),
        steps in prop::collection::vec((0..4_u8, 0..12_u32, 0..4_000_u64), 1..60),
    ) {
        let together = policy(&limits);
        let alone = |limit| policy(core::slice::from_ref(limit));
        let apart: Vec<Policy> = limits.iter().map(alone).collect();
        let (mut now, mut open) = (at(1_000), Vec::new());
        for (what, cost, millis) in steps {
            now += Duration::from_millis(millis);
            if what == 0 && !open.is_empty() {
                let (held, all): (portcullis_policy::Hold<'_>, Vec<portcullis_policy::Hold<'_>>) =
                    open.swap_remove(cost as usize % open.len());
                let settled = held.settle_at(now, cost);
                let all: Vec<_> = all.into_iter().map(|held| held.settle_at(now, cost)).collect();
                prop_assert_eq!(settled.kept, all.iter().map(|one| one.kept).max().unwrap());
                let uncounted = all.iter().map(|one| one.uncounted).max().unwrap();
                prop_assert_eq!(settled.uncounted, uncounted);
            } else {
                let held = together.hold_at(now, &GET.cost(cost));
                if held.is_allowed() {
                    let all: Vec<_> = apart
                        .iter()
                        .map(|policy| policy.hold_at(now, &GET.cost(cost)))
                        .collect();
                    prop_assert!(all.iter().all(|held| held.is_allowed()));
                    open.push((held, all));
                }
            }
            let each: Vec<u64> = apart
                .iter()
                .flat_map(|policy| left(policy, now, &GET))
                .collect();
            prop_assert_eq!(left(&together, now, &GET), each);
        }
    }
}

/// At one instant nothing returns by time. Each thread is told whether it was granted, and all
/// limits must have counted exactly the grants.
#[test]
fn threads_take_from_all_limits_or_from_none() {
    let limits = [
        bucket(900),
        sliding(1_000),
        window(800),
        Limit::at_once(4_000),
    ];
    let policy = policy(&limits);
    let granted: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let decide = |_: &i32| policy.decide_at(at(1), &GET).is_allowed();
                    (0..1_000).filter(decide).count() as u64
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum()
    });
    // A take that is denied after its look may leave a charge in a bucket until time returns it.
    assert!(granted > 700 && granted <= 800, "{granted}");
    let left = left(&policy, at(1), &GET);
    assert!(
        left[0] <= 900 - granted && left[1] <= 1_000 - granted,
        "{left:?}"
    );
    assert_eq!(left[3], 4_000, "all have returned");
}

/// The key of a client, its address, and whether it logs in.
fn client<'r, const N: usize>(
    headers: &'r [(&'r str, &'r str); N],
    last: u8,
    path: &'r str,
) -> Request<'r> {
    let request = Request::new("POST", path).headers(headers);
    request.address([192, 0, 2, last].into())
}

/// 10 per second for each API key, 5 logins a minute for each address, and 100 at once.
fn wish() -> [Rule; 3] {
    let second = Duration::from_secs(1);
    [
        Rule::new("each key")
            .key(Key::header("X-Api-Key"))
            .on_missing(OnMissing::Skip)
            .limit(Limit::per(10, second))
            .continuing(),
        Rule::new("logins")
            .when(Conditions::new().paths(["/login"]))
            .key(Key::address())
            .limit(Limit::per(5, MINUTE))
            .continuing(),
        Rule::new("service").limit(Limit::at_once(100)),
    ]
}

/// What each limit of each rule has left for a request.
fn left_of_all(policy: &Policy, now: Timestamp, request: &Request<'_>) -> Vec<u64> {
    let explained = policy.explain_at(now, request).unwrap();
    let left = explained.iter().flat_map(|each| match &each.considered {
        Considered::Limits { details, .. } => details.as_slice(),
        _ => &[],
    });
    left.map(|detail| detail.available).collect()
}

#[test]
fn rules_that_continue_limit_a_request_together_and_a_denial_takes_from_none() {
    let policy = Policy::new(wish()).unwrap();
    let key = [("X-Api-Key", "a")];
    let login = client(&key, 7, "/login");
    let held: Vec<_> = (0..5).map(|_| policy.decide_at(at(1), &login)).collect();
    assert!(held.iter().all(Decision::is_allowed));
    assert!(
        held[0]
            .rules()
            .map(Rule::name)
            .eq(["each key", "logins", "service"])
    );
    assert_eq!(left_of_all(&policy, at(1), &login), [5, 0, 95]);
    // The address has no logins left: the key and the service are as before.
    let denied = policy.decide_at(at(1), &login);
    assert_eq!(denied.rule().unwrap().name(), "logins");
    assert_eq!(denied_by(&denied).unwrap().0, 0);
    assert_eq!(denied.retry(), Some(Retry::At(at(13))));
    assert_eq!(left_of_all(&policy, at(1), &login), [5, 0, 95]);
    // Other paths, and clients without a key.
    let items = client(&key, 7, "/items");
    assert!(policy.decide_at(at(1), &items).is_allowed());
    assert_eq!(left_of_all(&policy, at(1), &items), [4, 95]);
    let anonymous = client(&[], 8, "/login");
    let decision = policy.decide_at(at(1), &anonymous);
    assert!(decision.rules().map(Rule::name).eq(["logins", "service"]));
    // The key is used up: the service is as before.
    let rest: Vec<_> = (0..5).map(|_| policy.decide_at(at(1), &items)).collect();
    let by = |decision: &Decision<'_>| decision.rule().unwrap().name().to_owned();
    assert_eq!(
        (rest[4].is_allowed(), by(&rest[4])),
        (false, "each key".into())
    );
    drop((held, rest, decision));
    assert_eq!(left_of_all(&policy, at(1), &items), [0, 100]);
}

#[test]
fn a_retry_is_when_all_rules_have_the_permits() {
    let rules = |service: Limit| {
        let each = Rule::new("each").limit(Limit::per(2, MINUTE)).continuing();
        Policy::new([each, Rule::new("service").limit(service)]).unwrap()
    };
    let policy = rules(Limit::per(2, Duration::from_secs(10)));
    let _ = (policy.decide_at(at(0), &GET), policy.decide_at(at(0), &GET));
    for decision in [policy.decide_at(at(1), &GET), policy.decide_at(at(6), &GET)] {
        assert_eq!(decision.retry(), Some(Retry::At(at(30))));
        assert_eq!(decision.statuses().count(), 2);
    }
    let explained = policy.decide_explained_at(at(1), &GET);
    assert_eq!(explained.retry(), Some(Retry::At(at(30))));
    let of_all = explained
        .details()
        .map(|each| (each.rule.name(), each.detail.available));
    assert!(of_all.eq([("each", 0), ("service", 0)]));
    assert_eq!(explained.decided_by().unwrap().rule.name(), "each");
    // The first rule denies, and the other one for longer.
    let policy = rules(Limit::per(2, 4 * MINUTE));
    let _ = (policy.decide_at(at(0), &GET), policy.decide_at(at(0), &GET));
    let denied = policy.decide_at(at(1), &GET);
    assert_eq!(denied.rule().unwrap().name(), "each");
    assert_eq!(denied.retry(), Some(Retry::At(at(120))));
    // Permits that return by release have no time.
    let policy = rules(Limit::at_once(1));
    let held = policy.decide_at(at(0), &GET);
    assert!(held.is_allowed());
    let denied = policy.decide_at(at(0), &GET);
    assert_eq!(
        (denied.rule().unwrap().name(), denied.retry()),
        ("service", Some(Retry::OnRelease))
    );
}

#[test]
fn permits_at_once_of_each_rule_return_with_the_decision() {
    let rule = |name| Rule::new(name).limit(Limit::at_once(1));
    let policy = Policy::new([rule("first").continuing(), rule("last")]).unwrap();
    for _ in 0..3 {
        let decision = policy.decide_at(at(1), &GET);
        assert!(decision.is_allowed());
        assert!(!policy.decide_at(at(1), &GET).is_allowed());
    }
}

/// Whatever the rules before it, and whatever is taken at the same time, a rule that denies leaves
/// them as they were.
#[test]
fn a_rule_that_denies_after_all_leaves_the_others_as_they_were() {
    const COUNT: u64 = 1_000_000;
    let bucket = || bucket_of(COUNT);
    for one in [Limit::at_once(1), window(7_000), bucket_of(7_000)] {
        let rules = [
            Rule::new("bucket")
                .key(Key::path())
                .limit(bucket())
                .continuing(),
            Rule::new("window")
                .limit(window(COUNT))
                .limit(Limit::at_once(1_000))
                .continuing(),
            Rule::new("few").key(Key::method()).limit(one).continuing(),
            Rule::new("last").limit(bucket()),
        ];
        let policy = Policy::new(rules).unwrap();
        // More than all threads together return, so that no permit is returned to a bucket that may
        // have been full since it was taken: see `Keyed::refund_counted_at`. Of three methods,
        // because each has no more in the third rule.
        for method in ["POST", "PUT", "DELETE"] {
            for _ in 0..6_000 {
                let decision = policy.decide_at(at(1), &Request::new(method, "/"));
                assert!(decision.is_allowed());
            }
        }
        let before = 3 * 6_000;
        let [granted, denied] = [(); 2].map(|()| AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for nth in 0..4_000 {
                        let decision = policy.decide_at(at(1), &GET);
                        let count = if decision.is_allowed() {
                            &granted
                        } else {
                            &denied
                        };
                        count.fetch_add(1, Relaxed);
                        if nth % 8 == 0 {
                            std::thread::yield_now();
                        }
                    }
                });
            }
        });
        let taken = before + granted.into_inner();
        assert!(denied.into_inner() > 0 && taken > 0);
        let left = left_of_all(&policy, at(1), &GET);
        let expected = [COUNT - taken, COUNT - taken, 1_000];
        assert_eq!((&left[..3], left[4]), (&expected[..], COUNT - taken));
    }
}

/// A bucket that does not refill.
fn bucket_of(count: u64) -> Limit {
    Limit::per(count, Duration::from_hours(24 * 365))
}

#[test]
fn an_exempt_client_takes_nothing_from_the_rule_and_the_next_one_is_asked() {
    let each = Rule::new("each")
        .limit(Limit::per(1, MINUTE))
        .exempt_header("X-Role", ["admin"]);
    let policy = [
        each.continuing(),
        Rule::new("all").limit(Limit::per(2, MINUTE)),
    ];
    let policy = Policy::new(policy).unwrap();
    let admin = [("X-Role", "admin")];
    let request = GET.headers(&admin);
    let mut asked = Vec::new();
    let decision = policy.decide_watched_at(at(1), &request, |answer| {
        asked.push((answer.rule.name(), answer.outcome));
    });
    assert_eq!(decision.rule().unwrap().name(), "all");
    assert_eq!(
        asked,
        [("each", Outcome::Exempt), ("all", Outcome::Allowed)]
    );
    assert!(policy.decide_at(at(1), &GET).is_allowed());
    assert!(
        !policy.decide_at(at(1), &request).is_allowed(),
        "the second rule has no more"
    );
    // Without a rule after it, the exemption decides.
    let each = Rule::new("each")
        .limit(Limit::per(1, MINUTE))
        .exempt_header("X-Role", ["admin"]);
    let policy = Policy::new([each.continuing()]).unwrap();
    assert_eq!(policy.decide_at(at(1), &request).outcome(), Outcome::Exempt);
}

#[test]
fn a_hold_is_settled_with_each_rule() {
    let bucket = |name: &str, count| Rule::new(name).limit(bucket_of(count)).hold(MINUTE);
    let rules = [
        bucket("a", 100).continuing(),
        bucket("b", 50).continuing(),
        Rule::new("free"),
    ];
    let policy = Policy::new(rules).unwrap();
    let left = || left_of_all(&policy, at(1), &GET);
    let _ = policy.decide_at(at(1), &GET.cost(10));
    let hold = policy.hold_at(at(1), &GET.cost(20));
    assert_eq!(left(), [70, 20]);
    assert_eq!(hold.settle_at(at(1), 5).kept, 0);
    assert_eq!(left(), [85, 35]);
    let settled = policy.hold_at(at(1), &GET.cost(20)).settle_at(at(1), 40);
    assert_eq!((settled.excess, settled.uncounted), (20, 5));
    assert_eq!(left(), [45, 0]);
    drop(policy.hold_at(at(1), &GET.cost(1)));
    assert_eq!(left(), [45, 0], "denied");
}

#[test]
fn all_rules_that_an_allowed_request_took_from_answer_and_only_the_one_that_denied() {
    let policy = Policy::new(wish()).unwrap();
    let statistics = Statistics::new(&policy);
    let login = client(&[("X-Api-Key", "a")], 7, "/login");
    for nth in 0..7 {
        if nth % 2 == 0 {
            let _ = statistics.decide_at(&policy, at(1), &login);
        } else {
            statistics.count(&policy.decide_at(at(1), &login), &login);
        }
    }
    let counts = statistics.rules();
    let counts = counts.iter().map(|rule| (rule.allowed, rule.denied()));
    assert!(counts.eq([(5, 0), (5, 2), (5, 0)]));
}

#[test]
fn a_shadow_rule_between_rules_that_continue_takes_and_denies_nothing() {
    let shadow = Rule::new("stricter").limit(Limit::per(1, MINUTE)).shadow();
    let each = Rule::new("each").limit(Limit::per(9, MINUTE)).continuing();
    let all = Rule::new("all").limit(Limit::per(2, MINUTE));
    let policy = Policy::new([each, shadow, all]).unwrap();
    let decide = || policy.decide_at(at(1), &GET);
    assert!(decide().shadow_denied().is_none());
    let second = decide();
    assert!(second.is_allowed() && second.rules().count() == 2);
    assert_eq!(second.shadow_denied().unwrap().name(), "stricter");
    assert!(!decide().is_allowed());
    assert_eq!(left_of_all(&policy, at(1), &GET), [7, 0, 0]);
}

/// What the limits of the rules have left, in the order of the rules.
fn left_of_rules<const N: usize>(policy: &Policy) -> [u64; N] {
    let left = left_of_all(policy, at(1), &GET);
    left.try_into().expect("each rule has one limit")
}

/// All sets of three rules of which one is a shadow, at any place among the others, which go on or
/// not, with up to three permits each. Of these sets each request is decided as it says there.
#[test]
fn a_shadow_rule_takes_and_denies_as_if_it_alone_were_enforced() {
    const PERMITS: [u64; 3] = [1, 2, 3];
    let mut seen = [0; 3];
    for place in 0..3 {
        for bits in 0..8 {
            let goes_on = [0, 1, 2].map(|nth| bits >> nth & 1 == 1);
            for sizes in (0..27).map(|n| [n / 9, n / 3 % 3, n % 3].map(|nth| PERMITS[nth])) {
                let rule = |nth: usize| {
                    let rule = Rule::new(["a", "b", "c"][nth]).limit(window(sizes[nth]));
                    let rule = if goes_on[nth] {
                        rule.continuing()
                    } else {
                        rule
                    };
                    if nth == place { rule.shadow() } else { rule }
                };
                let policy = Policy::new([0, 1, 2].map(rule)).unwrap();
                for _ in 0..5 {
                    let before: [u64; 3] = left_of_rules(&policy);
                    let decision = policy.decide_at(at(1), &GET);
                    // The rules that are asked if the shadow is one of them, and if it is not.
                    let asked = |is_rule: &dyn Fn(usize) -> bool| {
                        let rules: Vec<usize> = (0..3).filter(|&nth| is_rule(nth)).collect();
                        let last = rules.iter().position(|&nth| !goes_on[nth]);
                        rules[..last.map_or(rules.len(), |last| last + 1)].to_vec()
                    };
                    let denies =
                        |rules: &[usize]| rules.iter().copied().find(|&nth| before[nth] == 0);
                    let of_others = asked(&|nth| nth != place);
                    let of_all = asked(&|_| true);
                    let denied = denies(&of_others);
                    assert_eq!(decision.is_allowed(), denied.is_none());
                    let is_denied_by_shadow = denies(&of_all) == Some(place);
                    assert_eq!(decision.shadow_denied().is_some(), is_denied_by_shadow);
                    let mut takes: Vec<usize> = Vec::new();
                    if denied.is_none() {
                        takes.extend(&of_others);
                    }
                    if of_all.contains(&place) && denies(&of_all).is_none() {
                        takes.push(place);
                    }
                    let left = [0, 1, 2].map(|nth| before[nth] - u64::from(takes.contains(&nth)));
                    assert_eq!(
                        left_of_rules(&policy),
                        left,
                        "{place} {goes_on:?} {sizes:?}"
                    );
                    seen[0] += usize::from(denied.is_some() && of_all.contains(&place));
                    seen[1] += usize::from(is_denied_by_shadow);
                    seen[2] += usize::from(takes.contains(&place));
                }
            }
        }
    }
    assert!(seen.iter().all(|&times| times > 100), "{seen:?}");
}

#[test]
fn a_shadow_rule_behind_the_last_rule_is_not_asked_though_another_one_is() {
    let shadow = |name| Rule::new(name).limit(window(5)).shadow().continuing();
    let each = Rule::new("each").limit(window(5)).continuing();
    let all = Rule::new("all").limit(window(5));
    let rules = [shadow("first"), all.clone(), shadow("behind")];
    let policy = Policy::new(rules).unwrap();
    drop(policy.decide_at(at(1), &GET));
    assert_eq!(left_of_rules(&policy), [4, 4, 5]);
    let rules = [
        shadow("first"),
        each,
        shadow("second"),
        all,
        shadow("behind"),
    ];
    let policy = Policy::new(rules).unwrap();
    drop(policy.decide_at(at(1), &GET));
    assert_eq!(left_of_rules(&policy), [4, 4, 4, 4, 5]);
}

#[test]
fn a_shadow_rule_holds_a_permit_at_once_only_of_a_request_that_is_allowed() {
    let shadow = Rule::new("busy").limit(Limit::at_once(2));
    let shadow = shadow.shadow().continuing();
    let all = Rule::new("all").limit(window(1));
    let policy = Policy::new([shadow, all]).unwrap();
    let decide = || policy.decide_at(at(1), &GET);
    let allowed = decide();
    assert!(allowed.is_allowed() && allowed.holds_permits());
    let denied = decide();
    assert!(!denied.is_allowed() && !denied.holds_permits());
    assert_eq!(left_of_rules(&policy), [1, 0]);
    drop(allowed);
    assert_eq!(left_of_rules(&policy), [2, 0]);
}

/// A client that is unknown would be denied by the shadow rule first.
#[test]
fn a_shadow_rule_denies_what_lacks_its_key_before_a_rule_after_it_does() {
    let shadow = Rule::new("keys").key(Key::header("X-Key"));
    let shadow = shadow.on_missing(OnMissing::Deny).limit(window(9));
    let all = Rule::new("all").limit(window(1)).continuing();
    for (rules, expected) in [
        (
            [shadow.clone().shadow().continuing(), all.clone()],
            [true, true],
        ),
        ([all, shadow.shadow()], [true, false]),
    ] {
        let policy = Policy::new(rules).unwrap();
        let noted = [(); 2].map(|()| policy.decide_at(at(1), &GET).shadow_denied().is_some());
        assert_eq!(noted, expected);
    }
}

/// What one reading of a path leaves free, the rules of another one may limit.
#[test]
fn a_path_with_several_readings_takes_from_the_rules_of_the_reading_that_has_them_all() {
    let on = |path: &str| Conditions::new().paths([path]);
    let rules = [
        Rule::new("files")
            .when(on("/files/*"))
            .limit(Limit::per(9, MINUTE))
            .continuing(),
        Rule::new("all").limit(Limit::per(9, MINUTE)),
    ];
    let policy = Policy::new(rules).unwrap();
    let decision = policy.decide_at(at(1), &Request::new("GET", "/files//a"));
    assert!(decision.rules().map(Rule::name).eq(["files", "all"]));
    let rules = [
        Rule::new("files")
            .when(on("/files/*"))
            .limit(Limit::per(9, MINUTE)),
        Rule::new("all").limit(Limit::per(9, MINUTE)),
    ];
    let policy = Policy::new(rules).unwrap();
    let decision = policy.decide_at(at(1), &Request::new("GET", "/files//a"));
    assert_eq!(decision.outcome(), Outcome::Path(PathError::Ambiguous));
}

#[test]
fn without_limits_at_once_all_others_hold() {
    let rules = || {
        let vip = [Limit::per(3, MINUTE), Limit::at_once(1)];
        [
            Rule::new("each key")
                .key(Key::header("X-Api-Key"))
                .on_missing(OnMissing::Deny)
                .limit(Limit::per(2, MINUTE))
                .limit(Limit::at_once(1))
                .override_key(["vip"], vip)
                .continuing(),
            Rule::new("service")
                .key(Key::address())
                .on_missing(OnMissing::Deny)
                .limit(Limit::at_once(1).queue(3))
                .penalty(MINUTE),
        ]
    };
    let policy = Policy::new(rules()).unwrap().without_limits_at_once();
    assert!(policy.rule("service").unwrap().limits().is_empty());
    let decided = |key: &str| {
        let key = [("X-Api-Key", key)];
        let request = client(&key, 7, "/");
        let held: Vec<_> = (0..4).map(|_| policy.decide_at(at(1), &request)).collect();
        held.iter().map(Decision::is_allowed).collect::<Vec<_>>()
    };
    assert_eq!(decided("a"), [true, true, false, false]);
    assert_eq!(decided("vip"), [true, true, true, false]);
    assert!(!policy.decide_at(at(1), &client(&[], 7, "/")).is_allowed());
    let key = [("X-Api-Key", "b")];
    let without_address = Request::new("GET", "/").headers(&key);
    assert!(!policy.decide_at(at(1), &without_address).is_allowed());
    // A key has a limit of its own, another one is closed, and all others have none that is kept.
    let own = Rule::new("all")
        .key(Key::header("X-Api-Key"))
        .limit(Limit::at_once(1))
        .override_key(["vip"], [Limit::per(1, MINUTE)])
        .override_key(["closed"], [Limit::at_once(0)]);
    let policy = Policy::new([own]).unwrap().without_limits_at_once();
    for (key, allowed) in [
        ("vip", [true, false]),
        ("other", [true, true]),
        ("closed", [false, false]),
    ] {
        let key = [("X-Api-Key", key)];
        let request = client(&key, 7, "/");
        let both = [(); 2].map(|()| policy.decide_at(at(1), &request));
        assert_eq!(both.each_ref().map(Decision::is_allowed), allowed);
    }
    // A rule without a limit that is kept decides as before, and takes nothing.
    let counting = Rule::new("all")
        .limit(Limit::at_once(1))
        .hold(MINUTE)
        .threshold(Threshold::new(1, MINUTE, "captcha"));
    let policy = Policy::new([counting]).unwrap().without_limits_at_once();
    let twice = policy.without_limits_at_once();
    for policy in [&policy, &twice] {
        let holds = [(); 2].map(|()| policy.hold_at(at(1), &GET));
        for hold in &holds {
            assert_eq!(hold.outcome(), Outcome::Allowed);
            assert_eq!(hold.rule().map(Rule::name), Some("all"));
            assert!(hold.status().is_none());
        }
    }
    let closed = Policy::new([Rule::new("all").limit(Limit::at_once(0))]).unwrap();
    let closed = closed.without_limits_at_once();
    assert!(!closed.decide_at(at(1), &GET).is_allowed());
}
