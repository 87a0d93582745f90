//! In the order of time, an unsorted log is judged as the same log sorted, alone or in pieces. The
//! horizon bounds the memory.

mod common;

use core::fmt::Write;

use common::{Scratch, gzip, json, line, portcullis, text};
use serde_json::Value;

/// A line and its time, as the second of 2024-03-01.
#[derive(Clone)]
struct Entry {
    second: u64,
    text: String,
}

/// Generates a log as Apache writes it: a line is written when a request ends, up to 59 s after its
/// start, with the start time.
fn log(lines: usize) -> Vec<Entry> {
    let mut random = common::random();
    let mut ended = 60;
    let entries: Vec<_> = (0..lines)
        .map(|number| {
            ended += match random(100) {
                0..60 => 0,
                60..97 => random(3),
                _ => random(60),
            };
            let second = ended - random(60);
            let host = random(17).min(random(17));
            let address = if host < 5 {
                format!("2001:db8:0:{}::{host}", host / 2)
            } else {
                format!("192.0.{}.{host}", host % 3)
            };
            let user = ["-", "ann", "bob"][random(3) as usize];
            let size = match random(9) {
                0 => "-".into(),
                _ => random(20_000).to_string(),
            };
            let (path, agent) = (random(4), random(3));
            let (hour, minute) = (second / 3_600, second / 60 % 60);
            assert!(hour < 24, "the log is longer than one day");
            let text = format!(
                "{address} - {user} [01/Mar/2024:{hour:02}:{minute:02}:{:02} +0000] \
                 \"GET /p{path}?{number} HTTP/1.1\" 200 {size} \"-\" \"Agent {agent}\"\n",
                second % 60
            );
            Entry { second, text }
        })
        .collect();
    let older = older_than_one_before(&entries);
    assert!(
        older > lines * 4 / 5,
        "only {older} of {lines} are out of order"
    );
    entries
}

fn older_than_one_before(entries: &[Entry]) -> usize {
    let mut newest = 0;
    let older = |entry: &&Entry| {
        newest = newest.max(entry.second);
        entry.second < newest
    };
    entries.iter().filter(older).count()
}

fn bytes(entries: &[Entry]) -> Vec<u8> {
    let texts: String = entries.iter().map(|entry| &*entry.text).collect();
    texts.into_bytes()
}

fn sorted(mut entries: Vec<Entry>) -> Vec<Entry> {
    entries.sort_by_key(|entry| entry.second);
    entries
}

/// Returns the decisions of a replay: everything except how the log was read.
fn decided(mut json: Value) -> Value {
    let object = json.as_object_mut().unwrap();
    for name in [
        "elapsed_s",
        "decisions_per_s",
        "order",
        "horizon_s",
        "held",
        "behind_s",
        "logs",
    ] {
        object.remove(name);
    }
    assert_eq!(object.remove("late"), Some(0.into()));
    json
}

/// Returns the decisions for several logs, given in this order.
fn of_files(files: &[&Scratch], args: &[&str]) -> Value {
    let paths: Vec<&str> = files.iter().map(|file| file.path()).collect();
    let args = [&["replay"], &paths[..], args, &["--json"]].concat();
    let output = portcullis(&args).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Returns all combinations of arguments: each algorithm in one pass, with each key and cost.
fn ways() -> Vec<Vec<&'static str>> {
    let limits =
        |limits: [&'static str; 4]| limits.into_iter().flat_map(|limit| ["--limit", limit]);
    let one = [
        "1/10s:burst=2",
        "3/20s:algorithm=fixed-window",
        "3/20s:algorithm=sliding-window",
        "3/20s:algorithm=sliding-window,segments=3",
    ];
    let bytes = [
        "500/s:burst=25000",
        "30000/20s:algorithm=fixed-window",
        "30000/20s:algorithm=sliding-window",
        "30000/20s:algorithm=sliding-window,segments=3",
    ];
    let keys = [
        "ip",
        "ip/24",
        "ip/64",
        "ip/24/64",
        "global",
        "user",
        "path",
        "agent",
        "ip,path",
        "user,ip/24/64,agent",
    ];
    let mut ways = Vec::new();
    for key in keys {
        for (cost, of_cost) in [("one", one), ("bytes", bytes)] {
            let mut way = vec!["--key", key, "--cost", cost, "--top", "1000"];
            way.extend(limits(of_cost));
            ways.push(way);
        }
    }
    ways
}

const LOG_ORDER: [&str; 2] = ["--order", "log"];

#[test]
fn an_unsorted_log_is_judged_as_the_sorted_log() {
    let entries = log(4_000);
    let (given, in_order) = (bytes(&entries), bytes(&sorted(entries)));
    let mut different = 0;
    for way in ways() {
        let expected = decided(json(&in_order, &[&way[..], &LOG_ORDER].concat()));
        assert_eq!(decided(json(&given, &way)), expected, "{way:?}");
        for outcome in expected["limits"].as_array().unwrap() {
            let denied = outcome["denied"].as_u64().unwrap();
            assert!(
                (1..4_000).contains(&denied),
                "{way:?} is not significant: {denied} denied"
            );
        }
        let unsorted = json(&given, &[&way[..], &LOG_ORDER].concat());
        different += usize::from(unsorted["limits"] != expected["limits"]);
        assert!(unsorted["late"].as_u64() > Some(3_000));
    }
    assert_eq!(
        different,
        ways().len(),
        "the order of lines does not matter"
    );
}

#[test]
fn a_rotated_set_is_one_log_in_any_order() {
    let entries = log(3_000);
    let pieces = [&entries[..1_100], &entries[1_100..1_900], &entries[1_900..]];
    let begin = pieces.map(|piece| piece[0].second);
    assert!(begin.is_sorted(), "{begin:?}");
    let overlap = pieces[1].iter().any(|entry| entry.second == begin[2]);
    assert!(overlap, "the pieces have no times in common");
    let files = [
        Scratch::new("log.2.gz", &gzip(&bytes(pieces[0]))),
        Scratch::new("log.1.gz", &gzip(&bytes(pieces[1]))),
        Scratch::new("log", &bytes(pieces[2])),
    ];
    let empty = Scratch::new("log.3", b"");
    let whole = bytes(&sorted(entries));
    for way in ways() {
        let expected = decided(json(&whole, &[&way[..], &LOG_ORDER].concat()));
        for [a, b, c] in [
            [0, 1, 2],
            [0, 2, 1],
            [1, 0, 2],
            [1, 2, 0],
            [2, 0, 1],
            [2, 1, 0],
        ] {
            let named = [&files[a], &empty, &files[b], &files[c]];
            assert_eq!(
                decided(of_files(&named, &way)),
                expected,
                "{a}{b}{c} {way:?}"
            );
        }
    }
}

#[test]
fn the_logs_of_several_servers_are_merged_by_time() {
    let entries = log(3_000);
    let of = |server: usize| -> Vec<Entry> {
        let entries = entries.iter().enumerate();
        let mine = entries.filter(|(place, _)| place % 7 % 3 == server);
        mine.map(|(_, entry)| entry.clone()).collect()
    };
    let mut servers = [of(0), of(1), of(2)];
    let files =
        [0, 1, 2].map(|server| Scratch::new(&format!("server.{server}"), &bytes(&servers[server])));
    // Of lines with equal times, those of the log that begins first come first.
    servers.sort_by_key(|entries| entries[0].second);
    let whole = bytes(&sorted(servers.concat()));
    let named = [&files[1], &files[2], &files[0]];
    for way in ways() {
        let expected = decided(json(&whole, &[&way[..], &LOG_ORDER].concat()));
        assert_eq!(decided(of_files(&named, &way)), expected, "{way:?}");
    }
}

#[test]
fn in_log_order_logs_are_read_one_after_another() {
    let entries = log(600);
    let files = [
        Scratch::new("first", &bytes(&entries[..200])),
        Scratch::new("second", &bytes(&entries[200..])),
    ];
    let args = ["--limit", "1/2s:burst=2", "--order", "log"];
    let mut together = of_files(&[&files[0], &files[1]], &args);
    let mut whole = json(&bytes(&entries), &args);
    for json in [&mut together, &mut whole] {
        for name in ["elapsed_s", "decisions_per_s", "logs"] {
            json.as_object_mut().unwrap().remove(name);
        }
    }
    assert_eq!(together, whole);
}

#[test]
fn a_line_later_than_the_horizon_is_judged_at_the_newest_time_judged_and_reported() {
    // The line of second 41 is judged when that of second 59 is read. The lines of seconds 5 and 9
    // are later than 15 s, and so count at second 41.
    let log: String = [40, 41, 59, 5, 9, 50]
        .map(|second| line("192.0.2.1", second, "1"))
        .concat();
    let args = ["--horizon", "15s", "--limit", "1/s", "--burst", "2"];
    let json = json(log.as_bytes(), &args);
    let [allowed, denied, late] =
        ["allowed", "denied", "late"].map(|name| json[name].as_u64().unwrap());
    assert_eq!([allowed, denied, late], [5, 1, 2]);
    assert_eq!(
        (json["behind_s"].as_f64(), json["horizon_s"].as_f64()),
        (Some(54.0), Some(15.0))
    );
    let output = common::replay(log.as_bytes(), &args);
    let summary = text(&output.stdout);
    let expected = "  late                 2  too late to be sorted, so judged at a later time; up \
                    to 54 s behind: see --horizon\n";
    assert!(summary.contains(expected), "{summary}");
    assert!(!summary.contains(SEVERAL_LOGS), "{summary}");
    let wide = common::json(log.as_bytes(), &["--horizon", "1m", "--limit", "1/s"]);
    assert_eq!(
        (wide["denied"].as_u64(), wide["late"].as_u64()),
        (Some(0), Some(0))
    );
}

const SEVERAL_LOGS: &str = "if the input joins several logs, name each of them instead";

#[test]
fn lines_that_are_late_by_more_than_a_day_hint_at_several_logs() {
    let on = |day: &u32| format!("192.0.2.1 - - [0{day}/Mar/2024:00:00:00 +0000] \"\" 200 1\n");
    // The line of day 2 is judged when that of day 4 is read.
    let log: String = [2, 4, 1].iter().map(on).collect();
    let output = common::replay(log.as_bytes(), &["--limit", "1/s"]);
    let summary = text(&output.stdout);
    assert!(summary.contains(SEVERAL_LOGS), "{summary}");
}

#[test]
fn memory_is_bounded_by_the_horizon() {
    const LINES: u64 = 200_000;
    // Ten lines per second, each up to 59 s late.
    let mut text = String::new();
    let mut times = Vec::new();
    for number in 0..LINES {
        let second = 60 + number / 10 - number * 7_919 % 60;
        times.push(second);
        let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
        let (day, hour) = (hour / 24 + 1, hour % 24);
        let _ = writeln!(
            text,
            "192.0.2.{} - - [{day:02}/Mar/2024:{hour:02}:{minute:02}:{second:02} +0000] \"\" 200 1",
            number % 10
        );
    }
    times.sort_unstable();
    let most = |seconds: u64| {
        let before = |end: u64| times.partition_point(|&time| time < end);
        times
            .iter()
            .map(|&start| before(start + seconds) - before(start))
            .max()
    };
    let bound = most(62).unwrap() as u64;
    assert!(bound < LINES / 100, "{bound} lines in a minute");
    let held = |json: &Value| json["held"].as_u64().unwrap();
    let of_one = json(text.as_bytes(), &["--limit", "1/s"]);
    assert!(
        (300..=bound).contains(&held(&of_one)),
        "{} of {bound}",
        held(&of_one)
    );
    // Pieces that overlap by no more than the horizon hold no more lines, also in reverse order.
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let files: Vec<Scratch> = lines
        .chunks(50_000)
        .enumerate()
        .map(|(place, lines)| Scratch::new(&format!("piece.{place}"), lines.concat().as_bytes()))
        .collect();
    let named: Vec<&Scratch> = files.iter().rev().collect();
    let of_pieces = of_files(&named, &["--limit", "1/s"]);
    assert!(held(&of_pieces) <= bound, "{} of {bound}", held(&of_pieces));
    assert_eq!(of_pieces["denied"], of_one["denied"]);
}
