use core::fmt;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;
use core::task::{Poll, Waker};
use core::time::Duration;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;
use std::vec::Vec;

use portcullis_core::{Clock, Timestamp};

use super::Timer;
use crate::waiting::panics::quietly;

/// A timer of plain `std`: a thread that sleeps, one for all such timers of the process; it begins
/// with the first of them that is asked, and ends never.
///
/// Its clock is [`Instant`], its origin the moment of its making. What wakes runs in that thread,
/// the grants of a queue and the wakers of its tasks: one that takes long keeps all waiting.
///
/// ```
/// use portcullis_async::{Queue, ThreadTimer};
/// use portcullis_core::{Rate, TokenBucket};
/// use std::sync::Arc;
///
/// let queue: Arc<Queue<_, _>> = Arc::new(Queue::new(
///     TokenBucket::new(Rate::per_second(200), 1),
///     ThreadTimer::new(),
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
pub struct ThreadTimer {
    origin: Instant,
    alarm: Arc<Alarm>,
}

/// What one timer was asked for.
struct Alarm {
    set: Mutex<Option<(Instant, Waker)>>,
    /// Its place among those that the thread looks at; changes under their lock.
    place: AtomicUsize,
}

/// The place of an alarm that the thread does not look at.
const NO_PLACE: usize = usize::MAX;

/// The alarms that the thread looks at, and whether it has looked at all since one was set.
static ALARMS: Mutex<Alarms> = Mutex::new(Alarms {
    all: Vec::new(),
    until: None,
    runs: false,
});
static CHANGED: Condvar = Condvar::new();

struct Alarms {
    all: Vec<Arc<Alarm>>,
    /// The thread sleeps until then; `None` for ever.
    until: Option<Instant>,
    runs: bool,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that is guarded here is changed in steps.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Alarms {
    /// Has the thread look at an alarm.
    fn learn(&mut self, alarm: &Arc<Alarm>) {
        if alarm.place.load(Relaxed) == NO_PLACE {
            alarm.place.store(self.all.len(), Relaxed);
            self.all.push(Arc::clone(alarm));
        }
    }

    /// Has the thread look at it no more; the last one takes its place.
    fn forget(&mut self, alarm: &Alarm) {
        let place = alarm.place.swap(NO_PLACE, Relaxed);
        if place == NO_PLACE {
            return;
        }
        self.all.swap_remove(place);
        if let Some(moved) = self.all.get(place) {
            moved.place.store(place, Relaxed);
        }
        // Room for half as many again, and no more than four times as many.
        if self.all.len() < self.all.capacity() / 4 {
            self.all.shrink_to(self.all.len() * 2);
        }
    }
}

/// Wakes whoever is due, for ever.
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
                // One that panics is not to keep the others asleep.
                quietly(|| waker.wake());
            }
            alarms = locked(&ALARMS);
        }
    }
}

impl ThreadTimer {
    /// A timer whose origin is now.
    ///
    /// ```
    /// # use portcullis_async::ThreadTimer;
    /// # use portcullis_core::Clock;
    /// let timer = ThreadTimer::new();
    /// assert!(timer.now().as_nanos() < 1_000_000_000);
    /// ```
    #[must_use]
    pub fn new() -> Self {
        let alarm = Alarm {
            set: Mutex::new(None),
            place: AtomicUsize::new(NO_PLACE),
        };
        Self {
            origin: Instant::now(),
            alarm: Arc::new(alarm),
        }
    }
}

impl Default for ThreadTimer {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for ThreadTimer {
    fn drop(&mut self) {
        // The thread has none of its own: so its waker is dropped here, and outside of the locks.
        locked(&ALARMS).forget(&self.alarm);
    }
}

impl Clock for ThreadTimer {
    fn now(&self) -> Timestamp {
        super::since(self.origin.elapsed())
    }
}

impl Timer for ThreadTimer {
    /// # Panics
    ///
    /// If the system cannot start a thread.
    fn wake_at(&self, at: Timestamp, waker: &Waker) -> Poll<()> {
        let instant = self.origin.checked_add(Duration::from_nanos(at.as_nanos()));
        // Beyond what the system can tell: never.
        let Some(instant) = instant else {
            return Poll::Pending;
        };
        if instant <= Instant::now() {
            return Poll::Ready(());
        }
        let old = locked(&self.alarm.set).replace((instant, waker.clone()));
        drop(old);
        let mut alarms = locked(&ALARMS);
        alarms.learn(&self.alarm);
        if !alarms.runs {
            thread::Builder::new()
                .name("portcullis-timer".into())
                .spawn(run)
                .expect("a thread can be started");
            alarms.runs = true;
        }
        if alarms.until.is_none_or(|until| instant < until) {
            alarms.until = Some(instant);
            CHANGED.notify_one();
        }
        Poll::Pending
    }
}

impl fmt::Debug for ThreadTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadTimer")
            .field("origin", &self.origin)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The thread sleeps for an hour, and is not woken for it.
    #[test]
    fn timers_that_are_dropped_leave_nothing_with_the_thread() {
        let mut timers: Vec<_> = (0..100).map(|_| ThreadTimer::new()).collect();
        for timer in &timers {
            let hour = timer.now().saturating_add(Duration::from_hours(1));
            assert!(timer.wake_at(hour, Waker::noop()).is_pending());
        }
        let known = || locked(&ALARMS).all.len();
        assert_eq!(known(), 100);
        let alarms: Vec<_> = timers
            .iter()
            .map(|timer| Arc::downgrade(&timer.alarm))
            .collect();
        // From the middle, from both ends, and all.
        for place in [50, 0, 97] {
            let alarm = Arc::downgrade(&timers[place].alarm);
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
