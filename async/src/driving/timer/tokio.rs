//! The timer of tokio: a task of the runtime sleeps until the alarm.
//!
//! The task does not run if the runtime has ended, or if nothing polls it. Then the thread of
//! [`ThreadTimer`] watches the alarm in its place. `Alarm` draws the states and says the invariant.

use core::task::{Poll, Waker};
use core::time::Duration;
use core::{fmt, mem};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::Wake;
use std::vec::Vec;

use portcullis_core::{Clock, MonotonicClock, Timestamp};
use tokio::runtime::{self, Handle, RuntimeFlavor};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout_at};

use crate::driving::timer::thread::ThreadTimer;
use crate::waiting::panics::quietly;
use crate::waiting::timer::{ReentrantTimer, Timer};

/// A timer of tokio. Its clock is [`tokio::time::Instant`], which tests can pause and advance, so
/// each request reads it. Needs the feature `tokio`.
///
/// **All timers of a runtime tell the same time**, also after its clock has been paused. So a
/// deadline by one of them is valid for a queue, a layer or a store with another one.
///
/// The origin is that of all monotonic clocks of the process, so that a deadline can come from any
/// [`MonotonicClock`]. The two clocks agree to within the time of a reading, usually less than
/// 1 µs, and the timer is never ahead. They differ once the clock of the runtime has been paused.
///
/// If the clock of the runtime is paused when its first timer is created, the origin is that
/// instant, for all timers of the runtime. So a test with a paused clock (`start_paused = true`)
/// sees the same times in each run, also the edges of windows on a grid. Two runtimes then differ
/// in their times. If all timers of a runtime whose clock ran have been dropped, the next one
/// counts as the first.
///
/// The resolution is 1 ms. A task of the runtime sleeps until the next alarm. The task starts with
/// the first alarm and ends when the timer is dropped.
///
/// **A runtime that does not run** does not stop the timer. If the runtime has shut down, the
/// alarms are those of a [`ThreadTimer`]. A runtime of one thread runs only while it is in
/// `block_on`. So a `ThreadTimer` watches the alarms of such a runtime: an alarm that is 100 ms
/// late is woken by its thread, and further ones are woken in time, until the runtime runs again. A
/// runtime does not survive a fork: in the child, create another one, and the queue with it.
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
    origin: Arc<Origin>,
    alarm: Arc<Alarm>,
}

/// How late an alarm is when the thread wakes it instead of the runtime, if it is not known whether
/// the runtime runs.
const GRACE: Duration = Duration::from_millis(100);

/// After how long the thread looks again, at least: a paused clock may not advance.
const PAUSE: Duration = Duration::from_millis(1);

/// The alarm that the task sleeps for. The thread watches the alarm if it is not known that the
/// runtime runs:
///
/// ```text
///             the first alarm        the runtime shuts down
///   (no task) --------------> Runs -----------------------------> Ended
///                             |  ^     an alarm is overdue
///                             |  +---------------------------+
///                             v         the task is polled   |
///                             Stalled -----------------------+
/// ```
///
/// The thread looks at an alarm `GRACE` after it is due while the runtime runs, and otherwise when
/// it is due. It does not watch a runtime that has threads of its own and runs.
///
/// Invariant: while the lock is free and an alarm is set, the task sleeps until then at most, and
/// is polled; or the thread is to look at the alarm.
struct Alarm {
    set: Mutex<Set>,
    changed: Notify,
    runtime: Handle,
    thread: ThreadTimer,
    /// Has the thread look at the alarm.
    look: Waker,
}

#[derive(Default)]
struct Set {
    alarm: Option<(Instant, Waker)>,
    /// The task sleeps until this instant or until `changed`; `None`: until `changed`.
    until: Option<Instant>,
    /// The thread looks at this instant or earlier; `None`: not at all.
    looks: Option<Instant>,
    runtime: Runs,
    has_task: bool,
    over: bool,
}

/// Whether the runtime runs, as far as is known.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Runs {
    /// It has threads of its own, or was last seen running.
    #[default]
    Yes,
    /// It had not woken an alarm in time, and has not polled the task since.
    Stalled,
    /// It has dropped the task.
    Ended,
}

impl Alarm {
    fn set(&self) -> MutexGuard<'_, Set> {
        // All changes under this lock are complete at any point, so poisoning does no harm.
        self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the thread look at an alarm that is set for `at`, if the runtime may not wake it.
    fn watch(&self, set: &mut Set, at: Instant) {
        let grace = match set.runtime {
            Runs::Yes if self.runtime.runtime_flavor() == RuntimeFlavor::MultiThread => return,
            Runs::Yes => GRACE,
            Runs::Stalled | Runs::Ended => PAUSE,
        };
        let Some(look) = at.checked_add(grace) else {
            return;
        };
        if set.looks.is_some_and(|looks| looks <= look) {
            return;
        }
        // The clock of the runtime may be paused, so the two clocks differ.
        let wait = look.saturating_duration_since(Instant::now()).max(PAUSE);
        let looks = self.thread.now().saturating_add(wait);
        if self.thread.wake_at(looks, &self.look).is_pending() {
            set.looks = Some(look);
        }
    }

    /// Wakes the alarm if it is overdue. Called by the thread.
    fn look(&self) {
        let ended = self.set().runtime == Runs::Ended;
        // Tells the time of the runtime, which may be paused; that of a runtime which has ended
        // stands still.
        let _inside = (!ended).then(|| self.runtime.enter());
        let due = {
            let mut set = self.set();
            set.looks = None;
            if set.over {
                return;
            }
            let grace = match set.runtime {
                Runs::Yes => GRACE,
                Runs::Stalled | Runs::Ended => Duration::ZERO,
            };
            let overdue = Instant::now().checked_sub(grace);
            let due = set.alarm.take_if(|(at, _)| Some(*at) <= overdue);
            if due.is_some() && set.runtime == Runs::Yes {
                set.runtime = Runs::Stalled;
            }
            if let Some(at) = set.alarm.as_ref().map(|(at, _)| *at) {
                self.watch(&mut set, at);
            }
            due
        };
        if let Some((_, waker)) = due {
            waker.wake();
        }
    }
}

/// The waker by which the thread looks at an alarm, while its timer exists.
struct Look(Weak<Alarm>);

impl Wake for Look {
    fn wake(self: Arc<Self>) {
        if let Some(alarm) = self.0.upgrade() {
            alarm.look();
        }
    }
}

/// The task that sleeps. The runtime drops it when it shuts down.
struct Task(Arc<Alarm>);

impl Task {
    async fn run(self) {
        let Self(alarm) = &self;
        loop {
            let (due, until) = {
                let mut set = alarm.set();
                if set.over {
                    return;
                }
                set.runtime = Runs::Yes;
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
                Some(until) => _ = timeout_at(until, alarm.changed.notified()).await,
                None => alarm.changed.notified().await,
            }
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        let mut set = self.0.set();
        if !set.over {
            set.runtime = Runs::Ended;
            if let Some(at) = set.alarm.as_ref().map(|(at, _)| *at) {
                self.0.watch(&mut set, at);
            }
        }
    }
}

/// Which time of a timer is which instant of tokio. All timers of a runtime have the same, so they
/// tell the same time whatever its clock does.
#[derive(Clone, Copy)]
struct Origin {
    begin: Timestamp,
    begun: Instant,
}

/// What the timers of a runtime have, if its clock can be paused.
enum Known {
    /// The clock was paused when the first timer was created. Such runtimes are those of tests, so
    /// there are few.
    Paused(Arc<Origin>),
    /// The clock ran then. Kept as long as there is a timer of the runtime.
    Ran(Weak<Origin>),
}

impl Known {
    fn origin(&self) -> Option<Arc<Origin>> {
        match self {
            Self::Paused(origin) => Some(Arc::clone(origin)),
            Self::Ran(origin) => origin.upgrade(),
        }
    }
}

static KNOWN: Mutex<Vec<(runtime::Id, Known)>> = Mutex::new(Vec::new());

impl Origin {
    /// That of the timers of `runtime`, which is the current one.
    fn of(runtime: &Handle) -> Arc<Self> {
        if runtime.runtime_flavor() == RuntimeFlavor::MultiThread {
            // Its clock cannot be paused.
            return Arc::new(Self::of_process());
        }
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|(_, of)| of.origin().is_some());
        let mut all = known.iter().filter(|(of, _)| *of == runtime.id());
        if let Some(origin) = all.find_map(|(_, of)| of.origin()) {
            return origin;
        }
        let is_paused = is_paused();
        let origin = Arc::new(if is_paused {
            Self {
                begin: Timestamp::ZERO,
                begun: Instant::now(),
            }
        } else {
            Self::of_process()
        });
        let of = if is_paused {
            Known::Paused(Arc::clone(&origin))
        } else {
            Known::Ran(Arc::downgrade(&origin))
        };
        known.push((runtime.id(), of));
        origin
    }

    /// That of all timers whose runtime has a clock that runs: the two clocks of the process, read
    /// once.
    fn of_process() -> Self {
        static READ: OnceLock<(Timestamp, std::time::Instant)> = OnceLock::new();
        let (begin, begun) = *READ.get_or_init(|| {
            let clock = MonotonicClock::new();
            // The monotonic clock is read first, so that no timer is ahead of it. Of several
            // readings the shortest counts: in one of them, this thread may be stopped in between.
            let readings = (0..8).map(|_| {
                let read = (clock.now(), std::time::Instant::now());
                (clock.now().saturating_since(read.0), read)
            });
            let shortest = readings.min_by_key(|(length, _)| *length);
            shortest.map_or_else(
                || (clock.now(), std::time::Instant::now()),
                |(_, read)| read,
            )
        });
        Self {
            begin,
            begun: Instant::from_std(begun),
        }
    }
}

/// Returns whether the clock of the current runtime stands still while time passes.
fn is_paused() -> bool {
    let before = Instant::now();
    let time = std::time::Instant::now();
    while std::time::Instant::now() == time {}
    Instant::now() == before
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
        let origin = {
            let _inside = runtime.enter();
            // Panics here if the time driver is not enabled. In a task the panic would go
            // unnoticed.
            drop(sleep(Duration::ZERO));
            Origin::of(&runtime)
        };
        let alarm = Arc::new_cyclic(|alarm| Alarm {
            set: Mutex::default(),
            changed: Notify::new(),
            runtime,
            thread: ThreadTimer::new(),
            look: Waker::from(Arc::new(Look(Weak::clone(alarm)))),
        });
        Self { origin, alarm }
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
        let Origin { begin, begun } = *self.origin;
        begin.saturating_add(begun.elapsed())
    }
}

impl Timer for TokioTimer {
    fn wake_at(&self, at: Timestamp, waker: &Waker) -> Poll<()> {
        // An instant that the system cannot represent never comes.
        let Origin { begin, begun } = *self.origin;
        let instant = begun.checked_add(at.saturating_since(begin));
        let Some(instant) = instant else {
            return Poll::Pending;
        };
        if instant <= Instant::now() {
            return Poll::Ready(());
        }
        let waker = waker.clone();
        let (old, earlier, has_task) = {
            let mut set = self.alarm.set();
            let earlier = set.until.is_none_or(|until| instant < until);
            if earlier {
                set.until = Some(instant);
            }
            let old = set.alarm.replace((instant, waker));
            self.alarm.watch(&mut set, instant);
            (old, earlier, mem::replace(&mut set.has_task, true))
        };
        if !has_task {
            // A runtime that has shut down drops the task at once.
            let task = Task(Arc::clone(&self.alarm));
            self.alarm.runtime.spawn(task.run());
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
            .field("begin", &self.origin.begin)
            .finish_non_exhaustive()
    }
}
