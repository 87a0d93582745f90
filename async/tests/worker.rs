//! Jobs of different costs in two queues, with one deadline.
#![cfg(feature = "tokio")]

use core::time::Duration;
use std::sync::Arc;

use portcullis_async::{KeyedQueue, Queue, Rejected, TokioTimer};
use portcullis_core::keyed::{ConcurrencyRules, Line, RandomSeed, WithTotal};
use portcullis_core::{Clock, Concurrency, Keyed, Rate, TokenBucket};
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, sleep};

/// A limit for each tenant.
type Tenants = Keyed<ConcurrencyRules, Box<[Line]>, RandomSeed>;

/// Places that all tenants share, and units of cost per second.
#[derive(Clone)]
struct Limits {
    places: Arc<KeyedQueue<WithTotal<Tenants, Concurrency>, TokioTimer>>,
    costs: Arc<Queue<TokenBucket, TokioTimer>>,
}

impl Limits {
    /// Runs work when it is its turn, or rejects it after 2 s.
    async fn run<T>(
        &self,
        tenant: &str,
        cost: u32,
        work: impl Future<Output = T>,
    ) -> Result<T, Rejected> {
        let deadline = self.places.clock().now() + Duration::from_secs(2);
        let _place = self.places.acquire(tenant, 1).until(deadline).await?;
        // The rate last: its permits count from when they are granted.
        let _ = self.costs.acquire(cost).until(deadline).await?;
        Ok(work.await)
    }
}

/// 8 jobs at once, and 50 units of cost per second after 5 more at the start.
fn limits() -> Limits {
    let tenants = Keyed::for_keys(Concurrency::new(8), 1_000);
    let places = WithTotal::new(tenants, Concurrency::new(8));
    let costs = TokenBucket::new(Rate::per_second(50), 5);
    Limits {
        places: KeyedQueue::new(places, TokioTimer::new(), 100).shared(),
        costs: Queue::new(costs, TokioTimer::new(), 8 * 5).shared(),
    }
}

fn free(limits: &Limits) -> u64 {
    let now = limits.places.clock().now();
    limits.places.total().available_at(now)
}

#[tokio::test(start_paused = true)]
async fn a_job_waits_for_its_place_and_the_rate_for_two_seconds_together() {
    let limits = limits();
    let mut tasks = JoinSet::new();
    for _ in 0..60 {
        let limits = limits.clone();
        tasks.spawn(async move {
            let begun = Instant::now();
            let work = sleep(Duration::from_millis(20));
            (limits.run("a", 5, work).await.is_ok(), begun.elapsed())
        });
    }
    let ended = tasks.join_all().await;
    // 10 jobs per second.
    let run = ended.iter().filter(|(is_ok, _)| *is_ok).count();
    assert!((20..=22).contains(&run), "{run}");
    let longest = ended.iter().map(|(_, waited)| *waited).max().unwrap();
    assert!(longest <= Duration::from_millis(2_050), "{longest:?}");
    assert_eq!(free(&limits), 8);
}

#[tokio::test(start_paused = true)]
async fn jobs_that_are_aborted_leave_all_places_free() {
    let limits = limits();
    let mut tasks = JoinSet::new();
    for _ in 0..40 {
        let limits = limits.clone();
        tasks.spawn(async move { limits.run("a", 1, sleep(Duration::from_millis(20))).await });
    }
    yield_now().await;
    assert_eq!(free(&limits), 0);
    sleep(Duration::from_millis(10)).await;
    tasks.abort_all();
    while tasks.join_next().await.is_some() {}
    assert_eq!(free(&limits), 8);
}
