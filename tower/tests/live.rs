//! A policy that changes while requests are served.

use core::convert::Infallible;
use core::future::{Ready, ready};
use core::pin::pin;
use core::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use portcullis_core::Timestamp;
use portcullis_policy::{Limit, LivePolicy, Policy, Rule};
use portcullis_tower::{ByLivePolicy, ByPolicy, Decide, LimitedBody, RateLimitLayer};
use tower_layer::Layer;
use tower_service::Service;

/// A body that does not end.
#[derive(Debug)]
struct Endless;

impl Body for Endless {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: core::pin::Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Pending
    }
}

#[derive(Clone, Debug)]
struct Answers;

impl Service<Request<()>> for Answers {
    type Response = Response<Endless>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Endless>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        ready(Ok(Response::new(Endless)))
    }
}

type Answer<D> = Response<LimitedBody<Endless, <D as Decide>::Permits>>;

fn ask<S, B>(service: &mut S) -> Response<B>
where
    S: Service<Request<()>, Response = Response<B>, Error = Infallible>,
{
    let mut context = Context::from_waker(Waker::noop());
    match pin!(service.call(Request::new(()))).poll(&mut context) {
        Poll::Ready(Ok(response)) => response,
        _ => panic!("a response"),
    }
}

fn text<B: Body<Data = Bytes>>(response: Response<B>) -> Bytes {
    let mut context = Context::from_waker(Waker::noop());
    match pin!(response.into_body()).poll_frame(&mut context) {
        Poll::Ready(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
        _ => Bytes::new(),
    }
}

#[test]
fn a_change_keeps_what_is_held_and_changes_the_replies() {
    let policy = |at_once: u32, status: u16, message: &str| {
        let rule = Rule::new("all").limit(Limit::at_once(at_once));
        Policy::new([rule.with_status(status).with_message(message)]).unwrap()
    };
    let live = LivePolicy::new(policy(1, 429, "before"));
    let layer = RateLimitLayer::new(ByPolicy::new(live.clone()));
    let mut service = layer.layer(Answers);
    let held: Answer<ByLivePolicy> = ask(&mut service);
    assert_eq!(held.status(), 200);
    let denied = ask(&mut service);
    assert_eq!(
        (denied.status().as_u16(), text(denied)),
        (429, "before".into())
    );

    live.replace_at(Timestamp::from_secs(1), policy(2, 503, "after"));
    let second = ask(&mut service);
    assert_eq!(second.status(), 200, "one more at once");
    for _ in 0..2 {
        let denied = ask(&mut service);
        assert_eq!(
            (denied.status().as_u16(), text(denied)),
            (503, "after".into())
        );
    }
    // Its permit was taken before the change, and returns after it.
    drop(held);
    let third = ask(&mut service);
    assert_eq!(third.status(), 200);
    assert_eq!(ask(&mut service).status(), 503);
    live.replace_at(Timestamp::from_secs(2), policy(2, 429, "last"));
    assert_eq!(text(ask(&mut service)), "last");
    drop((second, third));
    assert_eq!(ask(&mut service).status(), 200);
}

#[cfg(feature = "tonic")]
impl tonic::server::NamedService for Answers {
    const NAME: &'static str = "test.Answers";
}

/// tonic finds a service by its name, also behind the layer.
#[cfg(feature = "tonic")]
#[test]
fn the_name_of_a_service_is_forwarded() {
    use tonic::server::NamedService;
    fn name<S: NamedService>(_: &S) -> &'static str {
        S::NAME
    }
    let live = LivePolicy::new(Policy::new([]).unwrap());
    let service = RateLimitLayer::new(ByLivePolicy::new(live)).layer(Answers);
    assert_eq!(name(&service), "test.Answers");
}
