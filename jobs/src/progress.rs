//! What a run tells of itself, and how it is steered.
//!
//! The runner and the handles share one [`Shared`]: the runner writes the progress at the end of
//! each poll, and the handles write wishes and wake the runner. Neither waits for the other for
//! longer than a copy of the counts.

use core::fmt;
use core::task::Waker;
use core::time::Duration;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::task::AtomicWaker;

/// The state of a run, at one moment. Returned by [`Handle::progress`].
///
/// ```
/// use portcullis_jobs::Progress;
/// fn show(progress: &Progress) {
///     println!(
///         "{} written, {} to do, done in {:?}",
///         progress.written,
///         progress.waiting + progress.in_flight,
///         progress.time_left,
///     );
/// }
/// # show(&Progress::default());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Progress {
    /// The operations that are written.
    pub written: u64,
    /// Their cost, in permits.
    pub written_cost: u64,
    /// The operations that are given up.
    pub given_up: u64,
    /// How often an operation was released: once for each attempt.
    pub sends: u64,
    /// How often an operation was put back to be tried again.
    pub retries: u64,
    /// The batches that the service did not write, or not in whole, because it was overloaded.
    pub overloads: u64,
    /// The batches whose write took longer than the longest time.
    pub timeouts: u64,
    /// The operations that were settled, and whose acknowledgement failed.
    pub unacknowledged: u64,
    /// The operations that the runner holds and has not released: they wait for permits, or for
    /// another attempt.
    pub waiting: u64,
    /// The operations that are released, and not written or put back yet.
    pub in_flight: u64,
    /// The cost of the operations that the runner holds: those that wait and those in flight, in
    /// permits. It is a cost, not a rate. See [`Jobs::look_ahead`](crate::Jobs::look_ahead)
    /// before you compute a demand from it.
    pub needs: u64,
    /// The permits taken, for all attempts.
    pub permits: u64,
    /// The speed, as a part of the full one, from 1/64 to 1: see
    /// [`SlowDown`](crate::SlowDown).
    pub speed: f64,
    /// Whether the runner pauses.
    pub paused: bool,
    /// The time since the first release.
    pub elapsed: Duration,
    /// The estimated time until the last operation is written: the cost that is left, at the mean
    /// rate of the run so far. `None` before the first write, and if the cost that is left is not
    /// known: see [`Jobs::total_cost`](crate::Jobs::total_cost).
    pub time_left: Option<Duration>,
}

impl Progress {
    /// Returns the estimated time for `cost` more permits, at the mean rate so far.
    pub(crate) fn estimate(&self, cost: u64) -> Option<Duration> {
        if cost == 0 {
            return Some(Duration::ZERO);
        }
        let nanos = self.elapsed.as_nanos() * u128::from(cost);
        let nanos = nanos.checked_div(self.written_cost.into())?;
        u64::try_from(nanos).ok().map(Duration::from_nanos)
    }
}

/// Something that happened in a run. See [`Jobs::on_event`](crate::Jobs::on_event).
///
/// ```
/// use portcullis_jobs::Event;
/// fn log(event: &Event) {
///     if let Event::Paused { time } = event {
///         println!("the service is overloaded: a pause of {time:?}");
///     }
/// }
/// # log(&Event::Resumed);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A batch was released: its write begins.
    Released {
        /// The number of operations.
        operations: usize,
        /// Their cost, in permits.
        cost: u64,
        /// The permits that were taken for it: more than the cost at a lower speed, or with a debt.
        permits: u64,
    },
    /// Operations were written.
    Written {
        /// The number of operations.
        operations: usize,
        /// Their cost, in permits.
        cost: u64,
    },
    /// Operations were put back, to be tried again.
    Retrying {
        /// The number of operations.
        operations: usize,
    },
    /// Operations were given up.
    GivenUp {
        /// The number of operations.
        operations: usize,
    },
    /// A write took longer than the longest time, and was cancelled.
    TimedOut {
        /// The number of operations.
        operations: usize,
    },
    /// A pause begins or becomes longer.
    Paused {
        /// The time from now to its end.
        time: Duration,
    },
    /// A pause is over.
    Resumed,
    /// An acknowledgement failed, or took longer than the longest time.
    Unacknowledged {
        /// The number of operations.
        operations: usize,
    },
    /// The run is over.
    Finished,
}

/// What the handles and the runner share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    state: Mutex<State>,
    waker: AtomicWaker,
}

/// What is behind the mutex.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// As of the last poll.
    pub(crate) progress: Progress,
    /// A pause that a handle has asked for.
    pub(crate) pause: Option<Wish>,
    /// Whether a handle has ended the run.
    pub(crate) stop: bool,
}

/// A pause that a handle asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    /// How long the pause is; `None` for as long as the settings say.
    pub(crate) time: Option<Duration>,
}

impl Shared {
    /// Locks the state.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        // The state is complete at any point, so poisoning does no harm.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the waker that a handle wakes.
    pub(crate) fn register(&self, waker: &Waker) {
        self.waker.register(waker);
    }
}

/// Observes and steers a run, from any task or thread. Created by
/// [`Jobs::handle`](crate::Jobs::handle). Clones refer to the same run.
///
/// ```
/// use core::time::Duration;
/// use futures_util::stream;
/// use portcullis_async::{Queue, ThreadTimer};
/// use portcullis_core::{Rate, TokenBucket};
/// use portcullis_jobs::{Jobs, WriteOutcome};
///
/// let queue = Queue::new(TokenBucket::new(Rate::per_second(1_000), 5), ThreadTimer::new(), 5);
/// let jobs = Jobs::new(&queue, ThreadTimer::new());
/// let handle = jobs.handle();
/// let run = jobs.run(stream::iter(0..10), |_batch| async { WriteOutcome::Done });
/// let report = futures_executor::block_on(run);
/// assert_eq!((report.progress.written, handle.progress().written), (10, 10));
/// ```
#[derive(Clone)]
pub struct Handle {
    pub(crate) shared: Arc<Shared>,
}

impl Handle {
    /// Returns the state of the run: as it was when the runner was last polled.
    ///
    /// # Cost
    ///
    /// Locks a mutex, which the runner holds for moments only.
    ///
    /// ```
    /// # use portcullis_async::{Queue, ThreadTimer};
    /// # use portcullis_core::{Rate, TokenBucket};
    /// # use portcullis_jobs::Jobs;
    /// let queue = Queue::new(TokenBucket::new(Rate::per_second(5), 5), ThreadTimer::new(), 5);
    /// let jobs = Jobs::new(&queue, ThreadTimer::new());
    /// assert_eq!(jobs.handle().progress().written, 0);
    /// ```
    pub fn progress(&self) -> Progress {
        self.shared.state().progress
    }

    /// Pauses the run for the time of [`SlowDown::pause`](crate::SlowDown::pause): nothing is
    /// released. What is in flight continues. Has no effect during a pause.
    ///
    /// ```
    /// # use portcullis_async::{Queue, ThreadTimer};
    /// # use portcullis_core::{Rate, TokenBucket};
    /// # use portcullis_jobs::Jobs;
    /// let queue = Queue::new(TokenBucket::new(Rate::per_second(5), 5), ThreadTimer::new(), 5);
    /// let jobs = Jobs::new(&queue, ThreadTimer::new());
    /// jobs.handle().pause();
    /// ```
    pub fn pause(&self) {
        self.shared.state().pause = Some(Wish { time: None });
        self.shared.waker.wake();
    }

    /// Pauses the run for `time`, as [`pause`](Self::pause) does.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_async::{Queue, ThreadTimer};
    /// # use portcullis_core::{Rate, TokenBucket};
    /// # use portcullis_jobs::Jobs;
    /// let queue = Queue::new(TokenBucket::new(Rate::per_second(5), 5), ThreadTimer::new(), 5);
    /// let jobs = Jobs::new(&queue, ThreadTimer::new());
    /// jobs.handle().pause_for(Duration::from_secs(2));
    /// ```
    pub fn pause_for(&self, time: Duration) {
        self.shared.state().pause = Some(Wish { time: Some(time) });
        self.shared.waker.wake();
    }

    /// Ends the run early. Nothing more is taken from the source, and nothing more is released. The
    /// run is over once all that is in flight is settled. The operations that the runner still
    /// holds are not acknowledged, so their queue delivers them again.
    ///
    /// ```
    /// # use futures_util::stream;
    /// # use portcullis_async::{Queue, ThreadTimer};
    /// # use portcullis_core::{Rate, TokenBucket};
    /// # use portcullis_jobs::{Jobs, RunEnd, WriteOutcome};
    /// let queue = Queue::new(TokenBucket::new(Rate::per_second(5), 5), ThreadTimer::new(), 5);
    /// let jobs = Jobs::new(&queue, ThreadTimer::new());
    /// jobs.handle().stop();
    /// let run = jobs.run(stream::pending::<u32>(), |_batch| async { WriteOutcome::Done });
    /// assert_eq!(futures_executor::block_on(run).ended, RunEnd::Stopped);
    /// ```
    pub fn stop(&self) {
        self.shared.state().stop = true;
        self.shared.waker.wake();
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let progress = self.progress();
        f.debug_struct("Handle")
            .field("progress", &progress)
            .finish_non_exhaustive()
    }
}

/// What a run has done. Returned by [`Jobs::run`](crate::Jobs::run).
///
/// ```
/// use portcullis_jobs::{Report, RunEnd};
/// fn is_complete(report: &Report) -> bool {
///     report.ended == RunEnd::Finished && report.progress.given_up == 0
/// }
/// # let _ = is_complete;
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Report {
    /// Why the run is over.
    pub ended: RunEnd,
    /// Its final counts. `waiting` are the operations that were taken from the source and neither
    /// written nor given up: their queue delivers them again.
    pub progress: Progress,
}

/// Why a run is over.
///
/// ```
/// use portcullis_jobs::RunEnd;
/// assert_ne!(RunEnd::Finished, RunEnd::Stopped);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RunEnd {
    /// The source has ended, and all its operations are settled.
    Finished,
    /// [`Handle::stop`] was called.
    Stopped,
    /// The queue of permits was closed.
    Closed,
}
