//! Requests that wait in the queues of a policy, or ask its counter stores.

#![allow(
    clippy::result_large_err,
    reason = "a request that waits is large, and a box would be an allocation more"
)]

use core::ops::Deref;
use core::pin::Pin;
use core::task::{Context, Poll};

use pin_project_lite::pin_project;
use portcullis_core::{Retry, Timestamp};
use portcullis_counters::StoreError;
use portcullis_policy::{
    Acquired, Decision, Outcome, OwnedAcquiring, OwnedDecision, OwnedQueuedDecision,
    OwnedStoredDecision, Policy, Request,
};

use super::super::handle::PolicyHandle;
use super::super::notes::Notes;
#[cfg(feature = "fields")]
use super::super::stated;
use super::{ByPolicy, kept};
use crate::denial::{Denial, Replies};
use crate::head::RequestHead;
use crate::waiting::{Asked, DecideOrWait, Turned};

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

/// When to retry after a wait, if the request is denied because of a limit.
fn retry<P: Deref<Target = Policy>>(
    decision: &OwnedDecision<P>,
    retry: Option<Retry>,
) -> Option<Retry> {
    let of_limit = |decision: &Decision<'_>| matches!(decision.outcome(), Outcome::Denied { .. });
    retry.filter(|_| decision.with(of_limit))
}

impl Asked {
    /// Notes the limits, after a store may have decided.
    fn note_stored<P: Deref<Target = Policy>>(
        &mut self,
        now: Timestamp,
        stored: &OwnedStoredDecision<P>,
    ) {
        stored.with(|decision| self.notes.present(self.kind, now, decision));
        // Without a decision of a store it states nothing.
        #[cfg(feature = "fields")]
        if let Some(quotas) = &mut self.notes.quotas {
            stated::stored(self.kind, now, stored, quotas);
        }
    }
}

impl<P: PolicyHandle> DecideOrWait for ByPolicy<P> {
    type Waiting = Waiting<P::Shared>;

    fn decide_or_wait(
        &self,
        head: &RequestHead<'_>,
        cost: u32,
        asked: &mut Asked,
    ) -> Result<Option<Self::Permits>, Turned<Self::Waiting>> {
        asked.kind = self.kind;
        let policy = &self.policy.load();
        head.with_request(self.kind, self.finder.as_ref(), cost, |request| {
            let decision = self.ask(policy, request, asked).map_err(Turned::Waits)?;
            let now = policy.now();
            self.tell(now, policy, &decision, request, (None, None));
            asked.notes.present(self.kind, now, &decision);
            self.measure(policy, &decision, &mut asked.notes);
            if !decision.is_allowed() {
                return Err(Turned::Denied(self.denial(now, policy, &decision)));
            }
            let keep = |decision: Decision<'_>| decision.into_owned(P::share(policy));
            Ok(decision.holds_permits().then(|| keep(decision)))
        })
    }

    fn end_wait(
        &self,
        ended: Ended<P::Shared>,
        head: &RequestHead<'_>,
        cost: u32,
        asked: &mut Asked,
    ) -> Result<Option<Self::Permits>, Denial> {
        let now;
        let (decision, when, limit) = match ended {
            Ended::Queued(queued) => {
                now = queued.policy().now();
                queued.with(|decision| asked.notes.present(asked.kind, now, decision));
                let when = queued.retry();
                (queued.into_decision(), when, None)
            }
            Ended::Answered(Ok(stored)) => {
                now = stored.policy().now();
                asked.note_stored(now, &stored);
                let (when, limit) = (stored.retry(), stored.denied_in_store().cloned());
                (stored.into_decision(), when, limit)
            }
            Ended::Answered(Err(_)) => {
                let now = self.policy.load().now();
                return Err(self.replies.of_any().unavailable(now));
            }
        };
        // The policy that decided, which may no longer be in force.
        let policy: &Policy = decision.policy();
        let when = retry(&decision, when);
        let denied = decision.with(|decision| {
            head.with_request(asked.kind, self.finder.as_ref(), cost, |request| {
                self.tell(now, policy, decision, request, (limit.as_ref(), when));
            });
            #[cfg(feature = "metrics")]
            asked.notes.measure(|| {
                let read = |replies: &Replies| replies.instruments(policy, decision);
                self.replies.read_after_wait(&self.policy, policy, read)
            });
            let deny = |replies: &Replies| replies.policy(now, decision);
            let is_denied = !decision.is_allowed();
            is_denied.then(|| self.replies.read_after_wait(&self.policy, policy, deny))
        });
        let Some(mut denial) = denied else {
            return Ok(kept(decision));
        };
        if let Some(retry) = when {
            denial.retry = retry;
        }
        Err(denial)
    }
}

impl<P: PolicyHandle> ByPolicy<P> {
    /// Asks the policy. `Ok` if the request is decided at once.
    fn ask<'p>(
        &self,
        policy: &'p P::Loaded<'_>,
        request: &Request<'_>,
        asked: &mut Asked,
    ) -> Result<Decision<'p>, Waiting<P::Shared>> {
        match policy.acquire_stored(request) {
            Acquired::Decided(decision) => Ok(decision),
            Acquired::Waits(acquiring) => {
                if let Some(denial) = acquiring.waits_for() {
                    self.note_wait(policy, denial, &mut asked.notes);
                }
                let acquiring = match asked.wait_in_queue() {
                    Some(most) => acquiring.within(most),
                    None => acquiring,
                };
                let acquiring = acquiring.into_owned(P::share(policy));
                Err(Waiting::Queue { acquiring })
            }
            Acquired::Asks(mut asking) => {
                if let Some(denial) = asking.waits_for() {
                    self.note_wait(policy, denial, &mut asked.notes);
                    if let Some(most) = asked.wait_in_queue() {
                        asking = asking.within(most);
                    }
                }
                let passes = asked.passes.take();
                let passes = move |error: &StoreError| passes.is_some_and(|passes| passes(error));
                Err(Waiting::Stores {
                    answer: Box::pin(asking.ask(P::share(policy), passes)),
                })
            }
        }
    }

    /// Notes what measures the wait of a request in a queue, after a denial.
    fn note_wait(&self, policy: &P::Loaded<'_>, denial: &Decision<'_>, notes: &mut Notes) {
        self.measure(policy, denial, notes);
        // The decision after the wait counts with its own instruments.
        #[cfg(feature = "metrics")]
        {
            notes.in_queue = notes.instruments.pop();
        }
    }
}
