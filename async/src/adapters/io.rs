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

/// The bytes for which a transfer takes permits at once, at most.
struct Piece(NonZero<u32>);

impl Piece {
    const DEFAULT: Self = Self(NonZero::new(16 * 1024).unwrap());

    /// At most half of what the limiter can ever hold, as it is set now: so what comes in while one
    /// is in use is not lost.
    fn of<P: Anchored>(&self, admission: &Admission<P>) -> usize {
        let most = u32::try_from(admission.queue.capacity() / 2).unwrap_or(u32::MAX);
        self.0.get().min(most).max(1) as usize
    }
}

/// One of the two adapters.
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
            /// # let queue: Queue<_, _> =
            /// #     Queue::new(TokenBucket::new(Rate::per_second(9), 9), ManualClock::new(), 9);
            #[doc = concat!("let limited = portcullis_async::", stringify!($name), "::new(std::io::Cursor::new(vec![0_u8]), &queue);")]
            /// assert_eq!(limited.get_ref().get_ref().len(), 1);
            /// ```
            pub const fn new(inner: T, queue: P) -> Self {
                Self { inner, flow: $flow::new(queue) }
            }

            /// For how many bytes it takes permits at once, at most; and at most for half of the
            /// limiter's capacity. Default: 16 KiB. Transfers that all wait get shares as their
            /// pieces are to each other; larger ones cost less, as far as the buffers are as large;
            /// smaller ones flow more evenly.
            ///
            /// ```
            /// # use core::num::NonZero;
            /// # use portcullis_async::Queue;
            /// # use portcullis_core::{ManualClock, Rate, TokenBucket};
            /// # let queue: Queue<_, _> =
            /// #     Queue::new(TokenBucket::new(Rate::per_second(9), 9), ManualClock::new(), 9);
            #[doc = concat!("let limited = portcullis_async::", stringify!($name), "::new(std::io::Cursor::new(vec![0_u8]), &queue);")]
            /// let evenly = limited.with_piece(NonZero::new(512).unwrap());
            /// # _ = evenly;
            /// ```
            #[must_use]
            pub const fn with_piece(mut self, bytes: NonZero<u32>) -> Self {
                self.flow.piece = Piece(bytes);
                self
            }

            /// What is limited.
            ///
            /// ```
            /// # use portcullis_async::Queue;
            /// # use portcullis_core::{ManualClock, Rate, TokenBucket};
            /// # let queue: Queue<_, _> =
            /// #     Queue::new(TokenBucket::new(Rate::per_second(9), 9), ManualClock::new(), 9);
            #[doc = concat!("let limited = portcullis_async::", stringify!($name), "::new(std::io::Cursor::new(vec![0_u8]), &queue);")]
            /// assert_eq!(limited.get_ref().get_ref().len(), 1);
            /// ```
            pub const fn get_ref(&self) -> &T {
                &self.inner
            }

            /// What is limited, to be used past this adapter.
            ///
            /// ```
            /// # use std::pin::pin;
            /// # use portcullis_async::Queue;
            /// # use portcullis_core::{ManualClock, Rate, TokenBucket};
            /// # let queue: Queue<_, _> =
            /// #     Queue::new(TokenBucket::new(Rate::per_second(9), 9), ManualClock::new(), 9);
            #[doc = concat!("let limited = pin!(portcullis_async::", stringify!($name), "::new(std::io::Cursor::new(vec![0_u8]), &queue));")]
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
    /// A reader limited in bytes: an `AsyncRead` of futures-io or of tokio.
    ///
    /// One permit is one byte. `P` points to the queue: `&Queue`, `&'static Queue`, `Arc<Queue>`,
    /// or [a key's place](crate::QueueKey). Writing passes as it is, so that [`LimitedWrite`]
    /// around this one limits both, by one queue or by two.
    ///
    /// It takes permits for what has been read, and hands it out when it has them: so a reader that
    /// has nothing to read takes none, and none is paid for what does not come. What has to wait is
    /// kept here, up to a [piece](Self::with_piece); what need not is not copied. Those that wait
    /// ask for a piece each, whatever their buffers, and so get the same share.
    ///
    /// **Bound.** The limiter's, by the queue's clock; by a watch, a reader that is not polled when
    /// it has its permits hands out up to a piece later, on top. For a rate in bytes each second, a
    /// token bucket: its burst is best a piece or two, and what comes in until a timer wakes, 10 ms
    /// of the rate, say. (Nothing is gained by [`Concurrency`](portcullis_core::Concurrency), whose
    /// permits come back as bytes are handed out.)
    ///
    /// **Errors.** Those of what is within; and if the queue refuses (it is full, closed, or
    /// evicts), an [error](std::io::Error::other) that is a [`Rejected`](crate::Rejected). What
    /// waits [stays](Self::waiting), and the next read asks again.
    ///
    /// It contains its wait, and so must be pinned: by `pin!`, or by `Box::pin` if it has to be
    /// `Unpin`. To have what is within back, lend it: `&mut socket` is a reader and a writer too.
    ///
    /// **Cost.** Each read asks the limiter; the waits of the queue; an allocation of a piece for
    /// the first that has to wait, which is kept. A task that waits for permits is woken when it
    /// has them, and at most once more, by what is within.
    ///
    /// ```
    /// use std::pin::pin;
    /// use std::sync::Arc;
    /// use futures_util::AsyncReadExt;
    /// use portcullis_async::{LimitedRead, Queue, ThreadTimer};
    /// use portcullis_core::{Rate, TokenBucket};
    ///
    /// // 20 MB each second, and 400 kB at once.
    /// let rate = TokenBucket::new(Rate::per_second(20_000_000), 400_000);
    /// let down: Arc<Queue<_, _>> = Arc::new(Queue::new(rate, ThreadTimer::new(), u64::MAX));
    /// down.attend_shared();
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
    /// What has been read, and not been handed out yet: it goes with this, when it is dropped.
    ///
    /// ```
    /// # use portcullis_async::{LimitedRead, Queue};
    /// # use portcullis_core::{ManualClock, Rate, TokenBucket};
    /// # let queue: Queue<_, _> =
    /// #     Queue::new(TokenBucket::new(Rate::per_second(9), 9), ManualClock::new(), 9);
    /// let limited = LimitedRead::new(std::io::Cursor::new([7]), &queue);
    /// assert!(limited.waiting().is_empty());
    /// ```
    pub fn waiting(&self) -> &[u8] {
        self.flow.waiting()
    }
}

limited! {
    /// A writer limited in bytes: an `AsyncWrite` of futures-io or of tokio.
    ///
    /// One permit is one byte. `P` points to the queue: `&Queue`, `&'static Queue`, `Arc<Queue>`,
    /// or [a key's place](crate::QueueKey). Reading passes as it is, so that [`LimitedRead`] around
    /// this one limits both, by one queue or by two.
    ///
    /// It takes permits for what is to be written, up to a [piece](Self::with_piece), and writes it
    /// when it has them. What the writer within does not take of it at once may be written at any
    /// later time; closed or dropped, this gives the permits back, as far as the limiter can take
    /// them. Those that wait get shares as what they write at once is to each other: the same
    /// share, where that is a piece or more.
    ///
    /// **Bound.** The limiter's, by the queue's clock; by a watch, a writer that stands still may
    /// write up to a piece on top. For a rate in bytes each second, a token bucket: its burst is
    /// best a piece or two, and what comes in until a timer wakes, 10 ms of the rate, say. (Nothing
    /// is gained by [`Concurrency`](portcullis_core::Concurrency), whose permits come back when a
    /// piece is written.)
    ///
    /// **Errors.** Those of what is within; and if the queue refuses (it is full, closed, or
    /// evicts), an [error](std::io::Error::other) that is a [`Rejected`](crate::Rejected): nothing
    /// has been written then. Vectored writes go slice by slice.
    ///
    /// It contains its wait, and so must be pinned: by `pin!`, or by `Box::pin` if it has to be
    /// `Unpin`. To have what is within back, lend it: `&mut socket` is a reader and a writer too.
    ///
    /// **Cost.** The waits of the queue, without an allocation. A task that waits for permits is
    /// woken once, when it has them.
    ///
    /// ```
    /// use std::pin::pin;
    /// use std::sync::Arc;
    /// use futures_util::AsyncWriteExt;
    /// use portcullis_async::{LimitedWrite, Queue, ThreadTimer};
    /// use portcullis_core::{Rate, TokenBucket};
    ///
    /// let rate = TokenBucket::new(Rate::per_second(20_000_000), 400_000);
    /// let up: Arc<Queue<_, _>> = Arc::new(Queue::new(rate, ThreadTimer::new(), u64::MAX));
    /// up.attend_shared();
    /// # futures_executor::block_on(async {
    /// let socket: Vec<u8> = Vec::new();
    /// let mut limited = pin!(LimitedWrite::new(socket, Arc::clone(&up)));
    /// limited.write_all(&[7; 500_000]).await?;
    /// assert_eq!(limited.get_ref().len(), 500_000);
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    LimitedWrite, "writer", Outflow
}
