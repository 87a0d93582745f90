//! `portcullis pace`: which lines come out, and how fast.

mod common;

use core::time::Duration;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Output, Stdio};
use std::time::Instant;

use common::{portcullis, text};

/// Runs the command on an input, and returns how long it took.
fn pace(input: &str, args: &[&str]) -> (Output, Duration) {
    let mut command = portcullis(&[&["pace"], args].concat());
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let begun = Instant::now();
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    // The program may stop before it has read everything.
    let writer = std::thread::spawn(move || {
        let _ = stdin.write_all(input.as_bytes());
    });
    let output = child.wait_with_output().unwrap();
    let time = begun.elapsed();
    writer.join().unwrap();
    (output, time)
}

#[test]
fn lines_come_out_unchanged_and_in_order_and_not_faster_than_the_rate() {
    let lines: Vec<_> = (0..150)
        .map(|number| format!("line {number}  \u{e9}\n"))
        .collect();
    let input = lines.concat() + "without an end";
    let (output, time) = pace(&input, &["100/s", "--interval", "50ms", "--empty"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), input);
    assert!(time >= Duration::from_millis(1_500), "{time:?}");
}

#[test]
fn the_cost_is_a_field_or_the_bytes_of_a_line() {
    let lines = "a 100\nb 0\nc 50\n";
    let (output, time) = pace(lines, &["300/s", "--cost", "field:2", "--empty"]);
    assert_eq!(text(&output.stdout), lines);
    assert!(time >= Duration::from_millis(500), "{time:?}");

    // 400 bytes.
    let lines = "0123456789012345678\n".repeat(20);
    let (output, time) = pace(&lines, &["1000/s", "--cost", "bytes", "--empty"]);
    assert_eq!(text(&output.stdout), lines);
    assert!(time >= Duration::from_millis(400), "{time:?}");
}

#[test]
fn a_line_is_released_before_the_next_one_is_read() {
    let mut command = portcullis(&["pace", "1000/s"]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    for line in ["one\n", "two\n", "three\n"] {
        stdin.write_all(line.as_bytes()).unwrap();
        let mut released = String::new();
        stdout.read_line(&mut released).unwrap();
        assert_eq!(released, line);
    }
    drop(stdin);
    assert_eq!(stdout.read_to_string(&mut String::new()).unwrap(), 0);
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_command_is_run_and_its_exit_code_returned() {
    let run = |script| {
        portcullis(&["pace", "1000/s", "--", "sh", "-c", script])
            .output()
            .unwrap()
    };
    let output = run("echo one; echo two; exit 3");
    assert_eq!(
        (output.status.code(), &*text(&output.stdout)),
        (Some(3), "one\ntwo\n")
    );
    let output = portcullis(&["pace", "1/s", "--", "/no/such/program"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn what_cannot_be_used_is_an_error() {
    for (args, input, message) in [
        (
            &["10/s", "--cost", "field:2"][..],
            "a 1\nb\n",
            "line 2: field 2 is not a whole number",
        ),
        (&["0/s"], "a\n", "a rate of 0 releases nothing"),
        (&["10/s:burst=5"], "a\n", "no settings besides"),
        (
            &["10/s", "--cost", "field:0"],
            "a\n",
            "expected one, bytes or field:N",
        ),
        (&["10"], "a\n", "expected N/PERIOD"),
    ] {
        let (output, _) = pace(input, args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        let told = text(&output.stderr);
        assert!(told.contains(message), "{told}");
    }
    let (output, _) = pace("a 1\nb\n", &["10/s", "--cost", "field:2"]);
    assert_eq!(
        text(&output.stdout),
        "a 1\n",
        "what came before is released"
    );
}
