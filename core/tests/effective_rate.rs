//! The rate that a token bucket admits is exactly the configured one. The table in
//! `docs/effective-rate.md` is made of the numbers that are counted here.

use core::time::Duration;

use portcullis_core::state::Word;
use portcullis_core::{Limiter, Rate, Retry, Timestamp, TokenBucket};

const SECOND: u64 = 1_000_000_000;
const HOUR: u64 = 3_600 * SECOND;
const YEAR: u64 = 365 * 24 * HOUR;
const BURST: u64 = 2;

/// A row of the table.
struct Row {
    name: &'static str,
    permits: u32,
    period: u64,
    /// The span over which the permits were counted: its name in the table, and its nanoseconds.
    span: (&'static str, u64),
    /// What governor 0.10.4 admitted in that span, from a burst of 2, on its own fake clock.
    governor: u64,
}

const ROWS: [Row; 8] = [
    Row {
        name: "3 / s",
        permits: 3,
        period: SECOND,
        span: ("1,000 s", 1_000 * SECOND),
        governor: 3_002,
    },
    Row {
        name: "3 M / s",
        permits: 3_000_000,
        period: SECOND,
        span: ("100 ms", SECOND / 10),
        governor: 300_302,
    },
    Row {
        name: "30 M / s",
        permits: 30_000_000,
        period: SECOND,
        span: ("10 ms", SECOND / 100),
        governor: 303_032,
    },
    Row {
        name: "300 M / s",
        permits: 300_000_000,
        period: SECOND,
        span: ("10 ms", SECOND / 100),
        governor: 3_333_335,
    },
    Row {
        name: "700 M / s",
        permits: 700_000_000,
        period: SECOND,
        span: ("10 ms", SECOND / 100),
        governor: 10_000_002,
    },
    Row {
        name: "999,999,937 / s",
        permits: 999_999_937,
        period: SECOND,
        span: ("100 ms", SECOND / 10),
        governor: 100_000_002,
    },
    Row {
        name: "1 / h",
        permits: 1,
        period: HOUR,
        span: ("1,000 h", 1_000 * HOUR),
        governor: 1_002,
    },
    Row {
        name: "1 / year",
        permits: 1,
        period: YEAR,
        span: ("200 years", 200 * YEAR),
        governor: 202,
    },
];

/// The permits that a bucket without rounding has admitted up to `span`, both ends included, if
/// each is taken at once.
fn promised(row: &Row, span: u64) -> u64 {
    BURST + (u128::from(span) * u128::from(row.permits) / u128::from(row.period)) as u64
}

/// Takes each permit at the first instant at which it is available, and calls `each` with the
/// instant and the number of permits so far.
fn greedily<W: Word>(bucket: &TokenBucket<W>, span: u64, mut each: impl FnMut(u64, u64)) -> u64 {
    let (mut now, mut admitted) = (Timestamp::ZERO, 0);
    loop {
        match bucket.take_at(now, 1) {
            Ok(_) => {
                admitted += 1;
                each(now.as_nanos(), admitted);
            }
            Err(denied) => match denied.retry(bucket) {
                Retry::At(at) if at.as_nanos() <= span => now = at,
                _ => return admitted,
            },
        }
    }
}

fn counted<W: Word>(row: &Row, bucket: &TokenBucket<W>) -> u64 {
    let (mut last, mut before) = (0, 0);
    greedily(bucket, row.span.1, |now, admitted| {
        if now > last {
            // All that came in was taken at `last`, so 1 ns before `now` nothing is available.
            assert_eq!(
                before,
                promised(row, now - 1),
                "{} at {now} - 1 ns",
                row.name
            );
            last = now;
        }
        before = admitted;
    })
}

fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let groups = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|group| String::from_utf8_lossy(group));
    groups.collect::<Vec<_>>().join(",")
}

fn error(admitted: u64, promised: u64) -> String {
    let exact = |n: u64| f64::from(u32::try_from(n).expect("a count that fits"));
    let error = (exact(admitted) - exact(promised)) / exact(promised) * 100.0;
    if admitted == promised {
        "0".into()
    } else if error.abs() < 0.001 {
        format!("{error:+.6} %")
    } else {
        format!("{error:+.1} %")
    }
}

/// Rows that take too long in a debug build.
fn takes_long(row: &Row) -> bool {
    cfg!(debug_assertions) && promised(row, row.span.1) > 1_000_000
}

#[test]
fn the_admitted_permits_are_exactly_the_burst_and_the_rate_as_documented() {
    let documented = include_str!("../../docs/effective-rate.md");
    let mut missing = String::new();
    for row in &ROWS {
        let promised = promised(row, row.span.1);
        let rate = Rate::new(row.permits, Duration::from_nanos(row.period));
        let ours = if takes_long(row) {
            promised
        } else {
            counted(row, &TokenBucket::new(rate, BURST))
        };
        assert_eq!(ours, promised, "{}", row.name);
        let line = format!(
            "| {} | {} | {} | {} | {} | {} | {} |\n",
            row.name,
            row.span.0,
            grouped(promised),
            grouped(ours),
            error(ours, promised),
            grouped(row.governor),
            error(row.governor, promised),
        );
        if !documented.contains(&line) {
            missing.push_str(&line);
        }
    }
    assert!(
        missing.is_empty(),
        "docs/effective-rate.md lacks these lines:\n{missing}"
    );
}

#[test]
fn on_32_bits_the_rate_is_as_exact_where_it_fits() {
    for (permits, period, span) in [
        (3, SECOND, 1_000 * SECOND),
        (3_000_000, SECOND, SECOND / 10),
        (1, HOUR, 1_000 * HOUR),
    ] {
        let rate = Rate::new(permits, Duration::from_nanos(period));
        let bucket = TokenBucket::builder(rate, 100)
            .build_on::<u32>()
            .expect("the settings fit");
        let tick = bucket.timing().tick.as_nanos() as u64;
        let admitted = greedily(&bucket, span, |_, _| {});
        let whole = u128::from(span / tick * tick);
        assert_eq!(
            u128::from(admitted),
            100 + whole * u128::from(permits) / u128::from(period),
            "{rate:?}"
        );
    }
}

#[test]
fn over_long_spans_the_rate_does_not_drift() {
    for (permits, period) in [
        (700_000_000, SECOND),
        (999_999_937, SECOND),
        (7, 10),
        (1_000_000_007, SECOND + 9),
    ] {
        let rate = Rate::new(permits, Duration::from_nanos(period));
        let burst = u64::from(u32::MAX);
        let bucket = TokenBucket::new(rate, burst);
        let mut admitted = 0u128;
        // Uneven steps of a little more than a second, for more than a day.
        for step in 0..100_000u64 {
            let now = step * 1_000_000_033;
            let available = bucket.available_at(Timestamp::from_nanos(now));
            bucket
                .take_at(Timestamp::from_nanos(now), available as u32)
                .expect("available");
            admitted += u128::from(available);
            let ideal =
                u128::from(burst) + u128::from(now) * u128::from(permits) / u128::from(period);
            assert_eq!(admitted, ideal, "{rate:?} at {now}");
        }
    }
}
