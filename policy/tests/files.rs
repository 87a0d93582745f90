//! Policies from TOML and JSON, and errors that point into the file.

use core::time::Duration;

use portcullis_core::{Retry, Timestamp};
use portcullis_policy::{
    Algorithm, FileError, Kind, Limit, Outcome, Policy, Request, Rule, Threshold,
};
use serde_json::Value;

/// The example in the documentation of `Policy::from_toml` or `Policy::from_json`.
fn documented(format: &str) -> String {
    let source = include_str!("../src/file.rs");
    let (_, after) = source
        .split_once(&format!("/// ```{format}\n"))
        .expect("there is an example");
    let (example, _) = after.split_once("    /// ```\n").expect("the example ends");
    let lines = example
        .lines()
        .map(|line| line.trim_start().trim_start_matches("///"));
    lines.collect::<Vec<_>>().join("\n")
}

fn displayed(errors: Result<Policy, Vec<FileError>>) -> Vec<String> {
    let errors = errors.expect_err("the text is refused");
    errors.iter().map(ToString::to_string).collect()
}

fn errors(text: &str) -> Vec<String> {
    displayed(Policy::from_toml(text))
}

#[test]
fn the_documented_example_means_what_it_says() {
    let policy = Policy::from_toml(&documented("toml")).unwrap();
    let rule = policy.rule("login").unwrap();
    assert_eq!(
        (rule.status(), rule.message(), rule.etag()),
        (429, Some("Slow down."), Some("v7"))
    );
    let [minute, day, at_once] = rule.limits() else {
        panic!("three limits")
    };
    assert_eq!(*minute, "5/m".parse::<Limit>().unwrap());
    assert_eq!((day.name(), day.count()), (Some("a day"), 100));
    assert_eq!(day.algorithm(), Algorithm::SlidingWindow { segments: 24 });
    assert_eq!((at_once.count(), at_once.period()), (3, None));

    let now = Timestamp::from_secs(1);
    let properties = [("region", "eu")];
    let request = Request::new("POST", "/v1/me/session/a/b")
        .host("eu.example.com")
        .address("2001:db8::1".parse().unwrap())
        .tier("free")
        .properties(&properties);
    let outcome = |request| policy.decide_at(now, &request).outcome();
    assert_eq!(
        outcome(request.headers(&[("oc-client", "admin")])),
        Outcome::Exempt
    );
    assert_eq!(
        outcome(request.address("192.0.2.7".parse().unwrap())),
        Outcome::Exempt
    );
    for (field, other) in [
        ("method", Request::new("GET", request.path)),
        ("path", Request::new("POST", "/v1/session")),
    ] {
        let other = other
            .host(request.host)
            .tier(request.tier)
            .properties(&properties);
        assert_eq!(outcome(other), Outcome::NoRule, "{field}");
    }
    assert_eq!(outcome(request.tier("paid")), Outcome::NoRule);
    assert_eq!(outcome(request.host("example.org")), Outcome::NoRule);
    assert_eq!(
        outcome(request.properties(&[("region", "ap")])),
        Outcome::NoRule
    );
    assert_eq!(outcome(request.kind(Kind::Burst)), Outcome::NoRule);
    for _ in 0..5 {
        assert_eq!(outcome(request), Outcome::Allowed);
    }
    // Of the same network of 64 bits.
    let neighbour = request.address("2001:db8::2".parse().unwrap());
    let denied = policy.decide_at(now, &neighbour);
    assert_eq!(
        denied.retry(),
        Some(Retry::At(Timestamp::from_secs(601))),
        "the penalty"
    );
    assert_eq!(
        outcome(neighbour.headers(&[("X-Tenant", "t")])),
        Outcome::Allowed
    );
}

#[test]
fn every_setting_of_a_rule_has_an_effect() {
    let text = r#"
        [paths]
        ignore_case = true
        decode_slashes = true
        [[rules]]
        name = "second"
        priority = 2
        [[rules]]
        name = "first"
        kind = "egress"
        key = ["method", "host", "path", "tier", "property:user", "address/0/0"]
        on_missing = "deny"
        keys = 5
        limits = [
            { rate = "2/s", burst = 3 },
            { rate = "3/s", algorithm = "fixed-window" },
            { rate = "4/s", algorithm = "window-from-request", wait = "5s" },
            { rate = "5/s", algorithm = "sliding-window" },
        ]
        [[rules]]
        name = "off"
        enabled = false
        [[rules]]
        name = "shadow"
        shadow = true
        paths = ["/A/B"]
        on_missing = "skip"
        limits = ["1/h"]
    "#;
    let policy = Policy::from_toml(text).unwrap();
    let names: Vec<_> = policy.rules().map(Rule::name).collect();
    assert_eq!(names, ["first", "off", "shadow", "second"]);
    let first = policy.rule("first").unwrap().limits();
    assert_eq!(first[0].capacity(), 3);
    let algorithms: Vec<_> = first.iter().map(Limit::algorithm).collect();
    assert_eq!(
        algorithms,
        [
            Algorithm::TokenBucket,
            Algorithm::FixedWindow,
            Algorithm::WindowFromRequest,
            Algorithm::SlidingWindow { segments: 8 },
        ]
    );
    let now = Timestamp::from_secs(1);
    let request = Request::new("GET", "/a%2Fb");
    let decide = |request| policy.decide_at(now, &request);
    assert_eq!(decide(request).rule().unwrap().name(), "second");
    assert_eq!(decide(request).shadow_denied().unwrap().name(), "shadow");
    let egress = request.kind(Kind::Egress);
    assert_eq!(decide(egress).outcome(), Outcome::NoAddress);
    let egress = egress.address("192.0.2.7".parse().unwrap());
    assert_eq!(decide(egress).outcome(), Outcome::Unidentified);
}

#[test]
fn thresholds_are_read_and_refused_where_they_are() {
    let text = r#"
        [[rules]]
        name = "errors"
        thresholds = [
            { at = "100/10s", decision = "captcha", hold = "1m", segments = 5 },
            { at = "1000/10s", decision = "deny" },
        ]
    "#;
    let policy = Policy::from_toml(text).unwrap();
    let window = Duration::from_secs(10);
    let captcha = Threshold::new(100, window, "captcha").in_segments(5);
    let expected = [
        captcha.holding_for(Duration::from_mins(1)),
        Threshold::new(1_000, window, "deny"),
    ];
    assert_eq!(policy.rule("errors").unwrap().thresholds(), expected);
    let wrong = r#"
[[rules]]
name = "errors"
thresholds = [
    { at = "100/10s" },
    { at = "100 in 10s", decision = "deny" },
    { at = "1/s", decision = "deny", hold = "0s" },
    { at = "1/s", decision = "deny", segments = 17, holds = "1s" },
]
"#;
    let expected = [
        "5:5: thresholds: a threshold has `at` and a `decision`",
        "6:12: at: `100 in 10s` is not N/PERIOD, such as 100/10s ",
        "7:45: hold: `0s` has no effect: ",
        "8:5: thresholds[1]: segments ",
        "8:53: holds is not a setting of a threshold: did you mean hold?",
    ];
    let found = errors(wrong);
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.starts_with(expected), "{found}, not {expected}");
    }
}

#[test]
fn a_limit_that_is_not_valid_is_one_error_whatever_else_the_rule_has() {
    let of_rule = [
        "",
        "store = 's'",
        "store = 's'\nsync = true",
        "kind = 'ingress'",
        "kind = 'ingress'\nhold = '1m'",
        "hold = '1m'",
        "penalty = '1m'",
        "key = ['header:X']",
        "key = ['header:X']\noverrides = [{ key = ['a'], limits = ['1/m'] }]",
        "continue = true",
    ];
    let limits = [
        "'3/sec'",
        "3",
        "{ rate = '3/sec' }",
        "{ rate = '3/sec', strict = true, algorithm = 'sliding-window' }",
        "{ at_once = -1 }",
        "{ burst = 3 }",
    ];
    for of_rule in of_rule {
        for limit in limits {
            for limits in [limit.to_owned(), format!("'2/m', {limit}")] {
                let text = format!(
                    "stores = ['s']\n[[rules]]\nname = 'r'\n{of_rule}\nlimits = [{limits}]"
                );
                let found = errors(&text);
                assert_eq!(found.len(), 1, "{text}\n{found:#?}");
            }
        }
        let text =
            format!("stores = ['s']\n[[rules]]\nname = 'r'\n{of_rule}\nlimits = ['3/s', '3/m']");
        assert!(Policy::from_toml(&text).is_ok(), "{text}");
    }
}

/// Files without a mistake, which have each setting, and each that another one needs.
const RIGHT: [&str; 4] = [
    r#"{ "table_bytes": 1000000, "stores": ["s"],
        "paths": { "reading": "literal", "ignore_case": true, "decode_slashes": true },
        "rules": [{ "name": "r", "store": "s", "sync": true, "key": ["address", "header:X"],
            "keys": 9, "on_missing": "deny", "continue": true,
            "limits": ["3/s", { "rate": "9/m", "burst": 3, "name": "m" }],
            "overrides": [{ "key": ["192.0.2.7", "a"], "limits": ["9/s"] }] }] }"#,
    r#"{ "rules": [{ "name": "r", "hold": "1m", "penalty": "1m", "key": ["header:X"],
            "limits": [{ "rate": "9/m", "debt": 3 }],
            "overrides": [{ "key": ["a"], "limits": [{ "rate": "9/s", "initial": 3 }] }] }] }"#,
    r#"{ "rules": [{ "name": "r", "limits": [
            { "rate": "9/s", "burst": 5, "initial": 3, "refill": "stepwise" },
            { "at_once": 3 },
            { "rate": "9/s", "algorithm": "sliding-window", "segments": 4, "strict": true },
            { "rate": "9/s", "algorithm": "window-from-request", "wait": "1m" },
            { "rate": "9/s", "queue": 3, "queue_order": "newest-first" } ] }] }"#,
    r#"{ "rules": [{ "name": "r", "priority": 3, "kind": "burst", "methods": ["GET"],
            "paths": ["/a"], "hosts": ["a.example"], "tiers": ["t"], "properties": { "p": ["v"] },
            "thresholds": [{ "at": "3/s", "decision": "d", "hold": "1m", "segments": 4 }],
            "exempt": { "headers": { "H": ["v"] }, "properties": { "p": ["v"] },
                "networks": ["10.0.0.0/8"] },
            "limits": ["3/s"], "shadow": true, "enabled": false, "message": "m", "status": 400,
            "headers": false, "etag": "e" }] }"#,
];

/// The places of all values in a tree, as JSON pointers.
fn places(value: &Value, at: &str, places: &mut Vec<String>) {
    let members: Vec<(String, &Value)> = match value {
        Value::Array(values) => {
            let names = (0..values.len()).map(|index| index.to_string());
            names.zip(values).collect()
        }
        Value::Object(members) => members
            .iter()
            .map(|(name, value)| (name.clone(), value))
            .collect(),
        _ => return,
    };
    for (name, member) in members {
        let at = format!("{at}/{name}");
        places.push(at.clone());
        self::places(member, &at, places);
    }
}

/// A setting that could not be read counts as present, so that those that need it are not refused.
#[test]
fn one_mistake_in_any_setting_is_one_error() {
    let mut mistakes = 0;
    for right in RIGHT {
        let right: Value = serde_json::from_str(right).unwrap();
        let errors = |file: &Value| Policy::from_json(&file.to_string()).err();
        assert!(errors(&right).is_none(), "{:#?}", errors(&right));
        let mut all = Vec::new();
        places(&right, "", &mut all);
        for place in &all {
            let (outer, name) = place.rsplit_once('/').unwrap();
            let is_one = |wrong: &Value, at_least: usize| {
                let found = errors(wrong).unwrap_or_default();
                assert!(
                    (at_least..=1).contains(&found.len()),
                    "{place}: {wrong}\n{found:#?}"
                );
                found.len()
            };
            let mut wrong = right.clone();
            *wrong.pointer_mut(place).unwrap() = Value::Null;
            mistakes += is_one(&wrong, 1);
            // Some texts can be anything.
            if right.pointer(place).unwrap().is_string() {
                *wrong.pointer_mut(place).unwrap() = "?*".into();
                mistakes += is_one(&wrong, 0);
            }
            let is_free = ["headers", "properties"]
                .iter()
                .any(|of| outer.ends_with(of));
            let mut wrong = right.clone();
            let members = wrong.pointer_mut(outer).unwrap().as_object_mut();
            if let Some(members) = members
                && !is_free
            {
                let value = members.remove(name).unwrap();
                members.insert(format!("{name}e"), value);
                mistakes += is_one(&wrong, 1);
            }
        }
    }
    assert!(mistakes > 150, "{mistakes}");
}

/// The mistakes that people make, each of which was two errors.
#[test]
fn a_setting_that_needs_a_misspelt_one_is_not_refused() {
    for (of_rule, is) in [
        (
            "store = 'sharde'\nsync = true",
            "6:9: store: `sharde` is not known",
        ),
        ("stor = 's'\nsync = true", "6:1: stor is not a setting"),
        ("hold = '1 m'", "6:8: hold: `1 m` is not a period"),
        (
            "key = ['adress']\noverrides = [{ key = ['192.0.2.7'], limits = ['9/s'] }]",
            "6:8: key: `adress` is not a part",
        ),
    ] {
        let limit = if of_rule.contains("hold") {
            "{ rate = '3/s', debt = 1 }"
        } else {
            "'3/s'"
        };
        let file =
            format!("stores = ['s']\n\n[[rules]]\nname = 'r'\nlimits = [{limit}]\n{of_rule}\n");
        let found = errors(&file);
        assert!(found.len() == 1 && found[0].starts_with(is), "{found:#?}");
    }
    for (limit, is) in [
        (
            "queue = -1, queue_order = 'newest-first'",
            "queue: `-1` is not from 0",
        ),
        (
            "queu = 1, queue_order = 'newest-first'",
            "queu is not a setting",
        ),
        (
            "burst = '9', initial = 9",
            "burst: expected a whole number, not a string",
        ),
        (
            "algorithm = 'slidin-window', segments = 4, strict = true",
            "algorithm: `slidin-window`",
        ),
        (
            "algorithm = 'window-from-reques', wait = '1m'",
            "algorithm: `window-from-reques`",
        ),
    ] {
        let file = format!("[[rules]]\nname = 'r'\nlimits = [{{ rate = '3/s', {limit} }}]\n");
        let found = errors(&file);
        assert!(found.len() == 1 && found[0].contains(is), "{found:#?}");
    }
    assert_eq!(errors("[[rule]]\nname = 'a'\n").len(), 1);
    let two =
        "[[rules]]\nname = 'r'\nlimits = [{ rate = '3/s', burst = '9', queue = -1 }]\nsync = 1";
    assert_eq!(errors(two).len(), 3, "each mistake is reported at once");
}

#[test]
fn all_errors_are_reported_where_they_are() {
    assert_eq!(errors(WRONG_TOML), EXPECTED);
}

#[test]
fn json_with_the_same_settings_has_the_same_errors_in_the_same_lines() {
    let without_column = |error: &String| {
        let (line, rest) = error.split_once(':').unwrap();
        let (_, message) = rest.split_once(": ").unwrap();
        format!("{line}: {message}").replace("a table", "an object")
    };
    let mut expected: Vec<String> = EXPECTED.iter().map(|error| (*error).to_owned()).collect();
    expected = expected.iter().map(without_column).collect();
    let all = displayed(Policy::from_json(WRONG_JSON));
    assert_eq!(all.iter().map(without_column).collect::<Vec<_>>(), expected);
    assert_eq!(
        [&all[0], &all[6], &all[18]],
        [
            "2:1: ignore_cas is not a setting of paths: did you mean ignore_case?",
            "10:9: kind: `egres` is not known: did you mean `egress`?",
            "16:38: exempt_networks: `x` is not a network, such as `10.0.0.0/8` or `2001:db8::/32`",
        ]
    );
}

const WRONG_TOML: &str = "[paths]
ignore_cas = true
decode_slashes = 1
[[rules]]
name = 'a'
prioritty = 1
methods = 'GET'
paths = ['/ok', '/x*']
hosts = ['10.0.0.0/33']
kind = 'egres'
limits = ['1/s', '5/year', { rate = '1/s', at_once = 1 }, { rate = '1/0s' }, { rat = 1 }, 7]
penalty = '1.5s'
status = 200
keys = -1
key = ['adress', 'header:', 'address/33/0', 'path']
exempt = { networks = ['10.0.0.1', 'x'], header = {} }
properties = { p = [] }
[[rules]]
name = 'a'
zzzzzzzzzz = 1
[[rules]]
paths = []
";

/// The same settings, each in the same line.
const WRONG_JSON: &str = r#"{"paths": {
"ignore_cas": true,
"decode_slashes": 1 }, "rules": [
{
"name": "a",
"prioritty": 1,
"methods": "GET",
"paths": ["/ok", "/x*"],
"hosts": ["10.0.0.0/33"],
"kind": "egres",
"limits": ["1/s", "5/year", { "rate": "1/s", "at_once": 1 }, { "rate": "1/0s" }, { "rat": 1 }, 7],
"penalty": "1.5s",
"status": 200,
"keys": -1,
"key": ["adress", "header:", "address/33/0", "path"],
"exempt": { "networks": ["10.0.0.1", "x"], "header": {} },
"properties": { "p": [] } },
{
"name": "a",
"zzzzzzzzzz": 1 },
{
"paths": [] } ] }"#;

const EXPECTED: [&str; 24] = [
    "2:1: ignore_cas is not a setting of paths: did you mean ignore_case?",
    "3:18: decode_slashes: expected true or false, not an integer",
    "6:1: prioritty is not a setting of a rule: did you mean priority?",
    "7:11: methods: expected an array of strings, not a string",
    "8:17: paths: `/x*` has a `*` within a component: a wildcard is a whole component, `*` \
             or `**`; write %2A for the character",
    "9:10: hosts: `10.0.0.0/33` is not a network, such as `10.0.0.0/8` or `2001:db8::/32`",
    "10:8: kind: `egres` is not known: did you mean `egress`?",
    "11:18: limits: `5/year` is not a rate: expected N/PERIOD, such as 60/m, 100/10s or \
             5/500ms (units: ms, s, m, h, d; whole numbers)",
    "11:28: limits: a limit has either `rate` or `at_once`",
    "11:59: limits[3]: period must be longer than 0",
    "11:80: rat is not a setting of a limit: did you mean rate?",
    "11:91: limits: expected a rate such as \"10/s\", or a table, not an integer",
    "12:11: penalty: `1.5s` is not a period: expected a unit, or a whole number and a unit \
             (units: ms, s, m, h, d)",
    "13:10: status: must be from 400 to 599, not 200",
    "14:8: keys: `-1` is not from 0 to 4294967295",
    "15:8: key: `adress` is not a part of a key: expected address, address/V4/V6, path, \
             host, method, tier, header:NAME, header:A|B or property:NAME",
    "15:18: key: `header:` is not a part of a key: expected address, address/V4/V6, path, \
             host, method, tier, header:NAME, header:A|B or property:NAME",
    "15:29: key: `address/33/0` is not a part of a key: expected address, address/V4/V6, \
             path, host, method, tier, header:NAME, header:A|B or property:NAME",
    "16:36: exempt_networks: `x` is not a network, such as `10.0.0.0/8` or `2001:db8::/32`",
    "16:42: header is not a setting of exempt: did you mean headers?",
    "17:16: properties: `p` needs at least one value",
    "19:8: name: another rule has the same name",
    "20:1: zzzzzzzzzz is not a setting of a rule: expected one of name, priority, kind, \
             methods, paths, hosts, tiers, properties, key, on_missing, keys, limits, overrides, \
             thresholds, penalty, hold, exempt, shadow, continue, enabled, message, status, headers, \
             etag, store, sync",
    "21:1: name is missing in this rule",
];

#[test]
fn both_formats_give_the_same_rules() {
    let json = r#"{
        "paths": { "ignore_case": false, "decode_slashes": false },
        "stores": ["shared"],
        "rules": [{
            "name": "login",
            "priority": 10,
            "kind": "request",
            "methods": ["POST"],
            "paths": ["/login", "/v1/*/session/**"],
            "hosts": ["*.example.com", "10.0.0.0/8"],
            "tiers": ["free"],
            "properties": { "region": ["eu", "us"] },
            "key": ["address/32/64", "header:X-Tenant"],
            "on_missing": "need-address",
            "keys": 1000,
            "limits": [
                "5/m",
                { "rate": "100/d", "algorithm": "sliding-window", "segments": 24, "name": "a day" },
                { "at_once": 3 },
            ],
            "overrides": [{ "key": ["192.0.2.9", "gold"], "limits": ["100/m"] }],
            "thresholds": [
                { "at": "100/10s", "decision": "captcha", "hold": "1m", "segments": 10 },
            ],
            "penalty": "10m",
            "hold": "30s",
            "exempt": { "headers": { "Oc-Client": ["admin"] }, "networks": ["192.0.2.7"] },
            "shadow": false,
            "enabled": true,
            "message": "Slow down.",
            "status": 429,
            "etag": "v7",
        }, {
            "name": "clients",
            "priority": 20,
            "paths": ["/items/**"],
            "key": ["header:X-Api-Key"],
            "limits": ["1000/h"],
            "store": "shared",
            "sync": true,
        }],
    }"#;
    let rules = |policy: Policy| format!("{:#?}", policy.rules().collect::<Vec<_>>());
    assert_eq!(
        rules(Policy::from_json(json).unwrap()),
        rules(Policy::from_toml(&documented("toml")).unwrap())
    );
    let example = Policy::from_json(&documented("json")).unwrap();
    let limits = example.rule("login").unwrap().limits();
    assert_eq!((limits.len(), limits[1].name()), (2, Some("an hour")));
}

#[test]
fn a_setting_that_is_set_twice_is_an_error_and_the_rest_is_checked() {
    let both = [
        errors("[[rules]]\nname = 'a'\nkeys = 1\nkeys = 2\nstatus = 1\n"),
        displayed(Policy::from_json(
            "{ \"rules\": [{\n\"name\": \"a\",\n\"keys\": 1,\n\"keys\": 2,\n\"status\": 1 }]}",
        )),
    ];
    assert_eq!(
        both[0],
        [
            "4:1: keys is set twice",
            "5:10: status: must be from 400 to 599, not 1"
        ]
    );
    assert_eq!(
        both[1],
        [
            "4:1: keys is set twice",
            "5:11: status: must be from 400 to 599, not 1"
        ]
    );
}

#[test]
fn holds_and_debts_are_read() {
    let text = "[[rules]]
name = 'tokens'
limits = [{ rate = '10/s', debt = 5 }]
hold = '30s'
";
    let policy = Policy::from_toml(text).unwrap();
    let now = Timestamp::from_secs(1);
    let hold = policy.hold_at(now, &Request::new("GET", "/").cost(8));
    assert_eq!(hold.ends(), Some(Timestamp::from_secs(31)));
    assert_eq!(hold.settle_at(now, 20).uncounted, 5);
    let wrong = text.replace("30s", "30").replace("= 5", "= 'x'");
    assert_eq!(
        errors(&wrong),
        [
            "3:35: debt: expected a whole number, not a string",
            "4:8: hold: `30` is not a period: expected a unit, or a whole number and a unit \
             (units: ms, s, m, h, d)",
        ]
    );
    let unused = text.replace("hold = '30s'", "");
    assert_eq!(
        errors(&unused),
        ["2:8: hold: must be set if a limit has a debt, which only settlements use"]
    );
}

#[test]
fn overrides_are_read_and_their_errors_have_places() {
    let text = "[[rules]]
name = 'tenants'
key = ['header:X-Tenant', 'method']
limits = ['1/h']
overrides = [
    { key = ['gold', 'GET'], limits = ['3/h', { at_once = 2 }] },
    { key = ['free', 'GET'], limits = [] },
]
";
    let policy = Policy::from_toml(text).unwrap();
    let now = Timestamp::from_secs(1);
    for (tenant, passes) in [("gold", 3), ("free", 9), ("other", 1)] {
        let headers = [("X-Tenant", tenant)];
        let request = Request::new("GET", "/").headers(&headers);
        let allowed = (0..9).filter(|_| policy.decide_at(now, &request).is_allowed());
        assert_eq!(allowed.count(), passes, "{tenant}");
    }
    let wrong = "[[rules]]
name = 'a'
key = ['header:X-Tenant']
limits = ['1/h']
overrides = [
    { key = ['a'], limit = ['1/s'] },
    { key = ['a', 'b'], limits = ['1/s'] },
    { key = ['b'], limits = ['1/s', '1/0s', '1s'] },
    { key = 'c', limits = 5 },
    { key = [1], limits = ['1/s'] },
    { key = ['b'], limits = [] },
    'd',
]
[[rules]]
name = 'b'
overrides = 1
";
    assert_eq!(
        errors(wrong),
        [
            "6:20: limit is not a setting of an override: did you mean limits?",
            "7:5: overrides[0]: the key has 1 part, so an override has 1 value, not 2",
            "8:37: overrides[1].limits[1]: period must be longer than 0",
            "8:45: limits: `1s` is not a rate: expected N/PERIOD, such as 60/m, 100/10s or 5/500ms \
             (units: ms, s, m, h, d; whole numbers)",
            "9:13: key: expected an array of strings, not a string",
            "9:27: limits: expected an array, not an integer",
            "10:14: key: expected a string, not an integer",
            "11:5: overrides[2]: another override is for the same key",
            "12:5: overrides: expected a table, not a string",
            "16:13: overrides: expected an array of tables, not an integer",
        ]
    );
}

#[test]
fn text_that_is_not_toml_is_refused_with_its_place() {
    let all = errors("[[rules]]\nname = \"a\nkeys = 5\n");
    assert!(all[0].starts_with("2:"), "{all:?}");
}

/// Otherwise a file that was cut off would lift all limits.
#[test]
fn a_file_without_rules_is_refused_unless_it_says_so() {
    for text in ["", "# rules\n", "stores = []\n"] {
        let expected = "1:1: rules is missing; a policy without rules has an empty array";
        assert_eq!(errors(text), [expected]);
    }
    let empty = Policy::from_toml("rules = []").unwrap();
    assert!(empty.rules().next().is_none());
}

#[test]
fn a_rule_names_one_of_the_stores_that_the_file_lists() {
    let of = |stores: &str, rest: &str| {
        let rule = format!("[[rules]]\nname = \"a\"\nlimits = [\"5/m\"]\n{rest}\n");
        Policy::from_toml(&format!("{stores}\n{rule}"))
    };
    let policy = of("stores = ['shared', 'other']", "store = 'shared'").unwrap();
    let rule = policy.rule("a").unwrap();
    assert_eq!((rule.store(), rule.is_synced()), (Some("shared"), false));
    let rule = of("stores = ['shared']", "store = 'shared'\nsync = true").unwrap();
    assert!(rule.rule("a").unwrap().is_synced());
    for (stores, rest, expected) in [
        (
            "stores = ['shared', 'other']",
            "store = 'shraed'",
            "5:9: store: `shraed` is not known: did you mean `shared`?",
        ),
        (
            "stores = ['shared', 'other']",
            "store = 'redis'",
            "5:9: store: `redis` is not known: expected one of shared, other",
        ),
        (
            "",
            "store = 'shared'",
            "5:9: store: `shared` is not known: list the stores that the program has in `stores`",
        ),
        (
            "",
            "sync = true",
            "5:8: sync: has no effect without a store: leave it out, or set a store",
        ),
        (
            "stores = ['shared']",
            "store = 'shared'\npenalty = '1m'",
            "6:11: penalty: is kept in this process: a rule with a store cannot have one",
        ),
        (
            "stores = ['shared']",
            "store = 'shared'\nkind = 'egress'",
            "5:9: store: not for rules of this kind: bytes are charged in this process",
        ),
    ] {
        assert_eq!(displayed(of(stores, rest)), [expected]);
    }
}

/// Each of them is accepted by no server, so a rule with it would apply to no request.
#[cfg(feature = "toml")]
#[test]
fn settings_that_no_request_can_meet_are_refused_in_their_place() {
    let header = "is not the name of a header field, such as `X-Api-Key`";
    let no_host = "is neither a name of a host";
    let network = "is not a network";
    let cases = [
        (
            "methods = ['get']",
            12,
            "methods: `get` is a method that no service knows: write `GET`",
        ),
        (
            "methods = ['PUT', 'GETT']",
            19,
            "methods: `GETT` is a method that no service knows",
        ),
        (
            "methods = ['GET ']",
            12,
            "methods: `GET ` is not a method, such as `GET`",
        ),
        ("methods = ['a:']", 12, "methods: `a:` is not a method"),
        (
            "key = ['path', 'header: X-Api-Key']",
            16,
            &format!("key: ` X-Api-Key` {header}"),
        ),
        (
            "key = ['header:X-Api-Key:']",
            8,
            &format!("key: `X-Api-Key:` {header}"),
        ),
        (
            "key = ['header:A|X Key']",
            8,
            &format!("key: `X Key` {header}"),
        ),
        (
            "exempt = { headers = { 'Oc Client' = ['a'] } }",
            24,
            &format!("exempt_headers: `Oc Client` {header}"),
        ),
        (
            "paths = ['/a', 'https://example.com/a']",
            16,
            "paths: `https://example.com/a` is a URL, and a path begins after the host",
        ),
        (
            "hosts = ['256.1.1.1']",
            10,
            &format!("hosts: `256.1.1.1` {no_host}"),
        ),
        (
            "hosts = ['010.0.0.1']",
            10,
            &format!("hosts: `010.0.0.1` {no_host}"),
        ),
        (
            "hosts = ['example.com:80']",
            10,
            &format!("hosts: `example.com:80` {no_host}"),
        ),
        (
            "hosts = ['010.0.0.0/8']",
            10,
            &format!("hosts: `010.0.0.0/8` {network}"),
        ),
        (
            "hosts = ['https://example.com']",
            10,
            "hosts: `https://example.com` ",
        ),
        (
            "exempt = { networks = ['010.0.0.0/8'] }",
            24,
            &format!("exempt_networks: `010.0.0.0/8` {network}"),
        ),
    ];
    let label = "a".repeat(63);
    let long = format!("hosts = ['a{label}.example']");
    let problem = format!("hosts: `a{}…` {no_host}", &label[..59]);
    let cases = cases.into_iter().chain([(&*long, 10, &*problem)]);
    for (setting, column, expected) in cases {
        let file = format!("[[rules]]\nname = 'a'\n{setting}\n");
        let errors = Policy::from_toml(&file).unwrap_err();
        let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
        let expected = format!("3:{column}: {expected}");
        assert!(
            errors.len() == 1 && errors[0].starts_with(&expected),
            "{expected}: {errors:?}"
        );
    }
    for setting in [
        "methods = ['GET', 'PURGE', 'M-SEARCH', 'PROPFIND', 'get-all']",
        "hosts = ['a1.example', '*.7.example', '10.0.0.0/8', '::1', '2001:db8::/32', 'x_y']",
        "key = ['header:X-Api-Key|x_old.key']",
        "paths = ['/a:b//c', '/**']",
        &format!("hosts = ['{label}.example']"),
    ] {
        let file = format!("[[rules]]\nname = 'a'\n{setting}\n");
        assert!(Policy::from_toml(&file).is_ok(), "{setting}");
    }
}

#[test]
fn a_file_whose_rules_do_not_what_they_seem_to_is_read_with_warnings() {
    let warned = |text: &str| {
        let policy = Policy::from_toml(text).unwrap();
        let warnings = policy.warnings().iter().map(ToString::to_string);
        warnings.collect::<Vec<_>>()
    };
    let naive = "
        [[rules]]
        name = 'each key'
        key = ['header:X-Tenant']
        limits = ['10/s']
        [[rules]]
        name = 'logins'
        methods = ['POST']
        paths = ['/login']
        key = ['address']
        limits = ['5/m']
        [[rules]]
        name = 'service'
        limits = [{ at_once = 100 }]
    ";
    let never = |place: &str| {
        format!(
            "{place}: name: this rule is never asked, because `each key` (line 3) matches every \
             request that it matches, and decides it: add `continue = true` there to take from \
             both, or give this one a lower priority"
        )
    };
    assert_eq!(warned(naive), [never("7:16"), never("13:16")]);
    let wish = naive.replace("limits = ['10/s']", "limits = ['10/s']\ncontinue = true");
    assert_eq!(
        warned(&wish),
        [""; 0],
        "the login decides some requests, and not all"
    );
    for (earlier, later, is_covered) in [
        ("", "paths = ['/a']", true),
        ("paths = ['/a/**']", "paths = ['/a/*/b', '/a']", true),
        ("paths = ['/a/*']", "paths = ['/a/*/b', '/a']", false),
        ("methods = ['GET']", "methods = ['HEAD']", true),
        ("methods = ['GET']", "", false),
        (
            "hosts = ['*.example.com']",
            "hosts = ['a.example.com']",
            true,
        ),
        (
            "hosts = ['10.0.0.0/8']",
            "hosts = ['10.2.0.0/16', '10.1.1.1']",
            true,
        ),
        (
            "hosts = ['10.0.0.0/8']",
            "hosts = ['10.2.0.0/16', 'example.com']",
            false,
        ),
        (
            "hosts = ['10.0.0.0/8']",
            "hosts = ['10.2.0.0/16', '11.0.0.0/8']",
            false,
        ),
        ("tiers = ['free', 'paid']", "tiers = ['free']", true),
        (
            "properties = { a = ['1', '2'] }",
            "properties = { a = ['1'], b = ['1'] }",
            true,
        ),
        (
            "properties = { a = ['1'] }",
            "properties = { b = ['1'] }",
            false,
        ),
        ("shadow = true", "", false),
        ("enabled = false", "", false),
        ("key = ['header:X']\non_missing = 'skip'", "", false),
        ("kind = 'ingress'", "", false),
        ("priority = 1", "priority = 0", false),
        ("priority = 1", "priority = 2", true),
    ] {
        let text = format!(
            "[[rules]]\nname = 'a'\nlimits = ['1/s']\n{earlier}\n[[rules]]\nname = 'b'\n\
             limits = ['1/s']\n{later}\n"
        );
        let is_warned = warned(&text)
            .iter()
            .any(|one| one.contains("because `a` (line "));
        assert_eq!(is_warned, is_covered, "{text}");
    }
    let rule = |settings: &str| warned(&format!("[[rules]]\nname = 'a'\n{settings}\n"));
    assert_eq!(
        rule("key = ['address']"),
        ["3:7: key: has no effect without a limit: add a limit, or leave it out"]
    );
    assert_eq!(
        rule("shadow = true"),
        [
            "3:10: shadow: a shadow decides nothing, so this rule exempts no client: leave `shadow` out"
        ]
    );
    assert!(rule("shadow = true\nlimits = ['1/s']").is_empty());
    let shared = |place: &str| {
        [format!(
            "{place}: all requests without `X-Api-Key` share the limits of one key, so that anybody \
             can use them up: write `on_missing = \"skip\"` to leave them to the rules after this \
             one, or `on_missing = \"deny\"`"
        )]
    };
    let with_key =
        |key: &str, others: &str| rule(&format!("key = {key}\nlimits = ['5/m']\n{others}"));
    let by_key = "['header:X-Api-Key', 'path']";
    let share = "on_missing = 'share'";
    assert_eq!(with_key(by_key, share), shared("5:14: on_missing"));
    assert_eq!(with_key(by_key, ""), shared("3:7: key"));
    assert_eq!(
        with_key(by_key, "on_missing = 'need-address'"),
        shared("3:7: key")
    );
    for (key, others) in [
        (by_key, "on_missing = 'skip'"),
        (by_key, "on_missing = 'deny'"),
        ("['header:X-Tenant']", ""),
        ("['header:X-Tenant']", share),
        // A client without the key has that of its address.
        ("['header:X-Api-Key', 'address']", ""),
        ("['header:X-Api-Key', 'address']", share),
    ] {
        assert_eq!(with_key(key, others), [""; 0], "{key} {others}");
    }
    assert_eq!(
        rule("kind = 'burst'\nlimits = ['5/m']"),
        [
            "3:8: kind: only a program that asks for the kind `burst` asks this rule: for limits that \
          add up, `continue = true` needs no kinds"
        ]
    );
}

#[test]
fn a_file_can_make_a_sliding_window_strict() {
    let limit = |settings: &str| {
        let text = format!("[[rules]]\nname = 'a'\nlimits = [{{ rate = '5/m', {settings} }}]\n");
        let policy = Policy::from_toml(&text).map_err(|errors| errors[0].to_string())?;
        Ok(policy.rule("a").unwrap().limits()[0].is_strict())
    };
    let strict = "algorithm = 'sliding-window', segments = 63, strict = true";
    assert_eq!(limit(strict), Ok(true));
    assert_eq!(
        limit("algorithm = 'sliding-window', strict = false"),
        Ok(false)
    );
    for value in ["true", "false"] {
        let refused: Result<bool, String> = limit(&format!("strict = {value}"));
        assert_eq!(
            refused.unwrap_err(),
            format!("3:36: strict: `{value}` has no effect: only a sliding-window can be strict")
        );
    }
    let json = r#"{ "rules": [{ "name": "a",
        "limits": [{ "rate": "5/m", "algorithm": "sliding-window", "strict": true }] }] }"#;
    let policy = Policy::from_json(json).unwrap();
    assert!(policy.rule("a").unwrap().limits()[0].is_strict());
}

#[test]
fn a_message_is_at_the_rule_of_the_file() {
    let text = "[[rules]]\nname = 'b'\npriority = 2\n\n[[rules]]\nname = 'a'\n";
    let policy = Policy::from_toml(text).unwrap();
    let at = |rule: &str| {
        policy
            .message_at(rule, "here")
            .map(|error| error.to_string())
    };
    assert_eq!(at("b").as_deref(), Some("2:8: here"));
    assert_eq!(at("a").as_deref(), Some("6:8: here"));
    assert_eq!(at("c"), None);
    assert!(
        Policy::new([Rule::new("a")])
            .unwrap()
            .message_at("a", "here")
            .is_none()
    );
}

/// In TOML, all that follows `[[rules]]` is of the rule.
#[test]
fn a_setting_of_the_file_in_a_rule_is_reported_with_where_it_belongs() {
    let wrong = "[[rules]]\nname = 'a'\nserve.trusted = []\nstores = ['a']\n";
    let hint = "is not a setting of a rule: it is one of the file: in TOML, put it above the first \
                [[rules]]";
    assert_eq!(
        errors(wrong),
        [format!("3:1: serve {hint}"), format!("4:1: stores {hint}")]
    );
}
