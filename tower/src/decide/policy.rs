//! Requests judged by the rules of a policy.

#[cfg(feature = "queue")]
mod waiting;

use core::fmt;
use core::ops::Deref;
use std::sync::Arc;

use portcullis_core::Timestamp;
use portcullis_policy::{Decision, Kind, OwnedDecision, OwnedHold, Policy};
#[cfg(feature = "live")]
use portcullis_policy::{LivePolicy, LoadedPolicy, SharedPolicy};

#[cfg(feature = "fields")]
use super::stated;
use crate::denial::Replies;
#[cfg(feature = "fields")]
use crate::fields::Quota;
use crate::{Decide, Denial, DenialSettings, RequestHead};

/// Judges requests by a [`Policy`].
///
/// ```
/// use portcullis_policy::{Key, Policy, Rule};
/// use portcullis_tower::{ByPolicy, RateLimitLayer};
///
/// let rule = Rule::new("clients").key(Key::address()).limit("100/s".parse()?);
/// let layer = RateLimitLayer::new(ByPolicy::new(Policy::new([rule]).unwrap()));
/// # let _ = layer;
/// # Ok::<(), portcullis_policy::PeriodError>(())
/// ```
pub struct ByPolicy {
    policy: Arc<Policy>,
    kind: Kind,
    replies: Replies,
}

impl ByPolicy {
    /// Judges by the rules of [`Kind::Request`] of a policy, which may be an `Arc` that others use
    /// too.
    pub fn new(policy: impl Into<Arc<Policy>>) -> Self {
        Self {
            policy: policy.into(),
            kind: Kind::Request,
            replies: Replies::default(),
        }
    }

    /// Judges by the rules of another kind. To judge by those of several kinds, join one of these
    /// for each kind with [`Decide::and`].
    ///
    /// ```
    /// use std::sync::Arc;
    /// use portcullis_policy::{Kind, Policy};
    /// use portcullis_tower::{ByPolicy, Decide};
    ///
    /// let policy = Arc::new(Policy::new([]).unwrap());
    /// let both = ByPolicy::new(Arc::clone(&policy))
    ///     .kind(Kind::Burst)
    ///     .and(ByPolicy::new(policy));
    /// # let _ = both;
    /// ```
    #[must_use]
    pub fn kind(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self
    }
}

#[cfg(feature = "bodies")]
impl ByPolicy {
    pub(crate) fn policy(&self) -> &Arc<Policy> {
        &self.policy
    }

    pub(crate) fn denial(&self, now: Timestamp, decision: &Decision<'_>) -> Denial {
        self.replies.policy(now, decision)
    }
}

impl Decide for ByPolicy {
    type Held = OwnedHold<Arc<Policy>>;
    type Permits = OwnedDecision<Arc<Policy>>;

    fn prepare(&mut self, settings: &DenialSettings) {
        self.replies = Replies::of_policy(&self.policy, settings);
    }

    #[inline]
    fn decide_at(
        &self,
        now: Timestamp,
        head: &RequestHead<'_>,
        cost: u32,
    ) -> Result<Option<Self::Permits>, Denial> {
        head.with_request(self.kind, cost, |request| {
            let decision = self.policy.decide_at(now, request);
            if !decision.is_allowed() {
                return Err(self.replies.policy(now, &decision));
            }
            let keep = |decision: Decision<'_>| decision.into_owned(Arc::clone(&self.policy));
            Ok(decision.holds_permits().then(|| keep(decision)))
        })
    }

    fn hold_at(
        &self,
        now: Timestamp,
        head: &RequestHead<'_>,
        cost: u32,
    ) -> Result<Self::Held, Denial> {
        head.with_request(self.kind, cost, |request| {
            let hold = self.policy.hold_at(now, request);
            if !hold.is_allowed() {
                return Err(self.replies.policy(now, &hold));
            }
            Ok(hold.into_owned(Arc::clone(&self.policy)))
        })
    }

    #[cfg(feature = "fields")]
    fn decide_stated_at(
        &self,
        now: Timestamp,
        head: &RequestHead<'_>,
        cost: u32,
        stated: &mut Vec<Quota<'static>>,
    ) -> Result<Option<Self::Permits>, Denial> {
        head.with_request(self.kind, cost, |request| {
            let decision = self.policy.decide_explained_at(now, request);
            stated::explained(self.kind, &decision, stated);
            if !decision.is_allowed() {
                return Err(self.replies.policy(now, &decision));
            }
            let decision = decision.into_decision();
            let keep = |decision: Decision<'_>| decision.into_owned(Arc::clone(&self.policy));
            Ok(decision.holds_permits().then(|| keep(decision)))
        })
    }

    #[cfg(feature = "fields")]
    fn hold_stated_at(
        &self,
        now: Timestamp,
        head: &RequestHead<'_>,
        cost: u32,
        stated: &mut Vec<Quota<'static>>,
    ) -> Result<Self::Held, Denial> {
        head.with_request(self.kind, cost, |request| {
            let hold = self.policy.hold_at(now, request);
            stated::present(self.kind, now, &hold, stated);
            if !hold.is_allowed() {
                return Err(self.replies.policy(now, &hold));
            }
            Ok(hold.into_owned(Arc::clone(&self.policy)))
        })
    }

    fn undo_at(&self, now: Timestamp, held: Self::Held) {
        held.undo_at(now);
    }

    fn settle_at(&self, now: Timestamp, held: Self::Held, actual: u32) -> Option<Self::Permits> {
        settled(now, held, actual)
    }

    fn keep(&self, held: Self::Held) -> Option<Self::Permits> {
        kept(held.into_decision())
    }
}

/// The decision, if it holds permits.
fn kept<P: Deref<Target = Policy>>(decision: OwnedDecision<P>) -> Option<OwnedDecision<P>> {
    let holds = decision.holds_permits();
    holds.then_some(decision)
}

/// The decision of a hold that is settled, if it holds permits.
fn settled<P: Deref<Target = Policy>>(
    now: Timestamp,
    held: OwnedHold<P>,
    actual: u32,
) -> Option<OwnedDecision<P>> {
    kept(match actual {
        // Returns also what a rule without a hold can take back.
        0 => held.undo_and_keep_at(now),
        _ => held.settle_and_keep_at(now, actual).0,
    })
}

impl fmt::Debug for ByPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByPolicy")
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

/// Judges requests by a [`LivePolicy`], which may change at any time. Needs the feature `live`.
///
/// ```
/// use portcullis_core::Timestamp;
/// use portcullis_policy::{LivePolicy, Policy, Rule};
/// use portcullis_tower::{ByLivePolicy, RateLimitLayer};
///
/// let rule = |limit: &str| Rule::new("all").limit(limit.parse().unwrap());
/// let policy = |limit: &str| Policy::new([rule(limit)]).unwrap();
/// let live = LivePolicy::new(policy("100/s"));
/// let layer = RateLimitLayer::new(ByLivePolicy::new(live.clone()));
/// live.replace_at(Timestamp::ZERO, policy("200/s"));
/// # let _ = layer;
/// ```
#[cfg(feature = "live")]
pub struct ByLivePolicy {
    live: LivePolicy,
    kind: Kind,
    settings: DenialSettings,
    /// Those of the policy of this generation. The first denial after a change makes new ones.
    replies: arc_swap::ArcSwap<(u64, Replies)>,
}

#[cfg(feature = "live")]
impl ByLivePolicy {
    /// Judges by the rules of [`Kind::Request`] of the policy in force.
    pub fn new(live: LivePolicy) -> Self {
        Self {
            live,
            kind: Kind::Request,
            settings: DenialSettings::new(),
            replies: arc_swap::ArcSwap::from_pointee((0, Replies::default())),
        }
    }

    /// Judges by the rules of another kind: as [`ByPolicy::kind`].
    #[must_use]
    pub fn kind(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self
    }

    #[cfg(feature = "bodies")]
    pub(crate) fn live(&self) -> &LivePolicy {
        &self.live
    }

    pub(crate) fn denial(
        &self,
        now: Timestamp,
        policy: &LoadedPolicy,
        decision: &Decision<'_>,
    ) -> Denial {
        self.replied(policy, |replies| replies.policy(now, decision))
    }

    /// A denial with the replies of the policy in force.
    fn replied(&self, policy: &LoadedPolicy, deny: impl FnOnce(&Replies) -> Denial) -> Denial {
        let replies = self.replies.load();
        if replies.0 == policy.generation() {
            return deny(&replies.1);
        }
        let replies = Arc::new((
            policy.generation(),
            Replies::of_policy(policy, &self.settings),
        ));
        let denial = deny(&replies.1);
        self.replies.store(replies);
        denial
    }
}

#[cfg(feature = "live")]
impl Decide for ByLivePolicy {
    type Held = OwnedHold<SharedPolicy>;
    type Permits = OwnedDecision<SharedPolicy>;

    fn prepare(&mut self, settings: &DenialSettings) {
        self.settings = settings.clone();
        let policy = self.live.load();
        let replies = Replies::of_policy(&policy, settings);
        let generation = policy.generation();
        self.replies.store(Arc::new((generation, replies)));
    }

    #[inline]
    fn decide_at(
        &self,
        now: Timestamp,
        head: &RequestHead<'_>,
        cost: u32,
    ) -> Result<Option<Self::Permits>, Denial> {
        let policy = self.live.load();
        head.with_request(self.kind, cost, |request| {
            let decision = policy.decide_at(now, request);
            if !decision.is_allowed() {
                return Err(self.denial(now, &policy, &decision));
            }
            let keep = |decision: Decision<'_>| decision.into_owned(policy.share());
            Ok(decision.holds_permits().then(|| keep(decision)))
        })
    }

    fn hold_at(
        &self,
        now: Timestamp,
        head: &RequestHead<'_>,
        cost: u32,
    ) -> Result<Self::Held, Denial> {
        let policy = self.live.load();
        head.with_request(self.kind, cost, |request| {
            let hold = policy.hold_at(now, request);
            if !hold.is_allowed() {
                return Err(self.denial(now, &policy, &hold));
            }
            Ok(hold.into_owned(policy.share()))
        })
    }

    #[cfg(feature = "fields")]
    fn decide_stated_at(
        &self,
        now: Timestamp,
        head: &RequestHead<'_>,
        cost: u32,
        stated: &mut Vec<Quota<'static>>,
    ) -> Result<Option<Self::Permits>, Denial> {
        let policy = self.live.load();
        head.with_request(self.kind, cost, |request| {
            let decision = policy.decide_explained_at(now, request);
            stated::explained(self.kind, &decision, stated);
            if !decision.is_allowed() {
                return Err(self.denial(now, &policy, &decision));
            }
            let decision = decision.into_decision();
            let keep = |decision: Decision<'_>| decision.into_owned(policy.share());
            Ok(decision.holds_permits().then(|| keep(decision)))
        })
    }

    #[cfg(feature = "fields")]
    fn hold_stated_at(
        &self,
        now: Timestamp,
        head: &RequestHead<'_>,
        cost: u32,
        stated: &mut Vec<Quota<'static>>,
    ) -> Result<Self::Held, Denial> {
        let policy = self.live.load();
        head.with_request(self.kind, cost, |request| {
            let hold = policy.hold_at(now, request);
            stated::present(self.kind, now, &hold, stated);
            if !hold.is_allowed() {
                return Err(self.denial(now, &policy, &hold));
            }
            Ok(hold.into_owned(policy.share()))
        })
    }

    fn undo_at(&self, now: Timestamp, held: Self::Held) {
        held.undo_at(now);
    }

    fn settle_at(&self, now: Timestamp, held: Self::Held, actual: u32) -> Option<Self::Permits> {
        settled(now, held, actual)
    }

    fn keep(&self, held: Self::Held) -> Option<Self::Permits> {
        kept(held.into_decision())
    }
}

#[cfg(feature = "live")]
impl fmt::Debug for ByLivePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByLivePolicy")
            .field("live", &self.live)
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}
