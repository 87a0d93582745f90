//! What operators ask, at an address of its own, so that no proxy can pass on a request to it.

use core::net::IpAddr;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

use bytes::Bytes;
use http::uri::Authority;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;

use crate::counts::Counts;
use crate::exposition;
use crate::page;
use crate::stores::StoreState;

/// Answers operators.
pub(crate) struct Admin {
    pub(crate) counts: Arc<Counts>,
    pub(crate) stores: Vec<StoreState>,
    /// Whether proxies should ask here.
    pub(crate) is_ready: AtomicBool,
}

impl Admin {
    pub(crate) fn answer<B>(&self, request: &Request<B>) -> Response<Full<Bytes>> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return text(StatusCode::METHOD_NOT_ALLOWED, "This is read-only.\n");
        }
        match request.uri().path() {
            "/metrics" => {
                let metrics = exposition::text(&self.counts, &self.stores);
                of_kind(text(StatusCode::OK, metrics), exposition::CONTENT_TYPE)
            }
            "/ready" if self.is_ready.load(Relaxed) => text(StatusCode::OK, "ready\n"),
            "/ready" => text(StatusCode::SERVICE_UNAVAILABLE, "stopping\n"),
            _ if !is_of_host(request) => text(
                StatusCode::FORBIDDEN,
                "Open the page by the address of the host, or as localhost.\n",
            ),
            "/" => html(page::whole(
                &self.counts,
                &self.stores,
                request.uri().query(),
            )),
            "/live" => html(page::live(&self.counts, &self.stores)),
            "/page.css" => of_kind(text(StatusCode::OK, page::STYLE), "text/css"),
            "/page.js" => of_kind(text(StatusCode::OK, page::SCRIPT), "text/javascript"),
            _ => text(StatusCode::NOT_FOUND, "Ask /, /metrics or /ready.\n"),
        }
    }
}

/// Whether the `Host` of a request is an IP address or `localhost`. Any other name may belong to a
/// site that has pointed it at this program (DNS rebinding). A script of that site could then read
/// what is here.
fn is_of_host<B>(request: &Request<B>) -> bool {
    let host = request.headers().get(header::HOST);
    let authority = host.and_then(|host| Authority::try_from(host.as_bytes()).ok());
    authority.is_some_and(|authority| {
        let host = authority.host();
        let address = host.trim_start_matches('[').trim_end_matches(']');
        host == "localhost" || address.parse::<IpAddr>().is_ok()
    })
}

fn html(page: String) -> Response<Full<Bytes>> {
    of_kind(text(StatusCode::OK, page), "text/html; charset=utf-8")
}

fn of_kind(mut response: Response<Full<Bytes>>, kind: &'static str) -> Response<Full<Bytes>> {
    let kind = HeaderValue::from_static(kind);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

fn text(status: StatusCode, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    for (name, value) in [
        (header::CONTENT_TYPE, "text/plain; charset=utf-8"),
        (header::CACHE_CONTROL, "no-store"),
        (header::CONTENT_SECURITY_POLICY, page::SECURITY),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ] {
        let value = HeaderValue::from_static(value);
        response.headers_mut().insert(name, value);
    }
    response
}
