//! Reads what a reply states.
//!
//! Each generation has a reader of its own, from the newest to the oldest. The first that finds a
//! limit answers, because many servers send two generations. A reader ignores a field that is
//! malformed, as the drafts require.

use core::time::Duration;
use std::borrow::Cow;
use std::time::SystemTime;

use http::HeaderMap;
use http::header::{AGE, DATE, RETRY_AFTER};
use sfv::{BareItem, Dictionary, FieldType, List, ListEntry, Parameters, Parser};

use super::{Quota, ResetForm, Unit};

/// The most limits that are read from a reply. Others are ignored.
const MOST: usize = 32;

/// From this number on, a time is since 1970, in seconds. As a time from now it would be over 31
/// years, and a smaller number would be a time before September 2001. So no number that a server
/// means is in doubt.
const EPOCH_SECONDS: u64 = 1_000_000_000;

/// From this number on, a time is since 1970 in milliseconds.
const EPOCH_MILLIS: u64 = EPOCH_SECONDS * 1_000;

/// From this number on, a time is since 1970 in microseconds.
const EPOCH_MICROS: u64 = EPOCH_MILLIS * 1_000;

/// From this number on, a time is since 1970 in nanoseconds.
const EPOCH_NANOS: u64 = EPOCH_MICROS * 1_000;

/// What a reply states about the limits of the server.
///
/// ```
/// use http::HeaderMap;
/// use portcullis_tower::fields::{ReadOptions, Stated};
/// use std::time::Duration;
///
/// let mut headers = HeaderMap::new();
/// headers.insert("retry-after", "20".parse()?);
/// headers.insert("ratelimit-policy", r#""burst";q=100;w=60"#.parse()?);
/// headers.insert("ratelimit", r#""burst";r=0;t=20"#.parse()?);
///
/// let stated = Stated::read(&headers, &ReadOptions::new());
/// assert_eq!(stated.retry_after, Some(Duration::from_secs(20)));
/// assert_eq!(stated.quotas[0].quota, Some(100));
/// assert_eq!(stated.quotas[0].available, Some(0));
/// assert_eq!(stated.quotas[0].reset, Some(Duration::from_secs(20)));
/// # Ok::<(), http::header::InvalidHeaderValue>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stated {
    /// The time that `Retry-After` asks the client to wait. It takes precedence over all resets.
    pub retry_after: Option<Duration>,
    /// The limits, in the order of the fields. At most 32.
    pub quotas: Vec<Quota<'static>>,
}

/// How to read fields that have more than one meaning.
#[derive(Clone, Debug)]
pub struct ReadOptions {
    now: SystemTime,
    reset: Option<ResetForm>,
    longest: Duration,
}

impl ReadOptions {
    /// Reads times against the system's clock, finds out the form of `X-RateLimit-Reset` by its
    /// size, and shortens all times to a day.
    #[must_use]
    pub fn new() -> Self {
        Self {
            now: SystemTime::now(),
            reset: None,
            longest: Duration::from_hours(24),
        }
    }

    /// Sets the present time. A reply with a `Date` is read against that date instead, because the
    /// clocks of the server and of the client can differ.
    #[must_use]
    pub fn now(self, now: SystemTime) -> Self {
        Self { now, ..self }
    }

    /// Sets the form of `X-RateLimit-Reset`.
    ///
    /// Without it, a number below 10^9 is seconds from now, and a larger one is a time since 1970:
    /// in seconds, from 10^12 on in milliseconds, from 10^15 on in microseconds, and from 10^18 on
    /// in nanoseconds. All other fields that state a time as a number are always read so: the
    /// drafts and RFC 9110 demand seconds from now, but GitLab, for one, states `RateLimit-Reset`
    /// as a time since 1970.
    #[must_use]
    pub fn reset_form(self, form: ResetForm) -> Self {
        Self {
            reset: Some(form),
            ..self
        }
    }

    /// Sets the longest time that is believed. A longer one is shortened to it.
    #[must_use]
    pub fn longest(self, longest: Duration) -> Self {
        Self { longest, ..self }
    }

    /// Returns a time, or the longest one that is believed.
    #[cfg(feature = "client")]
    pub(crate) fn believed(&self, time: Duration) -> Duration {
        time.min(self.longest)
    }

    /// Returns the time from now that a number states: seconds from now, or a time since 1970. Its
    /// size tells which.
    fn stated(&self, number: Duration) -> Duration {
        if number.as_secs() < EPOCH_SECONDS {
            number
        } else {
            self.since_1970(number)
        }
    }

    /// Returns the time from now until a time since 1970, whose size tells its unit.
    fn since_1970(&self, number: Duration) -> Duration {
        let units = number.as_secs();
        let since = match units {
            ..EPOCH_MILLIS => number,
            EPOCH_MILLIS..EPOCH_MICROS => Duration::from_millis(units),
            EPOCH_MICROS..EPOCH_NANOS => Duration::from_micros(units),
            EPOCH_NANOS.. => Duration::from_nanos(units),
        };
        let time = SystemTime::UNIX_EPOCH.checked_add(since);
        time.map_or(Duration::MAX, |time| self.until(time))
    }

    /// Returns the time from now until an absolute time.
    fn until(&self, time: SystemTime) -> Duration {
        time.duration_since(self.now).unwrap_or_default()
    }
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl Stated {
    /// Reads the fields of a reply.
    ///
    /// It ignores fields that are malformed, and all fields of a reply from a cache (`Age` above
    /// 0). It reads `RateLimit` and `RateLimit-Policy` with the prefix `Beta-` too, and
    /// `X-Rate-Limit-*` as `X-RateLimit-*`.
    ///
    /// `*-Limit` and `*-Remaining` may have a window as a parameter, as Docker Hub states them
    /// (`76;w=21600`), and a fraction, as Reddit does (`598.0`). Of a fraction the whole permits
    /// count.
    #[must_use]
    pub fn read(headers: &HeaderMap, options: &ReadOptions) -> Self {
        if text(headers, AGE.as_str()).is_some_and(|age| age.parse::<u64>() != Ok(0)) {
            return Self::default();
        }
        let date =
            text(headers, DATE.as_str()).and_then(|date| httpdate::parse_http_date(date).ok());
        let options = &ReadOptions {
            now: date.unwrap_or(options.now),
            ..options.clone()
        };
        let waits = headers.get_all(RETRY_AFTER).iter();
        let waits = waits.filter_map(|value| wait(value.to_str().ok()?, options));
        let mut quotas = lists(headers, options)
            .or_else(|| dictionary(headers, options))
            .or_else(|| three_fields(headers, options))
            .unwrap_or_default();
        for quota in &mut quotas {
            quota.reset = quota.reset.map(|reset| reset.min(options.longest));
        }
        Self {
            retry_after: waits.max().map(|wait| wait.min(options.longest)),
            quotas,
        }
    }

    /// Returns the limit with the fewest permits available. Of several, it is the one with the
    /// latest reset.
    #[must_use]
    pub fn tightest(&self) -> Option<&Quota<'static>> {
        super::tightest(&self.quotas)
    }
}

/// Reads revisions -08 and newer: both fields are lists of named limits.
fn lists(headers: &HeaderMap, options: &ReadOptions) -> Option<Vec<Quota<'static>>> {
    let mut quotas = policies(headers).unwrap_or_default();
    if let Some(list) = field::<List>(headers, &["ratelimit", "beta-ratelimit"])
        && let Some(states) = members(&list, |item, parameters| state(item, parameters, options))
    {
        for state in states {
            let same = quotas
                .iter()
                .position(|quota| quota.name == state.name && quota.partition == state.partition);
            match same {
                Some(index) => {
                    quotas[index] = Quota {
                        available: state.available,
                        reset: state.reset,
                        cost: state.cost,
                        ..quotas[index].clone()
                    };
                }
                None if quotas.len() < MOST => quotas.push(state),
                None => {}
            }
        }
    }
    // The policies of the older generations have no names.
    (quotas.iter().any(|quota| quota.name.is_some())).then_some(quotas)
}

/// Reads revision -07: a dictionary of one limit.
fn dictionary(headers: &HeaderMap, options: &ReadOptions) -> Option<Vec<Quota<'static>>> {
    let fields = field::<Dictionary>(headers, &["ratelimit"])?;
    let value = |name: &str| match fields.get(name) {
        Some(ListEntry::Item(item)) => Some(count(&item.bare_item)),
        Some(ListEntry::InnerList(_)) => Some(None),
        None => None,
    };
    let (limit, available, reset) = (value("limit"), value("remaining"), value("reset"));
    if [limit, available, reset].contains(&Some(None)) {
        return None;
    }
    let quota = Quota {
        quota: limit.flatten(),
        available: available.flatten(),
        reset: reset
            .flatten()
            .map(|reset| options.stated(Duration::from_secs(reset))),
        ..Quota::default()
    };
    (quota.available.is_some()).then(|| vec![with_window(quota, policies(headers))])
}

/// Reads the revisions up to -06, and the fields that begin with `X-`.
fn three_fields(headers: &HeaderMap, options: &ReadOptions) -> Option<Vec<Quota<'static>>> {
    let families = ["ratelimit", "x-ratelimit", "x-rate-limit"];
    families.into_iter().find_map(|family| {
        let get = |name: &str| text(headers, &format!("{family}-{name}"));
        let remaining = permits(get("remaining")?)?;
        let limits = get("limit").and_then(|text| {
            let list = field::<List>(headers, &[&format!("{family}-limit")]);
            let limits = list.and_then(|list| {
                members(&list, |item, parameters| {
                    let name = string(parameters.get("name"));
                    policy(item, parameters, count(item)).map(|quota| Quota { name, ..quota })
                })
            });
            limits.or_else(|| Some(vec![permits(text)?]))
        });
        let (first, rest) = match limits {
            Some(limits) => (limits.first().cloned(), limits[1..].to_vec()),
            None => (None, vec![]),
        };
        let after = get("reset-after").and_then(seconds);
        let reset = after.or_else(|| {
            // The form of `RateLimit-Reset` is not the server's to choose.
            let form = options.reset.filter(|_| family != "ratelimit");
            reset(get("reset")?, form, options)
        });
        let name = get("resource").or(get("bucket"));
        let first = first.unwrap_or_default();
        let quota = Quota {
            name: name.map(|name| Cow::Owned(name.to_owned())),
            available: remaining.quota,
            window: first.window.or(remaining.window),
            reset,
            ..first
        };
        let policies = if rest.is_empty() {
            policies(headers)
        } else {
            Some(rest)
        };
        Some(vec![with_window(quota, policies)])
    })
}

/// Takes the window of the policy that has the quota of this limit.
fn with_window(quota: Quota<'static>, policies: Option<Vec<Quota<'static>>>) -> Quota<'static> {
    let policies = policies.unwrap_or_default();
    match policies
        .into_iter()
        .find(|policy| policy.quota == quota.quota)
    {
        Some(policy) if quota.window.is_none() => Quota {
            window: policy.window,
            name: quota.name.or(policy.name),
            unit: policy.unit,
            ..quota
        },
        _ => quota,
    }
}

/// Reads `RateLimit-Policy`: a list of names with the quota as a parameter, or of quotas.
fn policies(headers: &HeaderMap) -> Option<Vec<Quota<'static>>> {
    let list = field::<List>(headers, &["ratelimit-policy", "beta-ratelimit-policy"])?;
    members(&list, |item, parameters| match item {
        BareItem::Integer(_) => policy(item, parameters, count(item)),
        _ => policy(item, parameters, required(parameters.get("q"))),
    })
}

/// Reads a member of `RateLimit-Policy`, or `None` if it is malformed.
fn policy(item: &BareItem, parameters: &Parameters, quota: Option<u64>) -> Option<Quota<'static>> {
    let window = match parameters.get("w") {
        Some(window) => Some(Duration::from_secs(count(window).filter(|&w| w > 0)?)),
        None => None,
    };
    let unit = match parameters.get("qu") {
        Some(BareItem::String(unit)) => match unit.as_str() {
            "requests" => Unit::Requests,
            "content-bytes" => Unit::ContentBytes,
            "concurrent-requests" => Unit::ConcurrentRequests,
            other => Unit::Other(Cow::Owned(other.to_owned())),
        },
        Some(_) => return None,
        None => Unit::Requests,
    };
    Some(Quota {
        name: name(item)?,
        quota: Some(quota?),
        window,
        unit,
        partition: partition(parameters)?,
        ..Quota::default()
    })
}

/// Reads a member of `RateLimit`, or `None` if it is malformed.
fn state(
    item: &BareItem,
    parameters: &Parameters,
    options: &ReadOptions,
) -> Option<Quota<'static>> {
    let either = |newer: &str, older: &str| parameters.get(newer).or(parameters.get(older));
    let optional =
        |value: Option<&BareItem>| value.map_or(Some(None), |value| count(value).map(Some));
    Some(Quota {
        name: Some(name(item)??),
        available: Some(required(either("a", "r"))?),
        reset: optional(either("w", "t"))?.map(|reset| options.stated(Duration::from_secs(reset))),
        cost: optional(parameters.get("c"))?,
        partition: partition(parameters)?,
        ..Quota::default()
    })
}

/// Returns the name of a limit, `None` if it has none, or nothing if it cannot be a limit.
#[expect(
    clippy::option_option,
    reason = "a quota in the place of a name is valid too"
)]
fn name(item: &BareItem) -> Option<Option<Cow<'static, str>>> {
    match item {
        BareItem::String(name) => Some(Some(Cow::Owned(name.as_str().to_owned()))),
        BareItem::Token(name) => Some(Some(Cow::Owned(name.as_str().to_owned()))),
        BareItem::Integer(_) => Some(None),
        _ => None,
    }
}

#[expect(
    clippy::option_option,
    reason = "the parameter is optional, and can be malformed"
)]
fn partition(parameters: &Parameters) -> Option<Option<Cow<'static, [u8]>>> {
    match parameters.get("pk") {
        Some(BareItem::ByteSequence(key)) => Some(Some(Cow::Owned(key.clone()))),
        Some(_) => None,
        None => Some(None),
    }
}

fn string(value: Option<&BareItem>) -> Option<Cow<'static, str>> {
    match value? {
        BareItem::String(text) => Some(Cow::Owned(text.as_str().to_owned())),
        _ => None,
    }
}

fn required(value: Option<&BareItem>) -> Option<u64> {
    count(value?)
}

/// Returns an integer that is not negative.
fn count(value: &BareItem) -> Option<u64> {
    match value {
        BareItem::Integer(integer) => u64::try_from(i64::from(*integer)).ok(),
        _ => None,
    }
}

/// Reads the members of a list. One that is malformed makes the whole field so.
fn members(
    list: &List,
    read: impl Fn(&BareItem, &Parameters) -> Option<Quota<'static>>,
) -> Option<Vec<Quota<'static>>> {
    let members = list.iter().map(|member| match member {
        ListEntry::Item(item) => read(&item.bare_item, &item.params),
        ListEntry::InnerList(_) => None,
    });
    let mut members: Vec<_> = members.collect::<Option<_>>()?;
    members.truncate(MOST);
    (!members.is_empty()).then_some(members)
}

/// Parses the first of these fields that the reply has. Its lines are one value.
fn field<T: FieldType>(headers: &HeaderMap, names: &[&str]) -> Option<T> {
    let present = names.iter().find(|name| headers.contains_key(**name))?;
    let lines = headers.get_all(*present).iter();
    let lines: Vec<&[u8]> = lines.map(http::HeaderValue::as_bytes).collect();
    Parser::new(&lines.join(&b", "[..])).parse().ok()
}

/// Returns the last line of a field, without white space around it.
fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let value = headers.get_all(name).iter().next_back()?;
    value.to_str().ok().map(str::trim)
}

/// Reads `Retry-After`: seconds, or a date. Some servers state a time since 1970.
fn wait(text: &str, options: &ReadOptions) -> Option<Duration> {
    let text = text.trim();
    let number = seconds(text).map(|number| options.stated(number));
    number.or_else(|| Some(options.until(httpdate::parse_http_date(text).ok()?)))
}

/// Reads a reset in this form, or in any.
fn reset(text: &str, form: Option<ResetForm>, options: &ReadOptions) -> Option<Duration> {
    match (seconds(text), form) {
        (Some(time), Some(ResetForm::Seconds)) => Some(time),
        (Some(time), Some(ResetForm::Epoch)) => Some(options.since_1970(time)),
        (Some(time), None) => Some(options.stated(time)),
        (None, None | Some(ResetForm::Iso)) => {
            let date = || httpdate::parse_http_date(text).ok();
            let iso = text.parse::<jiff::Timestamp>().ok().map(SystemTime::from);
            Some(options.until(iso.or_else(date)?))
        }
        _ => None,
    }
}

/// Reads a number of permits, as no standard defines it: with an optional fraction, and with an
/// optional window. Only the whole permits of a fraction can be taken.
fn permits(text: &str) -> Option<Quota<'static>> {
    let (number, parameters) = text.split_once(';').unwrap_or((text, ""));
    let window = |parameter: &str| parameter.trim().strip_prefix("w=")?.parse().ok();
    let window = parameters.split(';').find_map(window);
    Some(Quota {
        quota: Some(seconds(number.trim())?.as_secs()),
        window: window.filter(|&w: &u64| w > 0).map(Duration::from_secs),
        ..Quota::default()
    })
}

/// Reads seconds with an optional fraction, as some servers send them. A number that is too large
/// is shortened.
fn seconds(text: &str) -> Option<Duration> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(fraction) {
        return None;
    }
    let whole = whole.parse().unwrap_or(u64::MAX / 2);
    let nanos = fraction.bytes().chain(core::iter::repeat(b'0')).take(9);
    let nanos = nanos.fold(0, |nanos, digit| nanos * 10 + u32::from(digit - b'0'));
    Some(Duration::new(whole, nanos))
}
