//! Waits that own a pointer to their policy, so that a task can keep them.

use core::future::Future;
use core::ops::Deref;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use core::time::Duration;
use std::sync::Arc;

use pin_project_lite::pin_project;
use portcullis_async::{Acquire, QueueKey};
use portcullis_core::{Retry, Timestamp};

use super::{Acquiring, QueueEnd, Waits, end_of_wait};
use crate::policy::owned::OwnedDecision;
use crate::policy::{Decision, Policy};
use crate::store::waits::RuleQueue;

impl Acquiring<'_> {
    /// Returns the request with a pointer to its policy, such as an `Arc`. The result can move to
    /// another task.
    ///
    /// # Panics
    ///
    /// If `policy` points to another policy.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use portcullis_policy::{Limit, Policy, Request, Rule};
    ///
    /// let policy = Policy::new([Rule::new("all").limit(Limit::at_once(1).queue(10))]).unwrap();
    /// let policy = Arc::new(policy);
    /// let acquire = || policy.acquire(&Request::new("GET", "/")).into_owned(Arc::clone(&policy));
    /// let first = futures_executor::block_on(acquire());
    /// let second = acquire();
    /// let task = std::thread::spawn(|| futures_executor::block_on(second).waited());
    /// drop(first);
    /// task.join().unwrap();
    /// ```
    pub fn into_owned<P: Deref<Target = Policy>>(self, policy: P) -> OwnedAcquiring<P> {
        let Self {
            decision,
            wait,
            deadline,
            ..
        } = self;
        let waits = decision.as_ref().filter(|_| wait.is_some());
        let wait = waits.and_then(|decision| owned_wait(decision, deadline));
        OwnedAcquiring {
            decision: decision.map(|decision| decision.into_owned(policy)),
            wait,
            deadline,
            since: None,
        }
    }
}

/// The wait in the queue of the rule that denies.
fn owned_wait(
    decision: &Decision<'_>,
    deadline: Timestamp,
) -> Option<Acquire<QueueKey<Arc<RuleQueue>>>> {
    let (store, at) = decision.state()?;
    let queue = QueueKey::at(Arc::clone(store.shared_queue()?), at);
    Some(queue.acquire(decision.cost()).until(deadline))
}

pin_project! {
    /// An [`Acquiring`] and a pointer to its policy: the result of [`Acquiring::into_owned`]. A
    /// future that returns an [`OwnedQueuedDecision`].
    ///
    /// ```
    /// use std::sync::Arc;
    /// use portcullis_policy::{Policy, Request};
    ///
    /// let policy = Arc::new(Policy::new([]).unwrap());
    /// let acquiring = policy.acquire(&Request::new("GET", "/")).into_owned(Arc::clone(&policy));
    /// assert!(!acquiring.waits());
    /// ```
    #[must_use = "a future does nothing until it is polled"]
    pub struct OwnedAcquiring<P: Deref<Target = Policy>> {
        // `None` after completion.
        decision: Option<OwnedDecision<P>>,
        // `None` if the request does not wait.
        #[pin]
        wait: Option<Acquire<QueueKey<Arc<RuleQueue>>>>,
        deadline: Timestamp,
        // The time of the first poll.
        since: Option<Timestamp>,
    }
}

impl<P: Deref<Target = Policy>> OwnedAcquiring<P> {
    /// Returns whether the request waits. If it does not, the next poll returns the decision.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use portcullis_policy::{Limit, Policy, Request, Rule};
    /// let rule = Rule::new("all").limit(Limit::at_once(1).queue(1));
    /// let policy = Arc::new(Policy::new([rule]).unwrap());
    /// let acquire = || policy.acquire(&Request::new("GET", "/")).into_owned(Arc::clone(&policy));
    /// let first = futures_executor::block_on(acquire());
    /// assert!(acquire().waits());
    /// # drop(first);
    /// ```
    #[must_use]
    pub fn waits(&self) -> bool {
        self.wait.is_some()
    }
}

impl<P: Deref<Target = Policy>> Future for OwnedAcquiring<P> {
    type Output = OwnedQueuedDecision<P>;

    /// # Panics
    ///
    /// If polled after completion.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let deadline = *this.deadline;
        let decision = this.decision.as_mut().expect("polled after completion");
        let (mut end, mut waited, mut retry) = (None, Duration::ZERO, None);
        while let Some(wait) = this.wait.as_mut().as_pin_mut() {
            let since = *this.since.get_or_insert_with(|| decision.policy().now());
            let granted = ready!(wait.poll(context));
            let now = decision.policy().now();
            let ended = decision.change(|decision| end_of_wait(decision, granted, now));
            this.wait.set(match ended {
                Ok(ended) => {
                    (end, waited, retry) = (Some(ended.0), now.saturating_since(since), ended.2);
                    None
                }
                Err(Waits) => decision.with(|decision| owned_wait(decision, deadline)),
            });
        }
        Poll::Ready(OwnedQueuedDecision {
            decision: this.decision.take().expect("it was there"),
            end,
            waited,
            retry,
        })
    }
}

shows!([P: Deref<Target = Policy>] OwnedAcquiring<P>, "OwnedAcquiring",
    self: "decision" => self.decision, "waits" => self.wait.is_some());

/// A [`QueuedDecision`](crate::QueuedDecision) and a pointer to its policy: the result of an
/// [`OwnedAcquiring`]. It has all methods of the [`OwnedDecision`].
///
/// ```
/// use std::sync::Arc;
/// use portcullis_policy::{Policy, Request};
///
/// let policy = Arc::new(Policy::new([]).unwrap());
/// let acquiring = policy.acquire(&Request::new("GET", "/")).into_owned(Arc::clone(&policy));
/// let decision = futures_executor::block_on(acquiring);
/// assert!(decision.with(|decision| decision.is_allowed()));
/// assert!(decision.end().is_none() && decision.waited().is_zero());
/// ```
#[must_use = "dropping a decision returns the permits of limits at once"]
pub struct OwnedQueuedDecision<P: Deref<Target = Policy>> {
    decision: OwnedDecision<P>,
    end: Option<QueueEnd>,
    waited: Duration,
    retry: Option<Retry>,
}

impl<P: Deref<Target = Policy>> OwnedQueuedDecision<P> {
    /// Returns how the wait ended: as [`QueuedDecision::end`](crate::QueuedDecision::end).
    pub fn end(&self) -> Option<QueueEnd> {
        self.end
    }

    /// Returns how long the request waited: as
    /// [`QueuedDecision::waited`](crate::QueuedDecision::waited).
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// Returns when to retry: as [`QueuedDecision::retry`](crate::QueuedDecision::retry).
    pub fn retry(&self) -> Option<Retry> {
        self.with(|decision| self.retry.or_else(|| decision.retry()))
    }

    /// Returns the decision alone.
    pub fn into_decision(self) -> OwnedDecision<P> {
        self.decision
    }
}

impl<P: Deref<Target = Policy>> Deref for OwnedQueuedDecision<P> {
    type Target = OwnedDecision<P>;

    fn deref(&self) -> &OwnedDecision<P> {
        &self.decision
    }
}

shows!([P: Deref<Target = Policy>] OwnedQueuedDecision<P>, "OwnedQueuedDecision",
    self: "decision" => self.decision, "end" => self.end, "waited" => self.waited);
