//! How many requests wait, and how those that waited have ended. The lock guards the counts.

/// Counts of a queue's requests. See [`Queue::counts`](crate::Queue::counts).
///
/// Each request that is not granted immediately is counted once: as a waiter while it waits, and
/// then by its outcome. In the words of [`NotGranted`](portcullis_core::limiter::NotGranted),
/// `late` and `shed` requests are denied; `full`, `evicted`, `closed` and `oversized` ones are
/// refused. Tries are not counted. To count all requests, also in permits, put
/// [`Counted`](portcullis_core::Counted) inside the queue, and read it by
/// [`Queue::limiter`](crate::Queue::limiter) or
/// [`KeyedQueue::table_counts`](crate::KeyedQueue::table_counts).
///
/// ```
/// # use portcullis_async::{Queue, QueueCounts};
/// # use portcullis_core::{Concurrency, ManualClock};
/// let queue = Queue::new(Concurrency::new(2), ManualClock::new(), 100);
/// assert_eq!(queue.counts(), QueueCounts::default());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueCounts {
    /// The number of waiters now.
    pub waiters: u32,
    /// The number of permits that the waiters request: the minimum of each request. (In the queue's
    /// bound each waiter counts for at least one permit.)
    pub permits: u64,
    /// Requests that were granted after waiting, so far. Requests that were granted immediately are
    /// not counted. This count and all that follow wrap.
    pub granted: u64,
    /// Requests that were rejected because the queue was full, whatever the limiter would have
    /// answered.
    pub full: u64,
    /// Requests that were evicted by newer ones.
    pub evicted: u64,
    /// Requests that were cancelled while they waited.
    pub cancelled: u64,
    /// Requests that were rejected because of their deadline, immediately or when it passed.
    pub late: u64,
    /// Requests that the queue shed, immediately or when they had waited for as long as its
    /// [shedding](crate::Shedding) lets them.
    #[cfg(feature = "shedding")]
    pub shed: u64,
    /// Requests that were rejected because the queue was closed, immediately or while they waited.
    pub closed: u64,
    /// Requests that were rejected because they exceeded the limiter's capacity, immediately or
    /// when the limit was lowered.
    pub oversized: u64,
}
