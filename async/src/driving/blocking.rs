//! Waits of threads, in the same list as those of tasks.
#![allow(unsafe_code)]

use core::cell::Cell;
use core::hint;
use core::pin::{Pin, pin};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire as Acq, Relaxed, Release};
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::sync::Arc;
use std::task::Wake;
use std::thread::{self, Thread};

use portcullis_core::{Clock, Lease, QueueLimiter, Timestamp};

use crate::lock::RawLock;
use crate::queues::acquire::{Anchored, Queued};
use crate::queues::hook::Hook;
use crate::queues::queue::Queue;
use crate::waiting::drivers::DriverSlot;
use crate::waiting::limiter_source::LimiterSource;
use crate::waiting::queue_config::{Key, QueueConfig};
use crate::waiting::wait_queue::{Caller, Next, Place, WaitQueue};
use crate::waiting::wake_batch::WakeBatch;
use crate::{Acquire, Rejected};

/// What a thread does that waits.
const AWAKE: u32 = 0;
/// Somebody has woken it.
const WOKEN: u32 = 1;
/// It waits for the word to change.
const WAITS: u32 = 2;
/// It is parked, for a time.
const PARKED: u32 = 3;

/// Wakes a thread.
struct Sleeper {
    word: AtomicU32,
    thread: Thread,
}

impl Sleeper {
    /// Sleeps until it is woken, or for `time`.
    fn sleep(&self, time: Option<Duration>) {
        let how = if time.is_some() { PARKED } else { WAITS };
        // Acquire: sees what was done before it was woken.
        if self.word.compare_exchange(AWAKE, how, Acq, Acq).is_ok() {
            match time {
                Some(time) => thread::park_timeout(time),
                None => {
                    while self.word.load(Relaxed) == WAITS {
                        atomic_wait::wait(&self.word, WAITS);
                    }
                }
            }
        }
        self.word.swap(AWAKE, Acq);
    }
}

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        match self.word.swap(WOKEN, Release) {
            WAITS => atomic_wait::wake_one(&raw const self.word),
            PARKED => self.thread.unpark(),
            _ => {}
        }
    }
}

std::thread_local! {
    /// One for all waits of a thread; not there while it waits, so that a waker that waits itself
    /// gets another one.
    static SLEEPER: Cell<Option<(Arc<Sleeper>, Waker)>> = const { Cell::new(None) };
}

/// The thread's sleeper, or a new one.
fn with_sleeper<T>(work: impl FnOnce(&Sleeper, &Waker) -> T) -> T {
    let (sleeper, waker) = SLEEPER
        .try_with(Cell::take)
        .ok()
        .flatten()
        .unwrap_or_else(|| {
            let sleeper = Arc::new(Sleeper {
                word: AtomicU32::new(AWAKE),
                thread: thread::current(),
            });
            (Arc::clone(&sleeper), Waker::from(sleeper))
        });
    let outcome = work(&sleeper, &waker);
    // It is lost where the thread ends at this moment.
    _ = SLEEPER.try_with(|place| place.set(Some((sleeper, waker))));
    outcome
}

/// How often one looks for permits before one queues: for some microseconds, less than it takes to
/// sleep and wake.
const SPINS: u32 = 100;

impl<Q: QueueConfig> WaitQueue<Q> {
    /// Whether permits are out that a release brings back.
    fn is_held(&self) -> bool {
        self.source.held() > 0
    }

    /// Whether it is worth a few spins: permits are out, and the next release is for a newcomer, as
    /// no request waits.
    fn is_soon(&self, key: Key<Q>) -> bool {
        !self.is_waited_for(key) && !self.is_closed() && self.is_held()
    }
}

impl<P: Anchored> Acquire<P> {
    /// Waits in this thread. Needs no driver: one of the threads that wait always drives the queue,
    /// even beside another driver, whose timer may be unable to run while this thread sleeps.
    ///
    /// If the permits have to be released, it tries for some microseconds before it queues. In the
    /// queue the thread sleeps.
    ///
    /// # Errors
    ///
    /// As of the future.
    ///
    /// ```
    /// use portcullis_async::{Acquire, Queue};
    /// use portcullis_core::{MonotonicClock, Rate, TokenBucket};
    /// use std::sync::Arc;
    /// let queue: Arc<Queue<_, _>> = Arc::new(Queue::new(
    ///     TokenBucket::new(Rate::per_second(1_000), 1),
    ///     MonotonicClock::new(),
    ///     9,
    /// ));
    /// for _ in 0..3 {
    ///     let lease = Acquire::new(Arc::clone(&queue), 1, 1).block()?;
    ///     assert_eq!(lease.permits(), 1);
    /// }
    /// # Ok::<(), portcullis_async::Rejected>(())
    /// ```
    pub fn block(mut self) -> Result<Lease<P>, Rejected> {
        for _ in 0..SPINS {
            if let Some((queue, (permits, receipt))) = self.take_now() {
                return Ok(Lease::from_grant(queue, permits, receipt));
            }
            let Some(queue) = self.queue() else { break };
            if !queue.wait_queue().is_soon(queue.key()) {
                break;
            }
            hint::spin_loop();
        }
        with_sleeper(|sleeper, waker| {
            let deadline = self.deadline();
            let mut wait = Blocked {
                wait: pin!(self),
                member: pin!(Member::new()),
            };
            let mut context = Context::from_waker(waker);
            loop {
                if let Poll::Ready((queue, outcome)) = wait.wait.as_mut().poll_waiting(&mut context)
                {
                    let mut member = wait.member.as_mut();
                    return wait.wait.as_mut().conclude(queue, outcome, |wait_queue| {
                        member.as_mut().leave(wait_queue);
                    });
                }
                let Some(queue) = wait.wait.queue() else {
                    continue;
                };
                let wait_queue = queue.wait_queue();
                let next = match wait.member.as_mut().drive(wait_queue, waker) {
                    // No later than its own deadline, which has a timer.
                    Some(Next::At(at)) => at,
                    _ => deadline,
                };
                // What is to be released may come sooner than one falls asleep.
                let mut spins = if wait_queue.is_held() { SPINS } else { 0 };
                while spins > 0 && wait.wait.is_waiting() {
                    hint::spin_loop();
                    spins -= 1;
                }
                if spins > 0 {
                    continue;
                }
                // At its deadline it is woken, and drives once more, which ends its wait.
                let now = wait_queue.clock.now();
                if next > now {
                    sleeper.sleep((next < Timestamp::MAX).then(|| next.saturating_since(now)));
                }
            }
        })
    }
}

/// A thread's place among those that see to the time.
struct Member(DriverSlot);

impl Member {
    const fn new() -> Self {
        Self(DriverSlot::new())
    }

    /// Grants what is due, and says when something is due next; `None` if another thread sees to
    /// that.
    fn drive<Q: QueueConfig>(
        self: Pin<&mut Self>,
        wait_queue: &WaitQueue<Q>,
        waker: &Waker,
    ) -> Option<Next> {
        // SAFETY: the member is not moved.
        let member = unsafe { self.get_unchecked_mut() }.0.coming();
        let mut batch = WakeBatch::new();
        // SAFETY: it is pinned, and `Blocked` takes it out.
        let look = unsafe { wait_queue.next(Caller::Thread(member, waker), &mut batch) };
        batch.resume();
        look.filter(|look| look.drives).map(|look| look.next)
    }

    fn leave<Q: QueueConfig>(self: Pin<&mut Self>, wait_queue: &WaitQueue<Q>) {
        // SAFETY: the member is not moved.
        if let Some(member) = unsafe { self.get_unchecked_mut() }.0.leaving() {
            // SAFETY: it has driven this wait queue alone.
            unsafe { wait_queue.leave(Place::Thread(member)) };
        }
    }
}

/// A wait of a thread, which leaves the queue's drivers, whatever panics. It lets go of the lock as
/// it is dropped, after this.
struct Blocked<'w, P: Anchored> {
    wait: Pin<&'w mut Acquire<P>>,
    member: Pin<&'w mut Member>,
}

impl<P: Anchored> Drop for Blocked<'_, P> {
    fn drop(&mut self) {
        // Not there if it was ready: then it has left.
        if let Some(queue) = self.wait.queue() {
            self.member.as_mut().leave(queue.wait_queue());
        }
    }
}

impl<L: QueueLimiter, C: Clock, R: RawLock, H: Hook> Queue<L, C, R, H> {
    /// Waits for `n` permits as [`acquire`](Self::acquire) does, in this thread: see
    /// [`Acquire::block`].
    ///
    /// # Errors
    ///
    /// As of `acquire`.
    ///
    /// ```
    /// # use portcullis_async::Queue;
    /// # use portcullis_core::{MonotonicClock, Rate, TokenBucket};
    /// let queue: Queue<_, _> = Queue::new(
    ///     TokenBucket::new(Rate::per_second(1_000), 1),
    ///     MonotonicClock::new(),
    ///     9,
    /// );
    /// for _ in 0..3 {
    ///     queue.blocking_acquire(1)?;
    /// }
    /// # Ok::<(), portcullis_async::Rejected>(())
    /// ```
    #[inline]
    pub fn blocking_acquire(&self, n: u32) -> Result<Lease<&Self>, Rejected> {
        self.blocking_acquire_until(n, Timestamp::MAX)
    }

    /// The same, for no longer than `timeout` by the queue's clock.
    ///
    /// # Errors
    ///
    /// As of `acquire`; [`Rejected::Deadline`] after that time, or at once if it cannot be met.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_async::{Queue, Rejected};
    /// # use portcullis_core::{Concurrency, MonotonicClock};
    /// let queue: Queue<_, _> = Queue::new(Concurrency::new(1), MonotonicClock::new(), 9);
    /// let _held = queue.blocking_acquire(1)?;
    /// let second = queue.blocking_acquire_for(1, Duration::from_millis(5));
    /// assert!(matches!(second, Err(Rejected::Deadline { permits: 1, .. })));
    /// # Ok::<(), Rejected>(())
    /// ```
    pub fn blocking_acquire_for(
        &self,
        n: u32,
        timeout: Duration,
    ) -> Result<Lease<&Self>, Rejected> {
        self.blocking_acquire_until(n, self.clock().now().saturating_add(timeout))
    }

    /// The same, until `deadline` by the queue's clock; [`Timestamp::MAX`] is none.
    ///
    /// # Errors
    ///
    /// As of `acquire`; [`Rejected::Deadline`] when it is over, or at once if it cannot be met.
    ///
    /// ```
    /// # use portcullis_async::{Queue, Rejected};
    /// # use portcullis_core::{Clock, Concurrency, MonotonicClock, Timestamp};
    /// let queue: Queue<_, _> = Queue::new(Concurrency::new(1), MonotonicClock::new(), 9);
    /// let _held = queue.blocking_acquire(1)?;
    /// let second = queue.blocking_acquire_until(1, queue.clock().now());
    /// assert!(matches!(second, Err(Rejected::Deadline { .. })));
    /// # Ok::<(), Rejected>(())
    /// ```
    pub fn blocking_acquire_until(
        &self,
        n: u32,
        deadline: Timestamp,
    ) -> Result<Lease<&Self>, Rejected> {
        Acquire::new(self, n, n).until(deadline).block()
    }
}
