//! The numbers in `docs/embedded.md` are those of the library.

use std::fs;
use std::time::Duration;

use portcullis_core::{FixedWindow, Rate, SlidingWindow, TokenBucket};

/// A duration in the largest unit in which it is at least three, or a whole number, rounded to the
/// nearest whole number.
fn about(time: Duration) -> String {
    const UNITS: [(&str, u128); 8] = [
        ("years", 31_557_600_000_000_000),
        ("days", 86_400_000_000_000),
        ("h", 3_600_000_000_000),
        ("min", 60_000_000_000),
        ("s", 1_000_000_000),
        ("ms", 1_000_000),
        ("µs", 1_000),
        ("ns", 1),
    ];
    let nanos = time.as_nanos();
    let fits = |length: u128| nanos >= 3 * length || nanos > 0 && nanos.is_multiple_of(length);
    let (unit, length) = UNITS
        .into_iter()
        .find(|(_, length)| fits(*length))
        .unwrap_or(("ns", 1));
    format!("{} {unit}", (nanos + length / 2) / length)
}

#[test]
fn the_horizons_in_the_document_are_those_of_the_library() {
    let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/embedded.md");
    let document = fs::read_to_string(document).unwrap();
    let mut missing = Vec::new();
    let mut row = |what: &str, tick: Duration, staleness, horizon| {
        let row = format!(
            "| {what} | {} | {} | {} |",
            about(tick),
            about(staleness),
            about(horizon)
        );
        if !document.contains(&row) {
            missing.push(row);
        }
    };
    for (permits, burst) in [(10, 10), (1_000, 100)] {
        let bucket = TokenBucket::builder(Rate::per_second(permits), burst)
            .build_on::<u32>()
            .unwrap();
        let what = format!("bucket, {permits}/s, burst {burst}");
        row(&what, bucket.tick(), bucket.staleness(), bucket.horizon());
    }
    for (name, seconds) in [("1 s", 1), ("1 min", 60), ("1 h", 3_600)] {
        let length = Duration::from_secs(seconds);
        let window = FixedWindow::builder(100, length).build_on::<u32>().unwrap();
        row(
            &format!("window of {name}"),
            length,
            window.staleness(),
            window.horizon(),
        );
        let started = FixedWindow::builder(100, length).started_by_first_request();
        let started = started.build_on::<u32>().unwrap();
        let what = format!("window of {name}, from the first request on");
        row(
            &what,
            started.tick(),
            started.staleness(),
            started.horizon(),
        );
        let sliding = SlidingWindow::<10>::builder(100, length, 10)
            .build_on::<u32>()
            .unwrap();
        row(
            &format!("sliding window of {name}, 10 segments"),
            length / 10,
            sliding.staleness(),
            sliding.horizon(),
        );
    }
    assert!(
        missing.is_empty(),
        "docs/embedded.md lacks\n{}",
        missing.join("\n")
    );
}
