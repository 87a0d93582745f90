//! Clients and callers that try to get more from a policy than it promises, or to break it.

use core::ops::ControlFlow;
use core::panic::AssertUnwindSafe;
use std::panic::catch_unwind;

use portcullis_core::Timestamp;
use portcullis_policy::{
    Conditions, Key, Limit, Matcher, PathError, PathRules, Policy, Request, Rule,
};

const GET: Request<'static> = Request::new("GET", "/");

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_secs(seconds)
}

fn policy(rules: impl IntoIterator<Item = Rule>) -> Policy {
    Policy::new(rules).unwrap()
}

#[test]
fn permits_at_once_return_if_a_watcher_panics() {
    let uploads = || Rule::new("uploads").limit(Limit::at_once(1));
    let policy = policy([
        uploads().shadow(),
        Rule::new("all").limit(Limit::at_once(1)),
    ]);
    for panics in ["uploads", "all"] {
        let decided = catch_unwind(AssertUnwindSafe(|| {
            let watch = |answer: portcullis_policy::RuleAnswer<'_>| {
                assert_ne!(answer.rule.name(), panics);
            };
            policy.decide_watched_at(at(1), &GET, watch).is_allowed()
        }));
        assert!(decided.is_err());
        let decision = policy.decide_at(at(1), &GET);
        assert!(decision.is_allowed() && decision.shadow_denied().is_none());
    }
}

/// Names of hosts have at most 253 bytes. A client can send more.
#[test]
fn a_long_host_evades_no_rule() {
    let names = ["example.com", "b.example.com"];
    let conditions = names.map(|name| Conditions::new().hosts([format!("*.{name}")]));
    let exact = Conditions::new().hosts(["example.com"]);
    let conditions = [&conditions[0], &conditions[1], &exact].map(Clone::clone);
    let matcher = Matcher::new(&conditions, PathRules::new()).unwrap();
    for (len, label) in (0..20)
        .chain(230..270)
        .chain([100_000])
        .flat_map(|len| ["a", "é", ".", "a."].map(|label| (len, label)))
    {
        for end in [
            "example.com",
            ".example.com",
            ".b.Example.COM:80",
            "b.example.com.",
        ] {
            let host = label.repeat(len) + end;
            let name = host.to_lowercase();
            let name = name.trim_end_matches(":80").trim_end_matches('.');
            let is_below = |below: &&str| {
                let before = name.strip_suffix(*below);
                before.is_some_and(|before| before.len() > 1 && before.ends_with('.'))
            };
            let [below, deeper] = names.each_ref().map(is_below);
            let request = GET.host(&host);
            let mut found = [false; 3];
            let visited = matcher.visit(&request, |index| {
                found[index] = true;
                ControlFlow::Continue(())
            });
            visited.unwrap();
            assert_eq!(found, [below, deeper, name == "example.com"], "{host:.300}");
            let explained = [0, 1, 2].map(|index| matcher.mismatch(index, &request).unwrap());
            assert_eq!(explained.map(|mismatch| mismatch.is_none()), found);
        }
    }
}

/// The path of one request contains the bytes that begin the address of the other one.
#[test]
fn a_path_does_not_pass_for_another_path_and_address() {
    let key = || Key::path().and(Key::address_prefix(32, 128));
    let limit: Limit = "1/d".parse().unwrap();
    let policy = policy([Rule::new("all").key(key()).limit(limit)]);
    let path = "/a/%01%00%00%00%00%00%00%00%FF%06x";
    for (path, address) in [(path, "32.1.13.184"), ("/a", "2001:db8:4ff::2:2f78")] {
        let request = Request::new("GET", path).address(address.parse().unwrap());
        assert!(policy.decide_at(at(1), &request).is_allowed());
        assert!(!policy.decide_at(at(1), &request).is_allowed());
    }
}

/// The rule that would be asked is disabled, so no condition is judged.
#[test]
fn an_explanation_refuses_the_paths_that_a_decision_refuses() {
    let long = "a".repeat(9_000);
    for rules in [vec![], vec![Rule::new("all").disabled()]] {
        let policy = policy(rules);
        let request = Request::new("GET", &long);
        assert!(!policy.decide_at(at(1), &request).is_allowed());
        let refused = policy.explain_at(at(1), &request);
        assert_eq!(refused.map(|all| all.len()), Err(PathError::TooLong));
    }
}
