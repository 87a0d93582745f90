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
    /// A stream whose items come at a rate: each waits for its permits in a queue, and gives them
    /// back as it comes out.
    ///
    /// `P` points to the queue: `&Queue`, `&'static Queue`, `Arc<Queue>`, or [a key's
    /// place](crate::QueueKey); `weight` says how many permits an item takes. One item at a time is
    /// taken from the stream, and then waits; it is dropped with this one. An item that is refused
    /// comes as an error, with the reason, and the stream goes on: the queue is full or closed, or
    /// can never grant as much. So a queue that stays open, has room for all who wait, and a burst
    /// of the heaviest item, refuses none. If the stream is a sink as well, that passes as it is.
    ///
    /// To bound how many items are in work, [`LeasedStream`] yields the leases as well.
    ///
    /// It is the wait itself, and so must be pinned: `pin!`, or `Box::pin`.
    ///
    /// **Bound.** The limiter's, by the queue's clock; by a watch, one item more, that has its
    /// permits and was not polled.
    ///
    /// **Cost.** The waits of the queue, without an allocation. A task that waits for permits is
    /// woken once, when it has them.
    ///
    /// ```
    /// use std::pin::pin;
    /// use std::sync::Arc;
    /// use futures_util::{StreamExt, stream};
    /// use portcullis_async::{LimitedStream, PerItem, Queue, ThreadTimer};
    /// use portcullis_core::{Rate, TokenBucket};
    ///
    /// let rate = TokenBucket::new(Rate::per_second(1_000), 1);
    /// let queue: Arc<Queue<_, _>> = Arc::new(Queue::new(rate, ThreadTimer::new(), 100));
    /// queue.attend_shared();
    /// let paced = pin!(LimitedStream::new(stream::iter(["a", "b", "c"]), queue, PerItem));
    /// let items = futures_executor::block_on(paced.map(Result::unwrap).collect::<String>());
    /// assert_eq!(items, "abc");
    /// ```
    #[must_use = "a stream does nothing until it is polled"]
    pub struct LimitedStream<S: Stream, P: Anchored, W> {
        #[pin]
        leased: LeasedStream<S, P, W>,
    }
}

impl<S: Stream, P: Anchored + Clone, W: Weight<S::Item>> LimitedStream<S, P, W> {
    /// The items of `stream`, each with as many permits of `queue` as `weight` says.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use futures_util::stream;
    /// # use portcullis_async::{LimitedStream, Queue};
    /// # use portcullis_core::{ManualClock, Rate, TokenBucket};
    /// let queue: Arc<Queue<_, _>> = Arc::new(Queue::new(
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

    /// The stream within.
    ///
    /// ```
    /// # use futures_util::{Stream, stream};
    /// # use portcullis_async::{LimitedStream, PerItem, Queue};
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// # let queue: Queue<_, _> = Queue::new(Concurrency::new(2), ManualClock::new(), 9);
    /// let limited = LimitedStream::new(stream::iter([1, 2, 3]), &queue, PerItem);
    /// assert_eq!(limited.get_ref().size_hint(), (3, Some(3)));
    /// ```
    pub const fn get_ref(&self) -> &S {
        self.leased.get_ref()
    }

    /// The stream within, to be used past this adapter.
    ///
    /// ```
    /// # use std::pin::pin;
    /// # use futures_util::{FutureExt, StreamExt, stream};
    /// # use portcullis_async::{LimitedStream, PerItem, Queue};
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// # let queue: Queue<_, _> = Queue::new(Concurrency::new(2), ManualClock::new(), 9);
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
    /// As [`LimitedStream`], but each item comes with its lease: permits of a
    /// [`Concurrency`](portcullis_core::Concurrency) limit are in use until that is dropped, and so
    /// bound how many items are in work at once.
    ///
    /// ```
    /// use std::pin::pin;
    /// use futures_util::{FutureExt, StreamExt, stream};
    /// use portcullis_async::{LeasedStream, PerItem, Queue};
    /// use portcullis_core::{Concurrency, ManualClock};
    ///
    /// let queue: Queue<_, _> = Queue::new(Concurrency::new(2), ManualClock::new(), 100);
    /// let mut jobs = pin!(LeasedStream::new(stream::iter(["a", "b", "c"]), &queue, PerItem));
    /// let first = jobs.next().now_or_never().unwrap().unwrap();
    /// let second = jobs.next().now_or_never().unwrap().unwrap();
    /// assert!(jobs.next().now_or_never().is_none(), "two are in work");
    /// drop(first);
    /// let (job, lease) = jobs.next().now_or_never().unwrap().unwrap()?;
    /// assert_eq!((job, lease.permits()), ("c", 1));
    /// # drop(second);
    /// # Ok::<(), portcullis_async::Refused<&str>>(())
    /// ```
    #[must_use = "a stream does nothing until it is polled"]
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
    /// As of [`LimitedStream::new`].
    ///
    /// ```
    /// # use futures_util::stream;
    /// # use portcullis_async::{LeasedStream, PerItem, Queue};
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// # let queue: Queue<_, _> = Queue::new(Concurrency::new(2), ManualClock::new(), 9);
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

    /// The stream within.
    ///
    /// ```
    /// # use futures_util::{Stream, stream};
    /// # use portcullis_async::{LeasedStream, PerItem, Queue};
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// # let queue: Queue<_, _> = Queue::new(Concurrency::new(2), ManualClock::new(), 9);
    /// let jobs = LeasedStream::new(stream::iter([1, 2, 3]), &queue, PerItem);
    /// assert_eq!(jobs.get_ref().size_hint(), (3, Some(3)));
    /// ```
    pub const fn get_ref(&self) -> &S {
        &self.stream
    }

    /// The stream within, to be used past this adapter.
    ///
    /// ```
    /// # use std::pin::pin;
    /// # use futures_util::{FutureExt, StreamExt, stream};
    /// # use portcullis_async::{LeasedStream, PerItem, Queue};
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// # let queue: Queue<_, _> = Queue::new(Concurrency::new(2), ManualClock::new(), 9);
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
        let (item, _) = this.next.take().expect("is there");
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
