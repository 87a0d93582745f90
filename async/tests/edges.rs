//! Corner cases of the queue: wakers and limiters that panic, releases while the lock is held, and
//! what a wrapper forwards.

mod support;

use core::future::Future;
use core::panic::AssertUnwindSafe;
use core::sync::atomic::{AtomicU32, Ordering};
use core::task::{Poll, RawWaker, RawWakerVTable, Waker};
use core::time::Duration;
use std::panic::catch_unwind;
use std::sync::Arc;
use std::time::Instant;

use portcullis_async::{Acquire, Next, NoTimer, Order, Queue, Rejected};
use portcullis_core::limiter::{Answer, Ask, Back, Idle, Read, Reading, Receipt, Returned};
use portcullis_core::queue::QueueLimiter;
use portcullis_core::{
    Clock, Concurrency, Denied, Limiter, LimiterExt, ManualClock, MonotonicClock, Rate, Retry,
    Timestamp, TokenBucket,
};
use support::{FreesOnDenial, Task, Watched, now, waker};

type Plain<L> = Queue<L, ManualClock>;
fn queue<L: QueueLimiter>(limiter: L, permits: u64) -> Plain<L> {
    Queue::new(limiter, ManualClock::new(), permits)
}

/// These waiters get nothing, so nothing is taken for them.
#[test]
fn closing_takes_no_permits_for_the_waiters_it_rejects() {
    let queue = queue(Concurrency::new(3), 9);
    let held = now(queue.acquire(2)).unwrap();
    let large = Task::waiting(queue.acquire(3));
    let small = Task::waiting(queue.acquire(1));
    queue.close();
    assert!(large.outcome().is_err() && small.outcome().is_err());
    drop(held);
    assert_eq!(queue.available_at(Timestamp::ZERO), 3);
}

/// The waker of another task panics in it, after it was linked.
#[test]
fn a_wait_is_unlinked_though_its_first_poll_panicked() {
    let queue = queue(Concurrency::new(1), 1).with_order(Order::NewestFirst);
    let _held = now(queue.acquire(1)).unwrap();
    let mut old = Task::new(queue.acquire(1));
    assert!(old.poll_with(&waker(|| panic!("a waker"))).is_pending());
    let mut new = Task::new(queue.acquire(1));
    assert!(catch_unwind(AssertUnwindSafe(|| new.poll())).is_err());
    drop(new);
    assert_eq!(
        queue.counts().waiters,
        0,
        "otherwise a freed node is linked"
    );
}

/// A call of `counts` holds the lock for a moment, too.
#[test]
fn a_release_during_counts_is_granted() {
    let queue: &'static Queue<Concurrency, ManualClock, Watched> = support::leaked(Box::new(
        Queue::with_lock(Concurrency::new(1), ManualClock::new(), 9, Watched::new()),
    ));
    let held = now(queue.acquire(1)).unwrap();
    let wait = Task::waiting(queue.acquire(1));
    Watched::before_unlock(move || drop(held));
    queue.counts();
    assert_eq!(
        queue.available_at(Timestamp::ZERO),
        0,
        "a permit is free, and there is a waiter"
    );
    drop(wait.outcome().unwrap());
}

/// Not even the waker of a rejected request.
#[test]
fn no_waker_is_dropped_under_the_lock() {
    static UNDER_THE_LOCK: AtomicU32 = AtomicU32::new(0);
    static VTABLE: RawWakerVTable = RawWakerVTable::new(
        |data| RawWaker::new(data, &VTABLE),
        |_| {},
        |_| {},
        |_| {
            UNDER_THE_LOCK.fetch_add(u32::from(Watched::is_held()), Ordering::Relaxed);
        },
    );
    let queue = Queue::with_lock(Concurrency::new(1), ManualClock::new(), 0, Watched::new());
    let _held = now(queue.acquire(1)).unwrap();
    // SAFETY: nothing is behind the pointer.
    let waker = unsafe { Waker::from_raw(RawWaker::new(core::ptr::null(), &VTABLE)) };
    assert!(
        Task::new(queue.acquire(1)).poll_with(&waker).is_ready(),
        "refused"
    );
    assert_eq!(UNDER_THE_LOCK.load(Ordering::Relaxed), 0);
}

/// A limiter with releases, but without a `refund_at` of its own: the default releases, and returns
/// 0.
struct Plainest(Concurrency);
impl Limiter for Plainest {
    fn decide(&self, ask: Ask<'_>) -> Answer {
        self.0.decide(ask)
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
        self.0.read(read)
    }
    fn retry(&self, denied: Denied) -> Retry {
        Limiter::retry(&self.0, denied)
    }
}

impl QueueLimiter for Plainest {
    const SHARED: bool = false;
}

/// By its contract a limiter may have released all, and return 0.
#[test]
fn permits_released_by_a_refund_are_granted() {
    let queue = queue(Plainest(Concurrency::new(1)), 9);
    let mut held = now(queue.acquire(1)).unwrap();
    let wait = Task::waiting(queue.acquire(1));
    assert_eq!(held.refund_at(Timestamp::ZERO, 1), Ok(0));
    assert_eq!(
        queue.available_at(Timestamp::ZERO),
        0,
        "a permit is free, and there is a waiter"
    );
    drop(wait.outcome().unwrap());
}

#[test]
fn a_request_above_the_capacity_is_rejected_at_once_even_behind_others() {
    let queue = queue(Concurrency::new(2), 9);
    let _held = now(queue.acquire(2)).unwrap();
    let _wait = Task::waiting(queue.acquire(1));
    let mut large = Task::new(queue.acquire(3));
    let Poll::Ready(Err(rejected)) = large.poll() else {
        panic!("it waits")
    };
    assert_eq!(
        rejected,
        Rejected::ExceedsCapacity {
            permits: 3,
            capacity: 2
        }
    );
}

/// The time that it slept for was the head's, which is gone: two minutes.
#[test]
fn a_thread_behind_a_cancelled_head_does_not_oversleep() {
    let bucket = TokenBucket::builder(Rate::per_second(1_000), 120_000)
        .initial(0)
        .origin(MonotonicClock::new().now())
        .build()
        .unwrap();
    let queue = Arc::new(Queue::new(bucket, NoTimer(MonotonicClock::new()), 130_000));
    let mut head = Box::pin(Acquire::new(Arc::clone(&queue), 120_000));
    let mut context = core::task::Context::from_waker(Waker::noop());
    assert!(head.as_mut().poll(&mut context).is_pending());
    let started = Instant::now();
    let thread = std::thread::spawn({
        let queue = Arc::clone(&queue);
        // Fits after 300 ms.
        move || queue.blocking_acquire(300).map(drop)
    });
    while queue.counts().waiters < 2 {
        std::thread::yield_now();
    }
    std::thread::sleep(Duration::from_millis(20));
    drop(head);
    thread.join().unwrap().unwrap();
    let waited = started.elapsed();
    assert!(
        waited < Duration::from_mins(1),
        "it fits after 300 ms, and was granted after {waited:?}"
    );
}
/// Also not the waiters beyond one wake batch.
#[test]
fn a_waker_that_panics_leaves_no_waiter_while_permits_are_free() {
    let queue = queue(Concurrency::new(40), 99);
    let held = now(queue.acquire(40)).unwrap();
    let mut first = Task::new(queue.acquire(1));
    assert!(first.poll_with(&waker(|| panic!("a waker"))).is_pending());
    let mut rest: Vec<_> = (0..39).map(|_| Task::waiting(queue.acquire(1))).collect();
    assert!(catch_unwind(AssertUnwindSafe(|| drop(held))).is_err());
    let waiting = rest.iter().filter(|task| task.wakes() == 0).count();
    assert_eq!((waiting, queue.available_at(Timestamp::ZERO)), (0, 0));
    rest.clear();
}

#[test]
fn a_look_answers_as_a_take_would() {
    let queue = queue(Concurrency::new(3), 9);
    let _held = now(queue.acquire(1)).unwrap();
    let _large = Task::waiting(queue.acquire(3));
    let at = Timestamp::ZERO;
    assert_eq!(
        queue.peek_at(at, 1).err(),
        queue.try_acquire_at(at, 1).err(),
        "there is a waiter"
    );
    queue.close();
    assert_eq!(
        queue.peek_at(at, 1).err(),
        queue.try_acquire_at(at, 1).err(),
        "closed"
    );
}

#[test]
fn advance_returns_idle_after_it_has_granted_all() {
    let queue = queue(
        TokenBucket::builder(Rate::per_second(1), 40)
            .initial(0)
            .stepwise()
            .build()
            .unwrap(),
        99,
    );
    let tasks: Vec<_> = (0..30).map(|_| Task::waiting(queue.acquire(1))).collect();
    queue.clock().advance(Duration::from_secs(40));
    assert_eq!(queue.advance(), Next::Idle);
    drop(tasks);
}

#[test]
fn with_no_room_to_wait_a_request_for_zero_permits_does_not_wait_either() {
    let queue = queue(Concurrency::new(1), 0);
    let _held = now(queue.acquire(1)).unwrap();
    assert!(Task::new(queue.acquire(0)).poll().is_ready(), "it waits");
}

#[test]
fn metadata_of_the_inner_limiter_are_offered() {
    use portcullis_core::metadata::Name;
    const LANE: Name<u32> = Name::new("LANE");
    struct Named;
    impl Limiter for Named {
        fn decide(&self, ask: Ask<'_>) -> Answer {
            if ask.is_look() {
                return ask.looked(self.available_at(ask.now()), || u64::MAX);
            }
            Answer::Granted(Receipt::NONE)
        }

        fn give_back(&self, _: Back<'_>) -> Returned {
            Returned::NOTHING
        }

        fn read(&self, mut read: Read<'_>) -> Reading {
            read.offer(LANE, || 7);
            Reading {
                available: 9,
                capacity: u64::MAX,
                idle: Idle::InUse,
                held: 0,
            }
        }

        fn retry(&self, _: Denied) -> Retry {
            Retry::Never
        }
    }

    impl QueueLimiter for Named {
        const SHARED: bool = false;
    }
    let queue = queue(Named, 9);
    assert_eq!(LANE.of_granted(&queue, Timestamp::ZERO), Some(7));
}

/// In a composition too, the limit that denies gives the reason.
#[test]
fn a_rejected_wait_can_ask_for_the_reason_and_the_metadata_of_the_limit_that_denies() {
    use portcullis_core::metadata::{Name, REASON_PHRASE, RETRY_AFTER};
    use portcullis_core::{AllOf, Unlimited};
    const TENANT: Name<u32> = Name::new("com.example.TENANT");

    struct Banned;
    impl Limiter for Banned {
        fn decide(&self, ask: Ask<'_>) -> Answer {
            let (now, permits) = (ask.now(), ask.permits());
            if ask.is_look() {
                return Answer::Denied(Denied::Refused { now, permits });
            }
            Answer::Denied(Denied::Refused { now, permits })
        }

        fn give_back(&self, _: Back<'_>) -> Returned {
            Returned::NOTHING
        }

        fn read(&self, mut read: Read<'_>) -> Reading {
            let denied = read.denied();
            if denied.is_some() {
                read.offer(TENANT, || 7);
                read.offer(REASON_PHRASE, || "banned");
            }
            Reading {
                available: 9,
                capacity: u64::MAX,
                idle: Idle::InUse,
                held: 0,
            }
        }

        fn retry(&self, _: Denied) -> Retry {
            Retry::After(Duration::from_secs(3))
        }
    }
    impl QueueLimiter for Banned {
        const SHARED: bool = false;
    }

    let at = Timestamp::ZERO;
    let limits = AllOf::new((Concurrency::new(5), Unlimited, Banned));
    let queue = queue(limits, 0);
    let rejected = now(queue.acquire(1)).unwrap_err();
    assert!(matches!(rejected, Rejected::Refused { .. }), "{rejected:?}");
    let denied = rejected.denied(at);
    let permits = 1;
    assert_eq!(denied, Denied::Refused { now: at, permits });
    assert_eq!(TENANT.of_denied(&queue, at, denied), Some(7));
    assert_eq!(REASON_PHRASE.of_denied(&queue, at, denied), Some("banned"));
    let later = Retry::After(Duration::from_secs(3));
    assert_eq!(RETRY_AFTER.of_denied(&queue, at, denied), Some(later));
    assert_eq!(rejected.retry(), later);
}

#[test]
fn a_limiter_that_panicked_once_leaves_no_waiter_bit_behind() {
    struct Once(Concurrency, AtomicU32);
    impl Limiter for Once {
        fn decide(&self, ask: Ask<'_>) -> Answer {
            let (now, n) = (ask.now(), ask.permits());
            if ask.is_look() {
                return ask.looked(self.available_at(now), || u64::MAX);
            }
            assert_ne!(self.1.fetch_add(1, Ordering::Relaxed), 2, "a limiter");
            self.0.take_at(now, n).into()
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
            self.0.read(read)
        }
        fn retry(&self, denied: Denied) -> Retry {
            Limiter::retry(&self.0, denied)
        }
    }

    impl QueueLimiter for Once {
        const SHARED: bool = false;
    }
    let queue = queue(Once(Concurrency::new(2), AtomicU32::new(0)), 9);
    let _held = now(queue.acquire(1)).unwrap();
    // Denied by the first look (the second call); the second look panics.
    let mut two = Task::new(queue.acquire(2));
    assert!(catch_unwind(AssertUnwindSafe(|| two.poll())).is_err());
    drop(two);
    assert!(
        queue.try_acquire_at(Timestamp::ZERO, 1).is_ok(),
        "one is free, and there is no waiter"
    );
}

/// A refund is too small for a grant, but moves the instant earlier.
#[test]
fn a_thread_is_woken_when_its_own_instant_becomes_earlier() {
    let bucket = TokenBucket::new(Rate::per_second(1_000), 120_000);
    let queue = Arc::new(Queue::new(bucket, NoTimer(MonotonicClock::new()), 130_000));
    let mut held = now(queue.acquire(120_000)).unwrap();
    let started = Instant::now();
    let thread = std::thread::spawn({
        let queue = Arc::clone(&queue);
        // Fits after 120 s, and after the refund 119.7 s earlier.
        move || queue.blocking_acquire(120_000).map(drop)
    });
    while queue.counts().waiters < 1 {
        std::thread::yield_now();
    }
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(held.refund_at(queue.clock().now(), 119_700), Ok(119_700));
    thread.join().unwrap().unwrap();
    let waited = started.elapsed();
    assert!(
        waited < Duration::from_mins(1),
        "it fits after 300 ms, and was granted after {waited:?}"
    );
}

/// Nor permits already taken for a waiter when the waker of another one is called.
#[test]
fn a_grant_is_not_lost_when_the_waker_of_another_panics() {
    let limit = FreesOnDenial::new(3, false);
    let frees = Arc::clone(&limit.frees);
    let queue = Queue::with_lock(limit, ManualClock::new(), 9, Watched::new())
        .with_order(Order::NewestFirst);
    let queue: &'static _ = support::leaked(Box::new(queue));
    now(queue.acquire(1)).unwrap().forget();
    let two = now(queue.acquire(2)).unwrap();
    let mut old = Task::new(queue.acquire(2));
    assert!(old.poll_with(&waker(|| panic!("a waker"))).is_pending());
    frees.store(true, Ordering::Relaxed);
    let mut new = Task::new(queue.acquire(1));
    // Before the release: the first look denies (and frees one), the second look, inside the lock,
    // takes it.
    Watched::before_unlock(move || drop(two));
    assert!(catch_unwind(AssertUnwindSafe(|| drop(new.poll()))).is_err());
    drop(new);
    drop(old);
    assert_eq!(queue.available_at(Timestamp::ZERO), 3);
}

/// With a critical section that admits its own context again.
#[cfg(feature = "critical-section")]
#[test]
fn the_interrupt_lock_does_not_admit_its_holder_twice() {
    use core::sync::atomic::AtomicBool;
    use portcullis_async::InterruptLock;
    type Again = Queue<Uses, ManualClock, InterruptLock>;
    struct Uses(
        Concurrency,
        Arc<AtomicBool>,
        std::sync::OnceLock<&'static Again>,
    );
    impl Limiter for Uses {
        fn decide(&self, ask: Ask<'_>) -> Answer {
            let (now, n) = (ask.now(), ask.permits());
            if ask.is_look() {
                return ask.looked(self.available_at(now), || u64::MAX);
            }
            if self.1.swap(false, Ordering::Relaxed) {
                let _ = catch_unwind(AssertUnwindSafe(|| self.2.get().unwrap().advance()));
            }
            self.0.take_at(now, n).into()
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
            self.0.read(read)
        }
        fn retry(&self, denied: Denied) -> Retry {
            Limiter::retry(&self.0, denied)
        }
    }

    impl QueueLimiter for Uses {
        const SHARED: bool = false;
    }
    let armed = Arc::new(AtomicBool::new(false));
    let limit = Uses(
        Concurrency::new(2),
        Arc::clone(&armed),
        std::sync::OnceLock::new(),
    );
    let queue: &'static Again = support::leaked(Box::new(Queue::with_lock(
        limit,
        ManualClock::new(),
        9,
        InterruptLock::new(),
    )));
    queue
        .change(|limit| limit.2.set(queue).map_err(drop))
        .unwrap();
    let held = now(queue.acquire(2)).unwrap();
    let wait = Task::waiting(queue.acquire(1));
    armed.store(true, Ordering::Relaxed);
    // Grants the only waiter once.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(held)));
    let counts = queue.counts();
    assert_eq!((counts.granted, counts.waiters), (1, 0));
    drop(wait);
    assert_eq!(queue.available_at(Timestamp::ZERO), 2);
}
