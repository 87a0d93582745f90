//! The program behind a real HAProxy, with the configuration of the guide.

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
use proxies::{Service, haproxy, installed, one_at_once};
use traffic::{POLICY, decided, recorded, sent};

#[test]
fn haproxy_enforces_what_the_policy_decides() {
    let Some(haproxy_program) = installed("haproxy", "-v") else {
        return;
    };
    let (program, service) = (Program::start("haproxy", POLICY, &[]), Service::start());
    let proxy = haproxy(
        &haproxy_program,
        "haproxy-proxy",
        program.listen,
        service.address,
        // As behind another proxy, which names the clients.
        &[(
            "#http-request set-src hdr_ip(x-forwarded-for,-1) if { src 10.0.0.0/8 }",
            "http-request set-src hdr_ip(x-forwarded-for,-1) if { src 127.0.0.1 }",
        )],
    );
    let statuses = sent(proxy.address);
    let decided = decided(POLICY, &recorded());
    let passed: Vec<bool> = statuses.iter().map(|status| *status == 200).collect();
    assert_eq!(passed, decided);
    let count = |of: u16| statuses.iter().filter(|status| **status == of).count();
    // A path that is read in several ways has 400.
    assert_eq!(count(200) + count(429) + count(400), statuses.len());
    assert!(count(429) > 50 && count(400) > 5);
    assert_eq!(service.served(), count(200));
}

#[test]
fn a_denial_of_haproxy_has_the_retry_and_the_fields_and_no_client_chooses_its_key() {
    let Some(haproxy_program) = installed("haproxy", "-v") else {
        return;
    };
    let policy = "
        serve.trusted = ['127.0.0.1']
        [[rules]]
        name = 'all'
        key = ['address']
        limits = ['1/d']
    ";
    let (mut program, service) = (
        Program::start("haproxy-fields", policy, &[]),
        Service::start(),
    );
    let proxy = haproxy(
        &haproxy_program,
        "haproxy-one",
        program.listen,
        service.address,
        &[],
    );
    let mut client = Client::from(Ipv4Addr::new(127, 0, 0, 5).into(), proxy.address);
    let allowed = client.ask("GET /", &[]);
    assert_eq!((allowed.status, &*allowed.body), (200, "served"));
    assert_eq!(allowed.header("ratelimit"), Some(r#""all";r=0;t=86400"#));
    for forged in [
        ("Accept", "*/*"),
        ("X-Forwarded-For", "192.0.2.7"),
        ("X-Original-URI", "/free"),
        ("X-Forwarded-Uri", "/free"),
    ] {
        let mut client = Client::from(Ipv4Addr::new(127, 0, 0, 5).into(), proxy.address);
        let denied = client.ask("GET /", &[forged]);
        assert_eq!(denied.status, 429, "{forged:?}");
        assert_eq!(denied.header("retry-after"), Some("86400"));
        assert_eq!(denied.header("ratelimit"), Some(r#""all";r=0;t=86400"#));
    }
    // One on a trusted address is a client of that address.
    let on_trusted = |forged| ask(proxy.address, "GET /", &[("X-Forwarded-For", forged)]).status;
    let forged = ["192.0.2.7", "192.0.2.8", "192.0.2.9"].map(on_trusted);
    assert_eq!(forged, [200, 429, 429]);
    // Without an answer nothing is served.
    program.signal("TERM");
    assert!(program.ended().success());
    assert_eq!(ask(proxy.address, "GET /", &[]).status, 503);
    assert_eq!(service.served(), 2);
}

#[test]
fn haproxy_keeps_the_limit_at_once_that_the_program_leaves_out() {
    let Some(haproxy_program) = installed("haproxy", "-v") else {
        return;
    };
    let policy = include_str!("../deploy/policy.toml");
    let program = Program::start("haproxy-at-once", policy, &[]);
    let service = Service::start();
    let proxy = haproxy(
        &haproxy_program,
        "haproxy-at-once-proxy",
        program.listen,
        service.address,
        &[("sc_trackers(0) gt 100", "sc_trackers(0) gt 1")],
    );
    one_at_once(proxy.address, &service, 429);
}
