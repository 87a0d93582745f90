//! Cases from the tests of Ocelot 25.0 (`ClientHeaderRateLimitingTests`, `RateLimitingSteps`) and
//! of limitador (`integration_tests`, `envoy_rls/server`), as far as they need no HTTP. Time is
//! manual, also where those tests sleep. Where ours differs, the test says so.

use core::time::Duration;

use portcullis_core::{Denied, Timestamp};
use portcullis_policy::{
    Algorithm, Conditions, Decision, Imported, Key, Limit, LivePolicy, Outcome, Policy, Request,
    Rule,
};

/// The one route of a file of Ocelot: `Limit`, `Period`, and `Wait`, empty for none.
fn ocelot(limit: u64, period: &str, wait: &str) -> Policy {
    let file = format!(
        r#"{{ "Routes": [{{ "Key": "route", "UpstreamPathTemplate": "/{{everything}}",
            "RateLimitOptions": {{ "ClientWhitelist": ["whitelisted"], "QuotaMessage": "Exceeding!",
                "Limit": {limit}, "Period": "{period}", "Wait": "{wait}" }} }}] }}"#
    );
    Imported::from_ocelot(&file).unwrap().into_policy().unwrap()
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

#[test]
fn ocelot_counts_from_the_first_request_after_a_wait() {
    let policy = ocelot(2, "3s", "2s");
    let allowed = [0, 0, 2_999, 4_998, 4_999].map(|millis| ask(&policy, millis).is_allowed());
    assert_eq!(allowed, [true, true, false, false, true]);
    let remaining = ask(&policy, 4_999).status().unwrap().remaining;
    assert_eq!(remaining, 0, "the second of the new window");
    // Ocelot's period includes its last instant. Ours does not.
    let policy = ocelot(2, "3s", "2s");
    assert!(
        [0, 0, 3_000]
            .into_iter()
            .all(|millis| ask(&policy, millis).is_allowed())
    );
}

#[test]
fn ocelot_names_the_limit_and_the_period_in_its_message() {
    let options = |message: &str| {
        let file = format!(
            r#"{{ "Routes": [{{ "UpstreamPathTemplate": "/",
                "RateLimitOptions": {{ "Limit": 3, "Period": "1s" {message} }} }}] }}"#
        );
        let imported = Imported::from_ocelot(&file).unwrap();
        imported.rules[0].message().unwrap().to_owned()
    };
    let default = "API calls quota exceeded! Maximum admitted 3 per 1s.";
    assert_eq!(options(""), default);
    assert_eq!(options(r#", "QuotaMessage": "{1}: {0}""#), "1s: 3");
}

#[test]
fn ocelot_refuses_a_route_without_a_limit_or_a_period_unless_it_is_disabled() {
    let errors = |options: &str| {
        let file = format!(
            r#"{{ "Routes": [{{ "UpstreamPathTemplate": "/", "RateLimitOptions": {{ {options} }} }}] }}"#
        );
        let errors = Imported::from_ocelot(&file).err().unwrap_or_default();
        let messages = errors
            .iter()
            .map(|error| error.message.split([':', ' ']).next().unwrap());
        messages.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(errors(r#""Limit": 0, "Period": """#), ["Period", "Limit"]);
    assert_eq!(errors(r#""Limit": -1, "Period": "1""#), ["Limit", "Period"]);
    assert!(errors(r#""Limit": 0, "Period": "1", "EnableRateLimiting": false"#).is_empty());
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

#[test]
fn limitador_tells_limit_rest_and_reset_of_allowed_and_denied_requests_alike() {
    let policy = limitador(1, 60);
    for (second, is_allowed) in [(0, true), (59, false)] {
        let decision = hit(&policy, second, "1", 1);
        assert_eq!(decision.is_allowed(), is_allowed);
        let status = decision.status().unwrap();
        let limit = (
            status.limit.count(),
            status.limit.period().unwrap().as_secs(),
        );
        assert_eq!((limit, status.remaining), ((1, 60), 0));
        let reset = status
            .reset
            .wait_from(Timestamp::from_secs(second))
            .unwrap();
        assert_eq!(reset.as_secs(), 60 - second);
    }
}

/// Of limitador's `integration_tests`: `configure_with`, for limits that stay, change and go.
#[test]
fn limitador_keeps_the_counters_of_limits_that_stay_and_deletes_the_others() {
    let live = LivePolicy::new(limitador(3, 60));
    let hit = |second, user| hit(&live.load(), second, user, 1).is_allowed();
    let replace = |policy| live.replace_at(Timestamp::from_secs(1), policy);
    assert!(hit(0, "1") && hit(0, "1"));
    // The same limits once more.
    replace(limitador(3, 60));
    assert!(hit(1, "1"));
    assert!(!hit(1, "1") && hit(1, "2"));
    // Another maximum.
    replace(limitador(5, 60));
    assert!(hit(1, "1") && hit(1, "1"));
    assert!(!hit(1, "1"));
    // Without the limit, and with it again.
    replace(Policy::new([]).unwrap());
    assert!(hit(1, "1"));
    replace(limitador(3, 60));
    assert!(hit(1, "1") && hit(1, "1") && hit(1, "1"));
    assert!(!hit(1, "1"));
}

#[test]
fn limitador_forgets_counters_that_have_expired() {
    // Two periods later: a slot is free when no request at an older time could still count in it.
    let rule = Rule::new("limit")
        .key(Key::property("user_id"))
        .keys(1)
        .limit(Limit::per(1, Duration::from_secs(1)).algorithm_of(Algorithm::WindowFromRequest));
    let policy = Policy::new([rule]).unwrap();
    let users: Vec<String> = (0..100).map(|user| user.to_string()).collect();
    let allowed = |second| {
        let is_allowed = |user: &&String| hit(&policy, second, user, 1).is_allowed();
        users.iter().filter(is_allowed).count()
    };
    let first = allowed(0);
    assert!(first < users.len(), "the table is full");
    assert_eq!(allowed(10), first, "all slots are free again");
}

#[test]
fn limitador_loses_no_hit_when_a_counter_expires_while_others_add_to_it() {
    for round in 0..50 {
        let policy = limitador(10, 60);
        assert!(hit(&policy, 0, "1", 7).is_allowed());
        std::thread::scope(|scope| {
            for hits in [2, 3] {
                let policy = &policy;
                scope.spawn(move || assert!(hit(policy, 60, "1", hits).is_allowed()));
            }
        });
        let remaining = hit(&policy, 60, "1", 0).status().unwrap().remaining;
        assert_eq!(
            remaining, 5,
            "round {round}: limitador may count 2 or 3 only"
        );
    }
}
