use core::time::Duration;

/// Which request is granted first.
///
/// ```
/// use portcullis_async::Order;
/// assert_ne!(Order::OldestFirst, Order::NewestFirst);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// The oldest request first, strictly in order. While a request waits, later requests are
    /// granted nothing, even if permits are free. When the queue is full, new requests are
    /// rejected.
    OldestFirst,
    /// The newest request first. New requests take free permits ahead of the waiters. When the
    /// queue is full, a new request evicts those that have waited longest.
    NewestFirst,
}

/// The options of a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) order: Order,
    pub(crate) max_permits: u64,
    pub(crate) max_waiters: u32,
    pub(crate) slack: Duration,
    pub(crate) jitter: Duration,
}

impl Options {
    pub(crate) const fn new(max_permits: u64) -> Self {
        Self {
            order: Order::OldestFirst,
            max_permits,
            max_waiters: u32::MAX,
            slack: Duration::from_millis(10),
            jitter: Duration::ZERO,
        }
    }
}
