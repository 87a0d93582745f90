//! Builds the programs in `firmware/` for three microcontrollers and runs them in QEMU; each ends
//! with a status. Also runs their checks on the host, and the programs of `docs/embedded.md`.

use core::time::Duration;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::Mutex;
use std::thread;

use crate::command::{self, Check, announce};
use crate::context::Context;
use crate::setup::{self, Part};
use crate::targets::{BOARDS, Board};

/// The programs of `docs/embedded.md`: their folder, board, and libraries. Their files are as a
/// user of the libraries writes them.
const DOCUMENTED: [(&str, &Board, &[&str]); 2] = [
    ("docs/embedded", &BOARDS[0], &["core", "async"]),
    ("docs/embedded-m0/board", &BOARDS[1], &["core"]),
];

/// Contains the second program, and tests for the host.
const TESTED: &str = "docs/embedded-m0";

/// The time limit for a program.
const LONGEST: Duration = Duration::from_mins(5);

pub(crate) fn check(context: &Context) -> Check {
    let mut cargo = context.cargo_test("");
    cargo
        .current_dir(context.root.join("firmware"))
        .env("CARGO_TARGET_DIR", context.target_dir("firmware"));
    let mut remarks = vec![format!("host: {}", command::run_tests(&mut cargo)?)];
    for board in BOARDS {
        let passed = run(context, &board).map_err(|why| format!("{}: {why}", board.package))?;
        remarks.push(format!(
            "{}: {passed} checks",
            board.package.trim_start_matches("portcullis-")
        ));
    }
    Ok(remarks.join(", "))
}

/// Builds and runs the programs of `docs/embedded.md`, and the tests of the part that runs on the
/// host.
pub(crate) fn check_documented(context: &Context) -> Check {
    let mut cargo = context.cargo_test("");
    cargo
        .current_dir(context.root.join(TESTED))
        .env("CARGO_TARGET_DIR", context.target_dir("firmware"));
    patch(context, &mut cargo, &["core"]);
    let mut remarks = vec![format!("host: {}", command::run_tests(&mut cargo)?)];
    for (place, board, libraries) in DOCUMENTED {
        let mut cargo = cargo_in(context, place, board.target, "run");
        patch(context, &mut cargo, libraries);
        remarks.extend(emulated(&mut cargo).map_err(|why| format!("{place}: {why}"))?);
    }
    Ok(remarks.join(", "))
}

/// Puts the libraries of this workspace in the place of published ones.
fn patch(context: &Context, cargo: &mut Command, libraries: &[&str]) {
    for library in libraries {
        let path = context.root.join(library);
        let patch = format!(
            "patch.crates-io.portcullis-{library}.path='{}'",
            path.display()
        );
        cargo.arg("--config").arg(patch);
    }
}

/// Builds and runs the programs of a board. Returns the number of passed checks.
fn run(context: &Context, board: &Board) -> Result<u64, String> {
    command::run(&mut cargo(context, board.package, board.target, "build"))?;
    let passed = board.programs.iter().map(|program| {
        let mut cargo = cargo(context, board.package, board.target, "run");
        let lines = emulated(cargo.args(["--bin", program]))?;
        match lines.iter().rev().find_map(|line| sum(line)) {
            Some((passed @ 1.., 0)) => Ok(passed),
            _ => Err(format!("{program}: no checks")),
        }
    });
    passed.sum()
}

/// Runs a program, which must end successfully, and returns its output.
pub(crate) fn emulated(cargo: &mut Command) -> Result<Vec<String>, String> {
    announce(cargo);
    // On Unix, Cargo replaces its process by the emulator.
    let child = cargo.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let mut child = child.map_err(|error| format!("cargo run could not be started: {error}"))?;
    let output = child.stdout.take();
    let child = Arc::new(Mutex::new(child));
    kill_late(&child);
    let mut lines = Vec::new();
    for line in output
        .into_iter()
        .flat_map(|output| BufReader::new(output).split(b'\n'))
    {
        let line = line.map_err(|error| format!("reading from the emulator: {error}"))?;
        let line = String::from_utf8_lossy(&line).trim_end().to_owned();
        println!("{line}");
        lines.push(line);
    }
    let status = child.lock().map_err(|error| error.to_string())?.wait();
    let status = status.map_err(|error| format!("waiting for the emulator: {error}"))?;
    let last = lines
        .last()
        .map_or("nothing was printed", |line| line.trim());
    if status.success() {
        Ok(lines)
    } else {
        Err(format!("{status}, {last}"))
    }
}

/// Stops a program that hangs.
fn kill_late(child: &Arc<Mutex<Child>>) {
    let child = Arc::downgrade(child);
    thread::spawn(move || {
        thread::sleep(LONGEST);
        if let Some(child) = child.upgrade()
            && let Ok(mut child) = child.lock()
        {
            _ = child.kill();
        }
    });
}

/// Returns the numbers in a line like `3 passed, 0 failed`.
fn sum(line: &str) -> Option<(u64, u64)> {
    let (passed, failed) = line.split_once(" passed, ")?;
    Some((
        passed.parse().ok()?,
        failed.strip_suffix(" failed")?.parse().ok()?,
    ))
}

/// The target directory, and whether Debian's toolchain builds the programs.
pub(crate) fn folder(context: &Context) -> (PathBuf, bool) {
    let is_debian = !setup::is_there(context, Part::Firmware);
    (
        context.target_dir(if is_debian {
            "firmware-debian"
        } else {
            "firmware"
        }),
        is_debian,
    )
}

/// Returns Cargo's `subcommand` for a program in `firmware/`, from the toolchain that builds for
/// its target.
pub(crate) fn cargo(context: &Context, package: &str, target: &str, subcommand: &str) -> Command {
    let mut cargo = cargo_in(context, "firmware", target, subcommand);
    cargo.args(["--package", package]);
    cargo
}

/// Returns Cargo's `subcommand` in a folder whose own settings name the linker scripts.
fn cargo_in(context: &Context, place: &str, target: &str, subcommand: &str) -> Command {
    let (folder, is_debian) = folder(context);
    let mut cargo = if is_debian {
        let mut cargo = context.debian_cargo();
        let linker = format!(
            "CARGO_TARGET_{}_LINKER",
            target.replace('-', "_").to_uppercase()
        );
        cargo
            .env(linker, setup::linker_beside_debian().unwrap_or_default())
            .env("RUSTC_BOOTSTRAP", "1");
        cargo.args([subcommand, "-Zbuild-std=core"]);
        cargo
    } else {
        let mut cargo = context.cargo();
        cargo.arg(subcommand);
        cargo
    };
    cargo
        .current_dir(context.root.join(place))
        .env_remove("RUSTFLAGS")
        .env("CARGO_TARGET_DIR", folder);
    cargo
        .args(context.locked())
        .args(["--release", "--target", target]);
    cargo
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files;

    #[test]
    fn each_documented_program_is_for_its_board() {
        for (place, board, _) in DOCUMENTED {
            let settings = files::root().join(place).join(".cargo/config.toml");
            let target = format!("target = \"{}\"\n", board.target);
            assert!(files::read(&settings).unwrap().contains(&target), "{place}");
        }
    }

    #[test]
    fn the_total_of_a_run_is_read_and_that_of_a_group_is_not() {
        assert_eq!(sum("10469 passed, 0 failed"), Some((10_469, 0)));
        assert_eq!(sum("3 passed, 2 failed"), Some((3, 2)));
        assert_eq!(
            sum("limiters against oracle tables: 6188 passed, 0 failed"),
            None
        );
        assert_eq!(sum("panicked at src/main.rs"), None);
    }
}
