//! Servers of stores, which a test starts on free ports of this host.

#![allow(dead_code, reason = "each test uses a part")]

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use core::time::Duration;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;
use std::{env, fs, thread};

use portcullis_fleet::{EtcdLeases, EtcdSettings, LeaseStore, RedisLeases, RedisSettings};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Etcd,
    Redis,
}

impl Kind {
    pub(crate) const BOTH: [Self; 2] = [Self::Etcd, Self::Redis];

    const fn variable(self) -> &'static str {
        match self {
            Self::Etcd => "PORTCULLIS_ETCD",
            Self::Redis => "PORTCULLIS_REDIS",
        }
    }

    /// The program, and Debian's package of it.
    const fn program(self) -> (&'static str, &'static str) {
        match self {
            Self::Etcd => ("etcd", "etcd-server"),
            Self::Redis => ("redis-server", "redis-server"),
        }
    }

    /// A store on the servers at these ports, whose calls take at most `limit`. Of Redis, there is
    /// one server.
    pub(crate) fn store(self, ports: &[u16], limit: Duration) -> Arc<dyn LeaseStore> {
        match self {
            Self::Etcd => {
                let addresses = ports.iter().map(|port| format!("http://127.0.0.1:{port}"));
                let settings = EtcdSettings::new(addresses).time_limit(limit);
                Arc::new(EtcdLeases::new(&settings).unwrap())
            }
            Self::Redis => {
                let settings = RedisSettings::new(&format!("redis://127.0.0.1:{}/", ports[0]));
                Arc::new(RedisLeases::new(&settings.time_limit(limit)).unwrap())
            }
        }
    }
}

/// A server of one test, and the folder with its files.
pub(crate) struct Server {
    pub(crate) kind: Kind,
    pub(crate) port: u16,
    child: Option<Child>,
    folder: PathBuf,
    /// The ports by which the servers of one etcd reach each other, and which one this server is.
    peers: Vec<u16>,
    index: usize,
}

fn free_port() -> u16 {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    free.local_addr().unwrap().port()
}

impl Server {
    /// Starts a server: the one that the environment names, or the one that is installed. `None` if
    /// there is none, outside of CI.
    pub(crate) fn start(kind: Kind) -> Option<Self> {
        Some(Self::start_all(kind, 1)?.swap_remove(0))
    }

    /// Starts the servers of one etcd.
    pub(crate) fn start_cluster(servers: usize) -> Option<Vec<Self>> {
        Self::start_all(Kind::Etcd, servers)
    }

    fn start_all(kind: Kind, servers: usize) -> Option<Vec<Self>> {
        // Another process may take a port first.
        for _ in 0..5 {
            let peers: Vec<_> = (0..servers).map(|_| free_port()).collect();
            let mut all: Vec<_> = (0..servers)
                .map(|index| Self::new(kind, peers.clone(), index))
                .collect();
            for server in &mut all {
                server.spawn()?;
            }
            if all.iter_mut().all(Self::comes_up) {
                return Some(all);
            }
        }
        panic!("{kind:?} does not start");
    }

    /// A server that does not run yet.
    fn new(kind: Kind, peers: Vec<u16>, index: usize) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Relaxed);
        let name = format!("portcullis-fleet-{}-{number}", std::process::id());
        let folder = env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        Self {
            kind,
            port: free_port(),
            child: None,
            folder,
            peers,
            index,
        }
    }

    /// Starts the program, on the port and with the files of before. `None` if there is no such
    /// program, outside of CI.
    fn spawn(&mut self) -> Option<()> {
        let (name, package) = self.kind.program();
        let program = env::var_os(self.kind.variable()).unwrap_or_else(|| name.into());
        let mut command = Command::new(program);
        command.args(self.arguments()).current_dir(&self.folder);
        command.stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        match command.spawn() {
            Ok(child) => self.child = Some(child),
            Err(error) => {
                let variable = self.kind.variable();
                let missing = format!(
                    "{name} cannot be started ({error}): install Debian's package {package}, or \
                     set {variable} to the path of the program"
                );
                assert!(env::var_os("CI").is_none(), "{missing}");
                eprintln!("skipped: {missing}");
                return None;
            }
        }
        Some(())
    }

    /// Waits until the server accepts connections. Returns whether it still runs.
    fn comes_up(&mut self) -> bool {
        let child = self.child.as_mut().unwrap();
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            thread::sleep(Duration::from_millis(5));
            assert!(
                begun.elapsed() < Duration::from_secs(30),
                "{:?} does not start",
                self.kind
            );
            if child.try_wait().unwrap().is_some() {
                return false;
            }
        }
        true
    }

    fn arguments(&self) -> Vec<OsString> {
        let (port, index) = (self.port, self.index);
        let url = |peer: &u16| format!("http://127.0.0.1:{peer}");
        let own = url(&self.peers[index]);
        let named = |(index, peer)| format!("s{index}={}", url(peer));
        let all: Vec<_> = self.peers.iter().enumerate().map(named).collect();
        let words = match self.kind {
            Kind::Redis => format!("--port {port} --bind 127.0.0.1 --appendonly no --save"),
            // It elects itself soon, and its shortest lease is a second.
            Kind::Etcd => format!(
                "--data-dir data --name s{index} --heartbeat-interval 10 --election-timeout 100 \
                 --listen-client-urls http://127.0.0.1:{port} \
                 --advertise-client-urls http://127.0.0.1:{port} \
                 --listen-peer-urls {own} --initial-advertise-peer-urls {own} \
                 --initial-cluster {}",
                all.join(",")
            ),
        };
        let mut arguments: Vec<OsString> = words.split_whitespace().map(Into::into).collect();
        if self.kind == Kind::Redis {
            // It saves nothing.
            arguments.push("".into());
        }
        arguments
    }

    /// A store with connections of its own.
    pub(crate) fn store(&self) -> Arc<dyn LeaseStore> {
        self.kind.store(&[self.port], Duration::from_secs(5))
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(self.child.as_ref().unwrap(), name);
    }

    /// Calls the gateway of this server of etcd, and returns what it says.
    pub(crate) fn call(&self, path: &str, body: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(Duration::from_millis(200)))?;
        let length = body.len();
        let request = format!("POST {path} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n{body}");
        stream.write_all(request.as_bytes())?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    }

    /// Whether this server of etcd leads the others, as itself says.
    pub(crate) fn leads(&self) -> bool {
        let number = |text: &str, name: &str| {
            let (_, after) = text.split_once(&format!("\"{name}\":\""))?;
            Some(after.split_once('"')?.0.to_owned())
        };
        let text = self
            .call("/v3/maintenance/status", "{}")
            .unwrap_or_default();
        let (own, leader) = (number(&text, "member_id"), number(&text, "leader"));
        own.is_some() && own == leader
    }

    /// Starts the server again, after `kill`. Redis has forgotten everything.
    pub(crate) fn restart(&mut self) {
        self.kill();
        self.spawn().unwrap();
        assert!(self.comes_up());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

pub(crate) fn signal(child: &Child, name: &str) {
    let pid = child.id().to_string();
    let sent = Command::new("kill").args([name, &pid]).status().unwrap();
    assert!(sent.success());
}
