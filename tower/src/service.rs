//! The service, which judges each request before the inner service sees it.

use core::fmt;
use core::marker::PhantomData;
use core::task::{Context, Poll};
use std::sync::Arc;
#[cfg(feature = "fields")]
use std::time::SystemTime;

use bytes::Bytes;
#[cfg(feature = "fields")]
use http::HeaderMap;
use http::{Request, Response};
use http_body::Body;
#[cfg(feature = "fields")]
use portcullis_core::Timestamp;
use portcullis_core::{Clock, MonotonicClock};
use tower_service::Service;

#[cfg(feature = "fields")]
use crate::fields::{Generation, Quota};
use crate::future::Settling;
use crate::layer::Settings;
use crate::{AnyBody, Decide, Denial, LimitedBody, ResponseBody, ResponseFuture};

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
        let head = settings.head(&request);
        if settings.passes(&head) {
            return ResponseFuture::allowed(|| self.inner.call(request), None);
        }
        #[cfg(feature = "fields")]
        if settings.generation != Generation::Off {
            let now = clock.now();
            return self.call_stating(request, now);
        }
        let cost = settings.cost(&head);
        let denial = if settings.settles() {
            match decide.hold_at(clock.now(), &head, cost) {
                Ok(held) => return self.settling(request, held, cost),
                Err(denial) => denial,
            }
        } else {
            match decide.decide(clock, &head, cost) {
                Ok(permits) => {
                    return ResponseFuture::allowed(|| self.inner.call(request), permits);
                }
                Err(denial) => denial,
            }
        };
        refuse(settings, &denial, request)
    }
}

/// The reply to a request that is denied, in the map of headers of the request.
#[inline(never)]
fn refuse<F, A, B, D: Decide, C, W>(
    settings: &Settings,
    denial: &Denial,
    request: Request<A>,
) -> ResponseFuture<F, B, D, C, W> {
    let headers = request.into_parts().0.headers;
    let response = settings.denials.response(denial, headers);
    ResponseFuture::denied(response.map(LimitedBody::reply))
}

impl<S, D, C, W> RateLimit<S, D, C, W> {
    fn settling<A, B>(
        &mut self,
        request: Request<A>,
        held: D::Held,
        estimate: u32,
    ) -> ResponseFuture<S::Future, B, D, C, W>
    where
        S: Service<Request<A>, Response = Response<B>>,
        D: Decide,
    {
        let settling = Settling {
            shared: Arc::clone(&self.shared),
            held,
            estimate,
        };
        ResponseFuture::settling(self.inner.call(request), settling)
    }

    /// Decides, and states the limits in the response.
    #[cfg(feature = "fields")]
    #[inline(never)]
    fn call_stating<A, B>(
        &mut self,
        request: Request<A>,
        now: Timestamp,
    ) -> ResponseFuture<S::Future, B, D, C, W>
    where
        S: Service<Request<A>, Response = Response<B>>,
        D: Decide,
    {
        let Shared {
            decide, settings, ..
        } = &*self.shared;
        let head = settings.head(&request);
        let cost = settings.cost(&head);
        let mut stated = Vec::new();
        let write = |stated: &[Quota<'_>], headers: &mut HeaderMap| {
            let now = SystemTime::now();
            settings.generation.write(stated, now, headers);
        };
        let denial = if settings.settles() {
            match decide.hold_stated_at(now, &head, cost, &mut stated) {
                Ok(held) => {
                    let mut fields = HeaderMap::new();
                    write(&stated, &mut fields);
                    return self.settling(request, held, cost).stating(fields);
                }
                Err(denial) => denial,
            }
        } else {
            match decide.decide_stated_at(now, &head, cost, &mut stated) {
                Ok(permits) => {
                    let mut fields = HeaderMap::new();
                    write(&stated, &mut fields);
                    let inner = || self.inner.call(request);
                    return ResponseFuture::allowed(inner, permits).stating(fields);
                }
                Err(denial) => denial,
            }
        };
        let headers = request.into_parts().0.headers;
        let mut response = settings.denials.response(&denial, headers);
        write(&stated, response.headers_mut());
        ResponseFuture::denied(response.map(LimitedBody::reply))
    }
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
