//! The service, which judges each request before the inner service sees it.

use core::fmt;
use core::marker::PhantomData;
use core::task::{Context, Poll};
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::Body;
use portcullis_core::{Clock, MonotonicClock};
use tower_service::Service;

use crate::denial::write_headers;
use crate::future::Settling;
use crate::layer::Settings;
use crate::{AnyBody, Decide, Denial, LimitedBody, RequestHead, ResponseBody, ResponseFuture};

/// What all services of a layer have in common.
pub(crate) struct Shared<D, C> {
    pub(crate) decide: D,
    pub(crate) clock: C,
    pub(crate) settings: Settings,
}

/// A service whose requests are limited: the result of a
/// [`RateLimitLayer`](crate::RateLimitLayer).
///
/// All clones of it, and all services of the same layer, have the same limits. Permits are taken in
/// `call`, and never in `poll_ready`: a connection without a request holds nothing. The error type
/// is that of the inner service, because a denial is a response.
pub struct RateLimit<S, D, C = MonotonicClock, W = AnyBody> {
    inner: S,
    shared: Arc<Shared<D, C>>,
    body: PhantomData<fn() -> W>,
}

impl<S, D, C, W> RateLimit<S, D, C, W> {
    pub(crate) const fn new(inner: S, shared: Arc<Shared<D, C>>) -> Self {
        Self {
            inner,
            shared,
            body: PhantomData,
        }
    }

    /// Returns the inner service.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S: Clone, D, C, W> Clone for RateLimit<S, D, C, W> {
    #[inline]
    fn clone(&self) -> Self {
        Self::new(self.inner.clone(), Arc::clone(&self.shared))
    }
}

impl<S, A, B, D, C, W> Service<Request<A>> for RateLimit<S, D, C, W>
where
    S: Service<Request<A>, Response = Response<B>>,
    B: Body<Data: From<Bytes>>,
    D: Decide,
    C: Clock,
    W: ResponseBody<B, D::Permits>,
{
    type Response = Response<W::Body>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future, B, D, C, W>;

    #[inline]
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    #[inline]
    fn call(&mut self, request: Request<A>) -> Self::Future {
        let Shared {
            decide,
            clock,
            settings,
        } = &*self.shared;
        let head = RequestHead::new(&request);
        if settings.passes(&head) {
            return ResponseFuture::allowed(self.inner.call(request), None);
        }
        let (now, cost) = (clock.now(), settings.cost(&head));
        let denial = if settings.settles() {
            match decide.hold_at(now, &head, cost) {
                Ok(held) => {
                    let settling = Settling {
                        shared: Arc::clone(&self.shared),
                        held,
                        estimate: cost,
                    };
                    return ResponseFuture::settling(self.inner.call(request), settling);
                }
                Err(denial) => denial,
            }
        } else {
            match decide.decide_at(now, &head, cost) {
                Ok(permits) => return ResponseFuture::allowed(self.inner.call(request), permits),
                Err(denial) => denial,
            }
        };
        let headers = request.into_parts().0.headers;
        ResponseFuture::denied(respond(settings, denial, headers))
    }
}

/// The response to a request that is denied, in the map of headers of that request.
fn respond<B, P>(
    settings: &Settings,
    denial: Denial,
    mut headers: HeaderMap,
) -> Response<LimitedBody<B, P>> {
    write_headers(&mut headers, &denial, &settings.denials.headers);
    let mut response = Response::new(LimitedBody::reply(denial.reply.body));
    *response.status_mut() = denial.reply.status;
    *response.headers_mut() = headers;
    response
}

impl<S: fmt::Debug, D, C, W> fmt::Debug for RateLimit<S, D, C, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}

#[cfg(feature = "tonic")]
impl<S: tonic::server::NamedService, D, C, W> tonic::server::NamedService
    for RateLimit<S, D, C, W>
{
    const NAME: &'static str = S::NAME;
}
