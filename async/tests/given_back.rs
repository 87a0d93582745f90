//! Releases and refunds while something panics: the permits are granted to the waiters, and no
//! permit, waker or pointer is lost.

mod support;

use core::cell::{Cell, RefCell};
use core::future::Future;
use core::mem::ManuallyDrop;
use core::panic::AssertUnwindSafe;
use core::pin::pin;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};
use std::panic::catch_unwind;
use std::rc::Rc;
use std::sync::Arc;

use portcullis_async::{Acquire, Next, NoTimer, Queue, ReentrantTimer, Rejected, Timer, Waited};
use portcullis_core::limiter::{Answer, Ask, Back, Idle, Read, Reading, Receipt, Returned};
use portcullis_core::queue::QueueLimiter;
use portcullis_core::{
    AllOf, Clock, Concurrency, Denied, Lease, Limiter, ManualClock, Rate, Retry, Timestamp,
    TokenBucket,
};
use support::{
    FreesOnDenial, Hand, START, Task, Watched, available, newest_first, now, permits, queue,
};

fn panics<T>(work: impl FnOnce() -> T) -> bool {
    catch_unwind(AssertUnwindSafe(work)).is_err()
}

/// Panics in the call with the given number.
#[derive(Default)]
struct Fuse(AtomicUsize);

impl Fuse {
    fn light(&self, call: usize) {
        self.0.store(call, Ordering::Relaxed);
    }

    fn burn(&self) {
        let left = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                left.checked_sub(1)
            });
        assert_ne!(left, Ok(1), "this call panics");
    }
}

#[derive(Default)]
struct FaultyClock(ManualClock, Fuse);

impl Clock for FaultyClock {
    fn now(&self) -> Timestamp {
        self.1.burn();
        self.0.now()
    }
}

/// Panics after it has released, and after it has taken.
struct Faulty(Concurrency, Arc<Fuse>);

impl Faulty {
    fn new(limit: u32) -> (Self, Arc<Fuse>) {
        let fuse = Arc::new(Fuse::default());
        (Self(Concurrency::new(limit), Arc::clone(&fuse)), fuse)
    }
}

impl Limiter for Faulty {
    fn decide(&self, ask: Ask<'_>) -> Answer {
        self.0.decide(ask)
    }

    fn give_back(&self, back: Back<'_>) -> Returned {
        match back {
            Back::Release { permits: n } => {
                Limiter::release(&self.0, n);
                self.1.burn();
                Returned::NOTHING
            }
            Back::Refund {
                now,
                permits: n,
                receipt,
                ..
            } => {
                let refunded = self.0.refund_at(now, n, receipt);
                self.1.burn();
                refunded.into()
            }
            _ => Returned::NOTHING,
        }
    }

    fn read(&self, read: Read<'_>) -> Reading {
        self.0.read(read)
    }

    fn retry(&self, denied: Denied) -> Retry {
        Limiter::retry(&self.0, denied)
    }
}

impl QueueLimiter for Faulty {
    const SHARED: bool = false;
}

/// One lease for each way to return permits, in which the limiter panics after the release.
#[test]
fn permits_released_by_a_limiter_that_then_panics_are_granted() {
    type Held<'q> = Lease<&'q Queue<Faulty, Hand>>;
    let ways: [fn(Held<'_>); 4] = [
        |lease| drop(lease),
        |mut lease| _ = lease.release(1),
        |mut lease| _ = lease.refund_at(START, 1),
        |lease| Queue::release_later(lease),
    ];
    for (number, way) in ways.into_iter().enumerate() {
        let (limiter, fuse) = Faulty::new(1);
        let queue = queue(limiter, 9);
        let held = now(queue.acquire(1)).unwrap();
        let wait = Task::waiting(queue.acquire(1));
        fuse.light(1);
        assert!(panics(|| way(held)), "way {number}");
        queue.advance();
        assert_eq!((wait.wakes(), available(&queue)), (1, 0), "way {number}");
    }
}

#[test]
fn permits_freed_by_a_change_that_then_panics_are_granted() {
    let queue = queue(Concurrency::new(1), 9);
    let _held = now(queue.acquire(1)).unwrap();
    let wait = Task::waiting(queue.acquire(1));
    let changed = panics(|| {
        queue.change(|limit| {
            limit.set_limit(2).unwrap();
            panic!("after the change");
        })
    });
    assert_eq!((changed, wait.wakes()), (true, 1));
}

#[test]
fn an_unclaimed_grant_goes_to_the_next_waiter_if_its_refund_panics() {
    let (limiter, fuse) = Faulty::new(1);
    let queue = queue(limiter, 9);
    let held = now(queue.acquire(1)).unwrap();
    let [first, second] = [(); 2].map(|()| Task::waiting(queue.acquire(1)));
    drop(held);
    assert_eq!(first.wakes(), 1);
    fuse.light(1);
    assert!(panics(|| drop(first)));
    assert_eq!(permits(second.outcome()), Ok(1));
}

#[test]
fn a_release_in_which_the_clock_panics_is_granted() {
    let queue: Queue<_, NoTimer<FaultyClock>> =
        Queue::new(Concurrency::new(2), NoTimer(FaultyClock::default()), 9);
    let held = now(queue.acquire(2)).unwrap();
    let wait = Task::waiting(queue.acquire(1));
    queue.clock().0.1.light(1);
    assert!(panics(|| drop(held)));
    queue.advance();
    assert_eq!((wait.wakes(), queue.available_at(START)), (1, 1));
}

#[test]
fn a_lease_refunds_its_own_permits_if_the_release_of_others_panics() {
    let (limiter, fuse) = Faulty::new(3);
    let mut lease = Lease::try_acquire_at(&limiter, START, 3).unwrap();
    // A part that was split off returns only by a release.
    let part = lease.split(1).unwrap();
    lease.merge(part).unwrap();
    fuse.light(1);
    assert!(panics(|| lease.refund_at(START, 3)));
    drop(lease);
    assert_eq!(limiter.available_at(START), 3);
}

/// A waker whose drop panics once, unless another panic is under way.
fn spiteful() -> ManuallyDrop<Waker> {
    const VTABLE: RawWakerVTable = RawWakerVTable::new(
        |data| RawWaker::new(data, &VTABLE),
        |_| {},
        |_| {},
        |_| {
            assert!(
                !IS_SPITEFUL.replace(false) || std::thread::panicking(),
                "a waker's drop"
            );
        },
    );
    thread_local! {
        static IS_SPITEFUL: Cell<bool> = const { Cell::new(false) };
    }
    IS_SPITEFUL.set(true);
    // SAFETY: nothing is behind the pointer.
    ManuallyDrop::new(unsafe { Waker::from_raw(RawWaker::new(core::ptr::null(), &VTABLE)) })
}

#[test]
fn a_permit_comes_back_if_the_waker_of_its_wait_panics_in_its_drop() {
    let queue = queue(FreesOnDenial::new(1, false), 9);
    now(queue.acquire(1)).unwrap().forget();
    queue.change(|limit| limit.frees.store(true, Ordering::Relaxed));
    {
        let mut wait = pin!(queue.acquire(1));
        let waker = spiteful();
        assert!(panics(|| wait
            .as_mut()
            .poll(&mut Context::from_waker(&waker))));
    }
    assert_eq!(available(&queue), 1);
}

#[test]
fn a_waker_is_dropped_outside_the_lock_even_if_the_clock_panics() {
    static UNDER_THE_LOCK: AtomicUsize = AtomicUsize::new(0);
    const VTABLE: RawWakerVTable = RawWakerVTable::new(
        |data| RawWaker::new(data, &VTABLE),
        |_| {},
        |_| {},
        |_| _ = UNDER_THE_LOCK.fetch_add(Watched::is_held().into(), Ordering::Relaxed),
    );
    let queue: Queue<_, NoTimer<FaultyClock>, Watched> = Queue::with_lock(
        Concurrency::new(1),
        NoTimer(FaultyClock::default()),
        9,
        Watched::new(),
    );
    // With a hook, queueing reads the clock.
    let queue = queue.with_hook(|_: &Waited| ());
    let _held = now(queue.acquire(1)).unwrap();
    let _head = Task::waiting(queue.acquire(1));
    let mut burnt = 0;
    for call in 1..9 {
        // SAFETY: nothing is behind the pointer.
        let waker = unsafe { Waker::from_raw(RawWaker::new(core::ptr::null(), &VTABLE)) };
        let mut wait = Task::new(queue.acquire(1));
        queue.clock().0.1.light(call);
        burnt += usize::from(panics(|| wait.poll_with(&waker)));
        queue.clock().0.1.light(0);
    }
    assert_ne!(burnt, 0);
    assert_eq!(UNDER_THE_LOCK.load(Ordering::Relaxed), 0);
}

#[test]
fn a_lease_that_is_released_later_leaves_no_pointer_if_the_limiter_panics() {
    let (limiter, fuse) = Faulty::new(1);
    let queue = Arc::new(queue(limiter, 9));
    let held = now(Acquire::new(Arc::clone(&queue), 1)).unwrap();
    fuse.light(1);
    assert!(panics(|| Queue::release_later(held)));
    assert_eq!((Arc::strong_count(&queue), available(&queue)), (1, 1));
}

/// A timer that fails to arm in the call with the given number.
#[derive(Default)]
struct FaultyTimer(Hand, Fuse, Fuse);

impl Clock for FaultyTimer {
    fn now(&self) -> Timestamp {
        self.2.burn();
        self.0.now()
    }
}

impl ReentrantTimer for FaultyTimer {}

impl Timer for FaultyTimer {
    fn wake_at(&self, at: Timestamp, waker: &Waker) -> Poll<()> {
        self.1.burn();
        self.0.wake_at(at, waker)
    }
}

/// A bucket of one token per second, empty at first.
fn bucket() -> TokenBucket {
    TokenBucket::builder(Rate::per_second(1), 5)
        .initial(0)
        .build()
        .unwrap()
}

#[test]
fn beside_a_queue_that_cannot_arm_its_timer_a_driver_drives() {
    struct Twice(Hand, AtomicUsize);
    impl Clock for Twice {
        fn now(&self) -> Timestamp {
            self.0.now()
        }
    }
    impl ReentrantTimer for Twice {}

    impl Timer for Twice {
        fn wake_at(&self, at: Timestamp, waker: &Waker) -> Poll<()> {
            let left = self
                .1
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                    left.checked_sub(1)
                });
            assert!(left.is_err(), "a timer");
            self.0.wake_at(at, waker)
        }
    }
    let queue = Arc::new(Queue::new(
        bucket(),
        Twice(Hand::new(), AtomicUsize::new(0)),
        9,
    ));
    let mut driver = Task::waiting(queue.drive());
    queue.attend_shared();
    // It tries twice.
    queue.clock().1.store(2, Ordering::Relaxed);
    let mut wait = Task::new(queue.acquire(1));
    assert!(panics(|| wait.poll()));
    drop(wait);
    let wait = Task::waiting(queue.acquire(1));
    assert!(driver.is_pending());
    assert_eq!(queue.clock().0.alarm(), Some(Timestamp::from_secs(1)));
    queue.clock().0.jump(Timestamp::from_secs(1));
    assert!(driver.is_pending());
    assert_eq!(wait.wakes(), 1);
}

#[test]
fn a_close_in_which_the_clock_panics_wakes_all_drivers() {
    let queue: Queue<_, FaultyTimer> = Queue::new(bucket(), FaultyTimer::default(), 9);
    let wait = Task::waiting(queue.acquire(1));
    let drivers = [(); 20].map(|()| Task::waiting(queue.drive()));
    queue.clock().2.light(1);
    assert!(panics(|| queue.close()));
    assert!(drivers.iter().all(|driver| driver.wakes() == 1));
    drivers.into_iter().for_each(Task::outcome);
    assert_eq!(
        (permits(wait.outcome()), queue.advance()),
        (Err(Rejected::Closed { permits: 1 }), Next::Idle)
    );
}

/// If the pending release were granted before the refund, it would change the bucket that the
/// refund is for.
#[test]
fn a_refund_of_a_composition_comes_before_pending_releases() {
    let bucket = TokenBucket::builder(Rate::per_second(1), 5)
        .initial(4)
        .build()
        .unwrap();
    let queue = newest_first(AllOf::new((bucket, Concurrency::new(2))), 9);
    let [one, other] = [(); 2].map(|()| now(queue.acquire(1)).unwrap());
    let [oldest, newest] = [(); 2].map(|()| Task::waiting(queue.acquire(1)));
    drop(one);
    assert_eq!((oldest.wakes(), newest.wakes()), (0, 1));
    Queue::release_later(other);
    drop(newest);
    assert_eq!(oldest.wakes(), 1);
    assert_eq!(
        queue.change(|all| all.limits().0.available_at(START)),
        1,
        "3 of 4 are taken"
    );
}

/// Denies once, after it has run a function in between.
#[derive(Default)]
struct Interrupted(RefCell<Option<Box<dyn FnOnce()>>>);

impl Limiter for Interrupted {
    fn decide(&self, ask: Ask<'_>) -> Answer {
        let (now, n) = (ask.now(), ask.permits());
        if ask.is_look() {
            return ask.granted(Receipt::NONE);
        }
        self.take(now, n).into()
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
        Retry::OnRelease
    }
}

impl Interrupted {
    fn take(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        let Some(work) = self.0.take() else {
            return Ok(Receipt::NONE);
        };
        work();
        Err(Denied::Exhausted { now, permits: n })
    }
}

impl QueueLimiter for Interrupted {
    const SHARED: bool = false;
}

type Composed = support::Manual<AllOf<(TokenBucket, Interrupted)>>;

/// Has a waiter come after `request` took from the first limit and before `then`, which is within
/// the second one. The permits that come back to the first limit are granted to the waiter.
fn comes_amid(then: fn(), request: impl FnOnce(&Composed)) {
    let bucket = TokenBucket::builder(Rate::per_second(1), 1)
        .build()
        .unwrap();
    let queue = Rc::new(queue(AllOf::new((bucket, Interrupted::default())), 9));
    let wait = Rc::new(RefCell::new(None));
    queue.change(|all| {
        let (queue, wait) = (Rc::clone(&queue), Rc::clone(&wait));
        let comes = move || {
            *wait.borrow_mut() = Some(Task::waiting(Acquire::new(queue, 1)));
            then();
        };
        *all.limits().1.0.borrow_mut() = Some(Box::new(comes));
    });
    request(&queue);
    let wait = wait.take().expect("the waiter came");
    assert_eq!(wait.wakes(), 1);
    assert_eq!(permits(wait.outcome()), Ok(1));
}

#[test]
fn a_waiter_that_came_while_a_composition_was_denied_is_granted() {
    comes_amid(|| (), |queue| assert!(queue.try_acquire(1).is_err()));
}

#[test]
fn a_waiter_that_came_before_a_limit_of_a_composition_panicked_is_granted() {
    let then = || panic!("the limit panics");
    comes_amid(then, |queue| {
        assert!(panics(|| queue.try_acquire(1).is_ok()));
    });
    comes_amid(then, |queue| {
        assert!(panics(|| now(queue.acquire(1)).is_ok()));
    });
}
