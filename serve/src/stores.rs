//! The counter stores that the settings describe.

use core::time::Duration;
use std::sync::Arc;

use portcullis_core::{Clock, MonotonicClock, Timestamp};
use portcullis_counters::{
    CounterStore, GuardSettings, GuardedStore, RedisCounters, RedisSettings, StoreEvent,
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
        stores = stores.with(name, Arc::clone(&store) as Arc<dyn CounterStore>);
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
