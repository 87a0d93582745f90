//! A crawler with limits for each host and in total: of each host two pages at once and 10 per
//! second, and of all hosts together 4 pages at once.
//!
//! A page waits once, for all of its limits. It is sent when it is granted, so no host sees more
//! than 10 per second. While more pages are ready than there are places, the hosts take turns.
//!
//! It knows no `Retry-After`. The example `crawl` of portcullis-tower obeys that too.
//!
//! ```sh
//! cargo run -p portcullis-async --features tokio --example crawler
//! ```

use core::time::Duration;
use std::sync::Arc;

use portcullis_async::{KeyedQueue, TokioTimer};
use portcullis_core::keyed::WithTotal;
use portcullis_core::{Concurrency, KeyedList, Rate, TokenBucket};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

const PAGES: [(&str, u32); 3] = [("a.example", 4), ("b.example", 4), ("c.example", 2)];

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn core::error::Error>> {
    // 1,000 hosts can be in use at once. For each of them, up to 100 pages wait.
    let host = (
        TokenBucket::new(Rate::per_second(10), 1),
        Concurrency::new(2),
    );
    let limits = WithTotal::new(KeyedList::for_keys(host, 1_000), Concurrency::new(4));
    let queue = KeyedQueue::new(limits, TokioTimer::new(), 100);
    // The hosts count, too. Without slack, no grant is dated back.
    let queue = queue.with_slack(Duration::ZERO).shared();

    let start = Instant::now();
    let mut pages = JoinSet::new();
    for (host, count) in PAGES {
        for page in 1..=count {
            let queue = Arc::clone(&queue);
            pages.spawn(async move {
                // A page that cannot be sent within 10 s is given up.
                let in_time = queue.acquire(host, 1).within(Duration::from_secs(10));
                let _until_it_is_fetched = in_time.await?;
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
