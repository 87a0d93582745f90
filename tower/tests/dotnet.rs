//! Behaves as the rate limiting middleware of ASP.NET Core does. Each test names the test of .NET
//! that it follows (dotnet part 7, and 6 where it is about requests).

#[path = "support/server.rs"]
mod server;

use axum::Router;
use axum::extract::Path;
use axum::routing::get;
use http::StatusCode;
use portcullis_policy::{Conditions, Key, Limit, Policy, Rule};
use portcullis_tower::{ByPolicy, Decide, DenialSettings, RateLimitLayer};

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
