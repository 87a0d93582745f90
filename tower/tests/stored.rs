//! Requests whose limits are in a counter store: they are answered as by limits in this process,
//! and nothing is lost when the store fails or the client leaves.

#[path = "../../counters/tests/support/gate.rs"]
mod gate;
#[path = "../../counters/tests/support/server.rs"]
mod redis_server;
#[path = "support/server.rs"]
mod server;

use core::convert::Infallible;
use core::pin::Pin;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::SeqCst;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::path::Path;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::{Request, Response};
use portcullis_core::{Clock, ManualClock, Timestamp};
use portcullis_counters::{CounterStore, StoreError};
use portcullis_policy::{
    Conditions, FileSource, Key, Kind, Limit, LivePolicy, Policy, Rule, Stores,
};
use portcullis_tower::fields::Generation;
use portcullis_tower::{
    AxumBody, ByLivePolicy, ByPolicy, DecideOrWait, DenialBody, DenialSettings, RateLimitLayer,
    RateLimitLayerBuilder, Reason,
};
use tower::ServiceExt;
use tower_layer::Layer;

use gate::Gate;
use server::{Client, serve, until};

#[derive(Clone, Default)]
struct Time(Arc<ManualClock>);

impl Clock for Time {
    fn now(&self) -> Timestamp {
        self.0.now()
    }
}

type Store = Arc<Gate<Time>>;
type Builder<D> = RateLimitLayerBuilder<D, portcullis_core::MonotonicClock, AxumBody>;
type Called = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>>>>;

fn limit(text: &str) -> Limit {
    text.parse().unwrap()
}

/// The limits are those of each client.
fn clients() -> Rule {
    let rule = Rule::new("clients").key(Key::header("X-Api-Key"));
    rule.stored_in("shared")
}

fn stores(store: &Store) -> Stores {
    Stores::new().with("shared", Arc::clone(store) as Arc<dyn CounterStore>)
}

fn policy(store: &Store, rules: impl IntoIterator<Item = Rule>) -> Policy {
    Policy::new(rules)
        .unwrap()
        .with_stores(stores(store))
        .unwrap()
}

fn by(policy: Policy) -> Builder<ByPolicy> {
    RateLimitLayer::builder(ByPolicy::new(policy)).for_axum()
}

/// Calls a service, which counts the requests that it serves, with the path and the key of a
/// client.
fn calls<D: DecideOrWait>(
    builder: Builder<D>,
) -> (impl Fn(&str, &str) -> Called, Arc<AtomicUsize>) {
    let served = Arc::new(AtomicUsize::new(0));
    let serves = Arc::clone(&served);
    let service = builder
        .build_waiting()
        .layer(tower::service_fn(move |_: Request<Body>| {
            serves.fetch_add(1, SeqCst);
            async { Ok(Response::new(Body::empty())) }
        }));
    let call = move |path: &str, key: &str| -> Called {
        let request = Request::get(path).header("X-Api-Key", key);
        let request = request.body(Body::empty()).unwrap();
        Box::pin(service.clone().oneshot(request))
    };
    (call, served)
}

/// The response of a call, if there is one without a wait.
fn polled(call: &mut Called) -> Option<Response<Body>> {
    let mut context = Context::from_waker(Waker::noop());
    match call.as_mut().poll(&mut context) {
        Poll::Ready(response) => Some(response.unwrap()),
        Poll::Pending => None,
    }
}

#[track_caller]
fn answer(mut call: Called) -> Response<Body> {
    polled(&mut call).expect("it does not wait")
}

fn header<'r>(response: &'r Response<Body>, name: &str) -> Option<&'r str> {
    let value = response.headers().get(name)?;
    Some(value.to_str().unwrap())
}

/// The status, and `Retry-After`.
fn reply(response: &Response<Body>) -> (u16, Option<&str>) {
    (response.status().as_u16(), header(response, "retry-after"))
}

fn body(response: Response<Body>) -> String {
    let body = axum::body::to_bytes(response.into_body(), 1_000);
    let mut body = core::pin::pin!(body);
    match body.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(bytes) => String::from_utf8(bytes.unwrap().into()).unwrap(),
        Poll::Pending => panic!("the body was made beforehand"),
    }
}

#[test]
fn services_of_several_processes_share_the_limits_of_each_client() {
    let time = Time::default();
    let store = Gate::new(time.clone());
    let rules = || {
        let local = Conditions::new().paths(["/local"]);
        let local = Rule::new("local").when(local).limit(limit("1/h"));
        let rule = clients().limit(limit("3/m")).with_status(503);
        [local, rule.with_message("Slow down.")]
    };
    let (first, served) = calls(by(policy(&store, rules())));
    let (second, _) = calls(by(policy(&store, rules())));
    for call in [&first as &dyn Fn(&str, &str) -> Called, &second, &first] {
        assert_eq!(answer(call("/", "a")).status(), 200);
    }
    for call in [&first as &dyn Fn(&str, &str) -> Called, &second] {
        let denied = answer(call("/", "a"));
        assert_eq!(reply(&denied), (503, Some("20")));
        assert_eq!(body(denied), "Slow down.");
    }
    assert_eq!(served.load(SeqCst), 2);
    assert_eq!(answer(second("/", "b")).status(), 200, "another client");
    time.0.advance(Duration::from_secs(20));
    assert_eq!(answer(second("/", "a")).status(), 200);

    // Other rules do not ask the store.
    let asked = store.calls.load(SeqCst);
    store.is_open.store(false, SeqCst);
    assert_eq!(answer(first("/local", "a")).status(), 200);
    assert_eq!(answer(first("/local", "a")).status(), 429);
    assert_eq!(store.calls.load(SeqCst), asked);
}

#[test]
fn responses_state_what_the_store_has_left() {
    let store = Gate::new(Time::default());
    let rule = clients()
        .limit(limit("2/20s").named("burst"))
        .limit(limit("100/d").named("day"))
        .override_key(
            ["gold"],
            [limit("9/9s").named("gold"), limit("1/h").named("few")],
        );
    let settings = DenialSettings::new().body(DenialBody::Problem);
    let layer = by(policy(&store, [rule])).denials(settings);
    let (call, _) = calls(layer.fields(Generation::Draft11));
    let allowed = answer(call("/", "a"));
    assert_eq!(
        header(&allowed, "ratelimit"),
        Some(r#""burst";r=1;t=10, "day";r=99;t=864"#)
    );
    answer(call("/", "a"));
    let denied = answer(call("/", "a"));
    assert_eq!(reply(&denied), (429, Some("10")));
    assert_eq!(header(&denied, "ratelimit"), Some(r#""burst";r=0;t=10"#));
    assert!(body(denied).contains(r#""violated-policies":["burst"]"#));

    // The limits of an override have other names than those of the rule.
    answer(call("/", "gold"));
    let denied = answer(call("/", "gold"));
    assert_eq!(reply(&denied), (429, Some("3600")));
    assert_eq!(header(&denied, "ratelimit"), Some(r#""few";r=0;t=3600"#));
    assert!(!body(denied).contains("day"));
}

#[test]
fn a_store_without_an_answer_denies_unless_requests_are_to_pass() {
    let store = Gate::new(Time::default());
    store.fails.store(true, SeqCst);
    let rules = || [clients().limit(limit("1/h"))];
    let (call, served) = calls(by(policy(&store, rules())).fields(Generation::Draft11));
    let denied = answer(call("/", "a"));
    assert_eq!(reply(&denied), (503, Some("1")));
    assert_eq!(header(&denied, "ratelimit"), None);
    assert_eq!(body(denied), "Service Unavailable");
    assert_eq!(served.load(SeqCst), 0);

    let errors = Arc::new(Mutex::new(Vec::new()));
    let sees = Arc::clone(&errors);
    let layer = by(policy(&store, rules())).passing_without_store(move |error| {
        let mut errors = sees.lock().unwrap();
        errors.push(error.clone());
        errors.len() < 3
    });
    let (call, served) = calls(layer);
    let statuses = [(), (), ()].map(|()| answer(call("/", "a")).status().as_u16());
    assert_eq!((statuses, served.load(SeqCst)), ([200, 200, 503], 2));
    let refused = StoreError::Unavailable("refused".into());
    assert_eq!(*errors.lock().unwrap(), vec![refused; 3]);

    // What passed took nothing, and a store that answers is obeyed.
    store.fails.store(false, SeqCst);
    assert_eq!(answer(call("/", "a")).status(), 200);
    assert_eq!(answer(call("/", "a")).status(), 429);
    assert_eq!(errors.lock().unwrap().len(), 3);

    // A policy without stores, and a layer that does not ask any.
    let alone = || Policy::new(rules()).unwrap();
    assert_eq!(
        reply(&answer(calls(by(alone())).0("/", "a"))),
        (503, Some("1"))
    );
    let layer = by(policy(&store, rules())).settling(|_, estimate| estimate);
    assert_eq!(reply(&answer(calls(layer).0("/", "b"))), (429, None));
}

#[test]
fn a_rule_with_a_queue_and_one_with_a_store_are_in_one_layer() {
    let store = Gate::new(Time::default());
    let queued = Conditions::new().paths(["/queued"]);
    let queued = Rule::new("queued")
        .when(queued)
        .limit(Limit::at_once(1).queue(1));
    let rules = [queued, clients().limit(limit("1/h"))];
    let (call, _) = calls(by(policy(&store, rules)));
    let first = answer(call("/queued", "a"));
    let mut second = call("/queued", "a");
    assert!(polled(&mut second).is_none(), "it waits");
    assert_eq!(answer(call("/", "a")).status(), 200);
    assert_eq!(answer(call("/", "a")).status(), 429);
    drop(first);
    assert_eq!(answer(second).status(), 200);
}

#[test]
fn a_change_of_the_policy_keeps_the_stores_and_the_reply_of_the_rule_that_decided() {
    let store = Gate::new(Time::default());
    let rule = |text| clients().limit(limit("1/h")).with_message(text);
    let live = LivePolicy::new(policy(&store, [rule("Before.")]));
    let layer = RateLimitLayer::builder(ByLivePolicy::new(live.clone())).for_axum();
    let (call, served) = calls(layer);
    assert_eq!(answer(call("/", "a")).status(), 200);
    store.is_open.store(false, SeqCst);
    let mut asks = call("/", "a");
    assert!(polled(&mut asks).is_none(), "the store has not answered");
    live.replace_at(live.load().now(), Policy::new([rule("After.")]).unwrap());
    store.is_open.store(true, SeqCst);
    let denied = [answer(asks), answer(call("/", "a"))];
    assert_eq!(denied.map(body), ["Before.", "After."]);
    store.fails.store(true, SeqCst);
    assert_eq!(reply(&answer(call("/", "a"))), (503, Some("1")));
    assert_eq!(served.load(SeqCst), 1);
}

/// A shadow rule holds a permit at once while the store is asked.
#[tokio::test]
async fn a_client_that_leaves_while_the_store_is_asked_leaves_nothing_behind() {
    let store = Gate::new(Time::default());
    let shadow = Rule::new("shadow").limit(Limit::at_once(1)).shadow();
    let rules = [shadow, clients().limit(limit("1/h"))];
    let policy = Arc::new(policy(&store, rules));
    let served = Arc::new(AtomicUsize::new(0));
    let serves = Arc::clone(&served);
    let handler = async move || {
        serves.fetch_add(1, SeqCst);
    };
    let layer = RateLimitLayer::builder(ByPolicy::new(Arc::clone(&policy))).build_waiting();
    let router = Router::new().route("/", get(handler)).layer(layer);
    let address = serve(router).await;
    let is_held = || {
        let headers = [("X-Api-Key", "other")];
        let request = portcullis_policy::Request::new("GET", "/").headers(&headers);
        let decision = policy.decide_at(policy.now(), &request.kind(Kind::Request));
        decision.shadow_denied().is_some()
    };

    store.is_open.store(false, SeqCst);
    let mut leaves = Client::connect(address).await;
    leaves.send("GET /", &["X-Api-Key: a"]).await;
    until(|| store.calls.load(SeqCst) == 1).await;
    assert!(is_held());
    drop(leaves);
    until(|| !is_held()).await;

    store.is_open.store(true, SeqCst);
    let mut next = Client::connect(address).await;
    assert_eq!(next.get("/", &["X-Api-Key: a"]).await.status, 200);
    assert_eq!(next.get("/", &["X-Api-Key: a"]).await.status, 429);
    assert!(!is_held());
    assert_eq!(served.load(SeqCst), 1);
}

/// 100 for each API key, 5 logins for each address, in Redis, and 100 at once for the whole
/// service.
const WISH: &str = r#"
    stores = ["shared"]

    [[rules]]
    name = "each key"
    key = ["header:X-Api-Key"]
    on_missing = "skip"
    limits = ["100/h"]
    continue = true

    [[rules]]
    name = "logins"
    methods = ["POST"]
    paths = ["/login"]
    key = ["address"]
    limits = ["5/h"]
    store = "shared"
    continue = true

    [[rules]]
    name = "service"
    limits = [{ at_once = 100 }]
"#;

/// What the rules in this process have left for a request with a key.
fn left_here(policy: &Policy, key: &str) -> Vec<u64> {
    let headers = [("X-Api-Key", key)];
    let request = portcullis_policy::Request::new("GET", "/").headers(&headers);
    let probe = policy.decide_at(policy.now(), &request.cost(0));
    probe.statuses().map(|status| status.remaining).collect()
}

/// The response to a request with a key. `target` has its method.
async fn ask(client: &mut Client, target: &str, lines: &[&str]) -> server::Received {
    client.send(target, lines).await;
    client.receive().await
}

/// Serves all paths behind a layer, and collects what is said of each denial.
async fn wished(
    policy: &Arc<Policy>,
    set: impl FnOnce(Builder<ByPolicy>) -> Builder<ByPolicy>,
) -> (core::net::SocketAddr, Arc<Mutex<Vec<String>>>) {
    let denials = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&denials);
    let settings = DenialSettings::new().responding(move |denial, response| {
        let (rule, limit) = (denial.rule().unwrap_or("-"), denial.limit().unwrap_or("-"));
        let reason = match denial.reason {
            Reason::Limit(_) => "limit",
            Reason::Store => "store",
            _ => "other",
        };
        seen.lock()
            .unwrap()
            .push(format!("{rule}/{limit}: {reason}"));
        response
    });
    let layer = RateLimitLayer::builder(ByPolicy::new(Arc::clone(policy)))
        .for_axum()
        .denials(settings)
        .fields(Generation::Draft11);
    let layer = set(layer).build_waiting();
    let router = Router::new().fallback(async || "served").layer(layer);
    (serve(router).await, denials)
}

#[tokio::test]
async fn one_file_limits_keys_addresses_and_the_service_in_one_layer_with_redis() {
    let Some(mut server) = redis_server::Server::start() else {
        return;
    };
    let store: Arc<dyn CounterStore> = Arc::new(server.store());
    let policy = Policy::from_toml(WISH).unwrap();
    assert!(policy.warnings().is_empty());
    let stores = Stores::new().with("shared", store);
    let policy = Arc::new(policy.with_stores(stores).unwrap());
    let (address, denials) = wished(&policy, |layer| layer).await;
    let mut client = Client::connect(address).await;
    for nth in 1..=5 {
        let response = ask(&mut client, "POST /login", &["X-Api-Key: a"]).await;
        assert_eq!(response.status, 200);
        let left = format!(
            r#""each key";r={};t={}, "service";r=99, "logins";r={};t={}"#,
            100 - nth,
            36 * nth,
            5 - nth,
            720 * nth
        );
        assert_eq!(response.header("ratelimit"), Some(&*left));
        let policies = response.header("ratelimit-policy").unwrap();
        assert_eq!(
            policies,
            r#""each key";q=100;w=3600, "service";q=100;qu="concurrent-requests", "logins";q=5;w=3600"#
        );
        until(|| left_here(&policy, "a") == [100 - nth, 100]).await;
    }
    // The store denies: the key and the service are as before.
    let denied = ask(&mut client, "POST /login", &["X-Api-Key: a"]).await;
    assert_eq!(denied.status, 429);
    assert_eq!(denied.header("retry-after"), Some("720"));
    assert_eq!(denied.header("ratelimit"), Some(r#""logins";r=0;t=720"#));
    assert_eq!(left_here(&policy, "a"), [95, 100]);
    // So they are after many at once, while others of the same key are granted.
    let many = (0..40).map(|nth| async move {
        let mut client = Client::connect(address).await;
        let target = if nth % 20 == 7 {
            "GET /"
        } else {
            "POST /login"
        };
        ask(&mut client, target, &["X-Api-Key: a"]).await.status
    });
    let statuses = futures_util::future::join_all(many).await;
    assert_eq!(statuses.iter().filter(|&&status| status == 200).count(), 2);
    until(|| left_here(&policy, "a") == [93, 100]).await;
    // The key denies, and the store is not asked: another address would still log in.
    for nth in 0..=93 {
        let status = if nth < 93 { 200 } else { 429 };
        assert_eq!(
            ask(&mut client, "GET /", &["X-Api-Key: a"]).await.status,
            status
        );
    }
    assert_eq!(
        ask(&mut client, "POST /login", &["X-Api-Key: a"])
            .await
            .status,
        429
    );
    let seen = core::mem::take(&mut *denials.lock().unwrap());
    assert!(
        seen[..39]
            .iter()
            .all(|denial| denial == "logins/logins: limit")
    );
    assert!(
        seen[39..]
            .iter()
            .all(|denial| denial == "each key/each key: limit")
    );
    assert_eq!(seen.len(), 41);

    // Redis is killed: a login takes nothing, and other requests are not concerned.
    server.stop();
    let failed = ask(&mut client, "POST /login", &["X-Api-Key: b"]).await;
    assert_eq!(
        (failed.status, failed.header("retry-after")),
        (503, Some("1"))
    );
    assert_eq!(left_here(&policy, "b"), [100, 100]);
    assert_eq!(*denials.lock().unwrap(), ["-/-: store"]);
    assert_eq!(
        ask(&mut client, "GET /", &["X-Api-Key: b"]).await.status,
        200
    );
    // What passes without the store is limited by the other rules.
    let passes = |layer: Builder<ByPolicy>| layer.passing_without_store(|_| true).cost(|_| 33);
    let (address, _) = wished(&policy, passes).await;
    let mut client = Client::connect(address).await;
    for status in [200, 200, 200, 429] {
        let passed = ask(&mut client, "POST /login", &["X-Api-Key: b"]).await;
        assert_eq!(passed.status, status);
    }
    until(|| left_here(&policy, "b") == [0, 100]).await;
}

/// A live policy has the stores from its first file on, and keeps them when the file changes.
#[tokio::test]
async fn a_file_that_is_read_again_keeps_what_its_limits_have_granted_in_redis() {
    let Some(server) = redis_server::Server::start() else {
        return;
    };
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("stored-live.toml");
    let write = |limit: &str| {
        let rule = format!("name = 'all'\nkey = ['header:X-Api-Key']\nlimits = ['{limit}']");
        let text = format!("stores = ['shared']\n[[rules]]\n{rule}\nstore = 'shared'\n");
        std::fs::write(&path, text).unwrap();
    };
    write("3/h");
    let store: Arc<dyn CounterStore> = Arc::new(server.store());
    let mut file = FileSource::new(&path).with_stores(Stores::new().with("shared", store));
    let live = LivePolicy::from_source(&mut file).unwrap();
    let layer = RateLimitLayer::builder(ByLivePolicy::new(live.clone()))
        .for_axum()
        .build_waiting();
    let router = Router::new().fallback(async || "served").layer(layer);
    let mut client = Client::connect(serve(router).await).await;
    for status in [200, 200, 200, 429] {
        assert_eq!(client.get("/", &["X-Api-Key: a"]).await.status, status);
    }
    write("5/h");
    let mut poll = || live.refresh_at(live.load().now(), &mut file).unwrap();
    assert!(poll().is_none() && poll().is_some());
    for status in [200, 200, 429] {
        assert_eq!(client.get("/", &["X-Api-Key: a"]).await.status, status);
    }
}

/// What waits is decided once, when the wait has ended.
#[test]
fn the_function_that_watches_sees_each_decision_with_its_request_once() {
    let store = Gate::new(Time::default());
    let queued = Conditions::new().paths(["/queued"]);
    let queued = Rule::new("queued")
        .when(queued)
        .limit(Limit::at_once(1).queue(1));
    let local = Conditions::new().paths(["/local"]);
    let local = Rule::new("local").when(local).limit(limit("1/h"));
    let policy = Arc::new(policy(
        &store,
        [queued, local, clients().limit(limit("1/h"))],
    ));
    let watched = Arc::new(Mutex::new(Vec::new()));
    let (sees, decides) = (Arc::clone(&watched), Arc::clone(&policy));
    let judge = ByPolicy::new(Arc::clone(&policy)).watched(move |seen| {
        assert!(core::ptr::eq(seen.policy, &raw const *decides));
        let key = seen.request.headers.value("X-Api-Key").unwrap();
        let about = format!("{} {key}", seen.request.path);
        sees.lock()
            .unwrap()
            .push((about, seen.decision.is_allowed()));
    });
    let seen = |expected: &[(&str, bool)]| {
        let seen = core::mem::take(&mut *watched.lock().unwrap());
        let expected = expected
            .iter()
            .map(|(about, is)| ((*about).to_owned(), *is));
        assert_eq!(seen, expected.collect::<Vec<_>>());
    };
    let (call, _) = calls(RateLimitLayer::builder(judge).for_axum());
    answer(call("/local", "a"));
    answer(call("/local", "b"));
    seen(&[("/local a", true), ("/local b", false)]);

    store.is_open.store(false, SeqCst);
    let mut asks = call("/", "a");
    assert!(polled(&mut asks).is_none());
    seen(&[]);
    store.is_open.store(true, SeqCst);
    answer(asks);
    answer(call("/", "a"));
    seen(&[("/ a", true), ("/ a", false)]);
    store.fails.store(true, SeqCst);
    answer(call("/", "a"));
    seen(&[]);

    let first = answer(call("/queued", "a"));
    let mut second = call("/queued", "b");
    assert!(polled(&mut second).is_none());
    seen(&[("/queued a", true)]);
    drop(first);
    answer(second);
    seen(&[("/queued b", true)]);

    // A layer whose costs are settled holds permits that it may return.
    let (sees, settles) = (Arc::clone(&watched), Arc::clone(&policy));
    let judge = ByPolicy::new(settles).watched(move |seen| {
        let about = seen.request.path.to_owned();
        sees.lock()
            .unwrap()
            .push((about, seen.decision.is_allowed()));
    });
    let layer = RateLimitLayer::builder(judge).for_axum();
    let (call, _) = calls(layer.settling(|_, estimate| estimate));
    answer(call("/local", "a"));
    seen(&[("/local", false)]);
}
