//! Limits as text: `10/s`, `5 per minute`, `100/15min`.
//!
//! The grammar is that of the package `limits` and of those that use it (slowapi, Flask-Limiter),
//! for one limit, with the units of policy files as well:
//!
//! ```text
//! limit = count ("/" | "per") [multiple] unit
//! unit  = "ms" | "s" | "sec" | "second" | ... | "d" | "day"; each word also with an "s"
//! ```

use core::time::Duration;

use pyo3::PyResult;
use pyo3::exceptions::PyValueError;

/// What a limit as text says: so many permits per period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rate {
    pub(crate) count: u32,
    pub(crate) period: Duration,
    /// As it was written.
    pub(crate) text: String,
}

const UNITS: [(&[&str], u64); 5] = [
    (&["ms", "millisecond", "milliseconds"], 1),
    (&["s", "sec", "secs", "second", "seconds"], 1_000),
    (&["m", "min", "mins", "minute", "minutes"], 60_000),
    (&["h", "hr", "hrs", "hour", "hours"], 3_600_000),
    (&["d", "day", "days"], 86_400_000),
];

impl Rate {
    pub(crate) fn parse(text: &str) -> PyResult<Self> {
        read(text).map_err(|problem| PyValueError::new_err(format!("rate {text:?}: {problem}")))
    }
}

fn read(text: &str) -> Result<Rate, &'static str> {
    const FORM: &str = "expected a number per unit of time, such as '10/s' or '5 per 2 minutes'";
    let lower = text.trim().to_ascii_lowercase();
    let (count, period) = lower
        .split_once('/')
        .or_else(|| lower.split_once(" per "))
        .ok_or(FORM)?;
    let count = number(count)?.ok_or(FORM)?;
    let unit = period
        .trim()
        .trim_start_matches(|c: char| c.is_ascii_digit());
    let multiple = number(&period.trim()[..period.trim().len() - unit.len()])?.unwrap_or(1);
    let unit = unit.trim();
    let (_, millis) = UNITS
        .iter()
        .find(|(names, _)| names.contains(&unit))
        .ok_or("the unit of time is not one of ms, s, min, h and d, or a word such as 'minute'")?;
    if count == 0 || multiple == 0 {
        return Err("the numbers must be at least 1");
    }
    Ok(Rate {
        count,
        period: Duration::from_millis(millis * u64::from(multiple)),
        text: text.trim().to_owned(),
    })
}

/// Returns the number that `digits` are, and `None` if there are none.
fn number(digits: &str) -> Result<Option<u32>, &'static str> {
    let digits = digits.trim();
    if digits.is_empty() {
        return Ok(None);
    }
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("the number must be of digits only");
    }
    let number = digits
        .parse()
        .map_err(|_| "a number is larger than 4294967295")?;
    Ok(Some(number))
}
