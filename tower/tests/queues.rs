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
use portcullis_async::{KeyedQueue, Queue, TokioTimer};
use portcullis_core::{AllOf, Clock, Concurrency, Keyed, Limiter, Rate, TokenBucket};
use portcullis_tower::{ByKeyedQueue, ByLimiter, RateLimitLayer};
use tokio::sync::Semaphore;
use tower_layer::Layer;
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
    let layer = RateLimitLayer::builder(ByLimiter::shared(Arc::clone(&queue))).build_waiting();
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
    let denied = served.send("denied", &[]).await.receive().await;
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
