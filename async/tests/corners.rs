//! Guarantees that hold in one place each.

mod support;

use core::time::Duration;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use portcullis_async::{Acquire, KeyedQueue, NoTimer, Queue, Rejected, ThreadTimer, Timer};
use portcullis_core::keyed::{ConcurrencyRules, Line, Seed};
use portcullis_core::limiter::{Answer, Ask, Back, Read, Reading, Returned};
use portcullis_core::queue::QueueLimiter;
use portcullis_core::{Clock, Concurrency, Denied, Keyed, Lease, Limiter, MonotonicClock, Retry};
use support::{Hand, START, Shared, Task, available, now, permits, queue, waker};

/// Waiters are woken in batches, and wakers run between them: `uses` runs in the first one.
fn close_beside(many: usize, uses: fn(&Shared)) -> Shared {
    let queue: Shared = Arc::new(queue(Concurrency::new(1), 99));
    let held = Lease::try_acquire_at(Arc::clone(&queue), START, 1).unwrap();
    let mut first = Task::new(Acquire::new(Arc::clone(&queue), 1));
    let (of_waker, held) = (Arc::clone(&queue), Mutex::new(Some(held)));
    let uses = waker(move || {
        uses(&of_waker);
        drop(held.lock().unwrap().take());
    });
    assert!(first.poll_with(&uses).is_pending());
    drop(uses);
    let rest: Vec<_> = (1..many).map(|_| Task::waiting(queue.acquire(1))).collect();
    queue.close();
    let closed = Err(Rejected::Closed { permits: 1 });
    assert_eq!(permits(first.outcome()), closed, "{many}");
    assert!(
        rest.into_iter()
            .all(|wait| permits(wait.outcome()) == closed),
        "{many}"
    );
    assert_eq!((queue.counts().waiters, queue.counts().granted), (0, 0));
    queue
}

#[test]
fn while_a_queue_closes_no_waiter_is_granted() {
    for many in [1, 15, 16, 17, 40] {
        assert_eq!(available(&close_beside(many, |_| ())), 1, "{many}");
    }
}

#[test]
fn while_a_queue_closes_no_request_is_admitted() {
    for many in [1, 15, 16, 17, 40] {
        let queue = close_beside(many, |queue| {
            let mut wait = Task::new(Acquire::new(Arc::clone(queue), 1));
            let closed = Err(Rejected::Closed { permits: 1 });
            let core::task::Poll::Ready(outcome) = wait.poll() else {
                panic!("the request is admitted")
            };
            assert_eq!(permits(outcome), closed);
        });
        assert_eq!(available(&queue), 1, "{many}");
    }
}

#[test]
fn a_partial_request_takes_the_minimum_if_the_limiter_grants_less_than_it_reports() {
    /// Reports more than it grants at once.
    struct Boasts(Concurrency);
    impl Limiter for Boasts {
        fn decide(&self, ask: Ask<'_>) -> Answer {
            let (now, n) = (ask.now(), ask.permits());
            if ask.is_look() {
                return ask.looked(self.available_at(now), || u64::MAX);
            }
            Answer::from(if n > 2 {
                Err(Denied::Exhausted { now, permits: n })
            } else {
                self.0.take_at(now, n)
            })
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
    impl QueueLimiter for Boasts {
        const SHARED: bool = false;
    }

    let queue = queue(Boasts(Concurrency::new(9)), 99);
    let some = now(queue.acquire(2).up_to(9)).unwrap();
    assert_eq!(some.permits(), 2);
    drop(some);
    // The same after a wait.
    let held = [2, 2, 2, 2, 1].map(|n| now(queue.acquire(n)).unwrap());
    let wait = Task::waiting(queue.acquire(1).up_to(9));
    held.into_iter().for_each(Queue::release_later);
    let _ = queue.advance();
    assert_eq!(permits(wait.outcome()), Ok(1));
}

#[test]
fn a_cancelled_head_makes_way_for_waiters_that_fit() {
    let queue = queue(Concurrency::new(3), 99);
    let _held = now(queue.acquire(1)).unwrap();
    let head = Task::waiting(queue.acquire(3));
    let behind = [1, 1, 1].map(|n| Task::waiting(queue.acquire(n)));
    drop(head);
    assert_eq!(behind.each_ref().map(Task::wakes), [1, 1, 0]);
}

#[test]
fn permits_refunded_to_a_key_go_to_the_next_waiter_of_that_key() {
    let table = Keyed::new(ConcurrencyRules::new(2), Line::for_keys(100), Seed::new());
    let queue: KeyedQueue<_, Hand> = KeyedQueue::new(table, Hand::new(), 9);
    let mut held = now(queue.acquire("a", 2)).unwrap();
    let [one, other] = [1, 1].map(|n| Task::waiting(queue.acquire("a", n)));
    assert_eq!(held.refund_at(START, 1), Ok(1));
    assert_eq!((one.wakes(), other.wakes()), (1, 0));
    assert_eq!(held.refund_at(START, 1), Ok(1));
    assert_eq!(other.wakes(), 1);
}

/// Another waiter's waker holds up the driver.
#[test]
fn a_thread_ends_at_its_own_deadline_whatever_its_driver_does() {
    let queue = Arc::new(Queue::new(
        Concurrency::new(1),
        NoTimer(MonotonicClock::new()),
        99,
    ));
    let held = queue.try_acquire(1).unwrap();
    let waiting = |n| {
        while queue.counts().waiters < n {
            thread::yield_now();
        }
    };
    let in_charge = {
        let queue = Arc::clone(&queue);
        thread::spawn(move || permits(queue.blocking_acquire(1)))
    };
    waiting(1);
    thread::sleep(Duration::from_millis(5));
    let (go_on, hold) = mpsc::channel::<()>();
    let hold = Mutex::new(hold);
    let soon = |millis| {
        queue
            .clock()
            .now()
            .saturating_add(Duration::from_millis(millis))
    };
    let mut task = Task::new(queue.acquire(1).until(soon(20)));
    let blocks = waker(move || _ = hold.lock().unwrap().recv());
    assert!(task.poll_with(&blocks).is_pending());
    let (say, hear) = mpsc::channel();
    {
        let (queue, deadline) = (Arc::clone(&queue), soon(60));
        thread::spawn(move || say.send(permits(queue.acquire(1).until(deadline).block())));
    }
    let late = Err(Rejected::Deadline {
        permits: 1,
        retry: Retry::OnRelease,
    });
    let heard = hear.recv_timeout(Duration::from_secs(20));
    go_on.send(()).unwrap();
    assert_eq!(heard, Ok(late));
    drop(held);
    assert_eq!(in_charge.join().unwrap(), Ok(1));
    drop(task);
}

/// It is armed for an hour ahead, and the thread sleeps until then.
#[test]
fn a_dropped_timer_of_the_thread_keeps_no_waker() {
    let kept = Arc::new(());
    let noted = {
        let kept = Arc::clone(&kept);
        waker(move || drop(Arc::clone(&kept)))
    };
    let timers: Vec<_> = (0..100).map(|_| ThreadTimer::new()).collect();
    for timer in &timers {
        let hour = timer.now().saturating_add(Duration::from_hours(1));
        assert!(timer.wake_at(hour, &noted).is_pending());
    }
    drop(noted);
    assert_eq!(Arc::strong_count(&kept), 2);
    drop(timers);
    assert_eq!(Arc::strong_count(&kept), 1);
}

#[cfg(feature = "tokio")]
#[test]
fn a_deadline_of_a_monotonic_clock_is_one_of_a_timer_of_tokio() {
    use portcullis_async::TokioTimer;
    use portcullis_core::MonotonicClock;

    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let clock = MonotonicClock::new();
    let before = clock.now();
    let timer = TokioTimer::of(runtime.handle().clone());
    let now = timer.now();
    assert!(before <= now && now <= clock.now());

    let queue = Queue::new(Concurrency::new(1), timer, 9);
    let _held = queue.try_acquire(1).unwrap();
    let deadline = clock.now() + Duration::from_millis(20);
    let late = runtime.block_on(queue.acquire(1).until(deadline));
    assert!(matches!(late, Err(Rejected::Deadline { .. })));
    let after = clock.now().saturating_since(deadline);
    assert!(after < Duration::from_secs(10), "{after:?} late");
    assert!(clock.now() >= deadline);
}

#[cfg(feature = "tokio")]
#[test]
fn a_dropped_timer_of_a_runtime_keeps_no_waker_and_no_task() {
    use portcullis_async::TokioTimer;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_time()
        .build()
        .unwrap();
    let alive = || runtime.metrics().num_alive_tasks();
    let kept = Arc::new(());
    let noted = {
        let kept = Arc::clone(&kept);
        waker(move || drop(Arc::clone(&kept)))
    };
    let timer = TokioTimer::of(runtime.handle().clone());
    let hour = timer.now().saturating_add(Duration::from_hours(1));
    assert!(timer.wake_at(hour, &noted).is_pending());
    drop(noted);
    assert_eq!((alive(), Arc::strong_count(&kept)), (1, 2));
    drop(timer);
    assert_eq!(Arc::strong_count(&kept), 1);
    for _ in 0..2_000 {
        if alive() == 0 {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("its task has not ended");
}

#[cfg(all(unix, not(miri)))]
mod forked {
    use core::future::poll_fn;
    use core::panic::AssertUnwindSafe;
    use std::panic::catch_unwind;

    use futures_executor::block_on;
    use portcullis_core::{Rate, TokenBucket};

    use super::*;

    /// Runs `work` in a child of this process. The child ends by a signal if it takes long.
    fn in_a_child(work: impl FnOnce()) {
        // SAFETY: the child has one thread. It takes no lock that another thread of this process
        // may have held, except those of the allocator, which the C library lets go.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: it has no condition.
            unsafe { libc::alarm(20) };
            let ended = catch_unwind(AssertUnwindSafe(work));
            // SAFETY: it has no condition.
            unsafe { libc::_exit(i32::from(ended.is_err())) };
        }
        let mut status = 0;
        // SAFETY: `status` is valid for writes.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFEXITED(status), "the child hangs");
        assert_eq!(libc::WEXITSTATUS(status), 0, "the child panicked");
    }

    /// A shared queue of 200 permits per second, whose timer this process has used.
    fn used() -> Arc<Queue<TokenBucket, ThreadTimer>> {
        let bucket = TokenBucket::new(Rate::per_second(200), 1);
        let queue = Queue::new(bucket, ThreadTimer::new(), 9).shared();
        takes_three(&queue);
        queue
    }

    fn takes_three(queue: &Queue<TokenBucket, ThreadTimer>) {
        for _ in 0..3 {
            assert_eq!(permits(block_on(queue.acquire(1))), Ok(1));
        }
    }

    #[test]
    fn a_queue_that_the_parent_has_used_grants_in_the_child() {
        let queue = used();
        in_a_child(|| takes_three(&queue));
        takes_three(&queue);
    }

    #[test]
    fn a_queue_that_the_child_creates_grants_there() {
        drop(used());
        in_a_child(|| {
            drop(used());
            let rate = TokenBucket::new(Rate::per_second(200), 1);
            let driven_by_its_waiter = Queue::new(rate, ThreadTimer::new(), 9);
            takes_three(&driven_by_its_waiter);
        });
    }

    /// The alarm of a wait that has ended stays set. In the child it is not, and does not count.
    #[test]
    fn an_alarm_of_the_parent_hides_none_of_the_child() {
        drop(used());
        let queue = Queue::new(Concurrency::new(1), ThreadTimer::new(), 9).shared();
        let held = queue.try_acquire(1).unwrap();
        let soon = Duration::from_millis(700);
        drop(Task::waiting(queue.acquire(1).within(soon)));
        in_a_child(|| {
            let late = block_on(queue.acquire(1).within(soon));
            assert!(matches!(late, Err(Rejected::Deadline { .. })));
            let late = queue.acquire(1).within(soon / 100).block();
            assert!(matches!(late, Err(Rejected::Deadline { .. })));
        });
        drop(held);
    }

    /// The places of the parent's alarms are not places of the child's.
    #[test]
    fn queues_of_the_parent_have_an_alarm_each_in_the_child() {
        let slow = |_| {
            let bucket = TokenBucket::new(Rate::per_second(10), 1);
            let queue = Queue::new(bucket, ThreadTimer::new(), 9).shared();
            (0..2).for_each(|_| drop(block_on(queue.acquire(1)).unwrap()));
            queue
        };
        let queues: [_; 3] = core::array::from_fn(slow);
        in_a_child(|| {
            let last_first = queues.iter().rev();
            let waits = last_first.map(|queue| {
                while queue.try_acquire(1).is_ok() {}
                Task::waiting(queue.acquire(1))
            });
            for mut wait in waits.collect::<Vec<_>>() {
                assert_eq!(
                    permits(block_on(poll_fn(|context| wait.poll_with(context.waker())))),
                    Ok(1)
                );
            }
        });
    }

    #[test]
    fn a_child_of_a_child_has_a_timer_too() {
        let queue = used();
        in_a_child(|| {
            takes_three(&queue);
            in_a_child(|| takes_three(&queue));
            takes_three(&queue);
        });
    }
}

#[cfg(feature = "tokio")]
mod runtimes_that_do_not_run {
    use futures_executor::block_on;
    use portcullis_async::TokioTimer;
    use portcullis_core::{Concurrency, FixedWindow, Rate, TokenBucket};
    use tokio::runtime::{Builder, Runtime};

    use super::*;

    fn one_thread() -> Runtime {
        let mut builder = Builder::new_current_thread();
        builder.enable_time().build().unwrap()
    }

    fn threads() -> Runtime {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(1).enable_time().build().unwrap()
    }

    /// A queue of 200 permits per second, of which one is free.
    fn queue_of(runtime: &Runtime) -> Arc<Queue<TokenBucket, TokioTimer>> {
        let bucket = TokenBucket::new(Rate::per_second(200), 1);
        Queue::new(bucket, TokioTimer::of(runtime.handle().clone()), 9).shared()
    }

    /// Fails if it takes long: then a waiter was not woken.
    fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
        let (tell, told) = mpsc::channel();
        thread::spawn(move || tell.send(work()));
        let outcome = told.recv_timeout(Duration::from_secs(20));
        outcome.expect("a waiter sleeps permanently, or has panicked")
    }

    fn takes_three(queue: &Arc<Queue<TokenBucket, TokioTimer>>) {
        let queue = Arc::clone(queue);
        in_time(move || {
            for _ in 0..3 {
                assert_eq!(permits(block_on(queue.acquire(1))), Ok(1));
            }
        });
    }

    #[test]
    fn a_queue_grants_after_its_runtime_has_shut_down() {
        for runtime in [one_thread(), threads()] {
            let used = queue_of(&runtime);
            let unused = queue_of(&runtime);
            runtime.block_on(async {
                for _ in 0..3 {
                    drop(used.acquire(1).await.unwrap());
                }
            });
            drop(runtime);
            takes_three(&used);
            takes_three(&unused);
        }
    }

    #[test]
    fn a_timeout_ends_after_the_runtime_has_shut_down() {
        for runtime in [one_thread(), threads()] {
            let timer = TokioTimer::of(runtime.handle().clone());
            drop(runtime);
            let late = in_time(move || {
                let queue = Queue::new(Concurrency::new(1), timer, 9);
                let _held = queue.try_acquire(1).unwrap();
                permits(block_on(queue.acquire(1).within(Duration::from_millis(5))))
            });
            assert!(matches!(late, Err(Rejected::Deadline { .. })));
        }
    }

    #[test]
    fn a_runtime_that_shuts_down_hands_its_alarm_over() {
        for runtime in [one_thread(), threads()] {
            let queue = Queue::new(
                Concurrency::new(1),
                TokioTimer::of(runtime.handle().clone()),
                9,
            )
            .shared();
            let held = Arc::clone(&queue).try_acquire_owned(1).unwrap();
            let (tell, told) = mpsc::channel();
            let waiter = {
                let queue = Arc::clone(&queue);
                thread::spawn(move || {
                    let wait = queue.acquire(1).within(Duration::from_millis(300));
                    tell.send(permits(block_on(wait)))
                })
            };
            while queue.counts().waiters == 0 {}
            thread::sleep(Duration::from_millis(20));
            drop(runtime);
            let late = told.recv_timeout(Duration::from_secs(20));
            assert!(matches!(late, Ok(Err(Rejected::Deadline { .. }))));
            waiter.join().unwrap().unwrap();
            drop(held);
        }
    }

    /// The thread first looks at the earlier alarm, which is no longer set.
    #[test]
    fn an_alarm_that_is_set_again_is_watched() {
        let runtime = one_thread();
        let timer = TokioTimer::of(runtime.handle().clone());
        let (tell, told) = mpsc::channel();
        for millis in [1, 400] {
            let tell = Mutex::new(tell.clone());
            let woken = waker(move || tell.lock().unwrap().send(millis).unwrap());
            let at = timer.now() + Duration::from_millis(millis);
            assert!(timer.wake_at(at, &woken).is_pending());
        }
        assert_eq!(told.recv_timeout(Duration::from_secs(20)), Ok(400));
    }

    /// Whatever time it is for the process: here 0.7 s or more after the first test.
    #[test]
    fn with_a_paused_clock_windows_begin_alike_in_each_run() {
        thread::sleep(Duration::from_millis(700));
        for _ in 0..2 {
            let mut builder = Builder::new_current_thread();
            let runtime = builder.enable_time().start_paused(true).build().unwrap();
            let times: Vec<u64> = runtime.block_on(async {
                let timer = TokioTimer::new();
                let window = FixedWindow::new(2, Duration::from_secs(1));
                let queue = Queue::new(window, timer, 9).shared();
                let mut times = Vec::new();
                for _ in 0..5 {
                    drop(queue.acquire(1).await.unwrap());
                    tokio::time::sleep(Duration::from_millis(300)).await;
                    times.push(queue.clock().now().as_nanos() / 1_000_000);
                    // A timer that is created later tells the same time.
                    assert_eq!(TokioTimer::new().now(), queue.clock().now());
                }
                times
            });
            assert_eq!(times, [300, 600, 1300, 1600, 2300]);
            thread::sleep(Duration::from_millis(130));
        }
    }

    #[test]
    fn all_timers_of_a_runtime_tell_the_same_time_also_once_its_clock_is_paused() {
        let runtime = one_thread();
        let first = TokioTimer::of(runtime.handle().clone());
        runtime.block_on(async {
            // While it runs, a reading between two readings of another timer is between them.
            for _ in 0..1_000 {
                let next = TokioTimer::new();
                let (before, between, after) = (first.now(), next.now(), first.now());
                assert!(before <= between && between <= after);
            }
            let second = TokioTimer::new();
            tokio::time::pause();
            let third = TokioTimer::new();
            for _ in 0..2 {
                assert_eq!([second.now(), third.now()], [first.now(); 2]);
                tokio::time::advance(Duration::from_secs(3)).await;
            }
            // A deadline by one of them is reached by a queue of another.
            let queue = Queue::new(Concurrency::new(1), third, 1).shared();
            let _held = queue.acquire(1).await.unwrap();
            let deadline = first.now() + Duration::from_secs(60);
            let late = queue.acquire(1).until(deadline).await.unwrap_err();
            assert!(matches!(late, Rejected::Deadline { .. }), "{late:?}");
            assert!(second.now() >= deadline && second.now() < deadline + Duration::from_millis(2));
        });
        // With threads the clock always runs, so two readings differ. The origins are shown.
        let runtimes = [threads(), threads()];
        let timer = |runtime: &Runtime| TokioTimer::of(runtime.handle().clone());
        let shown = runtimes.each_ref().map(|of| format!("{:?}", timer(of)));
        assert_eq!(
            [&shown[1]; 2],
            [&shown[0], &format!("{:?}", timer(&runtimes[0]))]
        );
    }

    #[test]
    fn a_queue_grants_if_its_runtime_is_never_run() {
        let runtime = one_thread();
        let queue = queue_of(&runtime);
        takes_three(&queue);
        // Neither does an alarm count that was set while it ran.
        let rate = TokenBucket::builder(Rate::per_second(5), 1);
        let rate = rate.initial(0).origin(queue.clock().now()).build().unwrap();
        let timer = TokioTimer::of(runtime.handle().clone());
        let slow = Queue::new(rate, timer, 9).shared();
        runtime.block_on(async {
            let dropped = tokio::time::timeout(Duration::from_millis(10), slow.acquire(1));
            assert!(dropped.await.is_err());
        });
        let granted = {
            let slow = Arc::clone(&slow);
            in_time(move || permits(block_on(slow.acquire(1))))
        };
        assert_eq!(granted, Ok(1));
        // And the runtime goes on when it is run again.
        let again = Arc::clone(&queue);
        in_time(move || {
            runtime.block_on(async {
                for _ in 0..3 {
                    drop(again.acquire(1).await.unwrap());
                }
            });
        });
    }
}
