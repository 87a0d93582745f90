//! Requests for more permits than the limiter can ever grant, in a queue that lets them wait.

mod support;

use portcullis_async::{Order, Oversized, Queue, Rejected, WaitEnd, Waited};
use portcullis_core::state::Carry;
use portcullis_core::{AdjustableBucket, Concurrency, ManualClock, Rate, Retry, Timestamp};
use support::{Hand, Task, now, permits, queue};

fn permits_of(limit: u32) -> Queue<Concurrency, Hand> {
    let queue = queue(Concurrency::new(9), 99).with_oversized(Oversized::Wait);
    queue.change(|permits| permits.set_limit(limit)).unwrap();
    queue
}

#[test]
fn a_limit_of_zero_lets_requests_wait_until_it_is_raised() {
    for order in [Order::OldestFirst, Order::NewestFirst] {
        let queue = permits_of(0).with_order(order);
        let waits = [1, 2].map(|n| Task::waiting(queue.acquire(n)));
        assert_eq!(queue.counts().waiters, 2);
        assert_eq!(queue.change(|limit| limit.set_limit(3)), Ok(0));
        assert_eq!(
            waits.map(|wait| permits(wait.outcome())),
            [Ok(1), Ok(2)],
            "{order:?}"
        );
    }
}

#[test]
fn a_large_request_keeps_those_behind_it_waiting_until_the_limit_is_raised() {
    let queue = permits_of(2);
    let large = Task::waiting(queue.acquire(5));
    let mut small = Task::waiting(queue.acquire(1));
    assert!(small.is_pending());
    queue.change(|limit| limit.add_permits(3)).unwrap();
    let held = large.outcome().unwrap();
    assert!(small.is_pending());
    drop(held);
    assert_eq!(permits(small.outcome()), Ok(1));
}

#[test]
fn newest_first_a_large_request_does_not_delay_new_requests() {
    let queue = permits_of(2).with_order(Order::NewestFirst);
    let _large = Task::waiting(queue.acquire(5));
    assert_eq!(permits(now(queue.acquire(2))), Ok(2));
}

#[test]
fn a_waiting_request_stays_when_the_limit_is_lowered_below_it() {
    let queue = permits_of(3);
    let held = queue.try_acquire(3).unwrap();
    let mut wait = Task::waiting(queue.acquire(2));
    queue.change(|limit| limit.set_limit(1)).unwrap();
    drop(held);
    assert!(wait.is_pending());
    queue.change(|limit| limit.set_limit(2)).unwrap();
    assert_eq!(permits(wait.outcome()), Ok(2));
}

#[test]
fn by_default_requests_that_exceed_the_limit_are_rejected() {
    let queue = queue(Concurrency::new(1), 99);
    queue.change(|limit| limit.set_limit(0)).unwrap();
    assert_eq!(
        permits(now(queue.acquire(1))),
        Err(Rejected::ExceedsCapacity {
            permits: 1,
            capacity: 0
        })
    );
}

#[test]
fn rejections_of_closed_queues_and_of_large_requests_are_counted() {
    let queue = queue(Concurrency::new(3), 99);
    let held = queue.try_acquire(3).unwrap();
    assert!(now(queue.acquire(4)).is_err());
    let _lowered = Task::waiting(queue.acquire(2));
    let _closed = Task::waiting(queue.acquire(1));
    queue.change(|limit| limit.set_limit(1)).unwrap();
    assert_eq!((queue.counts().oversized, queue.counts().waiters), (2, 1));
    queue.close();
    assert!(now(queue.acquire(1)).is_err());
    let counts = queue.counts();
    assert_eq!((counts.closed, counts.oversized, counts.waiters), (2, 2, 0));
    drop(held);
}

#[test]
fn a_deadline_ends_the_wait_of_a_large_request() {
    let queue = permits_of(1);
    let at = Timestamp::from_secs(3);
    let wait = Task::waiting(queue.acquire(2).until(at));
    queue.clock().run(at);
    queue.clock().run(Timestamp::from_secs(4));
    assert_eq!(
        permits(wait.outcome()),
        Err(Rejected::Deadline {
            permits: 2,
            retry: Retry::Never
        })
    );
}

#[test]
fn with_a_deadline_a_request_for_no_permits_waits_for_a_limit_of_zero_to_be_raised() {
    let queue = permits_of(0);
    let wait = Task::waiting(queue.acquire(0).until(Timestamp::from_secs(3)));
    queue.change(|limit| limit.set_limit(1)).unwrap();
    assert_eq!(permits(wait.outcome()), Ok(0));
}

#[test]
fn a_closed_queue_rejects_a_large_request() {
    let queue = permits_of(0);
    let wait = Task::waiting(queue.acquire(1));
    queue.close();
    assert_eq!(
        permits(wait.outcome()),
        Err(Rejected::Closed { permits: 1 })
    );
}

#[test]
fn a_cancelled_large_request_lets_the_next_one_go() {
    let queue = permits_of(1);
    let large = Task::waiting(queue.acquire(2));
    let small = Task::waiting(queue.acquire(1));
    drop(large);
    assert_eq!(permits(small.outcome()), Ok(1));
}

#[test]
fn a_bucket_grants_a_large_request_when_its_burst_is_raised() {
    let bucket = AdjustableBucket::builder(Rate::per_second(1), 2)
        .build()
        .unwrap();
    let queue = Queue::new(bucket, ManualClock::new(), 99).with_oversized(Oversized::Wait);
    let large = Task::waiting(queue.acquire(3));
    let start = Timestamp::ZERO;
    queue
        .change(|bucket| bucket.adjust_at(start, Rate::per_second(1), 5, Carry::Additive))
        .unwrap();
    assert_eq!(permits(large.outcome()), Ok(3));
}

#[test]
fn the_hook_learns_of_a_granted_large_request() {
    let told = std::sync::Mutex::new(Vec::new());
    let hook = |waited: &Waited| told.lock().unwrap().push(waited.outcome);
    let queue = Queue::new(Concurrency::new(1), ManualClock::new(), 99)
        .with_oversized(Oversized::Wait)
        .with_hook(hook);
    queue.change(|limit| limit.set_limit(0)).unwrap();
    let wait = Task::waiting(queue.acquire(1));
    queue.change(|limit| limit.set_limit(1)).unwrap();
    assert_eq!(permits(wait.outcome()), Ok(1));
    assert_eq!(*told.lock().unwrap(), [WaitEnd::Granted]);
}
