//! A policy that is replaced while it decides: what is kept, what counts at once, and that no
//! thread ever sees more granted than the larger of the limits.

use core::future::Future;
use core::pin::pin;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::sync::Arc;
use std::thread::ScopedJoinHandle;
use std::time::Instant;

use portcullis_core::{MonotonicClock, Timestamp};
use portcullis_counters::MemoryCounters;
use portcullis_policy::{
    Algorithm, Conditions, Considered, FileSource, Key, Limit, LivePolicy, OnMissing, Outcome,
    PathReading, PathRules, Policy, RefreshError, Request, Rule, RuleError, RuleSource, Sourced,
    Stores, Threshold,
};

const GET: Request<'static> = Request::new("GET", "/");
const MINUTE: Duration = Duration::from_mins(1);

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_secs(seconds)
}

fn limit(text: &str) -> Limit {
    text.parse().unwrap()
}

fn policy(rules: impl IntoIterator<Item = Rule>) -> Policy {
    Policy::new(rules).unwrap()
}

fn one(limits: impl IntoIterator<Item = Limit>) -> Policy {
    let rule = limits.into_iter().fold(Rule::new("one"), Rule::limit);
    policy([rule])
}

fn allows(live: &LivePolicy, now: Timestamp, request: &Request<'_>) -> bool {
    live.load().decide_at(now, request).is_allowed()
}

/// How many requests of cost 1 pass, up to 1,000.
fn count(policy: &Policy, now: Timestamp, request: &Request<'_>) -> usize {
    (0..1_000)
        .take_while(|_| policy.decide_at(now, request).is_allowed())
        .count()
}

#[test]
fn what_was_taken_stays_taken_and_a_raised_limit_counts_at_once() {
    let window = |count| Limit::per(count, MINUTE);
    let limits: [(&str, &dyn Fn(u64) -> Limit); 4] = [
        ("token bucket", &window),
        ("fixed window", &|count| {
            window(count).algorithm_of(Algorithm::FixedWindow)
        }),
        ("window from request", &|count| {
            window(count).algorithm_of(Algorithm::WindowFromRequest)
        }),
        ("sliding window", &|count| {
            window(count).algorithm_of(Algorithm::SlidingWindow { segments: 6 })
        }),
    ];
    for (name, limit) in limits {
        let live = LivePolicy::new(one([limit(10)]));
        assert!(allows(&live, at(61), &GET.cost(7)), "{name}");
        live.replace_at(at(61), one([limit(15)]));
        let status = live
            .load()
            .decide_at(at(61), &GET)
            .status()
            .unwrap()
            .remaining;
        assert_eq!(status, 7, "{name}");
        assert!(!allows(&live, at(61), &GET.cost(8)), "{name}");
        assert!(
            allows(&live, at(61), &GET.cost(6)),
            "{name}: 14 of 15 are taken"
        );
        live.replace_at(at(61), one([limit(5)]));
        let denied = live.load();
        let denied = denied.decide_at(at(61), &GET);
        assert!(!denied.is_allowed(), "{name}");
        assert!(denied.retry().unwrap().wait_from(at(61)).unwrap() > Duration::from_secs(30));
        live.replace_at(at(61), one([limit(20)]));
        assert_eq!(
            count(&live.load(), at(61), &GET),
            6,
            "{name}: 14 of 20 are taken"
        );
    }
}

/// Takes all permits that the key of a request has left. Returns how many these are.
fn take_all(policy: &Policy, now: Timestamp, request: &Request<'_>) -> u64 {
    let left = policy
        .decide_at(now, &request.cost(0))
        .status()
        .unwrap()
        .remaining;
    let cost = u32::try_from(left).unwrap();
    assert!(
        left == 0 || policy.decide_at(now, &request.cost(cost)).is_allowed(),
        "{left}"
    );
    left
}

/// How many permits are granted at one instant while the limit of a rule goes from each of `limits`
/// to the next one.
fn granted_at_once(limits: &[Limit], hold: bool) -> u64 {
    let rule = |limit: &Limit| {
        let rule = Rule::new("one").key(Key::path()).limit(limit.clone());
        policy([if hold { rule.hold(MINUTE) } else { rule }])
    };
    let live = LivePolicy::new(rule(&limits[0]));
    let granted = limits.iter().map(|limit| {
        live.replace_at(at(61), rule(limit));
        take_all(&live.load(), at(61), &GET)
    });
    granted.sum()
}

#[test]
fn a_limit_that_is_lowered_and_raised_again_grants_nothing_twice() {
    const ROOM: u64 = 1 << 24;
    const DAY: Duration = Duration::from_hours(24);
    let many = Limit::per(500_009, 60 * MINUTE).burst(400_000_000);
    let per = |count| Limit::per(count, MINUTE);
    let fixed = |limit: Limit| limit.algorithm_of(Algorithm::FixedWindow);
    let from_request = |limit: Limit| limit.algorithm_of(Algorithm::WindowFromRequest);
    let sliding =
        |limit: Limit, segments| limit.algorithm_of(Algorithm::SlidingWindow { segments });
    let five = [40, 5, 40, 5, 40];
    let cases: Vec<(&str, Vec<Limit>, bool)> = vec![
        ("bucket", five.map(per).into(), false),
        ("bucket with a hold", five.map(per).into(), true),
        (
            "bucket with a hold and a debt",
            five.map(|count| per(count).debt(3)).into(),
            true,
        ),
        (
            "stepwise bucket with a hold",
            five.map(|count| per(count).stepwise()).into(),
            true,
        ),
        (
            "bucket whose word has no room for the debt at the lower rate",
            vec![many.clone(), Limit::per(7, 365 * DAY), many.clone()],
            false,
        ),
        (
            "fixed window",
            five.map(|count| fixed(per(count))).into(),
            false,
        ),
        (
            "fixed window of all bits",
            [63, 5, 63, 5, 63].map(|count| fixed(per(count))).into(),
            false,
        ),
        (
            "window from a request",
            five.map(|count| from_request(per(count))).into(),
            true,
        ),
        (
            "window with a wait",
            five.map(|count| from_request(per(count)).wait(MINUTE))
                .into(),
            false,
        ),
        (
            "window with a wait that changes",
            (1..6)
                .map(|nth| from_request(Limit::per(40, nth * MINUTE)).wait((7 - nth) * MINUTE))
                .collect(),
            false,
        ),
        (
            "window with a wait after a much longer one",
            vec![
                from_request(Limit::per(40, MINUTE)).wait(MINUTE),
                from_request(Limit::per(5, 30 * DAY)).wait(MINUTE),
                from_request(Limit::per(40, MINUTE)).wait(MINUTE),
            ],
            false,
        ),
        (
            "sliding window",
            five.map(|count| sliding(per(count), 6)).into(),
            false,
        ),
        (
            "sliding window whose segments and period change",
            (1..6)
                .map(|nth| {
                    sliding(
                        Limit::per(40 - 5 * (nth % 2), nth as u32 * MINUTE),
                        9 - nth as u32,
                    )
                })
                .collect(),
            false,
        ),
        ("closed bucket", [40, 0, 40, 0, 40].map(per).into(), true),
        (
            "closed windows",
            [40, 0, 40, 0, 40].map(|count| fixed(per(count))).into(),
            false,
        ),
        (
            "sliding window beyond the room for a change",
            [40, ROOM + 9, 40, ROOM + 99, 40]
                .map(|count| sliding(per(count), 6))
                .into(),
            false,
        ),
    ];
    for (name, limits, hold) in cases {
        let most = limits.iter().map(Limit::capacity).max().unwrap();
        let granted = granted_at_once(&limits, hold);
        assert!(granted <= most, "{name}: {granted} of {most}");
    }
}

#[test]
fn an_override_that_is_added_and_removed_in_turn_grants_nothing_twice() {
    let per = |count| Limit::per(count, MINUTE);
    let kinds: [(&str, &dyn Fn(u64) -> Limit); 5] = [
        ("token bucket", &per),
        ("fixed window", &|count| {
            per(count).algorithm_of(Algorithm::FixedWindow)
        }),
        ("window from request", &|count| {
            per(count).algorithm_of(Algorithm::WindowFromRequest)
        }),
        ("window with a wait", &|count| {
            let window = per(count).algorithm_of(Algorithm::WindowFromRequest);
            window.wait(2 * MINUTE)
        }),
        ("sliding window", &|count| {
            per(count).algorithm_of(Algorithm::SlidingWindow { segments: 6 })
        }),
    ];
    let (gold, other) = (GET.tier("gold"), GET.tier("other"));
    for (name, limit) in kinds {
        let rule = |own: Option<u64>, all: u64| {
            let rule = Rule::new("tiers").key(Key::tier());
            let rule = rule.limit(limit(all)).limit(per(1_000));
            policy([match own {
                Some(own) => rule.override_key(["gold"], [per(900), limit(own)]),
                None => rule,
            }])
        };
        let live = LivePolicy::new(rule(None, 40));
        let (mut granted, mut of_other) = (0, 0);
        // Also lowered below what is taken, and with another limit of the rule.
        let steps = [
            (None, 40),
            (Some(5), 40),
            (Some(40), 40),
            (None, 30),
            (Some(40), 5),
            (None, 5),
            (None, 5),
            (Some(40), 5),
            (None, 40),
        ];
        for (nth, (own, all)) in steps.into_iter().enumerate() {
            live.replace_at(at(61), rule(own, all));
            let loaded = live.load();
            // The key is not idle before the first change.
            let most = if nth == 0 { 20 } else { 1_000 };
            granted += (0..most)
                .take_while(|_| loaded.decide_at(at(61), &gold).is_allowed())
                .count();
            of_other += count(&loaded, at(61), &other);
            let decision = loaded.decide_at(at(61), &gold.cost(0));
            assert_eq!(decision.is_overridden(), own.is_some(), "{name}");
            let limits = decision.limits();
            assert_eq!(limits.len(), 2, "{name}");
        }
        let least = match name {
            // Rounds up what is in use.
            "token bucket" => 39,
            // The first denial starts the wait.
            "window with a wait" => 20,
            _ => 40,
        };
        assert!((least..=40).contains(&granted), "{name}: {granted}");
        assert!((39..=40).contains(&of_other), "{name}: {of_other}");
        // An hour later all has returned, and the key is one of the rule's again.
        live.replace_at(at(3_661), rule(None, 40));
        assert_eq!(count(&live.load(), at(3_661), &gold), 40, "{name}");
        live.replace_at(at(3_661), rule(Some(45), 40));
        let more = if name == "window with a wait" { 0 } else { 5 };
        assert_eq!(count(&live.load(), at(3_661), &gold), more, "{name}");
    }
}

#[test]
fn permits_at_once_of_an_override_that_was_removed_stay_in_use() {
    let rule = |own: Option<u32>| {
        let rule = Rule::new("tiers").key(Key::tier()).limit(Limit::at_once(3));
        policy([match own {
            Some(own) => rule.override_key(["gold"], [Limit::at_once(own)]),
            None => rule,
        }])
    };
    let live = LivePolicy::new(rule(Some(5)));
    let gold = GET.tier("gold");
    let first = live.load();
    let held = first.decide_at(at(1), &gold.cost(4));
    for own in [None, None, Some(5), None] {
        live.replace_at(at(1), rule(own));
        let left = u64::from(own.is_some());
        let loaded = live.load();
        let status = loaded.decide_at(at(1), &gold.cost(0)).status().unwrap();
        assert_eq!(status.remaining, left);
    }
    drop(held);
    assert!(allows(&live, at(1), &gold.cost(3)));
}

#[test]
fn a_limit_with_a_wait_keeps_its_count_and_its_wait() {
    let limit = |count| {
        let window = Limit::per(count, MINUTE).algorithm_of(Algorithm::WindowFromRequest);
        one([window.wait(2 * MINUTE)])
    };
    let live = LivePolicy::new(limit(10));
    let old = live.load();
    assert!(allows(&live, at(1), &GET.cost(7)));
    live.replace_at(at(2), limit(15));
    assert!(old.decide_at(at(2), &GET).is_allowed());
    assert_eq!(
        count(&live.load(), at(2), &GET),
        7,
        "the next one starts the wait"
    );
    live.replace_at(at(3), limit(30));
    assert!(!allows(&live, at(121), &GET));
    assert!(allows(&live, at(122), &GET.cost(30)));
}

#[test]
fn a_hold_that_began_before_a_change_is_settled_after_it() {
    let held = |rate: &str| policy([Rule::new("one").hold(MINUTE).limit(limit(rate))]);
    let left = |policy: &Policy| {
        policy
            .decide_at(at(2), &GET.cost(0))
            .status()
            .unwrap()
            .remaining
    };
    let live = LivePolicy::new(held("10/d"));
    let old = live.load();
    let [first, second] = [(); 2].map(|()| old.hold_at(at(1), &GET.cost(3)));
    // The limit does not change, so the state is the same.
    live.replace_at(at(2), held("10/d"));
    let settled = first.settle_at(at(2), 1);
    assert_eq!(
        (settled.unused, settled.kept, left(&live.load())),
        (2, 0, 6)
    );
    live.replace_at(at(2), held("20/d"));
    let settled = second.settle_at(at(2), 8);
    assert_eq!(
        (settled.excess, settled.uncounted, left(&live.load())),
        (5, 0, 11)
    );
    let third = old.hold_at(at(2), &GET.cost(4));
    assert!(third.is_allowed());
    let settled = third.settle_at(at(2), 1);
    assert_eq!(
        (settled.unused, settled.kept, left(&live.load())),
        (3, 3, 7)
    );
}

/// Refunds to one bucket that do not know of each other are worth more than they may.
#[test]
fn holds_before_and_after_a_rule_without_holds_return_no_permit_twice() {
    let rule = || Rule::new("one").limit(limit("1/s").burst(100));
    let held = || policy([rule().hold(10 * MINUTE)]);
    let live = LivePolicy::new(held());
    let first = live.load();
    assert!(first.decide_at(at(1), &GET.cost(60)).is_allowed());
    let before = first.hold_at(at(1), &GET.cost(20));
    live.replace_at(at(1), policy([rule()]));
    live.replace_at(at(1), held());
    let last = live.load();
    let after = last.hold_at(at(1), &GET.cost(20));
    assert_eq!(before.settle_at(at(1), 0).kept, 0);
    // The bucket has filled in between. So what the second one held has returned by time.
    assert!(last.decide_at(at(81), &GET.cost(20)).is_allowed());
    assert_eq!(after.settle_at(at(81), 0).kept, 20);
    assert!(!last.decide_at(at(81), &GET.cost(81)).is_allowed());
}

/// Without holds, a bucket owes what was taken beyond a lower burst. With holds, settlements would
/// use that debt too.
#[test]
fn a_bucket_with_a_lower_burst_owes_no_more_once_its_rule_has_a_hold() {
    let rule = |burst| Rule::new("one").limit(limit("1/h").burst(burst));
    let live = LivePolicy::new(policy([rule(10)]));
    live.replace_at(at(1), policy([rule(5)]));
    live.replace_at(at(1), policy([rule(5).hold(MINUTE)]));
    let policy = live.load();
    let settled = policy.hold_at(at(1), &GET.cost(5)).settle_at(at(1), 20);
    assert_eq!((settled.excess, settled.uncounted), (15, 15));
}

#[test]
fn permits_at_once_that_are_out_at_a_change_count_after_it() {
    let live = LivePolicy::new(one([Limit::at_once(3)]));
    let old = live.load();
    let held = old.decide_at(at(1), &GET.cost(2));
    live.replace_at(at(1), one([Limit::at_once(4)]));
    let new = live.load();
    let more = new.decide_at(at(1), &GET.cost(2));
    assert!(more.is_allowed());
    assert!(!new.decide_at(at(1), &GET).is_allowed());
    live.replace_at(at(1), one([Limit::at_once(1)]));
    drop(held);
    assert!(!allows(&live, at(1), &GET), "2 are out");
    drop(more);
    assert!(allows(&live, at(1), &GET));
    assert!(
        old.decide_at(at(1), &GET.cost(3)).is_allowed(),
        "by its own number"
    );
}

#[test]
fn a_decision_by_an_older_policy_counts_in_the_newest() {
    let keyed = |limits: [Limit; 2]| {
        let [first, second] = limits;
        policy([Rule::new("one").key(Key::path()).limit(first).limit(second)])
    };
    let live = LivePolicy::new(keyed([limit("10/h"), Limit::at_once(50)]));
    let oldest = live.load();
    let [a, b] = ["/a", "/b"].map(|path| Request::new("GET", path));
    assert!(allows(&live, at(1), &a.cost(4)));
    for burst in [20, 30, 15] {
        let raised = limit("10/h").burst(burst);
        live.replace_at(at(1), keyed([raised, Limit::at_once(50)]));
    }
    assert!(
        oldest.decide_at(at(1), &a.cost(5)).is_allowed(),
        "in use before the changes"
    );
    assert!(
        oldest.decide_at(at(1), &b.cost(6)).is_allowed(),
        "new after the changes"
    );
    let reports = oldest.decide_at(at(1), &a);
    assert_eq!(reports.status().unwrap().remaining, 5);
    let told = oldest.decide_explained_at(at(1), &b);
    assert!(told.is_allowed());
    assert_eq!(count(&live.load(), at(1), &a), 5);
    assert_eq!(count(&live.load(), at(1), &b), 8);
    let denied = oldest.decide_at(at(1), &a);
    assert!(!denied.is_allowed() && denied.retry().is_some());
    let explained = oldest.explain_at(at(1), &a).unwrap();
    assert!(explained[0].decides);
}

#[test]
fn limits_are_paired_by_what_they_have_in_common() {
    let live = LivePolicy::new(one([limit("10/s"), limit("100/h"), Limit::at_once(9)]));
    assert!(allows(&live, at(1), &GET.cost(8)));
    // In another order, and one more. What was taken per second has returned.
    live.replace_at(
        at(3),
        one([
            limit("120/h"),
            Limit::at_once(9),
            limit("10/s"),
            limit("50/d"),
        ]),
    );
    let loaded = live.load();
    let explained = loaded.decide_explained_at(at(3), &GET.cost(0));
    let left: Vec<_> = explained
        .details()
        .map(|each| each.detail.available)
        .collect();
    assert_eq!(left, [112, 9, 10, 50]);
    // By name.
    let named = |a, b| [limit(a).named("a"), limit(b).named("b")];
    let live = LivePolicy::new(one(named("10/s", "20/m")));
    assert!(allows(&live, at(1), &GET.cost(8)));
    live.replace_at(at(3), one(named("30/m", "40/s")));
    let loaded = live.load();
    let explained = loaded.decide_explained_at(at(3), &GET.cost(0));
    let left: Vec<_> = explained
        .details()
        .map(|each| each.detail.available)
        .collect();
    assert_eq!(left, [30, 32]);
}

#[test]
fn activity_is_kept_if_no_threshold_changes() {
    let captcha = |value| Threshold::new(value, MINUTE, "captcha").holding_for(2 * MINUTE);
    let rule = |value| {
        Rule::new("one")
            .key(Key::address())
            .threshold(captcha(value))
    };
    let request = GET.address("192.0.2.7".parse().unwrap());
    let is_in_force = |live: &LivePolicy, now| live.load().is_in_force_at(now, &request, "captcha");
    let live = LivePolicy::new(policy([rule(5)]));
    assert!(live.load().report_at(at(1), &request, 3));

    let with_limit = || rule(5).priority(7).limit(limit("1/h"));
    let change = live.replace_at(at(2), policy([with_limit()]));
    assert!(change.kept().eq(["one"]));
    assert_eq!(is_in_force(&live, at(2)), Ok(false));
    // The policy before counts in the same state.
    let old = live.load();
    let _ = live.replace_at(at(3), policy([with_limit().shadow(), Rule::new("two")]));
    let _ = live.replace_at(at(3), policy([with_limit(), Rule::new("two")]));
    assert!(old.report_at(at(3), &request, 2));
    assert_eq!(is_in_force(&live, at(3)), Ok(true));
    // The sum has ended, and the hold has not.
    let _ = live.replace_at(at(90), policy([with_limit()]));
    assert_eq!(is_in_force(&live, at(90)), Ok(true));

    let _ = live.replace_at(at(90), policy([rule(4)]));
    assert_eq!(is_in_force(&live, at(90)), Ok(false));
    assert!(live.load().report_at(at(91), &request, 4));
    assert_eq!(is_in_force(&live, at(91)), Ok(true));
}

#[test]
fn a_window_with_a_lower_count_does_not_open_again_while_its_key_is_not_used() {
    let of = |count| {
        let hour = Duration::from_hours(1);
        let limit = Limit::per(count, hour).algorithm_of(Algorithm::WindowFromRequest);
        policy([Rule::new("one").key(Key::address()).limit(limit)])
    };
    let live = LivePolicy::new(of(3));
    let request = GET.address("192.0.2.7".parse().unwrap());
    assert!(allows(&live, at(1), &request.cost(3)));
    let _ = live.replace_at(at(2), of(2));
    for later in (0..40 * 86_400).step_by(300) {
        let explained = live.load();
        let explained = explained.explain_at(at(2 + later), &request).unwrap();
        let Considered::Limits { details, .. } = &explained[0].considered else {
            panic!("{explained:?}")
        };
        let expected = if later < 3_599 { 0 } else { 2 };
        // The window may be longer by a ten-thousandth.
        if !(3_599..3_601).contains(&later) {
            assert_eq!(details[0].available, expected, "after {later} s");
        }
    }
}

#[test]
fn a_window_with_a_lower_count_is_longer_by_at_most_a_ten_thousandth() {
    let of = |count| {
        let second = Duration::from_secs(1);
        let limit = Limit::per(count, second).algorithm_of(Algorithm::WindowFromRequest);
        policy([Rule::new("one").key(Key::address()).limit(limit)])
    };
    let live = LivePolicy::new(of(8_388_607));
    let request = GET.address("192.0.2.7".parse().unwrap());
    assert!(allows(&live, at(1), &request.cost(8_000_000)));
    let _ = live.replace_at(at(1), of(2));
    let later = |nanos| at(2).saturating_add(Duration::from_nanos(nanos));
    assert!(allows(&live, later(100_000), &request.cost(2)));
    assert!(!allows(&live, later(1_000_099_999), &request));
    assert!(allows(&live, later(1_000_300_000), &request.cost(2)));
}

#[test]
fn a_rule_with_another_key_starts_again() {
    let rule = || {
        let rule = Rule::new("one").limit(limit("1/h"));
        rule.on_missing(OnMissing::Share)
    };
    let function = Key::function(|_, hasher| {
        hasher.write_u8(1);
        true
    });
    let keys = [
        Key::shared(),
        Key::address(),
        Key::address_prefix(24, 64),
        Key::path(),
        Key::host(),
        Key::method(),
        Key::tier(),
        Key::header("a"),
        Key::header("b"),
        Key::property("a"),
        Key::path().and(Key::host()),
        function.clone(),
    ];
    for (nth, before) in keys.iter().enumerate() {
        for (other, after) in keys.iter().enumerate() {
            let live = LivePolicy::new(policy([rule().key(before.clone())]));
            assert!(allows(&live, at(1), &GET));
            let change = live.replace_at(at(1), policy([rule().key(after.clone())]));
            assert_eq!(
                change.kept().count() == 1,
                nth == other,
                "{before:?}, {after:?}"
            );
            assert_eq!(
                allows(&live, at(1), &GET),
                nth != other,
                "{before:?}, {after:?}"
            );
        }
    }
    let others = [
        policy([rule().key(function.clone()).keys(2_000)]),
        Policy::with_path_rules([rule().key(Key::path())], PathRules::new().ignoring_case())
            .unwrap(),
        policy([Rule::new("other").limit(limit("1/h")).key(function.clone())]),
    ];
    for (key, other) in [&function, &Key::path(), &function].into_iter().zip(others) {
        let live = LivePolicy::new(policy([rule().key(key.clone())]));
        let change = live.replace_at(at(1), other);
        assert!(change.kept().count() == 0 && change.begun().count() == 1);
        assert!(change.ended().eq(["one"]));
    }
}

#[test]
fn what_the_service_does_with_paths_may_change_without_a_loss_of_state() {
    let reading = |reading| PathRules::new().reading(reading);
    let request = GET.address([192, 0, 2, 7].into());
    for (key, paths) in [
        (Key::shared(), PathRules::new().ignoring_case()),
        (Key::address(), reading(PathReading::Literal)),
        (Key::path(), reading(PathReading::Resolved)),
    ] {
        let rule = || {
            let rule = Rule::new("one").limit(limit("1/h")).key(key.clone());
            rule.on_missing(OnMissing::Share)
        };
        let live = LivePolicy::new(policy([rule()]));
        assert!(allows(&live, at(1), &request));
        let other = Policy::with_path_rules([rule()], paths).unwrap();
        assert_eq!(live.replace_at(at(1), other).kept().count(), 1, "{key:?}");
        assert!(!allows(&live, at(1), &request), "{key:?}");
    }
}

#[test]
fn conditions_priority_and_texts_may_change_without_a_loss_of_state() {
    let rule = || Rule::new("one").limit(limit("5/h")).penalty(MINUTE);
    let live = LivePolicy::new(policy([rule()]));
    assert!(allows(&live, at(1), &GET.cost(5)));
    assert!(!allows(&live, at(1), &GET));
    let changed = rule()
        .when(Conditions::new().methods(["GET"]))
        .priority(7)
        .with_message("Slow down.");
    live.replace_at(at(1), policy([Rule::new("rest").priority(9), changed]));
    let loaded = live.load();
    let denied = loaded.decide_at(at(1), &GET);
    assert_eq!(denied.rule().unwrap().message(), Some("Slow down."));
    assert!(
        matches!(denied.outcome(), Outcome::Denied { limit: None, .. }),
        "the penalty"
    );
    live.replace_at(at(1), policy([rule().penalty(2 * MINUTE)]));
    let loaded = live.load();
    let denied = loaded.decide_at(at(1), &GET);
    assert!(matches!(
        denied.outcome(),
        Outcome::Denied { limit: Some(0), .. }
    ));
}

/// Token buckets and windows share a table. Other limits have one of their own.
#[test]
fn limits_that_share_a_table_keep_what_was_taken_when_their_number_and_order_change() {
    let window = |count| Limit::per(count, 60 * MINUTE).algorithm_of(Algorithm::FixedWindow);
    let sliding = || Limit::per(40, MINUTE).algorithm_of(Algorithm::SlidingWindow { segments: 6 });
    let keyed = |limits: &[Limit]| {
        let rule = Rule::new("one").key(Key::path());
        policy([limits.iter().cloned().fold(rule, Rule::limit)])
    };
    let [a, b] = ["/a", "/b"].map(|path| Request::new("GET", path));
    let left = |policy: &Policy, request: &Request<'_>| -> Vec<u64> {
        let explained = policy.decide_explained_at(at(61), &request.cost(0));
        let details = explained.details();
        details.map(|each| each.detail.available).collect()
    };
    let live = LivePolicy::new(keyed(&[limit("10/d")]));
    let oldest = live.load();
    assert!(allows(&live, at(61), &a.cost(4)));
    live.replace_at(at(61), keyed(&[limit("10/d"), window(20)]));
    assert_eq!(left(&live.load(), &a), [6, 20]);
    assert!(allows(&live, at(61), &a.cost(3)) && allows(&live, at(61), &b.cost(2)));
    let old = live.load();
    live.replace_at(
        at(61),
        keyed(&[
            window(25),
            limit("5/s"),
            sliding(),
            limit("15/d"),
            Limit::at_once(9),
        ]),
    );
    assert_eq!(left(&live.load(), &a), [22, 5, 40, 8, 9]);
    assert_eq!(left(&live.load(), &b), [23, 5, 40, 13, 9]);
    // Policies before the change tell of the limits that go on, and count in all of the new table.
    assert_eq!((left(&old, &a), left(&oldest, &a)), (vec![8, 22], vec![8]));
    assert!(old.decide_at(at(61), &a.cost(2)).is_allowed());
    assert!(oldest.decide_at(at(61), &a.cost(1)).is_allowed());
    assert_eq!(left(&live.load(), &a), [19, 2, 40, 5, 9]);
    let denied = old.decide_at(at(61), &a.cost(3));
    let Outcome::Denied {
        limit: Some(0),
        denied,
    } = denied.outcome()
    else {
        panic!("a limit that is new denies")
    };
    assert!(matches!(denied, portcullis_core::Denied::Crowded { .. }));
    // Equal limits in the same order keep their table, so a hold is returned to them.
    let held = |cost: u64| {
        let rule = Rule::new("one").key(Key::path()).hold(MINUTE);
        let limits = [limit("15/d"), window(25), Limit::at_once(cost as u32)];
        policy([limits.into_iter().fold(rule, Rule::limit)])
    };
    live.replace_at(at(61), held(9));
    assert_eq!(left(&live.load(), &a), [5, 19, 9]);
    let before = live.load();
    let hold = before.hold_at(at(61), &a.cost(4));
    live.replace_at(at(61), held(8));
    assert_eq!(hold.settle_at(at(61), 1).kept, 0);
    assert_eq!(left(&live.load(), &a), [4, 18, 8]);
    live.replace_at(at(61), keyed(&[window(25), limit("15/d")]));
    assert_eq!(left(&live.load(), &a), [18, 4]);
    live.replace_at(at(61), keyed(&[limit("15/d")]));
    assert_eq!(
        (left(&live.load(), &a), left(&live.load(), &b)),
        (vec![4], vec![13])
    );
}

#[test]
fn a_limit_that_has_ended_denies_no_more_and_is_not_named() {
    let sliding = || Limit::per(7, MINUTE).algorithm_of(Algorithm::SlidingWindow { segments: 6 });
    let rule = Rule::new("one").limit(limit("3/d")).limit(sliding());
    let live = LivePolicy::new(policy([rule.limit(limit("90/m"))]));
    let old = live.load();
    let request = Request::new("GET", "/");
    assert!(old.decide_at(at(61), &request).is_allowed());
    let rule = Rule::new("one").limit(sliding()).limit(limit("99/m"));
    live.replace_at(at(61), policy([rule]));
    let request = request.cost(4);
    assert!(old.decide_at(at(61), &request).is_allowed());
    let denied = old.decide_at(at(61), &request);
    assert!(matches!(
        denied.outcome(),
        Outcome::Denied { limit: Some(1), .. }
    ));
}

/// All versions of the rule have a window of the same count. Other limits come and go.
#[test]
fn threads_that_decide_while_limits_come_and_go_take_no_permit_twice() {
    const COUNT: u64 = 20_000_000;
    const CHANGES: u64 = 150;
    let window = || Limit::per(COUNT, 60 * MINUTE).algorithm_of(Algorithm::FixedWindow);
    let plenty = |nth: u64| Limit::per(1_000_000 + nth, MINUTE);
    let version = |nth: u64| {
        let limits = match nth % 4 {
            0 => vec![window()],
            1 => vec![plenty(nth), window(), Limit::at_once(1_000)],
            2 => vec![window(), plenty(nth), plenty(2 * nth)],
            _ => vec![Limit::at_once(1_000), plenty(1), window()],
        };
        let rule = Rule::new("one").key(Key::path()).keys(8);
        policy([limits.into_iter().fold(rule, Rule::limit)])
    };
    let live = LivePolicy::new(version(0));
    let (is_over, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    let paths = ["/a", "/b", "/c"];
    let granted = [(); 3].map(|()| AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    // Two decisions by each policy that is loaded: it may be an old one.
                    let loaded = live.load();
                    for (path, granted) in
                        paths.iter().zip(&granted).chain(paths.iter().zip(&granted))
                    {
                        let decision = loaded.decide_at(at(1), &Request::new("GET", path));
                        granted.fetch_add(decision.is_allowed().into(), Relaxed);
                    }
                    rounds.fetch_add(1, Relaxed);
                }
            });
        }
        for nth in 1..=CHANGES {
            let before = rounds.load(Relaxed);
            while rounds.load(Relaxed) == before {
                std::thread::yield_now();
            }
            live.replace_at(at(1), version(nth));
        }
        is_over.store(true, Relaxed);
    });
    live.replace_at(at(1), version(0));
    for (path, granted) in paths.iter().zip(&granted) {
        let granted = granted.load(Relaxed);
        let request = Request::new("GET", path).cost(0);
        let left = live
            .load()
            .decide_at(at(1), &request)
            .status()
            .unwrap()
            .remaining;
        assert!(
            granted > 0 && granted + left <= COUNT,
            "{granted} and {left}"
        );
        // A take that is not granted because its key moves may leave a charge: of each key, one
        // for each thread and change. The last change is the one after the threads.
        assert!(
            COUNT - granted - left <= 3 * (CHANGES + 1),
            "{granted} and {left}"
        );
    }
}

#[test]
fn an_override_keeps_its_state() {
    let rule = |gold: &[&str]| {
        policy([Rule::new("one")
            .key(Key::path())
            .limit(limit("1/h"))
            .override_key(["/silver"], [limit("5/h")])
            .override_key(["/gold"], gold.iter().map(|text| limit(text)))])
    };
    let live = LivePolicy::new(rule(&["10/h"]));
    let old = live.load();
    let [gold, silver, other] = ["/gold", "/silver", "/x"].map(|path| Request::new("GET", path));
    assert!(allows(&live, at(1), &gold.cost(8)) && allows(&live, at(1), &silver.cost(4)));
    assert!(allows(&live, at(1), &other));
    live.replace_at(at(1), rule(&["30/h", "20/d"]));
    assert!(old.decide_at(at(1), &gold).is_allowed());
    assert_eq!(count(&live.load(), at(1), &silver), 1);
    assert_eq!(count(&live.load(), at(1), &other), 0);
    assert_eq!(
        count(&live.load(), at(1), &gold),
        19,
        "the limit per day is new, and counts what the old policy grants after the change"
    );
}

#[test]
fn a_limit_of_another_algorithm_has_all_its_permits() {
    let window = |count| Limit::per(count, MINUTE);
    let cases = [
        (window(5), window(5).algorithm_of(Algorithm::FixedWindow)),
        (
            window(5).algorithm_of(Algorithm::FixedWindow),
            window(5).algorithm_of(Algorithm::WindowFromRequest),
        ),
        (window(5), Limit::at_once(5)),
    ];
    for (before, after) in cases {
        let live = LivePolicy::new(one([before.clone()]));
        assert!(allows(&live, at(1), &GET.cost(4)));
        live.replace_at(at(1), one([before.clone()]));
        assert!(
            !allows(&live, at(1), &GET.cost(4)),
            "{before} has not changed"
        );
        live.replace_at(at(1), one([after.clone()]));
        assert!(allows(&live, at(1), &GET.cost(5)), "{before} to {after}");
    }
}

#[test]
fn a_refused_set_of_rules_leaves_the_policy_in_force() {
    let versions = core::cell::RefCell::new(vec![("v1", "5/h")]);
    let mut source = |known: Option<&str>| -> Result<_, Vec<RuleError>> {
        let (tag, rate) = *versions.borrow().last().unwrap();
        if known == Some(tag) {
            return Ok(None);
        }
        let policy = Policy::new([Rule::new("one").limit(limit(rate)), Rule::new("two")])?;
        Ok(Some(Sourced::new(policy).tagged(tag)))
    };
    let live = LivePolicy::from_source(&mut source).unwrap();
    assert!(allows(&live, at(1), &GET.cost(4)));
    assert!(live.refresh_at(at(1), &mut source).unwrap().is_none());
    let mut same = |_: Option<&str>| Ok::<_, ()>(Some(Sourced::new(one([])).tagged("v1")));
    assert!(
        live.refresh_at(at(1), &mut same).unwrap().is_none(),
        "the same tag"
    );
    versions.borrow_mut().push(("v2", "1/0h"));
    let Err(RefreshError::Source(errors)) = live.refresh_at(at(1), &mut source) else {
        panic!("a period of 0 is not valid")
    };
    assert_eq!(errors.len(), 1);
    assert_eq!((live.generation(), live.load().tag()), (0, Some("v1")));
    assert_eq!(count(&live.load(), at(1), &GET), 1);
    versions.borrow_mut().push(("v3", "6/h"));
    let change = live.refresh_at(at(1), &mut source).unwrap().unwrap();
    assert_eq!((change.generation(), live.load().tag()), (1, Some("v3")));
    assert_eq!(count(&live.load(), at(1), &GET), 1);
}

#[test]
fn a_file_is_read_when_two_polls_find_the_same_new_content() {
    let dir = std::env::temp_dir().join(format!("portcullis-live-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("policy.toml");
    let write = |text: &str| std::fs::write(&path, text).unwrap();
    let rule = |name: &str, rate: &str| {
        format!("[[rules]]\nname = '{name}'\npriority = 1\nlimits = ['{rate}']\n")
    };
    write(&rule("api", "5/h"));
    let mut file = FileSource::new(&path);
    let live = LivePolicy::from_source(&mut file).unwrap();
    assert!(allows(&live, at(1), &GET.cost(4)));
    let mut poll = || live.refresh_at(at(1), &mut file);
    assert!(poll().unwrap().is_none());
    // Half of what is being written, which is a valid file.
    write(&rule("api", "7/h"));
    assert!(poll().unwrap().is_none());
    write(&(rule("api", "7/h") + &rule("login", "1/h")));
    assert!(poll().unwrap().is_none());
    assert!(poll().unwrap().unwrap().kept().eq(["api"]));
    assert_eq!(live.load().rules().len(), 2);
    assert!(poll().unwrap().is_none());
    assert_eq!(count(&live.load(), at(1), &GET), 3);
    // All errors, once.
    write("[[rules]]\nname = 'api'\nlimit = ['7/h']\nkind = 'x'\n");
    assert!(poll().unwrap().is_none());
    let Err(RefreshError::Source(refused)) = poll() else {
        panic!("the file is not valid")
    };
    assert_eq!(refused.errors().len(), 2);
    let text = refused.to_string();
    let shown = path.display().to_string();
    assert!(text.lines().count() == 2 && text.lines().all(|line| line.starts_with(&shown)));
    assert!(poll().unwrap().is_none());
    assert_eq!((live.generation(), live.load().rules().len()), (1, 2));
    // Back to what is in force.
    write(&(rule("api", "7/h") + &rule("login", "1/h")));
    assert!(poll().unwrap().is_none() && poll().unwrap().is_none());
    std::fs::remove_file(&path).unwrap();
    let Err(RefreshError::Source(missing)) = poll() else {
        panic!("there is no file")
    };
    assert!(missing.errors().is_empty());
    std::fs::write(dir.join("policy.txt"), "").unwrap();
    let refused = FileSource::new(dir.join("policy.txt"))
        .load(None)
        .unwrap_err();
    assert!(refused.to_string().contains("must end with .toml"));
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_file_whose_stores_are_not_there_is_refused_at_the_start_and_then_once() {
    let dir = std::env::temp_dir().join(format!("portcullis-stores-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("policy.toml");
    let write = |store: &str| {
        let rule = format!("[[rules]]\nname = 'all'\nlimits = ['2/h']\nstore = '{store}'\n");
        std::fs::write(&path, format!("stores = ['shared', 'other']\n{rule}")).unwrap();
    };
    write("shared");
    let refused = LivePolicy::from_source(&mut FileSource::new(&path)).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "rule `all`: store: `shared` is not known: the program has no stores"
    );
    let store = Arc::new(MemoryCounters::new(100, MonotonicClock::new()));
    let mut file = FileSource::new(&path).with_stores(Stores::new().with("shared", store));
    let live = LivePolicy::from_source(&mut file).unwrap();
    let is_allowed = || {
        let policy = live.load();
        let mut decision = pin!(policy.decide_stored(MonotonicClock::new(), &GET));
        let polled = decision
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()));
        matches!(polled, Poll::Ready(Ok(decision)) if decision.is_allowed())
    };
    assert!(is_allowed());
    write("other");
    let mut poll = || live.refresh_at(at(1), &mut file);
    assert!(poll().unwrap().is_none());
    let Err(RefreshError::Source(refused)) = poll() else {
        panic!("there is no such store")
    };
    let text = refused.to_string();
    let expected = "rule `all`: store: `other` is not known: expected one of shared";
    assert_eq!(text, format!("{}: {expected}", path.display()));
    assert!(poll().unwrap().is_none() && poll().unwrap().is_none());
    assert!(is_allowed() && !is_allowed());
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn no_change_is_missed_by_those_who_wait() {
    const CHANGES: u64 = 200;
    let live = LivePolicy::new(one([]));
    assert_eq!(live.blocking_changed(0, Duration::from_millis(1)), None);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut seen = 0;
                while seen < CHANGES {
                    let newer = live.blocking_changed(seen, MINUTE / 4).unwrap();
                    assert!(newer > seen);
                    seen = newer;
                }
            });
        }
        for _ in 0..CHANGES {
            live.replace_at(at(1), one([]));
        }
    });
    let mut context = Context::from_waker(Waker::noop());
    assert_eq!(
        pin!(live.changed(3)).poll(&mut context),
        Poll::Ready(CHANGES)
    );
    let mut next = pin!(live.changed(CHANGES));
    assert!(next.as_mut().poll(&mut context).is_pending());
    live.replace_at(at(1), one([]));
    assert_eq!(next.poll(&mut context), Poll::Ready(CHANGES + 1));
}

#[test]
fn a_reader_sees_each_change() {
    let live = LivePolicy::new(one([]));
    let mut reader = live.clone().reader();
    assert_eq!(reader.policy().rules().len(), 1);
    live.replace_at(at(1), policy([]));
    assert_eq!(reader.policy().rules().len(), 0);
}

/// Two rule sets that differ in everything take turns. In each, both rules have its tag.
fn versions(version: u64) -> Policy {
    // The tag names the version. The limits grow and shrink.
    let (hour, tag) = (Duration::from_hours(1_000), version.to_string());
    let burst = BURSTS[(version % 3) as usize];
    let shared = |name: &str| Rule::new(name).with_etag(&tag).key(Key::path()).keys(100);
    let shadow = shared("shadow")
        .shadow()
        .limit(Limit::at_once(9 + version as u32 % 3));
    let order = version as u32 % 2;
    let rules = [
        shared("bucket")
            .priority(order)
            .when(Conditions::new().methods(["GET"]))
            // Practically nothing returns in the time of the test.
            .limit(Limit::per(1, hour).burst(burst)),
        shared("window")
            .priority(1 - order)
            .when(Conditions::new().methods(["PUT"]))
            .limit(Limit::per(burst, hour).algorithm_of(Algorithm::WindowFromRequest)),
        shared("sliding")
            .priority(2)
            .when(Conditions::new().methods(["POST"]))
            .limit(Limit::per(burst, hour).algorithm_of(Algorithm::SlidingWindow { segments: 4 })),
        shared("leases")
            .priority(3)
            .when(Conditions::new().methods(["PATCH"]))
            .limit(Limit::at_once(2 + version as u32 % 3)),
    ];
    policy(rules.into_iter().chain([shadow]))
}

const BURSTS: [u64; 3] = [40_000, 60_000, 50_000];

/// Changes under load. `PORTCULLIS_SOAK_SECONDS` sets the time, for a longer run.
#[test]
fn threads_that_decide_while_the_policy_changes_see_one_rule_set_and_lose_no_count() {
    const KEYS: usize = 8;
    const METHODS: [&str; 3] = ["GET", "PUT", "POST"];
    let seconds = std::env::var("PORTCULLIS_SOAK_SECONDS");
    let seconds = seconds.map_or(2, |text| text.parse().expect("a number of seconds"));
    // In a long run there are two changes a second; in a short one as many as possible.
    let pause = Duration::from_millis(if seconds > 10 { 500 } else { 5 });
    let paths: Vec<String> = (0..KEYS).map(|key| format!("/{key}")).collect();
    let granted: Vec<[AtomicU64; 3]> = (0..KEYS).map(|_| Default::default()).collect();
    let held: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    let live = LivePolicy::new(versions(0));
    let is_over = AtomicBool::new(false);
    let (decisions, oldest) = (AtomicU64::new(0), live.load());
    let now = at(10);
    let decide = |policy: &Policy, tag: Option<&str>, nth: usize| {
        let (key, method) = (nth % KEYS, nth / KEYS % 4);
        let name = METHODS.get(method).copied().unwrap_or("PATCH");
        let request = Request::new(name, &paths[key]);
        let decision = policy.decide_at(now, &request);
        let rule = decision.rule().expect("each request has a rule");
        if let Some(tag) = tag {
            assert_eq!(rule.etag(), Some(tag), "a rule of another rule set");
        }
        if decision.is_allowed() {
            if let Some(granted) = granted[key].get(method) {
                granted.fetch_add(1, Relaxed);
            } else {
                let out = held[key].fetch_add(1, Relaxed) + 1;
                assert!(out <= 4, "{out} at once, of at most 4");
                core::hint::spin_loop();
                held[key].fetch_sub(1, Relaxed);
            }
        }
        decisions.fetch_add(1, Relaxed);
    };
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (live, decide, is_over, oldest) = (&live, &decide, &is_over, &oldest);
            scope.spawn(move || {
                let mut reader = live.reader();
                for nth in (0..).map(|nth| nth * 3 + thread) {
                    if is_over.load(Relaxed) {
                        break;
                    }
                    match nth % 5 {
                        // From the first generation, for ever.
                        0 => decide(oldest, Some("0"), nth),
                        1 => {
                            let policy = live.load();
                            let tag = policy.generation().to_string();
                            assert!(policy.rules().all(|rule| rule.etag() == Some(&tag)));
                            decide(&policy, Some(&tag), nth);
                        }
                        _ => {
                            let policy = reader.policy();
                            let tag = policy.rules().next().unwrap().etag();
                            assert!(policy.rules().all(|rule| rule.etag() == tag));
                            decide(policy, tag, nth);
                        }
                    }
                }
            });
        }
        let until = Instant::now() + Duration::from_secs(seconds);
        for version in 1.. {
            if Instant::now() >= until && version % 3 == 0 {
                is_over.store(true, Relaxed);
                break;
            }
            assert_eq!(live.replace_at(now, versions(version)).kept().count(), 5);
            std::thread::sleep(pause);
        }
    });
    let largest = BURSTS.into_iter().max().unwrap();
    let generation = live.generation();
    live.replace_at(now, versions(1 + 3 * generation));
    let last = live.load();
    for (key, counts) in granted.iter().enumerate() {
        for (method, granted) in METHODS.iter().zip(counts) {
            let granted = granted.load(Relaxed);
            assert!(
                granted > 0 && granted <= largest,
                "{method}: {granted} of {largest}"
            );
            // Exactly what was granted is taken: the last limit is the largest.
            let request = Request::new(method, &paths[key]).cost(0);
            let status = last.decide_at(now, &request).status().unwrap();
            assert_eq!(granted + status.remaining, largest, "{method} of key {key}");
        }
        assert_eq!(held[key].load(Relaxed), 0);
        let request = Request::new("PATCH", &paths[key]).cost(3);
        assert!(
            last.decide_at(now, &request).is_allowed(),
            "all have returned"
        );
    }
    println!(
        "{generation} changes, {} decisions",
        decisions.load(Relaxed)
    );
}

/// Files of which none can go on with all the state of another: other keys, kinds, algorithms,
/// numbers of limits, and settings of paths.
const UNLIKE: &[&str] = &[
    "[[rules]]\nname='a'\nkey=['path']\nlimits=['1000000/h']\n",
    "[[rules]]\nname='a'\nkey=['path','method']\npenalty='1s'\n\
     limits=[{at_once=100},{rate='1000000/h',algorithm='fixed-window'}]\n",
    "[[rules]]\nname='a'\nlimits=[{rate='1000/h',algorithm='sliding-window',segments=64},'5/7d']\n\
     [[rules]]\nname='b'\nlimits=['1/s']\n",
    "[[rules]]\nname='b'\nkind='burst'\nlimits=['1/s']\n",
    "rules=[]",
    "[[rules]]\nname='a'\nkey=['path']\nhold='30s'\n\
     limits=[{rate='1000/m',debt=10},{rate='1000000/h',refill='stepwise'},{at_once=3}]\n\
     overrides=[{key=['/1'],limits=['3/h']},{key=['/2'],limits=[]}]\n",
    "[[rules]]\nname='a'\nenabled=false\nlimits=['1/s']\n\
     [[rules]]\nname='c'\nshadow=true\nkey=['path']\nlimits=[{at_once=2}]\n",
    "[paths]\nignore_case=true\n[[rules]]\nname='a'\nkey=['path']\nkeys=1\n\
     limits=['7/s',{rate='8/m',algorithm='window-from-request',wait='5d'}]\n\
     thresholds=[{at='5/10s',decision='x',hold='1m'}]\n",
    "[[rules]]\nname='a'\nkey=['path']\nkeys=10000\nlimits=['2199023255/1ms','1/106751d']\n",
];

/// While threads decide, hold, settle, report and explain, one file follows another. In the end
/// all permits at once are back.
#[test]
fn threads_that_use_policies_of_unlike_files_in_turn_lose_no_permit_at_once() {
    let read = |nth: usize| Policy::from_toml(UNLIKE[nth % UNLIKE.len()]).unwrap();
    let paths: Vec<String> = (0..5).map(|path| format!("/{path}")).collect();
    let live = LivePolicy::new(read(1));
    let work = |thread: usize| {
        let mut kept = Vec::new();
        for turn in 0_usize..if cfg!(debug_assertions) {
            3_000
        } else {
            30_000
        } {
            let draw = (turn * 7 + thread) * 11 % 97;
            let method = if draw.is_multiple_of(7) { "GET" } else { "PUT" };
            let request = Request::new(method, &paths[draw % 5]).cost(draw as u32 % 4);
            let (policy, now) = (live.load(), at(10_000 + draw as u64 % 5));
            match draw % 11 {
                0..=6 => {
                    let decision = policy.decide_at(now, &request);
                    let _ = (decision.retry(), decision.status());
                    if draw.is_multiple_of(3) {
                        kept.push(decision.into_owned(policy.share()));
                    }
                }
                7 => assert!(policy.explain_at(now, &request).is_ok()),
                8 => {
                    policy
                        .hold_at(now, &request)
                        .settle_at(now, draw as u32 % 9);
                }
                9 => {
                    policy.report_at(now, &request, 3);
                }
                _ => kept.truncate(1),
            }
            if turn.is_multiple_of(50) {
                std::thread::yield_now();
            }
        }
    };
    std::thread::scope(|scope| {
        let threads = [0, 1, 2].map(|thread| scope.spawn(move || work(thread)));
        let mut changes = 0;
        while changes < 30 || !threads.iter().all(ScopedJoinHandle::is_finished) {
            changes += 1;
            live.replace_at(at(10_000), read(4 * changes));
        }
        println!("{changes} changes");
    });
    live.replace_at(at(20_000), read(1));
    for (path, method) in paths
        .iter()
        .flat_map(|path| ["GET", "PUT"].map(|m| (path, m)))
    {
        let all = Request::new(method, path).cost(100);
        assert!(allows(&live, at(20_000), &all), "{method} {path}");
    }
}

#[test]
fn rules_that_add_up_keep_what_was_taken_when_the_file_changes() {
    let file = |count, more: &str| {
        Policy::from_toml(&format!(
            "[[rules]]
            name = 'each key'
            key = ['header:X-Api-Key']
            limits = ['{count}/m']
            continue = true
            {more}
            [[rules]]
            name = 'service'
            priority = 9
            limits = [{{ at_once = {count} }}]"
        ))
        .unwrap()
    };
    let login = "[[rules]]\nname = 'logins'\nlimits = ['3/m']\ncontinue = true\n";
    let live = LivePolicy::new(file(10, ""));
    let left = || {
        let policy = live.load();
        let probe = policy.decide_at(at(1), &GET.cost(0));
        probe
            .statuses()
            .map(|status| status.remaining)
            .collect::<Vec<_>>()
    };
    let load = || live.load().share();
    let held: Vec<_> = (0..4)
        .map(|_| live.load().decide_at(at(1), &GET).into_owned(load()))
        .collect();
    assert_eq!(left(), [6, 6]);
    live.replace_at(at(1), file(20, login));
    assert_eq!(left(), [16, 3, 16]);
    let more = live.load().decide_at(at(1), &GET).into_owned(load());
    assert_eq!(left(), [15, 2, 15]);
    // Permits of the policy before return to this one.
    drop(held);
    assert_eq!(left(), [15, 2, 19]);
    live.replace_at(at(1), file(5, ""));
    assert_eq!(left(), [0, 4]);
    drop(more);
    assert_eq!(left(), [0, 5]);
    // Nor does a rule that begins to add up lose anything.
    let one = |rule: Rule| {
        policy([
            rule.limit(limit("10/m")),
            Rule::new("b").limit(limit("9/m")),
        ])
    };
    let live = LivePolicy::new(one(Rule::new("a")));
    assert!(allows(&live, at(1), &GET.cost(4)));
    live.replace_at(at(1), one(Rule::new("a").continuing()));
    let policy = live.load();
    let decision = policy.decide_at(at(1), &GET);
    assert!(
        decision
            .statuses()
            .map(|status| status.remaining)
            .eq([5, 8])
    );
}
