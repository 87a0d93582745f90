//! What decides requests by a policy in one process: the layer of `portcullis-tower`, around a
//! service that always answers.
//!
//! The response of that service has a body without an end. So the permits of limits at once are
//! held until the response is dropped, which a `Decision` does when it is closed.

use core::convert::Infallible;
use core::future::{Ready, poll_fn, ready};
use core::net::{IpAddr, Ipv6Addr};
use core::pin::{Pin, pin};
use core::task::{Context, Poll, Waker};
use core::time::Duration;

use bytes::Bytes;
use http::header::HeaderName;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::{Body, Frame};
use ipnet::IpNet;
use portcullis_core::MonotonicClock;
use portcullis_policy::{LivePolicy, Policy};
use portcullis_tower::fields::Generation;
use portcullis_tower::{
    AnyBody, ByLivePolicy, Decide, ForwardedFor, LimitedBody, RateLimitLayer, RequestHead,
    WaitingRateLimit,
};
use tower_layer::Layer;
use tower_service::Service;

use crate::store;

/// The address of peers that have none, if they are trusted. No peer has it.
const WITHOUT_ADDRESS: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);

/// What a policy does not say.
#[derive(Clone)]
pub(crate) struct Manner {
    pub(crate) fields: Generation,
    /// The proxies that are believed.
    pub(crate) trusted: Vec<IpNet>,
    /// Whether peers without an address are.
    pub(crate) trusts_unix: bool,
    /// Where they name the client.
    pub(crate) forwarded: HeaderName,
    /// How long a request waits at most. `None`: until its turn comes.
    pub(crate) timeout: Option<Duration>,
}

impl Manner {
    /// How the address of the client is read from a header field, if any proxy is believed.
    fn forwarded(&self) -> Option<ForwardedFor> {
        let without_address = self.trusts_unix.then(|| WITHOUT_ADDRESS.into());
        let trusted = self.trusted.iter().copied().chain(without_address);
        let field = if self.forwarded == http::header::FORWARDED {
            ForwardedFor::forwarded()
        } else {
            ForwardedFor::field(self.forwarded.clone())
        };
        let is_any = self.trusts_unix || !self.trusted.is_empty();
        is_any.then(|| trusted.fold(field, ForwardedFor::trust))
    }
}

/// What only the caller knows of a request: an extension of it.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    /// Names and values.
    pub(crate) properties: Vec<(String, String)>,
    pub(crate) tier: String,
    pub(crate) cost: u32,
}

fn told<'r>(head: &RequestHead<'r>) -> Option<&'r Told> {
    head.extensions.get()
}

/// The property of a request. A policy asks for it by its name.
fn property<'r>(head: &RequestHead<'r>, name: &str) -> Option<&'r str> {
    let mut all = told(head)?.properties.iter();
    let (_, value) = all.find(|(key, _)| key == name)?;
    Some(value)
}

fn tier<'r>(head: &RequestHead<'r>) -> &'r str {
    told(head).map_or("", |told| &told.tier)
}

fn cost(head: &RequestHead<'_>) -> u32 {
    told(head).map_or(1, |told| told.cost)
}

/// A body without an end.
pub(crate) struct Open;

impl Body for Open {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Pending
    }
}

/// Marks a response to a request that was allowed.
#[derive(Clone, Copy)]
struct Allowed;

/// A service that always answers.
#[derive(Clone, Copy)]
struct Pass;

impl Service<Request<()>> for Pass {
    type Response = Response<Open>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        let mut response = Response::new(Open);
        response.extensions_mut().insert(Allowed);
        ready(Ok(response))
    }
}

/// What a decision holds.
pub(crate) type Held = LimitedBody<Open, <ByLivePolicy as Decide>::Permits>;

/// A decision, before Python has it.
pub(crate) struct Judged {
    pub(crate) is_allowed: bool,
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// The permits of an allowed request.
    pub(crate) held: Option<Held>,
}

/// A policy in force.
pub(crate) struct Judge {
    live: LivePolicy,
    limited: WaitingRateLimit<Pass, ByLivePolicy, MonotonicClock, AnyBody>,
}

impl Judge {
    pub(crate) fn new(policy: Policy, manner: &Manner) -> Self {
        let live = LivePolicy::new(policy);
        let judge = ByLivePolicy::new(live.clone())
            .properties(property)
            .tier(tier);
        let mut layer = RateLimitLayer::builder(judge)
            .cost(cost)
            .fields(manner.fields);
        if manner.trusts_unix {
            layer = layer.peer_without_address(WITHOUT_ADDRESS);
        }
        if let Some(forwarded) = manner.forwarded() {
            layer = layer.forwarded(forwarded);
        }
        if let Some(timeout) = manner.timeout {
            layer = layer.waiting_at_most(timeout);
        }
        Self {
            live,
            limited: layer.build_waiting().layer(Pass),
        }
    }

    /// Puts a policy in force. Rules of the same name and key keep what was taken.
    pub(crate) fn replace(&self, policy: Policy) {
        let now = self.live.load().now();
        self.live.replace_at(now, policy);
    }

    /// Decides a request, when the future is polled.
    pub(crate) fn ask(&self, request: Request<()>) -> impl Future<Output = Judged> + Send + use<> {
        let mut limited = self.limited.clone();
        async move {
            // `Pass` is always ready.
            let mut response = pin!(limited.call(request));
            let polled = poll_fn(|context| {
                // A store on a server has its connection there.
                let _runtime = store::enter();
                response.as_mut().poll(context)
            });
            let Ok(response) = polled.await;
            judged(response)
        }
    }
}

fn judged(response: Response<Held>) -> Judged {
    let (head, mut body) = response.into_parts();
    let is_allowed = head.extensions.get::<Allowed>().is_some();
    let mut bytes = Bytes::new();
    if !is_allowed {
        // It is there, as one frame.
        let mut context = Context::from_waker(Waker::noop());
        if let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut body).poll_frame(&mut context) {
            bytes = frame.into_data().unwrap_or_default();
        }
    }
    Judged {
        is_allowed,
        status: head.status,
        headers: head.headers,
        body: bytes,
        held: is_allowed.then_some(body),
    }
}
