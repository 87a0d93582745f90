//! The program, started on loopback.

#![allow(dead_code, reason = "each test uses a part")]

use core::net::SocketAddr;
use core::time::Duration;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Instant;

use serde_json::Value;

/// Waits until something holds, for at most 20 s.
#[track_caller]
pub(crate) fn until(mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "it does not hold"
        );
        thread::sleep(Duration::from_millis(5));
    }
}

/// A folder for the files of a test.
pub(crate) fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder");
    folder
}

pub(crate) struct Program {
    child: Child,
    log: Receiver<Value>,
    pub(crate) file: PathBuf,
    /// Where proxies ask.
    pub(crate) listen: SocketAddr,
    pub(crate) admin: SocketAddr,
    /// Where Envoy asks.
    pub(crate) grpc: Option<SocketAddr>,
}

pub(crate) fn command(file: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis-serve"));
    command.arg(file);
    if !arguments.contains(&"--listen") {
        command.args(["--listen", "127.0.0.1:0"]);
    }
    command.args(["--admin", "127.0.0.1:0", "--log", "json"]);
    command.args(["--poll", "20ms"]).args(arguments);
    command
}

impl Program {
    /// Starts the program with a policy. `name` is that of the test.
    pub(crate) fn start(name: &str, policy: &str, arguments: &[&str]) -> Self {
        let file = folder(name).join("policy.toml");
        fs::write(&file, policy).expect("a file");
        Self::start_with(&file, arguments)
    }

    /// Starts the program with a file.
    pub(crate) fn start_with(file: &Path, arguments: &[&str]) -> Self {
        let mut command = command(file, arguments);
        let mut child = command.stderr(Stdio::piped()).spawn().expect("it starts");
        let lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let (events, log) = channel();
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let event = serde_json::from_str(&line);
                let event = event.unwrap_or(Value::String(line));
                if events.send(event).is_err() {
                    return;
                }
            }
        });
        let mut program = Self {
            child,
            log,
            file: file.to_owned(),
            listen: SocketAddr::from(([0; 4], 0)),
            admin: SocketAddr::from(([0; 4], 0)),
            grpc: None,
        };
        let started = program.event("checks are answered");
        let address = |name: &str| Some(started[name].as_str()?.parse().expect(name));
        program.listen = address("listen").expect("an address");
        program.admin = address("admin").expect("an address");
        program.grpc = address("grpc");
        program
    }

    /// The next event with this message.
    #[track_caller]
    pub(crate) fn event(&self, message: &str) -> Value {
        self.events_until(message).pop().expect("the event")
    }

    /// Waits for an event as [`event`](Self::event), and returns it after those before it.
    pub(crate) fn events_until(&self, message: &str) -> Vec<Value> {
        let mut events = Vec::new();
        loop {
            let event = self.log.recv_timeout(Duration::from_secs(20));
            let event = event.unwrap_or_else(|_| panic!("no event {message:?}"));
            assert!(event.is_object(), "{event}");
            let text = event["message"].as_str();
            let is_it = text.is_some_and(|text| text.contains(message));
            events.push(event);
            if is_it {
                return events;
            }
        }
    }

    /// Writes another policy, as an editor does: in place of the file.
    pub(crate) fn write(&self, policy: &str) {
        let new = self.file.with_extension("new");
        fs::write(&new, policy).expect("a file");
        fs::rename(new, &self.file).expect("a file");
    }

    /// Sends a signal, such as `HUP`.
    pub(crate) fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &id]).status();
        assert!(sent.expect("kill").success());
    }

    /// Sends a signal many times.
    pub(crate) fn signals(&self, name: &str, times: u32) {
        let id = self.child.id();
        let each =
            format!("i=0; while [ $i -lt {times} ]; do kill -s {name} {id}; i=$((i+1)); done");
        let sent = Command::new("sh").args(["-c", &each]).status();
        assert!(sent.expect("a shell").success());
    }

    /// Waits until the program ends.
    pub(crate) fn ended(&mut self) -> ExitStatus {
        self.child.wait().expect("it ends")
    }

    /// The memory of the program that is in use, in KiB.
    pub(crate) fn resident(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let status = status.expect("Linux");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line.and_then(|line| line.split_whitespace().next());
        number
            .and_then(|number| number.parse().ok())
            .expect("a number")
    }

    pub(crate) fn metrics(&self) -> String {
        super::client::ask(self.admin, "GET /metrics", &[]).body
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It has ended already, unless the test lets it run.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
