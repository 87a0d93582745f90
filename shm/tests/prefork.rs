//! The example `prefork`: four processes behind one socket have one limit, also while they are
//! killed.

#[path = "../examples/prefork.rs"]
#[allow(dead_code, reason = "its `main`")]
mod prefork;
mod support;

use core::net::SocketAddr;
use core::time::Duration;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use portcullis_shm::{OpenError, SharedFile};
use support::{Admission, PERMIT, Process, command, most_above_rate, now, role, seconds};

/// The main process and its workers.
#[test]
#[ignore = "a process of the other tests"]
fn child() {
    let role = role();
    let role: Vec<_> = role.iter().map(String::as_str).collect();
    match role[..] {
        ["main", name, per_second, burst] => {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            println!("\nport {}\nready", listener.local_addr().unwrap().port());
            let main = std::process::id().to_string();
            let worker = || {
                let mut worker: Command = command(&["worker", &main, name, per_second, burst]);
                worker.stdout(Stdio::null());
                worker
            };
            prefork::supervise(&listener, worker).unwrap();
        }
        ["worker", main, name, per_second, burst] => {
            let (per_second, burst) = (per_second.parse().unwrap(), burst.parse().unwrap());
            let limit = prefork::open(name, per_second, burst).unwrap();
            prefork::work(&limit, main.parse().unwrap()).unwrap();
        }
        [] => {}
        _ => panic!("{role:?}"),
    }
}

/// A server, and the name of its limit.
struct Server {
    main: Option<Process>,
    name: String,
    address: SocketAddr,
}

impl Server {
    fn start(name: &str, per_second: u32, burst: u64) -> Self {
        let name = format!("test-prefork-{name}-{}", std::process::id());
        let (rate, burst) = (per_second.to_string(), burst.to_string());
        let mut main = Process::start(&["main", &name, &rate, &burst]);
        let port: u16 = main
            .until("ready")
            .iter()
            .find_map(|line| {
                let port = line.strip_prefix("port ")?;
                Some(port.parse().unwrap())
            })
            .unwrap();
        Self {
            main: Some(main),
            name,
            address: ([127, 0, 0, 1], port).into(),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(main) = self.main.take() {
            main.kill();
        }
        // The workers end when they see that the main process has.
        let until = Instant::now() + Duration::from_secs(10);
        let file = SharedFile::named(&self.name).unwrap();
        while Instant::now() < until {
            match file.remove() {
                Err(OpenError::Busy { .. }) => thread::sleep(Duration::from_millis(20)),
                // Removed, or none of them had opened it.
                _ => break,
            }
        }
    }
}

/// The status, `Retry-After`, and the process that answered. `None` if it was killed before.
fn get(address: SocketAddr) -> Option<(u16, Option<String>, u32)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .ok()?;
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        .ok()?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply).ok()?;
    let status = reply.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    let retry = reply
        .lines()
        .find_map(|line| line.strip_prefix("Retry-After: "));
    let process = reply.rsplit_once(" by process ")?.1.strip_suffix(".\n")?;
    Some((status, retry.map(str::to_owned), process.parse().ok()?))
}

#[test]
fn the_lines_in_the_head_of_the_example_are_answered_as_they_say() {
    // The rate of the lines is one per second. Here it is 0, so that a slow machine sees the same.
    let server = Server::start("lines", 0, 5);
    let replies: Vec<_> = (0..6).map(|_| get(server.address).unwrap()).collect();
    let statuses: Vec<_> = replies.iter().map(|(status, ..)| *status).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429]);
    drop(server);
    let server = Server::start("retry", 1, 1);
    let replies: Vec<_> = (0..20).map(|_| get(server.address).unwrap()).collect();
    let denied = replies.iter().find(|(status, ..)| *status == 429).unwrap();
    assert_eq!(denied.1.as_deref(), Some("1"));
}

#[test]
fn no_worker_outlives_the_main_process() {
    let files: Vec<_> = (0..10)
        .map(|round| {
            let server = Server::start(&format!("ends-{round}"), 1, 1);
            // Its workers are starting.
            SharedFile::named(&server.name).unwrap()
        })
        .collect();
    // Those that start last open their file late.
    thread::sleep(Duration::from_millis(500));
    for file in files {
        let until = Instant::now() + Duration::from_secs(10);
        while file.describe().is_ok_and(|about| about.is_in_use) {
            assert!(Instant::now() < until, "a worker goes on");
            thread::sleep(Duration::from_millis(20));
        }
        let _gone = file.remove();
    }
}

const PER_SECOND: u32 = 200;
/// As many as two seconds bring: so nothing overflows while clients have to wait for the processor.
const BURST: u64 = 400;

/// Clients send as fast as they can, and workers are killed.
fn under_load(name: &str, time: Duration) {
    let server = Server::start(name, PER_SECOND, BURST);
    let (address, begun) = (server.address, Instant::now());
    let client = || {
        let (mut granted, mut processes, mut denied) = (Vec::new(), BTreeSet::new(), 0_u64);
        while begun.elapsed() < time {
            let earliest = now().as_nanos();
            match get(address) {
                Some((200, _, process)) => {
                    let latest = now().as_nanos();
                    granted.push(Admission {
                        earliest,
                        latest,
                        permits: 1,
                    });
                    processes.insert(process);
                }
                Some(_) => denied += 1,
                // Its worker was killed: whether it was granted is not known.
                None => {}
            }
        }
        (granted, processes, denied)
    };
    let (mut granted, mut processes, mut denied) = (Vec::new(), BTreeSet::new(), 0);
    thread::scope(|scope| {
        let clients: Vec<_> = (0..8).map(|_| scope.spawn(client)).collect();
        while begun.elapsed() < time {
            thread::sleep(Duration::from_millis(300));
            // The worker that answers is killed.
            if let Some((_, _, process)) = get(address) {
                let status = Command::new("kill")
                    .args(["-9", &process.to_string()])
                    .status();
                assert!(status.unwrap().success());
            }
        }
        for client in clients {
            let part = client.join().unwrap();
            granted.extend(part.0);
            processes.extend(part.1);
            denied += part.2;
        }
    });
    let most = most_above_rate(&granted, PER_SECOND);
    assert!(
        most <= i128::from(BURST) * PERMIT,
        "{most} billionths above the rate"
    );
    let first = granted.iter().map(|a| a.earliest).min().unwrap();
    let last = granted.iter().map(|a| a.latest).max().unwrap();
    let bound = BURST + u64::from(PER_SECOND) * (last - first) / 1_000_000_000;
    println!(
        "{} of {bound} requests served, {denied} denied, by {} processes",
        granted.len(),
        processes.len()
    );
    // The request before a kill takes a permit as well, and so may one whose worker was killed.
    let killed = 2 + time.as_millis() as u64 / 300 * 2;
    assert!(
        granted.len() as u64 + killed >= bound * 99 / 100,
        "{} of {bound}",
        granted.len()
    );
    assert!(processes.len() > 4 && denied > 0, "{processes:?}, {denied}");
}

#[test]
fn four_processes_behind_one_socket_have_one_limit_under_load() {
    under_load("load", Duration::from_secs(4));
}

#[test]
#[ignore = "half a minute"]
fn four_processes_behind_one_socket_have_one_limit_for_long() {
    under_load("long", seconds(30));
}
