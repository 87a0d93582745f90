//! Compares the interfaces of the libraries with those of the last release, by
//! `cargo semver-checks`.
//!
//! The last release is the newest tag `v*` before the present commit, or the revision that
//! [`BASELINE`] names. Before the first release there is nothing to compare with.

use std::path::PathBuf;
use std::process::Command;

use crate::command::{self, Check};
use crate::context::Context;
use crate::package;
use crate::programs;

/// The variable that names a revision to compare with.
const BASELINE: &str = "PORTCULLIS_BASELINE";

/// The program, and the folder below `target` into which Cargo installs it.
const PROGRAM: &str = "cargo-semver-checks";

const MISSING: &str = "missing: cargo-semver-checks (cargo install cargo-semver-checks --locked)";

/// Returns the program: as installed below `target`, or as Cargo finds it.
fn program(context: &Context) -> Option<PathBuf> {
    let own = installed(context).join("bin").join(PROGRAM);
    let runs = |program: &PathBuf| {
        let mut command = Command::new(program);
        programs::is_quiet_success(command.args(["semver-checks", "--version"]))
    };
    [own, PathBuf::from(PROGRAM)].into_iter().find(runs)
}

fn installed(context: &Context) -> PathBuf {
    context.target_dir(PROGRAM)
}

fn is_there(context: &Context) -> bool {
    program(context).is_some()
}

/// Installs the newest version: it must know the output of the present compiler.
fn install(context: &Context) -> bool {
    let mut cargo = context.cargo();
    cargo.args(["install", "--quiet", "--debug", "--locked", PROGRAM]);
    programs::succeeds(cargo.arg("--root").arg(installed(context)))
}

pub(crate) fn check(context: &Context) -> Check {
    let Some(baseline) = baseline(context) else {
        return Ok(format!(
            "no tag v* to compare with; {BASELINE} names a revision"
        ));
    };
    // Without a release, nothing is installed.
    if !is_there(context) && !install(context) {
        return Err(MISSING.to_owned());
    }
    let program = program(context).ok_or(MISSING)?;
    let mut command = Command::new(program);
    command.current_dir(&context.root).arg("semver-checks");
    for package in package::published(&context.root)? {
        // A program has no interface of Rust.
        if !["portcullis-cli", "portcullis-serve"].contains(&&*package.name) {
            command.args(["--package", &package.name]);
        }
    }
    command.args(["--all-features", "--baseline-rev", &baseline]);
    command.env("CARGO_TARGET_DIR", context.target_dir("semver"));
    command::run(&mut command)?;
    Ok(format!("compared with {baseline}"))
}

/// Returns the revision to compare with.
fn baseline(context: &Context) -> Option<String> {
    if let Ok(revision) = std::env::var(BASELINE) {
        return Some(revision);
    }
    let mut git = Command::new("git");
    git.current_dir(&context.root);
    let tag = programs::printed(git.args(["describe", "--tags", "--abbrev=0", "--match", "v*"]));
    tag.map(|tag| tag.trim().to_owned())
}
