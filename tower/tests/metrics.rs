//! Requests are measured with the meaning of ASP.NET Core's instruments, over loopback. Tests that
//! follow one of .NET name it (dotnet part 7).

#[path = "../../policy/tests/support/recorder.rs"]
mod recorder;
#[path = "support/server.rs"]
mod server;

use core::time::Duration;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use metrics::set_default_local_recorder;
use portcullis_async::{Queue, TokioTimer};
use portcullis_core::Concurrency;
use portcullis_policy::{Conditions, Limit, LivePolicy, Policy, Rule};
use portcullis_tower::fields::Generation;
use portcullis_tower::{
    ByLimiter, ByLivePolicy, ByPolicy, Decide, NotLimited, RateLimitLayer, RateLimitLayerBuilder,
};
use tokio::io::AsyncReadExt;
use tokio::sync::{Semaphore, mpsc};

use recorder::Kept;
use server::{Client, Sent, serve, until};

/// The counters and gauges that are not 0, and how many durations there are, all of them positive.
fn seen(kept: &Kept) -> Vec<String> {
    let seen = kept.seen().into_iter().map(|line| {
        let (name, value) = line.split_once(": ").unwrap();
        let name = name.trim_start_matches("portcullis.");
        let Some(values) = value.strip_prefix('[') else {
            return format!("{name}: {value}");
        };
        let values = values.trim_end_matches(']').split(", ");
        let values: Vec<f64> = values.map(|value| value.parse().unwrap()).collect();
        assert!(values.iter().all(|&value| value > 0.0), "{line}");
        format!("{name}: {}", values.len())
    });
    seen.collect()
}

async fn is_seen(kept: &Kept, lines: &[&str]) {
    let wait = until(|| seen(kept) == lines);
    let waited = tokio::time::timeout(Duration::from_secs(5), wait).await;
    waited.unwrap_or_else(|_| assert_eq!(seen(kept), lines));
}

/// A service whose handlers end when they may.
struct Served {
    may_end: Arc<Semaphore>,
    address: core::net::SocketAddr,
}

fn handler(may_end: &Arc<Semaphore>) -> Router {
    let may_end = Arc::clone(may_end);
    let handler = async move || {
        may_end.acquire().await.unwrap().forget();
        "served"
    };
    Router::new()
        .route("/", get(handler.clone()))
        .route("/{name}", get(handler))
}

impl Served {
    async fn new(layered: impl FnOnce(Router) -> Router) -> Self {
        let may_end = Arc::new(Semaphore::new(0));
        Self {
            address: serve(layered(handler(&may_end))).await,
            may_end,
        }
    }

    async fn send(&self, path: &str) -> Client {
        let mut client = Client::connect(self.address).await;
        client.send(&format!("GET {path}"), &[]).await;
        client
    }
}

fn builder<D: Decide>(judges: D) -> RateLimitLayerBuilder<D> {
    RateLimitLayer::builder(judges).measured()
}

fn policy(rules: impl IntoIterator<Item = Rule>) -> Policy {
    Policy::new(rules).unwrap().with_timer(TokioTimer::new)
}

/// `Metrics_Success` (375).
#[tokio::test]
async fn an_active_lease_counts_while_the_handler_runs() {
    let kept = Kept::default();
    let _recorder = set_default_local_recorder(&kept);
    let limiter = ByLimiter::new(Concurrency::new(8));
    let layer = builder(limiter).build();
    let served = Served::new(|router| router.layer(layer)).await;
    let mut client = served.send("/").await;
    is_seen(
        &kept,
        &["requests result=acquired: 1", "active_request_leases: 1"],
    )
    .await;
    served.may_end.add_permits(1);
    assert_eq!(client.receive().await.status, 200);
    is_seen(
        &kept,
        &["requests result=acquired: 1", "request_lease.duration: 1"],
    )
    .await;
}

/// `Metrics_Queued` (377), and a client that leaves while it waits, and one that finds the queue
/// full.
#[tokio::test]
async fn a_request_that_waits_counts_as_queued() {
    let kept = Kept::default();
    let _recorder = set_default_local_recorder(&kept);
    let rule = Rule::new("concurrencyPolicy").limit(Limit::at_once(1).queue(1));
    let fixed = ByPolicy::new(policy([rule.clone()]));
    let live = ByLivePolicy::new(LivePolicy::new(policy([rule])));
    let labels = "policy=concurrencyPolicy";
    waits(&kept, labels, builder(fixed).build_waiting()).await;
    let kept = Kept::default();
    let _recorder = set_default_local_recorder(&kept);
    waits(&kept, labels, builder(live).build_waiting()).await;
    // A limiter in code has no name.
    let kept = Kept::default();
    let _recorder = set_default_local_recorder(&kept);
    let queue = Queue::new(Concurrency::new(1), TokioTimer::new(), 1).shared();
    waits(&kept, "", builder(ByLimiter::shared(queue)).build_waiting()).await;
}

async fn waits<L>(kept: &Kept, labels: &str, layer: L)
where
    L: tower_layer::Layer<axum::routing::Route> + Clone + Send + Sync + 'static,
    L::Service: tower_service::Service<
            http::Request<Body>,
            Response: axum::response::IntoResponse,
            Error: Into<core::convert::Infallible>,
            Future: Send,
        > + Clone
        + Send
        + Sync
        + 'static,
{
    let line = |name: &str, result: &str, n: u32| {
        let result = match result {
            "" => String::new(),
            result => format!("result={result}"),
        };
        let all = [name, labels, &result].map(str::to_owned);
        let all: Vec<_> = all.into_iter().filter(|part| !part.is_empty()).collect();
        format!("{}: {n}", all.join(" "))
    };
    let served = Served::new(|router| router.layer(layer)).await;
    let seen = async |lines: &[(&str, &str, u32)]| {
        let lines: Vec<_> = lines.iter().map(|(a, b, n)| line(a, b, *n)).collect();
        let lines: Vec<_> = lines.iter().map(|line| &**line).collect();
        is_seen(kept, &lines).await;
    };
    let mut first = served.send("/").await;
    seen(&[
        ("requests", "acquired", 1),
        ("active_request_leases", "", 1),
    ])
    .await;
    let leaves = served.send("/").await;
    seen(&[
        ("requests", "acquired", 1),
        ("active_request_leases", "", 1),
        ("queued_requests", "", 1),
    ])
    .await;
    assert_eq!(served.send("/").await.receive().await.status, 429);
    drop(leaves);
    seen(&[
        ("requests", "acquired", 1),
        ("requests", "denied", 1),
        ("requests", "request_canceled", 1),
        ("active_request_leases", "", 1),
        ("request.time_in_queue", "request_canceled", 1),
    ])
    .await;
    let mut second = served.send("/").await;
    seen(&[
        ("requests", "acquired", 1),
        ("requests", "denied", 1),
        ("requests", "request_canceled", 1),
        ("active_request_leases", "", 1),
        ("queued_requests", "", 1),
        ("request.time_in_queue", "request_canceled", 1),
    ])
    .await;
    served.may_end.add_permits(1);
    assert_eq!(first.receive().await.status, 200);
    seen(&[
        ("requests", "acquired", 2),
        ("requests", "denied", 1),
        ("requests", "request_canceled", 1),
        ("active_request_leases", "", 1),
        ("request.time_in_queue", "acquired", 1),
        ("request.time_in_queue", "request_canceled", 1),
        ("request_lease.duration", "", 1),
    ])
    .await;
    served.may_end.add_permits(1);
    assert_eq!(second.receive().await.status, 200);
    seen(&[
        ("requests", "acquired", 2),
        ("requests", "denied", 1),
        ("requests", "request_canceled", 1),
        ("request.time_in_queue", "acquired", 1),
        ("request.time_in_queue", "request_canceled", 1),
        ("request_lease.duration", "", 2),
    ])
    .await;
}

/// `RateLimiterPartitionTests.NoLimiter_GetStatistics` (309): a rule without limits allows every
/// request, also where others wait.
#[tokio::test]
async fn every_request_of_a_rule_without_limits_is_acquired() {
    let kept = Kept::default();
    let _recorder = set_default_local_recorder(&kept);
    let policy = Arc::new(policy([Rule::new("all")]));
    let judges = || builder(ByPolicy::new(Arc::clone(&policy)));
    let router = Router::new()
        .route("/now", get(|| async {}).layer(judges().build()))
        .route("/waits", get(|| async {}).layer(judges().build_waiting()));
    let mut client = Client::connect(serve(router).await).await;
    for (path, n) in [("/now", 134), ("/waits", 165)] {
        for _ in 0..n {
            assert_eq!(client.get(path, &[]).await.status, 200);
        }
    }
    let lines = [
        "requests policy=all result=acquired: 299",
        "request_lease.duration policy=all: 299",
    ];
    is_seen(&kept, &lines).await;
}

/// Of `PartitionedChainedLimiterTests`: `GetStatisticsHasCorrectValues` (321), and before the first
/// request `GetStatisticsWithSingleLimiterWorks` (319).
#[tokio::test]
async fn the_counts_of_a_limiter_are_those_of_its_requests() {
    let kept = Kept::default();
    let _recorder = set_default_local_recorder(&kept);
    let queue = Queue::new(Concurrency::new(13), TokioTimer::new(), 10).shared();
    let counts = || (queue.available(), queue.counts().permits);
    assert_eq!((counts(), seen(&kept)), ((13, 0), vec![]));
    let judges = || {
        let limiter = ByLimiter::shared(Arc::clone(&queue)).by_cost();
        builder(limiter).cost(|_| 10)
    };
    let may_end = Arc::new(Semaphore::new(0));
    let at_once = handler(&may_end).layer(judges().build());
    let waits = handler(&may_end).layer(judges().build_waiting());
    let router = Router::new()
        .nest("/at_once", at_once)
        .nest("/waits", waits);
    let served = Served {
        may_end,
        address: serve(router).await,
    };
    let mut first = served.send("/at_once/1").await;
    until(|| counts() == (3, 0)).await;
    assert_eq!(served.send("/at_once/2").await.receive().await.status, 429);
    assert_eq!(counts(), (3, 0));
    let mut second = served.send("/waits/3").await;
    until(|| counts() == (3, 10)).await;
    let [acquired, denied, active] = [
        "requests result=acquired: 1",
        "requests result=denied: 1",
        "active_request_leases: 1",
    ];
    is_seen(&kept, &[acquired, denied, active, "queued_requests: 1"]).await;
    served.may_end.add_permits(1);
    assert_eq!(first.receive().await.status, 200);
    until(|| counts() == (3, 0)).await;
    let [acquired, waited, ended] = [
        "requests result=acquired: 2",
        "request.time_in_queue result=acquired: 1",
        "request_lease.duration: 1",
    ];
    is_seen(&kept, &[acquired, denied, active, waited, ended]).await;
    served.may_end.add_permits(1);
    assert_eq!(second.receive().await.status, 200);
    until(|| counts() == (13, 0)).await;
}

/// A request that one limit grants and the next one denies counts once, as denied. Which limit
/// denied is told by the rule, where ASP.NET Core has the results `global_limiter` and
/// `endpoint_limiter`.
#[tokio::test]
async fn a_request_counts_once_with_the_rule_that_decided() {
    let kept = Kept::default();
    let _recorder = set_default_local_recorder(&kept);
    let rule = |name: &str, path: &str, limit: &str| {
        let rule = Rule::new(name).when(Conditions::new().paths([path]));
        rule.limit(limit.parse().unwrap())
    };
    let global = ByPolicy::new(policy([rule("global", "/**", "2/h")]));
    let route = ByLivePolicy::new(LivePolicy::new(policy([rule("route", "/one", "1/h")])));
    // With a cost that is settled, and with the limits in the headers.
    let layer = builder(global.and(route))
        .settling(|_, estimate| estimate)
        .fields(Generation::Draft11)
        .build();
    let served = Served::new(|router| router.layer(layer)).await;
    served.may_end.add_permits(9);
    for (path, status) in [("/one", 200), ("/one", 429), ("/two", 200), ("/two", 429)] {
        assert_eq!(served.send(path).await.receive().await.status, status);
    }
    is_seen(
        &kept,
        &[
            "requests policy=global result=acquired: 1",
            "requests policy=global result=denied: 1",
            "requests policy=route result=acquired: 1",
            "requests policy=route result=denied: 1",
            "request_lease.duration policy=global: 1",
            "request_lease.duration policy=route: 1",
        ],
    )
    .await;
}

/// ASP.NET Core ends the lease with the handler, which writes the body there.
#[tokio::test]
async fn a_lease_is_active_until_the_body_has_ended() {
    let kept = Kept::default();
    let _recorder = set_default_local_recorder(&kept);
    let (body, sent) = mpsc::unbounded_channel();
    let sent = Arc::new(Mutex::new(Some(sent)));
    let handler = async move || Body::new(Sent(sent.lock().unwrap().take().unwrap()));
    let judges = ByPolicy::new(policy([Rule::new("all").limit("9/h".parse().unwrap())]));
    let router = Router::new().route("/", get(handler));
    let address = serve(router.layer(builder(judges).build())).await;
    let mut client = Client::connect(address).await;
    client.send("GET /", &[]).await;
    body.send("first").unwrap();
    // The response has begun.
    client.0.read_u8().await.unwrap();
    let acquired = "requests policy=all result=acquired: 1";
    let active = "active_request_leases policy=all: 1";
    assert_eq!(seen(&kept), [acquired, active]);
    drop(body);
    is_seen(&kept, &[acquired, "request_lease.duration policy=all: 1"]).await;
}

/// The up-down counters return to zero, however a request ends, and what passes is not measured.
#[tokio::test]
async fn a_lease_ends_with_its_request_and_what_passes_is_not_measured() {
    let kept = Kept::default();
    let _recorder = set_default_local_recorder(&kept);
    let judges = ByPolicy::new(policy([Rule::new("all").limit("9/h".parse().unwrap())]));
    let layer = builder(judges)
        .passing(|head| {
            head.uri.path() == "/passes" || head.extensions.get::<NotLimited>().is_some()
        })
        .build();
    let served = Served::new(|router| router.layer(layer)).await;
    let leaves = served.send("/").await;
    let active = "active_request_leases policy=all: 1";
    is_seen(&kept, &["requests policy=all result=acquired: 1", active]).await;
    drop(leaves);
    let one = "requests policy=all result=acquired: 1";
    is_seen(&kept, &[one, "request_lease.duration policy=all: 1"]).await;
    served.may_end.add_permits(1);
    assert_eq!(served.send("/passes").await.receive().await.status, 200);
    is_seen(&kept, &[one, "request_lease.duration policy=all: 1"]).await;
}
