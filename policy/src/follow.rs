//! Which state of a policy its successor goes on with: see
//! [`LivePolicy`](crate::LivePolicy#what-a-change-keeps).

use std::collections::HashMap;

use portcullis_core::Timestamp;

use crate::overrides::Overrides;
use crate::path::PathRules;
use crate::policy::Policy;
use crate::policy::active::Active;

impl Policy {
    /// Goes on with the state of `before`, for the rules that keep their state. Returns their
    /// names. Until [`hand_over`](Self::hand_over), the state of limits that change is still in
    /// `before`.
    pub(crate) fn follow(&mut self, before: &Self, now: Timestamp) -> Vec<Box<str>> {
        #[cfg(feature = "queue")]
        self.follow_timers(before);
        let path_rules = self.path_rules;
        // The state of a key with a path is under the path as it was normalized.
        let has_same_paths = path_rules.has_keys_of(before.path_rules);
        #[cfg(feature = "queue")]
        let timers = self.timers.clone();
        let (by_name, mut kept) = (by_name(&before.rules), Vec::new());
        for active in &mut self.rules {
            if let Some(old) = by_name.get(active.rule.name())
                && (has_same_paths || !active.rule.key.has_path())
                && active.follow(old, path_rules, now)
            {
                #[cfg(feature = "queue")]
                active.follow_queues(old, &timers);
                kept.push(active.rule.name().into());
            }
        }
        kept
    }

    /// Hands the state of this policy over to `to`, which [follows](Self::follow) it. Decisions by
    /// this policy may be under way.
    pub(crate) fn hand_over(&self, to: &Self, now: Timestamp) {
        let by_name = by_name(&to.rules);
        for old in &self.rules {
            if let Some(new) = by_name.get(old.rule.name()) {
                old.store.hand_over(&new.store, now);
            }
        }
        // As late as possible: until the end of the change, decisions about a key that gets an
        // override count in the rule's tables.
        for old in &self.rules {
            if let Some(new) = by_name.get(old.rule.name())
                && let Some(overrides) = &new.overrides
            {
                Overrides::hand_over(old.overrides.as_deref(), &new.store, overrides, now);
            }
        }
    }
}

fn by_name(rules: &[Active]) -> HashMap<&str, &Active> {
    let names = rules.iter().map(|active| active.rule.name());
    names.zip(rules).collect()
}

impl Active {
    /// Goes on with the state of `old`, the rule of the same name before. Returns `false` if it
    /// starts without that state.
    fn follow(&mut self, old: &Self, path_rules: PathRules, now: Timestamp) -> bool {
        let (rule, before) = (&self.rule, &old.rule);
        let is_shared = rule.key.is_shared();
        if !rule.key.is_same(&before.key) || !is_shared && rule.keys != before.keys {
            return false;
        }
        if rule.store != before.store {
            return false;
        }
        // A store keeps the state of its limits itself.
        if rule.store.is_none() {
            self.follow_limits(old, path_rules, now);
        }
        if self.rule.thresholds == old.rule.thresholds {
            self.activity.clone_from(&old.activity);
        }
        true
    }

    /// Goes on with the state of the limits of `old`.
    fn follow_limits(&mut self, old: &Self, path_rules: PathRules, now: Timestamp) {
        let (rule, before) = (&self.rule, &old.rule);
        let is_shared = rule.key.is_shared();
        let keeps_penalty = rule.penalty == before.penalty;
        let penalty = self.store.penalty();
        let keys = (!is_shared).then_some(rule.keys);
        let limits = (&*before.limits, &*rule.limits);
        let is_held = rule.counts_refunds();
        let keeps = (keeps_penalty, is_held);
        self.store = old.store.followed_by(limits, penalty, keeps, keys);
        // Keys are found by hashes of the store's hasher.
        self.overrides = Overrides::new(
            &rule.overrides,
            &rule.key,
            &self.store,
            (penalty, is_held),
            path_rules,
        );
        Overrides::follow(
            &mut self.overrides,
            old.overrides.as_deref(),
            (&rule.limits, &self.store),
            keeps,
            now,
        );
        self.note_whether_plain();
    }
}
