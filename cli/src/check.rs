//! `portcullis check`: whether the rules of a file are valid, and which of them a request matches.

use core::fmt::Write as _;
use std::io::{self, Write};
use std::process::ExitCode;

use portcullis_core::Timestamp;
use portcullis_core::limiter::Detail;
use portcullis_policy::{Considered, Explained, Kind, Mismatch, Outcome, Policy, Request, Rule};

use crate::args::{CheckArgs, RequestArgs};
use crate::failure::Failure;
use crate::limit::kind_name;
use crate::policy_file::PolicyFile;
use crate::text::{counted, grouped, visible};

/// Prints that the rules are valid, or all errors of the file. If there is a request, prints for
/// each rule whether it matches, and what its limits would answer.
///
/// # Errors
///
/// [`Failure::Refused`] if the file cannot be read, [`Failure::Output`] if the result cannot be
/// written.
pub(crate) fn run(args: &CheckArgs) -> Result<ExitCode, Failure> {
    let file = PolicyFile::read(&args.files, args.policy_format)?;
    let policy = match file.policy() {
        Ok(policy) => policy,
        Err(errors) => {
            eprintln!("portcullis: {}", file.report(&errors));
            return Ok(ExitCode::FAILURE);
        }
    };
    let rules = counted(policy.rules().len() as u64, ("rule", "rules"));
    let tables = tables(policy.table_bytes());
    let mut text = format!("{}: valid, {rules}{tables}\n", file.name());
    if file.is_for_serve() {
        let _ = writeln!(
            text,
            "{}: the table serve is not read here: portcullis-serve --check does",
            file.name()
        );
    }
    text += &shared(&policy);
    text += &held(&policy);
    if let Some(request) = &args.request {
        text += &explanation(&policy, &args.about, request);
    }
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    if args.deny_warnings && file.has_warned() {
        eprintln!("portcullis: {}: warnings are denied", file.name());
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// How much memory the tables of the rules take, if that is 10 MB or more.
fn tables(bytes: usize) -> String {
    let megabytes = (bytes as u64).div_ceil(1_000_000);
    if megabytes < 10 {
        return String::new();
    }
    format!(", tables of {} MB", grouped(megabytes))
}

/// The name of a rule, which may contain anything, for a terminal.
fn named(rule: &Rule) -> String {
    visible(rule.name().as_bytes())
}

/// Which rates all requests share: a line for each rule that has one and no key.
fn shared(policy: &Policy) -> String {
    let mut text = String::new();
    for rule in policy.rules().filter(|rule| rule.parts().key.is_empty()) {
        let limits = rule.limits().iter().filter(|limit| !limit.is_held());
        let limits: Vec<String> = limits.map(ToString::to_string).collect();
        if !limits.is_empty() {
            let _ = writeln!(
                text,
                "  {}: {} is for all requests of the rule together, because it has no key",
                named(rule),
                limits.join(", ")
            );
        }
    }
    text
}

/// Who enforces the limits at once: a line for each rule that has one.
fn held(policy: &Policy) -> String {
    let mut text = String::new();
    for rule in policy.rules() {
        let limits = rule.limits().iter().filter(|limit| limit.is_held());
        let limits: Vec<String> = limits.map(ToString::to_string).collect();
        if !limits.is_empty() {
            let _ = writeln!(
                text,
                "  {}: {} is for a program that sees when a request ends. portcullis-serve does \
                 not, and leaves it out: set it in the proxy",
                named(rule),
                limits.join(", ")
            );
        }
    }
    text
}

/// The kinds of rules, in the order in which a request is decided for them.
const KINDS: [Kind; 5] = [
    Kind::Request,
    Kind::Burst,
    Kind::Concurrency,
    Kind::Ingress,
    Kind::Egress,
];

/// The result of each rule for a request, and the decision for each kind, until one denies.
fn explanation(policy: &Policy, about: &RequestArgs, (method, path): &(String, String)) -> String {
    let mut request = Request::new(method, path)
        .host(&about.host)
        .tier(&about.tier)
        .headers(&about.headers)
        .properties(&about.properties)
        .cost(about.cost);
    if let Some(address) = about.address {
        request = request.address(address);
    }
    let is_asked = |kind: &Kind| policy.rules_of(*kind).any(Rule::is_enabled);
    let kinds: Vec<Kind> = match about.kind {
        Some(kind) => vec![kind],
        None => KINDS.into_iter().filter(is_asked).collect(),
    };
    let mut text = format!("\n{method} {path}\n");
    let [kind] = *kinds else {
        let mut denied = false;
        for &kind in &kinds {
            let name = kind_name(kind);
            if denied {
                let _ = writeln!(text, "\nkind {name}: not asked");
                continue;
            }
            let _ = writeln!(text, "\nkind {name}:");
            denied = !explain(&mut text, policy, &request.kind(kind), true);
        }
        if kinds.is_empty() {
            explain(&mut text, policy, &request, false);
        } else {
            let answer = if denied { "denied" } else { "allowed" };
            let _ = writeln!(text, "\n=> {answer}");
        }
        return text;
    };
    explain(&mut text, policy, &request.kind(kind), false);
    text
}

/// Writes the result of each rule for a request of one kind, or only of the rules of this kind, and
/// the decision. Returns whether the request is allowed.
fn explain(text: &mut String, policy: &Policy, request: &Request<'_>, only_kind: bool) -> bool {
    // No permit was taken before. A path that is too long or unclear is judged by no
    // rule.
    if let Ok(mut explained) = policy.explain_at(Timestamp::ZERO, request) {
        let is_other = |each: &Explained<'_>| {
            only_kind && matches!(each.considered, Considered::Mismatch(Mismatch::Kind))
        };
        explained.retain(|each| !is_other(each));
        let name = |each: &Explained<'_>| named(each.rule);
        let names = explained.iter().map(|each| name(each).chars().count());
        let width = names.max().unwrap_or(0);
        let mut decides = None;
        for each in &explained {
            let name = name(each);
            let key = policy.key_values(each.rule, request).to_string();
            let verdict = verdict(each, decides.as_deref(), &key);
            let _ = writeln!(text, "  {name:width$}  {verdict}");
            if each.decides && !each.rule.is_continuing() {
                decides = Some(name);
            }
        }
    }
    let decision = policy.decide_explained_at(Timestamp::ZERO, request);
    let answer = if decision.is_allowed() {
        "allowed"
    } else {
        "denied"
    };
    let _ = match (decision.rule(), decision.outcome()) {
        (Some(rule), Outcome::Stored) => writeln!(
            text,
            "=> decided by {} in the store {}, which is not asked here",
            named(rule),
            visible(rule.store().unwrap_or_default().as_bytes())
        ),
        (Some(rule), _) => {
            let left = decision.details().map(|each| {
                let Detail {
                    available,
                    capacity,
                    ..
                } = each.detail;
                format!("{} has {available} of {capacity} left", each.limit)
            });
            let left: Vec<String> = left.collect();
            match &*left.join(", ") {
                "" => writeln!(text, "=> {answer} by {}", named(rule)),
                left => writeln!(text, "=> {answer} by {}: {left}", named(rule)),
            }
        }
        (None, Outcome::Path(error)) => writeln!(text, "=> {answer}: {error}"),
        (None, _) => writeln!(text, "=> {answer}: no rule decides"),
    };
    decision.is_allowed() || decision.outcome() == Outcome::Stored
}

/// What a rule says. `decided` is the rule before it after which no other is asked, `key` the key
/// of the request.
fn verdict(explained: &Explained<'_>, decided: Option<&str>, key: &str) -> String {
    let of_key = match key {
        "" => String::new(),
        key => format!(", key {}", visible(key.as_bytes())),
    };
    let answer = match &explained.considered {
        Considered::Disabled => return "disabled".into(),
        Considered::Mismatch(mismatch) => return format!("no match: {}", why(*mismatch)),
        Considered::Skipped => {
            return "skipped: the request lacks a part of the key".into();
        }
        Considered::Counts => return "counts activity: it has no limits".into(),
        Considered::NoAddress => "denied: the request has no address".into(),
        Considered::Unidentified => "denied: the request lacks a part of the key".into(),
        Considered::Exempt => "allowed: the client is exempt".into(),
        Considered::Limits {
            limits, details, ..
        } => {
            let all: Vec<String> = limits
                .iter()
                .zip(details)
                .map(|(limit, detail)| {
                    let queue = match limit.queue_limit() {
                        0 => String::new(),
                        permits => format!(" (up to {permits} can wait)"),
                    };
                    match detail.decision {
                        Ok(()) => format!("{limit} has {} left{queue}", detail.available),
                        Err(denied) => format!("{limit}: {denied}"),
                    }
                })
                .collect();
            match details.iter().all(Detail::is_allowed) {
                true if all.is_empty() => "allowed: no limits".into(),
                true => format!("allowed{of_key}: {}", all.join(", ")),
                false => format!("denied{of_key}: {}", all.join(", ")),
            }
        }
        Considered::Stored { store, limits } => {
            let limits: Vec<String> = limits.iter().map(ToString::to_string).collect();
            let store = visible(store.as_bytes());
            format!("the store {store} is asked{of_key}: {}", limits.join(", "))
        }
        other => format!("{other:?}"),
    };
    match decided {
        Some(rule) => format!("not asked: {rule} decides"),
        None if explained.decides => format!("decides: {answer}"),
        None => format!("shadow: {answer}"),
    }
}

/// What of a request a rule is not for.
fn why(mismatch: Mismatch<'_>) -> String {
    match mismatch {
        Mismatch::Kind => "another kind".into(),
        Mismatch::Method => "another method".into(),
        Mismatch::Path => "another path".into(),
        Mismatch::Host => "another host or address".into(),
        Mismatch::Tier => "another tier".into(),
        Mismatch::Property(name) => {
            let name = visible(name.as_bytes());
            format!("without a listed value of the property {name}")
        }
        other => format!("{other:?}"),
    }
}
