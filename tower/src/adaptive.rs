//! A service that finds out how many requests it can hold.
//!
//! ```
//! use std::sync::Arc;
//! use portcullis_adaptive::Adaptive;
//! use portcullis_tower::adaptive::AdaptiveLayer;
//!
//! // Begins at 20, and stays between 2 and 500.
//! let limit = Arc::new(Adaptive::builder(20).floor(2).ceiling(500).build()?);
//! // For `Router::layer` of axum, `ServiceBuilder` of tower, or `Server::layer` of tonic.
//! let layer = AdaptiveLayer::new(Arc::clone(&limit));
//! // For a page or a log.
//! println!("{:?}", limit.explain());
//! # let _ = layer;
//! # Ok::<(), portcullis_core::SettingsError>(())
//! ```
//!
//! ```text
//! request --> call --> over the limit: 503, without the inner service
//!               |
//!               +----> takes a permit --> inner service --> response --> end of its body
//!                                                              |               |
//!                                              status: how it ended    the permit returns
//!                                              Latency::ToHead: how long       Latency::ToEnd
//! ```
//!
//! A request whose response does not come, because the client goes away or the handler panics,
//! returns its permit and teaches nothing. A body that is dropped before its end counts until then.

use core::marker::PhantomData;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::Body;
use pin_project_lite::pin_project;
use portcullis_adaptive::{Adaptive, Controller, Held, Knee, Outcome};
use portcullis_core::{Clock, MonotonicClock};
use tower_layer::Layer;
use tower_service::Service;

use crate::body::{AnyBody, LimitedBody, ResponseBody};
use crate::denial::{DenialSettings, Replies};

/// What counts as the latency of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Latency {
    /// The time until the body of the response has ended.
    #[default]
    ToEnd,
    /// The time until the response begins: where bodies last as long as their clients like, such
    /// as streams and downloads.
    ToHead,
}

/// Tells how a request ended by its status: 503 and 504 pushed back, other statuses from 500 on
/// failed, 429 tells nothing, and the others succeeded.
///
/// A 429 comes from a limit inside: it says that a client sent too much, not that the service has.
#[must_use]
pub fn outcome_of(status: StatusCode) -> Outcome {
    match status {
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => Outcome::PushedBack,
        StatusCode::TOO_MANY_REQUESTS => Outcome::Ignored,
        _ if status.is_server_error() => Outcome::Failed,
        _ => Outcome::Succeeded,
    }
}

/// A layer that holds as many requests as an [`Adaptive`] limit allows.
///
/// All services of a layer, and of its clones, have the same limit. It is taken in `call`, never in
/// `poll_ready`, and held to the end of the body. The error type of the inner service stays.
pub struct AdaptiveLayer<A = Knee, C = MonotonicClock, W = AnyBody> {
    shared: Arc<Shared<A, C>>,
    body: PhantomData<fn() -> W>,
}

struct Shared<A, C> {
    limit: Arc<Adaptive<A>>,
    clock: C,
    latency: Latency,
    outcome: Box<dyn Fn(StatusCode) -> Outcome + Send + Sync>,
    denials: DenialSettings,
    replies: Replies,
}

impl<A: Controller> AdaptiveLayer<A> {
    /// A layer with default settings. Requests over the limit get a 503.
    #[must_use]
    pub fn new(limit: Arc<Adaptive<A>>) -> Self {
        Self::builder(limit).build()
    }

    /// Starts to build a layer.
    pub fn builder(limit: Arc<Adaptive<A>>) -> AdaptiveLayerBuilder<A> {
        AdaptiveLayerBuilder {
            limit,
            clock: MonotonicClock::new(),
            latency: Latency::default(),
            outcome: Box::new(outcome_of),
            denials: DenialSettings::new().status(StatusCode::SERVICE_UNAVAILABLE),
            body: PhantomData,
        }
    }
}

impl<A, C, W> Clone for AdaptiveLayer<A, C, W> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            body: PhantomData,
        }
    }
}

impl<S, A, C, W> Layer<S> for AdaptiveLayer<A, C, W> {
    type Service = AdaptiveLimit<S, A, C, W>;

    fn layer(&self, inner: S) -> Self::Service {
        AdaptiveLimit {
            inner,
            shared: Arc::clone(&self.shared),
            body: PhantomData,
        }
    }
}

shows!([A, C, W] AdaptiveLayer<A, C, W>, "AdaptiveLayer", self: "limit" => self.shared.limit);

/// Builds an [`AdaptiveLayer`].
#[must_use]
pub struct AdaptiveLayerBuilder<A = Knee, C = MonotonicClock, W = AnyBody> {
    limit: Arc<Adaptive<A>>,
    clock: C,
    latency: Latency,
    outcome: Box<dyn Fn(StatusCode) -> Outcome + Send + Sync>,
    denials: DenialSettings,
    body: PhantomData<fn() -> W>,
}

impl<A: Controller, C: Clock, W> AdaptiveLayerBuilder<A, C, W> {
    /// Sets what counts as the latency of a request. Default [`Latency::ToEnd`].
    pub fn latency(self, latency: Latency) -> Self {
        Self { latency, ..self }
    }

    /// Sets what the status of a response tells. Default [`outcome_of`].
    pub fn outcome(self, outcome: impl Fn(StatusCode) -> Outcome + Send + Sync + 'static) -> Self {
        Self {
            outcome: Box::new(outcome),
            ..self
        }
    }

    /// Sets how requests over the limit are answered. Default: with the status 503.
    pub fn denials(self, denials: DenialSettings) -> Self {
        Self { denials, ..self }
    }

    /// Sets the clock. Default [`MonotonicClock`].
    pub fn clock<D: Clock>(self, clock: D) -> AdaptiveLayerBuilder<A, D, W> {
        AdaptiveLayerBuilder {
            limit: self.limit,
            clock,
            latency: self.latency,
            outcome: self.outcome,
            denials: self.denials,
            body: PhantomData,
        }
    }

    /// Makes the responses have the body of axum.
    #[cfg(feature = "axum")]
    pub fn for_axum(self) -> AdaptiveLayerBuilder<A, C, crate::AxumBody> {
        AdaptiveLayerBuilder {
            limit: self.limit,
            clock: self.clock,
            latency: self.latency,
            outcome: self.outcome,
            denials: self.denials,
            body: PhantomData,
        }
    }

    /// Builds the layer.
    #[must_use]
    pub fn build(self) -> AdaptiveLayer<A, C, W> {
        AdaptiveLayer {
            shared: Arc::new(Shared {
                limit: self.limit,
                clock: self.clock,
                latency: self.latency,
                outcome: self.outcome,
                replies: Replies::of_limiter(&self.denials, None),
                denials: self.denials,
            }),
            body: PhantomData,
        }
    }
}

shows!([A, C, W] AdaptiveLayerBuilder<A, C, W>, "AdaptiveLayerBuilder",
    self: "limit" => self.limit, "latency" => self.latency);

/// A service that holds as many requests as an [`Adaptive`] limit allows: the result of an
/// [`AdaptiveLayer`].
pub struct AdaptiveLimit<S, A = Knee, C = MonotonicClock, W = AnyBody> {
    inner: S,
    shared: Arc<Shared<A, C>>,
    body: PhantomData<fn() -> W>,
}

impl<S: Clone, A, C, W> Clone for AdaptiveLimit<S, A, C, W> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            shared: Arc::clone(&self.shared),
            body: PhantomData,
        }
    }
}

shows!([S: core::fmt::Debug, A, C, W] AdaptiveLimit<S, A, C, W>, "AdaptiveLimit",
    self: "inner" => self.inner);

impl<S, A, R, B, C, W> Service<Request<R>> for AdaptiveLimit<S, A, C, W>
where
    S: Service<Request<R>, Response = Response<B>>,
    B: Body<Data: From<Bytes>>,
    A: Controller,
    C: Clock,
    W: ResponseBody<B, InFlight<A, C>>,
{
    type Response = Response<W::Body>;
    type Error = S::Error;
    type Future = AdaptiveFuture<S::Future, B, A, C, W>;

    #[inline]
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<R>) -> Self::Future {
        let shared = &self.shared;
        let now = shared.clock.now();
        let state = match Held::try_acquire_at(Arc::clone(&shared.limit), now, 1) {
            Ok(held) => State::Allowed {
                inner: self.inner.call(request),
                request: Some(InFlight {
                    held: Some(held),
                    outcome: Outcome::Ignored,
                    shared: Arc::clone(shared),
                }),
            },
            Err(denied) => {
                let limiter = &*shared.limit;
                let retry = denied.retry(limiter);
                let denial = shared.replies.limiter(now, limiter, denied, retry);
                let headers = core::mem::take(request.headers_mut());
                State::Denied {
                    response: Some(shared.denials.response(denial, headers)),
                    body: PhantomData,
                }
            }
        };
        AdaptiveFuture {
            state,
            kind: PhantomData,
        }
    }
}

#[cfg(feature = "tonic")]
impl<S: tonic::server::NamedService, A, C, W> tonic::server::NamedService
    for AdaptiveLimit<S, A, C, W>
{
    const NAME: &'static str = S::NAME;
}

/// A request in flight: its permit, which returns when this is dropped, and how it ended so far.
pub struct InFlight<A: Controller, C: Clock> {
    /// `None` once it was dropped.
    held: Option<Held<Arc<Adaptive<A>>, A>>,
    outcome: Outcome,
    shared: Arc<Shared<A, C>>,
}

impl<A: Controller, C: Clock> InFlight<A, C> {
    /// The response begins, with this status.
    fn begins(&mut self, status: StatusCode) {
        self.outcome = (self.shared.outcome)(status);
        if self.shared.latency == Latency::ToHead
            && let Some(held) = &mut self.held
        {
            held.tell_at(self.shared.clock.now(), self.outcome);
        }
    }
}

impl<A: Controller, C: Clock> Drop for InFlight<A, C> {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            held.end_at(self.shared.clock.now(), self.outcome);
        }
    }
}

shows!([A: Controller, C: Clock] InFlight<A, C>, "InFlight", self: "outcome" => self.outcome);

pin_project! {
    /// The future of a response: the result of calling an [`AdaptiveLimit`].
    ///
    /// It holds the permit of the request, which passes to the body of the response.
    #[must_use = "futures do nothing unless they are polled"]
    pub struct AdaptiveFuture<F, B, A: Controller, C: Clock, W> {
        #[pin]
        state: State<F, B, A, C>,
        kind: PhantomData<fn() -> W>,
    }
}

pin_project! {
    #[project = Projected]
    enum State<F, B, A: Controller, C: Clock> {
        Allowed { #[pin] inner: F, request: Option<InFlight<A, C>> },
        Denied { response: Option<Response<Bytes>>, body: PhantomData<fn() -> B> },
    }
}

shows!([F, B, A: Controller, C: Clock, W] AdaptiveFuture<F, B, A, C, W>, "AdaptiveFuture");

impl<F, B, E, A, C, W> Future for AdaptiveFuture<F, B, A, C, W>
where
    F: Future<Output = Result<Response<B>, E>>,
    A: Controller,
    C: Clock,
    W: ResponseBody<B, InFlight<A, C>>,
{
    type Output = Result<Response<W::Body>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let (inner, request) = match self.project().state.project() {
            Projected::Allowed { inner, request } => (inner, request),
            Projected::Denied { response, .. } => {
                let response = response.take().expect("polled after it was ready");
                return Poll::Ready(Ok(response.map(|body| W::limited(LimitedBody::reply(body)))));
            }
        };
        let result = ready!(inner.poll(context));
        let mut request = request.take();
        if let Some(request) = &mut request {
            match &result {
                Ok(response) => request.begins(response.status()),
                // The inner service failed.
                Err(_) => request.outcome = Outcome::Failed,
            }
        }
        Poll::Ready(result.map(|response| {
            response.map(|body| W::limited(LimitedBody::inner(body, request, None)))
        }))
    }
}
