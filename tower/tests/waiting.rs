//! Requests that wait for permits: their order, and that nothing stays taken or waits for ever.

#[path = "support/server.rs"]
mod server;

use core::convert::Infallible;
use core::future::{Ready, ready};
use core::net::SocketAddr;
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::Path;
use axum::routing::get;
use http::{Request, Response, StatusCode};
use portcullis_async::{QueueCounts, TokioTimer};
use portcullis_policy::{Limit, LivePolicy, Policy, Rule};
use portcullis_tower::{
    AxumBody, ByLivePolicy, ByPolicy, DecideOrWait, RateLimitLayer, RateLimitLayerBuilder,
};
use tokio::sync::Semaphore;
use tokio::time::{Instant, advance};
use tower::ServiceExt;
use tower_layer::Layer;
use tower_service::Service;

use server::{Client, serve, until};

fn policy(limit: Limit) -> Policy {
    let rule = Rule::new("all").limit(limit);
    Policy::new([rule]).unwrap().with_timer(TokioTimer::new)
}

fn rate(text: &str, queue: u64) -> Limit {
    text.parse::<Limit>().unwrap().queue(queue)
}

/// A router with one route, whose handler notes the name in the path, and ends when it may.
struct Served {
    address: SocketAddr,
    policy: Arc<Policy>,
    names: Arc<Mutex<Vec<String>>>,
    may_end: Arc<Semaphore>,
}

async fn served(limit: Limit) -> Served {
    let policy = Arc::new(policy(limit));
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
    let layer = RateLimitLayer::builder(ByPolicy::new(Arc::clone(&policy))).build_waiting();
    let router = Router::new().route("/{name}", get(handler)).layer(layer);
    Served {
        address: serve(router).await,
        policy,
        names,
        may_end,
    }
}

impl Served {
    fn counts(&self) -> QueueCounts {
        self.policy.queue_counts("all").unwrap()
    }

    /// Sends a request, and waits until its handler runs.
    async fn starts(&self, name: &str) -> Client {
        let client = self.send(name).await;
        until(|| self.names.lock().unwrap().iter().any(|known| known == name)).await;
        client
    }

    /// Sends a request, and waits until it waits as the nth.
    async fn waits(&self, name: &str, nth: u32) -> Client {
        let client = self.send(name).await;
        until(|| self.counts().waiters == nth).await;
        client
    }

    async fn send(&self, name: &str) -> Client {
        let mut client = Client::connect(self.address).await;
        client.send(&format!("GET /{name}"), &[]).await;
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
async fn those_who_wait_are_served_in_their_order_and_others_get_429() {
    let served = served(Limit::at_once(1).queue(2)).await;
    let mut first = served.starts("first").await;
    let mut second = served.waits("second", 1).await;
    let mut third = served.waits("third", 2).await;
    let denied = served.send("denied").await.receive().await;
    assert_eq!((denied.status, denied.header("retry-after")), (429, None));

    served.ends(&mut first, "first").await;
    served.ends(&mut second, "second").await;
    served.ends(&mut third, "third").await;
    assert_eq!(*served.names.lock().unwrap(), ["first", "second", "third"]);
    let counts = served.counts();
    assert_eq!((counts.waiters, counts.permits), (0, 0));
    assert_eq!((counts.granted, counts.full, counts.cancelled), (2, 1, 0));
}

#[tokio::test]
async fn a_client_that_leaves_while_it_waits_leaves_nothing_behind() {
    let served = served(Limit::at_once(1).queue(5)).await;
    let mut first = served.starts("first").await;
    let leaves = served.waits("leaves", 1).await;
    let mut next = served.waits("next", 2).await;
    drop(leaves);
    until(|| served.counts().waiters == 1).await;

    served.ends(&mut first, "first").await;
    served.ends(&mut next, "next").await;
    let counts = served.counts();
    assert_eq!(
        (counts.waiters, counts.granted, counts.cancelled),
        (0, 1, 1)
    );
    let mut last = served.starts("last").await;
    served.ends(&mut last, "last").await;
    assert_eq!(*served.names.lock().unwrap(), ["first", "next", "last"]);
}

/// A service whose clones are not ready, and which must be ready to be called.
#[derive(Debug, Default)]
struct MustBeReady(bool);

impl Clone for MustBeReady {
    fn clone(&self) -> Self {
        Self(false)
    }
}

impl Service<Request<Body>> for MustBeReady {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0 = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        assert!(
            core::mem::take(&mut self.0),
            "it is called when it is ready"
        );
        ready(Ok(Response::new(Body::empty())))
    }
}

type Called = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>>>>;
type Builder<D> = RateLimitLayerBuilder<D, portcullis_core::MonotonicClock, AxumBody>;

/// Calls a service by a function.
fn calls<D: DecideOrWait>(builder: Builder<D>) -> impl Fn() -> Called {
    let service = builder.build_waiting().layer(MustBeReady::default());
    move || Box::pin(service.clone().oneshot(Request::new(Body::empty())))
}

fn by(limit: Limit) -> Builder<ByPolicy> {
    RateLimitLayer::builder(ByPolicy::new(policy(limit))).for_axum()
}

/// Polls a call that has to wait.
async fn starts_to_wait(call: &mut Called) {
    assert!(polled(call).await.is_none(), "it waits");
}

/// Polls a call once.
async fn polled(call: &mut Called) -> Option<Response<Body>> {
    core::future::poll_fn(|context| {
        Poll::Ready(match call.as_mut().poll(context) {
            Poll::Ready(Ok(response)) => Some(response),
            Poll::Pending => None,
        })
    })
    .await
}

fn retry_after(response: &Response<Body>) -> (u16, Option<&str>) {
    let header = response.headers().get("retry-after");
    (
        response.status().as_u16(),
        header.map(|value| value.to_str().unwrap()),
    )
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_denies_and_says_when_it_would_grant() {
    let call = calls(by(rate("1/m", 1)));
    let start = Instant::now();
    assert_eq!(call().await.unwrap().status(), 200);
    let mut waits = call();
    starts_to_wait(&mut waits).await;
    let denied = call().await.unwrap();
    // After the one that waits.
    assert_eq!(retry_after(&denied), (429, Some("120")));
    assert_eq!(waits.await.unwrap().status(), 200);
    assert_eq!(start.elapsed().as_secs(), 60);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waited_counts_once() {
    let call = calls(by(rate("1/m", 10)));
    let start = Instant::now();
    for _ in 0..4 {
        assert_eq!(call().await.unwrap().status(), 200);
    }
    assert_eq!(start.elapsed().as_secs(), 180);
    advance(Duration::from_secs(61)).await;
    assert!(polled(&mut call()).await.is_some(), "there is a permit");
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_at_most_until_its_deadline() {
    let at_most = |limit| calls(by(limit).waiting_at_most(Duration::from_secs(5)));
    let by_time = at_most(rate("1/m", 10));
    assert_eq!(by_time().await.unwrap().status(), 200);
    let start = Instant::now();
    let denied = by_time().await.unwrap();
    assert_eq!(retry_after(&denied), (429, Some("60")));
    assert!(start.elapsed().is_zero(), "its turn would come too late");

    // The third one would have its turn in 120 s, after the one that waits.
    let by_time = calls(by(rate("1/m", 10)).waiting_at_most(Duration::from_secs(90)));
    assert_eq!(by_time().await.unwrap().status(), 200);
    let (second, third) = tokio::join!(by_time(), by_time());
    assert_eq!(second.unwrap().status(), 200);
    let third = third.unwrap();
    assert_eq!(
        (third.status(), third.headers().contains_key("retry-after")),
        (StatusCode::TOO_MANY_REQUESTS, true)
    );

    let start = Instant::now();
    let policy = Arc::new(policy(Limit::at_once(1).queue(10)));
    let builder = RateLimitLayer::builder(ByPolicy::new(Arc::clone(&policy))).for_axum();
    let at_once = calls(builder.waiting_at_most(Duration::from_secs(5)));
    let request = portcullis_policy::Request::new("GET", "/");
    let held = policy.acquire(&request).await;
    assert_eq!(retry_after(&at_once().await.unwrap()), (429, None));
    assert_eq!(start.elapsed().as_secs(), 5);
    let counts = policy.queue_counts("all").unwrap();
    assert_eq!((counts.waiters, counts.late), (0, 1));
    drop(held);
    assert_eq!(at_once().await.unwrap().status(), 200);
}

#[tokio::test(start_paused = true)]
async fn a_change_of_the_policy_grants_or_denies_those_who_wait() {
    let live = LivePolicy::new(policy(rate("1/h", 10)));
    let builder = RateLimitLayer::builder(ByLivePolicy::new(live.clone())).for_axum();
    let call = calls(builder);
    assert_eq!(call().await.unwrap().status(), 200);
    let (mut second, mut third) = (call(), call());
    starts_to_wait(&mut second).await;
    starts_to_wait(&mut third).await;
    // The second one is granted by the new rate.
    live.replace_at(live.load().now(), policy(rate("1/m", 10)));
    let start = Instant::now();
    assert_eq!(second.await.unwrap().status(), 200);
    assert!(start.elapsed().as_secs() <= 60);
    starts_to_wait(&mut third).await;
    // Without a queue, the third one is denied at once.
    live.replace_at(live.load().now(), policy("1/m".parse().unwrap()));
    let denied = third.await.unwrap();
    assert_eq!(retry_after(&denied), (429, Some("60")));
    assert_eq!(call().await.unwrap().status(), 429);
}
