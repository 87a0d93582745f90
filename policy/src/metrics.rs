//! Measurements of decisions, for recorders of the crate `metrics`.

use core::fmt;
#[cfg(feature = "queue")]
use core::future::{Future, poll_fn};
use core::mem;
#[cfg(feature = "queue")]
use core::pin::pin;
#[cfg(feature = "queue")]
use core::task::Poll;
use core::time::Duration;
use std::sync::Arc;

use ::metrics::{
    Counter, Gauge, Histogram, Label, Unit, counter, describe_counter, describe_gauge,
    describe_histogram, gauge, histogram,
};
use portcullis_core::{Denied, Timestamp};

use crate::policy::outcome::Outcome;
use crate::policy::{Decision, Policy};
#[cfg(feature = "queue")]
use crate::queue::{Acquiring, QueuedDecision};

const REQUESTS: &str = "portcullis.requests";
const ACTIVE: &str = "portcullis.active_request_leases";
const LEASE: &str = "portcullis.request_lease.duration";
const QUEUED: &str = "portcullis.queued_requests";
const FULL: &str = "portcullis.full_tables";
const IN_QUEUE: &str = "portcullis.request.time_in_queue";

/// Six instruments of the crate `metrics` for the decisions of a [`Policy`]. Five of them mean what
/// those of ASP.NET Core's rate limiting mean.
///
/// | instrument | kind, unit | labels | what it measures | in ASP.NET Core |
/// |---|---|---|---|---|
/// | `portcullis.requests` | counter | `policy`, `result` | requests that tried to get a lease | `aspnetcore.rate_limiting.requests` |
/// | `portcullis.active_request_leases` | gauge | `policy` | requests under way that hold a lease | `aspnetcore.rate_limiting.active_request_leases` |
/// | `portcullis.request_lease.duration` | histogram, s | `policy` | how long leases were held | `aspnetcore.rate_limiting.request_lease.duration` |
/// | `portcullis.queued_requests` | gauge | `policy` | requests that wait in a queue | `aspnetcore.rate_limiting.queued_requests` |
/// | `portcullis.request.time_in_queue` | histogram, s | `policy`, `result` | how long requests waited in a queue | `aspnetcore.rate_limiting.request.time_in_queue` |
/// | `portcullis.full_tables` | counter | `policy` | requests that were denied because a table had no room for their key: see [`Rule::keys`](crate::Rule::keys) | |
///
/// - A lease is here an allowed [`Decision`], from the decision to its end.
/// - `policy` is the name of the rule that decided. It is left out if no rule did.
/// - `result` is `acquired`, `denied` or `request_canceled`. ASP.NET Core distinguishes
///   `endpoint_limiter` and `global_limiter` instead of `denied`: here the rule tells that.
///
/// Shadow rules are not measured: see [`Statistics`](crate::Statistics).
///
/// # Cost
///
/// A decision that is not measured costs nothing. The instruments are registered once, for all
/// rules, with the recorder that is installed when the measurements are created. To measure a
/// decision costs what the recorder's instruments cost, and does not allocate here.
///
/// Leases and waits own their instruments, so they can outlive the measurements: see
/// [`RuleMetrics`].
///
/// ```
/// use portcullis_core::Timestamp;
/// use portcullis_policy::{Metrics, Policy, Request, Rule};
///
/// let policy = Policy::new([Rule::new("all").limit("10/s".parse()?)]).unwrap();
/// let metrics = Metrics::new(&policy);
/// let decision = policy.decide_at(Timestamp::from_secs(1), &Request::new("GET", "/"));
/// let lease = metrics.decided(&decision);
/// // The request is served.
/// lease.end_at(Timestamp::from_millis(1_020));
/// # Ok::<(), portcullis_policy::PeriodError>(())
/// ```
pub struct Metrics {
    rules: Box<[RuleMetrics]>,
    without_rule: RuleMetrics,
}

/// The instruments of one rule in [`Metrics`], or those without the label `policy`. Clones
/// share them.
///
/// For a limit that no policy has, such as a limiter in code:
///
/// ```
/// use portcullis_core::{Concurrency, Timestamp};
/// use portcullis_policy::RuleMetrics;
///
/// let limiter = Concurrency::new(8);
/// let metrics = RuleMetrics::new(Some("uploads"));
/// let lease = limiter.try_acquire(1);
/// let measured = metrics.decided_at(Timestamp::from_secs(1), lease.is_ok());
/// // The request is served.
/// measured.end_at(Timestamp::from_millis(1_020));
/// ```
#[derive(Clone)]
pub struct RuleMetrics(Arc<OfRule>);

/// How the wait of a request in a queue ended.
///
/// ```
/// use portcullis_policy::QueueResult;
/// assert_ne!(QueueResult::Acquired, QueueResult::Canceled);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum QueueResult {
    /// The request was allowed.
    Acquired,
    /// The request was denied: its deadline passed, or it lost its place.
    Denied,
    /// The client gave up.
    Canceled,
}

/// The names of results, in the order of [`QueueResult`].
const RESULTS: [&str; 3] = ["acquired", "denied", "request_canceled"];

/// The instruments of one rule.
struct OfRule {
    /// For each result.
    requests: [Counter; 3],
    in_queue: [Histogram; 3],
    active: Gauge,
    lease: Histogram,
    queued: Gauge,
    full: Counter,
}

impl OfRule {
    fn new(rule: Option<&str>) -> Self {
        let policy = || rule.map(|name| Label::new("policy", name.to_owned()));
        let labels = |result: Option<&'static str>| -> Vec<Label> {
            let result = result.map(|result| Label::new("result", result));
            policy().into_iter().chain(result).collect()
        };
        Self {
            requests: RESULTS.map(|result| counter!(REQUESTS, labels(Some(result)))),
            in_queue: RESULTS.map(|result| histogram!(IN_QUEUE, labels(Some(result)))),
            active: gauge!(ACTIVE, labels(None)),
            lease: histogram!(LEASE, labels(None)),
            queued: gauge!(QUEUED, labels(None)),
            full: counter!(FULL, labels(None)),
        }
    }
}

fn describe() {
    describe_counter!(REQUESTS, Unit::Count, "Requests that tried to get a lease.");
    describe_gauge!(ACTIVE, Unit::Count, "Requests under way that hold a lease.");
    describe_histogram!(LEASE, Unit::Seconds, "How long leases were held.");
    describe_gauge!(QUEUED, Unit::Count, "Requests that wait in a queue.");
    describe_histogram!(
        IN_QUEUE,
        Unit::Seconds,
        "How long requests waited in a queue."
    );
    describe_counter!(FULL, Unit::Count, "Requests that a full table denied.");
}

impl RuleMetrics {
    /// Registers the instruments with this label `policy`, or without it.
    ///
    /// ```
    /// # use portcullis_policy::RuleMetrics;
    /// let _ = RuleMetrics::new(None);
    /// ```
    #[must_use]
    pub fn new(policy: Option<&str>) -> Self {
        describe();
        Self::registered(policy)
    }

    fn registered(policy: Option<&str>) -> Self {
        Self(Arc::new(OfRule::new(policy)))
    }

    /// Counts a request that was decided at `now`. The result counts as an active lease, if the
    /// request is allowed, until it is ended or dropped.
    ///
    /// ```
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::RuleMetrics;
    /// let denied = RuleMetrics::new(None).decided_at(Timestamp::ZERO, false);
    /// drop(denied);
    /// ```
    pub fn decided_at(&self, now: Timestamp, is_allowed: bool) -> MeasuredLease {
        let result = if is_allowed {
            QueueResult::Acquired
        } else {
            QueueResult::Denied
        };
        self.0.requests[result as usize].increment(1);
        if is_allowed {
            self.0.active.increment(1.0);
        }
        MeasuredLease {
            of_rule: is_allowed.then(|| self.clone()),
            since: now,
            others: Vec::new(),
        }
    }

    /// Counts a request as one that waits in a queue, until the result is ended or dropped.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_policy::{QueueResult, RuleMetrics};
    /// let waits = RuleMetrics::new(None).queued();
    /// waits.end(Duration::from_millis(3), QueueResult::Canceled);
    /// ```
    pub fn queued(&self) -> MeasuredWait {
        self.0.queued.increment(1.0);
        MeasuredWait {
            of_rule: self.clone(),
        }
    }
}

impl Metrics {
    /// Registers the instruments for all rules of `policy`. If the rules change, create new
    /// measurements: they continue those of rules with the same names.
    ///
    /// ```
    /// # use portcullis_policy::{Metrics, Policy};
    /// let _ = Metrics::new(&Policy::new([]).unwrap());
    /// ```
    #[must_use]
    pub fn new(policy: &Policy) -> Self {
        describe();
        Self {
            rules: policy
                .rules()
                .map(|rule| RuleMetrics::registered(Some(rule.name())))
                .collect(),
            without_rule: RuleMetrics::registered(None),
        }
    }

    /// Returns the instruments of the rule that decided, or those without a rule.
    ///
    /// ```
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{Metrics, Policy, Request};
    /// let policy = Policy::new([]).unwrap();
    /// let metrics = Metrics::new(&policy);
    /// let decision = policy.decide_at(Timestamp::ZERO, &Request::new("GET", "/"));
    /// drop(metrics.of(&decision).decided_at(Timestamp::ZERO, true));
    /// ```
    pub fn of(&self, decision: &Decision<'_>) -> &RuleMetrics {
        let rule = decision.rule_index();
        let rule = rule.and_then(|index| self.rules.get(index));
        rule.unwrap_or(&self.without_rule)
    }

    /// Returns the instruments of each rule that an allowed request took from, or of the one that
    /// denied it; or those without a rule.
    ///
    /// ```
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{Metrics, Policy, Request, Rule};
    /// let rules = [Rule::new("a").continuing(), Rule::new("b")];
    /// let policy = Policy::new(rules).unwrap();
    /// let metrics = Metrics::new(&policy);
    /// let decision = policy.decide_at(Timestamp::ZERO, &Request::new("GET", "/"));
    /// assert_eq!(metrics.each(&decision).count(), 2);
    /// ```
    pub fn each(&self, decision: &Decision<'_>) -> impl Iterator<Item = &RuleMetrics> {
        let own = decision
            .rule_index()
            .is_none()
            .then_some(&self.without_rule);
        let answers = decision.answers();
        own.into_iter()
            .chain(answers.filter_map(|answer| self.rules.get(answer.index)))
    }

    /// Counts a decision of the policy for which the measurements were created, once for [each
    /// rule](Self::each). The result counts as an active lease, if the decision allows the request,
    /// until it is ended or dropped.
    ///
    /// ```
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{Metrics, Policy, Request};
    /// let policy = Policy::new([]).unwrap();
    /// let metrics = Metrics::new(&policy);
    /// let decision = policy.decide_at(Timestamp::ZERO, &Request::new("GET", "/"));
    /// let lease = metrics.decided(&decision);
    /// drop(lease);
    /// ```
    pub fn decided(&self, decision: &Decision<'_>) -> MeasuredLease {
        if let Outcome::Denied {
            denied: Denied::Crowded { .. },
            ..
        } = decision.outcome()
        {
            self.of(decision).0.full.increment(1);
        }
        let of = |of_rule: &RuleMetrics| {
            of_rule.decided_at(decision.decided_at(), decision.is_allowed())
        };
        let mut leases = self.each(decision).map(of);
        let mut all = leases.next().unwrap_or_else(|| of(&self.without_rule));
        all.others.extend(leases);
        all
    }

    /// Counts a request as one that waits in a queue, until the result is ended or dropped.
    /// `decision` is the denial after which it waits. For a wait in the queue of a rule,
    /// `Metrics::acquire` (feature `queue`) measures all of it. Do not count that decision by
    /// [`decided`](Self::decided): count the last one, after the wait.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{Limit, Metrics, Policy, QueueResult, Request, Rule};
    /// let policy = Policy::new([Rule::new("all").limit(Limit::at_once(1))]).unwrap();
    /// let metrics = Metrics::new(&policy);
    /// let decide = || policy.decide_at(Timestamp::ZERO, &Request::new("GET", "/"));
    /// let first = decide();
    /// let waits = metrics.queued(&decide());
    /// drop(first);
    /// waits.end(Duration::from_millis(3), QueueResult::Acquired);
    /// metrics.decided(&decide()).end_at(Timestamp::from_millis(9));
    /// ```
    pub fn queued(&self, decision: &Decision<'_>) -> MeasuredWait {
        self.of(decision).queued()
    }
}

#[cfg(feature = "queue")]
impl Metrics {
    /// Waits for the decision on a request, and measures the wait and the decision. If the request
    /// is cancelled while it waits, because the future is dropped, that is measured too.
    ///
    /// ```
    /// # use portcullis_policy::{Limit, Metrics, Policy, Request, Rule};
    /// # futures_executor::block_on(async {
    /// let policy = Policy::new([Rule::new("all").limit(Limit::at_once(1).queue(10))]).unwrap();
    /// let metrics = Metrics::new(&policy);
    /// let (decision, lease) = metrics.acquire(policy.acquire(&Request::new("GET", "/"))).await;
    /// assert!(decision.is_allowed());
    /// // The request is served.
    /// lease.end_at(policy.now());
    /// # });
    /// ```
    pub async fn acquire<'p>(&self, request: Acquiring<'p>) -> (QueuedDecision<'p>, MeasuredLease) {
        let mut request = pin!(request);
        let mut wait: Option<MeasuredQueue<'p>> = None;
        let decision = poll_fn(|context| {
            let polled = request.as_mut().poll(context);
            if let (Poll::Pending, None) = (&polled, &wait) {
                let waits = request.as_ref().get_ref();
                wait = waits.waits_for().map(|denial| MeasuredQueue {
                    wait: Some(self.queued(denial)),
                    policy: waits.policy(),
                    since: waits.policy().now(),
                });
            }
            polled
        })
        .await;
        if let Some(wait) = wait.as_mut().and_then(|wait| wait.wait.take()) {
            let result = if decision.is_allowed() {
                QueueResult::Acquired
            } else {
                QueueResult::Denied
            };
            wait.end(decision.waited(), result);
        }
        let lease = self.decided(&decision);
        (decision, lease)
    }
}

/// A wait that is measured as cancelled when it is dropped.
#[cfg(feature = "queue")]
struct MeasuredQueue<'p> {
    /// `None` if it was measured.
    wait: Option<MeasuredWait>,
    policy: &'p Policy,
    since: Timestamp,
}

#[cfg(feature = "queue")]
impl Drop for MeasuredQueue<'_> {
    fn drop(&mut self) {
        if let Some(wait) = self.wait.take() {
            let waited = self.policy.now().saturating_since(self.since);
            wait.end(waited, QueueResult::Canceled);
        }
    }
}

/// An active lease in [`Metrics`], if the request was allowed.
#[must_use = "dropping it ends the active lease"]
pub struct MeasuredLease {
    /// `None` if the request was denied.
    of_rule: Option<RuleMetrics>,
    since: Timestamp,
    /// Those of the other rules that the request took from.
    others: Vec<MeasuredLease>,
}

impl MeasuredLease {
    /// Ends the lease at `now`, and records its duration since the decision.
    ///
    /// ```
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{Metrics, Policy, Request};
    /// let policy = Policy::new([]).unwrap();
    /// let metrics = Metrics::new(&policy);
    /// let decision = policy.decide_at(Timestamp::ZERO, &Request::new("GET", "/"));
    /// metrics.decided(&decision).end_at(Timestamp::from_millis(20));
    /// ```
    pub fn end_at(mut self, now: Timestamp) {
        if let Some(of_rule) = &self.of_rule {
            let duration = now.saturating_since(self.since);
            of_rule.0.lease.record(duration.as_secs_f64());
        }
        for other in mem::take(&mut self.others) {
            other.end_at(now);
        }
    }
}

impl Drop for MeasuredLease {
    fn drop(&mut self) {
        if let Some(of_rule) = &self.of_rule {
            of_rule.0.active.decrement(1.0);
        }
    }
}

/// A request that waits in a queue, in [`Metrics`].
#[must_use = "dropping it ends the wait"]
pub struct MeasuredWait {
    of_rule: RuleMetrics,
}

impl MeasuredWait {
    /// Ends the wait after `waited`, and records its duration. A request that gave up is also
    /// counted as a request: no decision follows.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{Metrics, Policy, QueueResult, Request};
    /// let policy = Policy::new([]).unwrap();
    /// let metrics = Metrics::new(&policy);
    /// let decision = policy.decide_at(Timestamp::ZERO, &Request::new("GET", "/"));
    /// metrics.queued(&decision).end(Duration::from_millis(3), QueueResult::Canceled);
    /// ```
    pub fn end(self, waited: Duration, result: QueueResult) {
        let of_rule = &self.of_rule.0;
        of_rule.in_queue[result as usize].record(waited.as_secs_f64());
        if result == QueueResult::Canceled {
            of_rule.requests[result as usize].increment(1);
        }
    }
}

impl Drop for MeasuredWait {
    fn drop(&mut self) {
        self.of_rule.0.queued.decrement(1.0);
    }
}

shows!([] Metrics, "Metrics", self: "rules" => self.rules.len());

impl fmt::Debug for MeasuredLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MeasuredLease")
            .field("is_active", &self.of_rule.is_some())
            .field("since", &self.since)
            .field("others", &self.others)
            .finish()
    }
}

shows!([] RuleMetrics, "RuleMetrics");

shows!([] MeasuredWait, "MeasuredWait");
