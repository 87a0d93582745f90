//! A rule in force, and what it says to one request.
//!
//! ```text
//! request ---> exempt, no key, no limits: why no limit is asked      (Unasked)
//!         ---> the place of its key ---> Store::decide ---> Granted or Denied (Verdict)
//!         ---> its limits are in a counter store, which is asked later: Stored
//! ```

use std::sync::Arc;

use ipnet::IpNet;
use portcullis_core::Timestamp;

use super::outcome::Outcome;
use crate::key::KeyOf;
use crate::limit::Limit;
use crate::overrides::{Override, Overrides, Place};
use crate::path::PathRules;
use crate::request::Request;
use crate::rule::{OnMissing, Rule};
use crate::store::{How, Store, StoreDenied};
use crate::stored::StoredLimits;
use crate::thresholds::Activity;

/// A rule and its state.
pub(crate) struct Active {
    pub(crate) rule: Rule,
    pub(super) exempt_networks: Vec<IpNet>,
    pub(crate) store: Store,
    pub(crate) overrides: Option<Box<Overrides>>,
    /// Policies whose thresholds are the same have it in common.
    pub(crate) activity: Option<Arc<Activity>>,
    /// The limits as a counter store has them, if their state is in one.
    pub(crate) stored: Option<Box<StoredLimits>>,
    /// Whether the rule has neither overrides nor a queue nor a store.
    pub(crate) is_plain: bool,
}

/// What a rule says to a request.
pub(crate) enum Verdict {
    Skipped,
    Exempt,
    NoAddress,
    Unidentified,
    Stored,
    /// Without limits there is no state.
    Granted(Option<Place>),
    Denied(Place, StoreDenied),
}

impl Verdict {
    /// `None` if the rule does not apply.
    #[inline]
    pub(super) fn outcome(&self) -> Option<Outcome> {
        Some(match *self {
            Self::Skipped => return None,
            Self::Exempt => Outcome::Exempt,
            Self::NoAddress => Outcome::NoAddress,
            Self::Unidentified => Outcome::Unidentified,
            Self::Stored => Outcome::Stored,
            Self::Granted(_) => Outcome::Allowed,
            Self::Denied(_, StoreDenied { limit, denied }) => Outcome::Denied { limit, denied },
        })
    }

    /// Where the state of the request's key is, if the limits were asked.
    #[inline]
    pub(super) fn place(&self) -> Option<Place> {
        match *self {
            Self::Granted(place) => place,
            Self::Denied(place, _) => Some(place),
            Self::Skipped | Self::Exempt | Self::NoAddress | Self::Unidentified | Self::Stored => {
                None
            }
        }
    }
}

/// Why a rule asks no limit.
pub(crate) enum Unasked {
    Skipped,
    Exempt,
    NoAddress,
    Unidentified,
    NoLimits,
}

impl From<Unasked> for Verdict {
    #[inline(always)]
    fn from(unasked: Unasked) -> Self {
        match unasked {
            Unasked::Skipped => Self::Skipped,
            Unasked::Exempt => Self::Exempt,
            Unasked::NoAddress => Self::NoAddress,
            Unasked::Unidentified => Self::Unidentified,
            Unasked::NoLimits => Self::Granted(None),
        }
    }
}

impl Rule {
    /// Why the rule asks no limit of a request with this key: it lacks a part.
    #[inline(always)]
    fn missing(&self, key: &KeyOf<'_>) -> Option<Unasked> {
        Some(match self.on_missing {
            OnMissing::Share => return None,
            OnMissing::NeedAddress if !key.lacks_address() => return None,
            _ if key.is_complete() => return None,
            OnMissing::Skip => Unasked::Skipped,
            _ if key.lacks_address() => Unasked::NoAddress,
            OnMissing::NeedAddress | OnMissing::Deny => Unasked::Unidentified,
        })
    }
}

impl Active {
    /// Judges a request by the limits of its key, which take as `how` says.
    #[inline]
    pub(super) fn judge(
        &self,
        request: &Request<'_>,
        now: Timestamp,
        path_rules: PathRules,
        how: &mut How<'_>,
    ) -> Verdict {
        // A rule without overrides, queue and store pays nothing for them.
        if !self.is_plain || !matches!(how, How::Take) {
            return self.judge_by(request, now, path_rules, how);
        }
        match self.find(request, path_rules, |key| self.store.locate(key)) {
            Ok(at) => {
                let place = Place { instead: None, at };
                match self.store.take(at, now, request.cost) {
                    Ok(()) => Verdict::Granted(Some(place)),
                    Err(denied) => Verdict::Denied(place, denied),
                }
            }
            Err(unasked) => unasked.into(),
        }
    }

    /// Notes whether the rule has overrides, a store or a queue. Called after each of these has
    /// changed.
    pub(crate) fn note_whether_plain(&mut self) {
        #[cfg(feature = "queue")]
        let has_queue = self.store.queue().is_some();
        #[cfg(not(feature = "queue"))]
        let has_queue = false;
        self.is_plain = self.overrides.is_none() && self.stored.is_none() && !has_queue;
    }

    /// Judges a request by any rule: also one with overrides, a queue or a store.
    #[inline(never)]
    fn judge_by(
        &self,
        request: &Request<'_>,
        now: Timestamp,
        path_rules: PathRules,
        how: &mut How<'_>,
    ) -> Verdict {
        if let Some(stored) = &self.stored {
            return match stored.find(self, request, path_rules) {
                Ok(_) => Verdict::Stored,
                Err(unasked) => unasked.into(),
            };
        }
        match self.locate(request, path_rules) {
            Ok(place) => {
                let store = self.store_at(place);
                match store.decide(place.at, now, request.cost, how) {
                    Ok(()) => Verdict::Granted(Some(place)),
                    Err(denied) => Verdict::Denied(place, denied),
                }
            }
            Err(unasked) => unasked.into(),
        }
    }

    /// Whether the rule would deny a request. Takes nothing, and asks no counter store.
    pub(super) fn denies(
        &self,
        request: &Request<'_>,
        now: Timestamp,
        path_rules: PathRules,
    ) -> bool {
        match self.locate_any(request, path_rules) {
            Ok(Some(place)) => {
                let looked = self.store_at(place).look(place.at, now, request.cost);
                looked.is_err()
            }
            Ok(None) => false,
            Err(unasked) => matches!(unasked, Unasked::Unidentified | Unasked::NoAddress),
        }
    }

    /// Where the state of the request's key is, or why no limit is asked. `None` if it is in a
    /// counter store.
    pub(super) fn locate_any(
        &self,
        request: &Request<'_>,
        path_rules: PathRules,
    ) -> Result<Option<Place>, Unasked> {
        match &self.stored {
            Some(stored) => stored.find(self, request, path_rules).map(|_| None),
            None => self.locate(request, path_rules).map(Some),
        }
    }

    /// Where the state of the request's key is in this process, or why no limit is asked.
    pub(super) fn locate(
        &self,
        request: &Request<'_>,
        path_rules: PathRules,
    ) -> Result<Place, Unasked> {
        self.find(request, path_rules, |key| match &self.overrides {
            None => self.store.locate(key).map(|at| Place { instead: None, at }),
            Some(overrides) => overrides.locate(&self.store, key),
        })
    }

    /// Returns what `of` finds for the request's key, or why no limit is asked.
    #[inline(always)]
    pub(crate) fn find<T>(
        &self,
        request: &Request<'_>,
        path_rules: PathRules,
        of: impl FnOnce(&KeyOf<'_>) -> Option<T>,
    ) -> Result<T, Unasked> {
        let Self { rule, .. } = self;
        if self.exempts(request) {
            return Err(self.unless_it_counts(Unasked::Exempt));
        }
        let key = KeyOf::new(&rule.key, request, path_rules);
        let Some(found) = of(&key) else {
            return Err(self.without_limit(&key));
        };
        match rule.missing(&key) {
            None => Ok(found),
            Some(unasked) => Err(unasked),
        }
    }

    /// Why no limit is asked where there is none. If limits were left out, a request that lacks a
    /// part of the key is judged as it was with them.
    #[cold]
    fn without_limit(&self, key: &KeyOf<'_>) -> Unasked {
        if self.rule.has_left_out("limits") {
            // No table has hashed the key, and only then does it say what the request lacks.
            let _ = self.store.hash(key);
            if let Some(missing) = self.rule.missing(key) {
                return missing;
            }
        }
        self.unless_it_counts(Unasked::NoLimits)
    }

    /// `why`, unless the rule has thresholds and no limits: then it does not decide.
    #[inline]
    fn unless_it_counts(&self, why: Unasked) -> Unasked {
        if self.only_counts() {
            Unasked::Skipped
        } else {
            why
        }
    }

    /// Whether the rule has thresholds and no limits.
    #[inline]
    pub(super) fn only_counts(&self) -> bool {
        self.activity.is_some() && self.rule.lacks_limits()
    }

    /// Whether the rule exempts the client.
    #[inline]
    pub(super) fn exempts(&self, request: &Request<'_>) -> bool {
        let Self {
            rule,
            exempt_networks,
            ..
        } = self;
        let has_exempt = !rule.exempt.is_empty() || !exempt_networks.is_empty();
        has_exempt && rule.exempts(request, exempt_networks)
    }

    /// The state of the key at a place.
    #[inline(always)]
    pub(crate) fn store_at(&self, place: Place) -> &Store {
        match place.instead {
            None => &self.store,
            Some(index) => self.instead(index).map_or(&self.store, |this| &this.store),
        }
    }

    /// The limits of the key at a place.
    pub(crate) fn limits_at(&self, place: Place) -> &[Limit] {
        self.limits_of(place.instead)
    }

    /// The limits of an override, or of the rule.
    pub(crate) fn limits_of(&self, instead: Option<u32>) -> &[Limit] {
        let instead = instead.and_then(|index| self.instead(index));
        instead.map_or(&self.rule.limits, |this| &this.limits)
    }

    /// Whether the limits of the key at a place are those of an override in force.
    #[inline]
    pub(super) fn is_overridden(&self, place: Option<Place>) -> bool {
        let instead = place.and_then(|place| place.instead);
        let instead = instead.and_then(|index| self.instead(index));
        instead.is_some_and(|instead| !instead.is_former)
    }

    /// The override with this index. A function of its own, so that a rule without overrides pays
    /// nothing for it.
    #[inline(never)]
    pub(super) fn instead(&self, index: u32) -> Option<&Override> {
        self.overrides.as_deref()?.get(index)
    }
}
