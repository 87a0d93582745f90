//! A Redis server that a test starts on a free port of this host.

use core::time::Duration;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Instant;

use portcullis_counters::{RedisCounters, RedisSettings};

const SECOND: Duration = Duration::from_secs(1);

/// A server of one test.
#[allow(dead_code, reason = "tests that include this module use a part of it")]
pub(crate) struct Server {
    child: Child,
    pub(crate) port: u16,
    /// Where it keeps what it knows, if it does.
    folder: Option<PathBuf>,
}

#[allow(dead_code, reason = "as above")]
impl Server {
    /// Starts a server: the one that `PORTCULLIS_REDIS` names, or the one that is installed. `None`
    /// if there is none, outside of CI.
    pub(crate) fn start() -> Option<Self> {
        Self::start_on(Self::free_port())
    }

    /// As [`start`](Self::start), with a server that writes each change to a file in `folder`
    /// before it answers.
    pub(crate) fn start_durable(folder: &Path) -> Option<Self> {
        Self::start_with(Self::free_port(), Some(folder.to_owned()))
    }

    /// As [`start`](Self::start), with more arguments.
    pub(crate) fn start_as(arguments: &[&str]) -> Option<Self> {
        Self::start_of(Self::free_port(), None, arguments)
    }

    pub(crate) fn free_port() -> u16 {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        port
    }

    pub(crate) fn start_on(port: u16) -> Option<Self> {
        Self::start_with(port, None)
    }

    fn start_with(port: u16, folder: Option<PathBuf>) -> Option<Self> {
        Self::start_of(port, folder, &[])
    }

    fn start_of(port: u16, folder: Option<PathBuf>, arguments: &[&str]) -> Option<Self> {
        let program = std::env::var_os("PORTCULLIS_REDIS");
        let mut server = Command::new(program.unwrap_or_else(|| "redis-server".into()));
        server.args(["--bind", "127.0.0.1", "--save", ""]);
        match &folder {
            None => server.args(["--appendonly", "no"]),
            Some(folder) => server
                .args(["--appendonly", "yes", "--appendfsync", "always", "--dir"])
                .arg(folder),
        };
        server.args(["--port", &port.to_string()]).args(arguments);
        let child = match server.stdout(Stdio::null()).spawn() {
            Ok(child) => child,
            Err(error) => {
                let missing = format!(
                    "redis-server cannot be started ({error}): install Debian's package \
                     redis-server, or set PORTCULLIS_REDIS to the path of the program"
                );
                assert!(std::env::var_os("CI").is_none(), "{missing}");
                eprintln!("skipped: {missing}");
                return None;
            }
        };
        let server = Self {
            child,
            port,
            folder,
        };
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(begun.elapsed() < 20 * SECOND, "the server does not start");
            thread::sleep(Duration::from_millis(5));
        }
        Some(server)
    }

    pub(crate) fn settings(&self) -> RedisSettings {
        Self::settings_of(self.port)
    }

    /// The settings for the server on a port of this host.
    pub(crate) fn settings_of(port: u16) -> RedisSettings {
        RedisSettings::new(&format!("redis://127.0.0.1:{port}/")).time_limit(5 * SECOND)
    }

    /// A store with a connection of its own.
    pub(crate) fn store(&self) -> RedisCounters {
        RedisCounters::new(&self.settings()).unwrap()
    }

    /// The answer to a command that is not one of the store.
    pub(crate) async fn ask<T: redis::FromRedisValue>(&self, command: &[&str]) -> T {
        let url = format!("redis://127.0.0.1:{}/", self.port);
        let client = redis::Client::open(url).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        let mut cmd = redis::cmd(command[0]);
        cmd.arg(&command[1..]);
        cmd.query_async(&mut connection).await.unwrap()
    }

    /// Stops or continues the process of the server.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args([name, &pid]).status().unwrap();
        assert!(sent.success());
    }

    /// Kills the server, and starts it again after a time.
    pub(crate) fn restart_after(&mut self, time: Duration) {
        self.stop();
        thread::sleep(time);
        *self = Self::start_with(self.port, self.folder.take()).expect("it was started before");
    }

    pub(crate) fn stop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
