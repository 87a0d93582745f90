//! The exceptions, which are classes of Python: `portcullis._errors`.

use core::time::Duration;

use portcullis_async::Rejected;
use portcullis_core::builder::Setting;
use portcullis_core::{Clock, Denied, MonotonicClock, Retry, SettingsError};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

const MODULE: &str = "portcullis._errors";

const CLOSED: &str = "the limiter is closed, or the file that processes share is damaged";

/// Returns what a denial means to a caller that does not wait: `None` if the permits are not
/// available now, and otherwise why no retry can help.
pub(crate) fn of_denial(denied: Denied) -> Option<PyErr> {
    match denied {
        Denied::ExceedsCapacity { permits, capacity } => Some(exceeds(permits, capacity)),
        Denied::Closed { .. } => Some(PyRuntimeError::new_err(CLOSED)),
        _ => None,
    }
}

fn exceeds(permits: u32, capacity: u32) -> PyErr {
    PyValueError::new_err(format!(
        "{permits} permits are more than the limit ever has: at most {capacity}"
    ))
}

/// Names the argument that a setting is.
pub(crate) fn refused(error: SettingsError) -> PyErr {
    let text = match error {
        SettingsError::Zero { setting } => format!("{} must be at least 1", argument(setting)),
        SettingsError::TooLarge { setting, max } => {
            format!("{} must be at most {max}", argument(setting))
        }
        other => other.to_string(),
    };
    PyValueError::new_err(text)
}

const fn argument(setting: Setting) -> &'static str {
    match setting {
        Setting::Burst => "burst (the number of the rate, unless it is given)",
        Setting::Limit => "the limit",
        Setting::Segments => "segments",
        Setting::Limits => "the number of limits",
        _ => "a number of the rate",
    }
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
        Rejected::Closed { .. } => ("Rejected", CLOSED),
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

/// Returns the exception for what is no request of HTTP.
pub(crate) fn invalid(py: Python<'_>, problem: &str) -> PyErr {
    let new = || {
        let class = py.import(MODULE)?.getattr("InvalidRequest")?;
        class.call1((problem,))
    };
    match new() {
        Ok(error) => PyErr::from_value(error),
        Err(error) => error,
    }
}
