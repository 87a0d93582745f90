//! Requests judged by the rules of a policy, which may be swapped at any time.
//!
//! A decision reads the policy once, by its [handle](super::handle), and all of the decision is by
//! that policy: also its reply, and what a response states.

mod finder;
mod replies;
#[cfg(feature = "queue")]
mod waiting;

use core::ops::Deref;
use std::sync::Arc;

use portcullis_core::{Clock, Retry, Timestamp};
#[cfg(feature = "live")]
use portcullis_policy::LivePolicy;
use portcullis_policy::{Decision, Kind, Limit, OwnedDecision, OwnedHold, Policy, Request};

pub(crate) use self::finder::Finder;
pub use self::finder::UnknownEndpoint;
use self::replies::RepliesInForce;
use super::Decide;
use super::handle::{IntoHandle, PolicyHandle};
use super::notes::Notes;
use super::question::{Question, Taking};
#[cfg(feature = "fields")]
use super::stated;
use crate::denial::{Denial, DenialSettings, Replies};
use crate::head::RequestHead;

/// Judges requests by a [`Policy`]: one that is fixed, or a `LivePolicy`, which may be swapped at
/// any time.
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
pub struct ByPolicy<P = Arc<Policy>> {
    policy: P,
    kind: Kind,
    /// `None` if the head of a request is all.
    finder: Option<Finder>,
    watch: Option<Arc<Watch>>,
    replies: RepliesInForce,
}

type Watch = dyn Fn(&Watched<'_>) + Send + Sync;

/// A decision of a policy on a request: what the function of [`ByPolicy::watched`] gets.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Watched<'d> {
    /// The time of the decision.
    pub now: Timestamp,
    /// The policy that decided. A `LivePolicy` may have another one in force by now.
    pub policy: &'d Policy,
    /// The decision, of a counter store too.
    pub decision: &'d Decision<'d>,
    /// What was decided.
    pub request: &'d Request<'d>,
    /// The limit that denied, if it is one of a counter store. The decision has none of these.
    pub limit_in_store: Option<&'d Limit>,
    /// When to retry, if a counter store has denied, or the request has waited: then the decision
    /// does not know.
    pub retry: Option<Retry>,
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
pub type ByLivePolicy = ByPolicy<LivePolicy>;

impl<P: PolicyHandle> ByPolicy<P> {
    /// Judges by the rules of [`Kind::Request`] of a policy, which may be an `Arc` that others use
    /// too, or a `LivePolicy`.
    pub fn new<I>(policy: I) -> Self
    where
        I: IntoHandle<Handle = P>,
    {
        Self {
            policy: policy.into_handle(),
            kind: Kind::Request,
            finder: None,
            watch: None,
            replies: RepliesInForce::default(),
        }
    }

    /// Judges by the rules of another kind. Rules of one kind add up if they are
    /// [continuing](portcullis_policy::Rule::continuing). To judge by those of several kinds, join
    /// one of these for each kind with [`Decide::and`].
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

    /// Calls a function with each decision of the policy, before the request is answered: for
    /// example to count it in [`Statistics`](portcullis_policy::Statistics), or to write it to a
    /// `DecisionLog`. Default: none.
    ///
    /// A request that waits, or asks a counter store, is decided when that has ended. If the store
    /// has no answer, there is no decision. If another judge that is joined with this one denies
    /// the request, the function has still seen the decision of this one.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use portcullis_policy::{Policy, Rule, Statistics};
    /// use portcullis_tower::{ByPolicy, RateLimitLayer};
    ///
    /// let policy = Policy::new([Rule::new("all").limit("100/s".parse()?)]).unwrap();
    /// let statistics = Arc::new(Statistics::new(&policy));
    /// let counted = Arc::clone(&statistics);
    /// let judge = ByPolicy::new(policy)
    ///     .watched(move |seen| counted.count(seen.decision, seen.request));
    /// let layer = RateLimitLayer::new(judge);
    /// # let _ = layer;
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    #[must_use]
    pub fn watched(mut self, watch: impl Fn(&Watched<'_>) + Send + Sync + 'static) -> Self {
        self.watch = Some(Arc::new(watch));
        self
    }

    /// Tells the function that watches of a decision.
    #[inline]
    fn tell(
        &self,
        now: Timestamp,
        policy: &Policy,
        decision: &Decision<'_>,
        request: &Request<'_>,
        (limit_in_store, retry): (Option<&Limit>, Option<Retry>),
    ) {
        if let Some(watch) = &self.watch {
            watch(&Watched {
                now,
                policy,
                decision,
                request,
                limit_in_store,
                retry,
            });
        }
    }

    #[cfg(feature = "bodies")]
    pub(crate) fn finder(&self) -> Option<&Finder> {
        self.finder.as_ref()
    }

    #[cfg(feature = "bodies")]
    pub(crate) fn policy(&self) -> &P {
        &self.policy
    }

    /// The denial of a request by the policy that was read for it.
    pub(crate) fn denial(
        &self,
        now: Timestamp,
        policy: &P::Loaded<'_>,
        decision: &Decision<'_>,
    ) -> Denial {
        let read = |replies: &Replies| replies.policy(now, decision);
        self.replies.read::<P, _>(policy, read)
    }

    /// Notes the instruments of the rule that decided, if requests are measured.
    fn measure(&self, policy: &P::Loaded<'_>, decision: &Decision<'_>, notes: &mut Notes) {
        #[cfg(feature = "metrics")]
        notes.measure(|| {
            let read = |replies: &Replies| replies.instruments(policy, decision);
            self.replies.read::<P, _>(policy, read)
        });
        #[cfg(not(feature = "metrics"))]
        let _ = (self, policy, decision, notes);
    }
}

impl ByPolicy {
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

/// What a request has taken from the rules of a policy. `P` is a pointer to the policy.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "it is moved once, and a box would be an allocation"
)]
#[non_exhaustive]
pub enum HeldByPolicy<P: Deref<Target = Policy>> {
    /// Permits that were taken [for good](Taking::ForGood): those of limits at once.
    Decision(OwnedDecision<P>),
    /// Permits that may have to be [returned](Taking::Returnable).
    Hold(OwnedHold<P>),
}

impl<P: PolicyHandle> Decide for ByPolicy<P> {
    type Held = HeldByPolicy<P::Shared>;
    type Permits = OwnedDecision<P::Shared>;

    fn prepare(&mut self, settings: &DenialSettings) {
        self.replies = RepliesInForce::of::<P>(&self.policy.load(), settings);
    }

    #[inline]
    fn decide<C: Clock>(&self, question: Question<'_, C>) -> Result<Option<Self::Held>, Denial> {
        let Question {
            clock,
            head,
            cost,
            taking,
            mut notes,
        } = question;
        let now = clock.now();
        let policy = &self.policy.load();
        let own = || P::share(policy);
        head.with_request(
            self.kind,
            self.finder.as_ref(),
            cost,
            |request| match taking {
                Taking::ForGood => {
                    let decision = told(policy, now, self.kind, request, notes.as_deref_mut());
                    self.tell(now, policy, &decision, request, (None, None));
                    if let Some(notes) = notes {
                        self.measure(policy, &decision, notes);
                    }
                    if !decision.is_allowed() {
                        return Err(self.denial(now, policy, &decision));
                    }
                    let keep = |decision: Decision<'_>| decision.into_owned(own());
                    let is_kept = decision.holds_permits();
                    Ok(is_kept.then(|| HeldByPolicy::Decision(keep(decision))))
                }
                Taking::Returnable => {
                    let hold = policy.hold_at(now, request);
                    self.tell(now, policy, &hold, request, (None, None));
                    if let Some(notes) = notes {
                        notes.present(self.kind, now, &hold);
                        self.measure(policy, &hold, notes);
                    }
                    if !hold.is_allowed() {
                        return Err(self.denial(now, policy, &hold));
                    }
                    Ok(Some(HeldByPolicy::Hold(hold.into_owned(own()))))
                }
            },
        )
    }

    fn undo_at(&self, now: Timestamp, held: Self::Held) {
        match held {
            // Its permits at once return. All others were taken for good.
            HeldByPolicy::Decision(decision) => drop(decision),
            HeldByPolicy::Hold(hold) => hold.undo_at(now),
        }
    }

    #[inline]
    fn settle_at(&self, now: Timestamp, held: Self::Held, actual: u32) -> Option<Self::Permits> {
        match held {
            HeldByPolicy::Decision(decision) => kept(decision),
            HeldByPolicy::Hold(hold) => kept(match actual {
                // Returns also what a rule without a hold can take back.
                0 => hold.undo_and_keep_at(now),
                _ => hold.settle_and_keep_at(now, actual).0,
            }),
        }
    }

    #[inline]
    fn keep(&self, held: Self::Held) -> Option<Self::Permits> {
        match held {
            // It was kept because it holds permits.
            HeldByPolicy::Decision(decision) => Some(decision),
            HeldByPolicy::Hold(hold) => kept(hold.into_decision()),
        }
    }
}

/// Decides for good. If limits are noted, they are as this very decision left them.
#[inline]
fn told<'p>(
    policy: &'p Policy,
    now: Timestamp,
    kind: Kind,
    request: &Request<'_>,
    notes: Option<&mut Notes>,
) -> Decision<'p> {
    #[cfg(feature = "fields")]
    if let Some(quotas) = notes.and_then(|notes| notes.quotas.as_mut()) {
        let decision = policy.decide_explained_at(now, request);
        stated::explained(kind, &decision, quotas);
        return decision.into_decision();
    }
    #[cfg(not(feature = "fields"))]
    let _ = (kind, notes);
    policy.decide_at(now, request)
}

impl Notes {
    /// Notes the limits of a decision as they are now, if the response states them.
    pub(super) fn present(&mut self, kind: Kind, now: Timestamp, decision: &Decision<'_>) {
        #[cfg(feature = "fields")]
        if let Some(quotas) = &mut self.quotas {
            stated::present(kind, now, decision, quotas);
        }
        #[cfg(not(feature = "fields"))]
        let _ = (self, kind, now, decision);
    }
}

/// The decision, if it holds permits.
#[inline]
fn kept<P: Deref<Target = Policy>>(decision: OwnedDecision<P>) -> Option<OwnedDecision<P>> {
    let holds = decision.holds_permits();
    holds.then_some(decision)
}

shows!([P] ByPolicy<P>, "ByPolicy", self: "kind" => self.kind);
