//! Events of decisions, for subscribers of the crate `tracing`.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use core::time::Duration;

use portcullis_core::{Denied, Rate, Retry, Timestamp, TokenBucket};
use tracing::Level;

use crate::limit::Limit;
use crate::policy::Decision;
use crate::policy::outcome::Outcome;
use crate::request::Request;
use crate::rule::Rule;

/// Writes an event of the crate `tracing` for each decision, with a limit on those of denials. A
/// request that took from the limits of several rules has an event for each of them.
///
/// All events have the target `portcullis::decision` and these fields, as far as they are known:
///
/// | field | what it is |
/// |---|---|
/// | `outcome` | what was decided: one of the names below |
/// | `rule` | the name of the rule that decided, or of the shadow rule |
/// | `limit` | the limit that denied, or by which the shadow rule would have denied |
/// | `method`, `host`, `cost` | those of the request |
/// | `retry_after_s` | after a denial, the seconds until a retry |
/// | `correlation_id`, `duration_s` | as given in [`About`] |
/// | `left_out` | the number of events of denials that were left out since the last one |
///
/// | level | decision |
/// |---|---|
/// | `WARN` | a denial |
/// | `INFO` | a request that is allowed, and that a shadow rule would have denied: `shadow denied` |
/// | `INFO` | a denial in spite of which the request passes: see [`About::shadow`] |
/// | `DEBUG` | any other |
///
/// The outcomes are `allowed`, `exempt`, `no rule`, `shadow denied`, `denied`, `penalized`,
/// `crowded`, `no address`, `unidentified`, `path` and `stored`.
///
/// An event has neither the path nor the address of a request, nor any header: they may be
/// personal. A limit of the core keeps denials from filling a log: by default, 10 at once and 1 per
/// second. It applies to events of the levels `WARN` and `INFO`.
///
/// # Cost
///
/// Without a subscriber that wants the event, two loads. Otherwise the cost of the subscriber, and
/// of the limit. A decision that is not recorded costs nothing.
///
/// ```
/// use portcullis_core::Timestamp;
/// use portcullis_policy::{About, DecisionLog, Policy, Request, Rule};
///
/// static LOG: DecisionLog = DecisionLog::new();
///
/// let policy = Policy::new([Rule::new("all").limit("1/s".parse()?)]).unwrap();
/// let now = Timestamp::from_secs(1);
/// let request = Request::new("GET", "/").host("api.example.com");
/// for _ in 0..2 {
///     let decision = policy.decide_at(now, &request);
///     LOG.record_at(now, &request, &decision, About::new().correlation_id("4711"));
/// }
/// # Ok::<(), portcullis_policy::PeriodError>(())
/// ```
pub struct DecisionLog {
    denials: TokenBucket,
    left_out: AtomicU64,
}

/// What the caller knows of a request, for an event of [`DecisionLog`].
///
/// ```
/// use core::time::Duration;
/// use portcullis_policy::About;
/// let about = About::new().correlation_id("4711").duration(Duration::from_millis(20));
/// assert_eq!(about.correlation_id, Some("4711"));
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct About<'a> {
    /// The id by which other logs name the request.
    pub correlation_id: Option<&'a str>,
    /// How long the request took, if it is over.
    pub duration: Option<Duration>,
    /// Whether the request passes in spite of a denial, because the caller only counts denials.
    pub shadow: bool,
    /// The limit that denied, if it is one of a counter store: the [`Decision`] has none of these.
    pub limit: Option<&'a Limit>,
    /// When to retry, if the [`Decision`] does not know: after a denial by a counter store, or
    /// after a wait.
    pub retry: Option<Retry>,
}

impl<'a> About<'a> {
    /// Nothing is known.
    ///
    /// ```
    /// # use portcullis_policy::About;
    /// assert!(About::new().duration.is_none());
    /// ```
    #[must_use]
    pub const fn new() -> Self {
        Self {
            correlation_id: None,
            duration: None,
            shadow: false,
            limit: None,
            retry: None,
        }
    }

    /// Sets the [`correlation_id`](Self::correlation_id).
    ///
    /// ```
    /// # use portcullis_policy::About;
    /// let _ = About::new().correlation_id("4711");
    /// ```
    #[must_use]
    pub const fn correlation_id(mut self, id: &'a str) -> Self {
        self.correlation_id = Some(id);
        self
    }

    /// Sets whether the request passes in spite of a denial: [`shadow`](Self::shadow).
    ///
    /// ```
    /// # use portcullis_policy::About;
    /// let _ = About::new().shadow(true);
    /// ```
    #[must_use]
    pub const fn shadow(mut self, shadow: bool) -> Self {
        self.shadow = shadow;
        self
    }

    /// Sets the [`limit`](Self::limit), such as
    /// [`StoredDecision::denied_in_store`](crate::StoredDecision::denied_in_store).
    ///
    /// ```
    /// # use portcullis_policy::About;
    /// let _ = About::new().limit(&"5/m".parse()?);
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    #[must_use]
    pub const fn limit(mut self, limit: &'a Limit) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Sets when to [`retry`](Self::retry), such as
    /// [`StoredDecision::retry`](crate::StoredDecision::retry).
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::Retry;
    /// # use portcullis_policy::About;
    /// let _ = About::new().retry(Retry::After(Duration::from_secs(57)));
    /// ```
    #[must_use]
    pub const fn retry(mut self, retry: Retry) -> Self {
        self.retry = Some(retry);
        self
    }

    /// Sets the [`duration`](Self::duration).
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_policy::About;
    /// let _ = About::new().duration(Duration::from_millis(20));
    /// ```
    #[must_use]
    pub const fn duration(mut self, duration: Duration) -> Self {
        self.duration = Some(duration);
        self
    }
}

impl Default for DecisionLog {
    fn default() -> Self {
        Self::new()
    }
}

/// Writes an event of a level that is known when the program is compiled.
macro_rules! event {
    ($level:expr, $decided:expr, $message:literal) => {{
        let decided: &Decided<'_> = &$decided;
        tracing::event!(
            target: TARGET,
            $level,
            outcome = decided.outcome,
            rule = decided.rule,
            limit = decided.limit.map(tracing::field::display),
            method = decided.request.method,
            host = decided.request.host,
            cost = decided.request.cost,
            retry_after_s = decided.retry_after,
            correlation_id = decided.about.correlation_id,
            duration_s = decided.about.duration.map(|duration| duration.as_secs_f64()),
            left_out = decided.left_out,
            $message
        );
    }};
}

const TARGET: &str = "portcullis::decision";

/// The fields of an event.
struct Decided<'d> {
    outcome: &'static str,
    rule: Option<&'d str>,
    limit: Option<&'d dyn fmt::Display>,
    request: &'d Request<'d>,
    about: About<'d>,
    retry_after: Option<f64>,
    left_out: Option<u64>,
}

impl DecisionLog {
    /// Creates a log that writes at most 10 events of denials at once, and 1 per second.
    ///
    /// ```
    /// # use portcullis_policy::DecisionLog;
    /// static LOG: DecisionLog = DecisionLog::new();
    /// ```
    #[must_use]
    pub const fn new() -> Self {
        Self::with_limit(TokenBucket::new(Rate::per_second(1), 10))
    }

    /// Creates a log with another limit on events of denials.
    ///
    /// ```
    /// # use portcullis_core::{Rate, TokenBucket};
    /// # use portcullis_policy::DecisionLog;
    /// static LOG: DecisionLog =
    ///     DecisionLog::with_limit(TokenBucket::new(Rate::per_second(100), 1_000));
    /// ```
    #[must_use]
    pub const fn with_limit(denials: TokenBucket) -> Self {
        Self {
            denials,
            left_out: AtomicU64::new(0),
        }
    }

    /// Writes an event for `decision`, which was made for `request`. `now` is the time by which the
    /// log is limited: that of the decision, or a later one.
    ///
    /// ```
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{About, DecisionLog, Policy, Request};
    /// let policy = Policy::new([]).unwrap();
    /// let (now, request) = (Timestamp::ZERO, Request::new("GET", "/"));
    /// let decision = policy.decide_at(now, &request);
    /// DecisionLog::new().record_at(now, &request, &decision, About::new());
    /// ```
    pub fn record_at(
        &self,
        now: Timestamp,
        request: &Request<'_>,
        decision: &Decision<'_>,
        about: About<'_>,
    ) {
        let mut decided = Decided {
            outcome: name_of(decision.outcome()),
            rule: decision.rule().map(Rule::name),
            limit: None,
            request,
            about,
            retry_after: None,
            left_out: None,
        };
        if !decision.is_allowed() {
            let is_wanted = if about.shadow {
                tracing::enabled!(target: TARGET, Level::INFO)
            } else {
                tracing::enabled!(target: TARGET, Level::WARN)
            };
            if is_wanted && self.may_write(now, &mut decided) {
                let denied_by = about.limit.or_else(|| decision.denied_by());
                decided.limit = denied_by.as_ref().map(|limit| limit as &dyn fmt::Display);
                let retry = about.retry.or_else(|| decision.retry());
                let wait = retry.and_then(|retry| retry.wait_from(now));
                decided.retry_after = wait.map(|wait| wait.as_secs_f64());
                if about.shadow {
                    event!(Level::INFO, decided, "request would be denied");
                } else {
                    event!(Level::WARN, decided, "request denied");
                }
            }
        } else if let Some(shadow) = decision.shadow_denied() {
            if tracing::enabled!(target: TARGET, Level::INFO) && self.may_write(now, &mut decided) {
                let denied_by = decision.shadow_denied_by();
                decided.outcome = SHADOW_DENIED;
                decided.rule = Some(shadow.name());
                decided.limit = denied_by.as_ref().map(|limit| limit as &dyn fmt::Display);
                event!(Level::INFO, decided, "a shadow rule would deny the request");
            }
        } else {
            // One for each rule that it took from.
            let mut rules = decision.rules();
            decided.rule = rules.next().map(Rule::name);
            event!(Level::DEBUG, decided, "request allowed");
            for rule in rules {
                decided.rule = Some(rule.name());
                event!(Level::DEBUG, decided, "request allowed");
            }
        }
    }

    /// Whether the limit allows one more event. Tells how many it has left out.
    fn may_write(&self, now: Timestamp, decided: &mut Decided<'_>) -> bool {
        if self.denials.try_acquire_at(now, 1).is_err() {
            self.left_out.fetch_add(1, Relaxed);
            return false;
        }
        decided.left_out = Some(self.left_out.swap(0, Relaxed));
        true
    }
}

/// The outcome in the event of a request that passes, and that a shadow rule would have denied.
const SHADOW_DENIED: &str = "shadow denied";

/// The name of an outcome in events.
fn name_of(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::NoRule => "no rule",
        Outcome::Exempt => "exempt",
        Outcome::Allowed => "allowed",
        Outcome::NoAddress => "no address",
        Outcome::Unidentified => "unidentified",
        Outcome::Path(_) => "path",
        Outcome::Stored => "stored",
        Outcome::Denied {
            denied: Denied::Crowded { .. },
            ..
        } => "crowded",
        Outcome::Denied { limit: None, .. } => "penalized",
        Outcome::Denied { .. } => "denied",
    }
}

shows!([] DecisionLog, "DecisionLog", self: "left_out" => self.left_out.load(Relaxed));
