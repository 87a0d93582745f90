use core::task::{Poll, Waker};
use core::time::Duration;
use core::{fmt, mem};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use portcullis_core::{Clock, MonotonicClock, Timestamp};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout_at};

use super::{ReentrantTimer, Timer};
use crate::waiting::panics::quietly;

/// A timer of tokio. Its clock is [`tokio::time::Instant`], which tests can pause and advance, so
/// each request reads it. Needs the feature `tokio`.
///
/// The origin is that of all monotonic clocks of the process, so that a deadline can come from any
/// [`MonotonicClock`]. The two clocks agree to within the time that creating the timer takes,
/// usually less than 1 µs, and the timer is never ahead. They differ once the clock of the runtime
/// has been paused.
///
/// The resolution is 1 ms. A task of the runtime sleeps until the next alarm. The task starts with
/// the first alarm and ends when the timer is dropped. If the runtime shuts down earlier, the timer
/// wakes nothing any more.
///
/// ```
/// use portcullis_async::{Queue, TokioTimer};
/// use portcullis_core::{Rate, TokenBucket};
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let bucket = TokenBucket::new(Rate::per_second(200), 1);
/// let queue = Queue::new(bucket, TokioTimer::new(), 9).shared();
/// for _ in 0..3 {
///     let _permit = queue.acquire(1).await?;
/// }
/// # Ok::<(), portcullis_async::Rejected>(()) }).unwrap();
/// ```
pub struct TokioTimer {
    /// The time of the monotonic clocks when the timer was created.
    begin: Timestamp,
    /// The time of tokio at that moment, or just after it.
    begun: Instant,
    runtime: Handle,
    alarm: Arc<Alarm>,
}

/// The alarm that the task sleeps for.
struct Alarm {
    set: Mutex<Set>,
    changed: Notify,
}

#[derive(Default)]
struct Set {
    alarm: Option<(Instant, Waker)>,
    /// The task sleeps until this instant or until `changed`; `None`: until `changed`.
    until: Option<Instant>,
    runs: bool,
    over: bool,
}

impl Alarm {
    fn set(&self) -> MutexGuard<'_, Set> {
        // All changes under this lock are complete at any point, so poisoning does no harm.
        self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn run(self: Arc<Self>) {
        loop {
            let (due, until) = {
                let mut set = self.set();
                if set.over {
                    return;
                }
                let due = set.alarm.take_if(|(at, _)| *at <= Instant::now());
                set.until = set.alarm.as_ref().map(|(at, _)| *at);
                (due, set.until)
            };
            if let Some((_, waker)) = due {
                // A waker that panics does not end the task.
                quietly(|| waker.wake());
                continue;
            }
            match until {
                Some(until) => _ = timeout_at(until, self.changed.notified()).await,
                None => self.changed.notified().await,
            }
        }
    }
}

impl TokioTimer {
    /// Creates a timer of the current runtime, with the origin of all monotonic clocks of the
    /// process. (A queue in a static belongs to the first runtime that uses it.)
    ///
    /// # Panics
    ///
    /// If called outside of a runtime, or if the time driver of the runtime is not enabled.
    ///
    /// ```
    /// # use portcullis_async::TokioTimer;
    /// # use tokio::runtime::Builder;
    /// # let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    /// # runtime.block_on(async {
    /// let timer = TokioTimer::new();
    /// # _ = timer; });
    /// ```
    #[must_use]
    #[allow(clippy::new_without_default, reason = "it panics outside of a runtime")]
    pub fn new() -> Self {
        Self::of(Handle::current())
    }

    /// Creates a timer of `runtime`, which need not be the current one.
    ///
    /// # Panics
    ///
    /// If the time driver of the runtime is not enabled.
    ///
    /// ```
    /// # use portcullis_async::TokioTimer;
    /// let runtime = tokio::runtime::Builder::new_multi_thread()
    ///     .worker_threads(1)
    ///     .enable_time()
    ///     .build()
    ///     .unwrap();
    /// let timer = TokioTimer::of(runtime.handle().clone());
    /// ```
    #[must_use]
    pub fn of(runtime: Handle) -> Self {
        let (begin, begun) = {
            let _runtime = runtime.enter();
            // Panics here if the time driver is not enabled. In a task the panic would go
            // unnoticed.
            drop(sleep(Duration::ZERO));
            (MonotonicClock::new().now(), Instant::now())
        };
        let alarm = Alarm {
            set: Mutex::default(),
            changed: Notify::new(),
        };
        Self {
            begin,
            begun,
            runtime,
            alarm: Arc::new(alarm),
        }
    }
}

impl Drop for TokioTimer {
    fn drop(&mut self) {
        // Take the waker out here: the task shall neither drop it under its lock, nor keep it until
        // the task is polled.
        let alarm = {
            let mut set = self.alarm.set();
            set.over = true;
            set.alarm.take()
        };
        self.alarm.changed.notify_one();
        drop(alarm);
    }
}

impl Clock for TokioTimer {
    fn now(&self) -> Timestamp {
        self.begin.saturating_add(self.begun.elapsed())
    }
}

impl Timer for TokioTimer {
    fn wake_at(&self, at: Timestamp, waker: &Waker) -> Poll<()> {
        // An instant that the system cannot represent never comes.
        let instant = self.begun.checked_add(at.saturating_since(self.begin));
        let Some(instant) = instant else {
            return Poll::Pending;
        };
        if instant <= Instant::now() {
            return Poll::Ready(());
        }
        let waker = waker.clone();
        let (old, earlier, runs) = {
            let mut set = self.alarm.set();
            let earlier = set.until.is_none_or(|until| instant < until);
            if earlier {
                set.until = Some(instant);
            }
            (
                set.alarm.replace((instant, waker)),
                earlier,
                mem::replace(&mut set.runs, true),
            )
        };
        if !runs {
            self.runtime.spawn(Arc::clone(&self.alarm).run());
        }
        drop(old);
        if earlier {
            self.alarm.changed.notify_one();
        }
        Poll::Pending
    }
}

impl ReentrantTimer for TokioTimer {}

impl fmt::Debug for TokioTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokioTimer")
            .field("begin", &self.begin)
            .finish_non_exhaustive()
    }
}
