//! Decisions and holds that own a pointer to their policy, so that a task can keep them.

use core::fmt;
use core::mem::{self, ManuallyDrop};
use core::ops::Deref;

use portcullis_core::Timestamp;

use super::{Decision, Parts, Policy};
use crate::hold::{Ending, Hold, Settled};

impl Decision<'_> {
    /// Returns whether permits return when the decision is dropped: those of limits at once. The
    /// permits of all other limits return by time, so a decision without them needs not be kept.
    ///
    /// ```
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{Limit, Policy, Request, Rule};
    /// let decide = |limit| {
    ///     let policy = Policy::new([Rule::new("all").limit(limit)]).unwrap();
    ///     policy.decide_at(Timestamp::ZERO, &Request::new("GET", "/")).holds_permits()
    /// };
    /// assert!(decide(Limit::at_once(5)) && !decide("5/s".parse()?));
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    #[inline]
    pub fn holds_permits(&self) -> bool {
        self.parts.holds_permits(self.policy)
    }

    /// Returns the decision with a pointer to its policy, such as an `Arc`. The result can move to
    /// another task.
    ///
    /// # Panics
    ///
    /// If `policy` points to another policy.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use portcullis_core::Timestamp;
    /// use portcullis_policy::{Limit, Policy, Request, Rule};
    ///
    /// let policy = Arc::new(Policy::new([Rule::new("all").limit(Limit::at_once(1))]).unwrap());
    /// let decide = || policy.decide_at(Timestamp::ZERO, &Request::new("GET", "/"));
    /// let kept = decide().into_owned(Arc::clone(&policy));
    /// assert!(!decide().is_allowed());
    /// std::thread::spawn(move || drop(kept)).join().unwrap();
    /// assert!(decide().is_allowed());
    /// ```
    pub fn into_owned<P: Deref<Target = Policy>>(self, policy: P) -> OwnedDecision<P> {
        assert!(
            core::ptr::eq::<Policy>(&raw const *policy, self.policy),
            "the decision is by another policy"
        );
        // Its permits are now those of the owned decision.
        let mut decision = ManuallyDrop::new(self);
        let parts = decision.parts.take();
        OwnedDecision { policy, parts }
    }
}

impl Hold<'_> {
    /// Returns the hold with a pointer to its policy, such as an `Arc`. The result can move to
    /// another task.
    ///
    /// # Panics
    ///
    /// If `policy` points to another policy.
    ///
    /// ```
    /// use core::time::Duration;
    /// use std::sync::Arc;
    /// use portcullis_core::Timestamp;
    /// use portcullis_policy::{Policy, Request, Rule};
    ///
    /// let rule = Rule::new("tokens").limit("100/m".parse()?).hold(Duration::from_secs(60));
    /// let policy = Arc::new(Policy::new([rule]).unwrap());
    /// let now = Timestamp::from_secs(1);
    /// let hold = policy.hold_at(now, &Request::new("POST", "/").cost(40));
    /// let hold = hold.into_owned(Arc::clone(&policy));
    /// let task = std::thread::spawn(move || hold.settle_at(now, 10).unused);
    /// assert_eq!(task.join().unwrap(), 30);
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    pub fn into_owned<P: Deref<Target = Policy>>(self, policy: P) -> OwnedHold<P> {
        let (decision, ending) = self.into_parts();
        OwnedHold {
            decision: decision.into_owned(policy),
            ending,
        }
    }
}

impl Parts {
    fn decision(self, policy: &Policy) -> Decision<'_> {
        Decision {
            policy,
            parts: self,
        }
    }

    /// The parts, which leave a decision without permits.
    #[inline(always)]
    fn take(&mut self) -> Self {
        let none = Self::new(self.now, self.cost);
        mem::replace(self, none)
    }
}

/// A [`Decision`] and a pointer to its policy: the result of [`Decision::into_owned`]. It holds the
/// permits of limits at once until it is dropped.
///
/// ```
/// use std::sync::Arc;
/// use portcullis_core::Timestamp;
/// use portcullis_policy::{Policy, Request, Rule};
///
/// let policy = Arc::new(Policy::new([Rule::new("all")]).unwrap());
/// let decision = policy.decide_at(Timestamp::ZERO, &Request::new("GET", "/"));
/// let decision = decision.into_owned(Arc::clone(&policy));
/// assert!(decision.with(|decision| decision.is_allowed()));
/// ```
#[must_use = "dropping a decision returns the permits of limits at once"]
pub struct OwnedDecision<P: Deref<Target = Policy>> {
    policy: P,
    parts: Parts,
}

impl<P: Deref<Target = Policy>> OwnedDecision<P> {
    /// Calls a function with the decision.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{Policy, Request, Rule};
    /// let policy = Arc::new(Policy::new([Rule::new("all")]).unwrap());
    /// let decision = policy.decide_at(Timestamp::ZERO, &Request::new("GET", "/"));
    /// let decision = decision.into_owned(Arc::clone(&policy));
    /// assert_eq!(decision.with(|decision| decision.rule().unwrap().name().len()), 3);
    /// ```
    pub fn with<T>(&self, ask: impl FnOnce(&Decision<'_>) -> T) -> T {
        // Its permits are not its own, but a part of its memory is.
        let mut decision = ManuallyDrop::new(self.parts.clone().decision(&self.policy));
        let told = ask(&decision);
        decision.parts.others = None;
        told
    }

    /// Returns the pointer to the policy.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{Policy, Request};
    /// let policy = Arc::new(Policy::new([]).unwrap());
    /// let decision = policy.decide_at(Timestamp::ZERO, &Request::new("GET", "/"));
    /// assert!(Arc::ptr_eq(decision.into_owned(Arc::clone(&policy)).policy(), &policy));
    /// ```
    pub fn policy(&self) -> &P {
        &self.policy
    }

    /// Whether the permits of all rules in this process are taken.
    #[cfg(feature = "queue")]
    pub(crate) fn is_taken(&self) -> bool {
        self.parts.is_taken()
    }

    /// Calls a function that may change the decision.
    #[cfg(feature = "queue")]
    pub(crate) fn change<T>(&mut self, change: impl FnOnce(&mut Decision<'_>) -> T) -> T {
        let mut decision = self.parts.take().decision(&self.policy);
        let changed = change(&mut decision);
        self.parts = decision.parts.take();
        changed
    }
}

impl<P: Deref<Target = Policy>> OwnedDecision<P> {
    /// Returns whether permits return when the decision is dropped: as
    /// [`Decision::holds_permits`].
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{Policy, Request, Rule};
    /// let policy = Arc::new(Policy::new([Rule::new("all")]).unwrap());
    /// let decision = policy.decide_at(Timestamp::ZERO, &Request::new("GET", "/"));
    /// assert!(!decision.into_owned(Arc::clone(&policy)).holds_permits());
    /// ```
    pub fn holds_permits(&self) -> bool {
        self.parts.holds_permits(&self.policy)
    }
}

impl<P: Deref<Target = Policy>> Drop for OwnedDecision<P> {
    fn drop(&mut self) {
        self.parts.release(&self.policy);
    }
}

impl<P: Deref<Target = Policy>> fmt::Debug for OwnedDecision<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.with(|decision| decision.fmt(f))
    }
}

/// A [`Hold`] and a pointer to its policy: the result of [`Hold::into_owned`].
///
/// ```
/// use core::time::Duration;
/// use std::sync::Arc;
/// use portcullis_core::Timestamp;
/// use portcullis_policy::{Policy, Request, Rule};
///
/// let rule = Rule::new("tokens").limit("100/m".parse()?).hold(Duration::from_secs(60));
/// let policy = Arc::new(Policy::new([rule]).unwrap());
/// let now = Timestamp::from_secs(1);
/// let hold = policy.hold_at(now, &Request::new("POST", "/").cost(40));
/// let hold = hold.into_owned(Arc::clone(&policy));
/// assert_eq!(hold.settle_at(now, 45).excess, 5);
/// # Ok::<(), portcullis_policy::PeriodError>(())
/// ```
#[must_use = "dropping a hold settles it with its estimate"]
pub struct OwnedHold<P: Deref<Target = Policy>> {
    decision: OwnedDecision<P>,
    ending: Ending,
}

impl<P: Deref<Target = Policy>> OwnedHold<P> {
    /// Settles the cost: as [`Hold::settle_at`].
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{Policy, Request, Rule};
    /// let policy = Arc::new(Policy::new([Rule::new("all").limit("10/s".parse()?)]).unwrap());
    /// let hold = policy.hold_at(Timestamp::ZERO, &Request::new("GET", "/").cost(2));
    /// let hold = hold.into_owned(Arc::clone(&policy));
    /// assert_eq!(hold.settle_at(Timestamp::ZERO, 5).excess, 3);
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    #[allow(
        clippy::must_use_candidate,
        reason = "what a settlement did is often not needed"
    )]
    pub fn settle_at(self, now: Timestamp, actual: u32) -> Settled {
        self.settle_and_keep_at(now, actual).1
    }

    /// Settles the cost, and returns the decision, which still holds the permits of limits at once.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{Limit, Policy, Request, Rule};
    /// let rule = Rule::new("all").limit("10/s".parse()?).limit(Limit::at_once(1));
    /// let policy = Arc::new(Policy::new([rule]).unwrap());
    /// let request = Request::new("GET", "/");
    /// let hold = policy.hold_at(Timestamp::ZERO, &request).into_owned(Arc::clone(&policy));
    /// let (in_progress, settled) = hold.settle_and_keep_at(Timestamp::ZERO, 5);
    /// assert_eq!(settled.excess, 4);
    /// assert!(!policy.decide_at(Timestamp::ZERO, &request).is_allowed());
    /// drop(in_progress);
    /// assert!(policy.decide_at(Timestamp::ZERO, &request).is_allowed());
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    pub fn settle_and_keep_at(self, now: Timestamp, actual: u32) -> (OwnedDecision<P>, Settled) {
        let settled = self.with(|decision| self.ending.settle(decision, now, actual));
        (self.decision, settled)
    }

    /// Returns all permits, because the request is not made after all: another limit denies it.
    /// They return also if the rule has no [`hold`](crate::Rule::hold).
    ///
    /// If no other request has taken from a limit since, all its permits return at once. Otherwise
    /// some of them may return by time.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{Policy, Request, Rule};
    /// let policy = Arc::new(Policy::new([Rule::new("all").limit("1/s".parse()?)]).unwrap());
    /// let (now, request) = (Timestamp::from_secs(1), Request::new("GET", "/"));
    /// policy.hold_at(now, &request).into_owned(Arc::clone(&policy)).undo_at(now);
    /// assert!(policy.decide_at(now, &request).is_allowed());
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    pub fn undo_at(self, now: Timestamp) {
        drop(self.undo_and_keep_at(now));
    }

    /// As [`undo_at`](Self::undo_at), and returns the decision, which still holds the permits of
    /// limits at once. For a request that is in progress, and turns out not to count.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{Limit, Policy, Request, Rule};
    /// let rule = Rule::new("all").limit("1/s".parse()?).limit(Limit::at_once(1));
    /// let policy = Arc::new(Policy::new([rule]).unwrap());
    /// let request = Request::new("GET", "/");
    /// let hold = policy.hold_at(Timestamp::ZERO, &request).into_owned(Arc::clone(&policy));
    /// let in_progress = hold.undo_and_keep_at(Timestamp::ZERO);
    /// assert!(!policy.decide_at(Timestamp::ZERO, &request).is_allowed());
    /// drop(in_progress);
    /// assert!(policy.decide_at(Timestamp::ZERO, &request).is_allowed());
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    pub fn undo_and_keep_at(self, now: Timestamp) -> OwnedDecision<P> {
        self.with(|decision| self.ending.undo(decision, now));
        self.decision
    }

    /// Keeps the estimate as the cost, and returns the decision.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{Policy, Request};
    /// let policy = Arc::new(Policy::new([]).unwrap());
    /// let hold = policy.hold_at(Timestamp::ZERO, &Request::new("GET", "/"));
    /// let decision = hold.into_owned(Arc::clone(&policy)).into_decision();
    /// assert!(decision.with(|decision| decision.is_allowed()));
    /// ```
    pub fn into_decision(self) -> OwnedDecision<P> {
        self.decision
    }
}

impl<P: Deref<Target = Policy>> Deref for OwnedHold<P> {
    type Target = OwnedDecision<P>;

    fn deref(&self) -> &OwnedDecision<P> {
        &self.decision
    }
}

shows!([P: Deref<Target = Policy>] OwnedHold<P>, "OwnedHold", self: "decision" => self.decision);
