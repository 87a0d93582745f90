//! The header fields of the IETF, from a server on loopback to what a client reads (world Q).

#[path = "support/server.rs"]
mod server;

use core::time::Duration;
use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use http::HeaderMap;
use portcullis_core::ManualClock;
use portcullis_policy::{Algorithm, Conditions, Kind, Limit, Policy, Rule};
use portcullis_tower::fields::{Generation, ReadOptions, Stated, Unit};
use portcullis_tower::{ByPolicy, Decide, RateLimitLayer};

use server::{Client, Received, serve};

fn read(reply: &Received) -> Stated {
    let mut headers = HeaderMap::new();
    for name in ["retry-after", "ratelimit-policy", "ratelimit"] {
        if let Some(value) = reply.header(name) {
            headers.insert(name, value.parse().unwrap());
        }
    }
    Stated::read(&headers, &ReadOptions::new())
}

async fn served(limit: Limit, generation: Generation) -> (Client, &'static ManualClock) {
    let clock: &ManualClock = Box::leak(Box::default());
    clock.advance(Duration::from_secs(1_000));
    let policy = Policy::new([Rule::new("dynamic").limit(limit)]).unwrap();
    let layer = RateLimitLayer::builder(ByPolicy::new(policy))
        .fields(generation)
        .clock(clock)
        .for_axum()
        .build();
    let router = Router::new().route("/", get(|| async {}));
    (
        Client::connect(serve(router.layer(layer)).await).await,
        clock,
    )
}

/// Exhausted (329): the fields of a 429 agree, and `Retry-After` is no earlier than the end of the
/// effective window.
#[tokio::test]
async fn the_fields_of_a_denial_agree() {
    for (generation, names) in [(Generation::Draft11, "rt"), (Generation::Next, "aw")] {
        let limit = Limit::per(15, Duration::from_secs(20)).algorithm_of(Algorithm::FixedWindow);
        let (mut client, clock) = served(limit, generation).await;
        for left in (0..15).rev() {
            let reply = client.get("/", &[]).await;
            assert_eq!(reply.status, 200);
            assert_eq!(read(&reply).quotas[0].available, Some(left));
        }
        clock.advance(Duration::from_millis(500));
        let denied = client.get("/", &[]).await;
        assert_eq!(denied.status, 429);
        assert_eq!(
            denied.header("ratelimit-policy"),
            Some(r#""dynamic";q=15;w=20"#)
        );
        let seconds = denied.header("retry-after").unwrap();
        let [left, time] = names.split_at(1).into();
        assert_eq!(
            denied.header("ratelimit"),
            Some(&*format!(r#""dynamic";{left}=0;{time}={seconds}"#))
        );
        let stated = read(&denied);
        assert!(stated.retry_after >= stated.quotas[0].reset, "{stated:?}");
        // A client that waits for that time is served.
        clock.advance(stated.retry_after.unwrap());
        assert_eq!(client.get("/", &[]).await.status, 200);
    }
}

#[tokio::test]
async fn a_limit_of_0_states_no_time_to_retry() {
    for limit in [
        Limit::per(0, Duration::from_mins(1)),
        Limit::per(0, Duration::from_mins(1)).algorithm_of(Algorithm::FixedWindow),
        Limit::at_once(0),
    ] {
        let (mut client, _) = served(limit.clone(), Generation::Draft11).await;
        let denied = client.get("/", &[]).await;
        assert_eq!(
            (denied.status, denied.header("retry-after")),
            (429, None),
            "{limit}"
        );
        assert_eq!(
            denied.header("ratelimit"),
            Some(r#""dynamic";r=0"#),
            "{limit}"
        );
        let policy = match limit.period() {
            Some(_) => r#""dynamic";q=0;w=60"#,
            None => r#""dynamic";q=0;qu="concurrent-requests""#,
        };
        assert_eq!(denied.header("ratelimit-policy"), Some(policy), "{limit}");
    }
}

/// Extension parameter (331) and malformed (333): a client that reads the replies of a server
/// ignores the one, and the field with the other.
#[tokio::test]
async fn a_client_reads_extensions_and_ignores_malformed_fields() {
    let reply = async |path: axum::extract::Path<String>| {
        let (policy, state) = match &*path.0 {
            "extension" => (r#""a";q=100;w=60;burst=1000"#, r#""a";r=7;t=5;x-b="c""#),
            "negative" => (r#""a";q=100;w=60"#, r#""a";r=-1;t=5"#),
            "fraction" => (r#""a";q=100;w=60"#, r#""a";r=1.5;t=5"#),
            _ => (r#""a";q=100;w=60"#, r#""a";r="x";t=5"#),
        };
        [("ratelimit-policy", policy), ("ratelimit", state)]
    };
    let router = Router::new().route(
        "/{name}",
        get(async move |path| axum::response::AppendHeaders(reply(path).await)),
    );
    let mut client = Client::connect(serve(router).await).await;
    let stated = read(&client.get("/extension", &[]).await);
    let [quota] = &*stated.quotas else {
        panic!("{stated:?}")
    };
    assert_eq!((quota.quota, quota.available), (Some(100), Some(7)));
    for path in ["/negative", "/fraction", "/text"] {
        let stated = read(&client.get(path, &[]).await);
        let [quota] = &*stated.quotas else {
            panic!("{stated:?}")
        };
        assert_eq!(
            (quota.quota, quota.available, quota.reset),
            (Some(100), None, None)
        );
    }
}

/// Units (327): of a limit of requests at once.
#[tokio::test]
async fn a_limit_at_once_names_its_unit() {
    let (mut client, _) = served(Limit::at_once(3), Generation::Draft11).await;
    let reply = client.get("/", &[]).await;
    let stated = read(&reply);
    assert_eq!(stated.quotas[0].unit, Unit::ConcurrentRequests);
    assert_eq!(stated.quotas[0].quota, Some(3));
}

/// What a limit took is given back if a later one denies. So only its policy is stated.
#[tokio::test]
async fn a_denial_states_nothing_that_was_given_back() {
    let clock: &ManualClock = Box::leak(Box::default());
    clock.advance(Duration::from_secs(1_000));
    let rule = |name: &'static str, kind, count| {
        let limit = Limit::per(count, Duration::from_hours(1));
        Rule::new(name)
            .when(Conditions::new().kind(kind))
            .limit(limit)
    };
    let rules = [rule("a", Kind::Burst, 10), rule("b", Kind::Request, 1)];
    let policy = Arc::new(Policy::new(rules).unwrap());
    let judges = ByPolicy::new(Arc::clone(&policy)).kind(Kind::Burst);
    let layer = RateLimitLayer::builder(judges.and(ByPolicy::new(policy)))
        .fields(Generation::Draft11)
        .clock(clock)
        .for_axum()
        .build();
    let router = Router::new().route("/", get(|| async {})).layer(layer);
    let mut client = Client::connect(serve(router).await).await;
    let allowed = client.get("/", &[]).await;
    assert_eq!(
        (allowed.status, allowed.header("ratelimit")),
        (200, Some(r#""a";r=9;t=360, "b";r=0;t=3600"#))
    );
    let denied = client.get("/", &[]).await;
    assert_eq!(
        (denied.status, denied.header("ratelimit")),
        (429, Some(r#""b";r=0;t=3600"#))
    );
    let policies = Some(r#""a";q=10;w=3600, "b";q=1;w=3600"#);
    assert_eq!(denied.header("ratelimit-policy"), policies);
}
