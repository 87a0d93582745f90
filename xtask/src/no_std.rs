//! Builds the core, the queue and the functions for C for targets without `std`. All must compile.
//! The core's hot paths must use the target's own atomics, without divisions and panics: they, and
//! what they call.
//!
//! Generic code that is never instantiated compiles for any target, so the example `hot_paths`
//! instantiates it. For WebAssembly only the core is built, because the example's dev-dependencies
//! need `std`. On a target without compare-exchange, the step `firmware` runs the core and the
//! queue: here the functions for C compile for it.

use std::collections::{BTreeMap, BTreeSet};

use crate::command::{self, Check};
use crate::context::Context;
use crate::hot_paths::HOT_PATHS;
use crate::listing;
use crate::setup::{self, Part};
use crate::targets::{SINGLE_CORE, TARGETS, WASM};

pub(crate) fn check(context: &Context) -> Check {
    let has_core = setup::is_there(context, Part::BareTargets);
    for target in TARGETS {
        let cargo = || {
            if has_core {
                return context.cargo();
            }
            // Debian has only the source of `core`, and a compiler of the same version that can
            // build it.
            let mut cargo = context.debian_cargo();
            cargo.env("RUSTC_BOOTSTRAP", "1");
            cargo
        };
        let folder = context.target_dir(if has_core { "no-std" } else { "no-std-debian" });
        let options = ["-Zbuild-std=core", "--target", target];
        let options = if has_core {
            &options[1..]
        } else {
            &options[..]
        };
        let build = |package: &str, features: &str| {
            let mut cargo = cargo();
            cargo.arg("build").args(context.locked());
            cargo.args(["--release", "--package", package]);
            cargo.args(["--no-default-features", "--features", features]);
            cargo.arg("--target-dir").arg(&folder);
            command::run(cargo.args(options))
        };
        if target == WASM {
            build("portcullis-core", "")?;
            continue;
        }
        if target == SINGLE_CORE {
            build("portcullis-c", "single-core")?;
            continue;
        }
        let assembly = listing::assembly(context, cargo(), &folder, options)?;
        let faults = faults(&assembly);
        if !faults.is_empty() {
            return Err(format!("{target}: {}", faults.join("; ")));
        }
        build(
            "portcullis-async",
            "critical-section,embassy-time,defmt,shedding",
        )?;
        build("portcullis-c", "")?;
    }
    Ok(TARGETS.join(", "))
}

/// Checks what must and what must not be in the assembly of the hot paths.
fn faults(assembly: &str) -> Vec<String> {
    // Two functions with the same code may be merged, with an alias for one of them.
    let is_defined = |name: &str| {
        let forms = [
            format!("{name}:"),
            format!("{name} = "),
            format!("\t.set\t{name}, "),
        ];
        assembly
            .lines()
            .any(|line| forms.iter().any(|form| line.starts_with(form)))
    };
    let missing = HOT_PATHS
        .iter()
        .filter(|hot| !is_defined(hot.name))
        .map(|hot| format!("{} is missing", hot.name));
    let instructions = reachable(assembly)
        .into_iter()
        .filter(|line| !line.starts_with("\t."));
    let forbidden = instructions.filter(|line| {
        // Emulated atomics, and divisions by an instruction or by a helper function.
        let mnemonic = line.trim_start();
        mnemonic.starts_with("rem")
            || ["__atomic_", "__sync_", "div", "panic"]
                .iter()
                .any(|word| line.contains(word))
    });
    missing
        .chain(forbidden.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")))
        .collect()
}

/// The lines of the hot paths, and of the functions and tables that they name, and so on. The file
/// also has functions that were compiled for code which was then removed.
fn reachable(assembly: &str) -> Vec<&str> {
    let (mut parts, mut current, mut is_code) = (BTreeMap::<&str, Vec<&str>>::new(), "", true);
    for line in assembly.lines() {
        if let Some(section) = line.trim_start().strip_prefix(".section") {
            is_code = section.contains(".text");
        } else if let Some((name, other)) = alias(line) {
            parts.entry(name).or_default().push(other);
        } else if let Some(label) = line.strip_suffix(':') {
            // A label in code is one of the function that it is in.
            if !(is_code && label.starts_with(".L")) {
                current = label;
            }
        } else if line.starts_with('\t') && names_others(line) {
            parts.entry(current).or_default().push(line);
        }
    }
    let mut seen = BTreeSet::new();
    let mut next: Vec<_> = HOT_PATHS.iter().map(|hot| hot.name).collect();
    let mut lines = Vec::new();
    while let Some(name) = next.pop() {
        let Some(body) = parts.get(name).filter(|_| seen.insert(name)) else {
            continue;
        };
        for &line in body {
            let is_part = |c: char| c.is_alphanumeric() || "_$.".contains(c);
            next.extend(
                line.split(|c: char| !is_part(c))
                    .filter(|word| !word.is_empty()),
            );
            lines.push(line);
        }
    }
    lines
}

/// Whether the line is an instruction or an address in a table. Other directives also name the
/// function that follows.
fn names_others(line: &str) -> bool {
    let sizes = ["long", "word", "4byte", "quad", "8byte", "dword", "xword"];
    match line.strip_prefix("\t.") {
        Some(directive) => sizes.iter().any(|size| directive.starts_with(size)),
        None => true,
    }
}

/// Returns a name and what it stands for, if the line gives a function a second name.
fn alias(line: &str) -> Option<(&str, &str)> {
    match line.strip_prefix("\t.set\t") {
        Some(names) => names.split_once(", "),
        None => line.split_once(" = ").filter(|_| !line.starts_with('\t')),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn helpers_and_missing_functions_are_found() {
        let defined = HOT_PATHS
            .iter()
            .fold(String::new(), |all, hot| all + hot.name + ":\n\tbx\tlr\n");
        assert!(faults(&defined).is_empty());
        assert_eq!(
            faults(&format!("{defined}\tbl\t__atomic_load_8\n")),
            ["bl __atomic_load_8"]
        );
        assert_eq!(
            faults(&format!("{defined}\tbl\t__aeabi_uldivmod\n")),
            ["bl __aeabi_uldivmod"]
        );
        assert_eq!(
            faults(&format!("{defined}\tremu\ta0, a0, a1\n")),
            ["remu a0, a0, a1"]
        );
        let splits = "splits:\n\tbl\t__aeabi_uldivmod\n";
        assert!(faults(&format!("{defined}{splits}")).is_empty());
        assert_eq!(
            faults(&format!("{defined}\tb.w\tsplits\n{splits}")),
            ["bl __aeabi_uldivmod"]
        );
        let table =
            "\t.section\t.rodata.table\n.Ltable:\n\t.long\tsplits\n\t.section\t.text.splits\n";
        assert_eq!(
            faults(&format!("{defined}\t.long\t.Ltable\n{table}{splits}")),
            ["bl __aeabi_uldivmod"]
        );
        assert_eq!(faults("").len(), HOT_PATHS.len());
    }
}
