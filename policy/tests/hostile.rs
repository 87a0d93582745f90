//! Clients and callers that try to get more from a policy than it promises, or to break it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use portcullis_core::Timestamp;
use portcullis_policy::{Limit, Policy, Request, Rule};

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
            let watch = |answer: portcullis_policy::Answer<'_>| {
                assert_ne!(answer.rule.name(), panics);
            };
            policy.decide_watched_at(at(1), &GET, watch).is_allowed()
        }));
        assert!(decided.is_err());
        let decision = policy.decide_at(at(1), &GET);
        assert!(decision.is_allowed() && decision.shadow_denied().is_none());
    }
}
