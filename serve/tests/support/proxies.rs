//! Real proxies, with the configurations of the guide, and the service behind them.

#![allow(dead_code, reason = "each test uses a part")]

use core::net::SocketAddr;
use core::sync::atomic::Ordering::SeqCst;
use core::sync::atomic::{AtomicBool, AtomicUsize};
use core::time::Duration;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use super::client::{Client, ask};
use super::program::folder;

/// Returns a program: the one that the environment names, or the one that is installed. `None` if
/// it is missing, outside of CI.
pub(crate) fn installed(name: &str, version: &str) -> Option<OsString> {
    let variable = format!("PORTCULLIS_{}", name.to_ascii_uppercase());
    let system = format!("/usr/sbin/{name}");
    let named = std::env::var_os(&variable);
    let known = [name, &system].map(OsString::from);
    let found = named.into_iter().chain(known).find(|program| {
        let output = Command::new(program).arg(version).output();
        output.is_ok_and(|output| output.status.success())
    });
    if found.is_none() {
        let missing = format!("{name} is missing: Debian's {name}, or its path in {variable}");
        assert!(std::env::var_os("CI").is_none(), "{missing}");
        eprintln!("skipped: {missing}");
    }
    found
}

/// A service on loopback, which counts the requests that it gets.
pub(crate) struct Service {
    pub(crate) address: SocketAddr,
    served: Arc<AtomicUsize>,
    released: Arc<AtomicBool>,
}

impl Service {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let address = listener.local_addr().expect("an address");
        let served = Arc::new(AtomicUsize::new(0));
        let released = Arc::new(AtomicBool::new(false));
        let (serves, is_released) = (Arc::clone(&served), Arc::clone(&released));
        // It ends with the tests.
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (serves, is_released) = (Arc::clone(&serves), Arc::clone(&is_released));
                thread::spawn(move || serve(&stream, &serves, &is_released));
            }
        });
        Self {
            address,
            served,
            released,
        }
    }

    /// Answers the requests for `/held`.
    pub(crate) fn release(&self) {
        self.released.store(true, SeqCst);
    }

    /// The number of requests so far.
    pub(crate) fn served(&self) -> usize {
        self.served.load(SeqCst)
    }
}

/// Answers the requests of a connection, which have no bodies: those for `/held` once they are
/// released.
fn serve(stream: &TcpStream, served: &AtomicUsize, released: &AtomicBool) {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    while let Some(first) = lines.next() {
        lines.by_ref().take_while(|line| !line.is_empty()).count();
        served.fetch_add(1, SeqCst);
        while first.contains(" /held ") && !released.load(SeqCst) {
            thread::sleep(Duration::from_millis(5));
        }
        let reply = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nserved";
        let mut stream = stream;
        if stream.write_all(reply).is_err() {
            return;
        }
    }
}

/// A proxy that runs.
pub(crate) struct Running {
    child: Child,
    pub(crate) address: SocketAddr,
    pub(crate) folder: PathBuf,
}

impl Running {
    fn start(mut command: Command, folder: PathBuf, address: SocketAddr) -> Self {
        let child = command.spawn().expect("it starts");
        let running = Self {
            child,
            address,
            folder,
        };
        let begun = Instant::now();
        while TcpStream::connect(address).is_err() {
            assert!(
                begun.elapsed() < Duration::from_secs(20),
                "it does not listen"
            );
            thread::sleep(Duration::from_millis(10));
        }
        running
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_address() -> SocketAddr {
    let free = TcpListener::bind("127.0.0.1:0").expect("loopback");
    free.local_addr().expect("an address")
}

/// Replaces each text, which must be there.
fn with(mut text: String, replaced: &[(&str, &str)]) -> String {
    for (from, to) in replaced {
        assert!(text.contains(from), "{from} is not in the configuration");
        text = text.replace(from, to);
    }
    text
}

/// Two requests that are under way together, of a proxy that lets one pass: the second is denied
/// with `status`, the first is served, and so is one after it.
pub(crate) fn one_at_once(proxy: SocketAddr, service: &Service, status: u16) {
    let before = service.served();
    let mut first = Client::connect(proxy);
    first.request("GET /held", &[]);
    super::program::until(|| service.served() == before + 1);
    assert_eq!(ask(proxy, "GET /", &[]).status, status);
    assert_eq!(service.served(), before + 1);
    service.release();
    assert_eq!(first.reply().status, 200);
    // The proxy may notice the end a moment later.
    super::program::until(|| ask(proxy, "GET /", &[]).status == 200);
}

/// Starts nginx with the configuration of the guide.
pub(crate) fn nginx(
    program: &OsStr,
    name: &str,
    serve: SocketAddr,
    service: SocketAddr,
) -> Running {
    nginx_with(program, name, serve, service, &[])
}

/// What makes the nginx of the guide one behind a load balancer on loopback, which names the
/// clients.
pub(crate) const NGINX_BEHIND: [(&str, &str); 2] = [
    (
        "#set_real_ip_from 10.0.0.0/8;",
        "set_real_ip_from 127.0.0.1;",
    ),
    ("#real_ip", "real_ip"),
];

/// As [`nginx`], with `others` replaced too.
pub(crate) fn nginx_with(
    program: &OsStr,
    name: &str,
    serve: SocketAddr,
    service: SocketAddr,
    others: &[(&str, &str)],
) -> Running {
    let (folder, address) = (folder(name), free_address());
    let text = with(include_str!("../../deploy/nginx.conf").to_owned(), others);
    let temporary = "http {
        access_log off;
        keepalive_requests 1000000000;
        client_body_temp_path body;
        proxy_temp_path proxy;
        fastcgi_temp_path fastcgi;
        uwsgi_temp_path uwsgi;
        scgi_temp_path scgi;";
    let text = with(
        text,
        &[
            ("http {", temporary),
            ("listen 80;", &format!("listen {address};")),
            ("127.0.0.1:8787", &serve.to_string()),
            ("127.0.0.1:8080", &service.to_string()),
        ],
    );
    let head = "daemon off;\nmaster_process off;\npid nginx.pid;\nerror_log error.log;\n";
    fs::write(folder.join("nginx.conf"), format!("{head}{text}")).expect("a file");
    let mut command = Command::new(program);
    command.arg("-p").arg(&folder).args(["-c", "nginx.conf"]);
    // Otherwise it opens the log of the system before it reads the settings.
    command.args(["-e", "error.log"]);
    Running::start(command, folder, address)
}

/// Starts HAProxy with the configuration of the guide, in which `others` are replaced too.
pub(crate) fn haproxy(
    program: &OsStr,
    name: &str,
    serve: SocketAddr,
    service: SocketAddr,
    others: &[(&str, &str)],
) -> Running {
    let (folder, address) = (folder(name), free_address());
    let lua = folder.join("portcullis.lua");
    fs::write(&lua, include_str!("../../deploy/portcullis.lua")).expect("a file");
    let text = with(
        with(include_str!("../../deploy/haproxy.cfg").to_owned(), others),
        &[
            ("/etc/haproxy/portcullis.lua", &lua.to_string_lossy()),
            ("bind :80", &format!("bind {address}")),
            ("127.0.0.1:8787", &serve.to_string()),
            ("127.0.0.1:8080", &service.to_string()),
        ],
    );
    let file = folder.join("haproxy.cfg");
    fs::write(&file, text).expect("a file");
    let mut command = Command::new(program);
    command.args(["-db", "-f"]).arg(&file);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    Running::start(command, folder, address)
}

/// Starts Envoy with the configuration of the guide, in which `others` are replaced too. `serve`
/// answers gRPC.
pub(crate) fn envoy(
    program: &OsStr,
    name: &str,
    serve: SocketAddr,
    service: SocketAddr,
    others: &[(&str, &str)],
) -> Running {
    let (folder, address) = (folder(name), free_address());
    let at = |address: SocketAddr| format!("127.0.0.1, port_value: {} ", address.port());
    let text = with(
        with(include_str!("../../deploy/envoy.yaml").to_owned(), others),
        &[
            ("0.0.0.0, port_value: 80 ", &at(address)),
            ("127.0.0.1, port_value: 8789 ", &at(serve)),
            ("127.0.0.1, port_value: 8080 ", &at(service)),
        ],
    );
    fs::write(folder.join("envoy.yaml"), text).expect("a file");
    let mut command = Command::new(program);
    command.args(["-c", "envoy.yaml", "--log-level", "error"]);
    command.args(["--concurrency", "1", "--disable-hot-restart"]);
    command.current_dir(&folder);
    Running::start(command, folder, address)
}

/// Starts Traefik with the configuration of the guide, in which `others` are replaced too.
pub(crate) fn traefik(
    program: &OsStr,
    name: &str,
    serve: SocketAddr,
    service: SocketAddr,
    others: &[(&str, &str)],
) -> Running {
    let (folder, address) = (folder(name), free_address());
    let text = with(
        with(include_str!("../../deploy/traefik.yaml").to_owned(), others),
        &[
            ("127.0.0.1:8787", &serve.to_string()),
            ("127.0.0.1:8080", &service.to_string()),
        ],
    );
    fs::write(folder.join("dynamic.yaml"), text).expect("a file");
    let mut command = Command::new(program);
    command.arg(format!("--entryPoints.web.address={address}"));
    command.arg("--providers.file.filename=dynamic.yaml");
    command.arg("--global.checkNewVersion=false");
    command
        .current_dir(&folder)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let running = Running::start(command, folder, address);
    // It listens before it has read this file.
    super::program::until(|| super::client::ask(address, "GET /", &[]).status != 404);
    running
}

/// Starts Caddy with the configuration of the guide, in which `others` are replaced too.
pub(crate) fn caddy(
    program: &OsStr,
    name: &str,
    serve: SocketAddr,
    service: SocketAddr,
    others: &[(&str, &str)],
) -> Running {
    let (folder, address) = (folder(name), free_address());
    let own = format!(":{} {{\nbind {}", address.port(), address.ip());
    let text = with(
        include_str!("../../deploy/Caddyfile").to_owned(),
        &[
            (":80 {", &own),
            ("127.0.0.1:8787", &serve.to_string()),
            ("127.0.0.1:8080", &service.to_string()),
        ],
    );
    let text = format!("{{\nadmin off\n}}\n{}", with(text, others));
    fs::write(folder.join("Caddyfile"), text).expect("a file");
    let mut command = Command::new(program);
    command.args(["run", "--adapter", "caddyfile", "--config", "Caddyfile"]);
    // It writes its settings and certificates there.
    for variable in ["HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"] {
        command.env(variable, &folder);
    }
    command.current_dir(&folder);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    Running::start(command, folder, address)
}
