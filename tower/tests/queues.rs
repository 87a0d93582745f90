//! Requests that wait in the queues of limiters in code, over loopback.

#[path = "support/server.rs"]
mod server;

use core::convert::Infallible;
use core::net::SocketAddr;
use core::time::Duration;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::Path;
use axum::response::IntoResponse;
use axum::routing::{Route, get};
use http::Request;
use portcullis_async::{KeyedQueue, Queue, Rejected, TokioTimer};
use portcullis_core::{AllOf, Clock, Concurrency, Keyed, Limiter, Rate, TokenBucket};
use portcullis_tower::{ByKeyedQueue, ByLimiter, DenialSettings, RateLimitLayer, Reason};
use tokio::sync::Semaphore;
use tower_layer::{Layer, Stack};
use tower_service::Service;

use server::{Client, serve, until};

/// A service whose handler notes the name in the path, and ends when it may.
struct Served {
    address: SocketAddr,
    names: Arc<Mutex<Vec<String>>>,
    may_end: Arc<Semaphore>,
}

impl Served {
    async fn new<L>(layer: L) -> Self
    where
        L: Layer<Route> + Clone + Send + Sync + 'static,
        L::Service: Service<Request<axum::body::Body>> + Clone + Send + Sync + 'static,
        <L::Service as Service<Request<axum::body::Body>>>::Response: IntoResponse + 'static,
        <L::Service as Service<Request<axum::body::Body>>>::Error: Into<Infallible> + 'static,
        <L::Service as Service<Request<axum::body::Body>>>::Future: Send + 'static,
    {
        let names = Arc::new(Mutex::new(Vec::new()));
        let may_end = Arc::new(Semaphore::new(0));
        let handler = {
            let (names, may_end) = (Arc::clone(&names), Arc::clone(&may_end));
            async move |Path(name): Path<String>| {
                names.lock().unwrap().push(name.clone());
                may_end.acquire().await.unwrap().forget();
                name
            }
        };
        let router = Router::new().route("/{name}", get(handler)).layer(layer);
        Self {
            address: serve(router).await,
            names,
            may_end,
        }
    }

    async fn send(&self, name: &str, lines: &[&str]) -> Client {
        let mut client = Client::connect(self.address).await;
        client.send(&format!("GET /{name}"), lines).await;
        client
    }

    /// Sends a request, and waits until its handler runs.
    async fn starts(&self, name: &str, lines: &[&str]) -> Client {
        let client = self.send(name, lines).await;
        until(|| self.names.lock().unwrap().iter().any(|known| known == name)).await;
        client
    }

    /// Lets one handler end.
    async fn ends(&self, client: &mut Client, name: &str) {
        self.may_end.add_permits(1);
        let response = client.receive().await;
        assert_eq!((response.status, response.body.as_str()), (200, name));
    }
}

#[tokio::test]
async fn requests_wait_for_a_limiter_in_their_order() {
    let queue = Queue::new(Concurrency::new(1), TokioTimer::new(), 3).shared();
    let judge = ByLimiter::shared(Arc::clone(&queue)).named("handler");
    let denials = DenialSettings::new().responding(|denial, mut response| {
        assert!(matches!(
            denial.reason,
            Reason::Queue(Rejected::QueueFull { .. })
        ));
        *response.body_mut() = denial.limit().unwrap().to_owned().into();
        response
    });
    let layer = RateLimitLayer::builder(judge).denials(denials);
    let layer = layer.build_waiting();
    let served = Served::new(layer).await;
    let waits = async |name: &'static str, nth: u32| {
        let client = served.send(name, &[]).await;
        until(|| queue.counts().waiters == nth).await;
        client
    };
    let mut first = served.starts("first", &[]).await;
    let mut second = waits("second", 1).await;
    let leaves = waits("leaves", 2).await;
    let mut third = waits("third", 3).await;
    let denied = served.send("denied", &[]).await.receive().await;
    assert_eq!((denied.status, denied.header("retry-after")), (429, None));
    assert_eq!(denied.body, "handler");
    drop(leaves);
    until(|| queue.counts().waiters == 2).await;

    served.ends(&mut first, "first").await;
    served.ends(&mut second, "second").await;
    served.ends(&mut third, "third").await;
    assert_eq!(*served.names.lock().unwrap(), ["first", "second", "third"]);
    until(|| queue.available() == 1).await;
    let counts = queue.counts();
    assert_eq!((counts.waiters, counts.permits), (0, 0));
    assert_eq!((counts.granted, counts.full, counts.cancelled), (2, 1, 1));
}

#[tokio::test]
async fn each_key_has_a_queue() {
    let table = Keyed::for_keys(Concurrency::new(1), 100);
    let queue = KeyedQueue::new(table, TokioTimer::new(), 1).shared();
    let judge = ByKeyedQueue::new(Arc::clone(&queue), |head| {
        head.headers
            .get("x-user")
            .map(|user| user.as_bytes().to_owned())
    });
    let served = Served::new(RateLimitLayer::builder(judge).build_waiting()).await;
    let (ann, bob) = (["X-User: ann"], ["X-User: bob"]);
    let mut first = served.starts("first", &ann).await;
    let mut other = served.starts("other", &bob).await;
    let mut second = served.send("second", &ann).await;
    until(|| queue.counts().waiters == 1).await;
    assert_eq!(
        served.send("denied", &ann).await.receive().await.status,
        429
    );
    let mut waits = served.send("waits", &bob).await;
    until(|| queue.counts().waiters == 2).await;

    served.ends(&mut first, "first").await;
    served.ends(&mut other, "other").await;
    served.ends(&mut second, "second").await;
    served.ends(&mut waits, "waits").await;
    for user in ["ann", "bob"] {
        let key = Some(user.as_bytes().to_owned());
        until(|| queue.key(&key).available() == 1).await;
    }
}

#[tokio::test]
async fn a_request_that_waits_counts_once_in_each_limit() {
    // A permit returns after an hour, so each one that is taken is missing.
    let bucket = TokenBucket::new(Rate::per_hour(1), 5);
    let limits = AllOf::new((bucket, Concurrency::new(1)));
    let queue = Queue::new(limits, TokioTimer::new(), 9).shared();
    let layer = RateLimitLayer::builder(ByLimiter::shared(Arc::clone(&queue)))
        .waiting_at_most(Duration::from_mins(1))
        .build_waiting();
    let served = Served::new(layer).await;
    let mut clients = vec![served.starts("0", &[]).await];
    for n in 1..5 {
        clients.push(served.send(&n.to_string(), &[]).await);
        until(|| queue.counts().waiters == n).await;
    }
    for (n, client) in clients.iter_mut().enumerate() {
        served.ends(client, &n.to_string()).await;
    }
    // The sixth one would wait for an hour.
    let mut sixth = served.send("denied", &[]).await;
    let denied = tokio::time::timeout(Duration::from_secs(20), sixth.receive()).await;
    let denied = denied.expect("denied at once");
    assert_eq!(denied.status, 429);
    let seconds: u64 = denied.header("retry-after").unwrap().parse().unwrap();
    assert!((3_500..=3_600).contains(&seconds), "{seconds}");
    assert_eq!(served.names.lock().unwrap().len(), 5);
}

/// `PartitionedChainedLimiterTests.AcquireAsyncCanceledReleasesAcquiredResources` (dotnet 351). In
/// .NET a request that waits for one limit holds the permits of the others. Here it holds nothing.
#[tokio::test]
async fn a_request_that_waits_for_one_limit_holds_no_permits_of_the_others() {
    let bucket = Arc::new(TokenBucket::new(Rate::per_hour(1), 2));
    let limits = AllOf::new((Arc::clone(&bucket), Concurrency::new(1)));
    let queue = Queue::new(limits, TokioTimer::new(), 1).shared();
    let layer = RateLimitLayer::builder(ByLimiter::shared(Arc::clone(&queue))).build_waiting();
    let served = Served::new(layer).await;
    let left = || bucket.available_at(queue.clock().now());
    let mut first = served.starts("first", &[]).await;
    let leaves = served.send("leaves", &[]).await;
    until(|| queue.counts().waiters == 1).await;
    assert_eq!(left(), 1);
    drop(leaves);
    until(|| queue.counts().waiters == 0).await;
    served.ends(&mut first, "first").await;
    assert_eq!(left(), 1);
}

/// `PartitionedChainedLimiterTests` with requests that wait, in one layer around another:
/// `AcquireAsyncWorksWithMultipleLimiters` (dotnet 325),
/// `AcquireAsyncLeaseCorrectlyDisposesWithMultipleLimiters` (327),
/// `AcquireAsyncFailsAndReleasesAcquiredResources` (333),
/// `AcquireAsyncForwardsCorrectPermitCount` (347), and as in .NET
/// `AcquireAsyncCanceledReleasesAcquiredResources` (351). `DisposeMakesMethodsThrow` (315): closed
/// limiters deny.
#[tokio::test]
async fn a_request_waits_in_one_layer_after_another() {
    // Permits, and for how many of them requests may wait.
    let [first, next] = [(5, 3), (3, 1)].map(|(permits, waiting)| {
        Queue::new(Concurrency::new(permits), TokioTimer::new(), waiting).shared()
    });
    let available = || (first.available(), next.available());
    let layer = |queue| {
        // The cost is the last character of the path.
        RateLimitLayer::builder(ByLimiter::shared(Arc::clone(queue)).by_cost())
            .cost(|head| head.uri.path().split('-').nth(1).unwrap().parse().unwrap())
            .build_waiting()
    };
    let served = Served::new(Stack::new(layer(&next), layer(&first))).await;

    let mut begins = served.starts("begins-3", &[]).await;
    assert_eq!(available(), (2, 0));
    // It has the permits of the first layer while it waits in the next one.
    let leaves = served.send("leaves-1", &[]).await;
    until(|| next.counts().waiters == 1).await;
    assert_eq!(available(), (1, 0));
    // The queue of the next layer is full.
    let full = served.send("full-1", &[]).await.receive().await;
    assert_eq!((full.status, available()), (429, (1, 0)));
    drop(leaves);
    until(|| available() == (2, 0)).await;
    // It waits in the first layer, and the next one has not seen it.
    let mut waits = served.send("waits-3", &[]).await;
    until(|| first.counts().waiters == 1).await;
    assert_eq!(next.counts().waiters, 0);
    served.ends(&mut begins, "begins-3").await;
    until(|| served.names.lock().unwrap().len() == 2).await;
    assert_eq!(available(), (2, 0));

    // More than the next layer can ever grant.
    served.ends(&mut waits, "waits-3").await;
    until(|| available() == (5, 3)).await;
    let denied = served.send("denied-4", &[]).await.receive().await;
    assert_eq!((denied.status, denied.header("retry-after")), (429, None));
    assert_eq!(available(), (5, 3));
    next.close();
    let denied = served.send("closed-1", &[]).await.receive().await;
    assert_eq!((denied.status, denied.header("retry-after")), (429, None));
    assert_eq!(first.available(), 5);
}

/// `PartitionedChainedLimiterTests.AcquireAsyncForwardsCorrectResource` (dotnet 349): each link
/// finds its own key, and no other key is asked.
#[tokio::test]
async fn each_layer_waits_for_its_own_key() {
    let queues = ["x-user", "x-tenant"].map(|header| {
        let table = Keyed::for_keys(Concurrency::new(1), 100);
        (
            header,
            KeyedQueue::new(table, TokioTimer::new(), 1).shared(),
        )
    });
    let [users, tenants] = queues.clone().map(|(header, queue)| {
        let judge = ByKeyedQueue::new(queue, move |head| {
            Some(head.headers[header].as_bytes().to_owned())
        });
        RateLimitLayer::builder(judge).build_waiting()
    });
    let served = Served::new(Stack::new(tenants, users)).await;
    let available =
        |nth: usize, key: &str| queues[nth].1.key(&key.as_bytes().to_owned()).available();
    let mut first = served.starts("first", &["X-User: 1", "X-Tenant: 3"]).await;
    let all = || [(0, "1"), (0, "2"), (1, "3"), (1, "4")].map(|(nth, key)| available(nth, key));
    assert_eq!(all(), [0, 1, 0, 1]);
    let mut waits = served.send("waits", &["X-User: 2", "X-Tenant: 3"]).await;
    until(|| queues[1].1.counts().waiters == 1).await;
    assert_eq!(all(), [0, 0, 0, 1]);
    served.ends(&mut first, "first").await;
    served.ends(&mut waits, "waits").await;
    until(|| all() == [1; 4]).await;
}

#[tokio::test]
async fn what_can_never_be_granted_is_denied_without_waiting() {
    let queue = Queue::new(Concurrency::new(2), TokioTimer::new(), 9).shared();
    let judge = ByLimiter::shared(Arc::clone(&queue)).by_cost();
    let layer = RateLimitLayer::builder(judge)
        .cost(|head| head.uri.path()[1..].parse().unwrap_or(1))
        .build_waiting();
    let served = Served::new(layer).await;
    for close in [false, true] {
        if close {
            queue.close();
        }
        let cost = if close { "1" } else { "3" };
        let denied = served.send(cost, &[]).await.receive().await;
        assert_eq!((denied.status, denied.header("retry-after")), (429, None));
    }
    assert_eq!(queue.available(), 2);
}
