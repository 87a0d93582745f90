use core::pin::Pin;
use core::task::{Context, Poll, ready};
use std::io::{self, IoSlice};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{LimitedRead, LimitedWrite};
use crate::acquire::Anchored;

impl<T: AsyncRead, P: Anchored + Clone> AsyncRead for LimitedRead<T, P> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut this = self.project();
        if buffer.remaining() == 0 {
            return this.inner.poll_read(context, buffer);
        }
        let may = ready!(this.allowance.as_mut().poll(context, buffer.remaining()))?;
        let mut part = ReadBuf::new(buffer.initialize_unfilled_to(may));
        ready!(this.inner.poll_read(context, &mut part))?;
        let read = part.filled().len();
        buffer.advance(read);
        match read {
            0 => this.allowance.end(),
            _ => this.allowance.spend(read),
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite, P: Anchored> AsyncWrite for LimitedRead<T, P> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.project().inner.poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.project().inner.poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.project().inner.poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.project().inner.poll_shutdown(context)
    }
}

impl<T: AsyncWrite, P: Anchored + Clone> AsyncWrite for LimitedWrite<T, P> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut this = self.project();
        if bytes.is_empty() {
            return this.inner.poll_write(context, bytes);
        }
        let may = ready!(this.allowance.as_mut().poll(context, bytes.len()))?;
        let written = ready!(this.inner.poll_write(context, &bytes[..may]))?;
        this.allowance.spend(written);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.project().inner.poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.project();
        this.allowance.end();
        this.inner.poll_shutdown(context)
    }
}

impl<T: AsyncRead, P: Anchored> AsyncRead for LimitedWrite<T, P> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.project().inner.poll_read(context, buffer)
    }
}
