//! What a policy has decided about a request.

use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::event_loop::waking;
use crate::forked::OfProcess;
use crate::judge::{Held, Judged};

/// What a policy has decided about a request.
///
/// A request that is allowed holds the permits of limits at once until it is closed: by `with`, or
/// by `close()`, when its response has ended.
#[pyclass(frozen, module = "portcullis")]
pub(crate) struct Decision {
    /// Whether the request is allowed.
    #[pyo3(get)]
    allowed: bool,
    /// The status of the answer, as a number: 200 if the request is allowed, often 429 if it is
    /// denied, 503 if a store has no answer.
    #[pyo3(get)]
    status: u16,
    headers: HeaderMap,
    body: Bytes,
    held: Mutex<Option<OfProcess<Held>>>,
}

impl Decision {
    pub(crate) fn new(judged: Judged) -> Self {
        Self {
            allowed: judged.is_allowed,
            status: judged.status.as_u16(),
            headers: judged.headers,
            body: judged.body,
            held: Mutex::new(judged.held.map(OfProcess::new)),
        }
    }
}

#[pymethods]
impl Decision {
    /// Header fields, as pairs of texts: those to add to the response of an allowed request, or all
    /// of the answer to a denied one.
    #[getter]
    fn headers(&self) -> Vec<(&str, String)> {
        let text = |value: &HeaderValue| value.as_bytes().iter().map(|&b| char::from(b)).collect();
        let fields = self.headers.iter();
        fields
            .map(|(name, value)| (name.as_str(), text(value)))
            .collect()
    }

    /// The body of the answer to a denied request.
    #[getter]
    fn body<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.body)
    }

    /// Releases the permits of limits at once. A second call has no effect.
    fn close(&self, py: Python<'_>) {
        // A release may wake others, so it is done outside of the lock.
        let held = self
            .held
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        waking(py, || drop(held));
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*exception))]
    fn __exit__(&self, exception: &Bound<'_, PyTuple>) {
        self.close(exception.py());
    }

    fn __repr__(&self) -> String {
        let verb = if self.allowed { "allowed" } else { "denied" };
        format!("<Decision: {verb}, status {}>", self.status)
    }
}
