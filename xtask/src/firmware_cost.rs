//! Measures the cost of each limiter on a Cortex-M3 and a Cortex-M0: flash, RAM and instructions.
//! Compares it with a budget, and with a committed baseline of the same compiler.
//!
//! The program `firmware/cost` contains one limiter, or none. The difference is the cost of the
//! limiter.

use core::fmt::Write as _;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::baseline;
use crate::command::{self, Check};
use crate::context::Context;
use crate::files;
use crate::firmware;
use crate::programs;
use crate::targets::BOARDS;

const PACKAGE: &str = "portcullis-cost";

/// A Cortex-M3 and a Cortex-M0.
const TARGETS: [&str; 2] = [BOARDS[0].target, BOARDS[1].target];

/// The subject without a limiter. Its call takes this many instructions, including the call itself
/// and the return, per thousand calls.
const NOTHING: &str = "nothing";
const NOTHING_TAKES: i64 = 3_000;

/// The limiters, and some wrappers around them. Those of the library for C begin with `c-`.
const SUBJECTS: &[&str] = {
    macro_rules! subjects {
        ($($_limiter:ident: $_type:ty {
            on: $_on:tt,
            new: $_new:tt,
            on_board: $_board:tt,
            back: $_back:ident,
            denial: $_denial:ident,
            refunds: $_refunds:tt,
            saves: $_saves:tt,
            hot_path: $_path:tt,
            counted: $_counted:tt,
            cost: [$($subject:literal)?],
        })*) => {
            &[
                $($($subject,)?)*
                "all-of-3",
                "c-bucket-table",
                "c-concurrency",
                "c-fixed-window",
                "c-lease-pool",
                "c-sliding-window",
                "c-token-bucket",
                "c-window-table",
                "counted-bucket",
                "keyed",
                "lease-pool",
                "penalised-bucket",
                "queue",
                "token-bucket-build",
                "token-bucket-retry",
            ]
        };
    }
    for_each_limiter!(subjects)
};

/// The budgets on a Cortex-M3, which hold whatever the baseline is: bytes of flash, and
/// instructions per thousand allowed calls.
const BUDGETS: [(&str, i64, i64); 1] = [("token-bucket", 512, 95_000)];

/// The allowed growth of flash and instructions, in percent.
const TOLERANCE: i64 = 2;

const HEAD: &str = "\
# With 32-bit words and opt-level \"s\": bytes of RAM (state and settings); then on a Cortex-M3 and on a Cortex-M0, bytes of flash (code and constants),
# and instructions of a thousand calls, allowed and denied, with 64-bit times. What returns by release is given back in the same call.
# Written by `cargo xtask firmware-cost --bless`.
";

/// RAM; then on a Cortex-M3 and on a Cortex-M0 flash, allowed, denied.
type Cost = [i64; 7];

/// What the numbers of a [`Cost`] are.
const WHAT: [&str; 7] = [
    "bytes of RAM",
    "bytes of flash",
    "instructions, allowed",
    "instructions, denied",
    "bytes of flash on a Cortex-M0",
    "instructions, allowed, on a Cortex-M0",
    "instructions, denied, on a Cortex-M0",
];

pub(crate) fn check(context: &Context) -> Check {
    let (_, is_debian) = firmware::folder(context);
    let compiler = compiler(&if is_debian {
        PathBuf::from("/usr/bin/rustc")
    } else {
        programs::rustc()
    })?;
    let mut now = BTreeMap::new();
    for target in TARGETS {
        let of = |subject| {
            let measured = measure(context, target, subject);
            measured.map_err(|why| format!("{subject} on {target}: {why}"))
        };
        let (_, [flash, allowed, denied]) = of(NOTHING)?;
        let nothing = [flash, allowed - NOTHING_TAKES, denied - NOTHING_TAKES];
        for &subject in SUBJECTS {
            let (ram, all) = of(subject)?;
            let cost = now.entry(subject).or_insert_with(|| vec![ram]);
            if cost[0] != ram {
                return Err(format!(
                    "{subject} takes {} and {ram} bytes of RAM",
                    cost[0]
                ));
            }
            cost.extend(all.iter().zip(nothing).map(|(all, nothing)| all - nothing));
        }
    }
    let cost = |(name, cost): (&str, Vec<i64>)| Some((name.to_owned(), cost.try_into().ok()?));
    let now: Option<BTreeMap<String, Cost>> = now.into_iter().map(cost).collect();
    let now = now.ok_or("a number is missing")?;
    let text = now.iter().fold(HEAD.to_owned(), |text, (name, cost)| {
        text + &line(name, cost)
    });
    print!("{text}");
    let mut wrong = beyond_budget(&now);
    let file = format!("firmware/baseline/{compiler}.txt");
    let file = context.root.join(file);
    if context.bless && wrong.is_empty() {
        files::write(&file, &text)?;
        return Ok(format!(
            "{} limiters written to {}",
            now.len(),
            file.display()
        ));
    }
    let baseline = fs::read_to_string(&file).ok();
    if let Some(baseline) = &baseline {
        let baseline = baseline::parse(baseline).ok_or_else(|| baseline::damaged(&file))?;
        wrong.extend(compare(&baseline, &now));
    }
    match (wrong.is_empty(), baseline) {
        (true, Some(_)) => Ok(format!("{} limiters", now.len())),
        (true, None) => Ok(format!("within the budget; {compiler} has no baseline")),
        (false, _) => Err(baseline::refused(&wrong)),
    }
}

fn compiler(rustc: &Path) -> Result<String, String> {
    let printed = programs::output(rustc, &["--version"]);
    let version = printed
        .as_deref()
        .and_then(|printed| printed.split(' ').nth(1));
    version
        .map(|version| format!("rustc-{version}"))
        .ok_or_else(|| format!("{} does not print its version", rustc.display()))
}

/// Builds and runs the program with one limiter in it. Returns its RAM, and the rest for this
/// target.
fn measure(context: &Context, target: &str, subject: &str) -> Result<(i64, [i64; 3]), String> {
    let cargo = |subcommand| {
        let mut cargo = firmware::cargo(context, PACKAGE, target, subcommand);
        cargo.env("SUBJECT", subject);
        cargo
    };
    command::run(&mut cargo("build"))?;
    let (folder, _) = firmware::folder(context);
    let file = folder.join(target).join("release").join(PACKAGE);
    let program = fs::read(&file).map_err(files::at(&file))?;
    let flash =
        constant_bytes(&program).ok_or_else(|| format!("{} is no program", file.display()))?;
    let printed = firmware::emulated(&mut cargo("run"))?.join(" ");
    let numbers: Vec<i64> = printed
        .split_whitespace()
        .filter_map(|number| number.parse().ok())
        .collect();
    match numbers[..] {
        [ram, allowed, denied] => Ok((ram, [flash, allowed, denied])),
        _ => Err(format!("{printed:?} is not three numbers")),
    }
}

/// Returns the number of bytes in the sections of an ELF file that are loaded and not written: code
/// and constants.
fn constant_bytes(elf: &[u8]) -> Option<i64> {
    const NO_BITS: u32 = 8;
    const WRITTEN: u32 = 1;
    const LOADED: u32 = 2;
    let half = |at: usize| {
        Some(usize::from(u16::from_le_bytes(
            elf.get(at..at + 2)?.try_into().ok()?,
        )))
    };
    let word = |at: usize| Some(u32::from_le_bytes(elf.get(at..at + 4)?.try_into().ok()?));
    let (table, size, count) = (word(32)? as usize, half(46)?, half(48)?);
    let mut sum = 0;
    for section in (0..count).map(|index| table + index * size) {
        let (kind, flags, bytes) = (word(section + 4)?, word(section + 8)?, word(section + 20)?);
        if kind != NO_BITS && flags & (WRITTEN | LOADED) == LOADED {
            sum += i64::from(bytes);
        }
    }
    (elf.starts_with(b"\x7fELF\x01\x01") && sum > 0).then_some(sum)
}

fn line(name: &str, cost: &Cost) -> String {
    let mut line = format!("{name:20}");
    for (number, what) in cost.iter().zip(WHAT) {
        let width = if what.starts_with("bytes") { 7 } else { 9 };
        _ = write!(line, "{number:>width$}");
    }
    line + "\n"
}

fn beyond_budget(now: &BTreeMap<String, Cost>) -> Vec<String> {
    let over = |&(name, flash, allowed): &(&str, i64, i64)| {
        let [_, has, takes, ..] = now.get(name)?;
        let is_over = *has > flash || *takes > allowed;
        is_over.then(|| format!("{name}: {has} bytes and {takes} instructions in a thousand calls"))
    };
    BUDGETS.iter().filter_map(over).collect()
}

/// Returns what has grown, appeared or disappeared.
fn compare(baseline: &BTreeMap<String, Cost>, now: &BTreeMap<String, Cost>) -> Vec<String> {
    baseline::compare(baseline, now, |name, before, cost| {
        let mut grown = Vec::new();
        for ((before, after), what) in before.iter().zip(cost).zip(WHAT) {
            // Simulates a timer with a resolution of 80 instructions.
            let timer = 80 * i64::from(what.starts_with("instructions"));
            if *after > before + before * TOLERANCE / 100 + timer {
                grown.push(format!("{name}: {after} {what}, {before} before"));
            }
        }
        grown
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUCKET: Cost = [56, 300, 80_000, 80_000, 400, 90_000, 90_000];

    fn of(name: &str, cost: Cost) -> BTreeMap<String, Cost> {
        BTreeMap::from([(name.to_owned(), cost)])
    }

    #[test]
    fn a_baseline_is_read_as_it_was_written() {
        let costs = of("bucket", BUCKET);
        let text = costs.iter().fold(HEAD.to_owned(), |text, (name, cost)| {
            text + &line(name, cost)
        });
        assert_eq!(baseline::parse(&text), Some(costs));
        assert_eq!(baseline::parse::<i64, 7>("bucket 304 56 1\n"), None);
    }

    #[test]
    fn the_documents_agree_with_the_newest_baseline() {
        let [document, of_c] = ["docs/embedded.md", "bindings/c/README.md"]
            .map(|file| (file, files::read(&files::root().join(file)).unwrap()));
        let newest = baseline::newest(&files::root().join("firmware/baseline")).unwrap();
        let costs = baseline::parse::<i64, 7>(&files::read(&newest).unwrap()).unwrap();
        let measured: Vec<_> = costs.keys().map(String::as_str).collect();
        if let Some(why) = files::difference(SUBJECTS, &measured) {
            panic!(
                "{}: {why}; its table in docs/embedded.md, or of bindings/c/README.md if they are of the \
                 library for C, needs the same rows",
                newest.display()
            );
        }
        for (name, cost) in costs {
            let shown = cost.iter().zip(WHAT).map(|(number, what)| match what {
                bytes if bytes.starts_with("bytes") => number.to_string(),
                _ => ((number + 500) / 1_000).to_string(),
            });
            let shown: Vec<_> = shown.collect();
            let row = format!("| `{name}` | {} |\n", shown.join(" | "));
            let (file, text) = if name.starts_with("c-") {
                &of_c
            } else {
                &document
            };
            assert!(text.contains(&row), "{file} lacks {row}");
        }
    }

    #[test]
    fn growth_and_added_and_removed_limiters_are_reported() {
        let before = of("bucket", BUCKET);
        let within = [56, 306, 81_680, 70_000, 408, 91_880, 0];
        assert!(compare(&before, &of("bucket", within)).is_empty());
        let beyond = [60, 307, 81_681, 80_000, 409, 91_881, 91_881];
        assert_eq!(compare(&before, &of("bucket", beyond)).len(), 6);
        assert_eq!(compare(&before, &of("window", [1; 7])).len(), 2);
    }

    #[test]
    fn the_budget_applies_whatever_the_baseline() {
        let of = |flash, allowed| of("token-bucket", [56, flash, allowed, 0, 9_999, 999_999, 0]);
        assert!(beyond_budget(&of(512, 95_000)).is_empty());
        assert_eq!(beyond_budget(&of(513, 95_000)).len(), 1);
        assert_eq!(beyond_budget(&of(512, 95_001)).len(), 1);
    }

    #[test]
    fn a_file_that_is_not_a_program_is_reported() {
        assert_eq!(constant_bytes(b"\x7fELF\x02\x01"), None);
        assert_eq!(constant_bytes(&[0; 64]), None);
    }
}
