//! The rules of a file in the configuration of servers: real ones decide as the file does.

mod common;

use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Instant;

use common::{Scratch, portcullis, random, text};
use portcullis_core::Timestamp;
use portcullis_core::limiter::Detail;
use portcullis_policy::{Considered, Policy, Request};
use serde_json::{Value, json};

fn export(policy: &str, to: &str) -> Output {
    // The tests of this program run at once.
    static FILES: AtomicU32 = AtomicU32::new(0);

    let number = FILES.fetch_add(1, Relaxed);
    let file = Scratch::new(&format!("{to}-{number}.toml"), policy.as_bytes());
    let output = portcullis(&["export", file.path(), "--to", to])
        .output()
        .unwrap();
    Output {
        stderr: text(&output.stderr)
            .replace(file.path(), "FILE")
            .into_bytes(),
        ..output
    }
}

/// Returns the configuration of rules that can all be said.
fn exported(policy: &str, to: &str) -> String {
    let output = export(policy, to);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "");
    text(&output.stdout)
}

/// Returns a program, or `None` if it is missing outside of CI.
fn installed(name: &str, version: &str) -> Option<OsString> {
    let variable = format!("PORTCULLIS_{}", name.to_ascii_uppercase());
    let known = [name.to_owned(), format!("/usr/sbin/{name}")].map(OsString::from);
    let found = std::env::var_os(&variable)
        .into_iter()
        .chain(known)
        .find(|program| {
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

/// A server that runs, in a folder of its own.
struct Running {
    child: Child,
    address: SocketAddr,
    folder: PathBuf,
}

impl Running {
    fn start(name: &str, command: impl FnOnce(&Path, SocketAddr) -> Command) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("{}-export-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let child = command(&folder, address)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
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

    /// nginx, which takes the address of the client from a field, and logs the time of a request.
    fn nginx(program: &OsString, name: &str, rules: &str) -> Self {
        Self::start(name, |folder, address| {
            fs::write(folder.join("rules.conf"), rules).unwrap();
            let config = format!(
                "daemon off; master_process off; pid nginx.pid; error_log error.log;
                events {{}}
                http {{
                    log_format times '$msec $status';
                    access_log times.log times;
                    keepalive_requests 1000000;
                    client_body_temp_path body;
                    proxy_temp_path proxy;
                    fastcgi_temp_path fastcgi;
                    uwsgi_temp_path uwsgi;
                    scgi_temp_path scgi;
                    include rules.conf;
                    server {{
                        listen {address};
                        set_real_ip_from 127.0.0.1;
                        real_ip_header X-Client-Address;
                        location / {{ empty_gif; }}
                    }}
                }}"
            );
            fs::write(folder.join("nginx.conf"), config).unwrap();
            let mut command = Command::new(program);
            command.arg("-p").arg(folder);
            command.args(["-c", "nginx.conf", "-e", "error.log"]);
            command
        })
    }

    /// HAProxy, which takes the address of the client from the head of the connection.
    fn haproxy(program: &OsString, name: &str, rules: &str) -> Self {
        Self::start(name, |folder, address| {
            fs::write(folder.join("rules.cfg"), rules).unwrap();
            let config = format!(
                "frontend web from portcullis
                    bind {address} accept-proxy
                    timeout client 30s
                    http-request return status 200
                backend other
                    server one {address}\n"
            );
            fs::write(folder.join("haproxy.cfg"), config).unwrap();
            let mut command = Command::new(program);
            command.arg("-db");
            command.arg("-f").arg(folder.join("rules.cfg"));
            command.arg("-f").arg(folder.join("haproxy.cfg"));
            command
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A connection that stays open.
struct Client(BufReader<TcpStream>);

impl Client {
    fn new(server: SocketAddr) -> Self {
        let stream = TcpStream::connect(server).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        Self(BufReader::new(stream))
    }

    /// A connection of a client with this address, as a proxy before HAProxy states it.
    fn of(address: &str, server: SocketAddr) -> Self {
        let mut client = Self::new(server);
        let version = if address.contains(':') {
            "TCP6"
        } else {
            "TCP4"
        };
        let head = format!("PROXY {version} {address} {address} 4000 80\r\n");
        client.0.get_mut().write_all(head.as_bytes()).unwrap();
        client
    }

    /// Returns the status of the answer.
    fn ask(&mut self, request: &str, fields: &[(&str, &str)]) -> u16 {
        self.ask_host("shop.example", request, fields)
    }

    fn ask_host(&mut self, host: &str, request: &str, fields: &[(&str, &str)]) -> u16 {
        let mut head = format!("{request} HTTP/1.1\r\nHost: {host}\r\n");
        for (name, value) in fields {
            head.extend([name, ": ", value, "\r\n"]);
        }
        head += "Content-Length: 0\r\n\r\n";
        self.0.get_mut().write_all(head.as_bytes()).unwrap();
        let (mut status, mut length) = (0, 0);
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).unwrap();
            let line = line.trim_end().to_ascii_lowercase();
            if let Some(rest) = line.strip_prefix("http/1.1 ") {
                status = rest[..3].parse().unwrap();
            } else if let Some(bytes) = line.strip_prefix("content-length: ") {
                length = bytes.parse().unwrap();
            } else if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).unwrap();
        status
    }
}

const RULES: &str = "
    paths = { reading = 'resolved', decode_slashes = true }

    [[rules]]
    name = 'each key'
    key = ['header:X-Api-Key']
    on_missing = 'skip'
    limits = [{ rate = '10/s', burst = 3 }]
    continue = true

    [[rules]]
    name = 'login'
    methods = ['POST']
    paths = ['/login', '/v1/*/session/**']
    key = ['address']
    limits = [{ rate = '2/s', burst = 4 }]
    exempt = { headers = { X-Client = ['monitor'] }, networks = ['198.51.100.0/24'] }

    [[rules]]
    name = 'free'
    hosts = ['203.0.113.0/24', 'free.example']

    [[rules]]
    name = 'all'
    key = ['address/24/48', 'method']
    limits = ['20/s', { rate = '2/s', burst = 30 }]
";

/// Whether all rules that would limit a request let it pass at `now`, if it takes nothing.
fn would_pass(policy: &Policy, now: Timestamp, request: &Request<'_>) -> bool {
    let mut passes = true;
    for each in policy.explain_at(now, request).unwrap() {
        if let Considered::Limits { details, .. } = &each.considered {
            passes &= details.iter().all(Detail::is_allowed);
        }
        let goes_on = matches!(
            each.considered,
            Considered::Mismatch(_) | Considered::Skipped
        );
        if !goes_on && !each.rule.is_continuing() {
            break;
        }
    }
    passes
}

/// nginx counts in milliseconds, of another clock than that of its log. So a request may be judged
/// by the file up to 2 ms earlier or later, and only where that makes a difference.
#[test]
fn nginx_decides_recorded_arrivals_as_the_policy() {
    let Some(program) = installed("nginx", "-v") else {
        return;
    };
    let nginx = Running::nginx(&program, "arrivals", &exported(RULES, "nginx"));
    let mut client = Client::new(nginx.address);
    let mut random = random();
    let addresses = [
        "192.0.2.7",
        "192.0.2.8",
        "203.0.113.5",
        "198.51.100.9",
        "2001:db8::1",
        "2001:db8::ffff:1",
    ];
    let paths = [
        "/login",
        "//login/",
        "/%6Cogin",
        "/x/../login",
        "/v1/me/session",
        "/v1/me/session%2Fa",
        "/v1/session",
        "/LOGIN",
        "/login/a",
        "/",
    ];
    let mut sent = Vec::new();
    for _ in 0..600 {
        let method = ["GET", "HEAD", "POST", "POST", "POST"][random(5) as usize];
        let method = if method == "HEAD" { "GET" } else { method };
        let path = paths[random(paths.len() as u64) as usize];
        let address = addresses[random(addresses.len() as u64) as usize];
        let mut fields = vec![("X-Client-Address", address)];
        match random(4) {
            0 => fields.push(("X-Api-Key", "k1")),
            1 => fields.push(("X-Api-Key", "k2")),
            _ => {}
        }
        if random(8) == 0 {
            fields.push(("X-Client", "monitor"));
        }
        let status = client.ask(&format!("{method} {path}"), &fields);
        sent.push((method, path, address, fields, status));
        thread::sleep(Duration::from_millis(random(14)));
    }
    drop(client);
    // A line is written before the answer to the next request.
    let log = fs::read_to_string(nginx.folder.join("times.log")).unwrap();
    let times: Vec<u64> = log
        .lines()
        .map(|line| line.split(' ').next().unwrap().replace('.', ""))
        .map(|millis| millis.parse().unwrap())
        .collect();
    assert!(times.len() >= sent.len() - 1);
    let policy = Policy::from_toml(RULES).unwrap();
    let (mut denied, mut ties) = (0, 0);
    let start = times[0] - 1_000;
    for ((method, path, address, fields, status), time) in sent.iter().zip(&times) {
        let request = Request::new(method, path)
            .host("shop.example")
            .address(address.parse().unwrap())
            .headers(fields);
        let at = |millis: u64| Timestamp::from_millis(millis - start);
        let passed = *status != 429;
        denied += usize::from(!passed);
        let [early, late] =
            [time - 2, time + 2].map(|millis| would_pass(&policy, at(millis), &request));
        if early == late {
            let about = format!("{method} {path} {fields:?} at {time}");
            assert_eq!(passed, early, "{about}");
        } else {
            ties += 1;
        }
        if passed {
            // The permits are taken, also where they came in within the 2 ms.
            let later = if early { *time } else { time + 2 };
            assert!(policy.decide_at(at(later), &request).is_allowed());
        }
    }
    assert!((100..550).contains(&denied), "{denied}");
    assert!(ties < 30, "{ties}");
}

#[test]
fn nginx_tells_the_networks_of_clients_apart_as_the_policy_does() {
    let Some(program) = installed("nginx", "-v") else {
        return;
    };
    for (key, keeps) in [("address", 64), ("address/16/48", 48), ("address/8/16", 16)] {
        let rules = format!(
            "[[rules]]\nname = 'a'\nkey = ['{key}']\nkeys = 9000\n\
             limits = [{{ rate = '1/m', burst = 1 }}]\n"
        );
        let nginx = Running::nginx(&program, "networks", &exported(&rules, "nginx"));
        let policy = Policy::from_toml(&rules).unwrap();
        let mut client = Client::new(nginx.address);
        let mut random = random();
        for _ in 0..400 {
            // Many zeros, so that every form of an address is there.
            let groups: [u16; 8] =
                core::array::from_fn(|_| [0, 0, 0, 1, 0xabc][random(5) as usize]);
            let address: IpAddr = match random(6) {
                0 => [10, random(2) as u8, random(2) as u8, random(4) as u8].into(),
                1 => {
                    let v4: core::net::Ipv4Addr = [10, 0, 0, random(4) as u8].into();
                    v4.to_ipv6_mapped().into()
                }
                _ => Ipv6Addr::from(groups).into(),
            };
            let shown = address.to_string();
            let status = client.ask("GET /", &[("X-Client-Address", &shown)]);
            let request = Request::new("GET", "/").address(address);
            let is_allowed = policy
                .decide_at(Timestamp::from_secs(100), &request)
                .is_allowed();
            assert_eq!(status == 200, is_allowed, "{shown} /{keeps}");
        }
    }
}

/// A rule that denies has a status of its own here.
const STATUSES: &str = "
    [[rules]]
    name = 'each key'
    key = ['header:X-Api-Key']
    on_missing = 'skip'
    limits = ['4/s']
    status = 418
    continue = true

    [[rules]]
    name = 'login'
    methods = ['POST']
    paths = ['/login']
    key = ['address']
    limits = [{ rate = '2/s', burst = 3 }]
    status = 403
    exempt = { networks = ['198.51.100.0/24'] }

    [[rules]]
    name = 'closed'
    paths = ['/closed/**']
    limits = ['0/s']
    status = 410

    [[rules]]
    name = 'all'
    key = ['address']
    limits = [{ rate = '10/s', algorithm = 'fixed-window' }, { at_once = 5 }]
";

#[test]
fn haproxy_denies_by_the_rule_of_the_policy_and_keeps_the_bound() {
    let Some(program) = installed("haproxy", "-v") else {
        return;
    };
    let haproxy = Running::haproxy(&program, "bound", &exported(STATUSES, "haproxy"));
    let addresses = ["192.0.2.7", "192.0.2.8", "2001:db8::1", "198.51.100.9"];
    let mut clients = addresses.map(|address| Client::of(address, haproxy.address));
    let mut random = random();
    // By rule and key: when a request passed, as an interval.
    let mut passed: Vec<(&str, usize, Instant, Instant)> = Vec::new();
    // In the same way, when a request was asked that was denied.
    let mut denied: Vec<(&str, usize, Instant)> = Vec::new();
    for _ in 0..700 {
        let client = random(4) as usize;
        let request = [
            "POST /login",
            "GET /login",
            "GET /closed/a",
            "POST /%6Cogin/",
        ][random(4) as usize];
        let has_key = random(3) == 0;
        let fields: &[_] = if has_key { &[("X-Api-Key", "k")] } else { &[] };
        let before = Instant::now();
        let status = clients[client].ask(request, fields);
        let after = Instant::now();
        let rule = match request {
            "GET /login" => "all",
            "GET /closed/a" => "closed",
            _ if client == 3 => "exempt",
            _ => "login",
        };
        match (status, rule) {
            (200, "closed") => panic!("it is closed"),
            (200, _) => {
                passed.push((rule, client, before, after));
                if has_key {
                    passed.push(("each key", 0, before, after));
                }
            }
            (418, _) => {
                assert!(has_key);
                denied.push(("each key", 0, before));
            }
            (403, "login") | (429, "all") => denied.push((rule, client, before)),
            (410, "closed") => {}
            _ => panic!("{status} of {rule}"),
        }
        thread::sleep(Duration::from_millis(random(8)));
    }
    for (rule, burst, millis) in [
        ("each key", 4, 1_000),
        ("login", 3, 1_500),
        ("all", 10, 1_000),
    ] {
        for key in 0..4 {
            let of_key = |each: &&(&str, usize, Instant, Instant)| (each.0, each.1) == (rule, key);
            let times: Vec<_> = passed.iter().filter(of_key).collect();
            for (index, first) in times.iter().enumerate() {
                for (count, last) in times[index..].iter().enumerate() {
                    let span = (last.3 - first.2).as_millis();
                    let periods = span.div_ceil(millis).max(1);
                    let most = (periods + 1) * burst;
                    assert!((count as u128) < most, "{rule}: {count} in {span} ms");
                }
            }
            // A request is denied only if the permits were taken in the last two windows, of which
            // the estimate is made. How many are denied depends on how fast the machine is.
            let windows = Duration::from_millis(2 * millis as u64 + 10);
            for &(.., asked) in denied.iter().filter(|each| (each.0, each.1) == (rule, key)) {
                let is_recent = |each: &&&(_, _, Instant, Instant)| {
                    each.3 <= asked && asked.duration_since(each.3) <= windows
                };
                let count = times.iter().filter(is_recent).count() as u128;
                assert!(count >= burst, "{rule} {key}: denied after {count}");
            }
            // At least the first permits, however fast the machine is.
            let is_used = key < 3 && (rule != "each key" || key == 0);
            let count = times.len() as u128;
            assert!(!is_used || count >= burst, "{rule} {key}: {count}");
        }
    }
    // After two periods all permits are there, and a denied request has taken none.
    thread::sleep(Duration::from_millis(3_100));
    let fields = [("X-Api-Key", "k")];
    let mut ask = |client: usize, request: &str, fields: &[_]| clients[client].ask(request, fields);
    let logins = [0; 5].map(|_| ask(0, "POST /login", &fields[..]));
    assert_eq!(logins, [200, 200, 200, 403, 403]);
    // The key has one left: two were denied by the other rule.
    assert_eq!(ask(1, "GET /", &fields[..]), 200);
    assert_eq!(ask(1, "GET /", &fields[..]), 418);
    // Another spelling of a path is refused, rather than judged by another rule.
    for path in ["//login", "/x/../login", "/login/.", "/a%2Fb"] {
        // HAProxy closes the connection.
        let mut client = Client::of(addresses[2], haproxy.address);
        assert_eq!(client.ask(&format!("GET {path}"), &[]), 400, "{path}");
    }
}

/// Another field of the same name after it, or a comma in one, gives a client no new key.
#[test]
fn the_first_of_several_fields_counts_in_each_server_as_in_the_policy() {
    let rules = "
        paths = { reading = 'resolved', decode_slashes = true }

        [[rules]]
        name = 'free'
        hosts = ['free.example']

        [[rules]]
        name = 'each key'
        key = ['header:X-Api-Key']
        on_missing = 'skip'
        limits = [{ rate = '1/m', burst = 1 }]
        exempt = { headers = { X-Client = ['monitor'] } }
    ";
    let policy = Policy::from_toml(rules).unwrap();
    let requests = [
        (
            "shop.example",
            &[("X-Api-Key", "mine"), ("X-Api-Key", "r1")][..],
        ),
        (
            "shop.example",
            &[("X-Api-Key", "mine"), ("X-Api-Key", "r2")],
        ),
        ("shop.example", &[("X-Api-Key", "mine")]),
        (
            "shop.example",
            &[("X-Api-Key", "r1"), ("X-Api-Key", "mine")],
        ),
        ("shop.example", &[("X-Api-Key", "r1, r3")]),
        ("shop.example", &[("X-Api-Key", "r3")]),
        // The first one is empty, which is as none.
        ("shop.example", &[("X-Api-Key", ""), ("X-Api-Key", "mine")]),
        ("a,free.example", &[("X-Api-Key", "mine")]),
        ("free.example", &[("X-Api-Key", "mine")]),
        (
            "shop.example",
            &[
                ("X-Api-Key", "mine"),
                ("X-Client", "a"),
                ("X-Client", "monitor"),
            ],
        ),
        (
            "shop.example",
            &[
                ("X-Api-Key", "mine"),
                ("X-Client", "monitor"),
                ("X-Client", "a"),
            ],
        ),
    ];
    let decided = requests.map(|(host, fields)| {
        let all = fields.to_vec();
        let request = Request::new("GET", "/").host(host).headers(&all);
        policy.decide_at(Timestamp::ZERO, &request).is_allowed()
    });
    assert_eq!(decided.iter().filter(|is_allowed| !**is_allowed).count(), 4);
    for to in ["nginx", "haproxy"] {
        let Some(program) = installed(to, "-v") else {
            continue;
        };
        let file = exported(rules, to);
        let server = match to {
            "nginx" => Running::nginx(&program, "first", &file),
            _ => Running::haproxy(&program, "first", &file),
        };
        for ((host, fields), is_allowed) in requests.into_iter().zip(decided) {
            let mut client = match to {
                "nginx" => Client::new(server.address),
                _ => Client::of("192.0.2.7", server.address),
            };
            let passes = client.ask_host(host, "GET /", fields) == 200;
            assert_eq!(passes, is_allowed, "{to}: {host} {fields:?}");
        }
    }
}

#[test]
fn envoy_has_a_descriptor_for_each_limit_in_the_order_of_the_rules() {
    let config = exported(
        "
        [[rules]]
        name = 'login'
        methods = ['POST']
        paths = ['/login']
        key = ['address']
        limits = [{ rate = '5/m', burst = 2 }, '100/h']
        [[rules]]
        name = 'all'
        key = ['header:X-Api-Key']
        on_missing = 'skip'
        keys = 5000
        limits = ['10/s']
        ",
        "envoy",
    );
    let config: Value = serde_json::from_str(&config).unwrap();
    let filter = &config["typed_config"];
    assert_eq!(filter["max_dynamic_descriptors"], 5_000);
    assert_eq!(filter["always_consume_default_token_bucket"], false);
    let descriptors = filter["descriptors"].as_array().unwrap();
    let actions = filter["rate_limits"].as_array().unwrap();
    assert_eq!((descriptors.len(), actions.len()), (3, 3));
    for (descriptor, limit) in descriptors.iter().zip(actions) {
        let entries = descriptor["entries"].as_array().unwrap();
        let actions = limit["actions"].as_array().unwrap();
        assert_eq!(entries.len(), actions.len());
        for (entry, action) in entries.iter().zip(actions) {
            let (kind, action) = action.as_object().unwrap().iter().next().unwrap();
            let key = match &**kind {
                "masked_remote_address" => Some("masked_remote_address"),
                _ => action["descriptor_key"].as_str(),
            };
            assert_eq!(entry["key"].as_str(), key);
            assert_eq!(entry["value"], action["descriptor_value"]);
        }
    }
    let bucket = |index: usize| &descriptors[index]["token_bucket"];
    assert_eq!(bucket(0)["max_tokens"], 2);
    assert_eq!(bucket(0)["tokens_per_fill"], 5);
    assert_eq!(bucket(0)["fill_interval"], "60.000s");
    assert_eq!(bucket(1)["tokens_per_fill"], 100);
    // The second rule is for requests that the first one is not for.
    let last = &actions[2]["actions"];
    assert_eq!(last[1]["header_value_match"]["descriptor_key"], "rule");
    assert_eq!(last[2]["header_value_match"]["expect_match"], false);
    let headers = &last[2]["header_value_match"]["headers"];
    assert_eq!(headers[1]["name"], ":path");
    assert_eq!(
        headers[1]["string_match"]["safe_regex"]["regex"],
        "(/login/?)([?#].*)?"
    );
    assert_eq!(last[3]["request_headers"]["header_name"], "X-Api-Key");
}

/// The address of a client is the one that the proxy before Envoy states.
#[test]
#[ignore = "cargo xtask proxies"]
fn envoy_decides_recorded_requests_as_the_policy() {
    let Some(program) = installed("envoy", "--version") else {
        return;
    };
    // Permits that do not return while the test runs.
    let rules = "
        [[rules]]
        name = 'login'
        methods = ['POST']
        paths = ['/login', '/v1/*/session/**']
        key = ['address']
        limits = ['5/h', { rate = '2/h', burst = 4 }]
        exempt = { headers = { X-Client = ['monitor'] } }

        [[rules]]
        name = 'free'
        hosts = ['free.example']

        [[rules]]
        name = 'each key'
        key = ['header:X-Api-Key']
        on_missing = 'skip'
        limits = ['20/h']

        [[rules]]
        name = 'all'
        key = ['address']
        limits = ['30/h']
    ";
    let filter: Value = serde_json::from_str(&exported(rules, "envoy")).unwrap();
    let envoy = Running::start("envoy", |folder, address| {
        let text = config_of_envoy(&filter, address).to_string();
        fs::write(folder.join("envoy.json"), text).unwrap();
        let mut command = Command::new(&program);
        command.args(["-c", "envoy.json", "--disable-hot-restart"]);
        command.args(["--concurrency", "1"]).current_dir(folder);
        command
    });
    let policy = Policy::from_toml(rules).unwrap();
    let (mut client, mut random) = (Client::new(envoy.address), random());
    let paths = ["/login", "/login?next=/", "/v1/me/session", "/login/a", "/"];
    let mut denied = 0;
    for _ in 0..600 {
        let mut one_of = |all: &[&'static str]| all[random(all.len() as u64) as usize];
        let (method, path) = (one_of(&["GET", "POST", "POST"]), one_of(&paths));
        let address = one_of(&["192.0.2.7", "192.0.2.8", "203.0.113.5", "2001:db8::1"]);
        let mut fields = vec![("X-Forwarded-For", address)];
        fields.extend(match one_of(&["a", "b", "none", "none"]) {
            "none" => None,
            key => Some(("X-Api-Key", key)),
        });
        fields.extend(
            (one_of(&["no", "no", "no", "yes"]) == "yes").then_some(("X-Client", "monitor")),
        );
        let request = Request::new(method, path)
            .host("shop.example")
            .address(address.parse().unwrap())
            .headers(&fields);
        let expected = policy
            .decide_at(Timestamp::from_secs(1), &request)
            .is_allowed();
        let status = client.ask(&format!("{method} {path}"), &fields);
        denied += usize::from(!expected);
        let expected = if expected { 200 } else { 429 };
        assert_eq!(status, expected, "{method} {path} {fields:?}");
    }
    assert!((100..550).contains(&denied), "{denied}");
}

/// The configuration of Envoy with the filter, and an answer to each request.
fn config_of_envoy(filter: &Value, address: SocketAddr) -> Value {
    let at = |name: &str| format!("type.googleapis.com/envoy.extensions.filters.{name}");
    let router = json!({
        "name": "envoy.filters.http.router",
        "typed_config": { "@type": at("http.router.v3.Router") },
    });
    let route = json!({ "match": { "prefix": "/" }, "direct_response": { "status": 200 } });
    let manager = json!({
        "name": "envoy.filters.network.http_connection_manager",
        "typed_config": {
            "@type": at("network.http_connection_manager.v3.HttpConnectionManager"),
            "stat_prefix": "web",
            "use_remote_address": true,
            "xff_num_trusted_hops": 1,
            "http_filters": [filter, router],
            "route_config": {
                "virtual_hosts": [{ "name": "all", "domains": ["*"], "routes": [route] }],
            },
        },
    });
    let place = json!({ "address": "127.0.0.1", "port_value": address.port() });
    json!({ "static_resources": { "listeners": [{
        "address": { "socket_address": place },
        "filter_chains": [{ "filters": [manager] }],
    }] } })
}

#[test]
fn what_a_server_cannot_say_is_listed_with_its_line_and_the_exit_code_tells() {
    let policy = "\
[[rules]]
name = 'window'
paths = ['/w']
limits = [{ rate = '5/m', algorithm = 'fixed-window' }]

[[rules]]
name = 'tier'
tiers = ['free']
limits = ['5/s']

[[rules]]
name = 'new'
limits = ['5/s']
shadow = true

[[rules]]
name = 'slow'
limits = ['20/h']
";
    let output = export(policy, "nginx");
    assert_eq!(output.status.code(), Some(3));
    let expected = "\
warning: window: 5/m: only a continuous token bucket can be said. For 5 in any period: { rate = \"2/m\", burst = 3 }: its requests pass without a limit
 --> FILE:2:8
  |
2 | name = 'window'
  |        ^^^^^^^^

warning: tier: only a program knows the tier of a client: the rules after it decide its requests
 --> FILE:7:8
  |
7 | name = 'tier'
  |        ^^^^^^

warning: new: a shadow rule only reports: the rule is left out
  --> FILE:12:8
   |
12 | name = 'new'
   |        ^^^^^

warning: slow: 20/h: a rate there is a whole number a second or a minute: its requests pass without a limit
  --> FILE:17:8
   |
17 | name = 'slow'
   |        ^^^^^^

portcullis: FILE: 4 things not said
";
    assert_eq!(text(&output.stderr), expected);
    assert!(text(&output.stdout).contains("# Not said here: window: 5/m: "));
    // The rule with the window still decides its requests.
    assert!(text(&output.stdout).contains("(/w/?)\\z\" 1;"));
    let broken = export("[[rules]]\nnam = 'a'\n", "haproxy");
    assert_eq!(broken.status.code(), Some(1));
    assert_eq!(text(&broken.stdout), "");
}

/// The spelling of `Bearer` is no part of the key, and is part of what a server compares.
#[test]
fn a_key_by_a_token_is_listed_as_one_that_no_server_can_say() {
    for server in ["nginx", "haproxy", "envoy"] {
        let credentials = "\
[[rules]]
name = 'a'
key = ['header:Authorization']
on_missing = 'skip'
limits = ['5/s']
";
        let output = export(credentials, server);
        let reason = "a: there, each spelling of `Bearer` in Authorization is a key with limits";
        assert!(text(&output.stderr).contains(reason), "{server}");
        assert_eq!(output.status.code(), Some(3), "{server}");
    }
}

#[test]
fn a_bucket_is_proposed_for_a_window_where_the_server_can_say_it() {
    let hourly =
        "[[rules]]\nname = 'a'\nlimits = [{ rate = '20/h', algorithm = 'fixed-window' }]\n";
    let reason = "a: 20/h: only a continuous token bucket can be said: its requests pass";
    assert!(text(&export(hourly, "nginx").stderr).contains(reason));
    let bucket = "can be said. For 20 in any period: { rate = \"10/h\", burst = 10 }: its requests";
    assert!(text(&export(hourly, "envoy").stderr).contains(bucket));
}

#[test]
fn a_file_says_what_a_bucket_lets_pass_in_its_first_period_where_that_may_surprise() {
    let limits = "'5/m', '1001/d', '9/10m', '20/s', '1/m', { rate = '5/h', burst = 2 }";
    let policy = format!("[[rules]]\nname = 'login'\nlimits = [{limits}]\n");
    let file = exported(&policy, "haproxy");
    let notes: Vec<_> = { file.lines() }
        .filter(|line| line.starts_with("# login"))
        .collect();
    let expected = [
        "# login: 5/m: up to 10 pass in the first minute: 5 at once, and 5 that return. For 5 in \
         any: { rate = \"2/m\", burst = 3 }",
        "# login: 1001/d: up to 2002 pass in the first day: 1001 at once, and 1001 that return. \
         For 1001 in any: { rate = \"500/d\", burst = 501 }",
        "# login: 9/10m: up to 18 pass in the first 10m: 9 at once, and 9 that return. For 9 in \
         any: { rate = \"4/10m\", burst = 5 }",
    ];
    assert_eq!(notes, expected);
    assert!(
        exported("[[rules]]\nname = 'a'\nlimits = ['5/m']\n", "nginx").contains("\n# a: 5/m: ")
    );
}

#[test]
fn a_file_says_that_its_denials_have_no_retry_after() {
    let policy = "[[rules]]\nname = 'a'\nlimits = ['5/s']\n";
    for server in ["nginx", "haproxy"] {
        let output = export(policy, server);
        let says = "\n# A denial has no `Retry-After`: ";
        assert!(text(&output.stdout).contains(says), "{server}");
    }
}

/// "10 per second for each API key, 5 logins a minute for each address, and 100 at once".
const TOGETHER: &str = "
    paths = { reading = 'resolved', decode_slashes = true }

    [[rules]]
    name = 'each key'
    key = ['header:X-Api-Key']
    on_missing = 'skip'
    limits = ['10/s']
    continue = true

    [[rules]]
    name = 'logins'
    methods = ['POST']
    paths = ['/login']
    key = ['address']
    limits = ['5/m']
    continue = true

    [[rules]]
    name = 'service'
    limits = [{ at_once = 100 }]
";

#[test]
fn the_lines_that_portcullis_serve_makes_needless_are_marked_and_the_rest_stands_alone() {
    let mark = "# also in portcullis-serve";
    for (to, rates, at_once) in [
        (
            "nginx",
            &["limit_req zone="][..],
            "limit_conn portcullis_3_1 100;",
        ),
        ("haproxy", &["sc_gpc0_rate", "sc-inc-gpc0"], "sc_trackers"),
    ] {
        let whole = exported(TOGETHER, to);
        assert!(whole.contains("# If this server also asks portcullis-serve with the same file"));
        for line in whole.lines() {
            let is_of_rate = rates.iter().any(|rate| line.trim().contains(rate));
            assert_eq!(line.ends_with(mark), is_of_rate, "{line}");
        }
        assert!(whole.contains(at_once), "{whole}");
        let kept: Vec<_> = whole.lines().filter(|line| !line.ends_with(mark)).collect();
        let kept = kept.join("\n") + "\n";
        let running = match to {
            "nginx" => installed("nginx", "-v").map(|nginx| Running::nginx(&nginx, "kept", &kept)),
            _ => installed("haproxy", "-v").map(|it| Running::haproxy(&it, "kept", &kept)),
        };
        let Some(running) = running else {
            continue;
        };
        let mut client = match to {
            "nginx" => Client::new(running.address),
            _ => Client::of("192.0.2.7", running.address),
        };
        for _ in 0..20 {
            // The page that nginx serves here takes no POST.
            let passed = if to == "nginx" { 405 } else { 200 };
            let status = client.ask("POST /login", &[("X-Api-Key", "a")]);
            assert_eq!(status, passed, "{to}");
        }
    }
    // What is written for a limit at once alone is all to keep.
    let alone = "[[rules]]\nname = 'service'\nlimits = [{ at_once = 100 }]\n";
    assert!(!exported(alone, "nginx").contains("portcullis-serve"));
}
