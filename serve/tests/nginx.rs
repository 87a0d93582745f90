//! The program behind a real nginx, with the configuration of the guide.

#[path = "support/client.rs"]
mod client;
#[path = "support/program.rs"]
mod program;
#[path = "support/proxies.rs"]
mod proxies;
#[path = "support/traffic.rs"]
mod traffic;
#[path = "support/wish.rs"]
mod wish;

use core::net::Ipv4Addr;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::io::{Read as _, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;
use std::{fs, thread};

use client::{Client, ask};
use program::Program;
use proxies::{NGINX_BEHIND, Service, installed, nginx, nginx_with};
use traffic::{POLICY, decided, recorded, sent};
use wish::wished;

#[test]
fn nginx_enforces_what_the_policy_decides() {
    let Some(nginx_program) = installed("nginx", "-v") else {
        return;
    };
    let (program, service) = (Program::start("nginx", POLICY, &[]), Service::start());
    let proxy = nginx_with(
        &nginx_program,
        "nginx-proxy",
        program.listen,
        service.address,
        &NGINX_BEHIND,
    );
    let statuses = sent(proxy.address);
    let decided = decided(POLICY, &recorded());
    let passed: Vec<bool> = statuses.iter().map(|status| *status == 200).collect();
    assert_eq!(passed, decided);
    let count = |of: u16| statuses.iter().filter(|status| **status == of).count();
    // A path that is read in several ways has 400.
    assert_eq!(count(200) + count(429) + count(400), statuses.len());
    assert!(count(200) > 100 && count(429) > 50 && count(400) > 5);
    assert_eq!(
        service.served(),
        count(200),
        "what is denied does not reach the service"
    );
    // nginx reports no error.
    let log = fs::read_to_string(proxy.folder.join("error.log")).unwrap();
    assert!(!log.contains("auth request unexpected status"), "{log}");
}

#[test]
fn denials_end_no_connection_of_nginx() {
    let Some(nginx_program) = installed("nginx", "-v") else {
        return;
    };
    let policy = "[[rules]]\nname = 'all'\nlimits = ['1/h']\nmessage = 'Come back later.'\n";
    let (program, service) = (
        Program::start("nginx-denials", policy, &[]),
        Service::start(),
    );
    let proxy = nginx_with(
        &nginx_program,
        "nginx-denials-proxy",
        program.listen,
        service.address,
        &NGINX_BEHIND,
    );
    let mut client = Client::connect(proxy.address);
    let mut status = || client.ask("GET /", &[]).status;
    assert_eq!(status(), 200);
    for _ in 0..50 {
        assert_eq!(status(), 429);
    }
    // nginx keeps what it can use again, and has closed the others by then.
    thread::sleep(Duration::from_millis(300));
    let metrics = program.metrics();
    let mut lines = metrics.lines();
    let open = lines.find_map(|line| line.strip_prefix("portcullis_connections "));
    assert_ne!(open, Some("0"), "{metrics}");
    assert!(open.is_some(), "{metrics}");
}

#[test]
fn a_denial_of_nginx_has_the_retry_and_the_fields() {
    let Some(nginx_program) = installed("nginx", "-v") else {
        return;
    };
    let policy = "
        [[rules]]
        name = 'all'
        key = ['address']
        limits = ['1/d']
    ";
    let (mut program, service) = (Program::start("fields", policy, &[]), Service::start());
    let proxy = nginx(
        &nginx_program,
        "nginx-fields",
        program.listen,
        service.address,
    );
    let allowed = ask(proxy.address, "GET /", &[]);
    assert_eq!((allowed.status, &*allowed.body), (200, "served"));
    assert_eq!(allowed.header("ratelimit"), Some(r#""all";r=0;t=86400"#));
    let denied = ask(proxy.address, "GET /", &[]);
    assert_eq!(denied.status, 429);
    assert_eq!(denied.header("retry-after"), Some("86400"));
    assert_eq!(denied.header("ratelimit"), Some(r#""all";r=0;t=86400"#));
    assert_eq!(
        denied.header("ratelimit-policy"),
        Some(r#""all";q=1;w=86400"#)
    );
    // nginx passes on the status of a rule that is 503.
    program.write(&policy.replace("key = ['address']", "status = 503"));
    program.event("a policy is in force");
    assert_eq!(ask(proxy.address, "GET /", &[]).status, 200);
    assert_eq!(ask(proxy.address, "GET /", &[]).status, 503);
    // Without an answer nothing is served.
    program.signal("TERM");
    assert!(program.ended().success());
    assert_eq!(ask(proxy.address, "GET /", &[]).status, 500);
    assert_eq!(service.served(), 2);
}

#[test]
fn a_path_that_no_rule_reads_has_its_own_status_behind_nginx() {
    let Some(nginx_program) = installed("nginx", "-v") else {
        return;
    };
    let policy = include_str!("../deploy/policy.toml");
    let (program, service) = (Program::start("paths", policy, &[]), Service::start());
    let proxy = nginx(
        &nginx_program,
        "nginx-paths",
        program.listen,
        service.address,
    );
    let long = format!("GET {}", "/a".repeat(257));
    for (request, status) in [(&*long, 414), ("GET /a/../login", 400)] {
        let refused = ask(proxy.address, request, &[]);
        assert_eq!(
            (refused.status, refused.header("retry-after")),
            (status, None)
        );
    }
    assert_eq!(ask(proxy.address, &long[..516], &[]).status, 200);
    assert_eq!(service.served(), 1);
}

#[test]
fn eight_logins_behind_nginx_have_the_replies_that_the_guide_shows() {
    let Some(nginx_program) = installed("nginx", "-v") else {
        return;
    };
    let guide = include_str!("../../docs/operators.md");
    let policy = include_str!("../deploy/policy.toml");
    let service = Service::start();
    let logins = |name: &str, policy: &str| {
        let program = Program::start(name, policy, &[]);
        let folder = format!("{name}-proxy");
        let proxy = nginx(&nginx_program, &folder, program.listen, service.address);
        let login = || ask(proxy.address, "POST /login", &[("Content-Length", "0")]);
        let statuses: Vec<_> = (0..8).map(|_| login().status.to_string()).collect();
        let shown = format!("\n{}\n", statuses.join(" "));
        assert!(guide.contains(&shown), "{shown}");
        let metrics = program.metrics();
        (metrics, login())
    };
    let shadow: Vec<_> = { policy.lines() }
        .map(|line| {
            let is_name = line.starts_with("name = ");
            let shadow = if is_name { "shadow = true\n" } else { "" };
            format!("{line}\n{shadow}")
        })
        .collect();
    let (metrics, _) = logins("guide-shadow", &shadow.concat());
    let denied: Vec<_> = { metrics.lines() }
        .filter(|line| line.starts_with("portcullis_shadow_denials"))
        .collect();
    assert_eq!(denied.len(), 4);
    assert!(guide.contains(&denied.join("\n")), "{denied:?}");
    let (_, denied) = logins("guide-enforced", policy);
    assert_eq!(denied.status, 429);
    let policy = denied.header("ratelimit-policy").expect("it is stated");
    assert!(guide.contains(policy), "{policy}");
}

#[test]
fn a_client_of_nginx_cannot_choose_its_key() {
    let Some(nginx_program) = installed("nginx", "-v") else {
        return;
    };
    let policy = "
        serve.trusted = ['127.0.0.1']
        [[rules]]
        name = 'login'
        paths = ['/login']
        methods = ['POST']
        hosts = ['shop.example']
        key = ['address']
        limits = ['2/d']
    ";
    let (program, service) = (Program::start("chosen", policy, &[]), Service::start());
    let proxy = nginx(
        &nginx_program,
        "nginx-chosen",
        program.listen,
        service.address,
    );
    // It connects from an address that is not trusted.
    let mut client = Client::from(Ipv4Addr::new(127, 0, 0, 5).into(), proxy.address);
    let mut status = |forged: &[(&str, &str)]| {
        let all = [&[("Host", "shop.example"), ("Content-Length", "0")], forged].concat();
        client.ask("POST /login", &all).status
    };
    assert_eq!([status(&[]), status(&[]), status(&[])], [200, 200, 429]);
    for forged in [
        ("X-Forwarded-For", "192.0.2.7"),
        ("X-Forwarded-For", "192.0.2.7, 127.0.0.1"),
        ("X-Original-URI", "/free"),
        ("X-Original-Method", "GET"),
        ("X-Original-Host", "blog.example"),
        ("X-Forwarded-Uri", "/free"),
        ("X-Forwarded-Method", "GET"),
        ("X-Real-IP", "192.0.2.7"),
        ("Forwarded", "for=192.0.2.7"),
        ("X_Original_URI", "/free"),
    ] {
        assert_eq!(status(&[forged]), 429, "{forged:?}");
    }
    assert_eq!(service.served(), 2);
}

/// A request that nginx denies takes no permits.
#[test]
fn nginx_keeps_the_limit_at_once_that_the_program_leaves_out() {
    let Some(nginx_program) = installed("nginx", "-v") else {
        return;
    };
    let policy = "[[rules]]\nname = 'all'\nlimits = ['2/d']\n";
    let program = Program::start("at-once", policy, &[]);
    let service = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = nginx_with(
        &nginx_program,
        "nginx-at-once",
        program.listen,
        service.local_addr().unwrap(),
        &[("limit_conn service 100;", "limit_conn service 1;")],
    );
    let mut first = Client::connect(proxy.address);
    first.request("GET /", &[]);
    let (mut under_way, _) = service.accept().unwrap();
    let denied = ask(proxy.address, "GET /", &[]);
    assert_eq!((denied.status, denied.header("retry-after")), (429, None));
    let reply = b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n";
    under_way.write_all(reply).unwrap();
    drop(under_way);
    let allowed = first.reply();
    assert_eq!(allowed.status, 200);
    assert_eq!(allowed.header("ratelimit"), Some(r#""all";r=1;t=43200"#));
    let counted = "{rule=\"all\",answer=\"allowed\",limit=\"\"} 1\n";
    assert!(program.metrics().contains(counted));
}

/// The lines of the sample for a trial.
#[test]
fn in_a_trial_requests_pass_nginx_while_the_program_has_no_answer() {
    let Some(nginx_program) = installed("nginx", "-v") else {
        return;
    };
    let policy = "[[rules]]\nname = 'all'\nlimits = ['1/d']\n";
    let (mut program, service) = (Program::start("trial", policy, &[]), Service::start());
    let proxy = nginx_with(
        &nginx_program,
        "nginx-trial",
        program.listen,
        service.address,
        &[("#error_page", "error_page"), ("#location", "location")],
    );
    let status = || ask(proxy.address, "GET /", &[]).status;
    assert_eq!([status(), status()], [200, 429]);
    program.signal("TERM");
    assert!(program.ended().success());
    assert_eq!([status(), status()], [200, 200]);
}

/// One after the other ends and is started again, while requests come.
#[test]
fn nginx_with_two_programs_serves_every_request_while_they_are_restarted() {
    let Some(nginx_program) = installed("nginx", "-v") else {
        return;
    };
    let guide = include_str!("../../docs/operators.md");
    let policy = "[[rules]]\nname = 'all'\nlimits = ['1000000/s']\n";
    let start = |name: &str, listen: &str| Program::start(name, policy, &["--listen", listen]);
    let mut programs = ["first", "second"].map(|name| start(name, "127.0.0.1:0"));
    let service = Service::start();
    let servers = programs.each_ref().map(|of| of.listen.to_string());
    let in_guide = |line: &str| {
        assert!(guide.contains(line), "{line} is not in the guide");
    };
    in_guide("server 127.0.0.1:8787 max_fails=0;\n      server 127.0.0.1:8789 max_fails=0;");
    in_guide("proxy_next_upstream error;");
    let proxy = nginx_with(
        &nginx_program,
        "nginx-two",
        programs[0].listen,
        service.address,
        &[
            (
                "server 127.0.0.1:8787;",
                &format!(
                    "server 127.0.0.1:8787 max_fails=0; server {} max_fails=0;",
                    servers[1]
                ),
            ),
            ("proxy_next_upstream off;", "proxy_next_upstream error;"),
        ],
    );
    let (is_over, address) = (AtomicBool::new(false), proxy.address);
    thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let mut statuses = Vec::new();
            while !is_over.load(Relaxed) {
                statuses.push(ask(address, "GET /", &[]).status);
            }
            statuses
        });
        for (program, (name, listen)) in programs
            .iter_mut()
            .zip(["again", "too"].into_iter().zip(&servers))
        {
            program.signal("TERM");
            assert!(program.ended().success());
            thread::sleep(Duration::from_millis(300));
            *program = start(name, listen);
            thread::sleep(Duration::from_millis(300));
        }
        is_over.store(true, Relaxed);
        let statuses = asking.join().expect("it asks");
        let failed = statuses.iter().filter(|&&status| status != 200).count();
        assert!(statuses.len() > 20 && failed == 0, "{statuses:?}");
    });
}

#[test]
fn a_request_without_a_host_passes_nginx() {
    let Some(nginx_program) = installed("nginx", "-v") else {
        return;
    };
    let (program, service) = (
        Program::start("no-host", "rules = []", &[]),
        Service::start(),
    );
    let proxy = nginx(
        &nginx_program,
        "nginx-no-host",
        program.listen,
        service.address,
    );
    let mut stream = TcpStream::connect(proxy.address).unwrap();
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 200 "), "{reply}");
}

/// A program on an address of `serve.trusted` may name any client to this program, but not to
/// nginx: the attempt of the guide.
#[test]
fn a_client_of_nginx_on_a_trusted_address_cannot_choose_its_key() {
    let Some(nginx_program) = installed("nginx", "-v") else {
        return;
    };
    let guide = include_str!("../../docs/operators.md");
    let (_, attempt) = guide.split_once("**Try a forgery.**").expect("it is there");
    let policy = include_str!("../deploy/policy.toml");
    let (program, service) = (Program::start("forgery", policy, &[]), Service::start());
    let proxy = nginx(
        &nginx_program,
        "nginx-forgery",
        program.listen,
        service.address,
    );
    let login = |nth: u8| {
        let forged = format!("9.9.9.{nth}");
        let headers = [("X-Forwarded-For", &*forged), ("Content-Length", "0")];
        ask(proxy.address, "POST /login", &headers)
            .status
            .to_string()
    };
    let statuses: Vec<_> = (1..=8).map(login).collect();
    let statuses = statuses.join(" ");
    assert_eq!(statuses, "200 200 200 200 200 429 429 429");
    assert!(attempt.contains(&format!("\n{statuses}\n")));
    // Two addresses, of which the last one is not trusted.
    let forged = [("X-Forwarded-For", "9.9.9.9, 9.9.9.9")];
    assert_eq!(ask(proxy.address, "POST /login", &forged).status, 429);
}

/// One tower layer, and `portcullis replay`, decide the same requests alike: their tests compare
/// with the same log. Here the clock is that of the host: the requests of a second must be sent
/// before a key has gained a permit, so a round that the machine has delayed is repeated.
#[test]
fn the_recorded_requests_of_the_one_file_are_decided_as_the_log_says() {
    let Some(nginx_program) = installed("nginx", "-v") else {
        return;
    };
    let service = Service::start();
    let wished = wished();
    let is_in_time = (0..30).any(|_| {
        let program = Program::start("wish", wish::RULES, &[]);
        let proxy = nginx_with(
            &nginx_program,
            "nginx-wish",
            program.listen,
            service.address,
            &NGINX_BEHIND,
        );
        let mut client = Client::connect(proxy.address);
        // Opens the connections of nginx.
        client.ask("GET /", &[]);
        let mut replies = Vec::new();
        for second in wished.chunk_by(|one, next| one.second == next.second) {
            let begun = Instant::now();
            for request in second {
                let mut headers =
                    vec![("X-Forwarded-For", request.client), ("Content-Length", "0")];
                headers.extend(request.key.map(|key| ("X-Api-Key", key)));
                replies.push(client.ask(request.line, &headers));
            }
            // A key gains a permit in 100 ms, and all of its 10 in a second.
            if begun.elapsed() > Duration::from_millis(95) {
                return false;
            }
            thread::sleep(Duration::from_millis(1_100));
        }
        for (request, reply) in wished.iter().zip(&replies) {
            assert_eq!(reply.status, request.status, "{request:?}");
            if let Some(rule) = request.denied_by {
                let state = reply.header("ratelimit").expect("a state");
                assert!(state.starts_with(&format!("\"{rule}\";r=0;")), "{state}");
            }
        }
        true
    });
    assert!(is_in_time, "each of 30 rounds took too long");
}
