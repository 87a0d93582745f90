//! A bucket in two stripes, whose calls are pre-empted at every atomic access by two others. What
//! is granted must be what a plain bucket grants to the same calls in some order, each at the
//! newest time before it. And no permit may be lost.
//!
//! `every_access` compares what is left with what the same limiter leaves in some order. This
//! bucket may leave more than that: how much it settles in advance depends on the order.
#![cfg(portcullis_explore)]

#[allow(dead_code, reason = "made for traces, too")]
#[path = "../../core/tests/support/draws.rs"]
mod draws;

use core::cell::Cell;
use core::time::Duration;

use draws::Draws;
use portcullis_core::parts::Stripe;
use portcullis_core::state::Word;
use portcullis_core::{Limiter, Rate, StripedBucket, Timestamp};
use portcullis_explore::{Plan, run};

#[derive(Clone, Copy, Debug)]
struct Call {
    stripe: usize,
    /// In milliseconds: in each, a permit comes in.
    now: u64,
    n: u32,
}

#[derive(Clone, Debug)]
struct Scenario {
    burst: u64,
    history: Vec<Call>,
    calls: [Call; 3],
    /// The times at which the rest is taken afterwards.
    after: [u64; 2],
    is_at_once: bool,
    /// Which of the calls refunds the last take of the history first.
    refunding: usize,
}

impl Scenario {
    fn random(draws: &mut Draws<'_>) -> Self {
        let burst = draws.one_of(&[80, 100, 300]);
        let is_at_once = draws.once_in(3);
        let mut clock = draws.one_of(&[0, 5_000]);
        let mut call = |draws: &mut Draws<'_>, late: bool| {
            if !is_at_once {
                clock += match draws.below(4) {
                    0 => draws.magnitude(2 * burst),
                    1 => draws.within(1, burst / 16),
                    _ => 0,
                };
            }
            let age = if late && !is_at_once {
                draws.magnitude(burst)
            } else {
                0
            };
            Call {
                stripe: draws.below(2) as usize,
                now: clock.saturating_sub(age),
                n: draws.one_of(&[1, 1, 1, 1, 7, 20, burst as u32 / 2, burst as u32 - 3]),
            }
        };
        let history = (0..draws.below(6)).map(|_| call(draws, false)).collect();
        let first = call(draws, true);
        let calls = [first, call(draws, false), call(draws, true)];
        let newest = calls.iter().map(|call| call.now).max().unwrap();
        let age = if is_at_once {
            0
        } else {
            draws.magnitude(burst)
        };
        Self {
            burst,
            history,
            calls,
            after: [newest.saturating_sub(age), newest],
            is_at_once,
            refunding: draws.below(5) as usize,
        }
    }
}

fn made<W: Word>(bucket: &StripedBucket<2, W>, call: Call) -> u64 {
    let now = Timestamp::from_millis(call.now);
    let taken = Stripe::of(bucket, call.stripe).take_at(now, call.n);
    taken.map_or(0, |_| call.n.into())
}

/// Returns whether a plain bucket grants the same in this order.
fn fits(burst: u64, granted: impl Iterator<Item = (u64, u64)>) -> bool {
    let (mut level, mut newest) = (burst, 0);
    // A denial writes no time.
    for (now, n) in granted.filter(|&(_, n)| n > 0) {
        let passed = now.saturating_sub(newest);
        newest = newest.max(now);
        level = (level + passed).min(burst);
        match level.checked_sub(n) {
            Some(left) => level = left,
            None => return false,
        }
    }
    true
}

/// Runs a scenario with one plan. Returns the number of accesses, or what is wrong.
fn judge<W: Word>(scenario: &Scenario, plan: Plan) -> Result<u64, String> {
    let Scenario {
        burst,
        ref history,
        calls,
        after,
        is_at_once,
        refunding,
    } = *scenario;
    let settings = StripedBucket::builder(Rate::per_second(1_000), burst);
    let bucket: StripedBucket<2, W> = settings.tick(Duration::from_millis(1)).build_on().unwrap();
    let mut past: Vec<_> = history
        .iter()
        .map(|&call| (call.now, made(&bucket, call)))
        .collect();
    let last = history.last().and_then(|&call| {
        let now = Timestamp::from_millis(call.now);
        let taken = Stripe::of(&bucket, call.stripe).take_at(now, call.n).ok()?;
        past.push((call.now, call.n.into()));
        Some((call.n, taken))
    });
    let (last, back) = (Cell::new(last), Cell::new(0));
    let granted = [const { Cell::new(0) }; 3];
    let make = |i: usize| {
        if let Some((n, receipt)) = (i == refunding).then(|| last.take()).flatten() {
            let now = Timestamp::from_millis(calls[i].now);
            back.set(bucket.refund_at(now, n, receipt).permits);
        }
        granted[i].set(made(&bucket, calls[i]));
    };
    let accesses = run(plan, || make(0), &|other| make(other + 1));
    // What was refunded counts as never granted.
    if let Some((_, n)) = past.last_mut() {
        *n -= u64::from(back.get());
    }
    let mut rest = Vec::new();
    for now in after {
        // All that a call can find.
        for stripe in [1, 0] {
            let on = Stripe::of(&bucket, stripe);
            let n = on.available_at(Timestamp::from_millis(now)) as u32;
            let call = Call { stripe, now, n };
            if n > 0 {
                rest.push((now, made(&bucket, call)));
            }
        }
    }
    let during = |i: usize| (calls[i].now, granted[i].get());
    let all = || past.iter().chain(&rest).map(|&(_, n)| n).sum::<u64>();
    let sum = all() + (0..3).map(|i| during(i).1).sum::<u64>();
    let story = || {
        format!(
            "{past:?}, {:?}, {rest:?}, {bucket:?}",
            [0, 1, 2].map(during)
        )
    };
    let orders = [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ];
    let fits_one = orders.into_iter().any(|order| {
        let between = order.into_iter().map(during);
        fits(
            burst,
            past.iter()
                .copied()
                .chain(between)
                .chain(rest.iter().copied()),
        )
    });
    if !fits_one {
        return Err(format!("more than in any order: {}", story()));
    }
    // A stripe with a 32-bit word settles until the end of a span, here up to 4 ms.
    let lost = if W::BITS == 64 { 0 } else { 5 };
    if is_at_once && sum + lost < burst {
        return Err(format!("only {sum} of {burst}: {}", story()));
    }
    let later = Timestamp::from_millis(after[1] + 2 * burst);
    if bucket.held() > 0 || bucket.available_at(later) != burst {
        return Err(format!("not full later: {}", story()));
    }
    Ok(accesses)
}

fn explore<W: Word>(seeds: u64) {
    let (mut runs, mut most) = (0_u64, 0);
    for seed in 0..seeds {
        let mut draws = Draws::Seeded {
            state: seed,
            steps: 0,
        };
        let scenario = Scenario::random(&mut draws);
        let judge = |plan| {
            judge::<W>(&scenario, plan)
                .unwrap_or_else(|fault| panic!("seed {seed}, {plan:?}: {scenario:#?}\n{fault}"))
        };
        let accesses = judge(Plan::QUIET);
        most = most.max(accesses);
        for first in 0..accesses {
            for second in [
                first,
                first + 1 + draws.below(4),
                first + draws.below(40),
                u64::MAX,
            ] {
                let failing = if draws.once_in(4) { draws.below(16) } else { 0 };
                judge(Plan {
                    at: [first, second],
                    failing,
                });
                runs += 1;
            }
        }
    }
    println!("{} bits: {runs} runs, up to {most} accesses", W::BITS);
    assert!(runs > 20 * seeds && most > 10);
}

#[test]
fn calls_that_pre_empt_each_other_grant_what_a_plain_bucket_does_64() {
    explore::<u64>(40_000);
}

#[test]
fn calls_that_pre_empt_each_other_grant_what_a_plain_bucket_does_32() {
    explore::<u32>(20_000);
}

#[test]
fn a_stripe_does_not_renew_by_a_word_that_a_refund_and_a_draw_have_replaced() {
    // The last take keeps the rest settled until 10,200 ms. The second call refunds it, so the rest
    // is settled until 10,150 ms only, and draws. The first call, which has loaded the rest's word
    // before that, finds what was drawn.
    let call = |stripe, now, n| Call { stripe, now, n };
    let scenario = Scenario {
        burst: 1_024,
        history: vec![call(1, 10_000, 100)],
        calls: [call(0, 10_183, 1), call(0, 10_150, 1), call(1, 10_150, 0)],
        after: [10_150, 10_183],
        is_at_once: false,
        refunding: 1,
    };
    for first in 0..judge::<u64>(&scenario, Plan::QUIET).unwrap() {
        let plan = Plan {
            at: [first, u64::MAX],
            failing: 0,
        };
        judge::<u64>(&scenario, plan).unwrap_or_else(|fault| panic!("{plan:?}: {fault}"));
    }
}

/// Permits that another call has moved, and does not move any more, are found by a call that it
/// has pre-empted.
#[test]
fn a_call_is_not_denied_because_of_what_lay_elsewhere_when_it_began() {
    fn check<W: Word>() {
        let mut pre_empted = 0;
        for first in 0.. {
            let settings = StripedBucket::builder(Rate::per_second(1_000), 1_024);
            let bucket: StripedBucket<2, W> = settings.build_on().unwrap();
            let take = |stripe: usize, n: u32| {
                let taken = Stripe::of(&bucket, stripe).take_at(Timestamp::ZERO, n);
                taken.is_ok()
            };
            // All that is left lies in the first stripe.
            assert!(take(0, 1));
            let held = bucket.held() as u32;
            assert!(take(1, bucket.available_at(Timestamp::ZERO) as u32 - held));
            assert_eq!(bucket.held(), u64::from(held));
            let plan = Plan {
                at: [first, u64::MAX],
                failing: 0,
            };
            let all_but_one = || assert!(take(1, held - 1), "pre-empted at {first}");
            // It takes back what the first stripe holds, unless the other call has just done so.
            let accesses = run(plan, all_but_one, &|other| {
                let _ = other == 0 && take(1, 1);
            });
            if first >= accesses {
                break;
            }
            pre_empted += 1;
        }
        assert!(pre_empted > 5, "{pre_empted}");
    }
    check::<u64>();
    check::<u32>();
}
