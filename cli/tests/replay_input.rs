//! What the replay reads, what it skips, and what it refuses.

mod common;

use std::io::Read;
use std::process::Stdio;

use common::{Scratch, counts, gzip, json, line, portcullis, replay, text};

/// Ten requests of one address in ten seconds, and one of another.
fn eleven() -> Vec<u8> {
    let lines: String = (0..10)
        .map(|second| line("192.0.2.1", second, "100"))
        .collect();
    (lines + &line("192.0.2.2", 10, "5")).into_bytes()
}

const THREE: [&str; 2] = ["--limit", "3/d"];

#[test]
fn a_file_and_standard_input_plain_and_compressed_are_the_same() {
    let log = eleven();
    let (half, rest) = log.split_at(300);
    let expected = [11, 4, 7, 0, 2];
    for content in [log.clone(), gzip(&log), [gzip(half), gzip(rest)].concat()] {
        assert_eq!(counts(&content, &THREE), expected);
        let file = Scratch::new("same.log", &content);
        let output = portcullis(&["replay", file.path(), "--limit", "3/d", "--json"])
            .output()
            .unwrap();
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&json["allowed"], &json["denied"]), (&4.into(), &7.into()));
    }
}

#[test]
fn an_empty_log_is_a_log() {
    assert_eq!(counts(b"", &[]), [0; 5]);
    assert_eq!(replay(b"", &[]).status.code(), Some(0));
}

#[test]
fn malformed_lines_are_counted_and_skipped() {
    let log = [
        b"\n\xff\xfe\x00 not a log\n".to_vec(),
        line("192.0.2.1", 0, "1").into_bytes(),
        b"192.0.2.1 - - [01/Mar/2024:00:00:70 +0000] \"GET / HTTP/1.1\" 200 1\n".to_vec(),
        b"192.0.2.1 - - [01/Mar/2099:00:00:00 +0000] \"GET / HTTP/1.1\" 200\n".to_vec(),
        b"\xc3\x28 - - [01/Mar/2024:00:00:01 +0000] \"\xff\\\"\" 200 1 \"\xfe\" \"\xfd\"\r\n"
            .to_vec(),
        b"192.0.2.1 - - [01/Mar/2024:00:00:02 +0000] \"GET / HTTP/1.1\" 200 1".to_vec(),
    ]
    .concat();
    assert_eq!(
        counts(&log, &["--limit", "1/2s"]),
        [3, 3, 0, 4, 2],
        "a malformed line moves no clock"
    );
}

#[test]
fn a_very_long_line_is_judged_by_its_beginning() {
    let long = "x".repeat(3_000_000);
    let agent = format!(
        "{} \"-\" \"{long}\"\n",
        line("192.0.2.1", 0, "7").trim_end()
    );
    let request = line("192.0.2.1", 0, "1").replace("GET /", &long);
    let log = agent + &request + &line("192.0.2.1", 0, "7");
    assert_eq!(
        counts(log.as_bytes(), &["--limit", "7/d", "--cost", "bytes"]),
        [2, 1, 1, 1, 1]
    );
}

#[test]
fn an_older_line_counts_as_the_newest_time_seen_by_anyone() {
    let log = line("192.0.2.1", 0, "1") + &line("192.0.2.2", 30, "1") + &line("192.0.2.1", 10, "1");
    assert_eq!(
        counts(log.as_bytes(), &["--limit", "1/30s"]),
        [3, 3, 0, 0, 2]
    );
    let log = line("192.0.2.1", 30, "1") + &line("192.0.2.1", 0, "1") + &line("192.0.2.1", 31, "1");
    assert_eq!(counts(log.as_bytes(), &["--limit", "1/s"]), [3, 2, 1, 0, 1]);
}

#[test]
fn bytes_are_charged_and_nothing_costs_nothing() {
    let sizes = ["60", "-", "0", "40", "1", "-", "101"];
    let log: String = sizes
        .iter()
        .map(|size| line("192.0.2.1", 0, size))
        .collect();
    for algorithm in ["token-bucket", "fixed-window", "sliding-window"] {
        let args = [
            "--limit",
            "100/d",
            "--cost",
            "bytes",
            "--algorithm",
            algorithm,
        ];
        assert_eq!(
            counts(log.as_bytes(), &args),
            [7, 5, 2, 0, 1],
            "{algorithm}"
        );
    }
}

#[test]
fn sizes_and_limits_beyond_32_bits_are_counted_in_full() {
    let sizes = ["6000000000", "5000000000", "4000000000", "1"];
    let log: String = sizes
        .iter()
        .map(|size| line("192.0.2.1", 0, size))
        .collect();
    for algorithm in ["token-bucket", "fixed-window", "sliding-window"] {
        let args = [
            "--limit",
            "10000000000/d",
            "--cost",
            "bytes",
            "--algorithm",
            algorithm,
        ];
        assert_eq!(
            counts(log.as_bytes(), &args),
            [4, 2, 2, 0, 1],
            "{algorithm}"
        );
    }
}

#[test]
fn a_rate_that_divides_into_no_day_may_still_have_a_day_s_burst() {
    let log =
        line("192.0.2.1", 0, "99999988") + &line("192.0.2.1", 0, "1") + &line("192.0.2.1", 0, "1");
    assert_eq!(
        counts(
            log.as_bytes(),
            &["--limit", "99999989/d", "--cost", "bytes"]
        ),
        [3, 2, 1, 0, 1]
    );
}

#[test]
fn json_is_one_object_with_what_was_asked_for() {
    let json = json(&eleven(), &["--limit", "3/1d", "--key", "global"]);
    assert_eq!(
        (&json["requests"], &json["keys"], &json["burst"]),
        (&11.into(), &1.into(), &3.into())
    );
    let names =
        ["algorithm", "limit", "key", "cost"].map(|name| json[name].as_str().unwrap().to_owned());
    assert_eq!(names, ["token-bucket", "3/1d", "global", "one"]);
    let [elapsed, speed] =
        ["elapsed_s", "decisions_per_s"].map(|name| json[name].as_f64().unwrap());
    assert!(
        elapsed > 0.0 && (speed * elapsed - 11.0).abs() < 0.001,
        "{speed} {elapsed}"
    );
}

#[test]
fn people_see_the_most_limited_and_a_chart() {
    let log = eleven();
    let hostile =
        b"evil\x1b[2J - - [01/Mar/2024:00:00:11 +0000] \"GET / HTTP/1.1\" 200 5\n".repeat(9);
    let output = replay(&[log, hostile].concat(), &THREE);
    let summary = text(&output.stdout);
    for expected in [
        "standard input: 20 requests of 3 addresses, 2024-03-01 00:00:00 to 2024-03-01 00:00:11 UTC",
        "token-bucket, 3/d requests for each address, burst 3",
        "allowed              7   35.0 %",
        "denied              13   65.0 %",
        "7             3  192.0.2.1\n",
        "6             3  evil\\x1b[2J\n",
        "2024-03-01 00:00:11          3         6  ",
    ] {
        assert!(
            summary.contains(expected),
            "{expected:?} is missing in\n{summary}"
        );
    }
    assert!(!summary.contains("192.0.2.2\n"), "never denied");
    assert!(!output.stdout.contains(&0x1b));
}

/// Expects exit code 2, nothing on standard output, and `message` on standard error.
fn refused(args: &[&str], message: &str) {
    let output = portcullis(args).output().unwrap();
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
    assert!(error.contains(message), "{args:?}: {error}");
    assert_eq!(text(&output.stdout), "");
}

#[test]
fn a_log_that_cannot_be_read_is_refused() {
    refused(
        &["replay", "/no/such/file"],
        "cannot read /no/such/file: No such file",
    );
    refused(&["replay", env!("CARGO_MANIFEST_DIR")], "cannot read");
    refused(&["replay"], "<LOG>");
    let whole = gzip(&eleven());
    for (name, content) in [
        ("truncated.gz", whole[..whole.len() - 20].to_vec()),
        ("header.gz", whole[..5].to_vec()),
        (
            "damaged.gz",
            [&whole[..10], &[0xff; 40], &whole[50..]].concat(),
        ),
        ("checksum.gz", [&whole[..whole.len() - 8], &[0; 8]].concat()),
    ] {
        let file = Scratch::new(name, &content);
        refused(&["replay", file.path()], "cannot read");
        let piped = replay(&content, &[]);
        assert_eq!(piped.status.code(), Some(2));
        assert!(text(&piped.stderr).starts_with("portcullis: cannot read standard input: "));
    }
}

#[test]
fn a_command_line_that_cannot_be_kept_is_refused() {
    let with = |args: &[&str], message: &str| refused(&[&["replay", "-"], args].concat(), message);
    for limit in ["60", "x/s", "60/y", "-5/s", "/s", "1.5/s"] {
        with(&[&format!("--limit={limit}")], "expected N/PERIOD");
    }
    with(
        &["--algorithm", "leaky-bucket"],
        "invalid value 'leaky-bucket'",
    );
    with(&["--key", "user"], "invalid value 'user'");
    with(&["--cost", "two"], "invalid value 'two'");
    with(&["--burst=-1"], "invalid value '-1'");
    with(&["--colour"], "--colour");
    with(
        &["--segments", "4"],
        "--segments is for sliding-window, not for token-bucket",
    );
    with(
        &["--algorithm", "fixed-window", "--burst", "4"],
        "--burst is for token-bucket, not for fixed-window",
    );
    with(
        &["--limit", "10000000019/d"],
        "at most 4294967295 in a period",
    );
    refused(&["guard"], "guard");
    refused(&["demo", "--seconds", "0"], "0.05 to 5");
}

#[test]
fn settings_that_the_library_refuses_are_refused_with_its_words() {
    let with = |args: &[&str], message: &str| refused(&[&["replay", "-"], args].concat(), message);
    with(&["--limit", "0/s"], "burst is zero: give at least 1");
    with(&["--burst", "0"], "burst is zero: give at least 1");
    with(&["--limit", "5/0s"], "period is zero: give at least 1");
    with(&["--limit", "5/200000d"], "period is too large: at most");
    with(
        &["--burst", "18446744073709551615"],
        "burst is too large: at most",
    );
    with(
        &["--algorithm", "fixed-window", "--limit", "0/s"],
        "limit is zero: give at least 1",
    );
    with(
        &[
            "--algorithm",
            "fixed-window",
            "--limit",
            "9000000000000000000/s",
        ],
        "limit is too large: at most",
    );
    with(
        &["--algorithm", "sliding-window", "--segments", "0"],
        "segments is zero: give at least 1",
    );
    with(
        &["--algorithm", "sliding-window", "--segments", "1025"],
        "segments is too large: at most 1024",
    );
}

#[test]
fn a_reader_that_has_had_enough_is_no_error() {
    let file = Scratch::new("pipe.log", &eleven());
    for args in [
        &["replay", file.path()][..],
        &["replay", file.path(), "--json"],
    ] {
        let mut child = portcullis(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let mut error = String::new();
        child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut error)
            .unwrap();
        assert_eq!((child.wait().unwrap().code(), &*error), (Some(0), ""));
    }
}

#[test]
fn the_help_lists_both_commands_with_examples() {
    let output = portcullis(&["--help"]).output().unwrap();
    let help = text(&output.stdout);
    for expected in [
        "demo ",
        "replay ",
        "Examples:",
        "portcullis replay access.log --limit 60/m",
        "Exit code:",
    ] {
        assert!(
            help.contains(expected),
            "{expected:?} is missing in\n{help}"
        );
    }
}
