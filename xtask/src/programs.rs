//! Starts programs for what they print, or for whether they succeed.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::command::announce;

pub(crate) fn succeeds(command: &mut Command) -> bool {
    announce(command);
    command
        .stdin(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

pub(crate) fn is_quiet_success(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .output()
        .is_ok_and(|output| output.status.success())
}

/// A command of rustup, which installs no toolchain that is missing.
pub(crate) fn rustup() -> Command {
    let mut command = Command::new("rustup");
    command.env("RUSTUP_AUTO_INSTALL", "0");
    command
}

/// Returns the compiler of the toolchain whose Cargo runs this program. The set-up may install
/// another toolchain, and that may come first in `PATH`.
pub(crate) fn rustc() -> PathBuf {
    beside_cargo("rustc").unwrap_or_else(|| PathBuf::from("rustc"))
}

/// Returns `PATH` with the programs of that toolchain first.
pub(crate) fn path() -> OsString {
    let path = env::var_os("PATH").unwrap_or_default();
    let own = rustc().parent().map(Path::to_owned);
    let own = own.filter(|folder| !folder.as_os_str().is_empty());
    env::join_paths(own.into_iter().chain(env::split_paths(&path))).unwrap_or(path)
}

fn beside_cargo(name: &str) -> Option<PathBuf> {
    let cargo = env::var_os("CARGO")?;
    let program = Path::new(&cargo).with_file_name(name);
    program.is_file().then_some(program)
}

pub(crate) fn output(program: impl AsRef<OsStr>, arguments: &[&str]) -> Option<String> {
    printed(Command::new(program).args(arguments))
}

pub(crate) fn printed(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).output().ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}
