//! What a hook observes of each completed wait.

mod support;

use core::time::Duration;
use std::sync::{Mutex, MutexGuard, PoisonError};

use portcullis_async::{Hook, Order, Queue, Rejected, WaitEnd, Waited};
use portcullis_core::keyed::{ConcurrencyRules, Line, Seed};
use portcullis_core::queue::QueueLimiter;
use portcullis_core::{Concurrency, Keyed, Rate, Timestamp, TokenBucket};
use support::{Hand, Task, now, permits};

/// Records the calls of the hook.
#[derive(Default)]
struct Told(Mutex<Vec<(u32, Duration, WaitEnd)>>);

impl Hook for Told {
    fn left(&self, waited: &Waited) {
        self.all()
            .push((waited.permits, waited.time, waited.outcome));
    }
}

impl Told {
    fn all(&self) -> MutexGuard<'_, Vec<(u32, Duration, WaitEnd)>> {
        // Also while a test fails.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The calls since the last time: permits, milliseconds, and the outcome.
    #[track_caller]
    fn are<const N: usize>(&self, all: [(u32, u64, WaitEnd); N]) {
        let told = core::mem::take(&mut *self.all());
        assert_eq!(
            told,
            all.map(|(permits, time, outcome)| (permits, Duration::from_millis(time), outcome))
        );
    }
}

type Hooked<'t, L> = Queue<L, Hand, portcullis_async::DefaultLock, Tells<'t>>;

struct Tells<'t>(&'t Told);

impl Hook for Tells<'_> {
    fn left(&self, waited: &Waited) {
        self.0.left(waited);
    }
}

fn hooked<L: QueueLimiter>(limiter: L, max_permits: u64, told: &Told) -> Hooked<'_, L> {
    Queue::new(limiter, Hand::new(), max_permits).with_hook(Tells(told))
}

fn millis<L: QueueLimiter>(queue: &Hooked<'_, L>, millis: u64) {
    queue.clock().set(Timestamp::from_millis(millis));
}

#[test]
fn a_grant_reports_the_time_in_the_queue_whenever_it_is_claimed() {
    let told = Told::default();
    let queue = hooked(Concurrency::new(2), 9, &told);
    let held = now(queue.acquire(2)).unwrap();
    millis(&queue, 100);
    let [one, two] = [1, 2].map(|n| Task::waiting(queue.acquire(n)));
    millis(&queue, 130);
    drop(held);
    told.are([]);
    millis(&queue, 500);
    drop(one.outcome().unwrap());
    told.are([(1, 30, WaitEnd::Granted)]);
    millis(&queue, 900);
    drop(two.outcome().unwrap());
    told.are([(2, 400, WaitEnd::Granted)]);
}

#[test]
fn a_grant_claimed_late_reports_its_own_instant() {
    let told = Told::default();
    let bucket = TokenBucket::builder(Rate::per_second(10), 5)
        .initial(0)
        .build()
        .unwrap();
    let queue = hooked(bucket, 9, &told);
    let wait = Task::waiting(queue.acquire(2).up_to(5));
    millis(&queue, 200);
    queue.advance();
    millis(&queue, 999);
    drop(wait.outcome().unwrap());
    told.are([(2, 200, WaitEnd::Granted)]);
}

#[test]
fn a_request_settled_at_once_is_not_reported() {
    let told = Told::default();
    let queue = hooked(Concurrency::new(2), 1, &told);
    let held = now(queue.acquire(2)).unwrap();
    assert!(now(queue.acquire(3)).is_err(), "more than there are");
    assert!(now(queue.acquire(2)).is_err(), "full");
    assert!(
        now(queue.acquire(1).until(Timestamp::ZERO)).is_err(),
        "late"
    );
    drop(queue.acquire(1));
    queue.close();
    assert!(now(queue.acquire(1)).is_err());
    drop(held);
    told.are([]);
}

#[test]
fn each_end_of_a_wait_is_reported_as_its_outcome() {
    let told = Told::default();
    let queue = hooked(Concurrency::new(4), 4, &told).with_order(Order::NewestFirst);
    let held = now(queue.acquire(4)).unwrap();
    let evicted = Task::waiting(queue.acquire(3));
    millis(&queue, 10);
    let exceeds = Task::waiting(queue.acquire(4));
    assert!(evicted.outcome().is_err());
    told.are([(3, 10, WaitEnd::Evicted)]);
    millis(&queue, 30);
    queue.change(|limit| limit.set_limit(3)).unwrap();
    assert!(exceeds.outcome().is_err());
    told.are([(4, 20, WaitEnd::ExceedsCapacity)]);
    let late = Task::waiting(queue.acquire(1).until(Timestamp::from_millis(37)));
    millis(&queue, 37);
    queue.advance();
    assert!(late.outcome().is_err());
    told.are([(1, 7, WaitEnd::Deadline)]);
    let (cancelled, closed) = (
        Task::waiting(queue.acquire(2)),
        Task::waiting(queue.acquire(1)),
    );
    millis(&queue, 40);
    drop(cancelled);
    told.are([(2, 3, WaitEnd::Cancelled)]);
    millis(&queue, 42);
    queue.close();
    millis(&queue, 50);
    assert_eq!(
        permits(closed.outcome()),
        Err(Rejected::Closed { permits: 1 })
    );
    told.are([(1, 5, WaitEnd::Closed)]);
    drop(held);
    told.are([]);
}

/// A completed wait is reported once, also if its future is not polled again.
#[test]
fn a_wait_that_is_settled_and_then_dropped_is_reported() {
    let told = Told::default();
    let queue = hooked(Concurrency::new(1), 1, &told).with_order(Order::NewestFirst);
    let held = now(queue.acquire(1)).unwrap();
    let evicted = Task::waiting(queue.acquire(1));
    millis(&queue, 10);
    let granted = Task::waiting(queue.acquire(1));
    drop(evicted);
    told.are([(1, 10, WaitEnd::Evicted)]);
    millis(&queue, 15);
    drop(held);
    millis(&queue, 20);
    drop(granted);
    told.are([(1, 5, WaitEnd::Granted)]);
    let _held = now(queue.acquire(1)).unwrap();
    let late = Task::waiting(queue.acquire(1).until(Timestamp::from_millis(25)));
    millis(&queue, 25);
    queue.advance();
    drop(late);
    told.are([(1, 5, WaitEnd::Deadline)]);
    let closed = Task::waiting(queue.acquire(1));
    queue.close();
    drop(closed);
    told.are([(1, 0, WaitEnd::Closed)]);
}

#[test]
fn a_wait_that_is_neither_polled_again_nor_dropped_is_not_reported() {
    let told = Told::default();
    let queue = hooked(Concurrency::new(1), 9, &told);
    let held = now(queue.acquire(1)).unwrap();
    Task::waiting(queue.acquire(1)).leak();
    drop(held);
    told.are([]);
}

#[test]
fn a_hook_may_use_the_queue() {
    use std::sync::{Arc, OnceLock};
    type Uses = Box<dyn Fn(&Waited) + Send + Sync>;
    type Inside = Queue<Concurrency, Hand, support::Watched, Uses>;
    let slot: Arc<OnceLock<&'static Inside>> = Arc::default();
    let hook: Uses = {
        let slot = Arc::clone(&slot);
        Box::new(move |_| {
            assert!(!support::Watched::is_held());
            let queue = *slot.get().unwrap();
            queue.advance();
            drop(queue.try_acquire(1));
        })
    };
    let queue: &'static Inside = support::leaked(Box::new(
        Queue::with_lock(Concurrency::new(1), Hand::new(), 9, support::Watched::new())
            .with_hook(hook),
    ));
    slot.set(queue).ok().unwrap();
    let held = now(queue.acquire(1)).unwrap();
    let [granted, cancelled] = [1, 1].map(|n| Task::waiting(queue.acquire(n)));
    drop(cancelled);
    drop(held);
    assert_eq!(permits(granted.outcome()), Ok(1));
    assert!(queue.try_acquire(1).is_ok());
}

/// The granted permits are not lost with it.
#[test]
fn a_hook_that_panics_loses_nothing() {
    let queue = Queue::new(Concurrency::new(2), Hand::new(), 9);
    let queue = queue.with_hook(|_: &Waited| panic!("a hook"));
    let held = now(queue.acquire(2)).unwrap();
    let [mut granted, behind, cancelled] = [2, 2, 1].map(|n| Task::waiting(queue.acquire(n)));
    let quiet = |work: &mut dyn FnMut()| {
        assert!(std::panic::catch_unwind(core::panic::AssertUnwindSafe(work)).is_err());
    };
    let mut cancelled = Some(cancelled);
    quiet(&mut || drop(cancelled.take()));
    drop(held);
    quiet(&mut || drop(granted.poll()));
    assert_eq!(behind.wakes(), 1, "its permits go to the next waiter");
    let mut behind = Some(behind);
    quiet(&mut || drop(behind.take().unwrap().poll()));
    drop(granted);
    assert_eq!((queue.available(), queue.counts().waiters), (2, 0));
}

#[test]
fn a_keyed_queue_calls_its_hook() {
    let told = Told::default();
    let table = Keyed::new(ConcurrencyRules::new(1), Line::for_keys(100), Seed::new());
    let queue = portcullis_async::KeyedQueue::new(table, Hand::new(), 9);
    let queue = queue.with_hook(Tells(&told));
    let held = now(queue.acquire("alice", 1)).unwrap();
    let wait = Task::waiting(queue.acquire("alice", 1));
    queue.clock().set(Timestamp::from_millis(7));
    drop(held);
    assert_eq!(permits(wait.outcome()), Ok(1));
    told.are([(1, 7, WaitEnd::Granted)]);
}
