//! How many may wait, and which request is rejected or evicted.

mod support;

use portcullis_async::{QueueCounts, Rejected};
use portcullis_core::{Concurrency, Retry};
use support::{Task, newest_first, now, permits, queue};

#[test]
fn the_queue_has_room_for_the_configured_number_of_permits() {
    let queue = queue(Concurrency::new(9), 5);
    let _held = now(queue.acquire(9)).unwrap();
    let _three = Task::waiting(queue.acquire(3));
    assert_eq!(
        permits(now(queue.acquire(3))),
        Err(Rejected::QueueFull {
            permits: 3,
            retry: Retry::OnRelease
        })
    );
    let two = Task::waiting(queue.acquire(2));
    assert_eq!(
        permits(now(queue.acquire(1))),
        Err(Rejected::QueueFull {
            permits: 1,
            retry: Retry::OnRelease
        })
    );
    drop(two);
    let _one = Task::waiting(queue.acquire(1));
    assert_eq!((queue.counts().permits, queue.counts().full), (4, 2));
}

#[test]
fn the_queue_has_room_for_the_configured_number_of_waiters() {
    let queue = queue(Concurrency::new(9), u64::MAX).with_max_waiters(2);
    let _held = now(queue.acquire(9)).unwrap();
    let _first = Task::waiting(queue.acquire(0));
    let second = Task::waiting(queue.acquire(9));
    assert_eq!(
        permits(now(queue.acquire(0))),
        Err(Rejected::QueueFull {
            permits: 0,
            retry: Retry::OnRelease
        })
    );
    drop(second);
    let _third = Task::waiting(queue.acquire(1));
}

#[test]
fn free_permits_need_no_room_in_the_queue() {
    for queue in [
        queue(Concurrency::new(2), 0),
        queue(Concurrency::new(2), 9).with_max_waiters(0),
    ] {
        assert_eq!(now(queue.acquire(2)).unwrap().permits(), 2);
        assert_eq!(queue.counts(), QueueCounts::default());
    }
}

#[test]
fn the_largest_requests_do_not_overflow_the_queue() {
    let limit = Concurrency::<u64>::max_limit();
    let queue = queue(Concurrency::new(limit), u64::MAX);
    let _held = now(queue.acquire(limit)).unwrap();
    let _waits: Vec<_> = (0..8)
        .map(|_| Task::waiting(queue.acquire(limit)))
        .collect();
    assert_eq!(queue.counts().permits, 8 * u64::from(limit));
    let full = newest_first(Concurrency::new(limit), u64::from(limit));
    let _held = now(full.acquire(limit)).unwrap();
    let three = Task::waiting(full.acquire(3));
    let _all = Task::waiting(full.acquire(limit));
    assert_eq!(
        permits(three.outcome()),
        Err(Rejected::Evicted {
            permits: 3,
            retry: Retry::OnRelease
        })
    );
}

#[test]
fn newest_first_evicts_the_oldest_until_the_newcomer_fits() {
    let queue = newest_first(Concurrency::new(4), 6);
    let held = now(queue.acquire(4)).unwrap();
    let [first, second, mut third] = [3, 1, 2].map(|n| Task::waiting(queue.acquire(n)));
    let newcomer = Task::waiting(queue.acquire(4));
    assert_eq!((first.wakes(), second.wakes(), third.wakes()), (1, 1, 0));
    assert_eq!(
        permits(first.outcome()),
        Err(Rejected::Evicted {
            permits: 3,
            retry: Retry::OnRelease
        })
    );
    assert_eq!(
        permits(second.outcome()),
        Err(Rejected::Evicted {
            permits: 1,
            retry: Retry::OnRelease
        })
    );
    assert!(third.is_pending());
    assert_eq!(
        (
            queue.counts().evicted,
            queue.counts().waiters,
            queue.counts().permits
        ),
        (2, 2, 6)
    );
    drop(held);
    assert_eq!(newcomer.outcome().unwrap().permits(), 4);
    assert_eq!(third.outcome().unwrap().permits(), 2);
}

#[test]
fn newest_first_evicts_the_oldest_for_a_place_in_the_queue() {
    let queue = newest_first(Concurrency::new(1), 99).with_max_waiters(2);
    let _held = now(queue.acquire(1)).unwrap();
    let [first, mut second, mut third] = [1, 1, 0].map(|n| Task::waiting(queue.acquire(n)));
    assert_eq!(
        permits(first.outcome()),
        Err(Rejected::Evicted {
            permits: 1,
            retry: Retry::OnRelease
        })
    );
    assert!(second.is_pending() && third.is_pending());
}

#[test]
fn a_request_that_can_never_fit_evicts_no_waiter() {
    let queue = newest_first(Concurrency::new(4), 2);
    let _held = now(queue.acquire(4)).unwrap();
    let mut waits = [1, 1].map(|n| Task::waiting(queue.acquire(n)));
    assert_eq!(
        permits(now(queue.acquire(3))),
        Err(Rejected::QueueFull {
            permits: 3,
            retry: Retry::OnRelease
        })
    );
    assert!(waits.iter_mut().all(Task::is_pending));
    assert_eq!((queue.counts().evicted, queue.counts().full), (0, 1));

    let without_waiters = newest_first(Concurrency::new(4), 9).with_max_waiters(0);
    let _held = now(without_waiters.acquire(4)).unwrap();
    assert_eq!(
        permits(now(without_waiters.acquire(1))),
        Err(Rejected::QueueFull {
            permits: 1,
            retry: Retry::OnRelease
        })
    );
}

#[test]
fn one_newcomer_can_evict_more_than_one_wake_batch() {
    for many in [15, 16, 17, 32, 33, 100] {
        let queue = newest_first(Concurrency::new(100), many);
        let held = now(queue.acquire(100)).unwrap();
        let waits: Vec<_> = (0..many).map(|_| Task::waiting(queue.acquire(1))).collect();
        let all = Task::waiting(queue.acquire(u32::try_from(many).unwrap()));
        for wait in waits {
            assert_eq!(wait.wakes(), 1);
            assert_eq!(
                permits(wait.outcome()),
                Err(Rejected::Evicted {
                    permits: 1,
                    retry: Retry::OnRelease
                })
            );
        }
        assert_eq!((queue.counts().evicted, queue.counts().waiters), (many, 1));
        drop(held);
        assert!(all.outcome().is_ok());
    }
}

#[test]
fn oldest_first_evicts_no_waiter() {
    let queue = queue(Concurrency::new(1), 1);
    let held = now(queue.acquire(1)).unwrap();
    let wait = Task::waiting(queue.acquire(1));
    assert_eq!(
        permits(now(queue.acquire(1))),
        Err(Rejected::QueueFull {
            permits: 1,
            retry: Retry::OnRelease
        })
    );
    drop(held);
    assert!(wait.outcome().is_ok());
}

#[test]
fn more_than_the_capacity_is_rejected_at_once() {
    for queue in [
        queue(Concurrency::new(2), 99),
        newest_first(Concurrency::new(2), 99),
    ] {
        let too_many = Err(Rejected::ExceedsCapacity {
            permits: 3,
            capacity: 2,
        });
        assert_eq!(permits(now(queue.acquire(3))), too_many);
        let _held = now(queue.acquire(2)).unwrap();
        assert_eq!(permits(now(queue.acquire(3))), too_many);
        assert_eq!(permits(now(queue.acquire(3).up_to(9))), too_many);
        let counts = queue.counts();
        assert_eq!((counts.oversized, counts.full, counts.waiters), (3, 0, 0));
    }
}
