//! The results: a table for people, JSON for tools.

use core::fmt::Display;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::row::{NOISE, Row};

/// Reads the results of several runs that [`write()`] wrote, and returns the medians. Fails if the
/// files do not have the same rows.
pub(crate) fn read(paths: &[PathBuf]) -> Result<Vec<Row>, String> {
    let results: Vec<Vec<Row>> = paths
        .iter()
        .map(|path| read_one(path))
        .collect::<Result<_, _>>()?;
    medians(&results)
}

/// Reads one result.
pub(crate) fn read_one<T: DeserializeOwned>(path: &Path) -> Result<T, String> {
    let text = fs::read_to_string(path).map_err(|error| about(path, &error))?;
    serde_json::from_str(&text).map_err(|error| about(path, &error))
}

/// An error message with the name of its file.
pub(crate) fn about(path: &Path, error: &dyn Display) -> String {
    format!("{}: {error}", path.display())
}

fn medians(results: &[Vec<Row>]) -> Result<Vec<Row>, String> {
    let what = |row: &Row| (row.row.clone(), row.threads, row.peer.clone());
    let Some(first) = results.first() else {
        return Ok(vec![]);
    };
    if let Some(other) = results
        .iter()
        .find(|other| !other.iter().map(what).eq(first.iter().map(what)))
    {
        let differs = first.iter().zip(other).find(|(a, b)| what(a) != what(b));
        let row = differs.map_or("the last row", |(row, _)| &*row.row);
        return Err(format!("the results have other rows, from {row} on"));
    }
    let same = |place: usize| results.iter().map(move |rows| &rows[place]);
    Ok((0..first.len())
        .map(|place| Row::median_of(&same(place).collect::<Vec<_>>()))
        .collect())
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
        row.peer.as_deref().unwrap_or("-")
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

pub(crate) fn write<T: Serialize + ?Sized>(path: &Path, result: &T) -> io::Result<()> {
    serde_json::to_writer_pretty(File::create(path)?, result).map_err(io::Error::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Spread;

    fn row(row: &'static str, ours: f64, peer: f64, spread: f64) -> Row {
        let floor = Spread::of(vec![2.0]);
        let ours = Spread::of(vec![ours, ours, ours * spread]);
        let peer = Spread::of(vec![peer]);
        Row::new((row, 2), &floor, &ours, Some(("a peer", &peer)), 15, None)
    }

    #[test]
    fn each_number_is_the_median_of_the_results_and_the_spread_the_largest() {
        let results = [(4.0, 2.0, 1.0), (6.0, 6.0, 3.0), (5.0, 1.0, 1.5)];
        let results = results.map(|(ours, peer, spread)| vec![row("a", ours, peer, spread)]);
        let rows = medians(&results).unwrap();
        let [row] = &rows[..] else { panic!("one row") };
        assert_eq!((row.ours_ns, row.peer_ns), (5.0, Some(2.0)));
        assert_eq!((row.floor_ratio, row.ratio), (2.5, Some(2.0)));
        assert_eq!((row.spread, row.judged, row.runs), (3.0, false, 45));
    }

    #[test]
    fn results_with_other_rows_are_an_error() {
        let (a, b) = (|| row("a", 1.0, 1.0, 1.0), || row("b", 1.0, 1.0, 1.0));
        let error = medians(&[vec![a(), a()], vec![a(), b()]]).map(|_| ());
        assert_eq!(error.unwrap_err(), "the results have other rows, from a on");
        assert!(medians(&[vec![a(), b()], vec![a()]]).is_err());
    }
}
