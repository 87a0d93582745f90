//! A request that several rules limit: one decision takes from all of them, or from none.
//!
//! State: a [`Part`] for each rule that is asked. It says where the state of the request's key is,
//! and what is needed to return the permits that were taken there.
//!
//! ```text
//! find       the rules that the request matches, up to the first that does not go on
//! look       at the limits of all rules. The first rule that denies is asked first, so that its
//!            wait and its penalty start, and nothing is taken from the others
//! take       from each rule, in order. If one denies after all, because another thread has come
//!            between, give back to those before it
//! wait       in the queue of the rule that denies, if no other rule would deny then. It holds
//!            nothing meanwhile. After it, take from the other rules
//! ask        the counter store of the rules that have one, last and once for all of them. If it
//!            denies or has no answer, give back
//! shadows    the shadow rules that would have been among them. If a rule denies, they take nothing
//! ```
//!
//! Invariant: a rule's permits are taken exactly while the decision is allowed, or while a store is
//! asked. What a token bucket takes back: see [`Store::give_back`](crate::store::Store::give_back).

use core::ops::ControlFlow;
use std::sync::Arc;

use portcullis_core::keyed::RefundTime;
use portcullis_core::{Clock, Timestamp};

use super::active::{Unasked, Verdict};
use super::answer::RuleAnswer;
use super::outcome::Outcome;
use super::{Decision, Own, Parts, Policy};
use crate::hold::OfRule;
use crate::overrides::Place;
use crate::path::{PathError, Reading};
use crate::request::Request;
use crate::store::{Held, How, Store, StoreDenied};

/// One of the rules that a request is limited by.
pub(crate) struct Part {
    pub(super) rule: u32,
    /// Where the state of the request's key is. `None` if the rule has no limits, or a store.
    pub(super) place: Option<Place>,
    is_stored: bool,
    /// What is needed to return the permits that were taken.
    pub(crate) held: Held,
}

/// The rules that limit a request, and the one that denies it without asking its limits.
type Found = (Vec<Part>, Option<(u32, Outcome)>);

/// Which shadow rules are asked after the rules that decide: those that are continuing, and all
/// behind a continuing rule.
struct Later {
    /// The condition of the first continuing rule that is no shadow.
    from: usize,
    /// The last rule that may be asked.
    last: u32,
    /// Whether there are any.
    are_any: bool,
}

impl Part {
    fn new(rule: u32, place: Option<Place>, is_stored: bool) -> Self {
        Self {
            rule,
            place,
            is_stored,
            held: Held::default(),
        }
    }

    /// The state of the request's key, and where in it.
    pub(crate) fn state<'p>(&self, policy: &'p Policy) -> Option<(&'p Store, Place)> {
        let place = self.place?;
        Some((policy.rules[self.rule as usize].store_at(place), place))
    }

    /// Returns what was taken, as far as each limit can take it back.
    fn give_back(&mut self, policy: &Policy, time: impl RefundTime, n: u32) {
        if let Some((store, place)) = self.state(policy) {
            store.give_back(place.at, time, n, &self.held);
            store.release(place.at, n);
        }
        self.held = Held::default();
    }
}

impl Policy {
    /// Decides a request by several rules if none has decided it, and then asks the shadow rules
    /// that would have been among those that decide. Notes in `asks` the rules whose stores are to
    /// be asked. Without it, they are not.
    //
    // Apart from `decide`, so that a request of one rule pays nothing for several.
    #[cold]
    #[inline(never)]
    pub(super) fn decide_further<'p>(
        &'p self,
        of: (Reading, &Request<'_>),
        how: &mut How<'_>,
        mut asks: Option<&mut Vec<usize>>,
        watch: &mut dyn FnMut(RuleAnswer<'p>),
        decision: &mut Decision<'p>,
    ) {
        let mut later = Later {
            from: usize::MAX,
            last: decision.parts.rule().unwrap_or(u32::MAX),
            are_any: decision.parts.own.is_some(),
        };
        if decision.parts.own.is_none() {
            let asks = asks.as_deref_mut();
            self.decide_by_several(of, &mut later, how, asks, watch, decision);
        }
        // A path that cannot be matched is that of none of them.
        if later.are_any && !matches!(decision.outcome(), Outcome::Path(_)) {
            // Before a store is asked, and before a wait, it is as good as allowed.
            let is_open = how.waits() || asks.is_some() && decision.outcome() == Outcome::Stored;
            let is_denied = !decision.is_allowed() && !is_open;
            self.ask_shadows(of, &later, is_denied, asks, watch, decision);
        }
    }

    /// Decides a request by the first continuing rule, and by those after it.
    fn decide_by_several<'p>(
        &'p self,
        of: (Reading, &Request<'_>),
        later: &mut Later,
        how: &mut How<'_>,
        asks: Option<&mut Vec<usize>>,
        watch: &mut dyn FnMut(RuleAnswer<'p>),
        decision: &mut Decision<'p>,
    ) {
        let found = match self.find_parts(of, later, watch, decision) {
            Ok(found) => found,
            Err(error) => {
                decision.parts.outcome = Outcome::Path(error);
                return;
            }
        };
        let (parts, mut refused) = found;
        let stored = parts.iter().filter(|part| part.is_stored);
        let stored: Vec<usize> = stored.map(|part| part.rule as usize).collect();
        if asks.is_none()
            && let Some(&rule) = stored.first()
        {
            // Its store would have to be asked, so nothing is taken from the others.
            refused = refused.or(Some((rule as u32, Outcome::Stored)));
        }
        if let Some((rule, outcome)) = refused {
            (decision.parts.own, decision.parts.outcome) = (Some(Own::of(rule)), outcome);
            watch(self.answer(rule, outcome, None));
        } else if !parts.is_empty() {
            decision.parts.others = Some(Arc::new(parts));
            decision.take_from_all(decision.parts.now, how, None);
            for mut answer in decision.answers() {
                if stored.contains(&answer.index) && decision.is_taken() {
                    answer.outcome = decision.parts.outcome;
                }
                watch(answer);
            }
            if let Some(asks) = asks.filter(|_| decision.is_taken() || how.waits()) {
                asks.extend(stored);
            }
        }
    }

    /// Finds the rules that limit a request together, or the one that denies it without asking its
    /// limits.
    fn find_parts<'p>(
        &'p self,
        (reading, request): (Reading, &Request<'_>),
        later: &mut Later,
        watch: &mut dyn FnMut(RuleAnswer<'p>),
        decision: &mut Decision<'p>,
    ) -> Result<Found, PathError> {
        let (mut parts, mut refused) = (Vec::new(), None);
        self.matcher.visit_as(reading, request, |index| {
            let rule = self.matched[index];
            let active = &self.rules[rule as usize];
            if active.rule.is_shadow {
                later.are_any |= active.rule.is_continuing || index > later.from;
                return ControlFlow::Continue(());
            }
            if active.rule.is_continuing {
                later.from = later.from.min(index);
            }
            match active.locate_any(request, self.path_rules) {
                Ok(place) => parts.push(Part::new(rule, place, place.is_none())),
                Err(Unasked::NoLimits) => parts.push(Part::new(rule, None, false)),
                Err(Unasked::Skipped) => return ControlFlow::Continue(()),
                Err(Unasked::Exempt) => {
                    // It is the last word if no other rule is asked.
                    decision.parts.own = Some(Own::of(rule));
                    decision.parts.outcome = Outcome::Exempt;
                    watch(self.answer(rule, Outcome::Exempt, None));
                }
                Err(unasked) => {
                    let outcome = Verdict::from(unasked).outcome();
                    refused = Some((rule, outcome.unwrap_or(Outcome::Unidentified)));
                    later.last = rule;
                    return ControlFlow::Break(());
                }
            }
            if active.rule.is_continuing {
                ControlFlow::Continue(())
            } else {
                later.last = rule;
                ControlFlow::Break(())
            }
        })?;
        Ok((parts, refused))
    }

    /// Asks the shadow rules that would have been among the rules that decide, each as if it
    /// alone were enforced. If the request `is_denied`, one behind the rule that denies would not
    /// have been asked, and one before it would have denied first or taken nothing.
    fn ask_shadows<'p>(
        &'p self,
        (reading, request): (Reading, &Request<'_>),
        later: &Later,
        is_denied: bool,
        mut asks: Option<&mut Vec<usize>>,
        watch: &mut dyn FnMut(RuleAnswer<'p>),
        decision: &mut Decision<'p>,
    ) {
        let now = decision.parts.now;
        let visited = self.matcher.visit_as(reading, request, |index| {
            let rule = self.matched[index];
            if rule > later.last {
                return ControlFlow::Break(());
            }
            let active = &self.rules[rule as usize];
            let is_later = active.rule.is_continuing || index > later.from;
            if !active.rule.is_shadow || !is_later {
                return ControlFlow::Continue(());
            }
            if is_denied {
                let is_behind = Some(rule) > decision.parts.rule();
                // One that is not continuing would have been the last one.
                let takes_none =
                    || active.rule.is_continuing && !active.denies(request, now, self.path_rules);
                if is_behind || takes_none() {
                    return ControlFlow::Continue(());
                }
            }
            let verdict = active.judge(request, now, self.path_rules, &mut How::Take);
            let Some(outcome) = verdict.outcome() else {
                return ControlFlow::Continue(());
            };
            if let (Outcome::Stored, Some(asks)) = (outcome, &mut asks) {
                asks.push(rule as usize);
            }
            decision.ask_shadow(rule, &verdict);
            watch(self.answer(rule, outcome, verdict.place()));
            ControlFlow::Continue(())
        });
        debug_assert!(visited.is_ok(), "the path was matched before");
    }

    pub(super) fn answer(&self, rule: u32, outcome: Outcome, at: Option<Place>) -> RuleAnswer<'_> {
        RuleAnswer::of(&self.rules[rule as usize], rule, outcome, at)
    }

    /// Takes `n` permits from each of the rules, or from none, but from the one that has `granted`
    /// them already. Returns which one denies, and why.
    fn take_each(
        &self,
        parts: &mut [Part],
        (now, n): (Timestamp, u32),
        how: &mut How<'_>,
        granted: Option<u32>,
    ) -> Result<(), (usize, StoreDenied)> {
        let looked = |part: &Part| match part.state(self) {
            Some((store, place)) => store.look(place.at, now, n),
            None => Ok(()),
        };
        let asks = |part: &Part| Some(part.rule) != granted;
        let first = parts
            .iter()
            .position(|part| asks(part) && looked(part).is_err());
        let rest = (0..parts.len()).filter(|&index| Some(index) != first && asks(&parts[index]));
        let order: Vec<usize> = first.into_iter().chain(rest).collect();
        for (nth, &index) in order.iter().enumerate() {
            let part = &mut parts[index];
            let Some((store, place)) = part.state(self) else {
                continue;
            };
            let mut how = how.holding(&mut part.held);
            let Err(by) = store.decide(place.at, now, n, &mut how) else {
                continue;
            };
            for &taken in order[..nth].iter().rev() {
                parts[taken].give_back(self, now, n);
            }
            return Err((index, by));
        }
        Ok(())
    }
}

impl Decision<'_> {
    /// Takes from all rules that the request is limited by, or from none, and notes the outcome.
    /// One of them may have `granted` the permits already. If a store is to be asked, the outcome
    /// is [`Outcome::Stored`].
    pub(crate) fn take_from_all(
        &mut self,
        now: Timestamp,
        how: &mut How<'_>,
        granted: Option<u32>,
    ) {
        let policy = self.policy;
        let mut parts = self.take_parts();
        let taken = policy.take_each(&mut parts, (now, self.parts.cost), how, granted);
        self.parts.now = now;
        let stored = parts.iter().position(|part| part.is_stored);
        let (decides, outcome) = match taken {
            Ok(()) => {
                let last = || parts.iter().rposition(|part| part.place.is_some());
                let allows = || last().unwrap_or(parts.len() - 1);
                let outcome = stored.map_or(Outcome::Allowed, |_| Outcome::Stored);
                (stored.unwrap_or_else(allows), outcome)
            }
            Err((denies, by)) => {
                let StoreDenied { limit, denied } = by;
                (denies, Outcome::Denied { limit, denied })
            }
        };
        #[cfg(feature = "queue")]
        let (decides, outcome) = match how {
            How::OrWait(can_wait) if **can_wait => {
                // It must not wait for one rule while another would deny it at the end anyway.
                let others = parts.iter().enumerate();
                let mut others =
                    others.filter(|&(index, part)| index != decides && Some(part.rule) != granted);
                let denies = |(index, part): (usize, &Part)| {
                    let (store, place) = part.state(policy)?;
                    let by = store.denies_a_wait(place.at, now, self.parts.cost)?;
                    store.penalize_after(place.at, now, by);
                    let StoreDenied { limit, denied } = by;
                    Some((index, Outcome::Denied { limit, denied }))
                };
                let denied = others.find_map(denies);
                **can_wait = denied.is_none();
                denied.unwrap_or((decides, outcome))
            }
            _ => (decides, outcome),
        };
        self.parts.outcome = outcome;
        let part = parts.remove(decides);
        (self.parts.own, self.parts.place) = (Some(Own::of(part.rule)), part.place);
        if let How::Hold(held) = how {
            **held = part.held;
        }
        self.parts.others = (!parts.is_empty()).then(|| Arc::new(parts));
    }

    /// All rules that the request is limited by, in order. What was taken of the rule that decides
    /// cannot be returned any more.
    fn take_parts(&mut self) -> Vec<Part> {
        let others = self.parts.others.take();
        let mut parts = others.and_then(Arc::into_inner).unwrap_or_default();
        if let Some(rule) = self.parts.own.take().map(Own::rule)
            && self.parts.outcome != Outcome::Exempt
        {
            let at = parts.partition_point(|part| part.rule < rule);
            let part = Part {
                rule,
                place: self.parts.place.take(),
                is_stored: self.parts.outcome == Outcome::Stored,
                held: Held::default(),
            };
            parts.insert(at, part);
        }
        parts
    }

    /// Whether the permits of all rules in this process are taken.
    pub(crate) fn is_taken(&self) -> bool {
        self.parts.is_taken()
    }

    /// The other rules that the request is limited by, in order.
    pub(crate) fn others(&self) -> &[Part] {
        self.parts.others.as_deref().map_or(&[], Vec::as_slice)
    }

    /// Each rule that the request is limited by, in order, and where the state of its key is.
    pub(crate) fn asked(&self) -> impl Iterator<Item = (u32, Option<Place>)> {
        let others = self.others();
        let at = others.partition_point(|part| Some(part.rule) < self.parts.rule());
        let (before, after) = others.split_at(at);
        let own = self.parts.rule().map(|rule| (rule, self.parts.place));
        let of = |part: &Part| (part.rule, part.place);
        before.iter().map(of).chain(own).chain(after.iter().map(of))
    }

    /// Returns what was taken of the other rules: a store has denied, or has no answer.
    pub(crate) fn give_back_others(&mut self, clock: &dyn Clock) {
        let (policy, n) = (self.policy, self.parts.cost);
        if let Some(parts) = self.parts.others.as_mut().and_then(Arc::get_mut) {
            for part in parts.iter_mut().rev() {
                part.give_back(policy, clock, n);
            }
        }
    }

    /// Allows the request by the rules in this process, because the store of the others has no
    /// answer.
    #[cfg(feature = "queue")]
    pub(crate) fn pass_without_store(&mut self) {
        let mut parts = self.take_parts();
        parts.retain(|part| !part.is_stored);
        self.parts.outcome = Outcome::NoRule;
        if let Some(part) = parts.pop() {
            (self.parts.own, self.parts.place) = (Some(Own::of(part.rule)), part.place);
            self.parts.outcome = Outcome::Allowed;
        }
        self.parts.others = (!parts.is_empty()).then(|| Arc::new(parts));
    }

    /// Gives back all that was taken, because a store has no answer.
    pub(crate) fn withdraw(&mut self, clock: &dyn Clock) {
        self.give_back_others(clock);
        self.parts.others = None;
    }

    /// Makes another one of the rules the one that decides. What is needed to return the permits of
    /// both is lost.
    pub(super) fn decide_by(&mut self, rule: u32) {
        let mut parts = self.take_parts();
        if let Some(at) = parts.iter().position(|part| part.rule == rule) {
            let part = parts.remove(at);
            (self.parts.own, self.parts.place) = (Some(Own::of(part.rule)), part.place);
        }
        self.parts.others = (!parts.is_empty()).then(|| Arc::new(parts));
    }

    /// When the hold of each other rule ends, the state of the request's key in it, and what is
    /// needed to return its permits.
    pub(crate) fn held_of_others(&self) -> impl Iterator<Item = OfRule<'_>> {
        let (policy, now) = (self.policy, self.parts.now);
        self.others().iter().filter_map(move |part| {
            let (store, place) = part.state(policy)?;
            let ends = policy.rules[part.rule as usize].rule.ends(now);
            Some((ends, (store, place.at), &part.held))
        })
    }
}

impl Parts {
    /// Whether the permits of all rules in this process are taken.
    pub(super) const fn is_taken(&self) -> bool {
        matches!(self.outcome, Outcome::Allowed | Outcome::Stored)
    }

    /// The states of the request's key in the other rules that were taken from.
    fn taken_others<'p>(&self, policy: &'p Policy) -> impl Iterator<Item = (&'p Store, Place)> {
        let others = self.others.iter().filter(|_| self.is_taken());
        others
            .flat_map(|parts| parts.iter())
            .filter_map(|part| part.state(policy))
    }

    /// Whether permits of the other rules return by release.
    #[cold]
    #[inline(never)]
    pub(super) fn others_hold_permits(&self, policy: &Policy) -> bool {
        self.taken_others(policy).any(|(store, _)| store.releases())
    }

    /// Returns the permits at once of shadow rules and of the other rules.
    #[cold]
    #[inline(never)]
    pub(super) fn release_others(&self, policy: &Policy) {
        for &(rule, place) in self.shadows.iter().flatten().flatten() {
            let store = policy.rules[rule as usize].store_at(place);
            store.release(place.at, self.cost);
        }
        for (store, place) in self.taken_others(policy) {
            store.release(place.at, self.cost);
        }
    }
}
