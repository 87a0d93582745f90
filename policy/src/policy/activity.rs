//! Activity that is reported to a policy, and the decisions that it puts in force: see
//! [`thresholds`](crate::thresholds).

use portcullis_core::Timestamp;

use super::Policy;
use crate::path::PathError;
use crate::request::Request;
use crate::rule::Rule;
use crate::thresholds::Threshold;

impl Policy {
    /// Reports that `n` of what the thresholds count happened at `now`: for example a failed login,
    /// or an error of the service. Takes no permits and decides nothing.
    ///
    /// The report counts for every rule with thresholds that the request matches, whatever its
    /// priority, unless the rule exempts the client, or denies or skips requests that lack a part
    /// of the key ([`OnMissing`](crate::OnMissing)). With `n = 0`, nothing is counted.
    ///
    /// Returns whether all these rules counted the report, and hold each decision that it puts in
    /// force. A rule does not if one of its tables has no room for the key (see [`Rule::keys`]), or
    /// if another thread creates the key's state at this moment, or if the request has no address
    /// and the rule [needs](crate::OnMissing::NeedAddress) it. No rule counts a request whose path
    /// is too long. If services read the path in different ways, the rules of all of them count it.
    ///
    /// # Cost
    ///
    /// A match, one hash of the key for each rule with thresholds, and for each window a take from
    /// a sliding window. A threshold that is reached reads or writes one more word. Lock-free. Does
    /// not allocate, unless services read the path in different ways.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{Policy, Request, Rule, Threshold};
    /// let deny = Threshold::new(3, Duration::from_secs(10), "deny");
    /// let policy = Policy::new([Rule::new("errors").threshold(deny)]).unwrap();
    /// let (now, request) = (Timestamp::from_secs(1), Request::new("GET", "/"));
    /// assert!(policy.report_at(now, &request, 3));
    /// assert_eq!(policy.is_in_force_at(now, &request, "deny"), Ok(true));
    /// ```
    pub fn report_at(&self, now: Timestamp, request: &Request<'_>, n: u32) -> bool {
        if n == 0 {
            return true;
        }
        let mut is_counted = true;
        let visited = self.visit_activity(request, |_, activity, at| {
            is_counted &= at.is_some_and(|at| activity.report(at, now, n));
        });
        visited.is_ok() && is_counted
    }

    /// Calls `visit` with each decision that is in force for the request at `now`: of the rules
    /// that a report of the request counts for, in the order in which rules are asked, and of each
    /// rule in the order of its thresholds.
    ///
    /// # Errors
    ///
    /// [`PathError`] if the path cannot be matched: it is too long, or unclear.
    ///
    /// # Cost
    ///
    /// A match, one hash of the key for each rule with thresholds, and for each threshold a look at
    /// a sliding window and at one word. Writes nothing. Does not allocate, unless
    /// services read the path in different ways.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{Policy, Request, Rule, Threshold};
    /// let window = Duration::from_secs(10);
    /// let rule = Rule::new("errors")
    ///     .threshold(Threshold::new(1, window, "slow"))
    ///     .threshold(Threshold::new(5, window, "captcha"))
    ///     .threshold(Threshold::new(9, window, "deny"));
    /// let policy = Policy::new([rule]).unwrap();
    /// let (now, request) = (Timestamp::from_secs(1), Request::new("GET", "/"));
    /// policy.report_at(now, &request, 6);
    /// let mut decisions = Vec::new();
    /// policy.in_force_at(now, &request, |at| decisions.push(at.threshold.decision()))?;
    /// assert_eq!(decisions, ["slow", "captcha"]);
    /// # Ok::<(), portcullis_policy::PathError>(())
    /// ```
    pub fn in_force_at<'p>(
        &'p self,
        now: Timestamp,
        request: &Request<'_>,
        mut visit: impl FnMut(InForce<'p>),
    ) -> Result<(), PathError> {
        self.visit_activity(request, |rule, activity, at| {
            let Some(at) = at else {
                return;
            };
            for (index, threshold) in rule.thresholds().iter().enumerate() {
                let (sum, is_reached, is_held) = activity.level(at, now, index);
                if is_reached || is_held {
                    visit(InForce {
                        rule,
                        threshold,
                        activity: sum,
                        is_reached,
                    });
                }
            }
        })
    }

    /// Returns whether this decision is in force for the request at `now`, by any rule that is not
    /// a shadow.
    ///
    /// # Errors
    ///
    /// [`PathError`] if the path cannot be matched: it is too long, or unclear.
    ///
    /// # Cost
    ///
    /// That of [`in_force_at`](Self::in_force_at).
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{Policy, Request, Rule, Threshold};
    /// let deny = Threshold::new(1, Duration::from_secs(10), "deny");
    /// let policy = Policy::new([Rule::new("errors").threshold(deny)]).unwrap();
    /// let request = Request::new("GET", "/");
    /// assert_eq!(policy.is_in_force_at(Timestamp::from_secs(1), &request, "deny"), Ok(false));
    /// ```
    pub fn is_in_force_at(
        &self,
        now: Timestamp,
        request: &Request<'_>,
        decision: &str,
    ) -> Result<bool, PathError> {
        let mut is_in_force = false;
        self.in_force_at(now, request, |at| {
            is_in_force |= at.threshold.decision() == decision && !at.rule.is_shadow();
        })?;
        Ok(is_in_force)
    }
}

/// A decision that is in force: what [`Policy::in_force_at`] reports.
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::Timestamp;
/// use portcullis_policy::{Policy, Request, Rule, Threshold};
///
/// let slow = Threshold::new(2, Duration::from_secs(10), "slow");
/// let policy = Policy::new([Rule::new("all").threshold(slow)]).unwrap();
/// let (now, request) = (Timestamp::from_secs(1), Request::new("GET", "/"));
/// policy.report_at(now, &request, 5);
/// policy.in_force_at(now, &request, |decision| {
///     assert_eq!((decision.rule.name(), decision.threshold.decision()), ("all", "slow"));
///     assert_eq!((decision.activity, decision.is_reached), (5, true));
/// })?;
/// # Ok::<(), portcullis_policy::PathError>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct InForce<'p> {
    /// The rule that has the threshold. Its decision may be one to try out: see
    /// [`Rule::is_shadow`].
    pub rule: &'p Rule,
    /// The threshold.
    pub threshold: &'p Threshold,
    /// The sum in the window.
    pub activity: u64,
    /// Whether the sum reaches the threshold. If not, the decision is in force by its hold.
    pub is_reached: bool,
}
