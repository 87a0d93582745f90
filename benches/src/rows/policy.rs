//! Which of 1,000 rules match a request, compared with globset.
//!
//! Both match the same patterns on the same paths, in the same order. A path occurs once in 65,536
//! operations, so nothing is remembered from the last time. Ours also compares methods, tiers,
//! networks and a property, which globset does not have; they are chosen so that both find the same
//! rules.

use core::cell::RefCell;
use core::net::{IpAddr, Ipv4Addr};
use core::ops::ControlFlow;
use std::rc::Rc;

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use portcullis_policy::{Conditions, Matcher, PathRules, Request};

use crate::measure::{Contest, Contestant, Expected, Ready};

pub(crate) fn rows() -> Vec<Contest> {
    let field = Rc::new(Field::new());
    let (ours, theirs) = (Rc::clone(&field), field);
    vec![Contest {
        row: "policy.match_1k",
        threads: 1,
        expected: Expected::Granted,
        ours: Contestant::prepared("portcullis", move || ours.ours()),
        peers: vec![Contestant::prepared("globset", move || theirs.globset())],
    }]
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
            assert_eq!(found, globs.matches(path), "{path}");
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
                    globs.matches_into(path, rules);
                    matched += u64::from(!rules.is_empty());
                }
                matched
            })
        })
    }

    fn globs(&self) -> GlobSet {
        let mut globs = GlobSetBuilder::new();
        for pattern in &self.patterns {
            let glob = GlobBuilder::new(pattern).literal_separator(true).build();
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
