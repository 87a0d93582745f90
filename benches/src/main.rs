//! `versus`: runs our limiters and those of other crates in turn, in one process, with the floor
//! beside them.
//!
//! `cargo run --release -p portcullis-bench --bin versus -- --help` lists the options.
//! `docs/benchmarks.md` describes the method.

#![allow(
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "times, counts and pixels, all far from the ends of their types"
)]

mod budgets;
mod chart;
mod measure;
mod model;
mod report;
mod row;
mod rows;
mod table;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use crate::measure::Plan;
use crate::model::Measured;
use crate::row::Row;
use crate::rows::{cores, growth};

/// Compares each hot path with the cost of a bare compare-exchange, and with the same path of other
/// crates.
///
/// Ours and the peers run in turn, in one process, on pinned threads if the system allows it.
/// Numbers are medians over the runs. A ratio below 1 means that ours is faster.
#[derive(Parser)]
#[command(name = "versus", version)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "switches of the command line"
)]
struct Options {
    /// Write the rows as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write charts as SVG files into this folder; without --only and --from, also of costs that
    /// grow with threads, segments, permits or limits
    #[arg(long, value_name = "DIR")]
    plot: Option<PathBuf>,
    /// Five short runs of each instead of fifteen: under a minute, and noisier
    #[arg(long)]
    quick: bool,
    /// 151 runs of 2 ms of each instead of fifteen of 40 ms, for a machine with other load
    #[arg(long, conflicts_with = "quick")]
    short: bool,
    /// Instead of measuring, take the medians of these results of --json
    #[arg(long, value_name = "FILE,...", value_delimiter = ',')]
    from: Vec<PathBuf>,
    /// Write the rows into the tables of this Markdown document, at its marks
    #[arg(long, value_name = "FILE")]
    tables: Option<PathBuf>,
    /// Instead of rows, measure the costs of a cache line that moves between two cores, and predict
    /// the cost of operations on many cores from them; with --from, from the medians of what was
    /// measured before
    #[arg(long)]
    model: bool,
    /// Instead of other rows, measure one limiter that 1, 2, 4, ... threads use at once, up to the
    /// number of cores
    #[arg(long, conflicts_with = "model")]
    cores: bool,
    /// Only the rows whose names begin with one of these
    #[arg(long, value_name = "ROW,...", value_delimiter = ',')]
    only: Vec<String>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let plan = if options.quick {
        Plan::QUICK
    } else if options.short {
        Plan::SHORT
    } else {
        Plan::FULL
    };
    if options.model {
        return ended(predict(&options));
    }
    let wanted = |name: &str| {
        options.only.is_empty()
            || options
                .only
                .iter()
                .any(|only| name.starts_with(only.as_str()))
    };
    let rows = if options.from.is_empty() {
        measure(&options, &plan, &wanted)
    } else {
        match report::read(&options.from) {
            Ok(rows) => rows.into_iter().filter(|row| wanted(&row.row)).collect(),
            Err(message) => return ended(Err(message)),
        }
    };
    if rows.is_empty() {
        eprintln!("versus: no row begins with {}", options.only.join(" or "));
        return ExitCode::from(2);
    }
    ended(write(&options, &plan, &rows))
}

fn ended(done: Result<(), String>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("versus: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Measures what the model needs, or reads it, and prints and writes what the model predicts.
fn predict(options: &Options) -> Result<(), String> {
    let measured = if options.from.is_empty() {
        Measured::new(&Plan::SHORT)
    } else {
        let results = options.from.iter().map(|path| report::read_one(path));
        Measured::median_of(&results.collect::<Result<Vec<_>, _>>()?)
    };
    println!("{}", measured.table());
    if let Some(path) = &options.json {
        report::write(path, &measured).map_err(|error| report::about(path, &error))?;
    }
    if let Some(folder) = &options.plot {
        chart::many_cores(folder, &measured).map_err(|error| report::about(folder, &error))?;
    }
    Ok(())
}

/// Returns 1, 2, 4, 8 and so on, up to the number of cores, and that number.
fn threads() -> Vec<usize> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let powers = (0..usize::BITS).map(|power| 1 << power);
    powers
        .take_while(|threads| *threads < cores)
        .chain([cores])
        .collect()
}

/// Measures the rows, and prints each when it is measured.
fn measure(options: &Options, plan: &Plan, wanted: &dyn Fn(&str) -> bool) -> Vec<Row> {
    let mut rows = Vec::new();
    report::head();
    let contests = if options.cores {
        threads().into_iter().flat_map(cores::rows).collect()
    } else {
        rows::all(options.quick)
    };
    for contest in contests.into_iter().filter(|contest| wanted(contest.row)) {
        for row in contest.hold(plan) {
            report::line(&row);
            rows.push(row);
        }
    }
    report::foot();
    rows
}

/// Writes what the options ask for.
fn write(options: &Options, plan: &Plan, rows: &[Row]) -> Result<(), String> {
    if let Some(path) = &options.json {
        report::write(path, rows).map_err(|error| report::about(path, &error))?;
    }
    if let Some(path) = &options.tables {
        let document = fs::read_to_string(path).map_err(|error| report::about(path, &error))?;
        let written =
            table::replace_all(&document, rows).map_err(|error| report::about(path, &error))?;
        fs::write(path, written).map_err(|error| report::about(path, &error))?;
    }
    if let Some(folder) = &options.plot {
        let grow = options.only.is_empty() && options.from.is_empty();
        let lines = if grow { growth::lines(plan) } else { vec![] };
        chart::draw(folder, rows, &lines).map_err(|error| report::about(folder, &error))?;
    }
    Ok(())
}
