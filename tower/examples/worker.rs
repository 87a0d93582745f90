//! A crawler that obeys the hosts: 4 requests at once in total, and of each host one at a time and
//! 10 per second. A host that answers with `Retry-After` is left alone for as long as it asks.
//!
//! ```sh
//! cargo run -p portcullis-tower --features client --example worker
//! ```

use core::num::NonZero;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::sync::Arc;

use http::{HeaderMap, HeaderValue, StatusCode, header};
use portcullis_async::{Queue, Rejected, TokioTimer};
use portcullis_core::{Clock, Concurrency, Rate};
use portcullis_tower::client::ServerLimits;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// Clones share their limits.
#[derive(Clone)]
pub(crate) struct Crawler {
    total: Arc<Queue<Concurrency, TokioTimer>>,
    hosts: ServerLimits,
}

impl Crawler {
    pub(crate) fn new() -> Self {
        let hosts = ServerLimits::builder()
            .rate(Rate::per_second(10), 1)
            // The hosts count, too. Without slack, no two requests are closer than 100 ms.
            .slack(Duration::ZERO)
            .concurrency(NonZero::<u64>::MIN);
        Self {
            total: Queue::new(Concurrency::new(4), TokioTimer::new(), 1_000).shared(),
            hosts: hosts.build(),
        }
    }

    /// Fetches a page, again and again while its host denies it.
    pub(crate) async fn page(&self, host: &str, page: u32) -> Result<StatusCode, Rejected> {
        loop {
            // The host comes last: its permit counts from when it is granted.
            let place = self.total.acquire(1).await?;
            let request = self.hosts.acquire(host).within(Duration::from_secs(1));
            let sending = match request.await {
                Ok(sending) => sending,
                Err(rejected @ Rejected::Deadline { .. }) => {
                    // The host asks for more patience than that. Others take the place.
                    drop(place);
                    let wait = rejected.retry().wait_from(TokioTimer::new().now());
                    sleep(wait.unwrap_or(Duration::from_secs(1))).await;
                    continue;
                }
                Err(rejected) => return Err(rejected),
            };
            let (status, headers) = send(host, page).await;
            // What the host says about its limits holds for all requests to it from now on.
            sending.replied(status, &headers);
            if status != StatusCode::TOO_MANY_REQUESTS {
                return Ok(status);
            }
        }
    }

    /// Ends all waits with `Rejected::Closed`, and waits for the requests that are on their way.
    pub(crate) async fn shut_down(&self) {
        self.total.close();
        self.hosts.close();
        self.hosts.drained().await;
    }
}

/// Stands for a request over HTTP. `busy.example` denies its third page once.
async fn send(host: &str, page: u32) -> (StatusCode, HeaderMap) {
    static IS_DENIED: AtomicBool = AtomicBool::new(false);
    sleep(Duration::from_millis(30)).await;
    let mut headers = HeaderMap::new();
    if host == "busy.example" && page == 3 && !IS_DENIED.swap(true, Relaxed) {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(2));
        return (StatusCode::TOO_MANY_REQUESTS, headers);
    }
    (StatusCode::OK, headers)
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let (crawler, start) = (Crawler::new(), Instant::now());
    let mut hosts = JoinSet::new();
    for (host, pages) in [("busy.example", 6), ("calm.example", 1_000)] {
        let crawler = crawler.clone();
        // A task for each host, so that a host has no more than one place of the total.
        hosts.spawn(async move {
            for page in 1..=pages {
                let status = crawler.page(host, page).await?;
                if page <= 6 {
                    println!(
                        "{:4} ms: {host}/{page}: {status}",
                        start.elapsed().as_millis()
                    );
                }
            }
            Ok::<_, Rejected>(())
        });
    }
    // In place of Ctrl-C or SIGTERM.
    sleep(Duration::from_secs(4)).await;
    crawler.shut_down().await;
    while let Some(host) = hosts.join_next().await {
        println!("{:?}", host.expect("no panic"));
    }
}
