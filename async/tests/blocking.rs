//! Threads that wait.

mod support;

use core::task::Poll;
use core::time::Duration;
use std::sync::{Arc, mpsc};
use std::thread;

use portcullis_async::{Acquire, NoTimer, Queue, QueueClock, Rejected};
use portcullis_core::queue::QueueLimiter;
use portcullis_core::{
    Clock, Concurrency, Limiter, LimiterExt, MonotonicClock, Rate, Retry, Timestamp, TokenBucket,
};
use support::{SECOND, START, Task, now, permits};

fn waiters<L: QueueLimiter, C: QueueClock>(queue: &Queue<L, C>, n: u32) {
    while queue.counts().waiters < n {
        thread::yield_now();
    }
}

#[test]
fn threads_and_tasks_are_granted_in_one_order() {
    let queue = Arc::new(Queue::new(
        Concurrency::new(1),
        NoTimer(MonotonicClock::new()),
        99,
    ));
    let held = now(queue.acquire(1)).unwrap();
    let (say, hear) = mpsc::channel();
    let mut threads = Vec::new();
    let mut tasks = Vec::new();
    for number in 0..8 {
        if number % 2 == 0 {
            let (queue, say) = (Arc::clone(&queue), say.clone());
            threads.push(thread::spawn(move || {
                let lease = queue.blocking_acquire(1).unwrap();
                say.send(number).unwrap();
                drop(lease);
            }));
        } else {
            tasks.push((number, Task::waiting(Acquire::new(Arc::clone(&queue), 1))));
        }
        waiters(&queue, number + 1);
    }
    drop(held);
    for (number, mut task) in tasks {
        // The thread before it in the queue is served first.
        assert_eq!(hear.recv().unwrap(), number - 1);
        let lease = loop {
            match task.poll() {
                Poll::Ready(lease) => break lease.unwrap(),
                Poll::Pending => thread::yield_now(),
            }
        };
        assert!(hear.try_recv().is_err(), "no other thread has the permit");
        drop(lease);
    }
    for thread in threads {
        thread.join().unwrap();
    }
    let counts = queue.counts();
    assert_eq!(
        (counts.granted, counts.waiters, queue.available_at(START)),
        (8, 0, 1)
    );
}

#[test]
fn threads_need_no_driver() {
    let queue = Arc::new(Queue::new(
        TokenBucket::new(Rate::per_second(1_000), 1),
        NoTimer(MonotonicClock::new()),
        99,
    ));
    let begun = queue.clock().now();
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let queue = Arc::clone(&queue);
            thread::spawn(move || {
                for _ in 0..10 {
                    assert_eq!(queue.blocking_acquire(1).unwrap().permits(), 1);
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert!(
        queue.clock().now() >= begun + Duration::from_millis(39),
        "1 at once and 39 at 1000/s"
    );
    assert_eq!(queue.counts().waiters, 0);
}

#[test]
fn a_thread_whose_wait_times_out_leaves_no_trace() {
    let queue = Queue::new(Concurrency::new(2), NoTimer(MonotonicClock::new()), 2);
    let held = queue.blocking_acquire(1).unwrap();
    for times in 1..4 {
        let outcome = queue.acquire(2).within(Duration::from_millis(2)).block();
        assert_eq!(
            permits(outcome),
            Err(Rejected::Deadline {
                permits: 2,
                retry: Retry::OnRelease
            })
        );
        let counts = queue.counts();
        assert_eq!((counts.waiters, counts.permits, counts.late), (0, 0, times));
    }
    assert!(queue.try_acquire_at(START, 1).is_ok(), "no waiter is left");
    drop(held);
    assert_eq!(queue.available_at(START), 2);
}

#[test]
fn without_time_to_wait_a_thread_takes_what_is_free() {
    let queue = Queue::new(Concurrency::new(1), NoTimer(MonotonicClock::new()), 2);
    let held = queue.acquire(1).within(Duration::ZERO).block().unwrap();
    let outcome = queue.acquire(1).within(Duration::ZERO).block();
    assert_eq!(
        permits(outcome),
        Err(Rejected::Deadline {
            permits: 1,
            retry: Retry::OnRelease
        })
    );
    drop(held);
    assert!(queue.acquire(1).within(Duration::MAX).block().is_ok());
}

#[test]
fn threads_get_the_same_errors_as_tasks() {
    let queue = Arc::new(Queue::new(
        Concurrency::new(1),
        NoTimer(MonotonicClock::new()),
        1,
    ));
    assert_eq!(
        permits(queue.blocking_acquire(2)),
        Err(Rejected::ExceedsCapacity {
            permits: 2,
            capacity: 1
        })
    );
    let held = queue.blocking_acquire(1).unwrap();
    let thread = {
        let queue = Arc::clone(&queue);
        thread::spawn(move || permits(queue.blocking_acquire(1)))
    };
    waiters(&queue, 1);
    assert_eq!(
        permits(queue.blocking_acquire(1)),
        Err(Rejected::QueueFull {
            permits: 1,
            retry: Retry::OnRelease
        })
    );
    queue.close();
    assert_eq!(thread.join().unwrap(), Err(Rejected::Closed { permits: 1 }));
    assert_eq!(
        permits(queue.acquire(1).within(SECOND).block()),
        Err(Rejected::Closed { permits: 1 })
    );
    drop(held);
}

/// With a manual clock. In real time the threads would sleep for an hour; only the queue wakes
/// them.
mod by_turns {
    use super::*;
    use core::sync::atomic::{AtomicU64, Ordering};

    use portcullis_async::{Hook, Next, ThreadTimer, WaitEnd, Waited};
    use portcullis_core::ManualClock;
    use support::{Hand, Shared, queue};

    /// A bucket of one token per hour, empty at first.
    fn bucket() -> TokenBucket {
        TokenBucket::builder(Rate::per_hour(1), 9)
            .initial(0)
            .build()
            .unwrap()
    }

    const fn hours(n: u64) -> Timestamp {
        Timestamp::from_secs(3_600 * n)
    }

    /// A waiting thread, and its outcome.
    struct Thread<T>(mpsc::Receiver<T>);

    impl<T: Send + 'static> Thread<T> {
        fn new(work: impl FnOnce() -> T + Send + 'static) -> Self {
            let (say, hear) = mpsc::channel();
            thread::spawn(move || say.send(work()));
            Self(hear)
        }

        #[track_caller]
        fn outcome(self) -> T {
            self.0
                .recv_timeout(Duration::from_mins(1))
                .expect("it sleeps, or has panicked")
        }
    }

    /// Starts a thread, and returns once it waits behind all others.
    fn waiting<L, H>(
        queue: &Arc<Queue<L, Hand, portcullis_async::DefaultLock, H>>,
        deadline: Timestamp,
    ) -> Thread<Result<u32, Rejected>>
    where
        L: QueueLimiter + Send + Sync + 'static,
        H: Hook + Send + Sync + 'static,
    {
        let before = queue.counts().waiters;
        let thread = {
            let queue = Arc::clone(queue);
            Thread::new(move || permits(queue.acquire(1).until(deadline).block()))
        };
        while queue.counts().waiters == before {
            thread::yield_now();
        }
        thread
    }

    fn late() -> Result<u32, Rejected> {
        Err(Rejected::Deadline {
            permits: 1,
            retry: Retry::OnRelease,
        })
    }

    #[test]
    fn a_deadline_is_measured_by_the_queues_clock() {
        let queue: Shared = Arc::new(queue(Concurrency::new(1), 9));
        let held = now(queue.acquire(1)).unwrap();
        let [ends, granted] = [hours(1), Timestamp::MAX].map(|deadline| waiting(&queue, deadline));
        queue.clock().set(hours(1));
        queue.advance();
        assert_eq!(ends.outcome(), late());
        drop(held);
        assert_eq!(granted.outcome(), Ok(1));
        assert_eq!((queue.counts().late, queue.available()), (1, 1));
    }

    #[test]
    fn a_thread_that_is_rejected_at_once_does_not_sleep() {
        let queue: Shared<_> = Arc::new(queue(bucket(), 9));
        let refused = queue.acquire(1).within(Duration::from_secs(3_599)).block();
        assert_eq!(
            permits(refused),
            Err(Rejected::Deadline {
                permits: 1,
                retry: Retry::At(hours(1))
            })
        );
        let wait = waiting(&queue, hours(1));
        queue.clock().set(hours(1));
        queue.advance();
        assert_eq!(wait.outcome(), Ok(1), "exactly at the deadline");
    }

    #[test]
    fn when_a_driver_leaves_a_waiting_thread_drives() {
        let queue: Shared<_> = Arc::new(queue(bucket(), 9));
        let mut driver = Task::waiting(queue.drive());
        let wait = waiting(&queue, Timestamp::MAX);
        assert!(driver.wakes() > 0);
        assert!(driver.is_pending());
        queue.clock().set(hours(1));
        drop(driver);
        assert_eq!(wait.outcome(), Ok(1));
    }

    #[test]
    fn when_a_driver_comes_it_drives_and_the_threads_are_granted_by_it() {
        let queue: Shared<_> = Arc::new(queue(bucket(), 9));
        let threads = [(); 3].map(|()| waiting(&queue, Timestamp::MAX));
        let mut driver = Task::waiting(queue.drive());
        for hour in 1..4 {
            assert_eq!(queue.clock().alarm(), Some(hours(hour)));
            let before = driver.wakes();
            queue.clock().run(hours(hour));
            assert!(driver.wakes() > before);
            assert!(driver.is_pending());
        }
        assert_eq!(threads.map(Thread::outcome), [Ok(1); 3]);
    }

    #[test]
    fn an_attended_queue_grants_threads_as_well() {
        let queue: Shared<_> = Arc::new(queue(bucket(), 9));
        queue.attend_shared();
        let threads = [(); 3].map(|()| waiting(&queue, Timestamp::MAX));
        for hour in 1..4 {
            // A thread may hold the lock at this moment. Then it wakes the queue after it unlocks.
            while queue.clock().alarm() != Some(hours(hour)) {
                thread::yield_now();
            }
            queue.clock().run(hours(hour));
        }
        assert_eq!(threads.map(Thread::outcome), [Ok(1); 3]);
        assert_eq!(queue.clock().armed(), [1, 2, 3].map(hours));
    }

    /// Advances the clock by an hour when a wait is granted, before the waiting thread stops
    /// driving.
    struct Later(AtomicU64, Arc<ManualClock>);

    impl Hook for Later {
        fn left(&self, waited: &Waited) {
            if waited.outcome == WaitEnd::Granted {
                self.1
                    .set(hours(1 + self.0.fetch_add(1, Ordering::Relaxed)));
            }
        }
    }

    #[derive(Clone)]
    struct Clock(Arc<ManualClock>);

    impl portcullis_core::Clock for Clock {
        fn now(&self) -> Timestamp {
            self.0.now()
        }
    }

    /// Otherwise no thread would serve the deadlines.
    #[test]
    fn when_the_driving_thread_has_its_permits_the_next_one_drives() {
        let clock = Arc::new(ManualClock::new());
        let queue = Queue::new(Concurrency::new(1), NoTimer(Clock(Arc::clone(&clock))), 99);
        let queue = Arc::new(queue.with_hook(Later(AtomicU64::new(0), Arc::clone(&clock))));
        let mut held = now(Acquire::new(Arc::clone(&queue), 1)).unwrap();
        let waiting_until = |instant| {
            let (say, hear) = mpsc::channel();
            let mut task = Task::new(Acquire::new(Arc::clone(&queue), 1).until(instant));
            assert!(
                task.poll_with(&support::waker(move || say.send(()).unwrap()))
                    .is_pending()
            );
            (task, hear)
        };
        // By a thread that drives and finds that the instant has come.
        let is_late = |(task, hear): (Task<_>, mpsc::Receiver<()>)| {
            hear.recv_timeout(Duration::from_mins(1))
                .expect("a thread drives");
            assert_eq!(permits(task.outcome()), late());
        };
        let threads: Vec<_> = (0..4)
            .map(|number| {
                let thread = {
                    let queue = Arc::clone(&queue);
                    Thread::new(move || Acquire::new(queue, 1).block().unwrap())
                };
                while queue.counts().waiters <= number {
                    thread::yield_now();
                }
                if number == 0 {
                    // It drives before the others come.
                    let instant = Timestamp::from_nanos(1);
                    let waiting = waiting_until(instant);
                    clock.set(instant);
                    is_late(waiting);
                }
                thread
            })
            .collect();
        for (hour, thread) in (1..).zip(threads) {
            let waiting = waiting_until(hours(hour));
            drop(held);
            held = thread.outcome();
            if hour < 4 {
                is_late(waiting);
            }
        }
    }

    /// The thread was told to drive, and is granted before it gets to it.
    #[test]
    fn a_thread_that_is_granted_before_it_has_driven_leaves_that_to_the_next_one() {
        for _ in 0..20 {
            let queue = Arc::new(Queue::new(
                Concurrency::new(2),
                NoTimer(MonotonicClock::new()),
                99,
            ));
            let [one, two] = [(); 2].map(|()| now(Acquire::new(Arc::clone(&queue), 1)).unwrap());
            let mut two = Some(two);
            let mut threads = Vec::new();
            for number in 0..3 {
                let (queue, two) = (Arc::clone(&queue), two.take());
                let wait = Acquire::new(Arc::clone(&queue), 1);
                threads.push(Thread::new(move || {
                    let lease = wait.block().unwrap();
                    // The first thread has driven, and the second one has to drive; it gets its
                    // permit before it is awake.
                    drop(two);
                    lease
                }));
                while queue.counts().waiters <= number {
                    thread::yield_now();
                }
            }
            let (say, hear) = mpsc::channel();
            let deadline = portcullis_core::Clock::now(queue.clock())
                .saturating_add(Duration::from_millis(20));
            let mut task = Task::new(Acquire::new(Arc::clone(&queue), 1).until(deadline));
            assert!(
                task.poll_with(&support::waker(move || say.send(()).unwrap()))
                    .is_pending()
            );
            drop(one);
            hear.recv_timeout(Duration::from_secs(20))
                .expect("a thread drives");
            assert_eq!(permits(task.outcome()), late());
            let leases: Vec<_> = threads.drain(..2).map(Thread::outcome).collect();
            drop(leases);
            drop(threads.pop().unwrap().outcome());
        }
    }

    #[test]
    fn drivers_that_come_and_go_delay_no_waiter() {
        let bucket = TokenBucket::new(Rate::per_second(2_000), 1);
        let queue = Arc::new(Queue::new(bucket, ThreadTimer::new(), 99));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let queue = Arc::clone(&queue);
                Thread::new(move || (0..25).all(|_| permits(queue.blocking_acquire(1)) == Ok(1)))
            })
            .collect();
        for _ in 0..500 {
            let mut driver = Task::new(queue.drive());
            assert!(driver.is_pending());
            thread::yield_now();
            assert!(driver.is_pending());
        }
        assert!(threads.into_iter().all(Thread::outcome));
        assert_eq!((queue.counts().waiters, queue.advance()), (0, Next::Idle));
    }
}
