//! The layer that limits the bytes of bodies, and its service.

use core::fmt;
use core::future::Future;
use core::net::IpAddr;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use portcullis_policy::Kind;
use tower_layer::Layer;
use tower_service::Service;

use super::{LimitBytes, NoLimit, PacedBody};
use crate::body::LimitedBody;
use crate::decide::Nothing;
use crate::denial::{Denial, DenialSettings};
use crate::forwarded::Clients;
use crate::forwarded::ForwardedFor;
use crate::settings::NotLimited;

/// A layer that limits the bytes of the bodies of requests and responses: see the
/// [module](crate::bodies).
///
/// All services of a layer, and of its clones, have the same limits.
///
/// ```
/// use portcullis_async::{Queue, ThreadTimer};
/// use portcullis_core::{Rate, TokenBucket};
/// use portcullis_tower::bodies::BodyLimitLayer;
///
/// let rate = |bytes| TokenBucket::new(Rate::per_second(bytes), 100_000);
/// let queue = |bytes| Queue::new(rate(bytes), ThreadTimer::new(), u64::MAX).shared();
/// let layer = BodyLimitLayer::builder()
///     .ingress(queue(1_000_000))
///     .egress(queue(20_000_000))
///     .build();
/// # let _ = layer;
/// ```
pub struct BodyLimitLayer<I = NoLimit, E = NoLimit> {
    shared: Arc<Shared<I, E>>,
}

/// What all services of a layer have in common.
struct Shared<I, E> {
    ingress: I,
    egress: E,
    denials: DenialSettings,
    clients: Clients,
}

impl BodyLimitLayer {
    /// Starts to build a layer.
    pub fn builder() -> BodyLimitLayerBuilder {
        BodyLimitLayerBuilder {
            ingress: NoLimit,
            egress: NoLimit,
            denials: DenialSettings::new(),
            clients: Clients::default(),
        }
    }
}

impl<I, E> Clone for BodyLimitLayer<I, E> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<S, I, E> Layer<S> for BodyLimitLayer<I, E> {
    type Service = BodyLimit<S, I, E>;

    fn layer(&self, inner: S) -> Self::Service {
        BodyLimit {
            inner,
            shared: Arc::clone(&self.shared),
        }
    }
}

shows!([I, E] BodyLimitLayer<I, E>, "BodyLimitLayer");

/// Builds a [`BodyLimitLayer`].
#[must_use]
pub struct BodyLimitLayerBuilder<I = NoLimit, E = NoLimit> {
    ingress: I,
    egress: E,
    denials: DenialSettings,
    clients: Clients,
}

impl<I: LimitBytes, E: LimitBytes> BodyLimitLayerBuilder<I, E> {
    /// Limits the bodies of requests, as the inner service reads them. Default: no limit.
    pub fn ingress<L: LimitBytes>(self, limit: L) -> BodyLimitLayerBuilder<L, E> {
        BodyLimitLayerBuilder {
            ingress: limit,
            egress: self.egress,
            denials: self.denials,
            clients: self.clients,
        }
    }

    /// Limits the bodies of responses. Default: no limit.
    pub fn egress<L: LimitBytes>(self, limit: L) -> BodyLimitLayerBuilder<I, L> {
        BodyLimitLayerBuilder {
            ingress: self.ingress,
            egress: limit,
            denials: self.denials,
            clients: self.clients,
        }
    }

    /// Sets how a request is answered whose body can never pass. Default:
    /// [`DenialSettings::new`].
    pub fn denials(mut self, denials: DenialSettings) -> Self {
        self.denials = denials;
        self
    }

    /// Reads the address of the client from a header that proxies set, as far as they are trusted:
    /// as [`RateLimitLayerBuilder::forwarded`](crate::RateLimitLayerBuilder::forwarded).
    pub fn forwarded(mut self, forwarded: ForwardedFor) -> Self {
        self.clients.forwarded = Some(forwarded);
        self
    }

    /// Sets the address of peers that have none, as [`RateLimitLayerBuilder`] does.
    ///
    /// [`RateLimitLayerBuilder`]: crate::RateLimitLayerBuilder::peer_without_address
    pub fn peer_without_address(mut self, address: impl Into<IpAddr>) -> Self {
        self.clients.without_address = Some(address.into());
        self
    }

    /// Builds the layer. Makes the replies to denied requests.
    #[must_use]
    pub fn build(self) -> BodyLimitLayer<I, E> {
        let Self {
            mut ingress,
            mut egress,
            denials,
            clients,
        } = self;
        ingress.prepare(&denials);
        egress.prepare(&denials);
        BodyLimitLayer {
            shared: Arc::new(Shared {
                ingress,
                egress,
                denials,
                clients,
            }),
        }
    }
}

shows!([I, E] BodyLimitLayerBuilder<I, E>, "BodyLimitLayerBuilder");

/// A service whose bodies are limited: the result of a [`BodyLimitLayer`].
///
/// The error type is that of the inner service, because a denial is a response.
pub struct BodyLimit<S, I, E> {
    inner: S,
    shared: Arc<Shared<I, E>>,
}

impl<S, I, E> BodyLimit<S, I, E> {
    /// Returns the inner service.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S: Clone, I, E> Clone for BodyLimit<S, I, E> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            shared: Arc::clone(&self.shared),
        }
    }
}

/// What limits the two bodies of a request.
type Flows<I, E> = (
    Option<<I as LimitBytes>::Flow>,
    Option<<E as LimitBytes>::Flow>,
);

impl<I: LimitBytes, E: LimitBytes> Shared<I, E> {
    fn flows<A>(&self, request: &Request<A>) -> Result<Flows<I, E>, Denial> {
        let head = self.clients.head(request);
        if head.extensions.get::<NotLimited>().is_some() {
            return Ok((None, None));
        }
        let ingress = self.ingress.limit(Kind::Ingress, &head)?;
        Ok((ingress, self.egress.limit(Kind::Egress, &head)?))
    }
}

impl<S, A, B, I, E> Service<Request<A>> for BodyLimit<S, I, E>
where
    S: Service<Request<PacedBody<A, I::Flow>>, Response = Response<B>>,
    B: Body<Data = Bytes>,
    I: LimitBytes,
    E: LimitBytes,
{
    type Response = Response<PacedBody<LimitedBody<B, Nothing>, E::Flow>>;
    type Error = S::Error;
    type Future = BodyLimitFuture<S::Future, E::Flow>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let state = match self.shared.flows(&request) {
            Ok((ingress, egress)) => {
                let request = request.map(|body| PacedBody::new(body, ingress));
                State::Called {
                    inner: self.inner.call(request),
                    egress,
                }
            }
            Err(denial) => {
                let headers = request.into_parts().0.headers;
                State::Denied {
                    response: Some(self.shared.denials.response(denial, headers)),
                }
            }
        };
        BodyLimitFuture { state }
    }
}

shows!([S: fmt::Debug, I, E] BodyLimit<S, I, E>, "BodyLimit", self: "inner" => self.inner);

pin_project! {
    /// The future of a response: the result of calling a [`BodyLimit`].
    #[must_use = "futures do nothing unless they are polled"]
    pub struct BodyLimitFuture<F, G> {
        #[pin]
        state: State<F, G>,
    }
}

pin_project! {
    #[project = Projected]
    enum State<F, G> {
        Called { #[pin] inner: F, egress: Option<G> },
        Denied { response: Option<Response<Bytes>> },
    }
}

impl<F, G, B, E> Future for BodyLimitFuture<F, G>
where
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = Result<Response<PacedBody<LimitedBody<B, Nothing>, G>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(Ok(match self.project().state.project() {
            Projected::Called { inner, egress } => {
                let response = ready!(inner.poll(context))?;
                let egress = egress.take();
                response.map(|body| PacedBody::new(LimitedBody::inner(body, None, None), egress))
            }
            Projected::Denied { response } => {
                let response = response.take().expect("polled after it was ready");
                response.map(|body| PacedBody::new(LimitedBody::reply(body), None))
            }
        }))
    }
}

shows!([F, G] BodyLimitFuture<F, G>, "BodyLimitFuture");

#[cfg(feature = "tonic")]
impl<S: tonic::server::NamedService, I, E> tonic::server::NamedService for BodyLimit<S, I, E> {
    const NAME: &'static str = S::NAME;
}
