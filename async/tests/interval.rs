//! Queues whose clock returns an interval decide as with the precise time alone, and seldom read
//! it.

mod support;

use core::cell::Cell;
use core::fmt::Debug;
use core::task::Poll;
use core::time::Duration;

use portcullis_async::{Acquire, KeyedQueue, NoTimer, Queue, QueueClock, Rejected, ThreadTimer};
use portcullis_core::clock::Interval;
use portcullis_core::counts::Counts;
use portcullis_core::keyed::{Line, Seed, TokenBucketRules};
use portcullis_core::queue::QueueLimiter;
use portcullis_core::{
    AllOf, Clock, Concurrency, Counted, FixedWindow, Keyed, Lease, MonotonicClock, Rate,
    SlidingWindow, Timestamp, TokenBucket,
};
use support::random::Random;
use support::{SECOND, Task, now, permits};

const MS: Duration = Duration::from_millis(1);

/// A clock that returns what a test sets, and counts the readings of its precise time.
#[derive(Debug, Default)]
struct Told {
    now: Cell<Timestamp>,
    interval: Cell<Option<Interval>>,
    readings: Cell<u32>,
}

impl Clock for Told {
    fn now(&self) -> Timestamp {
        self.readings.set(self.readings.get() + 1);
        self.now.get()
    }

    fn interval(&self) -> Option<Interval> {
        self.interval.get()
    }
}

/// A leaked queue with a leaked clock.
type Leaked<L> = &'static Queue<L, NoTimer<&'static Told>>;
type Outcome<L> = Result<Lease<Leaked<L>>, Rejected>;

/// A queue, and what its users hold.
struct World<L: QueueLimiter + 'static> {
    clock: &'static Told,
    queue: Leaked<L>,
    waits: Vec<Task<Acquire<Leaked<L>>>>,
    leases: Vec<Lease<Leaked<L>>>,
}

impl<L: QueueLimiter + Debug + 'static> World<L> {
    fn new(limiter: L) -> Self {
        let clock = Box::leak(Box::new(Told::default()));
        Self {
            clock,
            queue: Box::leak(Box::new(Queue::new(limiter, NoTimer(&*clock), 20))),
            waits: Vec::new(),
            leases: Vec::new(),
        }
    }

    /// Performs an operation, and returns all that it leaves to be seen.
    fn step(&mut self, operation: u64, nth: usize, n: u32) -> String {
        let outcome = match operation {
            0..=3 => {
                let mut wait = Task::new(self.queue.acquire(n));
                self.settle(wait.poll(), wait)
            }
            4 => match self.queue.try_acquire(n) {
                Ok(lease) => self.keep(lease),
                // The time of a denial may be that of the interval.
                Err(denied) => format!("{} {:?}", denied.permits(), denied.retry(self.queue)),
            },
            5 => {
                let mut wait = Task::new(self.queue.acquire(1).up_to(n));
                self.settle(wait.poll(), wait)
            }
            6 => format!("{:?}", self.queue.advance()),
            7 if nth < self.waits.len() => {
                let mut wait = self.waits.swap_remove(nth);
                self.settle(wait.poll(), wait)
            }
            8 if nth < self.waits.len() => {
                drop(self.waits.swap_remove(nth));
                "dropped".to_owned()
            }
            _ if nth < self.leases.len() => {
                drop(self.leases.swap_remove(nth));
                "released".to_owned()
            }
            _ => String::new(),
        };
        format!("{outcome}; {:?}, {:?}", self.queue.counts(), self.queue)
    }

    fn keep(&mut self, lease: Lease<Leaked<L>>) -> String {
        let permits = lease.permits();
        self.leases.push(lease);
        format!("granted {permits}")
    }

    fn settle(&mut self, polled: Poll<Outcome<L>>, wait: Task<Acquire<Leaked<L>>>) -> String {
        match polled {
            Poll::Ready(Ok(lease)) => self.keep(lease),
            Poll::Ready(Err(rejected)) => format!("{rejected:?}"),
            Poll::Pending => {
                self.waits.push(wait);
                "waits".to_owned()
            }
        }
    }
}

/// Runs random operations on two equal queues, one of which has a clock without an interval.
/// Returns the readings of the precise time of both.
fn trace<L: QueueLimiter + Debug + 'static>(seed: u64, limiter: impl Fn() -> L) -> (u32, u32) {
    let mut random = Random::new(seed);
    let mut worlds = [World::new(limiter()), World::new(limiter())];
    let mut time = Timestamp::from_millis(60_000 + random.below(1_000));
    for _ in 0..2_000 {
        time += Duration::from_micros(random.below(4) * random.below(5_000));
        let earliest = time - Duration::from_micros(random.below(16_001));
        for world in &worlds {
            world.clock.now.set(time);
        }
        let interval = Interval::new(earliest, earliest + 16 * MS);
        worlds[0].clock.interval.set(interval);
        let (operation, nth) = (random.below(10), random.below(8) as usize);
        let n = 1 + random.below(4) as u32;
        let seen = worlds.each_mut().map(|world| world.step(operation, nth, n));
        assert_eq!(seen[0], seen[1], "operation {operation} at {time}");
    }
    let [within, precise] = worlds.map(|world| world.clock.readings.get());
    (within, precise)
}

#[test]
fn queues_decide_as_with_the_precise_time() {
    let bucket = || TokenBucket::new(Rate::per_second(150), 100);
    let composed = || AllOf::new((Counted::new(bucket()), Concurrency::new(2_000)));
    let mut saved = [0; 7];
    for seed in 0..20 {
        let readings = [
            trace(seed, bucket),
            trace(seed, || Counted::new(bucket())),
            trace(seed, || &*Box::leak(Box::new(bucket()))),
            trace(seed, || FixedWindow::new(100, SECOND)),
            trace(seed, || SlidingWindow::<8>::new(100, SECOND, 8)),
            trace(seed, || Concurrency::new(2_000)),
            trace(seed, composed),
        ];
        for (saved, (within, precise)) in saved.iter_mut().zip(readings) {
            assert!(within <= precise);
            *saved += precise - within;
        }
    }
    assert!(saved.iter().all(|&saved| saved > 1_000), "{saved:?}");
}

#[test]
fn a_request_that_waits_after_a_denial_within_an_interval_is_counted_once() {
    let clock = Told::default();
    let tick = Timestamp::from_millis(5_000);
    let at = |earliest: Timestamp| {
        clock.now.set(earliest + MS);
        clock
            .interval
            .set(Interval::new(earliest, earliest + 16 * MS));
    };
    let bucket = || TokenBucket::new(Rate::per_second(10), 5);
    let queue = Queue::new(Counted::new(bucket()), NoTimer(&clock), 100);
    let table = Counted::new(Keyed::for_keys(bucket(), 100));
    let keyed: KeyedQueue<_, _, _> = KeyedQueue::new(table, NoTimer(&clock), 100);
    let requests = || {
        [queue.limiter().counts(), keyed.table_counts()].map(|counts| {
            let Counts {
                granted,
                denied,
                refused,
                cancelled,
                ..
            } = counts;
            [granted, denied, refused, cancelled].map(|total| total.requests)
        })
    };
    at(tick);
    assert_eq!(permits(now(queue.acquire(3))), Ok(3));
    assert_eq!(permits(now(keyed.acquire("alice", 3))), Ok(3));
    // The buckets are in use: from now on, the interval decides.
    clock.readings.set(0);
    assert!(queue.try_acquire(1).is_ok() && keyed.try_acquire("alice", 1).is_ok());
    assert!(queue.try_acquire(2).is_err() && keyed.try_acquire("alice", 2).is_err());
    assert_eq!(clock.readings.get(), 0);
    assert_eq!(requests(), [[2, 1, 0, 0]; 2]);

    let (wait, keyed_wait) = (queue.acquire(2), keyed.acquire("alice", 2));
    let (wait, keyed_wait) = (Task::waiting(wait), Task::waiting(keyed_wait));
    assert_eq!(requests(), [[2, 1, 0, 0]; 2], "while they wait");
    at(tick + 200 * MS);
    let _ = (queue.advance(), keyed.advance());
    assert!(wait.outcome().is_ok() && keyed_wait.outcome().is_ok());
    assert_eq!(requests(), [[3, 1, 0, 0]; 2], "granted");

    queue.close();
    keyed.close();
    clock.readings.set(0);
    assert!(queue.try_acquire(1).is_err() && keyed.try_acquire("alice", 1).is_err());
    assert_eq!(clock.readings.get(), 0, "closed");
    assert_eq!(requests(), [[3, 1, 1, 0]; 2], "closed");
}

#[test]
fn a_queue_of_each_key_reads_the_precise_time_only_when_it_matters() {
    let clock = Told::default();
    let table = Keyed::new(
        TokenBucketRules::new(Rate::per_second(1_000), 1_000),
        Line::for_keys(1),
        Seed::new(),
    );
    let queue: KeyedQueue<_, _, _> = KeyedQueue::new(table, NoTimer(&clock), 1_000);
    let tick = Timestamp::from_millis(5_000);
    clock.now.set(tick + MS);
    clock.interval.set(Interval::new(tick, tick + 16 * MS));
    assert_eq!(permits(now(queue.acquire("alice", 100))), Ok(100));
    assert_eq!(clock.readings.replace(0), 1, "the key has no slot yet");
    assert!(queue.try_acquire("alice", 1).is_ok());
    assert!(queue.key("alice").try_acquire(1).is_ok());
    assert_eq!(permits(now(queue.acquire("alice", 1))), Ok(1));
    assert!(queue.try_acquire("alice", 1_001).is_err());
    assert_eq!(clock.readings.get(), 0);
    // The first request waits for more permits than there are. A later, smaller request waits
    // behind it.
    let _waits = Task::waiting(queue.acquire("alice", 1_000));
    assert!(queue.try_acquire("alice", 1).is_err());
    queue.close();
    clock.readings.set(0);
    assert!(queue.try_acquire("alice", 1).is_err());
    assert_eq!(clock.readings.get(), 0);
}

#[test]
fn the_timers_of_threads_have_the_interval_of_the_monotonic_clock() {
    fn has_interval(clock: &impl QueueClock) -> bool {
        let (interval, now) = (clock.interval(), clock.now());
        interval.is_some_and(|interval| interval.earliest() <= now)
    }
    let linux = cfg!(target_os = "linux");
    assert_eq!(has_interval(&ThreadTimer::new()), linux);
    #[cfg(feature = "async-io")]
    assert_eq!(has_interval(&portcullis_async::AsyncIoTimer::new()), linux);
}

#[test]
fn the_timers_of_threads_have_the_origin_of_the_monotonic_clock() {
    fn agrees(timer: &impl Clock) {
        for _ in 0..100 {
            let earlier = MonotonicClock::new().now();
            let now = timer.now();
            let later = MonotonicClock::new().now();
            assert!(earlier <= now && now <= later, "{earlier}, {now}, {later}");
        }
    }
    static THREAD: ThreadTimer = ThreadTimer::new();
    agrees(&THREAD);
    #[cfg(feature = "async-io")]
    {
        static ASYNC_IO: portcullis_async::AsyncIoTimer = portcullis_async::AsyncIoTimer::new();
        agrees(&ASYNC_IO);
    }
}
