//! Streams with a limited rate: one that spends the permits of an item, one that returns them with
//! it.
//!
//! State: at most one item of the inner stream, which waits for its permits. The inner stream is
//! not polled while an item waits.

use core::fmt;
use core::pin::Pin;
use core::task::{Context, Poll, ready};

use futures_core::Stream;
use futures_sink::Sink;
use pin_project_lite::pin_project;
use portcullis_core::Lease;

use super::admission::Admission;
use super::leases::item;
use super::refused::Refused;
use super::weight::Weight;
use crate::queues::acquire::Anchored;

pin_project! {
    /// A stream with a limited rate: each item waits in a queue for its permits, and returns them
    /// when it is yielded.
    ///
    /// `P` points to the queue: `&Queue`, `&'static Queue`, `Arc<Queue>`, or a
    /// [`QueueKey`](crate::QueueKey). `weight` returns the number of permits an item takes. The
    /// adapter takes one item at a time from the inner stream, which then waits; dropping the
    /// adapter drops that item.
    ///
    /// An item that the queue rejects is yielded as an error with the reason, and the stream
    /// continues. A queue rejects an item if it is full or closed, or if the limiter can never
    /// grant that many permits. So a queue rejects nothing if it stays open, has room for all
    /// waiters, and has a burst of at least the heaviest item. If the inner stream is also a sink,
    /// the sink passes through unlimited.
    ///
    /// To bound the number of items in progress, use [`LeasedStream`], which also yields the
    /// leases.
    ///
    /// The adapter contains the state of its wait, so it must be pinned: with `pin!` or `Box::pin`.
    ///
    /// **Bound.** The limiter's, by the queue's clock. In real time, one item more: an item that
    /// was granted and is polled late.
    ///
    /// **Cost.** The waits of the queue, without allocating. A task that waits for permits is woken
    /// once, when they are granted.
    ///
    /// ```
    /// use std::pin::pin;
    /// use futures_util::{StreamExt, stream};
    /// use portcullis_async::stream::LimitedStream;
    /// use portcullis_async::{PerItem, Queue, ThreadTimer};
    /// use portcullis_core::{Rate, TokenBucket};
    ///
    /// let rate = TokenBucket::new(Rate::per_second(1_000), 1);
    /// let queue = Queue::new(rate, ThreadTimer::new(), 100).shared();
    /// let paced = pin!(LimitedStream::new(stream::iter(["a", "b", "c"]), queue, PerItem));
    /// let items = futures_executor::block_on(paced.map(Result::unwrap).collect::<String>());
    /// assert_eq!(items, "abc");
    /// ```
    #[must_use = "streams do nothing unless polled"]
    pub struct LimitedStream<S: Stream, P: Anchored, W> {
        #[pin]
        leased: LeasedStream<S, P, W>,
    }
}

impl<S: Stream, P: Anchored + Clone, W: Weight<S::Item>> LimitedStream<S, P, W> {
    /// Limits `stream`. Each item takes as many permits of `queue` as `weight` returns.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use futures_util::stream;
    /// # use portcullis_async::stream::LimitedStream;
    /// # use portcullis_async::Queue;
    /// # use portcullis_core::{ManualClock, Rate, TokenBucket};
    /// let queue = Arc::new(Queue::new(
    ///     TokenBucket::new(Rate::per_second(9), 9),
    ///     ManualClock::new(),
    ///     9,
    /// ));
    /// let sized = LimitedStream::new(stream::iter(["by", "size"]), queue, |item: &&str| {
    ///     item.len() as u32
    /// });
    /// assert_eq!(
    ///     futures_executor::block_on_stream(Box::pin(sized)).count(),
    ///     2
    /// );
    /// ```
    pub const fn new(stream: S, queue: P, weight: W) -> Self {
        Self {
            leased: LeasedStream::new(stream, queue, weight),
        }
    }

    /// Returns a reference to the inner stream.
    ///
    /// ```
    /// # use futures_util::{Stream, stream};
    /// # use portcullis_async::stream::LimitedStream;
    /// # use portcullis_async::{PerItem, Queue};
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// # let queue = Queue::new(Concurrency::new(2), ManualClock::new(), 9);
    /// let limited = LimitedStream::new(stream::iter([1, 2, 3]), &queue, PerItem);
    /// assert_eq!(limited.get_ref().size_hint(), (3, Some(3)));
    /// ```
    pub const fn get_ref(&self) -> &S {
        self.leased.get_ref()
    }

    /// Returns the inner stream, to be used without the limit.
    ///
    /// ```
    /// # use std::pin::pin;
    /// # use futures_util::{FutureExt, StreamExt, stream};
    /// # use portcullis_async::stream::LimitedStream;
    /// # use portcullis_async::{PerItem, Queue};
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// # let queue = Queue::new(Concurrency::new(2), ManualClock::new(), 9);
    /// let limited = pin!(LimitedStream::new(stream::iter([1, 2, 3]), &queue, PerItem));
    /// assert_eq!(limited.get_pin_mut().next().now_or_never(), Some(Some(1)));
    /// ```
    pub fn get_pin_mut(self: Pin<&mut Self>) -> Pin<&mut S> {
        self.project().leased.get_pin_mut()
    }
}

impl<S: Stream, P: Anchored + Clone, W: Weight<S::Item>> Stream for LimitedStream<S, P, W> {
    type Item = Result<S::Item, Refused<S::Item>>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = ready!(self.project().leased.poll_next(context));
        Poll::Ready(next.map(|outcome| outcome.map(item)))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.leased.size_hint()
    }
}

pin_project! {
    /// A [`LimitedStream`] that yields each item with its lease. Permits of a
    /// [`Concurrency`](portcullis_core::Concurrency) limit stay in use until the lease is dropped.
    /// So the limit bounds the number of items in progress.
    ///
    /// ```
    /// use std::pin::pin;
    /// use futures_util::{FutureExt, StreamExt, stream};
    /// use portcullis_async::stream::LeasedStream;
    /// use portcullis_async::{PerItem, Queue};
    /// use portcullis_core::{Concurrency, ManualClock};
    ///
    /// let queue = Queue::new(Concurrency::new(2), ManualClock::new(), 100);
    /// let mut jobs = pin!(LeasedStream::new(stream::iter(["a", "b", "c"]), &queue, PerItem));
    /// let first = jobs.next().now_or_never().unwrap().unwrap();
    /// let second = jobs.next().now_or_never().unwrap().unwrap();
    /// assert!(jobs.next().now_or_never().is_none(), "two are in progress");
    /// drop(first);
    /// let (job, lease) = jobs.next().now_or_never().unwrap().unwrap()?;
    /// assert_eq!((job, lease.permits()), ("c", 1));
    /// # drop(second);
    /// # Ok::<(), portcullis_async::Refused<&str>>(())
    /// ```
    #[must_use = "streams do nothing unless polled"]
    pub struct LeasedStream<S: Stream, P: Anchored, W> {
        #[pin]
        stream: S,
        #[pin]
        admission: Admission<P>,
        weight: W,
        next: Option<(S::Item, u32)>,
    }
}

impl<S: Stream, P: Anchored + Clone, W: Weight<S::Item>> LeasedStream<S, P, W> {
    /// Limits `stream`. See [`LimitedStream::new`].
    ///
    /// ```
    /// # use futures_util::stream;
    /// # use portcullis_async::stream::LeasedStream;
    /// # use portcullis_async::{PerItem, Queue};
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// # let queue = Queue::new(Concurrency::new(2), ManualClock::new(), 9);
    /// let jobs = LeasedStream::new(stream::iter(["a"]), &queue, PerItem);
    /// assert_eq!(futures_executor::block_on_stream(Box::pin(jobs)).count(), 1);
    /// ```
    pub const fn new(stream: S, queue: P, weight: W) -> Self {
        Self {
            stream,
            admission: Admission::new(queue),
            weight,
            next: None,
        }
    }

    /// Returns a reference to the inner stream.
    ///
    /// ```
    /// # use futures_util::{Stream, stream};
    /// # use portcullis_async::stream::LeasedStream;
    /// # use portcullis_async::{PerItem, Queue};
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// # let queue = Queue::new(Concurrency::new(2), ManualClock::new(), 9);
    /// let jobs = LeasedStream::new(stream::iter([1, 2, 3]), &queue, PerItem);
    /// assert_eq!(jobs.get_ref().size_hint(), (3, Some(3)));
    /// ```
    pub const fn get_ref(&self) -> &S {
        &self.stream
    }

    /// Returns the inner stream, to be used without the limit.
    ///
    /// ```
    /// # use std::pin::pin;
    /// # use futures_util::{FutureExt, StreamExt, stream};
    /// # use portcullis_async::stream::LeasedStream;
    /// # use portcullis_async::{PerItem, Queue};
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// # let queue = Queue::new(Concurrency::new(2), ManualClock::new(), 9);
    /// let limited = pin!(LeasedStream::new(stream::iter([1, 2, 3]), &queue, PerItem));
    /// assert_eq!(limited.get_pin_mut().next().now_or_never(), Some(Some(1)));
    /// ```
    pub fn get_pin_mut(self: Pin<&mut Self>) -> Pin<&mut S> {
        self.project().stream
    }
}

impl<S: Stream, P: Anchored + Clone, W: Weight<S::Item>> Stream for LeasedStream<S, P, W> {
    type Item = Result<(S::Item, Lease<P>), Refused<S::Item>>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.project();
        let permits = if let Some((_, permits)) = this.next {
            *permits
        } else {
            let Some(item) = ready!(this.stream.poll_next(context)) else {
                return Poll::Ready(None);
            };
            let permits = this.weight.permits(&item);
            *this.next = Some((item, permits));
            permits
        };
        let outcome = ready!(this.admission.poll(context, permits));
        let (item, _) = this
            .next
            .take()
            .expect("`next` is set until the item has its permits");
        Poll::Ready(Some(match outcome {
            Ok(lease) => Ok((item, lease)),
            Err(rejected) => Err(Refused { item, rejected }),
        }))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let waiting = usize::from(self.next.is_some());
        let (least, most) = self.stream.size_hint();
        (
            least.saturating_add(waiting),
            most.and_then(|most| most.checked_add(waiting)),
        )
    }
}

/// Not limited.
impl<T, S: Stream + Sink<T>, P: Anchored + Clone, W> Sink<T> for LimitedStream<S, P, W> {
    type Error = S::Error;

    fn poll_ready(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.project().leased.poll_ready(context)
    }

    fn start_send(self: Pin<&mut Self>, item: T) -> Result<(), S::Error> {
        self.project().leased.start_send(item)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.project().leased.poll_flush(context)
    }

    fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.project().leased.poll_close(context)
    }
}

/// Not limited.
impl<T, S: Stream + Sink<T>, P: Anchored + Clone, W> Sink<T> for LeasedStream<S, P, W> {
    type Error = S::Error;

    fn poll_ready(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.project().stream.poll_ready(context)
    }

    fn start_send(self: Pin<&mut Self>, item: T) -> Result<(), S::Error> {
        self.project().stream.start_send(item)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.project().stream.poll_flush(context)
    }

    fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.project().stream.poll_close(context)
    }
}

impl<S: Stream + fmt::Debug, P: Anchored, W> fmt::Debug for LimitedStream<S, P, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitedStream")
            .field("stream", &self.leased.stream)
            .finish_non_exhaustive()
    }
}

impl<S: Stream + fmt::Debug, P: Anchored, W> fmt::Debug for LeasedStream<S, P, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeasedStream")
            .field("stream", &self.stream)
            .finish_non_exhaustive()
    }
}
