//! What of a policy a server can say.

use core::net::IpAddr;
use core::time::Duration;

use portcullis_policy::{
    Algorithm, KeyPart, Kind, Limit, OnMissing, PathReading, Policy, Rule, RuleParts, period_text,
};

use crate::text::visible;

const MINUTE: Duration = Duration::from_mins(1);

/// What a server cannot say of a rule.
pub(crate) struct Unsaid<'p> {
    pub(crate) rule: &'p str,
    pub(crate) reason: String,
}

/// What a server can say.
pub(crate) trait Says {
    /// Returns why the conditions of a rule cannot be said.
    fn conditions(&self, parts: &RuleParts<'_>) -> Option<String>;

    /// Returns why the key of a rule, or what exempts from it, cannot be said.
    fn key(&self, parts: &RuleParts<'_>) -> Option<String>;

    /// Returns why a limit cannot be said. The settings that no server has were looked at before.
    fn limit(&self, limit: &Limit) -> Option<String>;

    /// The status that all denials have, if the server has only one for all rules.
    fn only_status(&self, first: u16) -> Option<u16>;
}

/// A rule whose conditions can be said.
pub(crate) struct Planned<'p> {
    /// From 1, in the order in which rules are asked.
    pub(crate) number: usize,
    pub(crate) rule: &'p Rule,
    pub(crate) parts: RuleParts<'p>,
    /// Empty if they cannot be said.
    pub(crate) limits: &'p [Limit],
    /// Whether no rule after it limits its requests.
    pub(crate) ends: bool,
}

/// All rules that can be said, in the order in which they are asked.
pub(crate) struct Plan<'p> {
    pub(crate) rules: Vec<Planned<'p>>,
    pub(crate) unsaid: Vec<Unsaid<'p>>,
    /// How the service reads paths.
    pub(crate) ignore_case: bool,
    pub(crate) decode_slashes: bool,
    pub(crate) literal: bool,
}

impl<'p> Plan<'p> {
    /// Decides for each rule what `server` can say of it.
    pub(crate) fn new(policy: &'p Policy, server: &impl Says) -> Self {
        let path_rules = policy.path_rules();
        let mut plan = Self {
            rules: Vec::new(),
            unsaid: Vec::new(),
            ignore_case: path_rules == path_rules.ignoring_case(),
            decode_slashes: path_rules == path_rules.decoding_slashes(),
            literal: path_rules == path_rules.reading(PathReading::Literal),
        };
        let mut status = None;
        let rules = policy.rules().filter(|rule| rule.is_enabled());
        for (index, rule) in rules.enumerate() {
            let mut refuse = |reason: String| {
                plan.unsaid.push(Unsaid {
                    rule: rule.name(),
                    reason,
                });
            };
            let parts = rule.parts();
            if let Some(reason) = apart(rule) {
                refuse(format!("{reason}: the rule is left out"));
                continue;
            }
            let conditions = unknown(&parts).or_else(|| server.conditions(&parts));
            if let Some(reason) = conditions {
                refuse(format!("{reason}: the rules after it decide its requests"));
                continue;
            }
            let problem = beyond_limits(rule, &parts)
                .or_else(|| server.key(&parts))
                .or_else(|| problem_of(rule.limits(), server));
            let mut limits = rule.limits();
            if let Some(reason) = problem {
                refuse(format!("{reason}: its requests pass without a limit"));
                limits = &[];
            } else if !limits.is_empty() {
                let first = *status.get_or_insert(rule.status());
                let only = server.only_status(first);
                if let Some(only) = only.filter(|only| *only != rule.status()) {
                    refuse(format!(
                        "there is one status for all denials: they have {only}"
                    ));
                }
                if rule.message().is_some() {
                    refuse("its message is left out".into());
                }
                if !rule.thresholds().is_empty() {
                    refuse("its thresholds are left out".into());
                }
            }
            plan.rules.push(Planned {
                number: index + 1,
                rule,
                limits,
                ends: !rule.is_continuing(),
                parts,
            });
        }
        plan
    }
}

/// Why a rule decides no request that a server asks about.
fn apart(rule: &Rule) -> Option<String> {
    if rule.kind() != Kind::Request {
        let kind = crate::limit::kind_name(rule.kind());
        Some(format!(
            "it is of the kind {kind}, which only a program asks for"
        ))
    } else if rule.is_shadow() {
        Some("a shadow rule only reports".into())
    } else if rule.limits().is_empty() && !rule.thresholds().is_empty() {
        Some("it only counts activity".into())
    } else {
        None
    }
}

/// Why no server knows which requests a rule is for.
fn unknown(parts: &RuleParts<'_>) -> Option<String> {
    if !parts.tiers.is_empty() {
        Some("only a program knows the tier of a client".into())
    } else if let Some((name, _)) = parts.properties.first() {
        Some(format!(
            "only a program knows the property {}",
            name.escape_debug()
        ))
    } else {
        None
    }
}

/// Why no server can say the limits of a rule, because of what the rule does besides.
fn beyond_limits(rule: &Rule, parts: &RuleParts<'_>) -> Option<String> {
    if rule.limits().is_empty() {
        return None;
    }
    let has = [
        (
            rule.store().is_some(),
            "its limits are in a store that programs share",
        ),
        (parts.penalty.is_some(), "a penalty cannot be said"),
        (parts.hold.is_some(), "a hold cannot be said"),
        (
            parts.has_overrides,
            "limits for given keys cannot be said: write a rule for each of them",
        ),
    ];
    let found = has.iter().find(|(is_set, _)| *is_set);
    if let Some((_, reason)) = found {
        return Some((*reason).into());
    }
    let keys = parts
        .key
        .iter()
        .chain(parts.exempt.iter().map(|(by, _)| by));
    for part in keys {
        match part {
            KeyPart::Tier => return Some("only a program knows the tier of a client".into()),
            KeyPart::Property(name) => {
                let name = name.escape_debug();
                return Some(format!("only a program knows the property {name}"));
            }
            KeyPart::Header(names) if names.len() > 1 => {
                return Some("the first of several header fields cannot be said".into());
            }
            KeyPart::Function => return Some("its key is a function of a program".into()),
            _ => {}
        }
    }
    let credentials = parts.key.iter().find_map(|part| match part {
        KeyPart::Header([name]) if part.has_scheme() => Some(name),
        _ => None,
    });
    credentials.map(|name| {
        let name = name.escape_debug();
        format!("there, each spelling of `Bearer` in {name} is a key with limits of its own")
    })
}

/// Why one of the limits cannot be said.
fn problem_of(limits: &[Limit], server: &impl Says) -> Option<String> {
    limits.iter().find_map(|limit| {
        let has = [
            (
                limit.queue_limit() > 0,
                "no request waits there in a queue of its key",
            ),
            (
                limit.wait_time().is_some(),
                "a wait after a denial cannot be said",
            ),
            (
                limit.initial_permits() != limit.capacity(),
                "every limit starts with its burst there",
            ),
        ];
        let found = has.iter().find(|(is_set, _)| *is_set);
        let reason = found.map(|(_, reason)| (*reason).to_owned());
        let reason = reason.or_else(|| server.limit(limit))?;
        Some(format!("{limit}: {reason}"))
    })
}

/// Whether all permits of a limit return continuously.
pub(crate) fn is_continuous(limit: &Limit) -> bool {
    limit.period().is_some() && limit.algorithm() == Algorithm::TokenBucket && !limit.is_stepwise()
}

/// Why a limit that is no continuous token bucket cannot be said, and what to write if a server has
/// the bucket that is as large.
pub(crate) fn not_continuous(limit: &Limit, has_bucket: bool) -> String {
    let reason = "only a continuous token bucket can be said";
    let burst = limit.capacity();
    if !has_bucket {
        return reason.into();
    }
    match first_period(limit).and_then(|_| halves(limit)) {
        Some(halves) => {
            let count = limit.count();
            format!("{reason}. For {count} in any period: {halves}")
        }
        None => format!("{reason}, such as {{ rate = \"{limit}\", burst = {burst} }}"),
    }
}

/// The bucket that lets as many requests pass in any period as a limit in its own: half of them at
/// once, and the others return.
fn halves(limit: &Limit) -> Option<String> {
    let (count, period) = (limit.count(), period_text(limit.period()?));
    let (burst, rate) = (count.div_ceil(2), count / 2);
    Some(format!("{{ rate = \"{rate}/{period}\", burst = {burst} }}"))
}

/// How much a bucket that is as large as its rate lets pass in its first period. `5/m` looks like 5
/// requests in a minute, but up to 10 pass in the first one. `None` for a period below a minute and
/// for a burst that was chosen: there the number surprises nobody.
fn first_period(limit: &Limit) -> Option<String> {
    let period = limit.period().filter(|period| *period >= MINUTE)?;
    let count = limit.count();
    if count < 2 || limit.capacity() != count {
        return None;
    }
    let name = match period_text(period) {
        text if text == "m" => "minute".into(),
        text if text == "h" => "hour".into(),
        text if text == "d" => "day".into(),
        text => text,
    };
    let most = u128::from(count) * 2;
    Some(format!("up to {most} pass in the first {name}"))
}

/// What limits that are written let pass in their first period, each with the limit that lets half
/// of it pass in any.
pub(crate) fn first_periods(plan: &Plan<'_>) -> Vec<String> {
    let of_rule = |planned: &Planned<'_>| {
        let rule = visible(planned.rule.name().as_bytes());
        let limits = planned.limits.iter();
        let note = move |limit: &Limit| {
            let first = first_period(limit).filter(|_| is_continuous(limit))?;
            let (count, halves) = (limit.count(), halves(limit)?);
            Some(format!(
                "{rule}: {limit}: {first}: {count} at once, and {count} that return. For \
                 {count} in any: {halves}"
            ))
        };
        limits.filter_map(note).collect::<Vec<_>>()
    };
    plan.rules.iter().flat_map(of_rule).collect()
}

/// The name of a header field that must be there for a rule to apply.
pub(crate) fn required_headers<'r>(parts: &RuleParts<'r>) -> Vec<&'r str> {
    match parts.on_missing {
        OnMissing::Skip => headers_of(parts),
        _ => Vec::new(),
    }
}

/// The names of the header fields of a key.
pub(crate) fn headers_of<'r>(parts: &RuleParts<'r>) -> Vec<&'r str> {
    let header = |part: &KeyPart<'r>| match *part {
        KeyPart::Header([name]) => Some(&**name),
        _ => None,
    };
    parts.key.iter().filter_map(header).collect()
}

/// The methods of a condition: `HEAD` is also for `GET`.
pub(crate) fn methods_of<'r>(parts: &RuleParts<'r>) -> Vec<&'r str> {
    let mut methods: Vec<&str> = parts.methods.iter().map(|method| &**method).collect();
    if methods.contains(&"GET") && !methods.contains(&"HEAD") {
        methods.push("HEAD");
    }
    methods
}

/// The names of hosts of a condition, and its networks.
pub(crate) fn hosts_of<'r>(parts: &RuleParts<'r>) -> (Vec<&'r str>, Vec<&'r str>) {
    let hosts = parts.hosts.iter().map(|host| &**host);
    hosts.partition(|host| !host.contains('/') && host.parse::<IpAddr>().is_err())
}

/// Alternatives of a regular expression.
pub(crate) fn any_of(texts: impl IntoIterator<Item = String>) -> String {
    let texts: Vec<String> = texts.into_iter().collect();
    format!("({})", texts.join("|"))
}

/// A regular expression for a text. It has no blank, quote or byte that is not ASCII.
pub(crate) fn literal(text: &[u8]) -> String {
    use core::fmt::Write as _;
    let mut regex = String::new();
    for &byte in text {
        if byte.is_ascii_alphanumeric() || b"-_~/".contains(&byte) {
            regex.push(byte.into());
        } else {
            let _ = write!(regex, "\\x{byte:02X}");
        }
    }
    regex
}

/// A regular expression for the hosts with a name, which is lower case.
pub(crate) fn host(name: &str) -> String {
    let name = name.to_ascii_lowercase();
    match name.strip_prefix("*.") {
        Some(parent) => format!("[^ ]+\\.{}", literal(parent.as_bytes())),
        None => literal(name.as_bytes()),
    }
}

/// A regular expression for the paths of a pattern, without a query. `literal` tells paths apart
/// that end with a slash.
pub(crate) fn path(pattern: &str, is_literal: bool) -> String {
    let mut regex = String::new();
    for component in pattern.split('/').filter(|component| !component.is_empty()) {
        match component {
            "*" => regex += "/[^/]+",
            "**" => regex += "(/[^/]+)*",
            component => {
                regex.push('/');
                regex += &literal(&decoded(component));
            }
        }
    }
    if regex.is_empty() {
        regex.push('/');
    } else if !is_literal || pattern.ends_with('/') || pattern.ends_with("**") {
        regex += "/?";
    }
    regex
}

/// A component without its escapes.
fn decoded(component: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = component.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let escaped = after.get(..2).filter(|_| byte == b'%');
        let escaped = escaped
            .and_then(|digits| str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(escaped.unwrap_or(byte));
        rest = match escaped {
            Some(_) => &after[2..],
            None => after,
        };
    }
    bytes
}
