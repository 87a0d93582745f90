use core::fmt;
use core::pin::Pin;
use core::task::{Context, Poll, ready};

use futures_core::Stream;
use futures_sink::Sink;
use pin_project_lite::pin_project;

use super::admission::Admission;
use super::leases::Unspent;
use super::refused::Refused;
use super::weight::Weight;
use crate::queues::acquire::Anchored;

pin_project! {
    /// A sink that takes items at a rate: each waits for its permits in a queue before it goes on,
    /// and gives them back as it goes.
    ///
    /// `P` points to the queue, and `weight` says how many permits an item takes: as of a
    /// [`LimitedStream`](super::LimitedStream). An item is taken once the sink within is ready for
    /// it, so that as a rule no permits are spent on what cannot go on; it waits here, and goes on
    /// with the next call that polls; meanwhile the sink within is flushed. One item waits at a
    /// time.
    ///
    /// An item that is refused comes back in the error of the next call that says what has become
    /// of it: of a flush or a close, which then has to be asked for again; or of giving in the next
    /// item (`start_send`, and so `feed` and `send`), which has its place here then, and may pass,
    /// though that call has failed. So no item is lost. If the sink is a stream as well, that
    /// passes as it is.
    ///
    /// It is the wait itself, and so must be pinned: `pin!`, or `Box::pin`.
    ///
    /// **Bound.** The limiter's, by the queue's clock; by a watch, one item more, that has its
    /// permits and was not polled.
    ///
    /// **Cost.** The waits of the queue, without an allocation. A task that waits for permits is
    /// woken once, when it has them; and by the sink within, while that flushes.
    ///
    /// ```
    /// use std::pin::pin;
    /// use futures_util::{SinkExt, sink};
    /// use portcullis_async::{LimitedSink, PerItem, Queue};
    /// use portcullis_core::{ManualClock, Rate, TokenBucket};
    ///
    /// let queue: Queue<_, _> =
    ///     Queue::new(TokenBucket::new(Rate::per_second(10), 2), ManualClock::new(), 0);
    /// let mut out = pin!(LimitedSink::new(Vec::new(), &queue, PerItem));
    /// futures_executor::block_on(async {
    ///     out.send("first").await.unwrap();
    ///     out.send("second").await.unwrap();
    ///     // The bucket is empty, and nobody may wait: the item comes back.
    ///     let SinkError::Refused(refused) = out.send("third").await.unwrap_err();
    ///     assert_eq!(refused.item, "third");
    /// });
    /// assert_eq!(*out.get_ref(), ["first", "second"]);
    /// # use portcullis_async::SinkError;
    /// ```
    pub struct LimitedSink<S, P: Anchored, W, T> {
        #[pin]
        sink: S,
        #[pin]
        admission: Admission<P>,
        weight: W,
        // The item that waits, and how many permits it takes; and those, when it has them.
        next: Option<(T, u32)>,
        permits: Option<Unspent<P>>,
        // The item that was refused, until that is told.
        refused: Option<Refused<T>>,
    }
}

impl<T, S: Sink<T>, P: Anchored + Clone, W: Weight<T>> LimitedSink<S, P, W, T> {
    /// Puts items into `sink`, each with as many permits of `queue` as `weight` says.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use futures_util::SinkExt;
    /// # use portcullis_async::{LimitedSink, Queue};
    /// # use portcullis_core::{ManualClock, Rate, TokenBucket};
    /// let queue: Arc<Queue<_, _>> = Arc::new(Queue::new(
    ///     TokenBucket::new(Rate::per_second(9), 9),
    ///     ManualClock::new(),
    ///     9,
    /// ));
    /// let mut out = Box::pin(LimitedSink::new(Vec::new(), queue, |item: &&str| {
    ///     item.len() as u32
    /// }));
    /// futures_executor::block_on(out.send("by size")).unwrap();
    /// ```
    pub const fn new(sink: S, queue: P, weight: W) -> Self {
        Self {
            sink,
            admission: Admission::new(queue),
            weight,
            next: None,
            permits: None,
            refused: None,
        }
    }

    /// The sink within. An item that waits is not in it yet.
    ///
    /// ```
    /// # use portcullis_async::{LimitedSink, PerItem, Queue};
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// # let queue: Queue<_, _> = Queue::new(Concurrency::new(2), ManualClock::new(), 9);
    /// let out = LimitedSink::<_, _, _, u8>::new(Vec::new(), &queue, PerItem);
    /// assert!(out.get_ref().is_empty());
    /// ```
    pub const fn get_ref(&self) -> &S {
        &self.sink
    }

    /// The sink within, to be used past this adapter.
    ///
    /// ```
    /// # use std::pin::pin;
    /// # use portcullis_async::{LimitedSink, PerItem, Queue};
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// # let queue: Queue<_, _> = Queue::new(Concurrency::new(2), ManualClock::new(), 9);
    /// let mut out = pin!(LimitedSink::new(Vec::new(), &queue, PerItem));
    /// out.as_mut().get_pin_mut().push(7);
    /// assert_eq!(*out.get_ref(), [7]);
    /// ```
    pub fn get_pin_mut(self: Pin<&mut Self>) -> Pin<&mut S> {
        self.project().sink
    }

    /// The same, and tells of one that was refused.
    fn poll_passed(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), SinkError<T, S::Error>>> {
        ready!(self.as_mut().poll_item(context))?;
        Poll::Ready(
            self.project()
                .refused
                .take()
                .map_or(Ok(()), |refused| Err(SinkError::Refused(refused))),
        )
    }

    /// Lets the item that waits go on, if one does. Those before it are not to wait for its
    /// permits.
    fn poll_item(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), SinkError<T, S::Error>>> {
        let mut this = self.project();
        let Some((_, weight)) = this.next else {
            return Poll::Ready(Ok(()));
        };
        if this.permits.is_none() {
            match this.admission.poll(context, *weight) {
                Poll::Ready(Ok(lease)) => *this.permits = Some(Unspent::new(lease)),
                Poll::Ready(Err(rejected)) => {
                    let (item, _) = this.next.take().expect("is there");
                    *this.refused = Some(Refused { item, rejected });
                    return Poll::Ready(Ok(()));
                }
                Poll::Pending => {
                    return match this.sink.poll_flush(context) {
                        Poll::Ready(Err(error)) => Poll::Ready(Err(SinkError::Sink(error))),
                        _ => Poll::Pending,
                    };
                }
            }
        }
        // It was, and may not be after a flush.
        ready!(this.sink.as_mut().poll_ready(context)).map_err(SinkError::Sink)?;
        let lease = this.permits.take().map(Unspent::into_lease);
        let (item, _) = this.next.take().expect("is there");
        let outcome = this.sink.start_send(item);
        drop(lease);
        Poll::Ready(outcome.map_err(SinkError::Sink))
    }
}

impl<T, S: Sink<T>, P: Anchored + Clone, W: Weight<T>> Sink<T> for LimitedSink<S, P, W, T> {
    type Error = SinkError<T, S::Error>;

    /// Also where the item before was refused: that is told when the next one is safe.
    fn poll_ready(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Self::Error>> {
        ready!(self.as_mut().poll_item(context))?;
        let this = self.project();
        if this.refused.is_some() {
            // The sink within was ready for that one.
            return Poll::Ready(Ok(()));
        }
        this.sink.poll_ready(context).map_err(SinkError::Sink)
    }

    /// # Errors
    ///
    /// [`SinkError::Refused`] with the item before this one, which has its place here all the same.
    ///
    /// # Panics
    ///
    /// If `poll_ready` has not been ready since the last item.
    fn start_send(self: Pin<&mut Self>, item: T) -> Result<(), Self::Error> {
        let this = self.project();
        assert!(
            this.next.is_none(),
            "a sink takes an item when it is ready for one"
        );
        let permits = this.weight.permits(&item);
        *this.next = Some((item, permits));
        this.refused
            .take()
            .map_or(Ok(()), |refused| Err(SinkError::Refused(refused)))
    }

    fn poll_flush(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Self::Error>> {
        ready!(self.as_mut().poll_passed(context))?;
        self.project()
            .sink
            .poll_flush(context)
            .map_err(SinkError::Sink)
    }

    fn poll_close(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Self::Error>> {
        ready!(self.as_mut().poll_passed(context))?;
        self.project()
            .sink
            .poll_close(context)
            .map_err(SinkError::Sink)
    }
}

/// Not limited.
impl<S: Stream, P: Anchored, W, T> Stream for LimitedSink<S, P, W, T> {
    type Item = S::Item;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<S::Item>> {
        self.project().sink.poll_next(context)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.sink.size_hint()
    }
}

impl<S: fmt::Debug, P: Anchored, W, T> fmt::Debug for LimitedSink<S, P, W, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitedSink")
            .field("sink", &self.sink)
            .finish_non_exhaustive()
    }
}

/// Why a [`LimitedSink`] did not take an item.
///
/// ```
/// use portcullis_async::{Refused, Rejected, SinkError};
/// let refused = Refused {
///     item: "late",
///     rejected: Rejected::Closed { permits: 1 },
/// };
/// assert_eq!(
///     SinkError::<_, std::io::Error>::Refused(refused).to_string(),
///     "an item is refused: closed"
/// );
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum SinkError<T, E> {
    /// This item did not get its permits: the one before, if the call was to give in another one,
    /// which has its place then.
    Refused(Refused<T>),
    /// The sink within has failed.
    Sink(E),
}

impl<T, E: fmt::Display> fmt::Display for SinkError<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refused) => refused.fmt(f),
            Self::Sink(error) => error.fmt(f),
        }
    }
}

/// Without the item, which may be anything.
impl<T, E: fmt::Debug> fmt::Debug for SinkError<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refused) => f.debug_tuple("Refused").field(refused).finish(),
            Self::Sink(error) => f.debug_tuple("Sink").field(error).finish(),
        }
    }
}

impl<T, E: core::error::Error + 'static> core::error::Error for SinkError<T, E> {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Refused(_) => None,
            Self::Sink(error) => error.source(),
        }
    }
}
