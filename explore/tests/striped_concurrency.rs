//! A concurrency limit in stripes, whose calls are pre-empted at every atomic access by two series
//! of others. What is granted and denied must be what a plain limit decides on the same calls in
//! some order. And no permit may be lost.
//!
//! A call that is pre-empted is one that stops there: the other calls end before it goes on.
#![cfg(portcullis_explore)]

#[allow(dead_code, reason = "made for traces, too")]
#[path = "../../core/tests/support/draws.rs"]
mod draws;

use core::cell::{Cell, RefCell};

use draws::Draws;
use portcullis_core::parts::Stripe;
use portcullis_core::state::Word;
use portcullis_core::{Limiter, StripedConcurrency, Timestamp};
use portcullis_explore::{Plan, run};

const NOW: Timestamp = Timestamp::ZERO;

#[derive(Clone, Copy, Debug)]
enum What {
    Take(u32),
    /// Probes for one permit.
    Probe,
    /// Looks whether a take would be granted.
    Look(u32),
    /// Releases up to so many of the permits that are out.
    Release(u32),
    /// Counts the permits that are out.
    Count,
}

#[derive(Clone, Copy, Debug)]
struct Call {
    stripe: usize,
    what: What,
}

#[derive(Clone, Debug)]
struct Scenario {
    limit: u32,
    history: Vec<Call>,
    calls: [Vec<Call>; 3],
}

impl Scenario {
    fn random<const N: usize>(draws: &mut Draws<'_>) -> Self {
        let limit = draws.one_of(&[34, 80, 100, 300]);
        let call = |draws: &mut Draws<'_>| {
            let n = draws.one_of(&[1, 1, 1, 2, 7, 20, limit / 2, limit - 9, limit - 1]);
            Call {
                stripe: draws.below(N as u64) as usize,
                what: match draws.below(12) {
                    0 => What::Probe,
                    1 => What::Look(n),
                    2 => What::Count,
                    3..7 => What::Release(n),
                    _ => What::Take(n),
                },
            }
        };
        let history = (0..draws.below(7)).map(|_| call(draws)).collect();
        let mut calls = |most| (0..draws.within(1, most)).map(|_| call(draws)).collect();
        Self {
            limit,
            history,
            calls: [calls(1), calls(5), calls(3)],
        }
    }
}

/// Makes a call, which releases at most `out` permits. Returns what it granted, released or
/// counted.
fn made<const N: usize, W: Word>(
    limit: &StripedConcurrency<N, W>,
    Call { stripe, what }: Call,
    out: u32,
) -> u32 {
    let on = Stripe::of(limit, stripe);
    match what {
        What::Take(n) => on.take_at(NOW, n).map_or(0, |_| n),
        What::Probe => on.take_at(NOW, 0).is_ok().into(),
        What::Look(n) => on.peek_at(NOW, n).is_ok().into(),
        What::Release(n) => {
            on.release(n.min(out));
            n.min(out)
        }
        What::Count => limit.in_use(),
    }
}

/// Returns whether a plain limit decides so, and the permits that are out afterwards. A look that
/// finds permits may find some twice.
fn decides(limit: u32, out: u32, call: Call, outcome: u32) -> Option<u32> {
    let fits = |n: u32| out + n <= limit;
    let (is_so, out) = match call.what {
        What::Take(n) if outcome > 0 => (fits(n), out + n),
        What::Take(n) => (!fits(n), out),
        What::Probe => (fits(1) == (outcome == 1), out),
        What::Look(n) => (outcome == 1 || !fits(n), out),
        What::Release(_) => (outcome <= out, out.saturating_sub(outcome)),
        What::Count => (outcome == out, out),
    };
    is_so.then_some(out)
}

/// Returns the permits that are out after the calls, each series in its order, if a plain limit
/// decides so.
fn after(limit: u32, out: u32, left: [&[(Call, u32)]; 3]) -> Option<u32> {
    if left.iter().all(|calls| calls.is_empty()) {
        return Some(out);
    }
    (0..3).find_map(|i| {
        let (&(call, outcome), rest) = left[i].split_first()?;
        let out = decides(limit, out, call, outcome)?;
        let mut left = left;
        left[i] = rest;
        after(limit, out, left)
    })
}

/// Runs a scenario with one plan. Returns the number of accesses, or what is wrong.
fn judge<const N: usize, W: Word>(scenario: &Scenario, plan: Plan) -> Result<u64, String> {
    let Scenario {
        limit: of,
        ref history,
        ref calls,
    } = *scenario;
    let limit: StripedConcurrency<N, W> = StripedConcurrency::builder(of).build_on().unwrap();
    let mut out = 0;
    for &call in history {
        let outcome = made(&limit, call, out);
        let Some(after) = decides(of, out, call, outcome) else {
            return Err(format!("{call:?}: {outcome} while {out} are out"));
        };
        out = after;
    }
    let (before, free) = (out, Cell::new(out));
    let outcomes = [const { RefCell::new(Vec::new()) }; 3];
    let make = |i: usize| {
        for &call in &calls[i] {
            // Permits that have been taken, each once.
            let own = match call.what {
                What::Release(n) => n.min(free.get()),
                _ => 0,
            };
            free.set(free.get() - own);
            let outcome = made(&limit, call, own);
            if let What::Take(_) = call.what {
                free.set(free.get() + outcome);
            }
            outcomes[i].borrow_mut().push((call, outcome));
        }
    };
    let accesses = run(plan, || make(0), &|other| make(other + 1));
    let outcomes = outcomes.map(RefCell::into_inner);
    let after = after(of, before, outcomes.each_ref().map(Vec::as_slice));
    let story = || format!("{before} are out, {outcomes:?}, {limit:?}");
    let Some(out) = after else {
        return Err(format!("as in no order: {}", story()));
    };
    if limit.available() != of - out {
        return Err(format!("{out} should be out: {}", story()));
    }
    if out > 0 && (limit.take_at(NOW, of - out + 1).is_ok() || limit.held() != 0) {
        return Err(format!("a denial closes no stripe: {}", story()));
    }
    if out < of && limit.take_at(NOW, of - out).is_err() {
        return Err(format!("lost: {}", story()));
    }
    Ok(accesses)
}

fn explore<const N: usize, W: Word>(seeds: u64) {
    let (mut runs, mut most) = (0_u64, 0);
    for seed in 0..seeds {
        let mut draws = Draws::Seeded {
            state: seed,
            steps: 0,
        };
        let scenario = Scenario::random::<N>(&mut draws);
        let judge = |plan| {
            judge::<N, W>(&scenario, plan)
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
    assert!(runs > 10 * seeds && (most > 10 || W::BITS == 32));
}

#[test]
fn no_stripe_draws_while_a_call_closes_all_of_them() {
    let seen = Cell::new(0);
    for first in 0..40 {
        let limit: StripedConcurrency<2> = StripedConcurrency::new(300);
        for stripe in [0, 1] {
            assert!(Stripe::of(&limit, stripe).take_at(NOW, 1).is_ok());
        }
        let plan = Plan {
            at: [first, u64::MAX],
            failing: 0,
        };
        let denied = || assert!(limit.take_at(NOW, 299).is_err());
        run(plan, denied, &|other| {
            let is_closing = format!("{limit:?}").contains("closing: 0x1");
            if other == 0 && is_closing {
                seen.set(seen.get() + 1);
                for stripe in [0, 1] {
                    let held = limit.held();
                    assert!(Stripe::of(&limit, stripe).take_at(NOW, 1).is_ok());
                    Stripe::of(&limit, stripe).release(1);
                    assert!(limit.held() <= held, "pre-empted at {first}");
                }
            }
        });
    }
    assert!(seen.get() > 3, "{seen:?}");
}

/// Takes from a stripe of a limit whose stripes are all closed, and releases that. Opens the
/// stripe, fills it if `fills`, and closes it.
fn open_and_close(limit: &StripedConcurrency<2>, stripe: usize, fills: bool) {
    let on = Stripe::of(limit, stripe);
    let mut out = 0;
    let mut take = |n| {
        assert!(on.take_at(NOW, n).is_ok());
        out += n;
    };
    take(1);
    if fills {
        take(limit.held() as u32 - 1);
        take(2);
    }
    on.release(out);
    limit.in_use();
}

#[test]
fn a_call_that_stops_during_2_25_moves_gains_and_loses_nothing() {
    // At about 30 ns a move, they take a second: the longest pause for which the bound must hold.
    const MOVES: u64 = 1 << 25;
    let begins = Cell::new(0);
    for first in [4, 5] {
        let limit: StripedConcurrency<2> = StripedConcurrency::new(300);
        let on = [0, 1].map(|index| Stripe::of(&limit, index));
        assert!(on[1].take_at(NOW, 1).is_ok());
        let in_rest = limit.available() - limit.held() as u32;
        let plan = Plan {
            at: [first, u64::MAX],
            failing: 0,
        };
        let taken = || assert!(on[0].take_at(NOW, in_rest + 1).is_ok());
        // Makes an odd number of moves of each stripe. Afterwards all permits lie where they did.
        run(plan, taken, &|other| {
            if other > 0 {
                return;
            }
            begins.set(begins.get() + u32::from(limit.held() > 0));
            assert_eq!(limit.in_use(), 1);
            open_and_close(&limit, 0, true);
            open_and_close(&limit, 1, true);
            for _ in 0..(MOVES - 10) / 2 {
                open_and_close(&limit, 0, false);
            }
            on[1].release(1);
            assert_eq!(limit.in_use(), 0);
            assert!(on[1].take_at(NOW, 1).is_ok());
            assert_eq!(limit.available() - limit.held() as u32, in_rest);
        });
        let left = 300 - 1 - (in_rest + 1);
        let granted: u32 = (0..300).map(|i| made(&limit, take_one(i), 0)).sum();
        assert_eq!(granted, left, "pre-empted at {first}: {limit:?}");
    }
    assert!(begins.get() > 0, "the call has not begun to close a stripe");
}

/// A take of one permit, on any stripe.
fn take_one(stripe: usize) -> Call {
    Call {
        stripe,
        what: What::Take(1),
    }
}

#[test]
fn calls_that_pre_empt_each_other_decide_as_a_plain_limit_2() {
    explore::<2, u64>(150_000);
}

#[test]
fn calls_that_pre_empt_each_other_decide_as_a_plain_limit_1() {
    explore::<1, u64>(80_000);
}

#[test]
fn calls_that_pre_empt_each_other_decide_as_a_plain_limit_32() {
    explore::<2, u32>(5_000);
}
