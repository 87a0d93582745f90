//! A limit that finds itself, around an axum service: what it holds, and what it learns.

#[allow(dead_code, reason = "another test uses the rest")]
#[path = "support/load.rs"]
mod load;
#[path = "support/server.rs"]
mod server;

use core::future::pending;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use core::time::Duration;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::StatusCode;
use portcullis_adaptive::{Adaptive, Controller, Decision, Outcome, Window};
use portcullis_core::ManualClock;
use portcullis_tower::adaptive::{AdaptiveLayer, Latency};
use tokio::io::AsyncReadExt;
use tokio::sync::{Semaphore, mpsc};

use load::{Load, of_status};
use server::{Client, Sent, serve, until};

type Told = Arc<Mutex<Vec<(Outcome, u128)>>>;

/// Keeps the limit, and tells how each request ended, and after how many milliseconds.
#[derive(Clone, Default)]
struct Telling(Told);

impl Controller for Telling {
    fn begin(&mut self, initial: u32) -> Decision {
        Decision::limit(initial).after(2, 0.0)
    }

    fn decide(&mut self, window: &Window<'_>) -> Decision {
        let samples = window.samples();
        let told = samples.map(|one| {
            (
                one.outcome,
                Duration::from_secs_f64(one.latency).as_millis(),
            )
        });
        self.0.lock().unwrap().extend(told);
        Decision::limit(window.limit).after(2, 0.0)
    }
}

/// A service with a limit of 1: `/body` sends what the test sends, `/pending` does not answer,
/// `/panic` panics, and the others have the status of their path.
struct Limited {
    client: Client,
    limit: Arc<Adaptive<Telling>>,
    clock: Arc<ManualClock>,
    told: Told,
    body: Arc<Mutex<mpsc::UnboundedSender<&'static str>>>,
}

async fn limited(latency: Latency) -> Limited {
    let telling = Telling::default();
    let told = Arc::clone(&telling.0);
    let builder = Adaptive::builder(1).controller(telling);
    let limit = Arc::new(builder.build().unwrap());
    let clock = Arc::new(ManualClock::new());
    clock.advance(Duration::from_secs(1));
    let layer = AdaptiveLayer::builder(Arc::clone(&limit))
        .clock(Arc::clone(&clock))
        .latency(latency)
        .build();
    let body = Arc::new(Mutex::new(mpsc::unbounded_channel().0));
    let sender = Arc::clone(&body);
    let status = |axum::extract::Path(status): axum::extract::Path<u16>| async move {
        (StatusCode::from_u16(status).unwrap(), "")
    };
    let router = Router::new()
        .route(
            "/body",
            get(move || {
                let (send, sent) = mpsc::unbounded_channel();
                *sender.lock().unwrap() = send;
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
        .route("/{status}", get(status))
        .layer(layer);
    Limited {
        client: Client::connect(serve(router).await).await,
        limit,
        clock,
        told,
        body,
    }
}

impl Limited {
    async fn is_free(&self) {
        until(|| self.limit.limiter().in_use() == 0).await;
    }

    async fn get(&mut self, path: &str) -> u16 {
        let status = self.client.get(path, &[]).await.status;
        self.is_free().await;
        // No two requests end at once: that would be a window without a length.
        self.clock.advance(Duration::from_secs(1));
        status
    }

    /// Sends a request for a body, whose head comes at once, and its end 2 s later.
    async fn stream(&mut self) {
        let begun = Arc::clone(&self.body);
        let former = begun.lock().unwrap().clone();
        self.client.send("GET /body", &[]).await;
        until(|| !begun.lock().unwrap().same_channel(&former)).await;
        self.client.receive_head().await;
        assert_eq!(self.limit.limiter().in_use(), 1, "held to the end");
        self.clock.advance(Duration::from_secs(2));
        *begun.lock().unwrap() = mpsc::unbounded_channel().0;
        let mut read = Vec::new();
        while !read.ends_with(b"0\r\n\r\n") {
            read.push(self.client.0.read_u8().await.unwrap());
        }
        self.is_free().await;
        self.clock.advance(Duration::from_secs(1));
    }

    fn outcomes(&self) -> Vec<Outcome> {
        let told = self.told.lock().unwrap();
        told.iter().map(|(outcome, _)| *outcome).collect()
    }
}

#[tokio::test]
async fn statuses_tell_what_happened() {
    use Outcome::{Failed, PushedBack, Succeeded};
    let mut limited = limited(Latency::ToEnd).await;
    // The first one does not count, and with the second one the first window begins.
    for status in [200, 200, 404, 503, 500, 504, 429, 201] {
        assert_eq!(limited.get(&format!("/{status}")).await, status);
    }
    let expected = [
        Succeeded, Succeeded, PushedBack, Failed, PushedBack, Succeeded,
    ];
    assert_eq!(limited.outcomes(), expected, "429 tells nothing");
}

#[tokio::test]
async fn the_permit_is_held_to_the_end_and_the_latency_is_that_to_the_end_or_to_the_head() {
    for (latency, expected) in [(Latency::ToEnd, 2_000), (Latency::ToHead, 0)] {
        let mut limited = limited(latency).await;
        limited.get("/200").await;
        limited.stream().await;
        limited.stream().await;
        let told = limited.told.lock().unwrap().clone();
        assert_eq!(told, [(Outcome::Succeeded, expected); 2], "{latency:?}");
    }
}

#[tokio::test]
async fn over_the_limit_a_request_gets_a_503_at_once() {
    let mut limited = limited(Latency::ToEnd).await;
    let held = limited
        .limit
        .try_acquire_at(portcullis_core::Timestamp::ZERO, 1);
    let denied = limited.client.get("/200", &[]).await;
    assert_eq!((denied.status, denied.header("retry-after")), (503, None));
    drop(held);
    assert_eq!(limited.get("/200").await, 200);
}

#[tokio::test]
async fn a_request_without_a_response_returns_its_permit_and_teaches_nothing() {
    let mut limited = limited(Latency::ToEnd).await;
    limited.get("/200").await;
    limited.get("/200").await;
    let address = limited.client.0.peer_addr().unwrap();
    for path in ["GET /pending", "GET /panic"] {
        let mut other = Client::connect(address).await;
        other.send(path, &[]).await;
        if path == "GET /pending" {
            until(|| limited.limit.limiter().in_use() == 1).await;
        }
        drop(other);
        limited.is_free().await;
    }
    limited.get("/200").await;
    assert_eq!(limited.outcomes(), [Outcome::Succeeded; 2]);
}

/// What 20 workers did.
#[derive(Default)]
struct Work {
    nanos: AtomicU64,
    requests: AtomicU64,
}

/// What a run of a service under twice its capacity has shown: the goodput as a part of the
/// capacity, the latency as a multiple of that without a queue, what the service took for a
/// request, and the same as text.
struct Figures {
    goodput: f64,
    latency: f64,
    base: Duration,
    told: String,
}

impl Figures {
    fn hold(&self) -> bool {
        (0.85..1.1).contains(&self.goodput) && self.latency < 2.0
    }
}

/// A run in which waits of 50 ms took much longer was disturbed by other programs. It says nothing,
/// and is repeated.
#[tokio::test]
async fn a_service_under_twice_its_capacity_serves_nearly_all_it_can_at_little_latency() {
    for run in 1.. {
        let figures = under_twice_its_capacity().await;
        println!("{}", figures.told);
        if figures.hold() {
            return;
        }
        let is_disturbed = figures.base > Duration::from_millis(53);
        assert!(is_disturbed && run < 5, "{}", figures.told);
    }
}

/// More connections than the limit has permits, each of which carries one request at a time. All
/// figures are ratios to what the service itself took for a request, so a slow machine changes
/// both.
async fn under_twice_its_capacity() -> Figures {
    let (workers, work) = (Arc::new(Semaphore::new(20)), Arc::new(Work::default()));
    let limit = Arc::new(Adaptive::builder(20).build().unwrap());
    let layer = AdaptiveLayer::builder(Arc::clone(&limit))
        .for_axum()
        .build();
    let done = Arc::clone(&work);
    let answer = move || {
        let (workers, done) = (Arc::clone(&workers), Arc::clone(&done));
        async move {
            let _worker = workers.acquire().await.unwrap();
            let begun = Instant::now();
            tokio::time::sleep(Duration::from_millis(50)).await;
            done.nanos
                .fetch_add(begun.elapsed().as_nanos() as u64, Relaxed);
            done.requests.fetch_add(1, Relaxed);
            "served"
        }
    };
    let address = serve(Router::new().route("/", get(answer)).layer(layer)).await;
    let length = Duration::from_secs(10);
    let load = Load::random(800, length, 400);
    let replies = tokio::task::spawn_blocking(move || load.run(address))
        .await
        .unwrap();
    // The second half, in which the limit is found.
    let (served, [latency, _]) = of_status(&replies[replies.len() / 2..], 200);
    let nanos = work.nanos.load(Relaxed) / work.requests.load(Relaxed);
    let base = Duration::from_nanos(nanos);
    let capacity = 20.0 / base.as_secs_f64() * length.as_secs_f64() / 2.0;
    let goodput = f64::from(u32::try_from(served).unwrap()) / capacity;
    let ratio = latency.as_secs_f64() / base.as_secs_f64();
    let explained = limit.explain();
    Figures {
        goodput,
        latency: ratio,
        base,
        told: format!("goodput {goodput:.3}, latency {ratio:.2} x, base {base:?}, {explained:?}"),
    }
}
