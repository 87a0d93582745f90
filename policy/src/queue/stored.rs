//! Requests that are decided at once, wait in a queue, or ask a counter store, whichever their rule
//! needs.
//!
//! ```text
//! Policy::acquire_stored ---> Decided: nothing was allocated
//!                        ---> Waits: a queue of the rule that denied
//!                        ---> Asks: the store of the rule that decides, and those of shadow rules
//! ```

use core::future::Future;
use core::ops::Deref;

use portcullis_core::Retry;

use super::Acquiring;
use portcullis_counters::{StoreDecision, StoreError};

use crate::limit::Limit;
use crate::policy::outcome::Outcome;
use crate::policy::owned::OwnedDecision;
use crate::policy::stored::Asked;
use crate::policy::{Decision, Policy};
use crate::request::Request;

/// What follows a request: the result of [`Policy::acquire_stored`].
#[derive(Debug)]
#[must_use = "dropping a decision returns the permits of limits at once"]
#[allow(clippy::large_enum_variant, reason = "it is taken apart at once")]
#[expect(clippy::exhaustive_enums, reason = "a caller must act on each")]
pub enum Acquired<'p> {
    /// It is decided.
    Decided(Decision<'p>),
    /// It waits for permits.
    Waits(Acquiring<'p>),
    /// It is decided when stores have answered.
    Asks(Asking<'p>),
}

impl Policy {
    /// Decides a request as [`acquire`](Self::acquire) does, and tells what stores are to be asked
    /// if a rule that is [stored](crate::Rule::stored_in) applies. No store is asked by this call.
    ///
    /// A request that waits in a queue does not ask the stores of shadow rules. All other requests
    /// do, as in [`decide_stored_at`](Self::decide_stored_at).
    ///
    /// # Cost
    ///
    /// That of [`acquire`](Self::acquire). Allocates if a store is to be asked.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use portcullis_core::MonotonicClock;
    /// use portcullis_counters::MemoryCounters;
    /// use portcullis_policy::{Acquired, Policy, Request, Rule, Stores};
    ///
    /// # futures_executor::block_on(async {
    /// let store = Arc::new(MemoryCounters::new(10_000, MonotonicClock::new()));
    /// let rule = Rule::new("all").limit("1/h".parse()?).stored_in("shared");
    /// let policy = Policy::new([rule]).unwrap();
    /// let policy = Arc::new(policy.with_stores(Stores::new().with("shared", store)).unwrap());
    ///
    /// let ask = || match policy.acquire_stored(&Request::new("GET", "/")) {
    ///     Acquired::Asks(asking) => asking.ask(Arc::clone(&policy)),
    ///     _ => panic!("the rule has a store"),
    /// };
    /// assert!(ask().await?.with(|decision| decision.is_allowed()));
    /// let denied = ask().await?;
    /// assert!(!denied.with(|decision| decision.is_allowed()) && denied.retry().is_some());
    /// # Ok::<(), Box<dyn core::error::Error>>(()) }).unwrap();
    /// ```
    pub fn acquire_stored<'p>(&'p self, request: &Request<'_>) -> Acquired<'p> {
        let mut stored = Vec::new();
        let mut acquiring = self.acquire_watched(request, |answer| {
            if answer.outcome == Outcome::Stored {
                stored.push(answer.index);
            }
        });
        if acquiring.wait.is_some() {
            return Acquired::Waits(acquiring);
        }
        let decision = acquiring.decision.take().expect("it was not polled");
        if stored.is_empty() {
            return Acquired::Decided(decision);
        }
        let asked = self.asked(&stored, request);
        Acquired::Asks(Asking { decision, asked })
    }
}

/// A request that is decided when stores have answered: see [`Policy::acquire_stored`].
#[must_use = "dropping a decision returns the permits of limits at once"]
pub struct Asking<'p> {
    /// As far as the request can be decided without stores.
    decision: Decision<'p>,
    asked: Vec<Asked>,
}

impl Asking<'_> {
    /// Asks the stores. The future owns a pointer to the policy, such as an `Arc`. Each store is
    /// asked when the future is polled.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the store of the rule that decides has no answer. A
    /// [`GuardedStore`](portcullis_counters::GuardedStore) decides instead. An error of the store
    /// of a shadow rule is ignored.
    ///
    /// **Cancellation.** If the future is dropped, the store may have taken the permits or not.
    /// They are permits of limits by rate, which return by time.
    ///
    /// # Panics
    ///
    /// If `policy` points to another policy.
    ///
    /// ```
    /// use portcullis_counters::StoreError;
    /// use portcullis_policy::{Acquired, Policy, Request, Rule};
    ///
    /// let rule = Rule::new("all").limit("1/h".parse()?).stored_in("shared");
    /// let policy = Policy::new([rule]).unwrap();
    /// let Acquired::Asks(asking) = policy.acquire_stored(&Request::new("GET", "/")) else {
    ///     panic!("the rule has a store")
    /// };
    /// // The policy was given no stores.
    /// let error = futures_executor::block_on(asking.ask(&policy)).unwrap_err();
    /// assert!(matches!(error, StoreError::Refused(_)));
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    pub fn ask<P: Deref<Target = Policy>>(
        self,
        policy: P,
    ) -> impl Future<Output = Result<OwnedStoredDecision<P>, StoreError>> + use<P> {
        let Self { decision, asked } = self;
        let mut decision = decision.into_owned(policy);
        async move {
            let policy: &Policy = decision.policy();
            let answers = policy.ask(asked).await?;
            decision.change(|decision| answers.complete(decision));
            Ok(OwnedStoredDecision {
                decision,
                in_store: answers.decided,
            })
        }
    }
}

shows!(['a] Asking<'a>, "Asking", self: "decision" => self.decision);

/// A [`StoredDecision`](crate::StoredDecision) and a pointer to its policy: the result of
/// [`Asking::ask`]. It has all methods of the [`OwnedDecision`].
#[must_use = "dropping a decision returns the permits of limits at once"]
pub struct OwnedStoredDecision<P: Deref<Target = Policy>> {
    decision: OwnedDecision<P>,
    /// With the override whose limits were asked.
    in_store: Option<(StoreDecision, Option<u32>)>,
}

impl<P: Deref<Target = Policy>> OwnedStoredDecision<P> {
    /// Returns what the store decided: as
    /// [`StoredDecision::in_store`](crate::StoredDecision::in_store).
    pub fn in_store(&self) -> Option<&StoreDecision> {
        let (decision, _) = self.in_store.as_ref()?;
        Some(decision)
    }

    /// Returns whether the store was asked for the limits of an
    /// [override](crate::Rule::override_key).
    pub fn is_overridden_in_store(&self) -> bool {
        matches!(self.in_store, Some((_, Some(_))))
    }

    /// Returns the limits that the store was asked for. Empty if no store decided.
    pub fn limits(&self) -> &[Limit] {
        let of_store = self.in_store.as_ref().and_then(|&(_, instead)| {
            let active = self.decision.active()?;
            Some(active.limits_of(instead))
        });
        of_store.unwrap_or(&[])
    }

    /// Returns when to retry, after a denial by a limit: as
    /// [`StoredDecision::retry`](crate::StoredDecision::retry).
    pub fn retry(&self) -> Option<Retry> {
        let in_store = self.in_store().map(StoreDecision::retry);
        self.with(|decision| in_store.unwrap_or_else(|| decision.retry()))
    }

    /// Returns the decision alone.
    pub fn into_decision(self) -> OwnedDecision<P> {
        self.decision
    }
}

impl<P: Deref<Target = Policy>> Deref for OwnedStoredDecision<P> {
    type Target = OwnedDecision<P>;

    fn deref(&self) -> &OwnedDecision<P> {
        &self.decision
    }
}

shows!([P: Deref<Target = Policy>] OwnedStoredDecision<P>, "OwnedStoredDecision",
    self: "decision" => self.decision, "in_store" => self.in_store());
