//! A crawler that obeys the hosts: 4 requests at once in total, and of each host two at once and 10
//! per second. A host that answers with `Retry-After` is left alone for as long as it asks.
//!
//! ```sh
//! # Ends when all pages are fetched, or by Ctrl-C.
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
use tokio::signal::ctrl_c;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

/// The tasks of each host, and so the most places of the total that it has.
pub(crate) const TASKS_OF_HOST: NonZero<u32> = NonZero::new(2).expect("not 0");

/// How long a request waits for its host, while it has a place of the total: more than
/// `TASKS_OF_HOST` requests take at the rate of the host, which is 200 ms here.
const PATIENCE: Duration = Duration::from_secs(1);

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
            .concurrency(TASKS_OF_HOST);
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
            let sending = match self.hosts.acquire(host).within(PATIENCE).await {
                Ok(sending) => sending,
                Err(rejected @ Rejected::Deadline { .. }) => {
                    // The host asks for more patience than that. Others take the place.
                    drop(place);
                    // `None`: the host will be asked again when another request has its reply.
                    let wait = rejected.retry().wait_from(TokioTimer::new().now());
                    sleep(wait.unwrap_or(PATIENCE)).await;
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

/// Fetches the pages of a host: every `TASKS_OF_HOST`th one.
async fn fetch(
    crawler: Crawler,
    host: &str,
    pages: impl Iterator<Item = u32>,
    start: Instant,
) -> Result<(), Rejected> {
    for page in pages {
        let status = crawler.page(host, page).await?;
        let at = start.elapsed().as_millis();
        println!("{at:4} ms: {host}/{page}: {status}");
    }
    Ok(())
}

async fn ended(tasks: &mut JoinSet<Result<(), Rejected>>) {
    while let Some(task) = tasks.join_next().await {
        println!("{:?}", task.expect("no panic"));
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let (crawler, start) = (Crawler::new(), Instant::now());
    let mut tasks = JoinSet::new();
    for (host, pages) in [("busy.example", 6), ("calm.example", 30)] {
        for first in 1..=TASKS_OF_HOST.get() {
            let pages = (first..=pages).step_by(TASKS_OF_HOST.get() as usize);
            tasks.spawn(fetch(crawler.clone(), host, pages, start));
        }
    }
    tokio::select! {
        () = ended(&mut tasks) => {}
        Ok(()) = ctrl_c() => {
            crawler.shut_down().await;
            // The tasks end. Those that sleep until a host allows more are aborted with the set.
            let _ = timeout(Duration::from_secs(1), ended(&mut tasks)).await;
        }
    }
}
