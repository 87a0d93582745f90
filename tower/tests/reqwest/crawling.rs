//! The crawler of the guide, against hosts that count.

use core::future::pending;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use axum::http::{HeaderMap, StatusCode};
use metrics_exporter_prometheus::PrometheusBuilder;
use portcullis_async::{DefaultLock, KeyedQueue, Rejected, TokioTimer, Waited};
use portcullis_core::keyed::WithTotal;
use portcullis_core::{Concurrency, Counted, KeyedList, Rate, TokenBucket};
use portcullis_tower::client::ServerLimits;
use reqwest_middleware::reqwest::dns::{Name, Resolve, Resolving};
use reqwest_middleware::reqwest::{Client, Url};
use tokio::task::{JoinSet, yield_now};
use tokio::time;

use crate::crawl::{self, Crawler, Error, PATIENCE, REQUESTS, TASKS, crawl};
use crate::hosts::{Hosts, SLOW, Seen};

const SECOND: Duration = Duration::from_secs(1);

/// The hosts that do anything special.
const SPECIAL: [&str; 6] = [
    "busy.example",
    "down.example",
    "slow.example",
    "old.example",
    "new.example",
    "round.example",
];

fn names() -> Vec<String> {
    let plain = (SPECIAL.len()..50).map(|number| format!("{number}.example"));
    SPECIAL
        .map(str::to_owned)
        .into_iter()
        .chain(plain)
        .collect()
}

/// Measures how late the tasks of the runtime are at most, while it runs.
struct Lateness(Arc<AtomicU64>);

impl Lateness {
    fn measure() -> Self {
        const TICK: Duration = Duration::from_millis(5);
        let worst = Arc::<AtomicU64>::default();
        let measured = Arc::clone(&worst);
        tokio::spawn(async move {
            loop {
                let start = Instant::now();
                time::sleep(TICK).await;
                let late = start.elapsed().saturating_sub(TICK);
                measured.fetch_max(late.as_micros().try_into().unwrap_or(u64::MAX), Relaxed);
            }
        });
        Self(worst)
    }

    fn worst(&self) -> Duration {
        Duration::from_micros(self.0.load(Relaxed))
    }
}

/// No host has had more than 2 requests in a second, or more than 4 at once. A request that came
/// late, because the machine was busy, is closer to the next one.
fn assert_limits(hosts: &Hosts, late: Duration) -> HashMap<String, Seen> {
    let seen = hosts.seen();
    for (name, seen) in &seen {
        for three in seen.arrivals.windows(3) {
            let time = three[2] - three[0];
            assert!(
                time + late >= SECOND,
                "{name}: 3 in {time:?}, {late:?} late"
            );
        }
        assert!(seen.most_at_once <= 4, "{name}: {}", seen.most_at_once);
        assert_eq!(seen.too_early, 0, "{name}");
    }
    assert!(hosts.all().most_at_once <= 40);
    seen
}

#[tokio::test]
async fn no_host_gets_more_than_its_limits_and_none_is_asked_before_it_wants_to_be() {
    let hosts = Hosts::serve().await;
    let names = names();
    let client = hosts.client(names.iter().map(String::as_str));
    let crawler = Crawler::new(client).expect("a client");
    let mut urls = Vec::new();
    for name in &names {
        match &**name {
            "old.example" => {
                urls.extend([(); 3].map(|()| hosts.url(name, "/away")));
                urls.extend([(); 2].map(|()| hosts.url(name, "/here")));
            }
            "round.example" => urls.push(hosts.url(name, "/round")),
            _ => urls.extend([(); 6].map(|()| hosts.url(name, "/page"))),
        }
    }
    let (late, mut failed) = (Lateness::measure(), Vec::new());
    crawl(&crawler, urls, pending::<()>(), |url, page| match page {
        Ok((status, body)) => {
            assert_eq!(status, StatusCode::OK, "{url}");
            let is_moved = url.path() == "/away";
            let name = if is_moved {
                "new.example"
            } else {
                url.host_str().expect("a name")
            };
            assert_eq!(body, format!("{name}/page"));
        }
        Err(error) => failed.push((url, error.to_string())),
    })
    .await;

    let seen = assert_limits(&hosts, late.worst());
    // Each limit was reached.
    assert_eq!(hosts.all().most_at_once, 40);
    assert_eq!(seen["slow.example"].most_at_once, 4);
    for name in ["busy.example", "down.example"] {
        assert_eq!(
            (seen[name].denials, seen[name].arrivals.len()),
            (2, 8),
            "{name}"
        );
    }
    // Its own 6 pages, and those that were there before.
    assert_eq!(seen["new.example"].arrivals.len(), 9);
    assert_eq!(seen["old.example"].arrivals.len(), 3 + 2 * 2);
    assert_eq!(seen["round.example"].arrivals.len(), REQUESTS as usize);
    let [(url, _)] = &failed[..] else {
        panic!("{failed:?}");
    };
    assert_eq!(url.host_str(), Some("round.example"));
}

#[tokio::test]
async fn at_the_end_no_request_begins_and_those_on_their_way_are_waited_for() {
    let hosts = Hosts::serve().await;
    let names = names();
    let client = hosts.client(names.iter().map(String::as_str));
    let crawler = Crawler::new(client).expect("a client");
    let pages = |name: &String| [(); 20].map(|()| hosts.url(name, "/page"));
    let urls: Vec<Url> = names.iter().flat_map(pages).collect();
    let late = Lateness::measure();
    let (mut end, mut ended) = (None, 0);
    let until_end = async {
        time::sleep(SECOND).await;
        end = Some(Instant::now());
    };
    let mut fetched = 0;
    crawl(&crawler, urls, until_end, |url, page| match page {
        Ok(_) => fetched += 1,
        Err(error) => {
            let rejected = error.downcast_ref();
            assert!(
                matches!(rejected, Some(Rejected::Closed { .. })),
                "{url}: {error}"
            );
            ended += 1;
        }
    })
    .await;
    let (all, late, end) = (hosts.all(), late.worst(), end.expect("it has ended"));
    // The pages that wait have ended at once, and not when their rate allows them.
    assert!(end.elapsed() <= SLOW + SECOND + late, "{:?}", end.elapsed());
    assert_eq!(fetched + ended, 20 * names.len());
    assert_eq!(fetched, all.arrivals.len());
    let last = all.arrivals.iter().max().expect("a request");
    assert!(*last <= end + late, "{:?} after the end", *last - end);
    assert_limits(&hosts, late);
}

fn denial(seconds: u64) -> (StatusCode, HeaderMap) {
    let mut headers = HeaderMap::new();
    headers.insert("retry-after", seconds.into());
    (StatusCode::TOO_MANY_REQUESTS, headers)
}

/// A crawler, of which `busy.example` has denied a request.
async fn denied(seconds: u64) -> Crawler {
    let crawler = Crawler::new(Client::builder()).expect("a client");
    let (place, sending) = crawler.admit("busy.example").await.expect("the first one");
    let (status, headers) = denial(seconds);
    assert!(sending.replied(status, &headers));
    drop(place);
    crawler
}

#[tokio::test(start_paused = true)]
async fn no_place_idles_while_a_host_is_left_alone_or_one_request_tries_first() {
    let start = time::Instant::now();
    let crawler = denied(60).await;
    let mut tasks = JoinSet::new();
    for _ in 0..10 {
        let crawler = crawler.clone();
        tasks.spawn(async move {
            let (place, sending) = crawler.admit("busy.example").await.expect("in time");
            let admitted = start.elapsed().as_millis();
            time::sleep(SECOND).await;
            assert!(!sending.replied(StatusCode::OK, &HeaderMap::new()));
            drop(place);
            admitted
        });
    }
    time::sleep(SECOND).await;
    // Ten wait for the host, and all places are free for others.
    let mut places = Vec::new();
    for number in 0..40 {
        places.push(
            crawler
                .admit(&format!("{number}.example"))
                .await
                .expect("a place"),
        );
    }
    assert_eq!(start.elapsed(), SECOND);
    places.clear();
    // The first one tries alone until 61 s. At 60.53 s another one gives its place back.
    time::sleep_until(start + Duration::from_millis(60_600)).await;
    for number in 0..39 {
        places.push(
            crawler
                .admit(&format!("{number}.example"))
                .await
                .expect("a place"),
        );
    }
    assert_eq!(start.elapsed(), Duration::from_millis(60_600));
    drop(places);
    let mut times = tasks.join_all().await;
    times.sort_unstable();
    let others = (0..9).map(|number| 61_060 + 530 * number);
    let expected: Vec<_> = [60_000].into_iter().chain(others).collect();
    assert_eq!(times, expected);
}

#[tokio::test(start_paused = true)]
async fn a_page_is_given_back_at_once_if_its_host_asks_for_more_patience_than_there_is() {
    let start = time::Instant::now();
    let crawler = denied(7_200).await;
    let mut again = Duration::ZERO;
    for seconds in [0, 4_000, 6_599] {
        let at = Duration::from_secs(seconds);
        time::sleep_until(start + at).await;
        let rejected = crawler
            .admit("busy.example")
            .await
            .map(drop)
            .expect_err("in 10 minutes");
        assert!(matches!(rejected, Rejected::Deadline { .. }), "{rejected}");
        assert_eq!(start.elapsed(), at);
        again = crawler.again(&rejected.into()).expect("a time");
        assert_eq!(at + again, Duration::from_hours(2));
    }
    time::sleep(again).await;
    let admitted = crawler.admit("busy.example").await;
    assert_eq!(start.elapsed(), Duration::from_hours(2));
    drop(admitted.expect("its host allows it"));
}

#[tokio::test(start_paused = true)]
async fn a_page_waits_until_its_patience_is_over_for_its_host_and_its_place_together() {
    let crawler = denied(400).await;
    let start = time::Instant::now();
    let mut places = Vec::new();
    for number in 0..40 {
        let admitted = crawler.admit(&format!("{number}.example")).await;
        places.push(admitted.expect("a place"));
    }
    // Its host is left alone for 400 s, and no place is free after that.
    let rejected = crawler.admit("busy.example").await.map(drop);
    assert!(matches!(rejected, Err(Rejected::Deadline { .. })));
    assert_eq!(start.elapsed(), PATIENCE);
    // Nobody knows when a place returns.
    let error: Error = rejected.expect_err("no place").into();
    assert_eq!(crawler.again(&error), Some(SECOND));
    assert_eq!(crawler.again(&"no wait".into()), None);
    crawler.close();
    let closed = crawler.admit("busy.example").await.map(drop);
    let error: Error = closed.expect_err("closed").into();
    assert_eq!(crawler.again(&error), None);
}

/// Fetches all pages, and those that were given back once more. Returns those that have failed.
async fn crawl_again(crawler: &Crawler, mut urls: Vec<Url>) -> Vec<Url> {
    let mut failed = Vec::new();
    while !urls.is_empty() {
        let (mut left, mut wait) = (Vec::new(), Duration::ZERO);
        crawl(crawler, urls, pending::<()>(), |url, page| {
            let Err(error) = page else { return };
            match crawler.again(&error) {
                Some(time) => {
                    left.push(url);
                    wait = wait.max(time);
                }
                None => failed.push(url),
            }
        })
        .await;
        time::sleep(wait).await;
        urls = left;
    }
    failed
}

#[tokio::test(start_paused = true)]
async fn a_page_that_is_given_back_is_offered_again_when_its_host_allows_it() {
    let start = time::Instant::now();
    let crawler = denied(7_200).await;
    // Nothing listens there: so the request has failed, and is not offered once more.
    let url: Url = "http://busy.example:1/".parse().expect("a URL");
    assert_eq!(crawl_again(&crawler, vec![url.clone()]).await, [url]);
    assert!(start.elapsed() >= Duration::from_hours(2));
}

#[tokio::test]
async fn a_host_with_many_pages_has_a_bounded_number_of_tasks_and_loses_no_page() {
    let hosts = Hosts::serve().await;
    let crawler = Crawler::new(hosts.client(["6.example", "7.example"])).expect("a client");
    let of = |name, pages| (0..pages).map(move |_| name);
    let urls = of("6.example", 3 * TASKS).chain(of("7.example", 2));
    let urls: Vec<Url> = urls.map(|name| hosts.url(name, "/page")).collect();
    let mut most = 0;
    let end = async {
        let start = Instant::now();
        while start.elapsed() < 2 * SECOND {
            most = most.max(crawler.places.counts().waiters);
            time::sleep(Duration::from_millis(20)).await;
        }
    };
    let (mut fetched, mut closed) = (HashMap::<String, usize>::new(), 0);
    crawl(&crawler, urls, end, |url, page| match page {
        Ok(_) => {
            let name = url.host_str().expect("a name");
            *fetched.entry(name.into()).or_default() += 1;
        }
        Err(error) => {
            let rejected = error.downcast_ref();
            assert!(matches!(rejected, Some(Rejected::Closed { .. })), "{error}");
            closed += 1;
        }
    })
    .await;
    assert!((TASKS - 1..=TASKS + 2).contains(&(most as usize)), "{most}");
    assert_eq!(fetched["7.example"], 2);
    assert_eq!(fetched["6.example"] + closed, 3 * TASKS);
}

/// Panics in the task of the page.
struct Panics;

impl Resolve for Panics {
    fn resolve(&self, _: Name) -> Resolving {
        panic!("on purpose")
    }
}

#[tokio::test]
async fn the_page_of_a_task_that_panics_is_not_lost() {
    let client = Client::builder().no_proxy().dns_resolver(Arc::new(Panics));
    let crawler = Crawler::new(client).expect("a client");
    let url: Url = "http://busy.example/".parse().expect("a URL");
    let mut told = Vec::new();
    crawl(&crawler, [url.clone()], pending::<()>(), |url, page| {
        told.push((url, page.expect_err("a panic").to_string()));
    })
    .await;
    let [(page, error)] = &told[..] else {
        panic!("{told:?}");
    };
    assert!(*page == url && error.contains("panic"), "{error}");
}

/// In place of `Places`, for the counts of all requests and the times of all waits.
type Measured = KeyedQueue<Counted<crawl::Hosts>, TokioTimer, DefaultLock, fn(&Waited)>;

fn measured(limits: crawl::Hosts) -> Measured {
    let places = KeyedQueue::new(Counted::new(limits), TokioTimer::new(), 1_200);
    places.with_hook::<fn(&Waited)>(|waited| {
        metrics::histogram!("wait_seconds").record(waited.time.as_secs_f64());
    })
}

/// The type of a hook that captures.
type Captures = Box<dyn Fn(&Waited) + Send + Sync>;

const _: fn(KeyedQueue<crawl::Hosts, TokioTimer>, Captures) =
    |places, hook| drop(places.with_hook(hook));

fn gauge(places: &Measured, hosts: &ServerLimits) {
    metrics::gauge!("pages_waiting").set(places.counts().waiters);
    let counts = places.table_counts();
    let used = u32::try_from(counts.held).expect("40 at most");
    metrics::gauge!("places_used").set(used);
    metrics::counter!("places_granted").absolute(counts.granted.requests);
    // `None` if no request to this host has been asked for.
    if let Some(counts) = hosts.counts("a.example") {
        metrics::gauge!("waiting_for_a").set(counts.waiters);
    }
}

#[tokio::test(start_paused = true)]
async fn the_counts_of_the_guide_are_those_of_waits_and_those_of_all_requests() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let _recorder = metrics::set_default_local_recorder(&recorder);
    let rate = TokenBucket::new(Rate::new(1, Duration::from_millis(530)), 1);
    let limits = KeyedList::for_keys((rate, Concurrency::new(4)), 1_000);
    let places = measured(WithTotal::new(limits, Concurrency::new(40))).shared();
    let hosts = ServerLimits::new();
    assert_eq!(hosts.counts("a.example"), None);
    hosts.ready("a.example").await.expect("nothing is denied");

    // The first one has its place at once, the second one waits, and the third one is rejected.
    let mut held = Vec::new();
    for _ in 0..2 {
        held.push(places.acquire("a.example", 1).await.expect("a place"));
    }
    let late = places.acquire("a.example", 1).within(Duration::ZERO).await;
    assert!(matches!(late, Err(Rejected::Deadline { .. })));
    let (waits, all) = (places.counts(), places.table_counts());
    assert_eq!((waits.granted, waits.late), (1, 1));
    assert_eq!(
        (all.granted.requests, all.denied.requests, all.held),
        (2, 1, 2)
    );
    gauge(&places, &hosts);
    let text = recorder.handle().render();
    for line in [
        "pages_waiting 0",
        "places_used 2",
        "places_granted 2",
        "waiting_for_a 0",
        // The hook sees the wait alone.
        "wait_seconds_count 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }

    // A request that the end of the queue rejects is refused.
    let waiting = Arc::clone(&places);
    let task = tokio::spawn(async move { waiting.acquire("a.example", 1).await.map(drop) });
    yield_now().await;
    places.close();
    assert!(task.await.expect("no panic").is_err());
    assert_eq!((places.counts().waiters, places.counts().closed), (0, 1));
    assert_eq!(places.table_counts().refused.requests, 1);
}
