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

fn document() -> String {
    let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/embedded.md");
    fs::read_to_string(document).unwrap()
}

#[test]
fn the_price_of_a_long_rest_in_the_document_is_that_of_the_library() {
    let document = document();
    let bucket = |rate, tick| {
        let builder = TokenBucket::builder(Rate::per_second(rate), 3).tick(tick);
        builder.build_on::<u32>().unwrap()
    };
    for (millis, by_default) in [(1, ", the default"), (10, ""), (100, ""), (1_000, "")] {
        let tick = Duration::from_millis(millis);
        // 1 per second: what comes in within a tick.
        let more = tick.as_secs_f64();
        let permits = if millis < 1_000 { "permits" } else { "permit" };
        let row = format!(
            "| {}{by_default} | {} | {more} {permits} |",
            about(tick),
            about(bucket(1, tick).timing().horizon),
        );
        assert!(document.contains(&row), "docs/embedded.md lacks {row}");
    }
    let by_default = TokenBucket::builder(Rate::per_second(1), 3);
    let by_default = by_default.build_on::<u32>().unwrap();
    assert_eq!(by_default.timing().tick, Duration::from_millis(1));

    let longest = "136 years at 1 per second, 6.8 years at 20 per second";
    assert!(document.contains(longest));
    for (rate, years) in [(1, 136.0), (20, 6.8)] {
        let of = |millis| bucket(rate, Duration::from_millis(millis)).timing().horizon;
        let horizons = [1_000 / u64::from(rate), 1_000, 10_000].map(of);
        for horizon in horizons {
            let horizon = horizon.as_secs_f64() / 31_557_600.0;
            assert!(
                (horizon - years).abs() < 0.2,
                "{horizon} years at {rate} per second"
            );
        }
    }
}

#[test]
fn the_horizons_in_the_document_are_those_of_the_library() {
    let document = document();
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
        row(
            &what,
            bucket.timing().tick,
            bucket.timing().staleness,
            bucket.timing().horizon,
        );
    }
    for (name, seconds) in [("1 s", 1), ("1 min", 60), ("1 h", 3_600)] {
        let length = Duration::from_secs(seconds);
        let window = FixedWindow::builder(100, length).build_on::<u32>().unwrap();
        row(
            &format!("window of {name}"),
            length,
            window.timing().staleness,
            window.timing().horizon,
        );
        let started = FixedWindow::builder(100, length).started_by_first_request();
        let started = started.build_on::<u32>().unwrap();
        let what = format!("window of {name}, from the first request on");
        row(
            &what,
            started.timing().tick,
            started.timing().staleness,
            started.timing().horizon,
        );
        let sliding = SlidingWindow::<10>::builder(100, length, 10)
            .build_on::<u32>()
            .unwrap();
        row(
            &format!("sliding window of {name}, 10 segments"),
            length / 10,
            sliding.timing().staleness,
            sliding.timing().horizon,
        );
    }
    assert!(
        missing.is_empty(),
        "docs/embedded.md lacks\n{}",
        missing.join("\n")
    );
}
