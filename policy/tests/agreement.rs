//! An explanation says what the decision that follows answers, and shadow rules change no decision.

use core::time::Duration;

use portcullis_core::Timestamp;
use portcullis_policy::{
    Algorithm, Conditions, Considered, Explained, Key, Limit, OnMissing, Outcome, Policy, Request,
    Rule,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

const TEN_SECONDS: Duration = Duration::from_secs(10);

fn limit() -> impl Strategy<Value = Limit> {
    (0..4_u8, 1..6_u64).prop_map(|(kind, count)| {
        let limit = Limit::per(count, TEN_SECONDS);
        match kind {
            0 => Limit::at_once(count as u32),
            1 => limit.algorithm_of(Algorithm::FixedWindow),
            2 => limit.algorithm_of(Algorithm::SlidingWindow { segments: 4 }),
            _ => limit,
        }
    })
}

/// The settings of a rule.
type Settings = (
    (bool, u32, Key, OnMissing),
    (Vec<Limit>, bool, Option<&'static str>, bool),
);

fn settings() -> impl Strategy<Value = Settings> {
    let keys = vec![Key::path(), Key::method(), Key::header("X"), Key::shared()];
    let on_missing = vec![OnMissing::Share, OnMissing::Deny, OnMissing::Skip];
    let paths = select(vec![None, None, Some("/a/**")]);
    (
        (any::<bool>(), 0..4_u32, select(keys), select(on_missing)),
        (vec(limit(), 0..5), any::<bool>(), paths, any::<bool>()),
    )
}

fn rule((index, settings): (usize, Settings)) -> Rule {
    let ((is_shadow, priority, key, on_missing), (limits, has_penalty, path, exempts)) = settings;
    let mut rule = Rule::new(&format!("rule {index}"))
        .priority(priority)
        .key(key)
        .on_missing(on_missing)
        .when(Conditions::new().paths(path));
    if has_penalty && !limits.is_empty() {
        rule = rule.penalty(TEN_SECONDS / 2);
    }
    if exempts {
        rule = rule.exempt_header("X", ["exempt"]);
    }
    if is_shadow {
        rule = rule.shadow();
    }
    limits.into_iter().fold(rule, Rule::limit)
}

/// What the rule would answer: `Ok` if it allows, and the limit that denies, if it is one.
fn answer(explained: &Explained<'_>) -> Option<Result<(), Option<usize>>> {
    Some(match &explained.considered {
        Considered::Mismatch(_) | Considered::Skipped => return None,
        Considered::Exempt => Ok(()),
        Considered::Unidentified
        | Considered::Limits {
            is_penalized: true, ..
        } => Err(None),
        Considered::Limits { details, .. } => {
            let denied = details.iter().position(|detail| !detail.is_allowed());
            denied.map_or(Ok(()), |limit| Err(Some(limit)))
        }
        other => panic!("{other:?}"),
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn explanations_agree_with_decisions_that_shadow_rules_do_not_change(
        settings in vec(settings(), 1..8),
        steps in vec((0..3_u64, 0..12_usize, 0..4_u32, any::<Option<u8>>()), 1..60),
    ) {
        let rules: Vec<Rule> = settings.into_iter().enumerate().map(rule).collect();
        let active = rules.iter().filter(|rule| !rule.is_shadow()).cloned();
        let (without, policy) = (Policy::new(active).unwrap(), Policy::new(rules).unwrap());
        let (mut now, mut open) = (Timestamp::from_secs(100), Vec::new());
        for (seconds, which, cost, dropped) in steps {
            now += Duration::from_secs(seconds);
            if let (Some(dropped), false) = (dropped, open.is_empty()) {
                drop(open.swap_remove(usize::from(dropped) % open.len()));
            }
            let headers = [("X", ["", "client", "exempt"][which % 3])];
            let path = ["/a", "/a/b"][which / 3 % 2];
            let request = Request::new(["GET", "PUT"][which / 6], path).headers(&headers).cost(cost);
            let explained = policy.explain_at(now, &request).unwrap();
            let again = policy.explain_at(now, &request).unwrap();
            prop_assert_eq!(format!("{explained:?}"), format!("{again:?}"));

            let decision = policy.decide_explained_at(now, &request);
            let decides = explained.iter().find(|each| each.decides);
            let name = decides.map(|each| each.rule.name());
            prop_assert_eq!(decision.rule().map(Rule::name), name);
            let decided = match decision.outcome() {
                Outcome::Denied { limit, .. } => Err(limit),
                Outcome::Unidentified => Err(None),
                _ => Ok(()),
            };
            prop_assert_eq!(decides.map_or(Some(Ok(())), answer), Some(decided));
            let mut asked = explained.iter().take_while(|each| !each.decides);
            let shadow = asked.find(|each| answer(each).is_some_and(|answer| answer.is_err()));
            let name = shadow.map(|each| each.rule.name());
            prop_assert_eq!(decision.shadow_denied().map(Rule::name), name);

            let other = without.decide_explained_at(now, &request);
            prop_assert_eq!(decision.outcome(), other.outcome());
            prop_assert_eq!(decision.rule().map(Rule::name), other.rule().map(Rule::name));
            prop_assert_eq!(decision.retry(), other.retry());
            open.push((decision, other));
        }
    }
}
