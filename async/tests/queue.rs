//! Further behaviour of a queue: partial requests, closing, live limits, counts, and what can be
//! sent and shared.

mod support;

use core::task::Poll;
use std::sync::{Arc, OnceLock};
use std::thread;

use portcullis_async::{Acquire, Order, Queue, QueueCounts, Rejected};
use portcullis_core::{Concurrency, Denied, Lease, LimiterExt, ManualClock, Retry};
use support::{Manual, START, Shared, Task, available, newest_first, now, permits, queue};

mod parts {
    use super::*;

    #[test]
    fn a_wait_for_zero_permits_ends_when_one_is_available_and_takes_nothing() {
        let queue = queue(Concurrency::new(1), 9);
        assert_eq!(now(queue.acquire(0)).unwrap().permits(), 0);
        let held = now(queue.acquire(1)).unwrap();
        let [none, mut one] = [0, 1].map(|n| Task::waiting(queue.acquire(n)));
        assert_eq!((queue.counts().waiters, queue.counts().permits), (2, 1));
        drop(held);
        assert_eq!(none.outcome().unwrap().permits(), 0);
        assert!(one.poll().is_ready(), "the same release served both");
    }

    #[test]
    fn no_request_overtakes_a_waiter_for_zero_permits() {
        let queue = queue(Concurrency::new(1), 9);
        let held = now(queue.acquire(1)).unwrap();
        let _large = Task::waiting(queue.acquire(0));
        assert!(queue.try_acquire_at(START, 1).is_err());
        let mut newcomer = Task::waiting(queue.acquire(1));
        drop(held);
        assert!(newcomer.poll().is_ready());
    }

    #[test]
    fn a_partial_grant_is_what_is_available_between_the_two_numbers() {
        let queue = queue(Concurrency::new(10), 99);
        let all = now(queue.acquire(1).up_to(100)).unwrap();
        assert_eq!(all.permits(), 10);
        drop(all);
        let some = now(queue.acquire(1).up_to(4)).unwrap();
        assert_eq!(some.permits(), 4);
        let rest = now(queue.acquire(6).up_to(6)).unwrap();
        assert_eq!((rest.permits(), available(&queue)), (6, 0));
    }

    #[test]
    fn a_partial_wait_queues_with_its_minimum_and_takes_what_is_available_at_its_turn() {
        let queue = queue(Concurrency::new(10), 3);
        let (six, four) = (
            now(queue.acquire(6)).unwrap(),
            now(queue.acquire(4)).unwrap(),
        );
        let wait = Task::waiting(queue.acquire(2).up_to(8));
        let after = Task::waiting(queue.acquire(1));
        assert_eq!(queue.counts().permits, 3);
        drop(six);
        let some = wait.outcome().unwrap();
        assert_eq!(some.permits(), 6, "all that was available");
        drop(four);
        assert_eq!(after.outcome().unwrap().permits(), 1);
        assert_eq!((queue.counts().waiters, queue.counts().permits), (0, 0));
    }

    #[test]
    fn a_maximum_below_the_minimum_counts_as_the_minimum() {
        let queue = queue(Concurrency::new(5), 9);
        assert_eq!(now(queue.acquire(3).up_to(1)).unwrap().permits(), 3);
        assert_eq!(now(Acquire::new(&queue, 3).up_to(1)).unwrap().permits(), 3);
    }

    #[test]
    fn a_request_for_zero_to_some_permits_waits_while_none_is_available() {
        let queue = queue(Concurrency::new(5), 9);
        let held = now(queue.acquire(5)).unwrap();
        let wait = Task::waiting(queue.acquire(0).up_to(3));
        drop(held);
        assert_eq!(wait.outcome().unwrap().permits(), 3);
    }
}

mod closing {
    use super::*;

    #[test]
    fn closing_rejects_waiters_and_newcomers() {
        for queue in [
            queue(Concurrency::new(3), 99),
            newest_first(Concurrency::new(3), 99),
        ] {
            let held = now(queue.acquire(3)).unwrap();
            let waits = [3, 0, 1].map(|n| (n, Task::waiting(queue.acquire(n))));
            assert!(!queue.is_closed());
            queue.close();
            assert!(queue.is_closed());
            for (n, wait) in waits {
                assert_eq!(wait.wakes(), 1);
                assert_eq!(
                    permits(wait.outcome()),
                    Err(Rejected::Closed { permits: n })
                );
            }
            assert_eq!(
                permits(now(queue.acquire(1))),
                Err(Rejected::Closed { permits: 1 })
            );
            let denied = queue.try_acquire_at(START, 2).unwrap_err();
            assert_eq!(denied, Denied::Closed { permits: 2 });
            assert_eq!(denied.retry(&queue), Retry::Never);
            assert_eq!(held.permits(), 3);
            drop(held);
            assert_eq!(available(&queue), 3, "a lease is still released as usual");
            assert_eq!(
                permits(now(queue.acquire(1))),
                Err(Rejected::Closed { permits: 1 })
            );
            let counts = queue.counts();
            assert_eq!((counts.closed, counts.waiters, counts.granted), (5, 0, 0));
            queue.close();
        }
    }

    #[test]
    fn closing_rejects_any_number_of_waiters() {
        let queue = queue(Concurrency::new(1), 999);
        let _held = now(queue.acquire(1)).unwrap();
        let waits: Vec<_> = (0..100).map(|_| Task::waiting(queue.acquire(1))).collect();
        queue.close();
        for wait in waits {
            assert_eq!(wait.wakes(), 1);
            assert_eq!(
                permits(wait.outcome()),
                Err(Rejected::Closed { permits: 1 })
            );
        }
        assert_eq!((queue.counts().waiters, queue.counts().cancelled), (0, 0));
    }

    #[test]
    fn a_wait_granted_before_the_close_has_its_permits() {
        let queue = queue(Concurrency::new(1), 9);
        let held = now(queue.acquire(1)).unwrap();
        let wait = Task::waiting(queue.acquire(1));
        drop(held);
        queue.close();
        assert_eq!(permits(wait.outcome()), Ok(1));
        assert_eq!(available(&queue), 1);
    }

    #[test]
    fn a_closed_wait_may_be_dropped_without_a_poll() {
        let queue = queue(Concurrency::new(1), 9);
        let held = now(queue.acquire(1)).unwrap();
        let wait = Task::waiting(queue.acquire(1));
        queue.close();
        drop((wait, held));
        assert_eq!((queue.counts().cancelled, available(&queue)), (0, 1));
    }
}

mod settings {
    use super::*;

    #[test]
    fn a_raised_limit_is_granted_at_once() {
        let queue = queue(Concurrency::new(1), 99);
        let _held = now(queue.acquire(1)).unwrap();
        let [one, other, mut third] = [1, 1, 1].map(|n| Task::waiting(queue.acquire(n)));
        assert_eq!(queue.change(|limit| limit.set_limit(3)), Ok(1));
        assert_eq!((one.wakes(), other.wakes(), third.wakes()), (1, 1, 0));
        assert!(one.outcome().is_ok());
        assert!(other.wakes() == 1 && third.poll().is_ready());
    }

    #[test]
    fn a_head_larger_than_a_lowered_limit_is_rejected_and_the_next_waiters_move_up() {
        let queue = queue(Concurrency::new(5), 99);
        let held = now(queue.acquire(4)).unwrap();
        let [large, small] = [4, 1].map(|n| Task::waiting(queue.acquire(n)));
        queue.change(|limit| limit.set_limit(3)).unwrap();
        assert_eq!((large.wakes(), small.wakes()), (1, 0));
        assert_eq!(
            permits(large.outcome()),
            Err(Rejected::ExceedsCapacity {
                permits: 4,
                capacity: 3
            })
        );
        drop(held);
        assert_eq!(permits(small.outcome()), Ok(1));
        assert_eq!(
            (
                queue.counts().waiters,
                queue.counts().permits,
                queue.counts().granted
            ),
            (0, 0, 1)
        );
    }

    #[test]
    fn under_a_limit_of_zero_all_waiters_are_rejected() {
        let queue = queue(Concurrency::new(1), 99);
        let held = now(queue.acquire(1)).unwrap();
        let waits: Vec<_> = (0..40)
            .map(|n| (n % 2, Task::waiting(queue.acquire(n % 2))))
            .collect();
        queue.change(|limit| limit.set_limit(0)).unwrap();
        for (permits, wait) in waits {
            let Err(rejected) = wait.outcome() else {
                panic!("granted")
            };
            assert_eq!(
                rejected,
                Rejected::ExceedsCapacity {
                    permits,
                    capacity: 0
                }
            );
        }
        drop(held);
        assert_eq!(
            permits(now(queue.acquire(1))),
            Err(Rejected::ExceedsCapacity {
                permits: 1,
                capacity: 0
            })
        );
    }

    #[test]
    fn a_lowered_limit_is_kept_while_permits_come_back() {
        let queue = queue(Concurrency::new(4), 99);
        let leases: Vec<_> = (0..4).map(|_| now(queue.acquire(1)).unwrap()).collect();
        let mut wait = Task::waiting(queue.acquire(1));
        queue.change(|limit| limit.set_limit(2)).unwrap();
        let mut leases = leases.into_iter();
        for _ in 0..2 {
            drop(leases.next());
            assert!(wait.is_pending());
        }
        drop(leases.next());
        assert!(wait.poll().is_ready());
    }

    #[test]
    fn the_reported_capacity_is_the_current_one() {
        let queue = newest_first(Concurrency::new(5), 99);
        let _held = now(queue.acquire(5)).unwrap();
        let wait = Task::waiting(queue.acquire(3));
        queue.change(|limit| limit.set_limit(2)).unwrap();
        assert_eq!(
            permits(wait.outcome()),
            Err(Rejected::ExceedsCapacity {
                permits: 3,
                capacity: 2
            })
        );
    }
}

mod counts {
    use super::*;

    #[track_caller]
    fn check(queue: &Manual, waiters: u32, permits: u64, ends: [u64; 4]) {
        let counts = queue.counts();
        assert_eq!((counts.waiters, counts.permits), (waiters, permits));
        assert_eq!(
            [
                counts.granted,
                counts.full,
                counts.evicted,
                counts.cancelled
            ],
            ends
        );
    }

    #[test]
    fn each_wait_is_counted_once_by_its_outcome() {
        let queue = newest_first(Concurrency::new(2), 3);
        let held = now(queue.acquire(2)).unwrap();
        check(&queue, 0, 0, [0, 0, 0, 0]);
        let evicted = Task::waiting(queue.acquire(2));
        let cancelled = Task::waiting(queue.acquire(1));
        check(&queue, 2, 3, [0, 0, 0, 0]);
        let granted = Task::waiting(queue.acquire(2));
        check(&queue, 2, 3, [0, 0, 1, 0]);
        drop(cancelled);
        check(&queue, 1, 2, [0, 0, 1, 1]);
        queue.change(|limit| limit.set_limit(5)).unwrap();
        check(&queue, 0, 0, [1, 0, 1, 1]);
        assert_eq!(
            permits(now(queue.acquire(4))),
            Err(Rejected::QueueFull {
                permits: 4,
                retry: Retry::OnRelease
            })
        );
        check(&queue, 0, 0, [1, 1, 1, 1]);
        let unclaimed = Task::waiting(queue.acquire(3));
        drop((held, evicted));
        check(&queue, 0, 0, [2, 1, 1, 1]);
        drop((granted, unclaimed));
        check(&queue, 0, 0, [2, 1, 1, 1]);
        assert_eq!(available(&queue), 5);
    }

    #[test]
    fn requests_settled_without_a_wait_by_the_limiter_are_not_counted() {
        let queue = queue(Concurrency::new(2), 9);
        drop(now(queue.acquire(2)).unwrap());
        drop(queue.try_acquire_at(START, 2));
        assert!(now(queue.acquire(3)).is_err() && queue.try_acquire_at(START, 3).is_err());
        drop(queue.acquire(1));
        check(&queue, 0, 0, [0, 0, 0, 0]);
    }

    #[test]
    fn a_snapshot_does_not_change() {
        let queue = queue(Concurrency::new(1), 9);
        let _held = now(queue.acquire(1)).unwrap();
        let before = queue.counts();
        let _wait = Task::waiting(queue.acquire(1));
        assert_eq!((before.waiters, queue.counts().waiters), (0, 1));
    }
}

/// What can be sent and shared.
mod threads {
    use super::*;

    #[test]
    fn futures_and_leases_that_own_the_queue_can_be_sent_to_other_threads() {
        let queue: Shared = Arc::new(queue(Concurrency::new(1), 9));
        let held = now(Acquire::new(Arc::clone(&queue), 1)).unwrap();
        let mut first = Task::waiting(Acquire::new(Arc::clone(&queue), 1));
        let cancelled = Task::waiting(Acquire::new(Arc::clone(&queue), 1));
        let last = Task::waiting(Acquire::new(Arc::clone(&queue), 1));
        thread::spawn(move || drop(held)).join().unwrap();
        let lease = thread::spawn(move || match first.poll() {
            Poll::Ready(lease) => lease.unwrap(),
            Poll::Pending => panic!("granted"),
        })
        .join()
        .unwrap();
        thread::spawn(move || drop(cancelled)).join().unwrap();
        drop(lease);
        assert_eq!(
            permits(thread::spawn(move || last.outcome()).join().unwrap()),
            Ok(1)
        );
        let counts = queue.counts();
        assert_eq!(
            (counts.granted, counts.cancelled, available(&queue)),
            (2, 1, 1)
        );
        assert_eq!(Arc::strong_count(&queue), 1);
    }

    #[test]
    fn a_future_or_a_lease_keeps_its_queue_alive() {
        let queue = queue(Concurrency::new(1), 9);
        let lease = now(Acquire::new(Box::new(queue), 1)).unwrap();
        assert_eq!(lease.limiter().counts(), QueueCounts::default());
    }

    #[test]
    fn a_queue_can_be_a_static() {
        static CLOCK: ManualClock = ManualClock::new();
        static QUEUE: Queue<Concurrency, &ManualClock> = Queue::new(Concurrency::new(1), &CLOCK, 9)
            .with_order(Order::NewestFirst)
            .with_max_waiters(3);
        static SLOT: OnceLock<Lease<&Queue<Concurrency, &ManualClock>>> = OnceLock::new();
        let lease = thread::spawn(|| QUEUE.blocking_acquire(1))
            .join()
            .unwrap()
            .unwrap();
        SLOT.set(lease).unwrap();
        assert!(QUEUE.try_acquire_at(START, 1).is_err());
    }

    #[test]
    fn what_can_be_sent_and_shared() {
        fn both<T: Send + Sync>(_: &T) {}
        let queue: Shared = Arc::new(queue(Concurrency::new(1), 9));
        both(&queue);
        both(&queue.acquire(1));
        both(&Acquire::new(Arc::clone(&queue), 1));
        both(&queue.drive());
        both(&now(queue.acquire(1)).unwrap());
    }

    #[test]
    #[cfg(target_pointer_width = "64")]
    fn a_waiter_and_a_queue_are_as_small_as_documented() {
        type Plain = Queue<Concurrency, ManualClock>;
        let waiter = size_of::<Acquire<&Plain>>();
        let priorities = if cfg!(feature = "shedding") { 24 } else { 0 };
        assert!(
            (210..=230).contains(&(waiter - priorities)),
            "{waiter} bytes"
        );
        let parts = size_of::<Concurrency>() + size_of::<ManualClock>();
        let queue = size_of::<Plain>() - parts;
        let shedding = if cfg!(feature = "shedding") { 40 } else { 0 };
        assert!((450..=470).contains(&(queue - shedding)), "{queue} bytes");
        let documented = include_str!("../src/queues/queue.rs").replace("\n/// ", " ");
        let text =
            "about 220 bytes (with the feature `shedding` 250), and a queue about 460 bytes more";
        assert!(documented.contains(text));
    }

    #[test]
    fn errors_are_small_values_with_instructive_messages() {
        assert!(size_of::<Rejected>() <= 32);
        let retry = Retry::OnRelease;
        let all = [
            (
                Rejected::QueueFull { permits: 3, retry },
                "queue full (permits requested: 3)",
            ),
            (
                Rejected::QueueFull { permits: 1, retry },
                "queue full (permits requested: 1)",
            ),
            (
                Rejected::Evicted { permits: 3, retry },
                "evicted by a newer request (permits requested: 3)",
            ),
            (
                Rejected::ExceedsCapacity {
                    permits: 3,
                    capacity: 2,
                },
                "3 permits requested, at most 2 can ever be granted: request fewer",
            ),
            (
                Rejected::Deadline { permits: 3, retry },
                "not granted by the deadline (permits requested: 3)",
            ),
            (
                Rejected::Shed { permits: 3, retry },
                "not granted within the time that the queue lets requests wait (permits \
                 requested: 3)",
            ),
            (Rejected::Closed { permits: 3 }, "queue closed"),
        ];
        for (rejected, text) in all {
            let error: &dyn core::error::Error = &rejected;
            assert_eq!(error.to_string(), text);
        }
    }
}
