//! Denials, and the replies to them, which are made before the first request.
//!
//! ```text
//! settings + rules --- prepare ---> for each rule: status, type and text of the body
//!                                                  |
//! denied request --- its own map of headers -------+---> response
//! ```
//!
//! A reply has the map of headers of the request that is denied, emptied. So it needs no new one.

mod seconds;

use core::any::Any;
use core::fmt::Write as _;
use core::hash::BuildHasher;
use core::time::Duration;
use std::borrow::Cow;
use std::hash::RandomState;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
#[cfg(any(feature = "queue", feature = "bodies"))]
use portcullis_async::Rejected;
use portcullis_core::limiter::Receipt;
use portcullis_core::metadata::Name;
use portcullis_core::{Clock, Denied, Limiter, LimiterExt, Retry, Timestamp};
use portcullis_policy::{Decision, Limit, Outcome, PathError, Policy, Rule};

/// A request that is denied.
///
/// ```
/// use http::StatusCode;
/// use portcullis_core::{Retry, Timestamp};
/// use portcullis_tower::{Denial, Reply};
///
/// let reply = Reply::new(StatusCode::TOO_MANY_REQUESTS, "Slow down.");
/// let denial = Denial::new(Timestamp::ZERO, Retry::At(Timestamp::from_millis(1_500)), reply);
/// assert_eq!(denial.retry_seconds(), Some(2));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Denial {
    /// The time of the decision.
    pub now: Timestamp,
    /// When to retry.
    pub retry: Retry,
    /// The reply, without its headers.
    pub reply: Reply,
    /// Why the request is denied.
    pub reason: Reason,
    limit: Option<Arc<About>>,
}

/// What is known of the limit that denied. Behind a pointer, because a denial is an error and
/// should be small.
#[derive(Debug)]
struct About {
    name: Option<Box<str>>,
    rule: Option<Box<str>>,
    metadata: Vec<Carried>,
}

impl About {
    fn named(name: &str, rule: Option<&Rule>) -> Arc<Self> {
        Arc::new(Self {
            name: Some(name.into()),
            rule: rule.map(|rule| rule.name().into()),
            metadata: Vec::new(),
        })
    }
}

/// A piece of metadata: the text of its name, and its value.
type Carried = (&'static str, Arc<dyn Any + Send + Sync>);

impl Denial {
    /// A denial for [another reason](Reason::Other) than those of this library.
    #[must_use]
    pub const fn new(now: Timestamp, retry: Retry, reply: Reply) -> Self {
        Self {
            now,
            retry,
            reply,
            reason: Reason::Other,
            limit: None,
        }
    }

    /// Returns the name of the limit that denied: of a policy, as header fields state it; of a
    /// penalty and of an override, that of the rule; of a limiter in code, the one that
    /// [`ByLimiter::named`](crate::ByLimiter::named) and the like set. `None` if it has none, or if
    /// no limit denied.
    #[must_use]
    pub fn limit(&self) -> Option<&str> {
        self.limit.as_ref()?.name.as_deref()
    }

    /// Returns the name of the rule that denied. `None` if a limiter in code denied.
    #[must_use]
    pub fn rule(&self) -> Option<&str> {
        self.limit.as_ref()?.rule.as_deref()
    }

    /// Returns what the limiter in code that denied offered under this name. `None` if it offered
    /// nothing, if [`DenialSettings::carrying`] does not have the name, or if a policy denied.
    ///
    /// # Cost
    ///
    /// Clones the value.
    #[must_use]
    pub fn metadata<T: Clone + Send + Sync + 'static>(&self, name: Name<T>) -> Option<T> {
        let mut all = self.limit.iter().flat_map(|limit| &limit.metadata);
        all.find_map(|(text, value)| {
            let value = value.downcast_ref::<T>().filter(|_| *text == name.text());
            value.cloned()
        })
    }

    /// Returns when to retry, in whole seconds from the time of the decision, rounded up and at
    /// least 1. `None` if time alone does not help.
    #[must_use]
    pub fn retry_seconds(&self) -> Option<u64> {
        retry_seconds(self.retry, self.now)
    }
}

/// Why a request is denied.
///
/// ```
/// use portcullis_core::{Denied, Timestamp};
/// use portcullis_tower::Reason;
///
/// let denied = Denied::Exhausted { now: Timestamp::ZERO, permits: 1 };
/// assert_eq!(Reason::Limit(denied).denied(), Some(denied));
/// assert_eq!(Reason::Unidentified.denied(), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// A limit denied, or a penalty is in force.
    Limit(Denied),
    /// A queue in code rejected the request. Needs the feature `queue` or `bodies`.
    #[cfg(any(feature = "queue", feature = "bodies"))]
    Queue(Rejected),
    /// The limit is of the address of the client, and the server does not know it. The program is
    /// not set up for this: see [`PeerAddress`](crate::PeerAddress).
    NoAddress,
    /// The request lacks another part of the key, such as a header.
    Unidentified,
    /// The path is too long to be matched.
    Path,
    /// The counter store of the rule has no answer, or was not asked.
    Store,
    /// What a [`Decide`](crate::Decide) of the program says.
    Other,
}

impl Reason {
    /// Returns why the limit denied, if one did.
    #[must_use]
    pub const fn denied(self) -> Option<Denied> {
        match self {
            Self::Limit(denied) => Some(denied),
            _ => None,
        }
    }
}

fn retry_seconds(retry: Retry, now: Timestamp) -> Option<u64> {
    Some(retry.seconds_from(now)?.max(1))
}

/// The status and the body of the response to a denied request.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Reply {
    /// The status.
    pub status: StatusCode,
    /// The header `Content-Type`, if there is a body.
    pub content_type: Option<&'static HeaderValue>,
    /// The body.
    pub body: Bytes,
    /// Whether the response has a `Retry-After`, if time can cure the denial. Default: it has.
    pub states_retry: bool,
}

impl Reply {
    /// A reply with plain text, or without a body if the text is empty.
    #[must_use]
    pub fn new(status: StatusCode, text: impl Into<Bytes>) -> Self {
        static TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
        let body = text.into();
        Self {
            status,
            content_type: (!body.is_empty()).then_some(&TEXT),
            body,
            states_retry: true,
        }
    }

    /// A reply with problem details in JSON.
    #[must_use]
    pub fn problem(status: StatusCode, json: impl Into<Bytes>) -> Self {
        static PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");
        Self {
            status,
            content_type: Some(&PROBLEM),
            body: json.into(),
            states_retry: true,
        }
    }
}

/// What the body of a reply to a denied request is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DenialBody {
    /// The [message](Rule::with_message) of the rule, or else the reason phrase of the status.
    #[default]
    Message,
    /// As `Message`, with the count of the limit that denied in the place of `{0}`, and with its
    /// period in the place of `{1}`, as in Ocelot. Messages that were read from `ocelot.json` have
    /// them already: use `Message` for those.
    Template,
    /// No body.
    Empty,
    /// The reason phrase of the status, such as `Too Many Requests`.
    Reason,
    /// Problem details in JSON (RFC 9457), of a type of the draft `ratelimit-headers-11`.
    ///
    /// The type is `quota-exceeded`, or with a status from 500 on `temporary-reduced-capacity`.
    /// `violated-policies` names the limit that denied.
    Problem,
}

/// The text for a request that lacks a part of the key.
#[derive(Clone, Debug)]
enum Unidentified {
    Named,
    Ocelot,
    Text(Bytes),
}

/// How denied requests are answered.
///
/// ```
/// use http::{HeaderName, HeaderValue};
/// use portcullis_tower::{DenialBody, DenialSettings};
///
/// let settings = DenialSettings::new()
///     .body(DenialBody::Problem)
///     .header(
///         HeaderName::from_static("access-control-allow-origin"),
///         HeaderValue::from_static("*"),
///     );
/// # let _ = settings;
/// ```
#[derive(Clone)]
#[must_use]
pub struct DenialSettings {
    body: DenialBody,
    status: StatusCode,
    unidentified: (StatusCode, Unidentified),
    headers: Vec<(HeaderName, HeaderValue)>,
    states_retry: bool,
    /// The most seconds that are added, and what draws them.
    jitter: Option<(u64, RandomState)>,
    carried: Vec<Arc<Carry>>,
    respond: Option<Arc<Respond>>,
}

/// Asks a limiter that denied for a piece of metadata.
type Carry = dyn Fn(&dyn Limiter, Timestamp, Denied) -> Option<Carried> + Send + Sync;

type Respond = dyn Fn(&Denial, Response<Bytes>) -> Response<Bytes> + Send + Sync;

impl Default for DenialSettings {
    fn default() -> Self {
        Self::new()
    }
}

impl DenialSettings {
    /// The default settings.
    pub const fn new() -> Self {
        Self {
            body: DenialBody::Message,
            status: StatusCode::TOO_MANY_REQUESTS,
            unidentified: (StatusCode::SERVICE_UNAVAILABLE, Unidentified::Named),
            headers: Vec::new(),
            states_retry: true,
            jitter: None,
            carried: Vec::new(),
            respond: None,
        }
    }

    /// The settings of the gateway Ocelot, for rules that were read from its file: the body is the
    /// message of the rule, and a request without a client gets 503 and Ocelot's text.
    pub fn ocelot() -> Self {
        Self {
            unidentified: (StatusCode::SERVICE_UNAVAILABLE, Unidentified::Ocelot),
            ..Self::new()
        }
    }

    /// Sets what the body is. Default [`DenialBody::Message`].
    pub fn body(mut self, body: DenialBody) -> Self {
        self.body = body;
        self
    }

    /// Sets the status of a denial by a limiter. Default 429. A denial by a rule has the
    /// [status of the rule](Rule::with_status).
    pub fn status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    /// Sets the status and the text for requests that lack a part of the key: if the rule
    /// [denies](portcullis_policy::OnMissing::Deny) them, or if a limiter in code has no key for
    /// them. Default: 503, as in Ocelot, and a text that names the rule.
    ///
    /// A request without an [address](crate::PeerAddress) is no fault of the client: if the key
    /// needs one, the reply has the status 500.
    pub fn unidentified(mut self, status: StatusCode, text: impl Into<Bytes>) -> Self {
        self.unidentified = (status, Unidentified::Text(text.into()));
        self
    }

    /// Adds a header to all denials, such as those that let a browser show the response to a page
    /// of another origin.
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    /// Leaves out the header `Retry-After`, as Ocelot does if the headers of its limits are
    /// disabled. Default: all denials have it that time can cure.
    ///
    /// ```
    /// use portcullis_tower::DenialSettings;
    /// let settings = DenialSettings::ocelot().without_retry_after();
    /// # let _ = settings;
    /// ```
    pub fn without_retry_after(mut self) -> Self {
        self.states_retry = false;
        self
    }

    /// Adds 0 to `seconds` seconds to `Retry-After`, a random number for each denial, so that
    /// clients that were denied together do not retry together. Default 0.
    pub fn jitter(mut self, seconds: u64) -> Self {
        self.jitter = (seconds > 0).then(|| (seconds, RandomState::new()));
        self
    }

    /// Takes a piece of metadata of each limiter in code that denies, for
    /// [`Denial::metadata`]: for example a
    /// [reason](portcullis_core::metadata::REASON_PHRASE), or what a limiter of the program offers.
    ///
    /// # Cost
    ///
    /// A denial asks the limiter, and allocates.
    ///
    /// ```
    /// use bytes::Bytes;
    /// use portcullis_core::metadata::REASON_PHRASE;
    /// use portcullis_tower::DenialSettings;
    ///
    /// // The reply says which limiter denied, and why.
    /// let settings = DenialSettings::new()
    ///     .carrying(REASON_PHRASE)
    ///     .responding(|denial, response| {
    ///         let limit = denial.limit().unwrap_or("service");
    ///         let reason = denial.metadata(REASON_PHRASE).unwrap_or("denied");
    ///         response.map(|_| Bytes::from(format!("{limit}: {reason}")))
    ///     });
    /// # let _ = settings;
    /// ```
    pub fn carrying<T: Clone + Send + Sync + 'static>(mut self, name: Name<T>) -> Self {
        self.carried.push(Arc::new(move |limiter, now, denied| {
            let value = name.of_denied(limiter, now, denied)?;
            Some((name.text(), Arc::new(value)))
        }));
        self
    }

    /// Sets a function that gets each denial and the response to it, and returns the response to
    /// send. The denial has the [reason](Denial::reason) and the name of the
    /// [limit](Denial::limit).
    ///
    /// ```
    /// use http::HeaderValue;
    /// use http::header::CONTENT_TYPE;
    /// use portcullis_tower::DenialSettings;
    ///
    /// // A body in JSON, for example `{"retry_after":12}`.
    /// let settings = DenialSettings::new().responding(|denial, mut response| {
    ///     let seconds = denial.retry_seconds().unwrap_or(0);
    ///     *response.body_mut() = format!(r#"{{"retry_after":{seconds}}}"#).into();
    ///     let json = HeaderValue::from_static("application/json");
    ///     response.headers_mut().insert(CONTENT_TYPE, json);
    ///     response
    /// });
    /// # let _ = settings;
    /// ```
    pub fn responding(
        mut self,
        respond: impl Fn(&Denial, Response<Bytes>) -> Response<Bytes> + Send + Sync + 'static,
    ) -> Self {
        self.respond = Some(Arc::new(respond));
        self
    }

    /// The response to a request that is denied. `headers` is the map of headers of the request.
    pub(crate) fn response(&self, denial: Denial, mut headers: HeaderMap) -> Response<Bytes> {
        headers.clear();
        let states_retry = self.states_retry && denial.reply.states_retry;
        let seconds = denial.retry_seconds().filter(|_| states_retry);
        if let Some(mut seconds) = seconds {
            if let Some((most, random)) = &self.jitter {
                seconds =
                    seconds.saturating_add(random.hash_one(denial.now) % most.saturating_add(1));
            }
            headers.insert(header::RETRY_AFTER, seconds::value(seconds));
        }
        match &self.respond {
            None => self.assembled(denial.reply, headers),
            Some(respond) => respond(&denial, self.assembled(denial.reply.clone(), headers)),
        }
    }

    /// A response of a reply, which is not cloned once more.
    fn assembled(&self, reply: Reply, mut headers: HeaderMap) -> Response<Bytes> {
        if let Some(content_type) = reply.content_type {
            headers.insert(header::CONTENT_TYPE, content_type.clone());
        }
        for (name, value) in &self.headers {
            headers.append(name, value.clone());
        }
        let mut response = Response::new(reply.body);
        *response.status_mut() = reply.status;
        *response.headers_mut() = headers;
        response
    }

    /// The reply to a request that a limit denied. `message` is the text of the rule, and `policy`
    /// the name of the limit.
    fn reply(&self, status: StatusCode, message: Option<&str>, policy: Option<&str>) -> Reply {
        let reason = status.canonical_reason().unwrap_or("Denied");
        match self.body {
            DenialBody::Empty => Reply::new(status, Bytes::new()),
            DenialBody::Message | DenialBody::Template => match message {
                Some(message) => Reply::new(status, message.to_owned()),
                None => Reply::new(status, reason),
            },
            DenialBody::Reason => Reply::new(status, reason),
            DenialBody::Problem => Reply::problem(status, problem(status, message, policy)),
        }
    }
}

impl Unidentified {
    fn of(&self, rule: Option<&Rule>) -> Bytes {
        match (self, rule) {
            (Self::Named | Self::Ocelot, None) => {
                Bytes::from_static(b"The client could not be identified.")
            }
            (Self::Named, Some(rule)) => {
                let name = rule.name();
                format!("The rule `{name}` could not identify the client.").into()
            }
            (Self::Ocelot, Some(rule)) => {
                let name = rule.name();
                let limit = rule.limits().first().map(limit_text).unwrap_or_default();
                let text = format!(
                    "Rate limiting client could not be identified for the route '{name}' due to a \
                     missing or unknown client ID header required by rule '{limit}'!"
                );
                text.into()
            }
            (Self::Text(text), _) => text.clone(),
        }
    }
}

/// A limit as Ocelot writes it: its count, its period and its wait.
fn limit_text(limit: &Limit) -> String {
    let period = limit.period().map(period_text).unwrap_or_default();
    let wait = limit.wait_time().filter(|wait| !wait.is_zero());
    let wait = wait.map_or_else(|| "0ms".to_owned(), period_text);
    format!("{}/{period}/w{wait}", limit.count())
}

/// Problem details.
fn problem(status: StatusCode, message: Option<&str>, policy: Option<&str>) -> String {
    let kind = if status.is_server_error() {
        "temporary-reduced-capacity"
    } else {
        "quota-exceeded"
    };
    let title = message.unwrap_or_else(|| status.canonical_reason().unwrap_or("Denied"));
    let mut json = String::from("{\"type\":\"https://iana.org/assignments/http-problem-types#");
    json.push_str(kind);
    json.push_str("\",\"title\":");
    push_json(&mut json, title);
    let _ = write!(json, ",\"status\":{}", status.as_u16());
    if let Some(policy) = policy {
        json.push_str(",\"violated-policies\":[");
        push_json(&mut json, policy);
        json.push(']');
    }
    json.push('}');
    json
}

/// Adds a text as a string of JSON.
fn push_json(json: &mut String, text: &str) {
    json.push('"');
    for c in text.chars() {
        match c {
            '"' => json.push_str("\\\""),
            '\\' => json.push_str("\\\\"),
            c if u32::from(c) < 0x20 => {
                let _ = write!(json, "\\u{:04x}", u32::from(c));
            }
            c => json.push(c),
        }
    }
    json.push('"');
}

/// The replies of one that judges.
pub(crate) struct Replies {
    /// Whether more than the whole seconds until a retry depends on the time of a denial.
    to_the_instant: bool,
    /// Without a rule.
    any: LimitReply,
    /// What to ask a limiter that denies.
    carried: Vec<Arc<Carry>>,
    /// For a request that lacks the address of the client.
    no_address: Reply,
    /// For a request without a key.
    unidentified: Reply,
    /// In the order of [`Policy::rules`].
    rules: Box<[RuleReplies]>,
    path_too_long: Reply,
    /// For a path that services read in different ways.
    path_unclear: Reply,
    /// For a request whose store has no answer.
    #[cfg(feature = "queue")]
    unavailable: Reply,
    /// The instruments of the rules, from the first request that is measured.
    #[cfg(feature = "metrics")]
    metrics: std::sync::OnceLock<portcullis_policy::Metrics>,
}

/// The reply to a request that a limit denied, and the limit's name.
struct LimitReply {
    reply: Reply,
    limit: Option<Arc<About>>,
}

impl LimitReply {
    fn denial(&self, now: Timestamp, retry: Retry, reason: Reason) -> Denial {
        Denial {
            reason,
            limit: self.limit.clone(),
            ..Denial::new(now, retry, self.reply.clone())
        }
    }
}

struct RuleReplies {
    /// In the order of the rule's limits.
    limits: Box<[LimitReply]>,
    /// A penalty, or a limit of an override that the rule does not have.
    other: LimitReply,
    unidentified: Reply,
}

impl Default for Replies {
    fn default() -> Self {
        Self::of_limiter(&DenialSettings::new(), None)
    }
}

impl Replies {
    pub(crate) fn of_limiter(settings: &DenialSettings, name: Option<&str>) -> Self {
        let (unidentified, text) = &settings.unidentified;
        Self {
            to_the_instant: settings.jitter.is_some() || settings.respond.is_some(),
            any: LimitReply {
                reply: settings.reply(settings.status, None, name),
                limit: name.map(|name| About::named(name, None)),
            },
            carried: settings.carried.clone(),
            no_address: Reply::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "The server does not know the address of the client, which its rate limit needs.",
            ),
            unidentified: Reply::new(*unidentified, text.of(None)),
            rules: Box::default(),
            path_too_long: Reply::new(StatusCode::URI_TOO_LONG, "URI Too Long"),
            path_unclear: Reply::new(StatusCode::BAD_REQUEST, "Bad Request"),
            #[cfg(feature = "queue")]
            unavailable: settings.reply(StatusCode::SERVICE_UNAVAILABLE, None, None),
            #[cfg(feature = "metrics")]
            metrics: std::sync::OnceLock::new(),
        }
    }

    pub(crate) fn of_policy(policy: &Policy, settings: &DenialSettings) -> Self {
        let of_rule = |rule: &Rule| {
            let status = StatusCode::from_u16(rule.status()).unwrap_or(settings.status);
            let of = |index: usize, limit: Option<&Limit>| {
                let message = rule.message().map(|message| match settings.body {
                    DenialBody::Template => Cow::Owned(filled(message, limit)),
                    _ => Cow::Borrowed(message),
                });
                let name = match limit {
                    Some(limit) => policy_name(rule, index, limit),
                    None => rule.name().to_owned(),
                };
                LimitReply {
                    reply: Reply {
                        states_retry: rule.has_headers(),
                        ..settings.reply(status, message.as_deref(), Some(&name))
                    },
                    limit: Some(About::named(&name, Some(rule))),
                }
            };
            let (unidentified, text) = &settings.unidentified;
            RuleReplies {
                limits: rule
                    .limits()
                    .iter()
                    .enumerate()
                    .map(|(index, limit)| of(index, Some(limit)))
                    .collect(),
                other: LimitReply {
                    limit: Some(About::named(rule.name(), Some(rule))),
                    ..of(0, rule.limits().first())
                },
                unidentified: Reply::new(*unidentified, text.of(Some(rule))),
            }
        };
        Self {
            rules: policy.rules().map(of_rule).collect(),
            ..Self::of_limiter(settings, None)
        }
    }

    /// The instruments of each rule of `policy` that decided. Empty if none did.
    #[cfg(feature = "metrics")]
    pub(crate) fn instruments(
        &self,
        policy: &Policy,
        decision: &Decision<'_>,
    ) -> Vec<portcullis_policy::RuleMetrics> {
        if decision.rule().is_none() {
            return Vec::new();
        }
        let metrics = self
            .metrics
            .get_or_init(|| portcullis_policy::Metrics::new(policy));
        metrics.each(decision).cloned().collect()
    }

    /// Takes permits of a limiter at the current time of a clock: within its interval, if the
    /// limiter can decide so, or else at its time. A denial has the time of the decision, or the
    /// beginning of the interval if that makes no difference for the response.
    #[inline]
    pub(crate) fn take<L: Limiter>(
        &self,
        limiter: &L,
        clock: &impl Clock,
        n: u32,
    ) -> Result<Receipt, Denial> {
        if limiter.hints().decides_within
            && let Some(interval) = clock.interval()
            && let Some(taken) = limiter.take_within(interval, n)
        {
            return taken.map_err(|denied| {
                let retry = denied.retry(limiter);
                let seconds = |now| retry_seconds(retry, now);
                let (earliest, latest) = (interval.earliest(), interval.latest());
                let is_exact = !self.to_the_instant && seconds(earliest) == seconds(latest);
                let now = if is_exact { earliest } else { clock.now() };
                self.limiter(now, limiter, denied, retry)
            });
        }
        let now = clock.now();
        let taken = limiter.take_at(now, n);
        taken.map_err(|denied| self.limiter(now, limiter, denied, denied.retry(limiter)))
    }

    /// A denial by a limiter.
    pub(crate) fn limiter(
        &self,
        now: Timestamp,
        limiter: &dyn Limiter,
        denied: Denied,
        retry: Retry,
    ) -> Denial {
        let mut denial = self.any.denial(now, retry, Reason::Limit(denied));
        if !self.carried.is_empty() {
            let all = self.carried.iter();
            let all = all.filter_map(|carry| carry(limiter, now, denied));
            denial.limit = Some(Arc::new(About {
                name: denial.limit().map(Into::into),
                rule: None,
                metadata: all.collect(),
            }));
        }
        denial
    }

    /// A denial by a queue in code.
    #[cfg(any(feature = "queue", feature = "bodies"))]
    pub(crate) fn queue(&self, now: Timestamp, rejected: Rejected) -> Denial {
        self.any
            .denial(now, rejected.retry(), Reason::Queue(rejected))
    }

    /// A denial of a request without a key. A key that is an address is no client's to send.
    #[cold]
    pub(crate) fn without_key(&self, now: Timestamp, needs_address: bool) -> Denial {
        let (reply, reason) = if needs_address {
            (&self.no_address, Reason::NoAddress)
        } else {
            (&self.unidentified, Reason::Unidentified)
        };
        Denial {
            reason,
            ..Denial::new(now, Retry::Never, reply.clone())
        }
    }

    /// A denial by a policy, or by a store of it. A decision of a store has no state, so the caller
    /// sets when to retry.
    #[inline]
    pub(crate) fn policy(&self, now: Timestamp, decision: &Decision<'_>) -> Denial {
        let rule = decision
            .rule_index()
            .and_then(|index| self.rules.get(index));
        let (reply, reason) = match (decision.outcome(), rule) {
            (Outcome::Path(PathError::Dots | PathError::Ambiguous), _) => {
                (&self.path_unclear, Reason::Path)
            }
            (Outcome::Path(_), _) => (&self.path_too_long, Reason::Path),
            (Outcome::NoAddress, _) => (&self.no_address, Reason::NoAddress),
            (Outcome::Unidentified, Some(rule)) => (&rule.unidentified, Reason::Unidentified),
            (Outcome::Denied { limit, denied }, Some(rule)) => {
                let of_limit = limit.filter(|_| !decision.is_overridden());
                let of_limit = of_limit.and_then(|limit| rule.limits.get(limit));
                let retry = decision.retry().unwrap_or(Retry::Never);
                let of_limit = of_limit.unwrap_or(&rule.other);
                return of_limit.denial(now, retry, Reason::Limit(denied));
            }
            _ => (&self.any.reply, Reason::Store),
        };
        Denial {
            reason,
            ..Denial::new(now, Retry::Never, reply.clone())
        }
    }

    /// A denial because a store has no answer.
    #[cfg(feature = "queue")]
    pub(crate) fn unavailable(&self, now: Timestamp) -> Denial {
        let retry = Retry::After(Duration::from_secs(1));
        Denial {
            reason: Reason::Store,
            ..Denial::new(now, retry, self.unavailable.clone())
        }
    }
}

/// The name of a limit in header fields and problem details: its own, or that of its rule, with a
/// number if the rule has several limits.
pub(crate) fn policy_name(rule: &Rule, index: usize, limit: &Limit) -> String {
    match limit.name() {
        Some(name) => name.to_owned(),
        None if rule.limits().len() < 2 => rule.name().to_owned(),
        None => format!("{}-{}", rule.name(), index + 1),
    }
}

/// The message with the limit in the places of `{0}` and `{1}`.
fn filled(message: &str, limit: Option<&Limit>) -> String {
    let Some(limit) = limit else {
        return message.to_owned();
    };
    let period = limit.period().map(period_text).unwrap_or_default();
    message
        .replace("{0}", &limit.count().to_string())
        .replace("{1}", &period)
}

/// A period in the largest unit of which it is a multiple.
fn period_text(period: Duration) -> String {
    let units = [
        (86_400_000_000_000, "d"),
        (3_600_000_000_000, "h"),
        (60_000_000_000, "m"),
        (1_000_000_000, "s"),
        (1_000_000, "ms"),
    ];
    let nanos = period.as_nanos();
    let fits = units.iter().find(|(unit, _)| nanos.is_multiple_of(*unit));
    match fits {
        Some((unit, name)) => format!("{}{name}", nanos / unit),
        None => format!("{period:?}"),
    }
}

shows!([] DenialSettings, "DenialSettings",
    self: "body" => self.body, "status" => self.status, "headers" => self.headers);
