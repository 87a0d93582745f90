//! What a policy decided: how often each rule was asked, and the most denied keys, in fixed memory.
//!
//! The counts are kept in shards. A thread counts in one shard, so threads seldom write to the same
//! words. A sum over the shards is the result.

use core::hash::BuildHasher;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::hash::RandomState;
use std::sync::{Mutex, PoisonError};
use std::thread;

use portcullis_core::{Denied, Timestamp};

use crate::frequent::{Entry, Frequent};
use crate::key::KeyOf;
use crate::key::{Key, KeyValues};
use crate::path::PathRules;
use crate::policy::answer::RuleAnswer;
use crate::policy::outcome::Outcome;
use crate::policy::{Decision, Policy};
use crate::request::Request;
use crate::rule::MAX_LIMITS;

/// Counts of the decisions of a [`Policy`], in memory of a fixed size.
///
/// - [`rules`](Self::rules): for each rule, how often it was asked, and what it answered.
/// - [`most_denied`](Self::most_denied): the keys that were denied most often.
/// - [`most_asked`](Self::most_asked): the resources that were asked for most often, if
///   [`resources`](Self::resources) was set.
///
/// A decision counts if it is made with [`decide_at`](Self::decide_at) of the statistics, instead
/// of that of the policy, or is passed to [`count`](Self::count). Statistics are for the rules of
/// one policy. If the rules change, create new ones.
///
/// ```
/// use portcullis_core::Timestamp;
/// use portcullis_policy::{Key, Policy, Request, Rule, Statistics};
///
/// let policy = Policy::new([Rule::new("all").key(Key::address()).limit("2/m".parse()?)]).unwrap();
/// let statistics = Statistics::new(&policy).resources(Key::path(), 100);
/// let now = Timestamp::from_secs(1);
/// for path in ["/a", "/b", "/b"] {
///     let request = Request::new("GET", path).address("192.0.2.7".parse().unwrap());
///     let _ = statistics.decide_at(&policy, now, &request);
/// }
/// let all = &statistics.rules()[0];
/// assert_eq!((all.asked(), all.allowed, all.denied()), (3, 2, 1));
/// let denied = &statistics.most_denied(10)[0];
/// assert_eq!((denied.rule, &*denied.text, denied.count), (Some(0), "192.0.2.7", 1));
/// let asked = &statistics.most_asked(10)[0];
/// assert_eq!((&*asked.text, asked.count, asked.error), ("/b", 2, 0));
/// # Ok::<(), portcullis_policy::PeriodError>(())
/// ```
///
/// # Error
///
/// The counts of rules are exact. Those of keys and resources are exact while there are no more
/// than the table has room for: see [`keys`](Self::keys). With more, each count is too high by at
/// most its [`error`](MostFrequent::error), and too low by nothing if one thread counts, otherwise
/// by at most the number of denials divided by the room. So each key with more than that share of
/// the denials is found.
///
/// # Cost
///
/// - A decision: the cost of [`Policy::decide_at`], and one atomic addition for each rule that is
///   asked.
/// - A denial also locks the table of the thread's shard, and hashes the key. So does each decision
///   with [`resources`](Self::resources).
/// - Neither allocates, except the first lock of a shard on systems that allocate locks.
/// - Memory for each shard: 280 bytes for each key that there is room for, and 112 bytes for each
///   rule. There is one shard for each processor.
pub struct Statistics {
    shards: Box<[Shard]>,
    /// The number of limits of each rule.
    limits: Box<[usize]>,
    hasher: RandomState,
    resource: Option<Key>,
    path_rules: PathRules,
}

struct Shard {
    rules: Box<[Counts]>,
    no_rule: AtomicU64,
    refused_paths: AtomicU64,
    denied: Mutex<Frequent>,
    resources: Mutex<Frequent>,
}

/// The answers of one rule.
#[derive(Default)]
struct Counts {
    allowed: AtomicU64,
    exempt: AtomicU64,
    unidentified: AtomicU64,
    penalized: AtomicU64,
    crowded: AtomicU64,
    overridden: AtomicU64,
    by_limit: [AtomicU64; MAX_LIMITS],
}

/// How often a rule was asked, and what it answered: an element of [`Statistics::rules`]. The
/// answers of a shadow rule are what it would decide.
///
/// ```
/// use portcullis_policy::{Policy, Rule, Statistics};
/// let policy = Policy::new([Rule::new("all")]).unwrap();
/// assert_eq!(Statistics::new(&policy).rules()[0].asked(), 0);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuleCounts {
    /// Requests that all limits of the rule allowed.
    pub allowed: u64,
    /// Requests of clients that the rule exempts.
    pub exempt: u64,
    /// Requests that were denied because they lack a part of the key.
    pub unidentified: u64,
    /// For each limit of the rule, the requests that it denied. A request is counted for one limit.
    pub by_limit: Vec<u64>,
    /// Requests that a limit of an [override](crate::Rule::override_key) denied.
    pub overridden: u64,
    /// Requests that a penalty denied.
    pub penalized: u64,
    /// Requests that were denied because a table of the rule, of a limit or of the penalty, had no
    /// room for their key: see [`Rule::keys`](crate::Rule::keys).
    pub crowded: u64,
}

impl RuleCounts {
    /// Returns the number of requests that the rule denied.
    ///
    /// ```
    /// # use portcullis_policy::RuleCounts;
    /// assert_eq!(RuleCounts::default().denied(), 0);
    /// ```
    pub fn denied(&self) -> u64 {
        let by_limits = self.by_limit.iter().sum::<u64>() + self.overridden;
        self.unidentified + by_limits + self.penalized + self.crowded
    }

    /// Returns the number of requests that the rule was asked about.
    ///
    /// ```
    /// # use portcullis_policy::RuleCounts;
    /// assert_eq!(RuleCounts::default().asked(), 0);
    /// ```
    pub fn asked(&self) -> u64 {
        self.allowed + self.exempt + self.denied()
    }
}

/// One of the most frequent keys or resources: an element of [`Statistics::most_denied`] and
/// [`Statistics::most_asked`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MostFrequent {
    /// The index of the rule that denied, in [`Policy::rules`]; `None` for a resource.
    pub rule: Option<usize>,
    /// The key or the resource as [`KeyValues`](crate::KeyValues) displays it, up to the first 200
    /// bytes. Empty if all requests of the rule share one key.
    pub text: String,
    /// How often it was denied or asked for. May be too high.
    pub count: u64,
    /// By how much the count may be too high.
    pub error: u64,
}

impl Statistics {
    /// Counts for the decisions of `policy`, with room for 100 denied keys, and without resources.
    ///
    /// ```
    /// # use portcullis_policy::{Policy, Rule, Statistics};
    /// let policy = Policy::new([Rule::new("all")]).unwrap();
    /// let _ = Statistics::new(&policy);
    /// ```
    #[must_use]
    pub fn new(policy: &Policy) -> Self {
        let shards = thread::available_parallelism().map_or(1, usize::from);
        let limits: Box<[usize]> = policy.rules().map(|rule| rule.limits().len()).collect();
        let shard = |_| Shard {
            rules: limits.iter().map(|_| Counts::default()).collect(),
            no_rule: AtomicU64::new(0),
            refused_paths: AtomicU64::new(0),
            denied: Mutex::new(Frequent::new(100)),
            resources: Mutex::new(Frequent::new(0)),
        };
        Self {
            shards: (0..shards.next_power_of_two()).map(shard).collect(),
            limits,
            hasher: RandomState::new(),
            resource: None,
            path_rules: policy.path_rules(),
        }
    }

    /// Sets for how many denied keys there is room. With `n`, each key with more than 1 in `n` of
    /// the denials is found.
    ///
    /// ```
    /// # use portcullis_policy::{Policy, Rule, Statistics};
    /// let policy = Policy::new([Rule::new("all")]).unwrap();
    /// let _ = Statistics::new(&policy).keys(10_000);
    /// ```
    #[must_use]
    pub fn keys(mut self, n: usize) -> Self {
        for shard in &mut self.shards {
            shard.denied = Mutex::new(Frequent::new(n));
        }
        self
    }

    /// Counts how often each resource is asked for, with room for `n`. `resource` selects the part
    /// of a request that names its resource, such as [`Key::path`].
    ///
    /// ```
    /// # use portcullis_policy::{Key, Policy, Rule, Statistics};
    /// let policy = Policy::new([Rule::new("all")]).unwrap();
    /// let _ = Statistics::new(&policy).resources(Key::host().and(Key::path()), 1_000);
    /// ```
    #[must_use]
    pub fn resources(mut self, resource: Key, n: usize) -> Self {
        for shard in &mut self.shards {
            shard.resources = Mutex::new(Frequent::new(n));
        }
        self.resource = Some(resource);
        self
    }

    /// Decides a request with `policy` at `now`, as [`Policy::decide_at`] does, and counts the
    /// decision. `policy` must have the rules of the policy for which the statistics were created:
    /// the answers of further rules are not counted.
    ///
    /// ```
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{Policy, Request, Statistics};
    /// let policy = Policy::new([]).unwrap();
    /// let statistics = Statistics::new(&policy);
    /// let _ = statistics.decide_at(&policy, Timestamp::ZERO, &Request::new("GET", "/"));
    /// assert_eq!(statistics.without_rule(), 1);
    /// ```
    pub fn decide_at<'p>(
        &self,
        policy: &'p Policy,
        now: Timestamp,
        request: &Request<'_>,
    ) -> Decision<'p> {
        let shard = self.shard();
        let decision = policy.decide_watched_at(now, request, |answer| {
            self.count_answer(shard, answer, request);
        });
        self.count_request(shard, &decision, request);
        decision
    }

    /// Counts that a request was decided by no rule, and its resource.
    fn count_request(&self, shard: &Shard, decision: &Decision<'_>, request: &Request<'_>) {
        match decision.outcome() {
            Outcome::NoRule => add(&shard.no_rule),
            Outcome::Path(_) => add(&shard.refused_paths),
            _ => {}
        }
        if let Some(resource) = &self.resource {
            let hash = self.hasher.hash_one(self.key_of(resource, request));
            let values = KeyValues::new(resource, request, self.path_rules);
            lock(&shard.resources).count(hash, 0, values);
        }
    }

    /// Counts a decision that was made in another way than by [`decide_at`](Self::decide_at): by
    /// `Policy::acquire` after a wait, for example. `request` is the request that was decided. Of
    /// the answers of shadow rules, only the key of [`Decision::shadow_denied`] is counted, among
    /// [`most_denied`](Self::most_denied).
    ///
    /// # Cost
    ///
    /// That of a count in [`decide_at`](Self::decide_at).
    ///
    /// ```
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{Policy, Request, Rule, Statistics};
    /// let policy = Policy::new([Rule::new("all").limit("1/m".parse()?)]).unwrap();
    /// let statistics = Statistics::new(&policy);
    /// let request = Request::new("GET", "/");
    /// for _ in 0..3 {
    ///     let decision = policy.decide_explained_at(Timestamp::ZERO, &request);
    ///     statistics.count(&decision, &request);
    /// }
    /// let all = &statistics.rules()[0];
    /// assert_eq!((all.allowed, all.denied()), (1, 2));
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    pub fn count(&self, decision: &Decision<'_>, request: &Request<'_>) {
        let shard = self.shard();
        for answer in decision.answers() {
            self.count_answer(shard, answer, request);
        }
        if let Some((index, rule)) = decision.shadow_denial() {
            self.count_key(shard, index, &rule.key, request);
        }
        self.count_request(shard, decision, request);
    }

    fn count_answer(&self, shard: &Shard, answer: RuleAnswer<'_>, request: &Request<'_>) {
        let Some(counts) = shard.rules.get(answer.index) else {
            return;
        };
        match answer.outcome {
            // Not decided.
            Outcome::Stored => return,
            Outcome::Exempt => return add(&counts.exempt),
            Outcome::NoAddress | Outcome::Unidentified => add(&counts.unidentified),
            Outcome::Denied {
                denied: Denied::Crowded { .. },
                ..
            } => add(&counts.crowded),
            Outcome::Denied { limit: None, .. } => add(&counts.penalized),
            Outcome::Denied { .. } if answer.is_overridden() => add(&counts.overridden),
            Outcome::Denied {
                limit: Some(limit), ..
            } => add(&counts.by_limit[limit]),
            Outcome::Allowed | Outcome::NoRule | Outcome::Path(_) => return add(&counts.allowed),
        }
        self.count_key(shard, answer.index, &answer.rule.key, request);
    }

    /// Counts a denial of the key of a request, by the rule with this index.
    fn count_key(&self, shard: &Shard, rule: usize, key: &Key, request: &Request<'_>) {
        let hash = self.hasher.hash_one((rule, self.key_of(key, request)));
        let values = KeyValues::new(key, request, self.path_rules);
        let rule = u32::try_from(rule).unwrap_or(u32::MAX);
        lock(&shard.denied).count(hash, rule, values);
    }

    fn key_of<'k>(&self, key: &'k Key, request: &'k Request<'k>) -> KeyOf<'k> {
        KeyOf::new(key, request, self.path_rules)
    }

    fn shard(&self) -> &Shard {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static THREAD: usize = THREADS.fetch_add(1, Relaxed);
        }
        // A thread that ends counts in the first shard.
        let thread = THREAD.try_with(|thread| *thread).unwrap_or(0);
        &self.shards[thread % self.shards.len()]
    }

    /// Returns the counts of each rule, in the order of [`Policy::rules`].
    ///
    /// A count that other threads add to at the same time may be missing.
    ///
    /// ```
    /// # use portcullis_policy::{Policy, Rule, Statistics};
    /// let policy = Policy::new([Rule::new("a"), Rule::new("b")]).unwrap();
    /// assert_eq!(Statistics::new(&policy).rules().len(), 2);
    /// ```
    pub fn rules(&self) -> Vec<RuleCounts> {
        let counts = |(rule, &limits): (usize, &usize)| {
            let sum = |count: &dyn Fn(&Counts) -> &AtomicU64| {
                let shards = self.shards.iter();
                shards
                    .map(|shard| count(&shard.rules[rule]).load(Relaxed))
                    .sum()
            };
            RuleCounts {
                allowed: sum(&|counts| &counts.allowed),
                exempt: sum(&|counts| &counts.exempt),
                unidentified: sum(&|counts| &counts.unidentified),
                by_limit: (0..limits)
                    .map(|limit| sum(&|counts| &counts.by_limit[limit]))
                    .collect(),
                overridden: sum(&|counts| &counts.overridden),
                penalized: sum(&|counts| &counts.penalized),
                crowded: sum(&|counts| &counts.crowded),
            }
        };
        self.limits.iter().enumerate().map(counts).collect()
    }

    /// Returns the number of requests that no rule decided.
    ///
    /// ```
    /// # use portcullis_policy::{Policy, Statistics};
    /// assert_eq!(Statistics::new(&Policy::new([]).unwrap()).without_rule(), 0);
    /// ```
    pub fn without_rule(&self) -> u64 {
        let counts = self.shards.iter().map(|shard| shard.no_rule.load(Relaxed));
        counts.sum()
    }

    /// Returns the number of requests that were denied because of their path: it is too long, or
    /// services read it in different ways.
    ///
    /// ```
    /// # use portcullis_policy::{Policy, Statistics};
    /// assert_eq!(Statistics::new(&Policy::new([]).unwrap()).refused_paths(), 0);
    /// ```
    pub fn refused_paths(&self) -> u64 {
        let shards = self.shards.iter();
        shards.map(|shard| shard.refused_paths.load(Relaxed)).sum()
    }

    /// Returns the keys that were denied most often, at most `n`, the largest count first. Those
    /// that a [shadow rule](crate::Rule::is_shadow) would have denied are among them.
    ///
    /// # Cost
    ///
    /// Locks each shard in turn, and allocates.
    ///
    /// ```
    /// # use portcullis_policy::{Policy, Statistics};
    /// assert!(Statistics::new(&Policy::new([]).unwrap()).most_denied(5).is_empty());
    /// ```
    pub fn most_denied(&self, n: usize) -> Vec<MostFrequent> {
        self.merged(|shard| &shard.denied, |entry| Some(entry.rule as usize), n)
    }

    /// Returns the resources that were asked for most often, at most `n`, the largest count first.
    ///
    /// # Cost
    ///
    /// Locks each shard in turn, and allocates.
    ///
    /// ```
    /// # use portcullis_policy::{Policy, Statistics};
    /// assert!(Statistics::new(&Policy::new([]).unwrap()).most_asked(5).is_empty());
    /// ```
    pub fn most_asked(&self, n: usize) -> Vec<MostFrequent> {
        self.merged(|shard| &shard.resources, |_| None, n)
    }

    /// Adds up the counts of all shards.
    fn merged(
        &self,
        table: impl Fn(&Shard) -> &Mutex<Frequent>,
        rule: impl Fn(&Entry) -> Option<usize>,
        n: usize,
    ) -> Vec<MostFrequent> {
        let mut entries: Vec<Entry> = Vec::new();
        for shard in &self.shards {
            entries.extend_from_slice(lock(table(shard)).entries());
        }
        entries.sort_by_key(|entry| entry.hash);
        entries.dedup_by(|again, entry| {
            let is_same = again.hash == entry.hash;
            if is_same {
                entry.count += again.count;
                entry.error += again.error;
            }
            is_same
        });
        let mut all: Vec<_> = entries
            .iter()
            .map(|entry| MostFrequent {
                rule: rule(entry),
                text: entry.text.as_str().to_owned(),
                count: entry.count,
                error: entry.error,
            })
            .collect();
        all.sort_by(|a, b| (b.count, a.rule, &a.text).cmp(&(a.count, b.rule, &b.text)));
        all.truncate(n);
        all
    }

    /// Returns by how much the counts of [`most_denied`](Self::most_denied) may be too low, and how
    /// often a key that is not among them may have been denied. 0 while there was room for all.
    ///
    /// ```
    /// # use portcullis_policy::{Policy, Statistics};
    /// assert_eq!(Statistics::new(&Policy::new([]).unwrap()).most_missed(), 0);
    /// ```
    pub fn most_missed(&self) -> u64 {
        let shards = self.shards.iter();
        shards
            .map(|shard| lock(&shard.denied).most_without_entry())
            .sum()
    }
}

fn add(count: &AtomicU64) {
    count.fetch_add(1, Relaxed);
}

/// A table is valid after a panic in a user's function for keys: only a text may be incomplete.
fn lock<T>(table: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

shows!([] Statistics, "Statistics", self:
    "rules" => self.rules(),
    "without_rule" => self.without_rule(),
    "refused_paths" => self.refused_paths()
);
