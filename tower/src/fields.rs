//! The header fields that state the limits of a server, in all their generations.
//!
//! | [`Generation`] | fields of a reply | source |
//! |---|---|---|
//! | `X` | `X-RateLimit-Limit`, `X-RateLimit-Remaining`, `X-RateLimit-Reset` | no standard; GitHub, Discord, Ocelot and many others |
//! | `Draft6` | `RateLimit-Limit`, `RateLimit-Remaining`, `RateLimit-Reset`, `RateLimit-Policy` | draft-ietf-httpapi-ratelimit-headers-00 to -06 |
//! | `Draft7` | `RateLimit: limit=100, remaining=50, reset=5`, `RateLimit-Policy` | revision -07 |
//! | `Draft11` | `RateLimit: "burst";r=50;t=5`, `RateLimit-Policy: "burst";q=100;w=60` | revisions -08 to -11 |
//! | `Next` | `RateLimit: "burst";a=50;w=5`, `RateLimit-Policy` | the proposed revision -12 |
//!
//! [`Stated::read`] reads any of them from a reply, and `Retry-After` too.
//! [`Generation::write`] writes one of them.
//!
//! A reply can state several limits. The generations up to `Draft7` have room for one: `write`
//! takes the limit with the fewest permits available.

mod read;
mod write;

use core::time::Duration;
use std::borrow::Cow;

pub use read::{ReadOptions, Stated};
pub use write::Generation;

/// What the fields of a reply state about one limit.
///
/// A field that the reply does not have, or that is malformed, leaves `None`.
///
/// ```
/// use portcullis_tower::fields::Quota;
/// use std::time::Duration;
///
/// let quota = Quota::new(100).named("burst").window(Duration::from_secs(60));
/// let quota = quota.available(50).reset(Duration::from_secs(5));
/// assert_eq!(quota.name.as_deref(), Some("burst"));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Quota<'a> {
    /// The name of the limit.
    pub name: Option<Cow<'a, str>>,
    /// The permits that the limit grants in each window.
    pub quota: Option<u64>,
    /// The length of the window.
    pub window: Option<Duration>,
    /// The unit of the permits.
    pub unit: Unit<'a>,
    /// The permits that are still available.
    pub available: Option<u64>,
    /// The time that the client should make the available permits last, and after which more may be
    /// available.
    pub reset: Option<Duration>,
    /// The permits that the request took.
    pub cost: Option<u64>,
    /// The part of the limit's key that names this client, if the server shares it.
    pub partition: Option<Cow<'a, [u8]>>,
}

/// The unit of the permits of a limit: the parameter `qu` of `RateLimit-Policy`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unit<'a> {
    /// A request: `requests`, or no unit.
    #[default]
    Requests,
    /// A byte of content: `content-bytes`.
    ContentBytes,
    /// A request that is being handled: `concurrent-requests`.
    ConcurrentRequests,
    /// Another unit.
    Other(Cow<'a, str>),
}

impl<'a> Quota<'a> {
    /// A limit on the permits in each window.
    #[must_use]
    pub fn new(quota: u64) -> Self {
        Self {
            quota: Some(quota),
            ..Self::default()
        }
    }

    /// Sets the name.
    #[must_use]
    pub fn named(self, name: impl Into<Cow<'a, str>>) -> Self {
        Self {
            name: Some(name.into()),
            ..self
        }
    }

    /// Sets the length of the window.
    #[must_use]
    pub fn window(self, window: Duration) -> Self {
        Self {
            window: Some(window),
            ..self
        }
    }

    /// Sets the unit of the permits.
    #[must_use]
    pub fn unit(self, unit: Unit<'a>) -> Self {
        Self { unit, ..self }
    }

    /// Sets the permits that are available.
    #[must_use]
    pub fn available(self, available: u64) -> Self {
        Self {
            available: Some(available),
            ..self
        }
    }

    /// Sets the time after which more permits may be available.
    #[must_use]
    pub fn reset(self, reset: Duration) -> Self {
        Self {
            reset: Some(reset),
            ..self
        }
    }

    /// Sets the permits that the request took.
    #[must_use]
    pub fn cost(self, cost: u64) -> Self {
        Self {
            cost: Some(cost),
            ..self
        }
    }

    /// Copies what is borrowed.
    #[must_use]
    pub fn into_owned(self) -> Quota<'static> {
        Quota {
            name: self.name.map(|name| Cow::Owned(name.into_owned())),
            quota: self.quota,
            window: self.window,
            unit: match self.unit {
                Unit::Requests => Unit::Requests,
                Unit::ContentBytes => Unit::ContentBytes,
                Unit::ConcurrentRequests => Unit::ConcurrentRequests,
                Unit::Other(unit) => Unit::Other(Cow::Owned(unit.into_owned())),
            },
            available: self.available,
            reset: self.reset,
            cost: self.cost,
            partition: self.partition.map(|key| Cow::Owned(key.into_owned())),
        }
    }
}

impl Unit<'_> {
    /// Returns the unit as `RateLimit-Policy` names it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Unit::Requests => "requests",
            Unit::ContentBytes => "content-bytes",
            Unit::ConcurrentRequests => "concurrent-requests",
            Unit::Other(unit) => unit,
        }
    }
}

/// The form of `X-RateLimit-Reset`, which no standard defines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ResetForm {
    /// Seconds from now, as Reddit and the drafts state it.
    #[default]
    Seconds,
    /// Seconds since 1970, as GitHub, Discord and Laravel state it. Milliseconds, microseconds and
    /// nanoseconds are read too.
    Epoch,
    /// A time such as `2026-11-23T10:00:00.0000000Z` (ISO 8601), as Ocelot and Atlassian state it.
    Iso,
}

/// Returns the limit with the fewest permits available. Of several, it is the one with the latest
/// reset. A limit that does not say what is available comes last.
fn tightest<'q, 'a>(quotas: &'q [Quota<'a>]) -> Option<&'q Quota<'a>> {
    quotas.iter().min_by_key(|quota| {
        let available = quota.available.map_or((1, 0), |available| (0, available));
        (available, core::cmp::Reverse(quota.reset))
    })
}

/// Returns the whole seconds of a time, rounded up.
fn whole_seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}
