//! What a peer sends is bounded.

#[path = "support/client.rs"]
mod client;
#[path = "support/program.rs"]
mod program;

use core::time::Duration;
use std::io;

use client::Client;
use program::{Program, until};

const FIELDS: [(&str, &str); 4] = [
    ("X-Original-Method", "GET"),
    ("X-Original-URI", "/"),
    ("X-Original-Host", "shop.example"),
    ("X-Forwarded-For", "192.0.2.7"),
];

#[test]
fn more_connections_than_allowed_wait_until_one_ends() {
    let program = Program::start("connections", "rules = []", &["--connections", "2"]);
    let [mut first, mut second] = [(); 2].map(|()| Client::connect(program.listen));
    for client in [&mut first, &mut second] {
        assert_eq!(client.ask("GET /check/nginx", &FIELDS).status, 200);
    }
    let mut third = Client::connect(program.listen);
    third.request("GET /check/nginx", &FIELDS);
    third.set_limit(Duration::from_millis(100));
    let none = third.try_reply().unwrap_err();
    assert!(
        matches!(
            none.kind(),
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
        ),
        "it is not answered yet: {none}"
    );
    assert!(program.metrics().contains("\nportcullis_connections 2\n"));
    drop(first);
    third.set_limit(Duration::from_secs(20));
    assert_eq!(third.reply().status, 200);
    drop((second, third));
    until(|| program.metrics().contains("\nportcullis_connections 0\n"));
}

#[test]
fn a_head_that_is_too_large_is_refused() {
    let program = Program::start("heads", "rules = []", &[]);
    let ask = |others: &[(&str, &str)]| {
        let all = [&FIELDS[..], others].concat();
        let mut client = Client::connect(program.listen);
        client.ask("GET /check/nginx", &all).status
    };
    let cookie = |length: usize| "c".repeat(length);
    assert_eq!(ask(&[("Cookie", &cookie(30_000))]), 200);
    assert_eq!(ask(&[("Cookie", &cookie(400_000))]), 431);
    // Also one that has not ended.
    let mut client = Client::connect(program.listen);
    client.send(&format!(
        "GET /check/nginx HTTP/1.1\r\nCookie: {}",
        cookie(66_000)
    ));
    assert_eq!(client.reply().status, 431);
    // However many reads they arrive in.
    let part = cookie(9_000);
    let large = |count: usize| vec![("Cookie", &*part); count];
    assert_eq!(ask(&large(7)), 200);
    assert_eq!(ask(&large(8)), 431);
    assert_eq!(ask(&large(12)), 431);
    let names: Vec<_> = (0..1_100).map(|n| format!("X-{n}")).collect();
    let fields = |n: usize| -> Vec<_> { names[..n].iter().map(|name| (&**name, "v")).collect() };
    assert_eq!(ask(&fields(900)), 200);
    assert_eq!(ask(&fields(1_050)), 431);
}

#[test]
fn the_body_of_a_check_is_no_further_check() {
    let program = Program::start("bodies", "rules = []", &[]);
    let mut next = String::from("GET /check/nginx HTTP/1.1\r\nHost: a\r\n");
    for (name, value) in FIELDS {
        next.extend([name, ": ", value, "\r\n"]);
    }
    next.push_str("\r\n");
    let chunked = format!("{:x}\r\n{next}\r\n0\r\n\r\n", next.len());
    let length = next.len().to_string();
    for (field, body) in [
        (("Content-Length", &*length), &next),
        // It says that more comes.
        (("Content-Length", "100000"), &next),
        (("Transfer-Encoding", "chunked"), &chunked),
    ] {
        let mut client = Client::connect(program.listen);
        client.set_limit(Duration::from_millis(300));
        client.request("POST /check/nginx", &[&FIELDS[..], &[field]].concat());
        client.send(body);
        assert_eq!(client.reply().status, 200, "{field:?}");
        assert!(client.try_reply().is_err(), "{field:?}");
    }
    // Two lengths, or a length and chunks.
    for other in [("Content-Length", "7"), ("Transfer-Encoding", "chunked")] {
        let mut client = Client::connect(program.listen);
        let both = [&FIELDS[..], &[("Content-Length", &length), other]].concat();
        client.request("POST /check/nginx", &both);
        let _ = client.try_send(&next);
        client.set_limit(Duration::from_millis(300));
        let replies = core::iter::from_fn(|| client.try_reply().ok()).count();
        assert!(replies <= 1, "{other:?}");
    }
    let counted = program.metrics();
    let checks = counted
        .lines()
        .find(|line| line.contains("proxy=\"nginx\",status=\"200\""));
    let checks: u32 = checks.unwrap().rsplit(' ').next().unwrap().parse().unwrap();
    assert!(checks <= 5, "{checks}");
}
