//! The demo, in real time.

mod common;

use common::{portcullis, text};

#[test]
fn every_limiter_holds_its_bound_and_the_table_says_so() {
    let output = portcullis(&["demo", "--seconds", "0.1", "--threads", "3"]).output().unwrap();
    let table = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{table}");
    assert_eq!(text(&output.stderr), "", "no live display where nobody watches");
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
        assert!(row.is_some_and(|row| row.ends_with("  held")), "{name} in\n{table}");
    }
    assert!(table.ends_with("\nEvery bound held.\n"), "{table}");
}
