//! Methods of streams and sinks that wrap them in an adapter.

use futures_core::Stream;
use futures_sink::Sink;

use super::sink::LimitedSink;
use super::stream::{LeasedStream, LimitedStream};
use super::weight::Weight;
use crate::queues::acquire::Anchored;

/// Methods that limit a stream. Implemented for every stream.
///
/// ```
/// use futures_util::{StreamExt, stream};
/// use portcullis_async::stream::LimitStreamExt;
/// use portcullis_async::{PerItem, Queue, ThreadTimer};
/// use portcullis_core::{Rate, TokenBucket};
///
/// let bucket = TokenBucket::new(Rate::per_second(1_000), 2);
/// let queue = Queue::new(bucket, ThreadTimer::new(), 9).shared();
/// let paced = stream::iter(0..5).limited(queue, PerItem);
/// assert_eq!(futures_executor::block_on(paced.count()), 5);
/// ```
pub trait LimitStreamExt: Stream + Sized {
    /// Limits the stream: see [`LimitedStream`].
    fn limited<P, W>(self, queue: P, weight: W) -> LimitedStream<Self, P, W>
    where
        P: Anchored + Clone,
        W: Weight<Self::Item>,
    {
        LimitedStream::new(self, queue, weight)
    }

    /// Limits the stream, and returns each item with the lease of its permits: see
    /// [`LeasedStream`].
    fn leased<P, W>(self, queue: P, weight: W) -> LeasedStream<Self, P, W>
    where
        P: Anchored + Clone,
        W: Weight<Self::Item>,
    {
        LeasedStream::new(self, queue, weight)
    }
}

impl<S: Stream> LimitStreamExt for S {}

/// A method that limits a sink. Implemented for every type.
///
/// ```
/// use futures_util::{SinkExt, sink};
/// use portcullis_async::stream::{LimitSinkExt, SinkError};
/// use portcullis_async::{PerItem, Queue, ThreadTimer};
/// use portcullis_core::{Rate, TokenBucket};
///
/// let bucket = TokenBucket::new(Rate::per_second(1_000), 2);
/// let queue = Queue::new(bucket, ThreadTimer::new(), 9).shared();
/// let mut paced = Box::pin(sink::drain().limited_sink(queue, PerItem));
/// futures_executor::block_on(async {
///     for item in 0..5 {
///         paced.send(item).await?;
///     }
///     Ok::<(), SinkError<_, _>>(())
/// })
/// .unwrap();
/// ```
pub trait LimitSinkExt: Sized {
    /// Limits the sink: see [`LimitedSink`].
    fn limited_sink<T, P, W>(self, queue: P, weight: W) -> LimitedSink<Self, P, W, T>
    where
        Self: Sink<T>,
        P: Anchored + Clone,
        W: Weight<T>,
    {
        LimitedSink::new(self, queue, weight)
    }
}

impl<S> LimitSinkExt for S {}
