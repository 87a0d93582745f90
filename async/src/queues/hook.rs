use core::time::Duration;

/// What is told of each wait when it is over: see [`Queue::with_hook`](crate::Queue::with_hook).
/// For a histogram of the time in the queue, say.
///
/// It is called by the one who waited, in its poll or drop, outside of all locks; not for what was
/// granted or refused at once, and not for a future that is never polled again nor dropped. `()`
/// does nothing; a function or a closure of `&Waited` is a hook.
///
/// ```
/// use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
/// use portcullis_async::{Queue, Waited};
/// use portcullis_core::{Concurrency, ManualClock};
///
/// static WAITS: AtomicU64 = AtomicU64::new(0);
/// let queue: Queue<_, _> = Queue::new(Concurrency::new(2), ManualClock::new(), 9);
/// let queue = queue.with_hook(|_: &Waited| _ = WAITS.fetch_add(1, Relaxed));
/// # _ = queue;
/// ```
pub trait Hook {
    /// Whether it wants to know how long: else the clock is not read for it.
    const TIMES: bool = true;

    /// A wait is over.
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

/// A wait that is over: told to a [`Hook`].
///
/// ```
/// use portcullis_async::{Outcome, Waited};
/// fn log(waited: &Waited) {
///     if waited.outcome == Outcome::Granted {
///         println!("{} permits after {:?}", waited.permits, waited.time);
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct Waited {
    /// The permits that it waited for, the fewest that it would take.
    pub permits: u32,
    /// How long it was in the queue, by the queue's clock: until it was settled, whenever it was
    /// polled after that.
    pub time: Duration,
    /// What became of it.
    pub outcome: Outcome,
}

/// What became of a wait.
///
/// ```
/// use portcullis_async::Outcome;
/// assert_ne!(Outcome::Granted, Outcome::Cancelled);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum Outcome {
    /// It has its permits.
    Granted,
    /// It made room for a newer one.
    Evicted,
    /// The limit was lowered below what it asks for.
    ExceedsCapacity,
    /// Its deadline came.
    Deadline,
    /// The queue was closed.
    Closed,
    /// It was dropped.
    Cancelled,
}
