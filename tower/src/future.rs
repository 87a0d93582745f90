//! The future of a response.

use core::fmt;
use core::marker::PhantomData;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Response};
use pin_project_lite::pin_project;
use portcullis_core::Clock;

use crate::service::Shared;
use crate::{Decide, LimitedBody, ResponseBody, ResponseHead};

/// The header fields to add to a response.
pub(crate) type Fields = Option<Box<HeaderMap>>;

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
        /// The response stays as it is.
        Passed { #[pin] inner: F },
        Allowed { #[pin] inner: F, permits: Option<D::Permits>, fields: Fields },
        Settling { #[pin] inner: F, settling: Option<Box<Settling<D, C>>>, fields: Fields },
        Denied { response: Option<Response<Bytes>>, fields: Fields, body: PhantomData<fn() -> B> },
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

// The inner service is called where its future is needed, so that the future is not copied.
impl<F, B, D: Decide, C, W> ResponseFuture<F, B, D, C, W> {
    #[inline(always)]
    pub(crate) fn passed(inner: impl FnOnce() -> F) -> Self {
        Self::new(State::Passed { inner: inner() })
    }

    #[inline(always)]
    pub(crate) fn allowed(
        inner: impl FnOnce() -> F,
        permits: Option<D::Permits>,
        fields: Fields,
    ) -> Self {
        Self::new(State::Allowed {
            inner: inner(),
            permits,
            fields,
        })
    }

    #[inline(always)]
    pub(crate) fn settling(
        inner: impl FnOnce() -> F,
        settling: Settling<D, C>,
        fields: Fields,
    ) -> Self {
        Self::new(State::Settling {
            inner: inner(),
            settling: Some(Box::new(settling)),
            fields,
        })
    }

    pub(crate) const fn denied(response: Response<Bytes>, fields: Fields) -> Self {
        Self::new(State::Denied {
            response: Some(response),
            fields,
            body: PhantomData,
        })
    }

    #[inline(always)]
    const fn new(state: State<F, B, D, C>) -> Self {
        Self {
            state,
            kind: PhantomData,
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
        let (mut response, permits, fields) = match self.project().state.project() {
            // The response is not taken apart, because each copy of it counts.
            Projected::Passed { inner } => return W::poll_passed(inner, context),
            Projected::Allowed {
                inner,
                permits,
                fields,
            } => (ready!(inner.poll(context))?, permits.take(), fields),
            Projected::Settling {
                inner,
                settling,
                fields,
            } => {
                let result = ready!(inner.poll(context));
                let settling = settling.take();
                let response = result?;
                let head = ResponseHead::new(&response);
                let permits = settling.and_then(|settling| settling.settle(&head));
                (response, permits, fields)
            }
            Projected::Denied {
                response, fields, ..
            } => {
                let mut response = response.take().expect("polled after it was ready");
                if let Some(fields) = fields {
                    response.headers_mut().extend(fields.drain());
                }
                let body = |body| W::limited(LimitedBody::reply(body));
                return Poll::Ready(Ok(response.map(body)));
            }
        };
        if let Some(fields) = fields.take() {
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
