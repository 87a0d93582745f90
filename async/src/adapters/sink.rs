//! A sink with a limited rate.
//!
//! State: at most one item, then its permits; and at most one item that was rejected.
//!
//! ```text
//!   empty --start_send--> item waits --granted--> item and permits --inner sink ready--> empty
//!                            | rejected
//!                            v
//!                         rejected item, which the next error returns: empty again
//! ```
//!
//! Invariant: an item is in the inner sink, in this state, or in an error: none is lost.

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
    /// A sink with a limited rate: each item waits in a queue for its permits before it goes to the
    /// inner sink, and then returns them.
    ///
    /// `P` points to the queue, and `weight` returns the number of permits an item takes, as for a
    /// [`LimitedStream`](super::LimitedStream). The adapter accepts an item once the inner sink is
    /// ready for it, so normally no permits are spent on an item that the inner sink cannot take.
    /// The adapter holds one item at a time. The item waits for its permits and moves on in the
    /// next call that polls. While it waits, the inner sink is flushed.
    ///
    /// If the queue rejects an item, the item returns in the error of a later call:
    ///
    /// - A flush or a close returns the error. Call it again to flush or close.
    /// - `start_send` (and so `feed` and `send`) returns the error as well. In this case it has
    ///   accepted the new item nevertheless, which may pass although the call failed.
    ///
    /// So no item is lost. If the inner sink is also a stream, the stream passes through unlimited.
    ///
    /// The adapter contains the state of its wait, so it must be pinned: with `pin!` or `Box::pin`.
    ///
    /// **Bound.** The limiter's, by the queue's clock. In real time, one item more: an item that
    /// was granted and is polled late.
    ///
    /// **Cost.** The waits of the queue, without allocating. A task that waits for permits is woken
    /// once, when they are granted, and by the inner sink while it flushes.
    ///
    /// ```
    /// use std::pin::pin;
    /// use futures_util::{SinkExt, sink};
    /// use portcullis_async::stream::LimitedSink;
    /// use portcullis_async::{PerItem, Queue};
    /// use portcullis_core::{ManualClock, Rate, TokenBucket};
    ///
    /// let queue = Queue::new(TokenBucket::new(Rate::per_second(10), 2), ManualClock::new(), 0);
    /// let mut out = pin!(LimitedSink::new(Vec::new(), &queue, PerItem));
    /// futures_executor::block_on(async {
    ///     out.send("first").await.unwrap();
    ///     out.send("second").await.unwrap();
    ///     // The bucket is empty, and the queue has no room: the item returns.
    ///     let SinkError::Refused(refused) = out.send("third").await.unwrap_err();
    ///     assert_eq!(refused.item, "third");
    /// });
    /// assert_eq!(*out.get_ref(), ["first", "second"]);
    /// # use portcullis_async::stream::SinkError;
    /// ```
    pub struct LimitedSink<S, P: Anchored, W, T> {
        #[pin]
        sink: S,
        #[pin]
        admission: Admission<P>,
        weight: W,
        // The item that waits and its weight; and its permits, once they are granted.
        next: Option<(T, u32)>,
        permits: Option<Unspent<P>>,
        // The item that was rejected, until a call returns it.
        refused: Option<Refused<T>>,
    }
}

impl<T, S: Sink<T>, P: Anchored + Clone, W: Weight<T>> LimitedSink<S, P, W, T> {
    /// Sends items to `sink`. Each takes as many permits of `queue` as `weight` returns.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use futures_util::SinkExt;
    /// # use portcullis_async::stream::LimitedSink;
    /// # use portcullis_async::Queue;
    /// # use portcullis_core::{ManualClock, Rate, TokenBucket};
    /// let queue = Arc::new(Queue::new(
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

    /// Returns a reference to the inner sink. An item that waits has not reached it yet.
    ///
    /// ```
    /// # use portcullis_async::stream::LimitedSink;
    /// # use portcullis_async::{PerItem, Queue};
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// # let queue = Queue::new(Concurrency::new(2), ManualClock::new(), 9);
    /// let out = LimitedSink::<_, _, _, u8>::new(Vec::new(), &queue, PerItem);
    /// assert!(out.get_ref().is_empty());
    /// ```
    pub const fn get_ref(&self) -> &S {
        &self.sink
    }

    /// Returns the inner sink, to be used without the limit.
    ///
    /// ```
    /// # use std::pin::pin;
    /// # use portcullis_async::stream::LimitedSink;
    /// # use portcullis_async::{PerItem, Queue};
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// # let queue = Queue::new(Concurrency::new(2), ManualClock::new(), 9);
    /// let mut out = pin!(LimitedSink::new(Vec::new(), &queue, PerItem));
    /// out.as_mut().get_pin_mut().push(7);
    /// assert_eq!(*out.get_ref(), [7]);
    /// ```
    pub fn get_pin_mut(self: Pin<&mut Self>) -> Pin<&mut S> {
        self.project().sink
    }

    /// Polls the item, as `poll_item`, and then returns an item that was rejected as an error.
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

    /// Passes the waiting item to the inner sink, if there is one. While it waits for permits,
    /// flushes the inner sink, so that earlier items do not wait for these permits.
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
                    let (item, _) = this.next.take().expect("an item waits");
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
        // The inner sink was ready when the item was accepted, and may no longer be ready after a
        // flush.
        ready!(this.sink.as_mut().poll_ready(context)).map_err(SinkError::Sink)?;
        let lease = this.permits.take().map(Unspent::into_lease);
        let (item, _) = this.next.take().expect("an item waits");
        let outcome = this.sink.start_send(item);
        drop(lease);
        Poll::Ready(outcome.map_err(SinkError::Sink))
    }
}

impl<T, S: Sink<T>, P: Anchored + Clone, W: Weight<T>> Sink<T> for LimitedSink<S, P, W, T> {
    type Error = SinkError<T, S::Error>;

    /// Becomes ready also after an item was rejected: `start_send` returns that error, once it has
    /// stored the next item.
    fn poll_ready(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Self::Error>> {
        ready!(self.as_mut().poll_item(context))?;
        let this = self.project();
        if this.refused.is_some() {
            // The inner sink was ready for the rejected item, and so is ready for the next one.
            return Poll::Ready(Ok(()));
        }
        this.sink.poll_ready(context).map_err(SinkError::Sink)
    }

    /// # Errors
    ///
    /// [`SinkError::Refused`] with the previous item, if that was rejected. `item` has been
    /// accepted nevertheless.
    ///
    /// # Panics
    ///
    /// Panics if `poll_ready` has not returned ready since the last item.
    fn start_send(self: Pin<&mut Self>, item: T) -> Result<(), Self::Error> {
        let this = self.project();
        assert!(
            this.next.is_none(),
            "`start_send` called before `poll_ready` was ready"
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

/// Why a [`LimitedSink`] failed.
///
/// ```
/// use portcullis_async::stream::SinkError;
/// use portcullis_async::{Refused, Rejected};
/// let refused = Refused {
///     item: "late",
///     rejected: Rejected::Closed { permits: 1 },
/// };
/// assert_eq!(
///     SinkError::<_, std::io::Error>::Refused(refused).to_string(),
///     "item rejected: queue closed"
/// );
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "the limit or the sink has failed")]
pub enum SinkError<T, E> {
    /// The queue of permits rejected this item. If `start_send` returns the error, it concerns the
    /// previous item; the new item was accepted.
    Refused(Refused<T>),
    /// The inner sink failed.
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

/// Omits the item, so that it need not implement [`Debug`](fmt::Debug).
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
