//! State: for each partition, the member that has it, the fence, and when the lease ends; for each
//! member, what it last said, and until when that counts.
//!
//! - *renew*: a lease of the same member and fence, which has not ended, begins again. While the
//!   table holds off, so does a lease that the table does not know, or knows with a smaller fence.
//!   No lease ends earlier than before, also if it begins again with a shorter length.
//! - *release*: a lease of the same member and fence ends.
//! - *grant*: what the member has although it does not name it begins again, with a new fence. Then
//!   candidates that are free begin. None begins while the table holds off.
//! - *restart*: with its content, each lease begins again. Without, or with content that may be
//!   old, the table holds off.
//! - *elsewhere*: another server has answered a member since the table last began to hold off, and
//!   less than the longest lease ago. The table holds off. What was answered before is over then.
//! - *hold off*: for the longest lease that may last. The fence becomes the time then, as no store
//!   grants more than once in a microsecond: so it is larger than those of another server.
//!
//! Invariant: at each instant, at most one member has a partition, and if the table has forgotten
//! leases and no longer holds off, all that it has forgotten have ended.

use core::fmt;
use core::time::Duration;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use portcullis_core::{Clock, Timestamp};

use crate::store::{
    Claim, Exchange, ExchangeAnswer, Heard, LeaseFuture, LeaseStore, MemberId, PartitionLease,
};

/// The leases of one pool, and the rules by which a store grants them. Time is an argument.
///
/// [`MemoryLeases`] is such a table for each pool. Stores on servers decide alike, so this is also
/// what to compare them with.
///
/// # Cost
///
/// An exchange is linear in the request, and in the number of members.
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::Timestamp;
/// use portcullis_fleet::{Exchange, LeaseTable, MemberId};
///
/// let mut table = LeaseTable::new();
/// let ask = |member| {
///     let mut request = Exchange::new(MemberId(member), Duration::from_secs(15));
///     request.candidates = vec![0, 1];
///     request.at_most = 1;
///     request
/// };
/// let at = Timestamp::from_secs;
/// assert_eq!(table.exchange(&ask(1), at(0)).granted[0].partition, 0);
/// assert_eq!(table.exchange(&ask(2), at(1)).granted[0].partition, 1);
/// assert_eq!(table.exchange(&ask(3), at(14)).taken, [0, 1]);
/// // The first lease has ended.
/// assert_eq!(table.exchange(&ask(3), at(15)).granted[0].partition, 0);
/// ```
#[derive(Clone, Debug, Default)]
pub struct LeaseTable {
    partitions: Vec<Option<Lease>>,
    members: Vec<Member>,
    /// The largest fence so far.
    fence: u64,
    longest: Longest,
    /// Since then, the table may have forgotten leases.
    holds_off_since: Option<Timestamp>,
    /// Which server it is, if it says so.
    server: u64,
}

/// The longest lease that may last.
///
/// Invariant: a lease that was asked for and may still last is not longer than `length`. One that
/// was asked for since `length` was is not longer than `next`, and all others end by `until`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Longest {
    length: Duration,
    until: Timestamp,
    next: Duration,
}

impl Longest {
    pub(crate) const NONE: Self = Self {
        length: Duration::ZERO,
        until: Timestamp::ZERO,
        next: Duration::ZERO,
    };

    fn of(length: Duration, now: Timestamp) -> Self {
        Self {
            length,
            until: now.saturating_add(length),
            next: Duration::ZERO,
        }
    }

    /// Notes that a lease of this length was asked for.
    pub(crate) fn ask(&mut self, lease: Duration, now: Timestamp) {
        self.next = self.next.max(lease);
        if lease >= self.length || now >= self.until {
            *self = Self::of(self.next.max(lease), now);
        }
    }

    #[cfg(feature = "etcd")]
    pub(crate) const fn length(&self) -> Duration {
        self.length
    }
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    member: MemberId,
    fence: u64,
    length: Duration,
    ends: Timestamp,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    id: MemberId,
    demand: u32,
    served: u64,
    length: Duration,
    ends: Timestamp,
    /// Scratch of an exchange: the leases of this member.
    held: u32,
}

impl LeaseTable {
    /// Returns a table in which all partitions are free.
    ///
    /// ```
    /// # use portcullis_fleet::LeaseTable;
    /// # use portcullis_core::Timestamp;
    /// assert_eq!(LeaseTable::new().holder(0, Timestamp::ZERO), None);
    /// ```
    pub const fn new() -> Self {
        Self {
            partitions: Vec::new(),
            members: Vec::new(),
            fence: 0,
            longest: Longest::NONE,
            holds_off_since: None,
            server: 0,
        }
    }

    /// Says which server this is: a number that no other server has. Default 0: the table does not
    /// say it, and takes no notice of others.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_fleet::{Exchange, Heard, LeaseTable, MemberId};
    /// let mut table = LeaseTable::new().server(1);
    /// let lease = Duration::from_secs(15);
    /// let mut ask = Exchange::new(MemberId(1), lease);
    /// ask.candidates = vec![0];
    /// ask.at_most = 1;
    /// ask.heard = Some(Heard::new(2, Duration::from_secs(3), 9));
    /// // The server 2 may have leased the partition.
    /// let answer = table.exchange(&ask, Timestamp::from_secs(60));
    /// assert!(answer.granted.is_empty());
    /// assert_eq!((answer.hold_off, answer.server), (Some(lease), 1));
    /// ```
    #[must_use]
    pub const fn server(mut self, number: u64) -> Self {
        self.server = number;
        self
    }

    /// Grants nothing from now on until the longest lease has ended that may have been granted.
    fn hold_off(&mut self, now: Timestamp) {
        self.fence = self.fence.max(now.as_nanos() / 1_000);
        self.holds_off_since = Some(now);
    }

    /// Whether another server has decided, so that this one may not know leases that last.
    fn is_elsewhere(&self, heard: &Heard, now: Timestamp) -> bool {
        let is_other = self.server != 0 && heard.server != 0 && heard.server != self.server;
        // What was answered before is over when the table grants again.
        let answered = now.saturating_sub(heard.ago);
        let is_covered = self.holds_off_since.is_some_and(|since| answered <= since);
        is_other && heard.ago < self.longest.length && !is_covered
    }

    /// Does what `request` asks at `now`, by the clock of the store.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_fleet::{Exchange, LeaseTable, MemberId};
    /// let mut table = LeaseTable::new();
    /// let nothing = Exchange::new(MemberId(7), Duration::from_secs(15));
    /// let answer = table.exchange(&nothing, Timestamp::ZERO);
    /// assert_eq!(answer.members[0].member, MemberId(7));
    /// ```
    pub fn exchange(&mut self, request: &Exchange, now: Timestamp) -> ExchangeAnswer {
        let ends = now.saturating_add(request.lease);
        self.longest.ask(request.lease, now);
        if let Some(heard) = &request.heard {
            self.fence = self.fence.max(heard.fence);
            if self.is_elsewhere(heard, now) {
                self.hold_off(now);
            }
        }
        let until = self.holds_off_since;
        let until = until.map(|since| since.saturating_add(self.longest.length));
        let until = until.filter(|until| now < *until);
        let holds_off = until.is_some();
        let mut answer = ExchangeAnswer {
            hold_off: until.map(|until| until.saturating_since(now)),
            ..ExchangeAnswer::default()
        };
        let lease = |fence| Lease {
            member: request.member,
            fence,
            length: request.lease,
            ends,
        };
        for &held in &request.renew {
            let slot = self.slot(held.partition);
            let has_it =
                |of: &Lease| now < of.ends && of.member == request.member && of.fence == held.fence;
            let is_held = match slot {
                Some(of) if now < of.ends => has_it(of) || holds_off && of.fence < held.fence,
                _ => holds_off,
            };
            if is_held {
                let before = slot.filter(has_it).map(|lease| lease.ends);
                *slot = Some(Lease {
                    ends: before.map_or(ends, |before| before.max(ends)),
                    ..lease(held.fence)
                });
                self.fence = self.fence.max(held.fence);
                answer.renewed.push(held);
            }
        }
        for &held in &request.release {
            let slot = self.slot(held.partition);
            if slot.is_some_and(|lease| lease.member == request.member && lease.fence == held.fence)
            {
                *slot = None;
            }
        }
        // A claim that arrived late may stand for the lease of a member that has it no more.
        if !holds_off {
            self.grant_again(request, now, ends, &mut answer);
        }
        // What has a new fence only is not more than the member counts on.
        let is_counted_on = |held: &&PartitionLease| {
            let named = request.renew.iter();
            named
                .map(|held| held.partition)
                .any(|partition| partition == held.partition)
        };
        let counted_on = answer.granted.iter().filter(is_counted_on).count();
        let most = counted_on + request.at_most as usize;
        for &partition in &request.candidates {
            if holds_off || answer.granted.len() >= most {
                break;
            }
            let fence = self.fence + 1;
            let slot = self.slot(partition);
            match slot.filter(|lease| now < lease.ends) {
                None => {
                    *slot = Some(lease(fence));
                    self.fence = fence;
                    answer.granted.push(PartitionLease { partition, fence });
                }
                Some(other) if other.member != request.member => answer.taken.push(partition),
                Some(_) => {}
            }
        }
        self.publish(request, now, ends);
        answer.members = self.count(now);
        (answer.fence, answer.server) = (self.fence, self.server);
        answer
    }

    /// Returns the member that has `partition` at `now`, and the fence of its lease.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_fleet::{Exchange, LeaseTable, MemberId};
    /// let mut table = LeaseTable::new();
    /// let mut ask = Exchange::new(MemberId(1), Duration::from_secs(15));
    /// ask.candidates = vec![3];
    /// ask.at_most = 1;
    /// table.exchange(&ask, Timestamp::ZERO);
    /// assert_eq!(table.holder(3, Timestamp::from_secs(14)), Some((MemberId(1), 1)));
    /// assert_eq!(table.holder(3, Timestamp::from_secs(15)), None);
    /// ```
    pub fn holder(&self, partition: u32, now: Timestamp) -> Option<(MemberId, u64)> {
        let lease = (*self.partitions.get(partition as usize)?)?;
        (now < lease.ends).then_some((lease.member, lease.fence))
    }

    /// Returns what each member wants and has at `now`.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_fleet::{Exchange, LeaseTable, MemberId};
    /// let mut table = LeaseTable::new();
    /// let mut ask = Exchange::new(MemberId(1), Duration::from_secs(15));
    /// ask.demand = 5;
    /// table.exchange(&ask, Timestamp::ZERO);
    /// assert_eq!(table.claims(Timestamp::ZERO)[0].demand, 5);
    /// // The table remembers it for the time of a lease.
    /// assert!(table.claims(Timestamp::from_secs(15)).is_empty());
    /// ```
    pub fn claims(&mut self, now: Timestamp) -> Vec<Claim> {
        self.members.retain(|member| now < member.ends);
        self.count(now)
    }

    /// Restarts the table at `now` with its content, as etcd does: each lease begins again.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_fleet::{Exchange, LeaseTable, MemberId};
    /// let mut table = LeaseTable::new();
    /// let mut ask = Exchange::new(MemberId(1), Duration::from_secs(15));
    /// ask.candidates = vec![0];
    /// ask.at_most = 1;
    /// table.exchange(&ask, Timestamp::ZERO);
    /// table.restart(Timestamp::from_secs(10));
    /// assert!(table.holder(0, Timestamp::from_secs(24)).is_some());
    /// assert!(table.holder(0, Timestamp::from_secs(25)).is_none());
    /// ```
    pub fn restart(&mut self, now: Timestamp) {
        for lease in self.partitions.iter_mut().flatten() {
            if now < lease.ends {
                lease.ends = lease.ends.max(now.saturating_add(lease.length));
            }
        }
        for member in &mut self.members {
            if now < member.ends {
                member.ends = now.saturating_add(member.length);
            }
        }
    }

    /// Forgets all leases at `now`, as a Redis server does that restarts without a file.
    ///
    /// The table grants nothing until the longest of them has ended. A new table does so too: it is
    /// a server that does not know the pool.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_fleet::{Exchange, LeaseTable, MemberId};
    /// let mut table = LeaseTable::new();
    /// let ask = |member| {
    ///     let mut request = Exchange::new(MemberId(member), Duration::from_secs(15));
    ///     request.candidates = vec![0];
    ///     request.at_most = 1;
    ///     request
    /// };
    /// table.exchange(&ask(1), Timestamp::ZERO);
    /// table.forget(Timestamp::from_secs(1));
    /// // The first member may still use its lease.
    /// let answer = table.exchange(&ask(2), Timestamp::from_secs(2));
    /// assert!(answer.granted.is_empty());
    /// assert_eq!(answer.hold_off, Some(Duration::from_secs(14)));
    /// ```
    pub fn forget(&mut self, now: Timestamp) {
        self.partitions.clear();
        self.members.clear();
        self.hold_off(now);
    }

    /// Restarts the table at `now` with the content that it had as `older`, as a Redis server does
    /// that restarts with a file.
    ///
    /// The table grants nothing until the longest of the leases that it may have forgotten has
    /// ended.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_fleet::{Exchange, LeaseTable, MemberId};
    /// let mut table = LeaseTable::new();
    /// let ask = |member| {
    ///     let mut request = Exchange::new(MemberId(member), Duration::from_secs(15));
    ///     request.candidates = vec![0];
    ///     request.at_most = 1;
    ///     request
    /// };
    /// let at = Timestamp::from_secs;
    /// table.exchange(&ask(1), at(0));
    /// let file = table.clone();
    /// table.restore(&file, at(1));
    /// assert_eq!(table.holder(0, at(2)), Some((MemberId(1), 1)));
    /// // The first member may have released it since, and another one may use it.
    /// assert!(table.exchange(&ask(1), at(2)).granted.is_empty());
    /// ```
    pub fn restore(&mut self, older: &Self, now: Timestamp) {
        self.partitions.clone_from(&older.partitions);
        self.members.clone_from(&older.members);
        self.hold_off(now);
    }

    /// Grants what the member has but does not name, because an answer was lost.
    fn grant_again(
        &mut self,
        request: &Exchange,
        now: Timestamp,
        ends: Timestamp,
        answer: &mut ExchangeAnswer,
    ) {
        let fence = &mut self.fence;
        for (partition, lease) in (0..).zip(&mut self.partitions) {
            let Some(lease) = lease
                .as_mut()
                .filter(|lease| lease.member == request.member && now < lease.ends)
            else {
                continue;
            };
            let held = PartitionLease {
                partition,
                fence: lease.fence,
            };
            if !request.renew.contains(&held) {
                // A release of the old fence may still be on its way.
                *fence += 1;
                lease.fence = *fence;
                lease.ends = lease.ends.max(ends);
                lease.length = request.lease;
                answer.granted.push(PartitionLease {
                    partition,
                    fence: *fence,
                });
            }
        }
    }

    fn slot(&mut self, partition: u32) -> &mut Option<Lease> {
        let index = partition as usize;
        if index >= self.partitions.len() {
            self.partitions.resize(index + 1, None);
        }
        &mut self.partitions[index]
    }

    /// Records what the member said.
    fn publish(&mut self, request: &Exchange, now: Timestamp, ends: Timestamp) {
        let said = Member {
            id: request.member,
            demand: request.demand,
            served: request.served,
            length: request.lease,
            ends,
            held: 0,
        };
        self.members
            .retain(|member| now < member.ends && member.id != said.id);
        let place = self.members.partition_point(|member| member.id < said.id);
        self.members.insert(place, said);
    }

    /// Counts the leases of all members.
    fn count(&mut self, now: Timestamp) -> Vec<Claim> {
        for member in &mut self.members {
            member.held = 0;
        }
        for lease in self.partitions.iter().flatten() {
            if now < lease.ends {
                let found = self.members.binary_search_by_key(&lease.member, |m| m.id);
                if let Ok(place) = found {
                    self.members[place].held += 1;
                }
            }
        }
        let claims = self.members.iter().map(|member| Claim {
            member: member.id,
            demand: member.demand,
            held: member.held,
            served: member.served,
        });
        claims.collect()
    }
}

/// A store in the memory of this process: for one process, whose parts share a capacity, and for
/// tests.
///
/// Time is that of its clock.
///
/// # Cost
///
/// An exchange takes a lock, for as long as the table of its pool needs. See [`LeaseTable`].
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::ManualClock;
/// use portcullis_fleet::{Exchange, LeaseStore, MemberId, MemoryLeases};
///
/// # futures_executor::block_on(async {
/// let store = MemoryLeases::new(ManualClock::new());
/// let mut ask = Exchange::new(MemberId(1), Duration::from_secs(15));
/// ask.candidates = vec![2];
/// ask.at_most = 1;
/// // Pools are apart.
/// assert_eq!(store.exchange("writes", &ask).await?.granted[0].partition, 2);
/// assert_eq!(store.exchange("queries", &ask).await?.granted[0].partition, 2);
/// # Ok::<(), portcullis_fleet::LeaseError>(()) }).unwrap();
/// ```
pub struct MemoryLeases<C> {
    clock: C,
    pools: Mutex<HashMap<String, LeaseTable>>,
}

impl<C> fmt::Debug for MemoryLeases<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryLeases").finish_non_exhaustive()
    }
}

impl<C: Clock> MemoryLeases<C> {
    /// Returns a store without leases, whose time is that of `clock`.
    ///
    /// ```
    /// use portcullis_core::MonotonicClock;
    /// use portcullis_fleet::MemoryLeases;
    ///
    /// let store = MemoryLeases::new(MonotonicClock::new());
    /// ```
    pub fn new(clock: C) -> Self {
        Self {
            clock,
            pools: Mutex::default(),
        }
    }
}

impl<C: Clock + Send + Sync> LeaseStore for MemoryLeases<C> {
    fn exchange<'a>(&'a self, pool: &'a str, request: &'a Exchange) -> LeaseFuture<'a> {
        // A table is whole between the steps of an exchange, so a panic leaves it usable.
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        let table = match pools.get_mut(pool) {
            Some(table) => table,
            None => pools.entry(pool.to_owned()).or_default(),
        };
        let answer = table.exchange(request, self.clock.now());
        Box::pin(core::future::ready(Ok(answer)))
    }
}
