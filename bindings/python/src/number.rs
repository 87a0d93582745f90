//! Numbers that callers pass, with errors that name them.

use core::ops::RangeInclusive;
use core::time::Duration;

use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;

/// Reads a whole number in `range`, which is that of the argument `name`.
pub(crate) fn whole(
    value: &Bound<'_, PyAny>,
    name: &str,
    range: RangeInclusive<u64>,
) -> PyResult<u64> {
    match value.extract::<u64>() {
        Ok(number) if range.contains(&number) => Ok(number),
        Err(error) if error.is_instance_of::<PyTypeError>(value.py()) => {
            let kind = value.get_type();
            let kind = kind.name()?;
            Err(PyTypeError::new_err(format!(
                "{name} must be an int, not {kind}"
            )))
        }
        Err(error) if !error.is_instance_of::<PyOverflowError>(value.py()) => Err(error),
        _ => Err(PyValueError::new_err(format!(
            "{name} must be from {} to {}",
            range.start(),
            range.end()
        ))),
    }
}

/// As `whole`, for a number that fits 32 bits.
pub(crate) fn whole_u32(
    value: &Bound<'_, PyAny>,
    name: &str,
    range: RangeInclusive<u32>,
) -> PyResult<u32> {
    let (least, most) = range.into_inner();
    let number = whole(value, name, least.into()..=most.into())?;
    // It is in the range.
    Ok(u32::try_from(number).unwrap_or(most))
}

/// As `whole`, for a number that may be missing.
pub(crate) fn optional(
    value: Option<&Bound<'_, PyAny>>,
    name: &str,
    range: RangeInclusive<u64>,
) -> PyResult<Option<u64>> {
    value.map(|value| whole(value, name, range)).transpose()
}

/// Reads a span of time in seconds, which is the argument `name`; `None` is any time.
pub(crate) fn seconds_of(seconds: Option<f64>, name: &str) -> PyResult<Option<Duration>> {
    let Some(seconds) = seconds else {
        return Ok(None);
    };
    if seconds.is_nan() || seconds < 0.0 {
        return Err(PyValueError::new_err(format!(
            "{name} must be a number of seconds, not negative"
        )));
    }
    // A longer one than can be told is as good as none.
    Ok(Duration::try_from_secs_f64(seconds).ok())
}

/// The number of permits that a call asks for: 1 unless it is given.
#[derive(Clone, Copy)]
pub(crate) struct Permits(pub(crate) u32);

impl Permits {
    pub(crate) const ONE: Self = Self(1);
}

impl<'a, 'py> FromPyObject<'a, 'py> for Permits {
    type Error = PyErr;

    #[inline]
    fn extract(value: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        match value.extract::<u32>() {
            Ok(permits) => Ok(Self(permits)),
            // The error names the argument.
            Err(_) => whole_u32(&value, "permits", 0..=u32::MAX).map(Self),
        }
    }
}
