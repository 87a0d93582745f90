//! Several of these programs share the limits of one Redis server.

#[path = "support/client.rs"]
mod client;
#[path = "support/program.rs"]
mod program;
#[path = "../../counters/tests/support/server.rs"]
mod server;

use core::net::SocketAddr;

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
    check_of(program.listen, "GET /", "192.0.2.7", Some(key))
}

/// Checks a request. `line` is its method and its target.
fn check_of(listen: SocketAddr, line: &str, client: &str, key: Option<&str>) -> Reply {
    let (method, target) = line.split_once(' ').expect("a method and a target");
    let mut headers = vec![
        ("X-Original-Method", method),
        ("X-Original-URI", target),
        ("X-Original-Host", "shop.example"),
        ("X-Forwarded-For", client),
    ];
    headers.extend(key.map(|key| ("X-Api-Key", key)));
    ask(listen, "GET /check/haproxy", &headers)
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
    // No limit of the key is reached: it is not the client that is told to ask less.
    assert_eq!(statuses([&denies, &denies], "d"), [503, 503]);
    let denied = check(&denies, "d");
    assert_eq!(denied.header("retry-after"), Some("1"));
    let by_limit = "{rule=\"clients\",answer=\"denied\",limit=\"4/d\"} 0\n";
    assert!(denies.metrics().contains(by_limit), "{}", denies.metrics());
    // A balancer that took all of them away would help nobody.
    assert_eq!(ask(denies.admin, "GET /ready", &[]).status, 200);
    assert_eq!(statuses([&allows; 6], "d"), [200; 6]);
    assert_eq!(statuses([&shares; 3], "d"), [200, 200, 429]);
    // A change of the file keeps the store.
    denies.write(&policy(1, "").replace("4/d", "5/d"));
    denies.event("a policy is in force");
    assert_eq!(check(&denies, "e").status, 503);
}

#[test]
fn a_closed_port_of_the_store_is_logged_as_such_with_its_address_and_without_its_password() {
    let port = Server::free_port();
    let password = policy(port, "").replace("redis://", "redis://user:secret@");
    let program = Program::start("store-closed", &password, &[]);
    assert_eq!(check(&program, "a").status, 503);
    let event = program.event("the counter store is unavailable");
    let message = event["message"].as_str().expect("a text");
    let says = format!("no connection to 127.0.0.1:{port}: Connection refused");
    assert!(message.contains(&says), "{message}");
    assert!(!event.to_string().contains("secret"), "{event}");
}

/// Each API key, the logins of each address, in Redis, and the whole service. Windows take back all
/// at once. A token bucket may lack what it gains in a second, until that has passed.
const THREE: &str = "
    [[rules]]
    name = 'each key'
    key = ['header:X-Api-Key']
    on_missing = 'skip'
    limits = [{ rate = '10/d', algorithm = 'window-from-request' }]
    continue = true

    [[rules]]
    name = 'logins'
    methods = ['POST']
    paths = ['/login']
    key = ['address']
    limits = ['3/d']
    store = 'shared'
    continue = true

    [[rules]]
    name = 'service'
    limits = [{ rate = '40/d', algorithm = 'window-from-request' }]
";

/// What each rule that was asked has left, by the state in a reply.
fn left(reply: &Reply) -> Vec<(String, u64)> {
    let state = reply.header("ratelimit").expect("a state");
    let of_rule = |item: &str| {
        let mut parts = item.trim().split(';');
        let name = parts.next().expect("a name").trim_matches('"').to_owned();
        let left = parts.next().and_then(|part| part.strip_prefix("r="));
        (name, left.expect("permits").parse().expect("a number"))
    };
    state.split(',').map(of_rule).collect()
}

#[test]
fn a_denial_by_any_limit_leaves_the_others_as_they_were_also_in_redis_and_without_it() {
    let Some(redis) = Server::start() else {
        return;
    };
    let settings = "stores = ['shared']\n[serve.stores.shared]\ntime_limit = '1s'\n";
    let url = format!("redis = 'redis://127.0.0.1:{}/'\n", redis.port);
    let program = Program::start("store-three", &format!("{settings}{url}{THREE}"), &[]);
    let listen = program.listen;
    let ask = |line, client, key| check_of(listen, line, client, key);
    let states = |reply: Reply, expected: &[(&str, u64)]| {
        let left = left(&reply);
        let left: Vec<_> = left.iter().map(|(name, left)| (&**name, *left)).collect();
        assert_eq!((reply.status, &*left), (200, expected));
    };
    let (login, items) = ("POST /login", "GET /items");
    for nth in 1..=3 {
        let of_all = [
            ("each key", 10 - nth),
            ("service", 40 - nth),
            ("logins", 3 - nth),
        ];
        states(ask(login, "192.0.2.7", Some("a")), &of_all);
    }
    // Redis denies, one after another and many at once: the key and the service are as before.
    let is_denied = || ask(login, "192.0.2.7", Some("a")).status == 429;
    assert!((0..5).all(|_| is_denied()));
    let event = program.event("request denied");
    assert_eq!(
        (&event["rule"], &event["limit"]),
        (&"logins".into(), &"3/d".into())
    );
    let (third, retry) = (86_400.0 / 3.0, event["retry_after_s"].as_f64());
    let is_right = |retry: f64| (third - 60.0..=third).contains(&retry);
    assert!(retry.is_some_and(is_right), "{event}");
    std::thread::scope(|scope| {
        let many: Vec<_> = (0..16).map(|_| scope.spawn(is_denied)).collect();
        assert!(many.into_iter().all(|one| one.join().expect("it is asked")));
    });
    let one = ask(items, "192.0.2.7", Some("a"));
    states(one, &[("each key", 6), ("service", 36)]);
    // The key denies: the logins in Redis and the service are as before.
    for nth in 1..=6 {
        let one = ask(items, "192.0.2.7", Some("a"));
        states(one, &[("each key", 6 - nth), ("service", 36 - nth)]);
    }
    for _ in 0..5 {
        assert_eq!(ask(login, "192.0.2.8", Some("a")).status, 429);
    }
    let one = ask(login, "192.0.2.8", None);
    states(one, &[("service", 29), ("logins", 2)]);

    // Redis is killed: logins are denied, and take nothing.
    drop(redis);
    for _ in 0..5 {
        assert_eq!(ask(login, "192.0.2.9", Some("b")).status, 503);
    }
    let one = ask(items, "192.0.2.9", Some("b"));
    states(one, &[("each key", 9), ("service", 28)]);

    // The service denies: the keys are as before.
    for nth in 1..=28 {
        states(ask(items, "192.0.2.9", None), &[("service", 28 - nth)]);
    }
    for key in ["b", "c"] {
        let denied = ask(items, "192.0.2.9", Some(key));
        assert_eq!(
            (denied.status, left(&denied)),
            (429, vec![("service".into(), 0)])
        );
    }
    program.write(&format!("{settings}{url}{}", THREE.replace("40/d", "50/d")));
    program.event("a policy is in force");
    let one = ask(items, "192.0.2.9", Some("b"));
    assert_eq!(left(&one)[0], ("each key".into(), 8));
}

/// The program starts before its store does, and uses the store once it answers.
#[test]
fn a_store_that_is_away_at_the_start_is_used_once_it_answers() {
    let Some(redis) = Server::start() else {
        return;
    };
    let port = redis.port;
    drop(redis);
    let program = Program::start("store-late", &policy(port, "when_down = '1/2'"), &[]);
    // Half of the limit is in memory.
    assert_eq!(statuses([&program; 3], "a"), [200, 200, 429]);
    let Some(_redis) = Server::start_on(port) else {
        return;
    };
    // A request tries it again.
    until(|| {
        check(&program, "c");
        let up = "portcullis_store_up{store=\"shared\"} 1\n";
        program.metrics().contains(up)
    });
    assert_eq!(statuses([&program; 5], "b"), [200, 200, 200, 200, 429]);
}

#[test]
fn a_server_that_forgets_limits_is_told_at_the_start() {
    let says = "it forgets limits when its memory is full";
    for (server_policy, is_told) in [("allkeys-lru", true), ("noeviction", false)] {
        let arguments = ["--maxmemory", "100mb", "--maxmemory-policy", server_policy];
        let Some(redis) = Server::start_as(&arguments) else {
            return;
        };
        let name = format!("store-{server_policy}");
        let program = Program::start(&name, &policy(redis.port, ""), &[]);
        if is_told {
            let event = program.event(says);
            let message = event["message"].as_str().expect("a text");
            assert!(message.ends_with("in place of allkeys-lru"), "{message}");
            assert_eq!(
                (&event["store"], &event["level"]),
                (&"shared".into(), &"WARN".into())
            );
        } else {
            // It would be told before the end of the outage.
            drop(redis);
            let message = program.event("the counter store")["message"].to_string();
            assert!(message.contains("unavailable"), "{message}");
        }
    }
}

/// No request asks from the outage on. The program finds both ends by itself.
#[test]
fn an_outage_in_which_no_request_asks_is_found_out_and_its_end_before_the_next_request() {
    let Some(mut redis) = Server::start() else {
        return;
    };
    let program = Program::start("store-idle", &policy(redis.port, ""), &[]);
    assert_eq!(check(&program, "a").status, 200);
    let is = |up: u8| format!("portcullis_store_up{{store=\"shared\"}} {up}\n");
    redis.stop();
    until(|| program.metrics().contains(&is(0)));
    // Longer than the client of Redis tries to connect, and until its pauses are the longest.
    std::thread::sleep(core::time::Duration::from_secs(8));
    let Some(_redis) = Server::start_on(redis.port) else {
        return;
    };
    let back = std::time::Instant::now();
    until(|| program.metrics().contains(&is(1)));
    let found_after = back.elapsed();
    assert_eq!(check(&program, "b").status, 200);
    assert!(found_after.as_secs() < 3, "{found_after:?}");
    program.event("the counter store answers again");
}

/// While a store is away, it is asked each second or two, for hours.
#[test]
fn a_long_outage_is_logged_once_for_each_reason_and_its_end_too() {
    let Some(mut redis) = Server::start() else {
        return;
    };
    let program = Program::start("store-outage", &policy(redis.port, ""), &[]);
    assert_eq!(check(&program, "a").status, 200);
    redis.stop();
    // Long enough for some retries.
    std::thread::sleep(core::time::Duration::from_secs(10));
    let Some(_redis) = Server::start_on(redis.port) else {
        return;
    };
    let events = program.events_until("the counter store answers again");
    let messages = events.iter().filter_map(|event| event["message"].as_str());
    let reasons = messages.filter_map(|message| message.strip_prefix("the counter store is "));
    // Without the times: for how long, and until when.
    let reasons = reasons.map(|reason| reason.split(", for ").next().expect("a reason"));
    let reasons = reasons.map(|reason| reason.split("; it is asked").next().expect("a reason"));
    let mut reasons: Vec<_> = reasons.collect();
    let written = reasons.len();
    reasons.sort_unstable();
    reasons.dedup();
    assert!((1..=3).contains(&written), "{events:?}");
    assert_eq!(reasons.len(), written, "{events:?}");
}

/// A check is over before its request is, so it holds no permit: neither while others are decided,
/// nor while the store has no answer.
#[test]
fn a_limit_at_once_denies_no_check_while_a_store_is_slow() {
    let Some(redis) = Server::start() else {
        return;
    };
    let of_all = "limits = [{ at_once = 1 }]";
    let of_one = "key = ['address']\nlimits = ['1000/d']\n\
                  overrides = [{ key = ['192.0.2.7'], limits = [{ at_once = 1 }] }]";
    for limits in [of_all, of_one] {
        let policy = format!(
            "{}\n[[rules]]\nname = 'service'\npriority = 1\n{limits}\n",
            policy(redis.port, "when_down = 'allow'")
                .replace("store =", "continue = true\nstore =")
        );
        let program = Program::start("store-slow", &policy, &[]);
        let listen = program.listen;
        redis.signal("-STOP");
        let status =
            move |key: u8| check_of(listen, "GET /", "192.0.2.7", Some(&key.to_string())).status;
        std::thread::scope(|scope| {
            let many: Vec<_> = (0..8).map(|key| scope.spawn(move || status(key))).collect();
            for one in many {
                assert_eq!(one.join().expect("it is asked"), 200, "{limits}");
            }
        });
        redis.signal("-CONT");
    }
}

/// Judged by the file alone: no server is asked.
#[test]
fn a_share_of_a_limit_that_is_none_is_doubtful() {
    let file = program::folder("share").join("policy.toml");
    let log = |when_down: &str, limit: &str| {
        let policy = policy(1, when_down).replace("limits = ['4/d']", limit);
        let keyed = policy.replace("key = ['header:X-Api-Key']", "key = ['address']");
        std::fs::write(&file, keyed).expect("a file");
        let arguments = ["--check", "--deny-warnings"];
        let output = program::command(&file, &arguments)
            .output()
            .expect("it ends");
        let log = String::from_utf8(output.stderr).expect("a text");
        assert_eq!(output.status.success(), log.is_empty(), "{log}");
        log
    };
    let quarter = "when_down = '1/4'";
    let small = "limits = ['100/m', { rate = '2/m', burst = 3 }]";
    let warning = log(quarter, small);
    assert!(
        warning.contains(r#""rule":"clients","limit":"2/m""#),
        "{warning}"
    );
    let says = "every request is denied: `when_down = \\\"1/4\\\"` keeps no permit of this limit";
    assert!(warning.contains(says), "{warning}");
    assert_eq!(warning.matches("keeps no permit").count(), 1);
    for (when_down, limit) in [
        (quarter, "limits = [{ rate = '2/m', burst = 4 }]"),
        (quarter, "limits = ['0/m']"),
        ("when_down = '2/4'", small),
        ("when_down = 'deny'", small),
        ("", small),
    ] {
        assert_eq!(log(when_down, limit), "", "{when_down} {limit}");
    }
}
