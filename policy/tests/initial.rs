//! Limits that start with fewer permits than they can hold.

use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use core::time::Duration;
use std::thread;

use portcullis_core::{Limiter, Rate, Retry, Timestamp, TokenBucket};
use portcullis_counters::{CounterLimit, CounterLimitError};
use portcullis_policy::{Algorithm, Considered, Key, Limit, LivePolicy, Policy, Request, Rule};
use proptest::collection::vec;
use proptest::prelude::*;

fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn limit(rate: &str, burst: u64, initial: u64) -> Limit {
    rate.parse::<Limit>().unwrap().burst(burst).initial(initial)
}

fn policy(limits: impl IntoIterator<Item = Limit>) -> Policy {
    Policy::new([limits.into_iter().fold(Rule::new("all"), Rule::limit)]).unwrap()
}

fn allows(policy: &Policy, millis: u64, cost: u32) -> bool {
    let request = Request::new("GET", "/").cost(cost);
    policy.decide_at(at(millis), &request).is_allowed()
}

/// What is left of each limit, as the explanation of a request says.
fn left(policy: &Policy, millis: u64) -> Vec<u64> {
    let explained = policy.explain_at(at(millis), &Request::new("GET", "/"));
    let Considered::Limits { details, .. } = &explained.unwrap()[0].considered else {
        panic!("the rule matches");
    };
    details.iter().map(|detail| detail.available).collect()
}

#[derive(Clone, Debug)]
struct Case {
    /// The count per second, the burst, and the initial permits. `None` for a window.
    limits: Vec<(u32, u64, Option<u64>)>,
    start: u64,
    /// The milliseconds since the request before, and the cost.
    requests: Vec<(u64, u32)>,
}

fn case() -> impl Strategy<Value = Case> {
    let limit = (1..20_u32, 1..30_u64, 0..40_u64);
    let limit = limit.prop_map(|(count, burst, initial)| match initial {
        // A window of `burst` permits.
        35.. => (count, burst, None),
        _ => (count, burst, Some(initial.min(burst))),
    });
    (
        vec(limit, 1..5),
        0..100_000_000_u64,
        vec((0..400_u64, 0..6_u32), 1..60),
    )
        .prop_map(|(limits, start, requests)| Case {
            limits,
            start,
            requests,
        })
}

/// The limits of a case as limiters that start at the first request.
fn limiters(case: &Case, first: Timestamp) -> Vec<Box<dyn Limiter>> {
    let limiter = |&(count, burst, initial): &(u32, u64, Option<u64>)| -> Box<dyn Limiter> {
        match initial {
            None => Box::new(portcullis_core::FixedWindow::new(
                burst,
                Duration::from_secs(1),
            )),
            Some(initial) => {
                let bucket = TokenBucket::builder(Rate::per_second(count), burst);
                Box::new(bucket.initial(initial).origin(first).build().unwrap())
            }
        }
    };
    case.limits.iter().map(limiter).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// One limit has a table of its own; several share one.
    #[test]
    fn the_limits_start_with_their_initial_permits_at_the_first_decision(case in case()) {
        let limits = case.limits.iter().map(|&(count, burst, initial)| match initial {
            None => Limit::per(burst, Duration::from_secs(1)).algorithm_of(Algorithm::FixedWindow),
            Some(initial) => limit(&format!("{count}/s"), burst, initial),
        });
        let limits: Vec<_> = limits.collect();
        let of_rule = policy(limits.clone());
        let of_key = Rule::new("all").key(Key::path()).limit("1/d".parse().unwrap());
        let of_key = Policy::new([of_key.override_key(["/"], limits)]).unwrap();
        let mut now = case.start;
        let first = at(now + case.requests[0].0);
        let expected = limiters(&case, first);
        for &(later, cost) in &case.requests {
            now += later;
            let all = expected.iter().map(|limiter| limiter.available_at(at(now)));
            let all: Vec<u64> = all.collect();
            prop_assert_eq!(&left(&of_rule, now), &all);
            prop_assert_eq!(&left(&of_key, now), &all);
            let is_allowed = expected.iter().all(|limiter| limiter.peek_at(at(now), cost).is_ok());
            if is_allowed {
                for limiter in &expected {
                    limiter.take_at(at(now), cost).unwrap();
                }
            }
            prop_assert_eq!(allows(&of_rule, now, cost), is_allowed);
            prop_assert_eq!(allows(&of_key, now, cost), is_allowed);
        }
    }
}

#[test]
fn an_explanation_does_not_start_a_limit() {
    let policy = policy([limit("1/s", 10, 2), limit("5/s", 9, 0)]);
    assert_eq!(left(&policy, 1_000), [2, 0]);
    assert_eq!(left(&policy, 1_000_000_000), [2, 0]);
    assert!(!allows(&policy, 5_000, 1));
    assert_eq!(left(&policy, 6_000), [3, 5]);
}

#[test]
fn a_denial_at_the_start_says_when_to_come_back() {
    let policy = policy([limit("10/s", 50, 0)]);
    let request = Request::new("GET", "/").cost(2);
    let denied = policy.decide_at(at(7_000), &request);
    assert!(!denied.is_allowed());
    assert_eq!(denied.retry(), Some(Retry::At(at(7_200))));
    assert!(!allows(&policy, 7_199, 2));
    assert!(allows(&policy, 7_200, 2));
}

#[test]
fn steps_come_in_on_their_grid_after_the_start() {
    let policy = policy([limit("4/s", 10, 1).stepwise()]);
    assert!(allows(&policy, 1_900, 1) && !allows(&policy, 1_999, 1));
    assert!(allows(&policy, 2_000, 4) && !allows(&policy, 2_999, 1));
}

/// Both threads ask each policy for the first time at the same instant.
#[test]
fn no_thread_gets_permits_before_the_start() {
    const POLICIES: usize = 3_000;
    let create = |round: usize| {
        let limits = [limit("1/h", 1_000, 5), limit("1/h", 2_000, 7)];
        policy(limits[..=(round % 2)].iter().cloned())
    };
    let policies: Vec<_> = (0..POLICIES).map(create).collect();
    let granted: Vec<_> = (0..POLICIES).map(|_| AtomicUsize::new(0)).collect();
    let arrived = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for (round, (policy, granted)) in policies.iter().zip(&granted).enumerate() {
                    arrived.fetch_add(1, Relaxed);
                    let mut spins = 0;
                    while arrived.load(Relaxed) < 2 * (round + 1) {
                        spins += 1;
                        if spins % 1_000 == 0 {
                            thread::yield_now();
                        }
                    }
                    let taken = (0..4).filter(|_| allows(policy, 1_000, 1)).count();
                    granted.fetch_add(taken, Relaxed);
                }
            });
        }
    });
    assert!(granted.iter().all(|granted| granted.load(Relaxed) == 5));
}

#[test]
fn a_limit_that_goes_on_does_not_start_again() {
    let live = LivePolicy::new(policy([limit("1/s", 10, 2)]));
    assert!(allows(&live.load(), 1_000, 2));
    // Other initial permits, a higher burst, and one more limit, which starts.
    live.replace_at(
        at(1_000),
        policy([limit("1/s", 20, 0), limit("1/h", 9, 4).named("b")]),
    );
    assert_eq!(left(&live.load(), 1_000), [10, 4]);
    assert!(allows(&live.load(), 2_000, 3));
    assert_eq!(left(&live.load(), 2_000), [8, 1]);
    live.replace_at(
        at(2_000),
        policy([limit("1/h", 9, 4).named("b"), limit("1/s", 20, 0)]),
    );
    assert_eq!(left(&live.load(), 2_000), [1, 8]);
}

#[test]
fn a_limit_without_a_decision_starts_at_the_change() {
    let live = LivePolicy::new(policy([limit("1/s", 10, 2)]));
    live.replace_at(at(5_000), policy([limit("2/s", 20, 2)]));
    // It has begun at 5 s, and its burst was raised.
    assert_eq!(left(&live.load(), 5_000), [12]);
    assert_eq!(left(&live.load(), 6_000), [14]);
}

#[test]
fn a_limit_that_starts_beside_others_in_their_table_takes_only_its_own_permits() {
    let per_hour = || "100/h".parse::<Limit>().unwrap().named("a");
    let live = LivePolicy::new(policy([
        per_hour(),
        "50/h".parse::<Limit>().unwrap().named("b"),
    ]));
    assert!(allows(&live.load(), 1_000, 50));
    let limits = [
        per_hour(),
        "50/h".parse::<Limit>().unwrap().named("b"),
        limit("1/s", 30, 3),
    ];
    live.replace_at(at(1_000), policy(limits));
    // The second limit has no permit left, so this one is denied.
    assert!(!allows(&live.load(), 1_000, 1));
    assert_eq!(left(&live.load(), 1_000), [50, 0, 3]);
}

#[test]
fn initial_permits_are_refused_where_a_key_can_be_forgotten() {
    let errors = Policy::new([Rule::new("all").key(Key::path()).limit(limit("1/s", 5, 2))]);
    assert_eq!(
        errors.unwrap_err()[0].to_string(),
        "rule `all`: limits[0].initial: a rule with a key forgets a key when all its permits have \
         returned, so it would lose permits when it comes back: leave initial out, and set burst \
         to the most that a new client may use at once"
    );
    let rule = Rule::new("all")
        .limit(limit("1/s", 5, 2))
        .stored_in("shared");
    let errors = Policy::new([rule]).unwrap_err();
    let problem = "initial: not supported by a limit in a counter store";
    assert_eq!(errors.len(), 1);
    assert_eq!(errors[0].problem, problem);
    let refused = CounterLimit::try_from(&limit("1/s", 5, 2));
    assert_eq!(refused, Err(CounterLimitError::Unsupported("initial")));
}

#[test]
fn initial_permits_that_do_not_fit_are_refused() {
    let refused = |limit: Limit| {
        let errors = Policy::new([Rule::new("all").limit(limit)]).unwrap_err();
        (errors[0].setting.clone(), errors[0].problem.clone())
    };
    let of = |problem: &str| ("limits[0]".to_owned(), problem.to_owned());
    assert_eq!(
        refused(limit("1/s", 5, 6)),
        of("initial must be 0 to 5, the burst")
    );
    let window = Limit::per(5, Duration::from_secs(1)).algorithm_of(Algorithm::FixedWindow);
    let unused = of("initial has no effect on this kind of limit: leave it out");
    assert_eq!(refused(window.initial(1)), unused);
    assert_eq!(refused(Limit::at_once(5).initial(1)), unused);
    let burst = 5_000_000_000;
    assert_eq!(
        refused(limit("1/s", burst, 5)),
        of("initial must be 705032705 to 5000000000, the burst")
    );
    assert_eq!(
        left(&policy([limit("1/s", burst, 705_032_705)]), 1_000),
        [705_032_705]
    );
}

#[test]
fn files_have_initial_permits_and_name_the_place_of_wrong_ones() {
    let read = Policy::from_toml(
        "[[rules]]
name = 'all'
limits = [{ rate = '10/s', initial = 2 }, { rate = '20/m' }]
[[rules]]
name = 'keys'
key = ['path']
limits = ['1/s']
overrides = [{ key = ['/'], limits = [{ rate = '9/s', burst = 20, initial = 0 }] }]",
    );
    let read = read.unwrap();
    assert_eq!(left(&read, 1_000), [2, 20]);
    assert_eq!(read.rule("all").unwrap().limits()[0].initial_permits(), 2);
    let wrong = "[[rules]]\r
name = 'all'\r
key = ['path']\r
limits = ['1/s', { rate = '10/s', initial = 2 }]\r
[[rules]]\r
name = 'more'\r
limits = [\r
\t{ name = 'é', rate = '10/s', initial = 11 },\r
\t{ rate = '10/s', algorithm = 'fixed-window', initial = 1 },\r
]\r
";
    let errors = Policy::from_toml(wrong).unwrap_err();
    let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
    let expected = [
        "4:45: limits[1].initial: a rule with a key forgets a key when all its permits have",
        "8:2: limits[0]: initial must be 0 to 10, the burst",
        "9:2: limits[1]: initial has no effect on this kind of limit: leave it out",
    ];
    assert_eq!(errors.len(), 3, "{errors:#?}");
    for (error, expected) in errors.iter().zip(expected) {
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn a_settlement_returns_what_was_taken_after_the_start() {
    let rule = Rule::new("all").hold(Duration::from_mins(1));
    let rule = rule
        .limit(limit("1/h", 100, 10))
        .limit("50/h".parse().unwrap());
    let policy = Policy::new([rule]).unwrap();
    let hold = policy.hold_at(at(1_000), &Request::new("GET", "/").cost(8));
    assert!(hold.is_allowed());
    assert_eq!(left(&policy, 1_000), [2, 42]);
    assert_eq!(hold.settle_at(at(1_000), 3).unused, 5);
    assert_eq!(left(&policy, 1_000), [7, 47]);
}

#[cfg(feature = "queue")]
#[test]
fn a_request_that_waits_is_granted_when_its_permits_have_come_in() {
    let policy = policy([limit("20/s", 100, 0).queue(5)]);
    let decision = policy.blocking_acquire(&Request::new("GET", "/").cost(2));
    assert!(decision.is_allowed());
    // The permits come in from the first decision on, which reads the time before it waits.
    assert!(decision.waited() >= Duration::from_millis(90));
}
