//! A server of nginx on loopback: one whose requests `limit_req` limits, or a proxy.

#![allow(dead_code, reason = "each test uses a part")]

use core::net::SocketAddr;
use core::time::Duration;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;

/// Returns the program: the one that the environment names, or the one that is installed.
pub(crate) fn program() -> Option<OsString> {
    let named = std::env::var_os("PORTCULLIS_NGINX");
    let installed = ["nginx", "/usr/sbin/nginx"].map(OsString::from);
    named.into_iter().chain(installed).find(|program| {
        let output = Command::new(program).arg("-v").output();
        output.is_ok_and(|output| output.status.success())
    })
}

pub(crate) struct Nginx {
    program: OsString,
    child: Child,
    folder: PathBuf,
    address: SocketAddr,
}

impl Nginx {
    /// Starts nginx with one worker. It admits `burst` requests at once, and `rate` per second.
    pub(crate) fn start(program: &OsStr, rate: u32, burst: u32) -> Self {
        // `limit_req` counts the requests beyond the first as its burst.
        let burst = burst - 1;
        let zone = format!("limit_req_zone $binary_remote_addr zone=clients:1m rate={rate}r/s;");
        let location = format!(
            "limit_req zone=clients burst={burst} nodelay;
            limit_req_status 429;
            empty_gif;"
        );
        Self::with_settings(program, "limits", &zone, &location)
    }

    /// Starts a proxy before the server at a URL, with zones and what limits the requests.
    pub(crate) fn limited(
        program: &OsStr,
        name: &str,
        zones: &str,
        limits: &str,
        url: &str,
    ) -> Self {
        let location = format!("{limits} proxy_pass {url};");
        Self::with_settings(program, name, zones, &location)
    }

    /// Starts a proxy before the server at a URL.
    pub(crate) fn proxy(program: &OsStr, name: &str, url: &str) -> Self {
        Self::with_settings(program, name, "", &format!("proxy_pass {url};"))
    }

    fn with_settings(program: &OsStr, name: &str, http: &str, location: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join("nginx")
            .join(name);
        fs::create_dir_all(&folder).expect("a folder");
        let free = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let address = free.local_addr().expect("an address");
        drop(free);
        fs::write(folder.join("nginx.conf"), settings(address, http, location)).expect("a file");
        let _ = fs::remove_file(folder.join("access.log"));
        let child = command(program, &folder).spawn().expect("nginx starts");
        let nginx = Self {
            program: program.to_owned(),
            child,
            folder,
            address,
        };
        for _ in 0..1_000 {
            if TcpStream::connect(address).is_ok() {
                return nginx;
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("nginx does not listen within 10 s");
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops nginx, and returns when each request was decided, in nanoseconds and in whole
    /// milliseconds, and its status.
    pub(crate) fn stop(mut self) -> Vec<(u64, u16)> {
        let mut quit = command(&self.program, &self.folder);
        let status = quit.args(["-s", "quit"]).status();
        assert!(status.is_ok_and(|status| status.success()));
        self.child.wait().expect("nginx ends");
        let log = fs::read_to_string(self.folder.join("access.log")).expect("a log");
        let line = |line: &str| {
            let (seconds, status) = line.split_once(' ')?;
            let (seconds, millis) = seconds.split_once('.')?;
            let millis = seconds.parse::<u64>().ok()? * 1_000 + millis.parse::<u64>().ok()?;
            Some((millis * 1_000_000, status.parse().ok()?))
        };
        log.lines()
            .map(|text| line(text).expect("a time and a status"))
            .collect()
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // It has ended already, unless the test has failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(program: &OsStr, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command.arg("-p").arg(folder).args(["-c", "nginx.conf"]);
    // Otherwise it opens the log of the system before it reads the settings.
    command.args(["-e", "error.log"]);
    command
}

fn settings(address: SocketAddr, http: &str, location: &str) -> String {
    format!(
        "daemon off;
master_process off;
pid nginx.pid;
error_log error.log crit;
events {{ worker_connections 64; }}
http {{
    log_format times '$msec $status';
    access_log access.log times buffer=1m;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    keepalive_requests 1000000000;
    {http}
    server {{
        listen {address};
        location / {{
            {location}
        }}
    }}
}}
"
    )
}
