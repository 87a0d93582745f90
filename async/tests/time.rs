//! Permits that return by time, without a timer.

mod support;

use portcullis_async::Next;
use portcullis_core::queue::QueueLimiter;
use portcullis_core::{
    Clock, Concurrency, FixedWindow, Rate, SlidingWindow, Timestamp, TokenBucket,
};
use support::{SECOND, START, Task, Undriven, available, newest_first, now, permits, undriven};

/// At each instant that `advance` returns, one more waiter is granted, and not 1 ns earlier.
/// Returns the instants.
fn instants<L: QueueLimiter>(queue: &Undriven<L>, requests: &[u32]) -> Vec<u64> {
    let mut waits: Vec<_> = requests
        .iter()
        .map(|&n| Task::waiting(queue.acquire(n)))
        .collect();
    let mut told = Vec::new();
    loop {
        let at = match queue.advance() {
            Next::At(at) => at,
            Next::Idle => break,
            Next::OnRelease => panic!("time helps"),
        };
        assert!(
            at > queue.clock().now(),
            "what is due is granted by the call itself"
        );
        assert_eq!(
            queue.advance(),
            Next::At(at),
            "a second call changes nothing"
        );
        queue.clock().set(Timestamp::from_nanos(at.as_nanos() - 1));
        assert_eq!(queue.advance(), Next::At(at));
        assert!(waits.iter_mut().all(Task::is_pending), "1 ns before {at}");
        queue.clock().set(at);
        assert!(
            waits.iter_mut().all(Task::is_pending),
            "time alone grants nothing to waiters"
        );
        queue.advance();
        let before = waits.len();
        waits.retain_mut(|wait| wait.is_pending());
        assert!(waits.len() < before, "no waiter was granted at {at}");
        told.push(at.as_nanos());
    }
    assert!(waits.is_empty());
    assert_eq!(queue.counts().granted, requests.len() as u64);
    told
}

const MS: u64 = 1_000_000;

#[test]
fn a_token_bucket_grants_at_the_instant_that_it_reports() {
    let bucket = TokenBucket::builder(Rate::per_second(10), 5)
        .initial(0)
        .build()
        .unwrap();
    let told = instants(&undriven(bucket, 99), &[1, 5, 0, 1]);
    // The waiter for zero permits waits for one, and takes nothing.
    assert_eq!(told, [100 * MS, 600 * MS, 700 * MS]);
    let thirds = TokenBucket::builder(Rate::per_second(3), 5)
        .initial(0)
        .build()
        .unwrap();
    assert_eq!(
        instants(&undriven(thirds, 99), &[1, 1, 1]),
        [333_333_334, 666_666_667, 1_000_000_000]
    );
    let steps = TokenBucket::builder(Rate::per_second(2), 5)
        .stepwise()
        .initial(0)
        .build()
        .unwrap();
    assert_eq!(
        instants(&undriven(steps, 99), &[1, 1, 1]),
        [1_000 * MS, 2_000 * MS]
    );
}

#[test]
fn a_fixed_window_grants_at_its_edges() {
    let queue = undriven(FixedWindow::new(2, SECOND), 99);
    queue.clock().set(Timestamp::from_millis(300));
    let _held = now(queue.acquire(2)).unwrap();
    assert_eq!(
        instants(&queue, &[1, 2, 1, 0]),
        [1_000 * MS, 2_000 * MS, 3_000 * MS]
    );
}

#[test]
fn a_sliding_window_grants_when_a_segment_leaves_it() {
    let queue: Undriven<SlidingWindow<4>> = undriven(SlidingWindow::new(3, SECOND, 4), 99);
    let _first = now(queue.acquire(1)).unwrap();
    queue.clock().set(Timestamp::from_millis(600));
    let _second = now(queue.acquire(2)).unwrap();
    assert_eq!(instants(&queue, &[1, 1, 1]), [1_000 * MS, 1_500 * MS]);
}

#[test]
fn newest_first_the_reported_time_is_the_newest_waiters() {
    let bucket = TokenBucket::builder(Rate::per_second(1), 5)
        .initial(0)
        .build()
        .unwrap();
    let queue = newest_first(bucket, 99);
    let _old = Task::waiting(queue.acquire(1));
    assert_eq!(queue.advance(), Next::At(Timestamp::from_secs(1)));
    let new = Task::waiting(queue.acquire(3));
    assert_eq!(queue.advance(), Next::At(Timestamp::from_secs(3)));
    drop(new);
    assert_eq!(queue.advance(), Next::At(Timestamp::from_secs(1)));
}

#[test]
fn held_permits_come_back_only_by_release() {
    let queue = undriven(Concurrency::new(1), 9);
    assert_eq!(queue.advance(), Next::Idle);
    let held = now(queue.acquire(1)).unwrap();
    assert_eq!(queue.advance(), Next::Idle, "there is no waiter");
    let wait = Task::waiting(queue.acquire(1));
    queue.clock().advance(SECOND);
    assert_eq!(queue.advance(), Next::OnRelease);
    drop(held);
    assert_eq!(queue.advance(), Next::Idle);
    assert!(wait.outcome().is_ok());
}

#[test]
fn if_nothing_ever_comes_back_no_time_is_reported() {
    let queue = undriven(
        TokenBucket::builder(Rate::ZERO, 5)
            .initial(0)
            .build()
            .unwrap(),
        9,
    );
    let _wait = Task::waiting(queue.acquire(1));
    assert_eq!(queue.advance(), Next::OnRelease);
}

#[test]
fn one_call_grants_any_number_of_permits_that_have_come_in() {
    let queue = undriven(FixedWindow::new(100, SECOND), 999);
    let _held = now(queue.acquire(100)).unwrap();
    let waits: Vec<_> = (0..150).map(|_| Task::waiting(queue.acquire(1))).collect();
    queue.clock().advance(SECOND);
    queue.advance();
    let (granted, waiting) = waits.split_at(100);
    assert!(
        granted.iter().all(|wait| wait.wakes() == 1)
            && waiting.iter().all(|wait| wait.wakes() == 0)
    );
    assert_eq!(queue.advance(), Next::At(Timestamp::from_secs(2)));
}

#[test]
fn a_clock_that_goes_back_grants_nothing_early() {
    let queue = undriven(TokenBucket::new(Rate::per_second(1), 1), 9);
    queue.clock().set(Timestamp::from_secs(10));
    let _held = now(queue.acquire(1)).unwrap();
    let mut wait = Task::waiting(queue.acquire(1));
    queue.clock().set(Timestamp::from_secs(9));
    assert_eq!(queue.advance(), Next::At(Timestamp::from_secs(11)));
    assert!(wait.is_pending());
}

#[test]
fn a_refund_grants_waiters() {
    let queue = undriven(TokenBucket::new(Rate::per_second(1), 5), 9);
    let mut held = now(queue.acquire(5)).unwrap();
    let wait = Task::waiting(queue.acquire(3));
    assert_eq!(held.refund_at(START, 4), Ok(4));
    assert_eq!((wait.wakes(), permits(wait.outcome())), (1, Ok(3)));
    assert_eq!(available(&queue), 1);
}
