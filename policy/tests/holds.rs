//! A request holds an estimate of its cost, and settles it when the cost is known.

use core::time::Duration;
use std::sync::Barrier;

use portcullis_core::{Retry, Timestamp};
use portcullis_policy::{Algorithm, Hold, Key, Limit, Outcome, Policy, Request, Rule, Settled};
use proptest::prelude::*;

const GET: Request<'static> = Request::new("GET", "/");

fn limit(text: &str) -> Limit {
    text.parse().unwrap()
}

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_secs(seconds)
}

/// A policy with one rule, whose requests may hold an estimate for 10 s.
fn policy(limits: impl IntoIterator<Item = Limit>) -> Policy {
    let rule = Rule::new("all")
        .key(Key::tier())
        .hold(Duration::from_secs(10));
    Policy::new([limits.into_iter().fold(rule, Rule::limit)]).unwrap()
}

fn hold(policy: &Policy, now: Timestamp, estimate: u32) -> Hold<'_> {
    let hold = policy.hold_at(now, &GET.cost(estimate));
    assert!(hold.is_allowed(), "{:?}", hold.outcome());
    hold
}

/// What each limit has left.
fn left(policy: &Policy, now: Timestamp) -> Vec<u64> {
    let decision = policy.decide_explained_at(now, &GET.cost(0));
    decision
        .details()
        .map(|each| each.detail.available)
        .collect()
}

fn windows() -> [Limit; 3] {
    let sliding = Algorithm::SlidingWindow { segments: 6 };
    let from_request = Algorithm::WindowFromRequest;
    [
        limit("100/m").algorithm_of(Algorithm::FixedWindow),
        limit("100/m").algorithm_of(sliding),
        limit("100/m").algorithm_of(from_request),
    ]
}

#[test]
fn what_was_not_used_is_returned_to_every_limit_in_any_order() {
    let policy = policy(
        windows()
            .into_iter()
            .chain([limit("100/h"), Limit::at_once(100)]),
    );
    // The bucket lacks permits already, so that it cannot have been full.
    hold(&policy, at(1), 40).settle_at(at(1), 40);
    let [first, second, third] = [1, 2, 3].map(|now| hold(&policy, at(now), 10));
    assert_eq!(left(&policy, at(3)), [30, 30, 30, 30, 70]);
    let settled = second.settle_at(at(4), 3);
    assert_eq!((settled.unused, settled.kept), (7, 0));
    assert_eq!(first.settle_at(at(5), 0).kept, 0);
    assert_eq!(left(&policy, at(5)), [47, 47, 47, 47, 90]);
    assert_eq!(
        third.settle_at(at(5), 10),
        Settled::default(),
        "as estimated"
    );
    assert_eq!(left(&policy, at(5)), [47, 47, 47, 47, 100]);
}

#[test]
fn a_window_takes_back_nothing_once_it_no_longer_counts_the_hold() {
    let policy = policy([limit("10/5s").algorithm_of(Algorithm::FixedWindow)]);
    let held = hold(&policy, at(4), 10);
    hold(&policy, at(5), 10).settle_at(at(5), 10);
    let settled = held.settle_at(at(6), 0);
    assert_eq!((settled.unused, settled.kept), (10, 10));
    assert_eq!(left(&policy, at(6)), [0]);
}

#[test]
fn an_excess_is_charged_and_the_rest_is_owed_or_reported() {
    let policy = policy([
        limit("10/s").burst(100).debt(30),
        limit("120/h").algorithm_of(Algorithm::FixedWindow),
    ]);
    let [first, second] = [0, 0].map(|_| hold(&policy, at(1), 40));
    let settled = first.settle_at(at(1), 70);
    assert_eq!(
        (settled.excess, settled.uncounted),
        (30, 0),
        "20 were left, and 10 are owed"
    );
    let settled = second.settle_at(at(1), 70);
    assert_eq!(
        (settled.excess, settled.uncounted),
        (30, 20),
        "120 of the window are used"
    );
    assert_eq!(left(&policy, at(1)), [0, 0]);
    let denied = policy.decide_at(at(1), &GET.cost(1));
    let Outcome::Denied { limit: Some(0), .. } = denied.outcome() else {
        panic!("the bucket denies")
    };
    let bucket = policy.decide_explained_at(at(1), &GET.cost(1));
    let retry = bucket.details().next().unwrap().detail.retry;
    assert_eq!(
        retry,
        Retry::At(Timestamp::from_millis(1_000 + 3_100)),
        "30 are owed"
    );
}

#[test]
fn a_hold_that_has_ended_counts_its_estimate_and_still_charges_an_excess() {
    let policy = policy([limit("100/h").algorithm_of(Algorithm::FixedWindow)]);
    let [last, late, over] = [0, 0, 0].map(|_| hold(&policy, at(100), 10));
    assert_eq!(last.ends(), Some(at(110)));
    assert_eq!(last.settle_at(at(110), 0).kept, 0, "its last instant");
    assert_eq!(
        late.settle_at(at(110) + Duration::from_nanos(1), 0).kept,
        10
    );
    assert_eq!(left(&policy, at(111)), [80]);
    assert_eq!(over.settle_at(at(200), 15).uncounted, 0);
    assert_eq!(left(&policy, at(200)), [75]);
}

#[test]
fn a_hold_that_is_dropped_counts_its_estimate_and_releases_permits_at_once() {
    let policy = policy([Limit::at_once(5), limit("100/h")]);
    let held = hold(&policy, at(1), 5);
    assert!(!policy.decide_at(at(1), &GET).is_allowed());
    assert!(
        !policy.decide_at(at(1_000), &GET).is_allowed(),
        "it has ended and is not dropped"
    );
    drop(held);
    assert_eq!(left(&policy, at(1)), [5, 95]);
    let held = hold(&policy, at(1), 5);
    held.settle_at(at(1), 9);
    assert_eq!(
        left(&policy, at(1)),
        [5, 86],
        "an excess takes no permits at once"
    );
}

#[test]
fn an_estimate_of_nothing_holds_nothing_and_is_charged_later() {
    let policy = policy([limit("10/h")]);
    let held = hold(&policy, at(1), 0);
    assert_eq!(left(&policy, at(1)), [10]);
    assert_eq!(held.settle_at(at(1), 4).excess, 4);
    assert_eq!(left(&policy, at(1)), [6]);
}

#[test]
fn without_a_grant_nothing_is_settled() {
    let rule = Rule::new("all")
        .limit(limit("2/h"))
        .exempt_header("X-Client", ["admin"])
        .hold(Duration::from_secs(10));
    let policy = Policy::new([rule]).unwrap();
    let denied = policy.hold_at(at(1), &GET.cost(3));
    assert!(!denied.is_allowed());
    assert_eq!(denied.settle_at(at(1), 0), Settled::default());
    let exempt = policy.hold_at(at(1), &GET.headers(&[("X-Client", "admin")]));
    assert_eq!(exempt.settle_at(at(1), 9), Settled::default());
    assert_eq!(left(&policy, at(1)), [2]);
}

#[test]
fn a_rule_without_holds_takes_nothing_back() {
    let policy = Policy::new([Rule::new("all").limit(limit("10/h"))]).unwrap();
    let held = hold(&policy, at(1), 5);
    assert_eq!(held.ends(), None);
    assert_eq!(held.settle_at(at(1), 1).kept, 4);
    assert_eq!(left(&policy, at(1)), [5]);
}

#[test]
fn an_override_settles_with_its_own_limits() {
    let rule = Rule::new("all")
        .key(Key::tier())
        .limit(limit("10/h"))
        .override_key(["gold"], [limit("100/h").debt(5)])
        .hold(Duration::from_secs(10));
    let policy = Policy::new([rule]).unwrap();
    let gold = GET.tier("gold");
    let held = policy.hold_at(at(1), &gold.cost(60));
    policy.decide_at(at(1), &gold.cost(30)).is_allowed();
    held.settle_at(at(2), 20);
    let told = |cost| {
        let decision = policy.decide_explained_at(at(2), &gold.cost(cost));
        decision.details().next().unwrap().detail.available
    };
    assert_eq!(told(0), 50);
    let settled = policy.hold_at(at(2), &gold.cost(50)).settle_at(at(2), 60);
    assert_eq!((settled.excess, settled.uncounted), (10, 5));
    assert_eq!(left(&policy, at(1)), [10], "the rule's own limit");
}

#[test]
fn settings_of_holds_are_checked() {
    let refused = |rule: Rule| Policy::new([rule]).unwrap_err()[0].to_string();
    let rule = || Rule::new("a");
    let hold = Duration::from_secs(1);
    assert_eq!(
        refused(rule().limit(limit("1/s")).hold(Duration::ZERO)),
        "rule `a`: hold: must be longer than 0"
    );
    assert_eq!(
        refused(rule().hold(hold)),
        "rule `a`: hold: has no effect without a limit: leave it out, or add a limit"
    );
    assert_eq!(
        refused(rule().limit(limit("1/s").debt(1))),
        "rule `a`: hold: must be set if a limit has a debt, which only settlements use"
    );
    let window = limit("1/s").algorithm_of(Algorithm::FixedWindow).debt(1);
    for wrong in [window, Limit::at_once(1).debt(1)] {
        assert_eq!(
            refused(rule().limit(wrong).hold(hold)),
            "rule `a`: limits[0]: debt has no effect on this kind of limit: leave it out"
        );
    }
}

/// At one instant nothing returns by time, so what is left is what no one has used.
#[test]
fn threads_that_hold_and_settle_lose_no_permit_and_gain_none() {
    const THREADS: u32 = 4;
    const EACH: u32 = 5_000;
    let count = 20 * u64::from(THREADS * EACH);
    let day = Duration::from_hours(24);
    let policy = policy([
        Limit::per(count, day).algorithm_of(Algorithm::FixedWindow),
        Limit::per(count, day),
        Limit::at_once(u32::MAX >> 12),
    ]);
    // While a thread claims the slot of a new key, others find no room for the key.
    hold(&policy, at(1), 10).settle_at(at(1), 0);
    let start = Barrier::new(THREADS as usize);
    let (used, kept): (u64, u64) = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (policy, start) = (&policy, &start);
                scope.spawn(move || {
                    let (mut used, mut kept) = (0, 0);
                    let mut open = Vec::new();
                    start.wait();
                    for step in 0..EACH {
                        open.push((step, hold(policy, at(1), 10)));
                        if step % 3 > 0 {
                            let (from, held) = open.swap_remove((step as usize * 7) % open.len());
                            let actual = (from + thread) % 15;
                            let settled = held.settle_at(at(1), actual);
                            assert_eq!(settled.uncounted, 0);
                            used += u64::from(actual);
                            kept += u64::from(settled.kept);
                        }
                    }
                    // The others are dropped.
                    (used + 10 * open.len() as u64, kept)
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1))
    });
    let left = left(&policy, at(1));
    assert_eq!(
        left,
        [count - used, count - used - kept, u64::from(u32::MAX >> 12)]
    );
}

/// What one window has admitted, by exact arithmetic.
#[derive(Default)]
struct Window {
    index: u64,
    used: u64,
}

impl Window {
    fn at(&mut self, index: u64) -> &mut u64 {
        if self.index < index {
            (self.index, self.used) = (index, 0);
        }
        &mut self.used
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// A window of 20 s counts what was used, in the window of the hold, and an excess in that of
    /// the settlement. A bucket keeps its bound in every span. Settlements come in any order.
    #[test]
    fn holds_are_counted_exactly(
        steps in proptest::collection::vec((0_u8..3, 0_u32..12, 0_u64..3_000), 1..80),
    ) {
        let policy = policy([
            limit("20/20s").algorithm_of(Algorithm::FixedWindow),
            limit("2/s").burst(25).debt(6),
        ]);
        let mut window = Window::default();
        let (mut now, mut open, mut log) = (at(1_000), Vec::new(), Vec::new());
        for (what, n, millis) in steps {
            now += Duration::from_millis(millis);
            let index = now.as_nanos() / 20_000_000_000;
            if what < 2 {
                let held = policy.hold_at(now, &GET.cost(n));
                let has_room = *window.at(index) + u64::from(n.max(1)) <= 20;
                match held.outcome() {
                    Outcome::Allowed => {
                        prop_assert!(has_room);
                        *window.at(index) += u64::from(n);
                        open.push((log.len(), index, now, n, held));
                        log.push((now, i64::from(n)));
                    }
                    Outcome::Denied { limit, .. } => prop_assert_eq!(limit == Some(0), !has_room),
                    other => prop_assert!(false, "{:?}", other),
                }
            } else if !open.is_empty() {
                let place = n as usize % open.len();
                let (entry, held_in, since, estimate, held) = open.swap_remove(place);
                let actual = (n * 5) % 17;
                let settled = held.settle_at(now, actual);
                let used = window.at(index);
                if let Some(excess) = actual.checked_sub(estimate) {
                    let counted = u64::from(excess).min(20 - *used);
                    *used += counted;
                    prop_assert_eq!(settled.excess, excess);
                    prop_assert!(u64::from(excess - settled.uncounted) <= counted);
                    log.push((now, i64::from(excess - settled.uncounted)));
                } else {
                    let unused = estimate - actual;
                    let in_time = now <= since + Duration::from_secs(10);
                    if in_time && held_in == index {
                        *used -= u64::from(unused);
                    }
                    prop_assert!(in_time || settled.kept == unused);
                    prop_assert_eq!(settled.unused, unused);
                    log[entry].1 -= i64::from(unused - settled.kept);
                }
            }
            prop_assert_eq!(left(&policy, now)[0], 20 - *window.at(index));
        }
        for (from, &(start, _)) in log.iter().enumerate() {
            let mut admitted = 0;
            for &(end, permits) in &log[from..] {
                admitted += permits;
                let millis = (end.as_nanos() - start.as_nanos()) / 1_000_000;
                prop_assert!(admitted * 1_000 <= 31_000 + 2 * millis.cast_signed(), "{:?}", log);
            }
        }
    }
}
