//! Decisions by rules whose limits have their state in a counter store: see
//! [`stored`](crate::stored).

use core::future::Future;
use core::hash::Hash as _;

use portcullis_core::{Clock, Retry};

use super::active::{Active, Unasked};
use super::{Decision, Policy, ShadowDenial};
use crate::limit::Limit;
use crate::path::PathRules;
use crate::request::Request;
use crate::rule::{Rule, RuleError};
use crate::store::How;
use crate::stored::{KeyText, StoredLimits, Stores, spell};
use portcullis_counters::{Charge, Left, StoreDecision, StoreError};

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
        key.append_to(&mut prefix);
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
    /// On the rules that decide.
    pub(crate) decided: Option<InStore>,
    /// Of the shadow rules that would have denied.
    shadows: Vec<ShadowDenial>,
}

/// What a store decided, for all rules with it that limit the request.
#[derive(Debug)]
pub(crate) struct InStore {
    pub(crate) decision: StoreDecision,
    /// The rules, each with the override whose limits were asked.
    rules: Vec<(u32, Option<u32>)>,
}

/// The limit of a store that denied: that of a rule, or of the override for the request's key.
#[derive(Clone, Copy)]
pub(crate) struct DeniedInStore {
    pub(crate) rule: u32,
    pub(crate) instead: Option<u32>,
    pub(crate) limit: usize,
}

impl InStore {
    /// The limits that were asked, in the order in which the store has them.
    pub(crate) fn limits<'a>(
        &'a self,
        policy: &'a Policy,
    ) -> impl Iterator<Item = StoredLimit<'a>> {
        let all = self.rules.iter().flat_map(move |&(rule, instead)| {
            let active = &policy.rules[rule as usize];
            let limits = active.limits_of(instead).iter().enumerate();
            limits.map(move |(index, limit)| (&active.rule, index, limit))
        });
        let mut left = self.decision.left().iter().copied();
        all.map(move |(rule, index, limit)| StoredLimit {
            rule,
            limit,
            index,
            left: left.next(),
        })
    }

    /// The limit that denied, and whose it is.
    fn denied_by(&self, policy: &Policy) -> Option<DeniedInStore> {
        let mut limit = self.decision.denied_by()?;
        for &(rule, instead) in &self.rules {
            let limits = policy.rules[rule as usize].limits_of(instead).len();
            if limit < limits {
                return Some(DeniedInStore {
                    rule,
                    instead,
                    limit,
                });
            }
            limit -= limits;
        }
        None
    }

    /// The limit that denied.
    pub(crate) fn limit_denied<'p>(&self, policy: &'p Policy) -> Option<&'p Limit> {
        let by = self.denied_by(policy)?;
        let active = &policy.rules[by.rule as usize];
        active.limits_of(by.instead).get(by.limit)
    }
}

/// A limit that a store was asked for: an item of [`StoredDecision::limits`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct StoredLimit<'p> {
    /// The rule that has the limit.
    pub rule: &'p Rule,
    /// The limit.
    pub limit: &'p Limit,
    /// Its index in the rule, or in the override for the request's key.
    pub index: usize,
    /// What it has left. `None` if the store does not say.
    pub left: Option<Left>,
}

impl Decision<'_> {
    /// Completes the decision of a request by what stores have answered. What was taken of other
    /// rules is given back if they deny, or have no answer: now, by the clock of all decisions.
    pub(crate) fn complete(
        &mut self,
        clock: &dyn Clock,
        answers: Result<Answers, StoreError>,
    ) -> Result<Option<InStore>, StoreError> {
        let answers = answers.inspect_err(|_| self.withdraw(clock))?;
        for &denial in &answers.shadows {
            self.note_shadow(denial);
        }
        if let Some(in_store) = &answers.decided {
            self.conclude(clock, in_store.denied_by(self.policy));
        }
        Ok(answers.decided)
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

    /// Decides a request at the time of `clock`, as [`decide_at`](Self::decide_at) does, and asks
    /// the stores of rules that are [stored](crate::Rule::stored_in). If no such rule applies, the
    /// future is ready at once.
    ///
    /// The request takes [`cost`](Request::cost) permits from each limit of the rules that decide,
    /// or from none. Rules without a store take when this method is called, and give back if the
    /// store denies or has no answer. The store is asked when the future is polled: one call
    /// decides all limits of all its rules. Shadow rules with a store are asked too, in the same
    /// call if they have the same store.
    ///
    /// The times of the clock and of the store are apart. Use the same clock for all decisions of
    /// the policy: what is given back counts on it that no decision had a later time.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the store of the rule that decides has no answer. A
    /// [`GuardedStore`](portcullis_counters::GuardedStore) decides instead. An error of the store
    /// of a shadow rule is ignored.
    ///
    /// **Cancellation.** If the future is dropped, the store may have taken the permits or not.
    /// Those that were taken in this process return by time, and permits at once at that moment.
    ///
    /// # Cost
    ///
    /// That of [`decide_at`](Self::decide_at) and of the store. Allocates if a store is asked.
    ///
    /// ```
    /// # use portcullis_core::{Clock, MonotonicClock};
    /// # use portcullis_counters::MemoryCounters;
    /// # use portcullis_policy::{Outcome, Policy, Request, Rule, Stores};
    /// # use std::sync::Arc;
    /// # futures_executor::block_on(async {
    /// let store = Arc::new(MemoryCounters::new(10_000, MonotonicClock::new()));
    /// let rule = Rule::new("all").limit("5/h".parse()?).stored_in("shared");
    /// let policy = Policy::new([rule]).unwrap();
    /// let policy = policy.with_stores(Stores::new().with("shared", store)).unwrap();
    ///
    /// let (clock, request) = (MonotonicClock::new(), Request::new("GET", "/").cost(4));
    /// let decision = policy.decide_stored(clock, &request).await?;
    /// assert!(decision.is_allowed());
    /// assert_eq!(decision.in_store().unwrap().left()[0].available, 1);
    /// // Without the store, there is no decision.
    /// assert_eq!(policy.decide_at(clock.now(), &request).outcome(), Outcome::Stored);
    /// # Ok::<(), Box<dyn core::error::Error>>(()) }).unwrap();
    /// ```
    pub fn decide_stored<'p, C: Clock + Send>(
        &'p self,
        clock: C,
        request: &Request<'_>,
    ) -> impl Future<Output = Result<StoredDecision<'p>, StoreError>> + Send + use<'p, C> {
        let mut stored = Vec::new();
        let asks = Some(&mut stored);
        let mut decision = self.decide(clock.now(), request, How::Take, asks, |_| {});
        let asked = self.asked(&stored, request);
        async move {
            let answers = self.ask(asked).await;
            let in_store = decision.complete(&clock, answers)?;
            Ok(StoredDecision { decision, in_store })
        }
    }

    /// What the stores of rules are asked, by the indexes of the rules.
    pub(crate) fn asked(&self, rules: &[usize], request: &Request<'_>) -> Vec<Asked> {
        let asked = rules.iter();
        asked
            .filter_map(|&rule| Asked::new(self, rule, request))
            .collect()
    }

    /// Asks the stores of rules of this policy. All rules of a store that decide are one request to
    /// it, and each shadow rule is another.
    pub(crate) async fn ask(&self, mut asked: Vec<Asked>) -> Result<Answers, StoreError> {
        let mut answered = Answers::default();
        while let Some(first) = asked.first() {
            let name = first.active(self).rule.store().unwrap_or_default();
            // All rules with this store, in one call.
            let of_store = asked.extract_if(.., |one| one.active(self).rule.store() == Some(name));
            let of_store = of_store.partition(|one| one.active(self).rule.is_shadow);
            let (shadows, deciding): (Vec<Asked>, Vec<Asked>) = of_store;
            let deciding = (!deciding.is_empty()).then_some(&deciding[..]);
            let requests = deciding
                .into_iter()
                .chain(shadows.iter().map(core::slice::from_ref));
            let charges: Vec<Vec<Charge<'_>>> = requests
                .map(|rules| rules.iter().flat_map(|one| one.charges(self)).collect())
                .collect();
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
                Err(error) => vec![Err(error); charges.len()].into_iter(),
            };
            let mut next = || answers.next().unwrap_or(Err(StoreError::Damaged));
            if let Some(rules) = deciding {
                answered.decided = Some(InStore {
                    decision: next()?,
                    rules: rules.iter().map(|one| (one.rule, one.instead)).collect(),
                });
            }
            let denials = shadows.iter().filter_map(|one| {
                let limit = next().ok()?.denied_by()?;
                Some(ShadowDenial::new(one.rule, one.instead, Some(limit)))
            });
            answered.shadows.extend(denials);
        }
        Ok(answered)
    }
}

/// What was decided on a request, in this process or in a store: the result of
/// [`Policy::decide_stored`].
///
/// ```
/// use portcullis_core::MonotonicClock;
/// use portcullis_policy::{Policy, Request, Rule};
///
/// # futures_executor::block_on(async {
/// let policy = Policy::new([Rule::new("all").limit("5/h".parse()?)]).unwrap();
/// let request = Request::new("GET", "/");
/// let decision = policy.decide_stored(MonotonicClock::new(), &request).await?;
/// // The rule has no store.
/// assert!(decision.is_allowed() && decision.in_store().is_none());
/// # Ok::<(), Box<dyn core::error::Error>>(()) }).unwrap();
/// ```
#[derive(Debug)]
#[must_use = "dropping a decision returns the permits of limits at once"]
pub struct StoredDecision<'p> {
    decision: Decision<'p>,
    in_store: Option<InStore>,
}

impl<'p> StoredDecision<'p> {
    /// Returns whether the request is allowed.
    pub fn is_allowed(&self) -> bool {
        self.decision.is_allowed()
    }

    /// Returns the decision: the rule, the limit that denied, and shadow rules that would have
    /// denied. It has no state of the rules that a store decided: their limits are in
    /// [`limits`](Self::limits).
    pub fn decision(&self) -> &Decision<'p> {
        &self.decision
    }

    /// Returns what the store decided, and what its limits have left, in the order of
    /// [`limits`](Self::limits). `None` if no store decided.
    pub fn in_store(&self) -> Option<&StoreDecision> {
        Some(&self.in_store.as_ref()?.decision)
    }

    /// Returns the limits that the store was asked for, of all rules with it. Empty if no store
    /// decided.
    pub fn limits(&self) -> impl Iterator<Item = StoredLimit<'_>> {
        let policy = self.decision.policy;
        self.in_store
            .iter()
            .flat_map(|in_store| in_store.limits(policy))
    }

    /// Returns the limit of the store that denied. `None` if no store has denied.
    pub fn denied_in_store(&self) -> Option<&'p Limit> {
        self.in_store.as_ref()?.limit_denied(self.decision.policy)
    }

    /// Returns when to retry, after a denial by a limit: as [`Decision::retry`], or from a store,
    /// [`Retry::After`] a time or [`Retry::Never`], if no other rule takes longer.
    pub fn retry(&self) -> Option<Retry> {
        self.decision.retry_with(self.in_store())
    }
}

impl Decision<'_> {
    /// When to retry, after a denial by a limit of this decision, or by one of a store.
    pub(crate) fn retry_with(&self, in_store: Option<&StoreDecision>) -> Option<Retry> {
        match in_store {
            Some(decision) => self.retry_after(Some(decision.retry()?)),
            None => self.retry(),
        }
    }
}
