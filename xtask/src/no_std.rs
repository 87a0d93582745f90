//! Builds the core and the queue for targets without `std`. Both must compile. The core's hot paths
//! must use the target's own atomics, without divisions and panics.
//!
//! Generic code that is never instantiated compiles for any target, so the example `hot_paths`
//! instantiates it. For WebAssembly only the core is built, because the example's dev-dependencies
//! need `std`.

use crate::command::{self, Check};
use crate::context::Context;
use crate::hot_paths::HOT_PATHS;
use crate::listing;
use crate::setup::{self, Part};
use crate::targets::{TARGETS, WASM};

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
            cargo
                .arg("build")
                .args(context.locked())
                .args(["--release", "--package", package]);
            cargo
                .args([
                    "--no-default-features",
                    "--features",
                    features,
                    "--target-dir",
                ])
                .arg(&folder);
            command::run(cargo.args(options))
        };
        if target == WASM {
            build("portcullis-core", "")?;
            continue;
        }
        let assembly = listing::assembly(context, cargo(), &folder, options)?;
        let faults = faults(&assembly);
        if !faults.is_empty() {
            return Err(format!("{target}: {}", faults.join("; ")));
        }
        build("portcullis-async", "critical-section,embassy-time,defmt")?;
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
    let instructions = assembly
        .lines()
        .filter(|line| line.starts_with('\t') && !line.starts_with("\t."));
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
        assert_eq!(faults("").len(), HOT_PATHS.len());
    }
}
