//! What a reply states of the limits of the rules that a request is limited by.
//!
//! After a denial, only the limit that denied has its state stated: it has what it has until the
//! request can be retried, so that `Retry-After` is not before the end of that time. Of the other
//! limits only the policy is stated.

#[cfg(feature = "queue")]
use core::ops::Deref;
use core::time::Duration;
use std::borrow::Cow;

use portcullis_core::{Retry, Timestamp};
use portcullis_policy::{Decision, ExplainedDecision, Kind, Limit, Outcome, Rule, Status};
#[cfg(feature = "queue")]
use portcullis_policy::{OwnedStoredDecision, Policy};

use crate::denial::policy_name;
use crate::fields::{Quota, Unit};

/// States the limits of a decision, as this very decision left them.
pub(super) fn explained(
    kind: Kind,
    decision: &ExplainedDecision<'_>,
    stated: &mut Vec<Quota<'static>>,
) {
    for each in decision.details() {
        let found = Found {
            rule: each.rule,
            limit: each.limit,
            index: each.index,
            capacity: each.detail.capacity,
            available: each.detail.available,
            reset: each.detail.full_again,
        };
        stated.extend(found.quota(kind, each.detail.now, decision, decision.retry()));
    }
}

/// States the limits of a decision, as they are now.
pub(super) fn present(
    kind: Kind,
    now: Timestamp,
    decision: &Decision<'_>,
    stated: &mut Vec<Quota<'static>>,
) {
    for status in decision.statuses() {
        let Status {
            rule,
            limit,
            index,
            remaining,
            reset,
            ..
        } = status;
        let found = Found {
            rule,
            limit,
            index,
            capacity: limit.capacity(),
            available: remaining,
            reset,
        };
        stated.extend(found.quota(kind, now, decision, decision.retry()));
    }
}

/// States the limits of a decision, as a store left them. Nothing if no store decided, or if one
/// did without their state.
#[cfg(feature = "queue")]
pub(super) fn stored<P: Deref<Target = Policy>>(
    kind: Kind,
    now: Timestamp,
    decision: &OwnedStoredDecision<P>,
    stated: &mut Vec<Quota<'static>>,
) {
    for each in decision.limits() {
        let Some(left) = each.left else {
            continue;
        };
        let found = Found {
            rule: each.rule,
            limit: each.limit,
            index: each.index,
            capacity: left.capacity,
            available: left.available,
            reset: Retry::After(left.full_in),
        };
        let retry = decision.retry();
        stated.extend(decision.with(|decision| found.quota(kind, now, decision, retry)));
    }
}

struct Found<'p> {
    rule: &'p Rule,
    limit: &'p Limit,
    index: usize,
    capacity: u64,
    available: u64,
    reset: Retry,
}

impl Found<'_> {
    fn quota(
        &self,
        kind: Kind,
        now: Timestamp,
        decision: &Decision<'_>,
        retry: Option<Retry>,
    ) -> Option<Quota<'static>> {
        let rule = Some(self.rule).filter(|rule| rule.has_headers())?;
        let name = policy_name(rule, self.index, self.limit);
        let decides = decision
            .rule()
            .is_some_and(|rule| core::ptr::eq(rule, self.rule));
        let mut quota = Quota::new(self.capacity).named(Cow::Owned(name));
        quota = match (self.limit.period(), kind) {
            (None, _) => quota.unit(Unit::ConcurrentRequests),
            (Some(_), Kind::Ingress | Kind::Egress) => quota.unit(Unit::ContentBytes),
            _ => quota,
        };
        if let Some(window) = window(self.limit) {
            quota = quota.window(window);
        }
        let reset = match decision.outcome() {
            Outcome::Denied { limit, .. } if decides && limit == Some(self.index) => retry?,
            Outcome::Denied { .. } => return Some(quota),
            _ => self.reset,
        };
        quota = quota.available(self.available);
        Some(match reset.wait_from(now) {
            Some(wait) => quota.reset(wait),
            None => quota,
        })
    }
}

/// The time in which all permits of a limit return.
fn window(limit: &Limit) -> Option<Duration> {
    let period = limit.period()?.as_nanos();
    if limit.count() == 0 {
        // None return.
        return limit.period();
    }
    let nanos = period * u128::from(limit.capacity()) / u128::from(limit.count());
    Some(Duration::from_nanos(nanos.try_into().unwrap_or(u64::MAX)))
}
