//! What one of the rules answers to a request, for those that count or watch.

#[cfg(doc)]
use super::Policy;
use super::active::Active;
use super::outcome::Outcome;
use crate::overrides::Place;
use crate::rule::Rule;

/// The answer of one rule to a request: what [`Policy::decide_watched_at`] reports.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct RuleAnswer<'p> {
    /// The rule.
    pub rule: &'p Rule,
    /// Its index in [`Policy::rules`].
    pub index: usize,
    /// [`Outcome::Allowed`], [`Exempt`](Outcome::Exempt), [`NoAddress`](Outcome::NoAddress),
    /// [`Unidentified`](Outcome::Unidentified) or [`Denied`](Outcome::Denied). The outcome of a
    /// shadow rule is what it would decide.
    pub outcome: Outcome,
    active: &'p Active,
    place: Option<Place>,
    is_overridden_in_store: bool,
}

impl<'p> RuleAnswer<'p> {
    #[inline]
    pub(crate) const fn of(
        active: &'p Active,
        index: u32,
        outcome: Outcome,
        place: Option<Place>,
    ) -> Self {
        Self {
            rule: &active.rule,
            index: index as usize,
            outcome,
            active,
            place,
            is_overridden_in_store: false,
        }
    }

    /// Notes whether a store has denied by a limit of an override.
    pub(crate) const fn in_store(self, is_overridden_in_store: bool) -> Self {
        Self {
            is_overridden_in_store,
            ..self
        }
    }

    /// Returns whether the limits are those of an [override](Rule::override_key) for the request's
    /// key. Of a rule with a counter store it is known only after a denial.
    ///
    /// ```
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{Key, Policy, Request, Rule};
    /// let rule = Rule::new("methods").key(Key::method()).limit("1/s".parse()?);
    /// let policy = Policy::new([rule.override_key(["GET"], ["5/s".parse()?])]).unwrap();
    /// let request = Request::new("GET", "/");
    /// let watch = |answer: portcullis_policy::RuleAnswer<'_>| assert!(answer.is_overridden());
    /// drop(policy.decide_watched_at(Timestamp::ZERO, &request, watch));
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    pub fn is_overridden(&self) -> bool {
        self.is_overridden_in_store || self.active.is_overridden(self.place)
    }
}

shows!(['p] RuleAnswer<'p>, "RuleAnswer", self:
    "rule" => self.rule.name(),
    "index" => self.index,
    "outcome" => self.outcome,
    "is_overridden" => self.is_overridden());
