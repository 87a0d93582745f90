//! Behaves as the rate limiting middleware of ASP.NET Core does. Each test names the test of .NET
//! that it follows (dotnet part 7, and 5 and 6 where they are about requests).

#[path = "support/server.rs"]
mod server;

use core::time::Duration;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::Path;
use axum::routing::get;
use http::StatusCode;
use portcullis_async::{KeyedQueue, Queue, TokioTimer};
use portcullis_core::{Clock, Concurrency, Keyed, ManualClock, Timestamp};
use portcullis_policy::{Algorithm, Conditions, Key, Limit, Policy, Rule};
use portcullis_tower::{
    ByKeyedQueue, ByLimiter, ByPolicy, Decide, Denial, DenialSettings, Question, RateLimitLayer,
    Taking,
};
use tokio::io::AsyncReadExt;
use tower_layer::Stack;

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

/// `EndpointLimiterRequested_NoPolicy` (365): a route chooses a rule by its name, and a name that
/// no rule has is an error. In ASP.NET Core it is one of the first request.
#[tokio::test]
async fn a_route_that_names_an_unknown_rule_is_an_error() {
    let uploads = Conditions::new().property("endpoint", ["uploads"]);
    let rules = [
        Rule::new("uploads")
            .when(uploads)
            .limit("1/h".parse().unwrap()),
        rule("one", "/one", "2/h"),
    ];
    let policy = Arc::new(Policy::new(rules).unwrap());
    let unknown = ByPolicy::new(Arc::clone(&policy)).endpoint("upload");
    assert!(unknown.unwrap_err().to_string().contains("\"upload\""));
    let known = ByPolicy::new(Arc::clone(&policy))
        .endpoint("uploads")
        .unwrap();
    let layer = RateLimitLayer::builder(known).for_axum().build();
    let all = RateLimitLayer::builder(ByPolicy::new(policy))
        .for_axum()
        .build();
    let router = Router::new()
        .route("/files", get(|| async {}).layer(layer.clone()))
        .route("/images", get(|| async {}).layer(layer))
        .route("/one", get(|| async {}))
        .layer(all);
    let mut client = Client::connect(serve(router).await).await;
    for (path, status) in [
        ("/files", 200),
        ("/images", 429),
        ("/one", 200),
        ("/one", 200),
        ("/one", 429),
    ] {
        assert_eq!(client.get(path, &[]).await.status, status, "{path}");
    }
}

/// `EndpointLimiterConvenienceMethod_Rejects` (367).
#[tokio::test]
async fn a_limit_of_one_passes_one_request() {
    let limit: Limit = "1/h".parse().unwrap();
    let window = limit.algorithm_of(Algorithm::FixedWindow);
    let mut client = served(
        policy([Rule::new("all").limit(window)]),
        DenialSettings::new(),
    )
    .await;
    assert_eq!(client.get("/", &[]).await.status, 200);
    assert_eq!(client.get("/", &[]).await.status, 429);
}

/// `RateLimiterPartitionTests.Create_TokenBucket` (307) and `Create_FixedWindow` (311): a key has
/// its permit from the start. In .NET a timer of the table returns it, here time alone does.
#[tokio::test]
async fn a_key_begins_with_its_permit_and_needs_no_timer() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::FixedWindow] {
        let limit: Limit = "1/m".parse().unwrap();
        let limit = limit.algorithm_of(algorithm).queue(10);
        let rule = Rule::new("all").key(Key::header("X-User")).limit(limit);
        let clock: &ManualClock = Box::leak(Box::default());
        clock.set(Timestamp::from_secs(60));
        let layer = RateLimitLayer::builder(policy([rule])).clock(clock).build();
        let router = Router::new().route("/", get(|| async {})).layer(layer);
        let mut client = Client::connect(serve(router).await).await;
        for seconds in [0, 60, 60] {
            clock.advance(Duration::from_secs(seconds));
            for user in [["X-User: a"], ["X-User: b"]] {
                assert_eq!(client.get("/", &user).await.status, 200);
                assert_eq!(client.get("/", &user).await.status, 429);
            }
        }
    }
}

/// `PartitionedChainedLimiterTests`: `AcquireThrows_SingleLimiter` (336),
/// `AcquireThrowsAndReleasesAcquiredResources` (334), and the same with waiting (337, 335). If the
/// function of a key panics, the links before it have their permits back.
#[tokio::test]
async fn what_fails_with_a_panic_keeps_no_permit() {
    let limit = Queue::new(Concurrency::new(1), TokioTimer::new(), 1).shared();
    let table = Keyed::for_keys(Concurrency::new(1), 100);
    let queue = KeyedQueue::new(table, TokioTimer::new(), 1).shared();
    let fails = || {
        ByKeyedQueue::new(Arc::clone(&queue), |head| {
            assert!(!head.headers.contains_key("x-fails"), "the key is missing");
            Some(7_u32)
        })
    };
    let first = || ByLimiter::shared(Arc::clone(&limit));
    let stacked = Stack::new(
        RateLimitLayer::builder(fails()).build_waiting(),
        RateLimitLayer::builder(first()).build_waiting(),
    );
    let alone = RateLimitLayer::builder(fails()).build();
    let joined = RateLimitLayer::builder(first().and(fails())).build();
    let router = Router::new()
        .route("/alone", get(|| async {}).layer(alone))
        .route("/joined", get(|| async {}).layer(joined))
        .route("/waits", get(|| async {}).layer(stacked));
    let address = serve(router).await;
    for path in ["/alone", "/joined", "/waits"] {
        let mut client = Client::connect(address).await;
        client.send(&format!("GET {path}"), &["X-Fails: 1"]).await;
        assert!(client.0.read_u8().await.is_err(), "no response");
        server::until(|| limit.available() == 1).await;
        let mut client = Client::connect(address).await;
        assert_eq!(client.get(path, &[]).await.status, 200);
        server::until(|| limit.available() == 1 && queue.key(&7_u32).available() == 1).await;
    }
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

/// Notes when it is asked, and when its permits return.
struct Noted<D> {
    judges: D,
    name: &'static str,
    notes: Arc<Mutex<Vec<String>>>,
}

struct NotedPermits<P> {
    permits: Option<P>,
    name: &'static str,
    notes: Arc<Mutex<Vec<String>>>,
}

impl<P> Drop for NotedPermits<P> {
    fn drop(&mut self) {
        self.permits = None;
        self.notes
            .lock()
            .unwrap()
            .push(format!("{} ends", self.name));
    }
}

impl<D: Decide> Decide for Noted<D> {
    type Held = D::Held;
    type Permits = NotedPermits<D::Permits>;

    fn prepare(&mut self, settings: &DenialSettings) {
        self.judges.prepare(settings);
    }

    fn decide<C: Clock>(&self, mut question: Question<'_, C>) -> Result<Option<D::Held>, Denial> {
        // Returnable, so that something is kept of each request.
        question.taking = Taking::Returnable;
        let held = self.judges.decide(question);
        let answer = if held.is_ok() { "allows" } else { "denies" };
        self.notes
            .lock()
            .unwrap()
            .push(format!("{} {answer}", self.name));
        held
    }

    fn undo_at(&self, now: Timestamp, held: Self::Held) {
        self.notes
            .lock()
            .unwrap()
            .push(format!("{} undoes", self.name));
        self.judges.undo_at(now, held);
    }

    fn settle_at(&self, now: Timestamp, held: Self::Held, n: u32) -> Option<Self::Permits> {
        let _ = self.judges.settle_at(now, held, n);
        None
    }

    fn keep(&self, held: Self::Held) -> Option<Self::Permits> {
        Some(NotedPermits {
            permits: self.judges.keep(held),
            name: self.name,
            notes: Arc::clone(&self.notes),
        })
    }
}

/// Of `PartitionedChainedLimiterTests`: `AcquireWorksWithSingleLimiter` (322),
/// `AcquireWorksWithMultipleLimiters` (324), `AcquireLeaseCorrectlyDisposesWithSingleLimiter`
/// (328), and `AcquireFailsWhenOneLimiterDoesNotHaveEnoughResources` (330). Each link is asked once
/// for a request, in order, and what one denies the others take back, the last one first (353).
#[tokio::test]
async fn each_link_is_asked_once_and_in_order() {
    let notes = Arc::new(Mutex::new(Vec::new()));
    let noted = |name, limit: &str| Noted {
        judges: policy([rule(name, "/**", limit)]),
        name,
        notes: Arc::clone(&notes),
    };
    let single = noted("single", "1/h");
    let mut client = served(single, DenialSettings::new()).await;
    assert_eq!(client.get("/", &[]).await.status, 200);
    assert_eq!(client.get("/", &[]).await.status, 429);
    server::until(|| notes.lock().unwrap().len() == 3).await;
    let mut seen = core::mem::take(&mut *notes.lock().unwrap());
    seen.sort_unstable();
    assert_eq!(seen, ["single allows", "single denies", "single ends"]);

    let links = noted("1", "3/h")
        .and(noted("2", "2/h"))
        .and(noted("3", "1/h"));
    let mut client = served(links, DenialSettings::new()).await;
    assert_eq!(client.get("/", &[]).await.status, 200);
    server::until(|| notes.lock().unwrap().len() == 6).await;
    let seen = core::mem::take(&mut *notes.lock().unwrap());
    assert_eq!(seen[..3], ["1 allows", "2 allows", "3 allows"]);
    for _ in 0..2 {
        assert_eq!(client.get("/", &[]).await.status, 429);
        let seen = core::mem::take(&mut *notes.lock().unwrap());
        let expected = ["1 allows", "2 allows", "3 denies", "2 undoes", "1 undoes"];
        assert_eq!(seen, expected);
    }
}
