use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Wake;
use std::time::Instant;

use async_io::Timer as Sleep;
use portcullis_core::{Clock, Timestamp};

use super::Timer;

/// A timer of the crate `async-io`, for smol and other executors based on it. It works beside any
/// executor, because `async-io` has a thread of its own. Needs the feature `async-io`.
///
/// The clock is [`Instant`]. Its origin is the moment at which the timer is created.
///
/// ```
/// use portcullis_async::{AsyncIoTimer, Queue};
/// use portcullis_core::{Rate, TokenBucket};
/// use std::sync::Arc;
///
/// let queue = Arc::new(Queue::new(
///     TokenBucket::new(Rate::per_second(200), 1),
///     AsyncIoTimer::new(),
///     9,
/// ));
/// queue.attend_shared();
/// futures_executor::block_on(async {
///     for _ in 0..3 {
///         queue.acquire(1).await?;
///     }
///     Ok::<(), portcullis_async::Rejected>(())
/// })?;
/// # Ok::<(), portcullis_async::Rejected>(())
/// ```
pub struct AsyncIoTimer {
    origin: Instant,
    sleep: Mutex<Sleep>,
    alarm: Arc<Alarm>,
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
    /// Creates a timer whose origin is now.
    ///
    /// ```
    /// # use portcullis_async::AsyncIoTimer;
    /// # use portcullis_core::Clock;
    /// let timer = AsyncIoTimer::new();
    /// assert!(timer.now().as_nanos() < 1_000_000_000);
    /// ```
    #[must_use]
    pub fn new() -> Self {
        Self {
            origin: Instant::now(),
            sleep: Mutex::new(Sleep::never()),
            alarm: Arc::new(Alarm(Mutex::new(None))),
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
        super::since(self.origin.elapsed())
    }
}

impl Timer for AsyncIoTimer {
    fn wake_at(&self, at: Timestamp, waker: &Waker) -> Poll<()> {
        // An instant that the system cannot represent never comes.
        let instant = self.origin.checked_add(Duration::from_nanos(at.as_nanos()));
        let Some(instant) = instant else {
            return Poll::Pending;
        };
        let (alarm, waker) = (Waker::from(Arc::clone(&self.alarm)), waker.clone());
        let (over, _old) = {
            let mut sleep = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
            let old = self.alarm.set(waker);
            sleep.set_at(instant);
            (
                Pin::new(&mut *sleep).poll(&mut Context::from_waker(&alarm)),
                old,
            )
        };
        over.map(|_| ())
    }
}

impl fmt::Debug for AsyncIoTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncIoTimer")
            .field("origin", &self.origin)
            .finish_non_exhaustive()
    }
}
