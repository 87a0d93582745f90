//! Panics of wakers, clocks, limiters and timers: what they leave behind.

mod support;

use core::future::Future;
use core::panic::AssertUnwindSafe;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::panic::catch_unwind;
use std::sync::{Arc, Mutex};

use portcullis_async::{Acquire, NoTimer, Order, Queue, ReentrantTimer, Timer};
use portcullis_core::limiter::{Answer, Ask, Back, Read, Reading, Returned};
use portcullis_core::queue::QueueLimiter;
use portcullis_core::{
    AllOf, Clock, Concurrency, Denied, Lease, Limiter, Rate, Retry, Timestamp, TokenBucket,
};
use support::{Hand, START, Task, available, now, permits, queue, waker};

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

fn panics<T>(work: impl FnOnce() -> T) -> bool {
    catch_unwind(AssertUnwindSafe(work)).is_err()
}

/// Panics on request, as often as it was set to.
#[derive(Clone, Default)]
struct Fuse(Arc<AtomicUsize>);

impl Fuse {
    fn light(&self, times: usize) {
        self.0.store(times, Ordering::Relaxed);
    }

    fn burn(&self, what: &str) {
        let burns = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                left.checked_sub(1)
            });
        assert!(burns.is_err(), "{what}");
    }
}

/// A timer with a manual clock, whose clock and alarm panic on request.
#[derive(Default)]
struct Faulty {
    hand: Hand,
    clock: Fuse,
    alarm: Fuse,
}

impl Clock for Faulty {
    fn now(&self) -> Timestamp {
        self.clock.burn("a clock");
        self.hand.now()
    }
}

impl ReentrantTimer for Faulty {}

impl Timer for Faulty {
    fn wake_at(&self, at: Timestamp, waker: &Waker) -> Poll<()> {
        self.alarm.burn("an alarm");
        self.hand.wake_at(at, waker)
    }
}

/// A wait with a waker that panics.
fn panicking<F: Future>(future: F) -> Task<F> {
    let mut task = Task::new(future);
    assert!(task.poll_with(&waker(|| panic!("a waker"))).is_pending());
    task
}

/// A panic's payload that panics in turn.
struct Spite;

impl Drop for Spite {
    fn drop(&mut self) {
        panic!("spite");
    }
}

mod waits_for_all {
    use super::*;

    /// The poll links the wait, grants pending releases, and runs a waker that panics.
    #[test]
    fn a_drained_future_whose_poll_unwinds_leaves_the_queue_when_it_is_dropped() {
        let queue = queue(Concurrency::new(2), 9);
        let [one, other] = [(); 2].map(|()| queue.try_acquire(1).unwrap());
        let wait = panicking(queue.acquire(1));
        Queue::release_later(one);
        let kept = Arc::new(());
        let noted = {
            let kept = Arc::clone(&kept);
            waker(move || drop(Arc::clone(&kept)))
        };
        let mut drained = Box::pin(queue.drained());
        let mut context = Context::from_waker(&noted);
        assert!(panics(|| drained.as_mut().poll(&mut context)));
        drop(drained);
        drop(noted);
        assert_eq!(
            Arc::strong_count(&kept),
            1,
            "the queue keeps no clone of the waker"
        );
        drop(other);
        assert_eq!(permits(wait.outcome()), Ok(1));
        assert_eq!(available(&queue), 2);
    }

    #[test]
    fn a_drained_future_whose_poll_unwinds_can_be_polled_again() {
        let queue = queue(Concurrency::new(2), 9);
        let [one, other] = [(); 2].map(|()| queue.try_acquire(1).unwrap());
        let wait = panicking(queue.acquire(1));
        Queue::release_later(one);
        let mut drained = Task::new(queue.drained());
        assert!(panics(|| drained.poll()));
        assert!(drained.is_pending());
        drop(other);
        drop(wait.outcome());
        assert!(drained.wakes() > 0);
        drained.outcome();
    }
}

mod wakers {
    use super::*;

    #[test]
    fn all_wakers_of_a_batch_may_panic() {
        for many in [2, 16, 17, 100] {
            let queue = queue(Concurrency::new(many + 1), 999);
            let held = now(queue.acquire(many + 1)).unwrap();
            let panicking: Vec<_> = (0..many).map(|_| panicking(queue.acquire(1))).collect();
            let last = Task::waiting(queue.acquire(1));
            assert!(panics(|| drop(held)), "the releaser gets the panic");
            assert_eq!((last.wakes(), queue.counts().waiters), (1, 0), "{many}");
            assert!(
                panicking
                    .into_iter()
                    .all(|wait| permits(wait.outcome()) == Ok(1))
            );
            drop(last);
            assert_eq!(available(&queue), u64::from(many + 1));
        }
    }

    /// A second panic would abort the process.
    #[test]
    fn a_waker_may_panic_while_another_panic_unwinds() {
        let queue = queue(Concurrency::new(2), 9);
        let held = now(queue.acquire(2)).unwrap();
        let waits = [1, 2].map(|n| panicking(queue.acquire(n)));
        let unwinds = panics(|| {
            let _held = held;
            panic!("the task's own panic");
        });
        assert!(unwinds);
        let [one, two] = waits;
        assert!(panics(|| panic_while_dropping(one)));
        assert_eq!(permits(two.outcome()), Ok(2));
        assert_eq!(available(&queue), 2);
    }

    fn panic_while_dropping<T>(_dropped: T) {
        panic!("the task's own panic");
    }

    #[test]
    fn a_payload_that_panics_in_its_drop_does_no_harm() {
        let queue = queue(Concurrency::new(3), 9);
        let held = now(queue.acquire(3)).unwrap();
        let waits = [(); 3].map(|()| {
            let mut task = Task::new(queue.acquire(1));
            assert!(
                task.poll_with(&waker(|| std::panic::panic_any(Spite)))
                    .is_pending()
            );
            task
        });
        let payload = catch_unwind(AssertUnwindSafe(|| drop(held))).unwrap_err();
        assert!(panics(|| drop(payload)), "the first one propagates");
        assert!(
            waits
                .into_iter()
                .all(|wait| permits(wait.outcome()) == Ok(1))
        );
    }
}

mod a_grant_that_is_not_claimed {
    use super::*;

    /// Panics at its nth reading from now on, once.
    #[derive(Default)]
    struct Nth(Hand, AtomicUsize);

    impl Clock for Nth {
        fn now(&self) -> Timestamp {
            let left = self.1.load(Ordering::Relaxed);
            self.1.store(left.saturating_sub(1), Ordering::Relaxed);
            assert!(left != 1, "a clock");
            self.0.now()
        }
    }

    impl ReentrantTimer for Nth {}

    impl Timer for Nth {
        fn wake_at(&self, at: Timestamp, waker: &Waker) -> Poll<()> {
            self.0.wake_at(at, waker)
        }
    }

    /// A part of a range may be denied and refunded, so the others are served after the grant.
    #[test]
    fn of_a_range_comes_back_whenever_the_clock_panics() {
        let mut panicked = 0;
        for nth in 1..9 {
            let limits = AllOf::new((Concurrency::new(9), Concurrency::new(2)));
            let queue = Queue::new(limits, Nth::default(), 9);
            let held = queue.try_acquire(1).unwrap();
            let drains = Task::waiting(queue.drained());
            queue.clock().1.store(nth, Ordering::Relaxed);
            let granted = catch_unwind(AssertUnwindSafe(|| now(queue.acquire(0).up_to(5))));
            queue.clock().1.store(0, Ordering::Relaxed);
            panicked += usize::from(granted.is_err());
            drop(granted);
            drop(held);
            assert_eq!(available(&queue), 2, "a panic of reading {nth}");
            assert_eq!(drains.wakes(), 1);
        }
        assert!(panicked >= 2, "{panicked}");
    }

    /// The time of the refund is read where a panic costs nothing.
    #[test]
    fn comes_back_though_the_clock_panics() {
        type Faults = Queue<Concurrency, Faulty>;
        let queue: Faults = Queue::new(Concurrency::new(1), Faulty::default(), 9);
        let held = queue.try_acquire(1).unwrap();
        let granted = Task::waiting(queue.acquire(1));
        drop(held);
        queue.clock().clock.light(1);
        let _ = panics(|| drop(granted));
        queue.clock().clock.light(0);
        assert_eq!(queue.available(), 1);
    }

    #[test]
    fn goes_to_the_next_waiter_though_the_clock_panics() {
        type Faults = Queue<TokenBucket, Faulty>;
        let queue: Faults = Queue::new(bucket(1), Faulty::default(), 9);
        let granted = Task::waiting(queue.acquire(1));
        let next = Task::waiting(queue.acquire(1));
        queue.clock().hand.jump(secs(1));
        queue.advance();
        queue.clock().clock.light(1);
        let _ = panics(|| drop(granted));
        queue.clock().clock.light(0);
        queue.advance();
        assert_eq!(permits(next.outcome()), Ok(1));
    }
}

mod time {
    use super::*;

    type Faults = Arc<Queue<TokenBucket, Faulty>>;

    /// An attended queue at one token per second, with two waiters; the first one's waker panics.
    fn attended() -> (Faults, [Task<Acquire<Faults>>; 2]) {
        let queue = Arc::new(Queue::new(bucket(5), Faulty::default(), 9));
        queue.attend_shared();
        let first = panicking(Acquire::new(Arc::clone(&queue), 1));
        let second = Task::waiting(Acquire::new(Arc::clone(&queue), 1));
        (queue, [first, second])
    }

    #[test]
    fn goes_on_after_a_waker_that_panics() {
        let (queue, [first, second]) = attended();
        let _ = panics(|| queue.clock().hand.jump(secs(1)));
        assert_eq!(queue.clock().hand.alarm(), Some(secs(2)));
        queue.clock().hand.jump(secs(2));
        assert_eq!(
            (permits(first.outcome()), permits(second.outcome())),
            (Ok(1), Ok(1))
        );
    }

    #[test]
    fn goes_on_after_an_alarm_that_fails_once() {
        let (queue, [first, second]) = attended();
        queue.clock().alarm.light(1);
        let _ = panics(|| queue.clock().hand.jump(secs(1)));
        assert_eq!(queue.clock().hand.alarm(), Some(secs(2)));
        queue.clock().hand.jump(secs(2));
        assert_eq!(
            (permits(first.outcome()), permits(second.outcome())),
            (Ok(1), Ok(1))
        );
    }

    #[test]
    fn goes_on_with_the_next_call_after_an_alarm_that_always_fails() {
        let (queue, [first, second]) = attended();
        queue.clock().alarm.light(usize::MAX);
        let _ = panics(|| queue.clock().hand.jump(secs(1)));
        queue.clock().alarm.light(0);
        assert_eq!(queue.clock().hand.alarm(), None);
        let _ = queue.counts();
        assert_eq!(queue.clock().hand.alarm(), Some(secs(2)));
        queue.clock().hand.jump(secs(2));
        assert_eq!(
            (permits(first.outcome()), permits(second.outcome())),
            (Ok(1), Ok(1))
        );
    }

    #[test]
    fn goes_on_after_a_clock_that_panics_once() {
        let (queue, [first, second]) = attended();
        queue.clock().clock.light(1);
        let _ = panics(|| queue.clock().hand.jump(secs(1)));
        assert_eq!(queue.clock().hand.alarm(), Some(secs(2)));
        queue.clock().hand.jump(secs(2));
        assert_eq!(
            (permits(first.outcome()), permits(second.outcome())),
            (Ok(1), Ok(1))
        );
    }

    /// The head then has no timer, unless another call arms one.
    #[test]
    fn goes_on_after_a_limiter_that_panics() {
        struct Panics(TokenBucket, Fuse);
        impl Limiter for Panics {
            fn decide(&self, ask: Ask<'_>) -> Answer {
                let (now, n) = (ask.now(), ask.permits());
                if ask.is_look() {
                    return ask.looked(self.available_at(now), || u64::MAX);
                }
                self.1.burn("a limiter");
                self.0.take_at(now, n).into()
            }

            fn give_back(&self, _: Back<'_>) -> Returned {
                Returned::NOTHING
            }

            fn read(&self, read: Read<'_>) -> Reading {
                self.0.read(read)
            }

            fn retry(&self, denied: Denied) -> Retry {
                self.0.retry(denied)
            }
        }

        impl QueueLimiter for Panics {
            const SHARED: bool = false;
        }
        for times in [1, 2, 5] {
            let fuse = Fuse::default();
            let limiter = Panics(bucket(5), fuse.clone());
            let queue = Arc::new(Queue::new(limiter, Hand::new(), 9));
            queue.attend_shared();
            let waits = [(); 2].map(|()| Task::waiting(Acquire::new(Arc::clone(&queue), 1)));
            fuse.light(times);
            // Only the timer calls the queue.
            for _ in 0..50 {
                let Some(at) = queue.clock().alarm() else {
                    break;
                };
                let _ = panics(|| queue.clock().jump(at));
            }
            assert_eq!(waits.map(|wait| wait.wakes()), [1, 1], "{times}");
        }
    }

    /// A timer that runs other code before it arms an alarm, and panics after it.
    #[derive(Default)]
    struct Interrupted {
        hand: Hand,
        meanwhile: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    }

    impl Clock for Interrupted {
        fn now(&self) -> Timestamp {
            self.hand.now()
        }
    }

    impl Timer for Interrupted {
        fn wake_at(&self, at: Timestamp, waker: &Waker) -> Poll<()> {
            let meanwhile = self.meanwhile.lock().unwrap().take();
            let Some(meanwhile) = meanwhile else {
                return self.hand.wake_at(at, waker);
            };
            meanwhile();
            let _ = self.hand.wake_at(at, waker);
            panic!("after it is armed");
        }
    }

    #[test]
    fn goes_on_after_an_alarm_that_is_set_too_late_and_panics() {
        let queue = Queue::new(bucket(5), Interrupted::default(), 5);
        let queue = Arc::new(queue.with_order(Order::NewestFirst));
        let next = Arc::new(Mutex::new(None));
        let meanwhile = {
            let (queue, next) = (Arc::clone(&queue), Arc::clone(&next));
            move || {
                // It evicts the one whose alarm is about to be set.
                let wait = Task::waiting(Acquire::new(queue, 4));
                *next.lock().unwrap() = Some(wait);
            }
        };
        *queue.clock().meanwhile.lock().unwrap() = Some(Box::new(meanwhile));
        let mut first = Task::new(Acquire::new(Arc::clone(&queue), 5));
        assert!(panics(|| first.poll()));
        assert_eq!(queue.counts().evicted, 1);
        let mut next = next.lock().unwrap().take().expect("it waits");
        assert_eq!(next.wakes(), 1, "to set the alarm once more");
        assert!(next.is_pending());
        assert_eq!(queue.clock().hand.alarm(), Some(secs(4)));
        queue.clock().hand.jump(secs(4));
        assert_eq!(permits(next.outcome()), Ok(4));
    }

    #[test]
    fn goes_on_by_another_task_when_a_driver_unwinds() {
        let queue: Queue<_, Faulty> = Queue::new(bucket(5), Faulty::default(), 9);
        let mut one = Task::waiting(queue.drive());
        let mut other = Task::waiting(queue.drive());
        let wait = Task::waiting(queue.acquire(1));
        assert_eq!((one.wakes(), other.wakes()), (0, 1));
        queue.clock().alarm.light(2);
        assert!(panics(|| other.poll()));
        assert_eq!(one.wakes(), 1, "though the other driver is not dropped");
        assert!(one.is_pending());
        assert_eq!(queue.clock().hand.alarm(), Some(secs(1)));
        drop(other);
        assert!(one.is_pending());
        queue.clock().hand.jump(secs(1));
        assert!(one.is_pending());
        assert_eq!(permits(wait.outcome()), Ok(1));
    }

    #[test]
    fn goes_on_by_another_task_when_the_waker_of_a_driver_panics() {
        let queue: Queue<_, Hand> = Queue::new(bucket(5), Hand::new(), 9);
        let other = Task::waiting(queue.drive());
        let _driver = panicking(queue.drive());
        let mut wait = Task::new(queue.acquire(1));
        let _ = panics(|| wait.poll());
        assert_eq!(other.wakes(), 1);
    }

    /// With each of the timers that have threads and tasks of their own.
    mod of_each_timer {
        use super::*;

        fn goes_on<C: ReentrantTimer + Send + Sync + 'static>(timer: C) {
            let rate = TokenBucket::builder(Rate::per_second(50), 1)
                .initial(0)
                .origin(timer.now())
                .build()
                .unwrap();
            let queue = Arc::new(Queue::new(rate, timer, 9));
            queue.attend_shared();
            let panicking: Vec<_> = (0..3)
                .map(|_| panicking(Acquire::new(Arc::clone(&queue), 1)))
                .collect();
            let wait = Acquire::new(Arc::clone(&queue), 1);
            let (say, hear) = std::sync::mpsc::channel();
            std::thread::spawn(move || say.send(permits(futures_executor::block_on(wait))));
            assert_eq!(
                hear.recv_timeout(Duration::from_secs(20)),
                Ok(Ok(1)),
                "the timer has stopped"
            );
            assert!(
                panicking
                    .into_iter()
                    .all(|wait| permits(wait.outcome()) == Ok(1))
            );
        }

        #[test]
        fn a_thread() {
            goes_on(portcullis_async::ThreadTimer::new());
        }

        #[cfg(feature = "async-io")]
        #[test]
        fn async_io() {
            goes_on(portcullis_async::AsyncIoTimer::new());
        }

        #[cfg(feature = "tokio")]
        #[test]
        fn tokio() {
            let runtime = ::tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_time()
                .build()
                .unwrap();
            goes_on(portcullis_async::TokioTimer::of(runtime.handle().clone()));
        }

        /// One thread for the whole process.
        #[test]
        fn a_thread_shared_with_other_queues() {
            let others = Arc::new(Queue::new(
                bucket(1),
                portcullis_async::ThreadTimer::new(),
                9,
            ));
            let spiteful = waker(|| std::panic::panic_any(Spite));
            let soon = others
                .clock()
                .now()
                .saturating_add(Duration::from_millis(5));
            assert!(others.clock().wake_at(soon, &spiteful).is_pending());
            std::thread::sleep(Duration::from_millis(20));
            goes_on(portcullis_async::ThreadTimer::new());
        }
    }
}

mod threads {
    use super::*;
    use std::sync::mpsc;

    #[derive(Clone)]
    struct Shared(Arc<Faulty>, Arc<std::time::Instant>);
    impl Clock for Shared {
        fn now(&self) -> Timestamp {
            self.0.clock.burn("a clock");
            START.saturating_add(self.1.elapsed())
        }
    }

    /// It drove, or was about to.
    #[test]
    fn when_a_driving_thread_unwinds_the_next_one_drives() {
        let timer = Arc::new(Faulty::default());
        let clock = Shared(Arc::clone(&timer), Arc::new(std::time::Instant::now()));
        let rate = TokenBucket::builder(Rate::per_second(20), 1)
            .initial(0)
            .build()
            .unwrap();
        let queue = Arc::new(Queue::new(rate, NoTimer(clock), 9));
        for burns in 1..6 {
            let (say, hear) = mpsc::channel();
            let first = loop {
                let queue_of_first = Arc::clone(&queue);
                let first = std::thread::spawn(move || drop(queue_of_first.blocking_acquire(1)));
                while queue.counts().waiters == 0 && !first.is_finished() {
                    std::thread::yield_now();
                }
                // In the queue, and asleep or about to be. On a slow machine it may have been
                // granted its permit without a wait that was seen.
                if queue.counts().waiters > 0 {
                    break first;
                }
            };
            std::thread::sleep(Duration::from_millis(burns as u64));
            timer.clock.light(burns);
            _ = first.join();
            timer.clock.light(0);
            let second = Arc::clone(&queue);
            std::thread::spawn(move || say.send(permits(second.blocking_acquire(1))));
            assert_eq!(
                hear.recv_timeout(Duration::from_secs(20)),
                Ok(Ok(1)),
                "it sleeps, or has panicked"
            );
        }
        assert_eq!(queue.counts().waiters, 0);
    }
}

/// A limiter that calls back into the queue that asks it would wait for itself.
mod a_limiter_that_uses_its_own_queue {
    use super::*;
    use std::sync::OnceLock;

    type Again = Queue<Uses, Hand>;

    /// What it does when it is first asked.
    struct Uses(
        Concurrency,
        Fuse,
        fn(&'static Again),
        OnceLock<&'static Again>,
    );

    impl Limiter for Uses {
        fn decide(&self, ask: Ask<'_>) -> Answer {
            let (now, n) = (ask.now(), ask.permits());
            if ask.is_look() {
                return ask.looked(self.available_at(now), || u64::MAX);
            }
            if panics(|| self.1.burn("its turn")) {
                (self.2)(self.3.get().unwrap());
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

    #[test]
    fn panics_instead_of_waiting_for_itself() {
        let uses: [fn(&'static Again); 4] = [
            |queue| _ = queue.advance(),
            |queue| _ = queue.counts(),
            |queue| queue.close(),
            |queue| _ = Task::new(queue.acquire(1).up_to(3)).poll(),
        ];
        for uses in uses {
            let limiter = Uses(Concurrency::new(2), Fuse::default(), uses, OnceLock::new());
            let queue: &'static Again = support::leaked(Box::new(queue(limiter, 9)));
            let fuse = queue.change(|limiter| {
                limiter.3.set(queue).map_err(drop).unwrap();
                limiter.1.clone()
            });
            let held = now(queue.acquire(2)).unwrap();
            let wait = Task::waiting(queue.acquire(1));
            let (say, hear) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                fuse.light(1);
                say.send(panics(|| drop(held)))
            });
            assert_eq!(
                hear.recv_timeout(Duration::from_secs(20)),
                Ok(true),
                "it would wait for itself"
            );
            assert_eq!(
                (queue.counts().waiters, permits(wait.outcome())),
                (0, Ok(1))
            );
        }
    }

    #[test]
    fn may_release() {
        static MORE: std::sync::Mutex<Vec<Lease<&'static Again>>> =
            std::sync::Mutex::new(Vec::new());
        let releases: fn(&'static Again) = |_| MORE.lock().unwrap().clear();
        let limiter = Uses(
            Concurrency::new(3),
            Fuse::default(),
            releases,
            OnceLock::new(),
        );
        let queue: &'static Again = support::leaked(Box::new(queue(limiter, 9)));
        let fuse = queue.change(|limiter| {
            limiter.3.set(queue).map_err(drop).unwrap();
            limiter.1.clone()
        });
        MORE.lock().unwrap().push(now(queue.acquire(1)).unwrap());
        let held = now(queue.acquire(2)).unwrap();
        let waits = [1, 2].map(|n| Task::waiting(queue.acquire(n)));
        fuse.light(1);
        drop(held);
        assert_eq!(waits.map(|wait| wait.wakes()), [1, 1]);
    }
}
