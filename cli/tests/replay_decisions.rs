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
