//! Permits at once return, however a request ends: no lone decrement, no leaked lease.

#[path = "support/server.rs"]
mod server;

use core::convert::Infallible;
use core::future::{pending, poll_fn};
use core::pin::pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::{Request, Response, StatusCode};
use http_body::Body as _;
use portcullis_core::{Concurrency, ManualClock};
use portcullis_policy::{Limit, Policy, Rule};
use portcullis_tower::{ByLimiter, ByPolicy, Decide, RateLimitLayer};
use tokio::io::AsyncReadExt;
use tokio::sync::mpsc;
use tower_layer::Layer;
use tower_service::Service;

use server::{Client, Sent, serve, until};

/// A service with a limit of one request at once: `/body` sends what the test sends, `/pending`
/// does not answer, `/panic` panics, and `/` answers.
struct Limited {
    address: core::net::SocketAddr,
    limit: Arc<Concurrency>,
    body: mpsc::UnboundedSender<&'static str>,
}

async fn limited() -> Limited {
    let limit = Arc::new(Concurrency::new(1));
    let (body, sent) = mpsc::unbounded_channel();
    let sent = Arc::new(std::sync::Mutex::new(Some(sent)));
    let router = Router::new()
        .route("/", get(|| async { "served" }))
        .route(
            "/body",
            get(move || {
                let sent = sent.lock().unwrap().take().unwrap();
                async { Body::new(Sent(sent)) }
            }),
        )
        .route("/pending", get(pending::<&str>))
        .route(
            "/panic",
            get(|| async {
                let is_served = core::hint::black_box(false);
                assert!(is_served, "as the test wants it");
                ""
            }),
        )
        .route(
            "/upgrade",
            get(|| async { (StatusCode::SWITCHING_PROTOCOLS, "") }),
        )
        .layer(RateLimitLayer::new(ByLimiter::shared(Arc::clone(&limit))));
    Limited {
        address: serve(router).await,
        limit,
        body,
    }
}

impl Limited {
    /// All permits are back, and requests are served.
    async fn assert_free(&self) {
        until(|| self.limit.in_use() == 0).await;
        let mut client = Client::connect(self.address).await;
        assert_eq!(client.get("/", &[]).await.body, "served");
        until(|| self.limit.in_use() == 0).await;
        assert_eq!(self.limit.available(), 1);
    }
}

async fn read_until(client: &mut Client, end: &str) {
    let mut read = Vec::new();
    while !read.ends_with(end.as_bytes()) {
        read.push(client.0.read_u8().await.unwrap());
    }
}

#[tokio::test]
async fn a_permit_is_held_until_the_body_ends() {
    let mut limited = limited().await;
    let mut client = Client::connect(limited.address).await;
    client.send("GET /body", &[]).await;
    limited.body.send("first").unwrap();
    read_until(&mut client, "first\r\n").await;
    assert_eq!(limited.limit.in_use(), 1);
    let mut other = Client::connect(limited.address).await;
    let denied = other.get("/", &[]).await;
    assert_eq!((denied.status, denied.header("retry-after")), (429, None));
    limited.body.send("last").unwrap();
    read_until(&mut client, "last\r\n").await;
    assert_eq!(limited.limit.in_use(), 1);
    // The handler's side ends.
    limited.body = mpsc::unbounded_channel().0;
    read_until(&mut client, "0\r\n\r\n").await;
    limited.assert_free().await;
    // The connection is kept, and holds nothing.
    assert_eq!(client.get("/", &[]).await.body, "served");
}

#[tokio::test]
async fn a_client_that_leaves_while_the_handler_runs_returns_its_permit() {
    let limited = limited().await;
    let mut client = Client::connect(limited.address).await;
    client.send("GET /pending", &[]).await;
    until(|| limited.limit.in_use() == 1).await;
    drop(client);
    limited.assert_free().await;
}

#[tokio::test]
async fn a_client_that_leaves_while_the_body_streams_returns_its_permit() {
    let limited = limited().await;
    let mut client = Client::connect(limited.address).await;
    client.send("GET /body", &[]).await;
    limited.body.send("first").unwrap();
    read_until(&mut client, "first\r\n").await;
    assert_eq!(limited.limit.in_use(), 1);
    drop(client);
    limited.assert_free().await;
}

#[tokio::test]
async fn a_handler_that_panics_returns_its_permit() {
    let limited = limited().await;
    let mut client = Client::connect(limited.address).await;
    client.send("GET /panic", &[]).await;
    assert!(client.0.read_u8().await.is_err(), "the connection ends");
    limited.assert_free().await;
}

/// tower's `ConcurrencyLimit` takes a permit in `poll_ready`, so that each idle connection holds
/// one.
#[tokio::test]
async fn an_idle_connection_holds_nothing() {
    let limited = limited().await;
    let silent = Client::connect(limited.address).await;
    let mut kept = Client::connect(limited.address).await;
    assert_eq!(kept.get("/", &[]).await.status, 200);
    tokio::time::sleep(Duration::from_millis(20)).await;
    limited.assert_free().await;
    drop((silent, kept));
}

/// A body that is not read at all, such as that of a reply to `HEAD`.
#[tokio::test]
async fn a_body_that_is_dropped_returns_its_permit() {
    let limited = limited().await;
    let mut client = Client::connect(limited.address).await;
    client.send("HEAD /", &[]).await;
    read_until(&mut client, "\r\n\r\n").await;
    limited.assert_free().await;
}

/// What follows on the connection is no part of the request.
#[tokio::test]
async fn an_upgraded_connection_holds_nothing() {
    let limited = limited().await;
    let mut client = Client::connect(limited.address).await;
    let lines = ["Connection: upgrade", "Upgrade: echo"];
    client.send("GET /upgrade", &lines).await;
    read_until(&mut client, "\r\n\r\n").await;
    limited.assert_free().await;
}

/// The server asks for the body of a request (100) only if a handler reads it.
#[tokio::test]
async fn a_denied_request_is_not_asked_for_its_body() {
    let limited = limited().await;
    let mut first = Client::connect(limited.address).await;
    first.send("GET /pending", &[]).await;
    until(|| limited.limit.in_use() == 1).await;
    let mut client = Client::connect(limited.address).await;
    let lines = ["Content-Length: 1000000", "Expect: 100-continue"];
    client.send("POST /", &lines).await;
    assert_eq!(client.receive().await.status, 429);
    drop(first);
    limited.assert_free().await;
}

#[derive(Clone, Debug)]
struct Fails;

impl Service<Request<()>> for Fails {
    type Response = Response<Body>;
    type Error = std::io::Error;
    type Future = core::future::Ready<Result<Response<Body>, std::io::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), std::io::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        core::future::ready(Err(std::io::Error::other("as the test wants it")))
    }
}

#[test]
fn the_error_of_the_inner_service_is_passed_on_and_returns_the_permit() {
    let limit = Arc::new(Concurrency::new(1));
    let mut service = RateLimitLayer::new(ByLimiter::shared(Arc::clone(&limit))).layer(Fails);
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..3 {
        let future = pin!(service.call(Request::new(())));
        let Poll::Ready(Err(error)) = future.poll(&mut context) else {
            panic!("an error");
        };
        // Not boxed: the type is that of the inner service.
        let _: &std::io::Error = &error;
    }
    assert_eq!(limit.in_use(), 0);
}

/// .NET, `ConcurrencyLimiter` in a chain: a link that refuses returns the permits of the links
/// before it (dotnet parts 3 and 6, `AcquireFailsAndReleasesAcquiredResources`). There, permits of
/// links that replenish are lost (aspnetcore#60852).
#[test]
fn a_request_that_one_limit_denies_takes_nothing_from_the_limits_before_it() {
    let clock: &ManualClock = Box::leak(Box::default());
    clock.set(portcullis_core::Timestamp::from_secs(1));
    let policy = |name: &str, limit: Limit| {
        let rule = Rule::new(name).limit(limit).limit(Limit::at_once(2));
        Arc::new(Policy::new([rule]).unwrap())
    };
    let global = policy("global", "3/m".parse().unwrap());
    let group = policy("group", "2/m".parse().unwrap());
    let route = Arc::new(Concurrency::new(1));
    let judges = ByPolicy::new(Arc::clone(&global))
        .and(ByPolicy::new(Arc::clone(&group)))
        .and(ByLimiter::shared(Arc::clone(&route)));
    let mut service = RateLimitLayer::builder(judges)
        .clock(clock)
        .build()
        .layer(Answers);
    let mut ask = || {
        let mut context = Context::from_waker(Waker::noop());
        let future = pin!(service.call(Request::new(())));
        match future.poll(&mut context) {
            Poll::Ready(Ok(response)) => response,
            _ => panic!("a response"),
        }
    };
    let remaining = |policy: &Policy| {
        let request = portcullis_policy::Request::new("GET", "/").cost(0);
        let decision = policy.decide_explained_at(portcullis_core::Clock::now(clock), &request);
        let all: Vec<u64> = decision
            .details()
            .map(|each| each.detail.available)
            .collect();
        all
    };
    let first = ask();
    assert_eq!(first.status(), 200);
    assert_eq!(
        (remaining(&global), remaining(&group)),
        (vec![2, 1], vec![1, 1])
    );
    // The route denies: the first two have what they had.
    assert_eq!(ask().status(), 429);
    assert_eq!(
        (remaining(&global), remaining(&group)),
        (vec![2, 1], vec![1, 1])
    );
    drop(first);
    assert_eq!((remaining(&global), route.in_use()), (vec![2, 2], 0));
    drop(ask());
    // The group denies: the global limit has what it had.
    let denied = ask();
    assert_eq!(
        (
            denied.status().as_u16(),
            denied.headers()["retry-after"].to_str().unwrap()
        ),
        (429, "30")
    );
    assert_eq!(
        (remaining(&global), remaining(&group)),
        (vec![1, 2], vec![0, 2])
    );
}

#[derive(Clone, Debug)]
struct Answers;

impl Service<Request<()>> for Answers {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = core::future::Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        core::future::ready(Ok(Response::new(Body::from("served"))))
    }
}

/// The body's end is seen with its last frame, before the body is polled again.
#[tokio::test]
async fn the_last_frame_of_a_body_returns_the_permit() {
    let limit = Arc::new(Concurrency::new(1));
    let mut service = RateLimitLayer::new(ByLimiter::shared(Arc::clone(&limit))).layer(Answers);
    let response = service.call(Request::new(())).await.unwrap();
    assert_eq!(limit.in_use(), 1);
    let mut body = pin!(response.into_body());
    assert_eq!(body.size_hint().exact(), Some(6));
    let frame = poll_fn(|context| body.as_mut().poll_frame(context)).await;
    assert_eq!(frame.unwrap().unwrap().into_data().unwrap(), "served");
    assert_eq!(limit.in_use(), 0);
    assert!(
        poll_fn(|context| body.as_mut().poll_frame(context))
            .await
            .is_none()
    );
}
