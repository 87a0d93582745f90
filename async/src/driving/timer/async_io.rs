//! The timer of the crate `async-io`, for smol and any other executor.
//!
//! State: one sleep of `async-io`, and the waker of the queue, each behind a lock. Setting the
//! timer again moves the sleep and replaces the waker. Neither lock is held while a waker of the
//! queue runs or is dropped: a waker may set the timer.

use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Wake;
use std::time::Instant;

use async_io::Timer as Sleep;
use portcullis_core::clock::Interval;
use portcullis_core::{Clock, MonotonicClock, Timestamp};

use crate::waiting::timer::{ReentrantTimer, Timer};

/// A timer of the crate `async-io`, for smol and other executors based on it. It works beside any
/// executor, because `async-io` has a thread of its own. Needs the feature `async-io`.
///
/// The clock is a [`MonotonicClock`], so that on Linux most requests that find permits do not read
/// the precise time. The origin is that of all monotonic clocks of the process.
///
/// The thread of `async-io` does not survive a fork. In a process that forks after it has used
/// `async-io`, use a [`ThreadTimer`](crate::ThreadTimer).
///
/// ```
/// use portcullis_async::{AsyncIoTimer, Queue};
/// use portcullis_core::{Rate, TokenBucket};
///
/// let bucket = TokenBucket::new(Rate::per_second(200), 1);
/// let queue = Queue::new(bucket, AsyncIoTimer::new(), 9).shared();
/// futures_executor::block_on(async {
///     for _ in 0..3 {
///         let _permit = queue.acquire(1).await?;
///     }
///     Ok::<(), portcullis_async::Rejected>(())
/// })?;
/// # Ok::<(), portcullis_async::Rejected>(())
/// ```
pub struct AsyncIoTimer {
    clock: MonotonicClock,
    /// `None` before the first call of `wake_at`, so that `new` is `const`.
    sleep: Mutex<Option<(Sleep, Arc<Alarm>)>>,
}

/// The waker that the sleep wakes. Wakers are foreign code, so they run and are dropped outside all
/// locks.
struct Alarm(Mutex<Option<Waker>>);

impl Alarm {
    fn set(&self, waker: Waker) -> Option<Waker> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .replace(waker)
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        let waker = self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl AsyncIoTimer {
    /// Creates a timer, with the origin of all monotonic clocks of the process.
    ///
    /// ```
    /// # use portcullis_async::AsyncIoTimer;
    /// # use portcullis_core::{Clock, MonotonicClock};
    /// static TIMER: AsyncIoTimer = AsyncIoTimer::new();
    /// let earlier = MonotonicClock::new().now();
    /// assert!(TIMER.now() >= earlier);
    /// ```
    #[must_use]
    pub const fn new() -> Self {
        Self {
            clock: MonotonicClock::new(),
            sleep: Mutex::new(None),
        }
    }
}

impl Default for AsyncIoTimer {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for AsyncIoTimer {
    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    #[inline]
    fn interval(&self) -> Option<Interval> {
        self.clock.interval()
    }
}

impl Timer for AsyncIoTimer {
    fn wake_at(&self, at: Timestamp, waker: &Waker) -> Poll<()> {
        // The clock is read first, so that the sleep does not end before `at`. An instant that the
        // system cannot represent never comes.
        let rest = at.saturating_since(self.clock.now());
        let Some(instant) = Instant::now().checked_add(rest) else {
            return Poll::Pending;
        };
        let waker = waker.clone();
        let (over, _old) = {
            let mut sleep = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
            let (sleep, alarm) =
                sleep.get_or_insert_with(|| (Sleep::never(), Arc::new(Alarm(Mutex::new(None)))));
            let old = alarm.set(waker);
            sleep.set_at(instant);
            let alarm = Waker::from(Arc::clone(alarm));
            (Pin::new(sleep).poll(&mut Context::from_waker(&alarm)), old)
        };
        over.map(|_| ())
    }
}

impl ReentrantTimer for AsyncIoTimer {}

impl fmt::Debug for AsyncIoTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncIoTimer")
            .field("clock", &self.clock)
            .finish_non_exhaustive()
    }
}
