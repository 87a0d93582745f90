//! The future of a response.

use core::marker::PhantomData;
use core::mem;
use core::pin::Pin;
use core::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Request, Response};
use pin_project_lite::pin_project;
use portcullis_core::Clock;
use tower_service::Service;

use crate::body::{LimitedBody, ResponseBody};
use crate::decide::Decide;
use crate::head::ResponseHead;
use crate::shared::{Denied, Shared, Then};

pin_project! {
    /// The future of a response: the result of calling a [`RateLimit`](crate::RateLimit).
    ///
    /// It holds the permits of the request. They pass to the body of the response, and return if
    /// the future is dropped, or the inner service fails.
    #[must_use = "futures do nothing unless they are polled"]
    pub struct ResponseFuture<F, B, D: Decide, C, W> {
        #[pin]
        state: State<F, B, D, C>,
        kind: PhantomData<fn() -> W>,
    }
}

pin_project! {
    #[project = Projected]
    enum State<F, B, D: Decide, C> {
        Allowed { #[pin] inner: F, then: Then<D, C> },
        Denied { response: Option<Response<Bytes>>, body: PhantomData<fn() -> B> },
    }
}

impl<F, B, D: Decide, C, W> ResponseFuture<F, B, D, C, W> {
    #[inline(always)]
    pub(crate) const fn allowed(inner: F, then: Then<D, C>) -> Self {
        Self {
            state: State::Allowed { inner, then },
            kind: PhantomData,
        }
    }

    #[inline(always)]
    pub(crate) const fn denied(response: Response<Bytes>) -> Self {
        Self {
            state: State::Denied {
                response: Some(response),
                body: PhantomData,
            },
            kind: PhantomData,
        }
    }
}

impl<F, B, D: Decide, C, W> ResponseFuture<F, B, D, C, W> {
    /// Calls the inner service, or answers instead of it.
    #[inline(never)]
    pub(crate) fn of<S, A>(
        shared: &Shared<D, C>,
        inner: &mut S,
        request: Request<A>,
        judged: Result<Then<D, C>, Denied>,
    ) -> Self
    where
        S: Service<Request<A>, Response = Response<B>, Future = F>,
    {
        match judged {
            Ok(then) => Self::allowed(inner.call(request), then),
            Err(denied) => Self::denied(shared.answer(denied, request)),
        }
    }
}

impl<D: Decide, C> Shared<D, C> {
    /// The response to a request that is denied. It has the map of headers of the request, so that
    /// a denial allocates none.
    fn answer<A>(&self, (denial, extras): Denied, mut request: Request<A>) -> Response<Bytes> {
        let headers = mem::take(request.headers_mut());
        let mut response = self.settings.denials.response(denial, headers);
        if let Some(extras) = extras {
            response.headers_mut().extend(extras.fields);
        }
        response
    }
}

impl<F, B, E, D, C, W> Future for ResponseFuture<F, B, D, C, W>
where
    F: Future<Output = Result<Response<B>, E>>,
    D: Decide,
    C: Clock,
    W: ResponseBody<B, D::Permits>,
{
    type Output = Result<Response<W::Body>, E>;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let (inner, then) = match self.project().state.project() {
            // The response is not taken apart, because each copy of it counts.
            Projected::Allowed {
                inner,
                then: Then::Pass,
            } => return W::poll_passed(inner, context),
            Projected::Allowed { inner, then } => (inner, then),
            Projected::Denied { response, .. } => {
                let response = response.take().expect("polled after it was ready");
                let body = |body| W::limited(LimitedBody::reply(body));
                return Poll::Ready(Ok(response.map(body)));
            }
        };
        let result = ready!(inner.poll(context));
        let then = mem::replace(then, Then::Pass);
        let mut response = result?;
        let (permits, extras) = match then {
            Then::Pass => (None, None),
            Then::Keep(permits, extras) => (permits, extras),
            Then::Settle(settling) => settling.settle(&ResponseHead::new(&response)),
        };
        let mut measured = None;
        if let Some(extras) = extras {
            let headers = response.headers_mut();
            for (name, value) in &extras.fields {
                headers.entry(name).or_insert_with(|| value.clone());
            }
            measured = extras.measured;
        }
        Poll::Ready(Ok(match (&permits, &measured) {
            (None, None) => W::passed(response),
            _ => response.map(|body| W::limited(LimitedBody::inner(body, permits, measured))),
        }))
    }
}

shows!([F, B, D: Decide, C, W] ResponseFuture<F, B, D, C, W>, "ResponseFuture");
