//! Several of these programs share the limits of one Redis server.

#[path = "support/client.rs"]
mod client;
#[path = "support/program.rs"]
mod program;
#[path = "../../counters/tests/support/server.rs"]
mod server;

use client::{Reply, ask};
use program::{Program, until};
use server::Server;

fn policy(port: u16, when_down: &str) -> String {
    format!(
        "stores = ['shared']

        [serve.stores.shared]
        redis = 'redis://127.0.0.1:{port}/'
        time_limit = '1s'
        {when_down}

        [[rules]]
        name = 'clients'
        key = ['header:X-Api-Key']
        limits = ['4/d']
        store = 'shared'
        "
    )
}

fn check(program: &Program, key: &str) -> Reply {
    let headers = [
        ("X-Original-Method", "GET"),
        ("X-Original-URI", "/"),
        ("X-Original-Host", "shop.example"),
        ("X-Forwarded-For", "192.0.2.7"),
        ("X-Api-Key", key),
    ];
    ask(program.listen, "GET /check/haproxy", &headers)
}

fn statuses<const N: usize>(programs: [&Program; N], key: &str) -> [u16; N] {
    programs.map(|program| check(program, key).status)
}

#[test]
fn programs_share_the_limits_of_a_store_and_do_what_the_file_says_without_it() {
    let Some(redis) = Server::start() else {
        return;
    };
    let start = |name, when_down| Program::start(name, &policy(redis.port, when_down), &[]);
    let denies = start("store-denies", "");
    let allows = start("store-allows", "when_down = 'allow'");
    let shares = start("store-shares", "when_down = '1/2'");
    let all = [&denies, &allows, &shares, &denies, &allows, &shares];
    assert_eq!(statuses(all, "a"), [200, 200, 200, 200, 429, 429]);
    let first = check(&shares, "b");
    assert_eq!(first.header("ratelimit"), Some(r#""clients";r=3;t=21600"#));

    drop(redis);
    for program in [&denies, &allows, &shares] {
        check(program, "c");
        let down = "portcullis_store_up{store=\"shared\"} 0\n";
        until(|| program.metrics().contains(down));
    }
    assert_eq!(statuses([&denies, &denies], "d"), [429, 429]);
    assert_eq!(statuses([&allows; 6], "d"), [200; 6]);
    assert_eq!(statuses([&shares; 3], "d"), [200, 200, 429]);
    // A change of the file keeps the store.
    denies.write(&policy(1, "").replace("4/d", "5/d"));
    denies.event("a policy is in force");
    assert_eq!(check(&denies, "e").status, 429);
}
