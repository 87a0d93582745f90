//! The counter stores that the settings describe.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

use portcullis_core::MonotonicClock;
use portcullis_counters::{
    CounterStore, GuardSettings, GuardedStore, RedisCounters, RedisSettings, StoreEvent,
};
use portcullis_policy::Stores;

use crate::settings::{Settings, StoreSettings};

/// A counter store, and whether it answers: for `/ready` and the page.
#[derive(Clone, Debug)]
pub(crate) struct StoreState {
    pub(crate) name: String,
    pub(crate) is_up: Arc<AtomicBool>,
}

/// Creates the stores. Must be called in a runtime of tokio.
///
/// # Errors
///
/// A text that names the store whose address is not valid.
pub(crate) fn open(settings: &Settings) -> Result<(Stores, Vec<StoreState>), String> {
    let (mut stores, mut states) = (Stores::new(), Vec::new());
    for (name, of_store) in &settings.stores {
        let state = StoreState {
            name: name.clone(),
            is_up: Arc::new(AtomicBool::new(true)),
        };
        let store = open_one(of_store, state.clone());
        let store = store.map_err(|error| format!("serve.stores.{name}: {error}"))?;
        stores = stores.with(name, store);
        states.push(state);
    }
    Ok((stores, states))
}

fn open_one(settings: &StoreSettings, state: StoreState) -> Result<Arc<dyn CounterStore>, String> {
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
    Ok(Arc::new(guarded.observed(move |event| tell(&state, event))))
}

fn tell(state: &StoreState, event: &StoreEvent) {
    match event {
        StoreEvent::Down { .. } | StoreEvent::StillDown { .. } => state.is_up.store(false, Relaxed),
        StoreEvent::Up { .. } => state.is_up.store(true, Relaxed),
        _ => {}
    }
    if matches!(event, StoreEvent::Up { .. }) {
        tracing::info!(store = state.name, "{event}");
    } else {
        tracing::warn!(store = state.name, "{event}");
    }
}
