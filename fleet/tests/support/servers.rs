//! Servers of stores, which a test starts on free ports of this host.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use core::time::Duration;
use std::ffi::OsString;
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;
use std::{env, fs, thread};

use portcullis_fleet::{EtcdSettings, EtcdStore, LeaseStore, RedisSettings, RedisStore};

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

    /// A store on the server at a port, whose calls take at most `limit`.
    pub(crate) fn store(self, port: u16, limit: Duration) -> Arc<dyn LeaseStore> {
        match self {
            Self::Etcd => {
                let settings = EtcdSettings::new([format!("http://127.0.0.1:{port}")]);
                Arc::new(EtcdStore::new(&settings.time_limit(limit)).unwrap())
            }
            Self::Redis => {
                let settings = RedisSettings::new(&format!("redis://127.0.0.1:{port}/"));
                Arc::new(RedisStore::new(&settings.time_limit(limit)).unwrap())
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
    /// The port of etcd's other servers, of which there are none.
    peers: u16,
}

fn free_port() -> u16 {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    free.local_addr().unwrap().port()
}

impl Server {
    /// Starts a server: the one that the environment names, or the one that is installed. `None` if
    /// there is none, outside of CI.
    pub(crate) fn start(kind: Kind) -> Option<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Relaxed);
        let name = format!("portcullis-fleet-{}-{number}", std::process::id());
        let folder = env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        let mut server = Self {
            kind,
            port: 0,
            child: None,
            folder,
            peers: 0,
        };
        // Another process may take a port first.
        for _ in 0..5 {
            (server.port, server.peers) = (free_port(), free_port());
            if server.run()? {
                return Some(server);
            }
        }
        panic!("{kind:?} does not start");
    }

    /// Runs the program, on the port and with the files of before. Returns whether it goes on, or
    /// `None` if there is no such program, outside of CI.
    fn run(&mut self) -> Option<bool> {
        let (name, package) = self.kind.program();
        let program = env::var_os(self.kind.variable()).unwrap_or_else(|| name.into());
        let mut command = Command::new(program);
        command.args(self.arguments()).current_dir(&self.folder);
        command.stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = match command.spawn() {
            Ok(child) => child,
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
        };
        let begun = Instant::now();
        let mut runs = true;
        while runs && TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            thread::sleep(Duration::from_millis(5));
            runs = child.try_wait().unwrap().is_none();
            assert!(
                begun.elapsed() < Duration::from_secs(30),
                "{name} does not start"
            );
        }
        self.child = Some(child);
        Some(runs)
    }

    fn arguments(&self) -> Vec<OsString> {
        let (port, peers) = (self.port, self.peers);
        let words = match self.kind {
            Kind::Redis => format!("--port {port} --bind 127.0.0.1 --appendonly no --save"),
            // It elects itself soon, and its shortest lease is a second.
            Kind::Etcd => format!(
                "--data-dir data --name one --heartbeat-interval 10 --election-timeout 100 \
                 --listen-client-urls http://127.0.0.1:{port} \
                 --advertise-client-urls http://127.0.0.1:{port} \
                 --listen-peer-urls http://127.0.0.1:{peers} \
                 --initial-advertise-peer-urls http://127.0.0.1:{peers} \
                 --initial-cluster one=http://127.0.0.1:{peers}"
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
        self.kind.store(self.port, Duration::from_secs(5))
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts the server again, after `kill`. Redis has forgotten everything.
    pub(crate) fn restart(&mut self) {
        self.kill();
        assert_eq!(self.run(), Some(true));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        let _ = fs::remove_dir_all(&self.folder);
    }
}
