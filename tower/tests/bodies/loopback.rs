//! An axum service on loopback whose bodies are limited by a policy file.

use core::future::{pending, poll_fn};
use core::net::SocketAddr;
use core::task::Poll;
use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::routing::{get, put};
use bytes::Bytes;
use http_body::Body as _;
use portcullis_policy::Policy;
use portcullis_tower::ByPolicy;
use portcullis_tower::bodies::BodyLimitLayer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;

use super::server::{Client, serve, until};
use super::text;

/// Each address uploads 200 kB per second; all downloads together take 400 kB per second.
const FILE: &str = r#"{ "rules": [
    { "name": "up", "kind": "ingress", "key": ["address"], "paths": ["/up", "/held"],
      "limits": [{ "rate": "200000/s", "burst": 20000 }] },
    { "name": "down", "kind": "egress", "paths": ["/down"],
      "limits": [{ "rate": "400000/s", "burst": 20000 }] }
] }"#;

struct Served {
    address: SocketAddr,
    policy: Arc<Policy>,
    /// A handler holds a body that waits.
    held: Arc<Notify>,
}

/// Reads a body until it waits for permits, and keeps it.
async fn hold(body: Body, policy: Arc<Policy>, held: Arc<Notify>) {
    let mut body = Box::pin(body);
    poll_fn(|context| {
        while let Poll::Ready(frame) = body.as_mut().poll_frame(context) {
            frame.expect("it waits before its end").unwrap();
        }
        match policy.queue_counts("up").unwrap().waiters {
            0 => Poll::Pending,
            _ => Poll::Ready(()),
        }
    })
    .await;
    held.notify_one();
    pending::<()>().await;
}

async fn served() -> Served {
    let policy = Arc::new(Policy::from_json(FILE).unwrap());
    let layer = BodyLimitLayer::builder()
        .ingress(ByPolicy::new(Arc::clone(&policy)))
        .egress(ByPolicy::new(Arc::clone(&policy)))
        .build();
    let held = Arc::new(Notify::new());
    let holding = (Arc::clone(&policy), Arc::clone(&held));
    let router = Router::new()
        .route(
            "/up",
            put(async |body: Bytes| {
                let is_whole = body == text(body.len());
                format!("{} {is_whole}", body.len())
            }),
        )
        .route("/down", get(async || text(100_000)))
        .route("/held", put(|body: Body| hold(body, holding.0, holding.1)))
        .layer(layer);
    Served {
        address: serve(router).await,
        policy,
        held,
    }
}

impl Served {
    fn waiters(&self, rule: &str) -> u32 {
        self.policy.queue_counts(rule).unwrap().waiters
    }
}

/// Sends an upload, and returns how long it took.
async fn upload(client: &mut Client, length: usize) -> Duration {
    let begin = Instant::now();
    let line = format!("Content-Length: {length}");
    client.send("PUT /up", &[&line]).await;
    client.0.write_all(&text(length)).await.unwrap();
    let response = client.receive().await;
    let body = format!("{length} true");
    assert_eq!((response.status, response.body), (200, body));
    begin.elapsed()
}

/// Receives a download of 100,000 bytes, and returns how long it took.
async fn download(client: &mut Client) -> Duration {
    let begin = Instant::now();
    client.send("GET /down", &[]).await;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.0.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
    assert!(head.starts_with("http/1.1 200"), "{head}");
    assert!(head.contains("content-length: 100000"), "{head}");
    let mut body = vec![0; 100_000];
    client.0.read_exact(&mut body).await.unwrap();
    assert_eq!(body, text(100_000));
    begin.elapsed()
}

fn millis(range: core::ops::Range<u64>, span: Duration) {
    let range = Duration::from_millis(range.start)..Duration::from_millis(range.end);
    assert!(range.contains(&span), "{span:?}");
}

#[tokio::test]
async fn uploads_and_downloads_take_as_long_as_their_rules_say() {
    let served = served().await;
    let mut client = Client::connect(served.address).await;
    // (100,000 - 20,000) / 200,000 s, never less.
    millis(400..4_000, upload(&mut client, 100_000).await);
    // The connection is kept. (100,000 - 20,000) / 400,000 s.
    millis(200..4_000, download(&mut client).await);
    assert_eq!((served.waiters("up"), served.waiters("down")), (0, 0));
}

#[tokio::test]
async fn clients_that_share_a_limit_get_equal_shares_of_it() {
    let served = served().await;
    let begin = Instant::now();
    let downloads: Vec<_> = (0..6)
        .map(|_| {
            let address = served.address;
            tokio::spawn(async move { download(&mut Client::connect(address).await).await })
        })
        .collect();
    let mut spans = Vec::new();
    for each in downloads {
        spans.push(each.await.unwrap());
    }
    // (600,000 - 20,000) / 400,000 s, never less.
    let all = begin.elapsed();
    millis(1_450..10_000, all);
    let first = spans.into_iter().min().unwrap();
    assert!(first > all / 2, "one of six took {first:?} of {all:?}");
}

#[tokio::test]
async fn a_client_that_leaves_while_its_body_waits_leaves_nothing_behind() {
    let served = served().await;
    let mut client = Client::connect(served.address).await;
    client.send("GET /down", &[]).await;
    until(|| served.waiters("down") == 1).await;
    drop(client);
    until(|| served.waiters("down") == 0).await;
    let mut client = Client::connect(served.address).await;
    client.send("PUT /up", &["Content-Length: 100000"]).await;
    client.0.write_all(&text(60_000)).await.unwrap();
    until(|| served.waiters("up") == 1).await;
    drop(client);
    until(|| served.waiters("up") == 0).await;
    let mut client = Client::connect(served.address).await;
    millis(0..4_000, upload(&mut client, 40_000).await);
    millis(0..4_000, download(&mut client).await);
}

/// The task of a handler that holds a body is not woken for others.
#[tokio::test]
async fn a_handler_that_stops_reading_keeps_no_other_body_waiting() {
    let served = served().await;
    let mut holder = Client::connect(served.address).await;
    holder.send("PUT /held", &["Content-Length: 100000"]).await;
    holder.0.write_all(&text(60_000)).await.unwrap();
    let held = tokio::time::timeout(Duration::from_secs(10), served.held.notified());
    held.await.expect("the handler reads until it waits");
    assert_eq!(served.waiters("up"), 1);
    let mut client = Client::connect(served.address).await;
    millis(100..4_000, upload(&mut client, 40_000).await);
    drop(holder);
}
