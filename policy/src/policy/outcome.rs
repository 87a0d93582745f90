//! What was decided on a request, and what a limit has left for it.

use core::cmp::Ordering;

use portcullis_core::{Denied, Retry};

#[cfg(doc)]
use super::Policy;
use crate::limit::Limit;
use crate::path::PathError;
#[cfg(doc)]
use crate::request::Request;
#[cfg(doc)]
use crate::rule::OnMissing;
use crate::rule::Rule;

/// What was decided.
///
/// ```
/// use portcullis_core::Timestamp;
/// use portcullis_policy::{Outcome, Policy, Request};
/// let policy = Policy::new([]).unwrap();
/// let decision = policy.decide_at(Timestamp::ZERO, &Request::new("GET", "/"));
/// assert_eq!(decision.outcome(), Outcome::NoRule);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// Allowed: no rule applies to the request.
    NoRule,
    /// Allowed: the rule exempts the client.
    Exempt,
    /// Allowed by all limits of all rules that were asked.
    Allowed,
    /// Denied by a limit of the rule that decided.
    Denied {
        /// The index of the limit, or `None` if a penalty is in force, or the table of the penalty
        /// has no room for the key.
        limit: Option<usize>,
        /// Why the limit denied. [`Denied::Crowded`] if a table of the rule has no room for the
        /// key: see [`Rule::keys`].
        denied: Denied,
    },
    /// Denied: the rule's key has the address of the client, and the [`Request`] has none. The
    /// program is not set up for the rule: see [`OnMissing::NeedAddress`].
    NoAddress,
    /// Denied: the request lacks another part of the rule's key.
    Unidentified,
    /// Denied: the path is too long to be matched, or services read it in different ways.
    Path(PathError),
    /// Denied: the state of the rule's limits is in a [store](Rule::stored_in), which was not
    /// asked. Use [`Policy::decide_stored`].
    Stored,
}

/// What a limit has left for the key of a request.
///
/// ```
/// use portcullis_core::{Retry, Timestamp};
/// use portcullis_policy::{Policy, Request, Rule};
///
/// let policy = Policy::new([Rule::new("all").limit("10/s".parse()?)]).unwrap();
/// let now = Timestamp::from_secs(1);
/// let decision = policy.decide_at(now, &Request::new("GET", "/").cost(5));
/// let status = decision.status().unwrap();
/// assert_eq!((status.remaining, status.reset), (5, Retry::At(Timestamp::from_millis(1_500))));
/// # Ok::<(), portcullis_policy::PeriodError>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Status<'p> {
    /// The rule that has the limit.
    pub rule: &'p Rule,
    /// The limit.
    pub limit: &'p Limit,
    /// Its index in the rule.
    pub index: usize,
    /// The permits that are available.
    pub remaining: u64,
    /// When all its permits are available again, if no more are taken.
    pub reset: Retry,
}

/// Compares what is left of two limits, as shares of their capacities. Does not divide.
pub(crate) fn compare_shares(a: (u64, u64), b: (u64, u64)) -> Ordering {
    let share =
        |(left, _): (u64, u64), (_, capacity): (u64, u64)| u128::from(left) * u128::from(capacity);
    share(a, b).cmp(&share(b, a))
}
