//! The program under load, on loopback. No check depends on the speed of the machine.

#[path = "support/client.rs"]
mod client;
#[path = "../../tower/tests/support/load.rs"]
mod load;
#[path = "../../tower/tests/support/nginx.rs"]
mod nginx;
#[path = "support/program.rs"]
mod program;
#[path = "support/proxies.rs"]
mod proxies;

use core::fmt::Write as _;
use core::net::{Ipv4Addr, SocketAddr};
use core::time::Duration;

use client::Client;
use load::{Load, of_status};
use nginx::Nginx;
use program::Program;
use proxies::Service;

/// Room for 10,000 addresses.
const FORGED: &str = "
    [[rules]]
    name = 'addresses'
    key = ['address']
    keys = 10000
    limits = ['10/s']
";

/// Each check is about another client. The memory stays as it was, and a client whose key has a
/// slot is served. `PORTCULLIS_SOAK_CASES` sets the number of keys.
#[test]
fn forged_keys_take_no_memory() {
    let keys = std::env::var("PORTCULLIS_SOAK_CASES").ok();
    let keys = keys.map_or(30_000, |keys| keys.parse().expect("a number"));
    let program = Program::start("forged-keys", FORGED, &[]);
    let mut client = Client::connect(program.listen);
    let mut next = 0_u32;
    let mut flood = |keys: u32| {
        for _ in 0..keys / 200 {
            let mut checks = String::new();
            for _ in 0..200 {
                // Another one each time.
                let address = Ipv4Addr::from_bits(next.wrapping_mul(2_654_435_761));
                next += 1;
                let _ = write!(
                    checks,
                    "GET /check/caddy HTTP/1.1\r\nHost: a\r\nX-Forwarded-Method: GET\r\n\
                     X-Forwarded-Uri: /\r\nX-Forwarded-Host: shop.example\r\n\
                     X-Forwarded-For: {address}\r\n\r\n"
                );
            }
            client.send(&checks);
            for _ in 0..200 {
                assert!([200, 429].contains(&client.reply().status));
            }
        }
    };
    flood(10_000);
    let before = program.resident();
    flood(keys);
    let after = program.resident();
    println!("{keys} forged keys: {before} KiB before, {after} KiB after");
    assert!(after < before + 4 * 1024, "{before} KiB, then {after} KiB");
}

/// A load for all of which there are permits, in an open loop.
fn row(name: &str, load: &Load, address: SocketAddr) -> Duration {
    let replies = load.run(address);
    let (count, [half, most]) = of_status(&replies, 200);
    assert_eq!(count, load.requests(), "all requests are served");
    println!("{name:26} {half:>12?} {most:>12?}");
    most
}

/// The same load on nginx with `limit_req`, and on nginx with `auth_request` and this program, in
/// front of the same service. Prints the latencies.
#[test]
#[ignore = "needs nginx; cargo xtask soak runs it"]
fn soak_beside_nginx() {
    let Some(installed) = proxies::installed("nginx", "-v") else {
        return;
    };
    let service = Service::start();
    let url = format!("http://{}", service.address);
    let policy = FORGED.replace("10/s", "1000000/s");
    let program = Program::start("load", &policy, &[]);
    let zone = "limit_req_zone $binary_remote_addr zone=clients:1m rate=1000000r/s;";
    let limit = "limit_req zone=clients burst=100000 nodelay;";
    let limited = Nginx::limited(&installed, "load-limits", zone, limit, &url);
    let asking = proxies::nginx(&installed, "load-asks", program.listen, service.address);
    let load = Load::random(4_000, Duration::from_secs(5), 16);
    println!("{:26} {:>12} {:>12}", "latency of", "50 %", "99 %");
    // In turn, so that other load on the machine affects both.
    for _ in 0..3 {
        let of_nginx = row("nginx `limit_req`", &load, limited.address());
        let of_both = row("nginx and portcullis-serve", &load, asking.address);
        println!("added at 99 %: {:?}", of_both.saturating_sub(of_nginx));
    }
}
