//! The classes of limits.

use core::hash::{Hash, Hasher};
use std::hash::DefaultHasher;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::acquire::{Acquire, Asked};
use crate::door::Door;
use crate::errors;
use crate::event_loop::waking;
use crate::forked::PerProcess;
use crate::key::Key;
use crate::lease::Lease;
use crate::number::{Permits, optional, seconds_of, whole_u32};
use crate::rate::Rate;
use crate::settings::{Opened, SEGMENTS, Settings};

/// A limit that is asked: what the two classes have in common.
pub(crate) struct Limit {
    pub(crate) settings: Settings,
    opened: Opened,
    is_held: bool,
    door: PerProcess<Box<dyn Door>>,
}

/// How many permits of waiting requests a limit has room for.
fn room(max_waiting: Option<&Bound<'_, PyAny>>) -> PyResult<u64> {
    let room = optional(max_waiting, "max_waiting", 0..=u64::MAX)?;
    Ok(room.unwrap_or(u64::MAX))
}

impl Limit {
    fn new(settings: Settings, opened: Opened) -> Self {
        Self {
            is_held: settings.is_held(),
            settings,
            opened,
            door: PerProcess::new(),
        }
    }

    /// Returns what this process asks.
    #[inline]
    fn door(&self) -> PyResult<&dyn Door> {
        let door = self.door.get(&self.opened)?;
        Ok(&**door)
    }

    #[inline]
    fn allow(&self, key: &Key, permits: Permits) -> PyResult<bool> {
        if self.is_held {
            return Err(PyTypeError::new_err(
                "permits of a Concurrency must be held: use try_acquire() or acquire()",
            ));
        }
        match self.door()?.allow(key, permits.0) {
            Ok(()) => Ok(true),
            Err(denied) => errors::of_denial(denied).map_or(Ok(false), Err),
        }
    }

    fn try_acquire(&self, key: &Key, permits: Permits) -> PyResult<Option<Lease>> {
        match self.door()?.try_acquire(key, permits.0) {
            Ok(held) => Ok(Some(Lease::new(held, self.is_held))),
            Err(denied) => errors::of_denial(denied).map_or(Ok(None), Err),
        }
    }

    fn acquire(&self, key: &Key, permits: Permits, timeout: Option<f64>) -> PyResult<Acquire> {
        let timeout = seconds_of(timeout, "timeout")?;
        let wait = self.door()?.acquire(key, permits.0, timeout);
        let is_held = self.is_held;
        Ok(Acquire::new(
            wait,
            self.line(key),
            Asked::Permits { is_held },
        ))
    }

    /// Identifies the line of a key, or of the limiter, in this process.
    fn line(&self, key: &Key) -> u64 {
        let mut hasher = DefaultHasher::new();
        (core::ptr::from_ref(self).addr(), key).hash(&mut hasher);
        hasher.finish()
    }

    fn retry_after(&self, key: &Key, permits: Permits) -> PyResult<f64> {
        let wait = self.door()?.wait(key, permits.0);
        Ok(wait.map_or(f64::INFINITY, |wait| wait.as_secs_f64()))
    }
}

/// A limit. Use one of its classes: `TokenBucket`, `FixedWindow`, `SlidingWindow`, `Concurrency`
/// and `AllOf`.
#[pyclass(frozen, subclass, module = "portcullis")]
pub(crate) struct Limiter {
    pub(crate) limit: Limit,
    max_waiting: u64,
}

impl Limiter {
    fn new(settings: Settings, max_waiting: u64) -> PyResult<Self> {
        let opened = settings.open(max_waiting)?;
        Ok(Self {
            limit: Limit::new(settings, opened),
            max_waiting,
        })
    }
}

/// A single limiter has one key, which it ignores.
const NO_KEY: Key = Key::Hashed(0);

#[pymethods]
impl Limiter {
    /// Takes permits that return by time, if they are available now.
    ///
    /// Returns False if they are not. Raises `ValueError` if the limit never has so many, and
    /// `TypeError` for a Concurrency, whose permits must be held.
    #[pyo3(signature = (permits=Permits::ONE), text_signature = "($self, permits=1)")]
    fn allow(&self, permits: Permits) -> PyResult<bool> {
        self.limit.allow(&NO_KEY, permits)
    }

    /// Takes permits if they are available now and no request waits for them.
    ///
    /// Returns a Lease, or None. Raises `ValueError` if the limit never has so many.
    #[pyo3(signature = (permits=Permits::ONE), text_signature = "($self, permits=1)")]
    fn try_acquire(&self, permits: Permits) -> PyResult<Option<Lease>> {
        self.limit.try_acquire(&NO_KEY, permits)
    }

    /// Returns a request that waits for permits, at most for `timeout` seconds.
    ///
    /// `async with limiter.acquire():` and `await limiter.acquire()` wait in a task of asyncio,
    /// `with limiter.acquire():` and `limiter.acquire().block()` in a thread. All of them wait in
    /// one queue, and are served in order. Raises `AcquireTimeout` if the permits do not come in
    /// time, as soon as that is known, and Rejected if too many requests wait.
    #[pyo3(
        signature = (permits=Permits::ONE, timeout=None),
        text_signature = "($self, permits=1, timeout=None)"
    )]
    fn acquire(&self, permits: Permits, timeout: Option<f64>) -> PyResult<Acquire> {
        self.limit.acquire(&NO_KEY, permits, timeout)
    }

    /// Returns the number of permits that are available now.
    fn available(&self) -> PyResult<u64> {
        Ok(self.limit.door()?.available(&NO_KEY))
    }

    /// Returns in how many seconds the permits could be granted: 0.0 now, and inf if that does not
    /// depend on time.
    #[pyo3(signature = (permits=Permits::ONE), text_signature = "($self, permits=1)")]
    fn retry_after(&self, permits: Permits) -> PyResult<f64> {
        self.limit.retry_after(&NO_KEY, permits)
    }

    /// Returns how many requests wait.
    fn waiting(&self) -> PyResult<u32> {
        Ok(self.limit.door()?.waiting())
    }

    /// Rejects all requests that wait, and all later ones.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let door = self.limit.door()?;
        waking(py, || door.close());
        Ok(())
    }

    fn __repr__(&self) -> String {
        self.limit.settings.to_string()
    }
}

/// A subclass without state of its own.
macro_rules! class {
    ($(#[$documentation:meta])* $name:ident) => {
        $(#[$documentation])*
        #[pyclass(frozen, extends = Limiter, module = "portcullis")]
        pub(crate) struct $name;

        impl $name {
            fn of(
                settings: Settings,
                max_waiting: Option<&Bound<'_, PyAny>>,
            ) -> PyResult<PyClassInitializer<Self>> {
                let limiter = Limiter::new(settings, room(max_waiting)?)?;
                Ok(PyClassInitializer::from(limiter).add_subclass(Self))
            }
        }
    };
}

class! {
    /// At most `burst + rate * t` permits in any time span `t`. A burst is the number of the rate
    /// unless it is given: '10/s' allows 10 at once.
    TokenBucket
}

#[pymethods]
impl TokenBucket {
    #[new]
    #[pyo3(signature = (rate, *, burst=None, max_waiting=None))]
    fn new(
        rate: &str,
        burst: Option<&Bound<'_, PyAny>>,
        max_waiting: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let rate = Rate::parse(rate)?;
        let burst = optional(burst, "burst", 1..=u32::MAX.into())?;
        let burst = burst.unwrap_or(rate.count.into());
        Self::of(Settings::TokenBucket { rate, burst }, max_waiting)
    }
}

class! {
    /// At most so many permits in each window: '100/min' allows 100 in each minute since the start
    /// of the clock, and up to 200 around the edge of two.
    FixedWindow
}

#[pymethods]
impl FixedWindow {
    #[new]
    #[pyo3(signature = (rate, *, max_waiting=None))]
    fn new(
        rate: &str,
        max_waiting: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let rate = Rate::parse(rate)?;
        Self::of(Settings::FixedWindow { rate }, max_waiting)
    }
}

class! {
    /// At most so many permits in any `segments` successive segments of a window: 1 to 8.
    SlidingWindow
}

#[pymethods]
impl SlidingWindow {
    #[new]
    #[pyo3(
        signature = (rate, *, segments=None, max_waiting=None),
        text_signature = "(rate, *, segments=8, max_waiting=None)"
    )]
    fn new(
        rate: &str,
        segments: Option<&Bound<'_, PyAny>>,
        max_waiting: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let rate = Rate::parse(rate)?;
        let segments = optional(segments, "segments", 1..=SEGMENTS as u64)?;
        let segments = segments.map_or(SEGMENTS as u32, |segments| segments as u32);
        Self::of(Settings::SlidingWindow { rate, segments }, max_waiting)
    }
}

class! {
    /// At most `limit` permits in use at once: until their leases are released.
    Concurrency
}

#[pymethods]
impl Concurrency {
    #[new]
    #[pyo3(signature = (limit, *, max_waiting=None))]
    fn new(
        limit: &Bound<'_, PyAny>,
        max_waiting: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let limit = whole_u32(limit, "limit", 1..=MOST_AT_ONCE)?;
        Self::of(Settings::Concurrency { limit }, max_waiting)
    }
}

class! {
    /// Several limits as one: a request takes from all of them or from none. The limits give their
    /// settings only: they are not asked by themselves, and what is taken from them does not count.
    AllOf
}

#[pymethods]
impl AllOf {
    #[new]
    #[pyo3(signature = (*limits, max_waiting=None))]
    fn new(
        limits: &Bound<'_, PyTuple>,
        max_waiting: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let settings = limits.iter().map(|limit| match limit.cast::<Limiter>() {
            Ok(limiter) => Ok(limiter.get().limit.settings.clone()),
            Err(_) => Err(PyTypeError::new_err(format!(
                "AllOf takes limits, such as a TokenBucket, not {}",
                limit.get_type().name()?
            ))),
        });
        let settings = settings.collect::<PyResult<Vec<_>>>()?;
        Self::of(Settings::all_of(settings)?, max_waiting)
    }
}

/// A limit for each key: an address, a user, a tenant. A key is str, bytes or int. The table has
/// room for `keys` keys with permits in use; the memory is fixed.
#[pyclass(frozen, module = "portcullis")]
pub(crate) struct Keyed {
    pub(crate) limit: Limit,
    keys: usize,
    max_waiting: u64,
    /// The name by which processes share it.
    shared: Option<String>,
}

/// The most permits of a concurrency limit.
const MOST_AT_ONCE: u32 = (1 << 30) - 1;

/// The most keys of a table: 4.3 GB.
const MOST_KEYS: u64 = 100_000_000;

/// The keys of a table unless they are given.
const KEYS: u64 = 10_000;

impl Keyed {
    #[inline]
    fn key(&self, key: &Bound<'_, PyAny>) -> PyResult<Key> {
        if self.shared.is_some() {
            Key::shared(key)
        } else {
            Key::local(key)
        }
    }
}

#[pymethods]
impl Keyed {
    #[new]
    #[pyo3(
        signature = (limit, *, keys=None, max_waiting=None),
        text_signature = "(limit, *, keys=10000, max_waiting=None)"
    )]
    fn new(
        limit: &Bound<'_, PyAny>,
        keys: Option<&Bound<'_, PyAny>>,
        max_waiting: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let Ok(of_one) = limit.cast::<Limiter>() else {
            return Err(PyTypeError::new_err(format!(
                "Keyed takes a limit, such as a TokenBucket, not {}",
                limit.get_type().name()?
            )));
        };
        let keys = optional(keys, "keys", 1..=MOST_KEYS)?.unwrap_or(KEYS) as usize;
        let max_waiting = room(max_waiting)?;
        let settings = of_one.get().limit.settings.clone();
        let opened = settings.open_for_keys(keys, max_waiting)?;
        Ok(Self {
            limit: Limit::new(settings, opened),
            keys,
            max_waiting,
            shared: None,
        })
    }

    /// As `Limiter.allow`, for a key.
    #[pyo3(signature = (key, permits=Permits::ONE), text_signature = "($self, key, permits=1)")]
    fn allow(&self, key: &Bound<'_, PyAny>, permits: Permits) -> PyResult<bool> {
        self.limit.allow(&self.key(key)?, permits)
    }

    /// As `Limiter.try_acquire`, for a key.
    #[pyo3(signature = (key, permits=Permits::ONE), text_signature = "($self, key, permits=1)")]
    fn try_acquire(&self, key: &Bound<'_, PyAny>, permits: Permits) -> PyResult<Option<Lease>> {
        self.limit.try_acquire(&self.key(key)?, permits)
    }

    /// As `Limiter.acquire`, for a key. The requests of each key are served in order.
    #[pyo3(
        signature = (key, permits=Permits::ONE, timeout=None),
        text_signature = "($self, key, permits=1, timeout=None)"
    )]
    fn acquire(
        &self,
        key: &Bound<'_, PyAny>,
        permits: Permits,
        timeout: Option<f64>,
    ) -> PyResult<Acquire> {
        self.limit.acquire(&self.key(key)?, permits, timeout)
    }

    /// As `Limiter.available`, for a key.
    fn available(&self, key: &Bound<'_, PyAny>) -> PyResult<u64> {
        Ok(self.limit.door()?.available(&self.key(key)?))
    }

    /// As `Limiter.retry_after`, for a key.
    #[pyo3(signature = (key, permits=Permits::ONE), text_signature = "($self, key, permits=1)")]
    fn retry_after(&self, key: &Bound<'_, PyAny>, permits: Permits) -> PyResult<f64> {
        self.limit.retry_after(&self.key(key)?, permits)
    }

    /// Returns how many requests wait, for any key.
    fn waiting(&self) -> PyResult<u32> {
        Ok(self.limit.door()?.waiting())
    }

    /// Rejects all requests that wait, and all later ones.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let door = self.limit.door()?;
        waking(py, || door.close());
        Ok(())
    }

    fn __repr__(&self) -> String {
        let keyed = format!("Keyed({}, keys={})", self.limit.settings, self.keys);
        match &self.shared {
            Some(name) => format!("shared('{name}', {keyed})"),
            None => keyed,
        }
    }
}

/// Returns a limit that all processes of this host share by its name. Linux.
///
/// All of them must give the same settings. `limit` gives its settings only.
#[cfg(target_os = "linux")]
#[pyfunction]
pub(crate) fn shared(py: Python<'_>, name: &str, limit: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
    if let Ok(keyed) = limit.cast::<Keyed>() {
        let keyed = keyed.get();
        let settings = keyed.limit.settings.clone();
        let opened = settings.open_for_keys_of_host(name, keyed.keys, keyed.max_waiting)?;
        let shared = Keyed {
            limit: Limit::new(settings, opened),
            shared: Some(name.to_owned()),
            ..*keyed
        };
        return Ok(Py::new(py, shared)?.into_any());
    }
    let Ok(limiter) = limit.cast::<Limiter>() else {
        return Err(PyTypeError::new_err(format!(
            "shared takes a limit, such as a TokenBucket, or a Keyed, not {}",
            limit.get_type().name()?
        )));
    };
    let limiter = limiter.get();
    let settings = Settings::Shared {
        name: name.to_owned(),
        limit: Box::new(limiter.limit.settings.clone()),
    };
    let shared = Limiter::new(settings, limiter.max_waiting)?;
    // It is open from now on, although no request was made.
    shared.limit.door()?;
    Ok(Py::new(py, shared)?.into_any())
}
