//! Which input the replay reads, skips and rejects.

mod common;

use core::fmt::Write;
use std::io::Read;
use std::process::Stdio;

use common::{Scratch, counts, gzip, json, line, portcullis, replay, text};
use serde_json::{Value, json};

/// Ten requests of one address in ten seconds, and one of another.
fn eleven() -> Vec<u8> {
    let lines: String = (0..10)
        .map(|second| line("192.0.2.1", second, "100"))
        .collect();
    (lines + &line("192.0.2.2", 10, "5")).into_bytes()
}

const THREE: [&str; 2] = ["--limit", "3/d"];

#[test]
fn a_file_and_standard_input_give_the_same_result_plain_and_compressed() {
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
fn an_empty_log_is_valid() {
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
fn in_log_order_an_older_line_counts_at_the_newest_time_seen_of_all_keys() {
    let log = line("192.0.2.1", 0, "1") + &line("192.0.2.2", 30, "1") + &line("192.0.2.1", 10, "1");
    assert_eq!(
        counts(log.as_bytes(), &["--limit", "1/30s", "--order", "log"]),
        [3, 3, 0, 0, 2]
    );
    let log = line("192.0.2.1", 30, "1") + &line("192.0.2.1", 0, "1") + &line("192.0.2.1", 31, "1");
    assert_eq!(
        counts(log.as_bytes(), &["--limit", "1/s", "--order", "log"]),
        [3, 2, 1, 0, 1]
    );
}

#[test]
fn standard_input_has_two_names() {
    let log = eleven();
    let file = Scratch::new("stdin.log", &log);
    for name in ["-", "/dev/stdin"] {
        let output = portcullis(&["replay", name, "--limit", "3/d"])
            .stdin(std::fs::File::open(file.path()).unwrap())
            .output()
            .unwrap();
        let summary = text(&output.stdout);
        assert!(
            summary.starts_with("standard input: 11 requests of 2 addresses, "),
            "{summary}"
        );
    }
    refused(
        &["replay", "-", "/dev/stdin"],
        "standard input is named twice",
    );
}

#[test]
fn byte_order_marks_are_not_part_of_an_address() {
    let marked = [b"\xef\xbb\xbf".to_vec(), eleven()].concat();
    let twice = [marked.clone(), marked.clone()].concat();
    assert_eq!(counts(&marked, &THREE), [11, 4, 7, 0, 2]);
    assert_eq!(counts(&gzip(&twice), &THREE), [22, 5, 17, 0, 2]);
    let utf_16: Vec<u8> = [0xfeff_u16]
        .into_iter()
        .chain(text(&eleven()).encode_utf16())
        .flat_map(u16::to_le_bytes)
        .collect();
    let output = replay(&utf_16, &[]);
    assert_eq!(output.status.code(), Some(2));
    let error = text(&output.stderr);
    assert!(
        error.contains("cannot read standard input: it is UTF-16"),
        "{error}"
    );
}

#[test]
fn an_unreadable_log_is_rejected_with_its_first_line() {
    let log = b"Nov 23 06:00:01 web sshd[77]: Accepted \x1b[2J\n192.0.2.1 -\n";
    let output = replay(log, &[]);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    let expected = "portcullis: no line can be read in standard input: 2 lines; line 1 is\n  \
                    Nov 23 06:00:01 web sshd[77]: Accepted \\u{1b}[2J\n  \
                    closest format: combined, expected as ADDRESS IDENT USER \
                    [17/May/2015:10:05:03 +0200] \"REQUEST\" STATUS SIZE \"REFERER\" \"AGENT\": \
                    TIME not found at column 17 (see --format)\n";
    assert_eq!(error, expected);
    let haproxy = "lb haproxy[1]: 192.0.2.1:99 [06/Feb/2009:12:14:14.655] in a/b 1/2 200 x - -\n";
    let error = text(&replay(haproxy.as_bytes(), &[]).stderr);
    let expected = format!("line 1 is\n  {haproxy}  closest format: haproxy, expected as ADDRESS:");
    assert!(error.contains(&expected), "{error}");
    let output = replay(b"{\"time\":\"noon\",\"ip\":\"a\"}\n", &["--format", "json"]);
    let error = text(&output.stderr);
    assert!(
        error.contains("date), which is \"noon\" here and an address"),
        "{error}"
    );
    let output = replay(b"a b\n", &["--format", "[$time_local] $remote_addr"]);
    let error = text(&output.stderr);
    let expected = "[ not found at column 1 (see --format)\n";
    assert!(
        error.contains("1 line; line 1 is\n  a b\n") && error.contains(expected),
        "{error}"
    );
}

#[test]
fn an_unreadable_log_among_others_is_named() {
    let (right, wrong) = (
        Scratch::new("right.log", &eleven()),
        Scratch::new("wrong.log", b"not a log\nat all\n"),
    );
    let output = portcullis(&["replay", wrong.path(), right.path()])
        .output()
        .unwrap();
    let summary = text(&output.stdout);
    for expected in [
        "2 logs: 11 requests",
        &format!("no line can be read in {}: 2 lines", wrong.path()),
    ] {
        assert!(
            summary.contains(expected),
            "{expected:?} is missing in\n{summary}"
        );
    }
}

#[test]
fn whole_seconds_are_named_where_a_limit_is_short() {
    let whole = b"1709251200 192.0.2.1\n1709251201 192.0.2.1\n";
    let fine = b"1709251200.250 192.0.2.1\n1709251201 192.0.2.1\n";
    for (log, limit, is_said) in [
        (&whole[..], "5/s", true),
        (&whole[..], "5/10s", true),
        (&whole[..], "5/m", false),
        (&fine[..], "5/s", false),
    ] {
        let format = ["--format", "$msec $remote_addr", "--limit", limit];
        let output = replay(log, &format);
        let said = "the times are whole seconds, as if all requests of a second had come at once";
        let summary = text(&output.stdout);
        assert_eq!(summary.contains(said), is_said, "{limit}: {summary}");
        let output = replay(log, &[&format[..], &["--json"]].concat());
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(json["in_seconds"], is_said);
    }
}

#[test]
fn a_name_with_spaces_does_not_change_whose_request_it_is() {
    let log: String = ["-", "frank", "john smith", "a b c"]
        .iter()
        .map(|user| line("192.0.2.1", 0, "1").replace(" - - ", &format!(" - {user} ")))
        .collect();
    assert_eq!(counts(log.as_bytes(), &["--limit", "1/d"]), [4, 1, 3, 0, 1]);
    let log = log.replace("192.0.2.1", "client.example");
    assert_eq!(counts(log.as_bytes(), &["--limit", "1/d"]), [4, 1, 3, 0, 1]);
    // Which of the addresses of a list is the client, only the operator knows.
    let log = line("192.0.2.4, 10.0.0.1", 0, "1") + &line("192.0.2.5, 10.0.0.1", 0, "1");
    for format in ["auto", r#"%h %l %u %t "%r" %s %b"#] {
        let output = replay(log.as_bytes(), &["--limit", "1/d", "--format", format]);
        assert_eq!(output.status.code(), Some(2), "{format}");
    }
}

#[test]
fn every_format_and_key_reaches_the_limit_it_belongs_to() {
    let mut json = String::new();
    for (second, tenant) in ["a", "b", "a", "a"].iter().enumerate() {
        let headers = format!("{{\"X-Tenant\":[\"{tenant}\"]}}");
        let request = format!("{{\"remote_ip\":\"::1\",\"headers\":{headers}}}");
        let _ = writeln!(
            json,
            "{{\"ts\":17000000{second}1.5,\"request\":{request},\"size\":9}}"
        );
    }
    let tenant = "field:request.headers.X-Tenant";
    assert_eq!(
        counts(json.as_bytes(), &["--limit", "1/h"]),
        [4, 1, 3, 0, 1]
    );
    assert_eq!(
        counts(json.as_bytes(), &["--limit", "1/h", "--key", tenant]),
        [4, 2, 2, 0, 2]
    );
    let addresses = [
        "2001:db8::1",
        "2001:db8::2",
        "2001:db8:1::1",
        "192.0.2.1",
        "192.0.2.9",
    ];
    let log: String = addresses
        .iter()
        .map(|address| line(address, 0, "1"))
        .collect();
    for (key, keys) in [
        ("ip", 5),
        ("ip/64", 4),
        ("ip/24", 4),
        ("ip/24/64", 3),
        ("ip/24/32", 2),
        ("path", 1),
        ("ip/24/64,path", 3),
        ("user", 1),
        ("global", 1),
    ] {
        let denied = 5 - keys;
        assert_eq!(
            counts(log.as_bytes(), &["--limit", "1/d", "--key", key]),
            [5, keys, denied, 0, keys],
            "{key}"
        );
    }
    let own = "$remote_addr|$msec|$http_x_key|$bytes_sent";
    let log = "192.0.2.1|1700000000.500|k1|7\n192.0.2.2|1700000000.250|k1|8\nx|y|z|8\n";
    let args = [
        "--format",
        own,
        "--key",
        "field:http_x_key",
        "--cost",
        "bytes",
        "--limit",
        "8/d",
    ];
    assert_eq!(counts(log.as_bytes(), &args), [2, 1, 1, 1, 1]);
}

#[test]
fn fractions_of_a_second_count() {
    let mut log = String::new();
    for millis in [100, 600, 1_099, 1_100] {
        let time = 1_700_000_000_000_u64 + millis;
        let _ = writeln!(log, "{{\"ts\":{time},\"ip\":\"a\"}}");
    }
    assert_eq!(counts(log.as_bytes(), &["--limit", "1/s"]), [4, 2, 2, 0, 1]);
    assert_eq!(
        counts(
            log.as_bytes(),
            &["--limit", "1/s", "--algorithm", "fixed-window"]
        ),
        [4, 2, 2, 0, 1]
    );
    assert_eq!(
        counts(log.as_bytes(), &["--limit", "1/500ms"]),
        [4, 3, 1, 0, 1]
    );
}

#[test]
fn several_limits_in_one_pass_decide_as_each_limit_alone() {
    let log = eleven();
    let limits: [&[&str]; 4] = [
        &["--limit", "3/d"],
        &["--limit", "1/2s:burst=2"],
        &["--limit", "4/5s:algorithm=fixed-window"],
        &["--limit", "4/5s:algorithm=sliding-window,segments=5"],
    ];
    let together = json(&log, &limits.concat());
    assert_eq!(together["limits"].as_array().unwrap().len(), limits.len());
    for (outcome, limit) in together["limits"].as_array().unwrap().iter().zip(limits) {
        let alone = json(&log, limit);
        assert_eq!(*outcome, alone["limits"][0], "{limit:?}");
        for name in [
            "limit",
            "algorithm",
            "allowed",
            "denied",
            "burst",
            "segments",
            "top",
            "series",
        ] {
            assert_eq!(outcome.get(name), alone.get(name), "{limit:?} {name}");
        }
    }
    assert_eq!(together["denied"], together["limits"][0]["denied"]);
    let different: std::collections::BTreeSet<_> = together["limits"]
        .as_array()
        .unwrap()
        .iter()
        .map(|outcome| outcome["denied"].as_u64())
        .collect();
    assert!(different.len() > 2, "{different:?}");

    let output = replay(&log, &[&limits.concat()[..], &["--top", "1"]].concat());
    let summary = text(&output.stdout);
    for expected in [
        "4 limits of requests for each address\n",
        "limit  algorithm                        allowed        denied           addresses denied",
        "3/d    token-bucket    burst 3                4             7   63.6 %                 1",
        "4/5s   sliding-window  5 segments ",
        "Most limited by 1/2s, token-bucket",
    ] {
        assert!(
            summary.contains(expected),
            "{expected:?} is missing in\n{summary}"
        );
    }
}

#[test]
fn bytes_are_charged_and_empty_replies_cost_nothing() {
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
fn a_rate_that_does_not_divide_a_day_can_have_a_burst_of_a_day() {
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
fn json_is_one_object_with_the_settings() {
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
fn json_has_the_most_denied_keys_the_span_and_the_series() {
    let log = [
        eleven(),
        b"\xff - - [01/Mar/2024:00:00:11 +0000] \"\" 200 5\n".repeat(5),
    ]
    .concat();
    let json = json(&log, &["--limit", "3/d", "--key", "ip,path"]);
    let most = json!([
        {"key": {"ip": "192.0.2.1", "path": "/"}, "allowed": 3, "denied": 7},
        {"key": {"ip": "\\xff", "path": "-"}, "allowed": 3, "denied": 2},
    ]);
    assert_eq!(json["top"], most);
    let span = json!({"first": "2024-03-01T00:00:00Z", "newest": "2024-03-01T00:00:11Z"});
    assert_eq!(json["span"], span);
    assert_eq!(json["series"]["width_s"], 1);
    let rows = json["series"]["rows"].as_array().unwrap();
    assert_eq!(
        rows[11],
        json!({"time": "2024-03-01T00:00:11Z", "allowed": 3, "denied": 2})
    );
    let sum = |name: &str| {
        rows.iter()
            .map(|row| row[name].as_u64().unwrap())
            .sum::<u64>()
    };
    assert_eq!(
        [json!(sum("allowed")), json!(sum("denied"))],
        [&json["allowed"], &json["denied"]].map(Value::clone)
    );
    assert_eq!(
        json["logs"],
        json!([{"log": "standard input", "requests": 16, "malformed": 0}])
    );
}

#[test]
fn top_limits_the_number_of_most_denied_keys() {
    let log: String = (1..=20)
        .map(|host| line(&format!("192.0.2.{host}"), 0, "1").repeat(host + 1))
        .collect();
    for (top, shown) in [("0", 0), ("1", 1), ("3", 3), ("100", 20)] {
        let json = json(log.as_bytes(), &["--limit", "1/d", "--top", top]);
        let keys = json["top"].as_array().unwrap();
        assert_eq!(keys.len(), shown);
        let denied = keys.iter().map(|key| key["denied"].as_u64().unwrap());
        let expected: Vec<u64> = (0..shown as u64).map(|place| 20 - place).collect();
        assert_eq!(denied.collect::<Vec<_>>(), expected);
    }
    assert_eq!(
        json(log.as_bytes(), &[])["top"].as_array().unwrap().len(),
        0
    );
    assert_eq!(
        json(log.as_bytes(), &["--limit", "1/d"])["top"]
            .as_array()
            .unwrap()
            .len(),
        10
    );
}

#[test]
fn a_count_of_one_is_singular() {
    for (log, expected) in [
        (line("192.0.2.1", 0, "1"), "1 request of 1 address, "),
        (
            line("192.0.2.1", 0, "1").repeat(2),
            "2 requests of 1 address, ",
        ),
        (String::new(), "0 requests of 0 addresses\n"),
    ] {
        let summary = text(&replay(log.as_bytes(), &[]).stdout);
        assert!(
            summary.starts_with(&format!("standard input: {expected}")),
            "{summary}"
        );
    }
}

#[test]
fn shells_complete_the_arguments() {
    for (shell, expected) in [
        ("bash", "_portcullis()"),
        ("zsh", "#compdef portcullis"),
        ("fish", "complete -c portcullis"),
        ("elvish", "edit:completion:arg-completer[portcullis]"),
        ("powershell", "Register-ArgumentCompleter"),
    ] {
        let output = portcullis(&["completions", shell]).output().unwrap();
        let script = text(&output.stdout);
        assert!(
            script.contains(expected) && script.contains("horizon"),
            "{shell}: {script}"
        );
    }
    refused(&["completions", "tcsh"], "invalid value 'tcsh'");
}

#[test]
fn the_summary_shows_the_most_limited_keys_and_a_chart() {
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

/// Expects exit code 2, no standard output, and `message` on standard error.
fn refused(args: &[&str], message: &str) {
    let output = portcullis(args).output().unwrap();
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
    assert!(error.contains(message), "{args:?}: {error}");
    assert_eq!(text(&output.stdout), "");
}

#[test]
fn a_missing_or_damaged_log_is_rejected() {
    refused(
        &["replay", "/no/such/file"],
        "cannot read /no/such/file: No such file",
    );
    refused(&["replay", env!("CARGO_MANIFEST_DIR")], "cannot read");
    refused(&["replay"], "<LOG>");
    let whole = gzip(&eleven());
    for (name, content) in [
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
fn a_log_whose_compressed_data_end_too_early_is_judged_up_to_there() {
    let mut random = common::random();
    let lines = (0..20_000).map(|_| line(&format!("192.0.2.{}", random(250)), 0, "1234"));
    let whole = gzip(lines.collect::<String>().as_bytes());
    let file = Scratch::new("truncated.gz", &whole[..whole.len() / 2]);
    let output = portcullis(&["replay", file.path(), "--json"])
        .output()
        .unwrap();
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let requests = json["requests"].as_u64().unwrap();
    assert!((5_000..15_000).contains(&requests), "{requests}");
    // The last line is cut, and the start of its size is no size.
    assert!(
        json["malformed"].as_u64() <= Some(1),
        "{}",
        json["malformed"]
    );
    assert_eq!(json["logs"][0]["truncated"], true);
    let summary = text(
        &portcullis(&["replay", file.path()])
            .output()
            .unwrap()
            .stdout,
    );
    assert!(
        summary.contains("its compressed data end too early"),
        "{summary}"
    );
    // A line break may have been cut off, but a number may not have been.
    let cut = gzip(line("192.0.2.1", 0, "1234567890").repeat(400).as_bytes());
    for length in cut.len() - 30..cut.len() - 8 {
        let output = replay(
            &cut[..length],
            &["--limit", "1234567890/d", "--cost", "bytes"],
        );
        let output = text(&output.stdout);
        assert!(
            output.contains("allowed              1"),
            "{length}: {output}"
        );
    }
}

#[test]
fn compressed_data_that_are_not_read_are_named() {
    for (start, name) in [
        (b"\xfd7zXZ\0\0".as_slice(), "xz"),
        (b"BZh91AY&SY", "bzip2"),
        (b"\x28\xb5\x2f\xfd\x04", "zstd"),
    ] {
        let file = Scratch::new(name, start);
        let expected = format!("it is compressed with {name}; decompress it (for example: {name} ");
        refused(&["replay", file.path()], &expected);
    }
}

#[test]
fn logs_with_other_columns_are_merged() {
    let log = |name: &str, fields: &str, lines: &[&str]| {
        let lines = [&[fields], lines].concat().join("\r\n");
        Scratch::new(name, lines.as_bytes())
    };
    let first = log(
        "first.w3c",
        "#Fields: date time c-ip sc-status",
        &[
            "2024-03-01 00:00:00 192.0.2.1 200",
            "2024-03-01 00:00:02 192.0.2.1 200",
        ],
    );
    let second = log(
        "second.w3c",
        "#Fields: c-ip date time",
        &[
            "192.0.2.2 2024-03-01 00:00:01",
            "192.0.2.1 2024-03-01 00:00:03",
        ],
    );
    for args in [[first.path(), second.path()], [second.path(), first.path()]] {
        let args = [&["replay", "--json", "--limit", "2/m"], &args[..]].concat();
        let output = portcullis(&args).output().unwrap();
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let counts = ["requests", "denied", "malformed", "keys"].map(|name| json[name].as_u64());
        assert_eq!(counts, [Some(4), Some(1), Some(0), Some(2)]);
    }
}

#[test]
fn an_invalid_command_line_is_rejected() {
    let with = |args: &[&str], message: &str| refused(&[&["replay", "-"], args].concat(), message);
    for limit in ["60", "x/s", "60/y", "-5/s", "/s", "1.5/s"] {
        with(&[&format!("--limit={limit}")], "expected N/PERIOD");
    }
    with(
        &["--algorithm", "leaky-bucket"],
        "invalid value 'leaky-bucket'",
    );
    with(&["--key", "ips"], "expected `global`, or one or more of ip");
    with(&["--key", "ip/129"], "expected ip/24");
    with(&["--format", "clf"], "expected auto, common,");
    with(&["--format", "$remote_addr"], "the format has no time");
    with(
        &["--format", "common", "--key", "host"],
        "the format has no such field",
    );
    with(&["--order", "size"], "invalid value 'size'");
    with(
        &["--horizon", "60"],
        "expected a unit, or a number and a unit",
    );
    with(
        &["--horizon", "60s", "--order", "log"],
        "--horizon is for --order time, not for --order log",
    );
    with(&["--top=-1"], "invalid value '-1'");
    with(&["--limit", "5/s:burst"], "expected N/PERIOD:SETTING=VALUE");
    with(
        &["--limit", "5/s", "--limit", "6/s:segments=4"],
        "--limit 6/s: segments is for sliding-window, not for token-bucket",
    );
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
fn an_invalid_setting_is_rejected_by_its_name() {
    let with = |args: &[&str], message: &str| refused(&[&["replay", "-"], args].concat(), message);
    let algorithms = ["token-bucket", "fixed-window", "sliding-window"];
    for algorithm in algorithms {
        let args = ["--algorithm", algorithm, "--limit"];
        let of = |limit| [&args[..], &[limit]].concat();
        with(
            &of("0/s"),
            "--limit 0/s: 0 permits would deny every request: give at least 1",
        );
        with(
            &of("5/0s"),
            "--limit 5/0s: the period is 0: give at least 1ms",
        );
        let too_long = format!("--limit 5/200000d, {algorithm}: ");
        with(&of("5/200000d"), &too_long);
    }
    with(
        &["--burst", "0"],
        "--limit 60/m: burst is 0: give at least 1",
    );
    with(
        &["--limit", "9/s:burst=0"],
        "--limit 9/s: burst is 0: give at least 1",
    );
    with(
        &["--burst", "18446744073709551615"],
        "--limit 60/m, token-bucket: burst ",
    );
    let large = "9000000000000000000/s";
    with(
        &["--algorithm", "fixed-window", "--limit", large],
        "--limit 9000000000000000000/s, fixed-window: limit ",
    );
    let sliding = |segments| ["--algorithm", "sliding-window", "--segments", segments];
    with(
        &sliding("0"),
        "--limit 60/m: segments is 0: give at least 1",
    );
    with(&sliding("1025"), "--limit 60/m, sliding-window: segments ");
}

#[test]
fn a_closed_output_is_not_an_error() {
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
fn the_help_lists_the_commands_with_examples() {
    let output = portcullis(&["--help"]).output().unwrap();
    let help = text(&output.stdout);
    for expected in [
        "demo ",
        "replay ",
        "completions ",
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

/// The table in the source: each role, and its usual names.
#[test]
fn the_guide_lists_the_usual_names_of_json() {
    let guide = include_str!("../../docs/replay.md");
    let source = include_str!("../src/replay/format/json.rs");
    let (_, table) = source.split_once("const USUAL: ").unwrap();
    let (table, _) = table.split_once("];\n").unwrap();
    let (_, table) = table.split_once("= [").unwrap();
    // Each row is two texts: the role, and the names with blanks between them.
    let texts: Vec<_> = table.split('"').skip(1).step_by(2).collect();
    let mut rows = 0;
    for row in texts.chunks(2) {
        let names = row[1].split(|c: char| c == '\\' || c.is_whitespace());
        let names: Vec<_> = names.filter(|name| !name.is_empty()).collect();
        let row = format!("| `{}` | `{}` |\n", row[0], names.join("`, `"));
        assert!(guide.contains(&row), "{row}");
        rows += 1;
    }
    assert_eq!(rows, 9);
}
