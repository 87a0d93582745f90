//! What a decision is about, in borrowed text. No type of an HTTP library.

use core::net::IpAddr;

/// What a rule limits. A request is judged by the rules of its kind.
///
/// The same request may be judged once for each kind, such as [`Request`](Self::Request) when it
/// arrives, and [`Egress`](Self::Egress) with the number of bytes of its reply as
/// [`cost`](crate::Request::cost). The kinds only tell rules apart: `Request`, `Burst` and
/// `Concurrency` take the same limits and mean the same. With several of them, a request has limits
/// with different keys.
///
/// ```
/// use portcullis_policy::Kind;
/// assert_eq!(Kind::default(), Kind::Request);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Kind {
    /// Requests.
    #[default]
    Request,
    /// Bytes that come in.
    Ingress,
    /// Bytes that go out.
    Egress,
    /// Requests, for rules on what may come within a short time.
    Burst,
    /// Requests, for rules on what may be in progress at once.
    Concurrency,
}

impl Kind {
    pub(crate) const ALL: [Self; 5] = [
        Self::Request,
        Self::Ingress,
        Self::Egress,
        Self::Burst,
        Self::Concurrency,
    ];
}

/// Values by name, such as the headers of a request. Names are compared without regard to ASCII
/// case.
///
/// Implemented for slices, arrays and vectors of pairs. Of several values under one name, the first
/// counts.
///
/// ```
/// use portcullis_policy::Fields;
/// let headers = [("X-Api-Key", "k1")];
/// assert_eq!(headers.bytes("x-api-key"), Some(&b"k1"[..]));
/// assert_eq!(headers.value("x-api-key"), Some("k1"));
/// ```
pub trait Fields {
    /// Returns the value under `name`, which need not be UTF-8: the value of a header of HTTP is
    /// any bytes. A [key](crate::Key) tells all values apart.
    fn bytes(&self, name: &str) -> Option<&[u8]>;

    /// Returns the value under `name` as text. `None` if there is none, or if it is not UTF-8: then
    /// it equals no text of a rule.
    #[inline]
    fn value(&self, name: &str) -> Option<&str> {
        core::str::from_utf8(self.bytes(name)?).ok()
    }
}

impl<K: AsRef<str>, V: AsRef<str>> Fields for [(K, V)] {
    #[inline]
    fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.value(name).map(str::as_bytes)
    }

    // The text is known to be UTF-8.
    #[inline]
    fn value(&self, name: &str) -> Option<&str> {
        let mut all = self.iter();
        all.find(|(key, _)| key.as_ref().eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_ref())
    }
}

impl<K: AsRef<str>, V: AsRef<str>, const N: usize> Fields for [(K, V); N] {
    #[inline]
    fn bytes(&self, name: &str) -> Option<&[u8]> {
        self[..].bytes(name)
    }

    #[inline]
    fn value(&self, name: &str) -> Option<&str> {
        self[..].value(name)
    }
}

impl<K: AsRef<str>, V: AsRef<str>> Fields for Vec<(K, V)> {
    #[inline]
    fn bytes(&self, name: &str) -> Option<&[u8]> {
        self[..].bytes(name)
    }

    #[inline]
    fn value(&self, name: &str) -> Option<&str> {
        self[..].value(name)
    }
}

/// No fields.
const NONE: &[(&str, &str); 0] = &[];

/// What is asked of a policy: the request of a client, or any other event that rules are for. All
/// text is borrowed.
///
/// ```
/// use portcullis_policy::Request;
///
/// let request = Request::new("GET", "/v1/items?page=2")
///     .host("api.example.com")
///     .address("192.0.2.7".parse().unwrap())
///     .tier("free")
///     .headers(&[("X-Api-Key", "k1")]);
/// assert_eq!(request.headers.value("x-api-key"), Some("k1"));
/// ```
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct Request<'a> {
    /// Which rules are asked. Default [`Kind::Request`].
    pub kind: Kind,
    /// The method, such as `GET`. Upper and lower case differ, as in HTTP.
    pub method: &'a str,
    /// The path, as it was received: encoded, with or without its query.
    pub path: &'a str,
    /// The host that the request is for, with or without a port. Default empty.
    pub host: &'a str,
    /// The address of the client. Default `None`: a rule whose key has the address then denies the
    /// request, unless its [`OnMissing`](crate::OnMissing) says otherwise.
    pub address: Option<IpAddr>,
    /// The client's service tier, such as `free`. Default empty.
    pub tier: &'a str,
    /// The headers. Default none.
    pub headers: &'a dyn Fields,
    /// Any other properties, by name. Default none.
    pub properties: &'a dyn Fields,
    /// How many permits the request takes, of each limit. Default 1.
    pub cost: u32,
}

impl<'a> Request<'a> {
    /// A request with this method and path.
    ///
    /// ```
    /// # use portcullis_policy::Request;
    /// assert_eq!(Request::new("GET", "/").cost, 1);
    /// ```
    #[inline]
    pub const fn new(method: &'a str, path: &'a str) -> Self {
        Self {
            kind: Kind::Request,
            method,
            path,
            host: "",
            address: None,
            tier: "",
            headers: NONE,
            properties: NONE,
            cost: 1,
        }
    }

    /// Sets the [`kind`](Self::kind).
    ///
    /// ```
    /// # use portcullis_policy::{Kind, Request};
    /// assert_eq!(Request::new("GET", "/").kind(Kind::Egress).kind, Kind::Egress);
    /// ```
    #[inline]
    #[must_use]
    pub const fn kind(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self
    }

    /// Sets the [`host`](Self::host).
    ///
    /// ```
    /// # use portcullis_policy::Request;
    /// assert_eq!(Request::new("GET", "/").host("a.example").host, "a.example");
    /// ```
    #[inline]
    #[must_use]
    pub const fn host(mut self, host: &'a str) -> Self {
        self.host = host;
        self
    }

    /// Sets the [`address`](Self::address). An IPv4 address that is mapped to IPv6 counts as IPv4.
    ///
    /// ```
    /// # use portcullis_policy::Request;
    /// let request = Request::new("GET", "/").address("::ffff:192.0.2.7".parse().unwrap());
    /// assert_eq!(request.address, Some("192.0.2.7".parse().unwrap()));
    /// ```
    #[inline]
    #[must_use]
    pub const fn address(mut self, address: IpAddr) -> Self {
        self.address = Some(address.to_canonical());
        self
    }

    /// Sets the [`tier`](Self::tier).
    ///
    /// ```
    /// # use portcullis_policy::Request;
    /// assert_eq!(Request::new("GET", "/").tier("free").tier, "free");
    /// ```
    #[inline]
    #[must_use]
    pub const fn tier(mut self, tier: &'a str) -> Self {
        self.tier = tier;
        self
    }

    /// Sets the [`headers`](Self::headers).
    ///
    /// ```
    /// # use portcullis_policy::Request;
    /// let request = Request::new("GET", "/").headers(&[("X-Client", "a")]);
    /// assert_eq!(request.headers.value("X-Client"), Some("a"));
    /// ```
    #[inline]
    #[must_use]
    pub const fn headers(mut self, headers: &'a dyn Fields) -> Self {
        self.headers = headers;
        self
    }

    /// Sets the [`properties`](Self::properties).
    ///
    /// ```
    /// # use portcullis_policy::Request;
    /// let request = Request::new("GET", "/").properties(&[("region", "eu")]);
    /// assert_eq!(request.properties.value("region"), Some("eu"));
    /// ```
    #[inline]
    #[must_use]
    pub const fn properties(mut self, properties: &'a dyn Fields) -> Self {
        self.properties = properties;
        self
    }

    /// Sets the [`cost`](Self::cost). With 0 the request is a probe: it takes nothing, and is
    /// allowed if a request of cost 1 would be.
    ///
    /// ```
    /// # use portcullis_policy::Request;
    /// assert_eq!(Request::new("GET", "/").cost(5).cost, 5);
    /// ```
    #[inline]
    #[must_use]
    pub const fn cost(mut self, cost: u32) -> Self {
        self.cost = cost;
        self
    }
}

shows!(['a] Request<'a>, "Request", self:
    "kind" => self.kind,
    "method" => self.method,
    "path" => self.path,
    "host" => self.host,
    "address" => self.address,
    "tier" => self.tier,
    "cost" => self.cost
);
