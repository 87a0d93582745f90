//! Which waiter is granted first, and which is next when one cancels.

mod support;

use portcullis_async::{Next, Order, QueueCounts, Rejected};
use portcullis_core::limiter::Idle;
use portcullis_core::{AllOf, Concurrency, Denied, Limiter, LimiterExt, Rate, Retry, TokenBucket};
use support::{SECOND, START, Task, available, newest_first, now, permits, queue};

#[cfg(feature = "shedding")]
mod while_overloaded {
    use core::time::Duration;

    use portcullis_async::{KeyedQueue, Queue, Shedding};
    use portcullis_core::{Keyed, ManualClock, Timeless, Timestamp};
    use support::{Undriven, undriven};

    use super::*;

    /// A queue with a limit of 3, all held, in which a request for 2 waits, for `waited` ms.
    fn with_a_wait(
        max_permits: u64,
        waited: u64,
    ) -> (
        &'static Undriven,
        Task<impl Future<Output = Result<portcullis_core::Lease<&'static Undriven>, Rejected>>>,
    ) {
        let queue = undriven(Concurrency::new(3), max_permits);
        let queue: &'static _ =
            support::leaked(Box::new(queue.with_order(Order::NewestWhileOverloaded)));
        now(queue.acquire(3)).unwrap().forget();
        let wait = Task::waiting(queue.acquire(2));
        queue.clock().set(Timestamp::from_millis(waited));
        (queue, wait)
    }

    #[test]
    fn up_to_the_interval_the_oldest_request_is_granted_first() {
        let (queue, first) = with_a_wait(9, 100);
        let mut second = Task::waiting(queue.acquire(1));
        queue.change(|limit| limit.set_limit(5)).unwrap();
        let _two = first.outcome().unwrap();
        assert!(second.is_pending());
    }

    #[test]
    fn after_the_interval_new_requests_are_granted_first_and_the_others_in_their_order() {
        let (queue, mut first) = with_a_wait(99, 50);
        let mut second = Task::waiting(queue.acquire(1));
        queue.clock().set(Timestamp::from_millis(101));
        let third = Task::waiting(queue.acquire(1));
        let fourth = Task::waiting(queue.acquire(1));
        queue.change(|limit| limit.set_limit(4)).unwrap();
        let _four = fourth.outcome().unwrap();
        queue.change(|limit| limit.set_limit(5)).unwrap();
        let _three = third.outcome().unwrap();
        assert!(first.is_pending());
        queue.change(|limit| limit.set_limit(7)).unwrap();
        let _one = first.outcome().unwrap();
        assert!(second.is_pending());
    }

    #[test]
    fn the_interval_is_that_of_the_shedding() {
        let rule = Shedding::controlled_delay(Duration::from_millis(9), Duration::from_millis(20));
        let queue = undriven(Concurrency::new(1), 9)
            .with_order(Order::NewestWhileOverloaded)
            .with_shedding(rule);
        now(queue.acquire(1)).unwrap().forget();
        let _wait = Task::waiting(queue.acquire(1));
        queue.clock().set(Timestamp::from_millis(10));
        let mut older = Task::waiting(queue.acquire(1));
        queue.clock().set(Timestamp::from_millis(21));
        queue.advance();
        let newer = Task::waiting(queue.acquire(1));
        queue.change(|limit| limit.set_limit(2)).unwrap();
        let _held = newer.outcome().unwrap();
        assert!(older.is_pending());
    }

    #[test]
    fn free_permits_are_taken_ahead_of_waiters_only_after_the_interval() {
        for (waited, overtakes) in [(100, false), (101, true)] {
            let (queue, _wait) = with_a_wait(9, waited);
            // One is free, and the first waiter wants two.
            queue.change(|limit| limit.set_limit(4)).unwrap();
            assert_eq!(Task::new(queue.acquire(1)).poll().is_ready(), overtakes);
        }
    }

    #[test]
    fn a_try_overtakes_no_waiter() {
        let (queue, wait) = with_a_wait(9, 101);
        queue.change(|limit| limit.set_limit(4)).unwrap();
        let denied = queue.try_acquire(1).unwrap_err();
        assert!(matches!(denied, Denied::Exhausted { permits: 1, .. }));
        drop(wait);
        assert!(queue.try_acquire(1).is_ok());
        let table = Keyed::for_keys(Concurrency::new(2), 100);
        let queue =
            KeyedQueue::new(table, ManualClock::new(), 9).with_order(Order::NewestWhileOverloaded);
        now(queue.acquire("a", 1)).unwrap().forget();
        let _wait = Task::waiting(queue.acquire("a", 2));
        queue.clock().set(Timestamp::from_millis(101));
        assert!(queue.try_acquire("a", 1).is_err());
        assert!(queue.key("a").in_turn(|| Ok::<_, ()>(())).is_none());
        assert!(
            now(queue.acquire("a", 1)).is_ok(),
            "a request that may wait does"
        );
    }

    #[test]
    fn a_full_queue_rejects_new_requests_and_after_the_interval_evicts_the_last() {
        let (queue, first) = with_a_wait(4, 50);
        let second = Task::waiting(queue.acquire(2));
        let full = permits(now(queue.acquire(1)));
        assert!(matches!(full, Err(Rejected::QueueFull { permits: 1, .. })));
        queue.clock().set(Timestamp::from_millis(101));
        let third = Task::waiting(queue.acquire(2));
        assert!(matches!(second.outcome(), Err(Rejected::Evicted { .. })));
        let _fourth = Task::waiting(queue.acquire(2));
        assert!(matches!(first.outcome(), Err(Rejected::Evicted { .. })));
        let _fifth = Task::waiting(queue.acquire(2));
        assert!(matches!(third.outcome(), Err(Rejected::Evicted { .. })));
        assert_eq!(queue.counts().evicted, 3);
    }

    #[test]
    fn the_retry_counts_the_waiters_only_until_the_interval() {
        for (waited, ahead) in [(100, 1), (101, 0)] {
            // A permit each 200 ms, and none now.
            let bucket = TokenBucket::builder(Rate::per_second(5), 5)
                .initial(0)
                .build()
                .unwrap();
            let queue = undriven(bucket, 1).with_order(Order::NewestWhileOverloaded);
            let _wait = Task::waiting(queue.acquire(1));
            queue.clock().set(Timestamp::from_millis(waited));
            let outcome = permits(now(queue.acquire(1).until(Timestamp::from_millis(199))));
            let retry = Retry::At(Timestamp::from_millis(200 * (1 + ahead)));
            assert_eq!(outcome, Err(Rejected::Deadline { permits: 1, retry }));
        }
    }

    #[test]
    fn where_no_time_passes_the_oldest_request_comes_first() {
        let queue =
            Queue::new(Concurrency::new(1), Timeless, 9).with_order(Order::NewestWhileOverloaded);
        let held = queue.try_acquire(1).unwrap();
        let first = Task::waiting(queue.acquire(1));
        let mut second = Task::waiting(queue.acquire(1));
        drop(held);
        let _one = first.outcome().unwrap();
        assert!(second.is_pending());
    }
}

mod served {
    use super::*;

    #[test]
    fn the_oldest_waiter_is_granted_first() {
        let queue = queue(Concurrency::new(1), 9);
        let mut held = now(queue.acquire(1)).unwrap();
        let mut waits: Vec<_> = (0..4).map(|_| Task::waiting(queue.acquire(1))).collect();
        while !waits.is_empty() {
            drop(held);
            assert_eq!(
                waits.iter().map(Task::wakes).sum::<usize>(),
                waits[0].wakes(),
                "only the first is woken"
            );
            held = waits.remove(0).outcome().unwrap();
            assert!(waits.iter_mut().all(Task::is_pending));
        }
    }

    #[test]
    fn a_large_request_at_the_head_is_not_overtaken_by_small_ones_that_would_fit() {
        let queue = queue(Concurrency::new(5), 99);
        let held = now(queue.acquire(3)).unwrap();
        let mut large = Task::waiting(queue.acquire(4));
        let mut small = Task::waiting(queue.acquire(1));
        assert_eq!(available(&queue), 2, "the small one would fit");
        assert!(large.is_pending() && small.is_pending());
        drop(held);
        let large = large.outcome().unwrap();
        assert_eq!(
            (large.permits(), small.outcome().unwrap().permits()),
            (4, 1)
        );
    }

    #[test]
    fn no_newcomer_overtakes_waiters_by_any_method() {
        let queue = queue(Concurrency::new(5), 99);
        let held = now(queue.acquire(3)).unwrap();
        let large = Task::waiting(queue.acquire(4));
        let denied = Denied::Exhausted {
            now: START,
            permits: 1,
        };
        assert_eq!(queue.try_acquire_at(START, 1).unwrap_err(), denied);
        assert_eq!(queue.take_at(START, 1).unwrap_err(), denied);
        assert!(
            queue.try_acquire_at(START, 0).is_err(),
            "a probe answers as a try would"
        );
        assert!(queue.try_acquire_between_at(START, 1, 2).is_err());
        assert!(queue.drain_at(START).is_none());
        assert!(AllOf::new((&queue,)).try_acquire_at(START, 1).is_err());
        let as_object: &dyn Limiter = &queue;
        assert!(as_object.try_acquire_at(START, 1).is_err());
        let newcomer = Task::waiting(queue.acquire(1));
        let mut probe = Task::waiting(queue.acquire(0));
        let mut some = Task::waiting(queue.acquire(0).up_to(9));
        drop(held);
        let _one = newcomer.outcome().unwrap();
        assert!(probe.is_pending() && some.is_pending(), "5 are held");
        drop(large.outcome().unwrap());
        assert!(probe.poll().is_ready() && some.poll().is_ready());
    }

    #[test]
    fn newcomers_are_granted_again_once_there_is_no_waiter() {
        let queue = queue(Concurrency::new(2), 9);
        let held = now(queue.acquire(1)).unwrap();
        let wait = Task::waiting(queue.acquire(2));
        assert!(queue.try_acquire_at(START, 1).is_err());
        assert_eq!(queue.idle_at(START), Idle::InUse);
        drop(wait);
        assert!(queue.try_acquire_at(START, 1).is_ok());
        drop(held);
        assert!(queue.idle_at(START).is_idle());
    }

    #[test]
    fn a_rejected_newcomer_leaves_the_way_free() {
        let queue = queue(Concurrency::new(2), 0);
        let _held = now(queue.acquire(1)).unwrap();
        assert_eq!(
            permits(now(queue.acquire(2))),
            Err(Rejected::QueueFull {
                permits: 2,
                retry: Retry::OnRelease
            })
        );
        assert!(queue.try_acquire_at(START, 1).is_ok());
    }

    #[test]
    fn newest_first_grants_the_newest_waiter() {
        let queue = newest_first(Concurrency::new(1), 9);
        let mut held = now(queue.acquire(1)).unwrap();
        let mut waits: Vec<_> = (0..4).map(|_| Task::waiting(queue.acquire(1))).collect();
        while let Some(last) = waits.pop() {
            drop(held);
            held = last.outcome().unwrap();
            assert!(waits.iter_mut().all(Task::is_pending));
        }
    }

    #[test]
    fn newest_first_newcomers_take_what_is_free() {
        let queue = newest_first(Concurrency::new(3), 9);
        let held = now(queue.acquire(2)).unwrap();
        let mut wait = Task::waiting(queue.acquire(2));
        assert!(queue.try_acquire_at(START, 1).is_ok());
        assert_eq!(now(queue.acquire(1)).unwrap().permits(), 1);
        assert!(wait.is_pending());
        drop(held);
        assert!(wait.poll().is_ready());
    }

    #[test]
    fn newest_first_stops_at_the_first_that_does_not_fit_as_well() {
        let queue = newest_first(Concurrency::new(3), 9);
        let (one, two) = (
            now(queue.acquire(1)).unwrap(),
            now(queue.acquire(2)).unwrap(),
        );
        let mut older = Task::waiting(queue.acquire(1));
        let newer = Task::waiting(queue.acquire(2));
        drop(one);
        assert!(older.is_pending(), "it fits, but it is not its turn");
        drop(two);
        assert_eq!(newer.outcome().unwrap().permits(), 2);
        assert!(older.poll().is_ready());
    }
}

mod cancelling {
    use super::*;

    #[test]
    fn a_future_that_was_not_polled_does_not_count() {
        let queue = queue(Concurrency::new(1), 1);
        drop(queue.acquire(1));
        let held = now(queue.acquire(1)).unwrap();
        drop(Task::new(queue.acquire(1)));
        let unpolled = Task::new(queue.acquire(1));
        assert_eq!(queue.counts(), QueueCounts::default());
        let wait = Task::waiting(queue.acquire(1));
        drop(held);
        assert_eq!(permits(wait.outcome()), Ok(1));
        drop(unpolled);
        assert_eq!((available(&queue), queue.counts().cancelled), (1, 0));
    }

    #[test]
    fn a_cancelled_waiter_at_any_place_leaves_the_others_in_order() {
        for order in [Order::OldestFirst, Order::NewestFirst] {
            for place in 0..5 {
                let queue = queue(Concurrency::new(1), 5).with_order(order);
                let mut held = now(queue.acquire(1)).unwrap();
                let mut waits: Vec<_> = (0..5).map(|_| Task::waiting(queue.acquire(1))).collect();
                drop(waits.remove(place));
                assert_eq!(
                    (
                        queue.counts().waiters,
                        queue.counts().permits,
                        queue.counts().cancelled
                    ),
                    (4, 4, 1)
                );
                waits.push(Task::waiting(queue.acquire(1)));
                while !waits.is_empty() {
                    drop(held);
                    let next = if order == Order::OldestFirst {
                        0
                    } else {
                        waits.len() - 1
                    };
                    held = waits.remove(next).outcome().unwrap();
                    assert!(waits.iter_mut().all(Task::is_pending));
                }
            }
        }
    }

    #[test]
    fn waiters_behind_a_cancelled_head_are_granted_at_once_if_they_fit() {
        let queue = queue(Concurrency::new(5), 99);
        let _held = now(queue.acquire(3)).unwrap();
        let large = Task::waiting(queue.acquire(5));
        let [one, other, mut third] = [1, 1, 1].map(|n| Task::waiting(queue.acquire(n)));
        drop(large);
        assert_eq!((one.wakes(), other.wakes(), third.wakes()), (1, 1, 0));
        let both = (one.outcome().unwrap(), other.outcome().unwrap());
        assert!(third.is_pending());
        drop(both);
        assert!(third.poll().is_ready());
    }

    #[test]
    fn newest_first_the_head_is_the_last() {
        let queue = newest_first(Concurrency::new(5), 99);
        let _held = now(queue.acquire(4)).unwrap();
        let mut old = Task::waiting(queue.acquire(2));
        let held = now(queue.acquire(1)).unwrap();
        let fits = Task::waiting(queue.acquire(1));
        let newest = Task::waiting(queue.acquire(3));
        drop(held);
        assert_eq!(fits.wakes(), 0);
        drop(newest);
        assert_eq!(permits(fits.outcome()), Ok(1));
        assert!(old.is_pending());
    }

    #[test]
    fn many_waiters_are_granted_when_the_head_is_cancelled() {
        let queue = queue(Concurrency::new(60), 999);
        let _held = now(queue.acquire(1)).unwrap();
        let large = Task::waiting(queue.acquire(60));
        let waits: Vec<_> = (0..59).map(|_| Task::waiting(queue.acquire(1))).collect();
        drop(large);
        assert!(waits.iter().all(|wait| wait.wakes() == 1));
        assert_eq!(available(&queue), 0);
        drop(waits);
        assert_eq!(available(&queue), 59, "granted, but unclaimed");
    }

    #[test]
    fn an_unclaimed_grant_goes_to_the_next_waiter() {
        let queue = queue(Concurrency::new(2), 9);
        let held = now(queue.acquire(2)).unwrap();
        let [first, second, third] = [2, 1, 1].map(|n| Task::waiting(queue.acquire(n)));
        drop(held);
        assert_eq!((first.wakes(), second.wakes()), (1, 0));
        drop(first);
        assert_eq!((second.wakes(), third.wakes()), (1, 1));
        drop((permits(second.outcome()).unwrap(), third));
        assert_eq!(available(&queue), 2);
        let counts = queue.counts();
        assert_eq!(
            (counts.granted, counts.cancelled, counts.waiters),
            (3, 0, 0)
        );
    }

    #[test]
    fn unclaimed_tokens_go_to_the_next_waiter() {
        let queue = queue(
            TokenBucket::builder(Rate::per_second(1), 5)
                .initial(0)
                .build()
                .unwrap(),
            99,
        );
        let five = Task::waiting(queue.acquire(5));
        queue.clock().advance(5 * SECOND);
        assert_eq!(queue.advance(), Next::Idle);
        let next = Task::waiting(queue.acquire(4));
        drop(five);
        assert_eq!((next.wakes(), permits(next.outcome())), (1, Ok(4)));
        assert_eq!(available(&queue), 1);
    }

    #[test]
    fn an_unclaimed_probe_returns_nothing() {
        let queue = queue(Concurrency::new(1), 9);
        let held = now(queue.acquire(1)).unwrap();
        let probe = Task::waiting(queue.acquire(0));
        drop(held);
        drop(probe);
        assert_eq!(available(&queue), 1);
    }

    #[test]
    fn a_future_leaked_while_it_waits_keeps_its_place_and_then_its_permits() {
        let queue = queue(Concurrency::new(2), 9);
        let held = now(queue.acquire(2)).unwrap();
        let first = Task::waiting(queue.acquire(1));
        Task::waiting(queue.acquire(1)).leak();
        let third = Task::waiting(queue.acquire(1));
        drop(held);
        drop(first.outcome().unwrap());
        assert_eq!(
            permits(third.outcome()),
            Ok(1),
            "granted in its turn, with what is left"
        );
        assert_eq!((available(&queue), queue.counts().waiters), (1, 0));
    }

    #[test]
    fn futures_leaked_after_their_grant_or_before_their_first_poll_delay_no_waiter() {
        let queue = queue(Concurrency::new(2), 9);
        let held = now(queue.acquire(2)).unwrap();
        Task::new(queue.acquire(1)).leak();
        let leaked = Task::waiting(queue.acquire(1));
        let next = Task::waiting(queue.acquire(1));
        drop(held);
        leaked.leak();
        assert_eq!(permits(next.outcome()), Ok(1));
        assert_eq!(available(&queue), 1);
    }

    #[test]
    fn a_queue_may_be_dropped_before_a_leaked_future_of_it() {
        let queue = queue(Concurrency::new(1), 9);
        let held = now(queue.acquire(1)).unwrap();
        Task::waiting(queue.acquire(1)).leak();
        drop(held);
        let moved = queue;
        assert_eq!(available(&moved), 0, "granted to the leaked future");
    }

    #[test]
    fn a_head_that_is_woken_and_never_polled_delays_no_waiter() {
        let queue = queue(Concurrency::new(2), 9);
        let held = now(queue.acquire(2)).unwrap();
        let unpolled = Task::waiting(queue.acquire(1));
        let mut behind: Vec<_> = (0..3).map(|_| Task::waiting(queue.acquire(1))).collect();
        drop(held);
        for wait in behind.drain(..) {
            drop(wait.outcome().unwrap());
        }
        assert_eq!((unpolled.wakes(), available(&queue)), (1, 1));
    }
}
