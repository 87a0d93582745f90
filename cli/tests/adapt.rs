//! `portcullis adapt`: what is shown of scenarios and of logs.

mod common;

use common::{Scratch, portcullis, text};

const SCENARIO: &str = r#"
name = "twice the capacity"
seconds = 20

[[span]]
load = 800
workers = 20
service.fixed = 0.05

[[check]]
from = 10
to = 20
goodput = 0.95
latency = 1.5
"#;

fn adapt(args: &[&str]) -> (Option<i32>, String, String) {
    let output = portcullis(&[&["adapt"], args].concat()).output().unwrap();
    let [out, error] = [&output.stdout, &output.stderr].map(|bytes| text(bytes));
    (output.status.code(), out, error)
}

#[test]
fn each_controller_is_shown_with_what_it_reaches_and_misses() {
    let scenario = Scratch::new("scenario.toml", SCENARIO.as_bytes());
    let args = [
        scenario.path(),
        "--controllers",
        "knee,aimd",
        "--seeds",
        "2",
    ];
    let (code, out, error) = adapt(&args);
    assert_eq!(code, Some(0), "{error}");
    let lines: Vec<Vec<_>> = out
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert!(
        out.starts_with("twice the capacity: the worst of 2 runs\n"),
        "{out}"
    );
    let row = |name: &str| {
        lines
            .iter()
            .find(|line| line.first() == Some(&name))
            .unwrap()
    };
    let (knee, aimd) = (row("knee"), row("aimd"));
    assert_eq!(
        (knee[1], knee[3], knee.last()),
        ("10", "20", Some(&"0")),
        "{out}"
    );
    assert_eq!(aimd.last(), Some(&"2"), "nothing pushes back: {out}");
}

#[test]
fn a_log_shows_the_limit_that_would_have_been_found() {
    // 20 at once, of nearly 50 ms each, each 50 ms.
    let line = |n: u32| {
        format!(
            "{} 0.0495 200\n",
            f64::from(n / 20) * 0.05 + f64::from(n % 20) * 1e-4
        )
    };
    let log: String = (0..8_000).map(line).collect();
    let log = Scratch::new("log.txt", log.as_bytes());
    let (code, out, error) = adapt(&[log.path(), "--log", "--controllers", "knee"]);
    assert_eq!(code, Some(0), "{error}");
    assert!(out.contains("8000 requests, at most 20 at once."), "{out}");
    assert!(out.contains("\nknee  "), "{out}");
}

#[test]
fn a_file_that_is_wrong_is_named_with_its_key_or_line() {
    let wrong = Scratch::new("wrong", b"1 2 200\nx\n");
    for (args, reason) in [
        (vec![wrong.path()], "wrong: "),
        (vec![wrong.path(), "--log"], "wrong: line 2 must be a start"),
        (vec!["/no/such/file"], "/no/such/file: "),
    ] {
        let (code, out, error) = adapt(&args);
        assert_eq!((code, &*out), (Some(2), ""), "{error}");
        assert!(error.contains(reason), "{error}");
    }
}
