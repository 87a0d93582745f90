//! Statistics count what was decided, exactly or within the error that they state.

#[path = "../../core/tests/support/allocations.rs"]
mod allocations;

use std::collections::BTreeMap;
use std::panic::catch_unwind;
use std::thread;

use allocations::allocations;
use portcullis_core::{Denied, Timestamp};
use portcullis_policy::{
    Conditions, Key, MAX_PATH_LEN, OnMissing, Outcome, Policy, Request, Rule, Statistics,
};

/// Numbers below a bound, the same in each run. Small ones are more frequent.
fn random() -> impl FnMut(u64) -> u64 {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    move |below| {
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        next().min(next())
    }
}

/// A policy with every kind of answer.
fn policy() -> Policy {
    Policy::new([
        Rule::new("shadow")
            .shadow()
            .key(Key::path())
            .limit("1/s".parse().unwrap()),
        Rule::new("tenants")
            .when(Conditions::new().methods(["POST"]))
            .key(Key::header("X-Tenant"))
            .on_missing(OnMissing::Deny)
            .exempt_header("X-Tenant", ["t0"])
            .limit("3/s".parse().unwrap())
            .limit("10/m".parse().unwrap()),
        Rule::new("banned")
            .when(Conditions::new().methods(["PUT"]))
            .limit("20/s".parse().unwrap())
            .penalty(core::time::Duration::from_secs(3)),
        Rule::new("few keys")
            .when(Conditions::new().methods(["PATCH"]))
            .key(Key::header("X-Tenant"))
            .keys(1)
            .limit("1/d".parse().unwrap()),
        Rule::new("own limits")
            .when(Conditions::new().methods(["HEAD"]))
            .key(Key::header("X-Tenant"))
            .limit("1/s".parse().unwrap())
            .override_key(["t1"], ["2/d".parse().unwrap()]),
        Rule::new("skips")
            .key(Key::property("none"))
            .on_missing(OnMissing::Skip)
            .limit("1/d".parse().unwrap()),
    ])
    .unwrap()
}

/// Decides random requests, and tells `decided` of each.
fn requests(count: u64, mut decide: impl FnMut(Timestamp, &Request<'_>)) {
    let mut random = random();
    let long = "/a".repeat(MAX_PATH_LEN);
    for index in 0..count {
        let now = Timestamp::from_millis(1_000 + index * 7);
        let tenant = format!("t{}", random(300));
        let path = format!("/{}", random(40));
        let headers = [("x-tenant", if random(9) == 8 { "" } else { &*tenant })];
        let method = ["GET", "POST", "PUT", "PATCH", "HEAD"][random(5) as usize];
        let path = if random(50) == 45 { &*long } else { &*path };
        decide(now, &Request::new(method, path).headers(&headers));
    }
}

/// In the table with room for few keys, one of 300 keys collides with another in about 1 of 200
/// runs. A mistake shows in each run.
#[test]
fn the_counts_of_rules_and_keys_are_those_of_the_decisions() {
    let agree = |_| catch_unwind(counts_are_those_of_the_decisions).is_ok();
    assert!((0..3).any(agree), "see the failures above");
}

fn counts_are_those_of_the_decisions() {
    // Room for all keys.
    let (policy, same) = (policy(), policy());
    let statistics = Statistics::new(&policy)
        .keys(1_000)
        .resources(Key::path(), 1_000);
    let mut answers = BTreeMap::<(usize, String), u64>::new();
    let mut keys = BTreeMap::<(usize, String), u64>::new();
    let mut paths = BTreeMap::<String, u64>::new();
    let (mut without_rule, mut refused) = (0, 0);
    requests(20_000, |now, request| {
        let counted = statistics.decide_at(&policy, now, request);
        let mut is_denied = Vec::new();
        let decision = same.decide_watched_at(now, request, |answer| {
            let what = match answer.outcome {
                Outcome::Denied { limit: None, .. } => "penalized".into(),
                Outcome::Denied {
                    denied: Denied::Crowded { .. },
                    ..
                } => "crowded".into(),
                Outcome::Denied { .. } if answer.is_overridden() => "overridden".into(),
                Outcome::Denied {
                    limit: Some(limit), ..
                } => format!("limit {limit}"),
                outcome => format!("{outcome:?}"),
            };
            if !matches!(answer.outcome, Outcome::Allowed | Outcome::Exempt) {
                is_denied.push((answer.index, answer.rule));
            }
            *answers.entry((answer.index, what)).or_default() += 1;
        });
        assert_eq!(counted.is_allowed(), decision.is_allowed());
        for (index, rule) in is_denied {
            let key = same.key_values(rule, request).to_string();
            *keys.entry((index, key)).or_default() += 1;
        }
        without_rule += u64::from(decision.outcome() == Outcome::NoRule);
        refused += u64::from(matches!(decision.outcome(), Outcome::Path(_)));
        let path = match request.path {
            path if path.len() > MAX_PATH_LEN => "-",
            path => path,
        };
        *paths.entry(path.into()).or_default() += 1;
    });
    assert_eq!(
        (statistics.without_rule(), statistics.refused_paths()),
        (without_rule, refused)
    );
    assert!(without_rule > 0 && refused > 0);
    let mut seen = 0;
    for (index, counts) in statistics.rules().iter().enumerate() {
        let count = |what: &str| {
            let count = answers.get(&(index, what.into())).copied().unwrap_or(0);
            seen += usize::from(count > 0);
            count
        };
        let mut count = count;
        assert_eq!(counts.allowed, count("Allowed"), "rule {index}");
        assert_eq!(counts.exempt, count("Exempt"));
        assert_eq!(counts.unidentified, count("Unidentified"));
        assert_eq!(counts.penalized, count("penalized"));
        assert_eq!(counts.crowded, count("crowded"));
        assert_eq!(counts.overridden, count("overridden"));
        for (limit, &denied) in counts.by_limit.iter().enumerate() {
            assert_eq!(
                denied,
                count(&format!("limit {limit}")),
                "limit {limit} of {index}"
            );
        }
        let all = counts.by_limit.iter().sum::<u64>() + counts.overridden;
        let all = all + counts.penalized + counts.crowded;
        assert_eq!(counts.denied(), all + counts.unidentified);
        assert_eq!(
            counts.asked(),
            counts.denied() + counts.allowed + counts.exempt
        );
    }
    assert_eq!(seen, answers.len());
    let found: BTreeMap<_, _> = statistics
        .most_denied(usize::MAX)
        .into_iter()
        .map(|key| {
            assert_eq!(key.error, 0);
            ((key.rule.unwrap(), key.text), key.count)
        })
        .collect();
    assert_eq!((found, statistics.most_missed()), (keys, 0));
    let found = statistics.most_asked(usize::MAX).into_iter();
    assert_eq!(
        found
            .map(|path| (path.text, path.count))
            .collect::<BTreeMap<_, _>>(),
        paths
    );
}

#[test]
fn the_limits_of_given_keys_are_counted_and_scaled_too() {
    let per_day = |count| format!("{count}/d").parse().unwrap();
    let rule = Rule::new("all")
        .key(Key::header("X-Tenant"))
        .limit(per_day(1))
        .override_key(["gold"], [per_day(100), per_day(2)]);
    let denied = |rule: Rule| {
        let policy = Policy::new([rule]).unwrap();
        let statistics = Statistics::new(&policy);
        for tenant in ["gold", "other"].into_iter().cycle().take(20) {
            let headers = [("X-Tenant", tenant)];
            let request = Request::new("GET", "/").headers(&headers);
            drop(statistics.decide_at(&policy, Timestamp::from_secs(1), &request));
        }
        let counts = statistics.rules().remove(0);
        assert_eq!(counts.denied() + counts.allowed, 20);
        (counts.by_limit, counts.overridden)
    };
    assert_eq!(denied(rule.clone()), (vec![9], 8));
    assert_eq!(denied(rule.clone().scaled(3, 1)), (vec![7], 4));
    assert_eq!(denied(rule.scaled(1, 100)), (vec![9], 9));
}

#[test]
fn with_more_keys_than_room_every_count_is_within_its_error() {
    let policy = Policy::new([Rule::new("all")
        .key(Key::header("X-Tenant"))
        .keys(10_000)
        .limit("1/d".parse().unwrap())])
    .unwrap();
    let room = 40;
    let statistics = Statistics::new(&policy).keys(room);
    let mut exact = BTreeMap::<String, u64>::new();
    requests(30_000, |now, request| {
        let decision = statistics.decide_at(&policy, now, request);
        if !decision.is_allowed() && request.path.len() <= MAX_PATH_LEN {
            let tenant = request
                .headers
                .value("x-tenant")
                .filter(|text| !text.is_empty());
            *exact.entry(tenant.unwrap_or("-").into()).or_default() += 1;
        }
    });
    let denials: u64 = exact.values().sum();
    assert!(exact.len() > 2 * room);
    let found = statistics.most_denied(usize::MAX);
    assert_eq!(found.len(), room);
    assert!(found.is_sorted_by_key(|key| u64::MAX - key.count));
    for key in &found {
        let exact = exact[&key.text];
        assert!(
            (key.count - key.error..=key.count).contains(&exact),
            "{key:?}: {exact}"
        );
    }
    assert!(statistics.most_missed() <= denials / room as u64);
    for (key, &count) in &exact {
        let is_found = found.iter().any(|found| found.text == *key);
        assert!(
            is_found || count <= statistics.most_missed(),
            "{key}: {count}"
        );
    }
}

#[test]
fn no_count_of_several_threads_is_lost() {
    let limit = "1/d".parse().unwrap();
    let policy = Policy::new([Rule::new("all").key(Key::address()).limit(limit)]).unwrap();
    let statistics = Statistics::new(&policy).resources(Key::method(), 10);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for client in 0..1_000_u32 {
                    let address = core::net::Ipv4Addr::from_bits(client % 10);
                    let request = Request::new("GET", "/").address(address.into());
                    drop(statistics.decide_at(&policy, Timestamp::from_secs(1), &request));
                }
            });
        }
    });
    let counts = &statistics.rules()[0];
    // While a thread claims the slot of a new key, others find no room for the key.
    let denied = counts.by_limit[0] + counts.crowded;
    assert_eq!((counts.allowed, denied), (10, 3_990));
    let denied = statistics.most_denied(20);
    assert_eq!(denied.len(), 10);
    assert!(denied.iter().all(|key| key.count == 399), "{denied:?}");
    assert_eq!(statistics.most_asked(1)[0].count, 4_000);
}

#[test]
fn a_counted_decision_allocates_nothing() {
    let policy = policy();
    let statistics = Statistics::new(&policy).keys(10).resources(Key::path(), 10);
    let decide = |number: u32| {
        let mut tenant = *b"t000";
        for (place, digit) in tenant[1..]
            .iter_mut()
            .zip([number / 100, number / 10, number])
        {
            *place = b'0' + (digit % 10) as u8;
        }
        let headers = [("X-Tenant", str::from_utf8(&tenant).unwrap())];
        let method = ["GET", "POST", "PUT", "PATCH"][number as usize % 4];
        let request = Request::new(method, "/a//%62").headers(&headers);
        statistics
            .decide_at(&policy, Timestamp::from_secs(1), &request)
            .is_allowed()
    };
    // The first lock of a shard may allocate.
    decide(0);
    let mut denied = 0;
    let count = allocations(|| denied = (0..900).filter(|&number| !decide(number)).count());
    assert!(denied > 100);
    assert_eq!(count, 0);
}

#[test]
fn a_decision_that_is_passed_on_counts_as_one_that_the_statistics_make() {
    let policy = policy();
    let [made, passed] = [(); 2].map(|()| {
        let statistics = Statistics::new(&policy).keys(100_000);
        statistics.resources(Key::path(), 100_000)
    });
    // By turns.
    let mut turn = 0;
    let mut by_outcome: BTreeMap<String, [u32; 2]> = BTreeMap::new();
    let mut in_shadow: BTreeMap<String, u64> = BTreeMap::new();
    requests(20_000, |now, request| {
        turn = 1 - turn;
        let outcome = if turn == 0 {
            made.decide_at(&policy, now, request).outcome()
        } else {
            let decision = policy.decide_at(now, request);
            passed.count(&decision, request);
            if decision.shadow_denied().is_some() {
                *in_shadow.entry(request.path.to_owned()).or_default() += 1;
            }
            decision.outcome()
        };
        let kind = match outcome {
            Outcome::Denied { limit, .. } => format!("denied {limit:?}"),
            other => format!("{other:?}"),
        };
        by_outcome.entry(kind).or_default()[turn] += 1;
    });
    let count = |kind: &str, turn: usize| {
        let counts = by_outcome.iter().filter(|(name, _)| name.starts_with(kind));
        counts
            .map(|(_, counts)| u64::from(counts[turn]))
            .sum::<u64>()
    };
    for (statistics, turn) in [(&made, 0), (&passed, 1)] {
        // The shadow rule is the first one.
        let rules = &statistics.rules()[1..];
        let sum =
            |of: &dyn Fn(&portcullis_policy::RuleCounts) -> u64| rules.iter().map(of).sum::<u64>();
        assert_eq!(sum(&|rule| rule.allowed), count("Allowed", turn));
        assert_eq!(sum(&|rule| rule.exempt), count("Exempt", turn));
        assert_eq!(sum(&|rule| rule.unidentified), count("Unidentified", turn));
        assert_eq!(sum(&|rule| rule.penalized), count("denied None", turn));
        let by_limits =
            sum(&|rule| rule.by_limit.iter().sum::<u64>() + rule.overridden + rule.crowded);
        assert_eq!(by_limits, count("denied Some", turn));
        assert_eq!(statistics.without_rule(), count("NoRule", turn));
        let asked: u64 = statistics
            .most_asked(1_000)
            .iter()
            .map(|each| each.count)
            .sum();
        assert_eq!(asked, 10_000);
    }
    assert!(by_outcome.len() > 6, "{by_outcome:?}");
    let shadow = &passed.rules()[0];
    assert_eq!(shadow.asked(), 0, "shadow rules are not counted");
    // Its keys are.
    let keys = passed.most_denied(usize::MAX).into_iter();
    let of_shadow = keys.filter(|key| key.rule == Some(0));
    let counted: BTreeMap<_, _> = of_shadow.map(|key| (key.text, key.count)).collect();
    assert!(!in_shadow.is_empty());
    assert_eq!(counted, in_shadow);
}
