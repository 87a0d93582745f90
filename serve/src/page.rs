//! The page for people: who is throttled, and what would happen to a request. It reads only.
//!
//! Names of rules, keys and what a form says may be anything that a client chose, so all text goes
//! through [`Escaped`], and the browser loads nothing from elsewhere and runs no script but ours.

use core::fmt::{self, Display, Write as _};
use core::net::IpAddr;
use std::time::SystemTime;

use portcullis_core::Timestamp;
use portcullis_policy::{Considered, Explained, Policy, Request, Rule};

use crate::counts::{Answered, Counts, Denials, Denied, RefusedFile};
use crate::stores::StoreState;

pub(crate) const STYLE: &str = include_str!("page/page.css");
pub(crate) const SCRIPT: &str = include_str!("page/page.js");

/// What a browser may do with the page.
pub(crate) const SECURITY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
     connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// The number of keys that are shown.
const KEYS: usize = 20;

/// The head of a column of denials that were not enforced.
const IN_SHADOW: &str = "would be denied";

/// Text in HTML, also in the value of an attribute.
struct Escaped<T>(T);

impl<T: Display> Display for Escaped<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.to_string().chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// A time in UTC, as RFC 3339 has it: with the date, because a file may be refused for days.
struct DateTime(SystemTime);

impl Display for DateTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::try_from(self.0) {
            Ok(time) => write!(f, "{time:.0}"),
            Err(_) => f.write_str("an unknown time"),
        }
    }
}

/// The whole page. The answer to the form is in it, if it was sent.
pub(crate) fn whole(counts: &Counts, stores: &[StoreState], query: Option<&str>) -> String {
    let question = Question::read(query.unwrap_or_default());
    let live = live(counts, stores);
    let answer = match query {
        Some(_) => question.answer(&counts.live().load()),
        None => String::new(),
    };
    let field = |label: &str, name: &str, value: &str| {
        let value = Escaped(value);
        format!("<label>{label} <input name=\"{name}\" value=\"{value}\"></label>\n")
    };
    let form = [
        field("Method", "method", &question.method),
        field("Path", "path", &question.path),
        field("Host", "host", &question.host),
        field("Address", "address", &question.address),
    ];
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>portcullis-serve</title>\n<link rel=\"stylesheet\" href=\"/page.css\">\n\
         <script src=\"/page.js\" defer></script>\n</head>\n<body>\n<h1>portcullis-serve</h1>\n\
         <main>\n<div id=\"live\">\n{live}</div>\n<h2 id=\"try\">What would happen to a request</h2>\n\
         <form action=\"/#try\">\n{}<label>Headers and properties, each as <code>name: value</code> \
         <textarea name=\"fields\" rows=\"3\">{}</textarea></label>\n\
         <button>Ask, without taking anything</button>\n</form>\n{answer}</main>\n</body>\n</html>\n",
        form.concat(),
        Escaped(&question.fields),
    )
}

/// What changes: the rules with their rates, and the keys that are denied most.
pub(crate) fn live(counts: &Counts, stores: &[StoreState]) -> String {
    let policy = counts.live().load();
    let mode = if counts.is_shadow() {
        "<strong>SHADOW: every request passes, and denials are only counted.</strong> "
    } else {
        ""
    };
    let mut html = format!(
        "<p>{mode}Generation {} of the policy, {} open connections of proxies.",
        policy.generation(),
        counts.connections()
    );
    for store in stores {
        let name = Escaped(&store.name);
        if !store.is_up() {
            let _ = write!(
                html,
                " <span class=\"bad\">The store {name} is away.</span>"
            );
        }
    }
    html.push_str("</p>\n");
    if let Some(RefusedFile { since, why }) = counts.refused_file() {
        let (since, why) = (DateTime(since), Escaped(why));
        let _ = writeln!(
            html,
            "<p class=\"bad\">The file is refused since {since}: {why}</p>"
        );
    }
    html.push_str("<h2>Rules</h2>\n");
    let pair = |name: &str| format!("<th class=\"n\">{name}</th><th class=\"n\">per second</th>");
    let pairs = ["allowed", "denied", IN_SHADOW].map(pair).concat();
    let heads = format!("<th>rule</th><th>limits</th>{pairs}");
    table(&mut html, "Rules", &heads, &rules(counts, &policy));
    let keys = counts.denied_keys();
    let is_enforced = |denied: &Denied| denied.1 && !counts.is_shadow();
    let (enforced, in_shadow): (Vec<_>, Vec<_>) = keys
        .into_iter()
        .partition(|(denied, _)| is_enforced(denied));
    denied_keys(&mut html, "Keys that are denied most", "denied", &enforced);
    let has_shadow = counts.is_shadow() || policy.rules().any(Rule::is_shadow);
    if has_shadow || !in_shadow.is_empty() {
        let name = "Keys that would be denied most, but pass in shadow";
        denied_keys(&mut html, name, IN_SHADOW, &in_shadow);
    }
    html
}

/// Writes a table of the first keys.
fn denied_keys(html: &mut String, name: &str, denied: &str, keys: &[(Denied, Denials)]) {
    let mut rows = String::new();
    for ((rule, _, key), denials) in keys.iter().take(KEYS) {
        let (rule, key) = (Escaped(rule), Escaped(key));
        let Denials {
            count, per_second, ..
        } = denials;
        let _ = writeln!(
            rows,
            "<tr><td class=\"k\">{key}</td><td class=\"k\">{rule}</td>\
             <td class=\"n\">{count}</td><td class=\"n\">{per_second:.1}</td></tr>"
        );
    }
    let _ = writeln!(html, "<h2>{name}</h2>");
    let heads = format!(
        "<th>key</th><th>rule</th><th class=\"n\">{denied}</th><th class=\"n\">per second</th>"
    );
    table(html, name, &heads, &rows);
}

/// The place of an answer among those that allowed, those that denied, and those that would have
/// denied.
fn place(answer: &str, is_shadow: bool) -> usize {
    match answer {
        "allowed" | "exempt" => 0,
        "shadow_denied" => 2,
        _ if is_shadow => 2,
        _ => 1,
    }
}

/// A row for each rule.
fn rules(counts: &Counts, policy: &Policy) -> String {
    let (totals, rates) = (counts.decisions(), counts.rates());
    let mut rows = String::new();
    for rule in policy.rules() {
        let (mut sums, mut per_second) = ([0; 3], [0.0; 3]);
        let is_of_rule = |(name, _, _): &Answered| name == rule.name();
        for (answered, count) in totals.iter().filter(|(answered, _)| is_of_rule(answered)) {
            let at = place(answered.1, counts.is_shadow());
            sums[at] += count;
            per_second[at] += rates.get(answered).copied().unwrap_or(0.0);
        }
        let _ = write!(
            rows,
            "<tr><td class=\"k\">{}{}</td><td>{}</td>",
            Escaped(rule.name()),
            if rule.is_shadow() { " (shadow)" } else { "" },
            Escaped(limits(rule)),
        );
        for (at, (sum, rate)) in sums.into_iter().zip(per_second).enumerate() {
            let class = if at == 1 && rate > 0.0 { " bad" } else { "" };
            // What a shadow rule allows is not counted.
            let sum = match (at, sum) {
                (0, 0) if rule.is_shadow() => "-".to_owned(),
                _ => sum.to_string(),
            };
            let _ = write!(
                rows,
                "<td class=\"n\">{sum}</td><td class=\"n{class}\">{rate:.1}</td>"
            );
        }
        rows.push_str("</tr>\n");
    }
    rows
}

/// Writes a table with a name. If it is wider than the page, it is scrolled by itself, also with
/// keys.
fn table(html: &mut String, name: &str, head: &str, rows: &str) {
    if rows.is_empty() {
        html.push_str("<p>None.</p>\n");
        return;
    }
    let _ = write!(
        html,
        "<div class=\"wide\" role=\"region\" tabindex=\"0\" aria-label=\"{name}\">\
         <table aria-label=\"{name}\">\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n\
         </table></div>\n"
    );
}

/// The limits of a rule.
fn limits(rule: &Rule) -> String {
    let limits: Vec<_> = rule.limits().iter().map(ToString::to_string).collect();
    limits.join(", ")
}

/// A request that a person asks about.
#[derive(Default)]
struct Question {
    method: String,
    path: String,
    host: String,
    address: String,
    /// Lines of a name and a value.
    fields: String,
}

impl Question {
    fn read(query: &str) -> Self {
        let mut question = Self {
            method: "GET".into(),
            path: "/".into(),
            ..Self::default()
        };
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let of = match &*name {
                "method" => &mut question.method,
                "path" => &mut question.path,
                "host" => &mut question.host,
                "address" => &mut question.address,
                "fields" => &mut question.fields,
                _ => continue,
            };
            value.trim().clone_into(of);
        }
        question
    }

    /// What each rule would say. Takes nothing.
    fn answer(&self, policy: &Policy) -> String {
        let pair = |line: &'_ str| {
            let (name, value) = line.split_once(':')?;
            Some((name.trim().to_owned(), value.trim().to_owned()))
        };
        let fields: Vec<_> = self.fields.lines().filter_map(pair).collect();
        let mut request = Request::new(&self.method, &self.path)
            .host(&self.host)
            .headers(&fields)
            .properties(&fields);
        match self.address.parse::<IpAddr>() {
            Ok(address) => request = request.address(address),
            Err(_) if self.address.is_empty() => {}
            Err(_) => return "<p class=\"bad\">The address is not valid.</p>\n".into(),
        }
        let now = policy.now();
        let explained = match policy.explain_at(now, &request) {
            Ok(explained) => explained,
            Err(error) => return format!("<p class=\"bad\">Denied: {}</p>\n", Escaped(error)),
        };
        let mut rows = String::new();
        for each in explained.iter().filter(|each| is_asked(each)) {
            let class = match (each.decides, each.rule.is_shadow()) {
                (true, _) => "",
                (false, true) => " (shadow)",
                (false, false) => " (not asked)",
            };
            let key: Vec<_> = policy
                .key_values(each.rule, &request)
                .iter()
                .map(|value| value.to_string())
                .collect();
            let _ = writeln!(
                rows,
                "<tr><td class=\"k\">{}{class}</td><td class=\"k\">{}</td><td>{}</td></tr>",
                Escaped(each.rule.name()),
                Escaped(key.join(", ")),
                Escaped(says(&each.considered, now)),
            );
        }
        let mut html = String::new();
        table(
            &mut html,
            "What each rule says",
            "<th>rule</th><th>key</th><th>says</th>",
            &rows,
        );
        if !explained.iter().any(|each| each.decides) {
            html.push_str("<p>Allowed: no rule decides.</p>\n");
        }
        html
    }
}

/// Whether the conditions of a rule match.
fn is_asked(explained: &Explained<'_>) -> bool {
    !matches!(
        explained.considered,
        Considered::Disabled | Considered::Mismatch(_) | Considered::Counts
    )
}

/// What a rule says, in words.
fn says(considered: &Considered<'_>, now: Timestamp) -> String {
    match considered {
        Considered::Skipped => "skipped: the request lacks a part of the key".into(),
        Considered::NoAddress => "denied: the request has no address".into(),
        Considered::Unidentified => "denied: the request lacks a part of the key".into(),
        Considered::Exempt => "allowed: the client is exempt".into(),
        Considered::Stored { store, .. } => format!("the store {store} is asked"),
        Considered::Limits {
            is_penalized: true, ..
        } => "denied: a penalty is in force".into(),
        Considered::Limits {
            limits, details, ..
        } => {
            let is_allowed = details.iter().all(|detail| detail.decision.is_ok());
            let mut text = if is_allowed { "allowed" } else { "denied" }.to_owned();
            for (limit, detail) in limits.iter().zip(details) {
                let _ = write!(text, "; {limit}: {} left", detail.available);
                if detail.decision.is_err()
                    && let Some(wait) = detail.retry.wait_from(now)
                {
                    let _ = write!(text, ", again in {:.1} s", wait.as_secs_f64());
                }
            }
            text
        }
        other => format!("{other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_a_date_also_around_leap_days() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_795_822_079, "2026-11-27T23:27:59Z"),
            (1_798_761_599, "2026-12-31T23:59:59Z"),
            (1_798_761_600, "2027-01-01T00:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            let time = SystemTime::UNIX_EPOCH + core::time::Duration::from_secs(seconds);
            assert_eq!(DateTime(time).to_string(), expected);
        }
    }

    #[test]
    fn text_cannot_become_markup() {
        let text = Escaped("<b a='1' c=\"2\">&").to_string();
        assert_eq!(text, "&lt;b a=&#39;1&#39; c=&quot;2&quot;&gt;&amp;");
    }
}
