//! The timer of `std`: one thread that sleeps for all timers of the process.
//!
//! State: a board with the alarm of each timer, and the instant until which the thread sleeps.
//! Setting an alarm that is earlier than that instant notifies the thread. The thread takes the
//! alarms that are due from the board, unlocks it, and runs their wakers. A timer takes its alarm
//! with it when it is dropped.
//!
//! A forked child has the board of its parent, and not its thread. It makes a board of its own.
#![allow(unsafe_code)]

use core::fmt;
use core::ptr;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize};
use core::task::{Poll, Waker};
use std::boxed::Box;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Instant;
use std::vec::Vec;

use portcullis_core::clock::Interval;
use portcullis_core::{Clock, MonotonicClock, Timestamp};

use crate::forks;
use crate::waiting::panics::quietly;
use crate::waiting::timer::{ReentrantTimer, Timer};

/// A timer that needs only `std`: a sleeping thread, which all such timers of the process share.
/// The thread starts with the first alarm and never ends. Needs the feature `std`.
///
/// The clock is a [`MonotonicClock`], so that on Linux most requests that find permits do not read
/// the precise time. The origin is that of all monotonic clocks of the process. The thread runs the
/// grants of the queues and the wakers of their tasks. A waker that takes long delays all other
/// alarms.
///
/// A process that is forked may go on to use its timers, on Unix: a child starts a thread of its
/// own with its first alarm, and its queues set their alarms again. Fork while no request waits in
/// a queue that the child uses: the child has a copy of each waiter, but not its thread or its
/// runtime, and what is granted to such a copy is never claimed.
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

/// Where the alarm of a timer is set. Both fields change under the lock of the board.
struct Alarm {
    /// The index in `Alarms::all`.
    place: AtomicUsize,
    /// `Board::forks` of the board that `place` is an index of.
    board: AtomicU32,
}

/// The index of an alarm that is on no board.
const NO_PLACE: usize = usize::MAX;

/// The alarms of one process, and its thread.
///
/// A forked process has a copy of the board of its parent, but not the thread. The lock of the copy
/// may be held forever, by a thread that the child does not have. So a child makes a board of its
/// own, with no alarm, and starts a thread of its own. The queues in it set their alarms again: see
/// [`forks`].
struct Board {
    alarms: Mutex<Alarms>,
    changed: Condvar,
    /// [`forks::count`] in the process that the board belongs to.
    forks: u32,
}

/// The board of this process, or that of its parent: see [`board`]. Null before the first alarm.
static BOARD: AtomicPtr<Board> = AtomicPtr::new(ptr::null_mut());

struct Alarms {
    all: Vec<Set>,
    /// The thread sleeps until this instant; `None`: until it is notified.
    until: Option<Instant>,
    runs: bool,
    /// Equals `Board::forks` of the board that has these alarms.
    forks: u32,
}

/// The alarm of one timer.
struct Set {
    of: Arc<Alarm>,
    alarm: Option<(Instant, Waker)>,
}

/// Returns the board of this process.
fn board() -> &'static Board {
    let forks = forks::count();
    let last = BOARD.load(Acquire);
    // SAFETY: the pointer is null or comes from `Box::into_raw`, and a board that was stored is
    // never freed. Acquire: pairs with the store below.
    if let Some(board) = unsafe { last.as_ref() }.filter(|board| board.forks == forks) {
        return board;
    }
    let new = Box::into_raw(Box::new(Board {
        alarms: Mutex::new(Alarms {
            all: Vec::new(),
            until: None,
            runs: false,
            forks,
        }),
        changed: Condvar::new(),
        forks,
    }));
    match BOARD.compare_exchange(last, new, Release, Acquire) {
        // SAFETY: the board is now stored, so it is never freed.
        Ok(_) => unsafe { &*new },
        Err(others) => {
            // SAFETY: the box was not stored, so this is the only pointer to it. The other board
            // was stored by another thread of this process since the load.
            unsafe {
                drop(Box::from_raw(new));
                &*others
            }
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // All changes under this lock are complete at any point, so poisoning does no harm.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Alarms {
    /// Sets an alarm. Returns the waker of its previous setting.
    fn set(&mut self, alarm: &Arc<Alarm>, at: Instant, waker: Waker) -> Option<Waker> {
        if let Some(set) = self.place(alarm).and_then(|place| self.all.get_mut(place)) {
            let old = set.alarm.replace((at, waker));
            return old.map(|(_, waker)| waker);
        }
        alarm.place.store(self.all.len(), Relaxed);
        alarm.board.store(self.forks, Relaxed);
        self.all.push(Set {
            of: Arc::clone(alarm),
            alarm: Some((at, waker)),
        });
        None
    }

    /// Removes an alarm. The last alarm of the list takes its index.
    fn forget(&mut self, alarm: &Alarm) -> Option<Set> {
        let place = self.place(alarm)?;
        alarm.place.store(NO_PLACE, Relaxed);
        let forgotten = self.all.swap_remove(place);
        if let Some(moved) = self.all.get(place) {
            moved.of.place.store(place, Relaxed);
        }
        // Keeps the capacity below about four times the length; shrinks it to twice the length.
        if self.all.len() < self.all.capacity() / 4 {
            self.all.shrink_to(self.all.len() * 2);
        }
        Some(forgotten)
    }

    /// Returns the index of an alarm in `all`. An index of the parent's board is no index of this
    /// one.
    fn place(&self, alarm: &Alarm) -> Option<usize> {
        let place = alarm.place.load(Relaxed);
        (place != NO_PLACE && alarm.board.load(Relaxed) == self.forks).then_some(place)
    }
}

/// Wakes all alarms of a board that are due, forever.
fn run(board: &Board) {
    let mut due = Vec::new();
    let mut alarms = locked(&board.alarms);
    loop {
        let now = Instant::now();
        let mut next: Option<Instant> = None;
        for set in &mut alarms.all {
            if let Some((_, waker)) = set.alarm.take_if(|(at, _)| *at <= now) {
                due.push(waker);
            }
            let set = set.alarm.as_ref().map(|(at, _)| *at);
            next = set.into_iter().chain(next).min();
        }
        alarms.until = next;
        if due.is_empty() {
            let changed = &board.changed;
            alarms = match next {
                Some(next) => {
                    let wait = next.saturating_duration_since(Instant::now());
                    changed
                        .wait_timeout(alarms, wait)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
                None => changed.wait(alarms).unwrap_or_else(PoisonError::into_inner),
            };
        } else {
            drop(alarms);
            for waker in due.drain(..) {
                // A waker that panics does not prevent the other wake-ups.
                quietly(|| waker.wake());
            }
            alarms = locked(&board.alarms);
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
                place: AtomicUsize::new(NO_PLACE),
                board: AtomicU32::new(0),
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
        // The waker is dropped here, outside the lock.
        let forgotten = self
            .alarm
            .get()
            .map(|alarm| locked(&board().alarms).forget(alarm));
        drop(forgotten);
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
        let waker = waker.clone();
        // Before the board is looked for, so that a child notices that this board is not its own.
        forks::watch();
        let board = board();
        let mut alarms = locked(&board.alarms);
        let old = alarms.set(self.alarm(), instant, waker);
        if !alarms.runs {
            thread::Builder::new()
                .name("portcullis-timer".into())
                .spawn(move || run(board))
                .expect("failed to start the timer thread");
            alarms.runs = true;
        }
        if alarms.until.is_none_or(|until| instant < until) {
            alarms.until = Some(instant);
            board.changed.notify_one();
        }
        drop(alarms);
        drop(old);
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
        let known = || locked(&board().alarms).all.len();
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
        for (place, set) in locked(&board().alarms).all.iter().enumerate() {
            assert_eq!(set.of.place.load(Relaxed), place);
        }
        assert_eq!(known(), 97);
        drop(timers);
        assert!(alarms.iter().all(|alarm| alarm.upgrade().is_none()));
        assert_eq!(
            (known(), locked(&board().alarms).all.capacity() < 100),
            (0, true)
        );
    }
}
