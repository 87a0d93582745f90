//! Waiting does not allocate. A counting allocator watches each path.

#[path = "../../core/tests/support/allocations.rs"]
mod allocations;
#[macro_use]
#[path = "../../core/tests/support/registry.rs"]
mod registry;

use core::future::Future;
use core::pin::{Pin, pin};
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::sync::Arc;

use allocations::allocations;
use portcullis_async::{
    Acquire, KeyedQueue, Next, NoTimer, Order, Queue, ReentrantTimer, Rejected, Timer,
};
use portcullis_core::keyed::{ConcurrencyRules, Line, Seed};
use portcullis_core::queue::QueueLimiter;
use portcullis_core::state::NativeWord;
use portcullis_core::{
    AllOf, Clock, Concurrency, Keyed, Limiter, LimiterExt, ManualClock, MonotonicClock, Rate,
    Retry, SettingsError, Timestamp, TokenBucket,
};

/// A timer that never wakes.
#[derive(Default)]
struct Still(ManualClock);

impl Clock for Still {
    fn now(&self) -> Timestamp {
        self.0.now()
    }
}

impl Timer for Still {
    fn wake_at(&self, at: Timestamp, _: &Waker) -> Poll<()> {
        if at <= self.now() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

fn poll<F: Future>(wait: &mut Pin<&mut F>) -> Poll<F::Output> {
    wait.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|| drop(core::hint::black_box(Box::new(1)))), 1);
}

#[test]
fn no_wait_allocates_whatever_its_outcome() {
    let count = allocations(|| {
        for order in [Order::OldestFirst, Order::NewestFirst] {
            let queue = Queue::new(Concurrency::new(3), ManualClock::new(), 4).with_order(order);
            // Granted at once.
            let mut ready = pin!(queue.acquire(3));
            let Poll::Ready(Ok(held)) = poll(&mut ready) else {
                panic!("free")
            };
            assert!(
                poll(&mut pin!(queue.acquire(4))).is_ready(),
                "more permits than there are"
            );
            assert!(queue.try_acquire_at(Timestamp::ZERO, 1).is_err());
            // Waits, is polled again, is granted.
            let mut waits = [
                pin!(queue.acquire(1)),
                pin!(queue.acquire(1).up_to(2)),
                pin!(queue.acquire(0)),
            ];
            for wait in &mut waits {
                assert!(poll(wait).is_pending() && poll(wait).is_pending());
            }
            // Cancelled, at the head and elsewhere; rejected, or evicts.
            {
                let mut cancelled = pin!(queue.acquire(1));
                assert!(poll(&mut cancelled).is_pending());
            }
            let mut other = pin!(queue.acquire(3));
            let _ = poll(&mut other);
            assert_eq!(queue.advance(), Next::OnRelease);
            drop(held);
            for wait in &mut waits {
                let _ = poll(wait);
            }
            queue.change(|limit| limit.set_limit(1)).unwrap();
            let _ = (queue.counts(), queue.peek_at(Timestamp::ZERO, 1).is_ok());
            let _ = AllOf::new((&queue,))
                .try_acquire_at(Timestamp::ZERO, 1)
                .is_ok();
            let mut closed = pin!(queue.acquire(1));
            let _ = poll(&mut closed);
            queue.close();
            assert!(poll(&mut pin!(queue.acquire(1))).is_ready());
        }
    });
    assert_eq!(count, 0);
}

#[test]
fn many_waiters_granted_at_once_do_not_allocate() {
    let queue = Queue::new(Concurrency::new(100), ManualClock::new(), 100);
    let mut waits: Vec<_> = (0..100).map(|_| Box::pin(queue.acquire(1))).collect();
    let count = allocations(|| {
        let Poll::Ready(Ok(held)) = poll(&mut pin!(queue.acquire(100))) else {
            panic!("free")
        };
        for wait in &mut waits {
            assert!(poll(&mut wait.as_mut()).is_pending());
        }
        drop(held);
        for wait in &mut waits {
            assert!(poll(&mut wait.as_mut()).is_ready());
        }
    });
    assert_eq!(count, 0);
}

fn waits_for_time(limiter: impl QueueLimiter) {
    let count = allocations(|| {
        let queue = Queue::new(limiter, Still::default(), 9);
        let mut driver = pin!(queue.drive());
        assert!(poll(&mut driver).is_pending());
        assert!(poll(&mut pin!(queue.acquire(2))).is_ready());
        let mut wait = pin!(queue.acquire(1));
        assert!(poll(&mut wait).is_pending());
        assert!(poll(&mut driver).is_pending());
        let Next::At(at) = queue.advance() else {
            panic!("time helps")
        };
        queue.clock().0.set(at);
        assert!(poll(&mut driver).is_pending());
        let Poll::Ready(Ok(mut lease)) = poll(&mut wait) else {
            panic!("granted")
        };
        let _ = lease.refund_at(at, 1);
    });
    assert_eq!(count, 0);
}

/// Waits for a limiter, if its permits return by time.
macro_rules! waits {
    (by_time, $limiter:expr) => {
        waits_for_time($limiter);
    };
    ($_back:ident, $_limiter:expr) => {};
}

macro_rules! all_wait {
    ($($_name:ident: $type:ty {
        on: $_on:tt,
        new: (|$limit:ident, $time:ident| $new:expr),
        on_board: $_board:tt,
        back: $back:ident,
        $($_rest:tt)*
    })*) => {
        $(waits!($back, {
            let ($limit, $time) = (2, Duration::from_secs(2));
            let limiter: Result<$type, SettingsError> = $new;
            limiter.expect("settings that fit")
        });)*
    };
}

#[test]
fn neither_time_nor_a_driver_allocates() {
    type W = NativeWord;
    for_each_limiter!(all_wait);
}

#[test]
fn a_wait_that_owns_the_queue_does_not_allocate() {
    let queue = Arc::new(Queue::new(Concurrency::new(1), ManualClock::new(), 9));
    let count = allocations(|| {
        let Poll::Ready(Ok(held)) = poll(&mut pin!(Acquire::new(Arc::clone(&queue), 1))) else {
            panic!("free")
        };
        let mut wait = pin!(Acquire::new(Arc::clone(&queue), 1));
        assert!(poll(&mut wait).is_pending());
        drop(held);
        assert!(poll(&mut wait).is_ready());
    });
    assert_eq!(count, 0);
}

#[test]
fn a_waiting_thread_allocates_once_for_all_its_waits() {
    let queue = Queue::new(Concurrency::new(1), NoTimer(MonotonicClock::new()), 9);
    let wait = || {
        let held = queue.blocking_acquire(1).unwrap();
        let timed_out = queue.acquire(1).within(Duration::from_micros(10)).block();
        assert!(matches!(
            timed_out,
            Err(Rejected::Deadline {
                permits: 1,
                retry: Retry::OnRelease
            })
        ));
        drop(held);
    };
    wait();
    assert_eq!(allocations(wait), 0);
}

#[test]
fn no_deadline_allocates_whatever_its_outcome() {
    let queue = Queue::new(Concurrency::new(2), ManualClock::new(), 999);
    let mut waits: Vec<_> = (0..50)
        .map(|n| {
            Box::pin(
                queue
                    .acquire(1)
                    .until(Timestamp::from_nanos(1 + n * 37 % 50)),
            )
        })
        .collect();
    let count = allocations(|| {
        let Poll::Ready(Ok(held)) = poll(&mut pin!(queue.acquire(2))) else {
            panic!("free")
        };
        assert!(
            poll(&mut pin!(queue.acquire(1).until(Timestamp::ZERO))).is_ready(),
            "rejected at once"
        );
        for wait in &mut waits {
            assert!(poll(&mut wait.as_mut()).is_pending());
        }
        for time in [3, 9, 30] {
            queue.clock().set(Timestamp::from_nanos(time));
            assert!(matches!(queue.advance(), Next::At(_)));
            let mut cancelled = pin!(queue.acquire(1).until(Timestamp::from_nanos(time + 2)));
            assert!(poll(&mut cancelled).is_pending());
        }
        drop(held);
        queue.clock().set(Timestamp::from_nanos(50));
        assert_eq!(queue.advance(), Next::Idle);
        for wait in &mut waits {
            assert!(poll(&mut wait.as_mut()).is_ready());
        }
        assert!(queue.counts().late >= 30 && queue.counts().granted >= 2);
    });
    assert_eq!(count, 0);
}

#[test]
fn no_wait_for_a_key_allocates_with_any_number_of_keys() {
    let table = Keyed::new(ConcurrencyRules::new(1), Line::for_keys(1_000), Seed::new());
    let queue = KeyedQueue::new(table, ManualClock::new(), 99);
    let mut waits: Vec<_> = (0..200_u64)
        .map(|n| {
            Box::pin(Acquire::new(queue.key(&(n % 100)), 1).until(Timestamp::from_nanos(9 + n)))
        })
        .collect();
    let mut held = Vec::with_capacity(100);
    let count = allocations(|| {
        for key in 0..100_u64 {
            held.push(queue.try_acquire(&key, 1).unwrap());
        }
        for wait in &mut waits {
            assert!(poll(&mut wait.as_mut()).is_pending());
        }
        held.clear();
        queue.clock().set(Timestamp::from_nanos(500));
        assert_eq!(queue.advance(), Next::Idle);
        for wait in &mut waits {
            assert!(poll(&mut wait.as_mut()).is_ready());
        }
        assert_eq!(queue.counts().late, 100);
    });
    assert_eq!(count, 0);
}

/// Wakes the registered waker when the test says so.
#[derive(Default)]
struct Alarm(ManualClock, std::sync::Mutex<Option<Waker>>);

impl Clock for Alarm {
    fn now(&self) -> Timestamp {
        self.0.now()
    }
}

impl ReentrantTimer for Alarm {}

impl Timer for Alarm {
    fn wake_at(&self, at: Timestamp, waker: &Waker) -> Poll<()> {
        if at <= self.now() {
            return Poll::Ready(());
        }
        *self.1.lock().unwrap() = Some(waker.clone());
        Poll::Pending
    }
}

impl Alarm {
    fn ring(&self) {
        let waker = self.1.lock().unwrap().take();
        waker.expect("armed").wake();
    }
}

fn attended(queue: &Queue<TokenBucket, Alarm>) {
    let count = allocations(|| {
        assert!(poll(&mut pin!(queue.acquire(2))).is_ready());
        let mut waits = [
            pin!(queue.acquire(2)),
            pin!(queue.acquire(1).until(Timestamp::from_secs(3))),
            pin!(queue.acquire(1)),
        ];
        for wait in &mut waits {
            assert!(poll(wait).is_pending());
        }
        for (second, wait) in (2..).zip(&mut waits) {
            queue.clock().0.set(Timestamp::from_secs(second));
            queue.clock().ring();
            assert!(matches!(poll(wait), Poll::Ready(Ok(_))));
        }
    });
    assert_eq!(count, 0);
}

#[test]
fn a_queue_with_its_own_timer_allocates_nothing_for_a_wait() {
    let bucket = || TokenBucket::new(Rate::per_second(1), 2);
    let shared = Arc::new(Queue::new(bucket(), Alarm::default(), 9));
    shared.attend_shared();
    attended(&shared);
    let for_ever: &'static _ = Box::leak(Box::new(Queue::new(bucket(), Alarm::default(), 9)));
    assert_eq!(allocations(|| for_ever.attend()), 0);
    attended(for_ever);
}

#[test]
fn waiting_until_drained_does_not_allocate() {
    let queue = Queue::new(Concurrency::new(1), ManualClock::new(), 9);
    let count = allocations(|| {
        let Poll::Ready(Ok(held)) = poll(&mut pin!(queue.acquire(1))) else {
            panic!("free")
        };
        let mut all = [pin!(queue.drained()), pin!(queue.drained())];
        for drained in &mut all {
            assert!(poll(drained).is_pending() && poll(drained).is_pending());
        }
        assert!(poll(&mut pin!(queue.drained())).is_pending(), "cancelled");
        drop(held);
        for drained in &mut all {
            assert!(poll(drained).is_ready());
        }
    });
    assert_eq!(count, 0);
}
