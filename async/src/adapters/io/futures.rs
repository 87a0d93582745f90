//! The limited reader and writer as `AsyncRead` and `AsyncWrite` of futures-io.

use core::pin::Pin;
use core::task::{Context, Poll, ready};
use std::io;

use futures_io::{AsyncRead, AsyncWrite, IoSlice, IoSliceMut};

use super::inflow::Room;
use super::{LimitedRead, LimitedWrite};
use crate::queues::acquire::Anchored;

/// A buffer, and the number of bytes of it that are handed out.
struct Slice<'b> {
    buffer: &'b mut [u8],
    filled: usize,
}

impl Room for Slice<'_> {
    fn len(&self) -> usize {
        self.buffer.len()
    }

    fn came(&self, n: usize) -> &[u8] {
        &self.buffer[..n]
    }

    fn advance(&mut self, n: usize) {
        self.filled = n;
    }

    fn put(&mut self, bytes: &[u8]) {
        self.buffer[..bytes.len()].copy_from_slice(bytes);
        self.filled = bytes.len();
    }
}

impl<T: AsyncRead, P: Anchored + Clone> AsyncRead for LimitedRead<T, P> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut this = self.project();
        let mut room = Slice { buffer, filled: 0 };
        ready!(this.flow.poll(context, &mut room, |context, room, most| {
            let part = &mut room.buffer[..most];
            this.inner
                .as_mut()
                .poll_read(context, part)
                .map_ok(|came| came.min(most))
        }))?;
        Poll::Ready(Ok(room.filled))
    }
}

impl<T: AsyncWrite, P: Anchored> AsyncWrite for LimitedRead<T, P> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
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
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.project();
        this.flow.poll(context, bytes, |context, part| {
            this.inner.poll_write(context, part)
        })
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.project().inner.poll_flush(context)
    }

    fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.project();
        this.flow.end();
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
