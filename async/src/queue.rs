//! A limiter and those who wait for its permits.
//!
//! State: a gate word (somebody waits; closed), a mark (something was released), and behind a lock the list of waits.
//!
//! ```text
//!   acquire ----- gate clear? ----> limiter.take ----> lease
//!      |                                 | denied
//!      v                                 v
//!   lock: raise the gate, ask the limiter once more, link           drop, release:  limiter.release
//!                                                                        |  gate raised?
//!   lock: drain: grant from the head what the limiter gives   <---  mark, try the lock
//!   unlock: mark seen? once more                                         (held: its holder sees the mark)
//! ```
//!
//! Invariants:
//!
//! - The gate is raised while anybody is linked. Whoever links raises it and then asks the limiter; whoever releases gives back and then looks at
//!   it: one of the two sees the other.
//! - No permit is free for the head while nobody is at the list: whoever frees some marks, and tries the lock; who held it then looks at the mark after
//!   it has let go. So nobody waits for the lock in order to release.
//! - The permits of a wait are taken for it by whoever drains, and given back if it goes unclaimed.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::num::NonZero;
use core::ptr::NonNull;
use core::task::Waker;
use core::{fmt, mem};

use portcullis_core::metadata::{self, Metadata};
use portcullis_core::{Clock, Denied, Idle, Limiter, LimiterId, Plan, Receipt, Retry, Timestamp};

use crate::list::{End, List, Node, State};
use crate::lock::RawLock;
#[cfg(all(feature = "std", not(loom)))]
use crate::lock::ThreadLock;
use crate::sync::atomic::Ordering::{self, Relaxed, SeqCst};
use crate::sync::atomic::{AtomicBool, AtomicU8, fence};
use crate::wakes::Wakes;
use crate::{Acquire, Rejected};

/// Who is granted first.
///
/// ```
/// use portcullis_async::Order;
/// assert_ne!(Order::OldestFirst, Order::NewestFirst);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// Strictly in the order in which they came. While anybody waits, nobody who comes later is granted anything, be it free; when the queue is
    /// full, newcomers are refused.
    OldestFirst,
    /// Whoever came last. Newcomers take what is free; when the queue is full, those who have waited longest are evicted.
    NewestFirst,
}

/// Bits of the gate.
const WAITED: u8 = 1;
const CLOSED: u8 = 2;

/// A limiter, and a queue of those who wait for its permits.
///
/// It owns the limiter, so that nobody gets past the queue, and is itself a [`Limiter`]: its leases are ordinary ones, it can be wrapped,
/// and be one of several. [`acquire`](Self::acquire) waits: what is free is granted at once, and touches no list; else
/// the request queues; and if the queue is full, it is refused at once, with a value. Dropping the future cancels.
///
/// **Bound.** The limiter's own, and at most [`max_permits`](Self::new) queued permits by at most [`max_waiters`](Self::with_max_waiters) waits.
///
/// **Time.** A release grants to those who wait. Where permits come back by time, somebody has to say so: [`advance`](Self::advance) grants what has come in and says when
/// to call again, [`drive`](Self::drive) does that in a task.
///
/// **Cost.** A wait lies in its future: no allocation. Cancelling is one unlink, wherever it stands. Wakers run outside of the list, 16 at a time.
///
/// **Progress.** Taking what is free is lock-free where the limiter is. A release never waits for another thread or context: if the list is held, it leaves a
/// mark, and the holder grants in its place (so the holder's work is not bounded by its own calls). Polling and dropping a wait take the lock `R`.
///
/// ```
/// use portcullis_async::{Order, Queue};
/// use portcullis_core::{Concurrency, ManualClock};
///
/// static CLOCK: ManualClock = ManualClock::new();
/// // Two at once; requests for up to 100 permits wait.
/// static WORKERS: Queue<Concurrency, &ManualClock> = Queue::new(Concurrency::new(2), &CLOCK, 100);
///
/// futures_executor::block_on(async {
///     let first = WORKERS.acquire(2).await?;
///     drop(first);
///     let second = WORKERS.acquire(1).await?;
///     assert_eq!(second.permits(), 1);
///     Ok::<(), portcullis_async::Rejected>(())
/// })?;
/// # Ok::<(), portcullis_async::Rejected>(())
/// ```
pub struct Queue<L, C, R = DefaultLock> {
    limiter: L,
    clock: C,
    order: Order,
    max_permits: u64,
    max_waiters: u32,
    gate: AtomicU8,
    /// Something may have become free since the list was last gone through.
    marked: AtomicBool,
    lock: R,
    inner: UnsafeCell<Inner>,
}

/// The lock of a [`Queue`] unless another one is named: [`ThreadLock`].
#[cfg(all(feature = "std", not(loom)))]
pub type DefaultLock = ThreadLock;
/// No lock, without `std`: name one.
#[cfg(not(all(feature = "std", not(loom))))]
pub type DefaultLock = ();

// SAFETY: `inner` is reached under the lock alone.
unsafe impl<L: Sync, C: Sync, R: Sync> Sync for Queue<L, C, R> {}

/// What the lock guards.
struct Inner {
    list: List,
    counts: QueueCounts,
    closed: bool,
    /// The driving task's, to be told that the time to call again may have changed.
    driver: Option<Waker>,
    /// The address of the one whose time was asked for last.
    told: Option<NonZero<usize>>,
}

/// Leaves the list as its gate has it, also when a limiter or a clock has panicked.
struct Leave<'q, L, C, R>(&'q Queue<L, C, R>);

impl<L, C, R> Drop for Leave<'_, L, C, R> {
    fn drop(&mut self) {
        // SAFETY: under the lock still, and nobody is at the list any more.
        if unsafe { (*self.0.inner.get()).list.end(End::First).is_none() } {
            self.0.gate.fetch_and(!WAITED, Relaxed);
        }
    }
}

/// Goes on with granting where a waker has panicked.
struct GrantAll<'q, L: Limiter, C: Clock, R: RawLock>(&'q Queue<L, C, R>);

impl<L: Limiter, C: Clock, R: RawLock> Drop for GrantAll<'_, L, C, R> {
    fn drop(&mut self) {
        self.0.wake_and_grant(Wakes::new());
    }
}

/// Counts of a [`Queue`]: from [`Queue::counts`].
///
/// ```
/// # use portcullis_async::{Queue, QueueCounts};
/// # use portcullis_core::{Concurrency, ManualClock};
/// let queue: Queue<_, _> = Queue::new(Concurrency::new(2), ManualClock::new(), 100);
/// assert_eq!(queue.counts(), QueueCounts::default());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueCounts {
    /// Those who wait.
    pub waiters: u32,
    /// The permits that they wait for: of each the fewest that it takes.
    pub permits: u64,
    /// Granted after a wait, so far; what was granted at once is not counted here. Wrapping, as all that follow.
    pub granted: u64,
    /// Refused because the queue was full.
    pub refused: u64,
    /// Evicted by newer ones.
    pub evicted: u64,
    /// Given up while they waited.
    pub cancelled: u64,
}

/// When a queue wants to be called again: from [`Queue::advance`].
///
/// ```
/// # use portcullis_async::{Next, Queue};
/// # use portcullis_core::{Concurrency, ManualClock};
/// let queue: Queue<_, _> = Queue::new(Concurrency::new(2), ManualClock::new(), 100);
/// assert_eq!(queue.advance(), Next::Idle);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nobody waits.
    Idle,
    /// At this instant, if nothing is released before.
    At(Timestamp),
    /// Not before something is released, which grants by itself; or the limit is changed.
    OnRelease,
}

impl<L, C, R: RawLock> Queue<L, C, R> {
    /// A queue of up to `max_permits` permits (0: nobody waits) around `limiter`, asked at the times of `clock`; [oldest first](Order::OldestFirst).
    ///
    /// ```
    /// # use portcullis_async::Queue;
    /// # use portcullis_core::{ManualClock, Rate, TokenBucket};
    /// let queue: Queue<_, _> = Queue::new(TokenBucket::new(Rate::per_second(5), 5), ManualClock::new(), 25);
    /// ```
    #[cfg(not(loom))]
    pub const fn new(limiter: L, clock: C, max_permits: u64) -> Self {
        Self {
            limiter,
            clock,
            order: Order::OldestFirst,
            max_permits,
            max_waiters: u32::MAX,
            gate: AtomicU8::new(0),
            marked: AtomicBool::new(false),
            lock: R::OPEN,
            inner: UnsafeCell::new(Inner::NEW),
        }
    }

    /// As without loom, but for a lock that cannot be built in a constant.
    #[cfg(loom)]
    pub fn with_lock(limiter: L, clock: C, max_permits: u64, lock: R) -> Self {
        Self {
            limiter,
            clock,
            order: Order::OldestFirst,
            max_permits,
            max_waiters: u32::MAX,
            gate: AtomicU8::new(0),
            marked: AtomicBool::new(false),
            lock,
            inner: UnsafeCell::new(Inner::NEW),
        }
    }

    /// Who is granted first. Default: [`Order::OldestFirst`].
    ///
    /// ```
    /// # use portcullis_async::{Order, Queue};
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// let queue: Queue<_, _> = Queue::new(Concurrency::new(2), ManualClock::new(), 9).with_order(Order::NewestFirst);
    /// ```
    #[must_use]
    pub const fn with_order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// How many may wait at once, whatever they wait for. Default: 2^32 - 1.
    ///
    /// ```
    /// # use portcullis_async::Queue;
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// let queue: Queue<_, _> = Queue::new(Concurrency::new(2), ManualClock::new(), 100).with_max_waiters(10);
    /// ```
    #[must_use]
    pub const fn with_max_waiters(mut self, waiters: u32) -> Self {
        self.max_waiters = waiters;
        self
    }

    /// The clock.
    ///
    /// ```
    /// # use portcullis_async::Queue;
    /// # use portcullis_core::{Concurrency, ManualClock, Timestamp};
    /// let queue: Queue<_, _> = Queue::new(Concurrency::new(2), ManualClock::new(), 9);
    /// queue.clock().advance(core::time::Duration::from_secs(1));
    /// ```
    pub const fn clock(&self) -> &C {
        &self.clock
    }
}

impl Inner {
    const NEW: Self = Self {
        list: List::new(),
        counts: QueueCounts { waiters: 0, permits: 0, granted: 0, refused: 0, evicted: 0, cancelled: 0 },
        closed: false,
        driver: None,
        told: None,
    };

    /// Counts a wait out that is being taken off the list.
    fn count_out(&mut self, min: u32) {
        self.counts.waiters -= 1;
        self.counts.permits -= u64::from(min);
    }
}

impl<L: Limiter, C: Clock, R: RawLock> Queue<L, C, R> {
    /// Works on the list; afterwards wakes, and grants what was released meanwhile.
    fn with<T>(&self, work: impl FnOnce(&mut Inner, &mut Wakes) -> T) -> T {
        let mut wakes = Wakes::new();
        let outcome = self.lock.lock(|| {
            let _leave = Leave(self);
            // SAFETY: under the lock.
            work(unsafe { &mut *self.inner.get() }, &mut wakes)
        });
        self.wake_and_grant(wakes);
        outcome
    }

    /// Wakes, and grants as long as something is marked as free, and nobody else does.
    fn wake_and_grant(&self, mut wakes: Wakes) {
        loop {
            let panicking = GrantAll(self);
            wakes.wake();
            mem::forget(panicking);
            // Between having let go of the list, or having marked, and looking at the mark, or trying the lock: of one who lets go and one who marks, at
            // least one sees the other.
            fence(SeqCst);
            if !self.marked.load(Relaxed) {
                return;
            }
            let drained = self.lock.try_lock(|| {
                let _leave = Leave(self);
                // SAFETY: under the lock.
                self.drain(unsafe { &mut *self.inner.get() }, &mut wakes);
            });
            if drained.is_none() {
                return;
            }
        }
    }

    /// Has those who wait granted what may have become free.
    fn grant(&self) {
        // Of one who links, and then asks the limiter, and one who has given back, and then looks here, at least one sees the other.
        fence(SeqCst);
        if self.gate.load(Relaxed) & WAITED != 0 {
            // Behind the fence, which releases what was given back; a read-modify-write, as every mark is, so that those that mark after it
            // hand it on.
            self.marked.swap(true, Relaxed);
            self.wake_and_grant(Wakes::new());
        }
    }

    /// Settles all who can be, from the end whose turn it is.
    fn drain(&self, inner: &mut Inner, wakes: &mut Wakes) {
        // Acquire: pairs with `grant`. Before the limiter is asked, so that what comes after is marked anew.
        if self.marked.swap(false, Ordering::Acquire) {
            // What was given back may have made the time of the same one earlier.
            inner.told = None;
        }
        let now = self.clock.now();
        while let Some(node) = inner.list.end(self.turn()) {
            if wakes.is_full() {
                self.marked.swap(true, Relaxed);
                break;
            }
            // SAFETY: linked, and we have the list.
            let (min, max) = unsafe { ((*node.as_ptr()).min, (*node.as_ptr()).max) };
            let taken = if inner.closed { None } else { Some(self.take(now, min, max)) };
            let (state, grant) = match taken {
                None => (State::Closed, None),
                Some(Ok(grant)) => (State::Granted, Some(grant)),
                Some(Err(Denied::ExceedsCapacity { .. })) => (State::Exceeds, None),
                Some(Err(_)) => break,
            };
            if state == State::Granted {
                inner.counts.granted = inner.counts.granted.wrapping_add(1);
            }
            inner.count_out(min);
            // SAFETY: linked.
            wakes.push(unsafe { inner.list.settle(node, state, grant) });
        }
        self.tell_next(inner, wakes, now);
    }

    /// Has the time to call again asked for anew, if it may have changed: by the driver, and by the one whose turn it is, if that is a thread that
    /// sleeps until its time.
    fn tell_next(&self, inner: &mut Inner, wakes: &mut Wakes, now: Timestamp) {
        let next = inner.list.end(self.turn());
        let address = next.map(NonNull::addr);
        if inner.told == address {
            return;
        }
        inner.told = address;
        let Some(next) = next else { return };
        // SAFETY: linked, and we have the list.
        let (permits, sleeps) = unsafe { ((*next.as_ptr()).min, (*next.as_ptr()).sleeps) };
        if let Next::At(_) = self.wait_for(now, permits) {
            wakes.push(inner.driver.take());
            if sleeps {
                // SAFETY: linked, and we have the list. Its waker is set again when it is polled.
                wakes.push(unsafe { List::unwake(next) });
            }
        }
    }

    fn turn(&self) -> End {
        match self.order {
            Order::OldestFirst => End::First,
            Order::NewestFirst => End::Last,
        }
    }

    /// Takes as many as there are, `min` to `max`.
    fn take(&self, now: Timestamp, min: u32, max: u32) -> Result<(u32, Receipt), Denied> {
        if max > min {
            let most = u32::try_from(self.limiter.available_at(now)).unwrap_or(u32::MAX).clamp(min, max);
            if most > min
                && let Ok(receipt) = self.limiter.take_at(now, most)
            {
                return Ok((most, receipt));
            }
        }
        self.limiter.take_at(now, min).map(|receipt| (min, receipt))
    }
}

/// What a wait asks of its queue.
pub(crate) mod sealed {
    use super::{Limiter, Node, NonNull, Receipt, Rejected, Waker};

    pub trait Waits: Limiter {
        /// Takes at once, if nobody has to be waited for.
        fn try_now(&self, min: u32, max: u32) -> Option<Result<(u32, Receipt), Rejected>>;

        /// Takes, or links an idle node to wait, and says so by `None`.
        ///
        /// # Safety
        ///
        /// The node is idle, nobody else refers to it, and it stays where it is until it is settled or `cancel` has returned.
        unsafe fn enqueue(
            &self,
            node: NonNull<Node>,
            waker: &Waker,
        ) -> Option<Result<(u32, Receipt), Rejected>>;

        /// What has become of a node that was linked; `None` if it waits, to be woken by `waker`.
        ///
        /// # Safety
        ///
        /// The node was linked in this queue, and its outcome has not been asked for since it was settled.
        unsafe fn outcome(
            &self,
            node: NonNull<Node>,
            waker: &Waker,
        ) -> Option<Result<(u32, Receipt), Rejected>>;

        /// Gives up a node that was linked, and what it has been granted.
        ///
        /// # Safety
        ///
        /// As of `outcome`.
        unsafe fn cancel(&self, node: NonNull<Node>);
    }
}

impl<L: Limiter, C: Clock, R: RawLock> sealed::Waits for Queue<L, C, R> {
    fn try_now(&self, min: u32, max: u32) -> Option<Result<(u32, Receipt), Rejected>> {
        let gate = self.gate.load(Relaxed);
        if gate & CLOSED != 0 {
            return Some(Err(Rejected::Closed { permits: min }));
        }
        if gate & WAITED != 0 && self.order == Order::OldestFirst {
            return None;
        }
        match self.take(self.clock.now(), min, max) {
            Ok(grant) => Some(Ok(grant)),
            Err(Denied::ExceedsCapacity { permits, capacity }) => {
                Some(Err(Rejected::ExceedsCapacity { permits, capacity }))
            }
            Err(_) => None,
        }
    }

    unsafe fn enqueue(&self, node: NonNull<Node>, waker: &Waker) -> Option<Result<(u32, Receipt), Rejected>> {
        // SAFETY: idle, and ours.
        let (min, max) = unsafe { ((*node.as_ptr()).min, (*node.as_ptr()).max) };
        loop {
            // Neither cloned nor dropped under the lock: it is somebody else's code.
            let mut waker = Some(waker.clone());
            let step = self.with(|inner, wakes| {
                // Raised before the limiter is asked, as `grant` gives back before it looks.
                self.gate.fetch_or(WAITED, Relaxed);
                fence(SeqCst);
                let step = self.admit(inner, wakes, min, max);
                if let Step::Wait = &step
                    && let Some(waker) = waker.take()
                {
                    // SAFETY: as the caller says.
                    unsafe { inner.list.link(node, waker) };
                    inner.counts.waiters += 1;
                    inner.counts.permits += u64::from(min);
                    if inner.list.end(self.turn()) == Some(node) {
                        inner.told = Some(node.addr());
                        wakes.push(inner.driver.take());
                    }
                }
                step
            });
            drop(waker);
            match step {
                Step::Settled(outcome) => return Some(outcome.map(Taken::keep)),
                Step::Wait => return None,
                Step::Again => {}
            }
        }
    }

    unsafe fn outcome(&self, node: NonNull<Node>, waker: &Waker) -> Option<Result<(u32, Receipt), Rejected>> {
        // SAFETY: valid, as the caller says.
        if unsafe { Node::state(node) } == State::Waiting {
            let mut waker = Some(waker.clone());
            let waits = self.with(|_, _| {
                // SAFETY: waiting, and so linked, now that we have the list.
                unsafe {
                    let waits = Node::state(node) == State::Waiting;
                    if waits {
                        waker = waker.take().and_then(|waker| List::rewake(node, waker));
                    }
                    waits
                }
            });
            drop(waker);
            if waits {
                return None;
            }
        }
        // SAFETY: settled, and so ours.
        let (state, min, grant) =
            unsafe { (Node::state(node), (*node.as_ptr()).min, (*node.as_ptr()).grant.take()) };
        Some(match (state, grant) {
            (State::Granted, Some(grant)) => Ok(grant),
            (State::Evicted, _) => Err(Rejected::Evicted { permits: min }),
            (State::Exceeds, _) => {
                let capacity = u32::try_from(self.limiter.capacity()).unwrap_or(u32::MAX);
                Err(Rejected::ExceedsCapacity { permits: min, capacity })
            }
            _ => Err(Rejected::Closed { permits: min }),
        })
    }

    unsafe fn cancel(&self, node: NonNull<Node>) {
        let _unclaimed = Unclaimed { queue: self, node };
        // SAFETY: valid, as the caller says.
        if unsafe { Node::state(node) } == State::Waiting {
            let waker = self.with(|inner, _| {
                // SAFETY: waiting, and so linked, now that we have the list.
                unsafe {
                    if Node::state(node) != State::Waiting {
                        return None;
                    }
                    inner.count_out((*node.as_ptr()).min);
                    inner.counts.cancelled = inner.counts.cancelled.wrapping_add(1);
                    if inner.list.end(self.turn()) == Some(node) {
                        // Those behind it may fit where it did not.
                        inner.told = None;
                        self.marked.swap(true, Relaxed);
                    }
                    inner.list.unlink(node)
                }
            });
            drop(waker);
        }
    }
}

/// A node that nobody waits for any more, be it that a waker panics: what it was granted is given back.
struct Unclaimed<'q, L: Limiter, C: Clock, R: RawLock> {
    queue: &'q Queue<L, C, R>,
    node: NonNull<Node>,
}

impl<L: Limiter, C: Clock, R: RawLock> Drop for Unclaimed<'_, L, C, R> {
    fn drop(&mut self) {
        // SAFETY: no longer linked, and so ours.
        if let Some((permits, mut receipt)) = unsafe { (*self.node.as_ptr()).grant.take() } {
            self.queue.give_back(permits, &mut receipt);
        }
    }
}

/// What comes of a request that queues.
enum Step<T> {
    Settled(Result<T, Rejected>),
    Wait,
    /// Some have been evicted, and are woken first.
    Again,
}

/// What was taken, to be given back if a waker panics before it is anybody's.
struct Taken<'q, L: Limiter, C: Clock, R: RawLock> {
    queue: &'q Queue<L, C, R>,
    grant: Option<(u32, Receipt)>,
}

impl<L: Limiter, C: Clock, R: RawLock> Taken<'_, L, C, R> {
    fn keep(mut self) -> (u32, Receipt) {
        self.grant.take().unwrap_or((0, Receipt::NONE))
    }
}

impl<L: Limiter, C: Clock, R: RawLock> Drop for Taken<'_, L, C, R> {
    fn drop(&mut self) {
        if let Some((permits, mut receipt)) = self.grant.take() {
            self.queue.give_back(permits, &mut receipt);
        }
    }
}

impl<L: Limiter, C: Clock, R: RawLock> Queue<L, C, R> {
    /// Gives back what was taken for somebody who does not want it any more.
    fn give_back(&self, permits: u32, receipt: &mut Receipt) {
        if permits > 0 {
            self.limiter.refund_at(self.clock.now(), permits, receipt);
            self.grant();
        }
    }

    fn admit(&self, inner: &mut Inner, wakes: &mut Wakes, min: u32, max: u32) -> Step<Taken<'_, L, C, R>> {
        if inner.closed {
            return Step::Settled(Err(Rejected::Closed { permits: min }));
        }
        if self.order == Order::NewestFirst || inner.list.end(End::First).is_none() {
            match self.take(self.clock.now(), min, max) {
                Ok(grant) => return Step::Settled(Ok(Taken { queue: self, grant: Some(grant) })),
                Err(Denied::ExceedsCapacity { permits, capacity }) => {
                    return Step::Settled(Err(Rejected::ExceedsCapacity { permits, capacity }));
                }
                Err(_) => {}
            }
        }
        if u64::from(min) > self.limiter.capacity() {
            let capacity = u32::try_from(self.limiter.capacity()).unwrap_or(u32::MAX);
            return Step::Settled(Err(Rejected::ExceedsCapacity { permits: min, capacity }));
        }
        let fits = |counts: &QueueCounts| {
            counts.waiters < self.max_waiters && counts.permits + u64::from(min) <= self.max_permits
        };
        let could_fit = self.max_waiters > 0 && self.max_permits > 0 && u64::from(min) <= self.max_permits;
        while could_fit && self.order == Order::NewestFirst && !fits(&inner.counts) {
            let Some(oldest) = inner.list.end(End::First) else { break };
            if wakes.is_full() {
                return Step::Again;
            }
            inner.counts.evicted = inner.counts.evicted.wrapping_add(1);
            // SAFETY: linked, and we have the list.
            unsafe {
                inner.count_out((*oldest.as_ptr()).min);
                wakes.push(inner.list.settle(oldest, State::Evicted, None));
            }
        }
        if could_fit && fits(&inner.counts) {
            Step::Wait
        } else {
            inner.counts.refused = inner.counts.refused.wrapping_add(1);
            Step::Settled(Err(Rejected::QueueFull { permits: min }))
        }
    }

    /// What has happened so far.
    ///
    /// ```
    /// # use portcullis_async::Queue;
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// let queue: Queue<_, _> = Queue::new(Concurrency::new(2), ManualClock::new(), 0);
    /// let held = futures_executor::block_on(queue.acquire(2))?;
    /// assert!(futures_executor::block_on(queue.acquire(1)).is_err(), "nobody may wait");
    /// assert_eq!(queue.counts().refused, 1);
    /// # drop(held);
    /// # Ok::<(), portcullis_async::Rejected>(())
    /// ```
    pub fn counts(&self) -> QueueCounts {
        self.with(|inner, _| inner.counts)
    }

    /// Waits for `n` permits; with `n = 0` until something is available, of which it takes nothing. What is dropped before it is ready has never been.
    ///
    /// # Errors
    ///
    /// [`Rejected`]: at once, if the queue is full or closed, or there can never be so many; later, if it is evicted or the queue closes.
    ///
    /// ```
    /// # use portcullis_async::Queue;
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// # futures_executor::block_on(async {
    /// let queue: Queue<_, _> = Queue::new(Concurrency::new(2), ManualClock::new(), 9);
    /// let lease = queue.acquire(2).await?;
    /// assert_eq!(lease.permits(), 2);
    /// # Ok::<(), portcullis_async::Rejected>(()) }).unwrap();
    /// ```
    pub fn acquire(&self, n: u32) -> Acquire<&Self> {
        Acquire::new(self, n, n)
    }

    /// Waits for at least `min` permits, and takes up to `max` if there are as many then (`min` if `max` is less). It queues with `min`.
    ///
    /// # Errors
    ///
    /// As of [`acquire`](Self::acquire), by `min`.
    ///
    /// ```
    /// # use portcullis_async::Queue;
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// # futures_executor::block_on(async {
    /// let queue: Queue<_, _> = Queue::new(Concurrency::new(5), ManualClock::new(), 9);
    /// let some = queue.acquire_between(1, 100).await?;
    /// assert_eq!(some.permits(), 5);
    /// # Ok::<(), portcullis_async::Rejected>(()) }).unwrap();
    /// ```
    pub fn acquire_between(&self, min: u32, max: u32) -> Acquire<&Self> {
        Acquire::new(self, min, max)
    }

    /// Grants what has become available by time, as the clock tells it, and says when to call again.
    ///
    /// # Cost
    ///
    /// A look at the gate, if nobody waits.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_async::{Next, Queue};
    /// # use portcullis_core::{ManualClock, Rate, Timestamp, TokenBucket};
    /// # use core::pin::pin; use core::task::{Context, Poll, Waker}; use core::future::Future;
    /// let queue: Queue<_, _> = Queue::new(TokenBucket::new(Rate::per_second(10), 1), ManualClock::new(), 9);
    /// let mut context = Context::from_waker(Waker::noop());
    /// assert!(pin!(queue.acquire(1)).poll(&mut context).is_ready());
    ///
    /// let mut second = pin!(queue.acquire(1));
    /// assert!(second.as_mut().poll(&mut context).is_pending());
    /// assert_eq!(queue.advance(), Next::At(Timestamp::from_millis(100)));
    /// queue.clock().advance(Duration::from_millis(100));
    /// assert_eq!(queue.advance(), Next::Idle);
    /// assert!(second.poll(&mut context).is_ready());
    /// ```
    pub fn advance(&self) -> Next {
        self.next(None)
    }

    /// Closes the queue: whoever waits, and whoever comes, is told [`Rejected::Closed`]. Leases that are out stay what they are.
    ///
    /// ```
    /// # use portcullis_async::{Queue, Rejected};
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// let queue: Queue<_, _> = Queue::new(Concurrency::new(2), ManualClock::new(), 9);
    /// queue.close();
    /// assert_eq!(futures_executor::block_on(queue.acquire(1)).unwrap_err(), Rejected::Closed { permits: 1 });
    /// ```
    pub fn close(&self) {
        self.with(|inner, wakes| {
            inner.closed = true;
            self.gate.fetch_or(CLOSED, Relaxed);
            self.drain(inner, wakes);
            wakes.push(inner.driver.take());
        });
    }

    /// Whether it has been [closed](Self::close).
    ///
    /// ```
    /// # use portcullis_async::Queue;
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// let queue: Queue<_, _> = Queue::new(Concurrency::new(2), ManualClock::new(), 9);
    /// assert!(!queue.is_closed());
    /// ```
    pub fn is_closed(&self) -> bool {
        self.gate.load(Relaxed) & CLOSED != 0
    }

    /// Changes the limiter's settings, by its own methods, and then grants what has become free. Nothing should be taken in it: that would get past
    /// the queue.
    ///
    /// ```
    /// # use portcullis_async::Queue;
    /// # use portcullis_core::{Concurrency, ManualClock};
    /// let queue: Queue<_, _> = Queue::new(Concurrency::new(2), ManualClock::new(), 9);
    /// assert_eq!(queue.change(|limit| limit.set_limit(5)), Ok(2));
    /// ```
    pub fn change<T>(&self, change: impl FnOnce(&L) -> T) -> T {
        let outcome = change(&self.limiter);
        self.with(|inner, wakes| {
            inner.told = None;
            self.drain(inner, wakes);
        });
        outcome
    }

    /// Grants what can be granted; a driver's waker is kept until that may have changed.
    pub(crate) fn next(&self, driver: Option<&Waker>) -> Next {
        if driver.is_none() && self.gate.load(Relaxed) & WAITED == 0 {
            return Next::Idle;
        }
        loop {
            let mut driver = driver.cloned();
            let next = self.with(|inner, wakes| {
                // Not to be woken by its own call.
                let old = if driver.is_some() { inner.driver.take() } else { None };
                self.drain(inner, wakes);
                let next = match inner.list.end(self.turn()) {
                    None => Next::Idle,
                    Some(node) => {
                        // SAFETY: linked, and we have the list.
                        let permits = unsafe { (*node.as_ptr()).min };
                        self.wait_for(self.clock.now(), permits)
                    }
                };
                if driver.is_some() {
                    inner.driver = mem::replace(&mut driver, old);
                }
                // The rest is granted without the lock.
                if wakes.is_full() { None } else { Some(next) }
            });
            drop(driver);
            if let Some(next) = next {
                return next;
            }
        }
    }

    /// Whether a newcomer may ask the limiter.
    fn pass(&self, now: Timestamp, n: u32) -> Result<(), Denied> {
        let gate = self.gate.load(Relaxed);
        if gate & CLOSED != 0 {
            Err(Denied::Refused { now, permits: n })
        } else if gate & WAITED != 0 && self.order == Order::OldestFirst {
            Err(Denied::Exhausted { now, permits: n })
        } else {
            Ok(())
        }
    }

    /// Nobody drives any more.
    pub(crate) fn undriven(&self) {
        self.with(|inner, wakes| {
            // Another one's, maybe.
            wakes.push(inner.driver.take());
            inner.told = None;
            self.tell_next(inner, wakes, self.clock.now());
        });
    }

    fn wait_for(&self, now: Timestamp, permits: u32) -> Next {
        match self.limiter.retry(Denied::Exhausted { now, permits }) {
            Retry::At(at) => Next::At(at.max(now)),
            Retry::After(wait) => Next::At(now.saturating_add(wait)),
            _ => Next::OnRelease,
        }
    }
}

impl<L: Limiter, C: Clock, R: RawLock> Limiter for Queue<L, C, R> {
    fn id(&self) -> Option<LimiterId> {
        LimiterId::of(self)
    }

    /// What is free, if nobody waits before it: [`Denied::Exhausted`] else. A closed queue refuses, [`Denied::Refused`].
    fn take_at(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        self.pass(now, n)?;
        self.limiter.take_at(now, n)
    }

    fn peek_at(&self, now: Timestamp, n: u32) -> Result<Plan, Denied> {
        self.pass(now, n)?;
        // A take asks anew who waits.
        self.limiter.peek_at(now, n).map(|_| Plan::NONE)
    }

    /// As the limiter's, and has those who wait granted.
    fn refund_at(&self, now: Timestamp, n: u32, receipt: &mut Receipt) -> u32 {
        let refunded = self.limiter.refund_at(now, n, receipt);
        self.grant();
        refunded
    }

    /// Releases, and has those who wait granted.
    fn release(&self, n: u32) {
        self.limiter.release(n);
        self.grant();
    }

    fn available_at(&self, now: Timestamp) -> u64 {
        self.limiter.available_at(now)
    }

    fn capacity(&self) -> u64 {
        self.limiter.capacity()
    }

    fn idle_at(&self, now: Timestamp) -> Idle {
        if self.gate.load(Relaxed) & WAITED == 0 { self.limiter.idle_at(now) } else { Idle::InUse }
    }

    fn retry(&self, denied: Denied) -> Retry {
        match denied {
            Denied::Refused { .. } if self.is_closed() => Retry::Never,
            _ => self.limiter.retry(denied),
        }
    }

    fn metadata(&self, now: Timestamp, denied: Option<Denied>, offers: &mut Metadata<'_>) {
        if let Some(denied) = denied {
            offers.offer(metadata::RETRY_AFTER, || self.retry(denied));
        }
        self.limiter.metadata(now, denied, offers);
    }
}

impl<L: fmt::Debug, C, R> fmt::Debug for Queue<L, C, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut queue = f.debug_struct("Queue");
        queue.field("limiter", &self.limiter).field("order", &self.order).finish_non_exhaustive()
    }
}
