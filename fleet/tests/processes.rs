//! Processes that share a throttled service, by leases on etcd and on Redis. One is killed, one is
//! stopped beyond the end of its leases, and the server of the leases restarts. Of three servers of
//! etcd, one leader is killed and one is stopped. The service counts.

#[path = "support/servers.rs"]
mod servers;

use core::time::Duration;
use std::env;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use portcullis_core::{Clock, MonotonicClock, Rate, Timestamp};
use portcullis_fleet::{
    Exchange, LeaseFuture, LeaseStore, Member, MemberId, PartitionLease, Pool, Standing,
};
use servers::{Kind, Server, signal};
use tokio::runtime::{Builder, Runtime};

const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(2);
const PER_SECOND: u32 = 500;
const PARTITIONS: u32 = 20;
/// The variable that tells a process of this test program what to do.
const ROLE: &str = "PORTCULLIS_FLEET_ROLE";

fn pool() -> Pool {
    let pool = Pool::builder("writes", Rate::per_second(PER_SECOND));
    let pool = pool.partitions(PARTITIONS).lease(LEASE).fair(true);
    pool.build().unwrap()
}

fn now() -> Timestamp {
    MonotonicClock::new().now()
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// The time in which a member may use a partition: from the answer of the store until the member
/// gives the lease up, or until its end. By the monotonic clock, which all processes of this host
/// have in common.
#[derive(Clone, Copy, Debug)]
struct Use {
    partition: u32,
    from: u64,
    until: u64,
}

/// What a store was asked, and what it leased.
#[derive(Default)]
struct Record {
    exchanges: u32,
    /// Those that have ended, or not been renewed yet.
    uses: Vec<Use>,
}

impl Record {
    /// Each use of a partition that is not named ends at `now`.
    fn keep(&mut self, named: &[PartitionLease], now: u64) {
        for one in &mut self.uses {
            if !named.iter().any(|held| held.partition == one.partition) {
                one.until = one.until.min(now);
            }
        }
    }

    /// A lease of this partition begins at `now`, or begins again.
    fn lease(&mut self, partition: u32, now: u64, until: u64) {
        let is_it = |one: &&mut Use| one.partition == partition && one.until >= now;
        match self.uses.iter_mut().find(is_it) {
            Some(one) => one.until = one.until.max(until),
            None if now < until => self.uses.push(Use {
                partition,
                from: now,
                until,
            }),
            None => {}
        }
    }
}

/// A store that records what it is asked, and what it leases.
struct Recording {
    store: Arc<dyn LeaseStore>,
    record: Arc<Mutex<Record>>,
}

impl LeaseStore for Recording {
    fn exchange<'a>(&'a self, pool: &'a str, request: &'a Exchange) -> LeaseFuture<'a> {
        Box::pin(async move {
            let sent = now();
            {
                let mut record = self.record.lock().unwrap();
                record.exchanges += 1;
                record.keep(&request.renew, sent.as_nanos());
            }
            let answer = self.store.exchange(pool, request).await?;
            let (answered, mut record) = (now().as_nanos(), self.record.lock().unwrap());
            let mut leased = answer.renewed.clone();
            leased.extend(&answer.granted);
            record.keep(&leased, answered);
            let until = sent.saturating_add(LEASE.saturating_sub(self::pool().margin()));
            for held in leased {
                record.lease(held.partition, answered, until.as_nanos());
            }
            Ok(answer)
        })
    }
}

/// A process that the tests start: a member that sends as many requests as its limiter admits,
/// until the service closes the connection.
#[test]
#[ignore = "a process of the other tests"]
fn child() {
    let role = env::var(ROLE).unwrap_or_default();
    let words: Vec<_> = role.split(' ').collect();
    let [kind, stores, service] = words[..] else {
        return;
    };
    let kind = Kind::BOTH.into_iter().find(|of| format!("{of:?}") == kind);
    let kind = kind.unwrap();
    let ports: Vec<u16> = stores
        .split(',')
        .map(|port| port.parse().unwrap())
        .collect();
    let runtime = runtime();
    let inside = runtime.enter();
    let record: Arc<Mutex<Record>> = Arc::default();
    let store = Recording {
        store: kind.store(&ports, Duration::from_millis(400)),
        record: Arc::clone(&record),
    };
    drop(inside);
    let (member, driver) = Member::builder(pool(), store).build().unwrap();
    let driver = thread::spawn(move || runtime.block_on(driver.run()));
    member.want(PARTITIONS);
    let mut service = TcpStream::connect(("127.0.0.1", service.parse().unwrap())).unwrap();
    service.set_nodelay(true).unwrap();
    let (limiter, begun) = (member.limiter(), Instant::now());
    loop {
        // A request states when it was admitted.
        let (before, at) = (member.status(), now());
        let request = match limiter.try_acquire_at(at, 1) {
            Ok(_) => {
                let share = before.share;
                let is_same = member.status() == before;
                assert!(
                    !is_same || at < share.until,
                    "admitted after the end of the leases"
                );
                at.as_nanos()
            }
            Err(denied) => {
                let wait = denied.retry(&*limiter).wait_from(now());
                thread::sleep(wait.unwrap().max(Duration::from_micros(100)));
                // It notices the end of the service although nothing is admitted.
                0
            }
        };
        if service.write_all(&request.to_le_bytes()).is_err() {
            break;
        }
    }
    let (asked, time) = (record.lock().unwrap().exchanges, begun.elapsed());
    member.leave();
    driver.join().unwrap();
    assert_eq!(member.status().standing, Standing::Left);
    println!("\nasked {:.2}", f64::from(asked) / time.as_secs_f64());
    for one in &record.lock().unwrap().uses {
        println!("used {} {} {}", one.partition, one.from, one.until);
    }
}

/// A request, as the service saw it.
#[derive(Clone, Copy)]
struct Request {
    /// Which process sent it.
    process: usize,
    /// When it was admitted, in nanoseconds.
    admitted: u64,
    /// When it arrived.
    arrived: u64,
}

/// The throttled service. It counts the requests of each connection.
struct Service {
    port: u16,
    requests: Arc<Mutex<Vec<Request>>>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Service {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests: Arc<Mutex<Vec<Request>>> = Arc::default();
        let open: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
        let (log, streams) = (Arc::clone(&requests), Arc::clone(&open));
        thread::spawn(move || {
            for (process, stream) in listener.incoming().map_while(Result::ok).enumerate() {
                streams.lock().unwrap().push(stream.try_clone().unwrap());
                let log = Arc::clone(&log);
                thread::spawn(move || count(process, stream, &log));
            }
        });
        Self {
            port,
            requests,
            open,
        }
    }

    fn processes(&self) -> usize {
        self.open.lock().unwrap().len()
    }

    fn end(&self) -> Vec<Request> {
        for stream in self.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        let mut requests = self.requests.lock().unwrap().clone();
        requests.sort_unstable_by_key(|request| request.admitted);
        requests
    }
}

fn count(process: usize, mut stream: TcpStream, log: &Mutex<Vec<Request>>) {
    let mut bytes = [0; 8];
    while stream.read_exact(&mut bytes).is_ok() {
        let admitted = u64::from_le_bytes(bytes);
        if admitted > 0 {
            let arrived = now().as_nanos();
            log.lock().unwrap().push(Request {
                process,
                admitted,
                arrived,
            });
        }
    }
}

/// A process of this test program. It is killed if the test ends before it.
struct Process(Option<Child>);

impl Process {
    fn start(servers: &[Server], service: &Service) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args([
            "--exact",
            "child",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ]);
        let ports: Vec<_> = servers.iter().map(|of| of.port.to_string()).collect();
        let (kind, ports) = (servers[0].kind, ports.join(","));
        command.env(ROLE, format!("{kind:?} {ports} {}", service.port));
        let before = service.processes();
        let process = Self(Some(command.stdout(Stdio::piped()).spawn().unwrap()));
        let begun = Instant::now();
        // So the connections are in the order of the processes.
        while service.processes() == before {
            assert!(begun.elapsed() < 60 * SECOND);
            thread::sleep(Duration::from_millis(1));
        }
        process
    }

    fn signal(&self, name: &str) {
        signal(self.0.as_ref().unwrap(), name);
    }

    /// Waits for its end. Returns how often it asked the store in a second, and what it used.
    fn finish(mut self) -> (f64, Vec<Use>) {
        let output = self.0.take().unwrap().wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}");
        let of = |name| {
            text.lines()
                .filter_map(move |line: &str| line.strip_prefix(name))
        };
        let asked = of("asked ").next().unwrap().trim().parse().unwrap();
        let used = of("used ").map(|line| {
            let numbers: Vec<u64> = line.split(' ').map(|word| word.parse().unwrap()).collect();
            Use {
                partition: numbers[0] as u32,
                from: numbers[1],
                until: numbers[2],
            }
        });
        (asked, used.collect())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Returns the most events above the rate that any span of time contains, rounded up. The times
/// ascend, in nanoseconds.
fn most_above_rate(times: &[u64]) -> u64 {
    // In billionths of an event.
    let (mut most, mut above, mut last) = (0, 0_u64, 0);
    for &time in times {
        above = above.saturating_sub((time - last).saturating_mul(PER_SECOND.into()));
        above += 1_000_000_000;
        most = most.max(above);
        last = time;
    }
    most.div_ceil(1_000_000_000)
}

/// Waits for the end of all processes. Checks that no two of them used a partition at once, and
/// returns how often each asked the store in a second.
fn finish(processes: Vec<Process>) -> Vec<f64> {
    let finished = processes.into_iter().map(Process::finish);
    let (asked, used): (Vec<_>, Vec<_>) = finished.unzip();
    let mut uses: Vec<(u32, u64, u64, usize)> = Vec::new();
    for (process, used) in used.iter().enumerate() {
        uses.extend(
            used.iter()
                .map(|of| (of.partition, of.from, of.until, process)),
        );
    }
    uses.sort_unstable();
    let is_twice = |pair: &&[_]| {
        let [(partition, _, until, _), (other, from, ..)] = pair[..] else {
            return false;
        };
        partition == other && from < until
    };
    let twice: Vec<_> = uses.windows(2).filter(is_twice).collect();
    assert!(
        twice.is_empty(),
        "two processes used a partition at once, as (partition, from, until, process): {twice:?}"
    );
    asked
}

/// Returns the largest part of the capacity, in percent, that was used in a span of `length` from
/// `from` to `to`.
fn best_use(times: &[u64], from: Timestamp, to: Timestamp, length: Duration) -> u128 {
    let (mut best, mut first) = (0, 0);
    let is_inside = |time: &&u64| (from.as_nanos()..to.as_nanos()).contains(time);
    let times: Vec<_> = times.iter().filter(is_inside).collect();
    for (last, &&time) in times.iter().enumerate() {
        while u128::from(time - times[first]) > length.as_nanos() {
            first += 1;
        }
        best = best.max(last + 1 - first);
    }
    best as u128 * 100_000_000_000 / (u128::from(PER_SECOND) * length.as_nanos())
}

fn sleep(seconds: f64) {
    thread::sleep(Duration::from_secs_f64(seconds));
}

/// How many processes want each processor of this machine, at least one. Each gets such a part of
/// the time that it needs.
fn processes_per_processor() -> f64 {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().and_then(|load| load.parse().ok());
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let processors = u32::try_from(processors).unwrap_or(1);
    (load.unwrap_or(0.0) / f64::from(processors)).clamp(1.0, 20.0)
}

/// Waits for so many seconds after `from`. Then the capacity must be in use, if each process has
/// had the time that it needs: if others want the processors too, waits as many times as long.
fn settle(service: &Service, from: Timestamp, seconds: f64) {
    sleep(seconds);
    let begun = Instant::now();
    loop {
        let requests = service.requests.lock().unwrap().clone();
        let mut times: Vec<_> = requests.iter().map(|request| request.admitted).collect();
        times.sort_unstable();
        let more = seconds * (processes_per_processor() - 1.0);
        if use_since(&times, from, now()) > LEAST_USE || begun.elapsed().as_secs_f64() >= more {
            return;
        }
        sleep(0.25);
    }
}

/// The part of the capacity that must be in use, in percent.
const LEAST_USE: u128 = 90;

/// The largest part of the capacity in use, in percent, after leases have followed what happened at
/// `from`.
fn use_since(times: &[u64], from: Timestamp, to: Timestamp) -> u128 {
    // What a process held returns after a lease time.
    let settled = from.saturating_add(LEASE + SECOND);
    best_use(times, settled, to, Duration::from_millis(1_500))
}

/// Checks that the requests stay within the bound, in any span of time: as they were admitted, and
/// as they arrived.
fn check_the_bound(requests: &[Request]) -> String {
    let times: Vec<_> = requests.iter().map(|request| request.admitted).collect();
    let bound = pool().burst_of(PARTITIONS);
    let above = most_above_rate(&times);
    assert!(
        above <= bound,
        "{above} above the rate; the burst is {bound}"
    );
    // Requests take some time to arrive. A process that was stopped may have been so between the
    // decision and the request.
    let mut delays: Vec<_> = requests.iter().map(|of| of.arrived - of.admitted).collect();
    delays.sort_unstable();
    let delay = Duration::from_nanos(delays[delays.len() - 2]);
    let mut arrivals: Vec<_> = requests.iter().map(|request| request.arrived).collect();
    arrivals.sort_unstable();
    let arrived = most_above_rate(&arrivals);
    let late = u64::from(PER_SECOND) * delay.as_millis() as u64 / 1_000 + 2;
    assert!(
        arrived <= bound + late,
        "{arrived} arrived above the rate, {late} late"
    );
    format!(
        "{} requests, at most {above} above the rate (bound {bound}), {arrived} as they arrived, \
         up to {delay:?} late",
        requests.len()
    )
}

/// Checks that the capacity is in use in each of the spans of time, after leases have followed what
/// happened at its beginning.
fn check_the_use(requests: &[Request], spans: &[(&str, Timestamp, Timestamp)]) -> String {
    let times: Vec<_> = requests.iter().map(|request| request.admitted).collect();
    let uses = spans
        .iter()
        .map(|&(what, from, to)| (what, use_since(&times, from, to)));
    let uses: Vec<_> = uses.collect();
    assert!(
        uses.iter().all(|&(_, used)| used > LEAST_USE),
        "used: {uses:?} %"
    );
    format!("used: {uses:?} %")
}

fn check(requests: &[Request], spans: &[(&str, Timestamp, Timestamp)]) -> String {
    let (bound, uses) = (check_the_bound(requests), check_the_use(requests, spans));
    format!("{bound}; {uses}")
}

fn first_of(requests: &[Request]) -> Timestamp {
    Timestamp::from_nanos(requests[0].admitted)
}

fn four_processes_share_a_service(kind: Kind) {
    let Some(mut server) = Server::start(kind) else {
        return;
    };
    let service = Service::start();
    let start = |_| Process::start(core::slice::from_ref(&server), &service);
    let mut processes: Vec<_> = (0..4).map(start).collect();
    // A Redis server first holds off for a lease time.
    settle(&service, now(), 7.0);
    let killed = now();
    drop(processes.remove(0));
    settle(&service, killed, 6.0);
    let stopped = now();
    processes[0].signal("-STOP");
    settle(&service, stopped, 5.0);
    let resumed = now();
    processes[0].signal("-CONT");
    sleep(3.0);
    let restarted = now();
    server.kill();
    sleep(0.5);
    server.restart();
    settle(&service, restarted, 8.5);
    let ended = now();
    let requests = service.end();
    let asked = finish(processes);

    let report = check(
        &requests,
        &[
            ("at first", first_of(&requests), killed),
            ("after one was killed", killed, stopped),
            ("while one was stopped", stopped, resumed),
            ("after the restart", restarted, ended),
        ],
    );
    let after = |process, from: Timestamp| {
        let of = |of: &&Request| of.process == process && of.admitted >= from.as_nanos();
        requests.iter().filter(of).count()
    };
    assert_eq!(after(0, killed.saturating_add(SECOND)), 0);
    assert!(
        after(1, resumed) > 0,
        "the process that was stopped goes on"
    );
    for process in 1..4 {
        assert!(after(process, restarted.saturating_add(2 * LEASE)) > 0);
    }
    // All have left, so everything is free at once.
    runtime().block_on(async {
        let request = {
            let mut request = Exchange::new(MemberId(1), LEASE);
            request.demand = PARTITIONS;
            request.candidates = (0..PARTITIONS).collect();
            request.at_most = PARTITIONS;
            request
        };
        let answer = server.store().exchange("writes", &request).await.unwrap();
        assert_eq!(answer.granted.len(), PARTITIONS as usize, "{answer:?}");
    });
    println!("{kind:?}: {report}; exchanges a second of each process: {asked:?}");
    for asked in asked {
        assert!(asked < 10.0, "{asked} exchanges a second");
    }
}

#[test]
fn four_processes_share_a_service_by_leases_on_etcd() {
    four_processes_share_a_service(Kind::Etcd);
}

#[test]
fn four_processes_share_a_service_by_leases_on_redis() {
    four_processes_share_a_service(Kind::Redis);
}

/// Three servers of etcd. Their leader is killed and starts again. The next one is stopped for
/// longer than a lease, and then believes for a moment that it still leads.
#[test]
fn four_processes_share_a_service_while_leaders_of_etcd_come_and_go() {
    let Some(mut servers) = Server::start_cluster(3) else {
        return;
    };
    let service = Service::start();
    let start = |_| Process::start(&servers, &service);
    let processes: Vec<_> = (0..4).map(start).collect();
    settle(&service, now(), 7.0);
    let killed = now();
    let first = leader_of(&servers);
    servers[first].kill();
    settle(&service, killed, 6.0);
    // While it is dead, another one leads.
    leader_of(&servers);
    servers[first].restart();
    sleep(2.0);
    let stopped = now();
    let next = leader_of(&servers);
    servers[next].signal("-STOP");
    settle(&service, stopped, 6.0);
    // One that is stopped does not answer, so another one leads.
    leader_of(&servers);
    let resumed = now();
    servers[next].signal("-CONT");
    settle(&service, resumed, 6.0);
    let ended = now();
    let requests = service.end();
    let asked = finish(processes);

    let report = check(
        &requests,
        &[
            ("at first", first_of(&requests), killed),
            ("after the leader was killed", killed, stopped),
            ("while the leader was stopped", stopped, resumed),
            ("at last", resumed, ended),
        ],
    );
    println!("{report}; exchanges a second of each process: {asked:?}");
}

/// The server that leads, as itself says.
fn leader_of(servers: &[Server]) -> usize {
    let begun = Instant::now();
    loop {
        if let Some(leader) = servers.iter().position(Server::leads) {
            return leader;
        }
        assert!(begun.elapsed() < 10 * SECOND, "no server leads");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_demand_gets_its_full_share_within_a_second() {
    for kind in Kind::BOTH {
        let Some(server) = Server::start(kind) else {
            continue;
        };
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let inside = runtime.enter();
        let (member, driver) = Member::builder(pool(), server.store()).build().unwrap();
        drop(inside);
        runtime.spawn(driver.run());
        let wait_for = |partitions: u32| {
            let begun = Instant::now();
            loop {
                let status = member.status();
                if status.share.partitions == partitions {
                    return begun.elapsed();
                }
                assert!(begun.elapsed() < 60 * SECOND, "{status:?}");
                let _ = member.blocking_changed(status.generation, SECOND);
            }
        };
        // A Redis server first holds off for a lease time.
        member.want(PARTITIONS);
        wait_for(PARTITIONS);
        let times: Vec<_> = (0..5)
            .map(|_| {
                member.want(0);
                wait_for(0);
                member.want(PARTITIONS);
                wait_for(PARTITIONS)
            })
            .collect();
        println!("{kind:?}: from demand to full share: {times:?}");
        // The machine may be busy once.
        assert!(times.iter().min().unwrap() < &SECOND, "{times:?}");
    }
}

#[test]
fn the_fullest_span_is_found() {
    const STEP: u64 = 1_000_000_000 / PER_SECOND as u64;
    let most = |steps: &[u64]| {
        let times: Vec<_> = steps
            .iter()
            .map(|step| 1_000_000_000 + step * STEP)
            .collect();
        most_above_rate(&times)
    };
    assert_eq!(most(&[0, 1, 2, 3]), 1);
    assert_eq!(most(&[0, 0, 0]), 3);
    assert_eq!(most(&[0, 0, 1, 1, 1, 90, 90]), 4);
}
