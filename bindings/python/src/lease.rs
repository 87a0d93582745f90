//! Permits that were granted.

use core::ffi::CStr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyResourceWarning;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::event_loop::waking;
use crate::forked::OfProcess;
use crate::outcome::Held;

/// Permits that were granted.
///
/// Those of a `Concurrency` must be held while they are used, and released: by `with`, or by
/// `release()`. Those of other limits return by time, and releasing them has no effect.
#[pyclass(frozen, module = "portcullis")]
pub(crate) struct Lease {
    held: Mutex<Option<OfProcess<Box<dyn Held>>>>,
    /// Whether permits return by release.
    is_held: bool,
}

impl Lease {
    pub(crate) fn new(held: Box<dyn Held>, is_held: bool) -> Self {
        Self {
            held: Mutex::new(Some(OfProcess::new(held))),
            is_held,
        }
    }

    fn held(&self) -> MutexGuard<'_, Option<OfProcess<Box<dyn Held>>>> {
        // No code of Python runs under this lock.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Releases the permits.
    pub(crate) fn end(&self) {
        // Outside of the lock: a release may wake others.
        let held = self.held().take();
        drop(held);
    }
}

/// How many permits are held: none in a process that was forked since.
fn permits(held: Option<&OfProcess<Box<dyn Held>>>) -> u32 {
    held.and_then(OfProcess::get)
        .map_or(0, |held| held.permits())
}

#[pymethods]
impl Lease {
    /// The number of permits that are held.
    #[getter]
    fn permits(&self) -> u32 {
        permits(self.held().as_ref())
    }

    /// Releases the permits. A second call has no effect.
    fn release(&self, py: Python<'_>) {
        waking(py, || self.end());
    }

    /// Gives back permits that were not needed, as far as that cannot break the limit.
    ///
    /// Returns how many count as never taken. The lease holds nothing afterwards.
    fn refund(&self, py: Python<'_>) -> u32 {
        let mut held = self.held().take();
        waking(py, || {
            let held = held.as_mut().and_then(OfProcess::get_mut);
            held.map_or(0, |held| held.refund())
        })
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*exception))]
    fn __exit__(&self, exception: &Bound<'_, PyTuple>) {
        waking(exception.py(), || self.end());
    }

    fn __repr__(&self) -> String {
        format!("<Lease of {}>", self.permits())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let held = self.held().take();
        if self.is_held && permits(held.as_ref()) > 0 {
            warn::<PyResourceWarning>(
                c"a Lease was dropped and not released: hold it with 'with', or call release()",
            );
        }
        drop(held);
    }
}

/// Issues a warning of a destructor, which leaves an exception that is under way as it is.
pub(crate) fn warn<W: pyo3::PyTypeInfo>(text: &CStr) {
    Python::attach(|py| {
        let under_way = PyErr::take(py);
        if let Err(error) = PyErr::warn(py, &py.get_type::<W>(), text, 1) {
            error.write_unraisable(py, None);
        }
        if let Some(under_way) = under_way {
            under_way.restore(py);
        }
    });
}
