//! What a decision on a Redis server costs, beside the scripts that others publish, on the same
//! server and with the same client. Prints the table of `docs/benchmarks.md`.

use core::time::Duration;
use std::time::Instant;

use portcullis_core::MonotonicClock;
use portcullis_counters::{
    CacheSettings, CachedStore, Charge, CounterLimit, CounterStore, RedisCounters, StoreDecision,
    StoreError,
};
use redis::aio::MultiplexedConnection;
use redis::{Script, pipe};
use tokio::runtime::Builder;

#[allow(dead_code, reason = "tests that include this module use a part of it")]
#[path = "support/limits.rs"]
mod limits;
#[allow(dead_code, reason = "tests that include this module use a part of it")]
#[path = "support/server.rs"]
mod server;

use limits::{bucket, windows};
use server::Server;

const SECOND: Duration = Duration::from_secs(1);

/// The generic cell rate algorithm in a script, as `redis_rate` computes it: one instant, in
/// floating-point seconds. `KEYS`: the key. `ARGV`: burst, permits per second, cost.
const GCRA: &str = "
local burst, rate, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local interval = 1 / rate
local time = redis.call('TIME')
local now = (time[1] - 1483228800) + time[2] / 1000000
local tat = redis.call('GET', KEYS[1])
tat = math.max(tonumber(tat or now), now)
local new_tat = tat + interval * cost
local diff = now - (new_tat - interval * burst)
local remaining = diff / interval
if remaining < 0 then
    return { 0, 0, tostring(-diff), tostring(tat - now) }
end
local reset = new_tat - now
if reset > 0 then
    redis.call('SET', KEYS[1], new_tat, 'EX', math.ceil(reset))
end
return { cost, remaining, '-1', tostring(reset) }";

/// What is measured, one decision after another.
enum Contestant {
    /// A fixed window: `INCRBY` and `EXPIRE` in one round trip, as envoyproxy/ratelimit does.
    Increment(MultiplexedConnection),
    Gcra(MultiplexedConnection, Script),
    Store(Box<dyn CounterStore>, CounterLimit),
    /// Sixteen requests in one call.
    Several(RedisCounters, CounterLimit),
    /// Two limits at once.
    Both(RedisCounters, [CounterLimit; 2]),
}

impl Contestant {
    /// Makes `n` decisions. Returns how many were allowed.
    async fn decide(&mut self, n: usize) -> usize {
        let mut allowed = 0;
        match self {
            Self::Increment(connection) => {
                for _ in 0..n {
                    let mut both = pipe();
                    both.cmd("INCRBY").arg("window").arg(1);
                    both.cmd("EXPIRE").arg("window").arg(3_600).ignore();
                    let (count,): (u64,) = both.query_async(connection).await.unwrap();
                    allowed += usize::from(count <= 1 << 40);
                }
            }
            Self::Gcra(connection, script) => {
                for _ in 0..n {
                    let mut call = script.key("gcra");
                    call.arg(1_000_000).arg(1_000_000).arg(1);
                    let answer: (u64, i64, String, String) =
                        call.invoke_async(connection).await.unwrap();
                    allowed += answer.0 as usize;
                }
            }
            Self::Store(store, limit) => {
                let charge = [Charge::new("one", limit, 1)];
                for _ in 0..n {
                    allowed += is_allowed(store.take(&charge).await);
                }
            }
            Self::Several(store, limit) => {
                let charge = [Charge::new("several", limit, 1)];
                let requests: [&[Charge<'_>]; 16] = [&charge; 16];
                for _ in 0..n / 16 {
                    let decisions = store.take_many(&requests).await.unwrap();
                    allowed += decisions.into_iter().map(is_allowed).sum::<usize>();
                }
            }
            Self::Both(store, limits) => {
                let charges = [
                    Charge::new("second", &limits[0], 1),
                    Charge::new("day", &limits[1], 1),
                ];
                for _ in 0..n {
                    allowed += is_allowed(store.take(&charges).await);
                }
            }
        }
        allowed
    }
}

fn is_allowed(decision: Result<StoreDecision, StoreError>) -> usize {
    decision.unwrap().is_allowed().into()
}

/// One round of a contestant.
#[derive(Clone, Copy)]
struct Round {
    /// Microseconds for a decision: in all, and of the server for commands.
    micros: f64,
    of_server: f64,
    /// Commands from the client for a decision, and all commands with those of scripts.
    sent: f64,
    commands: f64,
}

/// Decisions of a round, a multiple of 16.
const DECISIONS: u32 = 800;

async fn round(server: &Server, contestant: &mut Contestant, allows: bool) -> Round {
    let () = server.ask(&["CONFIG", "RESETSTAT"]).await;
    let begun = Instant::now();
    let allowed = contestant.decide(DECISIONS as usize).await;
    let micros = begun.elapsed().as_secs_f64() * 1e6;
    assert_eq!(allowed, if allows { DECISIONS as usize } else { 0 });
    let stats: String = server.ask(&["INFO", "commandstats"]).await;
    let (mut calls, mut sent, mut of_server) = (0.0, 0.0, 0.0);
    for line in stats.lines() {
        let Some((name, numbers)) = line
            .strip_prefix("cmdstat_")
            .and_then(|l| l.split_once(':'))
        else {
            continue;
        };
        // The measurement's own, and the greeting of a connection.
        if name.starts_with("config") || name.starts_with("client") || name == "info" {
            continue;
        }
        let number = |name: &str| -> f64 {
            let mut all = numbers.split(',').filter_map(|pair| pair.split_once('='));
            all.find(|(key, _)| *key == name)
                .unwrap()
                .1
                .parse()
                .unwrap()
        };
        calls += number("calls");
        if ["evalsha", "eval", "incrby", "expire", "script|load"].contains(&name) {
            sent += number("calls");
            of_server += number("usec");
        }
    }
    let n = f64::from(DECISIONS);
    Round {
        micros: micros / n,
        of_server: of_server / n,
        sent: sent / n,
        commands: calls / n,
    }
}

fn median(rounds: &[Round], of: impl Fn(&Round) -> f64) -> f64 {
    let mut all: Vec<f64> = rounds.iter().map(of).collect();
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

#[test]
#[ignore = "measures"]
fn costs_of_a_decision() {
    let Some(server) = Server::start() else {
        return;
    };
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let url = format!("redis://127.0.0.1:{}/", server.port);
        let client = redis::Client::open(url).unwrap();
        let connection = client.get_multiplexed_async_connection().await.unwrap();
        let million = bucket(1_000_000, SECOND, 1_000_000);
        let window = windows(1 << 30, 3_600 * SECOND, 1);
        let sliding = windows(1 << 30, 3_600 * SECOND, 8);
        let spent = windows(1, 86_400 * SECOND, 1);
        let store = |prefix: &str| {
            let store = RedisCounters::new(&server.settings().prefix(prefix));
            store.unwrap()
        };
        let cached = |prefix| -> Box<dyn CounterStore> {
            let settings = CacheSettings::new();
            Box::new(CachedStore::new(
                store(prefix),
                MonotonicClock::new(),
                settings,
            ))
        };
        for (prefix, denied) in [("d:", &spent), ("e:", &spent)] {
            let store = store(prefix);
            let all = [Charge::new("one", denied, 1)];
            assert!(store.take(&all).await.unwrap().is_allowed());
        }
        let on = |prefix, limit: &CounterLimit| -> Contestant {
            Contestant::Store(Box::new(store(prefix)), limit.clone())
        };
        let mut all = [
            (
                "`INCRBY` and `EXPIRE`, fixed window",
                true,
                Contestant::Increment(connection.clone()),
            ),
            (
                "GCRA script",
                true,
                Contestant::Gcra(connection, Script::new(GCRA)),
            ),
            ("`RedisCounters`, token bucket", true, on("a:", &million)),
            ("`RedisCounters`, fixed window", true, on("b:", &window)),
            (
                "`RedisCounters`, sliding window of 8",
                true,
                on("c:", &sliding),
            ),
            (
                "`RedisCounters`, token bucket and window, all or nothing",
                true,
                Contestant::Both(store("f:"), [million.clone(), window.clone()]),
            ),
            (
                "`RedisCounters`, 16 requests in one call",
                true,
                Contestant::Several(store("g:"), million.clone()),
            ),
            ("`RedisCounters`, denied", false, on("d:", &spent)),
            (
                "`CachedStore`, token bucket",
                true,
                Contestant::Store(cached("h:"), million.clone()),
            ),
            (
                "`CachedStore`, denied",
                false,
                Contestant::Store(cached("e:"), spent.clone()),
            ),
        ];
        let mut rounds: Vec<Vec<Round>> = all.iter().map(|_| Vec::new()).collect();
        for nth in 0..12 {
            for ((_, allows, contestant), rounds) in all.iter_mut().zip(&mut rounds) {
                let measured = round(&server, contestant, *allows).await;
                // The first round connects and sends the scripts.
                if nth > 0 {
                    rounds.push(measured);
                }
            }
        }
        println!("| decision | us | of `INCRBY` and `EXPIRE` | us on the server | sent | run |");
        println!("|---|---|---|---|---|---|");
        let first = median(&rounds[0], |round| round.micros);
        for ((name, ..), rounds) in all.iter().zip(&rounds) {
            let [micros, of_server] = [
                median(rounds, |round| round.micros),
                median(rounds, |round| round.of_server),
            ];
            let [sent, commands] = [
                median(rounds, |round| round.sent),
                median(rounds, |round| round.commands),
            ];
            println!(
                "| {name} | {micros:.1} | {:.2} | {of_server:.1} | {sent:.3} | {commands:.3} |",
                micros / first
            );
        }
    });
}
