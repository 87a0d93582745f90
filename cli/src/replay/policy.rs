//! `--policy`: what the rules of a policy would have decided about the requests of logs.
//!
//! | module | what is in it |
//! |---|---|
//! | [`waiting`] | what the rules read of each line, until the line is judged |
//! | [`clients`] | what each key asks of each rule, and how much of it is denied |
//! | [`recommend`] | for each rule, the smallest limits with a wanted share of denials |
//!
//! Each line is one request. It is asked once for each kind that has rules, in the order
//! [`KINDS`](kinds::KINDS), until one denies.
//!
//! Each line is also one report of activity, for all rules with thresholds that it matches. Before
//! it is reported, its decisions in force are counted.

pub(crate) mod clients;
mod kinds;
pub(crate) mod recommend;
pub(crate) mod waiting;

use core::fmt::Write;
use core::hash::BuildHasher;
use core::ptr;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::hash::RandomState;
use std::path::Path;

use portcullis_core::Timestamp;
use portcullis_policy::{Kind, Policy, Request, Rule, RuleError, Statistics};

use self::clients::{Clients, MOST_KEYS};
use self::kinds::{ask_each, kinds_of};
use self::recommend::Alone;
use self::waiting::{Waiting, Wanted};
use super::args::ReplayArgs;
use super::format::Reader;
use super::judge::Clock;
use super::logs::Parsing;
use super::report::PolicyReport;
use super::time::timestamp;
use super::timeline::{Tally, Timeline};
use super::{Pass, input, write_page};
use crate::failure::Failure;
use crate::policy_file::{PolicyFile, Refused};

/// The number of denied keys of which each is counted exactly. With more, the counts have errors.
const COUNTED_KEYS: usize = 10_000;

/// Replays the logs through the policy in `file`, and prints the result.
///
/// # Errors
///
/// [`Failure::Refused`] for a policy that is not valid and for logs that cannot be read,
/// [`Failure::Output`] if the result cannot be written.
pub(crate) fn run(args: &ReplayArgs, file: &Path) -> Result<(), Failure> {
    if args.recommend.is_some() {
        recommend::refuse_unrepeatable(&args.logs)?;
    }
    let mut trial = Trial::new(load(args, file)?);
    let again = || made_of(&trial.policy, trial.policy.rules().cloned());
    let clients = args.html.as_ref().map(|_| again().map(Clients::new));
    let mut clients = clients.transpose()?;
    let alone = args.recommend.map(|_| Alone::new(&trial.policy));
    let mut alone = alone.transpose()?;
    let of_groups = alone.iter_mut().flat_map(Alone::clients);
    let mut judging: Vec<_> = clients.iter_mut().chain(of_groups).collect();
    let (pass, waiting) = trial.replay(args, &mut judging)?;
    let recommended = match (args.recommend, &alone) {
        (Some(share), Some(alone)) => Some(recommend::search(args, share, &trial.policy, alone)?),
        _ => None,
    };
    let report = PolicyReport::new(args, file, &trial, &pass, &waiting, recommended.as_deref());
    if let (Some(file), Some(clients)) = (&args.html, &clients) {
        write_page(file, &report.page(clients), args.all_keys)?;
    }
    if args.json {
        report.json()?;
    } else {
        report.summary(&trial)?;
    }
    Ok(())
}

/// Reads the policy. Prints its errors.
fn load(args: &ReplayArgs, file: &Path) -> Result<Policy, Failure> {
    let file = PolicyFile::read(&[file.to_owned()], args.policy_format)?;
    let policy = file.policy();
    let policy = policy.and_then(|policy| in_process(policy).map_err(Refused::Together));
    policy.map_err(|errors| Failure::Refused(file.report(&errors)))
}

/// A policy of other rules that reads paths as `policy` does, and of which nothing has been asked.
fn made_of(policy: &Policy, rules: impl IntoIterator<Item = Rule>) -> Result<Policy, Failure> {
    let made = Policy::with_path_rules(rules, policy.path_rules());
    made.map_err(|errors| {
        let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
        Failure::Refused(errors.join("; "))
    })
}

/// What is needed to read lines for a policy.
fn parsing(args: &ReplayArgs, policy: &Policy) -> Result<Parsing<Waiting>, Failure> {
    let wanted = Wanted::new(policy);
    let size = kinds_of(policy).contains(&Kind::Egress);
    let size = size.then_some("a rule of the kind egress");
    let reader = Reader::of_fields(&args.format, &wanted.fields(), size, false);
    Ok(Parsing {
        reader: reader.map_err(Failure::Refused)?,
        keys: Waiting::new(wanted),
    })
}

/// How many keys of a rule with a counter store can be in use at once.
const STORED_KEYS: usize = 20_000;

/// Keeps all limits in this process: a log has the requests of all instances, so one that all of
/// them share is one of this process.
fn in_process(policy: Policy) -> Result<Policy, Vec<RuleError>> {
    if policy.rules().all(|rule| rule.store().is_none()) {
        return Ok(policy);
    }
    let rules = policy.rules().map(|rule| match rule.store() {
        None => rule.clone(),
        Some(_) => rule.clone().in_process().keys(STORED_KEYS),
    });
    Policy::with_path_rules(rules, policy.path_rules())
}

/// A policy, and its decisions.
pub(crate) struct Trial {
    pub(crate) policy: Policy,
    pub(crate) statistics: Statistics,
    kinds: Vec<Kind>,
    pub(crate) clock: Clock,
    /// Allowed and denied lines.
    pub(crate) total: Tally,
    pub(crate) timeline: Timeline,
    /// Lines that no rule decided.
    pub(crate) without_rule: u64,
    /// Lines that a shadow rule would have denied.
    pub(crate) shadow_denied: u64,
    pub(crate) keys: Keys,
    /// The activity of each rule with thresholds, by its name.
    pub(crate) activity: HashMap<String, Activity>,
}

/// The lines that were reported to a rule with thresholds.
pub(crate) struct Activity {
    pub(crate) reported: u64,
    /// For each threshold, the lines at which its decision was in force.
    pub(crate) in_force: Vec<u64>,
}

/// The keys that were judged, each of a rule, by their hashes.
pub(crate) struct Keys {
    hashes: HashSet<u64>,
    hasher: RandomState,
    text: String,
}

impl Keys {
    fn add(&mut self, policy: &Policy, rule: &Rule, request: &Request<'_>) {
        self.text.clear();
        let values = policy.key_values(rule, request);
        let _ = write!(self.text, "{} {values}", rule.name());
        if self.hashes.len() < MOST_KEYS {
            self.hashes.insert(self.hasher.hash_one(&self.text));
        }
    }

    /// Returns the number of keys, and whether all of them were counted.
    pub(crate) fn count(&self) -> (usize, bool) {
        (self.hashes.len(), self.hashes.len() < MOST_KEYS)
    }
}

impl Trial {
    fn new(policy: Policy) -> Self {
        let activity = policy.rules().filter(|rule| rule.is_enabled());
        let activity = activity.filter(|rule| !rule.thresholds().is_empty());
        let activity = activity.map(|rule| {
            let activity = Activity {
                reported: 0,
                in_force: vec![0; rule.thresholds().len()],
            };
            (rule.name().to_owned(), activity)
        });
        Self {
            activity: activity.collect(),
            kinds: kinds_of(&policy),
            statistics: Statistics::new(&policy).keys(COUNTED_KEYS),
            policy,
            clock: Clock::default(),
            total: Tally::default(),
            timeline: Timeline::default(),
            without_rule: 0,
            shadow_denied: 0,
            keys: Keys {
                hashes: HashSet::new(),
                hasher: RandomState::new(),
                text: String::new(),
            },
        }
    }

    /// Judges all lines of the logs, also by `clients`.
    fn replay<'a>(
        &mut self,
        args: &'a ReplayArgs,
        clients: &mut [&mut Clients],
    ) -> Result<(Pass<'a>, Waiting), Failure> {
        let mut parsing = parsing(args, &self.policy)?;
        let pass = Pass::new(args, &mut parsing, |record, waiting| {
            let now = self.clock.advance(record.time);
            waiting.take(record.key, |request| {
                self.judge(now, request, record.bytes);
                for clients in &mut *clients {
                    clients.judge(now, request, record.bytes);
                }
            });
            Ok(())
        })?;
        Ok((pass, parsing.keys))
    }

    /// Judges one line, at a time in milliseconds.
    fn judge(&mut self, now: u64, request: &Request<'_>, bytes: u64) {
        self.report(timestamp(now), request);
        let is_allowed = self.decide(timestamp(now), request, bytes);
        self.total.count(is_allowed);
        self.timeline.add(now / 1_000, is_allowed);
    }

    /// Counts the decisions in force for one line, and reports it as activity.
    fn report(&mut self, now: Timestamp, request: &Request<'_>) {
        if self.activity.is_empty() {
            return;
        }
        for &kind in &self.kinds {
            let request = request.kind(kind);
            // A path that is too long or unclear matches no rule.
            for rule in self.policy.matches(&request).unwrap_or_default() {
                if let Some(of_rule) = self.activity.get_mut(rule.name()) {
                    of_rule.reported += 1;
                }
            }
            let _ = self.policy.in_force_at(now, &request, |at| {
                let mut all = at.rule.thresholds().iter();
                let index = all.position(|threshold| core::ptr::eq(threshold, at.threshold));
                if let (Some(of_rule), Some(index)) = (self.activity.get_mut(at.rule.name()), index)
                {
                    of_rule.in_force[index] += 1;
                }
            });
            self.policy.report_at(now, &request, 1);
        }
    }

    fn decide(&mut self, now: Timestamp, request: &Request<'_>, bytes: u64) -> bool {
        let Self {
            policy,
            statistics,
            keys,
            kinds,
            ..
        } = self;
        let (mut has_rule, mut is_shadow_denied) = (false, false);
        let is_allowed = ask_each(kinds, request, bytes, |request| {
            let decision = statistics.decide_at(policy, now, request);
            is_shadow_denied |= decision.shadow_denied().is_some();
            let own = decision.rule();
            has_rule |= own.is_some();
            // Also of rules that go on. One that was not asked for permits has decided by itself.
            let asked = decision.rules();
            let asked = asked.filter(|rule| own.is_none_or(|own| !ptr::eq(*rule, own)));
            for rule in asked.chain(own) {
                keys.add(policy, rule, request);
            }
            decision.is_allowed()
        });
        self.without_rule += u64::from(is_allowed && !has_rule);
        self.shadow_denied += u64::from(is_shadow_denied);
        is_allowed
    }
}

/// Whether a log can be read several times.
fn is_file(log: &Path) -> bool {
    !input::is_standard_input(log) && fs::metadata(log).is_ok_and(|data| data.is_file())
}
