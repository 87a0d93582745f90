//! What a request is judged by: all of it but its body.

use core::fmt::Write as _;
use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use core::str;

use http::uri::PathAndQuery;
use http::{Extensions, HeaderMap, Method, StatusCode, Uri, header};
use portcullis_policy::{Fields, Kind};

use crate::decide::Finder;

/// What a request is judged by: all of it but its body. Borrowed from the [`http::Request`].
///
/// ```
/// use portcullis_tower::RequestHead;
/// let request = http::Request::get("/items").header("Host", "api.example.com").body(()).unwrap();
/// let head = RequestHead::new(&request);
/// assert_eq!((head.uri.path(), head.host()), ("/items", "api.example.com"));
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct RequestHead<'r> {
    /// The method.
    pub method: &'r Method,
    /// The target of the request: its [`Target`], or else its URI, before nested routers of axum
    /// removed the prefix of its path.
    pub uri: &'r Uri,
    /// The headers.
    pub headers: &'r HeaderMap,
    /// What outer layers and the server know of the request.
    pub extensions: &'r Extensions,
    /// The address of the client, if it is known.
    pub address: Option<IpAddr>,
}

impl<'r> RequestHead<'r> {
    /// The head of a request. The address of the client is its [`PeerAddress`], or what the server
    /// of axum or tonic knows. The target is its [`Target`], or its URI before nested routers
    /// of axum.
    ///
    /// ```
    /// use portcullis_tower::{PeerAddress, RequestHead};
    /// let mut request = http::Request::new(());
    /// request.extensions_mut().insert(PeerAddress("192.0.2.7".parse().unwrap()));
    /// assert_eq!(RequestHead::new(&request).address, Some("192.0.2.7".parse().unwrap()));
    /// ```
    #[inline]
    pub fn new<B>(request: &'r http::Request<B>) -> Self {
        let extensions = request.extensions();
        Self {
            method: request.method(),
            uri: target(request.uri(), extensions),
            headers: request.headers(),
            extensions,
            address: peer_address(extensions),
        }
    }

    /// Returns the network of the client, as a key: of an IPv6 address the first 64 bits count,
    /// because a client has all addresses with them. `None` if the address is not known.
    ///
    /// ```
    /// use portcullis_tower::{PeerAddress, RequestHead};
    /// let mut request = http::Request::new(());
    /// request.extensions_mut().insert(PeerAddress("2001:db8::1:2:3:4".parse().unwrap()));
    /// assert_eq!(RequestHead::new(&request).network(), Some("2001:db8::".parse().unwrap()));
    /// ```
    #[must_use]
    pub fn network(&self) -> Option<IpAddr> {
        Some(match self.address?.to_canonical() {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        })
    }

    /// Returns the host that the request is for: that of the target, or else the header `Host`,
    /// which may have a port. Empty if there is none.
    #[inline]
    pub fn host(&self) -> &'r str {
        if let Some(host) = self.uri.host() {
            return host;
        }
        let host = self.headers.get(header::HOST);
        host.and_then(|host| str::from_utf8(host.as_bytes()).ok())
            .unwrap_or_default()
    }

    /// Returns whether this is a preflight of a browser: an `OPTIONS` request that asks whether
    /// another request is allowed. It has the headers `Origin` and `Access-Control-Request-Method`.
    ///
    /// ```
    /// use portcullis_tower::RequestHead;
    /// let mut request = http::Request::options("/").body(()).unwrap();
    /// assert!(!RequestHead::new(&request).is_preflight());
    /// let headers = request.headers_mut();
    /// headers.insert("Origin", "https://example.com".parse().unwrap());
    /// headers.insert("Access-Control-Request-Method", "PUT".parse().unwrap());
    /// assert!(RequestHead::new(&request).is_preflight());
    /// ```
    pub fn is_preflight(&self) -> bool {
        *self.method == Method::OPTIONS
            && self.headers.contains_key(header::ORIGIN)
            && self
                .headers
                .contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
    }

    /// Calls `ask` with the request as a policy sees it.
    #[inline(always)]
    pub(crate) fn with_request<T>(
        &self,
        kind: Kind,
        finder: Option<&Finder>,
        cost: u32,
        ask: impl FnOnce(&portcullis_policy::Request<'_>) -> T,
    ) -> T {
        let headers = Headers(self.headers);
        let mut request = portcullis_policy::Request::new(self.method.as_str(), self.uri.path())
            .kind(kind)
            .host(self.host())
            .headers(&headers)
            .cost(cost);
        if let Some(address) = self.address {
            request = request.address(address);
        }
        let Some(finder) = finder else {
            return ask(&request);
        };
        let properties = finder.properties(self);
        ask(&request.properties(&properties).tier(finder.tier(self)))
    }
}

/// What a response tells of the cost of its request: all of it but its body. Borrowed from the
/// [`http::Response`].
///
/// ```
/// use portcullis_tower::ResponseHead;
/// let response = http::Response::builder().status(401).body(()).unwrap();
/// assert_eq!(ResponseHead::new(&response).status, 401);
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ResponseHead<'r> {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: &'r HeaderMap,
    /// What the inner service added, such as a [`ResponseCost`].
    pub extensions: &'r Extensions,
}

impl<'r> ResponseHead<'r> {
    /// The head of a response.
    pub fn new<B>(response: &'r http::Response<B>) -> Self {
        Self {
            status: response.status(),
            headers: response.headers(),
            extensions: response.extensions(),
        }
    }
}

/// What a request has cost, in permits. A handler can add it to its response as an extension: see
/// [`RateLimitLayerBuilder::settling`](crate::RateLimitLayerBuilder::settling).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_structs, reason = "a wrapper of one value")]
pub struct ResponseCost(pub u32);

/// The address of the client, as an extension of a request.
///
/// The service that accepts connections inserts it. Without it, the `ConnectInfo` of axum counts
/// with the feature `axum`, and the `TcpConnectInfo` of tonic with the feature `tonic`. axum
/// inserts it only if the router is served as
/// `router.into_make_service_with_connect_info::<SocketAddr>()`.
///
/// Without an address, a request lacks the key `address`. All clients would then share one limit,
/// so such a request is denied with the status 500 and a text that says so, where its limit is of
/// an address. The addresses that proxies forward are not read either. Common causes, and what to
/// do:
///
/// - This crate is built without the feature `axum` or `tonic`: enable it.
/// - axum serves the router without its `ConnectInfo`: see above.
/// - tonic serves with TLS, or the server is another one: insert this extension.
/// - The listener is a Unix socket, whose peers have no address: set [`peer_without_address`].
/// - All clients are meant to share the limit: say so with
///   [`OnMissing::Share`](portcullis_policy::OnMissing::Share) of the rule.
///
/// [`peer_without_address`]: crate::RateLimitLayerBuilder::peer_without_address
///
/// ```
/// use portcullis_tower::PeerAddress;
/// let mut request = http::Request::new(());
/// request.extensions_mut().insert(PeerAddress("192.0.2.7".parse().unwrap()));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_structs, reason = "a wrapper of one value")]
pub struct PeerAddress(pub IpAddr);

impl From<SocketAddr> for PeerAddress {
    fn from(address: SocketAddr) -> Self {
        Self(address.ip())
    }
}

/// The target that a request is judged by, as an extension of the request: its path is that of
/// rules and keys, whatever the URI of the request is.
///
/// Without it, the URI counts. Inside `Router::nest` and `nest_service`, axum removes the prefix of
/// the path from the URI. With the feature `axum`, it is then the whole URI that counts: the
/// `OriginalUri` of axum, if its path ends with that of the URI, but for empty components. So a
/// layer inside sees whole paths, as one outside does, also where a middleware drops slashes. A URI
/// that a middleware has changed in another way counts as it is.
///
/// A service or a middleware that removes a prefix without axum inserts the target, as it was
/// received.
///
/// ```
/// use portcullis_tower::{RequestHead, Target};
/// let mut request = http::Request::get("/login").body(()).unwrap();
/// request.extensions_mut().insert(Target("/api/login".parse().unwrap()));
/// assert_eq!(RequestHead::new(&request).uri.path(), "/api/login");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_structs, reason = "a wrapper of one value")]
pub struct Target(pub Uri);

impl Target {
    /// Reads the target of a request line: a path with or without a query, or `*`. `None` if it is
    /// neither.
    ///
    /// Clients and proxies send characters that a URI must encode, such as `^` or a letter that is
    /// not ASCII. They are encoded here, which no rule for paths tells apart.
    ///
    /// ```
    /// use portcullis_tower::Target;
    /// assert_eq!(Target::parse(b"/a%2Fb?c=1").unwrap().0.path(), "/a%2Fb");
    /// assert_eq!(Target::parse(b"/a<b").unwrap().0.path(), "/a%3Cb");
    /// assert_eq!(Target::parse(b"http://example.com/"), None);
    /// ```
    #[must_use]
    pub fn parse(target: &[u8]) -> Option<Self> {
        if !target.starts_with(b"/") && target != b"*" {
            return None;
        }
        let path = PathAndQuery::try_from(target).or_else(|_| {
            let mut encoded = String::with_capacity(target.len());
            for &byte in target {
                let is_plain =
                    byte.is_ascii_alphanumeric() || b"!#$%&'()*+,-./:;=?@[]_~".contains(&byte);
                if is_plain {
                    encoded.push(byte.into());
                } else {
                    // Writing to a string does not fail.
                    let _ = write!(encoded, "%{byte:02X}");
                }
            }
            PathAndQuery::try_from(encoded)
        });
        Some(Self(Uri::from(path.ok()?)))
    }
}

#[inline]
fn target<'r>(uri: &'r Uri, extensions: &'r Extensions) -> &'r Uri {
    if let Some(Target(target)) = extensions.get() {
        return target;
    }
    #[cfg(feature = "axum")]
    if let Some(original) = extensions.get::<axum::extract::OriginalUri>()
        && is_rest(uri, &original.0)
    {
        return &original.0;
    }
    uri
}

/// Whether a URI is what a nested router of axum leaves of another one: the end of its path, or `/`
/// if that is empty. Otherwise it was changed: a request that is passed on to another server, for
/// example, may still have the extensions of the one that was received.
///
/// Slashes that a middleware drops or adds, such as the one at the end, are no such change:
/// otherwise a client that sends them chooses by which path it is judged.
#[cfg(feature = "axum")]
fn is_rest(uri: &Uri, original: &Uri) -> bool {
    let (rest, whole) = (uri.path(), original.path());
    uri.authority() == original.authority() && (whole.ends_with(rest) || ends_with(whole, rest))
}

/// Whether the last components of the path `whole` are those of `rest`, without the empty ones.
#[cfg(feature = "axum")]
#[cold]
fn ends_with(whole: &str, rest: &str) -> bool {
    let components = |path| str::rsplit(path, '/').filter(|component| !component.is_empty());
    let mut of_whole = components(whole);
    components(rest).all(|component| of_whole.next() == Some(component))
}

#[inline]
fn peer_address(extensions: &Extensions) -> Option<IpAddr> {
    // Who inserts it knows the client better than the server does.
    if let Some(PeerAddress(address)) = extensions.get() {
        return Some(*address);
    }
    #[cfg(feature = "axum")]
    if let Some(info) = extensions.get::<axum::extract::ConnectInfo<SocketAddr>>() {
        return Some(info.0.ip());
    }
    #[cfg(feature = "tonic")]
    if let Some(info) = extensions.get::<tonic::transport::server::TcpConnectInfo>() {
        return info.remote_addr().map(|address| address.ip());
    }
    None
}

/// Headers, as a policy reads them.
struct Headers<'r>(&'r HeaderMap);

impl Fields for Headers<'_> {
    #[inline]
    fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.0.get(name).map(http::HeaderValue::as_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::Target;

    #[test]
    fn the_target_is_read_as_it_was_sent() {
        for (target, read) in [
            ("/", "/"),
            ("*", "*"),
            ("//evil.example/a", "//evil.example/a"),
            ("/a%2Fb?c=%20", "/a%2Fb?c=%20"),
            ("/a<b>?c<", "/a%3Cb%3E?c%3C"),
            ("/login#x", "/login"),
            ("/login#<", "/login"),
            ("/a b", "/a%20b"),
        ] {
            let Target(uri) = Target::parse(target.as_bytes()).unwrap();
            assert_eq!(uri.to_string(), read, "{target}");
            assert_eq!(uri.authority(), None);
        }
        let Target(letter) = Target::parse("/caf\u{e9}<".as_bytes()).unwrap();
        assert_eq!(letter.path(), "/caf%C3%A9%3C");
        for none in ["", "a", "http://example.com/", "?a"] {
            assert_eq!(Target::parse(none.as_bytes()), None);
        }
    }
}
