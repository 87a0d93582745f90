//! Requests are matched and decided without an allocation, whatever their text is.

#[path = "../../core/tests/support/allocations.rs"]
mod allocations;

use core::hint::black_box;
use core::ops::ControlFlow;
use core::time::Duration;

use allocations::allocations;
use portcullis_core::Timestamp;
use portcullis_policy::{
    Algorithm, Conditions, Key, Limit, Matcher, PathReading, PathRules, Policy, Request, Rule,
};

#[test]
fn an_allocation_is_counted() {
    assert_eq!(allocations(|| drop(black_box(Box::new(1)))), 1);
}

#[test]
fn a_match_allocates_nothing() {
    let conditions = [
        Conditions::new()
            .paths(["/a/**/b/*/**/c", "/**/x/**/y/**"])
            .methods(["GET"]),
        Conditions::new()
            .hosts(["*.example.com", "10.0.0.0/8"])
            .property("region", ["eu"]),
        Conditions::new().paths(["/**"]).tiers(["free"]),
    ];
    let resolved = PathRules::new().reading(PathReading::Resolved);
    let matcher = Matcher::new(&conditions, resolved.ignoring_case()).unwrap();
    let deep = "/a".repeat(256);
    let long = format!("/%61{}", "b".repeat(8_000));
    let paths = [
        "",
        "/A/%62/../b/q//c?x",
        "/a/b/q/c/x/y",
        "%",
        "/a/b/c",
        &deep,
        &long,
    ];
    let mut found = 0;
    let count = allocations(|| {
        for path in paths {
            for host in ["API.Example.com:443", "[::1]:80", "a.b.c.d.e.f", ""] {
                let request = Request::new("GET", path)
                    .host(host)
                    .address("10.1.2.3".parse().unwrap())
                    .properties(&[("Region", "eu")])
                    .tier("free");
                let visited = matcher.visit(&request, |_| {
                    found += 1;
                    ControlFlow::Continue(())
                });
                black_box(visited).unwrap();
            }
        }
    });
    assert!(found > 0);
    assert_eq!(count, 0);
}

#[test]
fn a_decision_allocates_nothing_whatever_it_is() {
    let minute = Duration::from_mins(1);
    let of = |algorithm| Limit::per(3, minute).algorithm_of(algorithm);
    let policy = Policy::new([
        Rule::new("shadow")
            .shadow()
            .limit(Limit::at_once(2))
            .key(Key::path()),
        Rule::new("exempt")
            .when(Conditions::new().methods(["POST"]))
            .limit(Limit::per(1, minute))
            .exempt_header("X-Client", ["client 3"]),
        Rule::new("overridden")
            .when(Conditions::new().methods(["PUT"]))
            .key(Key::header("X-Client"))
            .limit(Limit::per(1, minute))
            .override_key(["client 3"], [Limit::per(2, minute), Limit::at_once(1)]),
        Rule::new("all")
            .key(
                Key::address()
                    .and(Key::first_header(["X-Id", "X-Client"]))
                    .and(Key::path()),
            )
            .limit(Limit::per(2, minute))
            .limit(of(Algorithm::FixedWindow))
            .limit(of(Algorithm::SlidingWindow { segments: 6 }))
            .limit(of(Algorithm::WindowFromRequest).wait(minute))
            .limit(Limit::at_once(5))
            .hold(minute)
            .penalty(minute),
    ])
    .unwrap();
    let clients: Vec<String> = (0..9).map(|client| format!("client {client}")).collect();
    let (mut allowed, mut denied) = (0, 0);
    let count = allocations(|| {
        for second in 0..50 {
            let now = Timestamp::from_secs(second);
            for client in &clients {
                for (method, path) in [
                    ("GET", "/a/%2E/b"),
                    ("GET", "//a/%61/b/"),
                    ("POST", "/a"),
                    ("PUT", "/"),
                    ("GET", "%"),
                ] {
                    let headers = [("x-client", client)];
                    let request = Request::new(method, path)
                        .address("2001:db8::1".parse().unwrap())
                        .headers(&headers);
                    let decision = black_box(policy.decide_at(now, &request));
                    if decision.is_allowed() {
                        allowed += 1;
                    } else {
                        denied += 1;
                    }
                    black_box((
                        decision.status(),
                        decision.retry(),
                        decision.shadow_denied(),
                    ));
                    drop(decision);
                    let decision = black_box(policy.decide_explained_at(now, &request));
                    black_box((decision.decided_by(), decision.retry()));
                    black_box(decision.details().map(|each| each.reset_seconds()).max());
                    let held = black_box(policy.hold_at(now, &request));
                    black_box(held.settle_at(now, u32::from(client.ends_with('1')) * 2));
                }
            }
        }
    });
    assert!(allowed > 0 && denied > 0);
    assert_eq!(count, 0);
}

/// Also for a decision by an older policy, which counts in the newest one.
#[cfg(feature = "live")]
#[test]
fn a_decision_by_a_live_policy_allocates_nothing() {
    use portcullis_policy::LivePolicy;
    let minute = Duration::from_mins(1);
    let policy = |count| {
        let window = Limit::per(count, minute).algorithm_of(Algorithm::FixedWindow);
        let rule = Rule::new("all").key(Key::path());
        let rule = rule.limit(Limit::per(count, minute)).limit(window);
        Policy::new([rule.limit(Limit::at_once(3))]).unwrap()
    };
    let live = LivePolicy::new(policy(30));
    // The first load of a thread allocates.
    let old = live.load();
    let mut reader = live.reader();
    let paths = ["/a", "/b", "/c"];
    let (mut allowed, mut denied) = (0, 0);
    for count in [40, 20, 30] {
        let now = Timestamp::from_secs(count);
        live.replace_at(now, policy(count));
        let count = allocations(|| {
            for path in paths.into_iter().cycle().take(60) {
                let request = Request::new("GET", path);
                let loaded = live.load();
                for policy in [&old, &loaded, reader.policy()] {
                    let decision = black_box(policy.decide_at(now, &request));
                    if decision.is_allowed() {
                        allowed += 1;
                    } else {
                        denied += 1;
                    }
                    black_box((decision.status(), decision.retry()));
                }
            }
        });
        assert_eq!(count, 0);
    }
    assert!(allowed > 0 && denied > 0);
}

#[cfg(feature = "queue")]
#[test]
fn a_request_that_waits_allocates_nothing() {
    use core::future::Future;
    use core::pin::pin;
    use core::task::{Context, Waker};

    let rule = Rule::new("all").limit(Limit::at_once(2).queue(1));
    let rule = rule
        .limit(Limit::per(9, Duration::from_hours(1)).queue(1))
        .limit(Limit::per(99, Duration::from_hours(24)));
    let policy = Policy::new([rule]).unwrap();
    let request = Request::new("GET", "/");
    let mut context = Context::from_waker(Waker::noop());
    let mut size = 0;
    let count = allocations(|| {
        let one = pin!(policy.acquire(&request.cost(2))).poll(&mut context);
        assert!(one.is_ready(), "granted");
        let mut waits = pin!(policy.acquire(&request));
        size = size_of_val(&*waits);
        assert!(waits.as_mut().poll(&mut context).is_pending());
        let full = pin!(policy.acquire(&request)).poll(&mut context);
        assert!(full.is_ready(), "denied");
        drop(one);
        assert!(waits.as_mut().poll(&mut context).is_ready());
        let _cancelled = policy.acquire(&request);
        assert!(!black_box(policy.decide_at(policy.now(), &request.cost(3))).is_allowed());
    });
    assert_eq!(count, 0);
    assert!(size <= 640, "a future takes {size} bytes");
}

#[cfg(feature = "queue")]
#[test]
fn a_thread_that_has_waited_before_waits_without_an_allocation() {
    use portcullis_policy::QueueEnd;

    let policy = Policy::new([Rule::new("all").limit(Limit::at_once(1).queue(1))]).unwrap();
    let request = Request::new("GET", "/");
    let _held = policy.blocking_acquire(&request);
    let wait = || {
        let late = policy
            .acquire(&request)
            .within(Duration::from_millis(1))
            .block();
        assert_eq!(late.end(), Some(QueueEnd::Late));
    };
    assert!(allocations(wait) > 0, "the first time");
    assert_eq!(allocations(wait), 0);
}
