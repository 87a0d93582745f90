//! Timers: clocks that also wake.

use core::task::{Poll, Waker};

use portcullis_core::{Clock, Timestamp};

#[cfg(feature = "async-io")]
mod async_io;
#[cfg(feature = "embassy-time")]
mod embassy;
#[cfg(all(feature = "std", not(loom)))]
mod thread;
#[cfg(feature = "tokio")]
mod tokio;

#[cfg(feature = "async-io")]
pub use self::async_io::AsyncIoTimer;
#[cfg(feature = "embassy-time")]
pub use self::embassy::EmbassyTimer;
#[cfg(all(feature = "std", not(loom)))]
pub use self::thread::ThreadTimer;
#[cfg(feature = "tokio")]
pub use self::tokio::TokioTimer;

/// A clock that wakes at an instant: one of them for each queue.
///
/// | timer | feature | wakes in | resolution |
/// |---|---|---|---|
/// | `ThreadTimer` | `std` | a thread of its own, one for all queues | some 60 µs |
/// | `TokioTimer` | `tokio` | the runtime | 1 ms |
/// | `AsyncIoTimer` | `async-io` | the thread of `async-io`, or whoever polls in its `block_on` | some 60 µs |
/// | `EmbassyTimer` | `embassy-time` | the time driver's interrupt; for `drive` alone | a tick of the driver |
///
/// Another one is yours to write: here of a simulation, whose time is moved by hand.
///
/// ```
/// use core::task::{Poll, Waker};
/// use core::time::Duration;
/// use portcullis_async::{Queue, Timer};
/// use portcullis_core::{Clock, ManualClock, Rate, Timestamp, TokenBucket};
/// use std::sync::{Arc, Mutex};
///
/// #[derive(Default)]
/// struct Simulated(ManualClock, Mutex<Option<(Timestamp, Waker)>>);
///
/// impl Clock for Simulated {
///     fn now(&self) -> Timestamp {
///         self.0.now()
///     }
/// }
///
/// impl Timer for Simulated {
///     fn wake_at(&self, at: Timestamp, waker: &Waker) -> Poll<()> {
///         if at <= self.now() {
///             return Poll::Ready(());
///         }
///         *self.1.lock().unwrap() = Some((at, waker.clone()));
///         Poll::Pending
///     }
/// }
///
/// impl Simulated {
///     fn advance(&self, by: Duration) {
///         let now = self.0.advance(by);
///         let due = self.1.lock().unwrap().take_if(|(at, _)| *at <= now);
///         if let Some((_, waker)) = due {
///             waker.wake();
///         }
///     }
/// }
///
/// let queue: Arc<Queue<_, _>> = Arc::new(Queue::new(
///     TokenBucket::new(Rate::per_second(1), 1),
///     Simulated::default(),
///     9,
/// ));
/// queue.attend_shared();
/// let _first = queue.try_acquire(1).unwrap();
/// let waits = std::thread::spawn({
///     let queue = Arc::clone(&queue);
///     move || futures_executor::block_on(queue.acquire(1)).is_ok()
/// });
/// while queue.counts().waiters == 0 {}
/// queue.clock().advance(Duration::from_secs(1));
/// assert!(waits.join().unwrap());
/// ```
pub trait Timer: Clock {
    /// Whether what it wakes may ask it anew, within the wake-up, as a queue does that sees to its
    /// time by itself ([`Queue::attend`](crate::Queue::attend)). One whose wake-ups run under its
    /// own lock is for [`Queue::drive`](crate::Queue::drive) alone: a task's waker does no more
    /// than to have the task polled.
    const IS_REENTRANT: bool = true;

    /// Wakes `waker` once, at `at` or soon after it: in place of what was asked for before. Ready
    /// if `at` is over; then it does not keep the waker.
    ///
    /// Several threads may ask at once: the last one counts. A wake too many, also too early, does
    /// no harm. It is asked for outside of the queue's lock, and may be so while it wakes.
    fn wake_at(&self, at: Timestamp, waker: &Waker) -> Poll<()>;
}

/// A time since a clock's origin.
#[cfg(any(
    feature = "async-io",
    feature = "tokio",
    all(feature = "std", not(loom))
))]
fn since(origin: core::time::Duration) -> Timestamp {
    Timestamp::ZERO.saturating_add(origin)
}
