//! The exceptions, which are classes of Python: `portcullis._errors`.

use core::time::Duration;

use portcullis_async::Rejected;
use portcullis_core::{Clock, Denied, MonotonicClock, Retry};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

const MODULE: &str = "portcullis._errors";

/// Returns what a denial means to a caller that does not wait: `None` if the permits are not
/// available now, and otherwise why no retry can help.
pub(crate) fn of_denial(denied: Denied) -> Option<PyErr> {
    match denied {
        Denied::ExceedsCapacity { permits, capacity } => Some(exceeds(permits, capacity)),
        Denied::Closed { .. } => Some(PyRuntimeError::new_err("the limiter is closed")),
        _ => None,
    }
}

fn exceeds(permits: u32, capacity: u32) -> PyErr {
    PyValueError::new_err(format!(
        "{permits} permits are more than the limit ever has: at most {capacity}"
    ))
}

/// Seconds until a retry can succeed. `None`: it depends on no time.
fn seconds(retry: Retry) -> Option<f64> {
    let wait = retry.wait_from(MonotonicClock::new().now());
    wait.as_ref().map(Duration::as_secs_f64)
}

/// Returns the exception for a request that waited in vain.
pub(crate) fn of_rejection(py: Python<'_>, rejected: Rejected) -> PyErr {
    let (class, reason) = match rejected {
        Rejected::ExceedsCapacity { permits, capacity } => return exceeds(permits, capacity),
        Rejected::Deadline { .. } => ("AcquireTimeout", "the permits do not come in time"),
        Rejected::QueueFull { .. } | Rejected::Refused { .. } => {
            ("Rejected", "too many requests wait")
        }
        Rejected::Closed { .. } => ("Rejected", "the limiter is closed"),
        _ => ("Rejected", "the limiter rejects the request"),
    };
    let new = || {
        py.import(MODULE)?
            .getattr(class)?
            .call1((reason, seconds(rejected.retry())))
    };
    match new() {
        Ok(error) => PyErr::from_value(error),
        Err(error) => error,
    }
}
