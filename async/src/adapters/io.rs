//! Readers and writers that take one permit a byte.
//!
//! A reader reads first and then takes permits for what has come; a writer takes permits first and
//! then writes. `inflow.rs` and `outflow.rs` have these rules; `futures.rs` and `tokio.rs` fit them
//! to the traits of the two families.

#[cfg(feature = "futures-io")]
mod futures;
mod inflow;
mod outflow;
#[cfg(feature = "tokio")]
mod tokio;

use core::fmt;
use core::num::NonZero;
use core::pin::Pin;

use pin_project_lite::pin_project;
use portcullis_core::Limiter;

use self::inflow::Inflow;
use self::outflow::Outflow;
use super::admission::Admission;
use crate::queues::acquire::Anchored;

/// The largest number of bytes for which a transfer takes permits at once.
struct Piece(NonZero<u32>);

impl Piece {
    const DEFAULT: Self = Self(NonZero::new(16 * 1024).unwrap());

    /// Returns the piece in bytes: at most half of the limiter's current capacity, so that permits
    /// which are replenished while a piece is in use are not lost.
    fn of<P: Anchored>(&self, admission: &Admission<P>) -> usize {
        let most = u32::try_from(admission.queue.capacity() / 2).unwrap_or(u32::MAX);
        self.0.get().min(most).max(1) as usize
    }
}

/// Defines one of the two adapters.
macro_rules! limited {
    ($(#[$doc:meta])* $name:ident, $inner:literal, $flow:ident) => {
        pin_project! {
            $(#[$doc])*
            pub struct $name<T, P: Anchored> {
                #[pin]
                inner: T,
                #[pin]
                flow: $flow<P>,
            }
        }

        impl<T, P: Anchored + Clone> $name<T, P> {
            #[doc = concat!("Limits `", $inner, "` by the permits of `queue`.")]
            ///
            /// ```
            /// # use portcullis_async::Queue;
            /// # use portcullis_core::{ManualClock, Rate, TokenBucket};
            /// # let queue =
            /// #     Queue::new(TokenBucket::new(Rate::per_second(9), 9), ManualClock::new(), 9);
            #[doc = concat!("let limited = portcullis_async::io::", stringify!($name), "::new(std::io::Cursor::new(vec![0_u8]), &queue);")]
            /// assert_eq!(limited.get_ref().get_ref().len(), 1);
            /// ```
            pub const fn new(inner: T, queue: P) -> Self {
                Self { inner, flow: $flow::new(queue) }
            }

            /// Sets the largest number of bytes for which a transfer takes permits at once. It
            /// never takes more than half of the limiter's capacity at once. Default: 16 KiB.
            ///
            /// Transfers that all wait get shares in proportion to their pieces. Larger pieces cost
            /// less, if the buffers are as large. Smaller pieces make the flow more even.
            ///
            /// ```
            /// # use core::num::NonZero;
            /// # use portcullis_async::Queue;
            /// # use portcullis_core::{ManualClock, Rate, TokenBucket};
            /// # let queue =
            /// #     Queue::new(TokenBucket::new(Rate::per_second(9), 9), ManualClock::new(), 9);
            #[doc = concat!("let limited = portcullis_async::io::", stringify!($name), "::new(std::io::Cursor::new(vec![0_u8]), &queue);")]
            /// let evenly = limited.with_piece(NonZero::new(512).unwrap());
            /// # _ = evenly;
            /// ```
            #[must_use]
            pub const fn with_piece(mut self, bytes: NonZero<u32>) -> Self {
                self.flow.piece = Piece(bytes);
                self
            }

            /// Returns a reference to the limited object.
            ///
            /// ```
            /// # use portcullis_async::Queue;
            /// # use portcullis_core::{ManualClock, Rate, TokenBucket};
            /// # let queue =
            /// #     Queue::new(TokenBucket::new(Rate::per_second(9), 9), ManualClock::new(), 9);
            #[doc = concat!("let limited = portcullis_async::io::", stringify!($name), "::new(std::io::Cursor::new(vec![0_u8]), &queue);")]
            /// assert_eq!(limited.get_ref().get_ref().len(), 1);
            /// ```
            pub const fn get_ref(&self) -> &T {
                &self.inner
            }

            /// Returns the limited object, to be used without the limit.
            ///
            /// ```
            /// # use std::pin::pin;
            /// # use portcullis_async::Queue;
            /// # use portcullis_core::{ManualClock, Rate, TokenBucket};
            /// # let queue =
            /// #     Queue::new(TokenBucket::new(Rate::per_second(9), 9), ManualClock::new(), 9);
            #[doc = concat!("let limited = pin!(portcullis_async::io::", stringify!($name), "::new(std::io::Cursor::new(vec![0_u8]), &queue));")]
            /// limited.get_pin_mut().set_position(1);
            /// ```
            pub fn get_pin_mut(self: Pin<&mut Self>) -> Pin<&mut T> {
                self.project().inner
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
    /// Limits a reader in bytes: an `AsyncRead` of futures-io or of tokio.
    ///
    /// One permit is one byte. `P` points to the queue: `&Queue`, `&'static Queue`, `Arc<Queue>`,
    /// or a [`QueueKey`](crate::QueueKey). Writes pass through unlimited, so a [`LimitedWrite`]
    /// around this adapter limits both directions, with one queue or two.
    ///
    /// The adapter reads first, takes permits for the bytes that it read, and then hands the bytes
    /// out. So a reader with nothing to read takes no permits, and no permits are spent on bytes
    /// that never arrive. Bytes that have to wait for permits are buffered here, up to a
    /// [piece](Self::with_piece); other bytes are not copied. All readers that wait request a piece
    /// each, whatever the size of their buffers, and so get equal shares.
    ///
    /// **Bound.** The limiter's, by the queue's clock. In real time, up to one piece more: a reader
    /// that is polled late hands out a piece that was granted earlier. For a byte rate, use a token
    /// bucket. Its burst is best one or two pieces plus the permits that are replenished between
    /// two wake-ups of the timer, about 10 ms of the rate. (A
    /// [`Concurrency`](portcullis_core::Concurrency) limit is of no use here: its permits are
    /// returned as soon as the bytes are handed out.)
    ///
    /// **Errors.** The errors of the inner reader. If the queue rejects the request (it is full or
    /// closed, or evicts the request), an [error](std::io::Error::other) that contains a
    /// [`Rejected`](crate::Rejected). The bytes stay [buffered](Self::waiting), and the next read
    /// requests permits again.
    ///
    /// The adapter contains the state of its wait, so it must be pinned: with `pin!`, or with
    /// `Box::pin` if it has to be `Unpin`. To get the inner reader back, pass a reference: `&mut
    /// socket` is a reader and a writer too.
    ///
    /// **Cost.** Each read asks the limiter, and may wait in the queue. The first read that has to
    /// wait allocates a buffer of one piece, which is kept. A task that waits for permits is woken
    /// when they are granted, and at most once more by the inner reader.
    ///
    /// ```
    /// use std::pin::pin;
    /// use std::sync::Arc;
    /// use futures_util::AsyncReadExt;
    /// use portcullis_async::io::LimitedRead;
    /// use portcullis_async::{Queue, ThreadTimer};
    /// use portcullis_core::{Rate, TokenBucket};
    ///
    /// // 20 MB per second, with a burst of 400 kB.
    /// let rate = TokenBucket::new(Rate::per_second(20_000_000), 400_000);
    /// let down = Queue::new(rate, ThreadTimer::new(), u64::MAX).shared();
    /// # futures_executor::block_on(async {
    /// let file: &[u8] = &[7; 500_000];
    /// let mut limited = pin!(LimitedRead::new(file, Arc::clone(&down)));
    /// let mut all = Vec::new();
    /// limited.read_to_end(&mut all).await?;
    /// assert_eq!(all.len(), 500_000);
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    LimitedRead, "reader", Inflow
}

impl<T, P: Anchored> LimitedRead<T, P> {
    /// Returns the bytes that have been read and not handed out yet. Dropping the adapter drops
    /// them.
    ///
    /// ```
    /// # use portcullis_async::io::LimitedRead;
    /// # use portcullis_async::Queue;
    /// # use portcullis_core::{ManualClock, Rate, TokenBucket};
    /// # let queue =
    /// #     Queue::new(TokenBucket::new(Rate::per_second(9), 9), ManualClock::new(), 9);
    /// let limited = LimitedRead::new(std::io::Cursor::new([7]), &queue);
    /// assert!(limited.waiting().is_empty());
    /// ```
    pub fn waiting(&self) -> &[u8] {
        self.flow.waiting()
    }
}

limited! {
    /// Limits a writer in bytes: an `AsyncWrite` of futures-io or of tokio.
    ///
    /// One permit is one byte. `P` points to the queue: `&Queue`, `&'static Queue`, `Arc<Queue>`,
    /// or a [`QueueKey`](crate::QueueKey). Reads pass through unlimited, so a [`LimitedRead`]
    /// around this adapter limits both directions, with one queue or two.
    ///
    /// The adapter first takes permits for the bytes to write, up to a [piece](Self::with_piece),
    /// and then writes them. If the inner writer accepts only a part, the permits of the rest are
    /// kept for later writes. Closing or dropping the adapter refunds them, as far as the limiter
    /// accepts a refund. Writers that wait get shares in proportion to the bytes they write at
    /// once: equal shares, if each writes a piece or more.
    ///
    /// **Bound.** The limiter's, by the queue's clock. In real time, up to one piece more: a writer
    /// that stalls may later write a piece that was granted earlier. For a byte rate, use a token
    /// bucket. Its burst is best one or two pieces plus the permits that are replenished between
    /// two wake-ups of the timer, about 10 ms of the rate. (A
    /// [`Concurrency`](portcullis_core::Concurrency) limit is of no use here: its permits are
    /// returned as soon as a piece is written.)
    ///
    /// **Errors.** The errors of the inner writer. If the queue rejects the request (it is full or
    /// closed, or evicts the request), an [error](std::io::Error::other) that contains a
    /// [`Rejected`](crate::Rejected); nothing has been written then. A vectored write writes from
    /// one slice at a time.
    ///
    /// The adapter contains the state of its wait, so it must be pinned: with `pin!`, or with
    /// `Box::pin` if it has to be `Unpin`. To get the inner writer back, pass a reference: `&mut
    /// socket` is a reader and a writer too.
    ///
    /// **Cost.** The waits of the queue, without allocating. A task that waits for permits is woken
    /// once, when they are granted.
    ///
    /// ```
    /// use std::pin::pin;
    /// use std::sync::Arc;
    /// use futures_util::AsyncWriteExt;
    /// use portcullis_async::io::LimitedWrite;
    /// use portcullis_async::{Queue, ThreadTimer};
    /// use portcullis_core::{Rate, TokenBucket};
    ///
    /// let rate = TokenBucket::new(Rate::per_second(20_000_000), 400_000);
    /// let up = Queue::new(rate, ThreadTimer::new(), u64::MAX).shared();
    /// # futures_executor::block_on(async {
    /// let socket: Vec<u8> = Vec::new();
    /// let mut limited = pin!(LimitedWrite::new(socket, Arc::clone(&up)));
    /// limited.write_all(&[7; 500_000]).await?;
    /// assert_eq!(limited.get_ref().len(), 500_000);
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    LimitedWrite, "writer", Outflow
}
