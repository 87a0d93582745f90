//! Limits that all processes of a host share, in files of memory. Linux.

use std::io::ErrorKind;
use std::sync::Arc;

use portcullis_core::Limiter;
use portcullis_shm::{OpenError, SharedFile};
use pyo3::exceptions::{PyOSError, PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::settings::{AnyLimiter, Opened, PARTS, Settings, all_of, each, one, refused};

/// What went wrong with the file, as Python would say it.
fn failed(error: &OpenError) -> PyErr {
    match error {
        OpenError::Settings(error) => refused(*error),
        OpenError::Name { .. } | OpenError::OtherSettings { .. } => {
            PyValueError::new_err(error.to_string())
        }
        OpenError::System { error: cause, .. } => {
            // With the number, Python chooses the class: `FileNotFoundError`, for example.
            PyOSError::new_err((cause.raw_os_error(), error.to_string()))
        }
        _ => PyOSError::new_err(error.to_string()),
    }
}

/// Opens a limit.
pub(crate) fn open(settings: &Settings, name: &str, max_waiting: u64) -> PyResult<Opened> {
    let (of, name) = (settings.clone(), name.to_owned());
    let make = move || limiter(&of, &name).map(Arc::from);
    settings.opened(make, one::<dyn Limiter + Send + Sync, true>(max_waiting))
}

fn limiter(settings: &Settings, name: &str) -> PyResult<AnyLimiter> {
    let file = || SharedFile::named(name).map_err(|error| failed(&error));
    Ok(match settings {
        Settings::TokenBucket { rate, burst } => {
            let bucket = Settings::bucket(rate, *burst)?;
            Box::new(file()?.limiter(bucket).map_err(|error| failed(&error))?)
        }
        Settings::FixedWindow { rate } => {
            let window = Settings::window(rate)?;
            Box::new(file()?.limiter(window).map_err(|error| failed(&error))?)
        }
        Settings::Concurrency { limit } => Box::new(
            file()?
                .concurrency(*limit, None)
                .map_err(|error| failed(&error))?,
        ),
        // Each limit has a file.
        Settings::AllOf(parts) => {
            let numbered = parts.iter().enumerate();
            let parts = numbered.map(|(index, part)| limiter(part, &format!("{name}.{index}")));
            all_of(parts.collect::<PyResult<_>>()?)?
        }
        Settings::SlidingWindow { .. } => {
            return Err(PyTypeError::new_err(
                "processes can share a TokenBucket, a FixedWindow, a Concurrency, or an AllOf of \
                 these",
            ));
        }
    })
}

/// Opens limits for each key.
pub(crate) fn open_for_keys(
    settings: &Settings,
    name: &str,
    keys: usize,
    max_waiting: u64,
) -> PyResult<Opened> {
    let name = name.to_owned();
    let file = move || SharedFile::named(&name).map_err(|error| failed(&error));
    match settings.clone() {
        Settings::TokenBucket { rate, burst } => {
            let make = move || {
                let table = file()?.table(Settings::bucket(&rate, burst)?, keys);
                table.map(Arc::new).map_err(|error| failed(&error))
            };
            settings.opened(make, each::<_, true>(max_waiting))
        }
        Settings::FixedWindow { rate } => {
            let make = move || {
                let table = file()?.table(Settings::window(&rate)?, keys);
                table.map(Arc::new).map_err(|error| failed(&error))
            };
            settings.opened(make, each::<_, true>(max_waiting))
        }
        _ => Err(PyTypeError::new_err(
            "processes can share a TokenBucket or a FixedWindow for each key",
        )),
    }
}

/// Removes the files of a limit, if no process uses them.
#[pyfunction]
pub(crate) fn remove_shared(name: &str) -> PyResult<()> {
    let remove = |name: &str| SharedFile::named(name).and_then(|file| file.remove());
    // Those of an `AllOf`, which are numbered from 0.
    let mut parts = 0;
    while parts < PARTS && remove_if_there(remove(&format!("{name}.{parts}")))? {
        parts += 1;
    }
    match remove(name) {
        Err(error) if parts == 0 || !is_missing(&error) => Err(failed(&error)),
        _ => Ok(()),
    }
}

fn is_missing(error: &OpenError) -> bool {
    matches!(error, OpenError::System { error, .. } if error.kind() == ErrorKind::NotFound)
}

/// Returns whether the file was there.
fn remove_if_there(removed: Result<(), OpenError>) -> PyResult<bool> {
    match removed {
        Ok(()) => Ok(true),
        Err(error) if is_missing(&error) => Ok(false),
        Err(error) => Err(failed(&error)),
    }
}
