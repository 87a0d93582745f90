//! Waits with a deadline: granted exactly at it, rejected at once, or expired.

mod support;

use std::sync::Arc;

use portcullis_async::{Acquire, KeyedQueue, Next, Order, Rejected};
use portcullis_core::keyed::WithTotal;
use portcullis_core::queue::QueueLimiter;
use portcullis_core::state::Carry;
use portcullis_core::{
    AdjustableBucket, AllOf, Clock, Concurrency, FixedWindow, Keyed, Limiter, ManualClock, Rate,
    Retry, Timestamp, TokenBucket,
};
use support::random::Random;
use support::{Manual, SECOND, START, Task, available, newest_first, now, permits, queue};

const fn ms(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

const fn secs(seconds: u64) -> Timestamp {
    Timestamp::from_secs(seconds)
}

fn before(at: Timestamp) -> Timestamp {
    Timestamp::from_nanos(at.as_nanos() - 1)
}

/// A bucket of one token per second, empty at first.
fn bucket(burst: u64) -> TokenBucket {
    TokenBucket::builder(Rate::per_second(1), burst)
        .initial(0)
        .build()
        .unwrap()
}

/// Slows the rate from one token per second to one per ten seconds.
fn slower(bucket: &AdjustableBucket, burst: u64) {
    bucket
        .adjust_at(START, Rate::new(1, 10 * SECOND), burst, Carry::Keep)
        .unwrap();
}

fn late(permits: u32, retry: Retry) -> Result<u32, Rejected> {
    Err(Rejected::Deadline { permits, retry })
}

/// Sets the clock, and advances the queue.
fn advance<L: QueueLimiter>(queue: &Manual<L>, to: Timestamp) -> Next {
    queue.clock().set(to);
    queue.advance()
}

mod at_once {
    use super::*;

    #[test]
    fn a_grant_exactly_at_the_deadline_is_waited_for_and_1_ns_less_is_not() {
        for order in [Order::OldestFirst, Order::NewestFirst] {
            let queue = queue(bucket(5), 99).with_order(order);
            let refused = now(queue.acquire(3).until(before(secs(3))));
            assert_eq!(permits(refused), late(3, Retry::At(secs(3))));
            let wait = Task::waiting(queue.acquire(3).until(secs(3)));
            assert_eq!(advance(&queue, secs(3)), Next::Idle);
            assert_eq!((wait.wakes(), permits(wait.outcome())), (1, Ok(3)));
            let counts = queue.counts();
            assert_eq!(
                (counts.late, counts.granted, counts.full, counts.cancelled),
                (1, 1, 0, 0)
            );
        }
    }

    #[test]
    fn requests_queued_before_it_count() {
        let queue = queue(bucket(5), 99);
        let _first = Task::waiting(queue.acquire(4));
        assert_eq!(
            permits(now(queue.acquire(2).until(before(secs(6))))),
            late(2, Retry::At(secs(6)))
        );
        let second = Task::waiting(queue.acquire(2).until(secs(6)));
        // More than the bucket holds at once.
        assert_eq!(
            permits(now(queue.acquire(1).until(before(secs(7))))),
            late(1, Retry::At(secs(7)))
        );
        let _third = Task::waiting(queue.acquire(1).until(secs(7)));
        drop(second);
        assert_eq!(
            permits(now(queue.acquire(1).until(before(secs(6))))),
            late(1, Retry::At(secs(6)))
        );
    }

    #[test]
    fn a_waiter_for_zero_permits_delays_no_deadline() {
        let queue = queue(bucket(5), 99);
        let _line = [1, 0].map(|n| Task::waiting(queue.acquire(n)));
        let wait = Task::waiting(queue.acquire(1).until(secs(2)));
        advance(&queue, secs(1));
        advance(&queue, secs(2));
        assert_eq!(permits(wait.outcome()), Ok(1));
    }

    #[test]
    fn a_waiter_that_a_late_driver_would_grant_is_not_ahead_and_takes_no_room() {
        let queue = queue(bucket(4), 4);
        let first = Task::waiting(queue.acquire(4));
        queue.clock().set(secs(5));
        let second = Task::waiting(queue.acquire(4).until(secs(9)));
        assert_eq!((first.wakes(), permits(first.outcome())), (1, Ok(4)));
        let full = permits(now(queue.acquire(1).until(secs(99))));
        assert!(matches!(full, Err(Rejected::QueueFull { .. })), "{full:?}");
        advance(&queue, secs(9));
        assert_eq!(permits(second.outcome()), Ok(4));
    }

    #[test]
    fn a_waiter_that_a_late_driver_would_end_is_not_ahead() {
        let queue = queue(bucket(4), 4);
        let first = Task::waiting(queue.acquire(4).until(secs(4)));
        queue.clock().set(secs(5));
        assert_eq!(permits(now(queue.acquire(4).until(secs(5)))), Ok(4));
        assert!(permits(first.outcome()).is_err());
    }

    #[test]
    fn a_head_that_leaves_while_its_driver_is_late_leaves_its_permits_to_those_behind_it() {
        let queue = queue(bucket(5), 99);
        let head = Task::waiting(queue.acquire(3));
        let next = Task::waiting(queue.acquire(1).until(secs(4)));
        // The permits of the head were due a second before.
        queue.clock().set(ms(4_005));
        drop(head);
        assert_eq!((next.wakes(), permits(next.outcome())), (1, Ok(1)));
    }

    #[test]
    fn newest_first_what_a_late_driver_would_grant_is_not_evicted() {
        let queue = newest_first(bucket(4), 4);
        let first = Task::waiting(queue.acquire(1));
        queue.clock().set(secs(2));
        let second = Task::waiting(queue.acquire(4));
        assert_eq!(permits(first.outcome()), Ok(1));
        assert_eq!((second.wakes(), queue.counts().evicted), (0, 0));
    }

    #[test]
    fn newest_first_requests_queued_before_it_do_not_count() {
        let queue = newest_first(bucket(5), 99);
        let _first = Task::waiting(queue.acquire(4));
        let _second = Task::waiting(queue.acquire(1).until(secs(1)));
        assert_eq!(
            permits(now(queue.acquire(1).until(before(secs(1))))),
            late(1, Retry::At(secs(1)))
        );
    }

    #[test]
    fn an_expired_deadline_rejects_what_is_not_free() {
        let queue = queue(Concurrency::new(2), 99);
        queue.clock().set(secs(9));
        let held = now(queue.acquire(1).until(secs(8))).unwrap();
        for deadline in [START, secs(8), secs(9)] {
            assert_eq!(
                permits(now(queue.acquire(2).until(deadline))),
                late(2, Retry::OnRelease)
            );
        }
        let wait = Task::waiting(queue.acquire(2).until(Timestamp::from_nanos(9_000_000_001)));
        drop((wait, held));
        assert_eq!((queue.counts().late, queue.counts().cancelled), (3, 1));
    }

    #[test]
    fn an_expired_waiter_leaves_the_way_free() {
        let queue = queue(TokenBucket::new(Rate::per_second(1), 2), 99);
        let _held = now(queue.acquire(1)).unwrap();
        assert_eq!(
            permits(now(queue.acquire(2).until(ms(999)))),
            late(2, Retry::At(secs(1)))
        );
        assert!(queue.try_acquire(1).is_ok());
        assert_eq!(queue.advance(), Next::Idle);
    }

    #[test]
    fn where_nothing_ever_comes_in_no_deadline_is_met() {
        let queue = queue(
            TokenBucket::builder(Rate::ZERO, 5)
                .initial(0)
                .build()
                .unwrap(),
            9,
        );
        assert_eq!(
            permits(now(queue.acquire(1).until(secs(9)))),
            late(1, Retry::Never)
        );
    }

    /// A rate and a number at once. However early permits are released, the rate is kept.
    #[test]
    fn a_rate_beside_permits_at_once_rules_out_a_deadline() {
        let limits = AllOf::new((bucket(2), Concurrency::new(2)));
        let queue = queue(limits, 99);
        // In use: so the number denies, too.
        queue.change(|all| all.limits().1.try_acquire(2).unwrap().forget());
        let ask = |permits: u32, until| Task::new(queue.acquire(permits).until(until));
        let from = |at| Retry::OnReleaseFrom(secs(at));
        assert_eq!(permits(ask(1, ms(999)).outcome()), late(1, from(1)));
        let mut first = ask(1, secs(1));
        assert!(first.is_pending());
        // Behind it in the line, more than the limits hold at once.
        let mut second = ask(2, secs(3));
        assert!(second.is_pending());
        assert_eq!(permits(ask(1, before(secs(4))).outcome()), late(1, from(4)));
        let mut third = ask(1, secs(4));
        assert!(third.is_pending());
        queue.change(|all| all.limits().1.release(2));
        for (at, mut wait) in [(1, first), (3, second), (4, third)] {
            assert!(wait.is_pending());
            advance(&queue, secs(at));
            assert!(permits(wait.outcome()).is_ok());
        }
    }

    /// The same rate for all keys, and a number at once for each.
    #[test]
    fn a_rate_of_all_keys_rules_out_a_deadline_of_a_key_that_is_full() {
        let each = Keyed::for_keys(Concurrency::new(1), 10);
        let queue = KeyedQueue::new(WithTotal::new(each, bucket(2)), ManualClock::new(), 99);
        queue.clock().set(secs(1));
        let held = now(queue.acquire("a", 1)).unwrap();
        let ask = |until| Task::new(queue.acquire("a", 1).until(until));
        let from = Retry::OnReleaseFrom(secs(2));
        assert_eq!(permits(ask(ms(1_999)).outcome()), late(1, from));
        let mut wait = ask(secs(2));
        assert!(wait.is_pending());
        drop(held);
        queue.clock().set(secs(2));
        queue.advance();
        assert_eq!(permits(wait.outcome()), Ok(1));
    }

    #[test]
    fn a_deadline_at_the_end_of_time_works() {
        let queue = queue(Concurrency::new(1), 99);
        let _held = now(queue.acquire(1)).unwrap();
        let mut wait = Task::waiting(queue.acquire(1).until(Timestamp::MAX));
        assert_eq!(queue.advance(), Next::OnRelease);
        assert_eq!(advance(&queue, Timestamp::MAX), Next::OnRelease);
        assert!(wait.is_pending());
        let _other = Task::waiting(queue.acquire(1).until(Timestamp::MAX));
    }

    #[test]
    fn the_queue_may_also_be_full() {
        let queue = queue(bucket(1), 1);
        let _first = Task::waiting(queue.acquire(1).until(secs(1)));
        let full = now(queue.acquire(1).until(secs(2)));
        assert_eq!(
            permits(full),
            Err(Rejected::QueueFull {
                permits: 1,
                retry: Retry::At(secs(2))
            })
        );
        assert_eq!(
            permits(now(queue.acquire(1).until(ms(1_999)))),
            late(1, Retry::At(secs(2)))
        );
    }
}

mod over {
    use super::*;

    #[test]
    fn a_wait_for_a_release_ends_at_its_deadline() {
        for order in [Order::OldestFirst, Order::NewestFirst] {
            let queue = queue(Concurrency::new(1), 99).with_order(order);
            let held = now(queue.acquire(1)).unwrap();
            let mut wait = Task::waiting(queue.acquire(1).until(ms(500)));
            assert_eq!(queue.advance(), Next::At(ms(500)));
            assert_eq!(advance(&queue, before(ms(500))), Next::At(ms(500)));
            assert!(wait.is_pending());
            assert_eq!(advance(&queue, ms(500)), Next::Idle);
            assert_eq!(wait.wakes(), 1);
            assert_eq!(permits(wait.outcome()), late(1, Retry::OnRelease));
            let counts = queue.counts();
            assert_eq!(
                (
                    counts.late,
                    counts.cancelled,
                    counts.waiters,
                    counts.permits
                ),
                (1, 0, 0, 0)
            );
            drop(held);
            assert_eq!(available(&queue), 1);
        }
    }

    #[test]
    fn a_waiter_that_expires_in_the_middle_leaves_the_others_in_order() {
        let queue = Arc::new(queue(Concurrency::new(1), 99));
        queue.attend_shared();
        let mut held = now(queue.acquire(1)).unwrap();
        let [first, middle, last] =
            [Timestamp::MAX, secs(1), secs(9)].map(|at| Task::waiting(queue.acquire(1).until(at)));
        assert_eq!(advance(&queue, secs(1)), Next::At(secs(9)));
        assert_eq!((first.wakes(), middle.wakes(), last.wakes()), (0, 1, 0));
        assert_eq!(permits(middle.outcome()), late(1, Retry::OnRelease));
        assert_eq!((queue.counts().waiters, queue.counts().permits), (2, 2));
        for wait in [first, last] {
            drop(held);
            held = wait.outcome().unwrap();
        }
    }

    #[test]
    fn when_the_head_expires_the_waiters_behind_it_that_fit_are_granted_at_once() {
        let queue = queue(Concurrency::new(5), 99);
        let held = now(queue.acquire(3)).unwrap();
        let head = Task::waiting(queue.acquire(4).until(secs(1)));
        let [one, other, mut third] = [1, 1, 1].map(|n| Task::waiting(queue.acquire(n)));
        assert_eq!(advance(&queue, secs(1)), Next::OnRelease);
        assert_eq!(
            (head.wakes(), one.wakes(), other.wakes(), third.wakes()),
            (1, 1, 1, 0)
        );
        assert_eq!(permits(head.outcome()), late(4, Retry::OnRelease));
        let both = (one.outcome().unwrap(), other.outcome().unwrap());
        assert!(third.is_pending());
        drop((held, both));
        assert!(third.poll().is_ready());
    }

    #[test]
    fn newest_first_the_head_is_the_last() {
        let queue = newest_first(Concurrency::new(5), 99);
        let (_held, one) = (
            now(queue.acquire(3)).unwrap(),
            now(queue.acquire(2)).unwrap(),
        );
        let mut old = Task::waiting(queue.acquire(3));
        let small = Task::waiting(queue.acquire(1));
        let head = Task::waiting(queue.acquire(3).until(secs(1)));
        drop(one);
        assert_eq!(small.wakes(), 0, "not its turn");
        assert_eq!(advance(&queue, secs(1)), Next::OnRelease);
        assert_eq!(permits(head.outcome()), late(3, Retry::OnRelease));
        assert_eq!(permits(small.outcome()), Ok(1));
        assert!(old.is_pending());
    }

    #[test]
    fn when_the_head_expires_the_time_of_its_successor_is_returned() {
        let queue = queue(TokenBucket::new(Rate::per_second(1), 9), 99);
        let mut held = now(queue.acquire(9)).unwrap();
        let head = Task::waiting(queue.acquire(9).until(secs(9)));
        let _next = Task::waiting(queue.acquire(4));
        queue.change(|_| ());
        assert_eq!(queue.advance(), Next::At(secs(9)));
        drop(head);
        assert_eq!(queue.advance(), Next::At(secs(4)));
        assert_eq!(held.refund_at(START, 2), Ok(2));
        assert_eq!(queue.advance(), Next::At(secs(2)));
    }

    #[test]
    fn a_release_after_the_deadline_goes_to_the_next_without_an_advance() {
        let queue = queue(Concurrency::new(1), 99);
        let held = now(queue.acquire(1)).unwrap();
        let first = Task::waiting(queue.acquire(1).until(secs(1)));
        let second = Task::waiting(queue.acquire(1));
        queue.clock().set(secs(2));
        drop(held);
        assert_eq!(
            (permits(first.outcome()), permits(second.outcome())),
            (late(1, Retry::OnRelease), Ok(1))
        );
    }

    #[test]
    fn the_retry_of_an_expired_wait_counts_those_still_waiting() {
        // A part has come in by its deadline, and then the rate drops.
        let bucket = AdjustableBucket::new(Rate::per_second(1), 9);
        let queue = queue(bucket, 99);
        let _held = now(queue.acquire(9)).unwrap();
        let _first = Task::waiting(queue.acquire(2));
        let over = Task::waiting(queue.acquire(1).until(secs(3)));
        let _last = Task::waiting(queue.acquire(4));
        queue.change(|bucket| slower(bucket, 9));
        advance(&queue, secs(3));
        // 2 and 4 before it, and 1 that it needs itself.
        assert_eq!(permits(over.outcome()), late(1, Retry::At(secs(70))));
    }

    #[test]
    fn a_wait_granted_before_its_deadline_has_its_permits_whenever_it_is_polled() {
        let queue = queue(Concurrency::new(1), 99);
        let held = now(queue.acquire(1)).unwrap();
        let wait = Task::waiting(queue.acquire(1).until(secs(1)));
        drop(held);
        assert_eq!(advance(&queue, secs(5)), Next::Idle);
        assert_eq!(permits(wait.outcome()), Ok(1));
    }

    #[test]
    fn an_expired_wait_stays_expired_whatever_comes_in() {
        let queue = queue(Concurrency::new(1), 99);
        let held = now(queue.acquire(1)).unwrap();
        let wait = Task::waiting(queue.acquire(1).until(secs(1)));
        advance(&queue, secs(1));
        drop(held);
        assert_eq!(permits(wait.outcome()), late(1, Retry::OnRelease));
        assert_eq!(available(&queue), 1);
    }

    #[test]
    fn an_expired_wait_may_be_dropped_before_its_next_poll() {
        let queue = queue(Concurrency::new(1), 99);
        let _held = now(queue.acquire(1)).unwrap();
        let wait = Task::waiting(queue.acquire(1).until(secs(1)));
        advance(&queue, secs(1));
        drop(wait);
        assert_eq!((queue.counts().late, queue.counts().cancelled), (1, 0));
    }

    #[test]
    fn any_number_of_waits_may_expire_at_one_instant() {
        for many in [15, 16, 17, 33, 100] {
            let queue = queue(Concurrency::new(1), 999);
            let held = now(queue.acquire(1)).unwrap();
            let waits: Vec<_> = (0..many)
                .map(|_| Task::waiting(queue.acquire(1).until(secs(1))))
                .collect();
            let last = Task::waiting(queue.acquire(1));
            assert_eq!(advance(&queue, secs(1)), Next::OnRelease);
            for wait in waits {
                assert_eq!(
                    (wait.wakes(), permits(wait.outcome())),
                    (1, late(1, Retry::OnRelease))
                );
            }
            assert_eq!((queue.counts().late, queue.counts().waiters), (many, 1));
            drop(held);
            assert_eq!(permits(last.outcome()), Ok(1));
        }
    }

    /// A queue without a timer grants nothing between two calls. So the release must serve all
    /// waiters itself, also those that the first batch of wakers leaves.
    #[test]
    fn a_release_serves_those_behind_more_late_requests_than_wake_at_once() {
        let queue = queue(Concurrency::new(2), 99);
        let held = [(); 2].map(|()| queue.try_acquire(1).unwrap());
        let late: Vec<_> = (0..40)
            .map(|_| Task::waiting(queue.acquire(2).until(START + SECOND)))
            .collect();
        let behind = Task::waiting(queue.acquire(1));
        queue.clock().set(START + 2 * SECOND);
        let [one, other] = held;
        drop(one);
        assert_eq!(behind.wakes(), 1, "waits although its permit is free");
        assert_eq!(permits(behind.outcome()), Ok(1));
        assert!(late.iter().all(|wait| wait.wakes() == 1));
        drop(other);
    }

    #[test]
    fn a_deadline_set_after_the_first_poll_changes_nothing() {
        let queue = queue(Concurrency::new(1), 99);
        let _held = now(queue.acquire(1)).unwrap();
        let _wait = Task::waiting(Acquire::new(&queue, 1).until(secs(5)).until(secs(2)));
        assert_eq!(
            queue.advance(),
            Next::At(secs(2)),
            "the last deadline set before it"
        );
    }
}

/// Replenishments and deadlines at one instant.
mod at_one_instant {
    use super::*;

    #[test]
    fn waiters_behind_the_head_are_granted_with_it() {
        let queue = queue(FixedWindow::new(3, SECOND), 99);
        let _held = now(queue.acquire(3)).unwrap();
        let waits = [1, 1, 1].map(|n| Task::waiting(queue.acquire(n).until(secs(1))));
        assert_eq!(advance(&queue, secs(1)), Next::Idle);
        assert_eq!(waits.map(|wait| permits(wait.outcome())), [Ok(1); 3]);
    }

    #[test]
    fn a_waiter_behind_a_head_whose_timer_was_set_after_its_own_is_granted_too() {
        let queue = queue(FixedWindow::new(4, SECOND), 99);
        let _held = now(queue.acquire(4)).unwrap();
        let cancelled = Task::waiting(queue.acquire(1));
        let head = Task::waiting(queue.acquire(1));
        let behind = Task::waiting(queue.acquire(1).until(secs(1)));
        // The limiter is asked for the new head at the same instant, but its entry is later.
        drop(cancelled);
        assert_eq!(advance(&queue, secs(1)), Next::Idle);
        assert_eq!(
            (permits(head.outcome()), permits(behind.outcome())),
            (Ok(1), Ok(1))
        );
    }

    #[test]
    fn a_head_whose_grant_and_deadline_are_the_same_is_granted() {
        for order in [Order::OldestFirst, Order::NewestFirst] {
            let queue = queue(bucket(1), 99).with_order(order);
            let wait = Task::waiting(queue.acquire(1).until(secs(1)));
            advance(&queue, secs(1));
            assert_eq!(permits(wait.outcome()), Ok(1));
        }
    }

    #[test]
    fn a_release_at_the_very_deadline_is_granted() {
        let queue = queue(Concurrency::new(1), 99);
        let held = now(queue.acquire(1)).unwrap();
        let wait = Task::waiting(queue.acquire(1).until(secs(1)));
        queue.clock().set(secs(1));
        drop(held);
        assert_eq!(permits(wait.outcome()), Ok(1));
    }
}

/// The queue is advanced late.
mod late_advances {
    use super::*;

    #[test]
    fn permits_that_came_in_before_the_deadline_are_granted_though_the_queue_is_advanced_after_it()
    {
        let queue = queue(bucket(1), 99);
        let wait = Task::waiting(queue.acquire(1).until(ms(1_001)));
        advance(&queue, ms(1_005));
        assert_eq!(permits(wait.outcome()), Ok(1));
    }

    #[test]
    fn a_waiter_behind_the_head_is_not_granted_as_of_a_time_after_its_deadline() {
        for (to, granted) in [
            (ms(2_005), true),
            (ms(2_010), true),
            (ms(2_011), false),
            (secs(5), false),
        ] {
            let queue = queue(bucket(9), 99);
            let [head, behind] =
                [Timestamp::MAX, secs(2)].map(|at| Task::waiting(queue.acquire(1).until(at)));
            advance(&queue, to);
            assert_eq!(permits(head.outcome()), Ok(1));
            assert_eq!(permits(behind.outcome()).is_ok(), granted, "{to}");
        }
    }

    #[test]
    fn permits_that_come_in_after_the_deadline_are_not_granted_though_the_queue_is_advanced_after_both()
     {
        for to in [secs(20), secs(21), secs(100)] {
            let queue = queue(AdjustableBucket::new(Rate::per_second(1), 9), 99);
            let _held = now(queue.acquire(9)).unwrap();
            let head = Task::waiting(queue.acquire(1));
            let behind = Task::waiting(queue.acquire(1).until(secs(2)));
            // Then the permits come in after 10 s and 20 s.
            queue.change(|bucket| slower(bucket, 9));
            advance(&queue, to);
            assert_eq!(permits(head.outcome()), Ok(1));
            assert!(
                matches!(behind.outcome(), Err(Rejected::Deadline { permits: 1, .. })),
                "{to}"
            );
        }
    }
}

/// Many waits with random deadlines, compared with a list.
mod model {
    use super::*;

    /// The expected outcome of a wait.
    struct Model {
        permits: u32,
        deadline: u64,
    }

    /// A concurrency limit: time has no effect except that deadlines expire.
    fn agrees(order: Order, seed: u64) {
        const LIMIT: u32 = 4;
        let mut random = Random::new(seed);
        let queue = Arc::new(queue(Concurrency::new(LIMIT), u64::MAX).with_order(order));
        queue.attend_shared();
        let (mut line, mut held) = (Vec::<(Model, Task<_>)>::new(), Vec::new());
        let (mut free, mut late) = (LIMIT, 0);
        for step in 0..300_u64 {
            let time = queue.clock().now().as_nanos();
            let mut served = false;
            match random.below(8) {
                0..4 => {
                    let permits = 1 + random.below(3) as u32;
                    // No two at one instant.
                    let deadline = (time / 512 + 1 + random.below(60)) * 512 + step;
                    let mut task = Task::new(
                        queue
                            .acquire(permits)
                            .until(Timestamp::from_nanos(deadline)),
                    );
                    let waits = permits > free || order == Order::OldestFirst && !line.is_empty();
                    match task.poll() {
                        core::task::Poll::Ready(lease) => {
                            assert!(!waits, "{seed}, {step}");
                            free -= permits;
                            held.push(lease.unwrap());
                        }
                        core::task::Poll::Pending => {
                            assert!(waits, "{seed}, {step}");
                            let model = (Model { permits, deadline }, task);
                            let place = if order == Order::OldestFirst {
                                line.len()
                            } else {
                                0
                            };
                            line.insert(place, model);
                        }
                    }
                }
                4 if !line.is_empty() => {
                    let place = random.below(line.len() as u64) as usize;
                    drop(line.remove(place));
                    served = true;
                }
                5 | 6 if !held.is_empty() => {
                    let place = random.below(held.len() as u64) as usize;
                    let lease = held.swap_remove(place);
                    free += lease.permits();
                    drop(lease);
                    served = true;
                }
                _ => {
                    let to = time + random.below(20 * 512);
                    let next = advance(&queue, Timestamp::from_nanos(to));
                    // In the order of time. What the end of one wait lets through is granted as of
                    // that instant, or, if newcomers may have taken since, as of now.
                    while let Some(place) = (0..line.len())
                        .min_by_key(|&place| line[place].0.deadline)
                        .filter(|&place| line[place].0.deadline <= to)
                    {
                        let (model, wait) = line.remove(place);
                        late += 1;
                        assert_eq!(wait.wakes(), 1);
                        assert_eq!(
                            permits(wait.outcome()),
                            super::late(model.permits, Retry::OnRelease)
                        );
                        let as_of = if order == Order::OldestFirst {
                            model.deadline
                        } else {
                            to
                        };
                        let passes =
                            |model: &Model, free| model.permits <= free && model.deadline >= as_of;
                        while place == 0
                            && line.first().is_some_and(|(model, _)| passes(model, free))
                        {
                            let (model, wait) = line.remove(0);
                            free -= model.permits;
                            held.push(wait.outcome().unwrap());
                        }
                        served = true;
                    }
                    if !served {
                        let due = line.iter().map(|(model, _)| model.deadline).min();
                        let told =
                            due.map_or(Next::Idle, |due| Next::At(Timestamp::from_nanos(due)));
                        assert_eq!(next, told, "{seed}, {step}");
                    }
                }
            }
            while served && line.first().is_some_and(|(model, _)| model.permits <= free) {
                let (model, wait) = line.remove(0);
                free -= model.permits;
                assert_eq!(wait.wakes(), 1, "{seed}, {step}");
                held.push(wait.outcome().unwrap());
            }
            assert!(
                line.iter().all(|(_, wait)| wait.wakes() == 0),
                "{seed}, {step}"
            );
            assert_eq!(
                (available(&queue), queue.counts().late),
                (free.into(), late),
                "{seed}, {step}"
            );
            assert_eq!(queue.counts().waiters as usize, line.len());
        }
    }

    #[test]
    fn each_waiter_expires_at_its_deadline_or_is_granted_in_its_turn() {
        for seed in 1..if cfg!(debug_assertions) { 300 } else { 3_000 } {
            agrees(Order::OldestFirst, seed);
            agrees(Order::NewestFirst, seed);
        }
    }

    /// Each admitted request gets its permits by its deadline, if no waiter cancels: from a bucket,
    /// behind waits for one permit each.
    #[test]
    fn an_admitted_request_is_never_late_and_a_rejected_one_would_have_been() {
        for seed in 1..200 {
            let mut random = Random::new(seed);
            let queue = queue(bucket(3), u64::MAX);
            let (mut waits, mut ahead) = (Vec::new(), 0);
            for _ in 0..60 {
                let deadline = Timestamp::from_millis(1 + random.below(40_000));
                let mut task = Task::new(queue.acquire(1).until(deadline));
                let comes_in = secs(ahead + 1);
                match task.poll() {
                    core::task::Poll::Pending => {
                        assert!(comes_in <= deadline);
                        ahead += 1;
                        waits.push(task);
                    }
                    core::task::Poll::Ready(outcome) => {
                        assert!(comes_in > deadline);
                        assert_eq!(permits(outcome), super::late(1, Retry::At(comes_in)));
                    }
                }
            }
            while let Next::At(at) = queue.advance() {
                queue.clock().set(at);
            }
            assert!(
                waits
                    .into_iter()
                    .all(|wait| permits(wait.outcome()) == Ok(1))
            );
            assert_eq!(queue.counts().granted, ahead);
        }
    }
}
