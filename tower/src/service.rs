//! The service, which judges each request before the inner service sees it.

use core::fmt;
use core::marker::PhantomData;
use core::mem;
use core::task::{Context, Poll};
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use portcullis_core::{Clock, MonotonicClock};
use tower_service::Service;

#[cfg(feature = "fields")]
use crate::RequestHead;
#[cfg(feature = "fields")]
use crate::fields::{Generation, Quota};
use crate::future::{Fields, Settling};
use crate::layer::Settings;
use crate::{AnyBody, Decide, Denial, ResponseBody, ResponseFuture};

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
        match self.shared.judge(&request) {
            Judged::Passed => ResponseFuture::passed(|| self.inner.call(request)),
            judged => self.shared.go_on(&mut self.inner, request, judged),
        }
    }
}

/// What is to be done with a request.
pub(crate) enum Judged<D: Decide> {
    /// It goes to the inner service, and its response stays as it is.
    Passed,
    /// It holds permits, or its response states limits.
    Allowed(Option<D::Permits>, Fields),
    /// Its cost is settled when there is a response.
    Settling(D::Held, u32, Fields),
    /// Its response states limits.
    Denied(Denial, Fields),
}

impl<D: Decide, C: Clock> Shared<D, C> {
    /// Judges a request, and takes its permits. A function of its own, so that `call` is small
    /// enough to be a part of its caller, and the future is created where it is needed.
    #[inline(never)]
    pub(crate) fn judge<A>(&self, request: &Request<A>) -> Judged<D> {
        let Self {
            decide,
            clock,
            settings,
        } = self;
        let head = settings.head(request);
        if settings.passes(&head) {
            return Judged::Passed;
        }
        #[cfg(feature = "fields")]
        if settings.generation != Generation::Off {
            return self.judge_stating(&head);
        }
        let (now, cost) = (clock.now(), settings.cost(&head));
        if settings.settles() {
            return match decide.hold_at(now, &head, cost) {
                Ok(held) => Judged::Settling(held, cost, None),
                Err(denial) => Judged::Denied(denial, None),
            };
        }
        match decide.decide_at(now, &head, cost) {
            Ok(None) => Judged::Passed,
            Ok(permits) => Judged::Allowed(permits, None),
            Err(denial) => Judged::Denied(denial, None),
        }
    }

    /// Judges a request, and states the limits.
    #[cfg(feature = "fields")]
    #[inline(never)]
    fn judge_stating(&self, head: &RequestHead<'_>) -> Judged<D> {
        let Self {
            decide,
            clock,
            settings,
        } = self;
        let (now, cost) = (clock.now(), settings.cost(head));
        let mut stated = Vec::new();
        let fields = |stated: &[Quota<'_>]| Some(Box::new(settings.fields(stated)));
        if settings.settles() {
            return match decide.hold_stated_at(now, head, cost, &mut stated) {
                Ok(held) => Judged::Settling(held, cost, fields(&stated)),
                Err(denial) => Judged::Denied(denial, fields(&stated)),
            };
        }
        match decide.decide_stated_at(now, head, cost, &mut stated) {
            Ok(permits) => Judged::Allowed(permits, fields(&stated)),
            Err(denial) => Judged::Denied(denial, fields(&stated)),
        }
    }
}

impl<D: Decide, C> Shared<D, C> {
    /// What `call` does with a request that does not just pass.
    #[inline(never)]
    pub(crate) fn go_on<S, A, B, W>(
        self: &Arc<Self>,
        inner: &mut S,
        mut request: Request<A>,
        judged: Judged<D>,
    ) -> ResponseFuture<S::Future, B, D, C, W>
    where
        S: Service<Request<A>, Response = Response<B>>,
    {
        match judged {
            Judged::Passed => ResponseFuture::passed(|| inner.call(request)),
            Judged::Allowed(permits, fields) => {
                ResponseFuture::allowed(|| inner.call(request), permits, fields)
            }
            Judged::Settling(held, estimate, fields) => {
                let settling = Settling {
                    shared: Arc::clone(self),
                    held,
                    estimate,
                };
                ResponseFuture::settling(|| inner.call(request), settling, fields)
            }
            Judged::Denied(denial, fields) => {
                // The reply has the map of headers of the request.
                let headers = mem::take(request.headers_mut());
                let response = self.settings.denials.response(&denial, headers);
                ResponseFuture::denied(response, fields)
            }
        }
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
