//! The layer in an axum service, on loopback.

#[path = "support/server.rs"]
mod server;

use axum::Router;
use axum::routing::get;
use portcullis_policy::{Conditions, Key, Policy, Rule};
use portcullis_tower::{ByPolicy, RateLimitLayer};

use server::{Client, serve};

#[tokio::test]
async fn a_denied_request_gets_429_and_when_to_retry() {
    let policy = Policy::new([Rule::new("clients")
        .key(Key::address())
        .when(Conditions::new().paths(["/limited"]))
        .limit("2/m".parse().unwrap())])
    .unwrap();
    let router = Router::new()
        .route("/limited", get(|| async { "served" }))
        .route("/free", get(|| async { "served" }))
        .layer(RateLimitLayer::new(ByPolicy::new(policy)));
    let address = serve(router).await;
    // Two connections of one client share the limit.
    let (mut one, mut two) = (
        Client::connect(address).await,
        Client::connect(address).await,
    );
    assert_eq!(one.get("/limited", &[]).await.body, "served");
    assert_eq!(two.get("/limited", &[]).await.body, "served");
    let denied = one.get("/limited", &["X-Of-The-Request: 1"]).await;
    assert_eq!(
        (denied.status, denied.body.as_str()),
        (429, "Too Many Requests")
    );
    assert_eq!(denied.header("retry-after"), Some("30"));
    assert_eq!(
        denied.header("content-type"),
        Some("text/plain; charset=utf-8")
    );
    assert_eq!(denied.header("x-of-the-request"), None);
    assert_eq!(one.get("/free", &[]).await.status, 200);
}
