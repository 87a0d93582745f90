//! The demo, in real time.

mod common;

use common::{portcullis, text};

#[test]
fn every_limiter_keeps_its_bound_and_the_output_says_so() {
    let output = portcullis(&["demo", "--seconds", "0.1", "--threads", "3", "--rate", "10"])
        .output()
        .unwrap();
    let table = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{table}");
    assert_eq!(
        text(&output.stderr),
        "",
        "no live display without a terminal"
    );
    for name in [
        "token bucket",
        "stepwise bucket",
        "fixed window",
        "started window",
        "sliding window",
        "strict window",
        "concurrency",
        "lease pool",
        "counted bucket",
        "unlimited",
    ] {
        let row = table.lines().find(|line| line.starts_with(name));
        assert!(
            row.is_some_and(|row| row.ends_with("  held")),
            "{name} in\n{table}"
        );
    }
    assert!(table.contains("s: 30 of 30 served, 0 wait\n 1 "), "{table}");
    let row = table
        .lines()
        .find(|line| line.starts_with("queue  10/s, burst 5, 25 may wait  30 in order, in 2.5s  "));
    assert!(row.is_some_and(|row| row.ends_with("s  held")), "{table}");
    assert!(table.ends_with("\nEvery bound held.\n"), "{table}");
}
