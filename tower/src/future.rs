//! The future of a response.

use core::fmt;
use core::marker::PhantomData;
use core::pin::Pin;
use core::task::{Context, Poll, ready};

use http::Response;
use pin_project_lite::pin_project;

use crate::{LimitedBody, ResponseBody};

pin_project! {
    /// The future of a response: the result of calling a [`RateLimit`](crate::RateLimit).
    ///
    /// It holds the permits of the request. They pass to the body of the response, and return if
    /// the future is dropped, or the inner service fails.
    #[must_use = "futures do nothing unless they are polled"]
    pub struct ResponseFuture<F, B, P, W> {
        #[pin]
        state: State<F, B, P>,
        kind: PhantomData<fn() -> W>,
    }
}

pin_project! {
    #[project = Projected]
    enum State<F, B, P> {
        Allowed { #[pin] inner: F, permits: Option<P> },
        Denied { response: Option<Response<LimitedBody<B, P>>> },
    }
}

impl<F, B, P, W> ResponseFuture<F, B, P, W> {
    pub(crate) const fn allowed(inner: F, permits: Option<P>) -> Self {
        Self {
            state: State::Allowed { inner, permits },
            kind: PhantomData,
        }
    }

    pub(crate) const fn denied(response: Response<LimitedBody<B, P>>) -> Self {
        Self {
            state: State::Denied {
                response: Some(response),
            },
            kind: PhantomData,
        }
    }
}

impl<F, B, E, P, W> Future for ResponseFuture<F, B, P, W>
where
    F: Future<Output = Result<Response<B>, E>>,
    W: ResponseBody<B, P>,
{
    type Output = Result<Response<W::Body>, E>;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(match self.project().state.project() {
            Projected::Allowed { inner, permits } => {
                let result = ready!(inner.poll(context));
                let permits = permits.take();
                result.map(|response| {
                    response.map(|body| match permits {
                        None => W::passed(body),
                        Some(_) => W::limited(LimitedBody::inner(body, permits)),
                    })
                })
            }
            Projected::Denied { response } => {
                let response = response.take().expect("polled after it was ready");
                Ok(response.map(W::limited))
            }
        })
    }
}

impl<F, B, P, W> fmt::Debug for ResponseFuture<F, B, P, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
