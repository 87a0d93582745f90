//! Which of 1,000 rules match a request, compared with globset; and decisions, compared with
//! limitador in memory.
//!
//! Of 1,000 rules, both match the same patterns on the same paths, in the same order. A path occurs
//! once in 65,536 operations, so nothing is remembered from the last time. Ours also compares
//! methods, tiers, networks and a property, which globset does not have; they are chosen so that
//! both find the same rules.

use core::cell::RefCell;
use core::net::{IpAddr, Ipv4Addr};
use core::ops::ControlFlow;
use std::collections::HashMap;
use std::rc::Rc;

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use limitador::RateLimiter;
use limitador::limit::Context;
use portcullis_core::Timestamp;
use portcullis_policy::{
    Algorithm, Conditions, Key, Limit, Matcher, PathRules, Policy, Request, Rule,
};

use crate::measure::{Contest, Contestant, Expected, Ready};

pub(crate) fn rows() -> Vec<Contest> {
    let field = Rc::new(Field::new());
    let (ours, theirs) = (Rc::clone(&field), field);
    vec![
        Contest {
            row: "policy.match_1k",
            threads: 1,
            expected: Expected::Granted,
            ours: Contestant::prepared("portcullis", move || ours.ours()),
            peers: vec![Contestant::prepared("globset", move || theirs.globset())],
        },
        Contest {
            row: "policy.decide",
            threads: 1,
            expected: Expected::Granted,
            ours: decide(&[PLENTY]),
            peers: vec![limitador()],
        },
        Contest {
            row: "policy.decide_2",
            threads: 1,
            expected: Expected::Granted,
            ours: decide(&[PLENTY, PLENTY]),
            peers: vec![],
        },
        Contest {
            row: "policy.deny_2",
            threads: 1,
            expected: Expected::Denied,
            ours: decide(&[PLENTY, 1]),
            peers: vec![],
        },
        Contest {
            row: "policy.decide_5",
            threads: 1,
            expected: Expected::Granted,
            ours: decide(&[PLENTY; 5]),
            peers: vec![],
        },
        Contest {
            row: "policy.deny_5",
            threads: 1,
            expected: Expected::Denied,
            ours: decide(&[PLENTY, PLENTY, PLENTY, PLENTY, 1]),
            peers: vec![],
        },
    ]
}

/// The limit of each user per minute, so that all requests are granted: more than a run takes.
const PLENTY: u64 = 30_000_000;

/// The users, who ask in turn.
fn users() -> Vec<String> {
    (0..1_000).map(|user| format!("user-{user}")).collect()
}

/// Decides `GET` requests of each user, by a rule with these limits per minute. The decision is
/// dropped.
fn decide(limits: &'static [u64]) -> Contestant {
    Contestant::prepared("portcullis", move || {
        let rule = Rule::new("users")
            .when(Conditions::new().methods(["GET"]))
            .key(Key::header("user"));
        let minute = core::time::Duration::from_mins(1);
        let rule = limits.iter().fold(rule, |rule, &count| {
            let window = Limit::per(count, minute).algorithm_of(Algorithm::WindowFromRequest);
            rule.limit(window)
        });
        let policy = Policy::new([rule]).expect("valid rules");
        let users = users();
        // The first request of each user takes what a limit of 1 allows.
        assert_eq!(ask(&policy, users.iter()), users.len() as u64);
        Ready::new(move |_, operations| {
            ask(&policy, users.iter().cycle().take(operations as usize))
        })
    })
}

/// Decides a request of each user, and returns the number of grants.
fn ask<'u>(policy: &Policy, users: impl Iterator<Item = &'u String>) -> u64 {
    let mut granted = 0;
    for user in users {
        let headers = [("user", user)];
        let request = Request::new("GET", "/items").headers(&headers);
        let decision = policy.decide_at(Timestamp::from_secs(1), &request);
        granted += u64::from(decision.is_allowed());
    }
    granted
}

/// The same rule. Its context is made of owned text for each request.
fn limitador() -> Contestant {
    Contestant::prepared("limitador", || {
        let limit = limitador::limit::Limit::new(
            "users",
            PLENTY,
            60,
            ["method == 'GET'".try_into().expect("a valid condition")],
            ["user".try_into().expect("a valid variable")],
        );
        let limiter = RateLimiter::new(10_000);
        limiter.add_limit(limit);
        let (users, namespace) = (users(), "users".into());
        Ready::new(move |_, operations| {
            let mut granted = 0;
            for user in users.iter().cycle().take(operations as usize) {
                let values: HashMap<String, String> = [
                    ("method".to_owned(), "GET".to_owned()),
                    ("user".to_owned(), user.clone()),
                ]
                .into();
                let context = Context::from(values);
                let result = limiter
                    .check_rate_limited_and_update(&namespace, &context, 1)
                    .expect("in memory nothing fails");
                granted += u64::from(!result.limited);
            }
            granted
        })
    })
}

const RULES: usize = 1_000;
const PATHS: usize = 1 << 16;

/// The patterns, and paths that each match at least one of them.
struct Field {
    patterns: Vec<String>,
    paths: Vec<String>,
}

impl Field {
    /// 50 % of the patterns have one `*`, 20 % end with `**`, 10 % have a `**` in the middle, 10 %
    /// begin with one, and 10 % have none.
    fn new() -> Self {
        let mut random = Random(1);
        let patterns: Vec<String> = (0..RULES)
            .map(|rule| {
                let mut parts: Vec<String> = (0..random.below(4) + 4)
                    .map(|_| format!("{}{}", WORDS[random.below(WORDS.len())], random.below(10)))
                    .collect();
                let last = parts.len() - 1;
                match rule % 10 {
                    0..5 => parts[random.below(last) + 1] = "*".into(),
                    5..7 => parts[last] = "**".into(),
                    7 => parts[last / 2] = "**".into(),
                    8 => parts[0] = "**".into(),
                    _ => {}
                }
                format!("/{}", parts.join("/"))
            })
            .collect();
        let paths = (0..PATHS)
            .map(|path| {
                let pattern = &patterns[random.below(RULES)];
                let parts = pattern[1..].split('/').map(|part| match part {
                    "*" => format!("item{path}"),
                    "**" => format!("item{path}/part{}", random.below(100)),
                    part => part.to_owned(),
                });
                format!("/{}", parts.collect::<Vec<_>>().join("/"))
            })
            .collect();
        Self { patterns, paths }
    }

    fn ours(&self) -> Ready {
        let conditions: Vec<Conditions> = self
            .patterns
            .iter()
            .enumerate()
            .map(|(rule, pattern)| {
                let all = Conditions::new().paths([pattern]);
                match rule % 7 {
                    0 => all.methods(["GET", "HEAD"]),
                    1 => all.tiers(["free", "paid"]),
                    2 => all.hosts([format!("10.{}.0.0/8", rule % 200)]),
                    3 => all.property("region", ["eu", "us"]),
                    _ => all,
                }
            })
            .chain([
                // These are never met.
                Conditions::new().methods(["PUT"]).tiers(["other"]),
                Conditions::new()
                    .hosts(["192.0.2.0/24"])
                    .property("region", ["none"]),
            ])
            .collect();
        let matcher = Matcher::new(&conditions, PathRules::new()).expect("valid conditions");
        let globs = self.globs();
        for path in self.paths.iter().take(1_000) {
            let mut found = Vec::new();
            visit(&matcher, path, |rule| found.push(rule));
            assert_eq!(found, globs.matches(&path[1..]), "{path}");
        }
        let (note, paths) = (format!("{matcher:?}"), self.paths.clone());
        Ready::new(move |_, operations| {
            let mut matched = 0;
            for path in paths.iter().cycle().take(operations as usize) {
                let mut rules = 0;
                visit(&matcher, path, |_| rules += 1);
                matched += u64::from(rules > 0);
            }
            matched
        })
        .noting(note)
    }

    fn globset(&self) -> Ready {
        let (globs, paths) = (self.globs(), self.paths.clone());
        Ready::new(move |_, operations| {
            thread_local! {
                static RULES_FOUND: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
            }
            RULES_FOUND.with_borrow_mut(|rules| {
                let mut matched = 0;
                for path in paths.iter().cycle().take(operations as usize) {
                    globs.matches_into(&path[1..], rules);
                    matched += u64::from(!rules.is_empty());
                }
                matched
            })
        })
    }

    /// Without the slash at the start of patterns and paths: with it, globset is slower.
    fn globs(&self) -> GlobSet {
        let mut globs = GlobSetBuilder::new();
        for pattern in &self.patterns {
            let glob = GlobBuilder::new(&pattern[1..])
                .literal_separator(true)
                .build();
            globs.add(glob.expect("a valid pattern"));
        }
        globs.build().expect("globset has room for the patterns")
    }
}

/// Visits all rules that match, of a client whose address, tier and region are always the same.
#[inline]
fn visit(matcher: &Matcher, path: &str, mut found: impl FnMut(usize)) {
    const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 1, 2, 3));
    let request = Request::new("GET", path)
        .host("api.example.com")
        .address(ADDRESS)
        .tier("free")
        .properties(&[("region", "eu")]);
    let visited = matcher.visit(&request, |rule| {
        found(rule);
        ControlFlow::Continue(())
    });
    visited.expect("a path that is not too long");
}

const WORDS: [&str; 20] = [
    "api", "v", "users", "orders", "items", "blobs", "tags", "search", "admin", "files", "images",
    "events", "teams", "projects", "reports", "keys", "tokens", "sessions", "carts", "payments",
];

/// `SplitMix64` (Steele, Lea and Flood, 2014), the same numbers in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(mixed ^ (mixed >> 31)) * n as u128) >> 64) as usize
    }
}
