//! Waiting for room, for permits or for an item does not allocate, whatever the outcome. A counting
//! allocator watches.
#![cfg(feature = "channel")]

#[path = "../../core/tests/support/allocations.rs"]
mod allocations;

use core::future::Future;
use core::num::NonZero;
use core::pin::{Pin, pin};
use core::task::{Context, Poll, Waker};
use std::sync::Arc;

use allocations::allocations;
use futures_util::Stream;
use portcullis_async::Queue;
use portcullis_async::channel::{SendError, TrySendError, channel};
use portcullis_core::{Concurrency, ManualClock};

fn poll<F: Future>(wait: &mut Pin<&mut F>) -> Poll<F::Output> {
    wait.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|| drop(core::hint::black_box(Box::new(1)))), 1);
}

#[test]
fn neither_a_waiting_sender_nor_a_queued_item_allocates() {
    let queue = Arc::new(Queue::new(Concurrency::new(2), ManualClock::new(), 4));
    let (sender, receiver) = channel(Arc::clone(&queue), NonZero::new(2).unwrap(), |n: &u32| *n);
    let count = allocations(|| {
        // Granted at once.
        assert!(matches!(
            poll(&mut pin!(sender.send(1))),
            Poll::Ready(Ok(()))
        ));
        assert_eq!(sender.try_send(1), Ok(()));
        assert_eq!(sender.try_send(1), Err(TrySendError::Full(1)));
        // Waits for room, then for permits; polled again; cancelled.
        let (mut first, mut second) = (pin!(sender.send(2)), pin!(sender.reserve(1)));
        assert!(poll(&mut first).is_pending() && poll(&mut second).is_pending());
        assert!(poll(&mut first).is_pending() && poll(&mut pin!(sender.send(1))).is_pending());
        assert_eq!(receiver.try_recv(), Ok(1));
        assert!(poll(&mut first).is_pending() && poll(&mut first).is_pending());
        assert!(matches!(
            poll(&mut pin!(receiver.recv())),
            Poll::Ready(Some(1))
        ));
        assert!(matches!(poll(&mut first), Poll::Ready(Ok(()))));
        assert!(poll(&mut second).is_pending());
        assert!(
            matches!(poll(&mut pin!(sender.send(5))), Poll::Pending),
            "no room"
        );
        let Poll::Ready(Some((2, lease))) = poll(&mut pin!(receiver.recv_leased())) else {
            panic!("sent")
        };
        assert!(matches!(
            poll(&mut pin!(sender.send(5))),
            Poll::Ready(Err(SendError::Refused(_)))
        ));
        drop(lease);
        let Poll::Ready(Ok(permit)) = poll(&mut second) else {
            panic!("released")
        };
        assert_eq!(permit.send(1), Ok(()));
        assert!(matches!(
            sender.try_send(2),
            Err(TrySendError::Denied { .. })
        ));
        assert_eq!(receiver.try_recv(), Ok(1));
    });
    assert_eq!(count, 0);
}

#[test]
fn no_waiting_receiver_allocates() {
    let queue = Queue::new(Concurrency::new(2), ManualClock::new(), 4);
    let (sender, receiver) = channel(&queue, NonZero::new(2).unwrap(), |n: &u32| *n);
    let count = allocations(|| {
        let mut cancelled = Box::pin(receiver.recv());
        assert!(poll(&mut cancelled.as_mut()).is_pending());
        let mut first = pin!(receiver.recv());
        assert!(poll(&mut first).is_pending() && poll(&mut first).is_pending());
        drop(cancelled);
        assert_eq!(sender.try_send(1), Ok(()));
        assert_eq!(poll(&mut first), Poll::Ready(Some(1)));
        let mut stream = pin!(receiver.clone());
        let mut context = Context::from_waker(Waker::noop());
        assert!(stream.as_mut().poll_next(&mut context).is_pending());
        assert_eq!(sender.try_send(1), Ok(()));
        assert_eq!(
            stream.as_mut().poll_next(&mut context),
            Poll::Ready(Some(1))
        );
        assert!(stream.as_mut().poll_next(&mut context).is_pending());
        receiver.close();
        assert_eq!(stream.poll_next(&mut context), Poll::Ready(None));
    });
    assert_eq!(count, 1, "the test's own box");
}

#[test]
fn the_end_of_a_wait_does_not_allocate() {
    let queue = Queue::new(Concurrency::new(1), ManualClock::new(), 4);
    let (sender, receiver) = channel(&queue, NonZero::new(1).unwrap(), |n: &u32| *n);
    let held = queue.try_acquire(1).unwrap();
    let (mut for_permits, mut for_room) = (pin!(sender.send(1)), pin!(sender.send(2)));
    let mut waits =
        || assert!(poll(&mut for_permits).is_pending() && poll(&mut for_room).is_pending());
    assert_eq!(allocations(&mut waits), 0);
    let count = allocations(|| {
        receiver.close();
        assert_eq!(
            poll(&mut for_permits),
            Poll::Ready(Err(SendError::Closed(1)))
        );
        assert_eq!(poll(&mut for_room), Poll::Ready(Err(SendError::Closed(2))));
        drop(held);
        assert_eq!(queue.available(), 1);
    });
    assert_eq!(count, 0);
}
