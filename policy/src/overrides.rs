//! Other limits for given keys of a rule.
//!
//! ```text
//! key of the request --- hash ---> by_key: which override       --- found ---> its store
//!                          |                                    --- else ----> the rule's store
//!                          +-----> the address in the tables of the rule
//! ```
//!
//! An override changes the limits of one key, so a [change](crate::LivePolicy) that adds or removes
//! one keeps what the key has taken, as if the limits had changed in their place:
//!
//! ```text
//! added      the key's state in the rule's tables is copied, and goes on under the new limits
//! removed    the key keeps a store of its own, with the limits of the rule: it is *former*
//! changed    the store goes on; also from a former one
//! ```
//!
//! A former override ends at the first change that finds its key idle. From then on the key is in
//! the rule's tables again: what it has taken there, before it was overridden, is still there.
//!
//! A key is found by its hash of 64 bits. The hasher is that of the rule's tables and has a random
//! key, so no client can choose a key with the hash of another one.

use std::collections::{HashMap, HashSet};

use foldhash::fast::RandomState;
#[cfg(feature = "live")]
use portcullis_core::Timestamp;
use portcullis_core::keyed::{Address, FixedWindowRules, KeyHash};

use crate::key::Key;
use crate::key::KeyOf;
use crate::limit::Limit;
use crate::limit::{all_bytes, compile_all, shared, table_bytes};
use crate::path::PathRules;
#[cfg(feature = "queue")]
use crate::request::Kind;
use crate::rule::KeyOverride;
use crate::store::Store;
#[cfg(feature = "queue")]
use crate::timers::{Timers, queued};

/// The overrides of a rule.
#[derive(Default)]
pub(crate) struct Overrides {
    /// The index in `all`.
    by_key: HashMap<KeyHash, u32, RandomState>,
    all: Vec<Override>,
}

/// The limits of one key, and their state.
pub(crate) struct Override {
    pub(crate) limits: Box<[Limit]>,
    pub(crate) store: Store,
    /// Where the state of the key is in the store. `None` without limits.
    at: Option<Address>,
    /// The index of the override before whose state this one goes on with.
    #[cfg(feature = "live")]
    follows: Option<u32>,
    /// A store with the limits of the rule, for the state of a key that was not overridden.
    #[cfg(feature = "live")]
    from_rule: Option<Box<Store>>,
    /// Whether the override was removed: the limits are those of the rule.
    pub(crate) is_former: bool,
}

/// The memory of an override besides its tables, in bytes: about that of one with one limit.
const BYTES: usize = 900;

/// The memory of a table that several limits share, besides its lines, in bytes: mainly the rules
/// of eight limits.
const SHARED_BYTES: usize = 700;

/// A setting of an override that is not valid: the index of the override, that of its limit if it
/// is one, and what is wrong.
pub(crate) type Refused = (usize, Option<usize>, String);

impl Overrides {
    /// Checks the overrides of a rule with this key. Returns also the memory of their tables, in
    /// bytes.
    pub(crate) fn check(
        overrides: &[KeyOverride],
        key: &Key,
        (has_penalty, is_held): (bool, bool),
        path_rules: PathRules,
    ) -> (usize, Vec<Refused>) {
        let mut bytes = 0;
        let (hasher, mut refused) = (std::hash::RandomState::new(), Vec::new());
        let mut seen: HashSet<KeyHash, RandomState> = HashSet::default();
        for (index, this) in overrides.iter().enumerate() {
            let hash = |key: &KeyOf<'_>| KeyHash::new(&hasher, key);
            match key.with_values(&this.key, path_rules, hash) {
                Ok(hash) if !seen.insert(hash) => {
                    let problem = "another override is for the same key";
                    refused.push((index, None, problem.into()));
                }
                Ok(_) => {}
                Err(problem) => refused.push((index, None, problem)),
            }
            let limits = compile_all(&this.limits, |limit, problem| {
                refused.push((index, limit, problem));
            });
            bytes += BYTES;
            if has_penalty && !limits.is_empty() {
                bytes += table_bytes(None, 0);
            }
            bytes += all_bytes(&limits, None, is_held);
            if shared(&limits) > 0 {
                bytes += SHARED_BYTES;
            }
        }
        (bytes, refused)
    }

    /// Creates the state of all overrides of a rule with this key and this store, which were
    /// [checked](Self::check). `None` without overrides.
    pub(crate) fn new(
        overrides: &[KeyOverride],
        key: &Key,
        store: &Store,
        (penalty, is_held): (Option<FixedWindowRules>, bool),
        path_rules: PathRules,
    ) -> Option<Box<Self>> {
        if overrides.is_empty() {
            return None;
        }
        let (mut by_key, mut all) = (HashMap::default(), Vec::new());
        for (index, this) in overrides.iter().enumerate() {
            let hash = key.with_values(&this.key, path_rules, |key| store.hash(key));
            by_key.insert(hash.expect("the key was checked"), index as u32);
            let limits = compile_all(&this.limits, |_, problem| {
                debug_assert!(false, "the limits were checked: {problem}");
            });
            let penalty = penalty.filter(|_| !limits.is_empty());
            let store = Store::new((limits, &this.limits), penalty, None, is_held);
            all.push(Override {
                limits: this.limits.clone().into(),
                at: store.locate_shared(),
                store,
                #[cfg(feature = "live")]
                follows: None,
                #[cfg(feature = "live")]
                from_rule: None,
                is_former: false,
            });
        }
        Some(Box::new(Self { by_key, all }))
    }

    /// Goes on with the state of the keys: of the overrides `old`, and of the rule that has these
    /// limits and this store now. For `keeps`, see [`Store::followed_by`].
    #[cfg(feature = "live")]
    pub(crate) fn follow(
        this: &mut Option<Box<Self>>,
        old: Option<&Self>,
        (rule, store): (&[Limit], &Store),
        keeps: (bool, bool),
        now: Timestamp,
    ) {
        let penalty = store.penalty();
        for (hash, index) in this.as_deref().map(Self::keys).unwrap_or_default() {
            let Some(this) = this
                .as_mut()
                .and_then(|this| this.all.get_mut(index as usize))
            else {
                continue;
            };
            let penalty = this.store.penalty();
            this.follows = old.and_then(|old| old.by_key.get(&hash).copied());
            if let Some(old) = this.follows.and_then(|index| old?.get(index)) {
                let limits = (&*old.limits, &*this.limits);
                this.store = old.store.followed_by(limits, penalty, keeps, None);
            } else if this.at.is_some() {
                // The key was judged by the rule: a copy of its state in the rule's tables goes on
                // under the new limits.
                let from_rule = Box::new(store.alone());
                let limits = (rule, &*this.limits);
                this.store = from_rule.followed_by(limits, penalty, (false, keeps.1), None);
                this.from_rule = Some(from_rule);
            }
            this.at = this.store.locate_shared();
        }
        for (hash, index) in old.iter().flat_map(|old| old.keys()) {
            let is_known = |this: &Self| this.by_key.contains_key(&hash);
            let former = old.and_then(|old| old.get(index));
            let Some((former, at)) = former.and_then(|former| Some((former, former.at?))) else {
                continue;
            };
            if rule.is_empty()
                || this.as_deref().is_some_and(is_known)
                // Nothing would be lost, so the key needs no store of its own.
                || former.store.is_idle(at, now)
            {
                continue;
            }
            let limits = (&*former.limits, rule);
            let store = former.store.followed_by(limits, penalty, keeps, None);
            let this = this.get_or_insert_default();
            this.by_key.insert(hash, this.all.len() as u32);
            this.all.push(Override {
                limits: rule.into(),
                at: store.locate_shared(),
                store,
                follows: Some(index),
                from_rule: None,
                is_former: true,
            });
        }
    }

    /// The hashes of the keys, and the indices of their overrides.
    #[cfg(feature = "live")]
    fn keys(&self) -> Vec<(KeyHash, u32)> {
        let keys = self.by_key.iter();
        keys.map(|(&hash, &index)| (hash, index)).collect()
    }

    /// Hands the state of the keys over to `to`, which [follow](Self::follow) the overrides `this`.
    /// `store` has the state of the rule now.
    #[cfg(feature = "live")]
    pub(crate) fn hand_over(this: Option<&Self>, store: &Store, to: &Self, now: Timestamp) {
        for (hash, index) in to.keys() {
            let Some(new) = to.get(index) else {
                continue;
            };
            if let Some(old) = new.follows.and_then(|index| this?.get(index)) {
                old.store.hand_over(&new.store, now);
            } else if let (Some(from_rule), Some(from)) =
                (&new.from_rule, store.locate_hashed(hash))
            {
                store.copy_key(from, from_rule, now);
                from_rule.hand_over(&new.store, now);
            }
        }
    }

    /// The state of all overrides.
    #[cfg(feature = "queue")]
    pub(crate) fn stores(&self) -> impl Iterator<Item = &Store> {
        self.all.iter().map(|this| &this.store)
    }

    /// The state and the limits of all overrides.
    #[cfg(feature = "queue")]
    pub(crate) fn stores_mut(&mut self) -> impl Iterator<Item = (&mut Store, &[Limit])> {
        let all = self.all.iter_mut();
        all.map(|Override { store, limits, .. }| (store, &**limits))
    }

    /// Goes on with the queues of the overrides `old` for the same keys. The kinds are those of the
    /// rule before and of this one, `None` for a shadow rule.
    #[cfg(feature = "queue")]
    pub(crate) fn follow_queues(
        &mut self,
        old: Option<&Self>,
        (was, is): (Option<Kind>, Option<Kind>),
        timers: &Timers,
    ) {
        for this in &mut self.all {
            let now = queued(is, &this.limits);
            let before = this.follows.and_then(|index| old?.get(index));
            match before {
                Some(old) => {
                    let limits = (&*queued(was, &old.limits), &*now);
                    this.store
                        .follow_queue(&old.store, limits, || timers.create());
                }
                None => this.store.create_queue(&now, || timers.create()),
            }
        }
    }

    /// Hands the waiting requests over to `to`, which follows these overrides.
    #[cfg(feature = "queue")]
    pub(crate) fn hand_over_queues(&self, to: Option<&Self>) {
        for (index, old) in (0..).zip(&self.all) {
            let mut all = to.into_iter().flat_map(|to| &to.all);
            let next = all.find(|new| new.follows == Some(index));
            old.store.hand_over_queue(next.map(|next| &next.store));
        }
    }

    /// The override with this index.
    pub(crate) fn get(&self, index: u32) -> Option<&Override> {
        self.all.get(index as usize)
    }

    /// The index of the override for a key.
    pub(crate) fn find(&self, store: &Store, key: &KeyOf<'_>) -> Option<u32> {
        self.by_key.get(&store.hash(key)).copied()
    }

    /// Where the state of a key is: in an override, or in the rule's `store`. `None` if the key has
    /// no limits.
    pub(crate) fn locate(&self, store: &Store, key: &KeyOf<'_>) -> Option<Place> {
        let hash = store.hash(key);
        match self.by_key.get(&hash) {
            Some(&index) => Some(Place {
                instead: Some(index),
                at: self.get(index)?.at?,
            }),
            None => Some(Place {
                instead: None,
                at: store.locate_hashed(hash)?,
            }),
        }
    }
}

/// Where the state of a key is.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    /// The index of the override, or `None` for the tables of the rule.
    pub(crate) instead: Option<u32>,
    pub(crate) at: Address,
}
