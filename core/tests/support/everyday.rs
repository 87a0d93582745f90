//! Limits that people use, and the times for which they may rest.

use core::time::Duration;

use portcullis_core::keyed::{AnyRules, TokenBucketRules};
use portcullis_core::{FixedWindow, Rate};

use super::draws::Draws;

/// A limit that people use, with the span after which its permits are all back, and the time after
/// which its word in a table repeats.
#[derive(Debug)]
pub(crate) struct Everyday {
    pub(crate) rules: AnyRules,
    pub(crate) burst: u32,
    pub(crate) full_after: u64,
    repeats: u128,
    tick: u64,
    staleness: u64,
}

pub(crate) fn nanos(duration: Duration) -> u64 {
    duration.as_nanos().try_into().unwrap_or(u64::MAX)
}

/// Rates from 1 per day to 1,000,000 per second, with several bursts, and windows.
pub(crate) fn everyday_limits() -> Vec<Everyday> {
    let per_second = [
        1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 20, 24, 25, 30, 33, 50, 61, 64, 97, 100, 120,
        128, 150, 200, 250, 300, 333, 500, 750, 997, 999, 1_000, 1_024, 2_000, 2_443, 5_000, 9_973,
        10_000, 44_100, 50_000, 65_536, 99_991, 100_000, 250_000, 500_000, 999_983, 1_000_000,
    ];
    let rates = (per_second.iter().map(|&n| Rate::per_second(n)))
        .chain([1, 2, 5, 7, 10, 20, 30, 60, 61, 90, 100, 300, 600].map(Rate::per_minute))
        .chain([1, 5, 7, 10, 60, 100, 1_000, 5_000].map(Rate::per_hour))
        .chain([1, 10, 100, 1_000, 10_000].map(Rate::per_day));
    let mut limits = Vec::new();
    for (nth, rate) in rates.enumerate() {
        for burst in [[1, 10], [10, 100]][nth % 2] {
            let rules = TokenBucketRules::new(rate, burst);
            limits.push(Everyday {
                burst: burst as u32,
                full_after: nanos(rules.time_to_fill().unwrap()),
                repeats: rules.timing().horizon.as_nanos(),
                tick: nanos(rules.timing().tick),
                staleness: nanos(rules.timing().staleness),
                rules: rules.into(),
            });
        }
    }
    let windows = [1, 10, 60, 900, 3_600, 86_400].map(Duration::from_secs);
    for (nth, limit) in [1, 5, 10, 60, 100, 1_000, 10_000, 100_000]
        .into_iter()
        .enumerate()
    {
        for window in windows {
            let builder = FixedWindow::builder(limit, window);
            let started = builder.started_by_first_request();
            let rules = [builder, started][nth % 2].rules().unwrap();
            limits.push(Everyday {
                burst: limit as u32,
                full_after: nanos(window) + nanos(rules.timing().tick),
                repeats: rules.timing().horizon.as_nanos(),
                tick: nanos(rules.timing().tick),
                staleness: nanos(rules.timing().staleness),
                rules: rules.into(),
            });
        }
    }
    assert!(limits.len() >= 200, "{}", limits.len());
    limits
}

pub(crate) const YEAR: u64 = 365 * 86_400 * 1_000_000_000;

impl Everyday {
    /// Idle times from the span after which all permits are back to ten years: close to multiples
    /// of the time after which the word repeats, on both sides, and any others.
    pub(crate) fn idle_times(&self, draws: &mut Draws<'_>) -> Vec<u64> {
        let last = (u128::from(10 * YEAR) / self.repeats) as u64;
        let mut multiples = vec![1, 2, 3, last.saturating_sub(1), last];
        multiples.extend((0..8).map(|_| draws.magnitude(last)));
        let (full, stale) = (self.full_after, self.staleness.min(YEAR));
        let tick = self.tick.min(YEAR);
        let near = [
            0,
            1,
            tick,
            stale / 2,
            stale,
            stale + tick,
            full / 2,
            full,
            full + stale,
            2 * stale + full,
            1_000_000_000,
            (self.repeats / 64).min(u128::from(YEAR)) as u64,
        ];
        let mut times = vec![full, full + 1, full + stale, 2 * full];
        times.extend((0..20).map(|_| full + draws.magnitude(10 * YEAR - full)));
        for multiple in multiples {
            let around = u128::from(multiple) * self.repeats;
            let around = around.min(u128::from(10 * YEAR)) as u64;
            for span in near {
                times.extend([around.saturating_add(span), around.saturating_sub(span)]);
            }
            let span = (self.repeats / 4).min(u128::from(YEAR)) as u64 + 1;
            times.extend((0..20).map(|_| (around + draws.below(span)).saturating_sub(span / 2)));
        }
        times.retain(|time| (full..=11 * YEAR).contains(time));
        times
    }
}
