//! What comes of it: a table for people, JSON for tools.

use std::fs::File;
use std::io;
use std::path::Path;

use serde::Serialize;

use crate::measure::{Contest, Spread};

/// Ours against one peer, or against the floor alone.
#[derive(Serialize)]
pub(crate) struct Row {
    row: &'static str,
    threads: usize,
    ours_ns: f64,
    peer: Option<&'static str>,
    peer_ns: Option<f64>,
    ratio: Option<f64>,
    floor_ns: f64,
    floor_ratio: f64,
    runs: usize,
    unit: &'static str,
    /// The slowest run of ours over the fastest.
    spread: f64,
}

impl Row {
    pub(crate) fn new(
        contest: &Contest,
        floor: &Spread,
        ours: &Spread,
        peer: Option<(&'static str, &Spread)>,
        runs: usize,
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
        }
    }
}

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
        (Some(nanos), Some(ratio)) => println!(" {nanos:>9.2} {ratio:>7.3}"),
        _ => println!(),
    }
}

pub(crate) fn foot() {
    println!(
        "\nNanoseconds for each operation, medians; with two threads, as each of them sees it. Below 1 is faster. A spread (slowest \
         run over fastest) above 2 tells noise, not speed."
    );
}

pub(crate) fn write(path: &Path, rows: &[Row]) -> io::Result<()> {
    serde_json::to_writer_pretty(File::create(path)?, rows).map_err(io::Error::from)
}
