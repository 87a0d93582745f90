//! Thousands of waiters on a few threads, with random cancellations, lose nothing: no permit, no
//! wake-up, no count.
//!
//! Each thread is an executor of its own: it polls woken tasks, starts new ones, and drops waits
//! and leases at random. This runs in rounds. At the end of each, all threads stand still, and the
//! test checks that no waiter waits for free permits. In the end no task is started any more, and
//! all must finish by their wake-ups alone.

#[path = "support/random.rs"]
mod random;

use core::hint::spin_loop;
use core::pin::{Pin, pin};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, mpsc};
use std::task::Wake;
use std::thread;
use std::time::Instant;

use portcullis_async::{Acquire, Order, Queue, Rejected};
use portcullis_core::{Concurrency, Lease, Limiter, LimiterExt, ManualClock, Timestamp};
use random::Random;

type Shared = Arc<Queue<Concurrency, ManualClock>>;

const THREADS: usize = 4;
/// The number of waiters at once, of all threads.
const WAITERS: usize = if cfg!(debug_assertions) {
    2_000
} else {
    10_000
};
const ROUNDS: usize = if cfg!(debug_assertions) { 30 } else { 120 };
const STEPS: usize = if cfg!(debug_assertions) { 2_000 } else { 8_000 };
const LIMIT: u32 = 64;
const MOST: u32 = 5;

/// Puts a task's number in its thread's list of tasks to poll.
struct Ready {
    list: Arc<Mutex<VecDeque<usize>>>,
    number: usize,
}

impl Wake for Ready {
    fn wake(self: Arc<Self>) {
        self.list.lock().unwrap().push_back(self.number);
    }
}

/// The outcomes of the futures of a thread.
#[derive(Clone, Copy, Default, Debug)]
struct Seen {
    /// Futures that were polled, and had to wait.
    waited: u64,
    /// Of those, by outcome.
    granted: u64,
    evicted: u64,
    dropped: u64,
    refused: u64,
}

impl Seen {
    fn add(self, other: Self) -> Self {
        Self {
            waited: self.waited + other.waited,
            granted: self.granted + other.granted,
            evicted: self.evicted + other.evicted,
            dropped: self.dropped + other.dropped,
            refused: self.refused + other.refused,
        }
    }
}

struct Executor {
    queue: Shared,
    random: Random,
    /// The tasks to poll, because they were woken.
    ready: Arc<Mutex<VecDeque<usize>>>,
    waits: Vec<Option<Pin<Box<Acquire<Shared>>>>>,
    leases: Vec<Lease<Shared>>,
    seen: Seen,
}

impl Executor {
    fn new(queue: &Shared, seed: u64) -> Self {
        Self {
            queue: Arc::clone(queue),
            random: Random(seed),
            ready: Arc::default(),
            waits: (0..WAITERS / THREADS).map(|_| None).collect(),
            leases: Vec::new(),
            seen: Seen::default(),
        }
    }

    fn poll(&mut self, number: usize, first: bool) {
        let Some(mut wait) = self.waits[number].take() else {
            return;
        };
        let waker = Waker::from(Arc::new(Ready {
            list: Arc::clone(&self.ready),
            number,
        }));
        match wait.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Pending => {
                self.seen.waited += u64::from(first);
                self.waits[number] = Some(wait);
            }
            Poll::Ready(Ok(lease)) => {
                self.seen.granted += u64::from(!first);
                self.leases.push(lease);
            }
            Poll::Ready(Err(Rejected::QueueFull { .. })) => {
                assert!(first, "rejected at once or never");
                self.seen.refused += 1;
            }
            Poll::Ready(Err(Rejected::Evicted { .. })) => {
                assert!(!first);
                self.seen.evicted += 1;
            }
            Poll::Ready(Err(other)) => panic!("{other}"),
        }
    }

    fn start(&mut self, number: usize) {
        let min = self.random.index(MOST as usize + 1) as u32;
        let max = self.random.index(MOST as usize + 1) as u32;
        self.waits[number] = Some(Box::pin(
            Acquire::new(Arc::clone(&self.queue), min).up_to(max),
        ));
        self.poll(number, true);
    }

    fn cancel(&mut self, number: usize) {
        if self.waits[number].take().is_some() {
            self.seen.dropped += 1;
        }
    }

    fn drop_a_lease(&mut self) {
        if !self.leases.is_empty() {
            let number = self.random.index(self.leases.len());
            let mut lease = self.leases.swap_remove(number);
            if self.random.index(4) == 0 {
                let part = self.random.index(lease.permits() as usize + 1) as u32;
                lease.refund_at(Timestamp::ZERO, part).unwrap();
            }
        }
    }

    fn step(&mut self) {
        let number = self.random.index(self.waits.len());
        match self.random.index(64) {
            0..20 => {
                if self.waits[number].is_none() {
                    self.start(number);
                }
            }
            20..36 => self.drop_a_lease(),
            36..52 => {
                let ready = self.ready.lock().unwrap().pop_front();
                if let Some(number) = ready {
                    self.poll(number, false);
                }
            }
            52..57 => self.cancel(number),
            // Polled without a wake-up, with a new waker.
            57..60 => self.poll(number, false),
            60 => self.leases.extend(Lease::try_acquire_at(
                Arc::clone(&self.queue),
                Timestamp::ZERO,
                1,
            )),
            61 => {
                let counts = self.queue.counts();
                assert!(counts.permits <= u64::from(MOST) * u64::from(counts.waiters));
            }
            62 => {
                let limit = LIMIT - self.random.index(16) as u32;
                self.queue
                    .change(|limiter| limiter.set_limit(limit))
                    .unwrap();
            }
            _ => {
                self.queue.advance();
            }
        }
        while self.leases.len() > 2 * LIMIT as usize {
            self.drop_a_lease();
        }
    }

    /// Finishes all tasks, without starting more: drops leases, and polls only woken tasks.
    fn end(&mut self, watchdog: Instant) {
        while self.waits.iter().any(Option::is_some) {
            let ready = self.ready.lock().unwrap().pop_front();
            match ready {
                Some(number) => self.poll(number, false),
                None if self.leases.is_empty() => {
                    assert!(
                        Instant::now() < watchdog,
                        "asleep: {:?}, {} available",
                        self.queue.counts(),
                        self.queue.available_at(Timestamp::ZERO)
                    );
                    thread::yield_now();
                }
                None => self.leases.clear(),
            }
        }
        self.leases.clear();
    }
}

/// Where all threads wait for each other. If one has panicked, the others panic too, instead of
/// waiting permanently.
#[derive(Default)]
struct Meeting {
    arrived: AtomicUsize,
    failed: AtomicBool,
}

impl Meeting {
    /// Returns whether this thread came last, so that the others are here.
    fn wait(&self) -> bool {
        let arrived = self.arrived.fetch_add(1, Ordering::AcqRel);
        let all = (arrived / THREADS + 1) * THREADS;
        while self.arrived.load(Ordering::Acquire) < all {
            assert!(
                !self.failed.load(Ordering::Relaxed),
                "another thread failed"
            );
            thread::yield_now();
        }
        arrived + 1 == all
    }
}

struct FailsLoudly<'m>(&'m Meeting);

impl Drop for FailsLoudly<'_> {
    fn drop(&mut self) {
        self.0
            .failed
            .fetch_or(thread::panicking(), Ordering::Relaxed);
    }
}

/// While all stand still: no waiter sleeps while permits are free for the head.
fn stands_still(queue: &Shared) {
    let (counts, available) = (queue.counts(), queue.available_at(Timestamp::ZERO));
    assert!(
        counts.waiters == 0 || available < MOST.into(),
        "{counts:?} while {available} are free"
    );
    if counts.waiters == 0 {
        assert_eq!(counts.permits, 0);
        assert!(
            available == 0 || queue.try_acquire_at(Timestamp::ZERO, 1).is_ok(),
            "a newcomer must be granted"
        );
    }
}

fn nothing_is_lost(order: Order, max_permits: u64) {
    let queue: Shared = Arc::new(
        Queue::new(Concurrency::new(LIMIT), ManualClock::new(), max_permits).with_order(order),
    );
    let meeting = Meeting::default();
    let seen = thread::scope(|scope| {
        let threads: Vec<_> = (1..=THREADS as u64)
            .map(|seed| {
                let (queue, meeting) = (&queue, &meeting);
                scope.spawn(move || {
                    let _fails_loudly = FailsLoudly(meeting);
                    let mut executor =
                        Executor::new(queue, seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
                    for _ in 0..ROUNDS {
                        for _ in 0..STEPS {
                            executor.step();
                        }
                        if meeting.wait() {
                            stands_still(queue);
                        }
                        meeting.wait();
                    }
                    if meeting.wait() {
                        queue.change(|limiter| limiter.set_limit(LIMIT)).unwrap();
                    }
                    executor.end(Instant::now() + Duration::from_secs(60));
                    executor.seen
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("a thread failed"))
            .fold(Seen::default(), Seen::add)
    });
    let counts = queue.counts();
    assert_eq!((counts.waiters, counts.permits), (0, 0));
    assert_eq!(
        queue.available_at(Timestamp::ZERO),
        LIMIT.into(),
        "all permits are back"
    );
    assert_eq!(queue.change(Concurrency::in_use), 0);
    assert!(queue.try_acquire_at(Timestamp::ZERO, LIMIT).is_ok());
    // Each wait has one outcome in the counts. A dropped one was still waiting, or granted or
    // evicted and not polled since.
    assert_eq!(
        seen.waited,
        counts.granted + counts.evicted + counts.cancelled
    );
    assert_eq!(seen.waited, seen.granted + seen.evicted + seen.dropped);
    assert!(counts.granted >= seen.granted && counts.evicted >= seen.evicted);
    assert_eq!(counts.full, seen.refused);
    assert!(counts.granted > 0 && counts.cancelled > 0, "too few events");
    assert_eq!(
        (counts.evicted > 0, counts.full > 0),
        match order {
            Order::OldestFirst => (false, seen.refused > 0),
            Order::NewestFirst => (seen.evicted > 0, false),
            _ => unreachable!("the model has no {order:?}"),
        }
    );
}

#[test]
fn nothing_is_lost_oldest_first() {
    nothing_is_lost(Order::OldestFirst, u64::MAX);
}

#[test]
fn nothing_is_lost_oldest_first_in_a_queue_that_is_often_full() {
    nothing_is_lost(Order::OldestFirst, 100);
}

#[test]
fn nothing_is_lost_newest_first() {
    nothing_is_lost(Order::NewestFirst, 1_000);
}

/// Threads that park, and tasks between them, hand one permit on as fast as they can.
#[test]
fn a_permit_that_is_handed_on_is_never_lost_on_the_way() {
    const EACH: u64 = if cfg!(debug_assertions) {
        3_000
    } else {
        20_000
    };
    let queue: Shared = Arc::new(Queue::new(
        Concurrency::new(1),
        ManualClock::new(),
        u64::MAX,
    ));
    let (turns, watchdog) = (AtomicU64::new(0), Instant::now() + Duration::from_mins(2));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..EACH {
                    let lease = queue
                        .acquire(1)
                        .within(Duration::from_mins(1))
                        .block()
                        .expect("the permit is handed on");
                    // Two threads at once would lose an increment.
                    turns.store(turns.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                    drop(lease);
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..EACH {
                let lease = futures_executor::block_on(queue.acquire(1)).unwrap();
                turns.store(turns.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                drop(lease);
            }
        });
    });
    assert!(Instant::now() < watchdog);
    assert_eq!(turns.load(Ordering::Relaxed), 3 * EACH);
    assert_eq!(
        (queue.counts().waiters, queue.available_at(Timestamp::ZERO)),
        (0, 1)
    );
}

/// A wait is polled all the time, without being woken, while another thread grants it. It is either
/// waiting, or has all that it was granted.
#[test]
fn a_poll_at_the_moment_of_the_grant_finds_all_of_it() {
    const TIMES: usize = if cfg!(debug_assertions) {
        20_000
    } else {
        200_000
    };
    let queue: Shared = Arc::new(Queue::new(
        Concurrency::new(1),
        ManualClock::new(),
        u64::MAX,
    ));
    let (give, get) = mpsc::sync_channel::<Lease<Shared>>(1);
    thread::scope(|scope| {
        scope.spawn(move || get.into_iter().for_each(drop));
        let mut held = Lease::try_acquire_at(Arc::clone(&queue), Timestamp::ZERO, 1).unwrap();
        for _ in 0..TIMES {
            let mut wait = pin!(Acquire::new(Arc::clone(&queue), 1));
            let mut context = Context::from_waker(Waker::noop());
            assert!(wait.as_mut().poll(&mut context).is_pending());
            give.send(held).unwrap();
            held = loop {
                match wait.as_mut().poll(&mut context) {
                    Poll::Ready(lease) => break lease.expect("granted"),
                    Poll::Pending => spin_loop(),
                }
            };
            assert_eq!(held.permits(), 1);
        }
        drop(give);
        drop(held);
    });
    assert_eq!(
        (queue.counts().granted, queue.available_at(Timestamp::ZERO)),
        (TIMES as u64, 1)
    );
}
