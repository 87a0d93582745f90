//! Counts of what was decided and answered, in fixed memory.
//!
//! The statistics of a policy are for its rules alone. So each policy that comes in force has its
//! own, and the counts of those before go on under the names of their rules:
//!
//! ```text
//! decision ---> the statistics of the policy that decided: the one in force, or the one before
//!                                |
//!                                v  when two others have come in force since
//!                     `ended`: counts by rule and answer, of rules that are still there
//! ```
//!
//! **Enforced or not** is a fact of a decision, not of the rule: it may have been a shadow then and
//! none now. So a denial counts as one in shadow if its policy had the rule as a shadow.

use core::cmp::Reverse;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU64};
use core::time::Duration;
use core::{mem, ptr};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::SystemTime;

use http::StatusCode;
use portcullis_policy::{
    About, Decision, DecisionLog, Limit, LivePolicy, Policy, Rule, RuleCounts, SharedPolicy,
    Statistics,
};
use portcullis_tower::Watched;

use crate::original::askers;

/// What a rule answered: the rule, the answer, and the limit that denied.
pub(crate) type Answered = (String, &'static str, String);

/// The upper bounds of the times of answers, in microseconds.
pub(crate) const MICROS: [u64; 12] = [
    50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 50_000, 200_000, 1_000_000, 5_000_000,
];

/// How many denied keys of policies that are no longer in force are kept.
const ENDED_KEYS: usize = 1_000;

/// A key that is denied: the rule, whether the denials were enforced, and the key.
pub(crate) type Denied = (String, bool, String);

/// How often a key was denied.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Denials {
    pub(crate) count: u64,
    /// By how much the count may be too high: what keys had that are no longer counted.
    error: u64,
    /// On average over the last seconds.
    pub(crate) per_second: f64,
}

/// What was counted up to one second.
#[derive(Default)]
struct Sample {
    answers: BTreeMap<Answered, u64>,
    keys: BTreeMap<Denied, Denials>,
}

/// The first and the last status of HTTP that is counted.
const STATUSES: core::ops::Range<u16> = 200..600;

/// The number of samples: one more than the seconds over which rates are averaged.
const SAMPLES: usize = 11;

/// Counts of one policy.
struct OfPolicy {
    policy: SharedPolicy,
    statistics: Statistics,
    /// For each rule, how often it would have denied as a shadow rule: by each of its limits, and
    /// in another way.
    shadows: Box<[Box<[AtomicU64]>]>,
}

/// Counts since the start of the program.
pub(crate) struct Counts {
    started: SystemTime,
    live: LivePolicy,
    /// Whether requests pass in spite of denials.
    is_shadow: bool,
    log: DecisionLog,
    policies: RwLock<Policies>,
    /// What the rules had answered at each of the last seconds: the newest first.
    samples: Mutex<VecDeque<Sample>>,
    answers: Box<[Answers]>,
    malformed: AtomicU64,
    untrusted: AtomicU64,
    reloads: [AtomicU64; 2],
    refused_file: Mutex<Option<RefusedFile>>,
    lacks_restart: AtomicBool,
    connections: AtomicU64,
}

/// Why the policy file is not in force.
#[derive(Clone, Debug)]
pub(crate) struct RefusedFile {
    /// Since when, whatever is wrong by now.
    pub(crate) since: SystemTime,
    pub(crate) why: String,
}

#[derive(Default)]
struct Policies {
    /// The policy in force, and the one before: the newest first.
    present: Vec<Arc<OfPolicy>>,
    ended: BTreeMap<Answered, u64>,
    ended_keys: BTreeMap<Denied, Denials>,
}

/// The answers to one proxy.
struct Answers {
    by_status: Box<[AtomicU64]>,
    /// One more than there are bounds.
    by_time: [AtomicU64; MICROS.len() + 1],
    micros: AtomicU64,
}

/// The times of the answers to one proxy.
pub(crate) struct Times {
    pub(crate) by_time: [u64; MICROS.len() + 1],
    pub(crate) micros: u64,
}

/// The label of what a limit of an override has denied.
const OVERRIDE: &str = "override";

/// A count for each limit of a rule, one for its overrides, and one for what no limit denied.
fn of_limits(rule: &Rule) -> Box<[AtomicU64]> {
    let counts = 0..rule.limits().len() + 2;
    counts.map(|_| AtomicU64::new(0)).collect()
}

impl OfPolicy {
    fn new(policy: SharedPolicy) -> Arc<Self> {
        Arc::new(Self {
            statistics: Statistics::new(&policy),
            shadows: policy.rules().map(of_limits).collect(),
            policy,
        })
    }

    fn is_of(&self, policy: &Policy) -> bool {
        ptr::eq::<Policy>(&raw const *self.policy, policy)
    }

    /// Counts that a shadow rule would have denied.
    fn count_shadow(&self, decision: &Decision<'_>) {
        let Some(shadow) = decision.shadow_denied() else {
            return;
        };
        let is_it = |rule: &Rule| ptr::eq(rule, shadow);
        let Some(index) = self.policy.rules().position(is_it) else {
            return;
        };
        let by = decision.shadow_denied_by();
        let is_by = |limit: &Limit| by.is_some_and(|by| ptr::eq(by, limit));
        let limits = shadow.limits();
        let other = limits.len() + usize::from(by.is_none());
        let at = limits.iter().position(is_by).unwrap_or(other);
        self.shadows[index][at].fetch_add(1, Relaxed);
    }

    /// Adds the counts of the denied keys to `sums`.
    fn add_keys_to(&self, sums: &mut BTreeMap<Denied, Denials>) {
        let rules: Vec<&Rule> = self.policy.rules().collect();
        for denied in self.statistics.most_denied(usize::MAX) {
            if let Some(rule) = denied.rule.and_then(|index| rules.get(index)) {
                let key = (rule.name().to_owned(), !rule.is_shadow(), denied.text);
                let sum = sums.entry(key).or_default();
                sum.count += denied.count;
                sum.error += denied.error;
            }
        }
    }

    /// Adds the counts of each rule to `sums`.
    fn add_to(&self, sums: &mut BTreeMap<Answered, u64>) {
        let mut add = |rule: &str, answer, limit: String, count| {
            *sums.entry((rule.to_owned(), answer, limit)).or_default() += count;
        };
        let counts = self.statistics.rules();
        for ((rule, counts), shadows) in self.policy.rules().zip(&counts).zip(&self.shadows) {
            let RuleCounts {
                allowed,
                exempt,
                unidentified,
                by_limit,
                overridden,
                penalized,
                crowded,
                ..
            } = counts;
            let name = rule.name();
            if rule.is_shadow() {
                let limits = rule.limits().iter().map(ToString::to_string);
                let of_override = limits.len();
                let ways = limits.chain([OVERRIDE.to_owned(), String::new()]);
                for (index, (limit, count)) in ways.zip(shadows).enumerate() {
                    let count = count.load(Relaxed);
                    // The other ways are seldom: a rule without limits has no other sample.
                    if index < of_override || count > 0 || limit.is_empty() && of_override == 0 {
                        add(name, "shadow_denied", limit, count);
                    }
                }
                continue;
            }
            for (answer, count) in [
                ("allowed", allowed),
                ("exempt", exempt),
                ("unidentified", unidentified),
                ("penalized", penalized),
                ("crowded", crowded),
            ] {
                add(name, answer, String::new(), *count);
            }
            for (limit, count) in rule.limits().iter().zip(by_limit) {
                add(name, "denied", limit.to_string(), *count);
            }
            if rule.parts().has_overrides {
                add(name, "denied", OVERRIDE.to_owned(), *overridden);
            }
        }
        add("", "no_rule", String::new(), self.statistics.without_rule());
        let refused = self.statistics.refused_paths();
        add("", "refused_path", String::new(), refused);
    }
}

impl Counts {
    pub(crate) fn new(live: LivePolicy, is_shadow: bool) -> Self {
        let counts = || (0..).map(|_| AtomicU64::new(0));
        let answers = askers().map(|_| Answers {
            by_status: counts().take(STATUSES.len()).collect(),
            by_time: [const { AtomicU64::new(0) }; MICROS.len() + 1],
            micros: AtomicU64::new(0),
        });
        Self {
            started: SystemTime::now(),
            policies: RwLock::new(Policies::default()),
            samples: Mutex::new(VecDeque::new()),
            live,
            is_shadow,
            log: DecisionLog::new(),
            answers: answers.collect(),
            malformed: AtomicU64::new(0),
            untrusted: AtomicU64::new(0),
            reloads: [const { AtomicU64::new(0) }; 2],
            refused_file: Mutex::new(None),
            lacks_restart: AtomicBool::new(false),
            connections: AtomicU64::new(0),
        }
    }

    /// Counts and logs a decision.
    pub(crate) fn decided(&self, seen: &Watched<'_>) {
        if let Some(of) = self.of(seen.policy) {
            of.statistics.count(seen.decision, seen.request);
            of.count_shadow(seen.decision);
        }
        let mut about = About::new().shadow(self.is_shadow);
        (about.limit, about.retry) = (seen.limit_in_store, seen.retry);
        self.log
            .record_at(seen.now, seen.request, seen.decision, about);
    }

    /// When the program started, and with it the limits that it keeps.
    pub(crate) fn started(&self) -> SystemTime {
        self.started
    }

    /// The counts of a policy. `None` if two others have come in force since it was.
    fn of(&self, policy: &Policy) -> Option<Arc<OfPolicy>> {
        let find = |present: &[Arc<OfPolicy>]| {
            let found = present.iter().find(|of| of.is_of(policy));
            found.map(Arc::clone)
        };
        let policies = self.policies.read();
        let found = find(&policies.unwrap_or_else(PoisonError::into_inner).present);
        if found.is_some() {
            return found;
        }
        let policies = self.policies.write();
        let mut policies = policies.unwrap_or_else(PoisonError::into_inner);
        let in_force = self.live.load();
        let is_first = find(&policies.present).is_none();
        if is_first && ptr::eq::<Policy>(&raw const *in_force, policy) {
            policies.begin(OfPolicy::new(in_force.share()));
        }
        find(&policies.present)
    }

    pub(crate) fn answered(&self, proxy: usize, status: StatusCode, time: Duration) {
        let answers = &self.answers[proxy];
        let index = status.as_u16().checked_sub(STATUSES.start);
        if let Some(count) = index.and_then(|index| answers.by_status.get(usize::from(index))) {
            count.fetch_add(1, Relaxed);
        }
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let bound = MICROS.partition_point(|&bound| bound < micros);
        answers.by_time[bound].fetch_add(1, Relaxed);
        answers.micros.fetch_add(micros, Relaxed);
    }

    pub(crate) fn malformed(&self) {
        self.malformed.fetch_add(1, Relaxed);
    }

    pub(crate) fn untrusted(&self) {
        self.untrusted.fetch_add(1, Relaxed);
    }

    pub(crate) fn reloaded(&self, is_changed: bool) {
        self.reloads[usize::from(is_changed)].fetch_add(1, Relaxed);
    }

    /// Notes why the file is refused, or that it is not.
    pub(crate) fn file_is_refused(&self, why: Option<&str>) {
        let refused = self.refused_file.lock();
        let mut refused = refused.unwrap_or_else(PoisonError::into_inner);
        let since = |before: &RefusedFile| before.since;
        *refused = why.map(|why| RefusedFile {
            since: refused.as_ref().map_or_else(SystemTime::now, since),
            why: why.to_owned(),
        });
    }

    /// Why the file is refused, if it is.
    pub(crate) fn refused_file(&self) -> Option<RefusedFile> {
        let refused = self.refused_file.lock();
        refused.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes whether the table `serve` is another one than that of the start.
    pub(crate) fn lacks_restart(&self, lacks: bool) {
        self.lacks_restart.store(lacks, Relaxed);
    }

    pub(crate) fn is_restart_lacking(&self) -> bool {
        self.lacks_restart.load(Relaxed)
    }

    /// Counts a connection until the result is dropped.
    pub(crate) fn connected(self: &Arc<Self>) -> Connected {
        self.connections.fetch_add(1, Relaxed);
        Connected(Arc::clone(self))
    }

    pub(crate) fn connections(&self) -> u64 {
        self.connections.load(Relaxed)
    }

    /// Checks that were about no request, and connections of peers that may not ask.
    pub(crate) fn refused(&self) -> (u64, u64) {
        (self.malformed.load(Relaxed), self.untrusted.load(Relaxed))
    }

    /// How often a change of the file was refused, and put in force.
    pub(crate) fn reloads(&self) -> [u64; 2] {
        [0, 1].map(|index| self.reloads[index].load(Relaxed))
    }

    /// Whether requests pass in spite of denials.
    pub(crate) fn is_shadow(&self) -> bool {
        self.is_shadow
    }

    pub(crate) fn live(&self) -> &LivePolicy {
        &self.live
    }

    /// What each rule in force has answered since it is there.
    pub(crate) fn decisions(&self) -> BTreeMap<Answered, u64> {
        // The policy in force has counts also before its first decision.
        let in_force = self.live.load();
        self.of(&in_force);
        let policies = self.policies.read();
        let policies = policies.unwrap_or_else(PoisonError::into_inner);
        let mut sums = policies.ended.clone();
        for of in &policies.present {
            of.add_to(&mut sums);
        }
        sums.retain(|(rule, _, _), _| rule.is_empty() || in_force.rule(rule).is_some());
        sums
    }

    /// Notes what the rules have answered by now. To be called once a second.
    pub(crate) fn sample(&self) {
        let sample = Sample {
            answers: self.decisions(),
            keys: self.sums_of_keys(),
        };
        let samples = self.samples.lock();
        let mut samples = samples.unwrap_or_else(PoisonError::into_inner);
        samples.push_front(sample);
        samples.truncate(SAMPLES);
    }

    /// What the rules answer per second, on average over the last seconds.
    pub(crate) fn rates(&self) -> BTreeMap<Answered, f64> {
        let samples = self.samples.lock();
        let samples = samples.unwrap_or_else(PoisonError::into_inner);
        let (Some(newest), Some(oldest)) = (samples.front(), samples.back()) else {
            return BTreeMap::new();
        };
        let rate = |(answered, count): (&Answered, &u64)| {
            let before = oldest.answers.get(answered).copied().unwrap_or(0);
            let rate = per_second(samples.len(), count.saturating_sub(before));
            (answered.clone(), rate)
        };
        newest.answers.iter().map(rate).collect()
    }

    /// The keys that rules in force have denied, or would have denied as shadows, and how often:
    /// those that are denied now first, then the largest count first.
    pub(crate) fn denied_keys(&self) -> Vec<(Denied, Denials)> {
        let mut keys: Vec<_> = self.sums_of_keys().into_iter().collect();
        let samples = self.samples.lock();
        let samples = samples.unwrap_or_else(PoisonError::into_inner);
        if let (Some(newest), Some(oldest)) = (samples.front(), samples.back()) {
            for (key, denials) in &mut keys {
                let Some(now) = newest.keys.get(key) else {
                    continue;
                };
                // What a key has of others was not denied since.
                let before = oldest
                    .keys
                    .get(key)
                    .map_or(now.error, |before| before.count);
                let more = now.count.saturating_sub(before);
                denials.per_second = per_second(samples.len(), more);
            }
        }
        keys.sort_by(|(_, one), (_, other)| {
            let rates = other.per_second.total_cmp(&one.per_second);
            rates.then(other.count.cmp(&one.count))
        });
        keys
    }

    /// The keys that rules in force have denied, or would have denied as shadows.
    fn sums_of_keys(&self) -> BTreeMap<Denied, Denials> {
        let in_force = self.live.load();
        self.of(&in_force);
        let policies = self.policies.read();
        let policies = policies.unwrap_or_else(PoisonError::into_inner);
        let mut sums = policies.ended_keys.clone();
        for of in &policies.present {
            of.add_keys_to(&mut sums);
        }
        sums.retain(|(rule, _, _), _| in_force.rule(rule).is_some());
        sums
    }

    /// How often a proxy was answered with each status, without those that it never was.
    pub(crate) fn statuses(&self, proxy: usize) -> impl Iterator<Item = (u16, u64)> {
        let counts = self.answers[proxy].by_status.iter();
        let counts = counts.map(|count| count.load(Relaxed));
        STATUSES.zip(counts).filter(|(_, count)| *count > 0)
    }

    pub(crate) fn times(&self, proxy: usize) -> Times {
        let answers = &self.answers[proxy];
        Times {
            by_time: core::array::from_fn(|bound| answers.by_time[bound].load(Relaxed)),
            micros: answers.micros.load(Relaxed),
        }
    }
}

/// The average over a number of samples.
fn per_second(samples: usize, more: u64) -> f64 {
    let seconds = u32::try_from(samples - 1).unwrap_or(u32::MAX).max(1);
    f64::from(u32::try_from(more).unwrap_or(u32::MAX)) / f64::from(seconds)
}

impl Policies {
    /// Begins to count the decisions of another policy.
    fn begin(&mut self, of: Arc<OfPolicy>) {
        let is_there = |(rule, _, _): &Answered| rule.is_empty() || of.policy.rule(rule).is_some();
        while self.present.len() > 1
            && let Some(oldest) = self.present.pop()
        {
            oldest.add_to(&mut self.ended);
            self.ended.retain(|answered, _| is_there(answered));
            let mut keys = mem::take(&mut self.ended_keys);
            oldest.add_keys_to(&mut keys);
            keys.retain(|(rule, _, _), _| of.policy.rule(rule).is_some());
            let mut keys: Vec<_> = keys.into_iter().collect();
            keys.sort_by_key(|(_, denials)| Reverse(denials.count));
            keys.truncate(ENDED_KEYS);
            self.ended_keys = keys.into_iter().collect();
        }
        self.present.insert(0, of);
    }
}

/// An open connection.
pub(crate) struct Connected(Arc<Counts>);

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Relaxed);
    }
}
