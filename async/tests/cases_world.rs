//! The behaviour that the tests of other rate limiters show for waiters.
//!
//! Each module is one of their suites. Each function is the test of that name there, in our
//! spelling. Time is manual, also where those tests sleep; threads are used only where threads hand
//! permits to each other. The function names the intended differences.

mod support;

use core::task::Poll;
use core::time::Duration;
use std::sync::Arc;
use std::thread;

use portcullis_async::{Acquire, Next, Queue, Rejected};
use portcullis_core::queue::QueueLimiter;
use portcullis_core::state::Carry;
use portcullis_core::{
    AdjustableBucket, Clock, Concurrency, FixedWindow, Lease, LimiterExt, ManualClock, Rate, Retry,
    Timestamp, TokenBucket, Unlimited,
};
use support::{Hand, Manual, Task, available, now, permits, queue};

const MILLI: Duration = Duration::from_millis(1);

const fn millis(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn late(permits: u32, at: Timestamp) -> Rejected {
    Rejected::Deadline {
        permits,
        retry: Retry::At(at),
    }
}

/// golang.org/x/time/rate, `rate_test.go`. Times are in tenths of a second.
mod x_time_rate {
    use super::*;

    fn at(tenths: u64) -> Timestamp {
        millis(tenths * 100)
    }

    /// A queue at ten per second.
    fn limiter(burst: u64) -> Manual<TokenBucket> {
        queue(TokenBucket::new(Rate::per_second(10), burst), 100)
    }

    /// The outcome of a wait, and how long it took.
    fn wait<L: QueueLimiter>(queue: &Manual<L>, n: u32) -> (Result<u32, Rejected>, Duration) {
        let since = queue.clock().now();
        let mut task = Task::new(queue.acquire(n));
        loop {
            if let Poll::Ready(outcome) = task.poll() {
                return (
                    permits(outcome),
                    queue.clock().now().saturating_since(since),
                );
            }
            let Next::At(next) = queue.advance() else {
                panic!("the queue needs a next instant")
            };
            queue.clock().set(next);
            queue.advance();
        }
    }

    /// `TestWaitSimple`.
    #[test]
    fn wait_simple() {
        let queue = limiter(3);
        drop(queue.acquire(1));
        assert_eq!(
            available(&queue),
            3,
            "a wait that was cancelled before it began"
        );
        assert_eq!(
            now(queue.acquire(4)).unwrap_err(),
            Rejected::ExceedsCapacity {
                permits: 4,
                capacity: 3
            },
            "more than the burst"
        );
        assert_eq!(wait(&queue, 2), (Ok(2), Duration::ZERO));
        assert_eq!(wait(&queue, 3), (Ok(3), 200 * MILLI));
    }

    /// `TestWaitCancel`. Differs: a wait takes nothing before it is granted, so nothing has to be
    /// returned.
    #[test]
    fn wait_cancel() {
        let queue = limiter(3);
        assert_eq!(wait(&queue, 2), (Ok(2), Duration::ZERO));
        let cancelled = Task::waiting(queue.acquire(3));
        queue.clock().set(at(1));
        assert_eq!(available(&queue), 2);
        drop(cancelled);
        assert_eq!(wait(&queue, 2), (Ok(2), Duration::ZERO));
    }

    /// `TestWaitTimeout`.
    #[test]
    fn wait_timeout() {
        let queue = limiter(3);
        assert_eq!(wait(&queue, 2), (Ok(2), Duration::ZERO));
        assert_eq!(
            now(queue.acquire(3).until(at(1))).unwrap_err(),
            late(3, at(2))
        );
        assert_eq!(available(&queue), 1, "the timeout takes nothing");
        assert_eq!(now(queue.acquire(1).until(at(1))).unwrap().permits(), 1);
    }

    /// `TestWaitInf`. Differs: the burst of an unlimited rate is still at least 1, and is ignored.
    #[test]
    fn wait_inf() {
        assert_eq!(permits(now(queue(Unlimited, 0).acquire(3))), Ok(3));
        let bucket = TokenBucket::new(Rate::UNLIMITED, 1);
        assert_eq!(permits(now(queue(bucket, 0).acquire(3))), Ok(3));
    }

    /// `TestSetAfterZeroLimit`, also for a waiter while the limit is zero.
    #[test]
    fn set_after_zero_limit() {
        let queue = queue(AdjustableBucket::new(Rate::ZERO, 1), 9);
        let ten = |now| {
            queue.change(|bucket| bucket.adjust_at(now, Rate::per_second(10), 1, Carry::Keep))
        };
        assert!(queue.try_acquire(1).is_ok() && queue.try_acquire(1).is_err());
        assert_eq!(
            now(queue.acquire(1).until(at(9))).unwrap_err(),
            Rejected::Deadline {
                permits: 1,
                retry: Retry::Never
            }
        );
        let waits = Task::waiting(queue.acquire(1));
        assert_eq!(
            queue.advance(),
            Next::OnRelease,
            "nothing comes in at a rate of zero"
        );
        queue.clock().set(at(5));
        ten(at(5)).unwrap();
        assert_eq!(queue.advance(), Next::At(at(6)));
        queue.clock().set(at(6));
        queue.advance();
        assert_eq!(permits(waits.outcome()), Ok(1));
        assert_eq!(wait(&queue, 1), (Ok(1), 100 * MILLI));
    }
}

/// folly, `BatonTest`, `SemaphoreTest` and `ThrottledLifoSemTest`.
mod folly {
    use super::*;

    /// A waiter is gone as soon as it is woken: the posting thread does not touch it any more.
    #[test]
    fn handoff_destruction() {
        const WAITERS: usize = 16;
        const ROUNDS: usize = if cfg!(debug_assertions) { 64 } else { 640 };
        let queue: Arc<Queue<_, ManualClock>> = Arc::new(Queue::new(
            Concurrency::new(1),
            ManualClock::new(),
            u64::MAX,
        ));
        let wakes: usize = thread::scope(|scope| {
            let waiters: Vec<_> = (0..WAITERS)
                .map(|_| {
                    scope.spawn(|| {
                        (0..ROUNDS)
                            .filter(|_| {
                                let own = Arc::clone(&queue);
                                let wait = Box::pin(Acquire::new(own, 1));
                                futures_executor::block_on(wait).is_ok()
                            })
                            .count()
                    })
                })
                .collect();
            waiters
                .into_iter()
                .map(|waiter| waiter.join().unwrap())
                .sum()
        });
        assert_eq!(wakes, WAITERS * ROUNDS);
        assert_eq!((queue.available(), queue.counts().waiters), (1, 0));
    }

    #[test]
    fn ping_pong() {
        const THREADS: u64 = 4;
        const ROUNDS: u64 = if cfg!(debug_assertions) { 512 } else { 4_096 };
        let queue: Queue<_, ManualClock> =
            Queue::new(Concurrency::new(1), ManualClock::new(), THREADS);
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| (0..ROUNDS).for_each(|_| drop(queue.blocking_acquire(1).unwrap())));
            }
        });
        assert_eq!((queue.available(), queue.counts().waiters), (1, 0));
    }

    /// `ThrottledLifoSem`: the newest waiter goes first.
    #[test]
    fn basic() {
        let queue = support::newest_first(Concurrency::new(1), 9);
        let held = queue.try_acquire(1).unwrap();
        assert!(queue.try_acquire(1).is_err());
        let until = Task::waiting(queue.acquire(1).until(millis(1)));
        queue.clock().set(millis(1));
        queue.advance();
        let in_vain = Rejected::Deadline {
            permits: 1,
            retry: Retry::OnRelease,
        };
        assert_eq!(permits(until.outcome()), Err(in_vain));
        let [mut first, last] = [1, 1].map(|n| Task::waiting(queue.acquire(n)));
        drop(held);
        assert!(first.is_pending());
        drop(last.outcome().unwrap());
        assert_eq!(permits(first.outcome()), Ok(1));
    }
}

/// clipperhouse/rate, `limiter_test.go`: `Wait`.
mod clipperhouse {
    use super::*;

    #[test]
    fn wait() {
        let queue = queue(TokenBucket::new(Rate::new(2, 100 * MILLI), 2), 9);
        drop(now(queue.acquire(2)).unwrap());
        let one = Task::waiting(queue.acquire(1));
        assert_eq!(queue.advance(), Next::At(millis(50)));
        queue.clock().set(millis(50));
        queue.advance();
        assert_eq!(permits(one.outcome()), Ok(1));
        drop(Task::waiting(queue.acquire(1)));
        queue.clock().set(millis(100));
        assert_eq!(available(&queue), 1, "a cancelled wait took nothing");
    }
}

/// Guava, `RateLimiterTest`: waits with a timeout. Five per second, one at a time.
mod guava {
    use super::*;

    #[test]
    fn try_acquire_with_wait_allowed() {
        let queue = queue(TokenBucket::new(Rate::per_second(5), 1), 9);
        let until = |at| queue.acquire(1).until(millis(at));
        assert!(now(until(0)).is_ok());
        let waits = Task::waiting(until(200));
        queue.clock().set(millis(200));
        queue.advance();
        assert_eq!(permits(waits.outcome()), Ok(1));
        assert_eq!(now(until(300)).unwrap_err(), late(1, millis(400)));
        queue.clock().set(millis(300));
        let waits = Task::waiting(until(400));
        queue.clock().set(millis(400));
        queue.advance();
        assert_eq!(permits(waits.outcome()), Ok(1));
    }
}

/// resilience4j, `AtomicRateLimiterTest` and `SemaphoreBulkheadTest`.
mod resilience4j {
    use super::*;

    /// Waiters get permits of later cycles; those that come after the deadline are rejected at
    /// once.
    #[test]
    fn reserve_a_few_cycles_upfront() {
        let cycle = 10 * MILLI;
        let queue = queue(FixedWindow::new(3, cycle), 9);
        let begin = 10_000_000;
        let mut waits = Vec::new();
        for place in 1..=9 {
            queue.clock().set(Timestamp::from_nanos(begin + place));
            let deadline = Timestamp::from_nanos(begin + place + 12_000_000);
            let mut wait = Task::new(queue.acquire(1).until(deadline));
            match place {
                1..=3 => assert_eq!(permits(wait.outcome()), Ok(1)),
                4..=6 => {
                    assert!(wait.is_pending());
                    assert_eq!(queue.advance(), Next::At(millis(20)));
                    waits.push(wait);
                }
                _ => assert_eq!(permits(wait.outcome()), Err(late(1, millis(30)))),
            }
        }
        queue.clock().set(millis(20));
        assert_eq!(queue.advance(), Next::Idle);
        assert!(
            waits
                .into_iter()
                .all(|wait| permits(wait.outcome()) == Ok(1))
        );
    }

    /// Differs: in resilience4j, the reservation of an interrupted waiter is lost.
    #[test]
    fn interrupted_waiter() {
        let queue = queue(FixedWindow::new(1, 250 * MILLI), 9);
        drop(now(queue.acquire(1)).unwrap());
        drop(Task::waiting(queue.acquire(1)));
        queue.clock().set(millis(250));
        assert_eq!(available(&queue), 1);
    }

    /// A bulkhead of one, with a wait of up to 50 ms.
    #[test]
    fn bulkhead_wait() {
        let queue = queue(Concurrency::new(1), 9);
        let held = now(queue.acquire(1)).unwrap();
        let mut second = Task::waiting(queue.acquire(1).until(millis(50)));
        queue.clock().set(Timestamp::from_nanos(49_999_999));
        assert_eq!(queue.advance(), Next::At(millis(50)));
        assert!(second.is_pending());
        queue.clock().set(millis(50));
        queue.advance();
        let in_vain = Rejected::Deadline {
            permits: 1,
            retry: Retry::OnRelease,
        };
        assert_eq!(permits(second.outcome()), Err(in_vain));
        drop(held);
    }

    /// Differs: in resilience4j, a smaller limit is waited for. Here it applies at once, and takes
    /// effect as permits return.
    #[test]
    fn bulkhead_shrink() {
        let queue = queue(Concurrency::new(2), 9);
        let [first, second] = [1, 1].map(|n| now(queue.acquire(n)).unwrap());
        let mut waits = Task::waiting(queue.acquire(1));
        queue.change(|limit| limit.set_limit(1)).unwrap();
        drop(first);
        assert!(waits.is_pending());
        assert_eq!(available(&queue), 0);
        drop(second);
        assert_eq!(permits(waits.outcome()), Ok(1));
        assert_eq!(available(&queue), 1);
    }
}

/// Netflix concurrency-limits, `LifoBlockingLimiterTest` and `BlockingLimiterTest`.
mod netflix {
    use super::*;

    #[test]
    fn adapt_when_limit_increases_and_decreases() {
        let queue = support::newest_first(Concurrency::new(4), 9);
        let mut held: Vec<_> = (0..4).map(|_| now(queue.acquire(1)).unwrap()).collect();
        queue.change(|limit| limit.set_limit(5)).unwrap();
        held.push(now(queue.acquire(1)).unwrap());
        queue.change(|limit| limit.set_limit(3)).unwrap();
        drop(held.pop());
        let mut waits = Task::waiting(queue.acquire(1));
        drop(held.pop());
        assert!(waits.is_pending());
        drop(held.pop());
        assert_eq!(permits(waits.outcome()), Ok(1));
    }

    #[test]
    fn test_multiple_blocked_threads() {
        let queue: Queue<_, ManualClock> = Queue::new(Concurrency::new(1), ManualClock::new(), 8);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| drop(queue.blocking_acquire(1).unwrap()));
            }
        });
        assert_eq!(queue.available(), 1);
    }

    /// A timeout of any length works.
    #[test]
    fn test_timeout() {
        let queue = queue(Concurrency::new(1), 8);
        let _held = now(queue.acquire(1)).unwrap();
        for timeout in [50 * MILLI, Duration::from_hours(24)] {
            let deadline = queue.clock().now().saturating_add(timeout);
            let waits = Task::waiting(queue.acquire(1).until(deadline));
            assert_eq!(queue.advance(), Next::At(deadline));
            queue.clock().set(deadline);
            queue.advance();
            assert!(matches!(
                waits.outcome(),
                Err(Rejected::Deadline { permits: 1, .. })
            ));
        }
    }

    /// The limit falls from 10 to 1 while all permits are held; then all are released.
    #[test]
    fn unblock_when_full_before_timeout() {
        let queue = queue(Concurrency::new(10), 8);
        let held: Vec<Lease<&Queue<Concurrency, Hand>>> =
            (0..10).map(|_| now(queue.acquire(1)).unwrap()).collect();
        let waits = Task::waiting(queue.acquire(1));
        queue.change(|limit| limit.set_limit(1)).unwrap();
        for (back, lease) in held.into_iter().enumerate() {
            assert_eq!(waits.wakes(), 0, "{back}");
            drop(lease);
        }
        let lease = waits.outcome().unwrap();
        assert!(queue.try_acquire_at(Timestamp::ZERO, 1).is_err());
        drop(lease);
    }
}
