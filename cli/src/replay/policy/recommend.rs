//! `--recommend`: for each rule, the smallest limits that deny at most a wanted share.
//!
//! **What is searched.** A rule has one unknown, the count `n` of its largest limit. Its other
//! limits and all bursts keep their proportion to it, rounded up. The share is that of the keys of
//! which at least one request is denied by a limit or the penalty of the rule, or that of the
//! requests.
//!
//! **Whose requests count.** Requests of keys with limits of their own do not count: the limits of
//! the rule are not for them, and theirs stay as they are. Of the other keys, those that look like
//! abuse do not count either: see [`apart`]. A limit that allows them is too high to stop abuse.
//! These keys are found once, by the number of their requests, so the limits of the policy do not
//! matter. If no line has a part of the key of a rule, its requests say nothing about clients, and
//! nothing is proposed.
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
//! **Which key sets it.** The keys that `low` denies and `high` does not. Any of them may be abuse
//! that no sign shows, so the one with the most requests is named. If `low` denies little enough
//! without that key, a second search finds the limits without it, below `low`.
//!
//! **Each rule by itself.** A request that another rule denies takes nothing from this one, so a
//! limit of another rule that is too low would make this one look too high. So a rule is searched
//! in replays in which the rules that meet its requests, and are searched too, have no limits. With
//! their limits fewer requests reach it, so it usually denies no more. It may: a window that begins
//! with a request begins later if that request is denied elsewhere. Rules that end a decision never
//! meet in one, and shadow rules deny nothing, so those of one kind are searched in the same
//! replays: a [`Group`]. Each rule that goes on is a group of its own. All groups are replayed in
//! the same passes over the logs.
//!
//! **All rules together.** At the end all proposals are replayed as one policy. What they deny
//! there is what is reported.

use core::cmp::Reverse;
use core::str::FromStr;
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use clap::ValueEnum;
use portcullis_policy::{Kind, Limit, Policy, Rule};
use serde::Serialize;

use super::super::args::ReplayArgs;
use super::clients::{Clients, OfRule};
use super::{is_file, made_of, parsing};
use crate::failure::Failure;
use crate::replay::judge::Clock;
use crate::replay::needs::{Need, apart, percentiles, total};
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
    /// The keys with limits of their own, the one with the most requests first.
    pub(crate) exceptions: Vec<Exception>,
    /// Whether all requests share the limits.
    pub(crate) is_shared: bool,
    /// Why the limits are not smaller. `None` if there are no smaller ones.
    pub(crate) set_by: Option<SetBy>,
    /// The requests of all keys of the rule.
    pub(crate) requests: u64,
}

/// The key that sets a proposal.
#[derive(Clone, Debug)]
pub(crate) struct SetBy {
    pub(crate) key: String,
    pub(crate) requests: u64,
    /// The number of keys that need these limits.
    pub(crate) keys: u64,
    /// The limits without this key, if they are smaller.
    pub(crate) without: Option<Vec<Limit>>,
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
    /// What it needs in a minute, an hour and a day, in permits.
    pub(crate) minute: u64,
    pub(crate) hour: u64,
    pub(crate) day: u64,
    /// By what it looks like abuse.
    pub(crate) sign: &'static str,
    /// The same for people.
    #[serde(skip)]
    pub(crate) why: String,
    /// Its requests that all proposals together allow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) passes: Option<u64>,
    /// Its requests that the proposal for this rule denies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) denied: Option<u64>,
}

/// A key with limits of its own.
#[derive(Clone, Debug)]
pub(crate) struct Exception {
    pub(crate) key: String,
    pub(crate) limits: Box<[Limit]>,
    pub(crate) requests: u64,
    /// What it needs in a second and a minute, in permits.
    pub(crate) second: u64,
    pub(crate) minute: u64,
    /// Its requests that its limits deny, in the replay of all proposals.
    pub(crate) denied: Option<u64>,
}

/// What keys need in spans of time: percentiles, see [`percentiles`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Needs {
    pub(crate) keys: usize,
    pub(crate) second: [u64; 5],
    pub(crate) minute: [u64; 5],
    pub(crate) hour: [u64; 5],
    pub(crate) day: [u64; 5],
}

/// The keys of a rule that look like abuse, the greediest first.
fn left_out(of_rule: &OfRule) -> Vec<LeftOut> {
    let clients = of_rule.clients();
    let total = total(&clients);
    let greedy = apart(&clients).into_iter().map(|(at, sign)| {
        let (key, client) = clients[at];
        LeftOut {
            key: key.into(),
            requests: client.tally.sum(),
            minute: client.need.minute,
            hour: client.need.hour,
            day: client.need.day,
            sign: sign.name(),
            why: sign.text(client, total),
            passes: None,
            denied: None,
        }
    });
    greedy.collect()
}

/// The keys of a rule with limits of their own, the one with the most requests first.
fn exceptions(of_rule: &OfRule) -> Vec<Exception> {
    let keys = of_rule.keys.iter().filter_map(|(key, client)| {
        Some(Exception {
            key: key.to_string(),
            limits: client.own_limits.clone()?,
            requests: client.tally.sum(),
            second: client.need.second,
            minute: client.need.minute,
            denied: None,
        })
    });
    let mut keys: Vec<_> = keys.collect();
    keys.sort_unstable_by(|a, b| (b.requests, &a.key).cmp(&(a.requests, &b.key)));
    keys
}

/// What the keys of a rule need, except those that are left out. `None` without any.
fn needs(of_rule: &OfRule, left_out: &HashSet<Box<str>>) -> Option<Needs> {
    let counted = of_rule.keys.iter();
    let counted = counted.filter(|(key, _)| !left_out.contains(*key));
    let counted: Vec<_> = counted.map(|(_, client)| &client.need).collect();
    let of = |need: fn(&Need) -> u64| {
        let mut needs: Vec<_> = counted.iter().map(|of| need(of)).collect();
        needs.sort_unstable();
        percentiles(&needs)
    };
    (!counted.is_empty()).then(|| Needs {
        keys: counted.len(),
        second: of(|need| need.second),
        minute: of(|need| need.minute),
        hour: of(|need| need.hour),
        day: of(|need| need.day),
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

/// Rules of which no request meets two that deny. They are searched in the same replays.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Group {
    kind: Kind,
    /// The place of a rule that goes on: it is alone.
    alone: Option<usize>,
}

impl Group {
    fn of(place: usize, rule: &Rule) -> Self {
        let meets_others = rule.is_continuing() && !rule.is_shadow();
        Self {
            kind: rule.kind(),
            alone: meets_others.then_some(place),
        }
    }
}

/// The rules of a policy, each with its place and its group.
fn grouped(policy: &Policy) -> impl Iterator<Item = (usize, &Rule, Group)> {
    let rules = policy.rules().enumerate();
    rules.map(|(place, rule)| (place, rule, Group::of(place, rule)))
}

/// The count of the largest limit of a rule, which is searched. 0 if none can be.
fn count_of(rule: &Rule) -> u64 {
    let limits = rule.limits().iter().filter(|_| rule.is_enabled());
    let rates = limits.filter(|limit| limit.period().is_some());
    rates.map(Limit::count).max().unwrap_or(0)
}

/// The rules to replay for a group: its own as `own` returns them, and the others without limits if
/// they are searched, too.
fn by_itself(policy: &Policy, of: Group, own: impl Fn(usize, &Rule) -> Rule) -> Vec<Rule> {
    let rules = grouped(policy).map(|(place, rule, group)| {
        if group == of {
            own(place, rule)
        } else if count_of(rule) > 0 {
            rule.clone().unlimited()
        } else {
            rule.clone()
        }
    });
    rules.collect()
}

/// What each rule of a policy is asked if no other that is searched denies anything.
pub(crate) struct Alone {
    groups: Vec<(Group, Clients)>,
}

impl Alone {
    /// # Errors
    ///
    /// [`Failure::Refused`] if a part of the policy is no policy.
    pub(crate) fn new(policy: &Policy) -> Result<Self, Failure> {
        let mut groups: Vec<(Group, Clients)> = Vec::new();
        for (_, _, group) in grouped(policy) {
            if groups.iter().all(|(other, _)| *other != group) {
                let rules = by_itself(policy, group, |_, rule| rule.clone());
                groups.push((group, Clients::new(made_of(policy, rules)?)));
            }
        }
        Ok(Self { groups })
    }

    /// What the lines are to be judged by.
    pub(crate) fn clients(&mut self) -> impl Iterator<Item = &mut Clients> {
        self.groups.iter_mut().map(|(_, clients)| clients)
    }

    /// Returns what each rule of the policy was asked, in their order.
    fn rules<'a>(&'a self, policy: &'a Policy) -> impl Iterator<Item = &'a OfRule> {
        grouped(policy).filter_map(|(place, _, of)| {
            let group = self.groups.iter().find(|(group, _)| *group == of);
            group.map(|(_, clients)| &clients.rules[place])
        })
    }
}

/// The search for one rule.
struct Search {
    group: Group,
    /// What a rule may deny.
    share: (Share, ShareOf),
    /// The keys that do not count.
    left_out: HashSet<Box<str>>,
    /// The count of the largest limit of the rule as it is.
    present: u64,
    low: Option<Replayed>,
    high: Option<Replayed>,
    /// The count to replay next. `None` at the end.
    next: Option<u64>,
}

/// What a count decides.
#[derive(Clone)]
struct Replayed {
    count: u64,
    counts: Counts,
    /// The keys that count and are denied, each with its denied requests.
    denied: HashMap<Box<str>, u64>,
}

impl Replayed {
    fn new(count: u64, of_rule: &OfRule, left_out: &HashSet<Box<str>>) -> Self {
        let keys = of_rule.keys.iter();
        let denied = keys.filter(|(key, of)| of.tally.denied > 0 && !left_out.contains(*key));
        Self {
            count,
            counts: Counts::new(of_rule, left_out),
            denied: denied
                .map(|(key, client)| (key.clone(), client.tally.denied))
                .collect(),
        }
    }
}

impl Search {
    fn new(
        (rule, group): (&Rule, Group),
        of_rule: &OfRule,
        share: (Share, ShareOf),
        left_out: HashSet<Box<str>>,
    ) -> Self {
        let present = count_of(rule);
        let mut this = Self {
            group,
            share,
            left_out,
            present,
            low: None,
            high: None,
            next: None,
        };
        let replayed = Replayed::new(present, of_rule, &this.left_out);
        let is_asked = replayed.counts.asked > 0 && of_rule.missing_part().is_none();
        if present > 0 && is_asked {
            this.learn(replayed);
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
        match (&self.high, &self.low) {
            (Some(high), _) => Recommended::Limits(self.scaled(rule, high.count), high.counts),
            (None, Some(_)) => Recommended::Impossible,
            (None, None) => Recommended::Nothing,
        }
    }

    /// Returns the limits of `rule` of which the largest has this count.
    fn scaled(&self, rule: &Rule, count: u64) -> Vec<Limit> {
        // A log does not tell how many requests are under way at once.
        let scaled = |limit: &Limit| match limit.period() {
            Some(_) => limit.clone().scaled(count, self.present),
            None => limit.clone(),
        };
        rule.limits().iter().map(scaled).collect()
    }

    /// Learns what a count decides, and chooses the next.
    fn learn(&mut self, replayed: Replayed) {
        let count = replayed.count;
        if self.covers(replayed.counts) {
            self.high = Some(replayed);
        } else {
            self.low = Some(replayed);
        }
        self.next = match &self.high {
            None => count.checked_mul(2),
            Some(high) => self.between(high.count),
        };
    }

    /// The middle of `low` and `high`, if there is a count between them.
    fn between(&self, high: u64) -> Option<u64> {
        let low = self.low.as_ref().map_or(0, |low| low.count);
        (high - low > 1).then(|| low + (high - low) / 2)
    }

    /// A search for the same rule that has found nothing.
    fn ended(&self) -> Self {
        Self {
            left_out: HashSet::new(),
            low: None,
            high: None,
            next: None,
            ..*self
        }
    }

    /// Returns the key that sets the result, and the search for the limits without it if they may
    /// be smaller. `None` without a smaller count that has been replayed.
    fn set_by(&self, of_rule: &OfRule) -> Option<(SetBy, Option<Self>)> {
        let (Some(low), Some(high)) = (&self.low, &self.high) else {
            return None;
        };
        let keys = low.denied.iter().filter_map(|(key, denied)| {
            let before = high.denied.get(key).copied().unwrap_or(0);
            let sets = match self.share.1 {
                ShareOf::Keys => before == 0,
                ShareOf::Requests => *denied > before,
            };
            let requests = of_rule.keys.get(key)?.tally.sum();
            let more = denied.saturating_sub(before);
            sets.then_some((requests, more, Reverse(key), *denied))
        });
        let keys: Vec<_> = keys.collect();
        let &(requests, _, Reverse(key), denied) = match self.share.1 {
            ShareOf::Keys => keys.iter().max(),
            ShareOf::Requests => keys.iter().max_by_key(|of| (of.1, of.0, of.2)),
        }?;
        let set_by = SetBy {
            key: key.to_string(),
            requests,
            keys: keys.len() as u64,
            without: None,
        };
        let counts = Counts {
            asked: low.counts.asked - requests,
            denied: low.counts.denied - denied,
            keys: low.counts.keys - 1,
            denied_keys: low.counts.denied_keys - 1,
        };
        if counts.asked == 0 || !self.covers(counts) {
            return Some((set_by, None));
        }
        let mut without = self.ended();
        without.left_out = self.left_out.iter().chain([key]).cloned().collect();
        without.next = without.between(low.count);
        without.high = Some(Replayed {
            counts,
            ..low.clone()
        });
        Some((set_by, Some(without)))
    }
}

/// Returns what is proposed for each rule of `policy`, in their order. `alone` is made of it, and
/// has judged the lines.
///
/// # Errors
///
/// [`Failure::Refused`] if a log cannot be read again.
pub(crate) fn search(
    args: &ReplayArgs,
    share: Share,
    policy: &Policy,
    alone: &Alone,
) -> Result<Vec<Proposal>, Failure> {
    let share = (share, args.recommend_by);
    let rules = grouped(policy).zip(alone.rules(policy));
    let (mut searches, mut proposals): (Vec<_>, Vec<_>) = rules
        .map(|((_, rule, group), of_rule)| {
            let left_out = if args.all_keys {
                Vec::new()
            } else {
                left_out(of_rule)
            };
            let exceptions = exceptions(of_rule);
            let keys = left_out.iter().map(|each| &*each.key);
            let keys = keys.chain(exceptions.iter().map(|each| &*each.key));
            let keys = keys.map(Into::into).collect();
            let proposal = Proposal {
                result: Recommended::Nothing,
                needs: needs(of_rule, &keys),
                left_out,
                exceptions,
                is_shared: of_rule.is_shared(),
                set_by: None,
                requests: of_rule.requests(),
            };
            (Search::new((rule, group), of_rule, share, keys), proposal)
        })
        .unzip();
    finish(args, policy, &mut searches)?;
    // The searches without the keys that set the results.
    let mut others = Vec::new();
    let rules = policy.rules().zip(alone.rules(policy)).zip(&searches);
    for (((rule, of_rule), search), proposal) in rules.zip(&mut proposals) {
        proposal.result = match of_rule.missing_part() {
            Some(part) => Recommended::NoKey(part.into()),
            None => search.result(rule),
        };
        let (set_by, other) = search.set_by(of_rule).unzip();
        proposal.set_by = set_by;
        others.push(other.flatten().unwrap_or_else(|| search.ended()));
    }
    finish(args, policy, &mut others)?;
    for ((rule, other), proposal) in policy.rules().zip(&others).zip(&mut proposals) {
        if let (Some(set_by), Some(high)) = (&mut proposal.set_by, &other.high) {
            set_by.without = Some(other.scaled(rule, high.count));
        }
    }
    together(args, policy, &searches, &mut proposals)?;
    Ok(proposals)
}

/// Replays all proposals as one policy, and notes what they decide there.
fn together(
    args: &ReplayArgs,
    policy: &Policy,
    searches: &[Search],
    proposals: &mut [Proposal],
) -> Result<(), Failure> {
    if searches.iter().all(|search| search.high.is_none()) {
        return Ok(());
    }
    let rules = policy.rules().zip(searches);
    let rules = rules.map(|(rule, search)| match &search.high {
        Some(high) => rule.clone().with_limits(search.scaled(rule, high.count)),
        None => rule.clone(),
    });
    let mut clients = Clients::new(made_of(policy, rules)?);
    judge(args, policy, &mut [&mut clients])?;
    for ((search, of_rule), proposal) in searches.iter().zip(&clients.rules).zip(proposals) {
        if let Recommended::Limits(_, counts) = &mut proposal.result {
            *counts = Counts::new(of_rule, &search.left_out);
            for each in &mut proposal.left_out {
                let client = of_rule.keys.get(&*each.key);
                each.passes = Some(client.map_or(0, |client| client.tally.allowed));
                each.denied = Some(client.map_or(0, |client| client.tally.denied));
            }
            for each in &mut proposal.exceptions {
                let client = of_rule.keys.get(&*each.key);
                each.denied = Some(client.map_or(0, |client| client.tally.denied));
            }
        }
    }
    Ok(())
}

/// Judges all lines of the logs by each of several policies, which are made of `policy`.
fn judge(args: &ReplayArgs, policy: &Policy, trials: &mut [&mut Clients]) -> Result<(), Failure> {
    let mut parsing = parsing(args, policy)?;
    let mut clock = Clock::default();
    Pass::new(args, &mut parsing, |record, waiting| {
        let now = clock.advance(record.time);
        waiting.take(record.key, |request| {
            for clients in &mut *trials {
                clients.judge(now, request, record.bytes);
            }
        });
        Ok(())
    })?;
    Ok(())
}

/// Replays until all searches end.
fn finish(args: &ReplayArgs, policy: &Policy, searches: &mut [Search]) -> Result<(), Failure> {
    while searches.iter().any(|search| search.next.is_some()) {
        if !step(args, policy, searches)? {
            break;
        }
    }
    Ok(())
}

/// Replays the next count of each search. Returns `false` if there is none.
fn step(args: &ReplayArgs, policy: &Policy, searches: &mut [Search]) -> Result<bool, Failure> {
    let mut trials: Vec<(Group, Clients)> = Vec::new();
    for place in 0..searches.len() {
        let group = searches[place].group;
        if trials.iter().all(|(other, _)| *other != group) {
            let policy = candidate(policy, group, searches);
            trials.extend(policy.map(|policy| (group, Clients::new(policy))));
        }
    }
    if trials.is_empty() {
        return Ok(false);
    }
    let mut all: Vec<_> = trials.iter_mut().map(|(_, clients)| clients).collect();
    judge(args, policy, &mut all)?;
    for (group, clients) in &trials {
        for (search, of_rule) in searches.iter_mut().zip(&clients.rules) {
            if let Some(count) = search.next.filter(|_| search.group == *group) {
                search.learn(Replayed::new(count, of_rule, &search.left_out));
            }
        }
    }
    Ok(true)
}

/// The policy in which the rules of a group have the limits to replay next. A rule that cannot have
/// them ends its search, and the others go on. `None` if the searches of all of them have ended.
fn candidate(policy: &Policy, group: Group, searches: &mut [Search]) -> Option<Policy> {
    while searches
        .iter()
        .any(|search| search.group == group && search.next.is_some())
    {
        let rules = by_itself(policy, group, |place, rule| {
            let search = &searches[place];
            match search.next {
                Some(next) => rule.clone().with_limits(search.scaled(rule, next)),
                None => rule.clone(),
            }
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
