//! `portcullis serve`: the program `portcullis-serve`, a package of its own.
//!
//! It has dependencies that nothing else in this program needs, so it is built on its own. Here it
//! is only found: beside this program first, then in `PATH`.

use std::io;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use crate::args::ServeArgs;
use crate::failure::Failure;

/// The name of the program, without the extension that some systems need.
const NAME: &str = "portcullis-serve";

/// Runs the program. On Unix, it takes the place of this process.
///
/// # Errors
///
/// [`Failure::Refused`] if the program is not found or cannot be run.
pub(crate) fn run(args: &ServeArgs) -> Result<ExitCode, Failure> {
    let program = beside().unwrap_or_else(|| NAME.into());
    let mut command = Command::new(&program);
    command.args(&args.arguments);
    become_it(&mut command).map_err(|error| {
        Failure::Refused(if error.kind() == io::ErrorKind::NotFound {
            format!(
                "`serve` needs the program {NAME}, which is neither beside this program nor in \
                 PATH. It is a package of its own: from a checkout, \
                 cargo install --locked --path serve"
            )
        } else {
            format!("cannot run {}: {error}", program.display())
        })
    })
}

/// Returns the program that is in the same directory as this one.
fn beside() -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    let program = own.with_file_name(format!("{NAME}{}", std::env::consts::EXE_SUFFIX));
    program.is_file().then_some(program)
}

#[cfg(unix)]
fn become_it(command: &mut Command) -> io::Result<ExitCode> {
    use std::os::unix::process::CommandExt;

    Err(command.exec())
}

#[cfg(not(unix))]
fn become_it(command: &mut Command) -> io::Result<ExitCode> {
    let code = command.status()?.code();
    Ok(code
        .and_then(|code| u8::try_from(code).ok())
        .map_or(ExitCode::FAILURE, ExitCode::from))
}
