//! State: the leases that the member may use, each with the instant at which it stops to use it;
//! the leases that it no longer uses, but whose release the store has not confirmed; the exchange
//! in flight, if any; and how many partitions it wants.
//!
//! ```text
//!                 granted, if the end is still ahead
//!        (none) -------------------------------------> used --+-- renewed: the end moves
//!           ^                                            |    |   on
//!           |  confirmed                                 |<---+
//!           +------------- releasing <-------------------+  not wanted: first the share
//!           ^                                            |  falls, then the release is sent
//!           +--------------------------------------------+  at its end, or not renewed
//!
//! the end of a lease = the instant at which the request was SENT + lease - margin
//! ```
//!
//! - *send*: one exchange at a time. It names all leases that are used, and all that are releasing.
//! - *answer*: only that of the exchange in flight counts. It arrives at some time after the store
//!   decided, so the end counts from before the decision. A grant whose end has passed meanwhile is
//!   not used, but released. A lease that ended while its renewal was on the way is used again; but
//!   not if the store holds off, which may have forgotten that it leased the partition since: then
//!   it is released.
//! - *again*: in a fair pool, an answer may tell of free partitions to which the member is entitled
//!   only now. Then it asks for them at once, and after that answer as usual.
//! - *time*: a lease is no longer used from its end on.
//!
//! Invariant: if the member uses a partition, then the store has leased it to this member. The
//! store decided at an instant after the request was sent, and leases the partition for the time of
//! a lease by its clock. The member stops `lease - margin` after it sent the request, by its clock.
//! That is not later if the clocks differ in speed by at most `margin / lease`. So no two members
//! use a partition at the same time, and `docs/fleet.md` derives the bound on what all admit.

use core::time::Duration;

use portcullis_core::Timestamp;

use crate::fair_share::FairShares;
use crate::pool::Pool;
use crate::store::{Claim, Exchange, ExchangeAnswer, Heard, MemberId, PartitionLease};

/// A member's part of the protocol: which leases it takes, renews, uses and releases.
///
/// It does no I/O and reads no clock: it is told what happened and when, and returns what to do.
/// A driver does that for real, and a simulation in virtual time, with the same code.
///
/// # Guarantees
///
/// - **Exclusive.** It uses a partition only while the store has leased it to this member, whatever
///   is lost, late, doubled or stopped. The clocks of the member and the store may differ in
///   speed by [`margin / lease`](crate::PoolBuilder::margin).
/// - **Work-conserving.** While it is short, it asks about every [`interval`](Pool::interval) for
///   all that it wants.
/// - **Load.** Satisfied, it asks once in a third of a lease. While it is short, and always if the
///   pool is [fair](Pool::is_fair), it asks once in three quarters of an interval at most. It asks
///   once more, at once, for what it gives back, or if it has learned of free partitions.
///
/// # Cost
///
/// An event is linear in the leases of this member, and in the number of partitions if it asks for
/// more. An answer also compares each lease with those that it renews: quadratic in the leases of
/// this member. It allocates the request.
///
/// ```
/// use portcullis_core::{Rate, Timestamp};
/// use portcullis_fleet::{LeaseTable, MemberId, Pool, Protocol, ProtocolEvent};
///
/// let pool = Pool::builder("writes", Rate::per_second(500)).build()?;
/// let at = Timestamp::from_millis;
/// let mut member = Protocol::new(&pool, MemberId(1), 1, at(0));
/// let mut store = LeaseTable::new();
///
/// let actions = member.on(ProtocolEvent::Demand(pool.wanted(100)), at(10));
/// let (exchange, request) = actions.send.expect("it asks the store");
/// assert_eq!(request.at_most, 4);
/// let answer = store.exchange(&request, at(11));
/// let actions = member.on(ProtocolEvent::Answered { exchange, answer: &answer }, at(12));
/// let share = actions.share.expect("it has leases now");
/// assert_eq!(share.partitions, 4);
/// // 15 s after it asked, less the margin of 200 ms.
/// assert_eq!(share.until, at(14_810));
/// # Ok::<(), portcullis_fleet::PoolError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Protocol {
    settings: Settings,
    id: MemberId,
    random: Random,
    now: Timestamp,
    /// The demand as it was last told.
    demand: u32,
    /// The demand that counts: `demand`, or what it was before it fell.
    target: u32,
    falling: Option<Falling>,
    /// How many partitions fairness leaves to this member.
    limit: u32,
    used: Vec<Lease>,
    releasing: Vec<PartitionLease>,
    /// Whether other members had these partitions when the store last looked at them.
    taken: Vec<bool>,
    flight: Option<Flight>,
    exchanges: u64,
    /// When the leases are renewed.
    renew_at: Timestamp,
    /// The earliest instant at which it asks again, for what it did not get.
    ask_at: Timestamp,
    /// Why it asks at that instant.
    asks_for: Cause,
    /// The earliest instant of any exchange, after a failure.
    retry_at: Timestamp,
    failures: u32,
    /// The largest demand that the store may remember of this member.
    published: u32,
    /// Which server has answered last, and when that exchange was sent.
    heard: Option<(u64, Timestamp)>,
    /// The newest fence of all answers.
    fence: u64,
    is_alone: bool,
    has_left: bool,
    /// Whether it wanted more than what all members have, in the last picture.
    competes: bool,
    /// How many partitions each member can have that wants them, in the last picture.
    level: u32,
    /// How long it has used more than that, in partition-nanoseconds. What waits does not move, so
    /// all members agree on who is next, although their pictures differ in age.
    served: u128,
    /// The share that the limiter has.
    shown: MemberShare,
    reports: Vec<MemberReport>,
}

#[derive(Clone, Copy, Debug)]
struct Settings {
    partitions: u32,
    lease: Duration,
    margin: Duration,
    interval: Duration,
    linger: Duration,
    fair: bool,
}

impl Settings {
    fn of(pool: &Pool) -> Self {
        Self {
            partitions: pool.partitions(),
            lease: pool.lease(),
            margin: pool.margin(),
            interval: pool.interval(),
            linger: pool.linger(),
            fair: pool.is_fair(),
        }
    }

    /// How long the member waits for an answer.
    fn patience(&self) -> Duration {
        (self.lease / 4).min(LONGEST_PATIENCE)
    }

    /// For how long a member keeps a partition that not all can have, in milliseconds.
    fn turn(&self) -> u64 {
        let turn = self.interval.saturating_mul(INTERVALS_IN_A_TURN);
        u64::try_from(turn.as_millis()).unwrap_or(u64::MAX)
    }
}

/// How long a member waits for an answer at most.
const LONGEST_PATIENCE: Duration = Duration::from_secs(2);

/// A turn is so many intervals, so that capacity that changes hands is idle for a small part of the
/// time.
const INTERVALS_IN_A_TURN: u32 = 50;

/// How many turns more than the others a member has had at most that count against it.
const REMEMBERED_TURNS: u64 = 2;

/// Why a member asks for what it lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// An interval has passed.
    Time,
    /// The last answer told of free partitions that it did not ask for. After the next one it waits
    /// for an interval.
    News,
}

/// A lease that the member may use until its end.
#[derive(Clone, Copy, Debug)]
struct Lease {
    held: PartitionLease,
    ends: Timestamp,
    /// Whether the exchange in flight renews it.
    is_asked: bool,
}

/// A demand that is lower than the target.
#[derive(Clone, Copy, Debug)]
struct Falling {
    since: Timestamp,
    /// The largest demand since then.
    most: u32,
}

#[derive(Clone, Copy, Debug)]
struct Flight {
    exchange: u64,
    sent: Timestamp,
    /// How long the leases last that it grants or renews, and when the member stops to use them.
    /// The settings may change before the answer comes.
    lease: Duration,
    ends: Timestamp,
    /// How many of the leases in `releasing` it releases.
    released: usize,
    /// Whether it was sent for [`Cause::Time`], and not only for a release.
    is_due: bool,
    /// To how many partitions the member was entitled.
    entitled: u32,
    /// The demand that it publishes.
    demand: u32,
}

/// What happens to a member.
///
/// ```
/// # use portcullis_core::{Rate, Timestamp};
/// # use portcullis_fleet::{MemberId, Pool, Protocol, ProtocolEvent};
/// let pool = Pool::builder("writes", Rate::per_second(500)).build()?;
/// let mut member = Protocol::new(&pool, MemberId(1), 1, Timestamp::ZERO);
/// // Without a demand there is nothing to do.
/// assert!(member.on(ProtocolEvent::Wake, Timestamp::ZERO).send.is_none());
/// # Ok::<(), portcullis_fleet::PoolError>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum ProtocolEvent<'a> {
    /// It wants so many partitions in all: see [`Pool::wanted`].
    Demand(u32),
    /// The store answered.
    Answered {
        /// The number of the exchange.
        exchange: u64,
        /// The answer.
        answer: &'a ExchangeAnswer,
    },
    /// The exchange failed. The store may have done what it was asked.
    Failed {
        /// The number of the exchange.
        exchange: u64,
    },
    /// The pool has other settings from now on. Only its name must be the same.
    Changed(&'a Pool),
    /// The member ends, and releases all that it holds.
    Leave,
    /// Time has passed.
    Wake,
}

/// What to do after an event, in this order.
///
/// ```
/// # use portcullis_core::{Rate, Timestamp};
/// # use portcullis_fleet::{MemberId, Pool, Protocol, ProtocolEvent};
/// let pool = Pool::builder("writes", Rate::per_second(500)).build()?;
/// let mut member = Protocol::new(&pool, MemberId(1), 1, Timestamp::ZERO);
/// let actions = member.on(ProtocolEvent::Demand(3), Timestamp::ZERO);
/// assert!(actions.share.is_none(), "it has no leases yet");
/// assert!(actions.send.is_some());
/// assert!(actions.wake_at > Timestamp::ZERO);
/// # Ok::<(), portcullis_fleet::PoolError>(())
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Actions {
    /// The share has changed: the limiter must follow it before the request is sent.
    pub share: Option<MemberShare>,
    /// The number of an exchange, and the request to send to the store now. The answer belongs into
    /// [`ProtocolEvent::Answered`], with the same number.
    pub send: Option<(u64, Exchange)>,
    /// When to tell it [`ProtocolEvent::Wake`], if nothing happens before: the largest timestamp
    /// for never.
    pub wake_at: Timestamp,
    /// What a program may want to know.
    pub reports: Vec<MemberReport>,
}

/// The part of the shared capacity that a member may use.
///
/// ```
/// # use portcullis_core::Timestamp;
/// # use portcullis_fleet::MemberShare;
/// assert_eq!(MemberShare::NONE, MemberShare { partitions: 0, until: Timestamp::ZERO });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "a number, and until when")]
pub struct MemberShare {
    /// How many partitions.
    pub partitions: u32,
    /// From this instant on, the member may use none of them, unless it is told another share. It
    /// is the earliest end of a lease, or [`Timestamp::ZERO`] without leases.
    pub until: Timestamp,
}

impl MemberShare {
    /// No partition.
    pub const NONE: Self = Self {
        partitions: 0,
        until: Timestamp::ZERO,
    };
}

/// What a program may want to know of its member.
///
/// ```
/// # use portcullis_fleet::MemberReport;
/// assert_ne!(MemberReport::Unreachable, MemberReport::Reachable);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemberReport {
    /// The store did not answer. The member uses its leases until they end.
    Unreachable,
    /// The last lease has ended, and the store still does not answer: the time for a fallback.
    Alone,
    /// The store answers again.
    Reachable,
    /// The store grants nothing for so long, because it may have forgotten leases.
    HoldsOff(Duration),
    /// The store did not renew the lease of this partition.
    Lost(u32),
}

impl Protocol {
    /// Returns a member of `pool`, at `now`, without demand and without leases.
    ///
    /// `id` is unique among all members that ever use the pool. `seed` makes its choices differ
    /// from those of the others.
    #[must_use]
    pub fn new(pool: &Pool, id: MemberId, seed: u64, now: Timestamp) -> Self {
        let settings = Settings::of(pool);
        Self {
            settings,
            id,
            random: Random(seed),
            now,
            demand: 0,
            target: 0,
            falling: None,
            limit: settings.partitions,
            used: Vec::new(),
            releasing: Vec::new(),
            taken: vec![false; settings.partitions as usize],
            flight: None,
            exchanges: 0,
            renew_at: now,
            ask_at: now,
            asks_for: Cause::Time,
            retry_at: now,
            failures: 0,
            published: 0,
            heard: None,
            fence: 0,
            is_alone: false,
            has_left: false,
            competes: false,
            level: settings.partitions,
            served: 0,
            shown: MemberShare::NONE,
            reports: Vec::new(),
        }
    }

    /// Tells the member that `event` happened at `now`, and returns what to do.
    ///
    /// `now` is read when the event is handled, by a clock that does not jump. An event that does
    /// not fit, such as an answer that is late or doubled, changes nothing.
    pub fn on(&mut self, event: ProtocolEvent<'_>, now: Timestamp) -> Actions {
        self.pass_time(now);
        match event {
            ProtocolEvent::Demand(partitions) => self.demand = partitions,
            ProtocolEvent::Answered { exchange, answer } => self.answered(exchange, answer),
            ProtocolEvent::Failed { exchange } => self.failed(exchange),
            ProtocolEvent::Changed(pool) => self.changed(pool),
            ProtocolEvent::Leave => self.has_left = true,
            ProtocolEvent::Wake => {}
        }
        // In this order: what is given up is released in this exchange, and what the limiter is
        // shown has left out what is released.
        self.lose_patience();
        self.settle_target();
        self.give_up();
        let send = self.exchange();
        Actions {
            share: self.show(),
            send,
            wake_at: self.wake_at(),
            reports: core::mem::take(&mut self.reports),
        }
    }

    /// Returns the leases that the member may use, and until when.
    ///
    /// Their fences go with requests to services that check them.
    ///
    /// ```
    /// # use portcullis_core::{Rate, Timestamp};
    /// # use portcullis_fleet::{MemberId, Pool, Protocol};
    /// let pool = Pool::builder("writes", Rate::per_second(500)).build()?;
    /// let member = Protocol::new(&pool, MemberId(1), 1, Timestamp::ZERO);
    /// assert_eq!(member.leases().count(), 0);
    /// # Ok::<(), portcullis_fleet::PoolError>(())
    /// ```
    pub fn leases(&self) -> impl Iterator<Item = (PartitionLease, Timestamp)> {
        self.used.iter().map(|lease| (lease.held, lease.ends))
    }

    /// Returns how many partitions the member wants and lacks.
    ///
    /// ```
    /// # use portcullis_core::{Rate, Timestamp};
    /// # use portcullis_fleet::{MemberId, Pool, Protocol, ProtocolEvent};
    /// let pool = Pool::builder("writes", Rate::per_second(500)).build()?;
    /// let mut member = Protocol::new(&pool, MemberId(1), 1, Timestamp::ZERO);
    /// member.on(ProtocolEvent::Demand(3), Timestamp::ZERO);
    /// assert_eq!(member.short(), 3);
    /// # Ok::<(), portcullis_fleet::PoolError>(())
    /// ```
    pub fn short(&self) -> u32 {
        self.entitled().saturating_sub(self.held())
    }

    /// Returns whether the store answered the last exchange, or there was none.
    ///
    /// ```
    /// # use portcullis_core::{Rate, Timestamp};
    /// # use portcullis_fleet::{MemberId, Pool, Protocol, ProtocolEvent};
    /// let pool = Pool::builder("writes", Rate::per_second(500)).build()?;
    /// let mut member = Protocol::new(&pool, MemberId(1), 1, Timestamp::ZERO);
    /// let (exchange, _) = member.on(ProtocolEvent::Demand(3), Timestamp::ZERO).send.unwrap();
    /// assert!(member.is_connected());
    /// member.on(ProtocolEvent::Failed { exchange }, Timestamp::ZERO);
    /// assert!(!member.is_connected());
    /// # Ok::<(), portcullis_fleet::PoolError>(())
    /// ```
    pub const fn is_connected(&self) -> bool {
        self.failures == 0
    }

    /// Returns whether the member has left and the store knows that it has no leases.
    ///
    /// ```
    /// # use portcullis_core::{Rate, Timestamp};
    /// # use portcullis_fleet::{MemberId, Pool, Protocol, ProtocolEvent};
    /// let pool = Pool::builder("writes", Rate::per_second(500)).build()?;
    /// let mut member = Protocol::new(&pool, MemberId(1), 1, Timestamp::ZERO);
    /// member.on(ProtocolEvent::Leave, Timestamp::ZERO);
    /// assert!(member.has_left());
    /// # Ok::<(), portcullis_fleet::PoolError>(())
    /// ```
    pub fn has_left(&self) -> bool {
        self.has_left && self.used.is_empty() && self.releasing.is_empty() && self.flight.is_none()
    }

    /// Returns how many partitions the member may use.
    fn held(&self) -> u32 {
        self.used.len() as u32
    }

    /// Returns how many partitions the member wants and fairness leaves to it.
    fn entitled(&self) -> u32 {
        if self.has_left {
            return 0;
        }
        self.target.min(self.limit).min(self.settings.partitions)
    }

    /// Ends the leases whose end has passed.
    fn pass_time(&mut self, now: Timestamp) {
        let passed = now.saturating_since(self.now);
        let beyond = self.held().saturating_sub(self.level);
        self.served += passed.as_nanos() * u128::from(beyond);
        // A clock that runs back must not make a lease last longer.
        self.now = self.now.max(now);
        let now = self.now;
        self.used.retain(|lease| now < lease.ends);
    }

    /// Gives up an exchange that takes too long. An answer that comes with the event counts.
    fn lose_patience(&mut self) {
        if let Some(flight) = self.flight
            && self.now >= flight.sent.saturating_add(self.settings.patience())
        {
            self.failed(flight.exchange);
        }
        if self.failures > 0 && self.used.is_empty() && !self.is_alone {
            self.is_alone = true;
            self.reports.push(MemberReport::Alone);
        }
    }

    /// Does what an answer says, if it is the answer to the exchange in flight.
    fn answered(&mut self, exchange: u64, answer: &ExchangeAnswer) {
        let Some(flight) = self.flight.take_if(|flight| flight.exchange == exchange) else {
            return;
        };
        if self.failures > 0 {
            self.failures = 0;
            self.is_alone = false;
            self.reports.push(MemberReport::Reachable);
        }
        self.published = flight.demand;
        self.fence = self.fence.max(answer.fence);
        if answer.server != 0 {
            self.heard = Some((answer.server, flight.sent));
        }
        // As of when the request was sent, with the settings of then: the store decided later.
        let ends = flight.ends;
        // The store has confirmed them. Those behind were given up since, and are still to be sent.
        self.releasing.drain(..flight.released);
        self.renewed(answer, ends);
        for &held in &answer.granted {
            self.take(held, ends);
        }
        for &partition in &answer.taken {
            self.mark(partition, true);
        }
        self.share_fairly(&answer.members);
        // At a third, so that two renewals can fail before a lease ends.
        let third = self.random.about(flight.lease / 3);
        self.renew_at = flight.sent.saturating_add(third.min(flight.lease / 3));
        let interval = self.random.about(self.settings.interval);
        self.ask_at = flight.sent.saturating_add(interval);
        self.asks_for = Cause::Time;
        if flight.is_due && self.has_more_to_take(&flight, &answer.members) {
            self.asks_for = Cause::News;
            self.ask_at = self.now;
        }
        if let Some(remaining) = answer.hold_off {
            self.reports.push(MemberReport::HoldsOff(remaining));
            // The store said so after the request was sent. Not all members ask at once. All ask
            // once in a third of a lease, as those do that have leases: if another server answers
            // for longer, they know it.
            let remaining = remaining.min(self.settings.lease / 3);
            let after = remaining.saturating_add(interval / 4);
            self.ask_at = self.ask_at.max(flight.sent.saturating_add(after));
        }
    }

    /// Uses a lease that the store has just granted or renewed, or releases it if its end has
    /// passed meanwhile.
    fn take(&mut self, held: PartitionLease, ends: Timestamp) {
        self.mark(held.partition, false);
        if self.now < ends {
            self.used.push(Lease {
                held,
                ends,
                is_asked: false,
            });
        } else {
            self.releasing.push(held);
        }
    }

    /// Moves the ends of the leases that were renewed on, and drops those that were not. Takes
    /// those again that have ended since the request was sent.
    fn renewed(&mut self, answer: &ExchangeAnswer, ends: Timestamp) {
        let mut renewed = 0;
        let reports = &mut self.reports;
        self.used.retain_mut(|lease| {
            if !core::mem::take(&mut lease.is_asked) {
                // It was granted after the request was sent, so the answer does not concern it.
                return true;
            }
            let is_renewed = answer.renewed.contains(&lease.held);
            if is_renewed {
                lease.ends = lease.ends.max(ends);
                renewed += 1;
            } else {
                reports.push(MemberReport::Lost(lease.held.partition));
            }
            is_renewed
        });
        if renewed == answer.renewed.len() {
            return;
        }
        for &held in &answer.renewed {
            let is_used = self.used.iter().any(|lease| lease.held == held);
            if is_used || self.releasing.contains(&held) {
                continue;
            }
            if answer.hold_off.is_none() {
                self.take(held, ends);
            } else {
                // The store may have forgotten to whom it leased the partition since the end.
                self.releasing.push(held);
            }
        }
    }

    /// Waits before the next exchange, longer each time. The request may have been handled: what is
    /// being released stays so, until a store confirms it.
    fn failed(&mut self, exchange: u64) {
        let Some(_) = self.flight.take_if(|flight| flight.exchange == exchange) else {
            return;
        };
        if self.failures == 0 {
            self.reports.push(MemberReport::Unreachable);
        }
        self.failures = self.failures.saturating_add(1);
        let doubled = 1_u32.checked_shl(self.failures - 1).unwrap_or(u32::MAX);
        let pause = self.settings.interval.saturating_mul(doubled);
        let pause = self.random.about(pause.min(self.settings.lease / 6));
        self.retry_at = self.now.saturating_add(pause);
    }

    /// Takes the new settings of the pool. Which partitions are taken is not known of other ones.
    fn changed(&mut self, pool: &Pool) {
        self.settings = Settings::of(pool);
        self.limit = self.settings.partitions;
        self.taken.clear();
        self.taken.resize(self.settings.partitions as usize, false);
    }

    /// Notes whether another member had a partition when the store last looked.
    fn mark(&mut self, partition: u32, is_taken: bool) {
        if let Some(mark) = self.taken.get_mut(partition as usize) {
            *mark = is_taken;
        }
    }

    /// Returns whether there are free partitions to which the member is entitled only now.
    fn has_more_to_take(&self, flight: &Flight, claims: &[Claim]) -> bool {
        self.settings.fair
            && self.entitled() > flight.entitled.max(self.held())
            && self.free(claims) > 0
    }

    /// Returns how many partitions no member has, by the claims of all.
    fn free(&self, claims: &[Claim]) -> u32 {
        let held: u32 = claims.iter().map(|claim| claim.held).sum();
        self.settings.partitions.saturating_sub(held)
    }

    /// Computes how many partitions fairness leaves to this member.
    fn share_fairly(&mut self, claims: &[Claim]) {
        self.limit = self.settings.partitions;
        let own = claims.iter().find(|claim| claim.member == self.id);
        let Some(own) = own.filter(|_| self.settings.fair) else {
            // A store that does not tell the members leaves it to who comes first.
            return;
        };
        let shares = FairShares::of(claims, self.settings.partitions, self.settings.turn());
        let share = shares.share(own);
        let competed = core::mem::replace(&mut self.competes, own.demand > shares.level());
        if !self.competes {
            self.level = self.settings.partitions;
            return;
        }
        self.level = shares.level();
        let others = || claims.iter().filter(|claim| claim.member != self.id);
        let short = others().map(|claim| shares.share(claim).saturating_sub(claim.held));
        // What the free partitions do not cover, the members above their share give back.
        let lacking = short.sum::<u32>().saturating_sub(self.free(claims));
        self.limit = share.max(self.held().saturating_sub(lacking));
        // What a member has had while there was enough for all does not count, neither for it nor
        // against it, and of the rest only the last turns.
        let competing = others().filter(|claim| claim.demand > shares.level());
        if let Some(least) = competing.map(|claim| claim.served).min() {
            let most = least.saturating_add(REMEMBERED_TURNS * self.settings.turn());
            let served = if competed { most } else { least };
            let served = u128::from(served) * NANOS_PER_MILLI;
            self.served = if competed {
                self.served.min(served)
            } else {
                served
            };
        }
    }

    /// The target follows a demand that rises at once, and one that falls after a while.
    fn settle_target(&mut self) {
        if self.demand >= self.target {
            self.target = self.demand;
            self.falling = None;
            return;
        }
        let (now, demand) = (self.now, self.demand);
        let falling = self.falling.get_or_insert(Falling {
            since: now,
            most: demand,
        });
        falling.most = falling.most.max(demand);
        if now >= falling.since.saturating_add(self.settings.linger) {
            self.target = falling.most;
            self.falling = (demand < self.target).then_some(Falling {
                since: now,
                most: demand,
            });
        }
    }

    /// Stops to use the leases that are more than wanted, the newest first.
    fn give_up(&mut self) {
        let partitions = self.settings.partitions;
        let releasing = &mut self.releasing;
        self.used.retain(|lease| {
            let exists = lease.held.partition < partitions;
            if !exists {
                releasing.push(lease.held);
            }
            exists
        });
        let keep = self.entitled() as usize;
        while self.used.len() > keep {
            let last = self.used.pop();
            self.releasing.extend(last.map(|lease| lease.held));
        }
    }

    /// Returns when the next exchange is due: never while one is in flight.
    fn due_at(&self) -> Option<Timestamp> {
        if self.flight.is_some() {
            return None;
        }
        // The others leave a member its share for as long as the store remembers its demand.
        let is_seen = self.target > 0 || self.published > 0 || !self.used.is_empty();
        let polls = self.settings.fair && is_seen && !self.has_left;
        let asks = (self.short() > 0 || polls).then_some(self.ask_at);
        let releases = (!self.releasing.is_empty()).then_some(self.now);
        let renews = (!self.used.is_empty()).then_some(self.renew_at);
        let first = [asks, releases, renews].into_iter().flatten().min()?;
        Some(first.max(self.retry_at))
    }

    /// Starts an exchange if one is due.
    fn exchange(&mut self) -> Option<(u64, Exchange)> {
        if self.due_at()? > self.now {
            return None;
        }
        self.exchanges += 1;
        let demand = if self.has_left { 0 } else { self.target };
        let demand = demand.min(self.settings.partitions);
        self.published = self.published.max(demand);
        // The store decides after the request is sent.
        let lasts = self.settings.lease.saturating_sub(self.settings.margin);
        self.flight = Some(Flight {
            is_due: self.ask_at <= self.now && self.asks_for == Cause::Time,
            entitled: self.entitled(),
            exchange: self.exchanges,
            sent: self.now,
            lease: self.settings.lease,
            ends: self.now.saturating_add(lasts),
            released: self.releasing.len(),
            demand,
        });
        for lease in &mut self.used {
            lease.is_asked = true;
        }
        let at_most = self.short();
        let request = Exchange {
            member: self.id,
            lease: self.settings.lease,
            demand,
            served: u64::try_from(self.served / NANOS_PER_MILLI).unwrap_or(u64::MAX),
            renew: self.used.iter().map(|lease| lease.held).collect(),
            release: self.releasing.clone(),
            candidates: self.candidates(at_most),
            at_most,
            heard: self.heard(),
        };
        Some((self.exchanges, request))
    }

    /// Returns what the member tells the store of the last answer.
    fn heard(&self) -> Option<Heard> {
        let (server, sent) = self.heard?;
        let ago = self.now.saturating_since(sent);
        let Settings { lease, margin, .. } = self.settings;
        // By a clock that is slower by as much as the margin allows.
        let fast = ago.mul_f64(margin.as_secs_f64() / lease.as_secs_f64());
        Some(Heard {
            server,
            ago: ago.saturating_sub(fast),
            fence: self.fence,
        })
    }

    /// Returns the partitions to try, in a random order: first those that no other member had when
    /// the store last looked.
    fn candidates(&mut self, at_most: u32) -> Vec<u32> {
        if at_most == 0 {
            return Vec::new();
        }
        let is_named = |partition: &u32| {
            let is_it = |held: &PartitionLease| held.partition == *partition;
            self.used.iter().any(|lease| is_it(&lease.held)) || self.releasing.iter().any(is_it)
        };
        let mut candidates: Vec<u32> = (0..self.settings.partitions)
            .filter(|partition| !is_named(partition))
            .collect();
        // Members that ask at once would all try the same one otherwise.
        for last in (1..candidates.len()).rev() {
            let other = self.random.below(last as u64 + 1) as usize;
            candidates.swap(last, other);
        }
        candidates.sort_by_key(|&partition| self.taken[partition as usize]);
        candidates
    }

    /// Returns the share, if the limiter has another.
    fn show(&mut self) -> Option<MemberShare> {
        let until = self.used.iter().map(|lease| lease.ends).min();
        let share = until.map_or(MemberShare::NONE, |until| MemberShare {
            partitions: self.held(),
            until,
        });
        let is_new = share != self.shown;
        self.shown = share;
        is_new.then_some(share)
    }

    /// Returns when the member has something to do next, if nothing happens before.
    fn wake_at(&self) -> Timestamp {
        let never = Timestamp::from_nanos(u64::MAX);
        let ends = self.used.iter().map(|lease| lease.ends).min();
        let falls = self
            .falling
            .map(|falling| falling.since.saturating_add(self.settings.linger));
        let gives_up = self
            .flight
            .map(|flight| flight.sent.saturating_add(self.settings.patience()));
        let all = [ends, falls, gives_up, self.due_at()];
        all.into_iter().flatten().min().unwrap_or(never)
    }
}

const NANOS_PER_MILLI: u128 = 1_000_000;

/// Numbers that differ from member to member, and are the same for the same seed: `SplitMix64`.
#[derive(Clone, Copy, Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number from 0 to `end - 1`.
    fn below(&mut self, end: u64) -> u64 {
        let product = u128::from(self.next()) * u128::from(end);
        (product >> 64) as u64
    }

    /// Returns from three to five quarters of `duration`, or of 73 years if it is longer.
    fn about(&mut self, duration: Duration) -> Duration {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let quarter = (nanos / 4).min(u64::MAX / 32);
        Duration::from_nanos(quarter * 3 + self.below(quarter * 2 + 1))
    }
}
