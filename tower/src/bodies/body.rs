//! A body whose bytes wait for permits.

use core::error::Error;
use core::fmt;
use core::pin::Pin;
use core::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::Flow;

pin_project! {
    /// A body whose bytes wait for the permits of a limit, if it has one. See the
    /// [module](crate::bodies) for the bound.
    ///
    /// Frames of data that are longer than a piece are split. Other frames stay as they are:
    /// trailers, and data of zero bytes.
    ///
    /// The error is a box with the error of the inner body, or with a
    /// [`BodyLimitError`](super::BodyLimitError).
    #[must_use = "a body does nothing until it is polled"]
    pub struct PacedBody<B, F> {
        #[pin]
        inner: B,
        // `None` if the body is not limited.
        #[pin]
        flow: Option<F>,
        // The bytes that have yet to pass. The inner body is asked for more if there are none.
        rest: Bytes,
    }
}

impl<B, F> PacedBody<B, F> {
    /// A body that is limited by `flow`. `None` if it is not limited.
    pub const fn new(inner: B, flow: Option<F>) -> Self {
        Self {
            inner,
            flow,
            rest: Bytes::new(),
        }
    }

    /// Returns a reference to the inner body.
    pub const fn get_ref(&self) -> &B {
        &self.inner
    }
}

impl<B, F> Body for PacedBody<B, F>
where
    B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>>,
    F: Flow,
{
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.project();
        let Some(flow) = this.flow.as_pin_mut() else {
            let frame = this.inner.poll_frame(context);
            return frame.map(|frame| frame.map(|frame| frame.map_err(Into::into)));
        };
        if this.rest.is_empty() {
            let frame = match ready!(this.inner.poll_frame(context)) {
                None => return Poll::Ready(None),
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                Some(Ok(frame)) => frame,
            };
            match frame.into_data() {
                Ok(data) if data.is_empty() => return Poll::Ready(Some(Ok(Frame::data(data)))),
                Ok(data) => *this.rest = data,
                Err(other) => return Poll::Ready(Some(Ok(other))),
            }
        }
        let most = u32::try_from(this.rest.len()).unwrap_or(u32::MAX);
        Poll::Ready(Some(match ready!(flow.poll_permits(context, most)) {
            Ok(granted) => {
                let piece = this.rest.split_to(granted as usize);
                Ok(Frame::data(piece))
            }
            Err(error) => Err(error.into()),
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.len() as u64;
        let inner = self.inner.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower().saturating_add(rest));
        if let Some(upper) = inner.upper().and_then(|upper| upper.checked_add(rest)) {
            hint.set_upper(upper);
        }
        hint
    }
}

shows!([B: fmt::Debug, F] PacedBody<B, F>, "PacedBody", self:
    "inner" => self.inner,
    "is_limited" => self.flow.is_some(),
    "waiting_bytes" => self.rest.len()
);
