//! The rule of a limited reader: bytes that have been read take their permits before they are
//! handed out.
//!
//! State: the bytes that wait, how many of them are handed out, and how many have no permits yet;
//! and the end or the error that follows them.
//!
//! ```text
//!   nothing waits --read, permits free--> handed out
//!         ^       --read, none free--> bytes wait --permits granted--> handed out in parts
//!         +----------------------------------------------------------------+ when all are out
//! ```
//!
//! Invariant: a byte is handed out only after its permit was taken, and no byte is lost, also by a
//! panic.

use core::mem;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use std::io;
use std::vec::Vec;

use pin_project_lite::pin_project;

use super::Piece;
use crate::adapters::admission::Admission;
use crate::finally::Finally;
use crate::queues::acquire::Anchored;
use crate::waiting::rejected::Rejected;

pin_project! {
    /// Bytes that have been read, and take their permits before they are handed out.
    pub(super) struct Inflow<P: Anchored> {
        #[pin]
        admission: Admission<P>,
        pub(super) piece: Piece,
        // The bytes that have to wait; the number of these that have been handed out; the number of
        // these that have no permits yet.
        bytes: Vec<u8>,
        given: usize,
        owed: usize,
        // The result that follows the bytes: the end of the data, or an error.
        then: Option<io::Result<()>>,
    }
}

/// A buffer with room for bytes.
pub(super) trait Room {
    fn len(&self) -> usize;

    /// Returns the first `n` bytes, which have been read into the buffer.
    fn came(&self, n: usize) -> &[u8];

    /// Hands out the first `n` bytes of the buffer.
    fn advance(&mut self, n: usize);

    /// Copies `bytes` into the buffer and hands them out.
    fn put(&mut self, bytes: &[u8]);
}

impl<P: Anchored> Inflow<P> {
    pub(super) fn waiting(&self) -> &[u8] {
        &self.bytes[self.given..]
    }
}

impl<P: Anchored + Clone> Inflow<P> {
    pub(super) const fn new(queue: P) -> Self {
        let admission = Admission::new(queue);
        Self {
            admission,
            piece: Piece::DEFAULT,
            bytes: Vec::new(),
            given: 0,
            owed: 0,
            then: None,
        }
    }

    /// Reads into `room` once the bytes may be handed out. `read` reads up to the given number of
    /// bytes into the beginning of `room`, and returns the number that it read.
    pub(super) fn poll<B: Room>(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        room: &mut B,
        mut read: impl FnMut(&mut Context<'_>, &mut B, usize) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<()>> {
        if room.len() == 0 {
            return Poll::Ready(Ok(()));
        }
        if self.bytes.is_empty() {
            if let Some(then) = self.as_mut().project().then.take() {
                return Poll::Ready(then);
            }
            let piece = self.piece.of(&self.admission);
            let came = ready!(read(context, room, piece.min(room.len())))?;
            if came == 0 || self.as_mut().take_now(room, came) {
                room.advance(came);
                return Poll::Ready(Ok(()));
            }
            self.as_mut().keep(context, room, came, piece, read);
        }
        ready!(self.as_mut().poll_permits(context))?;
        let this = self.project();
        let bytes = &this.bytes[*this.given..];
        let bytes = &bytes[..bytes.len().min(room.len())];
        room.put(bytes);
        *this.given += bytes.len();
        if *this.given == this.bytes.len() {
            this.bytes.clear();
            *this.given = 0;
        }
        Poll::Ready(Ok(()))
    }

    /// Takes the permits for the first `came` bytes of `room` if they are available. Returns
    /// whether it did. If a clock, a limiter or a waker panics, the bytes are kept.
    fn take_now<B: Room>(self: Pin<&mut Self>, room: &B, came: usize) -> bool {
        let this = self.project();
        let keep = Finally(|| {
            this.bytes.extend_from_slice(room.came(came));
            *this.owed = came;
        });
        let is_taken = this
            .admission
            .take_now(u32::try_from(came).unwrap_or(u32::MAX))
            .is_some();
        mem::forget(keep);
        is_taken
    }

    /// Keeps the first `came` bytes of `room`, which have to wait, and reads more up to a piece. So
    /// all readers that wait request the same number of permits, whatever the size of their
    /// buffers.
    fn keep<B: Room>(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        room: &mut B,
        mut came: usize,
        piece: usize,
        mut read: impl FnMut(&mut Context<'_>, &mut B, usize) -> Poll<io::Result<usize>>,
    ) {
        let this = self.project();
        this.bytes
            .reserve(piece.min(Piece::DEFAULT.0.get() as usize));
        loop {
            this.bytes.extend_from_slice(room.came(came));
            *this.owed = this.bytes.len();
            let most = piece.saturating_sub(this.bytes.len()).min(room.len());
            if most == 0 {
                return;
            }
            came = match read(context, room, most) {
                Poll::Ready(Ok(more)) if more > 0 => more,
                Poll::Ready(then) => {
                    *this.then = Some(then.map(|_| ()));
                    return;
                }
                Poll::Pending => return,
            };
        }
    }

    /// Waits for the permits of the bytes that are kept. Apart, so that a read whose permits are
    /// free keeps no registers for it.
    #[inline(never)]
    fn poll_permits(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut this = self.project();
        let mut most = u32::MAX;
        while *this.owed > 0 {
            let wanted = u32::try_from(*this.owed).unwrap_or(u32::MAX).min(most);
            match ready!(this.admission.as_mut().poll(context, wanted)) {
                Ok(lease) => *this.owed -= lease.permits() as usize,
                // The limit was lowered in the meantime, so the permits are requested in parts.
                Err(Rejected::ExceedsCapacity { permits, capacity })
                    if permits > 1 && capacity > 0 =>
                {
                    most = capacity.min(permits - 1);
                }
                Err(rejected) => return Poll::Ready(Err(io::Error::other(rejected))),
            }
        }
        Poll::Ready(Ok(()))
    }
}
