//! Bodies of responses: with permits that return at their end, or prepared.

use core::pin::Pin;
use core::task::{Context, Poll, ready};

use bytes::Bytes;
use http::Response;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::measured::Measured;

pin_project! {
    /// The body of a response: that of the inner service, or of a denial.
    ///
    /// It holds the permits of its request until it has ended, has failed or is dropped.
    #[must_use = "a body that is dropped ends the response"]
    pub struct LimitedBody<B, P> {
        #[pin]
        source: Source<B>,
        permits: Option<P>,
        measured: Option<Measured>,
    }
}

pin_project! {
    #[project = Projected]
    enum Source<B> {
        Inner { #[pin] body: B },
        Reply { body: Bytes },
    }
}

impl<B, P> LimitedBody<B, P> {
    pub(crate) const fn inner(body: B, permits: Option<P>, measured: Option<Measured>) -> Self {
        Self {
            source: Source::Inner { body },
            permits,
            measured,
        }
    }

    pub(crate) const fn reply(body: Bytes) -> Self {
        Self {
            source: Source::Reply { body },
            permits: None,
            measured: None,
        }
    }
}

impl<B, P> Body for LimitedBody<B, P>
where
    B: Body,
    B::Data: From<Bytes>,
{
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.project();
        let mut body = match this.source.project() {
            Projected::Inner { body } => body,
            Projected::Reply { body } if body.is_empty() => return Poll::Ready(None),
            Projected::Reply { body } => {
                let data = core::mem::take(body);
                return Poll::Ready(Some(Ok(Frame::data(data.into()))));
            }
        };
        let frame = ready!(body.as_mut().poll_frame(context));
        if !matches!(frame, Some(Ok(_))) || body.is_end_stream() {
            *this.permits = None;
            *this.measured = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Inner { body } => body.is_end_stream(),
            Source::Reply { body } => body.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Inner { body } => body.size_hint(),
            Source::Reply { body } => SizeHint::with_exact(body.len() as u64),
        }
    }
}

shows!([B, P] LimitedBody<B, P>, "LimitedBody", self: "holds_permits" => self.permits.is_some());

/// Which type of body the responses have. `B` is the body of the inner service, and `P` the permits
/// of a request.
///
/// Implemented for [`AnyBody`] and `AxumBody`. Implement it for the body of another framework.
pub trait ResponseBody<B, P> {
    /// The body of a response.
    type Body;

    /// A response of the inner service that holds no permits.
    fn passed(response: Response<B>) -> Response<Self::Body>;

    /// Polls the future of the inner service, for a request that holds no permits.
    ///
    /// # Errors
    ///
    /// The errors of the inner service.
    #[inline]
    fn poll_passed<E>(
        inner: Pin<&mut impl Future<Output = Result<Response<B>, E>>>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Response<Self::Body>, E>> {
        let polled = inner.poll(context);
        polled.map(|result| result.map(Self::passed))
    }

    /// A body of the inner service, or of a denial.
    fn limited(body: LimitedBody<B, P>) -> Self::Body;
}

/// Responses have a [`LimitedBody`].
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::exhaustive_structs, reason = "it has no settings")]
pub struct AnyBody;

impl<B, P> ResponseBody<B, P> for AnyBody {
    type Body = LimitedBody<B, P>;

    #[inline]
    fn passed(response: Response<B>) -> Response<Self::Body> {
        response.map(|body| LimitedBody::inner(body, None, None))
    }

    #[inline]
    fn limited(body: LimitedBody<B, P>) -> Self::Body {
        body
    }
}

/// Responses have the body of axum, which stays as it is if it holds no permits.
#[cfg(feature = "axum")]
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::exhaustive_structs, reason = "it has no settings")]
pub struct AxumBody;

#[cfg(feature = "axum")]
impl<P: Send + 'static> ResponseBody<axum::body::Body, P> for AxumBody {
    type Body = axum::body::Body;

    #[inline]
    fn passed(response: Response<axum::body::Body>) -> Response<Self::Body> {
        response
    }

    // The response is not copied.
    #[inline]
    fn poll_passed<E>(
        inner: Pin<&mut impl Future<Output = Result<Response<axum::body::Body>, E>>>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Response<axum::body::Body>, E>> {
        inner.poll(context)
    }

    fn limited(body: LimitedBody<axum::body::Body, P>) -> Self::Body {
        axum::body::Body::new(body)
    }
}
