//! The service, which judges each request before the inner service sees it.

use core::fmt;
use core::marker::PhantomData;
use core::mem::{self, ManuallyDrop};
use core::task::{Context, Poll};
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use portcullis_core::{Clock, MonotonicClock};
use tower_service::Service;

use crate::future::{Settling, Then};
use crate::layer::Settings;
use crate::measured::Extras;
use crate::{AnyBody, Decide, Denial, ResponseBody, ResponseFuture};
#[cfg(any(feature = "fields", feature = "metrics"))]
use crate::{Notes, RequestHead};

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
///
/// After a denial the inner service is as ready as before. What it reserved in `poll_ready` returns
/// with its next call, or when this service is dropped: see the [crate](crate).
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

    // Not inlined, and without a value to drop while the inner service is called: so the request is
    // passed on where it is, and the inner future is created in its place. A copy of each is about
    // a tenth of what the layer costs.
    #[inline(never)]
    fn call(&mut self, request: Request<A>) -> Self::Future {
        let judged = ManuallyDrop::new(self.shared.judge(&request));
        if let Ok(Then::Pass) = *judged {
            return ResponseFuture::allowed(self.inner.call(request), Then::Pass);
        }
        let judged = ManuallyDrop::into_inner(judged);
        self.shared.go_on(&mut self.inner, request, judged)
    }
}

/// A request that is denied, and the fields of the response.
pub(crate) type Denied = (Denial, Extras);

impl<D: Decide, C: Clock> Shared<D, C> {
    /// Judges a request, and takes its permits.
    #[inline]
    pub(crate) fn judge<A>(self: &Arc<Self>, request: &Request<A>) -> Result<Then<D, C>, Denied> {
        let settings = &self.settings;
        let head = settings.head(request);
        if settings.passes(&head) {
            return Ok(Then::Pass);
        }
        #[cfg(any(feature = "fields", feature = "metrics"))]
        if settings.notes {
            return self.judge_noting(&head);
        }
        if settings.settles() {
            let (now, cost) = (self.clock.now(), settings.cost(&head));
            let held = self.decide.hold_at(now, &head, cost);
            return self.settling(held, cost, None);
        }
        match self
            .decide
            .decide_by(&self.clock, &head, settings.cost(&head))
        {
            Ok(None) => Ok(Then::Pass),
            Ok(permits) => Ok(Then::Keep(permits, None)),
            Err(denial) => Err((denial, None)),
        }
    }

    /// Judges a request, states the limits and measures the request.
    #[cfg(any(feature = "fields", feature = "metrics"))]
    #[inline(never)]
    fn judge_noting(self: &Arc<Self>, head: &RequestHead<'_>) -> Result<Then<D, C>, Denied> {
        let settings = &self.settings;
        let (now, cost) = (self.clock.now(), settings.cost(head));
        let mut notes: Notes = settings.notes();
        if settings.settles() {
            let held = self.decide.hold_noting_at(now, head, cost, &mut notes);
            let extras = settings.extras(&notes, held.is_ok());
            return self.settling(held, cost, extras);
        }
        let taken = self.decide.decide_noting_at(now, head, cost, &mut notes);
        let extras = settings.extras(&notes, taken.is_ok());
        match taken {
            Ok(permits) => Ok(Then::Keep(permits, extras)),
            Err(denial) => Err((denial, extras)),
        }
    }

    /// What follows a request whose cost is settled when there is a response.
    #[inline(never)]
    fn settling(
        self: &Arc<Self>,
        held: Result<D::Held, Denial>,
        estimate: u32,
        extras: Extras,
    ) -> Result<Then<D, C>, Denied> {
        match held {
            Ok(held) => Ok(Then::Settle(Box::new(Settling {
                shared: Arc::clone(self),
                held,
                estimate,
                extras,
            }))),
            Err(denial) => Err((denial, extras)),
        }
    }
}

impl<D: Decide, C> Shared<D, C> {
    /// Calls the inner service, or answers.
    #[inline(never)]
    pub(crate) fn go_on<S, A, B, W>(
        &self,
        inner: &mut S,
        request: Request<A>,
        judged: Result<Then<D, C>, Denied>,
    ) -> ResponseFuture<S::Future, B, D, C, W>
    where
        S: Service<Request<A>, Response = Response<B>>,
    {
        match judged {
            Ok(then) => ResponseFuture::allowed(inner.call(request), then),
            Err(denied) => ResponseFuture::denied(self.answer(denied, request)),
        }
    }

    /// The response to a request that is denied. It has the map of headers of the request.
    fn answer<A>(&self, (denial, extras): Denied, mut request: Request<A>) -> Response<Bytes> {
        let headers = mem::take(request.headers_mut());
        let mut response = self.settings.denials.response(denial, headers);
        if let Some(extras) = extras {
            response.headers_mut().extend(extras.fields);
        }
        response
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
