//! Queues that drive themselves by a timer.

mod support;

use std::sync::Arc;

use portcullis_async::{Acquire, Next, Order, Queue, Rejected};
use portcullis_core::keyed::{Line, Seed};
use portcullis_core::queue::QueueLimiter;
use portcullis_core::state::Carry;
use portcullis_core::{AdjustableBucket, Concurrency, Keyed, Rate, Retry, Timestamp, TokenBucket};
use support::{Hand, SECOND, START, Shared, Task, available, now, permits, queue};

const fn secs(seconds: u64) -> Timestamp {
    Timestamp::from_secs(seconds)
}

/// A bucket of one token per second, empty at first.
fn bucket(burst: u64) -> TokenBucket {
    TokenBucket::builder(Rate::per_second(1), burst)
        .initial(0)
        .build()
        .unwrap()
}

/// An attended queue, shared or static: both behave alike.
fn shared<L: QueueLimiter + Send + Sync + 'static>(limiter: L) -> Shared<L> {
    queue(limiter, 99).shared()
}

fn for_ever<L: QueueLimiter + Send + Sync + 'static>(limiter: L) -> &'static support::Manual<L> {
    let queue: &'static _ = support::leaked(Box::new(queue(limiter, 99)));
    queue.attend();
    queue
}

#[test]
fn each_waiter_is_granted_at_its_instant_and_the_timer_armed_once_for_each() {
    let shared = shared(bucket(5));
    for queue in [&*shared, for_ever(bucket(5))] {
        let waits = [1, 2, 5, 1].map(|n| Task::waiting(queue.acquire(n)));
        assert_eq!(queue.clock().armed(), [secs(1)]);
        for (end, so_far) in [(1, 1), (3, 2), (8, 3), (9, 4)] {
            queue
                .clock()
                .run(Timestamp::from_nanos(end * 1_000_000_000 - 1));
            assert_eq!(waits.iter().map(Task::wakes).sum::<usize>(), so_far - 1);
            queue.clock().run(secs(end));
            assert_eq!(waits.iter().map(Task::wakes).sum::<usize>(), so_far);
        }
        assert_eq!(
            waits.map(|wait| permits(wait.outcome())),
            [Ok(1), Ok(2), Ok(5), Ok(1)]
        );
        assert_eq!(queue.clock().armed(), [1, 3, 8, 9].map(secs));
        assert_eq!(queue.clock().alarm(), None);
    }
}

#[test]
fn existing_waiters_are_served() {
    let shared = Arc::new(queue(bucket(5), 99));
    let wait = Task::waiting(shared.acquire(1));
    assert_eq!(shared.clock().armed(), [secs(1)], "the wait drives");
    shared.attend_shared();
    assert_eq!(shared.clock().armed(), [secs(1); 2], "and then the queue");
    shared.clock().run(secs(1));
    assert_eq!(permits(wait.outcome()), Ok(1));
}

#[test]
fn permits_that_are_already_due_are_granted_at_once() {
    let queue: &'static support::Manual<_> = support::leaked(Box::new(queue(bucket(5), 99)));
    let waits = [1, 5].map(|n| Task::waiting(queue.acquire(n)));
    queue.clock().set(secs(3));
    queue.attend();
    assert_eq!(waits.each_ref().map(Task::wakes), [1, 0]);
    assert_eq!(queue.clock().alarm(), queue.advance().at());
}

trait At {
    fn at(self) -> Option<Timestamp>;
}

impl At for Next {
    fn at(self) -> Option<Timestamp> {
        if let Self::At(at) = self {
            Some(at)
        } else {
            None
        }
    }
}

#[test]
fn a_head_that_is_woken_and_never_polled_again_delays_no_other_waiter() {
    let queue = shared(bucket(5));
    let unpolled = Task::waiting(queue.acquire(1));
    let behind = [1, 2].map(|n| Task::waiting(queue.acquire(n)));
    queue.clock().run(secs(9));
    assert_eq!(queue.clock().armed(), [1, 2, 4].map(secs));
    assert_eq!(behind.map(|wait| permits(wait.outcome())), [Ok(1), Ok(2)]);
    assert_eq!(unpolled.wakes(), 1);
}

#[test]
fn a_future_that_is_leaked_while_it_waits_delays_no_other_waiter() {
    let queue = for_ever(bucket(5));
    Task::waiting(queue.acquire(3)).leak();
    let behind = [1, 1].map(|n| Task::waiting(queue.acquire(n)));
    Task::waiting(queue.acquire(1).until(secs(50))).leak();
    let last = Task::waiting(queue.acquire(1));
    queue.clock().run(secs(7));
    assert_eq!(queue.clock().armed(), [3, 4, 5, 6, 7].map(secs));
    assert_eq!(behind.map(|wait| permits(wait.outcome())), [Ok(1), Ok(1)]);
    assert_eq!(permits(last.outcome()), Ok(1));
    assert_eq!(queue.counts().granted, 5);
}

#[test]
fn a_refund_moves_the_alarm_earlier() {
    let queue = shared(TokenBucket::new(Rate::per_second(1), 10));
    let mut held = now(queue.acquire(10)).unwrap();
    let wait = Task::waiting(queue.acquire(9));
    queue.clock().run(secs(3));
    assert_eq!(held.refund_at(secs(3), 4), Ok(4));
    assert_eq!(queue.clock().alarm(), Some(secs(5)));
    queue.clock().run(secs(5));
    assert_eq!(permits(wait.outcome()), Ok(9));
    assert_eq!(queue.clock().armed(), [9, 5].map(secs));
}

#[test]
fn a_change_of_the_limit_moves_the_alarm_earlier_or_later() {
    let queue = shared(AdjustableBucket::new(Rate::per_second(1), 10));
    let _held = now(queue.acquire(10)).unwrap();
    let wait = Task::waiting(queue.acquire(8));
    let change = |rate| {
        queue
            .change(|bucket| bucket.adjust_at(START, rate, 10, Carry::Keep))
            .unwrap();
    };
    change(Rate::per_second(2));
    assert_eq!(queue.clock().alarm(), Some(secs(4)));
    change(Rate::new(1, 2 * SECOND));
    queue.clock().run(Timestamp::from_nanos(16_000_000_000 - 1));
    assert_eq!(wait.wakes(), 0);
    queue.clock().run(secs(16));
    assert_eq!(permits(wait.outcome()), Ok(8));
    // If the alarm is too early, the queue asks the limiter again.
    assert_eq!(queue.clock().armed(), [8, 4, 16].map(secs));
}

#[test]
fn a_cancelled_head_moves_the_alarm_earlier() {
    let queue = shared(bucket(60));
    let head = Task::waiting(queue.acquire(60));
    let wait = Task::waiting(queue.acquire(5));
    drop(head);
    assert_eq!(queue.clock().alarm(), Some(secs(5)));
    queue.clock().run(secs(5));
    assert_eq!(permits(wait.outcome()), Ok(5));
    assert_eq!(queue.clock().armed(), [60, 5].map(secs));
}

#[test]
fn a_cancelled_head_moves_the_alarm_later_without_an_extra_call() {
    let queue = shared(bucket(60));
    let head = Task::waiting(queue.acquire(2));
    let wait = Task::waiting(queue.acquire(5));
    drop(head);
    assert_eq!(queue.clock().armed(), [secs(2)]);
    queue.clock().run(secs(5));
    assert_eq!(permits(wait.outcome()), Ok(5));
    assert_eq!(queue.clock().armed(), [2, 5].map(secs));
}

#[test]
fn a_new_head_moves_the_alarm_earlier() {
    let queue: Shared<_> = Arc::new(queue(bucket(60), 99).with_order(Order::NewestFirst));
    queue.attend_shared();
    let old = Task::waiting(queue.acquire(9));
    let new = Task::waiting(queue.acquire(4));
    assert_eq!(queue.clock().armed(), [9, 4].map(secs));
    queue.clock().run(secs(13));
    assert_eq!(
        (permits(new.outcome()), permits(old.outcome())),
        (Ok(4), Ok(9))
    );
    assert_eq!(queue.clock().armed(), [9, 4, 13].map(secs));
}

#[test]
fn an_earlier_deadline_moves_the_alarm_earlier() {
    let queue = shared(Concurrency::new(1));
    let held = now(queue.acquire(1)).unwrap();
    assert_eq!(queue.clock().armed(), []);
    let [late, early, never] =
        [secs(9), secs(4), Timestamp::MAX].map(|at| Task::waiting(queue.acquire(1).until(at)));
    assert_eq!(queue.clock().armed(), [9, 4].map(secs));
    queue.clock().run(secs(20));
    let over = Err(Rejected::Deadline {
        permits: 1,
        retry: Retry::OnRelease,
    });
    assert_eq!(
        (permits(early.outcome()), permits(late.outcome())),
        (over, over)
    );
    assert_eq!(queue.clock().armed(), [9, 4, 9].map(secs));
    drop(held);
    assert_eq!(permits(never.outcome()), Ok(1));
    assert_eq!(queue.clock().alarm(), None);
}

#[test]
fn after_an_idle_time_the_timer_is_armed_again() {
    let queue = shared(bucket(2));
    for round in 0..3 {
        let start = secs(10 * round);
        queue.clock().run(start);
        // Tokens of a token bucket are not returned.
        while queue.try_acquire(1).is_ok() {}
        let wait = Task::waiting(queue.acquire(1));
        queue.clock().run(start.saturating_add(SECOND));
        assert_eq!(permits(wait.outcome()), Ok(1), "round {round}");
    }
}

#[test]
fn an_early_or_extra_wake_up_does_no_harm() {
    let queue = shared(bucket(5));
    let wait = Task::waiting(queue.acquire(2));
    for time in [START, secs(1)] {
        queue.clock().set(time);
        queue.attend_shared();
        queue.advance();
        assert_eq!(queue.clock().alarm(), Some(secs(2)));
    }
    queue.clock().run(secs(2));
    assert_eq!(permits(wait.outcome()), Ok(2));
}

#[test]
fn a_late_timer_loses_no_permits() {
    let queue = shared(TokenBucket::new(Rate::per_second(100), 1));
    let _held = now(queue.acquire(1)).unwrap();
    let waits: Vec<_> = (0..50).map(|_| Task::waiting(queue.acquire(1))).collect();
    // 7 ms late each time.
    while let Some(at) = queue.clock().alarm() {
        queue
            .clock()
            .jump(Timestamp::from_nanos(at.as_nanos() + 7_000_000));
    }
    assert!(
        waits
            .into_iter()
            .all(|wait| permits(wait.outcome()) == Ok(1))
    );
    assert_eq!(
        queue.clock().armed(),
        (1..=50)
            .map(|n| Timestamp::from_millis(10 * n))
            .collect::<Vec<_>>()
    );
}

#[test]
fn a_queue_may_be_dropped_while_its_timer_is_armed() {
    let hand: &'static Hand = support::leaked(Box::new(Hand::new()));
    let queue: Arc<Queue<_, &Hand>> = Arc::new(Queue::new(bucket(5), hand, 99));
    queue.attend_shared();
    drop(Task::waiting(Acquire::new(Arc::clone(&queue), 1)));
    let gone = Arc::downgrade(&queue);
    assert_eq!(
        (hand.alarm(), Arc::strong_count(&queue)),
        (Some(secs(1)), 1)
    );
    drop(queue);
    assert!(gone.upgrade().is_none(), "its timer does not keep it alive");
    hand.run(secs(9));
    assert_eq!(hand.armed(), [secs(1)]);
}

#[test]
fn a_closed_queue_gets_no_useless_wake_up() {
    let queue = shared(bucket(5));
    let wait = Task::waiting(queue.acquire(2));
    queue.close();
    assert!(wait.outcome().is_err());
    queue.clock().run(secs(9));
    assert_eq!(queue.clock().armed(), [secs(2)]);
}

#[test]
fn a_driver_beside_the_timer_does_no_harm() {
    let queue = shared(bucket(5));
    let mut driver = Task::waiting(queue.drive());
    let waits = [1, 1, 1].map(|n| Task::waiting(queue.acquire(n)));
    queue.clock().run(secs(1));
    assert!(driver.is_pending());
    queue.clock().run(secs(2));
    let mut other = Task::waiting(queue.drive());
    drop(driver);
    queue.clock().run(secs(9));
    assert_eq!(
        waits.map(|wait| permits(wait.outcome())),
        [Ok(1), Ok(1), Ok(1)]
    );
    queue.close();
    assert!(other.poll().is_ready());
}

#[test]
fn a_waiter_whose_waker_uses_the_queue_is_woken_by_the_timer() {
    let queue = shared(bucket(5));
    let again = Arc::new(std::sync::Mutex::new(None));
    let uses = {
        let (queue, again) = (Arc::clone(&queue), Arc::clone(&again));
        support::waker(move || {
            *again.lock().unwrap() = Some(Task::waiting(Acquire::new(Arc::clone(&queue), 2)));
        })
    };
    let mut wait = Task::new(Acquire::new(Arc::clone(&queue), 1));
    assert!(wait.poll_with(&uses).is_pending());
    queue.clock().run(secs(3));
    assert_eq!(
        permits(again.lock().unwrap().take().unwrap().outcome()),
        Ok(2)
    );
    assert!(
        queue
            .clock()
            .armed()
            .iter()
            .all(|at| [1, 3].map(secs).contains(at))
    );
}

#[test]
fn a_keyed_queue_has_one_timer_for_all_its_keys() {
    let bucket = TokenBucket::builder(Rate::per_second(1), 5)
        .rules()
        .unwrap();
    let table = Keyed::new(bucket, Line::for_keys(1_000), Seed::new());
    let queue = portcullis_async::KeyedQueue::new(table, Hand::new(), 99).shared();
    let _held = ["a", "b", "c"].map(|key| now(queue.acquire(key, 5)).unwrap());
    let waits = ["a", "b", "c"].map(|key| (key, Task::waiting(queue.acquire(key, 1))));
    let two = Task::waiting(queue.acquire("b", 1));
    let until = Task::waiting(Acquire::new(queue.key("c"), 3).until(secs(4)));
    queue.clock().run(secs(1));
    for (key, wait) in waits {
        assert_eq!((wait.wakes(), permits(wait.outcome())), (1, Ok(1)), "{key}");
    }
    queue.clock().run(secs(4));
    assert_eq!(
        (permits(two.outcome()), permits(until.outcome())),
        (Ok(1), Ok(3))
    );
    assert_eq!(queue.clock().armed(), [1, 2, 4].map(secs));
}

#[test]
fn permits_that_come_back_by_release_need_no_timer() {
    let queue = for_ever(Concurrency::new(1));
    let held = now(queue.acquire(1)).unwrap();
    let wait = Task::waiting(queue.acquire(1));
    drop(held);
    assert_eq!(permits(wait.outcome()), Ok(1));
    assert_eq!((queue.clock().armed(), available(queue)), (vec![], 1));
}
