//! Decisions by rules whose limits have their state in a counter store: see
//! [`stored`](crate::stored).

use core::future::Future;
use core::hash::Hash as _;

use portcullis_core::{Retry, Timestamp};

use super::active::{Active, Unasked};
use super::{Decision, Outcome, Policy};
use crate::limit::Limit;
use crate::path::PathRules;
use crate::request::Request;
use crate::rule::RuleError;
use crate::stored::{KeyText, MAX_STORED_KEY_LEN, StoredLimits, Stores, spell};
use portcullis_counters::{Charge, StoreDecision, StoreError};

impl StoredLimits {
    /// Which override is for the key of a request, and the key; or why no limit is asked.
    pub(crate) fn find(
        &self,
        active: &Active,
        request: &Request<'_>,
        path_rules: PathRules,
    ) -> Result<(Option<u32>, KeyText), Unasked> {
        let (mut instead, mut text) = (None, KeyText::default());
        active.find(request, path_rules, |key| {
            key.hash(&mut text);
            let overrides = active.overrides.as_ref();
            instead = overrides.and_then(|overrides| overrides.find(&active.store, key));
            (!self.limits_of(instead).is_empty()).then_some(())
        })?;
        if text.0.len() > MAX_STORED_KEY_LEN {
            return Err(Unasked::Unidentified);
        }
        Ok((instead, text))
    }
}

/// What the store of one rule is asked.
pub(crate) struct Asked {
    rule: u32,
    /// The override whose limits are asked.
    instead: Option<u32>,
    ids: Vec<String>,
    permits: u32,
}

impl Asked {
    fn new(policy: &Policy, rule: usize, request: &Request<'_>) -> Option<Self> {
        let active = &policy.rules[rule];
        let stored = active.stored.as_ref()?;
        let (instead, key) = stored.find(active, request, policy.path_rules).ok()?;
        let mut prefix = String::from("{");
        spell(active.rule.name().as_bytes(), &mut prefix);
        prefix.push(':');
        spell(&key.0, &mut prefix);
        prefix.push('}');
        let limits = stored.limits_of(instead);
        let ids = (0..limits.len()).map(|index| format!("{prefix}{index}"));
        Some(Self {
            rule: u32::try_from(rule).ok()?,
            instead,
            ids: ids.collect(),
            permits: request.cost,
        })
    }

    fn active<'p>(&self, policy: &'p Policy) -> &'p Active {
        &policy.rules[self.rule as usize]
    }

    fn charges<'a>(&'a self, policy: &'a Policy) -> Vec<Charge<'a>> {
        let active = self.active(policy);
        let is_synced = active.rule.is_synced();
        let charge = |(id, limit)| Charge::new(id, limit, self.permits).synced(is_synced);
        let ids = self.ids.iter().map(|id| &**id);
        let limits = active.stored.iter();
        let limits = limits.flat_map(|stored| stored.limits_of(self.instead));
        ids.zip(limits).map(charge).collect()
    }
}

/// What stores answered on a request.
#[derive(Default)]
pub(crate) struct Answers {
    /// On the rule that decides, and the override whose limits were asked.
    pub(crate) decided: Option<(StoreDecision, Option<u32>)>,
    /// The shadow rules that would have denied.
    shadows: Vec<u32>,
}

impl Answers {
    /// Completes the decision of the request.
    pub(crate) fn complete(&self, decision: &mut Decision<'_>) {
        for &rule in &self.shadows {
            decision.note_shadow(rule);
        }
        if let Some((answer, _)) = &self.decided {
            decision.conclude(answer.denied_by());
        }
    }
}

impl Policy {
    /// Gives the rules that are [stored](crate::Rule::stored_in) their stores.
    ///
    /// # Errors
    ///
    /// Each rule whose store is not among them, or that is [synced](crate::Rule::synced) and whose
    /// store has no channel, and each limit that its store [does not
    /// support](portcullis_counters::CounterStore::supports).
    ///
    /// ```
    /// # use portcullis_core::MonotonicClock;
    /// # use portcullis_counters::MemoryCounters;
    /// # use portcullis_policy::{Policy, Rule, Stores};
    /// # use std::sync::Arc;
    /// let store = Arc::new(MemoryCounters::new(10_000, MonotonicClock::new()));
    /// let rule = Rule::new("all").limit("5/s".parse()?).stored_in("shraed");
    /// let policy = Policy::new([rule]).unwrap();
    /// let errors = policy.with_stores(Stores::new().with("shared", store)).unwrap_err();
    /// assert_eq!(
    ///     errors[0].to_string(),
    ///     "rule `all`: store: `shraed` is not known: did you mean `shared`?"
    /// );
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    pub fn with_stores(mut self, stores: Stores) -> Result<Self, Vec<RuleError>> {
        let errors = stores.check(self.rules());
        if !errors.is_empty() {
            return Err(errors);
        }
        self.stores = stores;
        Ok(self)
    }

    /// Returns the stores.
    ///
    /// ```
    /// # use portcullis_policy::Policy;
    /// assert_eq!(Policy::new([]).unwrap().stores().names().count(), 0);
    /// ```
    pub fn stores(&self) -> &Stores {
        &self.stores
    }

    /// Decides a request at `now`, as [`decide_at`](Self::decide_at) does, and asks the stores of
    /// rules that are [stored](crate::Rule::stored_in). If no such rule applies, the future is
    /// ready at once.
    ///
    /// The request takes [`cost`](Request::cost) permits from each limit of the rule that decides,
    /// or from none: one call decides all limits. Shadow rules with a store are asked too, in the
    /// same call if they have the same store.
    ///
    /// Rules without a store decide when this method is called; a store is asked when the future
    /// is polled. Their times are apart: `now`, and that of the store.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the store of the rule that decides has no answer. A
    /// [`GuardedStore`](portcullis_counters::GuardedStore) decides instead. An error of the store
    /// of a shadow rule is ignored.
    ///
    /// **Cancellation.** If the future is dropped, the store may have taken the permits or not.
    ///
    /// # Cost
    ///
    /// That of [`decide_at`](Self::decide_at) and of the store. Allocates if a store is asked.
    ///
    /// ```
    /// # use portcullis_core::{MonotonicClock, Timestamp};
    /// # use portcullis_counters::MemoryCounters;
    /// # use portcullis_policy::{Outcome, Policy, Request, Rule, Stores};
    /// # use std::sync::Arc;
    /// # futures_executor::block_on(async {
    /// let store = Arc::new(MemoryCounters::new(10_000, MonotonicClock::new()));
    /// let rule = Rule::new("all").limit("5/h".parse()?).stored_in("shared");
    /// let policy = Policy::new([rule]).unwrap();
    /// let policy = policy.with_stores(Stores::new().with("shared", store)).unwrap();
    ///
    /// let (now, request) = (Timestamp::from_secs(1), Request::new("GET", "/").cost(4));
    /// let decision = policy.decide_stored_at(now, &request).await?;
    /// assert!(decision.is_allowed());
    /// assert_eq!(decision.in_store().unwrap().left()[0].available, 1);
    /// // Without the store, there is no decision.
    /// assert_eq!(policy.decide_at(now, &request).outcome(), Outcome::Stored);
    /// # Ok::<(), Box<dyn core::error::Error>>(()) }).unwrap();
    /// ```
    pub fn decide_stored_at<'p>(
        &'p self,
        now: Timestamp,
        request: &Request<'_>,
    ) -> impl Future<Output = Result<StoredDecision<'p>, StoreError>> + Send + use<'p> {
        let mut stored = Vec::new();
        let mut decision = self.decide_watched_at(now, request, |answer| {
            if answer.outcome == Outcome::Stored {
                stored.push(answer.index);
            }
        });
        let asked = self.asked(&stored, request);
        async move {
            let answers = self.ask(asked).await?;
            answers.complete(&mut decision);
            let of_store =
                |&(_, instead): &(_, Option<u32>)| Some(decision.active()?.limits_of(instead));
            let limits = answers.decided.as_ref().and_then(of_store);
            Ok(StoredDecision {
                limits: limits.unwrap_or_else(|| decision.limits()),
                in_store: answers.decided.map(|(answer, _)| answer),
                decision,
            })
        }
    }

    /// What the stores of rules are asked, by the indexes of the rules.
    pub(crate) fn asked(&self, rules: &[usize], request: &Request<'_>) -> Vec<Asked> {
        let asked = rules.iter();
        asked
            .filter_map(|&rule| Asked::new(self, rule, request))
            .collect()
    }

    /// Asks the stores of rules of this policy.
    pub(crate) async fn ask(&self, mut asked: Vec<Asked>) -> Result<Answers, StoreError> {
        let mut answered = Answers::default();
        while let Some(first) = asked.first() {
            let name = first.active(self).rule.store().unwrap_or_default();
            // All rules with this store, in one call.
            let of_store = asked.extract_if(.., |one| one.active(self).rule.store() == Some(name));
            let of_store: Vec<Asked> = of_store.collect();
            let charges = of_store.iter().map(|one| one.charges(self));
            let charges: Vec<Vec<Charge<'_>>> = charges.collect();
            let answers = match (self.stores.get(name), &charges[..]) {
                (None, _) => Err(StoreError::Refused(format!(
                    "the policy has no store `{name}`"
                ))),
                (Some(store), [one]) => Ok(vec![store.take(one).await]),
                (Some(store), all) => {
                    let all: Vec<&[Charge<'_>]> = all.iter().map(Vec::as_slice).collect();
                    store.take_many(&all).await
                }
            };
            let mut answers = match answers {
                Ok(answers) => answers.into_iter(),
                Err(error) => vec![Err(error); of_store.len()].into_iter(),
            };
            for one in &of_store {
                let answer = answers.next().unwrap_or(Err(StoreError::Damaged));
                if !one.active(self).rule.is_shadow {
                    answered.decided = Some((answer?, one.instead));
                } else if answer.is_ok_and(|answer| !answer.is_allowed()) {
                    answered.shadows.push(one.rule);
                }
            }
        }
        Ok(answered)
    }
}

/// What was decided on a request, in this process or in a store: the result of
/// [`Policy::decide_stored_at`].
///
/// ```
/// use portcullis_core::Timestamp;
/// use portcullis_policy::{Policy, Request, Rule};
///
/// # futures_executor::block_on(async {
/// let policy = Policy::new([Rule::new("all").limit("5/h".parse()?)]).unwrap();
/// let request = Request::new("GET", "/");
/// let decision = policy.decide_stored_at(Timestamp::from_secs(1), &request).await?;
/// // The rule has no store.
/// assert!(decision.is_allowed() && decision.in_store().is_none());
/// # Ok::<(), Box<dyn core::error::Error>>(()) }).unwrap();
/// ```
#[derive(Debug)]
#[must_use = "dropping a decision returns the permits of limits at once"]
pub struct StoredDecision<'p> {
    decision: Decision<'p>,
    in_store: Option<StoreDecision>,
    limits: &'p [Limit],
}

impl<'p> StoredDecision<'p> {
    /// Returns whether the request is allowed.
    pub fn is_allowed(&self) -> bool {
        self.decision.is_allowed()
    }

    /// Returns the decision: the rule, the limit that denied, and shadow rules that would have
    /// denied. If a store decided, the decision has no state: `status`, `statuses` and `retry`
    /// return nothing.
    pub fn decision(&self) -> &Decision<'p> {
        &self.decision
    }

    /// Returns what the store decided, and what its limits have left, in the order of
    /// [`limits`](Self::limits). `None` if no store decided.
    pub fn in_store(&self) -> Option<&StoreDecision> {
        self.in_store.as_ref()
    }

    /// Returns the limits that the request was judged by.
    pub fn limits(&self) -> &'p [Limit] {
        self.limits
    }

    /// Returns when to retry, after a denial by a limit: as [`Decision::retry`], or from a store,
    /// [`Retry::After`] a time or [`Retry::Never`].
    pub fn retry(&self) -> Option<Retry> {
        match &self.in_store {
            Some(decision) => decision.retry(),
            None => self.decision.retry(),
        }
    }
}
