//! What each key asks of each rule, and how much of it is denied.
//!
//! **State.** For each rule and key of the rule: the requests that its limits were asked about, and
//! those that were denied by a limit or a penalty; the [`Need`](crate::replay::needs::Need); both
//! counts over time. Requests of exempt clients, without a part of the key or without room for it
//! say nothing about the limits, and are not counted.
//!
//! Memory grows with the number of keys, up to [`MOST_KEYS`] for each rule. Requests of further
//! keys are not counted.

use core::fmt::Write;
use std::collections::HashMap;

use portcullis_core::Denied;
use portcullis_policy::{Kind, Outcome, Policy, Request};

use super::kinds::{ask_each, kinds_of};
use crate::replay::key::ABSENT;
use crate::replay::needs::Client;
use crate::replay::time::timestamp;
use crate::replay::timeline::Timeline;

/// The number of keys up to which they are counted.
pub(crate) const MOST_KEYS: usize = 1 << 20;

/// A policy, and what each key asked of its rules.
pub(crate) struct Clients {
    policy: Policy,
    kinds: Vec<Kind>,
    /// In the order of the rules.
    pub(crate) rules: Vec<OfRule>,
    /// The text of the last key.
    text: String,
}

/// What was asked of one rule.
#[derive(Default)]
pub(crate) struct OfRule {
    pub(crate) keys: HashMap<Box<str>, Client>,
    pub(crate) timeline: Timeline,
    /// The parts of the key, and whether any request had each.
    parts: Vec<(String, bool)>,
}

impl OfRule {
    /// Returns the keys that have the limits of the rule.
    pub(crate) fn clients(&self) -> Vec<(&str, &Client)> {
        let keys = self.keys.iter();
        let keys = keys.filter(|(_, of)| of.own_limits.is_none());
        keys.map(|(key, of)| (&**key, of)).collect()
    }

    /// Returns whether all requests share the limits: the key of the rule has no parts.
    pub(crate) fn is_shared(&self) -> bool {
        !self.keys.is_empty() && self.parts.is_empty()
    }

    /// Returns the number of requests of all keys.
    pub(crate) fn requests(&self) -> u64 {
        self.keys.values().map(|client| client.tally.sum()).sum()
    }

    /// Returns a part of the key that no request had.
    pub(crate) fn missing_part(&self) -> Option<&str> {
        let missing = self.parts.iter().find(|(_, is_present)| !is_present);
        missing.map(|(name, _)| &**name)
    }
}

impl Clients {
    /// Creates a policy of which nothing was asked.
    pub(crate) fn new(policy: Policy) -> Self {
        Self {
            kinds: kinds_of(&policy),
            rules: policy.rules().map(|_| OfRule::default()).collect(),
            policy,
            text: String::new(),
        }
    }

    /// Judges one line, at a time in milliseconds.
    pub(crate) fn judge(&mut self, now: u64, request: &Request<'_>, bytes: u64) {
        let Self {
            policy,
            kinds,
            rules,
            text,
        } = self;
        ask_each(kinds, request, bytes, |request| {
            let decision = policy.decide_watched_at(timestamp(now), request, |answer| {
                let is_allowed = match answer.outcome {
                    Outcome::Allowed => true,
                    Outcome::Denied {
                        denied: Denied::Crowded { .. },
                        ..
                    } => return,
                    Outcome::Denied { .. } => false,
                    _ => return,
                };
                let Some(of_rule) = rules.get_mut(answer.index) else {
                    return;
                };
                let values = policy.key_values(answer.rule, request);
                if of_rule.parts.is_empty() {
                    let names = values.iter().map(|part| part.name().to_string());
                    of_rule.parts = names.map(|name| (name, false)).collect();
                }
                for ((_, is_present), part) in of_rule.parts.iter_mut().zip(values.iter()) {
                    if !*is_present {
                        *is_present = part.to_string().as_bytes() != ABSENT;
                    }
                }
                let second = now / 1_000;
                of_rule.timeline.add(second, is_allowed);
                text.clear();
                let _ = write!(text, "{values}");
                if !of_rule.keys.contains_key(&**text) {
                    if of_rule.keys.len() >= MOST_KEYS {
                        return;
                    }
                    let own_limits = policy.own_limits(answer.rule, request);
                    let client = Client {
                        own_limits: own_limits.map(Into::into),
                        ..Client::default()
                    };
                    of_rule.keys.insert((**text).into(), client);
                }
                if let Some(client) = of_rule.keys.get_mut(&**text) {
                    client.count(second, request.cost.into(), is_allowed);
                }
            });
            decision.is_allowed()
        });
    }
}
