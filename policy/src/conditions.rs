//! What a request must be for a rule to apply: as the user writes it, and parsed.

use core::fmt;
use core::net::IpAddr;

use ipnet::IpNet;

use crate::path::PathRules;
use crate::pattern::Pattern;
use crate::problem::Problem;
use crate::request::{Kind, Request};

/// Which requests a rule applies to. All conditions must hold; a condition that is not set always
/// holds.
///
/// | condition | holds for a request if |
/// |---|---|
/// | [`kind`](Self::kind) | its kind is this one |
/// | [`methods`](Self::methods) | its method is one of them |
/// | [`paths`](Self::paths) | its path matches one of the patterns |
/// | [`hosts`](Self::hosts) | its host is one of the names, or its address is in one of the networks |
/// | [`tiers`](Self::tiers) | its tier is one of them |
/// | [`property`](Self::property) | its property of this name has one of the values |
///
/// ```
/// use portcullis_policy::{Conditions, Matcher, PathRules, Request};
///
/// let uploads = Conditions::new()
///     .methods(["PUT", "POST"])
///     .paths(["/v1/*/blobs/**"])
///     .hosts(["*.example.com", "10.0.0.0/8"]);
/// let matcher = Matcher::new(&[uploads], PathRules::new()).unwrap();
/// let request = Request::new("PUT", "/v1/me/blobs/a/b").host("eu.example.com");
/// assert_eq!(matcher.first(&request), Ok(Some(0)));
/// ```
///
/// # Patterns
///
/// A pattern consists of components. `*` matches one component, and `**` any number of components,
/// or none. Any other component matches itself, after normalization by the same [`PathRules`] as
/// the path. Write `%2A` for a `*` in a path.
///
/// # Hosts
///
/// A name is compared with the request's host, without its port and without regard to case.
/// `*.example.com` matches all names below `example.com`, at any depth, but not that name itself.
/// An address or a network (`192.0.2.7`, `2001:db8::/32`) is compared with the request's address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    pub(crate) kind: Kind,
    methods: Vec<String>,
    paths: Vec<String>,
    hosts: Vec<String>,
    tiers: Vec<String>,
    pub(crate) properties: Vec<(String, Vec<String>)>,
}

fn owned<S: Into<String>>(texts: impl IntoIterator<Item = S>) -> impl Iterator<Item = String> {
    texts.into_iter().map(Into::into)
}

impl Conditions {
    /// Conditions that all requests of [`Kind::Request`] meet.
    ///
    /// ```
    /// # use portcullis_policy::{Conditions, Matcher, PathRules, Request};
    /// let matcher = Matcher::new(&[Conditions::new()], PathRules::new()).unwrap();
    /// assert_eq!(matcher.first(&Request::new("GET", "/")), Ok(Some(0)));
    /// ```
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the kind of the requests. Default [`Kind::Request`].
    ///
    /// ```
    /// # use portcullis_policy::{Conditions, Kind};
    /// let _ = Conditions::new().kind(Kind::Egress);
    /// ```
    #[must_use]
    pub fn kind(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self
    }

    /// Adds methods, such as `GET`. With `GET`, requests with `HEAD` meet the conditions too,
    /// because servers answer them by the handler of `GET`.
    ///
    /// ```
    /// # use portcullis_policy::{Conditions, Matcher, PathRules, Request};
    /// let conditions = [Conditions::new().methods(["GET"])];
    /// let matcher = Matcher::new(&conditions, PathRules::new()).unwrap();
    /// assert_eq!(matcher.first(&Request::new("HEAD", "/")), Ok(Some(0)));
    /// ```
    #[must_use]
    pub fn methods<S: Into<String>>(mut self, methods: impl IntoIterator<Item = S>) -> Self {
        self.methods.extend(owned(methods));
        self
    }

    /// Adds patterns of paths.
    ///
    /// ```
    /// # use portcullis_policy::Conditions;
    /// let _ = Conditions::new().paths(["/v1/**", "/v2/*/tags"]);
    /// ```
    #[must_use]
    pub fn paths<S: Into<String>>(mut self, paths: impl IntoIterator<Item = S>) -> Self {
        self.paths.extend(owned(paths));
        self
    }

    /// Adds names of hosts, addresses and networks.
    ///
    /// ```
    /// # use portcullis_policy::Conditions;
    /// let _ = Conditions::new().hosts(["api.example.com", "*.example.org", "10.0.0.0/8"]);
    /// ```
    #[must_use]
    pub fn hosts<S: Into<String>>(mut self, hosts: impl IntoIterator<Item = S>) -> Self {
        self.hosts.extend(owned(hosts));
        self
    }

    /// Adds service tiers.
    ///
    /// ```
    /// # use portcullis_policy::Conditions;
    /// let _ = Conditions::new().tiers(["free", "trial"]);
    /// ```
    #[must_use]
    pub fn tiers<S: Into<String>>(mut self, tiers: impl IntoIterator<Item = S>) -> Self {
        self.tiers.extend(owned(tiers));
        self
    }

    /// Adds a property, and the values of which it must have one. Values under the same name are
    /// added to the earlier ones. Names are compared without regard to ASCII case.
    ///
    /// ```
    /// # use portcullis_policy::Conditions;
    /// let _ = Conditions::new().property("region", ["eu", "us"]).property("user", ["guest"]);
    /// ```
    #[must_use]
    pub fn property<S: Into<String>>(
        mut self,
        name: impl Into<String>,
        values: impl IntoIterator<Item = S>,
    ) -> Self {
        let name = name.into();
        let known = |(known, _): &(String, _)| known.eq_ignore_ascii_case(&name);
        match self.properties.iter().position(known) {
            Some(at) => self.properties[at].1.extend(owned(values)),
            None => self.properties.push((name, owned(values).collect())),
        }
        self
    }

    /// The methods, the patterns of paths, the hosts and the tiers.
    pub(crate) fn lists(&self) -> [&[String]; 4] {
        [&self.methods, &self.paths, &self.hosts, &self.tiers]
    }

    /// Parses the conditions of the rule with this index. Adds what is wrong to `errors`.
    pub(crate) fn parse(
        &self,
        index: usize,
        rules: PathRules,
        errors: &mut Vec<ConditionError>,
    ) -> Parsed {
        let mut refuse = |setting, value: &str, problem| {
            errors.push(ConditionError {
                index,
                setting,
                value: value.to_owned(),
                problem,
            });
        };
        let mut parsed = Parsed {
            kind: self.kind,
            methods: with_head(&self.methods),
            patterns: Vec::new(),
            names: Vec::new(),
            networks: Vec::new(),
            tiers: boxed(&self.tiers),
            properties: Vec::new(),
        };
        for method in &self.methods {
            if let Some(problem) = method_problem(method) {
                refuse("methods", method, problem);
            }
        }
        for path in &self.paths {
            match Pattern::parse(path, rules) {
                _ if is_url(path) => refuse("paths", path, Problem::PatternWithScheme),
                Ok(pattern) => {
                    parsed.patterns.extend(pattern.with_slash(path));
                    parsed.patterns.push(pattern);
                }
                Err(problem) => refuse("paths", path, problem),
            }
        }
        for host in &self.hosts {
            // First as a network: an IPv4 address could be a name too.
            match (parse_network(host), HostName::parse(host)) {
                (Some(network), _) => parsed.networks.push(network),
                (None, Some(name)) => parsed.names.push(name),
                (None, None) if host.contains('/') => refuse("hosts", host, Problem::Network),
                (None, None) => refuse("hosts", host, Problem::HostName),
            }
        }
        for (name, values) in &self.properties {
            if name.is_empty() {
                refuse("properties", name, Problem::Empty);
            }
            if values.is_empty() {
                refuse("properties", name, Problem::NoValues);
            }
            parsed
                .properties
                .push((name.as_str().into(), boxed(values)));
        }
        parsed
    }
}

/// Whether a text is a token of HTTP (RFC 9110, section 5.6.2), as methods and the names of header
/// fields are.
pub(crate) fn is_token(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(is_part)
}

/// Whether a text is a URL with its scheme, instead of a path.
pub(crate) fn is_url(text: &str) -> bool {
    !text.starts_with('/') && text.contains("://")
}

/// The methods that most services know.
const METHODS: [&str; 9] = [
    "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH",
];

/// What is wrong with a method, which no request can have, or which is a misspelled one.
fn method_problem(method: &str) -> Option<Problem> {
    if method.is_empty() {
        return Some(Problem::Empty);
    }
    if !is_token(method) {
        return Some(Problem::Method);
    }
    let is_misspelled = |known: &&&str| {
        method != **known && {
            let is_case = method.eq_ignore_ascii_case(known);
            // A letter that is doubled, or one too many at the end.
            let is_longer = method.len() == known.len() + 1 && method.starts_with(**known);
            is_case || is_longer
        }
    };
    METHODS
        .iter()
        .find(is_misspelled)
        .map(|known| Problem::Misspelled(known))
}

/// Parses a network or a single address. A network of IPv4 addresses that are mapped to IPv6 is one
/// of IPv4 addresses.
pub(crate) fn parse_network(text: &str) -> Option<IpNet> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(address.to_canonical().into());
    }
    // Leading zeros are read as octal by some programs and as decimal by others.
    text.split_once('/')?.0.parse::<IpAddr>().ok()?;
    let network = text.parse::<IpNet>().ok()?.trunc();
    match (network, network.prefix_len().checked_sub(96)) {
        (IpNet::V6(mapped), Some(len)) => match mapped.addr().to_ipv4_mapped() {
            Some(address) => IpNet::new(address.into(), len).ok(),
            None => Some(network),
        },
        _ => Some(network),
    }
}

/// Methods, with `HEAD` if `GET` is one: servers answer it by the handler of `GET`, without a body.
fn with_head(methods: &[String]) -> Vec<Box<str>> {
    let mut all = boxed(methods);
    let has = |name| methods.iter().any(|method| method == name);
    if has("GET") && !has("HEAD") {
        all.push("HEAD".into());
    }
    all
}

fn boxed(texts: &[String]) -> Vec<Box<str>> {
    texts.iter().map(|text| text.as_str().into()).collect()
}

/// A name of a host, or all names below one. In lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HostName {
    Exact(Box<str>),
    Below(Box<str>),
}

impl HostName {
    fn parse(text: &str) -> Option<Self> {
        let (below, name) = match text.strip_prefix("*.") {
            Some(name) => (true, name),
            None => (false, text),
        };
        let name = name.strip_suffix('.').unwrap_or(name);
        // A name whose last label is a number is an IPv4 address to every client (RFC 1123).
        let last = name.rsplit('.').next().unwrap_or(name);
        if last.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let is_label = |label: &str| {
            (1..=63).contains(&label.len())
                && label
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
        };
        if name.len() > MAX_HOST_LEN || !name.split('.').all(is_label) {
            return None;
        }
        let name = name.to_ascii_lowercase().into_boxed_str();
        Some(if below {
            Self::Below(name)
        } else {
            Self::Exact(name)
        })
    }

    fn matches(&self, host: &str) -> bool {
        match self {
            Self::Exact(name) => host.eq_ignore_ascii_case(name),
            Self::Below(name) => host
                .len()
                .checked_sub(name.len() + 1)
                .filter(|&dot| dot > 0)
                .and_then(|dot| host.as_bytes().get(dot..))
                .is_some_and(|tail| {
                    tail[0] == b'.' && tail[1..].eq_ignore_ascii_case(name.as_bytes())
                }),
        }
    }
}

/// The longest name of a host, in bytes.
pub(crate) const MAX_HOST_LEN: usize = 253;

/// A request's host without its port and without a dot at its end.
pub(crate) fn host_name(host: &str) -> &str {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    name.strip_suffix('.').unwrap_or(name)
}

/// Conditions that are known to be valid.
#[derive(Clone, Debug)]
pub(crate) struct Parsed {
    pub(crate) kind: Kind,
    pub(crate) methods: Vec<Box<str>>,
    pub(crate) patterns: Vec<Pattern>,
    pub(crate) names: Vec<HostName>,
    pub(crate) networks: Vec<IpNet>,
    pub(crate) tiers: Vec<Box<str>>,
    pub(crate) properties: Vec<(Box<str>, Vec<Box<str>>)>,
}

fn allows(values: &[Box<str>], value: &str) -> bool {
    values.is_empty() || values.iter().any(|allowed| **allowed == *value)
}

/// Whether a list of values allows all that another one does.
#[cfg(any(feature = "toml", feature = "json"))]
fn allows_all(values: &[Box<str>], others: &[Box<str>]) -> bool {
    values.is_empty() || !others.is_empty() && others.iter().all(|other| values.contains(other))
}

impl HostName {
    /// Whether this name is for all hosts that the other one is for.
    #[cfg(any(feature = "toml", feature = "json"))]
    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Below(name), Self::Below(below)) if name == below => true,
            (Self::Exact(_), Self::Below(_)) => false,
            (_, Self::Exact(host) | Self::Below(host)) => self.matches(host),
        }
    }
}

impl Parsed {
    /// Whether a request that meets the other conditions always meets these. `false` if that is not
    /// known, also because the comparisons of patterns exceed what is left of the `work`.
    #[cfg(any(feature = "toml", feature = "json"))]
    pub(crate) fn covers(&self, other: &Self, work: &mut usize) -> bool {
        let compared = 1 + self.patterns.len() * other.patterns.len() + other.values();
        *work = work.saturating_sub(compared);
        let is_anywhere = self.names.is_empty() && self.networks.is_empty();
        let is_elsewhere = other.names.is_empty() && other.networks.is_empty();
        let of_name = |name: &HostName| self.names.iter().any(|own| own.covers(name));
        let of_network = |net: &IpNet| self.networks.iter().any(|own| own.contains(net));
        let of_pattern = |other: &Pattern| self.patterns.iter().any(|own| own.covers(other));
        let of_property = |(name, values): &(Box<str>, Vec<Box<str>>)| {
            let mut others = other.properties.iter();
            let theirs = others.find(|(other, _)| other.eq_ignore_ascii_case(name));
            theirs.is_some_and(|(_, theirs)| allows_all(values, theirs))
        };
        *work > 0
            && self.kind == other.kind
            && allows_all(&self.methods, &other.methods)
            && allows_all(&self.tiers, &other.tiers)
            && self.properties.iter().all(of_property)
            && (is_anywhere
                || !is_elsewhere
                    && other.names.iter().all(of_name)
                    && other.networks.iter().all(of_network))
            && (self.patterns.is_empty()
                || !other.patterns.is_empty() && other.patterns.iter().all(of_pattern))
    }

    /// The number of values that are listed, without the patterns of paths.
    pub(crate) fn values(&self) -> usize {
        let properties = self.properties.iter().map(|(_, values)| values.len());
        self.methods.len()
            + self.names.len()
            + self.networks.len()
            + self.tiers.len()
            + properties.sum::<usize>()
    }

    /// The first condition that does not hold, judged one by one. The compiled matcher must agree.
    pub(crate) fn mismatch(&self, request: &Request<'_>, path: &[&[u8]]) -> Option<Mismatch<'_>> {
        let host = host_name(request.host);
        let address = request.address.map(|address| address.to_canonical());
        let in_networks = |address| self.networks.iter().any(|net| net.contains(&address));
        let is_anywhere = self.names.is_empty() && self.networks.is_empty();
        if self.kind != request.kind {
            Some(Mismatch::Kind)
        } else if !allows(&self.methods, request.method) {
            Some(Mismatch::Method)
        } else if !self.patterns.is_empty()
            && !self.patterns.iter().any(|pattern| pattern.matches(path))
        {
            Some(Mismatch::Path)
        } else if !is_anywhere
            && !self.names.iter().any(|name| name.matches(host))
            && !address.is_some_and(in_networks)
        {
            Some(Mismatch::Host)
        } else if !allows(&self.tiers, request.tier) {
            Some(Mismatch::Tier)
        } else {
            let holds = |(name, values): &&(Box<str>, Vec<Box<str>>)| {
                let value = request.properties.value(name);
                !value.is_some_and(|value| allows(values, value))
            };
            let missing = self.properties.iter().find(holds);
            missing.map(|(name, _)| Mismatch::Property(name))
        }
    }
}

/// The first condition of a rule that a request does not meet, in the order of the variants.
///
/// ```
/// use portcullis_policy::{Conditions, Matcher, Mismatch, PathRules, Request};
/// let conditions = [Conditions::new().methods(["GET"]).paths(["/a"])];
/// let matcher = Matcher::new(&conditions, PathRules::new()).unwrap();
/// let mismatches = |path| matcher.mismatch(0, &Request::new("GET", path));
/// assert_eq!(mismatches("/a"), Ok(None));
/// assert_eq!(mismatches("/b"), Ok(Some(Mismatch::Path)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mismatch<'a> {
    /// The request is of another kind.
    Kind,
    /// The method is none of those listed.
    Method,
    /// The path matches none of the patterns.
    Path,
    /// The host is none of the names, and the address is in none of the networks.
    Host,
    /// The tier is none of those listed.
    Tier,
    /// The property of this name is missing, or has none of the values.
    Property(&'a str),
}

/// A condition that is not valid.
///
/// ```
/// use portcullis_policy::{Conditions, Matcher, PathRules};
/// let conditions = [Conditions::new(), Conditions::new().hosts(["10.0.0.0/33"])];
/// let errors = Matcher::new(&conditions, PathRules::new()).unwrap_err();
/// assert_eq!(
///     errors[0].to_string(),
///     "hosts: `10.0.0.0/33` is not a network, such as `10.0.0.0/8` or `2001:db8::/32`"
/// );
/// assert_eq!(errors[0].index, 1);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConditionError {
    /// The index of the conditions, in the order in which they were passed.
    pub index: usize,
    /// The name of the setting.
    pub setting: &'static str,
    /// The text that is refused.
    pub value: String,
    /// What is wrong with it.
    pub problem: Problem,
}

impl fmt::Display for ConditionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: `{}` {}", self.setting, self.value, self.problem)
    }
}

impl core::error::Error for ConditionError {}
