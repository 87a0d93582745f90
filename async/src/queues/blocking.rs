//! Blocking waits: threads wait in the same wait lists as futures.
//!
//! A thread polls its own future, and sleeps between two polls. It is also a driver of the queue:
//! one of the blocked threads grants what is due, so that they need no timer.
//!
//! ```text
//!   spin --a permit is free--> granted
//!     | none is free
//!     v
//!   queue, poll --settled--> leave the drivers, return
//!     ^   | waiting
//!     |   v
//!     +-- drive, spin, sleep until the waker runs or something is due
//! ```
#![allow(unsafe_code)]

use core::cell::Cell;
use core::hint;
use core::pin::{Pin, pin};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{self, Relaxed, Release};
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::sync::Arc;
use std::task::Wake;
use std::thread::{self, Thread};

use portcullis_core::queue::QueueLimiter;
use portcullis_core::{Clock, Lease, Timestamp};

use crate::driving::sleep;
use crate::lock::RawLock;
use crate::queues::acquire::{Acquire, Anchored, Queued};
use crate::queues::queue::Queue;
use crate::waiting::drivers::DriverSlot;
use crate::waiting::hook::Hook;
use crate::waiting::limiter_source::LimiterSource;
use crate::waiting::queue_clock::QueueClock;
use crate::waiting::queue_config::{Key, QueueConfig};
use crate::waiting::rejected::Rejected;
use crate::waiting::wait_queue::driver::{Caller, Next, Place};
use crate::waiting::wait_queue::{HasWaitQueue, WaitQueue};
use crate::waiting::wake_batch::WakeBatch;

/// A state of `Sleeper::word`: the thread is awake.
const AWAKE: u32 = 0;
/// The waker has run, and the thread has not noticed yet.
const WOKEN: u32 = 1;
/// The thread sleeps until the word changes.
const WAITS: u32 = 2;
/// The thread is parked with a timeout.
const PARKED: u32 = 3;

/// Lets one thread sleep, and wakes it.
struct Sleeper {
    word: AtomicU32,
    thread: Thread,
}

impl Sleeper {
    /// Sleeps until the waker runs, or for `time`. Returns at once if the waker has run before.
    fn sleep(&self, time: Option<Duration>) {
        let how = if time.is_some() { PARKED } else { WAITS };
        let acquire = Ordering::Acquire;
        // Acquire: sees all that was done before the wake-up.
        let fell = self.word.compare_exchange(AWAKE, how, acquire, acquire);
        if fell.is_ok() {
            match time {
                Some(time) => thread::park_timeout(time),
                None => {
                    while self.word.load(Relaxed) == WAITS {
                        sleep::wait(&self.word, WAITS);
                    }
                }
            }
        }
        self.word.swap(AWAKE, acquire);
    }
}

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        match self.word.swap(WOKEN, Release) {
            WAITS => sleep::wake_one(&raw const self.word),
            PARKED => self.thread.unpark(),
            _ => {}
        }
    }
}

std::thread_local! {
    /// The sleeper that all waits of the thread share. `None` while the thread waits: if a waker
    /// that runs in the meantime waits itself, it gets a new sleeper.
    static SLEEPER: Cell<Option<(Arc<Sleeper>, Waker)>> = const { Cell::new(None) };
}

/// Runs `work` with the thread's sleeper, or with a new one.
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
    // While the thread ends, its locals may be gone. Then the sleeper is dropped.
    _ = SLEEPER.try_with(|place| place.set(Some((sleeper, waker))));
    outcome
}

/// How often a thread looks for permits before it queues or sleeps. This takes some microseconds,
/// less than sleeping and waking up.
const SPINS: u32 = 100;

impl<Q: QueueConfig> WaitQueue<Q> {
    /// Returns whether permits are held that a release will return.
    fn is_held(&self) -> bool {
        self.source.is_held()
    }

    /// Returns whether spinning is worthwhile: permits are held, and no request waits, so that a
    /// new request can take the next released permits.
    fn is_release_expected(&self, key: Key<Q>) -> bool {
        !self.is_waited_for(key) && !self.is_closed() && self.is_held()
    }
}

impl<P: Anchored> Acquire<P> {
    /// Blocks the thread until the permits are granted or the request is rejected. Needs the
    /// feature `std`.
    ///
    /// Needs no other driver: one of the blocked threads always drives the queue. This holds even
    /// if the queue has another driver, because the timer of that driver may be unable to run while
    /// this thread sleeps.
    ///
    /// If the permits have to be released by their holders, the thread spins for some microseconds
    /// before it queues. A queued thread sleeps.
    ///
    /// # Errors
    ///
    /// As for the future: see [`Queue::acquire`](Queue#method.acquire).
    ///
    /// ```
    /// use portcullis_async::{Acquire, Queue, ThreadTimer};
    /// use portcullis_core::{Rate, TokenBucket};
    /// use std::sync::Arc;
    /// let queue = Arc::new(Queue::new(
    ///     TokenBucket::new(Rate::per_second(1_000), 1),
    ///     ThreadTimer::new(),
    ///     9,
    /// ));
    /// for _ in 0..3 {
    ///     let lease = Acquire::new(Arc::clone(&queue), 1).block()?;
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
            if !queue.wait_queue().is_release_expected(queue.key()) {
                break;
            }
            hint::spin_loop();
        }
        with_sleeper(|sleeper, waker| {
            let mut blocked = Blocked {
                acquire: pin!(self),
                driver: pin!(ThreadDriver::new()),
            };
            let mut context = Context::from_waker(waker);
            loop {
                let Blocked { acquire, driver } = &mut blocked;
                if let Poll::Ready((queue, outcome)) =
                    acquire.as_mut().poll_waiting(&mut context, true)
                {
                    return acquire.as_mut().conclude(queue, outcome, |wait_queue| {
                        driver.as_mut().leave(wait_queue);
                    });
                }
                let queue = acquire.queue().expect("a pending future has a queue");
                let wait_queue = queue.wait_queue();
                let next = match driver.as_mut().drive(wait_queue, waker) {
                    // `at` is no later than this wait's own deadline, which is among the timers.
                    Some(Next::At(at)) => at,
                    _ => acquire.deadline(),
                };
                // A held permit may be released before the thread falls asleep, so spin first.
                let mut spins = if wait_queue.is_held() { SPINS } else { 0 };
                while spins > 0 && acquire.is_waiting() {
                    hint::spin_loop();
                    spins -= 1;
                }
                if spins > 0 {
                    continue;
                }
                // At its deadline the thread wakes up and drives once more, which ends the wait.
                let now = wait_queue.clock.now();
                if next > now {
                    sleeper.sleep((next < Timestamp::MAX).then(|| next.saturating_since(now)));
                }
            }
        })
    }
}

/// A blocked thread's node among the drivers of the queue.
struct ThreadDriver(DriverSlot);

impl ThreadDriver {
    const fn new() -> Self {
        Self(DriverSlot::new())
    }

    /// Grants what is due, and returns when something is due next. Returns `None` if another thread
    /// drives the queue.
    fn drive<Q: QueueConfig>(
        self: Pin<&mut Self>,
        wait_queue: &WaitQueue<Q>,
        waker: &Waker,
    ) -> Option<Next> {
        // SAFETY: the driver node is not moved.
        let node = unsafe { self.get_unchecked_mut() }.0.coming();
        let mut batch = WakeBatch::new();
        // SAFETY: the node is pinned, and `Blocked` removes it.
        let look = unsafe { wait_queue.next(Caller::Thread(node, waker), &mut batch) };
        batch.resume();
        look.filter(|look| look.drives).map(|look| look.next)
    }

    /// Leaves the drivers of the queue, if the thread has driven it.
    fn leave<Q: QueueConfig>(self: Pin<&mut Self>, wait_queue: &WaitQueue<Q>) {
        // SAFETY: the driver node is not moved.
        if let Some(node) = unsafe { self.get_unchecked_mut() }.0.leaving() {
            // SAFETY: the node has driven no other wait queue.
            unsafe { wait_queue.leave(Place::Thread(node)) };
        }
    }
}

/// The wait of a blocked thread. When dropped, also by a panic, it leaves the drivers of the queue.
/// The pinned `Acquire` is dropped after it, and then leaves its wait list.
struct Blocked<'w, P: Anchored> {
    acquire: Pin<&'w mut Acquire<P>>,
    driver: Pin<&'w mut ThreadDriver>,
}

impl<P: Anchored> Drop for Blocked<'_, P> {
    fn drop(&mut self) {
        // There is no queue once the wait is over. `conclude` has then left the drivers already.
        if let Some(queue) = self.acquire.queue() {
            self.driver.as_mut().leave(queue.wait_queue());
        }
    }
}

impl<L: QueueLimiter, C: QueueClock, R: RawLock, H: Hook> Queue<L, C, R, H> {
    /// Takes `n` permits, and blocks the thread until they are granted:
    /// [`acquire`](Queue#method.acquire) for threads. See [`Acquire::block`]. Needs the feature
    /// `std`.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Queue#method.acquire).
    ///
    /// ```
    /// # use portcullis_async::{Queue, ThreadTimer};
    /// # use portcullis_core::{Rate, TokenBucket};
    /// let queue = Queue::new(
    ///     TokenBucket::new(Rate::per_second(1_000), 1),
    ///     ThreadTimer::new(),
    ///     9,
    /// );
    /// for _ in 0..3 {
    ///     let _ = queue.blocking_acquire(1)?;
    /// }
    /// # Ok::<(), portcullis_async::Rejected>(())
    /// ```
    #[inline]
    pub fn blocking_acquire(&self, n: u32) -> Result<Lease<&Self>, Rejected> {
        Acquire::new(self, n).block()
    }
}
