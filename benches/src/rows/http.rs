//! Requests to an axum router with one route, in process: the time that a layer adds.
//!
//! `http.bare` is the router alone. The other rows are the time beyond it.
//!
//! - The layers of most rows are added by `Router::layer`, as the documentation of axum and of the
//!   peers shows. axum then clones the service of the layer for each request, and allocates its
//!   future. `no-layer-work` is a layer that only calls the inner service.
//! - The layers of `http.around` are around the whole router. A denied request never reaches it.
//! - `http.deny_request` and `http.deny_request_inside` are whole requests, with all that the
//!   router does: the time beyond that of a request which is only made and dropped.
//! - The buckets of `http.allow_idle` are full when a request arrives. In all other rows of allowed
//!   requests, the clients are amid a burst.

use core::convert::Infallible;
use core::hint::black_box;
use core::net::{Ipv4Addr, SocketAddr};
use core::pin::pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{Request, Response};
use axum::response::IntoResponse;
use axum::routing::{Route, get};
use governor::middleware::NoOpMiddleware;
use portcullis_core::{MonotonicClock, Rate, TokenBucket};
use portcullis_policy::{Key, Limit, Policy, Rule};
use portcullis_tower::{AxumBody, ByKey, ByPolicy, Decide, RateLimitLayer};
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;
use tower_governor::key_extractor::PeerIpKeyExtractor;
use tower_layer::Layer;
use tower_service::Service;

use crate::measure::{Contest, Contestant, Expected, Ready};

pub(crate) fn rows() -> Vec<Contest> {
    let allowed = |granted| granted;
    // Its requests are granted. It reports none, because the row is one of denials.
    let none = |_| 0;
    let contest = |row, expected, ours, peers| Contest {
        row,
        threads: 1,
        expected,
        ours,
        peers,
    };
    vec![
        contest("http.bare", Expected::Granted, bare(), vec![]),
        contest(
            "http.allow",
            Expected::Granted,
            inside("portcullis", || by_key(BURST), allowed),
            vec![
                inside("tower-governor", || governor(BURST_OF_GOVERNOR), allowed),
                inside("tower-concurrency-limit", concurrency_limit, allowed),
                inside("tower-acc", adaptive, allowed),
                inside("no-layer-work", || Passing(()), allowed),
            ],
        ),
        contest(
            "http.allow_idle",
            Expected::Granted,
            inside("portcullis", || by_key(IDLE), allowed),
            vec![inside(
                "tower-governor",
                || governor(IDLE_OF_GOVERNOR),
                allowed,
            )],
        ),
        contest(
            "http.allow_policy",
            Expected::Granted,
            inside("portcullis", || by_policy(BURST), allowed),
            vec![inside(
                "tower-governor",
                || governor(BURST_OF_GOVERNOR),
                allowed,
            )],
        ),
        contest(
            "http.deny",
            Expected::Denied,
            inside("portcullis", || by_key(ONE), allowed),
            vec![
                inside("http.allow", || by_key(BURST), none),
                inside("tower-governor", || governor(ONE), allowed),
            ],
        ),
        contest(
            "http.deny_policy",
            Expected::Denied,
            inside("portcullis", || by_policy(ONE), allowed),
            vec![],
        ),
        contest(
            "http.around",
            Expected::Granted,
            around("portcullis", || by_key(BURST), allowed).beyond(bare()),
            vec![around("tower-governor", || governor(BURST_OF_GOVERNOR), allowed).beyond(bare())],
        ),
        contest(
            "http.deny_request",
            Expected::Denied,
            around("portcullis", || by_key(ONE), allowed).beyond(request_alone()),
            vec![
                around("allowed", || by_key(BURST), none).beyond(request_alone()),
                around("tower-governor", || governor(ONE), allowed).beyond(request_alone()),
            ],
        ),
        contest(
            "http.deny_request_inside",
            Expected::Denied,
            routed("portcullis", || by_key(ONE), allowed).beyond(request_alone()),
            vec![
                routed("allowed", || by_key(BURST), none).beyond(request_alone()),
                routed("tower-governor", || governor(ONE), allowed).beyond(request_alone()),
            ],
        ),
    ]
}

/// The limit of each address: so many per period.
type Count = (u32, Duration);

/// A burst that lasts: each address sends more than what is refilled, and all is granted.
const BURST: Count = (1_000_000_000, Duration::from_secs(10_000_000));

/// As `BURST`: the period is that of one permit.
const BURST_OF_GOVERNOR: Count = (u32::MAX, Duration::from_millis(10));

/// Each bucket is full again at the next request of its address.
const IDLE: Count = (1_000_000_000, Duration::from_secs(1));

/// As `IDLE`: the period is that of one permit.
const IDLE_OF_GOVERNOR: Count = (u32::MAX, Duration::from_nanos(1));

/// One request is granted, and no other one while the row is measured.
const ONE: Count = (1, Duration::from_mins(150));

/// As `axum::serve` uses it: all of the router that does not depend on a request is done.
fn served(router: Router) -> Router {
    router.with_state(())
}

fn router() -> Router {
    Router::new().route("/items", get(|| async { "served" }))
}

fn bare() -> Contestant {
    Contestant::prepared("bare", || through(served(router())))
}

/// A request that is made and dropped.
fn request_alone() -> Contestant {
    let ask = |_, operations: u64| {
        for client in 0..operations {
            black_box(request((client % 1_000) as u32));
        }
        operations
    };
    Contestant::new("request", ask)
}

/// What a layer on the routes of the router adds. Reports this number of grants.
fn inside<L, S>(
    name: &'static str,
    layer: impl FnOnce() -> L + 'static,
    counted: fn(u64) -> u64,
) -> Contestant
where
    L: Layer<Route, Service = S> + Clone + Send + Sync + 'static,
    S: Service<Request<Body>, Response: IntoResponse, Error: Into<Infallible>, Future: Send>
        + Clone
        + Send
        + Sync
        + 'static,
{
    routed(name, layer, counted).beyond(bare())
}

/// A layer on the routes of the router.
fn routed<L, S>(
    name: &'static str,
    layer: impl FnOnce() -> L + 'static,
    counted: fn(u64) -> u64,
) -> Contestant
where
    L: Layer<Route, Service = S> + Clone + Send + Sync + 'static,
    S: Service<Request<Body>, Response: IntoResponse, Error: Into<Infallible>, Future: Send>
        + Clone
        + Send
        + Sync
        + 'static,
{
    let ready = move || through(served(router().layer(layer()))).counting(counted);
    Contestant::prepared(name, ready)
}

/// A layer around the router.
fn around<L, S>(
    name: &'static str,
    layer: impl FnOnce() -> L + 'static,
    counted: fn(u64) -> u64,
) -> Contestant
where
    L: Layer<Router, Service = S>,
    S: Service<Request<Body>, Response = Response<Body>> + Send + 'static,
{
    let ready = move || through(layer().layer(served(router()))).counting(counted);
    Contestant::prepared(name, ready)
}

/// A token bucket for each address.
fn by_key((count, period): Count) -> RateLimitLayer<impl Decide, MonotonicClock, AxumBody> {
    let bucket = TokenBucket::new(Rate::new(count, period), count.into());
    let judge = ByKey::address(bucket, 1_000);
    RateLimitLayer::builder(judge).for_axum().build()
}

/// A policy with one rule, which has the same limit.
fn by_policy((count, period): Count) -> RateLimitLayer<ByPolicy, MonotonicClock, AxumBody> {
    let limit = Limit::per(count.into(), period);
    let rule = Rule::new("clients").key(Key::address()).limit(limit);
    let policy = Policy::new([rule]).expect("a valid rule");
    RateLimitLayer::builder(ByPolicy::new(policy))
        .for_axum()
        .build()
}

/// As `by_key`.
fn governor((burst, period): Count) -> Governor {
    let config = GovernorConfigBuilder::default()
        .period(period)
        .burst_size(burst)
        .finish()
        .expect("valid settings");
    GovernorLayer::new(config)
}

type Governor = GovernorLayer<PeerIpKeyExtractor, NoOpMiddleware, Body>;

fn concurrency_limit() -> tower::limit::GlobalConcurrencyLimitLayer {
    tower::limit::GlobalConcurrencyLimitLayer::new(1_000)
}

fn adaptive() -> tower_acc::ConcurrencyLimitLayer<tower_acc::Vegas> {
    tower_acc::ConcurrencyLimitLayer::new(tower_acc::Vegas::default())
}

/// A layer, and a service, that only call the inner service.
#[derive(Clone)]
struct Passing<S = ()>(S);

impl<S> Layer<S> for Passing {
    type Service = Passing<S>;

    fn layer(&self, inner: S) -> Passing<S> {
        Passing(inner)
    }
}

impl<A, S: Service<A>> Service<A> for Passing<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: A) -> S::Future {
        self.0.call(request)
    }
}

/// Calls a service with requests of 1,000 addresses in turn, after one request of each: it takes
/// what a limit of 1 allows.
fn through<S, E>(service: S) -> Ready
where
    S: Service<Request<Body>, Response = Response<Body>, Error = E> + Send + 'static,
{
    let service = Arc::new(Mutex::new(service));
    let ask = move |operations: u64| {
        let mut service = service.lock().expect("one thread");
        let mut context = Context::from_waker(Waker::noop());
        let mut granted = 0;
        for client in 0..operations {
            let request = request((client % 1_000) as u32);
            assert!(service.poll_ready(&mut context).is_ready());
            let Poll::Ready(Ok(response)) = pin!(service.call(request)).poll(&mut context) else {
                panic!("a response without waiting");
            };
            granted += u64::from(response.status().is_success());
        }
        granted
    };
    assert_eq!(ask(1_000), 1_000);
    Ready::new(move |_, operations| ask(operations))
}

fn request(client: u32) -> Request<Body> {
    let mut request = Request::get("/items")
        .header("host", "api.example.com")
        .header("user-agent", "versus")
        .body(Body::empty())
        .expect("a valid request");
    let address = Ipv4Addr::from_bits(0x0a00_0000 + client);
    let info: ConnectInfo<SocketAddr> = ConnectInfo((address, 50_000).into());
    request.extensions_mut().insert(info);
    request
}
