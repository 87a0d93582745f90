//! Which requests share a limit: those whose keys are equal.

use core::fmt;
use core::hash::{Hash, Hasher};
use core::net::IpAddr;
use std::sync::Arc;

use crate::conditions::{host_name, is_token, is_url};
use crate::path::PathRules;
use crate::path::components;
use crate::request::Request;

mod values;

pub use self::values::{KeyValue, KeyValues};

/// What makes up the key of a request. Requests with equal keys share the limits of a rule.
///
/// A key is made of parts. Without parts, all requests of the rule share its limits.
///
/// ```
/// use portcullis_policy::Key;
/// // A limit for each client of each tenant, on each path.
/// let key = Key::address().and(Key::header("X-Tenant")).and(Key::path());
/// # let _ = key;
/// ```
#[derive(Clone, Debug, Default)]
pub struct Key {
    parts: Vec<Part>,
}

#[derive(Clone)]
enum Part {
    Address { v4: u8, v6: u8 },
    Path,
    Host,
    Text(Text),
    Function(Arc<Function>),
}

type Function = dyn Fn(&Request<'_>, &mut dyn Hasher) -> bool + Send + Sync;

/// A part of a request that is text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Text {
    Method,
    Tier,
    Header(Box<str>),
    FirstHeader(Box<[Box<str>]>),
    Property(Box<str>),
}

/// A part of a [`Key`], as [`Rule::parts`](crate::Rule::parts) lists it.
///
/// ```
/// use portcullis_policy::{Key, KeyPart, Rule};
/// let rule = Rule::new("all").key(Key::address().and(Key::path()));
/// let parts = rule.parts();
/// assert_eq!(parts.key, [KeyPart::Address { v4: 32, v6: 64 }, KeyPart::Path]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyPart<'k> {
    /// The first bits of the address.
    Address {
        /// The bits of an IPv4 address.
        v4: u8,
        /// The bits of an IPv6 address.
        v6: u8,
    },
    /// The path.
    Path,
    /// The host.
    Host,
    /// The method.
    Method,
    /// The service tier.
    Tier,
    /// The first of these header fields that a request has.
    Header(&'k [Box<str>]),
    /// The property with this name.
    Property(&'k str),
    /// What a function of the program selects.
    Function,
}

impl KeyPart<'_> {
    /// Whether it is a header field with credentials, `Authorization` or `Proxy-Authorization`. A
    /// key has them without the name of their scheme.
    ///
    /// ```
    /// # use portcullis_policy::KeyPart;
    /// assert!(KeyPart::Header(&["Authorization".into()]).has_scheme());
    /// assert!(!KeyPart::Header(&["X-Api-Key".into()]).has_scheme());
    /// ```
    #[must_use]
    pub fn has_scheme(&self) -> bool {
        match self {
            Self::Header(names) => names.iter().any(|name| {
                let mut fields = WITH_SCHEME.iter();
                fields.any(|field| field.eq_ignore_ascii_case(name))
            }),
            _ => false,
        }
    }
}

impl Text {
    /// The part of a key that this text is.
    pub(crate) fn part(&self) -> KeyPart<'_> {
        match self {
            Self::Method => KeyPart::Method,
            Self::Tier => KeyPart::Tier,
            Self::Header(name) => KeyPart::Header(core::slice::from_ref(name)),
            Self::FirstHeader(names) => KeyPart::Header(names),
            Self::Property(name) => KeyPart::Property(name),
        }
    }
}

impl Part {
    /// What is wrong with a value of this part, if no request can have it.
    fn refuses(&self, value: &str) -> Option<&'static str> {
        let is_blank = |byte: u8| matches!(byte, b' ' | b'\t');
        match self {
            Self::Path if is_url(value) => Some("is a URL: write its path"),
            Self::Path if value.contains('*') => {
                Some("is a pattern, and an override is for one path: write `%2A` for a `*`")
            }
            Self::Host
                if !value
                    .bytes()
                    .all(|byte| byte.is_ascii_graphic() && !b"*/@".contains(&byte)) =>
            {
                Some("is not the name of one host")
            }
            Self::Text(Text::Method) if !value.is_empty() && !is_token(value) => {
                Some("is not a method, such as `GET`")
            }
            Self::Text(Text::Header(_) | Text::FirstHeader(_))
                if value.trim_matches([' ', '\t']) != value
                    || value
                        .bytes()
                        .any(|byte| byte.is_ascii_control() && !is_blank(byte)) =>
            {
                Some("is not the value of a header field: it has a blank at an end, or a control")
            }
            _ => None,
        }
    }
}

impl Text {
    /// The bytes of the text, or `None` if the request does not have it. The bytes of a header need
    /// not be UTF-8: each such value is a key of its own.
    pub(crate) fn of<'r>(&self, request: &'r Request<'_>) -> Option<&'r [u8]> {
        let text = match self {
            Self::Method => match request.method {
                "HEAD" => b"GET",
                method => method.as_bytes(),
            },
            Self::Tier => request.tier.as_bytes(),
            Self::Header(name) => request.headers.bytes(name)?,
            Self::FirstHeader(names) => {
                let mut values = names.iter().filter_map(|name| request.headers.bytes(name));
                values.find(|value| !value.is_empty())?
            }
            Self::Property(name) => request.properties.bytes(name)?,
        };
        (!text.is_empty()).then_some(text)
    }

    /// The bytes that identify a client. Of credentials, these are the ones after the name of their
    /// scheme: a service ignores the case of that name, and how many blanks follow it.
    pub(crate) fn key_of<'r>(&self, request: &'r Request<'_>) -> Option<&'r [u8]> {
        let text = self.of(request)?;
        let has_scheme = self.part().has_scheme();
        Some(if has_scheme {
            without_scheme(text)
        } else {
            text
        })
    }
}

/// The header fields whose values begin with the name of a scheme (RFC 9110, section 11.4).
const WITH_SCHEME: [&str; 2] = ["authorization", "proxy-authorization"];

fn without_scheme(credentials: &[u8]) -> &[u8] {
    let credentials = credentials.trim_ascii();
    let end = credentials.iter().position(u8::is_ascii_whitespace);
    end.map_or(credentials, |end| credentials[end..].trim_ascii_start())
}

impl Key {
    /// A key without parts: all requests share the limits.
    ///
    /// ```
    /// # use portcullis_policy::Key;
    /// let _ = Key::shared();
    /// ```
    #[must_use]
    pub fn shared() -> Self {
        Self::default()
    }

    /// The address of the client. An IPv6 client has a whole network of addresses, so of an IPv6
    /// address the first 64 bits count.
    ///
    /// ```
    /// # use portcullis_policy::Key;
    /// let _ = Key::address();
    /// ```
    #[must_use]
    pub fn address() -> Self {
        Self::address_prefix(32, 64)
    }

    /// The first bits of the address of the client: `v4` of an IPv4 address, 0 to 32, and `v6` of
    /// an IPv6 address, 0 to 128. Larger numbers count as 32 and 128.
    ///
    /// ```
    /// # use portcullis_policy::Key;
    /// let _ = Key::address_prefix(24, 56);
    /// ```
    #[must_use]
    pub fn address_prefix(v4: u8, v6: u8) -> Self {
        Self::part(Part::Address {
            v4: v4.min(32),
            v6: v6.min(128),
        })
    }

    /// The normalized path.
    ///
    /// ```
    /// # use portcullis_policy::Key;
    /// let _ = Key::path();
    /// ```
    #[must_use]
    pub fn path() -> Self {
        Self::part(Part::Path)
    }

    /// The method. `HEAD` counts as `GET`, because servers answer it by the handler of `GET`.
    ///
    /// ```
    /// # use portcullis_policy::Key;
    /// let _ = Key::method();
    /// ```
    #[must_use]
    pub fn method() -> Self {
        Self::part(Part::Text(Text::Method))
    }

    /// The host, without its port and without regard to case.
    ///
    /// ```
    /// # use portcullis_policy::Key;
    /// let _ = Key::host();
    /// ```
    #[must_use]
    pub fn host() -> Self {
        Self::part(Part::Host)
    }

    /// The service tier.
    ///
    /// ```
    /// # use portcullis_policy::Key;
    /// let _ = Key::tier();
    /// ```
    #[must_use]
    pub fn tier() -> Self {
        Self::part(Part::Text(Text::Tier))
    }

    /// The value of a header. Of `Authorization` and `Proxy-Authorization`, the credentials without
    /// the name of their scheme: `Bearer abc` and `bearer  abc` are one key.
    ///
    /// ```
    /// # use portcullis_policy::Key;
    /// let _ = Key::header("X-Api-Key");
    /// ```
    #[must_use]
    pub fn header(name: &str) -> Self {
        Self::part(Part::Text(Text::Header(name.into())))
    }

    /// The value of the first of these headers that the request has. Requests with the same value
    /// have the same key, whichever of the headers has it.
    ///
    /// ```
    /// # use portcullis_policy::Key;
    /// let _ = Key::first_header(["X-Api-Key", "X-Old-Api-Key"]);
    /// ```
    #[must_use]
    pub fn first_header<S: Into<Box<str>>>(names: impl IntoIterator<Item = S>) -> Self {
        let names = names.into_iter().map(Into::into).collect();
        Self::part(Part::Text(Text::FirstHeader(names)))
    }

    /// The value of a property.
    ///
    /// ```
    /// # use portcullis_policy::Key;
    /// let _ = Key::property("tenant");
    /// ```
    #[must_use]
    pub fn property(name: &str) -> Self {
        Self::part(Part::Text(Text::Property(name.into())))
    }

    /// What a function writes to a hasher. It returns `false` if the request has no such part. Two
    /// requests for which it writes the same have the same key.
    ///
    /// ```
    /// # use portcullis_policy::Key;
    /// // The first letter of the path.
    /// let _ = Key::function(|request, hasher| match request.path.as_bytes().get(1) {
    ///     Some(&letter) => {
    ///         hasher.write_u8(letter);
    ///         true
    ///     }
    ///     None => false,
    /// });
    /// ```
    #[must_use]
    pub fn function(
        function: impl Fn(&Request<'_>, &mut dyn Hasher) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self::part(Part::Function(Arc::new(function)))
    }

    /// The parts of both keys.
    ///
    /// ```
    /// # use portcullis_policy::Key;
    /// let _ = Key::header("X-Tenant").and(Key::method());
    /// ```
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.parts.extend(other.parts);
        self
    }

    fn part(part: Part) -> Self {
        Self { parts: vec![part] }
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.parts.is_empty()
    }

    /// Whether both keys have the same parts, so that they hash every request alike. A function is
    /// the same as its clones.
    #[cfg(feature = "live")]
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let is_same = |parts: (&Part, &Part)| match parts {
            (Part::Address { v4, v6 }, Part::Address { v4: a, v6: b }) => (v4, v6) == (a, b),
            (Part::Path, Part::Path) | (Part::Host, Part::Host) => true,
            (Part::Text(text), Part::Text(other)) => text == other,
            (Part::Function(function), Part::Function(other)) => Arc::ptr_eq(function, other),
            _ => false,
        };
        self.parts.len() == other.parts.len() && self.parts.iter().zip(&other.parts).all(is_same)
    }

    /// Calls `then` with the key of a request whose parts have these values, in the order of the
    /// parts. Returns what is wrong with the values, if no request can have them.
    pub(crate) fn with_values<T>(
        &self,
        values: &[Box<str>],
        path_rules: PathRules,
        then: impl FnOnce(&KeyOf<'_>) -> T,
    ) -> Result<T, String> {
        if values.len() != self.parts.len() {
            let count = |n, what| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
            return Err(format!(
                "the key has {}, so an override has {}, not {}",
                count(self.parts.len(), "part"),
                count(self.parts.len(), "value"),
                values.len()
            ));
        }
        let (mut headers, mut properties) = (Vec::new(), Vec::new());
        let mut request = Request::new("", "");
        for (part, value) in self.parts.iter().zip(values) {
            if let Some(problem) = part.refuses(value) {
                return Err(format!("`{}` {problem}", value.escape_debug()));
            }
            match part {
                Part::Address { .. } => match value.parse() {
                    Ok(address) => request = request.address(address),
                    Err(_) => return Err(format!("`{value}` is not an address")),
                },
                Part::Path => request.path = value,
                Part::Host => request.host = value,
                Part::Text(Text::Method) => request.method = value,
                Part::Text(Text::Tier) => request.tier = value,
                Part::Text(Text::Header(name)) => headers.push((&**name, &**value)),
                Part::Text(Text::FirstHeader(names)) => {
                    headers.extend(names.first().map(|name| (&**name, &**value)));
                }
                Part::Text(Text::Property(name)) => properties.push((&**name, &**value)),
                Part::Function(_) => {
                    let problem = "a part of the key is a function, which has no values to name";
                    return Err(problem.into());
                }
            }
        }
        let request = request.headers(&headers).properties(&properties);
        let key = KeyOf::new(self, &request, path_rules);
        let result = then(&key);
        if key.is_complete() {
            Ok(result)
        } else {
            Err(format!("no request has the key {values:?}"))
        }
    }

    /// The parts, in their order.
    pub(crate) fn parts(&self) -> impl Iterator<Item = KeyPart<'_>> {
        self.parts.iter().map(|part| match part {
            Part::Address { v4, v6 } => KeyPart::Address { v4: *v4, v6: *v6 },
            Part::Path => KeyPart::Path,
            Part::Host => KeyPart::Host,
            Part::Text(text) => text.part(),
            Part::Function(_) => KeyPart::Function,
        })
    }

    /// Whether the path is a part.
    #[cfg(feature = "live")]
    pub(crate) fn has_path(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Path))
    }

    /// The parts that are text.
    pub(crate) fn texts(&self) -> impl Iterator<Item = &Text> {
        self.parts.iter().filter_map(|part| match part {
            Part::Text(text) => Some(text),
            _ => None,
        })
    }
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address { v4, v6 } => write!(f, "Address(/{v4}, /{v6})"),
            Self::Path => f.write_str("Path"),
            Self::Host => f.write_str("Host"),
            Self::Text(text) => text.fmt(f),
            Self::Function(_) => f.write_str("Function"),
        }
    }
}

/// The key of one request: hashes what the parts select.
pub(crate) struct KeyOf<'k> {
    key: &'k Key,
    request: &'k Request<'k>,
    path_rules: PathRules,
    lacks: core::cell::Cell<Lacks>,
}

/// What a request lacks of a key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lacks {
    Nothing,
    /// A part other than the address.
    Part,
    /// The address, and maybe other parts.
    Address,
}

impl<'k> KeyOf<'k> {
    pub(crate) fn new(key: &'k Key, request: &'k Request<'k>, path_rules: PathRules) -> Self {
        Self {
            key,
            request,
            path_rules,
            lacks: core::cell::Cell::new(Lacks::Nothing),
        }
    }

    /// Whether the request had all parts, once the key has been hashed.
    #[inline]
    pub(crate) fn is_complete(&self) -> bool {
        self.lacks.get() == Lacks::Nothing
    }

    /// Whether the request lacked the address, once the key has been hashed.
    #[inline]
    pub(crate) fn lacks_address(&self) -> bool {
        self.lacks.get() == Lacks::Address
    }
}

impl Hash for KeyOf<'_> {
    /// Each part ends with a byte that UTF-8 does not contain, so that the bytes of one part cannot
    /// pass for those of the next. A path and a header may contain any byte, so the bytes are also
    /// unique when they are read from the end: a path ends with the number of its components, text
    /// that contains such a byte with its length and an end of its own, and an address begins and
    /// ends with its version. A missing part is a byte of its own.
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        const PRESENT: u8 = 0xff;
        const MISSING: u8 = 0xfe;
        const WITH_LENGTH: u8 = 0xfd;
        for part in &self.key.parts {
            let is_present = match part {
                Part::Address { v4, v6 } => match self.request.address {
                    Some(address) => {
                        hash_network(address, (*v4, *v6), hasher);
                        true
                    }
                    None => false,
                },
                Part::Path => {
                    let hashed = self.path_rules.with(self.request.path, |path| {
                        let mut count = 0;
                        for component in components(path) {
                            hasher.write(component);
                            hasher.write_u8(b'/');
                            count += 1;
                        }
                        hasher.write_usize(count);
                    });
                    hashed.is_ok()
                }
                Part::Host => {
                    let host = host_name(self.request.host);
                    for byte in host.bytes() {
                        hasher.write_u8(byte.to_ascii_lowercase());
                    }
                    !host.is_empty()
                }
                Part::Text(text) => match text.key_of(self.request) {
                    Some(text) => {
                        hasher.write(text);
                        if text.iter().any(|&byte| byte >= WITH_LENGTH) {
                            hasher.write_usize(text.len());
                            hasher.write_u8(WITH_LENGTH);
                        }
                        true
                    }
                    None => false,
                },
                Part::Function(function) => function(self.request, hasher),
            };
            hasher.write_u8(if is_present { PRESENT } else { MISSING });
            if !is_present {
                self.lacks.set(match (part, self.lacks.get()) {
                    (Part::Address { .. }, _) | (_, Lacks::Address) => Lacks::Address,
                    _ => Lacks::Part,
                });
            }
        }
    }
}

/// Hashes the first bits of an address: the first number of them, if it is an IPv4 address, or the
/// second one.
#[inline]
fn hash_network<H: Hasher>(address: IpAddr, (v4, v6): (u8, u8), hasher: &mut H) {
    match address.to_canonical() {
        IpAddr::V4(address) => {
            let masked = address.to_bits().checked_shr(32 - u32::from(v4));
            hasher.write_u8(4);
            hasher.write_u32(masked.unwrap_or(0));
            hasher.write_u8(4);
        }
        IpAddr::V6(address) => {
            let masked = address.to_bits().checked_shr(128 - u32::from(v6));
            hasher.write_u8(6);
            hasher.write_u128(masked.unwrap_or(0));
            hasher.write_u8(6);
        }
    }
}
