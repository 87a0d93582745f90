//! A crawler with limits for each host and in total: of each host two pages at once and 10 per
//! second, and of all hosts together 4 pages at once. It leaves a host alone for as long as its
//! `Retry-After` asks.
//!
//! A page waits once, for all of its limits. It is sent when it is granted, so no host sees more
//! than 10 per second. While more pages are ready than there are places, the hosts take turns. A
//! host that is left alone holds no place, and its pages go on waiting in their order.
//!
//! The example `crawl` of portcullis-tower is a whole program: with reqwest, redirects, and limits
//! that the hosts state.
//!
//! ```sh
//! cargo run -p portcullis-async --features tokio --example crawler
//! ```

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::sync::Arc;

use portcullis_async::{KeyedQueue, Rejected, TokioTimer};
use portcullis_core::keyed::{Line, RandomSeed, WithTotal};
use portcullis_core::{
    AllOf, Clock, Concurrency, Denied, KeyedArray, Penalty, Rate, SettingsError, TokenBucket,
};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

const PAGES: [(&str, u32); 3] = [("a.example", 4), ("b.example", 4), ("c.example", 2)];

/// The limits of one host, and those of all: the types of a queue that a program stores.
type Host = Penalty<AllOf<(TokenBucket, Concurrency)>>;
type Hosts = WithTotal<KeyedArray<Host, Box<[Host]>, Box<[Line]>, RandomSeed>, Concurrency>;

struct Crawler {
    pages: Arc<KeyedQueue<Hosts, TokioTimer>>,
}

impl Crawler {
    fn new() -> Result<Self, SettingsError> {
        // A `Retry-After` of more than an hour counts as one of an hour.
        let pause = Penalty::builder(Duration::from_secs(3_600)).started_by_hand();
        let pause = pause.build()?;
        let host = || {
            let rate = TokenBucket::new(Rate::per_second(10), 1);
            pause.around(AllOf::new((rate, Concurrency::new(2))))
        };
        // 1,000 hosts can be in use at once. For each of them, up to 100 pages wait.
        let hosts = WithTotal::new(KeyedArray::for_keys(host, 1_000), Concurrency::new(4));
        let pages = KeyedQueue::new(hosts, TokioTimer::new(), 100);
        // The hosts count, too. Without slack, no grant is dated back.
        let pages = pages.with_slack(Duration::ZERO).shared();
        Ok(Self { pages })
    }

    /// Fetches a page, and again after a `Retry-After`.
    async fn fetch(&self, host: &str, page: u32) -> Result<(), Rejected> {
        loop {
            // A page that cannot be sent within 10 s is given up.
            let in_time = self.pages.acquire(host, 1).within(Duration::from_secs(10));
            let _until_it_is_fetched = in_time.await?;
            match send(host, page).await {
                Reply::Page => return Ok(()),
                Reply::RetryAfter(wait) => {
                    // Fails only if over 100 calls change or ask this host at the same time.
                    let _ = self.pause(host, wait);
                }
            }
        }
    }

    /// Sends nothing to a host for this time. Its pages that cannot wait so long are given up.
    fn pause(&self, host: &str, wait: Duration) -> Result<(), Denied> {
        let now = self.pages.clock().now();
        let until = now.saturating_add(wait);
        let pause = |host: &Host| host.penalize_at(now, until);
        self.pages
            .change(|hosts| hosts.table().change_key_at(now, host, pause))
            .map(drop)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn core::error::Error>> {
    let crawler = Arc::new(Crawler::new()?);
    let start = Instant::now();
    let mut pages = JoinSet::new();
    for (host, count) in PAGES {
        for page in 1..=count {
            let crawler = Arc::clone(&crawler);
            pages.spawn(async move {
                crawler.fetch(host, page).await?;
                println!("{:4} ms: {host}/{page}", start.elapsed().as_millis());
                Ok::<_, Rejected>(())
            });
        }
    }
    while let Some(page) = pages.join_next().await {
        page??;
    }
    Ok(())
}

enum Reply {
    Page,
    /// 429 or 503, with `Retry-After`.
    RetryAfter(Duration),
}

/// Stands for a request over HTTP.
async fn send(host: &str, page: u32) -> Reply {
    static ASKS_ONCE: AtomicBool = AtomicBool::new(true);
    sleep(Duration::from_millis(30)).await;
    if (host, page) == ("b.example", 2) && ASKS_ONCE.swap(false, Ordering::Relaxed) {
        println!("         b.example asks to be left alone for a second");
        return Reply::RetryAfter(Duration::from_secs(1));
    }
    Reply::Page
}
