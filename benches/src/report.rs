//! What comes of it: a table for people, JSON for tools.

use core::iter;
use std::fs::File;
use std::io;
use std::path::Path;

use serde::Serialize;

use crate::measure::{Contest, Spread};

/// Ours against one peer, or against the floor alone.
#[derive(Serialize)]
#[expect(clippy::struct_field_names, reason = "tools know the names")]
pub(crate) struct Row {
    pub(crate) row: &'static str,
    pub(crate) threads: usize,
    pub(crate) ours_ns: f64,
    pub(crate) peer: Option<&'static str>,
    pub(crate) peer_ns: Option<f64>,
    ratio: Option<f64>,
    pub(crate) floor_ns: f64,
    floor_ratio: f64,
    runs: usize,
    unit: &'static str,
    /// The slowest run of ours over the fastest.
    spread: f64,
    peer_spread: Option<f64>,
    /// Whether the numbers mean enough to be held against a budget: those of several threads only
    /// if runs agree.
    judged: bool,
    /// What else there is to know of ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

impl Row {
    pub(crate) fn new(
        contest: &Contest,
        floor: &Spread,
        ours: &Spread,
        peer: Option<(&'static str, &Spread)>,
        runs: usize,
        note: Option<String>,
    ) -> Self {
        Self {
            row: contest.row,
            threads: contest.threads,
            ours_ns: ours.median,
            peer: peer.map(|(name, _)| name),
            peer_ns: peer.map(|(_, spread)| spread.median),
            ratio: peer.map(|(_, spread)| ours.median / spread.median),
            floor_ns: floor.median,
            floor_ratio: ours.median / floor.median,
            runs,
            unit: "ns/op",
            spread: ours.factor(),
            peer_spread: peer.map(|(_, spread)| spread.factor()),
            judged: contest.threads == 1
                || iter::once(ours)
                    .chain(peer.map(|(_, spread)| spread))
                    .all(|spread| spread.factor() <= NOISE),
            note,
        }
    }
}

/// A spread above this tells noise, not speed.
const NOISE: f64 = 2.0;

pub(crate) fn head() {
    println!(
        "{:<26} {:>7} {:>9} {:>7} {:>7}   {:<22} {:>9} {:>7}",
        "row", "threads", "ours ns", "/floor", "spread", "peer", "peer ns", "/peer"
    );
}

pub(crate) fn line(row: &Row) {
    print!(
        "{:<26} {:>7} {:>9.2} {:>7.3} {:>7.2}   {:<22}",
        row.row,
        row.threads,
        row.ours_ns,
        row.floor_ratio,
        row.spread,
        row.peer.unwrap_or("-")
    );
    match (row.peer_ns, row.ratio) {
        (Some(nanos), Some(ratio)) => print!(" {nanos:>9.2} {ratio:>7.3}"),
        _ => print!("{:18}", ""),
    }
    println!(
        "{}",
        if row.judged {
            ""
        } else {
            "  too noisy to judge"
        }
    );
    if let Some(note) = &row.note {
        println!("{:>26} {note}", "");
    }
}

pub(crate) fn foot() {
    println!(
        "\nNanoseconds for each operation, medians; with two threads, as each of them sees it. Below 1 is faster. Spread is the slowest \
         run over the fastest: where it is above {NOISE} with two threads, it tells noise, not speed."
    );
}

pub(crate) fn write(path: &Path, rows: &[Row]) -> io::Result<()> {
    serde_json::to_writer_pretty(File::create(path)?, rows).map_err(io::Error::from)
}
