//! Everyday use of queues, on any runtime. A test asserts how soon something happens only if the
//! runtime simulates time.

use core::future::poll_fn;
use core::pin::{Pin, pin};
use core::sync::atomic::{AtomicU32, Ordering};
use core::task::Poll;
use core::time::Duration;
use std::sync::{Arc, Mutex};

use portcullis_async::{Acquire, Order, Queue, Rejected};
use portcullis_core::{Clock, Concurrency, Limiter, Rate, Timestamp, TokenBucket};

use crate::runtime::Runtime;
use crate::{attended, is_conserved, start, until};

const SOON: Duration = Duration::from_millis(20);
const LONG: Duration = Duration::from_secs(30);

/// Polls once.
async fn poll_once<F: Future>(mut future: Pin<&mut F>) -> Poll<F::Output> {
    poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await
}

pub(crate) async fn a_permit_is_handed_on_in_the_order_of_the_waits<R: Runtime>(runtime: &R) {
    const TASKS: u32 = 20;
    let queue = attended(runtime, Concurrency::new(1), 25);
    let order = Arc::new(Mutex::new(Vec::new()));
    let held = queue.acquire(1).await.unwrap();
    let mut tasks = Vec::new();
    for place in 0..TASKS {
        let (own, order, runtime) = (Arc::clone(&queue), Arc::clone(&order), runtime.clone());
        tasks.push(start(&runtime.clone(), async move {
            let _lease = Acquire::new(own, 1).await.unwrap();
            order.lock().unwrap().push(place);
            runtime.step().await;
        }));
        until(|| queue.counts().waiters == place + 1).await;
    }
    drop(held);
    for task in tasks {
        task.await;
    }
    assert_eq!(*order.lock().unwrap(), (0..TASKS).collect::<Vec<_>>());
    assert_eq!(queue.counts().granted, TASKS.into());
    is_conserved(&queue, 1);
}

pub(crate) async fn no_more_permits_are_held_than_the_limit<R: Runtime>(runtime: &R) {
    const LIMIT: u32 = 5;
    let queue = attended(runtime, Concurrency::new(LIMIT), 1_000);
    let held = queue.acquire(LIMIT).await.unwrap();
    let out = Arc::new(AtomicU32::new(0));
    let tasks: Vec<_> = (0..60)
        .map(|number| {
            let (queue, out, runtime) = (Arc::clone(&queue), Arc::clone(&out), runtime.clone());
            start(&runtime.clone(), async move {
                for turn in 0..50 {
                    let n = 1 + (number + turn) % 3;
                    let lease = queue.acquire(n).up_to(n + turn % 2).await.unwrap();
                    let permits = lease.permits();
                    let before = out.fetch_add(permits, Ordering::Relaxed);
                    assert!(before + permits <= LIMIT, "{before} and {permits}");
                    runtime.step().await;
                    out.fetch_sub(permits, Ordering::Relaxed);
                    drop(lease);
                }
            })
        })
        .collect();
    // All permits are held: some task must wait.
    until(|| queue.counts().waiters > 0).await;
    drop(held);
    for task in tasks {
        task.await;
    }
    assert!(queue.counts().granted > 0);
    is_conserved(&queue, LIMIT.into());
}

pub(crate) async fn a_dropped_wait_leaves_its_place_and_its_grant_to_the_next<R: Runtime>(
    runtime: &R,
) {
    let queue = attended(runtime, Concurrency::new(1), 9);
    let held = queue.acquire(1).await.unwrap();
    let mut waits: Vec<_> = (0..3).map(|_| Box::pin(queue.acquire(1))).collect();
    for wait in &mut waits {
        assert!(poll_once(wait.as_mut()).await.is_pending());
    }
    let own = Arc::clone(&queue);
    let last = start(runtime, async move {
        own.acquire(1).await.map(|lease| lease.permits())
    });
    until(|| queue.counts().waiters == 4).await;

    drop(waits.remove(1));
    drop(waits.remove(0));
    assert_eq!((queue.counts().cancelled, queue.counts().waiters), (2, 2));
    drop(held);
    assert_eq!((queue.counts().granted, queue.counts().waiters), (1, 1));
    // Granted, and never polled again.
    drop(waits);
    assert_eq!(last.await, Ok(1));
    assert_eq!((queue.counts().granted, queue.counts().cancelled), (2, 2));
    is_conserved(&queue, 1);
}

pub(crate) async fn a_runtimes_timeout_cancels_and_one_on_a_reference_keeps_the_place<
    R: Runtime,
>(
    runtime: &R,
) {
    let queue = attended(runtime, Concurrency::new(1), 9);
    let held = queue.acquire(1).await.unwrap();
    assert!(runtime.timeout(SOON, queue.acquire(1)).await.is_none());
    assert_eq!((queue.counts().cancelled, queue.counts().waiters), (1, 0));

    let mut first = pin!(queue.acquire(1));
    let mut second = pin!(queue.acquire(1));
    for _ in 0..2 {
        assert!(runtime.timeout(SOON, first.as_mut()).await.is_none());
        assert!(poll_once(second.as_mut()).await.is_pending());
    }
    assert_eq!((queue.counts().cancelled, queue.counts().waiters), (1, 2));
    drop(held);
    assert!(
        poll_once(second.as_mut()).await.is_pending(),
        "the other one came first"
    );
    let lease = runtime
        .timeout(LONG, first)
        .await
        .expect("granted")
        .unwrap();
    drop(lease);
    drop(
        runtime
            .timeout(LONG, second)
            .await
            .expect("granted")
            .unwrap(),
    );
    is_conserved(&queue, 1);
}

pub(crate) async fn a_deadline_is_measured_by_the_queues_clock<R: Runtime>(runtime: &R) {
    let queue = attended(runtime, Concurrency::new(1), 9);
    let held = queue.acquire(1).await.unwrap();
    let now = queue.clock().now();
    let late = queue.acquire(1).until(now).await;
    assert!(
        matches!(late, Err(Rejected::Deadline { permits: 1, .. })),
        "already over"
    );

    // Behind it is a waiter with a later deadline, which therefore is not cancelled.
    let own = Arc::clone(&queue);
    let patient = start(runtime, async move {
        let until = own.clock().now().saturating_add(LONG);
        own.acquire(1)
            .until(until)
            .await
            .map(|lease| lease.permits())
    });
    until(|| queue.counts().waiters == 1).await;
    let deadline = now.saturating_add(SOON);
    let late = queue.acquire(1).until(deadline).await;
    assert!(matches!(late, Err(Rejected::Deadline { permits: 1, .. })));
    let over = queue.clock().now();
    assert!(
        over >= deadline && (!R::EXACT || over == deadline),
        "{over}"
    );
    drop(held);
    assert_eq!(patient.await, Ok(1));
    let counts = queue.counts();
    assert_eq!((counts.late, counts.granted, counts.cancelled), (2, 1, 0));
    is_conserved(&queue, 1);
}

pub(crate) async fn the_newest_evicts_the_oldest<R: Runtime>(runtime: &R) {
    let queue = Queue::new(Concurrency::new(1), runtime.timer(), 2).with_order(Order::NewestFirst);
    let queue = Arc::new(queue);
    queue.attend_shared();
    let order = Arc::new(Mutex::new(Vec::new()));
    let held = queue.acquire(1).await.unwrap();
    let mut tasks = Vec::new();
    for number in 0..3 {
        let (own, order, runtime) = (Arc::clone(&queue), Arc::clone(&order), runtime.clone());
        tasks.push(start(&runtime.clone(), async move {
            let _lease = own.acquire(1).await?;
            order.lock().unwrap().push(number);
            runtime.step().await;
            Ok(())
        }));
        until(|| {
            let counts = queue.counts();
            u64::from(counts.waiters) + counts.evicted == number + 1
        })
        .await;
    }
    assert_eq!((queue.counts().waiters, queue.counts().evicted), (2, 1));
    drop(held);
    let mut outcomes = Vec::new();
    for task in tasks {
        outcomes.push(task.await);
    }
    assert!(matches!(
        outcomes[..],
        [Err(Rejected::Evicted { permits: 1, .. }), Ok(()), Ok(())]
    ));
    assert_eq!(*order.lock().unwrap(), [2, 1]);
    is_conserved(&queue, 1);
}

pub(crate) async fn a_closed_queue_is_drained_when_the_last_lease_is_released<R: Runtime>(
    runtime: &R,
) {
    let queue = Arc::new(Queue::new(Concurrency::new(2), runtime.timer(), 9));
    let own = Arc::clone(&queue);
    let driver = start(runtime, async move { own.drive().await });
    let held = Acquire::new(Arc::clone(&queue), 2).await.unwrap();
    let waits: Vec<_> = (0..3)
        .map(|_| {
            let own = Arc::clone(&queue);
            start(runtime, async move {
                own.acquire(1).await.map(|lease| lease.permits())
            })
        })
        .collect();
    until(|| queue.counts().waiters == 3).await;
    queue.close();
    for wait in waits {
        assert_eq!(wait.await, Err(Rejected::Closed { permits: 1 }));
    }
    driver.await;
    assert_eq!(
        queue.acquire(1).await.unwrap_err(),
        Rejected::Closed { permits: 1 }
    );

    let mut drained = pin!(queue.drained());
    assert!(
        poll_once(drained.as_mut()).await.is_pending(),
        "two are held"
    );
    let own = Arc::clone(&queue);
    let drains = start(runtime, async move { own.drained().await });
    let other = runtime.clone();
    let works = start(runtime, async move {
        let mut lease = held;
        lease.release(1).unwrap();
        other.step().await;
    });
    drained.await;
    drains.await;
    works.await;
    is_conserved(&queue, 2);
}

pub(crate) async fn a_burst_is_served_at_the_rate_by_an_attended_queue<R: Runtime>(runtime: &R) {
    a_burst_is_served_at_the_rate(runtime, false).await;
}

pub(crate) async fn a_burst_is_served_at_the_rate_by_a_task_that_drives<R: Runtime>(runtime: &R) {
    a_burst_is_served_at_the_rate(runtime, true).await;
}

async fn a_burst_is_served_at_the_rate<R: Runtime>(runtime: &R, driven: bool) {
    const EVERY: Duration = Duration::from_millis(5);
    let bucket = TokenBucket::new(Rate::new(1, EVERY), 5);
    let queue = Arc::new(Queue::new(bucket, runtime.timer(), 25));
    let driver = driven.then(|| {
        let own = Arc::clone(&queue);
        start(runtime, async move { own.drive().await })
    });
    if !driven {
        queue.attend_shared();
    }
    let begin = queue.clock().now();
    let mut served = Vec::new();
    for mut wait in (0..30)
        .map(|_| Box::pin(Acquire::new(Arc::clone(&queue), 1)))
        .collect::<Vec<_>>()
    {
        // Polled in this task before the next one; then elsewhere, with another waker.
        let first = poll_once(wait.as_mut()).await;
        let own = Arc::clone(&queue);
        served.push(start(runtime, async move {
            let lease = match first {
                Poll::Ready(lease) => lease,
                Poll::Pending => wait.await,
            };
            drop(lease.unwrap());
            own.clock().now()
        }));
    }
    for (place, served) in served.into_iter().enumerate() {
        let due = begin.saturating_add(EVERY * u32::try_from(place).unwrap().saturating_sub(4));
        let at: Timestamp = served.await;
        assert!(
            at >= due && (!R::EXACT || at == due),
            "{place}: at {at}, due at {due}"
        );
    }
    // What was due in the meantime is granted, and the next permit is not available yet.
    assert_eq!(queue.counts().waiters, 0);
    let now = queue.clock().now();
    let most = now.saturating_since(begin).as_nanos() / EVERY.as_nanos() + 5 - 30;
    assert!(u128::from(queue.available_at(now)) <= most);
    queue.close();
    if let Some(driver) = driver {
        driver.await;
    }
}
