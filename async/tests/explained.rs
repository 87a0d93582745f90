//! A take from a queue that is explained tells what the limiter told of it.

use core::pin::pin;
use core::task::{Context, Waker};

use portcullis_async::{KeyedQueue, Queue};
use portcullis_core::{
    AllOf, Concurrency, Denied, Keyed, LimiterExt, ManualClock, Rate, Retry, Timeless, Timestamp,
    TokenBucket,
};

fn poll(future: impl Future<Output = impl Sized>) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    pin!(future).as_mut().poll(&mut context).is_ready()
}

#[test]
fn a_grant_without_a_wait_tells_what_it_left() {
    let queue = Queue::new(
        TokenBucket::new(Rate::per_second(1), 5),
        ManualClock::new(),
        9,
    );
    for left in (0..5).rev() {
        let (lease, detail) = queue.try_acquire_explained(1);
        assert!(lease.is_ok());
        assert_eq!((detail.available, detail.capacity), (left, 5));
        assert_eq!(detail.full_again, Retry::At(Timestamp::from_secs(5 - left)));
    }
    let (denied, detail) = queue.try_acquire_explained(2);
    assert_eq!(detail.decision, Err(denied.unwrap_err()));
    assert_eq!(detail.retry, Retry::At(Timestamp::from_secs(2)));
}

#[test]
fn a_request_behind_others_is_told_when_the_queue_can_grant_it() {
    let queue = Queue::new(Concurrency::new(5), Timeless, 9);
    let held = queue.try_acquire(3).unwrap();
    let mut waits = pin!(queue.acquire(4));
    assert!(!poll(waits.as_mut()));
    // Two permits are free, but for the request ahead.
    let look = queue.explain_at(Timestamp::ZERO, 1);
    let (denied, detail) = queue.try_acquire_explained(1);
    let denied = denied.unwrap_err();
    assert!(matches!(denied, Denied::Exhausted { .. }));
    assert_eq!((detail.available, detail.capacity), (2, 5));
    assert_eq!(
        (detail.decision, detail.retry),
        (Err(denied), Retry::OnRelease)
    );
    assert_eq!(look, detail);
    drop(held);
}

#[test]
fn a_closed_queue_tells_that_it_never_grants() {
    let queue = Queue::new(Concurrency::new(5), Timeless, 9);
    queue.close();
    let (denied, detail) = queue.try_acquire_explained(1);
    assert!(denied.is_err());
    assert_eq!(detail.decision, Err(Denied::Closed { permits: 1 }));
    assert_eq!(detail.retry, Retry::Never);
    assert_eq!(queue.explain_at(Timestamp::ZERO, 1), detail);
}

#[test]
fn a_queue_in_a_composition_tells_of_its_limiter() {
    let queue = Queue::new(Concurrency::new(5), Timeless, 9);
    let all = AllOf::new((&queue, Concurrency::new(9)));
    let (lease, told) = all.try_acquire_explained_at(Timestamp::ZERO, 2);
    assert!(lease.is_ok());
    assert_eq!((told.index, told.detail.available), (0, 3));
}

#[test]
fn a_key_of_a_queue_tells_of_its_own_permits() {
    let queue = KeyedQueue::new(Keyed::for_keys(Concurrency::new(5), 100), Timeless, 10);
    let (alice, bob) = (queue.key("alice"), queue.key("bob"));
    let (held, detail) = alice.try_acquire_explained(3);
    assert_eq!((detail.available, detail.capacity), (2, 5));
    let mut waits = pin!(alice.acquire(3));
    assert!(!poll(waits.as_mut()));
    let (denied, detail) = alice.try_acquire_explained(1);
    assert_eq!(detail.decision, Err(denied.unwrap_err()));
    assert_eq!((detail.available, detail.retry), (2, Retry::OnRelease));
    // Whether or not the other key is in the same shard.
    let (lease, detail) = bob.try_acquire_explained(4);
    assert!(lease.is_ok());
    assert_eq!((detail.decision, detail.available), (Ok(()), 1));
    assert!(bob.explain_at(Timestamp::ZERO, 1).is_allowed());
    drop((held, lease));
}

#[test]
fn an_explained_lease_wakes_the_queue() {
    let queue = Queue::new(Concurrency::new(2), Timeless, 9);
    let (lease, _) = LimiterExt::try_acquire_explained_at(&queue, Timestamp::ZERO, 2);
    let mut waits = pin!(queue.acquire(1));
    assert!(!poll(waits.as_mut()));
    drop(lease);
    assert!(poll(waits.as_mut()));
}
