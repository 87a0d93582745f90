//! What a policy decides, and that it decides as the limiters of the core would.

use core::time::Duration;
use std::collections::HashMap;

use portcullis_core::{Denied, FixedWindow, Limiter, Rate, Retry, Timestamp, TokenBucket};
use portcullis_policy::{
    Algorithm, Conditions, Considered, Fields, Key, Kind, Limit, OnMissing, Outcome, PathError,
    PathRules, Policy, Request, Rule, Statistics,
};
use proptest::prelude::*;

fn limit(text: &str) -> Limit {
    text.parse().unwrap()
}

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_secs(seconds)
}

fn policy(rules: impl IntoIterator<Item = Rule>) -> Policy {
    Policy::new(rules).unwrap()
}

/// Decides, and drops the decision.
fn allows(policy: &Policy, now: Timestamp, request: &Request<'_>) -> bool {
    policy.decide_at(now, request).is_allowed()
}

const GET: Request<'static> = Request::new("GET", "/");

#[test]
fn a_request_takes_from_all_limits_or_from_none() {
    let policy = policy([Rule::new("all").limit(limit("10/s")).limit(limit("3/h"))]);
    assert!(allows(&policy, at(1), &GET.cost(3)));
    for _ in 0..10 {
        let denied = policy.decide_at(at(1), &GET);
        assert!(matches!(
            denied.outcome(),
            Outcome::Denied { limit: Some(1), .. }
        ));
        assert_eq!(denied.status().unwrap().index, 1);
    }
    let explained = policy.explain_at(at(1), &GET).unwrap();
    let Considered::Limits { details, .. } = &explained[0].considered else {
        panic!("the rule applies")
    };
    assert_eq!((details[0].available, details[1].available), (7, 0));
}

#[test]
fn the_rule_with_the_lowest_priority_decides() {
    let policy = policy([
        Rule::new("last").priority(9),
        Rule::new("off").disabled().limit(limit("1/h")),
        Rule::new("get")
            .priority(2)
            .when(Conditions::new().methods(["GET"])),
        Rule::new("same")
            .priority(2)
            .when(Conditions::new().methods(["GET"])),
        Rule::new("egress").when(Conditions::new().kind(Kind::Egress)),
    ]);
    let decides = |request: Request<'_>| {
        policy
            .decide_at(at(1), &request)
            .rule()
            .unwrap()
            .name()
            .to_owned()
    };
    assert_eq!(decides(GET), "get");
    assert_eq!(decides(Request::new("PUT", "/")), "last");
    assert_eq!(decides(GET.kind(Kind::Egress)), "egress");
    let none = policy.decide_at(at(1), &GET.kind(Kind::Burst)).outcome();
    assert_eq!(none, Outcome::NoRule);
}

#[test]
fn keys_are_what_is_configured() {
    let address = |text: &str| text.parse().unwrap();
    let headers = |value: &'static str| [("X-Tenant", value), ("X-User", "u")];
    let two = |a, b| [("X-Tenant", a), ("X-User", b)];
    let same = |key: Key, a: Request<'_>, b: Request<'_>| {
        let policy = policy([Rule::new("one").key(key).limit(limit("1/h"))]);
        assert!(allows(&policy, at(1), &a));
        !allows(&policy, at(1), &b)
    };
    let with = |text| GET.address(address(text));
    assert!(same(
        Key::shared(),
        with("10.0.0.1"),
        Request::new("PUT", "/x")
    ));
    assert!(same(
        Key::address(),
        with("10.0.0.1"),
        with("::ffff:10.0.0.1")
    ));
    assert!(!same(Key::address(), with("10.0.0.1"), with("10.0.0.2")));
    assert!(same(
        Key::address_prefix(24, 64),
        with("10.0.0.1"),
        with("10.0.0.2")
    ));
    assert!(same(
        Key::address_prefix(0, 0),
        with("10.0.0.1"),
        with("192.0.2.1")
    ));
    assert!(same(
        Key::address(),
        with("2001:db8::1"),
        with("2001:db8::ffff:0:0:2")
    ));
    assert!(!same(
        Key::address(),
        with("2001:db8::1"),
        with("2001:db8:0:1::1")
    ));
    assert!(!same(
        Key::address_prefix(32, 128),
        with("2001:db8::1"),
        with("2001:db8::2")
    ));
    assert!(same(
        Key::path(),
        Request::new("GET", "/a/b"),
        Request::new("PUT", "//a/x/../%62/?q")
    ));
    assert!(!same(
        Key::path(),
        Request::new("GET", "/a/b"),
        Request::new("GET", "/a/c")
    ));
    assert!(!same(
        Key::path().and(Key::method()),
        Request::new("GET", "/a"),
        Request::new("PUT", "/a")
    ));
    let key = || Key::header("x-tenant").and(Key::header("x-user"));
    let (ab, abc) = (two("a", "bc"), two("ab", "c"));
    assert!(!same(key(), GET.headers(&ab), GET.headers(&abc)));
    let (a, other) = (headers("a"), headers("b"));
    assert!(same(
        Key::header("X-User"),
        GET.headers(&a),
        GET.headers(&other)
    ));
    assert!(!same(
        Key::header("X-Tenant"),
        GET.headers(&a),
        GET.headers(&other)
    ));
    assert!(!same(Key::tier(), GET.tier("a"), GET.tier("b")));
    assert!(!same(Key::host(), GET.host("a"), GET.host("b")));
    let spelled = GET.host("A.Example.:80");
    assert!(same(Key::host(), GET.host("a.example"), spelled));
    assert!(!same(
        Key::property("p"),
        GET.properties(&[("p", "a")]),
        GET.properties(&[("p", "b")])
    ));
    let cost = Key::function(|request, hasher| {
        hasher.write_u32(request.cost % 2);
        true
    });
    let half = Rule::new("half").key(cost).limit(limit("2/h"));
    let half = policy([half]);
    assert!(allows(&half, at(1), &GET.cost(2)));
    assert!(allows(&half, at(1), &GET.cost(1)));
    assert!(!allows(&half, at(1), &GET.cost(2)));
}

#[test]
fn a_missing_part_of_the_key_is_shared_denied_or_skipped() {
    let rule = |on_missing| {
        Rule::new("clients")
            .key(Key::header("X-Key"))
            .on_missing(on_missing)
            .limit(limit("1/h"))
    };
    let decide = |policy: &Policy| {
        let decision = policy.decide_at(at(1), &GET);
        (
            decision.outcome(),
            decision.rule().map(|rule| rule.name().to_owned()),
        )
    };
    let share = policy([rule(OnMissing::Share)]);
    assert_eq!(decide(&share).0, Outcome::Allowed);
    assert!(matches!(decide(&share).0, Outcome::Denied { .. }));
    assert!(
        allows(&share, at(1), &GET.headers(&[("X-Key", "k")])),
        "another key"
    );
    let deny = policy([rule(OnMissing::Deny)]);
    assert_eq!(
        decide(&deny),
        (Outcome::Unidentified, Some("clients".into()))
    );
    assert!(allows(&deny, at(1), &GET.headers(&[("X-Key", "k")])));
    let skip = policy([rule(OnMissing::Skip), Rule::new("rest").priority(1)]);
    assert_eq!(decide(&skip), (Outcome::Allowed, Some("rest".into())));
    let empty = deny
        .decide_at(at(1), &GET.headers(&[("X-Key", "")]))
        .outcome();
    assert_eq!(empty, Outcome::Unidentified, "an empty value is none");
}

/// All clients of a program that does not know their addresses would share one limit.
#[test]
fn a_missing_address_is_shared_only_if_the_rule_says_so() {
    let rule = || {
        Rule::new("clients")
            .key(Key::address().and(Key::header("X-Key")))
            .limit(limit("1/h"))
    };
    let outcome = |policy: &Policy, request: Request<'_>| {
        let decision = policy.decide_at(at(1), &request);
        (decision.outcome(), decision.rule_index())
    };
    let known = GET.address("192.0.2.7".parse().unwrap());
    let key = [("X-Key", "k")];
    // The default. A header is the client's to send.
    let needs = policy([rule(), Rule::new("rest").priority(1)]);
    for request in [GET, GET.headers(&key), GET, GET.headers(&key)] {
        assert_eq!(outcome(&needs, request), (Outcome::NoAddress, Some(0)));
    }
    assert_eq!(outcome(&needs, known), (Outcome::Allowed, Some(0)));
    assert!(matches!(outcome(&needs, known).0, Outcome::Denied { .. }));
    assert_eq!(
        outcome(&needs, known.headers(&key)),
        (Outcome::Allowed, Some(0))
    );
    let considered = &needs.explain_at(at(1), &GET).unwrap()[0];
    assert!(matches!(considered.considered, Considered::NoAddress) && considered.decides);

    let deny = policy([rule().on_missing(OnMissing::Deny)]);
    assert_eq!(outcome(&deny, GET).0, Outcome::NoAddress);
    assert_eq!(outcome(&deny, GET.headers(&key)).0, Outcome::NoAddress);
    assert_eq!(outcome(&deny, known).0, Outcome::Unidentified);
    let share = policy([rule().on_missing(OnMissing::Share)]);
    assert_eq!(outcome(&share, GET).0, Outcome::Allowed);
    assert!(matches!(outcome(&share, GET).0, Outcome::Denied { .. }));
    let skip = rule().on_missing(OnMissing::Skip);
    let skip = policy([skip, Rule::new("rest").priority(1)]);
    assert_eq!(outcome(&skip, GET), (Outcome::Allowed, Some(1)));
    // A shadow rule notes it, and a rule without limits needs no address.
    let shadow = policy([rule().shadow()]);
    let decision = shadow.decide_at(at(1), &GET);
    assert!(decision.is_allowed() && decision.shadow_denied().is_some());
    let free = policy([Rule::new("free").key(Key::address())]);
    assert_eq!(outcome(&free, GET).0, Outcome::Allowed);
}

/// Headers of any bytes, as HTTP has them.
struct Bytes<'a>(&'a [(&'a str, &'a [u8])]);

impl Fields for Bytes<'_> {
    fn bytes(&self, name: &str) -> Option<&[u8]> {
        let mut all = self.0.iter();
        all.find(|(known, _)| *known == name)
            .map(|(_, value)| *value)
    }
}

/// A service reads all of these as one token (RFC 9110, section 11.1; RFC 6750).
#[test]
fn spellings_of_one_credential_are_one_key() {
    for key in [
        Key::header("authorization"),
        Key::header("Proxy-Authorization"),
        Key::first_header(["X-Api-Key", "Authorization"]),
    ] {
        let rule = Rule::new("clients").key(key).limit(limit("1/h"));
        let policy = policy([rule.override_key(["Bearer gold"], [limit("2/h")])]);
        let allows = |value: &str| {
            let headers = [("Authorization", value), ("Proxy-Authorization", value)];
            allows(&policy, at(1), &GET.headers(&headers))
        };
        assert!(allows("Bearer abc"));
        for same in [
            "Bearer abc",
            "bearer abc",
            "BEARER abc",
            "Bearer  abc",
            "bEARER \t abc ",
            "abc",
        ] {
            assert!(!allows(same), "{same:?}");
        }
        for other in [
            "Bearer ABC",
            "Bearer abcd",
            "Bearer abc d",
            "Bearer",
            "Bearer ",
        ] {
            assert_eq!(allows(other), other != "Bearer ", "{other:?}");
        }
        assert_eq!(
            ["Bearer gold", "BEARER gold", "Bearer  gold"].map(allows),
            [true, true, false]
        );
    }
    // The values of other fields are as they are.
    let policy = policy([Rule::new("clients")
        .key(Key::header("X-Api-Key"))
        .limit(limit("1/h"))]);
    for value in ["a b", "A b", "a  b", "b"] {
        assert!(allows(
            &policy,
            at(1),
            &GET.headers(&[("X-Api-Key", value)])
        ));
    }
}

#[test]
fn header_values_of_any_bytes_are_keys_of_their_own() {
    let key = Key::header("A").and(Key::header("B"));
    let rule = Rule::new("clients").key(key).limit(limit("1/h"));
    let policy = policy([rule.on_missing(OnMissing::Deny)]);
    let allows = |a: &[u8], b: &[u8]| {
        let headers = [("A", a), ("B", b)];
        let headers = Bytes(&headers);
        allows(&policy, at(1), &GET.headers(&headers))
    };
    let values: [&[u8]; 10] = [
        b"a",
        b"\xff",
        b"\xfe",
        b"\xfd",
        b"\xff\xff",
        b"a\xffa",
        b"\xffa\xff",
        b"a\x01\0\0\0\0\0\0\0\xfd",
        b"a\xff\x01\0\0\0\0\0\0\0\xfd",
        b"\x01\0\0\0\0\0\0\0\xfd\xff",
    ];
    for a in values {
        for b in values {
            assert!(allows(a, b), "{a:?} {b:?}: no other request has this key");
        }
    }
    for a in values {
        assert!(!allows(a, a), "{a:?}");
    }
    let headers = [("A", &b"\xffk"[..]), ("B", b"")];
    let headers = Bytes(&headers);
    let request = GET.headers(&headers);
    assert_eq!(headers.value("A"), None, "it is no text");
    let values = policy.key_values(policy.rule("clients").unwrap(), &request);
    assert_eq!(values.to_string(), "header:A=\u{fffd}k header:B=-");
}

/// Limits that share a table are asked in another order than those that do not.
#[test]
fn a_denial_starts_the_wait_of_the_first_limit_that_denies_and_of_no_other() {
    type Of<'a> = &'a dyn Fn(u64) -> Limit;
    type Decide = fn(&Policy, Timestamp, u32) -> Option<usize>;
    let ten = Duration::from_secs(10);
    // Each limit has 2 permits in 10 s, or 3.
    let window = |n| Limit::per(n, ten).algorithm_of(Algorithm::FixedWindow);
    let sliding = |n| Limit::per(n, ten).algorithm_of(Algorithm::SlidingWindow { segments: 2 });
    let waits = |n| {
        let from_request = Limit::per(n, ten).algorithm_of(Algorithm::WindowFromRequest);
        from_request.wait(Duration::from_secs(1_000))
    };
    let kinds: [Of<'_>; 4] = [&window, &window, &sliding, &waits];
    let decides: [Decide; 3] = [
        |policy, now, n| denied_by(policy.decide_at(now, &GET.cost(n)).outcome()),
        |policy, now, n| denied_by(policy.decide_explained_at(now, &GET.cost(n)).outcome()),
        |policy, now, n| denied_by(policy.hold_at(now, &GET.cost(n)).outcome()),
    ];
    // Which kinds a rule has, in which order, and which of them are exhausted.
    for order in 0..4_usize.pow(4) {
        let order: Vec<usize> = (0..4).map(|nth| order / 4_usize.pow(nth) % 4).collect();
        let is_distinct = (0..4).all(|nth| !order[..nth].contains(&order[nth]));
        if !is_distinct {
            continue;
        }
        for (first, exhausted) in (0..3).flat_map(|first| (1..16).map(move |bits| (first, bits))) {
            let order = &order[first..];
            let count = |kind: usize| if exhausted & 1 << kind == 0 { 3 } else { 2 };
            let limits = || order.iter().map(|&kind| kinds[kind](count(kind)));
            for decide in decides {
                let rule = limits().fold(Rule::new("all"), Rule::limit).hold(ten);
                let policy = policy([rule]);
                assert_eq!(decide(&policy, at(1), 2), None);
                let expected = order.iter().position(|&kind| count(kind) == 2);
                assert_eq!(
                    decide(&policy, at(2), 1),
                    expected,
                    "{order:?} {exhausted:04b}"
                );
                // All windows are over, but for a wait.
                let waits = expected.filter(|&limit| order[limit] == 3);
                assert_eq!(
                    decide(&policy, at(32), 1),
                    waits,
                    "{order:?} {exhausted:04b}"
                );
            }
        }
    }
}

/// The limit that denied.
fn denied_by(outcome: Outcome) -> Option<usize> {
    match outcome {
        Outcome::Denied { limit, .. } => limit,
        _ => None,
    }
}

#[test]
fn an_exempt_client_takes_nothing() {
    let policy = policy([Rule::new("all")
        .limit(limit("1/h"))
        .exempt_header("Oc-Client", ["admin", "ops"])
        .exempt_property("tenant", ["internal"])
        .exempt_networks(["10.0.0.0/8"])]);
    let exempt = [
        GET.headers(&[("oc-client", "admin")]),
        GET.properties(&[("tenant", "internal")]),
        GET.address("10.1.1.1".parse().unwrap()),
    ];
    for request in exempt.iter().cycle().take(9) {
        assert_eq!(policy.decide_at(at(1), request).outcome(), Outcome::Exempt);
    }
    assert!(
        allows(&policy, at(1), &GET.headers(&[("Oc-Client", "Admin")])),
        "exact values only"
    );
    assert!(!allows(&policy, at(1), &GET));
}

#[test]
fn a_shadow_rule_counts_and_lets_pass() {
    let policy = policy([
        Rule::new("busy").shadow().limit(Limit::at_once(1)),
        Rule::new("strict").shadow().limit(limit("2/h")),
        Rule::new("real").priority(1).limit(limit("3/h")),
    ]);
    let decide = |now| policy.decide_at(at(now), &GET);
    let first = decide(1);
    assert!(first.is_allowed() && first.shadow_denied().is_none());
    let second = decide(1);
    assert_eq!(
        second.shadow_denied().unwrap().name(),
        "busy",
        "the first one is held"
    );
    assert_eq!(second.rule().unwrap().name(), "real");
    drop((first, second));
    let third = decide(1);
    assert_eq!(third.shadow_denied().unwrap().name(), "strict");
    assert!(third.is_allowed());
    drop(third);
    let fourth = decide(1);
    assert!(!fourth.is_allowed(), "the next rule denies");
}

#[test]
fn permits_at_once_return_when_the_decision_is_dropped() {
    let policy = policy([Rule::new("uploads")
        .key(Key::address())
        .limit(Limit::at_once(2))
        .limit(limit("4/h"))]);
    let request = GET.address("192.0.2.7".parse().unwrap());
    let first = policy.decide_at(at(1), &request);
    let second = policy.decide_at(at(1), &request);
    let third = policy.decide_at(at(1), &request);
    assert!(first.is_allowed() && second.is_allowed() && !third.is_allowed());
    assert_eq!(third.retry(), Some(Retry::OnRelease));
    drop(third);
    assert!(!allows(&policy, at(1), &request), "a denial holds nothing");
    drop(first);
    assert!(allows(&policy, at(1), &request));
    assert!(allows(&policy, at(1), &request.cost(0)), "a probe");
    let _fourth = policy.decide_at(at(1), &request);
    let fifth = policy.decide_at(at(1), &request);
    assert!(!fifth.is_allowed(), "the hour is used up");
    drop(second);
    assert!(!allows(&policy, at(1), &request));
}

#[test]
fn a_request_for_no_permits_returns_none() {
    let policy = policy([Rule::new("uploads")
        .key(Key::address())
        .limit(Limit::at_once(1))]);
    // The key has no state yet.
    let request = GET.address("192.0.2.7".parse().unwrap());
    assert!(allows(&policy, at(1), &request.cost(0)));
    let held = policy.decide_at(at(1), &request);
    assert!(!allows(&policy, at(1), &request.cost(0)));
    assert!(!allows(&policy, at(1), &request));
    drop(held);
    assert!(allows(&policy, at(1), &request));
}

#[test]
fn a_penalty_denies_for_its_time_and_is_not_extended() {
    let policy = policy([Rule::new("login")
        .key(Key::address())
        .limit(limit("2/s"))
        .penalty(Duration::from_mins(1))]);
    let a = GET.address("192.0.2.1".parse().unwrap());
    let b = GET.address("192.0.2.2".parse().unwrap());
    assert!(allows(&policy, at(10), &a.cost(2)));
    let too_much = policy.decide_at(at(10), &a.cost(3));
    assert!(matches!(
        too_much.outcome(),
        Outcome::Denied {
            denied: Denied::ExceedsCapacity { .. },
            ..
        }
    ));
    assert_eq!(too_much.retry(), Some(Retry::Never));
    assert!(
        !policy
            .explain_at(at(10), &a)
            .unwrap()
            .iter()
            .any(|rule| matches!(
                rule.considered,
                Considered::Limits {
                    is_penalized: true,
                    ..
                }
            )),
        "too large a request is not punished"
    );
    let over = policy.decide_at(at(10), &a);
    assert_eq!(over.retry(), Some(Retry::At(at(70))));
    for now in [11, 40, 69] {
        let denied = policy.decide_at(at(now), &a);
        assert!(matches!(
            denied.outcome(),
            Outcome::Denied {
                limit: None,
                denied: Denied::Penalized { .. }
            }
        ));
        assert_eq!(denied.retry(), Some(Retry::At(at(70))));
        assert!(allows(&policy, at(now), &b));
    }
    assert!(allows(&policy, at(70), &a));
}

#[test]
fn each_algorithm_counts_as_it_says() {
    let second = Duration::from_secs(10);
    let admitted = |limit: Limit, times: &[u64]| -> Vec<bool> {
        let policy = policy([Rule::new("one").key(Key::method()).limit(limit)]);
        times
            .iter()
            .map(|&millis| allows(&policy, Timestamp::from_millis(millis), &GET))
            .collect()
    };
    let two = Limit::per(2, second);
    let window = two.clone().algorithm_of(Algorithm::FixedWindow);
    assert_eq!(
        admitted(window, &[9_000, 9_000, 9_999, 10_000, 10_000, 10_000]),
        [true, true, false, true, true, false]
    );
    let from_request = two.clone().algorithm_of(Algorithm::WindowFromRequest);
    assert_eq!(
        admitted(from_request.clone(), &[9_000, 9_000, 18_999, 19_000]),
        [true, true, false, true]
    );
    let waits = from_request.wait(Duration::from_secs(30));
    assert_eq!(
        admitted(waits, &[9_000, 9_000, 10_000, 39_999, 40_001]),
        [true, true, false, false, true]
    );
    let sliding = two
        .clone()
        .algorithm_of(Algorithm::SlidingWindow { segments: 10 });
    assert_eq!(
        admitted(sliding, &[9_000, 9_500, 18_900, 19_000, 19_000, 19_000]),
        [true, true, false, true, true, false]
    );
    assert_eq!(
        admitted(two, &[9_000, 9_000, 9_000, 14_000, 14_000]),
        [true, true, false, true, false]
    );
}

#[test]
fn a_stepwise_bucket_gets_the_permits_of_a_period_at_its_end() {
    let bucket = |burst| Limit::per(3, Duration::from_millis(200)).burst(burst);
    let (mut granted, mut denied) = (0, 0);
    // Alone, and in one entry with another limit.
    for others in [vec![], vec![limit("100000/s")]] {
        let rule = Rule::new("all").key(Key::path()).keys(10);
        let rule = rule.limit(bucket(7).stepwise());
        let policy = policy([others.into_iter().fold(rule, Rule::limit)]);
        let (mut now, mut period, mut permits) = (5_000_u64, 25, 7);
        for turn in 0..3_000_u64 {
            now += [0, 1, 0, 70, 199, 0, 200, 3, 451][turn as usize * 7 % 9];
            let cost = 1 + turn % 5 * (turn % 2);
            permits = 7.min(permits + 3 * (now / 200 - period));
            period = now / 200;
            let request = GET.cost(cost as u32);
            let decision = policy.decide_at(Timestamp::from_millis(now), &request);
            assert_eq!(decision.is_allowed(), cost <= permits, "{now}");
            if decision.is_allowed() {
                permits -= cost;
                granted += 1;
            } else {
                let steps = (cost - permits).div_ceil(3);
                let retry = Retry::At(Timestamp::from_millis(200 * (period + steps)));
                assert_eq!(decision.retry(), Some(retry));
                denied += 1;
            }
        }
    }
    assert!(granted > 100 && denied > 100, "{granted} {denied}");
}

#[test]
fn a_path_that_is_too_long_is_denied() {
    let policy = policy([]);
    let long = "a".repeat(9_000);
    let decision = policy.decide_at(at(1), &Request::new("GET", &long));
    assert_eq!(decision.outcome(), Outcome::Path(PathError::TooLong));
    assert!(!decision.is_allowed() && decision.retry().is_none() && decision.status().is_none());
}

#[test]
fn all_wrong_settings_are_reported_with_rule_and_setting() {
    let errors = Policy::new([
        Rule::new("a")
            .when(
                Conditions::new()
                    .paths(["/x*"])
                    .hosts(["10.0.0.0/40", "no host"])
                    .property("p", [""; 0]),
            )
            .with_status(200)
            .keys(0)
            .penalty(Duration::ZERO),
        Rule::new("b")
            .limit(limit("1/0s"))
            .limit(Limit::per(1, Duration::ZERO))
            .limit(limit("5/s").wait(Duration::from_secs(1)))
            .limit(limit("5/s").algorithm_of(Algorithm::SlidingWindow { segments: 65 }))
            .limit(limit("5000000000/s"))
            .limit(limit("5/s").algorithm_of(Algorithm::FixedWindow).stepwise())
            .limit(Limit::at_once(5).stepwise())
            .exempt_networks(["10.0.0.1", "10.0.0.1/x"])
            .disabled(),
        (0..9).fold(Rule::new("c"), |rule, _| rule.limit(limit("1/s"))),
    ])
    .unwrap_err();
    let settings: Vec<_> = errors
        .iter()
        .map(|error| format!("{} {}", error.rule, error.setting))
        .collect();
    assert_eq!(
        settings,
        [
            "a paths",
            "a hosts",
            "a hosts",
            "a properties",
            "a status",
            "a keys",
            "a penalty",
            "a penalty",
            "b limits[0]",
            "b limits[1]",
            "b limits[2]",
            "b limits[3]",
            "b limits[4]",
            "b limits[5]",
            "b limits[6]",
            "b exempt_networks",
            "c limits",
        ],
        "{errors:#?}"
    );
}

#[test]
fn tables_that_are_too_large_are_refused_and_not_allocated() {
    let sliding = limit("5/s").algorithm_of(Algorithm::SlidingWindow { segments: 2 });
    let rule = |keys| Rule::new("a").key(Key::address()).keys(keys);
    let refused = |rule: Rule| Policy::new([rule]).unwrap_err()[0].to_string();
    assert_eq!(
        refused(rule(usize::MAX).limit(limit("5/s"))),
        format!(
            "rule `a`: keys: must be at most 24970740 with these limits, not {}",
            usize::MAX
        )
    );
    assert!(refused(rule(400_000).limit(sliding)).contains("at most 316"));
}

#[test]
fn threads_together_get_no_more_than_the_limits() {
    let policy = policy([Rule::new("all")
        .key(Key::tier())
        .limit(limit("1000/h"))
        .limit(limit("700/d"))]);
    let granted: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    (0..500)
                        .filter(|_| allows(&policy, at(1), &GET.tier("t")))
                        .count()
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum()
    });
    assert_eq!(granted, 700);
}

/// The limiters of one key, apart from any table.
struct Model {
    bucket: TokenBucket,
    window: FixedWindow,
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Two limits for each key: the same decisions, states and retries as limiters that are asked
    /// one after the other, and explanations that agree with the decisions.
    #[test]
    fn a_policy_decides_as_limiters_in_a_map(
        steps in proptest::collection::vec((0_u8..4, 0_u32..5, 0_u64..3_000), 1..200),
    ) {
        let policy = policy([Rule::new("all")
            .key(Key::header("key"))
            .limit(limit("3/s").burst(4))
            .limit(limit("7/5s").algorithm_of(Algorithm::FixedWindow))]);
        let mut models: HashMap<u8, Model> = HashMap::new();
        let mut now = at(1_000);
        for (key, cost, millis) in steps {
            now += Duration::from_millis(millis);
            let name = key.to_string();
            let headers = [("key", &*name)];
            let request = GET.headers(&headers).cost(cost);
            let model = models.entry(key).or_insert_with(|| Model {
                // A slot of a table counts in ticks of 1 µs.
                bucket: TokenBucket::builder(Rate::per_second(3), 4)
                    .tick(Duration::from_micros(1))
                    .build()
                    .unwrap(),
                window: FixedWindow::new(7, Duration::from_secs(5)),
            });
            let limits: [&dyn Limiter; 2] = [&model.bucket, &model.window];
            let denies = limits.iter().position(|limit| limit.peek_at(now, cost).is_err());
            let retry = limits.iter().fold(Retry::At(now), |all, limit| {
                match limit.peek_at(now, cost) {
                    Ok(()) => all,
                    Err(denied) => all.longer(limit.retry(denied), now),
                }
            });
            let explained = policy.explain_at(now, &request).unwrap();
            let Considered::Limits { details, .. } = &explained[0].considered else { panic!() };
            prop_assert_eq!(details.iter().position(|detail| !detail.is_allowed()), denies);
            for (detail, limit) in details.iter().zip(limits) {
                prop_assert_eq!(detail.available, limit.available_at(now));
            }
            let decision = policy.decide_at(now, &request);
            match (denies, decision.outcome()) {
                (None, Outcome::Allowed) => {
                    for limit in limits {
                        prop_assert!(limit.take_at(now, cost).is_ok());
                    }
                }
                (Some(index), Outcome::Denied { limit: Some(limit), denied }) => {
                    prop_assert_eq!(index, limit);
                    if matches!(denied, Denied::Exhausted { .. }) {
                        prop_assert_eq!(decision.retry(), Some(retry));
                    }
                }
                other => prop_assert!(false, "{other:?}"),
            }
            if let Some(status) = decision.status() {
                prop_assert_eq!(status.remaining, limits[status.index].available_at(now));
            }
        }
    }
}

#[test]
fn case_can_be_ignored_in_the_whole_policy() {
    let rule = || {
        Rule::new("one")
            .when(Conditions::new().paths(["/Users/*"]))
            .key(Key::path())
            .limit(limit("1/h"))
    };
    let policy = Policy::with_path_rules([rule()], PathRules::new().ignoring_case()).unwrap();
    assert!(allows(&policy, at(1), &Request::new("GET", "/users/A")));
    assert!(!allows(&policy, at(1), &Request::new("GET", "/USERS/a")));
}

#[test]
fn a_window_does_not_open_again_while_its_key_is_not_used() {
    let of =
        |algorithm, seconds| Limit::per(3, Duration::from_secs(seconds)).algorithm_of(algorithm);
    let algorithms = [Algorithm::FixedWindow, Algorithm::WindowFromRequest];
    for (algorithm, seconds) in algorithms
        .into_iter()
        .flat_map(|algorithm| [10, 600, 3_600, 86_400].map(|seconds| (algorithm, seconds)))
    {
        let rule = Rule::new("r")
            .key(Key::address())
            .limit(of(algorithm, seconds));
        let policy = Policy::new([rule]).unwrap();
        let request = Request::new("GET", "/").address("192.0.2.7".parse().unwrap());
        // Windows on a grid begin at multiples of their length.
        let start = 10 * 86_400;
        assert!(
            policy
                .decide_at(Timestamp::from_secs(start), &request.cost(3))
                .is_allowed()
        );
        // 40 days, in steps that are shorter than the window.
        for later in (0..40 * 86_400).step_by(seconds.min(600) as usize / 2) {
            let now = Timestamp::from_secs(start + later);
            let explained = policy.explain_at(now, &request).unwrap();
            let Considered::Limits { details, .. } = &explained[0].considered else {
                panic!("{explained:?}")
            };
            let expected = if later < seconds { 0 } else { 3 };
            let available = details[0].available;
            assert_eq!(
                available, expected,
                "{algorithm:?}, {seconds} s, after {later} s"
            );
        }
    }
}

/// Also with a count for which a table would choose a unit of a tenth of the window.
#[test]
fn a_window_from_a_request_is_longer_by_at_most_a_ten_thousandth() {
    let of = |count| {
        let limit = Limit::per(count, Duration::from_secs(1));
        let rule = Rule::new("r").key(Key::address());
        Policy::new([rule.limit(limit.algorithm_of(Algorithm::WindowFromRequest))])
    };
    let count = 8_388_607;
    let policy = of(count.into()).unwrap();
    let request = Request::new("GET", "/").address("192.0.2.7".parse().unwrap());
    let start = 5_000_070_000_u64;
    let is_granted = |after, cost| {
        let now = Timestamp::from_nanos(start + after);
        policy.decide_at(now, &request.cost(cost)).is_allowed()
    };
    assert!(is_granted(0, count));
    assert!(!is_granted(999_999_999, 1));
    assert!(is_granted(1_000_100_000, count));

    let errors = of(u64::from(count) + 1).unwrap_err();
    assert!(
        errors[0].to_string().contains("at most 8388607"),
        "{errors:?}"
    );
}

#[test]
fn a_penalty_does_not_come_back_while_its_key_is_not_used() {
    let limit = || "10/s".parse().unwrap();
    let policy = Policy::new([10, 600, 86_400].map(|seconds| {
        Rule::new(&seconds.to_string())
            .when(Conditions::new().paths([format!("/{seconds}")]))
            .key(Key::address())
            .limit(limit())
            .penalty(Duration::from_secs(seconds))
    }))
    .unwrap();
    for seconds in [10, 600, 86_400] {
        let path = format!("/{seconds}");
        let request = Request::new("GET", &path).address("192.0.2.7".parse().unwrap());
        let start = 1_000;
        let now = Timestamp::from_secs(start);
        assert!(policy.decide_at(now, &request.cost(10)).is_allowed());
        assert!(!policy.decide_at(now, &request).is_allowed());
        // 4 days, in steps of which several are shorter than the penalty.
        for later in (0..4 * 86_400).step_by(seconds.min(600) as usize / 2) {
            let now = Timestamp::from_secs(start + later);
            let explained = policy.explain_at(now, &request).unwrap();
            let is_penalized = explained.iter().any(|rule| {
                let considered = &rule.considered;
                matches!(
                    considered,
                    Considered::Limits {
                        is_penalized: true,
                        ..
                    }
                )
            });
            assert_eq!(
                is_penalized,
                later < seconds,
                "{seconds} s, after {later} s"
            );
        }
    }
}

/// Each address exceeds its limit once. There are more than the table of the penalty has room for.
#[test]
fn a_penalty_without_room_denies_and_says_so() {
    const CLIENTS: u32 = 6_000;
    let rule = Rule::new("login").key(Key::address()).limit(limit("1/s"));
    let policy = policy([rule.penalty(Duration::from_mins(10))]);
    let statistics = Statistics::new(&policy);
    let decide = |now, client: u32| {
        let address = core::net::Ipv4Addr::from(client).into();
        let request = GET.address(address);
        let decision = statistics.decide_at(&policy, now, &request);
        (decision.outcome(), decision.retry())
    };
    // Two clients that share an entry of a table are penalized together.
    let (mut crowded, mut together) = (0, 0);
    for client in 0..CLIENTS {
        // The limits are idle again after a second, so that only the penalties stay in use.
        let now = at(1_000 + u64::from(client) / 100);
        for _ in 0..2 {
            let (outcome, retry) = decide(now, client);
            let Outcome::Denied { denied, .. } = outcome else {
                continue;
            };
            if let Denied::Crowded { .. } = denied {
                assert!(matches!(retry, Some(Retry::After(_))), "{retry:?}");
                crowded += 1;
            }
            together += u64::from(matches!(denied, Denied::Penalized { .. }));
        }
    }
    assert!(crowded > 0, "some of the last find no room");
    let (mut penalized, mut full) = (0, 0);
    for client in 0..CLIENTS {
        match decide(at(1_200), client).0 {
            Outcome::Denied {
                limit: None,
                denied: Denied::Penalized { .. },
            } => penalized += 1,
            Outcome::Denied {
                limit: None,
                denied: Denied::Crowded { .. },
            } => full += 1,
            other => panic!("{client} escapes: {other:?}"),
        }
    }
    assert_eq!(penalized + full, u64::from(CLIENTS));
    let counts = &statistics.rules()[0];
    assert_eq!(
        (counts.penalized, counts.crowded),
        (together + penalized, crowded + full)
    );
}

#[test]
fn a_limit_of_0_denies_every_request_for_ever() {
    let zero = |algorithm| Limit::per(0, Duration::from_secs(1)).algorithm_of(algorithm);
    let limits = [
        Limit::at_once(0),
        zero(Algorithm::TokenBucket),
        zero(Algorithm::TokenBucket).stepwise(),
        zero(Algorithm::FixedWindow),
        zero(Algorithm::WindowFromRequest),
        zero(Algorithm::WindowFromRequest).wait(Duration::from_secs(3)),
        zero(Algorithm::SlidingWindow { segments: 3 }),
        limit("7/s").burst(9).initial(2).scaled(0, 3),
    ];
    let b = GET.tier("b");
    for closed in limits {
        let name = closed.to_string();
        let open = || Rule::new("one").key(Key::tier()).limit(limit("5/h"));
        let rule = open().penalty(Duration::from_mins(1)).limit(closed.clone());
        let all = policy([rule]);
        let one = policy([open().override_key(["b"], [limit("5/h"), closed])]);
        for (policy, decided) in [(&all, b), (&one, b)] {
            for now in [at(1), at(2), at(1_000_000)] {
                for cost in [0, 1, 7] {
                    let decision = policy.decide_at(now, &decided.cost(cost));
                    let permits = cost;
                    let denied = Denied::ExceedsCapacity {
                        permits,
                        capacity: 0,
                    };
                    let outcome = Outcome::Denied {
                        limit: Some(1),
                        denied,
                    };
                    assert_eq!(decision.outcome(), outcome, "{name}");
                    assert_eq!(decision.retry(), Some(Retry::Never), "{name}");
                    let status = decision.status().unwrap();
                    assert_eq!((status.index, status.remaining), (1, 0), "{name}");
                    assert_eq!(status.limit.capacity(), 0, "{name}");
                    assert_eq!(status.reset, Retry::Never, "{name}");
                    // The other limit has given nothing away.
                    let mut all = decision.statuses();
                    assert_eq!(all.next().unwrap().remaining, 5, "{name}");
                    let explained = policy.decide_explained_at(now, &decided.cost(cost));
                    assert_eq!(explained.outcome(), outcome, "{name}");
                    assert_eq!(explained.decided_by().unwrap().index, 1, "{name}");
                    assert_eq!(explained.retry(), Some(Retry::Never), "{name}");
                }
            }
            let explained = policy.explain_at(at(3), &b).unwrap();
            let Considered::Limits {
                details,
                is_penalized,
                ..
            } = &explained[0].considered
            else {
                panic!("the rule applies")
            };
            assert!(!is_penalized, "{name}");
            let detail = &details[1];
            assert_eq!((detail.available, detail.capacity), (0, 0), "{name}");
            assert!(
                detail.decision.is_err() && detail.retry == Retry::Never,
                "{name}"
            );
        }
        assert!(allows(&one, at(1), &GET.tier("a")), "{name}: another key");
    }
}

#[test]
fn a_limit_of_0_has_no_permits_to_begin_with() {
    let refused = |limit| {
        let errors = Policy::new([Rule::new("a").limit(limit)]).unwrap_err();
        errors[0].to_string()
    };
    for (limit, setting) in [
        (limit("0/s").burst(5), "burst"),
        (limit("0/s").initial(0), "initial"),
    ] {
        let expected = format!(
            "rule `a`: limits[0]: a limit of 0 denies every request: leave {setting} out, or give \
             a count of at least 1"
        );
        assert_eq!(refused(limit), expected);
    }
    assert!(refused(limit("0/s").wait(Duration::from_secs(1))).contains("wait has no effect"));
    assert!(refused(Limit::per(0, Duration::ZERO)).contains("period must be longer than 0"));
}

/// A tenant is closed by a file.
#[test]
#[cfg(feature = "toml")]
fn a_limit_of_0_in_a_file_denies() {
    let policy = Policy::from_toml(
        "[[rules]]\nname = 'ban'\nproperties = { bar = ['banned'] }\nlimits = ['0/m']\n\
         [[rules]]\nname = 'uploads'\nlimits = [{ at_once = 0 }]\n",
    );
    let policy = policy.unwrap();
    for request in [GET, GET.properties(&[("bar", "banned")])] {
        assert_eq!(
            policy.decide_at(at(1), &request).retry(),
            Some(Retry::Never)
        );
    }
}

/// A state in a table is a word of 43 bits, which wraps after hours or days. A client that returns
/// after a holiday has all its permits all the same.
#[test]
fn a_rule_that_rested_for_any_time_up_to_ten_years_grants_its_whole_limit() {
    const TEN_YEARS: u64 = 10 * 366 * 86_400;
    const START: u64 = 1_000;
    let per = |count, seconds| Limit::per(count, Duration::from_secs(seconds));
    let window = |count, seconds| per(count, seconds).algorithm_of(Algorithm::FixedWindow);
    let started = |count, seconds, wait| {
        per(count, seconds)
            .algorithm_of(Algorithm::WindowFromRequest)
            .wait(Duration::from_secs(wait))
    };
    let sliding = |count, seconds| {
        per(count, seconds).algorithm_of(Algorithm::SlidingWindow { segments: 10 })
    };
    let limits: Vec<Vec<Limit>> = [1, 5, 7, 10, 61, 100, 300, 999, 2_443, 10_000, 1_000_000]
        .into_iter()
        .flat_map(|count| {
            [1, 60, 3_600, 86_400].into_iter().flat_map(move |seconds| {
                vec![
                    vec![per(count, seconds)],
                    vec![window(count, seconds)],
                    vec![started(count, seconds, 5)],
                    vec![sliding(count, seconds)],
                    vec![per(count, seconds), window(2 * count, 2 * seconds)],
                    vec![
                        per(count, seconds),
                        Limit::at_once(3),
                        started(count, seconds, 600),
                    ],
                ]
            })
        })
        .collect();
    assert!(limits.len() >= 200);
    // From two days, in which every limit is full again, to ten years.
    let mut state = 1u64;
    let mut rests: Vec<u64> = (0..60)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            // Up to the longest rest, halved up to ten times: as many of each magnitude.
            let longest = TEN_YEARS >> ((state >> 60) % 11);
            172_801 + (state >> 20) % (longest - 172_801)
        })
        .collect();
    rests.sort_unstable();
    let client = GET.address([10, 0, 0, 1].into());
    for limits in limits {
        let rule = |name| {
            limits
                .iter()
                .fold(Rule::new(name), |rule, limit| rule.limit(limit.clone()))
        };
        let count = u32::try_from(limits[0].count()).unwrap();
        // A limit of permits at once beside it has three.
        let count = if limits.len() == 3 {
            count.min(3)
        } else {
            count
        };
        for (nth, rest) in rests.iter().enumerate() {
            // A table for each: in a table with many keys, two of them may collide.
            let keyed = policy([rule("by client").key(Key::address()).keys(10)]);
            let all = (nth % 6 == 0).then(|| policy([rule("all")]));
            for policy in [Some(keyed), all].into_iter().flatten() {
                assert!(allows(&policy, at(START), &client), "{limits:?}");
                assert!(
                    allows(&policy, at(START + rest), &client.cost(count)),
                    "{limits:?} after {rest} s, {policy:?}"
                );
            }
        }
    }
}

/// The grants of a window in some span as long as its period, at most.
fn most_in_a_period(policy: &Policy, seed: u64) -> usize {
    let mut state = seed;
    let mut grants: Vec<u64> = Vec::new();
    let mut now = 0;
    for _ in 0..4_000 {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        now += [1, 7, 120, 900][(state >> 60) as usize % 4];
        let request = Request::new("GET", "/");
        if policy
            .decide_at(Timestamp::from_millis(now), &request)
            .is_allowed()
        {
            grants.push(now);
        }
    }
    let in_span = |&first: &u64| {
        let inside = |at: &&u64| (first..first + 10_000).contains(*at);
        grants.iter().filter(inside).count()
    };
    grants.iter().map(in_span).max().unwrap_or(0)
}

#[test]
fn a_strict_sliding_window_holds_in_any_span() {
    let sliding = |text: &str| {
        let limit = limit(text);
        limit.algorithm_of(Algorithm::SlidingWindow { segments: 4 })
    };
    let policy = |limit| Policy::new([Rule::new("all").limit(limit)]).unwrap();
    let mut loose = 0;
    for seed in 1..20 {
        assert!(most_in_a_period(&policy(sliding("9/10s").strict()), seed) <= 9);
        loose = loose.max(most_in_a_period(&policy(sliding("9/10s")), seed));
    }
    assert!(
        loose > 9,
        "by default it holds in spans that begin with a segment"
    );
    // Only a sliding window can be strict, with room for one more segment.
    let problem = |limit| {
        let errors = Policy::new([Rule::new("all").limit(limit)]).unwrap_err();
        errors[0].problem.clone()
    };
    for other in [limit("9/10s").strict(), Limit::at_once(3).strict()] {
        assert!(problem(other).starts_with("strict has no effect"));
    }
    let many = limit("9/h").algorithm_of(Algorithm::SlidingWindow { segments: 64 });
    assert!(Policy::new([Rule::new("all").limit(many.clone())]).is_ok());
    assert!(problem(many.strict()).contains("63"));
}
