//! Unclaimed grants, in queues around several limits and around one.

#[path = "../../core/tests/support/own.rs"]
mod own;
mod support;

use core::future::poll_fn;
use core::task::Poll;
use core::time::Duration;

use futures_executor::block_on;
use futures_util::{StreamExt, stream};
use own::Own;
use portcullis_async::{Acquire, Order, Queue, Rejected, ThreadTimer};
use portcullis_core::queue::QueueLimiter;
use portcullis_core::{
    AllOf, Concurrency, Counted, Escalation, FixedWindow, LimiterExt, Penalty, Rate, SlidingWindow,
    Timestamp, TokenBucket, Unlimited,
};
use support::random::Random;
use support::{SECOND, Task, Undriven, available, permits, undriven};

const fn ms(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

/// A bucket of one permit per 100 ms, empty at first.
fn bucket(burst: u64) -> TokenBucket {
    TokenBucket::builder(Rate::per_second(10), burst)
        .initial(0)
        .build()
        .unwrap()
}

/// Granted at 100 ms, and dropped: its permits go to the next waiter, or are available again.
fn comes_back<L: QueueLimiter>(make: impl Fn() -> L) {
    for with_a_next in [true, false] {
        let queue = undriven(make(), 99);
        let unclaimed = Task::waiting(queue.acquire(1));
        let next = with_a_next.then(|| Task::waiting(queue.acquire(1)));
        queue.clock().set(ms(100));
        let _ = queue.advance();
        assert_eq!((unclaimed.wakes(), available(&queue)), (1, 0));
        drop(unclaimed);
        match next {
            Some(next) => assert_eq!((next.wakes(), permits(next.outcome())), (1, Ok(1))),
            None => assert_eq!(available(&queue), 1),
        }
    }
}

#[test]
fn goes_to_the_next_waiter_or_is_available_again() {
    comes_back(|| bucket(1));
    comes_back(|| AllOf::new((bucket(1), Concurrency::new(10))));
    comes_back(|| AllOf::new((Concurrency::new(10), bucket(1))));
    comes_back(|| AllOf::new((bucket(1), bucket(5), Unlimited)));
    comes_back(|| AllOf::new([bucket(1), bucket(2), bucket(3)]));
    comes_back(|| AllOf::new([(); 8].map(|()| bucket(1))));
    comes_back(|| AllOf::new((bucket(1), Concurrency::new(2), bucket(1))));
}

/// Whatever is around the limits: a wrapper, or another queue.
#[test]
fn of_limits_within_a_wrapper_comes_back_too() {
    let both = || AllOf::new((bucket(1), Concurrency::new(10)));
    comes_back(|| Counted::new(both()));
    comes_back(|| Penalty::new(both(), SECOND));
    comes_back(|| Escalation::new(both(), []) as Escalation<_, (), 0>);
    comes_back(|| Penalty::new(Escalation::new(both(), []) as Escalation<_, (), 0>, SECOND));
    comes_back(|| Box::new(both()));
    comes_back(|| Own(both()));
    comes_back(|| Own(bucket(1)));
    comes_back(|| AllOf::new((Own(bucket(1)), Own(Concurrency::new(10)))));
    comes_back(|| undriven_at(ms(100), both()));
}

/// A queue that is to be put into another one.
fn undriven_at<L: QueueLimiter>(now: Timestamp, limiter: L) -> Undriven<L> {
    let queue = undriven(limiter, 0);
    queue.clock().set(now);
    queue
}

/// The futures of the stream are polled only while the loop waits for the next one. So those that
/// were granted keep the permits for which the body waits, until its timeout.
#[test]
fn a_wait_that_keeps_grants_from_being_polled_ends_at_its_timeout() {
    let queue = Queue::new(Concurrency::new(2), ThreadTimer::new(), 99).shared();
    let mut late = 0;
    let work = async {
        // Waits once in between, so that the others enter the queue.
        let pause = || {
            let mut is_over = false;
            poll_fn(move |context| {
                if core::mem::replace(&mut is_over, true) {
                    return Poll::Ready(());
                }
                context.waker().wake_by_ref();
                Poll::Pending
            })
        };
        let parts = stream::iter(0..6).map(|_| async {
            let _permit = queue.acquire(1).await.unwrap();
            pause().await;
        });
        let mut done = parts.buffer_unordered(6);
        let mut count = 0;
        while done.next().await.is_some() {
            count += 1;
            let body = queue.acquire(1).within(Duration::from_millis(5)).await;
            late += usize::from(matches!(body, Err(Rejected::Deadline { .. })));
        }
        count
    };
    assert_eq!(block_on(work), 6);
    assert!(late > 0, "the body had to wait");
    assert_eq!((queue.held(), queue.available()), (0, 2));
}

#[test]
fn of_a_limit_that_is_named_twice_is_refunded_once() {
    let both = bucket(2);
    let queue = undriven(AllOf::new((&both, Concurrency::new(9), &both)), 99);
    let unclaimed = Task::waiting(queue.acquire(1));
    queue.clock().set(ms(200));
    let _ = queue.advance();
    assert_eq!((unclaimed.wakes(), both.available_at(ms(200))), (1, 0));
    drop(unclaimed);
    assert_eq!(both.available_at(ms(200)), 2);
}

#[test]
fn of_more_than_eight_limits_is_released() {
    let queue = undriven(AllOf::new([(); 9].map(|()| bucket(1))), 99);
    let unclaimed = Task::waiting(queue.acquire(1));
    queue.clock().set(ms(100));
    let _ = queue.advance();
    drop(unclaimed);
    assert_eq!(available(&queue), 0, "returns by time");
}

/// Only the last one: a bucket accepts no refund of earlier takes.
#[test]
fn of_several_granted_at_once_the_last_one_is_refunded() {
    let queue = undriven(AllOf::new((bucket(3), Concurrency::new(9))), 99);
    let mut waits: Vec<_> = (0..3).map(|_| Task::waiting(queue.acquire(1))).collect();
    queue.clock().set(ms(300));
    let _ = queue.advance();
    drop(waits.remove(0));
    assert_eq!(available(&queue), 0);
    drop(waits.remove(1));
    assert_eq!(available(&queue), 1);
    assert_eq!(permits(waits.remove(0).outcome()), Ok(1));
}

/// The events of a trace: time advances, a request comes, a waiter is dropped, and all granted ones
/// claim, except the last, which claims or is dropped.
fn trace<L: QueueLimiter>(
    queue: &Undriven<L>,
    order: Order,
    seed: u64,
    mut seen: impl FnMut(Timestamp, u32, &Undriven<L>),
) {
    let mut random = Random::new(seed);
    let mut waits: Vec<Task<Acquire<&Undriven<L>>>> = Vec::new();
    let mut held = Vec::new();
    let mut time = 0;
    for _ in 0..150 {
        let is_granted = |wait: &Task<_>| wait.wakes() > 0;
        while waits.iter().filter(|wait| is_granted(wait)).count() > 1 {
            let place = match order {
                Order::OldestFirst => waits.iter().position(is_granted),
                Order::NewestFirst => waits.iter().rposition(is_granted),
                _ => unreachable!("the model has no {order:?}"),
            };
            let lease = waits.remove(place.unwrap()).outcome().unwrap();
            seen(ms(time), lease.permits(), queue);
            held.push(lease);
        }
        match random.below(7) {
            0 | 1 => {
                time += random.below(120);
                queue.clock().set(ms(time));
                let _ = queue.advance();
            }
            2 | 3 => {
                let n = 1 + random.below(2) as u32;
                let mut wait = Task::new(queue.acquire(n));
                match wait.poll() {
                    core::task::Poll::Ready(lease) => {
                        seen(ms(time), n, queue);
                        held.push(lease.unwrap());
                    }
                    core::task::Poll::Pending => waits.push(wait),
                }
            }
            4 if !held.is_empty() => {
                let lease = held.swap_remove(random.below(held.len() as u64) as usize);
                drop(lease);
            }
            5 if !waits.is_empty() => {
                // Whether or not it is granted.
                drop(waits.remove(random.below(waits.len() as u64) as usize));
            }
            _ => {
                if let Some(place) = waits.iter().position(is_granted) {
                    let lease = waits.remove(place).outcome().unwrap();
                    seen(ms(time), lease.permits(), queue);
                    held.push(lease);
                }
            }
        }
    }
}

const TRACES: u64 = if cfg!(debug_assertions) { 400 } else { 4_000 };

/// A rate among limits with enough permits grants as the rate alone, by claims and by drops.
#[test]
fn a_rate_among_limits_that_never_deny_is_granted_as_it_is_alone() {
    for seed in 1..TRACES {
        let order = if seed % 3 == 0 {
            Order::NewestFirst
        } else {
            Order::OldestFirst
        };
        let mut alone = Vec::new();
        let plain = undriven(bucket(3), 99).with_order(order);
        trace(&plain, order, seed, |at, n, queue| {
            alone.push((at, n, available(queue), queue.counts()));
        });
        let mut among = Vec::new();
        let many = AllOf::new((Concurrency::new(1_000), bucket(3), Unlimited));
        let several = undriven(many, 99).with_order(order);
        trace(&several, order, seed, |at, n, queue| {
            let rate = queue.change(|limits| limits.limits().1.available_at(at));
            among.push((at, n, rate, queue.counts()));
        });
        assert_eq!(alone, among, "{seed}");
    }
}

/// Claimed permits keep the bound of each limit over every span of time, whatever is unclaimed.
#[test]
fn claimed_permits_keep_each_bound() {
    for seed in 1..TRACES {
        let window = Duration::from_millis(250);
        let limits = AllOf::new((
            TokenBucket::new(Rate::per_second(10), 3),
            FixedWindow::new(4, window),
            Concurrency::new(4),
            SlidingWindow::<4>::new(6, Duration::from_millis(400), 4),
        ));
        let queue = undriven(limits, 99).with_slack(Duration::ZERO);
        let mut claimed: Vec<(u64, u64)> = Vec::new();
        let mut granted = Vec::new();
        trace(&queue, Order::OldestFirst, seed, |at, n, queue| {
            claimed.push((at.as_nanos() / 1_000_000, n.into()));
            granted.push(queue.counts().granted);
            assert!(
                queue.change(|limits| limits.limits().2.in_use()) <= 4,
                "{seed}"
            );
        });
        // A claim is no earlier than its grant. So the grants in a span are the claims in it, and
        // what was granted before it.
        let taken: u64 = claimed.iter().map(|(_, n)| n).sum();
        let last = claimed.last().map_or(0, |(at, _)| *at);
        assert!(taken <= 3 + last / 100, "{seed}: {taken} in {last} ms");
        assert!(
            taken <= 4 * (last / 250 + 1),
            "{seed}: {taken} in {last} ms"
        );
    }
}
