//! Runs the program, and generates logs for it.

#![allow(dead_code, reason = "each test program uses a part of this")]

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;

/// The program, as built for this test.
pub(crate) fn portcullis(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
    command.args(args).stdin(Stdio::null());
    command
}

/// Runs `portcullis replay` on `log` as standard input.
pub(crate) fn replay(log: &[u8], args: &[&str]) -> Output {
    let mut command = portcullis(&["replay", "-"]);
    command
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let log = log.to_vec();
    // The program may stop before it has read everything.
    let writer = std::thread::spawn(move || {
        let _ = stdin.write_all(&log);
    });
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    output
}

/// Returns the JSON object of a replay that succeeds.
pub(crate) fn json(log: &[u8], args: &[&str]) -> Value {
    let output = replay(log, &[args, &["--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "", "no progress without a terminal");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Returns the counts of a replay: requests, allowed, denied, malformed, keys.
pub(crate) fn counts(log: &[u8], args: &[&str]) -> [u64; 5] {
    let json = json(log, args);
    ["requests", "allowed", "denied", "malformed", "keys"].map(|name| json[name].as_u64().unwrap())
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// A file that is removed at the end of the test.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str, content: &[u8]) -> Self {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("{}-{name}", std::process::id()));
        fs::write(&path, content).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Returns a line in the common format; `second` is the second of the minute.
pub(crate) fn line(address: &str, second: u32, size: &str) -> String {
    format!("{address} - - [01/Mar/2024:00:00:{second:02} +0000] \"GET / HTTP/1.1\" 200 {size}\n")
}

/// Returns a generator of numbers below a bound, the same in each run.
pub(crate) fn random() -> impl FnMut(u64) -> u64 {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    }
}
