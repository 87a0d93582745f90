//! A crawler with limits for each host and in total: of each host two pages at once and 10 per
//! second, and of all hosts together 4 pages at once.
//!
//! A page waits three times: for a place at its host, for a place in total, and last for the rate
//! of its host. The rate comes last because its permit counts from when it is granted. A page that
//! waited for something else after that would be sent late, and close to the next one: the host
//! would see more than 10 per second.
//!
//! ```sh
//! cargo run -p portcullis-async --features tokio --example crawler
//! ```

use core::time::Duration;
use std::sync::Arc;

use portcullis_async::{KeyedQueue, Queue, TokioTimer};
use portcullis_core::{Concurrency, Keyed, Rate, TokenBucket};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

const PAGES: [(&str, u32); 3] = [("a.example", 4), ("b.example", 4), ("c.example", 2)];

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn core::error::Error>> {
    // 1,000 hosts can be in use at once. For each of them, up to 100 pages wait.
    let places = Keyed::for_keys(Concurrency::new(2), 1_000);
    let places = KeyedQueue::new(places, TokioTimer::new(), 100).shared();
    let total = Queue::new(Concurrency::new(4), TokioTimer::new(), 1_000).shared();
    // The hosts count, too. Without slack, no grant is dated back.
    let rates = Keyed::for_keys(TokenBucket::new(Rate::per_second(10), 1), 1_000);
    let rates = KeyedQueue::new(rates, TokioTimer::new(), 100);
    let rates = rates.with_slack(Duration::ZERO).shared();

    let start = Instant::now();
    let mut pages = JoinSet::new();
    for (host, count) in PAGES {
        for page in 1..=count {
            let (places, total) = (Arc::clone(&places), Arc::clone(&total));
            let rates = Arc::clone(&rates);
            pages.spawn(async move {
                let _at_the_host = places.acquire(host, 1).await?;
                let _in_total = total.acquire(1).await?;
                // A page that cannot be sent within 10 s is given up.
                let in_time = rates.acquire(host, 1).within(Duration::from_secs(10));
                let _ = in_time.await?;
                fetch(host, page).await;
                println!("{:4} ms: {host}/{page}", start.elapsed().as_millis());
                Ok::<_, portcullis_async::Rejected>(())
            });
        }
    }
    while let Some(page) = pages.join_next().await {
        page??;
    }
    Ok(())
}

/// Stands for a request over HTTP.
async fn fetch(_: &str, _: u32) {
    sleep(Duration::from_millis(30)).await;
}
