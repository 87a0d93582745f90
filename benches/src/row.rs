//! The result of a comparison.

use core::iter;
use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// Ours against one peer, or against the floor alone.
#[derive(Clone, Serialize, Deserialize)]
#[expect(clippy::struct_field_names, reason = "tools know the names")]
pub(crate) struct Row {
    pub(crate) row: Cow<'static, str>,
    pub(crate) threads: usize,
    pub(crate) ours_ns: f64,
    pub(crate) peer: Option<Cow<'static, str>>,
    pub(crate) peer_ns: Option<f64>,
    pub(crate) ratio: Option<f64>,
    pub(crate) floor_ns: f64,
    pub(crate) floor_ratio: f64,
    pub(crate) runs: usize,
    pub(crate) unit: Cow<'static, str>,
    /// The duration of our slowest run divided by that of the fastest.
    pub(crate) spread: f64,
    pub(crate) peer_spread: Option<f64>,
    /// Whether the numbers can be compared with a budget. Rows with several threads can only if
    /// their runs agree.
    pub(crate) judged: bool,
    /// A remark on ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
}

impl Row {
    pub(crate) fn new(
        (row, threads): (&'static str, usize),
        floor: &Spread,
        ours: &Spread,
        peer: Option<(&'static str, &Spread)>,
        runs: usize,
        note: Option<String>,
    ) -> Self {
        Self {
            row: row.into(),
            threads,
            ours_ns: ours.median,
            peer: peer.map(|(name, _)| name.into()),
            peer_ns: peer.map(|(_, spread)| spread.median),
            ratio: peer.map(|(_, spread)| ours.median / spread.median),
            floor_ns: floor.median,
            floor_ratio: ours.median / floor.median,
            runs,
            unit: "ns/op".into(),
            spread: ours.factor(),
            peer_spread: peer.map(|(_, spread)| spread.factor()),
            judged: threads == 1
                || iter::once(ours)
                    .chain(peer.map(|(_, spread)| spread))
                    .all(|spread| spread.factor() <= NOISE),
            note,
        }
    }

    /// Returns the medians of the same comparison in several results. The spread is the largest.
    /// The comparison can be judged if it can be in each result.
    pub(crate) fn median_of(results: &[&Self]) -> Self {
        let median = |number: fn(&Self) -> f64| {
            let numbers = results.iter().map(|row| number(row));
            Spread::of(numbers.collect()).median
        };
        let first = results[0];
        let with_peer = |number: f64| first.peer.is_some().then_some(number);
        let largest = |spread: fn(&Self) -> f64| {
            let spreads = results.iter().map(|row| spread(row));
            spreads.fold(1.0, f64::max)
        };
        Self {
            ours_ns: median(|row| row.ours_ns),
            peer_ns: with_peer(median(|row| row.peer_ns.unwrap_or(0.0))),
            ratio: with_peer(median(|row| row.ratio.unwrap_or(0.0))),
            floor_ns: median(|row| row.floor_ns),
            floor_ratio: median(|row| row.floor_ratio),
            runs: results.iter().map(|row| row.runs).sum(),
            spread: largest(|row| row.spread),
            peer_spread: with_peer(largest(|row| row.peer_spread.unwrap_or(1.0))),
            judged: results.iter().all(|row| row.judged),
            ..first.clone()
        }
    }
}

/// A larger spread than this indicates noise.
pub(crate) const NOISE: f64 = 2.0;

/// The median and the extremes of a contestant's runs, in nanoseconds per operation. Of a hundred
/// runs or more, the fastest and the slowest tenth are left out.
#[derive(Clone, Copy)]
pub(crate) struct Spread {
    pub(crate) least: f64,
    pub(crate) median: f64,
    pub(crate) most: f64,
}

impl Spread {
    pub(crate) fn of(mut runs: Vec<f64>) -> Self {
        runs.sort_by(f64::total_cmp);
        // Of many short runs, some are interrupted.
        let outliers = if runs.len() < 100 { 0 } else { runs.len() / 10 };
        Self {
            least: runs[outliers],
            median: runs[runs.len() / 2],
            most: runs[runs.len() - 1 - outliers],
        }
    }

    /// The duration of the slowest run divided by that of the fastest.
    pub(crate) fn factor(&self) -> f64 {
        self.most / self.least
    }
}
