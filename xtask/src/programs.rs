//! Starts programs for what they print, or for whether they succeed.

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

pub(crate) fn output(program: &str, arguments: &[&str]) -> Option<String> {
    printed(Command::new(program).args(arguments))
}

pub(crate) fn printed(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).output().ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}
