//! A rule: which requests, which limits, and what they share.

use core::fmt;
use core::time::Duration;
use std::collections::HashSet;
use std::sync::Arc;

use foldhash::fast::RandomState;
use ipnet::IpNet;
use portcullis_core::Timestamp;

use crate::conditions::Conditions;
use crate::key::Key;
use crate::key::Text;
use crate::limit::Limit;
use crate::request::{Kind, Request};
use crate::thresholds::Threshold;

mod parts;

pub use self::parts::RuleParts;

/// The largest memory of the tables of a rule, in bytes: 1 GiB.
pub const MAX_TABLE_BYTES: usize = 1 << 30;

/// The largest number of limits of a rule.
pub const MAX_LIMITS: usize = 8;

/// A rule of a [`Policy`](crate::Policy).
///
/// The first rule that matches a request, in the order of [`priority`](Self::priority), decides it.
/// A rule that is [continuing](Self::continuing) leaves the decision to the next one that matches
/// as well. The request takes its permits from all limits of all these rules, or from none.
///
/// ```
/// use core::time::Duration;
/// use portcullis_policy::{Conditions, Key, Limit, Policy, Request, Rule};
///
/// let login = Rule::new("login")
///     .when(Conditions::new().methods(["POST"]).paths(["/login"]))
///     .limit(Limit::per(5, Duration::from_secs(60)))
///     .limit(Limit::per(20, Duration::from_secs(3_600)))
///     .key(Key::address());
/// let policy = Policy::new([login]).unwrap();
/// # let _ = policy;
/// ```
#[derive(Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "they are settings that do not depend on each other"
)]
pub struct Rule {
    /// Shared with the errors of the rule, so that a file with a long name and many errors does not
    /// take their product of memory.
    pub(crate) name: Arc<str>,
    pub(crate) priority: u32,
    pub(crate) conditions: Conditions,
    pub(crate) limits: Vec<Limit>,
    pub(crate) overrides: Vec<KeyOverride>,
    pub(crate) thresholds: Vec<Threshold>,
    pub(crate) key: Key,
    pub(crate) on_missing: OnMissing,
    pub(crate) keys: usize,
    pub(crate) exempt: Vec<(Text, Arc<Values>)>,
    pub(crate) exempt_networks: Vec<String>,
    pub(crate) penalty: Option<Duration>,
    pub(crate) hold: Option<Duration>,
    pub(crate) is_shadow: bool,
    pub(crate) is_enabled: bool,
    pub(crate) is_continuing: bool,
    /// Whether a request can be limited by this rule and by others. A policy sets it.
    pub(crate) adds_up: bool,
    message: Option<Box<str>>,
    status: u16,
    has_headers: bool,
    etag: Option<Box<str>>,
    /// The name of a counter store, if the state of the limits is in one.
    pub(crate) store: Option<Box<str>>,
    pub(crate) is_synced: bool,
    /// The settings that the author of the rule has made, and that are not here: they could not be
    /// read from a file, or they are limits at once and were left out. They count as present: a
    /// setting that needs them is no mistake.
    pub(crate) left_out: Vec<&'static str>,
}

/// Values of a header or a property. Rules may have a list in common, so that a file with many
/// rules and one long list does not take their product of memory.
pub(crate) type Values = HashSet<Box<str>, RandomState>;

/// The limits of one key of a rule.
#[derive(Clone, Debug)]
pub(crate) struct KeyOverride {
    /// The values of the parts of the key.
    pub(crate) key: Vec<Box<str>>,
    pub(crate) limits: Vec<Limit>,
}

/// What a rule does with a request that lacks a part of the rule's [`Key`], such as a header. A
/// part that is empty is missing too.
///
/// A header is the client's to send. The address is not: a program that knows the addresses of its
/// clients knows one for each request. So if an address is missing, the program is not set up for
/// its rules, and all clients would share one limit. By default such a request is denied instead,
/// which the first request shows.
///
/// ```
/// use portcullis_policy::OnMissing;
/// assert_eq!(OnMissing::default(), OnMissing::NeedAddress);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnMissing {
    /// A request without an address is denied, as
    /// [`Outcome::NoAddress`](crate::Outcome::NoAddress). Any other missing part counts as one more
    /// value: all requests without it share a limit.
    #[default]
    NeedAddress,
    /// Each missing part counts as one more value: all requests without it share a limit, also
    /// those without an address. For programs where clients have none, such as behind a Unix
    /// socket.
    Share,
    /// The request is denied: as [`Outcome::NoAddress`](crate::Outcome::NoAddress) if it lacks the
    /// address, and otherwise as [`Outcome::Unidentified`](crate::Outcome::Unidentified).
    Deny,
    /// The rule does not apply. The next rule that the request matches decides.
    Skip,
}

impl Rule {
    /// A rule with this name, which applies to all requests and has no limits. A
    /// [`Policy`](crate::Policy) checks all settings.
    ///
    /// ```
    /// # use portcullis_policy::Rule;
    /// assert_eq!(Rule::new("all").name(), "all");
    /// ```
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            priority: 0,
            conditions: Conditions::new(),
            limits: Vec::new(),
            overrides: Vec::new(),
            thresholds: Vec::new(),
            key: Key::shared(),
            on_missing: OnMissing::default(),
            keys: 1_000,
            exempt: Vec::new(),
            exempt_networks: Vec::new(),
            penalty: None,
            hold: None,
            is_shadow: false,
            is_enabled: true,
            is_continuing: false,
            adds_up: false,
            message: None,
            status: 429,
            has_headers: true,
            etag: None,
            store: None,
            is_synced: false,
            left_out: Vec::new(),
        }
    }

    /// Whether its author has made a setting that is not here.
    pub(crate) fn has_left_out(&self, setting: &str) -> bool {
        self.left_out.contains(&setting)
    }

    /// Whether the rule has no limit, and is not meant to have one.
    pub(crate) fn lacks_limits(&self) -> bool {
        self.limits.is_empty() && !self.has_left_out("limits")
    }

    /// Sets the priority: of the rules that a request matches, the one with the lowest number
    /// decides. Rules with the same number keep their order. Default 0.
    ///
    /// ```
    /// # use portcullis_policy::Rule;
    /// let _ = Rule::new("fallback").priority(100);
    /// ```
    #[must_use]
    pub fn priority(mut self, priority: u32) -> Self {
        self.priority = priority;
        self
    }

    /// Sets which requests the rule applies to. Default: all of
    /// [`Kind::Request`](crate::Kind::Request).
    ///
    /// ```
    /// # use portcullis_policy::{Conditions, Rule};
    /// let _ = Rule::new("login").when(Conditions::new().paths(["/login"]));
    /// ```
    #[must_use]
    pub fn when(mut self, conditions: Conditions) -> Self {
        self.conditions = conditions;
        self
    }

    /// Adds a limit. A rule has at most [`MAX_LIMITS`]. A rule without limits allows every request
    /// that it matches.
    ///
    /// ```
    /// # use portcullis_policy::Rule;
    /// let _ = Rule::new("all").limit("10/s".parse()?).limit("1000/d".parse()?);
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    #[must_use]
    pub fn limit(mut self, limit: Limit) -> Self {
        self.limits.push(limit);
        self
    }

    /// Adds a threshold of activity. A rule has at most [`MAX_THRESHOLDS`](crate::MAX_THRESHOLDS).
    /// A rule with thresholds and without limits decides no requests: it only counts activity.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_policy::{Rule, Threshold};
    /// let captcha = Threshold::new(100, Duration::from_secs(10), "captcha");
    /// let _ = Rule::new("errors").threshold(captcha.holding_for(Duration::from_secs(60)));
    /// ```
    #[must_use]
    pub fn threshold(mut self, threshold: Threshold) -> Self {
        self.thresholds.push(threshold);
        self
    }

    /// Sets which requests share the limits: those with equal keys. Default: all.
    ///
    /// ```
    /// # use portcullis_policy::{Key, Rule};
    /// let _ = Rule::new("clients").key(Key::header("X-Api-Key"));
    /// ```
    #[must_use]
    pub fn key(mut self, key: Key) -> Self {
        self.key = key;
        self
    }

    /// Gives one key other limits than the rule's. `key` has a value for each part of the
    /// [`key`](Self::key), in their order. Without limits, the key is not limited.
    ///
    /// A value of an address is an address. A value of a prefix of addresses is any address in it.
    /// A path is normalized, as that of a request is; a `*` in it is written `%2A`. A value that no
    /// request can have, such as a header's with a blank at its end, is an error. A part that a
    /// function returns has no value that can be named, so a key with a function has no overrides.
    ///
    /// A penalty of the rule is one of its overrides too. The key's state is apart from the
    /// rule's tables, so it always has room, and shares nothing with other keys.
    ///
    /// # Cost
    ///
    /// For a decision by this rule, one probe of a hash table. Nothing for other rules. Memory:
    /// about 1 KB for an override, and 64 bytes for each of its limits and its penalty; a limit
    /// with a [`wait`](Limit::wait) takes about 1 KB, and a sliding window about 6 KB. Several
    /// token buckets and windows without a wait take the memory of 2, 4 or 8 of them, and about 1
    /// KB.
    ///
    /// ```
    /// use portcullis_core::Timestamp;
    /// use portcullis_policy::{Key, Policy, Request, Rule};
    ///
    /// let policy = Policy::new([Rule::new("tenants")
    ///     .key(Key::header("X-Tenant"))
    ///     .limit("10/s".parse()?)
    ///     .override_key(["gold"], ["1000/s".parse()?, "20000/m".parse()?])])
    /// .unwrap();
    /// let now = Timestamp::from_secs(1);
    /// let of = |tenant| [("X-Tenant", tenant)];
    /// let (gold, other) = (of("gold"), of("other"));
    /// let request = Request::new("GET", "/").cost(1_000);
    /// assert!(policy.decide_at(now, &request.headers(&gold)).is_allowed());
    /// assert!(!policy.decide_at(now, &request.headers(&other)).is_allowed());
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    #[must_use]
    pub fn override_key<S: Into<Box<str>>>(
        mut self,
        key: impl IntoIterator<Item = S>,
        limits: impl IntoIterator<Item = Limit>,
    ) -> Self {
        self.overrides.push(KeyOverride {
            key: key.into_iter().map(Into::into).collect(),
            limits: limits.into_iter().collect(),
        });
        self
    }

    /// Sets what happens to a request that lacks a part of the key. Default
    /// [`OnMissing::NeedAddress`].
    ///
    /// ```
    /// # use portcullis_policy::{Key, OnMissing, Rule};
    /// let _ = Rule::new("clients").key(Key::header("X-Api-Key")).on_missing(OnMissing::Deny);
    /// ```
    #[must_use]
    pub fn on_missing(mut self, on_missing: OnMissing) -> Self {
        self.on_missing = on_missing;
        self
    }

    /// Sets how many keys can be in use at once. Default 1,000. A key is in use while it has taken
    /// permits that have not returned, and while its [penalty](Self::penalty) is in force. If there
    /// are more, some new ones are denied: the tables of a rule have a fixed size, so that no one
    /// can push the key of another client out. The answer is then
    /// [`Denied::Crowded`](portcullis_core::Denied::Crowded), and
    /// [`Statistics`](crate::Statistics), the metrics and the events count it apart. A
    /// [threshold](Self::threshold) denies nothing: a report of a key without room returns `false`.
    ///
    /// # Cost
    ///
    /// Memory for each key and limit: 43 bytes. 480 bytes for a limit with a
    /// [`wait`](Limit::wait), and 2.7 KB for a sliding window. Several token buckets and windows
    /// without a wait take the memory of 2, 4 or 8 of them. All tables of a rule together may take
    /// [`MAX_TABLE_BYTES`], and those of all rules
    /// [`PolicySettings::table_bytes`](crate::PolicySettings::table_bytes).
    ///
    /// ```
    /// # use portcullis_policy::{Key, Rule};
    /// let _ = Rule::new("clients").key(Key::address()).keys(100_000);
    /// ```
    #[must_use]
    pub fn keys(mut self, keys: usize) -> Self {
        self.keys = keys;
        self
    }

    /// Exempts the requests whose header has one of these values. They are allowed, and take no
    /// permits.
    ///
    /// ```
    /// # use portcullis_policy::Rule;
    /// let _ = Rule::new("clients").exempt_header("Oc-Client", ["admin", "monitor"]);
    /// ```
    #[must_use]
    pub fn exempt_header<S: Into<Box<str>>>(
        self,
        name: &str,
        values: impl IntoIterator<Item = S>,
    ) -> Self {
        let values = values.into_iter().map(Into::into).collect();
        self.exempt_values(name, Arc::new(values))
    }

    /// As [`exempt_header`](Self::exempt_header), with values that other rules may have too.
    pub(crate) fn exempt_values(mut self, name: &str, values: Arc<Values>) -> Self {
        self.exempt.push((Text::Header(name.into()), values));
        self
    }

    /// Exempts the requests whose property has one of these values. They are allowed, and take no
    /// permits.
    ///
    /// ```
    /// # use portcullis_policy::Rule;
    /// let _ = Rule::new("tenants").exempt_property("tenant", ["internal"]);
    /// ```
    #[must_use]
    pub fn exempt_property<S: Into<Box<str>>>(
        mut self,
        name: &str,
        values: impl IntoIterator<Item = S>,
    ) -> Self {
        let values = values.into_iter().map(Into::into).collect();
        let values = Arc::new(values);
        self.exempt.push((Text::Property(name.into()), values));
        self
    }

    /// Exempts the clients with these addresses, or in these networks: `192.0.2.7`, `10.0.0.0/8`.
    /// Their requests are allowed, and take no permits.
    ///
    /// ```
    /// # use portcullis_policy::Rule;
    /// let _ = Rule::new("clients").exempt_networks(["10.0.0.0/8"]);
    /// ```
    #[must_use]
    pub fn exempt_networks<S: Into<String>>(
        mut self,
        networks: impl IntoIterator<Item = S>,
    ) -> Self {
        self.exempt_networks
            .extend(networks.into_iter().map(Into::into));
        self
    }

    /// Sets a penalty: after a denial by one of the limits, all requests with the same key are
    /// denied for this time. It may end late, by up to a billionth of its length, or by 1 ns if
    /// that is more. Denials in that time do not extend it. Set [`keys`](Self::keys) so that there
    /// is room for all clients that are denied within this time: while the table of the penalty has
    /// no room for a key, the key is denied.
    ///
    /// # Cost
    ///
    /// A denial by a limit then writes, once for each penalty. A decision reads one more word.
    /// Memory: 43 bytes for each key.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_policy::Rule;
    /// let _ = Rule::new("login").limit("5/m".parse()?).penalty(Duration::from_secs(600));
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    #[must_use]
    pub fn penalty(mut self, penalty: Duration) -> Self {
        self.penalty = Some(penalty);
        self
    }

    /// Lets requests [hold](crate::Policy::hold_at) an estimate of their cost for up to this time,
    /// and settle it then: see [`Hold`](crate::Hold). Default: the estimate is the cost.
    ///
    /// # Cost
    ///
    /// 16 bytes more for each key and token bucket.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_policy::Rule;
    /// let _ = Rule::new("tokens").limit("60000/m".parse()?).hold(Duration::from_secs(120));
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    #[must_use]
    pub fn hold(mut self, longest: Duration) -> Self {
        self.hold = Some(longest);
        self
    }

    /// Lets all requests pass that the rule would deny, and lets the next rule decide.
    /// [`Decision::shadow_denied`](crate::Decision::shadow_denied) returns the first such rule.
    ///
    /// It takes and denies as if it alone of all shadow rules were enforced. So if it would decide
    /// together with other rules, because it is [continuing](Self::continuing) or behind a rule
    /// that is, it takes nothing for a request that one of these denies. One exception: if a
    /// counter store denies the request, or a wait ends without a grant, the rule has taken its
    /// permits.
    ///
    /// ```
    /// # use portcullis_policy::Rule;
    /// let _ = Rule::new("stricter").shadow();
    /// ```
    #[must_use]
    pub fn shadow(mut self) -> Self {
        self.is_shadow = true;
        self
    }

    /// Lets the next rule that a request matches limit it as well. The request takes from the
    /// limits of all these rules, or from none. Default: the rule is the last one that is asked.
    ///
    /// A client that the rule exempts takes nothing from this rule, and the next one is asked.
    /// Behind a [shadow](Self::shadow) rule the next one is asked in any case.
    ///
    /// ```
    /// use portcullis_core::Timestamp;
    /// use portcullis_policy::{Conditions, Key, Limit, OnMissing, Policy, Request, Rule};
    ///
    /// let policy = Policy::new([
    ///     Rule::new("each key")
    ///         .key(Key::header("X-Api-Key"))
    ///         .on_missing(OnMissing::Skip)
    ///         .limit("10/s".parse()?)
    ///         .continuing(),
    ///     Rule::new("logins")
    ///         .when(Conditions::new().methods(["POST"]).paths(["/login"]))
    ///         .key(Key::address())
    ///         .limit("5/m".parse()?)
    ///         .continuing(),
    ///     Rule::new("service").limit(Limit::at_once(100)),
    /// ])
    /// .unwrap();
    /// let headers = [("X-Api-Key", "a")];
    /// let login = Request::new("POST", "/login").headers(&headers);
    /// let login = login.address("192.0.2.7".parse().unwrap());
    /// let decision = policy.decide_at(Timestamp::from_secs(1), &login);
    /// assert!(decision.rules().map(Rule::name).eq(["each key", "logins", "service"]));
    /// assert!(decision.statuses().map(|limit| limit.remaining).eq([9, 4, 99]));
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    #[must_use]
    pub fn continuing(mut self) -> Self {
        self.is_continuing = true;
        self
    }

    /// Disables the rule: it applies to no request.
    ///
    /// ```
    /// # use portcullis_policy::Rule;
    /// let _ = Rule::new("later").disabled();
    /// ```
    #[must_use]
    pub fn disabled(mut self) -> Self {
        self.is_enabled = false;
        self
    }

    /// Sets the text for clients that are denied.
    ///
    /// ```
    /// # use portcullis_policy::Rule;
    /// assert_eq!(Rule::new("all").with_message("slow down").message(), Some("slow down"));
    /// ```
    #[must_use]
    pub fn with_message(mut self, message: &str) -> Self {
        self.message = Some(message.into());
        self
    }

    /// Sets the HTTP status of a denial, 400 to 599. Default 429.
    ///
    /// ```
    /// # use portcullis_policy::Rule;
    /// assert_eq!(Rule::new("all").with_status(503).status(), 503);
    /// ```
    #[must_use]
    pub fn with_status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    /// Keeps the limits of the rule from the headers of responses: no `RateLimit` or
    /// `X-RateLimit-*`, and no `Retry-After` on its denials. Default: a program that states limits
    /// states those of this rule too.
    ///
    /// ```
    /// # use portcullis_policy::Rule;
    /// assert!(!Rule::new("internal").without_headers().has_headers());
    /// ```
    #[must_use]
    pub fn without_headers(mut self) -> Self {
        self.has_headers = false;
        self
    }

    /// Sets a tag that changes with the rule, as its source defines it.
    ///
    /// ```
    /// # use portcullis_policy::Rule;
    /// assert_eq!(Rule::new("all").with_etag("v7").etag(), Some("v7"));
    /// ```
    #[must_use]
    pub fn with_etag(mut self, etag: &str) -> Self {
        self.etag = Some(etag.into());
        self
    }

    /// Keeps the state of the limits in a counter store with this name, which the program gives the
    /// policy: see [`Stores`](crate::Stores). All instances that use the store share the limits.
    ///
    /// Requests of the rule are then decided by
    /// [`Policy::decide_stored`](crate::Policy::decide_stored); the methods that do not ask
    /// a store deny them as [`Outcome::Stored`](crate::Outcome::Stored). Limits in a store are
    /// token buckets, fixed windows and sliding windows, without a queue, a debt or initial
    /// permits. The rule has no penalty and no hold, and is not of the kind
    /// [`Ingress`](crate::Kind::Ingress) or [`Egress`](crate::Kind::Egress). [`keys`](Self::keys)
    /// has no effect: the store has a bound of its own.
    ///
    /// ```
    /// # use portcullis_policy::Rule;
    /// let rule = Rule::new("clients").limit("100/m".parse()?).stored_in("shared");
    /// assert_eq!(rule.store(), Some("shared"));
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    #[must_use]
    pub fn stored_in(mut self, store: &str) -> Self {
        self.store = Some(store.into());
        self
    }

    /// Tells other instances of denials, if the state of the limits is in a store with a channel:
    /// see [`CachedStore::with_channel`](portcullis_counters::CachedStore::with_channel).
    ///
    /// ```
    /// # use portcullis_policy::Rule;
    /// assert!(Rule::new("clients").stored_in("shared").synced().is_synced());
    /// ```
    #[must_use]
    pub fn synced(mut self) -> Self {
        self.is_synced = true;
        self
    }

    /// Keeps the state of the limits in this process again: takes back
    /// [`stored_in`](Self::stored_in) and [`synced`](Self::synced).
    ///
    /// ```
    /// # use portcullis_policy::Rule;
    /// let rule = Rule::new("clients").stored_in("shared").synced().in_process();
    /// assert_eq!((rule.store(), rule.is_synced()), (None, false));
    /// ```
    #[must_use]
    pub fn in_process(mut self) -> Self {
        (self.store, self.is_synced) = (None, false);
        self
    }

    /// Returns this rule without its limits, [overrides](Self::override_key), thresholds and
    /// penalty: it decides the same requests and allows them, unless they lack a part of a key that
    /// it needs.
    ///
    /// ```
    /// # use portcullis_policy::Rule;
    /// let rule = Rule::new("all").limit("10/s".parse()?).continuing().unlimited();
    /// assert!(rule.limits().is_empty() && rule.is_continuing());
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    #[must_use]
    pub fn unlimited(mut self) -> Self {
        self.limits.clear();
        self.overrides.clear();
        self.thresholds.clear();
        self.penalty = None;
        self
    }

    /// Returns this rule with these limits in place of its own. Those of its
    /// [overrides](Self::override_key) stay.
    ///
    /// ```
    /// # use portcullis_policy::Rule;
    /// let rule = Rule::new("all").limit("10/s".parse()?).with_limits(["5/s".parse()?]);
    /// assert!(rule.limits().iter().map(|limit| limit.count()).eq([5]));
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    #[must_use]
    pub fn with_limits(mut self, limits: impl IntoIterator<Item = Limit>) -> Self {
        self.limits = limits.into_iter().collect();
        self
    }

    /// Returns this rule with each of its limits, and those of its
    /// [overrides](Self::override_key), [scaled](Limit::scaled) by `part / whole`.
    ///
    /// # Panics
    ///
    /// If `whole` is 0 and the rule has limits.
    ///
    /// ```
    /// # use portcullis_policy::Rule;
    /// let rule = Rule::new("all").limit("10/s".parse()?).limit("100/h".parse()?).scaled(3, 2);
    /// assert!(rule.limits().iter().map(|limit| limit.count()).eq([15, 150]));
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    #[must_use]
    pub fn scaled(mut self, part: u64, whole: u64) -> Self {
        let of_keys = self.overrides.iter_mut().map(|of_key| &mut of_key.limits);
        for limits in of_keys.chain([&mut self.limits]) {
            for limit in limits {
                *limit = limit.clone().scaled(part, whole);
            }
        }
        self
    }

    /// Returns the name.
    ///
    /// ```
    /// # use portcullis_policy::Rule;
    /// assert_eq!(Rule::new("all").name(), "all");
    /// ```
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the kind of the requests that the rule is for.
    ///
    /// ```
    /// # use portcullis_policy::{Kind, Rule};
    /// assert_eq!(Rule::new("all").kind(), Kind::Request);
    /// ```
    pub fn kind(&self) -> Kind {
        self.conditions.kind
    }

    /// Returns whether the rule is a [shadow](Self::shadow).
    ///
    /// ```
    /// # use portcullis_policy::Rule;
    /// assert!(Rule::new("new").shadow().is_shadow());
    /// ```
    pub fn is_shadow(&self) -> bool {
        self.is_shadow
    }

    /// Returns whether the rule is in force: not [disabled](Self::disabled).
    ///
    /// ```
    /// # use portcullis_policy::Rule;
    /// assert!(!Rule::new("old").disabled().is_enabled());
    /// ```
    pub fn is_enabled(&self) -> bool {
        self.is_enabled
    }

    /// Returns whether the next rule that a request matches limits it as well: see
    /// [`continuing`](Self::continuing).
    ///
    /// ```
    /// # use portcullis_policy::Rule;
    /// assert!(Rule::new("each key").continuing().is_continuing());
    /// ```
    pub fn is_continuing(&self) -> bool {
        self.is_continuing
    }

    /// When a hold that begins at `now` ends. `None` if the rule allows none.
    pub(crate) fn ends(&self, now: Timestamp) -> Option<Timestamp> {
        self.hold.map(|longest| now + longest)
    }

    /// Whether a token bucket counts what is given back to it, so that it takes back a grant that
    /// others have followed: after a settlement, or because another rule or a store denies. Of what
    /// was granted after a wait in its queue only the last grant can return, and is not counted.
    pub(crate) fn counts_refunds(&self) -> bool {
        let has_queue = || self.limits.iter().any(|limit| limit.queue_limit() > 0);
        self.hold.is_some() || self.adds_up && !has_queue()
    }

    /// Returns the limits.
    ///
    /// ```
    /// # use portcullis_policy::Rule;
    /// assert!(Rule::new("all").limits().is_empty());
    /// ```
    pub fn limits(&self) -> &[Limit] {
        &self.limits
    }

    /// Returns the thresholds.
    ///
    /// ```
    /// # use portcullis_policy::Rule;
    /// assert!(Rule::new("all").thresholds().is_empty());
    /// ```
    pub fn thresholds(&self) -> &[Threshold] {
        &self.thresholds
    }

    /// Returns the text for clients that are denied, if one was set.
    ///
    /// ```
    /// # use portcullis_policy::Rule;
    /// assert_eq!(Rule::new("all").message(), None);
    /// ```
    pub fn message(&self) -> Option<&str> {
        self.message.as_deref()
    }

    /// Returns the HTTP status of a denial.
    ///
    /// ```
    /// # use portcullis_policy::Rule;
    /// assert_eq!(Rule::new("all").status(), 429);
    /// ```
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Returns whether a request must have a property with this value, or another value that the
    /// conditions name, for the rule to apply.
    ///
    /// ```
    /// # use portcullis_policy::{Conditions, Rule};
    /// let eu = Rule::new("eu").when(Conditions::new().property("region", ["eu"]));
    /// assert!(eu.needs_property("region", "eu"));
    /// assert!(!eu.needs_property("region", "us"));
    /// ```
    pub fn needs_property(&self, name: &str, value: &str) -> bool {
        let mut properties = self.conditions.properties.iter();
        properties.any(|(known, values)| known == name && values.iter().any(|v| v == value))
    }

    /// Returns whether the headers of responses state the limits: see
    /// [`without_headers`](Self::without_headers).
    ///
    /// ```
    /// # use portcullis_policy::Rule;
    /// assert!(Rule::new("all").has_headers());
    /// ```
    pub fn has_headers(&self) -> bool {
        self.has_headers
    }

    /// Returns the tag, if one was set.
    ///
    /// ```
    /// # use portcullis_policy::Rule;
    /// assert_eq!(Rule::new("all").etag(), None);
    /// ```
    pub fn etag(&self) -> Option<&str> {
        self.etag.as_deref()
    }

    /// Returns the name of the counter store that keeps the state of the limits, if one was set.
    ///
    /// ```
    /// # use portcullis_policy::Rule;
    /// assert_eq!(Rule::new("all").store(), None);
    /// ```
    pub fn store(&self) -> Option<&str> {
        self.store.as_deref()
    }

    /// Returns whether other instances are told of denials: see [`synced`](Self::synced).
    ///
    /// ```
    /// # use portcullis_policy::Rule;
    /// assert!(!Rule::new("all").is_synced());
    /// ```
    pub fn is_synced(&self) -> bool {
        self.is_synced
    }

    /// For how many keys the tables have room. `None` for the one key that all requests share.
    pub(crate) fn table_keys(&self) -> Option<usize> {
        (!self.key.is_shared()).then_some(self.keys)
    }

    /// Whether the client of a request is exempt.
    pub(crate) fn exempts(&self, request: &Request<'_>, networks: &[IpNet]) -> bool {
        let lists = |(text, values): &(Text, Arc<Values>)| {
            let text = text.of(request).and_then(|text| str::from_utf8(text).ok());
            text.is_some_and(|text| values.contains(text))
        };
        let address = request.address.map(|address| address.to_canonical());
        self.exempt.iter().any(lists)
            || address.is_some_and(|address| networks.iter().any(|net| net.contains(&address)))
    }
}

/// A setting of a rule that is not valid.
///
/// ```
/// use portcullis_policy::{Conditions, Policy, Rule};
/// let rule = Rule::new("search").when(Conditions::new().paths(["/search*"]));
/// let errors = Policy::new([rule]).unwrap_err();
/// assert!(errors[0].to_string().starts_with("rule `search`: paths: `/search*` has a `*` within"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuleError {
    /// The name of the rule.
    pub rule: Arc<str>,
    /// The setting, such as `paths` or `limits[1]`.
    pub setting: String,
    /// The text that is refused, if the setting is text.
    pub value: Option<String>,
    /// What is wrong with it, and what is allowed.
    pub problem: String,
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            rule,
            setting,
            value,
            problem,
        } = self;
        write!(f, "rule `{rule}`: {setting}: ")?;
        if let Some(value) = value {
            write!(f, "`{value}` ")?;
        }
        f.write_str(problem)
    }
}

impl core::error::Error for RuleError {}
