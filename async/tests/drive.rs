//! Queues driven by a task, or by a timer of their own.

mod support;

use core::future::Future;
use core::pin::Pin;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use core::task::{Context, Poll, Waker};
use std::sync::{Arc, Mutex};

use portcullis_async::{Next, Queue};
use portcullis_core::{Clock, Concurrency, Rate, Timestamp, TokenBucket};
use support::{Hand, SECOND, Task, now, permits, queue, waker};

/// Tasks on one thread with a manual clock and its timers.
#[derive(Default)]
struct Executor {
    /// The timer of the queue.
    hand: Hand,
    timers: Mutex<Vec<(Timestamp, Waker)>>,
}

struct Sleep<'e>(&'e Executor, Timestamp);

impl Future for Sleep<'_> {
    type Output = ();
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.0.hand.now() >= self.1 {
            return Poll::Ready(());
        }
        self.0
            .timers
            .lock()
            .unwrap()
            .push((self.1, context.waker().clone()));
        Poll::Pending
    }
}

type Local<'e> = (Pin<Box<dyn Future<Output = ()> + 'e>>, Arc<AtomicBool>);

impl Executor {
    fn sleep(&self, until: Timestamp) -> Sleep<'_> {
        Sleep(self, until)
    }

    fn task<'e>(future: impl Future<Output = ()> + 'e) -> Local<'e> {
        (Box::pin(future), Arc::new(AtomicBool::new(true)))
    }

    /// Polls woken tasks, and advances the clock to the next timer when no task is woken, until the
    /// first task is done. Returns the number of polls of each task.
    fn run(&self, mut tasks: Vec<Local<'_>>) -> Vec<usize> {
        let mut polls = vec![0; tasks.len()];
        let mut done = vec![false; tasks.len()];
        loop {
            let mut idle = true;
            for (number, (future, woken)) in tasks.iter_mut().enumerate() {
                if done[number] || !woken.swap(false, Ordering::Relaxed) {
                    continue;
                }
                idle = false;
                polls[number] += 1;
                let flag = Arc::clone(woken);
                let waker = waker(move || flag.store(true, Ordering::Relaxed));
                done[number] = future
                    .as_mut()
                    .poll(&mut Context::from_waker(&waker))
                    .is_ready();
            }
            if done.iter().all(|done| *done) {
                return polls;
            }
            if idle {
                let mut timers = self.timers.lock().unwrap();
                let next = timers
                    .iter()
                    .map(|timer| timer.0)
                    .chain(self.hand.alarm())
                    .min();
                self.hand.jump(
                    next.expect("a sleeping task must have a timer")
                        .max(self.hand.now()),
                );
                let now = self.hand.now();
                let (due, rest): (Vec<_>, Vec<_>) =
                    timers.drain(..).partition(|timer| timer.0 <= now);
                *timers = rest;
                drop(timers);
                for (_, waker) in due {
                    waker.wake();
                }
            }
        }
    }
}

fn bucket(rate: u32, burst: u64) -> TokenBucket {
    TokenBucket::builder(Rate::per_second(rate), burst)
        .initial(0)
        .build()
        .unwrap()
}

#[test]
fn each_wait_ends_at_its_instant_with_one_timer_for_all() {
    let executor = Executor::default();
    let queue = Queue::new(bucket(10, 5), &executor.hand, 99);
    let ends = Mutex::new(Vec::new());
    let left = AtomicU32::new(4);
    let mut tasks = vec![Executor::task(queue.drive())];
    tasks.extend([1, 2, 5, 1].map(|n| {
        let (queue, ends, left, clock) = (&queue, &ends, &left, &executor.hand);
        Executor::task(async move {
            let lease = queue.acquire(n).await.unwrap();
            ends.lock()
                .unwrap()
                .push((lease.permits(), clock.now().as_nanos() / 1_000_000));
            if left.fetch_sub(1, Ordering::Relaxed) == 1 {
                queue.close();
            }
        })
    }));
    let polls = executor.run(tasks);
    assert_eq!(
        *ends.lock().unwrap(),
        [(1, 100), (2, 300), (5, 800), (1, 900)]
    );
    assert_eq!(executor.hand.armed().len(), 4, "once for each instant");
    assert_eq!(polls[1..], [2; 4], "each waits, and is woken once");
}

#[test]
fn the_timer_follows_a_new_or_cancelled_head() {
    let executor = Executor::default();
    let queue = Queue::new(bucket(1, 60), &executor.hand, 99);
    let ends = Mutex::new(Vec::new());
    let tasks = vec![
        Executor::task(async {
            // Cancels after 2 s a wait that would take a minute.
            let wait = core::pin::pin!(queue.acquire(60));
            let mut wait = Some(wait);
            let mut sleep = core::pin::pin!(executor.sleep(Timestamp::from_secs(2)));
            core::future::poll_fn(|context| {
                let waits = wait
                    .as_mut()
                    .is_some_and(|wait| wait.as_mut().poll(context).is_pending());
                assert!(waits);
                sleep.as_mut().poll(context)
            })
            .await;
        }),
        Executor::task(async {
            drop(queue.acquire(5).await.unwrap());
            ends.lock().unwrap().push(executor.hand.now());
            executor.sleep(Timestamp::from_secs(20)).await;
            // 15 are available, so it waits for one more.
            drop(queue.acquire(16).await.unwrap());
            ends.lock().unwrap().push(executor.hand.now());
            queue.close();
        }),
        Executor::task(queue.drive()),
    ];
    executor.run(tasks);
    assert_eq!(
        *ends.lock().unwrap(),
        [Timestamp::from_secs(5), Timestamp::from_secs(21)]
    );
}

#[test]
fn a_refund_moves_the_alarm_earlier() {
    let executor = Executor::default();
    let bucket = TokenBucket::new(Rate::per_second(1), 10);
    let queue = Queue::new(bucket, &executor.hand, 99);
    let mut held = now(queue.acquire(10)).unwrap();
    let tasks = vec![
        Executor::task(async {
            drop(queue.acquire(9).await.unwrap());
            assert_eq!(executor.hand.now(), Timestamp::from_secs(5));
            queue.close();
        }),
        Executor::task(async {
            executor.sleep(Timestamp::from_secs(3)).await;
            assert_eq!(held.refund_at(executor.hand.now(), 4), Ok(4));
        }),
        Executor::task(queue.drive()),
    ];
    executor.run(tasks);
}

#[test]
fn unclaimed_tokens_move_the_alarm_earlier() {
    let queue = queue(bucket(1, 10), 99);
    let mut driver = Task::waiting(queue.drive());
    let unclaimed = Task::waiting(queue.acquire(4));
    let _wait = Task::waiting(queue.acquire(6));
    assert!(driver.is_pending());
    queue.clock().advance(4 * SECOND);
    assert!(driver.is_pending());
    let before = driver.wakes();
    drop(unclaimed);
    assert!(driver.wakes() > before);
    assert!(driver.is_pending());
    assert_eq!(queue.clock().armed(), [4, 10, 6].map(Timestamp::from_secs));
}

#[test]
fn it_sleeps_without_waiters_and_ends_when_the_queue_is_closed() {
    let queue = queue(bucket(1, 1), 9);
    let mut driver = Task::new(queue.drive());
    assert!(driver.is_pending());
    let wait = Task::waiting(queue.acquire(1));
    assert_eq!(driver.wakes(), 1, "there is a waiter");
    assert!(driver.is_pending());
    drop(wait);
    assert!(driver.is_pending());
    let before = driver.wakes();
    queue.close();
    assert_eq!(driver.wakes(), before + 1);
    assert!(driver.poll().is_ready());
}

#[test]
fn it_is_not_woken_by_its_own_poll() {
    let queue = queue(bucket(1, 5), 9);
    let _wait = Task::waiting(queue.acquire(1));
    let mut driver = Task::new(queue.drive());
    for _ in 0..3 {
        assert!(driver.is_pending());
    }
    assert_eq!(driver.wakes(), 0);
    let _behind = Task::waiting(queue.acquire(1));
    assert_eq!(driver.wakes(), 0, "the alarm is the head's");
}

#[test]
fn the_last_driver_polled_drives_and_a_dropped_one_does_no_harm() {
    let queue = queue(bucket(1, 5), 9);
    let mut one = Task::new(queue.drive());
    let mut other = Task::new(queue.drive());
    assert!(one.is_pending() && other.is_pending());
    let _wait = Task::waiting(queue.acquire(1));
    assert_eq!((one.wakes(), other.wakes()), (0, 1));
    drop((one, other));
    queue.clock().advance(SECOND);
    assert_eq!(queue.advance(), Next::Idle);
}

#[test]
fn releases_grant_waiters_without_a_driver() {
    let queue = queue(Concurrency::new(1), 9);
    let held = now(queue.acquire(1)).unwrap();
    let mut driver = Task::new(queue.drive());
    assert!(driver.is_pending());
    let wait = Task::waiting(queue.acquire(1));
    drop(held);
    assert_eq!(permits(wait.outcome()), Ok(1));
}
