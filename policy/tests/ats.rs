//! Policies of the Azure Throttling Solution (ATS): what they become, and what is refused.

use core::time::Duration;

use portcullis_core::Timestamp;
use portcullis_policy::{Imported, Outcome, Policy, Request};

const POLICIES: &str = r#"{
    // Per user and thread, and per thread.
    "policies": [
        {
            "category": "contoso.getstatus.peruserperthreadpersec",
            "windowDuration": "00:00:10",
            "thresholds": [
                { "minDecisionDuration": "00:00:05", "decisionType": "PerUserExceeded", "value": 100 },
                { "minDecisionDuration": "00:01:00", "decisionType": "PerUserBlocked", "value": 200 },
            ]
        },
        {
            "category": "contoso.getstatus.perthreadpersec",
            "windowDuration": "00:00:10",
            "thresholds": [ { "decisionType": "PerThreadExceeded", "value": 1000 } ]
        },
    ]
}"#;

fn in_force(policy: &Policy, second: u64, category: &str, id: &str) -> Vec<String> {
    let properties = [("category", category), ("id", id)];
    let request = Request::new("", "").properties(&properties);
    let mut all = Vec::new();
    let visit = |decision: portcullis_policy::InForce<'_>| {
        all.push(decision.threshold.decision().to_owned());
    };
    let now = Timestamp::from_secs(second);
    policy.in_force_at(now, &request, visit).unwrap();
    all
}

#[test]
fn each_category_is_a_rule_whose_thresholds_put_decisions_in_force() {
    let imported = Imported::from_ats(POLICIES).unwrap();
    assert_eq!(imported.warnings, []);
    let [exceeded, blocked] = imported.rules[0].thresholds() else {
        panic!("two thresholds")
    };
    assert_eq!(
        (exceeded.value(), exceeded.window()),
        (100, Duration::from_secs(10))
    );
    assert_eq!(
        (blocked.decision(), blocked.hold()),
        ("PerUserBlocked", Duration::from_mins(1))
    );
    assert!(imported.rules[1].thresholds()[0].hold().is_zero());

    let policy = imported.into_policy().unwrap();
    let category = "contoso.getstatus.peruserperthreadpersec";
    let report = |second, id: &str, value| {
        let properties = [("category", category), ("id", id)];
        let request = Request::new("", "").properties(&properties);
        policy.report_at(Timestamp::from_secs(second), &request, value);
        policy
            .decide_at(Timestamp::from_secs(second), &request)
            .outcome()
    };
    assert_eq!(
        report(1, "alice", 99),
        Outcome::NoRule,
        "only reports count"
    );
    assert_eq!(in_force(&policy, 1, category, "alice"), [""; 0]);
    report(1, "alice", 101);
    assert_eq!(
        in_force(&policy, 1, category, "alice"),
        ["PerUserExceeded", "PerUserBlocked"]
    );
    assert_eq!(in_force(&policy, 1, category, "bob"), [""; 0]);
    let other = "contoso.getstatus.perthreadpersec";
    assert_eq!(in_force(&policy, 1, other, "alice"), [""; 0]);
    // The window has passed, and the first hold.
    assert_eq!(in_force(&policy, 30, category, "alice"), ["PerUserBlocked"]);
    assert_eq!(in_force(&policy, 62, category, "alice"), [""; 0]);
}

#[test]
fn all_errors_are_reported_where_they_are() {
    let text = r#"{
"policy": [],
"policies": [
{ "category": "a", "windowDuration": "10s", "thresholds": [
{ "value": 0, "decisionType": "x" }, { "value": 1.5, "decisionType": "x" }, { "value": 1 },
{ "value": 1, "decisionType": "", "minDecisionDuration": 5, "minDuration": "00:00:01" } ] },
{ "category": "b", "windowDuration": "00:00:00", "thresholds": [ { "value": 1, "decisionType": "x" } ] },
{ "category": "b", "windowDuration": "00:00:01", "thresholds": [] },
{ "windowDuration": "00:00:01", "limit": 5 }
] }"#;
    let errors = Imported::from_ats(text).unwrap_err();
    let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
    let time = "is not a length of time: expected hh:mm:ss, such as 00:00:10, or d.hh:mm:ss";
    assert_eq!(
        errors,
        [
            "2:1: policy is not a setting of a file of ATS: did you mean policies?".to_owned(),
            format!("4:38: windowDuration: `10s` {time}"),
            "5:12: value: `0` must be at least 1".into(),
            "5:49: value: expected a whole number, not a float".into(),
            "5:77: decisionType is missing in this threshold".into(),
            "6:1: thresholds[3]: the decision must have a name".into(),
            "6:58: minDecisionDuration: expected a string, not an integer".into(),
            "6:61: minDuration is not a setting of a threshold: expected one of value, \
             decisionType, minDecisionDuration"
                .into(),
            "7:66: thresholds[0]: the window must be longer than 0".into(),
            "8:15: name: another rule has the same name".into(),
            "8:64: thresholds: a policy needs at least one".into(),
            "9:1: category is missing in this policy".into(),
            "9:1: thresholds is missing in this policy".into(),
            "9:33: limit is not a setting of a policy: expected one of category, windowDuration, \
             thresholds"
                .into(),
        ]
    );
    assert_eq!(
        Imported::from_ats("{}").unwrap_err()[0].to_string(),
        "1:1: policies is missing in this file"
    );
}
