//! Checks that the result of calls which pre-empted each other does not exceed the result of the
//! same calls in some order.

use core::fmt::Write;

use portcullis_core::{Denied, Limiter, Retry};

use super::op::{Call, Log, Op, Outcome, Verb};
use super::scenario::{PASSING, Scenario};
use super::world::{Facts, Subject, World};

/// The largest number of limits in a subject.
const PARTS: usize = 3;
/// The probes, and as many drains.
const SIGHTS: usize = 10;
/// More permits than any limiter has.
const PLENTY: i64 = 1 << 40;

/// The outcomes of calls, and the permits available afterwards.
#[derive(Clone, Debug)]
pub(crate) struct Ending {
    pub(crate) outcomes: [Outcome; 3],
    /// The permits available in the end, at each instant.
    pub(crate) sights: [[i64; SIGHTS]; PARTS],
    /// Whether a stale timestamp finds no more permits than the newest one.
    late: bool,
}

/// The result of calls that pre-empted each other.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) ending: Ending,
    pub(crate) logs: [Log; 3],
    /// Whether all permits returned in the end.
    pub(crate) full: bool,
}

fn counted(permits: u64) -> i64 {
    i64::try_from(permits).unwrap_or(PLENTY).min(PLENTY)
}

/// Reads the permits available in a world, after calls with these outcomes.
pub(crate) fn survey<S: Subject>(
    world: &World<S>,
    scenario: &Scenario,
    outcomes: [Outcome; 3],
) -> Ending {
    let mut sights = [[0; SIGHTS]; PARTS];
    if scenario.ends {
        world.finish();
    }
    let out = counted(world.kept());
    let (mut part, mut late) = (0, true);
    world.subject.parts(&mut |limiter: &dyn Limiter| {
        let sights = &mut sights[part];
        part += 1;
        let instant = super::op::at;
        for (sight, at) in sights.iter_mut().zip(scenario.probes) {
            *sight = out + counted(limiter.available_at(instant(at)));
        }
        late &= out + counted(limiter.available_at(instant(scenario.late))) <= sights[0];
        if S::HOLDS {
            return;
        }
        let mut drained = 0;
        for (sight, at) in sights[5..].iter_mut().zip(scenario.probes) {
            let there = limiter.available_at(instant(at)).min(1 << 20);
            if there > 0 {
                let taken = limiter.take_at(instant(at), there as u32);
                assert!(
                    taken.is_ok(),
                    "{there} permits are available and cannot be taken"
                );
                drained += there.cast_signed();
            }
            *sight = out + drained;
        }
    });
    Ending {
        outcomes,
        sights,
        late,
    }
}

/// Returns the world after the scenario's history, or `None` if the orders of the calls do not
/// determine the possible results.
///
/// This is the case if the limiter was idle for so long that its word wrapped, and it reports fewer
/// permits than it has. At other instants of the same calls it reports all of them, and a change
/// carries over what is reported.
pub(crate) fn start<S: Subject>(
    subject: S,
    facts: &Facts,
    scenario: &Scenario,
) -> Option<World<S>> {
    let world = World::new(subject);
    let mut last = facts.origin;
    for op in &scenario.history {
        let acted = world.perform(op).acted;
        last = last.max(op.now().filter(|_| acted).unwrap_or(0));
    }
    let changes = S::VERBS.contains(&Verb::Adjust);
    (!changes || !has_wrapped_word(&world, facts, last, scenario)).then_some(world)
}

/// Returns whether the limiter of `start` reports fewer permits than it holds, because its word
/// wrapped after it was last used at `last`.
fn has_wrapped_word<S: Subject>(
    start: &World<S>,
    facts: &Facts,
    last: u64,
    scenario: &Scenario,
) -> bool {
    let calls = scenario
        .calls
        .iter()
        .flat_map(Call::ops)
        .filter_map(Op::now);
    let idle = |at: u64| at.saturating_sub(last) > facts.reach.saturating_add(facts.staleness);
    start.subject.with(|limiter| {
        let told_less = |at: u64| limiter.available_at(super::op::at(at)) < limiter.capacity();
        calls
            .chain(scenario.probes)
            .any(|at| idle(at) && told_less(at))
    })
}

/// Returns whether all permits are available in the end.
pub(crate) fn comes_back<S: Subject>(world: &World<S>, scenario: &Scenario) -> bool {
    world.finish();
    let mut full = true;
    world.subject.parts(&mut |limiter: &dyn Limiter| {
        let capacity = limiter.capacity();
        let is_full = |at: u64| {
            let now = super::op::at(at);
            let permits = capacity.min(u64::from(u32::MAX)) as u32;
            let stands = || limiter.retry(Denied::Exhausted { now, permits }) == Retry::Never;
            limiter.available_at(now) >= capacity || world.subject.may_stand_still() && stands()
        };
        // While a word wraps, the limiter may report fewer permits for about the staleness.
        full &= scenario.full.into_iter().any(is_full);
    });
    full
}

/// Makes the calls in this order, each as a whole.
fn in_order<S: Subject>(start: &World<S>, scenario: &Scenario, order: &[usize]) -> Ending {
    let world = start.fork();
    let mut outcomes = [Outcome::NOTHING; 3];
    for &index in order {
        outcomes[index] = world.call(&scenario.calls[index]).0;
    }
    survey(&world, scenario, outcomes)
}

/// A part of a call, as a step of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// The call notes its time, before its other steps.
    Noted,
    /// All steps that had an effect.
    Done,
    /// All steps that had an effect, on a limiter that is unlimited at that time: nothing is
    /// counted.
    Uncounted,
    /// All steps, including those without an effect.
    Whole,
    /// All steps, with plain takes instead of planned ones.
    AtOnce,
    /// A take that is refunded later.
    Passing,
    /// The refund of `Passing`.
    Back,
    /// The first and the second half of a call that has two: two takes of one limit under two
    /// names, or a sweep of some slots and then of others.
    First,
    Second,
}

impl Part {
    /// Returns the part of the same call that must come before this one.
    const fn before(self) -> Option<Self> {
        match self {
            Self::Back => Some(Self::Passing),
            Self::Second => Some(Self::First),
            Self::Noted => None,
            _ => Some(Self::Noted),
        }
    }
}

/// One step of an order: the index of a call and a part of it.
#[derive(Clone, Copy, Debug)]
struct Step(usize, Part);

/// Makes steps of the calls of a run.
struct Steps<'a> {
    scenario: &'a Scenario,
    run: &'a Run,
    /// The earliest time of each call.
    lifts: [u64; 3],
}

impl Steps<'_> {
    /// Makes the steps and returns the ending, or `None` if a change gains permits from a time that
    /// was only noted.
    fn take<S: Subject>(&self, start: &World<S>, steps: &[Step]) -> Option<Ending> {
        let world = start.fork();
        let mut outcomes = [Outcome::NOTHING; 3];
        // The world without the noted time, up to the first change after that.
        let mut unnoted = None;
        for &step in steps {
            let Step(index, part) = step;
            if part == Part::Noted && unnoted.is_none() {
                unnoted = Some(world.fork());
            }
            let outcome = self.step(&world, step, outcomes[index]);
            if part != Part::Noted
                && let Some(other) = &unnoted
            {
                // Without the noted time a change may be rejected: its time is neither stale nor in
                // the future.
                let unnoted_acted = self.step(other, step, outcomes[index]).acted;
                let call = &self.scenario.calls[index];
                let changes = |op: &Op| matches!(op, Op::Adjust { .. });
                if outcome.acted && call.ops().any(changes) {
                    // With several changes, the steps in between decide which of them are rejected.
                    if call.is_one() && unnoted_acted && self.gains(&world, other) {
                        return None;
                    }
                    unnoted = None;
                }
            }
            outcomes[index] = outcome;
        }
        Some(survey(&world, self.scenario, outcomes))
    }

    /// Returns whether `world` has more permits available than `other`, before a word wraps.
    fn gains<S: Subject>(&self, world: &World<S>, other: &World<S>) -> bool {
        let [newest, soon, ..] = self.scenario.probes.map(super::op::at);
        [newest, soon].into_iter().any(|at| {
            let there = |world: &World<S>| world.subject.with(|limiter| limiter.available_at(at));
            there(world) > there(other)
        })
    }

    fn step<S: Subject>(&self, world: &World<S>, step: Step, before: Outcome) -> Outcome {
        let Step(index, part) = step;
        let call = &self.scenario.calls[index];
        let (passing, lift) = (PASSING + index as u8, self.lifts[index]);
        let did = |step| self.run.logs[index].has(step);
        match part {
            Part::Noted => {
                if let Some(now) = call.ops().find_map(Op::now) {
                    world.perform(&Op::Note { now });
                }
                Outcome::NOTHING
            }
            Part::Done => world.call_again(call, did, lift),
            Part::Uncounted => {
                let now = super::op::at(self.scenario.probes[0]);
                let there = world.subject.with(|limiter| limiter.available_at(now));
                if there == u64::MAX {
                    world.fork().call_again(call, did, lift)
                } else {
                    Outcome::NOTHING
                }
            }
            Part::Whole => world.call_again(call, |_| true, lift),
            Part::AtOnce => world.call_again(&call.at_once(), |_| true, lift),
            Part::Passing => {
                if let Some((now, n)) = passes(call) {
                    let (now, slot) = (now.max(lift), passing);
                    world.perform(&Op::Take { now, n, slot });
                }
                Outcome::NOTHING
            }
            Part::Back => {
                if let Some((now, n)) = passes(call) {
                    let slot = passing;
                    world.perform(&Op::Refund { now, n, slot });
                }
                Outcome::NOTHING
            }
            Part::First | Part::Second => {
                let half = call.ops().next().map_or(Outcome::NOTHING, |op| match *op {
                    Op::Other { now, n, .. } => {
                        let slot = passing;
                        world.perform(&Op::Take { now, n, slot })
                    }
                    other => world.perform(&other),
                });
                before.and(half)
            }
        }
    }
}

/// Returns the take of a call that is taken and then denied.
fn passes(call: &Call) -> Option<(u64, u32)> {
    match *call.ops().next()? {
        Op::Rollback { now, n }
        | Op::Take { now, n, .. }
        | Op::Planned { now, n, .. }
        | Op::Other { now, n, .. } => Some((now, n)),
        _ => None,
    }
}

const ORDERS: [&[usize]; 16] = [
    &[1, 2, 0],
    &[2, 1, 0],
    &[0, 1, 2],
    &[0, 2, 1],
    &[1, 0, 2],
    &[2, 0, 1],
    &[0, 1],
    &[1, 0],
    &[0, 2],
    &[2, 0],
    &[1, 2],
    &[2, 1],
    &[0],
    &[1],
    &[2],
    &[],
];

/// Returns whether `run` does not exceed the ending of `order`: no call was granted more than
/// there, and no more permits are left.
fn is_within<S: Subject>(run: &Ending, order: &Ending, part: usize) -> bool {
    // For limiters without releases, refunded permits may also have been replenished by time.
    let back = |ending: &Ending| {
        ending
            .outcomes
            .iter()
            .map(|outcome| outcome.back)
            .sum::<u64>()
    };
    run.outcomes
        .iter()
        .zip(&order.outcomes)
        .all(|(run, order)| run.granted <= order.granted)
        && (!S::HOLDS || back(run) <= back(order))
        && run.sights[part]
            .iter()
            .zip(come_in(order.sights[part]))
            .all(|(run, order)| *run <= order)
}

/// Corrects the permits at the probes where a word has wrapped. Time only adds permits, so no later
/// probe has fewer than an earlier one. If one has, the word wrapped there, and the true number is
/// between those of the neighbouring probes.
fn come_in<const N: usize>(mut sights: [i64; N]) -> [i64; N] {
    let mut most = i64::MIN;
    for probe in 0..5 {
        let later = || sights[probe..5].iter().find(|later| **later >= most);
        most = later().copied().unwrap_or(most);
        sights[probe] = most;
    }
    sights
}

/// The state of the search for an order that explains a run.
struct Trial<'a, S: Subject> {
    start: &'a World<S>,
    scenario: &'a Scenario,
    run: &'a Run,
    part: usize,
    told: [bool; 3],
    justified: bool,
}

impl<S: Subject> Trial<'_, S> {
    fn try_order(&mut self, steps: &[Step], lift: [u64; 3]) -> bool {
        let calls = Steps {
            scenario: self.scenario,
            run: self.run,
            lifts: lift,
        };
        let Some(ending) = calls.take(self.start, steps) else {
            return false;
        };
        let outcomes = &self.run.ending.outcomes;
        for (told, (run, order)) in self
            .told
            .iter_mut()
            .zip(outcomes.iter().zip(&ending.outcomes))
        {
            *told |= run.told <= order.told;
        }
        self.justified |= is_within::<S>(&self.run.ending, &ending, self.part);
        self.justified && self.told.iter().all(|&told| told)
    }

    /// Tries all orders of each set of steps, with each combination of times for the calls.
    fn try_lifts(&mut self, sets: &mut [Vec<Step>], times: [&[u64]; 3]) -> bool {
        let [first, second, third] = times;
        first.iter().any(|&first| {
            second.iter().any(|&second| {
                third.iter().any(|&third| {
                    let lifts = [first, second, third];
                    sets.iter_mut()
                        .any(|set| self.try_all(&mut Vec::new(), set, lifts))
                })
            })
        })
    }

    /// Tries all orders of the steps in `left`, after those in `done`.
    fn try_all(&mut self, done: &mut Vec<Step>, left: &mut Vec<Step>, lift: [u64; 3]) -> bool {
        if left.is_empty() {
            return self.try_order(done, lift);
        }
        for place in 0..left.len() {
            let Step(index, part) = left[place];
            if let Some(before) = part.before()
                && left.iter().any(|step| step.0 == index && step.1 == before)
            {
                continue;
            }
            let step = left.remove(place);
            done.push(step);
            let found = self.try_all(done, left, lift);
            done.pop();
            left.insert(place, step);
            if found {
                return true;
            }
        }
        false
    }
}

/// Checks whether some order of the calls, without steps that had no effect, yields at least the
/// result of the run.
///
/// - Permits that are rolled back may be refunded after other calls.
/// - Where a denial may write, it may do so.
/// - Where a denied take may write a newer time, other calls count at that time.
pub(crate) fn judge<S: Subject>(
    start: &World<S>,
    scenario: &Scenario,
    run: &Run,
) -> Result<(), String> {
    // A call with the newest time that was granted has written this time.
    let is_newest =
        |call: &Call| call.is_one() && call.ops().any(|op| op.now() == Some(scenario.probes[0]));
    let written = scenario.calls.iter().zip(&run.ending.outcomes);
    if !run.ending.late
        && written
            .into_iter()
            .any(|(call, outcome)| is_newest(call) && outcome.granted > 0)
    {
        return Err("a stale timestamp finds more permits".to_owned());
    }
    if S::PARTS == 1 {
        return judge_part(start, scenario, run, 0);
    }
    (0..S::PARTS).try_for_each(|part| {
        let start = start.fork();
        start.subject.only(part);
        judge_part(&start, scenario, run, part)
    })
}

fn judge_part<S: Subject>(
    start: &World<S>,
    scenario: &Scenario,
    run: &Run,
    part: usize,
) -> Result<(), String> {
    let outcomes = &run.ending.outcomes;
    let calls = scenario.calls.len();
    let acted = |index: usize| outcomes[index].acted;
    let tells = |index: usize| S::PARTS == 1 && outcomes[index].told > 0;
    let passes = |index: usize| outcomes[index].rolled_back;
    let mut trial = Trial {
        start,
        scenario,
        run,
        part,
        told: [0, 1, 2].map(|index| !tells(index)),
        justified: false,
    };
    for order in ORDERS {
        let fits = order
            .iter()
            .all(|&index| index < calls && (acted(index) || tells(index) || passes(index)))
            && (0..calls).all(|index| !acted(index) || order.contains(&index));
        if fits {
            let steps = order
                .iter()
                .map(|&index| Step(index, Part::Done))
                .collect::<Few>();
            if trial.try_order(steps.get(), [0; 3]) {
                return Ok(());
            }
        }
    }
    // Rarely needed: all other orders.
    let choices = |index: usize| {
        let mut choices: Vec<Vec<Step>> = Vec::new();
        if acted(index) || tells(index) || passes(index) {
            choices.push(vec![Step(index, Part::Done)]);
        }
        if !acted(index) {
            choices.push(Vec::new());
        }
        if S::DENIALS_ACT {
            choices.push(vec![Step(index, Part::Whole)]);
            choices.push(vec![Step(index, Part::AtOnce)]);
            if passes(index) {
                // A composition that was denied, then could have been granted, and is denied in the
                // end.
                let [taken, back] = [Part::Passing, Part::Back].map(|part| Step(index, part));
                choices.push(vec![taken, back, Step(index, Part::Whole)]);
            }
        }
        let has_halves = |op: &Op| match op {
            Op::Sweep { .. } => true,
            Op::Other { .. } => start.subject.takes_twice(),
            _ => false,
        };
        if scenario.calls[index].ops().next().is_some_and(has_halves) {
            choices.push(vec![Step(index, Part::First), Step(index, Part::Second)]);
        }
        let passes_by = passes(index) && scenario.calls[index].is_one();
        // A denied take may have rolled the window first.
        if passes_by || (S::PARTS > 1 || S::ROLLS) && !acted(index) {
            choices.push(vec![Step(index, Part::Passing), Step(index, Part::Back)]);
            // The refund may be lost if another call was refunding at the same time.
            choices.push(vec![Step(index, Part::Passing)]);
        }
        let (changes, is_one) = (
            S::VERBS.contains(&Verb::Adjust),
            scenario.calls[index].is_one(),
        );
        if changes && is_one && outcomes[index].granted > 0 {
            choices.push(vec![Step(index, Part::Uncounted)]);
        }
        if changes && is_one && index < 2 {
            // The call was pre-empted after it had noted its time.
            let noted = |choice: &Vec<Step>| [&[Step(index, Part::Noted)], &**choice].concat();
            choices.extend(choices.iter().map(noted).collect::<Vec<_>>());
        }
        choices
    };
    let mut sets = vec![Vec::new()];
    for index in 0..calls {
        let longer = |set: &Vec<Step>| {
            choices(index)
                .into_iter()
                .map(|more| [set.clone(), more].concat())
                .collect::<Vec<_>>()
        };
        sets = sets.iter().flat_map(longer).collect();
    }
    // The times that a call may count at, besides its own: those of other calls.
    let mut times = vec![0];
    if S::ROLLS {
        times.extend(
            scenario
                .calls
                .iter()
                .flat_map(Call::ops)
                .filter_map(Op::now),
        );
        times.extend(scenario.calls.iter().map(Call::newest));
        times.sort_unstable();
        times.dedup();
    }
    let each = [0, 1, 2].map(|index| if index < calls { &*times } else { &[0] });
    if trial.try_lifts(&mut sets, each) {
        return Ok(());
    }
    let fault = if trial.justified {
        "a read returns more than in any order"
    } else {
        "more permits than in any order"
    };
    Err(fault.to_owned())
}

/// Returns whether a call was denied that is granted in every order.
pub(crate) fn is_needless<S: Subject>(start: &World<S>, scenario: &Scenario, run: &Run) -> bool {
    let all = ORDERS
        .into_iter()
        .filter(|order| order.len() == scenario.calls.len());
    let mut needless = [true; 3];
    for order in all.filter(|order| order.iter().all(|&index| index < scenario.calls.len())) {
        let ending = in_order(start, scenario, order);
        for (index, needless) in needless.iter_mut().enumerate() {
            *needless &= run.ending.outcomes[index].granted < ending.outcomes[index].granted;
        }
    }
    needless.contains(&true)
}

/// Describes the scenario and its result for a report.
pub(crate) fn tell<S: Subject>(start: &World<S>, scenario: &Scenario, run: &Run) -> String {
    let mut text = format!("{}: {}\n", S::NAME, start.subject.describe());
    for op in &scenario.history {
        let _ = writeln!(text, "  before: {op:?}");
    }
    let brief = |outcome: &Outcome| {
        format!(
            "granted {} back {} told {}",
            outcome.granted, outcome.back, outcome.told
        )
    };
    let shown = |ending: &Ending| {
        let mut parts = 0;
        start.subject.parts(&mut |_: &dyn Limiter| parts += 1);
        ending.sights[..parts].to_vec()
    };
    for (index, call) in scenario.calls.iter().enumerate() {
        let Call { times, .. } = call;
        let ops: Vec<_> = call.ops().collect();
        let all = if run.logs[index].has_all() {
            "all"
        } else {
            "not all"
        };
        let outcome = brief(&run.ending.outcomes[index]);
        let _ = writeln!(text, "  call {index}: {ops:?} x {times}: {outcome} ({all})");
    }
    let _ = writeln!(
        text,
        "  probes {:?}, late {}, ends {}",
        scenario.probes, scenario.late, scenario.ends
    );
    let _ = writeln!(text, "  run:        {:?}", shown(&run.ending));
    for order in ORDERS {
        if order.iter().all(|&index| index < scenario.calls.len()) {
            let ending = in_order(start, scenario, order);
            let net: Vec<_> = ending.outcomes[..scenario.calls.len()]
                .iter()
                .map(brief)
                .collect();
            let _ = writeln!(text, "  {order:?}: {:?} {net:?}", shown(&ending));
        }
    }
    text
}

/// Up to three steps, without an allocation.
#[derive(Clone, Copy)]
struct Few([Step; 3], usize);

impl Few {
    fn get(&self) -> &[Step] {
        &self.0[..self.1]
    }
}

impl FromIterator<Step> for Few {
    fn from_iter<I: IntoIterator<Item = Step>>(steps: I) -> Self {
        let mut few = Self([Step(0, Part::Done); 3], 0);
        for step in steps {
            few.0[few.1] = step;
            few.1 += 1;
        }
        few
    }
}
