//! `--recommend`: for each rule, the smallest limits that deny at most a wanted share.
//!
//! **What is searched.** A rule has one unknown, the count `n` of its largest limit. Its other
//! limits and all bursts keep their proportion to it, rounded up. The share is that of the keys of
//! which at least one request is denied by a limit or the penalty of the rule, or that of the
//! requests.
//!
//! **Whose requests count.** Requests of keys that look like abuse do not count: see [`apart`]. A
//! limit that allows them is too high to stop abuse. These keys are found once, by the number of
//! their requests, so the limits of the policy do not matter. If no line has a part of the key of a
//! rule, its requests say nothing about clients, and nothing is proposed.
//!
//! **How.** A binary search for the smallest `n`, in which each step is a replay of all logs:
//!
//! - `low` is a count that denies too much, at first 0. `high` is one that does not, at first none.
//! - Without a `high`, the next `n` is twice the last. With one, it is the middle of the two.
//! - The search ends when `high` is `low + 1`, or when no limiter can have the next `n`.
//!
//! Invariant: `high` has been replayed and denies at most the share, `low` has been replayed and
//! denies more. A larger limit usually denies less, and then `high` is the smallest. With a
//! penalty, a wait or costs of several permits it may deny more, and there may be a smaller one.
//!
//! **Rules do not disturb each other.** Which rule decides a request does not depend on the limits,
//! within one kind. So the rules of one kind are searched in the same replays. A request that one
//! kind denies is not asked of the next, so each kind is searched with the present limits of the
//! others: one policy for each kind, in the same pass over the logs.

use core::cmp::Reverse;
use core::str::FromStr;
use std::collections::HashSet;
use std::path::PathBuf;

use clap::ValueEnum;
use portcullis_policy::{Kind, Limit, Policy, Rule};
use serde::Serialize;

use super::super::args::ReplayArgs;
use super::clients::{Clients, OfRule};
use super::kinds::KINDS;
use super::{is_file, parsing};
use crate::failure::Failure;
use crate::replay::judge::Clock;
use crate::replay::needs::{apart, percentiles};
use crate::replay::{Pass, input};

/// A share of requests, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share(u32);

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const EXPECTED: &str =
            "expected a percentage from 0% to 100%, with up to four decimals, such as 1% or 0.05%";
        let parse = || {
            let number = text.strip_suffix('%')?;
            let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
            let is_digits = |text: &str| {
                !text.is_empty() && text.len() <= 4 && text.bytes().all(|b| b.is_ascii_digit())
            };
            if !is_digits(whole) || !is_digits(decimals) {
                return None;
            }
            let decimals: u32 = format!("{decimals:0<4}").parse().ok()?;
            let millionths = whole.parse::<u32>().ok()? * 10_000 + decimals;
            (millionths <= 1_000_000).then_some(Self(millionths))
        };
        parse().ok_or_else(|| EXPECTED.into())
    }
}

impl Share {
    /// Returns the share in percent.
    pub(crate) fn percent(self) -> f64 {
        f64::from(self.0) / 10_000.0
    }

    /// Returns whether `part` is at most this share of `whole`.
    fn covers(self, part: u64, whole: u64) -> bool {
        u128::from(part) * 1_000_000 <= u128::from(whole) * u128::from(self.0)
    }
}

/// What the wanted share is a share of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ShareOf {
    /// The keys of which at least one request is denied.
    #[default]
    Keys,
    /// The requests.
    Requests,
}

/// What the limits of a rule decided about the keys that count. The field names are those of the
/// JSON object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Counts {
    /// Requests that the limits were asked about.
    pub(crate) asked: u64,
    pub(crate) denied: u64,
    /// Keys of these requests, and those with a denied one.
    pub(crate) keys: u64,
    pub(crate) denied_keys: u64,
}

impl Counts {
    fn new(of_rule: &OfRule, left_out: &HashSet<Box<str>>) -> Self {
        let mut counts = Self::default();
        for (key, client) in &of_rule.keys {
            if !left_out.contains(key) {
                counts.asked += client.tally.sum();
                counts.denied += client.tally.denied;
                counts.keys += 1;
                counts.denied_keys += u64::from(client.tally.denied > 0);
            }
        }
        counts
    }
}

/// What is proposed for one rule.
#[derive(Clone, Debug)]
pub(crate) struct Proposal {
    pub(crate) result: Recommended,
    /// What the keys that count need.
    pub(crate) needs: Option<Needs>,
    /// The keys that look like abuse, the greediest first.
    pub(crate) left_out: Vec<LeftOut>,
}

/// The limits for one rule.
#[derive(Clone, Debug)]
pub(crate) enum Recommended {
    /// The rule has no limit that can be searched, or its limits were never asked.
    Nothing,
    /// No line has this part of the key of the rule.
    NoKey(String),
    /// No count that a limiter can have denies little enough.
    Impossible,
    /// These limits, and what they decide.
    Limits(Vec<Limit>, Counts),
}

/// A key that looks like abuse.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct LeftOut {
    pub(crate) key: String,
    pub(crate) requests: u64,
    /// What it needs in a minute, in permits.
    pub(crate) minute: u64,
}

/// What keys need in a minute and in a second: percentiles, see [`percentiles`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Needs {
    pub(crate) keys: usize,
    pub(crate) minute: [u64; 5],
    pub(crate) second: [u64; 5],
}

/// The keys of a rule that look like abuse, the greediest first.
pub(crate) fn left_out(of_rule: &OfRule) -> Vec<LeftOut> {
    let keys = of_rule.keys.iter();
    let mut keys: Vec<_> = keys
        .map(|(key, client)| (Reverse(client.need.minute), key, client))
        .collect();
    keys.sort_unstable_by_key(|&(need, key, _)| (need, key));
    let needs: Vec<_> = keys.iter().map(|(Reverse(need), ..)| *need).collect();
    keys.truncate(apart(&needs));
    let keys = keys
        .into_iter()
        .map(|(Reverse(minute), key, client)| LeftOut {
            key: key.to_string(),
            requests: client.tally.sum(),
            minute,
        });
    keys.collect()
}

/// What the keys of a rule need, except those that are left out. `None` without any.
fn needs(of_rule: &OfRule, left_out: &HashSet<Box<str>>) -> Option<Needs> {
    let counted = of_rule.keys.iter();
    let counted = counted.filter(|(key, _)| !left_out.contains(*key));
    let (mut minute, mut second): (Vec<_>, Vec<_>) = counted
        .map(|(_, client)| (client.need.minute, client.need.second))
        .unzip();
    minute.sort_unstable();
    second.sort_unstable();
    (!minute.is_empty()).then(|| Needs {
        keys: minute.len(),
        minute: percentiles(&minute),
        second: percentiles(&second),
    })
}

/// Rejects logs that can be read only once.
pub(crate) fn refuse_unrepeatable(logs: &[PathBuf]) -> Result<(), Failure> {
    match logs.iter().find(|log| !is_file(log)) {
        Some(log) if input::is_standard_input(log) || log.exists() => {
            Err(Failure::Refused(format!(
                "--recommend reads the logs several times, and {} can be read only once: write it \
                 to a file",
                input::name(log)
            )))
        }
        _ => Ok(()),
    }
}

/// The search for one rule.
struct Search {
    kind: Kind,
    /// What a rule may deny.
    share: (Share, ShareOf),
    /// The keys that do not count.
    left_out: HashSet<Box<str>>,
    /// The count of the largest limit of the rule as it is.
    present: u64,
    low: u64,
    high: Option<(u64, Counts)>,
    /// The count to replay next. `None` at the end.
    next: Option<u64>,
}

impl Search {
    fn new(
        rule: &Rule,
        of_rule: &OfRule,
        share: (Share, ShareOf),
        left_out: HashSet<Box<str>>,
    ) -> Self {
        let periods = rule
            .limits()
            .iter()
            .filter(|limit| limit.period().is_some());
        let present = periods.map(Limit::count).max().unwrap_or(0);
        let counts = Counts::new(of_rule, &left_out);
        let mut this = Self {
            kind: rule.kind(),
            share,
            left_out,
            present,
            low: 0,
            high: None,
            next: None,
        };
        let is_asked = counts.asked > 0 && of_rule.missing_part().is_none();
        if present > 0 && is_asked && rule.is_enabled() {
            this.next = Some(present);
            this.learn(counts);
        }
        this
    }

    /// Returns whether a rule may deny so much.
    fn covers(&self, counts: Counts) -> bool {
        match self.share {
            (share, ShareOf::Keys) => share.covers(counts.denied_keys, counts.keys),
            (share, ShareOf::Requests) => share.covers(counts.denied, counts.asked),
        }
    }

    /// Returns the limits that were found for `rule`.
    fn result(&self, rule: &Rule) -> Recommended {
        match self.high {
            Some((count, counts)) => {
                // A log does not tell how many requests are under way at once.
                let scaled = |limit: &Limit| match limit.period() {
                    Some(_) => limit.clone().scaled(count, self.present),
                    None => limit.clone(),
                };
                Recommended::Limits(rule.limits().iter().map(scaled).collect(), counts)
            }
            None if self.low > 0 => Recommended::Impossible,
            None => Recommended::Nothing,
        }
    }

    /// Learns what the next count decides, and chooses another.
    fn learn(&mut self, counts: Counts) {
        let Some(count) = self.next else {
            return;
        };
        if self.covers(counts) {
            self.high = Some((count, counts));
        } else {
            self.low = count;
        }
        self.next = match self.high {
            None => count.checked_mul(2),
            Some((high, _)) if high - self.low > 1 => Some(self.low + (high - self.low) / 2),
            Some(_) => None,
        };
    }
}

/// Returns what is proposed for each rule of `policy`, in their order. `clients` have been judged
/// by it.
///
/// # Errors
///
/// [`Failure::Refused`] if a log cannot be read again.
pub(crate) fn search(
    args: &ReplayArgs,
    share: Share,
    policy: &Policy,
    clients: &Clients,
) -> Result<Vec<Proposal>, Failure> {
    let share = (share, args.recommend_by);
    let rules = policy.rules().zip(&clients.rules);
    let (mut searches, greedy): (Vec<_>, Vec<_>) = rules
        .map(|(rule, of_rule)| {
            let greedy = if args.all_keys {
                Vec::new()
            } else {
                left_out(of_rule)
            };
            let keys = greedy.iter().map(|each| (*each.key).into()).collect();
            (Search::new(rule, of_rule, share, keys), greedy)
        })
        .unzip();
    while searches.iter().any(|search| search.next.is_some()) {
        if !step(args, policy, &mut searches)? {
            break;
        }
    }
    let results = policy.rules().zip(&clients.rules).zip(searches).zip(greedy);
    let results = results.map(|(((rule, of_rule), search), left_out)| Proposal {
        needs: needs(of_rule, &search.left_out),
        result: match of_rule.missing_part() {
            Some(part) => Recommended::NoKey(part.into()),
            None => search.result(rule),
        },
        left_out,
    });
    Ok(results.collect())
}

/// Replays the next count of each search. Returns `false` if there is none.
fn step(args: &ReplayArgs, policy: &Policy, searches: &mut [Search]) -> Result<bool, Failure> {
    let mut trials = Vec::new();
    for kind in KINDS {
        let of_kind = |search: &Search| search.kind == kind && search.next.is_some();
        if searches.iter().any(of_kind) {
            let policy = candidate(policy, kind, searches);
            trials.extend(policy.map(|policy| (kind, Clients::new(policy))));
        }
    }
    if trials.is_empty() {
        return Ok(false);
    }
    let mut parsing = parsing(args, policy)?;
    let mut clock = Clock::default();
    Pass::new(args, &mut parsing, |record, waiting| {
        let now = clock.advance(record.time);
        waiting.take(record.key, |request| {
            for (_, clients) in &mut trials {
                clients.judge(now, request, record.bytes);
            }
        });
        Ok(())
    })?;
    for (kind, clients) in &trials {
        for (search, of_rule) in searches.iter_mut().zip(&clients.rules) {
            if search.kind == *kind {
                search.learn(Counts::new(of_rule, &search.left_out));
            }
        }
    }
    Ok(true)
}

/// The policy in which the rules of `kind` have the limits to replay next. A rule that cannot have
/// them ends its search, and the others go on.
fn candidate(policy: &Policy, kind: Kind, searches: &mut [Search]) -> Option<Policy> {
    while searches
        .iter()
        .any(|search| search.kind == kind && search.next.is_some())
    {
        let rules = policy.rules().zip(&*searches);
        let rules = rules.map(|(rule, search)| match search.next {
            Some(next) if search.kind == kind => rule.clone().scaled(next, search.present),
            _ => rule.clone(),
        });
        let errors = match Policy::with_path_rules(rules, policy.path_rules()) {
            Ok(policy) => return Some(policy),
            Err(errors) => errors,
        };
        for (rule, search) in policy.rules().zip(&mut *searches) {
            if errors.iter().any(|error| *error.rule == *rule.name()) {
                search.next = None;
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_a_percentage() {
        let share = |text: &str| text.parse::<Share>().map(|Share(millionths)| millionths);
        assert_eq!(share("1%"), Ok(10_000));
        assert_eq!(share("0.05%"), Ok(500));
        assert_eq!(share("0%"), Ok(0));
        assert_eq!(share("100%"), Ok(1_000_000));
        for text in [
            "",
            "%",
            "1",
            "1.%",
            ".5%",
            "100.0001%",
            "-1%",
            "1.00001%",
            "1e1%",
            "101%",
        ] {
            assert!(
                share(text)
                    .unwrap_err()
                    .starts_with("expected a percentage"),
                "{text}"
            );
        }
        assert!(Share(10_000).covers(1, 100));
        assert!(!Share(10_000).covers(1, 99));
    }
}
