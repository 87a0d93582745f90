//! The program behind a real Envoy and a real Traefik, with the configurations of the guide.
//! `cargo xtask proxies` installs them and runs these tests.

#[path = "support/client.rs"]
mod client;
#[path = "support/program.rs"]
mod program;
#[path = "support/proxies.rs"]
mod proxies;
#[path = "support/traffic.rs"]
mod traffic;

use core::net::{Ipv4Addr, SocketAddr};
use std::collections::HashMap;
use std::ffi::OsStr;

use client::{Client, ask};
use program::Program;
use proxies::{Running, Service, envoy, installed, one_at_once, traefik};
use traffic::{POLICY, Recorded, decided, recorded};

/// Starts a proxy with its configuration, in which texts are replaced.
type Start = fn(&OsStr, &str, &Program, SocketAddr, &[(&str, &str)]) -> Running;

/// A proxy, and what is special about it.
struct Proxy {
    name: &'static str,
    /// The argument with which it prints its version.
    version: &'static str,
    start: Start,
    /// What makes its limit at once one, and the status of a denial by it.
    one_at_once: ((&'static str, &'static str), u16),
    /// Whether the service gets a path as the client has sent it.
    passes_paths_on: bool,
}

const ENVOY: Proxy = Proxy {
    name: "envoy",
    version: "--version",
    start: |proxy, name, program, service, others| {
        let grpc = program.grpc.expect("it was started with --grpc");
        envoy(proxy, name, grpc, service, others)
    },
    one_at_once: (("max_requests: 100", "max_requests: 1"), 503),
    passes_paths_on: true,
};

const TRAEFIK: Proxy = Proxy {
    name: "traefik",
    version: "version",
    start: |proxy, name, program, service, others| {
        traefik(proxy, name, program.listen, service, others)
    },
    one_at_once: (("amount: 100", "amount: 1"), 429),
    passes_paths_on: false,
};

#[test]
#[ignore = "cargo xtask proxies"]
fn envoy_enforces_what_the_policy_decides() {
    enforces_what_the_policy_decides(&ENVOY);
    has_the_retry_and_the_fields_and_no_client_chooses_its_key(&ENVOY);
    keeps_the_limit_at_once_that_the_program_leaves_out(&ENVOY);
}

#[test]
#[ignore = "cargo xtask proxies"]
fn traefik_enforces_what_the_policy_decides() {
    enforces_what_the_policy_decides(&TRAEFIK);
    has_the_retry_and_the_fields_and_no_client_chooses_its_key(&TRAEFIK);
    keeps_the_limit_at_once_that_the_program_leaves_out(&TRAEFIK);
}

/// The program, the service and the proxy, in whose configuration `others` are replaced.
fn started(
    proxy: &Proxy,
    test: &str,
    policy: &str,
    others: &[(&str, &str)],
) -> Option<(Program, Service, Running)> {
    let found = installed(proxy.name, proxy.version)?;
    let name = format!("{}-{test}", proxy.name);
    // Other addresses of this host are clients, not proxies.
    let policy = format!("serve.trusted = ['127.0.0.1']\n{policy}");
    let program = Program::start(&name, &policy, &["--grpc", "127.0.0.1:0"]);
    let service = Service::start();
    let name = format!("{name}-proxy");
    let running = (proxy.start)(&found, &name, &program, service.address, others);
    Some((program, service, running))
}

fn keeps_the_limit_at_once_that_the_program_leaves_out(proxy: &Proxy) {
    let (one, status) = proxy.one_at_once;
    let policy = include_str!("../deploy/policy.toml");
    if let Some((_program, service, running)) = started(proxy, "at-once", policy, &[one]) {
        one_at_once(running.address, &service, status);
    }
}

fn enforces_what_the_policy_decides(proxy: &Proxy) {
    let Some((_program, service, running)) = started(proxy, "all", POLICY, &[]) else {
        return;
    };
    // A proxy that tidies a path asks about the path that the service gets.
    let tidied = |target: &str| ["..", "//", "%6C"].iter().any(|part| target.contains(part));
    let is_sent = |recorded: &Recorded| proxy.passes_paths_on || !tidied(recorded.target);
    let requests: Vec<Recorded> = recorded().into_iter().filter(is_sent).collect();
    let expected = decided(POLICY, &requests);
    let before = service.served();
    // One connection for each client, from an address of its own.
    let mut clients = HashMap::new();
    let send = |recorded: &Recorded| {
        let count = u8::try_from(clients.len()).expect("few clients");
        let client = clients.entry(recorded.client.clone()).or_insert_with(|| {
            Client::from(Ipv4Addr::new(127, 0, 0, 10 + count).into(), running.address)
        });
        let headers = [
            ("Host", recorded.host),
            ("X-Api-Key", &recorded.key),
            ("Content-Length", "0"),
        ];
        let line = format!("{} {}", recorded.method, recorded.target);
        client.ask(&line, &headers).status
    };
    let statuses: Vec<u16> = requests.iter().map(send).collect();
    let passed: Vec<bool> = statuses.iter().map(|status| *status == 200).collect();
    for ((recorded, passed), expected) in requests.iter().zip(&passed).zip(&expected) {
        let Recorded {
            method,
            target,
            host,
            client,
            key,
        } = recorded;
        let request = format!("{method} {target} to {host} from {client} with {key}");
        assert_eq!(passed, expected, "{}: {request}", proxy.name);
    }
    let count = |of: u16| statuses.iter().filter(|status| **status == of).count();
    assert!(count(200) > 90 && count(429) > 50, "{}", proxy.name);
    assert_eq!(service.served() - before, count(200), "{}", proxy.name);
}

fn has_the_retry_and_the_fields_and_no_client_chooses_its_key(proxy: &Proxy) {
    let policy = "
        [[rules]]
        name = 'login'
        paths = ['/login']
        methods = ['POST']
        hosts = ['shop.example']
        key = ['address']
        limits = ['2/d']
    ";
    let Some((mut program, service, running)) = started(proxy, "chosen", policy, &[]) else {
        return;
    };
    let before = service.served();
    let mut client = Client::from(Ipv4Addr::new(127, 0, 0, 5).into(), running.address);
    let mut reply = |forged: &[(&str, &str)]| {
        let all = [&[("Host", "shop.example"), ("Content-Length", "0")], forged].concat();
        client.ask("POST /login", &all)
    };
    let statuses = [(); 3].map(|()| reply(&[]).status);
    assert_eq!(statuses, [200, 200, 429], "{}", proxy.name);
    for forged in [
        ("X-Forwarded-For", "192.0.2.7"),
        ("X-Forwarded-For", "192.0.2.7, 127.0.0.1"),
        ("X-Forwarded-Uri", "/free"),
        ("X-Forwarded-Method", "GET"),
        ("X-Forwarded-Host", "blog.example"),
        ("X-Original-URI", "/free"),
        ("X-Original-Method", "GET"),
        ("X-Real-IP", "192.0.2.7"),
        ("Forwarded", "for=192.0.2.7"),
        ("X-Envoy-External-Address", "192.0.2.7"),
        ("X-Envoy-Original-Path", "/free"),
    ] {
        let denied = reply(&[forged]);
        assert_eq!(denied.status, 429, "{}: {forged:?}", proxy.name);
        assert!(denied.header("retry-after").is_some(), "{}", proxy.name);
        let fields = denied.header("ratelimit");
        assert!(
            fields.is_some_and(|text| text.starts_with(r#""login";r=0;t="#)),
            "{}: {fields:?}",
            proxy.name
        );
    }
    // Envoy takes such a request for a broken one.
    let forged = [(
        "Connection",
        "X-Forwarded-For, X-Forwarded-Uri, X-Forwarded-Method",
    )];
    assert!(matches!(reply(&forged).status, 400 | 429), "{}", proxy.name);
    // Without an answer nothing is served.
    program.signal("TERM");
    assert!(program.ended().success());
    let unanswered = ask(running.address, "GET /", &[("Host", "shop.example")]);
    assert_eq!(unanswered.status, 500, "{}", proxy.name);
    assert_eq!(service.served() - before, 2, "{}", proxy.name);
}
