//! The worker of `docs/worker.md`, with many more jobs of one tenant than it can run.
#![cfg(feature = "tokio")]

#[allow(dead_code, reason = "its `main`")]
#[path = "../examples/worker.rs"]
mod example;

use core::future::{pending, poll_fn};
use core::task::Poll;
use core::time::Duration;
use std::sync::Arc;

use example::{Job, Limits, Tenants, serve};
use portcullis_async::{KeyedQueue, TokioTimer};
use portcullis_core::keyed::WithTotal;
use portcullis_core::{AllOf, Concurrency, Keyed, Rate, TokenBucket};
use tokio::sync::mpsc;
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, sleep};

/// A rate and a number at once.
type InTotal = AllOf<(TokenBucket, Concurrency)>;

/// 50 per second and 8 at once of all tenants, of which each has at most 6.
fn in_one_queue() -> Arc<KeyedQueue<WithTotal<Tenants, InTotal>, TokioTimer>> {
    let rate = TokenBucket::new(Rate::per_second(50), 5);
    let total = AllOf::new((rate, Concurrency::new(8)));
    let tenants = Keyed::for_keys(Concurrency::new(6), 1_000);
    let limits = WithTotal::new(tenants, total);
    KeyedQueue::new(limits, TokioTimer::new(), 1_000).shared()
}

fn job(tenant: &str) -> Job {
    Job {
        tenant: tenant.to_owned(),
        cost: 1,
    }
}

#[tokio::test(start_paused = true)]
async fn a_tenant_with_few_jobs_is_served_beside_one_with_too_many() {
    let (sender, mut receiver) = mpsc::channel(1_000);
    for _ in 0..300 {
        sender.send(job("many")).await.unwrap();
    }
    for _ in 0..20 {
        sender.send(job("few")).await.unwrap();
    }
    drop(sender);
    let limits = Limits::new();
    let start = Instant::now();
    let served = serve(&mut receiver, &limits, pending::<()>()).await;
    assert_eq!(served.done["few"], 20);
    let many = served.done["many"];
    assert_eq!(many as usize + served.left.len(), 300);
    assert!(served.left.iter().all(|job| job.tenant == "many"));
    // 50 per second and 5 more for 2 s, and those with a place then.
    assert!((80..=95).contains(&many), "{many}");
    assert!(start.elapsed() < Duration::from_millis(2_300));
    assert_eq!(limits.free(), 8);
}

/// The channel is never empty, so a branch other than the end is ready in every turn.
#[tokio::test(start_paused = true)]
async fn the_end_is_noticed_while_jobs_come_all_the_time() {
    let (sender, mut receiver) = mpsc::channel(100);
    let sends = tokio::spawn(async move {
        let mut sent = 0;
        while sender.send(job("a")).await.is_ok() {
            sent += 1;
        }
        sent
    });
    // Ready at one poll only, as a signal is for a future that began to wait before it.
    let mut polls = 0;
    let end = poll_fn(move |_| {
        polls += 1;
        if polls == 50 {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    });
    let limits = Limits::new();
    let served = serve(&mut receiver, &limits, end).await;
    // Those that had permits at the end.
    let done = served.done.values().sum::<u32>() as usize;
    assert!(done <= 5, "{done}");
    assert_eq!(
        done + served.left.len(),
        sends.await.unwrap(),
        "none is lost"
    );
    assert_eq!(limits.free(), 8);
}

/// What a job waits for its place is not given to it again for the rate.
#[tokio::test(start_paused = true)]
async fn a_job_waits_for_its_place_and_the_rate_for_two_seconds_together() {
    let limits = Limits::new();
    let costly = || Job {
        tenant: "a".to_owned(),
        cost: 5,
    };
    let mut tasks = JoinSet::new();
    for _ in 0..60 {
        let limits = limits.clone();
        tasks.spawn(async move {
            let begun = Instant::now();
            (limits.run(&costly()).await.is_ok(), begun.elapsed())
        });
    }
    let ended = tasks.join_all().await;
    // 10 jobs per second.
    let run = ended.iter().filter(|(is_ok, _)| *is_ok).count();
    assert!((20..=22).contains(&run), "{run}");
    let longest = ended.iter().map(|(_, waited)| *waited).max().unwrap();
    assert!(longest <= Duration::from_millis(2_050), "{longest:?}");
}

#[tokio::test(start_paused = true)]
async fn jobs_that_are_aborted_leave_all_places_free() {
    let limits = Limits::new();
    let mut tasks = JoinSet::new();
    for _ in 0..40 {
        let limits = limits.clone();
        tasks.spawn(async move { limits.run(&job("a")).await });
    }
    yield_now().await;
    assert_eq!(limits.free(), 0);
    sleep(Duration::from_millis(10)).await;
    tasks.abort_all();
    while tasks.join_next().await.is_some() {}
    assert_eq!(limits.free(), 8);
    assert!(limits.run(&job("b")).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn after_close_no_job_begins_and_those_that_run_end() {
    let limits = Limits::new();
    let mut tasks = JoinSet::new();
    for _ in 0..20 {
        let limits = limits.clone();
        tasks.spawn(async move { limits.run(&job("a")).await });
    }
    sleep(Duration::from_millis(1)).await;
    limits.close();
    let ended = tasks.join_all().await;
    // The burst of the rate.
    assert_eq!(ended.iter().filter(|ended| ended.is_ok()).count(), 5);
    assert_eq!(limits.free(), 8);
}

#[tokio::test(start_paused = true)]
async fn one_queue_has_the_rate_and_the_places() {
    let queue = in_one_queue();
    let now = |tenant| queue.owned_key(tenant).try_acquire(1).ok();
    let mut held: Vec<_> = (0..6).filter_map(|_| now("a")).collect();
    assert_eq!(held.len(), 5, "the burst");
    assert!(now("b").is_none());
    let six = queue.owned_key("a").acquire(1).await.unwrap();
    let late = queue
        .owned_key("a")
        .acquire(1)
        .within(Duration::from_secs(1));
    assert!(late.await.is_err(), "6 of one tenant");
    held.push(six);
    for _ in 0..2 {
        held.push(queue.owned_key("b").acquire(1).await.unwrap());
    }
    let late = queue
        .owned_key("c")
        .acquire(1)
        .within(Duration::from_secs(1));
    assert!(late.await.is_err(), "8 in total");
}
