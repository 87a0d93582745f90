//! The future of a response.

use core::fmt;
use core::marker::PhantomData;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use std::sync::Arc;

use http::{HeaderMap, Response};
use pin_project_lite::pin_project;
use portcullis_core::Clock;

use crate::service::Shared;
use crate::{Decide, LimitedBody, ResponseBody, ResponseHead};

pin_project! {
    /// The future of a response: the result of calling a [`RateLimit`](crate::RateLimit).
    ///
    /// It holds the permits of the request. They pass to the body of the response, and return if
    /// the future is dropped, or the inner service fails.
    #[must_use = "futures do nothing unless they are polled"]
    pub struct ResponseFuture<F, B, D: Decide, C, W> {
        #[pin]
        state: State<F, B, D, C>,
        fields: Option<Box<HeaderMap>>,
        kind: PhantomData<fn() -> W>,
    }
}

pin_project! {
    #[project = Projected]
    enum State<F, B, D: Decide, C> {
        Allowed { #[pin] inner: F, permits: Option<D::Permits> },
        Settling { #[pin] inner: F, settling: Option<Box<Settling<D, C>>> },
        Denied { response: Option<Response<LimitedBody<B, D::Permits>>> },
    }
}

/// A request whose cost is settled when there is a response.
pub(crate) struct Settling<D: Decide, C> {
    pub(crate) shared: Arc<Shared<D, C>>,
    pub(crate) held: D::Held,
    pub(crate) estimate: u32,
}

impl<D: Decide, C: Clock> Settling<D, C> {
    fn settle(self, head: &ResponseHead<'_>) -> Option<D::Permits> {
        let Self {
            shared,
            held,
            estimate,
        } = self;
        let actual = shared.settings.actual(head, estimate);
        if actual == estimate {
            return shared.decide.keep(held);
        }
        shared.decide.settle_at(shared.clock.now(), held, actual)
    }
}

impl<F, B, D: Decide, C, W> ResponseFuture<F, B, D, C, W> {
    #[inline(always)]
    pub(crate) fn allowed(inner: impl FnOnce() -> F, permits: Option<D::Permits>) -> Self {
        Self {
            state: State::Allowed {
                inner: inner(),
                permits,
            },
            fields: None,
            kind: PhantomData,
        }
    }

    pub(crate) fn settling(inner: F, settling: Settling<D, C>) -> Self {
        Self::new(State::Settling {
            inner,
            settling: Some(Box::new(settling)),
        })
    }

    pub(crate) const fn denied(response: Response<LimitedBody<B, D::Permits>>) -> Self {
        Self::new(State::Denied {
            response: Some(response),
        })
    }

    const fn new(state: State<F, B, D, C>) -> Self {
        Self {
            state,
            fields: None,
            kind: PhantomData,
        }
    }

    /// Adds the fields to the response.
    #[cfg(feature = "fields")]
    pub(crate) fn stating(self, fields: HeaderMap) -> Self {
        Self {
            fields: Some(Box::new(fields)),
            ..self
        }
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
        let this = self.project();
        let (mut response, permits) = match this.state.project() {
            // The response is not taken apart, because each copy of it counts.
            Projected::Allowed { inner, permits } if permits.is_none() && this.fields.is_none() => {
                return inner
                    .poll(context)
                    .map(|result| result.map(|response| W::passed(response)));
            }
            Projected::Allowed { inner, permits } => (ready!(inner.poll(context))?, permits.take()),
            Projected::Settling { inner, settling } => {
                let result = ready!(inner.poll(context));
                let settling = settling.take();
                let response = result?;
                let head = ResponseHead::new(&response);
                let permits = settling.and_then(|settling| settling.settle(&head));
                (response, permits)
            }
            Projected::Denied { response } => {
                let response = response.take().expect("polled after it was ready");
                return Poll::Ready(Ok(response.map(W::limited)));
            }
        };
        if let Some(fields) = this.fields.take() {
            let headers = response.headers_mut();
            for (name, value) in fields.iter() {
                headers.entry(name).or_insert_with(|| value.clone());
            }
        }
        Poll::Ready(Ok(match permits {
            None => W::passed(response),
            Some(_) => response.map(|body| W::limited(LimitedBody::inner(body, permits))),
        }))
    }
}

impl<F, B, D: Decide, C, W> fmt::Debug for ResponseFuture<F, B, D, C, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
