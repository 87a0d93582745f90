//! Writes the fields of one generation.

use core::fmt::{self, Write};
use core::time::Duration;
use std::time::SystemTime;

use http::header::{HeaderMap, HeaderName, HeaderValue};

use super::{Quota, ResetForm, Unit, whole_seconds};

/// The largest integer of a structured field (RFC 9651, section 3.3.1).
const LARGEST: u64 = 999_999_999_999_999;

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// Which fields a server sends.
///
/// ```
/// use http::HeaderMap;
/// use portcullis_tower::fields::{Generation, Quota};
/// use std::time::{Duration, SystemTime};
///
/// let mut headers = HeaderMap::new();
/// let quota = Quota::new(100).named("burst").window(Duration::from_secs(60));
/// let quota = quota.available(50).reset(Duration::from_secs(5));
/// Generation::Draft11.write(&[quota], SystemTime::now(), &mut headers);
///
/// assert_eq!(headers["ratelimit-policy"], r#""burst";q=100;w=60"#);
/// assert_eq!(headers["ratelimit"], r#""burst";r=50;t=5"#);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Generation {
    /// No fields.
    Off,
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`, with the reset in this form.
    X(ResetForm),
    /// `RateLimit-Limit`, `-Remaining` and `-Reset`, and the windows in `RateLimit-Policy`.
    Draft6,
    /// `RateLimit: limit=100, remaining=50, reset=5`.
    Draft7,
    /// `RateLimit: "burst";r=50;t=5`, as in the revisions -08 to -11.
    #[default]
    Draft11,
    /// `RateLimit: "burst";a=50;w=5`, as proposed for the next revision.
    Next,
}

impl Generation {
    /// Writes the fields of these limits into the header, in place of fields of the same names.
    ///
    /// Times are rounded up to whole seconds. `X`, `Draft6` and `Draft7` have room for one limit:
    /// it is the one with the fewest permits available. A limit without a name is called `default`.
    /// Characters of a name that a field cannot have become `?`. A limit without a quota has no
    /// policy, and one that does not say what is available has no state.
    ///
    /// It allocates the text of each field.
    pub fn write(self, quotas: &[Quota<'_>], now: SystemTime, headers: &mut HeaderMap) {
        match self {
            Self::Off => {}
            Self::X(form) => {
                let names = [
                    "x-ratelimit-limit",
                    "x-ratelimit-remaining",
                    "x-ratelimit-reset",
                ];
                three_fields(names, form, quotas, now, headers);
            }
            Self::Draft6 => {
                let names = ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"];
                three_fields(names, ResetForm::Seconds, quotas, now, headers);
                insert(headers, POLICY, |text| list(text, quotas, old_policy));
            }
            Self::Draft7 => {
                if let Some(quota) = super::tightest(quotas) {
                    insert(headers, RATELIMIT, |text| dictionary(text, quota));
                }
                insert(headers, POLICY, |text| list(text, quotas, old_policy));
            }
            Self::Draft11 | Self::Next => {
                let names = match self {
                    Self::Next => ['a', 'w'],
                    _ => ['r', 't'],
                };
                insert(headers, POLICY, |text| list(text, quotas, policy));
                insert(headers, RATELIMIT, |text| {
                    list(text, quotas, |text, quota| state(text, quota, names))
                });
            }
        }
    }
}

/// Writes a field for each number of the tightest limit.
fn three_fields(
    [limit, remaining, reset]: [&'static str; 3],
    form: ResetForm,
    quotas: &[Quota<'_>],
    now: SystemTime,
    headers: &mut HeaderMap,
) {
    let Some(quota) = super::tightest(quotas) else {
        return;
    };
    for (name, number) in [(limit, quota.quota), (remaining, quota.available)] {
        if let Some(number) = number {
            headers.insert(HeaderName::from_static(name), number.min(LARGEST).into());
        }
    }
    let value = quota.reset.and_then(|time| reset_value(form, time, now));
    if let Some(value) = value {
        headers.insert(HeaderName::from_static(reset), value);
    }
}

fn reset_value(form: ResetForm, time: Duration, now: SystemTime) -> Option<HeaderValue> {
    let at = now.checked_add(time)?;
    match form {
        ResetForm::Seconds => Some(whole_seconds(time).into()),
        ResetForm::Epoch => {
            let since = at.duration_since(SystemTime::UNIX_EPOCH).ok()?;
            Some(whole_seconds(since).into())
        }
        ResetForm::Iso => {
            let at = jiff::Timestamp::try_from(at).ok()?;
            HeaderValue::try_from(format!("{at:.7}")).ok()
        }
    }
}

/// Writes the members that `write` has something for, with commas between them.
fn list(
    text: &mut String,
    quotas: &[Quota<'_>],
    write: impl Fn(&mut String, &Quota<'_>) -> Option<fmt::Result>,
) -> fmt::Result {
    for quota in quotas {
        let before = text.len();
        if before > 0 {
            text.push_str(", ");
        }
        match write(text, quota) {
            Some(result) => result?,
            None => text.truncate(before),
        }
    }
    Ok(())
}

fn policy(text: &mut String, quota: &Quota<'_>) -> Option<fmt::Result> {
    let most = quota.quota?.min(LARGEST);
    name(text, quota);
    Some(write!(text, ";q={most}").and_then(|()| parameters(text, quota)))
}

fn old_policy(text: &mut String, quota: &Quota<'_>) -> Option<fmt::Result> {
    let most = quota.quota?.min(LARGEST);
    let window = whole_seconds(quota.window?);
    Some(write!(text, "{most};w={}", window.clamp(1, LARGEST)))
}

fn parameters(text: &mut String, quota: &Quota<'_>) -> fmt::Result {
    if let Some(window) = quota.window {
        write!(text, ";w={}", whole_seconds(window).clamp(1, LARGEST))?;
    }
    if quota.unit != Unit::Requests {
        text.push_str(";qu=");
        string(text, quota.unit.as_str());
    }
    Ok(())
}

fn state(
    text: &mut String,
    quota: &Quota<'_>,
    [available, reset]: [char; 2],
) -> Option<fmt::Result> {
    let permits = quota.available?.min(LARGEST);
    name(text, quota);
    let mut result = write!(text, ";{available}={permits}");
    if let Some(time) = quota.reset {
        let time = whole_seconds(time).min(LARGEST);
        result = result.and_then(|()| write!(text, ";{reset}={time}"));
    }
    if let (Some(cost), 'a') = (quota.cost, available) {
        result = result.and_then(|()| write!(text, ";c={}", cost.min(LARGEST)));
    }
    Some(result)
}

fn dictionary(text: &mut String, quota: &Quota<'_>) -> fmt::Result {
    let reset = quota.reset.map(whole_seconds);
    let fields = [
        ("limit", quota.quota),
        ("remaining", quota.available),
        ("reset", reset),
    ];
    for (name, number) in fields {
        if let Some(number) = number {
            let comma = if text.is_empty() { "" } else { ", " };
            write!(text, "{comma}{name}={}", number.min(LARGEST))?;
        }
    }
    Ok(())
}

fn name(text: &mut String, quota: &Quota<'_>) {
    string(text, quota.name.as_deref().unwrap_or("default"));
}

/// Writes a string of a structured field (RFC 9651, section 4.1.6).
fn string(text: &mut String, value: &str) {
    text.push('"');
    for character in value.chars() {
        match character {
            '"' | '\\' => text.extend(['\\', character]),
            ' '..='~' => text.push(character),
            _ => text.push('?'),
        }
    }
    text.push('"');
}

/// Inserts a field with the text that `write` makes, unless that is empty.
fn insert(
    headers: &mut HeaderMap,
    name: HeaderName,
    write: impl FnOnce(&mut String) -> fmt::Result,
) {
    let mut text = String::with_capacity(64);
    let written = write(&mut text);
    debug_assert!(written.is_ok(), "a string takes all text");
    if !text.is_empty() {
        let value = HeaderValue::try_from(text);
        headers.insert(name, value.expect("only printable ASCII is written"));
    }
}
