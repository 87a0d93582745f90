//! A queue without a driver: the first request that waits arms the timer, and passes this on when
//! it leaves.

mod support;

use core::panic::AssertUnwindSafe;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::task::{Poll, Waker};
use core::time::Duration;
use std::panic::catch_unwind;
use std::sync::Arc;

use futures_executor::block_on;
use portcullis_async::{
    KeyedQueue, Next, Order, Queue, ReentrantTimer, Rejected, ThreadTimer, Timer,
};
use portcullis_core::keyed::{Line, Seed, TokenBucketRules};
use portcullis_core::{Clock, Concurrency, Keyed, MonotonicClock, Rate, Timestamp, TokenBucket};
use support::random::Random;
use support::{Hand, Task, permits, queue, waker};

const fn secs(seconds: u64) -> Timestamp {
    Timestamp::from_secs(seconds)
}

const fn millis(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

/// One permit a second, none at first.
fn bucket(burst: u64) -> TokenBucket {
    TokenBucket::builder(Rate::per_second(1), burst)
        .initial(0)
        .build()
        .unwrap()
}

#[test]
fn a_wait_is_granted_without_a_driver() {
    let bucket = TokenBucket::new(Rate::per_second(200), 1);
    let queue = Queue::new(bucket, ThreadTimer::new(), 99);
    let begun = queue.clock().now();
    for _ in 0..4 {
        assert_eq!(permits(block_on(queue.acquire(1))), Ok(1));
    }
    let took = queue.clock().now().saturating_since(begun);
    assert!(took >= Duration::from_millis(15), "{took:?}");
}

#[test]
fn waits_of_many_threads_are_granted_without_a_driver() {
    let bucket = TokenBucket::new(Rate::per_second(2_000), 1);
    let queue = Queue::new(bucket, ThreadTimer::new(), 99);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..20 {
                    assert_eq!(permits(block_on(queue.acquire(1))), Ok(1));
                }
            });
        }
    });
    assert_eq!(queue.counts().waiters, 0);
}

/// The wait that drives may be cancelled, expire or be granted at any moment; the others go on.
#[test]
fn waits_that_are_dropped_by_many_threads_leave_no_waiter_asleep() {
    let bucket = TokenBucket::new(Rate::per_second(20_000), 1);
    let queue: Queue<_, _> = Queue::new(bucket, ThreadTimer::new(), 99);
    let granted = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (queue, granted) = (&queue, &granted);
            scope.spawn(move || {
                let mut random = Random::new(thread);
                for _ in 0..300 {
                    let outcome = match random.below(4) {
                        // Polled once, and dropped.
                        0 => {
                            let mut wait = Task::new(queue.acquire(1));
                            drop(wait.poll());
                            continue;
                        }
                        1 => {
                            let timeout = Duration::from_micros(random.below(400));
                            block_on(queue.acquire(1).within(timeout))
                        }
                        _ => block_on(queue.acquire(1)),
                    };
                    granted.fetch_add(usize::from(outcome.is_ok()), Ordering::Relaxed);
                }
            });
        }
    });
    let counts = queue.counts();
    assert_eq!((counts.waiters, counts.permits), (0, 0));
    assert!(granted.into_inner() >= 8 * 100);
}

/// A timer that counts how often it is armed, and never wakes.
struct Counts(MonotonicClock, AtomicUsize);

impl Clock for Counts {
    fn now(&self) -> Timestamp {
        self.0.now()
    }
}

impl Timer for Counts {
    fn wake_at(&self, _: Timestamp, _: &Waker) -> Poll<()> {
        self.1.fetch_add(1, Ordering::Relaxed);
        Poll::Pending
    }
}

#[test]
fn blocked_threads_do_not_use_the_timer() {
    let bucket = TokenBucket::new(Rate::per_second(200), 1);
    let timer = Counts(MonotonicClock::new(), AtomicUsize::new(0));
    let queue = Queue::new(bucket, timer, 99);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..3 {
                    assert_eq!(permits(queue.blocking_acquire(1)), Ok(1));
                }
            });
        }
    });
    assert_eq!(queue.clock().1.load(Ordering::Relaxed), 0);
}

#[test]
fn a_wait_of_a_key_is_granted_without_a_driver() {
    let rules = TokenBucketRules::new(Rate::per_second(200), 1);
    let table = Keyed::new(rules, [const { Line::new() }; 4], Seed::new());
    let queue = KeyedQueue::new(table, ThreadTimer::new(), 99);
    for _ in 0..3 {
        for key in ["a", "b"] {
            assert_eq!(permits(block_on(queue.acquire(key, 1))), Ok(1));
        }
    }
}

#[test]
fn the_first_wait_arms_the_timer_within_its_poll() {
    let queue = queue(bucket(5), 99);
    let task = Task::waiting(queue.acquire(2));
    assert_eq!(queue.clock().alarm(), Some(secs(2)));
    assert_eq!(task.wakes(), 0);
}

#[test]
fn the_first_wait_grants_all_that_is_due_and_arms_the_timer_again() {
    let queue = queue(bucket(5), 99);
    let first = Task::waiting(queue.acquire(3));
    let mut second = Task::waiting(queue.acquire(1));
    assert_eq!(queue.clock().armed(), [secs(3)]);
    queue.clock().jump(secs(3));
    assert_eq!((first.wakes(), second.wakes()), (1, 0));
    assert_eq!(permits(first.outcome()), Ok(3));
    // The second one has been told.
    assert_eq!(second.wakes(), 1);
    assert!(second.is_pending());
    assert_eq!(queue.clock().alarm(), Some(secs(4)));
    queue.clock().jump(secs(4));
    assert_eq!(second.wakes(), 2);
    assert_eq!(permits(second.outcome()), Ok(1));
    assert_eq!(queue.clock().alarm(), None);
}

#[test]
fn a_wait_that_is_dropped_passes_the_timer_on() {
    let queue = queue(bucket(5), 99);
    let first = Task::waiting(queue.acquire(1));
    let mut second = Task::waiting(queue.acquire(1));
    let third = Task::waiting(queue.acquire(1));
    assert_eq!(queue.clock().alarm(), Some(secs(1)));
    drop(first);
    assert_eq!((second.wakes(), third.wakes()), (1, 0));
    queue.clock().jump(millis(900));
    assert!(second.is_pending());
    queue.clock().jump(secs(1));
    assert_eq!((second.wakes(), third.wakes()), (2, 0));
    assert_eq!(permits(second.outcome()), Ok(1));
    assert_eq!(third.wakes(), 1);
}

#[test]
fn a_wait_that_is_due_earlier_takes_the_timer_over() {
    let queue = Queue::new(Concurrency::new(1), Hand::new(), 99);
    let held = block_on(queue.acquire(1)).unwrap();
    let late = Task::waiting(queue.acquire(1).until(secs(8)));
    assert_eq!(queue.clock().alarm(), Some(secs(8)));
    let early = Task::waiting(queue.acquire(1).until(secs(3)));
    assert_eq!(queue.clock().alarm(), Some(secs(3)));
    queue.clock().jump(secs(3));
    assert_eq!((late.wakes(), early.wakes()), (0, 1));
    assert!(matches!(early.outcome(), Err(Rejected::Deadline { .. })));
    assert_eq!(late.wakes(), 1);
    drop((late, held));
}

#[test]
fn a_deadline_behind_a_concurrency_limit_is_met_without_a_driver() {
    let queue = Queue::new(Concurrency::new(1), ThreadTimer::new(), 99);
    let held = block_on(queue.acquire(1)).unwrap();
    let deadline = queue.clock().now().saturating_add(Duration::from_millis(5));
    let late = block_on(queue.acquire(1).until(deadline));
    assert!(matches!(late, Err(Rejected::Deadline { .. })));
    drop(held);
}

#[test]
fn a_driver_takes_the_timer_from_a_wait_and_gives_it_back() {
    let queue = queue(bucket(5), 99);
    let mut wait = Task::waiting(queue.acquire(1));
    let mut drive = Task::waiting(queue.drive());
    queue.clock().jump(millis(500));
    assert_eq!((wait.wakes(), drive.wakes()), (0, 0));
    drop(drive);
    assert_eq!(wait.wakes(), 1);
    assert!(wait.is_pending());
    drive = Task::waiting(queue.drive());
    queue.clock().jump(secs(1));
    assert_eq!((wait.wakes(), drive.wakes()), (1, 1));
    assert!(drive.is_pending());
    assert_eq!(permits(wait.outcome()), Ok(1));
}

#[test]
fn a_queue_that_attends_to_itself_leaves_waits_alone() {
    let queue = Arc::new(queue(bucket(5), 99));
    queue.attend_shared();
    let first = Task::waiting(queue.acquire(1));
    let second = Task::waiting(queue.acquire(1));
    assert_eq!((first.wakes(), second.wakes()), (0, 0));
    queue.clock().jump(secs(1));
    assert_eq!((first.wakes(), second.wakes()), (1, 0));
    queue.clock().jump(secs(2));
    assert_eq!((first.wakes(), second.wakes()), (1, 1));
    assert_eq!(permits(first.outcome()), Ok(1));
    assert_eq!(permits(second.outcome()), Ok(1));
}

#[test]
fn a_wait_whose_waker_panics_is_passed_over() {
    let queue = queue(bucket(5), 99);
    let first = Task::waiting(queue.acquire(1));
    let mut second = Task::new(queue.acquire(1).until(secs(8)));
    assert!(
        second
            .poll_with(&waker(|| panic!("a waker's")))
            .is_pending()
    );
    let mut third = Task::waiting(queue.acquire(1).until(secs(9)));
    assert!(catch_unwind(AssertUnwindSafe(|| drop(first))).is_err());
    assert_eq!(third.wakes(), 1);
    assert!(third.is_pending());
    assert_eq!(queue.clock().alarm(), Some(secs(1)));
    queue.clock().run(secs(2));
    // The third wait drives: it grants the second one, and itself.
    assert_eq!(permits(third.outcome()), Ok(1));
    assert_eq!(permits(second.outcome()), Ok(1));
}

#[test]
fn a_timer_that_panics_lets_the_next_wait_drive() {
    struct Faulty(Hand, AtomicUsize);
    impl Clock for Faulty {
        fn now(&self) -> Timestamp {
            self.0.now()
        }
    }
    impl ReentrantTimer for Faulty {}

    impl Timer for Faulty {
        fn wake_at(&self, at: Timestamp, waker: &core::task::Waker) -> core::task::Poll<()> {
            let left = self.1.load(Ordering::Relaxed);
            if left > 0 {
                self.1.store(left - 1, Ordering::Relaxed);
                panic!("a timer's");
            }
            self.0.wake_at(at, waker)
        }
    }
    let clock = Faulty(Hand::new(), AtomicUsize::new(2));
    let queue = Queue::new(bucket(5), clock, 99);
    let mut first = Task::new(queue.acquire(1));
    let panicked = catch_unwind(AssertUnwindSafe(|| first.poll().is_pending()));
    assert!(panicked.is_err());
    let mut second = Task::new(queue.acquire(1));
    assert!(second.is_pending());
    drop(first);
    assert!(second.is_pending());
    queue.clock().0.run(secs(1));
    assert_eq!(permits(second.outcome()), Ok(1));
}

#[test]
fn newest_first_the_newest_wait_drives_for_the_others() {
    let queue = queue(bucket(5), 99).with_order(Order::NewestFirst);
    let mut old = Task::waiting(queue.acquire(1));
    let new = Task::waiting(queue.acquire(1));
    queue.clock().jump(secs(1));
    assert!(old.wakes() + new.wakes() >= 1);
    assert!(old.is_pending());
    assert_eq!(permits(new.outcome()), Ok(1));
    assert!(old.is_pending());
    queue.clock().run(secs(2));
    assert_eq!(permits(old.outcome()), Ok(1));
}

#[test]
fn a_limit_that_ignores_time_arms_no_timer() {
    let queue = queue(Concurrency::new(1), 99);
    let held = block_on(queue.acquire(1)).unwrap();
    let wait = Task::waiting(queue.acquire(1));
    assert_eq!(queue.clock().armed(), []);
    assert_eq!(queue.advance(), Next::OnRelease);
    drop(held);
    assert_eq!(permits(wait.outcome()), Ok(1));
}
