//! Processes that share one limit on a Redis server, and what they do while it is paused or gone.

use core::sync::atomic::{AtomicU64, Ordering::SeqCst};
use core::time::Duration;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use portcullis_core::{Clock, ManualClock, MonotonicClock};
use portcullis_counters::{
    CacheSettings, CachedStore, Charge, CounterLimit, CounterStore, GuardSettings, GuardedStore,
    OnFailure, Origin, RedisChannel, RedisCounters, StoreEvent, SyncChannel,
};
use tokio::runtime::{Builder, Runtime};

#[allow(dead_code, reason = "tests that include this module use a part of it")]
#[path = "support/limits.rs"]
mod limits;
#[path = "support/server.rs"]
mod server;

use limits::{bucket, windows};
use server::Server;

const SECOND: Duration = Duration::from_secs(1);
const MILLI: Duration = Duration::from_millis(1);

/// A limit of four processes. Its burst lasts for a second in which no process runs.
const PER_SECOND: u64 = 500;
const BURST: u64 = 500;

/// The variable that tells a process of this test program what to do.
const ROLE: &str = "PORTCULLIS_REDIS_ROLE";

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// The present time of this host, which is also that of its server.
fn micros() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    now.as_micros() as u64
}

/// A process of the other tests: takes permits, and writes when each was granted.
#[test]
#[ignore = "a process of the other tests"]
fn child() {
    let role = std::env::var(ROLE).unwrap_or_default();
    let [how, choice, port, time, journal] = &role.split(' ').collect::<Vec<_>>()[..] else {
        return;
    };
    let time = Duration::from_secs(time.parse().unwrap());
    let mut journal = BufWriter::new(File::create(journal).unwrap());
    runtime().block_on(async {
        let settings = Server::settings_of(port.parse().unwrap()).time_limit(100 * MILLI);
        let store = RedisCounters::new(&settings).unwrap();
        let guard = GuardSettings::new(choice_of(choice)).pauses(20 * MILLI, 100 * MILLI);
        let store = GuardedStore::new(store, MonotonicClock::new(), guard);
        let store: Arc<dyn CounterStore> = if *how == "cached" {
            let cache = CacheSettings::new();
            let channel = Arc::new(RedisChannel::new(&settings).unwrap());
            let cached = CachedStore::new(store, MonotonicClock::new(), cache);
            Arc::new(cached.with_channel(channel))
        } else {
            Arc::new(store)
        };
        let limit = bucket(PER_SECOND, SECOND, BURST);
        let charge = [Charge::new("one", &limit, 1).synced(true)];
        let begun = Instant::now();
        while begun.elapsed() < time {
            let earliest = micros();
            let decision = store.take(&charge).await.unwrap();
            if decision.is_allowed() {
                journal.write_all(&earliest.to_le_bytes()).unwrap();
                journal.write_all(&micros().to_le_bytes()).unwrap();
                let is_fallback = !matches!(decision.origin(), Origin::Store | Origin::Cache);
                journal.write_all(&[is_fallback.into(); 8]).unwrap();
            }
            if !decision.is_allowed() || decision.origin() == Origin::Fallback {
                tokio::time::sleep(MILLI).await;
            }
        }
        // The tasks of the channel run only here.
        tokio::task::yield_now().await;
    });
    journal.flush().unwrap();
}

/// What processes do while the server does not answer.
const CHOICES: [&str; 3] = ["deny", "allow", "share"];

fn choice_of(name: &str) -> OnFailure {
    match name {
        "deny" => OnFailure::Deny,
        "allow" => OnFailure::Allow,
        "share" => OnFailure::Share { part: 1, whole: 4 },
        _ => panic!("{name}"),
    }
}

/// Four processes, which are killed if a test ends early.
struct Children(Vec<Child>);

impl Children {
    fn start(how: &str, choice: &str, port: u16, time: Duration, folder: &Folder) -> Self {
        let start = |number| {
            let journal = folder.journal(number);
            let seconds = time.as_secs();
            let role = format!("{how} {choice} {port} {seconds} {}", journal.display());
            let mut command = Command::new(std::env::current_exe().unwrap());
            command
                .args(["--exact", "child", "--ignored"])
                .env(ROLE, role);
            command.stdout(Stdio::null()).spawn().unwrap()
        };
        Self((0..4).map(start).collect())
    }

    fn finish(mut self) {
        for child in &mut self.0 {
            assert!(child.wait().unwrap().success());
        }
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ended = (child.kill(), child.wait());
        }
    }
}

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("portcullis-redis-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn journal(&self, number: usize) -> PathBuf {
        self.0.join(number.to_string())
    }

    /// When permits were granted: the earliest and the latest time of each. By the server, and by
    /// what processes do without it.
    fn grants(&self) -> [Vec<(u64, u64)>; 2] {
        let read = |path: &Path| fs::read(path).unwrap();
        let all = (0..4).map(|number| read(&self.journal(number)));
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
        let (mut by_server, mut without) = (Vec::new(), Vec::new());
        for record in all.flat_map(|bytes| bytes.as_chunks::<24>().0.to_vec()) {
            let grants = match record[16] {
                0 => &mut by_server,
                _ => &mut without,
            };
            grants.push((number(&record[..8]), number(&record[8..16])));
        }
        [by_server, without]
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _nothing_to_do = fs::remove_dir_all(&self.0);
    }
}

/// By how much the grants of some span of time exceed what comes in in it, in millionths of a
/// permit. Grants that need not lie in a span do not count, so a server that keeps the limit has at
/// most the burst.
fn most_above_rate(grants: &mut [(u64, u64)]) -> i128 {
    grants.sort_by_key(|&(_, latest)| latest);
    let came_in = |time: u64| i128::from(time) * i128::from(PER_SECOND);
    // The start of a span that contains all grants from the one with this index on.
    let mut starts: Vec<u64> = grants.iter().map(|&(earliest, _)| earliest).collect();
    for index in (1..starts.len()).rev() {
        starts[index - 1] = starts[index - 1].min(starts[index]);
    }
    let (mut lowest, mut most) = (i128::MAX, 0);
    for (before, (&start, &(_, latest))) in (0..).zip(starts.iter().zip(&*grants)) {
        lowest = lowest.min(before * 1_000_000 - came_in(start));
        most = most.max((before + 1) * 1_000_000 - came_in(latest) - lowest);
    }
    most
}

#[test]
fn a_journal_that_exceeds_a_limit_is_found() {
    // One permit comes in in 2,000 microseconds.
    let mut steady: Vec<_> = (0..100).map(|nth| (nth * 2_000, nth * 2_000)).collect();
    assert_eq!(most_above_rate(&mut steady), 1_000_000);
    let mut burst: Vec<_> = (0..7).map(|_| (50_000, 50_100)).collect();
    assert_eq!(most_above_rate(&mut burst), 7_000_000 - 50_000);
}

/// Four processes use a limit up. `pauses` the server again and again.
fn four_processes_share_a_limit(how: &str, time: Duration, pauses: bool, least: u64) {
    let Some(server) = Server::start() else {
        return;
    };
    let folder = Folder::new(&format!("{how}-{}-{pauses}", time.as_secs()));
    let children = Children::start(how, "deny", server.port, time, &folder);
    let begun = Instant::now();
    while pauses && begun.elapsed() < time {
        thread::sleep(500 * MILLI);
        server.signal("-STOP");
        thread::sleep(200 * MILLI);
        server.signal("-CONT");
    }
    children.finish();
    let calls: String = runtime().block_on(server.ask(&["INFO", "commandstats"]));
    let evals = calls.lines().find_map(|line| {
        let of = line.strip_prefix("cmdstat_evalsha:calls=")?;
        of.split(',').next()?.parse::<u64>().ok()
    });
    let [mut grants, without] = folder.grants();
    assert_eq!(without, []);
    let granted = grants.len() as u64;
    let first = grants.iter().map(|grant| grant.0).min().unwrap();
    let last = grants.iter().map(|grant| grant.1).max().unwrap();
    let bound = BURST + PER_SECOND * (last - first) / 1_000_000;
    let above = most_above_rate(&mut grants);
    let calls = evals.unwrap_or(0);
    println!("{how}: {granted} of {bound} permits, {calls} scripts on the server");
    // The server counts in whole microseconds.
    let most = i128::from(BURST) * 1_000_000 + i128::from(PER_SECOND);
    assert!(above <= most, "{above} millionths above the rate");
    assert!(
        granted <= bound && granted * 100 >= bound * least,
        "{granted} of {bound}"
    );
    if how == "cached" && !pauses {
        assert!(calls < granted / 2, "{calls} calls for {granted} permits");
    }
}

/// For how long processes run, and how many of 100 permits they use at least: a short time on a
/// machine that may be busy, or as long as `PORTCULLIS_SOAK_SECONDS` says.
fn time_and_least() -> (Duration, u64) {
    let seconds = std::env::var("PORTCULLIS_SOAK_SECONDS");
    match seconds.map(|seconds| seconds.parse().unwrap()) {
        Ok(seconds) => (Duration::from_secs(seconds), 99),
        Err(_) => (2 * SECOND, 60),
    }
}

#[test]
fn four_processes_never_exceed_a_limit() {
    let (time, least) = time_and_least();
    four_processes_share_a_limit("direct", time, false, least);
}

#[test]
fn four_processes_with_a_cache_never_exceed_a_limit() {
    let (time, least) = time_and_least();
    four_processes_share_a_limit("cached", time, false, least);
}

#[test]
fn a_server_that_is_paused_again_and_again_lets_no_limit_be_exceeded() {
    let (time, _) = time_and_least();
    four_processes_share_a_limit("direct", time, true, 10);
    four_processes_share_a_limit("cached", time, true, 10);
}

/// Four processes use a limit up while the server is killed and started again. Each time it has
/// forgotten the limit, unless it is `durable`.
fn four_processes_outlive_their_server(how: &str, choice: &str, time: Duration, durable: bool) {
    let folder = Folder::new(&format!("{how}-{choice}-{}-{durable}", time.as_secs()));
    let server = if durable {
        Server::start_durable(&folder.0)
    } else {
        Server::start()
    };
    let Some(mut server) = server else {
        return;
    };
    let children = Children::start(how, choice, server.port, time, &folder);
    let (begun, mut restarts) = (Instant::now(), 0);
    while begun.elapsed() + 600 * MILLI < time {
        thread::sleep(500 * MILLI);
        server.restart_after(100 * MILLI);
        restarts += 1;
    }
    children.finish();
    let [mut by_server, mut without] = folder.grants();
    let all = || by_server.iter().chain(&without);
    let first = all().map(|grant| grant.0).min().unwrap();
    let last = all().map(|grant| grant.1).max().unwrap();
    let came_in = PER_SECOND * (last - first) / 1_000_000;
    println!(
        "{how}, {choice}, durable {durable}: {} by the server and {} without it, in a time in which \
         {came_in} come in, with {restarts} restarts",
        by_server.len(),
        without.len()
    );
    let above = most_above_rate(&mut by_server);
    let bursts = if durable { 1 } else { 1 + restarts };
    let most = i128::from(BURST * bursts) * 1_000_000 + i128::from(PER_SECOND);
    assert!(above <= most, "{above} millionths above the rate");
    // The server is asked again after each restart: how much it then grants depends on how much of
    // the machine the processes get. The processes may begin later than the first half second.
    let last_by_server = by_server.iter().map(|grant| grant.1).max().unwrap_or(first);
    let asked_for = Duration::from_micros(last_by_server - first);
    let until_the_last = 500 * MILLI * (restarts as u32 - 1);
    assert!(
        asked_for > until_the_last,
        "{asked_for:?} of {until_the_last:?}"
    );
    match choice {
        "deny" => assert_eq!(without, []),
        "allow" => assert!(!without.is_empty()),
        _ => {
            // Each process counts its share by itself, so the shares of all are one more limit.
            let above = most_above_rate(&mut without);
            let most = i128::from(BURST) * 1_000_000 + i128::from(PER_SECOND);
            assert!(!without.is_empty() && above <= most, "{above} millionths");
        }
    }
}

#[test]
fn a_restart_of_the_server_loses_what_it_had_counted_and_nothing_else() {
    let (time, _) = time_and_least();
    for how in ["direct", "cached"] {
        for choice in CHOICES {
            four_processes_outlive_their_server(how, choice, time, false);
        }
    }
}

#[test]
fn a_restart_of_a_server_that_writes_each_change_loses_nothing() {
    let (time, _) = time_and_least();
    for how in ["direct", "cached"] {
        four_processes_outlive_their_server(how, "deny", time, true);
    }
}

type Guarded = GuardedStore<RedisCounters, MonotonicClock>;
type Events = Arc<Mutex<Vec<StoreEvent>>>;

/// A guarded store with a short time limit, and what it reports.
fn guarded(server: &Server, on_failure: OnFailure) -> (Guarded, Events) {
    let settings = server.settings().time_limit(200 * MILLI);
    let store = RedisCounters::new(&settings).unwrap();
    let events = Events::default();
    let seen = Arc::clone(&events);
    let guard = GuardSettings::new(on_failure).pauses(20 * MILLI, 100 * MILLI);
    let store = GuardedStore::new(store, MonotonicClock::new(), guard)
        .observed(move |event| seen.lock().unwrap().push(event.clone()));
    (store, events)
}

/// Takes until the store decides again. Returns what was granted until then: by the store, and by
/// the fallback.
async fn recover(store: &dyn CounterStore, limit: &CounterLimit) -> (u64, u64) {
    let (begun, mut here) = (Instant::now(), 0);
    loop {
        let decision = store.take(&[Charge::new("a", limit, 1)]).await.unwrap();
        if decision.origin() == Origin::Store {
            return (decision.is_allowed().into(), here);
        }
        here += u64::from(decision.is_allowed());
        assert!(begun.elapsed() < 20 * SECOND, "the store does not recover");
        tokio::time::sleep(5 * MILLI).await;
    }
}

async fn take(store: &dyn CounterStore, limit: &CounterLimit, times: usize) -> u64 {
    let mut granted = 0;
    for _ in 0..times {
        let decision = store.take(&[Charge::new("a", limit, 1)]).await.unwrap();
        granted += u64::from(decision.is_allowed());
    }
    granted
}

/// `Down`, some `StillDown`, `Up`. Returns how often the server was asked in vain.
fn one_outage(events: &Events) -> u64 {
    let events = core::mem::take(&mut *events.lock().unwrap());
    let [StoreEvent::Down { .. }, between @ .., StoreEvent::Up { .. }] = &events[..] else {
        panic!("{events:?}")
    };
    let is_probe = |event: &StoreEvent| matches!(event, StoreEvent::StillDown { .. });
    assert!(between.iter().all(is_probe), "{events:?}");
    1 + between.len() as u64
}

#[test]
fn a_pause_of_the_server_loses_no_more_than_the_calls_that_had_no_answer() {
    for on_failure in [
        OnFailure::Deny,
        OnFailure::Allow,
        OnFailure::Share { part: 1, whole: 10 },
    ] {
        let Some(server) = Server::start() else {
            return;
        };
        runtime().block_on(async {
            let (store, events) = guarded(&server, on_failure);
            let limit = windows(200, 86_400 * SECOND, 1);
            assert_eq!(take(&store, &limit, 10).await, 10);
            server.signal("-STOP");
            let here = take(&store, &limit, 50).await;
            assert!(store.is_down());
            assert_eq!(
                here,
                match on_failure {
                    OnFailure::Allow => 50,
                    OnFailure::Deny => 0,
                    _ => 20,
                }
            );
            server.signal("-CONT");
            let (granted, _) = recover(&store, &limit).await;
            let lost = one_outage(&events);
            let granted = 10 + granted + take(&store, &limit, 300).await;
            assert!(granted <= 200 && granted >= 200 - lost, "{granted}, {lost}");
        });
    }
}

#[test]
fn a_server_that_is_killed_and_started_again_is_used_again() {
    let Some(mut server) = Server::start() else {
        return;
    };
    runtime().block_on(async {
        let (store, events) = guarded(&server, OnFailure::Share { part: 1, whole: 4 });
        let limit = windows(100, 86_400 * SECOND, 1);
        assert_eq!(take(&store, &limit, 150).await, 100);
        server.stop();
        assert_eq!(take(&store, &limit, 100).await, 25, "the share");
        server = Server::start_on(server.port).unwrap();
        // The new server knows nothing: the limit is full again, and the share is not.
        let (granted, here) = recover(&store, &limit).await;
        assert_eq!((granted, here), (1, 0));
        assert_eq!(take(&store, &limit, 150).await, 99);
        one_outage(&events);
        server.stop();
        assert_eq!(take(&store, &limit, 100).await, 0);
    });
}

/// Permits that were taken ahead are granted while the server is gone, until they lapse.
#[test]
fn a_cache_outlives_its_server_for_as_long_as_it_holds_permits() {
    let Some(mut server) = Server::start() else {
        return;
    };
    runtime().block_on(async {
        let time: &'static ManualClock = Box::leak(Box::default());
        let (store, _) = guarded(&server, OnFailure::Deny);
        let cache = CachedStore::new(store, time, CacheSettings::new().hold(10 * SECOND));
        let limit = windows(1_000, 86_400 * SECOND, 1);
        while cache.counts().allowed < 8 {
            assert_eq!(take(&cache, &limit, 1).await, 1);
        }
        server.stop();
        let here = take(&cache, &limit, 100).await;
        assert!((1..=32).contains(&here), "{here}");
        time.advance(10 * SECOND);
        assert_eq!(take(&cache, &limit, 100).await, 0);
    });
}

#[test]
fn instances_tell_each_other_of_denials_also_after_the_server_was_away() {
    let Some(mut server) = Server::start() else {
        return;
    };
    runtime().block_on(async {
        let settings = server.settings().reconnect_delay(20 * MILLI);
        let cached = || {
            let store = RedisCounters::new(&settings).unwrap();
            let cache = CacheSettings::new().hold(60 * SECOND).max_block(0);
            let channel = Arc::new(RedisChannel::new(&settings).unwrap());
            let cached = CachedStore::new(store, MonotonicClock::new(), cache);
            (cached.with_channel(channel.clone()), channel)
        };
        let ((one, sender), (other, receiver)) = (cached(), cached());
        let heard = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&heard);
        receiver.subscribe(Box::new(move |message| {
            let is_denial = message.starts_with("denied ");
            counted.fetch_add(if is_denial { 1 } else { 1 << 32 }, SeqCst);
            true
        }));
        // Sends until a message arrives: the subscription is there.
        let connected = async || {
            let (begun, before) = (Instant::now(), heard.load(SeqCst) >> 32);
            while heard.load(SeqCst) >> 32 == before {
                assert!(begun.elapsed() < 20 * SECOND, "no message arrives");
                sender.publish("hello");
                tokio::time::sleep(5 * MILLI).await;
            }
        };
        for id in ["before", "after"] {
            connected().await;
            let limit = windows(10, 86_400 * SECOND, 1);
            let charge = [Charge::new(id, &limit, 1).synced(true)];
            let begun = Instant::now();
            // The connection of the store may still be the old one.
            while other.take(&charge).await.is_err() {
                assert!(begun.elapsed() < 20 * SECOND);
            }
            let denials = heard.load(SeqCst) & 0xffff_ffff;
            let begun = Instant::now();
            while one
                .take(&charge)
                .await
                .map_or(true, |decision| decision.is_allowed())
            {
                assert!(begun.elapsed() < 20 * SECOND);
            }
            while heard.load(SeqCst) & 0xffff_ffff == denials {
                assert!(begun.elapsed() < 20 * SECOND, "not told");
                tokio::time::sleep(MILLI).await;
            }
            let calls = other.counts().calls;
            let denied = other.take(&charge).await.unwrap();
            assert!(!denied.is_allowed());
            assert_eq!(denied.origin(), Origin::Cache);
            assert_eq!(other.counts().calls, calls);
            server.stop();
            server = Server::start_on(server.port).unwrap();
        }
    });
}

#[test]
fn all_that_caches_leave_on_a_server_expires() {
    let Some(server) = Server::start() else {
        return;
    };
    runtime().block_on(async {
        let cache = CacheSettings::new();
        let cached = CachedStore::new(server.store(), MonotonicClock::new(), cache);
        let limits = [bucket(100, SECOND, 20), windows(20, 200 * MILLI, 4)];
        for id in 0..20 {
            let ids = [format!("{id}a"), format!("{id}b")];
            for _ in 0..10 {
                let charges = [
                    Charge::new(&ids[0], &limits[0], 1),
                    Charge::new(&ids[1], &limits[1], 1),
                ];
                let _decision = cached.take(&charges).await.unwrap();
            }
        }
        let begun = MonotonicClock::new().now();
        let keys = async || -> Vec<String> { server.ask(&["KEYS", "*"]).await };
        while !keys().await.is_empty() {
            let waited = MonotonicClock::new().now().saturating_since(begun);
            assert!(waited < 20 * SECOND, "{:?}", keys().await);
            tokio::time::sleep(20 * MILLI).await;
        }
    });
}
