//! What a member of a fleet asks of a store, and what the store answers.
//!
//! One round trip does all that a member wants at one moment: it renews leases, releases leases,
//! asks for more, and publishes its demand. The rules of a store are few:
//!
//! - **Exclusive.** A partition is leased to at most one member at a time.
//! - **Ends by itself.** A lease ends at the earliest when [`Exchange::lease`] has passed since the
//!   store granted or renewed it, by the clock of the store. A shorter one does not end it earlier.
//! - **Fenced.** A grant to another member has a larger fence than all grants of that partition
//!   before, also after the store has lost its content. A renewal or a release applies only to a
//!   lease with the same member and the same fence. So a request that arrives late or twice does
//!   not touch a lease that was granted after it was sent.
//! - **The same again.** A member names all leases that it knows of. Others that the store has for
//!   it were granted by an answer that was lost: the store grants them again. A member that does
//!   not want them releases them. The fence is a new one, unless the store refuses requests that
//!   arrive late: a release of the old one may be on its way.
//! - **No grant on amnesia.** A store that may have forgotten leases grants nothing until all of
//!   them have ended, and says so ([`ExchangeAnswer::hold_off`]). In that time, a member may still
//!   renew what it holds: the store takes its word for it, and of two members it believes the one
//!   with the larger fence.
//! - **Nor after decisions made elsewhere.** A member whose last answer came from another server
//!   ([`Exchange::heard`]) shows that this one was not in charge. What the other one has leased, it
//!   does not know: it holds off, as if it had forgotten it.
//!
//! [`LeaseTable`](crate::LeaseTable) has these rules in the least code.

use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::time::Duration;

#[cfg(feature = "etcd")]
pub(crate) mod etcd;
pub(crate) mod memory;
#[cfg(feature = "redis")]
pub(crate) mod redis;

/// The name of one member of a fleet, unique among all members that ever use a pool.
///
/// Choose it at random, and again each time the process starts. A process that starts again with
/// the name of before would take over its leases.
///
/// ```
/// # use portcullis_fleet::MemberId;
/// let member = MemberId(0x5eed);
/// assert_eq!(member.to_string(), "00000000000000000000000000005eed");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(clippy::exhaustive_structs, reason = "a wrapper of one value")]
pub struct MemberId(
    /// The number: any.
    pub u128,
);

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A lease of one partition.
///
/// ```
/// # use portcullis_fleet::PartitionLease;
/// let held = PartitionLease { partition: 6, fence: 41 };
/// assert_eq!(held.partition, 6);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(
    clippy::exhaustive_structs,
    reason = "a partition, and the fence of its grant"
)]
pub struct PartitionLease {
    /// The partition: from 0 to one less than the number of partitions.
    pub partition: u32,
    /// The fence of the grant. Of two grants of a partition to different members, the later one has
    /// the larger fence. A service that keeps the largest fence it has seen can refuse requests of
    /// a member whose lease has ended.
    pub fence: u64,
}

/// All that a member asks of a store in one round trip.
///
/// The store handles it in the order of the fields: it renews, then releases, then grants.
///
/// ```
/// use core::time::Duration;
/// use portcullis_fleet::{Exchange, MemberId};
///
/// // Any two of the partitions 4, 7 and 1.
/// let mut request = Exchange::new(MemberId(1), Duration::from_secs(15));
/// request.demand = 2;
/// request.candidates = vec![4, 7, 1];
/// request.at_most = 2;
/// assert!(request.renew.is_empty());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Exchange {
    /// The member that asks.
    pub member: MemberId,
    /// How long leases last that this exchange grants or renews, and how long the store remembers
    /// `demand` and `served`. All members of a pool use the same, except while the settings of the
    /// pool change. A lease that was granted for longer does not end earlier.
    pub lease: Duration,
    /// How many partitions the member wants in all.
    pub demand: u32,
    /// How long the member has held more partitions than all members can have, in
    /// partition-milliseconds. The store only repeats it in [`ExchangeAnswer::members`].
    pub served: u64,
    /// The leases to renew: all that the member knows of, except those to release.
    pub renew: Vec<PartitionLease>,
    /// The leases to end.
    pub release: Vec<PartitionLease>,
    /// The partitions to try, in this order.
    pub candidates: Vec<u32>,
    /// How many of the candidates to grant at most. Leases of the member that the request does not
    /// name count.
    pub at_most: u32,
    /// The last answer that the member has had, of this store or of another one.
    pub heard: Option<Heard>,
}

/// What a member tells a store of the last answer that it has had.
///
/// ```
/// use core::time::Duration;
/// use portcullis_fleet::Heard;
/// let heard = Heard::new(7, Duration::from_secs(1), 41);
/// assert_eq!(heard.fence, 41);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Heard {
    /// [`ExchangeAnswer::server`].
    pub server: u64,
    /// How long ago the exchange was sent, by the clock of the member. At most as long as it was by
    /// any clock that the margin of the leases allows.
    pub ago: Duration,
    /// The largest [`ExchangeAnswer::fence`] of all answers.
    pub fence: u64,
}

impl Heard {
    /// Creates what a member tells of an answer: the server, how long ago, and the fence.
    ///
    /// ```
    /// use core::time::Duration;
    /// use portcullis_fleet::Heard;
    /// assert_eq!(Heard::new(7, Duration::from_secs(1), 41).server, 7);
    /// ```
    pub const fn new(server: u64, ago: Duration, fence: u64) -> Self {
        Self { server, ago, fence }
    }
}

impl Exchange {
    /// Returns an exchange that asks for nothing.
    ///
    /// `lease` is how long leases last.
    ///
    /// ```
    /// use core::time::Duration;
    /// use portcullis_fleet::{Exchange, MemberId};
    ///
    /// let request = Exchange::new(MemberId(1), Duration::from_secs(15));
    /// assert_eq!((request.demand, request.at_most), (0, 0));
    /// ```
    pub const fn new(member: MemberId, lease: Duration) -> Self {
        Self {
            member,
            lease,
            demand: 0,
            served: 0,
            renew: Vec::new(),
            release: Vec::new(),
            candidates: Vec::new(),
            at_most: 0,
            heard: None,
        }
    }
}

/// What a store answers.
///
/// ```
/// use portcullis_fleet::{ExchangeAnswer, PartitionLease};
///
/// let mut answer = ExchangeAnswer::default();
/// answer.granted = vec![PartitionLease { partition: 4, fence: 9 }];
/// answer.taken = vec![7];
/// assert!(answer.renewed.is_empty() && answer.hold_off.is_none());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExchangeAnswer {
    /// Of [`Exchange::renew`], the leases that begin again now. The others are lost: they ended, or
    /// another member has the partition.
    pub renewed: Vec<PartitionLease>,
    /// The leases that begin now: first those of this member that the request does not name, then
    /// candidates.
    pub granted: Vec<PartitionLease>,
    /// Candidates that other members have. Candidates after the last one that the store looked at
    /// are in neither list.
    pub taken: Vec<u32>,
    /// All members that the store remembers, the asking one included. It may be empty if the store
    /// does not keep it; then the fleet shares by who comes first.
    pub members: Vec<Claim>,
    /// How long the store will not grant, because it may have forgotten leases.
    pub hold_off: Option<Duration>,
    /// The newest fence that the store knows; 0 if it does not say. The member repeats it in
    /// [`Heard::fence`], so that the fences of another server become larger.
    pub fence: u64,
    /// Which server has decided: any number that no other server has; 0 if the store does not say.
    /// The member repeats it in [`Heard::server`], so that another server learns of decisions that
    /// it has not made.
    pub server: u64,
}

/// What one member wants and has, as the store last heard.
///
/// ```
/// # use portcullis_fleet::{Claim, MemberId};
/// let mut claim = Claim::new(MemberId(1), 5);
/// claim.held = 3;
/// assert!(claim.held < claim.demand);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Claim {
    /// The member.
    pub member: MemberId,
    /// How many partitions it wants in all.
    pub demand: u32,
    /// How many partitions are leased to it.
    pub held: u32,
    /// [`Exchange::served`] of its last exchange.
    pub served: u64,
}

impl Claim {
    /// Creates the claim of a member that wants `demand` partitions and has none.
    ///
    /// ```
    /// use portcullis_fleet::{Claim, MemberId};
    /// assert_eq!(Claim::new(MemberId(1), 5).held, 0);
    /// ```
    pub const fn new(member: MemberId, demand: u32) -> Self {
        Self {
            member,
            demand,
            held: 0,
            served: 0,
        }
    }
}

/// The answer of a store, which may take as long as the store does.
pub type LeaseFuture<'a> =
    Pin<Box<dyn Future<Output = Result<ExchangeAnswer, LeaseError>> + Send + 'a>>;

/// A place that keeps the leases of a fleet.
///
/// Implement it for a store of your own. See [`Exchange`] for what it is asked. An implementation
/// keeps these rules:
///
/// - A partition is leased to at most one member at a time, and a lease ends at the earliest when
///   [`Exchange::lease`] has passed since it was granted or renewed, for each exchange that did so.
/// - A grant to another member has a larger fence than all grants of the partition before.
/// - A renewal or a release of another fence, or of a lease that has ended, does nothing.
/// - A lease of the member that the request does not name is granted again, before any
///   candidate, even if they are more than [`Exchange::at_most`]. It has a new fence, unless the
///   store refuses requests that arrive late.
/// - A store that may have forgotten leases grants nothing for the time of the longest lease, also
///   not again. Until then it renews leases that it does not know, of two members that of the
///   larger fence.
/// - A store whose server may be replaced by another one, and come back with what it knew before,
///   does the same if another server has answered the member ([`Exchange::heard`]) since this one
///   began to hold off, and less than the longest lease ago. Its next fence is larger than
///   [`Heard::fence`].
///
/// # Cost
///
/// Each call allocates its future. What else it costs is up to the store.
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::ManualClock;
/// use portcullis_fleet::{Exchange, LeaseStore, MemberId, MemoryLeases};
/// use std::sync::Arc;
///
/// # futures_executor::block_on(async {
/// // Of any kind, chosen at run time.
/// let store: Arc<dyn LeaseStore> = Arc::new(MemoryLeases::new(ManualClock::new()));
/// let ask = |member| {
///     let mut request = Exchange::new(MemberId(member), Duration::from_secs(15));
///     request.candidates = vec![0];
///     request.at_most = 1;
///     request
/// };
/// assert_eq!(store.exchange("writes", &ask(1)).await?.granted.len(), 1);
/// assert_eq!(store.exchange("writes", &ask(2)).await?.taken, [0]);
/// # Ok::<(), portcullis_fleet::LeaseError>(()) }).unwrap();
/// ```
pub trait LeaseStore: Send + Sync {
    /// Does all that `request` asks, for the pool of this name.
    ///
    /// The store may have done it although it returns an error.
    ///
    /// # Errors
    ///
    /// [`LeaseError`].
    fn exchange<'a>(&'a self, pool: &'a str, request: &'a Exchange) -> LeaseFuture<'a>;
}

impl<S: LeaseStore + ?Sized> LeaseStore for std::sync::Arc<S> {
    fn exchange<'a>(&'a self, pool: &'a str, request: &'a Exchange) -> LeaseFuture<'a> {
        (**self).exchange(pool, request)
    }
}

/// The error of a store.
///
/// ```
/// # use portcullis_fleet::LeaseError;
/// let error = LeaseError::Unreachable("connection refused".into());
/// assert_eq!(error.to_string(), "the store of leases does not answer: connection refused");
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum LeaseError {
    /// The store did not answer in time, or the connection failed. It may have done what it was
    /// asked.
    Unreachable(Box<dyn core::error::Error + Send + Sync>),
    /// The store refuses to do what it was asked: its message.
    Refused(String),
    /// The answer is none that the store could give: what is wrong with it.
    Damaged(String),
}

impl fmt::Display for LeaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(error) => write!(f, "the store of leases does not answer: {error}"),
            Self::Refused(message) => write!(f, "the store of leases refuses: {message}"),
            Self::Damaged(message) => {
                write!(
                    f,
                    "the answer of the store of leases makes no sense: {message}"
                )
            }
        }
    }
}

impl core::error::Error for LeaseError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Unreachable(error) => Some(&**error),
            Self::Refused(_) | Self::Damaged(_) => None,
        }
    }
}
