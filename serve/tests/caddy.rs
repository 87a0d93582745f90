//! The program behind a real Caddy, with the configuration of the guide.

#[path = "support/client.rs"]
mod client;
#[path = "support/program.rs"]
mod program;
#[path = "support/proxies.rs"]
mod proxies;
#[path = "support/traffic.rs"]
mod traffic;

use core::net::Ipv4Addr;

use client::{Client, ask};
use program::Program;
use proxies::{Service, caddy, installed, one_at_once};
use traffic::{POLICY, decided, recorded, sent};

#[test]
fn caddy_enforces_what_the_policy_decides() {
    let Some(caddy_program) = installed("caddy", "version") else {
        return;
    };
    let (program, service) = (Program::start("caddy", POLICY, &[]), Service::start());
    // As behind another proxy, which names the clients.
    let trusts = "uri /check/caddy\ntrusted_proxies 127.0.0.1";
    let proxy = caddy(
        &caddy_program,
        "caddy-proxy",
        program.listen,
        service.address,
        &[("uri /check/caddy", trusts)],
    );
    let statuses = sent(proxy.address);
    let decided = decided(POLICY, &recorded());
    let passed: Vec<bool> = statuses.iter().map(|status| *status == 200).collect();
    assert_eq!(passed, decided);
    let count = |of: u16| statuses.iter().filter(|status| **status == of).count();
    // Caddy passes on any status: a path that is read in several ways has 400.
    assert_eq!(count(200) + count(429) + count(400), statuses.len());
    assert!(count(429) > 50 && count(400) > 5);
    assert_eq!(service.served(), count(200));
}

#[test]
fn a_denial_of_caddy_has_the_retry_and_the_fields_and_no_client_chooses_its_key() {
    let Some(caddy_program) = installed("caddy", "version") else {
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
        limits = ['1/d']
    ";
    let (mut program, service) = (
        Program::start("caddy-fields", policy, &[]),
        Service::start(),
    );
    let proxy = caddy(
        &caddy_program,
        "caddy-one",
        program.listen,
        service.address,
        &[],
    );
    let login = |forged: &[(&str, &str)], body: &str| {
        let mut client = Client::from(Ipv4Addr::new(127, 0, 0, 5).into(), proxy.address);
        let length = body.len().to_string();
        let own = [("Host", "shop.example"), ("Content-Length", &*length)];
        client.request("POST /login", &[&own[..], forged].concat());
        client.send(body);
        client.reply()
    };
    let allowed = login(&[], "");
    assert_eq!((allowed.status, &*allowed.body), (200, "served"));
    for forged in [
        ("X-Forwarded-For", "192.0.2.7"),
        ("X-Forwarded-Uri", "/free"),
        ("X-Forwarded-Method", "GET"),
        ("X-Forwarded-Host", "blog.example"),
        ("X-Original-URI", "/free"),
        ("X-Real-IP", "192.0.2.7"),
        ("Forwarded", "for=192.0.2.7"),
    ] {
        let denied = login(&[forged], "");
        assert_eq!(denied.status, 429, "{forged:?}");
        assert_eq!(denied.body, "Too Many Requests");
        assert_eq!(denied.header("retry-after"), Some("86400"));
        assert_eq!(denied.header("ratelimit"), Some(r#""login";r=0;t=86400"#));
    }
    // The body of a request is no part of its check, and no further check.
    let check = "GET /check/caddy HTTP/1.1\r\nHost: a\r\n\r\n";
    for _ in 0..3 {
        assert_eq!(login(&[], check).status, 429);
    }
    let metrics = program.metrics();
    let checks = "portcullis_checks_total{proxy=\"caddy\",status=\"429\",mode=\"enforcing\"} 10\n";
    assert!(metrics.contains(checks), "{metrics}");
    let none = "portcullis_malformed_checks_total 0\n";
    assert!(metrics.contains(none), "{metrics}");
    // Without an answer nothing is served.
    program.signal("TERM");
    assert!(program.ended().success());
    assert_eq!(ask(proxy.address, "GET /", &[]).status, 502);
    assert_eq!(service.served(), 1);
}

#[test]
fn caddy_keeps_the_limit_at_once_that_the_program_leaves_out() {
    let Some(caddy_program) = installed("caddy", "version") else {
        return;
    };
    let policy = include_str!("../deploy/policy.toml");
    let program = Program::start("caddy-at-once", policy, &[]);
    let service = Service::start();
    let proxy = caddy(
        &caddy_program,
        "caddy-at-once-proxy",
        program.listen,
        service.address,
        &[("unhealthy_request_count 100", "unhealthy_request_count 1")],
    );
    one_at_once(proxy.address, &service, 503);
}
