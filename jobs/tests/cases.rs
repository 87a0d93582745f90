//! The behaviour that the tests of go-batcher v2 show for its `Batcher`, and the arithmetic of the
//! rate limiting pattern of the Azure Architecture Center.
//!
//! Each function is a test, or a group of tests, of `v2/batcher_test.go`, in our spelling, and
//! names the intended differences. Time is virtual, also where those tests sleep.

#[path = "support/virtual_time.rs"]
mod virtual_time;

use core::future::{Future, ready};
use core::time::Duration;
use std::collections::VecDeque;

use futures_util::future::join;
use futures_util::{StreamExt as _, stream};
use portcullis_async::Queue;
use portcullis_core::{FixedWindow, Rate, Retry, Timestamp, TokenBucket};
use portcullis_fleet::Pool;
use portcullis_jobs::{Handle, Jobs, Pace, RunEnd, SlowDown, WriteOutcome, Written};
use virtual_time::{Log, VirtualTimer, World};

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

const fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

/// A queue whose permits are used up, at a rate of zero.
fn without_capacity(world: &World) -> Queue<TokenBucket, VirtualTimer> {
    let queue = Queue::new(TokenBucket::new(Rate::ZERO, 1), world.timer(), 10_000);
    assert!(queue.try_acquire(1).is_ok());
    queue
}

/// Ends the run when `check` is over.
fn checked<T>(
    world: &World,
    handle: &Handle,
    run: impl Future<Output = T>,
    check: impl AsyncFnOnce(),
) -> T {
    let check = async {
        check().await;
        handle.stop();
    };
    world.run(join(run, check)).0
}

/// `TestBatcher_NeedsCapacity`: what is enqueued counts, until its write is over.
#[test]
fn cost_target() {
    let world = World::default();
    let jobs = without_capacity(&world);
    let jobs = Jobs::new(&jobs, world.timer())
        .cost(|cost: &u32| *cost)
        .look_ahead(10);
    let handle = jobs.handle();
    // The source has no end yet.
    let source = stream::iter([800, 300]).chain(stream::pending());
    let run = jobs.run(source, |_| ready(WriteOutcome::Done));
    checked(&world, &handle, run, async || {
        world.sleep(ms(1)).await;
        assert_eq!(handle.progress().needs, 1_100);
    });

    // Done subtracts.
    let queue = Queue::new(TokenBucket::new(Rate::ZERO, 2_000), world.timer(), 10_000);
    let jobs = Jobs::new(&queue, world.timer())
        .cost(|cost: &u32| *cost)
        .concurrency(2);
    let handle = jobs.handle();
    let source = stream::iter([800, 300]).chain(stream::pending());
    let run = jobs.run(source, async |batch| {
        world.sleep(ms(u64::from(*batch[0]))).await;
        WriteOutcome::Done
    });
    checked(&world, &handle, run, async || {
        for (time, needs) in [(1, 1_100), (300, 800), (500, 0)] {
            world.sleep(ms(time)).await;
            assert_eq!(handle.progress().needs, needs);
        }
    });
}

/// `TestBatcher_Pause`: nothing is processed in a pause, a pause in a pause does not extend it, and
/// the default is 500 ms. A time cannot be negative here.
///
/// A service that asks for a later time in a pause does extend it: it would reject everything
/// before.
#[test]
fn pause() {
    for (wish, expected) in [(None, 500), (Some(ms(750)), 750)] {
        let world = World::default();
        let queue = Queue::new(
            TokenBucket::new(Rate::per_second(1_000), 1),
            world.timer(),
            9,
        );
        let jobs = Jobs::new(&queue, world.timer()).interval(Duration::ZERO);
        let handle = jobs.handle();
        let log = Log::default();
        let run = jobs.run(stream::repeat(()), |_| {
            log.add(world.now(), ());
            ready(WriteOutcome::Done)
        });
        let pause = || wish.map_or_else(|| handle.pause(), |time| handle.pause_for(time));
        checked(&world, &handle, run, async || {
            world.sleep(Duration::from_micros(10_500)).await;
            pause();
            world.sleep(ms(300)).await;
            pause();
            world.sleep(ms(1_000)).await;
        });
        let times: Vec<_> = log.all().into_iter().map(|(at, ())| at).collect();
        let resumed = at(10)
            .saturating_add(Duration::from_micros(500))
            .saturating_add(ms(expected));
        let gap = times
            .windows(2)
            .find(|pair| pair[1] > pair[0].saturating_add(ms(2)))
            .unwrap();
        assert_eq!(gap, [at(10), resumed]);
    }
}

/// `TestBatcher_MaxOperationTime`: an operation that takes longer than the longest time counts no
/// more; with the default of a minute, it still does.
///
/// The write is also cancelled, and the operation is tried again, up to the limit of attempts. In
/// go-batcher the write goes on, and nothing tells that it was too late.
#[test]
fn operation_timeout() {
    for (longest, needs) in [(Some(ms(50)), 0), (None, 100)] {
        let world = World::default();
        let queue = Queue::new(TokenBucket::new(Rate::ZERO, 100), world.timer(), 100);
        let mut jobs = Jobs::new(&queue, world.timer()).attempts(1);
        if let Some(longest) = longest {
            jobs = jobs.timeout(longest);
        }
        let jobs = jobs.cost(|_: &u32| 100);
        let handle = jobs.handle();
        let source = stream::iter([0]).chain(stream::pending());
        let run = jobs.run(source, async |_| {
            world.sleep(ms(200)).await;
            WriteOutcome::Done
        });
        checked(&world, &handle, run, async || {
            world.sleep(ms(49)).await;
            assert_eq!(handle.progress().needs, 100);
            world.sleep(ms(51)).await;
            assert_eq!(handle.progress().needs, needs);
        });
        assert_eq!(
            world.now(),
            if longest.is_some() { at(100) } else { at(200) }
        );
    }
}

/// `TestBatcher_Flush` with a rate limiter: capacity 100 per second, operations that cost 100, and
/// a flush each 100 ms. go-batcher releases two operations within 250 ms, because the last
/// operation of a flush may exceed its capacity, and the excess is forgotten. That is up to 1,000
/// per second.
///
/// Here there is one per second.
#[test]
fn overshoot() {
    let world = World::default();
    let pace = Pace::new(Rate::per_second(100), ms(100));
    let queue = Queue::new(pace.empty_bucket(at(0)).unwrap(), world.timer(), 100);
    let log = Log::default();
    let jobs = Jobs::new(&queue, world.timer()).cost(|_: &u32| 100);
    let report = world.run(jobs.run(stream::iter(0..5), |_| {
        log.add(world.now(), ());
        ready(WriteOutcome::Done)
    }));
    let times: Vec<_> = log.all().into_iter().map(|(at, ())| at).collect();
    assert_eq!(times, [1_000, 2_000, 3_000, 4_000, 5_000].map(at));
    assert_eq!(report.progress.permits, 500);
}

/// The same flush truncates 0.5 to 0: at 5 per second, go-batcher releases nothing, for ever. Here
/// the fraction is kept.
#[test]
fn truncation() {
    let world = World::default();
    let pace = Pace::new(Rate::per_second(5), ms(100));
    let queue = Queue::new(pace.empty_bucket(at(0)).unwrap(), world.timer(), 100);
    let jobs = Jobs::new(&queue, world.timer());
    let report = world.run(jobs.run(stream::iter(0..50), |_| ready(WriteOutcome::Done)));
    assert_eq!((report.progress.written, world.now()), (50, at(10_000)));
}

/// The service of the pattern: 20,000 units in each window of a second.
struct Service {
    world: World,
    window: FixedWindow,
    sends: u64,
    errors: u64,
}

impl Service {
    fn new(world: &World) -> Self {
        Self {
            world: world.clone(),
            window: FixedWindow::new(20_000, ms(1_000)),
            sends: 0,
            errors: 0,
        }
    }

    /// Writes a record of 10 units, or says when the next window begins.
    fn write(&mut self) -> Result<(), Retry> {
        self.sends += 1;
        let written = self.window.try_acquire_at(self.world.now(), 10);
        written.map(|_| ()).map_err(|denied| {
            self.errors += 1;
            denied.retry(&self.window)
        })
    }
}

/// Ten thousand records of 10 units at 20,000 units per second take 5 s.
#[test]
fn seed_arithmetic_of_the_time() {
    let pace = Pace::new(Rate::per_second(20_000), ms(20));
    assert_eq!(pace.time_for(10_000 * 10), Some(ms(5_000)));
}

/// A thousand naive senders, with ten records each: 30,000 sends and 20,000 errors.
#[test]
fn seed_arithmetic_of_naive_senders() {
    let world = World::default();
    let mut service = Service::new(&world);
    let mut senders: VecDeque<u32> = (0..1_000).map(|_| 10).collect();
    world.run(async {
        while !senders.is_empty() {
            let mut next = None;
            for records in core::mem::take(&mut senders) {
                let rejected = (0..records).filter(|_| {
                    let written = service.write();
                    next = written.err().or(next);
                    written.is_err()
                });
                let rejected = u32::try_from(rejected.count()).unwrap();
                if rejected > 0 {
                    senders.push_back(rejected);
                }
            }
            let wait = next.and_then(|next: Retry| next.wait_from(world.now()));
            world.sleep(wait.unwrap_or_default()).await;
        }
    });
    assert_eq!((service.sends, service.errors), (30_000, 20_000));
}

/// Paced jobs: 10,000 sends, no error, 5 s. The windows of the service lie somewhere.
#[test]
fn seed_arithmetic_of_paced_jobs() {
    for phase in [0, 1, 500, 999] {
        let world = World::default();
        world.run(world.sleep(ms(phase)));
        let service = core::cell::RefCell::new(Service::new(&world));
        let pace = Pace::new(Rate::per_second(20_000), ms(20));
        let bucket = pace.empty_bucket(world.now()).unwrap();
        let queue = Queue::new(bucket, world.timer(), pace.burst());
        let jobs = Jobs::new(&queue, world.timer())
            .interval(pace.interval())
            .cost(|_: &u32| 10)
            .batch(10)
            .concurrency(2)
            .slow_down(SlowDown::new().percent(100));
        let run = jobs.run(stream::iter(0..10_000), async |batch| {
            world.sleep(ms(1)).await;
            let outcome = |written: Result<(), Retry>| match written {
                Ok(()) => WriteOutcome::Done,
                Err(retry) => WriteOutcome::Overloaded {
                    retry_after: retry.wait_from(world.now()),
                },
            };
            let mut service = service.borrow_mut();
            Written::each(batch.iter().map(|_| outcome(service.write())))
        });
        let report = world.run(run);
        assert_eq!(
            (report.ended, report.progress.written),
            (RunEnd::Finished, 10_000)
        );
        let service = service.into_inner();
        assert!(
            service.sends <= 10_100,
            "{} sends at phase {phase}",
            service.sends
        );
        let time = world.now().saturating_since(at(phase));
        assert!(
            time >= ms(5_000) && time <= ms(5_100),
            "{time:?} at phase {phase}"
        );
    }
}

/// 100 per second as 20 each 200 ms, never as 100 at once.
#[test]
fn seed_arithmetic_of_the_pace() {
    let world = World::default();
    let pace = Pace::new(Rate::per_second(100), ms(200));
    let queue = Queue::new(pace.bucket().unwrap(), world.timer(), pace.burst());
    let log = Log::default();
    let jobs = Jobs::new(&queue, world.timer())
        .interval(pace.interval())
        .batch(100);
    world.run(jobs.run(stream::iter(0..100), |batch| {
        log.add(world.now(), batch.len());
        ready(WriteOutcome::Done)
    }));
    assert_eq!(
        log.all(),
        [0, 200, 400, 600, 800].map(|time| (at(time), 20))
    );
}

/// 500 per second are 20 partitions of 25 per second. A process that wants 100 per second asks for
/// 4. It is granted 2, and sends 50 per second: 100 requests in 2 s.
#[test]
fn seed_arithmetic_of_partitions() {
    let pool = Pool::builder("requests", Rate::per_second(500))
        .partitions(20)
        .build()
        .unwrap();
    assert_eq!(pool.rate_of(1), Rate::per_second(25));
    assert_eq!(pool.wanted(100), 4);
    let world = World::default();
    let pace = Pace::new(pool.rate_of(2), ms(20));
    let queue = Queue::new(pace.empty_bucket(at(0)).unwrap(), world.timer(), 100);
    let jobs = Jobs::new(&queue, world.timer()).interval(pace.interval());
    let report = world.run(jobs.run(stream::iter(0..100), |_| ready(WriteOutcome::Done)));
    assert_eq!((report.progress.written, world.now()), (100, at(2_000)));
}
