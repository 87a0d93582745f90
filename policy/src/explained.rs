//! A decision, with the detail of each of its limits.

use core::fmt;
use core::ops::Deref;

use portcullis_core::limiter::Detail;
use portcullis_core::{Retry, Timestamp};

use crate::limit::Limit;
use crate::policy::outcome::Outcome;
use crate::policy::outcome::compare_shares;
use crate::policy::several::Part;
use crate::policy::{Decision, Policy};
use crate::request::Request;
use crate::rule::Rule;
use crate::store::{Details, Explanation, How, StoreDenied};

impl Policy {
    /// Decides as [`decide_at`](Self::decide_at) does, and also returns the detail of each limit of
    /// the rule: what is left, of how many, and when to retry. For example, for the header fields
    /// of a response.
    ///
    /// The numbers are those of this very decision, whatever other requests take at the same time:
    /// see [`LimiterExt::take_explained_at`](portcullis_core::LimiterExt::take_explained_at). After
    /// a denial that holds for the limit that denied. The other limits of the rule took nothing,
    /// and are asked after it. After a denial by a penalty, after a request of cost 0, and if
    /// [several rules](crate::Rule::continuing) limit the request, all limits are asked after it.
    ///
    /// # Cost
    ///
    /// That of `decide_at`, and some divisions for each limit: tens of nanoseconds. Does not
    /// allocate. The result takes about 1 KB.
    ///
    /// ```
    /// use portcullis_core::Timestamp;
    /// use portcullis_policy::{Policy, Request, Rule};
    ///
    /// let rule = Rule::new("all").limit("10/s".parse()?).limit("100/m".parse()?);
    /// let policy = Policy::new([rule]).unwrap();
    /// let request = Request::new("GET", "/").cost(4);
    /// let decision = policy.decide_explained_at(Timestamp::from_secs(1), &request);
    /// assert!(decision.is_allowed());
    /// let fields: Vec<String> = decision
    ///     .details()
    ///     .map(|each| {
    ///         let (q, w) = (each.detail.capacity, each.window_seconds().unwrap());
    ///         let (r, t) = (each.detail.available, each.reset_seconds().unwrap());
    ///         format!("q={q};w={w}, r={r};t={t}")
    ///     })
    ///     .collect();
    /// assert_eq!(fields, ["q=10;w=1, r=6;t=1", "q=100;w=60, r=96;t=3"]);
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    pub fn decide_explained_at(
        &self,
        now: Timestamp,
        request: &Request<'_>,
    ) -> ExplainedDecision<'_> {
        let mut explanation = Explanation::default();
        let how = How::Explain(&mut explanation);
        let decision = self.decide(now, request, how, None, |_| {});
        // The limits were not asked, because other requests wait for them, or several rules were.
        if explanation.details[0].is_none()
            && let Some((store, at)) = decision.state()
        {
            let details = store.looked_at(at, now, request.cost);
            explanation.details = details;
            if let Outcome::Denied { limit, denied } = decision.outcome() {
                let retry = store.retry_explained(at, StoreDenied { limit, denied }, &details);
                explanation.retry = Some(retry);
            }
        }
        let looked = |part: &Part| {
            let (store, place) = part.state(self)?;
            Some(store.looked_at(place.at, now, request.cost))
        };
        let others = decision.others().iter();
        ExplainedDecision {
            others: others
                .map(|part| looked(part).unwrap_or_default())
                .collect(),
            decision,
            explanation,
        }
    }
}

/// A [`Decision`], and the detail of each limit: the result of [`Policy::decide_explained_at`].
///
/// It has all methods of the decision. [`status`](Decision::status) and [`retry`](Decision::retry)
/// of a decision look at the state again; those of this type return what the decision saw.
///
/// ```
/// use portcullis_core::{Retry, Timestamp};
/// use portcullis_policy::{Policy, Request, Rule};
///
/// let policy = Policy::new([Rule::new("all").limit("1/m".parse()?)]).unwrap();
/// let (now, request) = (Timestamp::from_secs(1), Request::new("GET", "/"));
/// let allowed = policy.decide_explained_at(now, &request);
/// assert_eq!((allowed.details().count(), allowed.retry()), (1, None));
///
/// let denied = policy.decide_explained_at(now, &request);
/// assert_eq!(denied.rule().unwrap().name(), "all");
/// assert_eq!(denied.decided_by().unwrap().index, 0);
/// assert_eq!(denied.retry(), Some(Retry::At(Timestamp::from_secs(61))));
/// # Ok::<(), portcullis_policy::PeriodError>(())
/// ```
#[must_use = "dropping a decision returns the permits of limits at once"]
pub struct ExplainedDecision<'p> {
    decision: Decision<'p>,
    explanation: Explanation,
    /// Of the other rules that limit the request.
    others: Vec<Details>,
}

/// The detail of one limit in a decision: an item of [`ExplainedDecision::details`].
///
/// ```
/// use portcullis_core::Timestamp;
/// use portcullis_policy::{Limit, Policy, Request, Rule};
///
/// let policy = Policy::new([Rule::new("all").limit(Limit::at_once(4))]).unwrap();
/// let decision = policy.decide_explained_at(Timestamp::ZERO, &Request::new("GET", "/"));
/// let first = decision.details().next().unwrap();
/// assert_eq!((first.detail.available, first.detail.capacity), (3, 4));
/// assert_eq!((first.window_seconds(), first.reset_seconds()), (None, None));
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct LimitDetail<'p> {
    /// The rule that has the limit.
    pub rule: &'p Rule,
    /// The limit.
    pub limit: &'p Limit,
    /// Its index among the limits of the rule, or of the override for the request's key.
    pub index: usize,
    /// The detail. Of a limit that was only asked, the decision is what it would answer to the
    /// request.
    pub detail: Detail,
}

impl LimitDetail<'_> {
    /// Returns the time in which all permits of the limit return, in seconds, rounded up. `None`
    /// if they do not return by time. It is the parameter `w` of the field `RateLimit-Policy`.
    ///
    /// ```
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{Policy, Request, Rule};
    /// let policy = Policy::new([Rule::new("all").limit("5/1500ms".parse()?)]).unwrap();
    /// let decision = policy.decide_explained_at(Timestamp::ZERO, &Request::new("GET", "/"));
    /// assert_eq!(decision.details().next().unwrap().window_seconds(), Some(2));
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    pub fn window_seconds(&self) -> Option<u64> {
        Retry::After(self.detail.time_to_fill?).seconds_from(self.detail.now)
    }

    /// Returns the time until all permits of the limit are available, if no more are taken, in
    /// seconds, rounded up. `None` if that is not known. It is the parameter `t` of the field
    /// `RateLimit`.
    ///
    /// ```
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{Policy, Request, Rule};
    /// let policy = Policy::new([Rule::new("all").limit("1/s".parse()?)]).unwrap();
    /// let decision = policy.decide_explained_at(Timestamp::ZERO, &Request::new("GET", "/"));
    /// assert_eq!(decision.details().next().unwrap().reset_seconds(), Some(1));
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    pub fn reset_seconds(&self) -> Option<u64> {
        self.detail.full_again.seconds_from(self.detail.now)
    }
}

impl<'p> ExplainedDecision<'p> {
    /// Returns the detail of each limit, in the order of [`Decision::limits`]. Empty if no limit
    /// was asked.
    ///
    /// ```
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{Policy, Request, Rule};
    /// let rule = Rule::new("all").limit("10/s".parse()?).limit("20/m".parse()?);
    /// let policy = Policy::new([rule]).unwrap();
    /// let request = Request::new("GET", "/").cost(10);
    /// let decision = policy.decide_explained_at(Timestamp::from_secs(1), &request);
    /// assert!(decision.details().map(|each| each.detail.available).eq([0, 10]));
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    pub fn details(&self) -> impl Iterator<Item = LimitDetail<'p>> {
        let mut others = self.others.iter();
        let own = self.decision.rule_index();
        self.decision
            .asked_limits()
            .flat_map(move |(index, rule, limits)| {
                let details = if Some(index) == own {
                    Some(&self.explanation.details)
                } else {
                    others.next()
                };
                let all = limits.iter().enumerate().zip(details.into_iter().flatten());
                all.filter_map(move |((index, limit), detail)| {
                    Some(LimitDetail {
                        rule,
                        limit,
                        index,
                        detail: (*detail)?,
                    })
                })
            })
    }

    /// Returns the detail of the limit that decided: the one that denied, or else the one with the
    /// smallest share of its permits left. `None` if no limit was asked.
    ///
    /// ```
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{Policy, Request, Rule};
    /// let rule = Rule::new("all").limit("10/s".parse()?).limit("12/m".parse()?);
    /// let policy = Policy::new([rule]).unwrap();
    /// let request = Request::new("GET", "/").cost(6);
    /// let decision = policy.decide_explained_at(Timestamp::from_secs(1), &request);
    /// assert_eq!(decision.decided_by().unwrap().limit.count(), 10);
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    pub fn decided_by(&self) -> Option<LimitDetail<'p>> {
        if let Outcome::Denied {
            limit: Some(limit), ..
        } = self.decision.outcome()
        {
            let rule = self.decision.rule()?;
            let is_own = |each: &LimitDetail<'_>| core::ptr::eq(each.rule, rule);
            return self
                .details()
                .find(|each| is_own(each) && each.index == limit);
        }
        self.details().min_by(|a, b| {
            let left = |each: &LimitDetail<'_>| (each.detail.available, each.detail.capacity);
            compare_shares(left(a), left(b))
        })
    }

    /// Returns when to retry, after a denial by a limit or a penalty: when all limits have the
    /// permits, and no penalty is in force. `None` if the request was allowed, or was denied for
    /// another reason. [`Retry::seconds_from`] gives the value of a `Retry-After`.
    ///
    /// ```
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{Policy, Request, Rule};
    /// let policy = Policy::new([Rule::new("all").limit("1/s".parse()?)]).unwrap();
    /// let now = Timestamp::from_millis(1_200);
    /// let decide = || policy.decide_explained_at(now, &Request::new("GET", "/"));
    /// assert_eq!(decide().retry(), None);
    /// assert_eq!(decide().retry().unwrap().seconds_from(now), Some(1));
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    pub fn retry(&self) -> Option<Retry> {
        self.decision.retry_after(Some(self.explanation.retry?))
    }

    /// Returns the decision alone.
    ///
    /// ```
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{Policy, Request};
    /// let policy = Policy::new([]).unwrap();
    /// let explained = policy.decide_explained_at(Timestamp::ZERO, &Request::new("GET", "/"));
    /// assert!(explained.into_decision().is_allowed());
    /// ```
    pub fn into_decision(self) -> Decision<'p> {
        self.decision
    }
}

impl<'p> Deref for ExplainedDecision<'p> {
    type Target = Decision<'p>;

    fn deref(&self) -> &Decision<'p> {
        &self.decision
    }
}

impl fmt::Debug for ExplainedDecision<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExplainedDecision")
            .field("decision", &self.decision)
            .field("details", &self.details().collect::<Vec<_>>())
            .field("retry", &self.explanation.retry)
            .finish()
    }
}
