use core::fmt;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;
use core::task::{Poll, Waker};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Instant;
use std::vec::Vec;

use portcullis_core::{Clock, Interval, MonotonicClock, Timestamp};

use super::{ReentrantTimer, Timer};
use crate::waiting::panics::quietly;

/// A timer that needs only `std`: a sleeping thread, which all such timers of the process share.
/// The thread starts with the first alarm and never ends. Needs the feature `std`.
///
/// The clock is a [`MonotonicClock`], so that on Linux most requests that find permits do not read
/// the precise time. The origin is that of all monotonic clocks of the process. The thread runs the
/// grants of the queues and the wakers of their tasks. A waker that takes long delays all other
/// alarms.
///
/// A queue in a static:
///
/// ```
/// use portcullis_async::{Queue, ThreadTimer};
/// use portcullis_core::{Clock, MonotonicClock, Rate, TokenBucket};
/// use std::time::Duration;
///
/// static QUEUE: Queue<TokenBucket, ThreadTimer> =
///     Queue::new(TokenBucket::new(Rate::per_second(200), 1), ThreadTimer::new(), 9);
///
/// QUEUE.attend();
/// // Any monotonic clock tells the time of the queue.
/// let deadline = MonotonicClock::new().now() + Duration::from_secs(5);
/// futures_executor::block_on(async {
///     for _ in 0..3 {
///         let _permit = QUEUE.acquire(1).until(deadline).await?;
///     }
///     Ok::<(), portcullis_async::Rejected>(())
/// })?;
/// # Ok::<(), portcullis_async::Rejected>(())
/// ```
///
/// A queue that makes its grants from the thread of the timer:
///
/// ```
/// use portcullis_async::{Queue, ThreadTimer};
/// use portcullis_core::{Rate, TokenBucket};
///
/// let bucket = TokenBucket::new(Rate::per_second(200), 1);
/// let queue = Queue::new(bucket, ThreadTimer::new(), 9).shared();
/// futures_executor::block_on(async {
///     for _ in 0..3 {
///         let _permit = queue.acquire(1).await?;
///     }
///     Ok::<(), portcullis_async::Rejected>(())
/// })?;
/// # Ok::<(), portcullis_async::Rejected>(())
/// ```
pub struct ThreadTimer {
    clock: MonotonicClock,
    /// Created by the first call of `wake_at`, so that `new` is `const`.
    alarm: OnceLock<Arc<Alarm>>,
}

/// The alarm of one timer.
struct Alarm {
    set: Mutex<Option<(Instant, Waker)>>,
    /// The index of this alarm in `Alarms::all`. Changes under the lock of `ALARMS`.
    place: AtomicUsize,
}

/// The index of an alarm that is not in `Alarms::all`.
const NO_PLACE: usize = usize::MAX;

/// The alarms that the thread waits for, and the state of the thread.
static ALARMS: Mutex<Alarms> = Mutex::new(Alarms {
    all: Vec::new(),
    until: None,
    runs: false,
});
static CHANGED: Condvar = Condvar::new();

struct Alarms {
    all: Vec<Arc<Alarm>>,
    /// The thread sleeps until this instant; `None`: until it is notified.
    until: Option<Instant>,
    runs: bool,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // All changes under these locks are complete at any point, so poisoning does no harm.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Alarms {
    /// Adds an alarm to those that the thread waits for.
    fn learn(&mut self, alarm: &Arc<Alarm>) {
        if alarm.place.load(Relaxed) == NO_PLACE {
            alarm.place.store(self.all.len(), Relaxed);
            self.all.push(Arc::clone(alarm));
        }
    }

    /// Removes an alarm. The last alarm of the list takes its index.
    fn forget(&mut self, alarm: &Alarm) {
        let place = alarm.place.swap(NO_PLACE, Relaxed);
        if place == NO_PLACE {
            return;
        }
        self.all.swap_remove(place);
        if let Some(moved) = self.all.get(place) {
            moved.place.store(place, Relaxed);
        }
        // Keeps the capacity below about four times the length; shrinks it to twice the length.
        if self.all.len() < self.all.capacity() / 4 {
            self.all.shrink_to(self.all.len() * 2);
        }
    }
}

/// Wakes all alarms that are due, forever.
fn run() {
    let mut due = Vec::new();
    let mut alarms = locked(&ALARMS);
    loop {
        let now = Instant::now();
        let mut next: Option<Instant> = None;
        for alarm in &alarms.all {
            let mut set = locked(&alarm.set);
            if let Some((_, waker)) = set.take_if(|(at, _)| *at <= now) {
                due.push(waker);
            }
            next = set
                .as_ref()
                .map(|(at, _)| *at)
                .into_iter()
                .chain(next)
                .min();
        }
        alarms.until = next;
        if due.is_empty() {
            alarms = match next {
                Some(next) => {
                    let wait = next.saturating_duration_since(Instant::now());
                    CHANGED
                        .wait_timeout(alarms, wait)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
                None => CHANGED.wait(alarms).unwrap_or_else(PoisonError::into_inner),
            };
        } else {
            drop(alarms);
            for waker in due.drain(..) {
                // A waker that panics does not prevent the other wake-ups.
                quietly(|| waker.wake());
            }
            alarms = locked(&ALARMS);
        }
    }
}

impl ThreadTimer {
    /// Creates a timer, with the origin of all monotonic clocks of the process.
    ///
    /// ```
    /// # use portcullis_async::ThreadTimer;
    /// # use portcullis_core::{Clock, MonotonicClock};
    /// static TIMER: ThreadTimer = ThreadTimer::new();
    /// let earlier = MonotonicClock::new().now();
    /// assert!(TIMER.now() >= earlier);
    /// ```
    #[must_use]
    pub const fn new() -> Self {
        Self {
            clock: MonotonicClock::new(),
            alarm: OnceLock::new(),
        }
    }

    fn alarm(&self) -> &Arc<Alarm> {
        self.alarm.get_or_init(|| {
            Arc::new(Alarm {
                set: Mutex::new(None),
                place: AtomicUsize::new(NO_PLACE),
            })
        })
    }
}

impl Default for ThreadTimer {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for ThreadTimer {
    fn drop(&mut self) {
        // The thread keeps no reference to the alarm, so that the waker is dropped here, outside
        // the locks.
        if let Some(alarm) = self.alarm.get() {
            locked(&ALARMS).forget(alarm);
        }
    }
}

impl Clock for ThreadTimer {
    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    #[inline]
    fn interval(&self) -> Option<Interval> {
        self.clock.interval()
    }
}

impl Timer for ThreadTimer {
    /// # Panics
    ///
    /// If the system cannot start the timer thread.
    fn wake_at(&self, at: Timestamp, waker: &Waker) -> Poll<()> {
        let now = self.clock.now();
        if at <= now {
            return Poll::Ready(());
        }
        // The clock is read first, so that the thread does not wake before `at`. An instant that
        // the system cannot represent never comes.
        let Some(instant) = Instant::now().checked_add(at.saturating_since(now)) else {
            return Poll::Pending;
        };
        let alarm = self.alarm();
        let old = locked(&alarm.set).replace((instant, waker.clone()));
        drop(old);
        let mut alarms = locked(&ALARMS);
        alarms.learn(alarm);
        if !alarms.runs {
            thread::Builder::new()
                .name("portcullis-timer".into())
                .spawn(run)
                .expect("failed to start the timer thread");
            alarms.runs = true;
        }
        if alarms.until.is_none_or(|until| instant < until) {
            alarms.until = Some(instant);
            CHANGED.notify_one();
        }
        Poll::Pending
    }
}

impl ReentrantTimer for ThreadTimer {}

impl fmt::Debug for ThreadTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadTimer")
            .field("clock", &self.clock)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    /// The thread is not woken: all alarms are an hour away.
    #[test]
    fn dropped_timers_leave_no_alarm_with_the_thread() {
        let mut timers: Vec<_> = (0..100).map(|_| ThreadTimer::new()).collect();
        for timer in &timers {
            let hour = timer.now().saturating_add(Duration::from_secs(3_600));
            assert!(timer.wake_at(hour, Waker::noop()).is_pending());
        }
        let known = || locked(&ALARMS).all.len();
        assert_eq!(known(), 100);
        let alarms: Vec<_> = timers
            .iter()
            .map(|timer| Arc::downgrade(timer.alarm()))
            .collect();
        // Drop one from the middle, the first, the last; later all others.
        for place in [50, 0, 97] {
            let alarm = Arc::downgrade(timers[place].alarm());
            drop(timers.remove(place));
            assert!(alarm.upgrade().is_none());
        }
        for (place, alarm) in locked(&ALARMS).all.iter().enumerate() {
            assert_eq!(alarm.place.load(Relaxed), place);
        }
        assert_eq!(known(), 97);
        drop(timers);
        assert!(alarms.iter().all(|alarm| alarm.upgrade().is_none()));
        assert_eq!((known(), locked(&ALARMS).all.capacity() < 100), (0, true));
    }
}
