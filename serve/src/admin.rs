//! What operators ask, at an address of its own, so that no proxy can pass on a request to it.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;

use crate::counts::Counts;
use crate::exposition;
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
                let mut response = text(StatusCode::OK, metrics);
                let kind = HeaderValue::from_static(exposition::CONTENT_TYPE);
                response.headers_mut().insert(header::CONTENT_TYPE, kind);
                response
            }
            "/ready" if self.is_ready.load(Relaxed) => text(StatusCode::OK, "ready\n"),
            "/ready" => text(StatusCode::SERVICE_UNAVAILABLE, "stopping\n"),
            _ => text(StatusCode::NOT_FOUND, "Ask /metrics or /ready.\n"),
        }
    }
}

fn text(status: StatusCode, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
