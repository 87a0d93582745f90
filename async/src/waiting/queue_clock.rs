//! The clocks that a queue accepts, and what the engine needs of them.
//!
//! A timer wakes a waker at an instant. The clocks that are listed here wake none, and the engine
//! knows that. A queue with any other clock does not compile, because its waits might never end.

use core::task::{Poll, Waker};

use portcullis_core::clock::Interval;
use portcullis_core::{Clock, Timeless, Timestamp};

use crate::waiting::timer::Timer;

/// A clock that a queue can be built with. Its type determines what wakes the tasks that wait.
///
/// | clock | what wakes a task whose permits return by time, or whose deadline passes |
/// |---|---|
/// | a [`Timer`] | the timer; a task that waits sets it, or the task that drives the queue |
/// | [`NoTimer`], [`ManualClock`] | a call of [`Queue::advance`], or a thread that waits |
/// | [`Timeless`] | nothing: time stands still |
///
/// All except [`Timeless`] are a [`DeadlineClock`] as well: a request with a deadline or a timeout
/// needs one.
///
/// [`ManualClock`]: portcullis_core::ManualClock
/// [`Queue::advance`]: crate::Queue::advance
///
/// A clock alone, such as `MonotonicClock`, cannot wake a task, so a queue with one does not
/// compile. Take a timer, or say with [`NoTimer`] that you call `advance` yourself.
///
/// The timer keeps a clone of the last waker that it was set with, until it wakes the task or is
/// set again. So for each queue, a timer can keep one finished task alive, and wake it once.
///
/// Sealed: implement [`Timer`] for a timer of your own, and wrap a clock of your own in
/// [`NoTimer`].
///
/// ```compile_fail,E0277
/// # use portcullis_async::Queue;
/// # use portcullis_core::{MonotonicClock, Rate, TokenBucket};
/// let bucket = TokenBucket::new(Rate::per_second(5), 5);
/// let queue = Queue::new(bucket, MonotonicClock::new(), 100);
/// ```
///
/// ```
/// # use portcullis_async::{NoTimer, Queue, ThreadTimer};
/// # use portcullis_core::{MonotonicClock, Rate, TokenBucket};
/// let bucket = || TokenBucket::new(Rate::per_second(5), 5);
/// let queue = Queue::new(bucket(), ThreadTimer::new(), 100);
/// let advanced = Queue::new(bucket(), NoTimer(MonotonicClock::new()), 100);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot wake the tasks that wait in a queue",
    label = "neither a timer nor `NoTimer`",
    note = "take a timer: `ThreadTimer`, `TokioTimer`, `AsyncIoTimer` or `EmbassyTimer`",
    note = "if the limiter ignores time, take `Timeless`",
    note = "if you call `advance` yourself, or only threads wait, wrap the clock: `NoTimer(clock)`"
)]
pub trait QueueClock: Wakes {}

/// What the engine asks of the clock of a queue. Sealed.
pub trait Wakes: Clock {
    /// Whether the clock wakes wakers.
    const WAKES: bool;

    /// Whether time passes by the clock, so that a deadline can be reached.
    const PASSES: bool = true;

    /// Sets the alarm, as [`Timer::wake_at`] does. Not called if the clock wakes no waker.
    fn wake(&self, at: Timestamp, waker: &Waker) -> Poll<()>;
}

/// A clock of a queue by which time passes, so that a deadline can be reached: every [`QueueClock`]
/// except [`Timeless`]. Sealed.
///
/// A request with a deadline or a timeout ([`Acquire::until`](crate::Acquire::until),
/// [`Acquire::within`](crate::Acquire::within)) needs such a clock:
///
/// ```compile_fail,E0277
/// # use core::time::Duration;
/// # use portcullis_async::Queue;
/// # use portcullis_core::{Concurrency, Timeless};
/// let queue = Queue::new(Concurrency::new(1), Timeless, 9);
/// let wait = queue.acquire(1).within(Duration::from_millis(50));
/// ```
///
/// ```
/// # use core::time::Duration;
/// # use portcullis_async::{DeadlineClock, Queue, ThreadTimer};
/// # use portcullis_core::{Concurrency, Lease};
/// let queue = Queue::new(Concurrency::new(1), ThreadTimer::new(), 9);
/// let wait = queue.acquire(1).within(Duration::from_millis(50));
///
/// // A function for queues with any such clock names it as a bound.
/// async fn soon<C: DeadlineClock>(queue: &Queue<Concurrency, C>) -> bool {
///     queue.acquire(1).within(Duration::from_millis(50)).await.is_ok()
/// }
/// # _ = (wait, soon(&queue));
/// ```
#[diagnostic::on_unimplemented(
    message = "no time passes by `{Self}`, so a deadline or a timeout would never be reached",
    label = "this queue has no clock for deadlines",
    note = "take a timer as the clock of the queue: `ThreadTimer`, `TokioTimer`, `AsyncIoTimer` or \
            `EmbassyTimer`",
    note = "if you call `advance` yourself, or only threads wait, wrap the clock: `NoTimer(clock)`",
    note = "in a function for any queue, add the bound `DeadlineClock`"
)]
pub trait DeadlineClock: QueueClock {}

impl<T: Timer> QueueClock for T {}

impl<T: Timer> DeadlineClock for T {}

impl<T: Timer> Wakes for T {
    const WAKES: bool = true;

    #[inline]
    fn wake(&self, at: Timestamp, waker: &Waker) -> Poll<()> {
        self.wake_at(at, waker)
    }
}

/// A clock without a timer, for a queue whose owner calls [`advance`](crate::Queue::advance), or in
/// which only threads wait.
///
/// A task that waits for time to pass is woken by the next call of `advance`, and by nothing else.
///
/// ```
/// use portcullis_async::{Next, NoTimer, Queue};
/// use portcullis_core::{Clock, Rate, Timestamp, TokenBucket};
///
/// struct Ticks;
/// impl Clock for Ticks {
///     fn now(&self) -> Timestamp {
///         Timestamp::from_millis(42)
///     }
/// }
///
/// static QUEUE: Queue<TokenBucket, NoTimer<Ticks>> =
///     Queue::new(TokenBucket::new(Rate::per_second(10), 1), NoTimer(Ticks), 100);
/// assert_eq!(QUEUE.advance(), Next::Idle);
/// ```
///
/// Two queues can have one clock, by a reference or by an `Arc`:
///
/// ```
/// # use portcullis_async::{NoTimer, Queue};
/// # use portcullis_core::{Clock, ManualClock, Rate, Timestamp, TokenBucket};
/// # use std::sync::Arc;
/// let clock: Arc<dyn Clock + Send + Sync> = Arc::new(ManualClock::new());
/// let bucket = || TokenBucket::new(Rate::per_second(10), 1);
/// let one = Queue::new(bucket(), NoTimer(Arc::clone(&clock)), 100);
/// let other = Queue::new(bucket(), NoTimer(clock), 100);
/// assert_eq!(one.clock().now(), other.clock().now());
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::exhaustive_structs, reason = "a wrapper of one value")]
pub struct NoTimer<C>(pub C);

impl<C: Clock> Clock for NoTimer<C> {
    #[inline]
    fn now(&self) -> Timestamp {
        self.0.now()
    }

    #[inline]
    fn interval(&self) -> Option<Interval> {
        self.0.interval()
    }
}

/// Clocks that wake no task.
macro_rules! without_timer {
    ($([$($generics:tt)*] $clock:ty $(, $passes:literal)?;)*) => {$(
        impl<$($generics)*> QueueClock for $clock {}

        impl<$($generics)*> Wakes for $clock {
            const WAKES: bool = false;
            $(const PASSES: bool = $passes;)?

            #[inline]
            fn wake(&self, _: Timestamp, _: &Waker) -> Poll<()> {
                Poll::Pending
            }
        }
    )*};
}

without_timer! {
    [C: Clock] NoTimer<C>;
    [] Timeless, false;
}

impl<C: Clock> DeadlineClock for NoTimer<C> {}

#[cfg(target_has_atomic = "64")]
without_timer! {
    [] portcullis_core::ManualClock;
    [] &portcullis_core::ManualClock;
}

#[cfg(all(target_has_atomic = "64", feature = "std"))]
without_timer! {
    [] std::sync::Arc<portcullis_core::ManualClock>;
}

#[cfg(all(target_has_atomic = "64", feature = "std"))]
impl DeadlineClock for std::sync::Arc<portcullis_core::ManualClock> {}

#[cfg(target_has_atomic = "64")]
impl DeadlineClock for portcullis_core::ManualClock {}

#[cfg(target_has_atomic = "64")]
impl DeadlineClock for &portcullis_core::ManualClock {}
