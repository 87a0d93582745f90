/// Counts of a queue: from [`Queue::counts`](crate::Queue::counts).
///
/// ```
/// # use portcullis_async::{Queue, QueueCounts};
/// # use portcullis_core::{Concurrency, ManualClock};
/// let queue: Queue<_, _> = Queue::new(Concurrency::new(2), ManualClock::new(), 100);
/// assert_eq!(queue.counts(), QueueCounts::default());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueCounts {
    /// Those who wait.
    pub waiters: u32,
    /// The permits that they wait for: of each the fewest that it takes. (In the queue's bound each
    /// counts as one at least.)
    pub permits: u64,
    /// Granted after a wait, so far; what was granted at once is not counted here. Wrapping, as all
    /// that follow.
    pub granted: u64,
    /// Refused because the queue was full, whether or not the limiter would have granted anything.
    pub refused: u64,
    /// Evicted by newer ones.
    pub evicted: u64,
    /// Given up while they waited.
    pub cancelled: u64,
    /// Refused because of their deadline, at once or when it was over.
    pub late: u64,
}
