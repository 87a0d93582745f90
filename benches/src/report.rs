//! The results: a table for people, JSON for tools.

use std::fs::File;
use std::io;
use std::path::Path;

use crate::row::{NOISE, Row};

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
