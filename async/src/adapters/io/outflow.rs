//! The rule of a limited writer: bytes take their permits before they are written.
//!
//! State: the permits of bytes that are not written yet. A write without permits waits for those of
//! a piece; a partial write leaves the rest for the next one; the end of the transfer refunds it.

use core::pin::Pin;
use core::task::{Context, Poll, ready};
use std::io;

use pin_project_lite::pin_project;

use super::Piece;
use crate::adapters::admission::Admission;
use crate::adapters::leases::Unspent;
use crate::queues::acquire::Anchored;
use crate::waiting::rejected::Rejected;

pin_project! {
    /// Bytes that take their permits before they are written.
    pub(super) struct Outflow<P: Anchored> {
        #[pin]
        admission: Admission<P>,
        pub(super) piece: Piece,
        // The permits of bytes that have not been written yet.
        permits: Option<Unspent<P>>,
    }
}

impl<P: Anchored + Clone> Outflow<P> {
    pub(super) const fn new(queue: P) -> Self {
        Self {
            admission: Admission::new(queue),
            piece: Piece::DEFAULT,
            permits: None,
        }
    }

    /// Writes a prefix of `bytes` by `write` once its permits are granted. Returns the number of
    /// bytes written.
    pub(super) fn poll(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
        write: impl FnOnce(&mut Context<'_>, &[u8]) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let mut this = self.project();
        if this.permits.is_none() && !bytes.is_empty() {
            let mut wanted =
                u32::try_from(this.piece.of(&this.admission).min(bytes.len())).unwrap_or(u32::MAX);
            let lease = loop {
                match ready!(this.admission.as_mut().poll(context, wanted)) {
                    Ok(lease) => break lease,
                    // The limit was lowered in the meantime.
                    Err(Rejected::ExceedsCapacity { permits, capacity })
                        if permits > 1 && capacity > 0 =>
                    {
                        wanted = capacity.min(permits - 1);
                    }
                    Err(rejected) => return Poll::Ready(Err(io::Error::other(rejected))),
                }
            };
            *this.permits = Some(Unspent::new(lease));
        }
        let may = this
            .permits
            .as_ref()
            .map_or(0, |permits| permits.left() as usize)
            .min(bytes.len());
        let written = ready!(write(context, &bytes[..may]))?;
        if let Some(permits) = this.permits {
            permits.spend(u32::try_from(written).unwrap_or(u32::MAX));
        }
        // Used-up permits are dropped, so that they are not held while the next write waits for
        // permits.
        this.permits.take_if(|permits| permits.left() == 0);
        Poll::Ready(Ok(written))
    }

    /// Ends the transfer: cancels the wait, and refunds the permits that are left.
    pub(super) fn end(self: Pin<&mut Self>) {
        let this = self.project();
        this.admission.cancel();
        *this.permits = None;
    }
}
