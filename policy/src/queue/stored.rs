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
use core::time::Duration;

use portcullis_core::Retry;

use super::Acquiring;
use portcullis_counters::{StoreDecision, StoreError};

use crate::limit::Limit;
use crate::policy::owned::OwnedDecision;
use crate::policy::stored::{Asked, InStore, StoredLimit};
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
    /// do, as in [`decide_stored`](Self::decide_stored).
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
    ///     Acquired::Asks(asking) => asking.ask(Arc::clone(&policy), |_| false),
    ///     _ => panic!("the rule has a store"),
    /// };
    /// assert!(ask().await?.with(|decision| decision.is_allowed()));
    /// let denied = ask().await?;
    /// assert!(!denied.with(|decision| decision.is_allowed()) && denied.retry().is_some());
    /// # Ok::<(), Box<dyn core::error::Error>>(()) }).unwrap();
    /// ```
    pub fn acquire_stored<'p>(&'p self, request: &Request<'_>) -> Acquired<'p> {
        let mut stored = Vec::new();
        let mut acquiring = self.acquire_or_ask(request, Some(&mut stored));
        let waits = acquiring.wait.is_some();
        let decides = |&rule: &usize| !self.rules[rule].rule.is_shadow;
        if waits && !stored.iter().any(decides) {
            return Acquired::Waits(acquiring);
        }
        if stored.is_empty() {
            let decision = acquiring.decision.take();
            return Acquired::Decided(decision.expect("it was not polled"));
        }
        let asked = self.asked(&stored, request);
        Acquired::Asks(Asking { acquiring, asked })
    }
}

/// A request that is decided when stores have answered: see [`Policy::acquire_stored`].
#[must_use = "dropping a decision returns the permits of limits at once"]
pub struct Asking<'p> {
    /// As far as the request can be decided without stores. It may wait in a queue first.
    acquiring: Acquiring<'p>,
    asked: Vec<Asked>,
}

impl<'p> Asking<'p> {
    /// Returns the denial after which the request waits in a queue, before its store is asked: as
    /// [`Acquiring::waits_for`].
    pub fn waits_for(&self) -> Option<&Decision<'p>> {
        self.acquiring.waits_for()
    }

    /// Sets how long the request waits in a queue at most: as [`Acquiring::within`].
    pub fn within(self, timeout: Duration) -> Self {
        Self {
            acquiring: self.acquiring.within(timeout),
            asked: self.asked,
        }
    }

    /// Asks the stores. The future owns a pointer to the policy, such as an `Arc`. Each store is
    /// asked when the future is polled.
    ///
    /// If the store of the rules that decide has no answer, `passes` gets the error, and returns
    /// whether the request passes all the same. Then it keeps what it took of the rules in this
    /// process, and takes nothing of the others.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the store has no answer, and the request does not pass. A
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
    /// let error = futures_executor::block_on(asking.ask(&policy, |_| false)).unwrap_err();
    /// assert!(matches!(error, StoreError::Refused(_)));
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    pub fn ask<P: Deref<Target = Policy>, F: FnOnce(&StoreError) -> bool>(
        self,
        policy: P,
        passes: F,
    ) -> impl Future<Output = Result<OwnedStoredDecision<P>, StoreError>> + use<P, F> {
        let Self { acquiring, asked } = self;
        let acquiring = acquiring.into_owned(policy);
        async move {
            let queued = acquiring.await;
            let (has_waited, retry) = (queued.end().is_some(), queued.retry());
            let mut decision = queued.into_decision();
            let mut in_store = None;
            if !has_waited || decision.is_taken() {
                let policy: &Policy = decision.policy();
                let answers = policy.ask(asked).await;
                in_store = match answers {
                    Err(error) if passes(&error) => decision.change(|decision| {
                        decision.pass_without_store();
                        None
                    }),
                    _ => decision.change(|decision| {
                        let clock = &decision.policy.clock;
                        decision.complete(clock, answers)
                    })?,
                };
            }
            Ok(OwnedStoredDecision {
                decision,
                in_store,
                retry,
            })
        }
    }
}

shows!(['a] Asking<'a>, "Asking", self: "acquiring" => self.acquiring);

/// A [`StoredDecision`](crate::StoredDecision) and a pointer to its policy: the result of
/// [`Asking::ask`]. It has all methods of the [`OwnedDecision`].
#[must_use = "dropping a decision returns the permits of limits at once"]
pub struct OwnedStoredDecision<P: Deref<Target = Policy>> {
    decision: OwnedDecision<P>,
    in_store: Option<InStore>,
    /// When to retry after a wait.
    retry: Option<Retry>,
}

impl<P: Deref<Target = Policy>> OwnedStoredDecision<P> {
    /// Returns what the store decided: as
    /// [`StoredDecision::in_store`](crate::StoredDecision::in_store).
    pub fn in_store(&self) -> Option<&StoreDecision> {
        Some(&self.in_store.as_ref()?.decision)
    }

    /// Returns the limits that the store was asked for: as
    /// [`StoredDecision::limits`](crate::StoredDecision::limits).
    pub fn limits(&self) -> impl Iterator<Item = StoredLimit<'_>> {
        let policy = self.decision.policy();
        self.in_store
            .iter()
            .flat_map(|in_store| in_store.limits(policy))
    }

    /// Returns the limit of the store that denied: as
    /// [`StoredDecision::denied_in_store`](crate::StoredDecision::denied_in_store).
    pub fn denied_in_store(&self) -> Option<&Limit> {
        let policy = self.decision.policy();
        self.in_store.as_ref()?.limit_denied(policy)
    }

    /// Returns when to retry, after a denial by a limit: as
    /// [`StoredDecision::retry`](crate::StoredDecision::retry).
    pub fn retry(&self) -> Option<Retry> {
        let in_store = self.in_store();
        self.with(|decision| self.retry.or_else(|| decision.retry_with(in_store)))
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
