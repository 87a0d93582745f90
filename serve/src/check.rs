//! Answers checks: by the layer of `portcullis-tower`, in the form that the proxy understands.
//!
//! The service inside the layer is one that always answers 200, so a request that is allowed gets
//! that, with the header fields of the layer. A check takes permits once, when it is decided.

use core::convert::Infallible;
use core::future::{Ready, ready};
use core::net::IpAddr;
use core::task::{Context, Poll};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty, Full};
use portcullis_core::MonotonicClock;
use portcullis_policy::LivePolicy;
use portcullis_tower::{
    AnyBody, ByLivePolicy, ByPolicy, ForwardedFor, PeerAddress, RateLimitLayer, WaitingRateLimit,
};
use tower_layer::Layer;
use tower_service::Service;

use crate::counts::Counts;
use crate::described;
use crate::original::{self, ADDRESSES, PROXIES, Proxy};
use crate::seldom::Seldom;
use crate::settings::Settings;

/// Where checks are, before the name of the proxy.
const PATH: &str = "/check/";

/// The status that a denial has, where the reply has another one.
static STATUS: HeaderName = HeaderName::from_static("x-portcullis-status");

/// The fields that only a denial has. A reply to a request that passes has none of them.
pub(crate) static OF_DENIALS: [HeaderName; 2] = [header::RETRY_AFTER, header::CONTENT_TYPE];

/// A service that always answers 200.
#[derive(Clone, Copy, Debug)]
struct Pass;

impl Service<Request<()>> for Pass {
    type Response = Response<Empty<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        ready(Ok(Response::new(Empty::new())))
    }
}

type Limited = WaitingRateLimit<Pass, ByLivePolicy, MonotonicClock, AnyBody>;

/// Answers checks by the policy in force.
pub(crate) struct Checks {
    limited: Limited,
    counts: Arc<Counts>,
    malformed: Seldom,
}

impl Checks {
    pub(crate) fn new(policy: &LivePolicy, settings: &Settings, counts: &Arc<Counts>) -> Self {
        let sees = Arc::clone(counts);
        let judge = ByPolicy::new(policy.clone())
            .properties(described::property)
            .tier(described::tier)
            .watched(move |seen| sees.decided(seen));
        let proxies = settings.trusted.iter().copied();
        let addresses = proxies.fold(ForwardedFor::field(ADDRESSES), ForwardedFor::trust);
        let layer = RateLimitLayer::builder(judge)
            .cost(described::cost)
            .forwarded(addresses)
            .fields(settings.fields.generation())
            .waiting_at_most(settings.wait)
            .build_waiting();
        Self {
            limited: layer.layer(Pass),
            counts: Arc::clone(counts),
            malformed: Seldom::new(),
        }
    }

    /// Answers a check of a trusted peer.
    pub(crate) async fn answer(
        &self,
        peer: IpAddr,
        path: &str,
        headers: HeaderMap,
    ) -> Response<Full<Bytes>> {
        let name = path.strip_prefix(PATH);
        let found = PROXIES.iter().position(|proxy| Some(proxy.name) == name);
        let Some(index) = found else {
            let known = PROXIES.iter().map(|proxy| format!("{PATH}{}", proxy.name));
            let known: Vec<_> = known.collect();
            let problem = format!("checks are at {}", known.join(", "));
            return self.refuse(peer, StatusCode::NOT_FOUND, &problem);
        };
        let proxy = &PROXIES[index];
        let mut request = match original::request(proxy, headers) {
            Ok(request) => request,
            Err(malformed) => {
                return self.refuse(peer, StatusCode::BAD_REQUEST, &malformed.to_string());
            }
        };
        request.extensions_mut().insert(PeerAddress(peer));
        let mut response = self.decide(index, request).await.map(Full::new);
        if !response.status().is_success() {
            self.shape(proxy, &mut response);
        }
        response
    }

    /// Decides a request, whose address is in its extensions, and counts the answer.
    pub(crate) async fn decide(&self, asker: usize, request: Request<()>) -> Response<Bytes> {
        let begun = Instant::now();
        // `Pass` is always ready.
        let Ok(response) = self.limited.clone().call(request).await;
        let (head, body) = response.into_parts();
        let Ok(body) = body.collect().await;
        let response = Response::from_parts(head, body.to_bytes());
        self.counts
            .answered(asker, response.status(), begun.elapsed());
        response
    }

    /// Whether requests pass in spite of denials.
    pub(crate) fn is_shadow(&self) -> bool {
        self.counts.is_shadow()
    }

    /// Gives a denial the form that the proxy understands, or lets the request pass in spite of it.
    fn shape(&self, proxy: &Proxy, response: &mut Response<Full<Bytes>>) {
        let instead = if self.is_shadow() {
            Some(StatusCode::OK)
        } else {
            proxy.denial
        };
        let Some(status) = instead else {
            return;
        };
        let denied = HeaderValue::from(response.status().as_u16());
        response.headers_mut().insert(STATUS.clone(), denied);
        *response.status_mut() = status;
        // nginx reads no body of an answer that it does not pass on, and closes the connection if
        // there is one: a client that is denied often would use up its ports.
        response.headers_mut().remove(header::CONTENT_TYPE);
        *response.body_mut() = Full::default();
        if self.is_shadow() {
            for name in &OF_DENIALS {
                response.headers_mut().remove(name);
            }
        }
    }

    /// An error that names what the proxy has to be set up for.
    fn refuse(&self, peer: IpAddr, status: StatusCode, problem: &str) -> Response<Full<Bytes>> {
        self.counts.malformed();
        if self.malformed.may_write() {
            tracing::error!(%peer, "no request is checked: {problem}");
        }
        let mut response = Response::new(Full::from(format!("portcullis-serve: {problem}\n")));
        *response.status_mut() = status;
        response
    }
}
