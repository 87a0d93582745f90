//! From a check to the request that it is about.
//!
//! A check of a proxy is a request with the header fields of the client, besides those with which
//! the proxy describes the request. The client chooses the former, so a field of the proxy must not
//! be one that the proxy leaves as the client sent it:
//!
//! - **The path of the check names the proxy**, and with it the fields that count. The client has
//!   no part in it. If fields of any proxy counted, a client behind nginx could send those of
//!   Traefik.
//! - **All fields must be there, each once.** A proxy that is not set up to send one of them gets
//!   an error for its first request, and not first for that of a client who sends the field.
//! - **The address is the last one of `X-Forwarded-For`** that is no trusted proxy, as
//!   [`ForwardedFor`](portcullis_tower::ForwardedFor) finds it: what a client sends there is before
//!   what its proxy adds.

use core::fmt;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, StatusCode};
use portcullis_tower::Target;

/// A proxy, and how it asks.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) name: &'static str,
    method: HeaderName,
    target: HeaderName,
    host: HeaderName,
    /// The status that makes the proxy deny a request. `None`: the proxy passes on any status.
    pub(crate) denial: Option<StatusCode>,
}

const fn name(name: &'static str) -> HeaderName {
    HeaderName::from_static(name)
}

impl Proxy {
    /// A proxy whose fields are set by its configuration.
    const fn original(name_of: &'static str, denial: Option<StatusCode>) -> Self {
        Self {
            name: name_of,
            method: name("x-original-method"),
            target: name("x-original-uri"),
            host: name("x-original-host"),
            denial,
        }
    }

    /// A proxy with forward authentication, which sets its fields by itself.
    const fn forwarded(name_of: &'static str) -> Self {
        Self {
            name: name_of,
            method: name("x-forwarded-method"),
            target: name("x-forwarded-uri"),
            host: name("x-forwarded-host"),
            denial: None,
        }
    }
}

/// All proxies that are known.
pub(crate) static PROXIES: [Proxy; 4] = [
    // nginx knows 2xx, 401 and 403. Any other status is an error to it.
    Proxy::original("nginx", Some(StatusCode::FORBIDDEN)),
    Proxy::original("haproxy", None),
    Proxy::forwarded("traefik"),
    Proxy::forwarded("caddy"),
];

/// The index of Envoy in [`askers`], after the [`PROXIES`]. Envoy asks by gRPC only.
pub(crate) const ENVOY: usize = PROXIES.len();

/// The names of all who ask.
pub(crate) fn askers() -> impl Iterator<Item = &'static str> {
    PROXIES.iter().map(|proxy| proxy.name).chain(["envoy"])
}

/// Where a proxy names the addresses of the client and of the proxies before it.
pub(crate) const ADDRESSES: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Why a check is about no request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Malformed {
    Missing(HeaderName),
    Several(HeaderName),
    Invalid(HeaderName),
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(name) => write!(f, "the proxy does not send {name}"),
            Self::Several(name) => write!(f, "the proxy sends {name} more than once"),
            Self::Invalid(name) => write!(f, "the proxy sends a {name} that is not valid"),
        }
    }
}

/// The request that a check is about: without a body, and with the header fields of the client. Its
/// address is still to be found.
///
/// # Errors
///
/// [`Malformed`] if a field of the proxy is missing, is there twice, or is not valid.
pub(crate) fn request(proxy: &Proxy, mut headers: HeaderMap) -> Result<Request<()>, Malformed> {
    let method = only(&mut headers, &proxy.method)?;
    let method = Method::from_bytes(method.as_bytes());
    let method = method.map_err(|_| Malformed::Invalid(proxy.method.clone()))?;
    let target = only(&mut headers, &proxy.target)?;
    let target = Target::parse(target.as_bytes());
    let Target(target) = target.ok_or_else(|| Malformed::Invalid(proxy.target.clone()))?;
    let host = only(&mut headers, &proxy.host)?;
    if !headers.contains_key(&ADDRESSES) {
        return Err(Malformed::Missing(ADDRESSES));
    }
    // That of the check is the address of this program.
    headers.insert(header::HOST, host);
    let mut request = Request::new(());
    *request.method_mut() = method;
    *request.uri_mut() = target;
    *request.headers_mut() = headers;
    Ok(request)
}

/// Takes the one value of a field.
fn only(headers: &mut HeaderMap, name: &HeaderName) -> Result<HeaderValue, Malformed> {
    if headers.get_all(name).iter().nth(1).is_some() {
        return Err(Malformed::Several(name.clone()));
    }
    let value = headers.remove(name);
    value.ok_or_else(|| Malformed::Missing(name.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
        let field = |&(field, value): &(&'static str, &str)| {
            (
                name(field),
                HeaderValue::from_bytes(value.as_bytes()).unwrap(),
            )
        };
        let mut headers = HeaderMap::new();
        for (field, value) in fields.iter().map(field) {
            headers.append(field, value);
        }
        headers
    }

    const NGINX: [(&str, &str); 4] = [
        ("x-original-method", "POST"),
        ("x-original-uri", "/a?b=c"),
        ("x-original-host", "shop.example"),
        ("x-forwarded-for", "192.0.2.7"),
    ];

    #[test]
    fn a_check_is_about_the_request_that_the_proxy_describes() {
        let mut fields = NGINX.to_vec();
        // What a client may send.
        fields.extend([
            ("host", "127.0.0.1:8787"),
            ("x-forwarded-method", "GET"),
            ("x-forwarded-uri", "/free"),
            ("x-api-key", "k"),
        ]);
        let request = request(&PROXIES[0], headers(&fields)).unwrap();
        assert_eq!(*request.method(), Method::POST);
        assert_eq!(*request.uri(), "/a?b=c");
        let head = portcullis_tower::RequestHead::new(&request);
        assert_eq!(head.host(), "shop.example");
        assert_eq!(head.headers["x-api-key"], "k");
    }

    #[test]
    fn a_check_without_a_field_of_the_proxy_or_with_two_is_malformed() {
        for (at, (field, value)) in NGINX.into_iter().enumerate() {
            let mut without = NGINX.to_vec();
            without.remove(at);
            let missing = request(&PROXIES[0], headers(&without)).unwrap_err();
            assert_eq!(missing, Malformed::Missing(name(field)));
            // Addresses may be in several lines.
            if field != "x-forwarded-for" {
                let twice = [&NGINX[..], &[(field, value)]].concat();
                let several = request(&PROXIES[0], headers(&twice)).unwrap_err();
                assert_eq!(several, Malformed::Several(name(field)));
            }
        }
        for (field, value) in [
            ("x-original-method", "GET /"),
            ("x-original-uri", "free"),
            ("x-original-uri", "http://free/"),
            ("x-original-uri", ""),
        ] {
            let wrong =
                NGINX.map(|(name, before)| (name, if name == field { value } else { before }));
            let invalid = request(&PROXIES[0], headers(&wrong)).unwrap_err();
            assert_eq!(invalid, Malformed::Invalid(name(field)), "{value:?}");
        }
    }
}
