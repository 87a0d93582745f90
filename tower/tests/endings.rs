//! Permits at once return, however a request ends: over HTTP/1 and HTTP/2, with and without a layer
//! that catches panics.

#[path = "endings/client.rs"]
mod client;
#[path = "support/server.rs"]
mod server;

use core::convert::Infallible;
use core::future::pending;
use core::net::SocketAddr;
use core::panic::AssertUnwindSafe;
use core::pin::Pin;
use core::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use core::task::{Context, Poll};
use core::time::Duration;
use std::panic::catch_unwind;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::routing::get;
use http::{Request, Response, StatusCode};
use http_body::Frame;
use portcullis_core::{Concurrency, Timestamp};
use portcullis_policy::{Key, Limit, LivePolicy, Policy, Rule};
use portcullis_tower::{ByLimiter, ByLivePolicy, ByPolicy, Decide, RateLimitLayer};
use tower_layer::layer_fn;
use tower_service::Service;

use client::{Connection, Protocol};
use server::{serve, until};

/// A service that returns 500 if its inner service panics, as `CatchPanic` of tower-http does.
#[derive(Clone)]
struct CatchPanic<S>(S);

impl<S> Service<Request<Body>> for CatchPanic<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let mut inner = Box::pin(self.0.call(request));
        Box::pin(core::future::poll_fn(move |context| {
            let polled = catch_unwind(AssertUnwindSafe(|| inner.as_mut().poll(context)));
            polled.unwrap_or_else(|_| {
                let mut response = Response::new(Body::empty());
                *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
                Poll::Ready(Ok(response))
            })
        }))
    }
}

/// A body of one frame and then nothing, or a panic. Counts how many exist.
struct First {
    sent: bool,
    panics: bool,
    alive: Alive,
}

/// How many exist, and have existed.
#[derive(Default)]
struct Counts {
    now: AtomicUsize,
    ever: AtomicUsize,
}

/// Counts itself as long as it exists.
struct Alive(Arc<Counts>);

impl Alive {
    fn new(counts: &Arc<Counts>) -> Self {
        counts.now.fetch_add(1, SeqCst);
        counts.ever.fetch_add(1, SeqCst);
        Self(Arc::clone(counts))
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, SeqCst);
    }
}

impl http_body::Body for First {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if !self.sent {
            self.sent = true;
            return Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"first")))));
        }
        assert!(!self.panics, "as the test wants it");
        let _ = &self.alive;
        Poll::Pending
    }
}

/// Where a layer that catches panics is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Catches {
    Nothing,
    InTheHandler,
    AroundTheLimit,
}

/// A service with a limit of two requests at once.
struct Served {
    address: SocketAddr,
    in_use: Box<dyn Fn() -> u32 + Send>,
    /// Of handlers that do not answer, and of bodies that do not end.
    counts: Arc<Counts>,
}

async fn panics() -> &'static str {
    let is_served = core::hint::black_box(false);
    assert!(is_served, "as the test wants it");
    ""
}

async fn served(
    judges: impl Decide,
    in_use: impl Fn() -> u32 + Send + 'static,
    catches: Catches,
) -> Served {
    let counts = Arc::new(Counts::default());
    let body = |panics| {
        let counts = Arc::clone(&counts);
        get(move || async move {
            Body::new(First {
                sent: false,
                panics,
                alive: Alive::new(&counts),
            })
        })
    };
    let of_handlers = Arc::clone(&counts);
    let mut router = Router::new()
        .route("/", get(|| async { "served" }))
        .route("/body", body(false))
        .route("/body/panic", body(true))
        .route(
            "/pending",
            get(|| async move {
                let _alive = Alive::new(&of_handlers);
                pending::<&str>().await
            }),
        )
        .route("/panic", get(panics));
    if catches == Catches::InTheHandler {
        router = router.layer(layer_fn(CatchPanic));
    }
    router = router.layer(RateLimitLayer::builder(judges).for_axum().build());
    if catches == Catches::AroundTheLimit {
        router = router.layer(layer_fn(CatchPanic));
    }
    Served {
        address: serve(router).await,
        in_use: Box::new(in_use),
        counts,
    }
}

/// Services that have the same limit in each of the ways to state it.
async fn each(catches: Catches) -> [Served; 3] {
    let limit = Arc::new(Concurrency::new(2));
    let by_limiter = ByLimiter::shared(Arc::clone(&limit));
    let rule = || {
        let rule = Rule::new("all").key(Key::address());
        Policy::new([rule.limit(Limit::at_once(2))]).unwrap()
    };
    let used = |policy: &Policy| {
        let request = portcullis_policy::Request::new("GET", "/")
            .address("127.0.0.1".parse().unwrap())
            .cost(0);
        let decision = policy.decide_explained_at(Timestamp::ZERO, &request);
        let available = decision.details().next().unwrap().detail.available;
        2 - u32::try_from(available).unwrap()
    };
    let policy = Arc::new(rule());
    let live = LivePolicy::new(rule());
    let (by_policy, by_live) = (
        ByPolicy::new(Arc::clone(&policy)),
        ByLivePolicy::new(live.clone()),
    );
    [
        served(by_limiter, move || limit.in_use(), catches).await,
        served(by_policy, move || used(&policy), catches).await,
        served(by_live, move || used(&live.load()), catches).await,
    ]
}

impl Served {
    async fn connect(&self, protocol: Protocol) -> Connection {
        Connection::new(self.address, protocol).await
    }

    fn running(&self) -> usize {
        self.counts.now.load(SeqCst)
    }

    /// All permits are back, nothing runs, and requests are served.
    async fn assert_free(&self) {
        until(|| (self.in_use)() == 0).await;
        until(|| self.running() == 0).await;
        for protocol in [Protocol::Http1, Protocol::Http2] {
            let mut connection = self.connect(protocol).await;
            assert_eq!(connection.get("/").await, 200);
        }
        until(|| (self.in_use)() == 0).await;
    }
}

const BOTH: [Protocol; 2] = [Protocol::Http1, Protocol::Http2];

#[tokio::test]
async fn a_client_that_leaves_while_the_handler_runs_returns_its_permit() {
    for served in each(Catches::Nothing).await {
        for protocol in BOTH {
            let mut connection = served.connect(protocol).await;
            connection.send("/pending").await;
            until(|| served.running() == 1).await;
            assert_eq!((served.in_use)(), 1);
            drop(connection);
            served.assert_free().await;
        }
    }
}

#[tokio::test]
async fn a_client_that_leaves_while_the_body_streams_returns_its_permit() {
    for served in each(Catches::Nothing).await {
        for protocol in BOTH {
            let mut connection = served.connect(protocol).await;
            connection.send("/body").await;
            assert_eq!(connection.first().await, "first");
            assert_eq!((served.in_use)(), 1);
            drop(connection);
            served.assert_free().await;
        }
    }
}

/// Of the requests on one connection, only the one that is cancelled ends.
#[tokio::test]
async fn a_stream_that_is_cancelled_returns_its_permit_and_the_others_keep_theirs() {
    for served in each(Catches::Nothing).await {
        for path in ["/pending", "/body"] {
            let mut connection = served.connect(Protocol::Http2).await;
            for _ in 0..2 {
                connection.send(path).await;
            }
            until(|| served.running() == 2).await;
            assert_eq!((served.in_use)(), 2);
            assert_eq!(connection.get("/").await, 429, "no permit is left");
            connection.cancel();
            until(|| (served.in_use)() == 1).await;
            assert_eq!(connection.get("/").await, 200);
            until(|| served.running() == 1).await;
            until(|| (served.in_use)() == 1).await;
            // The other request is still there.
            tokio::time::sleep(Duration::from_millis(5)).await;
            assert_eq!((served.in_use)(), 1);
            drop(connection);
            served.assert_free().await;
        }
    }
}

#[tokio::test]
async fn a_handler_that_panics_returns_its_permit() {
    for catches in [
        Catches::Nothing,
        Catches::InTheHandler,
        Catches::AroundTheLimit,
    ] {
        for served in each(catches).await {
            for protocol in BOTH {
                let mut connection = served.connect(protocol).await;
                connection.send("/panic").await;
                let expected = (catches != Catches::Nothing).then_some(500);
                assert_eq!(connection.status().await, expected);
                served.assert_free().await;
                if catches != Catches::Nothing || protocol == Protocol::Http2 {
                    // The connection is kept.
                    assert_eq!(connection.get("/").await, 200);
                }
            }
        }
    }
}

/// A panic while the body streams is past all layers.
#[tokio::test]
async fn a_body_that_panics_returns_its_permit() {
    for catches in [Catches::Nothing, Catches::AroundTheLimit] {
        for served in each(catches).await {
            for protocol in BOTH {
                let mut connection = served.connect(protocol).await;
                let before = served.counts.ever.load(SeqCst);
                connection.send("/body/panic").await;
                until(|| served.counts.ever.load(SeqCst) > before).await;
                served.assert_free().await;
            }
        }
    }
}

#[tokio::test]
async fn an_idle_connection_holds_nothing() {
    for served in each(Catches::Nothing).await {
        let mut kept = Vec::new();
        for protocol in BOTH.into_iter().cycle().take(6) {
            let mut connection = served.connect(protocol).await;
            if kept.len() > 1 {
                assert_eq!(connection.get("/").await, 200);
            }
            kept.push(connection);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!((served.in_use)(), 0);
        served.assert_free().await;
        drop(kept);
    }
}

/// Requests that end in all of these ways, at once and again and again.
#[tokio::test]
async fn the_count_is_zero_after_requests_that_ended_in_every_way() {
    for served in each(Catches::InTheHandler).await {
        for round in 0..10 {
            let mut open = Vec::new();
            let paths = ["/pending", "/", "/body", "/panic", "/body/panic"];
            for (index, path) in paths.into_iter().enumerate() {
                let mut connection = served.connect(BOTH[(round + index) % 2]).await;
                connection.send(path).await;
                open.push(connection);
                until(|| served.running() > 0).await;
                assert!((served.in_use)() <= 2);
            }
            while let Some(mut connection) = open.pop() {
                if round % 2 == 0 {
                    connection.cancel();
                }
            }
        }
        served.assert_free().await;
    }
}
