//! Processes, a store and the network between them, in virtual time.
//!
//! A heap has all that will happen, in the order of time. Each process runs the protocol of the
//! library, by a clock of its own, and a limiter that takes all permits that it can get. The store
//! is the library's table of leases, by a clock of its own.

use core::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;

use portcullis_core::{Limiter, Timestamp};
use portcullis_fleet::{
    Exchange, ExchangeAnswer, LeaseTable, MemberId, MemberShare, Protocol, ProtocolEvent,
    ShareLimiter,
};

use crate::checks::Checks;
use crate::clock::DriftingClock;
use crate::plan::{MILLI, Plan, Restart, SECOND, Scripted};
use crate::random::Random;

/// What happens, at an instant of the heap.
enum Happening {
    /// The driver of a process wakes.
    Wake {
        process: usize,
        life: u32,
        turn: u64,
    },
    /// A process takes permits.
    Take {
        process: usize,
        life: u32,
    },
    /// A request arrives at the store.
    Asked {
        process: usize,
        life: u32,
        exchange: u64,
        request: Rc<Exchange>,
        /// The server that it was sent to.
        server: usize,
    },
    /// An answer arrives at a process.
    Answered {
        process: usize,
        life: u32,
        exchange: u64,
        answer: Rc<ExchangeAnswer>,
    },
    /// A process notices that it cannot reach the store.
    Failed {
        process: usize,
        life: u32,
        exchange: u64,
    },
    Demand {
        process: usize,
        life: u32,
    },
    Crash {
        process: usize,
        life: u32,
    },
    Start {
        process: usize,
    },
    Pause {
        process: usize,
        life: u32,
    },
    /// The settings of the pool change for a process.
    Change {
        process: usize,
        life: u32,
    },
    CutOff {
        process: usize,
    },
    Mend {
        process: usize,
    },
    StoreStops,
    StoreStarts(Restart),
    /// The members turn to the other server.
    Switch,
    Script(Scripted),
    /// From now on, no more faults.
    Calm,
    /// The demand that stays.
    LastDemand {
        process: usize,
        life: u32,
    },
    Measure,
}

pub(crate) struct Process {
    pub(crate) protocol: Protocol,
    limiter: ShareLimiter,
    pub(crate) share: MemberShare,
    pub(crate) clock: DriftingClock,
    pub(crate) id: MemberId,
    life: u32,
    turn: u64,
    pub(crate) is_alive: bool,
    pub(crate) paused_until: u64,
    pub(crate) is_cut_off: bool,
    pub(crate) demand: u32,
    /// Since when all exchanges of this process were answered in time.
    pub(crate) undisturbed_since: u64,
    pub(crate) is_disturbed: bool,
    pub(crate) exchanges: u64,
}

pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) now: u64,
    random: Random,
    heap: BinaryHeap<Reverse<(u64, u64, usize)>>,
    happenings: Vec<Option<Happening>>,
    free: Vec<usize>,
    order: u64,
    pub(crate) processes: Vec<Process>,
    /// The store that members turn to.
    pub(crate) store: LeaseTable,
    /// The other one, which no member asks.
    other: LeaseTable,
    /// Which of the two `store` is.
    server: usize,
    has_switched: bool,
    /// What the store wrote into a file at some time.
    file: LeaseTable,
    pub(crate) store_clock: DriftingClock,
    pub(crate) store_is_up: bool,
    is_calm: bool,
    checks: Checks,
}

/// What a run has shown.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// The used part of what was demanded and available, with faults and in the calm after them.
    pub(crate) use_with_faults: f64,
    pub(crate) use_in_calm: f64,
    /// Jain's index of the partitions held in the calm, in a fair pool.
    pub(crate) jain: f64,
    /// Exchanges of a process in a second of its life.
    pub(crate) exchanges: f64,
    pub(crate) admitted: u64,
    /// The longest time for which a partition lay free that a process lacked, in nanoseconds.
    pub(crate) longest_idle: u64,
    /// How many partitions were demanded and available, in all measurements with faults.
    pub(crate) demanded: u64,
    /// How many partitions each process has at the end, and since when.
    pub(crate) held: Vec<(usize, u64)>,
}

const MEASURE_EVERY: u64 = 50 * MILLI;

impl World {
    pub(crate) fn new(plan: Plan) -> Self {
        let mut random = Random::new(plan.seed.wrapping_mul(31).wrapping_add(7));
        let store_clock = DriftingClock {
            offset: SECOND + random.within(0..SECOND),
            drift: plan.drift,
        };
        let mut world = Self {
            now: 0,
            heap: BinaryHeap::new(),
            happenings: Vec::new(),
            free: Vec::new(),
            order: 0,
            processes: Vec::new(),
            store: LeaseTable::new().server(1),
            other: LeaseTable::new().server(2),
            server: 0,
            has_switched: false,
            file: LeaseTable::new(),
            store_clock,
            store_is_up: true,
            is_calm: false,
            checks: Checks::new(&plan),
            random,
            plan,
        };
        for process in 0..world.plan.processes {
            let born = world.process(process, 0);
            world.processes.push(born);
            // Unless the run is about the start, processes start one after the other.
            let delay = if world.plan.calm_from > 0 {
                5 * SECOND
            } else {
                1
            };
            let at = world.random.within(0..delay);
            world.add(at, Happening::Start { process });
        }
        for &(at, away, restart) in &world.plan.restarts.clone() {
            world.add(at, Happening::StoreStops);
            world.add(at + away, Happening::StoreStarts(restart));
        }
        for &at in &world.plan.switches.clone() {
            world.add(at, Happening::Switch);
        }
        for (at, scripted) in world.plan.script.clone() {
            world.add(at, Happening::Script(scripted));
        }
        world.add(world.plan.calm_from, Happening::Calm);
        world.add(MEASURE_EVERY, Happening::Measure);
        world
    }

    /// Runs the plan to its end.
    ///
    /// # Errors
    ///
    /// What went wrong, and when.
    pub(crate) fn run(mut self) -> Result<Outcome, String> {
        while let Some(Reverse((at, _, place))) = self.heap.pop() {
            if at > self.plan.ends {
                break;
            }
            self.now = at;
            let happening = self.happenings[place].take().expect("it is on the heap");
            self.free.push(place);
            self.happen(happening)
                .map_err(|wrong| format!("at {at} ns: {wrong}"))?;
        }
        self.checks.outcome(&self.processes)
    }

    fn add(&mut self, at: u64, happening: Happening) {
        let place = self.free.pop().unwrap_or(self.happenings.len());
        if place == self.happenings.len() {
            self.happenings.push(None);
        }
        self.happenings[place] = Some(happening);
        self.order += 1;
        self.heap.push(Reverse((at, self.order, place)));
    }

    fn process(&mut self, process: usize, life: u32) -> Process {
        let drift = self.plan.drift;
        let drift = match self.random.within(0..3) {
            0 => -drift,
            1 => drift,
            _ => self.random.within(0..2 * drift as u64 + 1) as i64 - drift,
        };
        let clock = DriftingClock {
            offset: SECOND + self.random.within(0..1_000 * SECOND),
            drift,
        };
        let id = MemberId(u128::from(self.random.next()) << 32 | process as u128);
        let now = clock.shows(self.now);
        Process {
            protocol: Protocol::new(&self.plan.pool, id, self.random.next(), now),
            limiter: ShareLimiter::new(&self.plan.pool, now).expect("the settings fit"),
            share: MemberShare::NONE,
            clock,
            id,
            life,
            turn: 0,
            is_alive: false,
            paused_until: 0,
            is_cut_off: false,
            demand: 0,
            undisturbed_since: self.now,
            is_disturbed: false,
            exchanges: 0,
        }
    }

    fn happen(&mut self, happening: Happening) -> Result<(), String> {
        // What happens to a process that is stopped waits until it goes on; its timers too.
        let waits = match &happening {
            Happening::Wake { process, .. }
            | Happening::Take { process, .. }
            | Happening::Answered { process, .. }
            | Happening::Failed { process, .. }
            | Happening::Demand { process, .. }
            | Happening::Change { process, .. }
            | Happening::LastDemand { process, .. } => self.processes[*process].paused_until,
            _ => 0,
        };
        if self.now < waits {
            self.add(waits, happening);
            return Ok(());
        }
        match happening {
            Happening::Wake {
                process,
                life,
                turn,
            } => {
                if self.lives(process, life) && self.processes[process].turn == turn {
                    self.tell(process, ProtocolEvent::Wake)?;
                }
            }
            Happening::Take { process, life } => {
                if self.lives(process, life) {
                    self.take(process)?;
                    let every = self.plan.take_every;
                    let next = self.now + self.random.within(1..2 * every);
                    self.add(next, Happening::Take { process, life });
                }
            }
            Happening::Asked {
                process,
                life,
                exchange,
                request,
                server,
            } => self.ask(process, life, exchange, &request, server),
            Happening::Answered {
                process,
                life,
                exchange,
                answer,
            } => {
                if self.lives(process, life) {
                    let answered = ProtocolEvent::Answered {
                        exchange,
                        answer: &answer,
                    };
                    self.tell(process, answered)?;
                    // An answer counts only for the newest exchange.
                    let told = &self.processes[process];
                    if exchange == told.exchanges && told.protocol.is_connected() {
                        self.settle(process);
                    }
                }
            }
            Happening::Failed {
                process,
                life,
                exchange,
            } => {
                if self.lives(process, life) {
                    self.tell(process, ProtocolEvent::Failed { exchange })?;
                }
            }
            Happening::Demand { process, life } => {
                if self.lives(process, life) && !self.is_calm {
                    let demand = self.random_demand();
                    self.demand(process, demand)?;
                    self.later(self.plan.demand_every, Happening::Demand { process, life });
                }
            }
            Happening::LastDemand { process, life } => {
                if self.lives(process, life) {
                    let demand = self.first_demand();
                    self.demand(process, demand)?;
                }
            }
            Happening::Crash { process, life } => {
                if self.lives(process, life) && !self.is_calm {
                    self.crash(process);
                }
            }
            Happening::Start { process } => self.start(process)?,
            Happening::Pause { process, life } => {
                if self.lives(process, life) && !self.is_calm {
                    self.pause(process, life);
                }
            }
            Happening::Change { process, life } => {
                if self.lives(process, life) && !self.is_calm {
                    let pools = [&self.plan.pool, &self.plan.other_pool];
                    let pool = self.random.pick(&pools).clone();
                    self.tell(process, ProtocolEvent::Changed(&pool))?;
                    self.later(self.plan.change_every, Happening::Change { process, life });
                }
            }
            Happening::CutOff { process } => {
                if !self.is_calm {
                    self.processes[process].is_cut_off = true;
                    let lease = self.plan.pool.lease().as_nanos() as u64;
                    let lasts = self.random.within(MILLI..2 * lease);
                    self.add(self.now + lasts, Happening::Mend { process });
                    self.later(self.plan.cut_every, Happening::CutOff { process });
                }
            }
            Happening::Mend { process } => self.processes[process].is_cut_off = false,
            Happening::StoreStops => self.store_is_up = false,
            Happening::StoreStarts(restart) => {
                self.store_is_up = true;
                let now = self.store_clock.shows(self.now);
                match restart {
                    Restart::TimeToLive => self.store.restart(now),
                    Restart::Everything => self.store.forget(now),
                    Restart::TheNewest => self.store.restore(&self.file, now),
                }
                self.checks.restarted(self.now, restart);
            }
            Happening::Switch => self.switch(),
            Happening::Script(Scripted::Wants(process, demand)) => self.demand(process, demand)?,
            Happening::Script(Scripted::Crashes(process)) => {
                self.processes[process].is_alive = false;
                let demand = core::mem::take(&mut self.processes[process].demand);
                self.checks.crashed(self.now, process, demand);
            }
            Happening::Calm => self.calm(),
            Happening::Measure => {
                let store_now = self.store_clock.shows(self.now);
                self.checks.measure(
                    self.now,
                    &self.processes,
                    &mut self.store,
                    store_now,
                    self.store_is_up,
                )?;
                if self.random.once_in(40) {
                    self.file.clone_from(&self.store);
                }
                self.add(self.now + MEASURE_EVERY, Happening::Measure);
            }
        }
        Ok(())
    }

    fn switch(&mut self) {
        core::mem::swap(&mut self.store, &mut self.other);
        self.server = 1 - self.server;
        if !core::mem::replace(&mut self.has_switched, true) {
            // It does not know the pool.
            let now = self.store_clock.shows(self.now);
            self.store.forget(now);
        }
        self.checks.switched(self.now);
    }

    fn lives(&self, process: usize, life: u32) -> bool {
        let process = &self.processes[process];
        process.is_alive && process.life == life
    }

    /// Adds what happens after about `every`, if it is not 0.
    fn later(&mut self, every: u64, happening: Happening) {
        if every > 0 {
            let at = self.now + self.random.within(1..2 * every);
            self.add(at, happening);
        }
    }

    fn random_demand(&mut self) -> u32 {
        let most = u64::from(self.plan.most_wanted);
        let demand = match self.random.within(0..4) {
            0 => 0,
            1 => most as u32,
            _ => self.random.within(0..most + 1) as u32,
        };
        demand.max(self.plan.least_wanted)
    }

    /// The demand of a process that starts, and the one that stays in the calm.
    fn first_demand(&mut self) -> u32 {
        if self.plan.demand_every == 0 {
            // The script says what it wants.
            return 0;
        }
        if self.is_calm && self.plan.pool.is_fair() {
            // Above the share of each.
            return self.plan.pool.partitions();
        }
        self.random_demand()
    }

    fn demand(&mut self, process: usize, demand: u32) -> Result<(), String> {
        let before = core::mem::replace(&mut self.processes[process].demand, demand);
        self.checks.demands(self.now, process, before, demand);
        self.tell(process, ProtocolEvent::Demand(demand))
    }

    fn start(&mut self, process: usize) -> Result<(), String> {
        let life = self.processes[process].life + 1;
        let is_cut_off = self.processes[process].is_cut_off;
        self.processes[process] = Process {
            is_alive: true,
            is_cut_off,
            ..self.process(process, life)
        };
        self.add(self.now, Happening::Take { process, life });
        self.later(self.plan.crash_every, Happening::Crash { process, life });
        self.later(self.plan.pause_every, Happening::Pause { process, life });
        if life == 1 {
            self.later(self.plan.cut_every, Happening::CutOff { process });
        }
        self.later(self.plan.demand_every, Happening::Demand { process, life });
        self.later(self.plan.change_every, Happening::Change { process, life });
        let demand = self.first_demand();
        self.demand(process, demand)
    }

    fn crash(&mut self, process: usize) {
        let crashed = &mut self.processes[process];
        crashed.is_alive = false;
        let demand = core::mem::take(&mut crashed.demand);
        self.checks.crashed(self.now, process, demand);
        let longest = 2 * self.plan.pool.lease().as_nanos() as u64;
        let at = self.now + self.random.within(MILLI..longest);
        self.add(at, Happening::Start { process });
    }

    fn pause(&mut self, process: usize, life: u32) {
        let lease = self.plan.pool.lease().as_nanos() as u64;
        let longest = self.random.pick(&[100 * MILLI, lease, 2 * lease]);
        // What has happened to it since an earlier pause began waits for the end of that one.
        let until = self.now + self.random.within(MILLI..longest.max(2 * MILLI));
        let until = until.max(self.processes[process].paused_until);
        self.processes[process].paused_until = until;
        // When it goes on, it decides before its driver runs, or after.
        if self.random.once_in(2) {
            self.add(until, Happening::Take { process, life });
        }
        self.disturb(process);
        self.later(self.plan.pause_every, Happening::Pause { process, life });
    }

    /// No more faults: all processes live, are connected, and want a constant part.
    fn calm(&mut self) {
        self.is_calm = true;
        for process in 0..self.processes.len() {
            self.processes[process].is_cut_off = false;
            let life = self.processes[process].life;
            self.add(self.now, Happening::LastDemand { process, life });
        }
    }

    /// Takes all permits that the limiter of the process has.
    fn take(&mut self, process: usize) -> Result<(), String> {
        let taker = &self.processes[process];
        let now = taker.clock.shows(self.now);
        let available = taker.limiter.available_at(now) as u32;
        let taken = if available == 0 {
            0
        } else {
            let taken = taker.limiter.try_acquire_at(now, available);
            taken.map_or(0, |lease| lease.permits())
        };
        self.checks.admitted(self.now, process, taken)
    }

    /// Tells the protocol of a process what happened, and does what it returns.
    fn tell(&mut self, process: usize, event: ProtocolEvent<'_>) -> Result<(), String> {
        if self.now < self.processes[process].paused_until {
            return Ok(());
        }
        let told = &mut self.processes[process];
        let now = told.clock.shows(self.now);
        let actions = told.protocol.on(event, now);
        self.checks.lacks(process, told.protocol.short());
        told.turn += 1;
        let (turn, life) = (told.turn, told.life);
        if actions.wake_at < Timestamp::from_nanos(u64::MAX) {
            let at = told.clock.when(actions.wake_at).max(self.now);
            self.add(
                at,
                Happening::Wake {
                    process,
                    life,
                    turn,
                },
            );
        }
        if let Some(share) = actions.share {
            self.follow(process, share, now)?;
        }
        if let Some((exchange, request)) = actions.send {
            self.send(process, exchange, request);
        }
        Ok(())
    }

    fn follow(&mut self, process: usize, share: MemberShare, now: Timestamp) -> Result<(), String> {
        // A burst at the last moment of the old share, and one at the first of the new one.
        if self.random.once_in(2) {
            self.take(process)?;
        }
        let follower = &mut self.processes[process];
        follower.share = share;
        follower.limiter.follow_at(now, share);
        self.checks.follows(self.now, process, follower, now)?;
        if self.random.once_in(2) {
            self.take(process)?;
        }
        Ok(())
    }

    fn disturb(&mut self, process: usize) {
        self.processes[process].is_disturbed = true;
    }

    fn settle(&mut self, process: usize) {
        let settled = &mut self.processes[process];
        if settled.is_disturbed && settled.paused_until <= self.now {
            settled.is_disturbed = false;
            settled.undisturbed_since = self.now;
        }
    }

    /// How long a message is on its way, or nothing if it is lost.
    fn transit(&mut self, process: usize) -> Option<u64> {
        if !self.is_calm {
            if self.random.once_in(self.plan.lost) || self.processes[process].is_cut_off {
                self.disturb(process);
                return None;
            }
            if self.random.once_in(self.plan.late) {
                self.disturb(process);
                let lease = self.plan.pool.lease().as_nanos() as u64;
                let longest = self.random.pick(&[SECOND, 2 * lease]);
                return Some(self.random.within(MILLI..longest));
            }
        }
        Some(self.random.within(self.plan.latency / 4..self.plan.latency))
    }

    fn send(&mut self, process: usize, exchange: u64, request: Exchange) {
        self.processes[process].exchanges = exchange;
        self.checks.sent();
        let life = self.processes[process].life;
        let request = Rc::new(request);
        let copies = if !self.is_calm && self.random.once_in(self.plan.doubled) {
            2
        } else {
            1
        };
        for copy in 0..copies {
            if let Some(takes) = self.transit(process) {
                let request = Rc::clone(&request);
                let asked = Happening::Asked {
                    process,
                    life,
                    exchange,
                    request,
                    server: self.server,
                };
                self.add(self.now + takes, asked);
            } else if copy == 0 && self.random.once_in(2) {
                // The connection breaks.
                let failed = Happening::Failed {
                    process,
                    life,
                    exchange,
                };
                self.add(self.now + self.plan.latency, failed);
            }
        }
    }

    fn ask(&mut self, process: usize, life: u32, exchange: u64, request: &Exchange, server: usize) {
        if !self.store_is_up {
            self.disturb(process);
            if self.random.once_in(2) {
                let failed = Happening::Failed {
                    process,
                    life,
                    exchange,
                };
                self.add(self.now + self.plan.latency, failed);
            }
            return;
        }
        if exchange != self.processes[process].exchanges {
            // What it grants, the process learns with the answer to its next request.
            self.disturb(process);
        }
        // What was on its way reaches the server that it was sent to.
        let store = if server == self.server {
            &mut self.store
        } else {
            &mut self.other
        };
        let answer = store.exchange(request, self.store_clock.shows(self.now));
        self.checks.granted(&answer);
        let answer = Rc::new(answer);
        let copies = if !self.is_calm && self.random.once_in(self.plan.doubled) {
            2
        } else {
            1
        };
        for _ in 0..copies {
            if let Some(takes) = self.transit(process) {
                let answered = Happening::Answered {
                    process,
                    life,
                    exchange,
                    answer: Rc::clone(&answer),
                };
                self.add(self.now + takes, answered);
            }
        }
    }
}
