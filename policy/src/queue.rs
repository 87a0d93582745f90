//! Requests that wait until the limits of their rule have permits for them.
//!
//! [`Policy::acquire`] decides a request as [`Policy::decide_at`] does. If each limit that denies
//! it has a queue, it waits in the queue of its key: see `store/waits.rs`.

use core::future::Future;
use core::ops::Deref;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use core::time::Duration;
use std::sync::Arc;

use pin_project_lite::pin_project;
use portcullis_async::{Acquire, QueueCounts, QueueKey, ReentrantTimer, Rejected};
use portcullis_core::{Clock, Lease, Limiter, Retry, Timestamp};

use crate::overrides::Overrides;
use crate::policy::active::Active;
use crate::policy::{Decision, Policy};
use crate::request::{Kind, Request};
use crate::store::waits::RuleQueue;
use crate::store::{How, Store};
use crate::timers::{QueueTimer, Timers, queued};

mod blocking;
mod owned;
mod stored;

pub use self::owned::{OwnedAcquiring, OwnedQueuedDecision};
pub use self::stored::{Acquired, Asking, OwnedStoredDecision};

impl Policy {
    /// Sets the timers of the queues in which requests wait: `create` is called for each queue, and
    /// once for the time of the policy. All timers that it returns must tell the same time. The
    /// default is a [`ThreadTimer`](portcullis_async::ThreadTimer), which works with any executor.
    ///
    /// The timers drive the queues: when permits are due, a timer makes the grants, and no request
    /// that waits has to be polled for them. So each timer must be a [`ReentrantTimer`], which may
    /// be set during one of its own wake-ups.
    ///
    /// A policy that [replaces](crate::LivePolicy::replace_at) another one takes over its timers,
    /// unless it has set its own.
    ///
    /// ```
    /// use portcullis_async::ThreadTimer;
    /// use portcullis_policy::{Limit, Policy, Rule};
    ///
    /// let rule = Rule::new("uploads").limit(Limit::at_once(3).queue(10));
    /// // With tokio, for example: TokioTimer::new.
    /// let policy = Policy::new([rule]).unwrap().with_timer(ThreadTimer::new);
    /// # let _ = policy;
    /// ```
    #[must_use]
    pub fn with_timer<T: ReentrantTimer + Send + Sync + 'static>(
        mut self,
        create: impl Fn() -> T + Send + Sync + 'static,
    ) -> Self {
        self.timers = Timers {
            create: Some(Arc::new(move || QueueTimer::new(create()))),
        };
        self.clock = self.timers.create();
        self.create_queues();
        self
    }

    /// Returns the present time of the policy's timers. [`acquire`](Self::acquire) decides at this
    /// time. If other requests of the policy are decided by [`decide_at`](Self::decide_at), pass
    /// this time, or that of a clock with the same origin: for the default timer, a
    /// [`MonotonicClock`](portcullis_core::MonotonicClock).
    ///
    /// ```
    /// # use portcullis_policy::{Policy, Request};
    /// let policy = Policy::new([]).unwrap();
    /// assert!(policy.decide_at(policy.now(), &Request::new("GET", "/")).is_allowed());
    /// ```
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Decides a request, and takes its permits if it is allowed. If only limits with a
    /// [queue](crate::Limit::queue) deny it, it waits until they have its permits.
    ///
    /// The request is decided by this call. The future waits, and does not borrow the request: the
    /// request enters the queue at the first poll. Drop the future to cancel the request. A request
    /// that waits holds nothing of the limits.
    ///
    /// - A limit without a queue, a penalty, and a request for more permits than a limit can ever
    ///   have deny at once. So does a limit without a queue while the request waits for others.
    /// - Requests that find the queue of their key full are denied, or evict others: see
    ///   [`QueueOrder`](crate::QueueOrder).
    /// - A request that waits starts no penalty. If it is denied, its denial does. Others that wait
    ///   then wait for the end of the penalty.
    /// - Shadow rules are asked once, before the wait, and make no request wait.
    /// - A request that [several rules](crate::Rule::continuing) limit waits in the queue of the
    ///   first that denies, and then takes from the others. If another one with a queue denies
    ///   then, it waits there.
    ///
    /// The order of requests holds for all methods of the policy: in
    /// [oldest-first order](crate::QueueOrder::OldestFirst), [`decide_at`](Self::decide_at) denies
    /// a request while others wait for the same key.
    ///
    /// # Cost
    ///
    /// That of `decide_at` if the request is granted or denied at once. A wait costs what a wait in
    /// a [`KeyedQueue`](portcullis_async::KeyedQueue) costs. Does not allocate. The future takes
    /// about half a kilobyte.
    ///
    /// ```
    /// use portcullis_policy::{Limit, Policy, Request, Rule};
    ///
    /// # futures_executor::block_on(async {
    /// let rule = Rule::new("uploads").limit(Limit::at_once(1).queue(10));
    /// let policy = Policy::new([rule]).unwrap();
    /// let request = Request::new("PUT", "/file");
    /// let first = policy.acquire(&request).await;
    /// assert!(first.is_allowed() && first.end().is_none());
    ///
    /// let second = policy.acquire(&request);
    /// drop(first);
    /// assert!(second.await.is_allowed());
    /// # });
    /// ```
    pub fn acquire<'p>(&'p self, request: &Request<'_>) -> Acquiring<'p> {
        self.acquire_or_ask(request, None)
    }

    /// Decides a request as [`acquire`](Self::acquire) does, and notes in `asks` the rules whose
    /// stores are to be asked.
    fn acquire_or_ask<'p>(
        &'p self,
        request: &Request<'_>,
        asks: Option<&mut Vec<usize>>,
    ) -> Acquiring<'p> {
        let now = self.now();
        let mut can_wait = false;
        let decision = self.decide(now, request, How::OrWait(&mut can_wait), asks, |_| {});
        let queue = decision.queue().filter(|_| can_wait);
        Acquiring {
            policy: self,
            wait: queue.map(|queue| queue.acquire(request.cost)),
            decision: Some(decision),
            deadline: Timestamp::MAX,
            since: None,
        }
    }

    /// Returns the counts of the queues of a rule, those of its overrides included. `None` if there
    /// is no such rule, or it has no queue.
    ///
    /// A change of the policy that keeps a queue keeps its counts. `oversized` are the requests
    /// that a limit without a queue denied while they waited.
    ///
    /// # Cost
    ///
    /// Locks each queue of the rule for a moment.
    ///
    /// ```
    /// # use portcullis_policy::{Limit, Policy, Request, Rule};
    /// # futures_executor::block_on(async {
    /// let policy = Policy::new([Rule::new("all").limit(Limit::at_once(1).queue(1))]).unwrap();
    /// let request = Request::new("GET", "/");
    /// let _first = policy.acquire(&request).await;
    /// assert!(!policy.acquire(&request.cost(2)).await.is_allowed());
    /// assert_eq!(policy.queue_counts("all").unwrap().waiters, 0);
    /// # });
    /// ```
    pub fn queue_counts(&self, rule: &str) -> Option<QueueCounts> {
        let active = self
            .rules
            .iter()
            .find(|active| active.rule.name() == rule)?;
        let overrides = active.overrides.iter().flat_map(|all| all.stores());
        let stores = core::iter::once(&active.store).chain(overrides);
        let counts = stores.filter_map(Store::queue).map(RuleQueue::counts);
        counts.reduce(|mut all, one| {
            all.waiters += one.waiters;
            all.permits += one.permits;
            for (all, one) in [
                (&mut all.granted, one.granted),
                (&mut all.full, one.full),
                (&mut all.evicted, one.evicted),
                (&mut all.cancelled, one.cancelled),
                (&mut all.late, one.late),
                (&mut all.closed, one.closed),
                (&mut all.oversized, one.oversized),
            ] {
                *all = all.wrapping_add(one);
            }
            all
        })
    }

    /// Creates the queues of all rules, in which no request waits yet.
    pub(crate) fn create_queues(&mut self) {
        for active in &mut self.rules {
            active.create_queues(&self.timers);
        }
    }

    /// Takes over the timers of the policy before.
    pub(crate) fn follow_timers(&mut self, before: &Self) {
        if self.timers.is_default() && !before.timers.is_default() {
            self.timers = before.timers.clone();
            self.clock = self.timers.create();
            self.create_queues();
        }
    }

    /// Hands the waiting requests over to the policy `to`, which follows this one.
    pub(crate) fn hand_over_queues(&self, to: &Self) {
        for old in &self.rules {
            let new = to
                .rules
                .iter()
                .find(|new| new.rule.name() == old.rule.name());
            old.store.hand_over_queue(new.map(|new| &new.store));
            if let Some(overrides) = &old.overrides {
                let to = new.and_then(|new| new.overrides.as_deref());
                overrides.hand_over_queues(to);
            }
        }
    }
}

impl Active {
    fn create_queues(&mut self, timers: &Timers) {
        if !self.rule.is_shadow {
            let limits = queued(Some(self.rule.kind()), &self.rule.limits);
            self.store.create_queue(&limits, || timers.create());
            if let Some(overrides) = &mut self.overrides {
                overrides.create_queues(self.rule.kind(), timers);
            }
        }
        self.note_whether_plain();
    }

    /// Goes on with the queues of the same rule before.
    pub(crate) fn follow_queues(&mut self, old: &Self, timers: &Timers) {
        let kind = |of: &Self| (!of.rule.is_shadow).then(|| of.rule.kind());
        let (was, is) = (kind(old), kind(self));
        let limits = (
            &*queued(was, &old.rule.limits),
            &*queued(is, &self.rule.limits),
        );
        self.store
            .follow_queue(&old.store, limits, || timers.create());
        if let Some(overrides) = &mut self.overrides {
            overrides.follow_queues(old.overrides.as_deref(), (was, is), timers);
        }
        self.note_whether_plain();
    }
}

impl<'p> Decision<'p> {
    /// The queue of the request's key.
    fn queue(&self) -> Option<QueueKey<&'p RuleQueue>> {
        let (store, at) = self.state()?;
        Some(QueueKey::at(store.queue()?, at))
    }
}

pin_project! {
    /// A request that is decided, or waits to be: the result of [`Policy::acquire`]. A future that
    /// returns a [`QueuedDecision`].
    ///
    /// Dropping it cancels the request: nothing stays taken, and nothing waits.
    ///
    /// ```
    /// use core::time::Duration;
    /// use portcullis_policy::{Limit, Policy, QueueEnd, Request, Rule};
    ///
    /// # futures_executor::block_on(async {
    /// let policy = Policy::new([Rule::new("all").limit(Limit::at_once(1).queue(10))]).unwrap();
    /// let request = Request::new("GET", "/");
    /// let _first = policy.acquire(&request).await;
    /// let second = policy.acquire(&request);
    /// assert_eq!(second.waits_for().unwrap().rule().unwrap().name(), "all");
    /// let second = second.within(Duration::from_millis(2)).await;
    /// assert_eq!(second.end(), Some(QueueEnd::Late));
    /// # });
    /// ```
    #[must_use = "a future does nothing until it is polled"]
    pub struct Acquiring<'p> {
        policy: &'p Policy,
        // `None` after completion.
        decision: Option<Decision<'p>>,
        // `None` if the request does not wait.
        #[pin]
        wait: Option<Acquire<QueueKey<&'p RuleQueue>>>,
        deadline: Timestamp,
        // The time of the first poll.
        since: Option<Timestamp>,
    }
}

impl<'p> Acquiring<'p> {
    /// Sets until when the request waits at most, by the time of the policy's timers. If the
    /// deadline cannot be met, also because of those that wait before it, the request is denied at
    /// once. A permit that becomes available at
    /// that instant is still granted.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_policy::{Policy, QueueEnd, Request, Rule, Limit};
    /// # futures_executor::block_on(async {
    /// let rule = Rule::new("all").limit("1/m".parse::<Limit>()?.queue(10));
    /// let policy = Policy::new([rule]).unwrap();
    /// let request = Request::new("GET", "/");
    /// assert!(policy.acquire(&request).await.is_allowed());
    /// let deadline = policy.now() + Duration::from_secs(5);
    /// let late = policy.acquire(&request).until(deadline).await;
    /// assert_eq!((late.is_allowed(), late.end()), (false, Some(QueueEnd::Late)));
    /// # Ok::<(), portcullis_policy::PeriodError>(()) }).unwrap();
    /// ```
    pub fn until(mut self, deadline: Timestamp) -> Self {
        self.wait = self.wait.map(|wait| wait.until(deadline));
        self.deadline = deadline;
        self
    }

    /// Sets how long the request waits at most, from this call on: see [`until`](Self::until).
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_policy::{Policy, Request};
    /// # futures_executor::block_on(async {
    /// let policy = Policy::new([]).unwrap();
    /// let decision = policy.acquire(&Request::new("GET", "/")).within(Duration::ZERO).await;
    /// assert!(decision.is_allowed());
    /// # });
    /// ```
    pub fn within(self, timeout: Duration) -> Self {
        let deadline = self.policy.now().saturating_add(timeout);
        self.until(deadline)
    }

    #[cfg(feature = "metrics")]
    pub(crate) fn policy(&self) -> &'p Policy {
        self.policy
    }

    /// Returns the denial after which the request waits. `None` if it does not wait: then the next
    /// poll returns the decision.
    ///
    /// ```
    /// # use portcullis_policy::{Policy, Request};
    /// let policy = Policy::new([]).unwrap();
    /// assert!(policy.acquire(&Request::new("GET", "/")).waits_for().is_none());
    /// ```
    pub fn waits_for(&self) -> Option<&Decision<'p>> {
        self.decision.as_ref().filter(|_| self.wait.is_some())
    }
}

impl<'p> Future for Acquiring<'p> {
    type Output = QueuedDecision<'p>;

    /// # Panics
    ///
    /// If polled after completion.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<QueuedDecision<'p>> {
        let mut this = self.project();
        let policy: &'p Policy = this.policy;
        let take = |decision: &mut Option<_>| decision.take().expect("polled after completion");
        while let Some(wait) = this.wait.as_mut().as_pin_mut() {
            let since = *this.since.get_or_insert_with(|| policy.now());
            let granted = ready!(wait.poll(context));
            let mut decision = take(this.decision);
            if let Ok(end) = end_of_wait(&mut decision, granted, policy.now()) {
                return Poll::Ready(QueuedDecision::after(decision, since, end));
            }
            let queue = decision.queue();
            let wait = queue.map(|queue| queue.acquire(decision.cost()));
            this.wait.set(wait.map(|wait| wait.until(*this.deadline)));
            *this.decision = Some(decision);
        }
        Poll::Ready(QueuedDecision::at_once(take(this.decision)))
    }
}

/// How a wait ended, when, and when to retry if that depends on other requests that wait.
type Ended = (QueueEnd, Timestamp, Option<Retry>);

/// The request waits again, in the queue of another rule.
struct Waits;

/// What follows from the end of a wait, at `now`.
fn end_of_wait<P: Deref<Target: Limiter>>(
    decision: &mut Decision<'_>,
    granted: Result<Lease<P>, Rejected>,
    now: Timestamp,
) -> Result<Ended, Waits> {
    let (end, retry) = match granted {
        Ok(mut lease) => {
            let mut can_wait = false;
            if decision.grant_at(now, &mut can_wait) {
                // The decision releases the permits.
                lease.forget();
                (QueueEnd::Granted, None)
            } else {
                let _ = lease.refund_at(now, lease.permits());
                if can_wait {
                    return Err(Waits);
                }
                (QueueEnd::Denied, None)
            }
        }
        // The queue was closed by a change, or a limit without a queue denied the request while it
        // waited. Either way the limits have the last word.
        Err(Rejected::Closed { .. } | Rejected::ExceedsCapacity { .. }) => {
            let is_granted = decision.take_after_wait(now);
            let end = if is_granted {
                QueueEnd::Granted
            } else {
                QueueEnd::Denied
            };
            (end, None)
        }
        Err(rejected) => {
            decision.deny_after_wait(now);
            let end = match rejected {
                Rejected::Evicted { .. } => QueueEnd::Evicted,
                Rejected::Deadline { .. } => QueueEnd::Late,
                _ => QueueEnd::Full,
            };
            (end, Some(rejected.retry()))
        }
    };
    Ok((end, now, retry))
}

shows!(['a] Acquiring<'a>, "Acquiring",
    self: "decision" => self.decision, "waits" => self.wait.is_some());

/// How a wait in a queue ended: see [`QueuedDecision::end`].
///
/// ```
/// use portcullis_policy::QueueEnd;
/// assert_ne!(QueueEnd::Granted, QueueEnd::Full);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum QueueEnd {
    /// The request got its permits.
    Granted,
    /// The queue had no room for the request.
    Full,
    /// A newer request needed the room in the queue.
    Evicted,
    /// The deadline passed, or could not be met.
    Late,
    /// A limit without a queue denied the request while it waited, or the policy changed so that it
    /// could not go on waiting.
    Denied,
}

/// A [`Decision`] after a wait, if one was needed: the result of [`Policy::acquire`]. It has all
/// methods of the decision.
///
/// ```
/// use portcullis_policy::{Limit, Policy, QueueEnd, Request, Rule};
///
/// # futures_executor::block_on(async {
/// let rule = Rule::new("all").limit("1/h".parse::<Limit>()?.queue(1));
/// let policy = Policy::new([rule]).unwrap();
/// let request = Request::new("GET", "/");
/// assert!(policy.acquire(&request).await.is_allowed());
/// let mut waits = Box::pin(policy.acquire(&request));
/// # let mut context = core::task::Context::from_waker(core::task::Waker::noop());
/// assert!(waits.as_mut().poll(&mut context).is_pending());
/// let denied = policy.acquire(&request).await;
/// assert_eq!((denied.is_allowed(), denied.end()), (false, Some(QueueEnd::Full)));
/// # Ok::<(), portcullis_policy::PeriodError>(()) }).unwrap();
/// ```
#[must_use = "dropping a decision returns the permits of limits at once"]
pub struct QueuedDecision<'p> {
    decision: Decision<'p>,
    end: Option<QueueEnd>,
    waited: Duration,
    retry: Option<Retry>,
}

impl<'p> QueuedDecision<'p> {
    /// The decision on a request that did not wait.
    fn at_once(decision: Decision<'p>) -> Self {
        Self {
            decision,
            end: None,
            waited: Duration::ZERO,
            retry: None,
        }
    }

    /// The decision on a request that began to wait at `since`.
    fn after(decision: Decision<'p>, since: Timestamp, (end, now, retry): Ended) -> Self {
        Self {
            decision,
            end: Some(end),
            waited: now.saturating_since(since),
            retry,
        }
    }

    /// Returns how the wait ended. `None` if the request was decided at once.
    ///
    /// ```
    /// # use portcullis_policy::{Policy, Request};
    /// # let policy = Policy::new([]).unwrap();
    /// let decision = futures_executor::block_on(policy.acquire(&Request::new("GET", "/")));
    /// assert_eq!(decision.end(), None);
    /// ```
    pub fn end(&self) -> Option<QueueEnd> {
        self.end
    }

    /// Returns how long the request waited: from the first poll of the future to the poll that
    /// found the wait over, or how long its thread was blocked.
    ///
    /// ```
    /// # use portcullis_policy::{Policy, Request};
    /// # let policy = Policy::new([]).unwrap();
    /// let decision = futures_executor::block_on(policy.acquire(&Request::new("GET", "/")));
    /// assert!(decision.waited().is_zero());
    /// ```
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// Returns when to retry, as [`Decision::retry`] does. After a queue was full, or a deadline
    /// passed, the time accounts for the requests that waited ahead.
    ///
    /// ```
    /// # use portcullis_policy::{Policy, Request};
    /// # let policy = Policy::new([]).unwrap();
    /// let decision = futures_executor::block_on(policy.acquire(&Request::new("GET", "/")));
    /// assert_eq!(decision.retry(), None);
    /// ```
    pub fn retry(&self) -> Option<Retry> {
        self.retry.or_else(|| self.decision.retry())
    }

    /// Returns the decision alone.
    ///
    /// ```
    /// # use portcullis_policy::{Policy, Request};
    /// # let policy = Policy::new([]).unwrap();
    /// let decision = futures_executor::block_on(policy.acquire(&Request::new("GET", "/")));
    /// assert!(decision.into_decision().is_allowed());
    /// ```
    pub fn into_decision(self) -> Decision<'p> {
        self.decision
    }
}

impl<'p> Deref for QueuedDecision<'p> {
    type Target = Decision<'p>;

    fn deref(&self) -> &Decision<'p> {
        &self.decision
    }
}

shows!(['a] QueuedDecision<'a>, "QueuedDecision",
    self: "decision" => self.decision, "end" => self.end, "waited" => self.waited);

impl Overrides {
    fn create_queues(&mut self, kind: Kind, timers: &Timers) {
        for (store, limits) in self.stores_mut() {
            store.create_queue(&queued(Some(kind), limits), || timers.create());
        }
    }
}
