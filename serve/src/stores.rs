//! The counter stores that the settings describe.

use core::time::Duration;
use std::sync::Arc;

use portcullis_core::{Clock, MonotonicClock, Timestamp};
use portcullis_counters::{
    Charge, Counter, CounterLimit, CounterStore, GuardSettings, GuardedStore, OnFailure, Origin,
    QuotaRead, QuotaWrite, RedisCounters, RedisSettings, StoreDecision, StoreError, StoreEvent,
    StoreFuture,
};
use portcullis_policy::Stores;
use tokio::time::sleep;

use crate::seldom::EachMinute;
use crate::settings::{Settings, StoreSettings};

/// How often a store is asked without a request: while it answers, and while it does not. Then its
/// guard leaves most of them out.
const PROBES: [Duration; 2] = [Duration::from_secs(1), Duration::from_millis(100)];

type Guarded = GuardedStore<RedisCounters, MonotonicClock>;

/// A counter store, and whether it answers: for the metrics and the page.
#[derive(Clone, Debug)]
pub(crate) struct StoreState {
    pub(crate) name: String,
    store: Arc<Guarded>,
}

impl StoreState {
    pub(crate) fn is_up(&self) -> bool {
        !self.store.is_down()
    }
}

/// Creates the stores. Must be called in a runtime of tokio.
///
/// # Errors
///
/// A text that names the store whose address is not valid.
pub(crate) fn open(settings: &Settings) -> Result<(Stores, Vec<StoreState>), String> {
    let (mut stores, mut states) = (Stores::new(), Vec::new());
    for (name, of_store) in &settings.stores {
        let store = open_one(name, of_store);
        let store = store.map_err(|error| format!("serve.stores.{name}: {error}"))?;
        let store = Arc::new(store);
        stores = stores.with(name, for_rules(of_store, &store));
        states.push(StoreState {
            name: name.clone(),
            store,
        });
    }
    Ok((stores, states))
}

fn open_one(name: &str, settings: &StoreSettings) -> Result<Guarded, String> {
    let mut redis = RedisSettings::new(&settings.redis.0);
    if let Some(prefix) = &settings.prefix {
        redis = redis.prefix(prefix);
    }
    if let Some(limit) = settings.time_limit {
        redis = redis.time_limit(limit);
    }
    let store = RedisCounters::new(&redis).map_err(|error| error.to_string())?;
    let guard = GuardSettings::new(settings.when_down.0);
    let guarded = GuardedStore::new(store, MonotonicClock::new(), guard);
    let (name, clock, reasons) = (name.to_owned(), MonotonicClock::new(), EachMinute::new());
    Ok(guarded.observed(move |event| tell(&name, event, &reasons, clock.now())))
}

/// The store as the rules have it.
fn for_rules(settings: &StoreSettings, store: &Arc<Guarded>) -> Arc<dyn CounterStore> {
    let store = Arc::clone(store);
    if settings.when_down.0 == OnFailure::Deny {
        Arc::new(Unanswered(store))
    } else {
        store
    }
}

/// Asks a store from time to time, without end. So an outage, and its end, are found out before a
/// request meets them.
///
/// Warns if the server may forget limits: at the start, and after each outage, when it may be
/// another server.
pub(crate) async fn probe(state: StoreState) {
    let mut is_judged = false;
    loop {
        let is_up = state.store.probe().await;
        if is_up && !is_judged {
            warn_of_eviction(&state).await;
        }
        is_judged = is_up;
        let [up, down] = PROBES;
        sleep(if is_up { up } else { down }).await;
    }
}

async fn warn_of_eviction(StoreState { name, store, .. }: &StoreState) {
    match store.store().eviction().await {
        Ok(None) => {}
        Ok(Some(policy)) => tracing::warn!(
            store = name,
            "it forgets limits when its memory is full, so that clients with many keys free \
             themselves: set maxmemory-policy to noeviction, in place of {policy}"
        ),
        Err(error) => tracing::warn!(
            store = name,
            "whether it forgets limits when its memory is full is not known: {error}"
        ),
    }
}

/// A guarded store, whose own denials are errors: the reply is 503, and not that of a limit that
/// has no permits left. No limit of a client is reached, and no client need be looked for.
struct Unanswered<S>(Arc<S>);

impl<S> Unanswered<S> {
    fn told(decided: Result<StoreDecision, StoreError>) -> Result<StoreDecision, StoreError> {
        let decision = decided?;
        let is_guards = matches!(decision.origin(), Origin::Fallback);
        if is_guards && decision.denied_by().is_some() {
            return Err(StoreError::Unavailable("the store has no answer".into()));
        }
        Ok(decision)
    }
}

impl<S: CounterStore> CounterStore for Unanswered<S> {
    fn get_many<'a>(&'a self, ids: &'a [&'a str]) -> StoreFuture<'a, Vec<Counter>> {
        self.0.get_many(ids)
    }

    fn increment_and_get<'a>(
        &'a self,
        id: &'a str,
        expiry: Duration,
        delta: i64,
    ) -> StoreFuture<'a, Counter> {
        self.0.increment_and_get(id, expiry, delta)
    }

    fn read_quotas<'a>(&'a self, ids: &'a [&'a str]) -> StoreFuture<'a, QuotaRead> {
        self.0.read_quotas(ids)
    }

    fn write_quotas<'a>(
        &'a self,
        read_at: Timestamp,
        writes: &'a [QuotaWrite<'a>],
    ) -> StoreFuture<'a, bool> {
        self.0.write_quotas(read_at, writes)
    }

    fn take<'a>(&'a self, charges: &'a [Charge<'a>]) -> StoreFuture<'a, StoreDecision> {
        Box::pin(async move { Self::told(self.0.take(charges).await) })
    }

    fn take_many<'a>(
        &'a self,
        requests: &'a [&'a [Charge<'a>]],
    ) -> StoreFuture<'a, Vec<Result<StoreDecision, StoreError>>> {
        Box::pin(async move {
            let decided = self.0.take_many(requests).await?;
            Ok(decided.into_iter().map(Self::told).collect())
        })
    }

    fn syncs(&self) -> bool {
        self.0.syncs()
    }

    fn supports(&self, limit: &CounterLimit) -> Result<(), StoreError> {
        self.0.supports(limit)
    }
}

/// Writes an event to the log. A store that is away is asked again each second or two, so of these
/// events only the first of an outage is written, the first of each minute, and new reasons.
fn tell(store: &str, event: &StoreEvent, reasons: &EachMinute, now: Timestamp) {
    match event {
        StoreEvent::Up { .. } => tracing::info!(store, "{event}"),
        StoreEvent::Down { error, .. } => {
            reasons.restart(&error.to_string(), now);
            tracing::warn!(store, "{event}");
        }
        StoreEvent::StillDown { error, .. } if !reasons.may_write(&error.to_string(), now) => {}
        _ => tracing::warn!(store, "{event}"),
    }
}
