//! The program stops when it is told to, and the checks that are under way are answered.

#[path = "support/client.rs"]
mod client;
#[path = "support/program.rs"]
mod program;

use client::{Client, ask};
use program::{Program, until};

const FIELDS: [(&str, &str); 4] = [
    ("X-Forwarded-Method", "GET"),
    ("X-Forwarded-Uri", "/"),
    ("X-Forwarded-Host", "shop.example"),
    ("X-Forwarded-For", "192.0.2.7"),
];

#[test]
fn checks_that_wait_are_answered_before_the_program_ends() {
    // The second check waits for about two seconds.
    let policy = "
        serve.wait = '10s'
        [[rules]]
        name = 'all'
        limits = [{ rate = '30/m', burst = 1, queue = 5 }]
    ";
    let mut program = Program::start("stop", policy, &["--drain", "50ms"]);
    assert_eq!(ask(program.admin, "GET /ready", &[]).status, 200);
    let mut idle = Client::connect(program.listen);
    assert_eq!(idle.ask("GET /check/caddy", &FIELDS).status, 200);
    let mut waits = Client::connect(program.listen);
    waits.request("GET /check/caddy", &FIELDS);
    until(|| program.metrics().contains("\nportcullis_connections 2\n"));
    program.signal("TERM");
    program.event("stopping");
    assert_eq!(ask(program.admin, "GET /ready", &[]).status, 503);
    assert_eq!(waits.reply().status, 200);
    assert!(program.ended().success());
    assert!(idle.try_reply().is_err());
}
