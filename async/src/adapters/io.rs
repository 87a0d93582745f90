#[cfg(feature = "futures-io")]
mod futures;
#[cfg(feature = "tokio")]
mod tokio;

use core::fmt;
use core::num::NonZero;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use std::io;

use pin_project_lite::pin_project;
use portcullis_core::{Lease, Limiter};

use super::admission::Admission;
use crate::acquire::{Anchored, Queued};
use crate::hall::Waits;
use crate::rejected::Rejected;

/// The bytes for which a transfer takes permits at once, unless told otherwise.
const PIECE: NonZero<u32> = NonZero::new(16 * 1024).unwrap();

/// One of the two adapters: they differ in the direction alone.
macro_rules! limited {
    ($(#[$doc:meta])* $name:ident, $inner:literal, $example:literal) => {
        pin_project! {
            $(#[$doc])*
            ///
            /// One permit is one byte. `P` points to the queue: `&Queue`, `&'static Queue`, `Arc<Queue>`, or [a key's place](crate::QueueKey). The other direction passes as it
            /// is, so that both can be limited, by one queue or by two.
            ///
            /// **Pieces.** It takes permits for a [piece](Self::with_piece) at a time, however much is asked for, and keeps what it has not used for the next bytes; at the end of
            /// the data, closed, or dropped, it gives the rest back, as far as the limiter can take it. So each of several transfers on one queue gets the same share, whatever
            /// their buffers. By a watch, a transfer that stands still holds at most a piece, which it may move at any time later: on top of the limiter's bound.
            ///
            /// **Limits.** For a rate in bytes per second, a token bucket. Its burst is best a piece or two and what comes in until a timer wakes: 10 ms of the rate, say. A piece is at most
            /// half of the burst. Nothing is gained by [`Concurrency`](portcullis_core::Concurrency), whose permits would be held until a piece is used up.
            ///
            /// **Errors.** Those of what is within; and if the queue refuses (it is full, closed, or evicts), an [error](io::Error::other) that is a [`Rejected`].
            ///
            /// It is the wait itself, and so must be pinned: `pin!`, or `Box::pin`.
            ///
            /// **Cost.** The waits of the queue, without an allocation; a subtraction for what is covered by the piece. A task that waits for permits is woken once, when it has them.
            ///
            #[doc = $example]
            pub struct $name<T, P: Anchored> {
                #[pin]
                inner: T,
                #[pin]
                allowance: Allowance<P>,
            }
        }

        impl<T, P: Anchored + Clone> $name<T, P> {
            #[doc = concat!("Limits `", $inner, "` by the permits of `queue`.")]
            ///
            /// ```
            /// # use portcullis_async::Queue;
            /// # use portcullis_core::{ManualClock, Rate, TokenBucket};
            /// # let queue: Queue<_, _> = Queue::new(TokenBucket::new(Rate::per_second(9), 9), ManualClock::new(), 9);
            #[doc = concat!("let limited = portcullis_async::", stringify!($name), "::new(std::io::Cursor::new(vec![0_u8]), &queue);")]
            /// assert_eq!(limited.get_ref().get_ref().len(), 1);
            /// ```
            pub const fn new(inner: T, queue: P) -> Self {
                Self { inner, allowance: Allowance::new(queue) }
            }

            /// For how many bytes it takes permits at once; at most half of the limiter's capacity are. Default: 16 KiB. Transfers on one queue share it as their pieces are to each
            /// other; larger ones cost less, smaller ones flow more evenly, and hold less while they stand still.
            ///
            /// ```
            /// # use core::num::NonZero;
            /// # use portcullis_async::Queue;
            /// # use portcullis_core::{ManualClock, Rate, TokenBucket};
            /// # let queue: Queue<_, _> = Queue::new(TokenBucket::new(Rate::per_second(9), 9), ManualClock::new(), 9);
            #[doc = concat!("let limited = portcullis_async::", stringify!($name), "::new(std::io::Cursor::new(vec![0_u8]), &queue);")]
            /// let evenly = limited.with_piece(NonZero::new(512).unwrap());
            /// # _ = evenly;
            /// ```
            #[must_use]
            pub const fn with_piece(mut self, bytes: NonZero<u32>) -> Self {
                self.allowance.piece = bytes;
                self
            }

            /// What is limited.
            ///
            /// ```
            /// # use portcullis_async::Queue;
            /// # use portcullis_core::{ManualClock, Rate, TokenBucket};
            /// # let queue: Queue<_, _> = Queue::new(TokenBucket::new(Rate::per_second(9), 9), ManualClock::new(), 9);
            #[doc = concat!("let limited = portcullis_async::", stringify!($name), "::new(std::io::Cursor::new(vec![0_u8]), &queue);")]
            /// assert_eq!(limited.get_ref().get_ref().len(), 1);
            /// ```
            pub const fn get_ref(&self) -> &T {
                &self.inner
            }

            /// What is limited, to be changed; what is moved past this adapter is not.
            ///
            /// ```
            /// # use portcullis_async::Queue;
            /// # use portcullis_core::{ManualClock, Rate, TokenBucket};
            /// # let queue: Queue<_, _> = Queue::new(TokenBucket::new(Rate::per_second(9), 9), ManualClock::new(), 9);
            #[doc = concat!("let mut limited = portcullis_async::", stringify!($name), "::new(std::io::Cursor::new(vec![0_u8]), &queue);")]
            /// limited.get_mut().set_position(1);
            /// ```
            pub const fn get_mut(&mut self) -> &mut T {
                &mut self.inner
            }

            /// What was limited; the rest of a piece is given back.
            ///
            /// ```
            /// # use portcullis_async::Queue;
            /// # use portcullis_core::{ManualClock, Rate, TokenBucket};
            /// # let queue: Queue<_, _> = Queue::new(TokenBucket::new(Rate::per_second(9), 9), ManualClock::new(), 9);
            #[doc = concat!("let limited = portcullis_async::", stringify!($name), "::new(std::io::Cursor::new(vec![0_u8]), &queue);")]
            /// assert_eq!(limited.into_inner().into_inner(), [0]);
            /// ```
            pub fn into_inner(self) -> T {
                self.inner
            }
        }

        impl<T: fmt::Debug, P: Anchored> fmt::Debug for $name<T, P> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).field("inner", &self.inner).finish_non_exhaustive()
            }
        }
    };
}

limited! {
    /// A reader limited in bytes: an `AsyncRead` of futures-io or of tokio.
    LimitedRead, "reader", r"```
use std::pin::pin;
use std::sync::Arc;
use futures_util::AsyncReadExt;
use portcullis_async::{LimitedRead, Queue, ThreadTimer};
use portcullis_core::{Rate, TokenBucket};

// 20 MB each second, and 400 kB at once.
let rate = TokenBucket::new(Rate::per_second(20_000_000), 400_000);
let down: Arc<Queue<_, _>> = Arc::new(Queue::new(rate, ThreadTimer::new(), u64::MAX));
down.attend_shared();
# futures_executor::block_on(async {
let file: &[u8] = &[7; 500_000];
let mut limited = pin!(LimitedRead::new(file, Arc::clone(&down)));
let mut all = Vec::new();
limited.read_to_end(&mut all).await?;
assert_eq!(all.len(), 500_000);
# std::io::Result::Ok(()) }).unwrap();
```"
}

limited! {
    /// A writer limited in bytes: an `AsyncWrite` of futures-io or of tokio.
    LimitedWrite, "writer", r"```
use std::pin::pin;
use std::sync::Arc;
use futures_util::AsyncWriteExt;
use portcullis_async::{LimitedWrite, Queue, ThreadTimer};
use portcullis_core::{Rate, TokenBucket};

let rate = TokenBucket::new(Rate::per_second(20_000_000), 400_000);
let up: Arc<Queue<_, _>> = Arc::new(Queue::new(rate, ThreadTimer::new(), u64::MAX));
up.attend_shared();
# futures_executor::block_on(async {
let socket: Vec<u8> = Vec::new();
let mut limited = pin!(LimitedWrite::new(socket, Arc::clone(&up)));
limited.write_all(&[7; 500_000]).await?;
assert_eq!(limited.get_ref().len(), 500_000);
# std::io::Result::Ok(()) }).unwrap();
```"
}

pin_project! {
    /// The bytes that may move, paid for by the piece.
    struct Allowance<P: Anchored> {
        #[pin]
        admission: Admission<P>,
        piece: NonZero<u32>,
        // What is left of it.
        lease: Option<Lease<P>>,
    }

    impl<P: Anchored> PinnedDrop for Allowance<P> {
        fn drop(this: Pin<&mut Self>) {
            give_back(this.project().lease);
        }
    }
}

impl<P: Anchored + Clone> Allowance<P> {
    const fn new(queue: P) -> Self {
        Self { admission: Admission::new(queue), piece: PIECE, lease: None }
    }

    /// Waits until at least one byte may move: how many may, of `bytes`, which is not 0.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: usize) -> Poll<io::Result<usize>> {
        let mut this = self.project();
        // As the limiter is set now.
        let mut most = u32::try_from(this.admission.queue.capacity() / 2).unwrap_or(u32::MAX);
        loop {
            if let Some(left) = this.lease.as_ref().map(Lease::permits).filter(|&left| left > 0) {
                return Poll::Ready(Ok(bytes.min(left as usize)));
            }
            let piece = this.piece.get().min(most).max(1);
            match ready!(this.admission.as_mut().poll(context, piece)) {
                Ok(lease) => *this.lease = Some(lease),
                // It has been set lower meanwhile.
                Err(Rejected::ExceedsCapacity { permits, capacity }) if permits > 1 && capacity > 0 => {
                    most = capacity.min(permits - 1);
                }
                Err(rejected) => return Poll::Ready(Err(io::Error::other(rejected))),
            }
        }
    }

    /// So many bytes have moved.
    fn spend(self: Pin<&mut Self>, bytes: usize) {
        let lease = self.project().lease;
        if let Some(held) = lease {
            let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(held.permits());
            held.release(bytes).expect("holds as many");
        }
    }

    /// No more bytes for now.
    fn end(self: Pin<&mut Self>) {
        give_back(self.project().lease);
    }
}

/// Gives back what is left of a piece.
fn give_back<P: Anchored>(lease: &mut Option<Lease<P>>) {
    if let Some(mut lease) = lease.take() {
        let now = lease.limiter().hall().now();
        let permits = lease.permits();
        lease.refund_at(now, permits).expect("holds as many");
    }
}
