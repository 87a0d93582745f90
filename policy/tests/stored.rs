//! Rules whose limits have their state in a counter store.

use core::future::Future;
use core::pin::pin;
use core::sync::atomic::Ordering::SeqCst;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::sync::Arc;

use portcullis_core::{Clock, ManualClock, Retry, Timestamp};
#[cfg(target_os = "linux")]
use portcullis_counters::SharedCounters;
use portcullis_counters::{
    CacheSettings, CachedStore, Charge, CounterLimit, CounterLimitError, CounterStore,
    MemoryCounters, StoreError, SyncChannel,
};
use portcullis_policy::{
    Algorithm, Conditions, Considered, Key, Kind, Limit, OnMissing, Outcome, Policy, Request, Rule,
    StoredDecision, StoredLimit, Stores, Threshold,
};
#[cfg(target_os = "linux")]
use portcullis_shm::SharedFile;

#[path = "../../counters/tests/support/gate.rs"]
mod gate;

use gate::Gate;

#[derive(Clone, Default)]
struct Time(Arc<ManualClock>);

impl Clock for Time {
    fn now(&self) -> Timestamp {
        self.0.now()
    }
}

const NOW: Timestamp = Timestamp::from_secs(1);

/// A clock that stands still.
struct Fixed;

impl Clock for Fixed {
    fn now(&self) -> Timestamp {
        NOW
    }
}

/// The output of a future that is ready at once.
#[track_caller]
fn block_on<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("waits"),
    }
}

#[track_caller]
fn decide<'p>(policy: &'p Policy, request: &Request<'_>) -> StoredDecision<'p> {
    block_on(policy.decide_stored(Fixed, request)).unwrap()
}

/// The names and the indexes of limits that a store was asked for.
fn asked<'p>(
    limits: impl Iterator<Item = StoredLimit<'p>>,
) -> impl Iterator<Item = (&'p str, usize, u64)> {
    limits.map(|each| (each.rule.name(), each.index, each.limit.count()))
}

fn limit(text: &str) -> Limit {
    text.parse().unwrap()
}

fn memory(time: &Time) -> Arc<MemoryCounters<Time>> {
    Arc::new(MemoryCounters::new(1_000, time.clone()))
}

fn policy(rules: impl IntoIterator<Item = Rule>, store: &Arc<MemoryCounters<Time>>) -> Policy {
    let stores = Stores::new().with("shared", Arc::clone(store) as Arc<dyn CounterStore>);
    Policy::new(rules).unwrap().with_stores(stores).unwrap()
}

/// As in two processes.
#[test]
fn policies_with_one_store_share_the_limits_of_each_key() {
    let time = Time::default();
    let store = memory(&time);
    let rules = || {
        [Rule::new("tenants")
            .key(Key::header("X-Tenant").and(Key::address()))
            .limit(limit("10/s"))
            .limit(limit("15/d").algorithm_of(Algorithm::FixedWindow))
            .override_key(["gold", "192.0.2.1"], [limit("100/s")])
            .override_key(["free", "192.0.2.1"], [])
            .stored_in("shared")]
    };
    let policies = [policy(rules(), &store), policy(rules(), &store)];
    let granted = |tenant: &str, address: &str, n: usize| {
        let headers = [("X-Tenant", tenant)];
        let request = Request::new("GET", "/").headers(&headers);
        let request = request.address(address.parse().unwrap());
        let all = (0..n).filter(|nth| decide(&policies[nth % 2], &request).is_allowed());
        all.count()
    };
    assert_eq!(granted("a", "192.0.2.1", 30), 10);
    assert_eq!(granted("b", "192.0.2.1", 30), 10, "another key");
    assert_eq!(granted("a", "192.0.2.2", 30), 10, "another key");
    assert_eq!(granted("gold", "192.0.2.1", 150), 100);
    assert_eq!(granted("free", "192.0.2.1", 150), 150, "without a limit");
    time.0.advance(Duration::from_secs(1));
    assert_eq!(granted("a", "192.0.2.1", 30), 5, "the limit of a day");
}

#[test]
fn a_decision_tells_what_the_store_has_left() {
    let time = Time::default();
    let rule = Rule::new("all").limit(limit("10/s")).limit(limit("4/m"));
    let policy = policy([rule.stored_in("shared")], &memory(&time));
    let request = Request::new("GET", "/").cost(3);
    let allowed = decide(&policy, &request);
    assert_eq!(allowed.decision().outcome(), Outcome::Allowed);
    assert_eq!(allowed.decision().rule().unwrap().name(), "all");
    let left = allowed.in_store().unwrap().left();
    assert_eq!((left[0].available, left[1].available), (7, 1));
    assert_eq!(allowed.limits().count(), 2);
    let denied = decide(&policy, &request);
    assert!(matches!(
        denied.decision().outcome(),
        Outcome::Denied { limit: Some(1), .. }
    ));
    assert_eq!(denied.retry(), Some(Retry::After(Duration::from_secs(30))));
    // All or nothing.
    assert_eq!(denied.in_store().unwrap().left()[0].available, 7);
}

#[test]
fn rules_with_and_without_a_store_are_asked_in_the_order_of_their_priority() {
    let time = Time::default();
    let rules = [
        Rule::new("local")
            .when(Conditions::new().paths(["/local"]))
            .limit(limit("1/h")),
        Rule::new("internal")
            .priority(1)
            .key(Key::header("X-Key"))
            .on_missing(OnMissing::Skip)
            .limit(limit("2/h"))
            .exempt_header("X-Key", ["root"])
            .stored_in("shared"),
        Rule::new("strict")
            .priority(2)
            .key(Key::header("X-Tenant"))
            .on_missing(OnMissing::Deny)
            .limit(limit("3/h"))
            .stored_in("shared"),
    ];
    let policy = policy(rules, &memory(&time));
    let outcome = |request: &Request<'_>| {
        let decision = decide(&policy, request);
        let rule = decision.decision().rule().map(Rule::name);
        (rule, decision.is_allowed(), decision.in_store().is_some())
    };
    let local = Request::new("GET", "/local");
    assert_eq!(outcome(&local), (Some("local"), true, false));
    assert_eq!(outcome(&local), (Some("local"), false, false));
    assert!(decide(&policy, &local).retry().is_some());
    let other = Request::new("GET", "/");
    let root = [("X-Key", "root")];
    assert_eq!(
        outcome(&other.headers(&root)),
        (Some("internal"), true, false)
    );
    let key = [("X-Key", "k")];
    for is_allowed in [true, true, false] {
        let expected = (Some("internal"), is_allowed, true);
        assert_eq!(outcome(&other.headers(&key)), expected);
    }
    assert_eq!(outcome(&other), (Some("strict"), false, false));
    let decision = decide(&policy, &other);
    assert_eq!(decision.decision().outcome(), Outcome::Unidentified);
    let tenant = [("X-Tenant", "t")];
    assert_eq!(
        outcome(&other.headers(&tenant)),
        (Some("strict"), true, true)
    );
}

#[test]
fn shadow_rules_with_a_store_are_asked_and_deny_nothing() {
    let time = Time::default();
    let rules = [
        Rule::new("shadow")
            .shadow()
            .limit(limit("2/h"))
            .stored_in("shared"),
        Rule::new("later").shadow().limit(limit("1/h")),
        Rule::new("all")
            .priority(1)
            .limit(limit("4/h"))
            .stored_in("shared"),
    ];
    let policy = policy(rules, &memory(&time));
    let seen: Vec<_> = (0..5)
        .map(|_| {
            let decision = decide(&policy, &Request::new("GET", "/"));
            let shadow = decision.decision().shadow_denied().map(Rule::name);
            let by = decision.decision().shadow_denied_by();
            (decision.is_allowed(), shadow, by.map(ToString::to_string))
        })
        .collect();
    let by = |limit: &str| Some(limit.to_owned());
    let expected = [
        (true, None, None),
        (true, Some("later"), by("1/h")),
        (true, Some("shadow"), by("2/h")),
        (true, Some("shadow"), by("2/h")),
        (false, Some("shadow"), by("2/h")),
    ];
    assert_eq!(seen, expected);
}

#[test]
fn a_shadow_rule_with_a_store_is_not_asked_for_what_another_rule_denies_here() {
    let time = Time::default();
    let shadow = Rule::new("shadow").limit(limit("2/h"));
    let rules = [
        shadow.shadow().continuing().stored_in("shared"),
        Rule::new("all").limit(limit("1/h")),
    ];
    let policy = policy(rules, &memory(&time));
    let request = Request::new("GET", "/");
    let seen = [(); 4].map(|()| {
        let decision = decide(&policy, &request);
        (
            decision.is_allowed(),
            decision.decision().shadow_denied().is_some(),
        )
    });
    assert_eq!(
        seen,
        [
            (true, false),
            (false, false),
            (false, false),
            (false, false)
        ]
    );
}

#[test]
fn without_its_store_a_rule_denies() {
    let rule = || Rule::new("all").limit(limit("5/s")).stored_in("shared");
    let policy = Policy::new([rule()]).unwrap();
    let request = Request::new("GET", "/");
    let decision = policy.decide_at(NOW, &request);
    assert!(!decision.is_allowed());
    assert_eq!(decision.outcome(), Outcome::Stored);
    assert!(!policy.hold_at(NOW, &request).is_allowed());
    let missing = block_on(policy.decide_stored(Fixed, &request));
    assert!(matches!(missing, Err(StoreError::Refused(why)) if why.contains("`shared`")));
    let explained = policy.explain_at(NOW, &request).unwrap();
    assert!(matches!(
        explained[0].considered,
        Considered::Stored { store: "shared", limits } if limits.len() == 1
    ));
    assert!(explained[0].decides);
    // A store without an answer.
    let gate = Gate::new(Time::default());
    gate.fails.store(true, SeqCst);
    let stores = Stores::new().with("shared", gate);
    let policy = Policy::new([rule()]).unwrap().with_stores(stores).unwrap();
    let failed = block_on(policy.decide_stored(Fixed, &request));
    assert!(matches!(failed, Err(StoreError::Unavailable(_))));
    // That of a shadow rule decides nothing.
    let policy = Policy::new([rule().shadow()]).unwrap();
    assert!(decide(&policy, &request).is_allowed());
}

#[test]
fn keys_are_apart() {
    let time = Time::default();
    let store = memory(&time);
    let rule = |name: &str, key: Key| Rule::new(name).key(key).limit(limit("1/h"));
    let paths = policy(
        [rule("a", Key::path().and(Key::header("X"))).stored_in("shared")],
        &store,
    );
    let mut ids = 0;
    for (path, header) in [
        ("/", ""),
        ("/", "a"),
        ("/a", ""),
        ("/a", "b"),
        ("/a/b", ""),
        ("/a|b", ""),
        ("/a%7Cb", "!"),
        ("/a", "%2F"),
        ("/a", "/"),
        ("/a}", "{"),
        ("/", "ä"),
    ] {
        let headers = [("X", header)];
        let request = Request::new("GET", path).headers(&headers);
        ids += 1;
        assert!(decide(&paths, &request).is_allowed(), "{path} {header}");
        assert!(!decide(&paths, &request).is_allowed(), "{path} {header}");
    }
    assert_eq!(store.ids(), ids);
    // Text of one part cannot pass for the end of it, or for an escape.
    let parts = Key::header("X").and(Key::header("Y"));
    let parts = policy([rule("parts", parts).stored_in("shared")], &store);
    for (x, y) in [("x|y", "z"), ("x", "y|z"), ("ä", ""), ("%C3%A4", "")] {
        let headers = [("X", x), ("Y", y)];
        let request = Request::new("GET", "/").headers(&headers);
        assert!(decide(&parts, &request).is_allowed(), "{x} {y}");
    }
    // Another rule has other ids, and its name cannot pass for a key.
    let others = policy(
        ["b", "a:", "a}"].map(|name| {
            let only = Conditions::new().tiers([name]);
            rule(name, Key::header("X")).when(only).stored_in("shared")
        }),
        &store,
    );
    for name in ["b", "a:", "a}"] {
        assert!(decide(&others, &Request::new("GET", "/").tier(name)).is_allowed());
    }
}

#[test]
fn a_long_key_is_one_of_its_own_and_its_id_has_its_digest() {
    let store = memory(&Time::default());
    let key = Key::header("Tenant").and(Key::header("Token"));
    let rules = [Rule::new("a").key(key).limit(limit("1/h"))];
    let policy = policy(rules.map(|rule| rule.stored_in("shared")), &store);
    let is_allowed = |tenant: &str, token: &str| {
        let headers = [("Tenant", tenant), ("Token", token)];
        decide(&policy, &Request::new("GET", "/").headers(&headers)).is_allowed()
    };
    let long = "x".repeat(10_000);
    let tokens = [1_020, 1_021, 1_022, 9_999, 10_000].map(|length| &long[..length]);
    let others = [format!("{}y", tokens[3]), format!("y{}", tokens[3])];
    for token in tokens
        .into_iter()
        .chain(others.iter().map(|token| &**token))
    {
        for tenant in ["t", "u", "tx"] {
            assert!(is_allowed(tenant, token), "{tenant} {}", token.len());
            assert!(!is_allowed(tenant, token), "{tenant} {}", token.len());
        }
    }
    assert_eq!(store.ids(), 21);
    // Of the bytes of both header fields, each with the end of a part, as `sha256sum` prints it.
    let id = "{a:#23173c602ccb98492dbea0a266e267f04be74a0888579121aae90295921a4075}0";
    let limit = CounterLimit::try_from(&limit("1/h")).unwrap();
    let again = block_on(store.take(&[Charge::new(id, &limit, 1)])).unwrap();
    assert!(!again.is_allowed());
    // No key passes for its digest.
    assert!(is_allowed("", &id[3..id.len() - 2]));
}

#[test]
fn settings_that_a_store_does_not_have_are_refused() {
    let stored = || Rule::new("a").stored_in("shared");
    let refused = |rule: Rule| {
        let errors = Policy::new([rule]).unwrap_err();
        errors
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("\n")
    };
    let five = || stored().limit(limit("5/s"));
    for (rule, expected) in [
        (stored(), "store: has no effect without a limit"),
        (
            five().penalty(Duration::from_secs(1)),
            "penalty: is kept in this process",
        ),
        (
            five().hold(Duration::from_secs(1)),
            "hold: is kept in this process",
        ),
        (
            stored().limit(Limit::at_once(1)),
            "limits[0]: permits at once cannot be",
        ),
        (
            stored().limit(limit("5/s").queue(3)),
            "limits[0]: queue: not supported",
        ),
        (
            five()
                .override_key(["x"], [Limit::at_once(1)])
                .key(Key::tier()),
            "overrides[0].limits[0]: permits at once cannot be",
        ),
        (
            five().when(Conditions::new().kind(Kind::Ingress)),
            "store: not for rules of this kind",
        ),
        (
            Rule::new("a").synced(),
            "sync: has no effect without a store",
        ),
    ] {
        let errors = refused(rule);
        let expected = format!("rule `a`: {expected}");
        assert!(
            errors.starts_with(&expected) && !errors.contains('\n'),
            "{errors}"
        );
    }
    // Thresholds are apart from limits.
    let threshold = Threshold::new(5, Duration::from_secs(1), "captcha");
    assert!(Policy::new([five().threshold(threshold)]).is_ok());
    // Tables are not needed.
    let large = five().key(Key::address()).keys(20_000_000);
    assert_eq!(Policy::new([large]).unwrap().table_bytes(), 0);
}

/// A channel that is never used.
struct Silent;

impl SyncChannel for Silent {
    fn publish(&self, _: &str) {}
    fn subscribe(&self, _: Box<dyn Fn(&str) -> bool + Send + Sync>) {}
}

#[test]
fn stores_are_checked_when_a_policy_gets_them() {
    let time = Time::default();
    let rules = || {
        let rule = |name| Rule::new(name).limit(limit("5/s"));
        [
            rule("a").stored_in("shared").synced(),
            rule("b").stored_in("redis"),
            rule("c"),
        ]
    };
    let stores = Stores::new().with("shared", memory(&time));
    let with = |stores: &Stores| {
        let result = Policy::new(rules()).unwrap().with_stores(stores.clone());
        let errors = result.err().unwrap_or_default();
        errors.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(
        with(&Stores::new()),
        [
            "rule `a`: store: `shared` is not known: the program has no stores",
            "rule `b`: store: `redis` is not known: the program has no stores",
        ]
    );
    assert_eq!(
        with(&stores),
        [
            "rule `a`: sync: the store `shared` has no channel to other instances",
            "rule `b`: store: `redis` is not known: expected one of shared",
        ]
    );
    let cached = CachedStore::new(memory(&time), time.clone(), CacheSettings::new());
    let stores = stores.with("shared", Arc::new(cached.with_channel(Arc::new(Silent))));
    let stores = stores.with("redis", memory(&time));
    assert!(with(&stores).is_empty());
    assert_eq!(format!("{stores:?}"), r#"{"redis", "shared"}"#);
}

#[cfg(feature = "live")]
#[test]
fn a_live_policy_keeps_its_stores_and_refuses_unknown_ones() {
    use portcullis_policy::{LivePolicy, RefreshError, Sourced};

    let time = Time::default();
    let store = memory(&time);
    let rule = |text: &str, store: &str| Rule::new("all").limit(limit(text)).stored_in(store);
    let live = LivePolicy::new(policy([rule("2/h", "shared")], &store));
    let granted = |live: &LivePolicy| {
        let policy = live.load();
        let request = Request::new("GET", "/");
        let decide = || decide(&policy, &request).is_allowed();
        (0..10).filter(|_| decide()).count()
    };
    assert_eq!(granted(&live), 2);
    let refresh = |text: &'static str, name: &'static str| {
        let mut source = |_: Option<&str>| -> Result<_, Vec<portcullis_policy::RuleError>> {
            Ok(Some(Sourced::new(Policy::new([rule(text, name)])?)))
        };
        live.refresh_at(NOW, &mut source)
    };
    // What was taken stays taken, and a raised limit counts at once.
    let change = refresh("5/h", "shared").unwrap().unwrap();
    assert!(change.kept().eq(["all"]));
    assert_eq!(granted(&live), 3);
    let Err(RefreshError::Stores(errors)) = refresh("9/h", "shard") else {
        panic!("an unknown store")
    };
    assert_eq!(
        RefreshError::<std::io::Error>::Stores(errors).to_string(),
        "rule `all`: store: `shard` is not known: did you mean `shared`?"
    );
    assert_eq!(granted(&live), 0, "the policy before is in force");

    // From a store to tables of this process: another state.
    let mut source = |_: Option<&str>| -> Result<_, Vec<portcullis_policy::RuleError>> {
        let rule = Rule::new("all").limit(limit("4/h"));
        Ok(Some(Sourced::new(Policy::new([rule])?)))
    };
    let change = live.refresh_at(NOW, &mut source).unwrap().unwrap();
    assert!(change.begun().eq(["all"]));
    assert_eq!(granted(&live), 4);
}

#[cfg(feature = "queue")]
#[test]
fn what_a_request_asks_is_what_decide_stored_asks() {
    use portcullis_counters::StoreDecision;
    use portcullis_policy::Acquired;

    let local = Conditions::new().paths(["/local"]);
    let rules = || {
        [
            Rule::new("strict")
                .limit(limit("1/h"))
                .shadow()
                .stored_in("shared"),
            Rule::new("local").when(local.clone()).limit(limit("2/h")),
            Rule::new("all")
                .key(Key::header("X-Key"))
                .limit(limit("3/h"))
                .override_key(["gold"], [limit("9/h"), limit("2/h")])
                .stored_in("shared"),
        ]
    };
    let time = Time::default();
    let (by_time, by_queue) = (
        policy(rules(), &memory(&time)),
        policy(rules(), &memory(&time)),
    );
    let keys = ["a", "gold"].map(|key| [("X-Key", key)]);
    let requests = [("/", 0), ("/local", 0), ("/", 1), ("/", 0), ("/local", 1)];
    for (path, key) in requests.into_iter().cycle().take(25) {
        let request = Request::new("GET", path).headers(&keys[key]);
        let expected = decide(&by_time, &request);
        let Acquired::Asks(asking) = by_queue.acquire_stored(&request) else {
            panic!("the shadow rule has a store")
        };
        let decided = block_on(asking.ask(&by_queue, |_| false)).unwrap();
        decided.with(|decision| {
            assert_eq!(decision.is_allowed(), expected.is_allowed());
            assert_eq!(decision.rule_index(), expected.decision().rule_index());
            let is_overridden = expected.decision().is_overridden();
            assert_eq!(decision.is_overridden(), is_overridden);
            let shadow = |by: Option<&Rule>| by.map(|rule| rule.name().to_owned());
            assert_eq!(
                shadow(decision.shadow_denied()),
                shadow(expected.decision().shadow_denied())
            );
        });
        let left = |decision: &StoreDecision| (decision.denied_by(), decision.left().to_vec());
        assert_eq!(decided.in_store().map(left), expected.in_store().map(left));
        if expected.in_store().is_some() {
            assert!(asked(decided.limits()).eq(asked(expected.limits())));
            assert_eq!(decided.retry(), expected.retry());
            let is_denied = expected.in_store().unwrap().denied_by().is_some();
            let is_overridden = expected.decision().is_overridden();
            assert_eq!(is_overridden, is_denied && key == 1);
        } else {
            assert_eq!(decided.limits().count(), 0);
            assert_eq!(decided.retry().is_some(), expected.retry().is_some());
        }
    }
    // Without a rule that has a store, nothing is asked.
    let alone = Policy::new([Rule::new("all").limit(limit("1/h"))]).unwrap();
    let request = Request::new("GET", "/");
    assert!(matches!(
        alone.acquire_stored(&request),
        Acquired::Decided(decision) if decision.is_allowed()
    ));
}

#[test]
fn a_limit_of_0_in_a_store_denies_every_request() {
    let time = Time::default();
    let store = memory(&time);
    for algorithm in [
        Algorithm::TokenBucket,
        Algorithm::FixedWindow,
        Algorithm::SlidingWindow { segments: 4 },
    ] {
        let closed = limit("0/m").algorithm_of(algorithm);
        let rule = Rule::new("tenants").key(Key::tier()).stored_in("shared");
        let rule = rule.limit(limit("5/m")).override_key(["b"], [closed]);
        let policy = policy([rule], &store);
        for cost in [0, 1, 3] {
            let request = Request::new("GET", "/").tier("b").cost(cost);
            let decided = decide(&policy, &request);
            assert!(!decided.is_allowed(), "{algorithm:?}, {cost}");
            assert_eq!(decided.retry(), Some(Retry::Never), "{algorithm:?}, {cost}");
        }
        assert!(decide(&policy, &Request::new("GET", "/").tier("a")).is_allowed());
    }
}

#[test]
fn a_limit_that_a_store_cannot_keep_is_refused() {
    use CounterLimitError::{AtOnce, Invalid, Period, Strict, TooLarge, Unsupported};
    let error = |limit: Limit| CounterLimit::try_from(&limit).unwrap_err();
    let second = |count| Limit::per(count, Duration::from_secs(1));
    assert_eq!(error(Limit::at_once(1)), AtOnce);
    assert_eq!(error(second(1).debt(1)), Unsupported("debt"));
    assert_eq!(error(second(1).stepwise()), Unsupported("refill"));
    assert_eq!(error(second(1).queue(1)), Unsupported("queue"));
    assert_eq!(
        error(
            second(1)
                .algorithm_of(Algorithm::SlidingWindow { segments: 4 })
                .strict()
        ),
        Strict
    );
    let from_request = second(1).algorithm_of(Algorithm::WindowFromRequest);
    assert_eq!(error(from_request), Unsupported("window-from-request"));
    let nanos = Limit::per(1, Duration::from_nanos(1_500));
    assert_eq!(error(nanos), Period { segments: 1 });
    let seven = second(1).algorithm_of(Algorithm::SlidingWindow { segments: 7 });
    assert_eq!(error(seven), Period { segments: 7 });
    assert!(matches!(error(Limit::per(1, Duration::ZERO)), Invalid(_)));
    assert!(matches!(
        error(second(1).algorithm_of(Algorithm::FixedWindow).burst(2)),
        Invalid(_)
    ));
    let large = Limit::per(999_983, Duration::from_hours(24)).burst(1_000_000);
    assert_eq!(error(large), TooLarge);
}

/// The file has room for windows of 2 segments.
#[cfg(target_os = "linux")]
#[test]
fn a_limit_that_its_store_has_no_room_for_is_refused_with_the_policy() {
    let file = format!("policy-segments-{}", std::process::id());
    let file = SharedFile::named(&file).unwrap();
    let store = SharedCounters::open(&file, 100, 2).unwrap();
    let stores = Stores::new().with("host", Arc::new(store));
    let rule = |algorithm| {
        let limit = "9/s".parse::<Limit>().unwrap().algorithm_of(algorithm);
        Rule::new("all").limit(limit).stored_in("host")
    };
    let of = |segments| Policy::new([rule(Algorithm::SlidingWindow { segments })]).unwrap();
    let held = of(2).with_stores(stores.clone()).is_ok();
    let refused = of(4).with_stores(stores);
    file.remove().unwrap();
    assert!(held);
    let text = refused.unwrap_err()[0].to_string();
    assert!(
        text.contains("limits[0]") && text.contains("SharedCounters::open"),
        "{text}"
    );
}

/// A key in this process, and two rules in the store.
fn together() -> [Rule; 4] {
    [
        Rule::new("each key")
            .key(Key::header("X-Key"))
            .limit(limit("100/h"))
            .limit(Limit::at_once(50))
            .continuing(),
        Rule::new("logins")
            .when(Conditions::new().paths(["/login"]))
            .key(Key::address())
            .limit(limit("3/h"))
            .stored_in("shared")
            .continuing(),
        Rule::new("window")
            .limit(limit("40/h").algorithm_of(Algorithm::FixedWindow))
            .continuing(),
        Rule::new("service")
            .limit(limit("20/h"))
            .limit(limit("30/d"))
            .stored_in("shared"),
    ]
}

fn login<'r>(key: &'r [(&'r str, &'r str); 1]) -> Request<'r> {
    let request = Request::new("POST", "/login").headers(key);
    request.address([192, 0, 2, 7].into())
}

/// What each limit in this process has left.
fn left_here(policy: &Policy, request: &Request<'_>) -> Vec<u64> {
    let explained = policy.explain_at(NOW, request).unwrap();
    let left = explained.iter().flat_map(|each| match &each.considered {
        Considered::Limits { details, .. } => details.as_slice(),
        _ => &[],
    });
    left.map(|detail| detail.available).collect()
}

#[test]
fn rules_here_and_in_a_store_take_together_or_not_at_all() {
    let time = Time::default();
    let policy = policy(together(), &memory(&time));
    let key = [("X-Key", "a")];
    let (request, other) = (login(&key), Request::new("GET", "/").headers(&key));
    for nth in 1..=3 {
        let decision = decide(&policy, &request);
        assert!(decision.is_allowed());
        assert!(asked(decision.limits()).eq([
            ("logins", 0, 3),
            ("service", 0, 20),
            ("service", 1, 30)
        ]));
        let left = decision.limits().map(|each| each.left.unwrap().available);
        assert!(left.eq([3 - nth, 20 - nth, 30 - nth]));
        assert_eq!(left_here(&policy, &request), [100 - nth, 49, 40 - nth]);
    }
    // The store denies: what was taken here is back, also the permits at once.
    let denied = decide(&policy, &request);
    assert!(!denied.is_allowed());
    assert_eq!(denied.decision().rule().unwrap().name(), "logins");
    assert!(matches!(
        denied.decision().outcome(),
        Outcome::Denied { limit: Some(0), .. }
    ));
    assert_eq!(left_here(&policy, &request), [97, 50, 37]);
    assert!(matches!(denied.retry(), Some(Retry::After(_))));
    // Nor did the other rule of the store lose anything.
    assert!(decide(&policy, &other).is_allowed());
    let left = |decision: StoredDecision<'_>| decision.limits().last().unwrap().left.unwrap();
    assert_eq!(left(decide(&policy, &other)).available, 25);
    // A limit here denies: the store is not asked.
    let many = decide(&policy, &other.cost(36));
    assert_eq!(
        (many.is_allowed(), many.in_store().is_some()),
        (false, false)
    );
    assert_eq!(many.decision().rule().unwrap().name(), "window");
    assert_eq!(left(decide(&policy, &other)).available, 24);
    // The last limit of the last rule is named.
    let decision = decide(&policy, &other.cost(18));
    assert_eq!(decision.decision().rule().unwrap().name(), "service");
    // Without the store, nothing is taken.
    let before = left_here(&policy, &other);
    assert_eq!(policy.decide_at(NOW, &other).outcome(), Outcome::Stored);
    assert_eq!(left_here(&policy, &other), before);
}

#[test]
fn of_several_rules_in_a_store_the_one_that_denies_is_named() {
    let policy = policy(together(), &memory(&Time::default()));
    let key = [("X-Key", "a")];
    let other = Request::new("GET", "/").headers(&key);
    assert!(decide(&policy, &other.cost(19)).is_allowed());
    let denied = decide(&policy, &login(&key).cost(2));
    assert_eq!(denied.decision().rule().unwrap().name(), "service");
}

#[test]
fn a_store_without_an_answer_leaves_the_rules_here_as_they_were() {
    let gate = Gate::new(Time::default());
    let stores = Stores::new().with("shared", Arc::clone(&gate) as Arc<dyn CounterStore>);
    let policy = Policy::new(together())
        .unwrap()
        .with_stores(stores)
        .unwrap();
    let key = [("X-Key", "a")];
    let request = login(&key);
    let before = left_here(&policy, &request);
    gate.fails.store(true, SeqCst);
    let failed = block_on(policy.decide_stored(Fixed, &request));
    assert!(matches!(failed, Err(StoreError::Unavailable(_))));
    assert_eq!(left_here(&policy, &request), before);
    gate.fails.store(false, SeqCst);
    // A request that is dropped meanwhile returns its permits at once.
    let dropped = policy.decide_stored(Fixed, &request);
    assert_eq!(left_here(&policy, &request), [99, 49, 39]);
    drop(dropped);
    assert_eq!(left_here(&policy, &request), [99, 50, 39]);
    assert!(decide(&policy, &request).is_allowed());
}

/// Requests of other clients come between a request and the answer to it.
#[test]
fn what_a_store_denies_is_returned_also_if_other_requests_came_between() {
    let time = Time::default();
    let policy = policy(together(), &memory(&time));
    let key = [("X-Key", "a")];
    let (request, other) = (login(&key), Request::new("GET", "/").headers(&key));
    for _ in 0..3 {
        assert!(decide(&policy, &request).is_allowed());
    }
    let waits: Vec<_> = (0..5)
        .map(|_| policy.decide_stored(Fixed, &request))
        .collect();
    assert_eq!(left_here(&policy, &request), [92, 45, 32]);
    assert!(decide(&policy, &other).is_allowed());
    for denied in waits {
        assert!(!block_on(denied).unwrap().is_allowed());
    }
    assert_eq!(left_here(&policy, &request), [96, 50, 36]);
}

/// No time passes by the clock of the decisions, so a bucket takes back however fast it fills.
#[test]
fn a_bucket_that_fills_in_a_second_takes_back_what_a_store_denies() {
    let logins = Conditions::new().paths(["/login"]);
    let rules = [
        Rule::new("all").limit(limit("20/s")).continuing(),
        Rule::new("login")
            .when(logins)
            .limit(limit("1/h"))
            .stored_in("shared"),
    ];
    let policy = policy(rules, &memory(&Time::default()));
    let (login, other) = (Request::new("POST", "/login"), Request::new("GET", "/"));
    let left = || {
        let decision = policy.decide_at(NOW, &other.cost(0));
        decision.status().unwrap().remaining
    };
    assert!(decide(&policy, &login).is_allowed());
    let waits: Vec<_> = (0..5)
        .map(|_| policy.decide_stored(Fixed, &login))
        .collect();
    assert!(decide(&policy, &other).is_allowed());
    assert_eq!(left(), 13);
    for denied in waits {
        assert!(!block_on(denied).unwrap().is_allowed());
    }
    assert_eq!(left(), 18);
}

#[test]
fn rules_that_add_up_have_one_store() {
    let rules = |second: &str| {
        let one = Rule::new("one")
            .limit(limit("1/h"))
            .stored_in("a")
            .continuing();
        Policy::new([one, Rule::new("two").limit(limit("1/h")).stored_in(second)])
    };
    assert!(rules("a").is_ok());
    assert_eq!(
        rules("b").unwrap_err()[0].to_string(),
        "rule `two`: store: one store decides a request, and `one` before this rule continues with \
         another one: name the same store"
    );
    let bytes = Rule::new("bytes").when(Conditions::new().kind(Kind::Ingress));
    let errors = Policy::new([bytes.limit(limit("1/h")).continuing()]).unwrap_err();
    assert_eq!(errors[0].setting, "continue");
}
