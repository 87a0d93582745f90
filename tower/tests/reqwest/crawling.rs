//! The crawler of the guide, against hosts that count.

use core::future::pending;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use axum::http::{HeaderMap, StatusCode};
use portcullis_async::Rejected;
use reqwest_middleware::reqwest::{Client, Url};
use tokio::task::JoinSet;
use tokio::time;

use crate::crawl::{Crawler, REQUESTS, crawl};
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
            let rejected = error.downcast_ref::<Rejected>();
            assert_eq!(rejected, Some(&Rejected::Closed { permits: 1 }), "{url}");
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
async fn a_page_is_given_up_at_once_if_its_host_asks_for_more_patience_than_there_is() {
    let start = time::Instant::now();
    let crawler = denied(7_200).await;
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
    }
    time::sleep_until(start + Duration::from_secs(6_601)).await;
    crawler
        .admit("busy.example")
        .await
        .map(drop)
        .expect("in 599 s");
    assert_eq!(start.elapsed(), Duration::from_hours(2));
}
