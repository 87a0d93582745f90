//! Periods as text: `s`, `10s`, `500ms`, `1m`, `1h`, `7d`.

use core::fmt;
use core::time::Duration;

/// Parses a period: a unit, or a whole number and a unit. Units are `ms`, `s`, `m`, `h` and `d`.
///
/// # Errors
///
/// [`PeriodError`] if the text has another form, or the period is too long.
///
/// ```
/// use core::time::Duration;
/// use portcullis_policy::{PeriodError, parse_period};
/// assert_eq!(parse_period("5m"), Ok(Duration::from_secs(300)));
/// assert_eq!(parse_period("ms"), Ok(Duration::from_millis(1)));
/// assert_eq!(parse_period("1.5s"), Err(PeriodError::Form));
/// ```
pub fn parse_period(text: &str) -> Result<Duration, PeriodError> {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let count = match &text[..text.len() - unit.len()] {
        "" => 1,
        digits => parse_count(digits)?,
    };
    let millis: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(PeriodError::Form),
    };
    let millis = count.checked_mul(millis).ok_or(PeriodError::TooLong)?;
    Ok(Duration::from_millis(millis))
}

/// Returns a period as [`parse_period`] reads it, in the largest unit that fits. One that is not a
/// whole number of milliseconds is shown as Rust does.
///
/// ```
/// use core::time::Duration;
/// use portcullis_policy::period_text;
/// assert_eq!(period_text(Duration::from_secs(60)), "m");
/// assert_eq!(period_text(Duration::from_secs(90)), "90s");
/// assert_eq!(period_text(Duration::from_nanos(1_500)), "1.5µs");
/// ```
pub fn period_text(period: Duration) -> String {
    let nanos = period.as_nanos();
    let units = [
        ("d", 86_400_000_000_000),
        ("h", 3_600_000_000_000),
        ("m", 60_000_000_000),
        ("s", 1_000_000_000),
        ("ms", 1_000_000),
    ];
    let unit = units
        .into_iter()
        .find(|(_, unit)| nanos.is_multiple_of(*unit));
    match unit {
        Some((unit, length)) if nanos == length => unit.into(),
        Some((unit, length)) if nanos > 0 => format!("{}{unit}", nanos / length),
        _ => format!("{period:?}"),
    }
}

/// Parses a number that consists of digits only.
///
/// # Errors
///
/// [`PeriodError`] if the text has another form, or the number does not fit 64 bits.
///
/// ```
/// use portcullis_policy::{PeriodError, parse_count};
/// assert_eq!(parse_count("60"), Ok(60));
/// assert_eq!(parse_count("+60"), Err(PeriodError::Form));
/// ```
pub fn parse_count(digits: &str) -> Result<u64, PeriodError> {
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(PeriodError::Form);
    }
    digits.parse().map_err(|_| PeriodError::TooLarge)
}

/// Why a text is not a period or a number.
///
/// ```
/// use portcullis_policy::{PeriodError, parse_period};
/// assert_eq!(parse_period("999999999999999999d"), Err(PeriodError::TooLong));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PeriodError {
    /// The text is not a number of digits, or not a unit with or without such a number.
    Form,
    /// The number does not fit 64 bits.
    TooLarge,
    /// The period is longer than 2⁶⁴ ms.
    TooLong,
}

impl fmt::Display for PeriodError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Form => "expected a unit, or a whole number and a unit (units: ms, s, m, h, d)",
            Self::TooLarge => "the number is too large",
            Self::TooLong => "the period is too long",
        })
    }
}

impl core::error::Error for PeriodError {}
