//! A store of leases on etcd, through its JSON gateway.
//!
//! ```text
//! PREFIX LENGTH : POOL / m / MEMBER       what a member said: demand and served
//! PREFIX LENGTH : POOL / p / PARTITION    the member that has a partition
//! ```
//!
//! Each member has one lease of etcd, with which all of its keys end. The fence of a partition is
//! the revision at which its key was created.
//!
//! An exchange is two requests: one begins the lease again, and one transaction does the rest and
//! reads the pool. Two facts make that safe:
//!
//! - Each transaction writes the key of its member, and takes place only if nothing has written
//!   that key since the member last read it. So a transaction that was overtaken does nothing.
//! - Both requests must have been answered in one term of a leader. A leader that was replaced, and
//!   does not know it yet, could begin leases again which count no more.
//!
//! In particular, a release that was given up cannot end a lease that was granted again since.

mod gateway;

use core::fmt;
use core::time::Duration;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use self::gateway::{Gateway, Refused};
use crate::store::{
    Claim, Exchange, ExchangeAnswer, LeaseError, LeaseFuture, LeaseStore, MemberId, PartitionLease,
};

/// Settings of an [`EtcdLeases`].
///
/// ```
/// use core::time::Duration;
/// use portcullis_fleet::EtcdSettings;
/// let settings = EtcdSettings::new(["http://127.0.0.1:2379"])
///     .prefix("shop:")
///     .time_limit(Duration::from_millis(500));
/// assert!(format!("{settings:?}").contains("500ms"));
/// ```
#[derive(Clone, Debug)]
pub struct EtcdSettings {
    endpoints: Vec<String>,
    prefix: String,
    time_limit: Duration,
}

impl EtcdSettings {
    /// The default settings for the servers of one etcd, such as `http://10.0.0.1:2379`. Without a
    /// port it is 2379.
    ///
    /// ```
    /// # use portcullis_fleet::EtcdSettings;
    /// let _ = EtcdSettings::new(["http://10.0.0.1:2379", "http://10.0.0.2:2379"]);
    /// ```
    #[must_use]
    pub fn new<U: Into<String>>(endpoints: impl IntoIterator<Item = U>) -> Self {
        Self {
            endpoints: endpoints.into_iter().map(Into::into).collect(),
            prefix: "portcullis:fleet:".into(),
            time_limit: Duration::from_secs(1),
        }
    }

    /// Sets the text with which all keys begin. Stores with different prefixes are apart. Default
    /// `portcullis:fleet:`.
    ///
    /// ```
    /// # use portcullis_fleet::EtcdSettings;
    /// let _ = EtcdSettings::new(["http://127.0.0.1:2379"]).prefix("shop:");
    /// ```
    #[must_use]
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets how long a request waits for a server at most, for a connection included. An exchange
    /// is two requests, seldom more. Default 1 s.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_fleet::EtcdSettings;
    /// let _ = EtcdSettings::new(["http://127.0.0.1:2379"]).time_limit(Duration::from_secs(2));
    /// ```
    #[must_use]
    pub const fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = limit;
        self
    }
}

/// A [`LeaseStore`] on etcd, version 3.4 or later. Needs the feature `etcd`, and a runtime of
/// tokio.
///
/// It speaks HTTP with the JSON gateway, which etcd has on the port of its clients. It knows
/// neither TLS nor passwords: for those, put a proxy on the same host between them.
///
/// - **Leases** are those of etcd, in whole seconds, rounded up. etcd has a shortest lease, which
///   depends on its election time-out: 2 s with the default settings. A longer lease only delays
///   what returns from a process that was killed.
/// - **Restart, new leader.** Nothing is forgotten, and every lease begins again. So what a process
///   held that was killed may take two lease times to return.
/// - **Fences** are revisions of etcd, which grow with every change. After a restore of an older
///   state, they go back.
/// - **Another etcd,** or an older state of this one, does not know what was leased since, and
///   grants it at once. Stop all members for the time of a lease before they use it.
/// - **Connections.** Each call uses one of its own, and keeps it for the next one. After a
///   failure, the next call tries the next server.
///
/// # Cost
///
/// Two requests for each exchange: one that begins the lease again, and a transaction. A third one
/// after an error, and when the candidates that were tried first are taken. In a transaction, etcd
/// allows 128 operations by default; an exchange with more than 100 changes takes several.
///
/// ```no_run
/// use core::time::Duration;
/// use portcullis_fleet::{EtcdLeases, EtcdSettings, Exchange, LeaseStore, MemberId};
///
/// # async fn example() -> Result<(), portcullis_fleet::LeaseError> {
/// let store = EtcdLeases::new(&EtcdSettings::new(["http://127.0.0.1:2379"]))?;
/// let mut request = Exchange::new(MemberId(0x5eed), Duration::from_secs(15));
/// request.demand = 1;
/// request.candidates = vec![4, 7];
/// request.at_most = 1;
/// let answer = store.exchange("writes", &request).await?;
/// println!("{:?}", answer.granted);
/// # Ok(()) }
/// ```
pub struct EtcdLeases {
    gateway: Gateway,
    prefix: String,
    /// What is known of the members of this process.
    members: Mutex<HashMap<(String, MemberId), Known>>,
}

/// What is known of a member, from the last answer.
#[derive(Clone, Copy)]
struct Known {
    /// The lease of etcd that the keys of the member have.
    lease: i64,
    /// The revision at which its key was last written; 0 if there is no such key.
    written: i64,
}

/// A lease that was begun again.
struct Begun {
    lease: i64,
    /// The leader's term.
    term: u64,
}

/// The changes of one transaction. Together at most `MOST_CHANGES`.
struct Changes {
    releases: Vec<PartitionLease>,
    /// Leases to renew that are under another lease of etcd, which is too short.
    moves: Vec<PartitionLease>,
    candidates: Vec<u32>,
}

/// By default, etcd allows 128 operations in a transaction, with those that are nested in it.
const MOST_CHANGES: usize = 100;

/// An exchange takes as many transactions as its changes need, and at most this many more: one if
/// a request that was given up has come in between, and some if other members take the candidates.
const MORE_ROUNDS: usize = 4;

/// How often an exchange begins from the start, if its lease or the leader was lost.
const ATTEMPTS: usize = 3;

/// A pool as a transaction has read it: all keys at one revision.
struct Contents {
    revision: i64,
    term: u64,
    partitions: Vec<Taken>,
    members: Vec<Said>,
}

/// A partition that is leased, as the keys of the pool say.
struct Taken {
    partition: u32,
    member: MemberId,
    lease: i64,
    fence: u64,
}

/// What a member has said of itself, as its key says.
struct Said {
    member: MemberId,
    lease: i64,
    written: i64,
    demand: u32,
    served: u64,
}

impl EtcdLeases {
    /// Creates a store. It connects when it is first used.
    ///
    /// # Errors
    ///
    /// [`LeaseError::Refused`] if there is no address, or one that is not `http://HOST:PORT`.
    ///
    /// ```
    /// # use portcullis_fleet::{EtcdLeases, EtcdSettings, LeaseError};
    /// let store = EtcdLeases::new(&EtcdSettings::new(["https://127.0.0.1:2379"]));
    /// assert!(matches!(store, Err(LeaseError::Refused(_))));
    /// ```
    pub fn new(settings: &EtcdSettings) -> Result<Self, LeaseError> {
        Ok(Self {
            gateway: Gateway::new(&settings.endpoints, settings.time_limit)?,
            prefix: settings.prefix.clone(),
            members: Mutex::default(),
        })
    }

    /// Locks what is known of the members.
    fn members(&self) -> MutexGuard<'_, HashMap<(String, MemberId), Known>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins the lease of a member again, or a new one if it has none that lasts for `length`.
    async fn begin(&self, lease: Option<i64>, length: Duration) -> Result<Begun, Refused> {
        let seconds = length.as_secs() + u64::from(length.subsec_nanos() > 0);
        let seconds = seconds.clamp(1, 9_000_000_000);
        if let Some(id) = lease {
            let request = json!({ "ID": id.to_string() });
            let answer = self.gateway.call("/v3/lease/keepalive", &request).await?;
            // The gateway answers with a stream of one object, which is under `result`.
            let answer = answer.get("result").unwrap_or(&answer);
            let lasts = answer.get("TTL").and_then(number::<u64>);
            if lasts.is_some_and(|lasts| lasts >= seconds) {
                let term = header(answer, "raft_term")?;
                return Ok(Begun { lease: id, term });
            }
            // It has ended, and all keys with it; or it is too short, since the pool was changed.
        }
        let request = json!({ "TTL": seconds.to_string() });
        let answer = self.gateway.call("/v3/lease/grant", &request).await?;
        let id = answer.get("ID").and_then(number::<i64>);
        Ok(Begun {
            lease: id.ok_or_else(|| damaged("a lease without a number"))?,
            term: header(&answer, "raft_term")?,
        })
    }

    /// Reads a pool, without a change.
    async fn read(&self, keys: &Keys) -> Result<Contents, Refused> {
        let answer = self.gateway.call("/v3/kv/range", &keys.range()).await?;
        Ok(keys.contents(&answer, &answer)?)
    }

    /// Makes changes, if nothing has written the key of the member since `known`. Returns the pool,
    /// and whether the changes were made.
    async fn change(
        &self,
        keys: &Keys,
        request: &Exchange,
        known: Known,
        changes: &Changes,
    ) -> Result<(Contents, bool), Refused> {
        let member = keys.member(request.member);
        let lease = known.lease.to_string();
        let said = format!("{} {}", request.demand, request.served);
        let name = encoded(&request.member.to_string());
        let put = |key: &str, value: &str| json!({ "request_put": { "key": key, "value": value, "lease": lease } });
        // The revision at which the key was created is the fence of the grant.
        let is_held = |held: &PartitionLease, key: &str| {
            let fence = held.fence.to_string();
            json!([
                { "key": key, "target": "CREATE", "create_revision": fence },
                { "key": key, "target": "VALUE", "value": name },
            ])
        };
        let mut operations = vec![put(&member, &encoded(&said))];
        for held in &changes.releases {
            let key = keys.partition(held.partition);
            operations.push(json!({ "request_txn": {
                "compare": is_held(held, &key),
                "success": [{ "request_delete_range": { "key": key } }],
            } }));
        }
        for held in &changes.moves {
            let key = keys.partition(held.partition);
            operations.push(json!({ "request_txn": {
                "compare": is_held(held, &key),
                "success": [put(&key, &name)],
            } }));
        }
        for &partition in &changes.candidates {
            let key = keys.partition(partition);
            operations.push(json!({ "request_txn": {
                "compare": [{ "key": key, "target": "CREATE", "create_revision": "0" }],
                "success": [put(&key, &name)],
            } }));
        }
        let range = json!({ "request_range": keys.range() });
        operations.push(range.clone());
        let transaction = json!({
            "compare": [{
                "key": member, "target": "MOD", "mod_revision": known.written.to_string()
            }],
            "success": operations,
            "failure": [range],
        });
        let answer = self.gateway.call("/v3/kv/txn", &transaction).await?;
        let is_done = answer.get("succeeded").and_then(Value::as_bool) == Some(true);
        let last = answer.get("responses").and_then(Value::as_array);
        let last = last.and_then(|responses| responses.last()?.get("response_range"));
        let last = last.ok_or_else(|| damaged("a transaction without what it read"))?;
        Ok((keys.contents(&answer, last)?, is_done))
    }

    /// One attempt at an exchange. `None` if the lease or the leader was lost in between.
    async fn attempt(
        &self,
        keys: &Keys,
        request: &Exchange,
        known: &mut Option<Known>,
    ) -> Result<Option<ExchangeAnswer>, Refused> {
        // After an error, nothing is known.
        let (lease, mut written, mut contents) = if let Some(known) = known.take() {
            (Some(known.lease), known.written, None)
        } else {
            let read = self.read(keys).await?;
            let lease = read.said(request.member).map(|said| said.lease);
            (lease, read.written(request.member), Some(read))
        };
        let begun = self.begin(lease, request.lease).await?;
        if lease.is_some_and(|lease| lease != begun.lease) {
            // All keys of a lease end with it. If there are some, they are found below.
            (written, contents) = (0, None);
        }
        let changes = request.release.len() + request.renew.len() + request.candidates.len();
        for _ in 0..changes / MOST_CHANGES + MORE_ROUNDS {
            let now = Known {
                lease: begun.lease,
                written,
            };
            let changes = Changes::of(request, begun.lease, contents.as_ref());
            let (read, is_done) = self.change(keys, request, now, &changes).await?;
            if read.term != begun.term {
                // The lease was begun again by a leader that may have been replaced already: that
                // does not count.
                return Ok(None);
            }
            written = if is_done {
                let written = read.revision;
                *known = Some(Known { written, ..now });
                if Changes::of(request, begun.lease, Some(&read)).is_empty() {
                    return Ok(Some(read.answer(request, begun.lease)));
                }
                written
            } else {
                // A request that was given up came in between.
                read.written(request.member)
            };
            contents = Some(read);
        }
        // Other members were quicker each time.
        let answer = |read: Contents| read.answer(request, begun.lease);
        Ok(contents.filter(|_| known.is_some()).map(answer))
    }
}

impl Changes {
    /// Chooses what is left to change in a pool, as far as it is known.
    fn of(request: &Exchange, lease: i64, contents: Option<&Contents>) -> Self {
        let under = |read: &Contents, held: &PartitionLease| read.under(request.member, *held);
        let is_left =
            |held: &&PartitionLease| contents.is_none_or(|read| under(read, held).is_some());
        let releases = request.release.iter().filter(is_left);
        let releases: Vec<_> = releases.take(MOST_CHANGES).copied().collect();
        let is_elsewhere = |held: &&PartitionLease| {
            let other = contents.and_then(|read| under(read, held));
            other.is_some_and(|other| other != lease)
        };
        let moves = request.renew.iter().filter(is_elsewhere);
        let room = MOST_CHANGES - releases.len();
        let moves: Vec<_> = moves.take(room).copied().collect();
        let granted = contents.map_or(0, |read| read.granted(request, lease).len());
        let wanted = (request.at_most as usize).saturating_sub(granted);
        let is_free = |partition: &u32| {
            let is_held = |held: &PartitionLease| held.partition == *partition;
            !contents.is_some_and(|read| read.is_taken(*partition))
                && !request.release.iter().any(is_held)
                && !request.renew.iter().any(is_held)
        };
        let candidates = request.candidates.iter().copied().filter(is_free);
        Self {
            candidates: candidates.take(wanted.min(room - moves.len())).collect(),
            releases,
            moves,
        }
    }

    /// Returns whether nothing is left to change.
    const fn is_empty(&self) -> bool {
        self.releases.is_empty() && self.moves.is_empty() && self.candidates.is_empty()
    }
}

impl Contents {
    /// Returns what a member has said of itself, if its key is there.
    fn said(&self, member: MemberId) -> Option<&Said> {
        self.members.iter().find(|said| said.member == member)
    }

    /// Returns the revision at which the key of a member was last written; 0 if there is none.
    fn written(&self, member: MemberId) -> i64 {
        self.said(member).map_or(0, |said| said.written)
    }

    /// Returns whether any member has the partition.
    fn is_taken(&self, partition: u32) -> bool {
        self.partitions.iter().any(|of| of.partition == partition)
    }

    /// Returns the partitions that a member has under its lease of etcd.
    fn of(&self, member: MemberId, lease: i64) -> impl Iterator<Item = PartitionLease> {
        let ours = move |of: &&Taken| of.member == member && of.lease == lease;
        self.partitions
            .iter()
            .filter(ours)
            .map(|of| PartitionLease {
                partition: of.partition,
                fence: of.fence,
            })
    }

    /// Returns the lease of etcd under which a member has a partition, if it does.
    fn under(&self, member: MemberId, held: PartitionLease) -> Option<i64> {
        let is_it = |of: &&Taken| of.partition == held.partition && of.fence == held.fence;
        let found = self.partitions.iter().find(is_it);
        found.filter(|of| of.member == member).map(|of| of.lease)
    }

    /// Returns what the member has but does not name: what was granted now, or by an answer that
    /// was lost.
    fn granted(&self, request: &Exchange, lease: i64) -> Vec<PartitionLease> {
        let is_new = |held: &PartitionLease| {
            !request.renew.contains(held) && !request.release.contains(held)
        };
        self.of(request.member, lease).filter(is_new).collect()
    }

    /// Returns the answer to a request, as the pool is after all changes.
    fn answer(&self, request: &Exchange, lease: i64) -> ExchangeAnswer {
        let ours: Vec<_> = self.of(request.member, lease).collect();
        let renewed = request.renew.iter().copied();
        let is_taken = |partition: &u32| {
            let is_other = |of: &Taken| of.partition == *partition && of.member != request.member;
            self.partitions.iter().any(is_other)
        };
        let candidates = request.candidates.iter().copied();
        let members = self.members.iter().map(|said| Claim {
            member: said.member,
            demand: said.demand,
            held: count(&self.partitions, said.member),
            served: said.served,
        });
        ExchangeAnswer {
            renewed: renewed.filter(|held| ours.contains(held)).collect(),
            granted: self.granted(request, lease),
            taken: candidates.filter(is_taken).collect(),
            members: members.collect(),
            hold_off: None,
            // Another etcd is out of the question: see the documentation of the store.
            fence: 0,
            server: 0,
        }
    }
}

fn count(partitions: &[Taken], member: MemberId) -> u32 {
    let held = partitions.iter().filter(|of| of.member == member);
    u32::try_from(held.count()).unwrap_or(u32::MAX)
}

/// The keys of a pool.
struct Keys {
    pool: String,
}

impl Keys {
    fn new(prefix: &str, pool: &str) -> Self {
        // With the length, no pool's keys are among those of another.
        Self {
            pool: format!("{prefix}{}:{pool}/", pool.len()),
        }
    }

    fn member(&self, member: MemberId) -> String {
        encoded(&format!("{}m/{member}", self.pool))
    }

    fn partition(&self, partition: u32) -> String {
        encoded(&format!("{}p/{partition}", self.pool))
    }

    /// All keys of the pool: up to the key with the next letter after the slash.
    fn range(&self) -> Value {
        let before = self.pool.trim_end_matches('/');
        json!({ "key": encoded(&self.pool), "range_end": encoded(&format!("{before}0")) })
    }

    /// Reads the answer to a request, and the range in it.
    fn contents(&self, answer: &Value, range: &Value) -> Result<Contents, LeaseError> {
        let mut contents = Contents {
            revision: header(answer, "revision")?,
            term: header(answer, "raft_term")?,
            partitions: Vec::new(),
            members: Vec::new(),
        };
        let Some(entries) = range.get("kvs") else {
            return Ok(contents);
        };
        let entries = entries
            .as_array()
            .ok_or_else(|| damaged("not a list of keys"))?;
        for entry in entries {
            self.entry(entry, &mut contents)
                .ok_or_else(|| damaged(&format!("not a key of a pool: {entry}")))?;
        }
        Ok(contents)
    }

    fn entry(&self, entry: &Value, contents: &mut Contents) -> Option<()> {
        let key = decoded(entry.get("key")?)?;
        let value = decoded(entry.get("value")?)?;
        let lease = entry.get("lease").map_or(Some(0), number)?;
        let id = |text: &str| u128::from_str_radix(text, 16).ok().map(MemberId);
        match key.strip_prefix(&self.pool)?.split_once('/')? {
            ("p", partition) => contents.partitions.push(Taken {
                partition: partition.parse().ok()?,
                member: id(&value)?,
                lease,
                fence: number(entry.get("create_revision")?)?,
            }),
            ("m", member) => {
                let (demand, served) = value.split_once(' ')?;
                contents.members.push(Said {
                    member: id(member)?,
                    lease,
                    written: number(entry.get("mod_revision")?)?,
                    demand: demand.parse().ok()?,
                    served: served.parse().ok()?,
                });
            }
            _ => return None,
        }
        Some(())
    }
}

fn encoded(text: &str) -> String {
    STANDARD.encode(text)
}

fn decoded(text: &Value) -> Option<String> {
    String::from_utf8(STANDARD.decode(text.as_str()?).ok()?).ok()
}

/// A number, which the gateway writes as a text if it may have 64 bits.
fn number<T: core::str::FromStr>(value: &Value) -> Option<T> {
    match value {
        Value::String(text) => text.parse().ok(),
        Value::Number(number) => number.to_string().parse().ok(),
        _ => None,
    }
}

fn header<T: core::str::FromStr>(answer: &Value, name: &str) -> Result<T, LeaseError> {
    let value = answer.get("header").and_then(|header| header.get(name));
    let value = value.and_then(number);
    value.ok_or_else(|| damaged(&format!("an answer without a {name}")))
}

fn damaged(what: &str) -> LeaseError {
    LeaseError::Damaged(what.into())
}

impl LeaseStore for EtcdLeases {
    fn exchange<'a>(&'a self, pool: &'a str, request: &'a Exchange) -> LeaseFuture<'a> {
        Box::pin(async move {
            let keys = Keys::new(&self.prefix, pool);
            let name = (pool.to_owned(), request.member);
            // If this future is dropped or fails, nothing is known.
            let mut known = self.members().remove(&name);
            for _ in 0..ATTEMPTS {
                match self.attempt(&keys, request, &mut known).await {
                    Ok(Some(answer)) => {
                        let is_over = request.demand == 0
                            && answer.renewed.is_empty()
                            && answer.granted.is_empty();
                        if let Some(known) = known.filter(|_| !is_over) {
                            self.members().insert(name, known);
                        }
                        return Ok(answer);
                    }
                    Ok(None) | Err(Refused::NoLease) => known = None,
                    Err(Refused::Store(error)) => return Err(error),
                }
            }
            let why = "the lease or the leader was lost again and again";
            Err(LeaseError::Refused(why.into()))
        })
    }
}

impl fmt::Debug for EtcdLeases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdLeases")
            .field("gateway", &self.gateway)
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}
