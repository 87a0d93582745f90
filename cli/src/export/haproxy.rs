//! The configuration of HAProxy: stick tables, and rules that deny.
//!
//! ```text
//! txn.portcullis_end   set once a rule has decided
//! txn.portcullis_N     set if rule N limits the request
//! track-sc             the entry of the key, in a table for each limit
//! deny                 if an entry has no permit
//! sc-inc-gpc0          counts a request that no limit has denied
//! ```
//!
//! HAProxy estimates the requests of the last period: those of the current one, and a share of
//! those of the one before. A rate of N in a period with a burst of B is B in the time that fills
//! the bucket.
//!
//! **Bound.** In any k periods at most (k + 1) * B of one key: that of the token bucket. For each
//! thread besides the first, one more: it may count at the same time.

use core::fmt::Write as _;

use portcullis_policy::{KeyPart, Limit, OnMissing, RuleParts};

use super::ALSO;
use super::plan::{
    Plan, Planned, Says, Unsaid, any_of, headers_of, host, hosts_of, literal, methods_of, path,
    required_headers,
};
use crate::text::visible;

pub(crate) struct Haproxy;

/// The longest period in milliseconds, twice which is kept.
const MAX_MILLIS: u128 = 1_000_000_000;

impl Says for Haproxy {
    fn conditions(&self, _: &RuleParts<'_>) -> Option<String> {
        None
    }

    fn key(&self, parts: &RuleParts<'_>) -> Option<String> {
        let has_path = parts.key.contains(&KeyPart::Path);
        has_path.then(|| "a path has several spellings there, which are several keys".into())
    }

    fn limit(&self, limit: &Limit) -> Option<String> {
        if limit.count() == 0 || limit.period().is_none() {
            return None;
        }
        if limit.is_stepwise() {
            return Some("permits do not come in by steps there".into());
        }
        if limit.is_strict() {
            return Some("a rate there is an estimate, and not strict".into());
        }
        match filled(limit) {
            Some(millis) if millis <= MAX_MILLIS && limit.capacity() <= u32::MAX.into() => None,
            _ => Some("a period there has at most 11 days".into()),
        }
    }

    fn only_status(&self, _: u16) -> Option<u16> {
        None
    }
}

/// In how many milliseconds all permits of a limit return.
fn filled(limit: &Limit) -> Option<u128> {
    let nanos = limit.period()?.as_nanos();
    let all = nanos.checked_mul(limit.capacity().into())?;
    Some(all.div_ceil(u128::from(limit.count()) * 1_000_000).max(1))
}

/// The statuses that `deny` has.
const DENIES: [u16; 16] = [
    400, 401, 403, 404, 405, 407, 408, 410, 413, 425, 429, 500, 501, 502, 503, 504,
];

fn deny(status: u16) -> String {
    if DENIES.contains(&status) {
        format!("http-request deny deny_status {status}")
    } else {
        format!("http-request return status {status}")
    }
}

/// The conditions of a rule: alternatives, each a list that must hold.
fn conditions(rule: &Planned<'_>, plan: &Plan<'_>) -> Vec<String> {
    let parts = &rule.parts;
    let mut all = String::new();
    let methods = methods_of(parts);
    if !methods.is_empty() {
        let _ = write!(all, " {{ method {} }}", methods.join(" "));
    }
    if !parts.paths.is_empty() {
        let paths = any_of(parts.paths.iter().map(|text| path(text, plan.literal)));
        let case = if plan.ignore_case { " -i" } else { "" };
        let _ = write!(all, " {{ path,url_dec{case} -m reg '^{paths}$' }}");
    }
    for name in required_headers(parts) {
        let _ = write!(all, " {{ req.fhdr({name},1) -m reg . }}");
    }
    let (names, networks) = hosts_of(parts);
    let mut alternatives = Vec::new();
    if !names.is_empty() {
        let hosts = any_of(names.into_iter().map(host));
        alternatives.push(format!(
            "{all} {{ req.fhdr(host,1) -i -m reg '^{hosts}(:[0-9]*)?$' }}"
        ));
    }
    if !networks.is_empty() {
        alternatives.push(format!("{all} {{ src {} }}", networks.join(" ")));
    }
    if alternatives.is_empty() {
        alternatives.push(all);
    }
    alternatives
}

/// The type of the table of a key, and the sample that selects the entry.
fn key_of(rule: &Planned<'_>) -> (&'static str, String) {
    match &rule.parts.key[..] {
        [] => ("integer", "int(1)".into()),
        [KeyPart::Address { v4, v6 }] => ("ipv6", format!("src,ipmask({v4},{v6})")),
        _ => (
            "binary len 20",
            format!("var(txn.portcullis_key_{}),sha1", rule.number),
        ),
    }
}

/// The parts of a key as a text. No part has the separator.
fn parts_of(parts: &RuleParts<'_>) -> String {
    let part = |part: &KeyPart<'_>| match part {
        KeyPart::Address { v4, v6 } => format!("%[src,ipmask({v4},{v6})]"),
        KeyPart::Host => "%[req.fhdr(host,1),field(1,:),lower,hex]".into(),
        KeyPart::Method => "%[method,regsub(^HEAD$,GET),hex]".into(),
        KeyPart::Header([name]) => format!("%[req.fhdr({name},1),hex]"),
        _ => String::new(),
    };
    let parts: Vec<String> = parts.key.iter().map(part).collect();
    parts.join("|")
}

/// Whether a rule limits a request.
fn limited(rule: &Planned<'_>) -> String {
    format!("{{ var(txn.portcullis_{}) -m found }}", rule.number)
}

/// Writes whether a rule limits a request, and whether it ends the search.
fn choose(rules: &mut String, rule: &Planned<'_>, plan: &Plan<'_>) {
    let number = rule.number;
    let name = visible(rule.rule.name().as_bytes());
    let _ = writeln!(rules, "    # {name}");
    let is_limited = limited(rule);
    for conditions in conditions(rule, plan) {
        let _ = writeln!(
            rules,
            "    http-request set-var(txn.portcullis_{number}) int(1) if !{{ var(txn.portcullis_end) -m found }}{conditions}"
        );
    }
    if rule.ends {
        let _ = writeln!(
            rules,
            "    http-request set-var(txn.portcullis_end) int(1) if {is_limited}"
        );
    }
    if rule.limits.is_empty() {
        return;
    }
    for (by, values) in &rule.parts.exempt {
        if let KeyPart::Header([name]) = by {
            let values = any_of(values.iter().map(|value| literal(value.as_bytes())));
            let _ = writeln!(
                rules,
                "    http-request unset-var(txn.portcullis_{number}) if {{ req.fhdr({name},1) -m reg '^{values}$' }}"
            );
        }
    }
    if !rule.parts.exempt_networks.is_empty() {
        let networks = rule.parts.exempt_networks.join(" ");
        let _ = writeln!(
            rules,
            "    http-request unset-var(txn.portcullis_{number}) if {{ src {networks} }}"
        );
    }
    if rule.parts.on_missing == OnMissing::Deny {
        for name in headers_of(&rule.parts) {
            let _ = writeln!(
                rules,
                "    http-request deny deny_status 503 if {is_limited} !{{ req.fhdr({name},1) -m reg . }}{ALSO}"
            );
        }
    }
}

/// Writes which paths are denied, because a service may read them in another way than the rules.
fn refuse_paths(rules: &mut String, plan: &Plan<'_>) {
    let asks_paths = plan.rules.iter().any(|rule| !rule.parts.paths.is_empty());
    if asks_paths && !plan.literal {
        *rules += "    # Paths that a service may read in another way than the rules.\n    \
                  http-request deny deny_status 400 if { path,url_dec -m reg '(//|/[.][.]?(/|$))' }\n";
    }
    if asks_paths && !plan.decode_slashes {
        *rules += "    http-request deny deny_status 400 if { path -i -m sub %2f }\n";
    }
}

/// The end of the line of the table of a limit, what denies by it, and what counts.
fn limit_lines(limit: &Limit, slot: usize, deny: &str, is_limited: &str) -> [String; 3] {
    match filled(limit) {
        Some(millis) => [
            format!(
                " expire {}ms store gpc0,gpc0_rate({millis}ms)\n",
                2 * millis
            ),
            format!(
                "    {deny} if {is_limited} {{ sc_gpc0_rate({slot}) ge {} }}{ALSO}\n",
                limit.capacity()
            ),
            format!("    http-request sc-inc-gpc0({slot}) if {is_limited}{ALSO}\n"),
        ],
        None => [
            "\n".into(),
            format!(
                "    {deny} if {is_limited} {{ sc_trackers({slot}) gt {} }}\n",
                limit.count()
            ),
            String::new(),
        ],
    }
}

/// What a proxy without limits begins with. It would have the last section before it otherwise, and
/// HAProxy refuses a backend that has the limits of a frontend.
const END: &str = "\n# For the proxies that do not name the section above.\n\
                   defaults\n    mode http\n";

/// How to load the file, and how many limits a request can have.
fn head(slots: usize) -> String {
    let mut text = String::from(
        "# Load this file before your own: haproxy -f portcullis.cfg -f haproxy.cfg. In yours, write\n\
         # `frontend NAME from portcullis` for the frontends that have the limits.\n",
    );
    if slots > 3 {
        let _ = write!(
            text,
            "\nglobal\n    # A request has more limits than three. Needs HAProxy 2.8 or newer.\n    \
             tune.stick-counters {slots}\n"
        );
    }
    text
}

/// Writes the rules of a plan, and returns what cannot be said.
pub(crate) fn write(plan: Plan<'_>) -> (String, Vec<Unsaid<'_>>) {
    let mut tables = String::new();
    let mut rules = String::new();
    let (mut tracks, mut denies, mut counts) = (String::new(), String::new(), String::new());
    refuse_paths(&mut rules, &plan);
    let (mut first_slot, mut slots) = (0, 0);
    for rule in &plan.rules {
        let number = rule.number;
        let is_limited = limited(rule);
        choose(&mut rules, rule, &plan);
        if rule.limits.is_empty() {
            continue;
        }
        let (kind, sample) = key_of(rule);
        if sample.starts_with("var") {
            let _ = writeln!(
                tracks,
                "    http-request set-var-fmt(txn.portcullis_key_{number}) \"{}\" if {is_limited}",
                parts_of(&rule.parts)
            );
        }
        let keys = if rule.parts.key.is_empty() {
            1
        } else {
            rule.parts.keys
        };
        let deny = deny(rule.rule.status());
        for (index, limit) in rule.limits.iter().enumerate() {
            if limit.count() == 0 {
                let _ = writeln!(denies, "    {deny} if {is_limited}{ALSO}");
                continue;
            }
            let (table, slot) = (
                format!("portcullis_{number}_{}", index + 1),
                first_slot + index,
            );
            slots = slots.max(slot + 1);
            let _ = write!(
                tables,
                "\nbackend {table}\n    stick-table type {kind} size {keys}"
            );
            let _ = writeln!(
                tracks,
                "    http-request track-sc{slot} {sample} table {table} if {is_limited}"
            );
            let [table, denial, count] = limit_lines(limit, slot, &deny, &is_limited);
            (tables, denies, counts) = (tables + &table, denies + &denial, counts + &count);
        }
        if !rule.ends {
            first_slot += rule.limits.len();
        }
    }
    let mut text = head(slots);
    let _ = write!(
        text,
        "{tables}\ndefaults portcullis\n    mode http\n{rules}{tracks}{denies}{counts}{END}"
    );
    (text, plan.unsaid)
}
