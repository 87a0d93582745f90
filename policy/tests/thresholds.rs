//! Thresholds put decisions in force as a list of all reports does.

#[path = "../../core/tests/support/allocations.rs"]
mod allocations;

use core::time::Duration;
use std::collections::BTreeMap;
use std::thread;

use allocations::allocations;
use portcullis_core::Timestamp;
use portcullis_policy::{
    Conditions, Considered, Key, MAX_PATH_LEN, OnMissing, Outcome, PathError, Policy, Request,
    Rule, Threshold,
};

/// Numbers below a bound, the same in each run.
fn random() -> impl FnMut(u64) -> u64 {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    }
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The model of one threshold and key: all reports in milliseconds, and the end of the last hold.
#[derive(Default)]
struct Model {
    reports: Vec<(u64, u64)>,
    newest: u64,
    held_until: Option<u64>,
}

impl Model {
    fn sum(&self, threshold: &Threshold, now: u64) -> u64 {
        let segment = threshold.window().as_millis() as u64 / u64::from(threshold.segments());
        let first = (now / segment + 1).saturating_sub(threshold.segments().into());
        let counted = self.reports.iter().filter(|(at, _)| at / segment >= first);
        counted.map(|(_, n)| n).sum()
    }

    fn report(&mut self, threshold: &Threshold, now: u64, n: u64) {
        self.newest = self.newest.max(now);
        let now = self.newest;
        self.reports.push((now, n));
        let is_on = self.held_until.is_some_and(|until| now < until);
        if self.sum(threshold, now) >= threshold.value().into() && !is_on {
            self.held_until = Some(now + threshold.hold().as_millis() as u64);
        }
    }

    fn is_in_force(&self, threshold: &Threshold, now: u64) -> bool {
        self.sum(threshold, now) >= threshold.value().into()
            || self.held_until.is_some_and(|until| now < until)
    }
}

#[test]
fn decisions_are_in_force_as_a_list_of_all_reports_says() {
    let of_client = [
        Threshold::new(20, seconds(10), "slow").holding_for(seconds(5)),
        Threshold::new(60, seconds(10), "captcha").holding_for(seconds(30)),
        Threshold::new(60, seconds(2), "deny").in_segments(4),
        Threshold::new(15, seconds(1), "alarm")
            .in_segments(1)
            .holding_for(Duration::from_millis(100)),
    ];
    let of_all = [
        Threshold::new(120, seconds(16), "overload")
            .in_segments(16)
            .holding_for(seconds(1)),
        Threshold::new(1, Duration::from_millis(500), "any"),
    ];
    let new = |name, thresholds: &[Threshold]| {
        let rule = Rule::new(name);
        thresholds
            .iter()
            .fold(rule, |rule, threshold| rule.threshold(threshold.clone()))
    };
    let policy = Policy::new([
        new("clients", &of_client).key(Key::header("X-Client")),
        new("all", &of_all).when(Conditions::new().methods(["POST"])),
    ])
    .unwrap();
    let mut random = random();
    let mut models = BTreeMap::<(String, usize, String), Model>::new();
    let (mut now, mut seen) = (10_000, BTreeMap::<String, u64>::new());
    for _ in 0..8_000 {
        now += match random(10) {
            0..6 => 0,
            6..9 => random(400),
            _ => random(30_000),
        };
        let client = format!("c{}", random(5));
        let method = ["GET", "POST"][random(2) as usize];
        let headers = [("X-Client", &client)];
        let request = Request::new(method, "/").headers(&headers);
        let n = random(12);
        assert!(policy.report_at(Timestamp::from_millis(now), &request, n as u32));
        let look = now + [0, 0, random(3_000)][random(3) as usize];
        let mut expected = Vec::new();
        let rules = [
            ("clients", &of_client[..], &*client),
            ("all", &of_all[..], ""),
        ];
        for (rule, thresholds, key) in rules {
            if rule == "all" && method == "GET" {
                continue;
            }
            for (index, threshold) in thresholds.iter().enumerate() {
                let model = models.entry((rule.into(), index, key.into())).or_default();
                if n > 0 {
                    model.report(threshold, now, n);
                }
                if model.is_in_force(threshold, look) {
                    expected.push((rule, threshold.decision(), model.sum(threshold, look)));
                    *seen.entry(threshold.decision().into()).or_default() += 1;
                }
            }
        }
        let mut found = Vec::new();
        let visited = policy.in_force_at(Timestamp::from_millis(look), &request, |decision| {
            let threshold = decision.threshold;
            assert_eq!(
                decision.is_reached,
                decision.activity >= threshold.value().into()
            );
            found.push((
                decision.rule.name(),
                threshold.decision(),
                decision.activity,
            ));
        });
        visited.unwrap();
        assert_eq!(found, expected, "at {now}, seen at {look}");
    }
    assert!(
        seen.len() == 6 && seen.values().all(|&count| (10..7_900).contains(&count)),
        "{seen:?}"
    );
}

#[test]
fn a_decision_is_in_force_from_its_report_to_the_end_of_its_hold() {
    let threshold = Threshold::new(3, seconds(10), "deny").holding_for(seconds(60));
    let policy = Policy::new([Rule::new("a").threshold(threshold)]).unwrap();
    let request = Request::new("GET", "/");
    let is_denied = |nanos| {
        let now = Timestamp::from_nanos(nanos);
        policy.is_in_force_at(now, &request, "deny").unwrap()
    };
    let start = 5_000_000_007;
    policy.report_at(Timestamp::from_nanos(start), &request, 2);
    assert!(!is_denied(start));
    policy.report_at(Timestamp::from_nanos(start), &request, 1);
    assert!(is_denied(start));
    let end = start + 60_000_000_000;
    assert!(is_denied(end - 1));
    assert!(!is_denied(end + 1), "a nanosecond later");
    // At an older time no less is in force.
    assert!(is_denied(start - 1_000_000_000));
}

#[test]
fn a_hold_does_not_come_back_while_its_key_is_not_used() {
    let threshold = Threshold::new(3, seconds(10), "deny").holding_for(seconds(60));
    let rule = Rule::new("a").key(Key::path()).threshold(threshold);
    let policy = Policy::new([rule]).unwrap();
    let request = Request::new("GET", "/");
    policy.report_at(Timestamp::from_secs(1), &request, 3);
    let is_denied = |second| {
        let now = Timestamp::from_secs(second);
        policy.is_in_force_at(now, &request, "deny").unwrap()
    };
    assert!((1..61).step_by(20).all(is_denied));
    // Four days, in steps that are shorter than the hold, and ten years.
    assert!(!(61..4 * 86_400).step_by(20).any(is_denied));
    assert!(!(61..10 * 365 * 86_400).step_by(99_991).any(is_denied));
}

#[test]
fn a_report_without_an_address_is_counted_only_if_the_rule_shares_it() {
    let rule = || {
        Rule::new("clients")
            .key(Key::address())
            .threshold(Threshold::new(1, seconds(10), "deny"))
    };
    let (at, request) = (Timestamp::from_secs(5), Request::new("GET", "/"));
    for (rule, expected) in [
        (rule(), (false, Ok(false))),
        (rule().on_missing(OnMissing::Share), (true, Ok(true))),
        // These say that they do not count it.
        (rule().on_missing(OnMissing::Deny), (true, Ok(false))),
        (rule().on_missing(OnMissing::Skip), (true, Ok(false))),
    ] {
        let policy = Policy::new([rule]).unwrap();
        let is_counted = policy.report_at(at, &request, 1);
        let is_in_force = policy.is_in_force_at(at, &request, "deny");
        assert_eq!((is_counted, is_in_force), expected);
        let known = request.address("192.0.2.7".parse().unwrap());
        assert!(policy.report_at(at, &known, 1));
        assert_eq!(policy.is_in_force_at(at, &known, "deny"), Ok(true));
    }
}

#[test]
fn rules_with_thresholds_count_by_their_conditions_and_decide_nothing() {
    let deny = || Threshold::new(1, seconds(10), "deny");
    let policy = Policy::new([
        Rule::new("exempts")
            .threshold(deny())
            .exempt_header("X-Client", ["admin"])
            .key(Key::header("X-Client"))
            .on_missing(OnMissing::Skip),
        Rule::new("shadow")
            .shadow()
            .threshold(Threshold::new(1, seconds(10), "new")),
        Rule::new("limited").limit("1/m".parse().unwrap()),
    ])
    .unwrap();
    let at = Timestamp::from_secs(5);
    let decisions = |client: &str| {
        let headers = [("X-Client", client)];
        let request = Request::new("GET", "/").headers(&headers);
        assert!(policy.report_at(at, &request, 1));
        assert_eq!(
            policy.is_in_force_at(at, &request, "new"),
            Ok(false),
            "a shadow"
        );
        let mut all = Vec::new();
        policy
            .in_force_at(at, &request, |is| all.push(is.rule.name()))
            .unwrap();
        all
    };
    assert_eq!(decisions("admin"), ["shadow"]);
    assert_eq!(decisions(""), ["shadow"]);
    assert_eq!(decisions("guest"), ["exempts", "shadow"]);
    let headers = [("X-Client", "admin")];
    let request = Request::new("GET", "/").headers(&headers);
    let decision = policy.decide_at(at, &request);
    assert_eq!(decision.outcome(), Outcome::Allowed);
    assert_eq!(decision.rule().map(Rule::name), Some("limited"));
    let explained = policy.explain_at(at, &request).unwrap();
    let considered: Vec<_> = explained
        .iter()
        .map(|rule| (matches!(rule.considered, Considered::Counts), rule.decides))
        .collect();
    assert_eq!(considered, [(true, false), (true, false), (false, true)]);
    let long = "/a".repeat(MAX_PATH_LEN);
    let long = Request::new("GET", &long);
    assert!(!policy.report_at(at, &long, 1));
    assert_eq!(
        policy.is_in_force_at(at, &long, "deny"),
        Err(PathError::TooLong)
    );
}

#[test]
fn more_activity_than_a_window_counts_reaches_every_threshold() {
    let most = Threshold::new(u32::MAX, seconds(10), "most");
    let policy = Policy::new([Rule::new("a").threshold(most)]).unwrap();
    let request = Request::new("GET", "/");
    let at = Timestamp::from_secs(5);
    let mut sums = Vec::new();
    for n in [1, u32::MAX - 5, 100, 100] {
        assert!(policy.report_at(at, &request, n));
        policy
            .in_force_at(at, &request, |is| sums.push(is.activity))
            .unwrap();
    }
    assert_eq!(sums, [u64::from(u32::MAX); 2]);
}

#[test]
fn a_report_without_room_for_its_key_is_not_counted() {
    let rule = Rule::new("a").key(Key::header("X")).keys(1);
    let deny = Threshold::new(1, seconds(10), "deny");
    let policy = Policy::new([rule.threshold(deny)]).unwrap();
    let at = Timestamp::from_secs(5);
    let mut is_counted = Vec::new();
    for client in 0..100 {
        let client = client.to_string();
        let headers = [("X", &client)];
        let request = Request::new("GET", "/").headers(&headers);
        is_counted.push(policy.report_at(at, &request, 1));
        assert_eq!(
            policy.is_in_force_at(at, &request, "deny"),
            Ok(is_counted[is_counted.len() - 1])
        );
    }
    assert!(is_counted[0] && is_counted.contains(&false));
}

/// The holds are longer than the window, so their table is full before that of the window.
#[test]
fn a_report_without_room_for_its_hold_says_so() {
    let rule = Rule::new("a").key(Key::path()).keys(8);
    let captcha = Threshold::new(1, seconds(1), "captcha").holding_for(seconds(3_600));
    let policy = Policy::new([rule.threshold(captcha)]).unwrap();
    let mut is_held = Vec::new();
    for second in (10..1_000).step_by(5) {
        let path = format!("/{second}");
        let request = Request::new("GET", &path);
        let at = Timestamp::from_secs;
        is_held.push(policy.report_at(at(second), &request, 1));
        assert_eq!(
            policy.is_in_force_at(at(second + 3), &request, "captcha"),
            Ok(is_held[is_held.len() - 1])
        );
    }
    assert!(is_held[0] && is_held.contains(&false));
}

#[test]
fn reports_of_several_threads_are_all_counted() {
    let threshold = Threshold::new(40_000, seconds(10), "all").holding_for(seconds(1));
    let policy = Policy::new([Rule::new("a").threshold(threshold)]).unwrap();
    let request = Request::new("GET", "/");
    // Creates the key's state, also that of the hold.
    assert!(policy.report_at(Timestamp::from_secs(5), &request, 40_000));
    let at = Timestamp::from_secs(50);
    assert!(policy.report_at(at, &request, 1));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let request = Request::new("GET", "/");
                for _ in 0..10_000 {
                    assert!(policy.report_at(at, &request, 1));
                }
            });
        }
    });
    let mut sum = 0;
    policy
        .in_force_at(at, &request, |is| sum = is.activity)
        .unwrap();
    assert_eq!(sum, 40_001);
}

#[test]
fn reports_and_looks_allocate_nothing() {
    let rule = Rule::new("a")
        .key(Key::path())
        .threshold(Threshold::new(5, seconds(10), "slow").holding_for(seconds(5)))
        .threshold(Threshold::new(9, seconds(60), "deny").in_segments(6));
    let policy = Policy::new([rule]).unwrap();
    let mut decisions = 0;
    let count = allocations(|| {
        for second in 0..500 {
            let now = Timestamp::from_secs(second);
            let request = Request::new("GET", ["/a", "/b/%20/c"][second as usize % 2]);
            policy.report_at(now, &request, second as u32 % 4);
            policy
                .in_force_at(now, &request, |_| decisions += 1)
                .unwrap();
        }
    });
    assert!(decisions > 100);
    assert_eq!(count, 0);
}

#[test]
fn thresholds_that_are_not_valid_are_refused() {
    let hold = Duration::from_secs(1 << 40);
    let rule = Rule::new("a")
        .threshold(Threshold::new(0, seconds(1), "a"))
        .threshold(Threshold::new(1, Duration::ZERO, "a"))
        .threshold(Threshold::new(1, seconds(1), ""))
        .threshold(Threshold::new(1, seconds(1), "a").in_segments(17))
        .threshold(Threshold::new(1, seconds(1), "a").holding_for(hold));
    let errors = Policy::new([rule]).unwrap_err();
    let texts: Vec<_> = errors.iter().map(ToString::to_string).collect();
    let expected = [
        "rule `a`: thresholds[0]: the value must be at least 1",
        "rule `a`: thresholds[1]: the window must be longer than 0",
        "rule `a`: thresholds[2]: the decision must have a name",
        "rule `a`: thresholds[3]: segments ",
        "rule `a`: thresholds[4]: hold: ",
    ];
    assert_eq!(texts.len(), expected.len(), "{texts:#?}");
    for (text, expected) in texts.iter().zip(expected) {
        assert!(text.starts_with(expected), "{text}, not {expected}");
    }
    let many = (0..9).fold(Rule::new("b"), |rule, _| {
        rule.threshold(Threshold::new(1, seconds(1), "a"))
    });
    let error = Policy::new([many]).unwrap_err()[0].to_string();
    assert_eq!(
        error,
        "rule `b`: thresholds: a rule has at most 8 thresholds"
    );
}
