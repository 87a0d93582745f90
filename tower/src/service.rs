//! The service, which judges each request before the inner service sees it.

use core::fmt;
use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::task::{Context, Poll};
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use portcullis_core::{Clock, MonotonicClock};
use tower_service::Service;

use crate::body::{AnyBody, ResponseBody};
use crate::decide::Decide;
use crate::future::ResponseFuture;
use crate::shared::{Shared, Then};

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
        ResponseFuture::of(&self.shared, &mut self.inner, request, judged)
    }
}

shows!([S: fmt::Debug, D, C, W] RateLimit<S, D, C, W>, "RateLimit", self: "inner" => self.inner);

#[cfg(feature = "tonic")]
impl<S: tonic::server::NamedService, D, C, W> tonic::server::NamedService
    for RateLimit<S, D, C, W>
{
    const NAME: &'static str = S::NAME;
}
