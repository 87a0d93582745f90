//! A store of leases on a Redis server.
//!
//! Each pool is one hash, and an exchange is one script, which the server runs as a whole. The head
//! of `redis/exchange.lua` lists the fields.
//!
//! Requests of this process are numbered. A request that arrives after a later one of the same
//! member does nothing. So it cannot release a lease that the later one has granted again.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use core::time::Duration;

use portcullis_stores::{CallError, RedisConnection, RedisDefaults, RedisSettings};
use redis::{ErrorKind, Script};

use crate::store::{
    Claim, Exchange, ExchangeAnswer, LeaseError, LeaseFuture, LeaseStore, MemberId, PartitionLease,
};

/// What the settings of a connection are if they are not made.
// Nobody waits for an exchange, and leases last while the server is slow.
const DEFAULTS: RedisDefaults = RedisDefaults::new("portcullis:fleet:", Duration::from_secs(1));

/// A [`LeaseStore`] on a Redis server, version 6.2 or later. Needs the feature `redis`, and a
/// runtime of tokio.
///
/// - **Time** is the server's. Its clock must not be set forward: leases would end early, by as
///   much. If it is set back, leases last longer.
/// - **A pool is one key,** a hash. It has no expiry: delete the keys of pools that are not used
///   any more.
/// - **What the server has forgotten.** A pool whose key does not exist, or that was last written
///   in another run of the server, grants nothing for the longest lease, and says so
///   ([`ExchangeAnswer::hold_off`]). So a restart without a file, an eviction, `FLUSHALL` and a
///   failover to another server do not grant a partition twice. It also means that a pool grants
///   nothing for one lease time when it is used for the first time. In that time, members renew
///   what they hold.
/// - **Back to a server that kept running** while another one was asked: it learns of that by the
///   first member that the other one has answered, and then grants nothing for the longest lease.
///   A member that the other one has not answered may come first: one that has just started, or
///   had no leases and wanted none. If others have been away for more than a third of a lease, it
///   may get what they hold. Delete the keys of the pools on a server before members come back to
///   it: then it grants nothing for one lease time, whichever member asks first.
/// - **Eviction.** Set `maxmemory-policy noeviction`. A policy that evicts keys without an expiry
///   leases nothing twice, but each time it costs the pool one lease time.
/// - **Two servers at once.** A server that was replaced, and does not know it yet, still answers
///   its clients. Set `min-replicas-to-write` if a failover is automatic; then it stops after
///   `min-replicas-max-lag`, 10 s by default. Leases may be held twice until then.
/// - **Fences** come from a counter, the server's clock, and the largest fence that a member has
///   heard of, whichever is largest.
/// - **Settings.** By default all keys begin with `portcullis:fleet:`, and an exchange waits for
///   1 s.
/// - **Connection.** One connection serves all calls. If it breaks, the calls on it fail with
///   [`LeaseError::Unreachable`], and the store connects again. No command is sent twice.
///
/// # Cost
///
/// One round trip for each exchange. The server reads and writes one hash, whose fields are the
/// partitions that are leased and the members.
///
/// ```no_run
/// use core::time::Duration;
/// use portcullis_fleet::{Exchange, LeaseStore, MemberId, RedisLeases, RedisSettings};
///
/// # async fn example() -> Result<(), portcullis_fleet::LeaseError> {
/// let store = RedisLeases::new(&RedisSettings::new("redis://127.0.0.1/"))?;
/// let mut request = Exchange::new(MemberId(0x5eed), Duration::from_secs(15));
/// request.demand = 1;
/// request.candidates = vec![4, 7];
/// request.at_most = 1;
/// let answer = store.exchange("writes", &request).await?;
/// println!("{:?}", answer.granted);
/// # Ok(()) }
/// ```
pub struct RedisLeases {
    connection: RedisConnection,
    script: Script,
}

/// The number of the last exchange of this process.
static NUMBER: AtomicU64 = AtomicU64::new(0);

/// What the script returns: hold-off, fence, server, renewed, granted, taken, members.
type Reply = (u64, u64, u64, Vec<u32>, Vec<u64>, Vec<u32>, Vec<String>);

impl RedisLeases {
    /// Creates a store. It connects when it is first used.
    ///
    /// # Errors
    ///
    /// [`LeaseError::Refused`] if the address is not valid.
    ///
    /// # Panics
    ///
    /// If called outside of a runtime of tokio.
    ///
    /// ```
    /// # use portcullis_fleet::{LeaseError, RedisLeases, RedisSettings};
    /// let store = RedisLeases::new(&RedisSettings::new("localhost"));
    /// assert!(matches!(store, Err(LeaseError::Refused(_))));
    /// ```
    pub fn new(settings: &RedisSettings) -> Result<Self, LeaseError> {
        // No server was asked: the address is refused.
        let connection = RedisConnection::open(settings, DEFAULTS);
        let connection = connection.map_err(|error| LeaseError::Refused(error.to_string()))?;
        Ok(Self {
            connection,
            script: Script::new(include_str!("redis/exchange.lua")),
        })
    }

    async fn ask(&self, pool: &str, request: &Exchange) -> Result<ExchangeAnswer, LeaseError> {
        let mut call = self
            .script
            .key(format!("{}{pool}", self.connection.prefix()));
        let number = NUMBER.fetch_add(1, Relaxed) + 1;
        call.arg(request.member.to_string()).arg(number);
        call.arg(micros(request.lease)).arg(request.demand);
        call.arg(request.served).arg(request.at_most);
        call.arg(request.renew.len()).arg(request.release.len());
        call.arg(request.candidates.len());
        let heard = request.heard.as_ref();
        call.arg(heard.map_or(0, |heard| heard.server));
        call.arg(heard.map_or(0, |heard| micros(heard.ago)));
        call.arg(heard.map_or(0, |heard| heard.fence));
        for held in request.renew.iter().chain(&request.release) {
            call.arg(held.partition).arg(held.fence);
        }
        for &candidate in &request.candidates {
            call.arg(candidate);
        }
        let reply = self.connection.invoke(&call).await;
        answer(request, reply.map_err(failed)?)
    }
}

/// Whole microseconds, rounded up, and few enough for the numbers of a script.
fn micros(duration: Duration) -> u64 {
    let micros = duration.as_nanos().div_ceil(1_000);
    u64::try_from(micros).map_or(1 << 50, |micros| micros.min(1 << 50))
}

fn damaged(what: impl Into<String>) -> LeaseError {
    LeaseError::Damaged(what.into())
}

fn failed(error: CallError) -> LeaseError {
    let text = error.to_string();
    let error = match error {
        CallError::TimedOut(_) | CallError::Unconnected { .. } => {
            return LeaseError::Unreachable(text.into());
        }
        CallError::Failed(error) => error,
    };
    match error.kind() {
        _ if text.contains("DAMAGED") || text.contains("WRONGTYPE") => damaged(text),
        ErrorKind::Parse | ErrorKind::UnexpectedReturnType => damaged(text),
        ErrorKind::Io => LeaseError::Unreachable(Box::new(error)),
        _ => LeaseError::Refused(text),
    }
}

fn answer(request: &Exchange, reply: Reply) -> Result<ExchangeAnswer, LeaseError> {
    let (hold_off, fence, server, renewed, granted, taken, members) = reply;
    let is_renewed = |held: &&PartitionLease| renewed.contains(&held.partition);
    let granted = granted.chunks(2).map(|pair| match *pair {
        [partition, fence] => u32::try_from(partition)
            .map(|partition| PartitionLease { partition, fence })
            .map_err(|_| damaged(format!("not a partition: {partition}"))),
        _ => Err(damaged("a grant without a fence")),
    });
    let claims = members.iter().map(|member| {
        let claim = || {
            let mut words = member.split(' ');
            let claim = Claim {
                member: MemberId(u128::from_str_radix(words.next()?, 16).ok()?),
                demand: words.next()?.parse().ok()?,
                held: words.next()?.parse().ok()?,
                served: words.next()?.parse().ok()?,
            };
            Some(claim)
        };
        claim().ok_or_else(|| damaged(format!("not a member: {member:?}")))
    });
    Ok(ExchangeAnswer {
        renewed: request.renew.iter().filter(is_renewed).copied().collect(),
        granted: granted.collect::<Result<_, _>>()?,
        taken,
        members: claims.collect::<Result<_, _>>()?,
        hold_off: (hold_off > 0).then(|| Duration::from_micros(hold_off)),
        fence,
        server,
    })
}

impl LeaseStore for RedisLeases {
    fn exchange<'a>(&'a self, pool: &'a str, request: &'a Exchange) -> LeaseFuture<'a> {
        Box::pin(self.ask(pool, request))
    }
}

impl fmt::Debug for RedisLeases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisLeases")
            .field("connection", &self.connection)
            .finish_non_exhaustive()
    }
}
