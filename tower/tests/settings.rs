//! Costs, outcomes, requests that pass, and the replies to those that are denied.

use core::convert::Infallible;
use core::pin::pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body::{Body, Frame};
use portcullis_core::limiter::{Answer, Ask, Back, Read, Reading, Returned};
use portcullis_core::metadata::{Name, REASON_PHRASE, RETRY_AFTER, USED_SHARE};
use portcullis_core::{
    Concurrency, Denied, Limiter, ManualClock, Rate, Retry, Timestamp, TokenBucket,
};
use portcullis_policy::{Conditions, Key, Limit, OnMissing, Policy, Rule};
use portcullis_tower::{
    ByKey, ByLimiter, ByPolicy, Decide, DenialBody, DenialSettings, NotLimited, RateLimitLayer,
    RateLimitLayerBuilder, Reason, RequestHead, ResponseCost,
};
use tower_layer::Layer;
use tower_service::Service;

/// A body without data.
#[derive(Debug)]
struct Empty;

impl Body for Empty {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: core::pin::Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(None)
    }
}

/// Answers with the status that the path names, and the cost that the query names. `/0` never
/// answers.
#[derive(Clone)]
struct Answers;

impl Service<Request<()>> for Answers {
    type Response = Response<Empty>;
    type Error = Infallible;
    type Future = core::pin::Pin<Box<dyn Future<Output = Result<Response<Empty>, Infallible>>>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<()>) -> Self::Future {
        let status: u16 = request.uri().path()[1..].parse().unwrap_or(200);
        if status == 0 {
            return Box::pin(core::future::pending());
        }
        let mut response = Response::new(Empty);
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        if let Some(cost) = request.uri().query() {
            let cost = ResponseCost(cost.parse().unwrap());
            response.extensions_mut().insert(cost);
        }
        Box::pin(core::future::ready(Ok(response)))
    }
}

/// A service with a clock that the test advances.
fn limited<D: Decide>(
    judges: D,
    build: impl FnOnce(
        RateLimitLayerBuilder<D, &'static ManualClock>,
    ) -> RateLimitLayerBuilder<D, &'static ManualClock>,
) -> (
    impl FnMut(Request<()>) -> Option<Response<String>>,
    &'static ManualClock,
) {
    let clock: &ManualClock = Box::leak(Box::default());
    clock.advance(Duration::from_secs(1_000));
    let layer = build(RateLimitLayer::builder(judges).clock(clock)).build();
    let mut service = layer.layer(Answers);
    let ask = move |request| {
        let mut context = Context::from_waker(Waker::noop());
        let mut future = pin!(service.call(request));
        let Poll::Ready(Ok(response)) = future.as_mut().poll(&mut context) else {
            return None;
        };
        Some(response.map(|body| {
            let mut body = pin!(body);
            let mut text = String::new();
            while let Poll::Ready(Some(Ok(frame))) = body.as_mut().poll_frame(&mut context) {
                text.push_str(core::str::from_utf8(&frame.into_data().unwrap()).unwrap());
            }
            text
        }))
    };
    (ask, clock)
}

fn get(target: &str) -> Request<()> {
    Request::get(target).body(()).unwrap()
}

fn policy(rule: Rule) -> ByPolicy {
    ByPolicy::new(Policy::new([rule]).unwrap())
}

#[test]
fn an_outer_layer_counts_what_an_inner_one_denies_unless_it_is_told_not_to() {
    let policy = |limit: &str| policy(Rule::new("all").limit(limit.parse().unwrap()));
    let ask = |layer: RateLimitLayer<ByPolicy, &'static ManualClock>, inner| {
        let mut service = layer.layer(RateLimitLayer::new(inner).layer(Answers));
        let mut context = Context::from_waker(Waker::noop());
        let mut statuses = [0; 4];
        for status in &mut statuses {
            let Poll::Ready(Ok(response)) = pin!(service.call(get("/"))).poll(&mut context) else {
                panic!("a response");
            };
            *status = response.status().as_u16();
        }
        statuses
    };
    let outer = |judge| {
        let clock: &ManualClock = Box::leak(Box::default());
        RateLimitLayer::builder(judge).clock(clock)
    };
    let status = StatusCode::SERVICE_UNAVAILABLE;
    let inner = || policy_with_status("1/h", status);
    // The outer layer has two permits.
    assert_eq!(
        ask(outer(policy("2/h")).build(), inner()),
        [200, 503, 429, 429]
    );
    let counting = outer(policy("2/h")).counting(move |response| response.status != status);
    assert_eq!(ask(counting.build(), inner()), [200, 503, 503, 503]);
    // As one decision.
    let (mut one, _) = limited(policy("2/h").and(inner()), |layer| layer);
    let statuses = [(); 4].map(|()| one(get("/")).unwrap().status().as_u16());
    assert_eq!(statuses, [200, 503, 503, 503]);
}

fn policy_with_status(limit: &str, status: StatusCode) -> ByPolicy {
    policy(
        Rule::new("all")
            .limit(limit.parse().unwrap())
            .with_status(status.as_u16()),
    )
}

/// tower-governor#34: only failed logins count.
#[test]
fn only_the_responses_that_are_selected_count() {
    let rule = Rule::new("failures").limit("3/h".parse().unwrap());
    let rule = rule.hold(Duration::from_secs(10));
    let (mut ask, clock) = limited(policy(rule), |layer| {
        layer.counting(|response| response.status == 401 || response.status.is_server_error())
    });
    let mut status = |target: &str| ask(get(target)).map(|response| response.status().as_u16());
    for _ in 0..20 {
        assert_eq!(status("/200"), Some(200));
    }
    for failure in ["/401", "/500", "/401"] {
        assert_eq!(
            status(failure),
            status("/404").map(|_| failure[1..].parse().unwrap())
        );
    }
    assert_eq!(status("/200"), Some(429));
    clock.advance(Duration::from_mins(20));
    // One permit is back. A request in progress holds it, whatever its outcome may be.
    assert_eq!(status("/0"), None, "its client goes away: it counts");
    assert_eq!(status("/200"), Some(429));
}

/// A rule without a hold takes permits back if no other request has taken any since.
#[test]
fn a_rule_without_a_hold_returns_permits_too() {
    let rule = Rule::new("failures").limit("1/h".parse().unwrap());
    let (mut ask, _) = limited(policy(rule), |layer| {
        layer.counting(|head| head.status == 401)
    });
    for _ in 0..5 {
        assert_eq!(ask(get("/200")).unwrap().status(), 200);
    }
    assert_eq!(ask(get("/401")).unwrap().status(), 401);
    assert_eq!(ask(get("/200")).unwrap().status(), 429);
}

#[test]
fn a_cost_that_the_handler_tells_is_settled() {
    let rule = Rule::new("tokens").limit("100/h".parse().unwrap());
    let rule = rule.hold(Duration::from_secs(10));
    let policy = Arc::new(Policy::new([rule]).unwrap());
    let bucket = Arc::new(TokenBucket::new(
        Rate::new(100, Duration::from_hours(1)),
        100,
    ));
    let judges =
        ByPolicy::new(Arc::clone(&policy)).and(ByLimiter::shared(Arc::clone(&bucket)).by_cost());
    let (mut ask, clock) = limited(judges, |layer| {
        layer.cost(|_| 40).settling(|response, estimate| {
            let cost = response.extensions.get::<ResponseCost>();
            cost.map_or(estimate, |cost| cost.0)
        })
    });
    let now = portcullis_core::Clock::now(clock);
    let left = || {
        let probe = portcullis_policy::Request::new("GET", "/").cost(0);
        let left = policy.decide_at(now, &probe).status().unwrap().remaining;
        (left, bucket.available_at(now))
    };
    ask(get("/200?10")).unwrap();
    assert_eq!(left(), (90, 90));
    ask(get("/200?60")).unwrap();
    assert_eq!(left(), (30, 30));
    assert_eq!(
        ask(get("/200?1")).unwrap().status(),
        429,
        "the estimate is 40"
    );
    assert_eq!(left(), (30, 30));
}

#[test]
fn requests_pass_by_an_extension_a_function_or_as_preflights() {
    let limit = || ByLimiter::new(TokenBucket::new(Rate::new(1, Duration::from_hours(1)), 1));
    let preflight = || {
        let mut request = Request::options("/").body(()).unwrap();
        for name in ["Origin", "Access-Control-Request-Method"] {
            let name: HeaderName = name.parse().unwrap();
            request
                .headers_mut()
                .insert(name, HeaderValue::from_static("x"));
        }
        request
    };
    let (mut ask, _) = limited(limit(), |layer| {
        layer
            .passing_preflights()
            .passing(|head| head.uri.path() == "/202")
    });
    assert_eq!(ask(get("/")).unwrap().status(), 200);
    assert_eq!(ask(get("/")).unwrap().status(), 429);
    let mut free = get("/");
    free.extensions_mut().insert(NotLimited);
    assert_eq!(ask(free).unwrap().status(), 200);
    assert_eq!(ask(get("/202")).unwrap().status(), 202);
    assert_eq!(ask(preflight()).unwrap().status(), 200);
    let options = Request::options("/").body(()).unwrap();
    assert_eq!(ask(options).unwrap().status(), 429, "no preflight");

    let (mut ask, _) = limited(limit(), |layer| layer);
    assert_eq!(ask(preflight()).unwrap().status(), 200);
    assert_eq!(
        ask(preflight()).unwrap().status(),
        429,
        "by default they are limited"
    );
}

/// The response to a second request, by a rule with one permit per 90 s.
fn denied(rule: Rule, denials: DenialSettings) -> Response<String> {
    let rule = rule.limit(Limit::per(1, Duration::from_secs(90)).named("per client"));
    let (mut ask, clock) = limited(policy(rule), |layer| layer.denials(denials));
    assert_eq!(ask(get("/")).unwrap().status(), 200);
    clock.advance(Duration::from_nanos(1));
    ask(get("/")).unwrap()
}

#[test]
fn the_body_of_a_reply_is_chosen() {
    let rule = || Rule::new("clients").with_message("At most {0} in {1}.");
    let by = |body| denied(rule(), DenialSettings::new().body(body));
    let text = Some("text/plain; charset=utf-8");
    for (body, expected, content_type) in [
        (DenialBody::Empty, "", None),
        (DenialBody::Reason, "Too Many Requests", text),
        (DenialBody::Message, "At most {0} in {1}.", text),
        (DenialBody::Template, "At most 1 in 90s.", text),
        (
            DenialBody::Problem,
            r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"At most {0} in {1}.","status":429,"violated-policies":["per client"]}"#,
            Some("application/problem+json"),
        ),
    ] {
        let response = by(body);
        assert_eq!(response.body(), expected);
        let found = response.headers().get("content-type");
        assert_eq!(found.map(|value| value.to_str().unwrap()), content_type);
        assert_eq!(response.headers()["retry-after"], "90", "rounded up");
    }
}

#[test]
fn a_problem_escapes_its_texts() {
    let rule = Rule::new("a").with_message("\"\\\n").with_status(503);
    let denials = DenialSettings::new().body(DenialBody::Problem);
    let body = denied(rule, denials).into_body();
    assert!(body.contains(r#""title":"\"\\\u000a""#), "{body}");
    assert!(body.contains("#temporary-reduced-capacity"), "{body}");
}

/// actix-governor's denials lack them, so that a browser sees a network error.
#[test]
fn a_reply_has_the_headers_that_were_set_and_none_of_the_request() {
    let cors = HeaderName::from_static("access-control-allow-origin");
    let denials = DenialSettings::new().header(cors, HeaderValue::from_static("*"));
    let rule = Rule::new("all").limit("1/h".parse().unwrap());
    let (mut ask, _) = limited(policy(rule), |layer| layer.denials(denials));
    let request = || {
        let mut request = get("/");
        request
            .headers_mut()
            .insert("cookie", HeaderValue::from_static("secret"));
        request
    };
    ask(request()).unwrap();
    let response = ask(request()).unwrap();
    assert_eq!(response.headers()["access-control-allow-origin"], "*");
    let mut names: Vec<_> = response.headers().keys().map(HeaderName::as_str).collect();
    names.sort_unstable();
    assert_eq!(
        names,
        ["access-control-allow-origin", "content-type", "retry-after"]
    );
}

/// A limit at once has permits again when another request ends, and that time is unknown.
#[test]
fn a_denial_that_time_does_not_cure_has_no_retry_after() {
    let limit = Arc::new(Concurrency::new(1));
    let held =
        portcullis_core::LimiterExt::try_acquire_at(&*limit, portcullis_core::Timestamp::ZERO, 1);
    let (mut ask, _) = limited(ByLimiter::shared(Arc::clone(&limit)), |layer| layer);
    let response = ask(get("/")).unwrap();
    assert_eq!(response.status(), 429);
    assert!(!response.headers().contains_key("retry-after"));
    drop(held);
    assert_eq!(ask(get("/")).unwrap().status(), 200);
}

#[test]
fn a_request_without_a_client_is_refused_shared_or_judged_by_the_next_rule() {
    let clients = |on_missing| {
        Rule::new("clients")
            .key(Key::header("X-Client"))
            .on_missing(on_missing)
            .limit("1/h".parse().unwrap())
    };
    let unidentified = |rules: Vec<Rule>, denials| {
        let judges = ByPolicy::new(Policy::new(rules).unwrap());
        let (mut ask, _) = limited(judges, |layer| layer.denials(denials));
        [(); 2].map(|()| {
            let response = ask(get("/")).unwrap();
            (response.status().as_u16(), response.into_body())
        })
    };
    let [refused, _] = unidentified(vec![clients(OnMissing::Deny)], DenialSettings::new());
    let text = "The rule `clients` could not identify the client.";
    assert_eq!(refused, (503, text.to_owned()));
    let own = DenialSettings::new().unidentified(StatusCode::UNAUTHORIZED, "Who are you?");
    let [refused, _] = unidentified(vec![clients(OnMissing::Deny)], own);
    assert_eq!(refused, (401, "Who are you?".to_owned()));
    let shared = unidentified(vec![clients(OnMissing::Share)], DenialSettings::new());
    assert_eq!(shared.map(|response| response.0), [200, 429]);
    let by_path = Rule::new("others")
        .with_status(430)
        .limit("1/h".parse().unwrap());
    let skipped = unidentified(
        vec![clients(OnMissing::Skip), by_path.when(Conditions::new())],
        DenialSettings::new(),
    );
    assert_eq!(skipped.map(|response| response.0), [200, 430]);
}

/// IETF, draft-ietf-httpapi-ratelimit-headers (world Q, 329): after a denial, `Retry-After` is not
/// before the end of the effective window `t`.
#[cfg(feature = "fields")]
#[test]
fn every_response_states_the_limits() {
    use portcullis_tower::fields::Generation;
    type Ask = dyn FnMut(Request<()>) -> Option<Response<String>>;
    let rule = || {
        let second: Limit = "2/20s".parse().unwrap();
        let day: Limit = "100/d".parse().unwrap();
        Rule::new("api").limit(second.named("burst")).limit(day)
    };
    let state = |response: &Response<String>, name: &str| {
        let value = response.headers().get(name)?;
        Some(value.to_str().unwrap().to_owned())
    };
    // Alone, and as the first and the second of two that judge.
    let other = || ByLimiter::new(TokenBucket::new(Rate::per_second(1_000), 1_000));
    let alone = limited(policy(rule()), |layer| layer.fields(Generation::Draft11)).0;
    let first = limited(policy(rule()).and(other()), |layer| {
        layer.fields(Generation::Draft11)
    });
    let settled = limited(other().and(policy(rule())), |layer| {
        layer
            .fields(Generation::Draft11)
            .settling(|_, estimate| estimate)
    });
    let asks: [Box<Ask>; 3] = [Box::new(alone), Box::new(first.0), Box::new(settled.0)];
    for mut ask in asks {
        let allowed = ask(get("/")).unwrap();
        let policies = r#""burst";q=2;w=20, "api-2";q=100;w=86400"#;
        assert_eq!(state(&allowed, "ratelimit-policy").unwrap(), policies);
        assert_eq!(
            state(&allowed, "ratelimit").unwrap(),
            r#""burst";r=1;t=10, "api-2";r=99;t=864"#
        );
        ask(get("/")).unwrap();
        let denied = ask(get("/")).unwrap();
        assert_eq!(state(&denied, "ratelimit-policy").unwrap(), policies);
        assert_eq!(state(&denied, "ratelimit").unwrap(), r#""burst";r=0;t=10"#);
        assert_eq!(state(&denied, "retry-after").unwrap(), "10");
    }
    // By default there are none (world O, 291).
    let (mut ask, _) = limited(policy(rule()), |layer| layer);
    let response = ask(get("/")).unwrap();
    assert_eq!(response.headers().len(), 0);
    let (mut ask, _) = limited(policy(rule()), |layer| {
        layer.fields(Generation::X(portcullis_tower::fields::ResetForm::Seconds))
    });
    let response = ask(get("/")).unwrap();
    assert_eq!(state(&response, "x-ratelimit-limit").unwrap(), "2");
    assert_eq!(state(&response, "x-ratelimit-remaining").unwrap(), "1");
    assert_eq!(state(&response, "x-ratelimit-reset").unwrap(), "10");
}

/// The field counts only from a proxy that is trusted.
#[test]
fn clients_behind_a_trusted_proxy_have_limits_of_their_own() {
    use portcullis_tower::{ForwardedFor, PeerAddress};
    let rule = || {
        Rule::new("clients")
            .key(Key::address())
            .limit("1/h".parse().unwrap())
    };
    let request = |client: &str| {
        let mut request = get("/");
        request
            .extensions_mut()
            .insert(PeerAddress("10.0.0.1".parse().unwrap()));
        let value = HeaderValue::from_str(client).unwrap();
        request.headers_mut().insert("x-forwarded-for", value);
        request
    };
    let (mut ask, _) = limited(policy(rule()), |layer| layer);
    assert_eq!(ask(request("192.0.2.1")).unwrap().status(), 200);
    assert_eq!(
        ask(request("192.0.2.2")).unwrap().status(),
        429,
        "off by default"
    );
    let (mut ask, _) = limited(policy(rule()), |layer| {
        layer.forwarded(ForwardedFor::x_forwarded_for().hops(1))
    });
    assert_eq!(ask(request("192.0.2.1")).unwrap().status(), 200);
    assert_eq!(ask(request("192.0.2.2")).unwrap().status(), 200);
    assert_eq!(
        ask(request("1.1.1.1, 192.0.2.2")).unwrap().status(),
        429,
        "from the right"
    );
}

/// Limits of each key, in code. Requests without a key share one.
#[test]
fn each_key_has_a_limiter() {
    use portcullis_core::queue::Keys;
    use portcullis_tower::{ByKey, PeerAddress};
    let bucket = || TokenBucket::new(Rate::new(1, Duration::from_hours(1)), 2);
    let from = |address: &str| {
        let mut request = get("/200?1");
        request
            .extensions_mut()
            .insert(PeerAddress(address.parse().unwrap()));
        request
    };
    let (mut ask, clock) = limited(ByKey::address(bucket(), 100), |layer| layer);
    let mut statuses = |address: &str, n: usize| -> Vec<u16> {
        let ask = || ask(from(address)).unwrap().status().as_u16();
        core::iter::repeat_with(ask).take(n).collect()
    };
    assert_eq!(statuses("192.0.2.1", 3), [200, 200, 429]);
    assert_eq!(statuses("192.0.2.2", 3), [200, 200, 429]);
    assert_eq!(statuses("::ffff:192.0.2.1", 1), [429], "the same address");
    assert_eq!(statuses("2001:db8::1", 2), [200, 200]);
    assert_eq!(
        statuses("2001:db8::2", 1),
        [429],
        "the same network of 64 bits"
    );
    clock.advance(Duration::from_hours(1));
    assert_eq!(statuses("192.0.2.1", 2), [200, 429]);

    // By a header and by cost, before a limit that denies: the permits return.
    let by_header = ByKey::new(bucket(), 100, |head, table| {
        Some(table.hash_of(head.headers.get("x-user")?.as_bytes()))
    });
    let route = Arc::new(Concurrency::new(1));
    let taken = route.try_acquire(1);
    let judges = by_header
        .by_cost()
        .and(ByLimiter::shared(Arc::clone(&route)));
    let (mut ask, _) = limited(judges, |layer| layer.cost(|_| 2));
    let of = |user| {
        let mut named = get("/");
        let user = HeaderValue::from_static(user);
        named.headers_mut().insert("x-user", user);
        named
    };
    for _ in 0..3 {
        assert_eq!(ask(of("a")).unwrap().status(), 429);
    }
    drop(taken);
    assert_eq!(ask(of("a")).unwrap().status(), 200);
    assert_eq!(ask(of("a")).unwrap().status(), 429);
    assert_eq!(ask(of("b")).unwrap().status(), 200);
    assert_eq!(
        ask(get("/")).unwrap().status(),
        503,
        "no user: none is shared"
    );

    // Settled: the estimate is 2, and the cost 1.
    let settled = ByKey::address(bucket(), 100).by_cost();
    let (mut ask, _) = limited(settled, |layer| {
        layer.cost(|_| 2).settling(|response, estimate| {
            let cost = response.extensions.get::<ResponseCost>();
            cost.map_or(estimate, |cost| cost.0)
        })
    });
    assert_eq!(ask(from("192.0.2.1")).unwrap().status(), 200);
    assert_eq!(ask(from("192.0.2.1")).unwrap().status(), 429, "1 is left");
}

#[test]
fn jitter_is_added_and_a_function_has_the_last_word() {
    let mut seconds: Vec<u64> = (0..40)
        .map(|_| {
            let rule = Rule::new("all");
            let response = denied(rule, DenialSettings::new().jitter(9));
            response.headers()["retry-after"]
                .to_str()
                .unwrap()
                .parse()
                .unwrap()
        })
        .collect();
    seconds.sort_unstable();
    seconds.dedup();
    assert!(seconds.len() > 3, "{seconds:?}");
    assert!(
        seconds.iter().all(|seconds| (90..100).contains(seconds)),
        "{seconds:?}"
    );
    let own = DenialSettings::new().responding(|denial, mut response| {
        *response.status_mut() = StatusCode::IM_A_TEAPOT;
        *response.body_mut() = format!("{:?}", denial.retry_seconds()).into();
        response
    });
    let response = denied(Rule::new("all"), own);
    assert_eq!(
        (response.status().as_u16(), response.body().as_str()),
        (418, "Some(90)")
    );
}

#[test]
fn a_path_that_is_too_long_gets_414() {
    let (mut ask, _) = limited(policy(Rule::new("all")), |layer| layer);
    let request = Request::get("/a".repeat(20_000)).body(()).unwrap();
    assert_eq!(ask(request).unwrap().status(), 414);
}

/// The rows of the table in `docs/http.md`, but that of stores.
#[test]
fn the_guide_lists_the_status_and_the_retry_of_denials() {
    let guide = include_str!("../../docs/http.md");
    let (_, table) = guide
        .split_once("| status | when | `Retry-After` |\n")
        .unwrap();
    let rows = table
        .lines()
        .skip(1)
        .map_while(|line| line.strip_prefix("| "));
    let row = |row: &str| {
        let (_, retry) = row.trim_end_matches(" |").rsplit_once(" | ").unwrap();
        (row[..3].to_owned(), retry.to_owned())
    };
    let mut rows: Vec<_> = rows.map(row).collect();
    assert_eq!(
        rows.remove(3),
        ("503".to_owned(), "1 s".to_owned()),
        "of stores"
    );
    rows[0].1 = "3600 s".to_owned();

    let rule = |key| Rule::new("all").key(key).limit("1/h".parse().unwrap());
    let of_keys = || rule(Key::header("X-Key"));
    let with_key = |number: u32| {
        let request = Request::get("/").header("X-Key", number);
        request.body(()).unwrap()
    };
    // The last of the requests is denied.
    let denied = |rules: Vec<Rule>, requests: Vec<Request<()>>| {
        let judges = ByPolicy::new(Policy::new(rules).unwrap());
        let (mut ask, _) = limited(judges, |layer| layer);
        let replies: Vec<_> = requests
            .into_iter()
            .map(|request| ask(request).unwrap())
            .collect();
        let last = replies.last().unwrap();
        let retry = last.headers().get("retry-after");
        let retry = retry.map(|seconds| format!("{} s", seconds.to_str().unwrap()));
        (
            last.status().as_str().to_owned(),
            retry.unwrap_or_else(|| "none".to_owned()),
        )
    };
    let one = || Conditions::new().paths(["/a"]);
    let expected = [
        denied(vec![of_keys()], vec![with_key(1), with_key(1)]),
        denied(vec![of_keys().keys(1)], (0..500).map(with_key).collect()),
        denied(vec![of_keys().on_missing(OnMissing::Deny)], vec![get("/")]),
        denied(vec![rule(Key::address())], vec![get("/")]),
        denied(
            vec![of_keys().when(one()), of_keys_of_others()],
            vec![get("/a//")],
        ),
        denied(vec![of_keys()], vec![get(&"/a".repeat(300))]),
    ];
    assert_eq!(rows, expected);
}

/// A rule for all paths, with another name.
fn of_keys_of_others() -> Rule {
    Rule::new("others").limit("1/h".parse().unwrap())
}

/// The statuses of `n` requests for a target, from one address.
fn statuses<D: Decide>(
    judges: D,
    estimate: u32,
    (target, n): (&str, usize),
) -> Vec<(u16, Option<String>)> {
    let (mut ask, _) = limited(judges, |layer| {
        let denials = DenialSettings::new().status(StatusCode::SERVICE_UNAVAILABLE);
        layer
            .denials(denials)
            .peer_without_address(core::net::Ipv4Addr::LOCALHOST)
            .cost(move |_| estimate)
            .settling(|response, estimate| {
                let cost = response.extensions.get::<ResponseCost>();
                cost.map_or(estimate, |cost| cost.0)
            })
    });
    let ask = || {
        let response = ask(get(target)).unwrap();
        let retry = response.headers().get("retry-after");
        let retry = retry.map(|value| value.to_str().unwrap().to_owned());
        (response.status().as_u16(), retry)
    };
    core::iter::repeat_with(ask).take(n).collect()
}

#[test]
fn a_limiter_for_each_key_settles_takes_one_permit_and_tells_when_to_retry() {
    use portcullis_tower::ByKey;
    let by_key = || {
        let bucket = TokenBucket::new(Rate::new(10, Duration::from_hours(1)), 10);
        ByKey::address(bucket, 100)
    };
    let served = |n| vec![(200, None); n];
    let denied = |seconds: &str| vec![(503, Some(seconds.to_owned()))];
    // The estimate is 6 and the cost 1: the sixth finds 5.
    let found = statuses(by_key().by_cost(), 6, ("/200?1", 6));
    assert_eq!(found, [served(5), denied("360")].concat());
    // The estimate is 1 and the cost 4: 6, 2, and then 0 are left.
    let found = statuses(by_key().by_cost(), 1, ("/200?4", 4));
    assert_eq!(found, [served(3), denied("360")].concat());
    // One permit each, whatever the estimate and the cost are.
    let found = statuses(by_key(), 6, ("/200?9", 11));
    assert_eq!(found, [served(10), denied("360")].concat());
    // Without a settlement.
    let (mut ask, _) = limited(by_key(), |layer| {
        let denials = DenialSettings::new().status(StatusCode::SERVICE_UNAVAILABLE);
        let address = core::net::Ipv4Addr::LOCALHOST;
        layer.denials(denials).peer_without_address(address)
    });
    for _ in 0..10 {
        assert_eq!(ask(get("/")).unwrap().status(), 200);
    }
    let response = ask(get("/")).unwrap();
    assert_eq!(response.status(), 503);
    assert_eq!(response.headers()["retry-after"], "360");
}

const ROUTE: Name<&str> = Name::new("com.example.ROUTE");

/// Names the route that a limiter is of.
struct Routed<L>(L, &'static str);

impl<L: Limiter> Limiter for Routed<L> {
    fn decide(&self, ask: Ask<'_>) -> Answer {
        self.0.decide(ask)
    }
    fn give_back(&self, back: Back<'_>) -> Returned {
        self.0.give_back(back)
    }
    fn read(&self, mut read: Read<'_>) -> Reading {
        read.offer(ROUTE, || self.1);
        self.0.read(read)
    }
    fn retry(&self, denied: Denied) -> Retry {
        self.0.retry(denied)
    }
}

#[test]
fn a_denial_says_which_limiter_in_code_denied_and_why() {
    let address = core::net::Ipv4Addr::LOCALHOST;
    let denials = || {
        let denials = DenialSettings::new().body(DenialBody::Problem);
        let denials = denials
            .carrying(ROUTE)
            .carrying(REASON_PHRASE)
            .carrying(USED_SHARE);
        denials.responding(|denial, response| {
            assert_eq!(denial.metadata(RETRY_AFTER), None, "it was not asked for");
            let of_text = denial.metadata(Name::<u8>::new(ROUTE.text()));
            assert_eq!(of_text, None, "a name has a type");
            let body = str::from_utf8(response.body()).unwrap();
            let policies = body
                .split_once("policies")
                .map(|(_, names)| names.to_owned());
            let limit = denial.limit().unwrap_or("-");
            let (reason, route) = (denial.metadata(REASON_PHRASE), denial.metadata(ROUTE));
            let used = denial
                .metadata(USED_SHARE)
                .map(|used| (used.permits, used.capacity));
            let denied = denial.reason.denied();
            let told = format!("{limit} {denied:?} {reason:?} {route:?} {used:?} {policies:?}");
            response.map(|_| told.into())
        })
    };
    let bucket = |burst| TokenBucket::new(Rate::per_minute(1), burst);
    let service = || ByLimiter::new(Routed(bucket(3), "/"));
    let clients = || ByKey::address(bucket(2), 10).by_cost();
    let now = Timestamp::from_secs(1_000);
    let exhausted = Some(Denied::Exhausted { now, permits: 1 });
    let few = "Some(\"not enough permits available\")";

    let judges = service().named("service").and(clients().named("clients"));
    let (mut ask, _) = limited(judges, |layer| {
        layer.denials(denials()).peer_without_address(address)
    });
    let mut told = || ask(get("/")).unwrap().into_body();
    assert_eq!((told(), told()), (String::new(), String::new()));
    let policies = |name: &str| format!("{:?}", Some(format!("\":[\"{name}\"]}}")));
    let expected = format!(
        "clients {exhausted:?} {few} None Some((2, 2)) {}",
        policies("clients")
    );
    // The first limiter has its permit back each time.
    assert_eq!((told(), told()), (expected.clone(), expected));

    let judges = clients().and(service().named("service"));
    let (mut ask, _) = limited(judges, |layer| {
        let cost = |head: &RequestHead<'_>| head.uri.path()[1..].parse().unwrap_or(1);
        layer
            .denials(denials())
            .peer_without_address(address)
            .cost(cost)
    });
    let mut told = |target| ask(get(target)).unwrap().into_body();
    let never = Some(Denied::ExceedsCapacity {
        permits: 3,
        capacity: 2,
    });
    let found = told("/3");
    let start = format!("- {never:?} Some(");
    assert!(
        found.starts_with(&start) && found.ends_with(" None"),
        "{found}"
    );

    let (mut ask, _) = limited(service().named("service"), |layer| layer.denials(denials()));
    for _ in 0..3 {
        assert_eq!(ask(get("/")).unwrap().into_body(), "");
    }
    let expected = format!(
        "service {exhausted:?} {few} Some(\"/\") Some((3, 3)) {}",
        policies("service")
    );
    assert_eq!(ask(get("/")).unwrap().into_body(), expected);
}

#[test]
fn a_denial_of_a_policy_has_a_reason_and_the_name_of_the_limit() {
    let rules = [
        Rule::new("keys")
            .when(Conditions::new().paths(["/key"]))
            .key(Key::header("X-Key"))
            .on_missing(OnMissing::Deny)
            .limit("1/h".parse().unwrap()),
        Rule::new("clients")
            .when(Conditions::new().paths(["/client"]))
            .key(Key::address())
            .limit("1/h".parse().unwrap()),
        Rule::new("stored")
            .when(Conditions::new().paths(["/stored"]))
            .limit("1/h".parse().unwrap())
            .stored_in("elsewhere"),
        Rule::new("all")
            .limit("9/s".parse().unwrap())
            .limit("1/h".parse::<Limit>().unwrap().named("hourly"))
            .penalty(Duration::from_mins(1)),
    ];
    let denials = DenialSettings::new().responding(|denial, response| {
        let told = format!("{:?} {:?}", denial.limit(), denial.reason);
        response.map(|_| told.into())
    });
    let judges = ByPolicy::new(Policy::new(rules).unwrap());
    let (mut ask, _) = limited(judges, |layer| layer.denials(denials));
    let mut told = |target: &str| ask(get(target)).unwrap().into_body();
    let now = Timestamp::from_secs(1_000);
    let limit = Reason::Limit(Denied::Exhausted { now, permits: 1 });
    let penalty = Reason::Limit(Denied::Penalized { now, permits: 1 });
    assert_eq!(told("/"), "");
    assert_eq!(told("/"), format!("Some(\"hourly\") {limit:?}"));
    assert_eq!(told("/"), format!("Some(\"all\") {penalty:?}"));
    assert_eq!(told("/key"), "None Unidentified");
    assert_eq!(told("/client"), "None NoAddress");
    assert_eq!(told("/stored"), "None Store");
    assert_eq!(told(&"/a".repeat(20_000)), "None Path");
}

#[test]
fn a_header_may_be_set_twice() {
    let vary = HeaderName::from_static("vary");
    let denials = DenialSettings::new()
        .header(vary.clone(), HeaderValue::from_static("origin"))
        .header(vary, HeaderValue::from_static("accept"));
    let response = denied(Rule::new("all"), denials);
    let values: Vec<_> = response.headers().get_all("vary").iter().collect();
    assert_eq!(values, ["origin", "accept"]);
}

#[test]
fn the_time_until_a_retry_is_at_least_a_second() {
    use portcullis_core::{Retry, Timestamp};
    use portcullis_tower::{Denial, Reply};
    let now = Timestamp::from_secs(5);
    for (retry, seconds) in [
        (Retry::At(now), Some(1)),
        (Retry::At(Timestamp::ZERO), Some(1)),
        (Retry::After(Duration::ZERO), Some(1)),
        (Retry::After(Duration::from_nanos(1_000_000_001)), Some(2)),
        (Retry::OnRelease, None),
        (Retry::Never, None),
    ] {
        let reply = Reply::new(StatusCode::TOO_MANY_REQUESTS, "");
        assert_eq!(Denial::new(now, retry, reply).retry_seconds(), seconds);
    }
}

#[test]
fn a_limiter_before_a_limit_that_denies_has_what_it_had() {
    let bucket = Arc::new(TokenBucket::new(Rate::new(1, Duration::from_hours(1)), 5));
    let one = policy(Rule::new("one").limit("1/h".parse().unwrap()));
    let judges = ByLimiter::shared(Arc::clone(&bucket)).and(one);
    let (mut ask, clock) = limited(judges, |layer| layer);
    let statuses = [(); 3].map(|()| ask(get("/")).unwrap().status().as_u16());
    assert_eq!(statuses, [200, 429, 429]);
    assert_eq!(bucket.available_at(portcullis_core::Clock::now(clock)), 4);
}

/// The host is that of the target, or else of the header.
#[test]
fn rules_are_for_methods_and_hosts() {
    let uploads = Conditions::new().methods(["PUT"]).hosts(["a.example"]);
    let rule = Rule::new("uploads").when(uploads);
    let (mut ask, _) = limited(policy(rule.limit("1/h".parse().unwrap())), |layer| layer);
    let mut status = |method: &str, target: &str, host: &str| {
        let request = Request::builder().method(method).uri(target);
        let request = request.header("host", host).body(()).unwrap();
        ask(request).unwrap().status().as_u16()
    };
    assert_eq!(status("PUT", "/", "a.example:80"), 200);
    assert_eq!(status("PUT", "/", "a.example"), 429);
    assert_eq!(status("GET", "/", "a.example"), 200);
    assert_eq!(status("PUT", "/", "b.example"), 200);
    assert_eq!(status("PUT", "http://a.example/", "b.example"), 429);
}

#[cfg(feature = "fields")]
#[test]
fn a_response_states_units_and_the_time_in_which_all_permits_return() {
    use portcullis_policy::Kind;
    use portcullis_tower::fields::Generation;
    for (kind, limit, expected) in [
        (Kind::Request, "10/s".parse().unwrap(), r#""all";q=10;w=1"#),
        (
            Kind::Request,
            "10/s".parse::<Limit>().unwrap().burst(50),
            r#""all";q=50;w=5"#,
        ),
        (
            Kind::Egress,
            "10/s".parse().unwrap(),
            r#""all";q=10;w=1;qu="content-bytes""#,
        ),
        (
            Kind::Concurrency,
            Limit::at_once(3),
            r#""all";q=3;qu="concurrent-requests""#,
        ),
    ] {
        let rule = Rule::new("all").when(Conditions::new().kind(kind));
        let (mut ask, _) = limited(policy(rule.limit(limit)).kind(kind), |layer| {
            layer.fields(Generation::Draft11)
        });
        let response = ask(get("/")).unwrap();
        assert_eq!(response.headers()["ratelimit-policy"], expected);
    }
}

#[cfg(feature = "fields")]
#[test]
fn a_response_keeps_fields_of_its_own() {
    use portcullis_tower::fields::Generation;
    let layer = RateLimitLayer::builder(policy(Rule::new("all").limit("9/s".parse().unwrap())))
        .fields(Generation::Draft11)
        .build();
    let mut service = layer.layer(tower::service_fn(|_: Request<()>| {
        let mut response = Response::new(Empty);
        let own = HeaderValue::from_static("own");
        response.headers_mut().insert("ratelimit", own);
        core::future::ready(Ok::<_, Infallible>(response))
    }));
    let mut context = Context::from_waker(Waker::noop());
    let Poll::Ready(Ok(response)) = pin!(service.call(get("/"))).poll(&mut context) else {
        panic!("a response");
    };
    assert_eq!(response.headers()["ratelimit"], "own");
    assert_eq!(response.headers()["ratelimit-policy"], r#""all";q=9;w=1"#);
}

/// A function of the settings that panics takes its request along, and nothing else: the permits of
/// the request return, and the next one is judged.
#[test]
fn a_panic_in_a_function_of_the_settings_leaves_nothing_behind() {
    use core::panic::AssertUnwindSafe;
    use std::panic::catch_unwind;

    type Build = fn(
        RateLimitLayerBuilder<ByLimiter<Concurrency>, &'static ManualClock>,
    ) -> RateLimitLayerBuilder<ByLimiter<Concurrency>, &'static ManualClock>;
    let builds: [Build; 4] = [
        |layer| {
            layer.passing(|head| {
                assert!(head.uri.path() != "/500", "as the test wants");
                false
            })
        },
        |layer| {
            layer.cost(|head| {
                assert!(head.uri.path() != "/500", "as the test wants");
                1
            })
        },
        |layer| {
            layer.settling(|response, estimate| {
                assert!(response.status != 500, "as the test wants");
                estimate
            })
        },
        |layer| {
            layer.counting(|response| {
                assert!(response.status != 500, "as the test wants");
                true
            })
        },
    ];
    for build in builds {
        let limit = Arc::new(Concurrency::new(2));
        let (mut ask, _) = limited(ByLimiter::shared(Arc::clone(&limit)), build);
        for _ in 0..3 {
            let panicked = catch_unwind(AssertUnwindSafe(|| ask(get("/500")).is_some()));
            assert!(panicked.is_err());
            assert_eq!(limit.in_use(), 0);
            assert_eq!(ask(get("/200")).unwrap().status(), 200);
            assert_eq!(limit.in_use(), 0);
        }
    }
    // The function that answers: of a request that is denied.
    let denials = DenialSettings::new().responding(|_, _| panic!("as the test wants"));
    let limit = Arc::new(Concurrency::new(1));
    let (mut ask, _) = limited(ByLimiter::shared(Arc::clone(&limit)), |layer| {
        layer.denials(denials)
    });
    let held =
        portcullis_core::LimiterExt::try_acquire_at(&*limit, portcullis_core::Timestamp::ZERO, 1);
    assert!(catch_unwind(AssertUnwindSafe(|| ask(get("/")).is_some())).is_err());
    drop(held);
    assert_eq!(limit.in_use(), 0);
    assert_eq!(ask(get("/")).unwrap().status(), 200);
    // The function that finds the key, before anything was taken.
    let bucket = TokenBucket::new(Rate::per_second(1), 1);
    let keys = ByKey::new(bucket, 10, |head, table| {
        assert!(head.uri.path() != "/500", "as the test wants");
        Some(portcullis_core::queue::Keys::hash_of(table, &0))
    });
    let (mut ask, _) = limited(keys, |layer| layer);
    assert!(catch_unwind(AssertUnwindSafe(|| ask(get("/500")).is_some())).is_err());
    assert_eq!(ask(get("/")).unwrap().status(), 200);
    assert_eq!(ask(get("/")).unwrap().status(), 429);
}

/// What an outer layer knows of a request.
#[derive(Clone)]
struct User(&'static str, &'static str);

#[test]
fn rules_see_the_properties_and_the_tier_that_the_program_finds() {
    fn user<'r>(head: &RequestHead<'r>, name: &str) -> Option<&'r str> {
        let user = head.extensions.get().map(|User(name, _)| *name);
        user.filter(|_| name == "user")
    }
    fn tier<'r>(head: &RequestHead<'r>) -> &'r str {
        head.extensions.get().map_or("", |User(_, tier)| *tier)
    }
    fn statuses(judges: impl Decide) -> [u16; 4] {
        let (mut ask, _) = limited(judges, |layer| layer);
        let users = [
            ("ann", "free"),
            ("ann", "free"),
            ("ann", "paid"),
            ("bob", "free"),
        ];
        users.map(|(name, tier)| {
            let mut request = get("/200");
            request.extensions_mut().insert(User(name, tier));
            ask(request).unwrap().status().as_u16()
        })
    }
    let rules = || {
        let rule = Rule::new("users").when(Conditions::new().tiers(["free"]));
        let rule = rule
            .key(Key::property("user"))
            .limit("1/h".parse().unwrap());
        Policy::new([rule]).unwrap()
    };
    let fixed = ByPolicy::new(rules()).properties(user).tier(tier);
    assert_eq!(statuses(fixed), [200, 429, 200, 200]);
    assert_eq!(statuses(ByPolicy::new(rules())), [200; 4]);
    #[cfg(feature = "live")]
    {
        use portcullis_policy::LivePolicy;
        use portcullis_tower::ByLivePolicy;
        let live = ByLivePolicy::new(LivePolicy::new(rules()))
            .properties(user)
            .tier(tier);
        assert_eq!(statuses(live), [200, 429, 200, 200]);
    }
}
