//! Counter stores, which rules name with `store`: what a policy takes permits from besides the
//! memory of its process.
//!
//! Each process opens a store for itself, at its first request. The connection to a Redis server is
//! run by a thread of this library, which all policies of a process share ([`enter`]). It runs no
//! code of Python.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::sync::Arc;

use portcullis_core::MonotonicClock;
#[cfg(target_os = "linux")]
use portcullis_counters::SharedCounters;
use portcullis_counters::{
    CounterStore, GuardSettings, GuardedStore, OnFailure, RedisCounters, RedisSettings,
};
use portcullis_policy::Stores;
#[cfg(target_os = "linux")]
use portcullis_shm::SharedFile;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tokio::runtime::{Builder, EnterGuard, Runtime};

use crate::forked::PerProcess;
use crate::number::seconds_of;
#[cfg(target_os = "linux")]
use crate::number::whole;
#[cfg(target_os = "linux")]
use crate::shared_file;

/// What runs the connections of this process.
static RUNTIME: PerProcess<Runtime> = PerProcess::new();

/// Whether any process of this lineage has connected.
static IS_USED: AtomicBool = AtomicBool::new(false);

fn runtime() -> PyResult<&'static Runtime> {
    IS_USED.store(true, Relaxed);
    RUNTIME.get(|| {
        let mut builder = Builder::new_multi_thread();
        let builder = builder.worker_threads(1).thread_name("portcullis-redis");
        Ok(builder.enable_all().build()?)
    })
}

/// Lets this thread ask the stores on servers. `None` if there are none.
pub(crate) fn enter() -> Option<EnterGuard<'static>> {
    if !IS_USED.load(Relaxed) {
        return None;
    }
    Some(runtime().ok()?.enter())
}

/// A store on a Redis server, version 6.2 or later, which all that have its address share.
///
/// `url` is `redis://host:port/` or `rediss://...`. All keys begin with `prefix`, by default
/// 'portcullis:'. A request waits at most `time_limit` seconds for the server, by default 0.25.
/// `when_down` says what happens while the server has no answer: 'deny' answers 503, 'allow' lets
/// all requests pass, and a share such as '1/4' lets each process grant that part of each limit.
#[pyclass(frozen, module = "portcullis")]
pub(crate) struct RedisStore {
    settings: RedisSettings,
    when_down: OnFailure,
    opened: PerProcess<Arc<dyn CounterStore>>,
}

impl RedisStore {
    fn connection(&self) -> PyResult<RedisCounters> {
        let opened = RedisCounters::new(&self.settings);
        opened.map_err(|error| {
            PyValueError::new_err(format!(
                "url: expected an address such as 'redis://127.0.0.1:6379/': {error}"
            ))
        })
    }

    /// The store without a connection: it says which limits it can keep.
    fn unconnected(&self) -> PyResult<Arc<dyn CounterStore>> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let _runtime = runtime.enter();
        Ok(Arc::new(self.connection()?))
    }

    fn open(&self) -> PyResult<Arc<dyn CounterStore>> {
        let open = || {
            let _runtime = runtime()?.enter();
            let guard = GuardSettings::new(self.when_down);
            let store = GuardedStore::new(self.connection()?, MonotonicClock::new(), guard);
            Ok(Arc::new(store) as Arc<dyn CounterStore>)
        };
        self.opened.get(open).map(Arc::clone)
    }
}

fn when_down(text: &str) -> PyResult<OnFailure> {
    let share = || {
        let (part, whole) = text.split_once('/')?;
        let (part, whole) = (part.parse().ok()?, whole.parse().ok()?);
        (0 < part && part <= whole).then_some(OnFailure::Share { part, whole })
    };
    let found = match text {
        "deny" => Some(OnFailure::Fail),
        "allow" => Some(OnFailure::Allow),
        _ => share(),
    };
    found.ok_or_else(|| {
        PyValueError::new_err(format!(
            "when_down: {text:?} is not 'deny', 'allow' or a share such as '1/4'"
        ))
    })
}

#[pymethods]
impl RedisStore {
    #[new]
    #[pyo3(signature = (url, *, prefix=None, time_limit=None, when_down="deny"))]
    fn new(
        url: &str,
        prefix: Option<&str>,
        time_limit: Option<f64>,
        when_down: &str,
    ) -> PyResult<Self> {
        let mut settings = RedisSettings::new(url);
        if let Some(prefix) = prefix {
            settings = settings.prefix(prefix);
        }
        if let Some(limit) = time_limit {
            let limit = seconds_of(Some(limit), "time_limit")?;
            let limit = limit.filter(|limit| (MIN_LIMIT..=MAX_LIMIT).contains(limit));
            let limit = limit.ok_or_else(|| {
                PyValueError::new_err("time_limit must be from 0.001 to 3600 seconds")
            })?;
            settings = settings.time_limit(limit);
        }
        let store = Self {
            settings,
            when_down: self::when_down(when_down)?,
            opened: PerProcess::new(),
        };
        store.unconnected()?;
        Ok(store)
    }
}

const MIN_LIMIT: Duration = Duration::from_millis(1);
const MAX_LIMIT: Duration = Duration::from_hours(1);

/// A store in memory that all processes of this host share by its name. Linux.
///
/// It has room for the limits of `ids` keys, with sliding windows of up to 8 segments.
#[cfg(target_os = "linux")]
#[pyclass(frozen, module = "portcullis")]
pub(crate) struct SharedStore {
    name: String,
    ids: usize,
    opened: PerProcess<Arc<dyn CounterStore>>,
}

#[cfg(target_os = "linux")]
impl SharedStore {
    fn open(&self) -> PyResult<Arc<dyn CounterStore>> {
        let open = || {
            let file = SharedFile::named(&self.name);
            let segments = crate::settings::SEGMENTS as u32;
            let store = file.and_then(|file| SharedCounters::open(&file, self.ids, segments));
            let store = store.map_err(|error| shared_file::failed(&error))?;
            Ok(Arc::new(store) as Arc<dyn CounterStore>)
        };
        self.opened.get(open).map(Arc::clone)
    }
}

/// The ids of a store unless they are given.
#[cfg(target_os = "linux")]
const IDS: u64 = 10_000;

/// The most ids of a store: 15 GB.
#[cfg(target_os = "linux")]
const MOST_IDS: u64 = 100_000_000;

#[cfg(target_os = "linux")]
#[pymethods]
impl SharedStore {
    #[new]
    #[pyo3(signature = (name, *, ids=None), text_signature = "(name, *, ids=10000)")]
    fn new(name: &str, ids: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let ids = ids.map_or(Ok(IDS), |ids| whole(ids, "ids", 1..=MOST_IDS))?;
        let store = Self {
            name: name.to_owned(),
            ids: ids as usize,
            opened: PerProcess::new(),
        };
        // It is open from now on, although no request was made.
        store.open()?;
        Ok(store)
    }
}

/// The stores of a policy, by the names that rules have for them.
pub(crate) struct NamedStores(Vec<(String, AnyStore)>);

enum AnyStore {
    Redis(Py<RedisStore>),
    #[cfg(target_os = "linux")]
    Shared(Py<SharedStore>),
}

impl NamedStores {
    pub(crate) fn of(named: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let mut stores = Vec::new();
        for (name, store) in named.into_iter().flatten() {
            stores.push((name.extract()?, AnyStore::of(&store)?));
        }
        Ok(Self(stores))
    }

    /// Opens the stores for this process. If they are not to be asked, nothing is connected.
    pub(crate) fn open(&self, is_asked: bool) -> PyResult<Stores> {
        self.0
            .iter()
            .try_fold(Stores::new(), |stores, (name, store)| {
                let store = match store {
                    AnyStore::Redis(store) if is_asked => store.get().open()?,
                    AnyStore::Redis(store) => store.get().unconnected()?,
                    #[cfg(target_os = "linux")]
                    AnyStore::Shared(store) => store.get().open()?,
                };
                Ok(stores.with(name, store))
            })
    }
}

impl AnyStore {
    fn of(store: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(store) = store.cast::<RedisStore>() {
            return Ok(Self::Redis(store.clone().unbind()));
        }
        #[cfg(target_os = "linux")]
        if let Ok(store) = store.cast::<SharedStore>() {
            return Ok(Self::Shared(store.clone().unbind()));
        }
        Err(PyTypeError::new_err(format!(
            "stores: expected a RedisStore or a SharedStore, not {}",
            store.get_type().name()?
        )))
    }
}
