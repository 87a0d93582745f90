use core::time::Duration;
use std::sync::Arc;

use portcullis_async::{
    Acquire, DeadlineClock, KeyedQueue, Order, Oversized, Queue, Rejected, Waited,
};
use portcullis_core::keyed::{ConcurrencyRules, Line, RandomSeed};
use portcullis_core::{
    Concurrency, Counted, Denied, Keyed, Lease, Limiter, StripedConcurrency, Timeless, Timestamp,
};

fn built(n: u32, max_permits: u64) -> u32 {
    let queue = Queue::new(Concurrency::new(n), Timeless, max_permits);
    let queue = queue.with_oversized(Oversized::Wait);
    let _ = queue.change(|limit| limit.set_limit(0));
    let _ = queue.change(|limit| limit.add_permits(n));
    let _ = queue.change(|limit| limit.remove_permits(n));
    let _ = queue.change(|limit| limit.release(n));
    let _ = queue.available();
    let _ = queue.counts();
    queue.close();
    let _ = queue.is_closed();
    let queue = queue.with_order(Order::NewestFirst).with_max_waiters(9);
    let _ = queue.with_hook(|_: &Waited| {});
    let _: Queue<Counted<Concurrency>, _> =
        Queue::new(Counted::new(Concurrency::new(n)), Timeless, max_permits);
    let _ = <StripedConcurrency>::new(n);
    <Concurrency>::max_limit()
}

async fn waits<C: DeadlineClock>(
    queue: Arc<Queue<Concurrency, C>>,
    n: u32,
    d: Duration,
    deadline: Timestamp,
) -> Result<(), Rejected> {
    let _ = queue.acquire(1).await?;
    let _ = queue.acquire(n).await?;
    let _ = queue.acquire(0).await?;
    let _ = queue.acquire_owned(n).await?;
    let _ = queue.acquire(n).within(d).await?;
    let _ = queue.acquire(n).until(deadline).await?;
    queue.drained().await;
    queue.close();
    Ok(())
}

fn now<C: DeadlineClock>(queue: &Arc<Queue<Concurrency, C>>, n: u32) {
    let _ = queue.try_acquire(1);
    match queue.try_acquire(n) {
        Err(Denied::Exhausted { .. } | Denied::Closed { .. }) | _ => {}
    }
    let _ = queue.try_acquire_owned(n);
}

fn blocks<C: DeadlineClock>(
    queue: Arc<Queue<Concurrency, C>>,
    n: u32,
    d: Duration,
    deadline: Timestamp,
) -> Result<(), Rejected> {
    let _ = queue.blocking_acquire(n)?;
    let _ = queue.acquire(n).within(d).block()?;
    let _ = queue.acquire(n).until(deadline).block()?;
    let wait: Acquire<Arc<Queue<Concurrency, C>>> = queue.acquire_owned(n);
    let _ = Acquire::block(wait)?;
    Ok(())
}

fn named<
    P: core::ops::Deref<Target = Queue<Concurrency, Timeless>> + stable_deref_trait::StableDeref,
>(
    wait: Acquire<P>,
) -> Acquire<P> {
    wait
}

fn failed(rejected: Rejected) -> bool {
    match rejected {
        Rejected::Closed { .. } => true,
        Rejected::QueueFull { .. }
        | Rejected::Evicted { .. }
        | Rejected::Deadline { .. }
        | Rejected::ExceedsCapacity { .. }
        | Rejected::Refused { .. } => false,
        _ => false,
    }
}

fn leases(mut lease: Lease<&Concurrency>, n: u32) {
    let mut part = lease.split(n).unwrap();
    let _ = lease.permits();
    let _ = lease.limiter();
    let _ = part.release(n);
    let _ = lease.merge(part);
    lease.forget();
}

async fn keyed(queue: KeyedQueue<Keyed<ConcurrencyRules, Box<[Line]>, RandomSeed>, Timeless>) {
    queue.drained().await;
}
