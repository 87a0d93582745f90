use core::time::Duration;

/// Who is granted first.
///
/// ```
/// use portcullis_async::Order;
/// assert_ne!(Order::OldestFirst, Order::NewestFirst);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// Strictly in the order in which they came. While anybody waits, nobody who comes later is
    /// granted anything, be it free; when the queue is full, newcomers are refused.
    OldestFirst,
    /// Whoever came last. Newcomers take what is free; when the queue is full, those who have
    /// waited longest are evicted.
    NewestFirst,
}

/// What can be chosen.
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
