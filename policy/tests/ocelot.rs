//! `ocelot.json`: which rules its routes become, how options are merged, and what is refused.

use core::time::Duration;

use portcullis_core::{Retry, Timestamp};
use portcullis_policy::{Imported, Limit, Outcome, Policy, Request, Rule};
use proptest::prelude::*;

fn read(text: &str) -> Imported {
    Imported::from_ocelot(text).expect("the file is valid")
}

/// A file without warnings, in force.
fn policy(text: &str) -> Policy {
    let imported = read(text);
    assert_eq!(imported.warnings, [], "warnings");
    imported.into_policy().unwrap()
}

fn warnings(text: &str) -> Vec<String> {
    read(text)
        .warnings
        .iter()
        .map(ToString::to_string)
        .collect()
}

fn errors(text: &str) -> Vec<String> {
    let errors = Imported::from_ocelot(text).expect_err("the file is refused");
    errors.iter().map(ToString::to_string).collect()
}

/// The rule that decides a request of a client.
fn rule_for<'p>(policy: &'p Policy, method: &str, path: &str) -> Option<&'p str> {
    let headers = [("Oc-Client", "a"), ("X-Real-IP", "192.0.2.7")];
    let request = Request::new(method, path).headers(&headers);
    let decision = policy.decide_at(Timestamp::ZERO, &request);
    decision.rule().map(Rule::name)
}

/// A file with these options of its one route and of `GlobalConfiguration`.
fn merged(route: &str, global: &str) -> Imported {
    read(&format!(
        r#"{{ "Routes": [{{ "Key": "R1", "UpstreamPathTemplate": "/", {route} }}],
             "GlobalConfiguration": {{ {global} }} }}"#
    ))
}

/// How long a client that asks twice at once is then denied, in milliseconds. `None` without limit.
fn denied_for(imported: Imported, header: &str) -> Option<u64> {
    let policy = imported.into_policy().unwrap();
    let headers = [(header, "a")];
    let decide = || policy.decide_at(Timestamp::ZERO, &Request::new("GET", "/").headers(&headers));
    assert!(decide().is_allowed());
    let Some(Retry::At(at)) = decide().retry() else {
        return None;
    };
    let wait = at.saturating_since(Timestamp::ZERO);
    Some(wait.as_millis().try_into().unwrap())
}

#[test]
fn routes_decide_in_the_order_in_which_ocelot_asks_them() {
    let policy = policy(
        r#"{
        "Routes": [
            { "Key": "all", "UpstreamPathTemplate": "/{everything}", "Priority": 9 },
            { "Key": "goods", "UpstreamPathTemplate": "/goods/{id}" },
            { "Key": "delete", "UpstreamPathTemplate": "/goods/delete", "Priority": 2 },
            { "Key": "post", "UpstreamPathTemplate": "/posts/{id}/comments/", "UpstreamHttpMethod": [ "Post" ] },
            { "Key": "host", "UpstreamPathTemplate": "/goods/delete", "UpstreamHost": "b.example", "Priority": 0 },
            { "Key": "query", "UpstreamPathTemplate": "/units/{unit}?{query}" }
        ] }"#,
    );
    for (path, expected) in [
        ("/", "all"),
        ("/goods", "goods"),
        ("/Goods/7/", "goods"),
        ("/goods/7/parts", "goods"),
        ("/goods/DELETE", "delete"),
        ("/posts/7/comments", "post"),
        ("/posts/7/comments/8", "all"),
        ("/posts/7/8/comments", "all"),
        ("/units/7?x=1", "query"),
        ("/units/7/8", "all"),
    ] {
        assert_eq!(rule_for(&policy, "POST", path), Some(expected), "{path}");
    }
    assert_eq!(rule_for(&policy, "GET", "/posts/7/comments"), Some("all"));
    // A route for the host comes first, whatever its priority.
    let request = Request::new("GET", "/goods/delete").host("b.example:8080");
    let decision = policy.decide_at(Timestamp::ZERO, &request);
    assert_eq!(decision.rule().map(Rule::name), Some("host"));
}

#[test]
fn a_route_without_a_key_is_named_by_its_methods_host_and_template() {
    let imported = read(
        r#"{ "Routes": [
            { "UpstreamPathTemplate": "/a/{b}" },
            { "UpstreamPathTemplate": "/a/{b}", "UpstreamHttpMethod": ["Put", "Get"], "UpstreamHost": "x.example" },
            { "UpstreamPathTemplate": "/a/{b}",
              "RateLimitOptions": { "Limit": 1, "Period": "1s", "KeyPrefix": "api" } }
        ] }"#,
    );
    let names: Vec<_> = imported.rules.iter().map(Rule::name).collect();
    assert_eq!(names, ["GET,PUT x.example/a/{b}", "/a/{b}", "api:/a/{b}"]);
}

#[test]
fn names_are_read_without_regard_to_case_and_numbers_from_strings() {
    let imported = read(
        r#"{ "routes": [{ "key": "R1", "upstreampathtemplate": "/",
            "rateLimitOptions": { "limit": "2", "period": "1S", "enableratelimiting": "True",
                                  "wait": null, "statuscode": "503" } }] }"#,
    );
    assert_eq!(imported.warnings, []);
    assert_eq!(
        (
            imported.rules[0].limits()[0].count(),
            imported.rules[0].status()
        ),
        (2, 503)
    );
}

#[test]
fn an_option_of_the_route_comes_before_a_global_one_and_that_before_the_default() {
    let one = r#""RateLimitOptions": { "Limit": 1, "Period": "2s" }"#;
    assert_eq!(denied_for(merged(one, ""), "Oc-Client"), Some(2_000));
    assert_eq!(denied_for(merged("", one), "Oc-Client"), Some(2_000));
    let global = r#""RateLimitOptions": { "ClientIdHeader": "global", "ClientWhitelist": ["vip"],
        "Limit": 7, "Period": "3s", "Wait": "4s", "StatusCode": 503, "QuotaMessage": "g" }"#;
    let imported = merged(one, global);
    assert_eq!(
        (imported.rules[0].status(), imported.rules[0].message()),
        (503, Some("g"))
    );
    assert_eq!(denied_for(imported.clone(), "global"), Some(4_000));
    let is_exempt = |imported: Imported, client: &str| {
        let policy = imported.into_policy().unwrap();
        let headers = [("global", client)];
        let request = Request::new("GET", "/").headers(&headers);
        policy.decide_at(Timestamp::ZERO, &request).outcome() == Outcome::Exempt
    };
    assert!(is_exempt(imported.clone(), "vip"));
    let own_list =
        r#""RateLimitOptions": { "Limit": 1, "Period": "2s", "ClientWhitelist": ["own"] }"#;
    assert!(is_exempt(merged(own_list, global), "own"));
    assert!(!is_exempt(merged(own_list, global), "vip"));
    // What the route leaves out may come from the global options alone.
    let status = r#""RateLimitOptions": { "ClientIdHeader": "route", "StatusCode": 418 }"#;
    assert_eq!(merged(status, one).rules[0].status(), 418);
    assert_eq!(denied_for(merged(status, one), "route"), Some(2_000));
}

#[test]
fn old_names_come_before_new_ones_whichever_level_has_them() {
    let route = r#""RateLimitOptions": { "Limit": 1, "Period": "1s", "Wait": "5s" }"#;
    let global = r#""RateLimitOptions": { "PeriodTimespan": 2.5, "HttpStatusCode": 503, "StatusCode": 418 }"#;
    let imported = merged(route, global);
    let warnings: Vec<_> = imported
        .warnings
        .iter()
        .map(|warning| &warning.message)
        .collect();
    assert_eq!(
        warnings,
        ["Wait has no effect beside PeriodTimespan, as in Ocelot"]
    );
    assert_eq!(imported.rules[0].status(), 503);
    assert_eq!(denied_for(imported, "Oc-Client"), Some(2_500));
}

#[test]
fn a_limit_is_off_if_the_route_or_the_global_options_say_so() {
    let on = r#""RateLimitOptions": { "Limit": 1, "Period": "1s" }"#;
    let off = r#""RateLimitOptions": { "Limit": 0, "Period": "", "EnableRateLimiting": false }"#;
    let elsewhere = r#""RateLimitOptions": { "Limit": 1, "Period": "1s", "EnableRateLimiting": false,
        "RouteKeys": ["R2"] }"#;
    for (route, global, is_limited) in [
        ("", "", false),
        (on, "", true),
        ("", on, true),
        (off, on, false),
        (on, off, false),
        (on, elsewhere, true),
        // Global options without a limit are defaults for the options of routes only.
        (
            "",
            r#""RateLimitOptions": { "ClientIdHeader": "X" }"#,
            false,
        ),
    ] {
        let imported = merged(route, global);
        assert_eq!(
            !imported.rules[0].limits().is_empty(),
            is_limited,
            "{route} {global}"
        );
    }
}

#[test]
fn global_options_with_route_keys_are_for_these_routes_only() {
    let global = |keys| {
        let options =
            format!(r#""RateLimitOptions": {{ "Limit": 1, "Period": "1s", "RouteKeys": {keys} }}"#);
        !merged("", &options).rules[0].limits().is_empty()
    };
    assert!(global("[]"));
    assert!(global(r#"["R0", "R1"]"#));
    assert!(!global(r#"["R0"]"#));
}

const GROUPS: &str = r#"{
    "Routes": [
        { "Key": "users", "UpstreamPathTemplate": "/u/{id}", "DownstreamPathTemplate": "/api/users/{id}" },
        { "Key": "user", "UpstreamPathTemplate": "/user", "DownstreamPathTemplate": "/API/Users?all=1" },
        { "Key": "users2", "UpstreamPathTemplate": "/u2", "DownstreamPathTemplate": "/api/users2" },
        { "Key": "orders", "UpstreamPathTemplate": "/o/{v}/{id}", "DownstreamPathTemplate": "/api/v{v}/orders" },
        { "Key": "files", "UpstreamPathTemplate": "/f/{any}", "DownstreamPathTemplate": "/files/a/{any}" },
        { "Key": "own", "UpstreamPathTemplate": "/own", "DownstreamPathTemplate": "/api/users/own",
          "RateLimitOptions": { "EnableRateLimiting": true, "Limit": 9, "Period": "1s" } },
        { "Key": "off", "UpstreamPathTemplate": "/off", "DownstreamPathTemplate": "/api/users/off",
          "RateLimitOptions": { "EnableRateLimiting": false } }
    ],
    // Comments are allowed.
    "GlobalRateLimitRules": [
        { "Pattern": "/api/users/", "Limit": 1, "Period": "1m", "PeriodTimespan": 1,
          "QuotaExceededMessage": "Global limit exceeded. Try again later." },
        { "Pattern": "/api/{version}/orders", "Limit": 2, "Period": "1m" },
        { "Pattern": "/files/{rest}", "Methods": ["Put", "Delete"], "Limit": 3, "Period": "1m" },
        { "Pattern": "/files", "Methods": ["Get"], "Limit": 4, "Period": "1m" }
    ],
    "GlobalConfiguration": { "RateLimitOptions": { "ClientIdHeader": "Oc-Client" } }
}"#;

#[test]
fn global_rules_are_for_routes_without_options_whose_downstream_template_they_match() {
    let imported = read(GROUPS);
    assert_eq!(imported.warnings, []);
    let limits: Vec<_> = imported
        .rules
        .iter()
        .map(|rule| (rule.name(), rule.limits().first().map(Limit::count)))
        .collect();
    assert_eq!(
        limits,
        [
            ("users", Some(1)),
            ("user", Some(1)),
            ("users2", None),
            ("orders", Some(2)),
            ("files for DELETE,PUT", Some(3)),
            ("files for GET", Some(4)),
            ("files", None),
            ("own", Some(9)),
            ("off", None),
        ]
    );
    let message = imported.rules[0].message();
    assert_eq!(message, Some("Global limit exceeded. Try again later."));
    let policy = imported.into_policy().unwrap();
    assert_eq!(
        rule_for(&policy, "PUT", "/f/x/y"),
        Some("files for DELETE,PUT")
    );
    assert_eq!(rule_for(&policy, "POST", "/f/x"), Some("files"));
}

#[test]
fn the_timespan_of_a_global_rule_is_no_wait_and_each_route_counts_alone() {
    let policy = read(GROUPS).into_policy().unwrap();
    let decide = |path, millis| {
        let request = Request::new("GET", path).headers(&[("Oc-Client", "a")]);
        policy
            .decide_at(Timestamp::from_millis(millis), &request)
            .is_allowed()
    };
    assert!(decide("/u/1", 0));
    assert!(
        !decide("/u/2", 59_999),
        "the window is a minute, the denial starts no wait of 1 s"
    );
    assert!(decide("/user", 59_999));
    assert!(decide("/u/3", 60_000));
}

#[test]
fn a_file_with_old_names_only_accepts_the_header_of_its_time_too() {
    let old = r#"{ "Routes": [{ "UpstreamPathTemplate": "/", "RateLimitOptions":
        { "EnableRateLimiting": true, "Limit": 1, "Period": "1s", "PeriodTimespan": 2,
          "ClientWhitelist": ["vip"] } }] }"#;
    assert_eq!(
        warnings(old),
        [
            "2:67: ClientIdHeader is not set, and this name is from before Ocelot 24.1: `Oc-Client` \
          or the older `ClientId` names the client"
        ]
    );
    let policy = read(old).into_policy().unwrap();
    let outcome = |headers: &[(&str, &str); 1]| {
        let request = Request::new("GET", "/").headers(headers);
        policy.decide_at(Timestamp::ZERO, &request).outcome()
    };
    assert_eq!(outcome(&[("ClientId", "vip")]), Outcome::Exempt);
    assert_eq!(outcome(&[("Oc-Client", "vip")]), Outcome::Exempt);
    assert_eq!(outcome(&[("Client", "a")]), Outcome::Unidentified);
    assert_eq!(outcome(&[("ClientId", "a")]), Outcome::Allowed);
    assert!(
        matches!(outcome(&[("Oc-Client", "a")]), Outcome::Denied { .. }),
        "the same client"
    );
    // A new name, or the header's name, settles it.
    let new = old.replace("PeriodTimespan\": 2", "Wait\": \"2s\"");
    let policy = self::policy(&new);
    let headers = [("ClientId", "a")];
    let request = Request::new("GET", "/").headers(&headers);
    assert_eq!(
        policy.decide_at(Timestamp::ZERO, &request).outcome(),
        Outcome::Unidentified
    );
    assert_eq!(
        warnings(&old.replace(
            "\"EnableRateLimiting\": true, ",
            "\"ClientIdHeader\": \"X\", "
        )),
        [
            "2:9: EnableRateLimiting is not set: the route is limited, as since Ocelot 24.1, and not before"
        ]
    );
}

#[test]
fn services_are_found_by_the_first_component_of_the_path() {
    let text = r#"{
        "DynamicRoutes": [
            { "ServiceName": "orders", "ServiceNamespace": "shop",
              "RateLimitRule": { "Limit": 1, "Period": "1s" },
              "RateLimitOptions": { "Limit": 2, "Period": "1s" } },
            { "Key": "open", "ServiceName": "status", "RateLimitOptions": { "EnableRateLimiting": false } }
        ],
        "GlobalConfiguration": {
            "ServiceDiscoveryProvider": { "Type": "Consul", "Host": "localhost", "Port": 8500 },
            "RateLimitOptions": { "Limit": 3, "Period": "1s" }
        }
    }"#;
    assert_eq!(
        warnings(text),
        [
            "10:33: services without a dynamic route share one limit for each client: in Ocelot, each \
          service has its own"
        ]
    );
    let policy = read(text).into_policy().unwrap();
    let limit = |name: &str| policy.rule(name).unwrap().limits()[0].count();
    assert_eq!((limit("shop.orders"), limit("other services")), (1, 3));
    for (path, expected) in [
        ("/orders", "shop.orders"),
        ("/shop.orders/7", "shop.orders"),
        ("/other.orders/7", "other services"),
        ("/Orders", "other services"),
        ("/status/x", "open"),
    ] {
        assert_eq!(rule_for(&policy, "GET", path), Some(expected), "{path}");
    }
}

#[test]
fn what_has_no_counterpart_is_reported_where_it_is() {
    let text = r#"{
"Logging": {},
"Routes": [
{ "Key": "a", "UpstreamPathTemplate": "/a/x_{b}?q={q}", "SwaggerKey": "s",
"RateLimitOptions": { "Limit": 1, "Period": "1s", "Wait": "-2s", "DisableRateLimitHeaders": true,
"ClientIdHeader": "C", "ClientWhitelist": [""], "QuotaMessage": "{0:N0} {{per}} {1}" } },
{ "UpstreamPathTemplate": "/B", "RouteIsCaseSensitive": true, "RateLimiting": {},
"UpstreamHeaderTemplates": { "country": "uk" } }
],
"Aggregates": [ { "UpstreamPathTemplate": "/both", "RouteKeys": ["a"] } ],
"DynamicRoutes": [ { "ServiceName": "s" } ],
"GlobalRateLimitRules": [ { "Pattern": "/none", "Limit": 1, "Period": "30s", "PeriodTimespan": 1 } ],
"GlobalConfiguration": { "RateLimitOptions": { "Limit": 1 } }
}"#;
    assert_eq!(
        warnings(text),
        [
            "2:1: Logging is not a setting of ocelot.json: it is ignored",
            "4:39: UpstreamPathTemplate: a placeholder is a part of a component: the rule is for \
             paths with any text in that component",
            "4:39: UpstreamPathTemplate: the query does not count: the rule is for requests with \
             any query",
            "4:57: SwaggerKey is not a setting of a route: it is ignored",
            "5:59: Wait is negative: the sign is ignored, as in Ocelot",
            "6:43: ClientWhitelist: \"\" has no effect: a request without a client is denied",
            "6:65: QuotaMessage: the format of a number is ignored",
            "7:1: RouteIsCaseSensitive has no effect beside routes that ignore case: all routes \
             ignore it",
            "7:79: RateLimiting has no effect, as in Ocelot 25",
            "8:28: UpstreamHeaderTemplates have no counterpart: the rule is for requests with any \
             headers",
            "10:17: an aggregate has no limit: in Ocelot, each of its requests counts in the \
             limits of its routes",
            "11:20: DynamicRoutes have no effect beside Routes, as in Ocelot",
            "12:40: Pattern matches the DownstreamPathTemplate of no route that has no \
             RateLimitOptions: the rule has no effect",
            "12:96: PeriodTimespan has no effect: the period is `30s`",
            "13:57: Period is missing beside Limit: it is 1s",
        ]
    );
    let imported = read(text);
    let rule = imported
        .rules
        .iter()
        .find(|rule| rule.name() == "a")
        .unwrap();
    assert_eq!(rule.message(), Some("1 {per} 1s"));
}

#[test]
fn all_errors_are_reported_where_they_are() {
    let text = r#"{
"Route": [],
"Routes": [
{ "UpstreamPathTemplate": "/a/{b", "RateLimitOption": {} },
{ "RateLimitOptions": { "Limit": -1, "Period": "", "Wait": "1x" } },
{ "UpstreamPathTemplate": "/c", "RateLimitOptions": { "Limit": 1.5, "Period": "333.5" } },
{ "UpstreamPathTemplate": "/d/../e", "RateLimitOptions": { "Wait": "soon", "Period": "-3s" } },
{ "UpstreamPathTemplate": "/f", "UpstreamHost": "a b", "Priority": "high", "RateLimitOptions":
{ "Limit": 1, "Period": "1s", "StatusCode": 200, "QuotaMessage": "{2}", "QuotaExceededMessage": "{",
"PeriodTimespan": "x", "Limits": 3 } },
{ "UpstreamPathTemplate": "g", "RateLimitOptions": 5 },
{ "UpstreamPathTemplate": "/h", "RateLimitOptions": { "Limit": 1, "Period": "0s", "Limit": 2 } }
],
"GlobalRateLimitRules": [ { "Pattern": "users", "Limit": 1, "Period": "1s" }, { "Limit": 1 } ]
}"#;
    let expected = "expected a number and ms, s, m, h or d";
    let placeholders = "expected {0} for the limit, {1} for the period, and {{ or }} for a brace";
    assert_eq!(
        errors(text),
        [
            "2:1: Route is not a setting of ocelot.json: did you mean Routes?".to_owned(),
            "4:27: UpstreamPathTemplate: `/a/{b` has a `{` without its `}`".into(),
            "4:36: RateLimitOption is not a setting of a route: did you mean RateLimitOptions?"
                .into(),
            "5:1: UpstreamPathTemplate is missing in a route".into(),
            format!(
                "5:34: Limit: `-1` is not a number of requests from 1 to {}",
                i64::MAX
            ),
            format!("5:60: Wait: `1x` has the unknown unit `x`: {expected}"),
            format!(
                "6:64: Limit: `1.5` is not a number of requests from 1 to {}",
                i64::MAX
            ),
            format!("6:79: Period: `333.5` has no unit: {expected}"),
            "7:27: paths: `/d/../e/` contains a component `.` or `..`, which no normalized path has"
                .into(),
            "7:58: Limit is missing in these RateLimitOptions, and in the global ones".into(),
            format!("7:68: Wait: `soon` has no number: {expected}"),
            "7:86: Period: `-3s` is negative".into(),
            "8:49: hosts: `a b` is neither a name of a host, such as `api.example.com` or \
             `*.example.com`, nor an address: write it without scheme, port and blanks"
                .into(),
            "8:68: Priority: `high` is not a whole number".into(),
            "9:45: StatusCode: `200` is not from 400 to 599".into(),
            format!("9:66: QuotaMessage: `{{2}}` has an unknown `{{2}}`: {placeholders}"),
            format!("9:97: QuotaExceededMessage: `{{` has a single `{{`: {placeholders}"),
            "10:19: PeriodTimespan: `x` is not a number of seconds".into(),
            "10:24: Limits is not a setting of RateLimitOptions: did you mean Limit?".into(),
            "11:27: UpstreamPathTemplate: `g` does not begin with `/`".into(),
            "11:52: RateLimitOptions: expected an object, not an integer".into(),
            "12:77: Period: `0s` is not longer than 0".into(),
            "12:83: Limit is set twice".into(),
            "14:40: Pattern: `users` does not begin with `/`".into(),
            "14:79: Pattern is missing in this rule of GlobalRateLimitRules".into(),
            "14:79: Period is missing in this rule of GlobalRateLimitRules".into(),
        ]
    );
}

/// Ocelot ignores a name that it does not know. That is an error here only if a limit is lost.
#[test]
fn a_name_that_resembles_one_that_concerns_no_limit_is_a_warning() {
    let text = r#"{ "Aggregate": [], "Routes": [{ "UpstreamPathTemplate": "/a/{x}",
"UpstreamScheme": "http", "ReRoutesCaseSensitive": false, "DownstreamSchema": "http",
"RateLimitOptions": { "EnableRateLimiting": true, "Limit": 1, "Period": "1m" } }],
"GlobalConfiguration": { "BaseUri": "http://a.example" } }"#;
    assert_eq!(
        warnings(text),
        [
            "1:3: Aggregate is not a setting of ocelot.json: it is ignored (did you mean \
             Aggregates?)",
            "2:1: UpstreamScheme is not a setting of a route: it is ignored (did you mean \
             DownstreamScheme?)",
            "2:27: ReRoutesCaseSensitive is not a setting of a route: it is ignored (did you mean \
             RouteIsCaseSensitive?)",
            "2:59: DownstreamSchema is not a setting of a route: it is ignored (did you mean \
             DownstreamScheme?)",
            "4:26: BaseUri is not a setting of GlobalConfiguration: it is ignored (did you mean \
             BaseUrl?)",
        ]
    );
    assert_eq!(read(text).rules[0].limits().len(), 1);
    // Whether a request meets a limit, and which one, is not left to a misspelled name.
    for (name, meant) in [
        ("RateLimitOption", "RateLimitOptions"),
        ("RateLimitting", "RateLimiting"),
        ("UpstreamHosts", "UpstreamHost"),
        ("UpstreamHttpMethods", "UpstreamHttpMethod"),
        ("Prioirty", "Priority"),
        ("DownstreamPathTemplates", "DownstreamPathTemplate"),
    ] {
        let text =
            format!(r#"{{ "Routes": [{{ "UpstreamPathTemplate": "/", "{name}": null }}] }}"#);
        let expected = format!("1:45: {name} is not a setting of a route: did you mean {meant}?");
        assert_eq!(errors(&text), [expected]);
    }
    for (place, name, meant) in [
        ("ocelot.json", "GlobalConfigurations", "GlobalConfiguration"),
        ("ocelot.json", "GlobalRateLimitRule", "GlobalRateLimitRules"),
        ("ocelot.json", "DynamicRoute", "DynamicRoutes"),
        ("GlobalConfiguration", "RateLimitOption", "RateLimitOptions"),
        (
            "GlobalConfiguration",
            "ServiceDiscoveryProviders",
            "ServiceDiscoveryProvider",
        ),
    ] {
        let mut text = format!(r#"{{ "{name}": null }}"#);
        if place == "GlobalConfiguration" {
            text = format!(r#"{{ "{place}": {text} }}"#);
        }
        let errors = errors(&text);
        let expected = format!(": {name} is not a setting of {place}: did you mean {meant}?");
        assert!(
            errors.len() == 1 && errors[0].ends_with(&expected),
            "{errors:?}"
        );
    }
}

/// The documentation of older versions has 999. HTTP ends at 599.
#[test]
fn a_status_that_http_does_not_have_is_replaced_with_a_warning() {
    let of = |status: &str| {
        let options = r#""RateLimitOptions": { "Limit": 1, "Period": "1m" }"#;
        let global = format!(r#""RateLimitOptions": {{ "HttpStatusCode": {status} }}"#);
        let imported = merged(options, &global);
        let found = imported.warnings.iter().map(|each| each.message.clone());
        let found: Vec<_> = found.filter(|each| each.contains("Status")).collect();
        (imported.rules[0].status(), found)
    };
    for status in ["600", "999", r#""999""#] {
        let number = status.trim_matches('"');
        let expected = format!(
            "HttpStatusCode: {number} is not a status of HTTP, which end at 599: 429 is used"
        );
        assert_eq!(of(status), (429, vec![expected]));
    }
    assert_eq!(of("599"), (599, vec![]));
    for status in ["200", "399", "1000", "-999", "9.5"] {
        let text = format!(
            r#"{{ "Routes": [{{ "UpstreamPathTemplate": "/",
                "RateLimitOptions": {{ "Limit": 1, "Period": "1m", "StatusCode": {status} }} }}] }}"#
        );
        let errors = errors(&text);
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(
            errors[0].contains("is not from 400 to 599"),
            "{status}: {errors:?}"
        );
    }
}

/// Before Ocelot 16, a route was a `ReRoute`. Such a file names the client as those versions do.
#[test]
fn the_routes_of_the_oldest_files_are_read() {
    let old = r#"{ "ReRoutes": [{ "UpstreamPathTemplate": "/a", "Key": "a", "ReRouteIsCaseSensitive": true,
        "RateLimitOptions": { "EnableRateLimiting": true, "Limit": 1, "Period": "1m" } }],
"Aggregates": [ { "UpstreamPathTemplate": "/both", "ReRouteIsCaseSensitive": true,
"ReRouteKeys": ["a"] } ] }"#;
    assert_eq!(
        warnings(old),
        [
            "1:3: ClientIdHeader is not set, and this name is from before Ocelot 24.1: \
             `Oc-Client` or the older `ClientId` names the client",
            "3:17: an aggregate has no limit: in Ocelot, each of its requests counts in the \
             limits of its routes",
        ]
    );
    let policy = read(old).into_policy().unwrap();
    assert_eq!(rule_for(&policy, "GET", "/a"), Some("a"));
    assert_eq!(rule_for(&policy, "GET", "/A"), None);
    let headers = [("ClientId", "x")];
    let request = Request::new("GET", "/a").headers(&headers);
    assert!(policy.decide_at(Timestamp::ZERO, &request).is_allowed());
    assert!(!policy.decide_at(Timestamp::ZERO, &request).is_allowed());
}

/// Ocelot, `OcelotMergeConfiguration`.
#[test]
fn several_files_are_merged_as_ocelot_merges_them() {
    let global = r#"{ "GlobalConfiguration": { "RateLimitOptions":
        { "ClientIdHeader": "X-Key", "StatusCode": 418 } },
        "Routes": [{ "Key": "first", "UpstreamPathTemplate": "/1" }] }"#;
    let product = "\u{feff}{ \"Routes\": [{ \"Key\": \"product\", \"UpstreamPathTemplate\": \"/p\",
        \"RateLimitOptions\": { \"Limit\": 1, \"Period\": \"1m\" } }] }";
    let other = r#"{ "GlobalConfiguration": { "RateLimitOptions": { "Limit": 7, "Period": "1s" } },
        "Aggregates": [{ "UpstreamPathTemplate": "/both", "RouteKeys": ["product"] }] }"#;
    let merged = r#"{ "Routes": [{ "Key": "merged", "UpstreamPathTemplate": "/p" }] }"#;
    let imported = Imported::from_ocelot_files(&[
        ("conf/Ocelot.Global.json", global),
        ("conf/ocelot.json", merged),
        ("conf/ocelot.product.json", product),
        (r"conf\ocelot.z.json", other),
    ])
    .unwrap();
    let found: Vec<_> = imported.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        found,
        [
            "conf/ocelot.json:1:3: the file is left out: Ocelot writes to it what it has merged \
             from the others",
            "conf\\ocelot.z.json:1:26: GlobalConfiguration has no effect here: of several files, \
             Ocelot reads that of ocelot.global.json",
            "conf\\ocelot.z.json:2:24: an aggregate has no limit: in Ocelot, each of its requests \
             counts in the limits of its routes",
        ]
    );
    let warning = &imported.warnings[2];
    assert!(other[warning.bytes.clone()].starts_with(r#"{ "UpstreamPathTemplate": "/both""#));
    let rules: Vec<_> = imported
        .rules
        .iter()
        .map(|rule| (rule.name(), rule.limits().len(), rule.status()))
        .collect();
    assert_eq!(
        rules,
        [
            ("first", 0, 429),
            ("product", 1, 418),
            ("GET /both", 0, 429)
        ]
    );
    let policy = imported.into_policy().unwrap();
    let headers = [("X-Key", "a")];
    let request = Request::new("GET", "/p").headers(&headers);
    assert!(policy.decide_at(Timestamp::ZERO, &request).is_allowed());
    assert!(!policy.decide_at(Timestamp::ZERO, &request).is_allowed());
    // One file alone is the whole configuration.
    let alone = Imported::from_ocelot_files(&[("ocelot.z.json", other)]).unwrap();
    assert_eq!(alone.warnings, []);
    assert_eq!(Imported::from_ocelot_files(&[]).unwrap().rules.len(), 0);
}

#[test]
fn an_error_in_one_of_several_files_is_reported_where_it_is() {
    let errors = Imported::from_ocelot_files(&[
        ("ocelot.a.json", "{ \"Routes\": [\n] }\n\n"),
        (
            "ocelot.b.json",
            "{ \"Routes\": [\n{ \"UpstreamPathTemplate\": \"b\" }] }",
        ),
        ("ocelot.c.json", "\u{feff}{ \"Routes\": 5 }"),
    ])
    .unwrap_err();
    let places: Vec<_> = errors
        .iter()
        .map(|error| (error.to_string(), error.bytes.clone()))
        .collect();
    assert_eq!(
        places,
        [
            (
                "ocelot.b.json:2:27: UpstreamPathTemplate: `b` does not begin with `/`".to_owned(),
                40..43
            ),
            (
                "ocelot.c.json:1:13: Routes: expected an array of objects, not an integer"
                    .to_owned(),
                15..16
            ),
        ]
    );
    assert_eq!(
        errors[0].in_file("x").to_string(),
        errors[0].to_string(),
        "its own name"
    );
    let errors = Imported::from_ocelot_files(&[("a", "{}"), ("b", ""), ("c", "{"), ("d", "[]")]);
    let errors: Vec<_> = errors
        .unwrap_err()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(errors.len(), 3, "{errors:?}");
    for (error, place) in errors.iter().zip(["b:1:1: ", "c:1:", "d:1:1: "]) {
        assert!(error.starts_with(place), "{error}");
    }
}

/// Ocelot's parser of times (world O, 301). It ignores the sign of a wait, which is a warning here.
#[test]
fn a_wait_is_read_as_ocelot_reads_it() {
    let with = |wait: &str| {
        let options = format!(
            r#"{{ "Routes": [{{ "UpstreamPathTemplate": "/",
                "RateLimitOptions": {{ "Limit": 1, "Period": "1h", "Wait": "{wait}" }} }}] }}"#
        );
        Imported::from_ocelot(&options)
    };
    for (wait, nanos) in [
        ("", 3_600_000_000_000),
        ("0", 3_600_000_000_000),
        ("5", 5_000_000),
        ("2.ms", 2_000_000),
        (".4ms", 400_000),
        ("123.456ms", 123_456_000),
        ("7S", 7_000_000_000),
        ("1.5m", 90_000_000_000),
        ("2h", 7_200_000_000_000),
        ("1d", 86_400_000_000_000),
        ("-6ms", 6_000_000),
    ] {
        let imported = with(wait).unwrap();
        let warnings: Vec<_> = imported.warnings.iter().map(|each| &each.message).collect();
        let negative = ["Wait is negative: the sign is ignored, as in Ocelot"];
        let expected: &[&str] = if wait.starts_with('-') {
            &negative
        } else {
            &[]
        };
        assert_eq!(warnings, expected);
        let policy = imported.into_policy().unwrap();
        let headers = [("Oc-Client", "a")];
        let request = Request::new("GET", "/").headers(&headers);
        assert!(policy.decide_at(Timestamp::ZERO, &request).is_allowed());
        let denied = policy.decide_at(Timestamp::ZERO, &request);
        let expected = Retry::At(Timestamp::from_nanos(nanos));
        assert_eq!(denied.retry(), Some(expected), "{wait}");
    }
    for (wait, expected) in [
        ("1x", "Wait: `1x` has the unknown unit `x`"),
        ("ms", "Wait: `ms` has no number"),
        (".", "Wait: `.` has no number"),
    ] {
        let errors = with(wait).expect_err(wait);
        let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(errors[0].contains(expected), "{errors:?}");
    }
}

/// Ocelot's validation of a route (world O, 306). Options that are off are not checked.
#[test]
fn a_limit_and_a_period_that_are_not_valid_are_errors_of_their_own() {
    let route = |options: &str| {
        format!(
            r#"{{ "Routes": [{{ "UpstreamPathTemplate": "/",
                "RateLimitOptions": {{ {options} }} }}] }}"#
        )
    };
    for (options, expected) in [
        (r#""Limit": 0, "Period": "1s""#, "Limit: `0` is not"),
        (r#""Limit": -1, "Period": "1s""#, "Limit: `-1` is not"),
        (r#""Limit": 1, "Period": """#, "Period is missing in these"),
        (
            r#""Limit": 1, "Period": "  ""#,
            "Period is missing in these",
        ),
        (r#""Limit": 1"#, "Period is missing in these"),
        (r#""Limit": 1, "Period": "1""#, "Period: `1` has no unit"),
    ] {
        let errors = errors(&route(options));
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(errors[0].contains(expected), "{errors:?}");
        let off = format!(r#"{options}, "EnableRateLimiting": false"#);
        assert!(read(&route(&off)).rules[0].limits().is_empty());
    }
    let all = errors(&route(r#""Limit": 0, "Period": "3""#));
    assert_eq!(all.len(), 2, "{all:?}");
}

#[test]
fn a_period_and_a_wait_may_have_fractions() {
    let options = r#""RateLimitOptions": { "Limit": 1, "Period": "1.5m", "Wait": "333.5" }"#;
    let imported = merged(options, "");
    let limit = &imported.rules[0].limits()[0];
    assert_eq!(limit.period(), Some(Duration::from_secs(90)));
    assert_eq!(
        imported.rules[0].message(),
        Some("API calls quota exceeded! Maximum admitted 1 per 1.5m.")
    );
    let policy = imported.into_policy().unwrap();
    let headers = [("Oc-Client", "a")];
    let request = Request::new("GET", "/").headers(&headers);
    assert!(policy.decide_at(Timestamp::ZERO, &request).is_allowed());
    let denied = policy.decide_at(Timestamp::ZERO, &request);
    assert_eq!(
        denied.retry(),
        Some(Retry::At(Timestamp::from_nanos(333_500_000)))
    );
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// A file with pieces replaced is accepted or refused with errors in it. It never panics.
    #[test]
    fn damaged_files_are_refused_without_a_panic(
        cuts in proptest::collection::vec(
            (any::<u16>(), 0_usize..20, r#"(\{|\}|"|,|:|/|null|\{x\}|[\[\]a-z0-9?*.é -]){0,6}"#),
            1..5,
        ),
    ) {
        let mut text = include_str!("../examples/ocelot.json").to_owned();
        for (at, len, with) in cuts {
            let at = text.floor_char_boundary(usize::from(at) % (text.len() + 1));
            let end = text.ceil_char_boundary((at + len).min(text.len()));
            text.replace_range(at..end, &with);
        }
        let messages = match Imported::from_ocelot(&text) {
            Ok(imported) => imported.warnings,
            Err(errors) => {
                prop_assert!(!errors.is_empty());
                errors
            }
        };
        let lines: Vec<&str> = text.split('\n').collect();
        for message in messages {
            prop_assert!((1..=lines.len()).contains(&message.line));
            let columns = lines[message.line - 1].chars().count() + 1;
            prop_assert!((1..=columns).contains(&message.column), "{}", message);
        }
    }
}
