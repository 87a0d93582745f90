//! The compiled matcher decides as a naive one, which knows nothing of rows and normalizes by
//! splitting.

use core::net::IpAddr;
use core::ops::ControlFlow;
use core::time::Duration;

use portcullis_core::Timestamp;
use portcullis_policy::{
    Conditions, Considered, Key, Kind, Limit, Matcher, Outcome, PathError, PathReading, PathRules,
    Policy, Problem, Request, Rule, Threshold,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};

/// One rule, with the texts that it is made of.
#[derive(Clone, Debug, Default)]
struct Naive {
    kind: Kind,
    methods: Vec<&'static str>,
    paths: Vec<String>,
    hosts: Vec<&'static str>,
    tiers: Vec<&'static str>,
    properties: Vec<(&'static str, Vec<&'static str>)>,
}

impl Naive {
    fn conditions(&self) -> Conditions {
        let all = Conditions::new()
            .kind(self.kind)
            .methods(self.methods.iter().copied())
            .paths(self.paths.iter().cloned())
            .hosts(self.hosts.iter().copied())
            .tiers(self.tiers.iter().copied());
        let mut properties = self.properties.iter();
        properties
            .try_fold(all, |all, (name, values)| {
                Some(all.property(*name, values.iter().copied()))
            })
            .unwrap()
    }

    fn matches(&self, request: &Request<'_>) -> bool {
        let one_of = |all: &[&str], value: &str| all.is_empty() || all.contains(&value);
        let counts_as = if request.method == "HEAD" {
            "GET"
        } else {
            request.method
        };
        let path: Vec<&str> = request.path.split('/').filter(|c| !c.is_empty()).collect();
        let path_fits = |pattern: &String| {
            let pattern: Vec<&str> = pattern.split('/').filter(|c| !c.is_empty()).collect();
            glob(&pattern, &path)
        };
        self.kind == request.kind
            && (one_of(&self.methods, request.method) || one_of(&self.methods, counts_as))
            && (self.paths.is_empty() || self.paths.iter().any(path_fits))
            && (self.hosts.is_empty() || self.hosts.iter().any(|host| is_at(host, request)))
            && one_of(&self.tiers, request.tier)
            && self.properties.iter().all(|(name, values)| {
                let value = request.properties.value(name);
                value.is_some_and(|value| values.contains(&value))
            })
    }
}

/// Tries every length of every `**`: exponential, and obviously right.
fn glob(pattern: &[&str], path: &[&str]) -> bool {
    match (pattern, path) {
        ([], _) => path.is_empty(),
        (["**", rest @ ..], _) => (0..=path.len()).any(|skip| glob(rest, &path[skip..])),
        (["*", rest @ ..], [first, after @ ..]) => !first.is_empty() && glob(rest, after),
        ([part, rest @ ..], [first, after @ ..]) => part == first && glob(rest, after),
        (_, []) => false,
    }
}

fn is_at(host: &str, request: &Request<'_>) -> bool {
    let mapped = host == "::ffff:10.1.0.0/112";
    let host = if mapped { "10.1.0.0/16" } else { host };
    let address = request.address.map(|address| address.to_canonical());
    let bits = |address: IpAddr| match address {
        IpAddr::V4(address) => format!("4{:032b}", address.to_bits()),
        IpAddr::V6(address) => format!("6{:0128b}", address.to_bits()),
    };
    if let Some((network, len)) = host.split_once('/') {
        let prefix = &bits(network.parse().unwrap())[..=len.parse().unwrap()];
        address.is_some_and(|address| bits(address).starts_with(prefix))
    } else if let Ok(address) = host.parse::<IpAddr>() {
        request.address.map(|own| own.to_canonical()) == Some(address)
    } else {
        let name = request.host.to_lowercase();
        let name = name.split(':').next().unwrap().trim_end_matches('.');
        match host.strip_prefix('*') {
            Some(end) => name.ends_with(end) && name.len() > end.len(),
            None => name == host,
        }
    }
}

const KINDS: [Kind; 2] = [Kind::Request, Kind::Egress];
const METHODS: [&str; 3] = ["GET", "PUT", "HEAD"];
const HOSTS: [&str; 11] = [
    "a.example",
    "b.a.example",
    "*.example",
    "*.a.example",
    "10.0.0.0/8",
    "10.1.0.0/16",
    "10.1.2.3",
    "2001:db8::/32",
    "0.0.0.0/0",
    "::/0",
    "::ffff:10.1.0.0/112",
];
const TIERS: [&str; 2] = ["free", "paid"];
const VALUES: [&str; 3] = ["x", "y", "z"];

fn some<T: Clone + core::fmt::Debug + 'static>(all: &'static [T]) -> impl Strategy<Value = Vec<T>> {
    prop_oneof![3 => Just(vec![]), 1 => vec(select(all), 1..3)]
}

fn rules() -> impl Strategy<Value = Vec<Naive>> {
    let part = select(&["a", "b", "c", "*", "*", "**"][..]);
    let pattern = vec(part, 0..6).prop_map(|parts| parts.join("/"));
    let paths = prop_oneof![1 => Just(vec![]), 4 => vec(pattern, 1..4)];
    let property = |name: &'static str| {
        some(&VALUES).prop_map(move |values| (!values.is_empty()).then_some((name, values)))
    };
    let properties =
        (property("region"), property("user")).prop_map(|(a, b)| a.into_iter().chain(b).collect());
    let kind = prop_oneof![4 => Just(KINDS[0]), 1 => Just(KINDS[1])];
    let rule = (
        kind,
        some(&METHODS),
        paths,
        some(&HOSTS),
        some(&TIERS),
        properties,
    )
        .prop_map(|(kind, methods, paths, hosts, tiers, properties)| Naive {
            kind,
            methods,
            paths,
            hosts,
            tiers,
            properties,
        });
    vec(rule, 0..200)
}

type Asked = (
    Kind,
    &'static str,
    String,
    &'static str,
    Option<&'static str>,
    &'static str,
    [&'static str; 2],
);

fn requests() -> impl Strategy<Value = Vec<Asked>> {
    let part = select(&["a", "a", "b", "c", "d", ""][..]);
    let path = vec(part, 0..8).prop_map(|parts| format!("/{}", parts.join("/")));
    let host = select(
        &[
            "",
            "a.example",
            "B.A.example:80",
            "c.b.a.example.",
            "example",
            "d.example",
        ][..],
    );
    let address = select(
        &[
            "10.1.2.3",
            "10.1.9.9",
            "10.200.0.1",
            "::ffff:10.1.2.3",
            "11.0.0.0",
            "9.255.255.255",
            "2001:db8::1",
            "2001:db9::",
        ][..],
    );
    let address = proptest::option::of(address);
    let value = || select(&["x", "y", "w", ""][..]);
    let one = (
        select(&KINDS[..]),
        select(&["GET", "PUT", "get"][..]),
        path,
        host,
        address,
        select(&["free", "paid", ""][..]),
        [value(), value()],
    );
    vec(one, 1..40)
}

#[test]
fn the_matcher_decides_as_a_naive_one() {
    let mut runner = TestRunner::new(Config {
        cases: 400,
        failure_persistence: None,
        ..Config::default()
    });
    let cases = (rules(), requests());
    runner
        .run(&cases, |(rules, requests)| {
            let conditions: Vec<_> = rules.iter().map(Naive::conditions).collect();
            let rules_of_paths = PathRules::new().reading(PathReading::Resolved);
            let matcher = Matcher::new(&conditions, rules_of_paths).unwrap();
            for (kind, method, path, host, address, tier, values) in &requests {
                let properties = [("Region", values[0]), ("user", values[1])];
                let mut request = Request::new(method, path)
                    .kind(*kind)
                    .host(host)
                    .tier(tier)
                    .properties(&properties);
                request.address = address.map(|address| address.parse().unwrap());
                let mut found = Vec::new();
                matcher
                    .visit(&request, |index| {
                        found.push(index);
                        ControlFlow::Continue(())
                    })
                    .unwrap();
                let all = rules.iter().enumerate();
                let expected: Vec<_> = all
                    .filter(|(_, rule)| rule.matches(&request))
                    .map(|(index, _)| index)
                    .collect();
                prop_assert_eq!(&found, &expected, "{:?}", request);
                prop_assert_eq!(matcher.first(&request), Ok(expected.first().copied()));
                for index in 0..rules.len() {
                    let matches = matcher.mismatch(index, &request).unwrap().is_none();
                    prop_assert_eq!(matches, expected.contains(&index));
                }
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn spellings_of_a_path_match_the_same_rule() {
    let conditions = [
        Conditions::new().paths(["/login"]),
        Conditions::new().paths(["/**"]),
    ];
    let resolved = PathRules::new().reading(PathReading::Resolved);
    let matcher = Matcher::new(&conditions, resolved).unwrap();
    for path in [
        "/login",
        "login",
        "//login",
        "/login/",
        "/%6Cogin",
        "/./login",
        "/x/../login",
        "/login?x=1",
        "/login#f",
        "/%2e/login",
        "/x/%2E./login//",
        "/login/.",
    ] {
        assert_eq!(
            matcher.first(&Request::new("GET", path)),
            Ok(Some(0)),
            "{path}"
        );
    }
    for path in [
        "/Login",
        "/login%2F",
        "/login/x",
        "/%256Cogin",
        "/log%69n%00",
    ] {
        assert_eq!(
            matcher.first(&Request::new("GET", path)),
            Ok(Some(1)),
            "{path}"
        );
    }
    let matcher = Matcher::new(&conditions, resolved.ignoring_case()).unwrap();
    assert_eq!(matcher.first(&Request::new("GET", "/LogIn")), Ok(Some(0)));
}

#[test]
fn a_path_that_is_too_long_matches_nothing_and_is_an_error() {
    let matcher = Matcher::new(&[Conditions::new()], PathRules::new()).unwrap();
    let first = |path: &str| matcher.first(&Request::new("GET", path));
    assert_eq!(first(&"/a".repeat(256)), Ok(Some(0)));
    assert_eq!(first(&"/a".repeat(257)), Err(PathError::TooManyComponents));
    assert_eq!(first(&"/".repeat(256)), Ok(Some(0)));
    assert_eq!(first(&"/".repeat(257)), Err(PathError::TooManyComponents));
    assert_eq!(first(&"/".repeat(8_193)), Err(PathError::TooLong));
    assert_eq!(first(&"a".repeat(8_193)), Err(PathError::TooLong));
    let resolved = PathRules::new().reading(PathReading::Resolved);
    let matcher = Matcher::new(&[Conditions::new()], resolved).unwrap();
    let first = |path: &str| matcher.first(&Request::new("GET", path));
    assert_eq!(
        first(&"/".repeat(8_193)),
        Ok(Some(0)),
        "empty components that are dropped do not count"
    );
}

#[test]
fn the_name_of_a_component_is_refused_and_a_brace_can_be_written() {
    let matcher = |pattern: &str| {
        let conditions = [Conditions::new().paths([pattern])];
        Matcher::new(&conditions, PathRules::new())
    };
    for pattern in [
        "/users/{id}",
        "/users/{id}/orders",
        "/files/{*rest}",
        "/a{b",
        "/a}",
    ] {
        let errors = matcher(pattern).unwrap_err();
        assert_eq!(errors[0].problem, Problem::PatternWithName, "{pattern}");
        let message = errors[0].to_string();
        assert!(
            message.contains("write `*`") && message.contains("%7B"),
            "{message}"
        );
    }
    // It is for both spellings, which clients send.
    let rule = Rule::new("braces").when(Conditions::new().paths(["/users/%7Bid%7D"]));
    let policy = Policy::new([rule.limit(Limit::per(1, Duration::from_mins(1)))]).unwrap();
    let allows = |path: &str| {
        let decision = policy.decide_at(Timestamp::ZERO, &Request::new("GET", path));
        decision.is_allowed()
    };
    assert!(allows("/users/%7Bid%7D"));
    assert!(!allows("/users/{id}") && !allows("/users/%7Bid%7d"));
    assert!(allows("/users/7"));
}

#[test]
fn no_rules_match_nothing() {
    let matcher = Matcher::new(&[], PathRules::new()).unwrap();
    assert_eq!(matcher.first(&Request::new("GET", "/a")), Ok(None));
}

/// A matcher that tries the lengths of each `**` would need far more than 10^20 steps here.
#[test]
fn many_wildcards_on_a_deep_path_take_few_steps() {
    let conditions: Vec<_> = (8..16)
        .map(|n| Conditions::new().paths([format!("{}/**/b/**/z/**", "/**/a/*".repeat(n))]))
        .chain([Conditions::new().paths(["/**/a/**/a/**/b"])])
        .collect();
    let matcher = Matcher::new(&conditions, PathRules::new()).unwrap();
    let path = format!("{}/b", "/a".repeat(255));
    for _ in 0..1_000 {
        assert_eq!(matcher.first(&Request::new("GET", &path)), Ok(Some(8)));
    }
}

/// Each component after the last `**` decides, wherever the path is cut.
#[test]
fn the_deepest_patterns_match() {
    let part = |n: usize| format!("/p{n}");
    let deep: String = (0..32).map(part).collect();
    let conditions = [
        Conditions::new().paths([deep.clone()]),
        Conditions::new().paths([format!("/**{deep}")]),
        Conditions::new().paths([format!("{deep}/**")]),
    ];
    let matcher = Matcher::new(&conditions, PathRules::new()).unwrap();
    let first = |path: String| matcher.first(&Request::new("GET", &path)).unwrap();
    assert_eq!(first(deep.clone()), Some(0));
    assert_eq!(first(format!("/x{deep}")), Some(1));
    assert_eq!(first(format!("{deep}{deep}")), Some(1));
    assert_eq!(first(format!("{deep}/x")), Some(2));
    for missing in 0..32 {
        let path: String = (0..32).filter(|&n| n != missing).map(part).collect();
        assert_eq!(first(path), None);
    }
}

/// A service that splits paths in its own way.
type Service = fn(&str) -> Vec<String>;

/// The components between slashes, also empty ones.
fn split(path: &str) -> Vec<String> {
    let path = path.strip_prefix('/').unwrap_or(path);
    if path.is_empty() {
        return vec![];
    }
    path.split('/').map(str::to_owned).collect()
}

fn decoded(path: &str) -> String {
    let mut path = path.replace("%2e", ".").replace("%2E", ".");
    for (encoded, byte) in [("%61", "a"), ("%62", "b"), ("%7e", "~"), ("%7E", "~")] {
        path = path.replace(encoded, byte);
    }
    path
}

/// Without empty components.
fn merged(path: Vec<String>) -> Vec<String> {
    path.into_iter().filter(|c| !c.is_empty()).collect()
}

/// Without empty components at the end.
fn trimmed(mut path: Vec<String>) -> Vec<String> {
    while path.last().is_some_and(String::is_empty) {
        path.pop();
    }
    path
}

fn resolved(path: Vec<String>) -> Vec<String> {
    let mut all = Vec::new();
    for component in merged(path) {
        match &*component {
            "." => {}
            ".." => drop(all.pop()),
            _ => all.push(component),
        }
    }
    all
}

/// Those that keep dots, as [`PathReading::Literal`] says.
const LITERAL: [Service; 2] = [|path| split(path), |path| split(&decoded(path))];

/// What routers, middleware and servers do.
const SERVICES: [Service; 9] = [
    LITERAL[0],
    LITERAL[1],
    |path| trimmed(split(path)),
    |path| trimmed(split(&decoded(path))),
    |path| merged(split(path)),
    |path| merged(split(&decoded(path))),
    |path| resolved(split(path)),
    |path| resolved(split(&decoded(path))),
    |path| resolved(trimmed(split(path))),
];

/// The index of the first rule for what a service serves, if the rule has limits.
fn limiting(rules: &[(Vec<String>, bool)], path: &[String]) -> Option<usize> {
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    let matches = |pattern: &String| {
        let pattern: Vec<&str> = pattern.split('/').filter(|c| !c.is_empty()).collect();
        glob(&pattern, &path)
    };
    let first = rules
        .iter()
        .position(|(patterns, _)| patterns.is_empty() || patterns.iter().any(matches));
    first.filter(|&first| rules[first].1)
}

proptest! {
    #![proptest_config(Config { failure_persistence: None, cases: Config::default().cases.max(1_024), ..Config::default() })]

    /// Whatever a service serves takes from the limits of its own rule, or is denied, unless its
    /// rule has none.
    #[test]
    fn no_service_serves_a_path_past_the_limits_of_its_rule(
        rules in vec(
            (
                vec(vec(select(&["a", "b", "*", "*", "**"][..]), 0..4), 0..3),
                prop_oneof![2 => Just(true), 1 => Just(false)],
            ),
            0..5,
        ),
        paths in vec(
            prop_oneof![
                vec(select(&["a", "b", "", "", "%61", "%62"][..]), 0..5),
                vec(select(&["a", "", ".", "..", "%2e", "%2E.", "%7e", "~"][..]), 0..5),
            ],
            1..32,
        ),
    ) {
        let rules: Vec<(Vec<String>, bool)> = rules
            .into_iter()
            .map(|(patterns, limited)| {
                (patterns.iter().map(|parts| format!("/{}", parts.join("/"))).collect(), limited)
            })
            .collect();
        let policy = |reading| {
            let all = rules.iter().enumerate().map(|(index, (patterns, limited))| {
                let rule = Rule::new(&index.to_string());
                let rule = rule.when(Conditions::new().paths(patterns.iter().cloned()));
                if *limited { rule.limit("1000/s".parse().unwrap()) } else { rule }
            });
            Policy::with_path_rules(all, PathRules::new().reading(reading)).unwrap()
        };
        for (reading, services) in [
            (PathReading::Either, &SERVICES[..]),
            (PathReading::Literal, &LITERAL[..]),
            (PathReading::Resolved, &SERVICES[7..8]),
        ] {
            let policy = policy(reading);
            for parts in &paths {
                let path = format!("/{}", parts.join("/"));
                let request = Request::new("GET", &path);
                let decision = policy.decide_at(Timestamp::from_secs(1), &request);
                if matches!(decision.outcome(), Outcome::Path(_)) {
                    prop_assert!(reading != PathReading::Resolved, "{path} has one reading");
                    prop_assert!(policy.explain_at(Timestamp::from_secs(1), &request).is_err());
                    continue;
                }
                let decided: Option<usize> = decision.rule().map(|rule| rule.name().parse().unwrap());
                for (index, service) in services.iter().enumerate() {
                    if let Some(own) = limiting(&rules, &service(&path)) {
                        prop_assert_eq!(decided, Some(own), "{} by {:?}, {}", &path, reading, index);
                    }
                }
                // An explanation is of the same reading.
                let explained = policy.explain_at(Timestamp::from_secs(1), &request).unwrap();
                let decides = explained.iter().position(|rule| rule.decides);
                prop_assert_eq!(decides, decided);
            }
        }
    }
}

/// What a policy with a free `/health`, `/files/*` and a catch-all decides.
fn decided(reading: PathReading, path: &str) -> String {
    let rule = |name: &str| Rule::new(name).when(Conditions::new().paths([name]));
    let limited = |name: &str| rule(name).limit("2/h".parse().unwrap());
    let rules = [
        rule("/health"),
        limited("/files/*"),
        limited("/slash/"),
        limited("/**"),
    ];
    let policy = Policy::with_path_rules(rules, PathRules::new().reading(reading)).unwrap();
    let decision = policy.decide_at(Timestamp::from_secs(1), &Request::new("GET", path));
    match (decision.outcome(), decision.rule()) {
        (Outcome::Path(PathError::Dots), _) => "dots".into(),
        (Outcome::Path(PathError::Ambiguous), _) => "ambiguous".into(),
        (_, Some(rule)) => rule.name().into(),
        other => format!("{other:?}"),
    }
}

#[test]
fn a_path_with_several_readings_takes_from_the_only_rule_that_limits_it_or_is_denied() {
    for (path, either, literal, resolved) in [
        ("/health", "/health", "/health", "/health"),
        ("/health/", "/**", "/**", "/health"),
        ("//health", "/**", "/**", "/health"),
        ("/proxy/../health", "dots", "/**", "/health"),
        ("/proxy/%2e%2E/health", "dots", "/**", "/health"),
        ("/%68ealth", "/**", "/**", "/health"),
        ("/files/..", "dots", "/files/*", "/**"),
        ("/files/.", "dots", "/files/*", "/**"),
        ("/files/a", "/files/*", "/files/*", "/files/*"),
        ("/files/%61", "/files/*", "/files/*", "/files/*"),
        ("/files/a/", "ambiguous", "/**", "/files/*"),
        ("/files//a", "ambiguous", "/**", "/files/*"),
        ("/files/", "/**", "/**", "/**"),
        ("/%66iles/a", "ambiguous", "ambiguous", "/files/*"),
        ("/files/a%2Fb", "/files/*", "/files/*", "/files/*"),
        ("/files/caf%C3%A9", "/files/*", "/files/*", "/files/*"),
        ("/files/caf%c3%a9", "/files/*", "/files/*", "/files/*"),
        ("/slash", "/slash/", "/slash/", "/slash/"),
        ("/slash/", "/slash/", "/slash/", "/slash/"),
        ("/a?b=/../c/", "/**", "/**", "/**"),
        ("/.hidden", "/**", "/**", "/**"),
        ("/", "/**", "/**", "/**"),
    ] {
        assert_eq!(decided(PathReading::Either, path), either, "{path}");
        assert_eq!(decided(PathReading::Literal, path), literal, "{path}");
        assert_eq!(decided(PathReading::Resolved, path), resolved, "{path}");
    }
}

/// The rules are for other paths in different readings, and decide none of them.
#[test]
fn a_matcher_does_not_match_a_path_whose_readings_disagree() {
    let conditions = [
        Conditions::new().paths(["/login"]),
        Conditions::new().paths(["/**"]),
    ];
    let matcher = Matcher::new(&conditions, PathRules::new()).unwrap();
    for path in ["//login", "/login/", "/%6Cogin"] {
        let request = Request::new("GET", path);
        assert_eq!(matcher.first(&request), Err(PathError::Ambiguous), "{path}");
        assert_eq!(
            matcher.mismatch(0, &request),
            Err(PathError::Ambiguous),
            "{path}"
        );
        assert_eq!(matcher.mismatch(1, &request), Ok(None), "{path}");
    }
    let other = Request::new("GET", "//other/");
    assert_eq!(matcher.first(&other), Ok(Some(1)));
}

#[test]
fn activity_counts_for_the_rules_of_all_readings_once() {
    let window = core::time::Duration::from_secs(10);
    let rule = |path: &str| {
        let rule = Rule::new(path).when(Conditions::new().paths([path]));
        rule.threshold(Threshold::new(2, window, "captcha"))
    };
    let policy = Policy::new([rule("/login"), rule("/**")]).unwrap();
    let now = Timestamp::from_secs(1);
    let in_force = |path: &str| {
        let mut rules = Vec::new();
        let request = Request::new("GET", path);
        let visited = policy.in_force_at(now, &request, |at| rules.push(at.rule.name()));
        visited.map(|()| rules)
    };
    assert!(policy.report_at(now, &Request::new("GET", "/login/"), 1));
    assert_eq!(in_force("/login"), Ok(vec![]));
    assert!(policy.report_at(now, &Request::new("GET", "//login"), 1));
    for path in ["/login", "/login/", "/%6Cogin"] {
        assert_eq!(in_force(path), Ok(vec!["/login", "/**"]), "{path}");
    }
    assert_eq!(in_force("/x/../login"), Err(PathError::Dots));
}

#[test]
fn head_counts_as_get_unless_a_rule_before_is_for_head() {
    let get = || {
        let conditions = Conditions::new().methods(["GET"]).paths(["/slow"]);
        Rule::new("get")
            .when(conditions)
            .limit("2/h".parse().unwrap())
    };
    let now = Timestamp::from_secs(1);
    let request = |method| Request::new(method, "/slow");
    let policy = Policy::new([get()]).unwrap();
    let allowed = |method| policy.decide_at(now, &request(method)).is_allowed();
    assert!(allowed("HEAD") && allowed("GET"));
    assert!(!allowed("HEAD") && !allowed("GET") && allowed("POST"));
    let explained = policy.explain_at(now, &request("HEAD")).unwrap();
    assert!(matches!(explained[0].considered, Considered::Limits { .. }));

    // A limit for each method: those of `GET` include `HEAD`.
    let by_method = Rule::new("each")
        .key(Key::method())
        .limit("1/h".parse().unwrap());
    let policy = Policy::new([by_method]).unwrap();
    let allowed = |method| policy.decide_at(now, &request(method)).is_allowed();
    assert!(allowed("GET") && !allowed("HEAD") && allowed("POST"));

    let head = Rule::new("head").when(Conditions::new().methods(["HEAD"]));
    let policy = Policy::new([head, get()]).unwrap();
    let decides = |method| {
        policy
            .decide_at(now, &request(method))
            .rule()
            .map(Rule::name)
    };
    assert_eq!(
        (decides("HEAD"), decides("GET")),
        (Some("head"), Some("get"))
    );
}
