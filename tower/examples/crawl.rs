//! A crawler that obeys the hosts: of each host 2 requests per second and 4 at once, of all hosts
//! together 40 at once. It leaves a host alone for as long as its `Retry-After` asks, and follows
//! redirects through the same limits.
//!
//! ```sh
//! # Ends when all pages are fetched, by Ctrl-C, or after 12 hours.
//! cargo run -p portcullis-tower --features client --example crawl -- \
//!     http://example.com/ http://example.org/
//! ```

use core::pin::pin;
use core::time::Duration;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use portcullis_async::{KeyedQueue, QueueKey, Rejected, TokioTimer};
use portcullis_core::keyed::{ConcurrencyRules, Line, RandomSeed, TokenBucketRules, WithTotal};
use portcullis_core::{Clock, Concurrency, KeyedList, Lease, Rate, Retry, TokenBucket};
use portcullis_tower::client::{Sending, ServerLimits};
use reqwest::header::LOCATION;
use reqwest::redirect::Policy;
use reqwest::{Client, ClientBuilder, StatusCode, Url};
use tokio::signal::ctrl_c;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// A task of tokio can return it. A plain `Box<dyn Error>` cannot leave its thread.
pub(crate) type Error = Box<dyn core::error::Error + Send + Sync>;

/// The limits of each host, in a table, and the limit of all hosts.
type Limits = (TokenBucketRules, ConcurrencyRules);
pub(crate) type Hosts = WithTotal<KeyedList<Limits, Box<[Line]>, RandomSeed>, Concurrency>;
pub(crate) type Places = KeyedQueue<Hosts, TokioTimer>;

/// The most pages of one host that have a task: 10 s times 2 per second.
pub(crate) const TASKS: usize = 20;

/// The longest wait before a request, also for a host that asks for time.
pub(crate) const PATIENCE: Duration = Duration::from_mins(10);

/// How long the whole crawl goes on.
const LONGEST: Duration = Duration::from_hours(12);

/// The requests to one host that can wait: those that get their turn in that time.
const WAITING: u64 = 1_200;

/// The most requests for one page: the first, those after redirects, and those after denials.
pub(crate) const REQUESTS: u32 = 10;

/// Clones share their limits.
#[derive(Clone)]
pub(crate) struct Crawler {
    client: Client,
    /// The limits of the crawler itself.
    pub(crate) places: Arc<Places>,
    /// What the hosts say in their replies.
    hosts: ServerLimits,
}

impl Crawler {
    pub(crate) fn new(client: ClientBuilder) -> Result<Self, Error> {
        // By itself, reqwest follows redirects past all limits, and waits for ever.
        let client = client.redirect(Policy::none());
        let client = client.timeout(Duration::from_secs(30)).build()?;
        // Two of them arrive within a second at most: (1 s + J) / 2 from one to the next, for a
        // jitter J of 60 ms.
        let rate = TokenBucket::new(Rate::new(1, Duration::from_millis(530)), 1);
        let host = (rate, Concurrency::new(4));
        // 1,000 hosts can be in use at once.
        let limits = WithTotal::new(KeyedList::for_keys(host, 1_000), Concurrency::new(40));
        let places = KeyedQueue::new(limits, TokioTimer::new(), WAITING).with_max_waiters(100_000);
        // A longer `Retry-After` than that of a day counts as one of a day.
        let hosts = ServerLimits::builder().longest(Duration::from_hours(24));
        Ok(Self {
            client,
            // The hosts count, too. Without slack, no two requests are closer than 530 ms.
            places: places.with_slack(Duration::ZERO).shared(),
            hosts: hosts.build(),
        })
    }

    /// Waits until a request may be sent to the host.
    pub(crate) async fn admit(
        &self,
        host: &str,
    ) -> Result<(Lease<QueueKey<&Places>>, Sending), Rejected> {
        // One deadline for all waits.
        let deadline = self.places.clock().now() + PATIENCE;
        loop {
            // Waits for the end of a `Retry-After`, and takes nothing.
            self.hosts.ready(host).until(deadline).await?;
            // Waits for the rate of the host, a place of the host and one of all, decided at once.
            let place = self.places.acquire(host, 1).until(deadline).await?;
            // The host may have denied a request meanwhile. A request with a place does not wait.
            match self.hosts.acquire(host).within(Duration::ZERO).await {
                Ok(sending) => return Ok((place, sending)),
                // The place is given back, and the request waits with the others.
                Err(Rejected::Deadline { .. }) => {}
                Err(rejected) => return Err(rejected),
            }
        }
    }

    /// Sends one request.
    async fn send(&self, url: &Url) -> Result<Reply, Error> {
        let host = url.host_str().ok_or("a URL without a host")?;
        // An error drops both, and the next request takes the place.
        let (_place, sending) = self.admit(host).await?;
        let response = self.client.get(url.clone()).send().await?;
        let (status, headers) = (response.status(), response.headers());
        // What the host says holds for all requests to it, from now on.
        if sending.replied(status, headers) {
            return Ok(Reply::Denial);
        }
        let target = headers.get(LOCATION).filter(|_| status.is_redirection());
        if let Some(target) = target {
            return Ok(Reply::Redirect(url.join(target.to_str()?)?));
        }
        // The request has its place until its body is read.
        Ok(Reply::Page(status, response.text().await?))
    }

    /// Fetches a page: where redirects lead to, and again while its host denies it.
    pub(crate) async fn page(&self, mut url: Url) -> Result<(StatusCode, String), Error> {
        for _ in 0..REQUESTS {
            match self.send(&url).await? {
                Reply::Page(status, body) => return Ok((status, body)),
                // Its host may be another one, with limits of its own.
                Reply::Redirect(target) => url = target,
                // The next request waits until the host allows it.
                Reply::Denial => {}
            }
        }
        Err(format!("no page after {REQUESTS} redirects and denials, the last of {url}").into())
    }

    /// How long to wait before a page is offered again. `None` if it was no wait that failed, and
    /// after `close`.
    pub(crate) fn again(&self, error: &Error) -> Option<Duration> {
        match error.downcast_ref::<Rejected>()?.retry() {
            // A permit returns when another request ends, at a time that is not known.
            Retry::OnRelease => Some(Duration::from_secs(1)),
            retry => retry.wait_from(self.places.clock().now()),
        }
    }

    /// Ends all waits with `Rejected::Closed`. No request is sent any more. Those on their way go
    /// on.
    pub(crate) fn close(&self) {
        self.places.close();
        self.hosts.close();
    }
}

enum Reply {
    Page(StatusCode, String),
    Redirect(Url),
    /// 429, or 503 with `Retry-After`.
    Denial,
}

/// Fetches all pages, each in a task of its own, and tells what became of each. After `end`, waits
/// only for the requests that are on their way.
pub(crate) async fn crawl(
    crawler: &Crawler,
    urls: impl IntoIterator<Item = Url>,
    end: impl Future,
    mut fetched: impl FnMut(Url, Result<(StatusCode, String), Error>),
) {
    let host = |url: &Url| url.host_str().unwrap_or_default().to_owned();
    // Those that get a task next, and of each host the number of its tasks and the other pages.
    let (mut next, mut hosts) = (Vec::new(), HashMap::new());
    for url in urls {
        let (tasks, pages) = hosts.entry(host(&url)).or_insert((0, VecDeque::new()));
        if *tasks < TASKS {
            *tasks += 1;
            next.push(url);
        } else {
            pages.push_back(url);
        }
    }
    let (mut tasks, mut of_tasks) = (JoinSet::new(), HashMap::new());
    let mut end = pin!(end);
    let mut is_open = true;
    loop {
        for url in next.drain(..) {
            let (crawler, page) = (crawler.clone(), url.clone());
            let task = tasks.spawn(async move { crawler.page(page).await });
            of_tasks.insert(task.id(), url);
        }
        tokio::select! {
            task = tasks.join_next_with_id() => {
                let (task, page) = match task {
                    Some(Ok(ended)) => ended,
                    // The task has panicked. Its page is not lost.
                    Some(Err(error)) => (error.id(), Err(error.into())),
                    None => return,
                };
                let url = of_tasks.remove(&task).expect("each task has a page");
                // The next one of the same host, and not of any other.
                let of_host = hosts.get_mut(&host(&url));
                next.extend(of_host.and_then(|(_, pages)| pages.pop_front()));
                fetched(url, page);
            }
            _ = &mut end, if is_open => {
                crawler.close();
                is_open = false;
            }
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let urls = std::env::args().skip(1).map(|url| url.parse());
    let urls: Vec<Url> = urls.collect::<Result<_, _>>()?;
    let crawler = Crawler::new(Client::builder().user_agent("crawl/0.1"))?;
    let end = async {
        tokio::select! {
            _ = ctrl_c() => {}
            () = sleep(LONGEST) => {}
        }
    };
    crawl(&crawler, urls, end, |url, page| match page {
        Ok((status, body)) => println!("{url}: {status}, {} bytes", body.len()),
        // It has not been fetched, for whatever reason. Keep its URL.
        Err(error) => match crawler.again(&error) {
            Some(wait) => println!("{url}: {error}: again in {wait:?}"),
            None => println!("{url}: {error}"),
        },
    })
    .await;
    Ok(())
}
