//! Requests that wait in the queues of a policy.

#![allow(
    clippy::result_large_err,
    reason = "a request that waits is large, and a box would be an allocation more"
)]

use core::ops::Deref;
use core::pin::pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::sync::Arc;

use portcullis_core::{Retry, Timestamp};
use portcullis_policy::{
    Acquiring, Decision, Outcome, OwnedAcquiring, OwnedDecision, OwnedQueuedDecision, Policy,
    Request, SharedPolicy,
};

use super::{ByLivePolicy, ByPolicy, kept};
#[cfg(feature = "fields")]
use crate::decide::stated;
use crate::denial::Replies;
use crate::waiting::{Asked, DecideOrWait, Turned};
use crate::{Denial, RequestHead};

/// Asks a policy. `Ok` if the request is decided at once.
fn ask<'p>(
    policy: &'p Policy,
    request: &Request<'_>,
    most: Option<Duration>,
) -> Result<Decision<'p>, Acquiring<'p>> {
    let acquiring = policy.acquire(request);
    let acquiring = match most {
        Some(most) => acquiring.within(most),
        None => acquiring,
    };
    if acquiring.waits_for().is_some() {
        return Err(acquiring);
    }
    let mut context = Context::from_waker(Waker::noop());
    match pin!(acquiring).poll(&mut context) {
        Poll::Ready(decision) => Ok(decision.into_decision()),
        Poll::Pending => unreachable!("it does not wait"),
    }
}

/// When to retry after a wait, if the request is denied because of a limit.
fn retry<P: Deref<Target = Policy>>(queued: &OwnedQueuedDecision<P>) -> Option<Retry> {
    let of_limit = |decision: &Decision<'_>| matches!(decision.outcome(), Outcome::Denied { .. });
    queued.retry().filter(|_| queued.with(of_limit))
}

/// Ends a wait. `deny` makes the denial.
fn end<P: Deref<Target = Policy>>(
    queued: OwnedQueuedDecision<P>,
    asked: &mut Asked,
    deny: impl FnOnce(Timestamp, &Decision<'_>) -> Denial,
) -> Result<Option<OwnedDecision<P>>, Denial> {
    let now = queued.policy().now();
    let is_allowed = queued.with(|decision| {
        asked.note(now, decision);
        decision.is_allowed()
    });
    if is_allowed {
        return Ok(kept(queued.into_decision()));
    }
    let mut denial = queued.with(|decision| deny(now, decision));
    if let Some(retry) = retry(&queued) {
        denial.retry = retry;
    }
    Err(denial)
}

impl Asked {
    /// Notes the state of the limits, if the response states them.
    fn note(&mut self, now: Timestamp, decision: &Decision<'_>) {
        #[cfg(feature = "fields")]
        if let Some(quotas) = &mut self.quotas {
            stated::present(self.kind, now, decision, quotas);
        }
        #[cfg(not(feature = "fields"))]
        let _ = (now, decision);
    }
}

impl DecideOrWait for ByPolicy {
    type Waiting = OwnedAcquiring<Arc<Policy>>;

    fn decide_or_wait(
        &self,
        head: &RequestHead<'_>,
        cost: u32,
        asked: &mut Asked,
    ) -> Result<Option<Self::Permits>, Turned<Self::Waiting>> {
        asked.kind = self.kind;
        head.with_request(self.kind, cost, |request| {
            let decision = match ask(&self.policy, request, asked.most) {
                Ok(decision) => decision,
                Err(waits) => {
                    return Err(Turned::Waits(waits.into_owned(Arc::clone(&self.policy))));
                }
            };
            let now = self.policy.now();
            asked.note(now, &decision);
            if !decision.is_allowed() {
                return Err(Turned::Denied(self.replies.policy(now, &decision)));
            }
            let keep = |decision: Decision<'_>| decision.into_owned(Arc::clone(&self.policy));
            Ok(decision.holds_permits().then(|| keep(decision)))
        })
    }

    fn end_wait(
        &self,
        queued: OwnedQueuedDecision<Arc<Policy>>,
        asked: &mut Asked,
    ) -> Result<Option<Self::Permits>, Denial> {
        end(queued, asked, |now, decision| {
            self.replies.policy(now, decision)
        })
    }
}

impl DecideOrWait for ByLivePolicy {
    type Waiting = OwnedAcquiring<SharedPolicy>;

    fn decide_or_wait(
        &self,
        head: &RequestHead<'_>,
        cost: u32,
        asked: &mut Asked,
    ) -> Result<Option<Self::Permits>, Turned<Self::Waiting>> {
        asked.kind = self.kind;
        let policy = self.live.load();
        head.with_request(self.kind, cost, |request| {
            let decision = match ask(&policy, request, asked.most) {
                Ok(decision) => decision,
                Err(waits) => return Err(Turned::Waits(waits.into_owned(policy.share()))),
            };
            let now = policy.now();
            asked.note(now, &decision);
            if !decision.is_allowed() {
                return Err(Turned::Denied(self.denial(now, &policy, &decision)));
            }
            let keep = |decision: Decision<'_>| decision.into_owned(policy.share());
            Ok(decision.holds_permits().then(|| keep(decision)))
        })
    }

    fn end_wait(
        &self,
        queued: OwnedQueuedDecision<SharedPolicy>,
        asked: &mut Asked,
    ) -> Result<Option<Self::Permits>, Denial> {
        let policy = queued.policy().clone();
        end(queued, asked, |now, decision| {
            let in_force = self.live.load();
            if core::ptr::eq::<Policy>(&raw const *policy, &raw const *in_force) {
                return self.denial(now, &in_force, decision);
            }
            // It is by a policy of before, whose replies are kept no more.
            Replies::of_policy(&policy, &self.settings).policy(now, decision)
        })
    }
}
