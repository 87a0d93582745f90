//! Limits that all processes of a host share, in files of memory. Linux.

use portcullis_core::keyed::{FixedWindowRules, TokenBucketRules};
use portcullis_core::{FixedWindow, TokenBucket};
use portcullis_shm::{
    OpenError, Shareable, SharedConcurrency, SharedFile, SharedLimiter, SharedTable,
};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;

use crate::errors::refused;

/// What went wrong with the file, as Python would say it.
pub(crate) fn failed(error: &OpenError) -> PyErr {
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

/// Opens a limiter.
pub(crate) fn limiter<L: Shareable>(name: &str, limiter: L) -> PyResult<SharedLimiter<L>> {
    let file = SharedFile::named(name);
    file.and_then(|file| file.limiter(limiter))
        .map_err(|error| failed(&error))
}

/// Opens a limit of permits at once.
pub(crate) fn concurrency(name: &str, limit: u32) -> PyResult<SharedConcurrency> {
    let file = SharedFile::named(name);
    file.and_then(|file| file.concurrency(limit, None))
        .map_err(|error| failed(&error))
}

/// Opens a bucket for each key.
pub(crate) fn buckets(
    name: &str,
    bucket: TokenBucket,
    keys: usize,
) -> PyResult<SharedTable<TokenBucketRules>> {
    let file = SharedFile::named(name);
    file.and_then(|file| file.table(bucket, keys))
        .map_err(|error| failed(&error))
}

/// Opens a window for each key.
pub(crate) fn windows(
    name: &str,
    window: FixedWindow,
    keys: usize,
) -> PyResult<SharedTable<FixedWindowRules>> {
    let file = SharedFile::named(name);
    file.and_then(|file| file.table(window, keys))
        .map_err(|error| failed(&error))
}

/// Removes the file of a shared limit, if no process uses it.
#[pyfunction]
pub(crate) fn remove_shared(name: &str) -> PyResult<()> {
    let file = SharedFile::named(name);
    file.and_then(|file| file.remove())
        .map_err(|error| failed(&error))
}
