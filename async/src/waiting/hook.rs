//! Observers of waits: what a queue tells when a wait is over.
//!
//! The side that waits calls the hook, outside the lock, once for each request that was queued.

use core::time::Duration;

/// Observes waits that are over, for example to record the time that requests spend in the queue.
/// See [`Queue::with_hook`](crate::Queue::with_hook).
///
/// The waiting side calls the hook with no lock held: in `poll`, in `drop`, or in the blocking
/// call. The hook is not called for a request that was granted or rejected without waiting, nor for
/// a future that is neither polled again nor dropped.
///
/// `()` is a hook that does nothing. Each `Fn(&Waited)` is a hook. Implement it for a hook with a
/// type that has a name.
///
/// ```
/// use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
/// use portcullis_async::{Queue, Waited};
/// use portcullis_core::{Concurrency, ManualClock};
///
/// static WAITS: AtomicU64 = AtomicU64::new(0);
/// let queue = Queue::new(Concurrency::new(2), ManualClock::new(), 9);
/// let queue = queue.with_hook(|_: &Waited| _ = WAITS.fetch_add(1, Relaxed));
/// # _ = queue;
/// ```
pub trait Hook {
    /// Whether the hook uses [`Waited::time`]. If `false`, the queue does not read the clock for
    /// the hook, and the time has no meaning.
    const TIMES: bool = true;

    /// Called when a wait is over.
    fn left(&self, waited: &Waited);
}

impl Hook for () {
    const TIMES: bool = false;

    #[inline]
    fn left(&self, _: &Waited) {}
}

impl<F: Fn(&Waited)> Hook for F {
    fn left(&self, waited: &Waited) {
        self(waited);
    }
}

/// A wait that is over: the argument of a [`Hook`].
///
/// ```
/// use portcullis_async::{WaitEnd, Waited};
/// fn log(waited: &Waited) {
///     if waited.outcome == WaitEnd::Granted {
///         println!("{} permits after {:?}", waited.permits, waited.time);
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct Waited {
    /// The permits that the request waited for: the minimum that it would take.
    pub permits: u32,
    /// The time in the queue, by the queue's clock: from entering the wait list until the request
    /// was settled, even if the future was polled later.
    pub time: Duration,
    /// How the wait ended.
    pub outcome: WaitEnd,
}

/// How a wait ended.
///
/// ```
/// use portcullis_async::WaitEnd;
/// assert_ne!(WaitEnd::Granted, WaitEnd::Cancelled);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum WaitEnd {
    /// The permits were granted.
    Granted,
    /// A newer request took its place in the queue.
    Evicted,
    /// The limit was lowered below the permits that were requested.
    ExceedsCapacity,
    /// The deadline passed.
    Deadline,
    /// The request waited for as long as the shedding of the queue lets it. Only with the feature
    /// `shedding`.
    Shed,
    /// The queue was closed.
    Closed,
    /// The future was dropped.
    Cancelled,
}
