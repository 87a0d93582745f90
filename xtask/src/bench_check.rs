//! Counts the instructions of every hot path with Callgrind, and compares them with a committed
//! baseline of the same compiler.

use core::fmt::Write as _;
use core::iter;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use crate::baseline;
use crate::command::{self, Check, Words};
use crate::context::Context;
use crate::figures;
use crate::files;
use crate::programs;
use crate::setup;

/// The counts of a path, for a thousand operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counts {
    instructions: u64,
    /// Estimated misses of instructions and data in the first-level cache, and in the last-level
    /// cache.
    first_misses: u64,
    last_misses: u64,
}

type Paths = BTreeMap<String, Counts>;

/// The document that has figures of the newest baseline.
const DOCUMENT: &str = "docs/tuning.md";

/// The allowed growth of instructions, in percent.
const TOLERANCE: u64 = 2;

const HEAD: &str = "\
# Instructions, and estimated misses of the first and of the last cache, of a thousand operations on each path.
# Written by `cargo xtask bench-check --bless`.
";

pub(crate) fn check(context: &Context) -> Check {
    let compiler = compiler()?;
    let now = measure(context)?;
    let folder = context.root.join("benches/baseline");
    let own = folder.join(format!("{compiler}.txt"));
    if context.bless {
        files::write(&own, &listed(&now))?;
        if own == baseline::newest(&folder)? {
            fill(&context.root.join(DOCUMENT), &now)?;
        }
        return Ok(format!("{} paths written to {}", now.len(), own.display()));
    }
    let judged = own.is_file();
    let file = if judged {
        own
    } else {
        baseline::newest(&folder)?
    };
    let baseline = parse(&files::read(&file)?).ok_or_else(|| baseline::damaged(&file))?;
    print(&baseline, &now);
    let wrong = compare(&baseline, &now);
    match (judged, wrong.is_empty()) {
        (true, true) => Ok(format!("{} paths", now.len())),
        (true, false) => Err(baseline::refused(&wrong)),
        (false, _) => Ok(format!("reported only: {compiler} has no baseline")),
    }
}

/// Returns the compiler and its target, as `rustc-1.95.0-x86_64-unknown-linux-gnu`.
fn compiler() -> Result<String, String> {
    let printed =
        programs::output(programs::rustc(), &["-vV"]).ok_or("rustc does not tell its version")?;
    let field = |name| printed.lines().find_map(|line| line.strip_prefix(name));
    let (release, host) = field("release: ")
        .zip(field("host: "))
        .ok_or("rustc's version is unreadable")?;
    Ok(format!("rustc-{release}-{host}"))
}

/// Writes the figures of `paths` into a document.
fn fill(document: &Path, paths: &Paths) -> Result<(), String> {
    let text = files::read(document)?;
    files::write(document, &figures::filled(&text, rounded(paths))?)
}

/// Returns the instructions per operation of the path `name`.
fn rounded(paths: &Paths) -> impl Fn(&str) -> Option<u64> {
    |name| {
        paths
            .get(name)
            .map(|counts| (counts.instructions + 500) / 1_000)
    }
}

fn measure(context: &Context) -> Result<Paths, String> {
    let home = context.target_dir("instructions");
    // Results of paths that are no longer measured would be included.
    files::remove(&home)?;
    let mut cargo = context.cargo();
    cargo.arg("bench").args(context.locked());
    cargo.words("--package portcullis-instructions --bench *");
    cargo
        .env("GUNGRAUN_RUNNER", setup::callgrind_runner(context))
        .env("GUNGRAUN_HOME", &home);
    command::run(&mut cargo)?;
    let mut paths = Paths::new();
    collect(&home, &mut paths).map_err(files::at(&home))?;
    if paths.is_empty() {
        Err("nothing was measured".to_owned())
    } else {
        Ok(paths)
    }
}

/// Reads the results of Callgrind: `.../<operation>.<limiter>/callgrind.<operation>.<limiter>.out`.
fn collect(folder: &Path, paths: &mut Paths) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, paths)?;
        } else if files::has_extension(&path, "out") {
            let stem = path.file_stem().unwrap_or_default().to_string_lossy();
            let bad = || io::Error::other(format!("{stem} is not as expected"));
            let name = stem
                .strip_prefix("callgrind.")
                .and_then(|stem| stem.split_once('.'))
                .ok_or_else(bad)?;
            let counts = counted(&fs::read_to_string(&path)?).ok_or_else(bad)?;
            paths.insert(format!("{}.{}", name.1, name.0), counts);
        }
    }
    Ok(())
}

/// Reads the totals in a result file of Callgrind.
fn counted(text: &str) -> Option<Counts> {
    let line = |name| text.lines().find_map(|line| line.strip_prefix(name));
    let (events, summary) = line("events: ").zip(line("summary: "))?;
    // Callgrind omits trailing zeros.
    let sums = summary
        .split(' ')
        .map_while(|sum| sum.parse().ok())
        .chain(iter::repeat(0));
    let sums: BTreeMap<&str, u64> = events.split(' ').zip(sums).collect();
    let total = |names: [&str; 3]| names.iter().map(|name| sums.get(name)).sum::<Option<u64>>();
    Some(Counts {
        instructions: *sums.get("Ir")?,
        first_misses: total(["I1mr", "D1mr", "D1mw"])?,
        last_misses: total(["ILmr", "DLmr", "DLmw"])?,
    })
}

/// Returns the text of a baseline.
fn listed(paths: &Paths) -> String {
    let mut text = HEAD.to_owned();
    for (name, counts) in paths {
        let Counts {
            instructions,
            first_misses,
            last_misses,
        } = counts;
        let _ = writeln!(
            text,
            "{name:32} {instructions:>9} {first_misses:>6} {last_misses:>6}"
        );
    }
    text
}

fn parse(text: &str) -> Option<Paths> {
    let rows = baseline::parse(text)?.into_iter();
    let counts = |[instructions, first_misses, last_misses]: [u64; 3]| Counts {
        instructions,
        first_misses,
        last_misses,
    };
    Some(
        rows.map(|(name, numbers)| (name, counts(numbers)))
            .collect(),
    )
}

/// Returns the paths that have grown too much, and those that are only on one side.
fn compare(baseline: &Paths, now: &Paths) -> Vec<String> {
    baseline::compare(baseline, now, |name, before, counts| {
        let is_over = counts.instructions * 100 > before.instructions * (100 + TOLERANCE);
        let grown = || format!("{name} grew by {:.1} %", growth(*before, *counts));
        is_over.then(grown).into_iter().collect()
    })
}

#[expect(clippy::cast_precision_loss, reason = "shown with one decimal")]
fn growth(before: Counts, now: Counts) -> f64 {
    (now.instructions as f64 / before.instructions as f64 - 1.0) * 100.0
}

#[expect(clippy::cast_precision_loss, reason = "shown with one decimal")]
fn print(baseline: &Paths, now: &Paths) {
    println!(
        "{:32} {:>9} {:>9} {:>8} {:>10} {:>11}",
        "path", "baseline", "now", "growth", "L1 misses", "LL misses"
    );
    for (name, counts) in now {
        let each = |counts: Counts| format!("{:.1}", counts.instructions as f64 / 1_000.0);
        let before = baseline.get(name);
        let (old, grown) = before.map_or_else(
            || ("-".to_owned(), "-".to_owned()),
            |before| (each(*before), format!("{:+.1} %", growth(*before, *counts))),
        );
        let Counts {
            first_misses,
            last_misses,
            ..
        } = counts;
        println!(
            "{name:32} {old:>9} {:>9} {grown:>8} {first_misses:>10} {last_misses:>11}",
            each(*counts)
        );
    }
    println!("Instructions per operation; cache misses per thousand operations.");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(list: &[(&str, u64)]) -> Paths {
        let counts = |instructions| Counts {
            instructions,
            first_misses: 3,
            last_misses: 2,
        };
        list.iter()
            .map(|(name, instructions)| ((*name).to_owned(), counts(*instructions)))
            .collect()
    }

    #[test]
    fn growth_of_two_percent_passes_and_more_fails() {
        let baseline = paths(&[("a", 25_000), ("b", 25_000)]);
        assert!(compare(&baseline, &paths(&[("a", 25_500), ("b", 10_000)])).is_empty());
        assert_eq!(
            compare(&baseline, &paths(&[("a", 25_501), ("b", 25_000)])),
            ["a grew by 2.0 %"]
        );
    }

    #[test]
    fn a_path_on_one_side_only_fails() {
        let wrong = compare(&paths(&[("a", 1)]), &paths(&[("b", 1)]));
        assert_eq!(wrong, ["b is not in the baseline", "a is gone"]);
    }

    #[test]
    fn the_totals_of_callgrind_are_read_by_their_names() {
        let text = "desc: x\nevents: Ir Dr Dw I1mr D1mr D1mw ILmr DLmr DLmw\nsummary: 250 30 31 1 2 4 8 16\n";
        let counts = Counts {
            instructions: 250,
            first_misses: 7,
            last_misses: 24,
        };
        assert_eq!(counted(text), Some(counts));
        assert_eq!(
            counted("events: Ir\nsummary: 250\n"),
            None,
            "without the cache"
        );
    }

    /// Returns the newest baseline: its compiler and its contents.
    fn baseline(root: &Path) -> (String, Paths) {
        let file = baseline::newest(&root.join("benches/baseline")).unwrap();
        let name = file.file_stem().unwrap().to_str().unwrap();
        let release = name.split('-').nth(1).unwrap().to_owned();
        (release, parse(&files::read(&file).unwrap()).unwrap())
    }

    #[test]
    fn the_document_agrees_with_the_newest_baseline() {
        let (release, paths) = baseline(files::root());
        let document = files::read(&files::root().join(DOCUMENT)).unwrap();
        let filled = figures::filled(&document, rounded(&paths)).unwrap();
        for (says, measured) in document.lines().zip(filled.lines()) {
            assert_eq!(
                says, measured,
                "{DOCUMENT}: write the figures of the baseline"
            );
        }
        let compiler = format!("Rust {release}");
        assert!(document.contains(&compiler), "{DOCUMENT} lacks {compiler}");
    }

    #[test]
    fn every_count_of_instructions_in_the_table_is_marked() {
        let document = files::read(&files::root().join(DOCUMENT)).unwrap();
        let cells = |line: &str| line.split('|').map(str::to_owned).collect::<Vec<_>>();
        let mut lines = document.lines();
        let head = lines
            .find(|line| line.contains("instructions: grant"))
            .unwrap();
        let head = cells(head);
        let first = head
            .iter()
            .position(|cell| cell.contains("instructions: grant"));
        let mut rows = 0;
        for line in lines.skip(1).take_while(|line| line.starts_with('|')) {
            rows += 1;
            for cell in &cells(line)[first.unwrap()..] {
                let is_figure = cell.contains(|c: char| c.is_ascii_digit());
                assert!(!is_figure || cell.contains("<!-- "), "not marked: {line}");
            }
        }
        assert!(rows > 10, "{rows} rows");
    }

    #[test]
    fn a_baseline_is_read_as_it_was_written() {
        let written = paths(&[
            ("token_bucket.allow", 26_012),
            ("token_bucket.deny", 18_000),
        ]);
        assert_eq!(parse(&listed(&written)), Some(written));
        assert_eq!(parse("token_bucket.allow many\n"), None);
    }
}
