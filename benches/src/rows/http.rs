//! Requests to an axum router with one route, in process: the time that a layer adds.
//!
//! `http.bare` is the router alone. The other rows are the time beyond it.
//!
//! - The layers of most rows are added by `Router::layer`, as the documentation of axum and of the
//!   peers shows. axum then clones the service of the layer for each request, and allocates its
//!   future. `no-layer-work` is a layer that only calls the inner service.
//! - The layers of `http.around` are around the whole router. A denied request never reaches it.

use core::convert::Infallible;
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
    vec![
        Contest {
            row: "http.bare",
            threads: 1,
            expected: Expected::Granted,
            ours: bare(),
            peers: vec![],
        },
        Contest {
            row: "http.allow",
            threads: 1,
            expected: Expected::Granted,
            ours: inside("portcullis", PLENTY, || by_key(PLENTY), |granted| granted),
            peers: vec![
                inside(
                    "tower-governor",
                    PLENTY,
                    || governor(PLENTY_FOR_GOVERNOR),
                    |granted| granted,
                ),
                inside(
                    "tower-concurrency-limit",
                    PLENTY,
                    concurrency_limit,
                    |granted| granted,
                ),
                inside("tower-acc", PLENTY, adaptive, |granted| granted),
                inside("no-layer-work", PLENTY, || Passing(()), |granted| granted),
            ],
        },
        Contest {
            row: "http.allow_policy",
            threads: 1,
            expected: Expected::Granted,
            ours: inside(
                "portcullis",
                PLENTY,
                || by_policy(PLENTY),
                |granted| granted,
            ),
            peers: vec![inside(
                "tower-governor",
                PLENTY,
                || governor(PLENTY_FOR_GOVERNOR),
                |granted| granted,
            )],
        },
        Contest {
            row: "http.deny",
            threads: 1,
            expected: Expected::Denied,
            ours: inside("portcullis", ONE, || by_key(ONE), |granted| granted),
            peers: vec![
                // Its requests are granted. It reports none, because the row is one of denials.
                inside("portcullis-allow", PLENTY, || by_key(PLENTY), |_| 0),
                inside("tower-governor", ONE, || governor(ONE), |granted| granted),
            ],
        },
        Contest {
            row: "http.deny_policy",
            threads: 1,
            expected: Expected::Denied,
            ours: inside("portcullis", ONE, || by_policy(ONE), |granted| granted),
            peers: vec![],
        },
        Contest {
            row: "http.around",
            threads: 1,
            expected: Expected::Granted,
            ours: around("portcullis", || by_key(PLENTY)),
            peers: vec![around("tower-governor", || governor(PLENTY_FOR_GOVERNOR))],
        },
    ]
}

/// The limit of each address: so many per period.
type Count = (u32, Duration);

/// All requests are granted.
const PLENTY: Count = (1_000_000_000, Duration::from_secs(1));

/// All requests are granted: the period is that of one permit.
const PLENTY_FOR_GOVERNOR: Count = (u32::MAX, Duration::from_nanos(1));

/// One request is granted.
const ONE: Count = (1, Duration::from_hours(100));

/// As `axum::serve` uses it: all of the router that does not depend on a request is done.
fn served(router: Router) -> Router {
    router.with_state(())
}

fn router() -> Router {
    Router::new().route("/items", get(|| async { "served" }))
}

fn bare() -> Contestant {
    Contestant::prepared("bare", || through(served(router()), true))
}

/// A layer on the routes of the router. Reports this number of grants.
fn inside<L, S>(
    name: &'static str,
    (count, _): Count,
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
    let ready = move || through(served(router().layer(layer())), count > 1).counting(counted);
    Contestant::prepared(name, ready).beyond(bare())
}

/// A layer around the router, to which all requests are granted.
fn around<L, S>(name: &'static str, layer: impl FnOnce() -> L + 'static) -> Contestant
where
    L: Layer<Router, Service = S>,
    S: Service<Request<Body>, Response = Response<Body>> + Send + 'static,
{
    let ready = move || through(layer().layer(served(router())), true);
    Contestant::prepared(name, ready).beyond(bare())
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

/// Calls a service with requests of 1,000 addresses in turn. If it is not expected to grant, each
/// of them first takes what a limit of 1 allows.
fn through<S, E>(service: S, grants: bool) -> Ready
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
    if !grants {
        assert_eq!(ask(1_000), 1_000);
    }
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
