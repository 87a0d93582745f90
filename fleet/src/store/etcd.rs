//! A store of leases on etcd, through its JSON gateway.
//!
//! ```text
//! PREFIX LENGTH : POOL / m / MEMBER       what a member said: demand, served, length of its leases
//! PREFIX LENGTH : POOL / p / PARTITION    the member that has a partition
//! ```
//!
//! The fence of a partition is the revision at which its key was created. An exchange is one
//! transaction, which does all that the member asks and reads the pool. Each transaction writes the
//! key of its member, and takes place only if nothing has written that key since the member last
//! read it. So a transaction that was overtaken does nothing. In particular, a release that was
//! given up cannot end a lease that was granted again since.
//!
//! The keys have no lease of etcd. A leader that is stopped and goes on may end such leases
//! although they were renewed with the leader that has replaced it: it has measured their time
//! alone, and its order to end them reaches the new leader. So the members measure the time:
//!
//! ```text
//!                  seen for the first time           not written for the length of its leases
//! key of a member ------------------------> seen --------------------------------------------+
//!                                            ^  |                                            |
//!                                            +--+ written                                    v
//!                              a transaction deletes the key and the member's partitions: ended
//! ```
//!
//! Invariant: a partition is deleted only by its member, or by a transaction that takes place if
//! the member has written nothing since another one has seen its key, which is as long ago as its
//! leases last. What the member has had an answer to was sent before it was seen.

mod gateway;

use core::fmt;
use core::time::Duration;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use portcullis_core::{Clock, MonotonicClock, Timestamp};
use serde_json::{Value, json};

use self::gateway::Gateway;
use crate::store::memory::Longest;
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
    /// is one request, seldom more. Default 1 s.
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
/// - **Leases** are not those of etcd, whose leader may end them too early after it was stopped.
///   The members measure the time. Each exchange of a member writes a key of its own. Another one
///   that has seen this key, and finds it not written for the length of a lease, ends the leases of
///   that member. So what a process held that is killed returns a lease time after the others have
///   seen its last exchange. If there are no others, it returns a lease time after the first
///   exchange of the next process.
/// - **Restart, new leader.** Nothing is forgotten, and no lease ends or begins by it.
/// - **Fences** are revisions of etcd, which grow with every change. After a restore of an older
///   state, they go back.
/// - **Another etcd,** or an older state of this one, does not know what was leased since, and
///   grants it at once. Stop all members for the time of a lease before they use it.
/// - **Connections.** Each call uses one of its own, and keeps it for the next one. After a
///   failure, the next call tries the next server.
///
/// # Cost
///
/// One request for each exchange: a transaction, with the claims and leases of all members in the
/// answer. A second one after an error, and when the candidates that were tried first are taken.
/// Two more when the leases of another member have ended. In a transaction, etcd allows 128
/// operations by default; an exchange with more than 100 changes takes several. A key of about 100
/// bytes stays for each member that has left or was killed, until a lease time after the next
/// exchange of another one.
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
    clock: MonotonicClock,
    /// What is known of the members of this process.
    known: Mutex<HashMap<(String, MemberId), Known>>,
    /// What was seen of all members, by pool.
    seen: Mutex<HashMap<String, HashMap<MemberId, Seen>>>,
}

/// What is known of a member, from the last answer.
#[derive(Clone, Copy)]
struct Known {
    /// The revision at which its key was last written; 0 if there is no such key.
    written: i64,
    /// The longest of its leases that may last.
    longest: Longest,
}

/// What was seen of a member.
struct Seen {
    /// The revision at which its key was written; 0 if there is no such key.
    written: i64,
    /// When an answer first said so.
    since: Timestamp,
}

/// The changes of one transaction. Together at most `MOST_CHANGES`.
struct Changes {
    releases: Vec<PartitionLease>,
    /// Partitions of members whose leases have ended, with the revisions of these members.
    ended: Vec<(MemberId, i64, PartitionLease)>,
    /// Members whose leases have ended, and end with these changes.
    gone: Vec<(MemberId, i64)>,
    candidates: Vec<u32>,
}

/// By default, etcd allows 128 operations in a transaction, with those that are nested in it.
const MOST_CHANGES: usize = 100;

/// An exchange takes as many transactions as its changes need, and at most this many more: one if
/// a request that was given up has come in between, and some if other members take the candidates.
const MORE_ROUNDS: usize = 4;

/// A pool as a transaction has read it: all keys at one revision.
struct Contents {
    revision: i64,
    partitions: Vec<Taken>,
    members: Vec<Said>,
}

/// A partition that is leased, as the keys of the pool say.
struct Taken {
    member: MemberId,
    held: PartitionLease,
}

/// What a member has said of itself, as its key says.
struct Said {
    member: MemberId,
    written: i64,
    demand: u32,
    served: u64,
    /// The longest of its leases that may last.
    lease: Duration,
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
            clock: MonotonicClock::new(),
            known: Mutex::default(),
            seen: Mutex::default(),
        })
    }

    /// Locks what is known of the members.
    fn known(&self) -> MutexGuard<'_, HashMap<(String, MemberId), Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what an answer says, and returns the members other than `own` whose leases have ended.
    /// Of those that have no key, leases last for `lease`.
    fn see(&self, pool: &str, read: &Contents, own: MemberId, lease: Duration) -> Vec<MemberId> {
        // After the answer has come, so after what it says was decided.
        let now = self.clock.now();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = match seen.get_mut(pool) {
            Some(seen) => seen,
            None => seen.entry(pool.to_owned()).or_default(),
        };
        let members = read.members.iter().map(|said| said.member);
        let mut members: Vec<_> = members
            .chain(read.partitions.iter().map(|of| of.member))
            .collect();
        members.sort_unstable();
        members.dedup();
        seen.retain(|member, _| members.binary_search(member).is_ok());
        members.retain(|&member| {
            let said = read.said(member);
            let (written, lease) = said.map_or((0, lease), |said| (said.written, said.lease));
            let of = seen.entry(member).or_insert(Seen {
                written,
                since: now,
            });
            if of.written != written {
                *of = Seen {
                    written,
                    since: now,
                };
            }
            member != own && now.saturating_since(of.since) >= lease
        });
        members
    }

    /// Reads a pool, without a change.
    async fn read(&self, keys: &Keys) -> Result<Contents, LeaseError> {
        let answer = self.gateway.call("/v3/kv/range", &keys.range()).await?;
        keys.contents(&answer, &answer)
    }

    /// Makes changes, if nothing has written the key of the member since `known`. Returns the pool,
    /// and whether the changes were made.
    async fn change(
        &self,
        keys: &Keys,
        request: &Exchange,
        known: Known,
        changes: &Changes,
    ) -> Result<(Contents, bool), LeaseError> {
        let lease = known.longest.length().as_nanos().div_ceil(1_000_000);
        let lease = u64::try_from(lease).unwrap_or(u64::MAX);
        let said = format!("{} {} {lease}", request.demand, request.served);
        let mut operations = changes.operations(keys, request.member, &encoded(&said));
        let range = json!({ "request_range": keys.range() });
        operations.push(range.clone());
        let transaction = json!({
            "compare": [is_written(&keys.member(request.member), known.written)],
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

    /// Does an exchange, with what is known of the member. After an error, nothing is known.
    async fn attempt(
        &self,
        pool: &str,
        request: &Exchange,
        known: &mut Option<Known>,
    ) -> Result<ExchangeAnswer, LeaseError> {
        let keys = Keys::new(&self.prefix, pool);
        let see = |read: &Contents| self.see(pool, read, request.member, request.lease);
        let (mut now, mut contents) = if let Some(known) = known.take() {
            (known, None)
        } else {
            let read = self.read(&keys).await?;
            let mut longest = Longest::NONE;
            if let Some(said) = read.said(request.member) {
                longest.ask(said.lease, self.clock.now());
            }
            let written = read.written(request.member);
            let over = see(&read);
            (Known { written, longest }, Some((read, over)))
        };
        now.longest.ask(request.lease, self.clock.now());
        let changes = request.release.len() + request.candidates.len();
        for _ in 0..changes / MOST_CHANGES + MORE_ROUNDS {
            let changes = Changes::of(request, contents.as_ref());
            let (read, is_done) = self.change(&keys, request, now, &changes).await?;
            let over = see(&read);
            if is_done {
                now.written = read.revision;
                *known = Some(now);
            } else {
                // A request that was given up came in between.
                now.written = read.written(request.member);
            }
            let read = (read, over);
            if is_done && Changes::of(request, Some(&read)).is_empty() {
                return Ok(read.0.answer(request));
            }
            contents = Some(read);
        }
        // Other members were quicker each time.
        let read = contents.filter(|_| known.is_some());
        let read = read.ok_or_else(|| {
            LeaseError::Refused("requests that were given up came in between each time".into())
        })?;
        Ok(read.0.answer(request))
    }
}

impl Changes {
    /// Chooses what is left to change in a pool, as far as it is known, with the members whose
    /// leases have ended.
    fn of(request: &Exchange, contents: Option<&(Contents, Vec<MemberId>)>) -> Self {
        let is_left = |held: &&PartitionLease| {
            contents.is_none_or(|(read, _)| read.is_held(request.member, **held))
        };
        let releases = request.release.iter().filter(is_left);
        let releases: Vec<_> = releases.take(MOST_CHANGES).copied().collect();
        let mut room = MOST_CHANGES - releases.len();
        let (mut ended, mut gone) = (Vec::new(), Vec::new());
        if let Some((read, over)) = contents {
            for &member in over {
                let written = read.written(member);
                let before = ended.len();
                let theirs = read.of(member).take(room);
                ended.extend(theirs.map(|held| (member, written, held)));
                room -= ended.len() - before;
                if room == 0 {
                    // Its key stays as long as it has partitions.
                    break;
                }
                if written > 0 {
                    gone.push((member, written));
                    room -= 1;
                }
            }
        }
        let granted = contents.map_or(0, |(read, _)| read.granted(request).len());
        let wanted = (request.at_most as usize).saturating_sub(granted);
        let is_free = |partition: &u32| {
            let is_held = |held: &PartitionLease| held.partition == *partition;
            !contents.is_some_and(|(read, _)| read.is_taken(*partition))
                && !request.release.iter().any(is_held)
                && !request.renew.iter().any(is_held)
        };
        let candidates = request.candidates.iter().copied().filter(is_free);
        Self {
            candidates: candidates.take(wanted.min(room)).collect(),
            releases,
            ended,
            gone,
        }
    }

    /// Returns the operations of the changes by the member `own`, which says `said`.
    fn operations(&self, keys: &Keys, own: MemberId, said: &str) -> Vec<Value> {
        let put = |key: &str, value: &str| json!({ "request_put": { "key": key, "value": value } });
        let delete = |key: &str| json!({ "request_delete_range": { "key": key } });
        let name = |member: MemberId| encoded(&member.to_string());
        // The revision at which the key was created is the fence of the grant.
        let is_held = |member: MemberId, held: &PartitionLease, key: &str| {
            let fence = held.fence.to_string();
            let name = name(member);
            [
                json!({ "key": key, "target": "CREATE", "create_revision": fence }),
                json!({ "key": key, "target": "VALUE", "value": name }),
            ]
        };
        let mut operations = vec![put(&keys.member(own), said)];
        for held in &self.releases {
            let key = keys.partition(held.partition);
            operations.push(json!({ "request_txn": {
                "compare": is_held(own, held, &key),
                "success": [delete(&key)],
            } }));
        }
        // All comparisons are made before any change.
        for (member, written, held) in &self.ended {
            let key = keys.partition(held.partition);
            let [is_created, is_theirs] = is_held(*member, held, &key);
            operations.push(json!({ "request_txn": {
                "compare": [is_created, is_theirs, is_written(&keys.member(*member), *written)],
                "success": [delete(&key)],
            } }));
        }
        for &(member, written) in &self.gone {
            let key = keys.member(member);
            operations.push(json!({ "request_txn": {
                "compare": [is_written(&key, written)],
                "success": [delete(&key)],
            } }));
        }
        for &partition in &self.candidates {
            let key = keys.partition(partition);
            operations.push(json!({ "request_txn": {
                "compare": [{ "key": key, "target": "CREATE", "create_revision": "0" }],
                "success": [put(&key, &name(own))],
            } }));
        }
        operations
    }

    /// Returns whether nothing is left to change.
    const fn is_empty(&self) -> bool {
        self.releases.is_empty()
            && self.ended.is_empty()
            && self.gone.is_empty()
            && self.candidates.is_empty()
    }
}

/// The comparison that a key was last written at `revision`; at 0 if there is no such key.
fn is_written(key: &str, revision: i64) -> Value {
    let revision = revision.to_string();
    json!({ "key": key, "target": "MOD", "mod_revision": revision })
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
        let is_it = |of: &Taken| of.held.partition == partition;
        self.partitions.iter().any(is_it)
    }

    /// Returns the partitions that a member has.
    fn of(&self, member: MemberId) -> impl Iterator<Item = PartitionLease> {
        let theirs = self.partitions.iter().filter(move |of| of.member == member);
        theirs.map(|of| of.held)
    }

    /// Returns whether a member has this lease.
    fn is_held(&self, member: MemberId, held: PartitionLease) -> bool {
        self.of(member).any(|of| of == held)
    }

    /// Returns what the member has but does not name: what was granted now, or by an answer that
    /// was lost.
    fn granted(&self, request: &Exchange) -> Vec<PartitionLease> {
        let is_new = |held: &PartitionLease| {
            !request.renew.contains(held) && !request.release.contains(held)
        };
        self.of(request.member).filter(is_new).collect()
    }

    /// Returns the answer to a request, as the pool is after all changes.
    fn answer(&self, request: &Exchange) -> ExchangeAnswer {
        let ours: Vec<_> = self.of(request.member).collect();
        let renewed = request.renew.iter().copied();
        let is_taken = |partition: &u32| {
            let is_other =
                |of: &Taken| of.held.partition == *partition && of.member != request.member;
            self.partitions.iter().any(is_other)
        };
        let candidates = request.candidates.iter().copied();
        let members = self.members.iter().map(|said| Claim {
            member: said.member,
            demand: said.demand,
            held: u32::try_from(self.of(said.member).count()).unwrap_or(u32::MAX),
            served: said.served,
        });
        ExchangeAnswer {
            renewed: renewed.filter(|held| ours.contains(held)).collect(),
            granted: self.granted(request),
            taken: candidates.filter(is_taken).collect(),
            members: members.collect(),
            hold_off: None,
            // Another etcd is out of the question: see the documentation of the store.
            fence: 0,
            server: 0,
        }
    }
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
        let id = |text: &str| u128::from_str_radix(text, 16).ok().map(MemberId);
        match key.strip_prefix(&self.pool)?.split_once('/')? {
            ("p", partition) => contents.partitions.push(Taken {
                member: id(&value)?,
                held: PartitionLease {
                    partition: partition.parse().ok()?,
                    fence: number(entry.get("create_revision")?)?,
                },
            }),
            ("m", member) => {
                let (demand, rest) = value.split_once(' ')?;
                let (served, lease) = rest.split_once(' ')?;
                contents.members.push(Said {
                    member: id(member)?,
                    written: number(entry.get("mod_revision")?)?,
                    demand: demand.parse().ok()?,
                    served: served.parse().ok()?,
                    lease: Duration::from_millis(lease.parse().ok()?),
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
            let name = (pool.to_owned(), request.member);
            // If this future is dropped or fails, nothing is known.
            let mut known = self.known().remove(&name);
            let answer = self.attempt(pool, request, &mut known).await?;
            let is_over =
                request.demand == 0 && answer.renewed.is_empty() && answer.granted.is_empty();
            if let Some(known) = known.filter(|_| !is_over) {
                self.known().insert(name, known);
            }
            Ok(answer)
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
