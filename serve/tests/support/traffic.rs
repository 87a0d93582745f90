//! Recorded requests, and what a policy decides about them in this process.

#![allow(dead_code, reason = "each test uses a part")]

use portcullis_core::Timestamp;
use portcullis_policy::{Policy, Request};

use super::client::Client;

/// Rules whose permits do not return while a test runs.
pub(crate) const POLICY: &str = "
    [[rules]]
    name = 'login'
    methods = ['POST']
    paths = ['/login']
    key = ['address']
    limits = ['3/d', '5/7d']

    [[rules]]
    name = 'keys'
    priority = 1
    paths = ['/api/**']
    key = ['header:X-Api-Key']
    limits = ['9/d']

    [[rules]]
    name = 'blog'
    priority = 2
    hosts = ['blog.example']
    key = ['address', 'path']
    limits = [{ rate = '4/d', algorithm = 'window-from-request' }]

    [[rules]]
    name = 'all'
    priority = 3
    key = ['address']
    limits = ['20/d']
";

/// A request that was recorded.
pub(crate) struct Recorded {
    pub(crate) method: &'static str,
    pub(crate) target: &'static str,
    pub(crate) host: &'static str,
    pub(crate) client: String,
    pub(crate) key: String,
}

/// One of several, by the bits of a number that are not used yet.
fn one_of<T: Copy>(bits: &mut u64, of: &[T]) -> T {
    let count = of.len() as u64;
    let index = usize::try_from(*bits % count).expect("an index");
    *bits /= count;
    of[index]
}

/// Requests of a few clients.
pub(crate) fn recorded() -> Vec<Recorded> {
    let targets = [
        "/login",
        "/login",
        "/%6Cogin",
        "//login/",
        "/login?next=/",
        "/a/../login",
        "/api/items",
        "/api/items?page=2",
        "/api/caf%C3%A9",
        "/posts/1",
        "/",
    ];
    // A generator of Knuth's.
    let next = |state: &u64| {
        Some(
            state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1),
        )
    };
    let states = core::iter::successors(Some(4_711), next);
    let request = |state: u64| {
        let mut bits = state >> 20;
        Recorded {
            method: one_of(&mut bits, &["GET", "POST", "POST"]),
            target: one_of(&mut bits, &targets),
            host: one_of(&mut bits, &["shop.example", "blog.example"]),
            client: format!("192.0.2.{}", one_of(&mut bits, &[1, 2, 3, 4])),
            key: one_of(&mut bits, &["a", "b", "c"]).to_owned(),
        }
    };
    states.skip(1).take(400).map(request).collect()
}

/// Whether the policy allows each request, in this process.
pub(crate) fn decided(policy: &str, requests: &[Recorded]) -> Vec<bool> {
    let policy = Policy::from_toml(policy).expect("the rules are valid");
    let decide = |recorded: &Recorded| {
        let headers = [("X-Api-Key", &*recorded.key)];
        let request = Request::new(recorded.method, recorded.target)
            .host(recorded.host)
            .address(recorded.client.parse().expect("an address"))
            .headers(&headers);
        policy
            .decide_at(Timestamp::from_secs(1), &request)
            .is_allowed()
    };
    requests.iter().map(decide).collect()
}

/// Sends each request to a proxy, and returns the status of each reply.
pub(crate) fn sent(proxy: core::net::SocketAddr) -> Vec<u16> {
    let mut client = Client::connect(proxy);
    let mut send = |recorded: Recorded| {
        let headers = [
            ("Host", recorded.host),
            ("X-Forwarded-For", &recorded.client),
            ("X-Api-Key", &recorded.key),
            ("Content-Length", "0"),
        ];
        let line = format!("{} {}", recorded.method, recorded.target);
        let status = client.ask(&line, &headers).status;
        // nginx and HAProxy close the connection then.
        if status == 400 {
            client = Client::connect(proxy);
        }
        status
    };
    recorded().into_iter().map(&mut send).collect()
}
