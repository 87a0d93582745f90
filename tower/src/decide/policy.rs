//! Requests judged by the rules of a policy.

mod finder;
#[cfg(feature = "queue")]
mod waiting;

pub(crate) use finder::Finder;
pub use finder::UnknownEndpoint;

use core::fmt;
use core::ops::Deref;
use std::sync::Arc;

use portcullis_core::Timestamp;
#[cfg(any(feature = "fields", feature = "metrics"))]
use portcullis_policy::Request;
#[cfg(all(feature = "metrics", feature = "live"))]
use portcullis_policy::RuleMetrics;
use portcullis_policy::{Decision, Kind, OwnedDecision, OwnedHold, Policy};
#[cfg(feature = "live")]
use portcullis_policy::{LivePolicy, LoadedPolicy, SharedPolicy};

#[cfg(feature = "fields")]
use super::stated;
#[cfg(any(feature = "fields", feature = "metrics", feature = "queue"))]
use crate::Notes;
use crate::denial::Replies;
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
    /// `None` if the head of a request is all.
    finder: Option<Finder>,
    replies: Replies,
}

impl ByPolicy {
    /// Judges by the rules of [`Kind::Request`] of a policy, which may be an `Arc` that others use
    /// too.
    pub fn new(policy: impl Into<Arc<Policy>>) -> Self {
        Self {
            policy: policy.into(),
            kind: Kind::Request,
            finder: None,
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

    /// Sets how the properties of a request are found: those of which the conditions and the keys
    /// of rules have the names. A function gets the name. Default: a request has no properties.
    ///
    /// ```
    /// use portcullis_policy::{Key, Policy, Rule};
    /// use portcullis_tower::{ByPolicy, RateLimitLayer};
    ///
    /// /// The layer that checks who sends a request adds this extension.
    /// #[derive(Clone)]
    /// struct User(String);
    ///
    /// let rule = Rule::new("users").key(Key::property("user")).limit("10/s".parse()?);
    /// let judge = ByPolicy::new(Policy::new([rule]).unwrap()).properties(|head, name| match name {
    ///     "user" => head.extensions.get().map(|User(name)| &**name),
    ///     _ => None,
    /// });
    /// let layer = RateLimitLayer::new(judge);
    /// # let _ = layer;
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    #[must_use]
    pub fn properties(
        mut self,
        find: impl for<'r> Fn(&RequestHead<'r>, &str) -> Option<&'r str> + Send + Sync + 'static,
    ) -> Self {
        self.finder.get_or_insert_default().property = Some(Arc::new(find));
        self
    }

    /// Sets how the service tier of a client is found. Default: clients have none, which is the
    /// empty text.
    ///
    /// ```
    /// use portcullis_policy::{Conditions, Policy, Rule};
    /// use portcullis_tower::{ByPolicy, RateLimitLayer};
    ///
    /// let free = Rule::new("free").when(Conditions::new().tiers(["free"])).limit("1/s".parse()?);
    /// let judge = ByPolicy::new(Policy::new([free]).unwrap()).tier(|head| {
    ///     if head.headers.contains_key("authorization") { "paid" } else { "free" }
    /// });
    /// let layer = RateLimitLayer::new(judge);
    /// # let _ = layer;
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    #[must_use]
    pub fn tier(
        mut self,
        find: impl for<'r> Fn(&RequestHead<'r>) -> &'r str + Send + Sync + 'static,
    ) -> Self {
        self.finder.get_or_insert_default().tier = Some(Arc::new(find));
        self
    }

    /// Judges the requests of one endpoint, such as a route: all of them have the property
    /// `endpoint` with this name. So a route chooses its rules by name, wherever its path is.
    ///
    /// # Errors
    ///
    /// [`UnknownEndpoint`] if no rule has this condition.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use portcullis_policy::{Conditions, Policy, Rule};
    /// use portcullis_tower::{ByPolicy, RateLimitLayer};
    ///
    /// let uploads = Conditions::new().property("endpoint", ["uploads"]);
    /// let rule = Rule::new("uploads").when(uploads).limit("10/m".parse()?);
    /// let policy = Arc::new(Policy::new([rule]).unwrap());
    /// // For `MethodRouter::layer` of the route.
    /// let layer = RateLimitLayer::new(ByPolicy::new(Arc::clone(&policy)).endpoint("uploads")?);
    /// assert!(ByPolicy::new(policy).endpoint("upload").is_err());
    /// # let _ = layer;
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn endpoint(mut self, name: &str) -> Result<Self, UnknownEndpoint> {
        UnknownEndpoint::check(&self.policy, name)?;
        self.finder.get_or_insert_default().endpoint = Some(name.into());
        Ok(self)
    }
}

#[cfg(feature = "bodies")]
impl ByPolicy {
    pub(crate) fn finder(&self) -> Option<&Finder> {
        self.finder.as_ref()
    }

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
        head.with_request(self.kind, self.finder.as_ref(), cost, |request| {
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
        head.with_request(self.kind, self.finder.as_ref(), cost, |request| {
            let hold = self.policy.hold_at(now, request);
            if !hold.is_allowed() {
                return Err(self.replies.policy(now, &hold));
            }
            Ok(hold.into_owned(Arc::clone(&self.policy)))
        })
    }

    #[cfg(any(feature = "fields", feature = "metrics"))]
    fn decide_noting_at(
        &self,
        now: Timestamp,
        head: &RequestHead<'_>,
        cost: u32,
        notes: &mut Notes,
    ) -> Result<Option<Self::Permits>, Denial> {
        head.with_request(self.kind, self.finder.as_ref(), cost, |request| {
            let decision = decide_noting(&self.policy, now, self.kind, request, notes);
            #[cfg(feature = "metrics")]
            notes.measure(|| self.replies.instruments(&self.policy, &decision));
            if !decision.is_allowed() {
                return Err(self.replies.policy(now, &decision));
            }
            let keep = |decision: Decision<'_>| decision.into_owned(Arc::clone(&self.policy));
            Ok(decision.holds_permits().then(|| keep(decision)))
        })
    }

    #[cfg(any(feature = "fields", feature = "metrics"))]
    fn hold_noting_at(
        &self,
        now: Timestamp,
        head: &RequestHead<'_>,
        cost: u32,
        notes: &mut Notes,
    ) -> Result<Self::Held, Denial> {
        head.with_request(self.kind, self.finder.as_ref(), cost, |request| {
            let hold = self.policy.hold_at(now, request);
            notes.present(self.kind, now, &hold);
            #[cfg(feature = "metrics")]
            notes.measure(|| self.replies.instruments(&self.policy, &hold));
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

/// Decides, and notes the limits as this very decision left them.
#[cfg(any(feature = "fields", feature = "metrics"))]
fn decide_noting<'p>(
    policy: &'p Policy,
    now: Timestamp,
    kind: Kind,
    request: &Request<'_>,
    notes: &mut Notes,
) -> Decision<'p> {
    #[cfg(feature = "fields")]
    if let Some(quotas) = &mut notes.quotas {
        let decision = policy.decide_explained_at(now, request);
        stated::explained(kind, &decision, quotas);
        return decision.into_decision();
    }
    let _ = (kind, notes);
    policy.decide_at(now, request)
}

#[cfg(any(feature = "fields", feature = "metrics", feature = "queue"))]
impl Notes {
    /// Notes the limits of a decision as they are now.
    #[cfg_attr(
        not(feature = "fields"),
        expect(clippy::unused_self, reason = "no limits are stated")
    )]
    pub(super) fn present(&mut self, kind: Kind, now: Timestamp, decision: &Decision<'_>) {
        #[cfg(feature = "fields")]
        if let Some(quotas) = &mut self.quotas {
            stated::present(kind, now, decision, quotas);
        }
        #[cfg(not(feature = "fields"))]
        let _ = (kind, now, decision);
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
    /// `None` if the head of a request is all.
    finder: Option<Finder>,
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
            finder: None,
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

    /// Sets how the properties of a request are found: as [`ByPolicy::properties`].
    #[must_use]
    pub fn properties(
        mut self,
        find: impl for<'r> Fn(&RequestHead<'r>, &str) -> Option<&'r str> + Send + Sync + 'static,
    ) -> Self {
        self.finder.get_or_insert_default().property = Some(Arc::new(find));
        self
    }

    /// Sets how the service tier of a client is found: as [`ByPolicy::tier`].
    #[must_use]
    pub fn tier(
        mut self,
        find: impl for<'r> Fn(&RequestHead<'r>) -> &'r str + Send + Sync + 'static,
    ) -> Self {
        self.finder.get_or_insert_default().tier = Some(Arc::new(find));
        self
    }

    #[cfg(feature = "bodies")]
    pub(crate) fn finder(&self) -> Option<&Finder> {
        self.finder.as_ref()
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

    /// The instruments of the rule that decided.
    #[cfg(feature = "metrics")]
    fn instruments(&self, policy: &LoadedPolicy, decision: &Decision<'_>) -> Option<RuleMetrics> {
        self.replied(policy, |replies| replies.instruments(policy, decision))
    }

    /// Reads the replies of the policy in force.
    fn replied<T>(&self, policy: &LoadedPolicy, read: impl FnOnce(&Replies) -> T) -> T {
        let replies = self.replies.load();
        if replies.0 == policy.generation() {
            return read(&replies.1);
        }
        let replies = Arc::new((
            policy.generation(),
            Replies::of_policy(policy, &self.settings),
        ));
        let result = read(&replies.1);
        self.replies.store(replies);
        result
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
        head.with_request(self.kind, self.finder.as_ref(), cost, |request| {
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
        head.with_request(self.kind, self.finder.as_ref(), cost, |request| {
            let hold = policy.hold_at(now, request);
            if !hold.is_allowed() {
                return Err(self.denial(now, &policy, &hold));
            }
            Ok(hold.into_owned(policy.share()))
        })
    }

    #[cfg(any(feature = "fields", feature = "metrics"))]
    fn decide_noting_at(
        &self,
        now: Timestamp,
        head: &RequestHead<'_>,
        cost: u32,
        notes: &mut Notes,
    ) -> Result<Option<Self::Permits>, Denial> {
        let policy = self.live.load();
        head.with_request(self.kind, self.finder.as_ref(), cost, |request| {
            let decision = decide_noting(&policy, now, self.kind, request, notes);
            #[cfg(feature = "metrics")]
            notes.measure(|| self.instruments(&policy, &decision));
            if !decision.is_allowed() {
                return Err(self.denial(now, &policy, &decision));
            }
            let keep = |decision: Decision<'_>| decision.into_owned(policy.share());
            Ok(decision.holds_permits().then(|| keep(decision)))
        })
    }

    #[cfg(any(feature = "fields", feature = "metrics"))]
    fn hold_noting_at(
        &self,
        now: Timestamp,
        head: &RequestHead<'_>,
        cost: u32,
        notes: &mut Notes,
    ) -> Result<Self::Held, Denial> {
        let policy = self.live.load();
        head.with_request(self.kind, self.finder.as_ref(), cost, |request| {
            let hold = policy.hold_at(now, request);
            notes.present(self.kind, now, &hold);
            #[cfg(feature = "metrics")]
            notes.measure(|| self.instruments(&policy, &hold));
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
