//! Which driver drives a queue's timers: when one driver leaves, in any way, the next one takes
//! over.

mod support;

use core::future::Future;
use core::panic::AssertUnwindSafe;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::panic::catch_unwind;
use std::sync::{Arc, mpsc};
use std::thread;

use portcullis_async::{
    Acquire, Next, NoTimer, Queue, ReentrantTimer, Rejected, ThreadTimer, Timer,
};
use portcullis_core::limiter::{Answer, Ask, Back, Idle, Read, Reading, Returned};
use portcullis_core::{Clock, Concurrency, MonotonicClock, Rate, Retry, Timestamp, TokenBucket};
use support::{Hand, Shared, Task, permits, queue, waker};

const fn secs(seconds: u64) -> Timestamp {
    Timestamp::from_secs(seconds)
}

/// A bucket of one token per second, empty at first.
fn bucket(burst: u64) -> TokenBucket {
    TokenBucket::builder(Rate::per_second(1), burst)
        .initial(0)
        .build()
        .unwrap()
}

/// A task that drives beside its own wait, and leaves with its permits.
fn driving(queue: &support::Manual<TokenBucket>) -> Task<impl Future<Output = u32>> {
    let (mut drive, mut wait) = (Box::pin(queue.drive()), Box::pin(queue.acquire(1)));
    Task::new(core::future::poll_fn(move |context| {
        assert!(drive.as_mut().poll(context).is_pending());
        wait.as_mut()
            .poll(context)
            .map(|lease| lease.unwrap().permits())
    }))
}

#[test]
fn tasks_that_drive_beside_their_own_waits_are_all_granted() {
    // In order of arrival, and in reverse.
    for polls_backwards in [false, true] {
        let queue = queue(bucket(5), 99);
        let mut tasks: Vec<_> = (0..5).map(|_| Some(driving(&queue))).collect();
        let order: Vec<usize> = if polls_backwards {
            (0..5).rev().collect()
        } else {
            (0..5).collect()
        };
        for &number in &order {
            assert!(tasks[number].as_mut().is_some_and(Task::is_pending));
        }
        let mut seen = [0; 5];
        for second in 1..=5 {
            queue.clock().jump(secs(second));
            // Only woken tasks are polled.
            loop {
                let mut idle = true;
                for number in 0..5 {
                    let Some(task) = tasks[number].as_mut() else {
                        continue;
                    };
                    if task.wakes() > seen[number] {
                        seen[number] = task.wakes();
                        idle = false;
                        if task.poll().is_ready() {
                            tasks[number] = None;
                        }
                    }
                }
                if idle {
                    break;
                }
            }
            assert_eq!(
                queue.counts().granted,
                second,
                "backwards: {polls_backwards}"
            );
        }
        assert!(tasks.iter().all(Option::is_none));
    }
}

#[test]
fn when_a_driver_leaves_the_next_one_is_woken() {
    let queue = queue(bucket(5), 99);
    let _wait = Task::waiting(queue.acquire(1));
    let [mut first, second, third] = [(); 3].map(|()| Task::waiting(queue.drive()));
    drop(third);
    assert_eq!(
        first.wakes() + second.wakes(),
        1,
        "the third driver's waker was armed"
    );
    assert_eq!(first.wakes(), 1);
    assert!(first.is_pending());
    assert_eq!(queue.clock().alarm(), Some(secs(1)));
    // A driver that is not in charge leaves no trace.
    drop(second);
    assert_eq!(first.wakes(), 1);
    queue.clock().jump(secs(1));
    assert_eq!(first.wakes(), 2);
}

#[test]
fn when_a_woken_driver_leaves_before_its_poll_the_next_one_is_woken() {
    let queue = queue(bucket(5), 99);
    let [first, second] = [(); 2].map(|()| Task::waiting(queue.drive()));
    let _wait = Task::waiting(queue.acquire(1));
    assert_eq!((first.wakes(), second.wakes()), (0, 1));
    drop(second);
    assert_eq!(first.wakes(), 1);
}

#[test]
fn drivers_that_share_one_waker_are_distinguished() {
    let queue = queue(bucket(5), 99);
    let wakes = Arc::new(AtomicUsize::new(0));
    let shared = {
        let wakes = Arc::clone(&wakes);
        waker(move || _ = wakes.fetch_add(1, Ordering::Relaxed))
    };
    let mut drivers: Vec<_> = (0..3).map(|_| Box::pin(queue.drive())).collect();
    for driver in &mut drivers {
        assert!(
            driver
                .as_mut()
                .poll(&mut Context::from_waker(&shared))
                .is_pending()
        );
    }
    let _wait = Task::waiting(queue.acquire(1));
    assert_eq!(wakes.load(Ordering::Relaxed), 1);
    // The woken driver leaves: the last one polled, and then the others in their order.
    for leaves in [2, 0, 0] {
        wakes.store(0, Ordering::Relaxed);
        drop(drivers.remove(leaves));
        assert_eq!(
            wakes.load(Ordering::Relaxed),
            usize::from(!drivers.is_empty())
        );
    }
}

#[test]
fn all_drivers_end_when_the_queue_is_closed() {
    let queue = queue(bucket(5), 99);
    let drivers: Vec<_> = (0..40).map(|_| Task::waiting(queue.drive())).collect();
    queue.close();
    assert!(drivers.iter().all(|driver| driver.wakes() == 1));
    assert!(
        drivers
            .into_iter()
            .all(|mut driver| driver.poll().is_ready())
    );
}

#[test]
fn a_driver_polled_once_arms_no_timer_and_leaves_the_armed_one_in_charge() {
    let queue = queue(bucket(5), 99);
    let waits = [(); 2].map(|()| Task::waiting(queue.acquire(1)));
    assert_eq!(queue.advance(), Next::At(secs(1)));
    assert_eq!(queue.clock().armed(), [secs(1)], "the first wait drives");
    let mut driver = Task::waiting(queue.drive());
    // An alarm is due, and another call comes before it: the driver stays in charge, and arms for
    // the next instant.
    queue.clock().set(secs(1));
    assert_eq!(queue.advance(), Next::At(secs(2)));
    queue.clock().run(secs(1));
    assert!(driver.wakes() > 0);
    assert!(driver.is_pending());
    assert_eq!(queue.clock().alarm(), Some(secs(2)));
    drop(waits);
}

#[test]
fn a_new_attendant_takes_over_the_instant_of_a_driver() {
    let queue: Shared<_> = Arc::new(queue(bucket(5), 99));
    let mut driver = Task::waiting(queue.drive());
    let _wait = Task::waiting(Acquire::new(Arc::clone(&queue), 1));
    assert!(driver.is_pending());
    assert_eq!(queue.clock().armed(), [secs(1)]);
    queue.attend_shared();
    assert_eq!(queue.clock().armed(), [secs(1); 2]);
    drop(driver);
    queue.clock().run(secs(1));
    assert_eq!(queue.counts().granted, 1);
}

/// A driver may be in a task that is not polled for a long time: the timer stays the queue's own.
#[test]
fn a_driver_beside_an_attendant_takes_nothing_over() {
    let queue: Shared<_> = Arc::new(queue(bucket(5), 99));
    queue.attend_shared();
    let waits = [(); 2].map(|()| Task::waiting(Acquire::new(Arc::clone(&queue), 1)));
    let driver = Task::waiting(queue.drive());
    queue.clock().run(secs(2));
    assert_eq!(waits.map(|wait| wait.wakes()), [1, 1]);
    drop(driver);
}

mod releases {
    use super::*;
    use portcullis_async::{RawLock, ThreadLock};
    use portcullis_core::limiter::Receipt;
    use portcullis_core::queue::QueueLimiter;
    use portcullis_core::{Denied, Limiter};

    static HELD_BY_ANOTHER: AtomicBool = AtomicBool::new(false);

    /// A lock that panics, instead of waiting, when another context holds it.
    struct Interrupted(ThreadLock);

    // SAFETY: as for the inner lock.
    unsafe impl RawLock for Interrupted {
        fn lock<T>(&self, work: impl FnOnce() -> T) -> T {
            assert!(
                !HELD_BY_ANOTHER.load(Ordering::Relaxed),
                "it would wait for the context that it interrupted"
            );
            self.0.lock(work)
        }

        fn try_lock<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
            if HELD_BY_ANOTHER.load(Ordering::Relaxed) {
                None
            } else {
                self.0.try_lock(work)
            }
        }
    }

    /// A permit and a token.
    struct Both(Concurrency, TokenBucket);

    impl Limiter for Both {
        fn decide(&self, ask: Ask<'_>) -> Answer {
            let (now, n) = (ask.now(), ask.permits());
            if ask.is_look() {
                return ask.looked(self.available_at(now), || u64::MAX);
            }
            self.take(now, n).into()
        }
        fn give_back(&self, back: Back<'_>) -> Returned {
            match back {
                Back::Refund {
                    permits, receipt, ..
                } => {
                    self.release(permits);
                    receipt.refunded(0).into()
                }
                back => self.0.give_back(back),
            }
        }
        fn read(&self, read: Read<'_>) -> Reading {
            let now = read.now();
            Reading {
                available: u64::from(self.0.available()).min(self.1.available_at(now)),
                capacity: u64::MAX,
                idle: Idle::InUse,
                held: 0,
            }
        }
        fn retry(&self, denied: Denied) -> Retry {
            if self.0.available() == 0 {
                Retry::OnRelease
            } else {
                self.1.retry(denied)
            }
        }
    }

    impl Both {
        fn take(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
            let receipt = Limiter::take_at(&self.0, now, n)?;
            self.1
                .take_at(now, n)
                .inspect_err(|_| Limiter::release(&self.0, n))
                .map(|_| receipt)
        }
    }

    impl QueueLimiter for Both {
        const SHARED: bool = false;
    }

    /// A release never waits for the lock, even if it makes the queue arm its timer.
    #[test]
    fn releases_in_an_attended_queue_do_not_wait_for_the_lock() {
        static QUEUE: Queue<Both, Hand, Interrupted> = Queue::with_lock(
            Both(
                Concurrency::new(2),
                TokenBucket::new(Rate::per_second(1), 3),
            ),
            Hand::new(),
            99,
            Interrupted(ThreadLock::new()),
        );
        QUEUE.attend();
        let held = QUEUE.try_acquire(2).unwrap();
        let mut wait = Task::new(QUEUE.acquire(1));
        // Between the grant, after which the next head needs a token, and the queue's own waker.
        let interrupts = waker(|| HELD_BY_ANOTHER.store(true, Ordering::Relaxed));
        assert!(wait.poll_with(&interrupts).is_pending());
        let next = Task::waiting(QUEUE.acquire(1));
        assert_eq!(QUEUE.clock().alarm(), None, "the waiter needs a release");
        drop(held);
        HELD_BY_ANOTHER.store(false, Ordering::Relaxed);
        // What the other context does after it unlocks.
        let _ = QUEUE.counts();
        assert_eq!(QUEUE.clock().alarm(), Some(secs(1)));
        drop(wait);
        QUEUE.clock().run(secs(1));
        assert_eq!(permits(next.outcome()), Ok(1));
    }
}

mod threads {
    use super::*;

    fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
        let (say, hear) = mpsc::channel();
        thread::spawn(move || say.send(work()));
        hear.recv_timeout(Duration::from_secs(20))
            .expect("it sleeps, or has panicked")
    }

    /// A timer that accepts every request, and never wakes.
    struct Dead(MonotonicClock);

    impl Clock for Dead {
        fn now(&self) -> Timestamp {
            self.0.now()
        }
    }

    impl ReentrantTimer for Dead {}

    impl Timer for Dead {
        fn wake_at(&self, at: Timestamp, _: &Waker) -> Poll<()> {
            if at <= self.now() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        }
    }

    fn dead() -> Arc<Queue<TokenBucket, Dead>> {
        let rate = TokenBucket::builder(Rate::per_second(100), 1)
            .initial(0)
            .origin(MonotonicClock::new().now())
            .build()
            .unwrap();
        Arc::new(Queue::new(rate, Dead(MonotonicClock::new()), 99))
    }

    #[test]
    fn a_waiting_thread_drives_though_a_timer_that_never_wakes_attends() {
        let queue = dead();
        queue.attend_shared();
        in_time(move || (0..3).for_each(|_| drop(queue.blocking_acquire(1).unwrap())));
    }

    #[test]
    fn a_waiting_thread_drives_though_a_task_that_is_never_polled_drives() {
        let queue = dead();
        let driver = Task::waiting(queue.drive());
        in_time({
            let queue = Arc::clone(&queue);
            move || (0..3).for_each(|_| drop(queue.blocking_acquire(1).unwrap()))
        });
        drop(driver);
    }

    /// Also for other waiters, and for instants that become earlier while it sleeps.
    #[test]
    fn a_sleeping_thread_drives_for_all_waiters() {
        for attended in [false, true] {
            let queue = Arc::new(Queue::new(
                Concurrency::new(1),
                Dead(MonotonicClock::new()),
                99,
            ));
            if attended {
                queue.attend_shared();
            }
            let held = queue.try_acquire(1).unwrap();
            let sleeps = {
                let queue = Arc::clone(&queue);
                thread::spawn(move || permits(queue.blocking_acquire(1)))
            };
            while queue.counts().waiters == 0 {
                thread::yield_now();
            }
            thread::sleep(Duration::from_millis(20));
            let late = Arc::clone(&queue);
            in_time(move || {
                let until = late.clock().now().saturating_add(Duration::from_millis(30));
                let outcome = futures_executor::block_on(late.acquire(1).until(until));
                assert_eq!(
                    permits(outcome),
                    Err(Rejected::Deadline {
                        permits: 1,
                        retry: Retry::OnRelease
                    })
                );
            });
            drop(held);
            assert_eq!(sleeps.join().unwrap(), Ok(1));
        }
    }

    /// Each thread is in charge for a while, and leaves at its deadline.
    #[test]
    fn when_a_thread_leaves_at_its_deadline_the_next_one_drives() {
        let queue = Arc::new(Queue::new(
            Concurrency::new(1),
            NoTimer(MonotonicClock::new()),
            99,
        ));
        let held = queue.try_acquire(1).unwrap();
        let threads: Vec<_> = (1..=5)
            .map(|number| {
                let queue = Arc::clone(&queue);
                thread::spawn(move || {
                    permits(
                        queue
                            .acquire(1)
                            .within(Duration::from_millis(20 * number))
                            .block(),
                    )
                })
            })
            .collect();
        let late = Err(Rejected::Deadline {
            permits: 1,
            retry: Retry::OnRelease,
        });
        in_time(move || {
            assert!(
                threads
                    .into_iter()
                    .all(|thread| thread.join().unwrap() == late)
            );
        });
        drop(held);
    }

    #[test]
    fn a_thread_whose_hook_panics_leaves_no_driver_behind() {
        let rate = TokenBucket::builder(Rate::per_second(100), 1)
            .initial(0)
            .origin(MonotonicClock::new().now())
            .build()
            .unwrap();
        let queue = Queue::new(rate, NoTimer(MonotonicClock::new()), 99);
        let first = AtomicBool::new(true);
        let queue = Arc::new(queue.with_hook(move |_: &portcullis_async::Waited| {
            assert!(!first.swap(false, Ordering::Relaxed), "a hook");
        }));
        let panics = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || drop(queue.blocking_acquire(1)))
        };
        assert!(panics.join().is_err());
        in_time(move || (0..3).for_each(|_| drop(queue.blocking_acquire(1).unwrap())));
    }

    /// The blocked thread is the one that would run the timer.
    #[cfg(feature = "tokio")]
    #[test]
    fn a_thread_that_blocks_its_own_runtime_is_granted() {
        use portcullis_async::TokioTimer;
        in_time(|| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .build()
                .unwrap();
            let rate = TokenBucket::builder(Rate::per_second(100), 1)
                .initial(0)
                .build()
                .unwrap();
            let queue = Arc::new(Queue::new(
                rate,
                TokioTimer::of(runtime.handle().clone()),
                99,
            ));
            queue.attend_shared();
            runtime.block_on(async {
                for _ in 0..3 {
                    drop(queue.blocking_acquire(1).unwrap());
                }
            });
            // And after the end of the runtime.
            drop(runtime);
            for _ in 0..3 {
                drop(queue.blocking_acquire(1).unwrap());
            }
        });
    }

    #[test]
    fn when_a_driving_thread_unwinds_a_task_takes_over() {
        let rate = TokenBucket::builder(Rate::per_second(1), 5)
            .initial(0)
            .origin(MonotonicClock::new().now())
            .build()
            .unwrap();
        let queue = Arc::new(Queue::new(rate, ThreadTimer::new(), 99));
        let mut driver = Task::waiting(queue.drive());
        let _wait = Task::waiting(queue.acquire(1));
        assert!(driver.is_pending());
        let before = driver.wakes();
        drop(Task::waiting(queue.drive()));
        assert_eq!(driver.wakes(), before + 1);
    }
}

#[test]
fn a_drive_that_was_never_polled_leaves_no_trace() {
    let queue = queue(bucket(5), 99);
    let driver = Task::waiting(queue.drive());
    let _wait = Task::waiting(queue.acquire(1));
    let wakes = driver.wakes();
    drop(queue.drive());
    assert_eq!(driver.wakes(), wakes);
    let unwinds = catch_unwind(AssertUnwindSafe(|| {
        let _driver = queue.drive();
        panic!("the task's own panic");
    }));
    assert!(unwinds.is_err());
}
