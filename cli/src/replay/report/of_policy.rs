//! The result of a replay of a policy.

use core::time::Duration;
use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use portcullis_policy::{Kind, Limit, Rule, RuleCounts, period_text};
use serde::Serialize;

use super::super::args::ReplayArgs;
use super::page::{Page, Section};
use super::{Input, Series, chart, json, shown};
use crate::limit::kind_name;
use crate::replay::Pass;
use crate::replay::needs::PERCENTAGES;
use crate::replay::policy::clients::Clients;
use crate::replay::policy::recommend::{
    Counts, Exception, LeftOut, Needs, Proposal, Recommended, Share, ShareOf,
};
use crate::replay::policy::waiting::Waiting;
use crate::replay::policy::{Activity, Trial};
use crate::text::{counted, grouped, per_second, percent, share, speed, visible};

/// The result of a replay of a policy. The field names are those of the JSON object.
#[derive(Debug, Serialize)]
pub(crate) struct PolicyReport {
    policy: String,
    #[serde(flatten)]
    input: Input,
    allowed: u64,
    denied: u64,
    /// Requests that no rule decided.
    without_rule: u64,
    /// Requests that were denied because of their path.
    refused_paths: u64,
    /// Requests that a shadow rule would have denied.
    shadow_denied: u64,
    /// Keys that were judged, each of a rule, up to a million.
    keys: usize,
    /// Requests whose address is missing or not an IP address.
    without_address: u64,
    /// What the rules read and no line has.
    never_logged: Vec<String>,
    /// Rules that cannot be replayed.
    not_replayed: Vec<String>,
    rules: Vec<OfRule>,
    /// The wanted share of denials, in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    recommend: Option<f64>,
    /// What it is a share of.
    #[serde(skip_serializing_if = "Option::is_none")]
    recommend_by: Option<String>,
    series: Series,
    decisions_per_s: f64,
    /// By how much the count of a denied key may be too low.
    #[serde(skip)]
    most_missed: u64,
    #[serde(skip)]
    keys_are_all: bool,
    #[serde(skip)]
    by: ShareOf,
}

/// What one rule decided.
#[derive(Debug, Serialize)]
struct OfRule {
    rule: String,
    kind: &'static str,
    shadow: bool,
    asked: u64,
    allowed: u64,
    denied: u64,
    exempt: u64,
    unidentified: u64,
    penalized: u64,
    crowded: u64,
    /// Denied by limits that keys have in place of those of the rule.
    overridden: u64,
    limits: Vec<OfLimit>,
    /// Whether any of the limits is over a period.
    #[serde(skip)]
    has_periods: bool,
    /// The lines that a rule with thresholds matches.
    #[serde(skip_serializing_if = "Option::is_none")]
    reported: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    thresholds: Vec<OfThreshold>,
    /// The number of keys that were denied, as far as they are counted.
    denied_keys: usize,
    top: Vec<DeniedKey>,
    #[serde(skip_serializing_if = "Option::is_none")]
    recommended: Option<OfSearch>,
}

/// Why a limit at once denies nothing here.
const HELD: &str = ": a log does not tell how many requests are under way";

#[derive(Debug, Serialize)]
struct OfLimit {
    limit: String,
    #[serde(skip)]
    is_held: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    denied: u64,
}

/// A decision that thresholds put in force.
#[derive(Debug, Serialize)]
struct OfThreshold {
    decision: String,
    at: String,
    /// The lines at which it was in force.
    in_force: u64,
}

#[derive(Debug, Serialize)]
struct DeniedKey {
    key: String,
    denied: u64,
    /// By how much the count may be too high.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<u64>,
}

/// The limits that were found for a rule.
#[derive(Debug, Serialize)]
struct OfSearch {
    /// `None` if no limit denies little enough, or no line has the key.
    limits: Option<Vec<String>>,
    #[serde(flatten)]
    counts: Counts,
    /// A part of the key that no line has.
    #[serde(skip_serializing_if = "Option::is_none")]
    missing_key: Option<String>,
    /// The requests of all keys.
    requests: u64,
    /// Keys that look like abuse, and do not count.
    left_out: Vec<LeftOut>,
    /// Keys with limits of their own, which do not count.
    own_limits: Vec<OfException>,
    /// Whether all requests share the limits.
    #[serde(skip)]
    is_shared: bool,
    /// Why the limits are not smaller.
    #[serde(skip_serializing_if = "Option::is_none")]
    set_by: Option<OfSetter>,
    /// Whether a limit has a period of an hour or more.
    #[serde(skip)]
    has_long: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    needs: Option<OfNeeds>,
}

/// The key that sets the limits.
#[derive(Debug, Serialize)]
struct OfSetter {
    key: String,
    requests: u64,
    /// How many keys need these limits.
    keys: u64,
    /// The limits without the key; `None` if they are the same.
    without: Option<Vec<String>>,
}

/// A key with limits of its own.
#[derive(Debug, Serialize)]
struct OfException {
    key: String,
    limits: Vec<String>,
    requests: u64,
    second: u64,
    minute: u64,
    /// Its requests that its limits deny.
    #[serde(skip_serializing_if = "Option::is_none")]
    denied: Option<u64>,
}

impl OfException {
    fn new(exception: &Exception) -> Self {
        Self {
            key: exception.key.clone(),
            limits: exception.limits.iter().map(text).collect(),
            requests: exception.requests,
            second: exception.second,
            minute: exception.minute,
            denied: exception.denied,
        }
    }

    /// Returns the key and what it needs as a line of text.
    fn line(&self) -> String {
        let denied = match self.denied {
            _ if self.limits.is_empty() => "; nothing limits it".into(),
            Some(denied) => format!("; {} denied by {}", grouped(denied), self.limits.join(", ")),
            None => String::new(),
        };
        format!(
            "has limits of its own, so it does not count: {}: {}, up to {} in a minute and {} in a \
             second{denied}",
            visible(self.key.as_bytes()),
            counted(self.requests, ("request", "requests")),
            grouped(self.minute),
            grouped(self.second),
        )
    }
}

/// An hourly limit helps if one in so many requests of a key that looks like abuse passes, and the
/// key needs twice as many in an hour as every other.
const MUCH: u64 = 4;

/// A period that is long enough to stop a key that is slow.
const LONG: Duration = Duration::from_hours(1);

/// The number of keys shown that do not count.
const SHOWN_LEFT_OUT: usize = 10;

/// What a proposal for all requests does not say.
const SHARED: &str = "all requests share it, so it only follows past traffic: a log does not tell \
                      how many requests the service can take";

/// What keys need: permits for each percentage of the keys.
#[derive(Debug, Serialize)]
struct OfNeeds {
    keys: usize,
    second: BTreeMap<String, u64>,
    minute: BTreeMap<String, u64>,
    hour: BTreeMap<String, u64>,
    day: BTreeMap<String, u64>,
}

impl OfNeeds {
    fn new(needs: &Needs) -> Self {
        let named = |values: [u64; 5]| {
            let names = PERCENTAGES.map(|percent| format!("p{percent}"));
            names.into_iter().zip(values).collect()
        };
        Self {
            keys: needs.keys,
            second: named(needs.second),
            minute: named(needs.minute),
            hour: named(needs.hour),
            day: named(needs.day),
        }
    }
}

impl OfSearch {
    /// Returns what is denied of the keys that look like abuse, for the end of the first line.
    fn of_left_out(&self) -> String {
        if self.left_out.is_empty() {
            return String::new();
        }
        let denied = || self.left_out.iter().filter_map(|each| each.denied);
        let requests = self.left_out.iter().map(|each| each.requests).sum();
        format!(
            "; and of the keys left out {} of {}, {} of {}",
            denied().filter(|&denied| denied > 0).count(),
            self.left_out.len(),
            grouped(denied().sum()),
            counted(requests, ("request", "requests"))
        )
    }

    /// Appends the key that sets the limits to `lines`.
    fn set_by_in(&self, lines: &mut Vec<String>) {
        if self.is_shared && self.limits.is_some() {
            lines.push(SHARED.into());
            return;
        }
        let Some(OfSetter {
            key,
            requests,
            keys,
            without,
        }) = &self.set_by
        else {
            if self.limits.is_some() {
                lines.push("set by no key: there is no smaller limit".into());
            }
            return;
        };
        let key = match &**key {
            "" => "all requests".into(),
            key => visible(key.as_bytes()),
        };
        let key = format!(
            "{key} ({}, {} of the rule)",
            counted(*requests, ("request", "requests")),
            share(*requests, self.requests)
        );
        lines.push(match without {
            Some(without) => format!("set by {key}; without it {}", without.join(", ")),
            None if *keys > 1 => format!("set by {} keys, such as {key}", grouped(*keys)),
            None => format!("set by {key}; without it the same"),
        });
    }

    /// Appends the keys with limits of their own to `lines`.
    fn own_limits_in(&self, lines: &mut Vec<String>) {
        let shown_ones = self.own_limits.iter().take(SHOWN_LEFT_OUT);
        lines.extend(shown_ones.map(OfException::line));
        lines.extend(more(self.own_limits.len()));
    }

    /// Appends the keys that look like abuse to `lines`.
    fn left_out_in(&self, lines: &mut Vec<String>) {
        let shown_ones = self.left_out.iter().take(SHOWN_LEFT_OUT);
        lines.extend(shown_ones.map(|each| {
            let requests = counted(each.requests, ("request", "requests"));
            let passes = each.passes.map_or_else(String::new, |passes| {
                let all = grouped(each.requests);
                format!("; still passes {} of its {all} requests", grouped(passes))
            });
            format!(
                "left out, as it looks like abuse: {}: {requests}, {}{passes}",
                visible(each.key.as_bytes()),
                each.why
            )
        }));
        lines.extend(more(self.left_out.len()));
        let Some(needs) = self.needs.as_ref().filter(|_| !self.left_out.is_empty()) else {
            return;
        };
        let most = |of: &BTreeMap<String, u64>| grouped(of.get("p100").copied().unwrap_or(0));
        let minute = most(&needs.minute);
        lines.push(format!(
            "every other key has at most {minute} in a minute; --all-keys counts all"
        ));
        let hour = needs.hour.get("p100").copied().unwrap_or(0);
        let helps = |each: &LeftOut| {
            let passes = each.passes.unwrap_or(0);
            passes.saturating_mul(MUCH) >= each.requests && each.hour / 2 >= hour
        };
        if !self.has_long && self.left_out.iter().any(helps) {
            let hour = grouped(hour);
            lines.push(format!(
                "an hourly limit beside it helps: every other key has at most {hour} in an hour"
            ));
        }
    }

    fn new(rule: &Rule, proposal: &Proposal) -> Option<Self> {
        let texts = |limits: &[Limit]| limits.iter().map(text).collect();
        let periods = rule.limits().iter().filter_map(Limit::period);
        let set_by = proposal.set_by.as_ref().map(|set_by| OfSetter {
            key: set_by.key.clone(),
            requests: set_by.requests,
            keys: set_by.keys,
            without: set_by.without.as_deref().map(texts),
        });
        let (limits, counts, missing_key) = match &proposal.result {
            Recommended::Nothing => return None,
            Recommended::Impossible => (None, Counts::default(), None),
            Recommended::NoKey(part) => (None, Counts::default(), Some(part.clone())),
            Recommended::Limits(limits, counts) => (Some(texts(limits)), *counts, None),
        };
        Some(Self {
            limits,
            counts,
            missing_key,
            requests: proposal.requests,
            left_out: proposal.left_out.clone(),
            own_limits: proposal.exceptions.iter().map(OfException::new).collect(),
            is_shared: proposal.is_shared,
            set_by,
            has_long: periods.max() >= Some(LONG),
            needs: proposal.needs.as_ref().map(OfNeeds::new),
        })
    }
}

/// The line about the keys that are not shown, of so many.
fn more(keys: usize) -> Option<String> {
    let more = keys.checked_sub(SHOWN_LEFT_OUT).filter(|&more| more > 0)?;
    let more = counted(more as u64, ("more key", "more keys"));
    Some(format!("and {more}: see --json"))
}

/// A limit, with its burst if that is not its count.
fn text(limit: &Limit) -> String {
    if limit.capacity() == limit.count() {
        limit.to_string()
    } else {
        format!("{limit} burst {}", limit.capacity())
    }
}

impl OfRule {
    fn new(rule: &Rule, counts: &RuleCounts, activity: Option<&Activity>) -> Self {
        let in_force = activity.map_or(&[][..], |activity| &activity.in_force);
        let limits = rule.limits().iter().zip(&counts.by_limit);
        Self {
            rule: rule.name().into(),
            kind: kind_name(rule.kind()),
            shadow: rule.is_shadow(),
            asked: counts.asked(),
            allowed: counts.allowed + counts.exempt,
            denied: counts.denied(),
            exempt: counts.exempt,
            unidentified: counts.unidentified,
            penalized: counts.penalized,
            crowded: counts.crowded,
            overridden: counts.overridden,
            limits: limits
                .map(|(limit, &denied)| OfLimit {
                    limit: text(limit),
                    is_held: limit.is_held(),
                    name: limit.name().map(Into::into),
                    denied,
                })
                .collect(),
            has_periods: rule.limits().iter().any(|limit| limit.period().is_some()),
            reported: activity.map(|activity| activity.reported),
            thresholds: rule
                .thresholds()
                .iter()
                .zip(in_force)
                .map(|(threshold, &in_force)| OfThreshold {
                    decision: threshold.decision().into(),
                    at: format!("{}/{}", threshold.value(), period_text(threshold.window())),
                    in_force,
                })
                .collect(),
            denied_keys: 0,
            top: Vec::new(),
            recommended: None,
        }
    }

    /// Returns the name with what is special about the rule.
    fn heading(&self) -> String {
        let mut text = self.rule.clone();
        if self.kind != kind_name(Kind::Request) {
            text = format!("{text} ({})", self.kind);
        }
        if self.shadow {
            text.push_str(" (shadow)");
        }
        text
    }

    /// The reasons for denials other than limits of the rule, and why requests were allowed without
    /// them.
    fn other(&self) -> [(&'static str, u64); 5] {
        [
            ("a limit of an override", self.overridden),
            ("in a penalty", self.penalized),
            ("lacks a part of the key", self.unidentified),
            ("no room for the key: raise keys of the rule", self.crowded),
            ("exempt, so allowed", self.exempt),
        ]
    }
}

impl PolicyReport {
    /// Creates the report of the decisions of `trial`.
    pub(crate) fn new(
        args: &ReplayArgs,
        file: &Path,
        trial: &Trial,
        pass: &Pass<'_>,
        waiting: &Waiting,
        recommended: Option<&[Proposal]>,
    ) -> Self {
        let statistics = &trial.statistics;
        let is_ingress = |rule: &&Rule| rule.is_enabled() && rule.kind() == Kind::Ingress;
        let mut rules = Self::rules(trial, args.top);
        let proposals = trial.policy.rules().zip(recommended.unwrap_or_default());
        for (of_rule, (rule, proposal)) in rules.iter_mut().zip(proposals) {
            of_rule.recommended = OfSearch::new(rule, proposal);
        }
        let (keys, keys_are_all) = trial.keys.count();
        Self {
            policy: file.to_string_lossy().into_owned(),
            input: {
                let rules = trial.policy.rules();
                let limits = rules.flat_map(Rule::limits);
                Input::new(args, trial.clock, pass, limits.filter_map(Limit::period))
            },
            allowed: trial.total.allowed,
            denied: trial.total.denied,
            without_rule: trial.without_rule,
            refused_paths: statistics.refused_paths(),
            shadow_denied: trial.shadow_denied,
            keys,
            without_address: waiting.without_address(),
            never_logged: waiting.never_seen(),
            not_replayed: trial
                .policy
                .rules()
                .filter(is_ingress)
                .map(|rule| rule.name().into())
                .collect(),
            rules,
            recommend: args.recommend.map(Share::percent),
            recommend_by: args.recommend.map(|_| args.recommend_by.to_string()),
            by: args.recommend_by,
            series: Series::new(&trial.timeline),
            decisions_per_s: per_second(trial.clock.requests, pass.elapsed),
            most_missed: statistics.most_missed(),
            keys_are_all,
        }
    }

    /// Returns what was decided by each rule, with the `most` keys that were denied most often.
    fn rules(trial: &Trial, most: usize) -> Vec<OfRule> {
        let counts = trial.statistics.rules();
        let mut rules: Vec<_> = trial
            .policy
            .rules()
            .zip(&counts)
            .map(|(rule, counts)| OfRule::new(rule, counts, trial.activity.get(rule.name())))
            .collect();
        for denied in trial.statistics.most_denied(usize::MAX) {
            let Some(of_rule) = denied.rule.and_then(|rule| rules.get_mut(rule)) else {
                continue;
            };
            of_rule.denied_keys += 1;
            // The key that all requests share has no name.
            if of_rule.top.len() < most && !denied.text.is_empty() {
                of_rule.top.push(DeniedKey {
                    key: denied.text,
                    denied: denied.count,
                    error: (denied.error > 0).then_some(denied.error),
                });
            }
        }
        rules
    }

    /// Returns the page of what `clients` asked for.
    pub(crate) fn page<'a>(&self, clients: &'a Clients) -> Page<'a> {
        let sections = self.rules.iter().zip(&clients.rules);
        let sections = sections.map(|(rule, of_rule)| {
            let limits: Vec<_> = rule.limits.iter().map(|limit| &*limit.limit).collect();
            let keys = of_rule.keys.iter();
            Section {
                name: rule.heading(),
                limits: limits.join(", "),
                timeline: Some(&of_rule.timeline),
                clients: keys
                    .map(|(key, client)| (key.to_string(), client))
                    .collect(),
                recommended: self.proposed(rule),
            }
        });
        let mut facts = vec![("Policy", self.policy.clone())];
        facts.extend(self.input.facts(self.allowed, self.denied));
        Page {
            title: format!("Replay of {}", self.input.names()),
            facts,
            sections: sections.collect(),
        }
    }

    /// Prints the JSON object.
    ///
    /// # Errors
    ///
    /// Fails if standard output cannot be written.
    pub(crate) fn json(&self) -> io::Result<()> {
        json(self)
    }

    /// Prints a summary, with a chart over time.
    ///
    /// # Errors
    ///
    /// Fails if standard output cannot be written.
    pub(crate) fn summary(&self, trial: &Trial) -> io::Result<()> {
        let mut out = BufWriter::new(io::stdout().lock());
        self.input.heading(&mut out, "")?;
        let rules = counted(self.rules.len() as u64, ("rule", "rules"));
        let keys = counted(self.keys as u64, ("key", "keys"));
        let least = if self.keys_are_all { "" } else { "at least " };
        writeln!(out, "\n{}: {rules}, {least}{keys}\n", self.policy)?;
        self.input.counts(
            &mut out,
            &[
                ("allowed", self.allowed),
                ("denied", self.denied),
                ("no rule", self.without_rule),
            ],
        )?;
        for (count, what) in [
            (self.shadow_denied, "would be denied by a shadow rule"),
            (
                self.refused_paths,
                "denied because the path is too long, or unclear",
            ),
            (self.without_address, "without an IP address"),
        ] {
            if count > 0 {
                writeln!(out, "  {:<9} {:>12}  {what}", "", grouped(count))?;
            }
        }
        for name in &self.never_logged {
            writeln!(
                out,
                "  no line has {name}: the rules decide as if no request had it"
            )?;
        }
        for rule in &self.not_replayed {
            let why = "a log does not tell the size of requests";
            writeln!(
                out,
                "  rule {rule} is for ingress, and is not replayed: {why}"
            )?;
        }
        self.table(&mut out)?;
        for rule in &self.rules {
            self.most_denied(&mut out, rule)?;
        }
        if let Some(share) = self.recommend {
            self.recommended(&mut out, share)?;
        }
        chart(&mut out, &trial.timeline)?;
        writeln!(
            out,
            "\n{:.3} s, {} requests/s",
            self.input.elapsed_s,
            speed(self.decisions_per_s)
        )?;
        out.flush()
    }

    /// Prints one row for each rule, and one for each reason of its denials.
    fn table(&self, out: &mut impl Write) -> io::Result<()> {
        let width = self.rules.iter().map(|rule| rule.heading().len()).max();
        let width = width.unwrap_or(0).max(20);
        writeln!(
            out,
            "\n  {:<width$}  {:>12}  {:>12}  {:>12}",
            "rule", "asked", "allowed", "denied"
        )?;
        for rule in &self.rules {
            writeln!(
                out,
                "  {:<width$}  {:>12}  {:>12}  {:>12}  {:>5.1} %",
                rule.heading(),
                grouped(rule.asked),
                grouped(rule.allowed),
                grouped(rule.denied),
                percent(rule.denied, rule.asked),
            )?;
            let indent = width + 28;
            for of in &rule.limits {
                let (denied, why) = if of.is_held {
                    ("-".into(), HELD)
                } else {
                    (grouped(of.denied), "")
                };
                writeln!(out, "  {:indent$}  {denied:>12}  by {}{why}", "", of.limit)?;
            }
            for threshold in &rule.thresholds {
                let OfThreshold {
                    decision,
                    at,
                    in_force,
                } = threshold;
                let of_all = grouped(rule.reported.unwrap_or(0));
                let in_force = grouped(*in_force);
                writeln!(
                    out,
                    "  {:indent$}  {in_force:>12}  of {of_all}: {decision} in force ({at})",
                    ""
                )?;
            }
            for (why, count) in rule.other() {
                if count > 0 {
                    writeln!(out, "  {:indent$}  {:>12}  {why}", "", grouped(count))?;
                }
            }
        }
        Ok(())
    }

    fn most_denied(&self, out: &mut impl Write, rule: &OfRule) -> io::Result<()> {
        if rule.top.is_empty() {
            return Ok(());
        }
        let keys = counted(rule.denied_keys as u64, ("key", "keys"));
        let least = if self.most_missed == 0 {
            ""
        } else {
            "at least "
        };
        let (name, denied) = (&rule.rule, "denied");
        writeln!(
            out,
            "\nMost limited by {name}, of {least}{keys} denied\n\n  {denied:>12}  key"
        )?;
        for DeniedKey { key, denied, error } in &rule.top {
            let key = shown(key.as_bytes());
            let error = match error.unwrap_or(0) + self.most_missed {
                0 => String::new(),
                error => format!("  (by {} more or less)", grouped(error)),
            };
            writeln!(out, "  {:>12}  {key}{error}", grouped(*denied))?;
        }
        Ok(())
    }

    fn recommended(&self, out: &mut impl Write, share: f64) -> io::Result<()> {
        let needs = |rule: &'_ OfRule| rule.recommended.as_ref().is_some_and(|r| r.needs.is_some());
        if self.rules.iter().any(needs) {
            self.needs(out)?;
        }
        let denied = match self.by {
            ShareOf::Keys => "deny requests of at most",
            ShareOf::Requests => "deny at most",
        };
        let what = self.by;
        writeln!(
            out,
            "\nThe smallest limits that {denied} {share} % of the {what} of their rule\n"
        )?;
        for rule in &self.rules {
            let lines = self.proposed(rule);
            let (first, rest) = lines
                .split_first()
                .map_or(("", &[][..]), |(f, r)| (&**f, r));
            writeln!(out, "  {}: {first}", rule.rule)?;
            for line in rest {
                writeln!(out, "    {line}")?;
            }
        }
        Ok(())
    }

    /// Returns what is proposed for a rule, and the keys that do not count, in lines of text. None
    /// without `--recommend`.
    fn proposed(&self, rule: &OfRule) -> Vec<String> {
        if self.recommend.is_none() {
            return Vec::new();
        }
        let now: Vec<_> = rule.limits.iter().map(|limit| &*limit.limit).collect();
        let now = now.join(", ");
        let Some(found) = &rule.recommended else {
            let why = if rule.limits.is_empty() {
                "it has no limits"
            } else if !rule.has_periods {
                "a log does not tell how many requests are under way at once"
            } else if rule.asked == 0 {
                "it was asked nothing"
            } else {
                "no key counts"
            };
            return vec![format!("nothing to propose: {why}")];
        };
        let mut lines = vec![match (&found.limits, &found.missing_key) {
            (Some(limits), _) => {
                let Counts {
                    asked,
                    denied,
                    keys,
                    denied_keys,
                } = found.counts;
                format!(
                    "{now} -> {}, which denies {} of {} ({:.2} %), {} of {} ({:.2} %){}",
                    limits.join(", "),
                    grouped(denied_keys),
                    counted(keys, ("key", "keys")),
                    percent(denied_keys, keys),
                    grouped(denied),
                    counted(asked, ("request", "requests")),
                    percent(denied, asked),
                    found.of_left_out()
                )
            }
            (None, Some(part)) => format!("{now}: nothing to propose: no line has {part}"),
            (None, None) => format!("{now}: no limit is large enough"),
        }];
        found.set_by_in(&mut lines);
        found.own_limits_in(&mut lines);
        found.left_out_in(&mut lines);
        lines
    }

    /// Prints what the keys of each rule need.
    fn needs(&self, out: &mut impl Write) -> io::Result<()> {
        let width = self.rules.iter().map(|rule| rule.rule.len()).max();
        let width = width.unwrap_or(0).max(20);
        writeln!(
            out,
            "\nWhat keys need at most in any minute and in a second of the clock, in permits\n"
        )?;
        write!(out, "  {:<width$}  {:>9}  {:<6}", "rule", "keys", "")?;
        for percent in PERCENTAGES {
            let share = match percent {
                100 => "all".into(),
                percent => format!("{percent} %"),
            };
            write!(out, "  {share:>9}")?;
        }
        writeln!(out)?;
        for rule in &self.rules {
            let found = rule.recommended.as_ref();
            let Some(needs) = found.and_then(|found| found.needs.as_ref()) else {
                continue;
            };
            let keys = grouped(needs.keys as u64);
            for (name, keys, span, values) in [
                (&*rule.rule, &*keys, "minute", &needs.minute),
                ("", "", "second", &needs.second),
            ] {
                write!(out, "  {name:<width$}  {keys:>9}  {span:<6}")?;
                for percent in PERCENTAGES {
                    let need = values.get(&format!("p{percent}")).copied();
                    write!(out, "  {:>9}", grouped(need.unwrap_or_default()))?;
                }
                writeln!(out)?;
            }
        }
        Ok(())
    }
}
