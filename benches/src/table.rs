//! The tables of a Markdown document, written from results. A document marks the place of a table,
//! and names the rows in it by the beginnings of their names:
//!
//! ```text
//! <!-- versus: token_bucket, fixed_window -->
//! (the table)
//! <!-- end of the table -->
//! ```
//!
//! A figure names its row, with one thread, in a comment after it: `12.3<!-- ns: token_bucket.allow
//! -->`, on one line. It keeps its number of decimals.

use core::fmt::Write as _;

use crate::budgets::{self, Against};
use crate::row::{NOISE, Row};

const BEGIN: &str = "<!-- versus: ";
const END: &str = "<!-- end of the table -->";
const FIGURE: &str = "<!-- ns: ";

/// Replaces each table and each marked figure of `document`. Fails if a mark has no end, or names
/// no row.
pub(crate) fn replace_all(document: &str, rows: &[Row]) -> Result<String, String> {
    let mut written = String::new();
    let mut lines = document.lines();
    while let Some(line) = lines.next() {
        written.push_str(&filled(line, rows)?);
        written.push('\n');
        let Some(names) = line.strip_prefix(BEGIN) else {
            continue;
        };
        let names: Vec<&str> = names
            .trim_end_matches("-->")
            .split(',')
            .map(str::trim)
            .collect();
        let is_named = |row: &&Row| names.iter().any(|name| row.row.starts_with(name));
        let named: Vec<&Row> = rows.iter().filter(is_named).collect();
        if named.is_empty() {
            return Err(format!("no result for `{line}`"));
        }
        written.push_str(&table(&named));
        if !lines.by_ref().any(|line| line == END) {
            return Err(format!("no `{END}` after `{line}`"));
        }
        written.push_str(END);
        written.push('\n');
    }
    Ok(written)
}

/// Returns a line with its marked figures.
fn filled(line: &str, rows: &[Row]) -> Result<String, String> {
    let mut filled = String::with_capacity(line.len());
    let mut rest = line;
    while let Some((before, after)) = rest.split_once(FIGURE) {
        let (name, after) = after
            .split_once(" -->")
            .ok_or_else(|| format!("a mark has no end: `{line}`"))?;
        let text = before.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
        let figure = &before[text.len()..];
        if figure.is_empty() {
            return Err(format!("no figure before `{FIGURE}{name} -->`"));
        }
        let decimals = figure.split_once('.').map_or(0, |(_, after)| after.len());
        let row = rows
            .iter()
            .find(|row| row.row == name && row.threads == 1)
            .ok_or_else(|| format!("no result for `{name}` with one thread"))?;
        write!(filled, "{text}{:.decimals$}{FIGURE}{name} -->", row.ours_ns)
            .expect("a string accepts text");
        rest = after;
    }
    filled.push_str(rest);
    Ok(filled)
}

/// Returns the table of some rows, in their order.
fn table(rows: &[&Row]) -> String {
    let mut table = String::from(
        "| row | threads | ours | of the floor | budget | against | theirs | ratio | budget |\n\
         |---|---|---|---|---|---|---|---|---|\n",
    );
    let mut before = None;
    for row in rows {
        let place = Some((&row.row, row.threads));
        let ours = if place == before {
            " |".repeat(5)
        } else {
            let budget = budget(row, Against::Floor, row.floor_ratio);
            format!(
                " `{}` | {} | {} | {:.2} | {budget} |",
                row.row,
                row.threads,
                nanos(row.ours_ns, row.threads, row.spread),
                row.floor_ratio
            )
        };
        before = place;
        let theirs = match (&row.peer, row.peer_ns, row.ratio) {
            (Some(peer), Some(peer_ns), Some(ratio)) => format!(
                " {peer} | {} | {ratio:.2} | {} |",
                nanos(peer_ns, row.threads, row.peer_spread.unwrap_or(1.0)),
                budget(row, Against::Peer(peer), ratio)
            ),
            _ => " |".repeat(4),
        };
        writeln!(table, "|{ours}{theirs}").expect("a string accepts text");
    }
    table
}

/// A time, with the spread of its runs if that tells of noise.
fn nanos(nanos: f64, threads: usize, spread: f64) -> String {
    if threads > 1 && spread > NOISE {
        format!("{nanos:.2} (spread up to {spread:.1})")
    } else {
        format!("{nanos:.2}")
    }
}

/// The budget of a row, and whether the ratio is within it.
fn budget(row: &Row, against: Against<'_>, ratio: f64) -> String {
    match budgets::of(&row.row, row.threads, against) {
        None => String::new(),
        Some(budget) if !row.judged => format!("{budget}, not judged"),
        Some(budget) if budgets::is_met(ratio, budget) => format!("{budget}"),
        Some(budget) => format!("{budget}, missed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = include_str!("../../docs/benchmarks.md");
    const RESULTS: &str = include_str!("../../docs/benchmarks.json");

    fn results() -> Vec<Row> {
        serde_json::from_str(RESULTS).expect("rows as `--json` writes them")
    }

    #[test]
    fn the_tables_of_the_document_are_those_of_the_results() {
        let written = replace_all(DOCUMENT, &results()).expect("marks that name rows");
        for (place, (is, should)) in DOCUMENT.lines().zip(written.lines()).enumerate() {
            assert_eq!(is, should, "line {} of docs/benchmarks.md", place + 1);
        }
        assert_eq!(DOCUMENT.len(), written.len());
    }

    #[test]
    fn marked_figures_in_other_documents_are_those_of_the_results() {
        let rows = results();
        for (name, document) in [
            ("docs/tour.md", include_str!("../../docs/tour.md")),
            ("docs/tuning.md", include_str!("../../docs/tuning.md")),
        ] {
            assert!(document.contains(FIGURE), "{name} has no figure");
            for (place, line) in document.lines().enumerate() {
                let should = filled(line, &rows);
                assert_eq!(Ok(line), should.as_deref(), "line {} of {name}", place + 1);
            }
        }
    }

    #[test]
    fn a_figure_keeps_its_decimals() {
        let mut rows = results();
        rows.retain(|row| row.row == "token_bucket.deny");
        rows[0].ours_ns = 1.25;
        let line = |figure| {
            filled(
                &format!("takes {figure}<!-- ns: token_bucket.deny -->."),
                &rows,
            )
        };
        assert_eq!(
            line("9").as_deref(),
            Ok("takes 1<!-- ns: token_bucket.deny -->.")
        );
        assert_eq!(
            line("9.87").as_deref(),
            Ok("takes 1.25<!-- ns: token_bucket.deny -->.")
        );
        assert!(line("").is_err());
        assert!(filled("1<!-- ns: no.row -->", &rows).is_err());
    }

    #[test]
    fn each_row_and_each_budget_is_in_a_table() {
        let rows = results();
        for row in &rows {
            let cell = format!("| `{}` | {} |", row.row, row.threads);
            assert_eq!(DOCUMENT.matches(&cell).count(), 1, "{cell}");
        }
        let judged = |name: &str, threads, peer: Option<&str>| {
            let is_it = |row: &Row| {
                (&*row.row, row.threads) == (name, threads)
                    && (peer.is_none() || peer == row.peer.as_deref())
            };
            assert!(
                rows.iter().any(is_it),
                "{name}, {threads} threads, {peer:?}"
            );
        };
        for &(name, _) in budgets::FLOOR {
            judged(name, 1, None);
        }
        for &(name, threads, peer, _) in budgets::PEERS {
            judged(name, threads, Some(peer));
        }
    }

    #[test]
    fn a_budget_that_is_missed_or_not_judged_is_marked() {
        let mut rows = results();
        rows.retain(|row| row.row == "token_bucket.deny");
        let mut told = |ratio, judged| {
            (rows[0].ratio, rows[0].judged) = (Some(ratio), judged);
            table(&[&rows[0]]).lines().last().unwrap().to_owned()
        };
        assert!(told(0.18 * 1.04, true).ends_with(" | 0.19 | 0.18 |"));
        assert!(told(0.18 * 1.06, true).ends_with(" | 0.19 | 0.18, missed |"));
        assert!(told(0.18 * 1.06, false).ends_with(" | 0.19 | 0.18, not judged |"));
    }

    #[test]
    fn a_mark_without_an_end_or_without_a_row_is_an_error() {
        let rows = results();
        assert!(replace_all("<!-- versus: token_bucket -->\n", &rows).is_err());
        let none = format!("<!-- versus: no_row -->\n{END}\n");
        assert!(replace_all(&none, &rows).is_err());
        assert_eq!(replace_all("text\n", &rows), Ok("text\n".to_owned()));
    }
}
