//! Other limits for given keys.

use core::time::Duration;

use portcullis_core::Timestamp;
use portcullis_policy::{
    Algorithm, Considered, Key, Limit, OnMissing, Outcome, Policy, Request, Rule,
};

const GET: Request<'static> = Request::new("GET", "/");

fn limit(text: &str) -> Limit {
    text.parse().unwrap()
}

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_secs(seconds)
}

fn allows(policy: &Policy, now: Timestamp, request: &Request<'_>) -> bool {
    policy.decide_at(now, request).is_allowed()
}

/// How many requests of cost 1 pass at once, up to 100.
fn count(policy: &Policy, request: &Request<'_>) -> usize {
    (0..100).filter(|_| allows(policy, at(1), request)).count()
}

#[test]
fn a_key_has_the_limits_of_its_override_and_the_others_those_of_the_rule() {
    let policy = Policy::new([Rule::new("tenants")
        .key(Key::header("X-Tenant"))
        .limit(limit("3/h"))
        .override_key(["gold"], [limit("50/h"), limit("20/m")])
        .override_key(["none"], [limit("1/h").burst(1)])
        .override_key(["free"], [])])
    .unwrap();
    for (tenant, passes) in [
        ("gold", 20),
        ("Gold", 3),
        ("none", 1),
        ("other", 3),
        ("free", 100),
    ] {
        let headers = [("x-tenant", tenant)];
        let request = GET.headers(&headers);
        assert_eq!(count(&policy, &request), passes, "{tenant}");
        let decision = policy.decide_at(at(1), &request);
        let is_overridden = ["gold", "none"].contains(&tenant);
        assert_eq!(decision.is_overridden(), is_overridden, "{tenant}");
    }
    assert_eq!(count(&policy, &GET), 3, "without a tenant");
    let headers = [("X-Tenant", "gold")];
    let denied = policy.decide_explained_at(at(1), &GET.headers(&headers));
    assert_eq!(denied.rule().unwrap().name(), "tenants");
    let decided = denied.decided_by().unwrap();
    assert_eq!((decided.index, decided.limit.count()), (1, 20));
    assert_eq!(denied.details().count(), 2);
    assert_eq!(denied.status().unwrap().limit.count(), 20);
    let wait = denied.into_decision().retry().unwrap().wait_from(at(1));
    assert_eq!(wait, Some(Duration::from_secs(3)));
}

#[test]
fn every_part_of_a_key_can_be_named() {
    let overridden = |key: Key, values: &[&str], request: Request<'_>| {
        let values = values.iter().copied();
        let rule = Rule::new("one").key(key).limit(limit("1/h"));
        let policy = Policy::new([rule.override_key(values, [limit("2/h")])]).unwrap();
        policy.decide_at(at(1), &request).is_overridden()
    };
    let address = |text: &str| GET.address(text.parse().unwrap());
    assert!(overridden(Key::shared(), &[], GET));
    assert!(overridden(Key::method(), &["GET"], GET));
    assert!(!overridden(Key::method(), &["get"], GET));
    assert!(overridden(Key::tier(), &["free"], GET.tier("free")));
    assert!(overridden(
        Key::host(),
        &["A.example:80"],
        GET.host("a.example.")
    ));
    assert!(overridden(
        Key::path(),
        &["/a//b?q"],
        Request::new("PUT", "/a/%62")
    ));
    assert!(!overridden(
        Key::path(),
        &["/a/b"],
        Request::new("PUT", "/a/c")
    ));
    assert!(overridden(
        Key::address(),
        &["2001:db8::1"],
        address("2001:db8::2")
    ));
    assert!(overridden(
        Key::address_prefix(24, 64),
        &["10.0.0.0"],
        address("::ffff:10.0.0.9")
    ));
    assert!(!overridden(
        Key::address(),
        &["10.0.0.0"],
        address("10.0.0.9")
    ));
    assert!(overridden(
        Key::property("p"),
        &["v"],
        GET.properties(&[("P", "v")])
    ));
    let both = || Key::header("X-Tenant").and(Key::method());
    let a = [("X-Tenant", "a")];
    assert!(overridden(both(), &["a", "GET"], GET.headers(&a)));
    assert!(!overridden(both(), &["a", "PUT"], GET.headers(&a)));
    assert!(!overridden(both(), &["a", "GET"], GET), "no tenant");
}

#[test]
fn an_override_has_a_state_and_a_penalty_of_its_own() {
    let window = limit("2/10s").algorithm_of(Algorithm::WindowFromRequest);
    let sliding = limit("9/10s").algorithm_of(Algorithm::SlidingWindow { segments: 5 });
    let policy = Policy::new([Rule::new("one")
        .key(Key::tier())
        .limit(limit("1/s"))
        .override_key(["a"], [window.wait(Duration::from_secs(5)), sliding])
        .override_key(["b"], [limit("5/s"), Limit::at_once(1)])
        .penalty(Duration::from_mins(1))])
    .unwrap();
    let (a, b, other) = (GET.tier("a"), GET.tier("b"), GET.tier("c"));
    assert_eq!(count(&policy, &a), 2);
    assert!(!allows(&policy, at(50), &a), "the penalty");
    assert!(allows(&policy, at(61), &a));
    let held = policy.decide_at(at(61), &b);
    assert!(held.is_allowed());
    assert!(!allows(&policy, at(61), &b), "one at once");
    drop(held);
    assert!(
        allows(&policy, at(121), &b),
        "released, and the penalty is over"
    );
    assert_eq!(count(&policy, &other), 1);
    let explained = policy.explain_at(at(121), &b).unwrap();
    let Considered::Limits { details, .. } = &explained[0].considered else {
        panic!("the rule applies")
    };
    assert_eq!(details.len(), 2, "those of the override");
}

#[test]
fn a_shadow_rule_judges_by_overrides_too() {
    let policy = Policy::new([Rule::new("shadow")
        .shadow()
        .key(Key::tier())
        .limit(Limit::at_once(1))
        .override_key(["a"], [Limit::at_once(2)])])
    .unwrap();
    let decide = || policy.decide_at(at(1), &GET.tier("a"));
    let held = [decide(), decide()];
    assert!(held.iter().all(|held| held.shadow_denied().is_none()));
    let denied = decide();
    assert_eq!(denied.shadow_denied().unwrap().name(), "shadow");
    assert_eq!(denied.shadow_denied_by(), Some(&Limit::at_once(2)));
    drop(held);
    assert!(decide().shadow_denied().is_none(), "both are released");
}

#[test]
fn a_request_without_the_key_is_not_overridden() {
    let rule = Rule::new("one")
        .key(Key::header("X-Key"))
        .limit(limit("1/h"))
        .on_missing(OnMissing::Deny)
        .override_key(["k"], [limit("2/h")]);
    let policy = Policy::new([rule]).unwrap();
    let outcome = policy.decide_at(at(1), &GET).outcome();
    assert_eq!(outcome, Outcome::Unidentified);
    assert_eq!(count(&policy, &GET.headers(&[("X-Key", "k")])), 2);
}

#[test]
fn overrides_are_checked_when_the_rule_is_put_in_force() {
    let refused = |rule: Rule| -> Vec<String> {
        let errors = Policy::new([rule]).unwrap_err();
        errors.iter().map(ToString::to_string).collect()
    };
    let rule = || Rule::new("a").limit(limit("1/s"));
    let tenants = || rule().key(Key::header("X-Tenant"));
    let two = || [limit("2/s")];
    assert_eq!(
        refused(
            tenants()
                .override_key(["a", "b"], two())
                .override_key([""], two())
                .override_key(["x"], two())
                .override_key(["y"], [limit("2/s"), limit("1/0s")])
                .override_key(["z"], (0..9).map(|_| limit("1/s")))
                .override_key(["x"], [])
        ),
        [
            "rule `a`: overrides[0]: the key has 1 part, so an override has 1 value, not 2",
            "rule `a`: overrides[1]: no request has the key [\"\"]",
            "rule `a`: overrides[3].limits[1]: period must be longer than 0",
            "rule `a`: overrides[4]: a rule has at most 8 limits",
            "rule `a`: overrides[5]: another override is for the same key",
        ]
    );
    let address = rule()
        .key(Key::address())
        .override_key(["10.0.0.0/8"], two());
    assert_eq!(
        refused(address),
        ["rule `a`: overrides[0]: `10.0.0.0/8` is not an address"]
    );
    let prefix = rule()
        .key(Key::address())
        .override_key(["2001:db8::1"], two())
        .override_key(["2001:db8::2"], two());
    assert_eq!(
        refused(prefix),
        ["rule `a`: overrides[1]: another override is for the same key"]
    );
    // What no request has, each beside what one can have.
    for (key, never, possible) in [
        (Key::path(), "http://a/b", "/to/http://a"),
        (Key::path(), "/admin/*", "/admin/%2A"),
        (Key::host(), "*.example.com", "[2001:db8::1]:8080"),
        (Key::host(), "a b", "my_host."),
        (Key::host(), "a/b", "xn--bcher-kva.example"),
        (Key::method(), "GET ", "M-SEARCH"),
        (Key::method(), "GET,PUT", "HEAD"),
        (Key::header("X"), " a", "a b\tc"),
        (Key::header("X"), "a\n", "é"),
        (Key::first_header(["X", "Y"]), "a\0", "*"),
    ] {
        let of = |value| rule().key(key.clone()).override_key([value], two());
        let errors = refused(of(never));
        let is_told = errors.len() == 1 && errors[0].contains("` is ");
        assert!(is_told, "{never:?}: {errors:?}");
        assert!(Policy::new([of(possible)]).is_ok(), "{possible:?}");
    }
    let function = rule()
        .key(Key::function(|_, _| true))
        .override_key(["x"], two());
    assert_eq!(
        refused(function),
        ["rule `a`: overrides[0]: a part of the key is a function, which has no values to name"]
    );
    assert_eq!(
        refused(Rule::new("a").override_key([""; 0], two())),
        ["rule `a`: overrides: have no effect without a limit: leave them out, or add a limit"]
    );
}
