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

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{Client, ErrorKind, RedisError, Script};

use crate::{Answer, Claim, Exchange, Held, LeaseStore, MemberId, StoreError, StoreFuture};

/// Settings of a [`RedisStore`].
///
/// ```
/// use core::time::Duration;
/// use portcullis_fleet::RedisSettings;
/// let settings = RedisSettings::new("redis://127.0.0.1/")
///     .prefix("shop:")
///     .time_limit(Duration::from_millis(500));
/// assert!(format!("{settings:?}").contains("500ms"));
/// ```
#[derive(Clone)]
pub struct RedisSettings {
    url: String,
    prefix: String,
    time_limit: Duration,
    connection_limit: Duration,
    reconnect_delay: Duration,
}

impl RedisSettings {
    /// The default settings for a server.
    ///
    /// ```
    /// # use portcullis_fleet::RedisSettings;
    /// let _ = RedisSettings::new("redis://127.0.0.1/");
    /// ```
    #[must_use]
    pub fn new(url: &str) -> Self {
        Self {
            url: url.into(),
            prefix: "portcullis:fleet:".into(),
            time_limit: Duration::from_secs(1),
            connection_limit: Duration::from_secs(1),
            reconnect_delay: Duration::from_millis(100),
        }
    }

    /// Sets the text with which all keys begin. Stores with different prefixes are apart. Default
    /// `portcullis:fleet:`.
    ///
    /// ```
    /// # use portcullis_fleet::RedisSettings;
    /// let _ = RedisSettings::new("redis://127.0.0.1/").prefix("shop:");
    /// ```
    #[must_use]
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets how long an exchange waits for the server at most, for a connection included. Default 1
    /// s.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_fleet::RedisSettings;
    /// let _ = RedisSettings::new("redis://127.0.0.1/").time_limit(Duration::from_secs(2));
    /// ```
    #[must_use]
    pub const fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = limit;
        self
    }

    /// Sets how long an attempt to connect takes at most. Default 1 s.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_fleet::RedisSettings;
    /// let _ = RedisSettings::new("redis://127.0.0.1/").connection_limit(Duration::from_secs(2));
    /// ```
    #[must_use]
    pub const fn connection_limit(mut self, limit: Duration) -> Self {
        self.connection_limit = limit;
        self
    }

    /// Sets the longest pause between two attempts to connect. Default 100 ms.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_fleet::RedisSettings;
    /// let _ = RedisSettings::new("redis://127.0.0.1/").reconnect_delay(Duration::from_secs(1));
    /// ```
    #[must_use]
    pub const fn reconnect_delay(mut self, delay: Duration) -> Self {
        self.reconnect_delay = delay;
        self
    }
}

impl fmt::Debug for RedisSettings {
    /// Leaves out the address, which may contain a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisSettings")
            .field("prefix", &self.prefix)
            .field("time_limit", &self.time_limit)
            .field("connection_limit", &self.connection_limit)
            .field("reconnect_delay", &self.reconnect_delay)
            .finish_non_exhaustive()
    }
}

/// A [`LeaseStore`] on a Redis server, version 6.2 or later. Needs the feature `redis`, and a
/// runtime of tokio.
///
/// - **Time** is the server's. Its clock must not be set forward: leases would end early, by as
///   much. If it is set back, leases last longer.
/// - **A pool is one key,** a hash. It has no expiry: delete the keys of pools that are not used
///   any more.
/// - **What the server has forgotten.** A pool whose key does not exist, or that was last written
///   in another run of the server, grants nothing for the longest lease, and says so
///   ([`Answer::hold_off`]). So a restart without a file, an eviction, `FLUSHALL` and a failover to
///   another server do not grant a partition twice. It also means that a pool grants nothing for
///   one lease time when it is used for the first time. In that time, members renew what they hold.
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
/// - **Connection.** One connection serves all calls. If it breaks, the calls on it fail with
///   [`StoreError::Unreachable`], and the store connects again. No command is sent twice.
///
/// # Cost
///
/// One round trip for each exchange. The server reads and writes one hash, whose fields are the
/// partitions that are leased and the members.
///
/// ```no_run
/// use core::time::Duration;
/// use portcullis_fleet::{Exchange, LeaseStore, MemberId, RedisSettings, RedisStore};
///
/// # async fn example() -> Result<(), portcullis_fleet::StoreError> {
/// let store = RedisStore::new(&RedisSettings::new("redis://127.0.0.1/"))?;
/// let request = Exchange {
///     demand: 1,
///     candidates: vec![4, 7],
///     at_most: 1,
///     ..Exchange::new(MemberId(0x5eed), Duration::from_secs(15))
/// };
/// let answer = store.exchange("writes", &request).await?;
/// println!("{:?}", answer.granted);
/// # Ok(()) }
/// ```
pub struct RedisStore {
    connection: ConnectionManager,
    prefix: String,
    time_limit: Duration,
    script: Script,
}

/// The number of the last exchange of this process.
static NUMBER: AtomicU64 = AtomicU64::new(0);

/// What the script returns: hold-off, fence, server, renewed, granted, taken, members.
type Reply = (u64, u64, u64, Vec<u32>, Vec<u64>, Vec<u32>, Vec<String>);

impl RedisStore {
    /// Creates a store. It connects when it is first used.
    ///
    /// # Errors
    ///
    /// [`StoreError::Refused`] if the address is not valid.
    ///
    /// # Panics
    ///
    /// If called outside of a runtime of tokio.
    ///
    /// ```
    /// # use portcullis_fleet::{RedisSettings, RedisStore, StoreError};
    /// let store = RedisStore::new(&RedisSettings::new("localhost"));
    /// assert!(matches!(store, Err(StoreError::Refused(_))));
    /// ```
    pub fn new(settings: &RedisSettings) -> Result<Self, StoreError> {
        let config = ConnectionManagerConfig::new()
            .set_connection_timeout(Some(settings.connection_limit))
            .set_response_timeout(Some(settings.time_limit))
            .set_min_delay(settings.reconnect_delay.min(Duration::from_millis(10)))
            .set_max_delay(settings.reconnect_delay);
        let refused = |error: RedisError| StoreError::Refused(error.to_string());
        let client = Client::open(settings.url.as_str()).map_err(refused)?;
        let connection =
            ConnectionManager::new_lazy_with_config(client, config).map_err(refused)?;
        Ok(Self {
            connection,
            prefix: settings.prefix.clone(),
            time_limit: settings.time_limit,
            script: Script::new(include_str!("redis/exchange.lua")),
        })
    }

    async fn ask(&self, pool: &str, request: &Exchange) -> Result<Answer, StoreError> {
        let mut call = self.script.key(format!("{}{pool}", self.prefix));
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
        let mut connection = self.connection.clone();
        let limit = self.time_limit;
        let reply = tokio::time::timeout(limit, call.invoke_async(&mut connection)).await;
        let reply = reply
            .map_err(|_| StoreError::Unreachable(format!("no answer within {limit:?}").into()))?;
        answer(request, reply.map_err(failed)?)
    }
}

/// Whole microseconds, rounded up, and few enough for the numbers of a script.
fn micros(duration: Duration) -> u64 {
    let micros = duration.as_nanos().div_ceil(1_000);
    u64::try_from(micros).map_or(1 << 50, |micros| micros.min(1 << 50))
}

fn damaged(what: impl Into<String>) -> StoreError {
    StoreError::Damaged(what.into())
}

fn failed(error: RedisError) -> StoreError {
    let text = error.to_string();
    match error.kind() {
        _ if text.contains("DAMAGED") || text.contains("WRONGTYPE") => damaged(text),
        ErrorKind::Parse | ErrorKind::UnexpectedReturnType => damaged(text),
        ErrorKind::Io => StoreError::Unreachable(Box::new(error)),
        _ => StoreError::Refused(text),
    }
}

fn answer(request: &Exchange, reply: Reply) -> Result<Answer, StoreError> {
    let (hold_off, fence, server, renewed, granted, taken, members) = reply;
    let is_renewed = |held: &&Held| renewed.contains(&held.partition);
    let granted = granted.chunks(2).map(|pair| match *pair {
        [partition, fence] => u32::try_from(partition)
            .map(|partition| Held { partition, fence })
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
    Ok(Answer {
        renewed: request.renew.iter().filter(is_renewed).copied().collect(),
        granted: granted.collect::<Result<_, _>>()?,
        taken,
        members: claims.collect::<Result<_, _>>()?,
        hold_off: (hold_off > 0).then(|| Duration::from_micros(hold_off)),
        fence,
        server,
    })
}

impl LeaseStore for RedisStore {
    fn exchange<'a>(&'a self, pool: &'a str, request: &'a Exchange) -> StoreFuture<'a, Answer> {
        Box::pin(self.ask(pool, request))
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("prefix", &self.prefix)
            .field("time_limit", &self.time_limit)
            .finish_non_exhaustive()
    }
}
