//! Cases from the tests of Ocelot 25.0 (`ClientHeaderRateLimitingTests`, `RateLimitingSteps`) and
//! of limitador (`integration_tests`, `envoy_rls/server`), as far as they need no HTTP. Time is
//! manual, also where those tests sleep. Where ours differs, the test says so.

use core::time::Duration;

use portcullis_core::{Denied, Timestamp};
use portcullis_policy::{
    Algorithm, Conditions, Decision, Key, Limit, OnMissing, Outcome, Policy, Request, Rule,
};

/// A route of Ocelot: `Limit`, `Period`, and `Wait`, empty for none.
fn ocelot(limit: u64, period: &str, wait: &str) -> Policy {
    let period = portcullis_policy::parse_period(period).unwrap();
    let mut limit = Limit::per(limit, period).algorithm_of(Algorithm::WindowFromRequest);
    if let Ok(wait) = portcullis_policy::parse_period(wait) {
        limit = limit.wait(wait);
    }
    let route = Rule::new("route")
        .key(Key::header("Oc-Client"))
        .on_missing(OnMissing::Deny)
        .exempt_header("Oc-Client", ["whitelisted"])
        .limit(limit)
        .with_message("Exceeding!");
    Policy::new([route]).unwrap()
}

fn ask(policy: &Policy, millis: u64) -> Decision<'_> {
    let request =
        Request::new("GET", "/ClientRateLimit").headers(&[("Oc-Client", "ocelotclient1")]);
    policy.decide_at(Timestamp::from_millis(millis), &request)
}

/// The time to retry in whole seconds, rounded up, as `Retry-After` has it.
fn retry_after(decision: &Decision<'_>, millis: u64) -> u64 {
    let wait = decision
        .retry()
        .unwrap()
        .wait_from(Timestamp::from_millis(millis))
        .unwrap();
    wait.as_nanos().div_ceil(1_000_000_000) as u64
}

#[test]
fn ocelot_denies_for_the_wait_after_requests_that_are_spaced() {
    let policy = ocelot(3, "1s", "1s");
    let allowed = [0, 50, 100, 150, 650, 1_155].map(|millis| ask(&policy, millis).is_allowed());
    assert_eq!(allowed, [true, true, true, false, false, true]);
}

#[test]
fn ocelot_issue_1590_a_wait_may_be_longer_than_the_period() {
    let policy = ocelot(100, "1s", "3s");
    assert_eq!(
        (0..101).filter(|_| ask(&policy, 5).is_allowed()).count(),
        100
    );
    assert!(!ask(&policy, 3_004).is_allowed());
    assert!(ask(&policy, 3_005).is_allowed());
}

#[test]
fn ocelot_a_wait_may_be_shorter_than_the_period() {
    let policy = ocelot(3, "1s", "500ms");
    assert!((0..3).all(|_| ask(&policy, 0).is_allowed()));
    assert!(!ask(&policy, 0).is_allowed());
    let denied = ask(&policy, 250);
    assert_eq!(denied.rule().unwrap().message(), Some("Exceeding!"));
    assert_eq!(
        retry_after(&denied, 250),
        1,
        "Ocelot says 0.25, which is no valid Retry-After"
    );
    assert!(ask(&policy, 500).is_allowed());
}

#[test]
fn ocelot_without_a_wait_the_window_ends_a_period_after_its_first_request() {
    let policy = ocelot(3, "1s", "");
    assert!(
        [40, 50, 60]
            .into_iter()
            .all(|millis| ask(&policy, millis).is_allowed())
    );
    let denied = ask(&policy, 70);
    assert_eq!(retry_after(&denied, 70), 1);
    assert!(!ask(&policy, 1_039).is_allowed());
    assert!(ask(&policy, 1_040).is_allowed());
}

#[test]
fn ocelot_a_sustained_rate_below_the_limit_is_never_denied() {
    let policy = ocelot(100, "1s", "30s");
    assert!((0..1_200).all(|request| ask(&policy, 50 * request).is_allowed()));
}

#[test]
fn ocelot_clients_of_the_whitelist_pass_and_those_without_a_name_do_not() {
    let policy = ocelot(1, "1s", "1s");
    let outcome = |headers: &[(&str, &str); 1]| {
        policy
            .decide_at(Timestamp::ZERO, &Request::new("GET", "/").headers(headers))
            .outcome()
    };
    assert!((0..9).all(|_| outcome(&[("Oc-Client", "whitelisted")]) == Outcome::Exempt));
    assert_eq!(outcome(&[("Oc-Client", "")]), Outcome::Unidentified);
    assert_eq!(outcome(&[("ClientId", "a")]), Outcome::Unidentified);
}

/// A limit of limitador: a value per seconds, for `GET`, for each user.
fn limitador(max: u64, seconds: u64) -> Policy {
    let window = Limit::per(max, Duration::from_secs(seconds));
    let rule = Rule::new("limit")
        .when(Conditions::new().methods(["GET"]))
        .key(Key::property("user_id"))
        .limit(window.algorithm_of(Algorithm::WindowFromRequest));
    Policy::new([rule]).unwrap()
}

fn hit<'p>(policy: &'p Policy, second: u64, user: &str, hits: u32) -> Decision<'p> {
    let properties = [("user_id", user), ("app_id", "any")];
    let request = Request::new("GET", "/").properties(&properties).cost(hits);
    policy.decide_at(Timestamp::from_secs(second), &request)
}

#[test]
fn limitador_counts_to_the_maximum_and_tells_what_remains() {
    let policy = limitador(3, 60);
    for remaining in [2, 1, 0] {
        let decision = hit(&policy, 0, "1", 1);
        assert!(decision.is_allowed());
        assert_eq!(decision.status().unwrap().remaining, remaining);
    }
    let denied = hit(&policy, 59, "1", 1);
    assert!(!denied.is_allowed());
    let status = denied.status().unwrap();
    let reset = status.reset.wait_from(Timestamp::from_secs(59)).unwrap();
    assert_eq!(
        (status.limit.count(), status.remaining, reset),
        (3, 0, Duration::from_secs(1))
    );
    assert!(hit(&policy, 60, "1", 1).is_allowed());
}

#[test]
fn limitador_adds_the_hits_of_a_request_at_once_or_not_at_all() {
    let policy = limitador(10, 60);
    assert!(hit(&policy, 0, "1", 5).is_allowed());
    assert!(hit(&policy, 0, "1", 5).is_allowed());
    assert!(!hit(&policy, 0, "1", 1).is_allowed());
    let outcome = hit(&policy, 0, "2", 11).outcome();
    assert!(matches!(
        outcome,
        Outcome::Denied {
            denied: Denied::ExceedsCapacity { .. },
            ..
        }
    ));
    assert_eq!(
        hit(&policy, 0, "2", 6).status().unwrap().remaining,
        4,
        "the 11 took nothing"
    );
    let denied = hit(&policy, 0, "2", 6);
    assert!(!denied.is_allowed());
    assert_eq!(
        denied.status().unwrap().remaining,
        4,
        "limitador says 0: the denied hits count there"
    );
    assert!(hit(&policy, 0, "2", 0).is_allowed());
    assert_eq!(
        hit(&policy, 0, "2", 0).status().unwrap().remaining,
        4,
        "limitador counts 0 as 1"
    );
}

#[test]
fn limitador_splits_counters_by_the_variables_of_the_limit_alone() {
    let policy = limitador(1, 60);
    let ask = |user, app| {
        let properties = [("user_id", user), ("app_id", app)];
        let request = Request::new("GET", "/").properties(&properties);
        policy.decide_at(Timestamp::ZERO, &request).is_allowed()
    };
    assert!(ask("1", "a"));
    assert!(!ask("1", "b"));
    assert!(ask("2", "a"));
    let put = Request::new("PUT", "/").properties(&[("user_id", "1")]);
    assert_eq!(
        policy.decide_at(Timestamp::ZERO, &put).outcome(),
        Outcome::NoRule
    );
}
