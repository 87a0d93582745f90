//! Checks are answered as the policy decides the request that they are about.

#[path = "support/client.rs"]
mod client;
#[path = "support/program.rs"]
mod program;

use core::net::Ipv4Addr;
use std::io::ErrorKind;

use client::{Client, ask};
use program::Program;

const POLICY: &str = "
    [[rules]]
    name = 'login'
    methods = ['POST']
    paths = ['/login']
    hosts = ['shop.example']
    key = ['address']
    limits = [{ rate = '2/d', burst = 2, name = 'tries' }]

    [[rules]]
    name = 'keys'
    priority = 1
    paths = ['/api/**']
    key = ['header:X-Api-Key']
    on_missing = 'deny'
    limits = ['1/d']
    status = 503
    message = 'Later.'
";

/// The fields of a proxy: the method, the target and the host.
fn fields(proxy: &str) -> [&'static str; 3] {
    match proxy {
        "nginx" | "haproxy" => ["X-Original-Method", "X-Original-URI", "X-Original-Host"],
        _ => ["X-Forwarded-Method", "X-Forwarded-Uri", "X-Forwarded-Host"],
    }
}

const PROXIES: [&str; 4] = ["nginx", "haproxy", "traefik", "caddy"];

/// Asks as a proxy does, about a request of `client`.
fn check(
    program: &Program,
    proxy: &str,
    request: (&str, &str),
    client: &str,
    others: &[(&str, &str)],
) -> client::Reply {
    let [method, target, host] = fields(proxy);
    let mut headers = vec![
        (method, request.0),
        (target, request.1),
        (host, "shop.example"),
        ("X-Forwarded-For", client),
    ];
    headers.extend_from_slice(others);
    ask(program.listen, &format!("GET /check/{proxy}"), &headers)
}

#[test]
fn each_proxy_gets_the_decision_in_the_form_that_it_understands() {
    for proxy in PROXIES {
        let program = Program::start(&format!("form-{proxy}"), POLICY, &[]);
        let login = || check(&program, proxy, ("POST", "/login"), "192.0.2.7", &[]);
        let allowed = login();
        assert_eq!((allowed.status, &*allowed.body), (200, ""));
        assert_eq!(allowed.header("ratelimit"), Some(r#""tries";r=1;t=43200"#));
        assert_eq!(login().status, 200);
        let denied = login();
        let (status, of_decision) = match proxy {
            "nginx" => (403, Some("429")),
            _ => (429, None),
        };
        assert_eq!(denied.status, status, "{proxy}");
        assert_eq!(denied.header("x-portcullis-status"), of_decision);
        assert_eq!(denied.header("retry-after"), Some("43200"));
        assert_eq!(denied.header("ratelimit"), Some(r#""tries";r=0;t=43200"#));
        let passed_on = |body| if proxy == "nginx" { "" } else { body };
        assert_eq!(denied.body, passed_on("Too Many Requests"));

        // Another client, another method, another path and another host.
        let with = |request, client| check(&program, proxy, request, client, &[]).status;
        assert_eq!(with(("POST", "/login"), "192.0.2.8"), 200);
        assert_eq!(with(("GET", "/login"), "192.0.2.7"), 200);
        assert_eq!(with(("POST", "/login/help"), "192.0.2.7"), 200);
        let [method, target, host] = fields(proxy);
        let headers = [
            (method, "POST"),
            (target, "/login?next=/"),
            (host, "blog.example"),
            ("X-Forwarded-For", "192.0.2.7"),
        ];
        let other = ask(program.listen, &format!("GET /check/{proxy}"), &headers);
        assert_eq!(other.status, 200);
        // However the path is spelled.
        assert_ne!(with(("POST", "//%6Cogin/"), "192.0.2.7"), 200);

        // A header of the client is a key, and the rule has a status and a text.
        let key = |key: &str| {
            check(
                &program,
                proxy,
                ("GET", "/api/a"),
                "192.0.2.7",
                &[("X-Api-Key", key)],
            )
        };
        assert_eq!((key("a").status, key("b").status), (200, 200));
        let denied = key("a");
        let of_rule = if proxy == "nginx" { 403 } else { 503 };
        assert_eq!(
            (denied.status, &*denied.body),
            (of_rule, passed_on("Later."))
        );
    }
}

#[test]
fn forged_fields_choose_no_key_of_another_client() {
    let trusted = format!("serve.trusted = ['127.0.0.1', '10.0.0.0/8']\n{POLICY}");
    let program = Program::start("forged", &trusted, &[]);
    let status = |addresses: &[&str], others: &[(&str, &str)]| {
        let mut all = others.to_vec();
        all.extend(
            addresses[1..]
                .iter()
                .map(|address| ("X-Forwarded-For", *address)),
        );
        check(&program, "nginx", ("POST", "/login"), addresses[0], &all).status
    };
    // The proxy appends the address of its client. What is before it, the client has sent.
    assert_eq!(status(&["192.0.2.7"], &[]), 200);
    assert_eq!(status(&["198.51.100.1, 192.0.2.7"], &[]), 200);
    for forged in [
        &["198.51.100.2, 192.0.2.7"][..],
        &["198.51.100.3", "192.0.2.7"],
        &["198.51.100.4, 192.0.2.7, 10.1.2.3"],
        &["\"198.51.100.5, 192.0.2.7"],
        &["10.0.0.9, 192.0.2.7"],
    ] {
        assert_eq!(status(forged, &[]), 403, "{forged:?}");
    }
    // Fields of other proxies, and of other servers, do not count.
    let others = [
        ("X-Forwarded-Method", "GET"),
        ("X-Forwarded-Uri", "/free"),
        ("X-Forwarded-Host", "blog.example"),
        ("X-Real-IP", "198.51.100.6"),
        ("Forwarded", "for=198.51.100.6"),
        ("Host", "blog.example"),
    ];
    assert_eq!(status(&["192.0.2.7"], &others), 403);
    // A field of the proxy that is there twice is the client's and the proxy's.
    for field in fields("nginx") {
        assert_eq!(status(&["198.51.100.7"], &[(field, "GET")]), 400, "{field}");
    }
}

#[test]
fn a_proxy_that_does_not_describe_the_request_gets_an_error() {
    let program = Program::start("malformed", POLICY, &[]);
    for proxy in PROXIES {
        let [method, target, host] = fields(proxy);
        let all = [
            (method, "GET"),
            (target, "/"),
            (host, "shop.example"),
            ("X-Forwarded-For", "192.0.2.7"),
        ];
        let line = format!("GET /check/{proxy}");
        assert_eq!(ask(program.listen, &line, &all).status, 200);
        for at in 0..all.len() {
            let mut without = all.to_vec();
            let (missing, _) = without.remove(at);
            let reply = ask(program.listen, &line, &without);
            assert_eq!(reply.status, 400, "{proxy} without {missing}");
            let names = reply.body.to_ascii_lowercase();
            assert!(names.contains(&missing.to_ascii_lowercase()), "{names}");
        }
    }
    for path in [
        "/",
        "/check/",
        "/check/envoy",
        "/check/nginx/",
        "/metrics",
        "/ready",
    ] {
        assert_eq!(
            ask(program.listen, &format!("GET {path}"), &[]).status,
            404,
            "{path}"
        );
    }
    let metrics = program.metrics();
    assert!(
        metrics.contains("\nportcullis_malformed_checks_total 22\n"),
        "{metrics}"
    );
}

#[test]
fn a_peer_that_is_no_trusted_proxy_is_not_answered() {
    let policy = format!("serve.trusted = ['127.0.0.1']\n{POLICY}");
    let program = Program::start("untrusted", &policy, &["--grpc", "127.0.0.1:0"]);
    let [method, target, host] = fields("nginx");
    let all = [
        (method, "GET"),
        (target, "/"),
        (host, "shop.example"),
        ("X-Forwarded-For", "192.0.2.7"),
    ];
    assert_eq!(ask(program.listen, "GET /check/nginx", &all).status, 200);
    for listener in [program.listen, program.grpc.unwrap()] {
        let mut stranger = Client::from(Ipv4Addr::new(127, 0, 0, 5).into(), listener);
        let closed = stranger.try_reply().unwrap_err().kind();
        let is_closed = [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset].contains(&closed);
        assert!(is_closed, "{closed}");
        let refused = program.event("it may not ask");
        assert_eq!(refused["peer"], "127.0.0.5");
    }
    let counted = "\nportcullis_untrusted_connections_total 2\n";
    assert!(program.metrics().contains(counted));
}

#[test]
fn in_shadow_mode_every_request_passes_and_is_counted() {
    let program = Program::start("shadow", POLICY, &["--shadow"]);
    for (nth, denied) in [None, None, Some("429"), Some("429")]
        .into_iter()
        .enumerate()
    {
        let reply = check(&program, "nginx", ("POST", "/login"), "192.0.2.7", &[]);
        assert_eq!((reply.status, &*reply.body), (200, ""), "{nth}");
        assert_eq!(reply.header("x-portcullis-status"), denied);
        assert_eq!(reply.header("retry-after"), None);
    }
    let metrics = program.metrics();
    let counted = "portcullis_decisions_total{rule=\"login\",answer=\"denied\",limit=\"2/d\"} 2";
    assert!(metrics.contains(counted), "{metrics}");
    let checks = "portcullis_checks_total{proxy=\"nginx\",status=\"429\",mode=\"shadow\"} 2";
    assert!(metrics.contains(checks), "{metrics}");
    let here = [("Host", "127.0.0.1")];
    let page = ask(program.admin, "GET /live", &here).body;
    assert!(page.contains("SHADOW: every request passes"), "{page}");
    let denied = program.event("request would be denied");
    assert_eq!(denied["level"], "INFO");
    assert_eq!(
        (&denied["rule"], &denied["outcome"]),
        (&"login".into(), &"denied".into())
    );
    // Neither an address nor a path is in the log.
    assert!(!denied.to_string().contains("192.0.2.7"));
}
