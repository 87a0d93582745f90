//! A counter store on a Redis server.
//!
//! ```text
//! PREFIX c: ID    a counter: a string, with an expiry
//! PREFIX q: ID    a quota: its numbers as text, with an expiry
//! ```
//!
//! Each method is one script, which the server runs as a whole. `take` decides on the server: the
//! script advances the quotas to the server's time, and writes all of them or none. It returns the
//! quotas, from which this side computes what is left and when to retry, by the same functions as
//! for every store.

use core::fmt;
use core::time::Duration;

use portcullis_core::Timestamp;
use portcullis_stores::{CallError, RedisConnection, RedisSettings};
use redis::{ErrorKind, FromRedisValue, Pipeline, RedisError, Script, ScriptInvocation, Value};

pub(crate) mod channel;
mod connect;

use crate::charge::Charge;
use crate::decision::StoreDecision;
use crate::error::StoreError;
use crate::limit::Shape;
use crate::quota::{Judgement, QuotaState};
use crate::store::{Counter, CounterStore, MAX_AGE, QuotaRead, QuotaWrite, StoreFuture};

/// A [`CounterStore`] on a Redis server, version 6.2 or later. Needs the feature `redis`, and a
/// runtime of tokio.
///
/// - **Time** is the server's. The clocks of the callers do not matter.
/// - **Every key expires:** a counter when it was told to, a quota 1 to 2 ms after its limit is
///   full again.
/// - **One script for each decision.** No other command runs in between.
/// - **Settings.** By default all keys begin with `portcullis:`, and a call waits for 250 ms.
/// - **Connection.** One connection serves all calls. If it breaks, the calls on it fail with
///   [`StoreError::Unavailable`], and the store connects again. No command is sent twice: whether
///   a command that failed has run is not known.
/// - **Restart.** If the server loses its data, all limits are full again.
/// - **Eviction.** A server that removes keys when its memory is full forgets limits: a client that
///   makes up many keys frees itself. Set `maxmemory-policy noeviction`: then the server grants
///   nothing while it is full. All other policies remove keys of the store, because they expire.
///   Ask [`eviction`](Self::eviction) when the program starts.
/// - **Errors.** What the server says to everybody, such as `LOADING`, `READONLY` or `OOM`, is
///   [`StoreError::Unavailable`]. What it says to one request is not: [`StoreError::Refused`]
///   (`NOPERM`, `CROSSSLOT` and others), [`Damaged`](StoreError::Damaged) (`WRONGTYPE`) or
///   [`Contended`](StoreError::Contended) (`NOSCRIPT`).
///
/// In a cluster, the ids of one request must be in one slot: give them a common part in braces,
/// such as `{alice}:second` and `{alice}:day`.
///
/// # Cost
///
/// One round trip for each call, also for [`take_many`](CounterStore::take_many).
///
/// ```no_run
/// use core::time::Duration;
/// use portcullis_counters::{
///     Charge, CounterLimit, CounterStore, RedisSettings, RedisCounters,
/// };
///
/// # async fn example() -> Result<(), Box<dyn core::error::Error>> {
/// let store = RedisCounters::new(&RedisSettings::new("redis://127.0.0.1/"))?;
/// let limit = CounterLimit::token_bucket(100, Duration::from_secs(60), 100)?;
/// let decision = store.take(&[Charge::new("alice", &limit, 1)]).await?;
/// println!("{} left", decision.left()[0].available);
/// # Ok(()) }
/// ```
pub struct RedisCounters {
    connection: RedisConnection,
    scripts: Scripts,
}

struct Scripts {
    get: Script,
    add: Script,
    read: Script,
    write: Script,
    take: Script,
}

const TAKE: &str = include_str!("redis/take.lua");

impl RedisCounters {
    /// Creates a store. It connects when it is first used.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unavailable`] if the address is not valid.
    ///
    /// # Panics
    ///
    /// If called outside of a runtime of tokio.
    ///
    /// ```
    /// # use portcullis_counters::{RedisCounters, RedisSettings, StoreError};
    /// let store = RedisCounters::new(&RedisSettings::new("localhost"));
    /// assert!(matches!(store, Err(StoreError::Unavailable(_))));
    /// ```
    pub fn new(settings: &RedisSettings) -> Result<Self, StoreError> {
        Ok(Self {
            connection: connect::open(settings)?,
            scripts: Scripts {
                get: Script::new(include_str!("redis/get.lua")),
                add: Script::new(include_str!("redis/add.lua")),
                read: Script::new(include_str!("redis/read.lua")),
                write: Script::new(include_str!("redis/write.lua")),
                take: Script::new(TAKE),
            },
        })
    }

    /// Returns the server's eviction policy if it removes keys, and so forgets limits, when its
    /// memory is full, such as `allkeys-lru`. `None` if it removes none.
    ///
    /// It may change later: `CONFIG SET` needs no restart.
    ///
    /// # Errors
    ///
    /// [`StoreError`], also if the user may not ask for it (`INFO`).
    ///
    /// # Cost
    ///
    /// One round trip.
    ///
    /// ```no_run
    /// # use portcullis_counters::{RedisCounters, RedisSettings, StoreError};
    /// # async fn example() -> Result<(), StoreError> {
    /// let store = RedisCounters::new(&RedisSettings::new("redis://127.0.0.1/"))?;
    /// if let Some(policy) = store.eviction().await? {
    ///     eprintln!("limits may be forgotten: set maxmemory-policy noeviction, not {policy}");
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn eviction(&self) -> Result<Option<String>, StoreError> {
        let mut info = redis::cmd("INFO");
        let info = self.connection.query(info.arg("memory")).await;
        let info: String = info.map_err(unanswered)?;
        let field = |name: &str| {
            let mut lines = info.lines();
            lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        };
        let (Some(most), Some(policy)) = (field("maxmemory"), field("maxmemory_policy")) else {
            return Err(StoreError::Damaged);
        };
        Ok((most != "0" && policy != "noeviction").then(|| policy.to_owned()))
    }

    fn counter(&self, id: &str) -> String {
        format!("{}c:{id}", self.connection.prefix())
    }

    fn quota(&self, id: &str) -> String {
        format!("{}q:{id}", self.connection.prefix())
    }

    async fn run<T: FromRedisValue>(&self, call: &ScriptInvocation<'_>) -> Result<T, StoreError> {
        self.connection.invoke(call).await.map_err(unanswered)
    }

    /// The arguments of the script that decides.
    fn arguments(judgement: &Judgement<'_>) -> Vec<u64> {
        let each = judgement.each().flat_map(|(limit, permits)| {
            let (kind, length, rate) = match limit.shape {
                Shape::Bucket { rate, permit, .. } => (0, permit, rate),
                Shape::Windows {
                    segments, length, ..
                } => (segments, length, 0),
            };
            [kind, length, rate, limit.capacity(), permits]
        });
        each.collect()
    }
}

/// What the script that decides returned.
fn decided(judgement: &Judgement<'_>, answer: Vec<Value>) -> Result<StoreDecision, StoreError> {
    let mut answer = answer.into_iter();
    let mut number = || {
        answer
            .next()
            .and_then(|value| u64::from_redis_value(value).ok())
    };
    let (Some(seconds), Some(micros), Some(allowed)) = (number(), number(), number()) else {
        return Err(StoreError::Damaged);
    };
    let quotas = answer.map(|text| match String::from_redis_value(text) {
        Ok(text) => parse(&text),
        Err(_) => Err(StoreError::Damaged),
    });
    let quotas: Vec<QuotaState> = quotas.collect::<Result<_, _>>()?;
    judgement.conclude(&quotas, time(seconds, micros), allowed == 1)
}

fn time(seconds: u64, micros: u64) -> Timestamp {
    Timestamp::from_micros(seconds.saturating_mul(1_000_000).saturating_add(micros))
}

fn parse(text: &str) -> Result<QuotaState, StoreError> {
    let numbers = text.split_ascii_whitespace().map(str::parse::<u64>);
    let numbers: Result<Vec<u64>, _> = numbers.collect();
    numbers
        .map(QuotaState::from)
        .map_err(|_| StoreError::Damaged)
}

fn text(quota: &QuotaState) -> String {
    let numbers = quota.values().iter().map(ToString::to_string);
    numbers.collect::<Vec<_>>().join(" ")
}

/// Whole milliseconds, rounded up, at least 1, and few enough for Redis.
fn millis(duration: Duration) -> u64 {
    let millis = duration.as_nanos().div_ceil(1_000_000).max(1);
    u64::try_from(millis).map_or(1 << 53, |millis| millis.min(1 << 53))
}

fn unanswered(error: CallError) -> StoreError {
    match error {
        CallError::TimedOut(_) | CallError::Unconnected { .. } => {
            StoreError::Unavailable(error.to_string())
        }
        CallError::Failed(error) => failed(&error),
    }
}

/// What a server says that serves no caller now, or none with this connection, by its first word.
const SERVES_NO_CALLER: [&str; 11] = [
    "BUSY",
    "CLUSTERDOWN",
    "LOADING",
    "MASTERDOWN",
    "MISCONF",
    "NOAUTH",
    "NOREPLICAS",
    "OOM",
    "READONLY",
    "UNKILLABLE",
    "WRONGPASS",
];

/// Whose fault an error is. An answer of the server concerns what was asked, unless it is one that
/// everybody gets.
fn failed(error: &RedisError) -> StoreError {
    let text = error.to_string();
    match error.kind() {
        ErrorKind::Server(_) | ErrorKind::Extension => {}
        ErrorKind::Parse | ErrorKind::UnexpectedReturnType => return StoreError::Damaged,
        _ => return StoreError::Unavailable(text),
    }
    let (code, detail) = (error.code().unwrap_or("ERR"), error.detail().unwrap_or(""));
    // Up to version 6.2, an error of a command in a script has this text before its own. No key is
    // in it.
    let has = |word: &str| detail.starts_with("Error running script") && detail.contains(word);
    let is = |word: &str| code == word || code == "ERR" && has(word);
    let is_text = |word: &str| code == "ERR" && (detail.starts_with(word) || has(word));
    if is_text("increment or decrement would overflow") {
        StoreError::Overflow
    } else if is("DAMAGED") || is("WRONGTYPE") || is_text("value is not an integer") {
        StoreError::Damaged
    } else if is("NOSCRIPT") {
        // The script was sent, and forgotten before it was called: nothing has run.
        StoreError::Contended
    } else if SERVES_NO_CALLER.into_iter().any(is) || is_text("max number of clients reached") {
        StoreError::Unavailable(text)
    } else {
        StoreError::Refused(text)
    }
}

impl CounterStore for RedisCounters {
    fn get_many<'a>(&'a self, ids: &'a [&'a str]) -> StoreFuture<'a, Vec<Counter>> {
        Box::pin(async move {
            let mut call = self.scripts.get.prepare_invoke();
            for id in ids {
                call.key(self.counter(id));
            }
            let answer: Vec<Value> = self.run(&call).await?;
            let counters = answer.chunks_exact(2).map(|pair| {
                let value = String::from_redis_value_ref(&pair[0]);
                let expiry = i64::from_redis_value_ref(&pair[1]);
                match (value, expiry) {
                    (Ok(value), _) if value.is_empty() => Ok(Counter::default()),
                    (Ok(value), Ok(expiry)) => counter_of(&value, expiry),
                    _ => Err(StoreError::Damaged),
                }
            });
            counters.collect()
        })
    }

    fn increment_and_get<'a>(
        &'a self,
        id: &'a str,
        expiry: Duration,
        delta: i64,
    ) -> StoreFuture<'a, Counter> {
        Box::pin(async move {
            let mut call = self.scripts.add.prepare_invoke();
            call.key(self.counter(id)).arg(delta).arg(millis(expiry));
            let (value, expiry): (String, i64) = self.run(&call).await?;
            counter_of(&value, expiry)
        })
    }

    fn read_quotas<'a>(&'a self, ids: &'a [&'a str]) -> StoreFuture<'a, QuotaRead> {
        Box::pin(async move {
            let mut call = self.scripts.read.prepare_invoke();
            for id in ids {
                call.key(self.quota(id));
            }
            let answer: Vec<String> = self.run(&call).await?;
            let [seconds, micros, texts @ ..] = &*answer else {
                return Err(StoreError::Damaged);
            };
            let (Ok(seconds), Ok(micros)) = (seconds.parse(), micros.parse()) else {
                return Err(StoreError::Damaged);
            };
            let quotas = texts.iter().map(|text| parse(text));
            Ok(QuotaRead {
                quotas: quotas.collect::<Result<_, _>>()?,
                at: time(seconds, micros),
            })
        })
    }

    fn write_quotas<'a>(
        &'a self,
        read_at: Timestamp,
        writes: &'a [QuotaWrite<'a>],
    ) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            let mut call = self.scripts.write.prepare_invoke();
            let max_age = u64::try_from(MAX_AGE.as_micros()).unwrap_or(u64::MAX);
            call.arg(read_at.as_nanos() / 1_000).arg(max_age);
            for write in writes {
                call.key(self.quota(write.id))
                    .arg(text(write.before))
                    .arg(text(&write.quota))
                    .arg(millis(write.expiry) + 1);
            }
            let written: u32 = self.run(&call).await?;
            Ok(written == 1)
        })
    }

    fn take<'a>(&'a self, charges: &'a [Charge<'a>]) -> StoreFuture<'a, StoreDecision> {
        Box::pin(async move {
            let judgement = Judgement::of(charges)?;
            let mut call = self.scripts.take.prepare_invoke();
            for id in judgement.ids() {
                call.key(self.quota(id));
            }
            call.arg(Self::arguments(&judgement));
            let answer = self.run(&call).await?;
            decided(&judgement, answer)
        })
    }

    fn take_many<'a>(
        &'a self,
        requests: &'a [&'a [Charge<'a>]],
    ) -> StoreFuture<'a, Vec<Result<StoreDecision, StoreError>>> {
        Box::pin(async move {
            let judgements = requests.iter().map(|charges| Judgement::of(charges));
            let judgements: Vec<_> = judgements.collect();
            let mut pipeline = Pipeline::new();
            // The server may have forgotten the script.
            pipeline.cmd("SCRIPT").arg("LOAD").arg(TAKE);
            for judgement in judgements.iter().flatten() {
                let ids = judgement.ids();
                let call = pipeline.cmd("EVALSHA").arg(self.scripts.take.get_hash());
                call.arg(ids.len());
                for id in ids {
                    call.arg(self.quota(id));
                }
                call.arg(Self::arguments(judgement));
            }
            pipeline.ignore_errors();
            let answers = self.connection.query_all(&pipeline).await;
            let answers: Vec<Result<Value, RedisError>> = answers.map_err(unanswered)?;
            let mut answers = answers.into_iter();
            // If the server does not keep the script, it does not know it below.
            let loaded = answers.next().ok_or(StoreError::Damaged)?;
            let loaded = loaded.map_err(|error| failed(&error));
            let decisions = judgements.into_iter().map(|judgement| {
                let judgement = judgement?;
                let answer = answers.next().ok_or(StoreError::Damaged)?;
                let answer = answer.map_err(|error| match (failed(&error), &loaded) {
                    (StoreError::Contended, Err(why)) => why.clone(),
                    (error, _) => error,
                })?;
                let answer = Vec::from_redis_value(answer).map_err(|_| StoreError::Damaged)?;
                decided(&judgement, answer)
            });
            Ok(decisions.collect())
        })
    }
}

fn counter_of(value: &str, expiry: i64) -> Result<Counter, StoreError> {
    let value = value.parse().map_err(|_| StoreError::Damaged)?;
    let expiry = u64::try_from(expiry).map_err(|_| StoreError::Damaged)?;
    Ok(Counter {
        value,
        expires_in: Some(Duration::from_millis(expiry)),
    })
}

impl fmt::Debug for RedisCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisCounters")
            .field("connection", &self.connection)
            .finish_non_exhaustive()
    }
}
