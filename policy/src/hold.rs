//! Requests whose cost is known only when they are done: hold an estimate, then settle.
//!
//! ```text
//!             hold_at                     settle_at
//! request ---> takes the estimate ------> returns what was not used, or charges the excess
//!                     |
//!                     +--- ends, or is dropped: the estimate is the cost
//! ```
//!
//! A hold takes its permits at once, like any request. So it needs no timer: when it ends, nothing
//! has to be done. After its end a settlement returns nothing.

use core::ops::Deref;

use portcullis_core::Timestamp;
use portcullis_core::keyed::Address;

use crate::policy::outcome::Outcome;
use crate::policy::{Decision, Policy};
use crate::request::Request;
use crate::store::{Held, How, Store};

impl Policy {
    /// Decides a request whose cost is not known yet. [`cost`](Request::cost) is an estimate. The
    /// result is settled when the cost is known: see [`Hold`].
    ///
    /// The decision is that of [`decide_at`](Self::decide_at). A shadow rule takes the estimate and
    /// is not settled.
    ///
    /// # Cost
    ///
    /// That of `decide_at`, and some stores for each limit. Does not allocate.
    ///
    /// ```
    /// use core::time::Duration;
    /// use portcullis_core::Timestamp;
    /// use portcullis_policy::{Policy, Request, Rule};
    ///
    /// // 60,000 tokens per minute. A request may hold its estimate for up to 2 minutes.
    /// let rule = Rule::new("tokens").limit("60000/m".parse()?).hold(Duration::from_secs(120));
    /// let policy = Policy::new([rule]).unwrap();
    /// let now = Timestamp::from_secs(1);
    /// let request = Request::new("POST", "/complete");
    /// let (one, two) = (
    ///     policy.hold_at(now, &request.cost(4_000)),
    ///     policy.hold_at(now, &request.cost(4_000)),
    /// );
    /// assert!(one.is_allowed() && two.is_allowed());
    /// // It used 1,000 tokens, and the other one 5,000.
    /// one.settle_at(now, 1_000);
    /// two.settle_at(now, 5_000);
    /// let decision = policy.decide_at(now, &request.cost(0));
    /// assert_eq!(decision.status().unwrap().remaining, 54_000);
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    pub fn hold_at(&self, now: Timestamp, request: &Request<'_>) -> Hold<'_> {
        let mut held = Held::default();
        let decision = self.decide(now, request, How::Hold(&mut held), None, |_| {});
        let ends = decision.rule().and_then(|rule| rule.ends(now));
        Hold {
            ending: Ending { ends, held },
            decision,
        }
    }
}

/// A decision whose cost is settled later: the result of [`Policy::hold_at`]. It has all methods of
/// the [`Decision`].
///
/// - **Less was used.** [`settle_at`](Self::settle_at) returns the rest, to each limit as far as
///   that cannot break its bound. A window takes it back as long as the window counts the hold. A
///   token bucket takes back at most the permits that it has lacked at every moment since the hold.
///   So if the bucket fills in less time than requests are held, little returns. Permits that a
///   limit does not take back return by time.
/// - **More was used.** The excess is charged to each limit: what it has available, and what a
///   token bucket may [owe](crate::Limit::debt).
/// - **The hold ends** after [`Rule::hold`](crate::Rule::hold). Then the estimate counts as the
///   cost, and nothing is returned any more: the request may have used all of it, and a limit must
///   not admit more than its bound because a client was slow. An excess is still charged.
/// - **The hold is dropped** without a settlement: the estimate counts as the cost.
///
/// A limit with `at_once` counts the requests in progress, whatever they cost. Its permits return
/// when the hold is settled or dropped, and not when it ends.
///
/// **Bound.** Each limit keeps its bound for the permits that were used, with two exceptions. A
/// token bucket admits up to its debt in addition. An excess for which a limit has no permits is
/// not counted: [`Settled::uncounted`] is its size. Such a limit has no permits left, so it denies
/// requests, and only those that were already held can overshoot it further. So the overshoot is at
/// most the number of requests that are held at one time, times the largest excess of one. A
/// [`Limit::at_once`](crate::Limit::at_once) bounds that number.
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::Timestamp;
/// use portcullis_policy::{Limit, Policy, Request, Rule};
///
/// let rule = Rule::new("tokens")
///     .limit("10/m".parse::<Limit>()?.debt(5))
///     .hold(Duration::from_secs(30));
/// let policy = Policy::new([rule]).unwrap();
/// let (now, request) = (Timestamp::from_secs(1), Request::new("POST", "/").cost(8));
/// let settled = policy.hold_at(now, &request).settle_at(now, 20);
/// assert_eq!((settled.excess, settled.uncounted), (12, 5), "2 were left, and 5 are owed");
/// let denied = policy.decide_at(now, &request.cost(1));
/// assert_eq!(denied.retry().unwrap().wait_from(now).unwrap().as_secs(), 36);
/// # Ok::<(), portcullis_policy::PeriodError>(())
/// ```
#[must_use = "dropping a hold settles it with its estimate"]
pub struct Hold<'p> {
    decision: Decision<'p>,
    ending: Ending,
}

/// What a hold knows beside its decision: when it ends, and what is needed to return permits.
pub(crate) struct Ending {
    /// `None` if the rule allows no holds.
    ends: Option<Timestamp>,
    held: Held,
}

impl Ending {
    /// Settles the cost of the hold's decision, with each rule. Permits at once stay held.
    pub(crate) fn settle(&self, decision: &Decision<'_>, now: Timestamp, actual: u32) -> Settled {
        let (Outcome::Allowed, Some(state)) = (decision.outcome(), decision.state()) else {
            return Settled::default();
        };
        let costs = (decision.cost(), actual);
        let own = settle(now, costs, (self.ends, state, &self.held));
        if decision.others().is_empty() {
            return own;
        }
        settle_others(decision, now, costs, own)
    }

    /// Returns the permits of the hold's decision. Permits at once stay held.
    pub(crate) fn undo(&self, decision: &Decision<'_>, now: Timestamp) {
        let (Outcome::Allowed, Some(state)) = (decision.outcome(), decision.state()) else {
            return;
        };
        let own = (self.ends, state, &self.held);
        for (_, (store, at), held) in decision.held_of_others().chain([own]) {
            store.give_back(at, now, decision.cost(), held);
        }
    }
}

/// When the hold of a rule ends, the state of the request's key in it, and what is needed to return
/// its permits.
pub(crate) type OfRule<'a> = (Option<Timestamp>, (&'a Store, Address), &'a Held);

/// Settles a cost with the other rules. `own` is what the rule that decided has settled.
#[cold]
#[inline(never)]
fn settle_others(
    decision: &Decision<'_>,
    now: Timestamp,
    costs: (u32, u32),
    own: Settled,
) -> Settled {
    decision.held_of_others().fold(own, |all, held| {
        let one = settle(now, costs, held);
        Settled {
            kept: all.kept.max(one.kept),
            uncounted: all.uncounted.max(one.uncounted),
            ..one
        }
    })
}

/// Settles a cost with one rule.
#[inline]
fn settle(now: Timestamp, (estimate, actual): (u32, u32), of: OfRule<'_>) -> Settled {
    let (ends, (store, at), held) = of;
    if let Some(excess) = actual.checked_sub(estimate) {
        return Settled {
            excess,
            uncounted: excess - store.charge(at, now, excess),
            ..Settled::default()
        };
    }
    let unused = estimate - actual;
    let in_time = ends.is_some_and(|ends| now <= ends);
    let returned = if in_time {
        store.give_back(at, now, unused, held)
    } else {
        0
    };
    Settled {
        unused,
        kept: unused - returned,
        ..Settled::default()
    }
}

/// What a settlement did: the result of [`Hold::settle_at`].
///
/// ```
/// use portcullis_core::Timestamp;
/// use portcullis_policy::{Policy, Request, Settled};
/// let policy = Policy::new([]).unwrap();
/// let hold = policy.hold_at(Timestamp::ZERO, &Request::new("GET", "/").cost(5));
/// assert_eq!(hold.settle_at(Timestamp::ZERO, 7), Settled::default(), "there is no limit");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Settled {
    /// The permits of the estimate that were not used.
    pub unused: u32,
    /// The most unused permits that any limit did not take back. They return by time.
    pub kept: u32,
    /// The permits that were used beyond the estimate.
    pub excess: u32,
    /// The most permits of the excess that any limit could not count.
    pub uncounted: u32,
}

impl Hold<'_> {
    /// Settles the cost: `actual` is the number of permits that were used.
    ///
    /// A hold that was denied, and one that no limit was asked for, settle nothing.
    ///
    /// # Cost
    ///
    /// For each limit, a refund or a take. Divides. Lock-free. Does not allocate.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{Algorithm, Limit, Policy, Request, Rule};
    /// let limit = "10/m".parse::<Limit>()?.algorithm_of(Algorithm::FixedWindow);
    /// let rule = Rule::new("all").limit(limit).hold(Duration::from_secs(20));
    /// let policy = Policy::new([rule]).unwrap();
    /// let request = Request::new("GET", "/").cost(5);
    /// let hold = || policy.hold_at(Timestamp::from_secs(10), &request);
    /// let (one, two) = (hold(), hold());
    /// let settled = one.settle_at(Timestamp::from_secs(15), 2);
    /// assert_eq!((settled.unused, settled.kept), (3, 0));
    /// let late = two.settle_at(Timestamp::from_secs(31), 2);
    /// assert_eq!((late.unused, late.kept), (3, 3), "it has ended");
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    #[allow(
        clippy::must_use_candidate,
        reason = "what a settlement did is often not needed"
    )]
    pub fn settle_at(self, now: Timestamp, actual: u32) -> Settled {
        self.ending.settle(&self.decision, now, actual)
    }

    /// Returns when the hold ends. `None` if the rule has no [`hold`](crate::Rule::hold): then no
    /// permits are returned.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{Policy, Request, Rule};
    /// let rule = Rule::new("all").limit("1/s".parse()?).hold(Duration::from_secs(20));
    /// let policy = Policy::new([rule]).unwrap();
    /// let hold = policy.hold_at(Timestamp::from_secs(10), &Request::new("GET", "/"));
    /// assert_eq!(hold.ends(), Some(Timestamp::from_secs(30)));
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    pub fn ends(&self) -> Option<Timestamp> {
        self.ending.ends
    }
}

impl<'p> Hold<'p> {
    pub(crate) fn into_parts(self) -> (Decision<'p>, Ending) {
        (self.decision, self.ending)
    }
}

impl<'p> Deref for Hold<'p> {
    type Target = Decision<'p>;

    fn deref(&self) -> &Decision<'p> {
        &self.decision
    }
}

shows!(['a] Hold<'a>, "Hold", self: "decision" => self.decision, "ends" => self.ending.ends);
