//! Requests to an axum router with one route, in process: the time that a layer around it adds.
//!
//! `http.bare` is the router alone. The other rows are the time beyond it. A denied request never
//! reaches the router, so its time can be negative.

use core::net::{Ipv4Addr, SocketAddr};
use core::pin::pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{Request, Response};
use axum::routing::get;
use portcullis_core::{Rate, TokenBucket};
use portcullis_policy::{Key, Limit, Policy, Rule};
use portcullis_tower::{ByKey, ByPolicy, RateLimitLayer};
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;
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
            ours: by_key(PLENTY, |granted| granted).beyond(bare()),
            peers: vec![
                governor(Duration::from_nanos(1), u32::MAX).beyond(bare()),
                concurrency_limit().beyond(bare()),
                adaptive().beyond(bare()),
            ],
        },
        Contest {
            row: "http.allow_policy",
            threads: 1,
            expected: Expected::Granted,
            ours: by_policy(PLENTY).beyond(bare()),
            peers: vec![governor(Duration::from_nanos(1), u32::MAX).beyond(bare())],
        },
        Contest {
            row: "http.deny",
            threads: 1,
            expected: Expected::Denied,
            ours: by_key(ONE, |granted| granted).beyond(bare()),
            peers: vec![
                // Its requests are granted. It reports none, because the row is one of denials.
                by_key(PLENTY, |_| 0)
                    .named("portcullis-allow")
                    .beyond(bare()),
                governor(Duration::from_hours(100), 1).beyond(bare()),
            ],
        },
        Contest {
            row: "http.deny_policy",
            threads: 1,
            expected: Expected::Denied,
            ours: by_policy(ONE).beyond(bare()),
            peers: vec![],
        },
    ]
}

/// The limit of each address: so many per period.
type Count = (u32, Duration);

/// All requests are granted.
const PLENTY: Count = (1_000_000_000, Duration::from_secs(1));

/// One request is granted.
const ONE: Count = (1, Duration::from_hours(100));

fn router() -> Router {
    Router::new().route("/items", get(|| async { "served" }))
}

fn bare() -> Contestant {
    Contestant::prepared("bare", || through(router(), true))
}

/// A token bucket for each address. Reports this number of grants.
fn by_key((count, period): Count, counted: fn(u64) -> u64) -> Contestant {
    Contestant::prepared("portcullis", move || {
        let bucket = TokenBucket::new(Rate::new(count, period), count.into());
        let layer = RateLimitLayer::builder(ByKey::address(bucket, 1_000)).for_axum();
        through(layer.build().layer(router()), count > 1).counting(counted)
    })
}

/// A policy with one rule, which has the same limit.
fn by_policy((count, period): Count) -> Contestant {
    Contestant::prepared("portcullis", move || {
        let limit = Limit::per(count.into(), period);
        let rule = Rule::new("clients").key(Key::address()).limit(limit);
        let policy = Policy::new([rule]).expect("a valid rule");
        let layer = RateLimitLayer::builder(ByPolicy::new(policy)).for_axum();
        through(layer.build().layer(router()), count > 1)
    })
}

/// As `by_key`.
fn governor(period: Duration, burst: u32) -> Contestant {
    Contestant::prepared("tower-governor", move || {
        let config = GovernorConfigBuilder::default()
            .period(period)
            .burst_size(burst)
            .finish()
            .expect("valid settings");
        through(GovernorLayer::new(config).layer(router()), burst > 1)
    })
}

fn concurrency_limit() -> Contestant {
    Contestant::prepared("tower-concurrency-limit", || {
        let layer = tower::limit::GlobalConcurrencyLimitLayer::new(1_000);
        through(layer.layer(router()), true)
    })
}

fn adaptive() -> Contestant {
    Contestant::prepared("tower-acc", || {
        let layer = tower_acc::ConcurrencyLimitLayer::new(tower_acc::Vegas::default());
        through(layer.layer(router()), true)
    })
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
