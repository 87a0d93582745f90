//! A counter store on a Redis server, which the tests start on a free port of this host.

#[path = "support/limits.rs"]
mod limits;
#[path = "support/server.rs"]
mod server;

use core::sync::atomic::{AtomicU64, Ordering::SeqCst};
use core::time::Duration;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use limits::{ByWrites, Grants, Plain, bucket, windows};
use portcullis_core::{Clock, ManualClock, MonotonicClock, Timestamp};
use portcullis_counters::{
    Charge, Counter, CounterLimit, CounterStore, GuardSettings, GuardedStore, MemoryCounters,
    OnFailure, QuotaState, QuotaWrite, RedisCounters, RedisSettings, StoreError,
};
use server::Server;
use tokio::runtime::{Builder, Runtime};

const SECOND: Duration = Duration::from_secs(1);

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Runs a test with a server.
fn with_server<F: Future<Output = ()>>(test: impl FnOnce(Arc<Server>) -> F) {
    if let Some(server) = Server::start() {
        runtime().block_on(test(Arc::new(server)));
    }
}

/// Pseudo-random numbers: `SplitMix64`.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }

    /// A limit whose permits return within milliseconds.
    fn limit(&mut self) -> Plain {
        if self.below(2) == 0 {
            Plain::Bucket {
                count: 1 + self.below(50),
                period: 1 + self.below(20_000),
                burst: 1 + self.below(20),
            }
        } else {
            Plain::Windows {
                count: 1 + self.below(20),
                length: 1 + self.below(5_000),
                segments: 1 + self.below(6),
            }
        }
    }
}

#[derive(Clone, Default)]
struct Time(Arc<ManualClock>);

impl Clock for Time {
    fn now(&self) -> Timestamp {
        self.0.now()
    }
}

/// By one script, by several in a pipeline, and by reading and writing.
#[test]
fn decisions_are_those_of_a_list_of_all_grants() {
    with_server(async |server| {
        let store = server.store();
        let by_writes = ByWrites::new(server.store(), |_| {});
        let (mut allowed, mut denied) = (0, 0);
        for seed in 0..40 {
            let mut random = Random(seed);
            let limits: Vec<_> = (0..=random.below(3)).map(|_| random.limit()).collect();
            let compiled: Vec<_> = limits.iter().map(|plain| plain.limit()).collect();
            let ids: Vec<_> = (0..3).map(|id| format!("{seed}:{id}")).collect();
            let mut grants: HashMap<usize, Grants> = HashMap::new();
            for _ in 0..40 {
                let mut request = || {
                    let each = (0..=random.below(2)).map(|_| {
                        let of = random.below(limits.len() as u64) as usize;
                        (of, random.below(6) as u32)
                    });
                    each.collect::<Vec<_>>()
                };
                let requests = [request(), request(), request()];
                let charges = requests.each_ref().map(|request| {
                    let each = request.iter();
                    let each = each.map(|&(of, n)| Charge::new(&ids[of], &compiled[of], n));
                    each.collect::<Vec<_>>()
                });
                let decisions = match random.below(3) {
                    0 => {
                        let all = charges.each_ref().map(|charges| &**charges);
                        store.take_many(&all).await.unwrap()
                    }
                    how => {
                        let mut decisions = Vec::new();
                        for charges in &charges {
                            decisions.push(if how == 1 {
                                store.take(charges).await
                            } else {
                                by_writes.take(charges).await
                            });
                        }
                        decisions
                    }
                };
                for (request, decision) in requests.iter().zip(decisions) {
                    let decision = decision.unwrap();
                    let now = decision.at().as_nanos() / 1_000;
                    let none = Grants::new();
                    let available = |grants: &HashMap<usize, Grants>, of: usize| {
                        limits[of].available(grants.get(&of).unwrap_or(&none), now)
                    };
                    let sum = |of: usize| {
                        let each = request.iter().filter(|(other, _)| *other == of);
                        each.map(|(_, n)| u64::from(*n)).sum::<u64>().max(1)
                    };
                    let denied_by = request
                        .iter()
                        .position(|&(of, _)| sum(of) > available(&grants, of));
                    assert_eq!(decision.denied_by(), denied_by, "seed {seed}: {limits:?}");
                    if denied_by.is_none() {
                        allowed += 1;
                        for &(of, n) in request {
                            grants.entry(of).or_default().push((now, u64::from(n)));
                        }
                    } else {
                        denied += 1;
                    }
                    let left = decision.left().iter().map(|left| left.available);
                    assert!(left.eq(request.iter().map(|&(of, _)| available(&grants, of))));
                }
                tokio::time::sleep(Duration::from_micros(random.below(2_000))).await;
            }
        }
        assert!(allowed > 500 && denied > 500, "{allowed}, {denied}");
    });
}

/// Also if the limits of an id change.
#[test]
fn the_script_decides_as_the_store_in_memory() {
    with_server(async |server| {
        let store = server.store();
        let time = Time::default();
        let memory = MemoryCounters::new(10_000, time.clone());
        let mut random = Random(7);
        let (mut allowed, mut denied) = (0, 0);
        for round in 0..300 {
            // Limits that are never full again in this test: the server keeps a quota up to 2 ms
            // longer, and a new limit would still see it.
            let changes = round % 2 == 0;
            let limit = |random: &mut Random| match random.limit() {
                plain if !changes => plain.limit(),
                plain => plain.slower(1_000_000).limit(),
            };
            let mut limits = [(); 3].map(|()| limit(&mut random));
            let ids = [0, 1, 2].map(|id| format!("{round}:{id}"));
            for step in 0..20 {
                if changes && random.below(3) == 0 {
                    limits[random.below(3) as usize] = limit(&mut random);
                }
                let mut charge = |of: usize| {
                    let of = of % 3;
                    Charge::new(&ids[of], &limits[of], random.below(6) as u32)
                };
                let charges = [charge(step), charge(step + 1)];
                let charges = &charges[..=step % 2];
                let decision = store.take(charges).await.unwrap();
                time.0.set(decision.at());
                let expected = memory.take(charges).await.unwrap();
                assert_eq!(
                    decision, expected,
                    "round {round}, step {step}: {charges:?}"
                );
                allowed += u32::from(decision.is_allowed());
                denied += u32::from(!decision.is_allowed());
            }
        }
        assert!(allowed > 500 && denied > 500, "{allowed}, {denied}");
    });
}

#[test]
fn every_key_expires_and_none_is_left() {
    with_server(async |server| {
        let store = server.store();
        let (bucket, window) = (
            bucket(100, SECOND, 20),
            windows(20, Duration::from_millis(200), 4),
        );
        let by_writes = ByWrites::new(server.store(), |_| {});
        for id in 0..50 {
            let ids = [format!("{id}a"), format!("{id}b"), format!("{id}c")];
            let charges = [
                Charge::new(&ids[0], &bucket, 20),
                Charge::new(&ids[1], &window, 3),
            ];
            assert!(store.take(&charges).await.unwrap().is_allowed());
            let written = [Charge::new(&ids[2], &bucket, 7)];
            assert!(by_writes.take(&written).await.unwrap().is_allowed());
            let add = store.increment_and_get(&ids[0], Duration::from_millis(150), 1);
            assert_eq!(add.await.unwrap().value, 1);
            let probe = [Charge::new("probe", &bucket, 0)];
            assert!(store.take(&probe).await.unwrap().is_allowed());
        }
        let keys: Vec<String> = server.ask(&["KEYS", "*"]).await;
        assert!(!keys.is_empty() && !keys.iter().any(|key| key.contains("probe")));
        for key in &keys {
            let left: i64 = server.ask(&["PTTL", key]).await;
            // -2: it has expired in the meantime.
            assert!((0..=252).contains(&left) || left == -2, "{key}: {left} ms");
        }
        tokio::time::sleep(Duration::from_millis(260)).await;
        for key in &keys {
            let exists: u32 = server.ask(&["EXISTS", key]).await;
            assert_eq!(exists, 0, "{key}");
        }
    });
}

#[test]
fn a_counter_exists_until_its_first_expiry() {
    with_server(async |server| {
        let store = server.store();
        let add = |id, expiry, delta| store.increment_and_get(id, expiry, delta);
        assert_eq!(store.get("a").await, Ok(Counter::default()));
        let first = add("a", 100 * SECOND, 5).await.unwrap();
        assert_eq!(first.value, 5);
        let second = add("a", SECOND, -7).await.unwrap();
        assert_eq!(second.value, -2);
        assert!(second.expires_in.unwrap() > 90 * SECOND, "keeps its expiry");
        let largest = add("b", SECOND, i64::MAX).await.unwrap();
        assert_eq!(largest.value, i64::MAX);
        assert_eq!(add("b", SECOND, 1).await, Err(StoreError::Overflow));
        let all = store.get_many(&["c", "b", "a"]).await.unwrap();
        let values: Vec<_> = all.iter().map(|counter| counter.value).collect();
        assert_eq!(values, [0, i64::MAX, -2]);
        assert_eq!(all[0].expires_in, None);
        let short = add("d", Duration::ZERO, 3).await.unwrap();
        assert!(short.expires_in.unwrap() <= Duration::from_millis(1));
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert_eq!(store.get("d").await, Ok(Counter::default()));
    });
}

#[test]
fn what_is_not_of_the_store_is_an_error() {
    with_server(async |server| {
        let store = RedisCounters::new(&server.settings().prefix("p:")).unwrap();
        let limit = bucket(10, SECOND, 10);
        let charge = [Charge::new("a", &limit, 1)];
        for text in ["x", "1 2", "0 0 0 0", "0 5 -1 3", "2 5 0 1", "65 1 0"] {
            let () = server.ask(&["SET", "p:q:a", text]).await;
            assert_eq!(
                store.take(&charge).await,
                Err(StoreError::Damaged),
                "{text}"
            );
            let several = store.take_many(&[&charge]).await.unwrap();
            assert_eq!(several, [Err(StoreError::Damaged)]);
        }
        let () = server.ask(&["SET", "p:c:a", "x"]).await;
        let add = store.increment_and_get("a", SECOND, 1).await;
        assert_eq!(add, Err(StoreError::Damaged));
        // Another prefix is another store.
        assert!(server.store().take(&charge).await.unwrap().is_allowed());
    });
}

#[test]
fn a_write_applies_only_to_what_was_read_not_long_ago() {
    with_server(async |server| {
        let store = server.store();
        let ids = ["a", "b"];
        let quota = |used| QuotaState::from(vec![0, 5, 7, used]);
        let read = store.read_quotas(&ids).await.unwrap();
        assert_eq!(read.quotas, [QuotaState::default(), QuotaState::default()]);
        let write = async |before: &[QuotaState], used, at| {
            let writes = ids
                .iter()
                .zip(before)
                .map(|(id, before)| QuotaWrite::new(id, before, quota(used), 100 * SECOND));
            store.write_quotas(at, &writes.collect::<Vec<_>>()).await
        };
        let old = read.at.saturating_sub(Duration::from_millis(1_001));
        assert_eq!(write(&read.quotas, 1, old).await, Ok(false));
        assert_eq!(write(&read.quotas, 1, read.at).await, Ok(true));
        // The second quota is another one now.
        let before = [quota(1), QuotaState::default()];
        assert_eq!(write(&before, 2, read.at).await, Ok(false));
        let after = store.read_quotas(&ids).await.unwrap();
        assert_eq!(after.quotas, [quota(1), quota(1)], "nothing was written");
        assert!(after.at > read.at);
    });
}

/// Each thread has a runtime and a connection of its own, as a process has.
#[test]
fn callers_together_are_decided_as_by_one_bucket() {
    let Some(server) = Server::start() else {
        return;
    };
    let limit = bucket(200, SECOND, 400);
    let all = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for number in 0..4 {
            let (server, limit, all) = (&server, &limit, &all);
            scope.spawn(move || {
                runtime().block_on(async {
                    let store = server.store();
                    let charge = [Charge::new("one", limit, 1)];
                    let begun = Instant::now();
                    while begun.elapsed() < SECOND {
                        let decisions = if number % 2 == 0 {
                            vec![store.take(&charge).await]
                        } else {
                            store.take_many(&[&charge, &charge]).await.unwrap()
                        };
                        let decisions = decisions.into_iter().map(Result::unwrap);
                        let told = decisions.map(|one| (one.at().as_nanos(), one.is_allowed()));
                        all.lock().unwrap().extend(told);
                    }
                });
            });
        }
    });
    let mut all = all.into_inner().unwrap();
    // The server decides one after the other. At one time it grants before it denies.
    all.sort_by_key(|&(at, is_allowed)| (at, !is_allowed));
    // The bucket that they share, in nanopermits.
    let permit = 1_000_000_000;
    let (mut left, mut before) = (400 * permit, all[0].0);
    for (at, is_allowed) in all {
        left = (left + (at - before) * 200).min(400 * permit);
        before = at;
        assert_eq!(is_allowed, left >= permit, "{left} left at {at}");
        left -= if is_allowed { permit } else { 0 };
    }
}

#[test]
fn a_server_that_is_paused_or_gone_is_unavailable_within_the_time_limit() {
    let Some(mut server) = Server::start() else {
        return;
    };
    runtime().block_on(async {
        let limit = bucket(1, 3_600 * SECOND, 10);
        let charge = [Charge::new("a", &limit, 1)];
        let time_limit = Duration::from_millis(100);
        let store = RedisCounters::new(&server.settings().time_limit(time_limit)).unwrap();
        let left = |decision: &portcullis_counters::StoreDecision| decision.left()[0].available;
        assert_eq!(left(&store.take(&charge).await.unwrap()), 9);
        let unavailable = async || {
            let begun = Instant::now();
            let failed = store.take(&charge).await;
            assert!(
                matches!(failed, Err(StoreError::Unavailable(_))),
                "{failed:?}"
            );
            let several = store.take_many(&[&charge]).await;
            assert!(
                matches!(several, Err(StoreError::Unavailable(_))),
                "{several:?}"
            );
            let took = begun.elapsed();
            assert!(took < 4 * time_limit, "{took:?}");
        };
        // Calls again until the server answers.
        let answer = async || {
            let begun = Instant::now();
            loop {
                match store.take(&charge).await {
                    Ok(decision) => return decision,
                    Err(error) => assert!(begun.elapsed() < 20 * SECOND, "{error}"),
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };

        server.signal("-STOP");
        unavailable().await;
        server.signal("-CONT");
        // What was sent while the server was paused has been done or not: at most 2 requests.
        let after_pause = left(&answer().await);
        assert!((6..=8).contains(&after_pause), "{after_pause}");

        server.stop();
        unavailable().await;
        server = Server::start_on(server.port).unwrap();
        // The new server knows neither the quotas nor the scripts.
        assert_eq!(left(&answer().await), 9);
        let several = store.take_many(&[&charge, &charge]).await.unwrap();
        let last = several[1].as_ref().unwrap();
        assert_eq!(left(last), 7);
    });
}

/// The client of Redis keeps the error of its last attempt for the next call.
#[test]
fn the_first_call_after_an_idle_outage_is_answered() {
    let Some(mut server) = Server::start() else {
        return;
    };
    runtime().block_on(async {
        let limit = bucket(1, 3_600 * SECOND, 10);
        let charge = [Charge::new("a", &limit, 1)];
        let milli = Duration::from_millis(1);
        let settings = server.settings().reconnect_delay(milli);
        let store = RedisCounters::new(&settings.time_limit(500 * milli)).unwrap();
        store.take(&charge).await.unwrap();
        for calls in 1..=3 {
            server.stop();
            for _ in 0..calls {
                let failed = store.take(&charge).await;
                assert!(
                    matches!(failed, Err(StoreError::Unavailable(_))),
                    "{failed:?}"
                );
            }
            // The attempts in the background end.
            tokio::time::sleep(500 * milli).await;
            server = Server::start_on(server.port).unwrap();
            let answered = store.take(&charge).await;
            assert!(answered.is_ok(), "after {calls} calls: {answered:?}");
        }
    });
}

/// A server accepts a password from a time on, and the connection that was refused is used then.
#[test]
fn a_wrong_password_is_named_and_a_mended_one_is_taken() {
    let Some(server) = Server::start() else {
        return;
    };
    runtime().block_on(async {
        let time_limit = Duration::from_millis(400);
        let url = format!("redis://:secret@127.0.0.1:{}/", server.port);
        let store = RedisCounters::new(&RedisSettings::new(&url).time_limit(time_limit)).unwrap();
        let _: String = server.ask(&["CONFIG", "SET", "requirepass", "other"]).await;
        let limit = bucket(1, 3_600 * SECOND, 10);
        let charge = [Charge::new("a", &limit, 1)];
        // The client tries several times, and gives up.
        for _ in 0..4 {
            let error = store.take(&charge).await.unwrap_err();
            assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
            let text = error.to_string();
            let address = format!("no connection to 127.0.0.1:{}: ", server.port);
            assert!(
                text.contains(&address) && text.contains("authentication"),
                "{text}"
            );
            assert!(!text.contains("secret"), "{text}");
        }
        let client = redis::Client::open(format!("redis://:other@127.0.0.1:{}/", server.port));
        let mut other = client
            .unwrap()
            .get_multiplexed_async_connection()
            .await
            .unwrap();
        let mut mend = redis::cmd("CONFIG");
        mend.arg(&["SET", "requirepass", "secret"]);
        let _: String = mend.query_async(&mut other).await.unwrap();
        let begun = Instant::now();
        while let Err(error) = store.take(&charge).await {
            assert!(begun.elapsed() < 20 * SECOND, "{error}");
        }
    });
}

/// The server forgets its scripts.
#[test]
fn a_script_that_was_forgotten_is_sent_again() {
    with_server(async |server| {
        let store = server.store();
        let limit: CounterLimit = windows(9, 3_600 * SECOND, 1);
        let charge = [Charge::new("a", &limit, 1)];
        for taken in [2, 4] {
            let () = server.ask(&["SCRIPT", "FLUSH"]).await;
            assert!(store.take(&charge).await.unwrap().is_allowed());
            let () = server.ask(&["SCRIPT", "FLUSH"]).await;
            let several = store.take_many(&[&charge]).await.unwrap();
            let last = several[0].as_ref().unwrap();
            assert_eq!(last.left()[0].available, 9 - taken);
        }
    });
}

/// A guarded store that allows while the server is away, for a user of the server.
fn allowing(server: &Server, user: &str) -> GuardedStore<RedisCounters, MonotonicClock> {
    let url = format!("redis://{user}127.0.0.1:{}/", server.port);
    let store = RedisCounters::new(&RedisSettings::new(&url).time_limit(5 * SECOND)).unwrap();
    let settings = GuardSettings::new(OnFailure::Allow).pauses(SECOND, SECOND);
    GuardedStore::new(store, MonotonicClock::new(), settings)
}

/// Asks for `bad`, which the server answers with an error, in turn with a limit of 2: by itself,
/// and with it in one call. Returns the last error.
async fn opens_nothing<C: Clock + Send + Sync>(
    guarded: &GuardedStore<RedisCounters, C>,
    bad: &[Charge<'_>],
) -> StoreError {
    let limit = windows(2, 3_600 * SECOND, 1);
    let good = [Charge::new("good", &limit, 1)];
    let mut granted = 0;
    for _ in 0..20 {
        let _its_own = guarded.take(bad).await;
        let both = guarded.take_many(&[bad, &good]).await.unwrap();
        granted += u32::from(both[1].as_ref().unwrap().is_allowed());
        granted += u32::from(guarded.take(&good).await.unwrap().is_allowed());
        assert!(!guarded.is_down());
    }
    assert_eq!(granted, 2);
    let many = guarded.store().take_many(&[bad]).await.unwrap().remove(0);
    let error = guarded.store().take(bad).await.unwrap_err();
    assert_eq!(many.unwrap_err().fault(), error.fault());
    error
}

/// With a real answer of each kind, although the store allows everything while a server is away.
#[test]
fn an_error_that_the_server_gives_to_one_request_opens_no_other_limit() {
    with_server(async |server| {
        let limit = windows(2, 3_600 * SECOND, 1);
        let bad = [Charge::new("bad", &limit, 1)];
        // A key of another program.
        let () = server.ask(&["RPUSH", "portcullis:q:bad", "x"]).await;
        let error = opens_nothing(&allowing(&server, ""), &bad).await;
        assert_eq!(error, StoreError::Damaged);
        let () = server
            .ask(&["DEL", "portcullis:q:bad", "portcullis:q:good"])
            .await;
        // A user who may write other keys.
        let own = [
            "ACL",
            "SETUSER",
            "own",
            "on",
            ">pass",
            "+@all",
            "~portcullis:q:good",
        ];
        let () = server.ask(&own).await;
        let error = opens_nothing(&allowing(&server, "own:pass@"), &bad).await;
        assert!(
            matches!(&error, StoreError::Refused(why) if why.contains("ermission")),
            "{error}"
        );
        let () = server.ask(&["DEL", "portcullis:q:good"]).await;
        // An id says nothing about the error.
        let named = [Charge::new(
            "WRONGTYPE DAMAGED would overflow OOM",
            &limit,
            1,
        )];
        let error = opens_nothing(&allowing(&server, "own:pass@"), &named).await;
        assert!(matches!(error, StoreError::Refused(_)), "{error}");

        // A user who may not load scripts, of a server that has forgotten them.
        let loads = [
            "ACL",
            "SETUSER",
            "plain",
            "on",
            ">pass",
            "+@all",
            "~*",
            "-script|load",
        ];
        let () = server.ask(&loads).await;
        let () = server.ask(&["SCRIPT", "FLUSH"]).await;
        let plain = allowing(&server, "plain:pass@");
        let several = plain.store().take_many(&[&bad]).await.unwrap();
        let one = plain.store().take(&bad).await;
        for refused in [several[0].clone(), one] {
            assert!(
                matches!(refused, Err(StoreError::Refused(_))),
                "{refused:?}"
            );
        }
    });
}

/// Scripts that vanish between two commands.
#[test]
fn a_script_that_is_forgotten_all_the_time_is_no_outage() {
    with_server(async |server| {
        let store = server.store();
        let limit = windows(2_000_000, 3_600 * SECOND, 1);
        let charge = [Charge::new("a", &limit, 1)];
        let client = redis::Client::open(format!("redis://127.0.0.1:{}/", server.port)).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        let mut flushes = redis::pipe();
        for _ in 0..200 {
            flushes.cmd("SCRIPT").arg("FLUSH").ignore();
        }
        let done = AtomicU64::new(0);
        let forgets = async {
            while done.load(SeqCst) == 0 {
                let () = flushes.query_async(&mut connection).await.unwrap();
            }
        };
        let takes = async {
            let begun = Instant::now();
            let mut forgotten = 0;
            while forgotten == 0 && begun.elapsed() < 20 * SECOND {
                let several = store.take_many(&[&charge, &charge]).await.unwrap();
                for answer in [store.take(&charge).await].into_iter().chain(several) {
                    match answer {
                        Ok(decision) => assert!(decision.is_allowed()),
                        Err(error) => {
                            assert_eq!(error, StoreError::Contended);
                            forgotten += 1;
                        }
                    }
                }
            }
            done.store(1, SeqCst);
            forgotten
        };
        let ((), forgotten) = tokio::join!(forgets, takes);
        assert_ne!(forgotten, 0, "the scripts vanish too seldom");
    });
}

#[test]
fn ids_in_several_slots_of_a_cluster_are_refused_and_open_no_other_limit() {
    let bus = Server::free_port().to_string();
    let file = std::env::temp_dir().join(format!("portcullis-nodes-{bus}.conf"));
    let file = file.to_str().unwrap();
    let cluster = [
        "--cluster-enabled",
        "yes",
        "--cluster-port",
        &bus,
        "--cluster-config-file",
        file,
    ];
    let Some(server) = Server::start_as(&cluster) else {
        return;
    };
    runtime().block_on(async {
        let slots = ["CLUSTER", "ADDSLOTSRANGE", "0", "16383"];
        let () = server.ask(&slots).await;
        let guarded = allowing(&server, "");
        let limit = windows(2, 3_600 * SECOND, 1);
        let good = [Charge::new("good", &limit, 0)];
        // It takes a moment until the cluster is one: until then it serves no caller.
        while let Err(error) = guarded.store().take(&good).await {
            assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let bad = [Charge::new("a", &limit, 1), Charge::new("b", &limit, 1)];
        let error = opens_nothing(&guarded, &bad).await;
        assert!(matches!(error, StoreError::Refused(_)), "{error}");
        let together = [
            Charge::new("{a}0", &limit, 1),
            Charge::new("{a}1", &limit, 1),
        ];
        assert!(guarded.take(&together).await.unwrap().is_allowed());
    });
    drop(server);
    let _ = std::fs::remove_file(file);
}

/// What the server says to everybody is an outage, although it answers.
#[test]
fn a_server_that_serves_no_caller_is_unavailable() {
    with_server(async |server| {
        let store = RedisCounters::new(&server.settings()).unwrap();
        let limit = windows(2, 3_600 * SECOND, 1);
        let charge = [Charge::new("a", &limit, 1)];
        let unavailable = async |what: &str| {
            let several = store.take_many(&[&charge]).await.unwrap().remove(0);
            for refused in [store.take(&charge).await, several] {
                let why = format!("{what}: {refused:?}");
                assert!(matches!(refused, Err(StoreError::Unavailable(_))), "{why}");
            }
        };
        assert!(store.take(&charge).await.unwrap().is_allowed());
        let () = server.ask(&["CONFIG", "SET", "maxmemory", "1"]).await;
        unavailable("no memory").await;
        let () = server.ask(&["CONFIG", "SET", "maxmemory", "0"]).await;

        let elsewhere = Server::free_port().to_string();
        let () = server.ask(&["REPLICAOF", "127.0.0.1", &elsewhere]).await;
        unavailable("a replica").await;
        let () = server.ask(&["REPLICAOF", "NO", "ONE"]).await;

        let () = server
            .ask(&["CONFIG", "SET", "min-replicas-to-write", "1"])
            .await;
        unavailable("too few replicas").await;
        let () = server
            .ask(&["CONFIG", "SET", "min-replicas-to-write", "0"])
            .await;

        let () = server.ask(&["CONFIG", "SET", "lua-time-limit", "1"]).await;
        let client = redis::Client::open(format!("redis://127.0.0.1:{}/", server.port)).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        let endless = tokio::spawn(async move {
            let mut script = redis::cmd("EVAL");
            script.arg("while true do end").arg(0);
            let ended: Result<(), _> = script.query_async(&mut connection).await;
            ended
        });
        tokio::time::sleep(Duration::from_millis(100)).await;
        unavailable("a script that does not end").await;
        let () = server.ask(&["SCRIPT", "KILL"]).await;
        assert!(endless.await.unwrap().is_err());

        assert!(store.take(&charge).await.unwrap().is_allowed());
        assert!(!store.take(&charge).await.unwrap().is_allowed());
        let wrong = RedisSettings::new(&format!("redis://no:body@127.0.0.1:{}/", server.port));
        let wrong = RedisCounters::new(&wrong).unwrap().take(&charge).await;
        assert!(
            matches!(wrong, Err(StoreError::Unavailable(_))),
            "{wrong:?}"
        );
    });
}

#[test]
fn a_server_that_forgets_when_its_memory_is_full_says_so() {
    with_server(async |server| {
        let store = server.store();
        let set = async |name: &str, value: &str| {
            let () = server.ask(&["CONFIG", "SET", name, value]).await;
        };
        assert_eq!(store.eviction().await, Ok(None), "it has no bound");
        set("maxmemory", "100mb").await;
        assert_eq!(store.eviction().await, Ok(None), "it refuses writes");
        for policy in ["allkeys-lru", "volatile-ttl"] {
            set("maxmemory-policy", policy).await;
            assert_eq!(store.eviction().await, Ok(Some(policy.into())));
        }
        set("maxmemory", "0").await;
        assert_eq!(store.eviction().await, Ok(None));
        let () = server.ask(&["ACL", "SETUSER", "default", "-info"]).await;
        assert!(matches!(
            store.eviction().await,
            Err(StoreError::Refused(_))
        ));
    });
}

/// What another program writes is no more than damage.
#[test]
fn numbers_that_no_store_writes_grant_no_more_than_the_limit() {
    with_server(async |server| {
        let store = RedisCounters::new(&server.settings().prefix("p:")).unwrap();
        let limits = [
            bucket(10, 3_600 * SECOND, 10),
            windows(10, 3_600 * SECOND, 2),
        ];
        let huge = "9".repeat(400);
        let beyond = "9007199254740993";
        for limit in &limits {
            let charge = [Charge::new("a", limit, 1)];
            let () = server.ask(&["DEL", "p:q:a"]).await;
            assert!(store.take(&charge).await.unwrap().is_allowed());
            let text: String = server.ask(&["GET", "p:q:a"]).await;
            for number in [huge.as_str(), beyond, "18446744073709551616"] {
                for place in 0..text.split(' ').count() {
                    let mut numbers: Vec<_> = text.split(' ').collect();
                    numbers[place] = number;
                    let () = server.ask(&["SET", "p:q:a", &numbers.join(" ")]).await;
                    let mut granted = 0;
                    for _ in 0..12 {
                        match store.take(&charge).await {
                            Ok(taken) => granted += usize::from(taken.is_allowed()),
                            Err(error) => assert_eq!(error, StoreError::Damaged, "{numbers:?}"),
                        }
                    }
                    assert!(granted <= 10, "{limit:?}: {numbers:?}: {granted} granted");
                }
            }
        }
    });
}

/// Ids are bytes to the server: none is that of another, and none is a command.
#[test]
fn ids_may_have_any_characters() {
    with_server(async |server| {
        let store = server.store();
        let limit = windows(1, 3_600 * SECOND, 1);
        let long = "x".repeat(100_000);
        let ids = [
            "",
            " ",
            "a b",
            "a\nb",
            "a\r\nb",
            "a\0b",
            "{a}",
            "a{",
            "a:",
            "*3\r\n$3\r\nSET",
            "ä",
            "\u{1f680}",
            "[a-z]*",
            "\\",
            "\"",
            "'",
            &long,
        ];
        for id in ids {
            let charge = [Charge::new(id, &limit, 1)];
            assert!(store.take(&charge).await.unwrap().is_allowed(), "{id:?}");
            assert!(!store.take(&charge).await.unwrap().is_allowed(), "{id:?}");
        }
        let huge = [Charge::new("huge", &limit, u32::MAX)];
        assert!(!store.take(&huge).await.unwrap().is_allowed());
        let none = [Charge::new("none", &limit, 0)];
        assert!(store.take(&none).await.unwrap().is_allowed());
    });
}

/// A server that may use no more memory refuses writes, or forgets keys.
#[test]
fn a_server_without_memory_grants_nothing_unless_it_forgets() {
    with_server(async |server| {
        let store = server.store();
        let limit = windows(5, 3_600 * SECOND, 1);
        let charge = [Charge::new("a", &limit, 1)];
        assert!(store.take(&charge).await.unwrap().is_allowed());
        let () = server
            .ask(&["CONFIG", "SET", "maxmemory-policy", "noeviction"])
            .await;
        let () = server.ask(&["CONFIG", "SET", "maxmemory", "1"]).await;
        for _ in 0..9 {
            let refused = store.take(&charge).await;
            assert!(refused.is_err(), "{refused:?}");
            let add = store.increment_and_get("b", SECOND, 1).await;
            assert!(add.is_err(), "{add:?}");
        }
        let () = server.ask(&["CONFIG", "SET", "maxmemory", "0"]).await;
        let mut granted = 1;
        while store.take(&charge).await.unwrap().is_allowed() {
            granted += 1;
        }
        assert_eq!(granted, 5, "what was refused took nothing");
    });
}
