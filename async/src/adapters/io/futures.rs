use core::pin::Pin;
use core::task::{Context, Poll, ready};
use std::io;

use futures_io::{AsyncRead, AsyncWrite, IoSlice, IoSliceMut};

use super::{LimitedRead, LimitedWrite};
use crate::acquire::Anchored;

impl<T: AsyncRead, P: Anchored + Clone> AsyncRead for LimitedRead<T, P> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut this = self.project();
        if buffer.is_empty() {
            return this.inner.poll_read(context, buffer);
        }
        let may = ready!(this.allowance.as_mut().poll(context, buffer.len()))?;
        let read = ready!(this.inner.poll_read(context, &mut buffer[..may]))?;
        match read {
            0 => this.allowance.end(),
            _ => this.allowance.spend(read),
        }
        Poll::Ready(Ok(read))
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

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.project().inner.poll_flush(context)
    }

    fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.project().inner.poll_close(context)
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

    fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.project();
        this.allowance.end();
        this.inner.poll_close(context)
    }
}

impl<T: AsyncRead, P: Anchored> AsyncRead for LimitedWrite<T, P> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        self.project().inner.poll_read(context, buffer)
    }

    fn poll_read_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
    ) -> Poll<io::Result<usize>> {
        self.project().inner.poll_read_vectored(context, buffers)
    }
}
