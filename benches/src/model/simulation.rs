//! A model of cache lines that move between cores.
//!
//! A core runs a program, over and over: work, reads of a line, and atomic operations on a line. A
//! line is in one of two states:
//!
//! ```text
//! owned     one core has it, and may read and write it
//! shared    some cores have a copy, and may read it
//! ```
//!
//! An atomic operation on a line that the core owns, and a read of a line of which the core has a
//! copy, take a fixed time. Otherwise the line must be transferred first:
//!
//! - A transfer for an atomic operation makes the core the owner, and ends all copies. Such
//!   transfers of a line come one after the other, in the order of the requests. The new owner
//!   keeps the line for a while, in which it goes on with its program.
//! - A transfer for a read makes the owner's line a copy. Several cores can read at the same time.
//!
//! A compare-exchange fails if the line has been changed since the core read it. The core then
//! repeats a part of its program with the new value.

use core::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use serde::{Deserialize, Serialize};

/// The costs of a machine, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Costs {
    /// An atomic read-modify-write on a line that the core owns.
    pub(crate) atomic: f64,
    /// The transfer of a line to another core, from the request on.
    pub(crate) transfer: f64,
    /// How long a core keeps a line after a transfer, if another core is waiting for it.
    pub(crate) keep: f64,
}

/// A line of memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Line {
    /// The line that all cores use.
    Shared,
    /// One of so many lines. Each core uses one of them, in turn.
    Stripe(usize),
}

/// A step of a program.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Step {
    /// Work on nothing that is shared, in nanoseconds.
    Work(f64),
    /// Reads a line.
    Read(Line),
    /// An atomic operation that always succeeds.
    Add(Line),
    /// A compare-exchange of what the core knows. If it fails, the program goes back by so many
    /// steps.
    Exchange(Line, usize),
    /// Locks a line. If it is locked, the core waits. The one that has waited longest reads the
    /// line until it is unlocked. The others sleep until it is their turn, at no cost.
    Lock(Line),
    /// Unlocks a line.
    Unlock(Line),
    /// Ends the program here, except once in so many times.
    Seldom(u32),
}

/// What a program does in the long run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Outcome {
    /// Nanoseconds from one end of the program to the next, as each core sees it.
    pub(crate) nanos: f64,
    /// Transfers of lines for each run of the program.
    pub(crate) transfers: f64,
}

/// Runs `program` on each of `cores` cores until all of them together have run it `runs` times.
pub(crate) fn simulate(costs: Costs, program: &[Step], cores: usize, runs: u64) -> Outcome {
    let mut machine = Machine {
        costs,
        lines: (0..=cores).map(|_| LineState::new(cores)).collect(),
        transfers: 0,
        draws: 0x9e37_79b9_7f4a_7c15,
    };
    let mut all: Vec<Core> = (0..cores).map(Core::new).collect();
    let mut queue: BinaryHeap<_> = all.iter().map(Core::turn).collect();
    let mut done = 0;
    loop {
        let Some(Reverse((_, at))) = queue.pop() else {
            unreachable!("a core that waits is woken by the one that unlocks");
        };
        let does = machine.step(program, &mut all[at]);
        let now = all[at].now;
        match does {
            Does::Wait => {}
            Does::GoOn => queue.push(all[at].turn()),
            Does::Wake(waiting) => {
                all[waiting].now = now;
                queue.extend([at, waiting].map(|at| all[at].turn()));
            }
            Does::End => {
                queue.push(all[at].turn());
                done += 1;
                if done == runs {
                    return Outcome {
                        nanos: now * cores as f64 / runs as f64,
                        transfers: machine.transfers as f64 / runs as f64,
                    };
                }
            }
        }
    }
}

/// What a core does after a step.
#[derive(Clone, Copy)]
enum Does {
    GoOn,
    /// The core waits until a line is unlocked.
    Wait,
    /// The core has unlocked a line for which this one waits.
    Wake(usize),
    /// The program has ended, and begins again.
    End,
}

/// A core that runs the program.
struct Core {
    at: usize,
    /// When the next step begins.
    now: f64,
    /// The index of the next step.
    next: usize,
    /// Whether the line that the next step needs has been requested, and arrives at `now`.
    has_requested: bool,
    /// What the core knows of the shared line and of its stripe: their versions.
    known: [u64; 2],
    /// How often the core has reached `Seldom`.
    reached: u32,
}

impl Core {
    fn new(at: usize) -> Self {
        Self {
            at,
            now: 0.0,
            next: 0,
            has_requested: false,
            known: [0; 2],
            // So that not all cores reach their first one at the same time.
            reached: (at as u32).wrapping_mul(0x9e37_79b9),
        }
    }

    /// The time of the next step, in picoseconds, and the core.
    fn turn(&self) -> Reverse<(u64, usize)> {
        Reverse(((self.now * 1_000.0) as u64, self.at))
    }

    /// The index of a line, and of what the core knows of it.
    const fn place(&self, line: Line) -> (usize, usize) {
        match line {
            Line::Shared => (0, 0),
            Line::Stripe(count) => (1 + self.at % count, 1),
        }
    }
}

struct LineState {
    /// Until when each core may read the line.
    readable: Vec<f64>,
    /// Until when each core may write it.
    writable: Vec<f64>,
    /// When the next transfer can begin.
    free: f64,
    /// When the last transfer for a read ends.
    read: f64,
    /// How often the line has been changed.
    version: u64,
    is_locked: bool,
    /// The cores that wait until the line is unlocked.
    waiting: VecDeque<usize>,
}

impl LineState {
    fn new(cores: usize) -> Self {
        Self {
            readable: vec![f64::NEG_INFINITY; cores],
            writable: vec![f64::NEG_INFINITY; cores],
            free: 0.0,
            read: 0.0,
            version: 0,
            is_locked: false,
            waiting: VecDeque::new(),
        }
    }
}

struct Machine {
    costs: Costs,
    /// The shared line, and then the stripes.
    lines: Vec<LineState>,
    transfers: u64,
    /// The state of the random numbers.
    draws: u64,
}

impl Machine {
    /// Does the next step of a core, or requests the line that the step needs.
    fn step(&mut self, program: &[Step], core: &mut Core) -> Does {
        let Some(&step) = program.get(core.next) else {
            core.next = 0;
            return Does::End;
        };
        let mut next = core.next + 1;
        let mut does = Does::GoOn;
        match step {
            Step::Work(nanos) => core.now += nanos * self.about_one(),
            Step::Seldom(times) => {
                core.reached = core.reached.wrapping_add(1);
                if !core.reached.is_multiple_of(times) {
                    next = program.len();
                }
            }
            Step::Read(line) => {
                let (line, known) = core.place(line);
                if !self.has_copy(line, core) {
                    return Does::GoOn;
                }
                core.known[known] = self.lines[line].version;
            }
            Step::Add(line) | Step::Unlock(line) | Step::Exchange(line, _) | Step::Lock(line) => {
                let (line, known) = core.place(line);
                if matches!(step, Step::Lock(_)) && self.lines[line].is_locked {
                    return self.wait(line, core);
                }
                if !self.is_owner(line, core) {
                    return Does::GoOn;
                }
                core.now += self.costs.atomic;
                let state = &mut self.lines[line];
                match step {
                    Step::Exchange(_, back) if core.known[known] != state.version => {
                        next = core.next - back;
                    }
                    Step::Lock(_) => {
                        state.is_locked = true;
                        if let Some(&first) = state.waiting.front() {
                            self.copy(line, first, core.now);
                        }
                    }
                    Step::Unlock(_) => {
                        state.is_locked = false;
                        does = state.waiting.pop_front().map_or(does, Does::Wake);
                    }
                    _ => {}
                }
                let state = &mut self.lines[line];
                if next > core.next {
                    state.version += 1;
                }
                core.known[known] = state.version;
            }
        }
        core.next = next;
        core.has_requested = false;
        does
    }

    /// Waits until a line is unlocked, with a copy of it.
    fn wait(&mut self, line: usize, core: &mut Core) -> Does {
        if !self.has_copy(line, core) {
            return Does::GoOn;
        }
        core.has_requested = false;
        self.lines[line].waiting.push_back(core.at);
        Does::Wait
    }

    /// Returns whether the core has a copy of the line. If not, requests one.
    fn has_copy(&mut self, line: usize, core: &mut Core) -> bool {
        if core.has_requested || core.now < self.lines[line].readable[core.at] {
            return true;
        }
        core.now = self.copy(line, core.at, core.now);
        core.has_requested = true;
        false
    }

    /// Copies a line to a core. Returns when the copy arrives.
    fn copy(&mut self, line: usize, at: usize, now: f64) -> f64 {
        let state = &mut self.lines[line];
        let start = now.max(state.free);
        for writable in &mut state.writable {
            *writable = writable.min(start);
        }
        let arrives = start + self.costs.transfer;
        state.readable[at] = f64::INFINITY;
        state.read = state.read.max(arrives);
        self.transfers += 1;
        arrives
    }

    /// Returns whether the core owns the line. If not, requests it.
    fn is_owner(&mut self, line: usize, core: &mut Core) -> bool {
        let state = &mut self.lines[line];
        if core.has_requested || core.now < state.writable[core.at] {
            return true;
        }
        let start = core.now.max(state.free).max(state.read);
        for until in state.readable.iter_mut().chain(&mut state.writable) {
            *until = until.min(start);
        }
        state.readable[core.at] = f64::INFINITY;
        state.writable[core.at] = f64::INFINITY;
        core.now = start + self.costs.transfer;
        core.has_requested = true;
        state.free = core.now + self.costs.keep;
        self.transfers += 1;
        false
    }

    /// A random factor from 0.5 to 1.5, so that the cores do not run in step.
    fn about_one(&mut self) -> f64 {
        self.draws ^= self.draws << 13;
        self.draws ^= self.draws >> 7;
        self.draws ^= self.draws << 17;
        0.5 + (self.draws >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Line::{Shared, Stripe};
    use Step::{Add, Exchange, Lock, Read, Seldom, Unlock, Work};

    const COSTS: Costs = Costs {
        atomic: 6.0,
        transfer: 50.0,
        keep: 20.0,
    };
    const BUCKET: [Step; 3] = [Read(Shared), Work(4.0), Exchange(Shared, 2)];

    fn nanos(program: &[Step], cores: usize) -> f64 {
        simulate(COSTS, program, cores, 20_000 * cores as u64).nanos
    }

    #[track_caller]
    fn is_about(is: f64, should: f64) {
        assert!(
            (is / should - 1.0).abs() < 0.03,
            "{is} is not about {should}"
        );
    }

    #[test]
    fn one_core_takes_the_sum_of_its_steps() {
        is_about(nanos(&BUCKET, 1), 10.0);
        is_about(nanos(&[Lock(Shared), Work(30.0), Unlock(Shared)], 1), 42.0);
        is_about(
            nanos(&[Work(3.0), Seldom(4), Add(Shared)], 1),
            3.0 + 6.0 / 4.0,
        );
    }

    #[test]
    fn a_contended_line_moves_once_in_a_transfer_and_a_stay() {
        // In 20 ns a core begins four operations of 6 ns.
        for cores in [2, 8, 64] {
            is_about(nanos(&[Add(Shared)], cores), cores as f64 * 70.0 / 4.0);
        }
        let outcome = simulate(COSTS, &[Add(Shared)], 8, 100_000);
        is_about(outcome.transfers, 0.25);
    }

    #[test]
    fn two_threads_that_take_turns_wait_for_a_transfer_and_a_stay_each() {
        is_about(nanos(&[Add(Shared), Work(40.0)], 2), 140.0);
    }

    #[test]
    fn a_compare_exchange_that_fails_is_repeated() {
        // Each run but the first of a stay begins with a read of the line by a core that had lost
        // it, and then has to become its owner: it costs up to two transfers.
        let outcome = simulate(COSTS, &BUCKET, 8, 100_000);
        assert!(
            outcome.transfers > 0.5 && outcome.transfers < 2.0,
            "{outcome:?}"
        );
        assert!(
            outcome.nanos > 1.5 * nanos(&[Add(Shared)], 8),
            "{outcome:?}"
        );
    }

    #[test]
    fn stripes_cost_as_much_as_one_core_until_cores_share_one() {
        let stripes = |count| [Read(Stripe(count)), Work(4.0), Exchange(Stripe(count), 2)];
        is_about(nanos(&stripes(8), 8), 10.0);
        is_about(nanos(&stripes(4), 8), nanos(&BUCKET, 2));
    }

    #[test]
    fn readers_do_not_wait_for_each_other() {
        let seldom = [Read(Shared), Work(10.0), Seldom(1_000), Add(Shared)];
        assert!(nanos(&seldom, 64) < 20.0);
    }

    #[test]
    fn a_lock_costs_the_core_that_unlocks_it_a_transfer_if_another_one_waits() {
        let locked = [Lock(Shared), Work(30.0), Unlock(Shared)];
        for cores in [2, 8] {
            let outcome = simulate(COSTS, &locked, cores, 100_000);
            assert!(
                outcome.transfers > 0.9 && outcome.transfers < 4.0,
                "{outcome:?}"
            );
            assert!(outcome.nanos > cores as f64 * (42.0 + 50.0), "{outcome:?}");
        }
    }
}
