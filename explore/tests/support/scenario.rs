//! Random calls on a limiter with a random history.

use portcullis_core::state::Carry;

use super::draws::Draws;
use super::op::{Call, Op, Verb};
use super::world::{Facts, Subject};

/// The first slot for grants of the history. The slots before are those of the calls.
pub(crate) const KEPT: u8 = 4;
/// The first slot for permits that are refunded immediately.
pub(crate) const PASSING: u8 = 10;

/// The number of instants at which to check whether all permits have returned.
pub(crate) const CHANCES: usize = 16;

/// How calls are chosen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mix {
    /// The largest number of repetitions of a call.
    pub(crate) repeats: u32,
    /// The largest number of concurrent calls.
    pub(crate) calls: u64,
}

/// A history, and the calls that run concurrently after it.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) history: Vec<Op>,
    pub(crate) calls: Vec<Call>,
    /// The instants at which to read the available permits.
    pub(crate) probes: [u64; 5],
    /// A stale timestamp.
    pub(crate) late: u64,
    /// The instants at which all permits must be available. If the word wraps at one of them,
    /// another one counts.
    pub(crate) full: [u64; CHANCES],
    /// Whether slices are dropped before the available permits are read.
    pub(crate) ends: bool,
}

pub(crate) fn random<S: Subject>(draws: &mut Draws<'_>, facts: &Facts, mix: Mix) -> Scenario {
    let mut clock = Clock {
        facts: *facts,
        now: facts.origin,
        newest: facts.origin,
    };
    // Usually a few steps only, so that the order of the calls matters.
    let mut history = Vec::new();
    let mut kept = KEPT;
    if draws.once_in(4) {
        clock.now = clock
            .now
            .saturating_add(clock.span(draws))
            .min(u64::MAX >> 1);
    }
    let steps = draws.below(7);
    let mut changes = 0;
    for _ in 0..steps {
        clock.step(draws, true);
        let verb = draws.one_of(S::VERBS);
        if verb == Verb::Adjust {
            changes += 1;
        }
        let slot = if draws.once_in(3) {
            draws.within(KEPT.into(), u64::from(kept.max(KEPT + 1)) - 1) as u8
        } else {
            kept.min(PASSING - 1)
        };
        let op = op(draws, verb, &clock, slot);
        if slot == kept && kept < PASSING - 1 {
            kept += 1;
        }
        history.push(op);
    }
    // The time at which the calls begin.
    let far = draws.once_in(2);
    clock.step(draws, far);
    let base = clock;
    let count = if mix.calls < 3 {
        mix.calls
    } else {
        draws.within(2, mix.calls)
    };
    // Each grant of the history is used by at most one call.
    let mut free: Vec<u8> = (KEPT..PASSING).collect();
    let mut calls = Vec::new();
    for index in 0..count as u8 {
        let mut clock = base;
        let own = index;
        let kept = (index > 0 && S::VERBS.contains(&Verb::Refund) && draws.once_in(4))
            .then(|| kept_again(draws, &history, &mut free, &mut clock, own));
        let mut one = |draws: &mut Draws<'_>, clock: &mut Clock| {
            clock.now = base.now;
            clock.near(draws);
            let verb = draws.one_of(S::VERBS);
            changes += u32::from(verb == Verb::Adjust);
            let slot = match verb {
                Verb::Refund
                | Verb::Release
                | Verb::Cancel
                | Verb::End
                | Verb::Draw
                | Verb::Uncut => {
                    if free.is_empty() {
                        own
                    } else {
                        free.remove(draws.below(free.len() as u64) as usize)
                    }
                }
                _ => own,
            };
            op(draws, verb, clock, slot)
        };
        let repeated = index > 0 && mix.repeats > 1 && draws.once_in(2);
        let call = if let Some(Some(call)) = kept {
            call
        } else if repeated {
            cycle::<S>(draws, &mut clock, base.now, own, mix.repeats)
        } else if index > 0 && draws.once_in(6) {
            let (first, second) = (one(draws, &mut clock), one(draws, &mut clock));
            let apart = |op: &Op| {
                matches!(
                    op,
                    Op::Rollback { .. } | Op::Other { .. } | Op::SetLimit { .. }
                )
            };
            let second = Some(second).filter(|second| !apart(&first) && !apart(second));
            Call {
                ops: [Some(first), second, None],
                times: 1,
                step: 0,
            }
        } else {
            Call::one(one(draws, &mut clock))
        };
        calls.push(call);
    }
    let mut newest = base.newest.max(base.now);
    for call in &calls {
        newest = newest.max(call.newest());
    }
    // No call is staler than the limiter's stated bound.
    let lone = changes == 1;
    let clamp = |op: &mut Op| {
        let late = if lone && matches!(op, Op::Adjust { .. }) {
            facts.late_change
        } else {
            facts.staleness
        };
        let least = newest.saturating_sub(late);
        *op = op.at(|now| now.max(least));
    };
    for op in calls
        .iter_mut()
        .flat_map(|call| call.ops.iter_mut().flatten())
    {
        clamp(op);
    }
    let (grain, reach) = (facts.grain, facts.reach);
    let after = |by: u64| newest.saturating_add(by);
    let short = draws.magnitude(2 * grain);
    Scenario {
        history,
        calls,
        probes: [
            newest,
            after(short),
            after(reach / 3),
            after(reach),
            after(reach.saturating_mul(2)),
        ],
        late: newest.saturating_sub(draws.magnitude(facts.staleness.min(4 * reach))),
        full: core::array::from_fn(|chance| {
            let horizon = if chance < CHANCES / 2 {
                facts.horizon
            } else {
                facts.longest_horizon
            };
            let eighths = (chance % (CHANCES / 2)) as u64;
            after(reach.saturating_add(2 * facts.tick)).saturating_add(horizon / 8 * eighths)
        }),
        ends: draws.once_in(2),
    }
}

/// Creates a call that a thread repeats, so that a word wraps: a grant that is refunded, or
/// settings that are changed back and forth.
fn cycle<S: Subject>(
    draws: &mut Draws<'_>,
    clock: &mut Clock,
    base: u64,
    own: u8,
    most: u32,
) -> Call {
    let has = |verb| S::VERBS.contains(&verb);
    clock.now = base;
    clock.near(draws);
    let (now, burst) = (clock.now, clock.facts.burst);
    let n = draws.within(1, burst.min(3)) as u32;
    let other = own + if own + 2 < KEPT { 2 } else { 1 };
    let carry = if draws.once_in(2) {
        Carry::Keep
    } else {
        carry(draws)
    };
    let to = draws.one_of(&[0, 1, 2, 3, 3, 3]);
    let back = draws.one_of(&[0, 0, 1, 2, 3]);
    let take = |slot| Op::Take { now, n, slot };
    let refund = |slot| Op::Refund { now, n, slot };
    let ops = match draws.below(4) {
        0 if has(Verb::Adjust) => [
            Some(Op::Adjust { now, to, carry }),
            Some(Op::Adjust {
                now,
                to: back,
                carry,
            }),
            None,
        ],
        1 if has(Verb::Adjust) => [Some(Op::Adjust { now, to, carry }), None, None],
        // Out of order: the first take is refunded first.
        2 if has(Verb::Refund) && !S::HOLDS => {
            [Some(take(other)), Some(take(own)), Some(refund(other))]
        }
        _ if has(Verb::Refund) => [Some(take(own)), Some(refund(own)), None],
        _ => [Some(take(own)), None, None],
    };
    let times = draws.one_of(&[
        1, 2, 8, 15, 16, 17, 32, 511, 512, 1_023, 1_024, 1_025, 2_048,
    ]);
    let times = times.min(most);
    // Each repetition is later by the time to replenish what it takes, or all are at one instant.
    // All of them stay within half of the staleness.
    let whole = clock.facts.staleness / 2 / u64::from(times);
    let step = draws
        .one_of(&[0, 0, u64::from(n) * clock.facts.grain])
        .min(whole);
    Call { ops, times, step }
}

/// Creates a call that refunds an earlier grant, and later takes the same number of permits again.
fn kept_again(
    draws: &mut Draws<'_>,
    history: &[Op],
    free: &mut Vec<u8>,
    clock: &mut Clock,
    own: u8,
) -> Option<Call> {
    let (before, n) = history.iter().rev().find_map(|op| match *op {
        Op::Take { n, slot, .. } | Op::Planned { n, slot, .. } if free.contains(&slot) && n > 0 => {
            Some((slot, n))
        }
        _ => None,
    })?;
    free.retain(|slot| *slot != before);
    let back = draws.within(1, n.into()) as u32;
    clock.near(draws);
    let refund = Op::Refund {
        now: clock.now,
        n: back,
        slot: before,
    };
    let later = clock.now.saturating_add(
        draws
            .magnitude(clock.facts.reach)
            .min(clock.facts.staleness / 4),
    );
    let take = Op::Take {
        now: later,
        n: back,
        slot: own,
    };
    Some(Call {
        ops: [Some(refund), Some(take), None],
        times: 1,
        step: 0,
    })
}

fn carry(draws: &mut Draws<'_>) -> Carry {
    draws.one_of(&[
        Carry::Keep,
        Carry::Proportional,
        Carry::Additive,
        Carry::Reset,
    ])
}

pub(crate) fn op(draws: &mut Draws<'_>, verb: Verb, clock: &Clock, slot: u8) -> Op {
    let (now, burst) = (clock.now, clock.facts.burst);
    let n = match draws.below(8) {
        0 => draws.below(burst + 2),
        1 => burst,
        _ => draws.within(1, burst.min(4)),
    } as u32;
    let wait = draws.magnitude(clock.facts.reach);
    match verb {
        Verb::Take => Op::Take { now, n, slot },
        Verb::Planned => Op::Planned { now, n, slot },
        Verb::Look => match draws.below(4) {
            0 => Op::Peek { now, n },
            1 => Op::Available { now },
            2 => Op::Idle { now },
            _ => Op::Retry { now, n },
        },
        Verb::Refund => Op::Refund { now, n, slot },
        Verb::Release => Op::Release { n, slot },
        Verb::Rollback => Op::Rollback { now, n },
        Verb::Force => Op::Force { now, n },
        Verb::Reserve => Op::Reserve { now, n, wait, slot },
        Verb::Cancel => Op::Cancel { now, slot },
        Verb::Adjust => Op::Adjust {
            now,
            to: draws.below(4) as u8,
            carry: carry(draws),
        },
        Verb::SetLimit => Op::SetLimit {
            to: draws.below(4) as u8,
        },
        Verb::Cut => Op::Cut { now, n, slot },
        Verb::Draw => Op::Draw { now, n, slot },
        Verb::Uncut => Op::Uncut { slot },
        Verb::Claim => Op::Claim {
            now,
            n,
            wait: if draws.once_in(2) { wait } else { 0 },
            slot,
        },
        Verb::End => Op::End { slot },
        Verb::Sweep => Op::Sweep { now },
        Verb::Other => Op::Other {
            now,
            n,
            key: draws.within(1, 12) as u8,
        },
    }
}

/// The time of the calls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    pub(crate) facts: Facts,
    pub(crate) now: u64,
    pub(crate) newest: u64,
}

impl Clock {
    fn span(&self, draws: &mut Draws<'_>) -> u64 {
        let Facts {
            grain,
            reach,
            staleness,
            ..
        } = self.facts;
        match draws.below(6) {
            0 => reach,
            1 => grain,
            2 => draws.magnitude(staleness.min(1 << 60)),
            3 => draws.magnitude(reach.saturating_mul(2)),
            _ => draws.magnitude(grain.saturating_mul(2)),
        }
    }

    /// Advances the time, or makes it stale. With `far`, it may also advance by a horizon and more.
    pub(crate) fn step(&mut self, draws: &mut Draws<'_>, far: bool) {
        self.newest = self.newest.max(self.now);
        let span = self.span(draws);
        self.now = match draws.below(16) {
            0..=4 => self.newest,
            5 | 6 => self.newest.saturating_sub(span.min(self.facts.staleness)),
            7 if far && self.facts.horizon < 1 << 58 => {
                let times = draws.within(1, 3) * self.facts.horizon;
                let around = draws.one_of(&[0, span, span / 2, self.facts.staleness / 2]);
                let on = self.newest.saturating_add(times);
                if draws.once_in(2) {
                    on.saturating_add(around)
                } else {
                    on.saturating_sub(around).max(self.newest)
                }
            }
            8 if far && self.facts.horizon < 1 << 58 => self
                .newest
                .saturating_add(draws.magnitude(2 * self.facts.horizon)),
            _ => self.newest.saturating_add(span),
        }
        .min(u64::MAX >> 1);
        self.newest = self.newest.max(self.now);
    }

    /// Moves the time a little, in either direction.
    fn near(&mut self, draws: &mut Draws<'_>) {
        let span = self.span(draws).min(self.facts.staleness / 2);
        self.now = match draws.below(8) {
            0..=2 => self.now,
            3 | 4 => self.now.saturating_sub(span),
            _ => self.now.saturating_add(span),
        };
    }
}
