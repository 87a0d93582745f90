//! A counter store that decides by a policy of its own while the store behind it has no answer.
//!
//! ```text
//!              a call fails                     a probe fails: a longer pause
//!      Up ---------------------> Down(pause) ------------------+
//!       ^                          |   ^                       |
//!       |                          |   +-----------------------+
//!       +--------------------------+
//!              a call succeeds
//! ```
//!
//! **Invariant.** While the store is down, at most one request at a time asks it, and none before
//! the pause is over. All others are decided here at once.

use core::fmt;
use core::hash::BuildHasher;
use core::time::Duration;
use std::hash::RandomState;
use std::sync::{Mutex, MutexGuard, PoisonError};

use portcullis_core::{Clock, Retry, Timestamp};

use crate::charge::Charge;
use crate::decision::{Origin, StoreDecision};
use crate::error::{Fault, StoreError};
use crate::limit::CounterLimit;
use crate::memory::MemoryCounters;
use crate::store::{Counter, CounterStore, QuotaRead, QuotaWrite, StoreFuture};

/// The id of the limit of [`GuardedStore::probe`].
const PROBE: &str = "portcullis-probe";

const SECOND: Duration = Duration::from_secs(1);

/// What a [`GuardedStore`] decides while its store has no answer.
///
/// ```
/// use portcullis_counters::OnFailure;
/// assert_eq!(OnFailure::default(), OnFailure::Deny);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnFailure {
    /// Allows every request: no limit holds until the store answers again.
    Allow,
    /// Denies every request: no permit is granted that the store has not granted.
    #[default]
    Deny,
    /// Fails with [`StoreError::Unavailable`]: no permit is granted, and the caller can tell an
    /// outage from a limit that is used up. The middleware of `portcullis-tower` answers 503.
    Fail,
    /// Decides in the memory of this instance, with `part / whole` of each limit, rounded down. A
    /// limit of which no permit is left denies.
    ///
    /// For example 1 / 4 for each of four instances. Together they then grant at most the limit
    /// once more: in a span of time in which the store failed, at most the bound of the store and
    /// the bound of the shares. What was taken from a share stays taken if the store fails again.
    Share {
        /// At most `whole`.
        part: u32,
        /// At least 1.
        whole: u32,
    },
}

/// Settings of a [`GuardedStore`].
///
/// ```
/// use core::time::Duration;
/// use portcullis_counters::{GuardSettings, OnFailure};
/// let settings = GuardSettings::new(OnFailure::Share { part: 1, whole: 4 })
///     .pauses(Duration::from_millis(50), Duration::from_secs(5));
/// # let _ = settings;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuardSettings {
    on_failure: OnFailure,
    first: Duration,
    longest: Duration,
    max_ids: usize,
}

impl GuardSettings {
    /// The default settings, and what is decided while the store has no answer.
    ///
    /// # Panics
    ///
    /// If a share has a `whole` of 0, or a `part` that is larger.
    ///
    /// ```
    /// # use portcullis_counters::{GuardSettings, OnFailure};
    /// let _ = GuardSettings::new(OnFailure::Allow);
    /// ```
    #[must_use]
    pub const fn new(on_failure: OnFailure) -> Self {
        if let OnFailure::Share { part, whole } = on_failure {
            assert!(whole > 0 && part <= whole, "a share is part / whole");
        }
        Self {
            on_failure,
            first: Duration::from_millis(100),
            longest: Duration::from_secs(2),
            max_ids: 100_000,
        }
    }

    /// Sets how long the store is not asked after a failure: the first time, and at most. Each
    /// failed probe doubles the pause. The pause is shorter by a random part of up to one half, so
    /// that instances do not probe together. Defaults 100 ms and 2 s.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_counters::{GuardSettings, OnFailure};
    /// let second = Duration::from_secs(1);
    /// let _ = GuardSettings::new(OnFailure::Deny).pauses(second, 30 * second);
    /// ```
    #[must_use]
    pub const fn pauses(mut self, first: Duration, longest: Duration) -> Self {
        self.first = first;
        self.longest = longest;
        self
    }

    /// Sets for how many ids the shares have room: see [`MemoryCounters::new`]. If there are more,
    /// requests with new ones are denied. Default 100,000.
    ///
    /// ```
    /// # use portcullis_counters::{GuardSettings, OnFailure};
    /// let _ = GuardSettings::new(OnFailure::Share { part: 1, whole: 2 }).max_ids(1_000);
    /// ```
    #[must_use]
    pub const fn max_ids(mut self, max_ids: usize) -> Self {
        self.max_ids = max_ids;
        self
    }
}

/// What a [`GuardedStore`] reports.
///
/// ```
/// use core::time::Duration;
/// use portcullis_counters::StoreEvent;
/// let event = StoreEvent::Up { down_for: Duration::from_secs(3) };
/// assert_eq!(event.to_string(), "the counter store answers again, after 3s");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreEvent {
    /// The store did not answer a call, and is not asked until `probe_in` has passed.
    Down {
        /// Why there was no answer.
        error: StoreError,
        /// How long the store is not asked.
        probe_in: Duration,
    },
    /// The store did not answer a probe.
    StillDown {
        /// Why there was no answer.
        error: StoreError,
        /// The time since the first failure.
        down_for: Duration,
        /// How long the store is not asked.
        probe_in: Duration,
    },
    /// The store answers again.
    Up {
        /// The time since the first failure.
        down_for: Duration,
    },
    /// The store answered that it cannot decide one request, which was decided as if the store were
    /// down. Other requests are not affected.
    Undecided {
        /// Why the store cannot decide.
        error: StoreError,
    },
    /// No request with these limits and ids can be decided, until the settings of the rule or of
    /// the store change. The request has failed with this error. Other rules are not affected.
    Refused {
        /// What is wrong with them.
        error: StoreError,
    },
}

impl fmt::Display for StoreEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Down { error, probe_in } => {
                write!(f, "{error}; it is asked again in {probe_in:?}")
            }
            Self::StillDown {
                error,
                down_for,
                probe_in,
            } => write!(
                f,
                "{error}, for {down_for:?} now; it is asked again in {probe_in:?}"
            ),
            Self::Up { down_for } => {
                write!(f, "the counter store answers again, after {down_for:?}")
            }
            Self::Undecided { error } => write!(f, "a request was not decided: {error}"),
            Self::Refused { error } => write!(f, "a request failed: {error}"),
        }
    }
}

type Observer = Box<dyn Fn(&StoreEvent) + Send + Sync>;

/// A [`CounterStore`] that decides requests while the store behind it is down or slow: it allows
/// them, denies them, fails them, or decides them with a local share of their limits.
///
/// - **A failure** is [`StoreError::Unavailable`]. How long a call may take is a setting of the
///   store behind: `RedisSettings::time_limit`. A call whose outcome is not known may have taken
///   permits from the store. They are lost until they return with time.
/// - **While the store is down**, requests are decided here, without a wait. After a pause, one of
///   them asks the store. If the store answers, all requests ask it again.
/// - **An error that concerns one request or one id** ([`Fault::Request`], [`Fault::Id`]): this
///   request is decided here, and the others by the store.
/// - **An error of the settings of a rule** ([`Fault::Rule`]) is returned, whatever [`OnFailure`]
///   says: it is no outage, and does not end by itself. Other rules are not affected.
/// - **Counters and quotas** are not decisions. Their methods return the error of the store, or
///   while it is down, [`StoreError::Unavailable`] at once.
///
/// # Bounds
///
/// Those of the store, and while it is down, those of [`OnFailure`].
///
/// # Cost
///
/// That of the store, and a mutex for a few instructions, twice.
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::{ManualClock, MonotonicClock};
/// use portcullis_counters::{
///     Charge, CounterLimit, CounterStore, GuardSettings, GuardedStore, MemoryCounters, OnFailure,
/// };
///
/// # futures_executor::block_on(async {
/// let store = MemoryCounters::new(100, ManualClock::new());
/// let settings = GuardSettings::new(OnFailure::Allow);
/// let guarded = GuardedStore::new(store, MonotonicClock::new(), settings)
///     .observed(|event| eprintln!("{event}"));
/// let limit = CounterLimit::token_bucket(10, Duration::from_secs(1), 10)?;
/// assert!(guarded.take(&[Charge::new("alice", &limit, 1)]).await?.is_allowed());
/// assert!(!guarded.is_down());
/// # Ok::<(), Box<dyn core::error::Error>>(()) }).unwrap();
/// ```
pub struct GuardedStore<S, C> {
    store: S,
    settings: GuardSettings,
    /// The local shares. Their clock is also that of the pauses.
    shares: MemoryCounters<C>,
    observer: Option<Observer>,
    health: Mutex<Health>,
    jitter: RandomState,
}

enum Health {
    Up,
    Down {
        since: Timestamp,
        probe_at: Timestamp,
        pause: Duration,
        is_probed: bool,
    },
}

/// A call to the store. If it is dropped without an outcome, the next request may ask.
struct Call<'g, S, C> {
    guarded: &'g GuardedStore<S, C>,
    is_probe: bool,
}

impl<S, C> Drop for Call<'_, S, C> {
    fn drop(&mut self) {
        if self.is_probe
            && let Health::Down { is_probed, .. } = &mut *self.guarded.health()
        {
            *is_probed = false;
        }
    }
}

impl<S, C> GuardedStore<S, C> {
    fn health(&self) -> MutexGuard<'_, Health> {
        // A panic of the observer leaves a complete state.
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `observer` with every transition, in their order, and with every request that the
    /// store could not decide. It is called while other requests wait for the same lock, and must
    /// not use this store.
    ///
    /// ```
    /// # use portcullis_core::ManualClock;
    /// # use portcullis_counters::{GuardedStore, GuardSettings, MemoryCounters, OnFailure};
    /// # let store = MemoryCounters::new(100, ManualClock::new());
    /// let settings = GuardSettings::new(OnFailure::Deny);
    /// let guarded = GuardedStore::new(store, ManualClock::new(), settings);
    /// let _ = guarded.observed(|event| eprintln!("{event}"));
    /// ```
    #[must_use]
    pub fn observed(mut self, observer: impl Fn(&StoreEvent) + Send + Sync + 'static) -> Self {
        self.observer = Some(Box::new(observer));
        self
    }

    /// Returns whether the store did not answer the last call.
    ///
    /// ```
    /// # use portcullis_core::ManualClock;
    /// # use portcullis_counters::{GuardedStore, GuardSettings, MemoryCounters, OnFailure};
    /// # let store = MemoryCounters::new(100, ManualClock::new());
    /// let settings = GuardSettings::new(OnFailure::Deny);
    /// assert!(!GuardedStore::new(store, ManualClock::new(), settings).is_down());
    /// ```
    #[must_use]
    pub fn is_down(&self) -> bool {
        matches!(*self.health(), Health::Down { .. })
    }

    /// Returns the store behind.
    ///
    /// ```
    /// # use portcullis_core::ManualClock;
    /// # use portcullis_counters::{GuardedStore, GuardSettings, MemoryCounters, OnFailure};
    /// # let store = MemoryCounters::new(100, ManualClock::new());
    /// let settings = GuardSettings::new(OnFailure::Deny);
    /// let guarded = GuardedStore::new(store, ManualClock::new(), settings);
    /// assert_eq!(guarded.store().ids(), 0);
    /// ```
    #[must_use]
    pub const fn store(&self) -> &S {
        &self.store
    }

    fn report(&self, event: &StoreEvent) {
        if let Some(observer) = &self.observer {
            observer(event);
        }
    }

    /// Returns `pause`, less a random part of up to one half, so that the instances of a store do
    /// not all ask it at the same moment.
    fn jittered(&self, pause: Duration, now: Timestamp) -> Duration {
        let half = pause / 2;
        let random = self.jitter.hash_one(now) as u32;
        pause.saturating_sub(half.mul_f64(f64::from(random) / f64::from(u32::MAX)))
    }
}

impl<S: CounterStore, C: Clock + Send + Sync> GuardedStore<S, C> {
    /// Guards `store`. `clock` measures the pauses, and is the time of the shares.
    ///
    /// ```
    /// # use portcullis_core::{ManualClock, MonotonicClock};
    /// # use portcullis_counters::{GuardedStore, GuardSettings, MemoryCounters, OnFailure};
    /// # let store = MemoryCounters::new(100, ManualClock::new());
    /// let settings = GuardSettings::new(OnFailure::Share { part: 1, whole: 4 });
    /// let _ = GuardedStore::new(store, MonotonicClock::new(), settings);
    /// ```
    #[must_use]
    pub fn new(store: S, clock: C, settings: GuardSettings) -> Self {
        Self {
            store,
            settings,
            shares: MemoryCounters::new(settings.max_ids, clock),
            observer: None,
            health: Mutex::new(Health::Up),
            jitter: RandomState::new(),
        }
    }

    /// Asks the store whether it answers, unless it is down and may not be asked yet. Returns
    /// whether it is up.
    ///
    /// Requests find out by themselves. Call this from time to time so that it is found out without
    /// them: then the first request after an outage at night is decided by the store, and a gauge
    /// shows what is so. It takes a permit of a limit of its own, so a store that is full or only
    /// reads is down. The limit has the id `portcullis-probe`.
    ///
    /// ```
    /// # use portcullis_core::ManualClock;
    /// # use portcullis_counters::{GuardedStore, GuardSettings, MemoryCounters, OnFailure};
    /// # futures_executor::block_on(async {
    /// let store = MemoryCounters::new(100, ManualClock::new());
    /// let settings = GuardSettings::new(OnFailure::Deny);
    /// let guarded = GuardedStore::new(store, ManualClock::new(), settings);
    /// assert!(guarded.probe().await);
    /// # });
    /// ```
    pub async fn probe(&self) -> bool {
        if let (Ok(call), Ok(limit)) = (self.call(), CounterLimit::token_bucket(1_000, SECOND, 1)) {
            let answer = self.store.take(&[Charge::new(PROBE, &limit, 1)]).await;
            self.note(call, [answer.as_ref().err()]);
        }
        !self.is_down()
    }

    fn now(&self) -> Timestamp {
        self.shares.clock().now()
    }

    /// Returns a call if the store may be asked now, and otherwise after which time it may.
    fn call(&self) -> Result<Call<'_, S, C>, Duration> {
        let now = self.now();
        let is_probe = match &mut *self.health() {
            Health::Up => false,
            Health::Down {
                probe_at,
                is_probed,
                ..
            } => {
                // One request at a time finds out: a store that comes back is not met by all of
                // them.
                if *is_probed || now < *probe_at {
                    return Err(probe_at.saturating_since(now));
                }
                *is_probed = true;
                true
            }
        };
        Ok(Call {
            guarded: self,
            is_probe,
        })
    }

    /// Notes the outcome of a call.
    fn ended(&self, call: Call<'_, S, C>, error: Option<&StoreError>) {
        let now = self.now();
        let mut health = self.health();
        match (&mut *health, error) {
            // Also the answer to a call from before the store went down: it answers.
            (Health::Down { since, .. }, None) => {
                let down_for = now.saturating_since(*since);
                *health = Health::Up;
                self.report(&StoreEvent::Up { down_for });
            }
            (Health::Up, Some(error)) => {
                let pause = self.settings.first;
                let probe_in = self.jittered(pause, now);
                *health = Health::Down {
                    since: now,
                    probe_at: now.saturating_add(probe_in),
                    pause,
                    is_probed: false,
                };
                let error = error.clone();
                self.report(&StoreEvent::Down { error, probe_in });
            }
            (
                Health::Down {
                    since,
                    probe_at,
                    pause,
                    ..
                },
                Some(error),
            ) if call.is_probe => {
                *pause = pause.saturating_mul(2).min(self.settings.longest);
                let probe_in = self.jittered(*pause, now);
                *probe_at = now.saturating_add(probe_in);
                let (error, down_for) = (error.clone(), now.saturating_since(*since));
                self.report(&StoreEvent::StillDown {
                    error,
                    down_for,
                    probe_in,
                });
            }
            // A call from before the store went down fails too.
            (Health::Up, None) | (Health::Down { .. }, Some(_)) => {}
        }
        // The call locks the state when it is dropped.
        drop(health);
        drop(call);
    }

    /// The answer of the store to a call, unless it may not be asked.
    async fn through<T>(&self, call: StoreFuture<'_, T>) -> Result<T, StoreError> {
        let asked = self.call().map_err(|probe_in| {
            StoreError::Unavailable(format!("down; it is asked again in {probe_in:?}"))
        })?;
        let answer = call.await;
        self.note(asked, [answer.as_ref().err()]);
        answer
    }

    /// Notes the outcomes of a call. Only a missing answer is a failure.
    fn note<'e>(
        &self,
        call: Call<'_, S, C>,
        errors: impl IntoIterator<Item = Option<&'e StoreError>>,
    ) {
        let mut has_answered = false;
        for error in errors {
            match error.map(|error| (error, error.fault())) {
                Some((error, Fault::Store)) => return self.ended(call, Some(error)),
                // Found here, or by the server: it does not say whether others have an answer. If
                // the call is a probe, the next request is one.
                Some((_, Fault::Rule)) => {}
                _ => has_answered = true,
            }
        }
        if has_answered {
            self.ended(call, None);
        }
    }

    /// Asks the store for several decisions in one call. Empty if it may not be asked now. If there
    /// is no answer to the call, that is the answer to each request.
    async fn ask_many(&self, requests: &[&[Charge<'_>]]) -> Vec<Result<StoreDecision, StoreError>> {
        let Ok(call) = self.call() else {
            return Vec::new();
        };
        let answers = self.store.take_many(requests).await;
        let answers = answers.unwrap_or_else(|error| vec![Err(error); requests.len()]);
        self.note(call, answers.iter().map(|answer| answer.as_ref().err()));
        answers
    }

    /// Decides without the store.
    async fn fall_back(&self, charges: &[Charge<'_>]) -> Result<StoreDecision, StoreError> {
        let now = self.now();
        let denied = |index: usize| StoreDecision {
            denied_by: Some(index),
            retry: Some(Retry::After(self.probe_in(now))),
            at: now,
            left: Vec::new(),
            origin: Origin::Fallback,
        };
        let (part, whole) = match self.settings.on_failure {
            OnFailure::Deny if !charges.is_empty() => return Ok(denied(0)),
            OnFailure::Fail if !charges.is_empty() => {
                return Err(StoreError::Unavailable("it has no answer".into()));
            }
            OnFailure::Allow | OnFailure::Deny | OnFailure::Fail => {
                return Ok(StoreDecision {
                    denied_by: None,
                    retry: None,
                    at: now,
                    left: Vec::new(),
                    origin: Origin::Fallback,
                });
            }
            OnFailure::Share { part, whole } => (part.into(), whole.into()),
        };
        let shares = charges.iter().map(|charge| charge.limit.share(part, whole));
        let shares: Vec<Option<CounterLimit>> = shares.collect();
        if let Some(index) = shares.iter().position(Option::is_none) {
            return Ok(denied(index));
        }
        let of_shares = charges.iter().zip(shares.iter().flatten());
        let of_shares = of_shares.map(|(charge, limit)| Charge { limit, ..*charge });
        let of_shares: Vec<_> = of_shares.collect();
        match self.shares.take(&of_shares).await {
            Ok(mut decision) => {
                decision.origin = Origin::Fallback;
                Ok(decision)
            }
            Err(StoreError::Full) => Ok(denied(0)),
            Err(error) => Err(error),
        }
    }

    /// When the store may be asked again, at least 1 ms from `now`.
    fn probe_in(&self, now: Timestamp) -> Duration {
        let left = match &*self.health() {
            Health::Up => Duration::ZERO,
            Health::Down { probe_at, .. } => probe_at.saturating_since(now),
        };
        left.max(Duration::from_millis(1))
    }

    /// The store's decision, or that of the fallback.
    async fn concluded(
        &self,
        charges: &[Charge<'_>],
        answer: Result<StoreDecision, StoreError>,
    ) -> Result<StoreDecision, StoreError> {
        match answer {
            Ok(decision) => Ok(decision),
            Err(error) => match error.fault() {
                Fault::Store => self.fall_back(charges).await,
                // No outage, and it does not end by itself. So the fallback, which may allow all
                // requests, is not for it.
                Fault::Rule => {
                    let _order = self.health();
                    let refused = error.clone();
                    self.report(&StoreEvent::Refused { error });
                    Err(refused)
                }
                Fault::Request | Fault::Id => {
                    let order = self.health();
                    self.report(&StoreEvent::Undecided { error });
                    drop(order);
                    self.fall_back(charges).await
                }
            },
        }
    }
}

impl<S: CounterStore, C: Clock + Send + Sync> CounterStore for GuardedStore<S, C> {
    fn get_many<'a>(&'a self, ids: &'a [&'a str]) -> StoreFuture<'a, Vec<Counter>> {
        Box::pin(self.through(self.store.get_many(ids)))
    }

    fn increment_and_get<'a>(
        &'a self,
        id: &'a str,
        expiry: Duration,
        delta: i64,
    ) -> StoreFuture<'a, Counter> {
        Box::pin(self.through(self.store.increment_and_get(id, expiry, delta)))
    }

    fn read_quotas<'a>(&'a self, ids: &'a [&'a str]) -> StoreFuture<'a, QuotaRead> {
        Box::pin(self.through(self.store.read_quotas(ids)))
    }

    fn write_quotas<'a>(
        &'a self,
        read_at: Timestamp,
        writes: &'a [QuotaWrite<'a>],
    ) -> StoreFuture<'a, bool> {
        Box::pin(self.through(self.store.write_quotas(read_at, writes)))
    }

    fn take<'a>(&'a self, charges: &'a [Charge<'a>]) -> StoreFuture<'a, StoreDecision> {
        Box::pin(async move {
            let Ok(call) = self.call() else {
                return self.fall_back(charges).await;
            };
            let answer = self.store.take(charges).await;
            self.note(call, [answer.as_ref().err()]);
            self.concluded(charges, answer).await
        })
    }

    fn take_many<'a>(
        &'a self,
        requests: &'a [&'a [Charge<'a>]],
    ) -> StoreFuture<'a, Vec<Result<StoreDecision, StoreError>>> {
        Box::pin(async move {
            // Requests without an answer, because the store may not be asked, are at the end.
            let mut answers = self.ask_many(requests).await.into_iter();
            let mut decisions = Vec::with_capacity(requests.len());
            for charges in requests {
                decisions.push(match answers.next() {
                    Some(answer) => self.concluded(charges, answer).await,
                    None => self.fall_back(charges).await,
                });
            }
            Ok(decisions)
        })
    }

    fn syncs(&self) -> bool {
        self.store.syncs()
    }

    fn supports(&self, limit: &CounterLimit) -> Result<(), StoreError> {
        self.store.supports(limit)
    }
}

impl<S: fmt::Debug, C> fmt::Debug for GuardedStore<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuardedStore")
            .field("store", &self.store)
            .field("settings", &self.settings)
            .field("is_down", &self.is_down())
            .finish_non_exhaustive()
    }
}
