//! The timer of a queue: a clock that also wakes a waker at an instant. The timers themselves are
//! in `driving/timer/`, or of the user's own.

use core::task::{Poll, Waker};

use portcullis_core::{Clock, Timestamp};

/// A clock that wakes a waker at an instant. Each queue has a timer of its own.
///
/// | timer | feature | calls wakers from | resolution |
/// |---|---|---|---|
/// | `ThreadTimer` | `std` | one thread for the timers of all queues | about 60 µs |
/// | `TokioTimer` | `tokio` | a task of the runtime | 1 ms |
/// | `AsyncIoTimer` | `async-io` | a thread of `async-io`, or one in its `block_on` | about 60 µs |
/// | `EmbassyTimer` | `embassy-time` | the interrupt of the time driver | one tick of the driver |
///
/// All except `EmbassyTimer` are a [`ReentrantTimer`]: a queue can drive itself by it.
///
/// Other timers can implement this trait. This example is the timer of a simulation, whose time is
/// advanced manually:
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
/// let queue = Arc::new(Queue::new(
///     TokenBucket::new(Rate::per_second(1), 1),
///     Simulated::default(),
///     9,
/// ));
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
    /// Wakes `waker` once, at `at` or soon after, and replaces the previous request. Returns
    /// `Poll::Ready` without keeping the waker if `at` has passed.
    ///
    /// Several threads may call this concurrently; the last call wins. Early and spurious wake-ups
    /// are harmless. The queue calls this method without holding its lock, possibly during a
    /// wake-up.
    fn wake_at(&self, at: Timestamp, waker: &Waker) -> Poll<()>;
}

/// A timer whose [`wake_at`](Timer::wake_at) may be called from inside a wake-up of the same timer.
/// A queue that drives itself calls it from there: after [`Queue::shared`] or [`Queue::attend`].
///
/// Implement it for a timer of your own if the timer holds no lock of its own while it calls a
/// waker. A timer that does hold one works only with tasks that wait and with
/// [`Queue::drive`](crate::Queue::drive), where the waker merely schedules a task.
///
/// ```
/// use core::task::{Poll, Waker};
/// use portcullis_async::{Queue, ReentrantTimer, ThreadTimer, Timer};
/// use portcullis_core::{Clock, Rate, Timestamp, TokenBucket};
///
/// /// Prints the alarms of another timer.
/// struct Printed(ThreadTimer);
///
/// impl Clock for Printed {
///     fn now(&self) -> Timestamp {
///         self.0.now()
///     }
/// }
///
/// impl Timer for Printed {
///     fn wake_at(&self, at: Timestamp, waker: &Waker) -> Poll<()> {
///         println!("{at:?}");
///         self.0.wake_at(at, waker)
///     }
/// }
///
/// impl ReentrantTimer for Printed {}
///
/// let bucket = TokenBucket::new(Rate::per_second(200), 1);
/// let queue = Queue::new(bucket, Printed(ThreadTimer::new()), 9).shared();
/// futures_executor::block_on(async {
///     for _ in 0..3 {
///         let _permit = queue.acquire(1).await?;
///     }
///     Ok::<(), portcullis_async::Rejected>(())
/// })?;
/// # Ok::<(), portcullis_async::Rejected>(())
/// ```
///
/// With another timer, a queue that drives itself does not compile:
///
/// ```compile_fail,E0277
/// # use core::task::{Poll, Waker};
/// # use portcullis_async::{Queue, Timer};
/// # use portcullis_core::{Clock, Rate, Timestamp, TokenBucket};
/// # struct Locked;
/// # impl Clock for Locked {
/// #     fn now(&self) -> Timestamp {
/// #         Timestamp::ZERO
/// #     }
/// # }
/// # impl Timer for Locked {
/// #     fn wake_at(&self, _: Timestamp, _: &Waker) -> Poll<()> {
/// #         Poll::Pending
/// #     }
/// # }
/// # let bucket = TokenBucket::new(Rate::per_second(200), 1);
/// let queue = Queue::new(bucket, Locked, 9).shared();
/// ```
///
/// [`Queue::shared`]: crate::LimiterQueue#method.shared
/// [`Queue::attend`]: crate::Queue::attend
#[diagnostic::on_unimplemented(
    message = "a queue cannot drive itself by `{Self}`",
    label = "the timer may not be set during one of its own wake-ups",
    note = "run `drive` of the queue in a task instead",
    note = "for a timer of your own that holds no lock while it wakes, implement `ReentrantTimer`"
)]
pub trait ReentrantTimer: Timer {}
