//! A crawler with limits for each host and in total: of each host one page at once and 10 per
//! second, and of all hosts together 3 pages at once.
//!
//! A page first waits for its host and then for a place in total, so a slow host keeps no place
//! from the others. Its leases return when the page is there.
//!
//! ```sh
//! cargo run -p portcullis-async --features tokio --example crawler
//! ```

use core::time::Duration;
use std::sync::Arc;

use portcullis_async::{KeyedQueue, Queue, TokioTimer};
use portcullis_core::{Concurrency, KeyedList, Rate, TokenBucket};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

const PAGES: [(&str, u32); 3] = [("a.example", 4), ("b.example", 4), ("c.example", 2)];

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn core::error::Error>> {
    // 1,000 hosts can be in use at once. For each of them, up to 100 pages wait.
    let each = (
        TokenBucket::new(Rate::per_second(10), 1),
        Concurrency::new(1),
    );
    let hosts = KeyedList::for_keys(each, 1_000);
    let hosts = KeyedQueue::new(hosts, TokioTimer::new(), 100).shared();
    let total = Queue::new(Concurrency::new(3), TokioTimer::new(), 1_000).shared();

    let start = Instant::now();
    let mut pages = JoinSet::new();
    for (host, count) in PAGES {
        for page in 1..=count {
            let (hosts, total) = (Arc::clone(&hosts), Arc::clone(&total));
            pages.spawn(async move {
                let _host = hosts.acquire(host, 1).await?;
                let _place = total.acquire(1).await?;
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
