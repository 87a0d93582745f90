//! Instruction counts of decisions: by a policy, and by the layer of tower around one. They are in
//! a separate program, so that they and the limiters do not affect each other's code generation.

use core::convert::Infallible;
use core::future::{Ready, ready};
use core::hint::black_box;
use core::pin::{Pin, pin};
use core::task::{Context, Poll, Waker};
use core::time::Duration;

use gungraun::{library_benchmark, library_benchmark_group, main};
use http::{Request as HttpRequest, Response};
use portcullis_async::{ReentrantTimer, Timer};
use portcullis_core::{Clock, Timestamp};
use portcullis_policy::{Algorithm, Conditions, Key, Limit, Policy, Request, Rule};
use portcullis_tower::{AnyBody, ByPolicy, RateLimit, RateLimitLayer};
use tower_layer::Layer;
use tower_service::Service;

/// Operations per bench.
const OPERATIONS: u64 = 1_000;
const START: Timestamp = Timestamp::from_secs(3_600);

fn all_granted(granted: u64) {
    assert_eq!(granted, OPERATIONS);
}

#[inline(always)]
fn count(operation: impl FnMut(u64) -> bool) -> u64 {
    (0..OPERATIONS).map(operation).map(u64::from).sum()
}

/// A clock that stands, with a timer for which there is nothing to wait.
#[derive(Debug)]
struct Standing;

impl Clock for Standing {
    fn now(&self) -> Timestamp {
        START
    }
}

impl Timer for Standing {
    fn wake_at(&self, _: Timestamp, _: &Waker) -> Poll<()> {
        Poll::Pending
    }
}

impl ReentrantTimer for Standing {}

/// One limit of each kind: two of them share a table.
fn mixed() -> [Limit; 4] {
    let rate = |count| Limit::per(count, Duration::from_secs(60));
    let sliding = Algorithm::SlidingWindow { segments: 10 };
    [
        rate(1_000_000_000),
        rate(1_000_000),
        Limit::at_once(5),
        rate(1_000_000).algorithm_of(sliding),
    ]
}

fn bucket() -> [Limit; 1] {
    [Limit::per(1_000_000_000, Duration::from_secs(1))]
}

/// A bucket in whose queue no request waits.
fn queued() -> [Limit; 1] {
    bucket().map(|limit| limit.queue(10))
}

/// A bucket whose only permit is taken.
fn spent() -> &'static Policy {
    let policy = policy([Limit::per(1, Duration::from_secs(60))]);
    assert!(policy.decide_at(START, &request()).is_allowed());
    policy
}

fn request() -> Request<'static> {
    Request::new("GET", "/items/7").address([192, 0, 2, 7].into())
}

fn rules<const N: usize>(limits: [Limit; N]) -> Policy {
    let items = Conditions::new().paths(["/items/**"]);
    let rule = Rule::new("items").when(items).key(Key::address());
    let rule = rule.hold(Duration::from_secs(60));
    let other = Rule::new("login").when(Conditions::new().paths(["/login"]));
    let policy = Policy::new([limits.into_iter().fold(rule, Rule::limit), other]);
    policy.expect("valid").with_timer(|| Standing)
}

fn policy<const N: usize>(limits: [Limit; N]) -> &'static Policy {
    Box::leak(Box::new(rules(limits)))
}

#[library_benchmark(teardown = all_granted)]
#[bench::policy(policy(bucket()))]
#[bench::policy_mixed(policy(mixed()))]
fn allow(policy: &'static Policy) -> u64 {
    let request = request();
    count(|_| {
        black_box(policy)
            .decide_at(black_box(START), black_box(&request))
            .is_allowed()
    })
}

#[library_benchmark(teardown = all_granted)]
#[bench::policy(spent())]
fn deny(policy: &'static Policy) -> u64 {
    let request = request();
    count(|_| {
        let decision = black_box(policy).decide_at(black_box(START), black_box(&request));
        !decision.is_allowed()
    })
}

#[library_benchmark(teardown = all_granted)]
#[bench::policy(policy(bucket()))]
#[bench::policy_mixed(policy(mixed()))]
fn hold(policy: &'static Policy) -> u64 {
    let request = request();
    count(|_| {
        let hold = black_box(policy).hold_at(black_box(START), black_box(&request));
        black_box(&hold).is_allowed()
    })
}

#[library_benchmark(teardown = all_granted)]
#[bench::policy_mixed(policy(mixed()))]
fn explain(policy: &'static Policy) -> u64 {
    let request = request();
    count(|_| {
        let decision = black_box(policy).decide_explained_at(black_box(START), black_box(&request));
        black_box(&decision).is_allowed()
    })
}

// No waiters.
#[library_benchmark(teardown = all_granted)]
#[bench::policy(policy(queued()))]
fn acquire(policy: &'static Policy) -> u64 {
    let request = request();
    let mut context = Context::from_waker(Waker::noop());
    count(
        |_| match pin!(black_box(policy).acquire(black_box(&request))).poll(&mut context) {
            Poll::Ready(decision) => black_box(&decision).is_allowed(),
            Poll::Pending => false,
        },
    )
}

/// A service that answers at once.
#[derive(Debug)]
struct Answers;

impl Service<HttpRequest<()>> for Answers {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Ready<Result<Response<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: HttpRequest<()>) -> Self::Future {
        ready(Ok(Response::new(String::new())))
    }
}

type Limited = RateLimit<Answers, ByPolicy, &'static Standing, AnyBody>;

/// Requests to all of which one bucket applies.
fn by_policy() -> ByPolicy {
    let rule = bucket().into_iter().fold(Rule::new("all"), Rule::limit);
    ByPolicy::new(Policy::new([rule.hold(Duration::from_secs(60))]).expect("valid"))
}

fn plain() -> Limited {
    let layer = RateLimitLayer::builder(by_policy()).clock(&Standing);
    layer.build().layer(Answers)
}

fn settling() -> Limited {
    let layer = RateLimitLayer::builder(by_policy()).clock(&Standing);
    let layer = layer.cost(|_| 10).settling(|_, _| 5);
    layer.build().layer(Answers)
}

// The request and the response are created, too.
#[library_benchmark(teardown = all_granted)]
#[bench::tower(plain())]
#[bench::tower_settling(settling())]
fn call(mut service: Limited) -> u64 {
    let mut context = Context::from_waker(Waker::noop());
    count(|_| {
        let mut response = pin!(service.call(black_box(HttpRequest::new(()))));
        match Pin::as_mut(&mut response).poll(&mut context) {
            Poll::Ready(Ok(response)) => black_box(&response).status().is_success(),
            _ => false,
        }
    })
}

library_benchmark_group!(
    name = policies,
    benchmarks = [allow, deny, hold, explain, acquire, call]
);
main!(library_benchmark_groups = policies);
