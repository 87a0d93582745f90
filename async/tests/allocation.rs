//! No wait allocates: a counting allocator watches each path.

#[path = "../../core/tests/support/allocations.rs"]
mod allocations;

use core::future::Future;
use core::pin::{Pin, pin};
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::sync::Arc;

use allocations::allocations;
use portcullis_async::{Acquire, Next, Order, Queue, Rejected};
use portcullis_core::{
    AllOf, Concurrency, FixedWindow, Limiter, LimiterExt, ManualClock, MonotonicClock, Rate, SlidingWindow,
    Timestamp, TokenBucket,
};

fn poll<F: Future>(wait: &mut Pin<&mut F>) -> Poll<F::Output> {
    wait.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn the_allocator_counts() {
    assert_eq!(allocations(|| drop(core::hint::black_box(Box::new(1)))), 1);
}

#[test]
fn no_wait_allocates_whatever_comes_of_it() {
    let count = allocations(|| {
        for order in [Order::OldestFirst, Order::NewestFirst] {
            let queue: Queue<_, _> = Queue::new(Concurrency::new(3), ManualClock::new(), 3).with_order(order);
            // At once.
            let mut ready = pin!(queue.acquire(3));
            let Poll::Ready(Ok(held)) = poll(&mut ready) else { panic!("free") };
            assert!(poll(&mut pin!(queue.acquire(4))).is_ready(), "more than there are");
            assert!(queue.try_acquire_at(Timestamp::ZERO, 1).is_err());
            // Waits, is polled anew, is granted.
            let mut waits =
                [pin!(queue.acquire(1)), pin!(queue.acquire_between(1, 2)), pin!(queue.acquire(0))];
            for wait in &mut waits {
                assert!(poll(wait).is_pending() && poll(wait).is_pending());
            }
            // Cancelled, at the head and elsewhere; refused, or evicts.
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
            let _ = AllOf::new((&queue,)).try_acquire_at(Timestamp::ZERO, 1).is_ok();
            let mut closed = pin!(queue.acquire(1));
            let _ = poll(&mut closed);
            queue.close();
            assert!(poll(&mut pin!(queue.acquire(1))).is_ready());
        }
    });
    assert_eq!(count, 0);
}

#[test]
fn many_waits_granted_at_once_do_not_allocate() {
    let queue: Queue<_, _> = Queue::new(Concurrency::new(100), ManualClock::new(), 100);
    let mut waits: Vec<_> = (0..100).map(|_| Box::pin(queue.acquire(1))).collect();
    let count = allocations(|| {
        let Poll::Ready(Ok(held)) = poll(&mut pin!(queue.acquire(100))) else { panic!("free") };
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

fn waits_for_time(limiter: impl Limiter) {
    let count = allocations(|| {
        let queue: Queue<_, _> = Queue::new(limiter, ManualClock::new(), 9);
        let mut driver = pin!(queue.drive(|_| core::future::pending()));
        assert!(poll(&mut driver).is_pending());
        assert!(poll(&mut pin!(queue.acquire(2))).is_ready());
        let mut wait = pin!(queue.acquire(1));
        assert!(poll(&mut wait).is_pending());
        assert!(poll(&mut driver).is_pending());
        let Next::At(at) = queue.advance() else { panic!("time helps") };
        queue.clock().set(at);
        assert!(poll(&mut driver).is_pending());
        let Poll::Ready(Ok(mut lease)) = poll(&mut wait) else { panic!("granted") };
        let _ = lease.refund_at(at, 1);
    });
    assert_eq!(count, 0);
}

#[test]
fn neither_time_nor_a_driver_allocates() {
    let second = Duration::from_secs(1);
    waits_for_time(TokenBucket::new(Rate::per_second(1), 2));
    waits_for_time(FixedWindow::new(2, second));
    waits_for_time(SlidingWindow::<4>::new(2, second, 4));
}

#[test]
fn a_wait_that_owns_the_queue_does_not_allocate() {
    let queue: Arc<Queue<_, _>> = Arc::new(Queue::new(Concurrency::new(1), ManualClock::new(), 9));
    let count = allocations(|| {
        let Poll::Ready(Ok(held)) = poll(&mut pin!(Acquire::new(Arc::clone(&queue), 1, 1))) else {
            panic!("free")
        };
        let mut wait = pin!(Acquire::new(Arc::clone(&queue), 1, 1));
        assert!(poll(&mut wait).is_pending());
        drop(held);
        assert!(poll(&mut wait).is_ready());
    });
    assert_eq!(count, 0);
}

#[test]
fn a_thread_that_waits_allocates_once_for_all_its_waits() {
    let queue: Queue<_, _> = Queue::new(Concurrency::new(1), MonotonicClock::new(), 9);
    let wait = || {
        let held = queue.blocking_acquire(1).unwrap();
        let timed_out = queue.blocking_acquire_for(1, Duration::from_micros(10));
        assert!(matches!(timed_out, Err(Rejected::TimedOut { permits: 1 })));
        drop(held);
    };
    wait();
    assert_eq!(allocations(wait), 0);
}
