//! The limited reader and writer as `AsyncRead` and `AsyncWrite` of tokio.

use core::pin::Pin;
use core::task::{Context, Poll};
use std::io::{self, IoSlice};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::inflow::Room;
use super::{LimitedRead, LimitedWrite};
use crate::queues::acquire::Anchored;

impl Room for ReadBuf<'_> {
    fn len(&self) -> usize {
        self.remaining()
    }

    fn came(&self, n: usize) -> &[u8] {
        let filled = self.filled().len();
        &self.initialized()[filled..filled + n]
    }

    fn advance(&mut self, n: usize) {
        self.advance(n);
    }

    fn put(&mut self, bytes: &[u8]) {
        self.put_slice(bytes);
    }
}

impl<T: AsyncRead, P: Anchored + Clone> AsyncRead for LimitedRead<T, P> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut this = self.project();
        this.flow.poll(context, buffer, |context, buffer, most| {
            if most < buffer.remaining() {
                let mut part = ReadBuf::new(buffer.initialize_unfilled_to(most));
                return this
                    .inner
                    .as_mut()
                    .poll_read(context, &mut part)
                    .map_ok(|()| part.filled().len());
            }
            // Reads directly into `buffer`, which avoids initialising it. The bytes are not handed
            // out yet, so `filled` is reset.
            let filled = buffer.filled().len();
            let outcome = this.inner.as_mut().poll_read(context, buffer);
            let came = buffer.filled().len().saturating_sub(filled);
            buffer.set_filled(filled);
            outcome.map_ok(|()| came)
        })
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

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.project();
        this.flow.end();
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
