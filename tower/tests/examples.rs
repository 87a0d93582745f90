//! The examples run, and do what their heads say: the tests send what the `curl` lines there send.

#[path = "../examples/axum.rs"]
#[allow(dead_code, reason = "its `main`")]
mod axum_service;
#[path = "../examples/client.rs"]
#[allow(dead_code, reason = "its `main`")]
mod client;
#[path = "support/curl.rs"]
mod curl;
#[path = "../examples/ocelot.rs"]
#[allow(dead_code, reason = "its `main`")]
mod ocelot;
#[path = "../../policy/tests/support/recorder.rs"]
mod recorder;
#[path = "support/server.rs"]
mod server;
#[path = "../examples/tonic.rs"]
#[allow(dead_code, reason = "its `main`")]
mod tonic_service;

use core::future::poll_fn;
use core::net::SocketAddr;
use core::pin::pin;
use core::time::Duration;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::body::Body as AxumBody;
use axum::routing::get;
use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderValue, Request};
use http_body::Body as _;
use metrics::set_default_local_recorder;
use portcullis_core::MonotonicClock;
use portcullis_counters::MemoryCounters;
use portcullis_policy::{FileSource, LivePolicy, Policy, Stores};
use portcullis_tower::{ByPolicy, DenialSettings, RateLimitLayer};
use tonic::body::Body;
use tonic::transport::Endpoint;
use tonic::transport::server::TcpIncoming;
use tower::ServiceExt as _;

use recorder::Kept;
use server::{Client, Received};

const OCELOT: &str = include_str!("../examples/ocelot.json");

const AXUM: &str = include_str!("../examples/limits.toml");

/// The policy of a file, which has the name and the text, and the file. Its store is in memory.
fn live(name: &str, text: &str) -> (LivePolicy, FileSource) {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&path, text).unwrap();
    let store = Arc::new(MemoryCounters::new(100, MonotonicClock::new()));
    let mut file = FileSource::new(path).with_stores(Stores::new().with("shared", store));
    (LivePolicy::from_source(&mut file).unwrap(), file)
}

async fn send(client: &mut Client, curl: &curl::Curl) -> Received {
    let headers: Vec<_> = curl.headers.iter().map(String::as_str).collect();
    let target = format!("{} {}", curl.method, curl.path);
    client.send(&target, &headers).await;
    client.receive().await
}

#[tokio::test]
async fn the_axum_service_behind_a_proxy_does_what_its_lines_say() {
    let kept = Kept::default();
    let _recorder = set_default_local_recorder(&kept);
    let (policy, _) = live("axum.toml", AXUM);
    let service = axum_service::service(&policy).unwrap();
    let mut client = Client::connect(server::serve(service).await).await;
    let mut replies = Vec::new();
    for curl in curl::lines_of(include_str!("../examples/axum.rs")) {
        replies.push(send(&mut client, &curl).await);
    }
    let statuses: Vec<_> = replies.iter().map(|reply| reply.status).collect();
    assert_eq!(statuses, [200, 200, 429, 200, 200]);
    assert_eq!(replies[0].body, "Report 1.\n");
    assert_eq!(replies[2].header("retry-after"), Some("30"));
    let seen = kept.seen();
    for line in [
        "portcullis.requests policy=reports result=acquired: 3",
        "portcullis.requests policy=reports result=denied: 1",
        "portcullis.requests policy=each result=acquired: 1",
    ] {
        assert!(seen.iter().any(|seen| seen == line), "{line} in {seen:?}");
    }
}

#[tokio::test]
async fn the_axum_service_has_the_limit_for_all_clients_together() {
    let few = AXUM.replace("\"100/s\"", "\"3/h\"");
    let (policy, _) = live("axum-few.toml", &few);
    let service = axum_service::service(&policy).unwrap();
    let mut client = Client::connect(server::serve(service).await).await;
    let mut statuses = Vec::new();
    for address in 1..=4 {
        let from = format!("X-Forwarded-For: 192.0.2.{address}");
        statuses.push(client.get("/hello", &[&from]).await.status);
    }
    assert_eq!(statuses, [200, 200, 200, 429]);
}

#[tokio::test]
async fn the_axum_service_reads_its_file_again() {
    let (policy, file) = live("axum-changed.toml", AXUM);
    let path = file.path().to_owned();
    let reloaded = policy.clone();
    std::thread::spawn(move || axum_service::reload(&reloaded, file));
    let service = axum_service::service(&policy).unwrap();
    let mut client = Client::connect(server::serve(service).await).await;
    let before = policy.generation();
    let more = AXUM.replace("\"2/m\", burst = 2", "\"4/m\", burst = 4");
    assert_ne!(more, AXUM);
    fs::write(path, more).unwrap();
    server::until(|| policy.generation() > before).await;
    let mut statuses = Vec::new();
    for _ in 0..5 {
        let reply = client.get("/reports/1", &["X-Forwarded-For: 192.0.2.7"]);
        statuses.push(reply.await.status);
    }
    assert_eq!(statuses, [200, 200, 200, 200, 429]);
}

/// Adds `Retry-After: 1` to each denial that has no `Retry-After`.
fn denials() -> DenialSettings {
    DenialSettings::new().responding(|_, mut response| {
        let second = HeaderValue::from_static("1");
        response.headers_mut().entry(RETRY_AFTER).or_insert(second);
        response
    })
}

#[tokio::test]
async fn a_denial_without_a_time_can_state_one() {
    let rules = "[[rules]]\nname = 'all'\nlimits = [{ at_once = 1 }]\n";
    for (settings, expected) in [(DenialSettings::new(), None), (denials(), Some("1"))] {
        let layer = RateLimitLayer::builder(ByPolicy::new(Policy::from_toml(rules).unwrap()))
            .denials(settings)
            .for_axum()
            .build();
        let service = Router::new().route("/", get(|| async {})).layer(layer);
        let request = || Request::get("/").body(AxumBody::empty()).unwrap();
        // The place is taken until this response is dropped.
        let held = service.clone().oneshot(request()).await.unwrap();
        let denied = service.oneshot(request()).await.unwrap();
        assert_eq!(
            (held.status().as_u16(), denied.status().as_u16()),
            (200, 429)
        );
        let retry = denied.headers().get(RETRY_AFTER);
        assert_eq!(retry.map(|value| value.to_str().unwrap()), expected);
    }
}

#[tokio::test]
async fn the_service_with_an_ocelot_file_does_what_its_lines_say() {
    let service = ocelot::service(OCELOT).unwrap();
    let mut client = Client::connect(server::serve(service).await).await;
    let mut replies = Vec::new();
    for curl in curl::lines_of(include_str!("../examples/ocelot.rs")) {
        replies.push(send(&mut client, &curl).await);
    }
    let statuses: Vec<_> = replies.iter().map(|reply| reply.status).collect();
    assert_eq!(statuses, [200, 200, 200, 429, 200, 200, 503, 200]);
    assert_eq!(replies[0].body, "Quote 7.\n");
    assert_eq!(replies[3].header("retry-after"), Some("5"));
    assert_eq!(replies[3].header("access-control-allow-origin"), Some("*"));
}

/// A reply of gRPC.
struct Called {
    grpc_status: Option<String>,
    pushback: Option<String>,
    data: Vec<u8>,
}

async fn call(address: SocketAddr, curl: curl::Curl) -> Called {
    let channel = Endpoint::from_shared(format!("http://{address}")).unwrap();
    let channel = channel.connect().await.unwrap();
    let mut request = Request::builder().method(&*curl.method).uri(curl.path);
    for header in &curl.headers {
        let (name, value) = header.split_once(": ").unwrap();
        request = request.header(name, value);
    }
    let body = Body::new(axum::body::Body::from(Bytes::from(curl.body)));
    let response = channel.oneshot(request.body(body).unwrap()).await.unwrap();
    assert_eq!(response.status(), 200, "as always with gRPC");
    let text = |headers: &http::HeaderMap, name| {
        let value = headers.get(name)?;
        Some(value.to_str().unwrap().to_owned())
    };
    let mut called = Called {
        grpc_status: text(response.headers(), "grpc-status"),
        pushback: text(response.headers(), "grpc-retry-pushback-ms"),
        data: Vec::new(),
    };
    let mut body = pin!(response.into_body());
    while let Some(frame) = poll_fn(|context| body.as_mut().poll_frame(context)).await {
        match frame.unwrap().into_data() {
            Ok(data) => called.data.extend_from_slice(&data),
            Err(frame) => {
                let trailers = frame.into_trailers().unwrap();
                called.grpc_status = text(&trailers, "grpc-status");
            }
        }
    }
    called
}

#[tokio::test]
async fn the_tonic_service_does_what_its_lines_say() {
    let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = incoming.local_addr().unwrap();
    tokio::spawn(async { tonic_service::serve(incoming).await.unwrap() });
    let mut calls = Vec::new();
    for curl in curl::lines_of(include_str!("../examples/tonic.rs")) {
        calls.push(call(address, curl).await);
    }
    let statuses: Vec<_> = calls
        .iter()
        .map(|call| call.grpc_status.as_deref())
        .collect();
    assert_eq!(statuses, ["0", "0", "0", "8", "0"].map(Some));
    assert_eq!(calls[0].data, b"\0\0\0\0\x0aHello, me.");
    assert_eq!(
        (&*calls[3].data, calls[3].pushback.as_deref()),
        (&b""[..], Some("60000"))
    );
    assert_eq!(calls[4].data, b"\0\0\0\0\x0bHello, you.");
}

/// The axum example, with shorter times.
async fn quotes() -> (SocketAddr, String) {
    let limits = OCELOT
        .replace("\"10s\"", "\"2s\"")
        .replace("\"5s\"", "\"2s\"");
    assert_eq!(limits.matches("\"2s\"").count(), 2);
    let address = server::serve(ocelot::service(&limits).unwrap()).await;
    (address, format!("http://{address}/quotes/7"))
}

#[tokio::test]
async fn the_client_is_not_denied() {
    let (_, url) = quotes().await;
    let replies = client::quotes(&url, "alice", 5).await.unwrap();
    let statuses: Vec<_> = replies.iter().map(|reply| reply.status).collect();
    assert_eq!(statuses, [200; 6]);
    // Three of them in each window.
    assert!(
        replies[3].at >= Duration::from_secs(1),
        "{:?}",
        replies[3].at
    );
}

#[tokio::test]
async fn the_client_obeys_a_denial() {
    let (address, url) = quotes().await;
    let mut other = Client::connect(address).await;
    let mut statuses = Vec::new();
    for curl in curl::lines_of(include_str!("../examples/client.rs")) {
        statuses.push(send(&mut other, &curl).await.status);
    }
    assert_eq!(statuses, [200, 200, 200, 429]);
    let replies = client::quotes(&url, "bob", 2).await.unwrap();
    let statuses: Vec<_> = replies.iter().map(|reply| reply.status).collect();
    assert_eq!(statuses, [429, 200, 200]);
    let asked: u64 = replies[0].retry_after.as_ref().unwrap().parse().unwrap();
    let waited = replies[1].at.saturating_sub(replies[0].at);
    assert!(
        waited >= Duration::from_millis(asked * 1_000 - 50),
        "{waited:?}"
    );
}
