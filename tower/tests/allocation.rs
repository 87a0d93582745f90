//! The layer allocates nothing: neither for a request that is allowed, nor for one that is denied.

#[path = "../../core/tests/support/allocations.rs"]
mod allocations;

use core::convert::Infallible;
use core::future::{Ready, ready};
use core::hint::black_box;
use core::net::SocketAddr;
use core::pin::pin;
use core::task::{Context, Poll, Waker};

use allocations::allocations;
use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::routing::get;
use http::{Request, Response};
use portcullis_core::{Concurrency, Rate, TokenBucket};
use portcullis_policy::{Conditions, Key, Limit, Policy, Rule};
use portcullis_tower::{ByKey, ByLimiter, ByPolicy, Decide, RateLimitLayer};
use tower_layer::Layer;
use tower_service::Service;

#[derive(Clone, Debug)]
struct Answers;

impl Service<Request<Body>> for Answers {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        ready(Ok(Response::new(Body::empty())))
    }
}

fn request() -> Request<Body> {
    let mut request = Request::get("/items?page=2")
        .header("Host", "api.example.com")
        .header("User-Agent", "test")
        .header("X-Api-Key", "k1")
        .body(Body::empty())
        .unwrap();
    let address: SocketAddr = "192.0.2.7:50000".parse().unwrap();
    request.extensions_mut().insert(ConnectInfo(address));
    request
}

/// Allocations of a call of a service, and the status of its response. The request exists before.
fn calls<S, B>(service: &mut S) -> (u64, u16)
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible>,
{
    let request = request();
    let mut status = 0;
    let count = allocations(|| {
        let mut context = Context::from_waker(Waker::noop());
        assert!(service.poll_ready(&mut context).is_ready());
        let future = pin!(service.call(request));
        let Poll::Ready(Ok(response)) = future.poll(&mut context) else {
            panic!("a response");
        };
        status = response.status().as_u16();
        drop(black_box(response));
    });
    (count, status)
}

fn policy(limit: &str) -> Policy {
    let items = Conditions::new().methods(["GET"]).paths(["/items"]);
    let rule = Rule::new("clients")
        .when(items)
        .key(Key::address().and(Key::header("X-Api-Key")))
        .limit(limit.parse().unwrap())
        .limit(Limit::at_once(10));
    Policy::new([rule]).unwrap()
}

#[test]
fn a_policy_allocates_nothing() {
    let layer = RateLimitLayer::new(ByPolicy::new(policy("2/h")));
    let mut service = layer.layer(Answers);
    assert_eq!(calls(&mut service), (0, 200));
    assert_eq!(calls(&mut service), (0, 200));
    assert_eq!(calls(&mut service), (0, 429));
}

/// The policy has a rule with a store, for other requests.
#[cfg(feature = "queue")]
#[test]
fn a_request_that_asks_no_store_and_does_not_wait_allocates_nothing() {
    let limit = || "2/h".parse::<Limit>().unwrap();
    let other = Conditions::new().paths(["/other"]);
    let rules = [
        Rule::new("other").when(other).limit(limit()).stored_in("a"),
        Rule::new("all").limit(limit()),
    ];
    let layer = RateLimitLayer::builder(ByPolicy::new(Policy::new(rules).unwrap()));
    let mut service = layer.build_waiting().layer(Answers);
    assert_eq!(calls(&mut service), (0, 200));
    assert_eq!(calls(&mut service), (0, 200));
    assert_eq!(calls(&mut service), (0, 429));
}

#[test]
fn a_limiter_for_each_key_allocates_nothing() {
    let bucket = TokenBucket::new(Rate::per_second(1), 2);
    let layer = RateLimitLayer::new(ByKey::address(bucket, 1_000));
    let mut service = layer.layer(Answers);
    assert_eq!(calls(&mut service), (0, 200));
    assert_eq!(calls(&mut service), (0, 200));
    assert_eq!(calls(&mut service), (0, 429));
}

#[test]
fn several_limits_as_one_decision_allocate_nothing() {
    let judges = ByLimiter::new(TokenBucket::new(Rate::per_second(1), 1_000))
        .and(ByPolicy::new(policy("2/h")))
        .and(ByLimiter::new(Concurrency::new(10)));
    let layer = RateLimitLayer::new(judges);
    let mut service = layer.layer(Answers);
    assert_eq!(calls(&mut service), (0, 200));
    assert_eq!(calls(&mut service), (0, 200));
    assert_eq!(calls(&mut service), (0, 429));
}

/// A router of axum allocates for each request. With the body of axum, a layer around it adds
/// nothing to that.
#[test]
fn an_allowed_request_allocates_no_more_than_without_the_layer() {
    let router = || Router::new().route("/items", get(|| async { "served" }));
    let rule = Rule::new("clients")
        .key(Key::address())
        .limit("100/s".parse().unwrap());
    let layer = RateLimitLayer::builder(ByPolicy::new(Policy::new([rule]).unwrap()))
        .for_axum()
        .build();
    let bare = calls(&mut router());
    assert_eq!(bare.1, 200);
    assert_eq!(calls(&mut layer.layer(router())), bare);
}

#[cfg(feature = "queue")]
#[test]
fn a_request_that_does_not_wait_allocates_nothing_where_others_can() {
    let rule = Rule::new("all").limit("1/h".parse::<Limit>().unwrap().queue(1));
    let held = Rule::new("held").limit(Limit::at_once(1).queue(1));
    for rule in [rule, held] {
        let policy = Policy::new([rule]).unwrap();
        let layer = RateLimitLayer::builder(ByPolicy::new(policy)).build_waiting();
        let mut service = layer.layer(Answers);
        assert_eq!(calls(&mut service), (0, 200));
    }
}
