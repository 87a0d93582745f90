//! On a generated log of several thousand lines, every algorithm decides as a direct computation of
//! its definition.

mod common;

use std::collections::{BTreeMap, BTreeSet};

/// A request of the generated log.
struct Request {
    address: String,
    /// Seconds since 2024-03-01 00:00:00 UTC.
    second: u64,
    /// `None` is written as `-`.
    size: Option<u64>,
}

/// 2024-03-01 00:00:00 UTC, in seconds since the Unix epoch.
const START: u64 = 1_709_251_200;
const LINES: usize = 4_000;

/// Generates requests of 23 addresses, in bursts and lulls. Some addresses are much busier than
/// others. Some lines are older than the lines before them.
fn requests() -> Vec<Request> {
    let mut random = common::random();
    let mut time = 100_000;
    (0..LINES)
        .map(|_| {
            time += match random(100) {
                0..70 => 0,
                70..95 => random(4),
                95..99 => random(60),
                _ => random(2_000),
            };
            let late = if random(10) == 0 { random(90) } else { 0 };
            let (some, other) = (random(23), random(23));
            let address = match some.min(other) {
                few @ 0..3 => format!("2001:db8::{few}"),
                many => format!("192.0.2.{many}"),
            };
            let size = match random(12) {
                0 => None,
                1 => Some(0),
                _ => Some(random(20_000)),
            };
            Request {
                address,
                second: time - late,
                size,
            }
        })
        .collect()
}

/// Writes the log, in local times of three zones, partly in the common and partly in the combined
/// format.
fn log(requests: &[Request]) -> Vec<u8> {
    let mut log = String::new();
    for (
        index,
        Request {
            address,
            second,
            size,
        },
    ) in requests.iter().enumerate()
    {
        let (zone, ahead) = [("+0000", 0), ("+0200", 7_200), ("-0530", -19_800)][index % 3];
        let local = second.checked_add_signed(ahead).unwrap();
        let (day, hour, minute) = (local / 86_400 + 1, local / 3_600 % 24, local / 60 % 60);
        assert!(day <= 31, "the log is longer than one month");
        let second = local % 60;
        let size = size.map_or("-".into(), |size| size.to_string());
        let more = if index % 2 == 0 {
            " \"http://example.org/\" \"Agent/1.0 (x; y)\""
        } else {
            ""
        };
        let line = format!(
            "{address} - - [{day:02}/Mar/2024:{hour:02}:{minute:02}:{second:02} {zone}] \"GET /{index} HTTP/1.1\" 200 {size}{more}\n"
        );
        log.push_str(&line);
    }
    log.into_bytes()
}

/// Decides about `cost` permits for a key at a time in milliseconds since the Unix epoch. Times
/// never go back.
type Decide = Box<dyn FnMut(&str, u64, u64) -> bool>;

/// Returns the expected counts of a replay: requests, allowed, denied, malformed, keys.
fn expected(
    requests: &[Request],
    by_address: bool,
    by_bytes: bool,
    mut decide: Decide,
) -> [u64; 5] {
    let (mut newest, mut allowed, mut keys) = (0, 0, BTreeSet::new());
    for request in requests {
        newest = newest.max(START + request.second);
        let key = if by_address { &*request.address } else { "" };
        keys.insert(key);
        let cost = if by_bytes {
            request.size.unwrap_or(0)
        } else {
            1
        };
        if cost == 0 || decide(key, newest * 1_000, cost) {
            allowed += 1;
        }
    }
    let requests = requests.len() as u64;
    [requests, allowed, requests - allowed, 0, keys.len() as u64]
}

/// Replays with every combination of key and cost, and compares the counts.
fn compare(algorithm: &str, limit: &str, more: &[&str], new: impl Fn() -> Decide) {
    let requests = requests();
    let log = log(&requests);
    let (mut allowed, mut denied) = (0, 0);
    for key in ["ip", "global"] {
        for cost in ["one", "bytes"] {
            let args = [
                &[
                    "--algorithm",
                    algorithm,
                    "--limit",
                    limit,
                    "--key",
                    key,
                    "--cost",
                    cost,
                    "--order",
                    "log",
                ],
                more,
            ]
            .concat();
            let expected = expected(&requests, key == "ip", cost == "bytes", new());
            assert_eq!(common::counts(&log, &args), expected, "{args:?}");
            allowed += expected[1];
            denied += expected[2];
        }
    }
    assert!(
        allowed > 1_000 && denied > 1_000,
        "{limit} {more:?} is not significant: {allowed} allowed, {denied} denied"
    );
}

/// The limits to try: permits, and the period in milliseconds. Some suit single requests, some suit
/// bytes, some both.
const LIMITS: [(&str, u64, u64); 6] = [
    ("3/10s", 3, 10_000),
    ("1/s", 1, 1_000),
    ("7/1m", 7, 60_000),
    ("50000/m", 50_000, 60_000),
    ("999991/h", 999_991, 3_600_000),
    ("5/1500ms", 5, 1_500),
];

#[test]
fn a_token_bucket_decides_as_rational_arithmetic_does() {
    for (limit, permits, period) in LIMITS {
        for burst in [permits, permits * 2 + 1, 30_000] {
            let text = burst.to_string();
            compare("token-bucket", limit, &["--burst", &text], move || {
                // A permit is `period` units; each millisecond adds `permits` units.
                let full = u128::from(burst * period);
                let mut buckets: BTreeMap<String, (u128, u64)> = BTreeMap::new();
                Box::new(move |key, now, cost| {
                    let (level, since) = buckets.entry(key.into()).or_insert((full, now));
                    *level = full.min(*level + u128::from(permits) * u128::from(now - *since));
                    *since = now;
                    let price = u128::from(cost * period);
                    let enough = *level >= price;
                    *level -= if enough { price } else { 0 };
                    enough
                })
            });
        }
    }
}

#[test]
fn the_default_burst_is_the_limit() {
    let log = log(&requests());
    assert_eq!(
        common::counts(&log, &["--limit", "7/m"]),
        common::counts(&log, &["--limit", "7/m", "--burst", "7"])
    );
}

/// Every grant of every key: its time and its permits.
type Admissions = BTreeMap<String, Vec<(u64, u64)>>;

/// Grants if the permits of the previous grants for which `counts(then, now)` holds, plus the new
/// ones, do not exceed the limit.
fn windowed(limit: u64, counts: impl Fn(u64, u64) -> bool + 'static) -> Decide {
    let mut admissions = Admissions::new();
    Box::new(move |key, now, cost| {
        let admitted = admissions.entry(key.into()).or_default();
        // Time does not go back: a grant that no longer counts never counts again.
        admitted.retain(|&(then, _)| counts(then, now));
        let taken: u64 = admitted.iter().map(|&(_, permits)| permits).sum();
        let enough = taken + cost <= limit;
        if enough {
            admitted.push((now, cost));
        }
        enough
    })
}

#[test]
fn a_fixed_window_counts_grants_in_the_same_window_since_the_epoch() {
    for (limit, permits, period) in LIMITS {
        compare("fixed-window", limit, &[], move || {
            windowed(permits, move |then, now| then / period == now / period)
        });
    }
}

#[test]
fn a_sliding_window_counts_grants_in_its_segments_since_the_epoch() {
    for (limit, permits, period) in LIMITS {
        for segments in [1, 7, 8, 9, 100] {
            let text = segments.to_string();
            compare("sliding-window", limit, &["--segments", &text], move || {
                windowed(permits, move |then, now| {
                    now * segments / period - then * segments / period < segments
                })
            });
        }
    }
}

#[test]
fn a_sliding_window_has_eight_segments_by_default() {
    let log = log(&requests());
    let args = ["--limit", "7/m", "--algorithm", "sliding-window"];
    let eight = [&args[..], &["--segments", "8"]].concat();
    let nine = [&args[..], &["--segments", "9"]].concat();
    assert_eq!(common::counts(&log, &args), common::counts(&log, &eight));
    assert_ne!(common::counts(&log, &args), common::counts(&log, &nine));
}

/// How four kinds of servers write a request: the format to replay it with, and the line.
type Kind = (&'static str, fn(&Request, usize, [u64; 5]) -> String);

/// A log of IIS, one of `CloudFront`, one of a proxy with ports, fractions of a second and names
/// with spaces, and one with a list of addresses before the client.
const KINDS: [Kind; 4] = [
    (
        "%{%Y-%m-%d %H:%M:%S}t %A %m %U %q %p %u %h %{User-Agent}i %{Referer}i %s %b",
        |request, index, [day, hour, minute, second, _]| {
            let (address, size) = (&request.address, written(request.size));
            format!(
                "2024-03-{day:02} {hour:02}:{minute:02}:{second:02} 10.0.0.1 GET /{index} - 443 - \
                 {address} Mozilla/5.0+(X11;+Linux) - 200 {size}\n"
            )
        },
    ),
    (
        r"%{%Y-%m-%d\t%H:%M:%S}t\t%{edge}n\t%b\t%h\t%m\t%V\t%U\t%s",
        |request, index, [day, hour, minute, second, _]| {
            let (address, size) = (&request.address, written(request.size));
            format!(
                "2024-03-{day:02}\t{hour:02}:{minute:02}:{second:02}\tCDG50-P2\t{size}\t{address}\t\
                 GET\ta.example\t/{index}\t200\t-\tcurl/8.0\n"
            )
        },
    ),
    (
        "%h %l %u [%{%d/%b/%Y:%H:%M:%S}t.%{msec_frac}t] \"%r\" %s %b",
        |request, index, [day, hour, minute, second, milli]| {
            let size = written(request.size);
            let port = 1_024 + index;
            let client = if request.address.contains("::") {
                format!("[{}]:{port}", request.address)
            } else {
                format!("{}:{port}", request.address)
            };
            let user = ["-", "frank", "john smith", "a [b] c"][index % 4];
            format!(
                "{client} - {user} [{day:02}/Mar/2024:{hour:02}:{minute:02}:{second:02}.{milli:03}] \
                 \"GET /{index} HTTP/1.1\" 200 {size}\n"
            )
        },
    ),
    (
        "%{X-Forwarded-For}i %h %l %u %t \"%r\" %s %b",
        |request, index, [day, hour, minute, second, _]| {
            let (address, size) = (&request.address, written(request.size));
            let list = ["-", "198.51.100.7", "198.51.100.7, 10.0.0.9", "a, b, c"][index % 4];
            format!(
                "{list} {address} - - [{day:02}/Mar/2024:{hour:02}:{minute:02}:{second:02} +0000] \
                 \"GET /{index} HTTP/1.1\" 200 {size}\n"
            )
        },
    ),
];

fn written(size: Option<u64>) -> String {
    size.map_or("-".into(), |size| size.to_string())
}

#[test]
fn logs_of_four_kinds_of_servers_are_judged_as_the_requests_that_they_record() {
    let requests = requests();
    let policy = "[[rules]]\nname = \"a\"\nkey = [\"address/32/128\"]\n\
                  limits = [{ rate = \"3/10s\", algorithm = \"fixed-window\" }]\n";
    let policy = common::Scratch::new("four_kinds.toml", policy.as_bytes());
    for (format, line) in KINDS {
        let has_fraction = format.contains("msec_frac");
        let mut log = String::new();
        let (mut newest, mut decide) = (0, windowed(3, |then, now| then / 10_000 == now / 10_000));
        let (mut allowed, mut keys) = (0, BTreeSet::new());
        for (index, request) in requests.iter().enumerate() {
            let milli = index as u64 * 77 % 1_000;
            let second = request.second;
            let time = [
                second / 86_400 + 1,
                second / 3_600 % 24,
                second / 60 % 60,
                second % 60,
                milli,
            ];
            log.push_str(&line(request, index, time));
            let at = (START + second) * 1_000 + if has_fraction { milli } else { 0 };
            newest = newest.max(at);
            keys.insert(&request.address);
            allowed += u64::from(decide(&request.address, newest, 1));
        }
        let all = requests.len() as u64;
        let expected = [all, allowed, all - allowed, 0, keys.len() as u64];
        let common_args = ["--format", format, "--order", "log"];
        let limit = ["--limit", "3/10s", "--algorithm", "fixed-window"];
        let limited = [&common_args[..], &limit].concat();
        assert_eq!(
            common::counts(log.as_bytes(), &limited),
            expected,
            "{format}"
        );
        let ruled = [&common_args[..], &["--policy", policy.path()]].concat();
        let ruled = common::json(log.as_bytes(), &ruled);
        assert_eq!(
            ["requests", "allowed", "denied", "malformed"].map(|name| ruled[name].as_u64()),
            [0, 1, 2, 3].map(|place| Some(expected[place])),
            "{format}"
        );
    }
}
