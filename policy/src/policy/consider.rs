//! What each rule would say to a request, without taking.

use portcullis_core::Timestamp;
use portcullis_core::limiter::Detail;

use super::Policy;
use super::active::{Active, Unasked};
use crate::conditions::Mismatch;
use crate::limit::Limit;
use crate::path::PathError;
use crate::request::Request;
use crate::rule::Rule;

impl Policy {
    /// Returns for each rule whether it matches a request at `now`, and what its limits would
    /// answer, in the order in which they are asked, and takes nothing.
    ///
    /// # Errors
    ///
    /// [`PathError`] if the path cannot be matched: it is too long, or unclear.
    ///
    /// # Cost
    ///
    /// Judges the conditions of all rules one by one. Allocates.
    ///
    /// ```
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{Conditions, Considered, Mismatch, Policy, Request, Rule};
    /// let policy = Policy::new([
    ///     Rule::new("uploads").when(Conditions::new().methods(["PUT"])),
    ///     Rule::new("all").limit("10/s".parse()?),
    /// ])
    /// .unwrap();
    /// let explained = policy.explain_at(Timestamp::ZERO, &Request::new("GET", "/")).unwrap();
    /// assert!(matches!(explained[0].considered, Considered::Mismatch(Mismatch::Method)));
    /// let Considered::Limits { details, .. } = &explained[1].considered else { panic!() };
    /// assert_eq!((details[0].available, explained[1].decides), (10, true));
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    pub fn explain_at(
        &self,
        now: Timestamp,
        request: &Request<'_>,
    ) -> Result<Vec<Explained<'_>>, PathError> {
        let reading = self.reading(request)?;
        let path = reading.with(request.path, <[u8]>::to_vec)?;
        let path: Vec<_> = reading.components(&path).collect();
        let mut all = Vec::with_capacity(self.rules.len());
        let (mut condition, mut is_decided) = (0, false);
        for active in &self.rules {
            let considered = if active.rule.is_enabled {
                let mismatch = self.matcher.mismatch_on(condition, request, &path);
                condition += 1;
                match mismatch {
                    Some(mismatch) => Considered::Mismatch(mismatch),
                    None => self.consider(active, now, request),
                }
            } else {
                Considered::Disabled
            };
            let applies = !matches!(
                considered,
                Considered::Disabled
                    | Considered::Mismatch(_)
                    | Considered::Skipped
                    | Considered::Counts
            );
            let decides = applies && !active.rule.is_shadow && !is_decided;
            is_decided |= decides && !active.rule.is_continuing;
            all.push(Explained {
                rule: &active.rule,
                considered,
                decides,
            });
        }
        Ok(all)
    }

    fn consider<'p>(
        &'p self,
        active: &'p Active,
        now: Timestamp,
        request: &Request<'_>,
    ) -> Considered<'p> {
        let located = match &active.stored {
            Some(stored) => match stored.find(active, request, self.path_rules) {
                Ok((instead, _)) => {
                    return Considered::Stored {
                        store: active.rule.store().unwrap_or_default(),
                        limits: active.limits_of(instead),
                    };
                }
                Err(unasked) => Err(unasked),
            },
            None => active.locate(request, self.path_rules),
        };
        match located {
            Ok(place) => {
                let (store, limits) = (active.store_at(place), active.limits_at(place));
                Considered::Limits {
                    is_penalized: store.is_penalized(place.at, now),
                    limits,
                    #[cfg(feature = "queue")]
                    queued: store.queued(place.at),
                    #[cfg(not(feature = "queue"))]
                    queued: 0,
                    details: (0..limits.len())
                        .map(|limit| store.detail(place.at, limit, now, request.cost))
                        .collect(),
                }
            }
            Err(Unasked::Exempt) => Considered::Exempt,
            Err(Unasked::NoAddress) => Considered::NoAddress,
            Err(Unasked::Unidentified) => Considered::Unidentified,
            Err(Unasked::Skipped) if active.only_counts() => Considered::Counts,
            Err(Unasked::Skipped) => Considered::Skipped,
            Err(Unasked::NoLimits) => Considered::Limits {
                is_penalized: false,
                limits: &[],
                details: Vec::new(),
                queued: 0,
            },
        }
    }
}

/// Whether one rule matches a request, and what its limits would answer: the result of
/// [`Policy::explain_at`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Explained<'p> {
    /// The rule.
    pub rule: &'p Rule,
    /// Whether it applies, and what it would answer.
    pub considered: Considered<'p>,
    /// Whether this rule decides: it is no shadow, it applies, and so does none before it that is
    /// not [continuing](Rule::continuing).
    pub decides: bool,
}

/// Whether a rule applies to a request, and what it would answer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Considered<'p> {
    /// The rule is disabled.
    Disabled,
    /// The request does not meet this condition.
    Mismatch(Mismatch<'p>),
    /// The request lacks a part of the key, and the rule then does not apply.
    Skipped,
    /// The rule has thresholds and no limits. It counts activity, and decides no requests.
    Counts,
    /// The request lacks the address, which is a part of the key, and would be denied.
    NoAddress,
    /// The request lacks another part of the key, and would be denied.
    Unidentified,
    /// The rule exempts the client.
    Exempt,
    /// The rule applies, and a counter store would decide.
    Stored {
        /// The name of the store.
        store: &'p str,
        /// The limits of this key: those of the rule, or of one of its overrides.
        limits: &'p [Limit],
    },
    /// The rule applies.
    Limits {
        /// Whether a penalty denies all requests of this key, or its table has no room for it.
        is_penalized: bool,
        /// The limits of this key: those of the rule, or of one of its overrides.
        limits: &'p [Limit],
        /// The state of each limit, and what it would answer.
        details: Vec<Detail>,
        /// For how many permits requests of this key wait: see [`Limit::queue`].
        queued: u64,
    },
}
