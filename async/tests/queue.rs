//! The behaviour of the queue: who is granted, when, in which order, and what is left behind.

mod support;

use core::future::{Future, pending};
use core::panic::AssertUnwindSafe;
use core::pin::Pin;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::panic::catch_unwind;
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::thread;

use portcullis_async::{Acquire, Next, Order, Queue, QueueCounts, Rejected};
use portcullis_core::{
    AllOf, Clock, Concurrency, Denied, FixedWindow, Idle, Lease, Limiter, LimiterExt, ManualClock,
    MonotonicClock, Rate, Receipt, Retry, SlidingWindow, Timestamp, TokenBucket,
};
use support::{Task, Watched, now, waker};

const START: Timestamp = Timestamp::ZERO;
const SECOND: Duration = Duration::from_secs(1);

type Manual<L = Concurrency> = Queue<L, ManualClock>;
type Shared<L = Concurrency> = Arc<Manual<L>>;

fn queue<L>(limiter: L, max_permits: u64) -> Manual<L> {
    Queue::new(limiter, ManualClock::new(), max_permits)
}

fn newest_first<L>(limiter: L, max_permits: u64) -> Manual<L> {
    queue(limiter, max_permits).with_order(Order::NewestFirst)
}

fn available<L: Limiter>(queue: &Manual<L>) -> u64 {
    queue.available_at(queue.clock().now())
}

/// What can be compared of an outcome; a lease is dropped.
fn permits<P>(outcome: Result<Lease<P>, Rejected>) -> Result<u32, Rejected>
where
    P: core::ops::Deref,
    P::Target: Limiter,
{
    outcome.map(|lease| lease.permits())
}

mod order {
    use super::*;

    #[test]
    fn whoever_came_first_is_granted_first() {
        let queue = queue(Concurrency::new(1), 9);
        let mut held = now(queue.acquire(1)).unwrap();
        let mut waits: Vec<_> = (0..4).map(|_| Task::waiting(queue.acquire(1))).collect();
        while !waits.is_empty() {
            drop(held);
            assert_eq!(
                waits.iter().map(Task::wakes).sum::<usize>(),
                waits[0].wakes(),
                "the first alone is woken"
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
        assert_eq!((large.permits(), small.outcome().unwrap().permits()), (4, 1));
    }

    #[test]
    fn no_newcomer_gets_past_those_who_wait_by_any_way_in() {
        let queue = queue(Concurrency::new(5), 99);
        let held = now(queue.acquire(3)).unwrap();
        let large = Task::waiting(queue.acquire(4));
        let denied = Denied::Exhausted { now: START, permits: 1 };
        assert_eq!(queue.try_acquire_at(START, 1).unwrap_err(), denied);
        assert_eq!(queue.take_at(START, 1).unwrap_err(), denied);
        assert!(queue.try_acquire_at(START, 0).is_err(), "a probe says what a try would");
        assert!(queue.try_acquire_between_at(START, 1, 2).is_err());
        assert!(queue.drain_at(START).is_none());
        assert!(AllOf::new((&queue,)).try_acquire_at(START, 1).is_err());
        let as_object: &dyn Limiter = &queue;
        assert!(as_object.try_acquire_at(START, 1).is_err());
        let newcomer = Task::waiting(queue.acquire(1));
        let mut probe = Task::waiting(queue.acquire(0));
        let mut some = Task::waiting(queue.acquire_between(0, 9));
        drop(held);
        let _one = newcomer.outcome().unwrap();
        assert!(probe.is_pending() && some.is_pending(), "5 are out");
        drop(large.outcome().unwrap());
        assert!(probe.poll().is_ready() && some.poll().is_ready());
    }

    #[test]
    fn the_way_is_free_again_once_nobody_waits() {
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
    fn a_refused_newcomer_leaves_the_way_free() {
        let queue = queue(Concurrency::new(2), 0);
        let _held = now(queue.acquire(1)).unwrap();
        assert_eq!(permits(now(queue.acquire(2))), Err(Rejected::QueueFull { permits: 2 }));
        assert!(queue.try_acquire_at(START, 1).is_ok());
    }

    #[test]
    fn newest_first_grants_whoever_came_last() {
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
        let (one, two) = (now(queue.acquire(1)).unwrap(), now(queue.acquire(2)).unwrap());
        let mut older = Task::waiting(queue.acquire(1));
        let newer = Task::waiting(queue.acquire(2));
        drop(one);
        assert!(older.is_pending(), "fits, but it is not its turn");
        drop(two);
        assert_eq!(newer.outcome().unwrap().permits(), 2);
        assert!(older.poll().is_ready());
    }
}

mod limits {
    use super::*;

    #[test]
    fn the_queue_has_room_for_as_many_permits_as_it_was_given() {
        let queue = queue(Concurrency::new(9), 5);
        let _held = now(queue.acquire(9)).unwrap();
        let _three = Task::waiting(queue.acquire(3));
        assert_eq!(permits(now(queue.acquire(3))), Err(Rejected::QueueFull { permits: 3 }));
        let two = Task::waiting(queue.acquire(2));
        assert_eq!(permits(now(queue.acquire(1))), Err(Rejected::QueueFull { permits: 1 }));
        drop(two);
        let _one = Task::waiting(queue.acquire(1));
        assert_eq!((queue.counts().permits, queue.counts().refused), (4, 2));
    }

    #[test]
    fn the_queue_has_room_for_as_many_waits_as_it_was_given() {
        let queue = queue(Concurrency::new(9), u64::MAX).with_max_waiters(2);
        let _held = now(queue.acquire(9)).unwrap();
        let _first = Task::waiting(queue.acquire(0));
        let second = Task::waiting(queue.acquire(9));
        assert_eq!(permits(now(queue.acquire(0))), Err(Rejected::QueueFull { permits: 0 }));
        drop(second);
        let _third = Task::waiting(queue.acquire(1));
    }

    #[test]
    fn what_is_free_needs_no_room_in_the_queue() {
        for queue in [queue(Concurrency::new(2), 0), queue(Concurrency::new(2), 9).with_max_waiters(0)] {
            assert_eq!(now(queue.acquire(2)).unwrap().permits(), 2);
            assert_eq!(queue.counts(), QueueCounts::default());
        }
    }

    #[test]
    fn the_largest_requests_do_not_overflow_the_queue() {
        let limit = Concurrency::<u64>::max_limit();
        let queue = queue(Concurrency::new(limit), u64::MAX);
        let _held = now(queue.acquire(limit)).unwrap();
        let _waits: Vec<_> = (0..8).map(|_| Task::waiting(queue.acquire(limit))).collect();
        assert_eq!(queue.counts().permits, 8 * u64::from(limit));
        let full = newest_first(Concurrency::new(limit), u64::from(limit));
        let _held = now(full.acquire(limit)).unwrap();
        let three = Task::waiting(full.acquire(3));
        let _all = Task::waiting(full.acquire(limit));
        assert_eq!(permits(three.outcome()), Err(Rejected::Evicted { permits: 3 }));
    }

    #[test]
    fn newest_first_evicts_the_oldest_until_the_newcomer_fits() {
        let queue = newest_first(Concurrency::new(4), 6);
        let held = now(queue.acquire(4)).unwrap();
        let [first, second, mut third] = [3, 1, 2].map(|n| Task::waiting(queue.acquire(n)));
        let newcomer = Task::waiting(queue.acquire(4));
        assert_eq!((first.wakes(), second.wakes(), third.wakes()), (1, 1, 0));
        assert_eq!(permits(first.outcome()), Err(Rejected::Evicted { permits: 3 }));
        assert_eq!(permits(second.outcome()), Err(Rejected::Evicted { permits: 1 }));
        assert!(third.is_pending());
        assert_eq!((queue.counts().evicted, queue.counts().waiters, queue.counts().permits), (2, 2, 6));
        drop(held);
        assert_eq!(newcomer.outcome().unwrap().permits(), 4);
        assert_eq!(third.outcome().unwrap().permits(), 2);
    }

    #[test]
    fn newest_first_evicts_the_oldest_for_a_place_as_well() {
        let queue = newest_first(Concurrency::new(1), 99).with_max_waiters(2);
        let _held = now(queue.acquire(1)).unwrap();
        let [first, mut second, mut third] = [1, 1, 0].map(|n| Task::waiting(queue.acquire(n)));
        assert_eq!(permits(first.outcome()), Err(Rejected::Evicted { permits: 1 }));
        assert!(second.is_pending() && third.is_pending());
    }

    #[test]
    fn one_that_could_never_fit_evicts_nobody() {
        let queue = newest_first(Concurrency::new(4), 2);
        let _held = now(queue.acquire(4)).unwrap();
        let mut waits = [1, 1].map(|n| Task::waiting(queue.acquire(n)));
        assert_eq!(permits(now(queue.acquire(3))), Err(Rejected::QueueFull { permits: 3 }));
        assert!(waits.iter_mut().all(Task::is_pending));
        assert_eq!((queue.counts().evicted, queue.counts().refused), (0, 1));

        let nobody = newest_first(Concurrency::new(4), 9).with_max_waiters(0);
        let _held = now(nobody.acquire(4)).unwrap();
        assert_eq!(permits(now(nobody.acquire(1))), Err(Rejected::QueueFull { permits: 1 }));
    }

    #[test]
    fn one_newcomer_can_evict_more_than_are_woken_at_a_time() {
        for many in [15, 16, 17, 32, 33, 100] {
            let queue = newest_first(Concurrency::new(100), many);
            let held = now(queue.acquire(100)).unwrap();
            let waits: Vec<_> = (0..many).map(|_| Task::waiting(queue.acquire(1))).collect();
            let all = Task::waiting(queue.acquire(u32::try_from(many).unwrap()));
            for wait in waits {
                assert_eq!(wait.wakes(), 1);
                assert_eq!(permits(wait.outcome()), Err(Rejected::Evicted { permits: 1 }));
            }
            assert_eq!((queue.counts().evicted, queue.counts().waiters), (many, 1));
            drop(held);
            assert!(all.outcome().is_ok());
        }
    }

    #[test]
    fn oldest_first_evicts_nobody() {
        let queue = queue(Concurrency::new(1), 1);
        let held = now(queue.acquire(1)).unwrap();
        let wait = Task::waiting(queue.acquire(1));
        assert_eq!(permits(now(queue.acquire(1))), Err(Rejected::QueueFull { permits: 1 }));
        drop(held);
        assert!(wait.outcome().is_ok());
    }

    #[test]
    fn more_than_there_can_ever_be_is_refused_at_once() {
        for queue in [queue(Concurrency::new(2), 99), newest_first(Concurrency::new(2), 99)] {
            let too_many = Err(Rejected::ExceedsCapacity { permits: 3, capacity: 2 });
            assert_eq!(permits(now(queue.acquire(3))), too_many);
            let _held = now(queue.acquire(2)).unwrap();
            assert_eq!(permits(now(queue.acquire(3))), too_many);
            assert_eq!(permits(now(queue.acquire_between(3, 9))), too_many);
            assert_eq!(queue.counts(), QueueCounts::default());
        }
    }
}

mod parts {
    use super::*;

    #[test]
    fn a_wait_for_none_is_over_when_something_is_available_and_takes_nothing() {
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
    fn nobody_gets_past_one_who_waits_for_none() {
        let queue = queue(Concurrency::new(1), 9);
        let held = now(queue.acquire(1)).unwrap();
        let _large = Task::waiting(queue.acquire(0));
        assert!(queue.try_acquire_at(START, 1).is_err());
        let mut newcomer = Task::waiting(queue.acquire(1));
        drop(held);
        assert!(newcomer.poll().is_ready());
    }

    #[test]
    fn a_grant_in_part_is_what_there_is_between_the_two() {
        let queue = queue(Concurrency::new(10), 99);
        let all = now(queue.acquire_between(1, 100)).unwrap();
        assert_eq!(all.permits(), 10);
        drop(all);
        let some = now(queue.acquire_between(1, 4)).unwrap();
        assert_eq!(some.permits(), 4);
        let rest = now(queue.acquire_between(6, 6)).unwrap();
        assert_eq!((rest.permits(), available(&queue)), (6, 0));
    }

    #[test]
    fn a_wait_for_a_part_queues_with_the_fewest_and_takes_what_has_come_by_its_turn() {
        let queue = queue(Concurrency::new(10), 3);
        let (six, four) = (now(queue.acquire(6)).unwrap(), now(queue.acquire(4)).unwrap());
        let wait = Task::waiting(queue.acquire_between(2, 8));
        let after = Task::waiting(queue.acquire(1));
        assert_eq!(queue.counts().permits, 3);
        drop(six);
        let some = wait.outcome().unwrap();
        assert_eq!(some.permits(), 6, "all that there was");
        drop(four);
        assert_eq!(after.outcome().unwrap().permits(), 1);
        assert_eq!((queue.counts().waiters, queue.counts().permits), (0, 0));
    }

    #[test]
    fn where_the_most_is_less_than_the_fewest_it_counts_as_the_fewest() {
        let queue = queue(Concurrency::new(5), 9);
        assert_eq!(now(queue.acquire_between(3, 1)).unwrap().permits(), 3);
        assert_eq!(now(Acquire::new(&queue, 3, 1)).unwrap().permits(), 3);
    }

    #[test]
    fn from_none_to_some_waits_while_there_is_nothing() {
        let queue = queue(Concurrency::new(5), 9);
        let held = now(queue.acquire(5)).unwrap();
        let wait = Task::waiting(queue.acquire_between(0, 3));
        drop(held);
        assert_eq!(wait.outcome().unwrap().permits(), 3);
    }
}

mod closing {
    use super::*;

    #[test]
    fn those_who_wait_and_those_who_come_are_told() {
        for queue in [queue(Concurrency::new(3), 99), newest_first(Concurrency::new(3), 99)] {
            let held = now(queue.acquire(3)).unwrap();
            let waits = [3, 0, 1].map(|n| (n, Task::waiting(queue.acquire(n))));
            assert!(!queue.is_closed());
            queue.close();
            assert!(queue.is_closed());
            for (n, wait) in waits {
                assert_eq!(wait.wakes(), 1);
                assert_eq!(permits(wait.outcome()), Err(Rejected::Closed { permits: n }));
            }
            assert_eq!(permits(now(queue.acquire(1))), Err(Rejected::Closed { permits: 1 }));
            let denied = queue.try_acquire_at(START, 2).unwrap_err();
            assert_eq!(denied, Denied::Refused { now: START, permits: 2 });
            assert_eq!(denied.retry(&queue), Retry::Never);
            assert_eq!(held.permits(), 3);
            drop(held);
            assert_eq!(available(&queue), 3, "a lease that was out is given back as ever");
            assert_eq!(permits(now(queue.acquire(1))), Err(Rejected::Closed { permits: 1 }));
            let counts = queue.counts();
            assert_eq!(counts, QueueCounts::default());
            queue.close();
        }
    }

    #[test]
    fn however_many_wait() {
        let queue = queue(Concurrency::new(1), 999);
        let _held = now(queue.acquire(1)).unwrap();
        let waits: Vec<_> = (0..100).map(|_| Task::waiting(queue.acquire(1))).collect();
        queue.close();
        for wait in waits {
            assert_eq!(wait.wakes(), 1);
            assert_eq!(permits(wait.outcome()), Err(Rejected::Closed { permits: 1 }));
        }
        assert_eq!((queue.counts().waiters, queue.counts().cancelled), (0, 0));
    }

    #[test]
    fn a_wait_that_was_granted_before_has_its_permits() {
        let queue = queue(Concurrency::new(1), 9);
        let held = now(queue.acquire(1)).unwrap();
        let wait = Task::waiting(queue.acquire(1));
        drop(held);
        queue.close();
        assert_eq!(permits(wait.outcome()), Ok(1));
        assert_eq!(available(&queue), 1);
    }

    #[test]
    fn a_closed_wait_may_be_dropped_unseen() {
        let queue = queue(Concurrency::new(1), 9);
        let held = now(queue.acquire(1)).unwrap();
        let wait = Task::waiting(queue.acquire(1));
        queue.close();
        drop((wait, held));
        assert_eq!((queue.counts().cancelled, available(&queue)), (0, 1));
    }
}

mod cancelling {
    use super::*;

    #[test]
    fn a_future_that_was_not_polled_has_never_been() {
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
    fn at_any_place_it_leaves_the_others_in_their_order() {
        for order in [Order::OldestFirst, Order::NewestFirst] {
            for place in 0..5 {
                let queue = queue(Concurrency::new(1), 5).with_order(order);
                let mut held = now(queue.acquire(1)).unwrap();
                let mut waits: Vec<_> = (0..5).map(|_| Task::waiting(queue.acquire(1))).collect();
                drop(waits.remove(place));
                assert_eq!(
                    (queue.counts().waiters, queue.counts().permits, queue.counts().cancelled),
                    (4, 4, 1)
                );
                waits.push(Task::waiting(queue.acquire(1)));
                while !waits.is_empty() {
                    drop(held);
                    let next = if order == Order::OldestFirst { 0 } else { waits.len() - 1 };
                    held = waits.remove(next).outcome().unwrap();
                    assert!(waits.iter_mut().all(Task::is_pending));
                }
            }
        }
    }

    #[test]
    fn those_behind_the_head_are_granted_at_once_if_they_fit() {
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
    fn many_behind_the_head_are_granted_by_its_cancelling() {
        let queue = queue(Concurrency::new(60), 999);
        let _held = now(queue.acquire(1)).unwrap();
        let large = Task::waiting(queue.acquire(60));
        let waits: Vec<_> = (0..59).map(|_| Task::waiting(queue.acquire(1))).collect();
        drop(large);
        assert!(waits.iter().all(|wait| wait.wakes() == 1));
        assert_eq!(available(&queue), 0);
        drop(waits);
        assert_eq!(available(&queue), 59, "granted, and not claimed");
    }

    #[test]
    fn what_was_granted_and_not_claimed_goes_to_the_next() {
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
        assert_eq!((counts.granted, counts.cancelled, counts.waiters), (3, 0, 0));
    }

    #[test]
    fn tokens_that_were_granted_and_not_claimed_go_to_the_next_as_well() {
        let queue = queue(TokenBucket::builder(Rate::per_second(1), 5).initial(0).build().unwrap(), 99);
        let five = Task::waiting(queue.acquire(5));
        queue.clock().advance(5 * SECOND);
        assert_eq!(queue.advance(), Next::Idle);
        let next = Task::waiting(queue.acquire(4));
        drop(five);
        assert_eq!((next.wakes(), permits(next.outcome())), (1, Ok(4)));
        assert_eq!(available(&queue), 1);
    }

    #[test]
    fn a_probe_that_was_granted_and_not_claimed_gives_back_nothing() {
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
        assert_eq!(permits(third.outcome()), Ok(1), "served in its turn, with what is left");
        assert_eq!((available(&queue), queue.counts().waiters), (1, 0));
    }

    #[test]
    fn futures_leaked_after_their_grant_or_before_their_first_poll_trouble_nobody() {
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
    fn a_queue_may_go_before_a_leaked_future_of_it() {
        let queue = queue(Concurrency::new(1), 9);
        let held = now(queue.acquire(1)).unwrap();
        Task::waiting(queue.acquire(1)).leak();
        drop(held);
        let moved = queue;
        assert_eq!(available(&moved), 0, "granted to the one that is leaked");
    }

    #[test]
    fn a_head_that_is_woken_and_never_polled_holds_up_nobody() {
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

mod wakers {
    use super::*;

    fn held(permits: u32) -> (Shared, Lease<Shared>) {
        let queue = Arc::new(queue(Concurrency::new(permits), 999));
        let lease = Lease::try_acquire_at(Arc::clone(&queue), START, permits).unwrap();
        (queue, lease)
    }

    fn wait(queue: &Shared, n: u32) -> Task<Acquire<Shared>> {
        Task::new(Acquire::new(Arc::clone(queue), n, n))
    }

    #[test]
    fn one_release_grants_any_number_of_waits() {
        for many in [1, 15, 16, 17, 31, 32, 33, 500] {
            let (queue, lease) = held(many);
            let waits: Vec<_> = (0..many).map(|_| Task::waiting(queue.acquire(1))).collect();
            drop(lease);
            assert!(waits.iter().all(|wait| wait.wakes() == 1), "{many}");
            assert_eq!((queue.counts().granted, queue.counts().waiters), (many.into(), 0));
            let leases: Vec<_> = waits.into_iter().map(|wait| wait.outcome().unwrap()).collect();
            assert_eq!(available(&queue), 0);
            drop(leases);
            assert_eq!(available(&queue), u64::from(many));
        }
    }

    #[test]
    fn they_run_in_the_order_of_the_grants() {
        let (queue, lease) = held(40);
        let woken = Arc::new(Mutex::new(Vec::new()));
        let _waits: Vec<_> = (0..40)
            .map(|place| {
                let woken = Arc::clone(&woken);
                let mut task = wait(&queue, 1);
                assert!(task.poll_with(&waker(move || woken.lock().unwrap().push(place))).is_pending());
                task
            })
            .collect();
        drop(lease);
        assert_eq!(*woken.lock().unwrap(), (0..40).collect::<Vec<_>>());
    }

    #[test]
    fn the_newest_is_woken_the_others_are_not() {
        let (queue, lease) = held(1);
        let calls: Arc<[AtomicUsize; 3]> = Arc::default();
        let mut task = wait(&queue, 1);
        for number in 0..3 {
            let calls = Arc::clone(&calls);
            let waker = waker(move || {
                calls[number].fetch_add(1, Ordering::Relaxed);
            });
            assert!(task.poll_with(&waker).is_pending());
        }
        drop(lease);
        assert_eq!(calls.each_ref().map(|calls| calls.load(Ordering::Relaxed)), [0, 0, 1]);
        assert!(task.poll().is_ready());
    }

    #[test]
    fn nothing_is_woken_after_the_wait_was_dropped() {
        let (queue, lease) = held(1);
        let woken = Arc::new(AtomicUsize::new(0));
        let counting = Arc::clone(&woken);
        let waker = waker(move || {
            counting.fetch_add(1, Ordering::Relaxed);
        });
        let mut task = wait(&queue, 1);
        assert!(task.poll_with(&waker).is_pending());
        drop(task);
        drop(waker);
        assert_eq!(Arc::strong_count(&woken), 1, "and the waker is gone with it");
        drop(lease);
        assert_eq!(woken.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn they_are_gone_once_they_have_run() {
        let (queue, lease) = held(1);
        let here = Arc::new(());
        let captured = Arc::clone(&here);
        let mut task = wait(&queue, 1);
        assert!(task.poll_with(&waker(move || drop(Arc::clone(&captured)))).is_pending());
        drop(lease);
        assert_eq!(Arc::strong_count(&here), 1);
        assert!(task.poll().is_ready());
    }

    #[test]
    fn one_that_panics_keeps_nobody_from_being_granted_and_woken() {
        let (queue, lease) = held(4);
        let mut first = wait(&queue, 1);
        assert!(first.poll_with(&waker(|| panic!("a waker"))).is_pending());
        let rest: Vec<_> = (0..3).map(|_| Task::waiting(queue.acquire(1))).collect();
        assert!(catch_unwind(AssertUnwindSafe(|| drop(lease))).is_err(), "the releaser is told");
        assert!(rest.iter().all(|wait| wait.wakes() == 1));
        assert!(first.poll().is_ready());
        drop((first, rest));
        assert_eq!((available(&queue), queue.counts().waiters), (4, 0));
    }

    #[test]
    fn one_may_acquire() {
        let (queue, lease) = held(2);
        let inside = Arc::new(Mutex::new(None));
        let acquires = {
            let (inside, queue) = (Arc::clone(&inside), Arc::clone(&queue));
            waker(move || {
                *inside.lock().unwrap() = Some(now(Acquire::new(Arc::clone(&queue), 1, 1)).unwrap());
            })
        };
        let mut head = wait(&queue, 1);
        assert!(head.poll_with(&acquires).is_pending());
        drop(lease);
        assert_eq!(inside.lock().unwrap().take().unwrap().permits(), 1);
        assert_eq!(permits(head.outcome()), Ok(1));
        assert_eq!(available(&queue), 2);
    }

    #[test]
    fn one_may_release() {
        let (queue, mut lease) = held(2);
        let other = Mutex::new(Some(lease.split(1).unwrap()));
        let mut head = wait(&queue, 1);
        assert!(head.poll_with(&waker(move || drop(other.lock().unwrap().take()))).is_pending());
        let next = Task::waiting(queue.acquire(1));
        drop(lease);
        assert_eq!((next.wakes(), permits(next.outcome())), (1, Ok(1)));
        assert!(head.outcome().is_ok());
    }

    #[test]
    fn one_may_close() {
        let (queue, lease) = held(1);
        let mut head = wait(&queue, 1);
        let closes = {
            let queue = Arc::clone(&queue);
            waker(move || queue.close())
        };
        assert!(head.poll_with(&closes).is_pending());
        let next = Task::waiting(queue.acquire(1));
        drop(lease);
        assert_eq!(permits(next.outcome()), Err(Rejected::Closed { permits: 1 }));
        assert_eq!(permits(head.outcome()), Ok(1), "granted before");
        assert_eq!(available(&queue), 1);
    }

    #[test]
    fn one_may_cancel() {
        let (queue, lease) = held(2);
        let large = Arc::new(Mutex::new(None));
        let mut head = wait(&queue, 1);
        let cancels = {
            let large = Arc::clone(&large);
            waker(move || drop(large.lock().unwrap().take()))
        };
        assert!(head.poll_with(&cancels).is_pending());
        *large.lock().unwrap() = Some(Task::waiting(Acquire::new(Arc::clone(&queue), 2, 2)));
        let behind = Task::waiting(queue.acquire(1));
        drop(lease);
        assert_eq!((behind.wakes(), queue.counts().cancelled), (1, 1));
        assert!(head.outcome().is_ok());
    }

    #[test]
    fn one_may_poll_the_wait_and_drop_the_lease_in_a_chain() {
        type Slot = Mutex<Option<Task<Acquire<Shared>>>>;
        let (queue, lease) = held(1);
        let slots: Arc<Vec<Slot>> = Arc::new((0..50).map(|_| Mutex::new(Some(wait(&queue, 1)))).collect());
        for number in 0..slots.len() {
            let all = Arc::clone(&slots);
            let runs = waker(move || {
                let Some(mut task) = all[number].lock().unwrap().take() else { return };
                match task.poll() {
                    // The lease is dropped in the waker, and so grants the next from within.
                    Poll::Ready(lease) => drop(lease.unwrap()),
                    Poll::Pending => *all[number].lock().unwrap() = Some(task),
                }
            });
            assert!(slots[number].lock().unwrap().as_mut().unwrap().poll_with(&runs).is_pending());
        }
        drop(lease);
        assert!(slots.iter().all(|slot| slot.lock().unwrap().is_none()));
        assert_eq!((available(&queue), queue.counts().granted), (1, 50));
    }

    /// Dropped under the lock it would wait for itself; this lock says so.
    #[test]
    fn one_that_is_replaced_or_cancelled_may_use_the_queue_as_it_is_dropped() {
        type Locked = Queue<Concurrency, ManualClock, Watched>;
        struct Uses(Arc<Locked>, Arc<AtomicUsize>);
        impl Drop for Uses {
            fn drop(&mut self) {
                drop(Task::new(self.0.acquire(1)).poll());
                self.1.fetch_add(1, Ordering::Relaxed);
            }
        }
        let queue: Arc<Locked> = Arc::new(Queue::new(Concurrency::new(1), ManualClock::new(), 9));
        let dropped = Arc::new(AtomicUsize::new(0));
        let uses = || {
            let uses = Uses(Arc::clone(&queue), Arc::clone(&dropped));
            waker(move || assert!(!uses.0.is_closed()))
        };
        let held = now(queue.acquire(1)).unwrap();
        let mut task = Task::new(queue.acquire(1));
        assert!(task.poll_with(&uses()).is_pending());
        assert!(task.poll_with(&uses()).is_pending());
        assert_eq!(dropped.load(Ordering::Relaxed), 1, "replaced");
        drop(task);
        assert_eq!(dropped.load(Ordering::Relaxed), 2, "cancelled");
        let mut task = Task::new(queue.acquire(1));
        assert!(task.poll_with(&uses()).is_pending());
        drop(held);
        assert_eq!(dropped.load(Ordering::Relaxed), 3, "woken");
    }

    #[test]
    fn none_runs_under_the_lock() {
        let queue: Arc<Queue<_, _, Watched>> =
            Arc::new(Queue::new(Concurrency::new(1), ManualClock::new(), 2).with_order(Order::NewestFirst));
        let ran = Arc::new(AtomicUsize::new(0));
        let careful = || {
            let ran = Arc::clone(&ran);
            waker(move || {
                assert!(!Watched::is_held());
                ran.fetch_add(1, Ordering::Relaxed);
            })
        };
        let held = now(queue.acquire(1)).unwrap();
        let mut tasks: Vec<_> = (0..4).map(|_| Task::new(queue.acquire(1))).collect();
        for task in &mut tasks {
            assert!(task.poll_with(&careful()).is_pending());
        }
        assert_eq!(ran.load(Ordering::Relaxed), 2, "evicted");
        drop(held);
        assert_eq!(ran.load(Ordering::Relaxed), 3, "granted");
        let mut driver = Task::new(queue.drive(|_| pending()));
        assert!(driver.poll_with(&careful()).is_pending());
        queue.close();
        assert_eq!(ran.load(Ordering::Relaxed), 5, "closed, and the driver");
    }
}

mod marks {
    use super::*;

    /// A release never waits for the list: it leaves a mark, and whoever has the list grants.
    #[test]
    fn what_is_released_while_another_has_the_list_is_granted_by_that_one() {
        type Locked = Queue<Concurrency, ManualClock, Watched>;
        static QUEUE: Locked = Queue::new(Concurrency::new(2), ManualClock::new(), 99);
        type Release = Lease<&'static Locked>;
        let works: [fn(Release); 6] = [
            |held| {
                Watched::before_unlock(move || drop(held));
                drop(Task::waiting(QUEUE.acquire(2)));
            },
            |held| {
                let mut polled = Task::waiting(QUEUE.acquire(2));
                Watched::before_unlock(move || drop(held));
                assert!(polled.is_pending());
            },
            |held| {
                let cancelled = Task::waiting(QUEUE.acquire(2));
                Watched::before_unlock(move || drop(held));
                drop(cancelled);
            },
            |held| {
                Watched::before_unlock(move || drop(held));
                assert_eq!(QUEUE.advance(), Next::OnRelease, "as it was when it looked");
            },
            |held| {
                Watched::before_unlock(move || drop(held));
                QUEUE.change(|limit| limit.set_limit(2)).unwrap();
            },
            |held| {
                Watched::before_unlock(move || drop(held));
                assert!(Task::new(QUEUE.drive(|_| pending::<()>())).is_pending());
            },
        ];
        for (number, work) in works.into_iter().enumerate() {
            let held = now(QUEUE.acquire(2)).unwrap();
            let wait = Task::waiting(QUEUE.acquire(1));
            work(held);
            assert_eq!(wait.wakes(), 1, "work {number}");
            drop(wait.outcome().unwrap());
        }
        assert_eq!((QUEUE.available_at(START), QUEUE.counts().waiters), (2, 0));
    }

    #[test]
    fn what_is_released_between_the_first_look_and_the_list_is_found_by_the_second() {
        // Denies once, and frees what it denied right then.
        struct Late(Concurrency, AtomicBool);
        impl Limiter for Late {
            fn take_at(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
                let outcome = self.0.take_at(now, n);
                if outcome.is_err() && self.1.swap(false, Ordering::Relaxed) {
                    Limiter::release(&self.0, 1);
                }
                outcome
            }
            fn release(&self, n: u32) {
                Limiter::release(&self.0, n);
            }
            fn available_at(&self, now: Timestamp) -> u64 {
                self.0.available_at(now)
            }
            fn retry(&self, denied: Denied) -> Retry {
                Limiter::retry(&self.0, denied)
            }
        }
        for order in [Order::OldestFirst, Order::NewestFirst] {
            let queue = queue(Late(Concurrency::new(1), AtomicBool::new(true)), 9).with_order(order);
            let held = now(queue.acquire(1)).unwrap().forget();
            assert_eq!(held, 1);
            assert_eq!(permits(now(queue.acquire(1))), Ok(1));
        }
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
    fn a_head_that_asks_for_more_than_a_lowered_limit_is_told_and_those_behind_move_up() {
        let queue = queue(Concurrency::new(5), 99);
        let held = now(queue.acquire(4)).unwrap();
        let [large, small] = [4, 1].map(|n| Task::waiting(queue.acquire(n)));
        queue.change(|limit| limit.set_limit(3)).unwrap();
        assert_eq!((large.wakes(), small.wakes()), (1, 0));
        assert_eq!(permits(large.outcome()), Err(Rejected::ExceedsCapacity { permits: 4, capacity: 3 }));
        drop(held);
        assert_eq!(permits(small.outcome()), Ok(1));
        assert_eq!((queue.counts().waiters, queue.counts().permits, queue.counts().granted), (0, 0, 1));
    }

    #[test]
    fn under_a_limit_of_none_everybody_is_told() {
        let queue = queue(Concurrency::new(1), 99);
        let held = now(queue.acquire(1)).unwrap();
        let waits: Vec<_> = (0..40).map(|n| (n % 2, Task::waiting(queue.acquire(n % 2)))).collect();
        queue.change(|limit| limit.set_limit(0)).unwrap();
        for (permits, wait) in waits {
            let Err(rejected) = wait.outcome() else { panic!("granted") };
            assert_eq!(rejected, Rejected::ExceedsCapacity { permits, capacity: 0 });
        }
        drop(held);
        assert_eq!(
            permits(now(queue.acquire(1))),
            Err(Rejected::ExceedsCapacity { permits: 1, capacity: 0 })
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
    fn the_capacity_told_is_the_one_now() {
        let queue = newest_first(Concurrency::new(5), 99);
        let _held = now(queue.acquire(5)).unwrap();
        let wait = Task::waiting(queue.acquire(3));
        queue.change(|limit| limit.set_limit(2)).unwrap();
        assert_eq!(permits(wait.outcome()), Err(Rejected::ExceedsCapacity { permits: 3, capacity: 2 }));
    }
}

mod counts {
    use super::*;

    #[track_caller]
    fn check(queue: &Manual, waiters: u32, permits: u64, ends: [u64; 4]) {
        let counts = queue.counts();
        assert_eq!((counts.waiters, counts.permits), (waiters, permits));
        assert_eq!([counts.granted, counts.refused, counts.evicted, counts.cancelled], ends);
    }

    #[test]
    fn each_wait_is_counted_once_as_what_it_came_to() {
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
        assert_eq!(permits(now(queue.acquire(4))), Err(Rejected::QueueFull { permits: 4 }));
        check(&queue, 0, 0, [1, 1, 1, 1]);
        let unclaimed = Task::waiting(queue.acquire(3));
        drop((held, evicted));
        check(&queue, 0, 0, [2, 1, 1, 1]);
        drop((granted, unclaimed));
        check(&queue, 0, 0, [2, 1, 1, 1]);
        assert_eq!(available(&queue), 5);
    }

    #[test]
    fn what_is_granted_or_refused_without_a_wait_by_the_limiter_is_not_counted() {
        let queue = queue(Concurrency::new(2), 9);
        drop(now(queue.acquire(2)).unwrap());
        drop(queue.try_acquire_at(START, 2));
        assert!(now(queue.acquire(3)).is_err() && queue.try_acquire_at(START, 3).is_err());
        drop(queue.acquire(1));
        check(&queue, 0, 0, [0, 0, 0, 0]);
    }

    #[test]
    fn a_snapshot_stays_what_it_was() {
        let queue = queue(Concurrency::new(1), 9);
        let _held = now(queue.acquire(1)).unwrap();
        let before = queue.counts();
        let _wait = Task::waiting(queue.acquire(1));
        assert_eq!((before.waiters, queue.counts().waiters), (0, 1));
    }
}

/// Permits that come back by time.
mod time {
    use super::*;

    /// At each instant that `advance` tells one more is granted, and not 1 ns earlier; returns the instants.
    fn instants<L: Limiter>(queue: &Manual<L>, requests: &[u32]) -> Vec<u64> {
        let mut waits: Vec<_> = requests.iter().map(|&n| Task::waiting(queue.acquire(n))).collect();
        let mut told = Vec::new();
        loop {
            let at = match queue.advance() {
                Next::At(at) => at,
                Next::Idle => break,
                Next::OnRelease => panic!("time helps"),
            };
            assert!(at > queue.clock().now(), "what is due is granted by the call itself");
            assert_eq!(queue.advance(), Next::At(at), "asking changes nothing");
            queue.clock().set(Timestamp::from_nanos(at.as_nanos() - 1));
            assert_eq!(queue.advance(), Next::At(at));
            assert!(waits.iter_mut().all(Task::is_pending), "1 ns before {at}");
            queue.clock().set(at);
            assert!(waits.iter_mut().all(Task::is_pending), "time alone grants nothing to those who wait");
            queue.advance();
            let before = waits.len();
            waits.retain_mut(|wait| wait.is_pending());
            assert!(waits.len() < before, "nobody was granted at {at}");
            told.push(at.as_nanos());
        }
        assert!(waits.is_empty());
        assert_eq!(queue.counts().granted, requests.len() as u64);
        told
    }

    const MS: u64 = 1_000_000;

    #[test]
    fn a_token_bucket_grants_at_the_instant_that_it_tells() {
        let bucket = TokenBucket::builder(Rate::per_second(10), 5).initial(0).build().unwrap();
        let told = instants(&queue(bucket, 99), &[1, 5, 0, 1]);
        // The one who asks for none waits for one, of which it takes nothing.
        assert_eq!(told, [100 * MS, 600 * MS, 700 * MS]);
        let thirds = TokenBucket::builder(Rate::per_second(3), 5).initial(0).build().unwrap();
        assert_eq!(instants(&queue(thirds, 99), &[1, 1, 1]), [333_333_334, 666_666_667, 1_000_000_000]);
        let steps = TokenBucket::builder(Rate::per_second(2), 5).stepwise().initial(0).build().unwrap();
        assert_eq!(instants(&queue(steps, 99), &[1, 1, 1]), [1_000 * MS, 2_000 * MS]);
    }

    #[test]
    fn a_fixed_window_grants_at_its_edges() {
        let queue = queue(FixedWindow::new(2, SECOND), 99);
        queue.clock().set(Timestamp::from_millis(300));
        let _held = now(queue.acquire(2)).unwrap();
        assert_eq!(instants(&queue, &[1, 2, 1, 0]), [1_000 * MS, 2_000 * MS, 3_000 * MS]);
    }

    #[test]
    fn a_sliding_window_grants_when_a_segment_leaves_it() {
        let queue: Manual<SlidingWindow<4>> = queue(SlidingWindow::new(3, SECOND, 4), 99);
        let _first = now(queue.acquire(1)).unwrap();
        queue.clock().set(Timestamp::from_millis(600));
        let _second = now(queue.acquire(2)).unwrap();
        assert_eq!(instants(&queue, &[1, 1, 1]), [1_000 * MS, 1_500 * MS]);
    }

    #[test]
    fn newest_first_the_time_told_is_the_newest_ones() {
        let bucket = TokenBucket::builder(Rate::per_second(1), 5).initial(0).build().unwrap();
        let queue = newest_first(bucket, 99);
        let _old = Task::waiting(queue.acquire(1));
        assert_eq!(queue.advance(), Next::At(Timestamp::from_secs(1)));
        let new = Task::waiting(queue.acquire(3));
        assert_eq!(queue.advance(), Next::At(Timestamp::from_secs(3)));
        drop(new);
        assert_eq!(queue.advance(), Next::At(Timestamp::from_secs(1)));
    }

    #[test]
    fn permits_in_use_come_back_by_release_alone() {
        let queue = queue(Concurrency::new(1), 9);
        assert_eq!(queue.advance(), Next::Idle);
        let held = now(queue.acquire(1)).unwrap();
        assert_eq!(queue.advance(), Next::Idle, "nobody waits");
        let wait = Task::waiting(queue.acquire(1));
        queue.clock().advance(SECOND);
        assert_eq!(queue.advance(), Next::OnRelease);
        drop(held);
        assert_eq!(queue.advance(), Next::Idle);
        assert!(wait.outcome().is_ok());
    }

    #[test]
    fn where_nothing_ever_comes_back_there_is_no_time_to_tell() {
        let queue = queue(TokenBucket::builder(Rate::ZERO, 5).initial(0).build().unwrap(), 9);
        let _wait = Task::waiting(queue.acquire(1));
        assert_eq!(queue.advance(), Next::OnRelease);
    }

    #[test]
    fn one_call_grants_all_that_has_come_in_however_much() {
        let queue = queue(FixedWindow::new(100, SECOND), 999);
        let _held = now(queue.acquire(100)).unwrap();
        let waits: Vec<_> = (0..150).map(|_| Task::waiting(queue.acquire(1))).collect();
        queue.clock().advance(SECOND);
        queue.advance();
        let (granted, waiting) = waits.split_at(100);
        assert!(granted.iter().all(|wait| wait.wakes() == 1) && waiting.iter().all(|wait| wait.wakes() == 0));
        assert_eq!(queue.advance(), Next::At(Timestamp::from_secs(2)));
    }

    #[test]
    fn a_clock_that_goes_back_grants_nothing_too_early() {
        let queue = queue(TokenBucket::new(Rate::per_second(1), 1), 9);
        queue.clock().set(Timestamp::from_secs(10));
        let _held = now(queue.acquire(1)).unwrap();
        let mut wait = Task::waiting(queue.acquire(1));
        queue.clock().set(Timestamp::from_secs(9));
        assert_eq!(queue.advance(), Next::At(Timestamp::from_secs(11)));
        assert!(wait.is_pending());
    }

    #[test]
    fn a_refund_grants_those_who_wait() {
        let queue = queue(TokenBucket::new(Rate::per_second(1), 5), 9);
        let mut held = now(queue.acquire(5)).unwrap();
        let wait = Task::waiting(queue.acquire(3));
        assert_eq!(held.refund_at(START, 4), Ok(4));
        assert_eq!((wait.wakes(), permits(wait.outcome())), (1, Ok(3)));
        assert_eq!(available(&queue), 1);
    }
}

/// Tasks under one thread and a manual clock, whose timers are its own.
mod drive {
    use super::*;

    type Timers = Mutex<Vec<(Timestamp, Waker)>>;

    #[derive(Default)]
    struct Executor {
        clock: Arc<ManualClock>,
        timers: Timers,
        /// How many sleeps were begun.
        sleeps: AtomicUsize,
    }

    struct Sleep<'e>(&'e Executor, Timestamp);

    impl Future for Sleep<'_> {
        type Output = ();
        fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
            if self.0.clock.now() >= self.1 {
                return Poll::Ready(());
            }
            self.0.timers.lock().unwrap().push((self.1, context.waker().clone()));
            Poll::Pending
        }
    }

    type Local<'e> = (Pin<Box<dyn Future<Output = ()> + 'e>>, Arc<AtomicBool>);

    impl Executor {
        fn sleep(&self, until: Timestamp) -> Sleep<'_> {
            self.sleeps.fetch_add(1, Ordering::Relaxed);
            Sleep(self, until)
        }

        fn task<'e>(future: impl Future<Output = ()> + 'e) -> Local<'e> {
            (Box::pin(future), Arc::new(AtomicBool::new(true)))
        }

        /// Polls what is woken, and moves the time to the next timer when nothing is; until the first task is done. Returns the polls of each task.
        fn run(&self, mut tasks: Vec<Local<'_>>) -> Vec<usize> {
            let mut polls = vec![0; tasks.len()];
            let mut done = vec![false; tasks.len()];
            loop {
                let mut idle = true;
                for (number, (future, woken)) in tasks.iter_mut().enumerate() {
                    if done[number] || !woken.swap(false, Ordering::Relaxed) {
                        continue;
                    }
                    idle = false;
                    polls[number] += 1;
                    let flag = Arc::clone(woken);
                    let waker = waker(move || flag.store(true, Ordering::Relaxed));
                    done[number] = future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
                }
                if done.iter().all(|done| *done) {
                    return polls;
                }
                if idle {
                    let mut timers = self.timers.lock().unwrap();
                    let next = timers.iter().map(|timer| timer.0).min().expect("nobody sleeps, nobody runs");
                    self.clock.set(next.max(self.clock.now()));
                    let now = self.clock.now();
                    let (due, rest) = timers.drain(..).partition(|timer| timer.0 <= now);
                    *timers = rest;
                    drop(timers);
                    let due: Vec<_> = due;
                    for (_, waker) in due {
                        waker.wake();
                    }
                }
            }
        }
    }

    fn bucket(rate: u32, burst: u64) -> TokenBucket {
        TokenBucket::builder(Rate::per_second(rate), burst).initial(0).build().unwrap()
    }

    #[test]
    fn each_wait_ends_at_its_instant_with_one_timer_for_all() {
        let executor = Executor::default();
        let queue: Queue<_, _> = Queue::new(bucket(10, 5), &*executor.clock, 99);
        let ends = Mutex::new(Vec::new());
        let left = AtomicU32::new(4);
        let mut tasks: Vec<_> = [1, 2, 5, 1]
            .map(|n| {
                let (queue, ends, left, clock) = (&queue, &ends, &left, &executor.clock);
                Executor::task(async move {
                    let lease = queue.acquire(n).await.unwrap();
                    ends.lock().unwrap().push((lease.permits(), clock.now().as_nanos() / 1_000_000));
                    if left.fetch_sub(1, Ordering::Relaxed) == 1 {
                        queue.close();
                    }
                })
            })
            .into();
        tasks.push(Executor::task(queue.drive(|at| executor.sleep(at))));
        let polls = executor.run(tasks);
        assert_eq!(*ends.lock().unwrap(), [(1, 100), (2, 300), (5, 800), (1, 900)]);
        assert_eq!(executor.sleeps.load(Ordering::Relaxed), 4, "one for each instant");
        assert_eq!(polls[..4], [2; 4], "each waits to be woken once");
    }

    #[test]
    fn the_timer_follows_a_head_that_is_cancelled_or_comes_newly() {
        let executor = Executor::default();
        let queue: Queue<_, _> = Queue::new(bucket(1, 60), &*executor.clock, 99);
        let ends = Mutex::new(Vec::new());
        let tasks = vec![
            Executor::task(async {
                // Gives up after 2 s what would take a minute.
                let wait = core::pin::pin!(queue.acquire(60));
                let mut wait = Some(wait);
                let mut sleep = core::pin::pin!(executor.sleep(Timestamp::from_secs(2)));
                core::future::poll_fn(|context| {
                    let waits = wait.as_mut().is_some_and(|wait| wait.as_mut().poll(context).is_pending());
                    assert!(waits);
                    sleep.as_mut().poll(context)
                })
                .await;
            }),
            Executor::task(async {
                drop(queue.acquire(5).await.unwrap());
                ends.lock().unwrap().push(executor.clock.now());
                executor.sleep(Timestamp::from_secs(20)).await;
                // 15 there are, so it waits for one more.
                drop(queue.acquire(16).await.unwrap());
                ends.lock().unwrap().push(executor.clock.now());
                queue.close();
            }),
            Executor::task(queue.drive(|at| executor.sleep(at))),
        ];
        executor.run(tasks);
        assert_eq!(*ends.lock().unwrap(), [Timestamp::from_secs(5), Timestamp::from_secs(21)]);
    }

    #[test]
    fn a_refund_makes_it_earlier() {
        let executor = Executor::default();
        let bucket = TokenBucket::new(Rate::per_second(1), 10);
        let queue: Queue<_, _> = Queue::new(bucket, &*executor.clock, 99);
        let mut held = now(queue.acquire(10)).unwrap();
        let tasks = vec![
            Executor::task(async {
                drop(queue.acquire(9).await.unwrap());
                assert_eq!(executor.clock.now(), Timestamp::from_secs(5));
                queue.close();
            }),
            Executor::task(async {
                executor.sleep(Timestamp::from_secs(3)).await;
                assert_eq!(held.refund_at(executor.clock.now(), 4), Ok(4));
            }),
            Executor::task(queue.drive(|at| executor.sleep(at))),
        ];
        executor.run(tasks);
    }

    #[test]
    fn tokens_that_went_unclaimed_make_it_earlier() {
        let queue = queue(bucket(1, 10), 99);
        let unclaimed = Task::waiting(queue.acquire(4));
        let _wait = Task::waiting(queue.acquire(6));
        let told = Mutex::new(Vec::new());
        let mut driver = Task::new(queue.drive(|at| {
            told.lock().unwrap().push(at);
            pending::<()>()
        }));
        assert!(driver.is_pending());
        queue.clock().advance(4 * SECOND);
        assert!(driver.is_pending());
        let before = driver.wakes();
        drop(unclaimed);
        assert!(driver.wakes() > before);
        assert!(driver.is_pending());
        assert_eq!(*told.lock().unwrap(), [4, 10, 6].map(Timestamp::from_secs));
    }

    #[test]
    fn it_sleeps_while_nobody_waits_and_ends_when_the_queue_is_closed() {
        let queue = queue(bucket(1, 1), 9);
        let mut driver = Task::new(queue.drive(|_| pending::<()>()));
        assert!(driver.is_pending());
        let wait = Task::waiting(queue.acquire(1));
        assert_eq!(driver.wakes(), 1, "somebody waits");
        assert!(driver.is_pending());
        drop(wait);
        assert!(driver.is_pending());
        let before = driver.wakes();
        queue.close();
        assert_eq!(driver.wakes(), before + 1);
        assert!(driver.poll().is_ready());
    }

    #[test]
    fn it_is_not_woken_by_its_own_poll() {
        let queue = queue(bucket(1, 5), 9);
        let _wait = Task::waiting(queue.acquire(1));
        let mut driver = Task::new(queue.drive(|_| pending::<()>()));
        for _ in 0..3 {
            assert!(driver.is_pending());
        }
        assert_eq!(driver.wakes(), 0);
        let _behind = Task::waiting(queue.acquire(1));
        assert_eq!(driver.wakes(), 0, "the time to call is the head's");
    }

    #[test]
    fn the_last_one_polled_drives_and_a_dropped_one_does_no_harm() {
        let queue = queue(bucket(1, 5), 9);
        let mut one = Task::new(queue.drive(|_| pending::<()>()));
        let mut other = Task::new(queue.drive(|_| pending::<()>()));
        assert!(one.is_pending() && other.is_pending());
        let _wait = Task::waiting(queue.acquire(1));
        assert_eq!((one.wakes(), other.wakes()), (0, 1));
        drop((one, other));
        queue.clock().advance(SECOND);
        assert_eq!(queue.advance(), Next::Idle);
    }

    #[test]
    fn those_who_wait_are_granted_by_releases_without_it() {
        let queue = queue(Concurrency::new(1), 9);
        let held = now(queue.acquire(1)).unwrap();
        let mut driver = Task::new(queue.drive(|_| pending::<()>()));
        assert!(driver.is_pending());
        let wait = Task::waiting(queue.acquire(1));
        drop(held);
        assert_eq!(permits(wait.outcome()), Ok(1));
    }

    #[test]
    fn on_tokio_in_real_time() {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
        let clock: &'static MonotonicClock = Box::leak(Box::new(MonotonicClock::new()));
        let queue: Arc<Queue<_, _>> = Arc::new(Queue::new(bucket(1_000, 10), clock, 999));
        runtime.block_on(async {
            let driver = {
                let queue = Arc::clone(&queue);
                tokio::spawn(async move {
                    queue.drive(|at| tokio::time::sleep(at.saturating_since(clock.now()))).await;
                })
            };
            let tasks: Vec<_> = (0..50)
                .map(|_| {
                    let queue = Arc::clone(&queue);
                    tokio::spawn(async move { Acquire::new(queue, 1, 1).await.unwrap().permits() })
                })
                .collect();
            let ends = async {
                for task in tasks {
                    assert_eq!(task.await.unwrap(), 1);
                }
                queue.close();
                driver.await.unwrap();
            };
            tokio::time::timeout(Duration::from_mins(1), ends).await.expect("driven, and then closed");
        });
        assert!(clock.now() >= Timestamp::from_millis(50), "50 permits at 1000/s");
        assert_eq!(queue.counts().waiters, 0);
    }
}

/// Threads that park.
mod blocking {
    use super::*;

    fn waiters<L: Limiter, C: Clock>(queue: &Queue<L, C>, n: u32) {
        while queue.counts().waiters < n {
            thread::yield_now();
        }
    }

    #[test]
    fn threads_and_tasks_are_granted_in_one_order() {
        let queue: Arc<Queue<_, _>> = Arc::new(Queue::new(Concurrency::new(1), MonotonicClock::new(), 99));
        let held = now(queue.acquire(1)).unwrap();
        let (say, hear) = mpsc::channel();
        let mut threads = Vec::new();
        let mut tasks = Vec::new();
        for number in 0..8 {
            if number % 2 == 0 {
                let (queue, say) = (Arc::clone(&queue), say.clone());
                threads.push(thread::spawn(move || {
                    let lease = queue.blocking_acquire(1).unwrap();
                    say.send(number).unwrap();
                    drop(lease);
                }));
            } else {
                tasks.push((number, Task::waiting(Acquire::new(Arc::clone(&queue), 1, 1))));
            }
            waiters(&queue, number + 1);
        }
        drop(held);
        for (number, mut task) in tasks {
            // Before it comes the thread that is before it in the queue.
            assert_eq!(hear.recv().unwrap(), number - 1);
            let lease = loop {
                match task.poll() {
                    Poll::Ready(lease) => break lease.unwrap(),
                    Poll::Pending => thread::yield_now(),
                }
            };
            assert!(hear.try_recv().is_err(), "nobody else has the permit");
            drop(lease);
        }
        for thread in threads {
            thread.join().unwrap();
        }
        let counts = queue.counts();
        assert_eq!((counts.granted, counts.waiters, queue.available_at(START)), (8, 0, 1));
    }

    #[test]
    fn threads_need_no_driver() {
        let queue: Arc<Queue<_, _>> =
            Arc::new(Queue::new(TokenBucket::new(Rate::per_second(1_000), 1), MonotonicClock::new(), 99));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let queue = Arc::clone(&queue);
                thread::spawn(move || {
                    for _ in 0..10 {
                        assert_eq!(queue.blocking_acquire(1).unwrap().permits(), 1);
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(queue.clock().now() >= Timestamp::from_millis(39), "1 at once and 39 at 1000/s");
        assert_eq!(queue.counts().waiters, 0);
    }

    #[test]
    fn one_that_times_out_leaves_no_trace() {
        let queue: Queue<_, _> = Queue::new(Concurrency::new(2), MonotonicClock::new(), 2);
        let held = queue.blocking_acquire(1).unwrap();
        for times in 1..4 {
            let outcome = queue.blocking_acquire_for(2, Duration::from_millis(2));
            assert_eq!(permits(outcome), Err(Rejected::TimedOut { permits: 2 }));
            let counts = queue.counts();
            assert_eq!((counts.waiters, counts.permits, counts.cancelled), (0, 0, times));
        }
        assert!(queue.try_acquire_at(START, 1).is_ok(), "nobody waits");
        drop(held);
        assert_eq!(queue.available_at(START), 2);
    }

    #[test]
    fn without_time_to_wait_it_takes_what_is_free() {
        let queue: Queue<_, _> = Queue::new(Concurrency::new(1), MonotonicClock::new(), 2);
        let held = queue.blocking_acquire_for(1, Duration::ZERO).unwrap();
        let outcome = queue.blocking_acquire_for(1, Duration::ZERO);
        assert_eq!(permits(outcome), Err(Rejected::TimedOut { permits: 1 }));
        drop(held);
        assert!(queue.blocking_acquire_for(1, Duration::MAX).is_ok());
    }

    #[test]
    fn they_are_told_what_tasks_are_told() {
        let queue: Arc<Queue<_, _>> = Arc::new(Queue::new(Concurrency::new(1), MonotonicClock::new(), 1));
        assert_eq!(
            permits(queue.blocking_acquire(2)),
            Err(Rejected::ExceedsCapacity { permits: 2, capacity: 1 })
        );
        let held = queue.blocking_acquire(1).unwrap();
        let thread = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || permits(queue.blocking_acquire(1)))
        };
        waiters(&queue, 1);
        assert_eq!(permits(queue.blocking_acquire(1)), Err(Rejected::QueueFull { permits: 1 }));
        queue.close();
        assert_eq!(thread.join().unwrap(), Err(Rejected::Closed { permits: 1 }));
        assert_eq!(permits(queue.blocking_acquire_for(1, SECOND)), Err(Rejected::Closed { permits: 1 }));
        drop(held);
    }
}

/// Around other limiters, and within them.
mod composition {
    use super::*;

    /// Says no while a switch is off; nobody knows how long.
    #[derive(Default)]
    struct Switch {
        on: AtomicBool,
        asked: AtomicU32,
    }

    impl Limiter for Switch {
        fn take_at(&self, now: Timestamp, permits: u32) -> Result<Receipt, Denied> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            if self.on.load(Ordering::Relaxed) {
                Ok(Receipt::NONE)
            } else {
                Err(Denied::Refused { now, permits })
            }
        }
        fn available_at(&self, _: Timestamp) -> u64 {
            if self.on.load(Ordering::Relaxed) { u64::MAX } else { 0 }
        }
        fn retry(&self, _: Denied) -> Retry {
            Retry::After(SECOND)
        }
    }

    #[test]
    fn a_limiter_that_knows_no_time_is_asked_again_when_it_says() {
        let queue = queue(Switch::default(), 99);
        let [one, other] = [1, 7].map(|n| Task::waiting(queue.acquire(n)));
        assert_eq!(queue.advance(), Next::At(Timestamp::from_secs(1)));
        queue.clock().advance(SECOND);
        assert_eq!(queue.advance(), Next::At(Timestamp::from_secs(2)));
        queue.clock().advance(SECOND);
        queue.change(|switch| switch.on.store(true, Ordering::Relaxed));
        assert_eq!((permits(one.outcome()), permits(other.outcome())), (Ok(1), Ok(7)));
        assert_eq!(queue.advance(), Next::Idle);
    }

    #[test]
    fn those_behind_the_head_are_not_asked_for() {
        let queue = queue(Switch::default(), 99);
        let _waits = [1, 1, 1].map(|n| Task::waiting(queue.acquire(n)));
        let before = queue.change(|switch| switch.asked.load(Ordering::Relaxed));
        queue.advance();
        let after = queue.change(|switch| switch.asked.load(Ordering::Relaxed));
        // By the first change, and by the call.
        assert_eq!(after - before, 2);
    }

    /// Both a concurrency limit and a rate, as one limiter of one's own.
    struct Both(Concurrency, TokenBucket);

    impl Limiter for Both {
        fn take_at(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
            let receipt = self.0.take_at(now, n)?;
            self.1.take_at(now, n).inspect_err(|_| Limiter::release(&self.0, n)).map(|_| receipt)
        }
        fn release(&self, n: u32) {
            Limiter::release(&self.0, n);
        }
        fn available_at(&self, now: Timestamp) -> u64 {
            self.0.available_at(now).min(self.1.available_at(now))
        }
        fn capacity(&self) -> u64 {
            Limiter::capacity(&self.0).min(self.1.capacity())
        }
        fn retry(&self, denied: Denied) -> Retry {
            self.release_or_now(denied).longer(self.1.retry(denied), START)
        }
    }

    impl Both {
        fn release_or_now(&self, denied: Denied) -> Retry {
            if denied.permits() <= self.0.available() { Retry::At(START) } else { Retry::OnRelease }
        }
    }

    #[test]
    fn both_a_release_and_the_time_can_be_what_is_waited_for() {
        let queue = queue(Both(Concurrency::new(2), TokenBucket::new(Rate::per_second(1), 2)), 99);
        let held = now(queue.acquire(2)).unwrap();
        let mut wait = Task::waiting(queue.acquire(1));
        queue.clock().set(Timestamp::from_millis(500));
        assert_eq!(queue.advance(), Next::OnRelease);
        drop(held);
        assert!(wait.is_pending(), "no token yet");
        assert_eq!(queue.advance(), Next::At(Timestamp::from_secs(1)));
        queue.clock().set(Timestamp::from_secs(1));
        assert_eq!(queue.advance(), Next::Idle);
        assert_eq!(permits(wait.outcome()), Ok(1));
    }

    #[test]
    fn a_driver_is_told_when_after_a_release_the_time_is_what_is_waited_for() {
        let queue = queue(Both(Concurrency::new(2), TokenBucket::new(Rate::per_second(1), 2)), 99);
        let held = now(queue.acquire(2)).unwrap();
        let _wait = Task::waiting(queue.acquire(1));
        let mut driver = Task::new(queue.drive(|_| pending::<()>()));
        assert!(driver.is_pending(), "a release is what is waited for");
        drop(held);
        assert_eq!(driver.wakes(), 1);
    }

    #[test]
    fn any_limiter_behind_a_pointer_can_be_waited_for() {
        let limit: Arc<dyn Limiter + Send + Sync> = Arc::new(Concurrency::new(1));
        let queue = queue(Arc::clone(&limit), 9);
        let held = now(queue.acquire(1)).unwrap();
        let wait = Task::waiting(queue.acquire(1));
        drop(held);
        assert_eq!(permits(wait.outcome()), Ok(1));
        assert_eq!(limit.available_at(START), 1);
    }

    #[test]
    fn a_queue_is_one_limit_of_several() {
        let slots = queue(Concurrency::new(2), 9);
        let rate = TokenBucket::new(Rate::per_second(1), 1);
        let both = AllOf::new((&slots, &rate));
        let lease = both.try_acquire_at(START, 1).unwrap();
        assert_eq!((available(&slots), rate.available_at(START)), (1, 0));
        let wait = Task::waiting(slots.acquire(2));
        let denied = both.try_acquire_at(Timestamp::from_secs(1), 1).unwrap_err();
        assert_eq!(
            (denied.index, rate.available_at(Timestamp::from_secs(1))),
            (0, 1),
            "takes from all or none"
        );
        drop(lease);
        assert_eq!((wait.wakes(), permits(wait.outcome())), (1, Ok(2)), "its drop grants those who wait");
    }

    #[test]
    fn what_a_refused_request_gave_back_is_granted() {
        /// Lets a request in for a look, and has someone queue before it takes.
        struct Meanwhile<F>(F);
        impl<F: Fn()> Limiter for Meanwhile<F> {
            fn take_at(&self, now: Timestamp, permits: u32) -> Result<Receipt, Denied> {
                (self.0)();
                Err(Denied::Refused { now, permits })
            }
            fn available_at(&self, _: Timestamp) -> u64 {
                u64::MAX
            }
            fn retry(&self, _: Denied) -> Retry {
                Retry::After(SECOND)
            }
        }
        let slots = queue(Concurrency::new(1), 9);
        let wait = Mutex::new(None);
        let refuses = Meanwhile(|| *wait.lock().unwrap() = Some(Task::waiting(slots.acquire(1))));
        let denied = AllOf::new((&slots, &refuses)).try_acquire_at(START, 1).unwrap_err();
        assert_eq!(denied.index, 1);
        let wait = wait.into_inner().unwrap().unwrap();
        assert_eq!((wait.wakes(), permits(wait.outcome())), (1, Ok(1)));
    }

    #[test]
    fn a_queue_can_be_around_a_queue() {
        let outer = queue(queue(Concurrency::new(1), 9), 9);
        let held = now(outer.acquire(1)).unwrap();
        let wait = Task::waiting(outer.acquire(1));
        drop(held);
        assert_eq!(permits(wait.outcome()), Ok(1));
        assert_eq!(available(&outer), 1);
    }

    #[test]
    fn it_answers_as_the_limiter_within() {
        let queue = queue(TokenBucket::new(Rate::per_second(1), 3), 9);
        assert_eq!((available(&queue), queue.capacity()), (3, 3));
        assert_eq!(queue.idle_at(START), Idle::Since(START));
        let held = queue.try_acquire_at(START, 3).unwrap();
        let denied = queue.try_acquire_at(START, 1).unwrap_err();
        assert_eq!(denied.retry(&queue), Retry::At(Timestamp::from_secs(1)));
        assert!(queue.id().is_some() && queue.id() == (&&queue).id());
        drop(held);
    }
}

/// What may go where.
mod threads {
    use super::*;

    #[test]
    fn futures_and_leases_that_own_the_queue_go_to_other_threads() {
        let queue: Shared = Arc::new(queue(Concurrency::new(1), 9));
        let held = now(Acquire::new(Arc::clone(&queue), 1, 1)).unwrap();
        let mut first = Task::waiting(Acquire::new(Arc::clone(&queue), 1, 1));
        let cancelled = Task::waiting(Acquire::new(Arc::clone(&queue), 1, 1));
        let last = Task::waiting(Acquire::new(Arc::clone(&queue), 1, 1));
        thread::spawn(move || drop(held)).join().unwrap();
        let lease = thread::spawn(move || match first.poll() {
            Poll::Ready(lease) => lease.unwrap(),
            Poll::Pending => panic!("granted"),
        })
        .join()
        .unwrap();
        thread::spawn(move || drop(cancelled)).join().unwrap();
        drop(lease);
        assert_eq!(permits(thread::spawn(move || last.outcome()).join().unwrap()), Ok(1));
        let counts = queue.counts();
        assert_eq!((counts.granted, counts.cancelled, available(&queue)), (2, 1, 1));
        assert_eq!(Arc::strong_count(&queue), 1);
    }

    #[test]
    fn a_future_or_a_lease_keeps_the_queue_that_it_owns() {
        let queue = queue(Concurrency::new(1), 9);
        let lease = now(Acquire::new(Box::new(queue), 1, 1)).unwrap();
        assert_eq!(lease.limiter().counts(), QueueCounts::default());
    }

    #[test]
    fn a_queue_can_be_a_static() {
        static CLOCK: ManualClock = ManualClock::new();
        static QUEUE: Queue<Concurrency, &ManualClock> =
            Queue::new(Concurrency::new(1), &CLOCK, 9).with_order(Order::NewestFirst).with_max_waiters(3);
        static SLOT: OnceLock<Lease<&Queue<Concurrency, &ManualClock>>> = OnceLock::new();
        let lease = thread::spawn(|| QUEUE.blocking_acquire(1)).join().unwrap().unwrap();
        SLOT.set(lease).unwrap();
        assert!(QUEUE.try_acquire_at(START, 1).is_err());
    }

    #[test]
    fn what_can_be_sent_and_shared() {
        fn both<T: Send + Sync>(_: &T) {}
        let queue: Shared = Arc::new(queue(Concurrency::new(1), 9));
        both(&queue);
        both(&queue.acquire(1));
        both(&Acquire::new(Arc::clone(&queue), 1, 1));
        both(&queue.drive(|_| pending::<()>()));
        both(&now(queue.acquire(1)).unwrap());
    }

    #[test]
    fn errors_are_small_values_that_say_what_to_do() {
        assert!(size_of::<Rejected>() <= 16);
        let all = [
            (Rejected::QueueFull { permits: 3 }, "queue full: 3 permits asked for"),
            (Rejected::Evicted { permits: 3 }, "evicted by a newer request: 3 permits asked for"),
            (
                Rejected::ExceedsCapacity { permits: 3, capacity: 2 },
                "3 permits asked for, at most 2 can ever be granted: ask for fewer",
            ),
            (Rejected::TimedOut { permits: 3 }, "timed out: 3 permits asked for"),
            (Rejected::Closed { permits: 3 }, "closed"),
        ];
        for (rejected, text) in all {
            let error: &dyn core::error::Error = &rejected;
            assert_eq!(error.to_string(), text);
        }
    }
}
