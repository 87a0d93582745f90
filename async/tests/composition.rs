//! Queues around composed limiters, and within compositions.

mod support;

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use portcullis_async::{Next, Rejected};
use portcullis_core::limiter::{Answer, Ask, Back, Idle, Read, Reading, Receipt, Returned};
use portcullis_core::queue::{QueueLimiter, Replenishing};
use portcullis_core::{
    AllOf, Concurrency, Denied, FixedWindow, Limiter, LimiterExt, Rate, Retry, Timestamp,
    TokenBucket,
};
use support::{SECOND, START, Task, available, newest_first, now, permits, queue};

/// Denies while a switch is off, for an unknown time.
#[derive(Default)]
struct Switch {
    on: AtomicBool,
    /// The largest number of permits that it was asked for.
    most: AtomicU32,
}

impl Limiter for Switch {
    fn decide(&self, ask: Ask<'_>) -> Answer {
        let (now, permits) = (ask.now(), ask.permits());
        if ask.is_look() {
            return ask.looked(self.available_at(now), || u64::MAX);
        }
        self.most.fetch_max(permits, Ordering::Relaxed);
        Answer::from(if self.on.load(Ordering::Relaxed) {
            Ok(Receipt::NONE)
        } else {
            Err(Denied::Refused { now, permits })
        })
    }

    fn give_back(&self, _: Back<'_>) -> Returned {
        Returned::NOTHING
    }

    fn read(&self, _: Read<'_>) -> Reading {
        Reading {
            available: if self.on.load(Ordering::Relaxed) {
                u64::MAX
            } else {
                0
            },
            capacity: u64::MAX,
            idle: Idle::InUse,
            held: 0,
        }
    }

    fn retry(&self, _: Denied) -> Retry {
        Retry::After(SECOND)
    }
}

impl QueueLimiter for Switch {
    const SHARED: bool = false;
}

#[test]
fn a_limiter_without_time_is_asked_again_when_its_retry_says() {
    let queue = queue(Switch::default(), 99);
    let [one, other] = [1, 7].map(|n| Task::waiting(queue.acquire(n)));
    assert_eq!(queue.advance(), Next::At(Timestamp::from_secs(1)));
    queue.clock().advance(SECOND);
    assert_eq!(queue.advance(), Next::At(Timestamp::from_secs(2)));
    queue.clock().advance(SECOND);
    queue.change(|switch| switch.on.store(true, Ordering::Relaxed));
    assert_eq!(
        (permits(one.outcome()), permits(other.outcome())),
        (Ok(1), Ok(7))
    );
    assert_eq!(queue.advance(), Next::Idle);
}

#[test]
fn a_denial_of_the_limiter_differs_from_a_full_queue() {
    let refused = |permits| Rejected::Refused {
        permits,
        retry: Retry::After(SECOND),
    };
    let queue = queue(Switch::default(), 0);
    assert_eq!(permits(now(queue.acquire(3))), Err(refused(3)));
    let full = newest_first(Switch::default(), 1);
    assert_eq!(permits(now(full.acquire(2))), Err(refused(2)));
    // Behind a waiter, it is the queue that has no room.
    let behind = support::queue(Switch::default(), 1);
    let _head = Task::waiting(behind.acquire(1));
    let no_room = Rejected::QueueFull {
        permits: 1,
        retry: Retry::After(SECOND),
    };
    assert_eq!(permits(now(behind.acquire(1))), Err(no_room));
    assert_eq!(
        refused(1).to_string(),
        "denied by the limiter, and the queue is full (permits requested: 1)"
    );
}

#[test]
fn the_limiter_is_not_asked_for_waiters_behind_the_head() {
    let queue = queue(Switch::default(), 99);
    let _waits = [1, 7, 9].map(|n| Task::waiting(queue.acquire(n)));
    queue.advance();
    queue.clock().advance(SECOND);
    queue.advance();
    queue.change(|_| ());
    assert_eq!(
        queue.change(|switch| switch.most.load(Ordering::Relaxed)),
        1,
        "the head asks for 1"
    );
}

/// A concurrency limit and a rate, as one limiter of the user's.
struct Both(Concurrency, TokenBucket);

impl Limiter for Both {
    fn decide(&self, ask: Ask<'_>) -> Answer {
        let (now, n) = (ask.now(), ask.permits());
        if ask.is_look() {
            return ask.looked(self.available_at(now), || u64::MAX);
        }
        self.take(now, n).into()
    }
    fn give_back(&self, back: Back<'_>) -> Returned {
        match back {
            Back::Refund {
                permits, receipt, ..
            } => {
                self.release(permits);
                receipt.refunded(0).into()
            }
            back => self.0.give_back(back),
        }
    }
    fn read(&self, read: Read<'_>) -> Reading {
        let now = read.now();
        Reading {
            available: self.0.available_at(now).min(self.1.available_at(now)),
            capacity: Limiter::capacity(&self.0).min(self.1.capacity()),
            idle: Idle::InUse,
            held: 0,
        }
    }
    fn retry(&self, denied: Denied) -> Retry {
        self.release_or_now(denied)
            .longer(self.1.retry(denied), START)
    }
}

impl Both {
    fn take(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        let receipt = self.0.take_at(now, n)?;
        self.1
            .take_at(now, n)
            .inspect_err(|_| Limiter::release(&self.0, n))
            .map(|_| receipt)
    }
}

impl QueueLimiter for Both {
    const SHARED: bool = false;
}

impl Both {
    fn release_or_now(&self, denied: Denied) -> Retry {
        if denied.permits() <= self.0.available() {
            Retry::At(START)
        } else {
            Retry::OnRelease
        }
    }
}

#[test]
fn a_waiter_may_need_both_a_release_and_time() {
    let queue = queue(
        Both(
            Concurrency::new(2),
            TokenBucket::new(Rate::per_second(1), 2),
        ),
        99,
    );
    let held = now(queue.acquire(2)).unwrap();
    let mut wait = Task::waiting(queue.acquire(1));
    queue.clock().set(Timestamp::from_millis(500));
    assert_eq!(queue.advance(), Next::OnRelease);
    drop(held);
    assert!(wait.is_pending(), "there is no token yet");
    assert_eq!(queue.advance(), Next::At(Timestamp::from_secs(1)));
    queue.clock().set(Timestamp::from_secs(1));
    assert_eq!(queue.advance(), Next::Idle);
    assert_eq!(permits(wait.outcome()), Ok(1));
}

#[test]
fn after_a_release_a_driver_learns_the_time_that_the_waiter_needs() {
    let queue = queue(
        Both(
            Concurrency::new(2),
            TokenBucket::new(Rate::per_second(1), 2),
        ),
        99,
    );
    let held = now(queue.acquire(2)).unwrap();
    let _wait = Task::waiting(queue.acquire(1));
    let mut driver = Task::new(queue.drive());
    assert!(driver.is_pending(), "the waiter needs a release");
    drop(held);
    assert_eq!(driver.wakes(), 1);
}

#[test]
fn a_limiter_behind_a_pointer_can_be_shared_by_several_queues() {
    let limit: Arc<dyn Replenishing + Send + Sync> =
        Arc::new(TokenBucket::new(Rate::per_second(1), 1));
    let queues = [(); 2].map(|()| queue(Arc::clone(&limit), 9));
    let _held = now(queues[0].acquire(1)).unwrap();
    let waits = queues
        .each_ref()
        .map(|queue| Task::waiting(queue.acquire(1)));
    for (queue, granted) in [
        (&queues[1], [0, 1]),
        (&queues[0], [0, 1]),
        (&queues[1], [0, 1]),
    ] {
        queue.clock().set(Timestamp::from_secs(1));
        let _ = queue.advance();
        assert_eq!(waits.each_ref().map(Task::wakes), granted);
    }
    queues[0].clock().set(Timestamp::from_secs(2));
    let _ = queues[0].advance();
    assert_eq!(waits.map(|wait| permits(wait.outcome())), [Ok(1), Ok(1)]);
}

#[test]
fn a_boxed_rate_whose_type_is_chosen_at_run_time_can_have_a_queue() {
    fn is_shared<L: QueueLimiter>(_: &L) -> bool {
        L::SHARED
    }
    for is_window in [false, true] {
        let limit: Box<dyn Replenishing + Send + Sync> = if is_window {
            Box::new(FixedWindow::new(1, SECOND))
        } else {
            Box::new(Arc::new(TokenBucket::new(Rate::per_second(1), 1)))
        };
        assert!(
            is_shared(&limit),
            "others may have it: no grant as of the past"
        );
        let queue = queue(limit, 9);
        let _first = now(queue.acquire(1)).unwrap();
        let wait = Task::waiting(queue.acquire(1));
        queue.clock().set(Timestamp::from_secs(1));
        let _ = queue.advance();
        assert_eq!(permits(wait.outcome()), Ok(1));
        assert_eq!((queue.held(), available(&queue)), (0, 0));
    }
}

#[test]
fn a_boxed_custom_limiter_can_have_a_queue() {
    let queue = queue(Box::new(Concurrency::new(1)), 9);
    let held = now(queue.acquire(1)).unwrap();
    let wait = Task::waiting(queue.acquire(1));
    drop(held);
    assert_eq!(permits(wait.outcome()), Ok(1));
    assert_eq!(queue.available(), 1);
}

#[test]
fn a_queue_is_one_limit_of_a_composition() {
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
        "takes all or none"
    );
    drop(lease);
    assert_eq!(
        (wait.wakes(), permits(wait.outcome())),
        (1, Ok(2)),
        "its drop grants the waiters"
    );
}

#[test]
fn permits_refunded_by_a_denied_request_are_granted() {
    /// Agrees in the look, and lets a request queue before the take.
    struct QueuesInBetween<F>(F);
    impl<F: Fn()> Limiter for QueuesInBetween<F> {
        fn decide(&self, ask: Ask<'_>) -> Answer {
            let (now, permits) = (ask.now(), ask.permits());
            if ask.is_look() {
                return ask.granted(Receipt::NONE);
            }
            (self.0)();
            Answer::Denied(Denied::Refused { now, permits })
        }

        fn give_back(&self, _: Back<'_>) -> Returned {
            Returned::NOTHING
        }

        fn read(&self, _: Read<'_>) -> Reading {
            Reading {
                available: u64::MAX,
                capacity: u64::MAX,
                idle: Idle::InUse,
                held: 0,
            }
        }

        fn retry(&self, _: Denied) -> Retry {
            Retry::After(SECOND)
        }
    }
    let slots = queue(Concurrency::new(1), 9);
    let wait = Mutex::new(None);
    let refuses = QueuesInBetween(|| *wait.lock().unwrap() = Some(Task::waiting(slots.acquire(1))));
    let denied = AllOf::new((&slots, &refuses))
        .try_acquire_at(START, 1)
        .unwrap_err();
    assert_eq!(denied.index, 1);
    let wait = wait.into_inner().unwrap().unwrap();
    assert_eq!((wait.wakes(), permits(wait.outcome())), (1, Ok(1)));
}

#[test]
fn a_queue_can_wrap_a_queue() {
    let outer = queue(queue(Concurrency::new(1), 9), 9);
    let held = now(outer.acquire(1)).unwrap();
    let wait = Task::waiting(outer.acquire(1));
    drop(held);
    assert_eq!(permits(wait.outcome()), Ok(1));
    assert_eq!(available(&outer), 1);
}

#[test]
fn a_queue_answers_as_its_inner_limiter() {
    let queue = queue(TokenBucket::new(Rate::per_second(1), 3), 9);
    assert_eq!((available(&queue), queue.capacity()), (3, 3));
    assert_eq!(queue.idle_at(START), Idle::Since(START));
    let held = queue.try_acquire_at(START, 3).unwrap();
    let denied = queue.try_acquire_at(START, 1).unwrap_err();
    assert_eq!(denied.retry(&queue), Retry::At(Timestamp::from_secs(1)));
    assert!(queue.id().is_some() && queue.id() == (&&queue).id());
    drop(held);
}

/// Three per second, and two at once: the waiter needs whichever is missing.
#[test]
fn several_limits_are_waited_for_as_one() {
    let queue = queue(
        AllOf::new((
            TokenBucket::new(Rate::per_second(3), 3),
            Concurrency::new(2),
        )),
        99,
    );
    let [one, two] = [(); 2].map(|()| now(queue.acquire(1)).unwrap());
    let [third, fourth] = [(); 2].map(|()| Task::waiting(queue.acquire(1)));
    assert_eq!(queue.advance(), Next::OnRelease);
    drop(one);
    let third = third.outcome().unwrap();
    drop(two);
    // A permit is free, but there is no token.
    assert_eq!(
        queue.advance(),
        Next::At(Timestamp::from_nanos(333_333_334))
    );
    queue
        .clock()
        .advance(core::time::Duration::from_millis(334));
    assert_eq!(queue.advance(), Next::Idle);
    let fourth = fourth.outcome().unwrap();
    queue.close();
    let drained = Task::waiting(queue.drained());
    drop((third, fourth));
    drained.outcome();
}
