//! What must hold in every run, computed from the outside: from who used which partition when, by
//! true time, and what was admitted.

use std::collections::VecDeque;

use portcullis_core::Timestamp;
use portcullis_fleet::{Claim, ExchangeAnswer, FairShares, LeaseTable, MemberId};

use crate::plan::{MILLI, Plan, Restart};
use crate::world::{Outcome, Process};

/// The limiters count time in whole ticks, and so may admit a tick early, in nanoseconds.
pub(crate) const TICK: i128 = 10_000;

/// A permit, in the units of the bound.
pub(crate) const PERMIT: i128 = 1_000_000_000 * 1_000_000_000;

pub(crate) struct Checks {
    partitions: u32,
    is_fair: bool,
    lease: u64,
    /// How long leases take to follow the demands, at most.
    reaction: u64,
    /// How long capacity may lie free that a process lacks, at most.
    longest_wait: u64,
    calm_from: u64,
    measured_from: u64,
    /// Who uses each partition, and until when by true time.
    used: Vec<Option<(usize, u64)>>,
    used_by: Vec<Vec<u32>>,
    /// When each process had another number of partitions.
    changed: Vec<u64>,
    bound: Bound,
    admitted: u64,
    demands: Vec<VecDeque<(u64, u32)>>,
    /// How many partitions the last changes of demands may have set in motion.
    moves: VecDeque<(u64, u32)>,
    wasted: VecDeque<(u64, u32)>,
    /// Until then the store grants nothing, or has just begun to.
    away_until: u64,
    /// Since when each process lacks partitions, with as many as it has.
    short_since: Vec<Option<u64>>,
    free_since: Vec<Option<u64>>,
    longest_idle: u64,
    demanded: [u64; 2],
    unused: [u64; 2],
    held: Vec<u64>,
    exchanges: u64,
    lived: u64,
    last_measured: u64,
}

/// The name of a member ends with the index of its process.
fn index_of(id: MemberId) -> usize {
    (id.0 & 0xffff_ffff) as usize
}

/// The bound on all admissions: in any span `t`, at most `capacity * t` and the bursts of all
/// partitions. It is a token bucket that the admissions of all processes must conform to.
struct Bound {
    level: i128,
    burst: i128,
    /// Units per nanosecond.
    gain: i128,
    at: u64,
}

impl Checks {
    pub(crate) fn new(plan: &Plan) -> Self {
        let pool = &plan.pool;
        let interval = pool.interval().as_nanos() as u64 * 5 / 4;
        let linger = pool.linger().as_nanos() as u64;
        let way = 4 * plan.latency;
        let burst = pool.burst_of(pool.partitions());
        Self {
            partitions: pool.partitions(),
            is_fair: pool.is_fair(),
            lease: plan.longest_lease(),
            reaction: linger + 2 * interval + 2 * way + 100 * MILLI,
            longest_wait: interval + way + 100 * MILLI,
            calm_from: plan.calm_from,
            measured_from: plan.measured_from,
            used: vec![None; pool.partitions() as usize],
            used_by: vec![Vec::new(); plan.processes],
            changed: vec![0; plan.processes],
            bound: Bound {
                level: 0,
                burst: i128::from(burst) * PERMIT,
                gain: i128::from(pool.shared().permits()) * i128::from(1_000_000_000 + plan.drift),
                at: 0,
            },
            admitted: 0,
            demands: vec![VecDeque::new(); plan.processes],
            moves: VecDeque::new(),
            wasted: VecDeque::new(),
            away_until: 0,
            short_since: vec![None; plan.processes],
            free_since: vec![None; pool.partitions() as usize],
            longest_idle: 0,
            demanded: [0; 2],
            unused: [0; 2],
            held: vec![0; plan.processes],
            exchanges: 0,
            lived: 0,
            last_measured: 0,
        }
    }

    pub(crate) fn sent(&mut self) {
        self.exchanges += 1;
    }

    pub(crate) fn demands(&mut self, now: u64, process: usize, before: u32, demand: u32) {
        if self.demands[process].is_empty() {
            self.demands[process].push_back((0, before));
        }
        self.demands[process].push_back((now, demand));
        self.moves.push_back((now, before.abs_diff(demand)));
    }

    pub(crate) fn crashed(&mut self, now: u64, process: usize, demand: u32) {
        self.demands(now, process, demand, 0);
        self.stops(process);
    }

    /// What is granted is not free, however short.
    pub(crate) fn granted(&mut self, answer: &ExchangeAnswer) {
        for held in &answer.granted {
            self.free_since[held.partition as usize] = None;
        }
    }

    /// A process no longer uses what it used.
    fn stops(&mut self, process: usize) {
        for partition in self.used_by[process].drain(..) {
            let used = &mut self.used[partition as usize];
            used.take_if(|(user, _)| *user == process);
        }
    }

    pub(crate) fn restarted(&mut self, now: u64, restart: Restart) {
        let away = match restart {
            Restart::TimeToLive => 0,
            Restart::Everything | Restart::TheNewest => self.lease * 11 / 10,
        };
        self.away_until = self.away_until.max(now + away + 2 * self.reaction);
    }

    /// The members turn to another server, which learns within a third of a lease that it does not
    /// know all leases.
    pub(crate) fn switched(&mut self, now: u64) {
        let away = self.lease * 15 / 10;
        self.away_until = self.away_until.max(now + away + 2 * self.reaction);
    }

    /// Checks the leases that a process uses from now on.
    pub(crate) fn follows(
        &mut self,
        now: u64,
        process: usize,
        follower: &Process,
        shown: Timestamp,
    ) -> Result<(), String> {
        let before = self.used_by[process].len();
        self.stops(process);
        for (held, ends) in follower.protocol.leases() {
            let partition = held.partition;
            if ends <= shown {
                return Err(format!(
                    "process {process} uses partition {partition} after its end"
                ));
            }
            let used = &mut self.used[partition as usize];
            if let Some((other, until)) = *used
                && now < until
            {
                return Err(format!(
                    "processes {process} and {other} use partition {partition}"
                ));
            }
            *used = Some((process, follower.clock.when(ends)));
            self.used_by[process].push(partition);
        }
        if before != self.used_by[process].len() {
            self.changed[process] = now;
            // A process that gets some may then be entitled to more.
            self.short_since[process] = None;
        }
        if follower.share.partitions as usize != self.used_by[process].len() {
            return Err(format!("process {process} was told a wrong share"));
        }
        Ok(())
    }

    /// A process has decided how many partitions it lacks.
    pub(crate) fn lacks(&mut self, process: usize, partitions: u32) {
        if partitions == 0 {
            self.short_since[process] = None;
        }
    }

    /// Checks the permits that a process takes.
    pub(crate) fn admitted(
        &mut self,
        now: u64,
        process: usize,
        permits: u32,
    ) -> Result<(), String> {
        let passed = i128::from(now - self.bound.at) * self.bound.gain;
        let bound = &mut self.bound;
        bound.at = now;
        bound.level = (bound.level + passed).min(bound.burst) - i128::from(permits) * PERMIT;
        if bound.level < -TICK * bound.gain {
            let over = (-bound.level + PERMIT - 1) / PERMIT;
            return Err(format!(
                "process {process} takes {permits} permits, of which {over} exceed the bound"
            ));
        }
        self.admitted += u64::from(permits);
        for &partition in &self.used_by[process] {
            let is_used = self.used[partition as usize]
                .is_some_and(|(user, until)| user == process && now < until);
            if permits > 0 && !is_used {
                return Err(format!(
                    "process {process} takes {permits} permits after the end of its lease"
                ));
            }
        }
        Ok(())
    }

    /// Measures how much of the capacity is in use, and checks that none lies free for long.
    pub(crate) fn measure(
        &mut self,
        now: u64,
        processes: &[Process],
        store: &mut LeaseTable,
        store_now: Timestamp,
        store_is_up: bool,
    ) -> Result<(), String> {
        let passed = now - self.last_measured;
        self.last_measured = now;
        let runs = |process: &Process| process.is_alive && process.paused_until <= now;
        let mut wasted = 0;
        for partition in 0..self.partitions {
            let Some((id, _)) = store.holder(partition, store_now) else {
                self.free_since[partition as usize].get_or_insert(now);
                continue;
            };
            self.free_since[partition as usize] = None;
            let index = index_of(id);
            let holder = &processes[index];
            let is_used = self.used[partition as usize]
                .is_some_and(|(user, until)| user == index && now < until);
            let works = holder.id == id && runs(holder) && (is_used || !holder.is_disturbed);
            wasted += u32::from(!works);
        }
        if !store_is_up {
            self.away_until = self.away_until.max(now + 2 * self.reaction);
        }
        let is_away = now < self.away_until;
        let window = now.saturating_sub(self.reaction);
        self.wasted.push_back((now, wasted));
        self.wasted.retain(|&(at, _)| at >= window);
        self.moves.retain(|&(at, _)| at >= window);
        let moving: u32 = self.moves.iter().map(|&(_, partitions)| partitions).sum();
        let most_wasted = self.wasted.iter().map(|&(_, wasted)| wasted).max();
        let mut available = self
            .partitions
            .saturating_sub(most_wasted.unwrap_or(0))
            .saturating_sub(moving);
        let (mut demanded, mut using, mut wanted) = (0, 0, 0);
        for (index, process) in processes.iter().enumerate() {
            self.lived += if process.is_alive { passed } else { 0 };
            let held = if runs(process) {
                let used = self.used_by[index]
                    .iter()
                    .map(|&partition| self.used[partition as usize]);
                used.flatten()
                    .filter(|&(user, until)| user == index && now < until)
                    .count() as u32
            } else {
                0
            };
            wanted += process.demand;
            let uses = held.min(process.demand);
            using += uses;
            if now >= self.measured_from {
                self.held[index] += u64::from(held) * passed;
            }
            let demands = &mut self.demands[index];
            while demands.len() > 1 && demands[1].0 < window {
                demands.pop_front();
            }
            let is_settled =
                runs(process) && !process.is_disturbed && process.undisturbed_since < window;
            if is_settled {
                let least = demands.iter().map(|&(_, demand)| demand).min();
                demanded += least.unwrap_or(0).max(uses);
            } else {
                demanded += uses;
            }
        }
        if self.is_fair {
            let left = self.left(&store.claims(store_now), processes, runs);
            available = available.saturating_sub(left);
        }
        let demanded = demanded.min(available);
        if !is_away && now < self.calm_from {
            self.demanded[0] += u64::from(demanded);
            self.unused[0] += u64::from(demanded.saturating_sub(using));
        }
        if now >= self.measured_from {
            let demanded = wanted.min(self.partitions);
            self.demanded[1] += u64::from(demanded);
            self.unused[1] += u64::from(demanded.saturating_sub(using));
        }
        self.watch(now, processes, is_away)
    }

    /// How many partitions the members leave to others that do not take them: to processes that
    /// have ended, are stopped, or cannot reach the store.
    fn left(
        &self,
        claims: &[Claim],
        processes: &[Process],
        runs: impl Fn(&Process) -> bool,
    ) -> u32 {
        let most = FairShares::of(claims, self.partitions, 0).level() + 1;
        let left = claims.iter().map(|claim| {
            let process = &processes[index_of(claim.member)];
            let takes = process.id == claim.member && runs(process) && !process.is_disturbed;
            if takes {
                0
            } else {
                claim.demand.min(most).saturating_sub(claim.held)
            }
        });
        left.sum()
    }

    /// Checks that no capacity is free for long while a process lacks it that can ask for it.
    fn watch(&mut self, now: u64, processes: &[Process], is_away: bool) -> Result<(), String> {
        if is_away {
            self.free_since.fill(None);
        }
        let free_since = self.free_since.iter().flatten().min().copied();
        for (index, process) in processes.iter().enumerate() {
            let can_ask = process.is_alive && process.paused_until <= now && !process.is_disturbed;
            if !can_ask || process.protocol.short() == 0 {
                self.short_since[index] = None;
                continue;
            }
            let short_since = *self.short_since[index].get_or_insert(now);
            let Some(free_since) = free_since else {
                continue;
            };
            let since = free_since.max(short_since).max(process.undisturbed_since);
            let idle = now - since;
            self.longest_idle = self.longest_idle.max(idle);
            if idle > self.longest_wait {
                return Err(format!(
                    "a partition is free since {free_since} ns, and process {index} is short"
                ));
            }
        }
        Ok(())
    }

    /// What the run has shown, if it is good enough.
    pub(crate) fn outcome(self, processes: &[Process]) -> Result<Outcome, String> {
        let used = |phase: usize| {
            let (demanded, unused) = (self.demanded[phase], self.unused[phase]);
            // Of less than 50 partitions for a second, one change of hands is a large part.
            if demanded < 1_000 {
                1.0
            } else {
                1.0 - unused as f64 / demanded as f64
            }
        };
        let held = || self.held.iter().map(|&held| held as f64);
        let (sum, squares): (f64, f64) = (held().sum(), held().map(|held| held * held).sum());
        let jain = if self.is_fair && squares > 0.0 {
            sum * sum / (processes.len() as f64 * squares)
        } else {
            1.0
        };
        let outcome = Outcome {
            use_with_faults: used(0),
            use_in_calm: used(1),
            jain,
            exchanges: self.exchanges as f64 * 1e9 / self.lived.max(1) as f64,
            admitted: self.admitted,
            longest_idle: self.longest_idle,
            demanded: self.demanded[0],
            held: self
                .used_by
                .iter()
                .map(Vec::len)
                .zip(self.changed)
                .collect(),
        };
        let problem = if outcome.use_with_faults < 0.95 {
            "less than 95 % is used with faults"
        } else if outcome.use_in_calm < 0.95 {
            "less than 95 % is used in the calm"
        } else if outcome.jain < 0.95 {
            "the shares are not fair"
        } else {
            return Ok(outcome);
        };
        Err(format!("{problem}: {outcome:?}"))
    }
}
