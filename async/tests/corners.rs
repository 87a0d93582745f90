//! Guarantees that hold in one place each.

mod support;

use core::time::Duration;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use portcullis_async::{Acquire, KeyedQueue, NoTimer, Queue, Rejected, ThreadTimer, Timer};
use portcullis_core::{
    Clock, Concurrency, ConcurrencyRules, Denied, Keyed, Lease, Limiter, Line, MonotonicClock,
    QueueLimiter, Receipt, Retry, Seed, Timestamp,
};
use support::{Hand, START, Shared, Task, available, now, permits, queue, waker};

/// Waiters are woken in batches, and wakers run between them: `uses` runs in the first one.
fn close_beside(many: usize, uses: fn(&Shared)) -> Shared {
    let queue: Shared = Arc::new(queue(Concurrency::new(1), 99));
    let held = Lease::try_acquire_at(Arc::clone(&queue), START, 1).unwrap();
    let mut first = Task::new(Acquire::new(Arc::clone(&queue), 1, 1));
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
            let mut wait = Task::new(Acquire::new(Arc::clone(queue), 1, 1));
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
        fn take_at(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
            if n > 2 {
                Err(Denied::Exhausted { now, permits: n })
            } else {
                self.0.take_at(now, n)
            }
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
    impl QueueLimiter for Boasts {}

    let queue = queue(Boasts(Concurrency::new(9)), 99);
    let some = now(queue.acquire_between(2, 9)).unwrap();
    assert_eq!(some.permits(), 2);
    drop(some);
    // The same after a wait.
    let held = [2, 2, 2, 2, 1].map(|n| now(queue.acquire(n)).unwrap());
    let wait = Task::waiting(queue.acquire_between(1, 9));
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
    let mut task = Task::new(queue.acquire_until(1, soon(20)));
    let blocks = waker(move || _ = hold.lock().unwrap().recv());
    assert!(task.poll_with(&blocks).is_pending());
    let (say, hear) = mpsc::channel();
    {
        let (queue, deadline) = (Arc::clone(&queue), soon(60));
        thread::spawn(move || say.send(permits(queue.blocking_acquire_until(1, deadline))));
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
    let late = runtime.block_on(queue.acquire_until(1, deadline));
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
