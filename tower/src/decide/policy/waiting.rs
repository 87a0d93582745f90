//! Requests that wait in the queues of a policy, or ask its counter stores.

#![allow(
    clippy::result_large_err,
    reason = "a request that waits is large, and a box would be an allocation more"
)]

use core::ops::Deref;
use core::pin::Pin;
use core::task::{Context, Poll};
use std::sync::Arc;

use pin_project_lite::pin_project;
use portcullis_core::{Retry, Timestamp};
use portcullis_counters::StoreError;
use portcullis_policy::{
    Acquired, Decision, Outcome, OwnedAcquiring, OwnedDecision, OwnedQueuedDecision,
    OwnedStoredDecision, Policy, Request, SharedPolicy,
};

use super::{ByLivePolicy, ByPolicy, kept};
#[cfg(feature = "fields")]
use crate::decide::stated;
use crate::denial::Replies;
use crate::waiting::{Asked, DecideOrWait, Turned};
use crate::{Denial, Notes, RequestHead};

pin_project! {
    /// A request that is not decided at once.
    #[project = Projected]
    pub enum Waiting<P: Deref<Target = Policy>> {
        Queue { #[pin] acquiring: OwnedAcquiring<P> },
        Stores { answer: Pin<Box<dyn Future<Output = Answer<P>> + Send>> },
    }
}

type Answer<P> = Result<OwnedStoredDecision<P>, StoreError>;

/// How a wait ended.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "it is taken apart at once")]
pub enum Ended<P: Deref<Target = Policy>> {
    Queued(OwnedQueuedDecision<P>),
    Answered(Answer<P>),
}

impl<P: Deref<Target = Policy>> Future for Waiting<P> {
    type Output = Ended<P>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Ended<P>> {
        match self.project() {
            Projected::Queue { acquiring } => acquiring.poll(context).map(Ended::Queued),
            Projected::Stores { answer } => answer.as_mut().poll(context).map(Ended::Answered),
        }
    }
}

/// Asks a policy. `Ok` if the request is decided at once. `own` makes a pointer to the policy.
fn ask<'p, J, P>(
    judge: &J,
    policy: &'p Policy,
    request: &Request<'_>,
    asked: &mut Asked,
    own: impl Fn() -> P,
) -> Result<Decision<'p>, Waiting<P>>
where
    J: Answers<P>,
    P: Deref<Target = Policy> + Send + Sync + 'static,
{
    match policy.acquire_stored(request) {
        Acquired::Decided(decision) => Ok(decision),
        Acquired::Waits(acquiring) => {
            judge.note_wait(&own, acquiring.waits_for(), &mut asked.notes);
            let acquiring = match asked.wait_in_queue() {
                Some(most) => acquiring.within(most),
                None => acquiring,
            };
            let acquiring = acquiring.into_owned(own());
            Err(Waiting::Queue { acquiring })
        }
        Acquired::Asks(asking) => Err(Waiting::Stores {
            answer: Box::pin(asking.ask(own())),
        }),
    }
}

/// When to retry after a wait, if the request is denied because of a limit.
fn retry<P: Deref<Target = Policy>>(
    decision: &OwnedDecision<P>,
    retry: Option<Retry>,
) -> Option<Retry> {
    let of_limit = |decision: &Decision<'_>| matches!(decision.outcome(), Outcome::Denied { .. });
    retry.filter(|_| decision.with(of_limit))
}

/// The replies to requests that have waited, and the instruments that measure them. `P` is a
/// pointer to the policy, which may no longer be in force.
trait Answers<P: Deref<Target = Policy>> {
    /// Reads the replies of a policy.
    fn replies<T>(&self, policy: &P, read: impl FnOnce(&Replies) -> T) -> T;

    /// Makes the denial of a request whose store has no answer.
    fn unavailable(&self) -> Denial;

    /// Notes what measures a request.
    fn note(&self, policy: &P, decision: &Decision<'_>, notes: &mut Notes) {
        #[cfg(feature = "metrics")]
        notes.measure(|| self.replies(policy, |replies| replies.instruments(policy, decision)));
        #[cfg(not(feature = "metrics"))]
        let _ = (policy, decision, notes);
    }

    /// Notes what measures the wait of a request in a queue, after a denial.
    fn note_wait(&self, own: impl FnOnce() -> P, denial: Option<&Decision<'_>>, notes: &mut Notes) {
        #[cfg(feature = "metrics")]
        if let Some(denial) = denial.filter(|_| notes.is_measured) {
            self.note(&own(), denial, notes);
            notes.in_queue = notes.instruments.take();
        }
        #[cfg(not(feature = "metrics"))]
        let _ = (own, denial, notes);
    }
}

/// Ends a wait.
fn end<P: Deref<Target = Policy>>(
    ended: Ended<P>,
    asked: &mut Asked,
    judge: &impl Answers<P>,
) -> Result<Option<OwnedDecision<P>>, Denial> {
    let now;
    let (decision, is_overridden, when) = match ended {
        Ended::Queued(queued) => {
            now = queued.policy().now();
            queued.with(|decision| asked.notes.present(asked.kind, now, decision));
            let when = queued.retry();
            (queued.into_decision(), false, when)
        }
        Ended::Answered(Ok(stored)) => {
            now = stored.policy().now();
            asked.note_stored(now, &stored);
            let (is_overridden, when) = (stored.is_overridden_in_store(), stored.retry());
            (stored.into_decision(), is_overridden, when)
        }
        Ended::Answered(Err(error)) => {
            asked.failed = Some(error);
            return Err(judge.unavailable());
        }
    };
    let policy = decision.policy();
    let denied = decision.with(|decision| {
        judge.note(policy, decision, &mut asked.notes);
        let deny = |replies: &Replies| replies.stored(now, decision, is_overridden);
        let is_denied = !decision.is_allowed();
        is_denied.then(|| judge.replies(policy, deny))
    });
    let Some(mut denial) = denied else {
        return Ok(kept(decision));
    };
    if let Some(retry) = retry(&decision, when) {
        denial.retry = retry;
    }
    Err(denial)
}

impl Asked {
    /// Notes the limits, after a store may have decided.
    fn note_stored<P: Deref<Target = Policy>>(
        &mut self,
        now: Timestamp,
        stored: &OwnedStoredDecision<P>,
    ) {
        if stored.in_store().is_none() {
            stored.with(|decision| self.notes.present(self.kind, now, decision));
        }
        // Without a decision of a store it states nothing.
        #[cfg(feature = "fields")]
        if let Some(quotas) = &mut self.notes.quotas {
            stated::stored(self.kind, now, stored, quotas);
        }
    }
}

impl DecideOrWait for ByPolicy {
    type Waiting = Waiting<Arc<Policy>>;

    fn decide_or_wait(
        &self,
        head: &RequestHead<'_>,
        cost: u32,
        asked: &mut Asked,
    ) -> Result<Option<Self::Permits>, Turned<Self::Waiting>> {
        asked.kind = self.kind;
        head.with_request(self.kind, self.finder.as_ref(), cost, |request| {
            let own = || Arc::clone(&self.policy);
            let decision = ask(self, &self.policy, request, asked, own).map_err(Turned::Waits)?;
            let now = self.policy.now();
            asked.notes.present(self.kind, now, &decision);
            self.note(&self.policy, &decision, &mut asked.notes);
            if !decision.is_allowed() {
                return Err(Turned::Denied(self.replies.policy(now, &decision)));
            }
            let keep = |decision: Decision<'_>| decision.into_owned(own());
            Ok(decision.holds_permits().then(|| keep(decision)))
        })
    }

    fn end_wait(
        &self,
        ended: Ended<Arc<Policy>>,
        asked: &mut Asked,
    ) -> Result<Option<Self::Permits>, Denial> {
        end(ended, asked, self)
    }
}

impl DecideOrWait for ByLivePolicy {
    type Waiting = Waiting<SharedPolicy>;

    fn decide_or_wait(
        &self,
        head: &RequestHead<'_>,
        cost: u32,
        asked: &mut Asked,
    ) -> Result<Option<Self::Permits>, Turned<Self::Waiting>> {
        asked.kind = self.kind;
        let policy = self.live.load();
        head.with_request(self.kind, self.finder.as_ref(), cost, |request| {
            let own = || policy.share();
            let decision = ask(self, &policy, request, asked, own).map_err(Turned::Waits)?;
            let now = policy.now();
            asked.notes.present(self.kind, now, &decision);
            #[cfg(feature = "metrics")]
            let measure = || self.instruments(&policy, &decision);
            #[cfg(feature = "metrics")]
            asked.notes.measure(measure);
            if !decision.is_allowed() {
                return Err(Turned::Denied(self.denial(now, &policy, &decision)));
            }
            let keep = |decision: Decision<'_>| decision.into_owned(own());
            Ok(decision.holds_permits().then(|| keep(decision)))
        })
    }

    fn end_wait(
        &self,
        ended: Ended<SharedPolicy>,
        asked: &mut Asked,
    ) -> Result<Option<Self::Permits>, Denial> {
        end(ended, asked, self)
    }
}

impl Answers<Arc<Policy>> for ByPolicy {
    fn replies<T>(&self, _: &Arc<Policy>, read: impl FnOnce(&Replies) -> T) -> T {
        read(&self.replies)
    }

    fn unavailable(&self) -> Denial {
        self.replies.unavailable(self.policy.now())
    }
}

impl Answers<SharedPolicy> for ByLivePolicy {
    fn replies<T>(&self, policy: &SharedPolicy, read: impl FnOnce(&Replies) -> T) -> T {
        let in_force = self.live.load();
        if core::ptr::eq::<Policy>(&raw const **policy, &raw const *in_force) {
            return self.replied(&in_force, read);
        }
        // It is by a policy of before, whose replies are kept no more.
        read(&Replies::of_policy(policy, &self.settings))
    }

    fn unavailable(&self) -> Denial {
        self.replies.load().1.unavailable(self.live.load().now())
    }
}
