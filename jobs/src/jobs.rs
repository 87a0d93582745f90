//! The runner that users build: its settings, and the future that runs it.
//!
//! [`Jobs`] is only settings. `run` moves them into a [`Run`], which is the loop.

use core::convert::Infallible;
use core::fmt;
use core::future::{Future, poll_fn, ready};
use core::pin::pin;
use core::time::Duration;
use std::sync::Arc;

use futures_core::Stream;
use portcullis_async::{PerItem, Timer, Weight};

use crate::operation::{Operation, SettledBatch, Written};
use crate::overload::{Overload, SlowDown};
use crate::permits::Permits;
use crate::progress::{Event, Handle, Report, Shared};
use crate::run::{Options, Run};
use crate::work::Functions;

/// A runner of paced jobs: its settings. [`run`](Self::run) runs it.
///
/// `P` is the queue of permits, `C` the timer, and `W` the cost of an operation: 1 by default. See
/// the [crate] for what a runner does, and for its bound.
///
/// Several runners can share a queue, for example one for each kind of operation. Then they share
/// its permits, in order.
///
/// **Room.** The queue must have room for what the runner waits for: at most the burst of its
/// limiter. If the queue rejects a request, the runner tries again after an
/// [interval](Self::interval).
///
/// **Cost.** Two or three allocations for each batch, and one for each operation. The future has
/// about a kilobyte, and the space of two waits.
///
/// ```
/// use core::time::Duration;
/// use futures_util::stream;
/// use portcullis_async::{Queue, ThreadTimer};
/// use portcullis_core::{Rate, TokenBucket};
/// use portcullis_jobs::{Jobs, WriteOutcome};
///
/// let queue = Queue::new(TokenBucket::new(Rate::per_second(500), 10), ThreadTimer::new(), 10);
/// let jobs = Jobs::new(&queue, ThreadTimer::new()).attempts(3);
/// let run = jobs.run_acknowledged(
///     stream::iter([7, 8, 9]),
///     |batch| async move {
///         // The service fails at first.
///         if batch[0].attempt() == 1 { WriteOutcome::Retry } else { WriteOutcome::Done }
///     },
///     async |settled| {
///         for delivery in &settled.written {
///             println!("remove {} from its queue", delivery.item());
///         }
///         Ok::<(), std::io::Error>(())
///     },
/// );
/// let report = futures_executor::block_on(run);
/// assert_eq!((report.progress.written, report.progress.retries), (3, 3));
/// ```
#[must_use = "jobs do nothing unless they are run"]
pub struct Jobs<'q, P, C, W = PerItem> {
    permits: &'q P,
    timer: C,
    weight: W,
    slow_down: SlowDown,
    options: Options<'q>,
    shared: Arc<Shared>,
}

impl<'q, P: Permits, C: Timer> Jobs<'q, P, C> {
    /// Creates a runner whose operations take permits from `permits` and cost 1 each. `timer` is
    /// for this runner alone: a queue has a timer of its own.
    ///
    /// ```
    /// # use portcullis_async::{Queue, ThreadTimer};
    /// # use portcullis_core::{Rate, TokenBucket};
    /// # use portcullis_jobs::Jobs;
    /// let queue = Queue::new(TokenBucket::new(Rate::per_second(5), 5), ThreadTimer::new(), 5);
    /// let jobs = Jobs::new(&queue, ThreadTimer::new());
    /// # let _ = jobs;
    /// ```
    pub fn new(permits: &'q P, timer: C) -> Self {
        Self {
            permits,
            timer,
            weight: PerItem,
            slow_down: SlowDown::new(),
            options: Options {
                batch: 1,
                concurrency: 16,
                attempts: u32::MAX,
                back_off: (Duration::from_millis(100), Duration::from_secs(10)),
                buffer: 1_000,
                look_ahead: 0,
                interval: Duration::from_millis(100),
                longest: Duration::from_mins(1),
                total_cost: None,
                observer: None,
            },
            shared: Arc::default(),
        }
    }
}

impl<'q, P: Permits, C: Timer, W> Jobs<'q, P, C, W> {
    /// Sets the cost of an operation, in permits: a function of the item, or another [`Weight`].
    /// Default: 1. An operation that costs 0 takes no permits.
    ///
    /// ```
    /// # use portcullis_async::{Queue, ThreadTimer};
    /// # use portcullis_core::{Rate, TokenBucket};
    /// # use portcullis_jobs::Jobs;
    /// # let queue = Queue::new(TokenBucket::new(Rate::per_second(5), 5), ThreadTimer::new(), 5);
    /// let by_bytes = |record: &Vec<u8>| u32::try_from(record.len()).unwrap_or(u32::MAX);
    /// let jobs = Jobs::new(&queue, ThreadTimer::new()).cost(by_bytes);
    /// # let _ = jobs;
    /// ```
    pub fn cost<V>(self, cost: V) -> Jobs<'q, P, C, V> {
        Jobs {
            permits: self.permits,
            timer: self.timer,
            weight: cost,
            slow_down: self.slow_down,
            options: self.options,
            shared: self.shared,
        }
    }

    /// Sets the most operations in one write, at least 1. Default 1. A batch has as many as there
    /// are at the moment, and as the available permits pay for; it does not wait to become larger.
    ///
    /// ```
    /// # use portcullis_async::{Queue, ThreadTimer};
    /// # use portcullis_core::{Rate, TokenBucket};
    /// # use portcullis_jobs::Jobs;
    /// # let queue = Queue::new(TokenBucket::new(Rate::per_second(5), 5), ThreadTimer::new(), 5);
    /// let jobs = Jobs::new(&queue, ThreadTimer::new()).batch(100);
    /// # let _ = jobs;
    /// ```
    pub fn batch(mut self, operations: usize) -> Self {
        self.options.batch = operations.max(1);
        self
    }

    /// Sets the most writes at once, at least 1. Default 16. A write counts until its operations
    /// are acknowledged.
    ///
    /// ```
    /// # use portcullis_async::{Queue, ThreadTimer};
    /// # use portcullis_core::{Rate, TokenBucket};
    /// # use portcullis_jobs::Jobs;
    /// # let queue = Queue::new(TokenBucket::new(Rate::per_second(5), 5), ThreadTimer::new(), 5);
    /// let jobs = Jobs::new(&queue, ThreadTimer::new()).concurrency(4);
    /// # let _ = jobs;
    /// ```
    pub fn concurrency(mut self, writes: usize) -> Self {
        self.options.concurrency = writes.max(1);
        self
    }

    /// Sets how often an operation is written at most, at least once. Default: without limit. An
    /// operation that has failed that often, for whatever reason, is given up.
    ///
    /// ```
    /// # use portcullis_async::{Queue, ThreadTimer};
    /// # use portcullis_core::{Rate, TokenBucket};
    /// # use portcullis_jobs::Jobs;
    /// # let queue = Queue::new(TokenBucket::new(Rate::per_second(5), 5), ThreadTimer::new(), 5);
    /// let jobs = Jobs::new(&queue, ThreadTimer::new()).attempts(5);
    /// # let _ = jobs;
    /// ```
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.options.attempts = attempts.max(1);
        self
    }

    /// Sets the delay before the second attempt of an operation that
    /// [failed](crate::WriteOutcome::Retry), and the longest delay. Each further attempt doubles
    /// it. Default 100 ms and 10 s.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_async::{Queue, ThreadTimer};
    /// # use portcullis_core::{Rate, TokenBucket};
    /// # use portcullis_jobs::Jobs;
    /// # let queue = Queue::new(TokenBucket::new(Rate::per_second(5), 5), ThreadTimer::new(), 5);
    /// let jobs = Jobs::new(&queue, ThreadTimer::new())
    ///     .back_off(Duration::from_secs(1), Duration::from_secs(60));
    /// # let _ = jobs;
    /// ```
    pub fn back_off(mut self, first: Duration, longest: Duration) -> Self {
        self.options.back_off = (first, longest);
        self
    }

    /// Sets the most operations that the runner holds and has not released, at least 1: those that
    /// wait for another attempt, and those of the [look-ahead](Self::look_ahead). Default 1,000.
    ///
    /// While it holds that many, it takes nothing from the source. With the operations in flight,
    /// it holds at most `buffer + concurrency * batch`.
    ///
    /// ```
    /// # use portcullis_async::{Queue, ThreadTimer};
    /// # use portcullis_core::{Rate, TokenBucket};
    /// # use portcullis_jobs::Jobs;
    /// # let queue = Queue::new(TokenBucket::new(Rate::per_second(5), 5), ThreadTimer::new(), 5);
    /// let jobs = Jobs::new(&queue, ThreadTimer::new()).buffer(50);
    /// # let _ = jobs;
    /// ```
    pub fn buffer(mut self, operations: usize) -> Self {
        self.options.buffer = operations.max(1);
        self
    }

    /// Sets how many operations the runner takes from the source before there is capacity for them.
    /// Default 0: then [`Progress::needs`](crate::Progress::needs) stays 0 until there are permits,
    /// so a member of a fleet that asks for as much as is needed asks for nothing, and gets
    /// nothing. With 1 or more, the costs of these operations count in `needs`.
    ///
    /// ```
    /// # use portcullis_async::{Queue, ThreadTimer};
    /// # use portcullis_core::{Rate, TokenBucket};
    /// # use portcullis_jobs::Jobs;
    /// # let queue = Queue::new(TokenBucket::new(Rate::per_second(5), 5), ThreadTimer::new(), 5);
    /// let jobs = Jobs::new(&queue, ThreadTimer::new()).look_ahead(100);
    /// # let _ = jobs;
    /// ```
    pub fn look_ahead(mut self, operations: usize) -> Self {
        self.options.look_ahead = operations;
        self
    }

    /// Sets the interval of releases. Default 100 ms. When all available permits are used, the
    /// runner looks again at the next interval, or earlier if the limiter is then full. With zero,
    /// each operation is released as soon as there are permits for it.
    ///
    /// The limiter determines how much is released at once. Use a limiter whose burst is what the
    /// rate allows in an interval, as that of a [`Pace`](crate::Pace).
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_async::{Queue, ThreadTimer};
    /// # use portcullis_core::{Rate, TokenBucket};
    /// # use portcullis_jobs::Jobs;
    /// # let queue = Queue::new(TokenBucket::new(Rate::per_second(5), 5), ThreadTimer::new(), 5);
    /// let jobs = Jobs::new(&queue, ThreadTimer::new()).interval(Duration::from_millis(20));
    /// # let _ = jobs;
    /// ```
    pub fn interval(mut self, interval: Duration) -> Self {
        self.options.interval = interval;
        self
    }

    /// Sets the longest time of a write, and that of an acknowledgement. Default 1 minute. A write
    /// that takes longer is dropped, and its operations have [failed](crate::WriteOutcome::Retry).
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_async::{Queue, ThreadTimer};
    /// # use portcullis_core::{Rate, TokenBucket};
    /// # use portcullis_jobs::Jobs;
    /// # let queue = Queue::new(TokenBucket::new(Rate::per_second(5), 5), ThreadTimer::new(), 5);
    /// let jobs = Jobs::new(&queue, ThreadTimer::new()).timeout(Duration::from_secs(5));
    /// # let _ = jobs;
    /// ```
    pub fn timeout(mut self, longest: Duration) -> Self {
        self.options.longest = longest;
        self
    }

    /// Sets how the runner reacts when the service is overloaded: see [`SlowDown`].
    ///
    /// ```
    /// # use portcullis_async::{Queue, ThreadTimer};
    /// # use portcullis_core::{Rate, TokenBucket};
    /// # use portcullis_jobs::{Jobs, SlowDown};
    /// # let queue = Queue::new(TokenBucket::new(Rate::per_second(5), 5), ThreadTimer::new(), 5);
    /// let jobs = Jobs::new(&queue, ThreadTimer::new()).slow_down(SlowDown::new().percent(75));
    /// # let _ = jobs;
    /// ```
    pub fn slow_down(mut self, slow_down: SlowDown) -> Self {
        self.slow_down = slow_down;
        self
    }

    /// States the cost of all operations of the source, in permits, if it is known: for
    /// [`Progress::time_left`](crate::Progress::time_left). Without it, the estimate needs a source
    /// that knows its length.
    ///
    /// ```
    /// # use portcullis_async::{Queue, ThreadTimer};
    /// # use portcullis_core::{Rate, TokenBucket};
    /// # use portcullis_jobs::Jobs;
    /// # let queue = Queue::new(TokenBucket::new(Rate::per_second(5), 5), ThreadTimer::new(), 5);
    /// let jobs = Jobs::new(&queue, ThreadTimer::new()).total_cost(100_000);
    /// # let _ = jobs;
    /// ```
    pub fn total_cost(mut self, permits: u64) -> Self {
        self.options.total_cost = Some(permits);
        self
    }

    /// Calls `observer` for each [`Event`], from within the runner. It must not block.
    ///
    /// ```
    /// # use portcullis_async::{Queue, ThreadTimer};
    /// # use portcullis_core::{Rate, TokenBucket};
    /// # use portcullis_jobs::Jobs;
    /// # let queue = Queue::new(TokenBucket::new(Rate::per_second(5), 5), ThreadTimer::new(), 5);
    /// let jobs = Jobs::new(&queue, ThreadTimer::new()).on_event(|event| println!("{event:?}"));
    /// # let _ = jobs;
    /// ```
    pub fn on_event(mut self, observer: impl Fn(&Event) + Send + Sync + 'q) -> Self {
        self.options.observer = Some(Box::new(observer));
        self
    }

    /// Returns a handle to the run, to observe and to steer it.
    ///
    /// ```
    /// # use portcullis_async::{Queue, ThreadTimer};
    /// # use portcullis_core::{Rate, TokenBucket};
    /// # use portcullis_jobs::Jobs;
    /// # let queue = Queue::new(TokenBucket::new(Rate::per_second(5), 5), ThreadTimer::new(), 5);
    /// let handle = Jobs::new(&queue, ThreadTimer::new()).handle();
    /// assert_eq!(handle.progress().in_flight, 0);
    /// ```
    pub fn handle(&self) -> Handle {
        Handle {
            shared: Arc::clone(&self.shared),
        }
    }

    /// Runs until the source has ended and all its operations are over. Nothing is acknowledged:
    /// for sources that are no durable queue.
    ///
    /// `write` gets a batch and returns what became of it: an [`WriteOutcome`](crate::WriteOutcome)
    /// or a [`Written`]. Dropping the future cancels all writes.
    ///
    /// # Panics
    ///
    /// If `write` panics.
    ///
    /// ```
    /// # use futures_util::stream;
    /// # use portcullis_async::{Queue, ThreadTimer};
    /// # use portcullis_core::{Rate, TokenBucket};
    /// # use portcullis_jobs::{Jobs, RunEnd, WriteOutcome};
    /// let queue = Queue::new(TokenBucket::new(Rate::per_second(500), 5), ThreadTimer::new(), 5);
    /// let jobs = Jobs::new(&queue, ThreadTimer::new());
    /// let run = jobs.run(stream::iter(0..10), |_batch| async { WriteOutcome::Done });
    /// assert_eq!(futures_executor::block_on(run).ended, RunEnd::Finished);
    /// ```
    pub fn run<S, O, F>(self, source: S, write: O) -> impl Future<Output = Report>
    where
        S: Stream,
        W: Weight<S::Item>,
        O: FnMut(Vec<Operation<S::Item>>) -> F,
        F: Future<Output: Into<Written>>,
    {
        self.run_acknowledged(source, write, |_| ready(Ok::<(), Infallible>(())))
    }

    /// Runs until the source has ended and all its operations are over, and acknowledges them.
    ///
    /// `acknowledge` gets the operations of a batch that are over, after their write: what is
    /// written, to be removed from its queue, and what is given up. If it fails, the operations are
    /// counted as [unacknowledged](crate::Progress::unacknowledged), and their queue delivers them
    /// again.
    ///
    /// **Cancellation.** Dropping the future cancels all writes and acknowledgements. An operation
    /// whose write or acknowledgement was cancelled may be written, and is delivered again. To end
    /// without that, call [`Handle::stop`].
    ///
    /// # Panics
    ///
    /// If `write` or `acknowledge` panics. Then nothing more is acknowledged.
    ///
    /// ```
    /// # use futures_util::stream;
    /// # use portcullis_async::{Queue, ThreadTimer};
    /// # use portcullis_core::{Rate, TokenBucket};
    /// # use portcullis_jobs::{Jobs, WriteOutcome};
    /// # use std::sync::Mutex;
    /// let queue = Queue::new(TokenBucket::new(Rate::per_second(500), 5), ThreadTimer::new(), 5);
    /// let removed = Mutex::new(0);
    /// let run = Jobs::new(&queue, ThreadTimer::new()).run_acknowledged(
    ///     stream::iter(0..10),
    ///     |_batch| async { WriteOutcome::Done },
    ///     async |settled| {
    ///         *removed.lock().unwrap() += settled.written.len();
    ///         Ok::<(), std::io::Error>(())
    ///     },
    /// );
    /// futures_executor::block_on(run);
    /// assert_eq!(removed.into_inner().unwrap(), 10);
    /// ```
    pub async fn run_acknowledged<S, O, F, D, A, E>(
        self,
        source: S,
        write: O,
        acknowledge: D,
    ) -> Report
    where
        S: Stream,
        W: Weight<S::Item>,
        O: FnMut(Vec<Operation<S::Item>>) -> F,
        F: Future<Output: Into<Written>>,
        D: FnMut(SettledBatch<S::Item>) -> A,
        A: Future<Output = Result<(), E>>,
    {
        let mut source = pin!(source);
        let mut wait = pin!(None);
        let work = Functions {
            weight: self.weight,
            write,
            acknowledge,
        };
        let overload = Overload::new(self.slow_down);
        let mut run = Run::new(
            self.permits,
            self.timer,
            work,
            self.options,
            overload,
            self.shared,
        );
        poll_fn(|context| run.poll(context, source.as_mut(), wait.as_mut())).await
    }
}

impl<P, C, W> fmt::Debug for Jobs<'_, P, C, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Jobs")
            .field("slow_down", &self.slow_down)
            .finish_non_exhaustive()
    }
}
