//! A client of reqwest against a limited axum service, on loopback.

#[path = "../examples/crawl.rs"]
#[allow(dead_code, reason = "its `main`")]
mod crawl;
#[path = "reqwest/crawling.rs"]
mod crawling;
#[path = "reqwest/hosts.rs"]
mod hosts;
#[path = "support/server.rs"]
mod server;

use core::net::SocketAddr;
use core::num::NonZero;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use axum::Router;
use axum::http::header::{LOCATION, RETRY_AFTER};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::get;
use portcullis_async::Rejected;
use portcullis_core::{FixedWindow, MonotonicClock, Rate};
use portcullis_tower::client::ServerLimits;
use portcullis_tower::fields::{Generation, Quota};
use reqwest_middleware::ClientBuilder;
use reqwest_middleware::reqwest::redirect::Policy;
use reqwest_middleware::reqwest::{self, Client};
use tokio::task::JoinSet;

const QUOTA: u64 = 20;
const WINDOW: Duration = Duration::from_secs(1);

/// A service with a fixed window, which states its limit. It counts its denials.
fn limited(states: Generation, denials: Arc<AtomicU64>) -> Router {
    let clock = MonotonicClock::new();
    let window = Arc::new(portcullis_core::Clocked::new(
        FixedWindow::new(QUOTA, WINDOW),
        clock,
    ));
    Router::new().route(
        "/",
        get(move || {
            let (decision, detail) = window.try_acquire_explained(1);
            let available = detail.available;
            let mut headers = HeaderMap::new();
            let quota = Quota::new(QUOTA).named("window").window(WINDOW);
            let quota = quota.available(available).reset(WINDOW);
            states.write(&[quota], SystemTime::now(), &mut headers);
            let status = if decision.is_ok() {
                StatusCode::OK
            } else {
                denials.fetch_add(1, Relaxed);
                headers.insert("retry-after", 1.into());
                StatusCode::TOO_MANY_REQUESTS
            };
            async move { (status, headers) }
        }),
    )
}

#[tokio::test]
async fn tasks_of_reqwest_share_what_the_server_states() {
    let denials = Arc::new(AtomicU64::new(0));
    let address = server::serve(limited(Generation::Draft11, Arc::clone(&denials))).await;
    let client = Client::builder().no_proxy().build().expect("a client");
    let client = ClientBuilder::new(client).with(ServerLimits::new()).build();
    let url = format!("http://{address}/");
    // The first reply states the limit.
    assert_eq!(
        client.get(&url).send().await.expect("a reply").status(),
        200
    );

    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..10 {
        let (client, url) = (client.clone(), url.clone());
        tasks.spawn(async move {
            for _ in 0..6 {
                let reply = client.get(&url).send().await.expect("a reply");
                assert_eq!(reply.status(), 200);
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.expect("no request was denied");
    }
    assert_eq!(denials.load(Relaxed), 0);
    // 61 requests need four windows.
    assert!(start.elapsed() >= 2 * WINDOW, "{:?}", start.elapsed());
    assert!(start.elapsed() <= 12 * WINDOW, "{:?}", start.elapsed());
}

/// Each server gets 2 requests per second, with room for jitter, and 4 at once.
fn limits() -> ServerLimits {
    ServerLimits::builder()
        .rate(Rate::new(1, Duration::from_millis(530)), 1)
        .slack(Duration::ZERO)
        .concurrency(const { NonZero::new(4).expect("not 0") })
        .build()
}

/// Fetches a page: where redirects lead to, and again while its server denies it.
async fn page(
    client: &Client,
    limits: &ServerLimits,
    mut url: reqwest::Url,
) -> Result<(StatusCode, String), Box<dyn core::error::Error + Send + Sync>> {
    for _ in 0..10 {
        let host = url.host_str().ok_or("a URL without a host")?;
        let sending = limits.acquire(host).within(Duration::from_mins(1)).await?;
        // An error drops `sending`, and the next request takes its place.
        let response = client.get(url.clone()).send().await?;
        let (status, headers) = (response.status(), response.headers().clone());
        let mut body = String::new();
        if status.is_success() {
            // The request has its place until its body is read.
            body = response.text().await?;
        }
        let is_denial = sending.replied(status, &headers);
        if let Some(target) = headers.get(LOCATION).filter(|_| status.is_redirection()) {
            url = url.join(target.to_str()?)?;
        } else if !is_denial {
            return Ok((status, body));
        }
    }
    Err("too many redirects and denials".into())
}

#[tokio::test]
async fn a_plain_client_of_reqwest_is_asked_for_before_and_told_after_the_body() {
    let denials = Arc::new(AtomicU64::new(0));
    let address = server::serve(limited(Generation::Draft11, Arc::clone(&denials))).await;
    let client = Client::builder().no_proxy().build().expect("a client");
    let limits = ServerLimits::new();
    for _ in 0..QUOTA + 5 {
        let url = format!("http://{address}/").parse().expect("a URL");
        let (status, _) = page(&client, &limits, url).await.expect("a reply");
        assert_eq!(status, StatusCode::OK);
    }
    assert_eq!(denials.load(Relaxed), 0);
    // Nothing is sent without a server, and nothing is on its way after the error.
    let nowhere = "http://127.0.0.1:1/".parse().expect("a URL");
    assert!(page(&client, &limits, nowhere).await.is_err());
    limits.close();
    limits.drained().await;
}

/// A server whose replies ask for an hour, and one that redirects to it. Counts the requests of the
/// first.
async fn redirecting() -> (SocketAddr, SocketAddr, Arc<AtomicU64>) {
    let asked = Arc::<AtomicU64>::default();
    let counted = Arc::clone(&asked);
    let denies = get(move || {
        counted.fetch_add(1, Relaxed);
        async { (StatusCode::TOO_MANY_REQUESTS, [(RETRY_AFTER, "3600")]) }
    });
    let denying = server::serve(Router::new().route("/", denies)).await;
    let target = format!("http://{denying}/");
    let redirects = get(move || async move { (StatusCode::FOUND, [(LOCATION, target)]) });
    let redirecting = server::serve(Router::new().route("/", redirects)).await;
    (redirecting, denying, asked)
}

/// Whether a request to a server would be sent now.
async fn is_ready(limits: &ServerLimits, server: SocketAddr) -> bool {
    let acquire = limits.acquire(&server.to_string()).within(Duration::ZERO);
    acquire.await.is_ok()
}

#[tokio::test]
async fn the_loop_repeats_denials_and_follows_redirects() {
    let asked = Arc::<AtomicU64>::default();
    let counted = Arc::clone(&asked);
    let answers = get(move || {
        let number = counted.fetch_add(1, Relaxed);
        let retry_after = (RETRY_AFTER, "1");
        async move {
            match number {
                0 => (StatusCode::TOO_MANY_REQUESTS, [retry_after]),
                1 => (StatusCode::SERVICE_UNAVAILABLE, [retry_after]),
                _ => (StatusCode::SEE_OTHER, [(LOCATION, "/there")]),
            }
        }
    });
    let routes = Router::new().route("/", answers);
    let routes = routes.route("/there", get(|| async { "here it is" }));
    let routes = routes.route("/busy", get(|| async { StatusCode::SERVICE_UNAVAILABLE }));
    let address = server::serve(routes).await;
    let client = Client::builder().no_proxy().redirect(Policy::none());
    let (client, limits) = (client.build().expect("a client"), limits());
    let url = |path| format!("http://{address}{path}").parse().expect("a URL");
    let start = Instant::now();
    let (status, body) = page(&client, &limits, url("/")).await.expect("a page");
    assert_eq!((status.as_u16(), &*body), (200, "here it is"));
    assert_eq!(asked.load(Relaxed), 3);
    assert!(
        start.elapsed() >= Duration::from_millis(2_530),
        "{:?}",
        start.elapsed()
    );
    // Without `Retry-After` it is no denial.
    let (status, _) = page(&client, &limits, url("/busy")).await.expect("a page");
    assert_eq!(status.as_u16(), 503);
}

#[tokio::test]
async fn redirects_that_reqwest_follows_pass_all_limits() {
    let (redirecting, denying, asked) = redirecting().await;
    let client = Client::builder().no_proxy().build().expect("a client");
    let limits = ServerLimits::new();
    let client = ClientBuilder::new(client).with(limits.clone()).build();
    for times in 1..=2 {
        let reply = client.get(format!("http://{redirecting}/")).send().await;
        assert_eq!(reply.expect("a reply").status(), 429);
        // The second time as well, although it has asked for an hour.
        assert_eq!(asked.load(Relaxed), times);
        // The reply holds for the server that sent it, and only for that one.
        assert!(!is_ready(&limits, denying).await);
        assert!(is_ready(&limits, redirecting).await);
    }
}

#[tokio::test]
async fn a_redirect_is_a_reply_if_reqwest_follows_none() {
    let (redirecting, denying, asked) = redirecting().await;
    let client = Client::builder().no_proxy().redirect(Policy::none());
    let limits = ServerLimits::builder()
        .timeout(Duration::from_secs(9))
        .build();
    let client = ClientBuilder::new(client.build().expect("a client"));
    let client = client.with(limits.clone()).build();
    let reply = client.get(format!("http://{redirecting}/")).send().await;
    let reply = reply.expect("a reply");
    assert_eq!((reply.status().as_u16(), asked.load(Relaxed)), (302, 0));
    let target = reply.headers()[LOCATION].to_str().expect("a URL");
    assert_eq!(
        client.get(target).send().await.expect("a reply").status(),
        429
    );
    // The target has asked for more time than a request waits.
    let failed = client.get(target).send().await;
    let Err(reqwest_middleware::Error::Middleware(error)) = failed else {
        panic!("{failed:?}");
    };
    let rejected = error.downcast_ref();
    assert!(
        matches!(rejected, Some(Rejected::Deadline { .. })),
        "{error}"
    );
    assert_eq!(asked.load(Relaxed), 1);
    assert!(is_ready(&limits, redirecting).await && !is_ready(&limits, denying).await);
}
