//! Every run of a small fleet, up to a number of steps: the protocol, the table and the limiter of
//! the library, which a search drives one step at a time.
//!
//! A step is one of what can happen next:
//!
//! - a member's driver wakes, at the instant that it asked for, or later;
//! - a request arrives at the store, or an answer at its member, at once or later; what does not
//!   arrive is lost;
//! - time passes until the next instant at which a lease or a hold-off ends at the store;
//! - a member takes all permits that it can get, a number of times at most;
//! - a fault of [`Kind`], a number of times at most;
//! - the members turn to the other one of two servers, a number of times at most.
//!
//! A member that is stopped is one that does not wake. So runs in which members stop, and messages
//! are lost or late, are among those searched, at the instants where it matters.
//!
//! Abstracted: messages take no time, except while the search lets time pass. What a member did not
//! get or arrives once more is one of its last three messages. Members draw their random numbers
//! from one seed for each process. Two states in which a limiter has a different part of a permit
//! count as one.
//!
//! Invariants, after each step:
//!
//! - at most one member uses a partition, and none uses a lease after its end;
//! - all that the members could take now is within the bound, as one token bucket.
//!
//! A search that finds a state in which this is not so prints the steps to it.

use core::fmt::{self, Debug, Write};
use core::time::Duration;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Instant;

use portcullis_core::{Limiter, Rate, Timestamp};
use portcullis_fleet::{
    Exchange, ExchangeAnswer, LeaseTable, MemberId, MemberShare, Pool, Protocol, ProtocolEvent,
    ShareLimiter,
};

use crate::checks::{PERMIT, TICK};
use crate::clock::DriftingClock;
use crate::plan::{MILLI, Restart, SECOND, largest_drift};

/// A kind of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A message arrives again, or after its member has given up its exchange or crashed.
    Late,
    /// A connection breaks: the member learns that its exchange failed.
    Broken,
    /// A demand changes, or a member leaves.
    Demands,
    /// A process crashes, and another one starts in its place.
    Crashes,
    /// A member has other settings from now on.
    Settings,
    /// The store restarts: its leases begin again, are forgotten, or are those of before.
    Restarts,
}

const ALL: &[Kind] = &[
    Kind::Late,
    Kind::Broken,
    Kind::Demands,
    Kind::Crashes,
    Kind::Restarts,
];

/// What is searched.
#[derive(Clone, Debug)]
struct Plan {
    pool: Pool,
    /// The same with leases of another length.
    other_pool: Pool,
    members: usize,
    /// In how many steps, with how many faults at most, and of which kinds.
    steps: u8,
    faults: u8,
    kinds: &'static [Kind],
    /// How often members take permits at most.
    takes: u8,
    /// How often they turn to the other server at most.
    switches: u8,
    /// Whether the clock of the store is slow, and whether those of the members are.
    slow: (bool, [bool; 3]),
    /// Whether the search begins when the first member uses all partitions, and the others know it.
    is_running: bool,
}

fn pool(partitions: u32, is_fair: bool) -> Pool {
    let pool = Pool::builder("searched", Rate::per_second(50 * partitions))
        .partitions(partitions)
        .burst(10)
        .lease(Duration::from_millis(1_200))
        .margin(Duration::from_millis(60))
        .interval(Duration::from_millis(400))
        .linger(Duration::ZERO)
        .fair(is_fair);
    pool.build().expect("the settings fit")
}

impl Plan {
    /// Of two members and one partition. The clocks differ by all that the margin allows: the
    /// store's is fast, and those of the members are slow.
    fn new(steps: u8, faults: u8, kinds: &'static [Kind]) -> Self {
        let pool = pool(1, false);
        Self {
            other_pool: pool.clone(),
            pool,
            members: 2,
            steps,
            faults,
            kinds,
            takes: 0,
            switches: 0,
            slow: (false, [true; 3]),
            is_running: true,
        }
    }

    fn has(&self, kind: Kind) -> bool {
        self.kinds.contains(&kind)
    }

    fn clock(&self, is_slow: bool, offset: u64) -> DriftingClock {
        let drift = largest_drift(&self.pool);
        let drift = if is_slow { -drift } else { drift };
        DriftingClock { offset, drift }
    }

    fn store_clock(&self) -> DriftingClock {
        self.clock(self.slow.0, 100 * SECOND)
    }

    fn burst(&self) -> i128 {
        i128::from(self.pool.burst_of(self.pool.partitions())) * PERMIT
    }

    /// What the bound gains in a nanosecond.
    fn gain(&self) -> i128 {
        let speed = 1_000_000_000 + largest_drift(&self.pool);
        i128::from(self.pool.shared().permits()) * i128::from(speed)
    }
}

/// What happens next. A letter is named by its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Wakes(usize),
    Arrives(usize),
    TimePasses,
    Takes(usize),
    MembersTurn,
    /// As a fault.
    ArrivesLate(usize),
    Breaks(usize),
    Wants(usize, u32),
    Leaves(usize),
    Crashes(usize),
    Changes(usize),
    Restarts(Restart),
}

impl Step {
    const fn is_fault(self) -> bool {
        !matches!(
            self,
            Self::Wakes(_)
                | Self::Arrives(_)
                | Self::TimePasses
                | Self::Takes(_)
                | Self::MembersTurn
        )
    }
}

#[derive(Clone, Debug)]
enum Content {
    Request(Rc<Exchange>),
    Answer(Rc<ExchangeAnswer>),
}

/// A message on its way.
#[derive(Clone, Debug)]
struct Letter {
    member: usize,
    life: u64,
    exchange: u64,
    server: usize,
    /// The last stay at each server from which the member had an answer when it sent the request;
    /// in an answer, with that of the answer.
    knows: [u32; 2],
    has_arrived: bool,
    content: Content,
}

/// What a limiter was told. It cannot be copied, so a copy is told the same.
#[derive(Clone, Copy)]
enum Told {
    Follow(MemberShare),
    Take(u32),
}

#[derive(Clone)]
struct Member {
    life: u64,
    clock: DriftingClock,
    protocol: Protocol,
    wants: u32,
    share: MemberShare,
    told: Vec<(Timestamp, Told)>,
    /// What its limiter has, at the time of the fleet.
    available: u64,
    wake_at: Timestamp,
    flight: Option<u64>,
    knows: [u32; 2],
}

/// All that later steps depend on.
impl Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            life,
            protocol,
            wants,
            available,
            wake_at,
            flight,
            knows,
            ..
        } = self;
        let wake_at = wake_at.as_nanos();
        write!(
            f,
            "{life} {wants} {available} {wake_at} {flight:?} {knows:?} {protocol:?}"
        )
    }
}

impl Member {
    fn look(&mut self, plan: &Plan, now: u64) {
        let now = self.clock.shows(now);
        if self.told.is_empty() {
            return;
        }
        let limiter = ShareLimiter::new(&plan.pool, Timestamp::ZERO).expect("the settings fit");
        for &(at, told) in &self.told {
            match told {
                Told::Follow(share) => limiter.follow_at(at, share),
                Told::Take(permits) => {
                    limiter.take_at(at, permits).expect("it was granted");
                }
            }
        }
        self.available = limiter.available_at(now);
    }
}

#[derive(Clone, Debug)]
struct Fleet {
    now: u64,
    members: Vec<Member>,
    letters: Vec<Letter>,
    servers: [LeaseTable; 2],
    /// What the server had before each of its last two exchanges.
    files: Vec<LeaseTable>,
    in_charge: usize,
    /// The number of the stay at a server; that in which each server decided last; and the last one
    /// of the other server of which each has heard.
    stay: u32,
    decided: [u32; 2],
    heard: [u32; 2],
    /// When leases and hold-offs may end, by the clock of the store.
    ends: Vec<Timestamp>,
    /// The bound as a token bucket.
    level: i128,
    level_at: u64,
    lives: u64,
    faults: u8,
    takes: u8,
    switches: u8,
}

type Checked = Result<(), String>;

impl Fleet {
    fn new(plan: &Plan) -> Result<Self, String> {
        let server = |number| {
            let table = LeaseTable::new();
            // Stores of which there is one do not say which one they are.
            if plan.switches > 0 {
                table.server(number)
            } else {
                table
            }
        };
        let mut fleet = Self {
            now: SECOND,
            members: Vec::new(),
            letters: Vec::new(),
            servers: [1, 2].map(server),
            files: Vec::new(),
            in_charge: 0,
            stay: 1,
            decided: [0; 2],
            heard: [0; 2],
            ends: Vec::new(),
            level: plan.burst(),
            level_at: SECOND,
            lives: 0,
            faults: plan.faults,
            takes: plan.takes,
            switches: plan.switches,
        };
        for index in 0..plan.members {
            let member = fleet.started(plan, index);
            fleet.members.push(member);
            fleet.wants(plan, index, plan.pool.partitions())?;
            while plan.is_running && !fleet.letters.is_empty() {
                fleet.apply(plan, Step::Arrives(0))?;
                fleet.letters.retain(|letter| !letter.has_arrived);
            }
        }
        Ok(fleet)
    }

    /// A new process in the place of an index.
    fn started(&mut self, plan: &Plan, index: usize) -> Member {
        self.lives += 1;
        let clock = plan.clock(plan.slow.1[index], self.lives * SECOND);
        let now = clock.shows(self.now);
        Member {
            life: self.lives,
            clock,
            protocol: Protocol::new(&plan.pool, MemberId(self.lives.into()), self.lives, now),
            wants: 0,
            share: MemberShare::NONE,
            told: Vec::new(),
            available: 0,
            wake_at: now,
            flight: None,
            knows: [0; 2],
        }
    }

    /// All that can happen next.
    fn steps(&self, plan: &Plan) -> Vec<Step> {
        let mut steps = Vec::new();
        for (place, letter) in self.letters.iter().enumerate() {
            if self.is_late(letter) {
                steps.push(Step::ArrivesLate(place));
            } else {
                steps.push(Step::Arrives(place));
            }
        }
        let never = Timestamp::from_nanos(u64::MAX);
        for (index, member) in self.members.iter().enumerate() {
            if member.wake_at < never {
                steps.push(Step::Wakes(index));
            }
            if self.takes > 0 && member.available > 0 {
                steps.push(Step::Takes(index));
            }
        }
        if !self.ends.is_empty() {
            steps.push(Step::TimePasses);
        }
        if self.switches > 0 {
            steps.push(Step::MembersTurn);
        }
        if self.faults > 0 {
            self.faults(plan, &mut steps);
        }
        steps
    }

    fn faults(&self, plan: &Plan, steps: &mut Vec<Step>) {
        for (index, member) in self.members.iter().enumerate() {
            if plan.has(Kind::Broken) && member.flight.is_some() {
                steps.push(Step::Breaks(index));
            }
            if plan.has(Kind::Demands) {
                let demands = 0..=plan.pool.partitions();
                let others = demands.filter(|&wants| wants != member.wants);
                steps.extend(others.map(|wants| Step::Wants(index, wants)));
                steps.push(Step::Leaves(index));
            }
            if plan.has(Kind::Crashes) {
                steps.push(Step::Crashes(index));
            }
            if plan.has(Kind::Settings) {
                steps.push(Step::Changes(index));
            }
        }
        if plan.has(Kind::Restarts) {
            let kinds = [Restart::TimeToLive, Restart::Everything, Restart::TheNewest];
            steps.extend(kinds.map(Step::Restarts));
        }
    }

    /// Whether its arrival is a fault.
    fn is_late(&self, letter: &Letter) -> bool {
        let member = &self.members[letter.member];
        letter.has_arrived || letter.life != member.life || member.flight != Some(letter.exchange)
    }

    fn apply(&mut self, plan: &Plan, step: Step) -> Checked {
        self.faults -= u8::from(step.is_fault());
        let before = self.now;
        match step {
            Step::Wakes(index) => {
                let member = &self.members[index];
                self.now = self.now.max(member.clock.when(member.wake_at));
                self.tell(plan, index, ProtocolEvent::Wake)?;
            }
            Step::Arrives(place) => {
                let letter = self.letters[place].clone();
                self.letters[place].has_arrived = true;
                self.arrives(plan, &letter)?;
            }
            Step::ArrivesLate(place) => {
                let letter = self.letters.remove(place);
                self.arrives(plan, &letter)?;
            }
            Step::TimePasses => {
                let end = *self.ends.first().expect("a step that is possible");
                self.now = self.now.max(plan.store_clock().when(end));
            }
            Step::Takes(index) => {
                self.takes -= 1;
                let member = &mut self.members[index];
                let (now, available) = (member.clock.shows(self.now), member.available);
                member.told.push((now, Told::Take(available as u32)));
                member.look(plan, self.now);
                self.level -= i128::from(available) * PERMIT;
            }
            Step::MembersTurn => {
                self.switches -= 1;
                self.stay += 1;
                self.in_charge = 1 - self.in_charge;
                if self.stay == 2 {
                    // It does not know the pool.
                    self.servers[1].forget(plan.store_clock().shows(self.now));
                }
            }
            Step::Breaks(index) => {
                let exchange = self.members[index].flight.take();
                let exchange = exchange.expect("a step that is possible");
                self.tell(plan, index, ProtocolEvent::Failed { exchange })?;
            }
            Step::Wants(index, wants) => self.wants(plan, index, wants)?,
            Step::Leaves(index) => self.tell(plan, index, ProtocolEvent::Leave)?,
            Step::Crashes(index) => {
                self.members[index] = self.started(plan, index);
                self.wants(plan, index, plan.pool.partitions())?;
            }
            Step::Changes(index) => {
                self.tell(plan, index, ProtocolEvent::Changed(&plan.other_pool))?;
            }
            Step::Restarts(restart) => self.restarts(plan, restart),
        }
        if self.now > before {
            for member in &mut self.members {
                member.look(plan, self.now);
            }
        }
        self.tidy(plan);
        self.check(plan)
    }

    fn restarts(&mut self, plan: &Plan, restart: Restart) {
        let now = plan.store_clock().shows(self.now);
        let store = &mut self.servers[self.in_charge];
        match (restart, self.files.first()) {
            (Restart::TheNewest, Some(file)) => store.restore(file, now),
            (Restart::TimeToLive, _) => store.restart(now),
            _ => store.forget(now),
        }
        let longest = plan.pool.lease().max(plan.other_pool.lease());
        let ends = [plan.pool.lease(), longest];
        self.ends
            .extend(ends.map(|lease| now.saturating_add(lease)));
    }

    fn wants(&mut self, plan: &Plan, index: usize, wants: u32) -> Checked {
        self.members[index].wants = wants;
        self.tell(plan, index, ProtocolEvent::Demand(wants))
    }

    /// Tells the protocol of a member what happened, and does what it returns.
    fn tell(&mut self, plan: &Plan, index: usize, event: ProtocolEvent<'_>) -> Checked {
        let member = &mut self.members[index];
        let now = member.clock.shows(self.now);
        let actions = member.protocol.on(event, now);
        member.wake_at = actions.wake_at;
        if let Some(share) = actions.share {
            member.told.push((now, Told::Follow(share)));
            member.share = share;
            member.look(plan, self.now);
        }
        if member.protocol.leases().any(|(_, ends)| ends <= now) {
            return Err(format!("member {index} uses a lease after its end"));
        }
        if member.share.partitions as usize != member.protocol.leases().count() {
            return Err(format!("member {index} was told a wrong share"));
        }
        if let Some((exchange, request)) = actions.send {
            member.flight = Some(exchange);
            self.letters.push(Letter {
                member: index,
                life: member.life,
                exchange,
                server: self.in_charge,
                knows: member.knows,
                has_arrived: false,
                content: Content::Request(Rc::new(request)),
            });
        }
        Ok(())
    }

    fn arrives(&mut self, plan: &Plan, letter: &Letter) -> Checked {
        let answer = match &letter.content {
            Content::Request(request) => {
                self.asked(plan, letter, request);
                return Ok(());
            }
            Content::Answer(answer) => answer,
        };
        let (index, exchange) = (letter.member, letter.exchange);
        let member = &mut self.members[index];
        if member.life != letter.life {
            return Ok(());
        }
        if member.flight == Some(exchange) {
            member.flight = None;
            member.knows = letter.knows;
        }
        self.tell(plan, index, ProtocolEvent::Answered { exchange, answer })
    }

    /// A server decides.
    fn asked(&mut self, plan: &Plan, letter: &Letter, request: &Exchange) {
        let server = letter.server;
        // A later stay at the other one.
        let other = self.decided[1 - server];
        if other > self.heard[server].max(self.decided[server]) {
            if letter.knows[1 - server] < other {
                // What `docs/fleet.md` excepts: the first that asks after the members have come
                // back has not heard of the other server. Its request is lost.
                return;
            }
            self.heard[server] = other;
        }
        let now = plan.store_clock().shows(self.now);
        if plan.has(Kind::Restarts) {
            self.files.push(self.servers[server].clone());
            self.files = self.files.split_off(self.files.len().saturating_sub(2));
        }
        let answer = self.servers[server].exchange(request, now);
        // The last stay at this server.
        let stay = self.stay - u32::from(server != self.in_charge);
        if !(answer.granted.is_empty() && answer.renewed.is_empty()) {
            self.decided[server] = stay;
        }
        let mut knows = letter.knows;
        knows[server] = stay;
        self.ends.push(now.saturating_add(request.lease));
        let hold_off = answer.hold_off.into_iter();
        self.ends
            .extend(hold_off.map(|left| now.saturating_add(left)));
        self.letters.push(Letter {
            knows,
            has_arrived: false,
            content: Content::Answer(Rc::new(answer)),
            ..letter.clone()
        });
    }

    /// Drops what no later step can do, and orders the rest. So equal states look the same.
    fn tidy(&mut self, plan: &Plan) {
        let keeps_late = self.faults > 0 && plan.has(Kind::Late);
        let mut letters = core::mem::take(&mut self.letters);
        letters.retain(|letter| {
            let is_answer = matches!(letter.content, Content::Answer(_));
            let is_for_another = letter.life != self.members[letter.member].life;
            let is_late = self.is_late(letter);
            !(is_late && !keeps_late || is_answer && is_for_another)
        });
        letters.sort_by_key(|letter| {
            let is_answer = matches!(letter.content, Content::Answer(_));
            (letter.member, letter.life, letter.exchange, is_answer)
        });
        for index in 0..self.members.len() {
            let of = |letter: &Letter| letter.member == index;
            let mut surplus = letters.iter().filter(|letter| of(letter)).count();
            surplus = surplus.saturating_sub(MOST_LETTERS);
            letters.retain(|letter| {
                let goes = of(letter) && surplus > 0;
                surplus -= usize::from(goes);
                !goes
            });
        }
        self.letters = letters;
        if self.faults == 0 {
            self.files.clear();
        }
        let now = plan.store_clock().shows(self.now);
        self.ends.sort_unstable();
        self.ends.dedup();
        self.ends.retain(|&end| now < end);
    }

    fn check(&mut self, plan: &Plan) -> Checked {
        for partition in 0..plan.pool.partitions() {
            let users = self.members.iter().filter(|member| {
                let now = member.clock.shows(self.now);
                let mut leases = member.protocol.leases();
                leases.any(|(held, ends)| held.partition == partition && now < ends)
            });
            let users: Vec<u64> = users.map(|member| member.life).collect();
            if users.len() > 1 {
                return Err(format!("processes {users:?} use partition {partition}"));
            }
        }
        let passed = i128::from(self.now - self.level_at);
        self.level = (self.level + passed * plan.gain()).min(plan.burst());
        self.level_at = self.now;
        let available: u64 = self.members.iter().map(|member| member.available).sum();
        if i128::from(available) * PERMIT > self.level + TICK * plan.gain() {
            let within = self.level / PERMIT;
            return Err(format!(
                "{available} permits are available, of which {within} are within the bound"
            ));
        }
        Ok(())
    }
}

/// How many letters of a member may still arrive.
const MOST_LETTERS: usize = 3;

/// A hash of what is written to it, in 128 bits.
struct Digest([u64; 2]);

impl Write for Digest {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let [mut one, mut other] = self.0;
        let mut add = |word: u64| {
            one = (one.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
            other = (other.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        };
        let (words, rest) = text.as_bytes().as_chunks();
        for word in words {
            add(u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        last[7] = rest.len() as u8;
        add(u64::from_le_bytes(last));
        self.0 = [one, other];
        Ok(())
    }
}

fn digest(fleet: &Fleet) -> u128 {
    let mut digest = Digest([0x5eed, 0xfeed]);
    write!(digest, "{fleet:?}").expect("it takes all");
    u128::from(digest.0[0]) << 64 | u128::from(digest.0[1])
}

struct Search<'a> {
    plan: &'a Plan,
    /// The states that were reached, with the most steps that were left.
    seen: HashMap<u128, u8>,
    transitions: u64,
    path: Vec<Step>,
}

impl Search<'_> {
    fn beyond(&mut self, fleet: &Fleet, left: u8) -> Checked {
        for step in fleet.steps(self.plan) {
            let mut next = fleet.clone();
            self.transitions += 1;
            self.path.push(step);
            next.apply(self.plan, step)?;
            let left = left - 1;
            if left > 0 {
                let seen = self.seen.entry(digest(&next)).or_insert(0);
                if *seen < left {
                    *seen = left;
                    self.beyond(&next, left)?;
                }
            }
            self.path.pop();
        }
        Ok(())
    }
}

/// Searches all runs. Fails with the steps to the first state that is wrong.
fn search(plan: &Plan) {
    let begun = Instant::now();
    let fleet = Fleet::new(plan).expect("the first state is right");
    let mut search = Search {
        plan,
        seen: HashMap::new(),
        transitions: 0,
        path: Vec::new(),
    };
    let found = search.beyond(&fleet, plan.steps);
    println!(
        "{} members, {} partitions, {} steps, {} faults, {} takes, {} switches: {} states, {} \
         transitions, {:.1} s",
        plan.members,
        plan.pool.partitions(),
        plan.steps,
        plan.faults,
        plan.takes,
        plan.switches,
        search.seen.len(),
        search.transitions,
        begun.elapsed().as_secs_f64(),
    );
    if let Err(wrong) = found {
        let mut fleet = Fleet::new(plan).expect("the first state is right");
        for &step in &search.path {
            let at = fleet.now / MILLI;
            let _wrong_at_last = fleet.apply(plan, step);
            println!("{at:6} to {:6} ms: {step:?}", fleet.now / MILLI);
        }
        panic!("after {} steps: {wrong}", search.path.len());
    }
}

/// What messages and demands can do.
const MESSAGES: &[Kind] = &[Kind::Late, Kind::Broken, Kind::Demands];
/// What processes and the store can do.
const PROCESSES: &[Kind] = &[Kind::Crashes, Kind::Restarts];

#[test]
fn messages_that_are_lost_or_late_lease_nothing_twice() {
    search(&Plan::new(7, 2, MESSAGES));
}

#[test]
fn a_message_that_comes_too_late_leases_nothing_twice() {
    search(&Plan::new(9, 1, &[Kind::Late]));
}

#[test]
fn crashes_and_restarts_of_the_store_lease_nothing_twice() {
    search(&Plan::new(8, 1, PROCESSES));
}

/// The first exchanges of a fleet, with clocks that differ by less than the margin allows.
#[test]
fn a_fleet_that_starts_leases_nothing_twice_whichever_clocks_are_slow() {
    for slow in [(false, [false; 3]), (true, [true; 3]), (true, [false; 3])] {
        search(&Plan {
            is_running: false,
            slow,
            ..Plan::new(7, 1, ALL)
        });
    }
}

/// Except for what `docs/fleet.md` excepts: the request of a member that has not heard of the other
/// server, at one that has not either.
#[test]
fn servers_that_members_leave_and_come_back_to_lease_nothing_twice() {
    search(&Plan {
        switches: 2,
        ..Plan::new(8, 0, &[])
    });
}

#[test]
fn leases_of_another_length_are_leased_to_one_member() {
    search(&with_other_settings(8, 1));
}

fn with_other_settings(steps: u8, faults: u8) -> Plan {
    let plan = Plan::new(steps, faults, &[Kind::Settings, Kind::Restarts]);
    let pool = plan.pool.to_builder().lease(plan.pool.lease() / 2);
    let pool = pool.margin(plan.pool.margin() / 2).build();
    Plan {
        other_pool: pool.expect("the settings fit"),
        ..plan
    }
}

#[test]
fn what_members_take_is_within_the_bound() {
    search(&Plan {
        pool: pool(2, false),
        takes: 2,
        ..Plan::new(6, 1, &[Kind::Crashes, Kind::Demands])
    });
}

/// The same searches with more steps, faults, members and partitions.
mod soak {
    use super::*;

    #[test]
    #[ignore = "takes minutes"]
    fn two_members_and_one_partition() {
        search(&Plan::new(9, 2, ALL));
        search(&Plan::new(12, 0, ALL));
    }

    #[test]
    #[ignore = "takes minutes"]
    fn two_servers() {
        search(&Plan {
            switches: 2,
            ..Plan::new(11, 0, &[])
        });
        search(&Plan {
            switches: 3,
            ..Plan::new(9, 1, ALL)
        });
    }

    #[test]
    #[ignore = "takes minutes"]
    fn other_settings() {
        search(&with_other_settings(10, 2));
    }

    #[test]
    #[ignore = "takes minutes"]
    fn two_partitions_and_three_members() {
        for is_fair in [false, true] {
            search(&Plan {
                pool: pool(2, is_fair),
                ..Plan::new(8, 2, ALL)
            });
            search(&Plan {
                members: 3,
                pool: pool(2, is_fair),
                ..Plan::new(8, 1, ALL)
            });
        }
    }

    #[test]
    #[ignore = "takes minutes"]
    fn permits() {
        search(&Plan {
            takes: 3,
            ..Plan::new(9, 1, ALL)
        });
    }
}
