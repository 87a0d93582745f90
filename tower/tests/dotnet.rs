//! Behaves as the rate limiting middleware of ASP.NET Core does. Each test names the test of .NET
//! that it follows (dotnet part 7, and 6 where it is about requests).

#[path = "support/server.rs"]
mod server;

use std::sync::Arc;

use axum::Router;
use axum::extract::Path;
use axum::routing::get;
use http::StatusCode;
use portcullis_core::Concurrency;
use portcullis_policy::{Conditions, Key, Limit, Policy, Rule};
use portcullis_tower::{ByLimiter, ByPolicy, Decide, DenialSettings, RateLimitLayer};

use server::{Client, serve};

fn rule(name: &str, path: &str, limit: &str) -> Rule {
    Rule::new(name)
        .when(Conditions::new().paths([path]))
        .limit(limit.parse().unwrap())
}

fn policy(rules: impl IntoIterator<Item = Rule>) -> ByPolicy {
    ByPolicy::new(Policy::new(rules).unwrap())
}

async fn served(judges: impl Decide, denials: DenialSettings) -> Client {
    let router = Router::new()
        .route("/", get(|| async { "served" }))
        .route("/{name}", get(async |name: Path<String>| name.0));
    let layer = RateLimitLayer::builder(judges).denials(denials).build();
    Client::connect(serve(router.layer(layer)).await).await
}

/// `RequestsCallNextIfAccepted` (361).
#[tokio::test]
async fn an_allowed_request_reaches_the_handler() {
    let mut client = served(policy([rule("all", "/**", "10/s")]), DenialSettings::new()).await;
    let response = client.get("/", &[]).await;
    assert_eq!((response.status, response.body.as_str()), (200, "served"));
}

/// `RequestRejected_WinsOverDefaultStatusCode` (363).
#[tokio::test]
async fn the_status_of_a_rule_wins_over_the_default() {
    let denials = DenialSettings::new().status(StatusCode::SERVICE_UNAVAILABLE);
    let judges = policy([rule("all", "/**", "1/h").with_status(429)]);
    let mut client = served(judges, denials).await;
    assert_eq!(client.get("/", &[]).await.status, 200);
    assert_eq!(client.get("/", &[]).await.status, 429);
}

/// `EndpointLimiterConvenienceMethod_Rejects` (367).
#[tokio::test]
async fn a_limit_of_one_passes_one_request() {
    let limit: Limit = "1/h".parse().unwrap();
    let window = limit.algorithm_of(portcullis_policy::Algorithm::FixedWindow);
    let mut client = served(
        policy([Rule::new("all").limit(window)]),
        DenialSettings::new(),
    )
    .await;
    assert_eq!(client.get("/", &[]).await.status, 200);
    assert_eq!(client.get("/", &[]).await.status, 429);
}

/// `GlobalAndEndpoint_GlobalRejects_GlobalWins` (369),
/// `GlobalAndEndpoint_BothReject_GlobalWins` (371), and an endpoint that rejects alone.
#[tokio::test]
async fn the_first_limit_that_denies_makes_the_reply() {
    let global = policy([rule("global", "/**", "2/h").with_status(429)]);
    let route = policy([rule("route", "/one", "1/h").with_status(404)]);
    let mut client = served(global.and(route), DenialSettings::new()).await;
    assert_eq!(client.get("/one", &[]).await.status, 200);
    assert_eq!(client.get("/one", &[]).await.status, 404);
    // What the route denied is not counted by the global limit. In ASP.NET Core it is
    // (aspnetcore#60852).
    assert_eq!(client.get("/two", &[]).await.status, 200);
    assert_eq!(client.get("/two", &[]).await.status, 429);
    assert_eq!(client.get("/one", &[]).await.status, 429, "both deny");
}

/// `EndpointLimiter_DuplicatePartitionKey_NoCollision` (373).
#[tokio::test]
async fn two_rules_with_the_same_key_have_limits_of_their_own() {
    let judges = policy([
        rule("one", "/one", "1/h").key(Key::address()),
        rule("two", "/two", "1/h").key(Key::address()),
    ]);
    let mut client = served(judges, DenialSettings::new()).await;
    for path in ["/one", "/two"] {
        assert_eq!(client.get(path, &[]).await.status, 200);
        assert_eq!(client.get(path, &[]).await.status, 429);
    }
}

/// `PartitionedChainedLimiterTests.AcquireForwardsCorrectResource` (348): each link finds the key
/// of the request by its own rule.
#[tokio::test]
async fn each_limit_finds_its_own_key() {
    let by_header = rule("tenants", "/**", "2/h").key(Key::header("X-Tenant"));
    let by_path = rule("paths", "/**", "3/h").key(Key::path());
    let judges = policy([by_header]).and(policy([by_path]));
    let mut client = served(judges, DenialSettings::new()).await;
    let (a, b) = (["X-Tenant: a"], ["X-Tenant: b"]);
    assert_eq!(client.get("/", &a).await.status, 200);
    assert_eq!(client.get("/", &a).await.status, 200);
    assert_eq!(client.get("/", &a).await.status, 429, "the tenant");
    assert_eq!(client.get("/", &b).await.status, 200);
    assert_eq!(client.get("/", &b).await.status, 429, "the path");
    assert_eq!(client.get("/other", &b).await.status, 200);
}

/// Of `PartitionedChainedLimiterTests`: `AcquireForwardsCorrectPermitCount` (346),
/// `AcquireLeaseCorrectlyDisposesWithMultipleLimiters` (326) and
/// `AcquireFailsAndReleasesAcquiredResources` (332). Each link takes the cost of the request, and
/// all of it returns at the end of the response, or if a later link denies.
#[tokio::test]
async fn each_limit_takes_the_cost_and_has_it_back() {
    let limits = [5, 3].map(|permits| Arc::new(Concurrency::new(permits)));
    let [first, next] = limits
        .clone()
        .map(|limit| ByLimiter::shared(limit).by_cost());
    let seen = limits.clone();
    let handler = async move || format!("{} {}", seen[0].in_use(), seen[1].in_use());
    let layer = RateLimitLayer::builder(first.and(next))
        .cost(|head| head.uri.path()[1..].parse().unwrap_or(1))
        .build();
    let router = Router::new().route("/{cost}", get(handler)).layer(layer);
    let mut client = Client::connect(serve(router).await).await;
    let nothing_is_held = || limits.iter().all(|limit| limit.in_use() == 0);

    assert_eq!(client.get("/3", &[]).await.body, "3 3");
    server::until(nothing_is_held).await;
    // The first has 4, and the other has not.
    assert_eq!(client.get("/4", &[]).await.status, 429);
    assert!(nothing_is_held());
    assert_eq!(client.get("/2", &[]).await.body, "2 2");
    server::until(nothing_is_held).await;
}
