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
    let names: Vec<_> = (0..200).map(|n| format!("X-{n}")).collect();
    let fields = |n: usize| -> Vec<_> { names[..n].iter().map(|name| (&**name, "v")).collect() };
    assert_eq!(ask(&fields(90)), 200);
    assert_eq!(ask(&fields(150)), 431);
}
