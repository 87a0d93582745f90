//! `replay --policy`: on a generated log, three example policies decide as a direct computation of
//! their definitions.

mod common;
#[path = "../../serve/tests/support/wish.rs"]
mod wish;

use core::fmt::Write;
use std::collections::BTreeMap;

use common::{Scratch, portcullis, text};
use serde_json::Value;

/// A line of the generated log.
#[derive(Clone)]
struct Line {
    address: String,
    /// Seconds since 2024-03-01 00:00:00 UTC.
    second: u64,
    method: &'static str,
    /// The path as it is logged, and as it is meant.
    target: &'static str,
    path: &'static str,
    host: &'static str,
    key: Option<String>,
    agent: &'static str,
    user: &'static str,
    size: u64,
}

/// 2024-03-01 00:00:00 UTC, in seconds since the Unix epoch.
const START: u64 = 1_709_251_200;
const LINES: usize = 3_000;

const TARGETS: [(&str, &str); 8] = [
    ("/login", "/login"),
    ("//x/../login?next=/", "/login"),
    ("/v1/eu/session/a/b", "/v1/eu/session/a/b"),
    ("/static/app.js", "/static/app.js"),
    ("/static/%61pp.js", "/static/app.js"),
    ("/static", "/static"),
    ("/Search", "/Search"),
    ("/favicon.ico", "/favicon.ico"),
];

/// Generates lines of some addresses, in bursts and lulls, of which some are late by up to 40 s.
fn lines() -> Vec<Line> {
    let mut random = common::random();
    let mut time = 5_000;
    (0..LINES)
        .map(|_| {
            time += match random(100) {
                0..75 => 0,
                75..94 => random(3),
                94..99 => random(20),
                _ => random(400),
            };
            let late = if random(8) == 0 { random(40) } else { 0 };
            let (target, path) = TARGETS[random(8).min(random(8)) as usize];
            let client = random(14).min(random(14));
            Line {
                address: match client {
                    0..3 => format!("2001:db8:0:{}::{client}", client / 2),
                    client => format!("192.0.{}.{client}", 2 + client % 2),
                },
                second: time - late,
                method: if random(3) == 0 { "POST" } else { "GET" },
                target,
                path,
                host: ["api.example.com", "www.example.com", "example.org"][random(3) as usize],
                key: (random(4) > 0).then(|| format!("key-{}", random(3))),
                agent: ["curl/8", "Mozilla/5.0 (X11)"][random(2) as usize],
                user: ["-", "ann"][random(2) as usize],
                size: random(20_000) * random(4),
            }
        })
        .collect()
}

const FORMAT: &str = r#"$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent" "$http_x_api_key" $host"#;

/// Writes the log, in [`FORMAT`] if `all` is set, otherwise in the combined format.
fn log(lines: &[Line], all: bool) -> Vec<u8> {
    let mut log = String::new();
    for line in lines {
        let time = line.second;
        let (day, hour, minute, second) = (
            time / 86_400 + 1,
            time / 3_600 % 24,
            time / 60 % 60,
            time % 60,
        );
        assert!(day <= 31, "the log is longer than one month");
        let Line {
            address,
            user,
            method,
            target,
            size,
            agent,
            host,
            ..
        } = line;
        let _ = write!(
            log,
            "{address} - {user} [{day:02}/Mar/2024:{hour:02}:{minute:02}:{second:02} +0000] \
             \"{method} {target} HTTP/1.1\" 200 {size} \"-\" \"{agent}\""
        );
        if all {
            let key = line.key.as_deref().unwrap_or("-");
            let _ = write!(log, " \"{key}\" {host}");
        }
        log.push('\n');
    }
    log.into_bytes()
}

/// How a limit of the model counts. Times are in seconds.
#[derive(Clone, Copy)]
enum Counting {
    /// Refilled continuously, up to this burst.
    Bucket(u64),
    /// On the grid of the Unix epoch.
    Grid,
    /// From the first request on.
    FromRequest,
    /// From the first request on. One over the limit denies all for this time, and then a new
    /// window begins.
    Cooldown(u64),
    /// The successive segments that make up a period: so many.
    Segments(u64),
}

/// A limit of the model: a count, a period and how it counts.
type Limit = (u64, u64, Counting);

/// A rule of the model.
struct Rule {
    name: &'static str,
    is_shadow: bool,
    is_egress: bool,
    /// Whether it applies to a line.
    applies: fn(&Line) -> bool,
    is_exempt: fn(&Line) -> bool,
    /// The key, or `None` if the line lacks a part of it and the rule denies that.
    key: fn(&Line) -> Option<String>,
    limits: Vec<Limit>,
    penalty: u64,
}

/// What a rule of the model decided.
#[derive(Debug, Default, PartialEq)]
struct Counts {
    asked: u64,
    denied: u64,
    exempt: u64,
    unidentified: u64,
    penalized: u64,
    by_limit: Vec<u64>,
    keys: BTreeMap<String, u64>,
}

/// The permits that were taken from the limits of a key, and when; the ends of its penalty and of
/// its cooldown.
#[derive(Default)]
struct State {
    taken: Vec<(u64, u64)>,
    penalty_until: u64,
    cooldown_until: u64,
}

/// Returns whether a limit has `cost` permits at `now`, after `taken`: times and permits.
fn has(&(count, period, counting): &Limit, taken: &[(u64, u64)], now: u64, cost: u64) -> bool {
    let sum = |within: &dyn Fn(u64) -> bool| -> u64 {
        taken
            .iter()
            .filter(|(at, _)| within(*at))
            .map(|(_, permits)| permits)
            .sum()
    };
    match counting {
        Counting::Bucket(burst) => {
            // The permits times the period, so that all numbers are whole.
            let (mut level, mut last) = (burst * period, 0);
            for &(at, permits) in taken {
                level = (level + (at - last) * count).min(burst * period) - permits * period;
                last = at;
            }
            let level = (level + (now - last) * count).min(burst * period);
            level >= cost * period
        }
        Counting::Grid => sum(&|at| at / period == now / period) + cost <= count,
        Counting::FromRequest => {
            let mut start = None;
            for &(at, _) in taken {
                if start.is_none_or(|start| at >= start + period) {
                    start = Some(at);
                }
            }
            let start = start.filter(|start| now < start + period).unwrap_or(now);
            sum(&|at| at >= start) + cost <= count
        }
        Counting::Cooldown(_) => has(&(count, period, Counting::FromRequest), taken, now, cost),
        Counting::Segments(segments) => {
            let length = period / segments;
            sum(&|at| at / length + segments > now / length) + cost <= count
        }
    }
}

/// The expected result: the counts of each rule, and of lines allowed, denied, decided by no rule,
/// and denied by a shadow rule.
fn model(rules: &[Rule], lines: &[Line]) -> (Vec<Counts>, [u64; 4]) {
    let new = |rule: &Rule| Counts {
        by_limit: vec![0; rule.limits.len()],
        ..Counts::default()
    };
    let mut counts: Vec<Counts> = rules.iter().map(new).collect();
    let mut states = BTreeMap::<(usize, String), State>::new();
    let mut total = [0; 4];
    let mut newest = 0;
    for line in lines {
        newest = newest.max(START + line.second);
        let (mut has_rule, mut is_shadow, mut is_denied) = (false, false, false);
        for is_egress in [false, true] {
            let cost = if is_egress { line.size } else { 1 };
            if cost == 0 || is_denied {
                continue;
            }
            for (index, rule) in rules.iter().enumerate() {
                if rule.is_egress != is_egress || !(rule.applies)(line) {
                    continue;
                }
                let counts = &mut counts[index];
                counts.asked += 1;
                let denies = if (rule.is_exempt)(line) {
                    counts.exempt += 1;
                    false
                } else if let Some(key) = (rule.key)(line) {
                    let state = states.entry((index, key.clone())).or_default();
                    let lacking = |limit| !has(limit, &state.taken, newest, cost);
                    let cooldown = rule.limits.first().and_then(|limit| match limit.2 {
                        Counting::Cooldown(wait) => Some(wait),
                        _ => None,
                    });
                    let denied = if cooldown.is_some() && newest < state.cooldown_until {
                        counts.by_limit[0] += 1;
                        true
                    } else if newest < state.penalty_until {
                        counts.penalized += 1;
                        true
                    } else if let Some(limit) = rule.limits.iter().position(lacking) {
                        counts.by_limit[limit] += 1;
                        state.penalty_until = newest + rule.penalty;
                        if let Some(wait) = cooldown {
                            state.cooldown_until = newest + wait;
                            state.taken.clear();
                        }
                        true
                    } else {
                        state.taken.push((newest, cost));
                        false
                    };
                    if denied {
                        *counts.keys.entry(key).or_default() += 1;
                    }
                    denied
                } else {
                    counts.unidentified += 1;
                    *counts.keys.entry("-".into()).or_default() += 1;
                    true
                };
                counts.denied += u64::from(denies);
                if rule.is_shadow {
                    is_shadow |= denies;
                } else {
                    has_rule = true;
                    is_denied = denies;
                    break;
                }
            }
        }
        total[usize::from(is_denied)] += 1;
        total[2] += u64::from(!has_rule);
        total[3] += u64::from(is_shadow);
    }
    (counts, total)
}

fn is_below(path: &str, folder: &str) -> bool {
    path == folder
        || path
            .strip_prefix(folder)
            .is_some_and(|rest| rest.starts_with('/'))
}

/// The network of an address: 24 bits, or 64 bits of IPv6.
fn network(line: &Line) -> Option<String> {
    let of = |text: &str, end: &str| format!("{text}{end}");
    Some(match line.address.rsplit_once("::") {
        Some(("2001:db8:0:0", _)) => "2001:db8::/64".into(),
        Some((prefix, _)) => of(prefix, "::/64"),
        None => of(line.address.rsplit_once('.')?.0, ".0/24"),
    })
}

/// The key by address, of which an IPv6 client has 64 bits.
fn address(line: &Line) -> Option<String> {
    if line.address.contains(':') {
        network(line)
    } else {
        Some(line.address.clone())
    }
}

fn rule(name: &'static str, applies: fn(&Line) -> bool, limits: &[Limit]) -> Rule {
    Rule {
        name,
        is_shadow: false,
        is_egress: false,
        applies,
        is_exempt: |_| false,
        key: address,
        limits: limits.to_vec(),
        penalty: 0,
    }
}

fn logins() -> Vec<Rule> {
    let is_login = |line: &Line| {
        line.method == "POST" && (line.path == "/login" || line.path.starts_with("/v1/eu/session/"))
    };
    let limits = [(5, 60, Counting::Bucket(5)), (25, 3_600, Counting::Grid)];
    let login = rule("login", is_login, &limits);
    let downloads = Rule {
        key: network,
        ..rule(
            "downloads",
            |line| is_below(line.path, "/static"),
            &[(6, 10, Counting::Bucket(4))],
        )
    };
    let assets = rule(
        "assets without a limit",
        |line| line.path == "/favicon.ico",
        &[],
    );
    vec![login, downloads, assets]
}

fn clients() -> Vec<Rule> {
    let partners = Rule {
        is_exempt: |line| line.key.as_deref() == Some("key-0") || line.address == "192.0.2.3",
        key: |line| {
            let key = line.key.as_ref()?;
            Some(format!("header:X-Api-Key={key} method={}", line.method))
        },
        penalty: 120,
        ..rule(
            "partners",
            // A line without a key is exempt by its address, or skipped.
            |line| {
                line.host == "api.example.com"
                    && (line.key.is_some() || line.address == "192.0.2.3")
            },
            &[
                (20, 60, Counting::FromRequest),
                (60, 600, Counting::Bucket(60)),
            ],
        )
    };
    let strangers = Rule {
        key: |line| line.key.clone(),
        ..rule(
            "strangers",
            |line| line.host.ends_with(".example.com"),
            &[(2, 60, Counting::Bucket(2))],
        )
    };
    let agents = Rule {
        key: |line| {
            let Line { agent, user, .. } = line;
            Some(format!("header:user-agent={agent} property:user={user}"))
        },
        ..rule("agents", |_| true, &[(15, 60, Counting::Grid)])
    };
    vec![partners, strangers, agents]
}

fn bytes() -> Vec<Rule> {
    let fewer = Rule {
        is_shadow: true,
        key: |line| Some(line.path.to_ascii_lowercase()),
        ..rule(
            "fewer requests",
            |_| true,
            &[(12, 60, Counting::Segments(6))],
        )
    };
    let requests = rule("requests", |_| true, &[(25, 60, Counting::Bucket(25))]);
    let bytes = Rule {
        is_egress: true,
        key: network,
        ..rule(
            "bytes",
            |_| true,
            &[(300_000, 60, Counting::Bucket(300_000))],
        )
    };
    let uploads = rule("uploads", |_| false, &[(1, 1, Counting::Grid)]);
    let off = rule("off", |_| false, &[(1, 1, Counting::Grid)]);
    vec![fewer, requests, bytes, uploads, off]
}

fn ocelot() -> Vec<Rule> {
    let of = |name, applies, limits: &[Limit]| Rule {
        key: |line| line.key.clone(),
        ..rule(name, applies, limits)
    };
    let is_session =
        |line: &Line| line.method == "POST" && line.path.starts_with("/v1/eu/session/");
    let sessions = Rule {
        is_exempt: |line| line.key.as_deref() == Some("key-0"),
        ..of("sessions", is_session, &[(2, 60, Counting::Cooldown(40))])
    };
    let is_login = |line: &Line| line.path == "/login";
    let login = of("login", is_login, &[(3, 30, Counting::Cooldown(90))]);
    let files = rule("static", |line| is_below(line.path, "/static"), &[]);
    let others = of(
        "everything else",
        |_| true,
        &[(5, 120, Counting::FromRequest)],
    );
    vec![sessions, login, files, others]
}

/// The path of an example policy.
fn policy(name: &str) -> String {
    let extension = if name == "ocelot" { "json" } else { "toml" };
    format!(
        "{}/tests/policies/{name}.{extension}",
        env!("CARGO_MANIFEST_DIR")
    )
}

fn replay(log: &str, policy: &str, args: &[&str]) -> Value {
    let mut command = portcullis(&["replay", log, "--policy", policy, "--json"]);
    let output = command.args(args).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Replays in both orders, and compares every count of every rule with the model.
fn compare(name: &str, rules: &[Rule], format: &[&str]) {
    let mut lines = lines();
    if name == "ocelot" {
        // Its rules do not say what services do with `..`, and deny such paths.
        for line in lines.iter_mut().filter(|line| line.path == "/login") {
            line.target = "/login?next=/";
        }
    }
    let log = Scratch::new(&format!("{name}.log"), &log(&lines, !format.is_empty()));
    let mut sorted = lines.clone();
    sorted.sort_by_key(|line| line.second);
    for (order, lines) in [("time", sorted), ("log", lines)] {
        let (expected, total) = model(rules, &lines);
        let args = [&["--order", order, "--top", "1000"], format].concat();
        let json = replay(log.path(), &policy(name), &args);
        let of = |names: [&str; 4]| names.map(|name| json[name].as_u64().unwrap());
        let found = of(["allowed", "denied", "without_rule", "shadow_denied"]);
        assert_eq!(found, total, "{name} in the order of {order}");
        assert!(total[0] > 0 && total[1] > 100, "{total:?}");
        assert_eq!(json["requests"], LINES);
        let found = json["rules"].as_array().unwrap();
        assert_eq!(found.len(), rules.len());
        for ((rule, expected), found) in rules.iter().zip(expected).zip(found) {
            assert_eq!(found["rule"], rule.name);
            let number = |name: &str| found[name].as_u64().unwrap();
            let limits = found["limits"].as_array().unwrap().iter();
            let top = found["top"].as_array().unwrap().iter();
            let counts = Counts {
                asked: number("asked"),
                denied: number("denied"),
                exempt: number("exempt"),
                unidentified: number("unidentified"),
                penalized: number("penalized"),
                by_limit: limits
                    .map(|limit| limit["denied"].as_u64().unwrap())
                    .collect(),
                keys: top
                    .map(|key| {
                        (
                            key["key"].as_str().unwrap().into(),
                            key["denied"].as_u64().unwrap(),
                        )
                    })
                    .collect(),
            };
            assert_eq!(counts, expected, "{} in the order of {order}", rule.name);
            assert_eq!(number("allowed"), expected.asked - expected.denied);
            assert_eq!(number("denied_keys"), expected.keys.len() as u64);
        }
    }
}

#[test]
fn logins_and_downloads_are_decided_as_the_model_decides() {
    compare("login", &logins(), &[]);
}

#[test]
fn keys_exempt_clients_and_penalties_are_decided_as_the_model_decides() {
    compare("clients", &clients(), &["--format", FORMAT]);
}

#[test]
fn bytes_and_shadow_rules_are_decided_as_the_model_decides() {
    compare("bytes", &bytes(), &["--format", FORMAT]);
}

#[test]
fn the_routes_of_an_ocelot_json_are_decided_as_the_model_decides() {
    compare("ocelot", &ocelot(), &["--format", FORMAT]);
}

/// Scales the limits of a rule of the model.
fn scale(rule: &mut Rule, part: u64, whole: u64) {
    for (count, _, counting) in &mut rule.limits {
        *count = (*count * part).div_ceil(whole);
        if let Counting::Bucket(burst) = counting {
            *burst = (*burst * part).div_ceil(whole);
        }
    }
}

/// Returns how many of its requests the limits of a rule of the model deny, and how many they are
/// asked about.
fn share(rules: &[Rule], rule: usize, lines: &[Line]) -> (u64, u64) {
    let (counts, _) = model(rules, lines);
    let Counts {
        asked,
        exempt,
        unidentified,
        penalized,
        by_limit,
        ..
    } = &counts[rule];
    (
        by_limit.iter().sum::<u64>() + penalized,
        asked - exempt - unidentified,
    )
}

/// The name of a policy, its model, and the rules to search: their indices, and the counts of their
/// largest limits.
type Searched<'a> = (&'a str, fn() -> Vec<Rule>, &'a [(usize, u64)]);

#[test]
fn what_nothing_is_proposed_for_is_told_with_the_reason() {
    let line = r#"192.0.2.7 - - [27/Nov/2026:12:00:00 +0000] "GET / HTTP/1.1" 200 5"#;
    let log = Scratch::new("no-proposal.log", line.as_bytes());
    let rules = "\
        [[rules]]\nname = 'service'\nlimits = [{ at_once = 100 }]\ncontinue = true\n\
        [[rules]]\nname = 'bare'\npriority = 1\ncontinue = true\n\
        [[rules]]\nname = 'posts'\npriority = 2\nmethods = ['POST']\nlimits = ['1/s']\n";
    let policy = Scratch::new("no-proposal.toml", rules.as_bytes());
    let args = ["replay", log.path(), "--policy", policy.path()];
    let output = portcullis(&[&args[..], &["--recommend", "1%"]].concat()).output();
    let output = output.unwrap();
    let printed = text(&output.stdout);
    for (rule, why) in [
        (
            "service",
            "a log does not tell how many requests are under way at once",
        ),
        ("bare", "it has no limits"),
        ("posts", "it was asked nothing"),
    ] {
        let line = format!("{rule}: nothing to propose: {why}\n");
        assert!(printed.contains(&line), "{line}{printed}");
    }
    let held = "-  by 100 at once: a log does not tell how many requests are under way\n";
    assert!(printed.contains(held), "{printed}");
}

#[test]
fn recommended_limits_are_the_smallest_with_the_wanted_share_of_denials() {
    let mut lines = lines();
    let log = Scratch::new("recommended.log", &log(&lines, true));
    lines.sort_by_key(|line| line.second);
    let all: [Searched<'_>; 3] = [
        ("login", logins, &[(0, 25), (1, 6)]),
        ("clients", clients, &[(0, 60), (1, 2), (2, 15)]),
        ("bytes", bytes, &[(0, 12), (1, 25), (2, 300_000)]),
    ];
    for (wanted, percent) in [("1%", 1), ("30%", 30)] {
        for (name, rules, searched) in all {
            let by = ["--recommend-by", "requests", "--all-keys"];
            let args = [&["--recommend", wanted, "--format", FORMAT], &by[..]].concat();
            let json = replay(log.path(), &policy(name), &args);
            let found = |rule: usize| &json["rules"][rule]["recommended"];
            // The limit with the largest count, which keeps its count in the text.
            let count_of = |rule: usize| {
                let limits = found(rule)["limits"].as_array().unwrap();
                let counts = limits.iter().map(|limit| {
                    let (count, _) = limit.as_str().unwrap().split_once('/').unwrap();
                    count.parse::<u64>().unwrap()
                });
                counts.max().unwrap()
            };
            let mut together = rules();
            for &(rule, largest) in searched {
                scale(&mut together[rule], count_of(rule), largest);
            }
            // Of a rule by itself, with this count.
            let alone = |rule: usize, count: u64, largest: u64| {
                let mut rules = rules();
                for &(other, _) in searched.iter().filter(|(other, _)| *other != rule) {
                    rules[other].limits.clear();
                    rules[other].penalty = 0;
                }
                scale(&mut rules[rule], count, largest);
                share(&rules, rule, &lines)
            };
            for &(rule, largest) in searched {
                let (denied, asked) = share(&together, rule, &lines);
                let counts = ["denied", "asked"].map(|name| found(rule)[name].as_u64());
                let place = format!("{name}, rule {rule}, {wanted}");
                assert_eq!(counts, [Some(denied), Some(asked)], "{place}");
                let count = count_of(rule);
                let (denied, asked) = alone(rule, count, largest);
                assert!(denied * 100 <= asked * percent && asked > 0, "{place}");
                // With a penalty, a larger limit may deny more.
                if count > 1 && rules()[rule].penalty == 0 {
                    let (denied, asked) = alone(rule, count - 1, largest);
                    assert!(denied * 100 > asked * percent, "{place}");
                }
            }
        }
    }
}

/// A log of logins of 60 clients. 59 of them log in up to four times in a minute. One guesses
/// passwords, and sends 40 % of the requests.
fn logins_with_one_guesser() -> Vec<u8> {
    let mut random = common::random();
    let mut lines = Vec::new();
    for client in 0..59 {
        let first = random(3_000);
        let count = 1 + client % 4;
        lines.extend((0..count).map(|at| (first + at * 12, format!("192.0.2.{client}"))));
    }
    let others = lines.len() as u64;
    lines.extend((0..others * 2 / 3).map(|at| (600 + at, "203.0.113.9".into())));
    lines.sort();
    let mut log = String::new();
    for (second, address) in lines {
        let (minute, second) = (second / 60, second % 60);
        let _ = writeln!(
            log,
            "{address} - - [01/Mar/2024:00:{minute:02}:{second:02} +0000] \
             \"POST /login HTTP/1.1\" 200 1"
        );
    }
    log.into_bytes()
}

const LOGIN_RULE: &[u8] = b"[[rules]]\nname = 'logins'\npaths = ['/login']\nkey = ['address']\n\
    limits = [{ rate = '5/m', algorithm = 'sliding-window' }]\n";

#[test]
fn recommended_limits_are_those_that_the_clients_need_who_do_not_guess_passwords() {
    let log = Scratch::new("guesser.log", &logins_with_one_guesser());
    let policy = Scratch::new("guesser.toml", LOGIN_RULE);
    let json = replay(log.path(), policy.path(), &["--recommend", "1%"]);
    let found = &json["rules"][0]["recommended"];
    assert_eq!(found["limits"], serde_json::json!(["4/m"]));
    let left_out = serde_json::json!([{
        "key": "203.0.113.9", "requests": 97, "minute": 60, "hour": 97, "day": 97,
        "sign": "minute", "passes": 8, "denied": 89
    }]);
    assert_eq!(found["left_out"], left_out);
    let counts = ["asked", "denied", "keys", "denied_keys"].map(|name| &found[name]);
    assert_eq!(counts, [146, 0, 59, 0]);
    let minute = serde_json::json!({ "p50": 2, "p90": 4, "p95": 4, "p99": 4, "p100": 4 });
    assert_eq!(found["needs"]["minute"], minute);
    assert_eq!(found["needs"]["second"]["p100"], 1);

    // One key of 59 is less than 2 %; of those with four logins there are 14.
    let quarter = replay(log.path(), policy.path(), &["--recommend", "25%"]);
    let found = &quarter["rules"][0]["recommended"];
    assert_eq!(found["limits"], serde_json::json!(["3/m"]));
    assert_eq!(
        (&found["denied"], &found["denied_keys"]),
        (&14.into(), &14.into())
    );

    // Counted like any other key, it is the one that has to be served.
    let all = ["--recommend", "1%", "--all-keys"];
    let found = &replay(log.path(), policy.path(), &all)["rules"][0]["recommended"];
    assert_eq!(found["limits"], serde_json::json!(["60/m"]));
    assert_eq!(found["left_out"], serde_json::json!([]));

    let args = [
        "replay",
        log.path(),
        "--policy",
        policy.path(),
        "--recommend",
        "1%",
    ];
    let output = portcullis(&args).output().unwrap();
    let summary = text(&output.stdout);
    for expected in [
        "logins: 5/m -> 4/m, which denies 0 of 59 keys (0.00 %), 0 of 146 requests (0.00 %); and \
         of the keys left out 1 of 1, 89 of 97 requests\n",
        "set by 14 keys, such as 192.0.2.11 (4 requests, 1.6 % of the rule)",
        "left out, as it looks like abuse: 203.0.113.9: 97 requests, up to 60 in a minute; still \
         passes 8 of its 97 requests",
        "every other key has at most 4 in a minute; --all-keys counts all",
        "at most 1 % of the keys of their rule",
    ] {
        assert!(
            summary.contains(expected),
            "{expected:?} is missing in\n{summary}"
        );
    }
}

/// A log of logins of 60 clients. 59 of them log in 20 times, up to three times in a minute and
/// five times in an hour. One sends 800 requests, 40 % of all, at this interval in seconds.
fn logins_with_one_slow_guesser(every: u64) -> Vec<u8> {
    let mut lines: Vec<_> = (0..800)
        .map(|at| (at * every, "198.51.100.66".to_owned()))
        .collect();
    for client in 0..59 {
        for at in 0..20 {
            let second = at / 5 * 20_000 + at % 5 / 3 * 1_200 + at % 5 % 3 * 10 + client * 7;
            lines.push((second, format!("192.0.2.{client}")));
        }
    }
    let others = lines.split_off(800);
    // 1,180 logins, and 20 more of clients that have logged in before.
    lines.extend((0..20).map(|at| (75_000 + at, format!("192.0.2.{at}"))));
    lines.extend(others);
    lines.sort();
    let mut log = String::new();
    for (time, address) in lines {
        let (hour, minute, second) = (time / 3_600, time / 60 % 60, time % 60);
        let _ = writeln!(
            log,
            "{address} - - [01/Mar/2024:{hour:02}:{minute:02}:{second:02} +0000] \
             \"POST /login HTTP/1.1\" 200 1"
        );
    }
    log.into_bytes()
}

/// Replays these logins with these limits, with a proposal.
fn proposed(name: &str, log: &[u8], limits: &str, more: &[&str]) -> (String, Value) {
    let log = Scratch::new(&format!("{name}.log"), log);
    let rule = "[[rules]]\nname = 'logins'\npaths = ['/login']\nkey = ['address']\n";
    let policy = format!("{rule}limits = {limits}\n");
    let policy = Scratch::new(&format!("{name}.toml"), policy.as_bytes());
    let args = [&["--recommend", "1%"], more].concat();
    let of_text = [&["replay", log.path(), "--policy", policy.path()], &*args].concat();
    let summary = portcullis(&of_text).output().unwrap().stdout;
    let mut json = replay(log.path(), policy.path(), &args);
    (text(&summary), json["rules"][0]["recommended"].take())
}

/// It stays under 10 a minute, and is seen by its hours: at 8 a minute, and at 33 an hour.
#[test]
fn a_client_that_guesses_slowly_does_not_set_the_limits() {
    for (every, why) in [(7, "up to 515 in an hour"), (108, "up to 34 in an hour")] {
        let log = logins_with_one_slow_guesser(every);
        for limits in ["['5/m']", "['5/m', '30/h']"] {
            let name = format!("slow{every}-{}", limits.len());
            let (summary, found) = proposed(&name, &log, limits, &[]);
            let left_out = &found["left_out"];
            assert_eq!(left_out.as_array().unwrap().len(), 1);
            assert_eq!(left_out[0]["key"], "198.51.100.66");
            assert_eq!(left_out[0]["sign"], "hour");
            assert_eq!(found["requests"], 2_000);
            assert_eq!(found["denied"], 0);
            // Others need 3 in a minute.
            let first = found["limits"][0].as_str().unwrap();
            assert!(["2/m", "3/m"].contains(&first), "{first}");
            let passes = left_out[0]["passes"].as_u64().unwrap();
            let expected = format!(
                "left out, as it looks like abuse: 198.51.100.66: 800 requests, {why}; still \
                 passes {passes} of its 800 requests\n"
            );
            assert!(summary.contains(&expected), "{expected}{summary}");
            let hint = "an hourly limit beside it helps: every other key has at most";
            assert_eq!(summary.contains(hint), limits == "['5/m']", "{summary}");
            assert!(summary.contains("    set by "), "{summary}");
        }
    }
}

/// With --all-keys, the client that guesses is the one that sets the limit.
#[test]
fn the_key_that_sets_the_limits_is_named_with_the_limits_without_it() {
    let log = logins_with_one_slow_guesser(7);
    let page = Scratch::new("set-by.html", b"");
    let more = ["--all-keys", "--html", page.path()];
    let (summary, found) = proposed("set-by", &log, "['5/m']", &more);
    assert_eq!(found["left_out"], serde_json::json!([]));
    let set_by = &found["set_by"];
    assert_eq!(
        (&set_by["key"], &set_by["requests"], &set_by["keys"]),
        (&"198.51.100.66".into(), &800.into(), &1.into())
    );
    // The limit without it is the one that is found when it is left out.
    let (_, others) = proposed("set-by-others", &log, "['5/m']", &[]);
    assert_eq!(set_by["without"], others["limits"]);
    let without = others["limits"][0].as_str().unwrap();
    let expected =
        format!("set by 198.51.100.66 (800 requests, 40 % of the rule); without it {without}");
    assert!(summary.contains(&expected), "{expected}{summary}");
    let page = std::fs::read_to_string(page.path()).unwrap();
    assert!(page.contains(&format!("<li>{expected}</li>")), "{page}");
}

/// Rules that add up: each address, and each key, which two addresses have in common. The first
/// limit is too low.
const TOGETHER: &str = "\
    [[rules]]\nname = 'all'\nkey = ['address']\nlimits = ['5/s']\ncontinue = true\n";
const EACH_KEY: &str = "\
    [[rules]]\nname = 'keys'\npaths = ['/a']\nkey = ['header:X-Api-Key']\non_missing = 'skip'\n\
    limits = ['20/s']\n";

/// A log of 40 addresses, of which 38 send up to 9 requests at once and one pair sends 15. Each
/// pair has a key.
fn pairs_with_keys() -> Vec<u8> {
    let mut random = common::random();
    let mut log = String::new();
    for second in 0..600 {
        let client = random(40);
        let count = if client < 2 { 15 } else { 1 + random(9) };
        for _ in 0..count {
            let (minute, second) = (second / 60, second % 60);
            let _ = writeln!(
                log,
                "192.0.2.{client} [01/Mar/2024:00:{minute:02}:{second:02} +0000] \
                 \"GET /a HTTP/1.1\" 200 1 k{}",
                client / 2
            );
        }
    }
    log.into_bytes()
}

#[test]
fn limits_that_add_up_are_proposed_each_by_itself_and_counted_together() {
    const OF_KEYS: &str =
        "$remote_addr [$time_local] \"$request\" $status $bytes_sent $http_x_api_key";
    let log = Scratch::new("pairs.log", &pairs_with_keys());
    let args = ["--recommend", "10%", "--all-keys", "--format", OF_KEYS];
    let proposed = |name: &str, rules: &str| {
        let policy = Scratch::new(name, rules.as_bytes());
        replay(log.path(), policy.path(), &args)
    };
    let alone = proposed("keys.toml", EACH_KEY);
    let both = proposed("pairs.toml", &format!("{TOGETHER}{EACH_KEY}"));
    let found = |json: &Value, rule: usize| json["rules"][rule]["recommended"].clone();
    let (all, keys) = (found(&both, 0), found(&both, 1));
    assert_eq!(keys["limits"], found(&alone, 0)["limits"]);
    // Some requests of a key are denied by the limit of an address.
    assert!(keys["asked"].as_u64() < found(&alone, 0)["asked"].as_u64());

    assert!(all["denied"].as_u64() > Some(0), "{all}");

    // The counts are those of a replay of the proposal.
    let mut rules = format!("{TOGETHER}{EACH_KEY}");
    for (limits, before) in [(&all, "'5/s'"), (&keys, "'20/s'")] {
        let limit = limits["limits"][0].as_str().unwrap();
        rules = rules.replacen(before, &format!("'{limit}'"), 1);
    }
    let policy = Scratch::new("proposed.toml", rules.as_bytes());
    let replayed = replay(log.path(), policy.path(), &["--format", OF_KEYS]);
    for (found, rule) in [(all, 0), (keys, 1)] {
        let rule = &replayed["rules"][rule];
        assert_eq!(
            (&found["asked"], &found["denied"]),
            (&rule["asked"], &rule["denied"])
        );
    }
}

/// A log of 60 clients that send up to 3 requests a second, each with a key and an address of its
/// own. A partner sends 35 in each of 100 seconds.
fn requests_with_a_partner() -> Vec<u8> {
    let mut log = String::new();
    for second in 0..600 {
        let client = second % 60;
        let mut of = |count, host, key| {
            for _ in 0..count {
                let (minute, second) = (second / 60, second % 60);
                let _ = writeln!(
                    log,
                    "192.0.2.{host} [01/Mar/2024:00:{minute:02}:{second:02} +0000] \
                     \"GET /a HTTP/1.1\" 200 1 {key}"
                );
            }
        };
        of(1 + client % 3, client, format!("k{client}"));
        if second < 100 {
            of(35, 200, "partner-1".into());
        }
    }
    log.into_bytes()
}

/// Its limits are its own, so it is neither abuse nor a reason for a larger limit of the others.
/// The limit of its address is not, and the first line says what that denies.
#[test]
fn a_key_with_limits_of_its_own_does_not_count_and_keeps_them() {
    const OF_KEYS: &str =
        "$remote_addr [$time_local] \"$request\" $status $bytes_sent $http_x_api_key";
    let log = Scratch::new("partner.log", &requests_with_a_partner());
    let by_key = "[[rules]]\nname = 'api'\nkey = ['header:X-Api-Key']\non_missing = 'skip'\n\
        limits = [{ rate = '10/s', burst = 20 }]\n";
    let own = "overrides = [{ key = ['partner-1'], limits = ['50/s'] }]\n";
    let by_address = "[[rules]]\nname = 'all'\nkey = ['address']\nlimits = ['40/s']\n\
        continue = true\n";
    let of = |name: &str, rules: &str, more: &[&str]| {
        let policy = Scratch::new(name, rules.as_bytes());
        let args = [&["--recommend", "1%", "--format", OF_KEYS], more].concat();
        let of_text = [&["replay", log.path(), "--policy", policy.path()], &*args].concat();
        let summary = text(&portcullis(&of_text).output().unwrap().stdout);
        (summary, replay(log.path(), policy.path(), &args))
    };
    let page = Scratch::new("partner.html", b"");
    let html = ["--html", page.path()];
    for more in [&html[..], &["--all-keys", html[0], html[1]]] {
        let (summary, json) = of("partner.toml", &format!("{by_key}{own}"), more);
        let found = &json["rules"][0]["recommended"];
        assert_eq!(found["limits"], serde_json::json!(["2/s burst 4"]));
        assert_eq!(found["left_out"], serde_json::json!([]));
        let exceptions = serde_json::json!([{
            "key": "partner-1", "limits": ["50/s"], "requests": 3_500, "second": 35,
            "minute": 2_100, "denied": 0
        }]);
        assert_eq!(found["own_limits"], exceptions);
        let counts = ["asked", "denied", "keys", "denied_keys"].map(|name| &found[name]);
        assert_eq!(counts, [1_200, 0, 60, 0]);
        let expected = "    has limits of its own, so it does not count: partner-1: 3,500 \
            requests, up to 2,100 in a minute and 35 in a second; 0 denied by 50/s\n";
        assert!(summary.contains(expected), "{expected}{summary}");
        let page = std::fs::read_to_string(page.path()).unwrap();
        assert!(
            page.contains("as they have limits of their own: 1 key<"),
            "{page}"
        );
        assert!(
            !summary.contains("abuse") && !page.contains("abuse"),
            "{summary}"
        );
    }
    // Without them, it is told apart by what it asks for.
    let (_, json) = of("no-partner.toml", by_key, &[]);
    let left_out = &json["rules"][0]["recommended"]["left_out"];
    assert_eq!(left_out[0]["key"], "partner-1");

    let (summary, json) = of("partners.toml", &format!("{by_address}{by_key}{own}"), &[]);
    let found = &json["rules"][0]["recommended"];
    let limit = found["limits"][0].as_str().unwrap();
    let rules = by_address.replace("40/s", limit);
    let (_, replayed) = of("as-proposed.toml", &rules, &[]);
    let denied = replayed["denied"].as_u64().unwrap();
    assert_eq!(found["left_out"][0]["denied"], denied);
    let denied = format!("{},{:03}", denied / 1_000, denied % 1_000);
    let expected = format!(
        "  all: 40/s -> {limit}, which denies 0 of 60 keys (0.00 %), 0 of 1,200 requests (0.00 %); \
         and of the keys left out 1 of 1, {denied} of 3,500 requests\n"
    );
    assert!(summary.contains(&expected), "{expected}{summary}");
}

/// A log shows what was asked for, and not what the service could have done.
#[test]
fn a_proposal_for_all_requests_together_says_that_it_only_follows_the_past() {
    let log = Scratch::new("whole.log", &logins_with_one_guesser());
    let note = "    all requests share it, so it only follows past traffic: a log does not tell how \
        many requests the service can take\n";
    for (key, is_noted) in [("", true), ("key = ['address']\n", false)] {
        let rule = format!("[[rules]]\nname = 'all'\n{key}limits = ['200/s']\n");
        let policy = Scratch::new(&format!("whole{is_noted}.toml"), rule.as_bytes());
        let args = ["replay", log.path(), "--policy", policy.path()];
        let output = portcullis(&[&args[..], &["--recommend", "1%"]].concat()).output();
        let summary = text(&output.unwrap().stdout);
        assert!(summary.contains("  all: 200/s -> "), "{summary}");
        assert_eq!(summary.contains(note), is_noted, "{summary}");
        assert_ne!(summary.contains("    set by "), is_noted, "{summary}");
    }
}

#[test]
fn nothing_is_proposed_for_a_rule_whose_key_no_line_has() {
    let log = Scratch::new("keyless.log", &logins_with_one_guesser());
    let rule = b"[[rules]]\nname = 'keys'\nkey = ['header:X-Api-Key']\non_missing = 'share'\n\
        limits = ['5/m']\n";
    let policy = Scratch::new("keyless.toml", rule);
    let json = replay(log.path(), policy.path(), &["--recommend", "1%"]);
    let found = &json["rules"][0]["recommended"];
    assert_eq!(found["limits"], Value::Null);
    assert_eq!(found["missing_key"], "header:X-Api-Key");
    let args = [
        "replay",
        log.path(),
        "--policy",
        policy.path(),
        "--recommend",
        "1%",
    ];
    let summary = text(&portcullis(&args).output().unwrap().stdout);
    let expected = "keys: 5/m: nothing to propose: no line has header:X-Api-Key";
    assert!(summary.contains(expected), "{summary}");
}

#[test]
fn a_policy_may_have_any_format_of_policy_files() {
    let log = Scratch::new("formats.log", &log(&lines(), false));
    let json = r#"{ "rules": [{ "name": "all", /* per client */ "key": ["address"], "limits": ["2/m"] }] }"#;
    let json = Scratch::new("policy.json", json.as_bytes());
    let toml = b"[[rules]]\nname = 'all'\nkey = ['address']\nlimits = ['2/m']\n";
    let toml = Scratch::new("policy", toml);
    let of_json = replay(log.path(), json.path(), &[]);
    let of_toml = replay(log.path(), toml.path(), &["--policy-format", "toml"]);
    assert_eq!(of_json["rules"], of_toml["rules"]);
    assert!(
        of_json["denied"].as_u64() > Some(100),
        "{}",
        of_json["denied"]
    );
}

/// A log has the requests of all instances that share a store.
#[test]
fn limits_in_a_store_are_replayed_as_those_of_one_process() {
    let log = Scratch::new("stored.log", &log(&lines(), false));
    let rules = |stores: &str, setting: &str| {
        let rule = "name = 'all'\nkey = ['address']\nlimits = ['2/m']\n";
        let policy = format!("{stores}\n[[rules]]\n{rule}{setting}\n");
        let policy = Scratch::new(&format!("stored{}.toml", stores.len()), policy.as_bytes());
        replay(log.path(), policy.path(), &["--recommend", "10%"])
    };
    let of_process = rules("", "");
    let of_store = rules("stores = ['shared']", "store = 'shared'");
    for part in ["rules", "allowed", "denied", "recommended"] {
        assert_eq!(of_process[part], of_store[part]);
    }
    assert!(of_store["denied"].as_u64() > Some(100));
}

#[test]
fn the_header_of_a_proxy_is_the_address_if_the_log_has_no_other() {
    let lines = lines();
    let plain = Scratch::new("proxy.log", &log(&lines, false));
    let all = Scratch::new("forwarded.log", &log(&lines, true));
    let denied = |log: &str, key: &str, format: &[&str]| {
        let policy = format!("[[rules]]\nname = 'a'\nkey = ['{key}']\nlimits = ['5/m']\n");
        let policy = Scratch::new(&format!("{}.toml", key.len()), policy.as_bytes());
        replay(log, policy.path(), format)["denied"]
            .as_u64()
            .unwrap()
    };
    let of_address = denied(plain.path(), "address/32/128", &[]);
    assert_eq!(denied(plain.path(), "header:X-Real-IP", &[]), of_address);
    let format = FORMAT.replace("$http_x_api_key", "$http_x_real_ip");
    let of_header = denied(all.path(), "header:X-Real-IP", &["--format", &format]);
    let of_key = denied(all.path(), "header:X-Api-Key", &["--format", FORMAT]);
    assert_eq!(of_header, of_key);
    assert!(
        of_address > 100 && of_address < of_header,
        "{of_address} {of_header}"
    );
}

#[test]
fn what_cannot_be_replayed_is_said() {
    let lines = lines();
    let log = Scratch::new("plain.log", &log(&lines, false));
    let json = replay(log.path(), &policy("bytes"), &[]);
    assert_eq!(json["not_replayed"], serde_json::json!(["uploads"]));
    assert_eq!(json["never_logged"], serde_json::json!([]));
    let json = replay(log.path(), &policy("clients"), &[]);
    let never = serde_json::json!(["header:X-Api-Key"]);
    assert_eq!(json["never_logged"], never);
    let output = portcullis(&["replay", log.path(), "--policy", &policy("clients")])
        .output()
        .unwrap();
    let summary = text(&output.stdout);
    for expected in [
        "no line has header:X-Api-Key",
        "rule ",
        "agents ",
        "by 15/m",
    ] {
        assert!(
            summary.contains(expected),
            "{expected:?} is missing in\n{summary}"
        );
    }
}

#[test]
fn memory_is_that_of_the_lines_that_wait() {
    let mut log = String::new();
    for index in 0..20_000 {
        let (minute, second) = (index / 60 % 60, index % 60);
        let _ = writeln!(
            log,
            "192.0.2.{} - - [01/Mar/2024:{:02}:{minute:02}:{second:02} +0000] \"GET /{index} HTTP/1.1\" 200 1",
            index % 200,
            index / 3_600
        );
    }
    let log = Scratch::new("long.log", log.as_bytes());
    let json = replay(log.path(), &policy("bytes"), &["--horizon", "30s"]);
    assert_eq!(json["requests"], 20_000);
    assert!(json["held"].as_u64().unwrap() <= 32, "{}", json["held"]);
}

#[test]
fn a_policy_that_is_not_valid_is_refused_with_all_its_errors() {
    let wrong = "[[rules]]\nname = 'a'\nlimit = ['5/m']\nlimits = ['5 a minute']\n";
    let wrong = Scratch::new("wrong.toml", wrong.as_bytes());
    let log = Scratch::new("one.log", common::line("192.0.2.1", 0, "1").as_bytes());
    let refused = |args: &[&str]| {
        let output = portcullis(&["replay"]).args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        text(&output.stderr)
    };
    let error = refused(&[log.path(), "--policy", wrong.path()]);
    for expected in [
        "error: limit is not a setting of a rule: did you mean limits?",
        ".toml:3:1\n",
        "error: limits: `5 a minute` is not a rate",
        ".toml:4:11\n",
        ".toml: 2 errors\n",
    ] {
        assert!(
            error.contains(expected),
            "{expected:?} is missing in\n{error}"
        );
    }
    let login = policy("login");
    let error = refused(&[log.path(), "--policy", "no such.toml"]);
    assert!(error.contains("cannot use no such.toml: "), "{error}");
    let error = refused(&[log.path(), "--policy", "policy"]);
    let expected = "cannot use policy: name its format with --policy-format";
    assert!(error.contains(expected), "{error}");
    let error = refused(&["-", "--policy", &login, "--recommend", "1%"]);
    assert!(
        error.contains("standard input can be read only once"),
        "{error}"
    );
    let error = refused(&[log.path(), "--policy", &login, "--limit", "1/s"]);
    assert!(error.contains("cannot be used with"), "{error}");
    let error = refused(&[log.path(), "--recommend", "1%"]);
    assert!(error.contains("--policy <FILE>"), "{error}");
    let format = "$remote_addr [$time_local]";
    let error = refused(&[log.path(), "--policy", &policy("bytes"), "--format", format]);
    assert!(
        error.contains("a rule of the kind egress: the format has no size"),
        "{error}"
    );
}

/// Each line is decided as the layer decides the request: by the setting of the policy.
#[test]
fn paths_are_read_as_the_policy_says() {
    let requests = [
        "GET /files/a",
        "GET /files/..",
        "HEAD /files/%2e",
        "GET /files/a/",
        "GET /proxy/../health",
        "GET /health",
    ];
    let line = |request: &str| {
        format!("192.0.2.1 - - [01/Mar/2024:00:00:00 +0000] \"{request} HTTP/1.1\" 200 1\n")
    };
    let log: String = requests.into_iter().map(line).collect();
    let log = Scratch::new("spellings.log", log.as_bytes());
    for (reading, allowed, denied, refused, of_rules) in [
        ("either", 2, 4, 4, [1, 1, 0]),
        ("literal", 4, 2, 0, [1, 3, 2]),
        ("resolved", 5, 1, 0, [2, 2, 2]),
    ] {
        let rules = format!(
            "paths = {{ reading = '{reading}' }}
            [[rules]]
            name = 'health'
            paths = ['/health']
            [[rules]]
            name = 'files'
            methods = ['GET']
            paths = ['/files/*']
            limits = ['1/h']
            [[rules]]
            name = 'rest'
            limits = ['9/h']"
        );
        let policy = Scratch::new(&format!("{reading}.toml"), rules.as_bytes());
        let json = replay(log.path(), policy.path(), &[]);
        let of = |name: &str| json[name].as_u64().unwrap();
        let found = (of("allowed"), of("denied"), of("refused_paths"));
        assert_eq!(found, (allowed, denied, refused), "{reading}");
        let rules = json["rules"].as_array().unwrap();
        let asked: Vec<_> = rules
            .iter()
            .map(|rule| rule["asked"].as_u64().unwrap())
            .collect();
        assert_eq!(asked, of_rules, "{reading}");
    }
}

/// One tower layer, and `portcullis-serve` behind nginx, decide the same requests alike: their
/// tests compare with the same log. A log of the first lines shows what the last of them gets.
#[test]
fn a_replay_decides_the_recorded_requests_of_the_one_file_as_the_log_says() {
    let policy = Scratch::new("wish.toml", wish::RULES.as_bytes());
    let arguments = ["--policy", policy.path(), "--format", wish::FORMAT];
    let denied = |result: &Value| {
        let rules = result["rules"].as_array().unwrap().iter();
        let denials = rules.map(|rule| {
            let name = rule["rule"].as_str().unwrap().to_owned();
            (name, rule["denied"].as_u64().unwrap())
        });
        denials.collect::<BTreeMap<_, _>>()
    };
    let wished = wish::wished();
    let mut lines = 0;
    let mut expected = BTreeMap::new();
    for (nth, line) in wish::LOG.lines().enumerate() {
        lines += line.len() + 1;
        if let Some(rule) = wished[nth].denied_by {
            *expected.entry(rule.to_owned()).or_insert(0) += 1;
        }
        let result = common::json(&wish::LOG.as_bytes()[..lines], &arguments);
        assert_eq!(result["requests"], nth + 1);
        let mut denied = denied(&result);
        denied.retain(|_, count| *count > 0);
        assert_eq!(denied, expected, "{line}");
    }
    assert_eq!(expected.values().sum::<u64>(), 7);
}
