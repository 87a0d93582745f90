//! A policy that is replaced while it decides.
//!
//! ```text
//! readers ---> Version { policy, generation, tag }     one pointer, swapped at once
//!                ^
//! replace_at:  1. what the new policy has in common with the old one keeps its state
//!              2. keys move to the new limits, one after another; the old policy still decides
//!              3. the pointer is swapped: from now on the new policy decides
//!              4. tasks and threads that wait for a change are woken
//! ```
//!
//! A reader uses one version for one decision, so no decision sees a part of a rule set. A decision
//! that began before the swap ends by the old rules, and counts in the state of the new ones: see
//! `store/moves.rs`.

use core::fmt;
use core::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::{ArcSwap, Cache, Guard};
use portcullis_core::Timestamp;

use crate::policy::Policy;
use crate::source::{RefreshError, RuleSource, Sourced};
use crate::stored::Stores;

/// A policy that can be replaced while other threads decide by it.
///
/// A clone is a handle to the same policy.
///
/// ```
/// use portcullis_core::Timestamp;
/// use portcullis_policy::{LivePolicy, Policy, Request, Rule};
///
/// let api = |limit: &str| Policy::new([Rule::new("api").limit(limit.parse().unwrap())]);
/// let live = LivePolicy::new(api("3/m").unwrap());
/// let (now, request) = (Timestamp::from_secs(1), Request::new("GET", "/"));
/// assert!(live.load().decide_at(now, &request.cost(3)).is_allowed());
///
/// let change = live.replace_at(now, api("5/m").unwrap());
/// assert!(change.kept().eq(["api"]));
/// // 3 of the 5 are taken.
/// assert!(live.load().decide_at(now, &request.cost(2)).is_allowed());
/// assert!(!live.load().decide_at(now, &request).is_allowed());
/// ```
///
/// # What a change keeps
///
/// A rule keeps its state if the policy before has a rule with the same name, the same
/// [key](crate::Rule::key), the same number of [keys](crate::Rule::keys), and, if the path is a
/// part of the key, the same paths in it. All its other settings may change, its conditions
/// included. Some of its limits keep what was taken from a limit of the rule before:
///
/// - a limit that does not change;
/// - a limit with `at_once`, with any other number. Permits in use stay in use. When their
///   decisions are dropped, they return to the limit of the new policy;
/// - a token bucket, with any other rate or burst. Permits that are taken and have not returned
///   stay taken. If they are more than a lower burst, the bucket owes the rest. They return at the
///   new rate;
/// - a fixed window, or a window from the first request, with any other count. With another period,
///   a new window starts, with the count of the present one;
/// - a sliding window with any other count, period or segments. With another period or other
///   segments, or with a count beyond 16,777,216 and the largest one so far, what is taken counts
///   as taken at the change;
/// - a window from the first request with a [wait](crate::Limit::wait), with any other count,
///   period or wait. If more is taken than the new count, requests are denied until the window
///   ends, whatever limit follows. With another period or wait, a new window starts, with the count
///   of the present one. A wait that is in force keeps its end. If that is later than the new
///   period and the new wait allow, the wait ends up to an hour after the longer of them.
///
/// So a raised limit counts at once: of a burst of 5 that becomes 8, 3 more permits are available.
/// What is taken beyond a lower limit is not granted again when the limit is raised: after 40 of
/// 40, a limit of 5 and another one of 40 grant nothing. A limit with another algorithm starts
/// without any permits taken. A penalty of another length starts without any key in a penalty. To
/// start a rule without its state, give it another name.
///
/// An [override](crate::Rule::override_key) is a limit of one key. If it is added, changed or
/// removed, the key keeps what it has taken, as if its limits had changed in place: also where the
/// rule had other limits for it before. Permits that are in use at once when an override is added
/// stay with the rule, and its penalty does too. The state of a key whose override was removed
/// takes the memory of an override, until a change finds that all its permits have returned.
/// From then on the rule decides the key again: of what the key took before it was overridden, the
/// rule counts what has not returned by its own limits.
///
/// A [hold](Policy::hold_at) that began before a change is settled after it: an excess is charged
/// to the new limits. It returns nothing to limits that have changed since. It also returns nothing
/// to token buckets and windows without a wait if another one of them in the same rule has changed,
/// or was added or removed, because they share a table. An excess uses the
/// [debt](crate::Limit::debt) of a token bucket only, not what it owes since its burst was lowered.
///
/// A rule whose [thresholds](crate::Rule::threshold) do not change keeps its activity, and the
/// holds of its decisions. If any of its thresholds changes, all of them start without activity.
///
/// Requests that wait for a rule keep waiting, for the new limits, if all of this holds: the rule
/// keeps its state, its queue keeps its order, and the rule keeps its limits with `at_once`, whose
/// numbers may change. If the queue gets smaller, the requests in it stay. In other cases, the
/// limits that they wait for decide them at once, and most of them are denied.
///
/// A rule with several limits of one algorithm pairs them with those before: equal ones first, then
/// those with the same name, then those with the same period.
///
/// # Guarantees
///
/// - **One rule set.** Each decision is by one policy, the old or the new one.
/// - **Bound.** While a change is under way and after it, each limit that keeps its state grants no
///   key more than the larger of the old and the new limit allows. A limit that starts without its
///   state grants what it allows, whatever the limit before it has granted. For the time of a
///   change, a key may be judged by the new number of one limit of a rule and by the old number of
///   another one.
/// - **Decisions by the policy before** that are made after a key has moved count in the new
///   policy, also in a token bucket or a window that the change added to others. If such a limit
///   denies, the answer is [`Denied::Crowded`](portcullis_core::Denied::Crowded). A token bucket or
///   a window that the change removed denies no more, if another one of its rule keeps its state.
/// - **No count is lost**, with two exceptions. If a limit denies, the decision gives back the
///   permits that it had taken from other limits of the rule. If their key moves at that moment,
///   these permits may return by time instead. And a decision by the policy before about a key that
///   gets its first override counts in the rule's tables if it is made at the end of the change or
///   later: at most one for each thread that is in a decision at that moment.
/// - **No needless wait.** Decisions do not wait for a change. A change waits for no decision, only
///   for a claim of a slot, a few instructions. A key that moves while it is decided may be denied
///   with [`Denied::Crowded`](portcullis_core::Denied::Crowded).
///
/// # Cost
///
/// A [`reader`](Self::reader) costs one load and one comparison, about a nanosecond.
/// [`load`](Self::load) costs two exchanges in a cache line of the thread, 15 to 40 ns. Neither
/// takes a lock. The first `load` of a thread allocates.
#[derive(Clone)]
pub struct LivePolicy {
    shared: Arc<Shared>,
}

struct Shared {
    version: ArcSwap<Version>,
    /// One change at a time.
    changing: Mutex<()>,
    #[cfg(feature = "wait")]
    changed: event_listener::Event,
}

struct Version {
    policy: Policy,
    generation: u64,
    tag: Option<Box<str>>,
}

impl LivePolicy {
    /// Puts a policy in force, as generation 0.
    ///
    /// ```
    /// # use portcullis_policy::{LivePolicy, Policy, Rule};
    /// let live = LivePolicy::new(Policy::new([Rule::new("all")]).unwrap());
    /// assert_eq!(live.generation(), 0);
    /// ```
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self::first(policy, None)
    }

    /// Puts what a source has in force, as generation 0.
    ///
    /// # Errors
    ///
    /// Those of the source. [`RefreshError::Nothing`] if the source has nothing, and
    /// [`RefreshError::Stores`] if a rule has a [store](crate::Rule::stored_in) that the policy was
    /// not given: a file gets its stores by `FileSource::with_stores`.
    ///
    /// ```
    /// # use portcullis_policy::{LivePolicy, Policy, Rule, Sourced};
    /// let mut source = |_: Option<&str>| -> Result<_, std::io::Error> {
    ///     let policy = Policy::new([Rule::new("all")]).unwrap();
    ///     Ok(Some(Sourced::new(policy).tagged("v1")))
    /// };
    /// let live = LivePolicy::from_source(&mut source).unwrap();
    /// assert_eq!(live.load().tag(), Some("v1"));
    /// ```
    pub fn from_source<S: RuleSource>(source: &mut S) -> Result<Self, RefreshError<S::Error>> {
        let sourced = source.load(None).map_err(RefreshError::Source)?;
        let Sourced { policy, tag } = sourced.ok_or(RefreshError::Nothing)?;
        has_stores(&policy, policy.stores())?;
        Ok(Self::first(policy, tag))
    }

    fn first(policy: Policy, tag: Option<Box<str>>) -> Self {
        Self {
            shared: Arc::new(Shared {
                version: ArcSwap::from_pointee(Version {
                    policy,
                    generation: 0,
                    tag,
                }),
                changing: Mutex::new(()),
                #[cfg(feature = "wait")]
                changed: event_listener::Event::new(),
            }),
        }
    }

    /// Returns the policy in force. It stays valid, but is in force only until the next change: use
    /// it for one decision, and keep it for as long as the [`Decision`](crate::Decision).
    ///
    /// # Cost
    ///
    /// Two exchanges in a cache line of the thread, 15 to 40 ns. Lock-free. The first call in a
    /// thread allocates. If a thread holds more than eight policies at once, further ones cost a
    /// count that all threads share. A [`reader`](Self::reader) is faster.
    ///
    /// ```
    /// # use portcullis_policy::{LivePolicy, Policy, Rule};
    /// let live = LivePolicy::new(Policy::new([Rule::new("all")]).unwrap());
    /// assert!(live.load().rule("all").is_some());
    /// ```
    #[inline]
    #[must_use]
    pub fn load(&self) -> LoadedPolicy {
        LoadedPolicy(self.shared.version.load())
    }

    /// Returns a reader, which finds the policy in force faster than [`load`](Self::load) does.
    /// Give one to each thread or worker that decides.
    ///
    /// ```
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{LivePolicy, Policy, Request, Rule};
    /// let live = LivePolicy::new(Policy::new([Rule::new("all")]).unwrap());
    /// let mut reader = live.reader();
    /// let decision = reader.policy().decide_at(Timestamp::ZERO, &Request::new("GET", "/"));
    /// assert!(decision.is_allowed());
    /// ```
    #[must_use]
    pub fn reader(&self) -> PolicyReader {
        PolicyReader(Cache::new(Pointer(Arc::clone(&self.shared))))
    }

    /// Returns the number of changes so far.
    ///
    /// ```
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{LivePolicy, Policy};
    /// let live = LivePolicy::new(Policy::new([]).unwrap());
    /// live.replace_at(Timestamp::ZERO, Policy::new([]).unwrap());
    /// assert_eq!(live.generation(), 1);
    /// ```
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.load().generation()
    }

    /// Replaces the policy at `now`: see [what a change keeps](Self#what-a-change-keeps). A policy
    /// is valid, so this does not fail: a set of rules that is not valid never becomes a policy,
    /// and the old one stays in force.
    ///
    /// `now` is the time of the requests that are being decided. What returned before `now` returns
    /// at the old rates.
    ///
    /// # Cost
    ///
    /// Allocates. Reads and writes the tables of limits that change. Concurrent changes wait for
    /// each other.
    ///
    /// ```
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{LivePolicy, Policy, Rule};
    /// let policy = |names: [&str; 2]| Policy::new(names.map(Rule::new)).unwrap();
    /// let live = LivePolicy::new(policy(["a", "b"]));
    /// let change = live.replace_at(Timestamp::ZERO, policy(["b", "c"]));
    /// assert!(change.kept().eq(["b"]) && change.begun().eq(["c"]) && change.ended().eq(["a"]));
    /// ```
    pub fn replace_at(&self, now: Timestamp, policy: Policy) -> Change {
        let changing = self.shared.changing();
        self.replace(now, policy, None, &changing)
    }

    /// Replaces the policy at `now` by what a source has, if its content has changed since. Returns
    /// `None` if it has not.
    ///
    /// # Errors
    ///
    /// Those of the source, for example all errors of a file, and [`RefreshError::Stores`] if a
    /// rule has a [store](crate::Rule::stored_in) that neither the new policy was given nor the
    /// policy before has. The policy before stays in force then.
    ///
    /// # Cost
    ///
    /// That of the source, and of [`replace_at`](Self::replace_at) if there is a change. Other
    /// changes wait for the source, so a source must not change the policy itself.
    ///
    /// ```
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{LivePolicy, Policy, Rule, Sourced};
    /// let tag = std::cell::Cell::new("v1");
    /// let mut source = |_: Option<&str>| -> Result<_, Vec<portcullis_policy::RuleError>> {
    ///     let policy = Policy::new([Rule::new("all")])?;
    ///     Ok(Some(Sourced::new(policy).tagged(tag.get())))
    /// };
    /// let now = Timestamp::from_secs(1);
    /// let live = LivePolicy::from_source(&mut source).unwrap();
    /// assert!(live.refresh_at(now, &mut source).unwrap().is_none(), "the same tag");
    /// tag.set("v2");
    /// let change = live.refresh_at(now, &mut source).unwrap().unwrap();
    /// assert_eq!(change.generation(), 1);
    /// ```
    pub fn refresh_at<S: RuleSource>(
        &self,
        now: Timestamp,
        source: &mut S,
    ) -> Result<Option<Change>, RefreshError<S::Error>> {
        let changing = self.shared.changing();
        let version = self.shared.version.load();
        let known = version.tag.as_deref();
        let sourced = source.load(known).map_err(RefreshError::Source)?;
        Ok(match sourced {
            Some(Sourced { policy, tag }) if tag.is_none() || tag.as_deref() != known => {
                if policy.stores().names().next().is_none() {
                    has_stores(&policy, version.policy.stores())?;
                }
                Some(self.replace(now, policy, tag, &changing))
            }
            _ => None,
        })
    }

    fn replace(
        &self,
        now: Timestamp,
        mut policy: Policy,
        tag: Option<Box<str>>,
        _: &MutexGuard<'_, ()>,
    ) -> Change {
        let before = self.shared.version.load_full();
        if policy.stores().names().next().is_none() {
            policy.stores = before.policy.stores.clone();
        }
        let kept = policy.follow(&before.policy, now);
        before.policy.hand_over(&policy, now);
        let names = |policy: &Policy| -> Vec<Box<str>> {
            policy.rules().map(|rule| rule.name().into()).collect()
        };
        let generation = before.generation + 1;
        let change = Change {
            generation,
            begun: names(&policy)
                .into_iter()
                .filter(|name| !kept.contains(name))
                .collect(),
            ended: names(&before.policy)
                .into_iter()
                .filter(|name| !kept.contains(name))
                .collect(),
            kept,
        };
        self.shared.version.store(Arc::new(Version {
            policy,
            generation,
            tag,
        }));
        #[cfg(feature = "queue")]
        before
            .policy
            .hand_over_queues(&self.shared.version.load().policy);
        #[cfg(feature = "wait")]
        self.shared.changed.notify(usize::MAX);
        change
    }
}

/// Refuses a policy whose rules cannot be decided by these stores.
fn has_stores<E>(policy: &Policy, stores: &Stores) -> Result<(), RefreshError<E>> {
    let errors = stores.check(policy.rules());
    if errors.is_empty() {
        Ok(())
    } else {
        Err(RefreshError::Stores(errors))
    }
}

impl Shared {
    fn changing(&self) -> MutexGuard<'_, ()> {
        // A panic in a source leaves the policy as it was.
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(feature = "wait")]
impl LivePolicy {
    /// Waits until the generation is later than `after`, and returns it. Pass the generation of the
    /// last policy that was seen, so that no change is missed. A task that waits sees the newest
    /// generation, not each one.
    ///
    /// **Cancellation.** Nothing is lost if the future is dropped. Needs the feature `wait`.
    ///
    /// ```
    /// # use core::future::Future;
    /// # use core::pin::pin;
    /// # use core::task::{Context, Poll, Waker};
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{LivePolicy, Policy};
    /// let live = LivePolicy::new(Policy::new([]).unwrap());
    /// let mut changed = pin!(live.changed(0));
    /// let mut context = Context::from_waker(Waker::noop());
    /// assert!(changed.as_mut().poll(&mut context).is_pending());
    /// live.replace_at(Timestamp::ZERO, Policy::new([]).unwrap());
    /// assert_eq!(changed.poll(&mut context), Poll::Ready(1));
    /// ```
    pub async fn changed(&self, after: u64) -> u64 {
        loop {
            let listener = self.shared.changed.listen();
            // A change after this is heard.
            let generation = self.generation();
            if generation > after {
                return generation;
            }
            listener.await;
        }
    }

    /// Blocks until the generation is later than `after`, and returns it, or `None` after
    /// `timeout`. Needs the feature `wait`.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_policy::{LivePolicy, Policy};
    /// let live = LivePolicy::new(Policy::new([]).unwrap());
    /// assert_eq!(live.blocking_changed(0, Duration::from_millis(1)), None);
    /// ```
    #[must_use]
    pub fn blocking_changed(&self, after: u64, timeout: core::time::Duration) -> Option<u64> {
        use event_listener::Listener;
        let until = std::time::Instant::now().checked_add(timeout);
        loop {
            event_listener::listener!(self.shared.changed => listener);
            let generation = self.generation();
            if generation > after {
                return Some(generation);
            }
            match until {
                Some(until) => {
                    listener.wait_deadline(until)?;
                }
                None => listener.wait(),
            }
        }
    }
}

impl fmt::Debug for LivePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = self.load();
        f.debug_struct("LivePolicy")
            .field("generation", &version.generation())
            .field("tag", &version.tag())
            .field("policy", &*version)
            .finish_non_exhaustive()
    }
}

/// The policy in force at one moment: the result of [`LivePolicy::load`].
///
/// ```
/// # use portcullis_policy::{LivePolicy, Policy, Rule};
/// let live = LivePolicy::new(Policy::new([Rule::new("all")]).unwrap());
/// let policy = live.load();
/// assert_eq!((policy.rules().len(), policy.generation()), (1, 0));
/// ```
pub struct LoadedPolicy(Guard<Arc<Version>>);

impl LoadedPolicy {
    /// Returns the number of changes before this policy came in force.
    ///
    /// ```
    /// # use portcullis_policy::{LivePolicy, Policy};
    /// assert_eq!(LivePolicy::new(Policy::new([]).unwrap()).load().generation(), 0);
    /// ```
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.0.generation
    }

    /// Returns the tag of the content that the policy was read from, if its source has tags.
    ///
    /// ```
    /// # use portcullis_policy::{LivePolicy, Policy};
    /// assert_eq!(LivePolicy::new(Policy::new([]).unwrap()).load().tag(), None);
    /// ```
    #[must_use]
    pub fn tag(&self) -> Option<&str> {
        self.0.tag.as_deref()
    }
}

impl LoadedPolicy {
    /// Returns a pointer to the policy, to keep for as long as a task needs it: for example for
    /// [`Decision::into_owned`](crate::Decision::into_owned).
    ///
    /// # Cost
    ///
    /// Counts the pointer, in a word that all threads share.
    ///
    /// ```
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{LivePolicy, Policy, Request, Rule};
    /// let live = LivePolicy::new(Policy::new([Rule::new("all")]).unwrap());
    /// let policy = live.load();
    /// let decision = policy.decide_at(Timestamp::ZERO, &Request::new("GET", "/"));
    /// let decision = decision.into_owned(policy.share());
    /// std::thread::spawn(move || drop(decision)).join().unwrap();
    /// ```
    #[must_use]
    pub fn share(&self) -> SharedPolicy {
        SharedPolicy(Arc::clone(&self.0))
    }
}

/// A policy that is or was in force: the result of [`LoadedPolicy::share`].
///
/// ```
/// # use portcullis_policy::{LivePolicy, Policy, Rule};
/// let live = LivePolicy::new(Policy::new([Rule::new("all")]).unwrap());
/// assert_eq!(live.load().share().rules().len(), 1);
/// ```
#[derive(Clone)]
pub struct SharedPolicy(Arc<Version>);

impl Deref for SharedPolicy {
    type Target = Policy;

    #[inline]
    fn deref(&self) -> &Policy {
        &self.0.policy
    }
}

impl fmt::Debug for SharedPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SharedPolicy").field(&self.0.policy).finish()
    }
}

impl Deref for LoadedPolicy {
    type Target = Policy;

    #[inline]
    fn deref(&self) -> &Policy {
        &self.0.policy
    }
}

impl fmt::Debug for LoadedPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LoadedPolicy").field(&self.0.policy).finish()
    }
}

/// Finds the policy in force for one thread or worker: the result of [`LivePolicy::reader`].
///
/// ```
/// use portcullis_core::Timestamp;
/// use portcullis_policy::{LivePolicy, Policy, Request, Rule};
///
/// let live = LivePolicy::new(Policy::new([Rule::new("all")]).unwrap());
/// std::thread::scope(|scope| {
///     for _ in 0..2 {
///         let mut reader = live.reader();
///         scope.spawn(move || {
///             let policy = reader.policy();
///             assert!(policy.decide_at(Timestamp::ZERO, &Request::new("GET", "/")).is_allowed());
///         });
///     }
/// });
/// ```
pub struct PolicyReader(Cache<Pointer, Arc<Version>>);

struct Pointer(Arc<Shared>);

impl Deref for Pointer {
    type Target = ArcSwap<Version>;

    #[inline]
    fn deref(&self) -> &ArcSwap<Version> {
        &self.0.version
    }
}

impl PolicyReader {
    /// Returns the policy in force. The reader keeps it in memory until the next call.
    ///
    /// # Cost
    ///
    /// One load and one comparison, if there was no change since the last call. Does not allocate,
    /// and takes no lock.
    ///
    /// ```
    /// # use portcullis_policy::{LivePolicy, Policy, Rule};
    /// let live = LivePolicy::new(Policy::new([Rule::new("all")]).unwrap());
    /// assert_eq!(live.reader().policy().rules().len(), 1);
    /// ```
    #[inline]
    pub fn policy(&mut self) -> &Policy {
        &arc_swap::cache::Access::load(&mut self.0).policy
    }
}

shows!([] PolicyReader, "PolicyReader");

/// What a change of a policy did: the result of [`LivePolicy::replace_at`].
///
/// ```
/// # use portcullis_core::Timestamp;
/// # use portcullis_policy::{LivePolicy, Policy, Rule};
/// let live = LivePolicy::new(Policy::new([Rule::new("a")]).unwrap());
/// let change = live.replace_at(Timestamp::ZERO, Policy::new([Rule::new("a")]).unwrap());
/// assert!(change.kept().eq(["a"]));
/// ```
#[derive(Clone, Debug)]
pub struct Change {
    generation: u64,
    kept: Vec<Box<str>>,
    begun: Vec<Box<str>>,
    ended: Vec<Box<str>>,
}

impl Change {
    /// Returns the generation of the new policy.
    ///
    /// ```
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{LivePolicy, Policy};
    /// let live = LivePolicy::new(Policy::new([]).unwrap());
    /// let change = live.replace_at(Timestamp::ZERO, Policy::new([]).unwrap());
    /// assert_eq!(change.generation(), live.generation());
    /// ```
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the names of the rules that keep their state.
    ///
    /// ```
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{LivePolicy, Policy};
    /// # let live = LivePolicy::new(Policy::new([]).unwrap());
    /// # let change = live.replace_at(Timestamp::ZERO, Policy::new([]).unwrap());
    /// assert_eq!(change.kept().count(), 0);
    /// ```
    pub fn kept(&self) -> impl Iterator<Item = &str> {
        self.kept.iter().map(|name| &**name)
    }

    /// Returns the names of the rules that begin with the state of new limiters: rules with a new
    /// name, and those whose key, number of keys or rules for paths have changed.
    ///
    /// ```
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{Key, LivePolicy, Policy, Rule};
    /// let policy = |key| Policy::new([Rule::new("a").key(key)]).unwrap();
    /// let live = LivePolicy::new(policy(Key::address()));
    /// let change = live.replace_at(Timestamp::ZERO, policy(Key::path()));
    /// assert!(change.begun().eq(["a"]) && change.ended().eq(["a"]));
    /// ```
    pub fn begun(&self) -> impl Iterator<Item = &str> {
        self.begun.iter().map(|name| &**name)
    }

    /// Returns the names of the rules of the policy before whose state is gone.
    ///
    /// ```
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{LivePolicy, Policy, Rule};
    /// let live = LivePolicy::new(Policy::new([Rule::new("a")]).unwrap());
    /// let change = live.replace_at(Timestamp::ZERO, Policy::new([]).unwrap());
    /// assert!(change.ended().eq(["a"]));
    /// ```
    pub fn ended(&self) -> impl Iterator<Item = &str> {
        self.ended.iter().map(|name| &**name)
    }
}
