//! Doubts about a file whose rules are valid: rules that do not do what their author may expect.
//!
//! A rule is never asked if an earlier one decides every request that it matches. Whether one
//! matches all that another one does is compared condition by condition, and pattern by pattern:
//! see [`Parsed::covers`]. A doubt is never wrong, and some are missed: those about several rules
//! that only together match all requests of another one, and those beyond [`MAX_WORK`].

use std::sync::Arc;

use crate::conditions::Parsed;
use crate::key::{KeyPart, Text};
use crate::path::PathRules;
use crate::request::Kind;
use crate::rule::{OnMissing, Rule};

/// How many pairs of rules, and of patterns, are compared at most, so that no file is slow to read.
const MAX_WORK: usize = 1 << 20;

/// The header fields that identify a client by a secret, without hyphens.
const CREDENTIALS: [&str; 8] = [
    "authorization",
    "proxyauthorization",
    "cookie",
    "apikey",
    "xapikey",
    "xauthtoken",
    "xaccesstoken",
    "xclientsecret",
];

/// A doubt about a setting of a rule.
pub(crate) struct Doubt {
    pub(crate) rule: Arc<str>,
    pub(crate) setting: &'static str,
    /// Ends with the name of the other rule, if there is one.
    pub(crate) problem: String,
    /// Another rule that the doubt is about, and the text that follows its line.
    pub(crate) other: Option<(Arc<str>, &'static str)>,
}

/// Judges valid rules that are in the order of their priority.
pub(crate) fn judge<'r>(
    rules: impl Iterator<Item = &'r Rule>,
    path_rules: PathRules,
) -> Vec<Doubt> {
    let mut doubts = Vec::new();
    let rules: Vec<&Rule> = rules.filter(|rule| rule.is_enabled).collect();
    let all = rules.iter().map(|rule| &rule.conditions);
    let parsed: Vec<Parsed> = all
        .map(|one| one.parse(0, path_rules, &mut Vec::new()))
        .collect();
    let mut work = MAX_WORK;
    for (index, rule) in rules.iter().enumerate() {
        let mut doubt = |setting, problem: String, other: Option<(&Rule, &'static str)>| {
            doubts.push(Doubt {
                rule: Arc::clone(&rule.name),
                setting,
                problem,
                other: other.map(|(other, then)| (Arc::clone(&other.name), then)),
            });
        };
        let covers = |earlier: &usize| parsed[*earlier].covers(&parsed[index], &mut work);
        let mut earlier = (0..index).filter(|&earlier| decides_all(rules[earlier]));
        if !only_counts(rule)
            && let Some(earlier) = earlier.find(covers)
        {
            let other = rules[earlier];
            let problem = format!("this rule is never asked, because `{}`", other.name());
            let then = " matches every request that it matches, and decides it: add \
                        `continue = true` there to take from both, or give this one a lower \
                        priority";
            doubt("name", problem, Some((other, then)));
        }
        for (setting, problem) in idle_settings(rule) {
            doubt(setting, problem.into(), None);
        }
        if let Some((setting, name)) = shared_credential(rule) {
            let problem = format!(
                "all requests without `{name}` share the limits of one key, so that anybody can use \
                 them up: write `on_missing = \"skip\"` to leave them to the rules after this one, \
                 or `on_missing = \"deny\"`"
            );
            doubt(setting, problem, None);
        }
        let is_first = !rules[..index]
            .iter()
            .any(|other| other.kind() == rule.kind());
        if is_first && let Some(kind) = label(rule.kind()) {
            let problem = format!(
                "only a program that asks for the kind `{kind}` asks this rule: for limits that add \
                 up, `continue = true` needs no kinds"
            );
            doubt("kind", problem, None);
        }
    }
    doubts
}

/// Whether a rule decides each request that it matches, and leaves none to the rules after it.
fn decides_all(rule: &Rule) -> bool {
    let skips = rule.on_missing == OnMissing::Skip && !rule.key.is_shared();
    !(rule.is_shadow || rule.is_continuing || skips || only_counts(rule))
}

/// Whether a rule has thresholds and no limits, so that it decides no request.
fn only_counts(rule: &Rule) -> bool {
    rule.limits.is_empty() && !rule.thresholds.is_empty()
}

/// The settings of a rule without limits that do not do what they say, and what they do.
fn idle_settings(rule: &Rule) -> impl Iterator<Item = (&'static str, &'static str)> {
    let is_empty = rule.limits.is_empty() && rule.thresholds.is_empty();
    let key = "has no effect without a limit: add a limit, or leave it out";
    let shadow = "a shadow decides nothing, so this rule exempts no client: leave `shadow` out";
    let idle = [
        ("key", key, !rule.key.is_shared()),
        ("shadow", shadow, rule.is_shadow),
    ];
    let set = idle
        .into_iter()
        .filter(move |(.., is_set)| is_empty && *is_set);
    set.map(|(setting, problem, _)| (setting, problem))
}

/// The name of a header field of the key that is a credential, if all requests without it have one
/// key, and the setting that says so.
fn shared_credential(rule: &Rule) -> Option<(&'static str, &str)> {
    let setting = match rule.on_missing {
        OnMissing::Share => "on_missing",
        OnMissing::NeedAddress => "key",
        OnMissing::Deny | OnMissing::Skip => return None,
    };
    // Otherwise clients without it are told apart by their addresses.
    let mut parts = rule.key.parts();
    if parts.any(|part| matches!(part, KeyPart::Address { .. })) {
        return None;
    }
    let names = rule.key.texts().flat_map(|text| match text {
        Text::Header(name) => core::slice::from_ref(name),
        Text::FirstHeader(names) => names,
        _ => &[],
    });
    let mut names = names.map(|name| &**name);
    let is_credential = |name: &&str| {
        let letters = name.bytes().filter(|&byte| byte != b'-' && byte != b'_');
        let letters = letters.map(|byte| byte.to_ascii_lowercase());
        CREDENTIALS
            .iter()
            .any(|known| known.bytes().eq(letters.clone()))
    };
    names.find(is_credential).map(|name| (setting, name))
}

/// The name of a kind that says nothing about its rules.
const fn label(kind: Kind) -> Option<&'static str> {
    match kind {
        Kind::Burst => Some("burst"),
        Kind::Concurrency => Some("concurrency"),
        _ => None,
    }
}
